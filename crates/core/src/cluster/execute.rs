//! Begins the changes of approved plans: each becomes the first edit of the map, such as a new replica in `Load`.
//!
//! [`super::change_queue`] says which changes a decision tries. How far a change has got follows from the map; so a new
//! coordinator goes on where the last one stopped.

use super::advance::KeyspaceWork;
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
use crate::plan::handover::{self, TransferStep};
use crate::plan::throttle::{self, Meter};
use crate::plan::{Change, Origin, Plan, Progress, Status};
use std::collections::{BTreeMap, BTreeSet};

/// How far the approved plans of a keyspace are carried out. Not stored.
#[derive(Debug, Clone)]
pub(super) struct Execution {
    /// The approved plan whose progress is read next, and how many plans are left to read since something happened.
    tracked_until: PlanId,
    untracked: usize,
    /// Changes of approved plans that have not begun.
    pub(super) change_queue: ChangeQueue,
    /// How many bytes new moves may copy.
    pub(super) meter: Meter,
    /// When the next move may begin that waits only for bytes.
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

/// What the throttle counts, brought up to date by each change that begins.
#[derive(Debug, Default)]
struct ThrottleCounts {
    counts: Counts,
    meter: Meter,
    /// When the meter lets the next move begin.
    meter_due: Option<Millis>,
    /// See [`BegunChanges::transfers`].
    transfers: Vec<(ShardId, PlacementId)>,
}

/// The changes that one decision begins, and when the next ones can.
pub(super) struct BegunChanges {
    /// Each change that began or never will: its plan, its index there, its progress.
    pub(super) progress: Vec<(PlanId, usize, Progress)>,
    /// The meter after the bytes of these changes.
    pub(super) meter: Meter,
    /// When the next change may begin that waits only for bytes.
    pub(super) due: Millis,
    /// Whether more may begin at once, as this decision has begun as many as it may.
    pub(super) is_cut_short: bool,
    /// As in `NextMap`.
    pub(super) transfers: Vec<(ShardId, PlacementId)>,
}

impl ThrottleCounts {
    /// Whether a change that copies something may begin now (K17).
    fn may_copy(&mut self, throttle: &Throttle, at: Moment) -> Result<(), NotNow> {
        self.meter.is_open(throttle, at.now).map_err(|due| {
            self.meter_due = Some(due.max(at.now + throttle::PAUSE_MS));
            NotNow::Waits(Until::Bytes)
        })
    }
}

/// Why a change does not begin now.
enum NotNow {
    /// It waits, until this.
    Waits(Until),
    /// It will never begin.
    Impossible(String),
}

impl From<EditError> for NotNow {
    fn from(error: EditError) -> NotNow {
        NotNow::Impossible(error.to_string())
    }
}

impl Cluster {
    /// Begins the changes of the plans that can begin, in their order.
    pub(super) fn begin_changes(
        &self,
        keyspace: &KeyspaceState,
        edit: &mut Edit<'_>,
        work: &mut KeyspaceWork,
        at: Moment,
    ) -> BegunChanges {
        // A queued shard is one in which something has happened.
        let (queue, has_news) = (&mut work.change_queue, !work.queued.is_empty());
        let mut under_way = ThrottleCounts {
            counts: self.counts_without_stalled(keyspace, at),
            meter: keyspace.execution.meter.clone(),
            ..ThrottleCounts::default()
        };
        let (mut progress, most) = (Vec::new(), self.share_beside_planning(limits::CHANGES_BEGUN));
        let plans: Vec<&Plan> = work.plans.iter().filter_map(|id| self.plans.get(id)).collect();
        let may_copy =
            queue.has(&Until::Bytes) && under_way.may_copy(&keyspace.record.keyspace.throttle, at).is_ok();
        let room = |until: &Until| self.room_for(keyspace, &under_way.counts, until, may_copy, at);
        let Due { changes, mut is_cut_short } = queue.due(&plans, has_news, room);
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
            let started = check_set_aside(keyspace, &planned.change, &plan.origin)
                .and_then(|()| self.begin(keyspace, edit, (plan, &planned.change), &mut under_way, at));
            // The room that this change did not use is for another one.
            is_cut_short |= before.as_ref().is_some_and(Until::is_room) && started.is_err();
            let (until, progress_now) = match started {
                Ok(()) => (None, Some(Progress::Started)),
                Err(NotNow::Waits(until)) => (Some(until), None),
                Err(NotNow::Impossible(why)) => (None, Some(Progress::Dropped(why))),
            };
            queue.note(change, before.as_ref(), until);
            progress.extend(progress_now.map(|now| (plan.id, change.index, now)));
        }
        BegunChanges {
            progress,
            meter: under_way.meter,
            due: under_way.meter_due.unwrap_or(Millis::NEVER),
            is_cut_short,
            transfers: under_way.transfers,
        }
    }

