//! How long reads leave an object store alone that does not answer: each would hold a thread, and the memory of its range, for as
//! long as a call may take. After the rest one read is a trial, and others are refused until it has its answer.

use crate::limits::{LONGEST_READ_REST_MS, OBJECT_TIME, READ_REST_MS, SLOW_READ_MS};
use partage_core::base::time::Millis;

/// What the last reads were like.
#[derive(Debug, Default)]
pub(super) struct ReadRest {
    /// Reads that came to nothing after a long time, since one was answered.
    hung: u32,
    until: Millis,
    /// When the trial began.
    tried: Option<Millis>,
}

impl ReadRest {
    /// A read wants to begin. If it may not, the answer is after how many milliseconds one may try.
    pub(super) fn begin(&mut self, now: Millis) -> Result<(), u64> {
        if self.hung == 0 {
            return Ok(());
        }
        // A trial that never said how it ended is over, too.
        let trial = self.tried.map_or(Millis(0), |tried| tried + 2 * OBJECT_TIME.as_secs() * 1_000);
        let until = self.until.max(trial);
        if now < until {
            return Err(until.since(now));
        }
        self.tried = Some(now);
        Ok(())
    }

    /// Whether the store has not answered since it was left alone: but for one read, which is the trial, all are refused.
    pub(super) fn waits_for_trial(&self) -> bool {
        self.hung > 0
    }

    /// After a rest that is over.
    #[cfg(test)]
    pub(super) fn over() -> ReadRest {
        ReadRest { hung: 1, ..ReadRest::default() }
    }

    /// A read that was begun then has come to its end.
    pub(super) fn end(&mut self, (begun, now): (Millis, Millis), is_answered: bool) {
        if is_answered {
            *self = ReadRest::default();
            return;
        }
        self.tried = self.tried.filter(|tried| *tried != begun);
        // Of those that went on at the same time one counts.
        if now.since(begun) >= SLOW_READ_MS && begun >= self.until {
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
        rest.end((Millis(0), Millis(SLOW_READ_MS - 1)), false);
        assert_eq!(rest.begin(Millis(SLOW_READ_MS)), Ok(()), "it has refused at once");
        let (mut now, mut rests) = (Millis(10_000), Vec::new());
        for _ in 0..8 {
            let begun = now;
            now = begun + 20_000;
            rest.end((begun, now), false);
            // Another one that was begun with it.
            rest.end((begun, now + 1), false);
            let left = rest.begin(now).unwrap_err();
            rests.push(left);
            now = now + left;
            assert_eq!(rest.begin(now), Ok(()), "a trial");
            assert!(rest.begin(now + 1).is_err(), "one at a time");
        }
        assert_eq!(rests, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        rest.end((now, now + 30_000), true);
        assert_eq!((rest.begin(now), rest.begin(now)), (Ok(()), Ok(())), "it is slow, and answers");
        rest.end((now, now + 30_000), false);
        assert_eq!(rest.begin(now + 30_000), Err(1_000));
    }

    #[test]
    fn a_trial_without_an_end_is_over_after_a_while() {
        let mut rest = ReadRest::default();
        rest.end((Millis(0), Millis(20_000)), false);
        assert_eq!(rest.begin(Millis(21_000)), Ok(()));
        assert_eq!(rest.begin(Millis(21_001)), Err(39_999));
        assert_eq!(rest.begin(Millis(61_000)), Ok(()));
        // One that is refused at once is over.
        rest.end((Millis(61_000), Millis(61_010)), false);
        assert_eq!(rest.begin(Millis(61_010)), Ok(()));
    }
}
