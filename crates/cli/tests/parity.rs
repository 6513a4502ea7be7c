//! One table of bad input, through every door: JSON over HTTP, gRPC, and the command line where it can say it. The
//! kind and the message are the same, the way out is the end of the message, and nothing has changed.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::too_many_lines,
    reason = "a test fails where it cannot go on, and a table is as long as it is"
)]

#[allow(dead_code, reason = "the doors are shared, and not all of them are used here")]
mod doors;

use doors::{Doors, Told, word_of};
use partage_core::limits::{KEY_BYTES, NAME_BYTES, REPLICAS};
use partage_wire::proto::command_request::Command as Rpc;
use partage_wire::proto::{self, create_keyspace::Presplit, split_shard};
use serde_json::{Value, json};

/// One command in three languages; the last only where a shell can say it.
struct Case {
    json: Value,
    rpc: Rpc,
    shell: Option<Vec<String>>,
    kind: &'static str,
    /// A part of the message.
    says: String,
}

fn case(json: Value, rpc: Rpc, shell: &[&str], kind: &'static str, says: &str) -> Case {
    let shell: Vec<String> = shell.iter().map(ToString::to_string).collect();
    Case { json, rpc, shell: (!shell.is_empty()).then_some(shell), kind, says: says.to_owned() }
}

fn key_range() -> proto::Sharding {
    let kind = proto::sharding::Kind::KeyRange(proto::sharding::KeyRange {});
    proto::Sharding { kind: Some(kind) }
}

fn keyspace(name: &str) -> proto::Keyspace {
    proto::Keyspace { name: name.into(), sharding: Some(key_range()), ..Default::default() }
}

fn create(keyspace: proto::Keyspace, presplit: Option<Presplit>) -> Rpc {
    Rpc::CreateKeyspace(proto::CreateKeyspace { keyspace: Some(keyspace), presplit, ahead: false })
}

/// A keyspace `new` of key ranges, cut at these keys.
fn points(keys: &[&str], kind: &'static str, says: &str) -> Case {
    let json = json!({
        "command": "create_keyspace",
        "keyspace": { "name": "new", "sharding": { "type": "key_range" } },
        "presplit": { "type": "points", "keys": keys },
    });
    let bytes = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
    let rpc = create(keyspace("new"), Some(Presplit::Points(proto::create_keyspace::Points { keys: bytes })));
    let split = keys.join(",");
    case(json, rpc, &["keyspace", "create", "new", "--sharding", "key-range", "--split", &split], kind, says)
}

/// A keyspace of that name. A shell has no NUL and no argument of a mebibyte.
fn named(name: &str, kind: &'static str, says: &str) -> Case {
    let json = json!({
        "command": "create_keyspace", "keyspace": { "name": name, "sharding": { "type": "key_range" } },
    });
    let shell = ["keyspace", "create", name, "--sharding", "key-range"];
    let can_say = name.len() < 1 << 16 && !name.contains('\0');
    case(json, create(keyspace(name), None), if can_say { &shell } else { &[] }, kind, says)
}

/// A keyspace `new` with one setting that cannot be; `flag` as the command line calls it.
fn with(field: &str, value: Value, flag: &str, rpc: proto::Keyspace, kind: &'static str, says: &str) -> Case {
    let mut settings = json!({ "name": "new", "sharding": { "type": "key_range" } });
    settings[field] = value.clone();
    let json = json!({ "command": "create_keyspace", "keyspace": settings });
    let text = value.as_str().map_or(value.to_string(), str::to_owned);
    let shell = ["keyspace", "create", "new", "--sharding", "key-range", flag, text.as_str()];
    case(json, create(rpc, None), if flag.is_empty() { &[] } else { &shell }, kind, says)
}

