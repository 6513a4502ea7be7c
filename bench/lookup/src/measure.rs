//! The stop-watch, the count of allocations, and numbers that look random.

use comfy_table::{CellAlignment, Table, presets};
use partage_core::keyspace::hash::mix;
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 25;

/// Lookups timed together: long against reading the clock, short against a time slice of the scheduler.
const BATCH: usize = 512;

/// What one way of looking up cost.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// Nanoseconds a lookup when the next does not wait for this one.
    pub free: f64,
    /// Nanoseconds a lookup when the next key depends on this answer.
    pub chained: f64,
    /// Allocations in all rounds.
    pub allocations: usize,
}

/// Looks all of `keys` up, by `find`, in both ways.
pub fn cost<K>(keys: &[K], find: impl Fn(&K) -> usize) -> Cost {
    let mut bests = vec![u64::MAX; keys.len().div_ceil(BATCH)];
    let region = stats_alloc::Region::new(crate::ALLOCATOR);
    let free = best(&mut bests, keys, |batch| {
        batch.iter().for_each(|key| {
            black_box(find(key));
        });
    });
    let chained = best(&mut bests, keys, |batch| {
        let mut wait = 0usize;
        for step in 0..batch.len() {
            // The answer is used in a way that the processor cannot foresee and that changes nothing.
            wait = find(&batch[step + wait]) & black_box(0);
        }
    });
    Cost { free, chained, allocations: region.change().allocations }
}

/// Nanoseconds a key. Each round goes through all batches, so that a batch finds the caches as the others
/// left them; of each batch the best round counts, as other processes can only make it slower.
#[expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
fn best<K>(bests: &mut [u64], keys: &[K], look_up: impl Fn(&[K])) -> f64 {
    bests.fill(u64::MAX);
    for _ in 0..ROUNDS {
        for (best, batch) in bests.iter_mut().zip(keys.chunks(BATCH)) {
            let start = Instant::now();
            look_up(batch);
            *best = (*best).min(start.elapsed().as_nanos() as u64);
        }
    }
    bests.iter().sum::<u64>() as f64 / keys.len() as f64
}

/// The same numbers in every run.
pub fn random(seed: u64, count: usize) -> impl Iterator<Item = u64> {
    (0..count as u64).map(move |i| mix(mix(seed) ^ i.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// A table that pastes into Markdown.
pub fn table(columns: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(columns);
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}
