//! Where a query of an index goes on, in [the frame of tokens](crate::token_frame): a place in the index, which is the same
//! whatever becomes of shards; and of a query that does not go through all rows in the order of values, what it goes through.
//!
//! ```text
//! index u64 · kind u8 · ( what that kind has ) · place
//!
//! 1 all rows, by value
//! 2 the rows of a partition key    bytes u16 · key
//! 3 all rows, in any order         slots u32 · segment
//!   segment: 1 shard u64 · 2 place, to the end of its shard · 3 place · place · 4 place, to the end of the table
//! ```

use super::page::IndexOrder;
use super::walk::{End, Segment};
use crate::scans::Place;
use crate::stored::cursor::Cursor;
use crate::token_frame::{TokenError, TokenFrame};
use bytes::BufMut;
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::Sharding;
use partage_core::node::exchange::KeyspaceBrief;
use partage_service::table::index::IndexId;

const FRAME: TokenFrame = TokenFrame {
    name: "a token of an index",
    // No token of a scan has this version.
    version: 66,
    anew: "leave token out to begin at the first row",
};

const ALL: u8 = 1;
const OF_KEY: u8 = 2;
const WALK: u8 = 3;

const PARTITION: u8 = 1;
const TO_SHARD_END: u8 = 2;
const TO_PLACE: u8 = 3;
const TO_TABLE_END: u8 = 4;

/// Where a query goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexToken {
    pub(super) table: KeyspaceName,
    pub(super) first_shard: ShardId,
    pub(super) index: IndexId,
    /// Only rows with the partition key of this key.
    pub(super) partition_key: Option<Key>,
    /// The segment that a query in any order is in.
    pub(super) segment: Option<Segment>,
    /// How many slots the table has, if it is sharded so and the query is in any order; else 0.
    pub(super) slots: u32,
    pub(super) place: Vec<u8>,
}

impl IndexToken {
    /// How many slots a table has; 0 of other shardings.
    pub(super) fn slots(brief: &KeyspaceBrief) -> u32 {
        match brief.sharding {
            Sharding::Fixed { shards, .. } => shards,
            Sharding::KeyRange | Sharding::HashRange { .. } | Sharding::Named => 0,
        }
    }

    /// The token as text, for `next` of a page; the client sends it back as `token`.
    pub fn text(&self) -> String {
        FRAME.text(&self.table, self.first_shard, |bytes| {
            bytes.put_u64(self.index.0);
            match (&self.partition_key, &self.segment) {
                (Some(key), _) => {
                    bytes.put_u8(OF_KEY);
                    bytes.put_u16(u16::try_from(key.as_bytes().len()).unwrap_or(u16::MAX));
                    bytes.put_slice(key.as_bytes());
                }
                (None, Some(segment)) => {
                    bytes.put_u8(WALK);
                    bytes.put_u32(self.slots);
                    put_segment(bytes, segment);
                }
                (None, None) => bytes.put_u8(ALL),
            }
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
            let (mut partition_key, mut segment, mut slots) = (None, None, 0);
            match cursor.u8("the kind of a query").ok()? {
                ALL => {}
                OF_KEY => {
                    let length = cursor.u16("the length of a key").ok()?;
                    partition_key = Some(Key::new(cursor.bytes(length.into(), "a key").ok()?).ok()?);
                }
                WALK => {
                    slots = cursor.u32("the count of slots").ok()?;
                    segment = Some(read_segment(cursor)?);
                }
                _ => return None,
            }
            let place = cursor.rest().to_vec();
            Some(IndexToken { table, first_shard, index, partition_key, segment, slots, place })
        })
    }

    /// Whether it may be used with a table.
    pub(super) fn check(&self, brief: &KeyspaceBrief) -> Result<(), TokenError> {
        let fits = self
            .segment
            .as_ref()
            .is_none_or(|segment| segment.is_of(brief.sharding) && self.slots == IndexToken::slots(brief));
        FRAME.check((&self.table, self.first_shard), brief, fits)
    }

    /// The partition key and the order of the query that it goes on with. A request with the token need not name them again.
    ///
    /// # Errors
    /// The request names other ones than the token.
    pub(crate) fn settle(
        &self,
        partition_key: Option<Key>,
        order: Option<IndexOrder>,
    ) -> Result<(Option<Key>, IndexOrder), String> {
        let way_out = "give what the first page had, or leave token out to begin anew";
        if partition_key.is_some() && partition_key != self.partition_key {
            return Err(format!("the token is of a query with another partition_key: {way_out}"));
        }
        let own = if self.segment.is_some() { IndexOrder::Any } else { IndexOrder::Value };
        // The order of the rows of one partition key is always that of values.
        if self.partition_key.is_none() && order.is_some_and(|order| order != own) {
            return Err(format!("the token is of a query with another order: {way_out}"));
        }
        Ok((self.partition_key.clone(), own))
    }
}

