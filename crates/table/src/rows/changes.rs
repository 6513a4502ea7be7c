//! Changes of rows, of a table with a feed: what is stored of them, and pages of them for readers.

use super::oldest::{OldChange, Oldest};
use super::{PinnedRows, RowsError, StoredRows, malformed};
use crate::limits;
use crate::stored::changes::{decode_change, decode_removed};
use crate::stored::keys;
use partage_core::keyspace::key::Key;
use partage_engine::replica::{Direction, Snapshot, Store};
use partage_service::table::feed::{Change, FeedSettings, Gone, Place, Progress, Reader, Removed, Since};
use partage_service::table::replication::LogPosition;
use std::cell::RefCell;

/// What a replica knows of the feed of its shard, beside its store.
#[derive(Debug)]
pub(super) struct Feed {
    pub(super) settings: Option<FeedSettings>,
    pub(super) removed: Removed,
    pub(super) oldest: RefCell<Oldest>,
}

impl Feed {
    /// Of a store whose changes were removed so far.
    pub(super) fn new(settings: Option<FeedSettings>, removed: Removed) -> Feed {
        // The last entry may be removed in part.
        let through = Some(removed.through).filter(|through| *through != LogPosition::default());
        let before = through
            .map(|through| (LogPosition { index: through.index.saturating_sub(1), ..through }, Key::empty()));
        Feed { settings, removed, oldest: RefCell::new(Oldest::behind(before)) }
    }
}

/// A change of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundChange {
    /// The entry that made it: the version of the row, where there is one.
    pub version: LogPosition,
    /// The key of the row.
    pub key: Key,
    /// What became of the row.
    pub change: Change,
}

/// A page of the changes of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangesPage {
    /// The changes, in the order of their entries.
    pub changes: Vec<FoundChange>,
    /// How far its reader is with them.
    pub progress: Progress,
    /// Nothing follows. If not, the page may be empty all the same: what was looked at is not of this reader.
    pub is_end: bool,
}

impl ChangesPage {
    /// Bytes of the keys and values of the changes.
    pub(crate) fn bytes(&self) -> usize {
        self.changes.iter().map(|found| found.key.as_bytes().len() + found.change.bytes()).sum()
    }
}

fn place_of(stored: &[u8]) -> Result<Place, RowsError> {
    keys::parse_change(stored).ok_or_else(|| malformed("a stored change", "its key", "has another form"))
}

/// The key of the first change behind one.
fn behind((entry, key): &Place) -> Vec<u8> {
    let mut stored = keys::change(*entry, key.as_bytes());
    stored.push(0);
    stored
}

impl<S: Store> StoredRows<S> {
    /// When the oldest change has been kept for long enough, in milliseconds of Unix time; none: there is none.
    pub(crate) fn next_removal(&self) -> Option<u64> {
        let settings = self.feed.settings?;
        let oldest = self.feed.oldest.borrow();
        // One that is not known is looked for by the next entry.
        let unknown = if oldest.is_whole() { None } else { Some(0) };
        oldest.first_ms().map(|at_ms| at_ms + settings.kept_ms).or(unknown)
    }

    /// The last change that the group has made, of those that it stores.
    pub(super) fn read_removed(store: &S) -> Result<Removed, RowsError> {
        match store.get(keys::REMOVED)? {
            Some(bytes) => Ok(decode_removed(&bytes)?),
            None => Ok(Removed::default()),
        }
    }

    /// The oldest changes, for those that are removed.
    pub(super) fn old_changes(
        &self,
        until_ms: u64,
        most: usize,
        bytes: usize,
    ) -> Result<Vec<Place>, RowsError> {
        loop {
            if let Some(found) = self.feed.oldest.borrow().until(until_ms, most, bytes) {
                return Ok(found);
            }
            let mut oldest = self.feed.oldest.borrow_mut();
            let from = oldest.last().map_or(keys::ALL_CHANGES.0.to_vec(), behind);
            let snapshot = self.store.snapshot()?;
            let rows = snapshot.range(Some(&from), Some(keys::ALL_CHANGES.1), Direction::Forward);
            oldest.read_on(rows.map(|row| {
                let row = row?;
                let change = decode_change(&row.value)?;
                let (place, at_ms, bytes) = (place_of(&row.key)?, change.at_ms, change.bytes());
                Ok::<_, RowsError>(OldChange { place, at_ms, bytes })
            }))?;
        }
    }

    /// Takes up in memory that a change is in the store, or no longer is.
    pub(super) fn take_up_change(&mut self, version: LogPosition, key: Key, change: Option<&Change>) {
        let oldest = self.feed.oldest.get_mut();
        match change {
            Some(change) => {
                let (at_ms, bytes) = (change.at_ms, change.bytes());
                oldest.add(OldChange { place: (version, key), at_ms, bytes });
            }
            None => oldest.remove((version, key)),
        }
    }
}

impl<S: Snapshot> PinnedRows<S> {
    /// The last change that is kept.
    fn newest_change(&self) -> Result<Option<LogPosition>, RowsError> {
        let (from, to) = keys::ALL_CHANGES;
        let last = self.snapshot.range(Some(from), Some(to), Direction::Backward).next().transpose()?;
        last.map(|row| Ok(place_of(&row.key)?.0)).transpose()
    }

    /// The changes that a reader lacks which is so far: `most` at most, and so many bytes of keys and values unless the first one
    /// alone has more.
    ///
    /// # Errors
    /// The store cannot be read. Within: changes that the reader lacks are removed.
    pub(crate) fn changes(
        &self,
        progress: Progress,
        most: usize,
        bytes: usize,
    ) -> Result<Result<ChangesPage, Gone>, RowsError> {
        let Some(settings) = self.feed else {
            return Ok(Ok(ChangesPage { changes: Vec::new(), progress, is_end: true }));
        };
        let removed = match self.snapshot.get(keys::REMOVED)? {
            Some(bytes) => decode_removed(&bytes)?,
            None => Removed::default(),
        };
        let wants_newest = progress.parts().iter().any(|part| part.since == Since::Now);
        let newest = if wants_newest { self.newest_change()? } else { None };
        let reader = match Reader::begin(settings, progress, &removed, newest) {
            Ok(reader) => reader,
            Err(gone) => return Ok(Err(gone)),
        };
        let from = reader.from().map(|reached| match &reached.key {
            Some(key) => behind(&(reached.entry, key.clone())),
            None => keys::change(
                LogPosition { index: reached.entry.index.saturating_add(1), ..reached.entry },
                &[],
            ),
        });
        let from = from.unwrap_or(keys::ALL_CHANGES.1.to_vec());
        let (mut changes, mut last, mut next) = (Vec::new(), None, None);
        let (mut looks, mut left) = (limits::SCAN_LOOKS, bytes);
        for stored in self.snapshot.range(Some(&from), Some(keys::ALL_CHANGES.1), Direction::Forward) {
            let stored = stored?;
            let place = place_of(&stored.key)?;
            let size = stored.key.len() + stored.value.len();
            if changes.len() >= most || looks == 0 || (size > left && looks < limits::SCAN_LOOKS) {
                next = Some(place);
                break;
            }
            (looks, left) = (looks - 1, left.saturating_sub(size));
            if reader.wants(place.0, &place.1) {
                let change = decode_change(&stored.value)?;
                changes.push(FoundChange { version: place.0, key: place.1.clone(), change });
            }
            last = Some(place);
        }
        let progress = reader.end(last, next.as_ref(), self.snapshot.position());
        Ok(Ok(ChangesPage { changes, progress, is_end: next.is_none() }))
    }
}
