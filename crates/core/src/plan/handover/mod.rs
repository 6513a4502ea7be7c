//! The handover of a shard between replicas. [`reconcile`] reads the map and the reports of workers, and makes the next change of
//! the map; [`is_granted`] says whether the leader may begin.
//!
//! This module keeps no state. Every step follows from the map and the reports alone, so a handover that is run
//! again from any point (a new coordinator, a doubled message) ends the same (O9). `planted::is(…)` is false outside tests.
//!
//! A move of a leader from A to B in an exclusive keyspace. Each line is one new map; B is ready before A leaves (O11):
//!
//! | map                             | stays until                             | meanwhile                       |
//! |---------------------------------|-----------------------------------------|---------------------------------|
//! | A `Live` leads, B `Load`        | B reports `Ready`                       | A serves, B copies              |
//! | A `Unload`, B `Live` leads, e+1 | A reports `Unloaded` at e+1, B `Serving`| A forwards; B waits for its grant|
//! | A `UnloadFinal`, B `Live` leads | A reports `Dropped`                     | B serves                        |
//! | B `Live` leads                  |                                         |                                 |
//!
//! The **grant** (O1, O5): B may begin at epoch e+1 when each replica that may have led before, of this shard or of a
//! parent that is still in the map, has carried out an order of epoch e+1, or has certainly lost its lease, or has never
//! led. Eventual and replicated mode need none of that. In a durable keyspace a replica with the parents' last writes must be
//! there, too, and after a restore the coordinator must have compared the copies. The grant is computed, not stored.
//!
//! The next step of one replica of a serving shard; the first line that matches counts:
//!
//! | state         | if                                      | it becomes                                      |
//! |---------------|-----------------------------------------|-------------------------------------------------|
//! | any           | not durable, and its incarnation has ended | removed                                      |
//! | `Load`        | `Ready`; eventual or exclusive          | `Live`; the replica that it replaces: `Unload`; it leads if that one led, or the shard has no leader |
//! | `Load`        | `Ready`; replicated, no in-sync set yet | `Live`; it is the in-sync set, and leads (`replicated::begin`) |
//! | `Load`        | `Ready`; replicated, with an in-sync set | `Load` still, until its leader asks it into the set ([`replicated`]) |
//! | `Load`        | `Failed` too often, or overdue          | `UnloadFinal`: the planner tries another node   |
//! | `Live`        | the shard has no leader; it serves, or is the first in `Live` | the leader                |
//! | `Live`        | replicated; it leads, neither its followers nor the coordinator hear it, a follower serves | `Load`, out of the in-sync set; the follower leads |
//! | `Live`        | it leads and is `Failed`, silent or overdue, a follower serves | a follower; the other one leads |
//! | `Live`        | it leads, its node takes no writes, a follower serves on a node that does | a follower; the other one leads |
//! | `Live`        | it leads and is overdue, its followers wait for it ([`parents`]) | a follower; one of the others leads |
//! | `Unload`      | `Unloaded`; the leader serves and is heard, or no replica ever led; replicated: enough members of the in-sync set live | `UnloadFinal` |
//! | `UnloadFinal` | `Dropped`, or overdue                   | removed                                         |
//!
//! `Ready`, `Failed`, `Unloaded` and `Dropped` are what its worker reports ([`Phase`]). A replica is overdue if its worker has
//! not reported a step within the step's time limit (`cluster/overdue.rs`). In eventual and replicated mode an overdue `Unload`
//! counts as `Unloaded`; in exclusive mode never, as no successor may begin before (O1).
//!
//! In a durable keyspace a replica whose incarnation has ended stays in the map, and a child begins only with its parents' last
//! writes: see [`stored`], [`parents`] and, after a restore, [`restored`].
//!
//! In a split or merge the children prepare in stage *forming* ([`reconcile_children`]), and after the switch the parents hand
//! over in stage *closing* (`reconcile_closing`). A partition that a person unregistered only unloads (`unload_all`).

mod parents;
mod replicated;
mod restored;
mod stored;

