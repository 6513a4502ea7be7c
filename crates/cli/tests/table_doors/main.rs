//! Tables through their other doors, with nodes as processes of their own: Redis Cluster redirects with the clients that people
//! use, and gRPC.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test stops at the first surprise, and waits by the clock"
)]

#[path = "../table_cluster/mod.rs"]
mod cluster;
mod grpc;
mod parity;
mod redis;
