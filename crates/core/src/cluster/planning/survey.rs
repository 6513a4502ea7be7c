//! What a run of the planner gathers of its keyspace, shard by shard, until it is a [`Problem`] for the policy.
//!
//! The policy sees the keyspace as it will be when everything that is under way has arrived: a replica that
//! is being moved counts on the node it goes to, one that waits in an approved plan counts already. So two
//! runs never ask for the same thing twice.
//!
//! The map changes meanwhile. Nodes, rules and what is approved are noted at the beginning, each shard when its turn comes. What
//! a shard was then is in the problem, so that [`super::changes`] can tell whether it still is so.

use super::super::numbered::Numbered;
use super::super::{Cluster, KeyspaceState, Moment};
use super::problem::{self, Fixed, PlanningInput};
use super::waiting::Waiting;
use crate::base::id::{PlanId, ShardId};
use crate::base::name::NodeId;
use crate::keyspace::map::{Replica, Shard};
use crate::node::load::{Load, METRICS};
use crate::placement::{self, NodeSpec, Placement, Problem, Rule, Standing};
use crate::plan::Change;
use crate::plan::handover;
use crate::plan::reshard::{Carried, Proposals};
use std::collections::BTreeMap;

/// What a run of the planner has gathered of its keyspace so far. See the module.
#[derive(Debug, Clone)]
pub(super) struct Survey {
    /// The nodes, in the keyspace's own order.
    nodes: Numbered,
    specs: Vec<NodeSpec>,
    capacities: Vec<f64>,
    /// What other keyspaces carry on each.
    beside: Vec<[f64; METRICS.len()]>,
    /// Shards that stay as they are, and what they carry.
    fixed: Fixed,
    rules: Vec<Rule>,
    /// Shards that follow another rule than the first.
    rule_of: BTreeMap<ShardId, u32>,
    waiting: Waiting,
    seed: u64,
    /// The first shard that has not been looked at; none when all have.
    next: Option<ShardId>,
    shards: Vec<ShardId>,
    hashes: Vec<u64>,
    current: Placement,
    replicas: Vec<u8>,
    measured: Vec<Option<[f64; METRICS.len()]>>,
    bytes: Vec<u64>,
    /// The loads of the shards may make it cut and join them.
    reshapes: bool,
    /// What shards carry that may be cut or joined.
    pub(super) carried: Vec<(ShardId, Carried)>,
    /// Shards that have more replicas than their keyspace says, and of which it cannot be told now whether they are hot: so
    /// many of their replicas may stay.
    unjudged: Vec<(u32, Unjudged)>,
    pub(super) heard: KnownLoads,
    /// Shards with read replicas, of which one is to become a member.
    pub(super) short: Vec<ShardId>,
}

/// Why it cannot be told whether a shard is hot, and how many of its replicas are on nodes that are not to be emptied.
#[derive(Debug, Clone, Copy)]
struct Unjudged {
    /// None of its replicas has reported.
    is_unheard: bool,
    staying: u32,
}

/// Of which live replicas the loads are known.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownLoads {
    /// Of one at least.
    pub(super) any: bool,
    /// Of all of them.
    pub(super) all: bool,
}

impl Survey {
    /// Whether every shard has been looked at.
    pub(super) fn is_over(&self) -> bool {
        self.next.is_none()
    }
}

