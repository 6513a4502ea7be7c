//! Entries in the order of their keys: `GET /<dataset>?prefix=…` or `?from=…&to=…`, for datasets that were built ordered.
//!
//! Each partition is in order by itself, here or with a peer. Of each the next entries are held; the smallest of all
//! is the next of the whole.

use super::answer;
use super::fetch::PeerRequest;
use super::full::{Body, whole};
use super::many::json_bytes;
use super::refusal::Refusal;
use super::request::Wants;
use super::server::ThreadState;
use crate::catalogue::{Hop, Outcome, Reading};
use crate::limits;
use bytes::Bytes;
use futures::stream;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use partage_engine::readonly::{Pair, ReadError, Reader};
use partage_service::dataset::fetch::Failure;
use partage_wire::request::at_least::AT_LEAST;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// The answer in bytes: for each entry the length u32 of the key, the key, the length u32 of the value, the value.
pub const ENTRIES: &str = "application/x-partage-entries";

/// The entries that a scan asks for: a range of keys, the partitions to look in, and the most to return.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ScanQuery {
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    /// What all keys begin with, where that was asked for.
    prefix: Option<Vec<u8>>,
    limit: usize,
    /// The partitions to read: all, unless a peer asks for some.
    partitions: Option<Vec<u32>>,
    by_peer: Option<String>,
}

/// Whether the query of a dataset asks for entries.
pub fn is_scan(fields: &[(&str, Vec<u8>)]) -> bool {
    fields.iter().any(|(name, _)| ["prefix", "from", "after", "to", "limit"].contains(name))
}

fn parse_query(fields: &[(&str, Vec<u8>)]) -> Result<ScanQuery, Refusal> {
    let mut query = ScanQuery {
        from: Bound::Unbounded,
        to: Bound::Unbounded,
        prefix: None,
        limit: limits::SCAN_ENTRIES,
        partitions: None,
        by_peer: None,
    };
    let mut prefix = None;
    for (name, value) in fields {
        let text = || String::from_utf8_lossy(value).into_owned();
        match *name {
            "prefix" => {
                prefix = Some(value.clone());
                query.prefix.clone_from(&prefix);
            }
            "from" => query.from = Bound::Included(value.clone()),
            "after" => query.from = Bound::Excluded(value.clone()),
            "to" => query.to = Bound::Excluded(value.clone()),
            "proxy" if !value.is_empty() => query.by_peer = Some(text()),
            "limit" => {
                let limit =
                    text().parse().ok().filter(|limit| (1..=limits::SCAN_MOST_ENTRIES).contains(limit));
                let most = limits::SCAN_MOST_ENTRIES;
                let wrong = || {
                    Refusal::bad(
                        "limit",
                        format!("limit is {:?}", text()),
                        format!("1 to {most} can be asked for"),
                    )
                };
                query.limit = limit.ok_or_else(wrong)?;
            }
            "partition" => {
                let numbers: Result<Vec<u32>, _> = text().split(',').map(str::parse).collect();
                let wrong =
                    |_| Refusal::bad("partition", "partition is no list of numbers", "write them as in 0,7");
                query.partitions = Some(numbers.map_err(wrong)?);
            }
            other => {
                let other: String = other.chars().take(64).collect();
                let what = format!("a scan has no {other:?}");
                return Err(Refusal::bad("query", what, "it has prefix, from, after, to and limit"));
            }
        }
    }
    if let Some(prefix) = prefix {
        narrow(&mut query, prefix);
    }
    Ok(query)
}

/// Keeps to keys that begin so.
fn narrow(query: &mut ScanQuery, prefix: Vec<u8>) {
    let after_all = after_all(&prefix);
    let begins_later = match &query.from {
        Bound::Unbounded => false,
        Bound::Included(from) | Bound::Excluded(from) => *from >= prefix,
    };
    if !begins_later {
        query.from = Bound::Included(prefix);
    }
    let ends_sooner = match (&query.to, &after_all) {
        (Bound::Excluded(to), Bound::Excluded(end)) => to < end,
        (Bound::Excluded(_), _) => true,
        _ => false,
    };
    if !ends_sooner {
        query.to = after_all;
    }
}

/// The first key behind all that begin so.
fn after_all(prefix: &[u8]) -> Bound<Vec<u8>> {
    let mut end = prefix.to_vec();
    while end.pop_if(|byte| *byte == 0xff).is_some() {}
    match end.last_mut() {
        Some(last) => {
            *last += 1;
            Bound::Excluded(end)
        }
        None => Bound::Unbounded,
    }
}

