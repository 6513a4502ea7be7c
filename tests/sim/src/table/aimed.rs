//! Faults that are made for the moments of a split or merge: when parents have closed in the map, and their children have not
//! opened, everything is killed, or the closer, or a leader of a child, or one of them stands still.
//!
//! And for those of a hand-over: while the leader lets no write in, it is killed, or one of its followers, or the coordinator; or
//! a node stands still, or links are cut.

use crate::clock::{MS, SECOND};
use crate::faults::{Kind, Mend};
use crate::message::{Event, Place};
use crate::world::World;
use partage_core::base::id::ShardId;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::map::{ShardMap, Stage};

/// How many of the splits and merges are disturbed so, in thousandths.
const DISTURBED: u64 = 800;

/// How many of the hand-overs are, in thousandths.
const HANDED_OVER: u64 = 250;

impl World {
    /// A map was committed: what has closed with it may be disturbed soon.
    pub fn watch_splits(&mut self) {
        // In a scenario nothing happens by chance.
        let is_scenario = self.shape.faulty == 0;
        if !self.shape.replicated || !self.is_lively() || is_scenario {
            return;
        }
        let spaces = std::rc::Rc::clone(&self.scene.oracles.spaces);
        let oracles = &self.scene.oracles;
        let tables = spaces.iter().filter(|space| space.is_replicated());
        let maps = tables.filter_map(|space| oracles.maps.latest(&space.keyspace.name));
        let closing = |map: &ShardMap| {
            let shards = map.shards().filter(|shard| matches!(shard.stage(), Stage::Closing(_)));
            shards.map(|shard| (map.keyspace().clone(), shard.id)).collect::<Vec<_>>()
        };
        let closing: Vec<_> = maps.flat_map(closing).collect();
        for key in closing {
            if self.scene.oracles.storage.tables.watched.insert(key.clone())
                && self.scene.draw.chance(DISTURBED)
            {
                let soon = self.scene.draw.between(0, 400 * MS);
                self.scene.after(soon, Event::Mend(Mend::Disturb(key.0, key.1)));
            }
        }
    }

    /// It is disturbed, if it has not ended.
    pub fn disturb(&mut self, name: &KeyspaceName, parent: ShardId) {
        let map = self.scene.oracles.maps.latest(name).filter(|_| self.is_lively());
        let Some((map, parent)) = map.and_then(|map| Some((map, map.shard(parent)?))) else { return };
        let children = map.shards().filter(|shard| shard.parents().contains(&parent.id));
        let closer = parent.closer().map(|closer| &closer.node);
        let leaders = children.filter_map(|child| child.leader().map(|leader| &leader.node));
        let nodes: Vec<NodeId> = closer.into_iter().chain(leaders).cloned().collect();
        let places = 0..self.nodes.len();
        let at: Vec<usize> = places.filter(|at| nodes.contains(&self.nodes[*at].id)).collect();
        let kills_all = self.scene.draw.chance(400);
        let Some(at) = self.scene.draw.pick(&at).copied().filter(|_| !kills_all) else {
            self.scene.count("splits in which everything was killed");
            return self.fault(Kind::PowerLine);
        };
        let long = self.scene.draw.between(50 * MS, 6 * SECOND);
        if self.scene.draw.chance(300) {
            self.scene.count("splits in which a node stood still");
            return self.pause(Place::Node(at), long);
        }
        if !self.nodes[at].is_down() {
            self.scene.count("splits in which a node was killed");
            self.nodes[at].crash(&mut self.scene);
            self.scene.after(long, Event::Mend(Mend::Start(at)));
        }
    }

    /// A leader was ordered to hand over: that may be disturbed at once.
    pub fn watch_hand_overs(&mut self) {
        let begun = std::mem::take(&mut self.scene.oracles.storage.tables.hand_overs);
        if begun.is_empty() || self.shape.faulty == 0 || !self.is_lively() {
            return;
        }
        for (name, shard) in begun {
            if self.scene.draw.chance(HANDED_OVER) {
                let soon = self.scene.draw.between(0, 60 * MS);
                self.scene.after(soon, Event::Mend(Mend::DisturbHandOver(name, shard)));
            }
        }
    }

    /// Its leader, its followers or the coordinator fare badly, if the shard is still there.
    pub fn disturb_hand_over(&mut self, name: &KeyspaceName, shard: ShardId) {
        let map = self.scene.oracles.maps.latest(name).filter(|_| self.is_lively());
        let Some(shard) = map.and_then(|map| map.shard(shard)) else { return };
        let nodes: Vec<NodeId> = shard.in_sync().map(|replica| replica.node.clone()).collect();
        let places: Vec<usize> =
            (0..self.nodes.len()).filter(|at| nodes.contains(&self.nodes[*at].id)).collect();
        let what = self.scene.draw.index(4);
        if what == 0 {
            self.scene.count("hand-overs in which a coordinator was killed");
            return self.fault(Kind::CoordinatorCrash);
        }
        let Some(at) = self.scene.draw.pick(&places).copied() else { return };
        let long = self.scene.draw.between(50 * MS, 6 * SECOND);
        match what {
            1 => {
                self.scene.count("hand-overs in which a node stood still");
                self.pause(Place::Node(at), long);
            }
            2 => {
                self.scene.count("hand-overs in which links were cut");
                self.fault(Kind::Partition);
            }
            _ if !self.nodes[at].is_down() => {
                self.scene.count("hand-overs in which a node was killed");
                self.nodes[at].crash(&mut self.scene);
                self.scene.after(long, Event::Mend(Mend::Start(at)));
            }
            _ => {}
        }
    }
}
