//! Where the maps of a cluster live: in a [`MapStore`], which the leader reads and commits them by, whichever of the two it is.
//!
//! | map store              | where a map is                        | how a change of it counts                                   |
//! |------------------------|---------------------------------------|-------------------------------------------------------------|
//! | [`inline`](mod@inline) | records of the backend                | the leader's transaction puts its records                   |
//! | [`replicated`]         | METADATA files, a head in the backend | most servers store it, then that transaction swaps the head |
//!
//! In both the commit of maps is one transaction of the backend together with all else that the leader decided, so the
//! [`Store`](super::store::Store) and the decision loop do not know which one it is. A map store takes nothing but a
//! [`FencedTransaction`], so that a deposed leader changes no map, whatever its caller forgets (O10). Everyone else reads maps
//! with the map client (`partage_maps`), which follows what the leader publishes.

pub mod inline;
pub mod local_metadata;
pub mod replicated;
#[cfg(test)]
mod tests;
mod upkeep;

use crate::backend::store::StoreError;
use crate::clock::Clock;
use async_trait::async_trait;
use futures::future::BoxFuture;
use partage_coordination::{Backend, FencedTransaction};
use partage_core::base::id::Generation;
use partage_core::base::name::KeyspaceName;
use partage_core::cluster::Write;
use partage_core::keyspace::map::{MapDiff, ShardMap};
use partage_service::metadata::Head;
use partage_service::metadata::change::Change;
use partage_wire::stored::{Batch, EncodeError, StoreEncoder};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether the maps are stored in that backend ([`inline`](mod@inline)), so that coordinators need no directory. etcd and
/// ZooKeeper are made for small values; a map may have a million shards.
pub fn stores_maps_inline(backend: Backend) -> bool {
    match backend {
        Backend::Embedded | Backend::MySql | Backend::Gossip => true,
        Backend::Etcd | Backend::ZooKeeper => false,
    }
}

/// Gives the current map of a keyspace: the one that some writes lead to.
pub type CurrentMap<'m> = &'m dyn Fn(&KeyspaceName) -> Option<&'m ShardMap>;

/// Asks the decision loop whether this coordinator leads still.
pub type StillLeads = dyn Fn() -> BoxFuture<'static, bool> + Send + Sync;

/// The maps of a cluster, for its leader: it commits nothing but what its leadership has fenced.
#[async_trait]
pub trait MapStore: Send + Sync {
    /// Reads the maps of which the backend has a head in the place of records.
    ///
    /// # Errors
    /// When none of them is to be had, or another leader has changed one.
    async fn read(&self, heads: BTreeMap<KeyspaceName, Head>) -> Result<FoundMaps, StoreError>;

    /// Whether the latest map of a keyspace of which the backend has a head can be read now.
    async fn can_read(&self, name: &KeyspaceName) -> bool;

    /// Whether the map of a keyspace is in this store. The leader commits one that is not, as a whole.
    fn contains(&self, name: &KeyspaceName) -> bool;

    /// How many shards [`MapStore::encode`] goes through for these writes, at most.
    fn most_shards(&self, encoder: &StoreEncoder, writes: &[Write], map: CurrentMap<'_>) -> usize;

    /// What makes `writes` durable, in order: each part at once, and none before the one ahead of it. That takes a while for many
    /// shards: then the caller runs it on a thread for blocking work.
    ///
    /// # Errors
    /// When a record cannot be stored. The encoder is of no more use then.
    fn encode(
        &self,
        encoder: &mut StoreEncoder,
        writes: &[Write],
        map: CurrentMap<'_>,
    ) -> Result<Vec<(Batch, MapWrites)>, EncodeError>;

    /// Commits `transaction`, and `maps` with it.
    ///
    /// # Errors
    /// Why not; [`StoreError::Map`] and [`StoreError::Overtaken`] are of the maps.
    async fn commit(&self, transaction: FencedTransaction, maps: &MapWrites) -> Result<(), StoreError>;

    /// Whether servers whose disks did not take these updates do so now.
    ///
    /// # Errors
    /// When the disks still do not take them.
    async fn has_room(&self, updates: &Arc<[MapUpdate]>) -> Result<(), StoreError>;

    /// Sees to it that each map is on as many servers as it should be, until this coordinator leads no more.
    async fn upkeep(&self, clock: Clock, leads: &StillLeads);
}

/// What servers have of the maps behind some heads.
#[derive(Default)]
pub struct FoundMaps {
    /// The maps.
    pub maps: BTreeMap<KeyspaceName, ShardMap>,
    /// Those that no server has given, and why.
    pub missing: BTreeMap<KeyspaceName, String>,
}

/// What a part of a commit does to maps beside the operations of its batch.
#[derive(Default)]
pub struct MapWrites {
    /// Maps that are new or change.
    pub updated: Arc<[MapUpdate]>,
    /// Maps of keyspaces that are deleted.
    deleted: Vec<KeyspaceName>,
}

/// What a commit does to one map.
#[derive(Debug, PartialEq, Eq)]
pub struct MapUpdate {
    name: KeyspaceName,
    diffs: Vec<Arc<MapDiff>>,
    /// The map before its first change, for a map that is new.
    empty: Option<ShardMap>,
}

impl MapUpdate {
    /// The generation that it leads to.
    fn to(&self) -> Generation {
        self.diffs.last().map_or(Generation::default(), |diff| diff.to)
    }

    /// How many shards it changes.
    fn shards(&self) -> usize {
        self.diffs.iter().map(|diff| diff.changed.len() + diff.removed.len()).sum()
    }

    /// What metadata servers store, one after the other: the diffs of a map that they have (`is_stored`), else the whole map.
    ///
    /// # Errors
    /// When the diffs do not follow on the map that they begin with.
    fn steps(&self, is_stored: bool) -> Result<Vec<Change>, EncodeError> {
        if is_stored {
            return Ok(self.diffs.iter().cloned().map(Change::Operation).collect());
        }
        let other = |at: String| EncodeError::OtherMap { keyspace: self.name.clone(), to: self.to(), at };
        let mut map = self.empty.clone().ok_or_else(|| other("none".to_owned()))?;
        let applied = self.diffs.iter().try_for_each(|diff| map.apply(diff));
        applied.map_err(|why| other(why.to_string()))?;
        Ok(vec![Change::Whole(Arc::new(map))])
    }
}
