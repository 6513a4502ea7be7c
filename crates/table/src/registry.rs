//! The replicas of a node, and what the thread of the log tells them.

use crate::error::WriteError;
use crate::limits::REPLICAS_SERVED_BY_LOG;
use crate::notice::{Notice, NoticeSink};
use crate::queue::{Claim, ReplicaQueue, Waiting};
use crate::settings::ReplicaSettings;
use partage_core::node::exchange::ReplicaKey;
use partage_log::Report;
use partage_service::table::replication::Stored;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

/// A replica that is on disk, and not open.
#[derive(Debug)]
pub(crate) struct ClosedReplica {
    pub(crate) stored: Stored,
    /// What it was served by when it was open; none: it was not open since the process began.
    pub(crate) settings: Option<ReplicaSettings>,
}

/// The state of a replica on its node.
#[derive(Debug)]
pub(crate) enum Presence {
    /// The replica is on disk, and not open.
    Stored(Box<ClosedReplica>),
    /// The replica is on disk, and its files are damaged.
    Damaged(String),
    /// It is being opened, closed or dropped.
    Changing,
    Open,
    /// A child's replica that takes its base: it is no replica of its shard yet.
    Base,
}

/// The number of the record by which the log forgets a replica: beyond all numbers of its machine, since a late note of what is
/// committed may still be synced after the replica is closed.
pub(crate) const FORGET: u64 = u64::MAX;

/// Called when the log has forgotten a replica.
type Forgotten = Box<dyn FnOnce() + Send>;

/// Flushes the rows of a replica that is not open, later.
type FlushClosed = Box<dyn Fn(ReplicaKey) + Send + Sync>;

/// What the disk has no room for.
#[derive(Debug, Default)]
struct Full {
    log: bool,
    stores: BTreeSet<ReplicaKey>,
    /// The node has found no room when it started.
    start: bool,
    /// There is room, but no more of the disk is to be used ([`partage_core::node::disk::DiskLimits`]).
    limit: bool,
}

impl Full {
    fn has_no_room(&self) -> bool {
        self.log || self.start || !self.stores.is_empty()
    }

    fn is_anything(&self) -> bool {
        self.limit || self.has_no_room()
    }
}

/// The replicas of a node.
pub(crate) struct Registry {
    queues: RwLock<BTreeMap<ReplicaKey, Arc<ReplicaQueue>>>,
    presences: Mutex<BTreeMap<ReplicaKey, Presence>>,
    /// Replicas whose records did not fit into the log's queue, each once: they try again when it has room.
    waiting_for_room: Mutex<Vec<Arc<ReplicaQueue>>>,
    forgotten: Mutex<BTreeMap<ReplicaKey, Forgotten>>,
    /// Closed replicas whose entries keep the log too long.
    holding: Mutex<BTreeSet<ReplicaKey>>,
    flush_closed: OnceLock<FlushClosed>,
    full: Mutex<Full>,
    /// Whether something is [`Full`].
    is_full: AtomicBool,
    /// The disk has stored nothing for so long that writes are refused ([`crate::limits::LOG_STALL_REFUSES`]).
    refuses_as_stalled: AtomicBool,
    ended: OnceLock<String>,
    notices: Arc<dyn NoticeSink>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    pub(crate) fn new(presences: BTreeMap<ReplicaKey, Presence>, notices: Arc<dyn NoticeSink>) -> Registry {
        Registry {
            queues: RwLock::default(),
            presences: Mutex::new(presences),
            waiting_for_room: Mutex::default(),
            forgotten: Mutex::default(),
            holding: Mutex::default(),
            flush_closed: OnceLock::new(),
            full: Mutex::default(),
            is_full: AtomicBool::new(false),
            refuses_as_stalled: AtomicBool::new(false),
            ended: OnceLock::new(),
            notices,
        }
    }

    pub(crate) fn tell(&self, notice: Notice) {
        self.notices.notify(notice);
    }

