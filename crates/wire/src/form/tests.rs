//! Round trips, and refusals that name their field.

use crate::{Malformed, proto, testing};
use partage_core::cluster::{ClusterRecord, KeyspaceRecord, NodeRecord};
use partage_core::keyspace::Keyspace;
use partage_core::keyspace::map::MapDiff;
use partage_core::node::NodeSpec;
use partage_core::node::exchange::Registration;
use partage_core::node::exchange::{Beat, Orders};
use partage_core::plan::Plan;
use partage_core::plan::check;
use proptest::prelude::*;
use prost::Message;

/// Through the bytes and back.
fn round<F, T>(value: &T) -> Result<T, Malformed>
where
    F: Message + Default + for<'a> From<&'a T>,
    T: TryFrom<F, Error = Malformed>,
{
    F::decode(F::from(value).encode_to_vec().as_slice()).unwrap().try_into()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_goes_out_comes_in_the_same(
        beat in testing::beats(), orders in testing::orders(), registration in testing::registrations(),
        keyspace in testing::keyspaces(), plan in testing::plans(),
    ) {
        prop_assert_eq!(round::<proto::Beat, Beat>(&beat), Ok(beat));
        prop_assert_eq!(round::<proto::Orders, Orders>(&orders), Ok(orders));
        prop_assert_eq!(round::<proto::Keyspace, Keyspace>(&keyspace), Ok(keyspace));
        prop_assert_eq!(round::<proto::Plan, Plan>(&plan), Ok(plan));
        prop_assert_eq!(round::<proto::Register, Registration>(&registration), Ok(registration));
    }

    #[test]
    fn records_come_in_the_same(
        cluster in testing::cluster_records(), keyspace in testing::keyspace_records(),
        node in testing::node_records(),
    ) {
        prop_assert_eq!(round::<proto::StoredCluster, ClusterRecord>(&cluster), Ok(cluster));
        prop_assert_eq!(round::<proto::StoredKeyspace, KeyspaceRecord>(&keyspace), Ok(keyspace));
        prop_assert_eq!(round::<proto::StoredNode, NodeRecord>(&node), Ok(node));
    }

    #[test]
    fn diffs_come_in_the_same((keyspace, diffs) in testing::histories(1..8)) {
        for diff in &diffs {
            let read = round::<proto::MapDiff, MapDiff>(diff);
            prop_assert_eq!(read.as_ref(), Ok(diff));
        }
        let map = testing::replay(&keyspace, &diffs);
        prop_assert_eq!(check::map(&map), vec![]);
        let whole = map.whole();
        prop_assert_eq!(round::<proto::MapDiff, MapDiff>(&whole), Ok(whole));
    }

    #[test]
    fn no_bytes_make_it_stop(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(form) = proto::MapDiff::decode(bytes.as_slice()) {
            let _ = MapDiff::try_from(form);
        }
        if let Ok(form) = proto::Beat::decode(bytes.as_slice()) {
            let _ = Beat::try_from(form);
        }
    }
}

fn spec() -> proto::NodeSpec {
    proto::NodeSpec { id: "n1".into(), address: "host:7000".into(), ..proto::NodeSpec::default() }
}

#[test]
fn an_unusable_announcement_names_its_field() {
    assert_eq!(NodeSpec::try_from(spec()).unwrap().capacity, 1.0);
    let bad = [
        ("id", proto::NodeSpec { id: "a/b".into(), ..spec() }),
        ("id", proto::NodeSpec { id: "x".repeat(1 << 20), ..spec() }),
        ("address", proto::NodeSpec { address: "host".into(), ..spec() }),
        ("address", proto::NodeSpec { address: format!("{}:80", "x".repeat(1 << 20)), ..spec() }),
        ("address", proto::NodeSpec { address: "host\0:80".into(), ..spec() }),
        ("capacity", proto::NodeSpec { capacity: Some(f64::NAN), ..spec() }),
        ("capacity", proto::NodeSpec { capacity: Some(0.0), ..spec() }),
        ("zone", proto::NodeSpec { zone: "a b".into(), ..spec() }),
        ("labels[1]", proto::NodeSpec { labels: vec!["ok".into(), String::new()], ..spec() }),
        ("kinds[1]", proto::NodeSpec { kinds: vec!["app".into(), "databse".into()], ..spec() }),
        ("check_path", proto::NodeSpec { check_path: "health".into(), ..spec() }),
        // Behind `http://host:7000` these would lead to another host, port, or request.
        ("check_path", proto::NodeSpec { check_path: "@evil/".into(), ..spec() }),
        ("check_path", proto::NodeSpec { check_path: "0/".into(), ..spec() }),
        ("check_path", proto::NodeSpec { check_path: "/ HTTP/1.1\r\nx: y".into(), ..spec() }),
        ("callback", proto::NodeSpec { callback: "ftp://x".into(), ..spec() }),
    ];
    for (field, form) in bad {
        let malformed = NodeSpec::try_from(form).unwrap_err();
        assert_eq!(malformed.field, field, "{malformed}");
    }
}

