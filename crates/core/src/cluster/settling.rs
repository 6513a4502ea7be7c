//! Which shards of a keyspace the next decision looks at, and what they wait for. Nothing of it is stored: it follows from
//! the map, and from what was heard since.

use super::counts::Counts;
use crate::base::id::ShardId;
use crate::keyspace::map::{Shard, Stage};
use std::collections::{BTreeMap, BTreeSet};

/// The shards of a keyspace that have a next step, by what they wait for; the decisions look at no others.
#[derive(Debug, Clone, Default)]
pub(super) struct Settling {
    /// Shards with something under way.
    pub(super) unsettled: BTreeSet<ShardId>,
    /// What of `unsettled` the throttle counts.
    pub(super) under_way: Counts,
    /// Children that prepare, by their parents.
    pub(super) forming: BTreeMap<ShardId, BTreeSet<ShardId>>,
    /// Shards that something was heard of since they were last looked at.
    pub(super) awake: BTreeSet<ShardId>,
    /// Those of them that wait for a grant, an announcement or their leader, and that [`super::Cluster::grant_at_once`] has
    /// not looked at since.
    pub(super) grantable: BTreeSet<ShardId>,
    /// Where the next decision goes on, when there is more than one decision looks at.
    looked_until: ShardId,
    /// Led shards whose leader has not got its grant yet.
    pub(super) ungranted: BTreeSet<ShardId>,
    /// Durable shards with a replica in `Load` that their leader may not know of yet.
    pub(super) unannounced: BTreeSet<ShardId>,
    /// Durable shards whose followers may begin when their leader serves, and have no order for it yet.
    pub(super) unfollowed: BTreeSet<ShardId>,
    /// Durable shards of whose copies some have ended and some have not.
    pub(super) half_ended: BTreeSet<ShardId>,
}

impl Settling {
    /// Of these shards, of which nothing was heard and none was granted yet.
    pub(super) fn of_new(
        all: BTreeSet<ShardId>,
        unsettled: BTreeSet<ShardId>,
        under_way: Counts,
    ) -> Settling {
        Settling { unsettled, under_way, awake: all.clone(), ungranted: all, ..Settling::default() }
    }

    /// Something was heard of one shard.
    pub(super) fn note_news(&mut self, id: ShardId) {
        self.awake.insert(id);
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

    /// At most `most` of the shards that have news, going on behind those of the last time.
    pub(super) fn take_awake(&mut self, most: usize) -> BTreeSet<ShardId> {
        if self.awake.len() <= most {
            self.grantable.clear();
            return std::mem::take(&mut self.awake);
        }
        let behind = self.awake.range(self.looked_until..);
        let taken: Vec<ShardId> =
            behind.chain(self.awake.range(..self.looked_until)).take(most).copied().collect();
        for id in &taken {
            self.awake.remove(id);
            self.grantable.remove(id);
        }
        self.looked_until = taken.last().map_or(ShardId(0), |last| last.next());
        taken.into_iter().collect()
    }
}
