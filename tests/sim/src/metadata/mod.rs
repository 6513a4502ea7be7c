//! Metadata servers in simulated time: five of them, three requesters that change the map and the list, a coordination
//! service that holds the head, and a network and disks that fail. All from one seed.
//!
//! The machines are core's own ([`partage_service::metadata`]); here is what drives them, badly: messages are lost,
//! late and doubled, servers crash with what was not synced, answers of the coordination service are lost or its
//! changes come long after their requesters have given up, one by one or all of a while, and requesters die in the middle.
//! The keyspace is deleted and created again under its name meanwhile, with another map whose sequences begin anew.
//! After every step the [oracle](oracle::Oracle) looks.

mod oracle;
mod requester;
mod world;

pub use world::{Outcome, run};
