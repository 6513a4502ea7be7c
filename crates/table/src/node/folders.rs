//! Where the stores of a node lie, and which of several folders of a replica counts.
//!
//! ```text
//! log/                                      the log
//! rows/KEYSPACE/SHARD.PLACEMENT.GENERATION  a store
//! ```
//!
//! A replica that takes a snapshot fills a folder of the next generation. Of several folders the complete one that is further
//! counts. One with a part of a snapshot that is further still is kept beside it, as the replica may go on with that
//! ([`partage_service::table::copy::resume`]). The others are removed.

use partage_core::base::id::{PlacementId, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::node::exchange::ReplicaKey;
use partage_engine::replica::{Condition, Engine, Error, SharedBytes, Store, TreeEngine, TreeStore};
use partage_service::table::replication::LogPosition;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LOG: &str = "log";
const ROWS: &str = "rows";

/// What the engine calls a folder that it is removing.
const REMOVED: &str = ".removed";

pub(crate) fn log(folder: &Path) -> PathBuf {
    folder.join(LOG)
}

pub(super) fn rows(folder: &Path) -> PathBuf {
    folder.join(ROWS)
}

/// The folder of a replica.
pub(crate) fn of(folder: &Path, key: &ReplicaKey, generation: u64) -> PathBuf {
    let name = format!("{}.{}.{generation}", key.shard.0, key.placement.0);
    rows(folder).join(key.keyspace.as_str()).join(name)
}

fn parse(keyspace: &KeyspaceName, name: &str) -> Option<(ReplicaKey, u64)> {
    let mut numbers = name.split('.').map(|number| number.parse::<u64>());
    let (shard, placement) = (ShardId(numbers.next()?.ok()?), PlacementId(numbers.next()?.ok()?));
    let generation = numbers.next()?.ok()?;
    let key = ReplicaKey { keyspace: keyspace.clone(), shard, placement };
    numbers.next().is_none().then_some((key, generation))
}

/// The generations of each replica. Removes what an ended process was removing.
pub(super) fn list(folder: &Path) -> io::Result<BTreeMap<ReplicaKey, Vec<u64>>> {
    let mut found: BTreeMap<ReplicaKey, Vec<u64>> = BTreeMap::new();
    let rows = rows(folder);
    std::fs::create_dir_all(&rows)?;
    for keyspace in std::fs::read_dir(rows)? {
        let keyspace = keyspace?;
        let Ok(name) = KeyspaceName::new(&keyspace.file_name().to_string_lossy()) else { continue };
        for store in std::fs::read_dir(keyspace.path())? {
            let store = store?;
            let text = store.file_name().to_string_lossy().into_owned();
            if text.ends_with(REMOVED) {
                std::fs::remove_dir_all(store.path())?;
            } else if let Some((key, generation)) = parse(&name, &text) {
                found.entry(key).or_default().push(generation);
            }
        }
    }
    Ok(found)
}

/// The generations of one replica.
pub(crate) fn generations(folder: &Path, key: &ReplicaKey) -> io::Result<Vec<u64>> {
    match std::fs::read_dir(rows(folder).join(key.keyspace.as_str())) {
        Ok(stores) => {
            let names = stores.map(|store| Ok(store?.file_name().to_string_lossy().into_owned()));
            let names: Vec<String> = names.collect::<io::Result<_>>()?;
            let parsed = names.iter().filter_map(|name| parse(&key.keyspace, name));
            Ok(parsed.filter(|(of, _)| of == key).map(|(_, generation)| generation).collect())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// A part of a snapshot that a replica had stored when it was closed, or its process ended: all rows up to a key.
pub(crate) struct PartialSnapshot {
    pub(crate) generation: u64,
    pub(crate) store: Arc<TreeStore>,
    /// Up to which entry the leader had applied its log when it made the snapshot.
    pub(crate) position: LogPosition,
    /// The last key that is stored; the replica wants the rows behind it.
    pub(crate) through: SharedBytes,
}

/// What a replica has.
#[derive(Default)]
pub(super) struct Chosen {
    /// The store that counts, with its generation; none: there is none that is complete.
    pub(super) store: Option<(u64, Arc<TreeStore>)>,
    pub(super) partial: Option<PartialSnapshot>,
}

/// Opens the store of a replica that counts, and the part of a later snapshot, and removes the other folders.
pub(super) fn choose(
    engine: &TreeEngine,
    folder: &Path,
    key: &ReplicaKey,
    generations: &[u64],
) -> Result<Chosen, Error> {
    let mut best: Option<(u64, TreeStore)> = None;
    let mut partial: Option<PartialSnapshot> = None;
    let mut others = Vec::new();
    for generation in generations {
        let (generation, store) = (*generation, engine.open(&of(folder, key, *generation))?);
        match store.condition() {
            Condition::Usable { flushed } => {
                let is_better =
                    |(known, best): &(u64, TreeStore)| (best.flushed(), *known) < (flushed, generation);
                if best.as_ref().is_none_or(is_better) {
                    others.extend(best.replace((generation, store)).map(|(former, _)| former));
                } else {
                    others.push(generation);
                }
            }
            Condition::Filling { position, through: Some(through) } => {
                if partial.as_ref().is_none_or(|known| known.position < position) {
                    let store = Arc::new(store);
                    let part = PartialSnapshot { generation, store, position, through };
                    others.extend(partial.replace(part).map(|former| former.generation));
                } else {
                    others.push(generation);
                }
            }
            Condition::Filling { through: None, .. } => others.push(generation),
        }
    }
    let flushed = best.as_ref().map(|(_, store)| store.flushed()).unwrap_or_default();
    if let Some(useless) = partial.take_if(|partial| partial.position <= flushed) {
        others.push(useless.generation);
    }
    remove(engine, folder, key, &others)?;
    Ok(Chosen { store: best.map(|(generation, store)| (generation, Arc::new(store))), partial })
}

/// Removes folders whose stores are not open.
pub(crate) fn remove(
    engine: &TreeEngine,
    folder: &Path,
    key: &ReplicaKey,
    generations: &[u64],
) -> Result<(), Error> {
    generations.iter().try_for_each(|generation| engine.remove(&of(folder, key, *generation)))
}
