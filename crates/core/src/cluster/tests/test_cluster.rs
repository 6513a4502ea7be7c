//! A cluster with its workers and its disk, on simulated time: everybody is honest and quick, nothing is lost
//! on the way. What the network and the disk may do to it is another test's matter.

use super::super::counts::Counts;
use super::super::hosted::Hosted;
use super::super::{BeatError, Cluster, KeyspaceRecord, Moment, Outbox, Records, Write};
use super::disks::{Disks, Leaders, There};
use crate::base::id::{Epoch, Incarnation, PlacementId, PlanId, ShardId, TransactionId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::cluster::event::Event;
use crate::keyspace::hash::HashFunction;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Role, ShardMap};
use crate::keyspace::sharding::{Bounds, Sharding, Slot};
use crate::keyspace::{Keyspace, Ownership};
use crate::node::NodeSpec;
use crate::node::exchange::Registration;
use crate::node::exchange::{Beat, DiskHealth, Order, Peer, Phase, ReplicaKey, ReplicationReport, Report};
use crate::node::lease::HeldLease;
use crate::node::load::Load;
use crate::plan::Plan;
use std::collections::{BTreeMap, BTreeSet};

pub const BEAT_MS: u64 = 100;

pub fn settings() -> Settings {
    Settings {
        heartbeat_ms: BEAT_MS,
        lease_ms: 1_000,
        dead_after_ms: 1_500,
        settle_ms: 300,
        rebalance_ms: 5_000,
        handover_ms: 4_000,
        ..Settings::default()
    }
}

pub fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

pub fn name() -> KeyspaceName {
    KeyspaceName::new("users").unwrap()
}

/// `users`, of as many fixed shards.
pub fn keyspace(shards: u32) -> Keyspace {
    let sharding = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards };
    Keyspace::new(name(), sharding)
}

pub fn slots(shards: u32) -> Vec<Bounds> {
    Slot::all(shards)
}

/// What a worker never gets done, though it beats and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hang {
    Load,
    /// Says nothing of what it should load.
    Mute,
    /// Fails to load once, and neither tries again nor says more.
    FailOnce,
    Serve,
    Unload,
    /// Unloads for ever, under the epoch of its orders: nothing waits for the end of its lease.
    Unloading,
    Drop,
}

impl Hang {
    fn is_at(self, state: ReplicaState) -> bool {
        match self {
            Hang::Load | Hang::Mute | Hang::FailOnce => state == ReplicaState::Load,
            Hang::Serve => state == ReplicaState::Live,
            Hang::Unload | Hang::Unloading => state == ReplicaState::Unload,
            Hang::Drop => state == ReplicaState::UnloadFinal,
        }
    }

    fn phase(self, now: &Phase) -> Phase {
        match self {
            Hang::FailOnce => Phase::failed(1, "the disk is gone".to_owned()),
            Hang::Unloading => Phase::Unloading,
            Hang::Load | Hang::Mute | Hang::Serve | Hang::Unload | Hang::Drop => now.clone(),
        }
    }
}

/// One worker process, with what it holds and the lease that it has.
pub struct Worker {
    incarnation: Incarnation,
    sequence: u64,
    pub applied: u64,
    pub leaving: bool,
    lease: HeldLease,
    pub holds: Holds,
}

/// What a worker has been ordered, and how far it is.
pub type Holds = BTreeMap<ReplicaKey, (Order, Phase)>;

