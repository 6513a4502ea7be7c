//! A steady load of requests, each to the owner of a random shard, as a client with a map would make it.
//!
//! Clients share a map that is pushed to them as to routers ([`crate::follow`]). A client asks where the map
//! says; when told "she has it" it goes there, when told "soon" it is held for a moment by the worker itself, when
//! told "I do not know" it looks at the map again. After [`HOPS`] hops or [`PATIENCE`] the request has failed.

use crate::beliefs::{Beliefs, Owner};
use crate::cluster;
use crate::now;
use bench_gauge::Durations;
use partage_worker::{Access, Entrance, KeyspaceName, Worker};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

/// Hops of one request at most.
const HOPS: usize = 8;
/// How long a request may take at most.
const PATIENCE: Duration = Duration::from_secs(5);
/// What a client waits when a worker cannot say who has the shard.
const REST: Duration = Duration::from_millis(1);

/// What all requests share.
pub struct Town {
    /// Begin of true time.
    pub start: Instant,
    /// By number; those that have left stay and answer that they have nothing.
    pub workers: RwLock<Vec<Worker>>,
    /// A key for each slot.
    pub keys: Vec<Vec<u8>>,
    /// Where each slot is, by the map that was pushed last.
    pub known: Vec<AtomicUsize>,
    /// The keyspace.
    pub keyspace: KeyspaceName,
    /// Ends the load.
    pub stop: AtomicBool,
}

/// What came of some requests.
#[derive(Debug, Default)]
pub struct Outcome {
    /// From the moment at which each was due until it was answered.
    pub stalls: Durations,
    /// From the moment at which each was really sent.
    pub answers: Durations,
    /// Answered by nobody.
    pub failed: Vec<String>,
    /// Asked more than one node, or waited.
    pub detoured: usize,
    /// Who served.
    pub beliefs: Beliefs,
}

impl Outcome {
    /// All of another.
    pub fn append(&mut self, other: Outcome) {
        self.stalls.append(other.stalls);
        self.answers.append(other.answers);
        self.failed.extend(other.failed);
        self.detoured += other.detoured;
        self.beliefs.append(&other.beliefs);
    }
}

impl Town {
    /// Nanoseconds of true time.
    pub fn nanos(&self) -> u64 {
        now().duration_since(self.start).as_nanos() as u64
    }

    /// The worker of that number.
    pub fn worker(&self, node: usize) -> Option<Worker> {
        self.workers.read().unwrap_or_else(|poisoned| poisoned.into_inner()).get(node).cloned()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Worker> {
        self.workers.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

/// One client: `per_s` requests a second, whatever the answers take, until told to stop.
pub async fn client(town: Arc<Town>, seed: u64, per_s: f64) -> Outcome {
    let mut outcome = Outcome::default();
    let mut random = seed;
    let start = now();
    let mut sent = 0_u32;
    while !town.stop.load(Ordering::Relaxed) {
        let due = start + Duration::from_secs_f64(f64::from(sent) / per_s);
        tokio::time::sleep_until(due.into()).await;
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let slot = (random >> 33) as usize % town.keys.len();
        let begun = now();
        request(&town, slot, &mut outcome).await;
        let done = now();
        outcome.stalls.push(done.saturating_duration_since(due));
        outcome.answers.push(done.duration_since(begun));
        sent += 1;
    }
    outcome
}

async fn request(town: &Town, slot: usize, outcome: &mut Outcome) {
    let end = now() + PATIENCE;
    let mut node = town.known[slot].load(Ordering::Relaxed);
    let mut last = "nobody was asked".to_owned();
    for hop in 0..HOPS {
        let Some(worker) = town.worker(node) else { break };
        let hold = end.saturating_duration_since(now());
        let entrance = worker.enter_or_wait(&town.keyspace, &town.keys[slot], Access::Write, hold).await;
        match entrance {
            Entrance::Serve(guard) => {
                let first = town.nanos();
                // The work of a request: another task may run meanwhile, and the shard may be asked for.
                tokio::task::yield_now().await;
                let last_moment = town.nanos();
                if guard.mine_all_along() {
                    let owner = Owner { shard: guard.shard().0, epoch: guard.epoch().0, node };
                    outcome.beliefs.served(owner, first, last_moment);
                    outcome.detoured += usize::from(hop > 0);
                    return;
                }
                last = format!("{}: the lease ran out during the work", worker.node());
            }
            Entrance::Elsewhere { node: other, .. } => {
                last = format!("{}: {other} has it", worker.node());
                node = cluster::number(other.as_str()).unwrap_or(node);
            }
            other => {
                last = format!("{}: {other:?}", worker.node());
                tokio::time::sleep(REST).await;
                node = town.known[slot].load(Ordering::Relaxed);
            }
        }
        if now() > end {
            break;
        }
    }
    outcome.failed.push(format!("slot {slot}: {last}"));
}
