//! Replicas of durable keyspaces whose processes have ended: they stay in the map, as their data stays on a disk.
//!
//! The replicas in `Live` (of a replicated shard those in its in-sync set) are the *copies* of a shard: each has everything that
//! was acknowledged, as a leader acknowledges nothing that a replica in `Live` has not stored. So any of them may lead when no
//! other one lives, and one without which others went on is no copy any more: it goes to `Load`, and catches up before it serves
//! again.
//!
//! | a replica, its process ended | the shard                           | its node                         | becomes                          |
//! |------------------------------|-------------------------------------|----------------------------------|----------------------------------|
//! | `Live`                       | another copy acts without it        | is away, or has it stored        | `Load`; who led follows          |
//! | `Live`                       | another copy acts without it        | is back without it, or it is damaged, as its process may have found since | removed |
//! | `Live`, its process lives and has nothing of it | another copy acts | any                           | `Load`; who led follows          |
//! | `Live`, follows, its process lives and cannot open it | another copy acts | any                     | `Load`, so that writes wait for it no longer |
//! | `Live`                       | another copy may live and serve     | any                              | waits until that is known        |
//! | `Live`                       | the one other copy that acts was not heard since | any                 | waits for its next beat: it may be gone, too |
//! | `Live`                       | no copy acts, nor has any opened its data | is back and has it stored        | `Live` under the new start; one leads, at a higher epoch |
//! | `Live`, older than a restore | no copy acts, a node with another may have a later one | is back and has it stored | waits: a person may choose it |
//! | `Live`                       | no copy acts; one lives and cannot follow, all others are gone or damaged | is back | waits; the one that lives is made the leader |
//! | `Live`                       | no copy acts                        | any other                        | waits: the last copy is never removed (D10) |
//! | `Load`, older than a restore | none leads since                    | is away                          | waits: it may be a later copy    |
//! | `Load`, was to replace one, or no replica has ever led | any         | any                              | removed                          |
//! | `Load`                       | the leader serves                   | is back and has it stored        | `Load` under the new start       |
//! | `Load`                       | has copies enough, or any, if its node is back without it | any        | removed                          |
//! | `Unload`                     | the leader serves                   | any                              | removed                          |
//! | `UnloadFinal`                | any                                 | any                              | removed                          |
//! | a read replica, in `Load` or `Live` | any                          | any, not older than a restore    | removed: it is no copy           |
//!
//! Those that go on without a copy do so under a later epoch, which each of them has stored before the leader acknowledges
//! anything under it.
//!
//! A map that was restored may call a copy what others have gone on without since. Each copy says under which epoch it has
//! served last; where that lies before the restore, only those with the latest epoch of all begin anew, once every node that
//! the map names is back.
//!
//! A process that lives reports a copy as `Dropped` when the map was restored from before the copy was to go: the
//! replica counts as none until it has loaded.
//!
//! A split or merge has no moment at which one replica has everything: a child that prepares copies from its parents, is
//! not sent their writes, and is `Live` from the switch on. So until all replicas of a child serve, an acknowledged write
//! is with the child's copies or with the parents', which are in `Unload`:
//!
//! | a closing parent's replica           | the children                     | its node                         | becomes |
//! |--------------------------------------|----------------------------------|----------------------------------|---------|
//! | its process ended                    | every copy of each serves        | any                              | removed |
//! | `Unload`, its process ended          | one does not                     | is back and has it stored        | `Unload` under the new start: children fetch from it |
//! | `Unload`, its process ended          | one does not                     | is back without it, or it is damaged | removed, if another replica of the parent lives |
//! | `Unload`, its process ended          | one does not                     | any other                        | waits |
//! | `UnloadFinal`, its process ended     | any                              | any                              | removed |
//!
//! The switch waits until every copy of the parents serves, so that each of them has everything
//! ([`are_whole`]). The child's leader begins when a replica of each closing parent lives ([`last_writes_are_there`]), and
//! fetches from it what the child's copies lack; its followers are let in after it, and fetch from it. So a follower that
//! serves needs no parent to lead in its place.
//!
//! What is removed stays on its disk until another table says that it may be deleted (`cluster/kept.rs`, D7).

