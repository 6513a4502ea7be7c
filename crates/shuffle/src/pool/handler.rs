//! What orders of the coordinator do.
//!
//! | order | what the node does |
//! |---|---|
//! | `load` of a replica that is a copy already, or of a slot that never had data | keeps in mind that it has the slot |
//! | `load` of any other | forgets what an earlier stay took of decisions, and waits until the machines say that all is here |
//! | `serve` | stores the epoch: it says how late the copy is |
//! | `unload` | nothing: the machines go by the map |
//! | `drop` of a replica that was moved or superseded | waits until nothing of the slot is here, and with the last replica until nothing of any slot is; then keeps in mind that it is not |
//! | `drop` of a pool that was deleted | deletes what is here of the slot, and keeps in mind that it is not here |
//!
//! Of a replica that was moved the machines delete the data themselves, when each replica in `Live` has all of it. They need to
//! be reached for that: the map has the address of a node as long as it names a replica there, and it names one until the order
//! to drop it is carried out. So what the node has taken as a stand-in for others is fetched as long as it has a replica: the
//! last one goes when others have all of that, be it that the node leaves or that its slots were moved.

use super::map::slot_of;
use super::{Running, Starting, running};
use crate::limits;
use crate::node::Node;
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::KeyspaceKind;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_service::shuffle::PoolSlot;
use partage_worker::{
    Assignment, Damaged, DropReason, Epoch, Failure, Handler, Load, Membership, Memberships, Peer, Role,
    Stored, StoredReplicas, async_trait,
};
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout_at};

/// The slots of one node.
pub(crate) struct PoolHandler {
    pub(crate) pool: KeyspaceName,
    pub(crate) members: Memberships,
    pub(crate) starting: Starting,
    /// Held while a replica goes that may be the last one here.
    pub(crate) last: Mutex<()>,
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

/// Waits until nothing of the slot is here, or without one of any slot: others have it then. It waits no longer than until then.
async fn handed_over(node: &Node, slot: Option<PoolSlot>, until: Instant) -> Result<(), Failure> {
    let all = async {
        loop {
            let is_here = match slot {
                Some(slot) => node.has_slot(slot).await,
                None => node.has_slots().await,
            };
            match is_here {
                Some(true) => sleep(limits::HAND_OVER_LOOK).await,
                Some(false) => return Ok(()),
                None => return Err(Failure::from("the node has ended")),
            }
        }
    };
    if let Ok(handed_over) = timeout_at(until, all).await {
        return handed_over;
    }
    let within = limits::HAND_OVER.as_secs();
    match slot {
        Some(slot) => tracing::warn!(
            slot = slot.0,
            "the replicas of the slot have not all of what is here after {within} s: it stays here"
        ),
        None => tracing::warn!(
            "the replicas of some slots have not all of what this node has taken in their stead after {within} s: it stays here"
        ),
    }
    Ok(())
}

/// Waits until other nodes have all that this node has taken in their stead, for at most [`limits::HAND_OVER`]. A node without a
/// replica needs it before it leaves: no order to drop one waits for that.
pub(crate) async fn hand_over_all(node: &Node, until: Instant) {
    let until = until.min(Instant::now() + limits::HAND_OVER);
    if let Err(error) = handed_over(node, None, until).await {
        tracing::warn!(%error, "it is not known whether other nodes have all that this one has");
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
        if *shard.keyspace() == self.pool
            && let Some(slot) = slot_of(&shard.bounds)
        {
            let running = self.running().await?;
            match reason {
                DropReason::Deleted => running.node.delete_slot(slot).await,
                DropReason::Moved | DropReason::Superseded => {
                    let until = Instant::now() + limits::HAND_OVER;
                    handed_over(&running.node, Some(slot), until).await?;
                    // One after the other, so that one is the last.
                    let _last = self.last.lock().await;
                    if self.members.all().keys().all(|known| *known == shard.replica) {
                        handed_over(&running.node, None, until).await?;
                    }
                    return Ok(self.members.remove(&shard.replica).await?);
                }
            }
        }
        Ok(self.members.remove(&shard.replica).await?)
    }

    /// The bytes of the slot, in large steps: moves are paced by them, and nodes get about equal shares.
    async fn report(&self, shard: &Assignment) -> Option<Load> {
        let slot = slot_of(&shard.bounds).filter(|_| *shard.keyspace() == self.pool)?;
        let running = self.starting.borrow().clone()?;
        Some(Load { size_bytes: told(running.node.slot_bytes(slot)), ..Load::default() })
    }
}

/// Whole steps of so many bytes.
fn told(bytes: u64) -> u64 {
    bytes - bytes % limits::TOLD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{NodeConfig, NodeSettings, Packet, Transport};
    use partage_core::base::id::Incarnation;
    use partage_core::base::name::NodeId;
    use partage_journal::RealDisk;
    use partage_service::shuffle::message::{Message, Word};
    use partage_service::shuffle::pool::{PoolMap, SlotPlace};
    use partage_service::shuffle::record::{Batch, BatchKey, Body, Stream, Tagged};
    use partage_service::shuffle::{BufferId, Durability, Ended, ShuffleId, Writer};
    use std::time::Duration;

    const SLOT: PoolSlot = PoolSlot(0);

    /// A network that nothing comes through.
    struct Silent;

    impl Transport for Silent {
        fn send(&self, _: &NodeId, _: Packet) {}
        fn ready(&self, _: PoolSlot, _: Epoch) {}
    }

    /// A node that is no replica of the one slot.
    fn node(folder: &std::path::Path) -> (Node, NodeId) {
        let [me, other] = ["a", "b"].map(|name| NodeId::new(name).unwrap());
        let place = SlotPlace { epoch: Epoch(1), live: vec![other.clone()], loading: Vec::new() };
        let nodes = vec![me.clone(), other.clone()];
        let map = PoolMap {
            generation: 1,
            replicas: 1,
            places: vec![place],
            nodes,
            no_stand_ins: Default::default(),
        };
        let config = NodeConfig {
            id: BufferId { node: me, incarnation: Incarnation(1) },
            pool: "default".parse().unwrap(),
            folder: folder.to_owned(),
            disk: Arc::new(RealDisk),
            settings: NodeSettings::default(),
        };
        (Node::start(config, Arc::new(map), Arc::new(Silent)).unwrap(), other)
    }

    #[test]
    fn the_bytes_of_a_slot_are_told_in_steps() {
        let step = limits::TOLD_BYTES;
        assert_eq!([0, step - 1, step, 3 * step + 1].map(told), [0, 0, step, 3 * step]);
    }

    fn soon() -> Instant {
        Instant::now() + 4 * limits::HAND_OVER_LOOK
    }

    fn late() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// A batch that a buffer at another node sends.
    fn batch(from: &NodeId) -> Packet {
        let writer = Writer::Buffer(BufferId { node: from.clone(), incarnation: Incarnation(1) });
        let key = BatchKey { stream: Stream { shuffle: ShuffleId(1), slot: SLOT, writer }, number: 1 };
        let (durability, body) = (Durability::Disk, Body::Records(Tagged::new()));
        Packet::Message(Message::Batch(Arc::new(Batch { key, durability, body })))
    }

    #[tokio::test]
    async fn a_node_that_stands_in_no_more_takes_nothing_of_the_slots_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let (node, other) = node(folder.path());
        node.stop_standing_in();
        assert!(node.delivery().deliver(other.clone(), batch(&other)));
        assert_eq!(node.has_slots().await, Some(false));
        hand_over_all(&node, soon()).await;
    }

