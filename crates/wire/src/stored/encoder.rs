//! Writing: from core's writes to the store's operations.
//!
//! The encoder remembers what a writer must know of what is stored: how many parts a record has, so that a
//! shorter successor takes the rest away, and how long each map's log is, so that it is begun anew in time.

use super::envelope::{self, HEADER_BYTES};
use super::manifest::Sums;
use super::path::{Log, Path};
use crate::limits::{CHUNKS_WITH_HEAD, DIFF_PARTS, DIFFS, PARTS, SMALL_LOG_BYTES, VALUE_BYTES};
use crate::proto;
use bytes::Bytes;
use partage_core::base::id::Generation;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::cluster::Write;
use partage_core::keyspace::map::{MapDiff, Shard, ShardMap};
use partage_core::keyspace::sharding::Bounds;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};

/// One change of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreOp {
    /// Creates or replaces a key.
    Put(String, Bytes),
    /// Removes a key; one that is not there is no error.
    Delete(String),
}

impl StoreOp {
    /// The key that changes.
    pub fn key(&self) -> &str {
        match self {
            StoreOp::Put(key, _) | StoreOp::Delete(key) => key,
        }
    }

    /// Bytes of key and value.
    pub(super) fn bytes(&self) -> usize {
        match self {
            StoreOp::Put(key, value) => key.len() + value.len(),
            StoreOp::Delete(key) => key.len(),
        }
    }
}

/// What to do about one outbox, see [`Batch::transactions`]. No key is changed twice in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// First: in any number of transactions. Means nothing before the commit.
    pub prepare: Vec<StoreOp>,
    /// Then: all or nothing.
    pub commit: Vec<StoreOp>,
    /// Then: in any number of transactions, or never: what [`super::read`] would call litter.
    pub tidy: Vec<StoreOp>,
}

/// A write that cannot be stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The record does not fit into [`PARTS`] parts.
    #[error("the record {key} has {bytes} bytes, the limit is {limit}: make smaller plans, or fewer rules", limit = PARTS * VALUE_BYTES)]
    TooLarge {
        /// The key of the record that is too large.
        key: String,
        /// The size of the record in bytes.
        bytes: usize,
    },
    /// The map that was given is not the one that the writes lead to.
    #[error(
        "keyspace {keyspace}: the writes lead to map {to}, but the current map is {at}: give the map after the writes"
    )]
    OtherMap {
        /// The keyspace whose map was given.
        keyspace: KeyspaceName,
        /// Where the writes lead.
        to: Generation,
        /// The map that was given; none = there is none.
        at: String,
    },
}

/// The log of one map, as far as a writer must know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MapLog {
    pub(super) log: Log,
    pub(super) chunks: u32,
    pub(super) base_bytes: usize,
    /// Sequences of the diffs.
    pub(super) diffs: Vec<u64>,
    pub(super) diff_bytes: usize,
}

impl MapLog {
    /// Whether so many diffs more, of so many bytes together, are put behind it. Else it begins anew.
    fn takes(&self, diffs: usize, bytes: usize) -> bool {
        self.diffs.len() + diffs <= DIFFS
            && self.diff_bytes + bytes <= self.base_bytes.max(SMALL_LOG_BYTES)
            && bytes <= DIFF_PARTS * (VALUE_BYTES - HEADER_BYTES)
    }
}

/// What is stored, as far as a writer must know it. New for an empty store, else from [`super::read`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreEncoder {
    pub(super) maps: BTreeMap<KeyspaceName, MapLog>,
    /// How many parts each record has that has more than one.
    pub(super) parts: BTreeMap<Path, u16>,
    /// What the manifests say.
    pub(super) sums: Sums,
}

/// Writes of one batch by what they replace: the last word about each thing counts.
#[derive(Default)]
struct Latest<'a> {
    records: BTreeMap<Path, Option<Vec<u8>>>,
    diffs: BTreeMap<&'a KeyspaceName, Vec<&'a MapDiff>>,
    dropped: BTreeSet<&'a KeyspaceName>,
}

