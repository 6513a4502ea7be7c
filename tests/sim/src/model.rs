//! The service that the simulated workers run: registers, in keyspaces of each kind.
//!
//! In most keyspaces values lie in storage that all workers share and that refuses older epochs (O2). In some they are
//! *carried*: each epoch has a file of its own that its owner copies from the last one when it begins to
//! serve, and nothing refuses a late write to an old file. There only the order of a handover keeps what was
//! acknowledged (D1), and a key that was deleted away (D3).
//!
//! A leader keeps a copy in memory and answers reads from it. So a second owner shows at once: it answers
//! from a copy that the first one's writes never reach.

use crate::disk::Disks;
use crate::table::Tables;
use partage_core::base::id::{Epoch, PlacementId, ShardId, TransactionId};
use partage_core::base::name::{KeyspaceName, PartitionName};
use partage_core::base::planted::{self, Planted};
use partage_core::cluster::KeyspaceRecord;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::{Key, KeyRange};
use partage_core::keyspace::map::ShardMap;
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding, Slot, presplit};
use partage_core::keyspace::{Keyspace, Mode, Ownership, Resharding, Throttle};
use std::collections::{BTreeMap, BTreeSet};

/// Keys of each keyspace that clients use.
pub const KEYS: usize = 16;

/// Shards that each keyspace begins with.
const SHARDS: usize = 4;

/// Numbers an operation of a client.
pub type Op = u64;

/// A life of a keyspace, from its creation to its deletion, by the lowest id that its shards can have. Of what is there
/// from the beginning it is 0. Each named partition has a life of its own, by the id of its shard.
pub type Life = u64;

/// A key of the run: keyspace and key, by their positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyAt {
    /// The position of the keyspace among those of the run.
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
    /// Its data goes from owner to owner instead of lying in storage that refuses older epochs.
    pub is_carried: bool,
    /// People create and delete it while the run goes on.
    pub comes_and_goes: bool,
}

/// Until the replica of a node that is away is replaced: short, so that nodes stay away for longer within a run.
const REPLACE_AFTER_MS: u64 = 4_000;

impl Space {
    /// Whether its shards are replicated, as those of tables.
    pub fn is_replicated(&self) -> bool {
        self.keyspace.ownership == Ownership::Replicated
    }

    /// Whether a leader's reads and all writes are linearizable.
    pub fn is_linearizable(&self) -> bool {
        self.is_exclusive() || self.is_replicated()
    }

    /// Whether one owner at a time is promised.
    pub fn is_exclusive(&self) -> bool {
        self.keyspace.ownership == Ownership::Exclusive
    }

    /// Whether people register and unregister its partitions by name.
    pub fn is_named(&self) -> bool {
        self.keyspace.sharding == Sharding::Named
    }

    /// The partitions that its keys lie in, if it has named ones.
    pub fn partitions(&self) -> BTreeSet<PartitionName> {
        let names = self.keys.iter().filter(|_| self.is_named());
        let name = |key: &Vec<u8>| {
            let name =
                std::str::from_utf8(self.keyspace.partition_key.of(key)).expect("keys are plain words");
            PartitionName::new(name).expect("a plain word is a name")
        };
        names.map(name).collect()
    }

    /// The keys that lie within `bounds`, by their positions.
    pub fn keys_in<'a>(&'a self, bounds: &'a Bounds) -> impl Iterator<Item = usize> + 'a {
        let position = |key: &'a [u8]| self.keyspace.sharding.position(self.keyspace.partition_key, key);
        let keys = self.keys.iter().enumerate();
        keys.filter(move |(_, key)| bounds.contains(position(key))).map(|(at, _)| at)
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
        let record = KeyspaceRecord::new(self.keyspace.clone(), 0, partage_core::base::id::ShardId(1));
        (record, map)
    }

    /// Where its first shards are cut, when people create it.
    pub fn cuts(&self) -> Vec<Key> {
        let begin = |bounds: Bounds| match bounds {
            Bounds::Keys(range) => Some(range.begin).filter(|begin| !begin.is_empty()),
            Bounds::Hashes(_) | Bounds::Slot(_) | Bounds::Name(_) => None,
        };
        self.first_bounds().into_iter().filter_map(begin).collect()
    }

