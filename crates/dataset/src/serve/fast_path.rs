//! The fast path: HTTP/1.1, one key a request, as many requests at a time as have come in.
//!
//! ```text
//! read ─► while a whole request is there: answer it into `out` ─► write `out`, all at once ─► read …
//! ```
//!
//! Everything that is not plainly such a request is passed on to hyper, connection and all: another method or
//! version, a body, a request to close or to upgrade, a path without a key, a head that is long or that does not parse.
//! So the fast path refuses nothing and frames nothing that could be understood in two ways.

use super::batch;
use super::many::{self, KeyResult};
use super::request::{KeyRequest, Target, Wants, by_peer, target};
use super::server::ThreadState;
use crate::catalogue::{Hop, Outcome};
use crate::limits;
use bytes::Bytes;
use partage_door::{AcceptedConnection, has_dot_segment};
use partage_engine::limits::TOGETHER;
use partage_engine::readonly::Losses;
use std::borrow::Cow;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// How a connection ended for the fast path.
pub enum End {
    /// The client is gone.
    Closed,
    /// The full path goes on with it, beginning with what was read and not answered.
    PassedOn { accepted: AcceptedConnection, read: Bytes },
}

/// What stands at the beginning of what was read.
pub enum Parsed<'a> {
    /// A request for the fast path, for this host, of so many bytes.
    Request(Request<'a>, &'a [u8], usize),
    /// The beginning of a request.
    Incomplete,
    /// A request that the fast path leaves to hyper.
    Other,
}

/// A request for the fast path.
pub enum Request<'a> {
    One(KeyRequest<'a>),
    Many(Many<'a>),
}

/// A request for several keys, in bytes.
pub struct Many<'a> {
    dataset: &'a str,
    by_peer: Option<Cow<'a, str>>,
    at_least: Option<&'a [u8]>,
    body: &'a [u8],
}

/// Reads one request. Pure.
pub fn parse(input: &[u8]) -> Parsed<'_> {
    let mut lines = [const { MaybeUninit::uninit() }; limits::FAST_PATH_HEADERS];
    let mut parsed = httparse::Request::new(&mut []);
    let length = match parsed.parse_with_uninit_headers(input, &mut lines) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if input.len() < limits::FAST_PATH_HEAD_BYTES => {
            return Parsed::Incomplete;
        }
        Ok(httparse::Status::Partial) | Err(_) => return Parsed::Other,
    };
    let body = match parsed.method {
        _ if parsed.version != Some(1) => return Parsed::Other,
        Some("GET" | "HEAD") => None,
        Some("POST") => match body_bytes(parsed.headers) {
            Some(bytes) => Some(bytes),
            None => return Parsed::Other,
        },
        _ => return Parsed::Other,
    };
    let Some((wants, host)) = wants(parsed.headers, body.is_some()) else { return Parsed::Other };
    let path = parsed.path.unwrap_or("");
    // What `http::Uri` would not take as it is, hyper refuses; and segments of dots, the door.
    if !path.bytes().all(|byte| PLAIN[usize::from(byte)]) || has_dot_segment(path) {
        return Parsed::Other;
    }
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    };
    match (target(path), by_peer(query), body) {
        (Ok(Target::Key(dataset, key)), Ok(by_peer), None) => {
            let is_head = parsed.method == Some("HEAD");
            Parsed::Request(Request::One(KeyRequest { is_head, dataset, key, by_peer, wants }), host, length)
        }
        (Ok(Target::Dataset(dataset)), Ok(by_peer), Some(bytes)) => match input.get(length..length + bytes) {
            Some(body) => {
                let at_least = wants.at_least;
                Parsed::Request(
                    Request::Many(Many { dataset, by_peer, at_least, body }),
                    host,
                    length + bytes,
                )
            }
            None => Parsed::Incomplete,
        },
        _ => Parsed::Other,
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
            if is_keys {
                return None;
            }
            is_keys = header.value == many::KEYS.as_bytes();
        }
    }
    length.filter(|length| is_keys && *length <= limits::FAST_PATH_BODY_BYTES)
}

/// The headers that matter, and the host, unless one of them is for hyper.
fn wants<'a>(headers: &[httparse::Header<'a>], has_body: bool) -> Option<(Wants<'a>, &'a [u8])> {
    let (mut wants, mut host) = (Wants::default(), None);
    for header in headers {
        let slot = match header.name.len() {
            4 if is(header, "host") => &mut host,
            5 if is(header, "range") => &mut wants.range,
            8 if is(header, "if-range") => &mut wants.if_range,
            13 if is(header, "if-none-match") => &mut wants.if_none_match,
            15 if is(header, "accept-encoding") => &mut wants.accept_encoding,
            16 if is(header, "partage-at-least") => &mut wants.at_least,
            10 if is(header, "connection") && !header.value.eq_ignore_ascii_case(b"keep-alive") => {
                return None;
            }
            14 if !has_body && is(header, "content-length") && header.value != b"0" => return None,
            17 if is(header, "transfer-encoding") => return None,
            7 if is(header, "upgrade") => return None,
            6 if is(header, "expect") || is(header, "origin") => return None,
            14 if is(header, "sec-fetch-site") => return None,
            12 if is(header, "content-type") && !has_body => return None,
            _ => continue,
        };
        if slot.replace(header.value).is_some() {
            return None;
        }
    }
    Some((wants, host?))
}

