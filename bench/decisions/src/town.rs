//! A cluster without network or disk whose workers answer at once, and the time on a core that each call costs.

use bench_gauge::CoreTime;
use partage_core::cluster::admin::{Command, Presplit};
use partage_core::cluster::{Cluster, Moment, Records, Registration};
use partage_core::exchange::{Beat, Order, Phase, Report};
use partage_core::hash::HashFunction;
use partage_core::id::{Incarnation, ShardId, TransactionId};
use partage_core::keyspace::{Keyspace, Throttle};
use partage_core::lifecycle::ReplicaState;
use partage_core::load::Load;
use partage_core::name::{KeyspaceName, NodeId};
use partage_core::node::NodeSpec;
use partage_core::settings::Settings;
use partage_core::sharding::Sharding;
use partage_core::time::Millis;
use std::collections::BTreeMap;

/// What calls of one sort cost, in milliseconds on a core.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// The dearest.
    pub most_ms: f64,
    /// All together.
    pub sum_ms: f64,
    /// How many.
    pub calls: u32,
}

impl Cost {
    fn add(&mut self, ms: f64) {
        self.most_ms = self.most_ms.max(ms);
        self.sum_ms += ms;
        self.calls += 1;
    }
}

/// What an event costs: the decisions that follow from it, and the beats that are answered meanwhile.
#[derive(Debug, Clone, Copy, Default)]
pub struct Costs {
    /// Calls of [`Cluster::decide`].
    pub decisions: Cost,
    /// Calls of [`Cluster::beat`].
    pub beats: Cost,
}

struct Worker {
    id: NodeId,
    incarnation: Incarnation,
    sequence: u64,
    applied: u64,
    /// It neither sends nor hears anything.
    silent: bool,
    /// What it holds, with its last report; told whole to a coordinator that is new.
    reports: BTreeMap<partage_core::exchange::ReplicaKey, Report>,
    /// It has not reported to this coordinator yet.
    whole: bool,
}

/// See the module.
pub struct Town {
    cluster: Cluster,
    name: KeyspaceName,
    now: u64,
    workers: Vec<Worker>,
    transactions: u64,
    /// Workers report what each replica carries.
    loads: bool,
    costs: Costs,
}

/// Milliseconds on a core since the process began.
fn core_ms() -> f64 {
    // The kernel counts a thread's time when it leaves the core.
    std::thread::yield_now();
    CoreTime::now().total() * 1e3
}

/// What `call` costs on a core.
pub fn timed<T>(call: impl FnOnce() -> T) -> (T, f64) {
    let before = core_ms();
    let done = call();
    (done, core_ms() - before)
}

fn spec(number: u64) -> Result<NodeSpec, String> {
    let id = NodeId::new(&format!("node-{number:05}")).map_err(|error| error.to_string())?;
    let address = format!("10.{}.{}.{}:7501", number >> 16, number >> 8 & 255, number & 255);
    Ok(NodeSpec::new(id, address.as_str()))
}

impl Town {
    /// Nodes, and nothing on them, that will report `loads` or not.
    pub fn new(nodes: u64, loads: bool) -> Result<Town, String> {
        let at = Moment { now: Millis(1_000), wall_ms: 1_000 };
        let cluster = Cluster::recover(at, Settings::default(), Records::default());
        let mut town = Town {
            cluster: cluster.map_err(|error| error.to_string())?,
            name: KeyspaceName::new("measured").map_err(|error| error.to_string())?,
            now: 1_000,
            workers: Vec::new(),
            transactions: 0,
            loads,
            costs: Costs::default(),
        };
        (0..nodes).try_for_each(|number| town.join(number))?;
        town.pass(3_000)?;
        Ok(town)
    }

    /// One node more.
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
    pub fn create(&mut self, shards: u32, replicas: u32) -> Result<(), String> {
        let sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
        let throttle = Throttle { loads_per_node: u32::MAX, ..Throttle::default() };
        let keyspace =
            Box::new(Keyspace { replicas, throttle, ..Keyspace::new(self.name.clone(), sharding) });
        let (at, transaction) = (self.at(), self.transaction());
        let presplit = Presplit::HashRanges(shards);
        let command = Command::CreateKeyspace { keyspace, presplit, ahead: false };
        let answer = self.cluster.command(at, transaction, "bench", command, false);
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

    /// What was measured since it was last asked.
    pub fn take_costs(&mut self) -> Costs {
        std::mem::take(&mut self.costs)
    }

    /// These workers neither send nor hear anything from now on, or again.
    pub fn silence(&mut self, silent: bool, which: impl Fn(usize) -> bool) {
        let chosen = self.workers.iter_mut().enumerate().filter(|(index, _)| which(*index));
        chosen.for_each(|(_, worker)| worker.silent = silent);
    }

    /// The coordinator is another one, which knows what is stored. Returns what its recovery cost.
    pub fn fail_over(&mut self) -> Result<f64, String> {
        let records = self.cluster.records();
        self.now += 1_000;
        let at = self.at();
        let (cluster, ms) = timed(|| Cluster::recover(at, Settings::default(), records));
        self.cluster = cluster.map_err(|error| error.to_string())?;
        for worker in &mut self.workers {
            worker.whole = true;
            worker.applied = 0;
        }
        self.decide();
        Ok(ms)
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
            node: worker.id.clone(),
            incarnation: worker.incarnation,
            sequence: worker.sequence,
            sent_at: at.now,
            applied: worker.applied,
            whole,
            reports,
            leaving: Some(false),
            busy: 0.0,
        };
        let cluster = &mut self.cluster;
        let (answer, ms) = timed(|| cluster.beat(at, beat));
        self.costs.beats.add(ms);
        let orders = answer.map_err(|error| error.to_string())?;
        worker.applied = orders.version;
        orders.removed.iter().for_each(|key| drop(worker.reports.remove(key)));
        let reports: Vec<Report> = orders.changed.iter().map(|order| report(order, self.loads)).collect();
        worker.reports.extend(reports.iter().map(|report| (report.replica.clone(), report.clone())));
        Ok(reports)
    }

    /// Every decision that is due now.
    pub fn decide(&mut self) {
        for _ in 0..10_000 {
            let (at, transaction) = (self.at(), self.transaction());
            let cluster = &mut self.cluster;
            let (wake, ms) = timed(|| cluster.decide(at, transaction));
            self.costs.decisions.add(ms);
            drop(self.cluster.take_outbox());
            if wake.0 > self.now {
                return;
            }
        }
    }

    /// One pass over the same data: what cannot be saved by anybody who looks at everything once.
    pub fn floor_ms(&self) -> f64 {
        let count = || {
            let keyspaces = self.cluster.keyspaces().values();
            let replicas = keyspaces.flat_map(|keyspace| {
                let replicas = keyspace.map.shards().flat_map(|shard| shard.replicas.iter());
                replicas.filter(|replica| keyspace.observed.contains_key(&replica.placement))
            });
            replicas.count()
        };
        let (count, ms) = timed(count);
        std::hint::black_box(count);
        ms
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
    Report { replica: order.replica.clone(), phase, epoch: order.epoch, load, progress: 0 }
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
