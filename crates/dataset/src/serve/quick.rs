//! The quick clerk: HTTP/1.1, one key a request, as many requests at a time as have come in.
//!
//! ```text
//! read ─► while a whole request is there: answer it into `out` ─► write `out`, all at once ─► read …
//! ```
//!
//! Everything that is not plainly such a request is passed on to hyper, connection and all: another method or
//! version, a body, a request to close or to upgrade, a path without a key, a head that is long or that does not parse.
//! So this clerk refuses nothing and frames nothing that could be understood in two ways.

use super::answer;
use super::ask::{Ask, Target, Wants, by_peer, target};
use super::fetch::Errand;
use super::lookup::{Looked, look, look_ahead};
use super::many::{self, Slot};
use super::refusal::Refusal;
use super::server::Desk;
use crate::catalogue::{Dataset, Hop, Outcome, Place, Reading};
use crate::limits;
use arc_swap::Guard;
use bytes::Bytes;
use http::Response;
use partage_engine::limits::TOGETHER;
use std::borrow::Cow;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// How a connection ended for the quick clerk.
pub enum End {
    /// The client is gone.
    Closed,
    /// Somebody else goes on with it, beginning with what was read and not answered.
    PassedOn { stream: TcpStream, read: Bytes },
}

/// What stands at the beginning of what was read.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen<'a> {
    /// A request of so many bytes.
    Ask(Ask<'a>, usize),
    /// One for several keys, of so many bytes.
    Many(Many<'a>, usize),
    /// The beginning of something.
    Part,
    /// Not for this clerk.
    Other,
}

/// A request for several keys, in bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Many<'a> {
    dataset: &'a str,
    by_peer: Option<Cow<'a, str>>,
    body: &'a [u8],
}

/// Reads one request. Pure.
pub fn see(input: &[u8]) -> Seen<'_> {
    let mut lines = [const { MaybeUninit::uninit() }; limits::QUICK_HEADERS];
    let mut parsed = httparse::Request::new(&mut []);
    let length = match parsed.parse_with_uninit_headers(input, &mut lines) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if input.len() < limits::QUICK_HEAD_BYTES => return Seen::Part,
        Ok(httparse::Status::Partial) | Err(_) => return Seen::Other,
    };
    let body = match parsed.method {
        _ if parsed.version != Some(1) => return Seen::Other,
        Some("GET" | "HEAD") => None,
        Some("POST") => match body_bytes(parsed.headers) {
            Some(bytes) => Some(bytes),
            None => return Seen::Other,
        },
        _ => return Seen::Other,
    };
    let Some(wants) = wants(parsed.headers, body.is_some()) else { return Seen::Other };
    let path = parsed.path.unwrap_or("");
    // What `http::Uri` would not take as it is, hyper refuses.
    if !path.bytes().all(|byte| PLAIN[usize::from(byte)]) {
        return Seen::Other;
    }
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    };
    match (target(path), by_peer(query), body) {
        (Ok(Target::Key(dataset, key)), Ok(by_peer), None) => {
            let is_head = parsed.method == Some("HEAD");
            Seen::Ask(Ask { is_head, dataset, key, by_peer, wants }, length)
        }
        (Ok(Target::Dataset(dataset)), Ok(by_peer), Some(bytes)) => match input.get(length..length + bytes) {
            Some(body) => Seen::Many(Many { dataset, by_peer, body }, length + bytes),
            None => Seen::Part,
        },
        _ => Seen::Other,
    }
}

