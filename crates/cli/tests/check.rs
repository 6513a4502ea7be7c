//! `partage check` on real state: sound, damaged in several places at once, cut, and dumps that a hand was at.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails where it cannot go on")]

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use partage_coordination::embedded::salvage;
use partage_coordinator::{Backing, Config, Coordinator};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A process that another test starts holds the lock of a directory for a moment, so they go one by one.
static ONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn start(dir: &Path) -> Coordinator {
    let config =
        Config { backing: Backing::Directory(dir.to_owned()), ..Config::new("127.0.0.1:0".parse().unwrap()) };
    Coordinator::start(config).await.unwrap()
}

async fn ask(coordinator: &Coordinator, path: &str, body: Option<Value>) -> Value {
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let method = if body.is_some() { "POST" } else { "GET" };
    let request = hyper::Request::builder()
        .method(method)
        .uri(format!("http://{}{path}", coordinator.address()))
        .header("content-type", "application/json")
        .body(Full::from(body.map_or(String::new(), |body| body.to_string())))
        .unwrap();
    let answer = client.request(request).await.unwrap();
    assert!(answer.status().is_success(), "{path}: {}", answer.status());
    serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

async fn dump(coordinator: &Coordinator) -> Value {
    ask(coordinator, "/v1/dump", None).await
}

/// The directory of a coordinator that has had two nodes and `keyspaces` keyspaces of four shards.
async fn written(keyspaces: u32) -> (tempfile::TempDir, Value) {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = start(dir.path()).await;
    for node in ["n1", "n2"] {
        let spec = json!({ "id": node, "address": format!("{node}.invalid:80") });
        ask(&coordinator, "/v1/worker/register", Some(spec)).await;
    }
    for number in 0..keyspaces {
        let keyspace = json!({ "name": format!("k{number}"), "sharding": { "type": "key_range" } });
        let presplit = json!({ "type": "points", "keys": ["g", "m", "t"] });
        let command = json!({ "command": "create_keyspace", "keyspace": keyspace, "presplit": presplit });
        ask(&coordinator, "/v1/commands", Some(json!({ "do": command }))).await;
    }
    let document = dump(&coordinator).await;
    coordinator.stop().await;
    (dir, document)
}

fn check(arguments: &[&str], stdin: Option<&str>) -> (i32, Value, String) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_partage"))
        .args(["--json", "check"])
        .args(arguments)
        .stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    if let Some(text) = stdin {
        process.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    }
    let output = process.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let findings = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code().unwrap(), findings, said)
}

