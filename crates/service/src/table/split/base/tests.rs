use super::*;
use partage_core::base::id::Epoch;
use partage_core::keyspace::key::HashRange;

const LEFT: ShardId = ShardId(1);
const RIGHT: ShardId = ShardId(2);

fn at(index: u64) -> LogPosition {
    LogPosition { epoch: Epoch(1), index }
}

fn parent(shard: ShardId, placement: u64, node: &str, in_sync: bool) -> Parent {
    let (first, last) = if shard == LEFT { (0, 99) } else { (100, 199) };
    let bounds = Bounds::Hashes(HashRange { first, last });
    Parent { shard, bounds, placement: PlacementId(placement), node: NodeId::new(node).unwrap(), in_sync }
}

fn snapshot(of: ShardId, by: u64, to: u64, end: u64) -> Given {
    Given {
        parent: of,
        by: PlacementId(by),
        what: What::Snapshot(at(to)),
        end,
        closed: None,
        has_more: false,
    }
}

fn changes(of: ShardId, by: u64, (after, to): (u64, u64), end: u64, closed: Option<u64>) -> Given {
    let what = What::Changes { after: at(after), to: at(to) };
    Given { parent: of, by: PlacementId(by), what, end, closed: closed.map(at), has_more: false }
}

fn asked(effects: &[Effect]) -> Vec<(u64, u64, Option<u64>)> {
    let ask = |effect: &Effect| match effect {
        Effect::Ask(ask) => Some((ask.parent.0, ask.of.0, ask.after.map(|after| after.index))),
        Effect::Store(_) | Effect::Open => None,
    };
    effects.iter().filter_map(ask).collect()
}

/// Of a child that holds all that both parents held.
fn base() -> Base {
    let bounds = Bounds::Hashes(HashRange { first: 0, last: 199 });
    Base::new(NodeId::new("n1").unwrap(), bounds, Settings::default())
}

/// Of one parent, with replicas on n1, n2 (both in sync) and n3.
fn of_one() -> (Base, Vec<Parent>) {
    let replicas =
        vec![parent(LEFT, 3, "n3", false), parent(LEFT, 2, "n2", true), parent(LEFT, 1, "n1", true)];
    (base(), replicas)
}

#[test]
fn its_own_node_is_asked_first_and_then_those_in_sync_that_answer() {
    let (mut base, replicas) = of_one();
    assert_eq!(asked(&base.ordered(Millis(0), replicas, false)), [(1, 1, None)]);
    assert_eq!(asked(&base.tick(Millis(999))), []);
    assert_eq!(base.wake_at(), Millis(1_000));
    assert_eq!(asked(&base.tick(Millis(1_000))), [(1, 2, None)]);
    let (taken, effects) = base.take(Millis(1_010), &snapshot(LEFT, 2, 5, 9));
    assert_eq!((taken, asked(&effects)), (Taken::Replaces, vec![]));
    assert_eq!(asked(&base.tick(Millis(1_030))), [(1, 2, Some(5))]);
    let (taken, effects) = base.take(Millis(1_040), &changes(LEFT, 2, (5, 5), 5, None));
    assert_eq!((taken, asked(&effects)), (Taken::Nothing, vec![]));
    assert_eq!(base.wake_at(), Millis(1_060));
}

/// A parent that is asked for each group of its writes has less time for them.
#[test]
fn before_the_switch_it_asks_now_and_then_and_after_it_at_once() {
    let (mut base, replicas) = of_one();
    base.ordered(Millis(0), replicas.clone(), false);
    let (_, effects) = base.take(Millis(10), &snapshot(LEFT, 1, 5, 1_006));
    assert_eq!(asked(&effects), [(1, 1, Some(5))], "1001 entries are missing");
    let (_, effects) = base.take(Millis(20), &changes(LEFT, 1, (5, 900), 1_007, None));
    assert_eq!(asked(&effects), []);
    assert_eq!(asked(&base.news(Millis(21), LEFT)), []);
    assert_eq!(base.wake_at(), Millis(40));
    base.tick(Millis(40));
    let more = Given { has_more: true, ..changes(LEFT, 1, (900, 901), 1_007, None) };
    assert_eq!(asked(&base.take(Millis(41), &more).1), [(1, 1, Some(901))], "it is large, and more is kept");
    base.take(Millis(42), &changes(LEFT, 1, (901, 902), 1_007, None));
    assert_eq!(asked(&base.ordered(Millis(43), replicas, true)), [(1, 1, Some(902))]);
    let (_, effects) = base.take(Millis(44), &changes(LEFT, 1, (902, 1_000), 1_007, None));
    assert_eq!(asked(&effects), [(1, 1, Some(1_000))]);
    assert_eq!(asked(&base.take(Millis(45), &changes(LEFT, 1, (1_000, 1_000), 1_007, None)).1), []);
    assert_eq!(asked(&base.news(Millis(46), LEFT)), [(1, 1, Some(1_000))]);
}

