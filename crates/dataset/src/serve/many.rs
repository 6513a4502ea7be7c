//! Many keys at a time: `POST /<dataset>`, up to [`limits::MANY_KEYS`].
//!
//! ```text
//! application/x-partage-keys     for each key: its length u32 little-endian, the key
//! application/x-partage-values   for each, in the same order: the length u32 of its value, the value;
//!                                or ffffffff: it is not there; or fffffffe: no node could tell;
//!                                or fffffffd: the values of one peer are too much at a time
//! ```
//!
//! JSON has `{"keys": ["a", …]}` and `{"entries": [{"key": "a", "value": "text"}, …]}`. The answer has the form of the
//! question. Keys are answered some hundred at a time, as a stream; those that are elsewhere are asked for together,
//! by who has them.

use super::answer;
use super::fetch::{PeerRequest, Unanswered};
use super::full::{Body, whole};
use super::lookup::{LookupResult, lookup_all};
use super::refusal::Refusal;
use super::request::{Wants, by_peer};
use super::server::ThreadState;
use crate::catalogue::{Hop, Outcome, Place, Reading, Version};
use crate::limits;
use base64::Engine;
use bytes::Bytes;
use futures::stream;
use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::Frame;
use partage_door::RequestBody;
use partage_engine::readonly::{Losses, Value};
use partage_wire::json::ErrorBody;
use partage_wire::request::at_least::AT_LEAST;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The form of a question in bytes.
pub const KEYS: &str = "application/x-partage-keys";
/// The form of its answer.
pub const VALUES: &str = "application/x-partage-values";
const JSON: &str = "application/json";

/// Instead of a length: the key is not there.
const ABSENT: u32 = u32::MAX;
/// Instead of a length: it is not known whether the key is there.
const UNKNOWN: u32 = u32::MAX - 1;
/// Instead of a length: a peer has the partition, and with it more than is taken of it at a time.
const TOO_MUCH: u32 = u32::MAX - 2;

/// What became of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyResult<'a> {
    /// The key is there, with this value.
    Value(Value<'a>),
    /// The key is not in this version.
    Absent,
    /// The node that has the partition could not answer.
    Unknown,
    /// The node that has the partition has too much for one answer.
    TooMuch,
    /// The partition is not here: a peer must be asked.
    Elsewhere(u32),
}

/// The keys of a question in bytes.
pub fn keys(body: &[u8]) -> Result<Vec<&[u8]>, Refusal> {
    let mut keys = Vec::with_capacity((body.len() / 20).min(limits::MANY_KEYS));
    let mut rest = body;
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk::<4>().ok_or_else(|| cut_off(body.len()))?;
        let length = u32::from_le_bytes(*length) as usize;
        let (key, after) = after.split_at_checked(length).ok_or_else(|| cut_off(body.len()))?;
        if keys.len() == limits::MANY_KEYS {
            return Err(too_many());
        }
        keys.push(key);
        rest = after;
    }
    Ok(keys)
}

fn cut_off(bytes: usize) -> Refusal {
    let what = format!("the body ends within a key, after {bytes} bytes");
    Refusal::bad("body", what, "before each key stands its length, u32 little-endian")
}

fn too_many() -> Refusal {
    let what = format!("more than {} keys", limits::MANY_KEYS);
    Refusal::bad("keys", what, "ask for them in several requests")
}

/// Looks for all keys in what is here.
pub fn lookup_keys<'a>(version: &Version, places: &'a [Place], keys: &[&[u8]]) -> Vec<KeyResult<'a>> {
    let mut results = Vec::with_capacity(keys.len());
    lookup_all(version, places, keys, |result| {
        results.push(match result {
            LookupResult::Value(value) => KeyResult::Value(value),
            LookupResult::Absent => KeyResult::Absent,
            LookupResult::Elsewhere(partition) => KeyResult::Elsewhere(partition),
        });
    });
    results
}

