//! Why is this key served there? The shard that holds it, who serves it and since when, the reason that was
//! given when each replica was placed, what is under way, what is in the way, and what would move it.
//!
//! Reasons are read from the plans, which are stored, so they outlive the coordinator; a replica whose plan
//! is no longer kept has none. Since when a shard is as it is is not stored: after a restart the answer is
//! "at least since the start".

use super::admin::AdminError;
use super::status::{ReplicaRow, ShardRow, Since};
use super::{Cluster, KeyspaceState, Moment, NodeState};
use crate::base::count::counted;
use crate::base::id::PlanId;
use crate::base::name::{KeyspaceName, NodeId};
use crate::keyspace::key::Key;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Replica, Role, Shard, Stage};
use crate::keyspace::{Mode, Ownership};
use crate::limits;
use crate::node::exchange::{Failure, Phase};
use crate::node::load::{Load, METRICS};
use crate::plan::handover;
use crate::plan::{Change, Plan, Progress, Status};
use std::fmt;

/// The first of what a node carries; the others are [`METRICS`].
const REPLICAS: &str = "replicas";

/// Everything about where a key is.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The keyspace in which the coordinator looked the key up.
    pub keyspace: KeyspaceName,
    /// The key that was asked about.
    pub key: Key,
    /// The name of the keyspace's placement policy.
    pub policy: String,
    /// The shard that holds the key.
    pub shard: ShardRow,
    /// For each replica of [`ShardRow::replicas`], the plan that placed it, and its reason.
    pub reasons: Vec<Option<(PlanId, String)>>,
    /// Whether the leader may act: no other replica can still own the shard.
    pub granted: bool,
    /// What would move it, with the numbers of now, one sentence each.
    pub would_move: Vec<String>,
    /// What is under way for the shard or waits in an open plan, one sentence each: moves, hand-overs, splits, merges.
    pub under_way: Vec<String>,
    /// What is in the way, and the way out, one sentence each.
    pub blocked: Vec<String>,
}

impl Cluster {
    /// Why `key` is where it is.
    pub fn explain(&self, at: Moment, name: &KeyspaceName, key: &Key) -> Result<Explanation, AdminError> {
        let keyspace = self.keyspace(name)?;
        let Some(shard) = keyspace.map.find(key.as_bytes()) else {
            return Err(AdminError::Refused {
                problem: format!("no shard of keyspace {name} holds the key {key:?}"),
                way_out: "where partitions are named, the key is the name of one: register it first".into(),
            });
        };
        let reasons = shard.replicas.iter().map(|replica| self.reason(name, shard, replica)).collect();
        let view = self.view(keyspace, at.now);
        let granted = shard.leader().is_some() && handover::is_granted(shard, &keyspace.map, &view);
        Ok(Explanation {
            keyspace: name.clone(),
            key: key.clone(),
            policy: keyspace.record.keyspace.policy.clone(),
            shard: self.shard_row(at, keyspace, shard),
            reasons,
            granted,
            would_move: self.would_move(at, keyspace, shard),
            under_way: self.under_way(keyspace, shard),
            blocked: self.blocked(at, keyspace, shard, granted),
        })
    }

    /// The latest plan that put a replica of the shard there, and the reason that it gave.
    fn reason(&self, name: &KeyspaceName, shard: &Shard, replica: &Replica) -> Option<(PlanId, String)> {
        let begun = |progress: &Progress| matches!(progress, Progress::Started | Progress::Done);
        let mine = self.plans.by_id.values().rev().filter(|plan| plan.keyspace == *name);
        let line = |plan: &Plan| {
            let mut lines = plan.changes.iter().rev();
            let found = lines.find(|p| begun(&p.progress) && places(&p.change, shard, &replica.node))?;
            Some((plan.id, found.reason.clone()))
        };
        mine.into_iter().find_map(line)
    }

