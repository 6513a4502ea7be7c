//! Shardings, partition keys and bounds as JSON.

use super::text::{KeyText, Point};
use crate::Malformed;
use crate::malformed::{At, Inside};
use partage_core::key::{HashRange, Key, KeyRange};
use partage_core::sharding as core;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How keys map to shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Sharding {
    /// Ranges of keys.
    KeyRange {},
    /// Ranges of hashes.
    HashRange {
        /// Name of the hash function, such as `xxh3-64`.
        hash: String,
    },
    /// A fixed number of slots.
    Fixed {
        /// Name of the hash function.
        hash: String,
        /// The number of slots, at least 1.
        shards: u32,
    },
    /// Partitions named by the user.
    Named {},
}

impl From<core::Sharding> for Sharding {
    fn from(sharding: core::Sharding) -> Self {
        match sharding {
            core::Sharding::KeyRange => Sharding::KeyRange {},
            core::Sharding::HashRange { hash } => Sharding::HashRange { hash: hash.name().to_owned() },
            core::Sharding::Fixed { hash, shards } => {
                Sharding::Fixed { hash: hash.name().to_owned(), shards }
            }
            core::Sharding::Named => Sharding::Named {},
        }
    }
}

impl TryFrom<Sharding> for core::Sharding {
    type Error = Malformed;
    fn try_from(form: Sharding) -> Result<Self, Malformed> {
        let sharding = match form {
            Sharding::KeyRange {} => core::Sharding::KeyRange,
            Sharding::HashRange { hash } => core::Sharding::HashRange { hash: hash.parse().at("hash")? },
            Sharding::Fixed { hash, shards } => {
                core::Sharding::Fixed { hash: hash.parse().at("hash")?, shards }
            }
            Sharding::Named {} => core::Sharding::Named,
        };
        sharding.check().at("shards")?;
        Ok(sharding)
    }
}

/// Which part of a key is sharded by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum PartitionKey {
    /// All of it.
    Whole {},
    /// Its first bytes.
    Prefix {
        /// The length of the prefix in bytes, 0 to 65535.
        bytes: u16,
    },
    /// What stands before the first such byte.
    UpTo {
        /// The byte, as a number.
        delimiter: u8,
    },
    /// What stands in braces.
    HashTag {},
}

impl From<core::PartitionKey> for PartitionKey {
    fn from(by: core::PartitionKey) -> Self {
        match by {
            core::PartitionKey::Whole => PartitionKey::Whole {},
            core::PartitionKey::Prefix { bytes } => PartitionKey::Prefix { bytes },
            core::PartitionKey::UpTo { delimiter } => PartitionKey::UpTo { delimiter },
            core::PartitionKey::HashTag => PartitionKey::HashTag {},
        }
    }
}

impl From<PartitionKey> for core::PartitionKey {
    fn from(form: PartitionKey) -> Self {
        match form {
            PartitionKey::Whole {} => core::PartitionKey::Whole,
            PartitionKey::Prefix { bytes } => core::PartitionKey::Prefix { bytes },
            PartitionKey::UpTo { delimiter } => core::PartitionKey::UpTo { delimiter },
            PartitionKey::HashTag {} => core::PartitionKey::HashTag,
        }
    }
}

/// What one shard holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Bounds {
    /// A range of keys.
    Keys {
        /// Included.
        begin: KeyText,
        /// Excluded; empty = no end.
        end: KeyText,
    },
    /// A range of hash points, both included.
    Hashes {
        /// The lowest.
        first: Point,
        /// The highest.
        last: Point,
    },
    /// One slot.
    Slot {
        /// Which, from 0.
        slot: u32,
        /// Of how many: it holds the keys whose hash is `slot` modulo this.
        of: u32,
    },
    /// One named partition.
    Name {
        /// The name of the partition.
        name: String,
    },
}

impl From<&core::Bounds> for Bounds {
    fn from(bounds: &core::Bounds) -> Self {
        match bounds {
            core::Bounds::Keys(range) => {
                Bounds::Keys { begin: (&range.begin).into(), end: (&range.end).into() }
            }
            core::Bounds::Hashes(range) => {
                Bounds::Hashes { first: range.first.into(), last: range.last.into() }
            }
            core::Bounds::Slot(slot) => Bounds::Slot { slot: slot.number(), of: slot.of() },
            core::Bounds::Name(name) => Bounds::Name { name: name.to_string() },
        }
    }
}

impl TryFrom<Bounds> for core::Bounds {
    type Error = Malformed;
    fn try_from(form: Bounds) -> Result<Self, Malformed> {
        Ok(match form {
            Bounds::Keys { begin, end } => {
                let (begin, end) = (Key::try_from(begin).inside("begin")?, Key::try_from(end).inside("end")?);
                core::Bounds::Keys(KeyRange::new(begin, end).at("begin")?)
            }
            Bounds::Hashes { first, last } => {
                let (first, last) = (first.try_into().inside("first")?, last.try_into().inside("last")?);
                if first > last {
                    return Err(Malformed::new("first", "must not be above last"));
                }
                core::Bounds::Hashes(HashRange { first, last })
            }
            Bounds::Slot { slot, of } => core::Bounds::Slot(core::Slot::new(slot, of).at("slot")?),
            Bounds::Name { name } => core::Bounds::Name(name.parse().at("name")?),
        })
    }
}
