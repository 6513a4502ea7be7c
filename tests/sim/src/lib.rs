//! The cluster in simulated time: coordinators, workers, routers, clients and a network, all from one seed.
//!
//! The machines of `core` run as they are; around them are drivers of the simulator's own, faults that
//! the seed draws, and oracles that know the truth. The same seed gives the same bytes, so a seed that fails is the whole
//! bug report. See `README.md` for how to run it.

pub mod alone;
pub mod calls;
pub mod changes;
pub mod clock;
pub mod coordinator;
pub mod dataset;
pub mod disk;
pub mod draw;
pub mod ending;
pub mod faults;
pub mod feeds;
pub mod fleet;
pub mod heat;
pub mod interrupt;
pub mod last_writes;
pub mod leading;
pub mod lists;
pub mod message;
pub mod metadata;
pub mod mishaps;
pub mod model;
pub mod mutants;
pub mod network;
pub mod node;
pub mod oracle;
pub mod publisher;
pub mod replication;
pub mod report;
pub mod router;
pub mod rows;
pub mod scenarios;
pub mod scene;
pub mod service;
pub mod shape;
pub mod shuffle;
pub mod slow;
pub mod store;
pub mod stuck;
pub mod table;
pub mod touched;
pub mod trace;
pub mod words;
pub mod world;

use partage_core::base::planted::{self, Planted};
use report::Report;
use shape::Shape;
use world::World;

/// Runs one seed, with a planted bug or none; `words` asks for that many last events in words.
pub fn run(seed: u64, shape: Shape, bug: Option<Planted>, words: Option<usize>) -> Report {
    planted::plant(bug);
    let report = World::new(seed, shape, words).run(seed);
    planted::plant(None);
    report
}
