//! The ranges that a node has read: who sorts which, what is kept, and the memory and the disk of all of it.
//!
//! | a range is | who asks for it |
//! |---|---|
//! | not here | gets the turn to sort it: nobody else sorts it meanwhile |
//! | being sorted in memory | waits: it takes a moment |
//! | being sorted on disk, as it is larger than the memory | hears so, and asks again |
//! | in memory, or in a file | reads it |
//! | not sorted, as something lacked or failed | hears why, once; the next one has the turn |
//!
//! What is being read and sorted has its memory before it begins, and waits for it. Ranges that are kept give way to that, the
//! ones first that were not used for longest: both together never have more than the limit. What is larger than the limit is
//! taken alone; no range is, as large ones are sorted on disk.

use super::sorted_file::SortedFile;
use partage_core::base::time::Millis;
use partage_service::shuffle::ShuffleId;
use partage_service::shuffle::holder::NotRead;
use partage_service::shuffle::plan::Placed;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A range, by its shuffle and its place.
pub(super) type RangeKey = (ShuffleId, usize);

/// The records of a range, in order.
pub(super) type Sorted = Arc<Vec<Placed>>;

#[derive(Debug)]
enum State {
    Sorting { turn: u64, is_large: bool },
    Failed(NotRead),
    Kept(Sorted, u64),
    Stored(Arc<SortedFile>),
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// When it was asked for last, and before or after which others.
    at: Millis,
    used: u64,
}

#[derive(Debug, Default)]
struct All {
    entries: BTreeMap<RangeKey, Entry>,
    /// Memory of what is being read and sorted, and of what is kept.
    taken: u64,
    kept: u64,
    peak: u64,
    /// Bytes of files.
    stored: u64,
    /// Counts uses.
    last: u64,
}

impl All {
    fn remove(&mut self, key: RangeKey) {
        match self.entries.remove(&key).map(|entry| entry.state) {
            Some(State::Kept(_, bytes)) => self.kept -= bytes,
            Some(State::Stored(file)) => self.stored -= file.bytes(),
            Some(State::Sorting { .. } | State::Failed(_)) | None => {}
        }
    }

    /// What was not used for longest, of those.
    fn oldest(&self, is_one: impl Fn(&State) -> bool) -> Option<RangeKey> {
        let those = self.entries.iter().filter(|(_, entry)| is_one(&entry.state));
        those.min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key)
    }

    fn make_room(&mut self, most_memory: u64) {
        while self.taken + self.kept > most_memory
            && let Some(oldest) = self.oldest(|state| matches!(state, State::Kept(..)))
        {
            self.remove(oldest);
        }
        self.peak = self.peak.max(self.taken + self.kept);
    }
}

/// What reading takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadingUse {
    /// Memory now, and the most since the start.
    pub(crate) memory: u64,
    pub(crate) peak: u64,
    /// Bytes of files of sorted ranges.
    pub(crate) files: u64,
}

#[derive(Debug)]
pub(crate) struct Ranges {
    all: Mutex<All>,
    changed: Condvar,
    most_memory: u64,
    most_files: u64,
}

/// What is here of a range.
#[derive(Debug)]
pub(super) enum Found {
    Kept(Sorted),
    Stored(Arc<SortedFile>),
    /// It is being sorted on disk.
    Sorts,
    Failed(NotRead),
    /// Who asks sorts it.
    Turn(Turn),
}

