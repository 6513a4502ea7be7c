//! The next map: every step that a handover is ready for and every change of an approved plan that the
//! throttle lets begin, in one commit per keyspace.

use super::change_queue::ChangeQueue;
use super::execute::Beginnings;
use super::overdue::Avoided;
use super::{Cluster, KeyspaceState, Moment, Write};
use crate::base::id::{PlacementId, PlanId, ShardId, TransactionId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::planted::{self, Planted};
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind, begins_empty, first_of_shards, of_change, of_shard};
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Edit, EditError, MapDiff, Replica, Role, Shard, Stage};
use crate::limits;
use crate::node::exchange::{Phase, ReplicaKey};
use crate::plan::check::{self, Finding};
use crate::plan::handover;
use crate::plan::{Origin, Plan, Progress, Status};
use std::collections::BTreeSet;

impl KeyspaceState {
    /// The next decision looks at these shards, and at their parents and children.
    pub(super) fn wake(&mut self, shards: impl IntoIterator<Item = ShardId>) {
        for id in shards {
            self.settling.note_news(id);
            // Children that prepare wait for news of their parents too.
            for child in self.settling.children(id).collect::<Vec<_>>() {
                self.settling.note_news(child);
            }
            let Some(shard) = self.map.shard(id) else { continue };
            let parents = shard.parents().iter().filter(|parent| self.map.shard(**parent).is_some());
            let relatives: &[ShardId] = match shard.stage() {
                Stage::Forming(relatives) | Stage::Closing(relatives) => relatives,
                Stage::Serving | Stage::Removing => &[],
            };
            let others: Vec<ShardId> = parents.chain(relatives).copied().collect();
            others.into_iter().for_each(|other| self.settling.note_news(other));
        }
    }

    /// Notes where a shard could not be loaded, so that it is tried elsewhere. Returns whether there was such
    /// a node.
    fn notice_failures(&mut self, at: Moment, old: &Shard, settings: &Settings) -> bool {
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
            } else if let Some(Phase::Failed(failure)) =
                self.observed.get(&replica.placement).map(|seen| seen.phase())
                && failure.attempts > self.overdue.excused_attempts(replica.placement, at.now)
            {
                // What was damaged is deleted, and what comes next begins with nothing.
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

    /// Follows a change of a shard that was `old`: under a new epoch its leader was not granted it yet; where it is gone, its
    /// parents are looked at again.
    fn note_epoch(&mut self, at: Moment, id: ShardId, old: Option<&Shard>) {
        match self.map.shard(id) {
            Some(shard) if old.is_none_or(|old| old.epoch != shard.epoch) => {
                self.since.insert(id, at.wall_ms);
                self.settling.ungranted.insert(id);
            }
            Some(_) => {}
            None => {
                self.since.remove(id);
                self.settling.ungranted.remove(&id);
                // What it came from waits for it no more: a person has put another shard in its place (seed 402228).
                old.into_iter()
                    .flat_map(|old| old.parents())
                    .for_each(|parent| self.settling.note_news(*parent));
            }
        }
    }

    /// What a shard is being split or merged into: the children that prepare, or that have just opened.
    pub(super) fn children_under_way(&self, id: ShardId) -> Vec<ShardId> {
        let forming = self.settling.children(id);
        match self.map.shard(id).map(|shard| shard.stage()) {
            Some(Stage::Closing(children)) => forming.chain(children.iter().copied()).collect(),
            _ => forming.collect(),
        }
    }

    /// Shards with something under way.
    pub fn unsettled(&self) -> &BTreeSet<ShardId> {
        &self.settling.unsettled
    }
}

/// The next map of a keyspace, and what it was made of.
struct NextMap {
    /// The shards that were looked at.
    awake: BTreeSet<ShardId>,
    /// Which changes of plans wait, and for what.
    queue: ChangeQueue,
    /// Steps that the map did not take.
    refusals: Vec<EditError>,
    /// Changes of plans that begin with it.
    beginnings: Beginnings,
    /// None where nothing is different.
    diff: Option<MapDiff>,
}

impl Cluster {
    /// When the throttle lets something begin that waits for nothing else.
    pub(super) fn next_copy_due(&self) -> Millis {
        self.keyspaces.values().map(|keyspace| keyspace.execution.copies_due).min().unwrap_or(Millis::NEVER)
    }

