//! What is being computed, on stderr, where a person looks on: a large sample takes minutes.

use crate::redrawn::spinner;
use crate::terminal::line;
use indicatif::ProgressBar;
use partage_service::whatif;

/// One line that is drawn over and over, with the time that has passed; nothing where no person looks on, or with `--json`.
pub struct Progress {
    line: ProgressBar,
}

impl Progress {
    pub fn new(is_json: bool) -> Progress {
        Progress { line: spinner(is_json) }
    }

    /// What is being done now.
    pub fn on(&mut self, what: &str) {
        self.line.set_message(line(what).into_owned());
    }

    /// A step of the comparison begins.
    pub fn step(&mut self, step: &whatif::StepStarted<'_>) {
        self.line.set_message(line(&text(step)).into_owned());
    }

    /// Takes the line away.
    pub fn end(&mut self) {
        self.line.finish_and_clear();
    }
}

impl Drop for Progress {
    /// Also where it fails in between, so that the error stands on a line of its own.
    fn drop(&mut self) {
        self.end();
    }
}

fn text(step: &whatif::StepStarted<'_>) -> String {
    let when = if step.event.is_empty() { "start" } else { step.event };
    format!("{} of {}: {when}, {}", step.number, step.of, step.scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_told_with_its_number_its_event_and_its_scheme() {
        let scheme = whatif::Scheme::parse("jump", 8).unwrap();
        let step = |event| whatif::StepStarted { number: 2, of: 6, event, scheme: &scheme };
        assert_eq!(text(&step("")), "2 of 6: start, jump");
        assert_eq!(text(&step("n9 joins")), "2 of 6: n9 joins, jump");
    }
}
