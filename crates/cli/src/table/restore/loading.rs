//! Chunks of a backup, into the table: read, verified once more, and sent to the nodes in requests of 1 MiB.
//!
//! Each request goes to another node, which writes each row through the leader of its shard. A row is written only if its key has
//! none: so a request may be sent again whatever became of it.

use super::super::backup::location::Location;
use super::super::nodes::refusal;
use super::progress::Progress;
use crate::http::{first_answer, segment};
use crate::output::Failure;
use crate::redrawn::drawn;
use bytes::Bytes;
use hyper::{HeaderMap, Method, StatusCode};
use indicatif::ProgressBar;
use partage_core::limits::VALUE_BYTES;
use partage_wire::table::backup::ContentDigest;
use partage_wire::table::backup::manifest::{ChunkEntry, Manifest};
use partage_wire::table::backup::messages::RowsTaken;
use partage_wire::table::backup::rows::RowReader;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// How long one request is tried: longer than a coordinator takes to place a new table, or to replace a leader.
const PATIENCE: Duration = Duration::from_secs(120);

/// Rest between two tries.
const REST: Duration = Duration::from_millis(300);

/// What became of the rows of a backup, counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Loaded {
    /// Rows that this command has written.
    pub written: u64,
    /// Rows whose keys had a row in the table already.
    pub there: u64,
    /// Rows whose time to live has passed.
    pub ended: u64,
    /// Rows of chunks that an earlier try has loaded.
    pub before: u64,
}

/// Sends the chunks of a backup to the nodes of a table.
#[derive(Clone)]
pub struct Loading {
    location: Location,
    table: String,
    nodes: Arc<Vec<String>>,
    parallel: usize,
}

impl Loading {
    /// Loads into that table, through these nodes.
    pub fn new(location: Location, table: String, nodes: Vec<String>, parallel: usize) -> Loading {
        Loading { location, table, nodes: Arc::new(nodes), parallel }
    }

    /// Loads all chunks but those that are done, and notes each.
    ///
    /// # Errors
    /// A file is damaged, or the table does not take rows.
    pub async fn all(
        &self,
        manifest: &Manifest,
        done: &BTreeSet<ContentDigest>,
        progress: &Progress,
        is_json: bool,
    ) -> Result<Loaded, Failure> {
        let bar = ProgressBar::new(manifest.content_bytes()).with_message(self.table.clone());
        let bar =
            drawn(bar, "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} to go", is_json);
        let (mut loaded, mut loading) = (Loaded::default(), JoinSet::new());
        let mut left = manifest.chunks().enumerate();
        loop {
            while loading.len() < self.parallel
                && let Some((number, entry)) = left.next()
            {
                if done.contains(&entry.digest.0) {
                    loaded.before += entry.rows;
                    bar.inc(entry.content_bytes);
                    continue;
                }
                let (this, entry) = (self.clone(), entry.clone());
                loading.spawn(async move { this.chunk(number, &entry).await.map(|taken| (taken, entry)) });
            }
            let Some(ended) = loading.join_next().await else { break };
            let (RowsTaken { written, there, ended }, entry) = ended.map_err(Failure::failed)??;
            progress.has_loaded(entry.digest.0).await?;
            bar.inc(entry.content_bytes);
            loaded.written += written;
            loaded.there += there;
            loaded.ended += ended;
        }
        bar.finish_and_clear();
        Ok(loaded)
    }

    async fn chunk(&self, number: usize, entry: &ChunkEntry) -> Result<RowsTaken, Failure> {
        let content = self.location.chunk(entry).await.map_err(|error| error.failure())?;
        let content = Bytes::from(content);
        let mut all = RowsTaken::default();
        for (part, range) in parts(&content).into_iter().enumerate() {
            let taken = self.rows(number + part, content.slice(range)).await?;
            all.written += taken.written;
            all.there += taken.there;
            all.ended += taken.ended;
        }
        Ok(all)
    }

    async fn rows(&self, turn: usize, rows: Bytes) -> Result<RowsTaken, Failure> {
        let path = format!("/v1/tables/{}/chunks", segment(&self.table));
        let (until, mut turn, mut is_first) = (Instant::now() + PATIENCE, turn, true);
        loop {
            let node = self.nodes.get(turn % self.nodes.len().max(1)).cloned();
            let node: Vec<_> = node.into_iter().collect();
            let failure = match first_answer(&node, &Method::POST, &path, &HeaderMap::new(), &rows).await {
                Ok(reply) if reply.status == StatusCode::OK => {
                    let taken: RowsTaken = serde_json::from_slice(&reply.body).map_err(Failure::failed)?;
                    // What is there already may be from the try before.
                    let RowsTaken { written, there, ended } = taken;
                    let again = RowsTaken { written: written + there, there: 0, ended };
                    return Ok(if is_first { taken } else { again });
                }
                Ok(reply) if is_final(reply.status) => return Err(refusal(&self.table, &reply)),
                Ok(reply) => refusal(&self.table, &reply),
                Err(error) => Failure::not_reachable(format!("no node of tables answers: {}", error.why)),
            };
            if Instant::now() >= until {
                return Err(failure);
            }
            (turn, is_first) = (turn + 1, false);
            sleep(REST).await;
        }
    }
}

/// Whether the same request gets the same answer always.
fn is_final(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::METHOD_NOT_ALLOWED)
}

/// The rows of a chunk in requests of 1 MiB at most, or of one row.
fn parts(content: &[u8]) -> Vec<std::ops::Range<usize>> {
    let (mut parts, mut begin, mut end) = (Vec::new(), 0, 0);
    let mut rows = RowReader::new(content);
    // The chunk was read through when it was verified.
    while let Some(Ok(row)) = rows.next() {
        if end > begin && end + row.size() - begin > VALUE_BYTES {
            parts.push(begin..end);
            begin = end;
        }
        end = rows.at();
    }
    if end > begin {
        parts.push(begin..end);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_wire::table::backup::rows::BackupRow;

    #[test]
    fn parts_have_all_rows_and_one_mib_or_one_row() {
        for (count, bytes) in [(0, 0), (1, 1 << 20), (3, 1 << 20), (5_000, 700), (2, 600_000)] {
            let mut content = Vec::new();
            for number in 0..count {
                let (key, value) = (format!("{number:05}"), vec![0; bytes]);
                BackupRow { key: key.as_bytes(), value: &value, expires_ms: None }.put(&mut content);
            }
            let parts = parts(&content);
            let rows: usize = parts.iter().map(|part| RowReader::new(&content[part.clone()]).count()).sum();
            assert_eq!(rows, count);
            assert!(
                parts
                    .iter()
                    .all(|part| part.len() <= 1 << 20 || RowReader::new(&content[part.clone()]).count() == 1)
            );
            assert_eq!(parts.iter().map(std::iter::ExactSizeIterator::len).sum::<usize>(), content.len());
        }
    }
}
