//! Replicas of shards of a table in simulated time: up to five nodes, one to three shards, a coordinator that may be away for
//! long, and clients that write and read. All from one seed.
//!
//! The machines are core's own ([`partage_service::table::replication`]); here is what drives them, badly: messages
//! are lost, late, doubled and overtake each other, links are cut in one direction or both, processes pause while their clocks
//! go on, are [slow](crate::slow), crash with what was not synced, alone or all at once, disks hesitate. The
//! [coordinator](coordinator::Coordinator) suspects nodes that are well, and is cut off from those that lead. Some faults are
//! made for the moments at which a promise matters: the heir was just restarted, or the former leader cannot hear that it was
//! replaced.
//!
//! Rows are [copied](copy) to followers in chunks, which are lost and late as messages are. A follower that starts again goes on
//! with what it has of a snapshot, a leader keeps its log for a copy, and clients wait for it when that would be used up: no copy
//! that goes on is outrun (L1), and what comes of it is what its leader had (D1).
//!
//! After every step the [oracle](oracle::Oracle) looks: every member of the map's in-sync set has on disk what was acknowledged
//! (D1), logs agree as far as they are committed (D1), nothing is acknowledged or read under an epoch when a later one has begun
//! (O2, D2), each operation of a client comes after what was seen before it began (D2), and bounded reads keep their bounds. In
//! every other seed shards have read replicas: none of them is in sync, is asked for, counts for an acknowledgement, leads or
//! answers what only a leader may, unless it was made a member. In a quarter of the runs faults then
//! stop but for one node that is slow for a minute, and in-sync sets change seldom (L1). Then all faults stop, and everything
//! serves (L1), with the coordinator away, too.

mod clients;
mod coordinator;
mod copy;
mod engine;
mod node;
mod oracle;
mod weather;
mod world;

pub use world::{Outcome, run, run_with_words};
