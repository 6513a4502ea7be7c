use super::super::draft::Draft;
use super::super::problem::{NodeSet, Rule, Spread, Standing, spread_bits};
use super::super::solution::Unplaceable;
use super::super::tests::problem;
use super::super::tests::{after, cases, loaded, place};
use super::super::{Metric, Placement, Score};
use super::*;
use crate::limits;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn run(problem: &Problem) -> Solution {
    place("balanced", problem)
}

/// Loads with a tail: most are small, a few are large.
fn tailed(count: usize) -> Vec<f64> {
    (0..count as u64).map(|at| 1.0 + 1000.0 / (25.0 + (spread_bits(at) % 997) as f64)).collect()
}

/// A problem placed by the policy itself, so in balance.
fn even(nodes: usize, replicas: u8, shards: usize) -> Problem {
    let problem = loaded(nodes, replicas, &tailed(shards));
    let done = after(&problem, &run(&problem));
    assert!(run(&done).after.max_over_share() <= 1.05);
    done
}

#[test]
fn ba_the_order_of_the_fields_is_the_policy() {
    let worse = [
        Score { violations: 1, ..Score::default() },
        Score { unplaced: 1, violations: 0, ..Score::default() },
        Score { draining: 1, ..Score::default() },
        Score { crowded: 1, ..Score::default() },
        Score { excess_ppm: 1, ..Score::default() },
        Score { moves: 1, ..Score::default() },
        Score { bytes: 1, ..Score::default() },
    ];
    assert!(worse.windows(2).all(|pair| pair[0] > pair[1]));
}

#[test]
fn bb_hot_nodes_are_relieved_in_every_metric() {
    let mut problem = loaded(8, 2, &[]);
    let shards = 200;
    problem = Problem { replicas: vec![2; shards], ..problem };
    problem.shards = (0..shards as u64).map(crate::base::id::ShardId).collect();
    problem.hashes = (0..shards as u64).map(spread_bits).collect();
    problem.metrics.push(Metric { name: "bytes".into(), tolerance: 0.02, limit: None });
    problem.capacities = vec![1.0; 16];
    problem.loads = (0..2 * shards as u64).map(|at| (1 + spread_bits(at) % 50) as f64).collect();
    // Everything is on the first three nodes and unevenly so.
    problem.current = (0..shards as u32).map(|shard| vec![shard % 2, 2]).collect();
    let solution = run(&problem);
    let over: Vec<f64> = solution.after.metrics.iter().map(|metric| metric.max_over_share).collect();
    assert!(over[0] <= 1.05 && over[1] <= 1.02, "{over:?}");
}

#[test]
fn bc_within_tolerance_nothing_moves() {
    let mut problem = loaded(4, 1, &[1.0; 400]);
    // 104 replicas on node 0, its share is 100.
    problem.current = (0..400_u32).map(|shard| vec![if shard < 4 { 0 } else { shard % 4 }]).collect();
    assert_eq!(run(&problem).decisions, vec![]);
}

#[test]
fn bc_no_load_means_no_moves() {
    let mut problem = loaded(4, 1, &[0.0; 40]);
    problem.current = (0..40).map(|_| vec![0]).collect();
    assert_eq!(run(&problem).decisions, vec![]);
}

#[test]
fn bd_after_a_loss_only_the_lost_replicas_move() {
    let mut problem = even(100, 3, 5000);
    for node in &mut problem.nodes {
        node.rack = node.ring_index % 10;
    }
    problem.rules = vec![Rule { rack: Spread::Hard, ..Rule::default() }];
    problem.current = run(&problem).placement;
    problem.nodes[42].standing = Standing::Gone;
    let lost = problem.current.iter().flatten().filter(|node| **node == 42).count();
    let solution = run(&problem);
    assert_eq!((solution.decisions.len(), solution.unplaced.len()), (lost, 0));
    assert!(solution.decisions.iter().all(|one| one.from == Some(42) && one.reason == Reason::Lost));
    assert_eq!(solution.score.violations, 0);
}

