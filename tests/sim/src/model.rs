//! The service that the simulated workers run: registers, in keyspaces of each kind.
//!
//! Values live in storage that all workers share and that refuses older epochs (O2); a leader keeps a copy in
//! memory and answers reads from it. So a second owner shows at once: it answers from a copy that the
//! first one's writes never reach.

use partage_core::cluster::KeyspaceRecord;
use partage_core::hash::HashFunction;
use partage_core::id::{Epoch, TransactionId};
use partage_core::key::{Key, KeyRange};
use partage_core::keyspace::{Keyspace, Mode, Ownership};
use partage_core::map::ShardMap;
use partage_core::name::KeyspaceName;
use partage_core::sharding::{Bounds, PartitionKey, Sharding, presplit};
use std::collections::BTreeMap;

/// Keys of each keyspace that clients use.
pub const KEYS: usize = 16;

/// Shards that each keyspace begins with.
const SHARDS: usize = 4;

/// Numbers an operation of a client.
pub type Op = u64;

/// A key of the run: keyspace and key, by their positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyAt {
    /// Which keyspace.
    pub keyspace: usize,
    /// Which of its keys.
    pub key: usize,
}

/// One keyspace of the run.
#[derive(Debug, Clone)]
pub struct Space {
    /// As the coordinator has it.
    pub keyspace: Keyspace,
    /// The keys that clients use, in the order of their bytes.
    pub keys: Vec<Vec<u8>>,
}

impl Space {
    /// Whether one owner at a time is promised.
    pub fn is_exclusive(&self) -> bool {
        self.keyspace.ownership == Ownership::Exclusive
    }

    /// The first records: settings, and a map of shards without replicas.
    pub fn first_records(&self) -> (KeyspaceRecord, ShardMap) {
        let mut map =
            ShardMap::empty(self.keyspace.name.clone(), self.keyspace.sharding, self.keyspace.partition_key);
        let mut edit = map.edit();
        for bounds in self.first_bounds() {
            edit.create_shard(bounds).expect("four shards are within every limit");
        }
        let diff = edit.commit(TransactionId::default());
        map.apply(&diff).expect("the diff was made from this map");
        let record = KeyspaceRecord {
            keyspace: self.keyspace.clone(),
            brake: None,
            rules: BTreeMap::new(),
            created_ms: 0,
        };
        (record, map)
    }

    fn first_bounds(&self) -> Vec<Bounds> {
        match self.keyspace.sharding {
            Sharding::HashRange { .. } => {
                let ranges = presplit::even_hashes(SHARDS).expect("four ranges of hashes");
                ranges.into_iter().map(Bounds::Hashes).collect()
            }
            _ => {
                let key = |at: usize| {
                    self.keys.get(at).filter(|_| at > 0).map_or(Key::empty(), |key| {
                        Key::new(key).expect("keys of the run are a few bytes long")
                    })
                };
                let step = KEYS / SHARDS;
                (0..SHARDS)
                    .map(|i| {
                        let (begin, end) = (key(i * step), key((i + 1) * step));
                        Bounds::Keys(KeyRange::new(begin, end).expect("keys are in order"))
                    })
                    .collect()
            }
        }
    }
}

/// The keyspaces of every run.
pub fn spaces(replicas: u32) -> Vec<Space> {
    let hashes = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
    [
        ("ledger", Sharding::KeyRange, Ownership::Exclusive, 1),
        ("sessions", hashes, Ownership::Exclusive, replicas),
        ("pages", Sharding::KeyRange, Ownership::Eventual, 2),
    ]
    .into_iter()
    .map(|(name, sharding, ownership, replicas)| {
        let name = KeyspaceName::new(name).expect("a plain word is a name");
        let keyspace = Keyspace {
            ownership,
            replicas,
            mode: Mode::Automatic,
            partition_key: PartitionKey::default(),
            ..Keyspace::new(name, sharding)
        };
        Space { keyspace, keys: (0..KEYS).map(|i| format!("k{i:02}").into_bytes()).collect() }
    })
    .collect()
}

/// What storage has of one key.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stored {
    /// The highest epoch seen; older ones are refused.
    pub epoch: Epoch,
    /// Counts writes.
    pub version: u64,
    /// The operation that wrote it last.
    pub op: Op,
}

/// Storage that all workers share.
#[derive(Debug, Default)]
pub struct Storage {
    keys: BTreeMap<KeyAt, Stored>,
}

impl Storage {
    /// What is there.
    pub fn read(&self, key: KeyAt) -> Stored {
        self.keys.get(&key).copied().unwrap_or_default()
    }

    /// Writes under `epoch`, unless a later one has been here. Gives the version.
    pub fn write(&mut self, key: KeyAt, epoch: Epoch, op: Op) -> Option<u64> {
        let stored = self.keys.entry(key).or_default();
        if epoch < stored.epoch {
            return None;
        }
        *stored = Stored { epoch, version: stored.version + 1, op };
        Some(stored.version)
    }

    /// Refuses epochs before `epoch` from now on; false when a later one has been here.
    pub fn fence(&mut self, key: KeyAt, epoch: Epoch) -> bool {
        let stored = self.keys.entry(key).or_default();
        let ours = epoch >= stored.epoch;
        stored.epoch = stored.epoch.max(epoch);
        ours
    }
}