    /// One commit per keyspace with everything that is ready. Returns whether more is ready at once.
    pub(super) fn advance(&mut self, at: Moment, transaction: TransactionId) -> bool {
        let names = self.keyspaces_in_turn();
        let (begun_with, most) =
            (self.budget.work.settled, self.share_beside_planning(limits::SHARDS_SETTLED));
        let mut again = false;
        self.budget.next_in_turn = None;
        for name in names {
            let looked_at = (self.budget.work.settled - begun_with) as usize;
            if looked_at >= most {
                self.budget.next_in_turn = Some(name);
                return true;
            }
            again |= self.advance_keyspace(at, transaction, &name, most - looked_at);
        }
        again
    }

    /// Looks at `most` of the shards that have news.
    fn advance_keyspace(
        &mut self,
        at: Moment,
        transaction: TransactionId,
        name: &KeyspaceName,
        most: usize,
    ) -> bool {
        let plans = self.plans_in_turn(name);
        let Some(keyspace) = self.keyspaces.get_mut(name) else { return false };
        if keyspace.settling.awake.is_empty() && plans.is_empty() {
            keyspace.execution.copies_due = Millis::NEVER;
            return false;
        }
        let awake = keyspace.settling.take_awake(most);
        let more = !keyspace.settling.awake.is_empty();
        let queue = std::mem::take(&mut keyspace.execution.change_queue);
        let Some(next) = self.next_map(at, transaction, name, (awake, plans, queue)) else { return false };
        self.take_next_map(at, name, next) || more
    }

    /// What is ready in a keyspace: steps of the shards that are awake, and changes of these plans, in order.
    fn next_map(
        &self,
        at: Moment,
        transaction: TransactionId,
        name: &KeyspaceName,
        (awake, plans, mut queue): (BTreeSet<ShardId>, Vec<PlanId>, ChangeQueue),
    ) -> Option<NextMap> {
        let keyspace = self.keyspaces.get(name)?;
        let mut edit = keyspace.map.edit();
        let refusals = self.settle(keyspace, &mut edit, &awake, at);
        let beginnings = self.start_changes(keyspace, &mut edit, (&plans, &mut queue, !awake.is_empty()), at);
        let diff = (!edit.is_empty()).then(|| edit.commit(transaction));
        Some(NextMap { awake, queue, refusals, beginnings, diff })
    }

    /// Commits it, and notes what follows. Returns whether more is ready at once.
    fn take_next_map(&mut self, at: Moment, name: &KeyspaceName, next: NextMap) -> bool {
        let NextMap { awake, queue, refusals, beginnings, diff } = next;
        let Beginnings { progress, meter, due, is_cut_short } = beginnings;
        for refusal in refusals {
            self.tell(EventKind::Alarm, About::keyspace(name), true, format!("keyspace {name}: {refusal}"));
        }
        let (told, has_diff) = (self.outbox.events.len(), diff.is_some());
        let committed = diff.is_some_and(|diff| self.commit(at, name, diff));
        let is_refused = has_diff && !committed;
        self.grant(name, &awake, at);
        if let Some(keyspace) = self.keyspaces.get_mut(name) {
            awake.iter().for_each(|id| keyspace.note_pending_steps(at, *id, &self.settings));
            if keyspace.record.keyspace.durable {
                keyspace.note_resting(&self.nodes, awake.iter().copied());
            }
            keyspace.execution.change_queue = queue;
            if !is_refused {
                keyspace.execution.meter = meter;
            }
            keyspace.execution.copies_due = due;
        }
        self.budget.work.settled += (awake.len() + progress.len()) as u64;
        let has_begun = !progress.is_empty();
        let mut begun = Vec::new();
        for (plan, index, mut progress) in progress {
            // It has not begun. Tried again, it would be refused again.
            if is_refused && progress == Progress::Started {
                progress = Progress::Dropped("the check refused the next map".to_owned());
            }
            if let Some(plan) = self.plans.get_mut(&plan) {
                plan.changes[index].progress = progress;
                begun.extend(of_change(plan, index));
            }
        }
        // Why comes before what: a change of leader begins and is done in the same map.
        self.outbox.events.splice(told..told, first_of_shards(name, begun));
        let has_news = committed || has_begun || !awake.is_empty();
        let untracked = self.track_plans(at, name, has_news);
        committed || is_cut_short || untracked
    }

