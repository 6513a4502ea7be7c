//! Ranges and prefixes of datasets that were built ordered.

use crate::test_cluster::{Entries, TestCluster, dataset, entries};
use partage_engine::readonly::Layout;
use proptest::prelude::*;
use std::sync::LazyLock;

static CLUSTER: LazyLock<(TestCluster, Entries)> = LazyLock::new(|| {
    let cluster = TestCluster::new(3);
    let mut all = entries(2_000, "value");
    all.insert(b"b/\xff".to_vec(), b"\xfe".to_vec());
    all.insert(b"b+ c".to_vec(), b"blank".to_vec());
    cluster.prepare("names", "v1", Layout::Ordered, &all, &[&[0], &[1], &[2, 1], &[0, 2], &[1]]);
    cluster.upgrade("names", "v1");
    (cluster, all)
});

/// All entries of an answer in bytes.
fn scan(node: usize, query: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let request = format!(
        "GET /names?{query} HTTP/1.1\r\nhost: localhost\r\naccept: application/x-partage-entries\r\n\r\n"
    );
    let answer = CLUSTER.0.ask(node, &request);
    assert_eq!((answer.status, answer.header("partage-version")), (200, "v1"), "{}", answer.text());
    let mut rest = answer.body.as_slice();
    let mut take = || {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (bytes, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        rest = after;
        Some(bytes.to_vec())
    };
    std::iter::from_fn(|| Some((take()?, take().unwrap()))).collect()
}

#[test]
fn s17_all_entries_in_order_from_every_node() {
    let all: Vec<_> = CLUSTER.1.clone().into_iter().collect();
    for node in 0..3 {
        assert!(scan(node, "limit=100000") == all, "node {node}");
        assert!(scan(node, "prefix=") == all[..1_000], "the limit unless one is given");
    }
}

#[test]
fn s17_a_scan_as_json_says_whether_there_is_more() {
    let cluster = &CLUSTER.0;
    let first = cluster.get(0, "/names?prefix=key0000&limit=3").json();
    let keys = |answer: &serde_json::Value| -> Vec<String> {
        answer["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["key"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        (keys(&first), first["more"].as_bool()),
        (["key00000", "key00001", "key00002"].map(String::from).to_vec(), Some(true))
    );
    let rest = cluster.get(1, "/names?prefix=key0000&after=key00002").json();
    assert_eq!(
        (keys(&rest).len(), rest["more"].as_bool(), rest["version"].as_str()),
        (7, Some(false), Some("v1"))
    );
    let raw = cluster.get(2, "/names?prefix=b/").json();
    assert_eq!(raw["entries"][0]["key_base64"], "Yi//");
    assert_eq!(cluster.get(2, "/names?from=b%2B+c&to=b%2B+d").json()["entries"][0]["value"], "blank");
    assert_eq!(cluster.get(2, "/names?from=x&to=a").json()["entries"], serde_json::json!([]));
}

#[test]
fn what_cannot_be_scanned_is_refused() {
    let cluster = TestCluster::new(2);
    cluster.serve("names", "v1", &entries(10, "value"), &[&[0], &[1]]);
    for node in 0..2 {
        let refused = cluster.get(node, "/names?prefix=a");
        assert_eq!((refused.status, refused.json()["error"]["kind"].as_str()), (400, Some("not_ordered")));
    }
    for query in ["limit=0", "limit=100001", "prefix=a&form=b", "limit=x"] {
        assert_eq!(cluster.get(0, &format!("/names?{query}")).status, 400, "{query}");
    }
    assert_eq!(cluster.get(0, "/names?prefix=a&partition=1&proxy=v1").status, 421);
    assert_eq!(cluster.get(0, "/nothing?prefix=a").status, 404);
    cluster.prepare("names", "v2", Layout::Ordered, &entries(10, "value"), &[&[0], &[1]]);
    dataset(&cluster.nodes[0], "names").version("v2").unwrap().found_at(1, ["127.0.0.1:1".into()].into());
    dataset(&cluster.nodes[0], "names").upgrade("v2").unwrap();
    assert_eq!(cluster.get(0, "/names?prefix=a").status, 502);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_scan_gives_what_a_map_gives(node in 0usize..3, from in 0usize..2_100, length in 0usize..600, limit in 1usize..700, prefix in "(key0[01]?[0-9]?)?") {
        let (from, to) = (format!("key{from:05}"), format!("key{:05}", from + length));
        let found = scan(node, &format!("from={from}&to={to}&limit={limit}&prefix={prefix}"));
        let expected: Vec<_> = CLUSTER.1.range(from.into_bytes()..to.into_bytes())
            .filter(|(key, _)| key.starts_with(prefix.as_bytes()))
            .take(limit)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        prop_assert_eq!(found, expected);
    }
}
