//! What a caller has done, counted. One set for each thread of the proxy, summed for the metrics.

use http::StatusCode;
use std::sync::atomic::{AtomicU64, Ordering};

/// What one thread has counted; any number of threads may read it.
#[derive(Debug, Default)]
pub struct Counters {
    asked: AtomicU64,
    /// Requests not added to the budget yet.
    unearned: AtomicU64,
    good: AtomicU64,
    client_errors: AtomicU64,
    server_errors: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    retries: AtomicU64,
    hedges: AtomicU64,
    misdirected: AtomicU64,
    behind: AtomicU64,
}

/// The counts at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Requests that were begun.
    pub asked: u64,
    /// Answers of a node below 400.
    pub good: u64,
    /// Answers from 400 to 499.
    pub client_errors: u64,
    /// Answers of 500 and more by a node.
    pub server_errors: u64,
    /// Requests without an answer of a node.
    pub failed: u64,
    /// Requests that were refused before any node was asked: no rule, no key, no such keyspace.
    pub refused: u64,
    /// Tries after the first.
    pub retries: u64,
    /// Second nodes asked for the same read.
    pub hedges: u64,
    /// Answers of "not mine" (421).
    pub misdirected: u64,
    /// Answers of nodes that had not reached the version of a dataset which others had answered with.
    pub behind: u64,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn asked(&self) {
        add(&self.asked);
        add(&self.unearned);
    }

    /// Requests since the last call.
    pub(crate) fn take_unearned(&self) -> u64 {
        self.unearned.swap(0, Ordering::Relaxed)
    }

    pub(crate) fn answered(&self, status: StatusCode) {
        add(match status.as_u16() {
            500.. => &self.server_errors,
            400.. => &self.client_errors,
            _ => &self.good,
        });
    }

    pub(crate) fn failed(&self) {
        add(&self.failed);
    }

    pub(crate) fn refused(&self) {
        add(&self.refused);
    }

    pub(crate) fn retried(&self) {
        add(&self.retries);
    }

    pub(crate) fn hedged(&self) {
        add(&self.hedges);
    }

    pub(crate) fn misdirected(&self) {
        add(&self.misdirected);
    }

    pub(crate) fn behind(&self) {
        add(&self.behind);
    }

    /// Adds these to `sum`.
    pub fn add_to(&self, sum: &mut Counts) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        sum.asked += read(&self.asked);
        sum.good += read(&self.good);
        sum.client_errors += read(&self.client_errors);
        sum.server_errors += read(&self.server_errors);
        sum.failed += read(&self.failed);
        sum.refused += read(&self.refused);
        sum.retries += read(&self.retries);
        sum.hedges += read(&self.hedges);
        sum.misdirected += read(&self.misdirected);
        sum.behind += read(&self.behind);
    }
}
