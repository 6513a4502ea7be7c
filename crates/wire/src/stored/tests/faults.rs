//! Every key of a stored state, deleted, set back to each value that it had, or replaced by another key's value, one
//! at a time: a keyspace is as it was committed last or in quarantine, the others are untouched, and all of it is told.

use super::*;
use crate::stored::{Recovered, map_file};
use partage_core::base::id::PlanId;
use partage_core::base::name::KeyspaceName;
use partage_core::cluster::{ClusterRecord, NodeRecord};
use partage_core::node::NodeSpec;
use partage_core::plan::Status;
use partage_service::metadata::Head;

/// A store that remembers every value that each key had.
#[derive(Default)]
struct StoreHistory {
    now: Store,
    values: BTreeMap<String, Vec<Bytes>>,
    encoder: StoreEncoder,
    /// Whether metadata servers keep the maps.
    apart: bool,
}

impl StoreHistory {
    fn commit(&mut self, writes: &[Write], map: &ShardMap) {
        let batch = if self.apart {
            let (mut batch, diffs) = self.encoder.encode_apart(writes).unwrap();
            for (name, diffs) in diffs {
                let head = Head { at: diffs.last().unwrap().to, servers: vec!["c1".parse().unwrap()] };
                batch.commit.push(StoreOp::Put(map_file::head_key(name), map_file::seal_head(name, &head)));
            }
            batch
        } else {
            self.encoder.encode(writes, |_| Some(map)).unwrap()
        };
        self.now.run_all(&batch);
        for (key, value) in &self.now.0 {
            let values = self.values.entry(key.clone()).or_default();
            if values.last() != Some(value) {
                values.push(value.clone());
            }
        }
    }
}

fn history(apart: bool) -> StoreHistory {
    let mut past = StoreHistory { apart, ..StoreHistory::default() };
    for (number, name) in ["one", "two"].into_iter().enumerate() {
        let mut keyspace = Keyspace::new(name.parse().unwrap(), Sharding::KeyRange);
        let mut map = testing::replay(&keyspace, &[]);
        for step in 0..4u8 {
            let mut edit = map.edit();
            let node: NodeId = format!("n{step}").parse().unwrap();
            if step == 0 {
                edit.create_shard(Bounds::Keys(KeyRange::all())).unwrap();
            } else {
                let shard = map.shards().next().unwrap().id;
                edit.add_replica(shard, &node, Incarnation(u64::from(step)), None).unwrap();
            }
            let diff = edit.commit(TransactionId([number as u8 * 16 + step + 1; 20]));
            map.apply(&diff).unwrap();
            keyspace.replicas = u32::from(step) + 1;
            let status = if step == 3 { Status::Finished } else { Status::Approved };
            let plan = partage_core::plan::Plan {
                id: PlanId(number as u64 + 1),
                keyspace: keyspace.name.clone(),
                status,
                ..plan(1)
            };
            let spec = NodeSpec::new(node, "h:1");
            let since_ms = number as u64;
            let node = NodeRecord { since_ms, ..NodeRecord::new(spec, Incarnation(u64::from(step))) };
            let next_incarnation = Incarnation(u64::from(step) + 1 + 10 * number as u64);
            let writes = [
                Write::Cluster(ClusterRecord {
                    next_incarnation,
                    next_plan: PlanId(9),
                    ..Default::default()
                }),
                Write::Keyspace(record(&keyspace)),
                Write::Map(diff),
                Write::Node(node),
                Write::Plan(plan),
            ];
            past.commit(&writes, &map);
        }
    }
    past
}