/// A simulated cluster: its coordinator, its workers, what they store, and the faults that a test sets. See the module.
pub struct TestCluster {
    pub cluster: Cluster,
    pub now: u64,
    pub workers: BTreeMap<NodeId, Worker>,
    pub disk: Records,
    pub writes: Vec<Write>,
    pub notices: Vec<String>,
    pub events: Vec<Event>,
    /// Shards that cannot be loaded on some nodes.
    pub fails: BTreeSet<(ShardId, NodeId)>,
    /// Workers that do not get on, and where.
    pub hangs: BTreeMap<NodeId, Hang>,
    /// Shards that nobody ever lets go of.
    pub clinging_shards: BTreeSet<ShardId>,
    /// Replicated shards whose leaders have begun anew and cannot lead under this epoch again.
    pub unable_to_lead: BTreeMap<ShardId, Epoch>,
    /// Shards whose leaders never find their heir ready.
    pub unready_heirs: BTreeSet<ShardId>,
    /// Shards that nobody ever has loaded.
    pub hanging_shards: BTreeSet<ShardId>,
    /// Whoever serves this shard dies.
    pub poison: Option<ShardId>,
    /// Workers that neither send nor receive.
    pub cut_off: BTreeSet<NodeId>,
    /// Workers whose peers do not hear them, nor they their peers: only the coordinator does.
    pub mute_links: BTreeSet<NodeId>,
    /// Workers at whose announced address nobody answers.
    pub unreachable: BTreeSet<NodeId>,
    /// How many of the next answers to a worker's beats are lost. Its lease is not looked at: let them be few.
    pub lost_answers: BTreeMap<NodeId, u32>,
    /// Requests a second over all points of the hash space, spread evenly.
    pub rate: Option<f64>,
    /// How often each load has said that it gets on.
    pub progress: u32,
    /// Loads to report; others report none.
    pub loads: BTreeMap<ShardId, Load>,
    /// How busy workers say that they are; 0 where nothing is said.
    pub busy: BTreeMap<NodeId, f64>,
    /// Nodes whose disks have no room.
    pub full: BTreeSet<NodeId>,
    /// Nodes whose disks are nearly full.
    pub nearly_full: BTreeSet<NodeId>,
    /// Nodes whose disks store nothing.
    pub stalled: BTreeSet<NodeId>,
    /// The disks of the nodes, where services store what they serve.
    pub disks: Option<Disks>,
    transactions: u8,
}

/// D1. An order names every member of the in-sync set, or copy, that the map names: a leader that knows of fewer would
/// acknowledge what the others lack.
fn check_named(cluster: &Cluster, order: &Order) {
    let key = &order.replica;
    let keyspace = &cluster.keyspaces()[&key.keyspace];
    let Some(shard) = keyspace.map.shard(key.shard) else { return };
    let peers = order.peers.iter().filter(|peer| peer.shard == key.shard);
    if keyspace.record.keyspace.ownership == Ownership::Replicated {
        let mut named: BTreeSet<_> = peers.filter(|peer| peer.in_sync).map(|peer| peer.placement).collect();
        named.extend(order.in_sync.then_some(key.placement));
        let members: BTreeSet<_> = shard.in_sync().map(|replica| replica.placement).collect();
        assert_eq!(named, members, "the in-sync set that an order names: {order:#?}");
    } else if keyspace.record.keyspace.durable {
        let named: BTreeSet<_> = peers.map(|peer| peer.placement).chain([key.placement]).collect();
        let copies: BTreeSet<_> = shard.copies().map(|replica| replica.placement).collect();
        assert!(copies.is_subset(&named), "copies that an order does not name: {copies:?}, {order:#?}");
    }
}

impl TestCluster {
    pub fn new(keyspace: Keyspace, bounds: Vec<Bounds>) -> TestCluster {
        TestCluster::of(vec![(keyspace, bounds)])
    }

    /// Several keyspaces, each with shard ids of its own.
    pub fn of(keyspaces: Vec<(Keyspace, Vec<Bounds>)>) -> TestCluster {
        let mut next_shard = ShardId(1);
        let mut stored = Vec::new();
        for (keyspace, bounds) in keyspaces {
            let empty = ShardMap::empty(keyspace.name.clone(), keyspace.sharding, keyspace.partition_key);
            let empty = empty.empty_after(next_shard, PlacementId(1));
            let mut map = empty.clone();
            let mut edit = empty.edit();
            for bounds in bounds {
                edit.create_shard(bounds).unwrap();
            }
            map.apply(&edit.commit(TransactionId([255; 20]))).unwrap();
            next_shard = map.next_shard();
            stored.push((KeyspaceRecord::new(keyspace, 0, ShardId(1)), map));
        }
        TestCluster::from(Records { keyspaces: stored, ..Records::default() }, 1_000)
    }

