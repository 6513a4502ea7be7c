//! How nodes register, beat and leave.
//!
//! A node is named by its operator and numbered by the coordinator: each registration of a fresh process
//! gets an [`Incarnation`] above every earlier one. An incarnation that was declared dead, or that a later
//! one has followed, is refused and never acts again (O6); what it held is given out anew only when its
//! lease is over.

use super::{
    BeatError, Cluster, KeyspaceState, Moment, NodeRecord, NodeState, Observed, RegisterError, Write, orders,
};
use crate::base::count::counted;
use crate::base::id::{ClusterId, Incarnation, SessionDigest, ShardId};
use crate::base::name::NodeId;
use crate::base::planted::{self, Planted};
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

impl NodeState {
    /// Whether that incarnation can certainly not act any more.
    pub(super) fn lease_is_over(&self, incarnation: Incarnation, now: Millis) -> bool {
        if incarnation == self.record.incarnation {
            self.record.ended || self.signs.lease.is_over(now)
        } else {
            self.former.get(&incarnation).is_none_or(|signs| signs.lease.is_over(now))
        }
    }

    /// Whether that incarnation was declared dead, has left, or was followed and its lease is over.
    pub(super) fn has_ended(&self, incarnation: Incarnation) -> bool {
        if incarnation == self.record.incarnation {
            self.record.ended
        } else {
            !self.former.contains_key(&incarnation)
        }
    }

    /// Whether it was revoked, and its last lease is over: it serves nothing that is exclusive until it has let go.
    pub(super) fn gets_no_lease(&self, now: Millis) -> bool {
        self.revoked && self.signs.lease.is_over(now)
    }

    /// Whether a replica is of its current incarnation.
    pub(super) fn runs_replica(&self, replica: &Replica) -> bool {
        (&replica.node, replica.incarnation) == (&self.record.spec.id, self.record.incarnation)
    }

    /// Whether it was `Down` when last looked at, and its lease is over.
    pub(super) fn is_silent(&self, now: Millis) -> bool {
        self.told == Health::Down && self.signs.lease.is_over(now)
    }

    /// Whether something new may be placed here (M7).
    pub fn accepts(&self, now: Millis, settings: &crate::base::settings::Settings) -> bool {
        let stays = self.record.drain.is_none() && !self.leaving && !self.revoked;
        stays && self.signs.health(now, settings) == Health::Up
    }

    /// Whether its replicas are to go: a drain has begun, or it wants to leave. A drain that waits in the
    /// queue moves nothing yet (A19).
    pub fn is_to_be_emptied(&self) -> bool {
        self.leaving || self.record.drain.as_ref().is_some_and(super::Drain::has_begun)
    }

    /// Of how many shards it should hold a replica.
    pub fn held(&self) -> usize {
        self.orders.len()
    }
}

impl Cluster {
    /// Takes a worker in, or back.
    pub fn register(&mut self, at: Moment, registration: Registration) -> Result<Welcome, RegisterError> {
        let Registration { spec, incarnation, session, cluster, stored, stored_of, known, from } =
            registration;
        spec.check()?;
        let is_other = |theirs: &ClusterId| {
            !self.identity().is_or_continues(*theirs) && !planted::is(Planted::AnyCluster)
        };
        if let Some(theirs) = cluster.filter(is_other) {
            let (node, ours) = (spec.id, self.record.id);
            self.refuse_foreign(at, node.clone(), theirs);
            return Err(RegisterError::OtherCluster { node, ours, theirs });
        }
        // What a worker was told by a cluster that this one was restored from says nothing: there may have been other keyspaces
        // of these names. What it stored then does no harm: this cluster began with numbers beyond all of those.
        let known = if cluster == Some(self.record.id) { known } else { vec![] };
        let is_of_it = stored_of.is_some_and(|of| self.identity().is_or_continues(of));
        self.listen_to_known(&spec.id, known, (at, if is_of_it { &stored } else { &[] }))?;
        self.check_address(at, &spec)?;
        if let Some(incarnation) = incarnation {
            return self.resume(at, spec, (incarnation, session), stored);
        }
        match self.nodes.get(&spec.id) {
            None if self.nodes.len() >= limits::NODES => return Err(RegisterError::Full),
            Some(node) if node.record.spec.address != spec.address && self.is_alive(node, at) => {
                let address = node.record.spec.address.clone();
                return Err(RegisterError::NameTaken { node: spec.id, address });
            }
            _ => {}
        }
        self.check_registration_rate(at, from.as_deref())?;
        let incarnation = self.record.next_incarnation;
        self.record.next_incarnation = incarnation.next();
        self.outbox.writes.push(Write::Cluster(self.record.clone()));
        self.admit(at, spec, (incarnation, session), stored);
        Ok(self.welcome(incarnation))
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

    /// Which cluster it is.
    pub fn identity(&self) -> ClusterIdentity {
        ClusterIdentity { cluster: self.record.id, continues: self.record.continues.clone() }
    }

    /// All keyspaces whose shards begin below this are known here, those that were deleted too.
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
        match self.nodes.values().filter(same).find(|node| self.is_alive(node, at)) {
            Some(node) => {
                let (address, node) = (spec.address.clone(), node.record.spec.id.clone());
                Err(RegisterError::AddressTaken { address, node })
            }
            None => Ok(()),
        }
    }