#[test]
fn be_a_node_that_joins_draws_its_share_and_nothing_else_moves() {
    for nodes in [4, 10, 50] {
        let mut problem = even(nodes + 1, 2, 40 * nodes);
        // As it was before the last node came.
        problem.nodes[nodes].standing = Standing::Drains;
        problem.current = run(&problem).placement;
        problem.nodes[nodes].standing = Standing::Accepts;
        let solution = run(&problem);
        let to_it = |one: &&crate::placement::Decision| one.to == Some(nodes as u32);
        assert_eq!(solution.decisions.iter().filter(to_it).count(), solution.decisions.len());
        let moved: f64 = solution.decisions.iter().map(|one| problem.loads[one.shard as usize]).sum();
        let share = 2.0 * problem.loads.iter().sum::<f64>() / (nodes + 1) as f64;
        assert!(moved > 0.75 * share && moved < 1.06 * share, "{nodes}: {} of a share", moved / share);
        let said = solution.decisions[0].sentence(&problem);
        assert!(said.contains(&format!("to n{nodes}: n{nodes} carries 0 requests, less than 0.5")), "{said}");
    }
}

#[test]
fn bf_capacities_weight_and_limits_bind() {
    let mut problem = loaded(3, 1, &[1.0; 90]);
    problem.capacities = vec![60.0, 30.0, 10.0];
    problem.metrics[0].limit = Some(0.95);
    let solution = run(&problem);
    let on = |node: u32| solution.placement.iter().filter(|nodes| nodes == &[node]).count();
    assert!(on(0) <= 57 && on(1) <= 28 && on(2) <= 9, "{} {} {}", on(0), on(1), on(2));
    assert_eq!(solution.unplaced, vec![]);
    // 90 fit in 0.95 of 100, 99 do not.
    problem =
        Problem { metrics: problem.metrics, capacities: problem.capacities, ..loaded(3, 1, &[1.0; 99]) };
    let full = run(&problem);
    assert_eq!(full.unplaced.len(), 99 - (57 + 28 + 9));
    assert!(full.unplaced.iter().all(|one| one.why == Unplaceable::NoRoom { metric: 0 }));
    let said = full.unplaced[0].sentence(&problem);
    assert!(said.contains("exceed its limit of requests: add a node or raise the limit"), "{said}");
}

#[test]
fn bf_one_huge_shard_does_not_fail_the_rest() {
    let mut loads = vec![1.0; 99];
    loads.push(1000.0);
    let mut problem = loaded(5, 1, &loads);
    problem.current = (0..100).map(|_| vec![0]).collect();
    let solution = run(&problem);
    assert_eq!(solution.placement.replicas(), 100);
    let beside: Vec<f64> = (0..99)
        .filter(|shard| solution.placement.of(*shard) == solution.placement.of(99))
        .map(|_| 1.0)
        .collect();
    assert_eq!(beside.len(), 0, "nothing stays with the huge one");
}

#[test]
fn bg_crowded_replicas_are_spread_when_there_is_room() {
    let mut problem = loaded(6, 2, &[1.0; 30]);
    problem.nodes.iter_mut().for_each(|node| node.zone = node.ring_index / 3);
    problem.current = (0..30_u32).map(|shard| vec![shard % 3, (shard + 1) % 3]).collect();
    let solution = run(&problem);
    assert_eq!((solution.score.crowded, solution.decisions.len()), (0, 30));
    assert!(solution.decisions[0].sentence(&problem).contains("another replica is in the zone of n"));
    // One zone: no complaint, no move.
    problem.nodes.iter_mut().for_each(|node| node.zone = 0);
    problem.nodes.truncate(3);
    problem.capacities.truncate(3);
    let nowhere_else = run(&problem);
    assert_eq!((nowhere_else.decisions.len(), nowhere_else.unplaced.len()), (0, 0));
    assert_eq!(nowhere_else.score.crowded, 30);
}