impl Cluster {
    /// Begins to gather what the policy of `keyspace` is asked.
    pub(super) fn survey(&self, at: Moment, keyspace: &KeyspaceState) -> Survey {
        let name = keyspace.record.keyspace.name.as_str();
        let nodes = self.nodes_for(&keyspace.record.keyspace);
        let specs = self.specs(at, keyspace, &nodes);
        let avoided = self.avoided(at, keyspace, &nodes, &specs);
        let (rules, rule_of) = problem::rules(keyspace, &nodes, &avoided);
        let beside = nodes
            .iter()
            .map(|node| self.keyspaces.carried.without(&keyspace.planning.footprint, &node.record.spec.id));
        let shards = keyspace.map.len();
        Survey {
            beside: beside.collect(),
            fixed: Fixed::none_on(nodes.len()),
            capacities: nodes.iter().map(|node| node.record.spec.capacity).collect(),
            nodes: nodes.iter().map(|node| &node.record.spec.id).collect(),
            specs,
            rules,
            rule_of,
            waiting: self.plans.waiting(keyspace, (PlanId::default(), self.record.next_plan)),
            seed: problem::hash(name, &keyspace.map.generation().sequence.to_le_bytes()),
            next: Some(ShardId(0)),
            shards: Vec::with_capacity(shards),
            hashes: Vec::with_capacity(shards),
            current: Placement::with_capacity(shards, shards),
            replicas: Vec::with_capacity(shards),
            measured: Vec::with_capacity(shards),
            bytes: Vec::with_capacity(shards),
            reshapes: keyspace.may_reshape(),
            carried: Vec::new(),
            unjudged: Vec::new(),
            heard: KnownLoads { any: false, all: true },
            short: Vec::new(),
        }
    }

    /// Goes on with it for about `most` units of work; returns how many it took. A unit is a shard, or a replica.
    pub(super) fn go_on(
        &self,
        at: Moment,
        keyspace: &KeyspaceState,
        survey: &mut Survey,
        most: usize,
    ) -> usize {
        let Some(from) = survey.next else { return 0 };
        let mut work = 0;
        survey.next = None;
        for shard in keyspace.map.shards_from(from) {
            if work >= most {
                survey.next = Some(shard.id);
                break;
            }
            work += 1 + shard.replicas.len();
            if shard.is_serving() {
                self.look_at(at, keyspace, survey, shard);
            }
        }
        work
    }

    fn look_at(&self, at: Moment, keyspace: &KeyspaceState, survey: &mut Survey, shard: &Shard) {
        let waiting = self.plans.waiting_for(&survey.waiting, shard.id);
        let known = known(&survey.nodes, shard, &waiting);
        if keyspace.is_withheld(shard.id) || keyspace.waits_for_copy(&self.members.nodes, shard) {
            survey.fixed.add(shard.id, &known, problem::measured(keyspace, shard));
            return;
        }
        if shard.staying().any(Replica::is_read_replica)
            && handover::lacks_member(shard, &self.view(keyspace, at.now))
        {
            survey.short.push(shard.id);
        }
        let name = keyspace.record.keyspace.name.as_str();
        survey.shards.push(shard.id);
        survey.hashes.push(problem::hash(name, &shard.id.0.to_le_bytes()));
        survey.replicas.push(self.replicas_for(at, keyspace, shard, known.len(), None));
        let index = survey.current.shards() as u32;
        let stays = |node: &&u32| survey.specs[**node as usize].standing != Standing::Drains;
        let staying = known.iter().filter(stays).count() as u32;
        survey.current.push(known);
        let mut loads: Vec<&Load> = Vec::with_capacity(shard.replicas.len());
        for replica in shard.readable() {
            let load = keyspace.observed.get(&replica.placement).and_then(|seen| seen.load());
            survey.heard.any |= load.is_some();
            survey.heard.all &= load.is_some();
            loads.extend(load);
        }
        survey.measured.push(problem::mean(&loads));
        survey.bytes.push(loads.iter().map(|load| load.size_bytes).max().unwrap_or(0).max(1));
        if !survey.reshapes {
            return;
        }
        let is_unheard = loads.is_empty();
        let free = !is_unheard && !self.is_busy(keyspace, shard, &waiting);
        match free.then(|| self.carried_by(at, keyspace, shard)).flatten() {
            Some(carried) => survey.carried.push((shard.id, carried)),
            None if staying > keyspace.record.keyspace.replicas => {
                survey.unjudged.push((index, Unjudged { is_unheard, staying }));
            }
            None => {}
        }
    }

    /// The replicas that a shard should have, by what `has` already and by the count of a hot shard.
    fn replicas_for(
        &self,
        at: Moment,
        keyspace: &KeyspaceState,
        shard: &Shard,
        has: usize,
        hot: Option<u32>,
    ) -> u8 {
        let away = self.waited_for(at, keyspace, shard);
        let count = problem::count_wanted(keyspace, shard.id, hot);
        // What is waited for is not replaced.
        count.saturating_sub(away as u8).max(count.min(has as u8))
    }