fn diff_form() -> proto::MapDiff {
    let bounds = |begin: &str, end: &str| proto::Bounds {
        kind: Some(proto::bounds::Kind::Keys(proto::bounds::Keys {
            begin: begin.as_bytes().to_vec(),
            end: end.as_bytes().to_vec(),
        })),
    };
    let shard = |id, begin, end| proto::Shard {
        id,
        bounds: Some(bounds(begin, end)),
        replicas: vec![proto::Replica { placement: id, node: 0, role: 1, state: 2, replaces: 0 }],
        ..proto::Shard::default()
    };
    proto::MapDiff {
        keyspace: "users".into(),
        from: Some(proto::Generation::default()),
        to: Some(proto::Generation { sequence: 1, transaction: vec![7; 20] }),
        parent: Some(proto::Generation::default()),
        nodes: vec![proto::NodeStart { node: "n1".into(), incarnation: 3 }],
        changed: vec![shard(1, "", "m"), shard(2, "m", "")],
        ..proto::MapDiff::default()
    }
}

#[test]
fn a_map_that_cannot_be_names_its_field() {
    assert_eq!(MapDiff::try_from(diff_form()).unwrap().changed.len(), 2);
    type Spoil = fn(&mut proto::MapDiff);
    let spoilt: [(&str, Spoil); 9] = [
        ("keyspace", |diff| diff.keyspace = "/".into()),
        ("to", |diff| diff.to = None),
        ("to.transaction", |diff| diff.to.as_mut().unwrap().transaction.truncate(19)),
        ("nodes[0].node", |diff| diff.nodes[0].node.clear()),
        ("changed[1].replicas[0].node", |diff| diff.changed[1].replicas[0].node = 1),
        ("changed[0].replicas[0].state", |diff| diff.changed[0].replicas[0].state = 9),
        ("changed[0].bounds", |diff| diff.changed[0].bounds = None),
        ("changed", |diff| diff.changed[1].id = 1),
        ("changed[0].children", |diff| diff.changed[0].children = vec![4]),
    ];
    for (field, spoil) in spoilt {
        let mut form = diff_form();
        spoil(&mut form);
        let malformed = MapDiff::try_from(form).unwrap_err();
        assert_eq!(malformed.field, field, "{malformed}");
    }
}

#[test]
fn neighbours_keep_their_boundary_once() {
    let diff = MapDiff::try_from(diff_form()).unwrap();
    let [
        partage_core::keyspace::sharding::Bounds::Keys(left),
        partage_core::keyspace::sharding::Bounds::Keys(right),
    ] = [0, 1].map(|at| diff.changed[at].bounds.clone())
    else {
        panic!("key ranges");
    };
    assert!(std::ptr::eq(left.end.as_bytes(), right.begin.as_bytes()));
}

#[test]
fn a_change_of_one_shard_costs_about_one_shard() {
    let form = diff_form();
    let mut one = form.clone();
    one.changed.truncate(1);
    let bytes = form.encoded_len() - one.encoded_len();
    assert!(bytes <= 32, "{bytes} bytes for a shard with one replica");
}

#[test]
fn an_unknown_field_is_ignored() {
    let mut bytes = diff_form().encode_to_vec();
    prost::encoding::uint64::encode(1_000, &7, &mut bytes);
    assert_eq!(proto::MapDiff::decode(bytes.as_slice()).unwrap(), diff_form());
}
