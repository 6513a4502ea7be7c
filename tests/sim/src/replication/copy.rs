//! Snapshots that go from a leader to a follower in chunks: what both know of one, and what they say to each other.

use crate::replication::engine::{Engine, Key, Value};
use partage_core::base::id::PlacementId;
use partage_core::base::time::Millis;
use partage_service::table::copy::deadline::CopyProgress;
use partage_service::table::copy::resume;
use partage_service::table::replication::{LogPosition, SnapshotProgress};
use std::collections::BTreeMap;

/// A part of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub position: LogPosition,
    pub number: u64,
    pub keys: Vec<(Key, Value)>,
    pub is_last: bool,
}

/// What a leader and a follower say to each other of a snapshot.
#[derive(Debug, Clone)]
pub enum CopyMessage {
    Chunk(Chunk),
    /// The follower has stored that chunk.
    Stored(LogPosition, u64),
    /// When that chunk came, it had all up to the key.
    Resumed(LogPosition, u64, Key),
    /// It does not take it.
    Useless(LogPosition),
}

/// A snapshot that is sent.
#[derive(Debug)]
pub struct Outgoing {
    pub engine: Engine,
    /// The chunk that is under way.
    pub number: u64,
    /// The key with which that chunk begins.
    pub next: Key,
    copied: u64,
    heard: Millis,
    /// It was not heard of for so long that no write waited for it.
    pub was_silent: bool,
}

impl Outgoing {
    pub fn begin(engine: Engine, now: Millis) -> Outgoing {
        Outgoing { engine, number: 0, next: 0, copied: 0, heard: now, was_silent: false }
    }

    /// The chunk that is under way, of so many keys.
    pub fn chunk(&self, keys: usize) -> Chunk {
        let mut behind = self.engine.keys.range(self.next..);
        let keys: Vec<_> = behind.by_ref().take(keys).map(|(key, value)| (*key, value.clone())).collect();
        let is_last = behind.next().is_none();
        Chunk { position: self.engine.at, number: self.number, keys, is_last }
    }

    /// The follower was heard of it.
    pub fn is_heard(&mut self, now: Millis, slows_ms: u64) {
        self.was_silent |= now.since(self.heard) >= slows_ms;
        self.heard = now;
    }

    /// That chunk is stored: the next one is under way.
    pub fn stored(&mut self, chunk: &Chunk) {
        self.copied += chunk.keys.len() as u64;
        self.number += 1;
        self.next = chunk.keys.last().map_or(self.next, |(key, _)| key.saturating_add(1));
    }

    /// The follower has all up to that key.
    pub fn resumed(&mut self, through: Key) {
        self.number = resume::number_behind(self.number);
        self.next = through.saturating_add(1);
    }

    /// How far it is.
    pub fn copied(&self, is_whole: bool) -> SnapshotProgress {
        let progress = CopyProgress { copied: self.copied, size: self.engine.keys.len() as u64 };
        SnapshotProgress { position: self.engine.at, progress, is_whole }
    }
}

/// A snapshot that is taken.
#[derive(Debug)]
pub struct Incoming {
    pub from: PlacementId,
    pub position: LogPosition,
    /// The chunk that is wanted.
    pub next: u64,
    /// The chunk that came last before it went on, if it did.
    pub resumed: Option<u64>,
    /// How often the leader was told from where on.
    pub offers: u32,
    pub heard: Millis,
}

impl Incoming {
    pub fn begin(from: PlacementId, position: LogPosition, now: Millis) -> Incoming {
        Incoming { from, position, next: 0, resumed: None, offers: 0, heard: now }
    }

    /// It goes on behind what is stored, when that chunk came.
    pub fn goes_on(&mut self, number: u64) {
        (self.next, self.resumed) = (resume::number_behind(number), Some(number));
        self.offers += 1;
    }

    /// What a chunk is to it.
    pub fn chunk_kind(&self, number: u64) -> resume::ChunkKind {
        resume::chunk_kind(self.resumed, self.next, number)
    }
}

/// What is on the disk of a snapshot: all up to a key.
#[derive(Debug, Clone)]
pub struct Partial {
    pub position: LogPosition,
    pub through: Key,
    pub keys: BTreeMap<Key, Value>,
}
