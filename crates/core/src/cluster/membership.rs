//! How nodes register, send heartbeats (*beats*) and leave.
//!
//! The operator names a node; the coordinator gives each new process of it an [`Incarnation`] above every earlier one. It refuses
//! an incarnation that it declared dead, or that a later one has followed (O6), and gives the shards of such a process to others
//! only when its lease is over.
//!
//! The coordinator first checks each message, which changes nothing. The check of a registration returns the node's new record,
//! the check of a heartbeat the length of its lease. Then the coordinator applies the message, and each report in it.

use super::blame::StrikeContext;
use super::kept::KeptAnswer;
use super::keyspaces::Keyspaces;
use super::members::Members;
use super::restored::Heard;
use super::{
    BeatError, Cluster, KeyspaceState, LaterMap, Moment, NodeRecord, NodeState, Observed, Outbox,
    RegisterError, Write, note_later, orders,
};
use crate::base::count::counted;
use crate::base::id::{ClusterId, Incarnation, SessionDigest, ShardId};
use crate::base::name::NodeId;
use crate::base::planted::{self, Planted};
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::cluster::event::EventKind;
use crate::keyspace::map::Replica;
use crate::limits;
use crate::node::exchange::Registration;
use crate::node::exchange::Welcome;
use crate::node::exchange::{Beat, ClusterIdentity, LeaseRenewal, Orders, Phase, Report, Stored};
use crate::node::lease::GrantedLease;
use crate::node::load::Load;
use crate::node::reconnect;
use crate::node::{Health, NodeSpec};
use std::collections::BTreeSet;

impl Cluster {
    /// Registers a worker: a new process, or one that comes back.
    pub fn register(&mut self, at: Moment, registration: Registration) -> Result<Welcome, RegisterError> {
        let record = self
            .check_registration(at, &registration)
            .inspect_err(|refusal| self.note_refusal(at, &registration, refusal))?;
        let welcome = self.welcome(record.incarnation);
        match registration.incarnation {
            Some(_) => {
                let Cluster { members, keyspaces, outbox, .. } = self;
                members.take_back(at, (record, registration.stored), keyspaces, outbox);
            }
            None => self.admit(at, record, registration),
        }
        Ok(welcome)
    }

    /// The record that the node of an accepted registration has from then on.
    fn check_registration(&self, at: Moment, form: &Registration) -> Result<NodeRecord, RegisterError> {
        let Registration { spec, incarnation, cluster, .. } = form;
        spec.check()?;
        let is_other = |theirs: &ClusterId| {
            !self.identity().is_or_continues(*theirs) && !planted::is(Planted::AnyCluster)
        };
        if let Some(theirs) = cluster.filter(is_other) {
            return Err(RegisterError::OtherCluster { node: spec.id.clone(), ours: self.record.id, theirs });
        }
        if let Some((LaterMap { known, .. }, ours)) = self.later_maps_of(at, form).next() {
            let (node, keyspace, theirs) = (spec.id.clone(), known.keyspace, known.generation);
            return Err(RegisterError::Ahead { node, keyspace, ours, theirs });
        }
        self.check_address(at, spec)?;
        match incarnation {
            Some(incarnation) => self.check_return(*incarnation, form),
            None => self.check_newcomer(at, form),
        }
    }

    fn welcome(&self, incarnation: Incarnation) -> Welcome {
        Welcome {
            cluster: self.record.id,
            continues: self.record.continues.clone(),
            incarnation,
            heartbeat_ms: self.settings.heartbeat_ms,
            lease_ms: self.settings.lease_ms,
        }
    }

    /// The id of the cluster, and of those that it was restored from.
    pub fn identity(&self) -> ClusterIdentity {
        ClusterIdentity { cluster: self.record.id, continues: self.record.continues.clone() }
    }

    /// This coordinator knows of every keyspace, also of deleted ones, whose shards begin below this id.
    pub fn horizon(&self) -> ShardId {
        self.record.next_shard
    }

    fn is_alive(&self, node: &NodeState, at: Moment) -> bool {
        let is_over = matches!(node.signs.health(at.now, &self.settings), Health::Down | Health::Left);
        node.signs.last_beat.is_some() && !is_over
    }