#[test]
fn bg_a_replica_on_a_node_that_only_keeps_hides_no_zone_that_is_free() {
    for policy in ["balanced", "work_stealing"] {
        let mut problem = loaded(4, 3, &[1.0]);
        for (node, zone) in problem.nodes.iter_mut().zip([0, 0, 2, 1]) {
            node.zone = zone;
        }
        problem.nodes[2].standing = Standing::Keeps;
        problem.current = [vec![0, 1, 2]].into_iter().collect();
        let solution = place(policy, &problem);
        assert_eq!(solution.placement.of(0), [0, 2, 3], "{policy}");
        assert_eq!(place(policy, &after(&problem, &solution)).decisions, vec![], "{policy}");
    }
}

#[test]
fn bg_labels_pins_and_exclusions_are_followed_and_mended() {
    let mut problem = loaded(6, 1, &[1.0; 60]);
    let only = |nodes: &'static [u32]| Rule {
        nodes: Some(NodeSet::of(6, |node| nodes.contains(&node))),
        ..Rule::default()
    };
    // Shard 0 has node 5 for itself; the others may be anywhere else.
    problem.rules = vec![only(&[0, 1, 2, 3, 4]), only(&[5])];
    problem.rule_of = (0..60).map(|shard| u32::from(shard == 0)).collect();
    problem.current = (0..60_u32).map(|shard| vec![shard % 6]).collect();
    let solution = run(&problem);
    assert_eq!(solution.placement.of(0), [5]);
    assert!((1..60).all(|shard| solution.placement.of(shard) != [5]));
    let moved = solution.decisions.iter().find(|one| one.shard == 0).unwrap();
    assert_eq!(moved.reason, Reason::Forbidden);
    assert_eq!(moved.sentence(&problem), "move a replica of s0 from n0 to n5: its rule does not allow n0");
}

#[test]
fn bg_replica_counts_may_differ_and_change() {
    let mut problem = loaded(5, 1, &[1.0, 10.0, 1.0]);
    problem.replicas = vec![1, 4, 0];
    problem.current = [vec![0, 1, 2], vec![3], vec![4]].into_iter().collect();
    let solution = run(&problem);
    let counts: Vec<usize> = solution.placement.iter().map(<[u32]>::len).collect();
    assert_eq!(counts, [1, 4, 0]);
    assert_eq!((solution.placement.of(0), solution.placement.of(1)[0]), (&[0][..], 3));
}

#[test]
fn bh_reasons_carry_the_numbers() {
    let mut problem = loaded(2, 1, &[400.0, 412.0, 100.0, 88.0]);
    problem.current = [vec![0], vec![0], vec![1], vec![1]].into_iter().collect();
    let solution = run(&problem);
    let said: Vec<String> = solution.decisions.iter().map(|one| one.sentence(&problem)).collect();
    assert!(
        said.iter()
            .any(|line| line.contains("n0 carries 812 requests, more than 1.05 times its share of 500")),
        "{said:?}"
    );
}

#[test]
fn a_drain_empties_the_node_and_the_rest_stays_even() {
    let mut problem = even(40, 3, 2000);
    problem.nodes[7].standing = Standing::Drains;
    let solution = run(&problem);
    assert!(solution.placement.iter().flatten().all(|node| *node != 7));
    assert!(solution.after.max_over_share() <= 1.05);
    assert!(solution.decisions.iter().all(|one| one.reason == Reason::Drained));
}

