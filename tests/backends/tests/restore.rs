//! A cluster comes back from its backup, on every engine: nothing that was given out after the backup is given out
//! again, and workers that hold later things go on unharmed.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

#[path = "../../../crates/coordinator/tests/door/mod.rs"]
mod door;

use backends::etcd::Etcd;
use backends::mariadb::MariaDb;
use backends::zookeeper::ZooKeeper;
use door::{Door, Hand, until};
use partage_coordination::embedded::Embedded;
use partage_coordination::{Coordination, Expected, Key, Target, Weight};
use partage_coordinator::coordination_state::inspect::{Inspection, inspect};
use partage_coordinator::coordination_state::restore::{Restore, can_restore};
use partage_coordinator::{Backing, Config, Coordinator};
use partage_core::base::id::TransactionId;
use partage_core::base::name::KeyspaceName;
use partage_core::base::settings::Settings;
use partage_core::cluster::{Records, Write};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::map::ShardMap;
use partage_core::keyspace::sharding::{PartitionKey, Sharding};
use partage_wire::backup::{self, BackupWriter, Label};
use partage_wire::json::Reading;
use partage_wire::stored::{StoreEncoder, StoreOp};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// On etcd and ZooKeeper the coordinators keep the maps, in `folder`.
fn shared(target: Target, folder: &TempDir) -> Backing {
    let data_dir = Some(folder.path().join(target.root.as_str().replace('/', "-")));
    Backing::Shared { target: Box::new(target), data_dir, session: Duration::from_secs(2) }
}

async fn open(backing: &Backing) -> Door {
    let settings = Settings { settle_ms: 50, lease_ms: 3_000, dead_after_ms: 60_000, ..Settings::default() };
    let config = Config { backing: backing.clone(), settings, ..Config::new("127.0.0.1:0".parse().unwrap()) };
    let door = Door::serving(config).await;
    let leads = async || match door.get("/v1/status").await {
        (200, _) => Ok(()),
        (status, said) => Err(format!("{status}: {said}")),
    };
    backends::until("somebody leads", leads).await;
    door
}

/// Starts where it must not.
async fn refused(backing: &Backing) -> String {
    let config = Config { backing: backing.clone(), ..Config::new("127.0.0.1:0".parse().unwrap()) };
    Coordinator::start(config).await.err().expect("it starts").to_string()
}

#[expect(clippy::disallowed_methods, reason = "a test is its own driver")]
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// From a file to records, as the command does.
fn read(file: &[u8]) -> Records {
    let (_, document) = backup::open(file).unwrap();
    let reading = Reading::of(&document);
    assert_eq!(reading.problems, Vec::<String>::new());
    reading.records
}

async fn take(door: &Door) -> Vec<u8> {
    let document = door.read("/v1/dump").await.to_string();
    let (mut writer, mut file) = BackupWriter::begin(&Label { taken_ms: now_ms(), by: "test".to_owned() });
    file.extend(writer.add(document.as_bytes()));
    file.extend(writer.end());
    file
}

async fn restore(file: &[u8], backing: &Backing) {
    can_restore(backing).await.unwrap();
    let restore = Restore::begin(backing).await.unwrap();
    restore.write(read(file).after_loss(now_ms())).await.unwrap();
    restore.end().await.unwrap();
}

/// All numbers that records name: each is of one kind, and must not be given twice.
#[derive(Debug, Default)]
struct Numbers {
    starts: BTreeSet<u64>,
    shards: BTreeSet<u64>,
    placements: BTreeSet<u64>,
    plans: BTreeSet<u64>,
    epochs: BTreeSet<u64>,
    maps: BTreeSet<u64>,
}

impl Numbers {
    fn of(records: &Records) -> Numbers {
        let mut numbers = Numbers::default();
        numbers.starts.extend(records.nodes.iter().map(|node| node.incarnation.0));
        numbers.plans.extend(records.plans.iter().map(|plan| plan.id.0));
        for (record, map) in &records.keyspaces {
            // A keyspace that is created anew begins at the first generation; its shards tell it from its namesakes.
            if record.keyspace.name.as_str() != "late" {
                numbers.maps.insert(map.generation().sequence);
            }
            for shard in map.shards() {
                numbers.shards.insert(shard.id.0);
                numbers.epochs.insert(shard.epoch.0);
                numbers.placements.extend(shard.replicas.iter().map(|replica| replica.placement.0));
            }
        }
        numbers
    }

