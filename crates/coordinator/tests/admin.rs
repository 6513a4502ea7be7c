//! Administration over HTTP, as `curl` sees it.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails where it cannot go on")]

mod door;

use door::{Door, Hand, told, until};
use partage_core::base::settings::Settings;
use partage_core::base::time::Millis;
use partage_core::cluster::{Cluster, Moment};
use partage_core::limits::KEY_BYTES;
use partage_wire::json::{Dump, Reading};
use serde_json::{Value, json};

fn unhurried() -> Settings {
    Settings { settle_ms: 50, lease_ms: 60_000, dead_after_ms: 60_000, ..Settings::default() }
}

fn keyspace(name: &str) -> Value {
    json!({ "name": name, "sharding": { "type": "key_range" } })
}

fn create(keyspace: Value, presplit: Value) -> Value {
    json!({ "command": "create_keyspace", "keyspace": keyspace, "presplit": presplit })
}

/// A coordinator with two workers and one keyspace of four shards that are all served.
async fn two_workers_and_four_shards() -> (Door, Hand, Hand) {
    let door = Door::with(unhurried()).await;
    let mut a = Hand::join(&door, "a").await;
    let mut b = Hand::join(&door, "b").await;
    let points = json!({ "type": "points", "keys": ["g", "n", { "hex": "7a00ff" }] });
    door.done(create(keyspace("kv"), points)).await;
    until(&door, &mut [&mut a, &mut b], |s| s["shards"]["led"] == 4 && s["moves"] == 0).await;
    for _ in 0..2 {
        a.go_on(&door, 0).await;
        b.go_on(&door, 0).await;
    }
    (door, a, b)
}

#[tokio::test]
async fn every_question_has_an_answer() {
    let (door, mut a, mut b) = two_workers_and_four_shards().await;

    let nodes = door.read("/v1/nodes").await;
    assert_eq!(nodes["nodes"][0]["id"], "a");
    assert_eq!(nodes["nodes"][0]["health"], "up");
    let held = |at: usize| nodes["nodes"][at]["replicas"]["kv"].as_u64().unwrap();
    assert_eq!(held(0) + held(1), 4);

    let one = door.read("/v1/keyspaces/kv").await;
    assert_eq!(one["ownership"], "exclusive");
    assert_eq!(door.read("/v1/keyspaces").await, json!({ "keyspaces": [one] }));

    let mut ids = Vec::new();
    let mut next = Some(0);
    while let Some(after) = next {
        let page = door.read(&format!("/v1/keyspaces/kv/shards?limit=3&after={after}")).await;
        ids.extend(page["shards"].as_array().unwrap().iter().map(|s| s["shard"].as_u64().unwrap()));
        next = page["next"].as_u64();
    }
    assert_eq!(ids, [1, 2, 3, 4]);
    let all = door.read("/v1/keyspaces/kv/shards").await;
    assert_eq!(all["shards"][0]["replicas"][0]["phase"], "serving", "{all}");
    assert_eq!(all["shards"][3]["bounds"]["begin"], json!({ "hex": "7a00ff" }));

    let plans = door.read("/v1/plans?keyspace=kv").await;
    let newest = &plans["plans"][0];
    assert_eq!(&door.read(&format!("/v1/plans/{}", newest["id"])).await, newest);
    assert_eq!(door.read("/v1/plans?limit=1").await["plans"], json!([newest]));

    let told = door.read("/v1/explain/kv?key=hello").await;
    assert_eq!(told["shard"]["shard"], 2);
    assert_eq!(told["granted"], true);
    assert!(told["text"].as_str().unwrap().contains("is in shard s2"), "{told}");
    assert_eq!(door.read("/v1/explain/kv?key_hex=7a00ff01").await["shard"]["shard"], 4);

    door.done(json!({ "command": "drain_node", "node": "a", "reason": "new disk" })).await;
    assert_eq!(door.read("/v1/drains").await["drains"][0]["reason"], "new disk");
    until(&door, &mut [&mut a, &mut b], |s| s["drains"][0]["progress"] == "safe_to_stop").await;
}