/// Keyspaces and what their owner says about them.
fn about_keyspaces() -> Vec<Case> {
    let new = || keyspace("new");
    let names = |names: &[&str]| {
        Some(Presplit::Names(proto::create_keyspace::Names {
            names: names.iter().map(ToString::to_string).collect(),
        }))
    };
    let by_name = proto::sharding::Kind::Named(proto::sharding::Named {});
    let parts = proto::Keyspace { sharding: Some(proto::Sharding { kind: Some(by_name) }), ..new() };
    let pin = |pinned: &[&str], excluded: &[&str]| proto::Constraint {
        pinned: pinned.iter().map(ToString::to_string).collect(),
        excluded: excluded.iter().map(ToString::to_string).collect(),
        labels: vec![],
    };
    let fixed = proto::sharding::Fixed { hash: "xxh3-64".into(), shards: 0 };
    let none = proto::Sharding { kind: Some(proto::sharding::Kind::Fixed(fixed)) };
    let fixed_json = json!({
        "command": "create_keyspace",
        "keyspace": { "name": "new", "sharding": { "type": "fixed", "hash": "xxh3-64", "shards": 0 } },
    });
    let too_many = REPLICAS as u32 + 1;
    let both = json!({ "pinned": ["a"], "excluded": ["a"] });
    vec![
        case(
            json!({
                "command": "create_keyspace", "keyspace": { "name": "new", "sharding": { "type": "named" } },
                "presplit": { "type": "names", "names": ["p", "q", "p"] },
            }),
            create(parts, names(&["p", "q", "p"])),
            &["keyspace", "create", "new", "--sharding", "named", "--partitions", "p,q,p"],
            "invalid",
            "partition p is named twice",
        ),
        points(&["n", "g"], "invalid", "is below the one before it"),
        points(&["g", "g"], "invalid", "is given twice"),
        points(&[""], "invalid", "split point 0 is empty"),
        points(&[&"k".repeat(KEY_BYTES + 1)], "malformed", &format!("{}", KEY_BYTES + 1)),
        named("a/b", "malformed", "'/'"),
        named("a\0b", "malformed", "'\\0'"),
        named("", "malformed", "empty"),
        named(&"n".repeat(NAME_BYTES + 1), "malformed", "256 bytes is too long"),
        named(&"n".repeat(1 << 20), "malformed", "1048576 bytes is too long"),
        named("kv", "already_exists", "there is a keyspace kv already"),
        with(
            "replicas",
            json!(0),
            "--replicas",
            proto::Keyspace { replicas: Some(0), ..new() },
            "invalid",
            "give 1 to 64",
        ),
        with(
            "replicas",
            json!(too_many),
            "--replicas",
            proto::Keyspace { replicas: Some(too_many), ..new() },
            "invalid",
            "give 1 to 64",
        ),
        with(
            "policy",
            json!("balancd"),
            "--policy",
            proto::Keyspace { policy: "balancd".into(), ..new() },
            "invalid",
            "did you mean \"balanced\"?",
        ),
        with(
            "mode",
            json!("sugested"),
            "--mode",
            proto::Keyspace { mode: "sugested".into(), ..new() },
            "malformed",
            "suggested",
        ),
        with(
            "spread",
            json!("zones"),
            "--spread",
            proto::Keyspace { spread: "zones".into(), ..new() },
            "malformed",
            "zone",
        ),
        with(
            "constraint",
            json!({ "pinned": ["aa"] }),
            "",
            proto::Keyspace { constraint: Some(pin(&["aa"], &[])), ..new() },
            "invalid",
            "no node aa to pin to",
        ),
        with(
            "constraint",
            both,
            "",
            proto::Keyspace { constraint: Some(pin(&["a"], &["a"])), ..new() },
            "invalid",
            "both pinned and excluded",
        ),
        with(
            "resharding",
            json!({ "hot_key_share": 1.5 }),
            "",
            proto::Keyspace {
                resharding: Some(proto::Resharding { hot_key_share: Some(1.5), ..Default::default() }),
                ..new()
            },
            "invalid",
            "hot_key_share is 1.5",
        ),
        case(
            fixed_json,
            create(proto::Keyspace { sharding: Some(none), ..new() }, None),
            &["keyspace", "create", "new", "--sharding", "fixed", "--shards", "0"],
            "malformed",
            "at least one shard",
        ),
        case(
            json!({ "command": "delete_keyspace", "keyspace": "kw" }),
            Rpc::DeleteKeyspace(proto::DeleteKeyspace { keyspace: "kw".into() }),
            &["keyspace", "delete", "kw"],
            "not_found",
            "did you mean kv?",
        ),
        case(
            json!({ "command": "update_keyspace", "keyspace": "kv", "changes": { "replicas": 0 } }),
            Rpc::UpdateKeyspace(proto::UpdateKeyspace {
                keyspace: "kv".into(),
                changes: Some(proto::KeyspaceChanges { replicas: Some(0), ..Default::default() }),
                ahead: false,
            }),
            &["keyspace", "update", "kv", "--replicas", "0"],
            "invalid",
            "give 1 to 64",
        ),
        case(
            json!({ "command": "register_partitions", "keyspace": "parts", "partitions": ["x", "x"] }),
            Rpc::RegisterPartitions(proto::RegisterPartitions {
                keyspace: "parts".into(),
                partitions: vec!["x".into(), "x".into()],
                replicas: None,
                ahead: false,
            }),
            &[],
            "invalid",
            "partition x is named twice",
        ),
        case(
            json!({ "command": "register_partitions", "keyspace": "parts", "partitions": ["north"] }),
            Rpc::RegisterPartitions(proto::RegisterPartitions {
                keyspace: "parts".into(),
                partitions: vec!["north".into()],
                replicas: None,
                ahead: false,
            }),
            &[],
            "already_exists",
            "has the partition north already",
        ),
    ]
}

