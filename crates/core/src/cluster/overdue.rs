//! Overdue steps: steps that a worker has not taken within their time limits (A12, L1, L4).
//!
//! A worker owes the next step of a replica from the moment at which it can take it. It still owes the step after a failure, or
//! when it reports the same state again. A report of progress restarts the time limit of a load, up to
//! [`limits::LOAD_STRETCH`] times the limit in all; no other report extends it.
//!
//! | state         | owed step  | within                | after that                                          |
//! |---------------|------------|-----------------------|-----------------------------------------------------|
//! | `Load`        | any report | `handover_ms`         | the coordinator tries another node                  |
//! | `Load`        | `Ready`    | `load_ms` (keyspace) since the last progress | the coordinator tries another node |
//! | `Live`, granted | `Serving` | `handover_ms`       | a follower that serves leads; it moves elsewhere, now or when another node can take it |
//! | `Unload`      | `Unloaded` | `handover_ms`         | eventual and replicated: it may be deleted. Exclusive: see [`super::revoked_leases`] |
//! | `UnloadFinal` | `Dropped`  | `handover_ms`         | the map forgets it                                  |
//!
//! A change of a plan whose step is late holds up no other change: after [`limits::SLOW_MS`] the planner rebalances
//! around it ([`HeldUp`]), and when the step is overdue the change is over (L4).
//!
//! This is not stored: a new coordinator counts from its start. Time does not count while the node is silent, as
//! [`crate::node::health`] handles that, or while the coordinator itself is asleep.

use super::decide::Transition;
use super::keyspaces::Keyspaces;
use super::members::NodesView;
use super::pending_steps::{PendingStep, PendingSteps};
use super::stored::Excuse;
use super::{Cluster, KeyspaceState, Moment, NodeState, Outbox};
use crate::base::id::{PlacementId, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind};
use crate::keyspace::Ownership;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Replica, Role, Shard};
use crate::limits;
use crate::node::Health;
use crate::node::exchange::Phase;
use crate::plan::Change;
use std::collections::{BTreeMap, BTreeSet};

/// Why a shard is not tried on a node for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Avoided {
    pub(super) until: Millis,
    /// A part of a sentence: "n1 has been loading it for 300 s".
    pub(super) why: String,
    /// Its worker did not even report a failure.
    pub(super) hung: bool,
    /// The parents of the shard, if it was a child of a split or merge, which is given up with it.
    pub(super) parents: Vec<ShardId>,
}

/// What is overdue in a keyspace.
#[derive(Debug, Clone, Default)]
pub(super) struct OverdueState {
    /// Nodes where a shard could not be loaded, until when it is not tried there again, and why.
    pub(super) avoid: BTreeMap<(ShardId, NodeId), Avoided>,
    /// The steps that are waited for; not stored.
    pub(super) pending_steps: PendingSteps,
    /// Of replicas of durable shards that could not be loaded; not stored.
    pub(super) excused: BTreeMap<PlacementId, Excuse>,
}

impl OverdueState {
    /// Which child of these shards could not be loaded last, on which node, and why.
    pub(super) fn failed_child_of(&self, parents: &[ShardId]) -> Option<String> {
        let of_them = |avoided: &&Avoided| avoided.parents.iter().any(|parent| parents.contains(parent));
        let failed = self.avoid.iter().filter(|(_, avoided)| of_them(avoided));
        let ((shard, node), Avoided { why, .. }) = failed.max_by_key(|((shard, _), _)| *shard)?;
        Some(format!("{shard} on {node}: {why}"))
    }

    /// Where a shard is not tried at present, and why: one sentence each.
    pub(super) fn avoided(&self, at: Moment, shard: ShardId) -> impl Iterator<Item = (&NodeId, String)> {
        let of_it = self.avoid.iter().filter(move |((of, _), a)| *of == shard && a.until > at.now);
        of_it.map(move |((_, node), avoided)| {
            let left_s = avoided.until.since(at.now).div_ceil(1_000);
            let why = &avoided.why;
            (node, format!("it is not tried on {node} for another {left_s} s, given up there: {why}"))
        })
    }

