//! Change feeds of tables as JSON, for clients and between nodes.

use super::{BytesText, KeyBytes};
use crate::json::ErrorDetail;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What clients get of `GET /v1/tables/<table>/feed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FeedPage {
    /// The changes. Those of one key are in the order in which they were made.
    pub changes: Vec<ChangeText>,
    /// What to give as `after` to go on behind these changes.
    pub next: String,
    /// Where `left` was given: what to give as `left` with the next page. Absent: the end that each part of the table had when
    /// its first page was asked for is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<String>,
}

/// What became of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeVerb {
    /// It was written: it has another value, version or time to end.
    Put,
    /// A write deleted it.
    Delete,
    /// Its time to live was over.
    Expired,
}

/// A change of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeText {
    /// The key of the row.
    pub key: BytesText,
    /// What became of the row.
    pub change: ChangeVerb,
    /// The value that the row has since; absent where it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<BytesText>,
    /// The entry that made the change: of a row that was written, its version.
    pub version: String,
    /// When the change was made, in milliseconds of Unix time by the clock of the shard.
    pub at_ms: u64,
    /// When the row ends, in milliseconds of Unix time; absent: never, or it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// The shard that it was read from.
    pub shard: u64,
}

/// What one node asks of another: changes of shards that the other one leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFeedRequest {
    /// What the reader has, as a token.
    pub after: String,
    /// The ids of the shards whose changes are asked for.
    pub shards: Vec<u64>,
    /// How many changes the answer has at most.
    pub limit: usize,
    /// How long to wait where there are none.
    pub wait_ms: u64,
    /// An end of a shard counts only if nothing was acknowledged behind it before the request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends: bool,
}

/// What a node answers to [`NodeFeedRequest`]: of each shard what it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFeedAnswer {
    /// The shards, not all of those that were asked for where the answer is full.
    pub shards: Vec<ShardFeed>,
}

/// Changes of one shard, or why there are none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardFeed {
    /// The id of the shard that was asked for.
    pub shard: u64,
    /// The changes, in the order of their entries.
    pub changes: Vec<ShardChange>,
    /// What the reader has of the shard with these, as a token; none where there is an error.
    pub next: Option<String>,
    /// Something may follow on these.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// Why the shard is not read.
    pub error: Option<ErrorDetail>,
}

/// A change of a shard. Keys and values are in base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardChange {
    /// The key of the row that has changed.
    pub key: KeyBytes,
    /// What became of the row.
    pub change: ChangeVerb,
    /// The value in base64; absent where the row is gone.
    pub value: Option<String>,
    /// The epoch of the entry of the log that made the change.
    pub epoch: u64,
    /// The index of that entry in the log of the shard.
    pub index: u64,
    /// When the change was made.
    pub at_ms: u64,
    /// When the row ends; none: never.
    pub expires_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::keyspace::key::Key;

    #[test]
    fn what_nodes_say_of_changes_stays_as_it_is() {
        let change = ShardChange {
            key: KeyBytes(Key::new(b"a\0").expect("a key")),
            change: ChangeVerb::Expired,
            value: None,
            epoch: 2,
            index: 7,
            at_ms: 9,
            expires_ms: None,
        };
        let shard =
            ShardFeed { shard: 3, changes: vec![change], next: Some("t".into()), more: false, error: None };
        let answer = NodeFeedAnswer { shards: vec![shard] };
        let golden = r#"{"shards":[{"shard":3,"changes":[{"key":"YQA=","change":"expired","value":null,"epoch":2,"index":7,"at_ms":9,"expires_ms":null}],"next":"t","error":null}]}"#;
        assert_eq!(serde_json::to_string(&answer).expect("text"), golden);
        assert_eq!(serde_json::from_str::<NodeFeedAnswer>(golden).expect("an answer"), answer);
        let request =
            NodeFeedRequest { after: "t".into(), shards: vec![3], limit: 5, wait_ms: 6, ends: false };
        let golden = r#"{"after":"t","shards":[3],"limit":5,"wait_ms":6}"#;
        assert_eq!(serde_json::to_string(&request).expect("text"), golden);
    }
}
