//! Tables that split and merge on real processes, while clients write and read, and while processes are killed.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use chaos::cluster::Cluster;
use chaos::http::Http;
use chaos::load::Load;
use chaos::rows::{self, Quiet};
use chaos::until;
use partage_wire::json::{Bounds, Command, KeyspaceChanges, ShardStage, SplitAt};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

const NODES: [&str; 3] = ["t1", "t2", "t3"];

/// A table `stock` on three nodes.
async fn cluster() -> Cluster {
    let mut cluster = Cluster::start(0).await;
    for node in NODES {
        cluster.add_table_node(node).await;
    }
    cluster.admin.table("stock").await;
    cluster
}

/// In the order of what they hold.
async fn shards(cluster: &Cluster) -> Vec<u64> {
    let mut shards = cluster.admin.shards("stock").await;
    shards.sort_by_key(|shard| match &shard.bounds {
        Bounds::Hashes { first, .. } => first.0.clone(),
        other => panic!("the table is sharded by hash: {other:?}"),
    });
    shards.iter().map(|shard| shard.shard).collect()
}

/// Asks for a split or a merge until it is taken: a coordinator that has just begun may not know yet what it needs to know.
async fn reshape(cluster: &Cluster, command: Command) {
    until("the coordinator takes the command", || cluster.admin.command(command.clone())).await;
}

async fn split(cluster: &Cluster, shard: u64) {
    reshape(cluster, Command::SplitShard { keyspace: "stock".to_owned(), shard, at: SplitAt::Middle }).await;
}

async fn merge(cluster: &Cluster, left: u64, right: u64) {
    reshape(cluster, Command::MergeShards { keyspace: "stock".to_owned(), left, right }).await;
}

/// The first shard is split, and its halves are merged; after each, each key is written and read so many times.
async fn split_and_merge(cluster: &Cluster, load: &Load, rounds: u64) {
    let all = shards(cluster).await;
    split(cluster, all[0]).await;
    cluster.admin.settled().await;
    load.rounds(rounds).await;
    let after = shards(cluster).await;
    assert_eq!(after.len(), all.len() + 1);
    let [left, right] = after.iter().filter(|shard| !all.contains(shard)).collect::<Vec<_>>()[..] else {
        panic!("two shards are new: {all:?}, {after:?}")
    };
    merge(cluster, *left, *right).await;
    cluster.admin.settled().await;
    load.rounds(rounds).await;
    assert_eq!(shards(cluster).await.len(), all.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t13_a_table_splits_and_merges_and_no_request_fails() {
    let _turn = chaos::turn().await;
    let cluster = cluster().await;
    let load = Load::of_table(&cluster.admin, "stock");
    load.rounds(3).await;
    for _ in 0..3 {
        split_and_merge(&cluster, &load, 2).await;
    }
    let account = load.account();
    assert_eq!(account.failed, 0, "{account:?}");
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o9_d9_a_table_that_splits_loses_nothing_when_processes_are_killed_in_the_midst() {
    let _turn = chaos::turn().await;
    let mut cluster = cluster().await;
    let quiet = Quiet::start(&cluster).await;
    let load = Load::of_table(&cluster.admin, "stock");
    load.rounds(3).await;
    // Early, about when the children are ready, and about when they open.
    for (round, pause) in [0, 300, 700, 100, 500, 900].into_iter().enumerate() {
        let all = shards(&cluster).await;
        if round % 2 == 0 {
            split(&cluster, all[round % all.len()]).await;
        } else {
            merge(&cluster, all[0], all[1]).await;
        }
        sleep(Duration::from_millis(pause)).await;
        match round % 3 {
            0 => {
                let node = NODES[round % NODES.len()];
                cluster.node_mut(node).process.kill();
                cluster.restart_node(node).await;
            }
            1 => {
                cluster.coordinator().kill();
                cluster.start_coordinator().await;
            }
            _ => {
                for node in NODES {
                    cluster.node_mut(node).process.kill();
                }
                cluster.coordinator().kill();
                cluster.start_coordinator().await;
                cluster.restart_nodes(&NODES).await;
            }
        }
        cluster.admin.settled().await;
        load.rounds(3).await;
    }
    load.finish().await;
    quiet.is_unchanged(&cluster).await;
}

/// The rows that a scan through a node finds.
async fn count(http: &Http, address: &str) -> usize {
    let mut found = BTreeMap::new();
    let note = |row: &serde_json::Value| *found.entry(row["key"].to_string()).or_insert(0) += 1;
    rows::scan(http, address, "stock", "keys_only=true&limit=1000", note).await;
    assert!(found.values().all(|times| *times == 1), "a row comes once");
    found.len()
}

/// EventQL's test: one client at each node counts the rows, again and again, while the table splits.
async fn each_count_is_the_same(of: usize, splits: usize, rest: Duration) {
    let cluster = cluster().await;
    let http = Http::default();
    rows::load(&http, &cluster.node("t1").address, "stock", of).await;
    let (end, ended) = watch::channel(false);
    let counting = NODES.map(|node| {
        let (http, address, ended) = (http.clone(), cluster.node(node).address.clone(), ended.clone());
        tokio::spawn(async move {
            let mut counts = Vec::new();
            while !*ended.borrow() {
                counts.push(count(&http, &address).await);
                sleep(rest).await;
            }
            counts
        })
    });
    let before = shards(&cluster).await.len();
    for number in 0..splits {
        let all = shards(&cluster).await;
        // One after the other: each split leaves one shard more behind it.
        split(&cluster, all[2 * number % all.len()]).await;
        cluster.admin.settled().await;
    }
    assert_eq!(shards(&cluster).await.len(), before + splits);
    end.send(true).unwrap();
    let mut counts = Vec::new();
    for client in counting {
        counts.extend(client.await.unwrap());
    }
    assert!(counts.len() >= NODES.len() && counts.iter().all(|count| *count == of), "{counts:?}");
}

/// In small, with rests: other tests need the processors, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t6_each_count_of_the_rows_of_a_table_that_splits_is_the_same() {
    let _turn = chaos::turn().await;
    each_count_is_the_same(2_000, 8, Duration::from_millis(250)).await;
}

/// At its full size, without pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn t6_long_each_count_of_300_000_rows_of_a_table_that_splits_twenty_times_is_the_same() {
    let _turn = chaos::turn().await;
    each_count_is_the_same(300_000, 20, Duration::ZERO).await;
}

/// Of two replicas on three nodes: what is merged is not all on one node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t13_shards_on_different_nodes_are_merged_over_the_network() {
    let _turn = chaos::turn().await;
    let mut cluster = Cluster::start(0).await;
    for node in NODES {
        cluster.add_table_node(node).await;
    }
    cluster.admin.table_of("stock", 2).await;
    let load = Load::of_table(&cluster.admin, "stock");
    load.rounds(3).await;
    while let [left, right, ..] = shards(&cluster).await[..] {
        merge(&cluster, left, right).await;
        cluster.admin.settled().await;
        load.rounds(2).await;
    }
    let account = load.account();
    assert_eq!(account.failed, 0, "{account:?}");
    load.finish().await;
}

