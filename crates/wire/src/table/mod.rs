//! Rows of tables as JSON: requests for several rows, and pages of scans, for clients and between nodes. Backups of tables are in
//! [`backup`], what is gRPC's own in [`grpc`].

pub mod backup;
mod bulk;
mod bytes;
mod feed;
pub mod grpc;
mod index;

pub use bulk::{
    BatchAnswer, BatchOperation, BatchRequest, BatchResult, BatchVerb, GetAnswer, GetOutcome, GetRequest,
    GetResult, PutAnswer, PutOutcome, PutRequest, PutResult, PutRow,
};
pub use bytes::BytesText;
pub use feed::{ChangeText, ChangeVerb, FeedPage, NodeFeedAnswer, NodeFeedRequest, ShardChange, ShardFeed};
pub use index::{
    CheckAnswer, CheckDifference, CheckUnchecked, DigestForm, IndexAnswer, IndexCreate, IndexList, PartForm,
    PlacedRow, RangeForm, ShardIndex, ShardIndexAnswer, ShardIndexRequest, ShardPage, SumForm,
};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::Bounds;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

/// What clients get of `GET /v1/tables/<table>/rows`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RowsPage {
    /// The rows, in their order.
    pub rows: Vec<RowText>,
    /// What to give as `token` for the next page; absent: this was the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A row of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RowText {
    /// The key of the row: text, or base64 where it is not UTF-8.
    pub key: BytesText,
    /// The value; absent where only keys were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<BytesText>,
    /// As the `etag` of the row has it.
    pub version: String,
    /// When the row ends, in milliseconds of Unix time; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

/// What one node gets of another: rows of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRows {
    /// The rows, in the order of their keys.
    pub rows: Vec<ShardRow>,
    /// The key at which the next page of this shard begins; none: this was the last one.
    pub next: Option<KeyBytes>,
    /// Where the next shard begins; none: this is the last one.
    pub after: Option<PlaceForm>,
}

/// A row of a shard. Keys and values are in base64: half of what hex takes, and always of one form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRow {
    /// The key of the row, in base64.
    pub key: KeyBytes,
    /// The value in base64; absent where only keys were asked for.
    pub value: Option<String>,
    /// The epoch of the entry that wrote the row.
    pub epoch: u64,
    /// The index of that entry in the log of the shard.
    pub index: u64,
    /// When the row ends, in milliseconds of Unix time; none: never.
    pub expires_ms: Option<u64>,
}

/// The lower bound of a shard.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlaceForm {
    /// The lowest partition key of the shard.
    Key(KeyBytes),
    /// The lowest point of the hash space that the shard has.
    Point(u64),
    /// The number of its slot, from 0.
    Slot(u32),
    /// A named partition, which is a shard as a whole. Their order has no meaning.
    Name(String),
}

impl PlaceForm {
    /// Where a shard with these bounds begins, and where the next one does, which the last one and named partitions have not got.
    pub fn of(bounds: &Bounds) -> (PlaceForm, Option<PlaceForm>) {
        match bounds {
            Bounds::Keys(range) => {
                let end = (!range.end.is_empty()).then(|| PlaceForm::Key(KeyBytes(range.end.clone())));
                (PlaceForm::Key(KeyBytes(range.begin.clone())), end)
            }
            Bounds::Hashes(range) => {
                (PlaceForm::Point(range.first), range.last.checked_add(1).map(PlaceForm::Point))
            }
            Bounds::Slot(slot) => {
                let next = slot.number() + 1;
                (PlaceForm::Slot(slot.number()), (next < slot.of()).then_some(PlaceForm::Slot(next)))
            }
            Bounds::Name(name) => (PlaceForm::Name(name.to_string()), None),
        }
    }

    /// Whether no shard begins before it.
    pub fn is_first(&self) -> bool {
        match self {
            PlaceForm::Key(KeyBytes(key)) => key.is_empty(),
            PlaceForm::Point(point) => *point == 0,
            PlaceForm::Slot(slot) => *slot == 0,
            PlaceForm::Name(_) => false,
        }
    }
}

/// A key in base64.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyBytes(pub Key);

impl Serialize for KeyBytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(self.0.as_bytes()))
    }
}

impl<'de> Deserialize<'de> for KeyBytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<KeyBytes, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = STANDARD.decode(text).map_err(D::Error::custom)?;
        Key::new(&bytes).map(KeyBytes).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_between_nodes_are_what_they_were_and_their_text_stays() {
        let key = |bytes: &[u8]| KeyBytes(Key::new(bytes).expect("a key"));
        let row =
            ShardRow { key: key(b"a\0"), value: Some("dg==".into()), epoch: 2, index: 7, expires_ms: None };
        let rows =
            ShardRows { rows: vec![row], next: Some(key(b"b")), after: Some(PlaceForm::Key(key(b"\xff"))) };
        let text = serde_json::to_string(&rows).expect("text");
        let golden = r#"{"rows":[{"key":"YQA=","value":"dg==","epoch":2,"index":7,"expires_ms":null}],"next":"Yg==","after":{"key":"/w=="}}"#;
        assert_eq!(text, golden);
        assert_eq!(serde_json::from_str::<ShardRows>(&text).expect("rows"), rows);
        assert!(serde_json::from_str::<KeyBytes>("\"?\"").is_err());
    }
}
