//! What a keyspace keeps beside its map, brought up to date when the next map changes a shard.
//!
//! [`KeyspaceState::note_shard_changed`] has one step for each kind, in this order:
//!
//! | step                         | what it keeps                                           | why there                              |
//! |------------------------------|---------------------------------------------------------|----------------------------------------|
//! | `note_indexes`               | shards by parent and by node, steps that people see, copies to compare | nothing else counts for it |
//! | `note_waits`                 | whether the shard rests, what it waits for, whether its leader needs a grant | the planner and owed steps follow from these |
//! | `note_failed_loads`          | nodes where the shard could not be loaded               | reads reports that `forget_gone` removes |
//! | `note_taken_on`              | replicas that have never led; nodes that have just taken the shard on | before `note_leader`     |
//! | `plan_if_settled`            | shards that the planner waits for                       | after `note_waits`                     |
//! | `forget_gone`                | nothing of replicas that the map no longer names        | after all that reads their reports     |
//! | `note_pending_steps`         | steps that workers owe                                  | after `note_waits`: a grant begins one |
//! | `withdraw_orders`            | orders for the replicas that are gone                   | after `forget_gone`                    |
//! | `note_new_processes`         | nothing of the process that a replica had before        | after `note_pending_steps`: that process owes nothing |
//! | `note_leader`                | the leader is no replica that has never led             | after those that say that one is       |
//! | `set_unloadable_aside`, `brake_if_loads_fail` | shards set aside, the brake            | last: they judge by all of the above   |

use super::members::Members;
use super::overdue::Avoided;
use super::{KeyspaceState, Moment, Outbox};
use crate::base::id::{PlacementId, ShardId};
use crate::base::settings::Settings;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Replica, Role, Shard};
use crate::limits;
use crate::node::exchange::Phase;

/// A shard as it was, and what the next map has done to its replicas.
pub(super) struct ShardChange<'a> {
    id: ShardId,
    /// None if the shard is new.
    old: Option<&'a Shard>,
    /// Replicas that the map no longer names.
    gone: Vec<&'a Replica>,
    /// Replicas that begin anew, as they were, each with its state now.
    begun_anew: Vec<(&'a Replica, ReplicaState)>,
    /// Replicas that the map has not named before.
    added: Vec<PlacementId>,
    /// Replicas that lead now, and were there before.
    leads_now: Vec<PlacementId>,
}

impl<'a> ShardChange<'a> {
    /// A shard that was `old`, and is `new`.
    pub(super) fn of(id: ShardId, old: Option<&'a Shard>, new: Option<&Shard>) -> ShardChange<'a> {
        let mut change =
            ShardChange { id, old, gone: vec![], begun_anew: vec![], added: vec![], leads_now: vec![] };
        for before in old.into_iter().flat_map(|shard| &shard.replicas) {
            match new.and_then(|shard| shard.replica(before.placement)) {
                None => change.gone.push(before),
                Some(now) if begins_anew(before, now) => change.begun_anew.push((before, now.state)),
                Some(_) => {}
            }
        }
        for now in new.into_iter().flat_map(|shard| &shard.replicas) {
            match old.and_then(|shard| shard.replica(now.placement)) {
                None => change.added.push(now.placement),
                Some(before) if now.role == Role::Leader && before.role != Role::Leader => {
                    change.leads_now.push(now.placement);
                }
                Some(_) => {}
            }
        }
        change
    }
}

impl KeyspaceState {
    /// Brings up to date what is kept beside the map, which has the change already: see the module.
    pub(super) fn note_shard_changed(
        &mut self,
        at: Moment,
        change: &ShardChange<'_>,
        settings: &Settings,
        members: &mut Members,
        outbox: &mut Outbox,
    ) {
        self.note_indexes(at, change);
        self.note_waits(at, change, members);
        let has_failed = change.old.is_some_and(|old| self.note_failed_loads(at, old, settings));
        self.note_taken_on(at, change);
        self.plan_if_settled(at, change.id);
        self.forget_gone(change);
        self.note_pending_steps(at, change.id, settings);
        self.withdraw_orders(change, members, outbox);
        self.note_new_processes(change, members);
        self.note_leader(change.id);
        if has_failed {
            self.set_unloadable_aside(at, change.id, members.view(at.now, settings), outbox);
            self.brake_if_loads_fail(at, settings, outbox);
        }
    }

    fn note_indexes(&mut self, at: Moment, &ShardChange { id, old, .. }: &ShardChange<'_>) {
        let new = self.map.shard(id);
        self.queue.note_child(id, old, new);
        self.hosted.note(id, old, new);
        self.restored.compare_again(id);
        self.note_steps(at, id, old);
    }

