//! Reading the rows of one shard, chunk by chunk, from a snapshot that its leader keeps.
//!
//! A chunk that the earlier backup has is not sent: the request names the chunks that began with the same key there, and the node
//! answers 304 if its rows are those. A chunk that is sent, and that the location has all the same (from another shard, or from a
//! backup that was interrupted), is not written again.

use super::cluster::ShardView;
use super::location::Location;
use crate::http::{Reply, first_answer, segment, segment_of};
use crate::output::Failure;
use crate::table::nodes::refusal;
use bytes::Bytes;
use hyper::header::{ETAG, IF_NONE_MATCH};
use hyper::{HeaderMap, Method, StatusCode};
use indicatif::ProgressBar;
use partage_core::keyspace::key::Key;
use partage_wire::table::backup::ContentDigest;
use partage_wire::table::backup::manifest::{ChunkEntry, DigestText, Manifest, ShardBackup};
use partage_wire::table::backup::messages::{NEXT, PinnedSnapshot, ROWS};
use partage_wire::table::backup::rows::RowReader;
use partage_wire::table::{KeyBytes, PlaceForm};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why a shard was not read.
#[derive(Debug)]
pub enum Interrupted {
    /// It may be read anew: it was split, moved, or its leader does not answer.
    Again(String),
    /// Reading it anew would end in the same way.
    Failed(Failure),
}

impl From<Failure> for Interrupted {
    fn from(failure: Failure) -> Interrupted {
        Interrupted::Failed(failure)
    }
}

/// What an earlier backup has, and the location has still.
#[derive(Debug, Default)]
pub struct Base {
    entries: BTreeMap<ContentDigest, ChunkEntry>,
    by_first: BTreeMap<KeyBytes, Vec<ContentDigest>>,
    by_shard: BTreeMap<PlaceForm, ContentDigest>,
}

impl Base {
    /// Of a backup, and the chunks that are there.
    pub fn of(manifest: &Manifest, there: &BTreeMap<ContentDigest, u64>) -> Base {
        let mut base = Base::default();
        let is_there = |entry: &&ChunkEntry| there.get(&entry.digest.0) == Some(&entry.file_bytes);
        for shard in &manifest.shards {
            for entry in shard.chunks.iter().filter(is_there) {
                base.entries.insert(entry.digest.0, entry.clone());
                base.by_first.entry(entry.first.clone()).or_default().push(entry.digest.0);
            }
            if let Some(first) = shard.chunks.first().filter(is_there) {
                base.by_shard.insert(shard.begin.clone(), first.digest.0);
            }
        }
        base
    }

    /// The chunks that may be the one that begins with that key, or with the first one of a shard.
    fn expected(&self, shard: &ShardView, from: &Key) -> Vec<ContentDigest> {
        let first = if from.is_empty() { self.by_shard.get(&shard.begin) } else { None };
        let others = self.by_first.get(&KeyBytes(from.clone())).into_iter().flatten();
        first.into_iter().chain(others).copied().collect()
    }
}

/// What a backup has written.
#[derive(Debug, Clone, Copy, Default)]
pub struct Written {
    pub chunks: u64,
    /// Bytes of their files.
    pub bytes: u64,
}

/// A backup under way.
pub struct Backup {
    /// The place that the files go to.
    pub location: Location,
    pub table: String,
    /// The earlier backup, whose chunks need not be sent again.
    pub base: Base,
    /// The chunks that the location has, with the bytes of each.
    pub there: Mutex<BTreeMap<ContentDigest, u64>>,
    /// What all shards have written so far.
    pub written: Mutex<Written>,
    /// Bytes that were read.
    pub bar: ProgressBar,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the shard may be read anew after that answer.
fn passes(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::MISDIRECTED_REQUEST
            | StatusCode::GONE
            | StatusCode::NOT_FOUND
            | StatusCode::BAD_GATEWAY
            | StatusCode::GATEWAY_TIMEOUT
    )
}

fn text(reply: &Reply, name: impl hyper::header::AsHeaderName) -> Option<&str> {
    reply.headers.get(name).and_then(|value| value.to_str().ok())
}

/// A key in percent-encoding.
fn decoded(text: &str) -> Option<Key> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&byte, behind)) = rest.split_first() {
        if byte == b'%' {
            let (digits, behind) = behind.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = behind;
        } else {
            bytes.push(byte);
            rest = behind;
        }
    }
    Key::new(&bytes).ok()
}

impl Backup {
    async fn ask(
        &self,
        leader: &str,
        method: Method,
        path: &str,
        headers: HeaderMap,
    ) -> Result<Reply, Interrupted> {
        let nodes = [leader.to_owned()];
        let reply = first_answer(&nodes, &method, path, &headers, &Bytes::new()).await;
        let reply =
            reply.map_err(|error| Interrupted::Again(format!("{leader} does not answer: {}", error.why)))?;
        match reply.status {
            status if status.is_success() || status == StatusCode::NOT_MODIFIED => Ok(reply),
            status if passes(status) => {
                Err(Interrupted::Again(format!("{leader}: {}", refusal(&self.table, &reply).what())))
            }
            _ => Err(Interrupted::Failed(refusal(&self.table, &reply))),
        }
    }