    /// Whether the leader of a shard may serve, and should long have begun to.
    pub(super) fn has_hung_leader(&self, shard: &Shard) -> bool {
        shard
            .leader()
            .is_some_and(|leader| self.pending_steps.is_overdue(leader.placement, ReplicaState::Live))
    }

    /// Whether a replica of a shard stays besides a leader that never begins to serve.
    pub(super) fn is_taken_over(&self, shard: &Shard) -> bool {
        let is_hung = self.has_hung_leader(shard);
        shard.staying().any(|r| !(is_hung && r.role == Role::Leader))
    }

    /// Whether several shards have hung on a node: then no further one is tried there.
    pub(super) fn hangs_on(&self, node: &NodeId) -> bool {
        let hung = self.avoid.iter().filter(|((_, at), avoided)| at == node && avoided.hung);
        hung.count() >= limits::HUNG_SHARDS
    }

    /// How many failed loads of a replica are not held against it.
    pub(super) fn excused_attempts(&self, placement: PlacementId, now: Millis) -> u32 {
        match self.excused.get(&placement) {
            Some(excuse) if now < excuse.until => u32::MAX,
            Some(excuse) => excuse.attempts,
            None => 0,
        }
    }
}

/// How long a replica may owe the step out of a state. A worker that has not said a word about what it should load
/// has not begun, and need not have the time that a long load takes.
fn timeout_ms(
    keyspace: &KeyspaceState,
    (placement, state): (PlacementId, ReplicaState),
    settings: &Settings,
) -> u64 {
    let load_ms = keyspace.record.keyspace.throttle.load_ms;
    match state {
        ReplicaState::Load if !keyspace.is_heard_of(placement) => load_ms.min(settings.handover_ms),
        ReplicaState::Load => load_ms,
        ReplicaState::Live | ReplicaState::Unload | ReplicaState::UnloadFinal => settings.handover_ms,
    }
}

/// What a node has been doing with a replica for `ms`, as a part of a sentence.
fn doing(keyspace: &KeyspaceState, replica: &Replica, ms: u64) -> String {
    let node = &replica.node;
    let what = match replica.state {
        ReplicaState::Load if !keyspace.is_heard_of(replica.placement) => "has not begun to load it",
        ReplicaState::Load => "has been loading it",
        ReplicaState::Live => "was to serve it and has not begun",
        ReplicaState::Unload => "was to let go of it and has not",
        ReplicaState::UnloadFinal => "was to delete its copy and has not",
    };
    format!("{node} {what} for {} s", ms / 1_000)
}

/// What waits for workers that are late with a step.
#[derive(Debug, Default)]
pub(super) struct HeldUp<'a> {
    shards: BTreeSet<ShardId>,
    nodes: BTreeSet<&'a NodeId>,
}

impl HeldUp<'_> {
    /// Whether a change that is not over is late, or waits behind one that is.
    pub(super) fn is_held_up(&self, keyspace: &KeyspaceState, change: &Change) -> bool {
        let from = |shard: &ShardId| keyspace.map.shard(*shard).into_iter().flat_map(|s| &s.replicas);
        let mut nodes = change.shards().iter().flat_map(from).map(|r| &r.node);
        change.shards().iter().any(|shard| self.shards.contains(shard))
            || change.targets().iter().any(|node| self.nodes.contains(node))
            || nodes.any(|node| self.nodes.contains(node))
    }
}

