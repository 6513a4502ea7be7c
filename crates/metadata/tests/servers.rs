//! Metadata servers over gRPC on loopback, with files on a real disk and the embedded coordination backend.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test on real servers says what it saw")]

use futures::StreamExt;
use partage_coordination::Coordination;
use partage_coordination::embedded::Embedded;
use partage_core::base::id::{Generation, Incarnation, PlacementId, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::HashRange;
use partage_core::keyspace::map::{MapDiff, ShardMap};
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use partage_metadata::{
    Base, ChangeError, Heads, LocalServer, MetadataServerClient, MetadataService, Notices, Peers, transaction,
};
use partage_service::metadata::change::{Change, Failed, Notice, Swapped};
use partage_service::metadata::discover::Status;
use partage_wire::map::metadata::{DiscoverRequest, MapQuestion, discoveries};
use partage_wire::proto;
use partage_wire::proto::metadata_client::MetadataClient;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

type Addresses = BTreeMap<NodeId, String>;

/// A few servers, and who changes maps beside them.
struct TestCluster {
    coordination: Arc<dyn Coordination>,
    dir: TempDir,
    directory: watch::Sender<Addresses>,
    running: BTreeMap<NodeId, (LocalServer, JoinHandle<()>)>,
    maps: MetadataServerClient,
    peers: Peers,
    notices: Notices,
}

fn name(server: usize) -> NodeId {
    NodeId::new(&format!("m{server}")).unwrap()
}

fn keyspace() -> KeyspaceName {
    KeyspaceName::new("users").unwrap()
}

impl TestCluster {
    async fn of(servers: usize) -> TestCluster {
        let coordination: Arc<dyn Coordination> = Embedded::in_memory();
        let directory = watch::Sender::new(Addresses::new());
        let peers = Peers::new(Arc::new(directory.subscribe()));
        let notices = Notices::start(peers.clone());
        let maps =
            MetadataServerClient::new(Heads::new(coordination.clone()), peers.clone(), notices.clone(), None);
        let dir = tempfile::tempdir().unwrap();
        let mut cluster =
            TestCluster { coordination, dir, directory, running: BTreeMap::new(), maps, peers, notices };
        for server in 0..servers {
            cluster.start(server).await;
        }
        cluster
    }

    async fn start(&mut self, server: usize) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let heads = Heads::new(self.coordination.clone());
        let data = self.dir.path().join(name(server).as_str());
        let local = LocalServer::start(name(server), &data, heads.clone(), self.peers.clone()).unwrap();
        let maps =
            MetadataServerClient::new(heads, self.peers.clone(), self.notices.clone(), Some(local.clone()));
        let service = MetadataService::server(local.clone(), Some(maps));
        let serving = Server::builder().add_service(service);
        let task = tokio::spawn(async move {
            serving.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        });
        self.running.insert(name(server), (local, task));
        self.directory.send_modify(|all| drop(all.insert(name(server), address)));
    }

    async fn stop(&mut self, server: usize) {
        let (local, task) = self.running.remove(&name(server)).unwrap();
        local.stop().await;
        task.abort();
        let _ = task.await;
        self.directory.send_modify(|all| drop(all.remove(&name(server))));
    }

    /// One more replica, by whatever is the latest map.
    async fn change(&self, node: &str) -> Result<Generation, ChangeError> {
        let (seen, map) = self.maps.latest(&keyspace()).await?;
        let mut edit = map.edit();
        edit.add_replica(ShardId(1), &NodeId::new(node).unwrap(), Incarnation(1), None).unwrap();
        self.maps.change(seen, &map, edit.commit(transaction())).await
    }

    async fn fetch(&self, server: usize, at: Generation) -> Arc<ShardMap> {
        let question = MapQuestion { keyspace: keyspace(), sequence: at.sequence };
        self.peers.fetch(&name(server), &question).await.unwrap()
    }

    async fn servers(&self) -> Vec<NodeId> {
        self.maps.head(&keyspace()).await.unwrap().unwrap().head.servers
    }

    fn files(&self, server: usize) -> Vec<String> {
        files(&self.dir.path().join(name(server).as_str()).join(keyspace().as_str()))
    }
}

fn files(dir: &Path) -> Vec<String> {
    let listed = std::fs::read_dir(dir).into_iter().flatten();
    listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn first() -> ShardMap {
    let sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
    let mut map = ShardMap::empty(keyspace(), sharding, PartitionKey::default());
    let mut edit = map.edit();
    edit.create_shard(Bounds::Hashes(HashRange::ALL)).unwrap();
    let diff = edit.commit(transaction());
    map.apply(&diff).unwrap();
    map
}

/// Waits for what comes by itself.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..600 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: not within 30 s");
}

