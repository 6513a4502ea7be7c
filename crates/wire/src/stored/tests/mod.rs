//! What is written is read back, and nothing damaged is.

mod faults;

use super::encoder::Batch;
use super::{ROOTS, StoreEncoder, StoreOp, TransactionLimits, inspect, read};
use crate::limits::{CHUNKS_WITH_HEAD, VALUE_BYTES};
use crate::testing;
use bytes::Bytes;
use partage_core::base::id::{Incarnation, TransactionId};
use partage_core::base::name::NodeId;
use partage_core::cluster::{KeyspaceRecord, Records, Write};
use partage_core::keyspace::Keyspace;
use partage_core::keyspace::key::{Key, KeyRange};
use partage_core::keyspace::map::ShardMap;
use partage_core::keyspace::sharding::{Bounds, Sharding};
use partage_core::plan::{Origin, Planned};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A store without faults.
#[derive(Default, Clone)]
struct Store(BTreeMap<String, Bytes>);

impl Store {
    fn run(&mut self, ops: &[StoreOp]) {
        for op in ops {
            match op {
                StoreOp::Put(key, value) => {
                    assert!(value.len() <= VALUE_BYTES, "{key}: {} bytes", value.len());
                    assert!(ROOTS.contains(&key.split('/').next().unwrap()), "{key}");
                    self.0.insert(key.clone(), value.clone());
                }
                StoreOp::Delete(key) => {
                    self.0.remove(key);
                }
            }
        }
    }

    fn run_all(&mut self, batch: &Batch) {
        let keys: Vec<_> =
            [&batch.prepare, &batch.commit, &batch.tidy].into_iter().flatten().map(StoreOp::key).collect();
        assert_eq!(
            keys.iter().collect::<BTreeSet<_>>().len(),
            keys.len(),
            "a key is changed twice: {keys:?}"
        );
        self.run(&batch.prepare);
        self.run(&batch.commit);
        self.run(&batch.tidy);
    }

    fn recovered(&self) -> super::Recovered {
        read(&self.0).unwrap_or_else(|error| panic!("{error}"))
    }
}

fn record(keyspace: &Keyspace) -> KeyspaceRecord {
    KeyspaceRecord::new(keyspace.clone(), 7, partage_core::base::id::ShardId(1))
}

