//! What clients wrote and read: registers that are linearizable in exclusive keyspaces (D2), and writes that
//! stay (D1).
//!
//! Storage numbers the writes of a key in the order in which it applied them. So a history is linearizable
//! when nobody reads a number below one that was known to any client before the read began. Operations whose
//! outcome nobody knows stay open: they forbid nothing.

use super::Finding;
use crate::model::{KeyAt, Op, Space, Storage};
use std::collections::BTreeMap;

/// Counts of operations by their end.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Begun.
    pub begun: u64,
    /// Done.
    pub done: u64,
    /// Certainly not done.
    pub failed: u64,
    /// Nobody knows.
    pub indefinite: u64,
}

#[derive(Debug)]
struct Open {
    key: KeyAt,
    write: bool,
    /// The highest number known when it began.
    floor: u64,
}

/// The history, as far as it still matters.
#[derive(Debug, Default)]
pub struct Data {
    known: BTreeMap<KeyAt, u64>,
    open: BTreeMap<Op, Open>,
    /// How many ended how.
    pub tally: Tally,
}

impl Data {
    /// A client begins.
    pub fn begins(&mut self, op: Op, key: KeyAt, write: bool) {
        let floor = self.known.get(&key).copied().unwrap_or(0);
        self.tally.begun += 1;
        self.open.insert(op, Open { key, write, floor });
    }

    /// It was done, at that version, by a leader or not.
    pub fn done(
        &mut self,
        op: Op,
        version: u64,
        by_leader: bool,
        spaces: &[Space],
        storage: &Storage,
    ) -> Option<Finding> {
        let open = self.open.remove(&op)?;
        self.tally.done += 1;
        if version > storage.read(open.key).version {
            return Some(("D1", format!("op {op} saw version {version} of {:?}, never written", open.key)));
        }
        let exclusive = spaces[open.key.keyspace].is_exclusive();
        if by_leader && exclusive && version < open.floor {
            let what = if open.write { "wrote" } else { "read" };
            let text = format!(
                "op {op} {what} version {version} of {:?} after version {} was known",
                open.key, open.floor
            );
            return Some(("D2", text));
        }
        if open.write || (by_leader && exclusive) {
            let known = self.known.entry(open.key).or_default();
            *known = version.max(*known);
        }
        None
    }

    /// It was certainly not done.
    pub fn failed(&mut self, op: Op) {
        if self.open.remove(&op).is_some() {
            self.tally.failed += 1;
        }
    }

    /// Nobody knows.
    pub fn indefinite(&mut self, op: Op) {
        if self.open.remove(&op).is_some() {
            self.tally.indefinite += 1;
        }
    }

    /// D1: what was acknowledged is there.
    pub fn at_the_end(&self, storage: &Storage) -> Vec<Finding> {
        let lost = self.known.iter().filter(|(key, version)| storage.read(**key).version < **version);
        lost.map(|(key, version)| {
            ("D1", format!("version {version} of {key:?} was acknowledged and is gone"))
        })
        .collect()
    }
}
