//! Shuffles under faults: D6, D7, O2, L1, R1, X6 to X8, X12 and X13, from seeds.

use partage_core::base::planted::Planted;
use sim::mutants::{self, Caught};
use sim::shuffle::{Outcome, run, run_alive_through_short, run_busy, run_flood, run_interrupted, run_lone};

/// Seeds of the suite; `--shuffles` has more.
const SEEDS: u64 = 100;

#[test]
fn d6_x7_l1_what_is_read_is_the_input_once_in_order_and_every_shuffle_ends() {
    let mut all = Outcome::default();
    for seed in 0..SEEDS {
        let outcome = run(seed);
        assert_eq!(outcome.broken, None, "seed {seed} after {} steps", outcome.steps);
        all.add(&outcome);
    }
    // A suite in which hardly anything came through would prove nothing.
    println!("{all}");
    assert!(all.sealed + all.lost_open == all.jobs && all.jobs > 2 * SEEDS, "{all}");
    assert!(all.reads == 4 * (all.sealed - all.lost_sealed), "{all}");
    // Shuffles in memory lost copies, and hardly any of them lost all R copies of something.
    let lost = all.lost_open + all.lost_sealed;
    assert!(all.unsynced_lost > SEEDS / 3 && lost > 0 && lost < all.jobs / 8, "{all}");
    assert!(all.stored > 7 * SEEDS && all.failed > SEEDS / 2 && all.lacking > SEEDS / 20, "{all}");
    assert!(all.crashes > 3 * SEEDS && all.elections > SEEDS && all.ready > 3 * SEEDS, "{all}");
    assert!(all.lost_disks > SEEDS / 3 && all.damaged > SEEDS / 3, "{all}");
    assert!(all.later_bounds > SEEDS / 10, "{all}");
    assert!(all.undivided > 0, "{all}");
    assert!(all.divisions > 6 * SEEDS && all.dropped > 3 * SEEDS, "{all}");
    assert!(all.offloaded > SEEDS / 2, "{all}");
    // Bulk was lost between nodes, and attempts were stored all the same.
    assert!(all.bulk_failures > SEEDS / 2 && all.half_open > 0, "{all}");
    assert!(all.bulk_lost > SEEDS && all.unasked > SEEDS, "{all}");
    assert!(all.stored_beside > SEEDS / 20, "{all}");
}

#[test]
fn l1_a_node_that_batches_do_not_reach_and_that_counts_as_reached_is_found() {
    let found = (0..mutants::WITHIN).find_map(|seed| Some((seed, run_alive_through_short(seed).broken?)));
    let (seed, why) = found.expect("the check of attempts beside failures of bulk sees it");
    println!("seed {seed}, {why}");
    assert!(why.starts_with("L1: bulk from"), "seed {seed}: {why}");
    assert_eq!(run(seed).broken, None, "seed {seed} without it");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(7), run(7));
    assert_eq!(run_flood(7, None), run_flood(7, None));
}

/// Seeds of floods; `--floods` has more.
const FLOODS: u64 = 30;

#[test]
fn r1_a_shuffle_that_floods_does_not_stop_one_that_trickles() {
    let mut all = Outcome::default();
    for seed in 0..FLOODS {
        let (outcome, _) = run_flood(seed, None);
        assert_eq!(outcome.broken, None, "seed {seed} after {} steps", outcome.steps);
        all.add(&outcome);
    }
    println!("{all}");
    // Each attempt of the trickle was acknowledged, the other shuffle was a flood, and it got on too.
    assert!(all.stored >= 5 * FLOODS, "{all}");
    // It was sealed and read beside that one.
    assert!(all.sealed >= FLOODS && all.reads >= 4 * FLOODS && all.divisions > FLOODS, "{all}");
    assert!(all.held_back > 200 * FLOODS && all.taken > 200 * FLOODS, "{all}");
}

/// Seeds of busy nodes; `--busy` has more.
const BUSY: u64 = 30;

#[test]
fn r1_what_nodes_are_slow_to_store_is_not_sent_again() {
    let mut all = Outcome::default();
    for seed in 0..BUSY {
        let (outcome, _) = run_busy(seed, None);
        assert_eq!(outcome.broken, None, "seed {seed} after {} steps", outcome.steps);
        all.add(&outcome);
    }
    println!("{all}");
    assert!(all.sealed == all.jobs && all.stored > 2 * BUSY, "{all}");
}

/// Of each so many messages and syncs one is a moment at which a process is killed.
const STRIDE: usize = 17;

#[test]
fn d6_l1_a_shuffle_ends_whichever_process_is_killed_and_at_whichever_step() {
    for seed in [1, 2] {
        let (calm, events) = run_interrupted(seed, None);
        assert_eq!(calm.broken, None, "seed {seed}");
        assert!(events > 200 && calm.crashes == 0, "{events} events");
        for victim in 0..3 {
            let mut killed = 0;
            for at in (1..=events).step_by(STRIDE) {
                let (outcome, _) = run_interrupted(seed, Some((victim, at)));
                assert_eq!(outcome.broken, None, "seed {seed}, node {victim} killed before event {at}");
                killed += outcome.crashes;
            }
            assert!(killed > 10, "{killed} kills");
        }
    }
}

/// Where a message takes some 0.2 ms, and a sync some 0.5 ms; of both one in fifty takes up to twenty times as long.
#[test]
fn l1_a_lone_shuffle_waits_for_no_tick_from_its_start_to_its_last_record() {
    let (mut first_taken, mut all_read) = (Vec::new(), Vec::new());
    for seed in 0..40 {
        let lone = run_lone(seed);
        assert_eq!(lone.outcome.broken, None, "seed {seed} after {} steps", lone.outcome.steps);
        first_taken.extend(lone.first_taken);
        all_read.extend(lone.all_read);
    }
    first_taken.sort_unstable();
    all_read.sort_unstable();
    println!("microseconds to the first record: {first_taken:?}; to the last one: {all_read:?}");
    assert!(first_taken.len() > 25 && all_read.len() == 40);
    assert!(first_taken[first_taken.len() / 2] <= 5_000, "{first_taken:?}");
    assert!(all_read[39] <= 150_000, "{all_read:?}");
}

#[test]
fn planted_bugs_are_caught() {
    for bug in Planted::SHUFFLES {
        let Caught { seed, by } = mutants::hunt(bug).unwrap_or_else(|why| panic!("{why}"));
        println!("{bug:?}: seed {seed:?}, {by}");
    }
}