    fn from(disk: Records, now: u64) -> TestCluster {
        let at = Moment { now: Millis(now), wall_ms: now };
        TestCluster {
            cluster: Cluster::recover(at, settings(), disk.clone()).unwrap(),
            now,
            workers: BTreeMap::new(),
            disk,
            writes: Vec::new(),
            notices: Vec::new(),
            events: Vec::new(),
            fails: BTreeSet::new(),
            hangs: BTreeMap::new(),
            clinging_shards: BTreeSet::new(),
            unable_to_lead: BTreeMap::new(),
            unready_heirs: BTreeSet::new(),
            hanging_shards: BTreeSet::new(),
            poison: None,
            cut_off: BTreeSet::new(),
            mute_links: BTreeSet::new(),
            unreachable: BTreeSet::new(),
            lost_answers: BTreeMap::new(),
            rate: None,
            progress: 0,
            loads: BTreeMap::new(),
            busy: BTreeMap::new(),
            full: BTreeSet::new(),
            nearly_full: BTreeSet::new(),
            stalled: BTreeSet::new(),
            disks: None,
            transactions: 0,
        }
    }

    /// The coordinator dies and another one starts from the disk; the workers live on.
    pub fn restart_coordinator(self) -> TestCluster {
        let mut fresh = TestCluster::from(self.disk, self.now);
        let (at, mut workers) = (fresh.at(), self.workers);
        for (name, worker) in &mut workers {
            worker.applied = 0;
            if self.cut_off.contains(name) {
                continue;
            }
            let spec = fresh.cluster.nodes()[name].record.spec.clone();
            let incarnation = Some(worker.incarnation);
            fresh.cluster.register(at, Registration { incarnation, ..Registration::new(spec) }).unwrap();
        }
        let TestCluster { notices, fails, hangs, loads, cut_off, unreachable, disks, .. } = self;
        let fresh =
            TestCluster { full: self.full, nearly_full: self.nearly_full, stalled: self.stalled, ..fresh };
        let fresh = TestCluster { unready_heirs: self.unready_heirs, ..fresh };
        TestCluster { workers, notices, fails, hangs, loads, cut_off, unreachable, disks, ..fresh }
    }

    pub fn at(&self) -> Moment {
        Moment { now: Millis(self.now), wall_ms: self.now }
    }

    pub fn join(&mut self, name: &str) {
        let port = 7_000 + self.now % 1_000 + 1_000 * self.workers.len() as u64;
        self.join_as(NodeSpec::new(node(name), format!("127.0.0.1:{port}")));
    }

    pub fn join_as(&mut self, spec: NodeSpec) {
        let at = self.at();
        let id = spec.id.clone();
        let stored = self.disks.as_ref().map(|disks| disks.stored(&id)).unwrap_or_default();
        let welcome = self.cluster.register(at, Registration { stored, ..Registration::new(spec) }).unwrap();
        let holds = BTreeMap::new();
        let incarnation = welcome.incarnation;
        self.workers.insert(
            id.clone(),
            Worker {
                incarnation,
                sequence: 0,
                applied: 0,
                leaving: false,
                lease: HeldLease::default(),
                holds,
            },
        );
        self.check_addresses();
        self.beat(&id);
        self.decide();
    }

    pub fn kill(&mut self, name: &str) {
        self.workers.remove(&node(name)).unwrap();
        self.disks.iter_mut().for_each(|disks| disks.killed(&node(name)));
    }

    /// Time passes, in beats.
    pub fn run(&mut self, ms: u64) {
        for _ in 0..ms / BEAT_MS {
            self.now += BEAT_MS;
            let serves = |worker: &Worker, shard| {
                worker.holds.iter().any(|(key, (_, phase))| key.shard == shard && *phase == Phase::Serving)
            };
            if let Some(poison) = self.poison {
                self.workers.retain(|_, worker| !serves(worker, poison));
            }
            let names: Vec<_> =
                self.workers.keys().filter(|name| !self.cut_off.contains(*name)).cloned().collect();
            self.check_addresses();
            names.iter().for_each(|name| self.beat(name));
            self.decide();
            if let Some(disks) = &mut self.disks {
                let there = self.workers.iter().filter(|(node, _)| !self.cut_off.contains(*node));
                let held = there.map(|(node, worker)| (node.clone(), worker.holds.clone()));
                disks.write(&held.collect());
            }
        }
    }