use super::{DiskState, ReplicaView, closing_parents, leader_serves, successor};
use crate::base::id::{PlacementId, ShardId};
use crate::base::planted::{self, Planted};
use crate::keyspace::Ownership;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Edit, EditError, Replica, Role, Shard, ShardMap, Stage};
use crate::node::exchange::Phase;

/// Takes the steps of the table for the replicas of a serving shard. Returns whether there were any.
pub(super) fn settle_ended(
    edit: &mut Edit<'_>,
    id: ShardId,
    view: &dyn ReplicaView,
) -> Result<bool, EditError> {
    let shard = edit.shard(id)?;
    if !shard.replicas.iter().any(|r| cannot_act(r, view) || is_given_up(r, view)) {
        return Ok(false);
    }
    let before = shard.clone();
    settle_all(edit, id, view)?;
    Ok(*edit.shard(id)? != before)
}

fn settle_all(edit: &mut Edit<'_>, id: ShardId, view: &dyn ReplicaView) -> Result<(), EditError> {
    let shard = edit.shard(id)?;
    if !shard.had_data() {
        let ended = shard.replicas.iter().filter(|r| has_ended(r, view));
        let ended: Vec<_> = ended.map(|r| r.placement).collect();
        return ended.into_iter().try_for_each(|placement| edit.remove_replica(id, placement));
    }
    settle_copies(edit, id, view)?;
    remove_read_replicas(edit, id, view)?;
    let shard = edit.shard(id)?;
    let ended: Vec<_> = shard.replicas.iter().filter(|r| has_ended(r, view)).cloned().collect();
    for replica in ended {
        let serves = leader_serves(edit.shard(id)?, view);
        match replica.state {
            ReplicaState::Load => settle_behind(edit, id, &replica, view)?,
            ReplicaState::Unload if serves => edit.remove_replica(id, replica.placement)?,
            ReplicaState::UnloadFinal => edit.remove_replica(id, replica.placement)?,
            ReplicaState::Live | ReplicaState::Unload => {}
        }
    }
    Ok(())
}

/// Read replicas that cannot act: no write waits for them. After a restore, one that is away may have become a member since.
fn remove_read_replicas(edit: &mut Edit<'_>, id: ShardId, view: &dyn ReplicaView) -> Result<(), EditError> {
    let shard = edit.shard(id)?;
    let is_out = |r: &&Replica| {
        r.is_read_replica() && r.state.is_staying() && cannot_act(r, view) && !view.may_be_later(shard, r)
    };
    let out: Vec<_> = shard.replicas.iter().filter(is_out).map(|r| r.placement).collect();
    out.into_iter().try_for_each(|placement| edit.remove_replica(id, placement))
}

fn has_ended(replica: &Replica, view: &dyn ReplicaView) -> bool {
    view.has_ended(&replica.node, replica.incarnation)
}

/// Whether a process has said of a replica that it serves, and has not ended.
fn serves(replica: &Replica, view: &dyn ReplicaView) -> bool {
    view.phase(replica.placement) == Some(&Phase::Serving) && !has_ended(replica, view)
}

/// Whether the process of a copy reports that it is none: the worker has dropped the data, or knows that others have gone
/// on without it.
pub(crate) fn is_reported_lost(replica: &Replica, reported: Option<&Phase>) -> bool {
    let is_copy = matches!(replica.state, ReplicaState::Live | ReplicaState::Unload);
    is_copy && reported == Some(&Phase::Dropped)
}

/// The same, of a process that has not ended.
fn has_lost(replica: &Replica, view: &dyn ReplicaView) -> bool {
    !has_ended(replica, view) && is_reported_lost(replica, view.phase(replica.placement))
}

/// Whether no process can serve a replica, or hand it over, as things are.
pub(super) fn cannot_act(replica: &Replica, view: &dyn ReplicaView) -> bool {
    has_ended(replica, view) || has_lost(replica, view)
}