#[test]
fn the_family_of_the_bench_takes_few_moves() {
    // 333 shards of three replicas on 50 nodes in ten racks, two metrics, to 1.01.
    let mut problem = loaded(50, 3, &tailed(333));
    problem.metrics =
        ["cpu", "memory"].map(|name| Metric { name: name.into(), tolerance: 0.01, limit: None }).into();
    problem.capacities = vec![1.0; 100];
    problem.loads = tailed(333)
        .into_iter()
        .enumerate()
        .flat_map(|(at, load)| [load.sqrt(), 1.0 + (spread_bits(at as u64) % 9) as f64])
        .collect();
    problem.nodes.iter_mut().for_each(|node| node.rack = node.ring_index % 10);
    problem.rules = vec![Rule { rack: Spread::Hard, ..Rule::default() }];
    problem.current = (0..333_u64)
        .map(|shard| {
            let first = spread_bits(shard) % 50;
            [first, first + 1 + spread_bits(first + shard) % 4, first + 5 + spread_bits(shard + 7) % 4]
                .map(|node| (node % 50) as u32)
        })
        .collect::<Placement>();
    let solution = run(&problem);
    assert!(solution.after.max_over_share() <= 1.01, "{:?}", solution.after);
    assert!(solution.decisions.len() <= 250, "{} moves", solution.decisions.len());
    assert_eq!(solution.score.violations, 0);
}

#[test]
fn bb_what_cannot_be_even_is_left_after_a_bounded_search() {
    // Tolerance zero over shards of odd sizes: every node stays hot, and the search ends all the same.
    let mut problem = loaded(60, 2, &tailed(3000));
    problem.metrics[0].tolerance = 0.0;
    let solution = run(&problem);
    assert_eq!(solution.unplaced, vec![]);
    assert!(solution.after.max_over_share() < 1.01, "{:?}", solution.after);
    assert!(solution.score.excess_ppm > 0);
}

proptest::proptest! {
    #[test]
    fn bi_what_is_dealt_out_evenly_moves_nothing(
        nodes in 2usize..40, shards in 1usize..400, tolerance in 0.0..0.2f64, uneven in 0.0..0.2f64, seed in 0u64..1_000,
    ) {
        let size = |at: u64| 100.0 * (1.0 + uneven * (spread_bits(at ^ seed) % 1_000) as f64 / 1_000.0);
        let loads: Vec<f64> = (0..shards as u64).map(size).collect();
        // Alike, not equal: each node its whole share and at most one more.
        for loads in [vec![1.0; shards], loads] {
            let mut problem = loaded(nodes, 1, &loads);
            problem.metrics[0].tolerance = if loads[0] == 1.0 { tolerance } else { tolerance.max(uneven) };
            problem.current = (0..shards).map(|shard| vec![((shard + seed as usize) % nodes) as u32]).collect();
            // Where tolerance is the wider bound, uneven shards may still be exchanged to come within it.
            let share = shards as f64 / nodes as f64;
            let binds = share.ceil() / share > 1.0 + problem.metrics[0].tolerance;
            if binds || loads[0] == 1.0 {
                proptest::prop_assert_eq!(run(&problem).decisions, vec![]);
            }
        }
    }

    #[test]
    fn bi_equal_shards_end_as_even_as_they_can_be(nodes in 2usize..30, shards in 1usize..300, seed in 0u64..1_000) {
        let mut problem = loaded(nodes, 1, &vec![1.0; shards]);
        let node = |shard: usize| (spread_bits(shard as u64 ^ seed) % nodes as u64) as u32;
        problem.current = (0..shards).map(|shard| vec![node(shard)]).collect();
        let solution = run(&problem);
        let mut counts = vec![0usize; nodes];
        solution.placement.iter().flatten().for_each(|node| counts[*node as usize] += 1);
        let share = shards as f64 / nodes as f64;
        let allowed = f64::max(share.ceil(), share * (1.0 + limits::PLAIN_TOLERANCE));
        proptest::prop_assert!(counts.iter().all(|count| *count as f64 <= allowed + 1e-9), "{:?}", counts);
        // A node that is left with nothing is one that has just joined to the next run, and draws.
        if counts.iter().all(|count| *count as f64 >= share.floor()) {
            let again = after(&problem, &solution);
            proptest::prop_assert_eq!(run(&again).decisions, vec![]);
        }
    }
}

