//! The worker protocol over HTTP, as a worker in any language sees it.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails where it cannot go on")]

mod door;

use axum::extract::State;
use bytes::Bytes;
use door::{Door, Hand, PATIENCE, told, until};
use http_body_util::Full;
use hyper::Request;
use partage_core::base::settings::Settings;
use partage_core::limits;
use partage_wire::proto::{self, worker_client::WorkerClient};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Nobody is given up while a test looks elsewhere.
fn unhurried() -> Settings {
    Settings { settle_ms: 50, lease_ms: 60_000, dead_after_ms: 60_000, ..Settings::default() }
}

fn create(name: &str, shards: u32) -> Value {
    json!({
        "command": "create_keyspace",
        "keyspace": { "name": name, "sharding": { "type": "hash_range", "hash": "xxh3-64" } },
        "presplit": { "type": "hash_ranges", "shards": shards },
    })
}

#[tokio::test]
async fn a_worker_is_given_shards_drained_and_leaves() {
    let door = Door::with(unhurried()).await;
    let mut a = Hand::join(&door, "a").await;
    let mut b = Hand::join(&door, "b").await;
    door.done(create("kv", 8)).await;
    until(&door, &mut [&mut a, &mut b], |s| s["shards"]["led"] == 8 && s["moves"] == 0).await;
    assert_eq!(a.orders.len() + b.orders.len(), 8);
    assert!(!a.orders.is_empty() && !b.orders.is_empty());

    door.done(json!({ "command": "drain_node", "node": "a", "reason": "kernel" })).await;
    until(&door, &mut [&mut a, &mut b], |s| s["drains"][0]["progress"] == "safe_to_stop").await;
    while !a.orders.is_empty() {
        a.go_on(&door, 1_000).await;
    }
    b.go_on(&door, 0).await;
    assert_eq!(b.orders.len(), 8);

    let mut beat = a.beat();
    beat["leaving"] = json!(true);
    let (status, orders) = door.post("/v1/worker/heartbeat", &beat).await;
    assert_eq!((status, &orders["may_go"]), (200, &json!(true)), "{orders}");
    // A beat that does not mention it takes nothing back.
    let (status, orders) = door.post("/v1/worker/heartbeat", &a.beat()).await;
    assert_eq!((status, &orders["may_go"]), (200, &json!(true)), "{orders}");
    let leave = json!({ "node": "a", "incarnation": a.incarnation, "token": a.token });
    assert_eq!(door.post("/v1/worker/leave", &leave).await, (204, Value::Null));
    let (status, answer) = door.post("/v1/worker/leave", &leave).await;
    assert_eq!(told(status, &answer).1, "ended");
    assert_eq!(status, 410);
}

/// Neither a worker that says `loading` for ever nor one that failed once and never tries again keeps a shard (A12,
/// L1, L4): after `load_ms` others have it, whatever the worker goes on to say, also of what it is to delete.
#[tokio::test]
async fn a12_a_worker_that_never_gets_beyond_loading_is_given_up() {
    let settings = Settings { handover_ms: 1_000, ..unhurried() };
    let loading = json!({ "phase": "loading", "epoch": 0 });
    let failed = json!({ "phase": "failed", "epoch": 0, "attempts": 1, "reason": "the disk is gone" });
    for says in [loading, failed] {
        let door = Door::with(settings.clone()).await;
        let mut a = Hand::join(&door, "a").await;
        a.hangs = Some(says.clone());
        let mut b = Hand::join(&door, "b").await;
        let mut wanted = create("kv", 8);
        wanted["keyspace"]["throttle"] = json!({ "load_ms": 1_500 });
        door.done(wanted).await;
        let first = until(&door, &mut [&mut a, &mut b], |s| s["shards"]["led"] != 0).await;
        assert!(!a.orders.is_empty() && first["shards"]["led"] != 8, "the first is given some: {first}");
        let all = |s: &Value| s["shards"]["led"] == 8 && s["moves"] == 0;
        until(&door, &mut [&mut a, &mut b], all).await;
        while !a.orders.is_empty() {
            a.go_on(&door, 1_000).await;
        }
        b.go_on(&door, 0).await;
        assert_eq!(b.orders.len(), 8, "{says}");

        // What cannot be, says so: nobody is left to take it.
        door.done(json!({ "command": "drain_node", "node": "b", "reason": "kernel" })).await;
        let blocked = |s: &Value| s["drains"][0]["progress"] == "blocked";
        let status = until(&door, &mut [&mut a, &mut b], blocked).await;
        let why = status["drains"][0].to_string();
        assert!(why.contains("has been loading it for 1 s") || why.contains("hang on every node"), "{why}");
    }
}

