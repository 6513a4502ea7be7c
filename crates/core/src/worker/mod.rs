//! The worker's state machine: its replicas, its next heartbeat (*beat*), and which requests it may answer.
//!
//! Its driver calls it with orders, returned callbacks and the time, and carries out the [`Action`]s that it returns. The driver
//! also sends the heartbeat that [`Worker::beat`] returns, and answers requests by [`gates::Gates`]. The SDK and the simulator's
//! workers run this very code.
//!
//! ```text
//!  orders ──► local replicas (one state machine each) ──► callbacks, gates
//!                      │
//!                      └──► reports ──► the next heartbeat
//! ```

pub mod gates;
mod local_replica;

pub use local_replica::{Callback, CallbackTimeouts, Gate, LocalReplica, NoSuccessor, Task};

use crate::base::id::{ClusterId, Epoch, Generation, Incarnation, SessionDigest, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::planted::{self, Planted};
use crate::base::time::Millis;
use crate::keyspace::Ownership;
use crate::limits;
use crate::node::NodeSpec;
use crate::node::exchange::Registration;
use crate::node::exchange::Welcome;
use crate::node::exchange::{
    Beat, DiskHealth, KeyspaceBrief, Orders, Phase, ReplicaKey, ReplicationReport, Report, Stored,
};
use crate::node::lease::HeldLease;
use crate::node::load::Load;
use gates::Gates;
use std::collections::{BTreeMap, BTreeSet};

/// What the driver has to do for one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// The replica that the task is for.
    pub replica: ReplicaKey,
    /// What the driver has to do for the replica.
    pub task: Task,
}

/// Why a worker does not obey a coordinator (D11). The worker keeps its data, and asks the coordinators again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoordinatorRefusal {
    /// The coordinator is of another cluster, or its state was emptied.
    #[error(
        "the coordinator is of cluster {theirs}, this worker of cluster {ours}: its orders are refused and all data \
         is kept. Give the worker the coordinators of its own cluster; if the state of those is lost, restore it \
         from a backup"
    )]
    OtherCluster {
        /// The cluster that this worker is of.
        ours: ClusterId,
        /// The cluster that the coordinator names.
        theirs: ClusterId,
    },
    /// The coordinator has an older map of a keyspace than this worker.
    #[error(
        "the coordinator has keyspace {keyspace} at {theirs}, and this worker was told {ours} before: its orders are \
         refused and all data is kept. Its state was set back: stop the coordinators and restore a backup with \
         `partage restore`, which numbers on from there"
    )]
    Outdated {
        /// The keyspace of which the coordinator knows less than this worker.
        keyspace: KeyspaceName,
        /// The map that the worker's orders came from.
        ours: Generation,
        /// The map that the coordinator has.
        theirs: Generation,
    },
}

/// A worker, from registration to goodbye.
#[derive(Debug)]
pub struct Worker {
    node: NodeId,
    /// The cluster that it has registered with, or whose data it found stored.
    cluster: Option<ClusterId>,
    /// The cluster whose data it found stored when it began.
    stored_of: Option<ClusterId>,
    /// Why it does not obey the last coordinator.
    refusal: Option<CoordinatorRefusal>,
    incarnation: Option<Incarnation>,
    callback_timeouts: CallbackTimeouts,
    lease: HeldLease,
    keyspaces: BTreeMap<KeyspaceName, KeyspaceBrief>,
    local_replicas: BTreeMap<ReplicaKey, LocalReplica>,
    loads: BTreeMap<ReplicaKey, Load>,
    /// The last replication report of each replica in a replicated keyspace.
    replication: BTreeMap<ReplicaKey, ReplicationReport>,
    /// Replicas whose state is not as the last heartbeat reported it: a reason for the next one.
    unreported: BTreeSet<ReplicaKey>,
    /// Replicas whose loads or logs have progressed since the last heartbeat, which is no reason for the next one.
    progressing: BTreeSet<ReplicaKey>,
    /// What the last heartbeat reported of each replica.
    reported: BTreeMap<ReplicaKey, (Phase, Epoch)>,
    applied: u64,
    sequence: u64,
    whole: bool,
    leaving: bool,
    may_go: bool,
    busy: f64,
    disk: DiskHealth,
}

