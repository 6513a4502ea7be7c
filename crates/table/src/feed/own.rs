//! Changes of shards that a node has replicas of.
//!
//! Any replica may be read: what it has applied is committed, and one that lags gives the same changes later. Leaders are asked,
//! as they have them first. Where an end counts, it is that of a linearizable read: a leader that has just begun may not have
//! applied yet what the one before has acknowledged.

use super::{Fault, Limits, ShardChanges};
use crate::limits;
use crate::rows::ChangesPage;
use crate::service::{Refusal, Refused, Tables};
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;
use partage_core::node::exchange::ReplicaKey;
use partage_service::table::feed::Progress;
use partage_service::table::replication::{Consistency, LogPosition};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout_at};

/// A shard, and what its reader has of it.
struct Asked {
    shard: ShardId,
    /// How far the shard was read; none until it was read.
    progress: Option<Progress>,
    /// The last change that its replica had applied before it was read, if it was read.
    read_at: Option<Option<LogPosition>>,
    /// Nothing follows on what was read.
    is_end: bool,
}

/// Reads the changes that a reader lacks of some shards, in that order as long as there is room; waits where there are none.
pub(super) async fn read(
    tables: &Tables,
    table: &KeyspaceName,
    progress: &Progress,
    shards: impl IntoIterator<Item = ShardId>,
    limits: Limits,
) -> Vec<ShardChanges> {
    let until = Instant::now() + limits.wait;
    let read_on_until = until.max(Instant::now() + limits::FEED_READ_ON);
    let mut heard = tables.node().newest_changes().heard();
    let asked = shards.into_iter().map(|shard| Asked { shard, progress: None, read_at: None, is_end: true });
    let mut asked: Vec<Asked> = asked.collect();
    loop {
        heard.mark_unchanged();
        let found = read_news(tables, table, progress, (&mut asked, limits)).await;
        // What is passed over, as it is of rows that were in another shard, is not waited for.
        let is_end = asked.iter().all(|one| one.is_end);
        let patience = if is_end { until } else { read_on_until };
        if found.iter().any(ShardChanges::is_news) || Instant::now() >= patience {
            let is_found = |shard: ShardId| found.iter().any(|one| one.shard == shard);
            let others = asked.iter().filter(|one| one.read_at.is_some() && !is_found(one.shard));
            let others: Vec<ShardChanges> = others.map(Asked::unchanged).collect();
            return found.into_iter().chain(others).collect();
        }
        if is_end && matches!(timeout_at(until, heard.changed()).await, Ok(Ok(()))) {
            sleep(limits::FEED_BURST_DELAY).await;
        }
    }
}

impl Asked {
    fn unchanged(&self) -> ShardChanges {
        let progress = self.progress.clone().unwrap_or_default();
        let page = ChangesPage { changes: Vec::new(), progress, is_end: self.is_end };
        ShardChanges { shard: self.shard, read: Ok(page) }
    }
}

/// Reads those shards that may have something that was not read yet.
async fn read_news(
    tables: &Tables,
    table: &KeyspaceName,
    progress: &Progress,
    (asked, asked_for): (&mut [Asked], Limits),
) -> Vec<ShardChanges> {
    let (mut found, mut left, mut bytes) = (Vec::new(), asked_for.most, limits::FEED_BYTES);
    let consistency = if asked_for.ends { Consistency::Linearizable } else { Consistency::Any };
    for one in asked {
        if bytes == 0 || (left == 0 && asked_for.most > 0) {
            break;
        }
        let Some((replica, bounds)) = tables.replica_of(table, one.shard) else {
            found.push(ShardChanges {
                shard: one.shard,
                read: Err(Fault::Refused(not_here(table, one.shard))),
            });
            continue;
        };
        let newest = tables.node().newest_changes().of(&replica);
        if one.is_end && one.read_at == Some(newest) {
            continue;
        }
        let progress = one.progress.clone().unwrap_or_else(|| progress.within(&bounds));
        let read = read_replica(tables, (&replica, consistency), progress, (left, bytes)).await;
        if let Ok(page) = &read {
            (one.progress, one.read_at) = (Some(page.progress.clone()), Some(newest));
            one.is_end = page.is_end;
            left -= left.min(page.changes.len());
            bytes = bytes.saturating_sub(page.bytes());
        }
        found.push(ShardChanges { shard: one.shard, read });
    }
    found
}

fn not_here(table: &KeyspaceName, shard: ShardId) -> Refused {
    Refused::new(Refusal::Soon, format!("this node has no replica of shard {shard} of table {table}"))
}

async fn read_replica(
    tables: &Tables,
    (replica, consistency): (&ReplicaKey, Consistency),
    progress: Progress,
    (most, bytes): (usize, usize),
) -> Result<ChangesPage, Fault> {
    if progress.is_empty() {
        return Ok(ChangesPage { changes: Vec::new(), progress, is_end: true });
    }
    let pinned = tables.pin(replica, consistency).await.map_err(Fault::Refused)?;
    let stopped = |why: String| Fault::Refused(Refused::new(Refusal::Stopped, why));
    let reading = spawn_blocking(move || pinned.changes(progress, most, bytes));
    let read = reading.await.map_err(|error| stopped(format!("the node stopped: {error}")))?;
    read.map_err(|error| stopped(error.to_string()))?.map_err(|gone| Fault::Late(gone.to_string()))
}
