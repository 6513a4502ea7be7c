//! Datasets through the router: several keys, ranges, and versions that never go back.

use super::*;
use std::collections::BTreeMap;

/// An ordered dataset with its first version, on three nodes.
fn test_cluster(dir: &Path) -> (TestCluster, Vec<(Process, String)>) {
    let test_cluster = TestCluster::start(dir);
    test_cluster.write("v1");
    let settings = "format = \"csv\"\nkey = \"key\"\nvalues = [\"value\"]\nlayout = \"ordered\"\n";
    fs::write(dir.join("source/names/_dataset.toml"), settings).unwrap();
    let nodes: Vec<(Process, String)> = ["a", "b", "c"].map(|id| test_cluster.node(id)).into();
    eventually("the dataset is served through the router", || serves(&test_cluster.router, "v1"));
    eventually("all shards are placed", || (test_cluster.is_whole(), test_cluster.cli(&["status"]).1));
    for (_, node) in &nodes {
        eventually("every node gives all keys", || {
            (many_keys(node).is_ok(), format!("{:?}", many_keys(node)))
        });
    }
    (test_cluster, nodes)
}

/// The body, put together if it came in chunks.
fn body_of(address: &str, method: &str, path: &str, body: &str) -> (u16, String, Value) {
    let (status, head, text) = ask(address, method, path, body).unwrap();
    let mut whole = String::new();
    let mut rest = text.as_str();
    if head.contains("transfer-encoding: chunked") {
        while let Some((length, behind)) = rest.split_once("\r\n") {
            let length = usize::from_str_radix(length, 16).unwrap();
            whole += &behind[..length];
            rest = &behind[length + 2..];
            if length == 0 {
                break;
            }
        }
    } else {
        whole += rest;
    }
    (status, head, serde_json::from_str(&whole).unwrap_or(Value::String(whole)))
}

#[test]
fn several_keys_and_ranges_through_the_router_are_as_of_a_node() {
    let dir = tempfile::tempdir().unwrap();
    let (test_cluster, nodes) = test_cluster(dir.path());
    let node = &nodes[0].1;
    let keys: Vec<String> =
        (0..KEYS).rev().map(|key| format!("k{key}")).chain(["nobody".to_owned()]).collect();
    let asked = json!({ "keys": keys }).to_string();
    // Some orders of them, and an empty question.
    for (method, path, body) in [
        ("POST", "/names", asked.as_str()),
        ("POST", "/names/", asked.as_str()),
        ("POST", "/names", "{\"keys\": []}"),
        ("GET", "/names?prefix=k1", ""),
        ("GET", "/names?prefix=k1&limit=3", ""),
        ("GET", "/names?prefix=k1&limit=3&after=k101", ""),
        ("GET", "/names?from=k3&to=k5&limit=1000", ""),
    ] {
        for _ in 0..4 {
            let (status, head, routed) = body_of(&test_cluster.router, method, path, body);
            let (_, _, direct) = body_of(node, method, path, body);
            assert_eq!((status, &routed), (200, &direct), "{method} {path}: {head}");
            assert!(head.contains("partage-version: v1") && routed["version"] == "v1", "{head}");
        }
    }
    let (_, _, found) = body_of(&test_cluster.router, "POST", "/names", &asked);
    let found: Vec<(String, Value)> = found["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["key"].as_str().unwrap().to_owned(), entry["value"].clone()))
        .collect();
    let expected = keys.iter().map(|key| {
        let value = if key == "nobody" { Value::Null } else { format!("v1 of {key}").into() };
        (key.clone(), value)
    });
    assert_eq!(found, expected.collect::<Vec<_>>(), "in the order of the question");
    // A range goes on where it ended.
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let (_, _, page) =
            body_of(&test_cluster.router, "GET", &format!("/names?prefix=k&limit=7{after}"), "");
        let keys =
            page["entries"].as_array().unwrap().iter().map(|entry| entry["key"].as_str().unwrap().to_owned());
        all.extend(keys);
        if page["more"] == false {
            break;
        }
        after = format!("&after={}", all.last().unwrap());
    }
    let mut expected: Vec<String> = (0..KEYS).map(|key| format!("k{key}")).collect();
    expected.sort();
    assert_eq!(all, expected);
    // What a node refuses is refused alike.
    for (method, path, body, status) in [
        ("POST", "/names", "{}", 400),
        ("GET", "/names?limit=0", "", 400),
        ("GET", "/names?form=1&prefix=a", "", 400),
        ("DELETE", "/names", "", 405),
    ] {
        assert_eq!(body_of(&test_cluster.router, method, path, body).0, status, "{method} {path}");
    }
}

/// By which order which version an answer is of; the body says the same version.
fn seen(address: &str, key: usize) -> Option<(u64, String)> {
    let (status, head, body) = ask(address, "GET", &format!("/names/k{key}"), "").unwrap();
    if status != 200 {
        return None;
    }
    let of = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
    let version = of("partage-version: ").unwrap().to_owned();
    assert_eq!(body, format!("{version} of k{key}"));
    Some((of("partage-order: ").map_or(0, |order| order.parse().unwrap()), version))
}