    fn note_waits(&mut self, at: Moment, &ShardChange { id, old, .. }: &ShardChange<'_>, members: &Members) {
        if let Some(old) = old.filter(|_| self.queue.unsettled.remove(&id)) {
            self.queue.under_way.count(old, -1);
        }
        self.note_resting(&members.nodes, [id]);
        self.note_waiting(id);
        self.note_epoch(at, id, old);
    }

    /// Notes on which nodes the shard could not be loaded, so that the planner tries others. Returns whether there was one.
    fn note_failed_loads(&mut self, at: Moment, old: &Shard, settings: &Settings) -> bool {
        let state = |r: &Replica| self.map.shard(old.id)?.replica(r.placement).map(|r| r.state);
        let is_given_up =
            |r: &&Replica| r.state == ReplicaState::Load && state(r).is_some_and(|state| !state.is_staying());
        let given_up: Vec<&Replica> = old.replicas.iter().filter(is_given_up).collect();
        let mut failed = false;
        for replica in given_up {
            let parents = old.parents().to_vec();
            if self.overdue.pending_steps.is_overdue(replica.placement, ReplicaState::Load) {
                self.avoid_hung(at, replica, (old.id, parents), settings);
                failed = true;
            } else if let Some(Phase::Failed(failure)) = self.phase_of(replica.placement)
                && failure.attempts > self.overdue.excused_attempts(replica.placement, at.now)
            {
                // The worker deletes what was damaged, and the next replica there begins with nothing.
                let avoid_ms = if failure.damaged { limits::AVOID_DAMAGED_MS } else { limits::AVOID_MS };
                let (until, why) = (at.now + avoid_ms, failure.reason.clone());
                let avoided = Avoided { until, why, hung: false, parents };
                self.overdue.avoid.insert((old.id, replica.node.clone()), avoided);
                self.plan_again(at);
                failed = true;
            }
        }
        failed
    }

    fn note_taken_on(&mut self, at: Moment, change: &ShardChange<'_>) {
        if self.record.keyspace.durable {
            self.never_led.extend(&change.added);
        }
        let taken =
            change.added.iter().chain(&change.leads_now).map(|placement| (*placement, (change.id, at.now)));
        self.suspicion.taken.extend(taken);
    }

    fn plan_if_settled(&mut self, at: Moment, id: ShardId) {
        if !self.queue.unsettled.contains(&id) && self.planning.blocked.remove(&id) {
            self.plan_again(at);
        }
    }

    fn forget_gone(&mut self, change: &ShardChange<'_>) {
        for Replica { placement, .. } in &change.gone {
            self.observed.remove(placement);
            self.replication.remove(placement);
            self.suspicion.taken.remove(placement);
            self.overdue.excused.remove(placement);
            self.never_led.remove(placement);
            self.overdue.pending_steps.forget(*placement);
        }
    }

    fn withdraw_orders(&self, change: &ShardChange<'_>, members: &mut Members, outbox: &mut Outbox) {
        for replica in &change.gone {
            let key = self.key_of(change.id, replica.placement);
            members.withdraw_order(key, replica, self.map.shard(change.id), outbox);
        }
    }

    fn note_new_processes(&mut self, change: &ShardChange<'_>, members: &mut Members) {
        for (replica, state) in &change.begun_anew {
            self.note_begun_anew(replica.placement, *state);
            // A replica in `Live` serves its data; one in `Load` still only keeps it.
            if let Some(node) = members.get_mut(&replica.node).filter(|_| *state == ReplicaState::Live) {
                node.kept.remove(&self.key_of(change.id, replica.placement));
            }
        }
    }

    fn note_leader(&mut self, id: ShardId) {
        if let Some(leader) = self.map.shard(id).and_then(Shard::leader) {
            self.never_led.remove(&leader.placement);
        }
    }

    /// After a change of a shard that was `old`: under a new epoch its leader needs a new grant.
    fn note_epoch(&mut self, at: Moment, id: ShardId, old: Option<&Shard>) {
        match self.map.shard(id) {
            Some(shard) if old.is_none_or(|old| old.epoch != shard.epoch) => {
                self.since.insert(id, at.wall_ms);
                self.queue.ungranted.insert(id);
            }
            Some(_) => {}
            None => {
                self.since.remove(id);
                self.queue.ungranted.remove(&id);
                // Its parents no longer wait for it: a person has put another shard in its place (seed 402228).
                old.into_iter().flat_map(|old| old.parents()).for_each(|parent| self.queue.enqueue(*parent));
            }
        }
    }
}

/// Whether a stored replica goes on with another process, or went from `Live` back to `Load`.
fn begins_anew(before: &Replica, now: &Replica) -> bool {
    let is_set_back = before.state == ReplicaState::Live && now.state == ReplicaState::Load;
    is_set_back || before.incarnation != now.incarnation
}
