//! The last maps on disk, to start from when no coordinator can be reached.
//!
//! A convenience, never a truth: a file that is damaged, or of another version, is left aside with a warning,
//! and every map in it is corrected by the first coordinator that answers. Written beside and renamed, so
//! that it is whole or the one before.

use crate::limits;
use crate::watch::take;
use partage_core::routing::table::RouteTable;
use partage_wire::map::kept;
use partage_wire::map::{MapEvent, MapNews};
use std::path::{Path, PathBuf};
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

/// Writes the file some time after a change.
#[derive(Debug)]
pub struct Keep {
    path: PathBuf,
    due: Option<Instant>,
}

impl Keep {
    /// Notes that the table has changed: the file is due [`limits::KEEP_AFTER`] after the first change.
    pub fn changed(&mut self) {
        self.due.get_or_insert_with(|| Instant::now() + limits::KEEP_AFTER);
    }

    /// Returns when it is time to write; never, if nothing has changed.
    pub async fn due(keep: &mut Option<Keep>) {
        match keep.as_ref().and_then(|keep| keep.due) {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Writes the [`events`] of the table.
    pub async fn write(&mut self, events: &[MapEvent]) {
        self.due = None;
        let bytes = kept::to_bytes(events);
        if let Err(error) = replace(&self.path, &bytes).await {
            tracing::warn!(file = %self.path.display(), %error, "maps were not kept");
        }
    }
}

async fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = tokio::fs::File::create(&beside).await?;
    file.write_all(bytes).await?;
    file.sync_all().await?;
    tokio::fs::rename(&beside, path).await
}

/// The table as events that make it from nothing.
pub fn events(table: &RouteTable) -> Vec<MapEvent> {
    let nodes = table.addresses().cloned().collect();
    let addresses = MapEvent { news: MapNews::Nothing, nodes, forgotten: vec![] };
    let maps = table.known().into_keys().filter_map(|name| {
        let (map, brief) = (table.map(&name)?, table.brief(&name)?.clone());
        let news = MapNews::Changed { brief: Some(brief), resync: true, diff: Box::new(map.whole()) };
        Some(MapEvent { news, nodes: vec![], forgotten: vec![] })
    });
    let cluster = table.cluster().cloned().map(MapNews::Cluster);
    let cluster = cluster.map(|news| MapEvent { news, nodes: vec![], forgotten: vec![] });
    cluster.into_iter().chain([addresses]).chain(maps).collect()
}

/// What was in the file, and where it goes again.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    table: RouteTable,
}

impl Kept {
    /// Reads the file. If it is not there or cannot be read nothing was kept; the latter with a warning.
    pub async fn read(path: PathBuf) -> Kept {
        let table = read(&path).await;
        Kept { path, table }
    }

    pub(crate) fn into_parts(self) -> (Keep, RouteTable) {
        (Keep { path: self.path, due: None }, self.table)
    }
}

/// The table of the file; an empty one, with a warning, if it cannot be read.
async fn read(path: &Path) -> RouteTable {
    let mut table = RouteTable::default();
    let bytes = match tokio::fs::read(path).await {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return table,
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "kept maps cannot be read");
            return table;
        }
    };
    match kept::from_bytes(&bytes) {
        Ok(events) => {
            for event in events {
                if let Err(error) = take(&mut table, event) {
                    tracing::warn!(file = %path.display(), %error, "a kept map is left aside");
                }
            }
        }
        Err(error) => tracing::warn!(file = %path.display(), %error, "kept maps are left aside"),
    }
    table
}