    fn kinds(&self) -> [&BTreeSet<u64>; 6] {
        [&self.starts, &self.shards, &self.placements, &self.plans, &self.epochs, &self.maps]
    }
}

/// What is new in `later` against `copy` is above all that `lost` has given out. Returns how much is new.
fn nothing_twice(copy: &Records, lost: &Records, later: &Records) -> usize {
    let [copy, lost, later] = [copy, lost, later].map(Numbers::of);
    let kinds = copy.kinds().into_iter().zip(lost.kinds()).zip(later.kinds());
    let mut new = 0;
    for ((copy, lost), later) in kinds {
        for number in later.difference(copy) {
            assert!(Some(number) > lost.last(), "{number} was given out before: {lost:?}");
            new += 1;
        }
    }
    new
}

fn create(name: &str, mode: &str) -> Value {
    let keyspace = json!({ "name": name, "sharding": { "type": "key_range" }, "mode": mode });
    json!({ "command": "create_keyspace", "keyspace": keyspace, "presplit": { "type": "points", "keys": ["g", "n"] } })
}

fn split(shard: u64, key: &str) -> Value {
    json!({ "command": "split_shard", "keyspace": "kv", "shard": shard, "at": { "type": "keys", "keys": [key] } })
}

async fn waiting_plan(door: &Door) -> Option<u64> {
    let plans = door.read("/v1/plans?keyspace=asks").await;
    let waits = |plan: &&Value| plan["status"] == "suggested";
    plans["plans"].as_array().unwrap().iter().find(waits).map(|plan| plan["id"].as_u64().unwrap())
}

/// Three workers, of which one is drained and one came late; a keyspace that is served, and one whose plan to use the
/// latecomer waits for a person; a rule.
async fn test_cluster(door: &Door) -> (Vec<Hand>, u64) {
    let mut hands = vec![Hand::join(door, "a").await, Hand::join(door, "c").await];
    door.done(json!({ "command": "drain_node", "node": "c", "reason": "new disk" })).await;
    door.done(create("kv", "automatic")).await;
    door.done(create("asks", "suggested")).await;
    work(door, &mut hands, 6).await;
    hands.push(Hand::join(door, "b").await);
    let plan = loop {
        work(door, &mut hands, 6).await;
        if let Some(plan) = waiting_plan(door).await {
            break plan;
        }
    };
    let pin = json!({ "pinned": ["a", "b"] });
    door.done(json!({ "command": "pin_shard", "keyspace": "kv", "shard": 1, "constraint": pin })).await;
    (hands, plan)
}

/// Until so many shards are led, and nothing moves.
async fn work(door: &Door, hands: &mut [Hand], led: u64) {
    let mut hands: Vec<&mut Hand> = hands.iter_mut().collect();
    until(door, &mut hands, |s| s["shards"]["led"] == led && s["moves"] == 0).await;
}

