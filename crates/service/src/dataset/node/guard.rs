//! Whether clients may get a version before a person releases it: a batch job that fails may write a version that is
//! whole, and has lost its keys.
//!
//! A node computes how many keys a version has from what all nodes publish: the mean of a partition, times the
//! partitions. That is exact where every partition is at as many nodes, and always for an empty version. A version is
//! not held if no node publishes how many keys it has.

use super::VersionName;
use partage_core::base::count::counted;
use std::fmt;

/// Which versions of a dataset a person must release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    /// A version with fewer keys is held. Absent: one without a key is, if clients have another.
    pub min_keys: Option<u64>,
    /// A version that has lost a greater share of the keys is held. 100: none is.
    pub max_shrink_percent: u32,
}

impl Default for Guard {
    fn default() -> Guard {
        Guard { min_keys: None, max_shrink_percent: 50 }
    }
}

/// Why a version is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldReason {
    /// It has too few keys.
    Few {
        /// The keys it has.
        keys: u64,
        /// The keys it needs.
        min: u64,
    },
    /// It has lost too many.
    Shrunk {
        /// The keys it has.
        keys: u64,
        /// The keys of `than`.
        before: u64,
        /// The version that clients get.
        than: VersionName,
        /// The share that may be lost.
        max_shrink_percent: u32,
    },
}

impl Guard {
    /// Why a version with so many keys is held. `served` is what clients get, and its keys.
    pub fn check(&self, keys: u64, served: Option<(&VersionName, Option<u64>)>) -> Option<HoldReason> {
        let min = self.min_keys.unwrap_or(u64::from(served.is_some()));
        let (than, before) = match served {
            _ if keys < min && (self.min_keys.is_some() || served?.1 != Some(0)) => {
                return Some(HoldReason::Few { keys, min });
            }
            Some((than, Some(before))) => (than, before),
            _ => return None,
        };
        let least = u128::from(before) * u128::from(100 - self.max_shrink_percent.min(100));
        (u128::from(keys) * 100 < least).then(|| HoldReason::Shrunk {
            keys,
            before,
            than: than.clone(),
            max_shrink_percent: self.max_shrink_percent,
        })
    }
}

impl fmt::Display for HoldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HoldReason::Few { keys, min } => write!(f, "it has {}, fewer than {min}", counted(*keys, "key")),
            HoldReason::Shrunk { keys, before, than, max_shrink_percent } => write!(
                f,
                "it has {} where version {than} has {before}, and may lose {max_shrink_percent} % of them",
                counted(*keys, "key")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name() -> VersionName {
        VersionName::new("1").unwrap()
    }

    #[test]
    fn s8_an_empty_version_and_one_that_lost_more_than_half_are_held() {
        let guard = Guard::default();
        let than = name();
        let beside = |before| Some((&than, before));
        assert!(matches!(guard.check(0, beside(Some(10))), Some(HoldReason::Few { keys: 0, min: 1 })));
        assert!(matches!(guard.check(0, beside(None)), Some(HoldReason::Few { .. })));
        assert!(matches!(
            guard.check(4, beside(Some(10))),
            Some(HoldReason::Shrunk { keys: 4, before: 10, .. })
        ));
        assert_eq!(guard.check(5, beside(Some(10))), None, "half is not more than half");
        assert_eq!(guard.check(0, None), None, "clients have nothing that could be lost");
        assert_eq!(guard.check(0, beside(Some(0))), None);
        assert_eq!(guard.check(7, beside(None)), None, "nobody tells how many there were");
        let open = Guard { min_keys: Some(0), max_shrink_percent: 100 };
        assert_eq!(open.check(0, beside(Some(10))), None);
        let strict = Guard { min_keys: Some(8), max_shrink_percent: 0 };
        assert!(matches!(strict.check(7, None), Some(HoldReason::Few { keys: 7, min: 8 })));
        assert!(matches!(strict.check(9, beside(Some(10))), Some(HoldReason::Shrunk { .. })));
    }

    proptest! {
        #[test]
        fn s8_more_keys_are_never_held_where_fewer_are_not(
            keys in any::<u64>(), more in any::<u64>(), before in any::<u64>(), percent in 0u32..200,
            min in prop::option::of(any::<u64>()),
        ) {
            let guard = Guard { min_keys: min, max_shrink_percent: percent };
            let than = name();
            let held = |keys: u64| guard.check(keys, Some((&than, Some(before)))).is_some();
            prop_assert!(held(keys) || !held(keys.saturating_add(more)));
        }
    }
}