    fn check_address(&self, at: Moment, spec: &NodeSpec) -> Result<(), RegisterError> {
        let same =
            |node: &&NodeState| node.record.spec.address == spec.address && node.record.spec.id != spec.id;
        let other = self.members.nodes.values().filter(same).find(|node| self.is_alive(node, at));
        let Some(other) = other else { return Ok(()) };
        let (address, node) = (spec.address.clone(), other.record.spec.id.clone());
        Err(RegisterError::AddressTaken { address, node })
    }

    /// The same process again: after a broken connection, or at another coordinator.
    fn check_return(
        &self,
        incarnation: Incarnation,
        form: &Registration,
    ) -> Result<NodeRecord, RegisterError> {
        let Registration { spec, session, stored, .. } = form;
        let id = || spec.id.clone();
        let node = self.members.get(&spec.id).ok_or_else(|| RegisterError::Unknown { node: id() })?;
        let record = &node.record;
        if record.incarnation != incarnation || record.ended {
            return Err(RegisterError::Ended { node: id(), incarnation });
        }
        // Where the token of its incarnation was lost, any token is accepted.
        if record.session.is_some() || *session == SessionDigest::default() {
            node.check_token(*session)?;
        }
        let (spec, session) = (spec.clone(), record.session.or(Some(*session)));
        Ok(NodeRecord { spec, session, held: record.held || !stored.is_empty(), ..record.clone() })
    }

    fn check_newcomer(&self, at: Moment, form: &Registration) -> Result<NodeRecord, RegisterError> {
        let Registration { spec, session, stored, from, .. } = form;
        let before = self.members.get(&spec.id);
        match before {
            None if self.members.nodes.len() >= limits::NODES => return Err(RegisterError::Full),
            Some(node) if node.record.spec.address != spec.address && self.is_alive(node, at) => {
                let address = node.record.spec.address.clone();
                return Err(RegisterError::NameTaken { node: spec.id.clone(), address });
            }
            _ => {}
        }
        self.members.registrations.registration_limiter.check(at.now, from.as_deref())?;
        let drain = before.and_then(|before| before.record.drain.clone());
        let held = !stored.is_empty() || before.is_some_and(|before| before.record.held);
        let (session, since_ms) = (Some(*session), at.wall_ms);
        let new = NodeRecord::new(spec.clone(), self.record.next_incarnation);
        Ok(NodeRecord { session, held, drain, since_ms, ..new })
    }

    /// Counts a refusal of which people or the next coordinator have to know.
    fn note_refusal(&mut self, at: Moment, form: &Registration, refusal: &RegisterError) {
        let Cluster { record, members, outbox, .. } = self;
        match refusal {
            RegisterError::OtherCluster { node, theirs, .. } => {
                members.note_foreign(at, (node, *theirs), record.id, outbox);
            }
            RegisterError::Ahead { .. } => {
                let later: Vec<_> = self.later_maps_of(at, form).collect();
                later.into_iter().for_each(|(map, _)| note_later(&mut self.recovered.later_maps, map));
            }
            RegisterError::WrongToken(wrong) => members.note_wrong_token(at, wrong, outbox),
            RegisterError::TooMany { from, .. } => members.note_too_many(at, from, outbox),
            _ => {}
        }
    }

    fn admit(&mut self, at: Moment, record: NodeRecord, Registration { stored, from, .. }: Registration) {
        let (id, incarnation) = (record.spec.id.clone(), record.incarnation);
        let mut node = NodeState::recalled(record.clone(), at, GrantedLease::default());
        node.signs.note_heard(at.now);
        node.registered = true;
        let Cluster { settings, record: own_record, members, keyspaces, guard, outbox, .. } = self;
        members.registrations.registration_limiter.take(at.now, from.as_deref());
        own_record.next_incarnation = incarnation.next();
        outbox.writes.extend([Write::Cluster(own_record.clone()), Write::Node(record)]);
        let known = StrikeContext { seen: members.view(at.now, settings), record: own_record };
        guard.strike_for_restart(at, &id, known, keyspaces, outbox);
        if let Some(old) = members.nodes.remove(&id) {
            node.former = old.former;
            if !old.record.ended {
                node.former.insert(old.record.incarnation, old.signs);
            }
        }
        let text = format!("node {id} registered as {incarnation} at {}", node.record.spec.address);
        outbox.tell_of(EventKind::NodeRegistered, &id, text);
        members.nodes.insert(id.clone(), node);
        members.take_stored(at, &id, stored, keyspaces);
        members.last_join = at.now;
        guard.losses.returned(&id);
        keyspaces.forget_reports_of(&id);
        keyspaces.enqueue_replicas_of(&id);
        keyspaces.forget_hung(&id);
        keyspaces.plan_soon(at, settings.settle_ms);
    }

