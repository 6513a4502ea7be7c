//! The short run of the suite: a few seeds, the same bytes twice, a shard that kills, and handovers that are
//! interrupted.

use partage_core::base::id::ShardId;
use partage_core::base::planted::Planted;
use partage_core::cluster::admin::Command;
use partage_core::limits::{LATE_BY, RECONNECTS_PER_S};
use sim::changes;
use sim::clock::SECOND;
use sim::fleet::{self, Fleet, Loss};
use sim::interrupt::{self, Scenario};
use sim::model::KeyAt;
use sim::mutants::{self, DURABLE, LEADERS, TABLES};
use sim::report::Verdict;
use sim::run;
use sim::scenarios::poisoned;
use sim::shape::Shape;
use sim::world::World;
use std::collections::BTreeMap;

/// Seeds of the suite. The long run has as many as one likes: see `README.md`.
const SEEDS: u64 = 6;

/// Every so many steps of a scenario are tried here; `--interrupt all` tries each.
const STRIDE: u64 = 23;

/// The same of those of tables, which have more events, as clients write and replicas tell each other meanwhile.
const TABLE_STRIDE: u64 = 211;

/// Runs that once led with a copy that was overtaken, or found no copy to lead with.
const SEEDS_OF_RESTORES: [u64; 31] = [
    2188, 374, 2101, 178, 227, 10879, 10656, 10641, 11341, 11373, 11481, 11666, 13493, 571, 968, 40042,
    40484, 40782, 249, 797, 40388, 442, 1424, 40876, 41949, 4103, 201046, 402228, 402301, 405125, 600252,
];

/// Runs the first seeds; fails at what is wrong, or when few of them have really tried something. `flags` make the
/// command that runs one again. Returns how many commits each took.
fn nothing_is_wrong(shape: Shape, flags: &str) -> Vec<u64> {
    let (mut passed, mut commits) = (0, Vec::new());
    for seed in 1..=SEEDS {
        let report = run(seed, shape, None, None);
        match report.verdict {
            Verdict::Passed => passed += 1,
            Verdict::Unknown => {}
            Verdict::Failed(violation) => panic!(
                "seed {seed}: {} at {} us: {}\nagain: cargo run --release -p sim -- --seed {seed} {flags}",
                violation.invariant, violation.at, violation.text
            ),
        }
        commits.push(report.commits);
    }
    assert!(passed * 2 > SEEDS, "most seeds have really tried something: {passed} of {SEEDS}");
    commits
}

#[test]
fn nothing_is_wrong_under_the_faults_of_a_few_seeds() {
    let commits = nothing_is_wrong(Shape::SMALL, "--small");
    assert!(commits.iter().all(|commits| *commits > 20), "something has moved in each: {commits:?}");
}

/// One worker whose loads never return, and one whose unloads never do: what they should have, or let go of, is served
/// by others in the end, and never by two.
#[test]
fn a12_l1_l4_o1_workers_that_are_stuck_hold_up_nobody_under_faults() {
    nothing_is_wrong(Shape { stuck: true, ..Shape::SMALL }, "--small --stuck");
}

/// The same where data outlives its processes: one worker opens nothing of what its earlier processes have stored, or never
/// ends a load; one never ends an unload.
#[test]
fn a12_l1_l4_d1_workers_that_cannot_open_their_data_hold_up_nobody() {
    nothing_is_wrong(Shape { stuck: true, ..mutants::DURABLE }, "--small --stuck --durable");
}

/// Keys of the coordination state go, are set back and come back, backups are restored, and coordinators are started on an
/// empty folder, while workers and sessions live.
#[test]
fn o1_d7_d11_l1_nothing_is_wrong_when_somebody_touches_the_coordination_state() {
    nothing_is_wrong(mutants::TOUCHED, "--small --touched");
}

/// The same where data outlives its processes: a backup names copies that others have gone on without. A person chooses where
/// the status says so.
#[test]
fn d1_d2_d10_a_restored_cluster_leads_with_no_copy_that_was_overtaken() {
    let shape = Shape { touched: true, ..DURABLE };
    nothing_is_wrong(shape, "--small --durable --touched");
    // Found by them: D2 and L1; then parts that live processes have of what the map knows whole, parts that prepared in the
    // backup, and parents that were deleted since. What they draw may have changed since.
    for seed in SEEDS_OF_RESTORES {
        if let Verdict::Failed(violation) = run(seed, shape, None, None).verdict {
            panic!("seed {seed}: {}: {}", violation.invariant, violation.text);
        }
    }
}

