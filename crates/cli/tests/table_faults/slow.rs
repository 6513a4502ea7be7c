//! The disk of one node is slow, or stores nothing for a while: writes go on within the stated times, no answer is wrong, and it
//! is said why.

use crate::cluster::{Cluster, ask, coded, eventually, noise};
use crate::full::is_told;
use crate::writers::{Quiet, Writers, are_there};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The number of the node with the slow disk.
const SLOW: usize = 2;

/// The default of the setting `follower_stall_ms`.
const STALL: Duration = Duration::from_secs(5);

/// What else a busy machine needs to leave a follower out: a beat, a commit, and the writes that waited.
const REST: Duration = Duration::from_secs(4);

/// The same of a leader: it says so after as long, another leads, and the next leader is as patient with it, who follows now.
const LED_ON: Duration = Duration::from_secs(10);

/// A disk that stores nothing takes so long.
const NEVER: Duration = Duration::from_secs(3_600);

/// How slow the disk of a node is.
struct SlowDisk {
    library: PathBuf,
    stated: PathBuf,
}

impl SlowDisk {
    /// One that is fast yet, of files in `folder`.
    fn new(folder: PathBuf) -> SlowDisk {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/table_faults/slow_disk.c");
        let (library, stated) = (folder.with_extension("so"), folder);
        let mut build = Command::new("cc");
        build.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl");
        let built = build.output().expect("every build needs a C compiler");
        assert!(built.status.success(), "{built:?}");
        let disk = SlowDisk { library, stated };
        disk.takes(Duration::ZERO);
        disk
    }

    fn environment(&self) -> Vec<(String, PathBuf)> {
        vec![("LD_PRELOAD".to_owned(), self.library.clone()), ("SLOW_DISK".to_owned(), self.stated.clone())]
    }

    /// Each write and each sync takes so long from now on.
    fn takes(&self, time: Duration) {
        let new = self.stated.with_extension("new");
        std::fs::write(&new, time.as_millis().to_string()).unwrap();
        std::fs::rename(new, &self.stated).unwrap();
    }
}

/// Two nodes, and one whose disk can be made slow; one shard, all replicas in sync, led by the node of that number.
fn start(leader: usize) -> (Cluster, SlowDisk) {
    let mut cluster = Cluster::start(2);
    let disk = SlowDisk::new(cluster.path("slow"));
    cluster.add_in(&[], cluster.path("t3"), disk.environment());
    cluster.create(&["stock", "--shards", "1"]);
    eventually("all have all", || is_in_sync(&cluster, SLOW, true));
    eventually("that node leads", || match cluster.leader(&cluster.shards("stock")[0]) {
        node if node == leader => Ok(()),
        other => {
            let to = Cluster::id(leader);
            Err(format!("{other} does: {:?}", cluster.run(&["shard", "transfer", "stock", "1", "--to", &to])))
        }
    });
    (cluster, disk)
}

/// Whether the map has a replica of that node that is live and in sync, or has none.
fn is_in_sync(cluster: &Cluster, node: usize, expected: bool) -> Result<(), String> {
    let shard = cluster.shards("stock").into_iter().next().unwrap();
    let id = Cluster::id(node);
    let is_it = |replica: &&serde_json::Value| {
        replica["node"] == *id && replica["state"] == "live" && replica["in_sync"] == true
    };
    let found = shard["replicas"].as_array().unwrap().iter().any(|replica| is_it(&replica));
    if found == expected { Ok(()) } else { Err(shard.to_string()) }
}

