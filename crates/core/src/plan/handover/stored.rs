//! Replicas of durable keyspaces whose processes have ended: they stay in the map, as their data stays on a disk.
//!
//! The *copies* of a shard are its replicas in `Live` (in a replicated shard, the in-sync set). Each copy has every acknowledged
//! write, as a leader acknowledges a write only when all copies have stored it. So any copy may lead when no other one lives. If
//! the others go on without a copy, it is none any more: it goes to `Load`, and catches up before it serves again.
//!
//! A copy is *out* if its process has ended, or lives and has no data of it (`Dropped`), or is a follower's and cannot open it.
//! A copy *acts* if its process is heard, has the data open, and may acknowledge writes or lead.
//!
//! [`reconcile_all`] takes these steps for a serving shard; within a function the first row that matches counts:
//!
//! | function, replica                  | if                                                   | then                            |
//! |------------------------------------|------------------------------------------------------|---------------------------------|
//! | `reconcile_all`, any, ended        | no replica ever led                                  | removed                         |
//! | `reconcile_copies`, each copy that is out | one copy acts, and was not heard since           | waits for its next heartbeat: it may be gone, too |
//! |                                    | a copy acts; the data is damaged, or not on the node that is back | removed; the rest goes on under a later epoch |
//! |                                    | a copy acts                                          | `Load`, as a follower; the same |
//! |                                    | a copy may act, as far as the coordinator knows      | waits until that is known       |
//! | `begin_from_stored`, the same      | back and stored whole, and no later copy is possible ([`restored`]) | `Live` under the new incarnation; one copy leads |
//! |                                    | all others are gone or damaged, one lives and follows | the one that lives leads       |
//! |                                    | any other                                            | waits: the last copy is never removed (D10) |
//! | `remove_read_replicas`, in `Load` or `Live`, cannot act | may be later than a restore ([`restored`]) | waits              |
//! |                                    | any other                                            | removed: it is no copy          |
//! | `reconcile_load`, in `Load`, ended | may be later than a restore ([`restored`])           | waits                           |
//! |                                    | replaces another one, or the shard has enough copies | removed                         |
//! |                                    | its node is back without its data, or that is damaged | removed                        |
//! |                                    | back and stored, and the leader serves               | `Load` under the new incarnation |
//! | `reconcile_all`, in `Unload`, ended | the leader serves                                   | removed                         |
//! | `reconcile_all`, in `UnloadFinal`, ended | any                                            | removed                         |
//!
//! The other copies go on without one under a later epoch, which each of them stores before the leader acknowledges a write.
//!
//! Replicas of a closing parent have a table of their own: [`super::parents`]. The data of a removed replica stays on its disk
//! until `cluster/kept.rs` permits to delete it (D7).

use super::{DiskState, ReplicaView, leader_serves, restored, successor};
use crate::base::id::{PlacementId, ShardId};
use crate::base::planted::{self, Planted};
use crate::keyspace::Ownership;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Edit, EditError, Replica, Role, Shard};
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
        let ended = shard.replicas.iter().filter(|r| view.has_ended(r));
        let ended: Vec<_> = ended.map(|r| r.placement).collect();
        return ended.into_iter().try_for_each(|placement| edit.remove_replica(id, placement));
    }
    reconcile_copies(edit, id, view)?;
    remove_read_replicas(edit, id, view)?;
    let shard = edit.shard(id)?;
    let ended: Vec<_> = shard.replicas.iter().filter(|r| view.has_ended(r)).cloned().collect();
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
        r.is_read_replica()
            && r.state.is_staying()
            && cannot_act(r, view)
            && !restored::is_kept_back(shard, r, view)
    };
    let out: Vec<_> = shard.replicas.iter().filter(is_out).map(|r| r.placement).collect();
    out.into_iter().try_for_each(|placement| edit.remove_replica(id, placement))
}

/// Whether a process that has not ended reports that it serves a replica.
pub(super) fn serves(replica: &Replica, view: &dyn ReplicaView) -> bool {
    view.phase(replica.placement) == Some(&Phase::Serving) && !view.has_ended(replica)
}

