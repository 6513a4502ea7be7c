//! The properties of the module head, for every policy, on random problems.

use super::*;
use crate::base::name::NodeId;
use proptest::prelude::*;

/// The usual number of cases, or what `PROPTEST_CASES` says instead of the 256 that proptest takes else.
pub(super) fn cases(usual: u32) -> ProptestConfig {
    match ProptestConfig::default() {
        config if config.cases == 256 => ProptestConfig { cases: usual, ..config },
        config => config,
    }
}

/// Nodes `n0`, `n1` … that accept.
pub(super) fn nodes(count: usize) -> Vec<NodeSpec> {
    (0..count).map(|at| NodeSpec::new(NodeId::new(&format!("n{at}")).unwrap(), at as u32)).collect()
}

/// A problem with one metric, equal capacities, and these loads.
pub(super) fn loaded(nodes_count: usize, replicas: u8, loads: &[f64]) -> Problem {
    let mut problem = Problem::new(nodes(nodes_count), vec![replicas; loads.len()]);
    problem.metrics = vec![Metric { name: "requests".into(), tolerance: 0.05, limit: None }];
    problem.capacities = vec![1.0; nodes_count];
    problem.loads = loads.to_vec();
    problem
}

/// The same problem, with that solution carried out.
pub(super) fn after(problem: &Problem, solution: &Solution) -> Problem {
    Problem { current: solution.placement.clone(), ..problem.clone() }
}

/// The part of all replicas that each node has.
pub(super) fn shares(problem: &Problem, solution: &Solution) -> Vec<f64> {
    let mut counts = vec![0.0; problem.nodes.len()];
    solution.placement.iter().flatten().for_each(|node| counts[*node as usize] += 1.0);
    counts.into_iter().map(|count| count / solution.placement.replicas() as f64).collect()
}

pub(super) fn place(policy: &str, problem: &Problem) -> Solution {
    by_name(policy).unwrap().place(problem).unwrap()
}

/// What is checked of each solution, whatever the policy and the problem.
fn hold_promises(policy: &str, problem: &Problem, solution: &Solution) -> Result<(), TestCaseError> {
    let checked = solution.check(problem);
    prop_assert!(checked.is_ok(), "(pa) (pb) (pg) {policy}: {checked:?}");
    for (shard, nodes) in solution.placement.iter().enumerate() {
        let (index, before) = (shard as u32, problem.current.of(shard as u32));
        let unplaced = solution.unplaced.iter().filter(|one| one.shard == index && one.stays.is_none());
        let (have, missing) = (nodes.len(), unplaced.count());
        prop_assert_eq!(have + missing, problem.replicas[shard] as usize, "(pe) {}: shard {}", policy, shard);
        if let Some(leader) = before.first().filter(|leader| nodes.contains(leader)) {
            prop_assert_eq!(nodes.first(), Some(leader), "(pf) {}: shard {}", policy, shard);
        }
    }
    for decision in &solution.decisions {
        prop_assert_ne!(decision.from, decision.to);
        prop_assert!(!decision.sentence(problem).is_empty());
    }
    Ok(())
}

fn standing() -> impl Strategy<Value = Standing> {
    prop_oneof![
        6 => Just(Standing::Accepts),
        1 => Just(Standing::Keeps),
        1 => Just(Standing::Drains),
        1 => Just(Standing::Gone),
    ]
}

fn spread() -> impl Strategy<Value = Spread> {
    prop_oneof![Just(Spread::Ignore), Just(Spread::Soft), Just(Spread::Hard)]
}

fn rule(nodes: usize) -> impl Strategy<Value = Rule> {
    let set = prop::option::weighted(0.3, prop::collection::vec(any::<bool>(), nodes));
    (set, spread(), spread(), prop::bool::weighted(0.1)).prop_map(move |(set, zone, rack, share_node)| Rule {
        nodes: set.map(|bits| NodeSet::of(nodes, |node| bits[node as usize])),
        zone,
        rack,
        share_node,
    })
}

prop_compose! {
    /// One shard: replicas wanted, two loads, rule, and some of the nodes it is on.
    fn shard(nodes: usize)(
        wanted in 0_u8..5,
        loads in [0_u32..100, 0_u32..10],
        rule in 0_u32..2,
        mut on in prop::collection::vec(0..nodes as u32, 0..4),
    ) -> (u8, [u32; 2], u32, Vec<u32>) {
        let mut seen = Vec::new();
        on.retain(|node| !seen.contains(node) && { seen.push(*node); true });
        (wanted, loads, rule, on)
    }
}