/// Whether a follower in `Live` is waited for no longer: its process lives, and its service cannot open it.
fn is_given_up(replica: &Replica, view: &dyn ReplicaView) -> bool {
    let follows = replica.state == ReplicaState::Live && replica.role == Role::Follower;
    let never_begins = || view.is_overdue(replica.placement, ReplicaState::Live);
    follows && !has_ended(replica, view) && (super::has_failed_too_often(replica, view) || never_begins())
}

/// Whether the process of a replica, which lives, has found what it has stored damaged: it is of as little use as what a process
/// that has ended had stored damaged.
fn is_found_damaged(replica: &Replica, view: &dyn ReplicaView) -> bool {
    let is_damaged = |phase: &Phase| matches!(phase, Phase::Failed(failure) if failure.damaged);
    !has_ended(replica, view) && view.phase(replica.placement).is_some_and(is_damaged)
}

/// The replicas in `Live`.
fn settle_copies(edit: &mut Edit<'_>, id: ShardId, view: &dyn ReplicaView) -> Result<(), EditError> {
    let is_out = |r: &Replica| cannot_act(r, view) || is_given_up(r, view);
    let (ended, rest): (Vec<Replica>, Vec<Replica>) = edit.shard(id)?.copies().cloned().partition(is_out);
    if ended.is_empty() {
        return Ok(());
    }
    let acting: Vec<&Replica> = rest.iter().filter(|r| acts_without_the_ended(r, view)).collect();
    if let [last] = acting[..]
        && ended.iter().any(|r| has_ended(r, view) && !view.was_heard_since(last, r))
        && !planted::is(Planted::UnheardCopy)
    {
        // It may be gone, too, and not be missed yet: then no copy would be left.
        return Ok(());
    }
    if acting.is_empty() {
        return match rest.iter().any(|r| may_act(r, view)) {
            true => Ok(()),
            false => begin_from_stored(edit, id, &ended, view),
        };
    }
    lead_by_survivor(edit, id, view)?;
    edit.go_on_without(id)?;
    for replica in ended {
        let shard = edit.shard(id)?;
        let Some(replica) = shard.replica(replica.placement).filter(|r| is_out(r)).cloned() else {
            continue;
        };
        match view.disk_state(shard, &replica) {
            _ if is_found_damaged(&replica, view) => edit.remove_replica(id, replica.placement)?,
            DiskState::Away | DiskState::Intact(_) | DiskState::Unproven | DiskState::Overtaken => {
                edit.begin_anew(id, replica.placement, replica.incarnation, ReplicaState::Load)?;
            }
            DiskState::Damaged | DiskState::Gone => edit.remove_replica(id, replica.placement)?,
        }
    }
    Ok(())
}

/// No copy acts: those that are stored whole begin anew.
fn begin_from_stored(
    edit: &mut Edit<'_>,
    id: ShardId,
    ended: &[Replica],
    view: &dyn ReplicaView,
) -> Result<(), EditError> {
    // All of them are looked at before the first begins: one that has begun makes those of its epoch look late.
    let shard = edit.shard(id)?;
    let stored = |r: &Replica| match view.disk_state(shard, r) {
        DiskState::Intact(incarnation) => Some((r.placement, incarnation)),
        _ => None,
    };
    let back: Vec<_> = ended.iter().filter_map(stored).collect();
    let is_lost = |r: &Replica| {
        has_ended(r, view) && matches!(view.disk_state(shard, r), DiskState::Gone | DiskState::Damaged)
    };
    // A follower may have opened nothing only because its leader does not answer: it leads when all others are lost.
    let others_are_lost = ended.iter().all(is_lost);
    for (placement, incarnation) in &back {
        edit.begin_anew(id, *placement, *incarnation, ReplicaState::Live)?;
    }
    // The others stay copies until one has opened what it has.
    if others_are_lost || !back.is_empty() {
        lead_by_survivor(edit, id, view)?;
    }
    Ok(())
}

