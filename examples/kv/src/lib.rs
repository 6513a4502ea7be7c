//! An in-memory key-value service over HTTP, sharded with Partage. Built on the SDK like any user's: copy it.
//!
//! | request                                    | answer                                        |
//! |--------------------------------------------|-----------------------------------------------|
//! | `GET /<keyspace>/<key>`, `/kv/…` the same  | the value, or 404                             |
//! | `PUT /<keyspace>/<key>` with a body        | 204                                           |
//! | `DELETE /<keyspace>/<key>`                 | 204                                           |
//!
//! Any node answers for any key: [`partage_worker::http::sharded`] stands in front and forwards what belongs
//! elsewhere, once. What is written here is only what a service must do itself:
//!
//! - [`store`]: the data, each value with the version (epoch, count) under which it was written;
//! - [`handler`]: what to do when a shard comes, serves, and goes: copy, catch up, let go;
//! - [`copy`]: one node fetching a shard's data from another, and leaders sending writes to followers.
//!
//! It is an example, not a database: data is in memory, and a follower that cannot be reached when the leader
//! writes catches up only when it is moved or leads. A *planned* move loses nothing: the new leader fetches
//! what it lacks after the old one has stopped and before it serves.

pub mod copy;
pub mod handler;
mod node;
mod service;
pub mod store;

pub use node::{Node, NodeError, Options};
pub use store::Seed;