    fn would_move(&self, at: Moment, keyspace: &KeyspaceState, shard: &Shard) -> Vec<String> {
        let mut told = Vec::new();
        for replica in shard.staying() {
            let Some(node) = self.members.get(&replica.node) else { continue };
            let id = &replica.node;
            match &node.record.drain {
                Some(drain) if drain.has_begun() => {
                    told.push(format!("{id} is being drained ({}): it is moved off", drain.reason));
                }
                Some(drain) => told.push(format!(
                    "{id} waits in the queue to be drained ({}): it is moved off then",
                    drain.reason
                )),
                None if node.leaving => told.push(format!("{id} wants to leave: it is moved off")),
                None => told.push(format!("a drain of {id}, or its death")),
            }
            if !keyspace.allows(shard.id, node) {
                told.push(format!("pins, labels or exclusions do not allow {id}: it is moved off"));
            }
            told.push(self.imbalance(at, keyspace, node));
        }
        told.extend(self.loads_awaited(at, keyspace));
        told
    }

    /// That the keyspace is not evened out yet, as its loads are not known.
    fn loads_awaited(&self, at: Moment, keyspace: &KeyspaceState) -> Option<String> {
        let until = self.evened_out_from(at, keyspace)?;
        let seconds = until.since(at.now).div_ceil(1000);
        Some(format!(
            "nothing is moved for balance before all nodes have reported loads, or in {seconds} s without them"
        ))
    }

    /// What a node carries of the keyspace against its share by capacity.
    fn imbalance(&self, at: Moment, keyspace: &KeyspaceState, node: &NodeState) -> String {
        let settings = &keyspace.record.keyspace;
        let takes = |n: &&NodeState| n.accepts(at.now, &self.settings) && settings.allows(&n.record.spec);
        let capacity: f64 = self.members.nodes.values().filter(takes).map(|n| n.record.spec.capacity).sum();
        let part = if capacity > 0.0 { node.record.spec.capacity / capacity } else { 1.0 };
        let (here, all) = loads(keyspace, &node.record.spec.id);
        let names = [REPLICAS].into_iter().chain(METRICS);
        let told: Vec<String> = names
            .zip(here.into_iter().zip(all))
            .filter(|(_, (_, all))| *all > 0.0)
            .map(|(what, (here, all))| {
                let carried = match what {
                    REPLICAS => counted(here.round() as u64, "replica"),
                    what => format!("{here:.0} {what}"),
                };
                format!("{carried}, {:.2} times its share of {:.1}", here / (all * part), all * part)
            })
            .collect();
        let policy = settings.policy.as_str();
        let bound = match (settings.mode, policy) {
            (Mode::Manual, _) => "mode manual moves nothing for it".to_owned(),
            (_, "work_stealing") => {
                format!("{policy} gives up what is above {} times its share", limits::STEAL_ABOVE)
            }
            (_, "balanced") => format!("{policy} gives up what is above its share and tolerance"),
            _ => format!("{policy} moves shards only when nodes come or go"),
        };
        let told = if told.is_empty() { "nothing that is measured".to_owned() } else { told.join("; ") };
        format!("balance: {} carries {told}; {bound}", node.record.spec.id)
    }

    fn under_way(&self, keyspace: &KeyspaceState, shard: &Shard) -> Vec<String> {
        let mut told = Vec::from_iter(hand_over_told(keyspace, shard));
        for replica in &shard.replicas {
            let seen = keyspace.phase_of(replica.placement);
            let node = &replica.node;
            let old = replica.replaces().and_then(|old| shard.replica(old));
            match (replica.state, old) {
                (ReplicaState::Load, Some(old)) => {
                    told.push(format!("it moves from {} to {node}, which {}", old.node, doing(seen)));
                }
                (ReplicaState::Load, None) => {
                    told.push(format!("it is loaded on {node}, which {}", doing(seen)))
                }
                (ReplicaState::Unload, _) => told.push(format!("{node} hands over, and {}", doing(seen))),
                (ReplicaState::UnloadFinal, _) => {
                    told.push(format!("{node} may delete it, and {}", doing(seen)))
                }
                (ReplicaState::Live, _) => {}
            }
        }
        let children = keyspace.map.shards().filter(|s| s.parents().contains(&shard.id));
        let forming: Vec<_> =
            children.filter(|s| matches!(s.stage(), Stage::Forming(_))).map(|s| s.id.to_string()).collect();
        if !forming.is_empty() {
            told.push(format!("it is split or merged into {}, which prepare", forming.join(", ")));
        }
        let parents: Vec<_> = shard.parents().iter().filter(|p| keyspace.map.shard(**p).is_some()).collect();
        told.extend(parents.into_iter().map(|parent| format!("its parent {parent} still closes")));
        let open =
            self.plans.by_id.values().filter(|p| p.keyspace == *keyspace.map.keyspace() && !p.is_over());
        for plan in open {
            let waits = |p: &&crate::plan::Planned| {
                p.progress == Progress::Waiting && p.change.shards().contains(&shard.id)
            };
            let lines = plan.changes.iter().filter(waits);
            told.extend(
                lines.map(|p| format!("{} ({}) is to {}: {}", plan.id, plan.status, p.change, p.reason)),
            );
        }
        told
    }

