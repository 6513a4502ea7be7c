//! What a node logs once of what others want of it and its own source does not have (Z5).

use super::NodeOptions;
use crate::catalogue::Catalogue;
use partage_core::base::time::Millis;
use partage_core::service::dataset::node::Node as Machine;
use partage_core::service::dataset::{DatasetName, VersionName};
use std::collections::BTreeMap;

/// The warnings of a node about versions that its own source lacks: each is logged once while it lasts.
#[derive(Debug)]
pub struct Warnings {
    /// For how long nothing is said of a version that only others list.
    unlisted_ms: u64,
    /// Orders that are not followed.
    overdue: BTreeMap<DatasetName, VersionName>,
    /// Datasets of which peers have versions that the own source does not list: since when, and whether that was logged.
    unlisted: BTreeMap<DatasetName, (Millis, bool)>,
}

impl Warnings {
    /// Of a node with these options.
    pub fn new(options: &NodeOptions) -> Warnings {
        let unlisted_ms = u64::try_from(options.unlisted.as_millis()).unwrap_or(u64::MAX);
        Warnings { unlisted_ms, overdue: BTreeMap::new(), unlisted: BTreeMap::new() }
    }

    /// Logs what is new.
    pub fn tell(&mut self, machine: &Machine, catalogue: &Catalogue) {
        let now = catalogue.clock().now();
        for (dataset, state) in machine.datasets() {
            self.tell_overdue(dataset, state.overdue());
            let unlisted: Vec<&VersionName> = state.unlisted().collect();
            catalogue.driver_metrics().unlisted(dataset, unlisted.len());
            self.tell_unlisted(dataset, &unlisted, now);
        }
    }

    fn tell_overdue(&mut self, dataset: &DatasetName, overdue: Option<&VersionName>) {
        match overdue {
            None => drop(self.overdue.remove(dataset)),
            Some(version) if self.overdue.get(dataset) == Some(version) => {}
            Some(version) => {
                tracing::warn!(
                    %dataset, %version,
                    "the order for this version is not followed: the source does not have it; put it there, or give another order"
                );
                self.overdue.insert(dataset.clone(), version.clone());
            }
        }
    }

    /// Returns whether it logs anything.
    fn tell_unlisted(&mut self, dataset: &DatasetName, unlisted: &[&VersionName], now: Millis) -> bool {
        let Some(last) = unlisted.last() else {
            self.unlisted.remove(dataset);
            return false;
        };
        let (since, is_told) = self.unlisted.entry(dataset.clone()).or_insert((now, false));
        if *is_told || now.since(*since) < self.unlisted_ms {
            return false;
        }
        *is_told = true;
        tracing::warn!(
            %dataset, version = %last, versions = unlisted.len(),
            "peers have versions that the source of this node does not list: clients do not get them here; do all nodes read \
             the same source?"
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn z5_versions_of_another_source_are_logged_once_and_not_at_once() {
        let dataset = DatasetName::new("packages").unwrap();
        let options = NodeOptions::new(dataset.clone(), ([127, 0, 0, 1], 0).into(), ".".into());
        let mut warnings = Warnings::new(&options);
        let version = VersionName::new("day-9").unwrap();
        let mut told = |versions: &[&VersionName], at| warnings.tell_unlisted(&dataset, versions, Millis(at));
        assert!(!told(&[&version], 0), "its own source may list it in a moment");
        assert!(!told(&[&version], 29_999));
        assert!(told(&[&version], 30_000));
        assert!(!(31..1_000).any(|second| told(&[&version], second * 1_000)));
        assert!(!told(&[], 1_000_000));
        assert!(!told(&[&version], 1_001_000));
        assert!(told(&[&version], 1_031_000), "once more, as it was over");
    }
}
