//! The disk of one node is used up to a limit that the node was given, long before it is full.

use crate::cluster::{Cluster, eventually};
use crate::full::{is_told, leads};
use serde_json::Value;

/// A share that every disk has in use.
const LITTLE: &str = "0.000001";

const SHARDS: &str = "6";

#[test]
fn nothing_new_is_placed_on_a_node_whose_disk_is_nearly_full() {
    let cluster = Cluster::with_flags(&[&[], &[], &[], &["--disk-nearly-full", LITTLE]]);
    eventually("the coordinator knows", || {
        let nodes = cluster.told("/v1/nodes");
        let is_so = |node: &Value| {
            node["id"] == "t4" && node["disk_nearly_full"] == true && node["disk_full"] == false
        };
        if nodes["nodes"].as_array().unwrap().iter().any(is_so) { Ok(()) } else { Err(nodes.to_string()) }
    });
    cluster.create(&["stock", "--shards", SHARDS]);
    cluster.put("stock", b"key", "", b"value");
    let shards = cluster.shards("stock");
    let replicas: Vec<&Value> =
        shards.iter().flat_map(|shard| shard["replicas"].as_array().unwrap()).collect();
    assert!(!replicas.is_empty() && replicas.iter().all(|replica| replica["node"] != "t4"), "{replicas:?}");
    let says = |arguments: &[&str], what: &str| {
        let said = cluster.run(arguments);
        assert!(said.out.contains(what), "{arguments:?} does not say {what:?}: {said:?}");
    };
    says(&["status"], "1 node has a nearly full disk, so that no new replicas go there: t4");
    says(&["node", "list"], "up,disk-nearly-full");
    says(&["node", "show", "t4"], "disk       nearly full");
    let metrics = cluster.metrics(3);
    assert!(metrics.contains("partage_table_disk_is_nearly_full 1"), "{metrics}");
    assert!(metrics.contains("partage_table_disk_is_full 0"), "{metrics}");
    assert!(cluster.logged(3).contains("is nearly full: "), "{}", cluster.logged(3));
}

#[test]
fn a_node_whose_disk_is_used_up_to_the_limit_leads_nothing_until_it_may_use_more() {
    let mut cluster = Cluster::start(3);
    cluster.create(&["stock", "--shards", SHARDS]);
    cluster.put("stock", b"before", "", b"the limit");
    cluster.evenly_led("stock");
    cluster.nodes[2].process.kill();
    cluster.start_again_with(2, &["--disk-full", LITTLE]);
    eventually("it says that its disk is full", || {
        let metrics = cluster.metrics(2);
        if metrics.contains("partage_table_disk_is_full 1") { Ok(()) } else { Err(metrics) }
    });
    eventually("it leads nothing", || match leads(&cluster, "stock", 2) {
        0 => Ok(()),
        leads => Err(format!("{leads}")),
    });
    is_told(&cluster, "full");
    assert!(cluster.logged(2).contains("and the limit is 0.0 %"), "{}", cluster.logged(2));
    cluster.put("stock", b"meanwhile", "", b"other nodes lead");

    cluster.nodes[2].process.kill();
    cluster.start_again_with(2, &[]);
    cluster.evenly_led("stock");
    assert_eq!(cluster.get("stock", b"meanwhile").body, b"other nodes lead");
    cluster.nothing_differs("stock");
}
