//! Warnings, each logged once, about versions that peers or operators name and the own source lacks (Z5).

use super::NodeOptions;
use super::loading::VersionId;
use crate::catalogue::Catalogue;
use crate::limits::PEERS_LOGGED;
use partage_core::base::time::Millis;
use partage_service::dataset::node::Node as Machine;
use partage_service::dataset::{Address, DatasetName, VersionName};
use std::collections::{BTreeMap, BTreeSet};

/// Since when something is so, and whether that was logged.
type Since = (Millis, bool);

/// The warnings of a node about versions that its own source lacks: each is logged once while it lasts.
#[derive(Debug)]
pub struct Warnings {
    /// How long the node logs nothing of a version that only peers have, or have with other files.
    unlisted_ms: u64,
    /// Orders that are not followed.
    overdue: BTreeMap<DatasetName, VersionName>,
    /// Datasets of which peers have versions that the own source does not list.
    unlisted: BTreeMap<DatasetName, Since>,
    /// The peers that have other files under the name of a version.
    differing: BTreeMap<VersionId, BTreeMap<Address, Since>>,
}

impl Warnings {
    /// The warnings of a node with these options; none is due yet.
    pub fn new(options: &NodeOptions) -> Warnings {
        let unlisted_ms = u64::try_from(options.unlisted.as_millis()).unwrap_or(u64::MAX);
        let (overdue, unlisted, differing) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Warnings { unlisted_ms, overdue, unlisted, differing }
    }

    /// Logs what is new.
    pub fn tell(&mut self, machine: &Machine, catalogue: &Catalogue) {
        let now = catalogue.clock().now();
        let mut before = std::mem::take(&mut self.differing);
        for (dataset, state) in machine.datasets() {
            self.tell_overdue(dataset, state.overdue());
            let unlisted: Vec<&VersionName> = state.unlisted().collect();
            catalogue.driver_metrics().unlisted(dataset, unlisted.len());
            self.tell_unlisted(dataset, &unlisted, now);
            for (version, known) in state.versions() {
                let id = (dataset.clone(), version.clone());
                let told = before.remove(&id).unwrap_or_default();
                self.tell_differing(id, &known.differing(), told, now);
            }
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

    /// Returns how many of the peers it logs: each once while its files differ.
    fn tell_differing(
        &mut self,
        id: VersionId,
        peers: &BTreeSet<&Address>,
        mut told: BTreeMap<Address, Since>,
        now: Millis,
    ) -> usize {
        told.retain(|peer, _| peers.contains(peer));
        for peer in peers {
            told.entry((*peer).clone()).or_insert((now, false));
        }
        let unlisted_ms = self.unlisted_ms;
        let is_due = |(since, is_told): &Since| !is_told && now.since(*since) >= unlisted_ms;
        let mut due = Vec::new();
        for (peer, since) in told.iter_mut().filter(|(_, since)| is_due(since)) {
            since.1 = true;
            due.push(peer.as_str());
        }
        if !due.is_empty() {
            let (dataset, version) = (&id.0, &id.1);
            tracing::warn!(
                %dataset, %version, peers = named(&due),
                "peers have other files under the name of this version than the source of this node lists: nothing of theirs is \
                 used; do all nodes read the same source?"
            );
        }
        let logged = due.len();
        if !told.is_empty() {
            self.differing.insert(id, told);
        }
        logged
    }
}

fn named(peers: &[&str]) -> String {
    match peers.len().saturating_sub(PEERS_LOGGED) {
        0 => peers.join(" "),
        more => format!("{} and {more} more", peers[..PEERS_LOGGED].join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn z5_a_peer_with_other_files_is_logged_once_for_each_version_and_not_at_once() {
        let dataset = DatasetName::new("packages").unwrap();
        let options = NodeOptions::new(dataset.clone(), ([127, 0, 0, 1], 0).into(), ".".into());
        let mut warnings = Warnings::new(&options);
        let [a, b] = ["a:80", "b:80"].map(|address| Address::new(address).unwrap());
        let mut told = |version: &str, peers: &[&Address], at| {
            let id = (dataset.clone(), VersionName::new(version).unwrap());
            let before = warnings.differing.remove(&id).unwrap_or_default();
            warnings.tell_differing(id, &peers.iter().copied().collect(), before, Millis(at))
        };
        assert_eq!((told("1", &[&a], 0), told("1", &[&a], 29_999)), (0, 0), "it may look again in a moment");
        assert_eq!((told("1", &[&a, &b], 30_000), told("1", &[&a, &b], 59_999)), (1, 0));
        assert_eq!(
            (told("1", &[&a, &b], 60_000), told("1", &[&a, &b], 999_999)),
            (1, 0),
            "the other one, too"
        );
        assert_eq!((told("2", &[&a], 60_000), told("2", &[&a], 90_000)), (0, 1), "another version");
        assert_eq!((told("1", &[&b], 1_000_000), told("1", &[&a, &b], 1_000_001)), (0, 0));
        assert_eq!(told("1", &[&a, &b], 1_030_001), 1, "once more, as it was over");
    }

    #[test]
    fn z5_a_line_of_the_log_names_a_bounded_number_of_peers() {
        let peers = ["a:80"; PEERS_LOGGED + 1];
        assert_eq!(named(&peers[1..]), peers[1..].join(" "));
        assert_eq!(named(&peers), format!("{} and 1 more", peers[1..].join(" ")));
    }

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
