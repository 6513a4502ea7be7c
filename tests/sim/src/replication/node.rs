//! A node: its process with the machines of its replicas, and its disk, which outlives the process.

use crate::clock::{Clock, True};
use crate::replication::copy::{Incoming, Outgoing, Partial};
use crate::replication::engine::Engine;
use crate::slow::Slow;
use partage_core::base::id::{Epoch, Incarnation, PlacementId};
use partage_core::base::time::Millis;
use partage_service::table::replication::{LogPosition, LogWrite, Replica, Stored, Wish};
use std::collections::{BTreeMap, VecDeque};

/// What a beat says of one replica.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub wish: Option<Wish>,
    pub silent: Option<Epoch>,
    pub heir: Option<PlacementId>,
}

/// A replica in the memory of a process.
#[derive(Debug)]
pub struct Local {
    pub shard: usize,
    pub machine: Replica,
    pub engine: Engine,
    pub report: Report,
    /// Until when readers may look at what is applied, as its driver has published it.
    pub published: Option<Millis>,
    /// When it last found its leader silent.
    pub silent_at: True,
    pub is_syncing: bool,
    /// The snapshots that it sends, and the one that it takes.
    pub outgoing: BTreeMap<PlacementId, Outgoing>,
    pub incoming: Option<Incoming>,
    /// When it is next called, so that it is not called twice.
    pub tick_at: True,
}

/// A replica as the disk of its node has it.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    pub shard: usize,
    pub stored: Stored,
    /// The state that was flushed last.
    pub engine: Engine,
    /// The part of a snapshot that was stored.
    pub partial: Option<Partial>,
    /// Writes that are not synced.
    pub waiting: VecDeque<(u64, LogWrite)>,
}

impl Disk {
    /// The first `count` writes that wait are on the disk. Says the number of the last.
    pub fn sync(&mut self, count: usize) -> Option<u64> {
        let mut last = None;
        for (number, write) in self.waiting.drain(..count.min(self.waiting.len())).collect::<Vec<_>>() {
            last = Some(number);
            self.stored.write(write);
        }
        last
    }

    /// Whether the entry at that position is on it, in the log or in what was flushed.
    pub fn has(&self, position: LogPosition) -> bool {
        let Stored { base, entries, flushed, .. } = &self.stored;
        if position.index <= flushed.index.max(base.index) {
            return true;
        }
        let at = (position.index - base.index - 1) as usize;
        entries.get(at).is_some_and(|entry| entry.position == position)
    }
}

/// A node: its process, which may be down, and its disk.
#[derive(Debug)]
pub struct Node {
    pub is_up: bool,
    pub incarnation: Incarnation,
    pub clock: Clock,
    /// Until when its process stands still.
    pub paused: True,
    /// Until when its disk hesitates.
    pub hesitates: True,
    /// Whether all that it does takes long.
    pub slow: Slow,
    pub replicas: BTreeMap<PlacementId, Local>,
    pub disks: BTreeMap<PlacementId, Disk>,
    /// The generation of the last orders that it took, in this life or a former one: no earlier ones make it drop data.
    pub orders: u64,
}

impl Node {
    pub fn new(clock: Clock) -> Node {
        Node {
            is_up: false,
            incarnation: Incarnation(0),
            clock,
            paused: 0,
            hesitates: 0,
            slow: Slow::default(),
            replicas: BTreeMap::new(),
            disks: BTreeMap::new(),
            orders: 0,
        }
    }

    /// Its process ends. Of what was not synced the first `kept` writes are on the disk all the same.
    pub fn crash(&mut self, kept: usize) {
        self.is_up = false;
        self.paused = 0;
        self.slow.restart();
        self.replicas.clear();
        for disk in self.disks.values_mut() {
            disk.sync(kept);
            disk.waiting.clear();
        }
    }
}
