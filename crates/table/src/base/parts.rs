//! What the parents of a child give to one of its replicas: a store for each parent, filled with a snapshot, which later changes
//! are applied to.
//!
//! The positions of such a store are the parent's indexes under epoch 0, as the log of the child begins there. Behind the entry
//! that ends the parent's log nothing changes, so a store is never further than that.

use super::{BaseWork, LocalBase, State};
use crate::limits::BASE_FLUSH_BYTES;
use crate::node::folders;
use crate::pacing::{CopyDirection, FinishedStep};
use crate::rows::{Filling, RowsError};
use crate::transport::{Packet, ParentGiven, SnapshotChunk, StoredChange};
use partage_core::base::id::{Epoch, PlacementId, ShardId};
use partage_core::base::time::Millis;
use partage_engine::replica::{Change, Store, TreeStore};
use partage_service::table::copy::deadline::Urgency;
use partage_service::table::replication::LogPosition;
use partage_service::table::split::{Given, GivenExtent, Taken};
use std::sync::Arc;

/// What one parent had.
pub(super) struct Part {
    pub(super) store: Arc<TreeStore>,
    pub(super) generation: u64,
    /// Up to which entry of the parent's log.
    pub(super) at: u64,
    is_flushing: bool,
}

/// A snapshot that a parent's replica sends.
pub(super) struct IncomingPart {
    given: Given,
    from: PlacementId,
    position: LogPosition,
    pub(super) generation: u64,
    /// The number of the chunk that is under way, or is wanted.
    next: u64,
    /// None until the first chunk is stored, and while one is.
    pub(super) filling: Option<Filling>,
    is_busy: bool,
    /// The last chunk that is stored is acknowledged then; none: it is acknowledged.
    acknowledges_at: Option<Millis>,
}

pub(super) fn at(index: u64) -> LogPosition {
    LogPosition { epoch: Epoch(0), index }
}

/// Up to where what was given is of use.
pub(super) fn useful(given: &Given) -> u64 {
    let to = given.what.to().index;
    given.closed.map_or(to, |closed| to.min(closed.index))
}

impl LocalBase {
    /// A parent's replica answers.
    pub(super) fn take_given(&mut self, from: PlacementId, ParentGiven { given, changes }: ParentGiven) {
        if !matches!(self.state, State::Taking) {
            return;
        }
        match given.what {
            GivenExtent::Snapshot(position) => self.begin_part(from, position, given),
            GivenExtent::Changes { after, to } if after == to && self.base.is_aside(&given) => {
                let (_, effects) = self.base.take(self.shared.clock.now(), &given);
                self.carry_out(effects);
            }
            GivenExtent::Changes { .. } if self.base.is_aside(&given) => {
                self.put_aside(ParentGiven { given, changes })
            }
            GivenExtent::Changes { .. } => self.take_changes(&given, &changes),
        }
    }

    fn begin_part(&mut self, from: PlacementId, position: LogPosition, given: Given) {
        let parent = given.parent;
        if let Some(known) = self.incoming.get(&parent) {
            if known.is_busy || (known.from, known.position) == (from, position) {
                return;
            }
            let generation = known.generation;
            let former = self.incoming.remove(&parent);
            self.remove(generation, former.and_then(|former| former.filling));
        }
        let generation = self.next_generation;
        self.next_generation += 1;
        let incoming = IncomingPart {
            given,
            from,
            position,
            generation,
            next: 0,
            filling: None,
            is_busy: false,
            acknowledges_at: None,
        };
        self.incoming.insert(parent, incoming);
        self.base.snapshot_begins(self.shared.clock.now(), parent);
    }

    /// A chunk of a snapshot comes.
    pub(super) fn take_chunk(&mut self, from: PlacementId, chunk: SnapshotChunk) {
        let position = chunk.position;
        if !matches!(self.state, State::Taking) {
            return self.send_to_parent(from, Packet::Useless { position });
        }
        let is_it = |one: &&mut IncomingPart| (one.from, one.position) == (from, position);
        let Some(incoming) = self.incoming.values_mut().find(is_it) else {
            return self.send_to_parent(from, Packet::Useless { position });
        };
        let (parent, number) = (incoming.given.parent, chunk.number);
        self.base.snapshot_progressed(self.shared.clock.now(), parent);
        if incoming.acknowledges_at.is_some() {
            return;
        }
        if number < incoming.next {
            return self.send_to_parent(from, Packet::Stored { position, number });
        }
        if number == incoming.next && !incoming.is_busy {
            let given = incoming.given;
            if number == 0 {
                self.begin_aside(parent, &given);
            }
            self.fill(parent, chunk);
        }
    }

    fn fill(&mut self, parent: ShardId, chunk: SnapshotChunk) {
        let Some(incoming) = self.incoming.get_mut(&parent) else { return };
        incoming.is_busy = true;
        let (filling, generation) = (incoming.filling.take(), incoming.generation);
        let (position, from) = (at(useful(&incoming.given)), incoming.from);
        let folder = folders::of(&self.shared.folder, &self.queue.key, generation);
        let (shared, queue) = (Arc::clone(&self.shared), Arc::clone(&self.queue));
        let serves = self.order.in_sync;
        // On the own node the parent's replica counts them.
        let copied = if self.is_here(from) { CopyDirection::Within } else { CopyDirection::In };
        self.tasks += 1;
        self.shared.pool.add(self.queue.key.placement, move || {
            let SnapshotChunk { number, rows, is_last, urgency, .. } = chunk;
            // After the switch clients wait for it.
            let urgency = if serves { urgency.max(Urgency::Pressed) } else { urgency };
            let began_us = shared.pacing.now_us();
            let bytes: usize = rows.iter().map(|row| row.key.len() + row.value.len()).sum();
            let fill = || -> Result<Filling, RowsError> {
                let mut filling = match filling {
                    Some(filling) => filling,
                    None => Filling::begin(&shared.engine, &folder)?,
                };
                // A parent that has applied nothing has no rows, and its part no position.
                if position.index > 0 {
                    rows.iter().cloned().try_for_each(|row| filling.add(position, row))?;
                    if is_last {
                        filling.end(position)?;
                    }
                }
                Ok(filling)
            };
            let filled = fill();
            let next_step_at =
                shared.pacing.done(FinishedStep { began_us, bytes, rows: bytes, copied, urgency });
            let result = filled.map(|filling| (filling, next_step_at));
            let done = BaseWork::Filled { parent, generation, number, is_last, result };
            queue.add(|waiting| waiting.base_done.push(done));
        });
    }

