//! Transactions: several conditions on key versions, several changes, all or nothing.
//!
//! This is the one way to change anything. A compare-and-swap is a transaction with one condition and
//! one put. ZooKeeper calls it multi, etcd txn, SQL a transaction.

use std::fmt;

use bytes::Bytes;

use crate::contract::Limits;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::limits::MAX_TRANSACTION_STEPS;
use crate::session::SessionId;

/// A point in the life of one store: the transaction that was committed there.
///
/// Versions grow by every transaction that changes something, over the whole store, and are never given
/// twice. A key's version is that of the transaction that wrote it last. So a key that was deleted and
/// created again has another version than before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// Before the first transaction.
    pub const ZERO: Self = Self(0);

    /// Wraps a number, which a backend has given or a caller has stored.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number, for storing a cursor or showing it.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

/// What is stored at a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The bytes that were put.
    pub value: Bytes,
    /// The transaction that put them.
    pub version: Version,
    /// The session that the key goes with, if it is ephemeral.
    pub session: Option<SessionId>,
}

/// What a transaction requires of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The key does not exist.
    Absent,
    /// The key exists, at any version.
    Present,
    /// The key exists and was last written by this transaction.
    At(Version),
}

impl Expected {
    /// True if `found` is what was expected.
    #[must_use]
    pub fn holds(self, found: Option<Version>) -> bool {
        match self {
            Self::Absent => found.is_none(),
            Self::Present => found.is_some(),
            Self::At(version) => found == Some(version),
        }
    }

    /// What is expected of a key that was read as `entry` and must not have changed since.
    #[must_use]
    pub fn unchanged(entry: Option<&Entry>) -> Self {
        entry.map_or(Self::Absent, |entry| Self::At(entry.version))
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("absent"),
            Self::Present => f.write_str("present"),
            Self::At(version) => write!(f, "at {version}"),
        }
    }
}

/// What a transaction requires of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The key that is looked at; the transaction need not change it.
    pub key: Key,
    /// The state that the key must have at the moment of commit.
    pub expected: Expected,
}

/// What a transaction does to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Creates or replaces a key.
    Put {
        /// The key that is created or replaced.
        key: Key,
        /// The bytes that replace the old ones; [`Limits::max_value_bytes`] bounds them.
        value: Bytes,
        /// With a session the key is ephemeral: it goes when the session ends.
        session: Option<SessionId>,
    },
    /// Removes a key; one that is not there is no error. Keys below it stay.
    Delete {
        /// The key that is removed.
        key: Key,
    },
}

impl Operation {
    /// The key that changes.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// Conditions and changes that hold together. Each key is changed at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// All must hold at the moment of commit.
    pub conditions: Vec<Condition>,
    /// Then all are done.
    pub operations: Vec<Operation>,
}

impl Transaction {
    /// A transaction that requires and changes nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Requires that `key` is as `expected` at the moment of commit.
    #[must_use]
    pub fn when(mut self, key: &Key, expected: Expected) -> Self {
        self.conditions.push(Condition { key: key.clone(), expected });
        self
    }

    /// Adds a put of a lasting key.
    #[must_use]
    pub fn put(mut self, key: &Key, value: impl Into<Bytes>) -> Self {
        self.operations.push(Operation::Put { key: key.clone(), value: value.into(), session: None });
        self
    }

    /// Adds a put of an ephemeral key.
    #[must_use]
    pub fn put_ephemeral(mut self, key: &Key, value: impl Into<Bytes>, session: SessionId) -> Self {
        let value = value.into();
        self.operations.push(Operation::Put { key: key.clone(), value, session: Some(session) });
        self
    }

    /// Removes `key`, if it is there; the keys below it stay.
    #[must_use]
    pub fn delete(mut self, key: &Key) -> Self {
        self.operations.push(Operation::Delete { key: key.clone() });
        self
    }

    /// Adds all that `other` requires and changes.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.conditions.extend(other.conditions);
        self.operations.extend(other.operations);
        self
    }

    /// Bytes of all keys and values in it.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let conditions: usize = self.conditions.iter().map(|condition| condition.key.as_str().len()).sum();
        let operations = self.operations.iter().map(|operation| match operation {
            Operation::Put { key, value, .. } => key.as_str().len() + value.len(),
            Operation::Delete { key } => key.as_str().len(),
        });
        conditions + operations.sum::<usize>()
    }

    /// What every backend checks before it sends anything (C6): sizes, counts, no key changed twice.
    pub fn check(&self, limits: &Limits) -> Result<()> {
        let steps = self.conditions.len() + self.operations.len();
        if steps > MAX_TRANSACTION_STEPS {
            let what = "the number of steps in a transaction".to_owned();
            return Err(Error::TooLarge { what, size: steps, limit: MAX_TRANSACTION_STEPS });
        }
        let mut changed = std::collections::BTreeSet::new();
        for operation in &self.operations {
            if !changed.insert(operation.key()) {
                let what = format!("key `{}` is changed twice in one transaction", operation.key());
                return Err(Error::Invalid { what });
            }
            if let Operation::Put { key, value, .. } = operation
                && value.len() > limits.max_value_bytes
            {
                let what = format!("the value of key `{key}`, in bytes,");
                return Err(Error::TooLarge { what, size: value.len(), limit: limits.max_value_bytes });
            }
        }
        let size = self.size_bytes();
        if size > limits.max_transaction_bytes {
            let what = "a transaction, in bytes,".to_owned();
            return Err(Error::TooLarge { what, size, limit: limits.max_transaction_bytes });
        }
        Ok(())
    }
}
