//! Pure decisions of Partage: what we see goes in, what to do comes out.
//!
//! Nothing here reads a clock, draws a random number, does I/O or awaits. Time ([`time::Millis`]) and
//! seeds are arguments; a timer is a returned "call me again by". The same input gives the same bytes
//! out, so the coordinator, `partage simulate` and the simulator that tests both run this very code.

pub mod brake;
pub mod check;
pub mod cluster;
pub mod count;
pub mod counter_jump;
pub mod dataset;
pub mod event;
pub mod exchange;
pub mod handover;
pub mod hash;
pub mod health;
pub mod id;
pub mod key;
pub mod keyspace;
pub mod lease;
pub mod lifecycle;
pub mod limits;
pub mod load;
pub mod lookup;
pub mod map;
pub mod metadata;
pub mod name;
pub mod node;
pub mod placement;
pub mod plan;
pub mod planted;
pub mod poison;
pub mod publication;
pub mod reconnect;
pub mod reshard;
pub mod routing;
pub mod settings;
pub mod sharder;
pub mod sharding;
pub mod suggest;
pub mod throttle;
pub mod time;
pub mod whatif;
pub mod worker;
