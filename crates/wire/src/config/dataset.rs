//! `_dataset.toml`: what a dataset's files are and how they are served, beside its versions in the source, so that all
//! nodes have it from where they have the data.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The file. What is absent has a default; without the file everything has.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct DatasetFile {
    /// `sequencefile`, `csv`, `tsv`, `jsonl` or `parquet`; absent = each file's content and name tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// The column that is the key, or a list of them; not asked of SequenceFiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyColumns>,
    /// The column that says alone which partition a row is in; one that is none of the key's becomes the key's first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_by: Option<String>,
    /// Columns that are the value: one as it is, several as JSON; empty = the row as JSON.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    /// Whether the first line of CSV and TSV names the columns; absent = yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<bool>,
    /// What stands between two fields of CSV and TSV, one ASCII character; absent = a comma, a tabulator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<String>,
    /// What stands around a field that has a delimiter in it, one ASCII character, or nothing; absent = `"` in CSV, nothing
    /// in TSV.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quote: Option<String>,
    /// How many rows may be bad: a number of all files, or a share of each, such as `"0.5%"`; absent = none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bad_rows: Option<BadRows>,
    /// Whether a file whose first keys are of one partition is taken for that one; absent = yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<bool>,
    /// `hashed` (the default), or `ordered` for scans.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
    /// `none` (the default), `lz4` or `zstd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
    /// The level of zstd, 1 to 19; absent = 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<i32>,
    /// `content-type` of values; absent = `application/octet-stream`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// How many nodes have each partition; absent = the option of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication: Option<u32>,
    /// How many nodes must have each partition before clients get a version; absent = the option of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_replication: Option<u32>,
    /// A node does not take a partition that so many others have; absent = the option of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_replication: Option<u32>,
    /// `interleaved`, `ring_index`, `rendezvous`, `ring` or `jump`; absent = the option of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dealing: Option<String>,
    /// A version with fewer keys is not given to clients until a person releases it; absent = none without a key is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_keys: Option<u64>,
    /// A version that has lost more than so many in a hundred of the keys that clients get is held back likewise; absent = 50,
    /// 100 = none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_shrink_percent: Option<u32>,
    /// Whether it is served at all; absent = yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served: Option<bool>,
    /// Whether a version counts only when it has a `_SUCCESS`; absent = no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
}

/// The columns of a key: written as one name, or as a list of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyColumns(pub Vec<String>);

impl Serialize for KeyColumns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => serializer.serialize_str(one),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for KeyColumns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<KeyColumns, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = KeyColumns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a column, or a list of names")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<KeyColumns, E> {
                Ok(KeyColumns(vec![name.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<KeyColumns, A::Error> {
                let mut columns = Vec::new();
                while let Some(name) = names.next_element()? {
                    columns.push(name);
                }
                Ok(KeyColumns(columns))
            }
        }
        deserializer.deserialize_any(Names)
    }
}

/// How many rows may be bad, as written: a number, or a text such as `0.5%`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BadRows(pub String);

impl<'de> Deserialize<'de> for BadRows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BadRows, D::Error> {
        struct Many;
        impl Visitor<'_> for Many {
            type Value = BadRows;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of rows, or a share of them such as \"0.5%\"")
            }

            fn visit_i64<E: Error>(self, rows: i64) -> Result<BadRows, E> {
                Ok(BadRows(rows.to_string()))
            }

            fn visit_u64<E: Error>(self, rows: u64) -> Result<BadRows, E> {
                Ok(BadRows(rows.to_string()))
            }

            fn visit_str<E: Error>(self, share: &str) -> Result<BadRows, E> {
                Ok(BadRows(share.to_owned()))
            }
        }
        deserializer.deserialize_any(Many)
    }
}
