//! What clients ask for how often, as workers measure it: what splits, merges and extra replicas follow from.
//!
//! The rates are told, not counted: the operations of a run are far too few to be a load. Every key has some, a
//! few have much, and now and then other keys do.

use crate::draw::Draw;
use crate::model::{KEYS, Space};
use partage_core::keyspace::key::Key;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::node::load::{HotKey, Load, Profile};
use partage_core::worker::{Gate, LocalReplica, Worker};

/// Requests a second of a key that few clients ask for.
const COLD: u64 = 10;

/// Requests a second of a hot key, at most.
const HOT: u64 = 600;

/// Rates of all keys, by keyspace; none while no load is reported.
#[derive(Debug, Default)]
pub struct Heat {
    rates: Vec<[u64; KEYS]>,
}

impl Heat {
    /// Clients turn to other keys.
    pub fn turn(&mut self, draw: &mut Draw, spaces: usize) {
        self.rates = vec![[COLD; KEYS]; spaces];
        for rates in &mut self.rates {
            for _ in 0..draw.index(3) {
                rates[draw.index(KEYS)] = draw.between(COLD, HOT);
            }
        }
    }

    /// A worker measures what it serves.
    pub fn measured(&self, spaces: &[Space], worker: &mut Worker) {
        let served = worker.local_replicas().iter().filter(|(_, local)| local.gate() != Gate::Shut);
        let loads: Vec<_> = served
            .filter_map(|(replica, local)| {
                let at = spaces.iter().position(|space| space.keyspace.name == replica.keyspace)?;
                Some((replica.clone(), load(self.rates.get(at)?, &spaces[at], local)))
            })
            .collect();
        loads.into_iter().for_each(|(replica, load)| worker.measured(&replica, load));
    }
}

fn load(rates: &[u64; KEYS], space: &Space, local: &LocalReplica) -> Load {
    let order = &local.order;
    // What is asked for is spread over the replicas that serve.
    let others = order.peers.iter().filter(|peer| peer.state == ReplicaState::Live);
    let share = 1.0 / (1 + others.count()) as f64;
    let rate = |key: usize| rates[key] as f64 * share;
    let keys: Vec<usize> = space.keys_in(&order.bounds).collect();
    let hottest = keys.iter().copied().max_by_key(|key| (rates[*key], std::cmp::Reverse(*key)));
    let hot = |key: usize| Some(HotKey { key: Key::new(&space.keys[key]).ok()?, requests_per_s: rate(key) });
    let median = keys.get(keys.len() / 2).filter(|_| keys.len() > 1);
    Load {
        requests_per_s: keys.iter().map(|key| rate(*key)).sum(),
        size_bytes: 1_000 * keys.len() as u64,
        keys: keys.len() as u64,
        profile: Profile::new(
            hottest.and_then(hot).into_iter().collect(),
            median.and_then(|key| Key::new(&space.keys[*key]).ok()),
        ),
        ..Load::default()
    }
}
