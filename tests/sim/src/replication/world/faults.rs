//! What goes wrong, and when it ends.

use super::{ALONE, Happening, LIMPS, SETTLES, World};
use crate::clock::{MS, True};
use partage_core::base::id::PlacementId;

impl World {
    pub(super) fn weather_changes(&mut self, happening: Happening) {
        match happening {
            Happening::Fault if self.stopped.is_none() => {
                self.fault();
                let next = self.draw.around(self.weather.fault_every);
                self.after(next, Happening::Fault);
            }
            Happening::Limp => self.limp(),
            Happening::Stop => self.stop(),
            Happening::LeadMoves => self.lead_moves(),
            // The coordinator goes away for ever, and no client is to notice.
            Happening::Alone => {
                self.must_serve = Some(self.now);
                self.coordinator.away = True::MAX;
            }
            _ => {}
        }
    }

    /// From now on nothing goes wrong but that one node is slow, for a minute.
    fn limp(&mut self) {
        self.ends_faults();
        let (node, now) = (self.draw.index(self.nodes.len()), self.now);
        self.nodes[node].slow.begin_to_halt(&mut self.draw, now, now + LIMPS);
        self.limps = Some(self.coordinator.granted.clone());
    }

    fn stop(&mut self) {
        self.ends_faults();
        self.after(SETTLES / 2, Happening::LeadMoves);
        self.after(SETTLES - 2 * ALONE / 10, Happening::Alone);
    }

    fn ends_faults(&mut self) {
        self.stopped = Some(self.now);
        self.cuts.clear();
        for node in 0..self.nodes.len() {
            self.nodes[node].hesitates = 0;
            self.nodes[node].slow.end(self.now);
            self.after(0, Happening::Start(node));
        }
        self.coordinator.away = self.coordinator.away.min(self.now);
        self.after(0, Happening::Returns);
        let before = self.coordinator.generation;
        self.coordinator.take_hand_overs_back();
        self.push(before);
    }

    fn a_while(&mut self) -> True {
        let longest = if self.draw.chance(300) { 5_000 } else { 1_500 };
        self.draw.between(30, longest) * MS
    }

    fn fault(&mut self) {
        let (node, shard) = (self.draw.index(self.nodes.len()), self.draw.index(self.weather.shards));
        let lasts = self.a_while();
        match self.draw.between(0, 100) {
            0..12 => self.crash(node, lasts),
            12..15 => {
                for node in 0..self.nodes.len() {
                    let down = self.draw.between(20, 2_000) * MS;
                    self.crash(node, down);
                }
            }
            15..27 => self.pause(node, lasts),
            27..39 => {
                let other = self.draw.index(self.nodes.len() + 1);
                let both = self.draw.chance(500);
                self.cut(node, other, lasts, both);
            }
            39..45 => (0..=self.nodes.len()).for_each(|other| self.cut(node, other, lasts, true)),
            45..52 => self.cut(node, self.nodes.len(), lasts, true),
            52..57 => {
                self.coordinator.away = self.now + 2 * lasts;
                self.after(2 * lasts, Happening::Returns);
            }
            57..63 => {
                let drops = self.draw.chance(500);
                self.after(0, Happening::Elect { shard, heir: None, drops });
            }
            63..73 => self.usurp(shard, lasts),
            73..81 => self.split_in_two(shard, lasts),
            81..84 => self.nodes[node].hesitates = self.now + lasts,
            84..88 => self.slow(node, self.now + 2 * lasts),
            88..91 => self.transfer(shard),
            91..95 => self.exchange(shard),
            95..97 => self.pause_the_leader(shard, lasts),
            _ => {
                let now = self.now;
                self.nodes[node].clock.drift(&mut self.draw, now);
            }
        }
    }

    /// A process ends with what is not synced, and another starts later. Some writes may be on disk without any node knowing.
    fn crash(&mut self, node: usize, down: True) {
        if !self.nodes[node].is_up {
            return;
        }
        let kept = if self.draw.chance(300) { self.draw.between(0, 4) as usize } else { 0 };
        self.nodes[node].crash(kept);
        self.outcome.crashes += 1;
        self.after(down, Happening::Start(node));
    }

    /// Now and then, between two chunks, the process of a follower ends for a moment, or the leader does not hear it for longer
    /// than it keeps its log for a copy.
    pub(super) fn interrupt_copy(&mut self, leader: usize, follower: usize) {
        if self.stopped.is_some() || !self.copy_draw.chance(350) {
            return;
        }
        if self.copy_draw.chance(500) {
            let down = self.copy_draw.between(20, 500) * MS;
            self.crash(follower, down);
        } else {
            let patience = self.weather.settings.copy_patience_ms;
            let lasts = self.copy_draw.between(patience, 3 * patience) * MS;
            self.cut(leader, follower, lasts, true);
        }
    }

