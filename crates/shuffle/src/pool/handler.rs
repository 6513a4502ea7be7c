//! What orders of the coordinator do.
//!
//! | order | what the node does |
//! |---|---|
//! | `load` of a replica that is a copy already, or of a slot that never had data | keeps in mind that it has the slot |
//! | `load` of any other | forgets what an earlier stay took of decisions, and waits until the machines say that all is here |
//! | `serve` | stores the epoch: it says how late the copy is |
//! | `unload` | nothing: the machines go by the map |
//! | `drop` | keeps in mind that the slot is not here; of a pool that was deleted, deletes what is here of it |
//!
//! Of a replica that was moved the machines delete the data themselves, when each replica in `Live` has all of it.

use super::map::slot_of;
use super::{Running, Starting, running};
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::KeyspaceKind;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_worker::{
    Assignment, Damaged, DropReason, Epoch, Failure, Handler, Membership, Memberships, Peer, Role, Stored,
    StoredReplicas, async_trait,
};
use std::sync::Arc;

/// The slots of one node.
pub(crate) struct PoolHandler {
    pub(crate) pool: KeyspaceName,
    pub(crate) members: Memberships,
    pub(crate) starting: Starting,
}

impl PoolHandler {
    async fn running(&self) -> Result<Arc<Running>, Failure> {
        running(&self.starting).await.ok_or_else(|| "the node has not started".into())
    }

    /// Keeps in mind that the replica is here, and under which epoch it has served last.
    async fn keep(&self, shard: &Assignment, epoch: Epoch) -> Result<(), Failure> {
        let known = self.members.of(&shard.replica).map_or(Epoch(0), |membership| membership.served);
        let membership = Membership { bounds: shard.bounds.clone(), served: known.max(epoch), forms: false };
        Ok(self.members.set(&shard.replica, membership).await?)
    }
}

#[async_trait]
impl Handler for PoolHandler {
    async fn stored(&self) -> Result<StoredReplicas, Failure> {
        let store = self.members.store();
        let stored = |(replica, membership): (_, Membership)| {
            let Membership { bounds, served, .. } = membership;
            Stored { replica, bounds, epoch: served, store, damaged: false }
        };
        let replicas = self.members.all().into_iter().map(stored).collect();
        Ok(StoredReplicas { cluster: self.members.cluster(), replicas })
    }

    async fn load(&self, shard: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        let keyspace = shard.keyspace();
        if *keyspace != self.pool || shard.brief.kind != KeyspaceKind::Shuffle {
            let pool = &self.pool;
            return Err(format!(
                "this node is of pool {pool}, and {keyspace} is another one: a node has one pool"
            )
            .into());
        }
        let slot = slot_of(&shard.bounds).ok_or_else(|| format!("shard {} is no slot", shard.shard()))?;
        let cluster = shard.cluster.ok_or("no coordinator has taken this node in")?;
        let running = self.running().await?;
        if shard.has_data && running.node.status().unfit.contains(&slot) {
            return Err(Damaged(format!("the decisions of slot {} are damaged", slot.0)).into());
        }
        self.members.set_cluster(cluster).await?;
        self.keep(shard, Epoch(0)).await?;
        if shard.state == ReplicaState::Live || !shard.had_data {
            return Ok(());
        }
        if !running.node.begin_load(slot).await {
            return Err("the node has ended".into());
        }
        running.transport.ready_slots().next(slot).await;
        Ok(())
    }

    async fn serve(&self, shard: &Assignment, _: Role, epoch: Epoch) -> Result<(), Failure> {
        self.keep(shard, epoch).await
    }

    async fn unload(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        Ok(())
    }

    async fn drop(&self, shard: &Assignment, reason: DropReason) -> Result<(), Failure> {
        tracing::info!(keyspace = %shard.keyspace(), shard = %shard.shard(), %reason, "the replica is not here any more");
        if reason == DropReason::Deleted
            && *shard.keyspace() == self.pool
            && let Some(slot) = slot_of(&shard.bounds)
        {
            self.running().await?.node.delete_slot(slot).await;
        }
        Ok(self.members.remove(&shard.replica).await?)
    }
}
