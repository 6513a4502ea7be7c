//! Where a reader of a feed goes on: what it has of each part of the table, in [the frame of tokens](crate::token_frame).
//!
//! ```text
//! parts u32 · ( bounds · since ) for each
//! since   1 oldest, 2 now, 3 after: epoch u64 · index u64, 4 after a part of an entry: epoch u64 · index u64 · bytes u16 · key
//! ```
//!
//! Bounds are those of the shards that were read, and the token stays good when these are split and merged.

use crate::stored::bounds;
use crate::stored::cursor::Cursor;
use crate::token_frame::{TokenError, TokenFrame};
use bytes::BufMut;
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::key::Key;
use partage_core::node::exchange::KeyspaceBrief;
use partage_service::table::feed::{Part, Progress, Reached, Since};

const FRAME: TokenFrame = TokenFrame {
    name: "a token of a feed",
    version: 1,
    anew: "leave `after` out to begin at the oldest change",
};

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

impl FeedToken {
    /// The token as text, for `next` of a page; the client sends it back as `after`.
    pub fn text(&self) -> String {
        FRAME.text(&self.table, self.first_shard, |bytes| {
            let parts = self.progress.parts();
            bytes.put_u32(u32::try_from(parts.len()).unwrap_or(u32::MAX));
            for part in parts {
                bounds::put(bytes, &part.bounds);
                put_since(bytes, &part.since);
            }
        })
    }

    /// Reads a text.
    ///
    /// # Errors
    /// It is none that [`FeedToken::text`] gives.
    pub fn parse(text: &str) -> Result<FeedToken, TokenError> {
        FRAME.parse(text, |table, first_shard, cursor| {
            let count = cursor.u32("the count of parts").ok()?;
            let mut parts = Vec::new();
            for _ in 0..count {
                let bounds = bounds::read(cursor).ok()?;
                parts.push(Part { bounds, since: since(cursor)? });
            }
            Some(FeedToken { table, first_shard, progress: Progress::new(parts) })
        })
    }

    /// Whether it may be used with a table.
    pub(super) fn check(&self, brief: &KeyspaceBrief) -> Result<(), TokenError> {
        let fits = self.progress.parts().iter().all(|part| brief.sharding.fits(&part.bounds));
        FRAME.check((&self.table, self.first_shard), brief, fits)
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
    use crate::token_frame::tests::spoilt;
    use partage_core::base::id::Epoch;
    use partage_core::keyspace::key::HashRange;
    use partage_core::keyspace::sharding::Bounds;
    use partage_service::table::replication::LogPosition;
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
            for spoilt in spoilt(&text, at, by) {
                prop_assert_eq!(FeedToken::parse(&spoilt), Err(TokenError::Damaged(FRAME.anew)));
            }
        }
    }
}
