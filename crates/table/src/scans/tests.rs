//! At which shards a scan begins and ends.

use super::*;
use partage_core::base::id::{Generation, TransactionId};
use partage_core::keyspace::Ownership;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::sharding::Position;
use proptest::prelude::*;

fn brief(sharding: Sharding, partition_key: PartitionKey) -> KeyspaceBrief {
    KeyspaceBrief {
        name: KeyspaceName::new("stock").unwrap(),
        sharding,
        partition_key,
        ownership: Ownership::Replicated,
        generation: Generation { transaction: TransactionId([1; 20]), sequence: 1 },
        first_shard: ShardId(7),
        durable: true,
        min_in_sync: 2,
        kind: KeyspaceKind::Table,
        values: partage_core::keyspace::RowValues::Bytes,
        feed_ms: 0,
    }
}

fn key() -> impl Strategy<Value = Key> {
    let byte = prop_oneof![Just(0u8), Just(b'a'), Just(b'b'), Just(b'/'), Just(255u8)];
    proptest::collection::vec(byte, 0..4).prop_map(|bytes| Key::new(&bytes).unwrap())
}

fn partition_key() -> impl Strategy<Value = PartitionKey> {
    prop_oneof![
        Just(PartitionKey::Whole),
        (0u16..3).prop_map(|bytes| PartitionKey::Prefix { bytes }),
        Just(PartitionKey::UpTo { delimiter: b'/' }),
    ]
}

proptest! {
    #[test]
    fn no_shard_with_a_key_of_the_range_is_passed_over(
        (from, to, found) in (key(), proptest::option::of(key()), key()),
        prefix in any::<prop::sample::Index>(),
        partition_key in partition_key(),
        begin_of_shard in key(),
    ) {
        let brief = brief(Sharding::KeyRange, partition_key);
        let prefix = Key::new(&found.as_bytes()[..prefix.index(found.as_bytes().len() + 1)]).unwrap();
        let (from, to) = (from.min(found.clone()), to.filter(|to| *to > found));
        let range = ScanRange { from, to, prefix, ..ScanRange::default() };
        let at = partition_key.of(found.as_bytes());
        let begin_of_shard = begin_of_shard.min(Key::new(at).unwrap());
        prop_assert!(begin(&brief, &range).unwrap().place.position() <= Position::Key(at), "it begins behind the key");
        prop_assert!(!is_behind(&Place::Key(begin_of_shard), &brief, &range), "it ends before the shard of the key");
    }
}

#[test]
fn a_scan_of_whole_keys_asks_only_shards_of_its_range() {
    let brief = brief(Sharding::KeyRange, PartitionKey::Whole);
    let text = |text: &str| Key::new(text.as_bytes()).unwrap();
    let range = ScanRange { prefix: text("m"), ..ScanRange::default() };
    assert_eq!(begin(&brief, &range).unwrap().place, Place::Key(text("m")));
    assert!(is_behind(&Place::Key(text("n")), &brief, &range));
    assert!(!is_behind(&Place::Key(text("mz")), &brief, &range));
}

#[test]
fn a_token_is_used_with_its_own_table_only() {
    let hash = HashFunction::Xxh3_64;
    let (stock, whole) = (brief(Sharding::HashRange { hash }, PartitionKey::Whole), ScanRange::default());
    let token = begin(&stock, &whole).unwrap();
    assert_eq!(token.place, Place::Point(0));
    assert_eq!(token.check(&stock), Ok(()));
    let other = KeyspaceBrief { name: KeyspaceName::new("orders").unwrap(), ..stock.clone() };
    let why = token.check(&other).unwrap_err().to_string();
    assert!(why.contains("of table stock, not of table orders"), "{why}");
    let anew = KeyspaceBrief { first_shard: ShardId(9), ..stock.clone() };
    assert_eq!(
        token.check(&anew),
        Err(TokenError::FormerTable(stock.name.clone(), "leave token out to begin at the first row"))
    );
    let named = brief(Sharding::Named, PartitionKey::Whole);
    assert_eq!(begin(&named, &whole), Err(ScanError::Named(named.name.clone())));
}
