//! Sessions as leases. A session's id is the number of its lease.
//!
//! A key bound to it, which no caller can see, marks a lease as ours. So a lease that another
//! program made is no session here: we neither renew nor revoke it, nor write under it.
//!
//! Leases count whole seconds, and a server has a least time for them (two seconds by default): a session
//! lives at least as long as it was asked for, never shorter.
//!
//! Renewing does not go through etcd's log: the leader answers alone. One that was cut off from the others and
//! does not know yet would renew a lease that its successor lets expire. So a renewal counts only with a
//! linearizable read after it, by the same server in the same term: then that leader led all the while (C4).

use std::time::Duration;

use tonic::Status;

use crate::error::{Error, Result};
use crate::session::SessionId;

use super::checks::{lease, session};
use super::outcome;
use super::proto::kv_client::KvClient;
use super::proto::lease_client::LeaseClient;
use super::proto::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest, PutRequest,
    RangeRequest, RangeResponse, RequestOp, ResponseHeader, TxnRequest, request_op,
};
use super::servers::{Kind, ServerChannel, Servers};
use super::space::Space;

/// Attempts at a renewal that meets an election: elections are rare, and each ends.
const RENEWALS: usize = 4;

pub(super) async fn open(servers: &Servers, space: &Space, ttl: Duration) -> Result<SessionId> {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    let asked = LeaseGrantRequest { ttl: i64::try_from(seconds).unwrap_or(i64::MAX), id: 0 };
    let send = |server: ServerChannel| {
        let request = server.request(asked);
        async move { LeaseClient::new(server.channel).lease_grant(request).await }
    };
    let granted = servers.call(Kind::Change, send).await?;
    let opened = session(granted.id).filter(|_| granted.ttl >= asked.ttl);
    let opened = opened.ok_or_else(|| Error::Unavailable {
        what: format!(
            "{} granted a lease of {} s where {seconds} s were asked",
            servers.location(),
            granted.ttl
        ),
    })?;
    let put = PutRequest { key: space.marker(opened), lease: granted.id, ..PutRequest::default() };
    let put = RequestOp { request: Some(request_op::Request::RequestPut(put)) };
    let marking = TxnRequest { success: vec![put], ..TxnRequest::default() };
    let send = |server: ServerChannel| {
        let request = server.request(marking.clone());
        async move { KvClient::new(server.channel).txn(request).await }
    };
    match servers.call(Kind::Change, send).await {
        Ok(_) => Ok(opened),
        Err(error) => {
            // The lease expires by itself, if this fails too.
            let _ = revoke(servers, granted.id).await;
            Err(error)
        }
    }
}

fn marker(space: &Space, session: SessionId) -> RangeRequest {
    RangeRequest { key: space.marker(session), keys_only: true, ..RangeRequest::default() }
}

/// The server that answered, and its term.
fn speaker(header: Option<&ResponseHeader>) -> Option<(u64, u64, u64)> {
    header.map(|header| (header.cluster_id, header.member_id, header.raft_term))
}

pub(super) async fn renew(servers: &Servers, space: &Space, session: SessionId) -> Result<()> {
    let ended = || Error::SessionEnded { session };
    let lease = lease(session).ok_or_else(ended)?;
    // First, so that it keeps no lease of another program alive.
    if super::pages::range(servers, marker(space, session)).await?.kvs.is_empty() {
        return Err(ended());
    }
    for _ in 0..RENEWALS {
        let send = |server: ServerChannel| {
            let looking = server.request(marker(space, session));
            async move {
                let renewed = keep_alive(&server, lease).await?;
                let seen = KvClient::new(server.channel).range(looking).await?;
                Ok(seen.map(|seen| (renewed, seen)))
            }
        };
        let (renewed, seen): (LeaseKeepAliveResponse, RangeResponse) = servers.call(Kind::Read, send).await?;
        if renewed.ttl <= 0 || seen.kvs.is_empty() {
            return Err(ended());
        }
        if speaker(renewed.header.as_ref()) == speaker(seen.header.as_ref()) {
            return Ok(());
        }
    }
    let what = format!("{}: its leader changed at each renewal of a session", servers.location());
    Err(Error::Unavailable { what })
}

async fn keep_alive(server: &ServerChannel, lease: i64) -> Result<LeaseKeepAliveResponse, Status> {
    let asked = server.request(tokio_stream::once(LeaseKeepAliveRequest { id: lease }));
    let mut answers = LeaseClient::new(server.channel.clone()).lease_keep_alive(asked).await?.into_inner();
    answers.message().await?.ok_or_else(|| Status::unavailable("etcd ended a renewal without an answer"))
}

pub(super) async fn end(servers: &Servers, space: &Space, session: SessionId) -> Result<()> {
    let ended = || Error::SessionEnded { session };
    let lease = lease(session).ok_or_else(ended)?;
    if super::pages::range(servers, marker(space, session)).await?.kvs.is_empty() {
        return Err(ended());
    }
    match revoke(servers, lease).await {
        Err(error) if outcome::is_lease_gone(&error) => Err(ended()),
        outcome => outcome,
    }
}

async fn revoke(servers: &Servers, lease: i64) -> Result<()> {
    let send = |server: ServerChannel| {
        let request = server.request(LeaseRevokeRequest { id: lease });
        async move { LeaseClient::new(server.channel).lease_revoke(request).await }
    };
    servers.call(Kind::Change, send).await.map(|_| ())
}