/// K7: each slot is split into as many, or as many are merged into one, all of them under load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k7_a_table_gets_another_number_of_slots_and_loses_nothing() {
    let _turn = chaos::turn().await;
    let mut cluster = Cluster::start(0).await;
    for node in NODES {
        cluster.add_table_node(node).await;
    }
    cluster.admin.table_of_slots("stock", 4).await;
    rows::load(&Http::default(), &cluster.node("t1").address, "stock", 500).await;
    let load = Load::of_table(&cluster.admin, "stock");
    load.rounds(3).await;
    for slots in [8, 4, 12] {
        let changes = KeyspaceChanges { shards: Some(slots), ..KeyspaceChanges::default() };
        reshape(&cluster, Command::UpdateKeyspace { keyspace: "stock".to_owned(), changes, ahead: false })
            .await;
        until(&format!("there are {slots} slots"), || async {
            let shards = cluster.admin.shards("stock").await;
            match shards.iter().filter(|shard| shard.stage.is(ShardStage::Serving)).count() {
                found if found == slots as usize => Ok(()),
                found => Err(format!("{found}")),
            }
        })
        .await;
        cluster.admin.settled().await;
        load.rounds(3).await;
    }
    let account = load.account();
    assert_eq!(account.failed, 0, "{account:?}");
    load.finish().await;
    let mut found = BTreeMap::new();
    let note = |row: &serde_json::Value| drop(found.insert(row["key"].to_string(), row["value"].to_string()));
    rows::scan(&Http::default(), &cluster.node("t2").address, "stock", "prefix=row-&limit=1000", note).await;
    let expected: BTreeMap<String, String> =
        (0..500).map(|number| (format!("\"row-{number}\""), format!("\"{number}\""))).collect();
    assert_eq!(found, expected);
}

/// What a node of tables has.
#[derive(Debug, Clone, Copy)]
struct Holdings {
    open_files: usize,
    folders: usize,
    log_bytes: u64,
    resident_kib: u64,
}

impl Holdings {
    fn of(cluster: &Cluster, node: &str) -> Holdings {
        let (process, folder) = (&cluster.node(node).process, cluster.path(node));
        let logged = entries(&folder.join("log"));
        let log_bytes = logged.iter().filter_map(|path| path.metadata().ok()).map(|file| file.len()).sum();
        Holdings {
            open_files: process.open_files(),
            folders: entries(&folder).iter().filter(|path| path.is_dir()).count(),
            log_bytes,
            resident_kib: process.resident_kib(),
        }
    }

    /// No more than that, but for connections that come and go, a segment of the log, and what an allocator keeps.
    fn are_no_more_than(&self, before: &Holdings) -> bool {
        self.open_files <= before.open_files + 12
            && self.folders <= before.folders
            && self.log_bytes <= before.log_bytes + (64 << 20)
            && self.resident_kib <= before.resident_kib + (48 << 10)
    }
}

/// All that is below a folder, while files come and go there.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        found.extend(entries(&entry.path()));
        found.push(entry.path());
    }
    found
}

/// L7: what each round leaves behind would be there ninety times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn l7_long_a_hundred_splits_and_merges_leave_nothing_behind() {
    let _turn = chaos::turn().await;
    let cluster = cluster().await;
    let load = Load::of_table(&cluster.admin, "stock");
    load.rounds(3).await;
    for _ in 0..10 {
        split_and_merge(&cluster, &load, 1).await;
    }
    let before = NODES.map(|node| Holdings::of(&cluster, node));
    for _ in 0..90 {
        split_and_merge(&cluster, &load, 1).await;
    }
    until("each node has no more than after ten rounds", || async {
        let now = NODES.map(|node| Holdings::of(&cluster, node));
        let has_grown = now.iter().zip(&before).any(|(now, before)| !now.are_no_more_than(before));
        if has_grown { Err(format!("{before:#?} then {now:#?}")) } else { Ok(()) }
    })
    .await;
    load.finish().await;
}
