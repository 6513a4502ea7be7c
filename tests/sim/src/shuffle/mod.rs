//! Shuffles in simulated time: up to six nodes with the slots of a pool, several shuffles at a time, clients that die, pause and
//! send again. All from one seed.
//!
//! The machines are core's own ([`partage_service::shuffle`]); here is what drives them, badly: messages are lost, late,
//! doubled and overtake each other, links are cut, processes pause, crash with what was not synced, disks are lost and records
//! damaged as far as R bears it, slots move, leaders are replaced while they live and do not hear of it, nodes join and leave.
//!
//! The [oracle](oracle::Oracle) knows what each attempt was given. When an attempt is acknowledged, R disks have all of it; what
//! is dropped is on R disks elsewhere; a shuffle is sealed once, with one whole attempt of each partition; what is read is these
//! attempts' records as a multiset, in order, stable, and the same at every read, with partitions that differ by one record, or
//! from their share by one record's bytes, or of which no two have the same key; no shuffle fails (D6, X6, X7, X8, X12, X13).
//!
//! One shuffle in four has durability `memory`: its batches are stored when they are written, and synced some seconds later. A
//! crash takes the process, or the machine with most of what it has not synced. Such a shuffle may fail, or not be read, only if
//! R machines have lost their copies of a batch that it needs; else it is as exact as all others.
//!
//! In some runs disks fill, and sealed shuffles go to an object store that is slow, refuses, and loses nothing of which it has
//! said that it is durable: copies are dropped when it has them (D6).
//!
//! In one run in four connections for bulk fail between two nodes, for seconds, while all other messages pass. A node that
//! batches do not reach counts as silent then, as its sender does not ask ahead of them whether it is there. Where nothing else
//! goes wrong, each attempt is acknowledged within a few times the time after which a stand-in is asked (L1).
//!
//! Then faults stop: every shuffle comes to its end, and nothing of it is left on any disk, in memory, in a log, in
//! the object store; nodes that the map does not name have nothing.
//!
//! In a run of its own nothing goes wrong, but one shuffle floods a buffer into which another one trickles ([`run_flood`]): each
//! attempt of that is acknowledged within a time that depends on the disks and on no client, and then it is sealed and read (R1,
//! L1).
//!
//! In another one ([`run_busy`]) nodes are busy: what they store takes long, and some of it finds no room. No batch is sent more
//! often than to R nodes, and once more each time that it found no room (R1): what is slow becomes no slower by being waited for.

mod disk;
mod job;
mod node;
mod objects;
mod oracle;
mod pool;
mod weather;
mod world;

pub use world::{
    Lone, Outcome, run, run_alive_through_short, run_busy, run_flood, run_interrupted, run_lone,
    run_with_words,
};