#[test]
fn bi_a_ninth_node_for_128_shards_takes_its_share_and_no_more_moves() {
    let sizes: Vec<f64> = (0..128).map(|at| 100.0 + (spread_bits(at) % 10) as f64).collect();
    let mut problem = loaded(9, 1, &sizes);
    problem.current = (0..128_u32).map(|shard| vec![shard % 8]).collect();
    let solution = run(&problem);
    assert!(solution.decisions.len() <= 15, "{} moves", solution.decisions.len());
    assert!(solution.decisions.iter().all(|one| one.to == Some(8)));
    assert!(solution.after.max_over_share() < 1.12, "{:?}", solution.after);
}

#[test]
fn bj_the_load_of_others_counts_where_it_is() {
    let mut problem = loaded(4, 1, &[10.0; 40]);
    problem.current = (0..40_u32).map(|shard| vec![shard % 4]).collect();
    problem.background = vec![200.0, 0.0, 0.0, 0.0];
    let solution = run(&problem);
    let mut counts = [0.0; 4];
    solution.placement.iter().flatten().for_each(|node| counts[*node as usize] += 10.0);
    // 600 in all, so 150 each; the first has more than that already.
    assert_eq!(counts[0], 0.0, "{counts:?}");
    assert!(counts[1..].iter().all(|load| *load <= 200.0 * 1.06), "{counts:?}");
    problem.background = vec![200.0; 4];
    assert_eq!(run(&problem).decisions, vec![], "what is the same everywhere moves nothing");
    problem.background = vec![1.0; 3];
    assert!(matches!(Balanced.place(&problem), Err(ProblemError::Length { array: "background", .. })));
    problem.background = vec![1.0, f64::NAN, 0.0, 0.0];
    let error = Balanced.place(&problem).unwrap_err().to_string();
    assert!(error.contains("on node n1 is NaN"), "{error}");
}

/// One of several keyspaces on the same nodes: loads in two metrics, replicas in a third.
fn beside(own: &Keyspace, others: &[Keyspace], nodes: usize) -> Problem {
    let replicas = own.current.iter().map(|held| held.len() as u8).collect();
    let mut problem = Problem { replicas, ..loaded(nodes, 1, &[]) };
    let count = own.current.len() as u64;
    problem.shards = (0..count).map(crate::base::id::ShardId).collect();
    problem.hashes = (0..count).map(spread_bits).collect();
    let metric = |name: &str, tolerance| Metric { name: name.into(), tolerance, limit: None };
    problem.metrics = vec![
        metric("requests", limits::LOAD_TOLERANCE),
        metric("bytes", limits::LOAD_TOLERANCE),
        metric("replicas", limits::COUNT_TOLERANCE_BESIDE),
    ];
    problem.capacities = vec![1.0; 3 * nodes];
    problem.loads = own.loads.iter().flat_map(|load| [load.0, load.1, 1.0]).collect();
    problem.background = vec![0.0; 3 * nodes];
    for other in others {
        for (held, load) in other.current.iter().zip(&other.loads) {
            for node in held {
                problem.background[3 * *node as usize] += load.0;
                problem.background[3 * *node as usize + 1] += load.1;
            }
        }
    }
    problem.current = own.current.iter().cloned().collect();
    problem
}

#[derive(Debug, Clone)]
struct Keyspace {
    current: Vec<Vec<u32>>,
    loads: Vec<(f64, f64)>,
}

fn keyspaces(nodes: u32) -> impl Strategy<Value = Vec<Keyspace>> {
    let shard = (0..nodes, 1..3u32, 0u32..60, 0u32..60);
    let keyspace = proptest::collection::vec(shard, 1..14).prop_map(move |shards| Keyspace {
        current: shards
            .iter()
            .map(|(first, n, ..)| (0..*n).map(|at| (first + at) % nodes).collect())
            .collect(),
        loads: shards.iter().map(|(.., a, b)| (f64::from(*a), f64::from(*b))).collect(),
    });
    proptest::collection::vec(keyspace, 2..5)
}