pub(crate) use parents::handing_over;
pub(crate) use replicated::{lacks_member, newcomer_to_lead};
pub(crate) use stored::is_reported_lost;

use crate::base::id::{Configuration, Epoch, Incarnation, PlacementId, ShardId};
use crate::base::name::NodeId;
use crate::base::planted::{self, Planted};
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Edit, EditError, Replica, Role, Shard, ShardMap, Stage};
use crate::keyspace::{Keyspace, Ownership};
use crate::node::exchange::Phase;

/// What has become of the data of a replica whose process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskState {
    /// Its node has not come back, or is not proven yet.
    Away,
    /// Its node is back, as this incarnation, and has it stored.
    Intact(Incarnation),
    /// Its node is back and has it stored. But the coordinator's state was restored since, and another copy may be later: one
    /// whose node is away, or that has begun since the restore.
    Unproven,
    /// As `Unproven`, and another node has stored a later copy.
    Overtaken,
    /// Its node is back, and some of it cannot be read.
    Damaged,
    /// Its node is back without it, or is forgotten.
    Gone,
}

/// What has to happen before another replica, the heir, may lead a replicated shard in the place of its leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferStep {
    /// Nothing: the coordinator may change the leader.
    Done,
    /// The coordinator has to order the leader to hand over.
    Due,
    /// The leader hands over; or the coordinator does not know yet whether the heir is silent.
    UnderWay,
    /// The process of the heir is silent: it must not lead.
    HeirSilent,
}

/// What the coordinator sees of a keyspace and its replicas. Reports of one incarnation only, the one in the map.
pub trait ReplicaView {
    /// The settings of the keyspace.
    fn keyspace(&self) -> &Keyspace;
    /// What the worker last said it has done about a replica.
    fn phase(&self, placement: PlacementId) -> Option<&Phase>;
    /// The epoch of the last order that the worker has carried out for it.
    fn epoch(&self, placement: PlacementId) -> Option<Epoch>;
    /// Whether the incarnation of a replica can certainly not act any more: its lease is over.
    fn lease_is_over(&self, replica: &Replica) -> bool;
    /// Whether its incarnation was declared dead (or left).
    fn has_ended(&self, replica: &Replica) -> bool;
    /// Whether its incarnation stays in the map, but need not lead: it is silent beyond its lease and has not been
    /// declared dead, as the brake is on; or its address has not answered for long; or it gets no lease, where leases
    /// matter.
    fn need_not_lead(&self, replica: &Replica) -> bool;
    /// Whether that node takes no writes, as its disk has no room or stores nothing.
    fn takes_no_writes(&self, node: &NodeId) -> bool;
    /// Whether its incarnation sends heartbeats; its address may not answer.
    fn sends_heartbeats(&self, replica: &Replica) -> bool;
    /// Whether the process of one replica was heard after that of another had ended.
    fn was_heard_since(&self, replica: &Replica, ended: &Replica) -> bool;
    /// What is known of the data of a replica whose process has ended.
    fn disk_state(&self, shard: &Shard, replica: &Replica) -> DiskState;
    /// The in-sync set that the leader of a replicated shard asks for, and the configuration that it is to replace.
    fn wish(&self, leader: PlacementId) -> Option<(Configuration, &[PlacementId])>;
    /// See [`TransferStep`].
    fn transfer_step(&self, shard: &Shard, heir: PlacementId) -> TransferStep;
    /// Whether the followers of a replicated shard do not hear its leader, and the coordinator does not, either.
    fn is_silenced(&self, shard: &Shard, leader: &Replica) -> bool;
    /// Whether the process of a member lives, or is waited for.
    fn is_expected(&self, member: &Replica) -> bool;
    /// Replicas that a shard is to have.
    fn wanted(&self, shard: ShardId) -> usize;
    /// Whether its present process is known never to have led it: it has nothing to release.
    fn has_never_led(&self, placement: PlacementId) -> bool;
    /// Failed loads after which a replica is given up.
    fn load_attempts(&self) -> u32;
    /// Failed loads that do not count, as the replica had no source to load from.
    fn excused_attempts(&self, placement: PlacementId) -> u32;
    /// Whether the coordinator's state was restored, and it is not known yet which copies of the shard are the latest.
    fn awaits_comparison(&self, shard: &Shard) -> bool;
    /// Whether the coordinator's state was restored, and a replica that is away may be a later copy than those which the map
    /// names.
    fn may_be_later(&self, shard: &Shard, replica: &Replica) -> bool;
    /// Whether its worker has not taken the step out of that state within its time limit.
    fn is_overdue(&self, placement: PlacementId, state: ReplicaState) -> bool;
}