/// Whether nothing can be between the bounds; the engine's own ranges are not asked for what is inside out.
fn is_empty(from: &Bound<Vec<u8>>, to: &Bound<Vec<u8>>) -> bool {
    match (from, to) {
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to)) => from >= to,
        _ => false,
    }
}

/// Answers a scan; the entries are sent as they are read.
pub async fn answer(
    thread: &Arc<ThreadState>,
    name: &str,
    fields: &[(&str, Vec<u8>)],
    parts: &Parts,
) -> Result<Response<Body>, Refusal> {
    let query = parse_query(fields)?;
    let began = thread.server.clock.nanos();
    let at_least = parts.headers.get(AT_LEAST).map(HeaderValue::as_bytes);
    let reading = thread.server.open(name, query.by_peer.as_deref(), at_least, began)?;
    let version_headers = answer::VersionHeaders::of(&reading);
    let accept = parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
    let in_bytes = query.by_peer.is_some() || accept.contains(ENTRIES);
    let mut scan = ScanStream::new(thread.clone(), name, reading, query, in_bytes, began)?;
    // The first part before the head goes out: what cannot be scanned at all is then told by the status.
    let first = match scan.part().await {
        Ok(first) => first,
        Err(ScanError::Refused(refusal)) => {
            let mut response = answer::refused(&refusal);
            version_headers.insert_into(response.headers_mut());
            return Ok(whole(response));
        }
        Err(ScanError::Told(response)) => return Ok(whole(response)),
    };
    let mut response = match scan.is_over {
        true => whole(Response::new(Bytes::from(first))),
        false => {
            let rest = stream::unfold((scan, Some(first)), |(mut scan, first)| async move {
                let part = match first {
                    Some(first) => Ok(first),
                    None if scan.is_over => return None,
                    None => scan.part().await.map_err(|error| {
                        scan.is_over = true;
                        std::io::Error::other(error.text())
                    }),
                };
                Some((part.map(|part| Frame::data(Bytes::from(part))), (scan, None)))
            });
            Response::new(StreamBody::new(rest).boxed_unsync())
        }
    };
    let kind = if in_bytes { ENTRIES } else { "application/json" };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    version_headers.insert_into(response.headers_mut());
    Ok(response)
}

/// Why there are no further entries.
enum ScanError {
    Refused(Refusal),
    /// A peer has told why.
    Told(Response<Bytes>),
}

impl ScanError {
    fn text(&self) -> String {
        match self {
            ScanError::Refused(refusal) => refusal.text.clone(),
            ScanError::Told(response) => format!("a peer answered {}", response.status()),
        }
    }
}

/// Where entries come from, each in order by itself.
enum EntrySource {
    Here(u32, Arc<Reader>),
    Peers(Arc<[Arc<str>]>, Vec<u32>),
}

struct Cursor {
    source: EntrySource,
    held: VecDeque<Pair>,
    /// The place in the keys after which nothing was read yet.
    from: Bound<Vec<u8>>,
    is_over: bool,
}

struct ScanStream {
    thread: Arc<ThreadState>,
    dataset: String,
    reading: Reading,
    query: ScanQuery,
    cursors: Vec<Cursor>,
    given: usize,
    in_bytes: bool,
    began: u64,
    is_over: bool,
}

impl ScanStream {
    fn new(
        thread: Arc<ThreadState>,
        dataset: &str,
        reading: Reading,
        query: ScanQuery,
        in_bytes: bool,
        began: u64,
    ) -> Result<ScanStream, Refusal> {
        let places = reading.places();
        // Rows that agree on the column that they are divided by are in one partition.
        let of_prefix =
            |prefix: &Vec<u8>| reading.partitioner().partition_of_prefix(prefix, places.len() as u32);
        let all = match query.prefix.as_ref().and_then(of_prefix) {
            Some(one) => one..one + 1,
            None => 0..places.len() as u32,
        };
        let mut sources = Vec::new();
        let mut groups: BTreeMap<Arc<[Arc<str>]>, Vec<u32>> = BTreeMap::new();
        for partition in query.partitions.clone().unwrap_or_else(|| all.collect()) {
            let version = reading.name().as_str();
            let place = places.get(partition as usize);
            match place.and_then(|place| place.here.clone()) {
                Some(reader) => sources.push(EntrySource::Here(partition, reader)),
                None if query.by_peer.is_some() => {
                    return Err(Refusal::not_that_partition(dataset, version, partition));
                }
                None => {
                    let peers = place.map(|place| place.peers.clone()).unwrap_or_default();
                    groups.entry(peers).or_default().push(partition);
                }
            }
        }
        sources.extend(groups.into_iter().map(|(peers, partitions)| EntrySource::Peers(peers, partitions)));
        let is_over = is_empty(&query.from, &query.to);
        let cursors = sources
            .into_iter()
            .map(|source| Cursor { source, held: VecDeque::new(), from: query.from.clone(), is_over })
            .collect();
        drop(places);
        let dataset = dataset.to_owned();
        Ok(ScanStream { thread, dataset, reading, query, cursors, given: 0, in_bytes, began, is_over: false })
    }