#[test]
fn what_is_late_or_doubled_or_leaves_a_gap_is_of_no_use() {
    let (mut base, replicas) = of_one();
    base.ordered(Millis(0), replicas, false);
    base.take(Millis(1), &snapshot(LEFT, 1, 5, 9));
    assert_eq!(base.take(Millis(2), &changes(LEFT, 1, (6, 8), 9, None)).0, Taken::Nothing);
    assert_eq!(base.take(Millis(2), &snapshot(LEFT, 2, 4, 9)).0, Taken::Nothing);
    assert_eq!(base.take(Millis(2), &changes(LEFT, 1, (5, 7), 9, None)).0, Taken::Follows);
    assert_eq!(base.take(Millis(2), &changes(LEFT, 1, (5, 7), 9, None)).0, Taken::Nothing);
    assert_eq!(base.take(Millis(2), &snapshot(LEFT, 2, 9, 9)).0, Taken::Replaces);
}

#[test]
fn it_is_ready_when_it_lags_little_behind_each_parent() {
    let mut base = base();
    let replicas = vec![parent(LEFT, 1, "n1", true), parent(RIGHT, 2, "n2", true)];
    assert_eq!(asked(&base.ordered(Millis(0), replicas, false)), [(1, 1, None), (2, 2, None)]);
    base.take(Millis(1), &snapshot(LEFT, 1, 5, 5));
    assert!(!base.is_ready(), "nothing is here of the other");
    base.take(Millis(1), &snapshot(RIGHT, 2, 5, 1_006));
    assert!(!base.is_ready(), "1001 entries are missing");
    base.take(Millis(1), &changes(RIGHT, 2, (5, 6), 1_006, None));
    assert!(base.is_ready());
}

#[test]
fn o8_it_opens_when_each_parent_has_ended_and_all_is_stored() {
    let mut base = base();
    let replicas = vec![parent(LEFT, 1, "n1", true), parent(RIGHT, 2, "n2", true)];
    base.ordered(Millis(0), replicas, true);
    base.take(Millis(1), &snapshot(LEFT, 1, 5, 5));
    base.take(Millis(1), &snapshot(RIGHT, 2, 40, 40));
    let (_, effects) = base.take(Millis(2), &changes(LEFT, 1, (5, 8), 9, Some(8)));
    assert_eq!(effects, []);
    let (_, effects) = base.take(Millis(3), &changes(RIGHT, 2, (40, 41), 42, Some(42)));
    assert_eq!(asked(&effects), [(2, 2, Some(41))], "its log has ended behind what is here");
    let (_, effects) = base.take(Millis(3), &changes(RIGHT, 2, (41, 43), 43, Some(42)));
    assert_eq!(effects, [Effect::Store(LogPosition { epoch: Epoch(0), index: 42 })]);
    assert_eq!(base.wake_at(), Millis::NEVER);
    assert_eq!(base.stored(), [Effect::Open]);
    assert_eq!(base.stored(), [], "once");
}

#[test]
fn o8_nothing_opens_that_has_heard_of_no_parent() {
    let mut base = base();
    assert_eq!(base.ordered(Millis(0), vec![], true), []);
    assert!(!base.is_ready());
    assert_eq!(base.wake_at(), Millis::NEVER);
}

#[test]
fn l1_one_that_is_not_in_sync_and_has_nothing_new_is_not_asked_for_ever() {
    let mut base = base();
    let replicas = vec![parent(LEFT, 1, "n1", false), parent(LEFT, 2, "n2", false)];
    assert_eq!(asked(&base.ordered(Millis(0), replicas, true)), [(1, 1, None)]);
    base.take(Millis(1), &snapshot(LEFT, 1, 5, 5));
    base.take(Millis(2), &changes(LEFT, 1, (5, 5), 5, None));
    assert_eq!(asked(&base.tick(Millis(60))), [(1, 2, Some(5))]);
}

#[test]
fn d10_a_parent_that_no_order_names_is_not_taken_for_one_that_had_nothing() {
    let mut base = base();
    base.ordered(Millis(0), vec![parent(LEFT, 1, "n1", true)], true);
    base.take(Millis(1), &snapshot(LEFT, 1, 5, 5));
    assert_eq!(base.take(Millis(2), &changes(LEFT, 1, (5, 8), 8, Some(8))).1, []);
    base.ordered(Millis(3), vec![parent(RIGHT, 2, "n2", true)], true);
    base.take(Millis(4), &snapshot(RIGHT, 2, 3, 3));
    let (_, effects) = base.take(Millis(5), &changes(RIGHT, 2, (3, 4), 4, Some(4)));
    assert_eq!(effects, [Effect::Store(LogPosition { epoch: Epoch(0), index: 8 })]);
}
