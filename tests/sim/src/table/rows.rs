//! The rows of a replica in memory, and the changes that its table keeps for readers: core's records, which core's own rules
//! judge and change.

use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use partage_service::table::feed::{Change, FeedSettings, Gone, Place, Progress, Reached, Reader, Removed};
use partage_service::table::replication::LogPosition;
use partage_service::table::rows::{
    self, KeptOutcome, Outcome, Record, Records, RequestId, Row, ShardState, Write,
};
use partage_service::table::split::inherit;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::ops::Bound;

/// How tables keep changes: for a short time, so that readers are late within a run.
pub const FEED: FeedSettings =
    FeedSettings { kept_ms: 8_000, sharding: Sharding::KeyRange, partition_key: PartitionKey::Whole };

/// Changes that a reader is given at once.
const PAGE: usize = 8;

/// The next changes of a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// In the order of their places.
    pub changes: Vec<(Place, Change)>,
    /// How far the reader is with them.
    pub progress: Progress,
}

/// All records of a replica, of rows and of what belongs to them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    rows: BTreeMap<Key, Row>,
    ends: BTreeSet<(u64, Key)>,
    answers: BTreeMap<RequestId, KeptOutcome>,
    answers_of: BTreeSet<(u64, RequestId)>,
    shard_state: ShardState,
    changes: BTreeMap<Place, Change>,
    removed: Removed,
}

impl Rows {
    /// Applies the write of the entry at that position: what it answers, and what has changed.
    pub fn apply(&mut self, at: LogPosition, write: &Write) -> (Outcome, Vec<Record>) {
        let Ok(applied) = rows::apply(&*self, at, write);
        applied.records.iter().cloned().for_each(|record| self.take(record));
        (applied.outcome, applied.records)
    }

    /// Stores one record, or removes what it says is gone.
    pub fn take(&mut self, record: Record) {
        match record {
            Record::Row(key, Some(row)) => drop(self.rows.insert(key, row)),
            Record::Row(key, None) => drop(self.rows.remove(&key)),
            Record::Ends(at, key, true) => {
                self.ends.insert((at, key));
            }
            Record::Ends(at, key, false) => {
                self.ends.remove(&(at, key));
            }
            Record::Outcome(id, Some(answered)) => drop(self.answers.insert(id, answered)),
            Record::Outcome(id, None) => drop(self.answers.remove(&id)),
            Record::OutcomeTime(at, id, true) => {
                self.answers_of.insert((at, id));
            }
            Record::OutcomeTime(at, id, false) => {
                self.answers_of.remove(&(at, id));
            }
            Record::ShardState(shard_state) => self.shard_state = shard_state,
            Record::Change(at, key, Some(change)) => drop(self.changes.insert((at, key), change)),
            Record::Change(at, key, None) => drop(self.changes.remove(&(at, key))),
            Record::Removed(removed) => self.removed = removed,
        }
    }

