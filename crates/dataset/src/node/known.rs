//! What an order of an operator may name: the versions that the source lists or the node has, without those that the
//! node has failed to load.
//!
//! The driver writes it; requests read it, so that the node can refuse an order at once.

use crate::serve::OrderError;
use partage_service::dataset::node::ShownVersion;
use partage_service::dataset::{DatasetName, VersionName};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The versions that orders may name, by dataset.
#[derive(Debug, Clone, Default)]
pub struct Known(Arc<Mutex<BTreeMap<DatasetName, KnownVersions>>>);

#[derive(Debug, Default)]
struct KnownVersions {
    /// The versions that the source had when it was last looked at.
    listed: BTreeSet<VersionName>,
    /// The versions that the node shows; with the reason, where it cannot give one to clients.
    shown: BTreeMap<VersionName, Option<String>>,
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<DatasetName, KnownVersions>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The source lists these versions of a dataset, and no others.
    pub fn list(&self, dataset: &DatasetName, versions: &[VersionName]) {
        self.lock().entry(dataset.clone()).or_default().listed = versions.iter().cloned().collect();
    }

    /// The node shows this version.
    pub fn show(&self, shown: &ShownVersion) {
        let failure = shown.failure.as_ref().filter(|failure| !failure.may_be_ordered);
        let why = failure.map(|failure| failure.reason.clone());
        let mut known = self.lock();
        known.entry(shown.dataset.clone()).or_default().shown.insert(shown.version.clone(), why);
    }

    /// The node has let go of the version.
    pub fn forget(&self, dataset: &DatasetName, version: &VersionName) {
        if let Some(known) = self.lock().get_mut(dataset) {
            known.shown.remove(version);
        }
    }

    /// Whether an order may name them.
    ///
    /// # Errors
    /// When the dataset or the version is not known, or the version cannot be loaded.
    pub fn check(&self, dataset: &DatasetName, version: Option<&VersionName>) -> Result<(), OrderError> {
        let known = self.lock();
        let Some(KnownVersions { listed, shown }) = known.get(dataset) else {
            return Err(OrderError::NoDataset { dataset: dataset.to_string() });
        };
        let Some(version) = version else { return Ok(()) };
        match shown.get(version) {
            Some(Some(reason)) => Err(OrderError::Broken {
                dataset: dataset.to_string(),
                version: version.to_string(),
                reason: reason.clone(),
            }),
            Some(None) => Ok(()),
            None if listed.contains(version) => Ok(()),
            None => {
                let all: BTreeSet<&str> =
                    listed.iter().chain(shown.keys()).map(VersionName::as_str).collect();
                Err(OrderError::NoVersion {
                    dataset: dataset.to_string(),
                    version: version.to_string(),
                    known: Vec::from_iter(all).join(", "),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::time::Millis;
    use partage_service::dataset::node::{Failure, Layout, State};

    fn shown(version: &str, failure: Option<bool>) -> ShownVersion {
        let failure = failure.map(|may_be_ordered| Failure {
            reason: "part-0: line 2".to_owned(),
            times: 1,
            retry_at: Millis(0),
            is_superseded: false,
            may_be_ordered,
            is_unread: false,
        });
        ShownVersion {
            dataset: DatasetName::new("names").unwrap(),
            version: VersionName::new(version).unwrap(),
            layout: Layout { partitioner: Default::default(), partitions: 1, digest: 0 },
            state: State::Error,
            failure,
            held: None,
            here: BTreeSet::new(),
            peers: Vec::new(),
            wanted: 0,
            differing: Vec::new(),
        }
    }

    #[test]
    fn orders_name_what_is_listed_or_shown_and_not_what_no_node_can_load() {
        let known = Known::default();
        let [names, others] = ["names", "others"].map(|name| DatasetName::new(name).unwrap());
        let version = |name: &str| VersionName::new(name).unwrap();
        let check = |name: &str| known.check(&names, Some(&version(name)));
        known.list(&names, &["1", "2", "3"].map(version));
        known.show(&shown("0", None));
        known.show(&shown("2", Some(false)));
        known.show(&shown("3", Some(true)));
        assert!(matches!(known.check(&others, None), Err(OrderError::NoDataset { .. })));
        assert_eq!(known.check(&names, None), Ok(()));
        assert_eq!(
            ["0", "1", "3"].map(check),
            [Ok(()), Ok(()), Ok(())],
            "here; to be loaded; whole at others"
        );
        assert!(matches!(check("2"), Err(OrderError::Broken { reason, .. }) if reason == "part-0: line 2"));
        let Err(OrderError::NoVersion { known: all, .. }) = check("7") else { panic!("{:?}", check("7")) };
        assert_eq!(all, "0, 1, 2, 3");
        // It is gone from the source, and from here.
        known.list(&names, &["1"].map(version));
        known.forget(&names, &version("2"));
        assert!(matches!(check("2"), Err(OrderError::NoVersion { .. })));
    }
}
