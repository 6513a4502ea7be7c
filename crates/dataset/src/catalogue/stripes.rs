//! Counters that threads do not fight for.
//!
//! Each thread counts in one of a few columns; the sum is only made when it is read.

use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// How many columns there are; if there are more threads, some share a column.
pub const COLUMNS: usize = 8;

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static COLUMN: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The column of this thread.
pub fn column() -> usize {
    COLUMN.with(|column| {
        column.get().unwrap_or_else(|| {
            let new = NEXT.fetch_add(1, Ordering::Relaxed) % COLUMNS;
            column.set(Some(new));
            new
        })
    })
}

/// A value alone on its line of memory.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CachePadded<T>(pub T);

/// How many readers are in flight.
#[derive(Debug, Default)]
pub struct InFlightCounter([CachePadded<AtomicI64>; COLUMNS]);

impl InFlightCounter {
    /// Counts one more, in the column that is returned.
    pub fn enter(&self) -> usize {
        let column = column();
        self.0[column].0.fetch_add(1, Ordering::SeqCst);
        column
    }

    /// Counts one less, in the column that [`InFlightCounter::enter`] has returned.
    pub fn leave(&self, column: usize) {
        self.0[column].0.fetch_sub(1, Ordering::SeqCst);
    }

    /// How many there are. If no thread enters any more, 0 stays 0.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|column| column.0.load(Ordering::SeqCst)).sum::<i64>().max(0) as u64
    }
}
