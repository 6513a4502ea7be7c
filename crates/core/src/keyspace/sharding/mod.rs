//! How keys map to shards.
//!
//! A [`Sharding`] says in which order keys are: their own, or that of a hash of each. [`Sharding::position`] is where one key is
//! in that order; a shard's [`Bounds`] are the stretch of it that the shard holds. How shards map to nodes is another module.
//!
//! | sharding | a key's position | a shard's bounds | splits and merges |
//! |---|---|---|---|
//! | `KeyRange` | its partition key | a range of keys | yes |
//! | `HashRange` | the point of its hash | a range of points | yes |
//! | `Fixed` | its hash, to be taken modulo n | one [`slot`] of n | all together, to k·n and back |
//! | `Named` | the name in the request | one name | no |
//!
//! What has a position is never the key but its [`PartitionKey`], so that rows with one partition key
//! are in one shard whatever the sharding (K2).
//!
//! Beside these four, which a keyspace can have, stand the schemes that go from a key straight to one of
//! several nodes ([`modulo`], [`ring`], [`rendezvous`], [`jump`]; see [`nodes`]). They serve static routing,
//! comparison in the simulator, and as placement policies with shards for keys. A keyspace cannot use them
//! as its sharding: whatever moves without a plan cannot be handed over without losing a request.

pub mod geometry;
pub mod jump;
pub mod modulo;
pub mod nodes;
mod partition_key;
pub mod presplit;
pub mod rendezvous;
pub mod ring;
pub mod slot;

pub use partition_key::PartitionKey;
pub use slot::Slot;

use crate::base::name::PartitionName;
use crate::keyspace::hash::HashFunction;
use crate::keyspace::key::{HashRange, KeyRange};
use crate::limits;
use std::fmt;

/// How the keys of a keyspace map to its shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sharding {
    /// Each shard holds the keys of one range. Scans in order; boundaries adapt to the data.
    KeyRange,
    /// Each shard holds the keys whose hashes are in one range. Even by nature; no scans.
    HashRange {
        /// The hash function whose [`point`](HashFunction::point) decides.
        hash: HashFunction,
    },
    /// Shard i holds the keys whose hash modulo `shards` is i. Only whole shards move.
    Fixed {
        /// The hash function whose [`slot`](HashFunction::slot) decides.
        hash: HashFunction,
        /// How many slots tell all shards apart: the number of shards, but while it changes the larger one.
        shards: u32,
    },
    /// Partitions named by the user, who says with each request which one is meant.
    Named,
}

/// Why no keyspace can be sharded so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShardingError {
    /// `Fixed` with 0 shards.
    #[error("a keyspace needs at least one shard: {}", self.way_out())]
    NoShards,
    /// `Fixed` with more than [`limits::SHARDS`].
    #[error("{shards} shards are too many: {}", self.way_out())]
    TooManyShards {
        /// The number of shards that was given.
        shards: u64,
    },
    /// `Fixed` with more shards than the hash has values, so that some shards could never hold a key.
    #[error("{hash} has only {values} values, so {shards} shards would leave some for ever empty: {}", self.way_out())]
    HashTooNarrow {
        /// The hash function that was given.
        hash: HashFunction,
        /// The number of shards that was given, more than the hash has values.
        shards: u32,
        /// How many slots the hash can tell apart.
        values: u64,
    },
}

impl ShardingError {
    /// What to do instead: the end of the sentence.
    pub fn way_out(&self) -> String {
        match self {
            ShardingError::NoShards => "give shards = 1 or more".to_owned(),
            ShardingError::TooManyShards { .. } => format!("the limit is {}, give no more", limits::SHARDS),
            ShardingError::HashTooNarrow { .. } => "take fewer shards or a wider hash".to_owned(),
        }
    }
}

/// Where a key lies. Borrows from the key; made without allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Position<'a> {
    /// In the order of keys.
    Key(&'a [u8]),
    /// In the 64-bit hash space.
    Point(u64),
    /// In the slot of each divisor that this is in: what [`HashFunction::dividend`] gives.
    Value(u128),
    /// In the partition of that name.
    Name(&'a [u8]),
}

/// The part of a keyspace that one shard holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Bounds {
    /// A range of (partition) keys.
    Keys(KeyRange),
    /// A range of hash points.
    Hashes(HashRange),
    /// One slot of a fixed number.
    Slot(Slot),
    /// One partition by its name.
    Name(PartitionName),
}

impl Sharding {
    /// Whether a keyspace can be sharded so.
    pub fn check(&self) -> Result<(), ShardingError> {
        let Sharding::Fixed { hash, shards } = *self else { return Ok(()) };
        if shards == 0 {
            return Err(ShardingError::NoShards);
        }
        if shards as usize > limits::SHARDS {
            return Err(ShardingError::TooManyShards { shards: shards.into() });
        }
        let values = 1u64.checked_shl(hash.bits()).unwrap_or(u64::MAX);
        if u64::from(shards) > values {
            return Err(ShardingError::HashTooNarrow { hash, shards, values });
        }
        Ok(())
    }

