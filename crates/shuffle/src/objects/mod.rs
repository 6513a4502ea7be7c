//! What an object store has of shuffles, when disks fill: one folder for each slot of a shuffle and each process that has put it.
//!
//! ```text
//!  <root>/<cluster>/<pool>/<home>/<shuffle>/<slot>/<node>-<incarnation>/00000001, 00000002, …   what is read, range by range
//!                                                                      /index                  where each range lies, put last
//! ```
//!
//! The holder decides what is put and deleted, and what counts as put (`holder/objects` of [`partage_service::shuffle`]). Here it
//! is done:
//!
//! | what | file |
//! |---|---|
//! | the threads that put, list and delete | `offloading.rs` |
//! | how batches become objects, and the index | `packing.rs`, `layout.rs` |
//! | how a range is read: its own bytes, some reads ahead | `ranges.rs`, `ahead.rs` |
//! | the memory of what is read, and of indexes that are kept | `memory.rs`, `layouts.rs` |
//! | how long a store that does not answer is left alone by reads | `rest.rs` |
//!
//! Each piece of a batch has its checksum behind it, and the index has one.
//!
//! The names begin with the cluster, so that a coordinator that knows nothing of another one's shuffles deletes none of theirs.
//!
//! Which store it is the caller of the crate says, by [`ObjectPlace`]: no client of a cloud is linked here.
//!
//! What was not done: what a process that died has put of a living shuffle and had no receipt for is deleted with the shuffle,
//! not before. An object has some megabytes of batches, whose ranges lie apart: where a slot has very many ranges each read is
//! short, and more memory for what is put would make it longer.

mod ahead;
mod layout;
mod layouts;
mod memory;
mod offloading;
mod packing;
mod ranges;
mod rest;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use offloading::{ObjectJob, Offloading};

pub use crate::limits::OBJECT_TIME;

use crate::limits::{LAYOUT_BYTES, OBJECT_READ_BYTES};
use bytes::Bytes;
use layouts::Layouts;
use memory::ReadMemory;
use partage_clock::Clock;
use partage_core::base::id::ClusterId;
use partage_core::base::name::KeyspaceName;
use partage_service::shuffle::pool::PoolMap;
use partage_service::shuffle::{BufferId, PoolSlot, ShuffleId};
use rest::ReadRest;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why the object store has not done it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct ObjectError {
    /// The object is not there, or is not as it was put: asking again does not help.
    pub is_lost: bool,
    /// What it says, and where.
    pub why: String,
}

/// An object store. Its threads may be waited for: each call returns within about [`OBJECT_TIME`], also when the store does not
/// answer.
pub trait ObjectPlace: fmt::Debug + Send + Sync {
    /// As it may be shown.
    fn url(&self) -> &str;

    /// Puts an object, whole or not at all, over one that may be there. When it returns, the object is durable.
    ///
    /// # Errors
    /// It may be there, or may come to be there later.
    fn put(&self, path: &str, bytes: Bytes) -> Result<(), ObjectError>;

    /// So many bytes of an object, from that one on.
    ///
    /// # Errors
    /// The object is not there, or is shorter, or the store does not give it.
    fn get(&self, path: &str, from: u64, bytes: u64) -> Result<Bytes, ObjectError>;

    /// An object as a whole, of so many bytes at most.
    ///
    /// # Errors
    /// As of [`ObjectPlace::get`]; or it is longer.
    fn get_all(&self, path: &str, most: u64) -> Result<Bytes, ObjectError>;

    /// The paths of all objects below a path.
    ///
    /// # Errors
    /// The store does not list.
    fn list(&self, path: &str) -> Result<Vec<String>, ObjectError>;

    /// The names of the folders right below a path, in which there are objects; none if there is nothing.
    ///
    /// # Errors
    /// The store does not list.
    fn folders(&self, path: &str) -> Result<Vec<String>, ObjectError>;

    /// Deletes an object; one that is not there is deleted.
    ///
    /// # Errors
    /// It may be there.
    fn delete(&self, path: &str) -> Result<(), ObjectError>;

    /// The node ends: calls that are under way return at once, with an error, and so do further ones.
    fn stop(&self);
}

