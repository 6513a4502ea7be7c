//! The next map of each keyspace: one diff with every step that a handover is ready for, and every change of an approved plan
//! that the throttle lets begin.

use super::change_queue::ChangeQueue;
use super::execute::BegunChanges;
use super::members::Members;
use super::shard_change::ShardChange;
use super::{Cluster, KeyspaceState, Moment, Outbox, Write};
use crate::base::id::{PlacementId, PlanId, ShardId, TransactionId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::planted::{self, Planted};
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind, begins_empty, first_of_shards, of_change, of_shard};
use crate::keyspace::map::{Edit, EditError, MapDiff, Replica, Shard, Stage};
use crate::limits;
use crate::plan::check::{self, Finding};
use crate::plan::handover;
use crate::plan::{Origin, Plan, Progress, Status};
use std::collections::BTreeSet;

/// What a keyspace has to do in one decision.
pub(super) struct KeyspaceWork {
    /// The shards to reconcile.
    pub(super) queued: BTreeSet<ShardId>,
    /// Approved plans, the most urgent first.
    pub(super) plans: Vec<PlanId>,
    /// The changes of plans that have not begun.
    pub(super) change_queue: ChangeQueue,
}

/// The next map of a keyspace, and what else follows from making it.
struct NextMap {
    /// The shards that were reconciled, and the changes of plans that still wait.
    work: KeyspaceWork,
    /// Steps that the map refused.
    refusals: Vec<EditError>,
    /// The changes of plans that begin with this map.
    begun_changes: BegunChanges,
    /// Shards whose leader has to transfer the lead first, with the replica that gets it.
    transfers: Vec<(ShardId, PlacementId)>,
    /// None if the map stays as it is.
    diff: Option<MapDiff>,
}

impl Cluster {
    /// Makes the next map of each keyspace, with everything that is ready. Returns whether more is ready at once.
    pub(super) fn advance(&mut self, at: Moment, transaction: TransactionId) -> bool {
        let names = self.keyspaces_in_turn();
        let (begun_with, most) =
            (self.budget.reconciled, self.share_beside_planning(limits::SHARDS_RECONCILED));
        let mut again = false;
        self.budget.next_in_turn = None;
        for name in names {
            let looked_at = (self.budget.reconciled - begun_with) as usize;
            if looked_at >= most {
                self.budget.next_in_turn = Some(name);
                return true;
            }
            again |= self.advance_keyspace(at, transaction, &name, most - looked_at);
        }
        again
    }

    /// Makes the next map of one keyspace, for `most` of the queued shards. Returns whether more is ready at once.
    fn advance_keyspace(
        &mut self,
        at: Moment,
        transaction: TransactionId,
        name: &KeyspaceName,
        most: usize,
    ) -> bool {
        let plans = self.plans_in_turn(name);
        let Some(keyspace) = self.keyspaces.get_mut(name) else { return false };
        if keyspace.queue.queued.is_empty() && plans.is_empty() {
            keyspace.execution.copies_due = Millis::NEVER;
            return false;
        }
        let queued = keyspace.queue.take_queued(most);
        let more = !keyspace.queue.queued.is_empty();
        let change_queue = std::mem::take(&mut keyspace.execution.change_queue);
        let work = KeyspaceWork { queued, plans, change_queue };
        let Some(next) = self.next_map(at, transaction, name, work) else { return false };
        next.apply(self, at, name) || more
    }

    /// Reads what is ready: steps of the queued shards first, then changes of the plans.
    fn next_map(
        &self,
        at: Moment,
        transaction: TransactionId,
        name: &KeyspaceName,
        mut work: KeyspaceWork,
    ) -> Option<NextMap> {
        let keyspace = self.keyspaces.get(name)?;
        let mut edit = keyspace.map.edit();
        let refusals = self.reconcile_queued(keyspace, &mut edit, &work.queued, at);
        let mut transfers = self.transfers_to_newcomers(keyspace, &edit, &work.queued, at);
        let mut begun_changes = self.begin_changes(keyspace, &mut edit, &mut work, at);
        transfers.append(&mut begun_changes.transfers);
        let diff = (!edit.is_empty()).then(|| edit.commit(transaction));
        Some(NextMap { work, refusals, begun_changes, transfers, diff })
    }

