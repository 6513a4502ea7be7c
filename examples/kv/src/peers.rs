//! Nodes among themselves: fetching a shard's records, and sending some.

use crate::limits;
use crate::records::Record;
use crate::service::in_scope;
use crate::shard::Shard;
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use partage_dialer::Dialer;
use partage_worker::{Assignment, Failure, Peer};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Which log of the replica it is: another one begins when the replica is opened or loaded anew.
pub const LOG: &str = "kv-log";
/// The place in the log that the records reach.
pub const PLACE: &str = "kv-place";

/// Connections to the other nodes.
#[derive(Clone)]
pub struct Peers {
    client: Client<HttpConnector, Body>,
}

impl Peers {
    pub fn new() -> Peers {
        Peers { client: Client::builder(TokioExecutor::new()).build(Dialer::PEER.http()) }
    }

    /// Gives back `OK` and `NOT_FOUND`; all else is an error.
    async fn call(
        &self,
        within: Duration,
        request: Request<Body>,
    ) -> Result<Response<hyper::body::Incoming>, Failure> {
        let uri = request.uri().to_string();
        let answer = timeout(within, self.client.request(request)).await;
        let answer = answer.map_err(|_| format!("{uri}: no answer within {within:?}"))?;
        let answer = answer.map_err(|error| format!("{uri}: {error}"))?;
        match answer.status() {
            StatusCode::OK | StatusCode::NOT_FOUND => Ok(answer),
            status => Err(format!("{uri}: {status}").into()),
        }
    }

    /// Merges what `peer` has of its shard and belongs to `assignment` into `shard`, from where it stopped the
    /// last time.
    pub async fn fetch(
        &self,
        peer: &Peer,
        assignment: &Assignment,
        shard: &Arc<Shard>,
    ) -> Result<(), Failure> {
        let (log, since) = shard.read_until(peer.placement.0);
        let replica = named(assignment.keyspace().as_str(), peer);
        let address = address(peer)?;
        let uri = format!("http://{address}/internal/export?{replica}&log={log}&since={since}");
        let answer = self.call(limits::SILENCE, Request::get(&uri).body(Body::empty())?).await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Err(format!("{uri}: it has no such replica").into());
        }
        let number = |name: &str| answer.headers().get(name)?.to_str().ok()?.parse::<u64>().ok();
        let (log, place) = number(LOG).zip(number(PLACE)).ok_or("the answer does not say what it holds")?;
        let (mut body, mut buffer) = (answer.into_body(), BytesMut::new());
        while let Some(frame) = timeout(limits::SILENCE, body.frame()).await.map_err(|_| "it stalled")? {
            buffer.extend_from_slice(frame?.data_ref().unwrap_or(&Bytes::new()));
            let mut records = Vec::new();
            while let Some(record) = Record::take(&mut buffer)? {
                if assignment.holds(&record.key) {
                    records.push(record);
                }
            }
            in_scope(assignment.scope(), shard, |shard| shard.merge(records)).await??;
        }
        if !buffer.is_empty() {
            return Err(format!("node {} broke off within a record", peer.node).into());
        }
        shard.has_read(peer.placement.0, log, place);
        Ok(())
    }

    /// Sends records of a shard to `peer`.
    pub async fn send(&self, peer: &Peer, keyspace: &str, records: Bytes) -> Result<bool, Failure> {
        let uri = format!("http://{}/internal/import?{}", address(peer)?, named(keyspace, peer));
        let answer = self.call(limits::REPLICATE, Request::post(uri).body(Body::from(records))?).await?;
        // Read to its end, so that the connection can be used again.
        let has_begun = answer.status() != StatusCode::NOT_FOUND;
        answer.into_body().collect().await?;
        Ok(has_begun)
    }
}

/// Where the node of a peer is reached.
fn address(peer: &Peer) -> Result<&str, Failure> {
    peer.address.as_deref().ok_or_else(|| format!("node {} is removed from the cluster", peer.node).into())
}

/// Which replica is asked for: the node may have data of others of the shard, which it keeps.
fn named(keyspace: &str, peer: &Peer) -> String {
    format!("keyspace={keyspace}&shard={}&placement={}", peer.shard.0, peer.placement.0)
}
