//! The parts of the [`Problem`] that a policy is given: nodes, rules, counts and loads. [`super::survey`] puts them
//! together.

use super::super::numbered::Numbered;
use super::super::{Cluster, KeyspaceState, Moment, NodeState, ShardRule};
use super::waiting::Waiting;
use crate::base::id::{PlacementId, ShardId};
use crate::base::name::{NodeId, Zone};
use crate::base::planted::{self, Planted};
use crate::keyspace::hash::HashFunction;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Replica, Role, Shard};
use crate::keyspace::{Constraint, Keyspace, Ownership, Spread};
use crate::limits;
use crate::node::Health;
use crate::node::load::{Load, METRICS};
use crate::placement::{self, Metric, NodeIndex, NodeSet, NodeSpec, Problem, Rule, Standing, UNKNOWN_DOMAIN};
use crate::plan::Change;
use std::collections::{BTreeMap, BTreeSet};

/// A problem, and what may be done about its solution.
#[derive(Debug, Clone)]
pub(super) struct PlanningInput {
    pub(super) problem: Problem,
    /// The nodes of the problem.
    pub(super) nodes: Numbered,
    /// What was approved and had not begun when the shards were looked at.
    pub(super) waiting: Waiting,
    /// Shards whose replica count differs from the keyspace's because they are hot, not because a person
    /// said so.
    pub(super) hot: BTreeSet<ShardId>,
    /// Shards that stay as they are, and are no part of the problem.
    pub(super) fixed: Vec<ShardId>,
}

/// What the shards carry that stay as they are, whatever the policy says: those that are set aside or held back, and those
/// that wait for a copy. A plan that had them move would make room for them elsewhere, and that alone would be carried out.
#[derive(Debug, Clone)]
pub(super) struct Fixed {
    pub(super) shards: Vec<ShardId>,
    /// Loads and number of replicas, by node.
    carried: Vec<([f64; METRICS.len()], u32)>,
}

impl Fixed {
    pub(super) fn none_on(nodes: usize) -> Fixed {
        Fixed { shards: Vec::new(), carried: vec![Default::default(); nodes] }
    }

    /// Adds a shard with its replicas on nodes.
    pub(super) fn add(&mut self, shard: ShardId, on: &[NodeIndex], loads: Option<[f64; METRICS.len()]>) {
        self.shards.push(shard);
        let loads = loads.unwrap_or_default();
        for node in on {
            if let Some((sums, replicas)) = self.carried.get_mut(*node as usize) {
                sums.iter_mut().zip(loads).for_each(|(sum, load)| *sum += load);
                *replicas += 1;
            }
        }
    }
}

impl Cluster {
    /// The nodes that serve such keyspaces, in an order of the keyspace's own: a policy that breaks ties by
    /// the order of nodes then puts the first shard of each of many keyspaces on another node.
    pub(super) fn nodes_for(&self, keyspace: &Keyspace) -> Vec<&NodeState> {
        let serves =
            |node: &&NodeState| !node.record.ended && node.record.spec.kinds.contains(&keyspace.kind);
        let mut nodes: Vec<_> = self.members.nodes.values().filter(serves).collect();
        nodes
            .sort_by_cached_key(|node| hash(keyspace.name.as_str(), node.record.spec.id.as_str().as_bytes()));
        nodes
    }

