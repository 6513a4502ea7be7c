//! Commits of replicated maps, with one metadata server and its files.

use super::local_metadata::LocalMetadata;
use super::replicated::ReplicatedMaps;
use super::*;
use crate::limits::SHARDS_ON_LOOP;
use partage_coordination::embedded::Embedded;
use partage_coordination::{ClusterId, Coordination, Election, Key, Leadership, Session, Transaction};
use partage_core::base::id::TransactionId;
use partage_core::base::name::PartitionName;
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use partage_wire::stored::{Presence, map_file};
use std::time::Duration;

/// A leader with the one metadata server, and its map store.
struct Leader {
    coordination: Arc<dyn Coordination>,
    cluster: ClusterId,
    _session: Session,
    leadership: Leadership,
    _metadata: LocalMetadata,
    maps: ReplicatedMaps,
    dir: tempfile::TempDir,
}

impl Leader {
    async fn start() -> Leader {
        let embedded = Embedded::in_memory();
        let (coordination, cluster): (Arc<dyn Coordination>, _) = (embedded.clone(), embedded.cluster());
        let session = Session::open(coordination.clone(), Duration::from_secs(60)).await.unwrap();
        let election = Election::new(coordination.clone(), &Key::new("election").unwrap()).unwrap();
        let leadership = election.lead(&session, bytes::Bytes::new).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (id, address) = ("m1".to_owned(), "127.0.0.1:1".to_owned());
        let presence = Presence { id, address, since_ms: 0, version: String::new(), leads: None };
        let metadata =
            LocalMetadata::open(coordination.clone(), cluster, dir.path(), &presence).await.unwrap();
        let maps = ReplicatedMaps::new(&metadata, coordination.clone(), leadership.clone());
        Leader { coordination, cluster, _session: session, leadership, _metadata: metadata, maps, dir }
    }

    async fn commit(&self, updated: Vec<MapUpdate>) -> Result<(), StoreError> {
        let fenced = self.leadership.fence(Transaction::new());
        self.maps.commit(fenced, &MapWrites { updated: updated.into(), deleted: vec![] }).await
    }

    /// How many METADATA files the server has of a keyspace.
    fn files(&self, name: &KeyspaceName) -> usize {
        let dir = self.dir.path().join("maps").join(self.cluster.to_string()).join(name.as_str());
        std::fs::read_dir(dir).map_or(0, Iterator::count)
    }
}

fn empty(name: &str) -> ShardMap {
    ShardMap::empty(name.parse().unwrap(), Sharding::Named, PartitionKey::Whole)
}

fn head_key(name: &KeyspaceName) -> Key {
    Key::new(map_file::head_key(name)).unwrap()
}

/// The next commit of `map`, which then is the map after it.
fn update(map: &mut ShardMap) -> MapUpdate {
    let sequence = map.generation().sequence;
    let diff = map.edit().commit(TransactionId([sequence as u8 + 1; 20]));
    let empty = (sequence == 0).then(|| map.clone());
    map.apply(&diff).unwrap();
    MapUpdate { name: map.keyspace().clone(), diffs: vec![Arc::new(diff)], empty }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_server_stores_anything_of_a_commit_with_an_update_that_does_not_follow_on_its_map() {
    let leader = Leader::start().await;
    let (mut users, mut orders) = (empty("users"), empty("orders"));
    let follows_on_none = MapUpdate { empty: None, ..update(&mut orders) };
    let refused = leader.commit(vec![update(&mut users), follows_on_none]).await.unwrap_err();
    let is_other_map = matches!(&refused, StoreError::Encode(EncodeError::OtherMap { .. }));
    assert!(is_other_map && refused.changed_nothing(), "{refused}");
    // A server that was asked would have stored it by then.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(leader.files(users.keyspace()), 0);
    leader.commit(vec![update(&mut empty("users"))]).await.unwrap();
    assert_eq!(leader.files(users.keyspace()), 1, "it is stored there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_list_of_servers_has_changed_meanwhile_is_made_again() {
    let leader = Leader::start().await;
    let mut users = empty("users");
    leader.commit(vec![update(&mut users)]).await.unwrap();
    let seen = leader.maps.heads().get(users.keyspace()).cloned().unwrap();
    let again = map_file::seal_head(users.keyspace(), &seen.head);
    let rewritten = Transaction::new().put(&head_key(users.keyspace()), again);
    leader.coordination.commit(rewritten).await.unwrap();
    let mut orders = empty("orders");
    leader.commit(vec![update(&mut users), update(&mut orders)]).await.unwrap();
    for map in [users, orders] {
        let (_, latest) = leader.maps.client.latest(map.keyspace()).await.unwrap();
        assert_eq!(*latest, map);
    }
}

/// The next commit of `map` gives it so many shards more.
fn grown(map: &mut ShardMap, shards: usize) -> MapUpdate {
    let sequence = map.generation().sequence;
    let mut edit = map.edit();
    for at in 0..shards {
        let name = PartitionName::new(&format!("s{sequence}-{at}")).unwrap();
        edit.create_shard(Bounds::Name(name)).unwrap();
    }
    let diff = edit.commit(TransactionId([sequence as u8 + 1; 20]));
    let empty = (sequence == 0).then(|| map.clone());
    map.apply(&diff).unwrap();
    MapUpdate { name: map.keyspace().clone(), diffs: vec![Arc::new(diff)], empty }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_shares_no_shards_with_the_server_that_gave_it_a_map() {
    let leader = Leader::start().await;
    let (mut few, mut many) = (empty("few"), empty("many"));
    leader.commit(vec![grown(&mut few, 1), grown(&mut many, SHARDS_ON_LOOP + 1)]).await.unwrap();
    let heads = leader.maps.heads().iter().map(|(name, seen)| (name.clone(), seen.head.clone())).collect();
    let found = leader.maps.read(heads).await.unwrap();
    for map in [few, many] {
        let own = &found.maps[map.keyspace()];
        let (_, of_server) = leader.maps.client.latest(map.keyspace()).await.unwrap();
        let (first, other) = (own.shards().next().unwrap(), of_server.shards().next().unwrap());
        assert!(*own == map && !std::ptr::eq(first, other), "{}", map.keyspace());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_look_for_room_swaps_no_head() {
    let leader = Leader::start().await;
    let (mut few, mut many) = (empty("few"), empty("many"));
    let updates: Arc<[MapUpdate]> = [grown(&mut few, 1), grown(&mut many, SHARDS_ON_LOOP + 1)].into();
    leader.maps.has_room(&updates).await.unwrap();
    assert!(leader.maps.heads().is_empty());
    for map in [few, many] {
        assert_eq!(leader.coordination.read(&head_key(map.keyspace())).await.unwrap(), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o10_a_deposed_leader_changes_no_map() {
    let leader = Leader::start().await;
    let (mut users, mut orders) = (empty("users"), empty("orders"));
    leader.commit(vec![update(&mut users)]).await.unwrap();
    let before = leader.coordination.read(&head_key(users.keyspace())).await.unwrap();
    let deposes = Transaction::new().delete(&Key::new("election/leader").unwrap());
    leader.coordination.commit(deposes).await.unwrap();
    let refused = leader.commit(vec![update(&mut users), update(&mut orders)]).await.unwrap_err();
    assert!(matches!(refused, StoreError::FencedOff), "{refused}");
    assert_eq!(leader.coordination.read(&head_key(users.keyspace())).await.unwrap(), before);
    assert_eq!(leader.coordination.read(&head_key(orders.keyspace())).await.unwrap(), None);
}
