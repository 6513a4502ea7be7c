//! Differences that are planted in the store of a stopped node: `partage table check` finds each, and names the replica and the
//! range of keys.

use crate::cluster::{Cluster, ask_json, eventually};
use lsm_tree::{AbstractTree, Config, KvSeparationOptions, SequenceNumberCounter};
use partage_service::table::filter::Path as FieldPath;
use partage_service::table::index::{IndexId, IndexedValue};
use partage_wire::table::CheckAnswer;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const ROWS: usize = 2_000;

/// A stored record, by its key; none: it is deleted.
type Record = (Vec<u8>, Option<Vec<u8>>);

/// The store of the only replica that a node has.
fn store(data_dir: &Path) -> PathBuf {
    let only = |folder: PathBuf| {
        let inner: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|one| one.unwrap().path()).collect();
        assert_eq!(inner.len(), 1, "{inner:?}");
        inner[0].clone()
    };
    only(only(data_dir.join("rows")))
}

/// Writes records past the log, by the library of the engine; says what was there before.
fn plant(data_dir: &Path, records: &[Record]) -> Vec<Record> {
    let (next, visible) = (SequenceNumberCounter::default(), SequenceNumberCounter::default());
    let separation = KvSeparationOptions::default().separation_threshold(4 << 10);
    let config = Config::new(store(data_dir), next.clone(), visible.clone());
    let tree = config.with_kv_separation(Some(separation)).open().unwrap();
    let first = tree.get_highest_persisted_seqno().unwrap() + 1;
    next.set(first);
    visible.set(first);
    let stored = |key: &[u8]| [&[1], key].concat();
    let before = |(key, _): &Record| {
        let value = tree.get(stored(key), u64::MAX).unwrap();
        (key.clone(), value.map(|value| value.to_vec()))
    };
    let before = records.iter().map(before).collect();
    let mut run = tree.ingestion().unwrap();
    for (key, value) in records {
        match value {
            Some(value) => run.write(stored(key), value.clone()).unwrap(),
            None => run.write_tombstone(stored(key)).unwrap(),
        }
    }
    run.finish().unwrap();
    before
}

fn key(number: usize) -> String {
    format!("k{number:05}")
}

fn row(number: usize) -> Vec<u8> {
    [&[1], key(number).as_bytes()].concat()
}

fn index_entry(section: &str, number: usize) -> Vec<u8> {
    let index = IndexId::of(&"by-section".parse().unwrap(), &FieldPath::parse("section").unwrap());
    let value = IndexedValue::Text(section.to_owned()).encode();
    [&[6], &index.0.to_be_bytes()[..], &value, key(number).as_bytes()].concat()
}

fn fill(cluster: &Cluster) {
    for first in (0..ROWS).step_by(500) {
        let row =
            |number: usize| json!({ "key": key(number), "json": { "section": format!("s{}", number % 5) } });
        let rows: Vec<Value> = (first..first + 500).map(row).collect();
        let body = json!({ "rows": rows }).to_string();
        eventually("rows are put", || {
            match ask_json(&cluster.nodes[0].address, "POST", "/v1/tables/stock/put", &body) {
                Some((200, _)) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }
}

/// Stops a node as an operator does, so that all of it is in its store, changes records, and starts it again.
fn change(cluster: &mut Cluster, node: usize, records: &[Record]) -> Vec<Record> {
    let process = &mut cluster.nodes[node].process.0;
    let pid = process.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    process.wait().unwrap();
    let before = plant(&cluster.nodes[node].data_dir, records);
    cluster.start_again(node);
    before
}

/// What a check says, once it has compared all three replicas.
fn check(cluster: &Cluster) -> (Option<i32>, CheckAnswer, String) {
    eventually("all replicas are compared", || {
        let said = cluster.table(&["check", "stock"]);
        match serde_json::from_str::<CheckAnswer>(&said.out) {
            Ok(answer) if answer.unchecked.is_empty() && answer.replicas == 3 => {
                Ok((said.code, answer, said.err))
            }
            other => Err(format!("{other:?} {said:?}")),
        }
    })
}

#[test]
fn a_check_finds_each_planted_difference_and_names_the_replica_and_the_range_of_keys() {
    let mut cluster = Cluster::start(3);
    cluster.create(&["stock", "--shards", "1"]);
    fill(&cluster);
    cluster.table(&["index", "create", "stock", "by-section", "--field", "section", "--wait"]).json();
    assert_eq!(check(&cluster).0, Some(0));
    let leader = cluster.leader(&cluster.shards("stock")[0]);
    let planted = [
        ("another row", "rows", 700, vec![(row(700), None)], true),
        ("a missing row", "rows", 1_100, vec![(row(1_100), None)], false),
        ("a missing index entry", "by-section", 20, vec![(index_entry("s0", 20), None)], false),
        (
            "an extra index entry",
            "by-section",
            1_900,
            vec![(index_entry("s1", 1_900), Some(Vec::new()))],
            false,
        ),
    ];
    for (turn, (what, part, number, mut records, changes)) in planted.into_iter().enumerate() {
        let node = (leader + turn) % 3;
        if changes {
            // The same row with another value.
            let before = change(&mut cluster, node, &records);
            let (_, Some(mut value)) = before[0].clone() else { panic!("{before:?}") };
            *value.last_mut().unwrap() ^= 1;
            records = vec![(row(number), Some(value))];
            change(&mut cluster, node, &before);
        }
        let before = change(&mut cluster, node, &records);
        assert_ne!(before, records, "{what} was planted");
        let (code, answer, error) = check(&cluster);
        assert_eq!(code, Some(1), "{what}: {answer:?}");
        assert!(error.contains("partage shard remove"), "the way out: {error}");
        for difference in &answer.differences {
            assert_eq!((difference.shard, &difference.node), (1, &Cluster::id(node)), "{what}: {answer:?}");
            assert!(
                difference.first_key.clone().bytes().unwrap() <= key(number).into_bytes(),
                "{what}: {answer:?}"
            );
        }
        assert!(answer.differences.iter().any(|one| one.part.contains(part)), "{what}: {answer:?}");
        println!("{what}: {:?}", answer.differences);
        change(&mut cluster, node, &before);
        assert_eq!(check(&cluster).0, Some(0), "{what} is taken back");
    }
}
