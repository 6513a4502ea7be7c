//! The client of a sharded service: it has the maps, and sends each request to its key's node.
//!
//! Three APIs, one state machine behind them:
//!
//! | you have | you use |
//! |---|---|
//! | a program in Rust | [`Router`]: [`Router::lookup`], [`Router::request`] |
//! | an HTTP service that should be sharded, in any language | [`proxy`]: a reverse proxy that finds the key in each request |
//! | a simulator, or another transport | `partage_core::routing`, which decides all of it |
//!
//! A coordinator pushes the maps, and the router keeps them; while it reaches no coordinator, it goes on with
//! those. A node that no longer owns a key names the owner; the router asks the owner, and refreshes
//! its map.

mod call;
mod counters;
mod error;
pub mod limits;
mod options;
pub mod proxy;
mod router;

pub use call::body::{AnswerBody, BodyError, Outgoing};
pub use counters::Counts;
pub use error::CallError;
pub use options::{CallOptions, Options};
pub use partage_core::keyspace::map::Access;
pub use partage_core::routing::budget::BudgetPolicy;
pub use partage_core::routing::pace::Hedging;
pub use partage_core::routing::retry::RetryPolicy;
pub use partage_wire::request::headers;
pub use router::{LiveReplica, Placed, Router};
