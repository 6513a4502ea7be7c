//! What is written down after each event.

use super::layout::{Layout, Owners};
use super::simulated_cluster::SimulatedCluster;
use partage_core::keyspace::key::Key;

/// Keys, and what they weigh together.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// The number of keys.
    pub keys: u64,
    /// Their load, in the unit of the sample.
    pub weight: f64,
    /// What has to be copied when they move, in bytes.
    pub bytes: u64,
}

impl Load {
    pub(super) fn add(&mut self, keys: u64, weight: f64, bytes: u64) {
        self.keys += keys;
        self.weight += weight;
        self.bytes += bytes;
    }

    /// Keys, weight and bytes, in this order.
    fn figures(&self) -> [f64; 3] {
        [self.keys as f64, self.weight, self.bytes as f64]
    }
}

/// How even nodes are, each measured by its capacity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Balance {
    /// The fullest node over the mean; 1 is even. 1 as well when there is no load at all.
    pub max_over_mean: f64,
    /// Standard deviation over the mean; 0 is even.
    pub variation: f64,
}

/// How even nodes are in keys, in weight and in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Balances {
    /// Each key counts 1.
    pub keys: Balance,
    /// Each key counts its load.
    pub weight: Balance,
    /// Each key counts its bytes.
    pub bytes: Balance,
}

/// How much an event moved, of what was there before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moved {
    /// What changed its node.
    pub moved: f64,
    /// The least that had to, to get from the loads before to the loads after.
    pub least: f64,
    /// All that was there before the event.
    pub of: f64,
}

/// How much an event moved in keys, in weight and in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Movement {
    /// Each key counts 1.
    pub keys: Moved,
    /// Each key counts its load, as it is after the event.
    pub weight: Moved,
    /// Each key counts its bytes.
    pub bytes: Moved,
}

/// One of the heaviest keys, and where it is.
#[derive(Debug, Clone, PartialEq)]
pub struct HotKey {
    /// The key, as the sample names it.
    pub key: Key,
    /// Its load, as it is after the event.
    pub weight: f64,
    /// Its nodes, as indexes of the roster: one, or one for each sub-key.
    pub nodes: Vec<u32>,
}

/// One scheme after one event.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// How many shards; none for schemes without.
    pub shards: Option<usize>,
    /// Bytes of the lookup structure.
    pub memory_bytes: usize,
    /// The load of each node of the roster; nothing on those that are not there.
    pub loads: Vec<Load>,
    /// How even they are.
    pub balances: Balances,
    /// The node that carries the most weight for its capacity, as an index of the roster.
    pub hottest_node: u32,
    /// The heaviest keys, the heaviest first.
    pub hottest_keys: Vec<HotKey>,
    /// What the event moved; none at the start.
    pub movement: Option<Movement>,
}

/// How many of the heaviest keys a step names.
const HOTTEST: usize = 5;

/// Measures a layout, and what moved if there is a `before` (its owners, and how many keys it knew).
pub(super) fn step(
    cluster: &SimulatedCluster,
    layout: &Layout,
    owners: &Owners,
    before: Option<(&Owners, usize)>,
) -> Step {
    let loads = loads(cluster, owners);
    let per_capacity = |figure: usize| -> Vec<f64> {
        let load = |at: &u32| {
            loads[*at as usize].figures()[figure] / f64::from(cluster.roster[*at as usize].capacity)
        };
        cluster.present.iter().map(load).collect()
    };
    let [keys, weight, bytes] = [0, 1, 2].map(|figure| balance(cluster, &per_capacity(figure)));
    let weights = per_capacity(1);
    let hottest = (0..weights.len()).fold(0, |best, at| if weights[at] > weights[best] { at } else { best });
    Step {
        shards: layout.shards(),
        memory_bytes: layout.memory_bytes(),
        balances: Balances { keys, weight, bytes },
        hottest_node: cluster.present[hottest],
        hottest_keys: hottest_keys(cluster, owners),
        movement: before.map(|(before, known)| movement(cluster, before, owners, known)),
        loads,
    }
}

/// The loads of nodes by all keys.
fn loads(cluster: &SimulatedCluster, owners: &Owners) -> Vec<Load> {
    let mut loads = vec![Load::default(); cluster.roster.len()];
    for (at, item) in cluster.sample.items().iter().enumerate() {
        let Some(parts) = owners.parts.get(&(at as u32)) else {
            loads[owners.first[at] as usize].add(1, item.weight, item.bytes);
            continue;
        };
        loads[parts[0] as usize].keys += 1;
        let count = parts.len() as u64;
        for (i, node) in (0..count).zip(parts) {
            // What does not divide goes to the first ones.
            let bytes = item.bytes / count + u64::from(i < item.bytes % count);
            loads[*node as usize].add(0, item.weight / count as f64, bytes);
        }
    }
    loads
}

