//! What a replica does with its store: it applies entries, flushes, and closes it.

use super::filling::Filled;
use super::requests::{Stopped, refuse};
use super::sending::Exported;
use super::{LocalReplica, State};
use crate::limits::{CLOSE_FLUSH_BYTES, FLUSH_AGAIN_MS, MEDIAN_ENTRIES, SLOW_APPLY, SLOW_ENTRY, SLOW_MS};
use crate::node::Shared;
use crate::notice::Notice;
use crate::registry::{ClosedReplica, Presence};
use crate::rows::RowsError;
use crate::stored::keys;
use crate::timing::seconds;
use partage_core::base::id::PlacementId;
use partage_core::keyspace::key::Key;
use partage_engine::replica::{Direction, Snapshot, Store, TreeStore};
use partage_service::table::replication::{Entry, Event, LogPosition};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::oneshot;

/// A task of the pool is done.
pub(crate) enum WorkDone {
    /// The store of that generation is flushed.
    Flushed { generation: u64, result: Result<LogPosition, RowsError> },
    /// A chunk of a snapshot for that replica is read.
    Exported { to: PlacementId, position: LogPosition, number: u64, result: Result<Exported, RowsError> },
    /// A chunk of a snapshot is stored.
    Filled { generation: u64, position: LogPosition, number: u64, result: Result<Filled, RowsError> },
}

/// How far a replica is that is being closed.
#[derive(Debug)]
pub(super) struct Closing {
    /// The callers that wait until the replica is closed.
    answers: Vec<oneshot::Sender<()>>,
    has_flushed: bool,
    has_trimmed: bool,
    is_done: bool,
}

impl Closing {
    pub(super) fn new() -> Closing {
        Closing { answers: Vec::new(), has_flushed: false, has_trimmed: false, is_done: false }
    }

    /// Adds a caller that waits: the service calls again when closing takes long.
    pub(super) fn add(&mut self, answer: oneshot::Sender<()>) {
        self.answers.retain(|answer| !answer.is_closed());
        self.answers.push(answer);
    }
}

impl LocalReplica {
    /// Applies entries, and keeps the outcomes of writes until the machine answers these.
    pub(super) fn apply(&mut self, entries: &[Entry]) {
        let keeps = self.requests.has_writes();
        let (began, mut newest) = (self.shared.clock.nanos(), None);
        if let Some(last) = entries.last() {
            self.logging.committed(last.position.index, &self.shared.times, began, keeps);
        }
        for entry in entries {
            match self.rows.apply_entry(entry) {
                Ok((outcome, changes)) => {
                    if let Some(outcome) = outcome.filter(|_| keeps) {
                        self.requests.keep(entry.position, outcome, self.settings.in_flight_entries);
                    }
                    newest = changes
                        .iter()
                        .any(|(key, value)| keys::is_change(key) && value.is_some())
                        .then_some(entry.position)
                        .or(newest);
                    self.keep_for_children(entry.position, changes);
                    if let Some(check) = self.rows.take_check() {
                        self.begin_check(check);
                    }
                }
                Err(error) => return self.stop(&error),
            }
        }
        let forgotten_early = self.rows.take_forgotten_early();
        if forgotten_early > 0 {
            self.shared.forgotten_early.fetch_add(forgotten_early, Ordering::Relaxed);
        }
        let ended = self.shared.clock.nanos();
        self.shared.times.apply.observe(seconds(began, ended));
        let most = SLOW_APPLY + SLOW_ENTRY * u32::try_from(entries.len()).unwrap_or(u32::MAX);
        if Duration::from_nanos(ended.saturating_sub(began)) >= most {
            self.is_slow_until = self.shared.clock.now() + SLOW_MS;
        }
        if let Some(newest) = newest {
            self.shared.newest_changes.applied(&self.queue.key, newest);
        }
        self.tell_children();
    }