    /// The coordinator calls back whoever is due.
    fn check_addresses(&mut self) {
        let at = self.at();
        for (id, incarnation, ..) in self.cluster.checks_due(at.now) {
            let is_there = self.workers.contains_key(&id) && !self.cut_off.contains(&id);
            let answers = is_there && !self.unreachable.contains(&id);
            self.cluster.checked_back(at, &id, incarnation, answers);
        }
    }

    /// The next beat of a worker, which has got on with what it holds.
    pub fn next_beat(&mut self, name: &NodeId) -> Beat {
        let at = self.at();
        let nodes = self.workers.keys().filter(|node| !self.cut_off.contains(*node)).cloned().collect();
        let there = There { nodes, leaders: self.leaders() };
        let replication = self.replication(name);
        let worker = self.workers.get_mut(name).unwrap();
        worker.sequence += 1;
        for (key, (order, phase)) in &mut worker.holds {
            if self.disks.as_ref().is_some_and(|disks| disks.lacks(name, order)) {
                *phase = Phase::Dropped;
                continue;
            }
            let fails = self.fails.contains(&(key.shard, name.clone()));
            let found = self.disks.as_mut().map(|disks| disks.prepare(name, order, phase, &there));
            let lacks = found == Some(false);
            let fails = fails || lacks;
            let clings = self.clinging_shards.contains(&key.shard).then_some(Hang::Unload);
            let hangs = self.hanging_shards.contains(&key.shard).then_some(Hang::Load);
            *phase = match hangs.or(clings).or(self.hangs.get(name).copied()) {
                Some(hang) if hang.is_at(order.state) => hang.phase(phase),
                _ if lacks && order.state == ReplicaState::Live => Phase::Ready,
                _ => next_phase(order, phase, fails),
            };
        }
        let hangs = |order: &Order| {
            let clings =
                self.clinging_shards.contains(&order.replica.shard) && Hang::Unload.is_at(order.state);
            clings || self.hangs.get(name).is_some_and(|hang| hang.is_at(order.state))
        };
        let is_unloading = self.hangs.get(name) == Some(&Hang::Unloading);
        let is_mute = |order: &Order| hangs(order) && self.hangs.get(name) == Some(&Hang::Mute);
        let report = |(key, (order, phase)): (&ReplicaKey, &(Order, Phase))| Report {
            replica: key.clone(),
            phase: phase.clone(),
            epoch: if hangs(order) && !is_unloading { Epoch(0) } else { order.epoch },
            load: self.loads.get(&key.shard).cloned().or(even_load(self.rate, order)),
            progress: self.progress,
            served: self.disks.as_ref().and_then(|disks| disks.served(name, key)),
            replication: replication.get(key).cloned(),
        };
        Beat {
            session: crate::base::id::SessionDigest::default(),
            node: name.clone(),
            incarnation: worker.incarnation,
            sequence: worker.sequence,
            sent_at: at.now,
            applied: worker.applied,
            sent: 0,
            whole: true,
            reports: worker
                .holds
                .iter()
                .filter(|(_, (order, _))| !is_mute(order))
                .map(report)
                .chain(self.disks.iter().flat_map(|disks| disks.kept(name, &worker.holds)))
                .collect(),
            leaving: Some(worker.leaving),
            busy: self.busy.get(name).copied().unwrap_or(0.0),
            lease_expired: !worker.lease.holds(at.now),
            disk: DiskHealth {
                full: self.full.contains(name),
                nearly_full: self.nearly_full.contains(name),
                stalled: self.stalled.contains(name),
            },
        }
    }

