//! `--wait`: a verb ends when what it has begun is done, and with exit code 5 when it is not.

use super::shop::{Node, Shop, Told, answering, dataset, eventually};
use serde_json::json;
use std::time::{Duration, Instant};

const RED: [&str; 1] = ["name,hex\nred,#f00\n"];
const DARK_RED: [&str; 1] = ["name,hex\nred,#e00\n"];

/// Waited a second, and then said what is not done, and how to wait longer.
fn is_late(told: &Told, began: Instant, what: &str) {
    assert!(told.code == 5 && told.err.contains(what) && told.err.contains("--timeout"), "{told:?}");
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
}

/// A shop whose clients get version 2, with its node.
fn shop() -> (Shop, Node) {
    let shop = Shop::new();
    shop.write("1", &RED);
    shop.write("2", &DARK_RED);
    assert_eq!(shop.add(&[]).code, 0);
    let node = shop.node();
    assert_eq!(node.ask(&["status", "colours", "--wait"]).code, 0);
    (shop, node)
}

fn red(node: &Node) -> String {
    node.ask(&["get", "colours", "red"]).out
}

#[test]
fn add_waits_until_every_node_serves_the_latest_version() {
    let shop = Shop::new();
    shop.write("1", &RED);
    let node = shop.node();
    let add = |more: &[&str]| shop.add(&[&["--node", &node.address, "--wait"], more].concat());
    // What a node has failed to read before there were settings does not count.
    eventually("without settings it has no key", || node.version("1")["state"] == "ERROR");
    let added = add(&[]);
    assert!(added.code == 0 && added.out.ends_with(" get version 1\n"), "{added:?}");
    assert_eq!(red(&node), "#f00");
    // What is found wrong only while a node loads it does.
    let rows: String = (0..1_000).map(|row| format!("{row},#f00\n")).collect();
    shop.write("2", &[&format!("name,hex\n{rows},#f00\n")]);
    let failed = add(&[]);
    assert!(failed.code == 1 && failed.err.contains("version 2 at"), "{failed:?}");
    shop.write("3", &DARK_RED);
    let held = add(&["--replace", "--min-keys", "9"]);
    assert!(held.code == 5 && held.err.contains("dataset release colours 3"), "{held:?}");
    assert_eq!(node.ask(&["rollback", "colours", "1", "--wait"]).code, 0);
    let pinned = add(&["--replace"]);
    assert!(pinned.code == 5 && pinned.err.contains("rollback colours --latest"), "{pinned:?}");
    assert_eq!(node.ask(&["rollback", "colours", "--latest", "--wait"]).code, 0);
    // A removed dataset is added again: no node knows it at first.
    let at = shop.at();
    let remove = ["remove", "colours", "--source", &at, "--node", &node.address, "--wait", "--yes"];
    assert_eq!(dataset(&remove).code, 0);
    let again = add(&["--json"]);
    assert_eq!((again.json()["dataset"].as_str(), red(&node).as_str()), (Some("colours"), "#e00"));
}

#[test]
fn add_refuses_to_wait_for_what_cannot_come() {
    let shop = Shop::new();
    let settings = || shop.source().join("colours/_dataset.toml").exists();
    let none = shop.add(&["--wait", "--node", &stubborn()]);
    assert!(none.code == 4 && none.err.contains("leave out --wait, or write files to"), "{none:?}");
    shop.write("1", &RED);
    let unfinished = shop.add(&["--wait", "--success", "--node", &stubborn()]);
    assert!(unfinished.code == 4 && unfinished.err.contains("_SUCCESS"), "{unfinished:?}");
    let away = shop.add(&["--wait", "--node", "127.0.0.1:1"]);
    assert!(away.code == 3 && away.err.contains("nothing was written") && !settings(), "{away:?}");
    assert_eq!(shop.add(&["--wait", "--dry-run"]).code, 2, "a dry run begins nothing");
    let (began, node) = (Instant::now(), stubborn());
    let late = shop.add(&["--wait", "--timeout", "1", "--node", &node]);
    is_late(&late, began, "dataset colours is not served everywhere after 1 s");
    assert!(late.err.contains(&format!("not served at {node}")) && settings(), "{late:?}");
}

#[test]
fn rollback_waits_until_every_node_gives_the_version() {
    let (_shop, node) = shop();
    for (wanted, value) in [("1", "#f00"), ("--latest", "#e00")] {
        let told = node.ask(&["rollback", "colours", wanted, "--wait"]);
        assert_eq!((told.code, red(&node).as_str()), (0, value), "{wanted}: {told:?}");
    }
    assert_eq!(node.ask(&["status", "colours", "--json"]).json()["pinned"], json!(null), "the order is over");
    let began = Instant::now();
    let late = dataset(&["rollback", "colours", "1", "--wait", "--timeout", "1", "--node", &stubborn()]);
    is_late(&late, began, "not every node gives version 1 of dataset colours after 1 s");
    assert_eq!(
        node.ask(&["rollback", "colours", "1", "--wait", "--dry-run"]).code,
        2,
        "a dry run begins nothing"
    );
}

#[test]
fn a_dataset_that_does_not_come_to_be_served_has_an_exit_code_of_its_own() {
    let node = stubborn();
    for verb in ["status", "refresh"] {
        // The second is its former name.
        for flag in ["--timeout", "--at-most-s"] {
            let began = Instant::now();
            let late = dataset(&[verb, "colours", "--wait", flag, "1", "--node", &node]);
            is_late(&late, began, "dataset colours is not served everywhere after 1 s");
        }
    }
    let began = Instant::now();
    let form = dataset(&["status", "colours", "--wait", "--timeout", "1", "--json", "--node", &node]);
    let told: serde_json::Value = serde_json::from_str(&form.err).unwrap();
    assert_eq!((form.code, &told["error"]["exit_code"]), (5, &json!(5)), "{form:?}");
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[test]
fn remove_waits_until_no_node_serves_the_dataset() {
    let (shop, node) = shop();
    let at = shop.at();
    let remove = |node: &str, more: &[&str]| {
        let remove = ["remove", "colours", "--source", &at, "--node", node, "--wait", "--yes"];
        dataset(&[&remove[..], more].concat())
    };
    let away = remove("127.0.0.1:1", &[]);
    assert!(away.code == 3 && away.err.contains("nothing was written"), "{away:?}");
    assert_eq!(red(&node), "#e00");
    assert_eq!(remove(&node.address, &["--dry-run"]).code, 2, "a dry run begins nothing");
    let removed = remove(&node.address, &[]);
    assert_eq!((removed.code, node.ask(&["get", "colours", "red"]).code), (0, 4), "{removed:?}");
    // Nobody serves it any more: there is nothing to wait for.
    assert_eq!(remove(&node.address, &[]).code, 0);
    let began = Instant::now();
    let late = remove(&stubborn(), &["--timeout", "1"]);
    is_late(&late, began, "nodes have not let go of dataset colours after 1 s");
}

/// The address of what says for ever that it serves every dataset, and has a version that it does not give to clients.
fn stubborn() -> String {
    answering(|address| {
        let versions = json!({ "1": { "nodes": { address: { "state": "ACTIVE" } } } });
        // Of one dataset, and of all of them.
        json!({ "content_type": "text/plain", "versions": versions, "nodes": { address: {} }, "dbs": {} })
    })
}
