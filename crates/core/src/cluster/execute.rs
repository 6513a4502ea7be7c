//! From an approved plan to replicas in `Load`: begins the changes that the throttle lets begin.
//!
//! Which ones are tried is a matter of [`super::change_queue`]. How far a change has got is read from the
//! map, not remembered; so a coordinator that starts anew goes on where the last one stopped, and counts as done what was.

use super::change_queue::{ChangeQueue, Due, Until};
use super::counts::Counts;
use super::keyspaces::Keyspaces;
use super::plans::Plans;
use super::progress::{has_begun, progress_of};
use super::{Cluster, KeyspaceState, Moment, Outbox, Write};
use crate::base::id::{PlacementId, PlanId, ShardId};
use crate::base::name::NodeId;
use crate::base::planted::{self, Planted};
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::cluster::event;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Edit, EditError, Replica, Role, Shard};
use crate::keyspace::sharding::Bounds;
use crate::keyspace::{Ownership, Throttle};
use crate::limits;
use crate::node::Health;
use crate::node::exchange::Phase;
use crate::plan::handover::{self, HandOver};
use crate::plan::throttle::{self, Meter};
use crate::plan::{Change, Origin, Plan, Progress, Status};
use std::collections::{BTreeMap, BTreeSet};

/// How far the approved plans of a keyspace are carried out. Not stored.
#[derive(Debug, Clone)]
pub(super) struct Execution {
    /// The approved plan to look at next, and how many have not been since something happened.
    tracked_until: PlanId,
    untracked: usize,
    /// Changes of approved plans that have not begun.
    pub(super) change_queue: ChangeQueue,
    /// The bytes that moves may begin to copy.
    pub(super) meter: Meter,
    /// When moves that wait for nothing but bytes may begin.
    pub(super) copies_due: Millis,
}

impl Default for Execution {
    fn default() -> Execution {
        Execution {
            tracked_until: PlanId::default(),
            untracked: 0,
            change_queue: ChangeQueue::default(),
            meter: Meter::default(),
            copies_due: Millis::NEVER,
        }
    }
}

/// [`Counts`], and what else the throttle counts, while changes begin.
#[derive(Debug, Default)]
struct UnderWay {
    counts: Counts,
    meter: Meter,
    /// When the meter lets the next move begin.
    meter_due: Option<Millis>,
    /// See [`Beginnings::transfers`].
    transfers: Vec<(ShardId, PlacementId)>,
}

/// What came of trying to begin changes.
pub(super) struct Beginnings {
    /// Of what began and of what will never begin: the plan, the line in it, how far.
    pub(super) progress: Vec<(PlanId, usize, Progress)>,
    /// The bytes that were drawn.
    pub(super) meter: Meter,
    /// When to try again, if something waits for nothing but bytes.
    pub(super) due: Millis,
    /// More may begin at once: so many did that one commit is full.
    pub(super) is_cut_short: bool,
    /// Shards whose leaders are to hand over before another leads, and to whom.
    pub(super) transfers: Vec<(ShardId, PlacementId)>,
}

impl UnderWay {
    /// K17: whether a change that copies something may begin now.
    fn may_copy(&mut self, throttle: &Throttle, at: Moment) -> Result<(), NotNow> {
        self.meter.is_open(throttle, at.now).map_err(|due| {
            self.meter_due = Some(due.max(at.now + throttle::PAUSE_MS));
            NotNow::Throttled(Until::Bytes)
        })
    }
}

/// Why a change does not begin now.
enum NotNow {
    /// It waits its turn.
    Throttled(Until),
    /// It will never begin.
    Impossible(String),
}

impl From<EditError> for NotNow {
    fn from(error: EditError) -> NotNow {
        NotNow::Impossible(error.to_string())
    }
}

