//! `bench-memory` measures what a coordinator holds for each replica: see the README.

mod bench_cluster;

use bench_cluster::{BenchCluster, Cuts};
use bench_gauge::{complain, memory_bytes, option, say};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::process::{Command, ExitCode};

/// Counts what is allocated.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The bytes that are allocated at the moment.
fn heap() -> f64 {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as f64 - stats.bytes_deallocated as f64
}

fn main() -> ExitCode {
    #[expect(clippy::disallowed_methods, reason = "a program of its own, which reads its command line")]
    let words: Vec<String> = std::env::args().collect();
    let done = match words.iter().position(|word| word == "--replicas") {
        Some(_) => measure(&words),
        None => every_case(&words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// Each in a process of its own, so that none finds the memory that another has left.
fn every_case(words: &[String]) -> Result<(), String> {
    for cuts in ["hashes", "keys"] {
        for replicas in ["1", "3"] {
            let program = words.first().ok_or("this program has no name")?;
            let mut child = Command::new(program);
            child.args(&words[1..]).args(["--replicas", replicas, cuts]);
            if !child.status().map_err(|error| error.to_string())?.success() {
                return Err(format!("{replicas} replicas by {cuts}: failed"));
            }
        }
    }
    Ok(())
}

fn measure(words: &[String]) -> Result<(), String> {
    let shards = option(words, "--shards", 1_000_000);
    let replicas = option(words, "--replicas", 1);
    let nodes = option(words, "--nodes", 1_000);
    let cuts = if words.iter().any(|word| word == "keys") { Cuts::Keys } else { Cuts::Hashes };
    let mut bench_cluster = BenchCluster::new(nodes)?;
    let (heap_before, resident_before) = (heap(), memory_bytes("VmRSS"));
    bench_cluster.create(cuts, shards as u32, replicas as u32)?;
    bench_cluster.settle()?;
    let line = |what: &str| {
        let count = (shards * replicas) as f64;
        say(&format!(
            "{shards} shards by {cuts:?} x {replicas} on {nodes} nodes, {what}: heap {:.0} bytes a replica, \
             resident {:.0}, peak {} MiB",
            (heap() - heap_before) / count,
            (memory_bytes("VmRSS") as f64 - resident_before as f64) / count,
            memory_bytes("VmHWM") >> 20,
        ));
    };
    line("all serve");
    bench_cluster.report_loads()?;
    line("with loads");
    Ok(())
}
