use super::*;
use crate::placement::tests::{after, loaded, nodes, place};
use crate::placement::{Rule, Spread, Unplaceable};

fn run(problem: &Problem) -> Solution {
    place("work_stealing", problem)
}

fn counts(solution: &Solution, nodes: usize) -> Vec<usize> {
    let mut counts = vec![0; nodes];
    solution.placement.iter().flatten().for_each(|node| counts[*node as usize] += 1);
    counts
}

#[test]
fn wa_never_two_replicas_on_one_node() {
    let solution = run(&loaded(3, 3, &[5.0; 40]));
    for nodes in solution.placement.iter() {
        let mut sorted = nodes.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2]);
    }
}

#[test]
fn wa_two_replicas_share_a_node_only_when_asked_and_only_when_there_is_no_other() {
    let mut problem = Problem::new(nodes(2), vec![3]);
    let refused = run(&problem);
    assert_eq!(refused.placement.of(0).len(), 2);
    assert!(matches!(refused.unplaced[0].why, Unplaceable::TooFewNodes { needs: 3, eligible: 2 }));
    problem.rules = vec![Rule { share_node: true, ..Rule::default() }];
    let allowed = run(&problem);
    assert_eq!((allowed.placement.of(0).len(), allowed.unplaced.len()), (3, 0));
    let mut both = allowed.placement.of(0).to_vec();
    both.sort_unstable();
    both.dedup();
    assert_eq!(both, [0, 1]);
}

#[test]
fn wb_a_replica_goes_to_the_least_loaded_node() {
    let mut problem = loaded(3, 1, &[30.0, 20.0, 10.0, 1.0]);
    problem.current = [vec![0], vec![1], vec![2], vec![]].into_iter().collect();
    problem.settings.steal_above = 100.0;
    assert_eq!(run(&problem).placement.of(3), [2]);
}

#[test]
fn wb_shards_without_load_are_counted() {
    let solution = run(&loaded(4, 1, &[0.0; 40]));
    assert_eq!(counts(&solution, 4), [10; 4]);
}

#[test]
fn wb_capacity_weights_the_load() {
    let mut problem = loaded(2, 1, &[1.0; 40]);
    problem.capacities = vec![3.0, 1.0];
    assert_eq!(counts(&run(&problem), 2), [30, 10]);
}

#[test]
fn wc_while_nodes_suffice_every_replica_is_placed() {
    let mut problem = loaded(30, 2, &[1.0; 60]);
    problem.settings.steal_tries = 0;
    for node in 2..30 {
        problem.nodes[node].standing = Standing::Keeps;
    }
    let solution = run(&problem);
    assert_eq!(solution.unplaced, vec![]);
    assert_eq!(&counts(&solution, 30)[..2], [60, 60]);
}

#[test]
fn wc_the_order_of_the_others_comes_from_the_seed() {
    // Ten shards lie on node 0, which stays the least loaded, and look for a second node.
    let mut problem = loaded(50, 2, &[vec![0.1; 10], vec![5.0; 49]].concat());
    problem.replicas[10..].fill(1);
    problem.current = (0..59).map(|shard: u32| vec![shard.saturating_sub(9)]).collect();
    let one = run(&problem);
    let other = run(&Problem { seed: 1, ..problem.clone() });
    assert_ne!(one.placement, other.placement);
    assert_eq!(one, run(&problem));
}

#[test]
fn wd_only_the_excess_above_the_threshold_is_given_up() {
    // 20 shards of 1: a share is 5. Node 0 has 12, 1.3 times its share is 6.5.
    let mut problem = loaded(4, 1, &[1.0; 20]);
    problem.current = (0..20).map(|shard| vec![if shard < 12 { 0 } else { 1 + shard % 3 }]).collect();
    let solution = run(&problem);
    assert_eq!(solution.decisions.len(), 6);
    assert!(solution.decisions.iter().all(|decision| decision.from == Some(0)));
    assert_eq!(counts(&solution, 4)[0], 6);
    let said = solution.decisions[0].sentence(&problem);
    assert!(said.contains("from n0") && said.contains("more than 1.3 times its share of 5"), "{said}");
}

