//! Nodes that are unreachable at the address that they announced (A11).
//!
//! A node that sends heartbeats is alive; it can serve only if its address answers, too. Before that the coordinator places
//! nothing on it ([`crate::node::health`]). If the address stops to answer, the node is unreachable after `failed_checks` failed
//! checks. `dead_after_ms` later its followers lead, and its replicas move to other nodes as in a drain: the old replica serves
//! until the new one is ready, for clients that still reach it.
//!
//! | if                                                              | then                                   |
//! |-----------------------------------------------------------------|----------------------------------------|
//! | the address has not answered since the node registered          | nothing is placed there                |
//! | it is unreachable for `dead_after_ms`                           | its followers lead, its replicas move  |
//! | the same, for more nodes than the brake allows, or for most     | nothing moves: the coordinator, or the |
//! | of the nodes                                                    | network, is at fault                   |
//! | its address answers again                                       | it keeps what has not moved yet        |
//!
//! Nothing of this is stored: a new coordinator checks every address itself.

use super::decide::Transition;
use super::keyspaces::Keyspaces;
use super::members::Members;
use super::{Cluster, Moment, NodeState, Outbox};
use crate::base::count::counted;
use crate::base::id::Incarnation;
use crate::base::name::NodeId;
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind};
use crate::limits;
use crate::node::{CheckBack, Health};
use crate::plan::brake;
use std::collections::BTreeSet;

impl NodeState {
    /// Whether no map has named this incarnation since this coordinator leads, nor had it ended before. Anybody can register as
    /// many of those as they like, so they count neither as nodes that should answer nor as ones that were lost, and are soon
    /// forgotten (Z2). They get shards once they have sent a heartbeat and their address has answered.
    pub(super) fn has_never_held(&self) -> bool {
        !self.has_held
    }

    /// A map names it: whether its record did not say so yet, and is to be stored.
    pub(super) fn note_held(&mut self) -> bool {
        self.has_held = true;
        !std::mem::replace(&mut self.record.held, true)
    }

    /// When it has been unreachable for so long that its replicas should move off; none while it is reachable.
    fn long_unreachable_at(&self, now: Millis, settings: &Settings) -> Option<Millis> {
        let is_unreachable = self.signs.health(now, settings) == Health::Unreachable;
        let since = self.signs.unreachable_since.filter(|_| is_unreachable)?;
        Some(since + settings.dead_after_ms)
    }
}

/// Nodes that have been unreachable for so long that everything moves off them, or are so no longer.
pub(super) struct LongUnreachableNodes {
    nodes: Vec<(NodeId, bool)>,
    wake: Millis,
}

impl Transition for LongUnreachableNodes {
    fn find(cluster: &Cluster, at: Moment) -> LongUnreachableNodes {
        let (mut silent, mut standing, mut wake) = (BTreeSet::new(), 0, Millis::NEVER);
        let nodes = || cluster.members.nodes.iter().filter(|(_, node)| !node.record.ended);
        for (id, node) in nodes().filter(|(_, node)| !node.has_never_held()) {
            standing += 1;
            match node.long_unreachable_at(at.now, &cluster.settings) {
                Some(due) if due <= at.now => drop(silent.insert(id)),
                Some(due) => wake = wake.min(due),
                None => {}
            }
        }
        let reachable = nodes().filter(|(_, node)| node.stays_up(at.now, &cluster.settings)).count();
        let is_borne = brake::are_unreachable_borne(silent.len(), reachable, standing, &cluster.settings);
        let moves_off = is_borne && cluster.record.brake.is_none();
        let found =
            cluster.members.nodes.iter().map(|(id, node)| (id, node, moves_off && silent.contains(id)));
        let changed = found.filter(|(_, node, is)| node.long_unreachable != *is);
        LongUnreachableNodes { nodes: changed.map(|(id, _, is)| (id.clone(), is)).collect(), wake }
    }

    fn apply(self, cluster: &mut Cluster, at: Moment) -> Millis {
        let Cluster { members, keyspaces, outbox, .. } = cluster;
        self.nodes.iter().for_each(|(id, is)| members.note_unreachable(at, (id, *is), keyspaces, outbox));
        self.wake
    }
}

impl Cluster {
    /// Whether the announced address has answered.
    pub fn checked_back(&mut self, at: Moment, id: &NodeId, incarnation: Incarnation, answered: bool) {
        let Some(node) = self.members.get_mut(id).filter(|node| node.record.incarnation == incarnation)
        else {
            return;
        };
        let before = node.signs.health(at.now, &self.settings);
        node.signs.checked(at.now, answered, &self.settings);
        if before != node.signs.health(at.now, &self.settings) {
            self.keyspaces.plan_soon(at, 0);
        }
    }

    /// The addresses to check now (A11); each is then not due for [`Settings::check_back_ms`], or much sooner while
    /// its service is still starting.
    pub fn checks_due(&mut self, now: Millis) -> Vec<(NodeId, Incarnation, String, CheckBack)> {
        let mut due = Vec::new();
        for (id, node) in &mut self.members.nodes {
            if !node.record.ended && node.signs.last_beat.is_some() && node.check_due <= now {
                let starts = node.signs.is_starting(now, &self.settings);
                let rest_ms = if starts { limits::FIRST_CHECKS_MS } else { self.settings.check_back_ms };
                node.check_due = now + rest_ms.min(self.settings.check_back_ms);
                let spec = &node.record.spec;
                due.push((
                    id.clone(),
                    node.record.incarnation,
                    spec.address.clone(),
                    spec.check_back.clone(),
                ));
            }
        }
        due
    }
}

impl Members {
    fn note_unreachable(
        &mut self,
        at: Moment,
        (id, long_unreachable): (&NodeId, bool),
        keyspaces: &mut Keyspaces,
        outbox: &mut Outbox,
    ) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.long_unreachable = long_unreachable;
        let (held, address) = (node.orders.len(), node.record.spec.address.clone());
        if long_unreachable && held > 0 {
            outbox.tell(
                EventKind::NodeHealth,
                About::node(id),
                true,
                format!(
                    "node {id} beats, but its address {address} does not answer: what it holds of {} moves \
                     off it. Start it with an address at which others reach it",
                    counted(held, "shard")
                ),
            );
        }
        keyspaces.enqueue_replicas_of(id);
        keyspaces.plan_soon(at, 0);
    }
}
