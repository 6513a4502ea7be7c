//! Reading: from the store's keys and bytes to everything durable.
//!
//! Every value is checked before anything is made of it, litter too: damage must show when it happens,
//! not when it matters. What it costs depends on what it is, see [`StoredFaults`]: only a commit that was begun and
//! cannot be finished keeps everything from being read.

use super::REDO;
use super::encoder::{MapLog, StoreEncoder, StoreOp};
use super::envelope;
use super::manifest::{Faults, KeyspaceManifest};
use super::path::{Log, Path};
use super::redo::{self, TransactionLimits};
use crate::map::join;
use crate::{Malformed, proto};
use bytes::Bytes;
use partage_core::base::id::Generation;
use partage_core::base::name::KeyspaceName;
use partage_core::cluster::{ClusterRecord, KeyspaceRecord, NodeRecord, Records, StoredFaults};
use partage_core::keyspace::map::{MapDiff, ShardMap};
use partage_core::plan::Plan;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

/// Something stored that nothing can be made of.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the stored value of {key} {what}")]
pub struct StoredError {
    /// The key whose value cannot be used.
    pub key: String,
    /// What is wrong with it.
    pub what: String,
}

impl StoredError {
    pub(super) fn new(key: impl ToString, what: impl ToString) -> StoredError {
        StoredError { key: key.to_string(), what: what.to_string() }
    }
}

/// Everything that was stored.
#[derive(Debug, Default)]
pub struct Recovered {
    /// What [`partage_core::cluster::Cluster::recover`] makes the cluster of.
    pub records: Records,
    /// The encoder with which the caller writes the next changes.
    pub encoder: StoreEncoder,
    /// Where the maps are that metadata servers keep. In the records they are empty.
    pub heads: BTreeMap<KeyspaceName, partage_service::metadata::Head>,
    /// Keys that nothing leads to, left by a crash. May be deleted.
    pub litter: Vec<String>,
    /// What is wrong that a cluster can be made from all the same.
    pub faults: StoredFaults,
    /// A commit that a crash has left half done. The records are as they are after it.
    redo: Option<Vec<StoreOp>>,
}

/// Reads what was stored. `entries` are all keys below [`super::ROOTS`] with their values, in any order. What cannot be
/// read, and is not needed by all, is among [`Recovered::faults`]; keyspaces in quarantine are left out of the records,
/// and none of their keys is touched.
///
/// # Errors
/// When a commit that was begun cannot be finished: what the records should be is unknown.
pub fn read<K: AsRef<str>, V: AsRef<[u8]>>(
    entries: impl IntoIterator<Item = (K, V)>,
) -> Result<Recovered, StoredError> {
    let (mut recovered, damage) = inspect(entries);
    let is_of_commit = |error: &StoredError| error.key.split('/').next() == Some(REDO);
    if let Some(error) = damage.into_iter().find(is_of_commit) {
        return Err(error);
    }
    let Recovered { records, encoder, heads, litter, faults, .. } = &mut recovered;
    let is_read = |name: &KeyspaceName| !faults.quarantine.contains_key(name);
    records.keyspaces.retain(|(record, _)| is_read(&record.keyspace.name));
    encoder.maps.retain(|name, _| is_read(name));
    heads.retain(|name, _| is_read(name));
    litter.retain(|key| {
        let path = Path::parse(key).map(|(path, _)| path);
        path.as_ref().and_then(Path::keyspace).is_none_or(is_read)
    });
    Ok(recovered)
}

