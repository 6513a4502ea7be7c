//! Orders for a version: what is refused before any node is pinned, and what a pin that cannot be followed says.

use super::shop::{Node, Shop, answering, dataset, eventually, partage};
use serde_json::{Value, json};
use std::fs;

const GOOD: [&str; 1] = ["name,hex\nred,#f00\n"];
const BROKEN: [&str; 1] = ["name,hex\nred\n"];
const SAYS: &str = "part-0.csv: line 2";

/// A shop with these versions, and a node whose clients get the latest.
fn shop(versions: &[(&str, [&str; 1])]) -> (Shop, Node) {
    let shop = Shop::new();
    versions.iter().for_each(|(version, files)| shop.write(version, files));
    assert_eq!(shop.add(&[]).code, 0);
    let node = shop.node();
    assert_eq!(node.ask(&["status", "colours", "--wait"]).code, 0);
    (shop, node)
}

fn pinned(node: &Node) -> Value {
    node.ask(&["status", "colours", "--json"]).json()["pinned"].take()
}

fn red(node: &Node) -> String {
    node.ask(&["get", "colours", "red"]).out
}

#[test]
fn a_version_that_a_node_failed_to_load_is_refused_before_anything_is_pinned() {
    let (shop, node) = shop(&[("1", GOOD)]);
    shop.write("2", &BROKEN);
    eventually("version 2 is an error", || node.version("2")["state"] == "ERROR");
    let is_refused = |asked: &str| {
        for more in [&[][..], &["--dry-run"], &["--wait"]] {
            let order = ["rollback", "colours", "2", "--node", asked];
            let told = dataset(&[&order[..], more].concat());
            let way_out = format!("partage dataset refresh --node {}", node.address);
            assert!(told.code == 4 && told.out.is_empty() && told.err.contains(SAYS), "{told:?}");
            assert!(told.err.contains("nothing was pinned") && told.err.contains(&way_out), "{told:?}");
        }
    };
    is_refused(&node.address);
    // The node that is asked has not tried to load it, and would take the order.
    let address = &node.address;
    is_refused(&answering(
        |asked| json!({ "content_type": "", "versions": {}, "nodes": { asked: {}, address: {} } }),
    ));
    assert_eq!(pinned(&node), Value::Null);

    shop.write("3", &["name,hex\nred,#e00\n"]);
    eventually("version 3 passes it by", || red(&node) == "#e00");
    is_refused(&node.address);
    let passed_by = || node.ask(&["status", "colours"]).out.contains("not tried again while clients get");
    eventually("it is not tried again", passed_by);
    assert_eq!(node.version("2")["next_try_at"], Value::Null);
    // Mended, and looked at by order of a person.
    shop.write("2", &["name,hex\nred,#d00\n"]);
    assert_eq!(node.ask(&["refresh", "colours", "--wait"]).code, 0);
    eventually("the order is taken", || node.ask(&["rollback", "colours", "2", "--wait"]).code == 0);
    assert_eq!(red(&node), "#d00");
}

#[test]
fn a_pin_that_cannot_be_followed_says_so_and_how_it_ends() {
    let (shop, node) = shop(&[("0", BROKEN), ("1", GOOD)]);
    let failed = node.ask(&["rollback", "colours", "0", "--wait"]);
    assert!(failed.code == 1 && failed.err.contains(SAYS), "{failed:?}");
    assert!(failed.err.contains("each loads it first"), "nobody had tried: {failed:?}");
    let ends = "`partage dataset rollback colours --latest`";
    assert!(failed.err.contains("stays pinned to version 0") && failed.err.contains(ends), "{failed:?}");
    shop.write("2", &["name,hex\nred,#e00\n"]);
    for verb in ["refresh", "status"] {
        let told = node.ask(&[verb, "colours", "--wait", "--timeout", "20"]);
        assert!(
            told.code == 1 && told.err.contains("is pinned to version 0") && told.err.contains(SAYS),
            "{told:?}"
        );
        assert!(told.err.contains(ends), "{told:?}");
    }
    assert_eq!(red(&node), "#f00", "nothing later is loaded");
    assert_eq!(node.ask(&["rollback", "colours", "--latest", "--wait"]).code, 0);
    let told = node.ask(&["refresh", "colours", "--wait"]);
    assert_eq!((told.code, told.out), (0, format!("clients of {} get version 2\n", node.address)));

    let told = node.ask(&["rollback", "colours", "1", "--wait"]);
    assert_eq!((told.code, told.out.as_str()), (0, "clients of dataset colours get 1 instead of 2\n"));
    let told = node.ask(&["refresh", "colours", "--wait"]);
    assert!(
        told.code == 0 && told.out.contains("get version 1, to which dataset colours is pinned"),
        "{told:?}"
    );
    let form = node.ask(&["refresh", "colours", "--wait", "--json"]).json();
    assert_eq!((&form["version"], &form["pinned"]), (&json!("1"), &json!(true)));
    let told = node.ask(&["rollback", "colours", "1"]);
    assert!(told.out.starts_with("clients of dataset colours get 1 already, and stay at it"), "{told:?}");
    let told = node.ask(&["status", "colours"]).out;
    assert!(told.contains("kept") || told.contains("building"), "{told}");
    assert!(!told.contains("removing"), "{told}");
    for dry in [&["--dry-run"][..], &[]] {
        let told = node.ask(&[&["rollback", "colours", "7"], dry].concat());
        assert!(told.code == 4 && told.err.contains("has no version 7"), "{told:?}");
        assert!(
            told.err.contains("`partage dataset versions colours`") && !told.err.contains("GET /"),
            "{told:?}"
        );
    }
    assert_eq!(node.ask(&["rollback", "colours", "--latest", "--wait"]).code, 0);
    let told = node.ask(&["rollback", "colours", "--latest"]);
    assert!(told.out.starts_with("dataset colours is not pinned"), "{told:?}");
}

#[test]
fn a_broken_version_that_is_deleted_is_forgotten() {
    let (shop, node) = shop(&[("1", GOOD)]);
    for (broken, files) in [("2", &BROKEN), ("3", &["name,hex\n"])] {
        shop.write(broken, files);
        let states = ["ERROR", "HELD"];
        eventually("it is an error, or held", || {
            states.contains(&node.version(broken)["state"].as_str().unwrap_or(""))
        });
        let failed = node.ask(&["refresh", "colours", "--wait"]);
        assert!([1, 5].contains(&failed.code), "{failed:?}");
        fs::remove_dir_all(shop.source().join("colours").join(broken)).unwrap();
        eventually("it is no trouble any more", || {
            !states.contains(&node.version(broken)["state"].as_str().unwrap_or(""))
        });
        let told = node.ask(&["status", "colours"]).out;
        assert!(!told.contains("error") && !told.contains("held"), "{told}");
        let well = node.ask(&["refresh", "colours", "--wait", "--timeout", "20"]);
        assert!(well.code == 0 && well.out.contains("get version 1"), "{well:?}");
    }
    assert_eq!(node.version("2"), Value::Null);
    let unknown = node.ask(&["rollback", "colours", "2"]);
    assert!(unknown.code == 4 && unknown.err.contains("has no version 2"), "{unknown:?}");
}

#[test]
fn add_says_which_folder_to_make_also_below_a_relative_path() {
    let shop = Shop::new();
    let mut add = partage();
    add.current_dir(shop.path("")).args(["dataset", "add", "veg", "--source", "source", "--key", "a"]);
    let output = add.args(["--format", "jsonl"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{told}");
    assert!(told.contains("has no dataset veg") && told.contains("make source/veg first"), "{told}");
}
