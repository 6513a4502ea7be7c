//! Reports what does not work: on the pages while it lasts, in the log when it begins, every minute, and when it is
//! over.

use crate::catalogue::{Catalogue, Link, Trouble};
use crate::limits::REGISTERED;
use partage_clock::unix_seconds;
use partage_service::dataset::DatasetName;
use partage_worker::Health;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

/// The source, or a dataset in it, could not be looked at.
pub fn source_failed(catalogue: &Catalogue, dataset: Option<&DatasetName>, reason: &str) {
    catalogue.driver_metrics().source_failed(dataset);
    let now = unix_seconds();
    let mut told = None;
    catalogue.change_troubles(|troubles| {
        let before = match dataset {
            Some(dataset) => troubles.datasets.get(dataset),
            None => troubles.source.as_ref(),
        };
        let (trouble, is_said) = Trouble::again(before, reason.to_owned(), now);
        told = is_said.then(|| trouble.clone());
        match dataset {
            Some(dataset) => drop(troubles.datasets.insert(dataset.clone(), trouble)),
            None => troubles.source = Some(trouble),
        }
    });
    if let Some(Trouble { reason, times, .. }) = told {
        let dataset = dataset.map(DatasetName::as_str);
        tracing::warn!(dataset, reason, times, "the source cannot be read; what is here is served on");
    }
}

/// Ends the trouble with a dataset, or with the source as a whole, and logs that.
pub fn source_works(catalogue: &Catalogue, dataset: Option<&DatasetName>) {
    let known = catalogue.troubles();
    let before = match dataset {
        Some(dataset) => known.datasets.get(dataset),
        None => known.source.as_ref(),
    };
    let Some(Trouble { since, times, .. }) = before else { return };
    let after_s = unix_seconds().saturating_sub(*since);
    tracing::info!(
        dataset = dataset.map(DatasetName::as_str),
        after_s,
        times,
        "the source can be read again"
    );
    catalogue.change_troubles(|troubles| match dataset {
        Some(dataset) => drop(troubles.datasets.remove(dataset)),
        None => troubles.source = None,
    });
}

/// Reports folders of a dataset that are no versions, when they change.
pub fn refused(catalogue: &Catalogue, dataset: &DatasetName, refused: Vec<String>) {
    let known = catalogue.troubles();
    if known.refused.get(dataset).map_or(&[][..], Vec::as_slice) == refused {
        return;
    }
    for why in &refused {
        tracing::warn!(%dataset, why, "a folder in the source is no version");
    }
    catalogue.change_troubles(|troubles| match refused.is_empty() {
        true => drop(troubles.refused.remove(dataset)),
        false => drop(troubles.refused.insert(dataset.clone(), refused.clone())),
    });
}

/// Only these datasets are looked at: forgets the troubles of others.
pub fn source_has(catalogue: &Catalogue, names: &BTreeSet<DatasetName>) {
    let known = catalogue.troubles();
    if known.datasets.keys().chain(known.refused.keys()).any(|name| !names.contains(name)) {
        catalogue.change_troubles(|troubles| {
            troubles.datasets.retain(|name, _| names.contains(name));
            troubles.refused.retain(|name, _| names.contains(name));
        });
    }
}

/// Shows how the node stands with its coordinators. The worker writes the log of it.
pub fn coordinator(catalogue: &Catalogue, coordinators: &[String], health: Option<Health>) {
    let asked = coordinators.join(", ");
    let is_new = catalogue.clock().now().0 <= REGISTERED.as_millis() as u64;
    let why = match health {
        Some(Health::Up | Health::Leaving) => None,
        None if is_new => None,
        Some(Health::Joining | Health::Lapsed) => {
            Some(format!("nothing is heard of {asked}; the orders that it gave last hold"))
        }
        None => Some(format!(
            "{asked} has not registered this node since it was started; the orders that it remembers hold"
        )),
    };
    let now = unix_seconds();
    catalogue.change_troubles(|troubles| {
        let before = match &troubles.coordinator {
            Link::Away(trouble) => Some(trouble),
            Link::Unused | Link::Connecting | Link::Connected => None,
        };
        troubles.coordinator = match &why {
            Some(why) => Link::Away(Trouble::again(before, why.clone(), now).0),
            None if health.is_none() => Link::Connecting,
            None => Link::Connected,
        };
    });
}

/// What a node does with the coordination service. Each may fail by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CoordinationPart {
    /// The session, which other nodes take for the life of this one.
    Session,
    /// The keys of this node: what it has, and where it serves.
    Keys,
    /// The copy of all nodes' keys, by which it knows its peers.
    Mirror,
}

/// Which parts of the coordination service work for this node.
#[derive(Debug)]
pub struct CoordinationHealth {
    catalogue: Arc<Catalogue>,
    /// Whether there is nothing to reach: no coordination service was named.
    is_alone: bool,
    /// Whether each part works, of those that were tried.
    works: Mutex<BTreeMap<CoordinationPart, bool>>,
}

impl CoordinationHealth {
    pub fn new(catalogue: Arc<Catalogue>, is_alone: bool) -> CoordinationHealth {
        let link = if is_alone { Link::Unused } else { Link::Connecting };
        catalogue.change_troubles(|troubles| troubles.link = link.clone());
        CoordinationHealth { catalogue, is_alone, works: Mutex::default() }
    }