/// Reads what can be read of it, and says everything that is wrong: the first is what [`read`] says.
///
/// Each record stands alone, so a damaged one costs no other. A map is kept as it was before the first of its
/// changes that cannot be read: later ones build on that one. Where the head of a map is damaged, its latest
/// log is taken.
pub fn inspect<K: AsRef<str>, V: AsRef<[u8]>>(
    entries: impl IntoIterator<Item = (K, V)>,
) -> (Recovered, Vec<StoredError>) {
    let mut reader = Reader::default();
    let (list, entries): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|(key, _)| key.as_ref().split('/').next() == Some(REDO));
    let found = redo::find(list.iter().map(|(key, value)| (key.as_ref(), value.as_ref())));
    let found = reader.keep(found).unwrap_or_default();
    reader.gather(after(&entries, found.operations.as_deref()));
    (reader.recovered.litter, reader.recovered.redo) = (found.keys, found.operations);
    let records = std::mem::take(&mut reader.payloads);
    let mut keyspaces: BTreeMap<KeyspaceName, KeyspaceRecord> = BTreeMap::new();
    let mut maps: BTreeMap<KeyspaceName, BTreeMap<Path, Bytes>> = BTreeMap::new();
    for (path, payload) in records {
        if matches!(path, Path::Cluster | Path::Keyspace(_) | Path::Node(_) | Path::Plan(_)) {
            reader.recovered.encoder.sums.note(&path, Some(&payload));
        }
        match &path {
            Path::Manifest => {
                let manifest = proto::StoredManifest::decode(payload);
                let manifest =
                    manifest.map_err(|why| StoredError::new(&path, format!("is no record: {why}")));
                reader.manifest = reader.keep(manifest);
            }
            Path::KeyspaceManifest(name) => {
                let manifest = parse::<proto::StoredKeyspaceManifest, KeyspaceManifest>(&path, payload);
                let manifest = reader.keep(manifest).map(|manifest| (name.clone(), manifest));
                reader.manifests.extend(manifest);
            }
            Path::Cluster => {
                let cluster = parse::<proto::StoredCluster, _>(&path, payload);
                reader.recovered.records.cluster = reader.keep(cluster).unwrap_or_default();
            }
            Path::Keyspace(name) => {
                let record = parse::<proto::StoredKeyspace, KeyspaceRecord>(&path, payload);
                let record =
                    record.and_then(|record| same(&path, name, &record.keyspace.name).map(|()| record));
                keyspaces.extend(reader.keep(record).map(|record| (name.clone(), record)));
            }
            Path::Node(id) => {
                let record = parse::<proto::StoredNode, NodeRecord>(&path, payload);
                let record = record.and_then(|record| same(&path, id, &record.spec.id).map(|()| record));
                let record = reader.keep(record);
                reader.recovered.records.nodes.extend(record);
            }
            Path::Plan(id) => {
                let plan = parse::<proto::Plan, Plan>(&path, payload);
                let plan = plan.and_then(|plan| same(&path, id, &plan.id).map(|()| plan));
                let plan = reader.keep(plan);
                reader.recovered.records.plans.extend(plan);
            }
            Path::Head(name) | Path::Base(name, ..) | Path::Diff(name, ..) => {
                maps.entry(name.clone()).or_default().insert(path, payload);
            }
            Path::Metadata(name) => {
                let head = parse::<proto::StoredMetadata, _>(&path, payload);
                let head = reader.keep(head).map(|head| (name.clone(), head));
                reader.recovered.heads.extend(head);
            }
            Path::RedoHead | Path::RedoPiece(_) => {}
        }
    }
    reader.keyspaces(keyspaces, maps);
    reader.compare_others();
    reader.classify();
    (reader.recovered, reader.damage)
}

/// The entries as they are when `operations` have been carried out, once or again.
fn after<'a, K: AsRef<str>, V: AsRef<[u8]>>(
    entries: &'a [(K, V)],
    operations: Option<&'a [StoreOp]>,
) -> impl Iterator<Item = (&'a str, &'a [u8])> {
    let operations = operations.unwrap_or_default();
    let changed: BTreeSet<&str> = operations.iter().map(StoreOp::key).collect();
    let kept = entries.iter().map(|(key, value)| (key.as_ref(), value.as_ref()));
    let put = operations.iter().filter_map(|operation| match operation {
        StoreOp::Put(key, value) => Some((key.as_str(), value.as_ref())),
        StoreOp::Delete(_) => None,
    });
    kept.filter(move |(key, _)| !changed.contains(key)).chain(put)
}

/// What has been read so far.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) recovered: Recovered,
    /// The payload of each record.
    payloads: BTreeMap<Path, Bytes>,
    pub(super) damage: Vec<StoredError>,
    /// Records of which some part is damaged.
    pub(super) bad: BTreeSet<Path>,
    pub(super) manifest: Option<proto::StoredManifest>,
    pub(super) manifests: BTreeMap<KeyspaceName, KeyspaceManifest>,
    /// What manifests say is not as it was.
    pub(super) faults: Faults,
}

impl Reader {
    fn keep<T>(&mut self, read: Result<T, StoredError>) -> Option<T> {
        read.map_err(|error| self.damage.push(error)).ok()
    }

