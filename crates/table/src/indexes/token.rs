//! Where a query of an index goes on: a place in the index, which is the same whatever becomes of shards, in
//! [the frame of tokens](crate::token_frame).
//!
//! ```text
//! index u64 · place
//! ```

use crate::token_frame::{TokenError, TokenFrame};
use bytes::BufMut;
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;
use partage_core::node::exchange::KeyspaceBrief;
use partage_core::service::table::index::IndexId;

const FRAME: TokenFrame = TokenFrame {
    name: "a token of an index",
    // Which no token of a scan has.
    version: 65,
    anew: "leave token out to begin at the first row",
};

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
        FRAME.text(&self.table, self.first_shard, |bytes| {
            bytes.put_u64(self.index.0);
            bytes.put_slice(&self.place);
        })
    }

    /// Reads a text.
    ///
    /// # Errors
    /// It is none that [`IndexToken::text`] gives.
    pub fn parse(text: &str) -> Result<IndexToken, TokenError> {
        FRAME.parse(text, |table, first_shard, cursor| {
            let index = IndexId(cursor.u64("the index").ok()?);
            Some(IndexToken { table, first_shard, index, place: cursor.rest().to_vec() })
        })
    }

    /// Whether it may be used with a table.
    pub(super) fn check(&self, brief: &KeyspaceBrief) -> Result<(), TokenError> {
        FRAME.check((&self.table, self.first_shard), brief, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token_frame::tests::spoilt;
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
            for spoilt in spoilt(&text, at, by) {
                prop_assert_eq!(IndexToken::parse(&spoilt), Err(TokenError::Damaged(FRAME.anew)));
            }
            prop_assert!(crate::scans::Token::parse(&text).is_err(), "no token of a scan");
        }
    }
}