impl KeyspaceState {
    /// What has been owed for [`limits::SLOW_MS`] or longer.
    pub(super) fn held_up(&self, at: Moment) -> HeldUp<'_> {
        let late = self
            .overdue
            .pending_steps
            .steps
            .iter()
            .filter(|(_, step)| step.is_overdue || at.now.since(step.since) >= limits::SLOW_MS);
        let mut held_up = HeldUp::default();
        for (placement, step) in late {
            held_up.shards.insert(step.shard);
            let replica = self.map.shard(step.shard).and_then(|shard| shard.replica(*placement));
            held_up.nodes.extend(replica.map(|r| &r.node));
        }
        held_up
    }

    /// What a replica is slow at, and what will follow; none while it is not slow.
    pub(super) fn slow(&self, at: Moment, replica: &Replica, settings: &Settings) -> Option<String> {
        let pending_ms = self.overdue.pending_steps.pending_ms(replica.placement, at.now)?;
        let timeout_ms = timeout_ms(self, (replica.placement, replica.state), settings);
        let what = doing(self, replica, pending_ms);
        if self.overdue.pending_steps.is_overdue(replica.placement, replica.state) {
            return Some(format!("{what}: given up"));
        }
        let due = self.overdue.pending_steps.steps.get(&replica.placement).map(|step| step.due(timeout_ms));
        let left_s = due.map_or(0, |due| due.since(at.now)).div_ceil(1_000);
        (pending_ms >= limits::SLOW_MS).then(|| format!("{what}, and is given up in {left_s} s"))
    }

    /// Whether all that is left of a change is that the former owner lets go or deletes its copy, and it is overdue
    /// with that.
    pub(super) fn is_left_behind(&self, replica: &Replica) -> bool {
        let leaves = matches!(replica.state, ReplicaState::Unload | ReplicaState::UnloadFinal);
        leaves && self.overdue.pending_steps.is_overdue(replica.placement, replica.state)
    }

    /// Notes which steps the replicas of a shard owe from now on, and which no longer.
    pub(super) fn note_pending_steps(&mut self, at: Moment, id: ShardId, settings: &Settings) {
        let Some(shard) = self.map.shard(id) else { return };
        let may_begin = !self.queue.ungranted.contains(&id);
        let replicas: Vec<_> =
            shard.replicas.iter().map(|r| (r.clone(), self.is_pending(shard, r, may_begin))).collect();
        for (Replica { placement, state, role, .. }, is_pending) in replicas {
            let known = self.overdue.pending_steps.steps.get(&placement);
            let known = known.filter(|step| (step.state, step.role) == (state, role));
            match (known, is_pending) {
                (None, true) => {
                    let (since, renewed) = (at.now, at.now);
                    let step = PendingStep {
                        shard: id,
                        state,
                        role,
                        since,
                        renewed,
                        progress: 0,
                        is_overdue: false,
                    };
                    let due = at.now + timeout_ms(self, (placement, state), settings);
                    self.overdue.pending_steps.steps.insert(placement, step);
                    self.overdue.pending_steps.due = Some(self.overdue.pending_steps.due().min(due));
                    self.overdue.pending_steps.due_then =
                        Some(self.overdue.pending_steps.due_then.unwrap_or(Millis::NEVER).min(due));
                }
                (Some(step), false) if step.is_overdue && state == ReplicaState::Live => {
                    self.complete(at, id, placement);
                }
                (_, false) => self.overdue.pending_steps.forget(placement),
                (Some(_), true) => {}
            }
        }
    }

    /// Whether its worker has said anything about a replica.
    fn is_heard_of(&self, placement: PlacementId) -> bool {
        self.observed.get(&placement).is_some()
    }

    /// Whether its worker has not yet taken the step that the map asks for.
    fn is_pending(&self, shard: &Shard, replica: &Replica, may_begin: bool) -> bool {
        let seen = self.observed.get(&replica.placement);
        let is_current = seen.is_some_and(|seen| seen.epoch() >= shard.epoch);
        match (replica.state, seen.map(|seen| seen.phase())) {
            (ReplicaState::Load, phase) => phase != Some(&Phase::Ready),
            // Nothing of it is there: it waits for another copy.
            (ReplicaState::Live, Some(Phase::Dropped)) if self.record.keyspace.durable => false,
            (ReplicaState::Live, phase) => {
                let serves = phase == Some(&Phase::Serving);
                match replica.role {
                    Role::Leader => may_begin && !(serves && is_current),
                    // It may have led before: then the next leader waits until it has ended that.
                    Role::Follower | Role::ReadReplica => !serves || !(may_begin || is_current),
                }
            }
            (ReplicaState::Unload, Some(Phase::Unloaded | Phase::Kept | Phase::Dropped)) => !is_current,
            (ReplicaState::Unload, _) => true,
            (ReplicaState::UnloadFinal, phase) => phase != Some(&Phase::Dropped),
        }
    }

    /// It serves after all.
    fn complete(&mut self, at: Moment, id: ShardId, placement: PlacementId) {
        self.overdue.pending_steps.forget(placement);
        let node = self.map.shard(id).and_then(|shard| shard.replica(placement)).map(|r| r.node.clone());
        if let Some(node) = node {
            self.overdue.avoid.remove(&(id, node));
            self.plan_again(at);
        }
    }

    /// A shard is not tried on a node again for as long as three others may take to show whether it is the shard
    /// that cannot be loaded, or the node that cannot load (L5).
    pub(super) fn avoid_hung(
        &mut self,
        at: Moment,
        r: &Replica,
        (shard, parents): (ShardId, Vec<ShardId>),
        settings: &Settings,
    ) {
        let timeout_ms = timeout_ms(self, (r.placement, r.state), settings);
        let pending_ms = self.overdue.pending_steps.pending_ms(r.placement, at.now).unwrap_or(timeout_ms);
        let others = u64::from(settings.poison_deaths).saturating_add(1);
        let until = at.now + timeout_ms.saturating_mul(others).max(limits::AVOID_MS);
        let failure = match self.phase_of(r.placement) {
            Some(Phase::Failed(failure)) => format!(" ({})", failure.reason),
            _ => String::new(),
        };
        let why = format!("{}{failure}", doing(self, r, pending_ms));
        let avoided = Avoided { until, why, hung: true, parents };
        self.overdue.avoid.insert((shard, r.node.clone()), avoided);
        self.plan_again(at);
    }

    /// A shard may be tried again where it was given up long ago, but not while a replica there still does not begin to
    /// serve: it has not left yet, as no other node could take it, and is to.
    pub(super) fn forget_avoided(&mut self, at: Moment) {
        let (map, pending_steps) = (&self.map, &self.overdue.pending_steps);
        let hangs = |shard: &ShardId, node: &NodeId| {
            let mut live = map.shard(*shard).into_iter().flat_map(Shard::live);
            live.any(|r| r.node == *node && pending_steps.is_overdue(r.placement, ReplicaState::Live))
        };
        self.overdue.avoid.retain(|(shard, node), avoided| {
            if avoided.until <= at.now && hangs(shard, node) {
                avoided.until = at.now + limits::AVOID_MS;
            }
            avoided.until > at.now
        });
    }

    /// What a replica should long have let go of, when nothing follows from that by itself.
    pub(super) fn lingers(&self, at: Moment, replica: &Replica, settings: &Settings) -> Option<String> {
        let is_overdue = self.overdue.pending_steps.is_overdue(replica.placement, ReplicaState::Unload);
        let waits = is_overdue && self.record.keyspace.ownership == Ownership::Exclusive;
        waits.then(|| self.slow(at, replica, settings)).flatten()
    }
}