/// Writes results as an answer in bytes.
pub fn write(out: &mut Vec<u8>, results: &[KeyResult<'_>]) {
    for result in results {
        match result {
            KeyResult::Value(value) => {
                out.extend_from_slice(&(value.len() as u32).to_le_bytes());
                out.extend_from_slice(value);
            }
            KeyResult::Absent => out.extend_from_slice(&ABSENT.to_le_bytes()),
            KeyResult::TooMuch => out.extend_from_slice(&TOO_MUCH.to_le_bytes()),
            KeyResult::Unknown | KeyResult::Elsewhere(_) => out.extend_from_slice(&UNKNOWN.to_le_bytes()),
        }
    }
}

/// How long [`write`] makes them.
pub fn length(results: &[KeyResult<'_>]) -> usize {
    let of = |result: &KeyResult<'_>| if let KeyResult::Value(value) = result { value.len() } else { 0 };
    results.iter().map(|result| 4 + of(result)).sum()
}

/// The head of an answer in bytes that is sent whole.
pub fn write_head(out: &mut Vec<u8>, reading: &Reading, length: usize, date: &[u8]) {
    let mut response = Response::new(Bytes::new());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(VALUES));
    answer::VersionHeaders::of(reading).insert_into(response.headers_mut());
    answer::write_head(out, &response, Some(length), date);
    out.reserve(length);
}

/// Reads an answer in bytes to so many keys.
fn read(mut rest: &[u8], count: usize) -> Option<Vec<KeyResult<'static>>> {
    let mut results = Vec::with_capacity(count);
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (result, after) = match u32::from_le_bytes(*length) {
            ABSENT => (KeyResult::Absent, after),
            UNKNOWN => (KeyResult::Unknown, after),
            TOO_MUCH => (KeyResult::TooMuch, after),
            length => {
                let (value, after) = after.split_at_checked(length as usize)?;
                (KeyResult::Value(Cow::Owned(value.to_vec())), after)
            }
        };
        results.push(result);
        rest = after;
    }
    (results.len() == count).then_some(results)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Bytes,
    Json,
}

/// Answers `POST /<dataset>`: a value, or why there is none, for each key of the body.
pub async fn answer(
    thread: &Arc<ThreadState>,
    name: &str,
    parts: &Parts,
    body: RequestBody,
) -> Result<Response<Body>, Refusal> {
    let by_peer = by_peer(parts.uri.query())?;
    let form = form(&parts.headers)?;
    let body = Limited::new(body, limits::MANY_BYTES).collect().await.map_err(|error| {
        let way_out = format!("it may have up to {} bytes", limits::MANY_BYTES);
        let what = format!("the body was not read, {error}");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body", what, way_out)
    })?;
    let body = body.to_bytes();
    let keys = match form {
        Form::Bytes => keys(&body)?.into_iter().map(|key| body.slice_ref(key)).collect(),
        Form::Json => json_keys(&body)?,
    };
    let (began, is_by_peer) = (thread.server.clock.nanos(), by_peer.is_some());
    let at_least = parts.headers.get(AT_LEAST).map(HeaderValue::as_bytes);
    let reading = thread.server.open(name, by_peer.as_deref(), at_least, began)?;
    if let Some(columns) = keys.iter().find_map(|key| reading.partitioner().lacks(key)) {
        return Err(Refusal::not_that_many_columns(name, columns));
    }
    let version_headers = answer::VersionHeaders::of(&reading);
    let mut multi_get = MultiGet {
        thread: thread.clone(),
        dataset: name.to_owned(),
        reading,
        keys,
        at: 0,
        form,
        is_by_peer,
        began,
    };
    let mut response = match multi_get.keys.len() <= limits::MANY_TOGETHER {
        true => {
            let bytes = multi_get.next().await.transpose().map_err(|_| Refusal::lost())?;
            whole(Response::new(Bytes::from(bytes.unwrap_or_default())))
        }
        false => {
            let frames = stream::unfold(multi_get, |mut multi_get| async move {
                let bytes = multi_get.next().await?;
                Some((bytes.map(|bytes| Frame::data(Bytes::from(bytes))), multi_get))
            });
            Response::new(StreamBody::new(frames).boxed_unsync())
        }
    };
    let kind = if form == Form::Bytes { VALUES } else { JSON };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    version_headers.insert_into(response.headers_mut());
    Ok(response)
}

fn form(headers: &HeaderMap) -> Result<Form, Refusal> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
    match kind.split(';').next().unwrap_or("").trim() {
        kind if kind.eq_ignore_ascii_case(KEYS) => Ok(Form::Bytes),
        kind if kind.eq_ignore_ascii_case(JSON) => Ok(Form::Json),
        _ => {
            let what = format!("several keys are asked for as {JSON} or {KEYS}");
            let way_out = "say which in content-type";
            Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", what, way_out))
        }
    }
}