#[tokio::test(flavor = "multi_thread")]
async fn t6_t7_a_map_is_created_and_changed_and_every_server_has_it() {
    let cluster = TestCluster::of(5).await;
    let created = cluster.maps.create(first()).await.unwrap();
    assert_eq!(
        (created.sequence, cluster.servers().await.len()),
        (1, 3),
        "T6: three of five, from sequence 1"
    );
    let mut at = created;
    for number in 0..20 {
        at = cluster.change(&format!("w{number}")).await.unwrap();
    }
    assert_eq!(at.sequence, 21);
    for server in cluster.servers().await {
        let server = server.as_str()[1..].parse().unwrap();
        let map = cluster.fetch(server, at).await;
        assert_eq!(map.generation(), at);
        assert_eq!(map.shard(ShardId(1)).unwrap().replicas.len(), 20);
        assert_eq!(cluster.files(server), [format!("{}.metadata", created.transaction)]);
    }
    let second = cluster.maps.create(first()).await.unwrap_err();
    assert!(matches!(second, ChangeError::Failed(_)), "it is there already: {second}");
    // A notice that waits no longer may still be on its way.
    let others = || (0..5).filter(|server| cluster.files(*server).is_empty()).count();
    until("what was aborted is cleaned up", async || cluster.notices.waiting() == 0 && others() == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t7_of_changes_at_the_same_time_one_is_committed() {
    let cluster = TestCluster::of(3).await;
    cluster.maps.create(first()).await.unwrap();
    for _ in 0..10 {
        let (seen, map) = cluster.maps.latest(&keyspace()).await.unwrap();
        let attempts = (0..4).map(|_| {
            let diff = map.edit().commit(transaction());
            cluster.maps.change(seen.clone(), &map, diff)
        });
        let ended = futures::future::join_all(attempts).await;
        assert_eq!(ended.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{ended:?}");
        let conflict = |outcome: &Result<_, _>| {
            matches!(outcome, Err(ChangeError::Failed(Failed::Conflict | Failed::TooFew { .. })) | Ok(_))
        };
        assert!(ended.iter().all(conflict), "{ended:?}");
    }
    assert_eq!(cluster.maps.latest(&keyspace()).await.unwrap().1.generation().sequence, 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_swaps_in_a_transaction_of_its_own() {
    let cluster = TestCluster::of(3).await;
    cluster.maps.create(first()).await.unwrap();
    let (seen, map) = cluster.maps.latest(&keyspace()).await.unwrap();
    let diff = map.edit().commit(transaction());
    let prepare = |seen| {
        cluster.maps.prepare(map.keyspace(), Base::Head(seen), Change::Operation(Arc::new(diff.clone())))
    };
    let prepared = prepare(seen.clone()).await.unwrap();
    let other = partage_coordination::Key::new("plans/1").unwrap();
    let transaction = partage_coordination::Transaction::new().put(&other, "a plan");
    let outcome = cluster.coordination.commit(prepared.swap_in(transaction).unwrap()).await;
    let at = prepared.finish(partage_metadata::swapped(&outcome)).await.unwrap();
    assert_eq!(at, diff.to);
    assert!(cluster.coordination.read(&other).await.unwrap().is_some());
    // What was never sent is resolved by the head, and can then never come.
    let (seen, map) = cluster.maps.latest(&keyspace()).await.unwrap();
    let diff = map.edit().commit(partage_metadata::transaction());
    let change = Change::Operation(Arc::new(diff));
    let prepared = cluster.maps.prepare(map.keyspace(), Base::Head(seen), change).await.unwrap();
    let late = prepared.swap_in(partage_coordination::Transaction::new()).unwrap();
    let ended = prepared.finish(Swapped::Unknown).await.unwrap_err();
    assert!(matches!(ended, ChangeError::Failed(Failed::Conflict)), "{ended}");
    assert!(cluster.coordination.commit(late).await.is_err(), "C3: it was told to have failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn t8_a_server_that_was_away_catches_up_and_one_that_is_gone_is_replaced() {
    let mut cluster = TestCluster::of(3).await;
    cluster.maps.create(first()).await.unwrap();
    cluster.stop(2).await;
    for number in 0..5 {
        cluster.change(&format!("w{number}")).await.unwrap();
    }
    cluster.start(2).await;
    let at = cluster.change("w5").await.unwrap();
    assert_eq!(cluster.fetch(2, at).await.generation(), at, "T8: it answers when it has the latest map");
    cluster.stop(0).await;
    cluster.start(3).await;
    cluster.maps.join(&keyspace(), &name(3)).await.unwrap();
    let seen = cluster.maps.head(&keyspace()).await.unwrap().unwrap();
    cluster.maps.set_servers(seen, &keyspace(), vec![name(1), name(2), name(3)]).await.unwrap();
    assert_eq!(cluster.servers().await, [name(1), name(2), name(3)]);
    cluster.stop(1).await;
    let at = cluster.change("w6").await.unwrap();
    for server in [2, 3] {
        assert_eq!(cluster.fetch(server, at).await.shard(ShardId(1)).unwrap().replicas.len(), 7);
    }
    cluster.start(0).await;
    until("who was replaced removes its files", async || cluster.files(0).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_nothing_changes_and_nothing_is_left() {
    let mut cluster = TestCluster::of(3).await;
    let at = cluster.maps.create(first()).await.unwrap();
    cluster.stop(1).await;
    cluster.stop(2).await;
    let refused = cluster.change("w").await.unwrap_err();
    assert!(matches!(refused, ChangeError::Failed(Failed::TooFew { needed: 2, .. })), "{refused}");
    assert_eq!(cluster.fetch(0, at).await.generation(), at);
    cluster.start(1).await;
    assert_eq!(cluster.change("w").await.unwrap().sequence, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_operation_on_a_line_is_answered_by_its_number() {
    let cluster = TestCluster::of(1).await;
    cluster.maps.create(first()).await.unwrap();
    let mut map = ShardMap::clone(&cluster.maps.latest(&keyspace()).await.unwrap().1);
    let address = cluster.directory.borrow()[&name(0)].clone();
    let mut client = MetadataClient::connect(format!("http://{address}")).await.unwrap();
    let order = |number, diff: &MapDiff| proto::StoreOrder { number, operation: Some(diff.into()) };
    let mut nobodys = map.edit().commit(transaction());
    nobodys.keyspace = KeyspaceName::new("nobodys").unwrap();
    let mut orders = vec![order(4, &nobodys)];
    for number in [9, 2, 7] {
        let diff = map.edit().commit(transaction());
        map.apply(&diff).unwrap();
        orders.push(order(number, &diff));
    }
    let outcomes = client.store_each(futures::stream::iter(orders)).await.unwrap().into_inner();
    let outcomes: BTreeMap<_, _> =
        outcomes.map(|one| one.unwrap()).map(|one| (one.number, one)).collect().await;
    assert_eq!(outcomes.keys().copied().collect::<Vec<_>>(), [2, 4, 7, 9]);
    for number in [9, 2, 7] {
        assert_eq!(outcomes[&number].code, 0, "on the one before it: {:?}", outcomes[&number]);
    }
    assert!(outcomes[&4].code != 0 && !outcomes[&4].message.is_empty(), "{:?}", outcomes[&4]);
    let nothing = proto::StoreOrder { number: 1, operation: None };
    let mut outcomes = client.store_each(futures::stream::iter([nothing])).await.unwrap().into_inner();
    let refused = outcomes.message().await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn d8_a_damaged_file_is_put_aside_and_fetched_anew() {
    let mut cluster = TestCluster::of(3).await;
    cluster.maps.create(first()).await.unwrap();
    let at = cluster.change("w").await.unwrap();
    cluster.stop(0).await;
    let dir = cluster.dir.path().join("m0/users");
    let file = dir.join(files(&dir).pop().unwrap());
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[100] ^= 4;
    std::fs::write(&file, bytes).unwrap();
    cluster.start(0).await;
    assert_eq!(cluster.fetch(0, at).await.generation(), at);
    assert!(files(&dir).iter().any(|name| name.ends_with(".damaged")), "kept for a person");
}

#[tokio::test(flavor = "multi_thread")]
async fn t9_a_node_asks_any_server_what_its_partitions_are() {
    let cluster = TestCluster::of(3).await;
    cluster.maps.create(first()).await.unwrap();
    cluster.change("w1").await.unwrap();
    let at = cluster.change("w2").await.unwrap();
    let address = cluster.directory.borrow()[&name(0)].clone();
    let mut client = MetadataClient::connect(format!("http://{address}")).await.unwrap();
    let request = DiscoverRequest {
        keyspace: keyspace(),
        generation: at,
        node: NodeId::new("w2").unwrap(),
        incarnation: Incarnation(1),
        shards: vec![ShardId(1), ShardId(9)],
    };
    let told = client.discover(partage_wire::proto::DiscoverRequest::from(&request)).await.unwrap();
    let told = discoveries(told.into_inner()).unwrap();
    assert_eq!((told[0].at, told[0].status, told[0].placement), (at, Status::Load, Some(PlacementId(2))));
    assert_eq!((told[1].status, told[1].placement, told[1].targets.len()), (Status::Unload, None, 0));
    let unknown = DiscoverRequest { keyspace: KeyspaceName::new("nobody").unwrap(), ..request };
    let refused = client.discover(partage_wire::proto::DiscoverRequest::from(&unknown)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound, "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn t8_a_server_whose_disk_was_lost_fetches_what_it_keeps() {
    let mut cluster = TestCluster::of(3).await;
    cluster.maps.create(first()).await.unwrap();
    until("the notices are heard", async || cluster.notices.waiting() == 0).await;
    cluster.stop(2).await;
    std::fs::remove_dir_all(cluster.dir.path().join("m2")).unwrap();
    cluster.start(2).await;
    // Nobody speaks to it: the watch does.
    until("it has the map again", async || !cluster.files(2).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_keyspace_is_created_anew_under_its_name_at_once() {
    let cluster = TestCluster::of(3).await;
    let old = cluster.maps.create(first()).await.unwrap();
    let at = cluster.change("w").await.unwrap();
    let key = partage_coordination::Key::new("keyspaces/users/map/metadata").unwrap();
    cluster.coordination.commit(partage_coordination::Transaction::new().delete(&key)).await.unwrap();
    let question = MapQuestion { keyspace: keyspace(), sequence: 0 };
    for server in 0..3 {
        let refused = cluster.peers.fetch(&name(server), &question).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::NotFound, "{refused}");
        assert_eq!(cluster.files(server), [format!("{}.metadata", old.transaction)], "kept for a while");
    }
    let new = cluster.maps.create(first()).await.unwrap();
    assert!(new.sequence < at.sequence && new.transaction != old.transaction);
    for server in 0..3 {
        assert_eq!(cluster.fetch(server, new).await.generation(), new);
    }
    // A server cannot tell a keyspace that was created anew from an engine that was set back: if it has heard that its map
    // is a later one, it keeps that beside the new one.
    assert_eq!(cluster.change("w").await.unwrap().sequence, at.sequence);
    for server in 0..3 {
        let files = async || cluster.files(server) == [format!("{}.metadata", new.transaction)];
        until("the old map is gone when it is no longer the later one", files).await;
    }
}

/// Names come and go; a server that remembered each would be full one day.
#[tokio::test(flavor = "multi_thread")]
async fn a_keyspace_that_is_none_of_its_business_is_forgotten() {
    let cluster = TestCluster::of(1).await;
    cluster.maps.create(first()).await.unwrap();
    let (server, _) = &cluster.running[&name(0)];
    let notice = Notice::Committed(Generation::default());
    for number in 0..100 {
        let other = KeyspaceName::new(&format!("other-{number}")).unwrap();
        server.tell(&other, notice).await.unwrap();
    }
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    while server.keyspaces() > 1 {
        assert!(tokio::time::Instant::now() < until, "{} are remembered", server.keyspaces());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(cluster.maps.latest(&keyspace()).await.is_ok(), "its own is kept");
}

/// What is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A server whose files cannot be opened is asked all the time, and opens them when they can be.
#[tokio::test]
async fn c14_files_that_cannot_be_opened_are_logged_once_and_opened_later() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let cluster = TestCluster::of(1).await;
    // A file in the place of the directory.
    let dir = cluster.dir.path().join("m0").join(keyspace().as_str());
    std::fs::write(&dir, "").unwrap();
    for _ in 0..40 {
        match cluster.maps.create(first()).await.unwrap_err() {
            ChangeError::Failed(Failed::TooFew { disks: Some(disks), .. }) => {
                assert!(
                    disks.starts_with(&format!("m0: the METADATA files in `{}`", dir.display())),
                    "{disks}"
                );
            }
            error => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(logged.matches("cannot be opened").count(), 1, "{logged}");
    std::fs::remove_file(&dir).unwrap();
    until("it is opened", async || cluster.maps.create(first()).await.is_ok()).await;
}
