//! Keys that go to shards, and shards that a policy places on nodes.

use super::error::WhatIfError;
use super::scheme::{Cut, Placed, Scheme};
use super::simulated_cluster::SimulatedCluster;
use partage_core::base::name::Zone;
use partage_core::keyspace::hash::{HashFunction, mix};
use partage_core::keyspace::key::{Key, KeyRange};
use partage_core::keyspace::lookup::{HashIndex, RangeIndex, SlotTable};
use partage_core::keyspace::sharding::ring::Ring;
use partage_core::keyspace::sharding::{Sharding, presplit};
use partage_core::limits;
use partage_core::placement::{self, Metric, NodeSpec, Placement, Problem, UNKNOWN_DOMAIN};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A range with more than this many times the load that ranges had at the start is cut in two.
const SPLIT_ABOVE: f64 = 2.0;

/// How far above its share a policy may leave a node.
const TOLERANCE: f64 = 0.05;

/// Units in which weights are counted where quantiles want whole numbers: so many for an average key.
const UNITS: f64 = 1_000.0;

/// Where shards begin, in order.
#[derive(Debug, Clone)]
enum Begins {
    Slots(u32),
    Points(Vec<u64>),
    Keys(Vec<Key>),
}

/// The table for lookups.
#[derive(Debug, Clone)]
enum Table {
    Slots(SlotTable),
    Hashes(HashIndex),
    Keys(RangeIndex),
}

#[derive(Debug, Clone)]
pub(super) struct Shards {
    hash: HashFunction,
    begins: Begins,
    table: Table,
    /// The node of each shard, as an index of the roster.
    owners: Vec<u32>,
    /// A range with more load than this is split; infinite where none is.
    split_above: f64,
}

impl Shards {
    pub(super) fn build(scheme: &Scheme, cluster: &SimulatedCluster) -> Result<Shards, WhatIfError> {
        let begins = first_begins(scheme, cluster)?;
        let average = cluster.total().weight / begins.len() as f64;
        let splits = matches!(scheme, Scheme::HashRange { .. } | Scheme::KeyRange { cut: Cut::Load, .. })
            && average > 0.0;
        let split_above = if splits { SPLIT_ABOVE * average } else { f64::INFINITY };
        let owners = vec![None; begins.len()];
        Unplaced { hash: cluster.hash, begins, owners, split_above }.split(cluster)?.place(scheme, cluster)
    }

    /// Splits what has grown too heavy, and places all again.
    pub(super) fn follow(&self, scheme: &Scheme, cluster: &SimulatedCluster) -> Result<Shards, WhatIfError> {
        let there = |owner: &u32| cluster.present.contains(owner).then_some(*owner);
        let owners = self.owners.iter().map(there).collect();
        let begins = self.begins.clone();
        Unplaced { hash: self.hash, begins, owners, split_above: self.split_above }
            .split(cluster)?
            .place(scheme, cluster)
    }

    #[inline]
    pub(super) fn owner(&self, key: &[u8]) -> u32 {
        match &self.table {
            Table::Slots(table) => table.find(self.hash.slot(key, table.slots() as u32)).unwrap_or(0),
            Table::Hashes(index) => self.owners[index.find(self.hash.point(key))],
            Table::Keys(index) => self.owners[index.find(key)],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.owners.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let owners = size_of_val(&*self.owners);
        match &self.table {
            Table::Slots(table) => table.memory_bytes(),
            Table::Hashes(index) => index.memory_bytes() + owners,
            Table::Keys(index) => index.memory_bytes() + owners,
        }
    }
}

fn first_begins(scheme: &Scheme, cluster: &SimulatedCluster) -> Result<Begins, WhatIfError> {
    let hash = cluster.hash;
    let items = cluster.sample.items();
    Ok(match *scheme {
        Scheme::HashRange { shards, .. } => {
            let ranges = presplit::even_hashes(shards as usize)?;
            Begins::Points(ranges.iter().map(|range| range.first).collect())
        }
        Scheme::KeyRange { shards, cut: Cut::Load, .. } => {
            let unit = unit(cluster);
            let sample = items.iter().map(|item| (item.key.clone(), in_units(item.weight, unit)));
            // A sample that has fewer keys than shards cannot be cut further.
            let shards = (shards as usize).min(items.len());
            Begins::Keys(begins_of(&presplit::from_sample(sample, shards)?))
        }
        Scheme::KeyRange { shards, cut: Cut::Even, .. } => {
            // Refuses none and too many, before so many points are computed.
            presplit::even_hashes(shards as usize)?;
            let points = even_points(items.iter().map(|item| item.key.as_bytes()), shards);
            Begins::Keys(begins_of(&presplit::at_points(&points)?))
        }
        Scheme::Fixed { shards, .. } => {
            Sharding::Fixed { hash, shards }.check()?;
            Begins::Slots(shards)
        }
        // Only schemes with shards come here; one shard is the whole of anything else.
        _ => Begins::Slots(1),
    })
}

fn begins_of(ranges: &[KeyRange]) -> Vec<Key> {
    ranges.iter().map(|range| range.begin.clone()).collect()
}

/// Weight of an average key, by which weights become whole numbers.
fn unit(cluster: &SimulatedCluster) -> f64 {
    cluster.total().weight / cluster.sample.len() as f64 / UNITS
}

/// At least 1, as every key has to be somewhere; at most 2^52, so that sums of them are far from any edge.
fn in_units(weight: f64, unit: f64) -> u64 {
    if unit > 0.0 { (weight / unit).round().clamp(1.0, (1u64 << 52) as f64) as u64 } else { 1 }
}

/// Keys of at most eight bytes (beside what all keys begin with) that cut the way from the lowest to the highest
/// key in equal parts, as far as they differ.
fn even_points<'a>(keys: impl Iterator<Item = &'a [u8]> + Clone, shards: u32) -> Vec<Key> {
    let (Some(low), Some(high)) = (keys.clone().min(), keys.max()) else { return Vec::new() };
    let common = low.iter().zip(high).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8]| {
        let mut bytes = [0; 8];
        key.iter().skip(common).zip(&mut bytes).for_each(|(from, to)| *to = *from);
        u64::from_be_bytes(bytes)
    };
    let (from, to) = (u128::from(number(low)), u128::from(number(high)));
    let point = |i: u32| {
        let at = (from + (to - from) * u128::from(i) / u128::from(shards)) as u64;
        let tail = at.to_be_bytes();
        let len = 8 - (at.trailing_zeros() / 8).min(8) as usize;
        Key::new(&[&low[..common], &tail[..len]].concat()).ok().filter(|key| !key.is_empty())
    };
    let mut points: Vec<Key> = (1..shards).filter_map(point).collect();
    points.dedup();
    points
}