/// Steps of replicas that are overdue, and nodes that get no further lease for it.
pub(super) struct OverdueSteps {
    keyspaces: Vec<(KeyspaceName, CheckedSteps)>,
    /// Nodes that get no further lease.
    revoked: Vec<NodeId>,
}

/// What was found of the steps of one keyspace.
struct CheckedSteps {
    /// Their time begins anew: the node does not answer, or they wait for others.
    renewed: Vec<PlacementId>,
    overdue: Vec<(ShardId, Replica)>,
    /// Where the next decision goes on.
    next: Option<PlacementId>,
    due_then: Option<Millis>,
}

impl Transition for OverdueSteps {
    fn find(cluster: &Cluster, at: Moment) -> OverdueSteps {
        let mut found = OverdueSteps { keyspaces: Vec::new(), revoked: Vec::new() };
        for (name, keyspace) in &cluster.keyspaces.by_name {
            if keyspace.overdue.pending_steps.due() > at.now {
                continue;
            }
            let (checked, holding_up) = cluster.checked_steps(at, keyspace);
            if keyspace.record.keyspace.ownership == Ownership::Exclusive {
                for node in holding_up {
                    if cluster.is_turn_to_revoke(at, &node, &found.revoked) {
                        found.revoked.push(node);
                    }
                }
            }
            found.keyspaces.push((name.clone(), checked));
        }
        found
    }