    pub(crate) fn presences(&self) -> MutexGuard<'_, BTreeMap<ReplicaKey, Presence>> {
        lock(&self.presences)
    }

    pub(crate) fn queue(&self, key: &ReplicaKey) -> Option<Arc<ReplicaQueue>> {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    pub(crate) fn queues(&self) -> Vec<Arc<ReplicaQueue>> {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn opened(&self, queue: Arc<ReplicaQueue>) {
        let presence = if queue.is_base() { Presence::Base } else { Presence::Open };
        self.presences().insert(queue.key.clone(), presence);
        let opened = Arc::clone(&queue);
        self.queues.write().unwrap_or_else(PoisonError::into_inner).insert(queue.key.clone(), queue);
        if self.holds_no_more(&opened.key) {
            opened.add(|waiting| waiting.holds_log = true);
        }
    }

    /// Sets what flushes the rows of a replica that is not open. The thread of the log calls it, so it must not wait.
    pub(crate) fn flush_closed_by(&self, flush: FlushClosed) {
        // Set once, when the node is opened.
        let _ = self.flush_closed.set(flush);
    }

    /// The log wants the room of a replica's entries.
    pub(crate) fn holds_log(&self, key: ReplicaKey) {
        let added = self.queue(&key).and_then(|queue| queue.add(|waiting| waiting.holds_log = true));
        if added.is_none() {
            lock(&self.holding).insert(key.clone());
            // It may have been opened meanwhile, and have looked here before this was noted.
            if let Some(queue) = self.queue(&key)
                && queue.add(|waiting| waiting.holds_log = true).is_some()
            {
                self.holds_no_more(&key);
                return;
            }
            self.flush_closed.get().into_iter().for_each(|flush| flush(key.clone()));
        }
    }

    /// The log waits no longer for a closed replica; returns whether it did.
    pub(crate) fn holds_no_more(&self, key: &ReplicaKey) -> bool {
        lock(&self.holding).remove(key)
    }

    /// Tries again to flush the replicas that are not open and for which the log waits: the disk may have room now.
    pub(crate) fn flush_holding(&self) {
        let holding = lock(&self.holding).clone();
        holding.into_iter().for_each(|key| self.holds_log(key));
    }

    pub(crate) fn closed(&self, key: &ReplicaKey, presence: Presence) {
        self.queues.write().unwrap_or_else(PoisonError::into_inner).remove(key);
        self.presences().insert(key.clone(), presence);
        self.store_has_room(key);
    }

    /// A child's replica has its base, and takes part from now on.
    pub(crate) fn became_replica(&self, queue: &ReplicaQueue) {
        queue.set_base(false);
        self.presences().insert(queue.key.clone(), Presence::Open);
    }

    /// Nothing of a child's replica is here any more.
    pub(crate) fn gone(&self, key: &ReplicaKey) {
        self.queues.write().unwrap_or_else(PoisonError::into_inner).remove(key);
        self.presences().remove(key);
    }

    pub(crate) fn when_forgotten(&self, key: ReplicaKey, then: Forgotten) {
        lock(&self.forgotten).insert(key, then);
    }

    /// The replica is told to try again when the log's queue may have room.
    pub(crate) fn wait_for_room(&self, queue: &Arc<ReplicaQueue>) {
        let mut waiting = lock(&self.waiting_for_room);
        if waiting.iter().all(|other| other.number != queue.number) {
            waiting.push(Arc::clone(queue));
        }
    }

    /// The disk has no room for what the store of a replica has in memory, as the system says it.
    pub(crate) fn store_is_full(&self, key: &ReplicaKey, why: &str) {
        self.change_full(why, |full| {
            full.stores.insert(key.clone());
        });
    }

    /// All that the store of a replica had in memory is on disk, or gone.
    pub(crate) fn store_has_room(&self, key: &ReplicaKey) {
        if self.is_full() {
            self.change_full("", |full| {
                full.stores.remove(key);
            });
        }
    }

    /// Whether the node has found no room at its start, and none since.
    pub(crate) fn start_was_full(&self, is_full: bool) {
        self.change_full("there was no room when the node started", |full| full.start = is_full);
    }

    /// Whether as much of the disk is used as may be; `why` says how much that is.
    pub(crate) fn set_disk_at_limit(&self, is_at_limit: bool, why: &str) {
        self.change_full(why, |full| full.limit = is_at_limit);
    }

    /// Whether the disk has stored nothing for so long that writes are refused.
    pub(crate) fn set_refuses_as_stalled(&self, refuses_as_stalled: bool) {
        self.refuses_as_stalled.store(refuses_as_stalled, Ordering::Release);
    }

    /// Why the disk takes no writes.
    pub(crate) fn refuses_writes(&self) -> Option<WriteError> {
        if self.is_full() {
            return Some(WriteError::DiskIsFull);
        }
        self.refuses_as_stalled.load(Ordering::Acquire).then_some(WriteError::DiskIsStalled)
    }

    fn change_full(&self, why: &str, change: impl FnOnce(&mut Full)) {
        let mut full = lock(&self.full);
        change(&mut full);
        let is_full = full.is_anything();
        if self.is_full.swap(is_full, Ordering::AcqRel) == is_full {
            return;
        }
        // Under the lock, so that the service gets the notices in their order.
        self.tell(if is_full { Notice::DiskIsFull(why.to_owned()) } else { Notice::DiskHasRoom });
    }

    /// Whether the disk has no room for the log or for a store, as the system says.
    pub(crate) fn has_no_room(&self) -> bool {
        lock(&self.full).has_no_room()
    }

    /// Whether the same is so, or no more of the disk is to be used, so that writes are refused.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire)
    }

    /// Why nothing is acknowledged any more.
    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }

    /// The log has failed, so the node acknowledges nothing any more: each replica stops at its next event.
    pub(crate) fn end(&self, why: String) {
        if self.ended.set(why.clone()).is_ok() {
            self.queues().iter().for_each(ReplicaQueue::wake);
            lock(&self.forgotten).clear();
            self.tell(Notice::Ended(why));
        }
    }

    /// Handles a report of the thread of the log, on that thread. Only a replica that is served here may wait, for rows that are
    /// not in memory.
    pub(crate) fn hear(&self, report: Report) {
        match report {
            Report::Synced(synced) => {
                // The next group waits while replicas are served here: not for many.
                let are_few = synced.len() <= REPLICAS_SERVED_BY_LOG;
                for (key, number) in synced {
                    self.synced(&key, number, are_few);
                }
                self.make_room();
            }
            Report::Refused(key, _, error) => {
                match self.queue(&key) {
                    Some(queue) => drop(queue.add(|waiting| waiting.refused = Some(error.to_string()))),
                    None => drop(lock(&self.forgotten).remove(&key)),
                }
                self.make_room();
            }
            Report::Full(error) => {
                self.change_full(&error.to_string(), |full| full.log = true);
                // Flushing and trimming frees room as soon as the log can write again.
                for queue in self.queues() {
                    queue.add(|waiting| waiting.holds_log = true);
                }
            }
            Report::HasRoom => {
                self.change_full("", |full| full.log = false);
                self.flush_holding();
            }
            Report::Holding(keys) => keys.into_iter().for_each(|key| self.holds_log(key)),
            Report::Ended(error) => self.end(error.to_string()),
        }
    }

    fn synced(&self, key: &ReplicaKey, number: u64, is_served_here: bool) {
        let change = |waiting: &mut Waiting| waiting.synced = waiting.synced.max(number);
        match self.queue(key) {
            Some(queue) if is_served_here => queue.add_to_serve(change).into_iter().for_each(Claim::serve),
            Some(queue) => drop(queue.add(change)),
            None if number == FORGET => {
                let then = lock(&self.forgotten).remove(key);
                then.into_iter().for_each(|then| then());
            }
            None => {}
        }
    }

    fn make_room(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting_for_room));
        for queue in waiting {
            queue.add(|waiting| waiting.has_room = true);
        }
    }
}
