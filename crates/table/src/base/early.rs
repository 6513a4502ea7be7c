//! The join of merged shards that begins before they close, so that requests do not wait while their rows are copied.
//!
//! | step | what it does |
//! |---|---|
//! | all parents have given what they had | copies the rows of all parts, as they are at that moment, into one store |
//! | meanwhile, and from then on | changes of rows go to their part, and to that store |
//! | the store lags little | the parents may close |
//! | they have closed | the last changes, and what is not of a row (outcomes, how the shards stand), are added |
//!
//! The store's positions count its groups, and stay below the furthest of its parts: so whatever came last, the position at which
//! the log of the child begins is behind them. If it cannot be kept up (changes wait for too long, a store fails, a part is
//! replaced), all is joined when the parents have closed, as if this had never begun.

use super::joining::{ParentStore, RowsCopy};
use super::{BaseWork, LocalBase, State, joining};
use crate::limits::{
    BASE_FLUSH_BYTES, JOIN_COPY_BYTES, JOIN_GROUP_BYTES, JOIN_PENDING_BYTES, JOIN_STEP_BYTES,
};
use crate::node::{Shared, folders};
use crate::pacing::{CopyDirection, FinishedStep};
use crate::rows::RowsError;
use crate::transport::{StoredChange, change_bytes};
use bytes::Bytes;
use partage_core::base::id::Epoch;
use partage_core::base::time::Millis;
use partage_core::node::exchange::ReplicaKey;
use partage_engine::replica::{Change, Store, TreeSnapshot, TreeStore};
use partage_service::table::copy::deadline::Urgency;
use partage_service::table::replication::LogPosition;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The index of the store when it has the rows that are copied.
const FIRST: u64 = 1;

/// How far it is.
#[derive(Default)]
pub(super) enum EarlyJoin {
    /// The parents have not given all yet.
    #[default]
    Awaited,
    /// Rows are being copied, and changes of rows wait.
    Copying(Changes),
    /// It has the rows, but for the changes that wait.
    Following(Changes, Arc<TreeStore>),
    /// All is joined when the parents have closed.
    GivenUp,
}

/// What is still to be added.
#[derive(Default)]
pub(super) struct Changes {
    generation: u64,
    /// The store has all up to this index, but for what waits.
    at: u64,
    waiting: Waiting,
    is_flushing: bool,
    /// Rows that are still to be copied, and from when on; none: a task copies some, or they are copied.
    copy: Option<(Box<RowsCopy>, Millis)>,
}

/// What a task has left that copies rows.
pub(crate) enum CopyStep {
    /// More are to be copied, from that time on.
    More(Box<RowsCopy>, Millis),
    /// The store has all.
    Whole(Arc<TreeStore>),
}

/// The last change of each record that is still to be added: a record that changes often waits once.
#[derive(Default)]
pub(super) struct Waiting {
    changes: BTreeMap<Bytes, Option<Bytes>>,
    bytes: usize,
}

impl Waiting {
    fn add(&mut self, change: StoredChange) {
        self.bytes += change_bytes(&change);
        let (key, value) = change;
        // The former key goes too: it may keep the packet that it came with.
        if let Some(former) = self.changes.remove_entry(&key) {
            self.bytes -= change_bytes(&former);
        }
        self.changes.insert(key, value);
    }

    /// Some changes, of not much more than so many bytes.
    fn take(&mut self, most: usize) -> Vec<StoredChange> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while bytes < most
            && let Some(change) = self.changes.pop_first()
        {
            bytes += change_bytes(&change);
            taken.push(change);
        }
        self.bytes -= bytes;
        taken
    }
}

/// A store that lacks only [`Early::waiting`], and what is not of a row.
pub(super) struct Early {
    pub(super) store: Arc<TreeStore>,
    pub(super) generation: u64,
    at: u64,
    waiting: Waiting,
}

fn at(index: u64) -> LogPosition {
    LogPosition { epoch: Epoch(0), index }
}

