//! What a lookup costs: ours beside others', measured in one run on one core.
//!
//! `cargo run --release -p bench-lookup` prints five tables in two minutes or so; words after it choose
//! among them: `ranges`, `slots`, `nodes`.

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
    #[expect(clippy::disallowed_methods, reason = "a program of its own, which reads its command line")]
    let words: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |part: &str| words.is_empty() || words.iter().any(|word| word == part);
    if wanted("ranges") {
        let title = "Owner of a key among key ranges, byte-string keys drawn like the begins";
        println!("{title}\n\n{}\n", ranges::run());
    }
    if wanted("slots") {
        println!("Owner by hash\n\n{}\n", slots::run());
    }
    if wanted("nodes") {
        for nodes in [10, 100, 1_000] {
            let title = format!("From a key to one of {nodes} nodes, hashing the key included");
            println!("{title}\n\n{}\n", nodes::run(nodes));
        }
    }
}
