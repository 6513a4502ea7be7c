//! The next map: every step that a handover is ready for and every change of an approved plan that the
//! throttle lets begin, in one commit per keyspace.

use super::change_queue::ChangeQueue;
use super::execute::Beginnings;
use super::members::Members;
use super::overdue::Avoided;
use super::{Cluster, KeyspaceState, Moment, Outbox, Write};
use crate::base::id::{PlacementId, PlanId, ShardId, TransactionId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::planted::{self, Planted};
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind, begins_empty, first_of_shards, of_change, of_shard};
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Edit, EditError, MapDiff, Replica, Role, Shard, Stage};
use crate::limits;
use crate::node::exchange::Phase;
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
    /// Shards whose leaders are to hand over, and to whom.
    transfers: Vec<(ShardId, PlacementId)>,
    /// None where nothing is different.
    diff: Option<MapDiff>,
}

impl KeyspaceState {
    /// Checks the next map, applies it, and notes what follows for orders and reports. `given_up` is a shard whose data a
    /// person has given up. Returns whether the map was taken.
    pub(super) fn commit(
        &mut self,
        at: Moment,
        (diff, given_up): (MapDiff, Option<ShardId>),
        settings: &Settings,
        members: &mut Members,
        outbox: &mut Outbox,
    ) -> bool {
        let name = &self.map.keyspace().clone();
        let mut findings = check::diff(&self.map, &diff);
        if self.record.keyspace.durable && !planted::is(Planted::LastCopy) {
            let lost = check::keeps_data(&self.map, &diff).into_iter();
            findings.extend(lost.filter(|finding| given_up.map(Finding::LastCopy).as_ref() != Some(finding)));
        }
        if let Some(finding) = findings.into_iter().next() {
            outbox.tell(
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
            touched.map(|id| (id, self.map.shard(id).cloned())).collect()
        };
        if let Err(error) = self.map.apply(&diff) {
            outbox.tell(EventKind::Alarm, About::keyspace(name), true, format!("keyspace {name}: {error}"));
            return false;
        }
        outbox.writes.push(Write::Map(diff.clone()));
        outbox.maps.push(diff);
        let ids: Vec<ShardId> = before.iter().map(|(id, _)| *id).collect();
        let seen = before.iter();
        let seen = seen.filter_map(|(id, old)| of_shard(name, *id, old.as_ref(), self.map.shard(*id)));
        outbox.events.extend(first_of_shards(name, seen.collect()));
        let began_empty = |(id, old): &&(ShardId, Option<Shard>)| {
            self.map.shard(*id).is_some_and(|new| begins_empty(old.as_ref(), new))
        };
        let shards = before.iter().filter(began_empty).count();
        self.note_begun_empty(at, shards);
        for (id, old) in before {
            self.follow_up(at, (id, old.as_ref()), settings, members, outbox);
        }
        outbox.writes.extend(self.carry_rules(&ids));
        outbox.writes.extend(self.follow_slots());
        self.wake(ids.iter().copied());
        self.note_map_changed(at);
        members.refresh_orders(self, ids, outbox);
        true
    }

    /// Sets the settings' number of slots to the map's.
    fn follow_slots(&mut self) -> Option<Write> {
        let sharding = self.map.sharding();
        let differs = self.record.keyspace.sharding != sharding;
        self.record.keyspace.sharding = sharding;
        differs.then(|| Write::Keyspace(self.record.clone()))
    }

    /// Forgets what belonged to replicas that are gone, and notes whether the shard is settled.
    fn follow_up(
        &mut self,
        at: Moment,
        (id, old): (ShardId, Option<&Shard>),
        settings: &Settings,
        members: &mut Members,
        outbox: &mut Outbox,
    ) {
        self.settling.note_child(id, old, self.map.shard(id));
        self.restored.compare_again(id);
        self.note_steps(at, id, old);
        let new = self.map.shard(id);
        self.hosted.note(id, old, new);
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
        if let Some(old) = old.filter(|_| self.settling.unsettled.remove(&id)) {
            self.settling.under_way.count(old, -1);
        }
        self.note_resting(&members.nodes, [id]);
        self.note_waiting(id);
        self.note_epoch(at, id, old);
        let failed = old.is_some_and(|old| self.notice_failures(at, old, settings));
        if self.record.keyspace.durable {
            let is_new = |r: &&Replica| old.is_none_or(|old| old.replica(r.placement).is_none());
            let replicas = self.map.shard(id).into_iter().flat_map(|shard| &shard.replicas);
            self.never_led.extend(replicas.filter(is_new).map(|r| r.placement));
        }
        let fresh = taken_on(old, self.map.shard(id));
        self.suspicion.taken.extend(fresh.into_iter().map(|placement| (placement, (id, at.now))));
        if !self.settling.unsettled.contains(&id) && self.planning.blocked.remove(&id) {
            self.plan_again(at);
        }
        for replica in &gone {
            self.observed.remove(&replica.placement);
            self.replication.remove(&replica.placement);
            self.suspicion.taken.remove(&replica.placement);
            self.overdue.excused.remove(&replica.placement);
            self.never_led.remove(&replica.placement);
            self.overdue.pending_steps.forget(replica.placement);
        }
        self.note_pending_steps(at, id, settings);
        for replica in gone {
            let key = self.key_of(id, replica.placement);
            members.withdraw_order(key, replica, self.map.shard(id), outbox);
        }
        for (replica, state) in anew {
            self.note_begun_anew(replica.placement, state);
            // In `Live` its data is kept no longer, but served; one that catches up still has what it had.
            if let Some(node) = members.get_mut(&replica.node).filter(|_| state == ReplicaState::Live) {
                node.kept.remove(&self.key_of(id, replica.placement));
            }
        }
        if let Some(leader) = self.map.shard(id).and_then(Shard::leader) {
            self.never_led.remove(&leader.placement);
        }
        if failed {
            self.set_unloadable_aside(at, id, (&members.nodes, settings), outbox);
            self.brake_if_loads_fail(at, settings, outbox);
        }
    }

    /// Children inherit the rules of their parents; the rules of shards that are gone are deleted.
    fn carry_rules(&mut self, touched: &[ShardId]) -> Option<Write> {
        let rules = &mut self.record.rules;
        if rules.is_empty() {
            return None;
        }
        // Children first, as a parent may go in the same commit.
        let children = touched.iter().filter_map(|id| self.map.shard(*id));
        let forming = children.filter(|shard| matches!(shard.stage(), Stage::Forming(_)));
        let new = forming.filter(|child| !rules.contains_key(&child.id));
        let inherited: Vec<_> = new
            .filter_map(|child| Some((child.id, child.parents().iter().find_map(|p| rules.get(p))?.clone())))
            .collect();
        let gone = touched.iter().filter(|id| self.map.shard(**id).is_none());
        let removed = gone.filter_map(|id| rules.remove(id)).count();
        let has_changed = removed > 0 || !inherited.is_empty();
        rules.extend(inherited);
        has_changed.then(|| Write::Keyspace(self.record.clone()))
    }

    /// Grants the leaders that are now the only possible owners, and the replicas that may begin after their leader.
    fn grant(
        &mut self,
        at: Moment,
        awake: &BTreeSet<ShardId>,
        settings: &Settings,
        members: &mut Members,
        outbox: &mut Outbox,
    ) {
        let nodes = &members.nodes;
        let view = self.view((nodes, at.now, settings));
        // Each once: orders that are always sent anew are never known as taken in.
        let ready = |waiting: &BTreeSet<ShardId>, is_ready: &dyn Fn(&Shard) -> bool| {
            let waiting = awake.iter().filter(|id| waiting.contains(id));
            let waiting = waiting.filter_map(|id| self.map.shard(*id));
            waiting.filter(|shard| is_ready(shard)).map(|shard| shard.id).collect::<BTreeSet<_>>()
        };
        let granted = ready(&self.settling.ungranted, &|shard| {
            let may_begin = |leader: &Replica| !self.is_unheard(nodes, leader) && !self.has_lost(leader);
            shard.leader().is_some_and(may_begin) && handover::is_granted(shard, &self.map, &view)
        });
        let announced =
            ready(&self.settling.unannounced, &|shard| self.is_announced(shard, (nodes, settings)));
        let followed =
            ready(&self.settling.unfollowed, &|shard| !self.follows_later(shard, (nodes, settings)));
        granted.iter().for_each(|id| _ = self.settling.ungranted.remove(id));
        announced.iter().for_each(|id| _ = self.settling.unannounced.remove(id));
        followed.iter().for_each(|id| _ = self.settling.unfollowed.remove(id));
        members.refresh_orders(self, granted.into_iter().chain(announced).chain(followed), outbox);
    }
}

impl NextMap {
    /// Commits it, and notes what follows. Returns whether more is ready at once.
    fn apply(self, cluster: &mut Cluster, at: Moment, name: &KeyspaceName) -> bool {
        let NextMap { awake, queue, refusals, beginnings, mut transfers, diff } = self;
        let Beginnings { progress, meter, due, is_cut_short, .. } = beginnings;
        let Cluster { settings, members, keyspaces, plans, budget, outbox, .. } = cluster;
        let Some(keyspace) = keyspaces.get_mut(name) else { return false };
        for refusal in refusals {
            outbox.tell(EventKind::Alarm, About::keyspace(name), true, format!("keyspace {name}: {refusal}"));
        }
        let (told, has_diff) = (outbox.events.len(), diff.is_some());
        let changed: BTreeSet<ShardId> =
            diff.iter().flat_map(|diff| &diff.changed).map(|shard| shard.id).collect();
        let committed = diff.is_some_and(|diff| keyspace.commit(at, (diff, None), settings, members, outbox));
        let is_refused = has_diff && !committed;
        // They were found before the rest of the commit: the next decision looks at these shards again.
        transfers.retain(|(id, _)| !(committed && changed.contains(id)));
        keyspace.grant(at, &awake, settings, members, outbox);
        keyspace.begin_transfers(at, &transfers, settings, members, outbox);
        awake.iter().for_each(|id| keyspace.note_pending_steps(at, *id, settings));
        if keyspace.record.keyspace.durable {
            keyspace.note_resting(&members.nodes, awake.iter().copied());
        }
        keyspace.execution.change_queue = queue;
        if !is_refused {
            keyspace.execution.meter = meter;
        }
        keyspace.execution.copies_due = due;
        budget.settled += (awake.len() + progress.len()) as u64;
        let has_begun = !progress.is_empty();
        let mut begun = Vec::new();
        for (plan, index, mut progress) in progress {
            // It has not begun. Tried again, it would be refused again.
            if is_refused && progress == Progress::Started {
                progress = Progress::Dropped("the check refused the next map".to_owned());
            }
            if let Some(plan) = plans.by_id.get_mut(&plan) {
                plan.changes[index].progress = progress;
                begun.extend(of_change(plan, index));
            }
        }
        // Why comes before what: a change of leader begins and is done in the same map.
        outbox.events.splice(told..told, first_of_shards(name, begun));
        let has_news = committed || has_begun || !awake.is_empty();
        let untracked = plans.track(at, (keyspace, has_news), settings, outbox);
        committed || is_cut_short || untracked
    }
}

impl Cluster {
    /// When the throttle lets something begin that waits for nothing else.
    pub(super) fn next_copy_due(&self) -> Millis {
        self.keyspaces
            .by_name
            .values()
            .map(|keyspace| keyspace.execution.copies_due)
            .min()
            .unwrap_or(Millis::NEVER)
    }