fn is_same(records: &Records, keyspaces: &[(KeyspaceRecord, ShardMap)]) {
    assert_eq!(records.keyspaces, keyspaces);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn records_are_read_back_as_written(
        cluster in testing::cluster_records(),
        nodes in proptest::collection::vec(testing::node_records(), 0..4),
        plans in proptest::collection::vec(testing::plans(), 0..4),
        keyspace in testing::keyspace_records(),
    ) {
        let mut writes = vec![Write::Cluster(cluster.clone()), Write::Keyspace(keyspace.clone())];
        writes.extend(nodes.iter().cloned().map(Write::Node));
        writes.extend(plans.iter().cloned().map(Write::Plan));
        let (mut store, mut encoder) = (Store::default(), StoreEncoder::default());
        store.run_all(&encoder.encode(&writes, |_| None).unwrap());
        let recovered = store.recovered();
        prop_assert_eq!(&recovered.encoder, &encoder);
        prop_assert_eq!(recovered.records.cluster, cluster);
        let nodes: BTreeMap<_, _> = nodes.into_iter().map(|n| (n.spec.id.clone(), n)).collect();
        prop_assert_eq!(recovered.records.nodes, nodes.values().cloned().collect::<Vec<_>>());
        let plans: BTreeMap<_, _> = plans.into_iter().map(|p| (p.id, p)).collect();
        prop_assert_eq!(recovered.records.plans, plans.values().cloned().collect::<Vec<_>>());
        prop_assert_eq!(&recovered.records.keyspaces[0].0, &keyspace);
        let drops: Vec<_> = nodes.into_keys().map(Write::DropNode)
            .chain(plans.into_keys().map(Write::DropPlan))
            .chain([Write::DropKeyspace(keyspace.keyspace.name)]).collect();
        store.run_all(&encoder.encode(&drops, |_| None).unwrap());
        prop_assert_eq!(store.0.keys().collect::<Vec<_>>(), ["cluster", "manifest"]);
    }

    #[test]
    fn no_more_shards_are_encoded_than_was_said_before((keyspace, diffs) in testing::histories(1..80)) {
        let (mut encoder, mut map) = (StoreEncoder::default(), testing::replay(&keyspace, &[]));
        for diff in diffs {
            map.apply(&diff).unwrap();
            let changed = diff.changed.len() + diff.removed.len();
            let writes = [Write::Map(diff)];
            let log = |encoder: &StoreEncoder| encoder.maps.get(&keyspace.name).map(|log| log.log);
            let (most, before) = (encoder.most_shards(&writes, |_| Some(&map)), log(&encoder));
            encoder.encode(&writes, |_| Some(&map)).unwrap();
            let whole = if log(&encoder) == before { 0 } else { map.len() };
            prop_assert!(most >= changed + whole, "{} of {} and {}", most, changed, whole);
        }
        let dropped = [Write::DropKeyspace(keyspace.name.clone()), Write::Map(map.whole())];
        prop_assert_eq!(encoder.most_shards(&dropped, |_| Some(&map)), 2 * map.len());
    }

    /// A crash at any step leaves the map before or the map after, and a writer goes on from what is read.
    #[test]
    fn a_crash_at_any_step_leaves_one_map_or_the_next(
        (keyspace, diffs) in testing::histories(1..80), crash in any::<proptest::sample::Index>(),
    ) {
        let (mut store, mut encoder) = (Store::default(), StoreEncoder::default());
        let mut map = testing::replay(&keyspace, &[]);
        for (at, diff) in diffs.iter().enumerate() {
            let before = (store.clone(), map.clone());
            map.apply(diff).unwrap();
            let mut writes = vec![Write::Map(diff.clone())];
            if at == 0 {
                writes.insert(0, Write::Keyspace(record(&keyspace)));
            }
            let batch = encoder.encode(&writes, |_| Some(&map)).unwrap();
            store.run_all(&batch);
            if crash.index(diffs.len()) == at {
                let mut prepared = before.0;
                prepared.run(&batch.prepare);
                let kept = prepared.recovered().records.keyspaces;
                prop_assert_eq!(kept.first().map_or(&before.1, |(_, map)| map), &before.1);
                prepared.run(&batch.commit);
                let recovered = prepared.recovered();
                is_same(&recovered.records, &[(record(&keyspace), map.clone())]);
                let litter: BTreeSet<_> = recovered.litter.iter().map(String::as_str).collect();
                let tidied: BTreeSet<_> =
                    batch.tidy.iter().map(StoreOp::key).filter(|k| prepared.0.contains_key(*k)).collect();
                prop_assert_eq!(litter, tidied);
                (store, encoder) = (prepared, recovered.encoder);
            }
        }
        is_same(&store.recovered().records, &[(record(&keyspace), map)]);
    }
}

/// A small store with a base, diffs, a node and a plan.
fn small() -> Store {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut value = |_| {
        use proptest::strategy::ValueTree;
        testing::histories(4..5).new_tree(&mut runner).unwrap().current()
    };
    let (keyspace, diffs) = value(());
    let (mut store, mut encoder) = (Store::default(), StoreEncoder::default());
    let node = partage_core::node::NodeSpec::new(NodeId::new("n1").unwrap(), "h:1");
    let node = partage_core::cluster::NodeRecord::new(node, Incarnation(3));
    for at in 0..diffs.len() {
        let map = testing::replay(&keyspace, &diffs[..=at]);
        let mut writes = vec![Write::Map(diffs[at].clone())];
        if at == 0 {
            writes.extend([Write::Keyspace(record(&keyspace)), Write::Node(node.clone())]);
            writes.push(Write::Cluster(Default::default()));
        }
        store.run_all(&encoder.encode(&writes, |_| Some(&map)).unwrap());
    }
    assert!(store.0.keys().any(|key| key.contains("/diff/")), "{:?}", store.0.keys());
    store
}