    fn reconcile_queued(
        &self,
        keyspace: &KeyspaceState,
        edit: &mut Edit<'_>,
        queued: &BTreeSet<ShardId>,
        at: Moment,
    ) -> Vec<EditError> {
        let view = self.view(keyspace, at.now);
        let mut refusals = Vec::new();
        for id in queued {
            // The step of another shard may have removed this one: that is no refusal.
            if edit.shard(*id).is_ok() {
                refusals.extend(handover::reconcile(edit, *id, &view).err());
            }
        }
        refusals
    }

    /// Approved plans, the most urgent first, then by age. While the brake is on, automatic plans wait; in unrest, rebalances.
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

    /// Sends the grants that reports have made possible since the last call, at most [`limits::SHARDS_GRANTED`]; the next
    /// decisions send the rest. Returns the nodes whose orders have changed. A grant changes nothing that is stored, so it need
    /// not wait for the next commit, in which the shard would be without an owner. While writes wait, this grants nothing.
    pub fn grant_before_commit(&mut self, at: Moment) -> BTreeSet<NodeId> {
        if !self.outbox.writes.is_empty() {
            return BTreeSet::new();
        }
        let mut most = limits::SHARDS_GRANTED;
        let Cluster { settings, members, keyspaces, outbox, .. } = self;
        let heard = |keyspace: &&mut KeyspaceState| !keyspace.queue.grantable.is_empty();
        for keyspace in keyspaces.by_name.values_mut().filter(heard) {
            let first = (0..most).map_while(|_| keyspace.queue.grantable.pop_first());
            let shards: BTreeSet<ShardId> = first.collect();
            most -= shards.len();
            keyspace.grant(at, &shards, settings, members, outbox);
        }
        std::mem::take(&mut outbox.changed_orders)
    }

    /// When the throttle lets the next change begin that waits only for bytes.
    pub(super) fn next_copy_due(&self) -> Millis {
        let due = self.keyspaces.by_name.values().map(|keyspace| keyspace.execution.copies_due);
        due.min().unwrap_or(Millis::NEVER)
    }
}

impl NextMap {
    /// Puts the map into its keyspace, and everything that follows from it into the cluster. Returns whether more is ready.
    fn apply(self, cluster: &mut Cluster, at: Moment, name: &KeyspaceName) -> bool {
        let NextMap { work, refusals, begun_changes, mut transfers, diff } = self;
        let KeyspaceWork { queued, change_queue, .. } = work;
        let BegunChanges { progress, meter, due, is_cut_short, .. } = begun_changes;
        let Cluster { settings, members, keyspaces, plans, budget, outbox, .. } = cluster;
        let Some(keyspace) = keyspaces.get_mut(name) else { return false };
        for refusal in refusals {
            outbox.tell(EventKind::Alarm, About::keyspace(name), true, format!("keyspace {name}: {refusal}"));
        }
        let (events_before, has_diff) = (outbox.events.len(), diff.is_some());
        let changed: BTreeSet<ShardId> =
            diff.iter().flat_map(|diff| &diff.changed).map(|shard| shard.id).collect();
        let applied =
            diff.is_some_and(|diff| keyspace.apply_map(at, (diff, None), settings, members, outbox));
        let is_refused = has_diff && !applied;
        // These shards have changed since the transfers were found: the next decision finds them again.
        transfers.retain(|(id, _)| !(applied && changed.contains(id)));
        keyspace.grant(at, &queued, settings, members, outbox);
        keyspace.begin_transfers(at, &transfers, settings, members, outbox);
        queued.iter().for_each(|id| keyspace.note_pending_steps(at, *id, settings));
        if keyspace.record.keyspace.durable {
            keyspace.note_resting(&members.nodes, queued.iter().copied());
        }
        keyspace.execution.change_queue = change_queue;
        if !is_refused {
            keyspace.execution.meter = meter;
        }
        keyspace.execution.copies_due = due;
        budget.reconciled += (queued.len() + progress.len()) as u64;
        let has_begun = !progress.is_empty();
        let mut begun = Vec::new();
        for (plan, index, mut progress) in progress {
            // A refused map begins no change; tried again, the check would refuse it again.
            if is_refused && progress == Progress::Started {
                progress = Progress::Dropped("the check refused the next map".to_owned());
            }
            if let Some(plan) = plans.by_id.get_mut(&plan) {
                plan.changes[index].progress = progress;
                begun.extend(of_change(plan, index));
            }
        }
        // Events on plans come before those on shards, as the first are the reason for the second.
        outbox.events.splice(events_before..events_before, first_of_shards(name, begun));
        let has_news = applied || has_begun || !queued.is_empty();
        let untracked = plans.track(at, keyspace, has_news, settings, outbox);
        applied || is_cut_short || untracked
    }
}

