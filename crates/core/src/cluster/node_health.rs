//! Which nodes are alive, silent or dead, and what follows for their replicas.

use super::decide::Transition;
use super::keyspaces::Keyspaces;
use super::members::Members;
use super::{Cluster, Moment, NodeState, Outbox, Write, orders};
use crate::base::count::counted;
use crate::base::name::NodeId;
use crate::base::planted::{self, Planted};
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind};
use crate::limits;
use crate::node::Health;
use crate::node::exchange::DiskHealth;
use crate::plan::brake::Suspects;

/// A coordinator that was asleep itself has heard no node meanwhile: that says nothing about the nodes.
/// It gives them the time by which it woke late; leases run on regardless. Short sleeps add up, so each counts that is
/// longer than a busy machine is late.
pub(super) struct OwnSilence {
    /// By how much it woke late; 0 where that is little.
    late_ms: u64,
    /// It was asleep, and not only slow.
    was_asleep: bool,
}

impl OwnSilence {
    /// Of a coordinator that looks so much later than it said.
    pub(super) fn of(cluster: &Cluster, late_ms: u64) -> OwnSilence {
        let heartbeat_ms = cluster.settings.heartbeat_ms;
        if late_ms < heartbeat_ms.div_ceil(8) || planted::is(Planted::OwnSleep) {
            return OwnSilence { late_ms: 0, was_asleep: false };
        }
        OwnSilence { late_ms, was_asleep: late_ms >= heartbeat_ms }
    }
}

impl Transition for OwnSilence {
    fn find(cluster: &Cluster, at: Moment) -> OwnSilence {
        OwnSilence::of(cluster, at.now.since(cluster.times.promised))
    }

    fn apply(self, cluster: &mut Cluster, at: Moment) -> Millis {
        let OwnSilence { late_ms, was_asleep } = self;
        cluster.times.listened = at.now;
        if late_ms > 0 {
            cluster.members.nodes.values_mut().for_each(|node| node.signs.excuse(at.now, late_ms));
        }
        if was_asleep {
            cluster.keyspaces.extend_pending_steps(at, late_ms);
            cluster.outbox.notice(
                false,
                format!("this coordinator was asleep for {late_ms} ms: its nodes get as much more time"),
            );
        }
        Millis::NEVER
    }
}

/// Nodes whose health, or whose right to act, has changed.
pub(super) struct NodeHealth {
    nodes: Vec<HealthChange>,
    wake: Millis,
}

/// What has changed for one node.
struct HealthChange {
    node: NodeId,
    health: Health,
    /// The lease of a former start is over.
    former_ended: bool,
    /// Its lease is over, and was not when last looked at.
    lapsed: bool,
    death: Option<Death>,
}

/// A node is given up.
enum Death {
    /// Nothing follows from it for others: a person has given it up, or it never held a shard.
    Expected,
    /// It counts as a loss, and against the shards that it had taken on just before.
    Loss(Suspects),
}

impl Transition for NodeHealth {
    fn find(cluster: &Cluster, at: Moment) -> NodeHealth {
        let most = cluster.share_beside_planning(limits::SHARDS_WOKEN) as u64;
        let mut found = NodeHealth { nodes: Vec::new(), wake: Millis::NEVER };
        let mut woken = 0;
        for node in cluster.members.nodes.values() {
            // What has happened to the others is seen in the next decision, at once.
            if woken >= most {
                found.wake = at.now;
                break;
            }
            found.wake = found.wake.min(node.next_health_change(at, &cluster.settings));
            if let Some(change) = cluster.health_change(at, node) {
                woken += cluster.shards_woken_by(node, &change);
                found.nodes.push(change);
            }
        }
        found
    }

    fn apply(self, cluster: &mut Cluster, at: Moment) -> Millis {
        for HealthChange { node: id, health, former_ended, lapsed, death } in self.nodes {
            let Cluster { settings, record, members, keyspaces, guard, outbox, .. } = &mut *cluster;
            // A node heard again is not given up.
            guard.written_off.remove(&id);
            if former_ended {
                members.end_former(at, &id, keyspaces);
            }
            let Some(node) = members.get_mut(&id) else { continue };
            let told = std::mem::replace(&mut node.told, health);
            node.lapsed = node.signs.lease.end() <= at.now;
            match death {
                // Each death is evidence for the next one.
                Some(Death::Loss(suspects)) => {
                    let known = (&*members, &*settings, &*record);
                    guard.strike(at, (&id, &suspects), known, keyspaces, outbox);
                    guard.losses.add(id.clone(), at.now, suspects);
                    members.declare_dead(at, &id, keyspaces, outbox);
                }
                Some(Death::Expected) => members.declare_dead(at, &id, keyspaces, outbox),
                None if told != health => members.take_health(at, &id, (told, health), keyspaces, outbox),
                None => {}
            }
            if lapsed {
                keyspaces.wake_replicas_of(&id);
            }
        }
        self.wake
    }
}