/// Seeds by which defects were found: a part of a split whose data nobody let go, losses that a shard explained which was
/// not to blame, shards that stayed on a node without a lease, a drain under the brake of a keyspace, keyspaces that answered
/// each other's moves for ever. What they draw may have changed since; core's own tests stand for the defects, but for those
/// of the lease.
#[test]
fn l1_l7_l8_r4_what_once_failed_does_not_fail_again() {
    let stuck = Shape { stuck: true, person: Some(true), ..Shape::SMALL };
    let small = [16, 117, 159, 179, 298, 318, 334].map(|seed| (seed, Shape::SMALL));
    let durable = Shape { stuck: true, person: Some(false), ..DURABLE };
    for (seed, shape) in
        small.into_iter().chain([(111, stuck), (258, stuck), (1860, durable), (4748, durable)])
    {
        if let Verdict::Failed(violation) = run(seed, shape, None, None).verdict {
            panic!("seed {seed}: {}: {}", violation.invariant, violation.text);
        }
    }
}

/// Leaders are killed, paused, cut off and restarted; the store restarts, forgets all sessions, is a hundred times
/// slower. Under each term one leads, no map changes, nobody is declared dead, every key can be looked up.
#[test]
fn a15_m2_m10_o10_r6_nobody_notices_that_leaders_change() {
    nothing_is_wrong(LEADERS, "--small --leaders");
}

/// Data on disks, all processes killed at once, splits and moves in between: nothing that was acknowledged is lost, no stale
/// copy leads, and everything serves again.
#[test]
fn d1_d10_l1_o3_what_is_stored_survives_its_processes_under_faults() {
    nothing_is_wrong(DURABLE, "--small --durable");
}

/// Replicas of tables under the coordinator, the worker and the network of all runs: what was acknowledged is on the disk of
/// every member of each in-sync set, reads are linearizable, and in the end everything is in sync and serves.
#[test]
fn t17_d1_d2_l1_nothing_is_wrong_with_a_table_under_faults() {
    nothing_is_wrong(TABLES, "--small --tables");
    // Found by them: a leader that its coordinator took for dead and registered anew, one that began anew within its process,
    // a shard that was to have fewer replicas than must store a write, a wish that was refused and made again at once, for ever,
    // and leaders that acknowledged without members of the in-sync set that their orders did not name.
    for seed in [62, 136, 306, 1823, 628, 647, 726, 774] {
        if let Verdict::Failed(violation) = run(seed, TABLES, None, None).verdict {
            panic!("seed {seed}: {}: {}", violation.invariant, violation.text);
        }
    }
}

/// Shards of tables split and merge in these runs, from the own node and from others, and are disturbed at the moments that
/// matter.
#[test]
fn o8_d1_d10_nothing_is_wrong_with_tables_that_split_and_merge() {
    let mut exercised: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in SEEDS + 1..=3 * SEEDS {
        let report = run(seed, TABLES, None, None);
        if let Verdict::Failed(violation) = report.verdict {
            panic!("seed {seed}: {}: {}", violation.invariant, violation.text);
        }
        report.exercised.into_iter().for_each(|(what, times)| *exercised.entry(what).or_default() += times);
    }
    for (what, least) in [
        ("children of tables opened", 20),
        ("bases of merged tables", 5),
        ("base parts from other nodes", 20),
        ("closing tables opened", 3),
        ("splits in which everything was killed", 1),
        ("appends to lists", 500),
        ("lists taken away", 20),
        ("writes of rows that end", 500),
        ("clocks of tables moved on", 100),
        ("pages of changes", 500),
        ("readers of changes that were late", 1),
        ("hand-overs of tables", 10),
        ("hand-overs of tables whose heir was ready", 5),
        ("hand-overs in which a node was killed", 1),
    ] {
        assert!(exercised.get(what).is_some_and(|times| *times >= least), "{what}: {exercised:#?}");
    }
}

/// The witness of tables sees what it is there for.
#[test]
fn d1_a_planted_reply_before_the_sync_is_found_in_the_cluster_too() {
    let bug = Some(Planted::UnsyncedReply);
    let found = (1..10).find_map(|seed| match run(seed, TABLES, bug, None).verdict {
        Verdict::Failed(violation) => Some(violation.invariant),
        Verdict::Passed | Verdict::Unknown => None,
    });
    assert_eq!(found, Some("D1"));
}

/// By what invariant a bug is found in the runs with a table, within as many seeds as any is looked for.
fn found_with_a_table(bug: Planted) -> Option<&'static str> {
    (1..=mutants::WITHIN).find_map(|seed| match run(seed, TABLES, Some(bug), None).verdict {
        Verdict::Failed(violation) => Some(violation.invariant),
        Verdict::Passed | Verdict::Unknown => None,
    })
}

