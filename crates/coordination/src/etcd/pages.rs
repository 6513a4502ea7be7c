//! Reading many keys: in chunks that grow and shrink with the size of what comes, all at one revision.
//!
//! etcd bounds an answer by a number of keys only, and a key may hold a megabyte. So the first chunk is small,
//! and each next one is as many keys as should make [`ETCD_CHUNK_BYTES`] by the average so far. Of a list of
//! children, what lies below a child is skipped, not read.

use crate::contract::Listing;
use crate::error::Result;
use crate::key::{Key, Scope};
use crate::limits::{
    ETCD_CHUNK_BYTES, ETCD_FIRST_CHUNK, ETCD_MAX_ANSWER_BYTES, ETCD_PAGE_BYTES, MAX_PAGE_ENTRIES,
};
use crate::transaction::Entry;

use super::checks::{session, version};
use super::proto::kv_client::KvClient;
use super::proto::{KeyValue, RangeRequest, RangeResponse};
use super::servers::{Kind, Servers};
use super::space::Space;

/// What etcd has at a key.
pub(super) fn entry(found: &KeyValue) -> Entry {
    Entry { value: found.value.clone(), version: version(found.mod_revision), session: session(found.lease) }
}

/// Sends one range request, and notes the revision of the answer.
pub(super) async fn range(servers: &Servers, request: RangeRequest) -> Result<RangeResponse> {
    let send = |server: super::servers::ServerChannel| {
        let request = server.request(request.clone());
        async move {
            KvClient::new(server.channel)
                .max_decoding_message_size(ETCD_MAX_ANSWER_BYTES)
                .range(request)
                .await
        }
    };
    let found = servers.call(Kind::Read, send).await?;
    servers.learned(found.header.as_ref());
    Ok(found)
}

/// The keys of `scope` after `after`: at most `limit`, or fewer once they are [`ETCD_PAGE_BYTES`].
pub(super) async fn page(
    servers: &Servers,
    space: &Space,
    scope: &Scope,
    after: Option<&Key>,
    limit: usize,
) -> Result<Listing> {
    read(servers, space, scope, after, limit.clamp(1, MAX_PAGE_ENTRIES), ETCD_PAGE_BYTES).await
}

/// All of `scope`, at one version.
pub(super) async fn all(servers: &Servers, space: &Space, scope: &Scope) -> Result<Listing> {
    read(servers, space, scope, None, usize::MAX, usize::MAX).await
}

async fn read(
    servers: &Servers,
    space: &Space,
    scope: &Scope,
    after: Option<&Key>,
    limit: usize,
    limit_bytes: usize,
) -> Result<Listing> {
    let bounds = space.range(scope);
    let mut start =
        after.map_or_else(|| bounds.start.clone(), |after| space.after(after).max(bounds.start.clone()));
    let (mut revision, mut entries, mut bytes) = (0, Vec::new(), 0);
    let (mut chunk, mut read_keys, mut read_bytes) = (ETCD_FIRST_CHUNK, 0, 0);
    loop {
        // One more than is wanted tells whether there are more.
        let keys = chunk.min(limit.saturating_add(1) - entries.len());
        let request = RangeRequest {
            key: start.clone(),
            range_end: bounds.end.clone(),
            limit: i64::try_from(keys).unwrap_or(i64::MAX),
            revision,
            keys_only: false,
        };
        let found = range(servers, request).await?;
        if revision == 0 {
            revision = found.header.map(|header| header.revision).unwrap_or_default();
        }
        let at = version(revision);
        for found in &found.kvs {
            let key = space.key(&found.key)?;
            read_keys += 1;
            read_bytes += found.key.len() + found.value.len();
            start =
                below_child(scope, &key).map_or_else(|| space.after(&key), |child| space.after_below(&child));
            if !scope.contains(&key) {
                continue;
            }
            if entries.len() == limit || bytes >= limit_bytes {
                let next = entries.last().map(|(key, _): &(Key, Entry)| key.clone());
                return Ok(Listing { at, entries, next });
            }
            bytes += found.key.len() + found.value.len();
            entries.push((key, entry(found)));
        }
        if !found.more {
            return Ok(Listing { at, entries, next: None });
        }
        let fitting = (ETCD_CHUNK_BYTES * read_keys).checked_div(read_bytes).unwrap_or(ETCD_FIRST_CHUNK);
        chunk = fitting.clamp(1, MAX_PAGE_ENTRIES + 1);
    }
}

/// The child that `key` lies below, when the scope is children: what is below it need not be read.
fn below_child(scope: &Scope, key: &Key) -> Option<Key> {
    let Scope::Children(parent) = scope else { return None };
    let (mut child, mut above) = (key.clone(), key.parent()?);
    let mut deep = false;
    while above != *parent {
        (child, deep) = (above, true);
        above = child.parent()?;
    }
    deep.then_some(child)
}
