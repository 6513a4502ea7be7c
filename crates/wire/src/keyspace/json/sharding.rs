//! Shardings, partition keys and bounds as JSON.

use crate::Malformed;
use crate::json::{KeyText, Point};
use crate::malformed::{At, Inside};
use partage_core::keyspace::key::{HashRange, Key, KeyRange};
use partage_core::keyspace::sharding as core;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The rule by which keys map to shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Sharding {
    /// Each shard holds a range of keys.
    KeyRange {},
    /// Each shard holds the keys whose hashes are in one range.
    HashRange {
        /// The name of the hash function, such as `xxh3-64`.
        hash: String,
    },
    /// Each shard holds one slot of a fixed number: the keys with the same hash modulo `shards`.
    Fixed {
        /// The name of the hash function, such as `xxh3-64`.
        hash: String,
        /// The number of slots, 1 to 4000000, with `crc16` at most 16384. While the number of shards changes it is the
        /// larger of both numbers.
        shards: u32,
    },
    /// Each shard is a partition that the user names.
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

/// The part of a key that the sharding uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum PartitionKey {
    /// The sharding uses every byte of the key.
    Whole {},
    /// The first bytes of the key, or the whole key where it is shorter.
    Prefix {
        /// The length of the prefix in bytes, 0 to 65535.
        bytes: u16,
    },
    /// The bytes before the first delimiter, or the whole key where it has none.
    UpTo {
        /// The delimiter, one byte as a number, 0 to 255.
        delimiter: u8,
    },
    /// The bytes in the first pair of braces, by the rule of Redis Cluster, or the whole key where there is none.
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

/// The keys that one shard holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Bounds {
    /// A range of keys.
    Keys {
        /// The lowest key, included.
        begin: KeyText,
        /// The end of the range, excluded; empty = the range has no end.
        end: KeyText,
    },
    /// A range of hash points.
    Hashes {
        /// The lowest point, included.
        first: Point,
        /// The highest point, included.
        last: Point,
    },
    /// One slot: the keys whose hash modulo `of` is `slot`.
    Slot {
        /// The number of the slot, from 0.
        slot: u32,
        /// The number of slots. While the number of shards changes, a map has slots of two numbers.
        of: u32,
    },
    /// One partition that the user has named, with all its keys.
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