/// Nodes, shards and plans.
fn about_the_rest() -> Vec<Case> {
    let split = |keys: &[&str]| {
        let keys = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        Rpc::SplitShard(proto::SplitShard {
            keyspace: "kv".into(),
            shard: 2,
            at: Some(split_shard::At::Keys(split_shard::Keys { keys })),
        })
    };
    let split_json = |keys: &[&str]| json!({ "command": "split_shard", "keyspace": "kv", "shard": 2, "at": { "type": "keys", "keys": keys } });
    let drain = |node: &str, max_down| {
        Rpc::DrainNode(proto::DrainNode { node: node.into(), reason: "maintenance".into(), max_down })
    };
    let drain_json = |node: &str, max_down: Option<u32>| json!({ "command": "drain_node", "node": node, "reason": "maintenance", "max_down": max_down });
    let pin = proto::Constraint { pinned: vec!["c".into()], ..Default::default() };
    vec![
        case(drain_json("c", None), drain("c", None), &["node", "drain", "c"], "not_found", "no node c"),
        case(
            drain_json("a", Some(0)),
            drain("a", Some(0)),
            &["node", "drain", "a", "--max-down", "0"],
            "invalid",
            "max_down 0",
        ),
        case(drain_json("a/b", None), drain("a/b", None), &["node", "drain", "a/b"], "malformed", "'/'"),
        case(
            json!({ "command": "undrain_node", "node": "a" }),
            Rpc::UndrainNode(proto::UndrainNode { node: "a".into() }),
            &["node", "undrain", "a"],
            "refused",
            "node a is not being drained",
        ),
        case(
            json!({ "command": "undrain_zone", "zone": "z9" }),
            Rpc::UndrainZone(proto::UndrainZone { zone: "z9".into() }),
            &["node", "undrain", "--zone", "z9"],
            "not_found",
            "there is no zone z9",
        ),
        case(
            json!({ "command": "remove_node", "node": "c" }),
            Rpc::RemoveNode(proto::RemoveNode { node: "c".into() }),
            &["node", "remove", "c"],
            "not_found",
            "no node c",
        ),
        case(
            json!({ "command": "move_shard", "keyspace": "kv", "shard": 99, "from": "a", "to": "b" }),
            Rpc::MoveShard(proto::MoveShard {
                keyspace: "kv".into(),
                shard: 99,
                from: "a".into(),
                to: "b".into(),
            }),
            &["shard", "move", "kv", "s99", "--from", "a", "--to", "b"],
            "not_found",
            "no shard s99",
        ),
        case(
            split_json(&["k", "h"]),
            split(&["k", "h"]),
            &["shard", "split", "kv", "s2", "--at", "k,h"],
            "invalid",
            "",
        ),
        case(
            split_json(&["h", "h"]),
            split(&["h", "h"]),
            &["shard", "split", "kv", "s2", "--at", "h,h"],
            "invalid",
            "",
        ),
        case(split_json(&["z"]), split(&["z"]), &["shard", "split", "kv", "s2", "--at", "z"], "invalid", ""),
        case(
            json!({ "command": "merge_shards", "keyspace": "kv", "left": 1, "right": 3 }),
            Rpc::MergeShards(proto::MergeShards { keyspace: "kv".into(), left: 1, right: 3 }),
            &["shard", "merge", "kv", "s1", "s3"],
            "invalid",
            "neighbours",
        ),
        case(
            json!({ "command": "isolate_key", "keyspace": "kv", "key": "k".repeat(KEY_BYTES + 1) }),
            Rpc::IsolateKey(proto::IsolateKey { keyspace: "kv".into(), key: vec![b'k'; KEY_BYTES + 1] }),
            &["shard", "isolate", "kv", &"k".repeat(KEY_BYTES + 1)],
            "malformed",
            "4097",
        ),
        case(
            json!({ "command": "pin_shard", "keyspace": "kv", "shard": 1, "constraint": { "pinned": ["c"] } }),
            Rpc::PinShard(proto::PinShard {
                keyspace: "kv".into(),
                shard: 1,
                constraint: Some(pin),
                ahead: false,
            }),
            &[],
            "invalid",
            "no node c to pin to",
        ),
        case(
            json!({ "command": "set_shard_replicas", "keyspace": "kv", "shard": 1, "replicas": 0 }),
            Rpc::SetShardReplicas(proto::SetShardReplicas {
                keyspace: "kv".into(),
                shard: 1,
                replicas: Some(0),
                ahead: false,
            }),
            &["shard", "replicas", "kv", "s1", "0"],
            "invalid",
            "give 1 to 64",
        ),
        case(
            json!({ "command": "approve_plan", "plan": 99 }),
            Rpc::ApprovePlan(proto::ApprovePlan { plan: 99 }),
            &["plan", "approve", "99"],
            "not_found",
            "no plan-99",
        ),
        case(
            json!({ "command": "force_join_shard", "keyspace": "kv", "shard": 1, "node": "a", "generation": 7 }),
            Rpc::ForceJoinShard(proto::ForceJoinShard {
                keyspace: "kv".into(),
                shard: 1,
                node: "a".into(),
                generation: 7,
            }),
            &["shard", "force-join", "kv", "s1", "--node", "a", "--generation", "7"],
            "refused",
            "keyspace kv is not durable",
        ),
        case(
            json!({ "command": "recreate_shard", "keyspace": "kv", "shard": 1, "generation": 7 }),
            Rpc::RecreateShard(proto::RecreateShard { keyspace: "kv".into(), shard: 1, generation: 7 }),
            &["shard", "recreate", "kv", "s1", "--generation", "7"],
            "refused",
            "keyspace kv is not durable",
        ),
        case(
            json!({ "command": "release_brake" }),
            Rpc::ReleaseBrake(proto::ReleaseBrake {}),
            &["brake", "release"],
            "refused",
            "brake",
        ),
    ]
}

