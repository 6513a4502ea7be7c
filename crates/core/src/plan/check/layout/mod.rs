//! Whether a commit leaves every key with exactly one shard (M1, O8), at a cost of what the commit touches.
//!
//! Where new shards hold exactly the keys of the old ones that they replace, the rest of the map is as it was. So the check
//! compares the stretches that the commit takes away with those that it adds. Only where they differ does it look at the whole
//! map, to say what is wrong. Named partitions may come and go without leaving a gap; there the check looks for the new names
//! among the others.
//!
//! It holds because the map before was looked at in the same way; the first one in a process is checked whole.

use super::{Finding, bounds, cover, hold_the_same};
use crate::base::id::ShardId;
use crate::keyspace::map::{MapDiff, Shard, ShardMap, Stage};
use crate::keyspace::sharding::slot::common_multiple;
use crate::keyspace::sharding::{Bounds, Sharding};
use std::collections::{BTreeMap, BTreeSet};

/// A map as it will be after a diff, without making it.
pub(super) struct Next<'a> {
    map: &'a ShardMap,
    changed: BTreeMap<ShardId, &'a Shard>,
    removed: BTreeSet<ShardId>,
}

impl<'a> Next<'a> {
    pub(super) fn of(map: &'a ShardMap, diff: &'a MapDiff) -> Next<'a> {
        let changed = diff.changed.iter().map(|shard| (shard.id, shard)).collect();
        Next { map, changed, removed: diff.removed.iter().copied().collect() }
    }

    fn shard(&self, id: ShardId) -> Option<&'a Shard> {
        let known = self.changed.get(&id).copied();
        known.or_else(|| self.map.shard(id).filter(|_| !self.removed.contains(&id)))
    }

    fn touches(&self, id: ShardId) -> bool {
        self.changed.contains_key(&id) || self.removed.contains(&id)
    }

    /// The shards that will serve.
    fn serving(&self) -> impl Iterator<Item = &'a Shard> {
        let others = self.map.shards().filter(|shard| !self.touches(shard.id));
        others.chain(self.changed.values().copied()).filter(|shard| shard.is_serving())
    }

    /// Everything wrong with the layout: M1 of all serving shards, O8 of those that change.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = if self.fills_its_hole() {
            vec![]
        } else {
            cover(self.map.sharding(), &self.serving().collect::<Vec<_>>())
        };
        findings.extend(self.families());
        findings
    }

    /// Whether the serving shards that come hold exactly the keys, each once, of those that go. If not, the layout may
    /// be right all the same, as when the first shards come.
    fn fills_its_hole(&self) -> bool {
        let touched: BTreeSet<ShardId> = self.changed.keys().chain(&self.removed).copied().collect();
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        for id in touched {
            let serves = |shard: &&Shard| shard.is_serving();
            let (old, new) = (self.map.shard(id).filter(serves), self.shard(id).filter(serves));
            if old.map(|shard| &shard.bounds) != new.map(|shard| &shard.bounds) {
                gone.extend(old.map(|shard| &shard.bounds));
                come.extend(new.map(|shard| &shard.bounds));
            }
        }
        match self.map.sharding() {
            Sharding::Named => self.names_are_new(&come),
            Sharding::Fixed { shards, .. } => {
                let numbers = come.iter().filter_map(|bounds| match bounds {
                    Bounds::Slot(slot) => Some(slot.of()),
                    Bounds::Keys(_) | Bounds::Hashes(_) | Bounds::Name(_) => None,
                });
                common_multiple(numbers.chain([shards])).is_some() && hold_the_same(&gone, &come)
            }
            Sharding::KeyRange | Sharding::HashRange { .. } => hold_the_same(&gone, &come),
        }
    }

    /// Whether each of these names is there once and no other shard has it.
    fn names_are_new(&self, come: &[&Bounds]) -> bool {
        let new: BTreeSet<&str> = come.iter().filter_map(|bounds| name(bounds)).collect();
        let has_one = |shard: &&Shard| name(&shard.bounds).is_some_and(|name| new.contains(name));
        come.is_empty() || new.len() == come.len() && self.serving().filter(has_one).count() == come.len()
    }

    /// O8 for every shard that the diff touches.
    fn families(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for shard in self.changed.values().filter(|shard| shard.is_serving()) {
            for parent in shard.parents().iter().filter_map(|id| self.shard(*id)) {
                // Later epochs are those of closers, under which nothing is written.
                let opens = self.map.shard(shard.id).is_none_or(|before| !before.is_serving());
                let is_above = !opens || shard.epoch >= parent.epoch;
                let has_closed = matches!(parent.stage(), Stage::Closing(_)) && is_above;
                if !has_closed {
                    findings.push(Finding::OpensEarly(shard.id, parent.id));
                }
            }
        }
        for shard in self.changed.values() {
            let Stage::Forming(siblings) = shard.stage() else { continue };
            let parents: Option<Vec<_>> = shard.parents().iter().map(|id| self.shard(*id)).collect();
            let children: Option<Vec<_>> = siblings.iter().map(|id| self.shard(*id)).collect();
            // Where a parent or a sibling is gone the handover abandons the rest; they open no more.
            let (Some(parents), Some(children)) = (parents, children) else { continue };
            if siblings.first() == Some(&shard.id) && !hold_the_same(&bounds(&parents), &bounds(&children)) {
                findings.push(Finding::ChildrenDiffer(siblings.to_vec()));
            }
        }
        findings
    }
}

fn name(bounds: &Bounds) -> Option<&str> {
    match bounds {
        Bounds::Name(name) => Some(name.as_str()),
        Bounds::Keys(_) | Bounds::Hashes(_) | Bounds::Slot(_) => None,
    }
}

#[cfg(test)]
mod tests;