fn is(header: &httparse::Header<'_>, name: &str) -> bool {
    header.name.eq_ignore_ascii_case(name)
}

/// Serves until the client goes, or asks for more than the fast path does.
pub async fn serve(thread: &ThreadState, accepted: AcceptedConnection) -> std::io::Result<End> {
    let mut input = Vec::with_capacity(limits::FAST_PATH_READ_BYTES);
    let held = thread.server.door.reserve(accepted.peer.ip());
    let mut connection = FastPathConnection {
        accepted,
        host: Vec::new(),
        out: Vec::with_capacity(limits::FAST_PATH_READ_BYTES),
    };
    let (mut is_held, mut until) = (false, None);
    let mut idle_timer = IdleTimer::new(thread.server.settings.idle);
    loop {
        let read = match input.is_empty() {
            true => {
                until = None;
                match idle_timer.read(&mut connection.accepted.stream, &mut input).await? {
                    Some(read) => read,
                    None => return Ok(End::Closed),
                }
            }
            // A client that has begun a request must end it in time; one that has not may take its time.
            false => {
                let limit = thread.server.door.head_limit();
                let until = *until.get_or_insert_with(|| tokio::time::Instant::now() + limit);
                match tokio::time::timeout_at(until, connection.accepted.stream.read_buf(&mut input)).await {
                    Ok(read) => read?,
                    Err(_) => {
                        thread.server.door.refuse_slow_head();
                        return Ok(End::Closed);
                    }
                }
            }
        };
        if read == 0 {
            return Ok(End::Closed);
        }
        let is_long = input.capacity() > limits::FAST_PATH_UNCOUNTED_BYTES;
        if (is_long || is_held) && !held.set(if is_long { input.capacity() } else { 0 }) {
            // The door says so.
            return Ok(End::PassedOn { accepted: connection.accepted, read: Bytes::from(input) });
        }
        is_held = is_long;
        let mut at = 0;
        let next = loop {
            let (done, next) = answer_some(thread, &mut connection, &input[at..]).await?;
            at += done;
            until = until.filter(|_| done == 0);
            connection.write().await?;
            match next {
                NextStep::Continue => {}
                next => break next,
            }
        };
        connection.out.shrink_to(2 * limits::FAST_PATH_WRITE_BYTES);
        input.drain(..at);
        if next == NextStep::Other || thread.server.stopping.load(Ordering::Relaxed) {
            return Ok(End::PassedOn { accepted: connection.accepted, read: Bytes::from(input) });
        }
        if input.is_empty() && is_held {
            input.shrink_to(limits::FAST_PATH_READ_BYTES);
        }
        input.reserve(limits::FAST_PATH_READ_BYTES);
    }
}

/// Tells apart clients that ask nothing any more and those that only pause. (For connections of hyper the door does that.)
struct IdleTimer {
    idle: Duration,
    /// Fires a few times while the client may be idle; set anew when it has fired, not at each request.
    timer: Pin<Box<Sleep>>,
}

impl IdleTimer {
    fn new(idle: Duration) -> IdleTimer {
        IdleTimer { idle, timer: Box::pin(tokio::time::sleep(idle / limits::IDLE_CHECKS)) }
    }

    /// Waits for a request. `None`: none has come for too long.
    async fn read(&mut self, stream: &mut TcpStream, input: &mut Vec<u8>) -> std::io::Result<Option<usize>> {
        let mut ticks = 0;
        loop {
            tokio::select! {
                biased;
                read = stream.read_buf(input) => return read.map(Some),
                () = &mut self.timer => ticks += 1,
            }
            // The first time it may have fired at once.
            if ticks > limits::IDLE_CHECKS {
                return Ok(None);
            }
            self.timer.as_mut().reset(tokio::time::Instant::now() + self.idle / limits::IDLE_CHECKS);
        }
    }
}

/// A connection, and what is to be written to it.
pub struct FastPathConnection {
    accepted: AcceptedConnection,
    /// The host that was asked for last, and that the door answers to.
    host: Vec<u8>,
    pub out: Vec<u8>,
}

