//! Data between nodes: a shard's entries as one stream of bytes, fetched by who needs them or sent by the
//! leader.
//!
//! An entry is its epoch, count, length of key, length of value plus one (0 = deleted), each as 8 bytes,
//! little-endian, then key and value.

use crate::store::{Entry, Version};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use partage_core::id::Epoch;
use partage_core::name::KeyspaceName;
use partage_worker::{Failure, Peer};
use std::time::Duration;

/// How long a follower may take to accept a write before the leader goes on without it.
const REPLICATE: Duration = Duration::from_millis(500);

/// Entries as bytes.
pub fn encode(entries: &[(Vec<u8>, Entry)]) -> Bytes {
    let mut bytes = BytesMut::new();
    for (key, entry) in entries {
        let value = entry.value.as_ref();
        bytes.put_u64_le(entry.version.epoch.0);
        bytes.put_u64_le(entry.version.count);
        bytes.put_u64_le(key.len() as u64);
        bytes.put_u64_le(value.map_or(0, |value| value.len() as u64 + 1));
        bytes.put_slice(key);
        value.into_iter().for_each(|value| bytes.put_slice(value));
    }
    bytes.freeze()
}

/// Bytes as entries; none when they are cut or no entries at all.
pub fn decode(mut bytes: Bytes) -> Option<Vec<(Vec<u8>, Entry)>> {
    let mut entries = Vec::new();
    while bytes.has_remaining() {
        if bytes.remaining() < 32 {
            return None;
        }
        let version = Version { epoch: Epoch(bytes.get_u64_le()), count: bytes.get_u64_le() };
        let (key_len, value_len) = (bytes.get_u64_le() as usize, bytes.get_u64_le() as usize);
        if bytes.remaining() < key_len.checked_add(value_len.saturating_sub(1))? {
            return None;
        }
        let key = bytes.split_to(key_len).to_vec();
        let value = (value_len > 0).then(|| bytes.split_to(value_len - 1));
        entries.push((key, Entry { version, value }));
    }
    Some(entries)
}

/// Fetches from and sends to other nodes.
#[derive(Clone)]
pub struct Courier {
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Default for Courier {
    fn default() -> Courier {
        Courier { client: Client::builder(TokioExecutor::new()).build_http() }
    }
}

impl Courier {
    /// What `peer` has of its shard after `since`.
    pub async fn fetch(
        &self,
        keyspace: &KeyspaceName,
        peer: &Peer,
        since: Option<Version>,
    ) -> Result<Vec<(Vec<u8>, Entry)>, Failure> {
        let Peer { address, shard, .. } = peer;
        let since = since.map_or(String::new(), |v| format!("&epoch={}&count={}", v.epoch.0, v.count));
        let uri = format!("http://{address}/internal/export?keyspace={keyspace}&shard={}{since}", shard.0);
        let answer = self.client.request(Request::get(uri).body(Full::default())?).await?;
        if answer.status() != StatusCode::OK {
            return Err(format!(
                "node {} does not give {shard} of {keyspace}: {}",
                peer.node,
                answer.status()
            )
            .into());
        }
        let bytes = answer.into_body().collect().await?.to_bytes();
        decode(bytes).ok_or_else(|| format!("what node {} gave of {shard} is cut off", peer.node).into())
    }

    /// Sends a write to a follower; a follower that does not take it in time is left behind.
    pub async fn send(&self, keyspace: &KeyspaceName, peer: &Peer, key: Vec<u8>, entry: Entry) {
        let Peer { address, shard, .. } = peer;
        let uri = format!("http://{address}/internal/replicate?keyspace={keyspace}&shard={}", shard.0);
        let Ok(request) = Request::post(uri).body(Full::new(encode(&[(key, entry)]))) else { return };
        // Best effort, as the head of this crate says.
        let _ = tokio::time::timeout(REPLICATE, self.client.request(request)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_travel_and_cut_ones_are_noticed() {
        let version = Version { epoch: Epoch(3), count: 7 };
        let entries = vec![
            (b"a".to_vec(), Entry { version, value: Some(Bytes::from_static(b"one")) }),
            (b"b".to_vec(), Entry { version, value: None }),
            (vec![], Entry { version, value: Some(Bytes::new()) }),
        ];
        let bytes = encode(&entries);
        assert_eq!(decode(bytes.clone()), Some(entries));
        for cut in 1..bytes.len() {
            assert!(decode(bytes.slice(..cut)).is_none_or(|some| some.len() < 3), "cut at {cut}");
        }
    }
}
