//! All planted bugs, and whether a run sees them: what the simulators, and scenarios beside them, are worth.
//!
//! A bug counts as caught when a run fails by the invariant that it breaks or by one that looks at what follows at once,
//! within [`WITHIN`] seeds; or when a scenario that says what must be so says that it is not. `--mutants` runs them all
//! and states the share, `tests/planted.rs` does so for each alone.

use crate::alone;
use crate::dataset;
use crate::last_writes;
use crate::metadata;
use crate::replication;
use crate::report::Verdict;
use crate::rows;
use crate::run;
use crate::scenarios;
use crate::shape::Shape;
use crate::shuffle;
use partage_core::base::planted::{self, Planted};

/// Seeds within which each bug is found; most are within the first ten.
pub const WITHIN: u64 = 160;

/// Only coordinators and their store have faults.
pub const LEADERS: Shape = Shape { leaders: true, ..Shape::SMALL };

/// With a keyspace whose data lies on disks.
pub const DURABLE: Shape = Shape { durable: true, ..Shape::SMALL };

/// Small runs with a table among the keyspaces.
pub const TABLES: Shape = Shape { replicated: true, ..Shape::SMALL };

/// A person touches the coordination state.
pub const TOUCHED: Shape = Shape { touched: true, ..Shape::SMALL };

/// What is done to see a bug.
#[derive(Clone, Copy)]
enum Hunt {
    /// Runs of the cluster, which fail by one of these.
    Seeds(Shape, &'static [&'static str]),
    /// Something that is so without the bug.
    Scenario(fn() -> Result<(), String>),
    /// Runs of dataset nodes.
    Datasets(fn(u64) -> dataset::Outcome),
    /// Runs of metadata servers.
    Metadata,
    /// Runs of replicas of tables.
    Replication,
    /// Runs of a pool for shuffles.
    Shuffles,
    /// Runs of a shuffle that floods, and one that trickles.
    Floods,
    /// Runs of shuffles on nodes that are busy.
    Busy,
}

/// How a bug was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caught {
    /// The seed of the run that failed; none: a scenario showed it.
    pub seed: Option<u64>,
    /// The invariant that was broken, or what the scenario saw.
    pub by: String,
}

/// All bugs, in the order of their simulators.
pub fn all() -> impl Iterator<Item = Planted> {
    let others = Planted::DATASETS.into_iter().chain(Planted::METADATA).chain(Planted::REPLICATION);
    Planted::CLUSTER.into_iter().chain(others).chain(Planted::SHUFFLES)
}

const fn small(invariants: &'static [&'static str]) -> Hunt {
    Hunt::Seeds(Shape::SMALL, invariants)
}

