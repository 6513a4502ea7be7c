//! Trials: at the end of a run, when nothing is wrong any more, something is done to tables on purpose, and what must come about
//! is looked for.
//!
//! The nodes of all followers of a shard stand still until these are asked out of the in-sync set, and go on. Soon after, the
//! shard takes writes again (L1). Writes that wait for the followers are inside the leader's gate all the while.
//!
//! In some runs one node is slow for a minute then. It leaves the in-sync set of each shard, to catch up and come back, only so
//! often (L1): each time is two commits of the map, whichever replica leads meanwhile. It may be taken for dead, and be
//! registered anew: then it comes back at once.

use super::FEED;
use crate::clock::{MS, SECOND, True};
use crate::message::Place;
use crate::model::KeyAt;
use crate::world::World;
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::map::Shard;
use partage_core::keyspace::sharding::Bounds;
use std::collections::BTreeMap;

/// Within that time after the followers go on the shard takes a write. A write that waits for what does not come is given up
/// later, ten seconds after it began.
const TAKES_WRITES: True = 5 * SECOND;

/// How often each shard of the table is written to meanwhile.
const WRITES: True = 50 * MS;

/// Runs in which one node is slow in the end, in thousandths.
const LIMPING: u64 = 250;

/// For how long it is.
const LIMPS: True = 60 * SECOND;

/// How often each shard of the table is written to in that time.
const LIMPING_WRITES: True = 500 * MS;

/// How often members of a shard may leave its in-sync set in that time to catch up, and once more for each node that is taken for
/// dead: without a rest, for each doubling of the rest to [`LONGEST_REJOIN_DELAY_MS`](super::LONGEST_REJOIN_DELAY_MS), and for
/// each of the longest ones.
const LIMPING_LEAVES: u64 = 12;

/// The shards of a table that a trial looks at, each with a key of its own.
type Written = BTreeMap<ShardId, KeyAt>;

impl World {
    /// The trials of a run with a table.
    pub fn try_tables(&mut self) {
        let is_tried = self.shape.replicated && !self.shape.stuck && !self.shape.touched;
        let spaces = std::rc::Rc::clone(&self.scene.oracles.spaces);
        let Some(at) = spaces.iter().position(|space| space.is_replicated()).filter(|_| is_tried) else {
            return;
        };
        let name = &spaces[at].keyspace.name;
        self.look_at_readers(at, name);
        self.try_lost_followers(at, name);
        if self.scene.violation.is_none() && self.scene.draw.chance(LIMPING) {
            self.try_slow_node(at, name);
        }
    }

    /// A reader of the table's changes has those of the shards that serve.
    fn look_at_readers(&mut self, at: usize, name: &KeyspaceName) {
        let written = self.written(at, name);
        let shards = self.scene.oracles.maps.latest(name).into_iter().flat_map(|map| map.shards());
        let served: Vec<Bounds> = shards
            .filter(|shard| written.contains_key(&shard.id))
            .map(|shard| shard.bounds.clone())
            .collect();
        self.readers_lag(|key| served.iter().any(|bounds| bounds.contains(FEED.position(key))));
    }

    /// The shards that take writes.
    fn written(&self, at: usize, name: &KeyspaceName) -> Written {
        let oracles = &self.scene.oracles;
        let key = |shard: &Shard| oracles.spaces[at].keys_in(&shard.bounds).next();
        let shards = oracles.maps.latest(name).into_iter().flat_map(|map| map.shards());
        let served = shards.filter(|shard| {
            let is_led = shard.is_serving() && shard.leader().is_some();
            is_led && !oracles.maps.is_aside(name, shard.id)
        });
        served.filter_map(|shard| Some((shard.id, KeyAt { keyspace: at, key: key(shard)? }))).collect()
    }

    /// Each shard is written to, and time passes.
    fn write_on(&mut self, written: &Written, passes: True) {
        written.values().for_each(|key| self.write_to(*key));
        self.run_until(self.scene.now + passes);
    }

    fn try_lost_followers(&mut self, at: usize, name: &KeyspaceName) {
        let written = self.written(at, name);
        let ids: Vec<_> = written.keys().copied().collect();
        let Some(id) = self.scene.draw.pick(&ids).copied() else { return };
        let map = self.scene.oracles.maps.latest(name);
        let Some(shard) = map.and_then(|map| map.shard(id)) else { return };
        let leader = shard.leader().map(|leader| leader.placement);
        let followers = shard.in_sync().filter(|replica| Some(replica.placement) != leader);
        let nodes: Vec<_> = followers.map(|replica| replica.node.clone()).collect();
        let places: Vec<_> = (0..self.nodes.len()).filter(|at| nodes.contains(&self.nodes[*at].id)).collect();
        let still = self.scene.draw.between(2_200, 3_500) * MS;
        self.scene.count("trials of followers that stand still");
        places.into_iter().for_each(|node| self.pause(Place::Node(node), still));
        let awake = self.scene.now + still;
        while self.scene.violation.is_none() {
            self.write_on(&written, WRITES);
            if self.scene.oracles.storage.tables.acknowledged_at(name, id) >= awake
                || !self.is_served(name, id)
            {
                break;
            }
            if self.scene.now >= awake + TAKES_WRITES {
                let ms = TAKES_WRITES / MS;
                let shard = self.scene.oracles.maps.latest(name).and_then(|map| map.shard(id));
                let text = format!("{ms} ms after its followers went on, a shard takes no write: {shard:#?}");
                self.scene.violate("L1", text);
            }
        }
        if self.scene.now > awake + SECOND {
            self.scene.count("trials in which a write waited for more than a second");
        }
    }

    fn try_slow_node(&mut self, at: usize, name: &KeyspaceName) {
        let written = self.written(at, name);
        let left = |world: &World, id: ShardId| world.scene.oracles.maps.left_behind(name, id);
        let before: BTreeMap<_, _> = written.keys().map(|id| (*id, left(self, *id))).collect();
        let deaths = self.scene.oracles.maps.deaths;
        let (node, until) = (self.scene.draw.index(self.nodes.len()), self.scene.now + LIMPS);
        self.scene.count("trials of a node that is slow");
        let now = self.scene.now;
        self.nodes[node].slow.begin_to_halt(&mut self.scene.draw, now, until);
        while self.scene.violation.is_none() && self.scene.now < until {
            self.write_on(&written, LIMPING_WRITES);
        }
        let deaths = self.scene.oracles.maps.deaths - deaths;
        let most = before.iter().map(|(id, before)| (left(self, *id) - before, *id)).max();
        if let Some((times, id)) = most.filter(|(times, _)| *times > LIMPING_LEAVES + deaths) {
            let text = format!(
                "node-{node} is slow, taken for dead {deaths} times, and members of {id} leave its set {times} times in a minute"
            );
            self.scene.violate("L1", text);
        }
    }

    /// Whether a shard is still there, neither split nor merged.
    fn is_served(&self, name: &KeyspaceName, id: ShardId) -> bool {
        let shard = self.scene.oracles.maps.latest(name).and_then(|map| map.shard(id));
        shard.is_some_and(Shard::is_serving)
    }
}