    /// Applies a heartbeat, and answers with the lease and the orders that have changed.
    pub fn beat(&mut self, at: Moment, beat: Beat) -> Result<Orders, BeatError> {
        let unknown = BeatError::Unknown(beat.node.clone());
        let lease_ms = self.check_beat(at, &beat).inspect_err(|refusal| {
            self.members.note_refused_message(at, refusal, &mut self.outbox);
        })?;
        self.apply_beat(at, beat, lease_ms).ok_or(unknown)
    }

    /// The length of the lease that a heartbeat gets; 0: no new lease, and the worker keeps the last one until that ends.
    fn check_beat(&self, at: Moment, beat: &Beat) -> Result<u64, BeatError> {
        let node = self.current(&beat.node, beat.incarnation)?;
        let (id, latest, sequence) = (|| beat.node.clone(), node.sequence, beat.sequence);
        if !node.registered {
            return Err(BeatError::NotYet(id()));
        }
        node.check_token(beat.session)?;
        if sequence > if latest == 0 { limits::BEATS } else { latest + limits::BEATS_SKIPPED } {
            return Err(BeatError::Skips { node: id(), sequence, latest });
        }
        if sequence <= latest && !planted::is(Planted::LateBeat) {
            return Err(BeatError::Late { node: id(), sequence, latest });
        }
        for report in &beat.reports {
            if let Some(Err(error)) = report.load.as_ref().map(|load| load.check()) {
                return Err(BeatError::Load { node: id(), replica: report.replica.clone(), error });
            }
        }
        let gets_lease = !node.revoked && self.may_lease(at.now, beat.lease_expired);
        Ok(if gets_lease { self.settings.lease_ms } else { 0 })
    }

    fn apply_beat(&mut self, at: Moment, beat: Beat, lease_ms: u64) -> Option<Orders> {
        let (base, id) = (beat.base_of_answer(), beat.node);
        let Cluster { settings, members, keyspaces, recovered, outbox, .. } = self;
        let node = members.get_mut(&id)?;
        node.sequence = beat.sequence;
        node.orders.confirm(beat.applied);
        let heard_before = node.signs.heard_at;
        node.signs.note_beat(at.now);
        if lease_ms > 0 {
            node.signs.lease.renew(at.now, lease_ms);
        }
        node.has_no_lease = beat.lease_expired && lease_ms == 0;
        node.busy = if beat.busy.is_finite() { beat.busy.clamp(0.0, 1.0) } else { 0.0 };
        if let Some(leaving) = beat.leaving
            && node.leaving != leaving
        {
            node.leaving = leaving;
            let wants = if leaving { "wants to leave" } else { "wants to stay after all" };
            outbox.tell_of(EventKind::NodeHealth, &id, format!("node {id} {wants}"));
            keyspaces.plan_soon(at, 0);
        }
        if members.get(&id).is_some_and(|node| node.disk != beat.disk) {
            members.take_disk(at, (&id, beat.disk), keyspaces, outbox);
        }
        keyspaces.enqueue_unannounced(&id);
        keyspaces.enqueue_last_copies(&members.nodes, &id, heard_before);
        if beat.whole {
            members.forget_unreported(&id, &beat.reports, keyspaces);
        }
        for report in beat.reports {
            let sender = (&id, beat.incarnation);
            members.apply_report(at, sender, report, keyspaces, recovered.heard, settings);
        }
        let answer = KeptAnswer::find(self, at, &id);
        let permissions =
            answer.map(|answer| answer.apply(&id, &mut self.members, &mut self.outbox)).unwrap_or_default();
        let spread_ms = reconnect::worker_spread_ms(self.members.nodes.len(), self.settings.lease_ms);
        let lease = LeaseRenewal { sent_at: beat.sent_at, lease_ms, spread_ms };
        let orders = self.orders_since(&id, base, Some(lease))?;
        Some(Orders { permissions, ..orders })
    }

