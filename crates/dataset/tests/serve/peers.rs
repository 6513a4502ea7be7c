//! Several nodes: proxying, hedging, dead and slow peers, versions by name (S13, S14, S16; D5).

use crate::test_cluster::{Entries, Line, SETTINGS, TestCluster, dataset, entries};
use partage_dataset::serve::Settings;
use partage_service::dataset::fetch::FetchSettings;
use partage_service::dataset::partition::Partitioner;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A peer that reads each request and answers these bytes; it counts the requests.
fn stranger(says: &'static [u8]) -> (Arc<str>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string().into();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 1_024]);
            count.fetch_add(1, Ordering::SeqCst);
            let _ = stream.write_all(says);
            if says.is_empty() {
                kept.push(stream);
            }
        }
    });
    (at, asked)
}

/// The entry `key00000` with this value.
fn one(value: &str) -> Entries {
    [(b"key00000".to_vec(), value.as_bytes().to_vec())].into()
}

/// An address at which no process listens.
fn nobody() -> Arc<str> {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string().into()
}

fn known_at(cluster: &TestCluster, node: usize, peers: &[Arc<str>]) {
    let version = dataset(&cluster.nodes[node], "names").version("v1").unwrap();
    (0..version.partitions()).for_each(|partition| {
        version.let_go(partition);
        version.found_at(partition, peers.into());
    });
}

#[test]
fn s16_every_node_answers_every_key() {
    let cluster = TestCluster::new(3);
    let all = entries(60, "value");
    cluster.serve("names", "v1", &all, &[&[0, 1], &[1, 2], &[2, 0], &[1]]);
    let mut proxied = 0;
    for node in 0..3 {
        for number in 0..60 {
            let answer = cluster.get(node, &format!("/names/key{number:05}"));
            assert_eq!((answer.status, answer.text()), (200, format!("value{number}")));
            assert_eq!(answer.header("partage-version"), "v1");
            assert_eq!(answer.header("partage-proxied-to"), answer.header("x-sequins-proxied-to"));
            if !answer.header("partage-proxied-to").is_empty() {
                assert_ne!(answer.header("partage-proxied-to"), &*cluster.address(node));
                proxied += 1;
            }
        }
        for number in 60..80 {
            assert_eq!(cluster.get(node, &format!("/names/key{number:05}")).status, 404);
        }
    }
    assert!(proxied > 20, "{proxied}");
}

#[test]
fn s16_what_a_client_wants_goes_along() {
    let cluster = TestCluster::new(2);
    cluster.serve("names", "v1", &one("value"), &[&[1]]);
    let with = |method: &str, header: &str| {
        cluster.ask(0, &format!("{method} /names/key00000 HTTP/1.1\r\nhost: localhost\r\n{header}\r\n\r\n"))
    };
    let part = with("GET", "range: bytes=1-2");
    assert_eq!((part.status, part.text().as_str(), part.header("content-range")), (206, "al", "bytes 1-2/5"));
    let tag = part.header("etag").to_owned();
    assert_eq!(with("GET", &format!("if-none-match: {tag}")).status, 304);
    let head = with("HEAD", "x: y");
    assert_eq!((head.status, head.header("content-length")), (200, "5"));
    assert_eq!(with("GET", "range: bytes=9-").status, 416);
}

#[test]
fn s16_peers_do_not_proxy_on_and_s13_they_answer_by_version() {
    let cluster = TestCluster::new(2);
    let layout = partage_engine::readonly::Layout::Hashed;
    cluster.serve("names", "v1", &one("old"), &[&[1]]);
    cluster.prepare("names", "v2", layout, &one("new"), &[&[1]]);
    let by_peer = |node, version: &str| cluster.get(node, &format!("/names/key00000?proxy={version}"));
    assert_eq!(by_peer(1, "v1").text(), "old");
    assert_eq!(by_peer(1, "v2").text(), "new", "s13: before its own clients get it");
    assert_eq!(cluster.get(1, "/names/key00000").text(), "old");
    let elsewhere = by_peer(0, "v1");
    assert_eq!(
        (elsewhere.status, elsewhere.json()["error"]["kind"].as_str()),
        (421, Some("not_that_partition"))
    );
    let unknown = by_peer(1, "v3");
    assert_eq!((unknown.status, unknown.json()["error"]["kind"].as_str()), (421, Some("not_that_version")));
    // One node has upgraded, the other has not: the one asks for what it serves.
    dataset(&cluster.nodes[0], "names").upgrade("v2").unwrap();
    assert_eq!(cluster.get(0, "/names/key00000").text(), "new");
    assert_eq!(cluster.get(1, "/names/key00000").text(), "old");
}

