//! A node under a coordinator: which shards it is ordered to have, whether it has them, and when it may delete the rest
//! (K19, S18).
//!
//! A coordinator orders shards, and knows no versions ([`shards`](crate::dataset::shards)). The node loads the
//! partitions of its shards, of the version that clients get and of the next, and reports when all of them are here. It
//! deletes partitions of a shard that was taken from it only when others have them.
//!
//! | a partition that is here | seen                                   | does                              |
//! |--------------------------|----------------------------------------|-----------------------------------|
//! | of no ordered shard      | `min` others have it                   | withdraws its key, and waits      |
//! | withdrawn                | it is ordered again, or fewer have it  | publishes it again                |
//! |                          | the session is lost                    | publishes it again, in the next   |
//! |                          | `min` others have it, after the wait   | shows it no longer, and deletes it|
//!
//! Two nodes that delete one partition at a time would each count on the other. So a node first withdraws its key, and
//! looks again when the others must have heard: within that time it also notices that its session is lost, and keeps
//! the partition. Reads notice nothing: peers that have not heard still read a withdrawn partition.
//!
//! - (nf) a node deletes nothing that is not at `min` others, as far as it has heard since it withdrew the key;
//! - (ng) until a coordinator has ordered shards since the start everything stays;
//! - (nh) a shard is ready when its partitions of what clients get and of what they get next are here, and clients get
//!   something. A later version that fails does not keep a shard from being ready: no shard could move then;
//! - (ni) a node that starts goes on with the orders that it remembers, until a coordinator is heard: it loads later
//!   versions of the shards it had. Versions never change, so a node that keeps a shard too long serves nothing wrong.

use super::announcements::Layout;
use super::dataset_state::DatasetState;
use super::effects::Effects;
use super::{Effect, Key, Node, Value, VersionName};
use crate::dataset::shards::partitions_of;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use partage_core::keyspace::sharding::Slot;
use std::collections::BTreeSet;

/// How far a node has loaded a shard that it was ordered to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// Some of it is still being loaded.
    Loading,
    /// All of it is here.
    Ready,
    /// It cannot be loaded, for now.
    Failed(String),
}

/// What happens to partitions that are here and not ordered.
enum Step {
    /// The node withdraws its key.
    Withdraw(u32),
    /// It stays after all.
    Publish(u32, Layout),
    /// The node deletes them.
    Gone(BTreeSet<u32>),
}

/// What decides whether a partition may go.
#[derive(Clone, Copy)]
struct Parting {
    now: Millis,
    wait_ms: u64,
    /// So many others must have it.
    min: usize,
    can_tell: bool,
}

impl Node {
    /// How far the node has loaded a shard.
    pub fn readiness(&self, dataset: &super::DatasetName, slot: Slot) -> Readiness {
        match self.dataset(dataset) {
            Some(state) if self.presence.has_heard() => state.readiness(slot),
            Some(_) | None => Readiness::Loading,
        }
    }

    /// Withdraws, then deletes, what was ordered elsewhere.
    pub(super) fn let_go(&mut self, out: &mut Effects) {
        let mut steps = Vec::new();
        for (dataset, state) in &mut self.datasets {
            let parting = Parting {
                now: self.now,
                wait_ms: self.settings.let_go_ms,
                min: state.spread(&self.settings).replication.min as usize,
                can_tell: self.presence.has_session,
            };
            let of = |(version, step)| (dataset.clone(), version, step);
            steps.extend(state.part(parting).into_iter().map(of));
        }
        for (dataset, version, step) in steps {
            let key = |partition| Key::Partition(dataset.clone(), version.clone(), partition);
            match step {
                Step::Withdraw(partition) => self.withdraw(key(partition), out),
                Step::Publish(partition, layout) => {
                    self.publish(key(partition), Value::Layout(layout), out);
                }
                Step::Gone(partitions) => {
                    out.show(dataset.clone(), version.clone());
                    out.push(Effect::LetGo { dataset, version, partitions });
                }
            }
        }
    }
}

impl DatasetState {
    /// The shards to remember: a node that starts while no coordinator answers goes on with them.
    pub fn kept(&self) -> &BTreeSet<Slot> {
        &self.kept
    }