async fn comes_back(from: &Backing, to: &Backing) {
    let door = open(from).await;
    let (mut hands, plan) = test_cluster(&door).await;
    let file = take(&door).await;
    let copy = read(&file);

    // What the backup does not know: a split, a new keyspace, a worker that joins.
    door.done(split(1, "c")).await;
    door.done(create("late", "automatic")).await;
    hands.push(Hand::join(&door, "d").await);
    work(&door, &mut hands, 10).await;
    let lost = read(&take(&door).await);
    assert!(lost.keyspaces.len() == 3 && lost.nodes.len() == 4);
    let later_start = hands.pop().unwrap().incarnation;
    door.coordinator.stop().await;

    restore(&file, to).await;
    let again = can_restore(to).await.unwrap_err().to_string();
    assert!(again.contains("empty"), "{again}");
    let door = open(to).await;
    let records = read(&take(&door).await);
    nothing_twice(&copy, &lost, &records);
    let (before, after) = (Numbers::of(&lost), Numbers::of(&records));
    assert!(after.epochs.first() > before.epochs.last(), "O2: storage takes the leaders of now");
    assert!(after.maps.first() > before.maps.last(), "M2: routers take the maps of now");
    assert_eq!(waiting_plan(&door).await, Some(plan), "it still waits");
    let drain = records.nodes.iter().find_map(|node| node.drain.clone()).unwrap();
    assert_eq!(drain.reason, "new disk");
    assert_eq!(records.keyspaces.iter().flat_map(|(record, _)| &record.rules).count(), 1);

    // The worker that the backup does not know is told to begin anew; the others go on as who they are.
    let stranger = json!({ "id": "d", "address": "127.0.0.1:9", "incarnation": later_start });
    let (status, told) = door.post("/v1/worker/register", &stranger).await;
    assert_eq!(status, 410, "{told}");
    for hand in &mut hands {
        let address = records.nodes.iter().find(|node| node.spec.id.as_str() == hand.node).unwrap();
        let back = json!({ "id": hand.node, "address": address.spec.address, "incarnation": hand.incarnation, "token": hand.token });
        let (status, welcome) = door.post("/v1/worker/register", &back).await;
        assert_eq!((status, welcome["incarnation"].as_u64()), (200, Some(hand.incarnation)));
        (hand.sequence, hand.applied) = (0, 0);
    }
    work(&door, &mut hands, 6).await;
    door.done(json!({ "command": "approve_plan", "plan": plan })).await;
    door.done(json!({ "command": "undrain_node", "node": "c" })).await;
    hands.push(Hand::join(&door, "d").await);
    assert!(hands.last().unwrap().incarnation > later_start);
    work(&door, &mut hands, 6).await;
    door.done(split(1, "d")).await;
    door.done(create("late", "automatic")).await;
    work(&door, &mut hands, 10).await;
    let later = read(&take(&door).await);
    assert!(nothing_twice(&copy, &lost, &later) > 10);
    let term = door.read("/v1/coordinators").await["coordinators"][0]["term"].as_u64().unwrap();
    assert!(term > 1_000_000, "storage that took a later term takes this one: {term}");
    door.coordinator.stop().await;

    // The same backup once more, elsewhere: above what the first restored cluster gave out.
    let third = tempfile::tempdir().unwrap();
    let third = Backing::Directory(third.path().join("state"));
    restore(&file, &third).await;
    let door = open(&third).await;
    let hand = Hand::join(&door, "e").await;
    assert!(Some(&hand.incarnation) > Numbers::of(&later).starts.last());
    nothing_twice(&copy, &later, &read(&take(&door).await));
    door.coordinator.stop().await;
}