#[test]
fn s16_the_next_peer_is_asked_at_once_when_one_is_dead_or_wrong() {
    let cluster = TestCluster::with(
        2,
        &Settings {
            threads: 1,
            fetch: FetchSettings { stage_ms: 10_000, ..SETTINGS },
            ..Settings::default()
        },
    );
    cluster.serve("names", "v1", &one("value"), &[&[1]]);
    let (lacks, _) = stranger(b"HTTP/1.1 421 Misdirected Request\r\ncontent-length: 0\r\n\r\n");
    let (other, _) = stranger(b"HTTP/1.1 200 OK\r\npartage-version: v0\r\ncontent-length: 3\r\n\r\nold");
    let (noise, _) = stranger(b"what?\r\n\r\n");
    let (cut, _) = stranger(b"HTTP/1.1 200 OK\r\npartage-version: v1\r\ncontent-length: 30\r\n\r\nshort");
    for bad in [nobody(), lacks, other, noise, cut] {
        known_at(&cluster, 0, &[bad.clone(), cluster.address(1)]);
        for _ in 0..8 {
            let answer = cluster.get(0, "/names/key00000");
            assert_eq!((answer.status, answer.text().as_str()), (200, "value"));
            assert_eq!(answer.header("partage-version"), "v1");
            assert_eq!(answer.header("partage-proxied-to"), &*cluster.address(1));
        }
        known_at(&cluster, 0, &[bad]);
        let failed = cluster.get(0, "/names/key00000");
        assert_eq!(
            (failed.status, failed.json()["error"]["kind"].as_str()),
            (502, Some("no_peer")),
            "d5: never another version"
        );
    }
    known_at(&cluster, 0, &[]);
    assert!(cluster.get(0, "/names/key00000").text().contains("lost until"));
}

#[test]
fn s16_a_second_peer_is_asked_when_the_first_is_slow() {
    let cluster = TestCluster::new(2);
    cluster.serve("names", "v1", &one("value"), &[&[1]]);
    let (slow, asked) = stranger(b"");
    known_at(&cluster, 0, &[slow, cluster.address(1)]);
    for _ in 0..20 {
        assert_eq!(cluster.get(0, "/names/key00000").text(), "value");
    }
    assert!(asked.load(Ordering::SeqCst) > 0, "it was the first of some");
}

/// A peer that says nothing before so many connections have asked for something, and then answers each with its key.
fn who_waits_for(count: usize) -> Arc<str> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string().into();
    std::thread::spawn(move || {
        let asked: Vec<_> =
            listener.incoming().flatten().take(count).map(|stream| (key_of(&stream), stream)).collect();
        // The last first: their order is not that of the answers.
        for (key, mut stream) in asked.into_iter().rev() {
            let head = "HTTP/1.1 200 OK\r\npartage-version: v1\r\ncontent-length";
            stream.write_all(format!("{head}: {}\r\n\r\n{key}", key.len()).as_bytes()).unwrap();
        }
    });
    at
}

fn key_of(mut stream: &TcpStream) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut part = [0; 1_024];
        let read = stream.read(&mut part).unwrap();
        assert!(read > 0, "closed within a request");
        request.extend_from_slice(&part[..read]);
    }
    let request = String::from_utf8(request).unwrap();
    request.strip_prefix("GET /names/").unwrap().split('?').next().unwrap().to_owned()
}

#[test]
fn what_one_connection_asks_of_peers_is_asked_side_by_side_and_answered_in_order() {
    let fetch = FetchSettings { stage_ms: 20_000, ..SETTINGS };
    let cluster = TestCluster::with(1, &Settings { threads: 1, fetch, ..Settings::default() });
    // Partition 0 is here, partition 1 is not.
    let partitioner = Partitioner::JavaBytes;
    let keys: Vec<String> = (0..12).map(|number| format!("key{number:05}")).collect();
    let all = keys.iter().map(|key| (key.clone().into_bytes(), key.clone().into_bytes())).collect();
    cluster.serve("names", "v1", &all, &[&[0], &[]]);
    let elsewhere = keys.iter().filter(|key| partitioner.partition(key.as_bytes(), 2) == 1).count();
    assert!((2..=7).contains(&elsewhere), "{elsewhere}");
    let version = dataset(&cluster.nodes[0], "names").version("v1").unwrap();
    version.found_at(1, [who_waits_for(elsewhere)].into());
    let mut line = Line::new(cluster.nodes[0].at());
    let asked = keys.iter().map(|key| format!("GET /names/{key} HTTP/1.1\r\nhost: localhost\r\n\r\n"));
    line.send(asked.collect::<String>().as_bytes());
    for key in keys {
        let answer = line.answer(false);
        assert_eq!((answer.status, answer.text()), (200, key));
    }
}

#[test]
fn s16_time_runs_out() {
    let fetch = FetchSettings { stage_ms: 20, total_ms: 60 };
    let cluster = TestCluster::with(2, &Settings { threads: 1, fetch, ..Settings::default() });
    cluster.serve("names", "v1", &one("value"), &[&[1]]);
    known_at(&cluster, 0, &[stranger(b"").0, stranger(b"").0]);
    let answer = cluster.get(0, "/names/key00000");
    assert_eq!((answer.status, answer.json()["error"]["kind"].as_str()), (504, Some("timed_out")));
}

