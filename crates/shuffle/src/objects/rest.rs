//! How long reads leave an object store alone that does not answer: each would hold a thread and the memory of its range for as
//! long as a call may take, which reads of the disk need.

use crate::limits::{LONGEST_READ_REST_MS, READ_REST_MS, SLOW_READ_MS};
use partage_core::base::time::Millis;

/// What the last reads were like.
#[derive(Debug, Default)]
pub(super) struct ReadRest {
    /// Reads in a row that came to nothing after a long time.
    hung: u32,
    until: Millis,
}

impl ReadRest {
    /// For how long nothing is read from now on, in milliseconds. None: the store may be asked.
    pub(super) fn left(&self, now: Millis) -> Option<u64> {
        Some(self.until.since(now)).filter(|left| *left > 0)
    }

    /// A read that was begun then has come to its end.
    pub(super) fn read(&mut self, (begun, now): (Millis, Millis), is_answered: bool) {
        if is_answered {
            *self = ReadRest::default();
        } else if now.since(begun) >= SLOW_READ_MS && begun >= self.until {
            // Of those that went on at the same time one counts.
            self.until = now + READ_REST_MS.saturating_mul(1 << self.hung.min(20)).min(LONGEST_READ_REST_MS);
            self.hung = self.hung.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_does_not_answer_rests_for_longer_and_longer_and_one_that_refuses_does_not() {
        let mut rest = ReadRest::default();
        rest.read((Millis(0), Millis(SLOW_READ_MS - 1)), false);
        assert_eq!(rest.left(Millis(SLOW_READ_MS)), None, "it has refused at once");
        let (mut now, mut rests) = (Millis(10_000), Vec::new());
        for _ in 0..8 {
            let begun = now;
            now = begun + 20_000;
            rest.read((begun, now), false);
            // Another one that was begun with it.
            rest.read((begun, now + 1), false);
            rests.push(rest.left(now).unwrap());
            now = now + rest.left(now).unwrap();
            assert_eq!(rest.left(now), None);
        }
        assert_eq!(rests, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        rest.read((now, now + 30_000), true);
        assert_eq!(rest.left(now), None, "it is slow, and answers");
        rest.read((now, now + 30_000), false);
        assert_eq!(rest.left(now + 30_000), Some(1_000));
    }
}