impl FastPathConnection {
    /// Writes all of it, as long as the client goes on taking some.
    async fn write(&mut self) -> std::io::Result<()> {
        let mut out = self.out.as_slice();
        while !out.is_empty() {
            match self.accepted.stream.try_write(out) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => out = &out[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let taken =
                        tokio::time::timeout(limits::WRITE_TIMEOUT, self.accepted.stream.writable()).await;
                    taken.map_err(|_| ErrorKind::TimedOut)??;
                }
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        Ok(())
    }

    /// Whether the door answers to `host`. Clients hardly ever ask for another one over the same connection.
    fn is_for(&mut self, thread: &ThreadState, host: &[u8]) -> bool {
        if self.host == host {
            return true;
        }
        let text = std::str::from_utf8(host);
        let is_own = text.is_ok_and(|text| thread.server.door.answers_to(text, self.accepted.local()));
        if is_own {
            self.host = host.to_vec();
        }
        is_own
    }

    /// Writes if much has come together.
    pub async fn write_if_long(&mut self) -> std::io::Result<()> {
        if self.out.len() >= limits::FAST_PATH_WRITE_BYTES { self.write().await } else { Ok(()) }
    }
}

/// How it goes on after some requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextStep {
    /// There may be more to answer.
    Continue,
    /// More must be read first.
    Incomplete,
    /// The next is for hyper.
    Other,
}

/// Answers some of the requests at the beginning of what was read; how many bytes they were. What belongs together is
/// answered from one version, and counted together.
async fn answer_some(
    thread: &ThreadState,
    connection: &mut FastPathConnection,
    input: &[u8],
) -> std::io::Result<(usize, NextStep)> {
    let mut requests = Vec::new();
    let (mut end, mut next) = (0, NextStep::Incomplete);
    while end < input.len() {
        if requests.len() == TOGETHER {
            next = NextStep::Continue;
            break;
        }
        match parse(&input[end..]) {
            Parsed::Incomplete => break,
            Parsed::Other => {
                next = NextStep::Other;
                break;
            }
            Parsed::Request(_, host, _) if !connection.is_for(thread, host) => {
                next = NextStep::Other;
                break;
            }
            Parsed::Request(request, _, length) => {
                end += length;
                requests.push((request, end));
            }
        }
    }
    let mut done = 0;
    for run in requests.chunk_by(|one, next| is_alike(&one.0, &next.0)) {
        match run {
            [(Request::Many(many), end)] => {
                let (losses, before) = (Losses::from_now(), connection.out.len());
                let is_answered = answer_many(thread, many, &mut connection.out);
                if !is_answered || losses.have_been() {
                    connection.out.truncate(before);
                    return Ok((done, NextStep::Other));
                }
                done = *end;
            }
            run => {
                let alike = run.iter().filter_map(|(request, _)| request.one());
                batch::answer(thread, connection, alike).await?;
                done = run.last().map_or(done, |(_, end)| *end);
            }
        }
        connection.write_if_long().await?;
    }
    Ok((done, next))
}

impl<'a> Request<'a> {
    fn one(&self) -> Option<&KeyRequest<'a>> {
        match self {
            Request::One(request) => Some(request),
            Request::Many(_) => None,
        }
    }
}

/// Whether both are for a key of the same version.
fn is_alike(one: &Request<'_>, next: &Request<'_>) -> bool {
    one.one().zip(next.one()).is_some_and(|(a, b)| {
        a.dataset == b.dataset && a.by_peer == b.by_peer && a.wants.at_least == b.wants.at_least
    })
}

/// Answers a request for several keys, if all of them are here and the answer is not long.
fn answer_many(thread: &ThreadState, many: &Many<'_>, out: &mut Vec<u8>) -> bool {
    let began = thread.server.clock.nanos();
    let Ok(keys) = many::keys(many.body) else { return false };
    let Ok(reading) = thread.server.open(many.dataset, many.by_peer.as_deref(), many.at_least, began) else {
        return false;
    };
    if keys.iter().any(|key| reading.partitioner().lacks(key).is_some()) {
        return false;
    }
    let places = reading.places();
    let results = many::lookup_keys(&reading, &places, &keys);
    let is_elsewhere = |result: &KeyResult<'_>| matches!(result, KeyResult::Elsewhere(_));
    if many.by_peer.is_none() && results.iter().any(is_elsewhere) {
        return false;
    }
    let length = many::length(&results);
    if length > limits::FAST_PATH_MANY_BYTES {
        return false;
    }
    many::write_head(out, &reading, length, thread.server.date().as_bytes());
    many::write(out, &results);
    let nanos = thread.server.clock.nanos().saturating_sub(began);
    let hop = if many.by_peer.is_some() { Hop::Peer } else { Hop::Here };
    reading.meter().count(Outcome::Found, hop, nanos, keys.len() as u64, length as u64);
    true
}