/// The longest time in which no write was acknowledged, until `is_over` says so.
fn longest_stall(writers: &Writers, mut is_over: impl FnMut() -> bool) -> Duration {
    let (mut count, mut since, mut longest) = (writers.count(), Instant::now(), Duration::ZERO);
    loop {
        let now = writers.count();
        if now != count {
            (count, since) = (now, Instant::now());
        }
        longest = longest.max(since.elapsed());
        if is_over() {
            return longest;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Until so many more writes are acknowledged.
fn writes_go_on(writers: &Writers, more: usize) -> Duration {
    let (before, begun) = (writers.count(), Instant::now());
    longest_stall(writers, || {
        assert!(begun.elapsed() < Duration::from_secs(60), "writes do not go on");
        writers.count() >= before + more
    })
}

/// What the node with the slow disk says of it, in its log and its metrics, while that is so.
fn it_says_so(cluster: &Cluster) {
    eventually("the node says that its disk stores nothing", || {
        let (metrics, logged) = (cluster.metrics(SLOW), cluster.logged(SLOW));
        let says = metrics.contains("partage_table_disk_is_stalled 1") && logged.contains("stored nothing");
        says.then_some(()).ok_or(logged)
    });
    is_told(cluster, "stalled");
}

/// The disk is fast again: the node says so and takes part again, and nothing is lost.
#[track_caller]
fn it_comes_back(cluster: &Cluster, disk: &SlowDisk, writers: Writers) {
    disk.takes(Duration::ZERO);
    eventually("it is in sync again", || is_in_sync(cluster, SLOW, true));
    writes_go_on(&writers, 50);
    let acknowledged = writers.stop();
    eventually("it says that its disk stores again", || {
        let (metrics, logged) = (cluster.metrics(SLOW), cluster.logged(SLOW));
        let says =
            metrics.contains("partage_table_disk_is_stalled 0") && logged.contains("the disk stores again");
        says.then_some(()).ok_or(logged)
    });
    are_there(cluster, "stock", &acknowledged);
    cluster.nothing_differs("stock");
}

#[test]
fn a_follower_with_a_slow_disk_slows_writes_down_and_one_that_stores_nothing_is_left_out() {
    let (cluster, disk) = start(0);
    let quiet = Quiet::start(&cluster);
    let writers = Writers::start(&cluster, "stock", &[0, 1], 100);
    writes_go_on(&writers, 50);
    // Slow, and it stays in sync: writes wait for it.
    disk.takes(Duration::from_millis(150));
    let stall = writes_go_on(&writers, 60);
    println!("with a disk that takes 150 ms: {stall:?} without a write at most");
    assert!(stall < Duration::from_secs(3), "{stall:?}");
    is_in_sync(&cluster, SLOW, true).unwrap();

    disk.takes(NEVER);
    let mut left = None;
    let begun = Instant::now();
    let stall = longest_stall(&writers, || {
        assert!(begun.elapsed() < Duration::from_secs(60), "it stays in sync");
        if left.is_none() && is_in_sync(&cluster, SLOW, false).is_ok() {
            left = Some(begun.elapsed());
        }
        left.is_some_and(|left| begun.elapsed() > left + Duration::from_secs(3))
    });
    println!("with a disk that stores nothing: {stall:?} without a write; out of the set after {left:?}");
    assert!(stall < STALL + REST, "{stall:?}");
    writes_go_on(&writers, 100);
    it_says_so(&cluster);
    it_comes_back(&cluster, &disk, writers);
    quiet.is_unchanged(&cluster);
}

#[test]
fn a_leader_whose_disk_stores_nothing_is_followed_by_another() {
    let (cluster, disk) = start(SLOW);
    let quiet = Quiet::start(&cluster);
    let writers = Writers::start(&cluster, "stock", &[0, 1], 100);
    writes_go_on(&writers, 50);
    disk.takes(NEVER);
    let (begun, before) = (Instant::now(), writers.count());
    let stall = longest_stall(&writers, || {
        assert!(
            begun.elapsed() < Duration::from_secs(100),
            "nobody else leads: {:?}",
            cluster.shards("stock")
        );
        writers.count() > before + 100
    });
    println!("a leader whose disk stores nothing: {stall:?} without a write");
    assert!(stall < LED_ON + REST, "{stall:?}");
    assert_ne!(cluster.leader(&cluster.shards("stock")[0]), SLOW);
    it_says_so(&cluster);
    it_comes_back(&cluster, &disk, writers);
    quiet.is_unchanged(&cluster);
}

/// Where no other could lead, none is asked to: the leader stays, and reads.
#[test]
fn a_leader_whose_disk_stores_nothing_and_that_none_can_follow_refuses_writes_by_name_and_reads() {
    let mut cluster = Cluster::start(0);
    let disk = SlowDisk::new(cluster.path("slow"));
    cluster.add_in(&[], cluster.path("t1"), disk.environment());
    cluster.create(&["stock", "--shards", "1", "--replicas", "1"]);
    cluster.put("stock", b"before", "", b"it was stalled");
    let epoch = cluster.shards("stock")[0]["epoch"].clone();
    disk.takes(NEVER);
    let address = cluster.nodes[0].address.clone();
    let path = |key: &[u8]| format!("/v1/tables/stock/keys/{}", coded(key));
    let first = {
        let (address, path) = (address.clone(), path(b"first"));
        std::thread::spawn(move || ask(&address, "PUT", &path, &[], b"waits").map(|answer| answer.status))
    };
    eventually("a write is refused by name", || match ask(&address, "PUT", &path(b"next"), &[], b"x") {
        Ok(answer) if answer.status == 503 && answer.json().to_string().contains("is stalled") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    for _ in 0..10 {
        assert_eq!(cluster.get("stock", b"before").body, b"it was stalled");
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(cluster.shards("stock")[0]["epoch"], epoch, "no lead was laid down");
    let said = cluster.run(&["explain", "stock", "before"]);
    assert!(said.out.contains("no other can lead in the place of t1"), "{said:?}");
    disk.takes(Duration::ZERO);
    cluster.put("stock", b"after", "", b"it stores");
    let _ = first.join().unwrap();
}

#[test]
fn the_child_of_a_split_that_copies_for_longer_than_load_ms_is_not_begun_anew() {
    let (cluster, disk) = start(0);
    for number in 0..40_u64 {
        cluster.put("stock", format!("k{number}").as_bytes(), "", &noise(number, 500_000));
    }
    let said = cluster.run(&["keyspace", "update", "stock", "--load-ms", "4000"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    disk.takes(Duration::from_millis(30));
    let begun = Instant::now();
    let said = cluster.run(&["shard", "split", "stock", "1", "--wait", "--timeout", "120"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    println!("split after {:?}", begun.elapsed());
    assert!(begun.elapsed() > Duration::from_secs(6), "the disk is too fast for this test");
    let metrics = cluster.metrics(SLOW);
    assert!(metrics.contains("partage_table_replicas_formed_total 2"), "{metrics}\n{}", cluster.logged(SLOW));
    disk.takes(Duration::ZERO);
    cluster.nothing_differs("stock");
}