    /// One commit per keyspace with everything that is ready. Returns whether more is ready at once.
    pub(super) fn advance(&mut self, at: Moment, transaction: TransactionId) -> bool {
        let names = self.keyspaces_in_turn();
        let (begun_with, most) = (self.budget.settled, self.share_beside_planning(limits::SHARDS_SETTLED));
        let mut again = false;
        self.budget.next_in_turn = None;
        for name in names {
            let looked_at = (self.budget.settled - begun_with) as usize;
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
        next.apply(self, at, name) || more
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
        let mut transfers = self.transfers_to_newcomers(keyspace, &edit, &awake, at);
        let mut beginnings =
            self.start_changes(keyspace, &mut edit, (&plans, &mut queue, !awake.is_empty()), at);
        transfers.append(&mut beginnings.transfers);
        let diff = (!edit.is_empty()).then(|| edit.commit(transaction));
        Some(NextMap { awake, queue, refusals, beginnings, transfers, diff })
    }

    /// Approved plans, the most urgent first, older ones first among equals. While the brake is on, automatic
    /// ones wait; in unrest, rebalances.
    fn plans_in_turn(&self, name: &KeyspaceName) -> Vec<PlanId> {
        let braked = self.keyspaces.get(name).is_some_and(|keyspace| self.brake_on(keyspace).is_some());
        let approved =
            self.plans.by_id.values().filter(|p| p.keyspace == *name && p.status == Status::Approved);
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

    /// Grants what reports alone have made possible since it was called last, up to [`limits::SHARDS_GRANTED`]: the
    /// next decisions see to the rest. Returns the nodes whose orders have changed. Nothing that is stored changes by
    /// it, so these orders may leave before the next commit: a shard is then without an owner for as long as the
    /// messages take, not the disk. While something waits to be stored it grants nothing.
    pub fn grant_at_once(&mut self, at: Moment) -> BTreeSet<NodeId> {
        if !self.outbox.writes.is_empty() {
            return BTreeSet::new();
        }
        let mut most = limits::SHARDS_GRANTED;
        let Cluster { settings, members, keyspaces, outbox, .. } = self;
        let heard = |keyspace: &&mut KeyspaceState| !keyspace.settling.grantable.is_empty();
        for keyspace in keyspaces.by_name.values_mut().filter(heard) {
            let first = (0..most).map_while(|_| keyspace.settling.grantable.pop_first());
            let shards: BTreeSet<ShardId> = first.collect();
            most -= shards.len();
            keyspace.grant(at, &shards, settings, members, outbox);
        }
        std::mem::take(&mut outbox.changed_orders)
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

        let (map, meter) = (
            cluster.keyspaces.by_name[&name()].map.clone(),
            cluster.keyspaces.by_name[&name()].execution.meter.clone(),
        );
        next.apply(cluster, at, &name());
        let keyspace = &cluster.keyspaces.by_name[&name()];
        assert_eq!((&keyspace.map, &keyspace.execution.meter), (&map, &meter));
        let plan = &cluster.plans.by_id[&plan];
        assert_eq!(plan.changes[0].progress, Progress::Dropped("the check refused the next map".to_owned()));
        assert_eq!(plan.status, Status::Finished);
        let told: Vec<_> = cluster.take_outbox().events.into_iter().map(|event| event.text).collect();
        assert!(told.iter().any(|text| text.contains("given up")), "{told:#?}");
        assert!(told.iter().any(|text| text.contains("refused by the check")), "{told:#?}");
    }
}
