//! Network and stored forms, with versions; the only place that knows how anything looks outside of memory.
//!
//! By topic, and in each topic by language:
//!
//! | topic | what, and for whom |
//! |---|---|
//! | [`admin`](json) | commands, questions, plans, events: programs, `curl`, the console, `partage` itself |
//! | [`keyspace`](json) | settings, shardings, bounds |
//! | [`worker`] | registration, beats, orders: the SDK (protobuf), any language (JSON), shell scripts ([lines](worker::lines)) |
//! | [`map`] | maps to routers, between metadata servers, and kept on disk |
//! | [`request`] | headers and refusals that routers and nodes exchange on each request of a client |
//! | [`replication`] | packets between the replicas of tables |
//! | [`table`](mod@table) | pages of scans of tables, to clients and between nodes |
//! | [`shuffle`] | how the shuffles of a pool are |
//! | [`dataset`] | manifests of store files, and what dataset nodes publish and remember |
//! | [`stored`] | checksummed bytes in the coordination store |
//! | [`backup`] | checksummed lines: everything durable in one file |
//! | [`config`] | TOML of operators, one file a role |
//!
//! Files `grpc` are protobuf ([`proto`], generated) to and from core; files `json` are JSON, whose types have their names in
//! [`json`]. The same `core` types stand behind all. Where both languages have the same fields, a file `conversion`
//! converts both by one text.
//!
//! Whatever comes in is parsed at once: names, keys, ranges and capacities are checked here, once, and a
//! [`Malformed`] names the field and what is wrong with it. After that all code trusts the types.
//!
//! There is no I/O here, and no type of its own where core has one. Deriving the forms on core's types
//! would be shorter; but then a renamed field in core would change what is on disk.

mod admin;
pub mod backup;
pub mod config;
mod conversion;
pub mod dataset;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod grpc_tests;
pub mod json;
mod keyspace;
pub mod limits;
mod malformed;
pub mod map;
pub mod proto;
pub mod replication;
pub mod request;
pub mod shuffle;
pub mod stored;
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod worker;

pub use malformed::Malformed;
pub use worker::refusal::{Refusal, Retry};
pub use worker::session::Token;
