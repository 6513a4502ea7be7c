//! Status, health, metrics, refresh.

use crate::test_cluster::{TestCluster, dataset, entries};
use partage_dataset::catalogue::{Neighbours, NodeInfo, State};
use partage_dataset::serve::{OrderError, Orders, Settings};
use partage_engine::readonly::Layout;
use std::sync::{Arc, Mutex};

fn cluster() -> TestCluster {
    let cluster = TestCluster::new(3);
    cluster.serve("names", "v1", &entries(100, "value"), &[&[0, 1], &[1], &[2, 0], &[]]);
    cluster.prepare("names", "v2", Layout::Hashed, &entries(1, "value"), &[&[2]]);
    let loading = dataset(&cluster.nodes[2], "names").version("v2").unwrap();
    loading.set_bytes_loaded(5, 9);
    loading.set_partitions_to_load(3);
    dataset(&cluster.nodes[1], "names").version("v2").unwrap().set_state(State::Error {
        reason: "part-0: byte 7: no".into(),
        tries: 1,
        next_try: None,
        is_superseded: true,
    });
    acquaint(&cluster, &[]);
    cluster
}

fn acquaint(cluster: &TestCluster, more: &[Arc<str>]) {
    for (number, node) in cluster.nodes.iter().enumerate() {
        let info =
            |number: usize| NodeInfo { shard_id: number.to_string(), address: cluster.address(number) };
        let mut others: Vec<NodeInfo> =
            (0..cluster.nodes.len()).filter(|other| *other != number).map(info).collect();
        others.extend(
            more.iter().map(|address| NodeInfo { shard_id: String::new(), address: address.clone() }),
        );
        node.catalogue.set_neighbours(Neighbours { me: info(number), others });
    }
}

#[test]
fn s17_status_is_the_same_from_every_node() {
    let cluster = cluster();
    let mut told: Vec<serde_json::Value> =
        (0..3).map(|node| cluster.get(node, "/").json()["dbs"].clone()).collect();
    let first = told.remove(0);
    let v1 = &first["names"]["versions"]["v1"];
    assert_eq!(v1["num_partitions"], 4);
    assert_eq!(v1["replication_histogram"], serde_json::json!({ "0": 1, "1": 1, "2": 2 }));
    assert_eq!(
        (v1["missing_partitions"].as_u64(), v1["underreplicated_partitions"].as_u64()),
        (Some(1), Some(1))
    );
    assert_eq!(v1["nodes"][&*cluster.address(0)]["partitions"], serde_json::json!([0, 2]));
    assert_eq!(v1["nodes"][&*cluster.address(0)]["shard_id"], "0");
    assert_eq!(v1["nodes"][&*cluster.address(2)]["current"], true);
    let v2 = &first["names"]["versions"]["v2"]["nodes"];
    assert_eq!(v2[&*cluster.address(0)]["state"], "BUILDING");
    assert_eq!(v2[&*cluster.address(2)]["loading"]["bytes"], 5);
    assert_eq!(v2[&*cluster.address(1)]["error"], "part-0: byte 7: no");
    assert_eq!(v2[&*cluster.address(1)]["superseded"], true);
    assert!(told.iter().all(|other| *other == first), "{told:?}");
    let one = cluster.get(1, "/names/").json();
    assert_eq!(one["versions"], first["names"]["versions"]);
    assert_eq!(cluster.get(1, "/nothing").status, 404);
}

#[test]
fn who_is_silent_is_named() {
    let cluster = cluster();
    acquaint(&cluster, &["127.0.0.1:1".into()]);
    assert_eq!(cluster.get(0, "/").json()["unreachable"], serde_json::json!(["127.0.0.1:1"]));
    let page = cluster.ask(0, "GET /names HTTP/1.1\r\nhost: localhost\r\naccept: text/html,*/*\r\n\r\n");
    assert!(page.header("content-type").starts_with("text/html"));
    for part in
        ["No word from 127.0.0.1:1", "partition 3: on 0", "byte 7: no", "too few replicas", "<progress"]
    {
        assert!(page.text().contains(part), "{part}");
    }
}

#[test]
fn health_is_told_in_both_tongues() {
    let cluster = cluster();
    assert_eq!(cluster.get(0, "/-/health").json()["status"], "ok");
    let healthz = cluster.get(0, "/healthz");
    assert_eq!(healthz.status, 200);
    assert_eq!(healthz.json()["names"]["v1"]["state"], "ACTIVE");
    assert_eq!(healthz.json()["names"]["v1"]["current"], true);
    let empty = TestCluster::new(1);
    assert_eq!((empty.get(0, "/healthz").status, empty.get(0, "/-/health").status), (404, 200));
}

