//! Direct reads: any thread reads the rows of a leader, without the queue of the replica.
//!
//! The thread that serves a replica publishes until when its applied rows may be read as a linearizable read
//! ([`Replica::reads_until`](partage_service::table::replication::Replica::reads_until)). Until then the thread of a connection
//! reads the rows itself, if they are in memory. Every other read goes through the queue of the replica.
//!
//! The serving thread publishes a time after it has applied the entries of the same event, and withdraws it before it does
//! anything by which another replica may lead.
//!
//! Why such a read is linearizable: take the moment at which the reader sees the published time, or, if the replica has begun to
//! lead only after the reader looked at the clock, the moment at which it has begun. The read is under way then, no other replica
//! leads, and all that was acknowledged is applied here. The rows are read after it, and no applied entry is ever taken back.
//!
//! A row whose time may have come is not read so: the clock of the shard goes on with each entry, so a reader compares with what
//! is published *before* an entry is applied, which is never behind what the rows are.

use crate::node::ReadAnswer;
use crate::stored::keys;
use crate::stored::values::decode_row;
use partage_core::base::time::Millis;
use partage_core::keyspace::key::Key;
use partage_engine::replica::TreeStore;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// What the clock of a shard shows at most, in milliseconds of Unix time: moved on before an entry is applied.
pub(crate) type ClockBound = Arc<AtomicU64>;

/// What the thread that serves a replica publishes for readers.
#[derive(Default)]
pub(crate) struct DirectReads {
    /// By the clock of the node; 0: nothing is read so.
    until: AtomicU64,
    /// The lock is taken to write only when the store is opened, replaced, or closed.
    rows: RwLock<Option<(Arc<TreeStore>, ClockBound)>>,
}

impl DirectReads {
    /// Until when the rows may be read; none: not at all.
    pub(crate) fn publish(&self, until: Option<Millis>) {
        let until = until.map_or(0, |until| until.0);
        if self.until.load(Ordering::Relaxed) != until {
            self.until.store(until, Ordering::Release);
        }
    }

    /// Takes back what is published beyond `until`.
    pub(crate) fn withdraw(&self, until: Option<Millis>) {
        let until = until.map_or(0, |until| until.0);
        if self.until.load(Ordering::Relaxed) > until {
            self.until.store(until, Ordering::Release);
        }
    }

    /// The store that is read; none, when it is closed. Waits for reads of the one before.
    pub(crate) fn set_rows(&self, rows: Option<(Arc<TreeStore>, ClockBound)>) {
        *self.rows.write().unwrap_or_else(PoisonError::into_inner) = rows;
    }

    /// What the clock of the shard shows at most, in milliseconds of Unix time; none: the store is closed.
    pub(crate) fn clock(&self) -> Option<u64> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        rows.as_ref().map(|(_, clock)| clock.load(Ordering::Acquire))
    }

    /// Reads a row at `now`, from a state that has all entries up to the index `at_least`; none: the replica must be asked.
    pub(crate) fn read(&self, now: Millis, key: &Key, at_least: u64) -> Option<ReadAnswer> {
        if now.0 >= self.until.load(Ordering::Acquire) {
            return None;
        }
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        let (store, clock) = rows.as_ref()?;
        let (position, stored) = store.get_in_memory(&keys::row(key))?;
        // What cannot be decoded is damaged, which the replica finds.
        let row = stored.map(|bytes| decode_row(&bytes)).transpose().ok()?;
        let is_certain = row.as_ref().is_none_or(|row| row.is_there(clock.load(Ordering::Acquire)));
        (is_certain && position.index >= at_least).then_some(ReadAnswer { row, position, age_ms: Some(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::StoredRows;
    use crate::stored::write;
    use partage_core::base::id::Epoch;
    use partage_engine::replica::{Engine, Options, Store, TreeEngine};
    use partage_service::table::replication::{Entry, EntryKind, LogPosition};
    use partage_service::table::rows::{Action, Condition, Expiry, Operation, Write};

    fn key(name: &str) -> Key {
        Key::new(name.as_bytes()).unwrap()
    }

    fn apply(rows: &mut StoredRows<TreeStore>, index: u64, at_ms: u64, name: &str, expiry: Expiry) {
        let action = Action::Put(name.as_bytes().into(), expiry);
        let operation =
            Operation { key: key(name), condition: Condition::Always, action, wants_former: false };
        let write = Write { at_ms, request: None, operations: vec![operation] };
        let kind = EntryKind::Write(write::encode(&write).into());
        let position = LogPosition { epoch: Epoch(1), index };
        rows.apply(&Entry { position, kind }).unwrap();
    }

    #[test]
    fn d2_only_what_is_certain_is_read_without_asking_the_replica() {
        let folder = tempfile::tempdir().unwrap();
        let engine = TreeEngine::new(Options::default());
        let mut rows = StoredRows::open(Arc::new(engine.open(folder.path()).unwrap()), None).unwrap();
        let direct = DirectReads::default();
        direct.set_rows(Some(rows.for_readers()));
        apply(&mut rows, 1, 1_000, "stays", Expiry::Never);
        apply(&mut rows, 2, 1_000, "ends", Expiry::At(1_500));
        let found = |now: u64, name: &str, at_least: u64| {
            direct.read(Millis(now), &key(name), at_least).map(|answer| answer.row.map(|row| row.value))
        };
        assert_eq!(found(10, "stays", 0), None, "nothing was published");
        direct.publish(Some(Millis(100)));
        assert_eq!(found(99, "stays", 0), Some(Some(b"stays".as_slice().into())));
        assert_eq!(found(100, "stays", 0), None, "the time is over");
        assert_eq!(found(99, "stays", 3), None, "it has not so much");
        assert_eq!(found(99, "ends", 2), Some(Some(b"ends".as_slice().into())));
        assert_eq!(found(99, "never", 0), None, "what is not in memory may be on the disk");
        rows.for_readers().1.store(1_500, Ordering::Release);
        assert_eq!(found(99, "ends", 0), None, "an entry by which its time has come may be under way");
        apply(&mut rows, 3, 1_500, "other", Expiry::Never);
        assert_eq!(found(99, "ends", 0), Some(None), "it is removed");
        rows.store().flush().unwrap();
        assert_eq!(found(99, "stays", 0), None, "it is on the disk now");
        apply(&mut rows, 4, 1_600, "stays", Expiry::Never);
        assert!(found(99, "stays", 4).is_some());
        direct.withdraw(Some(Millis(200)));
        assert!(found(99, "stays", 4).is_some());
        direct.withdraw(Some(Millis(99)));
        assert_eq!(found(99, "stays", 4), None, "it was taken back");
        direct.publish(Some(Millis(100)));
        direct.publish(None);
        assert_eq!(found(99, "stays", 0), None, "the replica does not lead any more");
        direct.publish(Some(Millis(100)));
        direct.set_rows(None);
        assert_eq!(found(99, "stays", 0), None, "the store is closed");
    }
}
