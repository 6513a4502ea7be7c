//! What a lookup costs: ours beside others', measured in one run on one core.
//!
//! `cargo run --release -p bench-lookup` prints five tables in a minute or so.

#![allow(clippy::print_stdout, reason = "a bench prints its table")]

mod measure;
mod nodes;
mod ranges;
mod slots;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;

/// Counts, so that "no allocation" is a measurement.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() {
    println!(
        "Owner of a key among key ranges, byte-string keys drawn like the begins\n\n{}\n",
        ranges::run()
    );
    println!("Owner by hash\n\n{}\n", slots::run());
    for nodes in [10, 100, 1_000] {
        println!("From a key to one of {nodes} nodes, hashing the key included\n\n{}\n", nodes::run(nodes));
    }
}
