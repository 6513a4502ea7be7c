//! Where a query of an index goes on: a place in the index, which is the same whatever becomes of shards.
//!
//! ```text
//! version u8 · name length u8 · name of the table · first shard u64 · index u64 · place · checksum u32
//! ```
//!
//! The text is base64url without padding. The first shard tells a table from a dropped one of the same name.

use crate::scans::{TokenError, checksum};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{Buf, BufMut};
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;
use partage_core::node::exchange::KeyspaceBrief;
use partage_core::service::table::index::IndexId;

/// Which no token of a scan has.
const VERSION: u8 = 65;

/// Where a query goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexToken {
    pub(super) table: KeyspaceName,
    pub(super) first_shard: ShardId,
    pub(super) index: IndexId,
    pub(super) place: Vec<u8>,
}

impl IndexToken {
    /// As text.
    pub fn text(&self) -> String {
        let name = self.table.as_str().as_bytes();
        let mut bytes = vec![VERSION, u8::try_from(name.len()).unwrap_or(u8::MAX)];
        bytes.extend_from_slice(name);
        bytes.put_u64(self.first_shard.0);
        bytes.put_u64(self.index.0);
        bytes.extend_from_slice(&self.place);
        bytes.put_u32(checksum(&bytes));
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// It is none that [`IndexToken::text`] gives.
    pub fn parse(text: &str) -> Result<IndexToken, TokenError> {
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
        if self.first_shard != brief.first_shard {
            return Err(TokenError::FormerTable(brief.name.clone()));
        }
        Ok(())
    }
}

fn decode(mut bytes: &[u8]) -> Option<IndexToken> {
    if bytes.try_get_u8().ok()? != VERSION {
        return None;
    }
    let length = bytes.try_get_u8().ok()?;
    let (name, mut rest) = bytes.split_at_checked(length.into())?;
    let table = KeyspaceName::new(std::str::from_utf8(name).ok()?).ok()?;
    let first_shard = ShardId(rest.try_get_u64().ok()?);
    let index = IndexId(rest.try_get_u64().ok()?);
    Some(IndexToken { table, first_shard, index, place: rest.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_token_comes_back_and_a_changed_one_does_not(
            name in "[a-z]{1,20}", first in any::<u64>(), index in any::<u64>(), place in any::<Vec<u8>>(),
            at in any::<prop::sample::Index>(), by in 1u8..=255,
        ) {
            let table = KeyspaceName::new(&name).unwrap();
            let token = IndexToken { table, first_shard: ShardId(first), index: IndexId(index), place };
            let text = token.text();
            prop_assert_eq!(IndexToken::parse(&text), Ok(token));
            let mut bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= by;
            prop_assert_eq!(IndexToken::parse(&URL_SAFE_NO_PAD.encode(&bytes)), Err(TokenError::Damaged));
            prop_assert!(crate::scans::Token::parse(&text).is_err(), "no token of a scan");
        }
    }
}