    fn first_bounds(&self) -> Vec<Bounds> {
        match self.keyspace.sharding {
            Sharding::HashRange { .. } => {
                let ranges = presplit::even_hashes(SHARDS).expect("four ranges of hashes");
                ranges.into_iter().map(Bounds::Hashes).collect()
            }
            Sharding::Fixed { shards, .. } => Slot::all(shards),
            Sharding::Named => self.partitions().into_iter().map(Bounds::Name).collect(),
            Sharding::KeyRange => {
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

/// What a run's keyspaces are like.
#[derive(Debug, Clone, Copy)]
pub struct Cast {
    /// Replicas of each shard of `sessions`.
    pub replicas: u32,
    /// Whether the data of `ledger` is carried.
    pub carries: bool,
    /// Whether shards split, merge and get replicas by their loads.
    pub reshards: bool,
    /// Whether what hangs is given up within seconds.
    pub is_hasty: bool,
    /// Whether one move goes on at a time, so that what was planned waits and finds another world when it begins.
    pub is_slow: bool,
    /// Whether there is a keyspace that people create and delete.
    pub drafts: bool,
    /// Whether `sessions` has fixed slots, whose number people change (K7), instead of hash ranges.
    pub slots: bool,
    /// Whether there is `vault`, whose data lies on disks that outlive processes (D10).
    pub durable: bool,
    /// Whether there is `stock`, whose shards are replicated (T17).
    pub replicated: bool,
    /// Whether there is `tenants`, with named partitions that people register and unregister (A1).
    pub partitions: bool,
}

/// The keyspaces of a run.
pub fn spaces(cast: Cast) -> Vec<Space> {
    let hash = HashFunction::Xxh3_64;
    let hashes = match cast.slots {
        true => Sharding::Fixed { hash, shards: SHARDS as u32 },
        false => Sharding::HashRange { hash },
    };
    let throttle = Throttle::default();
    let throttle = if cast.is_hasty { Throttle { load_ms: 10_000, ..throttle } } else { throttle };
    let throttle = match cast.is_slow {
        true => Throttle { moves: 1, moves_per_node: 1, loads_per_node: 1, ..throttle },
        false => throttle,
    };
    let by_load = Resharding {
        split_requests_per_s: 300.0,
        window_ms: 2_000,
        max_replicas: 3,
        min_shards: 2,
        max_shards: 9,
        ..Resharding::default()
    };
    let drafts = ("drafts", Sharding::KeyRange, Ownership::Exclusive, cast.replicas.min(2), cast.carries);
    let all = [
        ("ledger", Sharding::KeyRange, Ownership::Exclusive, 1, cast.carries),
        ("sessions", hashes, Ownership::Exclusive, cast.replicas, false),
        ("pages", Sharding::KeyRange, Ownership::Eventual, 2, false),
    ];
    let mut spaces: Vec<Space> = all
        .into_iter()
        .chain(cast.drafts.then_some(drafts))
        .map(|(name, sharding, ownership, replicas, is_carried)| {
            let name = KeyspaceName::new(name).expect("a plain word is a name");
            let keyspace = Keyspace {
                ownership,
                replicas,
                mode: Mode::Automatic,
                partition_key: PartitionKey::default(),
                throttle: throttle.clone(),
                resharding: if cast.reshards { by_load.clone() } else { Resharding::default() },
                ..Keyspace::new(name, sharding)
            };
            let keys = (0..KEYS).map(|i| format!("k{i:02}").into_bytes()).collect();
            let comes_and_goes = keyspace.name.as_str() == "drafts";
            Space { keyspace, keys, is_carried, comes_and_goes }
        })
        .collect();
    let vault = cast.durable.then(|| vault(&spaces[0], cast.replicas));
    let tenants = cast.partitions.then(|| tenants(vault.as_ref().unwrap_or(&spaces[0]), cast.replicas));
    let stock = cast.replicated.then(|| stock(&spaces[0], cast.replicas));
    spaces.extend(vault.into_iter().chain(tenants).chain(stock));
    spaces
}

/// A keyspace with named partitions of four keys each, else as `like`: on disks where there is `vault`.
fn tenants(like: &Space, replicas: u32) -> Space {
    let name = KeyspaceName::new("tenants").expect("a plain word is a name");
    let (sharding, partition_key) = (Sharding::Named, PartitionKey::UpTo { delimiter: b'/' });
    let resharding = Resharding::default();
    let keyspace = Keyspace { name, sharding, partition_key, replicas, resharding, ..like.keyspace.clone() };
    let keys = (0..KEYS).map(|i| format!("p{}/k{i:02}", i * SHARDS / KEYS).into_bytes()).collect();
    Space { keyspace, keys, is_carried: false, comes_and_goes: false }
}

/// A durable keyspace, else as `like`.
fn vault(like: &Space, replicas: u32) -> Space {
    let name = KeyspaceName::new("vault").expect("a plain word is a name");
    let throttle = Throttle { replace_after_ms: REPLACE_AFTER_MS, ..like.keyspace.throttle.clone() };
    let resharding = Resharding::default();
    let keyspace = Keyspace { name, replicas, throttle, resharding, durable: true, ..like.keyspace.clone() };
    Space { keyspace, keys: like.keys.clone(), is_carried: false, comes_and_goes: false }
}

/// A table, else as `like`.
fn stock(like: &Space, replicas: u32) -> Space {
    let name = KeyspaceName::new("stock").expect("a plain word is a name");
    let throttle = Throttle { replace_after_ms: REPLACE_AFTER_MS, ..like.keyspace.throttle.clone() };
    let replicas = replicas.max(2);
    let keyspace = Keyspace {
        name,
        replicas,
        throttle,
        ownership: Ownership::Replicated,
        durable: true,
        min_in_sync: replicas - 1,
        ..like.keyspace.clone()
    };
    Space { keyspace, keys: like.keys.clone(), is_carried: false, comes_and_goes: false }
}

/// What a write does to its register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Deed {
    /// Puts a value into the register.
    Put,
    /// Takes the value out of the register.
    Delete,
}

/// What a reader or a writer saw of a register: how many writes it had, and whether a value was there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    /// In which life of its keyspace.
    pub life: Life,
    /// How many writes it had had by then.
    pub version: u64,
    /// The last one put a value.
    pub is_there: bool,
}

/// A register: all writes to it, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Register {
    writes: Vec<(Op, Deed)>,
}

impl Register {
    /// What a reader sees of it, in that life of its keyspace.
    pub fn seen(&self, life: Life) -> Seen {
        let is_there = self.writes.last().is_some_and(|(_, deed)| *deed == Deed::Put);
        Seen { life, version: self.version(), is_there }
    }

