//! Bars on stderr while something loads, where a person looks on.

use crate::terminal::line;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// A bar of bytes. Nothing is drawn where no person looks on, or with `--json`.
pub fn bar(what: &str, is_json: bool) -> ProgressBar {
    let bar = ProgressBar::no_length().with_message(line(what).into_owned());
    if is_json || !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template(
        "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} to go",
    );
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