    /// The worker has left: it serves nothing any more.
    pub fn leave(
        &mut self,
        at: Moment,
        id: &NodeId,
        incarnation: Incarnation,
        session: SessionDigest,
    ) -> Result<(), BeatError> {
        let node = self.current(id, incarnation)?;
        node.check_leave(at.now, session).inspect_err(|refusal| {
            self.members.note_refused_message(at, refusal, &mut self.outbox);
        })?;
        let Some(node) = self.members.get_mut(id) else { return Ok(()) };
        node.signs.left = true;
        node.record.left = true;
        node.signs.lease.give_up();
        let left_with = node.orders.len();
        self.members.end(at, id, &mut self.keyspaces, &mut self.outbox);
        let text = format!("node {id} has left with replicas of {}", counted(left_with, "shard"));
        self.outbox.tell_of(EventKind::NodeEnded, id, text);
        Ok(())
    }

    /// The node, if this is its present incarnation.
    fn current(&self, id: &NodeId, incarnation: Incarnation) -> Result<&NodeState, BeatError> {
        let node = self.members.get(id).ok_or_else(|| BeatError::Unknown(id.clone()))?;
        if node.record.incarnation != incarnation || node.record.ended {
            return Err(BeatError::Ended { node: id.clone(), incarnation });
        }
        Ok(node)
    }
}

impl Members {
    /// Applies the registration of a process that comes back.
    fn take_back(
        &mut self,
        at: Moment,
        (record, stored): (NodeRecord, Vec<Stored>),
        keyspaces: &mut Keyspaces,
        outbox: &mut Outbox,
    ) {
        let id = record.spec.id.clone();
        if let Some(node) = self.nodes.get_mut(&id) {
            node.is_on_trust |= node.record.session.is_none();
            if node.record != record {
                node.signs.answered &= node.record.spec.address == record.spec.address;
                node.record = record.clone();
                outbox.writes.push(Write::Node(record));
            }
            node.signs.note_heard(at.now);
            node.registered = true;
        }
        self.take_stored(at, &id, stored, keyspaces);
    }

    /// Forgets the reports on replicas that are missing in a whole heartbeat of the node.
    fn forget_unreported(&mut self, node: &NodeId, reports: &[Report], keyspaces: &mut Keyspaces) {
        let named: BTreeSet<_> = reports.iter().map(|report| &report.replica).collect();
        let held = self.nodes.get(node).into_iter().flat_map(|node| keyspaces.held(node)).map(orders::key);
        let missing: Vec<_> = held.filter(|key| !named.contains(key)).collect();
        for key in missing {
            if let Some(keyspace) = keyspaces.get_mut(&key.keyspace) {
                keyspace.observed.remove(&key.placement);
            }
        }
        if let Some(node) = self.nodes.get_mut(node) {
            node.kept.retain(|key, _| named.contains(key));
        }
    }

