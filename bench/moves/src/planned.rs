//! First convergence, then a drain, a join and a leave under a steady load.

use crate::beliefs::Beliefs;
use crate::cluster::{self, Copies, UnderWay};
use crate::requests::{BenchCluster, Outcome, client, random};
use crate::{follow, probe};
use bench_gauge::{Admin, CoreTime, memory_bytes, now, option, say};
use partage_coordinator::Coordinator;
use partage_core::routing::budget::{Budget, BudgetPolicy};
use partage_wire::json::Command;
use partage_worker::{Access, Admission, Worker};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long a step may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(120);
/// Clients that share the load.
const CLIENTS: u64 = 8;

struct Sizes {
    workers: usize,
    slots: u32,
    per_s: f64,
    aimed_per_s: f64,
    copies: Copies,
}

/// Threads of that name, so that their time on a core can be told apart.
fn runtime(name: &str) -> Result<Runtime, String> {
    Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
}

/// Measures first convergence, then a drain, a join and a leave under a steady load.
pub fn run(words: &[String]) -> Result<(), String> {
    let sizes = Sizes {
        workers: option(words, "--workers", 100) as usize,
        slots: option(words, "--shards", 10_000) as u32,
        per_s: option(words, "--requests", 2_000) as f64,
        aimed_per_s: option(words, "--aimed", 200) as f64,
        copies: Copies {
            replicas: option(words, "--replicas", 1) as u32,
            durable: words.iter().any(|word| word == "--durable"),
        },
    };
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (home, field, crowd) = (runtime("coordinator")?, runtime("workers")?, runtime("clients")?);
    let coordinator = home.block_on(home.spawn(async move {
        let started = cluster::coordinator(dir.path()).await;
        started.map(|coordinator| (coordinator, dir))
    }));
    let (coordinator, dir) = coordinator.map_err(|error| error.to_string())??;
    let done = crowd.block_on(measure(&sizes, &coordinator, &field, &crowd));
    home.block_on(coordinator.stop());
    drop(dir);
    done
}

async fn measure(
    sizes: &Sizes,
    coordinator: &Coordinator,
    field: &Runtime,
    crowd: &Runtime,
) -> Result<(), String> {
    let address = coordinator.address();
    let admin = Admin::new(address);
    let under_way = Arc::new(UnderWay::default());
    cluster::create(&admin, sizes.slots, sizes.copies).await?;
    let keys = cluster::keys(sizes.slots);
    let before = CoreTime::now();
    let start = now();
    let workers = join(field, address, 0..sizes.workers, &under_way).await?;
    let joined = now();
    let bench_cluster = Arc::new(BenchCluster {
        start,
        workers: RwLock::new(workers),
        keys,
        known: (0..sizes.slots).map(|_| AtomicUsize::new(usize::MAX)).collect(),
        maps: tokio::sync::watch::Sender::new(0),
        budget: std::sync::Mutex::new(Budget::new(BudgetPolicy::default())),
        keyspace: cluster::keyspace()?,
        stop: AtomicBool::new(true),
    });
    converge(&bench_cluster).await?;
    let converged = now();
    let after = CoreTime::now();
    say(&format!(
        "first convergence: {} shards on {} workers lead and serve {:.2} s after the first worker began to \
         register ({:.2} s after the last had), core-seconds: coordinator {:.2}, workers {:.2}; \
         resident {} MiB in all",
        sizes.slots,
        sizes.workers,
        converged.duration_since(start).as_secs_f64(),
        converged.duration_since(joined).as_secs_f64(),
        after.since(&before, "coordinator"),
        after.since(&before, "workers"),
        memory_bytes("VmRSS") >> 20,
    ));
    under_way.take();
    crowd.spawn(follow::run(bench_cluster.clone(), address));
    let mut all = Beliefs::default();
    let mut stage = Stage { bench_cluster, under_way, admin, address, field, crowd, sizes };
    let rest = stage.under_load("nothing moves", async |_| {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(())
    });
    all.append(&rest.await?);
    all.append(&stage.under_load("drain 1", drain).await?);
    all.append(&stage.under_load("join 1", join_one).await?);
    all.append(&stage.under_load("leave 1", leave).await?);
    let overlaps = all.overlaps();
    say(&format!("two owners at once: {} times among {} tenures", overlaps.len(), all.iter().count()));
    overlaps.iter().take(5).for_each(|overlap| say(&format!("  {overlap:?}")));
    match overlaps.is_empty() {
        true => Ok(()),
        false => Err("a shard had two owners at once".to_owned()),
    }
}

async fn join(
    field: &Runtime,
    coordinator: SocketAddr,
    numbers: std::ops::Range<usize>,
    under_way: &Arc<UnderWay>,
) -> Result<Vec<Worker>, String> {
    let starts: Vec<_> =
        numbers.map(|node| field.spawn(cluster::worker(node, coordinator, under_way.clone()))).collect();
    let mut workers = Vec::new();
    for start in starts {
        workers.push(start.await.map_err(|error| error.to_string())??);
    }
    Ok(workers)
}

