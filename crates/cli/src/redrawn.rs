//! Lines and bars on stderr that are drawn over and over while something goes on, where a person looks on.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// How long a line that moves by itself stays as it is.
const TICK: Duration = Duration::from_millis(200);

/// Whether a person looks on.
pub fn is_watched() -> bool {
    std::io::stderr().is_terminal()
}

/// A line that says what is done now, and for how long the whole has lasted.
pub fn spinner(is_quiet: bool) -> ProgressBar {
    drawn(ProgressBar::new_spinner(), "{spinner} {elapsed}  {wide_msg}", is_quiet)
}

/// Draws `bar` by a template of indicatif; nothing where no person looks on, or with `is_quiet`. What is longer than the
/// terminal is wide must be `{wide_msg}`, which is cut there: only one row is drawn over.
pub fn drawn(bar: ProgressBar, template: &str, is_quiet: bool) -> ProgressBar {
    if is_quiet || !is_watched() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    bar
}
