//! Shardings, partition keys and bounds.

use crate::Malformed;
use crate::malformed::At;
use crate::proto::{self, bounds, partition_key, sharding};
use partage_core::base::name::PartitionName;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::{HashRange, Key, KeyRange};
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding, Slot};

impl From<Sharding> for proto::Sharding {
    fn from(sharding: Sharding) -> Self {
        use sharding::{Fixed, Kind, Named};
        let kind = match sharding {
            Sharding::KeyRange => Kind::KeyRange(sharding::KeyRange {}),
            Sharding::HashRange { hash } => {
                Kind::HashRange(sharding::HashRange { hash: hash.name().to_owned() })
            }
            Sharding::Fixed { hash, shards } => Kind::Fixed(Fixed { hash: hash.name().to_owned(), shards }),
            Sharding::Named => Kind::Named(Named {}),
        };
        proto::Sharding { kind: Some(kind) }
    }
}

impl TryFrom<proto::Sharding> for Sharding {
    type Error = Malformed;
    fn try_from(form: proto::Sharding) -> Result<Self, Malformed> {
        use sharding::Kind;
        let hash = |name: &str| name.parse::<HashFunction>().at("hash");
        let sharding = match form.kind {
            Some(Kind::KeyRange(_)) => Sharding::KeyRange,
            Some(Kind::HashRange(by)) => Sharding::HashRange { hash: hash(&by.hash)? },
            Some(Kind::Fixed(by)) => Sharding::Fixed { hash: hash(&by.hash)?, shards: by.shards },
            Some(Kind::Named(_)) => Sharding::Named,
            None => {
                return Err(Malformed::new("kind", "is missing: give key_range, hash_range, fixed or named"));
            }
        };
        // Fields have the names that the JSON form has, so that errors are the same in both.
        sharding.check().at("shards")?;
        Ok(sharding)
    }
}

impl From<PartitionKey> for proto::PartitionKey {
    fn from(by: PartitionKey) -> Self {
        use partition_key::{HashTag, Kind, Whole};
        let kind = match by {
            PartitionKey::Whole => Kind::Whole(Whole {}),
            PartitionKey::Prefix { bytes } => Kind::PrefixBytes(bytes.into()),
            PartitionKey::UpTo { delimiter } => Kind::UpToDelimiter(delimiter.into()),
            PartitionKey::HashTag => Kind::HashTag(HashTag {}),
        };
        proto::PartitionKey { kind: Some(kind) }
    }
}

impl TryFrom<proto::PartitionKey> for PartitionKey {
    type Error = Malformed;
    fn try_from(form: proto::PartitionKey) -> Result<Self, Malformed> {
        use partition_key::Kind;
        Ok(match form.kind {
            None | Some(Kind::Whole(_)) => PartitionKey::Whole,
            Some(Kind::PrefixBytes(bytes)) => {
                PartitionKey::Prefix { bytes: u16::try_from(bytes).at("prefix_bytes")? }
            }
            Some(Kind::UpToDelimiter(byte)) => {
                PartitionKey::UpTo { delimiter: u8::try_from(byte).at("up_to_delimiter")? }
            }
            Some(Kind::HashTag(_)) => PartitionKey::HashTag,
        })
    }
}

impl From<&Bounds> for proto::Bounds {
    fn from(bounds: &Bounds) -> Self {
        use bounds::{Hashes, Keys, Kind, Slot};
        let kind = match bounds {
            Bounds::Keys(range) => Kind::Keys(Keys {
                begin: range.begin.as_bytes().to_vec(),
                end: range.end.as_bytes().to_vec(),
            }),
            Bounds::Hashes(range) => Kind::Hashes(Hashes { first: range.first, last: range.last }),
            Bounds::Slot(slot) => Kind::Slot(Slot { number: slot.number(), of: slot.of() }),
            Bounds::Name(name) => Kind::Name(name.to_string()),
        };
        proto::Bounds { kind: Some(kind) }
    }
}

impl TryFrom<proto::Bounds> for Bounds {
    type Error = Malformed;
    fn try_from(form: proto::Bounds) -> Result<Self, Malformed> {
        after(form, &Key::empty())
    }
}

/// The bounds; their begin shares its bytes with `before` when it is that key, so that the neighbours in a
/// map keep each boundary once.
pub(crate) fn after(form: proto::Bounds, before: &Key) -> Result<Bounds, Malformed> {
    use bounds::Kind;
    match form.kind {
        Some(Kind::Keys(keys)) => {
            let begin = match keys.begin == before.as_bytes() {
                true => before.clone(),
                false => Key::new(&keys.begin).at("keys.begin")?,
            };
            let end = Key::new(&keys.end).at("keys.end")?;
            Ok(Bounds::Keys(KeyRange::new(begin, end).at("keys")?))
        }
        Some(Kind::Hashes(range)) if range.first <= range.last => {
            Ok(Bounds::Hashes(HashRange { first: range.first, last: range.last }))
        }
        Some(Kind::Hashes(_)) => {
            Err(Malformed::new("hashes", "are the wrong way round: first must not be above last"))
        }
        Some(Kind::Slot(slot)) => Ok(Bounds::Slot(Slot::new(slot.number, slot.of).at("slot")?)),
        Some(Kind::Name(name)) => Ok(Bounds::Name(PartitionName::new(&name).at("name")?)),
        None => Err(Malformed::new("kind", "is missing: give keys, hashes, slot or name")),
    }
}