/// Waits until every slot is served by a node, and remembers by which.
async fn converge(bench_cluster: &BenchCluster) -> Result<(), String> {
    let mut left: Vec<usize> = (0..bench_cluster.keys.len()).collect();
    let end = now() + PATIENCE;
    let workers = bench_cluster.all();
    while !left.is_empty() {
        // A node that has a replica of a slot is asked for the slot while it is missing: replicas know their slots.
        let mut served = vec![usize::MAX; bench_cluster.keys.len()];
        for (node, worker) in workers.iter().enumerate() {
            for replica in worker.replicas() {
                if let partage_worker::Bounds::Slot(slot) = replica.assignment.bounds {
                    served[slot.number() as usize] = node;
                }
            }
        }
        left.retain(|slot| {
            let node = served[*slot];
            let Some(worker) = workers.get(node) else { return true };
            let admission = worker.enter(&bench_cluster.keyspace, &bench_cluster.keys[*slot], Access::Write);
            let serves = matches!(admission, Admission::Serve(_));
            if serves {
                bench_cluster.known[*slot].store(node, Ordering::Relaxed);
            }
            !serves
        });
        if now() > end {
            return Err(format!("{} slots are not served after {PATIENCE:?}", left.len()));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

struct Stage<'a> {
    bench_cluster: Arc<BenchCluster>,
    under_way: Arc<UnderWay>,
    admin: Admin,
    address: SocketAddr,
    field: &'a Runtime,
    crowd: &'a Runtime,
    sizes: &'a Sizes,
}

impl Stage<'_> {
    /// Lets `step` happen under load, says what it did to the requests.
    async fn under_load<'s, F>(
        &'s mut self,
        what: &str,
        step: impl FnOnce(&'s Stage<'s>) -> F,
    ) -> Result<Beliefs, String>
    where
        F: Future<Output = Result<(), String>>,
    {
        let stage: &'s Stage<'s> = self;
        stage.bench_cluster.stop.store(false, Ordering::Relaxed);
        let (per_s, slots) = (stage.sizes.per_s / CLIENTS as f64, stage.bench_cluster.keys.len());
        let clients: Vec<_> = (1..=CLIENTS)
            .map(|seed| stage.crowd.spawn(client(stage.bench_cluster.clone(), random(seed, slots), per_s)))
            .collect();
        let (bench_cluster, under_way) = (stage.bench_cluster.clone(), stage.under_way.clone());
        let prober = stage.crowd.spawn(probe::run(bench_cluster, under_way, stage.sizes.aimed_per_s));
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (begin, before) = (now(), CoreTime::now());
        let done = step(stage).await;
        let (end, after) = (now(), CoreTime::now());
        tokio::time::sleep(Duration::from_millis(500)).await;
        stage.bench_cluster.stop.store(true, Ordering::Relaxed);
        let mut outcome = Outcome::default();
        for client in clients {
            outcome.append(client.await.map_err(|error| error.to_string())?);
        }
        let mut seen = prober.await.map_err(|error| error.to_string())?;
        done?;
        say(&format!("{what}: {:.2} s", end.duration_since(begin).as_secs_f64()));
        outcome.tell("any shard");
        if !seen.gaps.is_empty() {
            seen.aimed.tell("shards that move");
            say(&format!("  without an owner, {} moves: {}", seen.gaps.len(), seen.gaps.line()));
        }
        say(&format!(
            "  core-seconds: coordinator {:.2}, workers {:.2}, clients {:.2}",
            after.since(&before, "coordinator"),
            after.since(&before, "workers"),
            after.since(&before, "clients"),
        ));
        outcome.beliefs.append(&seen.aimed.beliefs);
        outcome.beliefs.append(&seen.beliefs);
        Ok(outcome.beliefs)
    }

    /// Waits until that worker has as many replicas as `enough` says.
    async fn until_holds(&self, node: usize, enough: impl Fn(usize) -> bool) -> Result<(), String> {
        let end = now() + PATIENCE;
        while now() < end {
            let worker = self.bench_cluster.worker(node).ok_or("there is no such worker")?;
            let serving = worker.replicas().len();
            if enough(serving) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(format!("worker {} did not get there in {PATIENCE:?}", cluster::name(node)))
    }
}

async fn drain(stage: &Stage<'_>) -> Result<(), String> {
    let (node, reason) = (cluster::name(7), "measured".to_owned());
    stage.admin.command(Command::DrainNode { node, reason, max_down: None }).await?;
    stage.until_holds(7, |replicas| replicas == 0).await
}

async fn join_one(stage: &Stage<'_>) -> Result<(), String> {
    let number = stage.bench_cluster.all().len();
    let share = stage.bench_cluster.keys.len() / number;
    let joined = join(stage.field, stage.address, number..number + 1, &stage.under_way).await?;
    stage.bench_cluster.workers.write().unwrap_or_else(|poisoned| poisoned.into_inner()).extend(joined);
    // A tenth below its share is within the tolerance that a newcomer is filled up to.
    stage.until_holds(number, |replicas| replicas >= share - share / 10).await
}

async fn leave(stage: &Stage<'_>) -> Result<(), String> {
    let worker = stage.bench_cluster.worker(11).ok_or("there is no such worker")?;
    worker.leave(PATIENCE).await.map_err(|error| error.to_string())
}
