//! The disk of one node is full: it refuses writes, lets others lead, goes on reading, says why, and takes part again by itself
//! when there is room.

use crate::cluster::{Cluster, ask, coded, eventually};
use crate::small_disk::SmallDisk;
use crate::writers::{Quiet, Writers, are_there};
use serde_json::Value;
use std::process::Stdio;
use std::time::{Duration, Instant};

const SHARDS: usize = 6;

/// The replicas of one node, of all shards of a table.
fn replicas_of(cluster: &Cluster, table: &str, node: usize) -> Vec<Value> {
    let id = Cluster::id(node);
    let shards = cluster.shards(table).into_iter();
    let replicas = shards.flat_map(|shard| shard["replicas"].as_array().unwrap().clone());
    replicas.filter(|replica| replica["node"] == *id).collect()
}

pub fn leads(cluster: &Cluster, table: &str, node: usize) -> usize {
    replicas_of(cluster, table, node).iter().filter(|replica| replica["role"] == "leader").count()
}

/// The node has all replicas of the table, live and in sync.
fn is_whole(cluster: &Cluster, table: &str, node: usize) -> Result<(), String> {
    let replicas = replicas_of(cluster, table, node);
    let whole = |replica: &&Value| replica["state"] == "live" && replica["in_sync"] == true;
    match replicas.iter().filter(whole).count() {
        SHARDS => Ok(()),
        _ => Err(format!("{replicas:?}")),
    }
}

/// Reads a row through that node, as old as it may be, and says which node had it. A follower may not know yet that it is
/// committed.
fn read(cluster: &Cluster, table: &str, key: &[u8], node: usize) -> (Vec<u8>, String) {
    let path = format!("/v1/tables/{table}/keys/{}?consistency=any", coded(key));
    let answer =
        eventually("a row is read", || match ask(&cluster.nodes[node].address, "GET", &path, &[], &[]) {
            Ok(answer) if answer.status == 200 => Ok(answer),
            other => Err(format!("{other:?}")),
        });
    let node = answer.header("partage-node").unwrap().to_owned();
    (answer.body, node)
}

/// What people see of the node t3, whose disk is full or stalled.
pub fn is_told(cluster: &Cluster, trouble: &str) {
    let says = |arguments: &[&str], what: &str| {
        let said = cluster.run(arguments);
        assert!(said.out.contains(what), "{arguments:?} does not say {what:?}: {said:?}");
    };
    eventually("the coordinator knows", || {
        let nodes = cluster.told("/v1/nodes");
        let is_so = |node: &Value| node["id"] == "t3" && node[format!("disk_{trouble}")] == true;
        if nodes["nodes"].as_array().unwrap().iter().any(is_so) { Ok(()) } else { Err(nodes.to_string()) }
    });
    let has = format!("1 node has a {trouble} disk, so that no writes and no new replicas go there: t3");
    says(&["status"], &has);
    says(&["node", "list"], &format!("up,disk-{trouble}"));
    says(&["node", "show", "t3"], &format!("disk       {trouble}"));
    says(&["explain", "stock", "before"], &format!("the disk of t3 is {trouble}"));
}

/// There is room, nothing says otherwise, and the node gets its share of the leads.
fn leads_again(cluster: &Cluster) {
    eventually("it says that there is room", || {
        let metrics = cluster.metrics(2);
        if metrics.contains("partage_table_disk_is_full 0") { Ok(()) } else { Err(metrics) }
    });
    cluster.evenly_led("stock");
    let said = cluster.run(&["status"]);
    assert!(!said.out.contains("full disk"), "{said:?}");
}