/// By byte: whether it may stand in a path or query.
static PLAIN: [bool; 256] = {
    let (mut plain, others) = ([false; 256], b"-_.~%/:@!$&'()*+,;=?");
    let mut byte = 0_u8;
    while byte < 128 {
        plain[byte as usize] = byte.is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < others.len() {
        plain[others[at] as usize] = true;
        at += 1;
    }
    plain
};

/// The length of a body of keys, if there is one that is not long.
fn body_bytes(headers: &[httparse::Header<'_>]) -> Option<usize> {
    let (mut length, mut is_keys) = (None, false);
    for header in headers {
        if is(header, "content-length") {
            let digits = header.value.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(header.value).ok().filter(|_| digits)?;
            if length.replace(text.parse().ok()?).is_some() {
                return None;
            }
        } else if is(header, "content-type") {
            is_keys = header.value == many::KEYS.as_bytes();
        }
    }
    length.filter(|length| is_keys && *length <= limits::QUICK_BODY_BYTES)
}

/// The headers that matter, unless one of them is for hyper.
fn wants<'a>(headers: &[httparse::Header<'a>], has_body: bool) -> Option<Wants<'a>> {
    let mut wants = Wants::default();
    for header in headers {
        let slot = match header.name.len() {
            5 if is(header, "range") => &mut wants.range,
            8 if is(header, "if-range") => &mut wants.if_range,
            13 if is(header, "if-none-match") => &mut wants.if_none_match,
            15 if is(header, "accept-encoding") => &mut wants.accept_encoding,
            10 if is(header, "connection") && !header.value.eq_ignore_ascii_case(b"keep-alive") => {
                return None;
            }
            14 if !has_body && is(header, "content-length") && header.value != b"0" => return None,
            17 if is(header, "transfer-encoding") => return None,
            7 if is(header, "upgrade") => return None,
            6 if is(header, "expect") => return None,
            _ => continue,
        };
        if slot.replace(header.value).is_some() {
            return None;
        }
    }
    Some(wants)
}

fn is(header: &httparse::Header<'_>, name: &str) -> bool {
    header.name.eq_ignore_ascii_case(name)
}

/// Serves until the client goes, or asks for more than this clerk does.
pub async fn serve(desk: &Desk, mut stream: TcpStream) -> std::io::Result<End> {
    let mut input = Vec::with_capacity(limits::QUICK_READ_BYTES);
    let mut out = Vec::with_capacity(limits::QUICK_READ_BYTES);
    let (mut until, mut rest) = (None, Rest::new(desk.house.settings.idle));
    loop {
        let read = match input.is_empty() {
            true => {
                until = None;
                match rest.read(&mut stream, &mut input).await? {
                    Some(read) => read,
                    None => return Ok(End::Closed),
                }
            }
            // Who has begun a request must end it in time; who has not may take its time.
            false => {
                let until = *until.get_or_insert_with(|| tokio::time::Instant::now() + limits::HEAD_TIMEOUT);
                match tokio::time::timeout_at(until, stream.read_buf(&mut input)).await {
                    Ok(read) => read?,
                    Err(_) => return Ok(End::Closed),
                }
            }
        };
        if read == 0 {
            return Ok(End::Closed);
        }
        let mut at = 0;
        let next = loop {
            let (done, next) = round(desk, &input[at..], &mut out).await;
            at += done;
            until = until.filter(|_| done == 0);
            write(&mut stream, &out).await?;
            out.clear();
            match next {
                After::Further => {}
                next => break next,
            }
        };
        out.shrink_to(2 * limits::QUICK_WRITE_BYTES);
        input.drain(..at);
        if next == After::Other || desk.house.stopping.load(Ordering::Relaxed) {
            return Ok(End::PassedOn { stream, read: Bytes::from(input) });
        }
        input.reserve(limits::QUICK_READ_BYTES);
    }
}

/// Tells who asks nothing any more from who only rests. (Of connections of hyper `usage.rs` tells it.)
struct Rest {
    idle: Duration,
    /// Rings a few times while the client may rest; set anew when it has rung, not at each request.
    bell: Pin<Box<Sleep>>,
}

impl Rest {
    fn new(idle: Duration) -> Rest {
        Rest { idle, bell: Box::pin(tokio::time::sleep(idle / limits::IDLE_LOOKS)) }
    }

    /// Waits for a request. `None`: none has come for too long.
    async fn read(&mut self, stream: &mut TcpStream, input: &mut Vec<u8>) -> std::io::Result<Option<usize>> {
        let mut rung = 0;
        loop {
            tokio::select! {
                biased;
                read = stream.read_buf(input) => return read.map(Some),
                () = &mut self.bell => rung += 1,
            }
            // The first time it may have rung at once.
            if rung > limits::IDLE_LOOKS {
                return Ok(None);
            }
            self.bell.as_mut().reset(tokio::time::Instant::now() + self.idle / limits::IDLE_LOOKS);
        }
    }
}