impl<'a> Latest<'a> {
    fn of(writes: &'a [Write]) -> Latest<'a> {
        let mut latest = Latest::default();
        for write in writes {
            let (path, record) = match write {
                Write::Cluster(record) => {
                    (Path::Cluster, Some(proto::StoredCluster::from(record).encode_to_vec()))
                }
                Write::Keyspace(record) => (
                    Path::Keyspace(record.keyspace.name.clone()),
                    Some(proto::StoredKeyspace::from(record).encode_to_vec()),
                ),
                Write::DropKeyspace(name) => {
                    latest.diffs.remove(name);
                    latest.dropped.insert(name);
                    (Path::Keyspace(name.clone()), None)
                }
                Write::Map(diff) => {
                    latest.diffs.entry(&diff.keyspace).or_default().push(diff);
                    continue;
                }
                Write::Node(record) => (
                    Path::Node(record.spec.id.clone()),
                    Some(proto::StoredNode::from(record).encode_to_vec()),
                ),
                Write::DropNode(id) => (Path::Node(NodeId::clone(id)), None),
                Write::Plan(plan) => (Path::Plan(plan.id), Some(proto::Plan::from(plan).encode_to_vec())),
                Write::DropPlan(id) => (Path::Plan(*id), None),
            };
            latest.records.insert(path, record);
        }
        latest
    }
}

impl StoreEncoder {
    /// The operations that make `writes` durable. `map` gives the current map of a keyspace: the one that
    /// the writes lead to. After an error the encoder is of no more use.
    pub fn encode<'m>(
        &mut self,
        writes: &[Write],
        map: impl Fn(&KeyspaceName) -> Option<&'m ShardMap>,
    ) -> Result<Batch, EncodeError> {
        let latest = Latest::of(writes);
        let mut batch = Batch::default();
        for name in latest.dropped.iter().copied() {
            let head = (!latest.diffs.contains_key(name)).then(|| Path::Head(name.clone()));
            head.into_iter().for_each(|head| batch.commit.push(StoreOp::Delete(head.to_string())));
            self.drop_log(name, &mut batch.tidy);
        }
        self.note(&latest);
        self.put_manifests(&latest, &mut batch)?;
        self.put_records(latest.records, &mut batch)?;
        for (name, diffs) in latest.diffs {
            self.extend_log(name, &diffs, map(name), &mut batch)?;
        }
        Ok(batch)
    }

