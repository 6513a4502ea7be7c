//! Metadata servers under faults: T6 to T9, M2 and M3, from seeds.

use partage_core::planted::{self, Planted};
use sim::metadata::run;

/// Seeds of the suite; `long` has more.
const SEEDS: u64 = 300;

#[test]
fn nothing_is_lost_and_nothing_is_left_behind() {
    let (mut commits, mut crashes, mut lists) = (0, 0, 0);
    for seed in 0..SEEDS {
        let outcome = run(seed);
        assert_eq!(outcome.broken, None, "seed {seed} after {} steps", outcome.steps);
        commits += outcome.commits as u64;
        crashes += outcome.crashes;
        lists += outcome.lists;
    }
    // A suite in which hardly anything came through would prove nothing.
    println!("{commits} commits, {crashes} crashes, {lists} lists");
    assert!(commits > 50 * SEEDS, "{commits} commits");
    assert!(crashes > 5 * SEEDS && lists > 5 * SEEDS, "{crashes} crashes, {lists} changes of the list");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(7), run(7));
}

#[test]
fn planted_bugs_are_caught() {
    for bug in Planted::METADATA {
        planted::plant(Some(bug));
        let caught = (0..50).find_map(|seed| run(seed).broken.map(|broken| (seed, broken)));
        planted::plant(None);
        assert!(caught.is_some(), "{bug:?} went unnoticed");
    }
}