/// More replicas than the nodes `a`, `b` and `c`, of which the first two are in one zone, can hold.
fn about_room() -> Vec<Case> {
    let wide = |replicas, constraint: proto::Constraint, spread: &str| {
        let (replicas, spread) = (Some(replicas), spread.to_owned());
        create(proto::Keyspace { replicas, spread, constraint: Some(constraint), ..keyspace("new") }, None)
    };
    let wide_json = |replicas: u32, constraint: Value, spread: &str| {
        let sharding = json!({ "type": "key_range" });
        json!({ "command": "create_keyspace", "keyspace": {
            "name": "new", "sharding": sharding, "replicas": replicas, "constraint": constraint, "spread": spread,
        } })
    };
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let create = ["keyspace", "create", "new", "--sharding", "key-range"];
    let shell = |flags: &[&'static str]| [&create[..], flags].concat();
    let pin = proto::Constraint { pinned: names(&["a", "b"]), ..Default::default() };
    let off = proto::Constraint { excluded: names(&["a", "b", "c"]), ..Default::default() };
    let ssd = proto::Constraint { labels: names(&["ssd"]), ..Default::default() };
    let changes = proto::KeyspaceChanges { replicas: Some(4), ..Default::default() };
    let update = proto::UpdateKeyspace { keyspace: "kv".into(), changes: Some(changes), ahead: false };
    let partitions = names(&["south"]);
    let (kv, parts, refused) = (|| "kv".to_owned(), || "parts".to_owned(), "refused");
    vec![
        case(
            wide_json(4, json!({}), "zone"),
            wide(4, Default::default(), "zone"),
            &shell(&["--replicas", "4"]),
            refused,
            "4 replicas and there is room for 3: 3 nodes have joined: ask for 3 or fewer, let more nodes join first",
        ),
        case(
            wide_json(1, json!({ "labels": ["ssd"] }), "zone"),
            wide(1, ssd, "zone"),
            &shell(&["--label", "ssd"]),
            refused,
            "there is room for 0: 3 nodes have joined, the label ssd leaves 0 of them: relax that",
        ),
        case(
            wide_json(3, json!({ "pinned": ["a", "b"] }), "zone"),
            wide(3, pin.clone(), "zone"),
            &shell(&["--replicas", "3", "--pin", "a,b"]),
            refused,
            "there is room for 2: 3 nodes have joined, the pin to a, b leaves 2 of them: ask for 2 or fewer",
        ),
        case(
            wide_json(3, json!({}), "zone-strict"),
            wide(3, Default::default(), "zone-strict"),
            &shell(&["--replicas", "3", "--spread", "zone-strict"]),
            refused,
            "spread zone-strict allows one in each of their 2 zones",
        ),
        case(
            json!({ "command": "update_keyspace", "keyspace": "kv", "changes": { "replicas": 4 } }),
            Rpc::UpdateKeyspace(update),
            &["keyspace", "update", "kv", "--replicas", "4"],
            refused,
            "each shard of keyspace kv needs 4 replicas",
        ),
        case(
            json!({ "command": "set_shard_replicas", "keyspace": "kv", "shard": 1, "replicas": 4 }),
            Rpc::SetShardReplicas(proto::SetShardReplicas {
                keyspace: kv(),
                shard: 1,
                replicas: Some(4),
                ahead: false,
            }),
            &["shard", "replicas", "kv", "s1", "4"],
            refused,
            "shard s1 of keyspace kv needs 4 replicas",
        ),
        case(
            json!({
                "command": "pin_shard", "keyspace": "kv", "shard": 1,
                "constraint": { "excluded": ["a", "b", "c"] },
            }),
            Rpc::PinShard(proto::PinShard { keyspace: kv(), shard: 1, constraint: Some(off), ahead: false }),
            &["shard", "pin", "kv", "s1", "--exclude", "a,b,c"],
            refused,
            "the exclusion of a, b, c leaves 0 of them",
        ),
        case(
            json!({
                "command": "register_partitions", "keyspace": "parts", "partitions": ["south"], "replicas": 4,
            }),
            Rpc::RegisterPartitions(proto::RegisterPartitions {
                keyspace: parts(),
                partitions,
                replicas: Some(4),
                ahead: false,
            }),
            &[],
            refused,
            "each new partition of keyspace parts needs 4 replicas",
        ),
    ]
}

/// Each is refused in the same words through every door, and changes nothing.
async fn refused_alike(doors: &mut Doors, cases: Vec<Case>) {
    for Case { json, rpc, shell, kind, says } in cases {
        let shown: String = json.to_string().chars().take(200).collect();
        let before = doors.record().await;
        let over_http = doors.command(&json, false).await.expect_err(&shown);
        assert_eq!(over_http.kind, kind, "{shown}: {over_http:?}");
        assert!(over_http.message.contains(&says), "{shown}: {over_http:?}");
        let help = over_http.help.clone().unwrap();
        let is_its_end = over_http.message.ends_with(&help);
        assert!(!help.is_empty() && (is_its_end || kind == "malformed"), "{shown}: {over_http:?}");
        let over_grpc = doors.call(rpc, false).await.expect_err(&shown);
        assert_eq!(over_grpc, over_http, "{shown}");
        if let Some(shell) = shell {
            let arguments: Vec<&str> = shell.iter().map(String::as_str).collect();
            let (code, by_shell) = doors.shell(&arguments);
            let of_shell = by_shell.unwrap_or_else(|| panic!("{shown} was done: {code}"));
            assert_eq!((&of_shell.kind, &of_shell.message), (&over_http.kind, &over_http.message), "{shown}");
            assert_eq!(code, if matches!(kind, "invalid" | "malformed") { 2 } else { 4 }, "{shown}");
        }
        assert_eq!(doors.record().await, before, "{shown} has changed something");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_command_is_told_in_the_same_words_through_every_door_and_changes_nothing() {
    let mut doors = Doors::open().await;
    let cases = about_keyspaces().into_iter().chain(about_the_rest()).collect();
    refused_alike(&mut doors, cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_the_nodes_can_hold_is_refused_in_the_same_words_through_every_door() {
    let mut doors = Doors::open().await;
    doors.join("b", "east").await;
    doors.join("c", "west").await;
    doors.join("a", "east").await;
    refused_alike(&mut doors, about_room()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_are_still_to_join_and_the_longest_key_work_through_every_door() {
    let mut doors = Doors::open().await;
    let longest = "k".repeat(KEY_BYTES);
    let json = json!({
        "command": "create_keyspace",
        "keyspace": {
            "name": "new", "sharding": { "type": "key_range" }, "replicas": 3,
            "constraint": { "labels": ["ssd"] },
        },
        "presplit": { "type": "points", "keys": [longest] },
        "ahead": true,
    });
    let keys = vec![longest.clone().into_bytes()];
    let ssd = proto::Constraint { labels: vec!["ssd".into()], ..Default::default() };
    let rpc = Rpc::CreateKeyspace(proto::CreateKeyspace {
        keyspace: Some(proto::Keyspace { replicas: Some(3), constraint: Some(ssd), ..keyspace("new") }),
        presplit: Some(Presplit::Points(proto::create_keyspace::Points { keys })),
        ahead: true,
    });
    let before = doors.record().await;
    let over_http = doors.command(&json, true).await.unwrap();
    let over_grpc = doors.call(rpc, true).await.unwrap();
    assert_eq!(over_grpc.summary, over_http["summary"]);
    assert_eq!(json!(over_grpc.warnings), over_http["warnings"]);
    assert!(over_grpc.warnings[0].contains("3 replicas and there is room for 0"), "{:?}", over_grpc.warnings);
    let create = ["keyspace", "create", "new", "--sharding", "key-range", "--replicas", "3"];
    let flags = ["--label", "ssd", "--split", &longest, "--ahead", "--dry-run"];
    assert_eq!(doors.shell(&[&create[..], &flags].concat()), (0, None));
    let update = ["keyspace", "update", "kv", "--replicas", "3", "--ahead", "--dry-run"];
    assert_eq!(doors.shell(&update), (0, None));
    for command in [&["shard", "replicas", "kv", "s1", "3"][..], &["shard", "pin", "kv", "s1", "--pin", "x"]]
    {
        assert_eq!(doors.shell(&[command, &["--ahead", "--dry-run"]].concat()), (0, None), "{command:?}");
    }
    assert_eq!(doors.record().await, before, "a dry run changes nothing");
}

/// What the command line says of where shards may be is what is stored, and what it does not say stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_constraint_is_given_part_by_part() {
    let doors = Doors::open().await;
    doors.join("b", "east").await;
    let stored = async || doors.get("/v1/keyspaces/kv").await.unwrap()["constraint"].clone();
    let update = |flags: &[&str]| doors.shell(&[&["keyspace", "update", "kv"], flags].concat());
    assert_eq!(update(&["--pin", "a,b"]), (0, None));
    assert_eq!(update(&["--exclude", "c"]), (0, None));
    assert_eq!(stored().await, json!({ "pinned": ["a", "b"], "excluded": ["c"], "labels": [] }));
    assert_eq!(update(&["--anywhere"]), (0, None));
    assert_eq!(stored().await, json!({ "pinned": [], "excluded": [], "labels": [] }));
    assert_eq!(doors.shell(&["shard", "pin", "kv", "s1", "--pin", "b"]), (0, None));
    let rule = async || {
        doors.get("/v1/keyspaces/kv/shards").await.unwrap()["shards"][0]["rule"]["constraint"].clone()
    };
    assert_eq!(rule().await["pinned"], json!(["b"]));
    assert_eq!(doors.shell(&["shard", "pin", "kv", "s1"]), (0, None));
    assert_eq!(rule().await, Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_question_is_told_in_the_same_words() {
    let mut doors = Doors::open().await;
    let long = "k".repeat(KEY_BYTES + 1);
    for (keyspace, key, kind) in
        [("kw", "x", "not_found"), ("a/b", "x", "malformed"), ("kv", long.as_str(), "malformed")]
    {
        let path = format!("/v1/explain/{}?key={key}", keyspace.replace('/', "%2F"));
        let over_http = doors.get(&path).await.unwrap_err();
        assert_eq!(over_http.kind, kind, "{over_http:?}");
        let request = proto::ExplainRequest { keyspace: keyspace.into(), key: key.into() };
        let over_grpc = word_of(doors.admin.explain(request).await.unwrap_err());
        assert_eq!(over_grpc, over_http);
        let (_, by_shell) = doors.shell(&["explain", keyspace, key]);
        assert_eq!(by_shell.unwrap().message, over_http.message);
    }
    let over_http = doors.get("/v1/keyspaces/kv/shards?limit=0").await.unwrap_err();
    let request = proto::ListShardsRequest { keyspace: "kv".into(), limit: Some(0), after: None };
    assert_eq!(word_of(doors.admin.list_shards(request).await.unwrap_err()), over_http);
    let over_http = doors.get("/v1/plans/99").await.unwrap_err();
    let over_grpc = doors.admin.get_plan(proto::GetPlanRequest { plan: 99 }).await.unwrap_err();
    assert_eq!(word_of(over_grpc), over_http);
    // What is no name names nothing, and is not answered as if nothing had happened to it.
    for what in ["node", "keyspace"] {
        let over_http = doors.get(&format!("/v1/events?{what}=a%2Fb")).await.unwrap_err();
        assert_eq!((over_http.kind.as_str(), over_http.message.contains(what)), ("malformed", true));
        let (code, by_shell) = doors.shell(&["events", &format!("--{what}"), "a/b"]);
        assert_eq!((code, by_shell.unwrap().message), (2, over_http.message));
    }
    // Keys of no bytes are keys.
    assert!(doors.get("/v1/explain/kv?key=").await.is_ok());
    let request = proto::ExplainRequest { keyspace: "kv".into(), key: vec![] };
    assert_eq!(doors.admin.explain(request).await.unwrap().get_ref().shard.as_ref().unwrap().shard, 1);
    assert_eq!(doors.shell(&["explain", "kv", ""]).0, 0);
}

/// A registration as both worker protocols take it.
fn node(id: &str, capacity: f64) -> proto::NodeSpec {
    proto::NodeSpec {
        id: id.into(),
        address: format!("{}.invalid:80", id.len()),
        capacity: Some(capacity),
        ..Default::default()
    }
}

/// A stream is the session of the process that has registered on it, and of no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z1_a_stream_speaks_for_the_process_that_registered_on_it() {
    let mut doors = Doors::open().await;
    let before = doors.get("/v1/nodes").await.unwrap()["nodes"][0].clone();
    let spec = |id: &str| proto::NodeSpec {
        id: id.into(),
        address: format!("{id}.invalid:80"),
        capacity: Some(1.0),
        ..Default::default()
    };
    let b = proto::Register { spec: Some(spec("b")), ..Default::default() };
    let guessed = proto::Register {
        spec: Some(spec("a")),
        incarnation: doors.incarnation,
        token: "0".repeat(64),
        ..Default::default()
    };
    for (register, is_taken) in [(None, None), (Some(b), Some(true)), (Some(guessed), Some(false))] {
        let told = doors.forged(register).await;
        let kinds: Vec<_> = told.iter().map(|told| told.as_ref().map(|told| told.kind.as_str())).collect();
        let wrong = Some("wrong_token");
        let first = is_taken.map(|is_taken| if is_taken { None } else { wrong });
        assert_eq!(kinds, first.into_iter().chain([wrong, wrong]).collect::<Vec<_>>(), "{told:?}");
    }
    let after = &doors.get("/v1/nodes").await.unwrap()["nodes"][0];
    for field in ["id", "address", "incarnation", "since_ms"] {
        assert_eq!(after[field], before[field], "{after}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_workers_are_refused_in_the_same_words() {
    let mut doors = Doors::open().await;
    let long = "n".repeat(1 << 20);
    for (spec, kind, says) in [
        (node("c", 0.0), "malformed", "capacity 0 is not usable"),
        (node("c", -1.0), "malformed", "capacity -1 is not usable"),
        (node("a/b", 1.0), "malformed", "'/'"),
        (node("a\0", 1.0), "malformed", "'\\0'"),
        (node("", 1.0), "malformed", "empty"),
        (node(&long, 1.0), "malformed", "1048576 bytes is too long"),
        (node("a", 1.0), "name_taken", "a"),
    ] {
        let before = doors.record().await;
        let form = json!({ "id": spec.id, "address": spec.address, "capacity": spec.capacity });
        let over_http = doors.post("/v1/worker/register", &form).await.unwrap_err();
        assert_eq!(over_http.kind, kind, "{over_http:?}");
        assert!(over_http.message.contains(says), "{over_http:?}");
        let over_grpc = doors.register(spec).await.unwrap_err();
        let same = (&over_http.kind, &over_http.message);
        assert_eq!((&over_grpc.kind, &over_grpc.message), same);
        assert_eq!(doors.record().await, before);
    }
    // JSON cannot say NaN; gRPC can, and is told as of any other number that cannot be.
    let told: Told = doors.register(node("c", f64::NAN)).await.unwrap_err();
    assert!(told.kind == "malformed" && told.message.contains("capacity NaN is not usable"), "{told:?}");
    for load in [f64::NAN, f64::INFINITY, -1.0] {
        let before = doors.record().await;
        let over_grpc = doors.report(load).await;
        assert_eq!(over_grpc.kind, "malformed");
        assert!(over_grpc.message.contains("a load is a finite number, 0 or more"), "{over_grpc:?}");
        if load.is_finite() {
            let over_http = doors.post("/v1/worker/heartbeat", &doors.beat(load)).await.unwrap_err();
            assert_eq!((over_http.kind, over_http.message), (over_grpc.kind, over_grpc.message));
        }
        assert_eq!(doors.record().await, before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_words_name_the_nearest_known_one() {
    let doors = Doors::open().await;
    let body = json!({ "do": { "command": "release_brake" }, "dryrun": true });
    let told = doors.post("/v1/commands", &body).await.unwrap_err();
    assert_eq!((told.kind.as_str(), told.help.as_deref()), ("malformed", Some("did you mean dry_run?")));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("coordinator.toml");
    std::fs::write(&file, "listne = \"127.0.0.1:0\"\n").unwrap();
    let (code, told) = doors.shell(&["coordinator", "--config", file.to_str().unwrap()]);
    let told = told.unwrap();
    let sentence = format!("{} {}", told.message, told.help.unwrap_or_default());
    assert_eq!(code, 2, "{sentence}");
    assert!(sentence.contains("listne") && sentence.contains("listen"), "{sentence}");
}
