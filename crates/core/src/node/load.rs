//! What a shard costs: measured by workers, read by placement and by splits and merges.

use crate::keyspace::key::Key;
use crate::limits;

/// The metrics that placement balances, in the order of [`Load::metrics`].
pub const METRICS: [&str; 3] = ["requests", "cpu", "bytes"];

/// The load of one replica of a shard, averaged by the worker over its last report periods.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Load {
    /// Requests a second that the replica answers.
    pub requests_per_s: f64,
    /// CPU milliseconds that it uses in a second: 1,000 are one core.
    pub cpu_ms_per_s: f64,
    /// How many bytes it has stored.
    pub size_bytes: u64,
    /// How many keys it has stored.
    pub keys: u64,
    /// What the worker knows of single keys: hot ones and a median.
    pub profile: Profile,
}

/// What a load says of single keys. In a box, and none when it says nothing: a coordinator keeps a load for each
/// replica.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Profile(Option<Box<(Vec<HotKey>, Option<Key>)>>);

impl Profile {
    /// The most requested keys, heaviest first, at most [`HOT_KEYS`]; and a key (or, for hash ranges, none) that
    /// halves the shard's data: where a split would cut.
    pub fn new(hot_keys: Vec<HotKey>, median: Option<Key>) -> Profile {
        let says_nothing = hot_keys.is_empty() && median.is_none();
        Profile((!says_nothing).then(|| Box::new((hot_keys, median))))
    }

    /// The most requested keys, heaviest first.
    pub fn hot_keys(&self) -> &[HotKey] {
        self.0.as_deref().map_or(&[], |(hot_keys, _)| hot_keys)
    }

    /// A key that halves the shard's data.
    pub fn median(&self) -> Option<&Key> {
        self.0.as_deref().and_then(|(_, median)| median.as_ref())
    }
}

/// Most heavy hitters that a report names: enough to see a hot key, small enough to send every time.
pub const HOT_KEYS: usize = 8;

/// A key and how often it is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct HotKey {
    /// One of the most requested keys of the replica.
    pub key: Key,
    /// Requests for this key in a second.
    pub requests_per_s: f64,
}

/// A load that is not a load.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("load {metric} is {value}: a load is a finite number, 0 or more")]
pub struct BadLoad {
    /// The name of the metric: one of [`METRICS`], or "hot key requests".
    pub metric: &'static str,
    /// The value as the worker reported it: not finite, or below 0.
    pub value: f64,
}

impl Load {
    /// The numbers of [`METRICS`].
    pub fn metrics(&self) -> [f64; METRICS.len()] {
        [self.requests_per_s, self.cpu_ms_per_s, self.size_bytes as f64]
    }

    /// The same, with no number above [`limits::LOAD`]: so that sums of loads are numbers too.
    #[must_use]
    pub fn bounded(self) -> Load {
        let hot = self
            .profile
            .hot_keys()
            .iter()
            .map(|hot| HotKey { key: hot.key.clone(), requests_per_s: hot.requests_per_s.min(limits::LOAD) });
        Load {
            requests_per_s: self.requests_per_s.min(limits::LOAD),
            cpu_ms_per_s: self.cpu_ms_per_s.min(limits::LOAD),
            profile: Profile::new(hot.collect(), self.profile.median().cloned()),
            ..self
        }
    }

    /// Refuses NaN, negative and infinite numbers.
    pub fn check(&self) -> Result<(), BadLoad> {
        let hot = self.profile.hot_keys().iter().map(|hot| ("hot key requests", hot.requests_per_s));
        let bad =
            METRICS.into_iter().zip(self.metrics()).chain(hot).find(|(_, v)| !(v.is_finite() && *v >= 0.0));
        bad.map_or(Ok(()), |(metric, value)| Err(BadLoad { metric, value }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_says_what_it_was_given() {
        let key = |bytes: &[u8]| Key::new(bytes).unwrap();
        let hot = vec![HotKey { key: key(b"hot"), requests_per_s: 9.0 }];
        for hot in [vec![], hot] {
            for median in [None, Some(key(b"m"))] {
                let profile = Profile::new(hot.clone(), median.clone());
                assert_eq!((profile.hot_keys(), profile.median()), (hot.as_slice(), median.as_ref()));
                assert_eq!(profile == Profile::default(), hot.is_empty() && median.is_none());
            }
        }
    }

    #[test]
    fn a_load_is_finite_and_not_negative() {
        assert!(Load::default().check().is_ok());
        for value in [f64::NAN, f64::INFINITY, -1.0] {
            let error = Load { cpu_ms_per_s: value, ..Load::default() }.check().unwrap_err();
            assert_eq!(error.metric, "cpu");
        }
    }
}
