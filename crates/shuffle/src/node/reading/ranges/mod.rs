//! The ranges that a node has read: who sorts which, what is kept, and the memory and the disk of all of it.
//!
//! | a range is | who asks for it |
//! |---|---|
//! | not here | gets the turn to sort it, with the memory for it: nobody else sorts it meanwhile |
//! | not here, and others have the memory | hears that it is sorted, and asks again until its turn comes |
//! | being sorted in memory | waits for a moment; if that is not enough, it hears so, and asks again |
//! | being sorted by another thread, as it is larger than the memory or comes from the object store | hears so, and asks again |
//! | in memory, or in a file | reads it |
//! | not sorted, as something lacked or failed | hears why, once; the next one has the turn |
//!
//! What is being read and sorted has its memory before it begins. Ranges that are kept give way to that, the ones first that were
//! not used for longest: both together never have more than the limit, but for what a division takes beyond its part. A range
//! that readers take pieces of does not give way to another one, for a term: else readers of more ranges than have room would
//! each find theirs gone at every piece, and each piece would cost a sort. A division, or a sort on disk, waits for its memory;
//! no range in memory begins before it.

use super::sorted_file::SortedFile;
use crate::limits::{FIRST_AFTER_MS, IN_USE_MS, SORT_WAIT, TERM_MS};
use partage_core::base::time::Millis;
use partage_service::shuffle::ShuffleId;
use partage_service::shuffle::holder::NotRead;
use partage_service::shuffle::ordered_records::OrderedRecords;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A range, by its shuffle and its place.
pub(super) type RangeKey = (ShuffleId, usize);

#[derive(Debug)]
enum State {
    /// By who has the turn; or elsewhere, by a thread that takes its time: nobody waits for it.
    Sorting {
        turn: u64,
        is_elsewhere: bool,
    },
    Failed(NotRead),
    Kept(OrderedRecords, u64),
    Stored(Arc<SortedFile>),
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// When its turn to be sorted began.
    begun: Millis,
    /// When it was asked for last, and before or after which others.
    at: Millis,
    used: u64,
}

impl Entry {
    /// What it takes in memory and does not give away, as readers take pieces of it and its term is not over.
    fn held(&self, now: Millis) -> u64 {
        let is_held = now.since(self.at) < IN_USE_MS && now.since(self.begun) < TERM_MS;
        match &self.state {
            State::Kept(_, bytes) if is_held => *bytes,
            _ => 0,
        }
    }
}

/// A range that found no room, the one that has waited for longest of those that are still asked for.
#[derive(Debug, Clone, Copy)]
struct First {
    key: RangeKey,
    since: Millis,
    at: Millis,
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
    /// Divisions and sorts on disk that wait for memory.
    waiting: usize,
    first: Option<First>,
    /// Counts uses.
    last: u64,
}

impl All {
    /// Takes it out: freeing it takes long, and is for later than the lock.
    fn remove(&mut self, key: RangeKey) -> Option<State> {
        let state = self.entries.remove(&key)?.state;
        match &state {
            State::Kept(_, bytes) => self.kept -= bytes,
            State::Stored(file) => self.stored -= file.bytes(),
            State::Sorting { .. } | State::Failed(_) => {}
        }
        Some(state)
    }

