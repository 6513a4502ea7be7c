//! The shards that a shard comes from or turns into.

use crate::base::id::ShardId;
use std::ops::Deref;

/// Ids of shards. Reads as a slice.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Family(Box<[ShardId]>);

impl Deref for Family {
    type Target = [ShardId];
    fn deref(&self) -> &[ShardId] {
        &self.0
    }
}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl FromIterator<ShardId> for Family {
    fn from_iter<I: IntoIterator<Item = ShardId>>(ids: I) -> Family {
        Family(ids.into_iter().collect())
    }
}

impl From<&[ShardId]> for Family {
    fn from(ids: &[ShardId]) -> Family {
        ids.iter().copied().collect()
    }
}

impl<'a> IntoIterator for &'a Family {
    type Item = &'a ShardId;
    type IntoIter = std::slice::Iter<'a, ShardId>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
