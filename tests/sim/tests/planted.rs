//! Bugs that are planted and found: for each oracle one that it exists for.

use partage_core::planted::Planted;
use sim::run;
use sim::world::{Shape, Verdict};

/// Seeds within which each planted bug is found; most are within the first ten.
const FOUND_WITHIN: u64 = 160;

/// Only coordinators and their store have faults.
const LEADERS: Shape = Shape { leaders: true, ..Shape::SMALL };

/// Runs seeds until one fails by one of `invariants`: the one that is switched off, or what follows at once. The same
/// seed without the bug fails by nothing.
fn is_found(bug: Planted, invariants: &[&str]) {
    is_found_in(Shape::SMALL, bug, invariants);
}

fn is_found_in(shape: Shape, bug: Planted, invariants: &[&str]) {
    let mut others = Vec::new();
    let found = (1..=FOUND_WITHIN).find(|seed| match run(*seed, shape, Some(bug), None).verdict {
        Verdict::Failed(violation) if invariants.contains(&violation.invariant) => true,
        Verdict::Failed(violation) => {
            others.push((*seed, violation));
            false
        }
        Verdict::Passed | Verdict::Unknown => false,
    });
    let Some(seed) = found else {
        panic!("{bug:?} is not found within {FOUND_WITHIN} seeds, but {others:?}");
    };
    let without = run(seed, shape, None, None).verdict;
    assert!(!matches!(without, Verdict::Failed(_)), "seed {seed} fails without {bug:?}: {without:?}");
}

#[test]
fn o2_a_planted_leader_that_writes_while_it_leaves_is_found() {
    is_found(Planted::O2, &["O1", "O2", "O5", "O7", "D1", "D2", "O3"]);
}

#[test]
fn o4_a_planted_lease_that_is_too_long_is_found() {
    is_found(Planted::O4, &["O1", "O5", "O6"]);
}

#[test]
fn o5_a_planted_grant_that_does_not_wait_is_found() {
    is_found(Planted::O5, &["O5"]);
}

#[test]
fn o6_a_planted_death_before_the_lease_is_over_is_found() {
    is_found(Planted::O6, &["O6", "O1", "O5"]);
}

#[test]
fn o7_a_planted_answer_that_does_not_ask_the_lease_is_found() {
    is_found(Planted::O7, &["O7", "O1"]);
}

#[test]
fn o8_a_planted_child_that_does_not_wait_for_its_parent_is_found() {
    is_found(Planted::O8, &["O1", "O5", "O8"]);
}

#[test]
fn o10_a_planted_store_that_takes_a_deposed_leader_is_found() {
    is_found(Planted::O10, &["O10", "M3"]);
}

#[test]
fn c4_o10_a_planted_leader_that_does_not_look_at_its_session_is_found() {
    is_found_in(LEADERS, Planted::C4, &["O10", "O1", "O5", "O6"]);
}

#[test]
fn m2_a_planted_table_that_goes_back_is_found() {
    is_found(Planted::M2, &["M2"]);
}

#[test]
fn o11_a_planted_move_that_breaks_before_it_makes_is_found() {
    is_found(Planted::O11, &["O11"]);
}

#[test]
fn m3_a_planted_map_that_is_published_too_soon_is_found() {
    is_found(Planted::M3, &["M3", "M2", "W3", "W4"]);
}

#[test]
fn w4_a_planted_gap_is_found() {
    is_found(Planted::W4, &["W4"]);
}

#[test]
fn d1_a_planted_handover_without_the_last_write_is_found() {
    is_found(Planted::D1, &["D1", "D2"]);
}

#[test]
fn d2_a_planted_read_of_a_former_owner_is_found() {
    is_found(Planted::D2, &["D2", "O7", "O1"]);
}

#[test]
fn d3_a_planted_deletion_that_is_not_handed_over_is_found() {
    is_found(Planted::D3, &["D3"]);
}

#[test]
fn d4_a_planted_answer_for_a_key_beside_the_range_is_found() {
    is_found(Planted::D4, &["D4", "O1"]);
}

#[test]
fn d7_a_planted_deletion_before_the_handover_is_durable_is_found() {
    is_found(Planted::D7, &["D7"]);
}

#[test]
fn l1_a_planted_replica_of_the_dead_that_stays_is_found() {
    is_found(Planted::L1, &["L1"]);
}

#[test]
fn l3_a_planted_publication_that_stops_is_found() {
    is_found(Planted::L3, &["L3"]);
}

#[test]
fn l8_a_planted_drain_that_never_ends_is_found() {
    is_found(Planted::L8, &["L8"]);
}
