use super::super::sorter::tests::{file_of, placed};
use super::*;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// What a record takes besides a value of less than 128 bytes: its place, and two lengths.
const AROUND: u64 = 26;

fn sorted(bytes: usize) -> OrderedRecords {
    OrderedRecords::of(&[placed(b"", 0, &vec![0; bytes])]).unwrap()
}

fn key(at: usize) -> RangeKey {
    (ShuffleId(1), at)
}

/// On disk, or in so much memory.
fn turn(ranges: &Arc<Ranges>, at: usize, in_memory: Option<u64>) -> Turn {
    match ranges.find(key(at), in_memory, Millis(at as u64)) {
        Found::Turn(turn) => turn,
        other => panic!("{other:?}"),
    }
}

fn keep(ranges: &Arc<Ranges>, at: usize, bytes: usize, now: u64) -> bool {
    let one = sorted(bytes);
    match ranges.find(key(at), Some(one.memory()), Millis(now)) {
        Found::Turn(turn) => {
            turn.keep(&one, Millis(now));
            true
        }
        Found::Sorts => false,
        other => panic!("{other:?}"),
    }
}

fn here(ranges: &Ranges) -> Vec<usize> {
    ranges.lock().entries.keys().map(|(_, at)| *at).collect()
}

#[test]
fn r1_ranges_that_were_used_last_are_kept_up_to_the_limit_and_give_way_to_what_is_sorted() {
    let around = AROUND;
    let ranges = Arc::new(Ranges::new(100 + 2 * around, 0));
    for at in 0..3 {
        let now = at as u64 * IN_USE_MS;
        assert!(keep(&ranges, at, 40, now));
        assert!(matches!(ranges.find(key(0), Some(40), Millis(now)), Found::Kept(_)));
    }
    assert_eq!(here(&ranges), [0, 2]);
    assert_eq!(ranges.uses().memory, 80 + 2 * around);
    let taken = ranges.take(20 + around);
    assert_eq!((here(&ranges), ranges.uses().memory), (vec![0], 60 + 2 * around));
    drop(taken);
    ranges.remove_shuffle(ShuffleId(2));
    assert_eq!(here(&ranges), [0]);
    ranges.remove_shuffle(ShuffleId(1));
    let uses = ReadingUse { memory: 0, peak: 80 + 2 * around, files: 0 };
    assert_eq!((here(&ranges), ranges.uses()), (vec![], uses));
}

