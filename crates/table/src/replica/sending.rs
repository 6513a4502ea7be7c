//! Snapshots that a leader sends to followers, and any replica to those of its children: one chunk at a time, each again until
//! the follower has stored it.
//!
//! | a snapshot | what becomes of it |
//! |---|---|
//! | whose chunk is stored | the next one is read when the pace of the node allows it ([`crate::pacing`]) |
//! | whose follower is not heard of | is kept for a while and not sent: other snapshots may be |
//! | the same, and the follower asks for one again | goes on: its chunk is sent again |
//! | whose follower has started again and has a part of it | goes on behind that part |
//! | of a follower, to which the log does not reach back any more | is given up: it is of no use, and the next one heeds no limit |
//! | that is given up | is begun anew when the machine asks for it again |
//!
//! The machine is told how far the snapshots to followers are: it keeps the log for them, and says how urgent each is.

use super::LocalReplica;
use super::storage::WorkDone;
use crate::limits::{
    CHUNK_BYTES, CHUNK_RESEND_MS, CHUNKS_LOOKED_AT, SNAPSHOT_KEPT_MS, SNAPSHOT_PATIENCE_MS, SNAPSHOTS_KEPT,
    SNAPSHOTS_SENT,
};
use crate::pacing::{CopyDirection, FinishedStep};
use crate::rows::RowsError;
use crate::settings::ReplicaSettings;
use crate::transport::{Packet, SnapshotChunk};
use partage_core::base::id::PlacementId;
use partage_core::base::time::Millis;
use partage_core::keyspace::sharding::Bounds;
use partage_engine::replica::{Chunk, SharedBytes, Snapshot, Store, TreeSnapshot, limits};
use partage_service::table::copy::deadline::{CopyProgress, Urgency};
use partage_service::table::copy::resume;
use partage_service::table::replication::{LogPosition, SnapshotProgress};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One of the snapshots that a node may send, or keep, at a time.
#[derive(Debug)]
struct Permit {
    taken: Arc<AtomicUsize>,
    is_to_send: bool,
}

