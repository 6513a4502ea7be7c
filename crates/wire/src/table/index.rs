//! Indexes of tables, and checks, as JSON: for clients, and between nodes.

use super::{BytesText, KeyBytes, PlaceForm, ShardRow};
use crate::json::FixedWord;
use partage_service::table::index::TableState;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of `POST /v1/tables/<table>/indexes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IndexCreate {
    /// The name of the index.
    pub name: String,
    /// Which field of the JSON values it is of: a path as filters have them, such as `author.names[0]`.
    pub field: String,
}

/// An index of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IndexAnswer {
    /// The name of the index.
    pub name: String,
    /// Which field it is of.
    pub field: String,
    /// `ready`, `building`, `dropping`, `incomplete` or `conflicting`.
    #[schema(value_type = String)]
    pub state: FixedWord<TableState>,
    /// In how many shards it is ready.
    pub ready: u64,
    /// How many shards the table has.
    pub shards: u64,
}

/// The indexes of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IndexList {
    /// The indexes, in the order of their names.
    pub indexes: Vec<IndexAnswer>,
}

/// The answer to `POST /v1/tables/<table>/check`: what a check of some shards has found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CheckAnswer {
    /// How many shards were compared, all replicas of each.
    pub shards: u64,
    /// How many replicas they have.
    pub replicas: u64,
    /// What differs; the first hundred of each shard.
    pub differences: Vec<CheckDifference>,
    /// What could not be compared.
    pub unchecked: Vec<CheckUnchecked>,
    /// What to give as `token` to go on; absent: all shards were looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckDifference {
    /// The id of the shard in which it was found.
    pub shard: u64,
    /// The node whose replica has it.
    pub node: String,
    /// What differs: `rows`, `index <name>`, and so on.
    pub part: String,
    /// The index, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// The key with which the range of keys begins in which it is.
    pub first_key: BytesText,
    /// What the replica has there, and what it should have, in words.
    pub message: String,
}

/// Something that could not be compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckUnchecked {
    /// The id of the shard that was not, or not wholly, compared.
    pub shard: u64,
    /// The node whose replica was not compared; absent: none of the shard was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The index that was not compared with the rows; absent: it is about the whole replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// The reason why it could not be compared.
    pub reason: String,
}

/// What a node asks another one about the indexes of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ShardIndexRequest {
    /// Which indexes there are; of the leader.
    List,
    /// An index is to begin; of the leader.
    Create(IndexCreate),
    /// An index of that name is to end; of the leader.
    Drop(String),
    /// A page of an index.
    Page(ShardPage),
    /// Asks the leader to sum all replicas up, under that number.
    Check {
        /// What the results are asked for by.
        number: u64,
    },
    /// What this replica has, if it has been summed up under that number.
    Result {
        /// The number that the check was begun with.
        number: u64,
    },
}

/// Which rows a page of an index of a shard is to have. Values are texts as the client has given them, so that each node reads
/// the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardPage {
    /// The name of the index that is read.
    pub name: String,
    /// The value that the rows have; none: any between `from` and `to`.
    pub equals: Option<String>,
    /// The lower bound, inclusive.
    pub from: Option<String>,
    /// The upper bound, exclusive.
    pub to: Option<String>,
    /// The place in the index from which on, in base64.
    pub place: String,
    /// How many rows the page has at most.
    pub limit: u64,
    /// Whether the rows come without their values.
    pub keys_only: bool,
    /// How fresh; with `bounded` the age in milliseconds.
    pub consistency: String,
    /// With `bounded`: the age.
    pub bound_ms: Option<u64>,
    /// Only rows with the partition key of this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_key: Option<KeyBytes>,
}

/// What a node answers to that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardIndexAnswer {
    /// All indexes of the shard, with their states.
    Indexes(Vec<ShardIndex>),
    /// The change is logged, and applied at the leader.
    Changed,
    /// There is no such index in the shard.
    Missing,
    /// The index is in that state, and cannot be asked.
    Unfinished(FixedWord<TableState>),
    /// A page.
    Page {
        /// The number of the index: another one is another index of the same name.
        index: u64,
        /// The rows, in the order of the index.
        rows: Vec<PlacedRow>,
        /// The place at which the next page begins, in base64; none: there is nothing more.
        next: Option<String>,
        /// Where the shard behind this one begins; none: it is the last one, or a named partition.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<PlaceForm>,
    },
    /// What the replica has.
    Digest(DigestForm),
    /// The replica is being summed up, or has not begun.
    Working,
    /// The replica could not be summed up.
    Failed(String),
}

/// An index of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardIndex {
    /// The name of the index, unique in its table.
    pub name: String,
    /// Which field it is of.
    pub field: String,
    /// `building`, `ready` or `dropping`.
    pub state: FixedWord<TableState>,
}

/// A row with its place in an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedRow {
    /// The place, in base64.
    pub place: String,
    /// The row that the entry of the index leads to.
    pub row: ShardRow,
}

/// What a replica has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestForm {
    /// The epoch of the last entry of the log that the sums cover.
    pub epoch: u64,
    /// The index of that entry in the log.
    pub index: u64,
    /// The sums of each range of keys.
    pub ranges: Vec<RangeForm>,
    /// Indexes that were being built or dropped.
    pub unfinished: Vec<String>,
}

/// What a replica has in a range of keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeForm {
    /// The key with which the range begins.
    pub first: KeyBytes,
    /// The sums of what is stored there, by part.
    pub stored: Vec<(PartForm, SumForm)>,
    /// What should be, by the rows.
    pub expected: Vec<(PartForm, SumForm)>,
}

/// What is summed up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartForm {
    /// Keys, values, versions and ends of rows.
    Rows,
    /// The times at which rows end, by which they are removed.
    Ends,
    /// The index of that name.
    Index(String),
    /// Entries of an index that there is not; there should be none.
    Stray,
    /// What the shard has beside rows: outcomes of requests, its clock, which indexes there are.
    Others,
}

/// How many, and the sum of their hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SumForm(pub u64, pub u64);

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::keyspace::key::Key;

    fn stays<T: Serialize + for<'de> Deserialize<'de> + PartialEq + std::fmt::Debug>(form: &T, golden: &str) {
        let text = serde_json::to_string(form).expect("text");
        assert_eq!(text, golden);
        assert_eq!(serde_json::from_str::<T>(&text).expect("the form"), *form);
    }

    #[test]
    fn forms_between_nodes_are_what_they_were_and_their_text_stays() {
        let page = ShardPage {
            name: "by-n".into(),
            equals: Some("0.1".into()),
            from: None,
            to: None,
            place: "AQ==".into(),
            limit: 7,
            keys_only: true,
            consistency: "linearizable".into(),
            bound_ms: None,
            partition_key: None,
        };
        stays(
            &ShardIndexRequest::Page(page.clone()),
            r#"{"page":{"name":"by-n","equals":"0.1","from":null,"to":null,"place":"AQ==","limit":7,"keys_only":true,"consistency":"linearizable","bound_ms":null}}"#,
        );
        let partition_key = Some(KeyBytes(Key::new(b"a").expect("a key")));
        stays(
            &ShardIndexRequest::Page(ShardPage { partition_key, ..page }),
            r#"{"page":{"name":"by-n","equals":"0.1","from":null,"to":null,"place":"AQ==","limit":7,"keys_only":true,"consistency":"linearizable","bound_ms":null,"partition_key":"YQ=="}}"#,
        );
        let page = |after| ShardIndexAnswer::Page { index: 5, rows: vec![], next: None, after };
        stays(&page(None), r#"{"page":{"index":5,"rows":[],"next":null}}"#);
        let after = Some(PlaceForm::Point(9));
        stays(&page(after), r#"{"page":{"index":5,"rows":[],"next":null,"after":{"point":9}}}"#);
        stays(&ShardIndexRequest::List, r#""list""#);
        stays(&ShardIndexRequest::Check { number: 3 }, r#"{"check":{"number":3}}"#);
        let create = IndexCreate { name: "x".into(), field: "a.b".into() };
        stays(&ShardIndexRequest::Create(create), r#"{"create":{"name":"x","field":"a.b"}}"#);
        let range = RangeForm {
            first: KeyBytes(Key::empty()),
            stored: vec![(PartForm::Rows, SumForm(2, 9)), (PartForm::Index("x".into()), SumForm(1, 8))],
            expected: vec![],
        };
        let digest = DigestForm { epoch: 1, index: 2, ranges: vec![range], unfinished: vec!["y".into()] };
        stays(
            &ShardIndexAnswer::Digest(digest),
            r#"{"digest":{"epoch":1,"index":2,"ranges":[{"first":"","stored":[["rows",[2,9]],[{"index":"x"},[1,8]]],"expected":[]}],"unfinished":["y"]}}"#,
        );
        stays(&ShardIndexAnswer::Unfinished(TableState::Building.into()), r#"{"unfinished":"building"}"#);
    }
}