    fn blocked(&self, at: Moment, keyspace: &KeyspaceState, shard: &Shard, granted: bool) -> Vec<String> {
        let mut told = Vec::new();
        if let Some(unplaced) = self.unplaced(at, keyspace, shard, keyspace.wanted_replicas(shard.id)) {
            told.push(format!("it has {} of {} replicas: {}", unplaced.have, unplaced.want, unplaced.why));
        }
        told.extend(self.waits(at, keyspace, shard));
        match shard.leader() {
            None => told.push("no replica leads it: writes wait until a replica serves".to_owned()),
            Some(leader) if !granted => told.push(format!(
                "{} may not begin yet: a former owner has neither let go nor run out of its lease",
                leader.node
            )),
            Some(leader) if keyspace.queue.unannounced.contains(&shard.id) => told.push(format!(
                "a replica waits to load, as {}, which leads it, has not taken in that it must not acknowledge writes without it",
                leader.node
            )),
            Some(_) => {}
        }
        told.extend(refuses_writes(keyspace, shard));
        told.extend(self.without_writes(shard));
        told.extend(self.on_nearly_full_disks(shard));
        for replica in &shard.replicas {
            let Some(seen) = keyspace.observed.get(&replica.placement) else { continue };
            if let Phase::Failed(failure) = seen.phase() {
                let Failure { attempts, reason, .. } = &**failure;
                let times = counted(*attempts, "time");
                told.push(format!("on {} it failed {times}: {reason}", replica.node));
            }
        }
        told.extend(shard.replicas.iter().filter_map(|r| keyspace.slow(at, r, &self.settings)));
        told.extend(keyspace.overdue.avoided(at, shard.id).map(|(_, why)| why));
        if let Some(why) = self.brake_on(keyspace) {
            told.push(format!("the brake is on ({why}): release it when the cluster is well"));
        }
        let waits = |plan: &&Plan| {
            plan.status == Status::Suggested
                && plan.keyspace == *keyspace.map.keyspace()
                && plan.changes.iter().any(|p| p.change.shards().contains(&shard.id))
        };
        told.extend(
            self.plans
                .by_id
                .values()
                .filter(waits)
                .map(|plan| format!("{} waits for a person: partage plan approve {}", plan.id, plan.id)),
        );
        told
    }
}

/// That the leader hands the lead over, while the coordinator waits for that.
fn hand_over_told(keyspace: &KeyspaceState, shard: &Shard) -> Option<String> {
    let (leader, heir) = (shard.leader()?, shard.replica(keyspace.awaited_heir_of(shard)?)?);
    Some(format!("{} hands the lead over to {}: writes may wait for that", leader.node, heir.node))
}

/// Why a write to the shard would be refused now, where too few of its replicas are in sync.
fn refuses_writes(keyspace: &KeyspaceState, shard: &Shard) -> Option<String> {
    let settings = &keyspace.record.keyspace;
    let in_sync = shard.in_sync().count();
    let is_short = settings.ownership == Ownership::Replicated && in_sync < settings.min_in_sync as usize;
    is_short.then(|| {
        format!(
            "writes are refused: {} in sync, and the keyspace's min_in_sync is {}: bring nodes with its other replicas back, or \
             wait until new ones have caught up",
            counted(in_sync as u64, "replica"),
            settings.min_in_sync
        )
    })
}

