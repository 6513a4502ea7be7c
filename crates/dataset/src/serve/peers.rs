//! Requests to peers, over connections that are kept.
//!
//! A small client of HTTP/1.1: one request at a time on a connection, the answer whole in memory. Dropping the future
//! of a request closes its connection, which is how a loser is cancelled. Not hyper's client: on a node that has a
//! third of the keys two of three requests are such, and it would cost more than all the rest of them.

use crate::limits;
use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use partage_core::base::time::Millis;
use partage_dialer::Dialer;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Why a peer gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The connection could not be opened, or broke.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The answer is no HTTP, or its head is longer than this client takes.
    #[error("its answer is not understood: {0}")]
    Malformed(&'static str),
    /// The answer is longer than this client takes at a time.
    #[error("its answer is longer than the {} bytes that are taken at a time", limits::PEER_BODY_BYTES)]
    TooLong,
    /// The answer is of another version than this node asked for, or its status says nothing of the key.
    #[error("it answered {status} of version {version:?}")]
    Wrong {
        status: StatusCode,
        /// The version that the peer answered from; empty: its answer named none.
        version: String,
    },
}

/// Idle connections to peers, of one thread.
#[derive(Debug, Default)]
pub struct Pool(Mutex<BTreeMap<Arc<str>, Vec<TcpStream>>>);