impl Begins {
    fn len(&self) -> usize {
        match self {
            Begins::Slots(slots) => *slots as usize,
            Begins::Points(points) => points.len(),
            Begins::Keys(keys) => keys.len(),
        }
    }

    fn find(&self, hash: HashFunction, key: &[u8]) -> usize {
        match self {
            Begins::Slots(slots) => hash.slot(key, *slots) as usize,
            Begins::Points(points) => points.partition_point(|begin| *begin <= hash.point(key)) - 1,
            Begins::Keys(keys) => keys.partition_point(|begin| begin.as_bytes() <= key) - 1,
        }
    }

    /// A number for each shard that stays when others are split, for policies that hash.
    fn hashes(&self) -> Vec<u64> {
        match self {
            Begins::Slots(slots) => (0..u64::from(*slots)).map(mix).collect(),
            Begins::Points(points) => points.iter().map(|point| mix(*point)).collect(),
            Begins::Keys(keys) => {
                keys.iter().map(|key| HashFunction::Xxh3_64.point(key.as_bytes())).collect()
            }
        }
    }

    /// What `key` is called on this ruler, in bytes that sort as positions do.
    fn position(&self, hash: HashFunction, key: &Key) -> Key {
        match self {
            Begins::Points(_) => Key::new(&hash.point(key.as_bytes()).to_be_bytes()).unwrap_or(Key::empty()),
            Begins::Slots(_) | Begins::Keys(_) => key.clone(),
        }
    }
}

/// Shards on their way to nodes; some are somewhere already.
struct Unplaced {
    hash: HashFunction,
    begins: Begins,
    owners: Vec<Option<u32>>,
    split_above: f64,
}

impl Unplaced {
    /// Cuts each range that is too heavy at the median of its load, until none is, or it is a single key.
    /// The parts begin where the whole was.
    fn split(mut self, cluster: &SimulatedCluster) -> Result<Unplaced, WhatIfError> {
        if self.split_above.is_infinite() {
            return Ok(self);
        }
        let heavy: Vec<bool> = self.loads(cluster).iter().map(|load| load.0 > self.split_above).collect();
        let mut held: BTreeMap<usize, BTreeMap<Key, f64>> = BTreeMap::new();
        for item in cluster.sample.items() {
            let shard = self.begins.find(self.hash, item.key.as_bytes());
            if heavy[shard] {
                let position = self.begins.position(self.hash, &item.key);
                *held.entry(shard).or_default().entry(position).or_default() += item.weight;
            }
        }
        // From the back, so that positions in front stay what they are.
        for (shard, keys) in held.into_iter().rev() {
            let keys: Vec<(Key, f64)> = keys.into_iter().collect();
            let mut cuts = Vec::new();
            self.cut(&keys, unit(cluster), &mut cuts)?;
            self.insert(shard, cuts);
        }
        if self.begins.len() > limits::SHARDS {
            let (found, limit) = (self.begins.len(), limits::SHARDS);
            return Err(WhatIfError::TooMany { what: "shards", found, limit });
        }
        Ok(self)
    }