    /// The same process again: after a broken connection, or at another coordinator.
    fn resume(
        &mut self,
        at: Moment,
        spec: NodeSpec,
        (incarnation, session): (Incarnation, SessionDigest),
        stored: Vec<Stored>,
    ) -> Result<Welcome, RegisterError> {
        let ended = RegisterError::Ended { node: spec.id.clone(), incarnation };
        let id = spec.id.clone();
        let node = self.nodes.get_mut(&id).ok_or(RegisterError::Unknown { node: id.clone() })?;
        if node.record.incarnation != incarnation || node.record.ended {
            return Err(ended);
        }
        self.check_return(at, &id, session)?;
        let Some(node) = self.nodes.get_mut(&id) else { return Err(ended) };
        node.is_on_trust |= node.record.session.is_none();
        let has_data = !stored.is_empty() && !node.record.held;
        if has_data || node.record.session.is_none() || node.record.spec != spec {
            node.signs.answered &= node.record.spec.address == spec.address;
            (node.record.spec, node.record.session) = (spec, Some(session));
            node.record.held |= has_data;
            self.outbox.writes.push(Write::Node(node.record.clone()));
        }
        node.signs.hear(at.now);
        node.registered = true;
        self.take_stored(at, &id, stored);
        Ok(self.welcome(incarnation))
    }

    fn admit(
        &mut self,
        at: Moment,
        spec: NodeSpec,
        (incarnation, session): (Incarnation, SessionDigest),
        stored: Vec<Stored>,
    ) {
        let id = spec.id.clone();
        let before = self.nodes.get(&id).map(|node| &node.record);
        let drain = before.and_then(|before| before.drain.clone());
        let held = !stored.is_empty() || before.is_some_and(|before| before.held);
        let (session, since_ms) = (Some(session), at.wall_ms);
        let record = NodeRecord { session, held, drain, since_ms, ..NodeRecord::new(spec, incarnation) };
        self.outbox.writes.push(Write::Node(record.clone()));
        let mut node = NodeState::recalled(record, at, GrantedLease::default());
        node.signs.hear(at.now);
        node.registered = true;
        self.strike_for_restart(at, &id);
        if let Some(old) = self.nodes.remove(&id) {
            node.former = old.former;
            if !old.record.ended {
                node.former.insert(old.record.incarnation, old.signs);
            }
        }
        let text = format!("node {id} registered as {incarnation} at {}", node.record.spec.address);
        self.tell_of(EventKind::NodeRegistered, &id, text);
        self.nodes.insert(id.clone(), node);
        self.take_stored(at, &id, stored);
        self.forget_reports_of(&id);
        self.wake_replicas_of(&id);
        self.guard.losses.returned(&id);
        self.forget_hung(&id);
        self.last_join = at.now;
        self.plan_soon(at, self.settings.settle_ms);
    }

    /// Takes a beat in and answers with the lease and what has changed.
    pub fn beat(&mut self, at: Moment, beat: Beat) -> Result<Orders, BeatError> {
        let id = beat.node.clone();
        let node = self.nodes.get_mut(&id).ok_or_else(|| BeatError::Unknown(id.clone()))?;
        if node.record.incarnation != beat.incarnation || node.record.ended {
            return Err(BeatError::Ended { node: id, incarnation: beat.incarnation });
        }
        if !node.registered {
            return Err(BeatError::NotYet(id));
        }
        self.check_token(at, &id, beat.session)?;
        let may_lease = self.may_lease(at.now, beat.lease_expired);
        let node = self.nodes.get_mut(&id).ok_or_else(|| BeatError::Unknown(id.clone()))?;
        let most = if node.sequence == 0 { limits::BEATS } else { node.sequence + limits::BEATS_SKIPPED };
        if beat.sequence > most {
            return Err(BeatError::Skips { node: id, sequence: beat.sequence, latest: node.sequence });
        }
        if beat.sequence <= node.sequence && !planted::is(Planted::LateBeat) {
            return Err(BeatError::Late { node: id, sequence: beat.sequence, latest: node.sequence });
        }
        for report in &beat.reports {
            if let Some(Err(error)) = report.load.as_ref().map(|load| load.check()) {
                return Err(BeatError::Load { node: id, replica: report.replica.clone(), error });
            }
        }
        node.sequence = beat.sequence;
        let base = beat.base_of_answer();
        node.orders.confirm(beat.applied);
        let heard_before = node.signs.heard_at;
        node.signs.beat(at.now);
        // A length of 0 grants no new lease; the worker keeps the last one until it ends.
        let gets_one = !node.revoked && may_lease;
        let lease_ms = if gets_one { self.settings.lease_ms } else { 0 };
        if gets_one {
            node.signs.lease.renew(at.now, lease_ms);
        }
        node.has_no_lease = beat.lease_expired && !gets_one;
        node.busy = if beat.busy.is_finite() { beat.busy.clamp(0.0, 1.0) } else { 0.0 };
        if let Some(leaving) = beat.leaving
            && node.leaving != leaving
        {
            node.leaving = leaving;
            let wants = if leaving { "wants to leave" } else { "wants to stay after all" };
            self.tell_of(EventKind::NodeHealth, &id, format!("node {id} {wants}"));
            self.plan_soon(at, 0);
        }
        self.wake_unannounced(&id);
        self.wake_last_copies(&id, heard_before);
        if beat.whole {
            self.forget_unreported(&id, &beat.reports);
        }
        for report in beat.reports {
            self.take_report(at, &id, beat.incarnation, report);
        }
        let permissions = self.permissions(at, &id);
        let spread_ms = reconnect::worker_spread_ms(self.nodes.len(), self.settings.lease_ms);
        let lease = LeaseRenewal { sent_at: beat.sent_at, lease_ms, spread_ms };
        let orders = self.orders_since(&id, base, Some(lease)).ok_or(BeatError::Unknown(id))?;
        Ok(Orders { permissions, ..orders })
    }