/// The cluster of the node, when a coordinator has told it.
pub type ClusterOf = Arc<dyn Fn() -> Option<ClusterId> + Send + Sync>;

/// The object store of a node.
#[derive(Clone)]
pub struct ObjectStoreConfig {
    /// The store.
    pub place: Arc<dyn ObjectPlace>,
    /// The cluster: names of objects begin with it.
    pub cluster: ClusterOf,
}

impl fmt::Debug for ObjectStoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectStoreConfig").field("place", &self.place).finish_non_exhaustive()
    }
}

/// What was put, read and deleted so far, and how often the store has refused.
#[derive(Debug, Default)]
pub(crate) struct ObjectCounts {
    pub(crate) put_bytes: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) deleted: AtomicU64,
    pub(crate) failures: AtomicU64,
}

/// The object store as the threads of a node use it.
pub(crate) struct Objects {
    config: ObjectStoreConfig,
    pool: KeyspaceName,
    /// Of the pool.
    slots: u32,
    /// The indexes that were read last.
    layouts: Layouts,
    /// That of reads.
    memory: ReadMemory,
    clock: Clock,
    rest: Mutex<ReadRest>,
    /// What was refused when it was asked last, and why: a store may give, and take nothing.
    failing: Mutex<BTreeMap<&'static str, String>>,
    /// The log has said that objects of another process are not there, and none of another one was seen since.
    is_blind: AtomicBool,
    /// The last shuffle of a home that was looked at, where the next look at it begins.
    looked_at: Mutex<BTreeMap<PoolSlot, ShuffleId>>,
    pub(crate) counts: ObjectCounts,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").field("config", &self.config).finish_non_exhaustive()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked while it had the lock has changed nothing by halves: each change is one insertion.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Objects {
    pub(crate) fn new(config: ObjectStoreConfig, pool: KeyspaceName, map: &PoolMap) -> Objects {
        let slots = u32::try_from(map.places.len()).unwrap_or(u32::MAX);
        let (layouts, memory) = (Layouts::new(LAYOUT_BYTES), ReadMemory::new(OBJECT_READ_BYTES));
        let (failing, counts) = Default::default();
        let (rest, is_blind, looked_at) = Default::default();
        let clock = Clock::start();
        Objects { config, pool, slots, layouts, memory, clock, rest, failing, is_blind, looked_at, counts }
    }

    fn place(&self) -> &dyn ObjectPlace {
        self.config.place.as_ref()
    }

    pub(crate) fn stop(&self) {
        self.place().stop();
    }