#[test]
fn metrics_count_requests_by_what_became_of_them() {
    let cluster = cluster();
    for number in 0..20 {
        cluster.get(0, &format!("/names/key{number:05}"));
    }
    let text = |node| cluster.get(node, "/-/metrics").text();
    let sum = |text: &str, what: &str| -> f64 {
        let lines = text.lines().filter(|line| line.contains(what) && line.contains("_count{"));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    let mine = text(0);
    assert!(mine.contains("partage_dataset_partitions{dataset=\"names\",version=\"v1\"} 2"), "{mine}");
    assert!(mine.contains("partage_dataset_state{dataset=\"names\",version=\"v1\",state=\"active\"} 1"));
    assert!(mine.contains("le=\"+Inf\"") && mine.ends_with("# EOF\n"));
    let by_hop = ["here", "proxied"].map(|hop| sum(&mine, &format!("hop=\"{hop}\"")));
    assert_eq!(by_hop.iter().sum::<f64>(), 20.0, "{mine}");
    let others: f64 = [1, 2].map(|node| sum(&text(node), "hop=\"peer\"")).iter().sum();
    let failed = sum(&mine, "outcome=\"failed\"");
    assert!(others >= by_hop[1] - failed && failed > 0.0, "partition 3 is nowhere");
}

/// The orders that the server has passed on.
#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Orders for Heard {
    fn refresh(&self) {
        self.0.lock().unwrap().push("refresh".to_owned());
    }

    fn pin(&self, dataset: &str, version: Option<&str>) -> Result<(), OrderError> {
        self.check_pin(dataset, version)?;
        self.0.lock().unwrap().push(format!("{dataset} {version:?}"));
        Ok(())
    }

    fn check_pin(&self, dataset: &str, version: Option<&str>) -> Result<(), OrderError> {
        let (dataset, reason) = (dataset.to_owned(), "part-0: line 1".to_owned());
        match version {
            Some("..") => Err(OrderError::Name("\"..\" is no version".to_owned())),
            Some("7") => {
                Err(OrderError::NoVersion { dataset, version: "7".to_owned(), known: "1".to_owned() })
            }
            Some("9") => Err(OrderError::Broken { dataset, version: "9".to_owned(), reason }),
            Some("11") => Err(OrderError::Busy),
            _ => Ok(()),
        }
    }
}

#[test]
fn orders_reach_who_can_carry_them_out() {
    let heard = Arc::new(Heard::default());
    let cluster =
        TestCluster::with(1, &Settings { threads: 1, orders: Some(heard.clone()), ..Settings::default() });
    cluster.serve("names", "v1", &entries(3, "value"), &[&[0]]);
    let say = |cluster: &TestCluster, method: &str, path: &str| {
        cluster.ask(0, &format!("{method} /-/{path} HTTP/1.1\r\nhost: localhost\r\npartage-request: 1\r\ncontent-length: 0\r\n\r\n")).status
    };
    assert_eq!(say(&cluster, "POST", "refresh"), 202);
    assert_eq!(say(&cluster, "POST", "pin/names?version=1"), 202);
    assert_eq!(say(&cluster, "DELETE", "pin/names"), 202);
    assert_eq!(say(&cluster, "POST", "pin/names?version=2&dry_run=true"), 200, "checked, and not told");
    assert_eq!(say(&cluster, "DELETE", "pin/names?dry_run=true"), 200);
    assert_eq!(*heard.0.lock().unwrap(), ["refresh", "names Some(\"1\")", "names None"]);
    for (method, path, status) in [
        ("GET", "refresh", 405),
        ("GET", "pin/names", 405),
        ("POST", "pin/names", 400),
        ("DELETE", "pin/names?version=1", 400),
        ("POST", "pin/names?version=..", 400),
        ("POST", "pin/names?version=..&dry_run=true", 400),
        ("POST", "pin/names?version=7", 404),
        ("POST", "pin/names?version=9", 409),
        ("POST", "pin/names?version=9&dry_run=true", 409),
        ("POST", "pin/names?version=11", 503),
        ("POST", "pin/nothing?version=1", 404),
        ("POST", "refresh/names", 404),
    ] {
        assert_eq!(say(&cluster, method, path), status, "{method} {path}");
    }
    assert_eq!(heard.0.lock().unwrap().len(), 3);
    let silent = TestCluster::new(1);
    assert_eq!(["refresh", "pin/names?version=1"].map(|path| say(&silent, "POST", path)), [404, 404]);
}
