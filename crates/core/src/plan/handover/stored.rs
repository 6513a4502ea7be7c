//! Replicas of durable keyspaces whose processes have ended: they stay in the map, as their data stays on a disk.
//!
//! The *copies* of a shard are its replicas in `Live` (in a replicated shard, the in-sync set). Each copy has every acknowledged
//! write, as a leader acknowledges a write only when all copies have stored it. So any copy may lead when no other one lives. If
//! the others go on without a copy, it is none any more: it goes to `Load`, and catches up before it serves again.
//!
//! | a replica, its process ended | the shard                           | its node                         | becomes                          |
//! |------------------------------|-------------------------------------|----------------------------------|----------------------------------|
//! | `Live`                       | another copy acts without it        | is away, or has it stored        | `Load`, as a follower            |
//! | `Live`                       | another copy acts without it        | is back without its data, or the data is damaged | removed |
//! | `Live`, its process lives and has no data of it | another copy acts | any                           | `Load`, as a follower            |
//! | `Live`, a follower, its process lives and cannot open it | another copy acts | any                  | `Load`, so that writes no longer wait for it |
//! | `Live`                       | another copy may live and serve     | any                              | waits until that is known        |
//! | `Live`                       | the one other copy that acts was not heard since | any                 | waits for that copy's next heartbeat: it may be gone, too |
//! | `Live`                       | no copy acts or has opened its data | is back and has it stored        | `Live` under the new incarnation; one copy leads, at a higher epoch |
//! | `Live`, older than a restore | no copy acts, another may be a later one | is back and has it stored   | waits: a person may choose it    |
//! | `Live`                       | no copy acts; one lives and cannot follow, all others are gone or damaged | is back | waits; the one that lives leads |
//! | `Live`                       | no copy acts                        | any other                        | waits: the last copy is never removed (D10) |
//! | `Load`, older than a restore | no replica has led since            | is away                          | waits: it may be a later copy    |
//! | `Load`, replaces another one, or no replica ever led | any           | any                              | removed                          |
//! | `Load`                       | the leader serves                   | is back and has it stored        | `Load` under the new incarnation |
//! | `Load`                       | has enough copies                   | any                              | removed                          |
//! | `Load`                       | any                                 | is back without its data         | removed                          |
//! | `Unload`                     | the leader serves                   | any                              | removed                          |
//! | `UnloadFinal`                | any                                 | any                              | removed                          |
//! | a read replica, in `Load` or `Live` | any                          | any, not older than a restore    | removed: it is no copy           |
//!
//! The other copies go on without one under a later epoch, which each of them stores before the leader acknowledges a write.
//!
//! A restored map may name a copy without which others went on after the backup. Each node reports the epoch under which its copy
//! served last. When every node that the map names is back, only the copies with the latest epoch begin.
//!
//! If the backup is older than the removal of a copy, its process reports `Dropped`: the replica is no copy until it has loaded.
//!
//! In a split or merge no replica has everything at the switch: a child copies from its parents, which do not send it their
//! writes, and is `Live` from the switch on. So until all replicas of a child serve, an acknowledged write may be only on the
//! parents' copies, which are in `Unload`:
//!
//! | a closing parent's replica           | the children                     | its node                         | becomes |
//! |--------------------------------------|----------------------------------|----------------------------------|---------|
//! | its process ended                    | every copy of each serves        | any                              | removed |
//! | `Unload`, its process ended          | one does not                     | is back and has it stored        | `Unload` under the new incarnation: children fetch from it |
//! | `Unload`, its process ended          | one does not                     | is back without its data, or that is damaged | removed, if another replica of the parent lives |
//! | `Unload`, its process ended          | one does not                     | any other                        | waits |
//! | `UnloadFinal`, its process ended     | any                              | any                              | removed |
//!
//! The switch waits until every copy of the parents serves, so that each of them has everything
//! ([`are_whole`]). The child's leader begins when a replica of each closing parent lives ([`last_writes_are_there`]), and
//! fetches from it what the child's copies lack; then its followers begin, and fetch from the leader. So a follower that serves
//! can lead without a parent.
//!
//! The data of a removed replica stays on its disk until `cluster/kept.rs` permits to delete it (D7).

use super::{DiskState, ReplicaView, closing_parents, leader_serves, successor};
use crate::base::id::{PlacementId, ShardId};
use crate::base::planted::{self, Planted};
use crate::keyspace::Ownership;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Edit, EditError, Replica, Role, Shard, ShardMap, Stage};
use crate::node::exchange::Phase;