    /// All that is kept, as records that another replica can store.
    fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let rows = self.rows.iter().map(|(key, row)| Record::Row(key.clone(), Some(row.clone())));
        let ends = self.ends.iter().map(|(at, key)| Record::Ends(*at, key.clone(), true));
        let answers = self.answers.iter().map(|(id, answered)| Record::Outcome(*id, Some(answered.clone())));
        let answers_of = self.answers_of.iter().map(|(at, id)| Record::OutcomeTime(*at, *id, true));
        let changes = self.changes.iter();
        let changes =
            changes.map(|((at, key), change)| Record::Change(*at, key.clone(), Some(change.clone())));
        let stands = [Record::ShardState(self.shard_state), Record::Removed(self.removed.clone())];
        rows.chain(ends).chain(answers).chain(answers_of).chain(changes).chain(stands)
    }

    /// What a child takes of it that holds `held`.
    #[must_use]
    pub fn part(&self, held: &BTreeSet<Key>) -> Rows {
        let mut part = Rows::default();
        let takes = |record: &Record| inherit::takes(record, |key| held.contains(key));
        self.records().filter(takes).for_each(|record| part.take(record));
        part
    }

    /// Takes up what has changed at a parent, as far as `held` is concerned.
    pub fn follow(&mut self, changes: &[Record], held: &BTreeSet<Key>) {
        let taken = changes.iter().filter(|record| inherit::takes(record, |key| held.contains(key)));
        taken.cloned().for_each(|record| self.take(record));
    }

    /// The base of a child, of the parts of its parents, with what each of these held.
    pub fn joined<'a>(parts: impl IntoIterator<Item = (Option<Bounds>, &'a Rows)>) -> Rows {
        let mut base = Rows::default();
        let (mut shard_states, mut removed) = (Vec::new(), Vec::new());
        for (bounds, part) in parts {
            shard_states.push(part.shard_state);
            removed.push((bounds, part.removed.clone()));
            for record in part.records() {
                match record {
                    Record::Outcome(id, Some(answered)) => base.take_outcome(id, answered),
                    Record::OutcomeTime(..) | Record::ShardState(_) | Record::Removed(_) => {}
                    record => base.take(record),
                }
            }
        }
        let answers = base.answers.len() as u64;
        base.shard_state = ShardState { outcomes: answers, ..inherit::shard_state(shard_states) };
        if removed.iter().any(|(_, removed)| *removed != Removed::default()) {
            base.removed = Removed::joined(removed);
        }
        base
    }

    /// Of two outcomes of one request the later one counts.
    fn take_outcome(&mut self, id: RequestId, answered: KeptOutcome) {
        if let Some(known) = self.answers.get(&id) {
            if known.at_ms >= answered.at_ms {
                return;
            }
            self.answers_of.remove(&(known.at_ms, id));
        }
        self.answers_of.insert((answered.at_ms, id));
        self.answers.insert(id, answered);
    }

    /// Whether the rows are the same.
    pub fn has_rows_of(&self, other: &Rows) -> bool {
        self.rows == other.rows && self.ends == other.ends
    }

    /// A row as the shard's clock has it.
    pub fn read(&self, key: &Key) -> Option<Row> {
        let Ok(row) = rows::read(self, key);
        row
    }

    /// What a request was answered.
    pub fn outcome(&self, id: &RequestId) -> Option<&Outcome> {
        self.answers.get(id).map(|answered| &answered.outcome)
    }

    /// The next changes of a reader that is so far, by a replica that has applied all up to `applied`.
    ///
    /// # Errors
    /// A change that it lacks is removed.
    pub fn page(&self, progress: Progress, applied: LogPosition) -> Result<Page, Gone> {
        let newest = self.changes.keys().next_back().map(|(at, _)| *at);
        let reader = Reader::begin(FEED, progress, &self.removed, newest)?;
        let start = match reader.from() {
            Some(Reached { entry, key: Some(key) }) => Bound::Excluded((*entry, key.clone())),
            Some(Reached { entry, key: None }) => Bound::Included((
                LogPosition { index: entry.index.saturating_add(1), ..*entry },
                Key::empty(),
            )),
            None => return Ok(Page { changes: Vec::new(), progress: reader.end(None, None, applied) }),
        };
        let (mut changes, mut last, mut next) = (Vec::new(), None, None);
        for (place, change) in self.changes.range((start, Bound::Unbounded)) {
            if changes.len() >= PAGE {
                next = Some(place);
                break;
            }
            if reader.wants(place.0, &place.1) {
                changes.push((place.clone(), change.clone()));
            }
            last = Some(place.clone());
        }
        let progress = reader.end(last, next, applied);
        Ok(Page { changes, progress })
    }

    /// When the next row ends; it may have ended and not be removed yet.
    pub fn next_end(&self) -> Option<u64> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// The shard's clock, as the last write has moved it.
    pub fn clock_ms(&self) -> u64 {
        self.shard_state.clock_ms
    }
}

impl Records for Rows {
    type Error = Infallible;

    fn row(&self, key: &Key) -> Result<Option<Row>, Infallible> {
        Ok(self.rows.get(key).cloned())
    }

    fn ended(&self, until_ms: u64, most: usize) -> Result<Vec<(u64, Key)>, Infallible> {
        Ok(self.ends.iter().take_while(|(at, _)| *at <= until_ms).take(most).cloned().collect())
    }

    fn answer(&self, request: &RequestId) -> Result<Option<KeptOutcome>, Infallible> {
        Ok(self.answers.get(request).cloned())
    }

    fn answers(&self, until_ms: u64, most: usize) -> Result<Vec<(u64, RequestId)>, Infallible> {
        Ok(self.answers_of.iter().take_while(|(at, _)| *at <= until_ms).take(most).copied().collect())
    }

    fn shard_state(&self) -> Result<ShardState, Infallible> {
        Ok(self.shard_state)
    }

    fn feed(&self) -> Option<FeedSettings> {
        Some(FEED)
    }

    fn changes(&self, until_ms: u64, most: usize, bytes: usize) -> Result<Vec<Place>, Infallible> {
        let mut left = bytes;
        let old = self.changes.iter().take_while(|(_, change)| change.at_ms <= until_ms).take(most);
        let some = old.take_while(|(_, change)| {
            let fits = left > 0;
            left = left.saturating_sub(change.bytes());
            fits
        });
        Ok(some.map(|(place, _)| place.clone()).collect())
    }

    fn removed(&self) -> Result<Removed, Infallible> {
        Ok(self.removed.clone())
    }
}
