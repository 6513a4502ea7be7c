//! Backups that are removed, alone and while others are written.

use crate::cluster::{Cluster, Rows, files, noise};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

fn listed(cluster: &Cluster) -> Vec<String> {
    let listed = cluster.table(&["backup", "list", &cluster.folder()]).json();
    let backups = listed["backups"].as_array().unwrap();
    backups.iter().map(|one| one["backup"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn is_sound(cluster: &Cluster) {
    let verified = cluster.table(&["backup", "verify", &cluster.folder()]).json();
    assert_eq!(verified["damaged"], json!([]));
}

#[test]
fn the_newest_backups_of_each_table_stay_and_can_be_restored() {
    let cluster = Cluster::start(1);
    for table in ["stock", "other"] {
        cluster.create(&[table, "--replicas", "1", "--sharding", "key-range"]);
    }
    let mut rows: Rows = (0..60_u64).map(|n| (format!("{n:04}").into_bytes(), noise(n, 100_000))).collect();
    rows.iter().for_each(|(key, value)| cluster.put("stock", key, "", value));
    cluster.put("other", b"a", "", b"1");
    cluster.backup("other");
    let mut made = Vec::new();
    for turn in 0..4_u64 {
        let value = noise(1_000 + turn, 100_000);
        cluster.put("stock", b"0030", "", &value);
        rows.insert(b"0030".to_vec(), value);
        made.push(cluster.backup("stock")["backup"].as_str().unwrap().to_owned());
    }
    let (folder, before) = (cluster.folder(), files(&cluster.path("backups")));
    let prune = ["backup", "prune", &folder, "--keep", "2"];
    let foreseen = cluster.table(&[&prune[..], &["--dry-run"]].concat()).json();
    assert_eq!(files(&cluster.path("backups")), before, "a dry run removes nothing");
    let removed = json!([{ "table": "stock", "backup": made[0] }, { "table": "stock", "backup": made[1] }]);
    assert_eq!((&foreseen["removed"], &foreseen["kept"]), (&removed, &json!(3)));

    // A command that is at work, and one that has ended long ago without saying so.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let marker =
        |ms: u64| std::fs::write(cluster.path("backups").join("markers/writer-x"), ms.to_string()).unwrap();
    marker(now);
    let busy = cluster.table(&prune);
    busy.refused(4, &["another command writes a backup", "markers/writer-x"]);
    assert_eq!(listed(&cluster).len(), 5);
    marker(now - 3_600_000);
    let done = cluster.table(&prune).json();
    assert_eq!((&done["removed"], &done["kept"]), (&removed, &json!(3)));
    assert_eq!(done["chunks_removed"], foreseen["chunks_removed"]);
    assert!(
        done["chunks_removed"].as_u64().unwrap() >= 2 && done["bytes_removed"].as_u64().unwrap() > 100_000,
        "{done}"
    );
    assert_eq!(files(&cluster.path("backups").join("markers")), Vec::<std::path::PathBuf>::new());
    assert_eq!(listed(&cluster).len(), 3);
    is_sound(&cluster);
    cluster.table(&["restore", &folder, "copy", "--backup", &made[3]]).json();
    assert!(cluster.rows("copy") == rows);
    assert_eq!(cluster.table(&prune).json()["removed"], json!([]));
    let of_other = cluster.table(&["backup", "prune", &folder, "--keep", "1", "--table", "other"]).json();
    assert_eq!(of_other["kept"], json!(3));
    let said = cluster.run(&["table", "backup", "prune", &folder, "--keep", "1"]);
    assert!(
        said.code == Some(0) && said.out.contains(&format!("removed backup {} of table stock", made[2])),
        "{said:?}"
    );
    is_sound(&cluster);
}

#[test]
fn prunes_beside_backups_leave_all_of_them_whole() {
    let cluster = Cluster::start(1);
    cluster.create(&["stock", "--replicas", "1", "--sharding", "key-range"]);
    for number in 0..60_u64 {
        cluster.put("stock", format!("{number:04}").as_bytes(), "", &noise(number, 100_000));
    }
    cluster.backup("stock");
    let stop = AtomicBool::new(false);
    let folder = cluster.folder();
    let (pruned, busy) = std::thread::scope(|scope| {
        let pruning = scope.spawn(|| {
            let (mut pruned, mut busy) = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                let said = cluster.table(&["backup", "prune", &folder, "--keep", "1"]);
                match said.code {
                    Some(0) => pruned += 1,
                    Some(4) if said.err.contains("another command") => busy += 1,
                    _ => panic!("{said:?}"),
                }
            }
            (pruned, busy)
        });
        let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for turn in 0..10_u64 {
                // Every second backup has chunks of the one before the last.
                cluster.put("stock", b"0030", "", &noise(turn % 2, 100_000));
                cluster.backup("stock");
            }
        }));
        stop.store(true, Ordering::Relaxed);
        let counts = pruning.join().unwrap();
        taken.unwrap();
        counts
    });
    is_sound(&cluster);
    assert!(pruned > 0, "{pruned} {busy}");
    cluster.table(&["backup", "prune", &folder, "--keep", "1"]).json();
    assert_eq!(listed(&cluster).len(), 1);
    is_sound(&cluster);
}
