//! Snapshots that a follower takes: into a folder of its own, beside the rows that it has.
//!
//! Until the last chunk is on disk, the replica goes on with what it has. Then the new rows take the place of the old ones. A
//! crash leaves both folders, or one: the next start takes the complete one that is further (`node/folders.rs`). What a crash, or
//! the end of the replica, leaves of a snapshot that was not whole is kept: when a chunk of the same snapshot comes, the replica
//! says from which key on it wants the rest ([`resume`]); when one of another snapshot comes, it begins anew.
//!
//! A chunk that is stored is acknowledged when the pace of the node allows the next one ([`crate::pacing`]).

use super::LocalReplica;
use super::storage::WorkDone;
use crate::limits::SNAPSHOT_PATIENCE_MS;
use crate::node::folders::{self, PartialSnapshot};
use crate::pacing::{CopyDirection, FinishedStep};
use crate::rows::{Filling, RowsError, StoredRows};
use crate::transport::{Packet, SnapshotChunk};
use partage_core::base::id::PlacementId;
use partage_core::base::time::Millis;
use partage_engine::replica::{Engine, SharedBytes, TreeStore};
use partage_service::table::copy::resume::{self, ChunkKind, SnapshotStart};
use partage_service::table::replication::{Event, LogPosition};
use std::sync::Arc;

/// What a stored chunk leaves.
pub(crate) struct Filled {
    filling: Filling,
    /// When it was the last chunk.
    rows: Option<StoredRows<TreeStore>>,
    /// When the next chunk may be stored.
    next_step_at: Millis,
}

/// Where a snapshot went on.
struct Resumed {
    /// The number of the chunk that had come last before the first one was stored.
    number: u64,
    /// All rows up to this key were there.
    through: SharedBytes,
    /// How often the leader was told so.
    offers: u32,
}

/// A snapshot that comes.
pub(super) struct Incoming {
    from: PlacementId,
    position: LogPosition,
    generation: u64,
    /// The number of the chunk that is under way, or is wanted.
    next: u64,
    /// What was stored so far; none until the first chunk is stored.
    filling: Option<Filling>,
    is_busy: bool,
    heard: Millis,
    /// The last chunk that is stored is acknowledged then; none: it is acknowledged.
    acknowledges_at: Option<Millis>,
    resumed: Option<Resumed>,
}

impl Incoming {
    /// Whether a chunk is being stored.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// How many chunks are stored, or more: it grows with each.
    pub(super) fn stored_chunks(&self) -> u64 {
        self.next
    }

    fn chunk_kind(&self, number: u64) -> ChunkKind {
        resume::chunk_kind(self.resumed.as_ref().map(|resumed| resumed.number), self.next, number)
    }
}