fn hunt_of(bug: Planted) -> Hunt {
    if let Some(scenario) = scenario_of_stored(bug) {
        return Hunt::Scenario(scenario);
    }
    match bug {
        Planted::O2 => small(&["O1", "O2", "O5", "O7", "D1", "D2", "O3"]),
        Planted::O4 => Hunt::Scenario(scenarios::a_lease_counts_from_the_beat_that_asked_for_it),
        Planted::O5 => small(&["O5"]),
        Planted::O6 => small(&["O6", "O1", "O5"]),
        Planted::O7 => small(&["O7", "O1"]),
        Planted::O8 => small(&["O1", "O5", "O8"]),
        Planted::O10 => small(&["O10", "M3"]),
        Planted::C4 => Hunt::Seeds(LEADERS, &["O10", "O1", "O5", "O6"]),
        Planted::M2 => small(&["M2"]),
        Planted::O11 => small(&["O11"]),
        Planted::M3 => small(&["M3", "M2", "W3", "W4"]),
        Planted::W4 => small(&["W4"]),
        Planted::D1 => small(&["D1", "D2"]),
        Planted::D2 => small(&["D2", "O7", "O1"]),
        Planted::D3 => small(&["D3"]),
        Planted::D4 => small(&["D4", "O1"]),
        Planted::D7 => small(&["D7"]),
        Planted::AckedByOne => Hunt::Seeds(DURABLE, &["D1", "D2", "D3", "D10"]),
        Planted::OvertakenCopy | Planted::Announced => Hunt::Seeds(DURABLE, &["D1", "D2", "D3", "D10"]),
        // No service loads a shard that has had data from nowhere: no node serves it, and nothing is lost in silence.
        Planted::LastCopy => Hunt::Seeds(DURABLE, &["L1", "D1", "D2", "D3", "D10"]),
        Planted::L1 => small(&["L1"]),
        Planted::L3 | Planted::ForgottenNode => small(&["L3"]),
        Planted::L8 => small(&["L8"]),
        Planted::R5 => Hunt::Scenario(scenarios::a_key_that_kills_is_set_aside),
        Planted::ClosedNode => small(&["M7"]),
        Planted::AnyReporter => small(&["O3"]),
        Planted::OwnSleep => Hunt::Scenario(scenarios::a_coordinator_that_slept_gives_nobody_up),
        Planted::BrakeMargin => Hunt::Scenario(scenarios::the_brake_bears_no_more_than_it_says),
        Planted::LateBeat => small(&["W1"]),
        Planted::OvertakenOrders => Hunt::Scenario(scenarios::overtaken_orders_change_nothing),
        Planted::RefusedLease => Hunt::Scenario(scenarios::refused_orders_give_no_lease),
        Planted::EndedLease => Hunt::Scenario(scenarios::an_end_ends_the_lease),
        Planted::TenureEpoch => Hunt::Scenario(scenarios::a_permit_ends_with_its_epoch),
        Planted::UnknownHeir => small(&["O11"]),
        Planted::Removals => small(&["L7"]),
        Planted::StandbyGap => {
            Hunt::Scenario(scenarios::a_standby_that_missed_a_change_leads_nobody_over_the_gap)
        }
        Planted::AnyCluster => Hunt::Seeds(TOUCHED, &["D11"]),
        Planted::RestoreWait => Hunt::Seeds(TOUCHED, &["O1", "O5", "D2", "O7", "D1"]),
        Planted::FormerLeases => small(&["O6", "O1", "O5", "O7"]),
        Planted::AnySession => small(&["O1", "O5", "O6", "O7", "W1"]),
        Planted::EarlyChild
        | Planted::UnstoredBase
        | Planted::DroppedBase
        | Planted::LostOutcomes
        | Planted::SkippedAside => Hunt::Seeds(TABLES, &["D1", "D2", "D3", "D10"]),
        Planted::DrainedLeader => Hunt::Seeds(TABLES, &["L1"]),
        Planted::AnyLetGo
        | Planted::HastyHeir
        | Planted::ExpiryBack
        | Planted::OwnClock
        | Planted::FeedByIndex => Hunt::Scenario(scenario_of_tables(bug)),
        Planted::S18 | Planted::Theirs | Planted::Forgets => Hunt::Datasets(dataset::run_ordered),
        Planted::NoShares => Hunt::Floods,
        Planted::ResentWhileBusy => Hunt::Busy,
        bug if Planted::METADATA.contains(&bug) => Hunt::Metadata,
        bug if Planted::REPLICATION.contains(&bug) => Hunt::Replication,
        bug if Planted::SHUFFLES.contains(&bug) => Hunt::Shuffles,
        _ => Hunt::Datasets(dataset::run),
    }
}

/// What shows a bug at once that takes what nodes have stored, or the life of a keyspace, for another than it is.
fn scenario_of_stored(bug: Planted) -> Option<fn() -> Result<(), String>> {
    Some(match bug {
        // The services of the runs ask their parents themselves, whatever a coordinator grants.
        Planted::LastWrites => last_writes::a_child_waits_for_the_last_writes_of_its_parents,
        Planted::NotIntact => alone::what_is_not_whole_is_no_copy,
        Planted::OtherStore => alone::what_lies_on_another_nodes_store_is_no_copy,
        Planted::UnheardCopy => alone::the_last_copy_is_heard_before_it_goes_on_alone,
        Planted::EpochOfSurvivors => alone::those_that_go_on_do_so_under_a_later_epoch,
        Planted::KeptEpoch => alone::data_of_a_later_epoch_is_kept,
        Planted::AsideShard => alone::what_waited_while_its_shard_was_set_aside_is_dropped,
        Planted::OlderState => alone::an_older_state_is_led_by_nobody,
        Planted::Horizon => alone::who_lags_behind_does_not_say_that_a_keyspace_is_gone,
        Planted::Lives => alone::a_deleted_life_of_a_keyspace_does_not_come_back,
        Planted::TwicePartition => alone::a_partition_is_not_registered_again_before_it_is_unloaded,
        Planted::FreeName => alone::a_deleted_name_is_not_given_out_at_once,
        _ => return None,
    })
}