/// Keys, weight and bytes of nodes by the first `known` keys, with parts of keys in fractions.
fn figures(cluster: &SimulatedCluster, owners: &Owners, known: usize) -> Vec<[f64; 3]> {
    let mut sums = vec![[0.0; 3]; cluster.roster.len()];
    let mut add = |node: u32, figures: [f64; 3]| {
        sums[node as usize].iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure);
    };
    for (at, item) in cluster.sample.items()[..known].iter().enumerate() {
        let (weight, bytes) = (item.weight, item.bytes as f64);
        match owners.parts.get(&(at as u32)) {
            None => add(owners.first[at], [1.0, weight, bytes]),
            Some(parts) => {
                add(parts[0], [1.0, 0.0, 0.0]);
                let count = parts.len() as f64;
                parts.iter().for_each(|node| add(*node, [0.0, weight / count, bytes / count]));
            }
        }
    }
    sums
}

/// `per_capacity` is in the order of the nodes that are there.
fn balance(cluster: &SimulatedCluster, per_capacity: &[f64]) -> Balance {
    let capacity = |at: &u32| f64::from(cluster.roster[*at as usize].capacity);
    let capacities: Vec<f64> = cluster.present.iter().map(capacity).collect();
    let whole: f64 = capacities.iter().sum();
    let mean =
        per_capacity.iter().zip(&capacities).map(|(load, capacity)| load * capacity).sum::<f64>() / whole;
    if mean <= 0.0 {
        return Balance { max_over_mean: 1.0, variation: 0.0 };
    }
    let max = per_capacity.iter().fold(0.0, |max: f64, load| max.max(*load));
    let squares = per_capacity.iter().map(|load| (load / mean - 1.0).powi(2)).sum::<f64>();
    Balance { max_over_mean: max / mean, variation: (squares / per_capacity.len() as f64).sqrt() }
}

fn movement(cluster: &SimulatedCluster, before: &Owners, after: &Owners, known: usize) -> Movement {
    let (from, to) = (figures(cluster, before, known), figures(cluster, after, known));
    let mut moved = [0.0; 3];
    for (at, item) in cluster.sample.items()[..known].iter().enumerate() {
        let first = f64::from(u8::from(before.first[at] != after.first[at]));
        let id = at as u32;
        let part = if before.parts.contains_key(&id) || after.parts.contains_key(&id) {
            moved_part(&spread(before, id), &spread(after, id))
        } else {
            first
        };
        for (sum, amount) in moved.iter_mut().zip([first, part * item.weight, part * item.bytes as f64]) {
            *sum += amount;
        }
    }
    let sum = |of: &dyn Fn(usize) -> f64| (0..to.len()).map(of).sum::<f64>();
    let [keys, weight, bytes] = [0, 1, 2].map(|figure| Moved {
        moved: moved[figure],
        least: sum(&|node| (to[node][figure] - from[node][figure]).max(0.0)),
        of: sum(&|node| from[node][figure]),
    });
    Movement { keys, weight, bytes }
}

/// The nodes of a key's parts.
fn spread(owners: &Owners, key: u32) -> Vec<u32> {
    owners.parts.get(&key).cloned().unwrap_or_else(|| vec![owners.first[key as usize]])
}

/// Which part of a key, from 0 to 1, is on another node than before.
fn moved_part(before: &[u32], after: &[u32]) -> f64 {
    let share =
        |nodes: &[u32], node: u32| nodes.iter().filter(|at| **at == node).count() as f64 / nodes.len() as f64;
    let mut nodes = after.to_vec();
    nodes.sort_unstable();
    nodes.dedup();
    nodes.iter().map(|node| (share(after, *node) - share(before, *node)).max(0.0)).sum()
}

fn hottest_keys(cluster: &SimulatedCluster, owners: &Owners) -> Vec<HotKey> {
    let items = cluster.sample.items();
    let mut top: Vec<usize> = Vec::with_capacity(HOTTEST + 1);
    for at in 0..items.len() {
        if top.len() == HOTTEST && items[at].weight <= items[top[HOTTEST - 1]].weight {
            continue;
        }
        let place = top.partition_point(|better| items[*better].weight >= items[at].weight);
        top.insert(place, at);
        top.truncate(HOTTEST);
    }
    let hot = |at: &usize| HotKey {
        key: items[*at].key.clone(),
        weight: items[*at].weight,
        nodes: spread(owners, *at as u32),
    };
    top.iter().map(hot).collect()
}
