//! The nodes that have all of a shard do not come back: the shard says what it waits for, and a person lets it go on with what is
//! left.

use crate::cluster::{Cluster, Said, eventually, put};
use serde_json::Value;
use std::time::Duration;

/// Which nodes are in sync.
fn in_sync(cluster: &Cluster) -> Vec<String> {
    let shard = &cluster.shards("stock")[0];
    let replicas = shard["replicas"].as_array().unwrap().iter();
    let mut nodes: Vec<String> = replicas
        .filter(|replica| replica["in_sync"] == true)
        .map(|replica| replica["node"].as_str().unwrap().to_owned())
        .collect();
    nodes.sort();
    nodes
}

fn says(cluster: &Cluster, arguments: &[&str], part: &str) -> String {
    eventually(part, || {
        let said = cluster.run(arguments);
        let text = format!("{}{}", said.out, said.err);
        if text.contains(part) { Ok(text) } else { Err(text) }
    })
}

#[track_caller]
fn are_in_sync(cluster: &Cluster, wanted: &[&str]) {
    eventually("these are in sync", || match in_sync(cluster) {
        nodes if nodes == wanted => Ok(()),
        nodes => Err(format!("{nodes:?} and not {wanted:?}")),
    });
}

/// `partage shard force-join` with the copy of the first node.
fn join(cluster: &Cluster, more: &[&str]) -> Said {
    let generation = cluster.generation("stock");
    let join = ["shard", "force-join", "stock", "1", "--node", "t1", "--generation", &generation];
    cluster.run(&[&join[..], more].concat())
}

#[test]
fn t16_a_person_lets_a_shard_go_on_with_a_replica_that_was_not_in_sync() {
    let mut cluster = Cluster::start(3);
    cluster.create(&["stock", "--shards", "1"]);
    are_in_sync(&cluster, &["t1", "t2", "t3"]);
    (0..20).for_each(|n| cluster.put("stock", format!("early-{n}").as_bytes(), "", b"1"));

    // One node is away while the others take writes; then these end.
    cluster.nodes[0].process.kill();
    are_in_sync(&cluster, &["t2", "t3"]);
    let address = cluster.nodes[1].address.clone();
    put(&address, "stock", b"late", "", b"1");
    cluster.nodes[1].process.kill();
    cluster.nodes[2].process.kill();
    cluster.start_again(0);
    let said = says(&cluster, &["status"], "wait");
    let said = format!("{said}{}", says(&cluster, &["status"], "t2, t3"));
    assert!(said.contains("partage shard force-join"), "the way out: {said}");
    says(&cluster, &["explain", "stock", "late"], "t2");

    // The first node that comes back with all of it ends the wait, and then there is nothing to choose.
    cluster.start_again(1);
    eventually("an in-sync replica is back", || match cluster.shards("stock")[0]["serving"].as_str() {
        Some("led") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    join(&cluster, &[]).refused(4, &["has not ended", "wait until it serves"]);
    let answer = cluster.get("stock", b"late");
    assert_eq!((answer.status, answer.body), (200, b"1".to_vec()));

    // The same again, and their disks are lost.
    cluster.nodes[0].process.kill();
    cluster.start_again(2);
    are_in_sync(&cluster, &["t2", "t3"]);
    put(&address, "stock", b"lost", "", b"1");
    for node in [1, 2] {
        cluster.nodes[node].process.kill();
        std::fs::remove_dir_all(&cluster.nodes[node].data_dir).unwrap();
    }
    cluster.start_again(0);
    says(&cluster, &["status"], "t2, t3");
    // It came while the others counted as alive, and began to catch up: the command says what to do then.
    eventually("the command says what to do first", || match join(&cluster, &["--dry-run"]) {
        said if said.err.contains("start that process again") => Ok(()),
        said => Err(format!("{said:?}")),
    });
    cluster.nodes[0].process.kill();
    cluster.start_again(0);
    let dry = eventually("it may be chosen", || match join(&cluster, &["--dry-run"]) {
        said if said.code == Some(0) => Ok(said),
        said => Err(format!("{said:?}")),
    });
    let text = format!("{}{}", dry.out, dry.err);
    assert!(text.contains("may be missing"), "{text}");
    std::thread::sleep(Duration::from_millis(500));
    let waits = |shard: &Value| shard["serving"] != "led";
    assert!(waits(&cluster.shards("stock")[0]), "a dry run changes nothing");
    let said = join(&cluster, &[]);
    assert_eq!(said.code, Some(0), "{said:?}");
    // New nodes in the place of the lost ones.
    [1, 2].into_iter().for_each(|node| cluster.start_again(node));
    (0..20).for_each(|n| {
        let answer = cluster.get("stock", format!("early-{n}").as_bytes());
        assert_eq!((answer.status, answer.body), (200, b"1".to_vec()), "early-{n}");
    });
    assert_eq!(cluster.get("stock", b"lost").status, 404);
    cluster.put("stock", b"after", "", b"1");
    are_in_sync(&cluster, &["t1", "t2", "t3"]);
    cluster.nothing_differs("stock");
}