/// What shows a bug of tables at once, that runs show only when clocks and leaders happen to change so.
fn scenario_of_tables(bug: Planted) -> fn() -> Result<(), String> {
    match bug {
        Planted::AnyLetGo => scenarios::a_promise_to_a_later_leader_is_waited_out,
        Planted::HastyHeir => scenarios::an_heir_is_ready_when_no_write_is_under_way,
        Planted::ExpiryBack => rows::what_has_ended_stays_gone_under_a_leader_whose_clock_is_behind,
        Planted::OwnClock => rows::replicas_have_the_same_rows_whatever_their_clocks_show,
        _ => rows::a_feed_goes_on_with_what_a_later_leader_has_written,
    }
}

/// Looks for a planted bug. An error says what else was seen.
pub fn hunt(bug: Planted) -> Result<Caught, String> {
    match hunt_of(bug) {
        Hunt::Seeds(shape, invariants) => by_seeds(bug, shape, invariants),
        Hunt::Scenario(scenario) => by_scenario(bug, scenario),
        Hunt::Datasets(run) => by_outcome(bug, |seed| run(seed).broken),
        Hunt::Metadata => by_outcome(bug, |seed| metadata::run(seed).broken),
        Hunt::Replication => by_outcome(bug, |seed| replication::run(seed).broken),
        Hunt::Shuffles => by_outcome(bug, |seed| shuffle::run(seed).broken),
        Hunt::Floods => by_outcome(bug, |seed| shuffle::run_flood(seed, None).0.broken),
        Hunt::Busy => by_outcome(bug, |seed| shuffle::run_busy(seed, None).0.broken),
    }
}

/// Whether what has caught a bug is silent without it.
pub fn is_silent_without(bug: Planted, caught: &Caught) -> Result<(), String> {
    match (hunt_of(bug), caught.seed) {
        (Hunt::Seeds(shape, _), Some(seed)) => match run(seed, shape, None, None).verdict {
            Verdict::Failed(violation) => Err(format!("seed {seed} fails without {bug:?}: {violation:?}")),
            Verdict::Passed | Verdict::Unknown => Ok(()),
        },
        (Hunt::Scenario(scenario), _) => scenario(),
        _ => Ok(()),
    }
}

/// With which seed the search begins. One bug is seen once in some 300 or 500 seeds. `RefusedWish`: a copy of a refused wish must
/// be late, and the newcomer that it names must lack what was written since.
fn first_seed(bug: Planted) -> u64 {
    match bug {
        Planted::RefusedWish => 400,
        _ => 0,
    }
}

fn by_seeds(bug: Planted, shape: Shape, invariants: &[&str]) -> Result<Caught, String> {
    let mut others = Vec::new();
    for seed in (first_seed(bug).max(1)..).take(WITHIN as usize) {
        match run(seed, shape, Some(bug), None).verdict {
            Verdict::Failed(violation) if invariants.contains(&violation.invariant) => {
                let by = format!("{}: {}", violation.invariant, violation.text);
                return Ok(Caught { seed: Some(seed), by });
            }
            Verdict::Failed(violation) => others.push((seed, violation.invariant)),
            Verdict::Passed | Verdict::Unknown => {}
        }
    }
    Err(format!("{bug:?} is not found within {WITHIN} seeds, but {others:?}"))
}

fn by_scenario(bug: Planted, scenario: fn() -> Result<(), String>) -> Result<Caught, String> {
    planted::plant(Some(bug));
    let outcome = scenario();
    planted::plant(None);
    match outcome {
        Err(by) => Ok(Caught { seed: None, by }),
        Ok(()) => Err(format!("{bug:?} goes unnoticed in its scenario")),
    }
}

fn by_outcome(bug: Planted, run: impl Fn(u64) -> Option<String>) -> Result<Caught, String> {
    planted::plant(Some(bug));
    let caught = (first_seed(bug)..)
        .take(WITHIN as usize)
        .find_map(|seed| run(seed).map(|by| Caught { seed: Some(seed), by }));
    planted::plant(None);
    caught.ok_or_else(|| format!("{bug:?} is not found within {WITHIN} seeds"))
}
