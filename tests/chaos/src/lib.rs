//! A cluster of real processes that tests may ill-treat: kill, stop, cut off, starve of disk.
//!
//! The coordinator is the real binary, the nodes are programs built on the SDK, every link between them leads through a proxy
//! that a test can cut, and all the while clients write, read, and note
//! what they were told ([`load`]). What a test asserts is an order of events or a fact, never a duration:
//! deadlines are there so that a test that hangs says what it waited for.
//!
//! | file      | what it is                                                          |
//! |-----------|---------------------------------------------------------------------|
//! | `cluster` | a coordinator, nodes and links in a directory and addresses of its own |
//! | `fleet`   | several coordinators on an engine, with workers and routers that know them all |
//! | `engine`  | the engine they stand on: etcd, MariaDB or ZooKeeper                |
//! | `past`    | an older state of the engine, kept and put back                     |
//! | `slow`    | the engine, whose commits take long                                 |
//! | `trial`   | what is done to them, and what must hold afterwards                 |
//! | `tamper`  | every key of the coordination state deleted, set back or replaced    |
//! | `binary`  | the programs under test, built                                      |
//! | `admin`   | the questions and commands of the admin API                         |
//! | `load`    | clients that write and read, and the check of what they were told   |
//! | `rows`    | rows of tables, many at once, and a table that nobody writes        |
//! | `http`    | one request, with a deadline                                        |
//! | `subnet`  | addresses that no other process has meanwhile                       |
//! | `dataset` | dataset nodes, and a task at each that looks all the time           |
//!
//! Processes and links are those of `backends`, where the coordination servers are.

#![allow(clippy::unwrap_used, reason = "a harness of tests may stop at the first surprise")]

pub mod admin;
pub mod binary;
pub mod cluster;
pub mod dataset;
pub mod engine;
pub mod fleet;
pub mod http;
pub mod load;
pub mod past;
pub mod rows;
pub mod slow;
pub mod subnet;
pub mod tamper;
pub mod trial;

use tokio::sync::{Mutex, MutexGuard};

pub use backends::{DEADLINE, until};

/// A test's turn, for as long as it has that. Tests that each have a cluster of their own under load go one after the other:
/// two of them leave nodes no processor, and these are taken for dead.
pub async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}
