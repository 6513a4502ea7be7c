//! The two paths answer the same: each request is sent to both, and every byte but the date is compared.

use crate::test_cluster::{Answer, Line, TestCluster, entries};
use proptest::prelude::*;
use std::sync::LazyLock;

static CLUSTER: LazyLock<TestCluster> = LazyLock::new(|| {
    let cluster = TestCluster::new(2);
    let mut all = entries(50, "value");
    all.insert(b"long".to_vec(), b"partage ".repeat(500));
    all.insert(b"a/b c".to_vec(), b"slash and blank".to_vec());
    cluster.serve("names", "v1", &all, &[&[0], &[1], &[0, 1]]);
    cluster
});

/// More headers than the fast path takes: it passes the connection on.
fn for_hyper(request: &str) -> String {
    let many: String = (0..40).map(|number| format!("x-{number}: y\r\n")).collect();
    format!("{}{many}\r\n", request.strip_suffix("\r\n").unwrap())
}

fn both(request: &str) -> [Answer; 2] {
    let at = CLUSTER.nodes[0].at();
    [request.to_owned(), for_hyper(request)].map(|request| {
        let mut line = Line::new(at);
        line.send(request.as_bytes());
        line.answer(request.starts_with("HEAD "))
    })
}

fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (0..60).prop_map(|number| format!("/names/key{number:05}")),
        1 => Just("/names/long".to_owned()),
        1 => Just("/names/a%2Fb%20c".to_owned()),
        1 => Just("/names/a/b%20c".to_owned()),
        1 => (0..60).prop_map(|number| format!("/names/key{number:05}?proxy=v1")),
        1 => (0..60).prop_map(|number| format!("/names/key{number:05}?proxy=v2")),
        1 => (0..60).prop_map(|number| format!("/names/key{number:05}?a=b&c")),
        1 => "/nothing/[a-z]{1,3}",
        2 => "/[a-z%./?&=+~|^\"<>{}`\\\\-]{0,8}",
        2 => "/names/[ -~&&[^ #]]{1,12}",
    ]
}

fn header() -> impl Strategy<Value = String> {
    let range = (0usize..12, 0usize..12).prop_map(|(a, b)| format!("Range: bytes={a}-{b}"));
    prop_oneof![
        range,
        "range: bytes=-?[0-9]{0,2}-?[0-9]{0,2}",
        Just("If-None-Match: *".to_owned()),
        Just("if-none-match: \"x\"".to_owned()),
        Just("if-range: \"x\"".to_owned()),
        "accept-encoding: (gzip|zstd|br|identity)(;q=0(.5)?)?",
        Just("content-length: 0".to_owned()),
        Just("connection: keep-alive".to_owned()),
        Just("cookie: a=b".to_owned()),
        "accept: [a-z*/]{1,8}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn quick_and_full_give_the_same_answer(is_head: bool, path in path(), headers in prop::collection::vec(header(), 0..4)) {
        // Pages of status change while they are looked at.
        prop_assume!(!path.starts_with("/?") && path != "/" && !["/names", "/names/", "/-/metrics"].contains(&path.split('?').next().unwrap()));
        let method = if is_head { "HEAD" } else { "GET" };
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        let [mut quick, full] = both(&request);
        if !full.headers.contains_key("connection") {
            quick.headers.remove("connection");
        }
        prop_assert_eq!(quick, full, "{}", request);
    }

    /// Whatever comes, the server answers or closes, and goes on serving others.
    #[test]
    fn noise_does_no_harm(noise in prop::collection::vec(any::<u8>(), 1..200), after in prop::collection::vec(any::<u8>(), 0..50)) {
        let at = CLUSTER.nodes[0].at();
        let mut line = Line::new(at);
        line.send(&noise);
        let mut second = Line::new(at);
        second.send(&[b"GET /names/key00001 HTTP/1.1\r\n".as_slice(), &after, b"\r\n"].concat());
        let mut third = Line::new(at);
        third.send(b"GET /names/key00001 HTTP/1.1\r\nhost: localhost\r\n\r\n");
        prop_assert_eq!(third.answer(false).text(), "value1");
    }
}

#[test]
fn pipelined_requests_of_both_kinds_are_answered_in_order() {
    let kinds = [
        "GET /names/key00001 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "HEAD /names/key00002 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET /names/nobody HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET /nothing/key HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "POST /names HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-partage-keys\r\ncontent-length: 12\r\n\r\n\x08\0\0\0key00003",
        "GET /-/health HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET /names/key00004 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ];
    let single: Vec<Answer> = kinds.iter().map(|kind| CLUSTER.ask(0, kind)).collect();
    for first in 0..kinds.len() {
        let order: Vec<usize> = (0..kinds.len()).map(|at| (first + at) % kinds.len()).collect();
        let mut line = Line::new(CLUSTER.nodes[0].at());
        line.send(order.iter().map(|at| kinds[*at]).collect::<String>().as_bytes());
        for at in order {
            assert_eq!(line.answer(kinds[at].starts_with("HEAD")), single[at], "{}", kinds[at]);
        }
    }
}