/// What a person is shown.
fn in_text(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_partage")).args(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn journal(dir: &Path) -> PathBuf {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("journal-")).max().unwrap()
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

#[tokio::test]
async fn sound_state_is_said_to_be_so_and_can_be_copied() {
    let _one = ONE.lock().await;
    let (dir, document) = written(2).await;
    let (code, found, _) = check(&[dir.path().to_str().unwrap()], None);
    assert_eq!((code, &found["sound"]), (0, &json!(true)), "{found}");
    assert_eq!(found["records"]["keyspaces"][0], json!({ "name": "k0", "map": 1, "shards": 4 }));
    assert_eq!((&found["records"]["nodes"], &found["problems"]), (&json!(2), &json!([])));
    assert_eq!(found["shown"], Value::Null, "only when it is asked for");
    let (_, found, _) = check(&[dir.path().to_str().unwrap(), "--show"], None);
    let shown = found["shown"].as_array().unwrap();
    assert!(shown.iter().all(|key| key["readable"] == true), "{found}");
    for (key, says) in
        [("cluster", "next_incarnation"), ("keyspaces/k0/record", "settings"), ("manifest", "checksums")]
    {
        let one = shown.iter().find(|one| one["key"] == key).unwrap_or_else(|| panic!("{key}: {found}"));
        assert!(one["says"].as_str().unwrap().contains(says), "{one}");
    }

    let copy = tempfile::tempdir().unwrap();
    let (code, ..) = check(&[dir.path().to_str().unwrap(), "--save-to", copy.path().to_str().unwrap()], None);
    assert_eq!(code, 0);
    let coordinator = start(copy.path()).await;
    assert_eq!(dump(&coordinator).await, document);
    coordinator.stop().await;
}

#[tokio::test]
async fn every_damage_is_listed_with_its_place_and_the_rest_is_saved() {
    let _one = ONE.lock().await;
    let (dir, document) = written(6).await;
    let file = journal(dir.path());
    let mut bytes = std::fs::read(&file).unwrap();
    let sound = salvage::inspect(dir.path()).unwrap();
    // In the middle of the records of three keyspaces: each was one commit.
    let place = |name: &str| {
        let key = partage_coordination::Key::new(format!("keyspaces/{name}/record")).unwrap();
        sound.found(&key).unwrap().1
    };
    let flipped: Vec<u64> = ["k1", "k3", "k4"].map(place).into();
    flipped.iter().for_each(|at| bytes[*at as usize + 60] ^= 4);
    std::fs::write(&file, &bytes).unwrap();

    let (code, found, said) = check(&[dir.path().to_str().unwrap()], None);
    assert_eq!((code, &found["sound"]), (1, &json!(false)), "{found}");
    let damage = found["files"].as_array().unwrap().iter().flat_map(|f| f["damage"].as_array().unwrap());
    let offsets: Vec<u64> = damage.clone().map(|damage| damage["offset"].as_u64().unwrap()).collect();
    assert_eq!(offsets, flipped[..2], "k3 and k4 are neighbours, and so one stretch: {found}");
    // How many came before them depends on when the coordinator said that it leads.
    let second = damage.clone().nth(1).unwrap()["what"].as_str().unwrap();
    let two_are_lost = (1..30).any(|at| second.contains(&format!("records {at} to {} are lost", at + 1)));
    assert!(two_are_lost, "{second}");
    assert!(damage.clone().all(|d| d["what"].as_str().unwrap().contains("record ")), "{found}");
    assert!(said.contains("--save-to"), "{said}");
    let names = |found: &Value| -> Vec<String> {
        let list = found["records"]["keyspaces"].as_array().unwrap();
        list.iter().map(|k| k["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&found), ["k0", "k2", "k5"]);
    assert_eq!(found["records"]["nodes"], 2);

    let saved = tempfile::tempdir().unwrap();
    let (code, ..) =
        check(&[dir.path().to_str().unwrap(), "--save-to", saved.path().to_str().unwrap()], None);
    assert_eq!(code, 0, "it was saved, and says what was lost");
    assert_eq!(check(&[saved.path().to_str().unwrap()], None).0, 0, "what was saved is sound");
    let coordinator = start(saved.path()).await;
    let after = dump(&coordinator).await;
    assert_eq!(after["nodes"].as_array().unwrap().len(), 2);
    let next = |document: &Value| document["cluster"]["next_incarnation"].as_u64().unwrap();
    assert!(next(&after) > next(&document) + 1_000_000, "none that may have been given is given again");
    assert_eq!(after["keyspaces"][1]["settings"]["name"], "k2");
    coordinator.stop().await;
    let (code, _, said) =
        check(&[dir.path().to_str().unwrap(), "--save-to", saved.path().to_str().unwrap()], None);
    assert_eq!(code, 1);
    assert!(said.contains("not empty"), "never over something: {said}");
}

#[tokio::test]
async fn a_file_that_was_cut_keeps_what_comes_before() {
    let _one = ONE.lock().await;
    let (dir, _) = written(3).await;
    let file = journal(dir.path());
    let bytes = std::fs::read(&file).unwrap();
    let key = partage_coordination::Key::new("keyspaces/k2/record").unwrap();
    let last = salvage::inspect(dir.path()).unwrap().found(&key).unwrap().1;
    std::fs::write(&file, &bytes[..last as usize + 40]).unwrap();
    let (code, found, _) = check(&[dir.path().to_str().unwrap()], None);
    assert_eq!(code, 1);
    let named: Vec<_> =
        found["records"]["keyspaces"].as_array().unwrap().iter().map(|k| &k["name"]).collect();
    assert_eq!(named, ["k0", "k1"], "{found}");
    let damage = found["files"].as_array().unwrap().iter().flat_map(|f| f["damage"].as_array().unwrap());
    assert!(damage.into_iter().any(|d| d["what"].as_str().unwrap().contains("cut")), "{found}");
}

/// Keys whose values are damaged.
const SPOILT: [&str; 3] = ["nodes/n1", "keyspaces/k1/record", "keyspaces/k2/map/head"];

#[tokio::test]
async fn records_that_are_damaged_inside_a_sound_file_are_listed_by_key_file_and_offset() {
    let _one = ONE.lock().await;
    let (dir, _) = written(3).await;
    let report = salvage::inspect(dir.path()).unwrap();
    let mut entries = report.entries.clone();
    let spoil = |entries: &mut std::collections::BTreeMap<_, partage_coordination::Entry>, key: &str| {
        let entry = entries.get_mut(&partage_coordination::Key::new(key).unwrap()).unwrap();
        let mut value = entry.value.to_vec();
        *value.last_mut().unwrap() ^= 1;
        entry.value = value.into();
    };
    SPOILT.iter().for_each(|key| spoil(&mut entries, key));
    let spoiled = tempfile::tempdir().unwrap();
    salvage::save(spoiled.path(), report.cluster, &entries, report.version).unwrap();

    let (code, found, _) = check(&[spoiled.path().to_str().unwrap()], None);
    assert_eq!(code, 1);
    let problems = texts(&found["problems"]);
    for key in SPOILT {
        let named = |p: &&&str| p.contains(&format!("the stored value of {key} has the checksum"));
        let problem = problems.iter().find(named).unwrap_or_else(|| panic!("{key} in {problems:?}"));
        assert!(problem.contains("journal-") && problem.contains(" at byte "), "{problem}");
    }
    let kept: Vec<_> = found["records"]["keyspaces"].as_array().unwrap().iter().map(|k| &k["name"]).collect();
    assert_eq!(kept, ["k0", "k2"], "the map of k2 has one log only: {found}");
    assert_eq!(found["records"]["keyspaces"][1]["shards"], 4);
    assert_eq!(found["records"]["nodes"], 1);

    let (code, found, _) = check(&[spoiled.path().to_str().unwrap(), "--show"], None);
    assert_eq!(code, 1);
    let shown = found["shown"].as_array().unwrap();
    assert_eq!(shown.len(), entries.len(), "every key, and no other: {found}");
    for one in shown {
        let key = one["key"].as_str().unwrap();
        let is_spoilt = SPOILT.contains(&key);
        assert_eq!(one["readable"], !is_spoilt, "{one}");
        assert_eq!(one["says"].as_str().unwrap().contains("has the checksum"), is_spoilt, "{one}");
    }
    let text = in_text(&["check", spoiled.path().to_str().unwrap(), "--show"]);
    for key in SPOILT {
        let (_, said) = text.split_once(&format!("\n{key}\n  version ")).unwrap_or_else(|| panic!("{text}"));
        let second = said.lines().nth(1).unwrap();
        assert!(second.starts_with(&format!("  CANNOT BE READ: the stored value of {key}")), "{second}");
    }
    assert_eq!(text.matches("CANNOT BE READ").count(), SPOILT.len(), "{text}");

    let saved = tempfile::tempdir().unwrap();
    check(&[spoiled.path().to_str().unwrap(), "--save-to", saved.path().to_str().unwrap()], None);
    let coordinator = start(saved.path()).await;
    assert_eq!(dump(&coordinator).await["keyspaces"].as_array().unwrap().len(), 2);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_dump_is_checked_from_a_file_or_stdin_and_can_be_begun_from() {
    let _one = ONE.lock().await;
    let (dir, document) = written(2).await;
    let file = dir.path().join("dump.json");
    std::fs::write(&file, document.to_string()).unwrap();
    assert_eq!(check(&[file.to_str().unwrap()], None).0, 0);
    let (code, found, _) = check(&["-"], Some(&document.to_string()));
    assert_eq!((code, &found["sound"], &found["records"]["nodes"]), (0, &json!(true), &json!(2)));

    let saved = tempfile::tempdir().unwrap();
    let (code, ..) = check(&["-", "--save-to", saved.path().to_str().unwrap()], Some(&document.to_string()));
    assert_eq!(code, 0);
    let coordinator = start(saved.path()).await;
    let after = dump(&coordinator).await;
    let settings = |document: &Value| document["keyspaces"][1]["settings"].clone();
    assert_eq!(settings(&after), settings(&document));
    coordinator.stop().await;

    let mut damaged = document.clone();
    let shards = damaged["keyspaces"][0]["map"]["shards"].as_array_mut().unwrap();
    shards[1]["bounds"]["end"] = json!("p");
    let replica = |placement: u64, node: &str| json!({ "placement": placement, "node": node, "incarnation": 1, "role": "leader", "state": "live" });
    shards[0]["replicas"] = json!([replica(1, "n1"), replica(2, "n22")]);
    shards[3]["stagee"] = json!("serving");
    damaged["keyspaces"][0]["map"]["next_placement"] = json!(3);
    let (code, found, _) = check(&["-"], Some(&damaged.to_string()));
    assert_eq!(code, 1);
    let problems = texts(&found["problems"]).join("\n");
    for expected in [
        "keyspace k0: O1: shard s1 has two leaders: p1 and p2",
        "keyspace k0: M1: shards s2 and s3 hold keys in common",
        "keyspace k0, shard s1, replica p2: there is no node n22: did you mean n2?",
        "keyspace k0, shard s4, unknown field `stagee`",
        ": did you mean stage?",
    ] {
        assert!(problems.contains(expected), "{expected} in:\n{problems}");
    }
    assert_eq!(check(&["/nowhere"], None).0, 2);
    assert_eq!(check(&["--show"], None).0, 2, "it is not said of what");
    // Nothing, and what was never a dump, is a wrong call: there is nothing in it to save.
    assert_eq!(check(&["-"], Some("")).0, 2);
    assert_eq!(check(&["-"], Some("no coordinator answers")).0, 2);
    assert_eq!(check(&["-"], Some("{\"keyspaces\": [")).0, 1, "cut off");
}
