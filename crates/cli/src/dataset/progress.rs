//! Bars on stderr while something loads, where a person looks on.

use crate::redrawn::drawn;
use crate::terminal::line;
use indicatif::ProgressBar;

/// A bar of bytes. Nothing is drawn where no person looks on, or with `--json`.
pub fn bar(what: &str, is_json: bool) -> ProgressBar {
    let bar = ProgressBar::no_length().with_message(line(what).into_owned());
    drawn(bar, "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} to go", is_json)
}
