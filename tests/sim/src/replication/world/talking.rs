//! The network, and the coordinator's part.

use super::{Happening, World};
use crate::clock::{MS, SECOND};
use crate::replication::coordinator::Beat;

impl World {
    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.get(&(from, to)).is_some_and(|until| self.now < *until)
    }

    /// Sends from one node to another (or the coordinator): lost, late, doubled, out of order.
    pub(super) fn send(&mut self, from: usize, to: usize, happening: Happening) {
        if self.is_cut(from, to) {
            return;
        }
        let fine = self.stopped.is_some();
        let (lost, doubled, late) = (self.weather.lost, self.weather.doubled, self.weather.late);
        if !fine && self.draw.chance(lost) {
            return;
        }
        let copies = if !fine && self.draw.chance(doubled) { 2 } else { 1 };
        for _ in 0..copies {
            let extra = if !fine && self.draw.chance(late) { self.draw.between(10, 3_000) * MS } else { 0 };
            let delay = self.draw.around(self.weather.delay) + extra;
            self.after(delay, happening.clone());
        }
    }

    pub(super) fn beat_arrives(&mut self, beat: Beat) {
        if self.now < self.coordinator.away {
            return;
        }
        let (node, before) = (beat.node, self.coordinator.generation);
        let asked = beat.reports.values().filter(|report| report.wish.is_some()).count();
        let refused = self.coordinator.beat(self.now, beat, &mut self.draw);
        self.outcome.wishes += (asked - refused.len()) as u64;
        for wish in refused {
            let (placement, epoch, configuration) = (wish.placement, wish.epoch, wish.configuration);
            let told = Happening::Refused { node, placement, epoch, configuration };
            self.send(self.nodes.len(), node, told);
        }
        self.push(before);
        self.push_to(node);
    }

    /// All nodes are sent their orders if there are new ones.
    pub(super) fn push(&mut self, before: u64) {
        if self.coordinator.generation != before {
            (0..self.nodes.len()).for_each(|node| self.push_to(node));
        }
    }

    fn push_to(&mut self, node: usize) {
        let generation = self.coordinator.generation;
        let orders = self.coordinator.orders(node);
        self.send(self.nodes.len(), node, Happening::Orders { node, generation, orders });
    }

    pub(super) fn coordinate(&mut self, happening: Happening) {
        let (now, before) = (self.now, self.coordinator.generation);
        let is_there = now >= self.coordinator.away;
        match happening {
            Happening::Decide => {
                if is_there {
                    self.coordinator.decide(now, &mut self.draw);
                }
                self.after(SECOND / 5, Happening::Decide);
            }
            Happening::Returns if is_there => self.coordinator.comes_back(now),
            Happening::Elect { shard, heir, drops } if is_there => {
                self.coordinator.elect(now, shard, heir, drops, &mut self.draw);
            }
            Happening::Transfer { shard, heir } if is_there && self.stopped.is_none() => {
                self.coordinator.order_hand_over(shard, heir);
            }
            _ => {}
        }
        self.push(before);
    }
}
