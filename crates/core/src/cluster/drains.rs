//! Drains: the coordinator moves all replicas off a node, on a person's command (A19, L8).
//!
//! 1. `partage node drain` sends the command to the coordinator (`crates/cli/src/admin/node.rs`).
//! 2. The command stores the request in the node's record (`admin/nodes.rs`). The next commit makes it durable, and then the
//!    coordinator answers (`crates/coordinator/src/api/admin.rs`).
//! 3. [`BegunDrains`] begins the drain, at once if no limit (`--max-down`) queues it.
//! 4. The planner makes a plan of origin *drain*, which counts as approved (`planning/`), and the handover carries it out.
//! 5. [`SafeToStopNodes`] tells people when the node is empty.
//!
//! A drain with a limit begins while fewer nodes than that are down or drained, and after earlier drains with a limit. A drained
//! node counts until it is undrained or removed, as the limit is there for its restart.
//!
//! | a drain is     | when                                                             |
//! |----------------|------------------------------------------------------------------|
//! | queued         | too many nodes are down or drained; the node gets no new replica |
//! | moving         | replicas of the node move, or will                               |
//! | safe to stop   | nothing that the node has, also on its disk, is needed           |
//! | blocked        | its last replicas move only when a person acts                   |
//!
//! The words for a replica that is still on the node:
//!
//! - **stuck**: its move has not begun or makes no progress, and the reason is known: a callback that fails, a replica that
//!   lingers, copies that the shard waits for, a plan that waits for approval, the brake, no node that could take it. A drain of
//!   which every replica is stuck is blocked.
//! - **slow**: a worker has owed a step of its move for [`limits::SLOW_MS`]. The move goes on, and the sentence says when the
//!   coordinator gives the step up.
//! - **lingers**: its worker has not unloaded it within the step's time limit, and the keyspace is exclusive, so that no other
//!   replica may begin.
//! - **failing**: the planner of its keyspace has refused or not made the last plan. The keyspace has the reason.

use super::admin::AdminError;
use super::decide::Transition;
use super::orders::HostedReplica;
use super::{Cluster, Drain, KeyspaceState, Moment, NodeState, Write};
use crate::base::count::counted;
use crate::base::id::{PlacementId, PlanId, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind};
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::Shard;
use crate::limits;
use crate::node::Health;
use crate::node::exchange::{Failure, Phase, ReplicaKey};
use crate::plan::{Change, Progress, Status};
use std::collections::BTreeMap;
use std::{fmt, iter};

/// The status of a drain: the answer to "may I stop this node now?"
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainStatus {
    /// The node that is drained, or waits to be.
    pub node: NodeId,
    /// Why it is drained.
    pub reason: String,
    /// When a person asked for the drain, in milliseconds of Unix time.
    pub asked_ms: u64,
    /// See [`DrainProgress`].
    pub progress: DrainProgress,
}

/// How far a drain is: see the table of this module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainProgress {
    /// It has not begun.
    Queued {
        /// Nodes that are down or being drained, some of which must come back first.
        behind: Vec<NodeId>,
        /// It begins when they are fewer than this.
        max_down: u32,
    },
    /// Replicas move.
    Moving {
        /// Replicas that are still there.
        left: u32,
        /// Replicas that were there when the drain began.
        of: u32,
        /// Sentences on those that are stuck, at most [`limits::COMPLAINTS`].
        stuck: Vec<String>,
    },
    /// Nothing is left that is needed.
    SafeToStop,
    /// No replica moves any more.
    Blocked {
        /// Replicas that are still there.
        left: u32,
        /// Sentences on them with the way out, at most [`limits::COMPLAINTS`].
        why: Vec<String>,
    },
}

impl fmt::Display for DrainStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.node)?;
        match &self.progress {
            DrainProgress::Queued { behind, max_down } => {
                let names: Vec<_> = behind.iter().map(NodeId::as_str).collect();
                write!(f, "queued until fewer than {max_down} of {} are down or drained", names.join(", "))
            }
            DrainProgress::Moving { left, of, stuck } => {
                write!(f, "moving, {} of {of} done", of.saturating_sub(*left))?;
                stuck.iter().try_for_each(|why| write!(f, "\n  stuck: {why}"))
            }
            DrainProgress::SafeToStop => write!(f, "safe to stop"),
            DrainProgress::Blocked { left, why } => {
                write!(f, "blocked with {} left", counted(*left, "replica"))?;
                why.iter().try_for_each(|why| write!(f, "\n  {why}"))
            }
        }
    }
}

/// Reasons, each with the shards that it holds for.
#[derive(Default)]
struct Reasons<'a>(Vec<(&'a KeyspaceName, String, Vec<ShardId>)>);