impl Worker {
    /// A worker that has not registered yet.
    pub fn new(node: NodeId, callback_timeouts: CallbackTimeouts) -> Worker {
        Worker {
            node,
            cluster: None,
            stored_of: None,
            refusal: None,
            incarnation: None,
            callback_timeouts,
            lease: HeldLease::default(),
            keyspaces: BTreeMap::new(),
            local_replicas: BTreeMap::new(),
            loads: BTreeMap::new(),
            replication: BTreeMap::new(),
            unreported: BTreeSet::new(),
            progressing: BTreeSet::new(),
            reported: BTreeMap::new(),
            applied: 0,
            sequence: 0,
            whole: true,
            leaving: false,
            may_go: false,
            busy: 0.0,
            disk: DiskHealth::default(),
        }
    }

    /// A process that finds what an earlier one has stored, and of which cluster that is.
    #[must_use]
    pub fn with_stored(mut self, cluster: Option<ClusterId>, stored: Vec<Stored>) -> Worker {
        (self.cluster, self.stored_of) = (cluster, cluster);
        let held = stored.into_iter().map(|stored| (stored.replica.clone(), LocalReplica::stored(stored)));
        self.local_replicas.extend(held);
        self
    }

    /// The cluster that it has registered with, or whose data it found stored.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// Why it does not obey its coordinator; none if it does.
    pub fn refusal(&self) -> Option<&CoordinatorRefusal> {
        self.refusal.as_ref()
    }

    /// Its registration: cluster, incarnation, stored replicas, and the maps that it knows.
    pub fn registration(&self, spec: NodeSpec) -> Registration {
        Registration {
            spec,
            incarnation: self.incarnation,
            // The driver has the token.
            session: SessionDigest::default(),
            cluster: self.cluster,
            stored: self.local_replicas.values().filter_map(LocalReplica::as_stored).collect(),
            stored_of: self.stored_of,
            known: self.keyspaces.values().map(KeyspaceBrief::known).collect(),
            from: None,
        }
    }

