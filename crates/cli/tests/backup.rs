//! `partage backup` and `partage restore`, as a person types them.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails where it cannot go on")]

#[allow(dead_code, reason = "this file uses a part of it")]
mod doors;

use doors::{Doors, Told};
use partage_coordinator::{Backing, Config, Coordinator};
use serde_json::Value;
use std::path::Path;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn refused(said: (i32, Option<Told>), code: i32, parts: &[&str]) {
    let (found, told) = said;
    let told = told.unwrap_or_else(|| panic!("it went well: {parts:?}"));
    let all = format!("{} {}", told.message, told.help.unwrap_or_default());
    assert_eq!(found, code, "{all}");
    parts.iter().for_each(|part| assert!(all.contains(part), "{part} in: {all}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_taken_and_restored_with_one_command_each() {
    let doors = Doors::open().await;
    let folder = tempfile::tempdir().unwrap();
    let (file, place) = (folder.path().join("a.backup"), folder.path().join("state"));
    let (file, place) = (text(&file), text(&place));
    assert_eq!(doors.shell(&["backup", "--to", file]), (0, None));
    let first = std::fs::read(file).unwrap();
    refused(doors.shell(&["backup", "--to", file]), 4, &["there already", "--force"]);
    assert_eq!(doors.shell(&["backup", "--to", file, "--force"]), (0, None));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left lying about");
    assert_eq!(std::fs::read(file).unwrap().len(), first.len());
    assert_eq!(doors.shell(&["check", file]).0, 0);

    assert_eq!(doors.shell(&["restore", file, "--data-dir", place, "--dry-run"]), (0, None));
    assert!(!Path::new(place).exists(), "a dry run writes nothing");
    assert_eq!(doors.shell(&["restore", file, "--data-dir", place, "--no-wait"]), (0, None));
    refused(doors.shell(&["restore", file, "--data-dir", place]), 4, &[place, "not empty"]);
    assert_eq!(doors.shell(&["check", place]).0, 0);

    let config =
        Config { backing: Backing::Directory(place.into()), ..Config::new("127.0.0.1:0".parse().unwrap()) };
    let coordinator = Coordinator::start(config).await.unwrap();
    let again = folder.path().join("b.backup");
    let address = coordinator.address().to_string();
    assert_eq!(doors.shell(&["backup", "--to", text(&again), "--coordinator", &address]), (0, None));
    let keyspaces = |file: &str| {
        let (_, document) = partage_wire::backup::open(&std::fs::read(file).unwrap()).unwrap();
        let document: Value = serde_json::from_slice(&document).unwrap();
        let settings = |keyspace: &Value| keyspace["settings"].clone();
        document["keyspaces"].as_array().unwrap().iter().map(settings).collect::<Vec<_>>()
    };
    assert_eq!(keyspaces(text(&again)), keyspaces(file));
    coordinator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_whole_backup_is_refused_with_its_place() {
    let doors = Doors::open().await;
    let folder = tempfile::tempdir().unwrap();
    let (good, bad) = (folder.path().join("good"), folder.path().join("bad"));
    let (place, bad) = (folder.path().join("state"), text(&bad).to_owned());
    assert_eq!(doors.shell(&["backup", "--to", text(&good)]), (0, None));
    let bytes = std::fs::read(&good).unwrap();
    let restore = |bytes: &[u8]| {
        std::fs::write(&bad, bytes).unwrap();
        doors.shell(&["restore", &bad, "--data-dir", text(&place)])
    };
    let end = bytes.len();
    refused(restore(&bytes[..end - 12]), 4, &[&bad, "was cut", &format!("at byte {}", end - 12)]);
    let mut flipped = bytes.clone();
    flipped[end / 2] ^= 1;
    refused(restore(&flipped), 4, &["is damaged", "--save-to"]);
    refused(restore(b"a letter\n"), 4, &["no backup"]);
    // Sealed, and yet no cluster: its records contradict each other.
    let (label, document) = partage_wire::backup::open(&bytes).unwrap();
    let mut document: Value = serde_json::from_slice(&document).unwrap();
    document["keyspaces"][0]["map"]["shards"][0]["bounds"]["end"] = "h".into();
    let (mut writer, mut file) = partage_wire::backup::BackupWriter::begin(&label);
    file.extend(writer.add(document.to_string().as_bytes()));
    file.extend(writer.end());
    refused(restore(&file), 4, &["M1", "partage check"]);
    assert!(!place.exists(), "nothing was begun");
    assert_eq!(doors.shell(&["check", &bad]).0, 1);

    let good = text(&good);
    refused(doors.shell(&["restore", good]), 2, &["--data-dir", "--coordination"]);
    let both = ["restore", good, "--data-dir", "x", "--coordination", "etcd://127.0.0.1:1"];
    refused(doors.shell(&both), 2, &["not both"]);
    refused(doors.shell(&["restore", "/nowhere", "--data-dir", "x"]), 2, &["/nowhere"]);
    let nobody = ["backup", "--to", &bad, "--force", "--coordinator", "127.0.0.1:1"];
    refused(doors.shell(&nobody), 3, &["no coordinator answers"]);
    assert_eq!(std::fs::read(&bad).unwrap(), file, "what was there stays until there is a whole one");
}

/// D19: one bit costs one record at the most, and what is left is a state that a coordinator starts from.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d8_what_is_left_of_a_backup_with_a_flipped_bit_is_saved() {
    let doors = Doors::open().await;
    let folder = tempfile::tempdir().unwrap();
    let (good, bad) = (folder.path().join("good"), folder.path().join("bad"));
    assert_eq!(doors.shell(&["backup", "--to", text(&good)]), (0, None));
    let bytes = std::fs::read(&good).unwrap();
    let line_of = |what: &str| String::from_utf8_lossy(&bytes).find(what).unwrap();
    // In the first line, in the cluster's record, in one of a keyspace and in the one of the node.
    let places = [
        ("partage backup", "2 keyspaces,"),
        ("\"next_incarnation\"", "2 keyspaces,"),
        ("\"kv\"", "1 keyspace,"),
        ("\"a.invalid:80\"", "2 keyspaces,"),
    ];
    for (turn, (what, keyspaces)) in places.into_iter().enumerate() {
        let mut flipped = bytes.clone();
        flipped[line_of(what) + 2] ^= 1;
        std::fs::write(&bad, flipped).unwrap();
        let place = folder.path().join(format!("saved{turn}"));
        assert_eq!(doors.shell(&["check", text(&bad)]).0, 1, "{what}");
        assert_eq!(doors.shell(&["check", text(&bad), "--save-to", text(&place)]), (0, None), "{what}");
        let said = doors.text(&["check", text(&place)]);
        assert!(said.contains(&format!("holds {keyspaces}")) && said.contains("\nsound\n"), "{what}: {said}");
    }
}
