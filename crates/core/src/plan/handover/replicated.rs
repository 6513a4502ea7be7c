//! Shards of replicated keyspaces: their in-sync sets, and what their leaders ask for.
//!
//! The leader replicates, and knows who has what; the coordinator alone changes the map. So the leader *wishes*: it names the
//! in-sync set that it wants in place of the one that it knows of. What is possible of it is granted in one commit, which makes a
//! later configuration, and that answers it, also where nothing was. One of an earlier configuration or epoch is old, and is
//! ignored.
//!
//! Until a wish is answered the leader acknowledges nothing without the members of both sets. So every member of the map's
//! set has everything that was acknowledged, whenever the map changes.
//!
//! | wish                                                 | the replica     | becomes                                      |
//! |------------------------------------------------------|-----------------|----------------------------------------------|
//! | lacks the leader                                     | any             | as it is: refused                            |
//! | has what does not stay, or has not said that it is ready | any         | as it is                                     |
//! | has it no more                                       | in the set      | `Load`: it catches up, and is asked in again |
//! | has it                                               | `Load`, `Ready` | `Live`, in the set; what it replaces leaves, and it leads if that one led, which has handed over before ([`HandOver`]) |
//! | is the present set                                   | the leader      | leader under a later epoch: it has begun anew, and cannot lead again under one that it knows |
//!
//! The coordinator may also take members out by itself, down to one: those whose processes have ended (see
//! [`super::stored`]), and a leader that is silent. The others have everything that they have.
//!
//! A shard that no replica has led yet has no data: its first replica that is ready is its in-sync set, and leads.
//!
//! A hot shard may have *read replicas* beside its members: they follow the leader's log, and answer reads. No leader asks them
//! in, none waits for them, and none of them leads.
//!
//! | seen of a read replica                                   | becomes                                    |
//! |----------------------------------------------------------|--------------------------------------------|
//! | `Load`, `Ready`, as it has caught up; the leader serves  | `Live`; the read replica that it replaces leaves |
//! | `Live`, and its service fails, or never begins; the leader serves | `Unload`                          |
//! | its process ended, or has nothing of it                  | removed ([`super::stored`]): another comes in its place while the shard is hot |
//! | the shard has fewer members than it should, those counted whose nodes are waited for | a follower in `Load`: the leader asks it in, as any; what was to replace it replaces none |
//!
//! A split or merge (`service/table/split` has the way of the data): at the switch a child's in-sync set are its replicas on
//! nodes on which a parent is in sync, if they are enough; else the switch waits. Its first replica whose node takes writes leads
//! it, else its first. The others stay in `Load`. The parents keep their in-sync sets, in `Unload`, and their leaders as closers,
//! until every child's replica in sync serves:
//!
//! | seen of a parent that closes                     | next                                          |
//! |--------------------------------------------------|-----------------------------------------------|
//! | its closer wishes                                | the set without those that it asks out; a later epoch, where it asks for the present set |
//! | no closer, or one that cannot act or is silent; another member acts | that one is the closer, under a later epoch |
//! | its closer's node takes no writes, and another member acts on one that does | that one is the closer, under a later epoch |
//! | its closer's process has ended, and none acts    | as in [`super::stored`]: the closer again, under a later epoch, when its node is back |

use super::{DiskState, HandOver, ReplicaView};
use crate::base::id::{PlacementId, ShardId};
use crate::base::name::NodeId;
use crate::keyspace::Ownership;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Edit, EditError, Replica, Role, Shard};
use crate::node::exchange::Phase;
use std::collections::BTreeSet;

/// Grants or refuses what the leader asks for, if it asks for something. Returns whether it has.
pub(super) fn settle_wish(
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
    match heir(shard, &newcomers, &left).map(|heir| view.hand_over(shard, heir)) {
        // Its leader counts on the newcomer already, and is answered when it has handed over. A newcomer is known by its reports,
        // so a coordinator that has just begun calls none silent before it has heard it.
        Some(HandOver::Due | HandOver::UnderWay) => return Ok(false),
        Some(HandOver::InVain) => return edit.configure(id).map(|()| true),
        Some(HandOver::Done) | None => {}
    }
    newcomers.iter().try_for_each(|placement| admit(edit, id, *placement))?;
    for placement in left {
        leave_behind(edit, id, placement)?;
        edit.go_on_without(id)?;
    }
    Ok(true)
}

/// The newcomer that takes the place of the leader. Where the leader asks others out as well, it acknowledges nothing until it is
/// answered, and hands nothing over first.
fn heir(shard: &Shard, newcomers: &[PlacementId], left: &[PlacementId]) -> Option<PlacementId> {
    let leader = shard.leader().filter(|_| left.is_empty())?;
    let replaces_it = |newcomer: &&PlacementId| {
        shard.replica(**newcomer).is_some_and(|r| r.replaces() == Some(leader.placement))
    };
    newcomers.iter().find(replaces_it).copied()
}

