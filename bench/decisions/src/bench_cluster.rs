//! A cluster without network or disk whose workers answer at once, and the time on a core that each call costs.

use partage_clock::thread_cpu;
use partage_core::base::id::{Incarnation, ShardId, TransactionId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::base::settings::Settings;
use partage_core::base::time::Millis;
use partage_core::cluster::admin::{Command, Presplit, SplitAt};
use partage_core::cluster::{Cluster, Moment, Records};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::sharding::Sharding;
use partage_core::keyspace::{Keyspace, Throttle};
use partage_core::node::NodeSpec;
use partage_core::node::exchange::Registration;
use partage_core::node::exchange::{Beat, Order, Phase, ReplicaKey, Report};
use partage_core::node::load::Load;
use std::collections::BTreeMap;

/// What each call cost, in milliseconds on a core, by event and in their order.
pub type Calls = BTreeMap<String, Vec<f64>>;

/// Beats between two looks of the coordinator, as they come in batches.
const BATCH: usize = 64;

/// How large the cluster is, and of which kind.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// The number of nodes in the cluster.
    pub nodes: u64,
    /// The shards of its one keyspace.
    pub shards: u64,
    /// The number of replicas of each shard.
    pub replicas: u64,
    /// Workers report what each replica carries.
    pub loads: bool,
    /// A node loads at most so many replicas at once as a keyspace has it by default; else any number.
    pub throttled: bool,
}

struct Worker {
    id: NodeId,
    incarnation: Incarnation,
    sequence: u64,
    applied: u64,
    /// It neither sends nor hears anything.
    silent: bool,
    /// What it holds, with its last report; told whole to a coordinator that is new.
    reports: BTreeMap<ReplicaKey, Report>,
    /// It has not reported to this coordinator yet.
    whole: bool,
}

/// A cluster without network or disk whose workers answer at once, and the measured cost of each call to it.
pub struct BenchCluster {
    cluster: Cluster,
    name: KeyspaceName,
    now: u64,
    workers: Vec<Worker>,
    transactions: u64,
    size: Size,
    /// What happens at present; nothing is noted while that is empty.
    event: String,
    calls: Calls,
}

/// What `call` costs on a core, in milliseconds.
pub fn timed<T>(call: impl FnOnce() -> T) -> (T, f64) {
    let before = thread_cpu();
    let done = call();
    (done, thread_cpu().saturating_sub(before).as_secs_f64() * 1e3)
}

fn spec(number: u64) -> Result<NodeSpec, String> {
    let id = NodeId::new(&format!("node-{number:05}")).map_err(|error| error.to_string())?;
    let address = format!("10.{}.{}.{}:7501", number >> 16, number >> 8 & 255, number & 255);
    Ok(NodeSpec::new(id, address.as_str()))
}

impl BenchCluster {
    /// Nodes, and nothing on them.
    pub fn new(size: Size) -> Result<BenchCluster, String> {
        let at = Moment { now: Millis(1_000), wall_ms: 1_000 };
        let cluster = Cluster::recover(at, Settings::default(), Records::default());
        let mut bench_cluster = BenchCluster {
            cluster: cluster.map_err(|error| error.to_string())?,
            name: KeyspaceName::new("measured").map_err(|error| error.to_string())?,
            now: 1_000,
            workers: Vec::new(),
            transactions: 0,
            size,
            event: String::new(),
            calls: Calls::new(),
        };
        (0..size.nodes).try_for_each(|number| bench_cluster.join(number))?;
        bench_cluster.pass(3_000)?;
        Ok(bench_cluster)
    }