impl Cluster {
    /// Begins what can begin of `plans`, in their order. `anew` when something has happened in the keyspace.
    pub(super) fn start_changes(
        &self,
        keyspace: &KeyspaceState,
        edit: &mut Edit<'_>,
        (plans, queue, anew): (&[PlanId], &mut ChangeQueue, bool),
        at: Moment,
    ) -> Beginnings {
        let mut under_way = UnderWay {
            counts: self.counts_without_stalled(keyspace, at),
            meter: keyspace.execution.meter.clone(),
            ..UnderWay::default()
        };
        let (mut progress, most) = (Vec::new(), self.share_beside_planning(limits::CHANGES_BEGUN));
        let plans: Vec<&Plan> = plans.iter().filter_map(|id| self.plans.get(id)).collect();
        let may_copy =
            queue.has(&Until::Bytes) && under_way.may_copy(&keyspace.record.keyspace.throttle, at).is_ok();
        let room = |until: &Until| self.may_begin(keyspace, &under_way.counts, (until, may_copy), at);
        let Due { changes, mut is_cut_short } = queue.due(&plans, anew, room);
        let plans: BTreeMap<PlanId, &Plan> = plans.into_iter().map(|plan| (plan.id, plan)).collect();
        for (change, before) in changes {
            let plan = plans.get(&change.plan);
            let waits = plan.and_then(|plan| Some((*plan, plan.changes.get(change.index)?)));
            let Some((plan, planned)) = waits.filter(|(_, p)| p.progress == Progress::Waiting) else {
                queue.note(change, before.as_ref(), None);
                continue;
            };
            if progress.len() >= most {
                is_cut_short = true;
                break;
            }
            let started = not_barred(keyspace, &planned.change, &plan.origin)
                .and_then(|()| self.start(keyspace, edit, (plan, &planned.change), &mut under_way, at));
            // Another change may take that room.
            is_cut_short |= before.as_ref().is_some_and(Until::is_room) && started.is_err();
            let (now, far) = match started {
                Ok(()) => (None, Some(Progress::Started)),
                Err(NotNow::Throttled(until)) => (Some(until), None),
                Err(NotNow::Impossible(why)) => (None, Some(Progress::Dropped(why))),
            };
            queue.note(change, before.as_ref(), now);
            progress.extend(far.map(|far| (plan.id, change.index, far)));
        }
        Beginnings {
            progress,
            meter: under_way.meter,
            due: under_way.meter_due.unwrap_or(Millis::NEVER),
            is_cut_short,
            transfers: under_way.transfers,
        }
    }

    /// How many changes may begin that wait for `until`, with what is under way.
    fn may_begin(
        &self,
        keyspace: &KeyspaceState,
        counts: &Counts,
        (until, may_copy): (&Until, bool),
        at: Moment,
    ) -> usize {
        let throttle = &keyspace.record.keyspace.throttle;
        match until {
            Until::Loads { node, is_repair } => {
                let is_open = self.members.get(node).is_some_and(|node| node.accepts(at.now, &self.settings));
                // What will never begin is found out at once.
                let most = if is_open { self.loads_on(node, *is_repair, throttle) } else { u32::MAX };
                most.saturating_sub(counts.loads_on.get(node).copied().unwrap_or(0)) as usize
            }
            Until::Moves => throttle.moves.saturating_sub(counts.moves) as usize,
            Until::Bytes if !may_copy => 0,
            Until::Bytes | Until::Anything => usize::MAX,
        }
    }

    /// How many replicas a node may load at once.
    fn loads_on(&self, node: &NodeId, is_repair: bool, throttle: &Throttle) -> u32 {
        let most = throttle.loads_per_node;
        if is_repair { most } else { self.beside_foreground(node, most) }
    }

    /// What is under way, without the loads of shards of which no replica serves that could be copied: they wait for a
    /// process, perhaps for a person, and hold up no other shard meanwhile (L4).
    fn counts_without_stalled(&self, keyspace: &KeyspaceState, at: Moment) -> Counts {
        let Counts { moves, moves_on, loads_on, .. } = &keyspace.settling.under_way;
        let mut counts = Counts {
            moves: *moves,
            moves_on: moves_on.clone(),
            loads_on: loads_on.clone(),
            loading: BTreeSet::new(),
        };
        if keyspace.record.keyspace.durable {
            let loading = keyspace.settling.under_way.loading.iter().filter_map(|id| keyspace.map.shard(*id));
            let seen = (&self.members.nodes, at.now, &self.settings);
            let waiting = loading.filter(|shard| !keyspace.has_source(seen, shard));
            waiting.for_each(|shard| counts.count(shard, -1));
        }
        counts
    }

