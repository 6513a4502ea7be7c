//! How the coordinator answers heartbeats (*beats*), and workers that come back, while the driver makes decisions durable.
//!
//! A commit may take seconds, on a busy disk or with a slow quorum, and a lease is often no longer. So the coordinator answers
//! heartbeats during the commit. As its state in memory is not durable yet, it answers only what does not rest on that:
//!
//! | a heartbeat                                                 | its answer                                   |
//! |-------------------------------------------------------------|----------------------------------------------|
//! | of a node whose orders the commit does not change           | lease and orders, which are durable, at the generation before the commit |
//! | of a node whose orders the commit changes                   | the lease alone; the orders follow the commit |
//! | of a node whose lease is over, or that gets none, or one that is refused | waits for the commit            |
//! | of a node of which an earlier one waits for the commit      | waits, too: they carry differences, so they are applied in order |
//!
//! A worker whose coordinator was lost registers again with its incarnation before it sends heartbeats. If its record stays as it
//! is, the coordinator answers the registration at once, as nothing that is stored changes: so no lease ends because a new
//! coordinator's store is slow. Every other registration waits.
//!
//! The second row is safe: the lease of that node has not ended, so the commit cannot have given its shards to another
//! node, and the answer renews only the worker's last orders. A node whose lease is over waits, as the commit may give its shards
//! to others. Reports are applied at once, as they are not stored.

use super::decide::Transition;
use super::node_health::CoordinatorSleep;
use super::{Cluster, Moment, NodeState, Outbox};
use crate::base::id::Generation;
use crate::base::name::{KeyspaceName, NodeId};
use crate::node::exchange::Registration;
use crate::node::exchange::Welcome;
use crate::node::exchange::{Beat, Orders};
use std::collections::{BTreeMap, BTreeSet};

/// What the commit that is under way changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UncommittedChanges {
    /// Nodes whose orders it changes.
    pub nodes: BTreeSet<NodeId>,
    /// Keyspaces whose maps it changes, each with the generation that is durable.
    pub maps: BTreeMap<KeyspaceName, Generation>,
}

impl UncommittedChanges {
    /// The changes that become durable with an outbox.
    pub fn of(outbox: &Outbox) -> UncommittedChanges {
        let mut maps = BTreeMap::new();
        for diff in &outbox.maps {
            // The first change of a keyspace says what was there before.
            maps.entry(diff.keyspace.clone()).or_insert(diff.from);
        }
        UncommittedChanges { nodes: outbox.changed_orders.clone(), maps }
    }
}

impl Cluster {
    /// Answers a heartbeat while a commit is under way.
    ///
    /// # Errors
    /// The heartbeat itself, if it has to wait for the end of the commit.
    pub fn beat_during_commit(
        &mut self,
        at: Moment,
        beat: Beat,
        pending: &UncommittedChanges,
    ) -> Result<Orders, Beat> {
        let Some(node) = self.members.get(&beat.node) else { return Err(beat) };
        let is_changing = pending.nodes.contains(&beat.node);
        // A worker that has confirmed no version would read an answer without orders as "hold nothing".
        if !node.keeps_its_lease(at, &beat) || (is_changing && beat.base_of_answer() == 0) {
            return Err(beat);
        }
        let (latest, again) = (beat.base_of_answer(), beat.clone());
        let Ok(orders) = self.beat(at, beat) else { return Err(again) };
        // Every field by name, as a new one may have to wait for the commit.
        let Orders {
            cluster,
            incarnation,
            mut version,
            mut base,
            mut keyspaces,
            mut changed,
            mut removed,
            permissions: _,
            lease,
            mut may_go,
        } = orders;
        // Permissions to delete follow from maps that are not durable yet: the next answer has them.
        let permissions = Vec::new();
        // The worker keeps the generation that it reads here, and if the commit fails, there is no newer one (M3).
        for brief in &mut keyspaces {
            if let Some(durable) = pending.maps.get(&brief.name) {
                brief.generation = *durable;
            }
        }
        if is_changing {
            (version, base, may_go) = (latest, latest, false);
            (keyspaces, changed, removed) = (Vec::new(), Vec::new(), Vec::new());
        }
        Ok(Orders {
            cluster,
            incarnation,
            version,
            base,
            keyspaces,
            changed,
            removed,
            permissions,
            lease,
            may_go,
        })
    }

    /// Answers the registration of a worker that comes back, and whose record does not change, while a commit is under way.
    ///
    /// # Errors
    /// The registration itself, if it has to wait for the end of the commit.
    pub fn resume_during_commit(
        &mut self,
        at: Moment,
        registration: Registration,
    ) -> Result<Welcome, Box<Registration>> {
        let is_as_it_was = |node: &NodeState| {
            let current = Some(node.record.incarnation) == registration.incarnation;
            let is_known = node.record.session == Some(registration.session);
            current && is_known && !node.record.ended && node.record.spec == registration.spec
        };
        if !self.members.get(&registration.spec.id).is_some_and(is_as_it_was) {
            return Err(Box::new(registration));
        }
        let again = registration.clone();
        self.register(at, registration).map_err(|_| Box::new(again))
    }

    /// Whether the cluster will accept a heartbeat that waits for the commit: it is of the node's present session, and no later
    /// one has been applied.
    pub fn will_take(&self, beat: &Beat) -> bool {
        self.members.get(&beat.node).is_some_and(|node| {
            let is_current = node.record.incarnation == beat.incarnation && !node.record.ended;
            is_current && node.registered && node.is_session(beat.session) && beat.sequence > node.sequence
        })
    }

    /// Whether everything that the cluster has decided is in an outbox that the driver has taken.
    pub fn has_no_pending_writes(&self) -> bool {
        self.outbox.writes.is_empty()
    }

    /// Why the driver can store nothing for now.
    pub fn storage_problem(&self) -> Option<&str> {
        self.storage_problem.as_deref()
    }

    /// Why the driver can store nothing for now; none when it can.
    pub fn set_storage_problem(&mut self, why: Option<String>) {
        self.storage_problem = why;
    }

    /// The driver calls this once in a heartbeat interval during a commit, and at its end. From a late call follows for how long
    /// the coordinator's process slept, or computed: it extends the deadlines of nodes by that.
    ///
    /// Most nodes cannot register during a commit, so for those the whole commit is no silence.
    pub fn listen(&mut self, at: Moment) {
        let late_ms = at.now.since(self.times.listened + self.settings.heartbeat_ms);
        CoordinatorSleep::of(self, late_ms).apply(self, at);
        let waited_ms = at.now.since(self.times.decision_due);
        let unregistered = self.members.nodes.values_mut().filter(|node| !node.registered);
        unregistered.for_each(|node| node.signs.extend_by(at.now, waited_ms));
        self.has_listened(at);
    }

    /// The driver has answered heartbeats until now and decided nothing, as it can store nothing.
    pub fn has_listened(&mut self, at: Moment) {
        self.times.decision_due = self.times.decision_due.max(at.now);
        self.times.listened = at.now;
    }
}

impl NodeState {
    /// Whether a heartbeat comes from a process whose lease is not over and may be renewed.
    fn keeps_its_lease(&self, at: Moment, beat: &Beat) -> bool {
        let current = self.record.incarnation == beat.incarnation && !self.record.ended;
        let is_senders = current && self.registered && self.is_session(beat.session);
        is_senders && !self.revoked && !self.signs.lease.is_over(at.now)
    }
}