    /// How many writes it had.
    pub fn version(&self) -> u64 {
        self.writes.len() as u64
    }

    /// Which operation made that version.
    pub fn made_by(&self, version: u64) -> Option<Op> {
        self.writes.get((version as usize).checked_sub(1)?).map(|(op, _)| *op)
    }

    /// As the write of that operation left it.
    pub fn written_by(&self, op: Op) -> Option<Seen> {
        let at = self.writes.iter().position(|(by, _)| *by == op)?;
        Some(Seen { life: 0, version: at as u64 + 1, is_there: self.writes[at].1 == Deed::Put })
    }

    /// Takes in a write.
    pub fn write(&mut self, op: Op, deed: Deed) {
        self.writes.push((op, deed));
    }

    /// As the next owner copies it.
    fn carried(&self) -> Register {
        let mut copy = self.clone();
        if planted::is(Planted::D1) {
            // A copy from the time of loading that never caught up.
            copy.writes.pop();
        }
        if planted::is(Planted::D3) {
            let last = copy.writes.iter().rposition(|(_, deed)| *deed == Deed::Put);
            copy.writes.truncate(last.map_or(0, |last| last + 1));
        }
        copy
    }
}

/// A register in shared storage.
#[derive(Debug, Default)]
struct Shared {
    /// The highest epoch seen; older ones are refused.
    epoch: Epoch,
    register: Register,
}

/// A register in the file of one epoch, which the owner of that epoch made.
#[derive(Debug)]
struct Carried {
    placement: PlacementId,
    register: Register,
}

/// Where values are. A service that is right has them by the ids of shards, which are never used again, and so apart for
/// each life of a keyspace.
#[derive(Debug, Default)]
pub struct Storage {
    shared: BTreeMap<(KeyAt, Life), Shared>,
    carried: BTreeMap<(KeyAt, Life), BTreeMap<Epoch, Carried>>,
    carries: Vec<bool>,
    /// Of each keyspace that was created in the run.
    lives: BTreeMap<usize, Vec<Life>>,
    /// Of each keyspace, whether its partitions have lives of their own.
    named: Vec<bool>,
    /// The latest shards of keys in named partitions.
    partitions: BTreeMap<KeyAt, Life>,
    durable: Vec<bool>,
    replicated: Vec<bool>,
    /// The disks of workers.
    pub disks: Disks,
    /// What is stored of tables on them.
    pub tables: Tables,
}

impl Storage {
    /// Storage with nothing in it but the named partitions of these keyspaces.
    pub fn new(spaces: &[Space]) -> Storage {
        let carries = spaces.iter().map(|space| space.is_carried).collect();
        let durable = spaces.iter().map(|space| space.keyspace.durable).collect();
        let named = spaces.iter().map(Space::is_named).collect();
        let replicated = spaces.iter().map(Space::is_replicated).collect();
        let mut storage = Storage { carries, durable, replicated, named, ..Storage::default() };
        for (keyspace, space) in spaces.iter().enumerate().filter(|(_, space)| space.is_named()) {
            for shard in space.first_records().1.shards() {
                let keys = space.keys_in(&shard.bounds).map(|key| KeyAt { keyspace, key });
                storage.begin_partition(keys, shard.id);
            }
        }
        storage
    }