/// Takes the steps of the table for the replicas of a serving shard. Returns whether there were any.
pub(super) fn reconcile_ended(
    edit: &mut Edit<'_>,
    id: ShardId,
    view: &dyn ReplicaView,
) -> Result<bool, EditError> {
    let shard = edit.shard(id)?;
    if !shard.replicas.iter().any(|r| cannot_act(r, view) || is_given_up(r, view)) {
        return Ok(false);
    }
    let before = shard.clone();
    reconcile_all(edit, id, view)?;
    Ok(*edit.shard(id)? != before)
}

fn reconcile_all(edit: &mut Edit<'_>, id: ShardId, view: &dyn ReplicaView) -> Result<(), EditError> {
    let shard = edit.shard(id)?;
    if !shard.had_data() {
        let ended = shard.replicas.iter().filter(|r| has_ended(r, view));
        let ended: Vec<_> = ended.map(|r| r.placement).collect();
        return ended.into_iter().try_for_each(|placement| edit.remove_replica(id, placement));
    }
    reconcile_copies(edit, id, view)?;
    remove_read_replicas(edit, id, view)?;
    let shard = edit.shard(id)?;
    let ended: Vec<_> = shard.replicas.iter().filter(|r| has_ended(r, view)).cloned().collect();
    for replica in ended {
        let serves = leader_serves(edit.shard(id)?, view);
        match replica.state {
            ReplicaState::Load => reconcile_load(edit, id, &replica, view)?,
            ReplicaState::Unload if serves => edit.remove_replica(id, replica.placement)?,
            ReplicaState::UnloadFinal => edit.remove_replica(id, replica.placement)?,
            ReplicaState::Live | ReplicaState::Unload => {}
        }
    }
    Ok(())
}

/// Removes read replicas that cannot act, as no write waits for them. After a restore, one that is away may be a member.
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

/// Whether a process that has not ended reports that it serves a replica.
fn serves(replica: &Replica, view: &dyn ReplicaView) -> bool {
    view.phase(replica.placement) == Some(&Phase::Serving) && !has_ended(replica, view)
}

/// Whether the process of a copy reports that it has none: it has dropped the data, or knows that others went on without it.
pub(crate) fn is_reported_lost(replica: &Replica, reported: Option<&Phase>) -> bool {
    let is_copy = matches!(replica.state, ReplicaState::Live | ReplicaState::Unload);
    is_copy && reported == Some(&Phase::Dropped)
}

/// [`is_reported_lost`], by a process that has not ended.
fn has_lost(replica: &Replica, view: &dyn ReplicaView) -> bool {
    !has_ended(replica, view) && is_reported_lost(replica, view.phase(replica.placement))
}

/// Whether no process can serve a replica or hand it over now.
pub(super) fn cannot_act(replica: &Replica, view: &dyn ReplicaView) -> bool {
    has_ended(replica, view) || has_lost(replica, view)
}

/// Whether the coordinator waits no longer for a follower in `Live`, as its process lives and cannot open it.
fn is_given_up(replica: &Replica, view: &dyn ReplicaView) -> bool {
    let follows = replica.state == ReplicaState::Live && replica.role == Role::Follower;
    let never_begins = || view.is_overdue(replica.placement, ReplicaState::Live);
    follows && !has_ended(replica, view) && (super::has_failed_too_often(replica, view) || never_begins())
}

/// Whether a process that lives reports that its stored data is damaged.
fn is_found_damaged(replica: &Replica, view: &dyn ReplicaView) -> bool {
    let is_damaged = |phase: &Phase| matches!(phase, Phase::Failed(failure) if failure.damaged);
    !has_ended(replica, view) && view.phase(replica.placement).is_some_and(is_damaged)
}