impl LocalReplica {
    /// Takes in a chunk that another replica sends: stores it if it is the next one, or answers what that replica is to do.
    pub(super) fn take_chunk(&mut self, from: PlacementId, chunk: SnapshotChunk) {
        let now = self.shared.clock.now();
        let position = chunk.position;
        // Nothing could be answered: no order has said yet on which node the other replica is.
        if self.order.is_none() {
            return;
        }
        if !self.machine.takes_snapshot(position) {
            return self.send(from, Packet::Useless { position });
        }
        if self.incoming.is_none() && self.resume(now, from, &chunk) {
            return;
        }
        match &mut self.incoming {
            Some(incoming) if (incoming.from, incoming.position) == (from, position) => {
                incoming.heard = now;
                match incoming.chunk_kind(chunk.number) {
                    ChunkKind::Stored if incoming.acknowledges_at.is_some() => return,
                    ChunkKind::Stored => {
                        return self.send(from, Packet::Stored { position, number: chunk.number });
                    }
                    ChunkKind::Next | ChunkKind::BeforeResume | ChunkKind::Other if incoming.is_busy => {
                        return;
                    }
                    ChunkKind::Next => {}
                    ChunkKind::BeforeResume => return self.resume_again(from, position, chunk.number),
                    // The leader has lost what it sent, and begins anew, or the chunk is late: that cannot be told apart.
                    ChunkKind::Other => {
                        self.give_up_filling();
                        if chunk.number > 0 {
                            return self.send(from, Packet::Useless { position });
                        }
                        self.begin_filling(from, position, now);
                    }
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

    /// If the chunk is of the snapshot of which a part was stored before the replica was opened, it goes on with that. Says
    /// whether it does: the chunk is of no use then.
    fn resume(&mut self, now: Millis, from: PlacementId, chunk: &SnapshotChunk) -> bool {
        let stored = self.partial.as_ref().map(|partial| partial.position);
        if resume::begins(stored, chunk.position) == SnapshotStart::Anew {
            return false;
        }
        let Some(PartialSnapshot { generation, store, position, through }) = self.partial.take() else {
            return false;
        };
        let number = chunk.number;
        self.incoming = Some(Incoming {
            from,
            position,
            generation,
            next: resume::number_behind(number),
            filling: Some(Filling::resume(store)),
            is_busy: false,
            heard: now,
            acknowledges_at: None,
            resumed: Some(Resumed { number, through: through.clone(), offers: 1 }),
        });
        self.shared.pacing.resumes();
        self.send(from, Packet::Resumed { position, number, through });
        true
    }

    /// A chunk comes of a sending that does not know yet from where on the rest is wanted, of which nothing is stored.
    fn resume_again(&mut self, from: PlacementId, position: LogPosition, number: u64) {
        let Some(incoming) = &mut self.incoming else { return };
        match incoming.resumed.as_mut().filter(|resumed| resume::offers_again(resumed.offers)) {
            Some(resumed) => {
                resumed.offers += 1;
                resumed.number = number;
                incoming.next = resume::number_behind(number);
                let through = resumed.through.clone();
                self.send(from, Packet::Resumed { position, number, through });
            }
            None => {
                self.give_up_filling();
                self.send(from, Packet::Useless { position });
            }
        }
    }

    fn begin_filling(&mut self, from: PlacementId, position: LogPosition, now: Millis) {
        self.drop_partial();
        let generation = self.next_generation;
        self.next_generation += 1;
        self.incoming = Some(Incoming {
            from,
            position,
            generation,
            next: 0,
            filling: None,
            is_busy: false,
            heard: now,
            acknowledges_at: None,
            resumed: None,
        });
    }

    fn give_up_filling(&mut self) {
        if let Some(Incoming { generation, filling, .. }) = self.incoming.take() {
            self.remove_folder(generation, filling);
        }
    }

    fn drop_partial(&mut self) {
        if let Some(PartialSnapshot { generation, store, .. }) = self.partial.take() {
            self.remove_folder(generation, Some(store));
        }
    }

    fn fill(&mut self, chunk: SnapshotChunk) {
        let Some(incoming) = &mut self.incoming else { return };
        incoming.is_busy = true;
        let generation = incoming.generation;
        let folder = folders::of(&self.shared.folder, &self.queue.key, generation);
        let (filling, feed) = (incoming.filling.take(), self.replica_settings.feed());
        let (shared, queue) = (Arc::clone(&self.shared), Arc::clone(&self.queue));
        self.shared.pool.add(self.queue.key.placement, move || {
            let SnapshotChunk { position, number, rows, is_last, urgency } = chunk;
            let began_us = shared.pacing.now_us();
            let bytes: usize = rows.iter().map(|row| row.key.len() + row.value.len()).sum();
            let fill = || -> Result<_, RowsError> {
                let mut filling = match filling {
                    Some(filling) => filling,
                    None => Filling::begin(&shared.engine, &folder)?,
                };
                rows.iter().cloned().try_for_each(|row| filling.add(position, row))?;
                if !is_last {
                    return Ok((filling, None));
                }
                filling.end(position)?;
                let rows = StoredRows::open(Arc::clone(filling.store()), feed)?;
                Ok((filling, Some(rows)))
            };
            let filled = fill();
            let copied = CopyDirection::In;
            let next_step_at =
                shared.pacing.done(FinishedStep { began_us, bytes, rows: bytes, copied, urgency });
            let result = filled.map(|(filling, rows)| Filled { filling, rows, next_step_at });
            queue.add(|waiting| waiting.done.push(WorkDone::Filled { generation, position, number, result }));
        });
    }

    /// A chunk is stored.
    pub(super) fn filled(
        &mut self,
        generation: u64,
        position: LogPosition,
        number: u64,
        result: Result<Filled, RowsError>,
    ) {
        let now = self.shared.clock.now();
        // What was given up is removed already.
        let is_it = |one: &&mut Incoming| one.generation == generation;
        let Some(incoming) = self.incoming.as_mut().filter(is_it) else { return };
        incoming.is_busy = false;
        let from = incoming.from;
        match result {
            Ok(Filled { filling, rows, next_step_at }) => {
                incoming.next = number + 1;
                incoming.filling = Some(filling);
                if rows.is_none() && now < next_step_at {
                    incoming.acknowledges_at = Some(next_step_at);
                    return;
                }
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

    /// When a chunk that is stored is to be acknowledged.
    pub(super) fn filling_wakes_at(&self) -> Millis {
        self.incoming.as_ref().and_then(|incoming| incoming.acknowledges_at).unwrap_or(Millis::NEVER)
    }

    /// Acknowledges a chunk whose time has come, and removes what is of no use any more.
    pub(super) fn tend_filling(&mut self, now: Millis) {
        if self.partial.as_ref().is_some_and(|partial| !self.machine.takes_snapshot(partial.position)) {
            self.drop_partial();
        }
        let is_due = |incoming: &&mut Incoming| incoming.acknowledges_at.is_some_and(|at| now >= at);
        let Some(incoming) = self.incoming.as_mut().filter(is_due) else { return };
        incoming.acknowledges_at = None;
        let (from, position, number) = (incoming.from, incoming.position, incoming.next - 1);
        self.send(from, Packet::Stored { position, number });
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
        self.children.reset();
        // They read what is removed now: children ask again.
        self.outgoing.clear();
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