    fn apply(self, cluster: &mut Cluster, at: Moment) -> Millis {
        let Cluster { settings, members, keyspaces, outbox, .. } = cluster;
        for (name, checked) in self.keyspaces {
            let CheckedSteps { renewed, overdue, next, due_then } = checked;
            let Some(keyspace) = keyspaces.get_mut(&name) else { continue };
            let pending = &mut keyspace.overdue.pending_steps;
            for placement in renewed {
                let renew = |step: &mut PendingStep| (step.since, step.renewed) = (at.now, at.now);
                pending.steps.entry(placement).and_modify(renew);
            }
            for (_, replica) in &overdue {
                pending.steps.entry(replica.placement).and_modify(|step| step.is_overdue = true);
            }
            (pending.next, pending.due_then) = (next, due_then);
            pending.due = if next.is_some() { Some(at.now) } else { due_then };
            for (shard, replica) in &overdue {
                keyspace.give_up(at, *shard, replica, members.view(at.now, settings), outbox);
            }
        }
        self.revoked.iter().for_each(|node| members.revoke(at, node, keyspaces, outbox));
        let due = keyspaces.by_name.values().map(|keyspace| keyspace.overdue.pending_steps.due());
        due.min().unwrap_or(Millis::NEVER)
    }
}

impl KeyspaceState {
    /// What follows at once when a step is overdue; the rest is [`crate::plan::handover`]'s.
    fn give_up(
        &mut self,
        at: Moment,
        shard: ShardId,
        replica: &Replica,
        seen: NodesView<'_>,
        outbox: &mut Outbox,
    ) {
        let name = &self.map.keyspace().clone();
        self.enqueue([shard]);
        let pending_ms = self.overdue.pending_steps.pending_ms(replica.placement, at.now).unwrap_or(0);
        let node = &replica.node;
        let what = doing(self, replica, pending_ms);
        let then = match replica.state {
            ReplicaState::Load => "given up there, and tried elsewhere where there is room".to_owned(),
            ReplicaState::Live => {
                self.avoid_hung(at, replica, (shard, Vec::new()), seen.settings);
                let of = self.map.shard(shard);
                match of.and_then(|of| self.hung_copy(seen.nodes, at.now, of)) {
                    Some(_) => {
                        "no other replica may lead: mend the service, or restart that process".to_owned()
                    }
                    None => "it is moved elsewhere where there is room".to_owned(),
                }
            }
            ReplicaState::Unload if self.record.keyspace.ownership != Ownership::Exclusive => {
                format!("nothing waits for it; mend the service on {node}, or stop the process")
            }
            ReplicaState::Unload => format!(
                "if another waits for it, {node} gets no further lease; mend the service, or stop the process"
            ),
            ReplicaState::UnloadFinal => format!("forgotten; {node} may keep data that no shard needs"),
        };
        outbox.tell(
            EventKind::Alarm,
            About::shard(name, shard).and_node(node),
            true,
            format!("shard {shard} of keyspace {name}: {what}: {then}"),
        );
    }
}

impl Keyspaces {
    /// The coordinator itself was asleep: no worker could have told it anything.
    pub(super) fn extend_pending_steps(&mut self, at: Moment, late_ms: u64) {
        self.by_name.values_mut().for_each(|keyspace| keyspace.overdue.pending_steps.extend(at.now, late_ms));
    }

    /// A process that has just started has not hung anywhere yet.
    pub(super) fn forget_hung(&mut self, id: &NodeId) {
        for keyspace in self.by_name.values_mut() {
            keyspace.overdue.avoid.retain(|(_, node), avoided| node != id || !avoided.hung);
        }
    }
}

