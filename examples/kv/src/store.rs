//! The data of the shards that this node holds.

use bytes::Bytes;
use partage_core::exchange::ReplicaKey;
use partage_core::id::Epoch;
use partage_core::name::KeyspaceName;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Initial data of keyspaces, for shards that nobody holds yet.
pub type Seed = BTreeMap<KeyspaceName, Arc<BTreeMap<Vec<u8>, Bytes>>>;

/// When a value was written: the leader's epoch, and a count within it. As there is one leader for an
/// epoch, later writes have higher versions, whoever led.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Version {
    /// The leader's epoch.
    pub epoch: Epoch,
    /// Counts its writes.
    pub count: u64,
}

/// A value, or the memory of a deletion, which must travel too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// When it was written.
    pub version: Version,
    /// None = deleted.
    pub value: Option<Bytes>,
}

#[derive(Debug, Default)]
struct Shard {
    entries: BTreeMap<Vec<u8>, Entry>,
    latest: Version,
    /// Everything up to here is in `entries`: it was copied. Beyond it a replicated write may be missing.
    complete: Version,
}

/// All shards of this node.
#[derive(Debug, Default)]
pub struct Store {
    shards: Mutex<BTreeMap<ReplicaKey, Shard>>,
}

impl Store {
    fn shards(&self) -> MutexGuard<'_, BTreeMap<ReplicaKey, Shard>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A shard with that copied data, beside what was sent to it meanwhile.
    pub fn fill(&self, replica: &ReplicaKey, entries: impl IntoIterator<Item = (Vec<u8>, Entry)>) {
        let mut shards = self.shards();
        let shard = shards.entry(replica.clone()).or_default();
        for (key, entry) in entries {
            shard.complete = shard.complete.max(entry.version);
            shard.take(key, entry);
        }
    }

    /// Takes a copied or replicated entry, unless it is gone by now.
    pub fn replicate(&self, replica: &ReplicaKey, key: Vec<u8>, entry: Entry) -> bool {
        self.shards().get_mut(replica).map(|shard| shard.take(key, entry)).is_some()
    }

    /// The leader's write in `epoch`; returns what to replicate. None: the shard is not here.
    pub fn write(
        &self,
        replica: &ReplicaKey,
        epoch: Epoch,
        key: &[u8],
        value: Option<Bytes>,
    ) -> Option<Entry> {
        let mut shards = self.shards();
        let shard = shards.get_mut(replica)?;
        let count = if shard.latest.epoch == epoch { shard.latest.count + 1 } else { 1 };
        let entry = Entry { version: Version { epoch, count }, value };
        shard.take(key.to_vec(), entry.clone());
        Some(entry)
    }

    /// The value of a key.
    pub fn read(&self, replica: &ReplicaKey, key: &[u8]) -> Option<Bytes> {
        self.shards().get(replica)?.entries.get(key)?.value.clone()
    }

    /// The version up to which nothing is missing.
    pub fn complete(&self, replica: &ReplicaKey) -> Version {
        self.shards().get(replica).map(|shard| shard.complete).unwrap_or_default()
    }

    /// What was written after `since`; without it, everything.
    pub fn since(&self, replica: &ReplicaKey, since: Option<Version>) -> Option<Vec<(Vec<u8>, Entry)>> {
        let shards = self.shards();
        let later = |entry: &Entry| since.is_none_or(|since| entry.version > since);
        let entries = shards.get(replica)?.entries.iter().filter(|(_, entry)| later(entry));
        Some(entries.map(|(key, entry)| (key.clone(), entry.clone())).collect())
    }

    /// Of the replicas held here, that of a shard: the newest stay.
    pub fn find(&self, keyspace: &str, shard: u64) -> Option<ReplicaKey> {
        let shards = self.shards();
        let of = |key: &&ReplicaKey| key.keyspace.as_str() == keyspace && key.shard.0 == shard;
        shards.keys().filter(of).max_by_key(|key| key.placement).cloned()
    }

    /// Lets a shard go.
    pub fn drop_shard(&self, replica: &ReplicaKey) {
        self.shards().remove(replica);
    }

    /// Keys and bytes of a shard, and the key in the middle.
    pub fn size(&self, replica: &ReplicaKey) -> (u64, u64, Option<Vec<u8>>) {
        let shards = self.shards();
        let Some(shard) = shards.get(replica) else { return (0, 0, None) };
        let bytes = |(key, entry): (&Vec<u8>, &Entry)| key.len() + entry.value.as_ref().map_or(0, Bytes::len);
        let total: usize = shard.entries.iter().map(bytes).sum();
        let median = shard.entries.keys().nth(shard.entries.len() / 2).cloned();
        (shard.entries.len() as u64, total as u64, median)
    }
}

impl Shard {
    fn take(&mut self, key: Vec<u8>, entry: Entry) {
        self.latest = self.latest.max(entry.version);
        match self.entries.get_mut(&key) {
            Some(known) if known.version >= entry.version => {}
            Some(known) => *known = entry,
            None => drop(self.entries.insert(key, entry)),
        }
    }
}