fn apply(store: &TreeStore, from: u64, to: LogPosition, changes: &[StoredChange]) -> Result<(), RowsError> {
    let changes: Vec<Change<'_>> =
        changes.iter().map(|(key, value)| Change { key, value: value.as_deref() }).collect();
    Ok(store.apply(at(from), to, &changes)?)
}

impl Early {
    /// Adds the last changes and what is not of a row, of parts that do not change any more; gives the generation of the store,
    /// and the store. None if that is so much that all is to be joined anew: then, and if it fails, the folder is removed.
    pub(super) fn finish(
        self,
        shared: &Shared,
        key: &ReplicaKey,
        parts: &[ParentStore],
        position: LogPosition,
    ) -> Result<Option<(u64, Arc<TreeStore>)>, RowsError> {
        let Early { store, generation, at, waiting } = self;
        let finished = add_last(&store, at, waiting, parts, position);
        if matches!(finished, Ok(true)) {
            return Ok(Some((generation, store)));
        }
        drop(store);
        if let Err(error) = folders::remove(&shared.engine, &shared.folder, key, &[generation]) {
            tracing::warn!(%error, "rows of merged shards that are of no use are not removed; the next start does");
        }
        finished.map(|_| None)
    }
}

/// Adds what waits, and what is not of a row, to a store that is at that index. False: that is too much.
fn add_last(
    store: &TreeStore,
    at: u64,
    mut waiting: Waiting,
    parts: &[ParentStore],
    position: LogPosition,
) -> Result<bool, RowsError> {
    let Some(rest) = joining::rest(parts)? else { return Ok(false) };
    let mut changes = waiting.take(usize::MAX);
    changes.extend(rest.into_iter().map(|row| (row.key.to_vec().into(), Some(row.value.to_vec().into()))));
    apply(store, at, position, &changes)?;
    Ok(true)
}

impl LocalBase {
    /// Whether the rows of all parents are in one store, or are not going to be before these close.
    pub(super) fn is_joined(&self) -> bool {
        match &self.early {
            _ if self.parts.len() < 2 => true,
            // Where the parents' logs are short, no position is left for what waits: it is added when they have closed.
            EarlyJoin::Following(changes, _) => {
                changes.waiting.bytes < JOIN_STEP_BYTES || changes.at >= self.last_index()
            }
            EarlyJoin::GivenUp => true,
            EarlyJoin::Awaited | EarlyJoin::Copying(_) => false,
        }
    }

    /// Begins when all parents have given what they had.
    pub(super) fn tend_early_join(&mut self) {
        let may = matches!((&self.early, &self.state), (EarlyJoin::Awaited, State::Taking));
        if !may || self.parts.len() < 2 || !self.base.is_ready() || self.closing.is_some() {
            return;
        }
        let snapshots: Result<Vec<TreeSnapshot>, _> =
            self.parts.values().map(|part| part.store.snapshot()).collect();
        // Two empty shards are joined at once.
        let Some(snapshots) = snapshots.ok().filter(|_| self.last_index() >= FIRST) else {
            self.early = EarlyJoin::GivenUp;
            return;
        };
        let generation = self.next_generation;
        self.next_generation += 1;
        self.early = EarlyJoin::Copying(Changes { generation, at: FIRST, ..Changes::default() });
        let folder = folders::of(&self.shared.folder, &self.queue.key, generation);
        let (engine, queue) = (self.shared.engine.clone(), Arc::clone(&self.queue));
        self.tasks += 1;
        self.shared.pool.add(self.queue.key.placement, move || {
            let begun = RowsCopy::begin(&engine, snapshots, &folder, at(FIRST));
            let result = begun.map(|copy| CopyStep::More(Box::new(copy), Millis(0)));
            queue.add(|waiting| waiting.base_done.push(BaseWork::Copied { generation, result }));
        });
    }

    /// When the next rows are to be copied.
    pub(super) fn copies_at(&self) -> Millis {
        match &self.early {
            EarlyJoin::Copying(Changes { copy: Some((_, at)), .. }) => *at,
            _ => Millis::NEVER,
        }
    }

