//! Where the stores of a node lie, and which of several folders of a replica counts.
//!
//! ```text
//! log/                                      the log
//! rows/KEYSPACE/SHARD.PLACEMENT.GENERATION  a store
//! ```
//!
//! A replica that takes a snapshot fills a folder of the next generation. Of several folders the complete one that is further
//! counts, and the others are removed: a snapshot that was not finished, or what a finished one has replaced.

use partage_core::base::id::{PlacementId, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::node::exchange::ReplicaKey;
use partage_engine::replica::{Condition, Engine, Error, Store, TreeEngine, TreeStore};
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

/// Opens the store of a replica that counts, and removes the other folders. None: there is none that is complete.
pub(super) fn choose(
    engine: &TreeEngine,
    folder: &Path,
    key: &ReplicaKey,
    generations: &[u64],
) -> Result<Option<(u64, Arc<TreeStore>)>, Error> {
    let mut best: Option<(u64, TreeStore)> = None;
    let mut others = Vec::new();
    for generation in generations {
        let store = engine.open(&of(folder, key, *generation))?;
        let is_complete = matches!(store.condition(), Condition::Usable { .. });
        let rank = (store.flushed(), *generation);
        if is_complete && best.as_ref().is_none_or(|(generation, best)| (best.flushed(), *generation) < rank)
        {
            others.extend(best.replace((*generation, store)).map(|(former, _)| former));
        } else {
            others.push(*generation);
        }
    }
    remove(engine, folder, key, &others)?;
    Ok(best.map(|(generation, store)| (generation, Arc::new(store))))
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