    /// The store has failed.
    pub(super) fn stop(&mut self, error: &RowsError) {
        if error.is_damage() {
            return self.stop_damaged(error.to_string());
        }
        if matches!(self.state, State::Running) {
            let why = error.to_string();
            self.state = State::Failed(why.clone());
            self.publish_reads();
            self.outgoing.clear();
            self.requests.end(&Stopped::Failed(why.clone()));
            self.tell_owner(|key| Notice::Failed(key, why));
        }
    }

    /// A task of the pool is done.
    pub(super) fn work_done(&mut self, done: WorkDone) {
        match done {
            WorkDone::Flushed { generation, result } => {
                self.is_flushing = false;
                match result {
                    // The rows came as a snapshot meanwhile.
                    _ if generation != self.generation => {}
                    Ok(position) if matches!(self.state, State::Running) => {
                        self.has_room();
                        self.shared.registry.flush_holding();
                        self.tell_machine(Event::Flushed(position));
                        compact_later(
                            &self.shared,
                            self.queue.key.placement,
                            Arc::downgrade(self.rows.store()),
                        );
                    }
                    Ok(_) => {}
                    // The rows are in memory and in the log as before.
                    Err(error) if error.is_no_room() => {
                        self.flush_again = Some(self.shared.clock.now() + FLUSH_AGAIN_MS);
                        self.shared.registry.store_is_full(&self.queue.key, &error.to_string());
                    }
                    Err(error) => self.stop(&error),
                }
            }
            WorkDone::Exported { to, position, number, result } => {
                self.exported(to, position, number, result)
            }
            WorkDone::Filled { generation, position, number, result } => {
                self.filled(generation, position, number, result);
            }
        }
    }

    /// Flushes when there is much to flush, or the log waits for it, or the replica is closed.
    pub(super) fn tend_storage(&mut self) {
        if self.closing.is_some() {
            return self.tend_closing();
        }
        let waits_for_room = self.flush_again.is_some_and(|at| self.shared.clock.now() < at);
        if self.is_flushing || waits_for_room || !self.takes_part() {
            return;
        }
        self.wants_trim |= self.trims_after_copies && !self.machine.keeps_for_copies(self.shared.clock.now());
        self.trims_after_copies &= !self.wants_trim;
        let store = self.rows.store();
        if self.wants_trim && store.flushed() == store.applied() {
            self.wants_trim = false;
            self.trim();
        } else if self.wants_trim
            || self.flush_again.is_some()
            || store.unflushed_bytes() >= self.shared.settings.flush_bytes
        {
            self.flush();
        }
    }

    /// Trims the log. Entries that copies of rows need go when the copies have ended, or at once if there is no room at all.
    fn trim(&mut self) {
        if self.shared.registry.is_full() {
            self.machine.end_copies();
        }
        self.hear(Event::Trim);
        self.trims_after_copies = self.machine.keeps_for_copies(self.shared.clock.now());
    }

    /// What the store had in memory is on disk, or another store has taken its place.
    pub(super) fn has_room(&mut self) {
        if self.flush_again.take().is_some() {
            self.shared.registry.store_has_room(&self.queue.key);
        }
    }

    fn flush(&mut self) {
        self.is_flushing = true;
        let (store, queue, generation) =
            (Arc::clone(self.rows.store()), Arc::clone(&self.queue), self.generation);
        self.shared.pool.add(self.queue.key.placement, move || {
            let result = store.flush().map_err(RowsError::from);
            drop(store);
            queue.add(|waiting| waiting.done.push(WorkDone::Flushed { generation, result }));
        });
    }

    /// Looks for a key that halves the rows. A store that cannot be read shows at the next read.
    pub(super) fn median(&self, answer: oneshot::Sender<Option<Key>>) {
        let store = Arc::clone(self.rows.store());
        self.shared.pool.add(self.queue.key.placement, move || {
            let median = store.median().ok().flatten();
            let median = median.and_then(|stored| row_near(&*store, &stored));
            // The caller may have gone.
            let _ = answer.send(median);
        });
    }

