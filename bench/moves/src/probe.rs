//! Follows every move from its first load on: knocks at both ends a thousand times a second, so that the time
//! without an owner is known to a millisecond, and has clients ask for the shard for as long as the load
//! lasts, so that requests do meet the hand-over.

use crate::beliefs::{Beliefs, Owner};
use crate::cluster::UnderWay;
use crate::requests::{BenchCluster, Outcome, client};
use bench_gauge::Durations;
use partage_worker::{Access, Admission, Worker};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;

/// The pause between two rounds of knocks.
const PERIOD: Duration = Duration::from_millis(1);

/// What the knocks told.
#[derive(Debug, Default)]
pub struct Seen {
    /// From the last knock that the old owner answered to the first that the new one did, for each move.
    pub gaps: Durations,
    /// Which owners answered the knocks, and when.
    pub beliefs: Beliefs,
    /// What became of requests for shards that moved.
    pub aimed: Outcome,
}

struct Move {
    to: usize,
    last_of_old: Option<u64>,
}

/// Knocks until the load ends. Every shard that moves is asked for `per_s` times a second.
pub async fn run(bench_cluster: Arc<BenchCluster>, under_way: Arc<UnderWay>, per_s: f64) -> Seen {
    let mut seen = Seen::default();
    let mut moves: BTreeMap<u64, Move> = BTreeMap::new();
    let mut owners: BTreeMap<u64, usize> = BTreeMap::new();
    let mut asked = BTreeSet::new();
    let mut clients = JoinSet::new();
    while !bench_cluster.stop.load(Ordering::Relaxed) {
        for (slot, to) in under_way.take() {
            moves.insert(slot, Move { to, last_of_old: None });
            if asked.insert(slot) {
                clients.spawn(client(bench_cluster.clone(), move || slot as usize, per_s));
            }
        }
        let workers = if moves.is_empty() { Vec::new() } else { bench_cluster.all() };
        let mut arrived = Vec::new();
        for (slot, under_way) in &mut moves {
            let from = *owners
                .entry(*slot)
                .or_insert_with(|| bench_cluster.known[*slot as usize].load(Ordering::Relaxed));
            if let Some(at) = knock(&bench_cluster, &workers, from, *slot, &mut seen.beliefs) {
                under_way.last_of_old = Some(at);
            }
            if let Some(at) = knock(&bench_cluster, &workers, under_way.to, *slot, &mut seen.beliefs) {
                if let Some(last) = under_way.last_of_old.filter(|_| from != under_way.to) {
                    seen.gaps.push(Duration::from_nanos(at.saturating_sub(last)));
                }
                arrived.push((*slot, under_way.to));
            }
        }
        for (slot, to) in arrived {
            moves.remove(&slot);
            owners.insert(slot, to);
        }
        tokio::time::sleep(PERIOD).await;
    }
    clients.join_all().await.into_iter().for_each(|outcome| seen.aimed.append(outcome));
    seen
}

/// When that node served a request for the slot, if it did.
fn knock(
    bench_cluster: &BenchCluster,
    workers: &[Worker],
    node: usize,
    slot: u64,
    beliefs: &mut Beliefs,
) -> Option<u64> {
    let worker = workers.get(node)?;
    let admission =
        worker.enter(&bench_cluster.keyspace, bench_cluster.keys.get(slot as usize)?, Access::Write);
    let Admission::Serve(guard) = admission else { return None };
    let at = bench_cluster.nanos();
    if !guard.mine_all_along() {
        return None;
    }
    beliefs.served(Owner { shard: guard.shard().0, epoch: guard.epoch().0, node }, at, at);
    Some(at)
}
