//! Leaders spread over the nodes that hold live replicas: [`super::even`] says which shards another node should lead. The
//! replica that is ready first leads first, and a node that comes back leads nothing, so after a first placement or a repair one
//! node may lead nearly everything; handing the lead over among live replicas moves no data.
//!
//! Nothing of it is remembered, so the next coordinator goes on with it: a node that leads nothing, as its disk was full, gets
//! leads as any node that leads too little.
//!
//! | hysteresis | |
//! |---|---|
//! | it begins | when the number of shards that a node leads, in the keyspace or in all replicated ones, differs from its share by one or more and by a tenth of it or more; in keyspaces that are not replicated, when one leads far too much ([`super::even`]) |
//! | it waits | while a shard settles; in replicated keyspaces also until the map has not changed for [`limits::LEADS_CALM_MS`], and every node was heard |
//! | no lead goes | to a node that is closed to what is new, or where shards hang; to a replica that is not in sync, or, of a replicated keyspace, does not serve |
//! | a shard keeps its leader | while a member of it is not in sync; while its leader is one that a person has chosen, as long as the plan of that is kept |
//! | at once | no more than the keyspace may move at once |

use super::super::numbered::Numbered;
use super::super::{Cluster, KeyspaceState, Moment};
use super::changes::DesiredChanges;
use super::even::{Because, Leads, Node};
use crate::base::count::counted;
use crate::base::id::{PlacementId, ShardId};
use crate::base::name::NodeId;
use crate::base::time::Millis;
use crate::keyspace::map::{Replica, Shard};
use crate::keyspace::{Mode, Ownership};
use crate::limits;
use crate::plan::{Change, Origin, Plan, Planned, Status};
use std::collections::BTreeMap;

impl Cluster {
    /// Adds the hand-overs that spread the leaders of a keyspace, if nothing else should change there.
    pub(super) fn spread_leaders(&self, at: Moment, keyspace: &KeyspaceState, desired: &mut DesiredChanges) {
        let is_replicated = keyspace.record.keyspace.ownership == Ownership::Replicated;
        let is_calm = !is_replicated || self.leads_rest_from(keyspace) <= at.now;
        if !desired.is_empty() || !keyspace.queue.unsettled.is_empty() || !is_calm {
            desired.leads_wait = is_replicated;
            return;
        }
        let named: Vec<(&NodeId, f64)> =
            keyspace.hosted.nodes().filter_map(|id| Some((id, self.may_lead(at, keyspace, id)?))).collect();
        let nodes: Numbered = named.iter().map(|(id, _)| *id).collect();
        let beside = |id: &NodeId| match is_replicated {
            true => self.keyspaces.carried.leads_without(&keyspace.planning.footprint, id),
            false => 0,
        };
        let of = |(id, capacity): &(&NodeId, f64)| Node { capacity: *capacity, own: 0, beside: beside(id) };
        let mut leads = Leads { nodes: named.iter().map(of).collect(), shards: Vec::new() };
        let led = |shard: &Shard| shard.leader().and_then(|leader| nodes.of(&leader.node));
        let serving = || keyspace.map.shards().filter(|shard| shard.is_serving());
        serving().filter_map(led).for_each(|leader| leads.nodes[leader as usize].own += 1);
        if !(if is_replicated { leads.are_uneven() } else { leads.are_far_from_even() }) {
            return;
        }
        let (chosen, mut shards) = (self.leaders_chosen(keyspace), Vec::new());
        for shard in serving() {
            let (Some(leader), Some(number)) = (shard.leader(), led(shard)) else { continue };
            if chosen.get(&shard.id) == Some(&leader.placement) {
                continue;
            }
            if !is_whole(shard) {
                desired.leads_wait = true;
                continue;
            }
            let mut able = vec![(number, leader.placement)];
            let others = self.successors(keyspace, shard, leader);
            able.extend(others.filter_map(|other| Some((nodes.of(&other.node)?, other.placement))));
            shards.push((shard.id, able));
        }
        let able =
            |(_, able): &(ShardId, Vec<(u32, PlacementId)>)| able.iter().map(|(number, _)| *number).collect();
        leads.shards = shards.iter().map(able).collect();
        let most = match keyspace.record.keyspace.mode {
            Mode::Automatic => keyspace.record.keyspace.throttle.moves.max(1) as usize,
            // A person is asked once, about all of it.
            Mode::Suggested | Mode::Manual => usize::MAX,
        };
        let transfers = leads.even_out(most, limits::LEADS_SEARCHED);
        let planned = transfers.iter().filter_map(|transfer| {
            let (shard, able) = &shards[transfer.shard];
            let (_, placement) = able.iter().find(|(number, _)| *number == transfer.to)?;
            let reason = reason(&nodes, &transfer.because)?;
            Some(Planned::new(Change::Lead { shard: *shard, placement: *placement }, reason))
        });
        desired.rebalance.extend(planned);
    }