    /// Opens every value and puts the parts of each record together.
    fn gather<K: AsRef<str>, V: AsRef<[u8]>>(&mut self, entries: impl IntoIterator<Item = (K, V)>) {
        let mut records: BTreeMap<Path, BTreeMap<u16, Part>> = BTreeMap::new();
        for (key, value) in entries {
            let key = key.as_ref();
            let Some((path, place)) = Path::parse(key) else {
                self.damage.push(StoredError::new(key, "is at a key that is none of ours"));
                continue;
            };
            let record = records.entry(path.clone()).or_default();
            let part = open(key, place, value.as_ref()).and_then(|part| match record.contains_key(&place) {
                true => Err(StoredError::new(key, "was listed twice")),
                false => Ok(part),
            });
            match part {
                Ok(part) => drop(record.insert(place, part)),
                Err(error) => {
                    self.damage.push(error);
                    self.bad.insert(path);
                }
            }
        }
        for (path, parts) in records {
            if self.bad.contains(&path) {
                continue;
            }
            if parts.len() > 1 {
                self.recovered.encoder.parts.insert(path.clone(), parts.len() as u16);
            }
            match whole(&path, parts) {
                Ok(payload) => drop(self.payloads.insert(path, payload)),
                Err(error) => {
                    self.damage.push(error);
                    self.bad.insert(path);
                }
            }
        }
    }
}

/// One value: how many parts its record has, and its payload.
struct Part {
    of: u16,
    payload: Bytes,
}

fn open(key: &str, place: u16, value: &[u8]) -> Result<Part, StoredError> {
    let (part, of, payload) = envelope::open(key, value).map_err(|why| StoredError::new(key, why))?;
    match part == place {
        true => Ok(Part { of, payload }),
        false => Err(StoredError::new(key, format!("says that it is part {part}"))),
    }
}

/// The payload of a record from its parts.
fn whole(path: &Path, parts: BTreeMap<u16, Part>) -> Result<Bytes, StoredError> {
    let Some(of) = parts.get(&0).map(|first| first.of) else {
        return Err(StoredError::new(path, "is missing, but a further part of it is there"));
    };
    let mut pieces = Vec::new();
    for (place, part) in parts {
        if usize::from(place) != pieces.len() || part.of != of {
            let what = format!("is not the next part of {path}, or from another time");
            return Err(StoredError::new(path.part(place), what));
        }
        pieces.push(part.payload);
    }
    if pieces.len() != usize::from(of) {
        return Err(StoredError::new(path.part(pieces.len() as u16), "is missing"));
    }
    Ok(if of > 1 { pieces.concat().into() } else { pieces.swap_remove(0) })
}

fn parse<F, T>(path: &Path, payload: Bytes) -> Result<T, StoredError>
where
    F: Message + Default,
    T: TryFrom<F, Error = Malformed>,
{
    let form = F::decode(payload).map_err(|why| StoredError::new(path, format!("is no record: {why}")))?;
    form.try_into().map_err(|why| StoredError::new(path, format!("is no record: {why}")))
}

fn same<T: PartialEq + Display>(path: &Path, expected: &T, found: &T) -> Result<(), StoredError> {
    match expected == found {
        true => Ok(()),
        false => Err(StoredError::new(path, format!("is that of {found}"))),
    }
}

/// The head of a stored map: the base that counts, and in how many chunks it is.
struct Head {
    base: Generation,
    chunks: u32,
}

impl TryFrom<proto::StoredHead> for Head {
    type Error = Malformed;
    fn try_from(form: proto::StoredHead) -> Result<Self, Malformed> {
        Ok(Head { base: crate::malformed::required(form.base, "base")?, chunks: form.chunks })
    }
}

impl Recovered {
    /// Whether a crash, or a leader that is at it now, has left a commit half done.
    pub fn is_interrupted(&self) -> bool {
        self.redo.is_some()
    }

    /// What to carry out before anything else, in order, and what is then in the hands of the caller.
    pub fn finish(self, limits: TransactionLimits) -> (Vec<Vec<StoreOp>>, Records, StoreEncoder) {
        (redo::finish(self.redo, self.litter, limits), self.records, self.encoder)
    }

    pub(super) fn throw_away(&mut self, path: &Path) {
        let parts = self.encoder.parts.remove(path).unwrap_or(1);
        self.litter.extend((0..parts).map(|part| path.part(part)));
    }
}

impl Reader {
    /// The map of each keyspace, and what is left over.
    fn keyspaces(
        &mut self,
        keyspaces: BTreeMap<KeyspaceName, KeyspaceRecord>,
        mut maps: BTreeMap<KeyspaceName, BTreeMap<Path, Bytes>>,
    ) {
        for (name, record) in keyspaces {
            let stored = maps.remove(&name).unwrap_or_default();
            let has_log = !stored.is_empty();
            let map = self.map(&record, stored);
            self.compare(&name, &map, has_log);
            self.recovered.records.keyspaces.push((record, map));
        }
        self.without_records(maps);
    }