    /// It waits as long as it may.
    async fn is_held_up(node: &Node, slot: Option<PoolSlot>) -> bool {
        timeout_at(soon(), handed_over(node, slot, late())).await.is_err()
    }

    #[tokio::test]
    async fn d7_x12_a_replica_is_not_dropped_while_something_of_its_slot_is_here_nor_the_last_one_while_anything_is()
     {
        let folder = tempfile::tempdir().unwrap();
        let (node, other) = node(folder.path());
        handed_over(&node, Some(SLOT), late()).await.unwrap();
        handed_over(&node, None, late()).await.unwrap();
        let delivery = node.delivery();
        assert!(delivery.deliver(other.clone(), batch(&other)));
        // A question may overtake a batch.
        while !node.has_slot(SLOT).await.unwrap() {
            tokio::task::yield_now().await;
        }
        assert!(is_held_up(&node, Some(SLOT)).await, "nobody else has it");
        assert!(is_held_up(&node, None).await, "it was taken in the stead of another node");
        handed_over(&node, Some(PoolSlot(7)), late()).await.unwrap();
        handed_over(&node, None, soon()).await.unwrap();
        assert_eq!(node.has_slot(SLOT).await, Some(true), "after its time it stays");
        let over = Message::Word(ShuffleId(1), Word::Ended(Ended::Deleted));
        assert!(delivery.deliver(other, Packet::Message(over)));
        handed_over(&node, Some(SLOT), late()).await.unwrap();
        handed_over(&node, None, late()).await.unwrap();
        assert_eq!((node.has_slot(SLOT).await, node.has_slots().await), (Some(false), Some(false)));
        node.end();
        assert!(
            handed_over(&node, Some(SLOT), late()).await.is_err(),
            "it is not known whether others have it"
        );
        assert!(handed_over(&node, None, late()).await.is_err());
    }
}
