//! The parents of a split or merge that close, in durable keyspaces: what their replicas do once their processes have ended.
//!
//! In a split or merge no replica has everything at the switch: a child copies from its parents, which do not send it their
//! writes, and is `Live` from the switch on. So until all replicas of a child serve, an acknowledged write may be only on the
//! parents' copies, which are in `Unload`. [`reconcile_parent`] takes these steps; the first row that matches counts:
//!
//! | a closing parent's replica, its process ended  | then                                                             |
//! |------------------------------------------------|------------------------------------------------------------------|
//! | every copy of each child serves                | removed                                                          |
//! | it is in `UnloadFinal`                         | removed                                                          |
//! | its node is back and has it stored             | `Unload` under the new incarnation: children fetch from it       |
//! | its node is back without it, or it is damaged; another replica of the parent lives | removed                      |
//! | any other                                      | waits                                                            |
//!
//! The switch waits until every copy of the parents serves, so that each of them has everything ([`are_whole`]). The child's
//! leader begins when a replica of each closing parent lives ([`last_writes_are_there`]), and fetches from it what the child's
//! copies lack; then its followers begin, and fetch from the leader. So a follower that serves can lead without a parent.

use super::stored::{cannot_act, has_lost, has_opened, may_lead, serves};
use super::{DiskState, ReplicaView, closing_parents, leader_serves};
use crate::base::id::{PlacementId, ShardId};
use crate::base::planted::{self, Planted};
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Edit, EditError, Replica, Shard, ShardMap, Stage};

/// Whether the leader of a shard can fetch the last writes of its parents: a replica of each closing parent lives. A leader that
/// serves has them already.
pub(super) fn last_writes_are_there(shard: &Shard, map: &ShardMap, view: &dyn ReplicaView) -> bool {
    if planted::is(Planted::LastWrites) {
        return true;
    }
    if shard.leader().is_some_and(|leader| serves(leader, view)) {
        return true;
    }
    let lives = |r: &Replica| view.sends_heartbeats(r) && !has_lost(r, view);
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
    let inherits = view.keyspace().durable && parents.any(has_last_writes);
    if !inherits || !never_begins(leader) || leader_serves(shard, view) {
        return None;
    }
    let can_begin = |r: &&Replica| {
        r.placement != leader.placement && may_lead(r, view) && !view.has_ended(r) && !never_begins(r)
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
    !view.keyspace().durable
        || parents.iter().all(|id| edit.shard(*id).is_ok_and(|parent| is_whole(parent, view)))
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
    for replica in parent.replicas.iter().filter(|r| view.has_ended(r)) {
        if handed_over || replica.state != ReplicaState::Unload {
            edit.remove_replica(id, replica.placement)?;
            continue;
        }
        let stored = view.disk_state(&parent, replica);
        if let DiskState::Intact(incarnation) = stored {
            edit.begin_anew(id, replica.placement, incarnation, ReplicaState::Unload)?;
        } else if lives && matches!(stored, DiskState::Damaged | DiskState::Gone) {
            edit.remove_replica(id, replica.placement)?;
        }
    }
    Ok(())
}
