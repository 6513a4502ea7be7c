//! Where a scan of a table goes on: a place in the order of its shards, and a key, in [the frame of tokens](crate::token_frame).
//!
//! ```text
//! kind of place u8 · place · key
//! ```
//!
//! A place is the lower bound of a shard, not its id, so that a token stays good when shards are split.

use crate::stored::cursor::Cursor;
use crate::token_frame::{TokenError, TokenFrame};
use bytes::BufMut;
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::{Bounds, Position, Sharding};
use partage_core::node::exchange::KeyspaceBrief;

const FRAME: TokenFrame =
    TokenFrame { name: "a token of a scan", version: 1, anew: "leave token out to begin at the first row" };

const KEY: u8 = 1;
const POINT: u8 = 2;
const SLOT: u8 = 3;

/// The lower bound of a shard, or any other place in the order of the shards.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// A partition key, of a table that is sharded by ranges of keys.
    Key(Key),
    /// A point of the hash space.
    Point(u64),
    /// A slot of a fixed number.
    Slot(u32),
}

impl Place {
    /// Where the first shard begins; none of named partitions, which have no order that a scan could follow.
    pub(crate) fn first(sharding: Sharding) -> Option<Place> {
        match sharding {
            Sharding::KeyRange => Some(Place::Key(Key::empty())),
            Sharding::HashRange { .. } => Some(Place::Point(0)),
            Sharding::Fixed { .. } => Some(Place::Slot(0)),
            Sharding::Named => None,
        }
    }

    /// Where the shard behind this one begins; none: this is the last one.
    pub(crate) fn behind(bounds: &Bounds) -> Option<Place> {
        match bounds {
            Bounds::Keys(range) => (!range.end.is_empty()).then(|| Place::Key(range.end.clone())),
            Bounds::Hashes(range) => range.last.checked_add(1).map(Place::Point),
            Bounds::Slot(slot) => (slot.number() + 1 < slot.of()).then(|| Place::Slot(slot.number() + 1)),
            Bounds::Name(_) => None,
        }
    }

    pub(crate) fn position(&self) -> Position<'_> {
        match self {
            Place::Key(key) => Position::Key(key.as_bytes()),
            Place::Point(point) => Position::Point(*point),
            Place::Slot(slot) => Position::Value((*slot).into()),
        }
    }

    /// Appends it to a token.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        match self {
            Place::Key(key) => {
                bytes.put_u8(KEY);
                bytes.put_u16(u16::try_from(key.as_bytes().len()).unwrap_or(u16::MAX));
                bytes.put_slice(key.as_bytes());
            }
            Place::Point(point) => {
                bytes.put_u8(POINT);
                bytes.put_u64(*point);
            }
            Place::Slot(slot) => {
                bytes.put_u8(SLOT);
                bytes.put_u32(*slot);
            }
        }
    }

    /// Reads it from a token; none: there is none.
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Option<Place> {
        match cursor.u8("the kind of a place").ok()? {
            KEY => {
                let length = cursor.u16("the length of a key").ok()?;
                Some(Place::Key(Key::new(cursor.bytes(length.into(), "a key").ok()?).ok()?))
            }
            POINT => cursor.u64("a point").ok().map(Place::Point),
            SLOT => cursor.u32("a slot").ok().map(Place::Slot),
            _ => None,
        }
    }

    /// Whether a table of that sharding has such places.
    pub(crate) fn is_of(&self, sharding: Sharding) -> bool {
        match sharding {
            Sharding::KeyRange => matches!(self, Place::Key(_)),
            Sharding::HashRange { .. } => matches!(self, Place::Point(_)),
            Sharding::Fixed { shards, .. } => matches!(self, Place::Slot(slot) if *slot < shards),
            Sharding::Named => false,
        }
    }
}

/// Where a scan goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub(super) table: KeyspaceName,
    pub(super) first_shard: ShardId,
    pub(super) place: Place,
    /// The first key that is still wanted of the shard at that place.
    pub(super) key: Key,
}

impl Token {
    /// The token as text, for `next` of a page; the client sends it back as `token`.
    pub fn text(&self) -> String {
        FRAME.text(&self.table, self.first_shard, |bytes| {
            self.place.put(bytes);
            bytes.put_slice(self.key.as_bytes());
        })
    }

    /// Reads a text.
    ///
    /// # Errors
    /// It is none that [`Token::text`] gives.
    pub fn parse(text: &str) -> Result<Token, TokenError> {
        FRAME.parse(text, |table, first_shard, cursor| {
            let place = Place::read(cursor)?;
            let key = Key::new(cursor.rest()).ok()?;
            Some(Token { table, first_shard, place, key })
        })
    }

    /// Whether it may be used with a table.
    pub(super) fn check(&self, brief: &KeyspaceBrief) -> Result<(), TokenError> {
        FRAME.check((&self.table, self.first_shard), brief, self.place.is_of(brief.sharding))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token_frame::tests::spoilt;
    use proptest::prelude::*;

    fn place() -> impl Strategy<Value = Place> {
        prop_oneof![
            any::<Vec<u8>>().prop_map(|key| Place::Key(Key::new(&key).expect("short"))),
            any::<u64>().prop_map(Place::Point),
            any::<u32>().prop_map(Place::Slot),
        ]
    }

    proptest! {
        #[test]
        fn a_token_comes_back_and_a_changed_one_does_not(
            name in "[a-z]{1,20}", first in any::<u64>(), place in place(), key in any::<Vec<u8>>(),
            at in any::<prop::sample::Index>(), by in 1u8..=255,
        ) {
            let (table, key) = (KeyspaceName::new(&name).unwrap(), Key::new(&key).unwrap());
            let token = Token { table, first_shard: ShardId(first), place, key };
            let text = token.text();
            prop_assert_eq!(Token::parse(&text), Ok(token));
            for spoilt in spoilt(&text, at, by) {
                prop_assert_eq!(Token::parse(&spoilt), Err(TokenError::Damaged(FRAME.anew)));
            }
        }
    }
}