proptest! {
    #![proptest_config(cases(600))]

    /// L2: keyspaces on the same nodes, of which each sees what the others carry, come to rest, also when some of their shards
    /// cannot be moved (seed 5082 with --nobody --stuck --durable: one of two that were to change places was moved to and fro).
    #[test]
    fn l2_keyspaces_that_share_nodes_come_to_rest(mut all in keyspaces(5), stuck in 0u32..14, of in 2u32..15) {
        for round in 0.. {
            prop_assert!(round < 60, "they move for ever: {:?}", all);
            let mut rests = true;
            for at in 0..all.len() {
                let own = all.remove(at);
                let problem = beside(&own, &all, 5);
                let current = carried_out(&problem, &run(&problem), |shard| shard % of == stuck);
                rests &= current == own.current;
                all.insert(at, Keyspace { current, ..own });
            }
            if rests {
                break;
            }
        }
    }
}

/// What may be done with the last two of five nodes, by keyspace: one of a keyspace that needs leases is emptied where it gets
/// none, and others keep what they have there.
fn standings() -> impl Strategy<Value = Vec<[Standing; 2]>> {
    let standing = prop_oneof![Just(Standing::Accepts), Just(Standing::Keeps), Just(Standing::Drains)];
    proptest::collection::vec([standing.clone(), standing], 4)
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn l2_keyspaces_come_to_rest_where_each_may_use_other_nodes(mut all in keyspaces(5), standings in standings()) {
        for round in 0.. {
            prop_assert!(round < 60, "they move for ever: {:?}", all);
            let mut rests = true;
            for (at, of_last_two) in standings.iter().enumerate().take(all.len()) {
                let own = all.remove(at);
                let mut problem = beside(&own, &all, 5);
                (problem.nodes[3].standing, problem.nodes[4].standing) = (*of_last_two).into();
                let current = carried_out(&problem, &run(&problem), |_| false);
                rests &= current == own.current;
                all.insert(at, Keyspace { current, ..own });
            }
            if rests {
                break;
            }
        }
    }
}

/// Two keyspaces that moved shards for ever: one may not use the last node, on which the other has a shard.
#[test]
fn l2_two_keyspaces_that_answered_each_other_for_ever_rest() {
    let one = Keyspace {
        current: vec![vec![0], vec![0], vec![4]],
        loads: vec![(22.0, 3.0), (14.0, 4.0), (16.0, 10.0)],
    };
    let other = Keyspace { current: vec![vec![2, 3], vec![0]], loads: vec![(38.0, 7.0), (18.0, 20.0)] };
    let mut all = [(one, Standing::Accepts), (other, Standing::Drains)];
    let mut plans = 0;
    for _ in 0..30 {
        for at in 0..2 {
            let mut problem = beside(&all[at].0, std::slice::from_ref(&all[1 - at].0), 5);
            problem.nodes[4].standing = all[at].1;
            let current = carried_out(&problem, &run(&problem), |_| false);
            plans += u32::from(current != all[at].0.current);
            all[at].0.current = current;
        }
    }
    assert!(plans <= 4, "{plans} plans in 30 rounds");
}

/// By how much less the nodes are above their marks in all, and whether the price is won, when a replica of `shard` moves.
fn outcome(draft: &Draft<'_>, shard: u32, from: u32, to: u32) -> (f64, bool) {
    let (mut gain, mut fall, mut price) = (0.0, 0.0, 0.0);
    for metric in 0..draft.metrics() {
        let (size, largest) = (draft.size(shard, metric), draft.share_of_any(metric));
        let over = |node: u32, change: f64| {
            let share = draft.share(node, metric);
            if share > 0.0 {
                ((draft.load(node, metric) + change) / share - draft.mark(node, metric)).max(0.0)
            } else {
                0.0
            }
        };
        gain += over(from, 0.0) + over(to, 0.0) - over(from, -size) - over(to, size);
        if largest > 0.0 {
            let tolerance = draft.tolerance(metric);
            let halfway =
                |node, change: f64| (draft.load(node, metric) + change / 2.0) / draft.share(node, metric);
            fall += size / largest / tolerance * (halfway(from, -size) - halfway(to, size)) / tolerance;
            price += size / largest / tolerance * limits::LOAD_MOVE_PRICE;
        }
    }
    (gain, fall > price + 1e-6)
}

