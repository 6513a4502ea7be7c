//! The coordinator of the pool, by a simple map: it replaces nodes that are silent, moves slots, and changes leaders.
//!
//! Each process that leads a slot has an epoch of its own, and so has each set of replicas that one was added to.

use crate::draw::Draw;
use partage_core::base::id::Epoch;
use partage_core::base::name::NodeId;
use partage_service::shuffle::PoolSlot;
use partage_service::shuffle::pool::{PoolMap, SlotPlace};
use std::collections::BTreeSet;

#[derive(Debug)]
pub struct Pool {
    pub map: PoolMap,
    /// Nodes that are to have nothing.
    pub leaving: BTreeSet<NodeId>,
}

impl Pool {
    /// `nodes` store; `buffers` never do, and are part of the pool once they have started.
    pub fn new(nodes: &[NodeId], buffers: &[NodeId], slots: usize, replicas: usize) -> Pool {
        let place = |slot: usize| {
            let live = (0..replicas).filter_map(|at| nodes.get((slot + at) % nodes.len()).cloned());
            SlotPlace { epoch: Epoch(1), live: live.collect(), loading: Vec::new() }
        };
        let places = (0..slots).map(place).collect();
        let map = PoolMap {
            generation: 1,
            replicas,
            places,
            nodes: nodes.to_vec(),
            no_stand_ins: buffers.iter().cloned().collect(),
        };
        Pool { map, leaving: BTreeSet::new() }
    }

    /// A process of the node has started: what it leads it leads under another epoch, or another node does.
    pub fn started(&mut self, node: &NodeId) {
        self.map.generation += 1;
        for place in &mut self.map.places {
            if place.live.first() == Some(node) {
                place.live.rotate_left(1);
                place.epoch = place.epoch.next();
            }
        }
    }

    /// All that the node had is lost: it is no replica any more.
    pub fn lost(&mut self, node: &NodeId) {
        (0..self.map.places.len()).for_each(|slot| self.remove(slot, node));
    }

    fn remove(&mut self, slot: usize, node: &NodeId) {
        let place = &mut self.map.places[slot];
        place.loading.retain(|one| one != node);
        if place.live.contains(node) && place.live.len() > 1 {
            let led = place.live.first() == Some(node);
            place.live.retain(|one| one != node);
            if led {
                place.epoch = place.epoch.next();
            }
        }
        self.map.generation += 1;
    }

    fn add(&mut self, slot: usize, node: NodeId) {
        let place = &mut self.map.places[slot];
        place.loading.push(node);
        place.epoch = place.epoch.next();
        self.map.generation += 1;
    }

    /// A loading replica has everything.
    pub fn ready(&mut self, slot: PoolSlot, epoch: Epoch, node: &NodeId) -> bool {
        let place = &mut self.map.places[slot.0 as usize];
        if place.epoch != epoch || !place.loading.contains(node) {
            return false;
        }
        place.loading.retain(|one| one != node);
        place.live.push(node.clone());
        self.map.generation += 1;
        true
    }

    /// What there are too many of goes, what lacks is loaded. `is_up` says which nodes are heard.
    pub fn settle(&mut self, draw: &mut Draw, is_up: impl Fn(&NodeId) -> bool) {
        for slot in 0..self.map.places.len() {
            let place = self.map.places[slot].clone();
            let dead: Vec<_> = place.live.iter().chain(&place.loading).filter(|node| !is_up(node)).collect();
            for node in dead {
                self.remove(slot, node);
            }
            let place = self.map.places[slot].clone();
            if place.live.len() > self.map.replicas {
                let leaves = place.live.iter().find(|node| self.leaving.contains(*node));
                if let Some(node) = leaves.or(place.live.first()) {
                    self.remove(slot, &node.clone());
                }
                continue;
            }
            let wants_out = place.live.iter().any(|node| self.leaving.contains(node));
            if place.loading.is_empty() && (place.live.len() < self.map.replicas || wants_out) {
                self.load(draw, slot, &is_up);
            }
        }
    }

    fn load(&mut self, draw: &mut Draw, slot: usize, is_up: impl Fn(&NodeId) -> bool) {
        let place = &self.map.places[slot];
        let may = |node: &&NodeId| {
            !place.live.contains(node)
                && !place.loading.contains(node)
                && !self.leaving.contains(*node)
                && !self.only_buffers(node)
                && is_up(node)
        };
        let free: Vec<NodeId> = self.map.nodes.iter().filter(may).cloned().collect();
        if let Some(node) = draw.pick(&free).cloned() {
            self.add(slot, node);
        }
    }

    /// A slot moves: another node loads it, and later one of its replicas goes.
    pub fn moves(&mut self, draw: &mut Draw, is_up: impl Fn(&NodeId) -> bool) {
        let slot = draw.index(self.map.places.len());
        let place = &self.map.places[slot];
        if place.loading.is_empty() && place.live.len() == self.map.replicas {
            self.load(draw, slot, is_up);
        }
    }

    /// Another replica leads. The answer is the one that led.
    pub fn elect(&mut self, draw: &mut Draw) -> Option<NodeId> {
        let slot = draw.index(self.map.places.len());
        let place = &mut self.map.places[slot];
        let led = place.live.first().cloned();
        place.live.rotate_left(1);
        place.epoch = place.epoch.next();
        self.map.generation += 1;
        led
    }

    pub fn only_buffers(&self, node: &NodeId) -> bool {
        self.map.no_stand_ins.contains(node)
    }

    /// Nodes that have or may have something to store.
    pub fn storing(&self) -> usize {
        self.map.nodes.iter().filter(|node| !self.only_buffers(node)).count()
    }

    pub fn joins(&mut self, node: &NodeId) {
        if !self.map.nodes.contains(node) {
            self.map.nodes.push(node.clone());
            self.map.generation += 1;
        }
    }
}
