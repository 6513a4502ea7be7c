//! How shuffles are, as JSON: what nodes of a pool answer below `/v1/shuffles`.

use crate::json::{FixedWord, Words, fixed_words};
use partage_service::shuffle::Durability;
use serde::{Deserialize, Serialize};
use std::fmt;

fixed_words! {
    /// The stage of a shuffle, without why it has failed.
    ShuffleStage {
        /// It takes records.
        Open = "open",
        /// It is being sealed.
        Sealing = "sealing",
        /// It is sealed.
        Sealed = "sealed",
        /// It has failed.
        Failed = "failed",
    }
}

fixed_words! {
    /// What the records of a shuffle are, without their columns.
    ShuffleRecords {
        /// Keys and values of any bytes.
        Raw = "raw",
        /// Rows of Arrow.
        Arrow = "arrow",
    }
}

/// What clients get of `GET /v1/shuffles`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShuffleList {
    /// The shuffles that the nodes which answered lead, in the order of their numbers.
    pub shuffles: Vec<ShuffleForm>,
    /// Nodes that have not answered: the shuffles that they lead are not in the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<String>,
}

/// One shuffle, as its leader knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShuffleForm {
    /// Its number, as 32 hexadecimal digits.
    pub shuffle: String,
    /// `open`, `sealing`, `sealed` or `failed`.
    pub stage: FixedWord<ShuffleStage>,
    /// `raw` or `arrow`: what its records are.
    #[serde(default)]
    pub kind: FixedWord<ShuffleRecords>,
    /// Of rows of Arrow: the columns by which they are ordered, the first one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub order: Vec<SortColumnForm>,
    /// How raw records of equal keys are combined, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub combine: Option<String>,
    /// `disk` or `memory`: where its records are when they are acknowledged.
    #[serde(default)]
    pub durability: FixedWord<Durability>,
    /// Whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Its own time to live while it is not sealed, if it was started with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsealed_ttl_ms: Option<u64>,
    /// The same when it is sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed_ttl_ms: Option<u64>,
    /// In how long it ends, if no client asks for it.
    #[serde(default)]
    pub ends_in_ms: u64,
    /// What it waits for, or why it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// Input partitions with a whole attempt.
    pub winners: u64,
    /// Whole attempts; of a sealed shuffle those that are read, and those of which its leader has heard besides.
    pub attempts: u64,
    /// Records of the attempts that are read, or would be if it were sealed now.
    pub records: u64,
    /// Their keys and values, in bytes.
    pub bytes: u64,
    /// The version of its bounds.
    pub bounds_version: u32,
    /// How many ranges its keys are divided into.
    pub ranges: u32,
    /// Slots in which something is being divided.
    pub dividing: u32,
    /// Slots of its ranges that have fewer replicas than the pool is to have.
    pub short_slots: u32,
    /// Input partitions that a seal waits for, the first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacking: Vec<u32>,
    /// Where its records are: only of one shuffle, not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<ShuffleStored>,
}

/// Where the records of a shuffle are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShuffleStored {
    /// Slots of which some node has records on its disk.
    pub disk_slots: u32,
    /// Bytes of them on all disks: each replica, and with what is not read.
    pub disk_bytes: u64,
    /// Slots of which the object store has what is read, as some node has a receipt for: each counts once.
    pub object_slots: u32,
    /// Keys and values of what is read of these slots, in bytes; absent: there are none, or it is not known now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_bytes: Option<u64>,
    /// The nodes that have answered, by their names.
    pub nodes: Vec<ShuffleNodeForm>,
    /// Nodes that have not answered: what they have is not counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<String>,
}

/// What a node of the pool does, and what it has of a shuffle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShuffleNodeForm {
    /// The node.
    pub node: String,
    /// `buffer`, `storage`, or both.
    pub roles: Vec<String>,
    /// Slots of which it has records on its disk.
    pub disk_slots: u32,
    /// Their bytes.
    pub disk_bytes: u64,
    /// Slots that it reads from the object store: it has a receipt for them, and no records on its disk any more.
    pub object_slots: u32,
    /// What is wrong there, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
}

/// What a node says that it has of a shuffle: `GET /v1/shuffles/<number>?of=node`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShuffleHeld {
    /// The node.
    pub node: String,
    /// `buffer`, `storage`, or both.
    pub roles: Vec<String>,
    /// The slots of which it has something.
    pub slots: Vec<HeldSlot>,
    /// What is wrong there, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
}

