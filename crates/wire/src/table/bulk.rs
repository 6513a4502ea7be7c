//! Requests for several rows of a table at once, and their answers.

use super::RowText;
use super::bytes::BytesText;
use crate::json::ErrorDetail;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// Body of `POST /v1/tables/<table>/batch`: what is done as one, or not at all. All keys have the same partition key.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    /// The operations, 1 to 1,000, in their order: each sees what those before it have done.
    #[schema(min_items = 1, max_items = 1000)]
    pub operations: Vec<BatchOperation>,
}

/// What an operation of a batch does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BatchVerb {
    /// The row has this value: give `value` or `json`.
    Put,
    /// The row is gone; it need not have been there.
    Delete,
    /// The row, a decimal number (0 if there is none), is larger by `by`.
    Add,
    /// The row (empty if there is none) is longer by `value`.
    Append,
    /// The row ends `ttl_ms` from now; without `ttl_ms` it never ends. Nothing, if there is no row.
    Expire,
    /// Nothing: the condition is checked, and the answer has the row.
    Read,
}

/// One operation of a batch.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchOperation {
    /// What the operation does with the row.
    pub operation: BatchVerb,
    /// The key of the row.
    pub key: BytesText,
    /// For `put` and `append`: the value; absent where `json` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<BytesText>,
    /// For `put`: the value as JSON, which is stored as it is written here; absent where `value` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub json: Option<Box<RawValue>>,
    /// For `add`: by how much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<i64>,
    /// For `put` and `expire`: the row ends so many milliseconds after the write; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The whole batch is done only if the row has this version; `*`: only if there is a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_version: Option<String>,
    /// The whole batch is done only if there is no such row.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub if_absent: bool,
    /// The answer has the row as it was before this operation. Of at most 32 operations, with those that read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub want_former: bool,
}

/// The answer to a batch that was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchAnswer {
    /// The version of all rows that were written.
    pub version: String,
    /// One for each operation, in their order.
    pub results: Vec<BatchResult>,
}

/// What one operation of a batch has done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchResult {
    /// The key of the row.
    pub key: BytesText,
    /// Whether there was a row before.
    pub existed: bool,
    /// The number that the row is now, after `add`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<i64>,
    /// The length of the value in bytes; absent: there is no row now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// When the row ends, in milliseconds of Unix time; absent: never, or there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// The row before, where the operation asks for it and there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<RowText>,
}

/// Body of `POST /v1/tables/<table>/get`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GetRequest {
    /// The keys, 1 to 1,000.
    #[schema(min_items = 1, max_items = 1000)]
    pub keys: Vec<BytesText>,
}

/// The answer to a multi-get: what became of each key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GetAnswer {
    /// One for each key, in the order of the request.
    pub rows: Vec<GetResult>,
    /// How many of them are `failed` or `left_out`; above 0 the status is 207.
    pub failed: usize,
}

/// What became of a key of a multi-get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GetOutcome {
    /// There is a row.
    Found,
    /// There is no row with that key.
    Absent,
    /// It could not be read: `error` says why.
    Failed,
    /// It was not read, as the answer has as many bytes as one may have: ask for the key again.
    LeftOut,
}

/// One key of the answer to a multi-get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GetResult {
    /// The key that was asked for.
    pub key: BytesText,
    /// What became of the key.
    pub outcome: GetOutcome,
    /// The value of the row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<BytesText>,
    /// The version of the row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// When the row ends, in milliseconds of Unix time; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// Up to which entry of its shard's log the answer is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<String>,
    /// How old what was read may be at most, in milliseconds; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// Why it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorDetail>,
}

/// Body of `POST /v1/tables/<table>/put`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutRequest {
    /// The rows, 1 to 1,000, each of another key.
    #[schema(min_items = 1, max_items = 1000)]
    pub rows: Vec<PutRow>,
}

/// One row of a multi-put.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutRow {
    /// The key of the row that is to be written.
    pub key: BytesText,
    /// The value; absent where `json` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<BytesText>,
    /// The value as JSON, which is stored as it is written here; absent where `value` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub json: Option<Box<RawValue>>,
    /// The row ends so many milliseconds after the write; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The row is written only if it has this version; `*`: only if it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_version: Option<String>,
    /// The row is written only if it is not there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub if_absent: bool,
}

/// The answer to a multi-put: what became of each row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PutAnswer {
    /// One for each row, in the order of the request.
    pub results: Vec<PutResult>,
    /// How many of them are not `written`; above 0 the status is 207.
    pub failed: usize,
}

/// What became of a row of a multi-put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PutOutcome {
    /// It is on the disks of all in-sync replicas.
    Written,
    /// Its condition does not hold: `version` is that of the row that is there, if there is one.
    NotMet,
    /// It was not written: `error` says why.
    Failed,
    /// It may or may not have been written: send it again under the same idempotency key, or read it.
    Unknown,
}

/// One row of the answer to a multi-put.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PutResult {
    /// The key of the row, as it was in the request.
    pub key: BytesText,
    /// What became of the row.
    pub outcome: PutOutcome,
    /// The version of the row that is there now, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Whether there was a row before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existed: Option<bool>,
    /// Why it is not known to be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorDetail>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_given_as_json_stays_as_it_is_written() {
        let text = r#"{"rows":[{"key":"a","json":{ "z":1, "a": 123456789012345678901234567890.50 }}]}"#;
        let request: PutRequest = serde_json::from_str(text).unwrap();
        let json = request.rows[0].json.as_ref().unwrap();
        assert_eq!(json.get(), r#"{ "z":1, "a": 123456789012345678901234567890.50 }"#);
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
    }

    #[test]
    fn what_is_not_known_is_refused_with_the_nearest_name() {
        let batch = r#"{"operations":[{"operation":"put","key":"a","valeu":"1"}]}"#;
        let why = crate::json::parse::<BatchRequest>(batch.as_bytes()).unwrap_err();
        assert!(why.error.help.contains("value"), "{why:?}");
        let batch = r#"{"operations":[{"operation":"putt","key":"a"}]}"#;
        let why = crate::json::parse::<BatchRequest>(batch.as_bytes()).unwrap_err();
        assert!(why.error.help.contains("put"), "{why:?}");
    }
}
