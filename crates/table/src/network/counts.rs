//! What is counted, for metrics.

use crate::network::peer_queue::Dropped;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the sending half has done since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendCounts {
    /// Packets that were put into a stream.
    pub sent: u64,
    /// Messages of streams: each has one or more packets.
    pub batches: u64,
    /// Streams that another node has accepted.
    pub streams_opened: u64,
    /// Streams that ended, and attempts to open one that failed; not those to a node that is elsewhere now.
    pub streams_failed: u64,
    /// Packets that were dropped because as many waited for the node as may.
    pub dropped_full: u64,
    /// Packets that were dropped because the node was not reached.
    pub dropped_away: u64,
    /// Packets that were dropped because the node has no address.
    pub dropped_no_address: u64,
    /// Packets that were dropped because no message has room for one.
    pub dropped_too_large: u64,
}

#[derive(Debug, Default)]
pub(super) struct SendCounters {
    sent: AtomicU64,
    batches: AtomicU64,
    streams_opened: AtomicU64,
    streams_failed: AtomicU64,
    dropped_full: AtomicU64,
    dropped_away: AtomicU64,
    dropped_no_address: AtomicU64,
    dropped_too_large: AtomicU64,
}

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

impl SendCounters {
    pub(super) fn counts(&self) -> SendCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SendCounts {
            sent: get(&self.sent),
            batches: get(&self.batches),
            streams_opened: get(&self.streams_opened),
            streams_failed: get(&self.streams_failed),
            dropped_full: get(&self.dropped_full),
            dropped_away: get(&self.dropped_away),
            dropped_no_address: get(&self.dropped_no_address),
            dropped_too_large: get(&self.dropped_too_large),
        }
    }

    pub(super) fn sent(&self, packets: usize) {
        add(&self.batches, 1);
        add(&self.sent, packets);
    }

    pub(super) fn opened(&self) {
        add(&self.streams_opened, 1);
    }

    /// A stream ended or failed, and so many packets that waited for it were dropped.
    pub(super) fn failed(&self, dropped: usize) {
        add(&self.streams_failed, 1);
        add(&self.dropped_away, dropped);
    }

    pub(super) fn has_no_address(&self) {
        add(&self.dropped_no_address, 1);
    }

    pub(super) fn dropped(&self, why: Dropped) {
        let counter = match why {
            Dropped::Full => &self.dropped_full,
            Dropped::Away => &self.dropped_away,
            Dropped::TooLarge => &self.dropped_too_large,
        };
        add(counter, 1);
    }
}

/// What the serving half has done since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReceiveCounts {
    /// Packets that were handed in.
    pub received: u64,
    /// Packets that could not be read, and were dropped.
    pub malformed: u64,
    /// Streams that were accepted.
    pub streams_accepted: u64,
    /// Streams that are open now.
    pub streams_open: u64,
    /// Streams that were refused: for another node, without an opening, or too many.
    pub streams_refused: u64,
}

#[derive(Debug, Default)]
pub(super) struct ReceiveCounters {
    received: AtomicU64,
    malformed: AtomicU64,
    streams_accepted: AtomicU64,
    streams_refused: AtomicU64,
}

impl ReceiveCounters {
    pub(super) fn counts(&self, streams_open: usize) -> ReceiveCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ReceiveCounts {
            received: get(&self.received),
            malformed: get(&self.malformed),
            streams_accepted: get(&self.streams_accepted),
            streams_open: streams_open as u64,
            streams_refused: get(&self.streams_refused),
        }
    }

    pub(super) fn received(&self) {
        add(&self.received, 1);
    }

    pub(super) fn malformed(&self) {
        add(&self.malformed, 1);
    }

    pub(super) fn accepted(&self) {
        add(&self.streams_accepted, 1);
    }

    pub(super) fn refused(&self) {
        add(&self.streams_refused, 1);
    }
}