impl Cluster {
    /// Looks at the steps of a keyspace. Returns what was found, and the nodes whose overdue steps others wait for.
    fn checked_steps(&self, at: Moment, keyspace: &KeyspaceState) -> (CheckedSteps, BTreeSet<NodeId>) {
        let most = self.share_beside_planning(limits::STEPS_CALLED_IN);
        let pending = &keyspace.overdue.pending_steps;
        let from = pending.next;
        let mut found = CheckedSteps { renewed: Vec::new(), overdue: Vec::new(), next: None, due_then: None };
        let mut next = from.and(pending.due_then).unwrap_or(Millis::NEVER);
        let mut holding_up = BTreeSet::new();
        for (looked_at, (placement, step)) in pending.steps.range(from.unwrap_or_default()..).enumerate() {
            if looked_at >= most {
                found.next = Some(*placement);
                break;
            }
            let Some(shard) = keyspace.map.shard(step.shard) else { continue };
            let Some(replica) = shard.replica(*placement) else { continue };
            if step.is_overdue {
                holding_up.extend(keyspace.holds_up(step.shard, replica).then(|| replica.node.clone()));
                continue;
            }
            let mut step = step.clone();
            let node = self.members.get(&replica.node);
            let answers = node.is_some_and(|node| answers(node, replica, at, &self.settings));
            if !answers || self.waits_for_others(at, keyspace, (shard, replica), &step) {
                (step.since, step.renewed) = (at.now, at.now);
                found.renewed.push(*placement);
            }
            match step.due(timeout_ms(keyspace, (*placement, step.state), &self.settings)) {
                due if due <= at.now => found.overdue.push((step.shard, replica.clone())),
                due => next = next.min(due),
            }
        }
        let again = !found.overdue.is_empty() || !holding_up.is_empty();
        let next = if again { next.min(at.now + self.settings.lease_ms) } else { next };
        found.due_then = (next < Millis::NEVER).then_some(next);
        (found, holding_up)
    }

    /// Whether a replica cannot take its step, as it waits for another one.
    fn waits_for_others(
        &self,
        at: Moment,
        keyspace: &KeyspaceState,
        (shard, replica): (&Shard, &Replica),
        step: &PendingStep,
    ) -> bool {
        let has_source = || keyspace.has_source(self.nodes_at(at.now), shard);
        match step.state {
            ReplicaState::Load => !has_source(),
            // Followers begin when their leader has what its parents had. One that was to lead before lets go first.
            ReplicaState::Live if step.role != Role::Leader => {
                let begins_later = keyspace.inherits(shard) && !has_source();
                // Nor does one that may be older than copies which the coordinator has not heard of since a restore.
                (begins_later || keyspace.restored.awaits_comparison(shard.id))
                    && !keyspace.holds_up(step.shard, replica)
            }
            ReplicaState::Live | ReplicaState::Unload | ReplicaState::UnloadFinal => false,
        }
    }

    /// Why a shard goes nowhere, when it was given up on every node that might take it.
    pub(super) fn given_up_everywhere(
        &self,
        at: Moment,
        keyspace: &KeyspaceState,
        shard: &Shard,
        leaves: Option<&Replica>,
    ) -> Option<String> {
        let avoided: BTreeMap<&NodeId, String> = keyspace.overdue.avoided(at, shard.id).collect();
        let open = |node: &NodeState| {
            let id = &node.record.spec.id;
            !avoided.contains_key(id) && !keyspace.overdue.hangs_on(id)
        };
        let everywhere = !self.candidates(at, keyspace, shard, leaves).any(open);
        let why = avoided.into_values().collect::<Vec<_>>().join("; ");
        let way_out = "mend the service there and start it again, or add a node";
        match why.is_empty() {
            _ if !everywhere => None,
            true => Some(format!("shards of its keyspace hang on every node that may take it: {way_out}")),
            false => Some(format!("{why}: {way_out}")),
        }
    }
}

/// Whether the start of the node that holds the replica is heard of.
fn answers(node: &NodeState, replica: &Replica, at: Moment, settings: &Settings) -> bool {
    let health = node.signs.health(at.now, settings);
    node.record.incarnation == replica.incarnation && matches!(health, Health::Up | Health::Unreachable)
}