#[test]
fn ranges_that_are_read_in_pieces_do_not_give_way_to_each_other_until_their_term_is_over() {
    let around = AROUND;
    let ranges = Arc::new(Ranges::new(100 + 2 * around, 0));
    let mut sorts = [0_u64; 3];
    // Three readers in turn, each of another range, and two of these have room.
    for now in (0..6 * TERM_MS).step_by(10) {
        let at = usize::try_from(now / 10 % 3).unwrap();
        match ranges.find(key(at), Some(50 + around), Millis(now)) {
            Found::Turn(turn) => {
                turn.keep(&sorted(50), Millis(now));
                sorts[at] += 1;
            }
            Found::Kept(_) | Found::Sorts => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(sorts.iter().all(|sorts| (1..=7).contains(sorts)), "{sorts:?}");
    // Who reads no more does not hold others up.
    let ranges = Arc::new(Ranges::new(100 + 2 * around, 0));
    assert!(keep(&ranges, 0, 100, 0) && !keep(&ranges, 1, 100, IN_USE_MS - 1));
    assert!(keep(&ranges, 1, 100, IN_USE_MS));
    assert_eq!(here(&ranges), [1]);
}

#[test]
fn a_range_that_needs_much_memory_has_its_turn_among_many_small_ones() {
    let ranges = Arc::new(Ranges::new(1_000, 0));
    let mut small = vec![turn(&ranges, 1, Some(300))];
    let large = |now| ranges.find(key(0), Some(900), Millis(now));
    assert!(matches!(large(0), Found::Sorts));
    small.push(turn(&ranges, 2, Some(300)));
    for now in (0..FIRST_AFTER_MS).step_by(100) {
        assert!(matches!(large(now), Found::Sorts));
    }
    assert!(matches!(large(FIRST_AFTER_MS), Found::Sorts));
    let other = |now| ranges.find(key(3), Some(300), Millis(now));
    assert!(matches!(other(FIRST_AFTER_MS), Found::Sorts), "the large one is first");
    small.clear();
    assert!(matches!(other(FIRST_AFTER_MS + 1), Found::Sorts));
    let its_turn = large(FIRST_AFTER_MS + 2);
    assert!(matches!(its_turn, Found::Turn(_)));
    drop(its_turn);
    assert!(matches!(other(FIRST_AFTER_MS + 3), Found::Turn(_)));
    assert_eq!(ranges.uses().memory, 0);
}

#[test]
fn who_waits_for_a_sort_in_memory_hears_that_it_takes_long() {
    let ranges = Arc::new(Ranges::new(1_000, 0));
    let sorts = turn(&ranges, 1, Some(100));
    assert!(matches!(ranges.find(key(1), Some(100), Millis(1)), Found::Sorts));
    drop(sorts);
}

#[test]
fn r1_what_turns_out_to_take_more_than_was_taken_for_it_is_counted() {
    let around = AROUND;
    let ranges = Arc::new(Ranges::new(300 + around, 0));
    assert!(keep(&ranges, 0, 100, 0));
    let mut taken = ranges.take(200);
    assert_eq!(here(&ranges), [0]);
    taken.grow(400);
    let peak = 600;
    assert_eq!((here(&ranges), ranges.uses().memory, ranges.uses().peak), (vec![], peak, peak));
    drop(taken);
    assert_eq!(ranges.uses().memory, 0);
}

#[test]
fn r1_what_is_read_waits_for_memory_and_one_is_always_read() {
    let ranges = Arc::new(Ranges::new(100, 0));
    let large = ranges.take(5_000);
    std::thread::scope(|scope| {
        let (sender, has_room) = sync_channel(1);
        let ranges = &ranges;
        scope.spawn(move || {
            let _taken = ranges.take(60);
            sender.send(()).unwrap();
        });
        assert!(has_room.recv_timeout(Duration::from_millis(100)).is_err(), "another one has it all");
        drop(large);
        has_room.recv_timeout(Duration::from_secs(20)).unwrap();
    });
    let (first, second) = (ranges.take(60), ranges.take(40));
    assert_eq!(ranges.uses().memory, 100);
    drop((first, second));
    assert_eq!(ranges.uses().memory, 0);
}

#[test]
fn a_range_is_sorted_by_one_and_read_by_all() {
    let ranges = Arc::new(Ranges::new(1_000, 0));
    let first = turn(&ranges, 1, Some(500));
    std::thread::scope(|scope| {
        let ranges = &ranges;
        let is_kept = move || {
            loop {
                match ranges.find(key(1), Some(500), Millis(1)) {
                    Found::Sorts => {}
                    found => return matches!(found, Found::Kept(_)),
                }
            }
        };
        let others: Vec<_> = (0..2).map(|_| scope.spawn(is_kept)).collect();
        first.keep(&sorted(1), Millis(1));
        assert!(others.into_iter().all(|other| other.join().unwrap()));
    });
    // One that was not sorted is the next one's turn.
    drop(turn(&ranges, 2, Some(100)));
    drop(turn(&ranges, 2, Some(100)));
    // Who asks for a large one does not wait.
    let large = turn(&ranges, 3, None);
    assert!(matches!(ranges.find(key(3), None, Millis(1)), Found::Sorts));
    large.fail(NotRead::Lacks);
    assert!(matches!(ranges.find(key(3), None, Millis(1)), Found::Failed(NotRead::Lacks)));
    let again = turn(&ranges, 3, None);
    assert!(again.is_wanted());
    ranges.remove_shuffle(ShuffleId(1));
    assert!(!again.is_wanted());
    let newer = turn(&ranges, 3, None);
    again.fail(NotRead::Lacks);
    assert!(newer.is_wanted(), "what an earlier turn says counts no more");
}

#[test]
fn r1_files_go_when_they_are_too_large_together_or_nobody_asks() {
    let folder = tempfile::tempdir().unwrap();
    let file = || file_of(folder.path(), 1_000, vec![placed(b"k", 1, &[0; 100])]);
    let bytes = file().bytes();
    let ranges = Arc::new(Ranges::new(1_000, 2 * bytes));
    for at in 0..4 {
        turn(&ranges, at, None).store(file(), Millis(at as u64));
        assert!(matches!(ranges.find(key(0), None, Millis(at as u64)), Found::Stored(_)));
    }
    assert_eq!((here(&ranges), ranges.uses().files), (vec![0, 3], 2 * bytes));
    let Found::Stored(damaged) = ranges.find(key(0), None, Millis(9)) else { panic!() };
    ranges.forget(key(0), &Arc::new(file()));
    assert_eq!(here(&ranges), [0, 3]);
    ranges.forget(key(0), &damaged);
    assert_eq!((here(&ranges), ranges.uses().files), (vec![3], bytes));
    let waits = turn(&ranges, 7, None);
    ranges.remove_idle(Millis(3));
    assert_eq!(here(&ranges), [3, 7]);
    ranges.remove_idle(Millis(1_000));
    assert_eq!((here(&ranges), ranges.uses().files), (vec![7], 0), "what is being sorted stays");
    drop(waits);
}

#[test]
fn nobody_waits_for_a_range_that_another_thread_sorts_and_it_is_there_afterwards() {
    let ranges = Arc::new(Ranges::new(10_000, 0));
    let one = turn(&ranges, 1, Some(500));
    one.hand_over();
    assert!(matches!(ranges.find(key(1), Some(500), Millis(1)), Found::Sorts));
    assert_eq!(ranges.uses().memory, 500);
    one.fail(NotRead::ObjectStore);
    assert!(matches!(ranges.find(key(1), Some(500), Millis(1)), Found::Failed(NotRead::ObjectStore)));
    assert_eq!(ranges.uses().memory, 0);
    let again = turn(&ranges, 1, Some(500));
    again.hand_over();
    again.keep(&sorted(50), Millis(2));
    assert!(matches!(ranges.find(key(1), Some(500), Millis(2)), Found::Kept(_)));
}