/// Whether the process of a copy reports that it has none: it has dropped the data, or knows that others went on without it.
pub(crate) fn is_reported_lost(replica: &Replica, reported: Option<&Phase>) -> bool {
    let is_copy = matches!(replica.state, ReplicaState::Live | ReplicaState::Unload);
    is_copy && reported == Some(&Phase::Dropped)
}

/// [`is_reported_lost`], by a process that has not ended.
pub(super) fn has_lost(replica: &Replica, view: &dyn ReplicaView) -> bool {
    !view.has_ended(replica) && is_reported_lost(replica, view.phase(replica.placement))
}

/// Whether no process can serve a replica or hand it over now.
pub(super) fn cannot_act(replica: &Replica, view: &dyn ReplicaView) -> bool {
    view.has_ended(replica) || has_lost(replica, view)
}

/// Whether the coordinator waits no longer for a follower in `Live`, as its process lives and cannot open it.
fn is_given_up(replica: &Replica, view: &dyn ReplicaView) -> bool {
    let follows = replica.state == ReplicaState::Live && replica.role == Role::Follower;
    let never_begins = || view.is_overdue(replica.placement, ReplicaState::Live);
    follows && !view.has_ended(replica) && (super::has_failed_too_often(replica, view) || never_begins())
}

/// Whether a process that lives reports that its stored data is damaged.
fn is_found_damaged(replica: &Replica, view: &dyn ReplicaView) -> bool {
    let is_damaged = |phase: &Phase| matches!(phase, Phase::Failed(failure) if failure.damaged);
    !view.has_ended(replica) && view.phase(replica.placement).is_some_and(is_damaged)
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
        && ended.iter().any(|r| view.has_ended(r) && !view.was_heard_since(last, r))
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
        let is_lost = matches!(view.disk_state(shard, &replica), DiskState::Damaged | DiskState::Gone);
        if is_lost || is_found_damaged(&replica, view) {
            edit.remove_replica(id, replica.placement)?;
        } else {
            edit.begin_anew(id, replica.placement, replica.incarnation, ReplicaState::Load)?;
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
    let may_begin = |r: &&Replica| !restored::is_kept_back(shard, r, view);
    let back: Vec<_> = ended.iter().filter(may_begin).filter_map(stored).collect();
    let is_lost = |r: &Replica| {
        view.has_ended(r) && matches!(view.disk_state(shard, r), DiskState::Gone | DiskState::Damaged)
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
    let may_live = || !view.need_not_lead(replica);
    has_opened(replica, view) != Some(false) && (may_live() || could_act(replica, view))
}

/// Whether a copy that is open may acknowledge writes, or come to lead.
///
/// A leader that is heard follows its orders, and acknowledges writes without a replica that they do not name, even where
/// its address no longer answers the coordinator: only the end of its lease ends that. A follower counts if it could lead.
fn could_act(replica: &Replica, view: &dyn ReplicaView) -> bool {
    let sends_heartbeats = view.sends_heartbeats(replica);
    let may_acknowledge = replica.role == Role::Leader
        && (view.keyspace().ownership != Ownership::Exclusive || !view.lease_is_over(replica));
    sends_heartbeats && (may_acknowledge || may_lead(replica, view))
}

/// Whether the service has the data of a replica open; none if the process has not reported it.
pub(super) fn has_opened(replica: &Replica, view: &dyn ReplicaView) -> Option<bool> {
    if view.is_overdue(replica.placement, ReplicaState::Live) {
        return Some(false);
    }
    view.phase(replica.placement).map(|phase| match phase {
        Phase::Ready | Phase::Serving | Phase::Unloading => true,
        Phase::Loading | Phase::Failed(_) | Phase::Unloaded | Phase::Kept | Phase::Dropped => false,
    })
}

/// Whether a replica can lead: its process sends heartbeats, others reach it, and it gets a lease.
pub(super) fn may_lead(replica: &Replica, view: &dyn ReplicaView) -> bool {
    view.sends_heartbeats(replica) && !view.need_not_lead(replica) && !has_lost(replica, view)
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
        _ if restored::is_kept_back(shard, replica, view) => Ok(()),
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