fn put_segment(bytes: &mut Vec<u8>, segment: &Segment) {
    match segment {
        Segment::Partition(shard) => {
            bytes.put_u8(PARTITION);
            bytes.put_u64(shard.0);
        }
        Segment::Stretch(from, End::OfShard) => {
            bytes.put_u8(TO_SHARD_END);
            from.put(bytes);
        }
        Segment::Stretch(from, End::Before(to)) => {
            bytes.put_u8(TO_PLACE);
            from.put(bytes);
            to.put(bytes);
        }
        Segment::Stretch(from, End::OfTable) => {
            bytes.put_u8(TO_TABLE_END);
            from.put(bytes);
        }
    }
}

fn read_segment(cursor: &mut Cursor<'_>) -> Option<Segment> {
    Some(match cursor.u8("the kind of a segment").ok()? {
        PARTITION => Segment::Partition(ShardId(cursor.u64("a shard").ok()?)),
        TO_SHARD_END => Segment::Stretch(Place::read(cursor)?, End::OfShard),
        TO_PLACE => Segment::Stretch(Place::read(cursor)?, End::Before(Place::read(cursor)?)),
        TO_TABLE_END => Segment::Stretch(Place::read(cursor)?, End::OfTable),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token_frame::tests::spoilt;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Key> {
        any::<Vec<u8>>().prop_map(|key| Key::new(&key).expect("short"))
    }

    fn place() -> impl Strategy<Value = Place> {
        prop_oneof![
            key().prop_map(Place::Key),
            any::<u64>().prop_map(Place::Point),
            any::<u32>().prop_map(Place::Slot)
        ]
    }

    fn segment() -> impl Strategy<Value = Segment> {
        let end = prop_oneof![Just(End::OfShard), place().prop_map(End::Before), Just(End::OfTable)];
        prop_oneof![
            (place(), end).prop_map(|(from, end)| Segment::Stretch(from, end)),
            any::<u64>().prop_map(|shard| Segment::Partition(ShardId(shard)))
        ]
    }

    /// What a query goes through.
    fn kind() -> impl Strategy<Value = (Option<Key>, Option<Segment>, u32)> {
        prop_oneof![
            Just((None, None, 0)),
            key().prop_map(|key| (Some(key), None, 0)),
            (segment(), any::<u32>()).prop_map(|(segment, slots)| (None, Some(segment), slots))
        ]
    }

    proptest! {
        #[test]
        fn a_token_comes_back_and_a_changed_one_does_not(
            name in "[a-z]{1,20}", first in any::<u64>(), index in any::<u64>(), place in any::<Vec<u8>>(),
            kind in kind(), at in any::<prop::sample::Index>(), by in 1u8..=255,
        ) {
            let (table, index) = (KeyspaceName::new(&name).unwrap(), IndexId(index));
            let (partition_key, segment, slots) = kind;
            let token =
                IndexToken { table, first_shard: ShardId(first), index, partition_key, segment, slots, place };
            let text = token.text();
            prop_assert_eq!(IndexToken::parse(&text), Ok(token));
            for spoilt in spoilt(&text, at, by) {
                prop_assert_eq!(IndexToken::parse(&spoilt), Err(TokenError::Damaged(FRAME.anew)));
            }
            prop_assert!(crate::scans::Token::parse(&text).is_err(), "no token of a scan");
        }
    }

    #[test]
    fn a_request_with_a_token_goes_on_with_the_same_rows_in_the_same_order() {
        let of = |partition_key: Option<&Key>, segment| IndexToken {
            table: KeyspaceName::new("stock").unwrap(),
            first_shard: ShardId(1),
            index: IndexId(2),
            partition_key: partition_key.cloned(),
            segment,
            slots: 0,
            place: Vec::new(),
        };
        let [one, other] = [b"one".as_slice(), b"other"].map(|key| Key::new(key).unwrap());
        let (value, any) = (IndexOrder::Value, IndexOrder::Any);
        let all = of(None, None);
        assert_eq!(all.settle(None, None), Ok((None, value)));
        assert!(all.settle(Some(one.clone()), None).is_err() && all.settle(None, Some(any)).is_err());
        let of_key = of(Some(&one), None);
        assert_eq!(of_key.settle(None, None), Ok((Some(one.clone()), value)));
        assert_eq!(of_key.settle(Some(one.clone()), Some(any)), Ok((Some(one), value)));
        assert!(of_key.settle(Some(other), None).is_err());
        let walk = of(None, Some(Segment::Partition(ShardId(3))));
        assert_eq!(walk.settle(None, Some(any)), Ok((None, any)));
        assert!(walk.settle(None, Some(value)).is_err());
    }
}
