//! Snapshots that a leader sends: one chunk at a time, each again until the follower has stored it.
//!
//! A snapshot that is given up is begun anew when the machine asks for it again. What was not done: a limit of bytes a second;
//! one chunk for each round trip is one.

use super::LocalReplica;
use super::storage::WorkDone;
use crate::limits::{CHUNK_BYTES, CHUNK_RESEND_MS, SNAPSHOT_PATIENCE_MS, SNAPSHOTS_SENT};
use crate::rows::RowsError;
use crate::transport::{Packet, SnapshotChunk};
use partage_core::base::id::PlacementId;
use partage_core::base::time::Millis;
use partage_core::service::table::replication::LogPosition;
use partage_engine::replica::{Chunk, SharedBytes, Snapshot, Store, TreeSnapshot};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One of the snapshots that a node may send at a time.
#[derive(Debug)]
struct Permit(Arc<AtomicUsize>);

impl Permit {
    fn take(sent: &Arc<AtomicUsize>) -> Option<Permit> {
        let one_more = |sent| (sent < SNAPSHOTS_SENT).then_some(sent + 1);
        sent.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(Permit(Arc::clone(sent)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A snapshot that is sent.
pub(super) struct Outgoing {
    position: LogPosition,
    snapshot: Arc<TreeSnapshot>,
    /// Of the chunk that is under way.
    number: u64,
    /// None while it is read.
    chunk: Option<SnapshotChunk>,
    /// Where the next one begins.
    next: Option<SharedBytes>,
    sent: Millis,
    heard: Millis,
    _permit: Permit,
}

impl LocalReplica {
    /// The follower needs a snapshot.
    pub(super) fn begin_snapshot(&mut self, now: Millis, to: PlacementId) {
        if self.outgoing.contains_key(&to) {
            return;
        }
        let Some(permit) = Permit::take(&self.shared.snapshots_sent) else { return };
        let snapshot = match self.rows.store().snapshot() {
            Ok(snapshot) => Arc::new(snapshot),
            Err(error) => return self.stop(&error.into()),
        };
        let position = snapshot.position();
        if position == LogPosition::default() {
            return;
        }
        let (chunk, next) = (None, None);
        let outgoing =
            Outgoing { position, snapshot, number: 0, chunk, next, sent: now, heard: now, _permit: permit };
        self.outgoing.insert(to, outgoing);
        self.export(to);
    }

    /// Reads the next chunk.
    fn export(&mut self, to: PlacementId) {
        let Some(outgoing) = self.outgoing.get_mut(&to) else { return };
        let (position, number, from) = (outgoing.position, outgoing.number, outgoing.next.take());
        let (snapshot, queue) = (Arc::clone(&outgoing.snapshot), Arc::clone(&self.queue));
        self.shared.pool.add(self.queue.key.placement, move || {
            let result = snapshot.export(from.as_deref(), None, CHUNK_BYTES).map_err(RowsError::from);
            drop(snapshot);
            queue.add(|waiting| waiting.done.push(WorkDone::Exported { to, position, number, result }));
        });
    }

    /// A chunk is read.
    pub(super) fn exported(
        &mut self,
        to: PlacementId,
        position: LogPosition,
        number: u64,
        result: Result<Chunk, RowsError>,
    ) {
        let now = self.shared.clock.now();
        let is_it = |one: &&mut Outgoing| one.position == position && one.number == number;
        let Some(outgoing) = self.outgoing.get_mut(&to).filter(is_it) else { return };
        match result {
            Ok(Chunk { rows, next }) => {
                let chunk = SnapshotChunk { position, number, rows: Arc::new(rows), is_last: next.is_none() };
                (outgoing.chunk, outgoing.next) = (Some(chunk.clone()), next);
                (outgoing.sent, outgoing.heard) = (now, now);
                self.send(to, Packet::Chunk(chunk));
            }
            Err(error) => {
                self.outgoing.remove(&to);
                self.stop(&error);
            }
        }
    }

    /// The follower has stored a chunk.
    pub(super) fn chunk_is_stored(&mut self, from: PlacementId, position: LogPosition, number: u64) {
        let now = self.shared.clock.now();
        let Some(outgoing) = self.outgoing.get_mut(&from) else { return };
        let is_it = |chunk: &mut SnapshotChunk| chunk.position == position && chunk.number == number;
        let Some(chunk) = outgoing.chunk.take_if(is_it) else { return };
        outgoing.heard = now;
        if chunk.is_last {
            self.outgoing.remove(&from);
        } else {
            outgoing.number += 1;
            self.export(from);
        }
    }

    /// The follower does not take it.
    pub(super) fn snapshot_is_useless(&mut self, from: PlacementId, position: LogPosition) {
        if self.outgoing.get(&from).is_some_and(|outgoing| outgoing.position == position) {
            self.outgoing.remove(&from);
        }
    }

    /// When a chunk is to be sent again, or given up.
    pub(super) fn snapshots_wake_at(&self) -> Millis {
        let waits = self.outgoing.values().filter(|outgoing| outgoing.chunk.is_some());
        waits.map(|outgoing| outgoing.sent + CHUNK_RESEND_MS).min().unwrap_or(Millis::NEVER)
    }

    /// Sends chunks again, and gives up what is of no use any more.
    pub(super) fn tend_snapshots(&mut self, now: Millis) {
        if !self.outgoing.is_empty() && self.machine.status().leads.is_none() {
            self.outgoing.clear();
        }
        self.outgoing.retain(|_, one| one.chunk.is_none() || now < one.heard + SNAPSHOT_PATIENCE_MS);
        let mut again = Vec::new();
        for (to, outgoing) in &mut self.outgoing {
            if let Some(chunk) = outgoing.chunk.as_ref().filter(|_| now >= outgoing.sent + CHUNK_RESEND_MS) {
                again.push((*to, chunk.clone()));
                outgoing.sent = now;
            }
        }
        again.into_iter().for_each(|(to, chunk)| self.send(to, Packet::Chunk(chunk)));
    }
}