    /// The next part of the answer.
    async fn part(&mut self) -> Result<Vec<u8>, ScanError> {
        let mut out = Vec::new();
        if self.given == 0 && !self.in_bytes {
            let version = self.reading.name().as_str();
            out.extend_from_slice(format!("{{\"version\":\"{version}\",\"entries\":[").as_bytes());
        }
        while out.len() < limits::SCAN_PART_BYTES {
            let next = match self.given < self.query.limit {
                true => self.next().await?,
                false => None,
            };
            let Some(pair) = next else {
                return self.end(out).await;
            };
            self.write(&mut out, &pair);
            self.given += 1;
        }
        // A peer comes again for what is behind; it would have to hold the whole in memory.
        if self.query.by_peer.is_some() {
            return self.end(out).await;
        }
        Ok(out)
    }

    async fn end(&mut self, mut out: Vec<u8>) -> Result<Vec<u8>, ScanError> {
        if !self.in_bytes {
            let has_more = self.given == self.query.limit && self.next().await?.is_some();
            out.extend_from_slice(format!("],\"more\":{has_more}}}\n").as_bytes());
        }
        let nanos = self.thread.server.clock.nanos().saturating_sub(self.began);
        let hop = if self.query.by_peer.is_some() { Hop::Peer } else { Hop::Here };
        self.reading.meter().count(Outcome::Found, hop, nanos, self.given as u64, out.len() as u64);
        self.is_over = true;
        Ok(out)
    }

    fn write(&self, out: &mut Vec<u8>, (key, value): &Pair) {
        if self.in_bytes {
            for bytes in [key, value] {
                out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                out.extend_from_slice(bytes);
            }
            return;
        }
        if self.given > 0 {
            out.extend_from_slice(b",\n");
        }
        let entry: serde_json::Map<_, _> =
            [json_bytes("key", key), json_bytes("value", value)].into_iter().collect();
        out.extend_from_slice(serde_json::Value::Object(entry).to_string().as_bytes());
    }

    /// The smallest of what the cursors have next.
    async fn next(&mut self) -> Result<Option<Pair>, ScanError> {
        for at in 0..self.cursors.len() {
            if self.cursors[at].held.is_empty() && !self.cursors[at].is_over {
                self.fill(at).await?;
            }
        }
        let first = |cursor: &&mut Cursor| cursor.held.front().map(|(key, _)| key.clone());
        let with_some = self.cursors.iter_mut().filter(|cursor| !cursor.held.is_empty());
        Ok(with_some.min_by_key(first).and_then(|cursor| cursor.held.pop_front()))
    }

    async fn fill(&mut self, at: usize) -> Result<(), ScanError> {
        let count = limits::SCAN_TOGETHER.min(self.query.limit + 1);
        let cursor = &self.cursors[at];
        let pairs = match &cursor.source {
            EntrySource::Here(partition, reader) => here(reader, &cursor.from, &self.query.to, count)
                .map_err(|error| ScanError::Refused(self.unread(*partition, &error)))?,
            EntrySource::Peers(peers, partitions) => {
                let path = self.path(&cursor.from, partitions, count);
                let version = self.reading.name().as_str();
                let peer_request = PeerRequest::new(&Method::GET, &path, version, &Wants::default(), &[]);
                let answer = self
                    .thread
                    .fetch(peers, &peer_request)
                    .await
                    .map_err(|unanswered| ScanError::Refused(failed(unanswered.failure, partitions)))?;
                if answer.status() != StatusCode::OK {
                    return Err(ScanError::Told(answer));
                }
                read(answer.body()).ok_or_else(|| {
                    let what = "a peer's entries are not understood";
                    let way_out = "have all nodes run one version";
                    ScanError::Refused(Refusal::new(StatusCode::BAD_GATEWAY, "no_peer", what, way_out))
                })?
            }
        };
        let cursor = &mut self.cursors[at];
        match pairs.last() {
            Some((last, _)) => cursor.from = Bound::Excluded(last.clone()),
            None => cursor.is_over = true,
        }
        cursor.held.extend(pairs);
        Ok(())
    }