impl Permit {
    fn take(taken: &Arc<AtomicUsize>, most: usize, is_to_send: bool) -> Option<Permit> {
        let one_more = |taken| (taken < most).then_some(taken + 1);
        taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(Permit { taken: Arc::clone(taken), is_to_send })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A snapshot that is sent.
pub(super) struct Outgoing {
    position: LogPosition,
    /// To a child's replica, which takes what lies in these bounds.
    child: Option<Arc<Bounds>>,
    snapshot: Arc<TreeSnapshot>,
    /// The number of the chunk that is under way.
    number: u64,
    /// The chunk that is under way; none while it is read, and before.
    chunk: Option<SnapshotChunk>,
    /// Where the next one begins.
    next: Option<SharedBytes>,
    is_reading: bool,
    /// Bytes of rows that the follower has stored, and that the chunk has which is under way.
    copied: u64,
    chunk_bytes: u64,
    /// What all rows come to, as far as the files tell.
    size: u64,
    /// The next one is not read before.
    next_step_at: Millis,
    sent: Millis,
    heard: Millis,
    permit: Permit,
}

impl Outgoing {
    fn waits_for_pace(&self) -> bool {
        self.chunk.is_none() && !self.is_reading
    }

    /// When there is something to do for it.
    fn wakes_at(&self) -> Millis {
        match &self.chunk {
            Some(_) if self.permit.is_to_send => self.sent + CHUNK_RESEND_MS,
            Some(_) => self.heard + SNAPSHOT_KEPT_MS,
            None if self.waits_for_pace() => self.next_step_at,
            None => Millis::NEVER,
        }
    }

    /// How far it is, if it is sent to a follower.
    fn copied(&self, is_whole: bool) -> Option<SnapshotProgress> {
        let progress = CopyProgress { copied: self.copied, size: self.size };
        self.child.is_none().then_some(SnapshotProgress { position: self.position, progress, is_whole })
    }
}

/// A chunk that was read.
pub(crate) struct Exported {
    chunk: Chunk,
    /// Bytes of its rows.
    bytes: usize,
    /// When the next one may be read.
    next_step_at: Millis,
}

impl LocalReplica {
    /// The follower needs a snapshot.
    pub(super) fn begin_snapshot(&mut self, now: Millis, to: PlacementId) {
        match self.outgoing.get(&to) {
            Some(outgoing) if outgoing.permit.is_to_send => {}
            Some(outgoing) if self.machine.reaches_back_to(outgoing.position) => self.send_kept(now, to),
            _ if self.rows.applied() != LogPosition::default() => drop(self.send_snapshot(now, to, None)),
            _ => {}
        }
    }

    /// Sends what is applied now: all of it to a follower, what lies in these bounds to a child's replica. Says whether it does.
    pub(super) fn send_snapshot(&mut self, now: Millis, to: PlacementId, child: Option<Arc<Bounds>>) -> bool {
        // What it replaces gives its permit back.
        self.outgoing.remove(&to);
        let permit = Permit::take(&self.shared.snapshots_sent, SNAPSHOTS_SENT, true);
        let Some(permit) = permit else { return false };
        let snapshot = match self.rows.store().snapshot() {
            Ok(snapshot) => Arc::new(snapshot),
            Err(error) => {
                self.stop(&error.into());
                return false;
            }
        };
        let size = self.rows.store().size();
        let outgoing = Outgoing {
            position: snapshot.position(),
            child,
            snapshot,
            number: 0,
            chunk: None,
            next: None,
            is_reading: false,
            copied: 0,
            chunk_bytes: 0,
            size: size.disk_bytes + size.unflushed_bytes,
            next_step_at: Millis(0),
            sent: now,
            heard: now,
            permit,
        };
        if let Some(copied) = outgoing.copied(false) {
            self.machine.copies_to(now, to, Some(copied));
        }
        self.outgoing.insert(to, outgoing);
        self.export(to);
        true
    }

    /// The follower of a snapshot that was kept asks for one: it is to say what it has of that. Until it does, the snapshot is
    /// kept for no longer than otherwise, as the follower may make nothing of it.
    fn send_kept(&mut self, now: Millis, to: PlacementId) {
        let Some(outgoing) = self.outgoing.get_mut(&to) else { return };
        outgoing.sent = now;
        if let Some(chunk) = outgoing.chunk.clone() {
            self.send(to, Packet::Chunk(chunk));
        }
    }

    /// Reads the next chunk.
    fn export(&mut self, to: PlacementId) {
        let urgency = self.urgency(to);
        let Some(outgoing) = self.outgoing.get_mut(&to) else { return };
        outgoing.is_reading = true;
        let (position, number, from) = (outgoing.position, outgoing.number, outgoing.next.take());
        let (snapshot, queue) = (Arc::clone(&outgoing.snapshot), Arc::clone(&self.queue));
        let (child, settings, shared) =
            (outgoing.child.clone(), self.replica_settings, Arc::clone(&self.shared));
        self.shared.pool.add(self.queue.key.placement, move || {
            let began_us = shared.pacing.now_us();
            let read = match child {
                Some(bounds) => export_for_child(&snapshot, from, &settings, &bounds),
                None => {
                    snapshot.export(from.as_deref(), None, CHUNK_BYTES).map_err(RowsError::from).map(all_of)
                }
            };
            drop(snapshot);
            let result = read.map(|(chunk, bytes)| {
                let (rows, copied) = (row_bytes(&chunk), CopyDirection::Out);
                let next_step_at =
                    shared.pacing.done(FinishedStep { began_us, bytes, rows, copied, urgency });
                Exported { chunk, bytes: rows, next_step_at }
            });
            queue.add(|waiting| waiting.done.push(WorkDone::Exported { to, position, number, result }));
        });
    }

    /// How urgent this copy is: clients write much, or, of a child whose parent closes, wait for it, or the shard has no replica
    /// in sync to spare.
    fn urgency(&self, to: PlacementId) -> Urgency {
        let at_least = |is_pressed| if is_pressed { Urgency::Pressed } else { Urgency::GivesWay };
        match self.outgoing.get(&to) {
            Some(outgoing) if outgoing.child.is_some() => {
                at_least(self.machine.closes() || self.children.is_pressed_by(to))
            }
            Some(_) if self.outrun.contains(&to) => Urgency::Urgent,
            Some(_) => self.machine.copy_urgency(to).max(at_least(self.machine.has_none_to_spare())),
            None => Urgency::GivesWay,
        }
    }

    /// A chunk is read.
    pub(super) fn exported(
        &mut self,
        to: PlacementId,
        position: LogPosition,
        number: u64,
        result: Result<Exported, RowsError>,
    ) {
        let (now, urgency) = (self.shared.clock.now(), self.urgency(to));
        let is_it = |one: &&mut Outgoing| one.position == position && one.number == number && one.is_reading;
        let Some(outgoing) = self.outgoing.get_mut(&to).filter(is_it) else { return };
        outgoing.is_reading = false;
        match result {
            Ok(Exported { chunk: Chunk { rows, next }, bytes, next_step_at }) => {
                let (rows, is_last) = (Arc::new(rows), next.is_none());
                outgoing.chunk_bytes = bytes as u64;
                let chunk = SnapshotChunk { position, number, rows, is_last, urgency };
                (outgoing.chunk, outgoing.next) = (Some(chunk.clone()), next);
                (outgoing.sent, outgoing.heard, outgoing.next_step_at) = (now, now, next_step_at);
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
        self.children.progressed(now, from);
        // The follower needs another one then, which heeds no limit, and for which the log is kept from now on.
        let is_outrun = outgoing.child.is_none() && !self.machine.reaches_back_to(position);
        outgoing.copied += std::mem::take(&mut outgoing.chunk_bytes);
        if let Some(copied) = outgoing.copied(chunk.is_last) {
            self.machine.copies_to(now, from, Some(copied));
        }
        if chunk.is_last || is_outrun {
            self.outgoing.remove(&from);
            if is_outrun {
                self.outrun.insert(from);
            } else {
                self.outrun.remove(&from);
            }
        } else {
            outgoing.number = number + 1;
            self.go_on(now, from);
        }
    }

    /// The follower has started again, and has all rows of the snapshot up to that key on its disk.
    pub(super) fn snapshot_is_resumed(
        &mut self,
        from: PlacementId,
        position: LogPosition,
        number: u64,
        through: &[u8],
    ) {
        let now = self.shared.clock.now();
        let to_follower = |one: &&mut Outgoing| one.child.is_none() && through.len() < limits::KEY_BYTES;
        let Some(outgoing) = self.outgoing.get_mut(&from).filter(to_follower) else { return };
        let is_it = |chunk: &mut SnapshotChunk| chunk.position == position && chunk.number == number;
        if outgoing.chunk.take_if(is_it).is_none() {
            return;
        }
        outgoing.heard = now;
        self.machine.copies_to(now, from, outgoing.copied(false));
        // No key lies between it and its own continuation by a zero.
        outgoing.next = Some([through, &[0u8][..]].concat().into());
        outgoing.number = resume::number_behind(number);
        self.go_on(now, from);
    }

    /// Reads the next chunk, when it is time.
    fn go_on(&mut self, now: Millis, to: PlacementId) {
        let Some(outgoing) = self.outgoing.get_mut(&to) else { return };
        if !outgoing.permit.is_to_send
            && let Some(permit) = Permit::take(&self.shared.snapshots_sent, SNAPSHOTS_SENT, true)
        {
            outgoing.permit = permit;
        }
        // It may have become urgent since it was told to rest.
        if now >= outgoing.next_step_at || self.urgency(to) == Urgency::Urgent {
            self.export(to);
        }
    }

    /// The follower does not take it.
    pub(super) fn snapshot_is_useless(&mut self, from: PlacementId, position: LogPosition) {
        if self.outgoing.get(&from).is_some_and(|outgoing| outgoing.position == position) {
            self.outgoing.remove(&from);
            self.machine.copies_to(self.shared.clock.now(), from, None);
        }
    }

    /// When a chunk is to be read, or sent again, or given up.
    pub(super) fn snapshots_wake_at(&self) -> Millis {
        self.outgoing.values().map(Outgoing::wakes_at).min().unwrap_or(Millis::NEVER)
    }

    /// Reads chunks whose time has come, sends chunks again, and gives up what is of no use any more.
    pub(super) fn tend_snapshots(&mut self, now: Millis) {
        if self.outgoing.is_empty() {
            return;
        }
        if self.machine.status().leads.is_none() {
            self.outgoing.retain(|_, one| one.child.is_some());
        }
        let kept = &self.shared.snapshots_kept;
        self.outgoing.retain(|_, one| {
            if one.chunk.is_none() || now < one.heard + SNAPSHOT_PATIENCE_MS {
                return true;
            }
            // A child that starts again takes another snapshot (`base/mod.rs`).
            if one.permit.is_to_send && one.child.is_none() {
                let Some(permit) = Permit::take(kept, SNAPSHOTS_KEPT, false) else { return false };
                one.permit = permit;
            }
            !one.permit.is_to_send && now < one.heard + SNAPSHOT_KEPT_MS
        });
        let (mut again, mut due) = (Vec::new(), Vec::new());
        for (to, outgoing) in &mut self.outgoing {
            if now < outgoing.wakes_at() {
                continue;
            }
            match &outgoing.chunk {
                Some(chunk) if outgoing.permit.is_to_send => {
                    again.push((*to, chunk.clone()));
                    outgoing.sent = now;
                }
                Some(_) => {}
                None => due.push(*to),
            }
        }
        again.into_iter().for_each(|(to, chunk)| self.send(to, Packet::Chunk(chunk)));
        due.into_iter().for_each(|to| self.export(to));
    }
}

/// Bytes of keys and values.
fn row_bytes(chunk: &Chunk) -> usize {
    chunk.rows.iter().map(|row| row.key.len() + row.value.len()).sum()
}

/// A chunk of which all that was read goes on.
fn all_of(chunk: Chunk) -> (Chunk, usize) {
    let bytes = row_bytes(&chunk);
    (chunk, bytes)
}

/// A chunk of the rows that a child takes, and how many bytes were read for it; it may have none though others follow.
fn export_for_child(
    snapshot: &TreeSnapshot,
    mut from: Option<SharedBytes>,
    settings: &ReplicaSettings,
    bounds: &Bounds,
) -> Result<(Chunk, usize), RowsError> {
    let mut taken = Vec::new();
    let (mut bytes, mut read) = (0, 0);
    for _ in 0..CHUNKS_LOOKED_AT {
        let chunk = snapshot.export(from.as_deref(), None, CHUNK_BYTES - bytes)?;
        read += row_bytes(&chunk);
        let of_child = chunk.rows.into_iter().filter(|row| settings.inherits(bounds, &row.key));
        taken.extend(of_child.inspect(|row| bytes += row.key.len() + row.value.len()));
        from = chunk.next;
        if from.is_none() || bytes >= CHUNK_BYTES {
            break;
        }
    }
    Ok((Chunk { rows: taken, next: from }, read))
}