    /// Nodes where a shard is not to be placed: it could not be loaded there, or a replica is still leaving.
    ///
    /// Two reasons hold only where there are nodes enough without: a node that it may just have killed; and, when
    /// the one that a replica was to hand over to has died or never begins, the replica's own node. It cannot even leave before
    /// the shard is placed elsewhere, so where there is no elsewhere it takes the shard again.
    pub(super) fn avoided<'a>(
        &self,
        at: Moment,
        keyspace: &'a KeyspaceState,
        nodes: &[&NodeState],
        specs: &[NodeSpec],
    ) -> Avoided<'a> {
        let (mut avoided, mut if_possible) = (Avoided::new(), Avoided::new());
        keyspace.overdue.avoid.keys().for_each(|(shard, node)| avoided.entry(*shard).or_default().push(node));
        for shard in keyspace.queue.unsettled.iter().filter_map(|id| keyspace.map.shard(*id)) {
            let stays = keyspace.overdue.is_taken_over(shard);
            let leaving = shard.replicas.iter().filter(|r| r.state == ReplicaState::Unload);
            let list = if stays { &mut avoided } else { &mut if_possible };
            leaving.for_each(|r| list.entry(shard.id).or_default().push(&r.node));
        }
        // A node that has the shard by now keeps it.
        let has = |(id, node): &&(ShardId, NodeId)| {
            keyspace.map.shard(*id).is_some_and(|shard| shard.staying().any(|r| r.node == *node))
        };
        let lately =
            keyspace.suspicion.crashed.iter().filter(|(_, until)| **until > at.now).map(|(crash, _)| crash);
        lately
            .filter(|crash| !has(crash))
            .for_each(|(id, node)| if_possible.entry(*id).or_default().push(node));
        for (id, more) in if_possible {
            let wanted = keyspace.wanted_replicas(id) as usize;
            let all: Vec<_> = avoided.get(&id).into_iter().flatten().copied().chain(more).collect();
            let takes = |(node, spec): &(&&NodeState, &NodeSpec)| {
                spec.standing == Standing::Accepts && !all.contains(&&spec.name) && keyspace.allows(id, node)
            };
            let stays = keyspace.map.shard(id).is_some_and(|shard| keyspace.overdue.is_taken_over(shard));
            let enough = if stays { wanted } else { 1 };
            if nodes.iter().zip(specs).filter(takes).take(enough).count() >= enough {
                avoided.insert(id, all);
            }
        }
        avoided
    }

    pub(super) fn specs<'a>(
        &self,
        at: Moment,
        keyspace: &KeyspaceState,
        nodes: &[&'a NodeState],
    ) -> Vec<NodeSpec> {
        let mut by_name: Vec<&NodeId> = nodes.iter().map(|node| &node.record.spec.id).collect();
        by_name.sort();
        let ring: BTreeMap<&NodeId, u32> = by_name.into_iter().zip(0..).collect();
        let mut domains = Domains::default();
        let spec = |node: &'a NodeState| {
            let announced = &node.record.spec;
            NodeSpec {
                name: announced.id.clone(),
                ring_index: ring[&announced.id],
                zone: domains.zone(announced.zone.as_ref()),
                rack: domains.rack(announced.zone.as_ref(), announced.rack.as_ref()),
                standing: self.standing(at, keyspace, node),
            }
        };
        nodes.iter().copied().map(spec).collect()
    }

    /// | health                            | draining or leaving | drain queued | else      |
    /// |-----------------------------------|---------------------|--------------|-----------|
    /// | up                                | `Drains`            | `Keeps`      | `Accepts` |
    /// | unknown, suspect, unreachable     | `Drains`            | `Keeps`      | `Keeps`   |
    /// | unreachable for long (`reach.rs`) | `Drains`            | `Drains`     | `Drains`  |
    /// | down, but not buried (the brake)  | `Keeps`             | `Keeps`      | `Keeps`   |
    ///
    /// One that gets no lease drains, where leases matter. On which shards of this keyspace have hung, keeps them. So does
    /// one whose disk is full, nearly full or stalled.
    fn standing(&self, at: Moment, keyspace: &KeyspaceState, node: &NodeState) -> Standing {
        match node.signs.health(at.now, &self.settings) {
            Health::Down | Health::Left => Standing::Keeps,
            _ if node.long_unreachable => Standing::Drains,
            _ if node.is_to_be_emptied() && !planted::is(Planted::L8) => Standing::Drains,
            _ if node.revoked && keyspace.record.keyspace.ownership == Ownership::Exclusive => {
                Standing::Drains
            }
            _ if node.revoked || keyspace.overdue.hangs_on(&node.record.spec.id) => Standing::Keeps,
            Health::Up if node.record.drain.is_none() && node.disk.takes_replicas() => Standing::Accepts,
            Health::Up | Health::Unknown | Health::Suspect | Health::Unreachable => Standing::Keeps,
        }
    }

    /// Whether something is under way in a shard, so that it gets nothing but missing replicas. Three replicas that leave
    /// are not waited for: one on a node without a lease, as that node may never let go of it; one that is overdue, where
    /// the leader gets no lease, and so cannot serve; and one that hands over to a leader which should long have begun to
    /// serve, as it stays until a leader serves.
    pub(super) fn is_busy(&self, keyspace: &KeyspaceState, shard: &Shard, waiting: &[&Change]) -> bool {
        let goes_on = || keyspace.queue.unsettled.contains(&shard.id) && self.is_under_way(keyspace, shard);
        !waiting.is_empty() || keyspace.queue.forming.contains_key(&shard.id) || goes_on()
    }

    fn is_under_way(&self, keyspace: &KeyspaceState, shard: &Shard) -> bool {
        let is_revoked = |replica: &Replica| self.members.get(&replica.node).is_some_and(|node| node.revoked);
        let must_move = shard.leader().is_some_and(is_revoked);
        let is_overdue = |r: &Replica| keyspace.overdue.pending_steps.is_overdue(r.placement, r.state);
        let never_lets_go = |replica: &Replica| {
            !replica.state.is_staying() && (is_revoked(replica) || must_move && is_overdue(replica))
        };
        let is_hung = keyspace.overdue.has_hung_leader(shard);
        let waits_in_vain = |replica: &Replica| is_hung && replica.state == ReplicaState::Unload;
        let goes_on = |r: &Replica| !never_lets_go(r) && !waits_in_vain(r);
        shard.replicas.iter().any(|r| r.state != ReplicaState::Live && goes_on(r))
            || shard.leader().is_none()
            || !shard.is_serving()
    }
}