    fn tend_closing(&mut self) {
        let Some(closing) = &mut self.closing else { return };
        let is_filling = self.incoming.as_ref().is_some_and(|incoming| incoming.is_busy());
        if self.is_flushing || is_filling || closing.is_done {
            return;
        }
        let is_running = matches!(self.state, State::Running);
        let store = self.rows.store();
        let is_much = store.unflushed_bytes() >= CLOSE_FLUSH_BYTES || self.wants_trim;
        if is_running && !closing.has_flushed && is_much && store.applied() != store.flushed() {
            closing.has_flushed = true;
            return self.flush();
        }
        if is_running && !closing.has_trimmed {
            closing.has_trimmed = true;
            self.machine.end_copies();
            self.tell_machine(Event::Trim);
            self.note_committed_at_the_end();
        }
        if let Some(closing) = self.closing.as_mut().filter(|_| self.logging.is_synced()) {
            closing.is_done = true;
        }
    }

    /// Whether it is closed, and may be released.
    pub(super) fn is_closed(&self) -> bool {
        self.closing.as_ref().is_some_and(|closing| closing.is_done)
    }

    /// Releases everything, and leaves what is on disk to the registry.
    pub(crate) fn release(mut self) {
        let answers = self.closing.take().map(|closing| closing.answers).unwrap_or_default();
        let LocalReplica {
            queue,
            shared,
            machine,
            rows,
            incoming,
            outgoing,
            partial,
            state,
            wants_trim,
            trims_after_copies,
            ..
        } = self;
        let settings = self.replica_settings;
        let presence = match (state, machine.damage()) {
            (State::Damaged(why), _) => Presence::Damaged(why),
            (_, Some(damage)) => Presence::Damaged(damage.to_string()),
            _ => {
                let stored = machine.stored(rows.store().flushed());
                Presence::Stored(Box::new(ClosedReplica { stored, settings: Some(settings) }))
            }
        };
        // The folder may be opened again as soon as the answer is there.
        queue.direct.publish(None);
        queue.direct.set_rows(None);
        drop((rows, incoming, outgoing, partial));
        shared.newest_changes.forget(&queue.key);
        let waiting = queue.close();
        let holds_log = wants_trim || trims_after_copies || waiting.holds_log;
        refuse(waiting, &Stopped::Closed);
        if shared.registry.ended().is_none() {
            shared.registry.closed(&queue.key, presence);
            // The log may have asked in between.
            if shared.registry.holds_no_more(&queue.key) || holds_log {
                shared.registry.holds_log(queue.key.clone());
            }
        }
        for answer in answers {
            // The caller may have gone.
            let _ = answer.send(());
        }
    }
}

/// The key of a row near the middle of all rows, by a record near the middle of all records. Where that is an entry of an index,
/// its neighbours have rows that are spread over the shard, unless the values follow the keys.
fn row_near<S: Store>(store: &S, stored: &[u8]) -> Option<Key> {
    if let Some(key) = keys::parse_row(stored) {
        return Some(key);
    }
    let snapshot = store.snapshot().ok()?;
    let records = snapshot.range(Some(stored), None, Direction::Forward).take(MEDIAN_ENTRIES);
    let mut rows: Vec<Vec<u8>> =
        records.filter_map(|record| keys::row_of(&record.ok()?.key).map(<[u8]>::to_vec)).collect();
    rows.sort();
    Key::new(rows.get(rows.len() / 2)?).ok()
}

/// Compacts step by step, so that other tasks get their turn. A store that is closed is left as it is.
pub(crate) fn compact_later(shared: &Arc<Shared>, placement: PlacementId, store: Weak<TreeStore>) {
    let again = Arc::downgrade(shared);
    shared.pool.add_compaction(placement, move || {
        let Some(open) = store.upgrade() else { return };
        // A failure is told by the next flush.
        if matches!(open.compact(), Ok(true))
            && let Some(shared) = again.upgrade()
        {
            drop(open);
            compact_later(&shared, placement, store);
        }
    });
}
