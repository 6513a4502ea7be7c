//! What all tokens have around them, whatever they say: of a scan, of an index, of a feed.
//!
//! ```text
//! version u8 · name length u8 · name of the table · first shard u64 · ( what the token says ) · checksum u32
//! ```
//!
//! The text is base64url without padding. The first shard tells a table from a dropped one of the same name. The checksum is
//! there against slips, not against malice, which could begin at any place anyway.

use crate::stored::cursor::Cursor;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::BufMut;
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;
use partage_core::node::exchange::KeyspaceBrief;
use xxhash_rust::xxh3::xxh3_64;

/// A token that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is no token, or one that was changed or cut. With the way out.
    #[error("the token is damaged: give `next` of the last page as it is, or {0}")]
    Damaged(&'static str),
    /// The token was given for another table.
    #[error("the token is of table {of}, not of table {asked}: give the `next` of a page of this table")]
    OtherTable {
        /// The table that the token was given for.
        of: KeyspaceName,
        /// The table that the request names.
        asked: KeyspaceName,
    },
    /// The table was dropped and created anew. With the way out.
    #[error("table {0} was created anew after the token was given: {1}")]
    FormerTable(KeyspaceName, &'static str),
}

/// The frame of one kind of tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenFrame {
    /// What such a token is called.
    pub(crate) name: &'static str,
    /// The first byte of such a token, by which kinds of tokens are told apart.
    pub(crate) version: u8,
    /// How a client begins without a token.
    pub(crate) anew: &'static str,
}

impl TokenFrame {
    /// A token of that table as text; `put` puts what it says.
    pub(crate) fn text(
        &self,
        table: &KeyspaceName,
        first_shard: ShardId,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> String {
        let name = table.as_str().as_bytes();
        let mut bytes = vec![self.version, u8::try_from(name.len()).unwrap_or(u8::MAX)];
        bytes.put_slice(name);
        bytes.put_u64(first_shard.0);
        put(&mut bytes);
        bytes.put_u32(checksum(&bytes));
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a text; `read` gets the table, its first shard, and what the token says, which it must read to its end.
    ///
    /// # Errors
    /// It is none that [`TokenFrame::text`] gives.
    pub(crate) fn parse<T>(
        &self,
        text: &str,
        read: impl FnOnce(KeyspaceName, ShardId, &mut Cursor<'_>) -> Option<T>,
    ) -> Result<T, TokenError> {
        let opened = || {
            let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
            let (whole, sum) = bytes.split_last_chunk::<4>()?;
            if u32::from_be_bytes(*sum) != checksum(whole) {
                return None;
            }
            let mut cursor = Cursor::begin(self.name, whole, self.version).ok()?;
            let length = cursor.u8("the length of a name").ok()?;
            let name = std::str::from_utf8(cursor.bytes(length.into(), "a name").ok()?).ok()?;
            let table = KeyspaceName::new(name).ok()?;
            let first_shard = ShardId(cursor.u64("the first shard").ok()?);
            let token = read(table, first_shard, &mut cursor)?;
            cursor.end().ok()?;
            Some(token)
        };
        opened().ok_or(TokenError::Damaged(self.anew))
    }

    /// Whether a token of that table may be used with another one. `fits`: what it says may be said of that table.
    ///
    /// # Errors
    /// The token was given for another table, or for a former one of that name.
    pub(crate) fn check(
        &self,
        (table, first_shard): (&KeyspaceName, ShardId),
        brief: &KeyspaceBrief,
        fits: bool,
    ) -> Result<(), TokenError> {
        if *table != brief.name {
            return Err(TokenError::OtherTable { of: table.clone(), asked: brief.name.clone() });
        }
        if first_shard != brief.first_shard || !fits {
            return Err(TokenError::FormerTable(brief.name.clone(), self.anew));
        }
        Ok(())
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    // The low half of the hash is enough.
    (xxh3_64(bytes) & u64::from(u32::MAX)) as u32
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What becomes of a token of which one byte is another, and of one that lacks its last character.
    pub(crate) fn spoilt(text: &str, at: proptest::sample::Index, by: u8) -> [String; 2] {
        let mut bytes = URL_SAFE_NO_PAD.decode(text).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= by;
        [URL_SAFE_NO_PAD.encode(&bytes), text[..text.len() - 1].to_owned()]
    }

    #[test]
    fn a_token_of_one_kind_is_none_of_another() {
        let (table, form) = (KeyspaceName::new("stock").unwrap(), |version| TokenFrame {
            name: "a token",
            version,
            anew: "begin anew",
        });
        let text = form(7).text(&table, ShardId(3), |bytes| bytes.put_u8(9));
        let read = |table, first, cursor: &mut Cursor<'_>| Some((table, first, cursor.u8("what").ok()?));
        assert_eq!(form(7).parse(&text, read), Ok((table, ShardId(3), 9)));
        assert_eq!(form(8).parse(&text, read), Err(TokenError::Damaged("begin anew")));
        // What is not read to its end is none, either.
        let nothing = form(7).parse(&text, |_, _, _| Some(()));
        assert_eq!(nothing, Err(TokenError::Damaged("begin anew")));
    }
}