    /// Applies the report of a node on one replica.
    fn apply_report(
        &mut self,
        at: Moment,
        (node, incarnation): (&NodeId, Incarnation),
        report: Report,
        keyspaces: &mut Keyspaces,
        heard: Heard,
        settings: &Settings,
    ) {
        let placement = report.replica.placement;
        let keyspace = keyspaces.get_mut(&report.replica.keyspace);
        let is_here = |keyspace: &&mut KeyspaceState| {
            let shard = keyspace.map.shard(report.replica.shard);
            let replica = shard.and_then(|shard| shard.replica(placement));
            let is_senders = |r: &Replica| r.node == *node && r.incarnation == incarnation;
            replica.is_some_and(|r| is_senders(r) || planted::is(Planted::AnyReporter))
        };
        // The map does not name it: the answer withdraws it, and the worker keeps its data until it may delete that.
        let Some(keyspace) = keyspace.filter(is_here) else {
            return self.take_kept(at, node, report, keyspaces);
        };
        let mut report = report;
        keyspace.note_live_copy(&mut report, node, &self.nodes, heard);
        let before = keyspace.observed.get(&placement);
        let news = before.is_none_or(|seen| *seen.phase() != report.phase || seen.epoch() != report.epoch);
        let load =
            report.load.map(Load::bounded).or_else(|| before.and_then(Observed::load).cloned()).map(Box::new);
        if !matches!(report.phase, Phase::Loading | Phase::Failed(_) | Phase::Kept)
            && let Some(node) = self.nodes.get_mut(node)
        {
            node.kept.remove(&report.replica);
        }
        keyspace.excuse_load(self.view(at.now, settings), &report.replica, &report.phase);
        if report.phase == Phase::Loading {
            keyspace.overdue.pending_steps.progressed(placement, report.progress, at.now);
        }
        keyspace.observed.insert(placement, Observed::new(report.phase, report.epoch, load));
        let asks = keyspace.note_replication(placement, report.replication);
        if news || asks {
            keyspaces.enqueue_shard(&report.replica);
        }
    }

    fn note_refused_message(&mut self, at: Moment, refusal: &BeatError, outbox: &mut Outbox) {
        if let BeatError::WrongToken(wrong) = refusal {
            self.note_wrong_token(at, wrong, outbox);
        }
    }
}

impl NodeState {
    /// Whether that incarnation certainly has no lease any more.
    pub(super) fn lease_is_over(&self, incarnation: Incarnation, now: Millis) -> bool {
        if incarnation == self.record.incarnation {
            self.record.ended || self.signs.lease.is_over(now)
        } else {
            self.former.get(&incarnation).is_none_or(|signs| signs.lease.is_over(now))
        }
    }

    /// Whether that incarnation was declared dead, or has left, or a later one has followed and its lease is over.
    pub(super) fn has_ended(&self, incarnation: Incarnation) -> bool {
        if incarnation == self.record.incarnation {
            self.record.ended
        } else {
            !self.former.contains_key(&incarnation)
        }
    }

    /// Whether the node was refused further leases, and its last one is over: it serves no exclusive shard.
    pub(super) fn gets_no_lease(&self, now: Millis) -> bool {
        self.revoked && self.signs.lease.is_over(now)
    }

    /// Whether a replica is of the node's current incarnation.
    pub(super) fn runs_replica(&self, replica: &Replica) -> bool {
        (&replica.node, replica.incarnation) == (&self.record.spec.id, self.record.incarnation)
    }

    /// Whether the node was `Down` at the last decision, and its lease is over.
    pub(super) fn is_silent(&self, now: Millis) -> bool {
        self.reported_health == Health::Down && self.signs.lease.is_over(now)
    }

    /// Whether new replicas may be placed on the node (M7).
    pub fn accepts(&self, now: Millis, settings: &crate::base::settings::Settings) -> bool {
        self.stays_up(now, settings) && self.disk.takes_replicas()
    }

    /// Whether the node is up, and its replicas need not move off.
    pub(super) fn stays_up(&self, now: Millis, settings: &crate::base::settings::Settings) -> bool {
        let stays = self.record.drain.is_none() && !self.leaving && !self.revoked;
        stays && self.signs.health(now, settings) == Health::Up
    }

    /// Whether its replicas have to move off: a drain has begun, or it wants to leave. A queued drain moves nothing (A19).
    pub fn is_to_be_emptied(&self) -> bool {
        self.leaving || self.record.drain.as_ref().is_some_and(super::Drain::has_begun)
    }

    fn check_leave(&self, now: Millis, session: SessionDigest) -> Result<(), BeatError> {
        self.check_token(session)?;
        match self.is_on_trust && self.held() > 0 && !self.signs.lease.is_over(now) {
            true => Err(BeatError::OnTrust(self.record.spec.id.clone())),
            false => Ok(()),
        }
    }

    /// How many shards have a replica on the node by its orders.
    pub fn held(&self) -> usize {
        self.orders.len()
    }
}
