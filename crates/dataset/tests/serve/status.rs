//! The JSON of a status, field by field: nodes and commands of other versions read it.

use crate::test_cluster::{TestCluster, dataset, entries};
use partage_dataset::catalogue::{Catalogue, Link, Neighbours, NodeInfo, State, Trouble};
use partage_engine::readonly::Layout;
use partage_service::dataset::name::{DatasetName, VersionName};
use partage_wire::dataset::status::StoreCheck;
use serde_json::{Value, json};

/// A second of 1994.
const THEN: u64 = 784_111_777;

/// Two nodes, of which each field of a status has something to tell.
fn cluster() -> TestCluster {
    let cluster = TestCluster::new(2);
    cluster.serve("names", "v1", &entries(10, "value"), &[&[0, 1], &[1]]);
    for version in ["v2", "v3"] {
        cluster.prepare("names", version, Layout::Hashed, &entries(1, "value"), &[&[0]]);
    }
    let version =
        |node: usize, version: &str| dataset(&cluster.nodes[node], "names").version(version).unwrap();
    version(0, "v1").report_damage(0, "byte 7");
    version(1, "v1").set_differing(vec!["127.0.0.1:9".to_owned()]);
    version(0, "v2").set_bytes_loaded(5, 9);
    version(0, "v2").set_partitions_to_load(3);
    let reason = "part-0: byte 7: no".to_owned();
    version(1, "v2").set_state(State::Error { reason, tries: 2, next_try: Some(THEN), is_superseded: false });
    version(0, "v3").set_state(State::Held { reason: "too few keys".to_owned() });
    version(1, "v3").set_state(State::Removing);
    dataset(&cluster.nodes[0], "names").set_pinned(Some(VersionName::new("v1").unwrap()));
    let nodes = [0, 1].map(|at| NodeInfo { shard_id: at.to_string(), address: cluster.address(at) });
    for (node, at) in cluster.nodes.iter().zip(0..) {
        let (me, others) = (nodes[at].clone(), vec![nodes[1 - at].clone()]);
        node.catalogue.set_neighbours(Neighbours { me, others });
    }
    fail(&cluster.nodes[1].catalogue);
    cluster
}

/// All that may fail does.
fn fail(catalogue: &Catalogue) {
    let numbers = DatasetName::new("numbers").unwrap();
    let trouble = |reason: &str| Trouble::again(None, reason.to_owned(), THEN).0;
    catalogue.change_troubles(|troubles| {
        troubles.source = Some(trouble("403"));
        troubles.datasets.insert(numbers.clone(), trouble("no column"));
        troubles.refused.insert(numbers.clone(), vec!["a b: a blank".to_owned()]);
        troubles.link = Link::Away(trouble("refused"));
        troubles.coordinator = Link::Away(trouble("silent"));
    });
    catalogue.set_store_check(Some(StoreCheck { bytes: 5, bytes_in_all: 9 }));
}

/// What that node answers, with names in place of the addresses of the nodes and no time of today.
fn told(cluster: &TestCluster, node: usize, path: &str) -> Value {
    let mut text = cluster.get(node, path).text();
    for (at, name) in [(0, "a"), (1, "b")] {
        text = text.replace(&*cluster.address(at), name);
    }
    let mut told = serde_json::from_str(&text).unwrap();
    hide_today(&mut told);
    told
}

fn hide_today(told: &mut Value) {
    for (name, value) in told.as_object_mut().into_iter().flatten() {
        match name == "active_at" {
            true => *value = json!(value.as_str().unwrap().len()),
            false => hide_today(value),
        }
    }
}

/// What the nodes have answered since the JSON was written field by field.
fn golden() -> Value {
    serde_json::from_str(include_str!("status.json")).unwrap()
}

#[test]
fn each_field_of_a_status_has_its_name_and_what_is_not_there_is_left_out() {
    let cluster = cluster();
    for path in ["/", "/?proxy=status", "/-/health"] {
        assert_eq!(told(&cluster, 0, path), golden()[path], "{path}");
    }
    assert_eq!(told(&cluster, 1, "/")["dbs"], golden()["/"]["dbs"], "merged at the other node");
    cluster.nodes[0].catalogue.set_awaited(Some("peers".to_owned()));
    let starting = json!({ "status": "starting", "datasets": 1, "serving": 1, "awaited": "peers" });
    assert_eq!(told(&cluster, 0, "/-/health"), starting);
}

#[test]
fn one_dataset_is_told_as_among_all_and_with_the_nodes() {
    let cluster = cluster();
    let all = &golden()["/"];
    let mut one = all["dbs"]["names"].clone();
    one["nodes"] = all["nodes"].clone();
    one["unreachable"] = json!([]);
    assert_eq!(told(&cluster, 0, "/names"), one);
    let mut unread = all["dbs"]["numbers"].clone();
    unread["nodes"] = json!({ "b": all["nodes"]["b"] });
    unread["unreachable"] = json!(["a"]);
    assert_eq!(told(&cluster, 1, "/numbers"), unread, "a does not know it");
    let local = |version: &str| all["dbs"]["names"]["versions"][version]["nodes"]["a"].clone();
    let here = json!({ "names": { "v1": local("v1"), "v2": local("v2"), "v3": local("v3") } });
    assert_eq!(told(&cluster, 0, "/healthz"), here);
}
