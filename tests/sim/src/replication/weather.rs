//! What a run is like.

use crate::clock::{MS, True};
use crate::draw::Draw;
use partage_service::table::replication::Settings;

/// Drawn once for each run.
#[derive(Debug, Clone)]
pub struct Weather {
    pub nodes: usize,
    pub shards: usize,
    /// Replicas of each shard, as far as nodes suffice.
    pub replicas: usize,
    /// Read replicas of each shard besides: in every other seed.
    pub readers: usize,
    pub settings: Settings,
    /// How long there are faults.
    pub faults_for: True,
    /// The mean time between two of them.
    pub fault_every: True,
    /// How long a message is under way, typically.
    pub delay: True,
    /// How many of a thousand messages are lost, doubled and very late.
    pub lost: u64,
    pub doubled: u64,
    pub late: u64,
    /// How long a sync takes, typically.
    pub sync: True,
    /// How many of a thousand syncs hesitate, for up to a second.
    pub hesitates: u64,
    /// How long a client rests.
    pub rest: True,
    /// How often what is applied is flushed.
    pub flush: True,
    /// How long a copy of rows rests between two chunks, typically.
    pub copy_rest: True,
    /// Keys of a chunk.
    pub chunk_keys: usize,
    /// Whether one node is slow for a minute after the faults.
    pub limps: bool,
    /// Silence after which the coordinator declares a node dead.
    pub dead_after: True,
}

impl Weather {
    pub fn drawn(draw: &mut Draw) -> Weather {
        let nodes = draw.between(3, 6) as usize;
        let replicas = if draw.chance(700) { 3 } else { 4 }.min(nodes);
        let promise_ms = *draw.pick(&[1_000, 1_000, 1_000, 300]).unwrap_or(&1_000);
        let settings = Settings {
            promise_ms,
            follower_patience_ms: if promise_ms < 1_000 { 250 } else { 500 },
            follower_stall_ms: 2_000,
            min_in_sync: if draw.chance(300) { 1 } else { 2 },
            in_flight_entries: if draw.chance(200) { 8 } else { 4_096 },
            append_entries: draw.between(1, 16) as usize,
            append_bytes: draw.between(60, 4_000) as usize,
            catch_up_log_bytes: draw.between(300, 6_000) as usize,
            snapshot_repeat_ms: 1_000,
            // All are in sync again soon after the last fault.
            longest_rejoin_delay_ms: 8_000,
            reads_waiting: 16,
            write_wait_ms: 4_000,
            ..Settings::default()
        };
        Weather {
            nodes,
            shards: draw.between(1, 4) as usize,
            replicas,
            readers: 0,
            settings,
            faults_for: draw.between(15_000, 30_000) * MS,
            fault_every: draw.between(150, 900) * MS,
            delay: draw.between(100, 4_000),
            lost: *draw.pick(&[0, 5, 30, 100]).unwrap_or(&5),
            doubled: *draw.pick(&[0, 10, 50]).unwrap_or(&10),
            late: *draw.pick(&[0, 5, 30]).unwrap_or(&5),
            sync: draw.between(100, 8_000),
            hesitates: *draw.pick(&[0, 5, 30]).unwrap_or(&5),
            rest: draw.between(5, 40) * MS,
            flush: draw.between(200, 3_000) * MS,
            dead_after: draw.between(1_500, 4_000) * MS,
            copy_rest: 0,
            chunk_keys: 1,
            limps: draw.chance(250),
        }
    }

    /// The same with copies of rows that take a while, and a log that is kept for them. They have draws of their own.
    #[must_use]
    pub fn with_copies(self, draw: &mut Draw) -> Weather {
        let settings = Settings {
            copy_log_bytes: draw.between(6_000, 30_000) as usize,
            copy_slows_ms: draw.between(200, 1_200),
            copy_patience_ms: draw.between(1_200, 4_000),
            ..self.settings
        };
        let (copy_rest, chunk_keys) = (draw.between(1, 200) * MS, draw.between(1, 3) as usize);
        Weather { settings, copy_rest, chunk_keys, ..self }
    }

    /// The same with so many read replicas of each shard, and nodes enough for them.
    #[must_use]
    pub fn with_readers(self, readers: usize) -> Weather {
        Weather { readers, nodes: self.nodes.max(self.replicas + readers), ..self }
    }
}
