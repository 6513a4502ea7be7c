//! What follows from the mirror of the keys of all nodes.

use super::effects::Effects;
use super::{Address, DatasetName, DatasetState, Effect, Key, News, Node, Version, VersionName};
use partage_core::base::planted::{self, Planted};
use partage_core::limits;
use std::collections::BTreeSet;

impl Node {
    /// A session began: publishes every key in it, also those of the session before.
    pub(super) fn begin(&mut self, out: &mut Effects) {
        let is_first = !self.presence.has_heard();
        self.presence.begin(self.now);
        if is_first || !planted::is(Planted::S9) {
            out.extend(self.published.iter().map(|(key, value)| Effect::Publish(key.clone(), value.clone())));
        }
    }

    /// Takes the mirror, or what has changed in it.
    pub(super) fn hear(&mut self, is_whole: bool, news: Vec<News>, out: &mut Effects) {
        let before = self.presence.snapshot();
        let mut touched = BTreeSet::new();
        let mut lost: BTreeSet<Key> = BTreeSet::new();
        if is_whole {
            self.presence.heard(self.now);
            self.presence.forget();
            lost = self.published.keys().cloned().collect();
            for (dataset, state) in &mut self.datasets {
                let held = state.versions.iter().filter(|(_, version)| !version.holders.is_empty());
                touched.extend(held.map(|(name, _)| (dataset.clone(), name.clone())));
                state.forget_holders();
            }
        }
        for news in news {
            if let Some((key, is_there)) = self.of_mine(&news) {
                match is_there {
                    true if self.published.contains_key(&key) => drop(lost.remove(&key)),
                    true if matches!(key, Key::Partition(..)) => self.withdraw(key, out),
                    true => {}
                    false => drop(lost.insert(key)),
                }
                if matches!(news, News::Partition { .. }) {
                    continue;
                }
            }
            self.hear_one(news, &mut touched, out);
        }
        if self.presence.has_session && !planted::is(Planted::S9) {
            let again = lost.into_iter().filter_map(|key| self.published.get_key_value(&key));
            out.extend(again.map(|(key, value)| Effect::Publish(key.clone(), value.clone())));
        }
        if self.presence.compare(&before, self.now) {
            out.neighbours();
        }
        let shown = touched.into_iter().filter(|(dataset, version)| {
            self.datasets
                .get(dataset)
                .and_then(|state| state.versions.get(version))
                .is_some_and(|v| v.is_shown)
        });
        shown.for_each(|(dataset, version)| out.show(dataset, version));
    }

    /// Which key of its own the news are of, and whether it is there.
    fn of_mine(&self, news: &News) -> Option<(Key, bool)> {
        let me = self.presence.me();
        match news {
            News::Node(address, claim) if address == me => Some((Key::Node, claim.is_some())),
            News::Partition { dataset, version, partition, address, layout } if address == me => {
                let key = Key::Partition(dataset.clone(), version.clone(), *partition);
                Some((key, layout.is_some()))
            }
            News::Pin(dataset, address, pin) if address == me => {
                Some((Key::Pin(dataset.clone()), pin.is_some()))
            }
            News::Node(..) | News::Partition { .. } | News::Pin(..) | News::Keys { .. } => None,
        }
    }

    fn hear_one(
        &mut self,
        news: News,
        touched: &mut BTreeSet<(DatasetName, VersionName)>,
        out: &mut Effects,
    ) {
        match news {
            News::Node(address, claim) => self.presence.hear(address, claim),
            News::Partition { dataset, version, address, layout, .. }
                if !self.is_known(&dataset, &version)
                    && (layout.is_none() || self.has_told_enough(&address)) => {}
            News::Partition { dataset, version, partition, address, layout } => {
                let known = self.version(&dataset, &version);
                let is_news = known.holders.is_empty() && layout.is_some() && !known.is_own();
                known.holders.hear(partition, &address, layout, known.layout);
                self.look.want(is_news);
                touched.insert((dataset, version));
            }
            News::Pin(dataset, ..) if !self.may_order(&dataset) => {}
            News::Pin(dataset, _, Some(pin)) => self.follow(dataset, pin, out),
            News::Pin(_, _, None) => {}
            News::Keys { address, .. } if address == *self.presence.me() => {}
            News::Keys { dataset, version, .. } if !self.is_known(&dataset, &version) => {}
            News::Keys { dataset, version, address, keys } => {
                self.version(&dataset, &version).holders.hear_keys(&address, keys);
            }
        }
    }

    fn is_known(&self, dataset: &DatasetName, version: &VersionName) -> bool {
        self.datasets.get(dataset).is_some_and(|state| state.versions.contains_key(version))
    }

    /// Whether a peer has as many versions that the own source lacks as a node may announce.
    fn has_told_enough(&self, address: &Address) -> bool {
        let versions = self.datasets.values().flat_map(|state| state.versions.values());
        let is_told = |version: &&Version| !version.is_own() && version.holders.has_any_of(address);
        versions.filter(is_told).count() >= limits::ANNOUNCED_VERSIONS
    }

    /// Whether the node follows an order for this dataset: if the source has listed the dataset, or if not
    /// too many have an order that the source has not listed.
    fn may_order(&self, dataset: &DatasetName) -> bool {
        let is_ordered = |state: &DatasetState| !state.was_listed && state.pin.order > 0;
        if self.datasets.get(dataset).is_some_and(|state| state.was_listed || is_ordered(state)) {
            return true;
        }
        self.datasets.values().filter(|state| is_ordered(state)).count() < limits::ANNOUNCED_DATASETS
    }
}