    /// How many of the changes that wait for `until` may begin now.
    fn room_for(
        &self,
        keyspace: &KeyspaceState,
        counts: &Counts,
        until: &Until,
        may_copy: bool,
        at: Moment,
    ) -> usize {
        let throttle = &keyspace.record.keyspace.throttle;
        match until {
            Until::Loads { node, is_repair } => {
                let is_open = self.members.get(node).is_some_and(|node| node.accepts(at.now, &self.settings));
                // On a node that takes no replica they never begin: try all, which drops them.
                let most = if is_open { self.loads_on(node, *is_repair, throttle) } else { u32::MAX };
                most.saturating_sub(counts.loads_on.get(node).copied().unwrap_or(0)) as usize
            }
            Until::Moves => throttle.moves.saturating_sub(counts.moves) as usize,
            Until::Bytes if !may_copy => 0,
            Until::Bytes | Until::AnyChange => usize::MAX,
        }
    }

    /// How many replicas a node may load at once.
    fn loads_on(&self, node: &NodeId, is_repair: bool, throttle: &Throttle) -> u32 {
        let most = throttle.loads_per_node;
        if is_repair { most } else { self.beside_foreground(node, most) }
    }

    /// What is under way, without loads that have no replica to copy from: these wait for a process, perhaps for a person, and
    /// must not hold up other shards (L4).
    fn counts_without_stalled(&self, keyspace: &KeyspaceState, at: Moment) -> Counts {
        let Counts { moves, moves_on, loads_on, .. } = &keyspace.queue.under_way;
        let mut counts = Counts {
            moves: *moves,
            moves_on: moves_on.clone(),
            loads_on: loads_on.clone(),
            loading: BTreeSet::new(),
        };
        if keyspace.record.keyspace.durable {
            let loading = keyspace.queue.under_way.loading.iter().filter_map(|id| keyspace.map.shard(*id));
            let seen = self.nodes_at(at.now);
            let waiting = loading.filter(|shard| !keyspace.has_source(seen, shard));
            waiting.for_each(|shard| counts.count(shard, -1));
        }
        counts
    }