/// Cut off at any step, nobody starts on what is half there, and the next restore does it all.
async fn is_whole_or_nothing(root: &Backing) {
    let origin = open(&Backing::Memory).await;
    let (.., plan) = test_cluster(&origin).await;
    let file = take(&origin).await;
    drop(Restore::begin(root).await.unwrap());
    let said = refused(root).await;
    assert!(said.contains("`about`") && said.contains("partage restore"), "{said}");
    let cut = Restore::begin(root).await.unwrap();
    cut.write(read(&file).after_loss(now_ms())).await.unwrap();
    drop(cut);
    let said = refused(root).await;
    assert!(said.contains("not finished"), "{said}");
    restore(&file, root).await;
    let door = open(root).await;
    assert_eq!(waiting_plan(&door).await, Some(plan));
    door.coordinator.stop().await;
    origin.coordinator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn into_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| Backing::Directory(folder.path().join(name));
    comes_back(&place("old"), &place("new")).await;

    // One that was cut off left its own directory beside, and is named.
    drop(Restore::begin(&place("third")).await.unwrap());
    let said = can_restore(&place("third")).await.unwrap_err().to_string();
    assert!(said.contains("third.restoring") && said.contains("delete"), "{said}");
    std::fs::create_dir(folder.path().join("fourth")).unwrap();
    can_restore(&place("fourth")).await.unwrap();
    std::fs::write(folder.path().join("fourth/letter"), "mine").unwrap();
    let said = can_restore(&place("fourth")).await.unwrap_err().to_string();
    assert!(said.contains("it has letter"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn into_etcd() {
    let folder = tempfile::tempdir().unwrap();
    let server = Etcd::start(&[]).await;
    comes_back(&shared(server.target("old"), &folder), &shared(server.target("new"), &folder)).await;
    is_whole_or_nothing(&shared(server.target("cut"), &folder)).await;
    what_is_there_is_left_alone(server.target("foreign")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn into_mariadb() {
    let folder = tempfile::tempdir().unwrap();
    let server = MariaDb::start(&[]).await;
    comes_back(&shared(server.target("old"), &folder), &shared(server.target("new"), &folder)).await;
    is_whole_or_nothing(&shared(server.target("cut"), &folder)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn into_zookeeper() {
    let folder = tempfile::tempdir().unwrap();
    let server = ZooKeeper::start(&[]).await;
    comes_back(&Backing::Memory, &shared(server.target("new"), &folder)).await;
    is_whole_or_nothing(&shared(server.target("cut"), &folder)).await;
}

async fn what_is_there_is_left_alone(target: Target) {
    let folder = tempfile::tempdir().unwrap();
    let store = partage_coordination::connect(&target).await.unwrap();
    let key = Key::new("users/7").unwrap();
    store.compare_and_swap(&key, Expected::Absent, "mine".into()).await.unwrap();
    for said in [
        can_restore(&shared(target.clone(), &folder)).await.unwrap_err().to_string(),
        Restore::begin(&shared(target.clone(), &folder)).await.err().unwrap().to_string(),
    ] {
        assert!(said.contains("users/7"), "{said}");
    }
    assert_eq!(store.read(&key).await.unwrap().unwrap().value, "mine");
}

/// A cluster too large for one transaction of the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keyspaces_are_restored_at_once() {
    let door = open(&Backing::Memory).await;
    for number in 0..200 {
        door.done(create(&format!("k{number}"), "manual")).await;
    }
    let store: Arc<dyn Coordination> = Embedded::in_memory();
    let root = Backing::Open { coordination: store, data_dir: None, session: Duration::from_secs(2) };
    restore(&take(&door).await, &root).await;
    let back = open(&root).await;
    assert_eq!(back.read("/v1/keyspaces").await["keyspaces"].as_array().unwrap().len(), 200);
    back.coordinator.stop().await;
    door.coordinator.stop().await;
}

fn all(found: &Inspection, weight: Weight) -> String {
    let of_it = found.remarks.iter().filter(|remark| remark.weight == weight);
    of_it.map(|remark| remark.what.as_str()).collect::<Vec<_>>().join("\n")
}

/// A root with a cluster that runs is sound; then come damage, a foreign key and a restore that was cut off.
async fn is_looked_at(target: Target) -> Inspection {
    let folder = tempfile::tempdir().unwrap();
    let door = open(&shared(target.clone(), &folder)).await;
    let (.., plan) = test_cluster(&door).await;
    let found = inspect(&target).await.unwrap();
    assert_eq!(all(&found, Weight::Wrong), "");
    assert!(found.cluster.is_some() && found.coordinators[0].leads);
    assert!(found.records.keyspaces.len() == 2 && found.records.plans.iter().any(|one| one.id.0 == plan));
    door.coordinator.stop().await;

    let store = partage_coordination::connect(&target).await.unwrap();
    leftovers(&*store, &target).await;
    for (path, value) in [
        ("users/7", "mine"),
        ("nodes/zoe", "not a record"),
        ("coordinators/ghost", r#"{"id":"ghost","address":"h:1","since_ms":1,"version":"0"}"#),
    ] {
        store.compare_and_swap(&key(path), Expected::Absent, value.into()).await.unwrap();
    }
    let before = inspect(&target).await.unwrap();
    let (wrong, risky) = (all(&before, Weight::Wrong), all(&before, Weight::Risky));
    for part in
        ["key `users/7`", "the stored value of nodes/zoe", "key `coordinators/ghost` goes with no session"]
    {
        assert!(wrong.contains(part), "{part} in:\n{wrong}");
    }
    assert!(risky.contains("no coordinator leads"), "{risky}");
    assert_eq!(inspect(&target).await.unwrap().keys, before.keys, "to look changes nothing");

    let root = Target { root: key(&format!("{}-cut", target.root)), ..target };
    drop(Restore::begin(&shared(root.clone(), &folder)).await.unwrap());
    let wrong = all(&inspect(&root).await.unwrap(), Weight::Wrong);
    assert!(wrong.contains("not finished"), "{wrong}");
    found
}

/// What a leader leaves behind that dies between a commit and the tidying after it: nothing leads there any more.
async fn leftovers(store: &dyn Coordination, target: &Target) {
    let before = inspect(target).await.unwrap();
    let untidy = all(&before, Weight::Untidy);
    assert!(!untidy.contains("nothing leads to"), "{untidy}");
    let sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
    let mut map = ShardMap::empty(KeyspaceName::new("gone").unwrap(), sharding, PartitionKey::default());
    map.apply(&map.edit().commit(TransactionId([7; 20]))).unwrap();
    let batch = StoreEncoder::default().encode(&[Write::Map(map.whole())], |_| Some(&map)).unwrap();
    let puts = batch.prepare.into_iter().chain(batch.commit).filter_map(|operation| match operation {
        StoreOp::Put(path, value) => Some((path, value)),
        StoreOp::Delete(_) => None,
    });
    let (path, value) = puts.into_iter().find(|(path, _)| path.contains("/base/")).unwrap();
    store.compare_and_swap(&key(&path), Expected::Absent, value).await.unwrap();
    let after = inspect(target).await.unwrap();
    let untidy = all(&after, Weight::Untidy);
    assert!(untidy.contains(&format!("nothing leads to `{path}`: the next leader deletes")), "{untidy}");
    assert_eq!(all(&after, Weight::Wrong), all(&before, Weight::Wrong));
    assert_eq!(after.records.keyspaces.len(), before.records.keyspaces.len());
}

fn key(path: &str) -> Key {
    Key::new(path).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_etcd_is_risky_and_a_guarded_one_is_not() {
    let server = Etcd::start(&[]).await;
    let risky = all(&is_looked_at(server.target("look")).await, Weight::Risky);
    for part in ["no TLS", "no password", "etcd lets anybody read the root"] {
        assert!(risky.contains(part), "{part} in:\n{risky}");
    }
    let server = Etcd::start_secured(&[]).await;
    let found = is_looked_at(server.target("users/look")).await;
    assert_eq!(all(&found, Weight::Risky), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_zookeeper_is_risky_and_a_guarded_one_is_not() {
    let server = ZooKeeper::start(&[]).await;
    let risky = all(&is_looked_at(server.target("look")).await, Weight::Risky);
    for part in ["no TLS", "no password", "may change", "the first is `/look`"] {
        assert!(risky.contains(part), "{part} in:\n{risky}");
    }
    let found = is_looked_at(server.secured_target("safe")).await;
    assert_eq!(all(&found, Weight::Risky), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_in_the_clear_is_risky_and_with_tls_it_is_not() {
    let server = MariaDb::start(&[]).await;
    let risky = all(&is_looked_at(server.target("look")).await, Weight::Risky);
    for part in ["no TLS", "takes our user without TLS"] {
        assert!(risky.contains(part), "{part} in:\n{risky}");
    }
    server.sql(
        "CREATE DATABASE theirs; GRANT SELECT ON theirs.* TO partage@'%' WITH GRANT OPTION; \
         SET GLOBAL innodb_flush_log_at_trx_commit = 2",
    );
    let risky = all(&inspect(&server.target("look")).await.unwrap(), Weight::Risky);
    for part in
        ["rights beyond its database, on `theirs`.*", "GRANT OPTION", "innodb_flush_log_at_trx_commit"]
    {
        assert!(risky.contains(part), "{part} in:\n{risky}");
    }
    let server = MariaDb::start_with_tls().await;
    let found = is_looked_at(server.target("look")).await;
    assert_eq!(all(&found, Weight::Risky), "");
}
