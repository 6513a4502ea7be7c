//! Pages of scans as JSON: for clients, and between nodes.

use super::token::Place;
use crate::rows::ScannedRow;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use partage_core::base::id::Epoch;
use partage_core::keyspace::key::Key;
use partage_core::service::table::replication::LogPosition;
use partage_wire::json::KeyText;
use serde::{Deserialize, Serialize};

/// What clients get of `GET /v1/tables/<table>/rows`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsPage {
    /// The rows, in their order.
    pub rows: Vec<RowText>,
    /// What to give as `token` for the next page; absent: this was the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A row of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowText {
    /// Text, or `{"hex": …}` where it is not UTF-8.
    pub key: KeyText,
    /// The same of the value; absent where only keys were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<KeyText>,
    /// As the `etag` of the row has it.
    pub version: String,
    /// When the row ends, in milliseconds of Unix time; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

impl From<ScannedRow> for RowText {
    fn from(row: ScannedRow) -> RowText {
        RowText {
            key: KeyText::from(&row.key),
            value: row.value.map(|value| KeyText::from(value.to_vec())),
            version: format!("{}-{}", row.version.epoch.0, row.version.index),
            expires_ms: row.expires_ms,
        }
    }
}

/// What one node gets of another: rows of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardRows {
    pub(crate) rows: Vec<ShardRow>,
    /// The key at which the next page of this shard begins; none: this was the last one.
    pub(crate) next: Option<KeyBytes>,
    /// Where the next shard begins; none: this is the last one.
    pub(crate) after: Option<Place>,
}

/// A row of a shard. Keys and values are in base64: half of what hex takes, and always of one form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardRow {
    key: KeyBytes,
    value: Option<String>,
    epoch: u64,
    index: u64,
    expires_ms: Option<u64>,
}

/// A key in base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct KeyBytes(#[serde(with = "key")] pub(crate) Key);

impl From<ScannedRow> for ShardRow {
    fn from(row: ScannedRow) -> ShardRow {
        ShardRow {
            key: KeyBytes(row.key),
            value: row.value.map(|value| STANDARD.encode(&value)),
            epoch: row.version.epoch.0,
            index: row.version.index,
            expires_ms: row.expires_ms,
        }
    }
}

impl TryFrom<ShardRow> for ScannedRow {
    type Error = base64::DecodeError;

    fn try_from(row: ShardRow) -> Result<ScannedRow, base64::DecodeError> {
        let value = row.value.map(|value| STANDARD.decode(value)).transpose()?;
        let version = LogPosition { epoch: Epoch(row.epoch), index: row.index };
        Ok(ScannedRow { key: row.key.0, value: value.map(Into::into), version, expires_ms: row.expires_ms })
    }
}

/// A key as a base64 text.
pub(super) mod key {
    use super::{Engine, Key, STANDARD};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(key: &Key, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(key.as_bytes()))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Key, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = STANDARD.decode(text).map_err(D::Error::custom)?;
        Key::new(&bytes).map_err(D::Error::custom)
    }
}
