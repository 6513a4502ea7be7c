//! Snapshots that a leader sends to followers, and any replica to those of its children: one chunk at a time, each again until
//! the follower has stored it.
//!
//! A snapshot that is given up is begun anew when the machine asks for it again. What was not done: a limit of bytes a second;
//! one chunk for each round trip is one.

use super::LocalReplica;
use super::storage::WorkDone;
use crate::limits::{CHUNK_BYTES, CHUNK_RESEND_MS, CHUNKS_LOOKED_AT, SNAPSHOT_PATIENCE_MS, SNAPSHOTS_SENT};
use crate::rows::RowsError;
use crate::settings::ReplicaSettings;
use crate::transport::{Packet, SnapshotChunk};
use partage_core::base::id::PlacementId;
use partage_core::base::time::Millis;
use partage_core::keyspace::sharding::Bounds;
use partage_engine::replica::{Chunk, SharedBytes, Snapshot, Store, TreeSnapshot};
use partage_service::table::replication::LogPosition;
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
    /// To a child's replica, which takes what lies in these bounds.
    child: Option<Arc<Bounds>>,
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
        if !self.outgoing.contains_key(&to) && self.rows.applied() != LogPosition::default() {
            self.send_snapshot(now, to, None);
        }
    }

    /// Sends what is applied now: all of it to a follower, what lies in these bounds to a child's replica. Says whether it does.
    pub(super) fn send_snapshot(&mut self, now: Millis, to: PlacementId, child: Option<Arc<Bounds>>) -> bool {
        // What it replaces gives its permit back.
        self.outgoing.remove(&to);
        let Some(permit) = Permit::take(&self.shared.snapshots_sent) else { return false };
        let snapshot = match self.rows.store().snapshot() {
            Ok(snapshot) => Arc::new(snapshot),
            Err(error) => {
                self.stop(&error.into());
                return false;
            }
        };
        let (position, chunk, next) = (snapshot.position(), None, None);
        let (sent, heard) = (now, now);
        let outgoing =
            Outgoing { position, child, snapshot, number: 0, chunk, next, sent, heard, _permit: permit };
        self.outgoing.insert(to, outgoing);
        self.export(to);
        true
    }

    /// Reads the next chunk.
    fn export(&mut self, to: PlacementId) {
        let Some(outgoing) = self.outgoing.get_mut(&to) else { return };
        let (position, number, from) = (outgoing.position, outgoing.number, outgoing.next.take());
        let (snapshot, queue) = (Arc::clone(&outgoing.snapshot), Arc::clone(&self.queue));
        let (child, settings) = (outgoing.child.clone(), self.replica_settings);
        self.shared.pool.add(self.queue.key.placement, move || {
            let result = match child {
                Some(bounds) => export_for_child(&snapshot, from, &settings, &bounds),
                None => snapshot.export(from.as_deref(), None, CHUNK_BYTES).map_err(RowsError::from),
            };
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
        self.giving.heard(now, from);
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
            self.outgoing.retain(|_, one| one.child.is_some());
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

/// A chunk of the rows that a child takes; it may have none though others follow.
fn export_for_child(
    snapshot: &TreeSnapshot,
    mut from: Option<SharedBytes>,
    settings: &ReplicaSettings,
    bounds: &Bounds,
) -> Result<Chunk, RowsError> {
    let mut taken = Vec::new();
    let mut bytes = 0;
    for _ in 0..CHUNKS_LOOKED_AT {
        let Chunk { rows, next } = snapshot.export(from.as_deref(), None, CHUNK_BYTES - bytes)?;
        let of_child = rows.into_iter().filter(|row| settings.inherits(bounds, &row.key));
        taken.extend(of_child.inspect(|row| bytes += row.key.len() + row.value.len()));
        from = next;
        if from.is_none() || bytes >= CHUNK_BYTES {
            break;
        }
    }
    Ok(Chunk { rows: taken, next: from })
}