    /// The map of one keyspace: base, then diffs in order, as far as they can be read. What is in other logs is
    /// litter.
    fn map(&mut self, record: &KeyspaceRecord, mut stored: BTreeMap<Path, Bytes>) -> ShardMap {
        let name = record.keyspace.name.clone();
        let ClusterRecord { next_shard, next_placement, .. } = self.recovered.records.cluster;
        let mut map = ShardMap::empty(name.clone(), record.keyspace.sharding, record.keyspace.partition_key);
        let Some(head) = self.head(&name, &mut stored) else {
            stored.into_keys().for_each(|path| self.recovered.throw_away(&path));
            return map.empty_after(next_shard, next_placement);
        };
        let log = Log::of(head.base);
        let mut state = MapLog { log, chunks: head.chunks, base_bytes: 0, diffs: vec![], diff_bytes: 0 };
        let base = read_base(&name, &head, &mut state, &mut stored);
        let base = base.and_then(|base| apply(&mut map, &base, &Path::Base(name.clone(), log, 0)));
        let mut goes_on = self.keep(base).is_some();
        for (path, payload) in stored {
            match path {
                Path::Diff(_, of, sequence) if of == log => {
                    state.diff_bytes += payload.len();
                    state.diffs.push(sequence);
                    if goes_on {
                        let followed = follow(&mut map, &path, sequence, payload);
                        goes_on = self.keep(followed).is_some();
                    }
                }
                Path::Base(_, of, chunk) if of == log => {
                    let what = format!("is chunk {chunk} of a base of {}", head.chunks);
                    self.damage.push(StoredError::new(&path, what));
                }
                _ => self.recovered.throw_away(&path),
            }
        }
        self.recovered.encoder.sums.at.insert(name.clone(), map.generation());
        self.recovered.encoder.maps.insert(name, state);
        map
    }

    /// The head of a map. A damaged one is reported, and the latest log taken in its place.
    fn head(&mut self, name: &KeyspaceName, stored: &mut BTreeMap<Path, Bytes>) -> Option<Head> {
        let path = Path::Head(name.clone());
        let read = stored.remove(&path).map(|payload| parse::<proto::StoredHead, Head>(&path, payload));
        match read.map(|read| self.keep(read)) {
            Some(Some(head)) => return Some(head),
            None if !self.bad.contains(&path) => return None,
            Some(None) | None => {}
        }
        let bases = stored.keys().filter_map(|path| match path {
            Path::Base(_, log, _) => Some(*log),
            _ => None,
        });
        let latest = bases.max()?;
        let of_latest = |path: &&Path| matches!(path, Path::Base(_, log, _) if *log == latest);
        let chunks = stored.keys().filter(of_latest).count() as u32;
        let first = Path::Base(name.clone(), latest, 0);
        let payload = stored.get(&first)?.clone();
        let base = parse::<proto::MapDiff, MapDiff>(&first, payload).ok()?.to;
        Some(Head { base, chunks })
    }
}

/// Applies a stored diff.
fn follow(map: &mut ShardMap, path: &Path, sequence: u64, payload: Bytes) -> Result<(), StoredError> {
    let diff: MapDiff = parse::<proto::MapDiff, _>(path, payload)?;
    if diff.to.sequence != sequence {
        return Err(StoredError::new(path, format!("leads to {}", diff.to)));
    }
    apply(map, &diff, path)
}

fn read_base(
    name: &KeyspaceName,
    head: &Head,
    state: &mut MapLog,
    stored: &mut BTreeMap<Path, Bytes>,
) -> Result<MapDiff, StoredError> {
    let mut whole: Option<MapDiff> = None;
    for chunk in 0..head.chunks {
        let path = Path::Base(name.clone(), state.log, chunk);
        let payload = stored.remove(&path).ok_or_else(|| StoredError::new(&path, "is missing"))?;
        state.base_bytes += payload.len();
        let part: MapDiff = parse::<proto::MapDiff, _>(&path, payload)?;
        if part.to != head.base {
            return Err(StoredError::new(&path, format!("is of another map, {}", part.to)));
        }
        match &mut whole {
            None => whole = Some(part),
            Some(whole) => join(whole, part).map_err(|why| StoredError::new(&path, why))?,
        }
    }
    whole.ok_or_else(|| StoredError::new(Path::Head(name.clone()), "says that its base has no chunk"))
}

fn apply(map: &mut ShardMap, diff: &MapDiff, path: &Path) -> Result<(), StoredError> {
    map.apply(diff).map_err(|why| StoredError::new(path, format!("does not follow on the map before: {why}")))
}