#[tokio::test]
async fn a_waiting_heartbeat_is_answered_when_there_is_news() {
    let door = Door::with(unhurried()).await;
    let mut a = Hand::join(&door, "a").await;
    a.go_on(&door, 0).await;

    let begun = Instant::now();
    let quiet = a.go_on(&door, 300).await;
    assert!(begun.elapsed() >= Duration::from_millis(300), "nothing was waited for: {quiet}");
    assert_eq!(quiet["changed"], json!([]));

    let sent = 1_000 + a.sequence + 1;
    let (news, _) = tokio::join!(a.go_on(&door, 15_000), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        door.done(create("kv", 1)).await
    });
    assert_eq!(news["changed"][0]["state"], "load", "{news}");
    // The lease is that of the beat which asked, so it counts from when that was sent.
    assert_eq!(news["lease"], json!({ "sent_at_ms": sent, "lease_ms": 60_000 }));
    assert!(begun.elapsed() < Duration::from_secs(15));
}

#[tokio::test]
async fn a_wait_never_outlasts_the_lease() {
    let settings = Settings { lease_ms: 1_200, dead_after_ms: 60_000, ..unhurried() };
    let door = Door::with(settings).await;
    let mut a = Hand::join(&door, "a").await;
    a.go_on(&door, 0).await;
    let begun = Instant::now();
    a.go_on(&door, 30_000).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "waited for {:?}", begun.elapsed());
}

#[tokio::test]
async fn refusals_say_whether_to_try_again() {
    let door = Door::with(unhurried()).await;
    let mut a = Hand::join(&door, "a").await;
    let (register, token) = ("/v1/worker/register", "0".repeat(64));
    let cases = [
        (register, json!({ "id": "a", "address": "127.0.0.1:1" }), 409, "name_taken"),
        (register, json!({ "id": "z", "address": "127.0.0.1:1", "incarnation": 9 }), 410, "unknown_node"),
        (register, json!({ "id": "z/y", "address": "127.0.0.1:1" }), 400, "malformed"),
        (register, json!({ "id": "z\u{0}", "address": "127.0.0.1:1" }), 400, "malformed"),
        (register, json!({ "id": "z".repeat(1 << 20), "address": "127.0.0.1:1" }), 400, "malformed"),
        (register, json!({ "id": "z", "address": "nowhere" }), 400, "malformed"),
        (register, json!({ "id": "z", "address": "127.0.0.1:1", "capacity": 0 }), 400, "malformed"),
        (register, json!({ "id": "z", "address": "127.0.0.1:1", "capacity": -1 }), 400, "malformed"),
        (register, json!({ "id": "z", "address": "127.0.0.1:1", "capcity": 1 }), 400, "malformed"),
        (
            "/v1/worker/heartbeat",
            json!({ "node": "z", "incarnation": 1, "token": token, "sequence": 1, "sent_at_ms": 0 }),
            428,
            "not_registered",
        ),
        (
            "/v1/worker/heartbeat",
            json!({ "node": "z", "incarnation": 1, "sequence": 1, "sent_at_ms": 0 }),
            400,
            "malformed",
        ),
        ("/v1/worker/heartbeat?wait_ms=30001", a.beat(), 400, "malformed"),
        ("/v1/worker/leave", json!({ "node": "z", "incarnation": 1, "token": token }), 428, "not_registered"),
        ("/v1/worker/leave", json!({ "node": "a", "incarnation": 1, "token": "x" }), 400, "malformed"),
    ];
    for (path, body, status, kind) in cases {
        let (given, answer) = door.post(path, &body).await;
        let (_, word, _) = told(given, &answer);
        assert_eq!((given, word.as_str()), (status, kind), "{path} {answer}");
    }
    let nodes = door.read("/v1/nodes").await;
    assert_eq!(nodes["nodes"].as_array().unwrap().len(), 1, "a refused node was taken in: {nodes}");

    a.go_on(&door, 0).await;
    let mut beat = a.beat();
    beat["sequence"] = json!(1);
    let (status, answer) = door.post("/v1/worker/heartbeat", &beat).await;
    assert_eq!((status, told(status, &answer).1.as_str()), (409, "late"));
    assert_eq!(answer["error"]["help"], "go_on");
}

