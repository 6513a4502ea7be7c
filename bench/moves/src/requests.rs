//! A steady load of requests, each to the owner of a shard, as a client with a map would make it.
//!
//! Clients share a map that is pushed to them as to routers ([`crate::follow`]), and each request is retried by
//! the routers' own machine: it follows the first hint, then rests until a new map comes or the rest is over.
//! A request that comes to the next owner too early is held there, by the worker itself.

use crate::beliefs::{Beliefs, Owner};
use crate::cluster;
use bench_gauge::{Durations, now, say};
use partage_core::base::time::Millis;
use partage_core::routing::budget::Budget;
use partage_core::routing::retry::{Action, Attempts, Event, RequestTraits, RetryPolicy};
use partage_worker::{Access, Admission, KeyspaceName, Worker};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long a worker may hold a request, as in the SDK's HTTP service.
const HOLD: Duration = Duration::from_secs(5);

/// What all requests share.
pub struct BenchCluster {
    /// Begin of true time.
    pub start: Instant,
    /// By number; those that have left stay and answer that they have nothing.
    pub workers: RwLock<Vec<Worker>>,
    /// A key for each slot.
    pub keys: Vec<Vec<u8>>,
    /// Where each slot is, by the map that was pushed last.
    pub known: Vec<AtomicUsize>,
    /// Counts the maps that were pushed.
    pub maps: watch::Sender<u64>,
    /// What retries are paid from: one budget, as in one router.
    pub budget: Mutex<Budget>,
    /// The keyspace that all requests are for.
    pub keyspace: KeyspaceName,
    /// When this is true, the clients stop.
    pub stop: AtomicBool,
}

/// What came of some requests.
#[derive(Debug, Default)]
pub struct Outcome {
    /// From the moment at which each was due until it was answered.
    pub stalls: Durations,
    /// From the moment at which each was really sent.
    pub answers: Durations,
    /// For each request that no worker served: its slot, and what was said last.
    pub failed: Vec<String>,
    /// Requests that were served at the second attempt or a later one.
    pub detoured: usize,
    /// Which owners served the requests, and when.
    pub beliefs: Beliefs,
}

impl Outcome {
    /// Adds what came of other requests to this.
    pub fn append(&mut self, other: Outcome) {
        self.stalls.append(other.stalls);
        self.answers.append(other.answers);
        self.failed.extend(other.failed);
        self.detoured += other.detoured;
        self.beliefs.append(&other.beliefs);
    }

    /// Says how requests for `what` fared.
    pub fn tell(&mut self, what: &str) {
        let (failed, all) = (self.failed.len(), self.answers.len());
        say(&format!("  requests for {what}: {failed} failed of {all}, {} took a detour", self.detoured));
        self.failed.iter().take(5).for_each(|failure| say(&format!("    {failure}")));
        say(&format!("    answer after sending: {}", self.answers.line()));
        say(&format!("    answer after due:     {}", self.stalls.line()));
    }
}

impl BenchCluster {
    /// Nanoseconds of true time.
    pub fn nanos(&self) -> u64 {
        now().duration_since(self.start).as_nanos() as u64
    }

    fn millis(&self) -> Millis {
        Millis(self.nanos() / 1_000_000)
    }

    /// The worker of that number.
    pub fn worker(&self, node: usize) -> Option<Worker> {
        self.workers.read().unwrap_or_else(|poisoned| poisoned.into_inner()).get(node).cloned()
    }