    /// Approved plans, the most urgent first, older ones first among equals. While the brake is on, automatic
    /// ones wait; in unrest, rebalances.
    fn plans_in_turn(&self, name: &KeyspaceName) -> Vec<PlanId> {
        let braked = self.keyspaces.get(name).is_some_and(|keyspace| self.brake_on(keyspace).is_some());
        let approved = self.plans.values().filter(|p| p.keyspace == *name && p.status == Status::Approved);
        let unrest = self.unrest().is_some();
        let waits = |plan: &Plan| {
            (braked && plan.origin.is_automatic()) || (unrest && plan.origin == Origin::Rebalance)
        };
        let mut plans: Vec<_> = approved.filter(|plan| !waits(plan)).collect();
        plans.sort_by_key(|plan| (plan.origin.urgency(), plan.id));
        plans.into_iter().map(|plan| plan.id).collect()
    }

    fn settle(
        &self,
        keyspace: &KeyspaceState,
        edit: &mut Edit<'_>,
        awake: &BTreeSet<ShardId>,
        at: Moment,
    ) -> Vec<EditError> {
        let view = self.view(keyspace, at.now);
        // A shard may have been removed by the step of another one before it: that is no refusal.
        let there = |edit: &Edit<'_>, id| edit.shard(id).is_ok();
        awake
            .iter()
            .filter_map(|id| there(edit, *id).then(|| handover::settle(edit, *id, &view).err()).flatten())
            .collect()
    }

    /// Checks the next map, applies it, and notes what follows for orders and reports.
    pub(super) fn commit(&mut self, at: Moment, name: &KeyspaceName, diff: MapDiff) -> bool {
        self.commit_without(at, name, diff, None)
    }

    /// The same, where a person has `given_up` the data of a shard.
    pub(super) fn commit_without(
        &mut self,
        at: Moment,
        name: &KeyspaceName,
        diff: MapDiff,
        given_up: Option<ShardId>,
    ) -> bool {
        let Some(keyspace) = self.keyspaces.get_mut(name) else { return false };
        let mut findings = check::diff(&keyspace.map, &diff);
        if keyspace.record.keyspace.durable && !planted::is(Planted::LastCopy) {
            let lost = check::keeps_data(&keyspace.map, &diff).into_iter();
            findings.extend(lost.filter(|finding| given_up.map(Finding::LastCopy).as_ref() != Some(finding)));
        }
        if let Some(finding) = findings.into_iter().next() {
            self.tell(
                EventKind::Alarm,
                About::keyspace(name),
                true,
                format!(
                    "keyspace {name}: the next map was refused by the check, the last one stays: {finding}"
                ),
            );
            return false;
        }
        let before: Vec<(ShardId, Option<Shard>)> = {
            let touched = diff.changed.iter().map(|shard| shard.id).chain(diff.removed.iter().copied());
            touched.map(|id| (id, keyspace.map.shard(id).cloned())).collect()
        };
        if let Err(error) = keyspace.map.apply(&diff) {
            self.tell(EventKind::Alarm, About::keyspace(name), true, format!("keyspace {name}: {error}"));
            return false;
        }
        self.outbox.writes.push(Write::Map(diff.clone()));
        self.outbox.maps.push(diff);
        let ids: Vec<ShardId> = before.iter().map(|(id, _)| *id).collect();
        let seen = before.iter();
        let seen = seen.filter_map(|(id, old)| of_shard(name, *id, old.as_ref(), keyspace.map.shard(*id)));
        self.outbox.events.extend(first_of_shards(name, seen.collect()));
        let began_empty = |(id, old): &&(ShardId, Option<Shard>)| {
            keyspace.map.shard(*id).is_some_and(|new| begins_empty(old.as_ref(), new))
        };
        let shards = before.iter().filter(began_empty).count();
        keyspace.note_begun_empty(at, shards);
        for (id, old) in before {
            self.follow_up(at, name, id, old.as_ref());
        }
        self.carry_rules(name, &ids);
        self.follow_slots(name);
        if let Some(keyspace) = self.keyspaces.get_mut(name) {
            keyspace.wake(ids.iter().copied());
            keyspace.note_map_changed(at);
        }
        self.refresh_orders(name, ids);
        true
    }

