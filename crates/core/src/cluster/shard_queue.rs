//! The work queue of a keyspace: the shards that the next decision reconciles, and what other shards wait for. It is not stored,
//! as it follows from the map and from the reports of workers.

use super::counts::Counts;
use crate::base::id::ShardId;
use crate::keyspace::map::{Shard, Stage};
use std::collections::{BTreeMap, BTreeSet};

/// The shards of a keyspace that have a next step. Decisions look at no others.
#[derive(Debug, Clone, Default)]
pub(super) struct ShardQueue {
    /// Shards with a move, load, split or merge under way.
    pub(super) unsettled: BTreeSet<ShardId>,
    /// What of `unsettled` the throttle counts.
    pub(super) under_way: Counts,
    /// Children that prepare, by their parents.
    pub(super) forming: BTreeMap<ShardId, BTreeSet<ShardId>>,
    /// Shards with news since a decision last reconciled them.
    pub(super) queued: BTreeSet<ShardId>,
    /// Those of `queued` in `ungranted`, `unannounced` or `unfollowed` that [`super::Cluster::grant_before_commit`] has not
    /// looked at.
    pub(super) grantable: BTreeSet<ShardId>,
    /// Where the next decision goes on, when `queued` has more than one decision takes.
    taken_until: ShardId,
    /// Shards whose leader is not granted to begin yet.
    pub(super) ungranted: BTreeSet<ShardId>,
    /// Durable shards with a replica in `Load` that their leader may not know of yet.
    pub(super) unannounced: BTreeSet<ShardId>,
    /// Durable shards whose followers may begin when their leader serves, and have no order for it yet.
    pub(super) unfollowed: BTreeSet<ShardId>,
    /// Durable shards of whose copies some have ended and some have not.
    pub(super) half_ended: BTreeSet<ShardId>,
}

impl ShardQueue {
    /// Of a map that was just created or recovered.
    pub(super) fn of_new(
        all: BTreeSet<ShardId>,
        unsettled: BTreeSet<ShardId>,
        under_way: Counts,
    ) -> ShardQueue {
        ShardQueue { unsettled, under_way, queued: all.clone(), ungranted: all, ..ShardQueue::default() }
    }

    /// There is news of a shard: the next decision reconciles it.
    pub(super) fn enqueue(&mut self, id: ShardId) {
        self.queued.insert(id);
        if [&self.ungranted, &self.unannounced, &self.unfollowed].iter().any(|shards| shards.contains(&id)) {
            self.grantable.insert(id);
        }
    }

    /// The children of a shard that prepare.
    pub(super) fn children(&self, parent: ShardId) -> impl Iterator<Item = ShardId> + '_ {
        self.forming.get(&parent).into_iter().flatten().copied()
    }

    /// Keeps `forming`: the shard was `old`, and is `new`.
    pub(super) fn note_child(&mut self, id: ShardId, old: Option<&Shard>, new: Option<&Shard>) {
        let forms = |shard: &&Shard| matches!(shard.stage(), Stage::Forming(_));
        for parent in old.filter(forms).into_iter().flat_map(|shard| shard.parents()) {
            if let Some(children) = self.forming.get_mut(parent) {
                children.remove(&id);
                if children.is_empty() {
                    self.forming.remove(parent);
                }
            }
        }
        for parent in new.filter(forms).into_iter().flat_map(|shard| shard.parents()) {
            self.forming.entry(*parent).or_default().insert(id);
        }
    }

    /// Takes at most `most` shards, round robin.
    pub(super) fn take_queued(&mut self, most: usize) -> BTreeSet<ShardId> {
        if self.queued.len() <= most {
            self.grantable.clear();
            return std::mem::take(&mut self.queued);
        }
        let behind = self.queued.range(self.taken_until..);
        let taken: Vec<ShardId> =
            behind.chain(self.queued.range(..self.taken_until)).take(most).copied().collect();
        for id in &taken {
            self.queued.remove(id);
            self.grantable.remove(id);
        }
        self.taken_until = taken.last().map_or(ShardId(0), |last| last.next());
        taken.into_iter().collect()
    }
}