    fn start(
        &self,
        keyspace: &KeyspaceState,
        edit: &mut Edit<'_>,
        (plan, change): (&Plan, &Change),
        under_way: &mut UnderWay,
        at: Moment,
    ) -> Result<(), NotNow> {
        // A repair is as fast as the nodes can load.
        let is_repair = plan.origin == Origin::Repair;
        let throttle = &keyspace.record.keyspace.throttle;
        let copies = if is_repair { None } else { copied_bytes(keyspace, change) };
        if copies.is_some() {
            under_way.may_copy(throttle, at)?;
        }
        match change {
            Change::Add { shard, node } => {
                self.open(at, node)?;
                let most = self.loads_on(node, is_repair, throttle);
                if under_way.counts.loads_on.get(node).is_some_and(|loads| *loads >= most) {
                    return Err(NotNow::Throttled(Until::Loads { node: node.clone(), is_repair }));
                }
                // What a hot shard gets beyond its members is there to be read from.
                let is_replicated = keyspace.record.keyspace.ownership == Ownership::Replicated;
                let lacks = handover::lacks_member(edit.shard(*shard)?, &self.view(keyspace, at.now));
                let reads = plan.origin.is_automatic() && is_replicated && !lacks;
                self.add(edit, (*shard, reads), node, None, at)?;
                under_way.counts.count_load(node, 1);
                Ok(())
            }
            Change::Move { shard, from, to } => {
                self.start_move(keyspace, edit, (*shard, *from, to), under_way, at)
            }
            Change::Remove { shard, placement } => {
                self.remove(keyspace, edit, (*shard, *placement), under_way, at)
            }
            Change::Lead { shard, placement } => {
                self.lead(keyspace, edit, (*shard, *placement), under_way, at)
            }
            Change::Split { shard, children } => {
                self.start_reshape(keyspace, edit, (&[*shard][..], children.as_slice()), under_way, at)
            }
            Change::Merge { shards, child } => self.start_reshape(
                keyspace,
                edit,
                (shards.as_slice(), std::slice::from_ref(child)),
                under_way,
                at,
            ),
        }?;
        copies.into_iter().for_each(|bytes| under_way.meter.take(bytes));
        Ok(())
    }

    /// The lead goes to a live follower as soon as that one has said that it serves: the leader stops at once (O11).
    fn lead(
        &self,
        keyspace: &KeyspaceState,
        edit: &mut Edit<'_>,
        (shard, placement): (ShardId, PlacementId),
        under_way: &mut UnderWay,
        at: Moment,
    ) -> Result<(), NotNow> {
        let current = edit.shard(shard)?;
        let is_led = current.leader().is_some_and(|leader| leader.placement != placement);
        let successor = current.live().find(|r| r.placement == placement).filter(|_| is_led);
        let Some(successor) = successor.filter(|_| !keyspace.serves(placement)) else {
            return self.give_lead(keyspace, edit, (shard, placement), under_way, at);
        };
        if self.is_unheard_yet(successor, at) {
            return Err(NotNow::Throttled(Until::Anything));
        }
        let health = |node: &super::NodeState| node.signs.health(at.now, &self.settings);
        let is_up = self.members.get(&successor.node).map(health) == Some(Health::Up);
        match is_up && keyspace.may_yet_serve(placement) {
            true => Err(NotNow::Throttled(Until::Anything)),
            false => Err(NotNow::Impossible(format!(
                "{placement} of {shard} on {} does not serve",
                successor.node
            ))),
        }
    }

    /// The lead goes to that replica when the leader has handed over, where it can ([`super::transfers`]).
    fn give_lead(
        &self,
        keyspace: &KeyspaceState,
        edit: &mut Edit<'_>,
        (shard, heir): (ShardId, PlacementId),
        under_way: &mut UnderWay,
        at: Moment,
    ) -> Result<(), NotNow> {
        let current = edit.shard(shard)?;
        let is_set = current.has_in_sync_set();
        let may_lead =
            current.replica(heir).is_some_and(|r| r.state == ReplicaState::Live && (r.in_sync || !is_set));
        if !may_lead {
            // The map says why it cannot lead.
            return Ok(edit.lead(shard, heir)?);
        }
        let seen = (&self.members.nodes, at.now, &self.settings);
        match keyspace.hand_over(current, heir, seen) {
            // A coordinator that has just begun does not know how the leader is.
            HandOver::Done if self.awaits_leader(keyspace, current, at) => {}
            HandOver::Done => return Ok(edit.lead(shard, heir)?),
            HandOver::InVain => {
                return Err(NotNow::Impossible(format!("the node of {heir} of {shard} is silent")));
            }
            HandOver::Due => under_way.transfers.push((shard, heir)),
            HandOver::UnderWay => {}
        }
        Err(NotNow::Throttled(Until::Anything))
    }