/// What a fault has to leave as it was: `fault` is done to the store of `past`.
fn judge(
    past: &StoreHistory,
    whole: &Recovered,
    what: &str,
    fault: impl FnOnce(&mut BTreeMap<String, Bytes>),
) {
    let mut store = past.now.clone();
    fault(&mut store.0);
    if store.0 == past.now.0 {
        return;
    }
    let mut found = read(&store.0).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(!found.faults.is_empty(), "{what}: nobody is told");
    assert!(found.faults.quarantine.len() <= 1, "{what}: {:?}", found.faults);
    for (record, map) in &whole.records.keyspaces {
        let name = &record.keyspace.name;
        if found.faults.quarantine.contains_key(name) {
            assert!(
                what.contains(name.as_str()),
                "{what}: a keyspace that was not touched: {:?}",
                found.faults
            );
            continue;
        }
        let (after, now) =
            found.records.keyspaces.iter().find(|(r, _)| r.keyspace.name == *name).expect("there");
        assert_eq!(now.generation(), map.generation(), "{what}");
        assert_eq!(found.heads.get(name), whole.heads.get(name), "{what}");
        let settings = &found.faults.settings;
        assert!(after == record || settings.contains_key(name), "{what}: other settings, and nobody is told");
    }
    // The next leader finds nothing more to mend.
    let mut faults = std::mem::take(&mut found.faults);
    let (finish, mut records, mut encoder) = found.finish(TransactionLimits { steps: 100, bytes: 1 << 30 });
    finish.iter().for_each(|ops| store.run(ops));
    let writes = records.mend(&mut faults, 1_700_000_000_000);
    let map = |name: &KeyspaceName| {
        records.keyspaces.iter().find(|(r, _)| r.keyspace.name == *name).map(|(_, map)| map)
    };
    if past.apart {
        store.run_all(&encoder.encode_apart(&writes).unwrap().0);
    } else {
        store.run_all(&encoder.encode(&writes, map).unwrap());
    }
    let again = read(&store.0).unwrap().faults;
    assert_eq!(again.quarantine, faults.quarantine, "{what}");
    assert!(again.cluster.is_empty() && again.manifest.is_empty(), "{what}: {again:?}");
    // What is damaged, and no map names, is told again until somebody deletes it.
    assert!(again.nodes.is_empty() || what.ends_with("replaced"), "{what}: {again:?}");
    assert!(again.settings.is_empty() && again.manifests.is_empty(), "{what}: {again:?}");
}

fn every_fault(apart: bool) -> usize {
    let past = history(apart);
    let whole = read(&past.now.0).unwrap();
    assert!(whole.faults.is_empty(), "{:?}", whole.faults);
    let mut count = 0;
    for (key, values) in &past.values {
        judge(&past, &whole, &format!("{key} is deleted"), |store| drop(store.remove(key)));
        count += 1;
        for (age, value) in values.iter().enumerate() {
            let what = format!("{key} is set back to value {age}");
            judge(&past, &whole, &what, |store| drop(store.insert(key.clone(), value.clone())));
            count += 1;
        }
        for (other, value) in &past.now.0 {
            let what = format!("{key} is replaced by the value of {}", other.replace('/', ":"));
            let what = what.split(" by ").next().unwrap().to_owned();
            judge(&past, &whole, &what, |store| drop(store.insert(key.clone(), value.clone())));
            count += 1;
        }
    }
    count
}

#[test]
fn d9_d10_every_key_deleted_set_back_or_replaced_costs_its_own_keyspace_at_most_and_is_told() {
    assert!(every_fault(false) > 300);
}

#[test]
fn d9_d10_the_same_where_metadata_servers_keep_the_maps() {
    assert!(every_fault(true) > 200);
}

#[test]
fn a_missing_head_is_no_empty_map() {
    for (apart, key) in [(true, "keyspaces/one/map/metadata"), (false, "keyspaces/one/map/head")] {
        let mut past = history(apart);
        past.now.0.remove(key);
        let found = read(&past.now.0).unwrap();
        let why = found.faults.quarantine.get("one").expect("in quarantine");
        assert!(why.contains(key) && why.contains("is missing"), "{why}");
        assert!(found.litter.is_empty(), "its keys are kept: {:?}", found.litter);
        assert_eq!(found.records.keyspaces.len(), 1, "the other one goes on");
    }
}

#[test]
fn a_damaged_plan_of_the_past_keeps_nothing_from_going_on() {
    let mut past = history(false);
    past.now.0.insert("plans/1".to_owned(), Bytes::from_static(b"damaged"));
    let found = read(&past.now.0).unwrap();
    assert_eq!(found.records.keyspaces.len(), 2);
    assert_eq!(found.records.plans.len(), 1);
    assert!(found.faults.plans[0].contains("plans/1"), "{:?}", found.faults);
}

#[test]
fn counters_that_were_set_back_go_on_far_beyond_and_the_brake_is_on() {
    let mut past = history(false);
    past.now.0.insert("cluster".to_owned(), past.values["cluster"][0].clone());
    let mut found = read(&past.now.0).unwrap();
    let before = found.records.cluster.next_incarnation;
    found.records.mend(&mut found.faults, 1_700_000_000_000);
    assert!(found.records.cluster.next_incarnation.0 > before.0 + 1_000_000_000);
    assert!(found.records.cluster.brake.is_some());
}

#[test]
fn a_node_that_a_map_names_is_known_again() {
    let mut past = history(false);
    past.now.0.remove("nodes/n3");
    let mut found = read(&past.now.0).unwrap();
    let writes = found.records.mend(&mut found.faults, 1);
    let node = found.records.nodes.iter().find(|node| node.spec.id.as_str() == "n3").unwrap();
    assert_eq!(node.incarnation, Incarnation(3));
    assert!(writes.iter().any(|write| matches!(write, Write::Node(node) if node.spec.id.as_str() == "n3")));
}
