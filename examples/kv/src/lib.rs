//! A sharded key-value service, in memory and on disk, over HTTP: an example of a service on the worker SDK, written to be
//! copied.
//!
//! ```text
//!  GET PUT DELETE /kv/<keyspace>/<key>    raw bytes
//!  GET            /<keyspace>/<key>       the same, as JSON
//!  /internal/…                            nodes among themselves
//!  /partage/worker                        who is here (from the SDK)
//! ```
//!
//! | question                                         | file         |
//! |--------------------------------------------------|--------------|
//! | what one shard keeps, and how two copies merge   | `shard.rs`   |
//! | what of it is on the disk                        | `disk.rs`    |
//! | how a shard comes, serves, moves and goes        | `service.rs` |
//! | what clients can ask                             | `api.rs`     |
//! | how records travel between nodes                 | `records.rs`, `peers.rs` |
//! | what is there before the first write             | `seed.rs`    |
//!
//! What it promises: a planned move, split or merge loses no acknowledged write, because the next leader
//! fetches the last changes from the former one before it serves. What it does not: it is no database.
//! A leader sends each write to the followers before it answers, but answers even if one of them did not take
//! it; when a leader dies, a write that no follower took dies with it, and everything is gone when all nodes are.
//! Followers may answer with what is a moment old.
//!
//! In a keyspace that is durable it promises more: a write is acknowledged when every replica that is `Live`, and every
//! one that has begun to load, has it on its disk. A leader answers reads with what it has written itself, also while that
//! write waits for the others: a read that sees a write is no promise that it is kept.

mod api;
mod disk;
pub mod limits;
mod node;
mod peers;
mod records;
mod seed;
mod service;
mod shard;

pub use disk::FolderError;
pub use node::{Config, Node, StartError};
pub use seed::{Seed, SeedError};