    /// What was not used for longest, of those.
    fn oldest(&self, is_one: impl Fn(&State) -> bool) -> Option<RangeKey> {
        let those = self.entries.iter().filter(|(_, entry)| is_one(&entry.state));
        those.min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key)
    }

    #[must_use = "it is freed when the lock is free"]
    fn make_room(&mut self, most_memory: u64) -> Vec<State> {
        let mut gone = Vec::new();
        while self.taken + self.kept > most_memory
            && let Some(oldest) = self.oldest(|state| matches!(state, State::Kept(..)))
        {
            gone.extend(self.remove(oldest));
        }
        self.peak = self.peak.max(self.taken + self.kept);
        gone
    }

    /// Whether there is room for a range to be sorted in memory. If not, it is kept in mind, so that its turn comes.
    fn has_room(&mut self, key: RangeKey, bytes: u64, most_memory: u64, now: Millis) -> bool {
        let first = self.first.filter(|first| now.since(first.at) < IN_USE_MS);
        let is_behind =
            first.is_some_and(|first| first.key != key && now.since(first.since) >= FIRST_AFTER_MS);
        let held: u64 = self.entries.values().map(|entry| entry.held(now)).sum();
        let others = self.taken + held;
        let fits = others == 0 || others.saturating_add(bytes) <= most_memory;
        let has_room = fits && self.waiting == 0 && !is_behind;
        self.first = match first {
            Some(first) if first.key != key => Some(first),
            _ if has_room => None,
            first => Some(First { key, since: first.map_or(now, |first| first.since), at: now }),
        };
        has_room
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
    Kept(OrderedRecords),
    Stored(Arc<SortedFile>),
    /// It is being sorted, or will be when others have let go of memory.
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

    /// A range that somebody asks for, with what it takes to sort it in memory; none: it is to be sorted on disk.
    pub(super) fn find(self: &Arc<Self>, key: RangeKey, in_memory: Option<u64>, now: Millis) -> Found {
        let mut all = self.lock();
        loop {
            all.last += 1;
            let used = all.last;
            let Some(entry) = all.entries.get_mut(&key) else { return self.begin(all, key, in_memory, now) };
            (entry.at, entry.used) = (now, used);
            match &entry.state {
                State::Kept(sorted, _) => return Found::Kept(sorted.clone()),
                State::Stored(file) => return Found::Stored(Arc::clone(file)),
                State::Sorting { is_elsewhere: true, .. } => return Found::Sorts,
                State::Failed(why) => {
                    let why = *why;
                    drop(all.remove(key));
                    return Found::Failed(why);
                }
                State::Sorting { .. } => {
                    let sorts = |all: &mut All| {
                        let state = all.entries.get(&key).map(|entry| &entry.state);
                        matches!(state, Some(State::Sorting { is_elsewhere: false, .. }))
                    };
                    let waited = self.changed.wait_timeout_while(all, SORT_WAIT, sorts);
                    let (next, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                    if waited.timed_out() {
                        return Found::Sorts;
                    }
                    all = next;
                }
            }
        }
    }

    /// The turn to sort a range, if it has the memory.
    fn begin(
        self: &Arc<Self>,
        mut all: MutexGuard<'_, All>,
        key: RangeKey,
        in_memory: Option<u64>,
        now: Millis,
    ) -> Found {
        if in_memory.is_some_and(|bytes| !all.has_room(key, bytes, self.most_memory, now)) {
            return Found::Sorts;
        }
        let (number, is_large) = (all.last, in_memory.is_none());
        let state = State::Sorting { turn: number, is_elsewhere: is_large };
        all.entries.insert(key, Entry { state, begun: now, at: now, used: number });
        let memory = in_memory.map(|bytes| self.taken(&mut all, bytes));
        let gone = if is_large { Vec::new() } else { all.make_room(self.most_memory) };
        drop(all);
        drop(gone);
        Found::Turn(Turn { ranges: Arc::clone(self), key, number, memory })
    }

    fn taken(self: &Arc<Self>, all: &mut All, bytes: u64) -> TakenMemory {
        all.taken += bytes;
        TakenMemory { ranges: Arc::clone(self), bytes }
    }

    /// Memory for a division, or for a sort on disk. Waits while others have too much of it.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> TakenMemory {
        let is_too_much = |all: &mut All| all.taken > 0 && all.taken.saturating_add(bytes) > self.most_memory;
        let mut all = self.lock();
        all.waiting += 1;
        let waited = self.changed.wait_while(all, is_too_much);
        let mut all = waited.unwrap_or_else(PoisonError::into_inner);
        all.waiting -= 1;
        let taken = self.taken(&mut all, bytes);
        let gone = all.make_room(self.most_memory);
        drop(all);
        drop(gone);
        taken
    }

    /// A file that was not read turned out to be no good.
    pub(super) fn forget(&self, key: RangeKey, file: &Arc<SortedFile>) {
        let mut all = self.lock();
        let is_it = |entry: &Entry| matches!(&entry.state, State::Stored(one) if Arc::ptr_eq(one, file));
        let gone = if all.entries.get(&key).is_some_and(is_it) { all.remove(key) } else { None };
        drop(all);
        drop(gone);
    }

    fn remove_if(&self, is_gone: impl Fn(&RangeKey, &Entry) -> bool) {
        let mut all = self.lock();
        let gone = all.entries.iter().filter(|(key, entry)| is_gone(key, entry));
        let gone: Vec<RangeKey> = gone.map(|(key, _)| *key).collect();
        let gone: Vec<State> = gone.into_iter().filter_map(|key| all.remove(key)).collect();
        drop(all);
        self.changed.notify_all();
        drop(gone);
    }

    /// Nothing of the shuffle is kept, and what is being sorted of it is not wanted. Its batches are gone before: what is asked
    /// for from then on is not found.
    pub(crate) fn remove_shuffle(&self, shuffle: ShuffleId) {
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

impl TakenMemory {
    /// What it is for has turned out to take so much more. That is here already: ranges that are kept give way to it.
    pub(super) fn grow(&mut self, bytes: u64) {
        let mut all = self.ranges.lock();
        all.taken += bytes;
        self.bytes += bytes;
        let gone = all.make_room(self.ranges.most_memory);
        drop(all);
        drop(gone);
    }
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
    /// That of a sort in memory.
    memory: Option<TakenMemory>,
}

impl Turn {
    fn is_of(&self, entry: &Entry) -> bool {
        matches!(entry.state, State::Sorting { turn, .. } if turn == self.number)
    }

    /// Whether the range is still wanted: its shuffle may have ended.
    pub(super) fn is_wanted(&self) -> bool {
        self.ranges.lock().entries.get(&self.key).is_some_and(|entry| self.is_of(entry))
    }

    /// The range is sorted on disk, and not in memory as was planned.
    pub(super) fn release_memory(&mut self) {
        self.memory = None;
    }

    /// Another thread sorts it, and takes its time: nobody waits for it.
    pub(super) fn hand_over(&self) {
        self.end(&mut self.ranges.lock(), State::Sorting { turn: self.number, is_elsewhere: true });
        self.ranges.changed.notify_all();
    }

    fn end(&self, all: &mut All, state: State) -> bool {
        let entry = all.entries.get_mut(&self.key).filter(|entry| self.is_of(entry));
        entry.map(|entry| entry.state = state).is_some()
    }

    /// It is sorted: of what was taken for it so much is kept as it takes now.
    pub(super) fn keep(mut self, sorted: &OrderedRecords, now: Millis) {
        let bytes = sorted.memory();
        let mut taken = self.memory.take();
        let mut all = self.ranges.lock();
        all.taken -= taken.as_mut().map_or(0, |taken| std::mem::take(&mut taken.bytes));
        if self.end(&mut all, State::Kept(sorted.clone(), bytes)) {
            all.kept += bytes;
            // The sort took its time: its reader is about to ask for the next piece.
            if let Some(entry) = all.entries.get_mut(&self.key) {
                entry.at = entry.at.max(now);
            }
        }
        let gone = all.make_room(self.ranges.most_memory);
        drop(all);
        drop(gone);
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
        let mut gone = Vec::new();
        while all.stored > self.ranges.most_files
            && let Some(oldest) = all.oldest(|state| matches!(state, State::Stored(_)))
            && oldest != self.key
        {
            gone.extend(all.remove(oldest));
        }
        drop(all);
        drop(gone);
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
            drop(all.remove(self.key));
        }
        drop(all);
        self.ranges.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