    /// How many replicas the policy would be asked for now, by shard.
    #[cfg(test)]
    pub(in crate::cluster) fn replicas_asked_for(
        &self,
        at: Moment,
        keyspace: &KeyspaceState,
    ) -> BTreeMap<ShardId, u8> {
        let mut survey = self.survey(at, keyspace);
        self.go_on(at, keyspace, &mut survey, usize::MAX);
        let problem = self.planning_input(at, keyspace, survey, &Proposals::default()).problem;
        problem.shards.into_iter().zip(problem.replicas).collect()
    }

    /// How many replicas those shards keep, by index, of which it cannot be told now whether they are hot: what they have is the
    /// memory of that ([`crate::plan::reshard::hot`]). A shard of which something moves would else have too many for as long, and
    /// others would move into the room that its replicas seem to leave.
    fn kept_replicas(&self, at: Moment, keyspace: &KeyspaceState, survey: &Survey) -> Vec<(usize, u32)> {
        let settings = &keyspace.record.keyspace;
        let are_awaited = self.loads_awaited_until(at, keyspace, survey.heard).is_some();
        let kept = survey.unjudged.iter().filter(|(_, unjudged)| are_awaited || !unjudged.is_unheard);
        let count = |staying: u32| staying.min(settings.resharding.max_replicas).max(settings.replicas);
        kept.map(|(index, unjudged)| (*index as usize, count(unjudged.staying))).collect()
    }

    /// Ends it: what the policy is asked. `proposals` say how many replicas hot shards get.
    pub(super) fn planning_input(
        &self,
        at: Moment,
        keyspace: &KeyspaceState,
        mut survey: Survey,
        proposals: &Proposals,
    ) -> PlanningInput {
        let of_hot = proposals.replicas.iter().filter_map(|(id, count)| {
            let index = survey.shards.binary_search(id).ok()?;
            Some((index, *count))
        });
        for (index, count) in of_hot.chain(self.kept_replicas(at, keyspace, &survey)) {
            let Some(shard) = keyspace.map.shard(survey.shards[index]) else { continue };
            let has = survey.current.of(index as u32).len();
            survey.replicas[index] = self.replicas_for(at, keyspace, shard, has, Some(count));
        }
        let (metrics, loads, background) = problem::loads(&survey.measured, &survey.beside, &survey.fixed);
        let mut rule_of = vec![0; survey.shards.len()];
        for (id, rule) in &survey.rule_of {
            if let Ok(index) = survey.shards.binary_search(id) {
                rule_of[index] = *rule;
            }
        }
        let capacities = survey.capacities.iter().flat_map(|capacity| vec![*capacity; metrics.len()]);
        let problem = Problem {
            capacities: capacities.collect(),
            nodes: survey.specs,
            shards: survey.shards,
            hashes: survey.hashes,
            bytes: survey.bytes,
            metrics,
            replicas: survey.replicas,
            loads,
            background,
            rule_of,
            rules: survey.rules,
            current: survey.current,
            budget: None,
            seed: survey.seed,
            settings: placement::Settings::default(),
        };
        PlanningInput {
            problem,
            nodes: survey.nodes,
            waiting: survey.waiting,
            hot: proposals.replicas.keys().copied().collect(),
            fixed: survey.fixed.shards,
        }
    }
}

/// The nodes of a shard when everything under way has arrived, as far as they count, the leader's first.
pub(super) fn known(nodes: &Numbered, shard: &Shard, waiting: &[&Change]) -> Vec<u32> {
    // Nothing is under way for most shards, most of the time.
    if waiting.is_empty() && shard.is_settled() && shard.replicas.iter().all(|r| r.replaces().is_none()) {
        let leader = shard.leader().map(|r| &r.node);
        let followers = shard.replicas.iter().map(|r| &r.node).filter(|node| Some(*node) != leader);
        return leader.into_iter().chain(followers).filter_map(|node| nodes.of(node)).collect();
    }
    let expected = problem::expected(shard, waiting);
    expected.iter().filter_map(|(_, node): &(_, &NodeId)| nodes.of(node)).collect()
}