/// The replica that the leader of a serving shard asks for, and that is to take its place.
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
    /// None where the leader asks for nothing, or did so under an earlier epoch or configuration.
    fn of(shard: &Shard, view: &'a dyn ReplicaView) -> Option<Wish<'a>> {
        let leader = shard.leader().or(shard.closer())?;
        let (configuration, members) = view.wish(leader.placement)?;
        let is_current =
            configuration == shard.configuration && view.epoch(leader.placement) == Some(shard.epoch);
        is_current.then_some(Wish { leader: leader.placement, members })
    }

    /// Whether it is the present set that is asked for.
    fn is_for_later_epoch(&self, shard: &Shard) -> bool {
        let asked: BTreeSet<_> = self.members.iter().copied().collect();
        asked == shard.in_sync().map(|r| r.placement).collect()
    }

    fn has(&self, replica: &Replica) -> bool {
        self.members.contains(&replica.placement)
    }

    /// Those that it names in addition, stay, and have said themselves that they could serve.
    fn newcomers(&self, shard: &Shard, view: &dyn ReplicaView) -> Vec<PlacementId> {
        let could_serve = |r: &&Replica| {
            let phase = view.phase(r.placement);
            matches!(phase, Some(Phase::Ready | Phase::Serving)) && !view.has_ended(&r.node, r.incarnation)
        };
        let newcomers = shard.members().filter(|r| self.has(r) && !r.in_sync).filter(could_serve);
        newcomers.map(|r| r.placement).collect()
    }

    fn left(&self, shard: &Shard) -> Vec<PlacementId> {
        shard.in_sync().filter(|r| !self.has(r)).map(|r| r.placement).collect()
    }
}

/// Takes a replica into the in-sync set. What it replaces leaves, and if that one led it leads.
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

/// The steps of a read replica that no other replica has. Returns whether its state is one of those.
pub(super) fn settle_read_replica(
    edit: &mut Edit<'_>,
    id: ShardId,
    replica: &Replica,
    view: &dyn ReplicaView,
) -> Result<bool, EditError> {
    let phase = view.phase(replica.placement);
    match (replica.state, phase) {
        _ if !replica.is_read_replica() => return Ok(false),
        (ReplicaState::Load, Some(Phase::Ready)) => open_to_reads(edit, id, replica, view)?,
        // While no leader serves, none has anything later, and another could not be filled.
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

/// A read replica has caught up: it answers reads. What it replaces leaves, unless that has become a member meanwhile.
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
    view.ownership() == Ownership::Replicated && members < view.wanted(shard.id)
}

/// A read replica takes the place of a member that is missing: it is nearly there.
pub(super) fn fill_members(
    edit: &mut Edit<'_>,
    id: ShardId,
    view: &dyn ReplicaView,
) -> Result<(), EditError> {
    let shard = edit.shard(id)?;
    let acts = |r: &&Replica| {
        r.is_read_replica()
            && view.sends_heartbeats(&r.node, r.incarnation)
            && !super::stored::cannot_act(r, view)
    };
    let next = shard.staying().filter(acts).min_by_key(|r| (r.state != ReplicaState::Live, r.placement));
    match next.map(|r| r.placement).filter(|_| lacks_member(shard, view)) {
        Some(next) => edit.make_member(id, next),
        None => Ok(()),
    }
}

/// A leader that is silent is taken out of the set when another member has come to lead: the new leader would wait for it.
pub(super) fn replace_silent_leader(
    edit: &mut Edit<'_>,
    id: ShardId,
    silent: PlacementId,
    next: PlacementId,
) -> Result<(), EditError> {
    edit.lead(id, next)?;
    leave_behind(edit, id, silent)
}

/// Whether the in-sync set has all that a leaving replica had, and is large enough to go on without it.
pub(super) fn targets_have_all(shard: &Shard, view: &dyn ReplicaView) -> bool {
    let lives = |r: &&Replica| {
        !view.has_ended(&r.node, r.incarnation) && view.disk_state(shard, r) != DiskState::Damaged
    };
    shard.in_sync().filter(lives).count() >= view.min_in_sync()
}

/// Whether a child that prepares can come to have an in-sync set: so many of its replicas as must store a write are on nodes
/// on which a parent stays.
pub(super) fn is_enough(edit: &Edit<'_>, child: &Shard, view: &dyn ReplicaView) -> bool {
    if view.ownership() != Ownership::Replicated {
        return true;
    }
    let parents = || child.parents().iter().filter_map(|id| edit.shard(*id).ok());
    let stays = |node: &NodeId| parents().any(|parent| parent.members().any(|r| r.node == *node));
    child.replicas.iter().filter(|r| stays(&r.node)).count() >= view.min_in_sync()
}

/// The switch, when all is ready. Waits while too few replicas of a child are where its parents are in sync.
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
    let least = view.min_in_sync().max(1);
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
pub(super) fn settle_closer(
    edit: &mut Edit<'_>,
    id: ShardId,
    view: &dyn ReplicaView,
) -> Result<bool, EditError> {
    let shard = edit.shard(id)?.clone();
    let acts = |r: &Replica| {
        r.state == ReplicaState::Unload
            && !super::stored::cannot_act(r, view)
            && view.sends_heartbeats(&r.node, r.incarnation)
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
    // The last entry has to be stored, and requests wait for it.
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