    /// Notes the reason, for status pages, and logs it once in a while.
    pub fn failed(&self, part: CoordinationPart, reason: impl Display) {
        let mut works = self.works.lock().unwrap_or_else(PoisonError::into_inner);
        works.insert(part, false);
        let (reason, now) = (reason.to_string(), unix_seconds());
        let mut told = None;
        self.catalogue.change_troubles(|troubles| {
            let before = match &troubles.link {
                Link::Away(trouble) => Some(trouble),
                Link::Unused | Link::Connecting | Link::Connected => None,
            };
            let (trouble, is_said) = Trouble::again(before, reason.clone(), now);
            told = is_said.then(|| trouble.clone());
            troubles.link = Link::Away(trouble);
        });
        if let Some(Trouble { reason, times, .. }) = told {
            let node = &*self.catalogue.neighbours().me.address;
            tracing::warn!(node, reason, times, "the coordination service is away; what it last said holds");
        }
    }

    /// Ends the trouble when no other part fails, and session and mirror work.
    pub fn works(&self, part: CoordinationPart) {
        let mut works = self.works.lock().unwrap_or_else(PoisonError::into_inner);
        if works.insert(part, true) == Some(true) {
            return;
        }
        if part == CoordinationPart::Session {
            // A new session publishes all keys anew.
            works.remove(&CoordinationPart::Keys);
        }
        let is_up = |part: CoordinationPart| works.get(&part) == Some(&true);
        let is_down = works.values().any(|works| !works)
            || !is_up(CoordinationPart::Session)
            || !is_up(CoordinationPart::Mirror);
        if is_down || self.is_alone {
            return;
        }
        if let Link::Away(Trouble { since, times, .. }) = &self.catalogue.troubles().link {
            let after_s = unix_seconds().saturating_sub(*since);
            let node = &*self.catalogue.neighbours().me.address;
            tracing::info!(node, after_s, times, "the coordination service is back");
        }
        self.catalogue.change_troubles(|troubles| troubles.link = Link::Connected);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_wire::dataset::status::LinkState;

    fn link(catalogue: &Catalogue) -> Link {
        catalogue.troubles().link.clone()
    }

    #[test]
    fn the_line_is_up_when_all_of_it_works_and_down_when_any_of_it_fails() {
        let catalogue = Arc::new(Catalogue::default());
        assert_eq!(link(&catalogue), Link::Unused);
        let health = CoordinationHealth::new(catalogue.clone(), false);
        health.works(CoordinationPart::Session);
        assert_eq!(link(&catalogue), Link::Connecting);
        health.works(CoordinationPart::Mirror);
        assert_eq!(link(&catalogue), Link::Connected);
        health.failed(CoordinationPart::Keys, "busy");
        health.failed(CoordinationPart::Mirror, "gone");
        health.failed(CoordinationPart::Session, "gone, too");
        let Link::Away(trouble) = link(&catalogue) else { panic!("{:?}", link(&catalogue)) };
        assert_eq!((trouble.times, trouble.reason.as_str()), (3, "gone, too"));
        health.works(CoordinationPart::Mirror);
        assert_eq!(link(&catalogue).state(), LinkState::Away);
        health.works(CoordinationPart::Session);
        assert_eq!(link(&catalogue), Link::Connected, "what was to be published is published anew");
    }

    #[test]
    fn a_coordinator_is_away_when_it_is_not_heard_and_there_again_when_it_is() {
        let catalogue = Catalogue::default();
        let coordinators = ["10.0.0.1:7400".to_owned()];
        let told = |health| {
            coordinator(&catalogue, &coordinators, health);
            catalogue.troubles().coordinator.clone()
        };
        assert_eq!(told(None), Link::Connecting, "it was started just now");
        assert_eq!(told(Some(Health::Up)), Link::Connected);
        told(Some(Health::Lapsed));
        let Link::Away(trouble) = told(Some(Health::Lapsed)) else { panic!("it is away") };
        assert!(trouble.times == 2 && trouble.reason.contains("10.0.0.1:7400"), "{trouble:?}");
        assert_eq!(told(Some(Health::Leaving)), Link::Connected);
    }

    #[test]
    fn a_source_is_in_trouble_until_it_works_or_is_not_looked_at_any_more() {
        let catalogue = Catalogue::default();
        let [names, others] = ["names", "others"].map(|name| DatasetName::new(name).unwrap());
        source_failed(&catalogue, None, "not reachable");
        source_failed(&catalogue, Some(&names), "403");
        source_failed(&catalogue, Some(&names), "403 again");
        source_failed(&catalogue, Some(&others), "500");
        let told = catalogue.troubles().of("names").cloned().unwrap();
        assert_eq!((told.times, told.reason.as_str()), (2, "403 again"));
        source_works(&catalogue, None);
        source_works(&catalogue, Some(&names));
        assert_eq!(catalogue.troubles().datasets.len(), 1);
        source_has(&catalogue, &BTreeSet::from([names]));
        assert_eq!(*catalogue.troubles(), crate::catalogue::Troubles::default());
    }
}
