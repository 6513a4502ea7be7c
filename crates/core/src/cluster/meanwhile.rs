//! Beats, and workers that come back, while the driver makes the last decisions durable.
//!
//! A commit may take seconds: a disk that is busy, a quorum that is slow. A worker's lease is often no longer than
//! that, so the coordinator does not let a beat wait for the commit. The state in memory is ahead of the disk
//! meanwhile, and an answer must say nothing that rests on what is not durable yet:
//!
//! | the beat                                                    | its answer                                   |
//! |-------------------------------------------------------------|----------------------------------------------|
//! | of a node whose orders the commit does not change           | as ever: lease and orders, which are durable, at the generation before the commit |
//! | of a node whose orders the commit changes                   | the lease alone; the orders follow the commit |
//! | of a node whose lease is over, or that gets none, or whose beat is refused | waits for the commit          |
//! | of a node of which an earlier beat waits for the commit | waits, too: beats carry differences, so they are processed in order |
//!
//! A worker that has lost its leader comes back with the incarnation that it has, and only then beats. It is taken in
//! at once, where its record stays as it is: an incarnation that a worker knows of is durable, and its return changes
//! nothing that is stored. So a new leader with a slow store lets no lease run out. Every other registration waits.
//!
//! The second row is safe: the lease of that node has not ended, so the commit cannot have given its shards to another
//! node, and the answer renews exactly what the worker was told before. A node whose lease is over waits, as the commit may give
//! away what it held. Reports are taken in at once; nothing of them is stored.

use super::decide::Transition;
use super::node_health::OwnSilence;
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
    /// What becomes durable with that outbox.
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
    /// Takes in a beat while a commit is under way; or gives it back, untouched, when it has to wait until the commit is over.
    ///
    /// # Errors
    /// The beat itself, which has to wait.
    pub fn beat_meanwhile(
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
        // What may be deleted follows from maps that are not durable yet: the next answer says it.
        let permissions = Vec::new();
        // A worker keeps the generation that it was told of: should the commit fail, there is no such map (M3).
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

    /// Takes a worker back whose record does not change, while a commit is under way; or returns its registration,
    /// untouched, when that has to wait for the commit.
    ///
    /// # Errors
    /// The registration itself, which has to wait.
    pub fn resume_meanwhile(
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

    /// Whether a beat that waits for the end of the commit will be taken in: it is of the node's present session, and
    /// no later beat was.
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

    /// The driver waits for a commit, and takes in the beats that arrive. It calls this once in a heartbeat, and when
    /// the commit is over: a call that comes later says for how long the process itself was asleep, or computed.
    ///
    /// During the commit only nodes whose record does not change could register, so the wait is no silence of the
    /// others.
    pub fn listen(&mut self, at: Moment) {
        let late_ms = at.now.since(self.times.listened + self.settings.heartbeat_ms);
        OwnSilence::of(self, late_ms).apply(self, at);
        let waited_ms = at.now.since(self.times.promised);
        let unregistered = self.members.nodes.values_mut().filter(|node| !node.registered);
        unregistered.for_each(|node| node.signs.excuse(at.now, waited_ms));
        self.has_listened(at);
    }

    /// The driver has taken in beats until now, and decided nothing: it can store nothing.
    pub fn has_listened(&mut self, at: Moment) {
        self.times.promised = self.times.promised.max(at.now);
        self.times.listened = at.now;
    }
}

impl NodeState {
    /// Whether the beat is one of a process whose lease has not been over, and is to be renewed.
    fn keeps_its_lease(&self, at: Moment, beat: &Beat) -> bool {
        let current = self.record.incarnation == beat.incarnation && !self.record.ended;
        let is_its = current && self.registered && self.is_session(beat.session);
        is_its && !self.revoked && !self.signs.lease.is_over(at.now)
    }
}
