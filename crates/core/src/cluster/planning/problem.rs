//! From what the coordinator sees of one keyspace to the [`Problem`] that its policy is given.
//!
//! The policy sees the keyspace as it will be when everything that is under way has arrived: a replica that
//! is being moved counts on the node it goes to, one that waits in an approved plan counts already. So two
//! runs never ask for the same thing twice. What is under way is marked busy, and gets no second change.

use super::super::{Cluster, KeyspaceState, Moment, NodeState, ShardRule};
use crate::hash::HashFunction;
use crate::id::{PlacementId, ShardId};
use crate::keyspace::{Constraint, Keyspace, Ownership, Spread};
use crate::lifecycle::ReplicaState;
use crate::limits;
use crate::load::METRICS;
use crate::map::{Replica, Role, Shard, Stage};
use crate::name::{NodeId, Zone};
use crate::node::Health;
use crate::placement::{self, Metric, NodeSet, NodeSpec, Placement, Problem, Rule, Standing, UNKNOWN_DOMAIN};
use crate::plan::{Change, Progress, Status};
use crate::planted::{self, Planted};
use std::collections::{BTreeMap, BTreeSet};

/// A problem, and what may be done about its solution.
pub(super) struct Outlook {
    pub(super) problem: Problem,
    /// Shards with something under way or waiting in an approved plan: they get no move.
    pub(super) busy: BTreeSet<ShardId>,
    /// Shards whose replica count differs from the keyspace's because they are hot, not because a person
    /// said so.
    pub(super) hot: BTreeSet<ShardId>,
}

/// The changes of approved plans that have not begun, by shard.
type Pending<'a> = BTreeMap<ShardId, Vec<&'a Change>>;

impl Cluster {
    /// What the policy of `keyspace` is asked. `wanted` are replica counts of read-hot shards.
    pub(super) fn outlook(
        &self,
        at: Moment,
        keyspace: &KeyspaceState,
        wanted: &BTreeMap<ShardId, u32>,
    ) -> Outlook {
        let name = keyspace.record.keyspace.name.as_str();
        let nodes = self.nodes_for(&keyspace.record.keyspace);
        let index: BTreeMap<&NodeId, u32> =
            nodes.iter().zip(0..).map(|(node, at)| (&node.record.spec.id, at)).collect();
        let pending = self.pending(keyspace);
        let mut busy = self.busy(keyspace);
        let shards: Vec<&Shard> = keyspace.map.shards().filter(|shard| shard.is_serving()).collect();
        let mut current = Placement::with_capacity(shards.len(), shards.len());
        let mut replicas = Vec::with_capacity(shards.len());
        for shard in &shards {
            let expected = expected(shard, pending.get(&shard.id).map_or(&[], Vec::as_slice));
            let known: Vec<u32> = expected.iter().filter_map(|(_, node)| index.get(node).copied()).collect();
            let away = self.waited_for(at, keyspace, shard);
            let count = count_wanted(keyspace, shard.id, known.len(), wanted);
            // What is waited for is not replaced; and without a copy there is nothing to load from.
            replicas.push(match keyspace.waits_for_copy(&self.nodes, shard) {
                true => known.len().min(limits::REPLICAS) as u8,
                false => count.saturating_sub(away as u8).max(count.min(known.len() as u8)),
            });
            current.push(known);
        }
        let beside: Vec<_> = nodes
            .iter()
            .map(|node| self.carried.without(&keyspace.footprint, &node.record.spec.id))
            .collect();
        let (metrics, loads, background) = loads(keyspace, &shards, &beside);
        let (rules, rule_of) = rules(keyspace, &shards, &nodes, &self.avoided(at, keyspace, &nodes));
        busy.extend(shards.iter().map(|shard| shard.id).filter(|id| is_set_aside(keyspace, *id)));
        let waits = shards.iter().filter(|shard| keyspace.waits_for_copy(&self.nodes, shard));
        busy.extend(waits.map(|shard| shard.id));
        let capacities = nodes.iter().flat_map(|node| vec![node.record.spec.capacity; metrics.len()]);
        let problem = Problem {
            capacities: capacities.collect(),
            nodes: self.specs(at, keyspace, &nodes),
            shards: shards.iter().map(|shard| shard.id).collect(),
            hashes: shards.iter().map(|shard| hash(name, &shard.id.0.to_le_bytes())).collect(),
            bytes: bytes(keyspace, &shards),
            metrics,
            replicas,
            loads,
            background,
            rule_of,
            rules,
            current,
            budget: None,
            seed: hash(name, &keyspace.map.generation().sequence.to_le_bytes()),
            settings: placement::Settings::default(),
        };
        Outlook { problem, busy, hot: wanted.keys().copied().collect() }
    }

