//! Network and stored forms, with versions; the only place that knows how anything looks outside of memory.
//!
//! Eight forms, and the same `core` types in each:
//!
//! | form | for whom | where |
//! |---|---|---|
//! | protobuf over gRPC | worker SDK, routers, programs | [`proto`] (generated), [`form`] (to and from core) |
//! | JSON over HTTP | workers in any language, `curl`, the console | [`json`] |
//! | HTTP headers | routers and nodes, on each request | [`headers`], [`unavailable`] |
//! | lines of text | workers written as shell scripts | [`lines`] |
//! | TOML | operators, one file a role | [`config`] |
//! | checksummed bytes | the coordination store | [`stored`] |
//! | checksummed lines | a file to keep: everything durable | [`backup`] |
//! | words | what dataset nodes publish and remember | [`presence`] |
//! | checksummed JSON | the store files of a dataset version | [`dataset`] |
//!
//! Whatever comes in is parsed at once: names, keys, ranges and capacities are checked here, once, and a
//! [`Malformed`] names the field and what is wrong with it. After that all code trusts the types.
//!
//! There is no I/O here, and no type of its own where core has one. Deriving the forms on core's types
//! would be shorter; but then a renamed field in core would change what is on disk.

pub mod at_least;
pub mod backup;
pub mod config;
pub mod dataset;
pub mod form;
#[cfg(test)]
mod golden;
pub mod headers;
pub mod json;
pub mod kept;
pub mod limits;
pub mod lines;
mod malformed;
pub mod maps;
pub mod metadata;
pub mod presence;
pub mod proto;
mod refusal;
pub mod session;
pub mod stored;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod unavailable;

pub use malformed::Malformed;
pub use refusal::{Refusal, Retry};
pub use session::Token;