#[test]
fn a_node_whose_disk_is_full_leads_nothing_goes_on_reading_and_takes_part_again_when_there_is_room() {
    let mut cluster = Cluster::start(2);
    let folder = cluster.path("small");
    std::fs::create_dir(&folder).unwrap();
    let Some(disk) = SmallDisk::new(&folder, 600) else { return };
    cluster.add(&[], disk.path().join("t3"));
    cluster.create(&["stock", "--shards", &SHARDS.to_string()]);
    eventually("all three nodes have all", || is_whole(&cluster, "stock", 2));
    cluster.evenly_led("stock");
    cluster.put("stock", b"before", "", b"it was full");
    let quiet = Quiet::start(&cluster);

    // As much as one segment of the log, and more than a store keeps in memory.
    let writers = Writers::start(&cluster, "stock", &[0, 1], 50_000);
    disk.fill(0);
    eventually("it says that its disk is full", || {
        let metrics = cluster.metrics(2);
        if metrics.contains("partage_table_disk_is_full 1") {
            Ok(())
        } else {
            Err(format!("{}", writers.count()))
        }
    });
    let full = Instant::now();
    eventually("it leads nothing", || match leads(&cluster, "stock", 2) {
        0 => Ok(()),
        leads => Err(format!("{leads}")),
    });
    println!("its leads went to others in {:?}", full.elapsed());
    is_told(&cluster, "full");
    let goes_on = |what: &str, writes: usize| {
        let before = writers.count();
        eventually(what, || match writers.count() {
            count if count > before + writes => Ok(()),
            count => Err(format!("{count} writes, and {before} before")),
        });
    };
    // Its log has room for a while, and so long its replicas are in sync and read.
    if is_whole(&cluster, "stock", 2).is_ok() {
        let said = read(&cluster, "stock", b"before", 2);
        let own = (b"it was full".to_vec(), Cluster::id(2));
        assert!(said == own || is_whole(&cluster, "stock", 2).is_err(), "{said:?}");
    }
    goes_on("writes go on at other nodes", 100);
    eventually("its log is full, and other nodes go on without it", || {
        match is_whole(&cluster, "stock", 2) {
            Ok(()) => Err("it is in sync".to_owned()),
            Err(_) => Ok(()),
        }
    });
    goes_on("writes go on without it", 200);
    for _ in 0..20 {
        assert_eq!(read(&cluster, "stock", b"before", 2).0, b"it was full", "it answers reads");
        assert_eq!(leads(&cluster, "stock", 2), 0);
        std::thread::sleep(Duration::from_millis(100));
    }
    let logged = cluster.logged(2);
    assert!(logged.contains("the disk is full, and writes are refused"), "{logged}");
    assert!(!logged.contains("stopped: "), "no replica stops: {logged}");

    disk.clear();
    let room = Instant::now();
    goes_on("writes go on when there is room again", 50);
    let acknowledged = writers.stop();
    eventually("it takes part in all shards again", || is_whole(&cluster, "stock", 2));
    println!("it is in sync {:?} after there was room", room.elapsed());
    leads_again(&cluster);
    println!("it leads {:?} after there was room", room.elapsed());
    are_there(&cluster, "stock", &acknowledged);
    cluster.nothing_differs("stock");
    quiet.is_unchanged(&cluster);
}

#[test]
fn a_node_that_starts_on_a_full_disk_reads_what_it_has_and_a_new_one_says_what_it_needs() {
    let mut cluster = Cluster::start(2);
    let folder = cluster.path("small");
    std::fs::create_dir(&folder).unwrap();
    let Some(disk) = SmallDisk::new(&folder, 300) else { return };
    cluster.add(&[], disk.path().join("t3"));
    cluster.create(&["stock", "--shards", &SHARDS.to_string()]);
    eventually("all three nodes have all", || is_whole(&cluster, "stock", 2));
    cluster.put("stock", b"before", "", b"it was full");
    cluster.nodes[2].process.kill();
    disk.fill(0);

    let new = disk.path().join("t4");
    let mut node = cluster.serve("t4", "127.0.0.1:0", &new).stderr(Stdio::piped()).spawn().unwrap();
    eventually("it ends", || node.try_wait().unwrap().map(drop).ok_or_else(|| "it runs".to_owned()));
    let said = node.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(1), "{error}");
    let file = new.join("members");
    for part in [file.to_str().unwrap(), "the disk is full", "65536 bytes", "free room"] {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }

    cluster.start_again(2);
    let value = eventually("it reads", || match read(&cluster, "stock", b"before", 2) {
        (value, node) if node == Cluster::id(2) => Ok(value),
        (_, node) => Err(format!("{node} reads")),
    });
    assert_eq!(value, b"it was full");
    // Nothing was written since it has started.
    is_told(&cluster, "full");
    disk.clear();
    leads_again(&cluster);
    eventually("it takes part in all shards again", || is_whole(&cluster, "stock", 2));
    cluster.put("stock", b"after", "", b"there is room");
    cluster.nothing_differs("stock");
}