    /// The operations that make `writes` durable where metadata servers keep the maps: all but the changes of maps,
    /// which are given back, by keyspace and in order. Their swaps belong into the transaction of the commit. A map
    /// that is here is taken away: the caller gives it to metadata servers. No keyspace is dropped and created again
    /// in `writes`.
    pub fn encode_apart<'a>(
        &mut self,
        writes: &'a [Write],
    ) -> Result<(Batch, BTreeMap<&'a KeyspaceName, Vec<&'a MapDiff>>), EncodeError> {
        let latest = Latest::of(writes);
        let mut batch = Batch::default();
        for name in &latest.dropped {
            batch.commit.push(StoreOp::Delete(Path::Metadata(KeyspaceName::clone(name)).to_string()));
        }
        for name in latest.dropped.iter().chain(latest.diffs.keys()) {
            if self.maps.contains_key(*name) {
                batch.commit.push(StoreOp::Delete(Path::Head(KeyspaceName::clone(name)).to_string()));
                self.drop_log(name, &mut batch.tidy);
            }
        }
        self.note(&latest);
        self.put_manifests(&latest, &mut batch)?;
        self.put_records(latest.records, &mut batch)?;
        Ok((batch, latest.diffs))
    }

    /// How many shards [`StoreEncoder::encode`] goes through for these writes, at most: those that they name, and all of a map
    /// whose log may begin anew, unless many of it change. So it is known before whether that takes a while.
    pub fn most_shards<'m>(
        &self,
        writes: &[Write],
        map: impl Fn(&KeyspaceName) -> Option<&'m ShardMap>,
    ) -> usize {
        let (mut changes, mut dropped) = (BTreeMap::<_, Vec<&MapDiff>>::new(), BTreeSet::new());
        let mut most = 0;
        for write in writes {
            most += shards_named(write);
            match write {
                Write::Map(diff) => changes.entry(&diff.keyspace).or_default().push(diff),
                Write::DropKeyspace(name) => {
                    dropped.insert(name);
                }
                Write::Cluster(_)
                | Write::Keyspace(_)
                | Write::Node(_)
                | Write::DropNode(_)
                | Write::Plan(_)
                | Write::DropPlan(_) => {}
            }
        }
        let shards = changes.into_iter().map(|(name, diffs)| {
            // Where many change, the others need not be counted: it takes a while in any case.
            if diffs.iter().map(|diff| diff.changed.len()).sum::<usize>() > MANY_SHARDS {
                return 0;
            }
            let bytes: usize = diffs.iter().map(|diff| most_diff_bytes(diff)).sum();
            let log = self.maps.get(name).filter(|_| !dropped.contains(name));
            let is_longer = log.is_some_and(|log| log.takes(diffs.len(), bytes));
            if is_longer { 0 } else { map(name).map_or(0, ShardMap::len) }
        });
        most + shards.sum::<usize>()
    }

    /// Takes up what the records and maps are after these writes.
    fn note(&mut self, latest: &Latest<'_>) {
        for (path, record) in &latest.records {
            self.sums.note(path, record.as_deref());
        }
        for name in &latest.dropped {
            self.sums.at.remove(*name);
        }
        for (name, diffs) in &latest.diffs {
            self.sums.at.extend(diffs.last().map(|diff| (KeyspaceName::clone(name), diff.to)));
        }
    }

    /// Writes the manifests of what these writes change.
    fn put_manifests(&mut self, latest: &Latest<'_>, batch: &mut Batch) -> Result<(), EncodeError> {
        let of_records = latest.records.keys().filter_map(Path::keyspace);
        let keyspaces: BTreeSet<_> = of_records.chain(latest.diffs.keys().copied()).cloned().collect();
        for name in keyspaces {
            let manifest = self.sums.keyspace_manifest(&name);
            let path = Path::KeyspaceManifest(name);
            match manifest {
                Some(manifest) => self.put(&path, &manifest.encode_to_vec(), &mut batch.commit)?,
                None => self.delete(&path, &mut batch.commit),
            }
        }
        if latest.records.keys().any(|path| path.keyspace().is_none()) {
            let manifest = self.sums.manifest().encode_to_vec();
            self.put(&Path::Manifest, &manifest, &mut batch.commit)?;
        }
        Ok(())
    }

    fn put_records(
        &mut self,
        records: BTreeMap<Path, Option<Vec<u8>>>,
        batch: &mut Batch,
    ) -> Result<(), EncodeError> {
        for (path, record) in records {
            match record {
                Some(payload) => self.put(&path, &payload, &mut batch.commit)?,
                None => self.delete(&path, &mut batch.commit),
            }
        }
        Ok(())
    }

    fn put(&mut self, path: &Path, payload: &[u8], ops: &mut Vec<StoreOp>) -> Result<(), EncodeError> {
        let payload_bytes = VALUE_BYTES - HEADER_BYTES;
        let parts = payload.len().div_ceil(payload_bytes).max(1);
        let count = u16::try_from(parts).ok().filter(|_| parts <= PARTS);
        let count =
            count.ok_or_else(|| EncodeError::TooLarge { key: path.to_string(), bytes: payload.len() })?;
        for part in 0..count {
            let begin = usize::from(part) * payload_bytes;
            let piece = &payload[begin..payload.len().min(begin + payload_bytes)];
            let key = path.part(part);
            let value = envelope::seal(&key, part, count, piece);
            ops.push(StoreOp::Put(key, value));
        }
        let before = self.parts.remove(path).unwrap_or(1);
        ops.extend((count..before).map(|part| StoreOp::Delete(path.part(part))));
        if count > 1 {
            self.parts.insert(path.clone(), count);
        }
        Ok(())
    }

    fn delete(&mut self, path: &Path, ops: &mut Vec<StoreOp>) {
        let parts = self.parts.remove(path).unwrap_or(1);
        ops.extend((0..parts).map(|part| StoreOp::Delete(path.part(part))));
    }

    /// Forgets the log of a map and takes its keys away.
    fn drop_log(&mut self, name: &KeyspaceName, tidy: &mut Vec<StoreOp>) {
        let Some(old) = self.maps.remove(name) else { return };
        for chunk in 0..old.chunks {
            self.delete(&Path::Base(name.clone(), old.log, chunk), tidy);
        }
        for sequence in old.diffs {
            self.delete(&Path::Diff(name.clone(), old.log, sequence), tidy);
        }
    }

    /// Adds diffs to the log of a map, or begins it anew where that is shorter.
    fn extend_log(
        &mut self,
        name: &KeyspaceName,
        diffs: &[&MapDiff],
        map: Option<&ShardMap>,
        batch: &mut Batch,
    ) -> Result<(), EncodeError> {
        let forms: Vec<(u64, Vec<u8>)> = diffs
            .iter()
            .map(|diff| (diff.to.sequence, proto::MapDiff::from(*diff).encode_to_vec()))
            .collect();
        let bytes: usize = forms.iter().map(|(_, form)| form.len()).sum();
        let Some(log) = self.maps.get_mut(name).filter(|log| log.takes(forms.len(), bytes)) else {
            let to = diffs.last().map_or(Generation::default(), |diff| diff.to);
            let other = |at: String| EncodeError::OtherMap { keyspace: name.clone(), to, at };
            let map = map.ok_or_else(|| other("none".to_owned()))?;
            if map.generation() != to {
                return Err(other(map.generation().to_string()));
            }
            return self.begin_log(map, batch);
        };
        log.diffs.extend(forms.iter().map(|(sequence, _)| *sequence));
        log.diff_bytes += bytes;
        let log = log.log;
        for (sequence, form) in forms {
            self.put(&Path::Diff(name.clone(), log, sequence), &form, &mut batch.commit)?;
        }
        Ok(())
    }

    /// Writes a base and moves the head to it.
    fn begin_log(&mut self, map: &ShardMap, batch: &mut Batch) -> Result<(), EncodeError> {
        let name = map.keyspace();
        self.drop_log(name, &mut batch.tidy);
        let log = Log::of(map.generation());
        let mut ops = Vec::new();
        let (mut chunks, mut base_bytes) = (0, 0);
        for chunk in Chunks::of(map) {
            let payload = proto::MapDiff::from(&chunk).encode_to_vec();
            base_bytes += payload.len();
            self.put(&Path::Base(name.clone(), log, chunks), &payload, &mut ops)?;
            chunks += 1;
        }
        let first = if ops.len() > CHUNKS_WITH_HEAD { &mut batch.prepare } else { &mut batch.commit };
        first.append(&mut ops);
        let head = proto::StoredHead { base: Some(map.generation().into()), chunks };
        self.put(&Path::Head(name.clone()), &head.encode_to_vec(), &mut batch.commit)?;
        let log = MapLog { log, chunks, base_bytes, diffs: vec![], diff_bytes: 0 };
        self.maps.insert(name.clone(), log);
        Ok(())
    }
}