    /// Sets the settings' number of slots to the map's.
    fn follow_slots(&mut self, name: &KeyspaceName) {
        let Some(keyspace) = self.keyspaces.get_mut(name) else { return };
        let sharding = keyspace.map.sharding();
        if keyspace.record.keyspace.sharding != sharding {
            keyspace.record.keyspace.sharding = sharding;
            self.outbox.writes.push(Write::Keyspace(keyspace.record.clone()));
        }
    }

    /// Forgets what belonged to replicas that are gone, and notes whether the shard is settled.
    fn follow_up(&mut self, at: Moment, name: &KeyspaceName, id: ShardId, old: Option<&Shard>) {
        let Some(keyspace) = self.keyspaces.get_mut(name) else { return };
        keyspace.settling.note_child(id, old, keyspace.map.shard(id));
        keyspace.restored.compare_again(id);
        keyspace.note_steps(at, id, old);
        let new = keyspace.map.shard(id);
        keyspace.hosted.note(id, old, new);
        let gone: Vec<&Replica> = old
            .into_iter()
            .flat_map(|shard| &shard.replicas)
            .filter(|r| new.is_none_or(|shard| shard.replica(r.placement).is_none()))
            .collect();
        let now = |r: &Replica| new.and_then(|shard| shard.replica(r.placement));
        let anew: Vec<(&Replica, ReplicaState)> = old
            .into_iter()
            .flat_map(|shard| &shard.replicas)
            .filter_map(|r| now(r).filter(|now| begins_anew(r, now)).map(|now| (r, now)))
            .map(|(before, now)| (before, now.state))
            .collect();
        if let Some(old) = old.filter(|_| keyspace.settling.unsettled.remove(&id)) {
            keyspace.settling.under_way.count(old, -1);
        }
        keyspace.note_resting(&self.nodes, [id]);
        keyspace.note_waiting(id);
        keyspace.note_epoch(at, id, old);
        let failed = old.is_some_and(|old| keyspace.notice_failures(at, old, &self.settings));
        if keyspace.record.keyspace.durable {
            let is_new = |r: &&Replica| old.is_none_or(|old| old.replica(r.placement).is_none());
            let replicas = keyspace.map.shard(id).into_iter().flat_map(|shard| &shard.replicas);
            keyspace.never_led.extend(replicas.filter(is_new).map(|r| r.placement));
        }
        let fresh = taken_on(old, keyspace.map.shard(id));
        keyspace.suspicion.taken.extend(fresh.into_iter().map(|placement| (placement, (id, at.now))));
        if !keyspace.settling.unsettled.contains(&id) && keyspace.planning.blocked.remove(&id) {
            keyspace.plan_again(at);
        }
        for replica in &gone {
            keyspace.observed.remove(&replica.placement);
            keyspace.replication.remove(&replica.placement);
            keyspace.suspicion.taken.remove(&replica.placement);
            keyspace.overdue.excused.remove(&replica.placement);
            keyspace.never_led.remove(&replica.placement);
            keyspace.overdue.pending_steps.forget(replica.placement);
        }
        keyspace.note_pending_steps(at, id, &self.settings);
        for replica in gone {
            self.withdraw_order(name, id, replica);
        }
        for (replica, state) in anew {
            let key = ReplicaKey { keyspace: name.clone(), shard: id, placement: replica.placement };
            self.note_begun_anew(&key, &replica.node, state);
        }
        if let Some(keyspace) = self.keyspaces.get_mut(name)
            && let Some(leader) = keyspace.map.shard(id).and_then(Shard::leader)
        {
            keyspace.never_led.remove(&leader.placement);
        }
        if failed {
            self.set_unloadable_aside(at, name, id);
            self.brake_if_loads_fail(at, name);
        }
    }