    /// The nodes that serve such keyspaces, in an order of the keyspace's own: a policy that breaks ties by
    /// the order of nodes then puts the first shard of each of many keyspaces on another node.
    fn nodes_for(&self, keyspace: &Keyspace) -> Vec<&NodeState> {
        let serves =
            |node: &&NodeState| !node.record.ended && node.record.spec.kinds.contains(&keyspace.kind);
        let mut nodes: Vec<_> = self.nodes.values().filter(serves).collect();
        nodes
            .sort_by_cached_key(|node| hash(keyspace.name.as_str(), node.record.spec.id.as_str().as_bytes()));
        nodes
    }

    /// Nodes where a shard is not to be placed: it could not be loaded there, or a replica is still leaving.
    ///
    /// Two reasons hold only where there are nodes enough without: a node that it may just have killed; and, when
    /// the one that a replica was to hand over to has died, the replica's own node. It cannot even leave before
    /// the shard is placed elsewhere, so where there is no elsewhere it takes the shard again.
    fn avoided<'a>(&self, at: Moment, keyspace: &'a KeyspaceState, nodes: &[&NodeState]) -> Avoided<'a> {
        let (mut avoided, mut if_possible) = (Avoided::new(), Avoided::new());
        keyspace.avoid.keys().for_each(|(shard, node)| avoided.entry(*shard).or_default().push(node));
        for shard in keyspace.unsettled.iter().filter_map(|id| keyspace.map.shard(*id)) {
            let stays = shard.staying().next().is_some();
            let leaving = shard.replicas.iter().filter(|r| r.state == ReplicaState::Unload);
            let list = if stays { &mut avoided } else { &mut if_possible };
            leaving.for_each(|r| list.entry(shard.id).or_default().push(&r.node));
        }
        // Who has it by now keeps it.
        let has = |(id, node): &&(ShardId, NodeId)| {
            keyspace.map.shard(*id).is_some_and(|shard| shard.staying().any(|r| r.node == *node))
        };
        let lately = keyspace.crashed.iter().filter(|(_, until)| **until > at.now).map(|(crash, _)| crash);
        lately
            .filter(|crash| !has(crash))
            .for_each(|(id, node)| if_possible.entry(*id).or_default().push(node));
        for (id, more) in if_possible {
            let wanted = keyspace.wanted_replicas(id) as usize;
            let all: Vec<_> = avoided.get(&id).into_iter().flatten().copied().chain(more).collect();
            let takes = |node: &&&NodeState| {
                !all.contains(&&node.record.spec.id)
                    && keyspace.allows(id, node)
                    && self.standing(at, keyspace, node) == Standing::Accepts
            };
            let left = nodes.iter().filter(takes).count();
            let stays = keyspace.map.shard(id).is_some_and(|shard| shard.staying().next().is_some());
            if left >= if stays { wanted } else { 1 } {
                avoided.insert(id, all);
            }
        }
        avoided
    }

    fn specs<'a>(&self, at: Moment, keyspace: &KeyspaceState, nodes: &[&'a NodeState]) -> Vec<NodeSpec> {
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
    /// One that gets no lease drains, where leases matter. On which shards of this keyspace have hung, keeps them.
    fn standing(&self, at: Moment, keyspace: &KeyspaceState, node: &NodeState) -> Standing {
        match node.signs.health(at.now, &self.settings) {
            Health::Down | Health::Left => Standing::Keeps,
            _ if node.cut_off => Standing::Drains,
            _ if node.is_emptied() && !planted::is(Planted::L8) => Standing::Drains,
            _ if node.revoked && keyspace.record.keyspace.ownership == Ownership::Exclusive => {
                Standing::Drains
            }
            _ if node.revoked || keyspace.hangs_on(&node.record.spec.id) => Standing::Keeps,
            Health::Up if node.record.drain.is_none() => Standing::Accepts,
            Health::Up | Health::Unknown | Health::Suspect | Health::Unreachable => Standing::Keeps,
        }
    }

    /// Shards with something under way, or waiting in an approved plan. A replica that leaves a node without a lease is
    /// not waited for: that node may never let go of it.
    pub(super) fn busy(&self, keyspace: &KeyspaceState) -> BTreeSet<ShardId> {
        let pending = self.pending(keyspace);
        let waits = |id: &&ShardId| keyspace.map.shard(**id).is_none_or(|shard| self.is_under_way(shard));
        let under_way = keyspace.unsettled.iter().filter(waits);
        let mut busy: BTreeSet<ShardId> = under_way.chain(pending.keys()).copied().collect();
        let unsettled = keyspace.unsettled.iter().filter_map(|id| keyspace.map.shard(*id));
        let forming = unsettled.filter(|shard| matches!(shard.stage(), Stage::Forming(_)));
        busy.extend(forming.flat_map(|shard| shard.parents().iter()));
        busy
    }

    fn is_under_way(&self, shard: &Shard) -> bool {
        let never_lets_go = |replica: &Replica| {
            let leaves = !replica.state.is_staying();
            leaves && self.nodes.get(&replica.node).is_some_and(|node| node.revoked)
        };
        let goes_on = shard.replicas.iter().any(|r| r.state != ReplicaState::Live && !never_lets_go(r));
        goes_on || shard.leader().is_none() || !shard.is_serving()
    }

    pub(super) fn pending(&self, keyspace: &KeyspaceState) -> Pending<'_> {
        let name = &keyspace.record.keyspace.name;
        let approved = self.plans.values().filter(|p| p.keyspace == *name && p.status == Status::Approved);
        let waiting = approved.flat_map(|plan| &plan.changes).filter(|c| c.progress == Progress::Waiting);
        let mut pending = Pending::new();
        for change in waiting.map(|planned| &planned.change) {
            for shard in change.shards() {
                pending.entry(*shard).or_default().push(change);
            }
        }
        pending
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

fn hash(keyspace: &str, of: &[u8]) -> u64 {
    HashFunction::Xxh3_64.scatter(&[keyspace.as_bytes(), &[0], of].concat())
}

pub(super) fn is_set_aside(keyspace: &KeyspaceState, shard: ShardId) -> bool {
    keyspace.is_withheld(shard)
}

/// The replicas of a shard when everything under way has arrived, the leader first.
pub(super) fn expected<'a>(
    shard: &'a Shard,
    pending: &[&'a Change],
) -> Vec<(Option<PlacementId>, &'a NodeId)> {
    let replaced: BTreeSet<_> = shard.staying().filter_map(crate::map::Replica::replaces).collect();
    let mut staying: Vec<_> = shard.staying().filter(|r| !replaced.contains(&r.placement)).collect();
    let led = |r: &&crate::map::Replica| {
        let heir =
            r.replaces().and_then(|old| shard.replica(old)).is_some_and(|old| old.role == Role::Leader);
        r.role == Role::Leader || heir
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
            Change::Lead { .. } | Change::Split { .. } | Change::Merge { .. } => {}
        }
    }
    let mut seen = BTreeSet::new();
    expected.retain(|(_, node)| seen.insert(*node));
    expected
}

