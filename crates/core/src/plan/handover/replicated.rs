//! Shards of replicated keyspaces: their in-sync sets, and the sets that their leaders ask for.
//!
//! The leader knows which replicas have which writes; the coordinator alone changes the map. So the leader sends a *wish*: the
//! in-sync set that it wants. The coordinator answers each wish with one map of the next configuration, in which it grants what
//! is possible, or nothing. It ignores a wish of an earlier configuration or epoch.
//!
//! Until it has the answer, the leader acknowledges no write without the members of both sets. So every member of the map's set
//! has every acknowledged write, whenever the map changes.
//!
//! | the wish                                             | the replica     | becomes                                      |
//! |------------------------------------------------------|-----------------|----------------------------------------------|
//! | lacks the leader                                     | any             | as it is: refused                            |
//! | names one that unloads, or has not reported `Ready`  | that one        | as it is                                     |
//! | lacks a member                                       | that member     | `Load`: it catches up, and the leader may ask it in again |
//! | names a new one                                      | `Load`, `Ready` | `Live`, a member; the one that it replaces unloads; it leads if that one led, after a transfer ([`TransferStep`]) |
//! | is the present set                                   | the leader      | leader under a later epoch: its process has started again, and cannot lead under an epoch that it led under before |
//!
//! The coordinator also removes members from the set by itself, down to one: those whose processes have ended
//! ([`super::stored`]), and a silent leader. The other members have every acknowledged write.
//!
//! A shard that no replica has led yet has no data: its first replica that is ready is its in-sync set, and leads.
//!
//! A hot shard may have *read replicas* beside its members: they follow the leader's log, and answer reads. They never become
//! members by a wish, no write waits for them, and none of them leads.
//!
//! | if a read replica is                                     | it becomes                                 |
//! |----------------------------------------------------------|--------------------------------------------|
//! | `Load`, `Ready`, as it has caught up; the leader serves  | `Live`; the read replica that it replaces leaves |
//! | `Live`, and its service fails, or never begins; the leader serves | `Unload`                          |
//! | without a process, or without data                       | removed ([`super::stored`]); the planner adds another while the shard is hot |
//! | of a shard with too few members; one whose node the coordinator waits for counts | a follower in `Load`, which the leader asks into the set; a replica that replaces it replaces none |
//!
//! A split or merge (`service/table/split` has the way of the data): at the switch a child's in-sync set are its replicas on
//! nodes on which a parent is in sync, if they are enough; else the switch waits. Its first replica whose node takes writes leads
//! it, else its first. The others stay in `Load`. Each parent keeps its in-sync set, in `Unload`, and its leader, now called the
//! *closer*, until every member of each child serves:
//!
//! | of a parent that closes                          | next                                          |
//! |--------------------------------------------------|-----------------------------------------------|
//! | the closer sends a wish                          | the set without those that the wish lacks; a later epoch if the wish is the present set |
//! | no closer, or one that cannot act or is silent; another member acts | that member is the closer, under a later epoch |
//! | the closer's node takes no writes, another member acts on one that does | that member is the closer, under a later epoch |
//! | the closer's process has ended, no member acts   | as in [`super::stored`]: it is the closer again, under a later epoch, when its node is back |

use super::{DiskState, ReplicaView, TransferStep};
use crate::base::id::{PlacementId, ShardId};
use crate::base::name::NodeId;
use crate::keyspace::Ownership;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Edit, EditError, Replica, Role, Shard};
use crate::node::exchange::Phase;
use std::collections::BTreeSet;

/// Answers the wish of the leader, if it has one. Returns whether it had.
pub(super) fn reconcile_wish(
    edit: &mut Edit<'_>,
    id: ShardId,
    view: &dyn ReplicaView,
) -> Result<bool, EditError> {
    let shard = edit.shard(id)?;
    let Some(wish) = Wish::of(shard, view) else { return Ok(false) };
    if wish.is_for_later_epoch(shard) {
        edit.go_on_without(id)?;
        return edit.configure(id).map(|()| true);
    }
    let (newcomers, left) = (wish.newcomers(shard, view), wish.left(shard));
    if !wish.members.contains(&wish.leader) || (newcomers.is_empty() && left.is_empty()) {
        return edit.configure(id).map(|()| true);
    }
    match heir(shard, &newcomers, &left).map(|heir| view.transfer_step(shard, heir)) {
        // The answer waits for the transfer: the leader already waits for the newcomer with each write.
        Some(TransferStep::Due | TransferStep::UnderWay) => return Ok(false),
        Some(TransferStep::HeirSilent) => return edit.configure(id).map(|()| true),
        Some(TransferStep::Done) | None => {}
    }
    newcomers.iter().try_for_each(|placement| admit(edit, id, *placement))?;
    for placement in left {
        leave_behind(edit, id, placement)?;
        edit.go_on_without(id)?;
    }
    Ok(true)
}