impl KeyspaceState {
    /// Checks the next map, puts it in the place of the present one, and updates orders and reports. `given_up` is a shard whose
    /// data a person has given up. Returns false if the check refused the map.
    pub(super) fn apply_map(
        &mut self,
        at: Moment,
        (diff, given_up): (MapDiff, Option<ShardId>),
        settings: &Settings,
        members: &mut Members,
        outbox: &mut Outbox,
    ) -> bool {
        let name = &self.map.keyspace().clone();
        let refuse = |outbox: &mut Outbox, why: String| {
            outbox.tell(EventKind::Alarm, About::keyspace(name), true, format!("keyspace {name}: {why}"));
            false
        };
        let mut findings = check::diff(&self.map, &diff);
        if self.record.keyspace.durable && !planted::is(Planted::LastCopy) {
            let lost = check::keeps_data(&self.map, &diff).into_iter();
            findings.extend(lost.filter(|finding| given_up.map(Finding::LastCopy).as_ref() != Some(finding)));
        }
        if let Some(finding) = findings.into_iter().next() {
            return refuse(
                outbox,
                format!("the next map was refused by the check, the last one stays: {finding}"),
            );
        }
        let before: Vec<(ShardId, Option<Shard>)> = {
            let touched = diff.changed.iter().map(|shard| shard.id).chain(diff.removed.iter().copied());
            touched.map(|id| (id, self.map.shard(id).cloned())).collect()
        };
        if let Err(error) = self.map.apply(&diff) {
            return refuse(outbox, error.to_string());
        }
        outbox.writes.push(Write::Map(diff.clone()));
        outbox.maps.push(diff);
        let ids: Vec<ShardId> = before.iter().map(|(id, _)| *id).collect();
        let seen =
            before.iter().filter_map(|(id, old)| of_shard(name, *id, old.as_ref(), self.map.shard(*id)));
        outbox.events.extend(first_of_shards(name, seen.collect()));
        let began_empty = |(id, old): &&(ShardId, Option<Shard>)| {
            self.map.shard(*id).is_some_and(|new| begins_empty(old.as_ref(), new))
        };
        let shards = before.iter().filter(began_empty).count();
        self.note_begun_empty(at, shards);
        for (id, old) in &before {
            let change = ShardChange::of(*id, old.as_ref(), self.map.shard(*id));
            self.note_shard_changed(at, &change, settings, members, outbox);
        }
        outbox.writes.extend(self.inherit_rules(&ids));
        outbox.writes.extend(self.take_slots_from_map());
        self.enqueue(ids.iter().copied());
        self.note_map_changed(at);
        members.refresh_orders(self, ids, outbox);
        true
    }

    /// Sets the settings' number of slots to the map's.
    fn take_slots_from_map(&mut self) -> Option<Write> {
        let sharding = self.map.sharding();
        let differs = self.record.keyspace.sharding != sharding;
        self.record.keyspace.sharding = sharding;
        differs.then(|| Write::Keyspace(self.record.clone()))
    }

