//! Replicas of tables under faults: D1, D2, O2 and L1, from seeds.

use partage_core::base::planted::Planted;
use sim::mutants::{self, Caught};
use sim::replication::{Outcome, run};

/// Seeds of the suite; `--replication` has more.
const SEEDS: u64 = 60;

#[test]
fn d1_d2_o2_l1_nothing_acknowledged_is_lost_and_everything_serves_in_the_end() {
    let mut all = Outcome::default();
    for seed in 0..SEEDS {
        let outcome = run(seed);
        assert_eq!(outcome.broken, None, "seed {seed} after {} steps", outcome.steps);
        all.add(&outcome);
    }
    // A suite in which hardly anything came through would prove nothing.
    println!("{all}");
    assert!(all.writes.0 > 1_000 * SEEDS && all.writes.1 < all.writes.0 / 20, "{all}");
    assert!(all.reads.0 > 500 * SEEDS && all.reads.1 > 200 * SEEDS && all.reads.2 > 100 * SEEDS, "{all}");
    assert!(all.leaders.1 > 5 * SEEDS && all.crashes > 5 * SEEDS && all.wishes > 10 * SEEDS, "{all}");
    assert!(all.readers.0 > 30 * SEEDS && all.readers.1 > SEEDS / 4, "{all}");
    assert!(all.chunks > SEEDS && all.resumed > 0 && all.outrun > 0 && all.slowed > 0, "{all}");
    assert!(all.ready_heirs > 0, "{all}");
    assert!(all.snapshots > SEEDS / 4 && all.transfers > SEEDS / 2 && all.outliving > SEEDS, "{all}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(7), run(7));
}

#[test]
fn planted_bugs_are_caught() {
    for bug in Planted::REPLICATION {
        let Caught { seed, by } = mutants::hunt(bug).unwrap_or_else(|why| panic!("{why}"));
        println!("{bug:?}: seed {seed:?}, {by}");
    }
}
