//! What clients of a table asked, and what they were answered: one operation a line, as JSON.
//!
//! | field | is |
//! |---|---|
//! | `kind` | `get`, `put`, `delete`, `swap` (a put of a row that has the version that was read with `expected`), `create` (of a key without a row) |
//! | `value` | what is written; no two writes of a history have the same |
//! | `start`, `end` | microseconds since the history began |
//! | `outcome` | `ok`, `not_met`: the condition did not hold; `refused`: certainly not done; `unknown`: it may take effect at any time after `start`, also after `end`, or never |
//! | `found` | what a `get` has found; without it there was no row |
//! | `version` | of the row that was written or found, or of the delete, where the client was told |
//! | `existed` | whether there was a row before a `put` or a `delete`, where the client was told |

use serde::{Deserialize, Serialize};
use std::path::Path;

/// Epoch and index of a write; later writes of a key have greater ones.
pub type Version = (u64, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Get,
    Put,
    Delete,
    Swap,
    Create,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Ok,
    NotMet,
    Refused,
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    pub client: u64,
    pub key: String,
    pub kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    pub start: u64,
    pub end: u64,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existed: Option<bool>,
}

impl Operation {
    /// Whether it leaves a row with a value of its own, if it is done.
    pub fn writes_a_row(&self) -> bool {
        matches!(self.kind, Kind::Put | Kind::Swap | Kind::Create)
    }

    /// Whether it has changed the row, or may have, or may yet.
    pub fn may_change(&self) -> bool {
        self.kind != Kind::Get && matches!(self.outcome, Outcome::Ok | Outcome::Unknown)
    }
}

pub fn write(file: &Path, history: &[Operation]) {
    let lines: String = history.iter().map(|one| serde_json::to_string(one).unwrap() + "\n").collect();
    std::fs::write(file, lines).unwrap();
}

pub fn read(file: &Path) -> Vec<Operation> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{line}: {why}")))
        .collect()
}