/// Leaders change, and the next one's clock is behind.
#[test]
fn d3_a_planted_clock_of_a_table_that_goes_back_is_found_in_the_cluster_too() {
    assert_eq!(found_with_a_table(Planted::ExpiryBack), Some("D3"));
}

/// No two nodes have the same clock.
#[test]
fn d1_d3_planted_replicas_that_go_by_their_own_clocks_are_found_in_the_cluster_too() {
    let found = found_with_a_table(Planted::OwnClock);
    assert!(matches!(found, Some("D1" | "D3")), "{found:?}");
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for shape in [Shape::SMALL, LEADERS, DURABLE, TABLES] {
        let [first, again] = [0, 0].map(|_| run(11, shape, None, None));
        assert_eq!((first.hash, first.events), (again.hash, again.events));
    }
    let first = run(11, Shape::SMALL, None, None);
    let words = run(11, Shape::SMALL, None, Some(10));
    assert_eq!(words.hash, first.hash, "words change nothing");
    assert_ne!(run(12, Shape::SMALL, None, None).hash, first.hash);
}

/// The shards of a keyspace that are set aside, as the only coordinator has it, and why moves are stopped.
fn set_aside(world: &mut World, name: &str) -> (Vec<ShardId>, Option<String>) {
    while world.coordinators[0].cluster(world.scene.now).is_none() {
        assert!(world.step());
    }
    let now = world.scene.now;
    let cluster = world.coordinators[0].cluster(now).expect("nothing is under way");
    let found = cluster.keyspaces().iter().find(|(keyspace, _)| keyspace.as_str() == name);
    let rules = found.into_iter().flat_map(|(_, state)| &state.record.rules);
    let aside = rules.filter(|(_, rule)| rule.set_aside.is_some()).map(|(shard, _)| *shard).collect();
    (aside, cluster.brake())
}

#[test]
fn r5_a_key_that_kills_its_owners_is_set_aside_before_the_brake_goes_on() {
    let (killed, mut world) = poisoned();
    assert_eq!(world.scene.violation, None);
    assert_eq!(killed, 3);
    let (aside, brake) = set_aside(&mut world, "ledger");
    assert_eq!((aside.len(), brake), (1, None), "that one, and no other: {aside:?}");
    let unserved = world.unfinished();
    assert!(unserved.iter().all(|(_, text)| text.contains("ledger")), "{unserved:?}");

    world.scene.poison.clear();
    let keyspace = world.scene.oracles.spaces[0].keyspace.name.clone();
    let release = Command::ReleaseShard { keyspace, shard: aside[0] };
    while !changes::by_hand(&mut world, &release) {
        assert!(world.step());
    }
    world.run_until(50 * SECOND);
    assert_eq!((world.scene.violation.clone(), world.unfinished()), (None, Vec::new()));
    assert_eq!(set_aside(&mut world, "ledger").0, []);
}

/// The same where every process is started again at once, long before it is missed.
#[test]
fn r5_a_key_whose_owners_are_restarted_at_once_is_set_aside_too() {
    let shape = Shape { coordinators: 1, nodes: 10, routers: 1, faulty: 0, calm: 0, ..Shape::FULL };
    let mut world = World::still(3, shape, None);
    world.begin();
    world.run_until(6 * SECOND);
    world.scene.poison.insert(KeyAt { keyspace: 0, key: 5 });
    world.look_again();
    let mut deaths = 0;
    while world.scene.now < 60 * SECOND {
        world.run_until(world.scene.now + SECOND / 10);
        let down: Vec<_> = world.nodes.iter().filter(|node| node.is_down()).map(|node| node.at).collect();
        deaths += down.len();
        down.into_iter().for_each(|node| world.start_node(node));
    }
    assert_eq!(world.scene.violation, None);
    // The first may have had it for longer than the window.
    assert!((3..=4).contains(&deaths), "{deaths} deaths");
    let (aside, _) = set_aside(&mut world, "ledger");
    assert_eq!((aside.len(), world.unfinished()), (1, Vec::new()), "that one, and no other: {aside:?}");
}

