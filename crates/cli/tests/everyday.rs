//! What an operator reaches for every day: events, one node, one shard, waiting, questions, shells (C14).

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails where it cannot go on")]

#[allow(dead_code, reason = "the doors are shared, and not all of them are used here")]
mod doors;

use doors::Doors;
use partage_coordination::embedded::Embedded;
use partage_coordinator::{Backing, Config, Coordinator};
use partage_wire::proto;
use serde_json::{Value, json};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

fn run(address: &str, arguments: &[&str]) -> Output {
    let mut partage = Command::new(env!("CARGO_BIN_EXE_partage"));
    partage.args(arguments).env("PARTAGE_COORDINATOR", address).stdin(Stdio::null());
    partage.output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The events that `partage events --json` prints.
fn events(doors: &Doors, more: &[&str]) -> Vec<Value> {
    let said = doors.text(&[&["--json", "events"], more].concat());
    // What is told beside them stands between.
    said.lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["kind"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_say_what_changed_when_why_and_by_whom() {
    let mut doors = Doors::open().await;
    assert_eq!(doors.shell(&["keyspace", "delete", "kv", "--yes", "--as", "alice"]), (0, None));
    let all = events(&doors, &[]);
    for kind in ["leader_changed", "node_registered", "keyspace_created", "keyspace_deleted"] {
        assert!(kinds(&all).contains(&kind), "{kind}: {all:#?}");
    }
    let deleted = all.iter().find(|event| event["kind"] == "keyspace_deleted").unwrap();
    assert_eq!((&deleted["actor"], &deleted["by"]), (&json!("person"), &json!("alice")));
    assert_eq!(deleted["keyspace"], "kv");
    assert!(deleted["at_ms"].as_u64().unwrap() > 1_600_000_000_000);
    assert!(deleted["text"].as_str().unwrap().contains("delete keyspace kv with 3 shards"), "{deleted}");
    let registered = all.iter().find(|event| event["kind"] == "node_registered").unwrap();
    assert_eq!((&registered["actor"], &registered["by"]), (&json!("node"), &json!("a")));

    assert!(events(&doors, &["--keyspace", "parts"]).iter().all(|event| event["keyspace"] == "parts"));
    assert_eq!(kinds(&events(&doors, &["--node", "a"])), ["node_registered"]);
    assert_eq!(events(&doors, &["--since", "1h"]), all);
    assert_eq!(events(&doors, &["--limit", "1"]).last(), all.last());
    let text = doors.text(&["events"]);
    assert!(text.contains("alice") && text.contains("keyspace_deleted"), "{text}");
    let dry = doors.shell(&["keyspace", "delete", "parts", "--dry-run"]);
    assert_eq!((dry, events(&doors, &[])), ((0, None), all.clone()), "a dry run is no event");

    let asked = proto::ListEventsRequest { keyspace: "kv".into(), ..Default::default() };
    let told = doors.admin.list_events(asked).await.unwrap().into_inner();
    assert_eq!(told.events.last().unwrap().by, "alice");
    let asked = proto::ListEventsRequest { after: told.next, ..Default::default() };
    assert_eq!(doors.admin.list_events(asked).await.unwrap().into_inner().events, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_names_that_are_wrong_say_so() {
    let doors = Doors::open().await;
    let (code, told) = doors.shell(&["events", "--keyspace", "kvv"]);
    assert!(code == 4 && told.unwrap().message.contains("did you mean kv"));
    let (code, told) = doors.shell(&["events", "--node", "nobody"]);
    assert!(code == 4 && told.unwrap().message.contains("nobody"));
    for wrong in [&["events", "--since", "soon"][..], &["events", "--limit", "0"]] {
        assert_eq!(doors.shell(wrong).0, 2, "{wrong:?}");
    }
    for wrong in ["/v1/events?after=x", "/v1/events?limit=0", "/v1/events?limit=10001"] {
        assert_eq!(doors.get(wrong).await.unwrap_err().kind, "malformed", "{wrong}");
    }
}

async fn start(store: &Arc<Embedded>, id: &str) -> Coordinator {
    let session = Duration::from_millis(500);
    let backing = Backing::Open { coordination: store.clone(), data_dir: None, session };
    let listen = "127.0.0.1:0".parse().unwrap();
    Coordinator::start(Config { backing, id: Some(id.to_owned()), ..Config::new(listen) }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_leader_knows_what_happened_before() {
    let store = Embedded::in_memory();
    let first = start(&store, "c1").await;
    let address = first.address().to_string();
    let create = ["keyspace", "create", "k", "--shards", "2", "--as", "bob"];
    while run(&address, &create).status.code() == Some(3) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    first.stop().await;
    let second = start(&store, "c2").await;
    let address = second.address().to_string();
    let mut said = String::new();
    for _ in 0..400 {
        said = out(&run(&address, &["events"]));
        if said.contains("c2 at") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let lines: Vec<_> = said.lines().collect();
    let at = |text: &str| {
        lines.iter().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {said}"))
    };
    assert!(at("c1 at") < at("create keyspace k") && at("create keyspace k") < at("c2 at"), "{said}");
    assert!(lines[at("create keyspace k")].contains("bob"), "{said}");
    // A change of leader gives no event twice, and none a number that another has.
    let events = out(&run(&address, &["events", "--json"]));
    let places: std::collections::BTreeSet<_> = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|event| (event["term"].as_u64(), event["number"].as_u64()))
        .collect();
    assert_eq!(places.len(), events.lines().count(), "{events}");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_and_a_shard_show_each_other() {
    let doors = Doors::open().await;
    let create = json!({
        "command": "create_keyspace", "keyspace": { "name": "k", "sharding": { "type": "key_range" } },
        "presplit": { "type": "none" },
    });
    doors.command(&create, false).await.unwrap();
    let listener = doors.takes_one_of("k").await.listener;
    let address = listener.local_addr().unwrap().to_string();
    let node: Value = serde_json::from_str(&doors.text(&["--json", "node", "show", "w"])).unwrap();
    assert_eq!((&node["id"], &node["address"]), (&json!("w"), &json!(address)));
    assert!(node["heard_ms_ago"].is_u64() && node["lease_left_ms"].as_u64().unwrap() > 0, "{node}");
    assert_eq!((&node["shards"][0]["keyspace"], &node["shards"][0]["shard"]), (&json!("k"), &json!(1)));
    let said = doors.text(&["node", "show", "w"]);
    for part in [&address[..], "last beat", "lease", "labels", "capacity", "\nk ", "s1", "keys from"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let by_id = doors.text(&["shard", "show", "k", "s1"]);
    assert!(by_id.contains("shard      s1 of k") && by_id.contains(&format!("at {address}")), "{by_id}");
    let by_key = doors.text(&["shard", "show", "k", "hello"]);
    assert!(by_key.contains("key        hello") && by_key.contains("shard      s1 of k"), "{by_key}");
    let looks_like_one = doors.text(&["shard", "show", "k", "s1", "--key"]);
    assert!(looks_like_one.contains("key        s1"), "{looks_like_one}");
    let shard: Value = serde_json::from_str(&doors.text(&["--json", "shard", "show", "k", "1"])).unwrap();
    assert_eq!((&shard["shard"], &shard["replicas"][0]["node"]), (&json!(1), &json!("w")));

    for (wrong, part) in [
        (&["node", "show", "v"][..], "no node v"),
        (&["shard", "show", "k", "s9"], "no shard s9"),
        (&["shard", "show", "kk", "s1"], "no keyspace kk"),
    ] {
        let (code, told) = doors.shell(wrong);
        assert!(code == 4, "{wrong:?}");
        let message = told.unwrap().message;
        assert!(message.contains(part), "{message}");
    }
}

/// What was begun and cannot go on has a code of its own, and goes on all the same.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_ends_with_a_code_of_its_own_when_it_is_blocked_or_late() {
    let doors = Doors::open().await;
    let manual = ["keyspace", "create", "m", "--mode", "manual", "--wait"];
    let (code, told) = doors.shell(&manual);
    assert!(code == 5 && told.as_ref().unwrap().message.contains("mode manual"), "{told:?}");
    let late = ["keyspace", "create", "l", "--wait", "--timeout", "1"];
    let (code, told) = doors.shell(&late);
    assert!(code == 5 && told.as_ref().unwrap().message.contains("not done within 1 s"), "{told:?}");
    assert!(doors.get("/v1/keyspaces/l").await.is_ok(), "it was created all the same");
    // Node a holds nothing.
    assert_eq!(doors.shell(&["node", "drain", "a", "--wait"]), (0, None));
    let said = doors.text(&["node", "drain", "a", "--wait"]);
    assert!(said.contains("safe to stop: a"), "{said}");
    assert_eq!(doors.shell(&["node", "drain", "a", "--wait", "--dry-run"]).0, 2, "a dry run begins nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_is_done_when_every_node_has_taken_it_in() {
    let doors = Doors::open().await;
    for name in ["k", "l"] {
        assert_eq!(doors.shell(&["keyspace", "create", name]), (0, None));
    }
    let mut taker = doors.takes_one_of("l").await;
    while doors.get("/v1/keyspaces/k/shards").await.unwrap()["shards"][0]["replicas"] == json!([]) {
        doors.beat_of(&mut taker, 0).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let delete = ["keyspace", "delete", "l", "--yes", "--wait"];
    assert_eq!(
        doors.shell(&["keyspace", "delete", "l", "--wait", "--dry-run"]).0,
        2,
        "a dry run begins nothing"
    );
    let (code, told) = doors.shell(&[&delete[..], &["--timeout", "1"]].concat());
    let said = told.unwrap().message;
    assert!(
        code == 5 && said.contains("keyspace l: 1 of 1 node has not dropped") && said.contains("such as w"),
        "{said}"
    );
    assert!(doors.get("/v1/keyspaces/l").await.is_err(), "it was deleted all the same");
    let address = doors.address();
    let waiting = std::thread::spawn(move || run(&address, &["keyspace", "delete", "k", "--yes", "--wait"]));
    while doors.get("/v1/keyspaces/k").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished(), "the node has not heard of it");
    let ordered = doors.beat_of(&mut taker, 0).await["version"].as_u64().unwrap();
    doors.beat_of(&mut taker, ordered).await;
    let output = waiting.join().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && said.contains("keyspace k: 1 node has dropped every replica of it"),
        "{said}"
    );
    let said = doors.text(&["keyspace", "delete", "kv", "--yes", "--wait"]);
    assert!(said.contains("no node had a replica of keyspace kv"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_for_good_is_asked_for_first() {
    let doors = Doors::open().await;
    doors.join("b", "z1").await;
    let before = doors.record().await;
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("colours")).unwrap();
    let source = dir.path().to_str().unwrap();
    for asks in [
        &["keyspace", "delete", "kv"][..],
        &["shard", "unregister", "parts", "north"],
        &["node", "remove", "b"],
        &["dataset", "remove", "colours", "--source", source],
    ] {
        // The tests' standard input is no terminal.
        let output = run(&doors.address(), asks);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{asks:?}: {said}");
        assert!(said.contains("nothing was changed") && said.contains("--yes"), "{said}");
        let kept = || !dir.path().join("colours/_dataset.toml").exists();
        assert!(doors.record().await == before && kept(), "{asks:?}");
        assert_eq!(doors.shell(&[asks, &["--dry-run"]].concat()), (0, None), "a dry run does not ask");
        assert!(kept(), "{asks:?}");
        assert_eq!(doors.record().await, before, "{asks:?}");
    }
    // What is refused anyway is not asked for.
    let (code, told) = doors.shell(&["keyspace", "delete", "kw"]);
    assert!(code == 4 && told.unwrap().message.contains("did you mean kv"));
    assert_eq!(doors.shell(&["brake", "release"]).0, 4, "it is not on");
    assert_eq!(doors.shell(&["shard", "unregister", "parts", "north", "-y"]), (0, None));
    assert_eq!(doors.shell(&["node", "remove", "b", "--yes"]), (0, None));
    assert_eq!(doors.shell(&["keyspace", "delete", "kv", "--yes"]), (0, None));
    assert!(doors.get("/v1/keyspaces/kv").await.is_err());
    let remove = ["dataset", "remove", "colours", "--source", source];
    assert_eq!(doors.shell(&[&remove[..], &["-y"]].concat()), (0, None));
    assert!(dir.path().join("colours/_dataset.toml").exists(), "it says that the dataset is not served");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keyspace_is_shown_in_words() {
    let doors = Doors::open().await;
    let said = doors.text(&["keyspace", "show", "kv"]);
    for line in
        ["keyspace       kv", "sharding       key ranges", "mode           manual", "split above    512 MiB"]
    {
        assert!(said.lines().any(|said| said == line), "{line}: {said}");
    }
    assert!(!said.contains(['{', '"']), "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
}

/// Whether a program is there.
fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn shells_take_their_completions() {
    for (shell, check) in [("bash", &["-n"][..]), ("zsh", &["-n"]), ("fish", &["--no-execute"])] {
        let script = run("127.0.0.1:9", &["completions", shell]);
        assert!(script.status.success());
        let text = out(&script);
        // fish has the words of options without their dashes.
        for word in ["events", "drain", "dry-run", "completions"] {
            assert!(text.contains(word), "{shell}: {word}");
        }
        if !has(shell) {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("partage");
        std::fs::write(&file, text).unwrap();
        let checked = Command::new(shell).args(check).arg(&file).output().unwrap();
        assert!(checked.status.success(), "{shell}: {}", String::from_utf8_lossy(&checked.stderr));
    }
    // What bash offers after `partage node `.
    let script = out(&run("127.0.0.1:9", &["completions", "bash"]));
    let file = in_a_file(&script);
    let ask =
        "COMP_WORDS=(partage node ''); COMP_CWORD=2; _partage partage '' node; echo \"${COMPREPLY[@]}\"";
    let offered =
        Command::new("bash").args(["-c", &format!(". {}\n{ask}", file.path().display())]).output().unwrap();
    let offered = String::from_utf8_lossy(&offered.stdout).into_owned();
    for verb in ["list", "show", "drain", "undrain", "remove"] {
        assert!(offered.split_whitespace().any(|word| word == verb), "{verb}: {offered}");
    }
    assert_eq!(run("127.0.0.1:9", &["completions", "tcsh"]).status.code(), Some(2));
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man");
    assert!(run("127.0.0.1:9", &["man", "--out", pages.to_str().unwrap()]).status.success());
    for page in ["partage.1", "partage-events.1", "partage-node-drain.1", "partage-shard-force-join.1"] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(".TH ") && text.contains(".SH "), "{page}: {text}");
        if has("man") {
            let shown =
                Command::new("man").args(["-l", page]).current_dir(&pages).env("MANWIDTH", "80").output();
            let shown = shown.unwrap();
            assert!(shown.status.success(), "{page}: {}", String::from_utf8_lossy(&shown.stderr));
            assert!(!shown.stdout.is_empty(), "{page}");
        }
    }
    let drain = std::fs::read_to_string(pages.join("partage-node-drain.1")).unwrap();
    assert!(drain.contains("wait") && drain.contains("dry"), "{drain}");
    assert!(out(&run("127.0.0.1:9", &["man"])).contains(".TH partage"));
}

/// A script that is too long for an argument.
fn in_a_file(script: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), script).unwrap();
    file
}
