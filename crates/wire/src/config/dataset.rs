//! `_dataset.toml`: what a dataset's files are and how they are served, beside its versions in the source, so that all
//! nodes have it from where they have the data.

use serde::{Deserialize, Serialize};

/// The file. What is absent has a default; without the file everything has.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct DatasetFile {
    /// `sequencefile`, `csv`, `tsv`, `jsonl` or `parquet`; absent = each file's content and name tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// The column that is the key; not asked of SequenceFiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Columns that are the value: one as it is, several as JSON; empty = the row as JSON.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    /// Whether the first line of CSV and TSV names the columns; absent = yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<bool>,
    /// Whether a file whose first keys are of one partition is taken for that one; absent = yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<bool>,
    /// `hashed` (the default), or `ordered` for scans.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
    /// `none` (the default), `lz4` or `zstd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
    /// Of zstd, 1 to 19; absent = 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<i32>,
    /// `content-type` of values; absent = `application/octet-stream`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// How many nodes have each partition; absent = as the node is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication: Option<u32>,
    /// How many nodes must have each partition before clients get a version; absent = as the node is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_replication: Option<u32>,
    /// A partition that so many others have is not taken; absent = as the node is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_replication: Option<u32>,
    /// `interleaved`, `ring_index`, `rendezvous`, `ring` or `jump`; absent = as the node is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dealing: Option<String>,
    /// A version with fewer keys is not given to clients until a person releases it; absent = none without a key is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_keys: Option<u64>,
    /// The same of one that has lost more than so many in a hundred of the keys that clients get; absent = 50, 100 = none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_shrink_percent: Option<u32>,
    /// Whether it is served at all; absent = yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served: Option<bool>,
    /// Whether a version counts only when it has a `_SUCCESS`; absent = no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
}