/// Zones and racks, numbered as they come.
#[derive(Default)]
struct Domains<'a> {
    zones: BTreeMap<&'a Zone, u32>,
    racks: BTreeMap<(Option<&'a Zone>, &'a Zone), u32>,
}

impl<'a> Domains<'a> {
    fn zone(&mut self, zone: Option<&'a Zone>) -> u32 {
        let next = self.zones.len() as u32;
        zone.map_or(UNKNOWN_DOMAIN, |zone| *self.zones.entry(zone).or_insert(next))
    }

    fn rack(&mut self, zone: Option<&'a Zone>, rack: Option<&'a Zone>) -> u32 {
        let next = self.racks.len() as u32;
        rack.map_or(UNKNOWN_DOMAIN, |rack| *self.racks.entry((zone, rack)).or_insert(next))
    }
}

pub(super) fn hash(keyspace: &str, of: &[u8]) -> u64 {
    HashFunction::Xxh3_64.scatter(&[keyspace.as_bytes(), &[0], of].concat())
}

/// The replicas of a shard when everything under way has arrived, the leader first.
pub(super) fn expected<'a>(
    shard: &'a Shard,
    pending: &[&'a Change],
) -> Vec<(Option<PlacementId>, &'a NodeId)> {
    let is_replaced = |r: &&Replica| shard.staying().any(|other| other.replaces() == Some(r.placement));
    let mut staying: Vec<_> = shard.staying().filter(|r| !is_replaced(r)).collect();
    let led = |r: &&crate::keyspace::map::Replica| {
        let successor =
            r.replaces().and_then(|old| shard.replica(old)).is_some_and(|old| old.role == Role::Leader);
        r.role == Role::Leader || successor
    };
    staying.sort_by_key(|r| !led(r));
    let mut expected: Vec<_> = staying.into_iter().map(|r| (Some(r.placement), &r.node)).collect();
    for change in pending {
        match change {
            Change::Add { node, .. } => expected.push((None, node)),
            Change::Move { from, to, .. } => {
                expected.iter_mut().filter(|(p, _)| *p == Some(*from)).for_each(|slot| *slot = (None, to));
            }
            Change::Remove { placement, .. } => expected.retain(|(p, _)| *p != Some(*placement)),
            Change::Lead { placement, .. } => {
                let next = expected.iter().position(|(p, _)| *p == Some(*placement));
                next.into_iter().for_each(|at| expected[..=at].rotate_right(1));
            }
            Change::Split { .. } | Change::Merge { .. } => {}
        }
    }
    for at in (1..expected.len()).rev() {
        if expected[..at].iter().any(|(_, node)| *node == expected[at].1) {
            expected.remove(at);
        }
    }
    expected
}

/// How many replicas a shard should have.
pub(super) fn count_wanted(keyspace: &KeyspaceState, shard: ShardId, hot: Option<u32>) -> u8 {
    let rule = keyspace.record.rules.get(&shard);
    let own = rule.and_then(|rule| rule.replicas).or(hot);
    own.unwrap_or(keyspace.record.keyspace.replicas).min(limits::REPLICAS as u32) as u8
}

/// The metrics that matter and what one replica of each shard costs in them. A metric is left out while
/// there is so little of it that evening it out would be moves for nothing.
///
/// `beside` is what other keyspaces carry on each node. It counts in every measured metric; and where it does,
/// an even number of replicas counts for less. What is `fixed` counts in all metrics.
pub(super) fn loads(
    measured: &[Option<[f64; METRICS.len()]>],
    beside: &[[f64; METRICS.len()]],
    fixed: &Fixed,
) -> (Vec<Metric>, Vec<f64>, Vec<f64>) {
    let reports = measured.iter().flatten().count().max(1) as f64;
    let sums = (0..METRICS.len()).map(|m| measured.iter().flatten().map(|load| load[m]).sum::<f64>());
    let sums: Vec<f64> = sums.collect();
    let matters = |m: &usize| sums[*m] / beside.len().max(1) as f64 >= limits::LOAD_FLOORS[*m];
    let used: Vec<usize> = (0..METRICS.len()).filter(matters).collect();
    let mut metrics: Vec<Metric> = used.iter().map(|m| metric(METRICS[*m], limits::LOAD_TOLERANCE)).collect();
    let is_beside = used.iter().any(|m| beside.iter().any(|loads| loads[*m] > 0.0));
    let tolerance = if is_beside { limits::COUNT_TOLERANCE_BESIDE } else { limits::COUNT_TOLERANCE };
    metrics.push(metric("replicas", tolerance));
    let on = |(beside, (loads, replicas)): (&[f64; METRICS.len()], &([f64; METRICS.len()], u32))| {
        let sums = used.iter().map(|m| beside[*m] + loads[*m]);
        sums.chain([f64::from(*replicas)]).collect::<Vec<_>>()
    };
    let background = match is_beside || !fixed.shards.is_empty() {
        true => beside.iter().zip(&fixed.carried).flat_map(on).collect(),
        false => vec![],
    };
    let mut loads = Vec::with_capacity(measured.len() * metrics.len());
    for load in measured {
        // What has not been measured yet is taken for average.
        loads.extend(used.iter().map(|m| load.map_or(sums[*m] / reports, |load| load[*m])));
        loads.push(1.0);
    }
    (metrics, loads, background)
}