/// Whether the leader of `shard` may begin under its epoch: no other replica can still own any of its keys.
pub fn is_granted(shard: &Shard, map: &ShardMap, view: &dyn ReplicaView) -> bool {
    if view.awaits_comparison(shard)
        || view.keyspace().durable && !parents::last_writes_are_there(shard, map, view)
    {
        return false;
    }
    // The members of a replicated shard decide it themselves, also while no coordinator is there.
    if view.keyspace().ownership != Ownership::Exclusive || planted::is(Planted::O5) {
        return true;
    }
    // A replica in `Load` has not served; one in `UnloadFinal` has stopped. Neither can own keys.
    let may_own = |r: &&Replica| matches!(r.state, ReplicaState::Live | ReplicaState::Unload);
    let others = shard.replicas.iter().filter(may_own).filter(|r| r.role != Role::Leader);
    let released = |of: &Shard, r: &Replica| {
        view.epoch(r.placement).is_some_and(|epoch| epoch >= of.epoch)
            || view.lease_is_over(r)
            || view.has_never_led(r.placement)
    };
    others.into_iter().all(|r| released(shard, r))
        && closing_parents(shard, map)
            .all(|parent| parent.replicas.iter().filter(may_own).all(|r| released(parent, r)))
}

/// The parents of a shard that are still in the map.
pub(crate) fn closing_parents<'a>(shard: &'a Shard, map: &'a ShardMap) -> impl Iterator<Item = &'a Shard> {
    let parents = if planted::is(Planted::O8) { &[] } else { shard.parents() };
    parents.iter().filter_map(|parent| map.shard(*parent))
}

/// Takes every step for which shard `id` is ready. A second call without news changes nothing.
pub fn reconcile(edit: &mut Edit<'_>, id: ShardId, view: &dyn ReplicaView) -> Result<(), EditError> {
    let stage = edit.shard(id)?.stage().clone();
    match &stage {
        _ if planted::is(Planted::LastCopy) => remove_ended(edit, id, view)?,
        Stage::Serving if view.awaits_comparison(edit.shard(id)?) => return Ok(()),
        // A replica that goes on with another process takes its next step in the next map.
        Stage::Serving if view.keyspace().durable && stored::reconcile_ended(edit, id, view)? => {
            return Ok(());
        }
        Stage::Serving | Stage::Closing(_) if view.keyspace().durable => {}
        _ => remove_ended(edit, id, view)?,
    }
    match stage {
        Stage::Serving => reconcile_serving(edit, id, view),
        Stage::Forming(siblings) => reconcile_children(edit, id, &siblings, view),
        Stage::Closing(children) => reconcile_closing(edit, id, &children, view),
        Stage::Removing => unload_all(edit, id, view),
    }
}

fn remove_ended(edit: &mut Edit<'_>, id: ShardId, view: &dyn ReplicaView) -> Result<(), EditError> {
    let ended = |r: &&Replica| view.has_ended(r) && !planted::is(Planted::L1);
    let gone: Vec<_> = edit.shard(id)?.replicas.iter().filter(ended).map(|r| r.placement).collect();
    gone.into_iter().try_for_each(|placement| edit.remove_replica(id, placement))
}