    /// Gives children the rules of their parents, and deletes the rules of shards that are gone.
    fn inherit_rules(&mut self, touched: &[ShardId]) -> Option<Write> {
        let rules = &mut self.record.rules;
        if rules.is_empty() {
            return None;
        }
        // Children first, as the same map may remove a parent.
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

    /// Sends the grant to leaders that are now the only possible owners, and to replicas that had to wait for their leader.
    fn grant(
        &mut self,
        at: Moment,
        queued: &BTreeSet<ShardId>,
        settings: &Settings,
        members: &mut Members,
        outbox: &mut Outbox,
    ) {
        let seen = members.view(at.now, settings);
        let view = self.view(seen);
        // Each order is refreshed once: a worker cannot confirm orders that change all the time.
        let ready = |waiting: &BTreeSet<ShardId>, is_ready: &dyn Fn(&Shard) -> bool| {
            let waiting = queued.iter().filter(|id| waiting.contains(id));
            let waiting = waiting.filter_map(|id| self.map.shard(*id));
            waiting.filter(|shard| is_ready(shard)).map(|shard| shard.id).collect::<BTreeSet<_>>()
        };
        let granted = ready(&self.queue.ungranted, &|shard| {
            let may_begin = |leader: &Replica| !self.is_unheard(seen.nodes, leader) && !self.has_lost(leader);
            shard.leader().is_some_and(may_begin) && handover::is_granted(shard, &self.map, &view)
        });
        let announced = ready(&self.queue.unannounced, &|shard| self.is_announced(shard, seen));
        let followed = ready(&self.queue.unfollowed, &|shard| !self.follows_later(shard, seen));
        granted.iter().for_each(|id| _ = self.queue.ungranted.remove(id));
        announced.iter().for_each(|id| _ = self.queue.unannounced.remove(id));
        followed.iter().for_each(|id| _ = self.queue.unfollowed.remove(id));
        members.refresh_orders(self, granted.into_iter().chain(announced).chain(followed), outbox);
    }
}

impl KeyspaceState {
    /// The next decision reconciles these shards, their parents and their children.
    pub(super) fn enqueue(&mut self, shards: impl IntoIterator<Item = ShardId>) {
        for id in shards {
            self.queue.enqueue(id);
            // Children that prepare wait for news of their parents too.
            for child in self.queue.children(id).collect::<Vec<_>>() {
                self.queue.enqueue(child);
            }
            let Some(shard) = self.map.shard(id) else { continue };
            let parents = shard.parents().iter().filter(|parent| self.map.shard(**parent).is_some());
            let relatives: &[ShardId] = match shard.stage() {
                Stage::Forming(relatives) | Stage::Closing(relatives) => relatives,
                Stage::Serving | Stage::Removing => &[],
            };
            let others: Vec<ShardId> = parents.chain(relatives).copied().collect();
            others.into_iter().for_each(|other| self.queue.enqueue(other));
        }
    }

    /// What a shard is being split or merged into: the children that prepare, or that have just opened.
    pub(super) fn children_under_way(&self, id: ShardId) -> Vec<ShardId> {
        let forming = self.queue.children(id);
        match self.map.shard(id).map(|shard| shard.stage()) {
            Some(Stage::Closing(children)) => forming.chain(children.iter().copied()).collect(),
            _ => forming.collect(),
        }
    }

    /// Shards with something under way.
    pub fn unsettled(&self) -> &BTreeSet<ShardId> {
        &self.queue.unsettled
    }
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
        let work = KeyspaceWork { queued: BTreeSet::new(), plans, change_queue: ChangeQueue::default() };
        let mut next = cluster.next_map(at, transaction, &name(), work).unwrap();
        assert_eq!(next.begun_changes.progress, [(plan, 0, Progress::Started)]);
        next.begun_changes.meter.take(1_000);
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