    /// What a worker says of its replicas in replicated keyspaces: as a leader it asks for a set of those that are there and
    /// have everything, as a follower it says whether its leader is there.
    fn replication(&self, name: &NodeId) -> BTreeMap<ReplicaKey, ReplicationReport> {
        let held = self.workers[name].holds.iter().filter(|(key, _)| {
            let keyspace = self.cluster.keyspaces().get(&key.keyspace);
            keyspace.is_some_and(|keyspace| keyspace.record.keyspace.ownership == Ownership::Replicated)
        });
        let there = |peer: &Peer| {
            let is_cut = |node: &NodeId| self.cut_off.contains(node) || self.mute_links.contains(node);
            let worker = self.workers.get(&peer.node).filter(|_| !is_cut(&peer.node) && !is_cut(name));
            worker.filter(|worker| worker.incarnation == peer.incarnation)
        };
        let held_there = |order: &Order, peer: &Peer| {
            let keyspace = order.replica.keyspace.clone();
            let key = ReplicaKey { keyspace, shard: peer.shard, placement: peer.placement };
            there(peer)?.holds.get(&key).map(|(_, phase)| phase)
        };
        let report = |(key, (order, phase)): (&ReplicaKey, &(Order, Phase))| {
            let peers = || order.peers.iter().filter(|peer| peer.shard == key.shard);
            let closes = order.state == ReplicaState::Unload;
            let leads = order.role == Role::Leader && (closes || *phase == Phase::Serving);
            let is_member = |peer: &&Peer| match peer.state {
                ReplicaState::Live => peer.in_sync && there(peer).is_some(),
                ReplicaState::Load => {
                    peer.role != Role::ReadReplica && held_there(order, peer) == Some(&Phase::Ready)
                }
                ReplicaState::Unload => closes && peer.in_sync && there(peer).is_some(),
                ReplicaState::UnloadFinal => false,
            };
            let itself = std::iter::once(key.placement);
            let asked: BTreeSet<_> =
                itself.clone().chain(peers().filter(is_member).map(|peer| peer.placement)).collect();
            let known =
                itself.chain(peers().filter(|peer| peer.in_sync).map(|peer| peer.placement)).collect();
            let stuck = self.unable_to_lead.get(&key.shard) == Some(&order.epoch) && leads;
            let asked = if stuck { &known } else { &asked };
            let wish = (stuck || leads && *asked != known).then(|| asked.iter().copied().collect());
            let is_away = |peer: &Peer| peer.role == Role::Leader && there(peer).is_none();
            let leader_silent = order.in_sync && peers().any(is_away);
            let has_all = |heir: &PlacementId| {
                let heir = peers().find(|peer| peer.placement == *heir);
                heir.is_some_and(|peer| is_member(&peer)) && !self.unready_heirs.contains(&key.shard)
            };
            let heir_ready = order.hand_over_to.filter(|_| leads).filter(has_all);
            let configuration = order.configuration;
            (key.clone(), ReplicationReport { configuration, log_end: 0, leader_silent, wish, heir_ready })
        };
        held.map(report).collect()
    }

    pub fn beat(&mut self, name: &NodeId) {
        let (at, beat) = (self.at(), self.next_beat(name));
        let worker = self.workers.get_mut(name).unwrap();
        let orders = match self.cluster.beat(at, beat) {
            Ok(orders) => orders,
            Err(BeatError::NotYet(_)) => {
                worker.applied = 0;
                let spec = self.cluster.nodes()[name].record.spec.clone();
                let incarnation = Some(worker.incarnation);
                self.cluster.register(at, Registration { incarnation, ..Registration::new(spec) }).unwrap();
                return;
            }
            Err(_) => return,
        };
        if let Some(left) = self.lost_answers.get_mut(name).filter(|left| **left > 0) {
            *left -= 1;
            return;
        }
        if let Some(renewal) = orders.lease {
            worker.lease.renew(renewal.sent_at, renewal.lease_ms);
        }
        if orders.base == 0 {
            let named: BTreeSet<_> = orders.changed.iter().map(|order| order.replica.clone()).collect();
            worker.holds.retain(|key, _| named.contains(key));
        }
        orders.removed.iter().for_each(|key| drop(worker.holds.remove(key)));
        for order in orders.changed {
            check_named(&self.cluster, &order);
            let phase = worker.holds.get(&order.replica).map_or(Phase::Loading, |(_, phase)| phase.clone());
            worker.holds.insert(order.replica.clone(), (order, phase));
        }
        worker.applied = orders.version;
        if let Some(disks) = &mut self.disks {
            disks.take_orders(name, &worker.holds, &orders.permissions);
        }
        if orders.may_go {
            let incarnation = worker.incarnation;
            self.workers.remove(name);
            self.cluster.leave(at, name, incarnation, crate::base::id::SessionDigest::default()).unwrap();
        }
    }

    /// Decides until nothing more is ready, and makes everything durable.
    pub fn decide(&mut self) {
        let is_at_rest = (0..1_000).any(|_| !self.decide_once());
        assert!(is_at_rest, "the cluster does not come to rest at {}: {:#?}", self.now, self.notices);
        self.check_records();
    }