/// A map in diffs from the empty map, each of which fits a value.
pub(super) struct Chunks<'a, I: Iterator<Item = &'a Shard>> {
    map: &'a ShardMap,
    shards: std::iter::Peekable<I>,
    begun: bool,
}

impl<'a> Chunks<'a, std::iter::Empty<&'a Shard>> {
    pub(super) fn of(map: &'a ShardMap) -> Chunks<'a, impl Iterator<Item = &'a Shard>> {
        Chunks { map, shards: map.shards().peekable(), begun: false }
    }
}

impl<'a, I: Iterator<Item = &'a Shard>> Iterator for Chunks<'a, I> {
    type Item = MapDiff;

    /// The empty map has one chunk too: it holds the counters.
    fn next(&mut self) -> Option<MapDiff> {
        if self.begun && self.shards.peek().is_none() {
            return None;
        }
        self.begun = true;
        let mut changed = Vec::new();
        let mut nodes = BTreeSet::new();
        let mut bytes = CHUNK_HEAD_BYTES;
        while let Some(shard) = self.shards.peek() {
            let new = shard.replicas.iter().filter(|r| nodes.insert((&r.node, r.incarnation)));
            bytes += most_bytes(shard) + new.map(|r| r.node.as_str().len() + NODE_BYTES).sum::<usize>();
            if bytes > VALUE_BYTES - HEADER_BYTES && !changed.is_empty() {
                break;
            }
            changed.extend(self.shards.next().cloned());
        }
        Some(MapDiff {
            keyspace: self.map.keyspace().clone(),
            from: Generation::default(),
            to: self.map.generation(),
            parent: self.map.parent(),
            changed,
            removed: vec![],
            next_shard: self.map.next_shard(),
            next_placement: self.map.next_placement(),
        })
    }
}