    fn forget_unreported(&mut self, node: &NodeId, reports: &[Report]) {
        let named: BTreeSet<_> = reports.iter().map(|report| &report.replica).collect();
        let held = self.nodes.get(node).into_iter().flat_map(|node| self.held(node)).map(orders::key);
        let missing: Vec<_> = held.filter(|key| !named.contains(key)).collect();
        for key in missing {
            if let Some(keyspace) = self.keyspaces.get_mut(&key.keyspace) {
                keyspace.observed.remove(&key.placement);
            }
        }
        if let Some(node) = self.nodes.get_mut(node) {
            let named: BTreeSet<_> = reports.iter().map(|report| &report.replica).collect();
            node.kept.retain(|key, _| named.contains(key));
        }
    }

    fn take_report(&mut self, at: Moment, node: &NodeId, incarnation: Incarnation, report: Report) {
        let placement = report.replica.placement;
        let keyspace = self.keyspaces.get_mut(&report.replica.keyspace);
        let is_here = |keyspace: &&mut KeyspaceState| {
            let shard = keyspace.map.shard(report.replica.shard);
            let replica = shard.and_then(|shard| shard.replica(placement));
            let is_its = |r: &Replica| r.node == *node && r.incarnation == incarnation;
            replica.is_some_and(|r| is_its(r) || planted::is(Planted::AnyReporter))
        };
        // What the map does not name is ordered away by the answer to this beat; its data is kept until it may go.
        let Some(keyspace) = keyspace.filter(is_here) else { return self.take_kept(at, node, report) };
        let mut report = report;
        keyspace.note_live_copy(&mut report, node, (&self.nodes, self.recovered.heard));
        let before = keyspace.observed.get(&placement);
        let news = before.is_none_or(|seen| *seen.phase() != report.phase || seen.epoch() != report.epoch);
        let load =
            report.load.map(Load::bounded).or_else(|| before.and_then(Observed::load).cloned()).map(Box::new);
        if !matches!(report.phase, Phase::Loading | Phase::Failed(_) | Phase::Kept)
            && let Some(node) = self.nodes.get_mut(node)
        {
            node.kept.remove(&report.replica);
        }
        keyspace.excuse_load(
            (&self.nodes, at.now, &self.settings),
            report.replica.shard,
            placement,
            &report.phase,
        );
        if report.phase == Phase::Loading {
            keyspace.overdue.pending_steps.progressed(placement, report.progress, at.now);
        }
        keyspace.observed.insert(placement, Observed::new(report.phase, report.epoch, load));
        let asks = keyspace.note_replication(placement, report.replication);
        if news || asks {
            self.wake_shard(&report.replica);
        }
    }

    /// The worker's last word: it acts no more, whatever it still held.
    pub fn leave(
        &mut self,
        at: Moment,
        id: &NodeId,
        incarnation: Incarnation,
        session: SessionDigest,
    ) -> Result<(), BeatError> {
        let node = self.nodes.get_mut(id).ok_or_else(|| BeatError::Unknown(id.clone()))?;
        if node.record.incarnation != incarnation || node.record.ended {
            return Err(BeatError::Ended { node: id.clone(), incarnation });
        }
        self.check_token(at, id, session)?;
        let node = self.nodes.get_mut(id).ok_or_else(|| BeatError::Unknown(id.clone()))?;
        if node.is_on_trust && node.held() > 0 && !node.signs.lease.is_over(at.now) {
            return Err(BeatError::OnTrust(id.clone()));
        }
        node.signs.left = true;
        node.record.left = true;
        node.signs.lease.give_up();
        let left_with = node.orders.len();
        self.end(at, id);
        let text = format!("node {id} has left with replicas of {}", counted(left_with, "shard"));
        self.tell_of(EventKind::NodeEnded, id, text);
        Ok(())
    }
}
