//! Replicas of tables on three nodes in one process: real files, real threads, a network in memory, and orders made by hand.

mod failing;
mod following;
mod leading;
mod serving;
mod support;
