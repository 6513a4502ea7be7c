//! The listener over a table in memory: against a real Redis, with the clients that people use, and with bytes of no client.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests start servers and wait for them")]

mod clocks;
mod cluster;
mod differential;
mod hostile;
mod pipelines;
mod replies;
mod support;
mod unchanged_clients;