fn reconcile_serving(edit: &mut Edit<'_>, id: ShardId, view: &dyn ReplicaView) -> Result<(), EditError> {
    let is_replicated = view.keyspace().ownership == Ownership::Replicated;
    if is_replicated {
        if replicated::reconcile_wish(edit, id, view)? {
            return Ok(());
        }
        replicated::fill_members(edit, id, view)?;
    }
    let placements: Vec<_> = edit.shard(id)?.replicas.iter().map(|r| r.placement).collect();
    for placement in placements {
        let Some(replica) = edit.shard(id)?.replica(placement).cloned() else { continue };
        if view.has_ended(&replica) && view.keyspace().durable {
            continue;
        }
        if !replicated::reconcile_read_replica(edit, id, &replica, view)? {
            reconcile_replica(edit, id, &replica, view)?;
        }
    }
    if edit.shard(id)?.leader().is_none() {
        let shard = edit.shard(id)?;
        let lives = |r: &&Replica| !view.has_ended(r);
        let candidate =
            successor(shard, PlacementId(0), view).or(shard.copies().find(lives).map(|r| r.placement));
        candidate.map_or(Ok(()), |placement| edit.lead(id, placement))?;
    }
    Ok(())
}

/// The next step of one replica of a serving shard: see the table of the module.
fn reconcile_replica(
    edit: &mut Edit<'_>,
    id: ShardId,
    replica: &Replica,
    view: &dyn ReplicaView,
) -> Result<(), EditError> {
    let is_replicated = view.keyspace().ownership == Ownership::Replicated;
    let placement = replica.placement;
    let (shard, phase) = (edit.shard(id)?, view.phase(placement));
    match (replica.state, phase) {
        (ReplicaState::Load, Some(Phase::Ready)) if is_replicated => {
            if !shard.has_in_sync_set() {
                replicated::begin(edit, id, placement)?;
            }
        }
        (ReplicaState::Load, Some(Phase::Ready)) => promote(edit, id, replica, view)?,
        (ReplicaState::Load, _) if load_is_given_up(replica, view) && has_source(shard, view) => {
            edit.leave(id, placement)?;
        }
        (ReplicaState::Live, _)
            if is_replicated && replica.role == Role::Leader && view.is_silenced(shard, replica) =>
        {
            if let Some(next) = successor(shard, placement, view) {
                replicated::replace_silent_leader(edit, id, placement, next)?;
            }
        }
        (ReplicaState::Live, phase) if replica.role == Role::Leader && cannot_lead(replica, phase, view) => {
            let other = || parents::other_beginner(edit, shard, replica, view);
            if let Some(next) = successor(shard, placement, view).or_else(other) {
                edit.lead(id, next)?;
            }
        }
        // If no other node takes writes either, it still leads: reads need a leader, and a new leader has to write.
        (ReplicaState::Live, _) if replica.role == Role::Leader && view.takes_no_writes(&replica.node) => {
            let next = serving(shard, placement, view).find(|r| is_better_off(r, view)).map(|r| r.placement);
            next.map_or(Ok(()), |next| edit.lead(id, next))?;
        }
        (ReplicaState::Unload, _) if is_unloaded(replica, view) => {
            let targets_have_all = !is_replicated || replicated::targets_have_all(shard, view);
            if is_known_to_serve(shard, view) && targets_have_all || shard.epoch == Epoch(0) {
                edit.step(id, placement, ReplicaState::UnloadFinal)?;
            }
        }
        (ReplicaState::UnloadFinal, _) if is_dropped(replica, view) => edit.remove_replica(id, placement)?,
        (
            ReplicaState::Load | ReplicaState::Live | ReplicaState::Unload | ReplicaState::UnloadFinal,
            Some(
                Phase::Loading
                | Phase::Ready
                | Phase::Serving
                | Phase::Unloading
                | Phase::Unloaded
                | Phase::Kept
                | Phase::Dropped
                | Phase::Failed(_),
            )
            | None,
        ) => {}
    }
    Ok(())
}

fn cannot_lead(leader: &Replica, phase: Option<&Phase>, view: &dyn ReplicaView) -> bool {
    matches!(phase, Some(Phase::Failed(_)))
        || view.need_not_lead(leader)
        || view.is_overdue(leader.placement, ReplicaState::Live)
}