impl NodeState {
    /// When its health, or its right to act, changes if nothing is heard of it.
    fn next_health_change(&self, at: Moment, settings: &crate::base::settings::Settings) -> Millis {
        let own = self.signs.lease.end();
        let former = self.former.values().map(|signs| signs.lease.end());
        let leases = former.chain([own]).filter(|end| *end > at.now);
        leases.fold(self.signs.next_change(at.now, settings), Millis::min)
    }
}

impl Cluster {
    fn health_change(&self, at: Moment, node: &NodeState) -> Option<HealthChange> {
        let id = &node.record.spec.id;
        let health = node.signs.health(at.now, &self.settings);
        let is_over = node.signs.lease.end() <= at.now;
        let former_ended = node.former.values().any(|signs| signs.lease.is_over(at.now));
        let is_written_off = self.guard.written_off.contains(id);
        let is_dead = health == Health::Down && !node.record.ended;
        let death = (is_dead && (self.guard.gives_up || is_written_off)).then(|| {
            let is_expected = node.has_never_held() || is_written_off;
            if is_expected { Death::Expected } else { Death::Loss(self.suspects(id)) }
        });
        let has_changed = former_ended
            || is_written_off
            || death.is_some()
            || node.told != health
            || node.lapsed != is_over;
        let lapsed = is_over && !node.lapsed;
        has_changed.then(|| HealthChange { node: id.clone(), health, former_ended, lapsed, death })
    }

    /// How often a change wakes shards, in all.
    fn shards_woken_by(&self, node: &NodeState, change: &HealthChange) -> u64 {
        let has_changed = change.death.is_some() || node.told != change.health;
        let times = u64::from(change.former_ended) + u64::from(has_changed) + u64::from(change.lapsed);
        if times == 0 {
            return 0;
        }
        let held =
            self.keyspaces.by_name.values().map(|keyspace| keyspace.hosted.on(&change.node).count() as u64);
        times * held.sum::<u64>()
    }

    /// While there are nodes to hear, the coordinator decides once in a heartbeat, though nothing may be due: so it
    /// knows to within one beat how long it was asleep, and never takes that for silence of nodes (R6).
    pub(super) fn next_look(&self, at: Moment) -> Millis {
        let hears = self.members.nodes.values().any(|node| !node.record.ended);
        if hears { at.now + self.settings.heartbeat_ms } else { Millis::NEVER }
    }
}

impl Members {
    fn take_health(
        &mut self,
        at: Moment,
        id: &NodeId,
        (told, health): (Health, Health),
        keyspaces: &mut Keyspaces,
        outbox: &mut Outbox,
    ) {
        let Some(node) = self.nodes.get(id) else { return };
        let is_unreachable = health == Health::Unreachable;
        let address = &node.record.spec.address;
        let at_address = if is_unreachable { format!(" at {address}") } else { String::new() };
        let text = format!("node {id} is {health}{at_address}, was {told}");
        outbox.tell(EventKind::NodeHealth, About::node(id), is_unreachable, text);
        if told == Health::Unknown && health == Health::Up {
            self.last_join = at.now;
        }
        keyspaces.plan_soon(at, 0);
        keyspaces.wake_replicas_of(id);
    }

    fn end_former(&mut self, at: Moment, id: &NodeId, keyspaces: &mut Keyspaces) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.former.retain(|_, signs| !signs.lease.is_over(at.now));
        keyspaces.wake_replicas_of(id);
        keyspaces.plan_soon(at, 0);
    }

    /// It is given up.
    pub(super) fn declare_dead(
        &mut self,
        at: Moment,
        id: &NodeId,
        keyspaces: &mut Keyspaces,
        outbox: &mut Outbox,
    ) {
        let held = self.nodes.get(id).map_or(0, |node| node.orders.len());
        outbox.tell(
            EventKind::NodeEnded,
            About::node(id),
            true,
            format!(
                "node {id} is dead: what it held of {} is placed elsewhere where there is room",
                counted(held, "shard")
            ),
        );
        self.end(at, id, keyspaces, outbox);
    }

    /// Ends the current incarnation for ever.
    pub(super) fn end(&mut self, at: Moment, id: &NodeId, keyspaces: &mut Keyspaces, outbox: &mut Outbox) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.record.ended = true;
        node.signs.ended = true;
        node.disk = DiskHealth::default();
        node.ended_at = at.now;
        node.orders = orders::OrderIndex::default();
        outbox.writes.push(Write::Node(node.record.clone()));
        keyspaces.forget_reports_of(id);
        keyspaces.wake_replicas_of(id);
        keyspaces.plan_soon(at, 0);
    }
}
