use super::super::{Retention, Source};
use super::*;
use crate::table::replication::{Replica, Settings as ReplicaSettings, Stored};
use partage_core::base::id::{Epoch, Incarnation};
use partage_core::keyspace::key::HashRange;
use proptest::prelude::*;
use std::collections::VecDeque;

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
        what: GivenExtent::Snapshot(at(to)),
        end,
        closed: None,
        has_more: false,
    }
}

fn changes(of: ShardId, by: u64, (after, to): (u64, u64), end: u64, closed: Option<u64>) -> Given {
    let what = GivenExtent::Changes { after: at(after), to: at(to) };
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
fn l1_a_late_snapshot_of_another_replica_leaves_what_waits() {
    let (mut base, replicas) = of_one();
    base.on_order(Millis(0), replicas, false);
    let first = snapshot(LEFT, 1, 5, 9);
    base.copy_begins(Millis(1), &first);
    base.take(Millis(2), &changes(LEFT, 1, (5, 9), 9, None));
    assert_eq!(base.take(Millis(3), &first).0, Taken::Replaces);
    let late = snapshot(LEFT, 2, 4, 9);
    assert!(!base.copy_begins(Millis(4), &late));
    assert_eq!(base.take(Millis(5), &late).0, Taken::Nothing);
    assert!(base.is_copying(LEFT), "what waits for the first one is still to be applied");
    base.caught_up(Millis(6), LEFT);
    assert!(base.is_ready() && !base.is_copying(LEFT));
}

#[test]
fn its_own_node_is_asked_first_and_then_those_in_sync_that_answer() {
    let (mut base, replicas) = of_one();
    assert_eq!(asked(&base.on_order(Millis(0), replicas, false)), [(1, 1, None)]);
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
    base.on_order(Millis(0), replicas.clone(), false);
    let (_, effects) = base.take(Millis(10), &snapshot(LEFT, 1, 5, 1_006));
    assert_eq!(asked(&effects), [(1, 1, Some(5))], "1001 entries are missing");
    let (_, effects) = base.take(Millis(20), &changes(LEFT, 1, (5, 900), 1_007, None));
    assert_eq!(asked(&effects), []);
    assert_eq!(asked(&base.parent_applied(Millis(21), LEFT)), []);
    assert_eq!(base.wake_at(), Millis(40));
    base.tick(Millis(40));
    let more = Given { has_more: true, ..changes(LEFT, 1, (900, 901), 1_007, None) };
    assert_eq!(asked(&base.take(Millis(41), &more).1), [(1, 1, Some(901))], "it is large, and more is kept");
    base.take(Millis(42), &changes(LEFT, 1, (901, 902), 1_007, None));
    assert_eq!(asked(&base.on_order(Millis(43), replicas, true)), [(1, 1, Some(902))]);
    let (_, effects) = base.take(Millis(44), &changes(LEFT, 1, (902, 1_000), 1_007, None));
    assert_eq!(asked(&effects), [(1, 1, Some(1_000))]);
    assert_eq!(asked(&base.take(Millis(45), &changes(LEFT, 1, (1_000, 1_000), 1_007, None)).1), []);
    assert_eq!(asked(&base.parent_applied(Millis(46), LEFT)), [(1, 1, Some(1_000))]);
}

#[test]
fn what_is_late_or_doubled_or_leaves_a_gap_is_of_no_use() {
    let (mut base, replicas) = of_one();
    base.on_order(Millis(0), replicas, false);
    base.take(Millis(1), &snapshot(LEFT, 1, 5, 9));
    assert_eq!(base.take(Millis(2), &changes(LEFT, 1, (6, 8), 9, None)).0, Taken::Nothing);
    assert_eq!(base.take(Millis(2), &snapshot(LEFT, 2, 4, 9)).0, Taken::Nothing);
    assert_eq!(base.take(Millis(2), &changes(LEFT, 1, (5, 7), 9, None)).0, Taken::Follows);
    assert_eq!(base.take(Millis(2), &changes(LEFT, 1, (5, 7), 9, None)).0, Taken::Nothing);
    assert_eq!(base.take(Millis(2), &snapshot(LEFT, 2, 9, 9)).0, Taken::Replaces);
}

#[test]
fn l1_parts_of_a_snapshot_may_come_slowly_and_one_that_comes_no_more_is_not_waited_for() {
    let (mut base, replicas) = of_one();
    assert_eq!(asked(&base.on_order(Millis(0), replicas, false)), [(1, 1, None)]);
    base.snapshot_begins(Millis(500), LEFT);
    assert_eq!(asked(&base.tick(Millis(1_499))), []);
    for now in [1_499, 6_000, 10_999] {
        base.snapshot_progressed(Millis(now), LEFT);
        assert_eq!(asked(&base.tick(Millis(now + 4_999))), []);
    }
    assert_eq!(asked(&base.tick(Millis(15_999))), [(1, 2, None)]);
}

#[test]
fn it_is_ready_when_it_lags_little_behind_each_parent() {
    let mut base = base();
    let replicas = vec![parent(LEFT, 1, "n1", true), parent(RIGHT, 2, "n2", true)];
    assert_eq!(asked(&base.on_order(Millis(0), replicas, false)), [(1, 1, None), (2, 2, None)]);
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
    base.on_order(Millis(0), replicas, true);
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
    assert_eq!(base.on_order(Millis(0), vec![], true), []);
    assert!(!base.is_ready());
    assert_eq!(base.wake_at(), Millis::NEVER);
}

#[test]
fn l1_one_that_is_not_in_sync_and_has_nothing_new_is_not_asked_for_ever() {
    let mut base = base();
    let replicas = vec![parent(LEFT, 1, "n1", false), parent(LEFT, 2, "n2", false)];
    assert_eq!(asked(&base.on_order(Millis(0), replicas, true)), [(1, 1, None)]);
    base.take(Millis(1), &snapshot(LEFT, 1, 5, 5));
    base.take(Millis(2), &changes(LEFT, 1, (5, 5), 5, None));
    assert_eq!(asked(&base.tick(Millis(60))), [(1, 2, Some(5))]);
}

#[test]
fn d10_a_parent_that_no_order_names_is_not_taken_for_one_that_had_nothing() {
    let mut base = base();
    base.on_order(Millis(0), vec![parent(LEFT, 1, "n1", true)], true);
    base.take(Millis(1), &snapshot(LEFT, 1, 5, 5));
    assert_eq!(base.take(Millis(2), &changes(LEFT, 1, (5, 8), 8, Some(8))).1, []);
    base.on_order(Millis(3), vec![parent(RIGHT, 2, "n2", true)], true);
    base.take(Millis(4), &snapshot(RIGHT, 2, 3, 3));
    let (_, effects) = base.take(Millis(5), &changes(RIGHT, 2, (3, 4), 4, Some(4)));
    assert_eq!(effects, [Effect::Store(LogPosition { epoch: Epoch(0), index: 8 })]);
}

/// What a parent changes while its snapshot is copied comes meanwhile, and the parent need not keep it.
#[test]
fn d10_changes_wait_for_the_snapshot_that_is_copied_and_then_follow_on_it() {
    let (mut base, replicas) = of_one();
    base.on_order(Millis(0), replicas.clone(), false);
    let first = snapshot(LEFT, 1, 5, 5);
    base.snapshot_begins(Millis(10), LEFT);
    base.copy_begins(Millis(10), &first);
    assert_eq!(base.wake_at(), Millis(30));
    assert_eq!(asked(&base.tick(Millis(30))), [(1, 1, Some(5))]);
    let more = Given { has_more: true, ..changes(LEFT, 1, (5, 9), 20, None) };
    assert!(base.is_aside(&more));
    let (taken, effects) = base.take(Millis(31), &more);
    assert_eq!((taken, asked(&effects)), (Taken::Aside, vec![(1, 1, Some(9))]));
    assert_eq!(base.take(Millis(32), &more).0, Taken::Nothing, "it comes twice");
    base.snapshot_progressed(Millis(40), LEFT);
    let (taken, effects) = base.take(Millis(50), &first);
    assert_eq!((taken, asked(&effects)), (Taken::Replaces, vec![]));
    assert!(!base.is_ready(), "what waited is not applied");
    let (taken, _) = base.take(Millis(60), &changes(LEFT, 1, (9, 20), 20, None));
    assert_eq!(taken, Taken::Aside, "more comes while that is applied");
    assert!(!base.is_ready());
    assert_eq!(asked(&base.caught_up(Millis(65), LEFT)), []);
    assert!(base.is_ready());
    assert_eq!(asked(&base.tick(Millis(80))), [(1, 1, Some(20))]);
    assert_eq!(base.take(Millis(81), &changes(LEFT, 1, (20, 21), 21, None)).0, Taken::Follows);
    assert_eq!(asked(&base.on_order(Millis(82), replicas, true)), [(1, 1, Some(21))]);
}

#[test]
fn o8_a_parent_that_closes_while_its_snapshot_is_copied_is_stored_when_all_is_applied() {
    let mut base = Base { bounds: parent(LEFT, 1, "n1", true).bounds, ..base() };
    base.on_order(Millis(0), vec![parent(LEFT, 1, "n1", true)], true);
    let first = snapshot(LEFT, 1, 5, 5);
    base.copy_begins(Millis(1), &first);
    base.tick(Millis(21));
    let last = changes(LEFT, 1, (5, 8), 8, Some(8));
    assert_eq!(base.take(Millis(22), &last), (Taken::Aside, vec![]));
    assert_eq!(base.take(Millis(30), &first), (Taken::Replaces, vec![]));
    assert_eq!(asked(&base.tick(Millis(5_000))), [], "nothing comes behind that");
    let effects = base.caught_up(Millis(5_001), LEFT);
    assert_eq!(effects, [Effect::Store(LogPosition { epoch: Epoch(0), index: 8 })]);
}

#[test]
fn d10_a_snapshot_of_another_time_begins_anew_also_while_what_waited_is_applied() {
    let (mut base, replicas) = of_one();
    base.on_order(Millis(0), replicas, false);
    let first = snapshot(LEFT, 1, 5, 5);
    base.copy_begins(Millis(1), &first);
    base.tick(Millis(21));
    assert_eq!(base.take(Millis(22), &changes(LEFT, 1, (5, 9), 9, None)).0, Taken::Aside);
    assert_eq!(base.take(Millis(23), &first).0, Taken::Replaces);
    // The parent has not kept what comes next.
    let second = snapshot(LEFT, 1, 30, 30);
    base.copy_begins(Millis(50), &second);
    assert!(!base.is_ready());
    assert_eq!(base.caught_up(Millis(51), LEFT), [], "of the first one");
    assert!(!base.is_ready());
    assert_eq!(base.take(Millis(60), &second).0, Taken::Replaces);
    base.caught_up(Millis(61), LEFT);
    assert!(base.is_ready());
}

#[test]
fn a_snapshot_that_is_copied_says_once_that_it_is_news() {
    let (mut base, replicas) = of_one();
    base.on_order(Millis(0), replicas, false);
    let first = snapshot(LEFT, 1, 5, 5);
    assert!(base.copy_begins(Millis(1), &first));
    assert!(!base.copy_begins(Millis(2), &first), "it comes twice");
    base.take(Millis(3), &first);
    assert!(!base.copy_begins(Millis(4), &first), "also when it is whole: what waits is being applied");
    base.caught_up(Millis(4), LEFT);
    assert!(!base.copy_begins(Millis(4), &first), "all of it is here");
    assert!(base.is_ready());
    assert!(base.copy_begins(Millis(5), &snapshot(LEFT, 1, 9, 9)));
    assert!(!base.copy_begins(Millis(6), &snapshot(RIGHT, 2, 9, 9)), "of a parent that it does not have");
}

#[test]
fn it_is_not_ready_while_another_snapshot_is_copied() {
    let (mut base, replicas) = of_one();
    base.on_order(Millis(0), replicas, false);
    base.take(Millis(1), &snapshot(LEFT, 1, 5, 5));
    assert!(base.is_ready());
    // The parent has not kept what came behind that.
    let second = snapshot(LEFT, 1, 90_000, 90_000);
    base.copy_begins(Millis(50), &second);
    assert!(!base.is_ready());
    base.take(Millis(60), &second);
    base.caught_up(Millis(61), LEFT);
    assert!(base.is_ready());
}

/// A key of the parent, and what it has from then on.
type Change = (u8, Option<u64>);

type Rows = BTreeMap<u8, u64>;

fn follow(rows: &mut Rows, (key, value): Change) {
    match value {
        Some(value) => drop(rows.insert(key, value)),
        None => drop(rows.remove(&key)),
    }
}

/// One parent, and a child's replica that copies its snapshots slowly, as a driver does.
struct SlowCopy {
    now: Millis,
    log: Vec<Change>,
    replica: Replica,
    source: Source<Change>,
    base: Base,
    /// The snapshot that is being copied.
    incoming: Option<(Given, Rows)>,
    aside: VecDeque<(u64, Vec<Change>)>,
    is_whole: bool,
    part: Option<(u64, Rows)>,
}

impl SlowCopy {
    fn new(kept: Retention) -> SlowCopy {
        let name = (PlacementId(1), Incarnation(1));
        let (settings, stored) = (ReplicaSettings::default(), Stored::default());
        let mut copy = SlowCopy {
            now: Millis(0),
            log: vec![(0, Some(0))],
            replica: Replica::recover(name, settings, stored, Millis(0), true),
            source: Source::new(kept),
            base: base(),
            incoming: None,
            aside: VecDeque::new(),
            is_whole: false,
            part: None,
        };
        let effects = copy.base.on_order(Millis(0), vec![parent(LEFT, 1, "n1", true)], false);
        copy.carry_out(effects, false);
        copy
    }

    /// What the parent had up to that entry.
    fn rows(&self, index: u64) -> Rows {
        let mut rows = Rows::new();
        self.log[..index as usize].iter().for_each(|change| follow(&mut rows, *change));
        rows
    }

    fn write(&mut self, change: Change) {
        self.log.push(change);
        self.source.applied(self.now, at(self.log.len() as u64), &change, 10);
    }

    /// The parent is asked, and its answer comes, unless it is lost.
    fn carry_out(&mut self, effects: Vec<Effect>, is_lost: bool) {
        for effect in effects {
            let Effect::Ask(ask) = effect else { panic!("the parent does not close: {effect:?}") };
            let applied = at(self.log.len() as u64);
            let (given, changes) = self.source.ask(self.now, PlacementId(7), ask, (&self.replica, applied));
            if !is_lost {
                self.take(given, changes);
            }
        }
    }

    fn take(&mut self, given: Given, changes: Vec<Change>) {
        let to = given.what.to().index;
        if let GivenExtent::Snapshot(_) = given.what {
            if self.incoming.as_ref().is_none_or(|(known, _)| known.what != given.what) {
                self.incoming = Some((given, self.rows(to)));
                self.base.copy_begins(self.now, &given);
                self.aside.clear();
                self.is_whole = false;
            }
            return;
        }
        let (taken, effects) = self.base.take(self.now, &given);
        match (taken, &mut self.part) {
            (Taken::Aside, _) => self.aside.push_back((to, changes)),
            (Taken::Follows, Some((index, rows))) => {
                changes.into_iter().for_each(|change| follow(rows, change));
                *index = to;
            }
            (Taken::Nothing, _) => {}
            (taken, part) => panic!("{taken:?} {part:?}"),
        }
        self.carry_out(effects, false);
    }

    /// The last part of the snapshot has come.
    fn complete(&mut self) {
        let Some((given, rows)) = self.incoming.take() else { return };
        let (taken, effects) = self.base.take(self.now, &given);
        assert_eq!(taken, Taken::Replaces);
        self.part = Some((given.what.to().index, rows));
        self.is_whole = true;
        self.carry_out(effects, false);
    }

    /// Some of what waits is applied.
    fn apply(&mut self) {
        let Some((index, rows)) = self.part.as_mut().filter(|_| self.is_whole) else { return };
        if let Some((to, changes)) = self.aside.pop_front() {
            changes.into_iter().for_each(|change| follow(rows, change));
            *index = to;
        } else {
            self.is_whole = false;
            let effects = self.base.caught_up(self.now, LEFT);
            self.carry_out(effects, false);
        }
    }

    fn pass(&mut self, ms: u64, is_lost: bool) {
        self.now = self.now + ms;
        let effects = self.base.tick(self.now);
        self.carry_out(effects, is_lost);
    }
}

proptest! {
    /// Whatever is written while it copies, is lost, or is given anew, the child has at each time what the parent had at one.
    #[test]
    fn d10_a_child_that_copies_slowly_comes_to_what_its_parent_has(
        steps in proptest::collection::vec((0u8..8, 0u8..6, any::<u64>()), 0..120),
        bytes in 40usize..2_000,
    ) {
        let mut copy = SlowCopy::new(Retention { bytes, at_once: 3, ..Retention::default() });
        for (step, key, value) in steps {
            match step {
                0..3 => copy.write((key, (value % 3 > 0).then_some(value))),
                3 => copy.pass(20, false),
                4 => copy.pass(1 + value % 1_500, value.is_multiple_of(2)),
                5 => copy.complete(),
                _ => copy.apply(),
            }
            if let Some((index, rows)) = &copy.part {
                prop_assert_eq!(rows, &copy.rows(*index));
            }
        }
        let all = copy.log.len() as u64;
        for _ in 0..400 {
            copy.pass(1_000, false);
            copy.complete();
            // Each question brings something that waits, and it is applied faster than it is asked for.
            (0..4).for_each(|_| copy.apply());
        }
        prop_assert!(copy.base.is_ready());
        let (index, rows) = copy.part.clone().unwrap();
        prop_assert_eq!(index, all);
        prop_assert_eq!(rows, copy.rows(all));
    }
}
