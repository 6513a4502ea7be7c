//! What others ask of a coordinator, over HTTP and gRPC: workers, routers, people and other coordinators.
//!
//! Both protocols lead to the same handlers: [`admin`] for commands and questions, [`registering`] for new workers. A
//! coordinator that stands by answers what it knows and passes on the rest ([`forward`]).

pub mod admin;
pub mod coordinator_list;
pub mod error;
pub mod forward;
pub mod grpc;
pub mod http;
pub mod registering;