/// The routes of workers that can answer 428 say so in the API document, and those that say so do.
#[tokio::test]
async fn a_worker_is_told_to_register_again_on_every_route_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let before = Door::on_disk(unhurried(), dir.path(), "127.0.0.1:0").await;
    let mut a = Hand::join(&before, "a").await;
    a.go_on(&before, 0).await;
    before.coordinator.stop().await;
    let door = Door::on_disk(unhurried(), dir.path(), "127.0.0.1:0").await;
    let (status, answer) = door.post("/v1/worker/heartbeat", &a.beat()).await;
    let (_, kind, _) = told(status, &answer);
    assert_eq!(
        (status, kind.as_str(), &answer["error"]["help"]),
        (428, "register_again", &json!("register_again"))
    );
    let stranger = json!({ "node": "z", "incarnation": 1, "token": a.token });
    let (status, answer) = door.post("/v1/worker/leave", &stranger).await;
    let (_, kind, _) = told(status, &answer);
    assert_eq!(
        (status, kind.as_str(), &answer["error"]["help"]),
        (428, "not_registered", &json!("register_again"))
    );
    let document = door.read("/v1/openapi.json").await;
    let paths = document["paths"].as_object().unwrap().iter();
    let say_so: Vec<&str> = paths
        .filter(|(_, path)| !path["post"]["responses"]["428"].is_null())
        .map(|(path, _)| path.as_str())
        .collect();
    assert_eq!(say_so, ["/v1/worker/heartbeat", "/v1/worker/leave"]);
    a.register_again(&door).await;
    a.go_on(&door, 0).await;
}

/// Seen before: a `leave` from anybody ended the lease of a node that lived, and all of its keys had two owners; a heartbeat of
/// the highest number silenced the real ones.
#[tokio::test]
async fn z1_a_message_without_the_token_ends_silences_and_moves_no_node() {
    let door = Door::with(unhurried()).await;
    let mut a = Hand::join(&door, "a").await;
    let mut b = Hand::join(&door, "b").await;
    door.done(create("kv", 4)).await;
    until(&door, &mut [&mut a, &mut b], |s| s["shards"]["led"] == 4).await;
    let before = door.read("/v1/keyspaces/kv/shards").await;
    let guessed = "0".repeat(64);
    let mut loud = a.beat();
    loud["sequence"] = json!(u64::MAX);
    a.sequence -= 1;
    for token in [&guessed, &b.token] {
        loud["token"] = json!(token);
        let forged = [
            ("/v1/worker/leave", json!({ "node": "a", "incarnation": a.incarnation, "token": token })),
            ("/v1/worker/heartbeat", loud.clone()),
            (
                "/v1/worker/register",
                json!({ "id": "a", "address": "127.0.0.1:9", "incarnation": a.incarnation, "token": token }),
            ),
        ];
        for (path, body) in forged {
            let (status, answer) = door.post(path, &body).await;
            assert_eq!((status, told(status, &answer).1.as_str()), (410, "wrong_token"), "{path} {answer}");
            assert!(!answer.to_string().contains(token.as_str()), "it is not repeated: {answer}");
        }
    }
    let nobody = json!({ "id": "a", "address": "127.0.0.1:9", "incarnation": a.incarnation });
    let (status, answer) = door.post("/v1/worker/register", &nobody).await;
    assert_eq!((status, told(status, &answer).1.as_str()), (410, "wrong_token"), "{answer}");
    loud["token"] = json!(a.token);
    let (status, answer) = door.post("/v1/worker/heartbeat", &loud).await;
    assert_eq!((status, told(status, &answer).1.as_str()), (400, "malformed"), "its own, too: {answer}");

    let request = Request::get(door.url("/metrics")).body(Full::default()).unwrap();
    let metrics = door.send(request).await.1;
    assert!(metrics.contains("\npartage_coordinator_wrong_tokens 7\n"), "{metrics}");
    a.go_on(&door, 0).await;
    assert_eq!(door.read("/v1/keyspaces/kv/shards").await, before, "nothing has changed");
}