    fn start_move(
        &self,
        keyspace: &KeyspaceState,
        edit: &mut Edit<'_>,
        (shard, from, to): (ShardId, PlacementId, &NodeId),
        under_way: &mut UnderWay,
        at: Moment,
    ) -> Result<(), NotNow> {
        let old = edit.shard(shard)?.replica(from).cloned();
        let old = old.ok_or(EditError::NoReplica { shard, placement: from })?;
        self.open(at, to)?;
        let throttle = &keyspace.record.keyspace.throttle;
        let limit = |node: &NodeId| self.beside_foreground(node, throttle.moves_per_node);
        let on = |node: &NodeId| under_way.counts.moves_on.get(node).copied().unwrap_or(0);
        if under_way.counts.moves >= throttle.moves {
            return Err(NotNow::Throttled(Until::Moves));
        }
        if on(&old.node) >= limit(&old.node) || on(to) >= limit(to) {
            return Err(NotNow::Throttled(Until::Anything));
        }
        self.add(edit, (shard, old.is_read_replica()), to, Some(from), at)?;
        if planted::is(Planted::O11) {
            edit.leave(shard, from)?;
        }
        under_way.counts.count_move([&old.node, to], 1);
        Ok(())
    }

    /// A replica leaves without another in its place. A leader first hands over to one that serves.
    fn remove(
        &self,
        keyspace: &KeyspaceState,
        edit: &mut Edit<'_>,
        (shard, placement): (ShardId, PlacementId),
        under_way: &mut UnderWay,
        at: Moment,
    ) -> Result<(), NotNow> {
        let current = edit.shard(shard)?;
        if edit.has_begun_anew(shard) {
            return Err(NotNow::Throttled(Until::Anything));
        }
        let leads = current.leader().is_some_and(|leader| leader.placement == placement);
        let is_it = |r: &Replica| r.placement == placement;
        let is_last_copy = current.live().any(is_it) && current.live().all(is_it);
        let others = current.live().filter(|r| r.placement != placement && r.role == Role::Follower);
        let others: Vec<_> = others.map(|r| r.placement).collect();
        let is_heard = |other: &PlacementId| {
            let health = current.replica(*other).map(|r| self.replica_health(at, r));
            health.is_some_and(|health| !matches!(health, Health::Suspect | Health::Down | Health::Left))
        };
        let serving = || others.iter().copied().filter(|other| keyspace.serves(*other));
        // A hand-over that has begun goes on.
        let successor = keyspace
            .heir_of(current)
            .filter(|heir| others.contains(heir) && is_heard(heir))
            .or_else(|| serving().find(is_heard))
            .or_else(|| serving().next())
            .or(others.first().copied());
        match successor {
            Some(successor) if leads && keyspace.may_yet_serve(successor) => {
                return Err(NotNow::Throttled(Until::Anything));
            }
            Some(successor) if leads => self.give_lead(keyspace, edit, (shard, successor), under_way, at)?,
            // Another one still loads.
            None if is_last_copy && !current.members().all(is_it) => {
                return Err(NotNow::Throttled(Until::Anything));
            }
            None if current.members().all(is_it) => {
                return Err(NotNow::Impossible(format!(
                    "{placement} is the last replica of {shard}: add one elsewhere first"
                )));
            }
            _ => {}
        }
        let is_copy = edit.shard(shard)?.live().any(is_it);
        edit.leave(shard, placement)?;
        if is_copy && keyspace.record.keyspace.durable {
            edit.go_on_without(shard)?;
        }
        Ok(())
    }

