//! The fast path obeys the door: what it answers without hyper is refused by the same rules.

use crate::test_cluster::{Line, TestCluster, entries, question};
use partage_dataset::serve::Settings;
use partage_door::Budget;
use std::sync::Arc;
use std::time::Duration;

fn cluster(door: partage_door::Settings) -> TestCluster {
    let cluster = TestCluster::with(1, &Settings { threads: 1, door, ..Settings::default() });
    cluster.serve("names", "v1", &entries(5_000, "value"), &[&[0]]);
    cluster
}

/// The fast path has the door's limit, and counts as the door does.
#[test]
fn z3_the_head_of_a_request_must_come_in_time_and_is_counted_where_it_does_not() {
    let cluster = cluster(partage_door::Settings { head: Duration::from_millis(200), ..Default::default() });
    let mut slow = Line::new(cluster.nodes[0].at());
    slow.send(b"GET /na");
    assert!(slow.ends(), "it is still open");
    let metrics = cluster.get(0, "/-/metrics").text();
    assert!(metrics.contains("door_refused_total{reason=\"slow_head\"} 1"), "{metrics}");
}

/// A name of another site that was bound to this address, and a page of another site; also when the connection has had answers.
#[test]
fn z4_a_foreign_host_or_origin_is_refused_over_a_connection_that_has_had_answers() {
    let cluster = cluster(partage_door::Settings::default());
    let get = "GET /names/key00001 HTTP/1.1\r\n";
    for (headers, status) in [
        ("host: evil.example\r\n", 421),
        ("host: localhost\r\norigin: https://evil.example\r\n", 403),
        ("host: localhost\r\nsec-fetch-site: cross-site\r\n", 403),
    ] {
        for before in [0, 2] {
            let mut line = Line::new(cluster.nodes[0].at());
            for _ in 0..before {
                line.send(format!("{get}host: localhost\r\n\r\n").as_bytes());
                assert_eq!(line.answer(false).text(), "value1");
            }
            line.send(format!("{get}{headers}\r\n").as_bytes());
            assert_eq!(line.answer(false).status, status, "{headers:?} after {before} answers");
        }
    }
}

/// The bytes of a question for many keys count against the budget of the process.
#[test]
fn z3_a_question_for_which_there_is_no_room_is_refused() {
    let keys: Vec<Vec<u8>> = (0..4_000).map(|number| format!("key{number:05}").into_bytes()).collect();
    let body = question(&keys);
    let ask = |budget: u64| {
        let door =
            partage_door::Settings { budget: Arc::new(Budget::new(budget, None)), ..Default::default() };
        let cluster = cluster(door);
        let mut line = Line::new(cluster.nodes[0].at());
        let head = format!(
            "POST /names HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-partage-keys\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        line.send(&[head.as_bytes(), &body].concat());
        let status = line.answer(false).status;
        (status, cluster.get(0, "/-/metrics").text())
    };
    assert_eq!(ask(1 << 20).0, 200);
    let (status, metrics) = ask(16 << 10);
    assert_eq!(status, 503);
    assert!(metrics.contains("door_refused_total{reason=\"bytes_in_flight\"} 1"), "{metrics}");
}