impl Ranges {
    pub(super) fn new(most_memory: u64, most_files: u64) -> Ranges {
        Ranges { all: Mutex::default(), changed: Condvar::new(), most_memory, most_files }
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        // A thread that panicked while it had the lock has changed all or nothing, and its node ends.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A range that somebody asks for.
    pub(super) fn find(self: &Arc<Self>, key: RangeKey, is_large: bool, now: Millis) -> Found {
        let mut all = self.lock();
        loop {
            all.last += 1;
            let used = all.last;
            let Some(entry) = all.entries.get_mut(&key) else {
                let state = State::Sorting { turn: used, is_large };
                all.entries.insert(key, Entry { state, at: now, used });
                return Found::Turn(Turn { ranges: Arc::clone(self), key, number: used });
            };
            (entry.at, entry.used) = (now, used);
            match &entry.state {
                State::Kept(sorted, _) => return Found::Kept(Arc::clone(sorted)),
                State::Stored(file) => return Found::Stored(Arc::clone(file)),
                State::Sorting { is_large: true, .. } => return Found::Sorts,
                State::Failed(why) => {
                    let why = *why;
                    all.remove(key);
                    return Found::Failed(why);
                }
                State::Sorting { .. } => {
                    all = self.changed.wait(all).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Memory for something that is about to be read. Waits while others have too much of it.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> TakenMemory {
        let is_too_much = |all: &mut All| all.taken > 0 && all.taken.saturating_add(bytes) > self.most_memory;
        let waited = self.changed.wait_while(self.lock(), is_too_much);
        let mut all = waited.unwrap_or_else(PoisonError::into_inner);
        all.taken += bytes;
        all.make_room(self.most_memory);
        TakenMemory { ranges: Arc::clone(self), bytes }
    }

    /// A file that was not read turned out to be no good.
    pub(super) fn forget(&self, key: RangeKey, file: &Arc<SortedFile>) {
        let mut all = self.lock();
        let is_it = |entry: &Entry| matches!(&entry.state, State::Stored(one) if Arc::ptr_eq(one, file));
        if all.entries.get(&key).is_some_and(is_it) {
            all.remove(key);
        }
    }

    fn remove_if(&self, is_gone: impl Fn(&RangeKey, &Entry) -> bool) {
        let mut all = self.lock();
        let gone = all.entries.iter().filter(|(key, entry)| is_gone(key, entry));
        let gone: Vec<RangeKey> = gone.map(|(key, _)| *key).collect();
        gone.into_iter().for_each(|key| all.remove(key));
        drop(all);
        self.changed.notify_all();
    }

    /// Nothing of the shuffle is kept, and what is being sorted of it is not wanted.
    pub(super) fn remove_shuffle(&self, shuffle: ShuffleId) {
        self.remove_if(|(of, _), _| *of == shuffle);
    }

    /// What nobody has asked for since then goes.
    pub(super) fn remove_idle(&self, since: Millis) {
        self.remove_if(|_, entry| entry.at < since && !matches!(entry.state, State::Sorting { .. }));
    }

    /// What reading takes now.
    pub(super) fn uses(&self) -> ReadingUse {
        let all = self.lock();
        ReadingUse { memory: all.taken + all.kept, peak: all.peak, files: all.stored }
    }
}

/// So much memory is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct TakenMemory {
    ranges: Arc<Ranges>,
    bytes: u64,
}

impl Drop for TakenMemory {
    fn drop(&mut self) {
        self.ranges.lock().taken -= self.bytes;
        self.ranges.changed.notify_all();
    }
}

/// Whose turn it is to sort a range. Dropped without an end it is somebody else's.
#[derive(Debug)]
pub(super) struct Turn {
    ranges: Arc<Ranges>,
    key: RangeKey,
    number: u64,
}

impl Turn {
    fn is_of(&self, entry: &Entry) -> bool {
        matches!(entry.state, State::Sorting { turn, .. } if turn == self.number)
    }

    /// Whether the range is still wanted: its shuffle may have ended.
    pub(super) fn is_wanted(&self) -> bool {
        self.ranges.lock().entries.get(&self.key).is_some_and(|entry| self.is_of(entry))
    }

    fn end(&self, all: &mut All, state: State) -> bool {
        let entry = all.entries.get_mut(&self.key).filter(|entry| self.is_of(entry));
        entry.map(|entry| entry.state = state).is_some()
    }

    /// It is sorted: of what was taken for it so much is kept as it takes now.
    pub(super) fn keep(self, sorted: &Sorted, mut taken: TakenMemory) {
        let bytes: u64 = sorted.iter().map(Placed::memory).sum();
        let mut all = self.ranges.lock();
        all.taken -= std::mem::take(&mut taken.bytes);
        if self.end(&mut all, State::Kept(Arc::clone(sorted), bytes)) {
            all.kept += bytes;
        }
        all.make_room(self.ranges.most_memory);
    }

    /// It is sorted, in a file. Others go for it if there are too many bytes; one always is there.
    pub(super) fn store(self, file: SortedFile, now: Millis) {
        let bytes = file.bytes();
        let mut all = self.ranges.lock();
        if !self.end(&mut all, State::Stored(Arc::new(file))) {
            return;
        }
        all.stored += bytes;
        all.last += 1;
        let used = all.last;
        if let Some(entry) = all.entries.get_mut(&self.key) {
            (entry.at, entry.used) = (now, used);
        }
        while all.stored > self.ranges.most_files
            && let Some(oldest) = all.oldest(|state| matches!(state, State::Stored(_)))
            && oldest != self.key
        {
            all.remove(oldest);
        }
    }

    /// It is not sorted: who asks next hears why.
    pub(super) fn fail(self, why: NotRead) {
        let mut all = self.ranges.lock();
        self.end(&mut all, State::Failed(why));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut all = self.ranges.lock();
        if all.entries.get(&self.key).is_some_and(|entry| self.is_of(entry)) {
            all.remove(self.key);
        }
        drop(all);
        self.ranges.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::sorter::tests::{file_of, placed};
    use super::*;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    fn sorted(bytes: usize) -> Sorted {
        Arc::new(vec![placed(b"", 0, &vec![0; bytes])])
    }

    fn key(at: usize) -> RangeKey {
        (ShuffleId(1), at)
    }

    fn turn(ranges: &Arc<Ranges>, at: usize, is_large: bool) -> Turn {
        match ranges.find(key(at), is_large, Millis(at as u64)) {
            Found::Turn(turn) => turn,
            other => panic!("{other:?}"),
        }
    }

    fn keep(ranges: &Arc<Ranges>, at: usize, bytes: usize) {
        let one = sorted(bytes);
        let (turn, taken) = (turn(ranges, at, false), ranges.take(one[0].memory()));
        turn.keep(&one, taken);
    }

    fn here(ranges: &Ranges) -> Vec<usize> {
        ranges.lock().entries.keys().map(|(_, at)| *at).collect()
    }

    #[test]
    fn r1_ranges_that_were_used_last_are_kept_up_to_the_limit_and_give_way_to_what_is_sorted() {
        let around = Placed::AROUND;
        let ranges = Arc::new(Ranges::new(100 + 2 * around, 0));
        for at in 0..3 {
            keep(&ranges, at, 40);
            assert!(matches!(ranges.find(key(0), false, Millis(0)), Found::Kept(_)));
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
        let first = turn(&ranges, 1, false);
        std::thread::scope(|scope| {
            let ranges = &ranges;
            let is_kept = move || matches!(ranges.find(key(1), false, Millis(1)), Found::Kept(_));
            let others: Vec<_> = (0..2).map(|_| scope.spawn(is_kept)).collect();
            let taken = ranges.take(500);
            first.keep(&sorted(1), taken);
            assert!(others.into_iter().all(|other| other.join().unwrap()));
        });
        // One that was not sorted is the next one's turn.
        drop(turn(&ranges, 2, false));
        drop(turn(&ranges, 2, false));
        // Who asks for a large one does not wait.
        let large = turn(&ranges, 3, true);
        assert!(matches!(ranges.find(key(3), true, Millis(1)), Found::Sorts));
        large.fail(NotRead::Lacks);
        assert!(matches!(ranges.find(key(3), true, Millis(1)), Found::Failed(NotRead::Lacks)));
        let again = turn(&ranges, 3, true);
        assert!(again.is_wanted());
        ranges.remove_shuffle(ShuffleId(1));
        assert!(!again.is_wanted());
        let newer = turn(&ranges, 3, true);
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
            turn(&ranges, at, true).store(file(), Millis(at as u64));
            assert!(matches!(ranges.find(key(0), true, Millis(at as u64)), Found::Stored(_)));
        }
        assert_eq!((here(&ranges), ranges.uses().files), (vec![0, 3], 2 * bytes));
        let Found::Stored(damaged) = ranges.find(key(0), true, Millis(9)) else { panic!() };
        ranges.forget(key(0), &Arc::new(file()));
        assert_eq!(here(&ranges), [0, 3]);
        ranges.forget(key(0), &damaged);
        assert_eq!((here(&ranges), ranges.uses().files), (vec![3], bytes));
        let waits = turn(&ranges, 7, true);
        ranges.remove_idle(Millis(3));
        assert_eq!(here(&ranges), [3, 7]);
        ranges.remove_idle(Millis(1_000));
        assert_eq!((here(&ranges), ranges.uses().files), (vec![7], 0), "what is being sorted stays");
        drop(waits);
    }
}