    /// Children inherit the rules of their parents; the rules of shards that are gone are deleted.
    fn carry_rules(&mut self, name: &KeyspaceName, touched: &[ShardId]) {
        let Some(keyspace) = self.keyspaces.get_mut(name) else { return };
        if keyspace.record.rules.is_empty() {
            return;
        }
        let rules = &mut keyspace.record.rules;
        // Children first, as a parent may go in the same commit.
        let children = touched.iter().filter_map(|id| keyspace.map.shard(*id));
        let forming = children.filter(|shard| matches!(shard.stage(), Stage::Forming(_)));
        let new = forming.filter(|child| !rules.contains_key(&child.id));
        let inherited: Vec<_> = new
            .filter_map(|child| Some((child.id, child.parents().iter().find_map(|p| rules.get(p))?.clone())))
            .collect();
        let gone = touched.iter().filter(|id| keyspace.map.shard(**id).is_none());
        let removed = gone.filter_map(|id| rules.remove(id)).count();
        if removed > 0 || !inherited.is_empty() {
            rules.extend(inherited);
            self.outbox.writes.push(Write::Keyspace(keyspace.record.clone()));
        }
    }

    /// Grants what reports alone have made possible since it was called last, up to [`limits::SHARDS_GRANTED`]: the
    /// next decisions see to the rest. Returns the nodes whose orders have changed. Nothing that is stored changes by
    /// it, so these orders may leave before the next commit: a shard is then without an owner for as long as the
    /// messages take, not the disk. While something waits to be stored it grants nothing.
    pub fn grant_at_once(&mut self, at: Moment) -> BTreeSet<NodeId> {
        if !self.outbox.writes.is_empty() {
            return BTreeSet::new();
        }
        let mut most = limits::SHARDS_GRANTED;
        let mut heard = Vec::new();
        for (name, keyspace) in
            self.keyspaces.iter_mut().filter(|(_, keyspace)| !keyspace.settling.grantable.is_empty())
        {
            let first = (0..most).map_while(|_| keyspace.settling.grantable.pop_first());
            let shards: BTreeSet<ShardId> = first.collect();
            most -= shards.len();
            heard.push((name.clone(), shards));
        }
        for (name, shards) in heard {
            self.grant(&name, &shards, at);
        }
        std::mem::take(&mut self.outbox.changed_orders)
    }

