//! What replicas apply: registers, lists and counters, and the operations on them as payloads of entries.

use partage_service::table::replication::{Entry, EntryKind, LogPosition, Payload};
use std::collections::BTreeMap;

/// A key: what it holds follows from its number.
pub type Key = u8;

/// An operation that changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// A register gets a value that nobody else writes.
    Set(Key, u64),
    /// A list gets a value that nobody else appends.
    Append(Key, u64),
    /// A counter goes from one number to the next, if it is there.
    CompareAndSet(Key, u64),
}

impl Change {
    pub fn key(self) -> Key {
        let (Change::Set(key, _) | Change::Append(key, _) | Change::CompareAndSet(key, _)) = self;
        key
    }

    pub fn encode(self) -> Payload {
        let (kind, key, value) = match self {
            Change::Set(key, value) => (0, key, value),
            Change::Append(key, value) => (1, key, value),
            Change::CompareAndSet(key, value) => (2, key, value),
        };
        [&[kind, key][..], &value.to_le_bytes()].concat().into()
    }

    pub fn decode(payload: &Payload) -> Option<Change> {
        let (kind, key) = (*payload.first()?, *payload.get(1)?);
        let value = u64::from_le_bytes(payload.get(2..10)?.try_into().ok()?);
        match kind {
            0 => Some(Change::Set(key, value)),
            1 => Some(Change::Append(key, value)),
            2 => Some(Change::CompareAndSet(key, value)),
            _ => None,
        }
    }
}

/// What a key holds: a register its last value, a list all, a counter its number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Value(pub Vec<u64>);

/// The state of one replica.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Engine {
    pub at: LogPosition,
    pub keys: BTreeMap<Key, Value>,
}

impl Engine {
    /// Applies the next entry; says what key it was about, and whether it changed anything.
    pub fn apply(&mut self, entry: &Entry) -> Option<(Key, bool)> {
        self.at = entry.position;
        let EntryKind::Write(payload) = &entry.kind else { return None };
        let change = Change::decode(payload)?;
        let value = &mut self.keys.entry(change.key()).or_default().0;
        let is_done = match change {
            Change::Set(_, new) => {
                *value = vec![new];
                true
            }
            Change::Append(_, new) => {
                value.push(new);
                true
            }
            Change::CompareAndSet(_, expected) => {
                let is_there = value.first().copied().unwrap_or(0) == expected;
                if is_there {
                    *value = vec![expected + 1];
                }
                is_there
            }
        };
        Some((change.key(), is_done))
    }

    pub fn value(&self, key: Key) -> Value {
        self.keys.get(&key).cloned().unwrap_or_default()
    }
}
