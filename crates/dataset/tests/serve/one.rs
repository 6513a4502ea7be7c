//! One node: values, headers, ranges, codings, refusals.

use crate::test_cluster::{Entries, Line, TestCluster, entries};
use std::io::Read;

fn cluster() -> TestCluster {
    let cluster = TestCluster::new(1);
    let mut all = entries(100, "value");
    all.insert(b"../../etc/passwd".to_vec(), b"harmless".to_vec());
    all.insert(b"\0\xff /".to_vec(), b"bytes".to_vec());
    all.insert(b"..".to_vec(), b"dots".to_vec());
    all.insert(b"long".to_vec(), b"partage ".repeat(1_000));
    all.insert(b"empty".to_vec(), Vec::new());
    all.insert(vec![b'k'; 40_000], b"long key".to_vec());
    cluster.serve("names", "v1", &all, &[&[0], &[0], &[0]]);
    cluster
}

#[test]
fn s17_a_value_comes_with_its_version_and_tag() {
    let cluster = cluster();
    let answer = cluster.get(0, "/names/key00007");
    assert_eq!((answer.status, answer.text().as_str()), (200, "value7"));
    assert_eq!(answer.header("partage-version"), "v1");
    assert_eq!(answer.header("x-sequins-version"), "v1");
    assert_eq!(answer.header("content-type"), "application/octet-stream");
    assert_eq!(answer.header("accept-ranges"), "bytes");
    assert_eq!(answer.header("last-modified"), "Sun, 06 Nov 1994 08:49:37 GMT");
    assert_eq!(answer.header("partage-proxied-to"), "");
    let head = cluster.ask(0, "HEAD /names/key00007 HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (200, "6", 0));
    assert_eq!(head.headers, answer.headers);
    assert_eq!(cluster.get(0, "/names/empty").header("content-length"), "0");
}

#[test]
fn s17_what_is_not_there_says_whether_the_dataset_is() {
    let cluster = cluster();
    let absent = cluster.get(0, "/names/nobody");
    assert_eq!((absent.status, absent.header("partage-version")), (404, "v1"));
    let unknown = cluster.get(0, "/nothing/key");
    assert_eq!((unknown.status, unknown.header("partage-version")), (404, ""));
    assert_eq!(unknown.json()["error"]["kind"], "no_dataset");
    crate::test_cluster::dataset(&cluster.nodes[0], "soon");
    let soon = cluster.get(0, "/soon/key");
    assert_eq!((soon.status, soon.json()["error"]["kind"].as_str()), (503, Some("no_version")));
    assert_eq!(soon.header("retry-after"), "1");
}

#[test]
fn path_tricks_are_keys_and_nothing_else() {
    let cluster = cluster();
    for (path, status, body) in [
        ("/names/../../etc/passwd", 400, ""),
        ("/names/%2e%2e%2F..%2fetc/passwd", 200, "harmless"),
        ("/names/%2e%2e", 200, "dots"),
        ("/names/%00%ff%20%2F", 200, "bytes"),
        ("/names/%2e%2e%2f%2e%2e%2fetc%2fshadow", 404, ""),
        ("/../names/key00001", 400, ""),
        ("/%2e%2e/names/key00001", 404, ""),
        ("/names%00/key00001", 404, ""),
        ("//names/key00001", 404, ""),
    ] {
        let answer = cluster.get(0, path);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        assert!(status != 200 || answer.text() == body, "{path}: {}", answer.text());
    }
    assert_eq!(cluster.get(0, "/names/%zz").status, 400);
    assert_eq!(cluster.get(0, "/names/a%").json()["error"]["kind"], "escape");
    let long = cluster.get(0, &format!("/names/{}", "k".repeat(40_000)));
    assert_eq!((long.status, long.text().as_str()), (200, "long key"));
    assert_eq!(cluster.get(0, &format!("/names/{}", "k".repeat(60_000))).status, 404);
    assert_eq!(cluster.get(0, &format!("/names/{}", "k".repeat(70_000))).status, 414);
    let huge = format!("GET /names/a HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(600_000));
    assert_eq!(Line::refused(cluster.nodes[0].at(), huge.as_bytes()), 431);
}

#[test]
fn ranges_and_tags_spare_bytes() {
    let cluster = cluster();
    let with = |header: &str| {
        cluster.ask(0, &format!("GET /names/key00007 HTTP/1.1\r\nhost: localhost\r\n{header}\r\n\r\n"))
    };
    let part = with("Range: bytes=1-3");
    assert_eq!(
        (part.status, part.text().as_str(), part.header("content-range")),
        (206, "alu", "bytes 1-3/6")
    );
    let nothing = with("range: bytes=6-");
    assert_eq!((nothing.status, nothing.header("content-range"), nothing.body.len()), (416, "bytes */6", 0));
    let tag = part.header("etag").to_owned();
    let same = with(&format!("if-none-match: \"x\", W/{tag}"));
    assert_eq!((same.status, same.header("etag"), same.body.len()), (304, tag.as_str(), 0));
    assert_eq!(with("if-none-match: \"x\"").status, 200);
    // Of the day when this node took the version up, of the day before and of one to come: a time says nothing of the value.
    for day in ["Sun, 06 Nov 1994 08:49:37", "Sat, 05 Nov 1994 08:49:37", "Fri, 01 Jan 2100 00:00:00"] {
        for method in ["GET", "HEAD"] {
            let request = format!(
                "{method} /names/key00007 HTTP/1.1\r\nhost: localhost\r\nif-modified-since: {day} GMT\r\n\r\n"
            );
            let answer = cluster.ask(0, &request);
            assert_eq!((answer.status, answer.header("content-length")), (200, "6"), "{method} {day}");
        }
    }
    assert_eq!(with(&format!("range: bytes=0-0\r\nif-range: {tag}")).status, 206);
    assert_eq!(with("range: bytes=0-0\r\nif-range: \"x\"").status, 200);
}

#[test]
fn a_tag_lives_as_long_as_its_value() {
    let cluster = TestCluster::new(1);
    let of = |value: &str| -> Entries { [(b"k".to_vec(), value.as_bytes().to_vec())].into() };
    let mut tags = Vec::new();
    for (version, value) in [("1", "a"), ("2", "a"), ("3", "b")] {
        cluster.serve("names", version, &of(value), &[&[0]]);
        tags.push(cluster.get(0, "/names/k").header("etag").to_owned());
    }
    assert!(tags[0] == tags[1] && tags[1] != tags[2]);
}

#[test]
fn long_values_are_compressed_when_asked_for() {
    let cluster = cluster();
    let with = |accept: &str| {
        cluster.ask(
            0,
            &format!("GET /names/long HTTP/1.1\r\nhost: localhost\r\naccept-encoding: {accept}\r\n\r\n"),
        )
    };
    let plain = with("identity");
    assert_eq!((plain.body.len(), plain.header("content-encoding")), (8_000, ""));
    // Whoever keeps it must know that others get it otherwise; what is short is never coded.
    let unasked = cluster.get(0, "/names/long");
    assert_eq!((plain.header("vary"), unasked.header("vary")), ("accept-encoding", "accept-encoding"));
    assert_eq!(cluster.get(0, "/names/key00001").header("vary"), "");
    let gzip = with("gzip");
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(gzip.body.as_slice()).read_to_end(&mut text).unwrap();
    assert!(gzip.header("content-encoding") == "gzip" && text == plain.body && gzip.body.len() < 400);
    let zstd = with("gzip, zstd");
    assert_eq!(zstd::bulk::decompress(&zstd.body, 8_000).unwrap(), plain.body);
    assert_eq!(
        (zstd.header("vary"), zstd.header("etag")),
        ("accept-encoding", &*format!("W/{}", plain.header("etag")))
    );
}

#[test]
fn what_is_not_served_is_refused_with_the_way_out() {
    let cluster = cluster();
    let status = |request: &str| cluster.ask(0, request).status;
    assert_eq!(status("PUT /names/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"), 405);
    let put = cluster.ask(0, "PUT /names HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n");
    assert_eq!((put.status, put.header("allow")), (405, "GET, HEAD, POST"));
    assert_eq!(status("DELETE /names HTTP/1.1\r\nhost: localhost\r\n\r\n"), 405);
    assert_eq!(status("POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"), 405);
    assert_eq!(status("GET /-/nothing HTTP/1.1\r\nhost: localhost\r\n\r\n"), 404);
    assert_eq!(status("GARBAGE\r\n\r\n"), 400);
    let closing = cluster.ask(0, "GET /names/key00001 HTTP/1.0\r\n\r\n");
    assert_eq!((closing.status, closing.text().as_str()), (200, "value1"));
}

#[test]
fn requests_may_come_in_pieces_and_many_at_a_time() {
    let cluster = cluster();
    let requests: Vec<String> = (0..100)
        .map(|number| format!("GET /names/key{number:05} HTTP/1.1\r\nhost: localhost\r\n\r\n"))
        .collect();
    let all = requests.concat().into_bytes();
    for step in [1, 7, 1_000, all.len()] {
        let mut line = Line::new(cluster.nodes[0].at());
        for piece in all.chunks(step) {
            line.send(piece);
        }
        for number in 0..100 {
            assert_eq!(line.answer(false).text(), format!("value{number}"), "in pieces of {step}");
        }
    }
}

#[test]
fn http2_is_spoken_too() {
    let cluster = cluster();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let uri = format!("http://{}/names/key00009", cluster.nodes[0].at());
    let (status, version, body) = runtime.block_on(async {
        let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
            .http2_only(true)
            .build_http::<http_body_util::Empty<bytes::Bytes>>();
        let answer = client.get(uri.parse().unwrap()).await.unwrap();
        let version = answer.headers()["partage-version"].clone();
        let status = answer.status();
        (status, version, http_body_util::BodyExt::collect(answer).await.unwrap().to_bytes())
    });
    assert_eq!(
        (status.as_u16(), version.to_str().unwrap(), body.as_ref()),
        (200, "v1", b"value9".as_slice())
    );
}

#[test]
fn a_server_that_stops_answers_what_it_has_and_closes() {
    let mut cluster = cluster();
    let node = cluster.nodes.remove(0);
    let mut line = Line::new(node.at());
    line.send(b"GET /names/key00001 HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert_eq!(line.answer(false).status, 200);
    node.server.stop();
    assert!(line.is_closed());
}
