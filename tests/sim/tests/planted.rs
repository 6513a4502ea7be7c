//! Bugs that are planted and found: for each oracle one that it exists for. `cargo run --release -p sim -- --mutants`
//! looks for all of them, those of the other simulators too, and states the share.

use partage_core::planted::Planted;
use sim::mutants;

/// Whether the bug is seen, and nothing without it.
fn is_found(bug: Planted) {
    let caught = mutants::hunt(bug).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(mutants::is_silent_without(bug, &caught), Ok(()));
}

#[test]
fn o2_a_planted_leader_that_writes_while_it_leaves_is_found() {
    is_found(Planted::O2);
}

#[test]
fn o4_a_planted_lease_that_is_too_long_is_found() {
    is_found(Planted::O4);
}

#[test]
fn o5_a_planted_grant_that_does_not_wait_is_found() {
    is_found(Planted::O5);
}

#[test]
fn o6_a_planted_death_before_the_lease_is_over_is_found() {
    is_found(Planted::O6);
}

#[test]
fn o7_a_planted_answer_that_does_not_ask_the_lease_is_found() {
    is_found(Planted::O7);
}

#[test]
fn o8_a_planted_child_that_does_not_wait_for_its_parent_is_found() {
    is_found(Planted::O8);
}

#[test]
fn o10_a_planted_store_that_takes_a_deposed_leader_is_found() {
    is_found(Planted::O10);
}

#[test]
fn c4_o10_a_planted_leader_that_does_not_look_at_its_session_is_found() {
    is_found(Planted::C4);
}

#[test]
fn m2_a_planted_table_that_goes_back_is_found() {
    is_found(Planted::M2);
}

#[test]
fn o11_a_planted_move_that_breaks_before_it_makes_is_found() {
    is_found(Planted::O11);
}

#[test]
fn m3_a_planted_map_that_is_published_too_soon_is_found() {
    is_found(Planted::M3);
}

#[test]
fn w4_a_planted_gap_is_found() {
    is_found(Planted::W4);
}

#[test]
fn d1_a_planted_handover_without_the_last_write_is_found() {
    is_found(Planted::D1);
}

#[test]
fn d2_a_planted_read_of_a_former_owner_is_found() {
    is_found(Planted::D2);
}

#[test]
fn d3_a_planted_deletion_that_is_not_handed_over_is_found() {
    is_found(Planted::D3);
}

#[test]
fn d4_a_planted_answer_for_a_key_beside_the_range_is_found() {
    is_found(Planted::D4);
}

#[test]
fn d7_a_planted_deletion_before_the_handover_is_durable_is_found() {
    is_found(Planted::D7);
}

#[test]
fn d10_a_planted_write_that_one_replica_acknowledges_is_found() {
    is_found(Planted::AckedByOne);
}

#[test]
fn l1_a_planted_replica_of_the_dead_that_stays_is_found() {
    is_found(Planted::L1);
}

#[test]
fn l3_a_planted_publication_that_stops_is_found() {
    is_found(Planted::L3);
}

#[test]
fn l8_a_planted_drain_that_never_ends_is_found() {
    is_found(Planted::L8);
}

#[test]
fn m7_a_planted_move_onto_a_closed_node_is_found() {
    is_found(Planted::ClosedNode);
}

#[test]
fn o3_a_planted_report_from_anybody_is_found() {
    is_found(Planted::AnyReporter);
}

#[test]
fn r6_a_planted_sleep_that_is_not_excused_is_found() {
    is_found(Planted::OwnSleep);
}

#[test]
fn r4_a_planted_brake_that_is_off_by_one_is_found() {
    is_found(Planted::BrakeMargin);
}

#[test]
fn w1_a_planted_beat_that_comes_late_is_found() {
    is_found(Planted::LateBeat);
}

#[test]
fn w1_planted_orders_that_were_overtaken_are_found() {
    is_found(Planted::OvertakenOrders);
}

#[test]
fn o1_a_planted_lease_from_refused_orders_is_found() {
    is_found(Planted::RefusedLease);
}

#[test]
fn o6_a_planted_lease_that_outlives_its_incarnation_is_found() {
    is_found(Planted::EndedLease);
}

#[test]
fn o11_a_planted_heir_that_does_not_serve_is_found() {
    is_found(Planted::UnknownHeir);
}

#[test]
fn l7_planted_removals_that_are_never_told_are_found() {
    is_found(Planted::Removals);
}

#[test]
fn o7_a_planted_tenure_that_outlives_its_epoch_is_found() {
    is_found(Planted::TenureEpoch);
}

#[test]
fn w4_a_planted_standby_that_passes_on_a_gap_is_found() {
    is_found(Planted::StandbyGap);
}

#[test]
fn d11_a_planted_worker_that_obeys_any_cluster_is_found() {
    is_found(Planted::AnyCluster);
}

#[test]
fn o1_a_planted_restore_that_does_not_wait_is_found() {
    is_found(Planted::RestoreWait);
}
