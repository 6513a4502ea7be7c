//! Bugs that are planted and found: for each oracle one that it exists for. `cargo run --release -p sim -- --mutants`
//! looks for all of them, those of the other simulators too, and states the share.

use partage_core::base::planted::Planted;
use sim::mutants;
use std::collections::BTreeSet;

/// Where bugs are planted, and where it is asserted that they are found.
const BUGS: &str = include_str!("../../../crates/core/src/base/planted.rs");
const FOUND_HERE: &str = include_str!("planted.rs");
const FOUND_IN_METADATA: &str = include_str!("metadata.rs");
const FOUND_IN_DATASETS: &str = include_str!("datasets.rs");
const FOUND_IN_REPLICATION: &str = include_str!("replication.rs");
const FOUND_IN_SHUFFLES: &str = include_str!("shuffles.rs");

/// Whether the bug is seen, and nothing without it.
fn is_found(bug: Planted) {
    let caught = mutants::hunt(bug).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(mutants::is_silent_without(bug, &caught), Ok(()));
}

/// A bug of no list would never be looked for, and one of a list without a test only by the long run.
#[test]
fn every_planted_bug_has_a_list_and_a_test() {
    let variants = BUGS.split("pub enum Planted {").nth(1).and_then(|rest| rest.split("\n}").next()).unwrap();
    let variants = variants.lines().map(str::trim).filter(|line| !line.starts_with("///"));
    let variants = variants.filter_map(|line| line.strip_suffix(','));
    let variants: BTreeSet<String> = variants.map(str::to_owned).collect();
    let listed: BTreeSet<String> = mutants::all().map(|bug| format!("{bug:?}")).collect();
    assert_eq!(variants, listed, "each is in CLUSTER, DATASETS, METADATA, REPLICATION or SHUFFLES");
    assert_eq!(listed.len(), mutants::all().count(), "and in one of them, once");
    let has_test = |bug: &Planted| FOUND_HERE.contains(&format!("is_found(Planted::{bug:?});"));
    let without: Vec<_> = Planted::CLUSTER.into_iter().filter(|bug| !has_test(bug)).collect();
    assert_eq!(without, [], "each of the cluster has a test here");
    // Those of the other simulators are planted one after the other, in one test for each.
    assert!(FOUND_IN_METADATA.contains("for bug in Planted::METADATA {"));
    assert!(FOUND_IN_DATASETS.contains("for bug in Planted::DATASETS {"));
    assert!(FOUND_IN_REPLICATION.contains("for bug in Planted::REPLICATION {"));
    assert!(FOUND_IN_SHUFFLES.contains("for bug in Planted::SHUFFLES {"));
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
fn d10_a_planted_copy_that_is_not_whole_is_found() {
    is_found(Planted::NotIntact);
}

#[test]
fn d10_a_planted_copy_on_another_nodes_store_is_found() {
    is_found(Planted::OtherStore);
}

#[test]
fn d10_a_planted_copy_that_goes_on_unheard_is_found() {
    is_found(Planted::UnheardCopy);
}

#[test]
fn d10_a_planted_epoch_that_the_given_up_copy_has_too_is_found() {
    is_found(Planted::EpochOfSurvivors);
}

#[test]
fn d10_a_planted_copy_that_was_overtaken_is_found() {
    is_found(Planted::OvertakenCopy);
}

#[test]
fn d10_a_planted_load_that_no_leader_knows_of_is_found() {
    is_found(Planted::Announced);
}

#[test]
fn d10_planted_parents_that_let_go_too_soon_are_found() {
    is_found(Planted::LastWrites);
}

#[test]
fn d10_a_planted_last_copy_that_ends_with_its_process_is_found() {
    is_found(Planted::LastCopy);
}

#[test]
fn d7_a_planted_deletion_of_a_later_epoch_is_found() {
    is_found(Planted::KeptEpoch);
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
fn l3_a_planted_node_that_comes_back_and_is_forgotten_is_found() {
    is_found(Planted::ForgottenNode);
}

#[test]
fn l8_a_planted_drain_that_never_ends_is_found() {
    is_found(Planted::L8);
}

#[test]
fn r5_a_planted_poison_that_is_never_found_out_is_found() {
    is_found(Planted::R5);
}

#[test]
fn r5_a_planted_move_of_what_was_set_aside_meanwhile_is_found() {
    is_found(Planted::AsideShard);
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

#[test]
fn d10_a_planted_leader_that_believes_an_older_state_is_found() {
    is_found(Planted::OlderState);
}

#[test]
fn o6_a_planted_leader_that_forgets_the_leases_of_the_last_one_is_found() {
    is_found(Planted::FormerLeases);
}

#[test]
fn m2_a_planted_end_of_a_keyspace_by_who_lags_behind_is_found() {
    is_found(Planted::Horizon);
}

#[test]
fn m2_a_planted_life_that_comes_back_is_found() {
    is_found(Planted::Lives);
}

#[test]
fn o1_a_planted_name_that_is_free_at_once_is_found() {
    is_found(Planted::FreeName);
}

#[test]
fn z1_a_planted_session_that_anybody_speaks_for_is_found() {
    is_found(Planted::AnySession);
}

#[test]
fn o1_a_planted_partition_that_is_there_twice_is_found() {
    is_found(Planted::TwicePartition);
}

#[test]
fn o8_a_planted_child_of_a_table_that_opens_before_its_parents_have_closed_is_found() {
    is_found(Planted::EarlyChild);
}

#[test]
fn d1_a_planted_child_of_a_table_that_acknowledges_before_it_has_stored_its_base_is_found() {
    is_found(Planted::UnstoredBase);
}

#[test]
fn d10_planted_parents_of_a_table_that_go_before_each_child_has_its_base_are_found() {
    is_found(Planted::DroppedBase);
}

#[test]
fn d1_a_planted_request_that_is_done_again_by_a_child_of_a_table_is_found() {
    is_found(Planted::LostOutcomes);
}

#[test]
fn d1_a_planted_child_of_a_table_that_skips_what_its_parent_changed_while_it_copied_is_found() {
    is_found(Planted::SkippedAside);
}

#[test]
fn l1_a_planted_leader_of_a_table_that_drains_before_it_goes_on_is_found() {
    is_found(Planted::DrainedLeader);
}

#[test]
fn d2_a_planted_promise_of_a_table_that_any_leader_ends_is_found() {
    is_found(Planted::AnyLetGo);
}

#[test]
fn t16_a_planted_heir_of_a_table_that_is_said_to_be_ready_too_early_is_found() {
    is_found(Planted::HastyHeir);
}

#[test]
fn d3_a_planted_clock_of_a_table_that_goes_back_is_found() {
    is_found(Planted::ExpiryBack);
}

#[test]
fn d1_planted_replicas_of_a_table_that_go_by_their_own_clocks_are_found() {
    is_found(Planted::OwnClock);
}

#[test]
fn d1_a_planted_feed_that_skips_what_a_later_leader_has_written_is_found() {
    is_found(Planted::FeedByIndex);
}
