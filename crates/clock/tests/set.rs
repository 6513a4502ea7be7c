//! A system whose time of day is set while a process runs: what the process shows goes on.

use partage_clock::{set, unix_ms, wall_behind_seconds, wall_ms};

const HOUR_MS: i64 = 3_600_000;

/// Alone in its file: the time of day is that of the whole process.
#[test]
fn a_step_of_the_time_of_day_is_a_difference_and_no_step() {
    let before = wall_ms();
    assert!(wall_behind_seconds().abs() < 1.0);
    set::ahead_by_ms(HOUR_MS);
    assert!(unix_ms() >= before + 3_600_000);
    let after = wall_ms();
    assert!((before..before + 600_000).contains(&after), "{before} {after}");
    assert!((3_000.0..=3_601.0).contains(&wall_behind_seconds()), "{}", wall_behind_seconds());
    set::ahead_by_ms(-HOUR_MS);
    assert!(wall_ms() >= after, "it never goes back");
    assert!(wall_behind_seconds() < -3_000.0, "{}", wall_behind_seconds());
    set::ahead_by_ms(0);
    assert!(wall_behind_seconds().abs() < 60.0);
}