    /// Copies the next rows, when it is time.
    pub(super) fn copy_more(&mut self, now: Millis) {
        if now < self.copies_at() {
            return;
        }
        let EarlyJoin::Copying(changes) = &mut self.early else { return };
        let Some((mut copy, _)) = changes.copy.take() else { return };
        let generation = changes.generation;
        // What waits must not become more than may, and after the switch clients wait.
        let is_pressed = changes.waiting.bytes > JOIN_PENDING_BYTES / 2 || self.order.in_sync;
        let urgency = if is_pressed { Urgency::Pressed } else { Urgency::GivesWay };
        let (shared, queue) = (Arc::clone(&self.shared), Arc::clone(&self.queue));
        self.tasks += 1;
        self.shared.pool.add(self.queue.key.placement, move || {
            let began_us = shared.pacing.now_us();
            let step = || -> Result<CopyStep, RowsError> {
                let Some(bytes) = copy.step(JOIN_COPY_BYTES)? else {
                    return Ok(CopyStep::Whole(copy.end()?));
                };
                let (rows, copied) = (0, CopyDirection::Within);
                let until = shared.pacing.done(FinishedStep { began_us, bytes, rows, copied, urgency });
                Ok(CopyStep::More(copy, until))
            };
            let result = step();
            queue.add(|waiting| waiting.base_done.push(BaseWork::Copied { generation, result }));
        });
    }

    /// Some rows are copied, or all.
    pub(super) fn rows_copied(&mut self, generation: u64, result: Result<CopyStep, RowsError>) {
        self.queue.figures.step();
        let is_it = matches!(&self.early, EarlyJoin::Copying(changes) if changes.generation == generation);
        let step = match result {
            Ok(step) => step,
            Err(error) => {
                tracing::warn!(%error, "rows of merged shards are not copied before these close");
                // Of one that was given up before: the present one goes on.
                if is_it {
                    self.early = EarlyJoin::GivenUp;
                }
                return self.remove(generation, None::<Arc<TreeStore>>);
            }
        };
        match step {
            CopyStep::More(copy, _) if !is_it => self.remove(generation, Some(copy)),
            CopyStep::Whole(store) if !is_it => self.remove(generation, Some(store)),
            CopyStep::More(copy, until) => {
                if let EarlyJoin::Copying(changes) = &mut self.early {
                    changes.copy = Some((copy, until));
                }
            }
            CopyStep::Whole(store) => {
                if let EarlyJoin::Copying(changes) = std::mem::take(&mut self.early) {
                    self.early = EarlyJoin::Following(changes, store);
                    self.catch_up();
                }
            }
        }
    }

    /// A part has changed.
    pub(super) fn change_joined(&mut self, changes: &[StoredChange]) {
        let (EarlyJoin::Copying(known) | EarlyJoin::Following(known, _)) = &mut self.early else { return };
        let of_rows = changes.iter().filter(|(key, _)| joining::is_of_row(key));
        of_rows.cloned().for_each(|change| known.waiting.add(change));
        let is_too_much = known.waiting.bytes > JOIN_PENDING_BYTES;
        if is_too_much {
            tracing::info!(shard = %self.queue.key.shard, "more changes wait than the limit: the rows are joined when the old shards have closed, and requests wait for that");
            self.give_up_early_join();
        } else {
            self.catch_up();
        }
    }

    /// The last index that the store may have before the parents have closed.
    fn last_index(&self) -> u64 {
        self.parts.values().map(|part| part.at).max().unwrap_or_default().saturating_sub(1)
    }

    /// Adds what waits, when it is much: a part of it, as this thread has other replicas to serve, and the rest when it is served
    /// again.
    pub(super) fn catch_up(&mut self) {
        let last = self.last_index();
        let EarlyJoin::Following(changes, store) = &mut self.early else { return };
        if changes.waiting.bytes < JOIN_GROUP_BYTES || changes.at >= last {
            return;
        }
        let group = changes.waiting.take(JOIN_STEP_BYTES);
        match apply(store, changes.at, at(changes.at + 1), &group) {
            Ok(()) => {
                changes.at += 1;
                if changes.waiting.bytes >= JOIN_GROUP_BYTES {
                    self.queue.wake();
                }
                self.flush_joined();
            }
            Err(error) => {
                tracing::warn!(%error, "the rows of merged shards are joined when these have closed");
                self.give_up_early_join();
            }
        }
    }