impl<'a> Reasons<'a> {
    fn add(&mut self, keyspace: &'a KeyspaceName, why: String, shard: ShardId) {
        let same =
            |(name, reason, _): &(&KeyspaceName, String, Vec<ShardId>)| *name == keyspace && *reason == why;
        match self.0.iter().position(same) {
            Some(at) => self.0[at].2.push(shard),
            // People hear of no more than these.
            None if self.0.len() >= limits::COMPLAINTS => {}
            None => self.0.push((keyspace, why, vec![shard])),
        }
    }

    fn sentences(self) -> Vec<String> {
        let sentence =
            |(keyspace, why, shards): (_, _, Vec<_>)| format!("{}: {why}", some_shards(keyspace, &shards));
        self.0.into_iter().map(sentence).collect()
    }
}

/// "shard s3 of keyspace kv", "12 shards of keyspace kv, such as s3".
pub(super) fn some_shards(keyspace: &KeyspaceName, shards: &[ShardId]) -> String {
    match shards {
        [one] => format!("shard {one} of keyspace {keyspace}"),
        [first, ..] => format!("{} shards of keyspace {keyspace}, such as {first}", shards.len()),
        [] => format!("no shard of keyspace {keyspace}"),
    }
}

/// The drains that begin in this decision.
pub(super) struct BegunDrains {
    /// The nodes, each with the number of replicas to move.
    nodes: Vec<(NodeId, u32)>,
}

impl Transition for BegunDrains {
    fn find(cluster: &Cluster, at: Moment) -> BegunDrains {
        let asked = |node: &NodeState| {
            node.record.drain.as_ref().filter(|drain| !drain.has_begun()).map(|drain| drain.asked_ms)
        };
        let queued = cluster.members.nodes.iter().filter_map(|(id, node)| Some((asked(node)?, id, node)));
        let mut queue: Vec<_> = queued.collect();
        queue.sort_by_key(|(asked_ms, id, _)| (*asked_ms, *id));
        let mut begun = BegunDrains { nodes: Vec::new() };
        if queue.is_empty() {
            return begun;
        }
        let mut down =
            cluster.members.nodes.values().filter(|node| cluster.is_down_or_drained(at, node)).count();
        let mut earlier_waits = false;
        for (_, id, node) in queue {
            let others = down - usize::from(cluster.is_down_or_drained(at, node));
            let max_down = node.record.drain.as_ref().and_then(|drain| drain.max_down);
            // No drain with a limit overtakes an earlier one.
            let has_turn = max_down.is_none_or(|most| !earlier_waits && others < most as usize);
            earlier_waits |= !has_turn;
            if has_turn {
                down = others + 1;
                begun.nodes.push((id.clone(), cluster.needed(node).len() as u32));
            }
        }
        begun
    }

    fn apply(self, cluster: &mut Cluster, at: Moment) -> Millis {
        for (id, held) in self.nodes {
            let Some(node) = cluster.members.get_mut(&id) else { continue };
            node.record.drain.iter_mut().for_each(|drain| drain.began_with = Some(held));
            cluster.outbox.writes.push(Write::Node(node.record.clone()));
            cluster.outbox.tell(
                EventKind::NodeDrain,
                About::node(&id),
                false,
                format!("the drain of node {id} begins with {}", counted(held, "replica")),
            );
            cluster.keyspaces.plan_soon(at, 0);
        }
        Millis::NEVER
    }
}

/// Drained nodes that are safe to stop since the last decision, or no longer: an event tells people of each.
pub(super) struct SafeToStopNodes {
    nodes: Vec<(NodeId, bool)>,
}

impl Transition for SafeToStopNodes {
    fn find(cluster: &Cluster, at: Moment) -> SafeToStopNodes {
        let is_safe = |id: &NodeId| {
            cluster.drain_status(at, id).is_ok_and(|status| status.progress == DrainProgress::SafeToStop)
        };
        let mut found = SafeToStopNodes { nodes: Vec::new() };
        for (id, node) in &cluster.members.nodes {
            let has_begun = node.record.drain.as_ref().is_some_and(Drain::has_begun);
            let is_empty = has_begun && node.orders.is_empty();
            if node.safe_to_stop_told && !is_empty || !node.safe_to_stop_told && is_empty && is_safe(id) {
                found.nodes.push((id.clone(), is_empty));
            }
        }
        found
    }

    fn apply(self, cluster: &mut Cluster, _: Moment) -> Millis {
        for (id, is_empty) in self.nodes {
            let is_drained = cluster.members.get(&id).is_some_and(|node| node.record.drain.is_some());
            if is_empty {
                let text = format!("node {id} is drained: it is safe to stop");
                cluster.outbox.tell(EventKind::NodeDrain, About::node(&id), false, text);
            } else if is_drained {
                let text = format!("node {id} has got shards again: it is not safe to stop any more");
                cluster.outbox.tell(EventKind::NodeDrain, About::node(&id), true, text);
            }
            cluster.members.nodes.entry(id).and_modify(|node| node.safe_to_stop_told = is_empty);
        }
        Millis::NEVER
    }
}

