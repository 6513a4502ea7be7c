//! What the thread of a node, its clients and those who bring packets share.

use super::counters::Counters;
use super::inbox::Inbox;
use super::settings::NodeSettings;
use crate::store::Damage;
use partage_clock::Clock;
use partage_service::shuffle::PoolSlot;
use partage_service::shuffle::buffer::BufferCounts;
use partage_service::shuffle::pool::PoolMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How a node is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeStatus {
    /// Why the node has ended by itself: the process must end, and open its files again.
    pub ended: Option<String>,
    /// Whether it refuses new attempts, as its disk is full.
    pub is_full: bool,
    /// Why the object store refuses; none: it does what it is asked, or there is none.
    pub object_store_refuses: Option<String>,
    /// Whether the log of decisions waits for room on the disk.
    pub is_log_full: bool,
    /// Places on its disk that are damaged, the last ones that were found.
    pub damages: VecDeque<Damage>,
    /// Slots that it may not lead, as their decisions were damaged: another replica has to.
    pub unfit: Vec<PoolSlot>,
    /// Slots that its map says it leads, and that it does not: it is unfit, or an earlier process of the node has heard of the
    /// epoch. The coordinator has to name another leader, or a later epoch.
    pub not_led: Vec<PoolSlot>,
    /// Files that ended in an unfinished write when the node started.
    pub unfinished: usize,
    /// Keys and values in its buffer, in bytes.
    pub buffered_bytes: u64,
    /// What batches that are being stored take in memory, in bytes.
    pub storing_bytes: u64,
    /// What ranges and divisions take in memory that are being read, and ranges that are kept for readers, in bytes.
    pub reading_bytes: u64,
    /// The most that these took at a time since the start.
    pub reading_peak_bytes: u64,
    /// Files of ranges that are larger than the memory for them and were sorted on disk, in bytes.
    pub sorted_file_bytes: u64,
    /// What its buffer has takes in memory, in bytes.
    pub buffer_memory: u64,
    /// What its buffer has done since it started.
    pub buffer: BufferCounts,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) clock: Clock,
    pub(crate) settings: NodeSettings,
    map: Mutex<Arc<PoolMap>>,
    status: Mutex<NodeStatus>,
    /// The disk is at the limit that its owner has set.
    is_at_limit: AtomicBool,
    /// It stores what is meant for other nodes, while they do not.
    stands_in: AtomicBool,
    /// Where nodes are that take attempts.
    buffers: Mutex<Vec<String>>,
    pub(crate) counters: Counters,
}

impl Shared {
    pub(crate) fn new(inbox: Arc<Inbox>, clock: Clock, settings: NodeSettings, map: Arc<PoolMap>) -> Shared {
        let (status, is_at_limit, buffers, counters) = Default::default();
        let (map, stands_in) = (Mutex::new(map), AtomicBool::new(settings.roles.stores()));
        Shared { inbox, clock, settings, map, status, is_at_limit, stands_in, buffers, counters }
    }

    pub(crate) fn map(&self) -> Arc<PoolMap> {
        Arc::clone(&self.map.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_map(&self, map: Arc<PoolMap>) {
        *self.map.lock().unwrap_or_else(PoisonError::into_inner) = map;
    }

    pub(crate) fn is_at_limit(&self) -> bool {
        self.is_at_limit.load(Ordering::Relaxed)
    }

    pub(crate) fn set_at_limit(&self, is_at_limit: bool) {
        self.is_at_limit.store(is_at_limit, Ordering::Relaxed);
    }

    pub(crate) fn stands_in(&self) -> bool {
        self.stands_in.load(Ordering::Relaxed)
    }

    pub(crate) fn stop_standing_in(&self) {
        self.stands_in.store(false, Ordering::Relaxed);
    }

    pub(crate) fn buffers(&self) -> Vec<String> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_buffers(&self, addresses: Vec<String>) {
        *self.buffers.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    pub(crate) fn status(&self) -> NodeStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn tell(&self, change: impl FnOnce(&mut NodeStatus)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn tell_damage(&self, damage: Damage, kept: usize) {
        self.tell(|status| {
            status.damages.push_back(damage);
            while status.damages.len() > kept {
                status.damages.pop_front();
            }
        });
    }

    /// The node cannot go on.
    pub(crate) fn end(&self, why: String) {
        self.tell(|status| status.ended = Some(why));
        self.inbox.close();
    }
}