    fn flush_joined(&mut self) {
        let EarlyJoin::Following(changes, store) = &mut self.early else { return };
        if changes.is_flushing || store.unflushed_bytes() < BASE_FLUSH_BYTES {
            return;
        }
        changes.is_flushing = true;
        let (store, generation, queue) = (Arc::clone(store), changes.generation, Arc::clone(&self.queue));
        let (compactions, shared) = (Arc::clone(&self.compactions), Arc::clone(&self.shared));
        self.tasks += 1;
        self.shared.pool.add(self.queue.key.placement, move || {
            match store.flush() {
                Ok(_) => compactions.flushed(&shared.pool, &queue, &store),
                // A failure shows when the whole base is stored.
                Err(error) => tracing::warn!(%error, "the rows of merged shards are not flushed"),
            }
            drop(store);
            queue.add(|waiting| waiting.base_done.push(BaseWork::JoinedFlushed { generation }));
        });
    }

    /// The store is flushed.
    pub(super) fn joined_flushed(&mut self, of: u64) {
        if let EarlyJoin::Following(changes, _) = &mut self.early
            && changes.generation == of
        {
            changes.is_flushing = false;
            self.flush_joined();
        }
    }

    /// All is joined when the parents have closed.
    fn give_up_early_join(&mut self) {
        self.drop_early_join();
        self.early = EarlyJoin::GivenUp;
    }

    /// A part begins anew, or all do: so does what was joined of them.
    pub(super) fn drop_early_join(&mut self) {
        match std::mem::take(&mut self.early) {
            EarlyJoin::Following(changes, store) => self.remove(changes.generation, Some(store)),
            // What a task is copying goes when that ends.
            EarlyJoin::Copying(Changes { generation, copy: Some(copy), .. }) => {
                self.remove(generation, Some(copy))
            }
            EarlyJoin::Copying(_) | EarlyJoin::Awaited | EarlyJoin::GivenUp => {}
        }
    }

