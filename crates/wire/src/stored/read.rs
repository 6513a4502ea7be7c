//! Reading: from the store's keys and bytes to everything durable.
//!
//! Every value is checked before anything is made of it, litter too: damage is to be seen when it happens,
//! not when it matters.

use super::envelope;
use super::path::{Log, Path};
use super::shelf::{MapLog, Shelf};
use crate::maps::join;
use crate::{Malformed, proto};
use bytes::Bytes;
use partage_core::cluster::{ClusterRecord, KeyspaceRecord, NodeRecord, Records};
use partage_core::id::Generation;
use partage_core::map::{MapDiff, ShardMap};
use partage_core::name::KeyspaceName;
use partage_core::plan::Plan;
use prost::Message;
use std::collections::BTreeMap;
use std::fmt::Display;

/// Something stored that nothing can be made of.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the stored value of {key} {what}")]
pub struct StoredError {
    /// At which key.
    pub key: String,
    /// What is wrong with it.
    pub what: String,
}

impl StoredError {
    fn new(key: impl ToString, what: impl ToString) -> StoredError {
        StoredError { key: key.to_string(), what: what.to_string() }
    }
}

/// Everything that was stored.
#[derive(Debug, Default)]
pub struct Recovered {
    /// For [`partage_core::cluster::Cluster::recover`].
    pub records: Records,
    /// To write on with.
    pub shelf: Shelf,
    /// Keys that nothing leads to, left by a crash. May be deleted.
    pub litter: Vec<String>,
}

/// The payload of each record.
#[derive(Default)]
struct Payloads {
    records: BTreeMap<Path, Bytes>,
    parts: BTreeMap<Path, u16>,
}

/// Reads what was stored. `entries` are all keys below [`super::ROOTS`] with their values, in any order.
pub fn read<K: AsRef<str>, V: AsRef<[u8]>>(
    entries: impl IntoIterator<Item = (K, V)>,
) -> Result<Recovered, StoredError> {
    let Payloads { mut records, parts } = gather(entries)?;
    let mut recovered = Recovered::default();
    recovered.shelf.parts = parts;
    if let Some(payload) = records.remove(&Path::Cluster) {
        let cluster = parse::<proto::StoredCluster, _>(&Path::Cluster, payload)?;
        recovered.records.cluster = cluster;
    }
    let mut keyspaces: BTreeMap<KeyspaceName, KeyspaceRecord> = BTreeMap::new();
    let mut maps: BTreeMap<KeyspaceName, BTreeMap<Path, Bytes>> = BTreeMap::new();
    for (path, payload) in records {
        match &path {
            Path::Keyspace(name) => {
                let record: KeyspaceRecord = parse::<proto::StoredKeyspace, _>(&path, payload)?;
                same(&path, name, &record.keyspace.name)?;
                keyspaces.insert(name.clone(), record);
            }
            Path::Node(id) => {
                let record: NodeRecord = parse::<proto::StoredNode, _>(&path, payload)?;
                same(&path, id, &record.spec.id)?;
                recovered.records.nodes.push(record);
            }
            Path::Plan(id) => {
                let plan: Plan = parse::<proto::Plan, _>(&path, payload)?;
                same(&path, id, &plan.id)?;
                recovered.records.plans.push(plan);
            }
            Path::Head(name) | Path::Base(name, ..) | Path::Diff(name, ..) => {
                maps.entry(name.clone()).or_default().insert(path, payload);
            }
            Path::Cluster => {}
        }
    }
    for (name, record) in keyspaces {
        let stored = maps.remove(&name).unwrap_or_default();
        let map = recovered.map(&record, stored)?;
        recovered.records.keyspaces.push((record, map));
    }
    for (name, stored) in maps {
        if stored.contains_key(&Path::Head(name.clone())) {
            let what = "is missing, but its map is there";
            return Err(StoredError::new(Path::Keyspace(name), what));
        }
        stored.into_keys().for_each(|path| recovered.throw_away(&path));
    }
    Ok(recovered)
}