    /// A chunk is stored.
    pub(super) fn filled(
        &mut self,
        parent: ShardId,
        generation: u64,
        number: u64,
        is_last: bool,
        result: Result<(Filling, Millis), RowsError>,
    ) {
        let is_it = |one: &&mut IncomingPart| one.generation == generation;
        // What was given up is removed already.
        let Some(incoming) = self.incoming.get_mut(&parent).filter(is_it) else { return };
        incoming.is_busy = false;
        let (filling, next_step_at) = match result {
            Ok(filled) => filled,
            Err(error) => return self.begin_anew(&error.to_string()),
        };
        let store = Arc::clone(filling.store());
        incoming.next = number + 1;
        incoming.filling = Some(filling);
        let (from, position, now) = (incoming.from, incoming.position, self.shared.clock.now());
        self.queue.figures.step();
        if !is_last && now < next_step_at {
            incoming.acknowledges_at = Some(next_step_at);
            return self.base.snapshot_progressed(now, parent);
        }
        self.base.snapshot_progressed(now, parent);
        self.send_to_parent(from, Packet::Stored { position, number });
        if is_last && let Some(incoming) = self.incoming.remove(&parent) {
            self.has_part(parent, &incoming.given, generation, store);
        }
    }

    /// When a chunk that is stored is to be acknowledged.
    pub(super) fn acknowledges_at(&self) -> Millis {
        self.incoming.values().filter_map(|one| one.acknowledges_at).min().unwrap_or(Millis::NEVER)
    }

    /// Acknowledges chunks whose time has come.
    pub(super) fn acknowledge(&mut self, now: Millis) {
        let mut due = Vec::new();
        for incoming in self.incoming.values_mut() {
            if incoming.acknowledges_at.is_some_and(|at| now >= at) {
                incoming.acknowledges_at = None;
                due.push((incoming.from, incoming.position, incoming.next - 1));
            }
        }
        for (from, position, number) in due {
            self.send_to_parent(from, Packet::Stored { position, number });
        }
    }

    /// A snapshot is there as a whole.
    fn has_part(&mut self, parent: ShardId, given: &Given, generation: u64, store: Arc<TreeStore>) {
        let (taken, effects) = self.base.take(self.shared.clock.now(), given);
        if taken == Taken::Replaces {
            let part = Part { store, generation, at: useful(given), is_flushing: false };
            if let Some(former) = self.parts.insert(parent, part) {
                self.remove(former.generation, Some(former.store));
                self.drop_early_join();
            }
        } else {
            self.remove(generation, Some(store));
            // What waits for a snapshot of another replica, which is being copied or is here, is kept.
            if !self.base.is_copying(parent) {
                self.drop_aside(parent);
            }
        }
        self.carry_out(effects);
        if taken == Taken::Replaces {
            self.part_is_whole(parent);
        }
    }

    fn take_changes(&mut self, given: &Given, changes: &[StoredChange]) {
        let (taken, effects) = self.base.take(self.shared.clock.now(), given);
        if taken == Taken::Follows
            && let Err(error) = self.apply(given, changes)
        {
            return self.begin_anew(&error.to_string());
        }
        self.carry_out(effects);
    }

    fn apply(&mut self, given: &Given, changes: &[StoredChange]) -> Result<(), RowsError> {
        let to = useful(given);
        let Some(part) = self.parts.get_mut(&given.parent).filter(|part| part.at < to) else { return Ok(()) };
        let borrowed: Vec<Change<'_>> =
            changes.iter().map(|(key, value)| Change { key, value: value.as_deref() }).collect();
        part.store.apply(at(part.at), at(to), &borrowed)?;
        part.at = to;
        self.queue.figures.step();
        if part.store.unflushed_bytes() >= BASE_FLUSH_BYTES {
            self.flush(given.parent);
        }
        self.change_joined(changes);
        Ok(())
    }

    /// Flushes a part while more is applied to it. A failure shows when the whole base is stored.
    fn flush(&mut self, parent: ShardId) {
        let Some(part) = self.parts.get_mut(&parent).filter(|part| !part.is_flushing) else { return };
        part.is_flushing = true;
        let (store, generation, queue) = (Arc::clone(&part.store), part.generation, Arc::clone(&self.queue));
        let (compactions, shared) = (Arc::clone(&self.compactions), Arc::clone(&self.shared));
        self.tasks += 1;
        self.shared.pool.add(self.queue.key.placement, move || {
            match store.flush() {
                Ok(_) => compactions.flushed(&shared.pool, &queue, &store),
                Err(error) => tracing::warn!(%error, "what a child took of a parent is not flushed"),
            }
            drop(store);
            queue.add(|waiting| waiting.base_done.push(BaseWork::Flushed { parent, generation }));
        });
    }

    /// A part is flushed.
    pub(super) fn flushed(&mut self, parent: ShardId, generation: u64) {
        if let Some(part) = self.parts.get_mut(&parent).filter(|part| part.generation == generation) {
            part.is_flushing = false;
        }
    }
}
