//! What a node finds on its disk when it is opened.
//!
//! | the log has | the store has | what that is |
//! |---|---|---|
//! | records | everything up to where the log begins, or beyond | a stored replica |
//! | records | less than that, or damage | damaged |
//! | damage | anything | damaged |
//! | nothing, and no damage that may have hidden it | anything | what a drop has left, or an opening that wrote nothing: removed |
//! | nothing, and such damage | anything | damaged |

use super::folders::{Chosen, PartialSnapshot};
use super::{Shared, folders};
use crate::error::OpenError;
use crate::registry::{ClosedReplica, Presence};
use crate::rows::{RowsError, StoredRows};
use partage_core::base::id::Epoch;
use partage_core::node::exchange::ReplicaKey;
use partage_engine::replica::{Engine, Error, Store, TreeEngine, TreeStore};
use partage_log::Recovered;
use partage_service::table::feed::FeedSettings;
use partage_service::table::replication::{LogPosition, Stored};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A replica that is on the disk of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredReplica {
    /// The replica that the log has records of, or that a folder is named after.
    pub replica: ReplicaKey,
    /// The highest epoch that it has seen.
    pub fence: Epoch,
    /// Up to where its rows are stored.
    pub flushed: LogPosition,
    /// Why it is damaged: the service reports that, and drops it when it may.
    pub damaged: Option<String>,
}

/// All replicas, and how they are there.
pub(super) fn presences(
    engine: &TreeEngine,
    folder: &Path,
    recovered: Recovered,
) -> Result<(BTreeMap<ReplicaKey, Presence>, Vec<StoredReplica>), OpenError> {
    let failed = |source| OpenError::Folder { path: folders::rows(folder), doing: "read the folder", source };
    let mut generations = folders::list(folder).map_err(failed)?;
    let Recovered { replicas, damaged, places, .. } = recovered;
    for place in &places {
        tracing::error!(folder = %folders::log(folder).display(), "the log is damaged: {}", place.damage);
    }
    let hides = places.iter().find(|place| place.may_hide_a_replica).map(|place| place.damage.to_string());
    let mut found: BTreeMap<ReplicaKey, (Stored, Option<String>)> = BTreeMap::new();
    for (key, damage) in damaged {
        generations.remove(&key);
        found.insert(key, (Stored::default(), Some(format!("the log is damaged: {damage}"))));
    }
    for (key, stored) in replicas {
        if found.contains_key(&key) {
            continue;
        }
        let generations = generations.remove(&key).unwrap_or_default();
        let replica = stored_replica(engine, folder, &key, stored, &generations)?;
        found.insert(key, replica);
    }
    for (key, generations) in generations {
        match &hides {
            Some(damage) => {
                let why = format!("the log has nothing of it, and may have lost that: {damage}");
                found.insert(key, (Stored::default(), Some(why)));
            }
            None => folders::remove(engine, folder, &key, &generations).map_err(OpenError::Leftover)?,
        }
    }
    let told = found.iter().map(|(key, (stored, damaged))| StoredReplica {
        replica: key.clone(),
        fence: stored.fence,
        flushed: stored.flushed,
        damaged: damaged.clone(),
    });
    let told = told.collect();
    let presence = |(stored, damaged): (Stored, Option<String>)| match damaged {
        Some(why) => Presence::Damaged(why),
        None => Presence::Stored(Box::new(ClosedReplica { stored, settings: None })),
    };
    Ok((found.into_iter().map(|(key, one)| (key, presence(one))).collect(), told))
}

/// What the log and the store have together, and what is wrong with that.
fn stored_replica(
    engine: &TreeEngine,
    folder: &Path,
    key: &ReplicaKey,
    mut stored: Stored,
    generations: &[u64],
) -> Result<(Stored, Option<String>), OpenError> {
    Ok(match folders::choose(engine, folder, key, generations) {
        Ok(chosen) => {
            stored.flushed = chosen.store.map_or(LogPosition::default(), |(_, store)| store.flushed());
            let damage = stored.damage().map(|damage| damage.to_string());
            (stored, damage)
        }
        // Nothing is wrong with it: all of it is there as soon as the disk has room.
        Err(error) if error.is_no_room() => return Err(OpenError::NoRoom(error)),
        Err(error) => (stored, Some(error.to_string())),
    })
}

/// Why the rows of a replica were not opened.
#[derive(Debug)]
pub(crate) struct NotOpened {
    pub(crate) why: String,
    /// They are there and damaged, so that they will not be opened another time either.
    pub(crate) is_damaged: bool,
}

impl From<Error> for NotOpened {
    fn from(error: Error) -> NotOpened {
        NotOpened { is_damaged: error.is_damage(), why: error.to_string() }
    }
}

impl From<RowsError> for NotOpened {
    fn from(error: RowsError) -> NotOpened {
        NotOpened { is_damaged: error.is_damage(), why: error.to_string() }
    }
}

impl From<std::io::Error> for NotOpened {
    fn from(error: std::io::Error) -> NotOpened {
        NotOpened { is_damaged: false, why: error.to_string() }
    }
}

/// The rows of a replica.
pub(crate) struct OpenedRows {
    /// The generation of the folder that has the rows.
    pub(crate) generation: u64,
    pub(crate) rows: StoredRows<TreeStore>,
    /// A part of a snapshot that the replica may go on with.
    pub(crate) partial: Option<PartialSnapshot>,
}

/// Opens the rows of a replica. Of one that the log knows nothing of there may be what a drop has left.
pub(crate) fn open_rows(
    shared: &Shared,
    key: &ReplicaKey,
    is_stored: bool,
    feed: Option<FeedSettings>,
) -> Result<OpenedRows, NotOpened> {
    let (engine, folder) = (&shared.engine, &shared.folder);
    let generations = folders::generations(folder, key)?;
    let next = generations.iter().max().map_or(0, |last| last + 1);
    let chosen = if is_stored {
        folders::choose(engine, folder, key, &generations)
    } else {
        folders::remove(engine, folder, key, &generations).map(|()| Chosen::default())
    };
    let Chosen { store, partial } = chosen?;
    let (generation, store) = match store {
        Some(chosen) => chosen,
        None => (next, Arc::new(engine.open(&folders::of(folder, key, next))?)),
    };
    Ok(OpenedRows { generation, rows: StoredRows::open(store, feed)?, partial })
}