/// Name, three generations and two counters of a chunk, at the most.
const CHUNK_HEAD_BYTES: usize = 512;

/// Tags, lengths and the incarnation of an entry in the table of nodes, at the most.
const NODE_BYTES: usize = 20;

/// Bytes of a shard in a chunk, at the most: 11 for each number with its tag.
fn most_bytes(shard: &Shard) -> usize {
    use partage_core::keyspace::map::Stage;
    let bounds = match &shard.bounds {
        Bounds::Keys(range) => range.begin.as_bytes().len() + range.end.as_bytes().len(),
        Bounds::Name(name) => name.as_str().len(),
        Bounds::Hashes(_) | Bounds::Slot(_) => 0,
    };
    let children = match shard.stage() {
        Stage::Forming(children) | Stage::Closing(children) => children.len(),
        Stage::Serving | Stage::Removing => 0,
    };
    let replica = |replica: &partage_core::keyspace::map::Replica| {
        let replaces = replica.replaces().map_or(0, |placement| 1 + varint_bytes(placement.0));
        // Tag and length, the placement, the index with its tag, role and state.
        2 + 1 + varint_bytes(replica.placement.0) + 6 + 4 + replaces
    };
    let replicas: usize = shard.replicas.iter().map(replica).sum();
    64 + bounds + 10 * (children + shard.parents().len()) + replicas
}

/// Where so many shards of a map change, those that do not need not be counted to know that the whole takes a while.
const MANY_SHARDS: usize = 100_000;

/// How many shards a write names: those that a diff changes, a plan changes, or a keyspace has rules of.
pub fn shards_named(write: &Write) -> usize {
    match write {
        Write::Map(diff) => diff.changed.len() + diff.removed.len(),
        Write::Keyspace(record) => record.rules.len(),
        Write::Plan(plan) => plan.changes.len(),
        Write::Cluster(_)
        | Write::DropKeyspace(_)
        | Write::Node(_)
        | Write::DropNode(_)
        | Write::DropPlan(_) => 0,
    }
}

/// Bytes of a diff, at the most: each replica as if no other one were on its node.
fn most_diff_bytes(diff: &MapDiff) -> usize {
    let of_shard = |shard: &Shard| {
        let nodes = shard.replicas.iter().map(|replica| replica.node.as_str().len() + NODE_BYTES);
        most_bytes(shard) + nodes.sum::<usize>()
    };
    CHUNK_HEAD_BYTES + 11 * diff.removed.len() + diff.changed.iter().map(of_shard).sum::<usize>()
}

fn varint_bytes(number: u64) -> usize {
    (64 - number.leading_zeros() as usize).div_ceil(7).max(1)
}