    /// Registers one more node, with the number `number`.
    pub fn join(&mut self, number: u64) -> Result<(), String> {
        let spec = spec(number)?;
        let id = spec.id.clone();
        let registration = Registration::new(spec);
        let welcome = self.cluster.register(self.at(), registration).map_err(|error| error.to_string())?;
        self.workers.push(Worker {
            id,
            incarnation: welcome.incarnation,
            sequence: 0,
            applied: 0,
            silent: false,
            reports: BTreeMap::new(),
            whole: true,
        });
        Ok(())
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
    pub fn create(&mut self) -> Result<(), String> {
        let Size { shards, replicas, throttled, .. } = self.size;
        let (shards, replicas) = (shards as u32, replicas as u32);
        let sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
        let any = Throttle { loads_per_node: u32::MAX, ..Throttle::default() };
        let throttle = if throttled { Throttle::default() } else { any };
        let keyspace =
            Box::new(Keyspace { replicas, throttle, ..Keyspace::new(self.name.clone(), sharding) });
        let (at, transaction) = (self.at(), self.transaction());
        let presplit = Presplit::HashRanges(shards);
        let command = Command::CreateKeyspace { keyspace, presplit, ahead: false };
        let answer = self.cluster.command(at, transaction, "bench", command);
        drop(self.cluster.take_outbox());
        answer.map(drop).map_err(|error| error.to_string())
    }

    /// Time passes until every replica serves.
    pub fn settle(&mut self) -> Result<(), String> {
        for _ in 0..1_000 {
            self.pass(250)?;
            let Some(keyspace) = self.cluster.keyspaces().get(&self.name) else { continue };
            let serves = |seen: &partage_core::cluster::Observed| *seen.phase() == Phase::Serving;
            let replicas: usize = keyspace.map.shards().map(|shard| shard.replicas.len()).sum();
            let settled = keyspace.map.shards().all(|shard| shard.is_settled());
            if settled && keyspace.observed.len() == replicas && keyspace.observed.values().all(serves) {
                return Ok(());
            }
        }
        Err("the cluster does not come to rest".to_owned())
    }

    /// What is measured from now on belongs to this; to nothing if it has no name.
    pub fn begin(&mut self, event: &str) {
        self.event = event.to_owned();
    }

    /// All that was measured.
    pub fn into_calls(self) -> Calls {
        self.calls
    }

    /// Notes what a call cost that is one of `kind`, or the decision itself if that is empty.
    fn note(&mut self, kind: &str, ms: f64) {
        if !self.event.is_empty() {
            self.calls.entry(format!("{kind}{}", self.event)).or_default().push(ms);
        }
    }

    fn note_as(&mut self, event: &str, ms: f64) {
        self.calls.entry(event.to_owned()).or_default().push(ms);
    }

    /// These workers neither send nor hear anything from now on, or again.
    pub fn silence(&mut self, silent: bool, which: impl Fn(usize) -> bool) {
        let chosen = self.workers.iter_mut().enumerate().filter(|(index, _)| which(*index));
        chosen.for_each(|(_, worker)| worker.silent = silent);
    }

    /// The coordinator is another one, which knows what is stored. What its recovery costs is noted as that event.
    pub fn fail_over(&mut self, event: &str) -> Result<(), String> {
        let records = self.cluster.records();
        self.now += 1_000;
        let at = self.at();
        let (cluster, ms) = timed(|| Cluster::recover(at, Settings::default(), records));
        self.note_as(event, ms);
        self.cluster = cluster.map_err(|error| error.to_string())?;
        for worker in &mut self.workers {
            worker.whole = true;
            worker.applied = 0;
        }
        self.decide();
        Ok(())
    }

    /// A person asks what would follow from a drain: the copy of the cluster is noted as the first event, what is done
    /// with it as the second.
    pub fn foresee(&mut self, events: [&str; 2]) -> Result<(), String> {
        let (at, transaction) = (self.at(), self.transaction());
        let node = self.workers.first().map(|worker| worker.id.clone()).ok_or("there is no node")?;
        let (copy, ms) = timed(|| self.cluster.clone());
        self.note_as(events[0], ms);
        let command = Command::DrainNode { node, reason: "measured".to_owned(), max_down: None };
        let (answer, ms) = timed(|| copy.dry_run(at, transaction, "bench", command));
        self.note_as(events[1], ms);
        answer.map(drop).map_err(|error| error.to_string())
    }

    /// A person releases the brake. What the command costs is noted as that event.
    pub fn release_brake(&mut self, event: &str) -> Result<(), String> {
        let (at, transaction) = (self.at(), self.transaction());
        let cluster = &mut self.cluster;
        let (answer, ms) = timed(|| cluster.command(at, transaction, "bench", Command::ReleaseBrake));
        self.note_as(event, ms);
        answer.map_err(|error| error.to_string())?;
        self.decide();
        Ok(())
    }

    /// A person splits one shard. What the command costs is noted as that event.
    pub fn split_one(&mut self, event: &str) -> Result<(), String> {
        let (at, transaction) = (self.at(), self.transaction());
        let keyspace = self.cluster.keyspaces().get(&self.name).ok_or("there is no keyspace")?;
        let shard = keyspace.map.shards().next().ok_or("there is no shard")?.id;
        let command = Command::SplitShard { keyspace: self.name.clone(), shard, at: SplitAt::Middle };
        let cluster = &mut self.cluster;
        let (answer, ms) = timed(|| cluster.command(at, transaction, "bench", command));
        self.note_as(event, ms);
        answer.map_err(|error| error.to_string())?;
        self.decide();
        Ok(())
    }

    /// Every worker comes back to the coordinator that is new.
    pub fn come_back(&mut self) -> Result<(), String> {
        let at = self.at();
        for number in 0..self.workers.len() {
            let spec = spec(number as u64)?;
            let incarnation = Some(self.workers[number].incarnation);
            let answer = self.cluster.register(at, Registration { incarnation, ..Registration::new(spec) });
            answer.map_err(|error| error.to_string())?;
        }
        self.pass(250)
    }

    /// Time passes, with beats every 250 ms and every decision that falls due.
    pub fn pass(&mut self, ms: u64) -> Result<(), String> {
        let end = self.now + ms;
        while self.now < end {
            self.now += 250;
            let at = self.at();
            for (id, incarnation, ..) in self.cluster.checks_due(at.now) {
                let silent = self.workers.iter().any(|worker| worker.id == id && worker.silent);
                self.cluster.checked_back(at, &id, incarnation, !silent);
            }
            for index in 0..self.workers.len() {
                if !self.workers[index].silent {
                    self.beat_twice(index)?;
                }
                if index % BATCH == BATCH - 1 || index + 1 == self.workers.len() {
                    self.grant();
                }
            }
            self.decide();
        }
        Ok(())
    }

    /// What has changed is said at once, as workers do.
    fn beat_twice(&mut self, index: usize) -> Result<(), String> {
        let worker = &mut self.workers[index];
        let whole = std::mem::take(&mut worker.whole);
        let reports = if whole { worker.reports.values().cloned().collect() } else { Vec::new() };
        let reports = self.beat(index, reports, whole)?;
        if !reports.is_empty() {
            self.beat(index, reports, false)?;
        }
        Ok(())
    }

    fn beat(&mut self, index: usize, reports: Vec<Report>, whole: bool) -> Result<Vec<Report>, String> {
        let at = self.at();
        let worker = &mut self.workers[index];
        worker.sequence += 1;
        let beat = Beat {
            session: partage_core::base::id::SessionDigest::default(),
            node: worker.id.clone(),
            incarnation: worker.incarnation,
            sequence: worker.sequence,
            sent_at: at.now,
            applied: worker.applied,
            sent: 0,
            whole,
            reports,
            leaving: Some(false),
            busy: 0.0,
            lease_expired: false,
            disk: Default::default(),
        };
        let cluster = &mut self.cluster;
        let (answer, ms) = timed(|| cluster.beat(at, beat));
        self.note("beats: ", ms);
        let worker = &mut self.workers[index];
        let orders = answer.map_err(|error| error.to_string())?;
        worker.applied = orders.version;
        orders.removed.iter().for_each(|key| drop(worker.reports.remove(key)));
        let reports: Vec<Report> =
            orders.changed.iter().map(|order| report(order, self.size.loads)).collect();
        worker.reports.extend(reports.iter().map(|report| (report.replica.clone(), report.clone())));
        Ok(reports)
    }

    /// What follows from a batch of beats at once.
    fn grant(&mut self) {
        let (at, cluster) = (self.at(), &mut self.cluster);
        let (_, ms) = timed(|| cluster.grant_before_commit(at));
        self.note("grants: ", ms);
    }

    /// Every decision that is due now.
    pub fn decide(&mut self) {
        for _ in 0..10_000 {
            let (at, transaction) = (self.at(), self.transaction());
            let cluster = &mut self.cluster;
            let (wake, ms) = timed(|| cluster.decide(at, transaction));
            self.note("", ms);
            drop(self.cluster.take_outbox());
            if wake.0 > self.now {
                return;
            }
        }
    }

    /// One look at every replica, node by node, as beats name them: code that looks at everything once cannot cost less, with
    /// what the caches of the machine do at that size.
    pub fn look_once(&mut self, event: &str) {
        let is_known = |key: &ReplicaKey| {
            let keyspace = self.cluster.keyspaces().get(&key.keyspace)?;
            keyspace.map.shard(key.shard)?.replica(key.placement)?;
            keyspace.observed.get(&key.placement)
        };
        let count = || {
            let keys = self.workers.iter().flat_map(|worker| worker.reports.keys());
            keys.filter(|key| is_known(key).is_some()).count()
        };
        let (count, ms) = timed(count);
        std::hint::black_box(count);
        self.note_as(event, ms);
    }
}

/// What a quick worker says of a replica right after its order.
fn report(order: &Order, loads: bool) -> Report {
    let phase = match order.state {
        ReplicaState::Load => Phase::Ready,
        ReplicaState::Live if order.granted => Phase::Serving,
        ReplicaState::Live => Phase::Ready,
        ReplicaState::Unload => Phase::Unloaded,
        ReplicaState::UnloadFinal => Phase::Dropped,
    };
    let load = loads.then(|| load(order.replica.shard));
    Report {
        replica: order.replica.clone(),
        phase,
        epoch: order.epoch,
        load,
        progress: 0,
        served: None,
        replication: None,
    }
}

/// What each replica of a shard carries: up to three times as much as another's, by its id.
fn load(shard: ShardId) -> Load {
    let part = (shard.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as f64 / 1_024.0;
    Load {
        requests_per_s: 5.0 + 10.0 * part,
        cpu_ms_per_s: 2.0 + 4.0 * part,
        size_bytes: (16 << 20) + (part * f64::from(32 << 20)) as u64,
        ..Load::default()
    }
}