    /// A partition that is here was not read. If it is damaged, it will be loaded once more.
    fn unread(&self, partition: u32, error: &ReadError) -> Refusal {
        if let ReadError::NotOrdered(_) = error {
            let what = "this dataset is not ordered, so it has no ranges";
            return Refusal::bad("not_ordered", what, "have it built with the ordered layout");
        }
        self.reading.report_damage(partition, &error.to_string());
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "damaged", error, "ask another node")
    }

    fn path(&self, from: &Bound<Vec<u8>>, partitions: &[u32], count: usize) -> String {
        let version = self.reading.name().as_str();
        let numbers: Vec<String> = partitions.iter().map(u32::to_string).collect();
        let mut path =
            format!("/{}?proxy={version}&limit={count}&partition={}", self.dataset, numbers.join(","));
        match from {
            Bound::Unbounded => {}
            Bound::Included(key) => path += &format!("&from={}", super::request::encoded(key)),
            Bound::Excluded(key) => path += &format!("&after={}", super::request::encoded(key)),
        }
        if let Bound::Excluded(to) = &self.query.to {
            path += &format!("&to={}", super::request::encoded(to));
        }
        path
    }
}

fn failed(failure: Failure, partitions: &[u32]) -> Refusal {
    Refusal::of_peers(&failure, format!("partitions {partitions:?}: {failure}"))
}

/// Some entries of a reader, bounded in number and in bytes.
fn here(
    reader: &Reader,
    from: &Bound<Vec<u8>>,
    to: &Bound<Vec<u8>>,
    count: usize,
) -> Result<Vec<Pair>, ReadError> {
    let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
    let mut pairs = Vec::new();
    let mut bytes = 0;
    for pair in reader.scan(range)?.take(count) {
        let pair = pair?;
        bytes += pair.0.len() + pair.1.len();
        pairs.push(pair);
        if bytes >= limits::SCAN_PART_BYTES {
            break;
        }
    }
    Ok(pairs)
}

fn read(mut rest: &[u8]) -> Option<Vec<Pair>> {
    let mut pairs = Vec::new();
    let take = |rest: &mut &[u8]| -> Option<Vec<u8>> {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (bytes, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        *rest = after;
        Some(bytes.to_vec())
    };
    while !rest.is_empty() {
        pairs.push((take(&mut rest)?, take(&mut rest)?));
    }
    Some(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(fields: &[(&str, &str)]) -> Result<ScanQuery, Refusal> {
        let fields: Vec<(&str, Vec<u8>)> =
            fields.iter().map(|(name, value)| (*name, value.as_bytes().to_vec())).collect();
        parse_query(&fields)
    }

    #[test]
    fn a_query_becomes_bounds() {
        let a = of(&[("prefix", "ab"), ("limit", "5")]).unwrap();
        assert_eq!(
            (a.from, a.to, a.limit),
            (Bound::Included(b"ab".into()), Bound::Excluded(b"ac".into()), 5)
        );
        let b = of(&[("from", "b"), ("to", "c")]).unwrap();
        assert_eq!((b.from, b.to), (Bound::Included(b"b".into()), Bound::Excluded(b"c".into())));
        let c = of(&[("prefix", "ab"), ("after", "abx"), ("to", "aby")]).unwrap();
        assert_eq!((c.from, c.to), (Bound::Excluded(b"abx".into()), Bound::Excluded(b"aby".into())));
        for bad in [("limit", "0"), ("limit", "100001"), ("limit", "x"), ("partition", "a"), ("form", "1")] {
            assert!(of(&[bad]).is_err(), "{bad:?}");
        }
        assert_eq!(after_all(b"a\xff\xff"), Bound::Excluded(b"b".to_vec()));
        assert_eq!(after_all(b"\xff"), Bound::Unbounded);
    }

    proptest! {
        #[test]
        fn a_prefix_and_bounds_hold_what_they_say(prefix in "[ab\u{ff}]{0,3}", from in "[ab]{0,3}", to in "[ab]{0,3}", key in "[ab\u{ff}]{0,4}") {
            let query = of(&[("prefix", &prefix), ("from", &from), ("to", &to)]).unwrap();
            let (key, bytes) = (key.as_bytes(), |text: &String| text.as_bytes().to_vec());
            let expected = key.starts_with(&bytes(&prefix)) && key >= bytes(&from).as_slice() && key < bytes(&to).as_slice();
            let from = match &query.from { Bound::Included(from) => key >= from.as_slice(), Bound::Excluded(from) => key > from.as_slice(), Bound::Unbounded => true };
            let to = match &query.to { Bound::Excluded(to) => key < to.as_slice(), _ => true };
            prop_assert_eq!(from && to, expected);
        }

        #[test]
        fn no_answer_of_a_peer_panics(noise in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = read(&noise);
        }
    }
}