/// Whether the coordinator gives up to load a replica on its node.
fn load_is_given_up(replica: &Replica, view: &dyn ReplicaView) -> bool {
    has_failed_too_often(replica, view) || view.is_overdue(replica.placement, ReplicaState::Load)
}

fn has_failed_too_often(replica: &Replica, view: &dyn ReplicaView) -> bool {
    let Some(Phase::Failed(failure)) = view.phase(replica.placement) else { return false };
    let excused = view.excused_attempts(replica.placement);
    // A second attempt would find the same damage. `u32::MAX`: no other replica can be copied from, so this one stays.
    let is_hopeless = failure.damaged && excused < u32::MAX;
    is_hopeless || failure.attempts.saturating_sub(excused) >= view.load_attempts()
}

/// Whether replicas of a shard have a source to load from. In a durable keyspace they wait for one, as the data exists.
fn has_source(shard: &Shard, view: &dyn ReplicaView) -> bool {
    !view.keyspace().durable || !shard.had_data() || leader_serves(shard, view)
}

/// Whether nothing of the replica runs any more, or the coordinator no longer waits for that.
fn is_unloaded(replica: &Replica, view: &dyn ReplicaView) -> bool {
    let overdue = || view.is_overdue(replica.placement, ReplicaState::Unload);
    // In exclusive mode the successor must not begin before.
    matches!(view.phase(replica.placement), Some(Phase::Unloaded | Phase::Kept | Phase::Dropped))
        || (view.keyspace().ownership != Ownership::Exclusive && overdue())
}

/// Whether the data of the replica is deleted, or the coordinator no longer waits for that.
fn is_dropped(replica: &Replica, view: &dyn ReplicaView) -> bool {
    view.phase(replica.placement) == Some(&Phase::Dropped)
        || view.is_overdue(replica.placement, ReplicaState::UnloadFinal)
}

/// The replica that should lead in the place of `except`: one that serves, if possible on a node that takes writes.
fn successor(shard: &Shard, except: PlacementId, view: &dyn ReplicaView) -> Option<PlacementId> {
    let serving = || serving(shard, except, view);
    let next = serving().find(|r| !view.takes_no_writes(&r.node)).or_else(|| serving().next());
    next.map(|r| r.placement)
}

/// The replicas other than `except` that are known to serve, and could lead.
fn serving<'a>(
    shard: &'a Shard,
    except: PlacementId,
    view: &'a dyn ReplicaView,
) -> impl Iterator<Item = &'a Replica> {
    let serves = move |r: &&Replica| {
        let is_known = view.phase(r.placement) == Some(&Phase::Serving) || planted::is(Planted::UnknownHeir);
        is_known && !view.need_not_lead(r) && !view.has_ended(r)
    };
    shard.copies().filter(move |r| r.placement != except).filter(serves)
}

/// Whether a replica can lead better than one whose node takes no writes.
fn is_better_off(replica: &Replica, view: &dyn ReplicaView) -> bool {
    !view.takes_no_writes(&replica.node) && view.sends_heartbeats(replica)
}

/// Whether the leader is known to serve under the shard's epoch.
pub(crate) fn leader_serves(shard: &Shard, view: &dyn ReplicaView) -> bool {
    shard.leader().is_some_and(|leader| {
        view.phase(leader.placement) == Some(&Phase::Serving)
            && view.epoch(leader.placement).is_some_and(|epoch| epoch >= shard.epoch)
            && !view.has_ended(leader)
    })
}

/// Whether the leader serves under the shard's epoch, and its node is heard: other copies may be deleted then (D7). A
/// silent node may have been lost since its last report.
fn is_known_to_serve(shard: &Shard, view: &dyn ReplicaView) -> bool {
    leader_serves(shard, view) && shard.leader().is_some_and(|leader| view.sends_heartbeats(leader))
}

