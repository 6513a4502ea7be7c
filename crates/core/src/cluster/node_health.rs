//! The health of nodes: which changes people hear of, and which nodes the coordinator declares dead.

use super::blame::StrikeContext;
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

/// While the coordinator's own process sleeps it hears no node. So it extends the deadlines of all nodes by the time for which
/// it slept, except their leases. Short sleeps add up, so each one counts that is longer than a busy machine is late.
pub(super) struct CoordinatorSleep {
    /// By how much this decision is late; 0 if that is little.
    late_ms: u64,
    /// Whether it slept, and was not only slow.
    was_asleep: bool,
}

impl CoordinatorSleep {
    pub(super) fn of(cluster: &Cluster, late_ms: u64) -> CoordinatorSleep {
        let heartbeat_ms = cluster.settings.heartbeat_ms;
        if late_ms < heartbeat_ms.div_ceil(8) || planted::is(Planted::OwnSleep) {
            return CoordinatorSleep { late_ms: 0, was_asleep: false };
        }
        CoordinatorSleep { late_ms, was_asleep: late_ms >= heartbeat_ms }
    }
}

impl Transition for CoordinatorSleep {
    fn find(cluster: &Cluster, at: Moment) -> CoordinatorSleep {
        CoordinatorSleep::of(cluster, at.now.since(cluster.times.decision_due))
    }

    fn apply(self, cluster: &mut Cluster, at: Moment) -> Millis {
        let CoordinatorSleep { late_ms, was_asleep } = self;
        cluster.times.listened = at.now;
        if late_ms > 0 {
            cluster.members.nodes.values_mut().for_each(|node| node.signs.extend_by(at.now, late_ms));
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

/// What has changed for one node since the last decision.
struct HealthChange {
    node: NodeId,
    health: Health,
    /// The lease of an earlier incarnation is over.
    former_ended: bool,
    /// The lease of the node is over, and was not at the last decision.
    lease_over: bool,
    death: Option<Death>,
}

/// Why the coordinator declares a node dead.
enum Death {
    /// A person has given the node up, or it never held a shard: the brake does not count it.
    Expected,
    /// The brake counts it, and these shards, which the node had begun just before, are suspected.
    Loss(Suspects),
}

impl Transition for NodeHealth {
    fn find(cluster: &Cluster, at: Moment) -> NodeHealth {
        let most = cluster.share_beside_planning(limits::SHARDS_ENQUEUED) as u64;
        let mut found = NodeHealth { nodes: Vec::new(), wake: Millis::NEVER };
        let mut enqueued = 0;
        for node in cluster.members.nodes.values() {
            // The next decision, which comes at once, looks at the other nodes.
            if enqueued >= most {
                found.wake = at.now;
                break;
            }
            found.wake = found.wake.min(node.next_health_change(at, &cluster.settings));
            if let Some(change) = cluster.health_change(at, node) {
                enqueued += cluster.shards_enqueued_by(node, &change);
                found.nodes.push(change);
            }
        }
        found
    }

    fn apply(self, cluster: &mut Cluster, at: Moment) -> Millis {
        for HealthChange { node: id, health, former_ended, lease_over, death } in self.nodes {
            let Cluster { settings, record, members, keyspaces, guard, outbox, .. } = &mut *cluster;
            // A node that was heard again is not declared dead.
            guard.written_off.remove(&id);
            if former_ended {
                members.end_former(at, &id, keyspaces);
            }
            let Some(node) = members.get_mut(&id) else { continue };
            let old = std::mem::replace(&mut node.reported_health, health);
            node.lease_over = node.signs.lease.end() <= at.now;
            match death {
                // Each death is evidence for the next one.
                Some(Death::Loss(suspects)) => {
                    let known = StrikeContext { seen: members.view(at.now, settings), record };
                    guard.strike(at, &id, &suspects, known, keyspaces, outbox);
                    guard.losses.add(id.clone(), at.now, suspects);
                    members.declare_dead(at, &id, keyspaces, outbox);
                }
                Some(Death::Expected) => members.declare_dead(at, &id, keyspaces, outbox),
                None if old != health => members.report_health(at, &id, (old, health), keyspaces, outbox),
                None => {}
            }
            if lease_over {
                keyspaces.enqueue_replicas_of(&id);
            }
        }
        self.wake
    }
}

impl NodeState {
    /// When the node's health changes, or a lease of it ends, if it sends nothing.
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
        let death = (is_dead && (self.guard.declares_dead || is_written_off)).then(|| {
            let is_expected = node.has_never_held() || is_written_off;
            if is_expected { Death::Expected } else { Death::Loss(self.suspects(id)) }
        });
        let has_changed = former_ended
            || is_written_off
            || death.is_some()
            || node.reported_health != health
            || node.lease_over != is_over;
        let lease_over = is_over && !node.lease_over;
        has_changed.then(|| HealthChange { node: id.clone(), health, former_ended, lease_over, death })
    }

    /// How many shards `apply` will enqueue for a change.
    fn shards_enqueued_by(&self, node: &NodeState, change: &HealthChange) -> u64 {
        let has_changed = change.death.is_some() || node.reported_health != change.health;
        let times = u64::from(change.former_ended) + u64::from(has_changed) + u64::from(change.lease_over);
        if times == 0 {
            return 0;
        }
        let held =
            self.keyspaces.by_name.values().map(|keyspace| keyspace.hosted.on(&change.node).count() as u64);
        times * held.sum::<u64>()
    }

    /// While there are nodes, the coordinator decides at least once in a heartbeat interval: so it knows to within that for how
    /// long it was asleep, and never takes its own sleep for silence of nodes (R6).
    pub(super) fn next_tick(&self, at: Moment) -> Millis {
        let hears = self.members.nodes.values().any(|node| !node.record.ended);
        if hears { at.now + self.settings.heartbeat_ms } else { Millis::NEVER }
    }
}

impl Members {
    fn report_health(
        &mut self,
        at: Moment,
        id: &NodeId,
        (old, health): (Health, Health),
        keyspaces: &mut Keyspaces,
        outbox: &mut Outbox,
    ) {
        let Some(node) = self.nodes.get(id) else { return };
        let is_unreachable = health == Health::Unreachable;
        let address = &node.record.spec.address;
        let at_address = if is_unreachable { format!(" at {address}") } else { String::new() };
        let text = format!("node {id} is {health}{at_address}, was {old}");
        outbox.tell(EventKind::NodeHealth, About::node(id), is_unreachable, text);
        if old == Health::Unknown && health == Health::Up {
            self.last_join = at.now;
        }
        keyspaces.plan_soon(at, 0);
        keyspaces.enqueue_replicas_of(id);
    }

    fn end_former(&mut self, at: Moment, id: &NodeId, keyspaces: &mut Keyspaces) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.former.retain(|_, signs| !signs.lease.is_over(at.now));
        keyspaces.enqueue_replicas_of(id);
        keyspaces.plan_soon(at, 0);
    }

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
        keyspaces.enqueue_replicas_of(id);
        keyspaces.plan_soon(at, 0);
    }
}