#[test]
fn every_flipped_bit_is_found_and_named() {
    let store = small();
    for (key, value) in &store.0 {
        for bit in 0..value.len() * 8 {
            let mut bytes = value.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let mut flipped = store.0.clone();
            flipped.insert(key.clone(), bytes.into());
            let (_, damage) = inspect(&flipped);
            assert_eq!(&damage[0].key, key, "bit {bit}: {damage:?}");
        }
    }
}

#[test]
fn every_value_cut_short_or_made_longer_is_found() {
    let store = small();
    for (key, value) in &store.0 {
        let longer = [value.as_ref(), &[0]].concat();
        let shorter = (0..value.len()).map(|bytes| value[..bytes].to_vec());
        for bytes in shorter.chain([longer]) {
            let mut cut = store.0.clone();
            cut.insert(key.clone(), bytes.into());
            assert_eq!(&inspect(&cut).1[0].key, key);
        }
    }
}

#[test]
fn a_value_at_anothers_key_and_a_lost_value_are_found() {
    let store = small();
    for (key, value) in &store.0 {
        for other in store.0.keys().filter(|other| *other != key) {
            let mut swapped = store.0.clone();
            swapped.insert(other.clone(), value.clone());
            assert_eq!(&inspect(&swapped).1[0].key, other);
        }
    }
    let needed =
        |key: &&String| key.contains("/base/") || key.ends_with("/diff/2") || key.ends_with("/record");
    for key in store.0.keys().filter(needed) {
        let mut lost = store.0.clone();
        lost.remove(key);
        let (_, damage) = inspect(&lost);
        let error = damage.first().expect("lost");
        assert!(error.key == *key || error.key.ends_with("/diff/3"), "{key}: {error}");
    }
}

#[test]
fn keys_that_are_not_ours_are_named() {
    let value = Bytes::from_static(b"x");
    for key in ["clusters", "plans/01", "plans/x", "nodes/", "keyspaces/a/map", "cluster/0", "cluster/1/1"] {
        let (_, damage) = inspect([(key, &value)]);
        assert_eq!(damage[0].what, "is at a key that is none of ours");
        assert_eq!(read([(key, &value)]).unwrap().faults.aside.len(), 1, "it keeps nothing from going on");
    }
}

fn many_shards(count: u32, replicas: u64) -> (Keyspace, ShardMap) {
    let name = "large".parse().unwrap();
    let keyspace = Keyspace::new(name, Sharding::KeyRange);
    let mut map = testing::replay(&keyspace, &[]);
    let key = |at: u32| Key::new(format!("key-{at:08}").as_bytes()).unwrap();
    let mut edit = map.edit();
    for at in 0..count {
        let begin = if at == 0 { Key::empty() } else { key(at) };
        let end = if at + 1 == count { Key::empty() } else { key(at + 1) };
        let id = edit.create_shard(Bounds::Keys(KeyRange::new(begin, end).unwrap())).unwrap();
        for replica in 0..replicas {
            let node = NodeId::new(&format!("node-{}", (u64::from(at) * 7 + replica) % 1_000)).unwrap();
            edit.add_replica(id, &node, Incarnation(1), None).unwrap();
        }
    }
    let diff = edit.commit(TransactionId([9; 20]));
    map.apply(&diff).unwrap();
    (keyspace, map)
}

