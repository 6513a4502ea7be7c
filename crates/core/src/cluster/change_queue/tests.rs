use super::*;
use crate::base::id::ShardId;
use crate::base::name::KeyspaceName;
use crate::plan::{Change, Origin, Planned, Progress, Status};

/// A plan of so many changes, each of which adds a replica on one of ten nodes.
fn plan(id: u64, origin: Origin, changes: usize) -> Plan {
    let change = |number: usize| {
        let (shard, node) = (ShardId(number as u64), node(&format!("n{}", number % 10)));
        Planned {
            change: Change::Add { shard, node },
            reason: String::new(),
            progress: Progress::Waiting,
            node: None,
        }
    };
    Plan {
        id: PlanId(id),
        keyspace: KeyspaceName::new("users").unwrap(),
        base: Default::default(),
        origin,
        changes: (0..changes).map(change).collect(),
        status: Status::Approved,
        made_ms: 0,
        decided_by: None,
    }
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// One decision; each change that is tried waits from then on for what `until` says. Returns what was tried.
fn decide(
    queue: &mut ChangeQueue,
    plans: &[&Plan],
    anew: bool,
    room: usize,
    until: impl Fn(ChangeRef) -> Until,
) -> (Vec<ChangeRef>, bool) {
    let due = queue.due(plans, anew, |_| room);
    let changes = due.changes.iter().map(|(change, _)| *change).collect();
    due.changes
        .into_iter()
        .for_each(|(change, before)| queue.note(change, before.as_ref(), Some(until(change))));
    (changes, due.is_cut_short)
}

#[test]
fn b7_what_waits_for_anything_is_tried_within_a_bounded_number_of_decisions() {
    let all = 5 * limits::CHANGES_TRIED / 2;
    let plans = [plan(1, Origin::Repair, 100), plan(2, Origin::Rebalance, all - 100)];
    let plans: Vec<&Plan> = plans.iter().collect();
    let mut queue = ChangeQueue::default();
    for pass in 0..3 {
        let (mut seen, mut decisions) = (BTreeSet::new(), 0);
        for anew in std::iter::once(true).chain(std::iter::repeat(false)) {
            let (tried, is_cut_short) = decide(&mut queue, &plans, anew, 0, |_| Until::AnyChange);
            assert!(tried.len() <= 3 * limits::CHANGES_TRIED && tried.is_sorted(), "pass {pass}");
            seen.extend(tried);
            decisions += 1;
            if !is_cut_short {
                break;
            }
        }
        assert_eq!((seen.len(), decisions), (all, 3), "pass {pass}");
    }
    // Nothing has happened since: what is tried is as much, and nobody is called again.
    let (tried, is_cut_short) = decide(&mut queue, &plans, false, 0, |_| Until::AnyChange);
    assert_eq!((tried.len(), is_cut_short), (limits::CHANGES_TRIED, false));
}

#[test]
fn b7_what_waits_for_a_node_is_tried_when_there_is_room_the_most_urgent_first() {
    let plans = [plan(7, Origin::Repair, 50), plan(3, Origin::Drain, 1_000)];
    let plans: Vec<&Plan> = plans.iter().collect();
    let until =
        |change: ChangeRef| Until::Loads { node: node(&format!("n{}", change.index % 10)), is_repair: false };
    let mut queue = ChangeQueue::default();
    let (tried, _) = decide(&mut queue, &plans, true, 0, until);
    assert_eq!(tried.len(), 1_050, "each is tried once");
    let (tried, is_cut_short) = decide(&mut queue, &plans, true, 0, until);
    assert_eq!((tried.len(), is_cut_short), (0, false), "no node has room");
    let (tried, is_cut_short) = decide(&mut queue, &plans, true, 6, until);
    assert_eq!((tried.len(), is_cut_short), (60, false), "as many as there is room for on ten nodes");
    assert_eq!(tried.iter().filter(|change| change.plan == PlanId(7)).count(), 50, "repairs first");
    let (tried, _) = decide(&mut queue, &plans[1..], true, 1, until);
    assert!(
        tried.len() == 10 && tried.iter().all(|change| change.plan == PlanId(3)),
        "repairs wait: {tried:?}"
    );
}

#[test]
fn b7_room_for_everything_is_used_in_pieces() {
    let all = 2 * limits::CHANGES_TRIED + 10;
    let plan = plan(1, Origin::Drain, all);
    let mut queue = ChangeQueue::default();
    for first in [0, limits::CHANGES_TRIED] {
        let (tried, is_cut_short) = decide(&mut queue, &[&plan], false, 0, |_| Until::Moves);
        assert_eq!((tried[0].index, tried.len(), is_cut_short), (first, limits::CHANGES_TRIED, true));
    }
    assert_eq!(decide(&mut queue, &[&plan], false, 0, |_| Until::Moves).0.len(), 10);
    let (mut begun, mut decisions) = (0, 0);
    while begun < all {
        let due = queue.due(&[&plan], false, |_| usize::MAX);
        assert!(due.is_cut_short == (begun + due.changes.len() < all), "{begun}");
        begun += due.changes.len();
        due.changes.into_iter().for_each(|(change, before)| queue.note(change, before.as_ref(), None));
        decisions += 1;
    }
    assert_eq!(decisions, 3);
    assert!(!queue.has(&Until::Moves));
}