    /// Reads a shard, and writes the chunks that the location has not got.
    ///
    /// # Errors
    /// Whether it may be tried again.
    pub async fn shard(&self, shard: &ShardView) -> Result<ShardBackup, Interrupted> {
        let none = || Interrupted::Again(format!("no node leads shard {} at this moment", shard.shard));
        let leader = shard.leader.as_deref().ok_or_else(none)?;
        let path = format!("/v1/tables/{}/shards/{}/snapshots", segment(&self.table), shard.shard);
        let reply = self.ask(leader, Method::POST, &path, HeaderMap::new()).await?;
        let pinned: PinnedSnapshot = serde_json::from_slice(&reply.body)
            .map_err(|error| Failure::failed(format!("the answer of {leader} is not understood: {error}")))?;
        let snapshot = format!("{path}/{}", pinned.snapshot);
        let read = self.rows(leader, &snapshot, shard).await;
        // A snapshot that is not ended is forgotten after a while.
        let _ = self.ask(leader, Method::DELETE, &snapshot, HeaderMap::new()).await;
        let chunks = read?;
        let PinnedSnapshot { shard, begin, end, position, clock_ms, .. } = pinned;
        let Some(begin) = begin else {
            return Err(Interrupted::Again(format!(
                "{leader} does not say which named partition shard {shard} is: it has an earlier version"
            )));
        };
        Ok(ShardBackup { shard, begin, end, position, clock_ms, chunks })
    }

    async fn rows(
        &self,
        leader: &str,
        snapshot: &str,
        shard: &ShardView,
    ) -> Result<Vec<ChunkEntry>, Interrupted> {
        let (mut chunks, mut from) = (Vec::new(), Key::empty());
        loop {
            let expected = self.base.expected(shard, &from);
            let mut headers = HeaderMap::new();
            if !expected.is_empty() {
                let tags: Vec<_> = expected.iter().map(|digest| format!("\"{digest}\"")).collect();
                headers.insert(IF_NONE_MATCH, tags.join(", ").parse().map_err(Failure::failed)?);
            }
            let path = format!("{snapshot}/chunk?from={}", segment_of(from.as_bytes()));
            let reply = self.ask(leader, Method::GET, &path, headers).await?;
            let next = text(&reply, NEXT).map(|next| decoded(next).ok_or_else(|| not_understood(leader)));
            let next = next.transpose()?;
            chunks.extend(self.chunk(leader, reply).await?);
            match next {
                Some(next) if next > from => from = next,
                Some(_) => return Err(not_understood(leader).into()),
                None => return Ok(chunks),
            }
        }
    }

    /// What a node says of a chunk; none: there is no row.
    async fn chunk(&self, leader: &str, reply: Reply) -> Result<Option<ChunkEntry>, Interrupted> {
        let broken = || not_understood(leader);
        let tag = text(&reply, ETAG).and_then(|tag| tag.trim_matches('"').parse::<ContentDigest>().ok());
        let tag = tag.ok_or_else(broken)?;
        if reply.status == StatusCode::NOT_MODIFIED {
            let known = self.base.entries.get(&tag).ok_or_else(broken)?;
            self.bar.inc(known.content_bytes);
            return Ok(Some(known.clone()));
        }
        let rows: u64 = text(&reply, ROWS).and_then(|rows| rows.parse().ok()).ok_or_else(broken)?;
        let content = reply.body;
        if ContentDigest::of(&content) != tag {
            return Err(Interrupted::Again(format!(
                "what came from {leader} is damaged: it has another digest"
            )));
        }
        let Some(first) = RowReader::new(&content).next() else { return Ok(None) };
        let first = first.ok().and_then(|row| Key::new(row.key).ok()).ok_or_else(broken)?;
        let content_bytes = content.len() as u64;
        let there = lock(&self.there).get(&tag).copied();
        let file_bytes = match there {
            Some(bytes) => bytes,
            None => {
                let bytes = self.location.put_chunk(tag, rows, content).await?;
                lock(&self.there).insert(tag, bytes);
                let mut written = lock(&self.written);
                *written = Written { chunks: written.chunks + 1, bytes: written.bytes + bytes };
                bytes
            }
        };
        self.bar.inc(content_bytes);
        let (first, digest) = (KeyBytes(first), DigestText(tag));
        Ok(Some(ChunkEntry { first, digest, rows, content_bytes, file_bytes }))
    }
}

fn not_understood(leader: &str) -> Failure {
    Failure::failed(format!("a chunk of {leader} is not understood"))
        .help("the nodes and this program have different versions: use that of the nodes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_from_their_encoding() {
        for key in [&b""[..], b"a", b"a%b/\0\xff c"] {
            assert_eq!(decoded(&segment_of(key)).map(|key| key.as_bytes().to_vec()), Some(key.to_vec()));
        }
        assert!(decoded("a%").is_none() && decoded("%zz").is_none());
    }
}