impl Cluster {
    /// Whether a node may be down, or its drain has begun.
    fn is_down_or_drained(&self, at: Moment, node: &NodeState) -> bool {
        let begun = node.record.drain.as_ref().is_some_and(Drain::has_begun);
        let health = node.signs.health(at.now, &self.settings);
        // A node that has never held a shard delays no drain, as anybody can register one (Z2).
        let has_held = !node.has_never_held() || node.record.held;
        begun || has_held && !matches!(health, Health::Up | Health::Left)
    }

    /// Nodes other than `but` that may be down, or whose drain has begun.
    fn down_or_drained(&self, at: Moment, but: &NodeId) -> Vec<NodeId> {
        let counts = |node: &&NodeState| node.record.spec.id != *but && self.is_down_or_drained(at, node);
        self.members.nodes.values().filter(counts).map(|node| node.record.spec.id.clone()).collect()
    }

    /// The status of all drains, the oldest first.
    pub fn drains(&self, at: Moment) -> Vec<DrainStatus> {
        let mut all: Vec<_> =
            self.members.nodes.keys().filter_map(|id| self.drain_status(at, id).ok()).collect();
        all.sort_by(|a, b| (a.asked_ms, &a.node).cmp(&(b.asked_ms, &b.node)));
        all
    }

    /// The status of one drain.
    pub fn drain_status(&self, at: Moment, id: &NodeId) -> Result<DrainStatus, AdminError> {
        let node = self.node(id)?;
        let Some(drain) = &node.record.drain else {
            return Err(AdminError::Refused {
                problem: format!("node {id} is not being drained"),
                way_out: format!("drain it first (partage node drain {id})"),
            });
        };
        let progress = match (drain.began_with, drain.max_down) {
            (None, Some(max_down)) => {
                DrainProgress::Queued { behind: self.down_or_drained(at, id), max_down }
            }
            (began_with, _) => self.drain_progress(at, node, began_with.unwrap_or(0)),
        };
        Ok(DrainStatus { node: id.clone(), reason: drain.reason.clone(), asked_ms: drain.asked_ms, progress })
    }

    /// The nodes that have asked to leave, and are neither drained nor gone, each with its progress.
    pub(in crate::cluster) fn leaving(&self, at: Moment) -> Vec<(&NodeId, DrainProgress)> {
        let asks = |node: &&NodeState| node.leaving && node.record.drain.is_none() && !node.record.ended;
        let leaving = self.members.nodes.values().filter(asks);
        leaving.map(|node| (&node.record.spec.id, self.drain_progress(at, node, 0))).collect()
    }

    fn drain_progress(&self, at: Moment, node: &NodeState, began_with: u32) -> DrainProgress {
        let held = self.needed(node);
        let left = held.len() as u32;
        let departures = self.departures();
        let mut stuck = Reasons::default();
        let mut count = 0;
        for (keyspace, shard, replica) in &held {
            if let Some(why) = self.stuck(at, &departures, (keyspace, shard, replica)) {
                count += 1;
                stuck.add(&keyspace.record.keyspace.name, why, shard.id);
            }
        }
        let all = count == held.len();
        for (keyspace, shard, replica) in &held {
            if let Some(why) = self.slow(at, (keyspace, shard, replica)) {
                stuck.add(&keyspace.record.keyspace.name, why, shard.id);
            }
        }
        let stuck = stuck.sentences();
        let alone = if held.is_empty() { self.only_copies_on(at, node) } else { Vec::new() };
        match held.is_empty() {
            true if !alone.is_empty() => DrainProgress::Blocked { left: alone.len() as u32, why: alone },
            true => DrainProgress::SafeToStop,
            false if all => DrainProgress::Blocked { left, why: stuck },
            false => DrainProgress::Moving { left, of: began_with.max(left), stuck },
        }
    }

    /// Sentences on data on the disk of an empty node that may be the only copy: data of an earlier process for which a shard
    /// waits, and data that no map names.
    fn only_copies_on(&self, at: Moment, node: &NodeState) -> Vec<String> {
        let id = &node.record.spec.id;
        let last = self.last_copy_on(id).map(|(keyspace, shard)| {
            format!("the only copy of shard {shard} of keyspace {keyspace} is on its disk: keep it there until others serve")
        });
        let kept = self.undeletable_kept(at, id).map(|(replica, why)| {
            let ReplicaKey { keyspace, shard, placement } = replica;
            format!("it keeps {placement} of shard {shard} of keyspace {keyspace}, which no map names: {why}")
        });
        last.into_iter().chain(kept.take(limits::COMPLAINTS)).collect()
    }