/// Of two nodes the one that takes a shard over dies for good, at many a moment of the move.
#[test]
fn l1_of_two_nodes_one_that_dies_in_a_move_leaves_everything_to_the_other() {
    let shape = Shape { coordinators: 1, nodes: 2, routers: 1, faulty: 0, calm: 0, ..Shape::FULL };
    let mut came_back = 0;
    for step in (0..400).step_by(16) {
        let mut world = World::still(5, shape, None);
        world.begin();
        world.run_until(6 * SECOND);
        let name = world.scene.oracles.spaces[0].keyspace.name.clone();
        let latest = |world: &World| world.scene.oracles.maps.latest(&name).unwrap().clone();
        let first = latest(&world).shards().next().unwrap().clone();
        let from = first.leader().unwrap().node.clone();
        let heir = world.nodes.iter().position(|node| node.id != from).unwrap();
        let to = world.nodes[heir].id.clone();
        let command = Command::MoveShard { keyspace: name.clone(), shard: first.id, from, to };
        while !changes::by_hand(&mut world, &command) {
            assert!(world.step());
        }
        for _ in 0..step {
            assert!(world.step());
        }
        let switched = latest(&world).shard(first.id).unwrap().epoch > first.epoch;
        let hands_over =
            latest(&world).shard(first.id).unwrap().replica(first.replicas[0].placement).is_some();
        came_back += u32::from(switched && hands_over);
        world.nodes[heir].crash(&mut world.scene);
        world.run_until(world.scene.now + 20 * SECOND);
        let unfinished: Vec<_> = world.unfinished();
        assert_eq!((world.scene.violation.clone(), unfinished), (None, Vec::new()), "after {step} steps");
    }
    assert!(came_back > 0, "no step was between the switch and the end of the handover");
}

fn interrupted(scenario: Scenario) {
    interrupted_each(scenario, STRIDE);
}

fn interrupted_each(scenario: Scenario, stride: u64) {
    let (kills, failures) = interrupt::every_step(scenario, stride);
    assert!(kills >= 10, "{kills} kills say little");
    let told: Vec<_> = failures.iter().map(|f| format!("{}\n  again: {}", f.text, f.again())).collect();
    assert!(failures.is_empty(), "{}", told.join("\n"));
}

#[test]
fn o9_a_first_placement_that_is_interrupted_comes_to_an_end() {
    interrupted(Scenario::FirstPlacement);
}

#[test]
fn o9_a_move_that_is_interrupted_ends_the_same() {
    interrupted(Scenario::Move);
}

#[test]
fn o9_a_drain_that_is_interrupted_ends_the_same() {
    interrupted(Scenario::Drain);
}

#[test]
fn o9_a_split_that_is_interrupted_ends_the_same() {
    interrupted(Scenario::Split);
}

#[test]
fn o9_a_merge_that_is_interrupted_ends_the_same() {
    interrupted(Scenario::Merge);
}

#[test]
fn o9_a_failover_that_is_interrupted_comes_to_an_end() {
    interrupted(Scenario::Failover);
}

/// The parents' logs close, the children take their bases and open, the parents go: whoever is killed in between, it is done or
/// undone, and nothing that was acknowledged is lost.
#[test]
fn o9_d1_a_split_of_a_table_that_is_interrupted_is_done_or_undone() {
    interrupted_each(Scenario::TableSplit, TABLE_STRIDE);
}

#[test]
fn o9_d1_a_merge_of_a_table_that_is_interrupted_is_done_or_undone() {
    interrupted_each(Scenario::TableMerge, TABLE_STRIDE);
}

/// The whole fleet loses its leader: nobody is declared dead, nothing moves, no lease runs out, and nobody comes with
/// everybody else. 200 workers and 200 routers, each of which stands for fifty.
#[test]
fn r6_r7_a_fleet_that_loses_its_leader_comes_back_spread_out_and_nothing_moves() {
    for loss in [Loss::Leaves, Loss::Killed] {
        let figures = fleet::run(Fleet { stands_for: 50, ..Fleet::of_three(200, 200, loss) }, 1);
        assert_eq!((figures.moves, figures.deaths, figures.lapses), (0, 0, 0), "{loss:?}");
        assert!(figures.current_ms < 30_000, "{loss:?}: {figures:?}");
        assert!(figures.peak_per_s <= RECONNECTS_PER_S, "{loss:?}: {figures:?}");
        // All within a tenth of a second would be three times as many.
        assert!(figures.peak_per_s >= RECONNECTS_PER_S / 3, "{loss:?}: {figures:?}");
    }
}

/// A small one has no need to spread, and follows at once.
#[test]
fn r7_a_small_fleet_follows_the_next_leader_at_once() {
    let figures = |loss| fleet::run(Fleet::of_three(20, 20, loss), 1);
    let left = figures(Loss::Leaves);
    assert!(left.current_ms <= 300, "{left:?}");
    let killed = figures(Loss::Killed);
    let (leaderless_ms, latest_ms) = (3_200, 3_200 + 3_200 / LATE_BY + 300);
    assert!((leaderless_ms..=latest_ms).contains(&killed.current_ms), "{killed:?}");
}

#[test]
fn the_load_on_the_store_does_not_grow_with_the_fleet_while_nothing_changes() {
    let [few, more] = [(5, 3), (25, 12)].map(|(workers, routers)| fleet::steady(workers, routers));
    assert_eq!(few.0, 0.0, "nothing is committed");
    assert_eq!(few, more);
}