    /// What is joined so far, to be finished; what is not to be used is removed.
    pub(super) fn take_early_join(&mut self) -> Option<Early> {
        match std::mem::replace(&mut self.early, EarlyJoin::GivenUp) {
            EarlyJoin::Following(Changes { generation, at, waiting, .. }, store) => {
                Some(Early { store, generation, at, waiting })
            }
            EarlyJoin::Copying(Changes { generation, copy: Some(copy), .. }) => {
                self.remove(generation, Some(copy));
                None
            }
            EarlyJoin::Awaited | EarlyJoin::Copying(_) | EarlyJoin::GivenUp => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::StoredRows;
    use crate::stored::write;
    use partage_core::keyspace::key::Key;
    use partage_core::keyspace::sharding::{PartitionKey, Sharding};
    use partage_engine::replica::{Direction, Engine, Options, Snapshot, TreeEngine};
    use partage_service::table::feed::FeedSettings;
    use partage_service::table::replication::{Entry, EntryKind};
    use partage_service::table::rows::{Action, Condition, Expiry, Operation, Request, RequestId, Write};
    use proptest::prelude::*;
    use std::path::Path;

    /// One write to one of the two parents: which, the key, whether it deletes, and the number of its request.
    type Step = (bool, u8, bool, Option<u8>);

    fn write_of(at_ms: u64, (right, key, deletes, request): Step) -> Write {
        let name = [if right { b'r' } else { b'l' }, key];
        let action = match deletes {
            true => Action::Delete,
            false => {
                Action::Put(at_ms.to_be_bytes().as_slice().into(), Expiry::At(at_ms + 500 + u64::from(key)))
            }
        };
        let (key, condition) = (Key::new(&name).unwrap(), Condition::Always);
        let request = request.map(|id| Request { id: RequestId([id; 16]), fingerprint: at_ms });
        Write { at_ms, request, operations: vec![Operation { key, condition, action, wants_former: false }] }
    }

    /// The two parents, each with how many entries it has.
    struct Parents([(StoredRows<TreeStore>, u64); 2]);

    impl Parents {
        fn open(engine: &TreeEngine, folder: &Path) -> Parents {
            let kept = FeedSettings {
                kept_ms: 50,
                sharding: Sharding::KeyRange,
                partition_key: PartitionKey::Whole,
            };
            let open = |name| {
                StoredRows::open(Arc::new(engine.open(&folder.join(name)).unwrap()), Some(kept)).unwrap()
            };
            Parents([(open("left"), 0), (open("right"), 0)])
        }

        fn write(&mut self, at_ms: u64, step: Step) -> Vec<StoredChange> {
            let (rows, index) = &mut self.0[usize::from(step.0)];
            *index += 1;
            let kind = EntryKind::Write(write::encode(&write_of(at_ms, step)).into());
            rows.apply_entry(&Entry { position: at(*index), kind }).unwrap().1
        }

        fn furthest(&self) -> u64 {
            self.0[0].1.max(self.0[1].1)
        }

        fn stores(&self) -> Vec<ParentStore> {
            self.0.iter().map(|(rows, _)| (Arc::clone(rows.store()), None)).collect()
        }
    }

    fn all(store: &TreeStore) -> Vec<(Vec<u8>, Vec<u8>)> {
        let snapshot = store.snapshot().unwrap();
        let rows = snapshot.range(None, None, Direction::Forward).map(Result::unwrap);
        rows.map(|row| (row.key.to_vec(), row.value.to_vec())).collect()
    }

    fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
        let step = (any::<bool>(), 0u8..12, prop::bool::weighted(0.2), prop::option::of(0u8..6));
        prop::collection::vec(step, 0..most)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// Whatever was written before and after the rows were copied, and however the changes came in groups.
        #[test]
        fn d1_what_is_joined_early_is_what_is_joined_in_the_end(
            before in steps(60), after in steps(60), group in 1usize..2_000,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let engine = TreeEngine::new(Options::default());
            let mut parents = Parents::open(&engine, folder.path());
            let mut time = 1_000;
            let mut tick = || { time += 7; time };
            // Each has more than one entry, as of shards that were used.
            for right in [false, true, false, true] {
                parents.write(tick(), (right, 99, false, None));
            }
            for step in before {
                parents.write(tick(), step);
            }
            let snapshots: Vec<_> = parents.stores().iter().map(|(store, _)| store.snapshot().unwrap()).collect();
            let into = folder.path().join("early");
            let mut copy = RowsCopy::begin(&engine, snapshots, &into, at(FIRST)).unwrap();
            // Some records in each step.
            while copy.step(100).unwrap().is_some() {}
            let store = copy.end().unwrap();
            let (mut index, mut waiting) = (FIRST, Waiting::default());
            for step in after {
                let changes = parents.write(tick(), step);
                let of_rows = changes.into_iter().filter(|(key, _)| joining::is_of_row(key));
                of_rows.for_each(|change| waiting.add(change));
                if waiting.bytes >= group && index < parents.furthest() - 1 {
                    apply(&store, index, at(index + 1), &waiting.take(group)).unwrap();
                    index += 1;
                }
            }
            let bytes = waiting.changes.clone().into_iter().map(|change| change_bytes(&change)).sum::<usize>();
            prop_assert_eq!(bytes, waiting.bytes);
            let end = at(parents.furthest());
            prop_assert!(add_last(&store, index, waiting, &parents.stores(), end).unwrap());
            let whole = joining::join(&engine, &parents.stores(), &folder.path().join("whole"), end).unwrap();
            prop_assert_eq!(all(&store), all(&whole));
            prop_assert_eq!(store.applied(), whole.applied());
        }
    }
}