/// A replica that is ready begins to serve, and the one that it replaces begins to unload. While one change of leader is under
/// way the next one waits, so that each leader has really owned the shard.
fn promote(
    edit: &mut Edit<'_>,
    id: ShardId,
    ready: &Replica,
    view: &dyn ReplicaView,
) -> Result<(), EditError> {
    let shard = edit.shard(id)?;
    // What it copied is complete only while its source serves.
    if !has_source(shard, view) {
        return Ok(());
    }
    let replaced = ready.replaces().and_then(|placement| shard.replica(placement)).cloned();
    let led = replaced.as_ref().is_some_and(|r| r.role == Role::Leader && r.state == ReplicaState::Live);
    let leads = led || shard.leader().is_none();
    if led && !leader_serves(shard, view) && !replaced_has_failed(replaced.as_ref(), view) {
        return Ok(());
    }
    edit.step(id, ready.placement, ReplicaState::Live)?;
    let replaced = replaced.filter(|r| r.state.is_staying());
    if let Some(old) = &replaced {
        edit.leave(id, old.placement)?;
    }
    if leads {
        edit.lead(id, ready.placement)?;
    }
    let was_copy = replaced.is_some_and(|old| old.state == ReplicaState::Live);
    if view.keyspace().durable && was_copy { edit.go_on_without(id) } else { Ok(()) }
}

fn replaced_has_failed(replaced: Option<&Replica>, view: &dyn ReplicaView) -> bool {
    replaced.is_some_and(|r| {
        matches!(view.phase(r.placement), Some(Phase::Failed(_)))
            || view.is_overdue(r.placement, ReplicaState::Live)
    })
}

/// Children of a split or merge: when every replica of every sibling is ready and the parents serve, one map
/// switches (O8). If that can no longer happen, the split or merge is abandoned.
///
/// | if                                               | the split or merge                     |
/// |--------------------------------------------------|----------------------------------------|
/// | a parent no longer serves, has no replica, or a leader that never begins; or a sibling is gone | abandoned |
/// | no replica, one not in `Load`, or one in vain    | abandoned: replicas leave, shard goes  |
/// | replicated, fewer replicas where parents are than must store a write | abandoned         |
/// | every replica of every sibling `Ready`           | switch; all `Live`, the first leads; replicated: see [`replicated`] |
fn reconcile_children(
    edit: &mut Edit<'_>,
    id: ShardId,
    siblings: &[ShardId],
    view: &dyn ReplicaView,
) -> Result<(), EditError> {
    let parents = edit.shard(id)?.parents().to_vec();
    // A parent without a replica has to be loaded first, and its children may occupy the nodes that it needs. A parent whose
    // leader never begins has to move first, which it cannot while its children prepare.
    let hangs = |leader: &Replica| view.is_overdue(leader.placement, ReplicaState::Live);
    let serves = |parent: &Shard| {
        parent.is_serving() && parent.staying().next().is_some() && !parent.leader().is_some_and(hangs)
    };
    let parents_serve = parents.iter().all(|p| edit.shard(*p).is_ok_and(serves));
    let parents_lead = parents.iter().all(|p| edit.shard(*p).is_ok_and(|shard| leader_serves(shard, view)));
    let had_source = parents_lead || !view.keyspace().durable;
    let has_hope =
        |child: &Shard| may_serve(child, had_source, view) && replicated::is_enough(edit, child, view);
    let hopeful = siblings.iter().all(|s| edit.shard(*s).is_ok_and(has_hope));
    if !(parents_serve && hopeful) {
        return unload_all(edit, id, view);
    }
    let ready = |r: &Replica| view.phase(r.placement) == Some(&Phase::Ready);
    let all_ready =
        siblings.iter().all(|s| edit.shard(*s).is_ok_and(|shard| shard.replicas.iter().all(ready)));
    if parents.iter().any(|parent| edit.has_begun_anew(*parent)) {
        return Ok(());
    }
    if !(all_ready && parents_lead && parents::are_whole(edit, &parents, view)) {
        return Ok(());
    }
    if view.keyspace().ownership == Ownership::Replicated {
        return replicated::switch(edit, &parents, siblings, view);
    }
    edit.switch(&parents, siblings)?;
    for sibling in siblings {
        let placements: Vec<_> = edit.shard(*sibling)?.replicas.iter().map(|r| r.placement).collect();
        placements.iter().try_for_each(|p| edit.step(*sibling, *p, ReplicaState::Live))?;
        placements.first().map_or(Ok(()), |first| edit.lead(*sibling, *first))?;
    }
    Ok(())
}