/// One who reads one key after the other, and notes what went back.
#[derive(Default)]
struct Reader {
    last: Option<(u64, String)>,
    reads: usize,
    failed: usize,
    back: Vec<String>,
}

impl Reader {
    fn read(&mut self, address: &str) {
        self.reads += 1;
        match seen(address, self.reads * 7 % KEYS) {
            None => self.failed += 1,
            now => {
                if now < self.last {
                    self.back.push(format!("{now:?} after {:?}", self.last));
                }
                self.last = now;
            }
        }
    }
}

/// Clients of a router never see an earlier version after a later one, while nodes change one after the other; nor an
/// order that was overtaken. Clients that go from node to node do: so there was something to be seen.
#[test]
fn no_read_through_the_router_goes_back_while_versions_switch() {
    let dir = tempfile::tempdir().unwrap();
    let (test_cluster, nodes) = test_cluster(dir.path());
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<JoinHandle<Reader>> = (0..2)
        .map(|_| {
            let (stop, router) = (stop.clone(), test_cluster.router.clone());
            std::thread::spawn(move || {
                let mut reader = Reader::default();
                while !stop.load(Ordering::Relaxed) {
                    reader.read(&router);
                }
                reader
            })
        })
        .collect();
    let mut around = Reader::default();
    let mut turn = 0;
    let mut until_all = |around: &mut Reader, version: &str| {
        let deadline = Instant::now() + Duration::from_secs(120);
        let mut latest: BTreeMap<usize, String> = BTreeMap::new();
        while latest.len() < nodes.len() || latest.values().any(|of| of != version) {
            assert!(Instant::now() < deadline, "not all nodes come to serve {version}: {latest:?}");
            turn += 1;
            around.read(&nodes[turn % nodes.len()].1);
            latest.extend(around.last.clone().map(|(_, of)| (turn % nodes.len(), of)));
        }
    };
    // As many switches as it takes to see nodes apart some times.
    let mut last = String::new();
    for number in 2..40 {
        last = format!("w{number:02}");
        test_cluster.write(&last);
        until_all(&mut around, &last);
        if number >= 8 && around.back.len() >= 5 {
            break;
        }
    }
    assert!(around.back.len() >= 5, "nodes were hardly ever apart: nothing is proved");
    // A rollback, and back again.
    let (status, ..) = ask(&nodes[1].1, "POST", "/-/pin/names?version=w02", "").unwrap();
    assert_eq!(status, 202);
    until_all(&mut around, "w02");
    let (status, ..) = ask(&nodes[2].1, "DELETE", "/-/pin/names", "").unwrap();
    assert_eq!(status, 202);
    until_all(&mut around, &last);
    stop.store(true, Ordering::Relaxed);
    let mut reads = 0;
    for reader in readers {
        let reader = reader.join().unwrap();
        assert_eq!(reader.back, [""; 0], "of {} reads", reader.reads);
        assert_eq!(reader.failed, 0, "of {} reads", reader.reads);
        reads += reader.reads;
    }
    let (_, _, metrics) = ask(&test_cluster.router, "GET", "/partage/metrics", "").unwrap();
    let behind =
        metrics.lines().find(|line| line.starts_with("partage_router_behind_total")).unwrap_or_default();
    println!(
        "{reads} reads through the router: none went back; from node to node {} of {}; {behind}",
        around.back.len(),
        around.reads
    );
    assert!(reads > 500, "only {reads} reads");
}

/// A client that says what it has seen gets nothing that is behind it, from any node; where there is nothing else, the answer
/// says so.
#[test]
fn a_client_that_says_what_it_has_seen_gets_nothing_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let (test_cluster, nodes) = test_cluster(dir.path());
    let with = |address: &str, at_least: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(
            stream,
            "GET /names/k1 HTTP/1.1\r\nhost: localhost\r\npartage-at-least: {at_least}\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    for address in [&nodes[0].1, &test_cluster.router] {
        assert!(with(address, "0 v1").contains("v1 of k1"));
        assert!(with(address, "0 v0").contains("v1 of k1"));
        let strange = with(address, "yesterday");
        assert!(strange.starts_with("HTTP/1.1 400") && strange.contains("at_least"), "{strange}");
    }
    assert!(with(&nodes[0].1, "0 v9").starts_with("HTTP/1.1 412"), "{}", with(&nodes[0].1, "0 v9"));
    let routed = with(&test_cluster.router, "0 v9");
    assert!(routed.starts_with("HTTP/1.1 503") && routed.contains("behind"), "{routed}");
    // It was the client's word, and no node's: others are not held back by it.
    assert!(serves(&test_cluster.router, "v1").0);
}