    fn begin(
        &self,
        keyspace: &KeyspaceState,
        edit: &mut Edit<'_>,
        (plan, change): (&Plan, &Change),
        under_way: &mut ThrottleCounts,
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
                self.check_takes(at, node)?;
                let most = self.loads_on(node, is_repair, throttle);
                if under_way.counts.loads_on.get(node).is_some_and(|loads| *loads >= most) {
                    return Err(NotNow::Waits(Until::Loads { node: node.clone(), is_repair }));
                }
                // A hot shard that has all its members gets read replicas.
                let is_replicated = keyspace.record.keyspace.ownership == Ownership::Replicated;
                let lacks = handover::lacks_member(edit.shard(*shard)?, &self.view(keyspace, at.now));
                let reads = plan.origin.is_automatic() && is_replicated && !lacks;
                self.add(edit, (*shard, reads), node, None, at)?;
                under_way.counts.count_load(node, 1);
                Ok(())
            }
            Change::Move { shard, from, to } => {
                self.begin_move(keyspace, edit, (*shard, *from, to), under_way, at)
            }
            Change::Remove { shard, placement } => {
                self.begin_remove(keyspace, edit, (*shard, *placement), under_way, at)
            }
            Change::Lead { shard, placement } => {
                self.begin_lead(keyspace, edit, (*shard, *placement), under_way, at)
            }
            Change::Split { shard, children } => {
                self.begin_reshape(keyspace, edit, (&[*shard][..], children.as_slice()), under_way, at)
            }
            Change::Merge { shards, child } => self.begin_reshape(
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

    /// Gives the lead to a follower in `Live` once that reports `Serving`, as the leader stops at once (O11).
    fn begin_lead(
        &self,
        keyspace: &KeyspaceState,
        edit: &mut Edit<'_>,
        (shard, placement): (ShardId, PlacementId),
        under_way: &mut ThrottleCounts,
        at: Moment,
    ) -> Result<(), NotNow> {
        let current = edit.shard(shard)?;
        let is_led = current.leader().is_some_and(|leader| leader.placement != placement);
        let successor = current.live().find(|r| r.placement == placement).filter(|_| is_led);
        let Some(successor) = successor.filter(|_| !keyspace.serves(placement)) else {
            return self.give_lead(keyspace, edit, (shard, placement), under_way, at);
        };
        if self.is_unheard_yet(successor, at) {
            return Err(NotNow::Waits(Until::AnyChange));
        }
        let health = |node: &super::NodeState| node.signs.health(at.now, &self.settings);
        let is_up = self.members.get(&successor.node).map(health) == Some(Health::Up);
        match is_up && keyspace.may_yet_serve(placement) {
            true => Err(NotNow::Waits(Until::AnyChange)),
            false => Err(NotNow::Impossible(format!(
                "{placement} of {shard} on {} does not serve",
                successor.node
            ))),
        }
    }

    /// Gives the lead to `heir`; in a replicated shard the leader transfers it first ([`super::transfers`]).
    fn give_lead(
        &self,
        keyspace: &KeyspaceState,
        edit: &mut Edit<'_>,
        (shard, heir): (ShardId, PlacementId),
        under_way: &mut ThrottleCounts,
        at: Moment,
    ) -> Result<(), NotNow> {
        let current = edit.shard(shard)?;
        let is_set = current.has_in_sync_set();
        let may_lead =
            current.replica(heir).is_some_and(|r| r.state == ReplicaState::Live && (r.in_sync || !is_set));
        if !may_lead {
            // The edit is refused, and the error says why.
            return Ok(edit.lead(shard, heir)?);
        }
        let seen = self.nodes_at(at.now);
        match keyspace.transfer_step(current, heir, seen) {
            // A coordinator that has just begun to lead knows nothing of the leader yet.
            TransferStep::Done if self.awaits_leader(keyspace, current, at) => {}
            TransferStep::Done => return Ok(edit.lead(shard, heir)?),
            TransferStep::HeirSilent => {
                return Err(NotNow::Impossible(format!("the node of {heir} of {shard} is silent")));
            }
            TransferStep::Due => under_way.transfers.push((shard, heir)),
            TransferStep::UnderWay => {}
        }
        Err(NotNow::Waits(Until::AnyChange))
    }

    fn begin_move(
        &self,
        keyspace: &KeyspaceState,
        edit: &mut Edit<'_>,
        (shard, from, to): (ShardId, PlacementId, &NodeId),
        under_way: &mut ThrottleCounts,
        at: Moment,
    ) -> Result<(), NotNow> {
        let old = edit.shard(shard)?.replica(from).cloned();
        let old = old.ok_or(EditError::NoReplica { shard, placement: from })?;
        self.check_takes(at, to)?;
        let throttle = &keyspace.record.keyspace.throttle;
        let limit = |node: &NodeId| self.beside_foreground(node, throttle.moves_per_node);
        let on = |node: &NodeId| under_way.counts.moves_on.get(node).copied().unwrap_or(0);
        if under_way.counts.moves >= throttle.moves {
            return Err(NotNow::Waits(Until::Moves));
        }
        if on(&old.node) >= limit(&old.node) || on(to) >= limit(to) {
            return Err(NotNow::Waits(Until::AnyChange));
        }
        self.add(edit, (shard, old.is_read_replica()), to, Some(from), at)?;
        if planted::is(Planted::O11) {
            edit.leave(shard, from)?;
        }
        under_way.counts.count_move([&old.node, to], 1);
        Ok(())
    }

    /// Removes a replica without another in its place. If it leads, another replica that serves gets the lead first.
    fn begin_remove(
        &self,
        keyspace: &KeyspaceState,
        edit: &mut Edit<'_>,
        (shard, placement): (ShardId, PlacementId),
        under_way: &mut ThrottleCounts,
        at: Moment,
    ) -> Result<(), NotNow> {
        let current = edit.shard(shard)?;
        if edit.has_begun_anew(shard) {
            return Err(NotNow::Waits(Until::AnyChange));
        }
        let leads = current.leader().is_some_and(|leader| leader.placement == placement);
        let is_this = |r: &Replica| r.placement == placement;
        let is_last_copy = current.live().any(is_this) && current.live().all(is_this);
        let others = current.live().filter(|r| r.placement != placement && r.role == Role::Follower);
        let others: Vec<_> = others.map(|r| r.placement).collect();
        let is_heard = |other: &PlacementId| {
            let health = current.replica(*other).map(|r| self.replica_health(at, r));
            health.is_some_and(|health| !matches!(health, Health::Suspect | Health::Down | Health::Left))
        };
        let serving = || others.iter().copied().filter(|other| keyspace.serves(*other));
        // A transfer that has begun goes on.
        let successor = keyspace
            .heir_of(current)
            .filter(|heir| others.contains(heir) && is_heard(heir))
            .or_else(|| serving().find(is_heard))
            .or_else(|| serving().next())
            .or(others.first().copied());
        match successor {
            Some(successor) if leads && keyspace.may_yet_serve(successor) => {
                return Err(NotNow::Waits(Until::AnyChange));
            }
            Some(successor) if leads => self.give_lead(keyspace, edit, (shard, successor), under_way, at)?,
            // Another replica still loads.
            None if is_last_copy && !current.members().all(is_this) => {
                return Err(NotNow::Waits(Until::AnyChange));
            }
            None if current.members().all(is_this) => {
                return Err(NotNow::Impossible(format!(
                    "{placement} is the last replica of {shard}: add one elsewhere first"
                )));
            }
            _ => {}
        }
        let is_copy = edit.shard(shard)?.live().any(is_this);
        edit.leave(shard, placement)?;
        if is_copy && keyspace.record.keyspace.durable {
            edit.go_on_without(shard)?;
        }
        Ok(())
    }

    fn begin_reshape(
        &self,
        keyspace: &KeyspaceState,
        edit: &mut Edit<'_>,
        (parents, children): (&[ShardId], &[(Bounds, Vec<NodeId>)]),
        under_way: &mut ThrottleCounts,
        at: Moment,
    ) -> Result<(), NotNow> {
        let throttle = &keyspace.record.keyspace.throttle;
        let nodes: BTreeSet<&NodeId> = children.iter().flat_map(|(_, nodes)| nodes).collect();
        let is_full = |node: &NodeId| {
            let on = under_way.counts.moves_on.get(node).copied().unwrap_or(0);
            on >= self.beside_foreground(node, throttle.moves_per_node)
        };
        if under_way.counts.moves >= throttle.moves {
            return Err(NotNow::Waits(Until::Moves));
        }
        if nodes.iter().any(|node| is_full(node)) {
            return Err(NotNow::Waits(Until::AnyChange));
        }
        self.form_children(edit, parents, children, at)?;
        under_way.counts.count_move(nodes, 1);
        Ok(())
    }

    /// How many moves may begin on a node beside its foreground work (K17).
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
        self.check_takes(at, node)?;
        let incarnation = self.members.get(node).map(|node| node.record.incarnation).unwrap_or_default();
        match reads {
            true => Ok(edit.add_read_replica(shard, node, incarnation, replaces)?),
            false => Ok(edit.add_replica(shard, node, incarnation, replaces)?),
        }
    }

