//! A dataset cluster in simulated time, leaderless or under a coordinator: nodes, a coordination service that forgets and goes
//! away, mirrors of it that are late, a source that fails and has bad versions, and clients that read through any node. All from
//! one seed.
//!
//! The machines are core's own ([`partage_service::dataset`]); here is what drives them, badly: nodes crash and come back
//! with their store or without, links and sessions break, an operator rolls back. After every step the [oracle] looks:
//! one request sees one version and versions never go back (D5, S14), no read fails while a replica lives and is seen
//! (S16), nothing goes while it is read or asked for (S15), clients get nothing that is not at enough nodes (S10), and
//! nothing is published that is not here (S12). In some runs a stranger says that it has what the source does not have: no
//! node gives its clients that (Z5). Then all faults stop, and all nodes come to serve the latest version
//! that is good, at seats of their own, with nothing left over. Under a coordinator, which orders shards and now and then
//! takes one away from all at once, nothing is let go that nobody else has, and in the end all is as ordered (S18).

mod machine;
mod oracle;
mod reading;
mod store;
mod world;

pub use world::{Outcome, run, run_ordered};