    /// One decision; what it writes is stored. Returns whether another follows at once.
    pub fn decide_once(&mut self) -> bool {
        self.transactions = self.transactions.wrapping_add(1);
        let wake = self.cluster.decide(self.at(), TransactionId([self.transactions; 20]));
        self.store_outbox();
        wake.0 <= self.now
    }

    /// What was decided or commanded becomes durable.
    pub fn store_outbox(&mut self) {
        let outbox = self.cluster.take_outbox();
        self.store(outbox);
    }

    /// What is said to be durable is on the disk. How far plans have got is stored now and then only.
    fn check_records(&self) {
        let in_order = |records: &Records| {
            let mut records = Records { plans: vec![], ..records.clone() };
            records.nodes.sort_by(|a, b| a.spec.id.cmp(&b.spec.id));
            records
        };
        let plans = |records: &Records| {
            records.plans.iter().map(|plan| (plan.id, plan.changes.len())).collect::<BTreeSet<_>>()
        };
        for keyspace in self.cluster.keyspaces.by_name.values() {
            let scanned = Hosted::of(&keyspace.map);
            assert_eq!(keyspace.hosted.table(), scanned.table(), "what nodes hold, at {}", self.now);
            let unsettled = keyspace.queue.unsettled.iter().filter_map(|id| keyspace.map.shard(*id));
            assert_eq!(keyspace.queue.under_way, Counts::of(unsettled), "what is under way, at {}", self.now);
        }
        let now = self.cluster.records();
        assert!(in_order(&now) == in_order(&self.disk), "at {}: {now:#?}", self.now);
        assert_eq!(plans(&now), plans(&self.disk));
    }

    fn store(&mut self, outbox: Outbox) {
        self.notices.extend(outbox.notices.into_iter().map(|notice| notice.text));
        self.events.extend(outbox.events);
        for write in outbox.writes {
            self.writes.push(write.clone());
            match write {
                Write::Cluster(record) => self.disk.cluster = record,
                Write::Keyspace(record) => {
                    let mut stored = self.disk.keyspaces.iter_mut();
                    match stored.find(|(r, _)| r.keyspace.name == record.keyspace.name) {
                        Some(slot) => slot.0 = record,
                        None => {
                            let of = &record.keyspace;
                            let map = ShardMap::empty(of.name.clone(), of.sharding, of.partition_key);
                            self.disk.keyspaces.push((record, map));
                        }
                    }
                }
                Write::DropKeyspace(name) => self.disk.keyspaces.retain(|(r, _)| r.keyspace.name != name),
                Write::Map(diff) => {
                    let mut stored = self.disk.keyspaces.iter_mut();
                    stored.find(|(r, _)| r.keyspace.name == diff.keyspace).unwrap().1.apply(&diff).unwrap();
                }
                Write::Node(record) => {
                    self.disk.nodes.retain(|r| r.spec.id != record.spec.id);
                    self.disk.nodes.push(record);
                }
                Write::DropNode(id) => self.disk.nodes.retain(|r| r.spec.id != id),
                Write::Plan(plan) => {
                    self.disk.plans.retain(|p| p.id != plan.id);
                    self.disk.plans.push(plan);
                }
                Write::DropPlan(id) => self.disk.plans.retain(|p| p.id != id),
            }
        }
    }

    pub fn map(&self) -> &ShardMap {
        &self.cluster.keyspaces()[&name()].map
    }

    pub fn unplaced(&self) -> &[String] {
        self.cluster.keyspaces()[&name()].unplaced()
    }

