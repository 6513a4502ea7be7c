//! Nodes that get no further lease, as they do not let go of what others wait for (L1).
//!
//! In exclusive mode no new owner begins while the former owner still can act (O1, O5), and only its report or
//! the end of its lease says that it cannot. So when another waits for the grant, the node gets no further lease
//! until it has let go: its last one runs out, the other begins, and what else it serves exclusively is moved off
//! it. It is not told to end: it would drop what is perhaps the only copy (D7). However many nodes are stuck, each
//! has its turn: the next one when the leases of those before it are over, as long as another node is left that
//! takes shards, and none while the brake is on (R4).

use super::decide::Transition;
use super::keyspaces::Keyspaces;
use super::members::Members;
use super::pending_steps::PendingStep;
use super::{Cluster, KeyspaceState, Moment, NodeState, Observed, Outbox};
use crate::base::id::{Epoch, PlacementId, ShardId};
use crate::base::name::NodeId;
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind};
use crate::keyspace::Ownership;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Replica, Role, Stage};

/// Nodes that have let go in the end, and get leases again.
pub(super) struct ResumedLeases {
    nodes: Vec<NodeId>,
}

impl Transition for ResumedLeases {
    fn find(cluster: &Cluster, _: Moment) -> ResumedLeases {
        let revoked = cluster.members.nodes.iter().filter(|(_, node)| node.revoked).map(|(id, _)| id);
        let holds =
            |id: &NodeId| cluster.keyspaces.by_name.values().any(|keyspace| keyspace.held_fast(id).is_some());
        ResumedLeases { nodes: revoked.filter(|id| !holds(id)).cloned().collect() }
    }

    fn apply(self, cluster: &mut Cluster, at: Moment) -> Millis {
        for id in self.nodes {
            let text = format!("node {id} has let go, and gets leases again");
            cluster.outbox.tell(EventKind::Notice, About::node(&id), false, text);
            cluster.members.nodes.entry(id).and_modify(|node| node.revoked = false);
            cluster.keyspaces.plan_soon(at, 0);
        }
        Millis::NEVER
    }
}

impl KeyspaceState {
    /// Whether a replica that does not get on may still own what another is to begin with.
    pub(super) fn holds_up(&self, id: ShardId, replica: &Replica) -> bool {
        let may_own = matches!(replica.state, ReplicaState::Live | ReplicaState::Unload);
        let epoch = self.observed.get(&replica.placement).map(|seen| seen.epoch());
        let is_current = epoch >= self.map.shard(id).map(|shard| shard.epoch);
        replica.role != Role::Leader && may_own && !is_current && self.waits_for_grant(id)
    }

    /// A replica that a node still has not let go of, though it is exclusive, with the epoch that the node was to report.
    fn held_fast(&self, node: &NodeId) -> Option<(ShardId, PlacementId, Epoch)> {
        let here = |placement: &PlacementId, step: &PendingStep| {
            let replica = self.map.shard(step.shard).and_then(|shard| shard.replica(*placement));
            replica.is_some_and(|r| r.node == *node && r.role != Role::Leader)
        };
        let may_own = |step: &PendingStep| matches!(step.state, ReplicaState::Live | ReplicaState::Unload);
        let exclusive = self.record.keyspace.ownership == Ownership::Exclusive;
        let mut steps = self.overdue.pending_steps.steps.iter().filter(|_| exclusive);
        let (placement, step) = steps.find(|(p, step)| step.is_overdue && may_own(step) && here(p, step))?;
        Some((step.shard, *placement, self.map.shard(step.shard)?.epoch))
    }

    fn waits_for_grant(&self, id: ShardId) -> bool {
        let waits = |id: &ShardId| {
            self.queue.ungranted.contains(id)
                && self.map.shard(*id).is_some_and(|shard| shard.leader().is_some())
        };
        let children = match self.map.shard(id).map(|shard| shard.stage()) {
            Some(Stage::Closing(children)) => &children[..],
            _ => &[],
        };
        waits(&id) || children.iter().any(waits)
    }
}

impl Members {
    /// A node gets no further lease while it does not let go of what others wait for. It still carries out its
    /// orders, and keeps its data: others copy from there.
    pub(super) fn revoke(&mut self, at: Moment, id: &NodeId, keyspaces: &mut Keyspaces, outbox: &mut Outbox) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.revoked = true;
        let held = keyspaces.by_name.iter().find_map(|(name, keyspace)| {
            let (shard, placement, epoch) = keyspace.held_fast(id)?;
            let reported = keyspace.observed.get(&placement).map(Observed::epoch).unwrap_or_default();
            let lacks =
                format!(" (it reports epoch {reported} of replica {placement}, epoch {epoch} is awaited)");
            let lacks = if reported < epoch { lacks } else { String::new() };
            Some(format!(", such as shard {shard} of keyspace {name}{lacks}"))
        });
        let held = held.unwrap_or_default();
        outbox.tell(
            EventKind::Alarm,
            About::node(id),
            true,
            format!(
                "node {id} does not let go of shards that others wait for{held}: it gets no further lease, and what it \
                 serves exclusively is moved elsewhere. Mend the service, or stop the process"
            ),
        );
        keyspaces.plan_soon(at, 0);
    }
}

impl Cluster {
    /// Whether the leases of all nodes revoked before are over, those of `also` too, and another node is left that
    /// takes shards.
    pub(super) fn is_turn_to_revoke(&self, at: Moment, id: &NodeId, also: &[NodeId]) -> bool {
        let is_revoked = |id: &NodeId, node: &NodeState| node.revoked || also.contains(id);
        let takes =
            |id: &NodeId, node: &NodeState| !also.contains(id) && node.accepts(at.now, &self.settings);
        let mut standing =
            self.members.nodes.iter().filter(|(other, node)| *other != id && !node.record.ended);
        let mut others = self.members.nodes.iter().filter(|(other, _)| *other != id);
        let is_open = |node: &NodeState| !node.record.ended && !is_revoked(id, node);
        self.record.brake.is_none()
            && self.members.get(id).is_some_and(is_open)
            && standing.all(|(id, node)| !is_revoked(id, node) || node.signs.lease.is_over(at.now))
            && others.any(|(id, node)| takes(id, node))
    }
}
