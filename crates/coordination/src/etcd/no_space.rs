//! Whether etcd committed a transaction for which it reports that it has no room.
//!
//! etcd checks for room twice. Before it proposes a transaction it may refuse it, and nothing happens. It checks again
//! when it applies a proposed transaction; if others have used the room up meanwhile, etcd *commits it all
//! the same* and answers with the same error (etcd-io/etcd#16659, not fixed in any version). So "database space
//! exceeded" is no outcome: the client reads the outcome from the keys.
//!
//! ```text
//! a key that was put    revision 7: theirs   9: ours   12: theirs
//! seen before sending        8                ▲
//!                       read now, before 12, before 9, … until one is ours, or is not later than what was seen
//! ```
//!
//! A value, its lease and its revision tell whose it is. A refused put of this client and another client's put of
//! the same values at the same keys in one transaction look alike: callers put their name in values.

use crate::error::{Error, Result};
use crate::limits::ETCD_ROOM_LOOKS;
use crate::transaction::{Condition, Expected, Operation, Transaction};

use super::checks::{lease, reading};
use super::pages;
use super::proto::kv_client::KvClient;
use super::proto::response_op::Response;
use super::proto::{KeyValue, RangeRequest, TxnRequest};
use super::servers::{Kind, ServerChannel, Servers};
use super::space::Space;

/// The latest revision that the caller or the client has seen. Take it before the transaction is sent, whose puts
/// are later.
pub(super) fn seen(servers: &Servers, conditions: &[Condition]) -> i64 {
    let expected = conditions.iter().filter_map(|condition| match condition.expected {
        Expected::At(version) => i64::try_from(version.get()).ok(),
        Expected::Absent | Expected::Present => None,
    });
    expected.fold(servers.seen(), i64::max)
}

/// The revision at which etcd committed the transaction all the same; `None` if it did not.
///
/// # Errors
/// [`Error::Indefinite`] when that cannot be found out.
pub(super) async fn done_at(
    servers: &Servers,
    space: &Space,
    transaction: &Transaction,
    seen: i64,
) -> Result<Option<i64>> {
    look(servers, space, transaction, seen).await.map_err(|why| Error::Indefinite {
        what: format!(
            "{} says that it has no room, and may have done it all the same: {why}",
            servers.location()
        ),
    })
}

async fn look(servers: &Servers, space: &Space, transaction: &Transaction, seen: i64) -> Result<Option<i64>> {
    let puts: Vec<&Operation> = transaction.operations.iter().filter(|operation| is_put(operation)).collect();
    let unknown = |what: &str| Err(Error::Indefinite { what: what.to_owned() });
    let Some(first) = puts.first() else {
        return if transaction.operations.is_empty() { Ok(None) } else { unknown("it puts no key") };
    };
    let mut revision = 0;
    for _ in 0..ETCD_ROOM_LOOKS {
        let request = RangeRequest { key: space.raw(first.key()), revision, ..RangeRequest::default() };
        let found = pages::range(servers, request).await?;
        if found.header.is_none_or(|header| header.revision < seen) {
            return unknown("it was set back to an older state meanwhile");
        }
        let Some(found) = found.kvs.first().filter(|found| found.mod_revision > seen) else {
            return Ok(None);
        };
        if is_of(first, found) && all_at(servers, space, &puts, found.mod_revision).await? {
            return Ok(Some(found.mod_revision));
        }
        revision = found.mod_revision - 1;
    }
    unknown("others wrote the same key too often since")
}

fn is_put(operation: &Operation) -> bool {
    matches!(operation, Operation::Put { .. })
}

/// Whether `found` is what `put` puts.
fn is_of(put: &Operation, found: &KeyValue) -> bool {
    let Operation::Put { value, session, .. } = put else { return false };
    found.value == *value && found.lease == session.and_then(lease).unwrap_or_default()
}

/// Whether one transaction put all of the keys at that revision.
async fn all_at(servers: &Servers, space: &Space, puts: &[&Operation], revision: i64) -> Result<bool> {
    let read = |put: &&Operation| {
        let key = space.raw(put.key());
        reading(RangeRequest { key, revision, keys_only: true, ..RangeRequest::default() })
    };
    let reads = TxnRequest { success: puts.iter().map(read).collect(), ..TxnRequest::default() };
    let send = |server: ServerChannel| {
        let request = server.request(reads.clone());
        async move { KvClient::new(server.channel).txn(request).await }
    };
    let answer = servers.call(Kind::Read, send).await?;
    let is_there = |response: Option<Response>| match response {
        Some(Response::ResponseRange(found)) => {
            found.kvs.first().is_some_and(|found| found.mod_revision == revision)
        }
        _ => false,
    };
    Ok(answer.responses.len() == puts.len() && answer.responses.into_iter().all(|one| is_there(one.response)))
}
