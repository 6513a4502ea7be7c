//! Events in one part and in many, and parts that do not belong together.

use super::{Joiner, MapEvent, MapNews, NodeAddress, Watch, encoded, in_parts, with_brief};
use crate::limits::SHARDS_IN_PART;
use crate::{proto, testing};
use partage_core::base::id::{ClusterId, Incarnation, ShardId, TransactionId};
use partage_core::base::name::Label;
use partage_core::keyspace::Keyspace;
use partage_core::keyspace::map::MapDiff;
use partage_core::keyspace::sharding::{Sharding, Slot};
use partage_core::node::Health;
use partage_core::node::exchange::{ClusterIdentity, KeyspaceBrief};
use proptest::prelude::*;
use prost::Message;

fn event(diff: MapDiff, resync: bool) -> MapEvent {
    let node = NodeAddress {
        id: "n1".parse().unwrap(),
        incarnation: Incarnation(2),
        address: "h:1".into(),
        zone: Some("z".parse().unwrap()),
        health: Health::Suspect,
        resp_address: Some("h:2".into()),
        labels: [Label::new("shuffle-storage:p").unwrap(), Label::new("ssd").unwrap()].into(),
        drains: true,
    };
    MapEvent {
        news: MapNews::Changed { brief: None, resync, diff: Box::new(diff) },
        nodes: vec![node],
        forgotten: vec!["n9".parse().unwrap()],
    }
}

/// All parts through the joiner.
fn joined(parts: Vec<proto::MapEvent>) -> Result<Vec<MapEvent>, crate::Malformed> {
    let mut joiner = Joiner::default();
    parts.into_iter().filter_map(|part| joiner.take(part).transpose()).collect()
}

fn large() -> MapDiff {
    let shards = 2 * SHARDS_IN_PART as u32 + 5;
    let sharding = Sharding::Fixed { hash: partage_core::keyspace::hash::HashFunction::Xxh3_64, shards };
    let keyspace = Keyspace::new("large".parse().unwrap(), sharding);
    let map = testing::replay(&keyspace, &[]);
    let mut edit = map.edit();
    for slot in Slot::all(shards) {
        edit.create_shard(slot).unwrap();
    }
    edit.commit(TransactionId([1; 20]))
}

#[test]
fn a_large_map_comes_in_parts_and_is_one_event() {
    let event = event(large(), true);
    let parts = in_parts(&event);
    assert_eq!(parts.iter().map(|part| part.more).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(joined(parts), Ok(vec![event]));
}

#[test]
fn what_is_encoded_once_says_the_same_and_takes_up_the_settings_of_the_keyspace() {
    let MapEvent { news: MapNews::Changed { diff, .. }, nodes, forgotten } = event(large(), false) else {
        panic!("no change");
    };
    let settings = Keyspace::new(
        "large".parse().unwrap(),
        Sharding::Fixed { hash: partage_core::keyspace::hash::HashFunction::Xxh3_64, shards: 1 },
    );
    let brief = KeyspaceBrief {
        name: settings.name,
        sharding: settings.sharding,
        partition_key: settings.partition_key,
        ownership: settings.ownership,
        generation: diff.to,
        first_shard: partage_core::base::id::ShardId(1),
        durable: false,
        min_in_sync: 0,
        kind: partage_core::keyspace::KeyspaceKind::App,
        values: partage_core::keyspace::RowValues::Bytes,
        feed_ms: 0,
    };
    let said = |brief| MapEvent {
        news: MapNews::Changed { brief, resync: false, diff: diff.clone() },
        nodes: nodes.clone(),
        forgotten: forgotten.clone(),
    };
    let decoded = |messages: &[bytes::Bytes]| {
        joined(messages.iter().map(|message| proto::MapEvent::decode(&**message).unwrap()).collect())
    };
    let mut messages = encoded(&said(None));
    assert_eq!(decoded(&messages), Ok(vec![said(None)]));
    messages[0] = with_brief(&brief, &messages[0]);
    assert_eq!(decoded(&messages), Ok(vec![said(Some(brief))]));
}

#[test]
fn a_part_of_another_event_is_refused() {
    let parts = in_parts(&event(large(), true));
    let twice = vec![parts[0].clone(), parts[0].clone()];
    assert_eq!(joined(twice).unwrap_err().field, "diff.changed");
    let mut other = parts.clone();
    other[1].diff.as_mut().unwrap().to.as_mut().unwrap().sequence += 1;
    assert_eq!(joined(other).unwrap_err().field, "diff");
    let gone = MapEvent {
        news: MapNews::Deleted("large".parse().unwrap(), ShardId(9)),
        nodes: vec![],
        forgotten: vec![],
    };
    let interrupted = vec![parts[0].clone(), in_parts(&gone).remove(0)];
    assert_eq!(joined(interrupted).unwrap_err().field, "more");
    assert_eq!(joined(in_parts(&gone)), Ok(vec![gone]));
}

#[test]
fn events_about_no_keyspace_come_in_the_same() {
    let identity = ClusterIdentity { cluster: ClusterId(7), continues: vec![ClusterId(1), ClusterId(2)] };
    for news in
        [MapNews::Nothing, MapNews::Current(ShardId(4)), MapNews::Spread(1_638), MapNews::Cluster(identity)]
    {
        let event = MapEvent { news, nodes: vec![], forgotten: vec![] };
        assert_eq!(joined(in_parts(&event)), Ok(vec![event]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_is_pushed_leads_to_the_same_map((keyspace, diffs) in testing::histories(1..6)) {
        let mut followed = testing::replay(&keyspace, &[]);
        for diff in &diffs {
            for event in joined(in_parts(&event(diff.clone(), false))).unwrap() {
                let MapNews::Changed { diff, .. } = event.news else { panic!("a change") };
                followed.apply(&diff).unwrap();
            }
        }
        prop_assert_eq!(followed, testing::replay(&keyspace, &diffs));
    }

    #[test]
    fn a_watch_comes_in_the_same(
        keyspaces in proptest::collection::btree_set(testing::keyspace_names(), 0..4),
        known in proptest::collection::btree_map(testing::keyspace_names(), testing::generations(), 0..4),
    ) {
        let watch = Watch { keyspaces, known };
        prop_assert_eq!(Watch::try_from(proto::WatchRequest::from(&watch)), Ok(watch));
    }
}
