//! Many keys at a time.

use crate::test_cluster::{TestCluster, dataset, entries, question};
use proptest::prelude::*;

const KEYS: &str = "application/x-partage-keys";

fn cluster() -> TestCluster {
    let cluster = TestCluster::new(3);
    cluster.serve("names", "v1", &entries(3_000, "value"), &[&[0, 1], &[1, 2], &[2], &[0], &[2, 0]]);
    cluster
}

fn key(number: usize) -> Vec<u8> {
    format!("key{number:05}").into_bytes()
}

fn expected(keys: &[usize]) -> Vec<u8> {
    let one = |number: &usize| match number {
        0..3_000 => {
            let value = format!("value{number}");
            [&(value.len() as u32).to_le_bytes()[..], value.as_bytes()].concat()
        }
        _ => u32::MAX.to_le_bytes().to_vec(),
    };
    keys.iter().flat_map(one).collect()
}

#[test]
fn s17_many_keys_in_bytes_from_every_node() {
    let cluster = cluster();
    for count in [0, 1, 2, 100, 256, 257, 3_500, 10_000] {
        let numbers: Vec<usize> = (0..count).map(|number| number * 7 % 3_300).collect();
        let keys: Vec<Vec<u8>> = numbers.iter().map(|number| key(*number)).collect();
        for node in 0..3 {
            let answer = cluster.post(node, "/names", KEYS, &question(&keys));
            assert_eq!((answer.status, answer.header("partage-version")), (200, "v1"), "{}", answer.text());
            assert_eq!(answer.header("content-type"), "application/x-partage-values");
            assert_eq!(answer.body, expected(&numbers), "{count} keys of node {node}");
        }
    }
}

#[test]
fn s17_many_keys_as_json() {
    let cluster = cluster();
    for count in [1, 300] {
        let keys: Vec<String> = (2_990..2_990 + count).map(|number| format!("key{number:05}")).collect();
        let body = serde_json::json!({ "keys": keys }).to_string();
        let answer = cluster.post(1, "/names", "application/json; charset=utf-8", body.as_bytes()).json();
        assert_eq!(answer["version"], "v1");
        let entries = answer["entries"].as_array().unwrap();
        assert_eq!(entries.len(), count);
        for (key, entry) in keys.iter().zip(entries) {
            assert_eq!(entry["key"], **key);
            let number: usize = key[3..].parse().unwrap();
            let value =
                if number < 3_000 { format!("value{number}").into() } else { serde_json::Value::Null };
            assert_eq!(entry["value"], value);
        }
    }
    let empty = cluster.post(1, "/names", "application/json", b"{\"keys\": []}").json();
    assert_eq!(empty["entries"], serde_json::json!([]));
}

#[test]
fn bytes_that_are_no_text_are_base64_in_json() {
    let cluster = TestCluster::new(1);
    cluster.serve("names", "v1", &[(b"k".to_vec(), b"\xff\x00".to_vec())].into(), &[&[0]]);
    let answer = cluster.post(0, "/names", "application/json", b"{\"keys\": [\"k\"]}").json();
    assert_eq!(answer["entries"][0]["value_base64"], "/wA=");
}

#[test]
fn what_nobody_can_tell_is_told_as_that() {
    let cluster = cluster();
    let version = dataset(&cluster.nodes[1], "names").version("v1").unwrap();
    let gone: std::sync::Arc<str> = "127.0.0.1:1".into();
    version.found_at(2, [gone].into());
    let numbers: Vec<usize> = (0..100).collect();
    let keys: Vec<Vec<u8>> = numbers.iter().map(|number| key(*number)).collect();
    let answer = cluster.post(1, "/names", KEYS, &question(&keys));
    let unknown = answer.body.windows(4).filter(|four| *four == (u32::MAX - 1).to_le_bytes()).count();
    assert!(unknown > 0 && unknown < 50, "{unknown}");
    let json = serde_json::json!({ "keys": keys.iter().map(|key| String::from_utf8_lossy(key)).collect::<Vec<_>>() });
    let told = cluster.post(1, "/names", "application/json", json.to_string().as_bytes()).json();
    let errors = told["entries"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["error"]["kind"] == "no_peer")
        .count();
    assert_eq!(errors, unknown);
}

#[test]
fn bad_questions_are_refused() {
    let cluster = cluster();
    let status = |kind: &str, body: &[u8]| cluster.post(0, "/names", kind, body).status;
    assert_eq!(status("text/plain", b"a"), 415);
    assert_eq!(status(KEYS, b"\x05\0\0\0ab"), 400);
    assert_eq!(status("application/json", b"[]"), 400);
    assert_eq!(status(KEYS, &question(&vec![b"k".to_vec(); 10_001])), 400);
    assert_eq!(cluster.post(0, "/nothing", KEYS, b"").status, 404);
    assert_eq!(cluster.post(0, "/names?proxy=v9", KEYS, b"").status, 421);
    let head = format!(
        "POST /names HTTP/1.1\r\nhost: localhost\r\ncontent-type: {KEYS}\r\ncontent-length: 99999999\r\n\r\n"
    );
    let request = [head.into_bytes(), vec![0; 17 << 20]].concat();
    assert_eq!(crate::test_cluster::Line::refused(cluster.nodes[0].at(), &request), 413);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// Keys of any bytes, in any number, in requests that come in pieces.
    #[test]
    fn any_keys_in_any_pieces(numbers in prop::collection::vec(0usize..3_200, 0..400), at in 1usize..5_000) {
        static CLUSTER: std::sync::LazyLock<TestCluster> = std::sync::LazyLock::new(cluster);
        let keys: Vec<Vec<u8>> = numbers.iter().map(|number| key(*number)).collect();
        let body = question(&keys);
        let head = format!("POST /names HTTP/1.1\r\nhost: localhost\r\ncontent-type: {KEYS}\r\ncontent-length: {}\r\n\r\n", body.len());
        let request = [head.as_bytes(), &body].concat();
        let mut line = crate::test_cluster::Line::new(CLUSTER.nodes[0].at());
        let (first, second) = request.split_at(at.min(request.len()));
        line.send(first);
        line.send(second);
        prop_assert_eq!(line.answer(false).body, expected(&numbers));
    }
}
