//! How shuffles are, as JSON: what nodes of a pool answer to `GET /v1/shuffles`.

use serde::{Deserialize, Serialize};

/// What clients get of `GET /v1/shuffles`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShuffleList {
    /// By their numbers.
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
    pub stage: String,
    /// What it waits for, or why it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// Input partitions with a whole attempt.
    pub winners: u64,
    /// Whole attempts of these; of a sealed shuffle those that are read.
    pub attempts: u64,
    /// Records of the attempts that are read, or would be if it were sealed now.
    pub records: u64,
    /// Their keys and values, in bytes.
    pub bytes: u64,
    /// The version of its bounds.
    pub bounds_version: u32,
    /// Its ranges.
    pub ranges: u32,
    /// Slots in which something is being divided.
    pub dividing: u32,
    /// Slots of its ranges that have fewer replicas than the pool is to have.
    pub short_slots: u32,
    /// Input partitions that a seal waits for, the first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacking: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_looks_so() {
        let shuffle = ShuffleForm {
            shuffle: "00".repeat(16),
            stage: "open".to_owned(),
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
        };
        let list = ShuffleList { shuffles: vec![shuffle], silent: Vec::new() };
        let text = serde_json::to_string(&list).unwrap();
        assert_eq!(
            text,
            r#"{"shuffles":[{"shuffle":"00000000000000000000000000000000","stage":"open","winners":1,"attempts":2,"records":3,"bytes":4,"bounds_version":0,"ranges":30,"dividing":0,"short_slots":0}]}"#
        );
        assert_eq!(serde_json::from_str::<ShuffleList>(&text).unwrap(), list);
    }
}