    fn start_reshape(
        &self,
        keyspace: &KeyspaceState,
        edit: &mut Edit<'_>,
        (parents, children): (&[ShardId], &[(Bounds, Vec<NodeId>)]),
        under_way: &mut UnderWay,
        at: Moment,
    ) -> Result<(), NotNow> {
        let throttle = &keyspace.record.keyspace.throttle;
        let nodes: BTreeSet<&NodeId> = children.iter().flat_map(|(_, nodes)| nodes).collect();
        let is_full = |node: &NodeId| {
            let on = under_way.counts.moves_on.get(node).copied().unwrap_or(0);
            on >= self.beside_foreground(node, throttle.moves_per_node)
        };
        if under_way.counts.moves >= throttle.moves {
            return Err(NotNow::Throttled(Until::Moves));
        }
        if nodes.iter().any(|node| is_full(node)) {
            return Err(NotNow::Throttled(Until::Anything));
        }
        self.form(edit, parents, children, at)?;
        under_way.counts.count_move(nodes, 1);
        Ok(())
    }

    /// Moves give way to foreground work (K17).
    fn beside_foreground(&self, node: &NodeId, most: u32) -> u32 {
        throttle::beside(self.members.get(node).map_or(0.0, |node| node.busy), most)
    }

    fn add(
        &self,
        edit: &mut Edit<'_>,
        (shard, reads): (ShardId, bool),
        node: &NodeId,
        replaces: Option<PlacementId>,
        at: Moment,
    ) -> Result<PlacementId, NotNow> {
        self.open(at, node)?;
        let incarnation = self.members.get(node).map(|node| node.record.incarnation).unwrap_or_default();
        match reads {
            true => Ok(edit.add_read_replica(shard, node, incarnation, replaces)?),
            false => Ok(edit.add_replica(shard, node, incarnation, replaces)?),
        }
    }

    /// M7, asked again when a change begins: the plan was checked a while ago. A coordinator that has just begun has not heard
    /// the node yet, and waits for it as long as for any.
    fn open(&self, at: Moment, node: &NodeId) -> Result<(), NotNow> {
        let is_unheard =
            |node: &super::NodeState| node.signs.health(at.now, &self.settings) == Health::Unknown;
        if self.is_beginning(at) && self.members.get(node).is_some_and(is_unheard) {
            return Err(NotNow::Throttled(Until::Anything));
        }
        match self.closed(at, node).filter(|_| !planted::is(Planted::ClosedNode)) {
            Some(why) => Err(NotNow::Impossible(format!("nothing new is placed on node {node}: {why}"))),
            None => Ok(()),
        }
    }

    fn form(
        &self,
        edit: &mut Edit<'_>,
        parents: &[ShardId],
        children: &[(Bounds, Vec<NodeId>)],
        at: Moment,
    ) -> Result<(), NotNow> {
        children.iter().flat_map(|(_, nodes)| nodes).try_for_each(|node| self.open(at, node))?;
        let bounds = children.iter().map(|(bounds, _)| bounds.clone()).collect();
        let ids = edit.form_shards(bounds, parents)?;
        for (id, (_, nodes)) in ids.into_iter().zip(children) {
            nodes.iter().try_for_each(|node| self.add(edit, (id, false), node, None, at).map(drop))?;
        }
        Ok(())
    }
}

impl Plans {
    /// Finds in the maps which changes of approved plans have begun: that is stored when a plan is finished, and not before.
    pub(super) fn recall_progress(&mut self, keyspaces: &Keyspaces) {
        for plan in self.by_id.values_mut().filter(|plan| plan.status == Status::Approved) {
            let Some(keyspace) = keyspaces.get(&plan.keyspace) else { continue };
            let waiting = plan.changes.iter_mut().filter(|planned| planned.progress == Progress::Waiting);
            for planned in waiting.filter(|planned| has_begun(&planned.change, keyspace)) {
                planned.progress = Progress::Started;
            }
        }
    }

