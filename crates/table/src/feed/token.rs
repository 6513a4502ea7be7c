//! Where a reader of a feed goes on: what it has of each part of the table.
//!
//! ```text
//! version u8 · name length u8 · name of the table · first shard u64 · parts u32 · ( bounds · since ) for each · checksum u32
//! since   1 oldest, 2 now, 3 after: epoch u64 · index u64, 4 after a part of an entry: epoch u64 · index u64 · bytes u16 · key
//! ```
//!
//! The text is base64url without padding, as that of scans. Bounds are those of the shards that were read, and the token stays good
//! when these are split and merged.

use crate::scans::checksum;
use crate::stored::bounds;
use crate::stored::cursor::Cursor;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::BufMut;
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::key::Key;
use partage_core::node::exchange::KeyspaceBrief;
use partage_core::service::table::feed::{Part, Progress, Reached, Since};

const VERSION: u8 = 1;
const OLDEST: u8 = 1;
const NOW: u8 = 2;
const AFTER: u8 = 3;
const WITHIN: u8 = 4;

/// A token of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedToken {
    pub(super) table: KeyspaceName,
    pub(super) first_shard: ShardId,
    pub(super) progress: Progress,
}

/// A token that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FeedTokenError {
    /// It is no token of a feed, or one that was changed or cut.
    #[error(
        "the token is damaged: give `next` of the last page as it is, or leave `after` out to begin at the oldest change"
    )]
    Damaged,
    /// It is of another table.
    #[error(
        "the token is of table {of}, not of table {asked}: give the `next` of a page of this table's feed"
    )]
    OtherTable {
        /// What it is of.
        of: KeyspaceName,
        /// What is read.
        asked: KeyspaceName,
    },
    /// The table was dropped and created anew.
    #[error(
        "table {0} was created anew after the token was given: leave `after` out to begin at the oldest change"
    )]
    FormerTable(KeyspaceName),
}

impl FeedToken {
    /// As text.
    pub fn text(&self) -> String {
        let name = self.table.as_str().as_bytes();
        let mut bytes = vec![VERSION, u8::try_from(name.len()).unwrap_or(u8::MAX)];
        bytes.extend_from_slice(name);
        bytes.put_u64(self.first_shard.0);
        let parts = self.progress.parts();
        bytes.put_u32(u32::try_from(parts.len()).unwrap_or(u32::MAX));
        for part in parts {
            bounds::put(&mut bytes, &part.bounds);
            put_since(&mut bytes, &part.since);
        }
        bytes.put_u32(checksum(&bytes));
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// It is none that [`FeedToken::text`] gives.
    pub fn parse(text: &str) -> Result<FeedToken, FeedTokenError> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| FeedTokenError::Damaged)?;
        let (whole, sum) = bytes.split_last_chunk::<4>().ok_or(FeedTokenError::Damaged)?;
        if u32::from_be_bytes(*sum) != checksum(whole) {
            return Err(FeedTokenError::Damaged);
        }
        decode(whole).ok_or(FeedTokenError::Damaged)
    }

    /// Whether it may be used with a table.
    pub(super) fn check(&self, brief: &KeyspaceBrief) -> Result<(), FeedTokenError> {
        if self.table != brief.name {
            return Err(FeedTokenError::OtherTable { of: self.table.clone(), asked: brief.name.clone() });
        }
        let fits = self.progress.parts().iter().all(|part| brief.sharding.fits(&part.bounds));
        if self.first_shard != brief.first_shard || !fits {
            return Err(FeedTokenError::FormerTable(brief.name.clone()));
        }
        Ok(())
    }
}

fn put_since(bytes: &mut Vec<u8>, since: &Since) {
    let reached = match since {
        Since::Oldest => return bytes.put_u8(OLDEST),
        Since::Now => return bytes.put_u8(NOW),
        Since::After(reached) => reached,
    };
    bytes.put_u8(if reached.key.is_some() { WITHIN } else { AFTER });
    bytes.put_u64(reached.entry.epoch.0);
    bytes.put_u64(reached.entry.index);
    if let Some(key) = &reached.key {
        bytes.put_u16(u16::try_from(key.as_bytes().len()).unwrap_or(u16::MAX));
        bytes.put_slice(key.as_bytes());
    }
}

fn decode(bytes: &[u8]) -> Option<FeedToken> {
    let mut cursor = Cursor::begin("a token of a feed", bytes, VERSION).ok()?;
    let length = cursor.u8("the length of a name").ok()?;
    let name = std::str::from_utf8(cursor.bytes(length.into(), "a name").ok()?).ok()?;
    let table = KeyspaceName::new(name).ok()?;
    let first_shard = ShardId(cursor.u64("the first shard").ok()?);
    let count = cursor.u32("the count of parts").ok()?;
    let mut parts = Vec::new();
    for _ in 0..count {
        let bounds = bounds::read(&mut cursor).ok()?;
        parts.push(Part { bounds, since: since(&mut cursor)? });
    }
    cursor.end().ok()?;
    Some(FeedToken { table, first_shard, progress: Progress::new(parts) })
}

fn since(cursor: &mut Cursor<'_>) -> Option<Since> {
    let kind = cursor.u8("from where on").ok()?;
    match kind {
        OLDEST => return Some(Since::Oldest),
        NOW => return Some(Since::Now),
        AFTER | WITHIN => {}
        _ => return None,
    }
    let entry = cursor.position("what is read").ok()?;
    let key = match kind {
        WITHIN => {
            let length = cursor.u16("the length of a key").ok()?;
            Some(Key::new(cursor.bytes(length.into(), "a key").ok()?).ok()?)
        }
        _ => None,
    };
    Some(Since::After(Reached { entry, key }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::Epoch;
    use partage_core::keyspace::key::HashRange;
    use partage_core::keyspace::sharding::Bounds;
    use partage_core::service::table::replication::LogPosition;
    use proptest::prelude::*;

    fn since() -> impl Strategy<Value = Since> {
        let after = (any::<u64>(), any::<u64>(), any::<Option<Vec<u8>>>()).prop_map(|(epoch, index, key)| {
            let key = key.map(|key| Key::new(&key).expect("short"));
            Since::After(Reached { entry: LogPosition { epoch: Epoch(epoch), index }, key })
        });
        prop_oneof![Just(Since::Oldest), Just(Since::Now), after]
    }

    proptest! {
        #[test]
        fn a_token_comes_back_and_a_changed_one_does_not(
            name in "[a-z]{1,20}", first in any::<u64>(), parts in proptest::collection::vec(since(), 1..9),
            at in any::<prop::sample::Index>(), by in 1u8..=255,
        ) {
            let part = |(number, since): (u64, Since)| {
                Part { bounds: Bounds::Hashes(HashRange { first: number * 10, last: number * 10 + 9 }), since }
            };
            let progress = Progress::new((0..).zip(parts).map(part).collect());
            let table = KeyspaceName::new(&name).unwrap();
            let token = FeedToken { table, first_shard: ShardId(first), progress };
            let text = token.text();
            prop_assert_eq!(FeedToken::parse(&text), Ok(token));
            let mut bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= by;
            prop_assert_eq!(FeedToken::parse(&URL_SAFE_NO_PAD.encode(&bytes)), Err(FeedTokenError::Damaged));
            prop_assert_eq!(FeedToken::parse(&text[..text.len() - 1]), Err(FeedTokenError::Damaged));
        }
    }
}
