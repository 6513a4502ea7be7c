//! What goes wrong, when it ends, and what the coordinator does about it.

use super::{Happening, SETTLES, World};
use crate::clock::{MS, True};
use partage_core::base::name::NodeId;
use partage_service::shuffle::record::BatchKey;
use partage_service::shuffle::{buffer, holder, leader};
use std::sync::Arc;

impl World {
    pub(super) fn changes(&mut self, happening: Happening) -> Result<(), String> {
        match happening {
            Happening::Fault if self.stopped.is_none() => {
                self.fault();
                let next = self.draw.around(self.weather.fault_every);
                self.after(next, Happening::Fault);
            }
            Happening::Stop => self.stop(),
            Happening::Fills => return self.fills(),
            Happening::BulkFails => self.bulk_fails(),
            Happening::Objects(node, life, call) => self.object_store_does(node, life, call),
            Happening::ObjectAnswer(node, life, event) if self.nodes[node].incarnation == life => {
                return self.holder(node, event);
            }
            Happening::Start(node) => self.start(node),
            Happening::Map(node) => return self.hears_map(node),
            Happening::Coordinate => self.coordinate(),
            Happening::Ready { node, slot, epoch } => {
                let name = self.nodes[node].name.clone();
                if self.now >= self.away && self.pool.ready(slot, epoch, &name) {
                    self.outcome.ready += 1;
                    self.push();
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn coordinate(&mut self) {
        let rest = self.draw.between(50, 200) * MS;
        self.after(rest, Happening::Coordinate);
        if self.now < self.away {
            return;
        }
        let heard: Vec<NodeId> = (0..self.nodes.len())
            .filter(|node| self.is_heard(*node) && self.nodes[*node].process.is_some())
            .map(|node| self.nodes[node].name.clone())
            .collect();
        // A node that is down for a short while is not replaced, but nothing is moved to it.
        let known: Vec<NodeId> = (0..self.nodes.len())
            .filter(|node| self.is_heard(*node))
            .map(|node| self.nodes[node].name.clone())
            .collect();
        // Where bulk alone fails no slot moves: what a replica has that loads does not count, and would have to be waited for.
        if !self.weather.is_of_bulk_alone() && self.stopped.is_none() && self.draw.chance(30) {
            self.pool.moves(&mut self.draw, |node| heard.contains(node));
        }
        self.pool.settle(&mut self.draw, |node| known.contains(node));
        self.push();
    }

    /// Every node hears the map, sooner or later.
    fn push(&mut self) {
        for node in 0..self.nodes.len() {
            let delay = self.draw.around(self.weather.delay * 2);
            let at = (self.now + delay).max(self.nodes[node].deaf);
            self.at(at, Happening::Map(node));
        }
    }

    fn hears_map(&mut self, node: usize) -> Result<(), String> {
        let (now, settings) = (self.millis(), self.weather.settings.clone());
        if self.now < self.nodes[node].paused.max(self.nodes[node].deaf) {
            return Ok(());
        }
        let map = Arc::new(self.pool.map.clone());
        let Some(process) = &mut self.nodes[node].process else { return Ok(()) };
        if map.generation <= process.map.generation {
            return Ok(());
        }
        process.map = map.clone();
        let slots: Vec<_> = process.leaders.keys().copied().collect();
        self.names_replicas(&map);
        self.buffer(node, buffer::Event::Map(map.clone()))?;
        self.holder(node, holder::Event::Map(map.clone()))?;
        for slot in slots {
            self.leader(node, slot, leader::Event::Map(map.clone()))?;
        }
        self.nodes[node].take_leads(now, &settings);
        Ok(())
    }

    fn start(&mut self, node: usize) {
        if self.nodes[node].process.is_some() {
            return;
        }
        if self.now < self.away {
            let away = self.away;
            return self.at(away, Happening::Start(node));
        }
        let name = self.nodes[node].name.clone();
        self.pool.joins(&name);
        self.pool.started(&name);
        let (now, map) = (self.millis(), Arc::new(self.pool.map.clone()));
        self.names_replicas(&map);
        self.nodes[node].start(now, &self.weather.settings, map);
        let life = self.nodes[node].incarnation;
        self.after(0, Happening::Called { node, life });
        self.push();
    }

    /// From now on nothing goes wrong.
    fn stop(&mut self) {
        self.stopped = Some(self.now);
        self.cuts.clear();
        self.bulk_heals();
        self.away = self.away.min(self.now);
        for node in 0..self.nodes.len() {
            let one = &mut self.nodes[node];
            one.paused = one.paused.min(self.now);
            one.deaf = one.deaf.min(self.now);
            self.after(0, Happening::Start(node));
        }
        (self.weather.lost, self.weather.die, self.weather.speculated) = (0, 0, 0);
        // An event of the first job looks when all must be over.
        if self.weather.jobs > 0 {
            self.after(SETTLES + MS, Happening::Job(0));
        }
    }

    fn a_while(&mut self) -> True {
        let longest = if self.draw.chance(300) { 4_000 } else { 800 };
        self.draw.between(20, longest) * MS
    }

    fn fault(&mut self) {
        let (node, other) = (self.draw.index(self.nodes.len()), self.draw.index(self.nodes.len()));
        let lasts = self.a_while();
        match self.draw.between(0, 100) {
            0..18 => self.crash(node, lasts),
            18..21 => (0..self.nodes.len()).for_each(|node| self.crash(node, lasts)),
            21..33 => self.nodes[node].paused = self.now + lasts,
            33..45 => {
                let until = self.now + lasts;
                self.cuts.insert((node, other), until);
                if self.draw.chance(500) {
                    self.cuts.insert((other, node), until);
                }
            }
            45..50 => self.away = self.now + lasts,
            50..66 => self.usurp(lasts),
            66..76 => self.pool.moves(&mut self.draw, |_| true),
            76..81 => self.lose_disk(node, lasts),
            81..89 => self.damage(node),
            89..93 => self.after(0, Happening::Start(node)),
            93..97 => self.leave(node),
            _ => self.nodes[node].deaf = self.now + lasts,
        }
    }

    /// Some of what was not synced may be on disk all the same.
    pub(super) fn crash(&mut self, node: usize, down: True) {
        if self.nodes[node].process.take().is_none() {
            return;
        }
        self.outcome.crashes += 1;
        let pending = std::mem::take(&mut self.nodes[node].disk.pending);
        let kept = if self.draw.chance(500) { 0 } else { self.draw.index(pending.len() + 1) };
        for (_, write) in pending.into_iter().take(kept) {
            self.nodes[node].disk.apply(write);
        }
        // Either the process has ended or the machine, which takes along most of what was not synced.
        let unsynced: Vec<BatchKey> = self.nodes[node].disk.unsynced.iter().cloned().collect();
        if !unsynced.is_empty() && self.draw.chance(500) {
            for key in unsynced {
                if self.draw.chance(800) {
                    self.nodes[node].disk.forget(&key);
                    self.oracle.loses(node, key);
                    self.outcome.unsynced_lost += 1;
                }
            }
        }
        self.nodes[node].down_since = self.now;
        self.nodes[node].synced_at = self.now;
        self.after(down, Happening::Start(node));
    }

    /// Another replica leads a slot, and the one that led lives and hears of it late. Often the next one leads soon after.
    fn usurp(&mut self, lasts: True) {
        if self.now < self.away {
            return;
        }
        self.outcome.elections += 1;
        if let Some(led) = self.pool.elect(&mut self.draw).and_then(|led| self.node_of(&led)) {
            self.nodes[led].deaf = self.now + lasts;
        }
        self.push();
    }

    fn leave(&mut self, node: usize) {
        let name = self.nodes[node].name.clone();
        if !self.pool.leaving.remove(&name) && self.pool.storing() > self.weather.replicas + 1 {
            self.pool.leaving.clear();
            self.pool.leaving.insert(name);
        }
    }

    fn may_lose(&self, node: usize, keys: &[BatchKey]) -> bool {
        let is_live = |other: usize, key: &BatchKey| {
            self.pool.map.live(key.stream.slot).contains(&self.nodes[other].name)
        };
        self.oracle.may_lose(node, keys, &self.nodes, is_live)
    }

    fn lose_disk(&mut self, node: usize, lasts: True) {
        let name = self.nodes[node].name.clone();
        let is_last = self.pool.map.places.iter().any(|place| place.live == [name.clone()]);
        let keys: Vec<BatchKey> =
            self.nodes[node].disk.batches.iter().map(|batch| batch.key.clone()).collect();
        if is_last || self.now < self.away || !self.may_lose(node, &keys) {
            return;
        }
        self.outcome.lost_disks += 1;
        self.crash(node, lasts);
        keys.into_iter().for_each(|key| self.oracle.loses(node, key));
        self.nodes[node].disk = Default::default();
        self.pool.lost(&name);
        self.push();
    }

    /// A bit flips in a batch of which another replica has an intact copy.
    fn damage(&mut self, node: usize) {
        let keys: Vec<BatchKey> =
            self.nodes[node].disk.batches.iter().map(|batch| batch.key.clone()).collect();
        let Some(key) = self.draw.pick(&keys).cloned() else { return };
        if self.nodes[node].disk.has_synced(&key) && self.may_lose(node, std::slice::from_ref(&key)) {
            self.outcome.damaged += 1;
            self.oracle.loses(node, key.clone());
            self.nodes[node].disk.damaged.push(key);
        }
    }
}