prop_compose! {
    /// Any small problem that passes its check.
    pub(super) fn problem()(count in 1_usize..12)(
        count in Just(count),
        standings in prop::collection::vec(standing(), count),
        zones in prop::collection::vec(0_u32..4, count),
        racks in prop::collection::vec(0_u32..8, count),
        capacities in prop::collection::vec(1_u32..4, count * 2),
        rules in [rule(count), rule(count)],
        shards in prop::collection::vec(shard(count), 0..25),
        limit in prop::option::weighted(0.2, 50_u32..400),
        background in prop::option::of(prop::collection::vec(0_u32..300, count * 2)),
        seed in any::<u64>(),
    ) -> Problem {
        let mut problem = Problem::new(nodes(count), shards.iter().map(|shard| shard.0).collect());
        for (at, node) in problem.nodes.iter_mut().enumerate() {
            (node.standing, node.zone) = (standings[at], zones[at] / 3 * u32::MAX + zones[at] % 3);
            node.rack = racks[at] + 8 * (zones[at] % 3);
        }
        problem.metrics = vec![
            Metric { name: "requests".into(), tolerance: 0.05, limit: None },
            Metric { name: "bytes".into(), tolerance: 0.1, limit: limit.map(f64::from) },
        ];
        problem.capacities = capacities.iter().map(|capacity| f64::from(*capacity)).collect();
        problem.loads = shards.iter().flat_map(|shard| shard.1.map(f64::from)).collect();
        problem.background = background.into_iter().flatten().map(f64::from).collect();
        problem.rule_of = shards.iter().map(|shard| shard.2).collect();
        problem.rules = rules.to_vec();
        problem.current = shards.into_iter().map(|shard| shard.3).collect();
        problem.seed = seed;
        problem
    }
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn every_policy_holds_its_promises(problem in problem()) {
        for policy in POLICIES {
            let solution = place(policy, &problem);
            hold_promises(policy, &problem, &solution)?;
            prop_assert_eq!(&place(policy, &problem), &solution, "(pc) {}", policy);
        }
    }

    #[test]
    fn pd_planning_a_solution_again_changes_nothing(problem in problem()) {
        for policy in POLICIES {
            let done = after(&problem, &place(policy, &problem));
            let again = place(policy, &done);
            prop_assert_eq!(&again.decisions, &vec![], "{}: {:?}", policy, done);
        }
    }

    #[test]
    fn a_budget_is_kept(problem in problem(), budget in 0_u32..5) {
        for policy in POLICIES {
            let problem = Problem { budget: Some(budget), ..problem.clone() };
            let solution = place(policy, &problem);
            hold_promises(policy, &problem, &solution)?;
            let alive = |node: u32| problem.nodes[node as usize].standing != Standing::Gone;
            let unforced = solution.decisions.iter().filter(|one| one.to.is_some() && one.from.is_some_and(alive));
            prop_assert!(unforced.count() <= budget as usize, "{policy}");
        }
    }
}

#[test]
fn an_unknown_policy_names_the_nearest() {
    for (typo, nearest) in [("work-stealing", "work_stealing"), ("worksteal", "work_stealing")] {
        let error = by_name(typo).err().unwrap();
        assert_eq!(error.nearest, nearest, "{error}");
    }
    assert!(by_name(&"x".repeat(1 << 20)).err().unwrap().to_string().len() < 300);
}

#[test]
fn every_shipped_policy_is_found_by_its_name() {
    for policy in POLICIES {
        assert_eq!(by_name(policy).unwrap().name(), policy);
    }
}

#[test]
fn nonsense_is_refused_with_its_place() {
    let good = || loaded(2, 1, &[1.0, 2.0]);
    type Spoil = fn(&mut Problem);
    let cases: [(Spoil, &str); 11] = [
        (|p| p.loads[1] = f64::NAN, "the requests load of shard s1 is NaN"),
        (|p| p.loads[1] = -1.0, "the requests load of shard s1 is -1"),
        (|p| p.loads[0] = f64::INFINITY, "the requests load of shard s0 is inf"),
        (|p| p.capacities[1] = 0.0, "the requests capacity of node n1 is 0"),
        (|p| p.capacities[1] = -3.0, "the requests capacity of node n1 is -3"),
        (|p| p.nodes[1] = p.nodes[0].clone(), "node n0 is listed twice"),
        (|p| p.current = [vec![7], vec![]].into_iter().collect(), "shard s0 is said to be on node number 7"),
        (
            |p| p.current = [vec![], vec![1, 1]].into_iter().collect(),
            "shard s1 is said to be on node n1 twice",
        ),
        (|p| p.replicas[1] = 65, "shard s1 wants 65 replicas: the limit is 64"),
        (|p| p.rule_of = vec![0, 3], "shard s1 follows rule number 3"),
        (|p| p.loads.truncate(1), "loads has 1 entries where 2 are needed"),
    ];
    for (spoil, expected) in cases {
        let mut problem = good();
        spoil(&mut problem);
        for policy in POLICIES {
            let error = by_name(policy).unwrap().place(&problem).unwrap_err().to_string();
            assert!(error.contains(expected), "{policy}: {error}");
        }
    }
    assert!(good().check().is_ok());
}