fn json_keys(body: &[u8]) -> Result<Vec<Bytes>, Refusal> {
    let form = "send {\"keys\": [\"one\", \"another\"]}";
    let body: serde_json::Value = serde_json::from_slice(body)
        .map_err(|error| Refusal::bad("body", format!("the body is no JSON, {error}"), form))?;
    let wrong = |what: String| Refusal::bad("body", what, form);
    let keys =
        body.get("keys").and_then(|keys| keys.as_array()).ok_or_else(|| wrong("there are no keys".into()))?;
    if keys.len() > limits::MANY_KEYS {
        return Err(too_many());
    }
    let key = |(number, key): (usize, &serde_json::Value)| match key.as_str() {
        Some(key) => Ok(Bytes::copy_from_slice(key.as_bytes())),
        None => Err(wrong(format!("key {number} is not a string"))),
    };
    keys.iter().enumerate().map(key).collect()
}

/// A request for many keys that is being answered.
struct MultiGet {
    thread: Arc<ThreadState>,
    dataset: String,
    reading: Reading,
    keys: Vec<Bytes>,
    at: usize,
    form: Form,
    is_by_peer: bool,
    began: u64,
}

impl MultiGet {
    /// The next part of the answer.
    async fn next(&mut self) -> Option<std::io::Result<Vec<u8>>> {
        let from = self.at;
        if from > self.keys.len() || (from == self.keys.len() && from > 0) {
            return None;
        }
        let to = (from + limits::MANY_TOGETHER).min(self.keys.len());
        self.at = to.max(1);
        // Of a file that loses bytes meanwhile the next lookup says so, and peers are asked.
        for _ in 0..limits::READ_ATTEMPTS {
            let losses = Losses::from_now();
            let out = self.part(from, to).await;
            if losses.have_been() {
                continue;
            }
            if to == self.keys.len() {
                let nanos = self.thread.server.clock.nanos().saturating_sub(self.began);
                let hop = if self.is_by_peer { Hop::Peer } else { Hop::Here };
                let (keys, bytes) = (self.keys.len() as u64, out.len() as u64);
                self.reading.meter().count(Outcome::Found, hop, nanos, keys, bytes);
            }
            return Some(Ok(out));
        }
        self.at = self.keys.len() + 1;
        Some(Err(std::io::Error::other("store files lose bytes while they are read")))
    }

    async fn part(&self, from: usize, to: usize) -> Vec<u8> {
        let keys: Vec<&[u8]> = self.keys[from..to].iter().map(AsRef::as_ref).collect();
        let places = self.reading.places();
        let mut results = lookup_keys(&self.reading, &places, &keys);
        if !self.is_by_peer {
            self.fetch(&places, &keys, &mut results).await;
        }
        let mut out = Vec::new();
        match self.form {
            Form::Bytes => write(&mut out, &results),
            Form::Json => self.write_json(&mut out, &keys, &results, from == 0, to == self.keys.len()),
        }
        out
    }

