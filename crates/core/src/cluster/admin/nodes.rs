//! The commands that drain, undrain and remove nodes.

use super::{AdminError, Effect, Intent};
use crate::base::count::counted;
use crate::base::id::ShardId;
use crate::base::name::{KeyspaceName, NodeId, Zone};
use crate::cluster::drains::some_shards;
use crate::cluster::guard::PlannerGuard;
use crate::cluster::keyspaces::Keyspaces;
use crate::cluster::members::Members;
use crate::cluster::problems::shards_wait;
use crate::cluster::{Cluster, Drain, Moment, NodeRecord, NodeState, Outbox, Write};
use crate::keyspace::map::{Replica, Shard};
use crate::limits;
use crate::node::Health;
use std::collections::{BTreeMap, BTreeSet};

impl Cluster {
    pub(super) fn drain_node(
        &self,
        at: Moment,
        id: &NodeId,
        reason: String,
        max_down: Option<u32>,
    ) -> Result<Intent, AdminError> {
        let node = self.node(id)?;
        if node.record.ended {
            return Err(AdminError::Refused {
                problem: format!("node {id} is {}", node.signs.health(at.now, &self.settings)),
                way_out: "there is nothing to drain: remove it, or start it again".into(),
            });
        }
        self.drain(at, vec![node], reason, max_down)
    }

    pub(super) fn drain_zone(
        &self,
        at: Moment,
        zone: &Zone,
        reason: String,
        max_down: Option<u32>,
    ) -> Result<Intent, AdminError> {
        let known: BTreeSet<Zone> =
            self.members.nodes.values().filter_map(|node| node.record.spec.zone.clone()).collect();
        if !known.contains(zone) {
            return Err(AdminError::NoZone { zone: zone.clone(), known });
        }
        let inside = |node: &&NodeState| node.record.spec.zone.as_ref() == Some(zone) && !node.record.ended;
        let nodes: Vec<_> = self.members.nodes.values().filter(inside).collect();
        if nodes.is_empty() {
            return Err(AdminError::Refused {
                problem: format!("every node of zone {zone} is dead or has left"),
                way_out: "there is nothing to drain: remove them, or start them again".into(),
            });
        }
        self.drain(at, nodes, reason, max_down)
    }

    fn drain(
        &self,
        at: Moment,
        nodes: Vec<&NodeState>,
        reason: String,
        max_down: Option<u32>,
    ) -> Result<Intent, AdminError> {
        if max_down == Some(0) {
            return Err(AdminError::Invalid {
                problem: "with max_down 0 no drain would ever begin".into(),
                way_out: "give 1 or more, or none for no limit".into(),
            });
        }
        let drained: Vec<NodeId> = nodes.iter().map(|node| node.record.spec.id.clone()).collect();
        let mut effects = Vec::new();
        for node in &nodes {
            let mut record = node.record.clone();
            let before = record.drain.as_ref();
            let asked_ms = before.map_or(at.wall_ms, |drain| drain.asked_ms);
            let began_with = before.and_then(|drain| drain.began_with);
            record.drain = Some(Drain { reason: reason.clone(), asked_ms, max_down, began_with });
            effects.push(Effect::Node(record));
        }
        let held: usize = nodes.iter().map(|node| self.needed(node).len()).sum();
        let names: Vec<_> = drained.iter().map(NodeId::as_str).collect();
        let summary = format!("drain {} ({})", names.join(", "), counted(held, "replica"));
        let warnings = self.unplaceable(at, &drained);
        Ok(Intent { warnings, drains: drained, ..Intent::new(summary, effects) })
    }

    /// Warnings about replicas that no node could take if none of `drained` takes any.
    fn unplaceable(&self, at: Moment, drained: &[NodeId]) -> Vec<String> {
        let nodes = drained.iter().filter_map(|id| self.members.get(id));
        let held = nodes.flat_map(|node| self.needed(node).into_iter().map(move |held| (node, held)));
        // A replica that already moves needs no other node.
        let stays = |shard: &Shard, replica: &Replica| {
            replica.state.is_staying()
                && !shard.replicas.iter().any(|r| r.replaces() == Some(replica.placement))
        };
        let unplaceable = held.filter(|(_, (keyspace, shard, replica))| {
            // A node that another replica of the shard leaves will have room soon.
            let freed = shard
                .replicas
                .iter()
                .filter(|r| !r.state.is_staying())
                .filter_map(|r| self.members.get(&r.node));
            let freed =
                freed.filter(|node| node.accepts(at.now, &self.settings) && keyspace.allows(shard.id, node));
            let mut takers = self.candidates(at, keyspace, shard, Some(replica)).chain(freed);
            stays(shard, replica) && !takers.any(|other| !drained.contains(&other.record.spec.id))
        });
        let mut counted: BTreeMap<(&NodeId, &KeyspaceName), Vec<ShardId>> = BTreeMap::new();
        for (node, (keyspace, shard, _)) in unplaceable {
            let key = (&node.record.spec.id, &keyspace.record.keyspace.name);
            counted.entry(key).or_default().push(shard.id);
        }
        let sentence = |((node, keyspace), shards): ((&NodeId, &KeyspaceName), Vec<ShardId>)| {
            format!(
                "no node could take {} from {node}: add a node, or relax its constraints; the drain waits for that",
                some_shards(keyspace, &shards)
            )
        };
        counted.into_iter().take(limits::COMPLAINTS).map(sentence).collect()
    }