    fn pause(&mut self, node: usize, lasts: True) {
        self.nodes[node].paused = self.now + lasts;
    }

    /// All that it does takes long, until then.
    fn slow(&mut self, node: usize, until: True) {
        self.outcome.slow += 1;
        let (now, draw) = (self.now, &mut self.draw);
        self.nodes[node].slow.begin(draw, now, until);
    }

    fn cut(&mut self, one: usize, other: usize, lasts: True, both: bool) {
        let until = self.now + lasts;
        self.cuts.insert((one, other), until);
        if both {
            self.cuts.insert((other, one), until);
        }
    }

    fn leader(&self, shard: usize) -> Option<(PlacementId, usize)> {
        let leader = self.coordinator.maps[shard].leader;
        Some((leader, self.coordinator.node_of(shard, leader)?))
    }

    fn heir(&mut self, shard: usize) -> Option<(PlacementId, usize)> {
        let map = &self.coordinator.maps[shard];
        let others: Vec<_> = map.in_sync.iter().copied().filter(|one| *one != map.leader).collect();
        let heir = self.draw.pick(&others).copied()?;
        Some((heir, self.coordinator.node_of(shard, heir)?))
    }

    /// A follower becomes leader while the leader, which lives, cannot hear of it. Often the follower has just started.
    fn usurp(&mut self, shard: usize, lasts: True) {
        let (Some((_, leader)), Some((heir, node))) = (self.leader(shard), self.heir(shard)) else { return };
        let lasts = lasts.max(1_200 * MS);
        self.cut(leader, self.nodes.len(), lasts, true);
        let mut soon = self.draw.between(1, 300) * MS;
        if self.draw.chance(600) {
            let down = self.draw.between(5, 60) * MS;
            self.crash(node, down);
            soon = down + self.draw.between(10, 200) * MS;
        }
        if self.draw.chance(700) {
            self.cut(leader, node, lasts, true);
        }
        let drops = self.draw.chance(800);
        self.after(soon, Happening::Elect { shard, heir: Some(heir), drops });
        // Or that one is replaced before it has begun, and hears of it.
        if self.draw.chance(400) {
            let later = soon + self.draw.between(30, 400) * MS;
            self.after(later, Happening::Elect { shard, heir: None, drops: false });
        }
    }

    /// Some nodes do not hear the others and the coordinator; the leader is one of them, and another is made leader.
    fn split_in_two(&mut self, shard: usize, lasts: True) {
        let (Some((_, leader)), Some((heir, node))) = (self.leader(shard), self.heir(shard)) else { return };
        let lasts = lasts.max(2_500 * MS);
        let mut apart = vec![leader];
        for other in (0..self.nodes.len()).filter(|other| *other != leader && *other != node) {
            if self.draw.chance(400) {
                apart.push(other);
            }
        }
        for one in &apart {
            for other in (0..=self.nodes.len()).filter(|other| !apart.contains(other)) {
                self.cut(*one, other, lasts, true);
            }
        }
        // Until then the coordinator finds them silent.
        self.after(1_100 * MS, Happening::Elect { shard, heir: Some(heir), drops: true });
    }

    fn pause_the_leader(&mut self, shard: usize, lasts: True) {
        if let (Some((_, leader)), Some((heir, _))) = (self.leader(shard), self.heir(shard)) {
            self.pause(leader, lasts);
            let soon = self.draw.between(1, 200) * MS;
            self.after(soon, Happening::Elect { shard, heir: Some(heir), drops: true });
        }
    }

    fn transfer(&mut self, shard: usize) {
        if let Some((heir, _)) = self.heir(shard) {
            self.outcome.transfers += 1;
            self.after(0, Happening::Transfer { shard, heir });
        }
    }

    /// A replica out of sync goes, and its data with it; a new one comes. Or a read replica becomes a member.
    fn exchange(&mut self, shard: usize) {
        let before = self.coordinator.generation;
        let is_there = self.weather.readers > 0 && self.now >= self.coordinator.away;
        if is_there && self.draw.chance(300) && self.coordinator.promote(shard) {
            return self.push(before);
        }
        let map = &self.coordinator.maps[shard];
        let out = map.peers.iter().map(|peer| peer.placement).find(|one| !map.in_sync.contains(one));
        if let Some(out) = out.filter(|_| self.now >= self.coordinator.away) {
            self.coordinator.exchange(shard, out, &mut self.draw);
            self.push(before);
        }
    }
}
