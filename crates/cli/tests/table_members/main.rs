//! Replicas of a table that join, leave and are replaced while clients write, on real processes: by commands for one replica,
//! by a drain, and because a node does not come back (T14, T15).

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test of processes waits by the clock, and uses a part of the cluster and the writers of others"
)]

#[path = "../table_cluster/mod.rs"]
mod cluster;
#[path = "../table_faults/writers.rs"]
mod writers;

use cluster::{Cluster, eventually};
use serde_json::Value;
use std::collections::BTreeSet;
use writers::{Quiet, Writers, are_there};

/// Nodes, one more than a shard has replicas.
const NODES: usize = 4;

/// A table of two shards with three replicas each.
fn start() -> Cluster {
    let cluster = Cluster::start(NODES);
    cluster.create(&["stock", "--shards", "2"]);
    cluster
}

/// The nodes with a replica of a shard; none while one of these is not live and in sync.
fn members(shard: &Value) -> Option<BTreeSet<String>> {
    let replicas = shard["replicas"].as_array().unwrap();
    let is_whole = |replica: &Value| replica["state"] == "live" && replica["in_sync"] == true;
    let node = |replica: &Value| replica["node"].as_str().unwrap().to_owned();
    replicas.iter().all(is_whole).then(|| replicas.iter().map(node).collect())
}

/// The first shard, and its nodes when all of them are in sync.
fn first(cluster: &Cluster) -> (String, BTreeSet<String>) {
    eventually("the replicas are in sync", || {
        let shard = cluster.shards("stock").into_iter().next().unwrap();
        members(&shard).map(|nodes| (shard["shard"].to_string(), nodes)).ok_or(shard.to_string())
    })
}

/// All nodes that have no replica of the first shard.
fn others(cluster: &Cluster) -> Vec<String> {
    let (_, nodes) = first(cluster);
    (0..NODES).map(Cluster::id).filter(|node| !nodes.contains(node)).collect()
}

/// Carries a command out, again until it is taken: one for a shard waits until nothing is on its way there.
#[track_caller]
fn done(cluster: &Cluster, arguments: &[&str]) {
    eventually("a command is taken", || match cluster.run(arguments) {
        said if said.code == Some(0) => Ok(()),
        said => Err(format!("{said:?}")),
    });
}

/// The first shard comes to these nodes, and clients write then.
#[track_caller]
fn comes_to(cluster: &Cluster, writers: &Writers, nodes: &BTreeSet<String>) {
    eventually("the shard comes there", || match first(cluster) {
        (_, now) if now == *nodes => Ok(()),
        (_, now) => Err(format!("{now:?} and not {nodes:?}")),
    });
    go_on(writers);
}

#[track_caller]
fn go_on(writers: &Writers) {
    let before = writers.count();
    eventually("clients write", || match writers.count() {
        now if now >= before + 50 => Ok(()),
        now => Err(format!("{now} writes, {before} before")),
    });
}

/// What was acknowledged is there, the same on all replicas, and a table beside it is as it was.
#[track_caller]
fn nothing_is_lost(cluster: &Cluster, writers: Writers, quiet: &Quiet) {
    are_there(cluster, "stock", &writers.stop());
    cluster.nothing_differs("stock");
    quiet.is_unchanged(cluster);
}

#[test]
fn t14_a_replica_is_moved_added_and_removed_while_clients_write() {
    let cluster = start();
    let quiet = Quiet::start(&cluster);
    // The planner would take the fourth replica away again.
    done(&cluster, &["keyspace", "update", "stock", "--mode", "manual"]);
    let writers = Writers::start(&cluster, "stock", &[0, 1, 2, 3], 100);
    go_on(&writers);
    // The leader's first, then a follower's.
    for leads in [true, false] {
        let (shard, mut nodes) = first(&cluster);
        let leader = Cluster::id(cluster.leader(&cluster.shards("stock")[0]));
        let from = nodes.iter().find(|node| (**node == leader) == leads).unwrap().clone();
        let to = others(&cluster).remove(0);
        done(&cluster, &["shard", "move", "stock", &shard, "--from", &from, "--to", &to]);
        nodes.remove(&from);
        nodes.insert(to);
        comes_to(&cluster, &writers, &nodes);
    }
    let (shard, mut nodes) = first(&cluster);
    let fourth = others(&cluster).remove(0);
    done(&cluster, &["shard", "add", "stock", &shard, "--node", &fourth]);
    nodes.insert(fourth);
    comes_to(&cluster, &writers, &nodes);
    let gone = nodes.pop_first().unwrap();
    done(&cluster, &["shard", "remove", "stock", &shard, "--node", &gone]);
    comes_to(&cluster, &writers, &nodes);
    nothing_is_lost(&cluster, writers, &quiet);
}

#[test]
fn t15_a_replica_without_which_too_few_are_in_sync_is_not_removed_and_it_is_said_what_to_do() {
    let cluster = Cluster::start(3);
    cluster.create(&["stock", "--shards", "1", "--replicas", "2"]);
    let (shard, nodes) = first(&cluster);
    for node in &nodes {
        let said = cluster.run(&["shard", "remove", "stock", &shard, "--node", node]);
        said.refused(4, &["min_in_sync", "no write to it could succeed", "add a replica elsewhere"]);
    }
    assert_eq!(first(&cluster).1, nodes);
    cluster.put("stock", b"after", "", b"1");
    assert_eq!(cluster.get("stock", b"after").body, b"1");
}

#[test]
fn t15_a_node_is_drained_while_clients_write_and_then_taken_away() {
    let mut cluster = start();
    let quiet = Quiet::start(&cluster);
    let writers = Writers::start(&cluster, "stock", &[0, 1], 100);
    go_on(&writers);
    let said = cluster.run(&["node", "drain", "t3", "--wait", "--timeout", "120"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    for table in ["stock", "quiet"] {
        let shards = cluster.shards(table);
        let has = |shard: &Value| shard["replicas"].as_array().unwrap().iter().any(|one| one["node"] == "t3");
        assert!(!shards.iter().any(has), "{shards:?}");
    }
    cluster.nodes[2].process.kill();
    go_on(&writers);
    comes_to(&cluster, &writers, &["t1", "t2", "t4"].map(str::to_owned).into());
    nothing_is_lost(&cluster, writers, &quiet);
}

#[test]
fn t15_a_node_that_does_not_come_back_is_replaced_while_clients_write() {
    let mut cluster = start();
    let quiet = Quiet::start(&cluster);
    for table in ["stock", "quiet"] {
        done(&cluster, &["keyspace", "update", table, "--replace-after-ms", "2000"]);
    }
    let writers = Writers::start(&cluster, "stock", &[0, 1], 100);
    go_on(&writers);
    cluster.nodes[2].process.kill();
    comes_to(&cluster, &writers, &["t1", "t2", "t4"].map(str::to_owned).into());
    eventually("no replica of it is left", || {
        let shards = [cluster.shards("stock"), cluster.shards("quiet")].concat();
        let nodes: Vec<_> = shards.iter().map(members).collect();
        let replaced = |nodes: &Option<BTreeSet<String>>| {
            nodes.as_ref().is_some_and(|nodes| nodes.len() == 3 && !nodes.contains("t3"))
        };
        if nodes.iter().all(replaced) { Ok(()) } else { Err(format!("{nodes:?}")) }
    });
    nothing_is_lost(&cluster, writers, &quiet);
}