    /// Live replicas on each node that has any.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for replica in self.map().shards().flat_map(|shard| shard.live()) {
            *counts.entry(replica.node.to_string()).or_default() += 1;
        }
        counts
    }

    /// Whether each shard has `replicas` live ones, one of which leads, and nothing is under way.
    pub fn is_at_rest(&self, replicas: usize) -> bool {
        let rests =
            |shard: &crate::keyspace::map::Shard| shard.is_settled() && shard.replicas.len() == replicas;
        self.map().shards().all(rests)
    }

    /// Which replicas of shards lead and serve, by what their workers say.
    fn leaders(&self) -> Leaders {
        let there = self.workers.iter().filter(|(node, _)| !self.cut_off.contains(*node));
        let held = there.flat_map(|(node, worker)| worker.holds.iter().map(move |held| (node, held)));
        let leads = held.filter(|(_, (_, (order, phase)))| {
            order.role == Role::Leader && order.granted && *phase == Phase::Serving
        });
        leads.map(|(node, (key, _))| (key.shard, (node.clone(), key.clone()))).collect()
    }

    /// Shards that a live worker really serves as leader: in exclusive mode only with a lease.
    pub fn served(&self) -> BTreeSet<ShardId> {
        let is_exclusive = |key: &ReplicaKey| {
            let keyspace = self.cluster.keyspaces().get(&key.keyspace);
            keyspace.is_some_and(|keyspace| keyspace.record.keyspace.ownership == Ownership::Exclusive)
        };
        let serves = |worker: &Worker, (key, (order, phase)): &(&ReplicaKey, &(Order, Phase))| {
            let leads = order.role == Role::Leader && order.granted && *phase == Phase::Serving;
            leads && (worker.lease.holds(Millis(self.now)) || !is_exclusive(key))
        };
        let held =
            self.workers.values().flat_map(|worker| worker.holds.iter().map(move |held| (worker, held)));
        held.filter(|(worker, held)| serves(worker, held)).map(|(_, (key, _))| key.shard).collect()
    }

    pub fn plans(&self) -> Vec<&Plan> {
        self.cluster.plans().values().collect()
    }

    pub fn plan(&self, id: PlanId) -> &Plan {
        &self.cluster.plans()[&id]
    }

    /// Starts a drain as an admin's command does.
    pub fn drain(&mut self, name: &str) {
        let at = self.at();
        let Some(state) = self.cluster.members.get_mut(&node(name)) else { return };
        let began_with = Some(state.held() as u32);
        let reason = "new disks".to_owned();
        state.record.drain =
            Some(super::super::Drain { reason, asked_ms: self.now, max_down: None, began_with });
        let record = state.record.clone();
        self.cluster.outbox.writes.push(Write::Node(record));
        self.cluster.keyspaces.plan_soon(at, 0);
        self.decide();
    }

    pub fn undrain(&mut self, name: &str) {
        let at = self.at();
        // One that ended a while ago is forgotten.
        let Some(state) = self.cluster.members.get_mut(&node(name)) else { return };
        if state.record.drain.take().is_some() {
            let record = state.record.clone();
            self.cluster.outbox.writes.push(Write::Node(record));
            self.cluster.keyspaces.plan_soon(at, 0);
            self.decide();
        }
    }
}

/// What an honest worker does next about an order.
fn next_phase(order: &Order, phase: &Phase, fails: bool) -> Phase {
    match (order.state, phase) {
        (ReplicaState::Load, Phase::Failed(failure)) if fails => {
            Phase::failed(failure.attempts + 1, failure.reason.clone())
        }
        (ReplicaState::Load, _) if fails => Phase::failed(1, "no such file".to_owned()),
        (ReplicaState::Load, phase) if !order.granted => phase.clone(),
        (ReplicaState::Load, _) => Phase::Ready,
        // What it has stored, it opens first.
        (ReplicaState::Live, Phase::Loading) if fails => Phase::failed(1, "no such file".to_owned()),
        (ReplicaState::Live, Phase::Failed(failure)) if fails => {
            Phase::failed(failure.attempts + 1, failure.reason.clone())
        }
        (ReplicaState::Live, _) if order.granted => Phase::Serving,
        (ReplicaState::Live, phase) => phase.clone(),
        (ReplicaState::Unload, Phase::Unloading) => Phase::Unloaded,
        (ReplicaState::Unload, Phase::Unloaded) => Phase::Unloaded,
        (ReplicaState::Unload, _) => Phase::Unloading,
        (ReplicaState::UnloadFinal, _) => Phase::Dropped,
    }
}

/// What the leader of a hash range has of `rate` requests a second over all of the hash space.
fn even_load(rate: Option<f64>, order: &Order) -> Option<Load> {
    let Bounds::Hashes(range) = &order.bounds else { return None };
    let part = (range.last - range.first) as f64 / u64::MAX as f64;
    let part = if order.role == Role::Leader { part } else { 0.0 };
    rate.map(|rate| Load { requests_per_s: rate * part, ..Load::default() })
}
