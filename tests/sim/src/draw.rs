//! Draws: everything that chance decides in a run, from one seed.
//!
//! SplitMix64 (Steele, Lea, Flood 2014), written out because a seed must give the same run for as long as the
//! simulator lives, whichever version of a random number library is in fashion.

/// A stream of draws.
#[derive(Debug, Clone)]
pub struct Draw(u64);

impl Draw {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Draw {
        Draw(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` (included) to `high` (excluded).
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.bits() % (high - low).max(1)
    }

    /// An index below `len`.
    pub fn index(&mut self, len: usize) -> usize {
        self.between(0, len as u64) as usize
    }

    /// True `permille` times in a thousand.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.bits() % 1000 < permille
    }

    /// A time around `typical`: usually up to twice as much, one in fifty up to twenty times.
    pub fn around(&mut self, typical: u64) -> u64 {
        let most = if self.chance(20) { 20 * typical } else { 2 * typical };
        self.between(typical / 4, most.max(1))
    }

    /// One of `from`, if there is any.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { from.get(self.index(from.len())) }
    }
}
