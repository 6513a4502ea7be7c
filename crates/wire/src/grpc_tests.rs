//! Round trips, and refusals that name their field.

use crate::{Malformed, proto, testing};
use partage_core::cluster::admin::Command;
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
use serde_json::json;
use std::collections::BTreeSet;
use utoipa::PartialSchema;

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
        ("resp_address", proto::NodeSpec { resp_address: "host".into(), ..spec() }),
        ("resp_address", proto::NodeSpec { resp_address: "host:0".into(), ..spec() }),
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
        replicas: vec![proto::Replica {
            placement: id,
            node: 0,
            role: 1,
            state: 2,
            replaces: 0,
            in_sync: false,
        }],
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

/// Every command, as gRPC and as JSON have it: core gets the same of both.
#[test]
#[expect(clippy::too_many_lines, reason = "one row for each command")]
fn a_command_is_the_same_over_grpc_and_json() {
    use proto::command_request::Command as Rpc;
    use proto::{create_keyspace, sharding, split_shard};
    let (u, n) = (|| "u".to_owned(), || "n1".to_owned());
    let constraint =
        || proto::Constraint { pinned: vec![n()], excluded: vec!["n2".into()], labels: vec!["ssd".into()] };
    let constraint_json = json!({"pinned": ["n1"], "excluded": ["n2"], "labels": ["ssd"]});
    let hash = || sharding::HashRange { hash: "xxh3-64".into() };
    let keyspace = || proto::Keyspace {
        name: u(),
        sharding: Some(proto::Sharding { kind: Some(sharding::Kind::HashRange(hash())) }),
        mode: "suggested".into(),
        throttle: Some(proto::Throttle { moves: Some(7), ..Default::default() }),
        ..Default::default()
    };
    let keyspace_json = json!({
        "name": "u", "sharding": {"type": "hash_range", "hash": "xxh3-64"}, "mode": "suggested", "throttle": {"moves": 7},
    });
    let presplit = create_keyspace::Presplit::HashRanges(create_keyspace::HashRanges { shards: 4 });
    let changes = proto::KeyspaceChanges {
        replicas: Some(3),
        spread: Some("rack".into()),
        constraint: Some(constraint()),
        ..Default::default()
    };
    let points = split_shard::At::Points(split_shard::Points { points: vec![255] });
    let rows = [
        (
            Rpc::CreateKeyspace(proto::CreateKeyspace {
                keyspace: Some(keyspace()),
                presplit: Some(presplit),
                ahead: true,
            }),
            json!({"command": "create_keyspace", "keyspace": keyspace_json, "presplit": {"type": "hash_ranges", "shards": 4}, "ahead": true}),
        ),
        (
            Rpc::CreateKeyspace(proto::CreateKeyspace {
                keyspace: Some(keyspace()),
                presplit: None,
                ahead: false,
            }),
            json!({"command": "create_keyspace", "keyspace": keyspace_json}),
        ),
        (
            Rpc::DeleteKeyspace(proto::DeleteKeyspace { keyspace: u() }),
            json!({"command": "delete_keyspace", "keyspace": "u"}),
        ),
        (
            Rpc::UpdateKeyspace(proto::UpdateKeyspace { keyspace: u(), changes: Some(changes), ahead: true }),
            json!({"command": "update_keyspace", "keyspace": "u", "ahead": true,
                "changes": {"replicas": 3, "spread": "rack", "constraint": constraint_json}}),
        ),
        (
            Rpc::RegisterPartitions(proto::RegisterPartitions {
                keyspace: u(),
                partitions: vec!["p".into()],
                replicas: Some(2),
                ahead: false,
            }),
            json!({"command": "register_partitions", "keyspace": "u", "partitions": ["p"], "replicas": 2}),
        ),
        (
            Rpc::UnregisterPartitions(proto::UnregisterPartitions {
                keyspace: u(),
                partitions: vec!["p".into()],
            }),
            json!({"command": "unregister_partitions", "keyspace": "u", "partitions": ["p"]}),
        ),
        (
            Rpc::DrainNode(proto::DrainNode { node: n(), reason: "disk".into(), max_down: Some(1) }),
            json!({"command": "drain_node", "node": "n1", "reason": "disk", "max_down": 1}),
        ),
        (
            Rpc::DrainZone(proto::DrainZone { zone: "z".into(), reason: "power".into(), max_down: None }),
            json!({"command": "drain_zone", "zone": "z", "reason": "power"}),
        ),
        (
            Rpc::UndrainNode(proto::UndrainNode { node: n() }),
            json!({"command": "undrain_node", "node": "n1"}),
        ),
        (
            Rpc::UndrainZone(proto::UndrainZone { zone: "z".into() }),
            json!({"command": "undrain_zone", "zone": "z"}),
        ),
        (Rpc::RemoveNode(proto::RemoveNode { node: n() }), json!({"command": "remove_node", "node": "n1"})),
        (
            Rpc::MoveShard(proto::MoveShard { keyspace: u(), shard: 3, from: n(), to: "n2".into() }),
            json!({"command": "move_shard", "keyspace": "u", "shard": 3, "from": "n1", "to": "n2"}),
        ),
        (
            Rpc::TransferLeader(proto::TransferLeader { keyspace: u(), shard: 3, to: n() }),
            json!({"command": "transfer_leader", "keyspace": "u", "shard": 3, "to": "n1"}),
        ),
        (
            Rpc::AddReplica(proto::AddReplica { keyspace: u(), shard: 3, node: n() }),
            json!({"command": "add_replica", "keyspace": "u", "shard": 3, "node": "n1"}),
        ),
        (
            Rpc::RemoveReplica(proto::RemoveReplica { keyspace: u(), shard: 3, node: n() }),
            json!({"command": "remove_replica", "keyspace": "u", "shard": 3, "node": "n1"}),
        ),
        (
            Rpc::SplitShard(proto::SplitShard { keyspace: u(), shard: 3, at: Some(points) }),
            json!({"command": "split_shard", "keyspace": "u", "shard": 3, "at": {"type": "points", "points": ["00000000000000ff"]}}),
        ),
        (
            Rpc::SplitShard(proto::SplitShard { keyspace: u(), shard: 3, at: None }),
            json!({"command": "split_shard", "keyspace": "u", "shard": 3}),
        ),
        (
            Rpc::MergeShards(proto::MergeShards { keyspace: u(), left: 3, right: 4 }),
            json!({"command": "merge_shards", "keyspace": "u", "left": 3, "right": 4}),
        ),
        (
            Rpc::IsolateKey(proto::IsolateKey { keyspace: u(), key: vec![0xff] }),
            json!({"command": "isolate_key", "keyspace": "u", "key": {"hex": "ff"}}),
        ),
        (
            Rpc::SetShardReplicas(proto::SetShardReplicas {
                keyspace: u(),
                shard: 3,
                replicas: None,
                ahead: true,
            }),
            json!({"command": "set_shard_replicas", "keyspace": "u", "shard": 3, "ahead": true}),
        ),
        (
            Rpc::PinShard(proto::PinShard {
                keyspace: u(),
                shard: 3,
                constraint: Some(constraint()),
                ahead: false,
            }),
            json!({"command": "pin_shard", "keyspace": "u", "shard": 3, "constraint": constraint_json}),
        ),
        (
            Rpc::ReleaseShard(proto::ReleaseShard { keyspace: u(), shard: 3 }),
            json!({"command": "release_shard", "keyspace": "u", "shard": 3}),
        ),
        (
            Rpc::ForceJoinShard(proto::ForceJoinShard { keyspace: u(), shard: 3, node: n(), generation: 9 }),
            json!({"command": "force_join_shard", "keyspace": "u", "shard": 3, "node": "n1", "generation": 9}),
        ),
        (
            Rpc::RecreateShard(proto::RecreateShard { keyspace: u(), shard: 3, generation: 9 }),
            json!({"command": "recreate_shard", "keyspace": "u", "shard": 3, "generation": 9}),
        ),
        (Rpc::ReleaseBrake(proto::ReleaseBrake {}), json!({"command": "release_brake"})),
        (Rpc::ApprovePlan(proto::ApprovePlan { plan: 5 }), json!({"command": "approve_plan", "plan": 5})),
        (Rpc::RejectPlan(proto::RejectPlan { plan: 5 }), json!({"command": "reject_plan", "plan": 5})),
        (
            Rpc::EditPlan(proto::EditPlan { plan: 5, drop: vec![0, 2] }),
            json!({"command": "edit_plan", "plan": 5, "drop": [0, 2]}),
        ),
    ];
    let named: BTreeSet<_> = rows.iter().map(|(_, text)| text["command"].to_string()).collect();
    let all = serde_json::to_value(crate::json::Command::schema()).unwrap();
    assert_eq!(Some(named.len()), all["oneOf"].as_array().map(Vec::len), "each command has a row");
    for (rpc, text) in rows {
        let request = proto::CommandRequest { dry_run: false, command: Some(rpc) };
        let by_json: crate::json::Command = serde_json::from_value(text.clone()).unwrap();
        let read = Command::try_from(request).unwrap();
        assert_eq!(Ok(read), by_json.try_into(), "{text}");
    }
    let nothing = Command::try_from(proto::CommandRequest::default()).unwrap_err();
    assert_eq!(nothing.field, "do");
}