/// A fleet behind one address starts; a stranger who registers on and on is stopped, over both protocols, and nobody else
/// notices it.
#[tokio::test]
async fn z2_one_address_registers_a_fleet_and_no_more() {
    let door = Door::with(unhurried()).await;
    let mut a = Hand::join(&door, "a").await;
    door.done(create("kv", 4)).await;
    until(&door, &mut [&mut a], |s| s["shards"]["led"] == 4).await;
    let before = door.read("/v1/keyspaces/kv/shards").await;
    let begun = Instant::now();
    let ghost =
        |number: u64| json!({ "id": format!("ghost-{number}"), "address": format!("10.0.0.7:{number}") });
    let mut taken = 1;
    let refused = loop {
        let (status, answer) = door.post("/v1/worker/register", &ghost(taken)).await;
        if status != 200 {
            break told(status, &answer);
        }
        taken += 1;
        let most = limits::NEWCOMERS + begun.elapsed().as_millis() as u64 / limits::NEWCOMER_MS + 1;
        assert!(taken <= most, "{taken} were taken in");
    };
    assert!(taken >= limits::NEWCOMERS, "a fleet is let in: {taken} were");
    assert_eq!((refused.0, refused.1.as_str()), (429, "too_many"), "{}", refused.2);
    let is_refused = async || {
        let request =
            Request::post(door.url("/v1/worker/register")).header("content-type", "application/json");
        let request = request.body(Full::from(ghost(60_000).to_string())).unwrap();
        door.answer(request).await
    };
    // Room comes back each tenth of a second: it may have just come.
    let answer = loop {
        let answer = is_refused().await;
        if answer.status() == 429 {
            break answer;
        }
    };
    assert_eq!(answer.headers()["retry-after"], "1");

    let channel = tonic::transport::Endpoint::new(door.url("")).unwrap().connect().await.unwrap();
    let (send, messages) = mpsc::channel(8);
    let mut over_grpc = WorkerClient::new(channel)
        .attend(tokio_stream::wrappers::ReceiverStream::new(messages))
        .await
        .unwrap()
        .into_inner();
    let kind = loop {
        let spec = proto::NodeSpec {
            id: "ghost-0".into(),
            address: "10.0.0.7:61000".into(),
            capacity: Some(1.0),
            ..Default::default()
        };
        let register = proto::Register { spec: Some(spec), ..Default::default() };
        let message = Some(proto::from_worker::Message::Register(register));
        send.send(proto::FromWorker { message }).await.unwrap();
        match over_grpc.message().await.unwrap().unwrap().message.unwrap() {
            proto::to_worker::Message::Refused(refused) => break refused.kind,
            proto::to_worker::Message::Welcome(_) | proto::to_worker::Message::Orders(_) => {}
        }
    };
    assert_eq!(kind, "too_many");

    a.register_again(&door).await;
    a.go_on(&door, 0).await;
    assert_eq!(door.read("/v1/keyspaces/kv/shards").await, before, "nothing has changed");
    let request = Request::get(door.url("/metrics")).body(Full::default()).unwrap();
    let metrics = door.send(request).await.1;
    let counted =
        metrics.lines().find_map(|line| line.strip_prefix("partage_coordinator_registrations_refused "));
    assert!(counted.unwrap().parse::<u64>().unwrap() >= 3, "{metrics}");
    let events = door.read("/v1/events").await.to_string();
    let lines = events.matches("registers more nodes than one address may").count();
    assert!(lines as u64 <= 1 + begun.elapsed().as_secs() / 60 && lines > 0, "{lines} lines");
}