    /// What reads take in memory now, and the indexes that are kept, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory.bytes() + self.layouts.bytes()
    }

    /// A shuffle has ended: nothing of it is read any more.
    pub(crate) fn forget(&self, shuffle: ShuffleId) {
        // Without the cluster nothing was read.
        if let Ok(folder) = self.of_shuffle(shuffle) {
            self.layouts.forget_below(&folder);
        }
    }

    /// Why the store refuses, if it does.
    pub(crate) fn failing(&self) -> Option<String> {
        lock(&self.failing).values().next().cloned()
    }

    /// Says what came of a call: the log has the first failure of its kind, and the end of all. That an object is not there says
    /// nothing of the store.
    fn noted<T>(&self, kind: &'static str, done: Result<T, ObjectError>) -> Result<T, ObjectError> {
        let url = self.place().url();
        match &done {
            Ok(_) => {
                let mut failing = lock(&self.failing);
                if failing.remove(kind).is_some() && failing.is_empty() {
                    tracing::info!("the object store {url} works again");
                }
            }
            Err(error) => {
                self.counts.failures.fetch_add(1, Ordering::Relaxed);
                if !error.is_lost && lock(&self.failing).insert(kind, error.why.clone()).is_none() {
                    tracing::warn!(
                        "the object store {url} refuses to {kind}: {}; what is on disks stays there, and it is asked again",
                        error.why
                    );
                }
            }
        }
        done
    }

    /// What is said not to be there is lost if the store has anything of this cluster: a folder that is not mounted has nothing.
    fn confirmed(&self, error: ObjectError) -> ObjectError {
        let has_some = |cluster: ClusterId| {
            let folders = self.place().folders(&cluster.to_string());
            folders.is_ok_and(|folders| !folders.is_empty())
        };
        let is_lost = error.is_lost && (self.config.cluster)().is_some_and(has_some);
        ObjectError { is_lost, ..error }
    }

    /// Whether what a process has put of a slot of a shuffle is seen from here, as a whole: its index is put last. The store is
    /// asked, whatever is kept here.
    fn sees(&self, shuffle: ShuffleId, slot: PoolSlot, by: &BufferId) -> bool {
        let seen = self.folder(shuffle, slot, by).and_then(|folder| self.has_index(&folder));
        let Err(error) = &seen else {
            self.is_blind.store(false, Ordering::Relaxed);
            return true;
        };
        if error.is_lost && !self.is_blind.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "node {} has put slot {} of shuffle {shuffle} into the object store, and it is not there for this node, which keeps its copy: {error}; do both have the same --object-store?",
                by.node,
                slot.0
            );
        }
        false
    }

    /// The folder of a home, in which its shuffles are.
    fn home(&self, home: PoolSlot) -> Result<String, ObjectError> {
        let unknown = || ObjectError {
            is_lost: false,
            why: "no coordinator has told the node its cluster yet, with which the names of objects begin"
                .to_owned(),
        };
        let cluster = (self.config.cluster)().ok_or_else(unknown)?;
        Ok(format!("{cluster}/{}/{}", self.pool, home.0))
    }

    /// The folder of a shuffle.
    fn of_shuffle(&self, shuffle: ShuffleId) -> Result<String, ObjectError> {
        let home = self.home(PoolMap::home_among(shuffle, self.slots))?;
        Ok(format!("{home}/{shuffle}"))
    }

    /// That of a slot of it.
    fn part(&self, shuffle: ShuffleId, slot: PoolSlot) -> Result<String, ObjectError> {
        let of_shuffle = self.of_shuffle(shuffle)?;
        Ok(format!("{of_shuffle}/{}", slot.0))
    }

    /// The folder in it of what a process has put.
    fn folder(&self, shuffle: ShuffleId, slot: PoolSlot, by: &BufferId) -> Result<String, ObjectError> {
        let part = self.part(shuffle, slot)?;
        Ok(format!("{part}/{}-{:016x}", by.node, by.incarnation.0))
    }

    fn object(folder: &str, number: u32) -> String {
        format!("{folder}/{number:08}")
    }

    fn index(folder: &str) -> String {
        format!("{folder}/index")
    }

    /// Of which slots of shuffles of a home there are objects, some of them at a time: the next call goes on.
    fn found(&self, home: PoolSlot, most: usize) -> Result<Vec<(ShuffleId, PoolSlot)>, ObjectError> {
        let folder = self.home(home)?;
        let names = self.noted("list", self.place().folders(&folder))?;
        let shuffles = names.iter().filter_map(|name| u128::from_str_radix(name, 16).ok());
        let mut shuffles: Vec<ShuffleId> = shuffles.map(ShuffleId).collect();
        shuffles.sort_unstable();
        let before = lock(&self.looked_at).remove(&home);
        let begin = before.map_or(0, |before| shuffles.partition_point(|one| *one <= before));
        shuffles.rotate_left(begin);
        let mut found = Vec::new();
        for shuffle in shuffles {
            let slots = self.noted("list", self.place().folders(&format!("{folder}/{shuffle}")))?;
            let slots = slots.iter().filter_map(|slot| slot.parse::<u32>().ok());
            found.extend(slots.map(|slot| (shuffle, PoolSlot(slot))));
            if found.len() >= most {
                lock(&self.looked_at).insert(home, shuffle);
                break;
            }
        }
        Ok(found)
    }

    /// Deletes all objects of a slot of a shuffle.
    fn delete(&self, shuffle: ShuffleId, slot: PoolSlot) -> Result<(), ObjectError> {
        let folder = self.part(shuffle, slot)?;
        self.layouts.forget_below(&folder);
        for path in self.noted("list", self.place().list(&folder))? {
            self.noted("delete", self.place().delete(&path))?;
            self.counts.deleted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
