//! A cluster without network or disk: its workers are honest and answer at once.

use partage_core::base::id::{Incarnation, TransactionId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::base::settings::Settings;
use partage_core::base::time::Millis;
use partage_core::cluster::admin::{Command, Presplit};
use partage_core::cluster::{Cluster, Moment, Records};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::sharding::Sharding;
use partage_core::keyspace::{Keyspace, Throttle};
use partage_core::node::NodeSpec;
use partage_core::node::exchange::Registration;
use partage_core::node::exchange::{Beat, Order, Phase, Report};
use partage_core::node::load::Load;

/// How the keyspace is cut into shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cuts {
    /// Equal ranges of hashes.
    Hashes,
    /// Ranges of keys of 16 bytes.
    Keys,
}

struct Worker {
    id: NodeId,
    incarnation: Incarnation,
    sequence: u64,
    applied: u64,
}

/// A cluster without network or disk whose workers answer at once.
pub struct BenchCluster {
    cluster: Cluster,
    name: KeyspaceName,
    now: u64,
    workers: Vec<Worker>,
    transactions: u64,
}

impl BenchCluster {
    /// Nodes, and nothing on them.
    pub fn new(nodes: u64) -> Result<BenchCluster, String> {
        let at = Moment { now: Millis(1_000), wall_ms: 1_000 };
        let cluster = Cluster::recover(at, Settings::default(), Records::default());
        let mut bench_cluster = BenchCluster {
            cluster: cluster.map_err(|error| error.to_string())?,
            name: KeyspaceName::new("measured").map_err(|error| error.to_string())?,
            now: 1_000,
            workers: Vec::new(),
            transactions: 0,
        };
        for number in 0..nodes {
            let id = NodeId::new(&format!("node-{number:05}")).map_err(|error| error.to_string())?;
            let address = format!("10.{}.{}.{}:7501", number >> 16, number >> 8 & 255, number & 255);
            let registration = Registration::new(NodeSpec::new(id.clone(), address.as_str()));
            let welcome = bench_cluster
                .cluster
                .register(bench_cluster.at(), registration)
                .map_err(|error| error.to_string())?;
            bench_cluster.workers.push(Worker {
                id,
                incarnation: welcome.incarnation,
                sequence: 0,
                applied: 0,
            });
        }
        bench_cluster.beat_all(false)?;
        Ok(bench_cluster)
    }

    fn at(&self) -> Moment {
        Moment { now: Millis(self.now), wall_ms: self.now }
    }

    fn transaction(&mut self) -> TransactionId {
        self.transactions += 1;
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&self.transactions.to_be_bytes());
        TransactionId(bytes)
    }

    /// The keyspace with all its shards, placed nowhere.
    pub fn create(&mut self, cuts: Cuts, shards: u32, replicas: u32) -> Result<(), String> {
        let (sharding, presplit) = match cuts {
            Cuts::Hashes => {
                (Sharding::HashRange { hash: HashFunction::Xxh3_64 }, Presplit::HashRanges(shards))
            }
            Cuts::Keys => {
                let key = |number: u32| Key::new(format!("customer{number:08}").as_bytes());
                let points: Result<Vec<Key>, _> = (1..shards).map(key).collect();
                (Sharding::KeyRange, Presplit::Points(points.map_err(|error| error.to_string())?))
            }
        };
        let throttle = Throttle { loads_per_node: u32::MAX, ..Throttle::default() };
        let keyspace =
            Box::new(Keyspace { replicas, throttle, ..Keyspace::new(self.name.clone(), sharding) });
        let (at, transaction) = (self.at(), self.transaction());
        let command = Command::CreateKeyspace { keyspace, presplit, ahead: false };
        let answer = self.cluster.command(at, transaction, "bench", command);
        drop(self.cluster.take_outbox());
        answer.map(drop).map_err(|error| error.to_string())
    }

    /// Time passes until every shard is settled and every replica has said so.
    pub fn settle(&mut self) -> Result<(), String> {
        for _ in 0..100 {
            self.beat_all(false)?;
            let Some(keyspace) = self.cluster.keyspaces().get(&self.name) else { continue };
            let all_placed = keyspace.map.shards().all(|shard| shard.is_settled());
            let serves = |seen: &partage_core::cluster::Observed| *seen.phase() == Phase::Serving;
            let replicas: usize = keyspace.map.shards().map(|shard| shard.replicas.len()).sum();
            if all_placed && keyspace.observed.len() == replicas && keyspace.observed.values().all(serves) {
                return self.rest();
            }
        }
        Err("the cluster does not come to rest".to_owned())
    }

    /// A minute passes: what is remembered of fresh replicas only (whether they kill their nodes) is forgotten.
    fn rest(&mut self) -> Result<(), String> {
        for _ in 0..60 {
            self.now += 1_000;
            self.beat_all(false)?;
        }
        Ok(())
    }

    /// Every replica says how heavy it is.
    pub fn report_loads(&mut self) -> Result<(), String> {
        self.beat_all(true)
    }

    fn beat_all(&mut self, whole: bool) -> Result<(), String> {
        self.now += 250;
        for (id, incarnation, ..) in self.cluster.checks_due(Millis(self.now)) {
            self.cluster.checked_back(self.at(), &id, incarnation, true);
        }
        for index in 0..self.workers.len() {
            // What changed is said at once, as workers do.
            let reports = self.beat(index, Vec::new(), whole)?;
            if !reports.is_empty() {
                self.beat(index, reports, false)?;
            }
        }
        self.decide();
        Ok(())
    }

    fn beat(&mut self, index: usize, reports: Vec<Report>, with_loads: bool) -> Result<Vec<Report>, String> {
        let at = self.at();
        let worker = &mut self.workers[index];
        worker.sequence += 1;
        let beat = Beat {
            session: partage_core::base::id::SessionDigest::default(),
            node: worker.id.clone(),
            incarnation: worker.incarnation,
            sequence: worker.sequence,
            sent_at: at.now,
            // From nothing when loads are due: so the answer names every replica.
            applied: if with_loads { 0 } else { worker.applied },
            sent: 0,
            whole: false,
            reports,
            leaving: Some(false),
            busy: 0.0,
            lease_expired: false,
            disk: Default::default(),
        };
        let orders = self.cluster.beat(at, beat).map_err(|error| error.to_string())?;
        worker.applied = orders.version;
        Ok(orders.changed.iter().map(|order| report(order, with_loads)).collect())
    }

    fn decide(&mut self) {
        for _ in 0..1_000 {
            let (at, transaction) = (self.at(), self.transaction());
            let wake = self.cluster.decide(at, transaction);
            drop(self.cluster.take_outbox());
            if wake.0 > self.now {
                return;
            }
        }
    }
}

/// What a quick worker says of a replica right after its order.
fn report(order: &Order, with_load: bool) -> Report {
    let phase = match order.state {
        ReplicaState::Load => Phase::Ready,
        ReplicaState::Live if order.granted => Phase::Serving,
        ReplicaState::Live => Phase::Ready,
        ReplicaState::Unload => Phase::Unloaded,
        ReplicaState::UnloadFinal => Phase::Dropped,
    };
    let load =
        Load { requests_per_s: 10.0, cpu_ms_per_s: 1.0, size_bytes: 1 << 20, keys: 100, ..Load::default() };
    Report {
        replica: order.replica.clone(),
        phase,
        epoch: order.epoch,
        load: with_load.then_some(load),
        progress: 0,
        served: None,
        replication: None,
    }
}