#[test]
fn more_than_the_limit_do_not_wait_for_peers() {
    let cluster =
        TestCluster::with(2, &Settings { threads: 1, fetch: SETTINGS, waiting: 0, ..Settings::default() });
    cluster.serve("names", "v1", &one("value"), &[&[1]]);
    let answer = cluster.get(0, "/names/key00000");
    assert_eq!((answer.status, answer.json()["error"]["kind"].as_str()), (503, Some("busy")));
}

#[test]
fn a_peer_that_was_restarted_is_reached_again() {
    let mut cluster = TestCluster::new(2);
    cluster.serve("names", "v1", &one("value"), &[&[1]]);
    assert_eq!(cluster.get(0, "/names/key00000").text(), "value");
    let old = cluster.nodes.pop().unwrap();
    let (at, catalogue) = (old.at(), old.catalogue.clone());
    old.server.stop();
    assert_eq!(cluster.get(0, "/names/key00000").status, 502);
    let listener = TcpListener::bind(at).unwrap();
    let settings = Settings { threads: 1, ..Settings::default() };
    let _again = partage_dataset::serve::Server::start(listener, catalogue, settings).unwrap();
    assert_eq!(cluster.get(0, "/names/key00000").text(), "value");
}

/// Every value is the name of its version, so a mixed answer shows.
#[test]
fn d5_and_s14_while_versions_change_under_readers() {
    let cluster = TestCluster::new(2);
    let layout = partage_engine::readonly::Layout::Hashed;
    let add = |number: usize| {
        let version = format!("v{number:04}");
        let all =
            (0..20).map(|key| (format!("key{key:05}").into_bytes(), version.clone().into_bytes())).collect();
        cluster.prepare("names", &version, layout, &all, &[&[0], &[1], &[0, 1], &[1]]);
    };
    let upgrade = |node: usize, number: usize| {
        dataset(&cluster.nodes[node], "names").upgrade(&format!("v{number:04}")).unwrap()
    };
    add(0);
    (0..2).for_each(|node| upgrade(node, 0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let (cluster, over) = (&cluster, &over);
            scope.spawn(move || {
                let (mut last, mut line) =
                    (String::new(), crate::test_cluster::Line::new(cluster.nodes[reader % 2].at()));
                let mut number = 0;
                while !over.load(Ordering::Relaxed) {
                    number += 1;
                    let keys: Vec<Vec<u8>> = (0..20).map(|key| format!("key{key:05}").into_bytes()).collect();
                    if number % 5 == 0 {
                        let answer = cluster.post(
                            reader % 2,
                            "/names",
                            "application/x-partage-keys",
                            &crate::test_cluster::question(&keys),
                        );
                        let version = answer.header("partage-version").to_owned();
                        let expected: Vec<u8> = keys
                            .iter()
                            .flat_map(|_| [&5_u32.to_le_bytes()[..], version.as_bytes()].concat())
                            .collect();
                        assert_eq!(answer.body, expected, "d5: all of {version}");
                        continue;
                    }
                    line.send(
                        format!("GET /names/key{:05} HTTP/1.1\r\nhost: localhost\r\n\r\n", number % 20)
                            .as_bytes(),
                    );
                    let answer = line.answer(false);
                    assert_eq!(
                        (answer.status, answer.header("partage-version")),
                        (200, answer.text().as_str())
                    );
                    assert!(answer.text() >= last, "s14: {} after {last}", answer.text());
                    last = answer.text();
                }
            });
        }
        for number in 1..30 {
            add(number);
            upgrade(number % 2, number);
            upgrade((number + 1) % 2, number);
            if number > 1 {
                let old = format!("v{:04}", number - 2);
                let gone: Vec<_> =
                    cluster.nodes.iter().filter_map(|node| dataset(node, "names").retire(&old)).collect();
                gone.iter().for_each(|version| {
                    while version.in_flight() > 0 {
                        std::thread::yield_now();
                    }
                });
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_peer_that_was_slow_is_asked_after_the_others_for_a_while() {
    // A stage so short that the deaf one costs little, and a rest that does not end.
    let fetch = FetchSettings { stage_ms: 20, total_ms: 20_000 };
    let rest = std::time::Duration::from_secs(3_600);
    let settings = Settings { threads: 1, fetch, slow_rest: rest, ..Settings::default() };
    let cluster = TestCluster::with(2, &settings);
    cluster.serve("names", "v1", &one("value"), &[&[1]]);
    let (deaf, asked) = stranger(b"");
    known_at(&cluster, 0, &[deaf, cluster.address(1)]);
    for _ in 0..100 {
        assert_eq!(cluster.get(0, "/names/key00000").text(), "value");
    }
    // Without a memory it would be the first of every second request.
    let asked = asked.load(Ordering::SeqCst);
    assert!((1..=10).contains(&asked), "asked {asked} times");
}
