//! D20: each key of the coordination state of a running cluster is deleted, set back and replaced, under load: never two
//! owners, nothing dropped, nothing lost; refused or healed, and told. And each key is shown to a person, decoded.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use chaos::binary::binary;
use chaos::fleet::Fleet;
use chaos::tamper::{Fault, tamper};
use partage_coordination::Backend;
use std::process::Command;

/// Each kind of key, and each fault, on one engine or another: all of it is below.
fn some(few: &'static [(&'static str, Fault)]) -> impl Fn(&str, Fault) -> bool {
    move |key, fault| few.contains(&(key, fault))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn o1_d10_every_key_on_etcd() {
    tamper(Backend::Etcd, |_, _| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn o1_d10_every_key_on_mysql() {
    tamper(Backend::MySql, |_, _| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn o1_d10_every_key_on_zookeeper() {
    tamper(Backend::ZooKeeper, |_, _| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_d10_a_key_of_each_kind_on_etcd() {
    const FEW: [(&str, Fault); 8] = [
        ("events/0", Fault::Garbage),
        ("redo/pieces/0", Fault::Garbage),
        ("coordinators/c2", Fault::Deleted),
        ("election/leader", Fault::Garbage),
        ("election/term", Fault::SetBack),
        ("keyspaces/exclusive/map/metadata", Fault::Deleted),
        ("nodes/n1", Fault::SetBack),
        ("plans/1", Fault::Deleted),
    ];
    tamper(Backend::Etcd, some(&FEW)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_d10_a_key_of_each_kind_on_mysql() {
    const FEW: [(&str, Fault); 8] = [
        ("redo/head", Fault::Garbage),
        ("cluster", Fault::SetBack),
        ("coordinators/c1", Fault::Garbage),
        ("election/commit", Fault::Deleted),
        ("election/leader", Fault::OfAnotherKey),
        ("keyspaces/eventual/record", Fault::Garbage),
        ("keyspaces/exclusive/map/head", Fault::Deleted),
        ("plans/1", Fault::Garbage),
    ];
    tamper(Backend::MySql, some(&FEW)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_d10_a_key_of_each_kind_on_zookeeper() {
    const FEW: [(&str, Fault); 6] = [
        ("about", Fault::Deleted),
        ("coordinators/c3", Fault::OfAnotherKey),
        ("election/term", Fault::Garbage),
        ("keyspaces/eventual/map/metadata", Fault::SetBack),
        ("manifest", Fault::Deleted),
        ("nodes/n2", Fault::OfAnotherKey),
    ];
    tamper(Backend::ZooKeeper, some(&FEW)).await;
}

/// Exit code and words of `partage check --coordination ADDRESS --show`.
fn show(address: &str) -> (Option<i32>, String) {
    let shown = Command::new(binary("partage")).args(["check", "--show", "--coordination", address]).output();
    let shown = shown.unwrap();
    (shown.status.code(), String::from_utf8([shown.stdout, shown.stderr].concat()).unwrap())
}

/// The line that says what is in a key, which comes after its name and its version.
fn line_of<'a>(text: &'a str, key: &str) -> &'a str {
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| *line == key).unwrap_or_else(|| panic!("{key} is not in {text}"));
    assert!(lines[at + 1].starts_with("  version ") && lines[at + 1].contains(" bytes"), "{}", lines[at + 1]);
    lines[at + 2]
}

/// The page on the coordination state promises that every key is printed decoded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_of_a_running_cluster_is_shown_decoded_and_a_damaged_one_is_named() {
    let fleet = Fleet::start(Backend::Etcd, 1).await;
    fleet.change("c1", "kv").await.unwrap();
    let (leader, term) = fleet.leader().await;
    let keys = fleet.state().await;
    let address = fleet.engine.target_through(&fleet.engine.address()).to_string();
    let (code, text) = show(&address);
    assert_eq!(code, Some(0), "{text}");
    for key in keys.keys() {
        assert!(!line_of(&text, key).contains("CANNOT BE READ"), "{key} in {text}");
    }
    for (key, says) in [
        ("about", "whose root it is: cluster "),
        ("cluster", "next_incarnation"),
        ("coordinators/c2", "coordinator c2 at "),
        ("election/commit", &format!("last by that of term {term}")),
        ("election/leader", &format!("leader of term {term}: coordinator {leader} at ")),
        ("election/term", &format!("last term: {term}")),
        ("keyspaces/kv/manifest", "record "),
        ("keyspaces/kv/map/metadata", "c1"),
        ("keyspaces/kv/record", "settings"),
        ("manifest", "checksums of the cluster's record"),
        ("nodes/n1", "n1"),
    ] {
        assert!(line_of(&text, key).contains(says), "{key}: {says} is not in {}", line_of(&text, key));
    }

    let mut damaged = keys["nodes/n1"].clone();
    *damaged.last_mut().unwrap() ^= 1;
    fleet.overwrite("nodes/n1", &damaged).await;
    fleet.overwrite("notes", b"by hand").await;
    let (code, text) = show(&address);
    assert_eq!(code, Some(1), "{text}");
    let said = line_of(&text, "nodes/n1");
    assert!(said.starts_with("  CANNOT BE READ: the stored value of nodes/n1 has the checksum"), "{said}");
    assert_eq!(line_of(&text, "notes"), "  CANNOT BE READ: was not written by this program");
    assert_eq!(text.matches("CANNOT BE READ").count(), 2, "{text}");

    let (code, text) = show("etcd://127.0.0.1:1/chaos");
    assert_eq!(code, Some(3), "nobody listens there: {text}");
}
