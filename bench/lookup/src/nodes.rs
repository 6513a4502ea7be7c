//! From a key to one of n nodes: our schemes and other people's crates.
//!
//! All schemes hash the same 8-byte keys, by xxh3 or as good, as a crate that lets itself be given a hasher is
//! given one; those that do not are measured with theirs. Beside the time stands what matters as much:
//! the part of the keys that move when a node is added, how many move for each that the newcomer gains (1 is
//! the least possible), and the fullest node against the mean.

use crate::measure::{self, Cost};
use comfy_table::Table;
use partage_core::base::name::NodeId;
use partage_core::keyspace::hash::{HashFunction, mix};
use partage_core::keyspace::lookup::SlotTable;
use partage_core::keyspace::sharding::jump::Jump;
use partage_core::keyspace::sharding::modulo::Modulo;
use partage_core::keyspace::sharding::nodes::{NodeScheme, WeightedNode};
use partage_core::keyspace::sharding::rendezvous::Rendezvous;
use partage_core::keyspace::sharding::ring::Ring;
use partage_core::limits;
use std::hash::{BuildHasher, Hasher};

const LOOKUPS: usize = 1 << 12;

/// A hasher for the peers, as fast as the one our schemes use.
#[derive(Clone, Copy, Default)]
struct Fast(u64);

impl Hasher for Fast {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = mix(self.0 ^ HashFunction::Xxh3_64.point(bytes));
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0 ^ number);
    }
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

impl BuildHasher for Fast {
    type Hasher = Fast;
    fn build_hasher(&self) -> Fast {
        Fast(0)
    }
}

type Find = Box<dyn Fn(u64) -> usize>;

/// A way to find a node: from the count of nodes, the lookup.
type Way = (&'static str, fn(usize) -> Find);

fn named(count: usize) -> Vec<WeightedNode> {
    let name = |i| match NodeId::new(&format!("node-{i}")) {
        Ok(name) => WeightedNode::plain(name),
        Err(error) => panic!("node-{i} is a name: {error}"),
    };
    (0..count).map(name).collect()
}

fn ours<S: NodeScheme + 'static, E: std::fmt::Debug>(scheme: Result<S, E>) -> Find {
    match scheme {
        Ok(scheme) => Box::new(move |key| scheme.node(hash(key))),
        Err(error) => panic!("plain nodes make a scheme: {error:?}"),
    }
}

fn hash(key: u64) -> u64 {
    HashFunction::Xxh3_64.scatter(&key.to_le_bytes())
}

const WAYS: [Way; 11] = [
    ("ours: modulo", |count| ours(Modulo::build(&named(count)))),
    ("ours: ring, 100 tokens", |count| ours(Ring::build(&named(count), limits::RING_TOKENS))),
    ("ours: rendezvous", |count| ours(Rendezvous::build(&named(count)))),
    ("ours: rendezvous, weights 1 and 2", |count| {
        let mut nodes = named(count);
        nodes.iter_mut().step_by(2).for_each(|node| node.weight = 2);
        ours(Rendezvous::build(&nodes))
    }),
    ("ours: jump", |count| ours(Jump::build(&named(count)))),
    ("ours: map of 16,384 slots", slot_map),
    ("hashring, 100 tokens", |count| {
        let mut ring = hashring::HashRing::with_hasher(Fast(0));
        ring.batch_add((0..count * 100).map(|i| ((i / 100) as u64, (i % 100) as u64)).collect());
        Box::new(move |key| ring.get(&key).map_or(0, |node| node.0 as usize))
    }),
    ("rendezvous_hash", |count| {
        let mut nodes = rendezvous_hash::RendezvousNodes::default();
        (0..count).for_each(|node| {
            nodes.insert(rendezvous_hash::IdNode::new(node));
        });
        Box::new(move |key| nodes.calc_candidates(&key).next().map_or(0, |node| **node))
    }),
    ("jumphash", |count| {
        let jump = jumphash::CustomJumpHasher::new(Fast(0));
        Box::new(move |key| jump.slot(&key, count as u32) as usize)
    }),
    ("jump-consistent-hash", |count| {
        Box::new(move |key| jump_consistent_hash::hash(hash(key), count) as usize)
    }),
    ("anchorhash, room for twice as many", |count| {
        let anchor =
            anchorhash::Builder::with_hasher(Fast(0)).with_resources(0..count).build::<u64>(room(count));
        Box::new(move |key| anchor.get_resource(key).copied().unwrap_or(0))
    }),
];

/// What a keyspace really uses: a table that says which node has which slot. A node that joins takes its share of slots, one by
/// one from the node that has most, and nothing else moves.
fn slot_map(count: usize) -> Find {
    let mut slots: Vec<Vec<u32>> = vec![(0..16_384).collect()];
    for joined in 1..count {
        let mut taken = Vec::new();
        while taken.len() < 16_384 / (joined + 1) {
            let fullest = slots.iter_mut().max_by_key(|slots| slots.len());
            taken.extend(fullest.and_then(Vec::pop));
        }
        slots.push(taken);
    }
    let mut owners = vec![0; 16_384];
    for (node, slots) in slots.iter().enumerate() {
        slots.iter().for_each(|slot| owners[*slot as usize] = node as u32);
    }
    match SlotTable::build(owners) {
        Ok(table) => Box::new(move |key| table.find_hash(hash(key)) as usize),
        Err(error) => panic!("16,384 slots are few: {error}"),
    }
}

/// The same before and after one node more.
fn room(count: usize) -> u16 {
    (count / 10 * 20) as u16
}

fn maglev(count: usize) -> Find {
    let table = maglev::Maglev::with_capacity_and_hasher(0..count, 65_537, Fast(0));
    Box::new(move |key| *maglev::ConsistentHasher::get(&table, &key).unwrap_or(&0))
}

pub fn run(nodes: usize) -> Table {
    let mut table = measure::table(&[
        "way",
        "ns",
        "ns, chained",
        "keys moved by one node more",
        "moved per key it gained",
        "max/mean",
        "allocations",
    ]);
    let keys: Vec<u64> = measure::random(5, LOOKUPS).collect();
    for (name, build) in WAYS.into_iter().chain([("maglev, table of 65,537", maglev as fn(usize) -> Find)]) {
        let (before, after) = (build(nodes), build(nodes + 1));
        let many = || measure::random(6, 200 * nodes.max(500));
        let moved = many().filter(|key| before(*key) != after(*key)).count() as f64;
        let gained = many().filter(|key| after(*key) == nodes).count() as f64;
        let mut load = vec![0u32; nodes];
        many().for_each(|key| load[before(key)] += 1);
        let mean = many().count() as f64 / nodes as f64;
        let fullest = load.into_iter().max().unwrap_or(0);
        let cost: Cost = measure::cost(&keys, |key| before(*key));
        table.add_row([
            name.to_owned(),
            format!("{:.1}", cost.free),
            format!("{:.1}", cost.chained),
            format!("{:.2} %", 100.0 * moved / many().count() as f64),
            format!("{:.2}", moved / gained),
            format!("{:.2}", f64::from(fullest) / mean),
            cost.allocations.to_string(),
        ]);
    }
    table
}