/// Whether a copy goes on without those whose processes have ended.
///
/// One that its service has not opened, or cannot serve any more, does not: it may be that nothing of it can be read.
/// Should it serve in the same moment, it acknowledges nothing without the ended, as its orders name them while the map
/// calls them copies.
fn acts_without_the_ended(replica: &Replica, view: &dyn ReplicaView) -> bool {
    has_opened(replica, view) == Some(true) && could_act(replica, view)
}

/// Whether a copy acts so, or may, as far as is known.
fn may_act(replica: &Replica, view: &dyn ReplicaView) -> bool {
    let may_live = || !view.need_not_lead(&replica.node, replica.incarnation);
    has_opened(replica, view) != Some(false) && (may_live() || could_act(replica, view))
}

/// Whether a copy that is open may acknowledge writes, or come to lead.
///
/// A leader that is heard follows its orders, and acknowledges writes without a replica that they do not name, even where
/// its address no longer answers the coordinator: only the end of its lease ends that. A follower counts if it could lead.
fn could_act(replica: &Replica, view: &dyn ReplicaView) -> bool {
    let sends_heartbeats = view.sends_heartbeats(&replica.node, replica.incarnation);
    let may_acknowledge = replica.role == Role::Leader
        && (view.ownership() != Ownership::Exclusive
            || !view.lease_is_over(&replica.node, replica.incarnation));
    sends_heartbeats && (may_acknowledge || may_lead(replica, view))
}

/// Whether its service has the data open, and goes on with it; none as long as the process has not said.
fn has_opened(replica: &Replica, view: &dyn ReplicaView) -> Option<bool> {
    if view.is_overdue(replica.placement, ReplicaState::Live) {
        return Some(false);
    }
    view.phase(replica.placement).map(|phase| match phase {
        Phase::Ready | Phase::Serving | Phase::Unloading => true,
        Phase::Loading | Phase::Failed(_) | Phase::Unloaded | Phase::Kept | Phase::Dropped => false,
    })
}

/// Whether it can lead: its process is heard, others reach it, and it gets a lease.
fn may_lead(replica: &Replica, view: &dyn ReplicaView) -> bool {
    view.sends_heartbeats(&replica.node, replica.incarnation)
        && !view.need_not_lead(&replica.node, replica.incarnation)
        && !has_lost(replica, view)
}

/// A replica that serves leads, or else one whose process is heard.
fn lead_by_survivor(edit: &mut Edit<'_>, id: ShardId, view: &dyn ReplicaView) -> Result<(), EditError> {
    let shard = edit.shard(id)?;
    if shard.leader().is_some_and(|leader| !cannot_act(leader, view)) {
        return Ok(());
    }
    let survivor = shard.copies().find(|r| may_lead(r, view)).map(|r| r.placement);
    let leads = successor(shard, PlacementId(0), view).or(survivor);
    leads.map_or(Ok(()), |placement| edit.lead(id, placement))
}

/// A replica in `Load`.
fn settle_behind(
    edit: &mut Edit<'_>,
    id: ShardId,
    replica: &Replica,
    view: &dyn ReplicaView,
) -> Result<(), EditError> {
    let shard = edit.shard(id)?;
    let is_enough = copies(shard, view) >= view.wanted(id);
    match view.disk_state(shard, replica) {
        _ if view.may_be_later(shard, replica) => Ok(()),
        _ if replica.replaces().is_some() || is_enough => edit.remove_replica(id, replica.placement),
        DiskState::Damaged | DiskState::Gone => edit.remove_replica(id, replica.placement),
        DiskState::Intact(incarnation) if planted::is(Planted::OvertakenCopy) => {
            edit.begin_anew(id, replica.placement, incarnation, ReplicaState::Live)
        }
        DiskState::Intact(incarnation) if leader_serves(shard, view) => {
            edit.begin_anew(id, replica.placement, incarnation, ReplicaState::Load)
        }
        DiskState::Intact(_) | DiskState::Unproven | DiskState::Overtaken | DiskState::Away => Ok(()),
    }
}

/// How many replicas in `Live` have a process that lives and has the data.
fn copies(shard: &Shard, view: &dyn ReplicaView) -> usize {
    shard.copies().filter(|r| !cannot_act(r, view)).count()
}