    fn cut(&self, keys: &[(Key, f64)], unit: f64, cuts: &mut Vec<Key>) -> Result<(), WhatIfError> {
        let load: f64 = keys.iter().map(|(_, weight)| weight).sum();
        if keys.len() < 2 || load <= self.split_above {
            return Ok(());
        }
        let sample = keys.iter().map(|(key, weight)| (key.clone(), in_units(*weight, unit)));
        let halves = presplit::from_sample(sample, 2)?;
        let middle = &halves[1].begin;
        let at = keys.partition_point(|(key, _)| key < middle);
        self.cut(&keys[..at], unit, cuts)?;
        cuts.push(middle.clone());
        self.cut(&keys[at..], unit, cuts)
    }

    fn insert(&mut self, shard: usize, cuts: Vec<Key>) {
        let owner = self.owners[shard];
        let at = shard + 1;
        self.owners.splice(at..at, cuts.iter().map(|_| owner));
        match &mut self.begins {
            Begins::Slots(_) => {}
            Begins::Keys(keys) => drop(keys.splice(at..at, cuts)),
            Begins::Points(points) => {
                let point = |key: &Key| {
                    key.as_bytes().iter().fold(0, |point: u64, byte| point << 8 | u64::from(*byte))
                };
                drop(points.splice(at..at, cuts.iter().map(point)));
            }
        }
    }

    /// Weight and bytes of each shard.
    fn loads(&self, cluster: &SimulatedCluster) -> Vec<(f64, u64)> {
        let mut loads = vec![(0.0, 0); self.begins.len()];
        for item in cluster.sample.items() {
            let load = &mut loads[self.begins.find(self.hash, item.key.as_bytes())];
            *load = (load.0 + item.weight, load.1 + item.bytes);
        }
        loads
    }

    fn place(self, scheme: &Scheme, cluster: &SimulatedCluster) -> Result<Shards, WhatIfError> {
        let owners = match placed(scheme) {
            Some(Placed::BoundedRing { slack_percent }) => {
                let ring = Ring::build(&cluster.weighted(), limits::RING_TOKENS)?;
                let nodes = ring.bounded(&self.begins.hashes(), *slack_percent);
                nodes.into_iter().map(|node| cluster.present[node]).collect()
            }
            Some(Placed::Policy(name)) => self.by_policy(name, cluster)?,
            None => vec![cluster.present[0]; self.begins.len()],
        };
        let table = match &self.begins {
            Begins::Slots(_) => Table::Slots(SlotTable::build(owners.clone())?),
            Begins::Points(points) => Table::Hashes(HashIndex::build(points)?),
            Begins::Keys(keys) => Table::Keys(RangeIndex::build(keys.iter().map(Key::as_bytes))?),
        };
        Ok(Shards { hash: self.hash, begins: self.begins, table, owners, split_above: self.split_above })
    }

    fn by_policy(&self, name: &str, cluster: &SimulatedCluster) -> Result<Vec<u32>, WhatIfError> {
        let problem = self.problem(cluster);
        let solution = placement::by_name(name)?.place(&problem)?;
        if let Some(unplaced) = solution.unplaced.first() {
            return Err(WhatIfError::Unplaced { why: unplaced.sentence(&problem) });
        }
        // Each shard wants one replica, and none is unplaced.
        let node = |nodes: &[u32]| cluster.present[nodes.first().map_or(0, |node| *node as usize)];
        Ok(solution.placement.iter().map(node).collect())
    }

    fn problem(&self, cluster: &SimulatedCluster) -> Problem {
        let mut zones: Vec<&Zone> = cluster.nodes().filter_map(|node| node.zone.as_ref()).collect();
        zones.sort_unstable();
        zones.dedup();
        let spec = |(at, node): (u32, &super::Node)| {
            let zone = node.zone.as_ref().and_then(|zone| zones.binary_search(&zone).ok());
            let zone = zone.map_or(UNKNOWN_DOMAIN, |zone| zone as u32);
            NodeSpec { zone, ..NodeSpec::new(node.name.clone(), at) }
        };
        let nodes = (0..).zip(cluster.nodes()).map(spec).collect();
        let loads = self.loads(cluster);
        let at: BTreeMap<u32, u32> = cluster.present.iter().copied().zip(0..).collect();
        let current = |owner: &Option<u32>| owner.and_then(|owner| at.get(&owner).copied());
        let current: Placement = self.owners.iter().map(current).collect();
        Problem {
            metrics: vec![Metric { name: Arc::from("weight"), tolerance: TOLERANCE, limit: None }],
            capacities: cluster.nodes().map(|node| f64::from(node.capacity)).collect(),
            hashes: self.begins.hashes(),
            loads: loads.iter().map(|load| load.0).collect(),
            bytes: loads.iter().map(|load| load.1).collect(),
            current,
            seed: cluster.seed,
            ..Problem::new(nodes, vec![1; loads.len()])
        }
    }
}

fn placed(scheme: &Scheme) -> Option<&Placed> {
    match scheme {
        Scheme::Fixed { placed, .. } | Scheme::HashRange { placed, .. } | Scheme::KeyRange { placed, .. } => {
            Some(placed)
        }
        Scheme::Modulo | Scheme::Ring { .. } | Scheme::Rendezvous | Scheme::Jump | Scheme::Salted { .. } => {
            None
        }
    }
}