proptest! {
    /// What wins its price is done: of no node above its tolerance a replica is left that could go to another node so that all
    /// are less above theirs.
    #[test]
    fn bk_no_move_is_left_that_wins_its_price(mut all in keyspaces(5), standings in standings()) {
        let own = all.remove(0);
        let mut problem = beside(&own, &all, 5);
        (problem.nodes[3].standing, problem.nodes[4].standing) = standings[0].into();
        let placed = after(&problem, &run(&problem));
        let draft = Draft::new(&placed);
        for (shard, from) in (0u32..).zip(placed.current.iter()).flat_map(|(shard, on)| on.iter().map(move |n| (shard, *n))) {
            let others = (0..5).filter(|to| draft.standing(*to) == Standing::Accepts && !draft.nodes_of(shard).contains(to));
            for to in others.filter(|_| draft.standing(from) != Standing::Drains) {
                let (gain, wins) = outcome(&draft, shard, from, to);
                prop_assert!(gain <= 1e-6 || !wins, "shard {shard} from {from} to {to} gains {gain}: {placed:?}");
            }
        }
    }
}

/// From the simulator: a node takes nothing and holds nothing, so what the others carry is above the share of each, however
/// evenly. A hundredth of a share was won with three moves, and others answered.
#[test]
fn bk_a_step_that_wins_less_than_its_price_is_not_made_where_nodes_are_shared() {
    let own = Keyspace {
        current: vec![vec![2], vec![3], vec![3], vec![1, 2], vec![1]],
        loads: vec![(30.0, 0.0), (167.0, 0.0), (0.0, 0.0), (291.0, 0.0), (80.0, 0.0)],
    };
    let mut problem = beside(&own, &[], 5);
    (problem.nodes[0].standing, problem.nodes[4].standing) = (Standing::Keeps, Standing::Drains);
    for (node, load) in [(1, 1_058.0), (2, 1_001.5), (3, 1_155.0), (4, 203.5)] {
        problem.background[3 * node] = load;
    }
    assert_eq!(run(&problem).decisions, vec![]);
    // What wins its price is made all the same.
    problem.background[3] += 400.0;
    let solution = run(&problem);
    assert!(!solution.decisions.is_empty());
    assert!(solution.after.max_over_share() < solution.before.max_over_share() - 0.05, "{solution:?}");
}

#[test]
fn bk_many_small_shards_even_out_as_well_where_nodes_are_shared() {
    let mut problem = loaded(5, 1, &[1.0; 400]);
    problem.current = (0..400_u32).map(|shard| vec![shard % 2]).collect();
    problem.background = vec![40.0, 0.0, 0.0, 20.0, 0.0];
    let solution = run(&problem);
    assert!(solution.after.max_over_share() <= 1.05 + 1e-9, "{:?}", solution.after);
}

/// Where replicas are when those of `stuck` shards cannot be moved.
fn carried_out(problem: &Problem, solution: &Solution, stuck: impl Fn(u32) -> bool) -> Vec<Vec<u32>> {
    let mut current: Vec<Vec<u32>> = problem.current.iter().map(<[u32]>::to_vec).collect();
    let left_out = (0u32..).zip(&solution.decisions).filter(|(_, decision)| stuck(decision.shard));
    let left_out = left_out.map(|(at, _)| at).collect::<BTreeSet<_>>();
    let is_whole = left_out.is_empty();
    if solution.is_worthwhile(problem) && (is_whole || solution.remains_worthwhile(problem, &left_out)) {
        for decision in solution.decisions.iter().filter(|decision| !stuck(decision.shard)) {
            let (Some(from), Some(to)) = (decision.from, decision.to) else { continue };
            let held = &mut current[decision.shard as usize];
            let slot = held.iter().position(|node| *node == from).unwrap();
            held[slot] = to;
        }
    }
    current
}