/// What a node has of a slot of a shuffle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldSlot {
    /// The slot.
    pub slot: u32,
    /// Bytes on its disk.
    pub disk_bytes: u64,
    /// Whether the object store has it too, or alone.
    pub is_in_object_store: bool,
}

/// A column by which rows are ordered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SortColumnForm {
    /// Its place in the schema.
    pub column: u32,
    /// Whether the largest value comes first.
    pub descends: bool,
    /// Whether nulls come first.
    pub nulls_first: bool,
}

/// What clients get of `DELETE /v1/shuffles/<number>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShuffleDeleted {
    /// Its number, as 32 hexadecimal digits.
    pub shuffle: String,
    /// Always true, also if it was deleted before.
    pub deleted: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_looks_so() {
        let shuffle = ShuffleForm {
            shuffle: "00".repeat(16),
            stage: ShuffleStage::Open.into(),
            kind: ShuffleRecords::Arrow.into(),
            order: vec![SortColumnForm { column: 3, descends: true, nulls_first: false }],
            combine: Some("sum-i64".to_owned()),
            durability: Durability::Memory.into(),
            owner: Some("etl".to_owned()),
            unsealed_ttl_ms: None,
            sealed_ttl_ms: Some(90_000),
            ends_in_ms: 7_000,
            waits_for: None,
            winners: 1,
            attempts: 2,
            records: 3,
            bytes: 4,
            bounds_version: 0,
            ranges: 30,
            dividing: 0,
            short_slots: 0,
            lacking: Vec::new(),
            stored: None,
        };
        let list = ShuffleList { shuffles: vec![shuffle], silent: Vec::new() };
        let text = serde_json::to_string(&list).unwrap();
        assert_eq!(
            text,
            r#"{"shuffles":[{"shuffle":"00000000000000000000000000000000","stage":"open","kind":"arrow","order":[{"column":3,"descends":true,"nulls_first":false}],"combine":"sum-i64","durability":"memory","owner":"etl","sealed_ttl_ms":90000,"ends_in_ms":7000,"winners":1,"attempts":2,"records":3,"bytes":4,"bounds_version":0,"ranges":30,"dividing":0,"short_slots":0}]}"#
        );
        assert_eq!(serde_json::from_str::<ShuffleList>(&text).unwrap(), list);
        let gone = ShuffleDeleted { shuffle: "ab".to_owned(), deleted: true };
        assert_eq!(serde_json::to_string(&gone).unwrap(), r#"{"shuffle":"ab","deleted":true}"#);
    }

    #[test]
    fn what_is_stored_looks_so() {
        let node = ShuffleNodeForm {
            node: "s1".to_owned(),
            roles: vec!["buffer".to_owned(), "storage".to_owned()],
            disk_slots: 3,
            disk_bytes: 700,
            object_slots: 2,
            troubles: vec!["its disk is full".to_owned()],
        };
        let stored = ShuffleStored {
            disk_slots: 3,
            disk_bytes: 700,
            object_slots: 2,
            object_bytes: Some(90),
            nodes: vec![node],
            silent: Vec::new(),
        };
        let text = serde_json::to_string(&stored).unwrap();
        assert_eq!(
            text,
            r#"{"disk_slots":3,"disk_bytes":700,"object_slots":2,"object_bytes":90,"nodes":[{"node":"s1","roles":["buffer","storage"],"disk_slots":3,"disk_bytes":700,"object_slots":2,"troubles":["its disk is full"]}]}"#
        );
        assert_eq!(serde_json::from_str::<ShuffleStored>(&text).unwrap(), stored);
        let slots = vec![HeldSlot { slot: 7, disk_bytes: 0, is_in_object_store: true }];
        let held = ShuffleHeld {
            node: "s1".to_owned(),
            roles: vec!["storage".to_owned()],
            slots,
            troubles: Vec::new(),
        };
        let text = serde_json::to_string(&held).unwrap();
        assert_eq!(
            text,
            r#"{"node":"s1","roles":["storage"],"slots":[{"slot":7,"disk_bytes":0,"is_in_object_store":true}]}"#
        );
        assert_eq!(serde_json::from_str::<ShuffleHeld>(&text).unwrap(), held);
    }
}