    pub(super) fn undrain_node(&self, id: &NodeId) -> Result<Intent, AdminError> {
        let mut record = self.node(id)?.record.clone();
        if record.drain.take().is_none() {
            return Err(AdminError::Refused {
                problem: format!("node {id} is not being drained"),
                way_out: "there is nothing to undo".into(),
            });
        }
        Ok(Intent::new(format!("node {id} takes shards again"), vec![Effect::Node(record)]))
    }

    pub(super) fn undrain_zone(&self, zone: &Zone) -> Result<Intent, AdminError> {
        let known: BTreeSet<Zone> =
            self.members.nodes.values().filter_map(|node| node.record.spec.zone.clone()).collect();
        if !known.contains(zone) {
            return Err(AdminError::NoZone { zone: zone.clone(), known });
        }
        let inside = self.members.nodes.values().filter(|node| node.record.spec.zone.as_ref() == Some(zone));
        let drained = inside.filter(|node| node.record.drain.is_some());
        let records: Vec<_> = drained.map(|node| NodeRecord { drain: None, ..node.record.clone() }).collect();
        let names: Vec<_> = records.iter().map(|record| record.spec.id.as_str()).collect();
        let summary = match names.len() {
            0 => {
                return Err(AdminError::Refused {
                    problem: format!("no node of zone {zone} is being drained"),
                    way_out: "there is nothing to undo".into(),
                });
            }
            1 => format!("node {} takes shards again", names.join(", ")),
            _ => format!("nodes {} take shards again", names.join(", ")),
        };
        Ok(Intent::new(summary, records.into_iter().map(Effect::Node).collect()))
    }

    pub(super) fn remove_node(&self, at: Moment, id: &NodeId) -> Result<Intent, AdminError> {
        let node = self.node(id)?;
        let health = node.signs.health(at.now, &self.settings);
        let held = node.held();
        if !node.record.ended && held > 0 {
            return Err(AdminError::Refused {
                problem: format!("node {id} is {health} and holds {}", counted(held, "replica")),
                way_out: format!(
                    "drain it first (partage node drain {id}), or stop it and wait until it is down"
                ),
            });
        }
        if !node.former.is_empty() {
            return Err(AdminError::Conflict {
                problem: format!("an earlier process of node {id} may still hold a lease"),
                way_out: format!("try again in {} ms", self.record.longest_lease_ms),
            });
        }
        if let Some((keyspace, shard)) = self.last_copy_on(id) {
            return Err(AdminError::Refused {
                problem: format!("node {id} has the only copy of shard {shard} of keyspace {keyspace}"),
                way_out: format!(
                    "start it again with its disk; if that is lost, choose another copy (partage shard force-join \
                     {keyspace} {0}) or give all of it up (partage shard recreate {keyspace} {0})",
                    shard.0
                ),
            });
        }
        let mut intent = Intent::new(format!("forget node {id}"), vec![Effect::DropNode(id.clone())]);
        if matches!(health, Health::Up | Health::Suspect | Health::Unreachable) {
            intent.warnings.push(format!("node {id} is {health}: it comes back if its process goes on"));
        }
        let waiting = self.shards_that_wait_for(id);
        if waiting > 0 {
            let waits = shards_wait(waiting);
            intent.warnings.push(format!(
                "{waits} for it, as it may have later copies than the others since the cluster's state was restored: what \
                 only it has is missing then"
            ));
        }
        Ok(intent)
    }
}

impl Members {
    /// Removes a node and its record, and has the planner look at every keyspace.
    pub(super) fn remove(
        &mut self,
        at: Moment,
        id: &NodeId,
        keyspaces: &mut Keyspaces,
        guard: &mut PlannerGuard,
        outbox: &mut Outbox,
    ) {
        keyspaces.enqueue_replicas_of(id);
        self.nodes.remove(id);
        guard.losses.returned(id);
        outbox.changed_orders.remove(id);
        outbox.writes.push(Write::DropNode(id.clone()));
        keyspaces.plan_soon(at, 0);
    }
}