impl Pool {
    fn take(&self, peer: &str) -> Option<TcpStream> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(peer)?.pop()
    }

    fn put(&self, peer: &Arc<str>, stream: TcpStream) {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !pool.contains_key(peer) && pool.len() >= limits::PEERS_KEPT {
            pool.clear();
        }
        let idle = pool.entry(peer.clone()).or_default();
        if idle.len() < limits::IDLE_PER_PEER {
            idle.push(stream);
        }
    }

    /// Sends a request, whole as it stands, and waits for the answer.
    pub async fn send(
        &self,
        peer: &Arc<str>,
        request: &[u8],
        is_head: bool,
    ) -> Result<Response<Bytes>, PeerError> {
        let request = &for_host(request, peer);
        // A kept connection may have been closed by the peer meanwhile: that shows before the first byte comes back.
        if let Some(mut stream) = self.take(peer) {
            let asked = async {
                stream.write_all(request).await?;
                read(&mut stream, is_head).await
            };
            match asked.await {
                Ok((response, true)) => {
                    self.put(peer, stream);
                    return Ok(response);
                }
                Ok((response, false)) => return Ok(response),
                Err(PeerError::Io(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let mut stream = Dialer::PEER.tcp(&**peer).await?;
        stream.write_all(request).await?;
        let (response, is_kept) = read(&mut stream, is_head).await?;
        if is_kept {
            self.put(peer, stream);
        }
        Ok(response)
    }
}

/// Peers that let a stage pass without an answer, and until when they are asked after the others; of one thread.
#[derive(Debug, Default)]
pub struct SlowPeers(Mutex<BTreeMap<Arc<str>, Millis>>);

impl SlowPeers {
    /// Whether that peer was slow lately.
    pub fn is(&self, peer: &str, now: Millis) -> bool {
        let slow = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slow.get(peer).is_some_and(|until| now < *until)
    }

    /// A peer was slow.
    pub fn remember(&self, peer: &Arc<str>, until: Millis) {
        let mut slow = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !slow.contains_key(peer) && slow.len() >= limits::PEERS_KEPT {
            slow.clear();
        }
        slow.insert(peer.clone(), until);
    }

    /// Notes that the peer has answered in time again.
    pub fn forget(&self, peer: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(peer);
    }
}

/// The request with the peer as its host, which is all that a peer answers to.
fn for_host(request: &[u8], peer: &str) -> Vec<u8> {
    let line = request.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    [&request[..line], b"host: ", peer.as_bytes(), b"\r\n", &request[line..]].concat()
}

/// How an answer says where its body ends.
enum Framing {
    Length(usize),
    Chunked,
    /// HEAD and 304: there is none.
    None,
}

struct Head {
    response: Response<Bytes>,
    framing: Framing,
    is_kept: bool,
}

async fn read(stream: &mut TcpStream, is_head: bool) -> Result<(Response<Bytes>, bool), PeerError> {
    let mut input = Vec::with_capacity(2_048);
    let (head, at) = loop {
        if let Some(head) = head(&input, is_head)? {
            break head;
        }
        if input.len() > limits::PEER_HEAD_BYTES {
            return Err(PeerError::Malformed("its head is too long"));
        }
        more(stream, &mut input).await?;
    };
    let Head { mut response, framing, is_kept } = head;
    let body = match framing {
        Framing::None => Vec::new(),
        Framing::Length(length) => {
            if length > limits::PEER_BODY_BYTES {
                return Err(PeerError::TooLong);
            }
            let mut body = input.split_off(at);
            body.reserve_exact(length.saturating_sub(body.len()));
            while body.len() < length {
                more(stream, &mut body).await?;
            }
            if body.len() > length {
                return Err(PeerError::Malformed("it goes on after its end"));
            }
            body
        }
        Framing::Chunked => chunks(stream, input.split_off(at)).await?,
    };
    *response.body_mut() = Bytes::from(body);
    Ok((response, is_kept))
}

async fn more(stream: &mut TcpStream, input: &mut Vec<u8>) -> Result<(), PeerError> {
    input.reserve(2_048);
    match stream.read_buf(input).await? {
        0 => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
        _ => Ok(()),
    }
}

fn head(input: &[u8], is_head: bool) -> Result<Option<(Head, usize)>, PeerError> {
    let mut lines = [httparse::EMPTY_HEADER; limits::PEER_HEADERS];
    let mut parsed = httparse::Response::new(&mut lines);
    let at = match parsed.parse(input) {
        Ok(httparse::Status::Complete(at)) => at,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(PeerError::Malformed("its head is not HTTP/1.1")),
    };
    let status =
        StatusCode::from_u16(parsed.code.unwrap_or(0)).map_err(|_| PeerError::Malformed("its status"))?;
    let (mut framing, mut is_kept) = (None, parsed.version == Some(1));
    let mut headers = HeaderMap::with_capacity(parsed.headers.len());
    for line in parsed.headers {
        if line.name.eq_ignore_ascii_case("connection") {
            is_kept &= line.value.eq_ignore_ascii_case(b"keep-alive");
        } else if line.name.eq_ignore_ascii_case("transfer-encoding") {
            framing = Some(Framing::Chunked);
        } else if line.name.eq_ignore_ascii_case("content-length") && framing.is_none() {
            let length = std::str::from_utf8(line.value).ok().and_then(|text| text.parse().ok());
            framing = Some(Framing::Length(length.ok_or(PeerError::Malformed("its length"))?));
            if is_head {
                keep(&mut headers, line);
            }
        } else if !line.name.eq_ignore_ascii_case("date") {
            keep(&mut headers, line);
        }
    }
    let has_none = is_head || status == StatusCode::NOT_MODIFIED;
    let framing =
        if has_none { Framing::None } else { framing.ok_or(PeerError::Malformed("it has no length"))? };
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(Some((Head { response, framing, is_kept }, at)))
}

fn keep(headers: &mut HeaderMap, line: &httparse::Header<'_>) {
    if let (Ok(name), Ok(value)) =
        (HeaderName::from_bytes(line.name.as_bytes()), HeaderValue::from_bytes(line.value))
    {
        headers.insert(name, value);
    }
}

async fn chunks(stream: &mut TcpStream, mut input: Vec<u8>) -> Result<Vec<u8>, PeerError> {
    let mut body = Vec::new();
    let mut at = 0;
    loop {
        let (head, length) = match httparse::parse_chunk_size(&input[at..]) {
            Ok(httparse::Status::Complete((head, length))) => (head, length),
            Ok(httparse::Status::Partial) => {
                more(stream, &mut input).await?;
                continue;
            }
            Err(_) => return Err(PeerError::Malformed("a chunk without a size")),
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > limits::PEER_BODY_BYTES - body.len() {
            return Err(PeerError::TooLong);
        }
        // The chunk and the line end behind it. No trailers are sent by peers.
        while input.len() - at < head + length + 2 {
            more(stream, &mut input).await?;
        }
        body.extend_from_slice(&input[at + head..at + head + length]);
        if length == 0 {
            return Ok(body);
        }
        input.drain(..at + head + length + 2);
        at = 0;
    }
}