    /// The capacity of a node that may lead more.
    fn may_lead(&self, at: Moment, keyspace: &KeyspaceState, id: &NodeId) -> Option<f64> {
        let node = self.members.get(id)?;
        let capacity = node.record.spec.capacity;
        let may = self.closed_to_leads(at, id).is_none() && !keyspace.overdue.hangs_on(id) && capacity > 0.0;
        may.then_some(capacity)
    }

    /// The replicas that could lead a shard at once, in the place of its leader.
    fn successors<'a>(
        &'a self,
        keyspace: &'a KeyspaceState,
        shard: &'a Shard,
        leader: &'a Replica,
    ) -> impl Iterator<Item = &'a Replica> {
        let runs = move |r: &Replica| self.members.get(&r.node).is_some_and(|node| node.runs_replica(r));
        let others = shard.copies().filter(|r| r.placement != leader.placement);
        // Elsewhere a hand-over waits until it serves.
        let is_replicated = keyspace.record.keyspace.ownership == Ownership::Replicated;
        others.filter(move |r| (!is_replicated || keyspace.serves(r.placement)) && runs(r))
    }

    /// From when on leadership is spread, if the map stays as it is.
    pub(super) fn leads_rest_from(&self, keyspace: &KeyspaceState) -> Millis {
        keyspace.planning.changed_at.max(self.times.started) + limits::LEADS_CALM_MS
    }

    /// The leaders that people have chosen, as far as the plans of that are kept.
    fn leaders_chosen(&self, keyspace: &KeyspaceState) -> BTreeMap<ShardId, PlacementId> {
        let name = &keyspace.record.keyspace.name;
        let is_carried_out = |plan: &Plan| matches!(plan.status, Status::Approved | Status::Finished);
        let by_people = self.plans.by_id.values().filter(|plan| {
            plan.keyspace == *name && matches!(plan.origin, Origin::Person(_)) && is_carried_out(plan)
        });
        let leads = |planned: &Planned| match planned.change {
            Change::Lead { shard, placement } => Some((shard, placement)),
            _ => None,
        };
        by_people.flat_map(|plan| plan.changes.iter().filter_map(leads)).collect()
    }
}

impl KeyspaceState {
    /// A run of the planner has found whether changes of leaders wait. It looks again at `rest_from`, when the map has been as
    /// it is for long enough.
    pub(super) fn note_leads(&mut self, at: Moment, leads_wait: bool, rest_from: Millis) {
        self.planning.leads_wait = leads_wait;
        if leads_wait && at.now < rest_from {
            self.planning.plan_due = self.planning.plan_due.min(rest_from);
        }
    }

    /// The map has changed, so changes of leaders wait for a while, and for what settles.
    pub(in crate::cluster) fn note_map_changed(&mut self, at: Moment) {
        self.planning.changed_at = at.now;
        if self.planning.leads_wait && self.queue.unsettled.is_empty() {
            self.planning.plan_due = self.planning.plan_due.min(at.now + limits::LEADS_CALM_MS);
        }
    }
}

/// Whether each member is in sync. One that is not catches up, or is away: then who leads is looked at when that is over.
fn is_whole(shard: &Shard) -> bool {
    !shard.has_in_sync_set() || shard.members().all(|member| member.in_sync)
}

fn reason(nodes: &Numbered, because: &Because) -> Option<String> {
    let Because { many: (from, many), few: (to, few), in_all } = because;
    let (from, to, many) = (nodes.name(*from)?, nodes.name(*to)?, counted(*many, "shard"));
    let of = if *in_all { " of all replicated keyspaces" } else { "" };
    Some(format!("{from} leads {many}{of} and {to} only {few}"))
}
