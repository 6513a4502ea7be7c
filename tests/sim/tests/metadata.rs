//! Metadata servers under faults: T6 to T9, M2 and M3, from seeds.

use partage_core::base::planted::{self, Planted};
use sim::metadata::run;

/// Seeds of the suite; `long` has more.
const SEEDS: u64 = 300;

/// Seeds within which each planted bug is found.
const FOUND_WITHIN: u64 = 200;

#[test]
fn nothing_is_lost_and_nothing_is_left_behind() {
    let (mut commits, mut crashes, mut lists, mut births) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let outcome = run(seed);
        assert_eq!(outcome.broken, None, "seed {seed} after {} steps", outcome.steps);
        commits += outcome.commits as u64;
        crashes += outcome.crashes;
        lists += outcome.lists;
        births += outcome.births as u64;
    }
    // A suite in which hardly anything came through would prove nothing.
    let all = format!("{commits} commits, {crashes} crashes, {lists} changes of the list, {births} births");
    println!("{all}");
    assert!(commits > 20 * SEEDS && crashes > 5 * SEEDS && lists > 5 * SEEDS && births > 5 * SEEDS, "{all}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(7), run(7));
}

#[test]
fn planted_bugs_are_caught() {
    for bug in Planted::METADATA {
        planted::plant(Some(bug));
        let caught = (0..FOUND_WITHIN).find_map(|seed| run(seed).broken.map(|broken| (seed, broken)));
        planted::plant(None);
        let (seed, broken) = caught.unwrap_or_else(|| panic!("{bug:?} went unnoticed"));
        println!("{bug:?}: seed {seed}, {broken}");
    }
}