    /// Checks again, as the plan is older, that new replicas may be placed on the node (M7). A coordinator that has just begun to
    /// lead waits until it has heard the node.
    fn check_takes(&self, at: Moment, node: &NodeId) -> Result<(), NotNow> {
        let is_unheard =
            |node: &super::NodeState| node.signs.health(at.now, &self.settings) == Health::Unknown;
        if self.is_beginning(at) && self.members.get(node).is_some_and(is_unheard) {
            return Err(NotNow::Waits(Until::AnyChange));
        }
        match self.closed(at, node).filter(|_| !planted::is(Planted::ClosedNode)) {
            Some(why) => Err(NotNow::Impossible(format!("nothing new is placed on node {node}: {why}"))),
            None => Ok(()),
        }
    }

    fn form_children(
        &self,
        edit: &mut Edit<'_>,
        parents: &[ShardId],
        children: &[(Bounds, Vec<NodeId>)],
        at: Moment,
    ) -> Result<(), NotNow> {
        children.iter().flat_map(|(_, nodes)| nodes).try_for_each(|node| self.check_takes(at, node))?;
        let bounds = children.iter().map(|(bounds, _)| bounds.clone()).collect();
        let ids = edit.form_shards(bounds, parents)?;
        for (id, (_, nodes)) in ids.into_iter().zip(children) {
            nodes.iter().try_for_each(|node| self.add(edit, (id, false), node, None, at).map(drop))?;
        }
        Ok(())
    }
}

