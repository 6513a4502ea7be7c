//! Nodes whose disks fill, and an object store that is a folder, as processes.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

#[path = "../shuffle_pool/mod.rs"]
mod pool;

use pool::records::{Records, client};
use pool::{Pool, metric};
use std::path::Path;
use tokio::runtime::Runtime;

const RECORDS: Records = Records { of_input: 20_000, value: &[7; 50] };

fn sum(pool: &Pool, name: &str) -> u64 {
    pool.addresses().iter().map(|node| metric(node, name)).sum()
}

/// The files below a folder.
fn files(folder: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let count = |path: std::path::PathBuf| if path.is_dir() { files(&path) } else { 1 };
    entries.map(|entry| count(entry.unwrap().path())).sum()
}

#[test]
fn d6_x13_a_shuffle_goes_to_the_object_store_is_read_from_there_and_is_deleted_when_the_store_is_back() {
    let mut pool = Pool::start(3);
    let runtime = Runtime::new().unwrap();
    let shuffle = runtime.block_on(async {
        let client = client(pool.addresses()).await;
        RECORDS.sealed(&client).await
    });
    let before = sum(&pool, "partage_shuffle_disk_bytes");
    let (store, away) = (pool.path("objects"), pool.path("objects.away"));
    let url = store.to_str().unwrap().to_owned();
    // Any disk is fuller than this.
    let fills = ["--object-store", &url, "--disk-nearly-full", "0.00001"];
    (0..3).for_each(|node| pool.kill(node));
    (0..3).for_each(|node| pool.restart(node, &fills));
    pool.eventually("the disks have room", || {
        let (left, objects) = (sum(&pool, "partage_shuffle_disk_bytes"), files(&store));
        let put = sum(&pool, "partage_shuffle_objects_put_bytes_total");
        let has_room = left < before / 4 && objects > 0 && put > RECORDS.all() * 58;
        if has_room { Ok(()) } else { Err(format!("{left} of {before}, {objects} objects, {put} bytes put")) }
    });
    let number = shuffle.id.to_string();
    let stored = pool.run(&["shuffle", "show", &number, "--json"]).json()["stored"].clone();
    let of = |name: &str| stored[name].as_u64().unwrap();
    assert!(of("object_slots") > 0 && (1..=RECORDS.all() * 58).contains(&of("object_bytes")), "{stored}");
    assert_eq!(stored["nodes"].as_array().map(Vec::len), Some(3), "{stored}");
    let shown = pool.run(&["shuffle", "show", &number]).out;
    for line in ["object store", "s1 (buffer, storage): ", "slots read from the object store", "skewed keys"]
    {
        assert!(shown.contains(line), "{line} is not in {shown}");
    }
    let client = runtime.block_on(client(pool.addresses()));
    runtime.block_on(RECORDS.read(&client, &shuffle));
    pool.kill(0);
    runtime.block_on(RECORDS.read(&client, &shuffle));
    pool.restart(0, &fills);
    assert!(sum(&pool, "partage_shuffle_objects_read_bytes_total") > 0);

    // The store is away: the objects of a shuffle that is deleted meanwhile stay there, and the nodes tell so in their metrics.
    std::fs::rename(&store, &away).unwrap();
    std::fs::write(&store, "in the way").unwrap();
    runtime.block_on(client.delete(shuffle.id)).unwrap();
    pool.eventually("a node says that the store refuses", || {
        let refusing = sum(&pool, "partage_shuffle_object_store_refuses");
        if refusing > 0 { Ok(()) } else { Err("none does".to_owned()) }
    });
    assert!(files(&away) > 0);
    std::fs::remove_file(&store).unwrap();
    std::fs::rename(&away, &store).unwrap();
    pool.eventually("no object is left", || match files(&store) {
        0 => Ok(()),
        left => Err(format!("{left} objects")),
    });
    pool.eventually("nothing is left on disks", || match sum(&pool, "partage_shuffle_disk_bytes") {
        0 => Ok(()),
        left => Err(format!("{left} bytes")),
    });
}
