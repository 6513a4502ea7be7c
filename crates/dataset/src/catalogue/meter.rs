//! How many requests there were, how long they took, and how many bytes they gave.
//!
//! Counted in columns as in `stripes.rs`; a histogram has a bucket for each power of two of microseconds.

use super::stripes::{COLUMNS, CachePadded, column};
use std::sync::atomic::{AtomicU64, Ordering};

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The key is there.
    Found,
    /// The key is not there, which is an answer.
    Absent,
    /// No node could say whether the key is there.
    Failed,
}

/// The origin of a request, and the node that answered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hop {
    /// A client asked, and this node answered.
    Here,
    /// A client asked, and this node got the answer from a peer.
    Proxied,
    /// A peer asked this node for it.
    Peer,
}

const OUTCOMES: [(Outcome, &str); 3] =
    [(Outcome::Found, "found"), (Outcome::Absent, "absent"), (Outcome::Failed, "failed")];
const HOPS: [(Hop, &str); 3] = [(Hop::Here, "here"), (Hop::Proxied, "proxied"), (Hop::Peer, "peer")];

/// Buckets end at 1 µs, 2 µs, … 2^21 µs (two seconds); one more for what took longer.
const BUCKETS: usize = 23;

#[derive(Debug, Default)]
struct Row {
    count: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
    keys: AtomicU64,
    bytes: AtomicU64,
}

type Column = [Row; OUTCOMES.len() * HOPS.len()];

/// The counters of one version.
#[derive(Debug, Default)]
pub struct Meter([CachePadded<Column>; COLUMNS]);

/// The sum of all columns for one outcome and hop.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// What became of the requests.
    pub outcome: &'static str,
    /// The origin of the requests and the answering side: `here`, `proxied` or `peer`, as in [`Hop`].
    pub hop: &'static str,
    /// The number of requests.
    pub requests: u64,
    /// How many keys: more than requests when several were asked for at a time.
    pub keys: u64,
    /// Bytes of the values that were answered.
    pub bytes: u64,
    /// Time they took, in nanoseconds.
    pub nanos: u64,
    /// Upper end of each bucket in seconds, and how many requests are in it. The last end is infinite.
    pub buckets: Vec<(f64, u64)>,
}

impl Meter {
    /// Counts one request that took `nanos`, for so many keys, with so many bytes of values.
    pub fn count(&self, outcome: Outcome, hop: Hop, nanos: u64, keys: u64, bytes: u64) {
        self.add(outcome, hop, nanos, [1, keys, bytes]);
    }

    /// Counts several that were answered together, with a key each: each took as long as all.
    pub fn count_many(&self, outcome: Outcome, hop: Hop, nanos: u64, requests: u64, bytes: u64) {
        self.add(outcome, hop, nanos, [requests, requests, bytes]);
    }

    fn add(&self, outcome: Outcome, hop: Hop, nanos: u64, [requests, keys, bytes]: [u64; 3]) {
        let row = &self.0[column()].0[outcome as usize * HOPS.len() + hop as usize];
        let micros = nanos / 1_000;
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        row.count[bucket.min(BUCKETS - 1)].fetch_add(requests, Ordering::Relaxed);
        row.nanos.fetch_add(nanos.saturating_mul(requests), Ordering::Relaxed);
        row.keys.fetch_add(keys, Ordering::Relaxed);
        row.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// One series for each outcome and hop that a request has had.
    pub fn series(&self) -> Vec<Series> {
        let pairs = OUTCOMES.iter().flat_map(|outcome| HOPS.iter().map(move |hop| (outcome, hop)));
        pairs
            .enumerate()
            .map(|(row, (outcome, hop))| self.sum(row, outcome.1, hop.1))
            .filter(|s| s.requests > 0)
            .collect()
    }

    fn sum(&self, row: usize, outcome: &'static str, hop: &'static str) -> Series {
        let of = |count: &dyn Fn(&Row) -> &AtomicU64| -> u64 {
            self.0.iter().map(|column| count(&column.0[row]).load(Ordering::Relaxed)).sum()
        };
        let end = |bucket: usize| match bucket {
            last if last == BUCKETS - 1 => f64::INFINITY,
            bucket => (1_u64 << bucket) as f64 / 1e6,
        };
        let buckets: Vec<(f64, u64)> =
            (0..BUCKETS).map(|bucket| (end(bucket), of(&|row| &row.count[bucket]))).collect();
        Series {
            outcome,
            hop,
            requests: buckets.iter().map(|bucket| bucket.1).sum(),
            keys: of(&|row| &row.keys),
            bytes: of(&|row| &row.bytes),
            nanos: of(&|row| &row.nanos),
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_summed_over_threads_and_fall_into_their_buckets() {
        let meter = Meter::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * COLUMNS {
                scope.spawn(|| meter.count(Outcome::Found, Hop::Here, 3_000, 2, 10));
            }
        });
        meter.count(Outcome::Absent, Hop::Peer, u64::MAX >> 1, 1, 0);
        let series = meter.series();
        assert_eq!(series.len(), 2);
        let n = 2 * COLUMNS as u64;
        let found = &series[0];
        assert_eq!((found.requests, found.keys, found.bytes, found.nanos), (n, 2 * n, 10 * n, 3_000 * n));
        assert_eq!(found.buckets[2], (4e-6, n));
        assert_eq!((series[1].outcome, series[1].hop), ("absent", "peer"));
        assert_eq!(series[1].buckets[BUCKETS - 1], (f64::INFINITY, 1));
    }
}