fn metric(name: &str, tolerance: f64) -> Metric {
    Metric { name: name.into(), tolerance, limit: None }
}

/// The mean over the replicas of a shard that have reported.
pub(super) fn measured(keyspace: &KeyspaceState, shard: &Shard) -> Option<[f64; METRICS.len()]> {
    let reported = shard.readable().filter_map(|r| keyspace.observed.get(&r.placement)?.load());
    mean(&reported.collect::<Vec<_>>())
}

/// The mean of loads, if there is any.
pub(super) fn mean(loads: &[&Load]) -> Option<[f64; METRICS.len()]> {
    let mut sum = [0.0; METRICS.len()];
    for load in loads {
        sum.iter_mut().zip(load.metrics()).for_each(|(sum, value)| *sum += value);
    }
    (!loads.is_empty()).then(|| sum.map(|sum| sum / loads.len() as f64))
}

/// The nodes that a shard is kept off, by shard.
pub(super) type Avoided<'a> = BTreeMap<ShardId, Vec<&'a NodeId>>;

/// What a rule is made from: shards with the same parts share it.
type RuleParts<'a> = (Option<&'a Constraint>, Vec<&'a NodeId>);

/// The rules, and the shards that follow another than the first.
pub(super) fn rules<'a>(
    keyspace: &'a KeyspaceState,
    nodes: &[&NodeState],
    avoided: &Avoided<'a>,
) -> (Vec<Rule>, BTreeMap<ShardId, u32>) {
    let mut rules = vec![rule(keyspace, &(None, vec![]), nodes)];
    let mut known: Vec<(RuleParts<'_>, u32)> = Vec::new();
    let special: BTreeSet<ShardId> = keyspace.record.rules.keys().chain(avoided.keys()).copied().collect();
    let mut rule_of = BTreeMap::new();
    for id in special {
        let own = keyspace.record.rules.get(&id).map(|rule: &ShardRule| &rule.constraint);
        let own = own.filter(|own| **own != Constraint::default());
        let parts = (own, avoided.get(&id).cloned().unwrap_or_default());
        if parts == (None, vec![]) || keyspace.map.shard(id).is_none_or(|shard| !shard.is_serving()) {
            continue;
        }
        let number = known.iter().find(|(other, _)| *other == parts).map(|(_, number)| *number);
        let number = number.unwrap_or_else(|| {
            rules.push(rule(keyspace, &parts, nodes));
            known.push((parts, rules.len() as u32 - 1));
            rules.len() as u32 - 1
        });
        rule_of.insert(id, number);
    }
    (rules, rule_of)
}

fn rule(keyspace: &KeyspaceState, (own, avoid): &RuleParts<'_>, nodes: &[&NodeState]) -> Rule {
    let settings = &keyspace.record.keyspace;
    let constraints: Vec<&Constraint> = std::iter::once(&settings.constraint).chain(*own).collect();
    let unbound = constraints.iter().all(|c| **c == Constraint::default()) && avoid.is_empty();
    let allowed = NodeSet::of(nodes.len(), |at| {
        let spec = &nodes[at as usize].record.spec;
        let fits = |c: &&Constraint| {
            (c.pinned.is_empty() || c.pinned.contains(&spec.id))
                && !c.excluded.contains(&spec.id)
                && c.labels.is_subset(&spec.labels)
        };
        constraints.iter().all(fits) && !avoid.contains(&&spec.id)
    });
    let spread = |soft, hard| match settings.spread {
        spread if spread == hard => placement::Spread::Hard,
        spread if spread == soft => placement::Spread::Soft,
        _ => placement::Spread::Ignore,
    };
    Rule {
        nodes: (!unbound).then_some(allowed),
        zone: spread(Spread::Zone, Spread::ZoneStrict),
        rack: spread(Spread::Rack, Spread::RackStrict),
        share_node: false,
    }
}