impl Plans {
    /// Reads from the maps which changes of approved plans have begun, as progress is stored only when a plan is finished.
    pub(super) fn recall_progress(&mut self, keyspaces: &Keyspaces) {
        for plan in self.by_id.values_mut().filter(|plan| plan.status == Status::Approved) {
            let Some(keyspace) = keyspaces.get(&plan.keyspace) else { continue };
            let waiting = plan.changes.iter_mut().filter(|planned| planned.progress == Progress::Waiting);
            for planned in waiting.filter(|planned| has_begun(&planned.change, keyspace)) {
                planned.progress = Progress::Started;
            }
        }
    }

    /// Reads from the map the progress of the keyspace's approved plans, and stores plans that are finished. `has_news` if
    /// something has happened in the keyspace. Returns whether more plans are left than one decision looks at.
    pub(super) fn track(
        &mut self,
        at: Moment,
        keyspace: &mut KeyspaceState,
        has_news: bool,
        settings: &Settings,
        outbox: &mut Outbox,
    ) -> bool {
        let name = keyspace.map.keyspace().clone();
        let is_approved = |plan: &Plan| plan.keyspace == name && plan.status == Status::Approved;
        let approved = self.by_id.values().filter(|plan| is_approved(plan)).map(|plan| plan.id);
        let (before, from): (Vec<PlanId>, Vec<PlanId>) =
            approved.partition(|id| *id < keyspace.execution.tracked_until);
        let all = before.len() + from.len();
        keyspace.execution.untracked = if has_news { all } else { keyspace.execution.untracked.min(all) };
        let mut finished = false;
        let (mut looked_at, mut changes) = (0, 0);
        for id in from.into_iter().chain(before) {
            let Some(plan) = self.by_id.get_mut(&id).filter(|_| changes < limits::CHANGES_TRACKED) else {
                break;
            };
            looked_at += 1;
            changes += plan.changes.len();
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

/// How many bytes a change copies between nodes; none if it copies nothing.
fn copied_bytes(keyspace: &KeyspaceState, change: &Change) -> Option<u64> {
    let size =
        |id: &ShardId| throttle::move_bytes(keyspace.map.shard(*id).and_then(|s| keyspace.size_bytes(s)));
    match change {
        Change::Add { shard, .. } | Change::Move { shard, .. } => Some(size(shard)),
        // The child begins on a node of one parent, and copies from the other parents.
        Change::Merge { shards, child: (_, nodes) } => {
            let is_there = |id: &&ShardId| {
                let replicas = keyspace.map.shard(**id).into_iter().flat_map(Shard::staying);
                replicas.map(|r| &r.node).any(|node| nodes.first() == Some(node))
            };
            let sizes: Vec<u64> = shards.iter().filter(|id| !is_there(id)).map(size).collect();
            (!sizes.is_empty()).then(|| sizes.into_iter().fold(0, u64::saturating_add))
        }
        // The children begin on the nodes of their parent.
        Change::Split { .. } | Change::Remove { .. } | Change::Lead { .. } => None,
    }
}

/// Refuses an automatic change of a shard that was set aside since the plan was made, or to a node on which shards of the
/// keyspace hang.
fn check_set_aside(keyspace: &KeyspaceState, change: &Change, origin: &Origin) -> Result<(), NotNow> {
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
        self.phase_of(placement) == Some(&Phase::Serving) || planted::is(Planted::UnknownHeir)
    }

    /// Whether it does not serve yet, and is not overdue.
    fn may_yet_serve(&self, placement: PlacementId) -> bool {
        !self.serves(placement) && !self.overdue.pending_steps.is_overdue(placement, ReplicaState::Live)
    }
}