#[test]
fn a_large_map_is_written_in_chunks_before_its_head() {
    let (keyspace, mut map) = many_shards(60_000, 3);
    let (mut store, mut encoder) = (Store::default(), StoreEncoder::default());
    let writes = [Write::Keyspace(record(&keyspace)), Write::Map(map.whole())];
    let batch = encoder.encode(&writes, |_| Some(&map)).unwrap();
    assert!(batch.prepare.len() > CHUNKS_WITH_HEAD, "{} chunks", batch.prepare.len());
    assert_eq!(batch.commit.len(), 3, "record, manifest, head");
    store.run_all(&batch);
    assert_eq!(store.recovered().encoder, encoder);
    let bytes: usize = store.0.values().map(Bytes::len).sum();
    println!("{} bytes a shard of three replicas, {} chunks", bytes / 60_000, batch.prepare.len());
    assert!(bytes / 60_000 < 100, "{bytes} bytes");
    let one = map.shards().next().unwrap().clone();
    let mut edit = map.edit();
    edit.step(one.id, one.replicas[0].placement, partage_core::keyspace::lifecycle::ReplicaState::Live)
        .unwrap();
    let diff = edit.commit(TransactionId([8; 20]));
    map.apply(&diff).unwrap();
    let writes = [Write::Map(diff)];
    assert_eq!(encoder.most_shards(&writes, |_| Some(&map)), 1, "its log becomes longer");
    let batch = encoder.encode(&writes, |_| Some(&map)).unwrap();
    let [StoreOp::Put(..), StoreOp::Put(key, value)] = &batch.commit[..] else {
        panic!("two puts: {batch:?}")
    };
    assert!(key.ends_with("/diff/2") && value.len() < 300, "{key}: {} bytes", value.len());
    store.run_all(&batch);
    is_same(&store.recovered().records, &[(record(&keyspace), map)]);
}

#[test]
fn a_log_is_begun_anew_before_it_is_longer_than_allowed() {
    let (keyspace, mut map) = many_shards(1, 1);
    let (mut store, mut encoder) = (Store::default(), StoreEncoder::default());
    let writes = [Write::Keyspace(record(&keyspace)), Write::Map(map.whole())];
    store.run_all(&encoder.encode(&writes, |_| Some(&map)).unwrap());
    let mut most = 0;
    for at in 0..3 * crate::limits::DIFFS {
        let mut edit = map.edit();
        let shard = map.shards().next().unwrap().id;
        let placement = edit.add_replica(shard, &"x".parse().unwrap(), Incarnation(1), None).unwrap();
        edit.remove_replica(shard, placement).unwrap();
        let diff = edit.commit(TransactionId([at as u8; 20]));
        map.apply(&diff).unwrap();
        store.run_all(&encoder.encode(&[Write::Map(diff)], |_| Some(&map)).unwrap());
        most = most.max(store.0.len());
    }
    assert_eq!(most, 4 + crate::limits::DIFFS);
    is_same(&store.recovered().records, &[(record(&keyspace), map)]);
}

fn plan(lines: u64) -> partage_core::plan::Plan {
    let change = |at: u64| partage_core::plan::Change::Add {
        shard: partage_core::base::id::ShardId(at),
        node: "n1".parse().unwrap(),
    };
    partage_core::plan::Plan {
        id: partage_core::base::id::PlanId(5),
        keyspace: "users".parse().unwrap(),
        base: Default::default(),
        origin: Origin::Rebalance,
        changes: (0..lines).map(|at| Planned::new(change(at), "a reason that takes some room")).collect(),
        status: partage_core::plan::Status::Approved,
        made_ms: 1,
        decided_by: None,
    }
}

#[test]
fn a_long_plan_goes_on_in_further_keys_and_a_shorter_one_takes_them_away() {
    let (mut store, mut encoder) = (Store::default(), StoreEncoder::default());
    for lines in [30_000, 3, 20_000] {
        store.run_all(&encoder.encode(&[Write::Plan(plan(lines))], |_| None).unwrap());
        let recovered = store.recovered();
        assert_eq!(recovered.records.plans, [plan(lines)]);
        assert_eq!(recovered.encoder, encoder);
        assert_eq!(store.0.len() > 2, lines > 1_000, "{:?}", store.0.keys());
    }
    let mut torn = store.clone();
    torn.0.remove("plans/5/1");
    assert_eq!(inspect(&torn.0).1[0].key, "plans/5/1");
    let huge = encoder.encode(&[Write::Plan(plan(1_000_000))], |_| None).unwrap_err();
    assert!(matches!(huge, super::EncodeError::TooLarge { .. }), "{huge}");
    store.run_all(
        &StoreEncoder::encode(&mut store.recovered().encoder, &[Write::DropPlan(plan(1).id)], |_| None)
            .unwrap(),
    );
    assert_eq!(store.0.keys().collect::<Vec<_>>(), ["manifest"]);
}

