//! Maps as records of the backend, beside all others: the [encoder](partage_wire::stored) puts each change into the transaction
//! of the commit, so this store has nothing to add to it.

use super::{CurrentMap, FoundMaps, MapStore, MapUpdate, MapWrites, StillLeads};
use crate::backend::store::StoreError;
use crate::clock::Clock;
use async_trait::async_trait;
use partage_coordination::{Coordination, FencedTransaction, Leadership};
use partage_core::base::name::KeyspaceName;
use partage_core::cluster::Write;
use partage_service::metadata::Head;
use partage_wire::stored::{Batch, EncodeError, StoreEncoder};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The maps in a backend that stores them.
pub struct InlineMaps {
    coordination: Arc<dyn Coordination>,
    leadership: Leadership,
}

impl InlineMaps {
    /// In that backend.
    pub fn new(coordination: Arc<dyn Coordination>, leadership: Leadership) -> InlineMaps {
        InlineMaps { coordination, leadership }
    }
}

#[async_trait]
impl MapStore for InlineMaps {
    /// A head leads elsewhere: with an empty map in its place everything would be placed anew.
    async fn read(&self, mut heads: BTreeMap<KeyspaceName, Head>) -> Result<FoundMaps, StoreError> {
        let Some((keyspace, head)) = heads.pop_first() else { return Ok(FoundMaps::default()) };
        let servers = head.servers.iter().map(ToString::to_string).collect();
        Err(StoreError::Elsewhere { keyspace, servers })
    }

    async fn can_read(&self, _name: &KeyspaceName) -> bool {
        true
    }

    fn contains(&self, _name: &KeyspaceName) -> bool {
        true
    }

    fn most_shards(&self, encoder: &StoreEncoder, writes: &[Write], map: CurrentMap<'_>) -> usize {
        encoder.most_shards(writes, map)
    }

    fn encode(
        &self,
        encoder: &mut StoreEncoder,
        writes: &[Write],
        map: CurrentMap<'_>,
    ) -> Result<Vec<(Batch, MapWrites)>, EncodeError> {
        Ok(vec![(encoder.encode(writes, map)?, MapWrites::default())])
    }

    async fn commit(&self, transaction: FencedTransaction, _maps: &MapWrites) -> Result<(), StoreError> {
        let outcome = self.leadership.commit(&*self.coordination, transaction).await;
        outcome.map(drop).map_err(|error| StoreError::of_fenced(&self.leadership, error))
    }

    async fn has_room(&self, _updates: &Arc<[MapUpdate]>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn upkeep(&self, _clock: Clock, _leads: &StillLeads) {}
}