/// How many replicas a shard should have. One that is set aside keeps what it has.
fn count_wanted(keyspace: &KeyspaceState, shard: ShardId, has: usize, hot: &BTreeMap<ShardId, u32>) -> u8 {
    let rule = keyspace.record.rules.get(&shard);
    if keyspace.is_withheld(shard) {
        return has.min(limits::REPLICAS) as u8;
    }
    let own = rule.and_then(|rule| rule.replicas).or(hot.get(&shard).copied());
    own.unwrap_or(keyspace.record.keyspace.replicas).min(limits::REPLICAS as u32) as u8
}

/// The metrics that matter and what one replica of each shard costs in them. A metric is left out while
/// there is so little of it that evening it out would be moves for nothing.
///
/// `beside` is what other keyspaces carry on each node. It counts in every measured metric; and where it does,
/// an even number of replicas counts for less.
fn loads(
    keyspace: &KeyspaceState,
    shards: &[&Shard],
    beside: &[[f64; METRICS.len()]],
) -> (Vec<Metric>, Vec<f64>, Vec<f64>) {
    let measured: Vec<Option<[f64; METRICS.len()]>> =
        shards.iter().map(|shard| measured(keyspace, shard)).collect();
    let reports = measured.iter().flatten().count().max(1) as f64;
    let sums = (0..METRICS.len()).map(|m| measured.iter().flatten().map(|load| load[m]).sum::<f64>());
    let sums: Vec<f64> = sums.collect();
    let matters = |m: &usize| sums[*m] / beside.len().max(1) as f64 >= limits::LOAD_FLOORS[*m];
    let used: Vec<usize> = (0..METRICS.len()).filter(matters).collect();
    let mut metrics: Vec<Metric> = used.iter().map(|m| metric(METRICS[*m], limits::LOAD_TOLERANCE)).collect();
    let is_beside = used.iter().any(|m| beside.iter().any(|loads| loads[*m] > 0.0));
    let tolerance = if is_beside { limits::COUNT_TOLERANCE_BESIDE } else { limits::COUNT_TOLERANCE };
    metrics.push(metric("replicas", tolerance));
    let background = match is_beside {
        true => beside.iter().flat_map(|loads| used.iter().map(|m| loads[*m]).chain([0.0])).collect(),
        false => vec![],
    };
    let mut loads = Vec::with_capacity(shards.len() * metrics.len());
    for load in &measured {
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
    let reported = shard.live().filter_map(|r| keyspace.observed.get(&r.placement)?.load());
    let (mut sum, mut count) = ([0.0; METRICS.len()], 0u32);
    for load in reported {
        sum.iter_mut().zip(load.metrics()).for_each(|(sum, value)| *sum += value);
        count += 1;
    }
    (count > 0).then(|| sum.map(|sum| sum / f64::from(count)))
}

fn bytes(keyspace: &KeyspaceState, shards: &[&Shard]) -> Vec<u64> {
    shards.iter().map(|shard| keyspace.size_bytes(shard).unwrap_or(0).max(1)).collect()
}

/// The nodes that a shard is kept off, by shard.
type Avoided<'a> = BTreeMap<ShardId, Vec<&'a NodeId>>;

/// What a rule is made from: shards with the same parts share it.
type RuleParts<'a> = (Option<&'a Constraint>, Vec<&'a NodeId>);

fn rules<'a>(
    keyspace: &'a KeyspaceState,
    shards: &[&Shard],
    nodes: &[&NodeState],
    avoided: &Avoided<'a>,
) -> (Vec<Rule>, Vec<u32>) {
    let mut rules = vec![rule(keyspace, &(None, vec![]), nodes)];
    let mut known: Vec<(RuleParts<'_>, u32)> = Vec::new();
    let mut rule_of = vec![0; shards.len()];
    for (at, shard) in shards.iter().enumerate() {
        let own = keyspace.record.rules.get(&shard.id).map(|rule: &ShardRule| &rule.constraint);
        let own = own.filter(|own| **own != Constraint::default());
        let parts = (own, avoided.get(&shard.id).cloned().unwrap_or_default());
        if parts == (None, vec![]) {
            continue;
        }
        let number = known.iter().find(|(other, _)| *other == parts).map(|(_, number)| *number);
        rule_of[at] = number.unwrap_or_else(|| {
            rules.push(rule(keyspace, &parts, nodes));
            known.push((parts, rules.len() as u32 - 1));
            rules.len() as u32 - 1
        });
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
