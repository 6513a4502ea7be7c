//! Connections on which nothing is asked are closed, whichever path serves them.

use crate::test_cluster::{Line, TestCluster, entries};
use partage_dataset::serve::Settings;
use std::time::Duration;

fn cluster(idle: Duration) -> TestCluster {
    let settings = Settings { threads: 1, idle, ..Settings::default() };
    let cluster = TestCluster::with(1, &settings);
    cluster.serve("names", "v1", &entries(5, "value"), &[&[0]]);
    cluster
}

/// A preface and settings that say nothing.
const HTTP_2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[test]
fn who_asks_nothing_is_closed_and_was_answered_before() {
    let cluster = cluster(Duration::from_millis(200));
    let mut silent = Line::new(cluster.nodes[0].at());
    let mut quick = Line::new(cluster.nodes[0].at());
    quick.send(b"GET /names/key00001 HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert_eq!(quick.answer(false).text(), "value1");
    let mut full = Line::new(cluster.nodes[0].at());
    full.send(b"GET /names HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert_eq!(full.answer(false).status, 200);
    let mut second = Line::new(cluster.nodes[0].at());
    second.send(HTTP_2);
    for (who, line) in
        [("silent", &mut silent), ("quick", &mut quick), ("full", &mut full), ("HTTP/2", &mut second)]
    {
        assert!(line.ends(), "{who}: it is still open");
    }
}