/// A transaction of few steps and bytes, so that little is much.
const SMALL: TransactionLimits = TransactionLimits { steps: 7, bytes: 2 * VALUE_BYTES };

fn node(at: u64) -> Write {
    let spec = partage_core::node::NodeSpec::new(NodeId::new(&format!("n{at}")).unwrap(), "h:1");
    Write::Node(partage_core::cluster::NodeRecord::new(spec, Incarnation(at)))
}

/// What a reader makes of the store; the records only.
fn shown(store: &Store) -> String {
    format!("{:?}", store.recovered().records)
}

#[test]
fn o9_a_commit_of_many_transactions_is_all_or_nothing_wherever_it_is_cut_off() {
    let (mut store, mut encoder) = (Store::default(), StoreEncoder::default());
    let first: Vec<Write> = (0..30).map(node).collect();
    for transaction in encoder.encode(&first, |_| None).unwrap().transactions(SMALL).all() {
        store.run(&transaction);
    }
    assert_eq!(shown(&store).matches("NodeRecord").count(), 30);
    // Records that come, go and change, one of them in several values.
    let mut writes: Vec<Write> = (20..50).map(node).collect();
    writes.extend((0..10).map(|at| Write::DropNode(NodeId::new(&format!("n{at}")).unwrap())));
    writes.push(Write::Plan(plan(30_000)));
    let transactions = encoder.encode(&writes, |_| None).unwrap().transactions(SMALL).all();
    assert!(transactions.len() > 10, "{}", transactions.len());
    let fits = |ops: &&Vec<StoreOp>| ops.len() <= SMALL.steps;
    assert!(transactions.iter().all(|ops| fits(&ops)));
    let before = shown(&store);
    let mut whole = store.clone();
    transactions.iter().for_each(|ops| whole.run(ops));
    let after = shown(&whole);
    assert_ne!(before, after);
    assert!(!whole.0.keys().any(|key| key.starts_with("redo/")), "the list is taken down");
    let mut turned = 0;
    for cut in 0..=transactions.len() {
        let mut crashed = store.clone();
        transactions[..cut].iter().for_each(|ops| crashed.run(ops));
        let seen = shown(&crashed);
        assert!(seen == before || seen == after, "cut off after {cut}");
        turned += usize::from(seen == after && turned == 0 || turned > 0 && seen == before);
        // The next leader finishes, and may be cut off as well.
        let (finish, _, found) = crashed.recovered().finish(SMALL);
        for again in 0..=finish.len() {
            let mut resumed = crashed.clone();
            finish[..again].iter().for_each(|ops| resumed.run(ops));
            assert_eq!(shown(&resumed), seen, "cut off after {cut} and {again}");
            if again == finish.len() {
                let end = resumed.recovered();
                assert_eq!((&end.litter, &end.encoder), (&vec![], &found));
            }
        }
    }
    assert_eq!(turned, 1, "there is one moment at which it happens");
}

#[test]
fn d8_damage_in_the_list_of_a_commit_is_found() {
    let (mut store, mut encoder) = (Store::default(), StoreEncoder::default());
    let writes: Vec<Write> = (0..9).map(node).collect();
    let transactions = encoder.encode(&writes, |_| None).unwrap().transactions(SMALL).all();
    let pinned = transactions.iter().position(|ops| ops.iter().any(|op| op.key() == "redo/head")).unwrap();
    transactions[..=pinned].iter().for_each(|ops| store.run(ops));
    assert_eq!(store.0.len(), 2, "the list and its head: {:?}", store.0.keys());
    for (key, value) in &store.0 {
        for bit in 0..value.len() * 8 {
            let mut bytes = value.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let mut flipped = store.0.clone();
            flipped.insert(key.clone(), bytes.into());
            assert_eq!(&read(&flipped).expect_err("a flipped bit").key, key);
        }
    }
    store.0.remove("redo/pieces/0");
    assert_eq!(read(&store.0).expect_err("a lost piece").key, "redo/pieces/0");
}
