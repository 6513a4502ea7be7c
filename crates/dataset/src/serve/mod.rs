//! HTTP, to clients and to peers.
//!
//! A connection is served by one of two code paths. The fast path answers requests for keys, and nothing else. A connection
//! with any other request is handed over to the full path, hyper, which knows every rule of HTTP.
//!
//! ```text
//!              ┌─ fast path: GET and HEAD of a key, lists of keys, over HTTP/1.1 ─┐
//! connection ──┤                    │ anything else: the connection is passed on  ├──► lookup ─► reader
//!              └─ full: hyper, HTTP/1.1 and HTTP/2 ◄─────────────────────────────┘        └──► fetch ─► peers
//! ```
//!
//! Why two: where a lookup takes some hundred nanoseconds, reading and writing the request is all there is to save, so
//! the most common requests pass by everything that the rare ones need. What came together is looked for together, and
//! asked of peers together (`batch.rs`). The fast path parses by `httparse`, which hyper uses too, and takes only
//! requests about which the two cannot differ; a test sends the same to both and compares every byte.
//!
//! Threads are ours, one runtime on each, and a connection stays on its thread: nothing is handed between cores on
//! the way of a request. A lookup may wait for the disk, and its thread waits with it: with stores larger than
//! memory, use more threads than cores.
//!
//! One door speaks both protocols: the answers have our headers and those of Sequins, and a mark for peers,
//! `?proxy=<version>`, that is Sequins' own.

mod answer;
mod batch;
mod encoding;
mod fast_path;
mod fetch;
mod full;
mod lookup;
mod many;
mod metrics;
mod own;
mod page;
mod peers;
mod range;
mod refusal;
mod request;
mod scan;
mod server;
mod status;

pub use own::{OrderError, Orders};
pub use server::{ServeError, Server, Settings};

/// The header of an answer with the version that it is from.
pub const VERSION: &str = "partage-version";
/// The same, as Sequins names it.
pub const SEQUINS_VERSION: &str = "x-sequins-version";
/// The header of an answer with the peer that gave it.
pub const SEQUINS_PROXIED_TO: &str = "x-sequins-proxied-to";
/// The number from which a node's share is computed, at `/healthz`, as Sequins calls it.
pub const SEQUINS_SHARD_ID: &str = "x-sequins-shard-id";