/// Writes all of it, as long as the client goes on taking some.
async fn write(stream: &mut TcpStream, mut out: &[u8]) -> std::io::Result<()> {
    while !out.is_empty() {
        match stream.try_write(out) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => out = &out[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let taken = tokio::time::timeout(limits::WRITE_TIMEOUT, stream.writable()).await;
                taken.map_err(|_| ErrorKind::TimedOut)??;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How it goes on after some requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// There may be more to answer.
    Further,
    /// More must be read first.
    Part,
    /// The next is for hyper.
    Other,
}

/// Answers some of the requests at the beginning of what was read; how many bytes they were.
async fn round(desk: &Desk, input: &[u8], out: &mut Vec<u8>) -> (usize, After) {
    let mut seen = Vec::new();
    let (mut end, mut next) = (0, After::Part);
    while end < input.len() {
        match see(&input[end..]) {
            Seen::Part => break,
            Seen::Other => {
                next = After::Other;
                break;
            }
            request @ (Seen::Ask(_, length) | Seen::Many(_, length)) => {
                end += length;
                seen.push(request);
            }
        }
        if seen.len() == TOGETHER {
            next = After::Further;
            break;
        }
    }
    let mut batch = Batch::new(desk, out);
    batch.look_ahead(&seen);
    let mut done = 0;
    for request in &seen {
        match request {
            Seen::Ask(ask, length) => {
                done += length;
                if let Some(proxied) = batch.answer(ask) {
                    drop(batch);
                    proxied.go(desk, ask, out).await;
                    return (done, After::Further);
                }
            }
            Seen::Many(many, _) if !batch.many(many) => return (done, After::Other),
            Seen::Many(_, length) => done += length,
            Seen::Part | Seen::Other => {}
        }
        if batch.out.len() >= limits::QUICK_WRITE_BYTES {
            return (done, After::Further);
        }
    }
    (done, next)
}

/// Requests that came together. They are answered by one version of each dataset, and counted together.
struct Batch<'a> {
    desk: &'a Desk,
    out: &'a mut Vec<u8>,
    date: Guard<Arc<String>>,
    began: u64,
    held: Option<Held>,
    tally: [(u64, u64); 2],
}

/// The dataset that the last request was for.
struct Held {
    dataset: Arc<Dataset>,
    reading: Reading,
    places: Guard<Arc<Vec<Place>>>,
    by_peer: Option<String>,
}

impl Held {
    fn hop(&self) -> Hop {
        if self.by_peer.is_some() { Hop::Peer } else { Hop::Here }
    }
}

/// A request that a peer must answer.
struct Proxied {
    held: Held,
    partition: u32,
    began: u64,
}

impl<'a> Batch<'a> {
    fn new(desk: &'a Desk, out: &'a mut Vec<u8>) -> Batch<'a> {
        let (date, began) = (desk.house.date(), desk.house.clock.nanos());
        Batch { desk, out, date, began, held: None, tally: Default::default() }
    }

    /// Has the memory fetched in which the keys will be looked for, if there are several and all of one dataset.
    fn look_ahead(&mut self, seen: &[Seen<'_>]) {
        let [Seen::Ask(first, _), _, ..] = seen else { return };
        if self.hold(first.dataset, first.by_peer.as_deref()).is_err() {
            return;
        }
        let Some(held) = &self.held else { return };
        let keys = seen.iter().filter_map(|seen| match seen {
            Seen::Ask(ask, _) if ask.dataset == first.dataset => Some(&*ask.key),
            _ => None,
        });
        look_ahead(&held.reading, &held.places, keys);
    }

    /// Answers, unless a peer must.
    fn answer(&mut self, ask: &Ask<'_>) -> Option<Proxied> {
        if let Err(refusal) = self.hold(ask.dataset, ask.by_peer.as_deref()) {
            answer::write(self.out, &answer::refused(&refusal), ask.is_head, self.date.as_bytes());
            return None;
        }
        let held = self.held.as_ref()?;
        let partition = match look(&held.reading, &held.places, &ask.key) {
            Looked::Value(value) => {
                self.tally[Outcome::Found as usize].0 += 1;
                self.tally[Outcome::Found as usize].1 += value.len() as u64;
                if answer::is_plain(&ask.wants, value.len()) {
                    let head = held.reading.plain_head(|| {
                        answer::plain_head(&answer::head_of(&held.reading, held.reading.options()))
                    });
                    answer::write_plain(self.out, head, &value, ask.is_head, self.date.as_bytes());
                } else {
                    let head = answer::head_of(&held.reading, held.reading.options());
                    let response = answer::found(&head, value, &ask.wants);
                    answer::write(self.out, &response, ask.is_head, self.date.as_bytes());
                }
                return None;
            }
            Looked::Absent => {
                self.tally[Outcome::Absent as usize].0 += 1;
                let response = answer::absent(held.reading.name().as_str());
                answer::write(self.out, &response, ask.is_head, self.date.as_bytes());
                return None;
            }
            Looked::Elsewhere(partition) => partition,
        };
        if ask.by_peer.is_some() {
            let version = held.reading.name().as_str();
            let refusal = Refusal::not_that_partition(ask.dataset, version, partition);
            held.reading.meter().count(Outcome::Failed, Hop::Peer, 0, 1, 0);
            answer::write(self.out, &answer::refused(&refusal), ask.is_head, self.date.as_bytes());
            return None;
        }
        self.settle();
        let held = self.held.take()?;
        Some(Proxied { held, partition, began: self.began })
    }

    /// Answers a request for several keys, if all of them are here and the answer is not long.
    fn many(&mut self, many: &Many<'_>) -> bool {
        let Ok(keys) = many::keys(many.body) else { return false };
        if self.hold(many.dataset, many.by_peer.as_deref()).is_err() {
            return false;
        }
        let Some(held) = &self.held else { return false };
        let slots = many::slots(&held.reading, &held.places, &keys);
        let is_elsewhere = |slot: &Slot<'_>| matches!(slot, Slot::Elsewhere(_));
        if many.by_peer.is_none() && slots.iter().any(is_elsewhere) {
            return false;
        }
        let length = many::length(&slots);
        if length > limits::QUICK_MANY_BYTES {
            return false;
        }
        many::write_head(self.out, held.reading.name().as_str(), length, self.date.as_bytes());
        many::write(self.out, &slots);
        let nanos = self.desk.house.clock.nanos().saturating_sub(self.began);
        held.reading.meter().count(Outcome::Found, held.hop(), nanos, keys.len() as u64, length as u64);
        true
    }

    /// Takes hold of the version that the request is for, if it is another than the last one's.
    fn hold(&mut self, name: &str, by_peer: Option<&str>) -> Result<(), Refusal> {
        if self
            .held
            .as_ref()
            .is_some_and(|held| held.dataset.name().as_str() == name && held.by_peer.as_deref() == by_peer)
        {
            return Ok(());
        }
        self.settle();
        self.held = None;
        let (dataset, reading) = self.desk.house.open(name, by_peer, self.began)?;
        let places = reading.places();
        let by_peer = by_peer.map(str::to_owned);
        self.held = Some(Held { dataset, reading, places, by_peer });
        Ok(())
    }

    /// Counts what was answered so far.
    fn settle(&mut self) {
        let Some(held) = &self.held else { return };
        let hop = held.hop();
        let nanos = self.desk.house.clock.nanos().saturating_sub(self.began);
        for (outcome, (requests, bytes)) in [Outcome::Found, Outcome::Absent].into_iter().zip(self.tally) {
            if requests > 0 {
                held.reading.meter().count_many(outcome, hop, nanos, requests, bytes);
            }
        }
        self.tally = Default::default();
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.settle();
    }
}

impl Proxied {
    async fn go(self, desk: &Desk, ask: &Ask<'_>, out: &mut Vec<u8>) {
        let response: Response<Bytes> = desk
            .proxied(&self.held.reading, &self.held.places, self.partition, self.began, |version| {
                Errand::key(ask, version)
            })
            .await;
        let date = desk.house.date();
        answer::write(out, &response, ask.is_head, date.as_bytes());
    }
}