#[test]
fn l2_one_of_two_that_were_to_change_places_is_not_moved_alone() {
    let own = Keyspace {
        current: vec![vec![4], vec![0], vec![3]],
        loads: vec![(484.5, 1.0), (341.0, 1.0), (628.0, 1.0)],
    };
    let beside_it = Keyspace {
        current: vec![vec![0], vec![1], vec![3], vec![4]],
        loads: vec![(110.0, 1.0), (386.5, 1.0), (150.0, 1.0), (420.5, 1.0)],
    };
    let mut problem = beside(&own, &[beside_it], 5);
    problem.nodes[2].standing = Standing::Drains;
    let solution = run(&problem);
    assert!(solution.decisions.len() == 2 && solution.is_worthwhile(&problem), "{:#?}", solution.decisions);
    assert!(solution.remains_worthwhile(&problem, &BTreeSet::new()));
    for left_out in 0..2 {
        assert!(!solution.remains_worthwhile(&problem, &BTreeSet::from([left_out])), "{left_out}");
    }
}

/// All phases on one draft that is never put aside.
fn in_one_piece(problem: &Problem) -> Solution {
    let mut draft = Draft::new(problem);
    for _ in 0..limits::PASSES {
        draft.begin_pass();
        let mut pending = evict::evict(&mut draft);
        constrain::constrain(&mut draft, &mut pending);
        if let Some(filling) = fill::begin(&draft, pending) {
            assert!(filling.go_on(&mut draft, usize::MAX).0.is_none(), "all of it");
        }
        draw::draw(&mut draft);
        let mut balancing = balance::begin(&mut draft);
        let mut exhausted = false;
        while let Some(rest) = balancing {
            balancing = match rest.go_on(&mut draft, u64::MAX).0 {
                balance::Progress::UnderWay(rest) => Some(rest),
                balance::Progress::Done { is_exhausted } => {
                    exhausted = is_exhausted;
                    None
                }
            };
        }
        if !pieces::is_another_due(&mut draft, exhausted) {
            break;
        }
    }
    draft.finish()
}

/// The solution that is worked out in pieces of about `most`, and what each came to.
fn in_pieces(problem: &Problem, most: usize) -> (Solution, Vec<usize>) {
    let mut placing = Placing::UnderWay(Box::new(Pieces::begin(problem).unwrap()));
    let mut works = Vec::new();
    loop {
        placing = match placing {
            // As between two decisions: what is kept is a copy, and the problem is one, too.
            Placing::UnderWay(pieces) => {
                let (placing, work) = pieces.clone().go_on(&problem.clone(), most);
                works.push(work);
                placing
            }
            Placing::Done(solution) => return (*solution, works),
        };
    }
}

proptest! {
    #[test]
    fn m9_pieces_come_to_what_one_piece_comes_to(problem in problem(), most in 1..200_usize) {
        let whole = in_one_piece(&problem);
        let (solution, works) = in_pieces(&problem, most);
        prop_assert!(works.len() >= 4, "{:?}", works);
        prop_assert_eq!(solution, whole);
    }
}

#[test]
fn m9_b7_steps_are_weighed_in_pieces_and_come_to_the_same() {
    // Everything is on the first three of twelve nodes, and no two shards weigh the same.
    let sizes: Vec<f64> = (0..300).map(|shard| 1.0 + f64::from(shard * 37 % 101) / 50.0).collect();
    let mut problem = loaded(12, 2, &sizes);
    problem.current = (0..300).map(|shard| vec![shard % 3, (shard + 1) % 3]).collect();
    problem.settings.draw_below = 0.0;
    let whole = in_one_piece(&problem);
    let (_, at_once) = in_pieces(&problem, usize::MAX);
    for most in [1, 50, 1_000] {
        let (solution, works) = in_pieces(&problem, most);
        assert_eq!(solution, whole, "pieces of {most}");
        assert!(works.len() >= at_once.len() + 20, "pieces of {most}: {} and {}", works.len(), at_once.len());
    }
}