    /// Takes up the orders from before the restart.
    pub(super) fn resume_orders(&mut self, kept: BTreeSet<Slot>) {
        self.slots = (!kept.is_empty()).then(|| kept.clone());
        self.kept = kept;
    }

    /// Takes the orders; returns whether to remember them. A node that has registered again has no orders for a moment:
    /// so it remembers that there are none only when nothing is here.
    pub(super) fn order(&mut self, slots: BTreeSet<Slot>) -> bool {
        let is_moment = slots.is_empty() && self.versions.values().any(|version| !version.here.is_empty());
        let is_news = !is_moment && self.kept != slots;
        if is_news {
            self.kept.clone_from(&slots);
        }
        (self.slots, self.has_orders) = (Some(slots), true);
        is_news
    }

    fn readiness(&self, slot: Slot) -> Readiness {
        if self.is_dropped {
            return Readiness::Ready;
        }
        if !self.was_listed
            || !self.slots.as_ref().is_some_and(|slots| self.has_orders && slots.contains(&slot))
        {
            return Readiness::Loading;
        }
        let (mut failed, mut is_on_its_way) = (None, false);
        for name in self.wanted() {
            let version = &self.versions[&name];
            let is_served = self.serving() == Some(&name);
            match (&version.failure, version.layout) {
                (Some(reason), _) if is_served => return Readiness::Failed(reason.clone()),
                (Some(reason), _) => failed = failed.or(Some(reason.clone())),
                (None, None) if is_served || version.is_listed => return Readiness::Loading,
                (None, None) => {}
                (None, Some(layout)) => {
                    let is_here = partitions_of(&[slot].into(), layout.partitions).is_subset(&version.here);
                    match (is_here, version.is_listed) {
                        (true, _) => is_on_its_way = true,
                        (false, true) => return Readiness::Loading,
                        (false, false) if is_served => {
                            return Readiness::Failed(format!(
                                "version {name}, which clients get, is not in the source any more: put it back, or give \
                                 the source a later one"
                            ));
                        }
                        (false, false) => {}
                    }
                }
            }
        }
        match (self.serving(), failed) {
            (Some(_), _) => Readiness::Ready,
            // The node cannot serve its part of a version that is not whole.
            (None, _) if is_on_its_way => Readiness::Loading,
            (None, Some(reason)) => Readiness::Failed(reason),
            (None, None) => Readiness::Ready,
        }
    }

    fn part(&mut self, parting: Parting) -> Vec<(VersionName, Step)> {
        let Some(slots) = self.slots.as_ref().filter(|_| self.has_orders) else { return Vec::new() };
        let mut steps = Vec::new();
        for (name, version) in &mut self.versions {
            let Some(layout) = version.layout.filter(|_| !version.is_retiring) else { continue };
            let ordered = partitions_of(slots, layout.partitions);
            let mut gone = BTreeSet::new();
            for partition in &version.here {
                let others = version.holders.count(layout, *partition);
                let may_go = !ordered.contains(partition) && others >= parting.min && parting.can_tell;
                match version.leaving.get(partition).copied() {
                    None if may_go && planted::is(Planted::S18) => {
                        gone.insert(*partition);
                        steps.push((name.clone(), Step::Withdraw(*partition)));
                    }
                    None if may_go => {
                        version.leaving.insert(*partition, parting.now);
                        steps.push((name.clone(), Step::Withdraw(*partition)));
                    }
                    Some(since) if may_go && since + parting.wait_ms <= parting.now => {
                        gone.insert(*partition);
                    }
                    Some(_) if !may_go => {
                        version.leaving.remove(partition);
                        steps.push((name.clone(), Step::Publish(*partition, layout)));
                    }
                    Some(_) | None => {}
                }
            }
            if !gone.is_empty() {
                version.here.retain(|partition| !gone.contains(partition));
                version.leaving.retain(|partition, _| !gone.contains(partition));
                steps.push((name.clone(), Step::Gone(gone)));
            }
        }
        steps
    }

    /// When the wait of a withdrawn partition ends.
    pub(super) fn parting_at(&self, wait_ms: u64, now: Millis) -> Option<Millis> {
        let since = self.versions.values().flat_map(|version| version.leaving.values());
        since.map(|since| *since + wait_ms).filter(|at| *at > now).min()
    }
}

#[cfg(test)]
mod tests;