/// The newcomer that takes the place of the leader. If the wish also lacks a member, no transfer comes first, as the leader
/// acknowledges nothing until it has the answer.
fn heir(shard: &Shard, newcomers: &[PlacementId], left: &[PlacementId]) -> Option<PlacementId> {
    let leader = shard.leader().filter(|_| left.is_empty())?;
    let replaces_it = |newcomer: &&PlacementId| {
        shard.replica(**newcomer).is_some_and(|r| r.replaces() == Some(leader.placement))
    };
    newcomers.iter().find(replaces_it).copied()
}

/// The replica that the leader of a serving shard asks into the set to take its own place.
pub(crate) fn newcomer_to_lead(shard: &Shard, view: &dyn ReplicaView) -> Option<PlacementId> {
    let wish = Wish::of(shard, view)?;
    let is_whole = wish.members.contains(&wish.leader) && !wish.is_for_later_epoch(shard);
    heir(shard, &wish.newcomers(shard, view), &wish.left(shard)).filter(|_| is_whole)
}

/// The in-sync set that the leader of a shard asks for, in place of the present one.
struct Wish<'a> {
    leader: PlacementId,
    members: &'a [PlacementId],
}

impl<'a> Wish<'a> {
    /// None if the leader has no wish, or one of an earlier epoch or configuration.
    fn of(shard: &Shard, view: &'a dyn ReplicaView) -> Option<Wish<'a>> {
        let leader = shard.leader().or(shard.closer())?;
        let (configuration, members) = view.wish(leader.placement)?;
        let is_current =
            configuration == shard.configuration && view.epoch(leader.placement) == Some(shard.epoch);
        is_current.then_some(Wish { leader: leader.placement, members })
    }

    /// Whether the wish is the present set.
    fn is_for_later_epoch(&self, shard: &Shard) -> bool {
        let asked: BTreeSet<_> = self.members.iter().copied().collect();
        asked == shard.in_sync().map(|r| r.placement).collect()
    }

    fn has(&self, replica: &Replica) -> bool {
        self.members.contains(&replica.placement)
    }

    /// The replicas that the wish adds: they stay, and have reported that they could serve.
    fn newcomers(&self, shard: &Shard, view: &dyn ReplicaView) -> Vec<PlacementId> {
        let could_serve = |r: &&Replica| {
            let phase = view.phase(r.placement);
            matches!(phase, Some(Phase::Ready | Phase::Serving)) && !view.has_ended(r)
        };
        let newcomers = shard.members().filter(|r| self.has(r) && !r.in_sync).filter(could_serve);
        newcomers.map(|r| r.placement).collect()
    }

    fn left(&self, shard: &Shard) -> Vec<PlacementId> {
        shard.in_sync().filter(|r| !self.has(r)).map(|r| r.placement).collect()
    }
}

/// Takes a replica into the in-sync set. The replica that it replaces unloads; if that one led, the new one leads.
fn admit(edit: &mut Edit<'_>, id: ShardId, placement: PlacementId) -> Result<(), EditError> {
    let shard = edit.shard(id)?;
    let Some(newcomer) = shard.replica(placement) else { return Ok(()) };
    let replaced = newcomer.replaces().and_then(|old| shard.replica(old)).filter(|r| r.state.is_staying());
    let replaced = replaced.cloned();
    if newcomer.state == ReplicaState::Load {
        edit.step(id, placement, ReplicaState::Live)?;
    }
    edit.take_in(id, placement)?;
    let Some(old) = replaced else { return Ok(()) };
    if old.role == Role::Leader {
        edit.lead(id, placement)?;
    }
    edit.leave(id, old.placement)?;
    if old.in_sync { edit.go_on_without(id) } else { Ok(()) }
}

/// Takes a member out of the in-sync set: it catches up before it serves again.
fn leave_behind(edit: &mut Edit<'_>, id: ShardId, placement: PlacementId) -> Result<(), EditError> {
    match edit.shard(id)?.replica(placement).filter(|r| r.in_sync).map(|r| r.incarnation) {
        Some(incarnation) => edit.begin_anew(id, placement, incarnation, ReplicaState::Load),
        None => Ok(()),
    }
}

/// The first replica of a shard that was never led is ready: it is the in-sync set, and leads.
pub(super) fn begin(edit: &mut Edit<'_>, id: ShardId, first: PlacementId) -> Result<(), EditError> {
    edit.step(id, first, ReplicaState::Live)?;
    edit.take_in(id, first)?;
    edit.lead(id, first)
}

/// Takes the steps that only read replicas have. Returns whether the replica's state is one of theirs.
pub(super) fn reconcile_read_replica(
    edit: &mut Edit<'_>,
    id: ShardId,
    replica: &Replica,
    view: &dyn ReplicaView,
) -> Result<bool, EditError> {
    let phase = view.phase(replica.placement);
    match (replica.state, phase) {
        _ if !replica.is_read_replica() => return Ok(false),
        (ReplicaState::Load, Some(Phase::Ready)) => open_to_reads(edit, id, replica, view)?,
        // While no leader serves, no replica has later data, and another read replica could not load.
        (ReplicaState::Live, _)
            if super::cannot_lead(replica, phase, view) && super::leader_serves(edit.shard(id)?, view) =>
        {
            edit.leave(id, replica.placement)?;
        }
        (ReplicaState::Live, _) => {}
        (ReplicaState::Load | ReplicaState::Unload | ReplicaState::UnloadFinal, _) => return Ok(false),
    }
    Ok(true)
}

/// Opens a read replica that has caught up. The read replica that it replaces unloads, unless it is a member by now.
fn open_to_reads(
    edit: &mut Edit<'_>,
    id: ShardId,
    ready: &Replica,
    view: &dyn ReplicaView,
) -> Result<(), EditError> {
    let shard = edit.shard(id)?;
    if !super::leader_serves(shard, view) {
        return Ok(());
    }
    let leaves = |old: &&Replica| old.state.is_staying() && old.is_read_replica();
    let replaced = ready.replaces().and_then(|old| shard.replica(old)).filter(leaves);
    let replaced = replaced.map(|old| old.placement);
    edit.step(id, ready.placement, ReplicaState::Live)?;
    replaced.map_or(Ok(()), |old| edit.leave(id, old))
}

/// Whether a replicated shard has fewer members than it should.
pub(crate) fn lacks_member(shard: &Shard, view: &dyn ReplicaView) -> bool {
    let members = shard.members().filter(|r| view.is_expected(r)).count();
    view.keyspace().ownership == Ownership::Replicated && members < view.wanted(shard.id)
}

/// Makes a read replica a member if one is missing, as it has nearly all data.
pub(super) fn fill_members(
    edit: &mut Edit<'_>,
    id: ShardId,
    view: &dyn ReplicaView,
) -> Result<(), EditError> {
    let shard = edit.shard(id)?;
    let acts =
        |r: &&Replica| r.is_read_replica() && view.sends_heartbeats(r) && !super::stored::cannot_act(r, view);
    let next = shard.staying().filter(acts).min_by_key(|r| (r.state != ReplicaState::Live, r.placement));
    match next.map(|r| r.placement).filter(|_| lacks_member(shard, view)) {
        Some(next) => edit.make_member(id, next),
        None => Ok(()),
    }
}

/// Makes `next` the leader and takes the silent leader out of the set, as writes would wait for it.
pub(super) fn replace_silent_leader(
    edit: &mut Edit<'_>,
    id: ShardId,
    silent: PlacementId,
    next: PlacementId,
) -> Result<(), EditError> {
    edit.lead(id, next)?;
    leave_behind(edit, id, silent)
}

/// Whether enough members of the in-sync set live to go on without a replica that leaves.
pub(super) fn targets_have_all(shard: &Shard, view: &dyn ReplicaView) -> bool {
    let lives = |r: &&Replica| !view.has_ended(r) && view.disk_state(shard, r) != DiskState::Damaged;
    shard.in_sync().filter(lives).count() >= view.keyspace().min_in_sync as usize
}

/// Whether a child that prepares can get an in-sync set: enough of its replicas are on nodes of its parents.
pub(super) fn is_enough(edit: &Edit<'_>, child: &Shard, view: &dyn ReplicaView) -> bool {
    if view.keyspace().ownership != Ownership::Replicated {
        return true;
    }
    let parents = || child.parents().iter().filter_map(|id| edit.shard(*id).ok());
    let stays = |node: &NodeId| parents().any(|parent| parent.members().any(|r| r.node == *node));
    child.replicas.iter().filter(|r| stays(&r.node)).count() >= view.keyspace().min_in_sync as usize
}

/// Switches from parents to children, unless too few replicas of a child are on nodes of the parents' in-sync sets.
pub(super) fn switch(
    edit: &mut Edit<'_>,
    parents: &[ShardId],
    siblings: &[ShardId],
    view: &dyn ReplicaView,
) -> Result<(), EditError> {
    let mut homes: BTreeSet<NodeId> = BTreeSet::new();
    for parent in parents {
        homes.extend(edit.shard(*parent)?.in_sync().map(|r| r.node.clone()));
    }
    let mut members: Vec<(ShardId, Vec<PlacementId>)> = Vec::new();
    for sibling in siblings {
        let there = edit.shard(*sibling)?.replicas.iter().filter(|r| homes.contains(&r.node));
        members.push((*sibling, there.map(|r| r.placement).collect()));
    }
    let least = view.keyspace().min_in_sync.max(1) as usize;
    if members.iter().any(|(_, of_it)| of_it.len() < least) {
        return Ok(());
    }
    edit.switch(parents, siblings)?;
    for (sibling, of_it) in members {
        for placement in &of_it {
            edit.step(sibling, *placement, ReplicaState::Live)?;
            edit.take_in(sibling, *placement)?;
        }
        let can_store = |r: &&Replica| of_it.contains(&r.placement) && !view.takes_no_writes(&r.node);
        let first = edit.shard(sibling)?.replicas.iter().find(can_store).map(|r| r.placement);
        first.or(of_it.first().copied()).map_or(Ok(()), |first| edit.lead(sibling, first))?;
    }
    Ok(())
}

/// Takes the steps of the table for a parent that closes. Returns whether there were any.
pub(super) fn reconcile_closer(
    edit: &mut Edit<'_>,
    id: ShardId,
    view: &dyn ReplicaView,
) -> Result<bool, EditError> {
    let shard = edit.shard(id)?.clone();
    let acts = |r: &Replica| {
        r.state == ReplicaState::Unload && !super::stored::cannot_act(r, view) && view.sends_heartbeats(r)
    };
    let closer = shard.closer();
    let is_lost =
        |closer: &Replica| super::stored::cannot_act(closer, view) || view.is_silenced(&shard, closer);
    if closer.is_none_or(is_lost) {
        let placement = closer.map(|closer| closer.placement);
        let next = shard.in_sync().filter(|r| Some(r.placement) != placement).find(|r| acts(r));
        return match next.map(|next| next.placement) {
            Some(next) => edit.name_closer(id, next).map(|()| true),
            None => Ok(false),
        };
    }
    // The closer has to store the last entry of the log, and requests wait for that.
    if closer.is_some_and(|closer| view.takes_no_writes(&closer.node)) {
        let next = shard.in_sync().find(|r| acts(r) && !view.takes_no_writes(&r.node));
        if let Some(next) = next.map(|next| next.placement) {
            return edit.name_closer(id, next).map(|()| true);
        }
    }
    let Some(wish) = Wish::of(&shard, view) else { return Ok(false) };
    if wish.is_for_later_epoch(&shard) {
        edit.name_closer(id, wish.leader)?;
        return Ok(true);
    }
    let left = if wish.members.contains(&wish.leader) { wish.left(&shard) } else { Vec::new() };
    for placement in &left {
        edit.close_without(id, *placement)?;
    }
    if left.is_empty() {
        edit.configure(id)?;
    }
    Ok(true)
}
