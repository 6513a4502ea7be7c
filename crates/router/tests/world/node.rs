//! A node: an HTTP server that does as it is told.

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use partage_wire::json::ErrorBody;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// What it does with a request.
#[derive(Debug, Clone)]
pub enum Does {
    /// 200, and in the body its name, method, path and the request's body.
    Answers,
    /// The same, after a while.
    Waits(Duration),
    /// This status, with the same body as [`Does::Answers`].
    Says(u16),
    /// 421, the owner being that node at that address, by a map of that sequence.
    Misdirects { node: String, address: String, sequence: u64 },
    /// 503 with Retry-After and this reason, as a node of Partage does.
    Refuses(&'static str),
    /// This status and this reason, as a service does that serves the shard.
    Tells(u16, &'static str),
    /// 503 with Retry-After, these headers and a body of so many bytes.
    Unavailable { headers: &'static [(&'static str, &'static str)], bytes: usize, length: Length },
    /// Reads the request and closes the connection.
    Breaks,
}

/// What the head of an answer says of the length of its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// The true length, in `content-length`.
    Announced,
    /// Nothing: it comes in chunks.
    Chunked,
    /// Nothing, and the body breaks off.
    BreaksOff,
}

/// What it has seen of a request.
#[derive(Debug, Clone)]
pub struct Saw {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// It runs until it is killed or dropped.
pub struct Node {
    pub name: String,
    pub address: String,
    does: Arc<Mutex<Vec<Does>>>,
    saw: Arc<Mutex<Vec<Saw>>>,
    server: JoinSet<()>,
}

impl Node {
    pub async fn start(name: &str) -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let does = Arc::new(Mutex::new(vec![Does::Answers]));
        let saw = Arc::<Mutex<Vec<Saw>>>::default();
        let mut server = JoinSet::new();
        let (name, d, s) = (name.to_owned(), does.clone(), saw.clone());
        let n = name.clone();
        server.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (n, d, s) = (n.clone(), d.clone(), s.clone());
                let service = service_fn(move |request| serve(n.clone(), d.clone(), s.clone(), request));
                let http = hyper::server::conn::http1::Builder::new();
                clients.spawn(async move {
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Node { name, address, does, saw, server }
    }

    /// What it does from now on: one after the other, the last for ever.
    pub fn does(&self, does: &[Does]) {
        *self.does.lock().unwrap() = does.iter().rev().cloned().collect();
    }

    pub fn saw(&self) -> Vec<Saw> {
        self.saw.lock().unwrap().clone()
    }

    pub fn at(&self) -> partage_core::node::NodeAddress {
        super::address(&self.name, &self.address)
    }

    pub async fn kill(&mut self) {
        self.server.shutdown().await;
    }
}

type Answer = Result<Response<UnsyncBoxBody<Bytes, std::io::Error>>, std::io::Error>;

fn whole(bytes: impl Into<Bytes>) -> UnsyncBoxBody<Bytes, std::io::Error> {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// So many bytes, in pieces of a kibibyte.
fn pieces(bytes: usize, breaks_off: bool) -> UnsyncBoxBody<Bytes, std::io::Error> {
    let all = Bytes::from(vec![b'x'; bytes]);
    let pieces = all.chunks(1 << 10).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))));
    let pieces: Vec<_> = pieces.collect();
    let end = async {
        // What was written before a break is flushed only by then.
        tokio::time::sleep(Duration::from_millis(20)).await;
        Err(std::io::Error::other("as told"))
    };
    let end = stream::iter(breaks_off.then(|| stream::once(end))).flatten();
    StreamBody::new(stream::iter(pieces).chain(end)).boxed_unsync()
}

async fn serve(
    name: String,
    does: Arc<Mutex<Vec<Does>>>,
    saw: Arc<Mutex<Vec<Saw>>>,
    request: Request<Incoming>,
) -> Answer {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let path = parts.uri.to_string();
    let seen = Saw { method: parts.method, path, headers: parts.headers, body };
    saw.lock().unwrap().push(seen.clone());
    let now = {
        let mut does = does.lock().unwrap();
        if does.len() > 1 { does.pop().unwrap() } else { does[0].clone() }
    };
    let answer = |status: u16, body: String| {
        let builder = Response::builder().status(StatusCode::from_u16(status).unwrap());
        builder
            .header("partage-node", &name)
            .header("x-kept", "1")
            .header("keep-alive", "timeout=9")
            .body(whole(body))
            .unwrap()
    };
    let text = String::from_utf8_lossy(&seen.body);
    let echo = || format!("{name} {} {} {text}", seen.method, seen.path);
    match now {
        Does::Answers => Ok(answer(200, echo())),
        Does::Waits(time) => {
            tokio::time::sleep(time).await;
            Ok(answer(200, echo()))
        }
        Does::Says(status) => Ok(answer(status, echo())),
        Does::Misdirects { node, address, sequence } => {
            let mut answer = answer(421, String::new());
            answer.headers_mut().insert("partage-owner-node", node.parse().unwrap());
            answer.headers_mut().insert("partage-owner-address", address.parse().unwrap());
            answer.headers_mut().insert("partage-generation", sequence.into());
            Ok(answer)
        }
        Does::Refuses(reason) => {
            let body = ErrorBody::new(reason, "not now: later", "later").bytes();
            let mut answer = answer(503, String::from_utf8_lossy(&body).into_owned());
            answer.headers_mut().insert("retry-after", 1.into());
            Ok(answer)
        }
        Does::Tells(status, reason) => {
            let body = ErrorBody::new(reason, "not now: later", "later").bytes();
            let mut answer = answer(status, String::from_utf8_lossy(&body).into_owned());
            answer.headers_mut().insert("partage-epoch", 3.into());
            Ok(answer)
        }
        Does::Unavailable { headers, bytes, length } => {
            let mut answer = answer(503, String::new());
            answer.headers_mut().insert("retry-after", 1.into());
            for (name, value) in headers {
                answer.headers_mut().insert(*name, value.parse().unwrap());
            }
            *answer.body_mut() = match length {
                Length::Announced => whole(vec![b'x'; bytes]),
                Length::Chunked => pieces(bytes, false),
                Length::BreaksOff => pieces(bytes, true),
            };
            Ok(answer)
        }
        Does::Breaks => Err(std::io::Error::other("as told")),
    }
}