/// Whether all that the leader of a shard may lack is there: a replica of each parent that closes. A replica that serves
/// lacks nothing: the first leader had fetched what the parents have, and let followers in after that.
pub(super) fn last_writes_are_there(shard: &Shard, map: &ShardMap, view: &dyn ReplicaView) -> bool {
    if planted::is(Planted::LastWrites) {
        return true;
    }
    if shard.leader().is_some_and(|leader| serves(leader, view)) {
        return true;
    }
    let lives = |r: &Replica| view.sends_heartbeats(&r.node, r.incarnation) && !has_lost(r, view);
    closing_parents(shard, map).filter(|parent| has_last_writes(parent)).all(|p| handing_over(p).any(lives))
}

/// A follower that can begin to lead in the place of a leader that does not, where followers wait for their leader:
/// it fetches what it lacks from the parents, as the leader would have.
pub(super) fn other_beginner(
    edit: &Edit<'_>,
    shard: &Shard,
    leader: &Replica,
    view: &dyn ReplicaView,
) -> Option<PlacementId> {
    let never_begins = |r: &Replica| view.is_overdue(r.placement, ReplicaState::Live);
    let mut parents = shard.parents().iter().filter_map(|id| edit.shard(*id).ok());
    let inherits = view.is_durable() && parents.any(has_last_writes);
    if !inherits || !never_begins(leader) || leader_serves(shard, view) {
        return None;
    }
    let can_begin = |r: &&Replica| {
        r.placement != leader.placement && may_lead(r, view) && !has_ended(r, view) && !never_begins(r)
    };
    // One that has its data open before others; else each in its turn, as those before may fail again.
    let rank =
        |r: &&Replica| (has_opened(r, view) != Some(true), r.placement <= leader.placement, r.placement);
    shard.copies().filter(can_begin).min_by_key(rank).map(|r| r.placement)
}

/// Whether a parent that closes may still have writes that its children lack.
pub(super) fn has_last_writes(parent: &Shard) -> bool {
    handing_over(parent).next().is_some()
}

/// The replicas of a closing parent that have everything that was acknowledged before the switch.
pub(crate) fn handing_over(parent: &Shard) -> impl Iterator<Item = &Replica> {
    let closes = matches!(parent.stage(), Stage::Closing(_));
    parent.replicas.iter().filter(move |r| closes && r.state == ReplicaState::Unload && !r.is_read_replica())
}

/// Whether every copy of a shard serves: then it has fetched what it lacked when it was made one.
pub(super) fn is_whole(shard: &Shard, view: &dyn ReplicaView) -> bool {
    shard.live().all(|r| serves(r, view))
}

/// [`is_whole`] of all `parents`, in a durable keyspace.
pub(super) fn are_whole(edit: &Edit<'_>, parents: &[ShardId], view: &dyn ReplicaView) -> bool {
    !view.is_durable() || parents.iter().all(|id| edit.shard(*id).is_ok_and(|parent| is_whole(parent, view)))
}

/// Takes the steps of the table for the replicas of a closing parent.
pub(super) fn settle_parent(
    edit: &mut Edit<'_>,
    id: ShardId,
    handed_over: bool,
    view: &dyn ReplicaView,
) -> Result<(), EditError> {
    let parent = edit.shard(id)?.clone();
    let lives = handing_over(&parent).any(|r| !cannot_act(r, view));
    for replica in parent.replicas.iter().filter(|r| has_ended(r, view)) {
        if handed_over || replica.state != ReplicaState::Unload {
            edit.remove_replica(id, replica.placement)?;
            continue;
        }
        match view.disk_state(&parent, replica) {
            DiskState::Intact(incarnation) => {
                edit.begin_anew(id, replica.placement, incarnation, ReplicaState::Unload)?;
            }
            DiskState::Damaged | DiskState::Gone if lives => edit.remove_replica(id, replica.placement)?,
            DiskState::Damaged
            | DiskState::Gone
            | DiskState::Unproven
            | DiskState::Overtaken
            | DiskState::Away => {}
        }
    }
    Ok(())
}
