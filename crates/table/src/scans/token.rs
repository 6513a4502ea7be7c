//! Where a scan of a table goes on: a place in the order of its shards, and a key.
//!
//! ```text
//! version u8 · name length u8 · name of the table · first shard u64 · kind of place u8 · place · key · checksum u32
//! ```
//!
//! The text is base64url without padding. The first shard tells a table from a dropped one of the same name. A place is the
//! lower bound of a shard, not its id, so that a token stays good when shards are split.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{Buf, BufMut};
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::{Bounds, Position, Sharding};
use partage_core::node::exchange::KeyspaceBrief;
use xxhash_rust::xxh3::xxh3_64;

const VERSION: u8 = 1;
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
    pub(super) fn first(sharding: Sharding) -> Option<Place> {
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

    pub(super) fn position(&self) -> Position<'_> {
        match self {
            Place::Key(key) => Position::Key(key.as_bytes()),
            Place::Point(point) => Position::Point(*point),
            Place::Slot(slot) => Position::Value((*slot).into()),
        }
    }

    fn is_of(&self, sharding: Sharding) -> bool {
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

/// A token that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is no token, or one that was changed or cut.
    #[error(
        "the token is damaged: give `next` of the last page as it is, or leave token out to begin at the first row"
    )]
    Damaged,
    /// It is of another table.
    #[error("the token is of table {of}, not of table {asked}: give the `next` of a page of this table")]
    OtherTable {
        /// What it is of.
        of: KeyspaceName,
        /// What is scanned.
        asked: KeyspaceName,
    },
    /// The table was dropped and created anew.
    #[error(
        "table {0} was created anew after the token was given: leave token out to begin at the first row"
    )]
    FormerTable(KeyspaceName),
}

impl Token {
    /// As text.
    pub fn text(&self) -> String {
        let name = self.table.as_str().as_bytes();
        let mut bytes = vec![VERSION, u8::try_from(name.len()).unwrap_or(u8::MAX)];
        bytes.extend_from_slice(name);
        bytes.put_u64(self.first_shard.0);
        match &self.place {
            Place::Key(key) => {
                bytes.put_u8(KEY);
                bytes.put_u16(u16::try_from(key.as_bytes().len()).unwrap_or(u16::MAX));
                bytes.extend_from_slice(key.as_bytes());
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
        bytes.extend_from_slice(self.key.as_bytes());
        bytes.put_u32(checksum(&bytes));
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// It is none that [`Token::text`] gives.
    pub fn parse(text: &str) -> Result<Token, TokenError> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenError::Damaged)?;
        let (whole, sum) = bytes.split_last_chunk::<4>().ok_or(TokenError::Damaged)?;
        if u32::from_be_bytes(*sum) != checksum(whole) {
            return Err(TokenError::Damaged);
        }
        decode(whole).ok_or(TokenError::Damaged)
    }

    /// Whether it may be used with a table.
    pub(super) fn check(&self, brief: &KeyspaceBrief) -> Result<(), TokenError> {
        if self.table != brief.name {
            return Err(TokenError::OtherTable { of: self.table.clone(), asked: brief.name.clone() });
        }
        if self.first_shard != brief.first_shard || !self.place.is_of(brief.sharding) {
            return Err(TokenError::FormerTable(brief.name.clone()));
        }
        Ok(())
    }
}

pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    // Its low half: against slips, not against malice, which could scan from any key anyway.
    (xxh3_64(bytes) & u64::from(u32::MAX)) as u32
}

fn decode(mut bytes: &[u8]) -> Option<Token> {
    if bytes.try_get_u8().ok()? != VERSION {
        return None;
    }
    let (name, rest) = {
        let length = bytes.try_get_u8().ok()?;
        bytes.split_at_checked(length.into())?
    };
    let table = KeyspaceName::new(std::str::from_utf8(name).ok()?).ok()?;
    bytes = rest;
    let first_shard = ShardId(bytes.try_get_u64().ok()?);
    let place = match bytes.try_get_u8().ok()? {
        KEY => {
            let length = bytes.try_get_u16().ok()?;
            let (key, rest) = bytes.split_at_checked(length.into())?;
            bytes = rest;
            Place::Key(Key::new(key).ok()?)
        }
        POINT => Place::Point(bytes.try_get_u64().ok()?),
        SLOT => Place::Slot(bytes.try_get_u32().ok()?),
        _ => return None,
    };
    Some(Token { table, first_shard, place, key: Key::new(bytes).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
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
            let mut bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= by;
            prop_assert_eq!(Token::parse(&URL_SAFE_NO_PAD.encode(&bytes)), Err(TokenError::Damaged));
            prop_assert_eq!(Token::parse(&text[..text.len() - 1]), Err(TokenError::Damaged));
        }
    }
}