    /// A partition with these keys is registered.
    pub fn begin_partition(&mut self, keys: impl IntoIterator<Item = KeyAt>, shard: ShardId) {
        self.partitions.extend(keys.into_iter().map(|key| (key, shard.0)));
    }

    /// A keyspace is created, whose shards have this id or a later one.
    pub fn begin_life(&mut self, keyspace: usize, first: ShardId) {
        self.lives.entry(keyspace).or_default().push(first.0);
    }

    /// The latest life that a key is of.
    pub fn life(&self, key: KeyAt) -> Life {
        let of_keyspace = || self.lives.get(&key.keyspace).and_then(|lives| lives.last().copied());
        self.partitions.get(&key).copied().or_else(of_keyspace).unwrap_or_default()
    }

    /// The life that a shard is of.
    pub fn life_of(&self, keyspace: usize, shard: ShardId) -> Life {
        if self.named[keyspace] {
            return shard.0;
        }
        let lives = self.lives.get(&keyspace).into_iter().flatten();
        lives.rev().copied().find(|life| *life <= shard.0).unwrap_or_default()
    }

    fn carries(&self, key: KeyAt) -> bool {
        self.carries[key.keyspace]
    }

    /// What is there in the latest life, by the latest epoch.
    pub fn read(&self, key: KeyAt) -> Option<&Register> {
        self.read_in(key, self.life(key))
    }

    fn read_in(&self, key: KeyAt, life: Life) -> Option<&Register> {
        let at = (key, life);
        if self.replicated[key.keyspace] {
            self.tables.register(key)
        } else if self.durable[key.keyspace] {
            self.disks.newest(key, life)
        } else if self.carries(key) {
            self.carried.get(&at).and_then(|files| files.values().next_back()).map(|file| &file.register)
        } else {
            self.shared.get(&at).map(|shared| &shared.register)
        }
    }

    /// What a reader sees of it in that life.
    pub fn seen(&self, key: KeyAt, life: Life) -> Seen {
        if self.durable[key.keyspace] && !self.replicated[key.keyspace] {
            return self.disks.most(key, life);
        }
        let nothing = Seen { life, ..Seen::default() };
        self.read_in(key, life).map_or(nothing, |register| register.seen(life))
    }

    /// An owner begins under `epoch`: older ones are refused from now on, or its file is made from the last
    /// one. None when storage has seen a later epoch.
    pub fn open(&mut self, key: KeyAt, shard: ShardId, epoch: Epoch, placement: PlacementId) -> Option<Seen> {
        let life = self.life_of(key.keyspace, shard);
        if self.carries(key) {
            let files = self.carried.entry((key, life)).or_default();
            let last = files.range(..epoch).next_back().map(|(_, file)| file.register.carried());
            let file = Carried { placement, register: last.unwrap_or_default() };
            return Some(files.entry(epoch).or_insert(file).register.seen(life));
        }
        let shared = self.shared.entry((key, life)).or_default();
        (epoch >= shared.epoch).then(|| {
            shared.epoch = epoch;
            shared.register.seen(life)
        })
    }

    /// Writes under `epoch`. None when storage refuses: a later epoch has been here, or there is no such file.
    pub fn write(&mut self, key: KeyAt, shard: ShardId, epoch: Epoch, op: Op, deed: Deed) -> Option<Seen> {
        let life = self.life_of(key.keyspace, shard);
        if self.carries(key) {
            let file = self.carried.get_mut(&(key, life))?.get_mut(&epoch)?;
            file.register.write(op, deed);
            return Some(file.register.seen(life));
        }
        let shared = self.shared.entry((key, life)).or_default();
        if epoch < shared.epoch {
            return None;
        }
        shared.epoch = epoch;
        shared.register.write(op, deed);
        Some(shared.register.seen(life))
    }

    /// The files that a replica made are deleted.
    pub fn discard(&mut self, placement: PlacementId, keyspace: usize) {
        let of_it = self.carried.iter_mut().filter(|((key, _), _)| key.keyspace == keyspace);
        of_it.for_each(|(_, files)| files.retain(|_, file| file.placement != placement));
    }
}