#[test]
fn wd_below_the_threshold_nothing_moves() {
    let mut problem = loaded(4, 1, &[1.0; 20]);
    problem.current = (0..20).map(|shard| vec![if shard < 6 { 0 } else { 1 + shard % 3 }]).collect();
    assert_eq!(run(&problem).decisions, vec![]);
}

#[test]
fn we_one_huge_shard_stays_where_it_is() {
    let mut problem = loaded(3, 1, &[1000.0, 1.0, 1.0, 1.0, 1.0]);
    problem.current = [vec![0], vec![0], vec![0], vec![1], vec![2]].into_iter().collect();
    let once = run(&problem);
    assert_eq!(once.placement.of(0), [0]);
    assert_eq!(run(&after(&problem, &once)).decisions, vec![]);
}

#[test]
fn wf_replicas_spread_over_zones_while_zones_last() {
    let mut problem = loaded(9, 3, &[1.0; 50]);
    for (at, node) in problem.nodes.iter_mut().enumerate() {
        node.zone = at as u32 / 3;
    }
    let solution = run(&problem);
    for nodes in solution.placement.iter() {
        let mut zones: Vec<u32> = nodes.iter().map(|node| node / 3).collect();
        zones.sort_unstable();
        assert_eq!(zones, [0, 1, 2]);
    }
    // Two zones for three replicas: soft places all and counts, hard reports.
    problem.nodes.iter_mut().for_each(|node| node.zone = node.zone.min(1));
    let soft = run(&problem);
    assert_eq!((soft.unplaced.len(), soft.score.crowded), (0, 50));
    problem.rules = vec![Rule { zone: Spread::Hard, ..Rule::default() }];
    let hard = run(&problem);
    assert_eq!(hard.unplaced.len(), 50);
    let said = hard.unplaced[0].sentence(&problem);
    assert!(said.contains("it needs 3 distinct zones and 2 are eligible"), "{said}");
}

#[test]
fn wf_replicas_that_crowd_a_zone_move_to_one_that_none_is_in() {
    // Three replicas, and two zones: the least loaded node is in the crowded one.
    let mut problem = loaded(5, 1, &[1.0; 6]);
    problem.replicas[0] = 3;
    problem.nodes.iter_mut().for_each(|node| node.zone = 0);
    problem.nodes[4].zone = 1;
    problem.current = [vec![0, 1, 2], vec![4], vec![4], vec![4], vec![4], vec![4]].into_iter().collect();
    problem.settings.steal_above = 100.0;
    let solution = run(&problem);
    assert_eq!((solution.placement.of(0), solution.decisions.len()), (&[0, 2, 4][..], 1));
    assert_eq!(run(&after(&problem, &solution)).decisions, vec![]);
}

#[test]
fn a_drained_node_is_emptied_and_a_lost_one_replaced_and_nothing_else_moves() {
    let mut problem = loaded(5, 2, &[1.0; 50]);
    problem.current = run(&problem).placement;
    problem.nodes[1].standing = Standing::Drains;
    problem.nodes[3].standing = Standing::Gone;
    let solution = run(&problem);
    assert_eq!((counts(&solution, 5)[1], counts(&solution, 5)[3]), (0, 0));
    for decision in &solution.decisions {
        let reason = if decision.from == Some(1) { Reason::Drained } else { Reason::Lost };
        assert_eq!((decision.reason, decision.from == Some(1) || decision.from == Some(3)), (reason, true));
    }
}

#[test]
fn a_drain_that_cannot_end_says_what_blocks_it() {
    let mut problem = loaded(2, 2, &[1.0]);
    problem.current = [vec![0, 1]].into_iter().collect();
    problem.nodes[1].standing = Standing::Drains;
    let solution = run(&problem);
    assert_eq!(solution.decisions, vec![]);
    let said = solution.unplaced[0].sentence(&problem);
    assert!(said.contains("stays on n1, which it should leave: it needs 2 distinct nodes and 1"), "{said}");
}