/// Whether a change put a replica of the shard on that node.
fn places(change: &Change, shard: &Shard, node: &NodeId) -> bool {
    let child = |(bounds, nodes): &(_, Vec<NodeId>)| *bounds == shard.bounds && nodes.contains(node);
    match change {
        Change::Add { shard: id, node: to } | Change::Move { shard: id, to, .. } => {
            *id == shard.id && to == node
        }
        Change::Split { shard: parent, children } => {
            *shard.parents() == [*parent] && children.iter().any(child)
        }
        Change::Merge { shards, child: merged } => *shard.parents() == **shards && child(merged),
        Change::Remove { .. } | Change::Lead { .. } => false,
    }
}

/// Replicas and loads of the keyspace: on that node, and on all.
fn loads(keyspace: &KeyspaceState, node: &NodeId) -> ([f64; 4], [f64; 4]) {
    let (mut here, mut all) = ([0.0; 4], [0.0; 4]);
    let serving = keyspace.map.shards().filter(|shard| shard.is_serving());
    for replica in serving.flat_map(Shard::staying) {
        let load = keyspace.observed.get(&replica.placement).and_then(|seen| seen.load());
        let [requests, cpu, bytes] = load.map(Load::metrics).unwrap_or_default();
        for (at, value) in [1.0, requests, cpu, bytes].into_iter().enumerate() {
            all[at] += value;
            here[at] += if replica.node == *node { value } else { 0.0 };
        }
    }
    (here, all)
}

fn doing(phase: Option<&Phase>) -> &'static str {
    match phase {
        None => "has not reported yet",
        Some(Phase::Loading) => "is loading it",
        Some(Phase::Ready) => "is ready to serve",
        Some(Phase::Serving) => "serves it",
        Some(Phase::Unloading) => "is unloading it",
        Some(Phase::Unloaded) => "has unloaded it",
        Some(Phase::Kept) => "has unloaded it and keeps its data",
        Some(Phase::Dropped) => "has dropped it",
        Some(Phase::Failed(_)) => "failed at it",
    }
}

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Since::At(ms) => write!(f, "since {ms} ms"),
            Since::AtLeast(ms) => write!(f, "since {ms} ms or longer"),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = &self.shard;
        writeln!(
            f,
            "key {:?} of keyspace {} is in shard {} {}",
            self.key, self.keyspace, row.shard, row.bounds
        )?;
        writeln!(f, "epoch {}, {}; {} of {} replicas live", row.epoch, row.since, live(row), row.want)?;
        for (replica, reason) in row.replicas.iter().zip(&self.reasons) {
            write_replica(f, replica, self.granted)?;
            match reason {
                Some((plan, why)) => writeln!(f, "    there by {plan}: {why}")?,
                None => writeln!(f, "    the plan that placed it is no longer kept")?,
            }
        }
        let parts = [
            ("under way", &self.under_way),
            ("in the way", &self.blocked),
            ("what would move it", &self.would_move),
        ];
        for (title, sentences) in parts.into_iter().filter(|(_, sentences)| !sentences.is_empty()) {
            writeln!(f, "{title}:")?;
            sentences.iter().try_for_each(|sentence| writeln!(f, "  {sentence}"))?;
        }
        Ok(())
    }
}

fn live(row: &ShardRow) -> usize {
    row.replicas.iter().filter(|r| r.state == ReplicaState::Live).count()
}

fn write_replica(f: &mut fmt::Formatter<'_>, replica: &ReplicaRow, granted: bool) -> fmt::Result {
    let zone = replica.zone.as_ref().map_or(String::new(), |zone| format!(" in zone {zone}"));
    let waits = if replica.role == Role::Leader && !granted { ", waits for its grant" } else { "" };
    let in_sync = match replica.in_sync {
        Some(true) => ", in sync",
        Some(false) => ", not in sync",
        None => "",
    };
    writeln!(
        f,
        "  {} on {}{zone} ({}): {} in {}, {}{in_sync}{waits}",
        replica.placement,
        replica.node,
        replica.health,
        replica.role,
        replica.state,
        doing(replica.phase.as_ref())
    )
}
