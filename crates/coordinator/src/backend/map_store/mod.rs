//! Where the maps of a cluster live: in a [`MapStore`], which the leader reads and commits them by, whichever of the two it is.
//!
//! | map store              | where a map is                        | how a change of it counts                                   |
//! |------------------------|---------------------------------------|-------------------------------------------------------------|
//! | [`inline`](mod@inline) | records of the backend                | the leader's transaction puts its records                   |
//! | [`replicated`]         | METADATA files, a head in the backend | most servers store it, then that transaction swaps the head |
//!
//! In both the commit of maps is one fenced transaction of the backend together with all else that the leader decided, so the
//! [`Store`](super::store::Store) and the decision loop do not know which one it is. Everyone else reads maps with the map client
//! (`partage_maps`), which follows what the leader publishes.

pub mod inline;
pub mod local_metadata;
pub mod replicated;
mod upkeep;

use crate::backend::store::StoreError;
use crate::clock::Clock;
use async_trait::async_trait;
use futures::future::BoxFuture;
use partage_coordination::{Backend, Transaction, Version};
use partage_core::base::id::Generation;
use partage_core::base::name::KeyspaceName;
use partage_core::cluster::Write;
use partage_core::keyspace::map::{MapDiff, ShardMap};
use partage_service::metadata::Head;
use partage_wire::stored::{Batch, EncodeError, StoreEncoder};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether a backend keeps the maps itself, so that coordinators need no directory. etcd and ZooKeeper are made for
/// small values; a map may have a million shards.
pub fn keeps_maps(backend: Backend) -> bool {
    match backend {
        Backend::Embedded | Backend::MySql | Backend::Gossip => true,
        Backend::Etcd | Backend::ZooKeeper => false,
    }
}

/// Gives the current map of a keyspace: the one that some writes lead to.
pub type CurrentMap<'m> = &'m dyn Fn(&KeyspaceName) -> Option<&'m ShardMap>;

/// Asks the decision loop whether this coordinator leads still.
pub type StillLeads = dyn Fn() -> BoxFuture<'static, bool> + Send + Sync;

/// The maps of a cluster, in the hands of its leader: each commit is fenced by its leadership.
#[async_trait]
pub trait MapStore: Send + Sync {
    /// Reads the maps of which the backend has a head in the place of records.
    ///
    /// # Errors
    /// When none of them is to be had, or another leader has changed one.
    async fn read(&self, heads: BTreeMap<KeyspaceName, Head>) -> Result<FoundMaps, StoreError>;

    /// Whether the latest map of a keyspace of which the backend has a head can be read now.
    async fn gives(&self, name: &KeyspaceName) -> bool;

    /// Whether the map of a keyspace is in this store. The leader commits one that is not, as a whole.
    fn keeps(&self, name: &KeyspaceName) -> bool;

    /// What makes `writes` durable, in order: each part at once, and none before the one ahead of it.
    ///
    /// # Errors
    /// When a record cannot be stored. The encoder is of no more use then.
    fn encode(
        &self,
        encoder: &mut StoreEncoder,
        writes: &[Write],
        map: CurrentMap<'_>,
    ) -> Result<Vec<(Batch, MapChanges)>, EncodeError>;

    /// Commits `transaction`, which is fenced, and `changes` with it.
    ///
    /// # Errors
    /// Why not; [`StoreError::Map`] and [`StoreError::Overtaken`] are of the changes.
    async fn commit(&self, transaction: Transaction, changes: &MapChanges) -> Result<Version, StoreError>;

    /// Whether servers whose disks did not take these changes do so now.
    ///
    /// # Errors
    /// When the disks still do not take them.
    async fn has_room(&self, changes: &[MapChange]) -> Result<(), StoreError>;

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
pub struct MapChanges {
    /// Maps that change.
    pub changed: Arc<[MapChange]>,
    /// Maps of keyspaces that are deleted.
    dropped: Vec<KeyspaceName>,
}

/// What a commit does to one map.
#[derive(Debug, PartialEq, Eq)]
pub struct MapChange {
    name: KeyspaceName,
    diffs: Vec<Arc<MapDiff>>,
    /// The map before its first change, for a map that is new.
    empty: Option<ShardMap>,
}

impl MapChange {
    /// Where it leads.
    fn to(&self) -> Generation {
        self.diffs.last().map_or(Generation::default(), |diff| diff.to)
    }
}
