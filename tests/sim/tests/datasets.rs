//! Leaderless dataset clusters under faults: D5, S2 and S9 to S20, from seeds.

use partage_core::base::planted::{self, Planted};
use sim::dataset::{run, run_ordered};

/// Seeds of the suite; `--datasets` has more.
const SEEDS: u64 = 60;

/// Seeds within which each planted bug is found.
const FOUND_WITHIN: u64 = 200;

#[test]
fn one_version_for_a_request_never_back_and_no_read_fails() {
    let (mut upgrades, mut reads, mut crashes, mut retired) = (0, (0, 0), 0, 0);
    for seed in 0..SEEDS {
        let outcome = run(seed);
        assert_eq!(outcome.broken, None, "seed {seed} after {} steps", outcome.steps);
        upgrades += outcome.upgrades;
        reads = (reads.0 + outcome.reads.0, reads.1 + outcome.reads.1);
        crashes += outcome.crashes;
        retired += outcome.retired;
    }
    // A suite in which hardly anything came through would prove nothing.
    let all = format!("{upgrades} upgrades, {reads:?} reads, {crashes} crashes, {retired} retired");
    println!("{all}");
    assert!(upgrades > 10 * SEEDS && reads.0 > 3_000 * SEEDS && reads.1 > 100 * SEEDS, "{all}");
    assert!(crashes > 3 * SEEDS && retired > 5 * SEEDS, "{all}");
}

#[test]
fn under_a_coordinator_no_read_fails_and_nothing_is_let_go_that_nobody_else_has() {
    let (mut upgrades, mut reads, mut let_go, mut went_on) = (0, (0, 0), 0, 0);
    for seed in 0..SEEDS {
        let outcome = run_ordered(seed);
        assert_eq!(outcome.broken, None, "seed {seed} after {} steps", outcome.steps);
        upgrades += outcome.upgrades;
        reads = (reads.0 + outcome.reads.0, reads.1 + outcome.reads.1);
        let_go += outcome.let_go;
        went_on += outcome.went_on;
    }
    let all = format!("{upgrades} upgrades, {reads:?} reads, {let_go} partitions let go, {went_on} went on");
    println!("{all}");
    assert!(upgrades > 10 * SEEDS && reads.0 > 3_000 * SEEDS && reads.1 > 100 * SEEDS, "{all}");
    assert!(let_go > 5 * SEEDS && went_on > SEEDS / 2, "{all}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(7), run(7));
    assert_eq!(run_ordered(7), run_ordered(7));
}

#[test]
fn planted_bugs_are_caught() {
    for bug in Planted::DATASETS {
        planted::plant(Some(bug));
        let is_ordered = [Planted::S18, Planted::Theirs, Planted::Forgets].contains(&bug);
        let run = if is_ordered { run_ordered } else { run };
        let caught = (0..FOUND_WITHIN).find_map(|seed| run(seed).broken.map(|broken| (seed, broken)));
        planted::plant(None);
        let (seed, broken) = caught.unwrap_or_else(|| panic!("{bug:?} went unnoticed"));
        println!("{bug:?}: seed {seed}, {}", broken.lines().next().unwrap_or_default());
    }
}
