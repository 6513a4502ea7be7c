//! When what has failed is tried again: with back-off, and within a budget.

use crate::error::Error;
use crate::settings::Settings;
use std::time::Duration;
use tokio::time::sleep;

/// Answers that give back one round.
const ANSWERS_A_ROUND: u32 = 10;

/// The budget of one request, one attempt or one read.
#[derive(Debug, Clone)]
pub(crate) struct Retry {
    /// Rounds that are left, in answers.
    left: u32,
    most: u32,
    rest: Duration,
    first_rest: Duration,
    longest_rest: Duration,
}

impl Retry {
    pub(crate) fn new(settings: &Settings) -> Retry {
        let most = settings.retry_budget.saturating_mul(ANSWERS_A_ROUND);
        let Settings { first_rest, longest_rest, .. } = *settings;
        Retry { left: most, most, rest: first_rest, first_rest, longest_rest }
    }

    /// Gives back a tenth of a round, and makes the next rest short again: an answer came.
    pub(crate) fn answered(&mut self) {
        self.left = self.left.saturating_add(1).min(self.most);
        self.rest = self.first_rest;
    }

    /// How long to rest before the next try; none: the budget is used up.
    fn next_rest(&mut self) -> Option<Duration> {
        self.left = self.left.checked_sub(ANSWERS_A_ROUND)?;
        let rest = self.rest;
        self.rest = rest.saturating_mul(2).min(self.longest_rest);
        Some(rest)
    }

    /// Waits before the next try.
    ///
    /// # Errors
    /// Trying again makes no sense, or the budget is used up: then it is the error that was given.
    pub(crate) async fn rest(&mut self, error: Error) -> Result<(), Error> {
        if !error.runs_again() {
            return Err(error);
        }
        let Some(rest) = self.next_rest() else { return Err(error) };
        tracing::debug!(%error, ?rest, "what has failed is tried again");
        sleep(partage_random::around(rest)).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_double_up_to_the_longest_and_the_budget_ends() {
        let settings = Settings {
            retry_budget: 4,
            first_rest: Duration::from_millis(1),
            longest_rest: Duration::from_millis(4),
            ..Settings::default()
        };
        let mut retry = Retry::new(&settings);
        let rests: Vec<_> = std::iter::from_fn(|| retry.next_rest()).map(|rest| rest.as_millis()).collect();
        assert_eq!(rests, [1, 2, 4, 4]);
        for _ in 0..10 {
            assert_eq!(retry.next_rest(), None);
            retry.answered();
        }
        assert_eq!(retry.next_rest(), Some(Duration::from_millis(1)), "ten answers give a round back");
    }
}