/// Whether a child can still come to serve: it prepares somewhere, and nowhere in vain.
fn may_serve(child: &Shard, had_source: bool, view: &dyn ReplicaView) -> bool {
    let loads = |r: &Replica| r.state == ReplicaState::Load && !(had_source && load_is_given_up(r, view));
    !child.replicas.is_empty() && child.replicas.iter().all(loads)
}

/// An abandoned child or an unregistered partition: each replica is removed as soon as it has unloaded, and the shard with the
/// last one.
fn unload_all(edit: &mut Edit<'_>, id: ShardId, view: &dyn ReplicaView) -> Result<(), EditError> {
    let replicas = edit.shard(id)?.replicas.clone();
    for replica in &replicas {
        match replica.state {
            ReplicaState::Load | ReplicaState::Live => edit.leave(id, replica.placement)?,
            ReplicaState::Unload if is_unloaded(replica, view) => {
                edit.step(id, replica.placement, ReplicaState::UnloadFinal)?;
            }
            ReplicaState::UnloadFinal if is_dropped(replica, view) => {
                edit.remove_replica(id, replica.placement)?;
            }
            ReplicaState::Unload | ReplicaState::UnloadFinal => {}
        }
    }
    if edit.shard(id)?.replicas.is_empty() { edit.remove_shard(id) } else { Ok(()) }
}

/// Whether `children` have all data of their parents.
fn children_have_all(edit: &Edit<'_>, children: &[ShardId], view: &dyn ReplicaView) -> bool {
    let has_all = |child: &Shard| {
        let is_forgone = planted::is(Planted::LastWrites) || planted::is(Planted::DroppedBase);
        let is_whole = || parents::is_whole(child, view) || is_forgone;
        leader_serves(child, view) && (!view.keyspace().durable || is_whole())
    };
    // A child that is gone was itself split or merged after it had served: its data has moved on.
    children.iter().all(|child| edit.shard(*child).map_or(true, |c| !c.is_serving() || has_all(c)))
}

/// A parent after the switch: its replicas unload when every child's leader serves; the last one removes the shard.
fn reconcile_closing(
    edit: &mut Edit<'_>,
    id: ShardId,
    children: &[ShardId],
    view: &dyn ReplicaView,
) -> Result<(), EditError> {
    let handed_over = children_have_all(edit, children, view);
    let is_heard =
        |child: &ShardId| edit.shard(*child).map_or(true, |c| !c.is_serving() || is_known_to_serve(c, view));
    let may_delete = handed_over && children.iter().all(is_heard);
    if view.keyspace().durable {
        parents::reconcile_parent(edit, id, handed_over, view)?;
        if view.keyspace().ownership == Ownership::Replicated
            && !handed_over
            && replicated::reconcile_closer(edit, id, view)?
        {
            return Ok(());
        }
    }
    let replicas = edit.shard(id)?.replicas.clone();
    for replica in &replicas {
        if view.keyspace().durable && view.has_ended(replica) {
            continue;
        }
        match replica.state {
            ReplicaState::Unload if may_delete && is_unloaded(replica, view) => {
                edit.step(id, replica.placement, ReplicaState::UnloadFinal)?;
            }
            ReplicaState::UnloadFinal if is_dropped(replica, view) => {
                edit.remove_replica(id, replica.placement)?;
            }
            ReplicaState::Load | ReplicaState::Live | ReplicaState::Unload | ReplicaState::UnloadFinal => {}
        }
    }
    if edit.shard(id)?.replicas.is_empty() { edit.remove_shard(id) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
