//! What a table has beside rows of ranges: named partitions, and indexes.

use crate::cluster::{Cluster, files};
use serde_json::{Value, json};

fn index_list(cluster: &Cluster, table: &str) -> Value {
    cluster.table(&["index", "list", table]).json()
}

/// Keys with that size, by the index.
fn sized(cluster: &Cluster, table: &str, size: usize) -> Vec<String> {
    let said = cluster.run(&[
        "table",
        "index",
        "query",
        table,
        "by-size",
        "--equals",
        &size.to_string(),
        "--keys-only",
    ]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let mut keys: Vec<String> = said.out.lines().map(str::to_owned).collect();
    keys.sort();
    keys
}

/// The first line of the only manifest of a table.
fn first_line(cluster: &Cluster, table: &str) -> (std::path::PathBuf, String) {
    let found = files(&cluster.path("backups").join("tables").join(table));
    let [manifest] = &found[..] else { panic!("{found:?}") };
    let text = std::fs::read_to_string(manifest).unwrap();
    (manifest.clone(), text.lines().next().unwrap().to_owned())
}

#[test]
fn named_partitions_come_back_with_their_rows_and_indexes() {
    let cluster = Cluster::start(3);
    let named = ["--sharding", "named", "--partition-key", "hash-tag", "--partitions", "red,blue,empty"];
    cluster.create(&[&["rooms"], &named[..]].concat());
    let mut keys = Vec::new();
    for number in 0..40 {
        for room in ["red", "blue"] {
            let key = format!("{{{room}}}{number:02}");
            cluster.put("rooms", key.as_bytes(), "", json!({ "size": number % 4 }).to_string().as_bytes());
            keys.push(key);
        }
    }
    cluster.table(&["index", "create", "rooms", "by-size", "--field", "size", "--wait"]).json();
    let made = cluster.backup("rooms");
    assert_eq!((&made["rows"], &made["shards"]), (&json!(80), &json!(3)));
    assert_eq!(made["indexes"], json!([{ "name": "by-size", "field": "size" }]));
    assert_eq!(first_line(&cluster, "rooms").1, "partage table backup 2");

    let folder = cluster.folder();
    let verified = cluster.table(&["backup", "verify", &folder]).json();
    assert_eq!(verified["damaged"], json!([]));
    cluster
        .table(&["restore", &folder, "copy", "--shards", "2"])
        .refused(2, &["named partitions", "--shards"]);
    let foreseen = cluster.table(&["restore", &folder, "copy", "--dry-run"]).json();
    assert_eq!(foreseen["partitions"], json!(["blue", "empty", "red"]));
    let restored = cluster.table(&["restore", &folder, "copy"]).json();
    assert_eq!((&restored["written"], &restored["partitions"]), (&json!(80), &json!(3)));
    let names = |table: &str| {
        let shards = cluster.shards(table);
        let mut names: Vec<String> =
            shards.iter().map(|shard| shard["bounds"]["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(
        (names("copy"), names("rooms")),
        (names("rooms"), vec!["blue".into(), "empty".into(), "red".into()])
    );
    for (number, key) in keys.iter().enumerate() {
        let expected = json!({ "size": (number / 2) % 4 }).to_string();
        assert_eq!(cluster.get("copy", key.as_bytes()).body, expected.as_bytes(), "{key}");
    }
    // It is ready when the restore has ended, in all shards.
    let ready = json!({ "name": "by-size", "field": "size", "state": "ready", "ready": 3, "shards": 3 });
    assert_eq!(index_list(&cluster, "copy")["indexes"], json!([ready]));
    assert_eq!(sized(&cluster, "copy", 3), sized(&cluster, "rooms", 3));
    assert_eq!(sized(&cluster, "copy", 3).len(), 20);
    cluster.put("copy", b"{empty}new", "", b"{\"size\": 9}");
    assert_eq!(sized(&cluster, "copy", 9), ["{empty}new"]);

    // What has not changed is not written again, and a partition that is new is in the next backup.
    let said = cluster.run(&["shard", "register", "rooms", "green", "--wait"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    cluster.put("rooms", b"{green}1", "", b"{}");
    let second = cluster.backup("rooms");
    assert_eq!(
        (&second["chunks_written"], &second["shards"], &second["base"]),
        (&json!(1), &json!(4), &made["backup"])
    );
}

#[test]
fn an_index_is_built_before_its_table_is_called_restored_and_later_forms_are_refused() {
    let cluster = Cluster::start(3);
    cluster.create(&["stock", "--sharding", "key-range", "--split", "k50"]);
    for number in 0..100 {
        let value = json!({ "size": number % 10, "name": { "first": "x" } }).to_string();
        cluster.put("stock", format!("k{number:02}").as_bytes(), "", value.as_bytes());
    }
    cluster.put("stock", b"no json", "", b"\xff");
    cluster.backup("stock");
    let (manifest, line) = first_line(&cluster, "stock");
    assert_eq!(
        line, "partage table backup 1",
        "what any version restores is in the form that any version reads"
    );
    std::fs::remove_file(&manifest).unwrap();
    cluster.table(&["index", "create", "stock", "by-size", "--field", "size", "--wait"]).json();
    cluster.table(&["index", "create", "stock", "by-name", "--field", "name.first", "--wait"]).json();
    cluster.backup("stock");
    let (manifest, line) = first_line(&cluster, "stock");
    assert_eq!(line, "partage table backup 2");
    let folder = cluster.folder();
    let restored = cluster.table(&["restore", &folder, "copy", "--shards", "3"]).json();
    assert_eq!(restored["indexes"].as_array().unwrap().len(), 2, "{restored}");
    let list = index_list(&cluster, "copy");
    let states: Vec<_> =
        list["indexes"].as_array().unwrap().iter().map(|one| (&one["name"], &one["state"])).collect();
    assert_eq!(
        states,
        [(&json!("by-name"), &json!("ready")), (&json!("by-size"), &json!("ready"))],
        "{list}"
    );
    assert_eq!(
        (sized(&cluster, "copy", 3), sized(&cluster, "copy", 3).len()),
        (sized(&cluster, "stock", 3), 10)
    );
    let checked = cluster.run(&["table", "check", "copy"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");

    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replacen("backup 2", "backup 3", 1)).unwrap();
    cluster.table(&["restore", &folder, "third"]).refused(4, &["partage table backup 3", "use a later one"]);
    assert!(!cluster.keyspaces().contains(&"third".to_owned()));
}