#[tokio::test]
async fn a_load_that_is_no_number_is_refused() {
    let door = Door::with(unhurried()).await;
    let mut a = Hand::join(&door, "a").await;
    door.done(create("kv", 1)).await;
    until(&door, &mut [&mut a], |s| s["shards"]["led"] == 1).await;
    let mut beat = a.beat();
    beat["reports"][0]["load"] = json!({ "requests_per_s": -1.0 });
    let (status, answer) = door.post("/v1/worker/heartbeat", &beat).await;
    let (_, kind, message) = told(status, &answer);
    assert_eq!((status, kind.as_str()), (400, "malformed"));
    assert!(message.contains("reports[0].load.requests"), "{message}");
    // JSON has no word for it; whoever writes it all the same is told where.
    let text = beat.to_string().replace("-1.0", "NaN");
    let (status, answer) = door.post_text("/v1/worker/heartbeat", text).await;
    assert_eq!((status, told(status, &answer).1.as_str()), (400, "malformed"));
}

#[tokio::test]
async fn a_shell_reads_orders_line_by_line() {
    let door = Door::with(unhurried()).await;
    let mut a = Hand::join(&door, "a").await;
    door.done(create("kv", 1)).await;
    until(&door, &mut [&mut a], |s| s["shards"]["led"] == 1).await;
    a.applied = 0;
    let plain = |body: Value| {
        let request = Request::post(door.url("/v1/worker/heartbeat"))
            .header("accept", "text/plain")
            .header("partage-request", "1");
        request.body(Full::from(Bytes::from(body.to_string()))).unwrap()
    };
    let (status, text) = door.send(plain(a.beat())).await;
    assert_eq!(status, 200);
    let words: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let line = |first: &str| words.iter().find(|line| line[0] == first).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(line("lease")[2], "60000");
    assert_eq!(line("keyspace")[1..], ["kv", "exclusive", "hash_range:xxh3-64", "whole"]);
    let order = line("order");
    assert_eq!((order[1], &order[4..6], order[7]), ("kv", &["leader", "live"][..], "granted"), "{text}");
    assert_eq!(order[8..], ["hashes", "0000000000000000", "ffffffffffffffff"]);

    let (status, text) = door.send(plain(json!({ "node": "z" }))).await;
    assert_eq!(status, 400);
    assert!(text.starts_with("error malformed "), "{text}");
}

#[tokio::test]
async fn orders_are_posted_to_the_callback() {
    let (heard, mut posted) = mpsc::channel::<Value>(64);
    let take = async |State(heard): State<mpsc::Sender<Value>>, body: String| {
        let _ = heard.send(serde_json::from_str(&body).unwrap()).await;
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = axum::Router::new().route("/orders", axum::routing::post(take)).with_state(heard);
    let server = tokio::spawn(async move { axum::serve(listener, service).await });

    let door = Door::with(unhurried()).await;
    let form = json!({
        "id": "a", "address": address.to_string(), "callback": format!("http://{address}/orders"),
    });
    let (status, welcome) = door.post("/v1/worker/register", &form).await;
    assert_eq!(status, 200, "{welcome}");
    let beat = json!({
        "node": "a", "incarnation": welcome["incarnation"], "token": welcome["token"], "sequence": 1, "sent_at_ms": 1,
    });
    assert_eq!(door.post("/v1/worker/heartbeat", &beat).await.0, 200, "nothing is given before a beat (A11)");
    door.done(create("kv", 1)).await;
    let orders = tokio::time::timeout(PATIENCE, async {
        loop {
            let orders = posted.recv().await.unwrap();
            if orders["changed"] != json!([]) {
                return orders;
            }
        }
    });
    let orders = orders.await.unwrap();
    assert_eq!(orders["changed"][0]["state"], "load");
    assert_eq!(orders["incarnation"], welcome["incarnation"]);
    assert!(orders.get("lease").is_none(), "only a beat renews a lease: {orders}");
    server.abort();
}
