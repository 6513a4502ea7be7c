//! Pure decisions of Partage: what we see goes in, what to do comes out.
//!
//! Nothing here reads a clock, draws a random number, does I/O or awaits. Time ([`time::Millis`]) and
//! seeds are arguments; a timer is a returned "call me again by". The same input gives the same bytes
//! out, so the coordinator, `partage simulate` and the simulator that tests both run this very code.

pub mod hash;
pub mod id;
pub mod key;
pub mod limits;
pub mod name;
pub mod placement;
pub mod sharding;
pub mod time;
