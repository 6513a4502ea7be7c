//! A request that is answered by a peer: the driver of `core::dataset::fetch` (S16).

use super::peers::PeerError;
use super::refusal::Refusal;
use super::request::{KeyRequest, Wants, encoded};
use super::server::ThreadState;
use super::{SEQUINS_PROXIED_TO, VERSION, answer};
use crate::catalogue::{Hop, Outcome, Place, Reading};
use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use http::{Method, Response, StatusCode};
use partage_service::dataset::fetch::{Failure, Fetch, Next};
use partage_wire::request::headers::PROXIED_TO;
use std::sync::Arc;

/// A request to a peer, as it goes over the connection.
#[derive(Debug, Clone)]
pub struct PeerRequest {
    bytes: Vec<u8>,
    is_head: bool,
    /// What an answer must be of: another one is no answer (D5).
    version: String,
}

impl PeerRequest {
    /// A request for one key, with what the client wants of it.
    pub fn key(request: &KeyRequest<'_>, version: &str) -> PeerRequest {
        let method = if request.is_head { Method::HEAD } else { Method::GET };
        let path = format!("/{}/{}?proxy={version}", request.dataset, encoded(&request.key));
        PeerRequest::new(&method, &path, version, &request.wants, &[])
    }

    /// Any request to a peer, with a body.
    pub fn new(method: &Method, path: &str, version: &str, wants: &Wants<'_>, body: &[u8]) -> PeerRequest {
        let mut bytes = Vec::with_capacity(path.len() + body.len() + 128);
        bytes.extend_from_slice(method.as_str().as_bytes());
        bytes.extend_from_slice(b" ");
        bytes.extend_from_slice(path.as_bytes());
        bytes.extend_from_slice(b" HTTP/1.1\r\n");
        let headers = [
            ("range", wants.range),
            ("if-range", wants.if_range),
            ("if-none-match", wants.if_none_match),
            ("accept-encoding", wants.accept_encoding),
        ];
        for (name, value) in headers {
            if let Some(value) = value {
                bytes.extend_from_slice(name.as_bytes());
                bytes.extend_from_slice(b": ");
                bytes.extend_from_slice(value);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        if *method == Method::POST {
            let kind = super::many::KEYS;
            bytes.extend_from_slice(
                format!("content-type: {kind}\r\ncontent-length: {}\r\n", body.len()).as_bytes(),
            );
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(body);
        PeerRequest { bytes, is_head: *method == Method::HEAD, version: version.to_owned() }
    }

    /// Of a key that is there or is not; of a part, or that it has not changed; that what is asked for makes no sense.
    fn is_answered_by(&self, response: &Response<Bytes>) -> bool {
        let answers = matches!(
            response.status(),
            StatusCode::OK
                | StatusCode::PARTIAL_CONTENT
                | StatusCode::NOT_MODIFIED
                | StatusCode::NOT_FOUND
                | StatusCode::RANGE_NOT_SATISFIABLE
                | StatusCode::BAD_REQUEST
        );
        answers && response.headers().get(VERSION).is_some_and(|version| *version == self.version)
    }
}

/// No peer that was asked has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unanswered {
    /// The reason, as far as time and peers go.
    pub failure: Failure,
    /// Whether a peer would have answered with more than this node takes at a time.
    pub is_too_long: bool,
}

impl ThreadState {
    /// The first answer of the peers that are asked; it says which peer gave it. The others are dropped, and their connections
    /// with them.
    pub async fn fetch(
        &self,
        peers: &[Arc<str>],
        peer_request: &PeerRequest,
    ) -> Result<Response<Bytes>, Unanswered> {
        let clock = self.server.clock;
        let is_slow = |peer: usize| self.slow.is(&peers[peer], clock.now());
        let fetch = Fetch::new(peers.len(), self.draw(), self.server.settings.fetch, clock.now());
        let mut fetch = fetch.with_last(is_slow);
        let mut asked = FuturesUnordered::new();
        // The peers that have not answered yet.
        let mut open: Vec<&Arc<str>> = Vec::new();
        let mut is_too_long = false;
        loop {
            match fetch.next(clock.now()) {
                Next::Ask(peer) => {
                    self.were_slow(&open);
                    open.push(&peers[peer]);
                    asked.push(self.attempt(&peers[peer], peer_request));
                }
                Next::Fail(failure) => {
                    self.were_slow(&open);
                    return Err(Unanswered { failure, is_too_long });
                }
                Next::Wait(until) => {
                    let answered = tokio::select! {
                        biased;
                        Some(answered) = asked.next() => answered,
                        () = tokio::time::sleep_until(clock.at(until)) => continue,
                    };
                    match answered {
                        Ok((peer, response)) => {
                            // A peer that answers within the first stage is not slow any more.
                            if open.len() == 1 {
                                self.slow.forget(peer);
                            }
                            return Ok(response);
                        }
                        Err((peer, error)) => {
                            open.retain(|asked| *asked != peer);
                            tracing::debug!("peer {peer} failed: {error}");
                            is_too_long |= matches!(error, PeerError::TooLong);
                            fetch.failed(clock.now());
                        }
                    }
                }
            }
        }
    }

    /// Notes that these peers have let a stage of the request pass without an answer.
    fn were_slow(&self, peers: &[&Arc<str>]) {
        let rest_ms = u64::try_from(self.server.settings.slow_rest.as_millis()).unwrap_or(u64::MAX);
        let until = self.server.clock.now() + rest_ms;
        peers.iter().for_each(|peer| self.slow.remember(peer, until));
    }

    async fn attempt<'a>(
        &self,
        peer: &'a Arc<str>,
        peer_request: &PeerRequest,
    ) -> Result<(&'a Arc<str>, Response<Bytes>), (&'a Arc<str>, PeerError)> {
        let mut response = self
            .pool
            .send(peer, &peer_request.bytes, peer_request.is_head)
            .await
            .map_err(|error| (peer, error))?;
        if !peer_request.is_answered_by(&response) {
            let version = response.headers().get(VERSION).and_then(|v| v.to_str().ok()).unwrap_or_default();
            let wrong = PeerError::Wrong { status: response.status(), version: version.to_owned() };
            return Err((peer, wrong));
        }
        let name = answer::text(peer);
        response.headers_mut().insert(PROXIED_TO, name.clone());
        response.headers_mut().insert(SEQUINS_PROXIED_TO, name);
        Ok((peer, response))
    }
}

impl ThreadState {
    /// The answer of a peer that has the partition, or why there is none; counted.
    pub async fn proxied(
        &self,
        reading: &Reading,
        places: &[Place],
        partition: u32,
        began: u64,
        peer_request: impl FnOnce(&str) -> PeerRequest,
    ) -> Response<Bytes> {
        let version = reading.name().as_str();
        let peers = places.get(partition as usize).map(|place| place.peers.clone()).unwrap_or_default();
        let fetched = match self.server.waiting.try_acquire() {
            Err(_) => Err(Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "busy",
                format!("{} requests wait for peers, the limit", self.server.settings.waiting),
                "try again, or another node",
            )),
            Ok(_permit) => {
                self.fetch(&peers, &peer_request(version)).await.map_err(|Unanswered { failure, .. }| {
                    let what = format!("partition {partition} of version {version}: {failure}");
                    Refusal::of_peers(&failure, what)
                })
            }
        };
        let outcome = match &fetched {
            Ok(response) if response.status() == StatusCode::NOT_FOUND => Outcome::Absent,
            Ok(_) => Outcome::Found,
            Err(_) => Outcome::Failed,
        };
        let bytes = fetched.as_ref().map_or(0, |response| response.body().len() as u64);
        let nanos = self.server.clock.nanos().saturating_sub(began);
        reading.meter().count(outcome, Hop::Proxied, nanos, 1, bytes);
        match fetched {
            Ok(mut response) => {
                answer::VersionHeaders::of(reading).insert_into(response.headers_mut());
                response
            }
            Err(refusal) => answer::refused(&refusal),
        }
    }
}