    /// Where `key` lies, `by` its partition key. For a [`check`](Self::check)ed sharding it always lies
    /// somewhere.
    pub fn position<'a>(&self, by: PartitionKey, key: &'a [u8]) -> Position<'a> {
        let partition = by.of(key);
        match *self {
            Sharding::KeyRange => Position::Key(partition),
            Sharding::HashRange { hash } => Position::Point(hash.point(partition)),
            Sharding::Fixed { hash, .. } => Position::Value(hash.dividend(partition)),
            Sharding::Named => Position::Name(partition),
        }
    }

    /// Whether a shard with these bounds can belong to a keyspace sharded so.
    pub fn fits(&self, bounds: &Bounds) -> bool {
        match (self, bounds) {
            (Sharding::KeyRange, Bounds::Keys(_))
            | (Sharding::HashRange { .. }, Bounds::Hashes(_))
            | (Sharding::Named, Bounds::Name(_)) => true,
            (Sharding::Fixed { hash, .. }, Bounds::Slot(slot)) => {
                Sharding::Fixed { hash: *hash, shards: slot.of() }.check().is_ok()
            }
            _ => false,
        }
    }
}

impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sharding::KeyRange => write!(f, "key ranges"),
            Sharding::HashRange { hash } => write!(f, "ranges of {hash}"),
            Sharding::Fixed { hash, shards } => write!(f, "{hash} modulo {shards}"),
            Sharding::Named => write!(f, "named partitions"),
        }
    }
}

impl Bounds {
    /// Whether what lies at `position` is in here. A position on another ruler never is.
    pub fn contains(&self, position: Position<'_>) -> bool {
        match (self, position) {
            (Bounds::Keys(range), Position::Key(key)) => range.contains(key),
            (Bounds::Hashes(range), Position::Point(point)) => range.contains(point),
            (Bounds::Slot(slot), Position::Value(value)) => slot.contains(value),
            (Bounds::Name(name), Position::Name(at)) => name.as_str().as_bytes() == at,
            _ => false,
        }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bounds::Keys(range) => range.fmt(f),
            Bounds::Hashes(range) => range.fmt(f),
            Bounds::Slot(slot) => write!(f, "slot {slot}"),
            Bounds::Name(name) => name.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::key::Key;

    const HASH: HashFunction = HashFunction::Xxh3_64;

    #[test]
    fn rows_of_one_partition_share_a_position_in_every_sharding() {
        let by = PartitionKey::UpTo { delimiter: b'/' };
        for sharding in [
            Sharding::KeyRange,
            Sharding::HashRange { hash: HASH },
            Sharding::Fixed { hash: HASH, shards: 100 },
            Sharding::Named,
        ] {
            let [a, b, c] = [&b"user/1"[..], b"user/2", b"user"].map(|key| sharding.position(by, key));
            assert!(a == b && b == c, "{sharding}");
            assert_ne!(a, sharding.position(by, b"other/1"), "{sharding}");
        }
    }

    #[test]
    fn bounds_hold_only_positions_of_their_own_kind() {
        let slot = Bounds::Slot(Slot::new(3, 8).unwrap());
        assert!(slot.contains(Position::Value(3)) && slot.contains(Position::Value(11)));
        assert!(!slot.contains(Position::Value(4)));
        assert!(!slot.contains(Position::Point(3)));
        let name = Bounds::Name(PartitionName::new("north").unwrap());
        assert!(name.contains(Position::Name(b"north")) && !name.contains(Position::Key(b"north")));
        let low = Bounds::Hashes(HashRange { first: 0, last: 9 });
        assert!(low.contains(Position::Point(9)) && !low.contains(Position::Point(10)));
        let keys = Bounds::Keys(KeyRange::new(Key::empty(), Key::new(b"m").unwrap()).unwrap());
        assert!(keys.contains(Position::Key(b"lzz")) && !keys.contains(Position::Key(b"m")));
    }

    #[test]
    fn a_sharding_takes_only_bounds_of_its_kind_that_its_hash_can_tell_apart() {
        let fixed = Sharding::Fixed { hash: HashFunction::Crc16, shards: 4 };
        let slot = |number, of| Bounds::Slot(Slot::new(number, of).unwrap());
        assert!(fixed.fits(&slot(3, 4)) && fixed.fits(&slot(9, 16_384)) && !fixed.fits(&slot(9, 16_385)));
        assert!(!Sharding::KeyRange.fits(&slot(0, 1)));
        assert!(Sharding::KeyRange.fits(&Bounds::Keys(KeyRange::all())));
    }

    #[test]
    fn impossible_fixed_counts_are_refused_at_their_edges() {
        let fixed = |hash, shards| Sharding::Fixed { hash, shards }.check();
        assert_eq!(fixed(HASH, 0), Err(ShardingError::NoShards));
        let max = limits::SHARDS as u32;
        assert_eq!(fixed(HASH, max), Ok(()));
        assert!(matches!(fixed(HASH, max + 1), Err(ShardingError::TooManyShards { .. })));
        assert_eq!(fixed(HashFunction::Crc16, 16_384), Ok(()));
        assert!(matches!(fixed(HashFunction::Crc16, 16_385), Err(ShardingError::HashTooNarrow { .. })));
    }
}