    /// The id of the node, which the worker keeps across restarts.
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// Its incarnation; none before registration, and after the coordinator has ended it.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation
    }

    /// The replicas that it holds, those included whose data it only keeps.
    pub fn local_replicas(&self) -> &BTreeMap<ReplicaKey, LocalReplica> {
        &self.local_replicas
    }

    /// What it knows of a keyspace.
    pub fn keyspace(&self, name: &KeyspaceName) -> Option<&KeyspaceBrief> {
        self.keyspaces.get(name)
    }

    /// The lease that the coordinator last renewed; over at first.
    pub fn lease(&self) -> &HeldLease {
        &self.lease
    }

    /// Whether the coordinator has said that everything is served elsewhere.
    pub fn may_go(&self) -> bool {
        self.may_go
    }

    /// A coordinator has accepted the registration: the next heartbeat is a whole one. Refuses a coordinator of another cluster.
    pub fn welcomed(&mut self, welcome: &Welcome) -> Result<(), CoordinatorRefusal> {
        let theirs = welcome.cluster;
        if let Some(ours) = self.cluster
            && ours != theirs
            && !welcome.continues.contains(&ours)
            && !planted::is(Planted::AnyCluster)
        {
            let refusal = CoordinatorRefusal::OtherCluster { ours, theirs };
            self.refusal = Some(refusal.clone());
            return Err(refusal);
        }
        if self.cluster.replace(theirs).is_some_and(|ours| ours != theirs) {
            self.local_replicas.values_mut().for_each(LocalReplica::restored);
            // The backup may be older than the present keyspace of a name. The restored cluster's ids are far beyond all others.
            self.keyspaces.values_mut().for_each(|brief| brief.first_shard = ShardId(0));
        }
        self.refusal = None;
        let incarnation = welcome.incarnation;
        if self.incarnation != Some(incarnation) {
            self.sequence = 0;
        }
        self.incarnation = Some(incarnation);
        self.applied = 0;
        self.whole = true;
        Ok(())
    }

    /// A heartbeat was not answered: the next one is whole.
    pub fn unanswered(&mut self) {
        self.whole = true;
    }

    /// The coordinator has ended this incarnation: serve nothing, keep all data, register anew (O6, D7).
    pub fn ended(&mut self, now: Millis) -> Vec<Action> {
        self.incarnation = None;
        if !planted::is(Planted::EndedLease) {
            self.lease.give_up();
        }
        self.local_replicas.values_mut().for_each(LocalReplica::withdraw);
        self.run(now)
    }

    /// Whether nothing runs here any more: no request, no callback that must be followed by `unload`.
    pub fn is_at_rest(&self) -> bool {
        self.local_replicas.values().all(LocalReplica::is_at_rest)
    }

    /// Asks to leave: the coordinator moves everything first (A13).
    pub fn leave(&mut self) {
        self.leaving = true;
    }

    /// Asks no longer to leave: what has been moved off may come back.
    pub fn stay(&mut self) {
        self.leaving = false;
        self.may_go = false;
    }

    /// The service no longer leads a shard, for that reason; see [`LocalReplica::lay_down`]. Where it does not lead, or
    /// no successor is there, nothing changes.
    pub fn lay_down(
        &mut self,
        now: Millis,
        replica: &ReplicaKey,
        reason: &str,
    ) -> Result<Vec<Action>, NoSuccessor> {
        let local = self.local_replicas.get_mut(replica);
        local.map_or(Err(NoSuccessor::DoesNotLead), |local| local.lay_down(reason.to_owned()))?;
        Ok(self.run_one(now, replica))
    }

    /// The service cannot serve what it has of a shard, for that reason; see [`LocalReplica::unhealthy`]. Nothing is done
    /// about replicas that do not serve.
    pub fn unhealthy(&mut self, now: Millis, replica: &ReplicaKey, reason: &str) -> Vec<Action> {
        if let Some(local) = self.local_replicas.get_mut(replica) {
            local.unhealthy(reason.to_owned());
        }
        self.run_one(now, replica)
    }

    /// The `load` of a replica that runs gets on: [`CallbackTimeouts::load_ms`] counts from now, and the coordinator hears of it.
    pub fn progressed(&mut self, now: Millis, replica: &ReplicaKey) {
        if self.local_replicas.get_mut(replica).is_some_and(|local| local.progressed(now)) {
            self.progressing.insert(replica.clone());
        }
    }

    /// The `load` of a replica that runs finds what is stored here damaged; that it failed is said next.
    pub fn damaged(&mut self, replica: &ReplicaKey) {
        if let Some(local) = self.local_replicas.get_mut(replica) {
            local.damaged();
        }
    }

    /// The share of this node's capacity that foreground work takes, 0 to 1.
    pub fn set_busy(&mut self, busy: f64) {
        self.busy = busy;
    }

    /// What the next beat says of the disk of this node.
    pub fn set_disk(&mut self, disk: DiskHealth) {
        self.disk = disk;
    }

    /// A newly measured load, reported with the next beat.
    pub fn measured(&mut self, replica: &ReplicaKey, load: Load) {
        if self.local_replicas.contains_key(replica) {
            self.loads.insert(replica.clone(), load);
        }
    }

    /// How the replication of a shard is, as a replica here sees it. What the coordinator waits for, a leader's wish, an heir
    /// that is ready or a leader that is silent, goes out at once.
    pub fn replicates(&mut self, replica: &ReplicaKey, report: ReplicationReport) {
        if !self.local_replicas.contains_key(replica) {
            return;
        }
        let asks = report.asks();
        let before = self.replication.insert(replica.clone(), report.clone());
        if before.as_ref() == Some(&report) {
            return;
        }
        match asks || before.is_some_and(|before| before.asks()) {
            true => self.unreported.insert(replica.clone()),
            false => self.progressing.insert(replica.clone()),
        };
    }

    /// Applies orders. Ignores those of another incarnation, or on top of a version that it does not have: the next heartbeat
    /// says which version it has, and the answer is on top of that.
    pub fn apply_orders(&mut self, now: Millis, orders: Orders) -> Vec<Action> {
        if Some(orders.incarnation) != self.incarnation {
            return Vec::new();
        }
        if let Some(refusal) = self.refusal_of(&orders) {
            self.refusal = Some(refusal);
            return self.run(now);
        }
        self.may_go = orders.may_go && self.leaving;
        let is_overtaken = orders.version < self.applied && !planted::is(Planted::OvertakenOrders);
        if is_overtaken || (orders.base != 0 && orders.base > self.applied) {
            if let Some(renewal) = orders.lease.filter(|_| planted::is(Planted::RefusedLease)) {
                self.lease.renew(renewal.sent_at, renewal.lease_ms);
            }
            return self.run(now);
        }
        // Not before: a lease lets a worker go on by its orders, and overtaken or incomplete orders are not those.
        if let Some(renewal) = orders.lease {
            let from = if planted::is(Planted::O4) { now } else { renewal.sent_at };
            self.lease.renew(from, renewal.lease_ms);
            self.whole = false;
        }
        if orders.base == 0 {
            let named: BTreeSet<_> = orders.changed.iter().map(|order| &order.replica).collect();
            let unnamed = self.local_replicas.iter_mut().filter(|(key, _)| !named.contains(key));
            unnamed.for_each(|(_, local)| local.withdraw());
        }
        for key in &orders.removed {
            self.local_replicas.get_mut(key).map(LocalReplica::withdraw).unwrap_or_default();
        }
        for permission in &orders.permissions {
            self.local_replicas
                .get_mut(&permission.replica)
                .map(|local| local.permit(permission))
                .unwrap_or_default();
        }
        for brief in orders.keyspaces {
            self.keyspaces.insert(brief.name.clone(), brief);
        }
        for order in orders.changed {
            match self.local_replicas.get_mut(&order.replica) {
                Some(local) => {
                    if local.is_withdrawn() {
                        // The coordinator has ignored reports on it while no map named it.
                        self.reported.remove(&order.replica);
                    }
                    local.take(order);
                }
                None => drop(self.local_replicas.insert(order.replica.clone(), LocalReplica::new(order))),
            }
        }
        self.applied = orders.version;
        self.refusal = None;
        self.run(now)
    }

    /// Why the worker refuses orders (D11): they come from another cluster, or from an older map than its own.
    fn refusal_of(&self, orders: &Orders) -> Option<CoordinatorRefusal> {
        let is_other = |ours: &ClusterId| *ours != orders.cluster && !planted::is(Planted::AnyCluster);
        if let Some(ours) = self.cluster.filter(is_other) {
            return Some(CoordinatorRefusal::OtherCluster { ours, theirs: orders.cluster });
        }
        orders.keyspaces.iter().find_map(|brief| {
            let known = self.keyspaces.get(&brief.name)?;
            let (ours, theirs) = (known.generation, brief.generation);
            let is_set_back = (brief.first_shard, theirs.sequence) < (known.first_shard, ours.sequence);
            is_set_back.then(|| CoordinatorRefusal::Outdated { keyspace: brief.name.clone(), ours, theirs })
        })
    }

    /// A callback has returned.
    pub fn returned(
        &mut self,
        now: Millis,
        replica: &ReplicaKey,
        callback: Callback,
        result: Result<(), String>,
    ) -> Vec<Action> {
        if let Some(local) = self.local_replicas.get_mut(replica) {
            local.returned(callback, result, now, &self.callback_timeouts);
        }
        self.run_one(now, replica)
    }

    /// The last request in a replica whose gate was shut has ended.
    pub fn requests_ended(&mut self, now: Millis, replica: &ReplicaKey) -> Vec<Action> {
        let task = self.local_replicas.get_mut(replica).and_then(|local| local.requests_ended(now));
        let mut actions: Vec<_> =
            task.map(|task| Action { replica: replica.clone(), task }).into_iter().collect();
        actions.extend(self.run_one(now, replica));
        actions
    }

    /// Lets all replicas take the steps that are due.
    pub fn run(&mut self, now: Millis) -> Vec<Action> {
        let keys: Vec<_> = self.local_replicas.keys().cloned().collect();
        keys.iter().flat_map(|key| self.run_one(now, key)).collect()
    }

    fn run_one(&mut self, now: Millis, key: &ReplicaKey) -> Vec<Action> {
        let Some(local) = self.local_replicas.get_mut(key) else { return Vec::new() };
        let brief = self.keyspaces.get(&key.keyspace);
        let is_durable = brief.is_some_and(|brief| brief.durable);
        let mut actions = Vec::new();
        local.durable = is_durable;
        local.replicated = brief.is_some_and(|brief| brief.ownership == Ownership::Replicated);
        if is_durable {
            local.admit_loss();
        }
        while let Some(task) = local.next(now, &self.callback_timeouts) {
            if task == Task::Call(Callback::Load) && is_durable && local.lacks_source() {
                local.returned(Callback::Load, Err(no_source(key)), now, &self.callback_timeouts);
                continue;
            }
            actions.push(Action { replica: key.clone(), task });
        }
        let state = (local.phase(), local.epoch());
        if self.reported.get(key) != Some(&state) {
            self.unreported.insert(key.clone());
        }
        actions
    }

    /// When [`Worker::run`] is next due by itself.
    pub fn wake_at(&self) -> Millis {
        self.local_replicas
            .values()
            .map(|local| local.wake_at(&self.callback_timeouts))
            .min()
            .unwrap_or(Millis::NEVER)
    }

    /// Whether a heartbeat should go out now, as the coordinator waits for something in it.
    pub fn has_news(&self) -> bool {
        !self.unreported.is_empty()
    }

    /// The next heartbeat; none before registration. Its reports count as sent until [`Worker::unanswered`] or
    /// [`Worker::welcomed`].
    pub fn beat(&mut self, now: Millis) -> Option<Beat> {
        let incarnation = self.incarnation?;
        self.sequence += 1;
        let whole = self.whole;
        let keys: Vec<_> = if whole {
            self.local_replicas.keys().cloned().collect()
        } else {
            self.unreported
                .iter()
                .chain(self.loads.keys())
                .chain(&self.progressing)
                .chain(self.replication.iter().filter(|(_, said)| said.leader_silent).map(|(key, _)| key))
                .cloned()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect()
        };
        self.unreported.clear();
        self.progressing.clear();
        let reports = keys.iter().filter_map(|key| self.report(key, whole)).collect();
        self.forget_dropped();
        Some(Beat {
            node: self.node.clone(),
            incarnation,
            session: SessionDigest::default(),
            sequence: self.sequence,
            sent_at: now,
            applied: self.applied,
            sent: 0,
            whole,
            reports,
            leaving: Some(self.leaving),
            busy: self.busy,
            lease_expired: !self.lease.holds(now),
            disk: self.disk,
        })
    }

    fn report(&mut self, key: &ReplicaKey, whole: bool) -> Option<Report> {
        let local = self.local_replicas.get(key)?;
        let (phase, epoch) = (local.phase(), local.epoch());
        self.reported.insert(key.clone(), (phase.clone(), epoch));
        let progress = local.progress();
        let served = (whole || phase == Phase::Kept).then(|| local.served());
        let (load, replication) = (self.loads.remove(key), self.replication.get(key).cloned());
        Some(Report { replica: key.clone(), phase, epoch, load, progress, served, replication })
    }

    /// Forgets replicas that the coordinator has withdrawn and that are dropped.
    fn forget_dropped(&mut self) {
        self.local_replicas.retain(|_, local| !(local.is_dropped() && local.is_withdrawn()));
        let held = &self.local_replicas;
        let in_use: BTreeSet<_> = held.keys().map(|key| &key.keyspace).collect();
        let unused = self.keyspaces.values().filter(|brief| !in_use.contains(&brief.name));
        let mut unused: Vec<_> = unused.map(|brief| (brief.first_shard, brief.name.clone())).collect();
        unused.sort_unstable();
        // The generation of a keyspace stays known after its last shard left: a coordinator that offers an
        // older one is refused. Beyond what a whole cluster can have, the oldest is forgotten.
        for (_, name) in unused.iter().rev().skip(limits::KEYSPACES) {
            self.keyspaces.remove(name);
        }
        self.reported.retain(|key, _| held.contains_key(key));
        self.loads.retain(|key, _| held.contains_key(key));
        self.replication.retain(|key, _| held.contains_key(key));
    }

    /// The table by which the driver answers requests. It gets a new one after every call that returned actions or changed a
    /// gate; see [`gates`].
    pub fn gates(&self) -> Gates {
        Gates::new(self.lease, &self.keyspaces, self.local_replicas.values())
    }
}

fn no_source(ReplicaKey { keyspace, shard, .. }: &ReplicaKey) -> String {
    format!(
        "shard {shard} of keyspace {keyspace} has had data, and no replica that could be loaded from is known: start \
         the nodes that stored it; if they are lost, choose another copy with `partage shard force-join {keyspace} {0} \
         --node NODE --generation G`, or give all of it up with `partage shard recreate {keyspace} {0} --generation G`",
        shard.0
    )
}

#[cfg(test)]
mod tests;