/// Opens every value and puts the parts of each record together.
fn gather<K: AsRef<str>, V: AsRef<[u8]>>(
    entries: impl IntoIterator<Item = (K, V)>,
) -> Result<Payloads, StoredError> {
    let mut pieces: BTreeMap<(Path, u16), (u16, Bytes)> = BTreeMap::new();
    for (key, value) in entries {
        let key = key.as_ref();
        let error = |what: &dyn Display| StoredError::new(key, what);
        let (path, place) = Path::parse(key).ok_or_else(|| error(&"is at a key that is none of ours"))?;
        let (part, parts, payload) = envelope::open(key, value.as_ref()).map_err(|why| error(&why))?;
        if part != place {
            return Err(error(&format!("says that it is part {part}")));
        }
        if pieces.insert((path, part), (parts, payload)).is_some() {
            return Err(error(&"was listed twice"));
        }
    }
    let mut payloads = Payloads::default();
    let mut pieces = pieces.into_iter().peekable();
    while let Some(((path, part), (parts, payload))) = pieces.next() {
        if part != 0 {
            return Err(StoredError::new(&path, "is missing, but a further part of it is there"));
        }
        let mut whole = vec![payload];
        while let Some(((_, part), (others, payload))) = pieces.next_if(|((next, _), _)| *next == path) {
            if usize::from(part) != whole.len() || others != parts {
                let what = format!("is not the next part of {path}, or from another time");
                return Err(StoredError::new(path.part(part), what));
            }
            whole.push(payload);
        }
        if whole.len() != usize::from(parts) {
            return Err(StoredError::new(path.part(whole.len() as u16), "is missing"));
        }
        if parts > 1 {
            payloads.parts.insert(path.clone(), parts);
        }
        payloads.records.insert(path, if parts > 1 { whole.concat().into() } else { whole.swap_remove(0) });
    }
    Ok(payloads)
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

/// A stored head.
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
    fn throw_away(&mut self, path: &Path) {
        let parts = self.shelf.parts.remove(path).unwrap_or(1);
        self.litter.extend((0..parts).map(|part| path.part(part)));
    }

    /// The map of one keyspace: base, then diffs in order. What is in other logs is litter.
    fn map(
        &mut self,
        record: &KeyspaceRecord,
        mut stored: BTreeMap<Path, Bytes>,
    ) -> Result<ShardMap, StoredError> {
        let name = record.keyspace.name.clone();
        let ClusterRecord { next_shard, next_placement, .. } = self.records.cluster;
        let mut map = ShardMap::empty(name.clone(), record.keyspace.sharding, record.keyspace.partition_key);
        let head_path = Path::Head(name.clone());
        let Some(payload) = stored.remove(&head_path) else {
            stored.into_keys().for_each(|path| self.throw_away(&path));
            return Ok(map.empty_after(next_shard, next_placement));
        };
        let head: Head = parse::<proto::StoredHead, _>(&head_path, payload)?;
        let log = Log::of(head.base);
        let mut state = MapLog { log, chunks: head.chunks, base_bytes: 0, diffs: vec![], diff_bytes: 0 };
        let base = read_base(&name, &head, &mut state, &mut stored)?;
        apply(&mut map, &base, &Path::Base(name.clone(), log, 0))?;
        for (path, payload) in stored {
            match path {
                Path::Diff(_, of, sequence) if of == log => {
                    state.diff_bytes += payload.len();
                    state.diffs.push(sequence);
                    let diff: MapDiff = parse::<proto::MapDiff, _>(&path, payload)?;
                    if diff.to.sequence != sequence {
                        return Err(StoredError::new(&path, format!("leads to {}", diff.to)));
                    }
                    apply(&mut map, &diff, &path)?;
                }
                Path::Base(_, of, chunk) if of == log => {
                    let what = format!("is chunk {chunk} of a base of {}", head.chunks);
                    return Err(StoredError::new(&path, what));
                }
                _ => self.throw_away(&path),
            }
        }
        self.shelf.maps.insert(name, state);
        Ok(map)
    }
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
