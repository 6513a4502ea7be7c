//! A replica of a table in the cluster: how the coordinator's orders become orders of replication, and what the worker reports.
//!
//! The driver hands in every order ([`order`]), and reports whenever [`Reporter::report`] has changed. The answer to a wish is an
//! order of a later configuration.

use super::replication::{Order, Peer, Settings, Status, Wish};
use super::split::Parent;
use partage_core::base::id::{Configuration, Epoch, Incarnation};
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::Role;
use partage_core::node::exchange::{self, ReplicationReport};

/// The order for the replication of its replica, in the process `incarnation` of `node`. None where no replica leads.
pub fn order(order: &exchange::Order, node: &NodeId, incarnation: Incarnation) -> Option<Order> {
    let me = order.replica.placement;
    let others = || order.peers.iter().filter(|peer| peer.shard == order.replica.shard);
    let leader = match order.role {
        Role::Leader => Some(me),
        Role::Follower | Role::ReadReplica => {
            others().find(|peer| peer.role == Role::Leader).map(|peer| peer.placement)
        }
    };
    // The leader sends entries to a read replica, but never waits for it nor asks it into the set.
    let may_join = |role: Role, state: ReplicaState| role != Role::ReadReplica && state.is_staying();
    let own =
        Peer { placement: me, node: node.clone(), incarnation, may_join: may_join(order.role, order.state) };
    let peers = others().map(|peer| Peer {
        placement: peer.placement,
        node: peer.node.clone(),
        incarnation: peer.incarnation,
        may_join: may_join(peer.role, peer.state),
    });
    let in_sync = others().filter(|peer| peer.in_sync).map(|peer| peer.placement);
    Some(Order {
        epoch: order.epoch,
        configuration: order.configuration,
        leader: leader?,
        in_sync: in_sync.chain(order.in_sync.then_some(me)).collect(),
        peers: std::iter::once(own).chain(peers).collect(),
        closes: closes(order),
        hand_over_to: order.hand_over_to,
    })
}

/// Whether the shard was split or merged, so that the replica stays open until its children have all: its leader, the closer, is
/// in `Unload`. A replica that moves away has a leader elsewhere, in `Live`.
pub fn closes(order: &exchange::Order) -> bool {
    let own = (order.replica.shard, order.role, order.state);
    let peers = order.peers.iter().map(|peer| (peer.shard, peer.role, peer.state));
    let closer = (order.replica.shard, Role::Leader, ReplicaState::Unload);
    order.state == ReplicaState::Unload && std::iter::once(own).chain(peers).any(|one| one == closer)
}

/// Whether the shard is a child that forms: its parents serve, and it has had no in-sync set yet.
pub fn forms(order: &exchange::Order) -> bool {
    order.state == ReplicaState::Load
        && order.configuration == Configuration(0)
        && order.peers.iter().any(|peer| peer.shard != order.replica.shard)
}

/// Whether a replica without a base takes one: its shard forms, or it is in the in-sync set. Any other begins empty, and its
/// leader fills it.
pub fn takes_base(order: &exchange::Order) -> bool {
    forms(order) || order.in_sync
}

/// Whether the shard already serves without this replica, which still takes its base: the leader fills it instead.
pub fn is_late(order: &exchange::Order) -> bool {
    order.state.is_staying() && !takes_base(order)
}

/// The replicas of a child's parents, from which it may take its base.
pub fn parents(order: &exchange::Order) -> Vec<Parent> {
    let others =
        order.peers.iter().filter(|peer| peer.shard != order.replica.shard && peer.role != Role::ReadReplica);
    let parent = |peer: &exchange::Peer| Parent {
        shard: peer.shard,
        bounds: peer.bounds.clone(),
        placement: peer.placement,
        node: peer.node.clone(),
        in_sync: peer.in_sync,
    };
    others.map(parent).collect()
}

/// Collects the reports of a replica to the coordinator.
#[derive(Debug, Clone, Default)]
pub struct Reporter {
    wish: Option<Wish>,
    /// The epoch under which it last found its leader silent, and when.
    silent: Option<(Epoch, Millis)>,
}

impl Reporter {
    /// The replica leads, and wishes for another in-sync set.
    pub fn wishes(&mut self, wish: Wish) {
        self.wish = Some(wish);
    }

    /// The replica finds its leader silent.
    pub fn leader_is_silent(&mut self, epoch: Epoch, now: Millis) {
        self.silent = Some((epoch, now));
    }

    /// What the worker reports now. Drops a wish when there is a later configuration, and a silence that the replica has not
    /// repeated.
    pub fn report(&mut self, now: Millis, status: &Status, settings: &Settings) -> ReplicationReport {
        self.wish = self.wish.take().filter(|wish| {
            wish.configuration == status.configuration && status.leads.is_none_or(|leads| leads == wish.epoch)
        });
        self.silent = self.silent.filter(|(epoch, said)| {
            *epoch >= status.fence && status.leads.is_none() && now < *said + 2 * settings.wish_repeat_ms
        });
        ReplicationReport {
            configuration: status.configuration,
            log_end: status.end.index,
            leader_silent: self.silent.is_some(),
            wish: self.wish.as_ref().map(|wish| wish.in_sync.iter().copied().collect()),
            heir_ready: status.heir_ready,
        }
    }
}