    /// Brings the progress of the approved plans of a keyspace up to date with the map, plan after plan; finished plans are
    /// stored. `anew` when something has happened since. Returns whether there are more plans than one decision looks at.
    pub(super) fn track(
        &mut self,
        at: Moment,
        (keyspace, anew): (&mut KeyspaceState, bool),
        settings: &Settings,
        outbox: &mut Outbox,
    ) -> bool {
        let name = keyspace.map.keyspace().clone();
        let is_its = |plan: &Plan| plan.keyspace == name && plan.status == Status::Approved;
        let approved = self.by_id.values().filter(|plan| is_its(plan)).map(|plan| plan.id);
        let (before, from): (Vec<PlanId>, Vec<PlanId>) =
            approved.partition(|id| *id < keyspace.execution.tracked_until);
        let all = before.len() + from.len();
        keyspace.execution.untracked = if anew { all } else { keyspace.execution.untracked.min(all) };
        let mut finished = false;
        let (mut looked_at, mut lines) = (0, 0);
        for id in from.into_iter().chain(before) {
            let Some(plan) = self.by_id.get_mut(&id).filter(|_| lines < limits::CHANGES_TRACKED) else {
                break;
            };
            looked_at += 1;
            lines += plan.changes.len();
            keyspace.execution.tracked_until = id.next();
            for planned in &mut plan.changes {
                if planned.progress == Progress::Started {
                    planned.progress = progress_of(&planned.change, keyspace);
                }
            }
            plan.finish_if_done();
            if plan.status == Status::Finished {
                outbox.writes.push(Write::Plan(plan.clone()));
                outbox.events.push(event::of_finished(plan));
                keyspace.execution.change_queue.forget(id);
                keyspace.plan_again(at);
                finished = true;
            }
        }
        keyspace.execution.untracked = keyspace.execution.untracked.saturating_sub(looked_at);
        let is_cut_short = keyspace.execution.untracked > 0;
        if finished {
            self.drop_old(settings, outbox);
        }
        is_cut_short
    }
}

/// The bytes that a change copies from node to node; none when it copies nothing.
fn copied_bytes(keyspace: &KeyspaceState, change: &Change) -> Option<u64> {
    let size =
        |id: &ShardId| throttle::move_bytes(keyspace.map.shard(*id).and_then(|s| keyspace.size_bytes(s)));
    match change {
        Change::Add { shard, .. } | Change::Move { shard, .. } => Some(size(shard)),
        // The child begins where one of its parents is: what the others hold comes to it.
        Change::Merge { shards, child: (_, nodes) } => {
            let is_there = |id: &&ShardId| {
                let replicas = keyspace.map.shard(**id).into_iter().flat_map(Shard::staying);
                replicas.map(|r| &r.node).any(|node| nodes.first() == Some(node))
            };
            let sizes: Vec<u64> = shards.iter().filter(|id| !is_there(id)).map(size).collect();
            (!sizes.is_empty()).then(|| sizes.into_iter().fold(0, u64::saturating_add))
        }
        // The children begin where their parent is.
        Change::Split { .. } | Change::Remove { .. } | Change::Lead { .. } => None,
    }
}

/// A shard that was set aside after the plan was made goes nowhere new, and nothing goes to a node on which
/// shards have hung since, unless a person says so.
fn not_barred(keyspace: &KeyspaceState, change: &Change, origin: &Origin) -> Result<(), NotNow> {
    match change.shards().iter().find(|id| keyspace.is_withheld(**id)) {
        _ if !origin.is_automatic() || planted::is(Planted::AsideShard) => Ok(()),
        Some(id) => Err(NotNow::Impossible(format!("{id} is set aside, or held back until that is known"))),
        None => match change.targets().into_iter().find(|node| keyspace.overdue.hangs_on(node)) {
            Some(node) => Err(NotNow::Impossible(format!("shards of this keyspace hang on {node}"))),
            None => Ok(()),
        },
    }
}

impl KeyspaceState {
    /// Whether the worker of a replica has said that it serves.
    pub(super) fn serves(&self, placement: PlacementId) -> bool {
        let phase = self.observed.get(&placement).map(|seen| seen.phase());
        phase == Some(&Phase::Serving) || planted::is(Planted::UnknownHeir)
    }

    /// Whether it is worth while to wait until it does.
    fn may_yet_serve(&self, placement: PlacementId) -> bool {
        !self.serves(placement) && !self.overdue.pending_steps.is_overdue(placement, ReplicaState::Live)
    }
}