#[tokio::test]
async fn the_document_names_every_path() {
    let door = Door::open().await;
    let document = door.read("/v1/openapi.json").await;
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    let paths = document["paths"].as_object().unwrap();
    for path in [
        "/v1/commands",
        "/v1/status",
        "/v1/nodes",
        "/v1/keyspaces",
        "/v1/keyspaces/{keyspace}",
        "/v1/keyspaces/{keyspace}/shards",
        "/v1/plans",
        "/v1/plans/{plan}",
        "/v1/explain/{keyspace}",
        "/v1/moves",
        "/v1/drains",
        "/v1/events",
        "/v1/nodes/{node}",
        "/v1/dump",
        "/v1/worker/register",
        "/v1/worker/heartbeat",
        "/v1/worker/leave",
        "/health/live",
        "/health/ready",
        "/metrics",
    ] {
        assert!(paths.contains_key(path), "{path} is not in the document");
    }
    // Whatever it refers to is there.
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let text = document.to_string();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(schemas.contains_key(name), "{name} is referred to and not described");
    }
}

#[tokio::test]
async fn a_dump_is_everything_durable_and_a_coordinator_begins_again_from_it() {
    let (door, _a, _b) = two_workers_and_four_shards().await;
    door.done(json!({ "command": "drain_node", "node": "a", "reason": "new disk" })).await;
    let (status, document) = door.get("/v1/dump").await;
    assert_eq!(status, 200);
    let reading = Reading::of(document.to_string().as_bytes());
    assert_eq!((reading.problems, reading.has_lost), (vec![], false));
    assert_eq!(serde_json::to_value(Dump::from(&reading.records)).unwrap(), document);
    assert_eq!(document["nodes"][0]["drain"]["reason"], "new disk");
    assert_eq!(document["keyspaces"][0]["map"]["shards"].as_array().unwrap().len(), 4);
    let at = Moment { now: Millis(0), wall_ms: 0 };
    let cluster = Cluster::recover(at, unhurried(), reading.records.after_loss(at.wall_ms)).unwrap();
    assert_eq!((cluster.nodes().len(), cluster.keyspaces().len()), (2, 1));
}

