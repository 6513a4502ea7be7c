//! Snapshots that a follower takes: into a folder of its own, beside the rows that it has.
//!
//! Until the last chunk is on disk, the replica goes on with what it has. Then the new rows take the place of the old ones. A
//! crash leaves both folders, or one: the next start takes the complete one that is further (`node/folders.rs`). A snapshot that
//! a crash has interrupted is begun anew.

use super::LocalReplica;
use super::storage::WorkDone;
use crate::limits::SNAPSHOT_PATIENCE_MS;
use crate::node::folders;
use crate::rows::{Filling, RowsError, StoredRows};
use crate::transport::{Packet, SnapshotChunk};
use partage_core::base::id::PlacementId;
use partage_core::base::time::Millis;
use partage_engine::replica::{Engine, TreeStore};
use partage_service::table::replication::{Event, LogPosition};
use std::sync::Arc;

/// What a stored chunk leaves.
pub(crate) struct Filled {
    filling: Filling,
    /// When it was the last chunk.
    rows: Option<StoredRows<TreeStore>>,
}

/// A snapshot that comes.
pub(super) struct Incoming {
    from: PlacementId,
    position: LogPosition,
    generation: u64,
    /// The number of the chunk that is under way, or is wanted.
    next: u64,
    /// None until the first chunk is stored.
    filling: Option<Filling>,
    is_busy: bool,
    heard: Millis,
}

impl Incoming {
    /// Whether a chunk is being stored.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// How many chunks are stored.
    pub(super) fn stored_chunks(&self) -> u64 {
        self.next
    }
}

impl LocalReplica {
    /// A chunk comes.
    pub(super) fn take_chunk(&mut self, from: PlacementId, chunk: SnapshotChunk) {
        let now = self.shared.clock.now();
        let position = chunk.position;
        if !self.machine.takes_snapshot(position) {
            return self.send(from, Packet::Useless { position });
        }
        match &mut self.incoming {
            Some(incoming) if (incoming.from, incoming.position) == (from, position) => {
                incoming.heard = now;
                if chunk.number < incoming.next {
                    let number = chunk.number;
                    return self.send(from, Packet::Stored { position, number });
                }
                if chunk.number > incoming.next || incoming.is_busy {
                    return;
                }
            }
            // Another one goes on until it is not heard of any more, or is behind this one.
            Some(other) => {
                let is_over = position > other.position || now >= other.heard + SNAPSHOT_PATIENCE_MS;
                if other.is_busy || !is_over || chunk.number > 0 {
                    return;
                }
                self.give_up_filling();
                self.begin_filling(from, position, now);
            }
            None if chunk.number > 0 => return self.send(from, Packet::Useless { position }),
            None => self.begin_filling(from, position, now),
        }
        self.fill(chunk);
    }

    fn begin_filling(&mut self, from: PlacementId, position: LogPosition, now: Millis) {
        let generation = self.next_generation;
        self.next_generation += 1;
        self.incoming =
            Some(Incoming { from, position, generation, next: 0, filling: None, is_busy: false, heard: now });
    }

    fn give_up_filling(&mut self) {
        if let Some(Incoming { generation, filling, .. }) = self.incoming.take() {
            self.remove_folder(generation, filling);
        }
    }

    fn fill(&mut self, chunk: SnapshotChunk) {
        let Some(incoming) = &mut self.incoming else { return };
        incoming.is_busy = true;
        let folder = folders::of(&self.shared.folder, &self.queue.key, incoming.generation);
        let (filling, engine, feed) =
            (incoming.filling.take(), self.shared.engine.clone(), self.replica_settings.feed());
        let queue = Arc::clone(&self.queue);
        self.shared.pool.add(self.queue.key.placement, move || {
            let SnapshotChunk { position, number, rows, is_last } = chunk;
            let fill = || {
                let mut filling = match filling {
                    Some(filling) => filling,
                    None => Filling::begin(&engine, &folder)?,
                };
                rows.iter().cloned().try_for_each(|row| filling.add(position, row))?;
                if !is_last {
                    return Ok(Filled { filling, rows: None });
                }
                filling.end(position)?;
                let rows = StoredRows::open(Arc::clone(filling.store()), feed)?;
                Ok(Filled { filling, rows: Some(rows) })
            };
            let result = fill();
            queue.add(|waiting| waiting.done.push(WorkDone::Filled { position, number, result }));
        });
    }

    /// A chunk is stored.
    pub(super) fn filled(&mut self, position: LogPosition, number: u64, result: Result<Filled, RowsError>) {
        let Some(incoming) = &mut self.incoming else { return };
        incoming.is_busy = false;
        let from = incoming.from;
        match result {
            Ok(Filled { filling, rows }) => {
                incoming.next = number + 1;
                incoming.filling = Some(filling);
                self.send(from, Packet::Stored { position, number });
                if let Some(rows) = rows {
                    self.install(position, rows);
                }
            }
            // What the replica has is as it was.
            Err(error) => {
                tracing::warn!(replica = ?self.queue.key, %error, "a snapshot was not stored, and is given up");
                self.give_up_filling();
                self.send(from, Packet::Useless { position });
            }
        }
    }

    /// The snapshot is on disk, as a whole.
    fn install(&mut self, position: LogPosition, rows: StoredRows<TreeStore>) {
        if !self.takes_part() || !self.machine.takes_snapshot(position) {
            drop(rows);
            return self.give_up_filling();
        }
        let Some(incoming) = self.incoming.take() else { return };
        self.queue.direct.set_rows(Some(rows.for_readers()));
        let former = std::mem::replace(&mut self.rows, rows);
        let generation = std::mem::replace(&mut self.generation, incoming.generation);
        let store = Arc::clone(former.store());
        drop(former);
        self.remove_folder(generation, Some(store));
        self.giving.replaced();
        self.has_room();
        self.hear(Event::Installed(position));
    }

    /// Removes a folder, after all that was to be done with its store.
    fn remove_folder<S: Send + 'static>(&self, generation: u64, store: Option<S>) {
        let folder = folders::of(&self.shared.folder, &self.queue.key, generation);
        let engine = self.shared.engine.clone();
        self.shared.pool.add(self.queue.key.placement, move || {
            drop(store);
            if let Err(error) = engine.remove(&folder) {
                tracing::warn!(%error, "the rows that a snapshot has replaced are not removed; the next start does");
            }
        });
    }
}