    /// All workers, by their numbers.
    pub fn all(&self) -> Vec<Worker> {
        self.workers.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

/// Random slots of `count`.
pub fn random(seed: u64, count: usize) -> impl FnMut() -> usize + Send {
    let mut random = seed;
    move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % count
    }
}

/// One client: `per_s` requests a second for what `slot` gives, whatever the answers take, until told to stop.
pub async fn client(
    bench_cluster: Arc<BenchCluster>,
    mut slot: impl FnMut() -> usize,
    per_s: f64,
) -> Outcome {
    let mut outcome = Outcome::default();
    let start = now();
    let mut sent = 0_u32;
    while !bench_cluster.stop.load(Ordering::Relaxed) {
        let due = start + Duration::from_secs_f64(f64::from(sent) / per_s);
        tokio::time::sleep_until(due.into()).await;
        let begun = now();
        request(&bench_cluster, slot(), &mut outcome).await;
        let done = now();
        outcome.stalls.push(done.saturating_duration_since(due));
        outcome.answers.push(done.duration_since(begun));
        sent += 1;
    }
    outcome
}

async fn request(bench_cluster: &BenchCluster, slot: usize, outcome: &mut Outcome) {
    let (policy, traits) =
        (RetryPolicy::default(), RequestTraits { idempotent: true, hedged: false, replayable: true });
    let mut attempts = Attempts::begin(bench_cluster.millis(), &policy, traits, slot as u64);
    bench_cluster.budget.lock().unwrap_or_else(PoisonError::into_inner).earn(1);
    let step = |attempts: &mut Attempts, event| {
        let mut budget = bench_cluster.budget.lock().unwrap_or_else(PoisonError::into_inner);
        attempts.step(bench_cluster.millis(), event, &policy, &mut budget)
    };
    let mut node = bench_cluster.known[slot].load(Ordering::Relaxed);
    loop {
        let mut seen = *bench_cluster.maps.borrow();
        let (event, said) = ask(bench_cluster, slot, node, &mut outcome.beliefs).await;
        let hint = match &event {
            Asked::Served => {
                outcome.detoured += usize::from(attempts.tries() > 1);
                return;
            }
            Asked::Refused(_, hint) => *hint,
        };
        let Asked::Refused(event, _) = event else { return };
        let mut action = step(&mut attempts, event);
        while let Action::Rest { until } = action {
            let rest = Duration::from_millis(until.since(bench_cluster.millis()));
            let mut maps = bench_cluster.maps.subscribe();
            // Either way the rest is over.
            let _ = tokio::time::timeout(rest, maps.wait_for(|maps| *maps != seen)).await;
            seen = *maps.borrow();
            action = step(&mut attempts, Event::Woke);
        }
        node = match (action, hint) {
            (Action::AskHinted, Some(hint)) => hint,
            (Action::Ask, _) => bench_cluster.known[slot].load(Ordering::Relaxed),
            _ => {
                outcome.failed.push(format!("slot {slot}: {said}; {action:?}"));
                return;
            }
        };
    }
}

enum Asked {
    Served,
    /// Why the node did not serve it, and the node that it named instead, if it named one.
    Refused(Event, Option<usize>),
}

/// Asks one node; also gives what it said, for people.
async fn ask(
    bench_cluster: &BenchCluster,
    slot: usize,
    node: usize,
    beliefs: &mut Beliefs,
) -> (Asked, String) {
    let Some(worker) = bench_cluster.worker(node) else {
        return (Asked::Refused(Event::Nobody, None), "no replica leads it".to_owned());
    };
    match worker.enter_or_wait(&bench_cluster.keyspace, &bench_cluster.keys[slot], Access::Write, HOLD).await
    {
        Admission::Serve(guard) => {
            let first = bench_cluster.nanos();
            // The work of a request: another task may run meanwhile, and the shard may be asked for.
            tokio::task::yield_now().await;
            let last = bench_cluster.nanos();
            if !guard.mine_all_along() {
                let said = format!("{}: the lease ran out during the work", worker.node());
                return (Asked::Refused(Event::Broken, None), said);
            }
            let owner = Owner { shard: guard.shard().0, epoch: guard.epoch().0, node };
            beliefs.served(owner, first, last);
            (Asked::Served, String::new())
        }
        Admission::Elsewhere { node: other, .. } => {
            let hint = cluster::number(other.as_str()).filter(|hint| *hint != node);
            let said = format!("{}: {other} has it", worker.node());
            (Asked::Refused(Event::Misdirected { hinted: hint.is_some() }, hint), said)
        }
        other => {
            let said = format!("{}: {other:?}", worker.node());
            let event = match other {
                Admission::Soon | Admission::Lapsed => Event::NotReady { after_ms: 0 },
                _ => Event::Misdirected { hinted: false },
            };
            (Asked::Refused(event, None), said)
        }
    }
}