    /// The replicas on a node but those whose data may be deleted.
    pub(super) fn needed<'a>(&'a self, node: &'a NodeState) -> Vec<HostedReplica<'a>> {
        self.keyspaces
            .held(node)
            .filter(|(_, _, replica)| replica.state != ReplicaState::UnloadFinal)
            .collect()
    }

    /// Which worker is slow with a replica that leaves its node, while its move still goes on.
    fn slow(&self, at: Moment, (keyspace, shard, replica): HostedReplica<'_>) -> Option<String> {
        let successor = shard.replicas.iter().find(|r| r.replaces() == Some(replica.placement));
        let told = keyspace.lingers(at, replica, &self.settings).is_some();
        let both = [Some(replica).filter(|_| !told), successor];
        both.into_iter().flatten().find_map(|r| keyspace.slow(at, r, &self.settings))
    }

    /// Why a replica that should leave its node does not, and what to do; none when it is on its way.
    fn stuck(
        &self,
        at: Moment,
        departures: &Departures<'_>,
        (keyspace, shard, replica): HostedReplica<'_>,
    ) -> Option<String> {
        if let Some(Phase::Failed(failure)) = keyspace.phase_of(replica.placement)
            && !replica.state.is_staying()
        {
            return Some(format!(
                "its unloading fails ({}): mend the service, or stop the node",
                failure.reason
            ));
        }
        if let Some(why) = keyspace.lingers(at, replica, &self.settings) {
            return Some(format!("{why}: mend the service, or stop the process"));
        }
        if let Some(why) = self.awaits_copies(at, keyspace, shard) {
            return Some(why);
        }
        let successor = shard.replicas.iter().find(|r| r.replaces() == Some(replica.placement));
        if let Some(successor) = successor {
            return match keyspace.phase_of(successor.placement) {
                Some(Phase::Failed(failure)) => {
                    let Failure { attempts, reason, .. } = &**failure;
                    Some(format!(
                        "loading on {} failed {}: {reason}",
                        successor.node,
                        counted(*attempts, "time")
                    ))
                }
                _ => None,
            };
        }
        if !replica.state.is_staying() || !shard.is_serving() {
            return None;
        }
        self.stuck_unplanned(at, departures, (keyspace, shard, replica))
    }

    /// For which copies a shard, or a parent of it, waits. Until then no replica loads, and a person may have to choose.
    fn awaits_copies(&self, at: Moment, keyspace: &KeyspaceState, shard: &Shard) -> Option<String> {
        let parents = shard.parents().iter().filter_map(|parent| keyspace.map.shard(*parent));
        let waiting = iter::once(shard)
            .chain(parents)
            .find(|shard| keyspace.waits_for_copy(&self.members.nodes, shard))?;
        let first = self.waits(at, keyspace, waiting).into_iter().next();
        let why = first.map_or(String::new(), |why| format!(": {why}"));
        Some(match waiting.id == shard.id {
            true => format!("no copy of it can serve{why}"),
            false => format!("it comes from shard {}, of which no copy can serve{why}", waiting.id),
        })
    }

    /// As [`Cluster::stuck`], for a replica whose move has not begun.
    fn stuck_unplanned(
        &self,
        at: Moment,
        departures: &Departures<'_>,
        (keyspace, shard, replica): HostedReplica<'_>,
    ) -> Option<String> {
        let name = &keyspace.record.keyspace.name;
        if let Some((plan, suggested)) = departures.get(&(name, shard.id, replica.placement)) {
            return suggested.then(|| format!("{plan} waits for a person: partage plan approve {plan}"));
        }
        if let Some(why) = self.brake_on(keyspace) {
            return Some(format!("the brake is on ({why}): release it when the cluster is well"));
        }
        if self.candidates(at, keyspace, shard, Some(replica)).next().is_none() {
            return Some("no other node may take it: add a node, or relax its constraints".into());
        }
        if let Some(why) = self.given_up_everywhere(at, keyspace, shard, Some(replica)) {
            return Some(why);
        }
        keyspace.planning.failing.as_ref().map(|why| format!("its keyspace cannot be planned: {why}"))
    }

    /// The replicas that plans will move or remove: which plan, and whether it waits for approval.
    fn departures(&self) -> Departures<'_> {
        let mut departures = Departures::new();
        for plan in self.plans.by_id.values().filter(|plan| !plan.is_over()) {
            for planned in plan.changes.iter().filter(|p| p.progress == Progress::Waiting) {
                let (Change::Move { shard, from: replica, .. }
                | Change::Remove { shard, placement: replica }) = &planned.change
                else {
                    continue;
                };
                let suggested = plan.status == Status::Suggested;
                departures.insert((&plan.keyspace, *shard, *replica), (plan.id, suggested));
            }
        }
        departures
    }
}

type Departures<'a> = BTreeMap<(&'a KeyspaceName, ShardId, PlacementId), (PlanId, bool)>;