    /// Grants the leaders that are now the only possible owners, and the replicas that may begin after their leader.
    fn grant(&mut self, name: &KeyspaceName, awake: &BTreeSet<ShardId>, at: Moment) {
        let Some(keyspace) = self.keyspaces.get(name) else { return };
        let view = self.view(keyspace, at.now);
        // Each once: orders that are always sent anew are never known as taken in.
        let ready = |waiting: &BTreeSet<ShardId>, is_ready: &dyn Fn(&Shard) -> bool| {
            let waiting = awake.iter().filter(|id| waiting.contains(id));
            let waiting = waiting.filter_map(|id| keyspace.map.shard(*id));
            waiting.filter(|shard| is_ready(shard)).map(|shard| shard.id).collect::<BTreeSet<_>>()
        };
        let granted = ready(&keyspace.settling.ungranted, &|shard| {
            let may_begin =
                |leader: &Replica| !keyspace.is_unheard(&self.nodes, leader) && !keyspace.has_lost(leader);
            shard.leader().is_some_and(may_begin) && handover::is_granted(shard, &keyspace.map, &view)
        });
        let announced = ready(&keyspace.settling.unannounced, &|shard| self.is_announced(keyspace, shard));
        let followed = ready(&keyspace.settling.unfollowed, &|shard| !self.follows_later(keyspace, shard));
        if let Some(keyspace) = self.keyspaces.get_mut(name) {
            granted.iter().for_each(|id| _ = keyspace.settling.ungranted.remove(id));
            announced.iter().for_each(|id| _ = keyspace.settling.unannounced.remove(id));
            followed.iter().for_each(|id| _ = keyspace.settling.unfollowed.remove(id));
        }
        self.refresh_orders(name, granted.into_iter().chain(announced).chain(followed));
    }
}

/// Whether a stored replica goes on with another process, or waits for one.
fn begins_anew(before: &Replica, now: &Replica) -> bool {
    let is_set_back = before.state == ReplicaState::Live && now.state == ReplicaState::Load;
    is_set_back || before.incarnation != now.incarnation
}

/// Replicas whose nodes have something new to do: a shard, or the lead of it.
fn taken_on(old: Option<&Shard>, new: Option<&Shard>) -> Vec<PlacementId> {
    let before = |r: &Replica| old.and_then(|old| old.replica(r.placement)).map(|old| old.role);
    let takes_on = |r: &&Replica| before(r).is_none_or(|role| role != r.role && r.role == Role::Leader);
    let replicas = new.into_iter().flat_map(|shard| &shard.replicas);
    replicas.filter(takes_on).map(|r| r.placement).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::test_cluster::{TestCluster, keyspace, name, node, slots};
    use super::*;
    use crate::cluster::admin::Command;

    #[test]
    fn a_change_of_a_map_that_the_check_refuses_has_not_begun() {
        let mut test = TestCluster::new(keyspace(2), slots(2));
        ["a", "b"].iter().for_each(|name| test.join(name));
        test.run(5_000);
        let (at, transaction) = (test.at(), TransactionId([9; 20]));
        let shard = test.map().shards().next().unwrap().clone();
        let from = shard.replicas[0].node.clone();
        let to = if from == node("a") { node("b") } else { node("a") };
        let moved = Command::MoveShard { keyspace: name(), shard: shard.id, from, to };
        test.cluster.command(at, transaction, "mia", moved).unwrap();
        let cluster = &mut test.cluster;
        cluster.take_outbox();
        let plans = cluster.plans_in_turn(&name());
        let plan = plans[0];
        let ready = (BTreeSet::new(), plans, ChangeQueue::default());
        let mut next = cluster.next_map(at, transaction, &name(), ready).unwrap();
        assert_eq!(next.beginnings.progress, [(plan, 0, Progress::Started)]);
        next.beginnings.meter.take(1_000);
        next.diff.as_mut().unwrap().next_placement = PlacementId(0);

        let (map, meter) =
            (cluster.keyspaces[&name()].map.clone(), cluster.keyspaces[&name()].execution.meter.clone());
        cluster.take_next_map(at, &name(), next);
        let keyspace = &cluster.keyspaces[&name()];
        assert_eq!((&keyspace.map, &keyspace.execution.meter), (&map, &meter));
        let plan = &cluster.plans[&plan];
        assert_eq!(plan.changes[0].progress, Progress::Dropped("the check refused the next map".to_owned()));
        assert_eq!(plan.status, Status::Finished);
        let told: Vec<_> = cluster.take_outbox().events.into_iter().map(|event| event.text).collect();
        assert!(told.iter().any(|text| text.contains("given up")), "{told:#?}");
        assert!(told.iter().any(|text| text.contains("refused by the check")), "{told:#?}");
    }
}