/// Takes the steps of replicas in `Live`.
fn reconcile_copies(edit: &mut Edit<'_>, id: ShardId, view: &dyn ReplicaView) -> Result<(), EditError> {
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
        // It may be gone, too, and not missed yet: then no copy would be left.
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

/// No copy acts: the copies that are stored whole go on with the new processes of their nodes.
fn begin_from_stored(
    edit: &mut Edit<'_>,
    id: ShardId,
    ended: &[Replica],
    view: &dyn ReplicaView,
) -> Result<(), EditError> {
    // Look at all copies before the first one begins, as its later epoch makes the others look overtaken.
    let shard = edit.shard(id)?;
    let stored = |r: &Replica| match view.disk_state(shard, r) {
        DiskState::Intact(incarnation) => Some((r.placement, incarnation)),
        _ => None,
    };
    let back: Vec<_> = ended.iter().filter_map(stored).collect();
    let is_lost = |r: &Replica| {
        has_ended(r, view) && matches!(view.disk_state(shard, r), DiskState::Gone | DiskState::Damaged)
    };
    // A follower may have opened nothing because its leader does not answer: it leads if all others are lost.
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

/// Whether a copy goes on without those whose processes have ended. A copy that its service has not opened does not, as its
/// data may be unreadable.
fn acts_without_the_ended(replica: &Replica, view: &dyn ReplicaView) -> bool {
    has_opened(replica, view) == Some(true) && could_act(replica, view)
}

/// Whether a copy acts without the ended ones, or may do so as far as the coordinator knows.
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

/// Whether the service has the data of a replica open; none if the process has not reported it.
fn has_opened(replica: &Replica, view: &dyn ReplicaView) -> Option<bool> {
    if view.is_overdue(replica.placement, ReplicaState::Live) {
        return Some(false);
    }
    view.phase(replica.placement).map(|phase| match phase {
        Phase::Ready | Phase::Serving | Phase::Unloading => true,
        Phase::Loading | Phase::Failed(_) | Phase::Unloaded | Phase::Kept | Phase::Dropped => false,
    })
}

/// Whether a replica can lead: its process sends heartbeats, others reach it, and it gets a lease.
fn may_lead(replica: &Replica, view: &dyn ReplicaView) -> bool {
    view.sends_heartbeats(&replica.node, replica.incarnation)
        && !view.need_not_lead(&replica.node, replica.incarnation)
        && !has_lost(replica, view)
}

/// Makes a replica that serves the leader, or else one whose process sends heartbeats.
fn lead_by_survivor(edit: &mut Edit<'_>, id: ShardId, view: &dyn ReplicaView) -> Result<(), EditError> {
    let shard = edit.shard(id)?;
    if shard.leader().is_some_and(|leader| !cannot_act(leader, view)) {
        return Ok(());
    }
    let survivor = shard.copies().find(|r| may_lead(r, view)).map(|r| r.placement);
    let leads = successor(shard, PlacementId(0), view).or(survivor);
    leads.map_or(Ok(()), |placement| edit.lead(id, placement))
}

/// Takes the step of a replica in `Load`.
fn reconcile_load(
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

/// How many copies have a process that lives and has the data.
fn copies(shard: &Shard, view: &dyn ReplicaView) -> usize {
    shard.copies().filter(|r| !cannot_act(r, view)).count()
}

/// Whether the leader of a shard can fetch the last writes of its parents: a replica of each closing parent lives. A leader that
/// serves has them already.
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

/// The follower to make the leader of a child if the present leader never begins, as followers wait for their leader. It
/// fetches the last writes from the parents.
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
    // First those that have opened their data; then in turn, as earlier ones may fail again.
    let rank =
        |r: &&Replica| (has_opened(r, view) != Some(true), r.placement <= leader.placement, r.placement);
    shard.copies().filter(can_begin).min_by_key(rank).map(|r| r.placement)
}

/// Whether a closing parent may still have writes that its children lack.
pub(super) fn has_last_writes(parent: &Shard) -> bool {
    handing_over(parent).next().is_some()
}

/// The replicas of a closing parent that have every write acknowledged before the switch.
pub(crate) fn handing_over(parent: &Shard) -> impl Iterator<Item = &Replica> {
    let closes = matches!(parent.stage(), Stage::Closing(_));
    parent.replicas.iter().filter(move |r| closes && r.state == ReplicaState::Unload && !r.is_read_replica())
}

/// Whether every copy of a shard serves, and so has fetched what it lacked.
pub(super) fn is_whole(shard: &Shard, view: &dyn ReplicaView) -> bool {
    shard.live().all(|r| serves(r, view))
}

/// [`is_whole`] of all `parents`, in a durable keyspace.
pub(super) fn are_whole(edit: &Edit<'_>, parents: &[ShardId], view: &dyn ReplicaView) -> bool {
    !view.is_durable() || parents.iter().all(|id| edit.shard(*id).is_ok_and(|parent| is_whole(parent, view)))
}

/// Takes the steps of the table for the replicas of a closing parent.
pub(super) fn reconcile_parent(
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