#[tokio::test]
async fn a_dry_run_says_everything_and_changes_nothing() {
    let (door, _a, _b) = two_workers_and_four_shards().await;
    let look = async || {
        let paths = ["/v1/nodes", "/v1/keyspaces", "/v1/keyspaces/kv/shards", "/v1/plans", "/v1/drains"];
        let mut seen = Vec::new();
        for path in paths {
            seen.push(door.read(path).await);
        }
        seen
    };
    let before = look().await;
    let from = before[2]["shards"][0]["replicas"][0]["node"].as_str().unwrap();
    let to = if from == "a" { "b" } else { "a" };
    let update =
        |changes: Value| json!({ "command": "update_keyspace", "keyspace": "kv", "changes": changes });
    // What each would lead to: who makes the plan, and the kinds of its changes.
    let held = before[0]["nodes"][0]["replicas"]["kv"].as_u64().unwrap() as usize;
    let drained = vec!["move"; held];
    for (command, origin, changes) in [
        (create(keyspace("other"), json!({ "type": "none" })), "repair", vec!["add"]),
        (json!({ "command": "delete_keyspace", "keyspace": "kv" }), "", vec![]),
        (json!({ "command": "drain_node", "node": "a", "reason": "x" }), "drain", drained),
        (
            json!({ "command": "move_shard", "keyspace": "kv", "shard": 1, "from": from, "to": to }),
            "person",
            vec!["move"],
        ),
        (
            json!({
                "command": "split_shard", "keyspace": "kv", "shard": 1,
                "at": { "type": "keys", "keys": ["c"] },
            }),
            "person",
            vec!["split"],
        ),
        (update(json!({ "mode": "suggested" })), "", vec![]),
        (update(json!({ "replicas": 2 })), "repair", vec!["add"; 4]),
        (
            json!({ "command": "set_shard_replicas", "keyspace": "kv", "shard": 1, "replicas": 2 }),
            "repair",
            vec!["add"],
        ),
    ] {
        let (status, answer) = door.post("/v1/commands", &json!({ "do": command, "dry_run": true })).await;
        assert_eq!(status, 200, "{command}: {answer}");
        assert_eq!(answer["dry_run"], true);
        assert!(!answer["summary"].as_str().unwrap().is_empty());
        let plans =
            || answer.get("plan").into_iter().chain(answer["follows"].as_array().into_iter().flatten());
        assert!(plans().all(|plan| plan["origin"] == origin), "{command}: {answer}");
        let lines: Vec<&Value> = plans().flat_map(|plan| plan["changes"].as_array().unwrap()).collect();
        let kinds: Vec<_> = lines.iter().map(|line| line["change"]["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, changes, "{command}: {answer}");
        for line in lines {
            assert!(!line["reason"].as_str().unwrap().is_empty(), "{line}");
            assert!(line["change"]["type"] != "move" || line["change"]["from_node"].is_string(), "{line}");
        }
        assert_eq!(look().await, before, "{command}");
    }
}

#[tokio::test]
async fn what_cannot_be_is_told_with_its_kind_and_the_way_out() {
    let (door, _a, _b) = two_workers_and_four_shards().await;
    let named = |names: Value| {
        let keyspace = json!({ "name": "parts", "sharding": { "type": "named" } });
        create(keyspace, json!({ "type": "names", "names": names }))
    };
    let points = |keys: Value| create(keyspace("new"), json!({ "type": "points", "keys": keys }));
    let with = |field: &str, value: Value| {
        let mut keyspace = keyspace("new");
        keyspace[field] = value;
        create(keyspace, json!({ "type": "none" }))
    };
    let long = "k".repeat(KEY_BYTES + 1);
    let cases = [
        (named(json!(["p", "q", "p"])), 400, "invalid", "p"),
        (points(json!(["n", "g"])), 400, "invalid", ""),
        (points(json!(["g", "g"])), 400, "invalid", ""),
        (points(json!([""])), 400, "invalid", ""),
        (points(json!([long])), 400, "malformed", "4097"),
        (points(json!([{ "hex": "abc" }])), 400, "malformed", "hex"),
        (create(keyspace("kv"), json!({ "type": "none" })), 409, "already_exists", "kv"),
        (create(keyspace("a/b"), json!({ "type": "none" })), 400, "malformed", "'/'"),
        (create(keyspace("a\u{0}"), json!({ "type": "none" })), 400, "malformed", "\\0"),
        (create(keyspace(&"n".repeat(1 << 20)), json!({ "type": "none" })), 400, "malformed", "1048576"),
        (create(keyspace(""), json!({ "type": "none" })), 400, "malformed", "empty"),
        (with("replicas", json!(0)), 400, "invalid", "replicas"),
        (with("policy", json!("balancd")), 400, "invalid", "balanced"),
        (with("replcas", json!(1)), 400, "malformed", "replcas"),
        (json!({ "command": "delete_keyspace", "keyspace": "kw" }), 404, "not_found", "kv"),
        (json!({ "command": "drain_node", "node": "c", "reason": "x" }), 404, "not_found", "c"),
        (json!({ "command": "approve_plan", "plan": 99 }), 404, "not_found", "plan-99"),
        (json!({ "command": "remove_node", "node": "a" }), 422, "refused", "a"),
        (json!({ "command": "fly" }), 400, "malformed", "fly"),
        (
            json!({ "command": "merge_shards", "keyspace": "kv", "left": 1, "right": 3 }),
            400,
            "invalid",
            "name two neighbours",
        ),
    ];
    for (command, status, kind, names) in cases {
        let (given, word, message) = door.refused(command.clone()).await;
        let shown: String = command.to_string().chars().take(200).collect();
        assert_eq!((given, word.as_str()), (status, kind), "{shown}: {message}");
        assert!(message.contains(names), "{shown}: {message}");
    }
    // Nothing half done.
    assert_eq!(door.read("/v1/keyspaces").await["keyspaces"].as_array().unwrap().len(), 1);
    // The longest key is a key.
    let longest = json!({ "type": "points", "keys": ["k".repeat(KEY_BYTES)] });
    door.done(create(keyspace("long"), longest)).await;
}

#[tokio::test]
async fn a_mistyped_field_names_the_nearest() {
    let door = Door::open().await;
    let (status, answer) =
        door.post("/v1/commands", &json!({ "do": { "command": "release_brake" }, "dryrun": true })).await;
    assert_eq!(status, 400);
    assert_eq!(answer["error"]["help"], "did you mean dry_run?", "{answer}");
    for body in ["", "{", "[]", "nonsense"] {
        let (status, answer) = door.post_text("/v1/commands", body.to_owned()).await;
        assert_eq!((status, told(status, &answer).1.as_str()), (400, "malformed"), "{body}");
    }
}

#[tokio::test]
async fn replicas_for_nodes_that_are_still_to_join_are_reported_as_unplaced() {
    let (door, mut a, mut b) = two_workers_and_four_shards().await;
    let wide = json!({ "name": "wide", "sharding": { "type": "key_range" }, "replicas": 3 });
    let mut command = create(wide, json!({ "type": "none" }));
    command["ahead"] = json!(true);
    door.done(command).await;
    let placed = |s: &Value| s["shards"]["led"] == 5 && s["loads"] == 0 && s["unplaced"] != json!([]);
    let status = until(&door, &mut [&mut a, &mut b], placed).await;
    let lack = &status["unplaced"][0];
    assert_eq!((&lack["keyspace"], &lack["have"], &lack["want"]), (&json!("wide"), &json!(2), &json!(3)));
    assert!(lack["why"].as_str().unwrap().contains("add a node"), "{lack}");
}

#[tokio::test]
async fn bad_paths_and_queries_are_told_as_json() {
    let (door, _a, _b) = two_workers_and_four_shards().await;
    let long = format!("/v1/explain/kv?key={}", "k".repeat(KEY_BYTES + 1));
    let name = format!("/v1/keyspaces/{}", "n".repeat(10_000));
    for (path, status) in [
        ("/v1/keyspaces/kw", 404),
        ("/v1/keyspaces/a%2Fb", 400),
        ("/v1/keyspaces/a%00", 400),
        (name.as_str(), 400),
        ("/v1/keyspaces/kv/shards?limit=0", 400),
        ("/v1/keyspaces/kv/shards?limit=10001", 400),
        ("/v1/keyspaces/kv/shards?aftr=1", 400),
        ("/v1/keyspaces/kv/shards?after=-1", 400),
        ("/v1/plans/x", 400),
        ("/v1/plans/99", 404),
        ("/v1/plans?keyspace=kw", 404),
        ("/v1/explain/kv", 400),
        ("/v1/explain/kv?key=a&key_hex=61", 400),
        ("/v1/explain/kv?key_hex=6", 400),
        (long.as_str(), 400),
        ("/v1/explain/kw?key=a", 404),
        ("/v1/commands", 405),
        ("/v1", 404),
        ("/", 404),
    ] {
        let (given, answer) = door.get(path).await;
        let shown: String = path.chars().take(80).collect();
        assert_eq!(given, status, "{shown}: {answer}");
        told(given, &answer);
    }
    // Keys of no bytes, and the longest, are keys.
    assert_eq!(door.read("/v1/explain/kv?key=").await["shard"]["shard"], 1);
    let longest = "k".repeat(KEY_BYTES);
    assert_eq!(door.read(&format!("/v1/explain/kv?key={longest}")).await["shard"]["shard"], 2);
}

#[tokio::test]
async fn who_asks_is_kept() {
    let (door, _a, _b) = two_workers_and_four_shards().await;
    let shards = door.read("/v1/keyspaces/kv/shards").await;
    let from = shards["shards"][0]["replicas"][0]["node"].as_str().unwrap();
    let to = if from == "a" { "b" } else { "a" };
    let command = json!({ "command": "move_shard", "keyspace": "kv", "shard": 1, "from": from, "to": to });
    let ask = |user: &str| {
        let request = hyper::Request::post(door.url("/v1/commands"))
            .header("content-type", "application/json")
            .header("partage-user", user);
        let body = json!({ "do": command, "dry_run": true }).to_string();
        request.body(http_body_util::Full::from(bytes::Bytes::from(body))).unwrap()
    };
    let (_, text) = door.send(ask("jane")).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["plan"]["person"], "jane", "{answer}");
    let (status, _) = door.send(ask(&"j".repeat(256))).await;
    assert_eq!(status, 400);
    let answer = door.post("/v1/commands", &json!({ "do": command, "dry_run": true })).await.1;
    assert_eq!(answer["plan"]["person"], "anonymous");
}

#[tokio::test]
async fn a_body_above_the_limit_is_refused_with_the_limit() {
    let door = Door::open().await;
    let limit = partage_coordinator::limits::BODY_BYTES;
    // Only its length is told: it is refused before it is sent.
    let mut stream = tokio::net::TcpStream::connect(door.coordinator.address()).await.unwrap();
    let head = format!(
        "POST /v1/commands HTTP/1.1\r\nhost: localhost\r\npartage-request: 1\r\ncontent-length: {}\r\n\r\n",
        limit + 1
    );
    tokio::io::AsyncWriteExt::write_all(&mut stream, head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4_096];
    let read = tokio::io::AsyncReadExt::read(&mut stream, &mut answer).await.unwrap();
    let text = String::from_utf8_lossy(&answer[..read]);
    assert!(text.starts_with("HTTP/1.1 413"), "{text}");
    assert!(text.contains(&limit.to_string()), "{text}");
}

#[tokio::test]
async fn the_numbers_say_how_it_stands_and_forget_what_is_deleted() {
    let (door, mut a, mut b) = two_workers_and_four_shards().await;
    let scrape = async || {
        let request = hyper::Request::get(door.url("/metrics")).body(Default::default()).unwrap();
        door.send(request).await.1
    };
    let text = scrape().await;
    for line in [
        "partage_coordinator_nodes{health=\"up\"} 2",
        "partage_coordinator_nodes{health=\"down\"} 0",
        "partage_coordinator_shards{keyspace=\"kv\"} 4",
        "partage_coordinator_shards_unserved{keyspace=\"kv\",why=\"silent\"} 0",
        "partage_coordinator_shards_short{keyspace=\"kv\"} 0",
        "partage_coordinator_moves{keyspace=\"kv\"} 0",
        "partage_coordinator_brake 0",
        "partage_coordinator_unrest 0",
        "partage_coordinator_subscribers 0",
        "# EOF",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let commits = text.lines().find_map(|line| line.strip_prefix("partage_coordinator_commit_seconds_sum "));
    assert!(commits.unwrap().parse::<f64>().unwrap() > 0.0, "{text}");
    door.done(json!({ "command": "delete_keyspace", "keyspace": "kv" })).await;
    a.go_on(&door, 0).await;
    b.go_on(&door, 0).await;
    let text = scrape().await;
    assert!(!text.contains("keyspace=\"kv\""), "{text}");
}

async fn metrics(door: &Door) -> String {
    door.send(hyper::Request::get(door.url("/metrics")).body(Default::default()).unwrap()).await.1
}

/// C13: why a shard is not served, by metric and status alike, with labels that are not 0.
#[tokio::test]
async fn the_numbers_say_why_shards_are_not_served() {
    let settings = Settings {
        settle_ms: 50,
        heartbeat_ms: 100,
        lease_ms: 500,
        dead_after_ms: 600,
        brake_window_ms: 600_000,
        ..Settings::default()
    };
    let door = Door::with(settings).await;
    let (mut a, mut b) = (Hand::join(&door, "a").await, Hand::join(&door, "b").await);
    door.done(create(keyspace("kv"), json!({ "type": "points", "keys": ["g", "n", "t"] }))).await;
    until(&door, &mut [&mut a, &mut b], |s| s["shards"]["led"] == 4 && s["moves"] == 0).await;
    // Nobody is left that could take the shards: they are silent first, and then the brake holds them.
    let whys = ["silent", "braked", "waiting", "set_aside", "loading", "unplaced"];
    let status = until(&door, &mut [], |s| s["brake"].is_string() && s["shards"]["led"] == 0).await;
    let (counts, text) = (&status["shards"], metrics(&door).await);
    let told = whys.iter().map(|why| counts[why].as_u64().unwrap()).sum::<u64>();
    assert_eq!((counts["unserved"].as_u64(), told), (Some(4), 4), "{counts}");
    for why in whys {
        let line = format!("shards_unserved{{keyspace=\"kv\",why=\"{why}\"}} {}", counts[why]);
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
    for line in
        ["coordinator_brake 1", "shards_served{keyspace=\"kv\"} 0", "shards_unheard{keyspace=\"kv\"} 0"]
    {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

/// C13, C15: what the next leader says before and after it has heard the nodes.
#[tokio::test]
async fn a_coordinator_that_has_just_begun_does_not_know_yet_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let door = Door::on_disk(unhurried(), dir.path(), "127.0.0.1:0").await;
    let (mut a, mut b) = (Hand::join(&door, "a").await, Hand::join(&door, "b").await);
    door.done(create(keyspace("kv"), json!({ "type": "points", "keys": ["g", "n", "t"] }))).await;
    until(&door, &mut [&mut a, &mut b], |s| s["shards"]["led"] == 4 && s["moves"] == 0).await;
    door.done(json!({ "command": "drain_node", "node": "a", "reason": "new disk" })).await;
    let plan = door.read("/v1/plans?limit=1").await["plans"][0]["id"].clone();
    let path = format!("/v1/plans/{plan}");
    until(&door, &mut [&mut a, &mut b], |s| s["drains"][0]["progress"] == "safe_to_stop").await;
    let mut finished = door.read(&path).await;
    for _ in 0..100 {
        if finished["status"] == "finished" {
            break;
        }
        a.go_on(&door, 50).await;
        b.go_on(&door, 50).await;
        finished = door.read(&path).await;
    }
    assert_eq!((&finished["origin"], &finished["status"]), (&json!("drain"), &json!("finished")));
    door.coordinator.stop().await;

    let door = Door::on_disk(unhurried(), dir.path(), "127.0.0.1:0").await;
    let (status, text) = (door.read("/v1/status").await, metrics(&door).await);
    let counts = &status["shards"];
    assert_eq!((&counts["unheard"], &counts["unserved"], &counts["led"]), (&json!(4), &json!(0), &json!(0)));
    assert_eq!((&status["problems"], &status["nodes"]), (&json!([]), &json!({ "unknown": 2 })));
    for line in ["shards_unheard{keyspace=\"kv\"} 4", "shards_unserved{keyspace=\"kv\",why=\"silent\"} 0"] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let page = door.read("/v1/keyspaces/kv/shards").await;
    assert_eq!(page["shards"][0]["serving"], "unheard");
    let after = door.read(&path).await;
    assert_eq!(after, finished, "a plan that is over names the nodes that its replicas have left");
    assert_eq!(after["changes"][0]["change"]["from_node"], "a", "{after}");
    a.register_again(&door).await;
    b.register_again(&door).await;
    until(&door, &mut [&mut a, &mut b], |s| s["shards"]["led"] == 4 && s["shards"]["unheard"] == 0).await;
}
