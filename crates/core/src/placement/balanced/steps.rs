//! Which steps a hot node can take, in classes by price.

use super::search::{NOISE, Search, Step};
use crate::placement::problem::NodeIndex;

impl Search<'_, '_> {
    /// The best step for a hot node among the cheapest class that has any: first those that send no
    /// further replica away from home, then one more, then two more.
    pub(super) fn best_step(&mut self, hot: NodeIndex, dearest: i64) -> Option<Step> {
        let near = self.neighbours(hot);
        self.state.listed += (near.len() + self.state.held[hot as usize].len()) as u64;
        let mut best = self.free_step(hot, &near);
        for price in 1..=dearest {
            if best.is_some() {
                break;
            }
            best = self.priced_step(hot, &near, price);
        }
        best
    }

    fn free_step(&mut self, hot: NodeIndex, near: &[NodeIndex]) -> Option<Step> {
        let mut best = None;
        for slot in self.state.arrived[hot as usize].clone() {
            if !self.could_beat(&best, hot, slot) {
                continue;
            }
            for to in near {
                self.consider(&mut best, hot, slot, *to, None);
                if !self.could_beat(&best, hot, slot) {
                    break;
                }
                for at in 0..self.state.arrived[*to as usize].len() {
                    let back = self.state.arrived[*to as usize][at];
                    self.consider(&mut best, hot, slot, *to, Some(back));
                }
            }
            // Home again, alone or in exchange for another replica there.
            if let Some(home) = self.home(slot).filter(|home| *home != hot) {
                self.consider(&mut best, hot, slot, home, None);
                for at in 0..self.state.held[home as usize].len() {
                    let back = self.state.held[home as usize][at];
                    self.consider(&mut best, hot, slot, home, Some(back));
                }
            }
        }
        // Another leaves, and one that had left comes back.
        for back in self.state.departed[hot as usize].clone() {
            let to = self.place_of(back);
            for at in 0..self.state.held[hot as usize].len() {
                let slot = self.state.held[hot as usize][at];
                self.consider(&mut best, hot, slot, to, Some(back));
            }
        }
        best
    }

    fn priced_step(&mut self, hot: NodeIndex, near: &[NodeIndex], price: i64) -> Option<Step> {
        let mut best = None;
        let mut slots: Vec<(f64, u32)> =
            self.state.held[hot as usize].iter().map(|slot| (self.relief(hot, *slot), *slot)).collect();
        slots.sort_by(|a, b| b.0.total_cmp(&a.0));
        // Moves first: mostly one of them does all that can be done, without a swap.
        for (_, slot) in &slots {
            for to in near {
                if !self.could_beat(&best, hot, *slot) {
                    break;
                }
                if self.price(*slot, *to) <= price {
                    self.consider(&mut best, hot, *slot, *to, None);
                }
            }
        }
        for (_, slot) in &slots {
            for to in near {
                if !self.could_beat(&best, hot, *slot) {
                    break;
                }
                // A replica away from home comes back at no price; one at home there costs one.
                let homely = self.price(*slot, *to) < price;
                self.consider_swaps(&mut best, hot, *slot, *to, homely);
            }
        }
        best
    }

    fn consider_swaps(
        &mut self,
        best: &mut Option<Step>,
        hot: NodeIndex,
        slot: u32,
        to: NodeIndex,
        homely: bool,
    ) {
        let partners = |search: &Self| match homely {
            true => search.state.held[to as usize].len(),
            false => search.state.arrived[to as usize].len(),
        };
        for at in 0..partners(self) {
            let back =
                if homely { self.state.held[to as usize][at] } else { self.state.arrived[to as usize][at] };
            self.consider(best, hot, slot, to, Some(back));
        }
    }

    /// Whether a step with this replica can be better than the best so far.
    fn could_beat(&self, best: &Option<Step>, hot: NodeIndex, slot: u32) -> bool {
        best.is_none_or(|best| self.relief(hot, slot) > best.gain + NOISE)
    }
}