#[test]
fn what_cannot_be_placed_says_why_and_the_way_out() {
    let problem = Problem::new(nodes(2), vec![3]);
    for policy in POLICIES {
        let solution = place(policy, &problem);
        assert_eq!(solution.placement.of(0).len(), 2, "{policy}");
        let said = solution.complaints(&problem);
        let expected = "it needs 3 distinct nodes and 2 are eligible: add a node or lower the replicas";
        assert!(said.len() == 1 && said[0].ends_with(expected), "{policy}: {said:?}");
    }
}

#[test]
fn no_nodes_and_no_shards_are_no_error() {
    for policy in POLICIES {
        assert_eq!(place(policy, &Problem::new(vec![], vec![])).decisions, vec![]);
        let solution = place(policy, &Problem::new(vec![], vec![2]));
        assert_eq!(solution.unplaced.len(), 2, "{policy}");
        assert!(matches!(solution.unplaced[0].why, Unplaceable::NoNodes));
    }
}

/// A chain of shards, each of which waits for the node of the next: a pass frees one place of it.
#[test]
fn pd_a_chain_of_shards_that_wait_for_each_other_s_room_is_gone_through_to_its_end() {
    let on = [10, 4, 1, 9, 14, 3, 5, 2, 0, 13, 15, 8, 7, 12, 6];
    let mut problem = loaded(16, 1, &[1.0; 15]);
    problem.metrics[0].limit = Some(1.0);
    problem.current = on.map(|node| vec![node]).into_iter().collect();
    let done = after(&problem, &place("ring_index", &problem));
    assert_eq!(place("ring_index", &done).decisions, vec![]);
}

/// A problem with a second metric, of this limit.
fn in_two_metrics(nodes_count: usize, replicas: &[u8], limit: Option<f64>) -> Problem {
    let mut problem = Problem::new(nodes(nodes_count), replicas.to_vec());
    problem.metrics = vec![
        Metric { name: "requests".into(), tolerance: 0.05, limit: None },
        Metric { name: "bytes".into(), tolerance: 0.1, limit },
    ];
    problem
}

/// A replica that is placed anew goes to a node that draws, and from there, at no price, back, in each pass; the next plan
/// has it at home, and there it wins no price.
#[test]
fn pd_what_a_pass_has_placed_is_at_home_there_for_the_next_pass() {
    let mut problem = in_two_metrics(4, &[0, 3], None);
    problem.capacities = vec![2.0, 1.0, 1.0, 2.0, 3.0, 3.0, 3.0, 1.0];
    problem.loads = vec![79.0, 8.0, 59.0, 4.0];
    problem.background = vec![14.0, 11.0, 11.0, 61.0, 197.0, 245.0, 93.0, 256.0];
    problem.rules = vec![Rule { rack: Spread::Ignore, ..Rule::default() }];
    problem.current = [vec![2], vec![0]].into_iter().collect();
    for (node, zone) in problem.nodes.iter_mut().zip([0, 1, UNKNOWN_DOMAIN, 1]) {
        node.zone = zone;
    }
    let done = after(&problem, &place("balanced", &problem));
    assert_eq!(place("balanced", &done).decisions, vec![]);
}

/// A replica stays crowded in its rack, as the only node apart is full; then that node gives one up to even the others out.
#[test]
fn pd_a_crowded_replica_goes_apart_when_the_same_plan_makes_room_there() {
    let mut problem = in_two_metrics(4, &[3, 4, 3], Some(1.0));
    problem.capacities = vec![2.0, 2.0, 2.0, 3.0, 1.0, 1.0, 1.0, 3.0];
    problem.loads = vec![0.0, 0.0, 1.0, 1.0, 1.0, 1.0];
    problem.rules = vec![
        Rule { zone: Spread::Ignore, rack: Spread::Ignore, ..Rule::default() },
        Rule { zone: Spread::Ignore, ..Rule::default() },
    ];
    problem.rule_of = vec![1, 1, 0];
    problem.current = [vec![], vec![1, 2], vec![2]].into_iter().collect();
    for (node, rack) in problem.nodes.iter_mut().zip([2, 0, 4, 0]) {
        node.rack = rack;
    }
    let done = after(&problem, &place("balanced", &problem));
    assert_eq!(place("balanced", &done).decisions, vec![]);
}