    /// Asks peers for what is elsewhere: one request to each group of peers that has some of it, all at a time.
    async fn fetch(&self, places: &[Place], keys: &[&[u8]], results: &mut [KeyResult<'_>]) {
        let mut groups: BTreeMap<&[Arc<str>], Vec<usize>> = BTreeMap::new();
        for (number, result) in results.iter().enumerate() {
            if let KeyResult::Elsewhere(partition) = result {
                groups.entry(&places[*partition as usize].peers).or_default().push(number);
            }
        }
        let version = self.reading.name().as_str();
        let path = format!("/{}?proxy={version}", self.dataset);
        let asked = groups.into_iter().map(|(peers, numbers)| {
            let mut body = Vec::new();
            for number in &numbers {
                body.extend_from_slice(&(keys[*number].len() as u32).to_le_bytes());
                body.extend_from_slice(keys[*number]);
            }
            let peer_request = PeerRequest::new(&Method::POST, &path, version, &Wants::default(), &body);
            async move {
                let lacking = match self.thread.fetch(peers, &peer_request).await {
                    Ok(answer) => match read(answer.body(), numbers.len()) {
                        Some(found) => return (numbers, Ok(found)),
                        None => KeyResult::Unknown,
                    },
                    Err(Unanswered { is_too_long: true, .. }) => KeyResult::TooMuch,
                    Err(Unanswered { .. }) => KeyResult::Unknown,
                };
                (numbers, Err(lacking))
            }
        });
        for (numbers, found) in futures::future::join_all(asked).await {
            match found {
                Ok(found) => {
                    numbers.into_iter().zip(found).for_each(|(number, result)| results[number] = result);
                }
                Err(lacking) => numbers.into_iter().for_each(|number| results[number] = lacking.clone()),
            }
        }
    }

    fn write_json(
        &self,
        out: &mut Vec<u8>,
        keys: &[&[u8]],
        results: &[KeyResult<'_>],
        is_first: bool,
        is_last: bool,
    ) {
        if is_first {
            let version = self.reading.name().as_str();
            out.extend_from_slice(format!("{{\"version\":\"{version}\",\"entries\":[").as_bytes());
        }
        for (number, (key, result)) in keys.iter().zip(results).enumerate() {
            if number > 0 || !is_first {
                out.extend_from_slice(b",\n");
            }
            let mut entry = serde_json::Map::new();
            entry.insert("key".to_owned(), String::from_utf8_lossy(key).into());
            match result {
                KeyResult::Value(value) => {
                    let (name, value) = json_bytes("value", value);
                    entry.insert(name, value);
                }
                KeyResult::Absent => drop(entry.insert("value".to_owned(), serde_json::Value::Null)),
                KeyResult::TooMuch => {
                    let limit = limits::PEER_BODY_BYTES;
                    let what = format!("more than {limit} bytes of one peer at a time");
                    entry.insert("error".to_owned(), trouble("too_large", &what, "ask for fewer keys"));
                }
                KeyResult::Unknown | KeyResult::Elsewhere(_) => {
                    let what = "no node that has its partition answered";
                    entry.insert("error".to_owned(), trouble("no_peer", what, "ask for it again"));
                }
            }
            out.extend_from_slice(serde_json::Value::Object(entry).to_string().as_bytes());
        }
        if is_last {
            out.extend_from_slice(b"]}\n");
        }
    }
}

/// Why a key of several has no answer, as errors look.
fn trouble(kind: &str, what: &str, way_out: &str) -> serde_json::Value {
    serde_json::json!(ErrorBody::told(kind, what, way_out).error)
}

/// Text as it is; bytes that are no text as `<name>_base64`.
pub fn json_bytes(name: &str, bytes: &[u8]) -> (String, serde_json::Value) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (name.to_owned(), text.into()),
        Err(_) => {
            let coded = base64::engine::general_purpose::STANDARD.encode(bytes);
            (format!("{name}_base64"), coded.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asked(keys: &[Vec<u8>]) -> Vec<u8> {
        keys.iter().flat_map(|key| [&(key.len() as u32).to_le_bytes(), key.as_slice()].concat()).collect()
    }

    #[test]
    fn bodies_that_are_cut_off_or_too_long_are_refused() {
        let body = asked(&[b"one".to_vec(), b"two".to_vec()]);
        for cut in (1..body.len()).filter(|cut| *cut != 7) {
            assert!(keys(&body[..cut]).unwrap_err().text.contains("length"), "{cut}");
        }
        let most = vec![b"k".to_vec(); limits::MANY_KEYS];
        assert_eq!(keys(&asked(&most)).unwrap().len(), limits::MANY_KEYS);
        let more = vec![b"k".to_vec(); limits::MANY_KEYS + 1];
        assert!(keys(&asked(&more)).unwrap_err().text.contains("10000"));
        for bad in ["", "[]", "{\"keys\":1}", "{\"keys\":[1]}"] {
            assert!(json_keys(bad.as_bytes()).unwrap_err().text.contains("send {"), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn keys_come_back_and_no_body_panics(keys_in in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..20), noise in prop::collection::vec(any::<u8>(), 0..100)) {
            let body = asked(&keys_in);
            let found = keys(&body).unwrap();
            prop_assert_eq!(found, keys_in.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let _ = keys(&noise);
            let _ = json_keys(&noise);
            let _ = read(&noise, 3);
        }

        #[test]
        fn answers_come_back(values in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..20)), 0..20)) {
            let results: Vec<KeyResult<'_>> = values.into_iter().map(|value| value.map_or(KeyResult::Absent, |value| KeyResult::Value(value.into()))).collect();
            let mut out = Vec::new();
            write(&mut out, &results);
            prop_assert_eq!(read(&out, results.len()).unwrap(), results.clone());
            prop_assert!(read(&out, results.len() + 1).is_none());
        }
    }
}
