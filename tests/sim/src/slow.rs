//! Nodes that are slow: a process that gets little of its machine's time. All that it does takes many times as long, and now and
//! then it does nothing for a while, as others have their turn. What comes for it waits, in order: it is late, and nothing is
//! lost. Its clock goes on.

use crate::clock::{MS, SECOND, True};
use crate::draw::Draw;

/// What one thing takes that a process does when it is not slow: a message, a timer, an order, what its disk has done.
const STEP: True = 300;

/// The longest that anything waits.
const LATEST: True = 3 * SECOND;

/// So soon a node that halts often does so again.
const OFTEN: True = 2 * SECOND;

/// How slow a node is, if it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Slow {
    until: True,
    /// How many times as long all takes.
    times: u64,
    /// When it comes to what arrives now.
    free_at: True,
    /// When it does nothing for a while, and how long after such a while the next one comes at most.
    halts_at: True,
    halts_every: True,
}

impl Slow {
    /// It is, until then.
    pub fn begin(&mut self, draw: &mut Draw, now: True, until: True) {
        self.until = until.max(self.until);
        self.times = draw.between(5, 51);
        self.halts_every = *draw.pick(&[SECOND, OFTEN, 6 * SECOND]).unwrap_or(&OFTEN);
        self.halts_at = now + draw.between(0, self.halts_every);
    }

    /// It is a little, until then, and does nothing for a while again and again: others find it silent, and soon after it has
    /// come to all that waited.
    pub fn begin_to_halt(&mut self, draw: &mut Draw, now: True, until: True) {
        self.begin(draw, now, until);
        (self.times, self.halts_every) = (draw.between(2, 6), OFTEN);
    }

    /// It is no more. It still has to come to what waits.
    pub fn end(&mut self, now: True) {
        self.until = self.until.min(now);
    }

    /// Another process is there, for which nothing waits.
    pub fn restart(&mut self) {
        self.free_at = 0;
    }

    /// When it comes to what arrives now.
    pub fn comes_to(&mut self, draw: &mut Draw, now: True) -> True {
        let begins = self.free_at.clamp(now, now + LATEST);
        if now < self.until {
            let halts = now >= self.halts_at;
            let halt = if halts { draw.between(200, 1_500) * MS } else { 0 };
            if halts {
                self.halts_at = begins + halt + draw.between(300 * MS, self.halts_every);
            }
            self.free_at = begins + halt + draw.around(self.times * STEP);
        }
        begins
    }

    /// How long it takes for what takes so long when it is not slow. What takes long anyway waits for something else.
    pub fn takes(&self, now: True, usual: True) -> True {
        if now < self.until { (usual * self.times).min(usual.max(LATEST)) } else { usual }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_for_a_slow_node_waits_in_order_and_not_for_ever() {
        let (mut draw, mut slow) = (Draw::new(3), Slow::default());
        assert_eq!((slow.comes_to(&mut draw, 7), slow.takes(7, 5)), (7, 5));
        slow.begin(&mut draw, 7, 10 * SECOND);
        assert!(slow.takes(8, 5) >= 25);
        let begun: Vec<_> = (0..10_000).map(|at| (at * MS, slow.comes_to(&mut draw, at * MS))).collect();
        assert!(begun.windows(2).all(|pair| pair[0].1 <= pair[1].1));
        assert!(begun.iter().all(|(came, begins)| (*came..=*came + LATEST).contains(begins)));
        assert!(begun.iter().any(|(came, begins)| begins - came > 500 * MS));
        slow.end(9 * SECOND);
        let later = 11 * SECOND + LATEST;
        assert_eq!(slow.comes_to(&mut draw, later), later);
    }
}
