//! `bench-metadata` measures what a commit of a METADATA file costs beside a bare compare-and-swap: see the README.

use bench_gauge::{Durations, complain, now, option, say};
use chaos::engine::Engine;
use partage_coordination::embedded::{Embedded, Options};
use partage_coordination::{Backend, Coordination, Expected, Key, Target, connect};
use partage_core::base::id::{Incarnation, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::map::ShardMap;
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding, Slot};
use partage_metadata::{
    Heads, LocalServer, MetadataServerClient, MetadataService, Notices, Peers, transaction,
};
use partage_service::metadata::Seen;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Shards of the large map.
const SHARDS: u64 = 100_000;
/// Servers that keep each map.
const SERVERS: usize = 3;

fn main() -> ExitCode {
    #[expect(clippy::disallowed_methods, reason = "a program of its own, which reads its command line")]
    let words: Vec<String> = std::env::args().collect();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    // In a task, as a coordinator commits: the main thread would have to be woken for each message.
    let ran = runtime.map_err(Failed::from).and_then(|runtime| {
        runtime.block_on(async { tokio::spawn(async move { run(&words).await }).await? })
    });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

async fn run(words: &[String]) -> Result<(), Failed> {
    let rounds = option(words, "--changes", 500);
    let dir = tempfile::tempdir()?;
    let at = words.iter().position(|word| word == "--backend");
    let (coordination, _engine) = backend(at.and_then(|at| words.get(at + 1)), dir.path()).await?;
    say(&format!(
        "backend {}, {SERVERS} servers on loopback, {rounds} changes of each kind",
        coordination.backend()
    ));
    let bench_cluster = BenchCluster::start(dir.path(), coordination.clone()).await?;
    let key = Key::new("bench/swapped")?;
    let (mut bare, mut small, mut large) = (Durations::default(), Durations::default(), Durations::default());
    let mut swapped = coordination.read(&key).await?.map(|entry| entry.version);
    let mut little = bench_cluster.create("small", 8).await?;
    let mut big = bench_cluster.create("large", SHARDS).await?;
    // In turn, so that all three meet the same moods of the disk.
    let mut bytes = [0; 2];
    for _ in 0..rounds {
        let begin = now();
        let expected = swapped.map_or(Expected::Absent, Expected::At);
        swapped = Some(coordination.compare_and_swap(&key, expected, vec![7; 64].into()).await?);
        bare.push(begin.elapsed_since());
        for (at, (map, durations)) in
            [(&mut little, &mut small), (&mut big, &mut large)].into_iter().enumerate()
        {
            let before = bench_cluster.written_bytes();
            durations.push(bench_cluster.change(map).await?);
            bytes[at] += bench_cluster.written_bytes() - before;
        }
    }
    let each = |bytes: u64| bytes / rounds / SERVERS as u64;
    say(&format!("  bare compare-and-swap      {}", bare.line()));
    say(&format!("  commit, 8 shards           {}; {} bytes for each server", small.line(), each(bytes[0])));
    say(&format!("  commit, {SHARDS} shards     {}; {} bytes for each server", large.line(), each(bytes[1])));
    let (bare, small, large) = (bare.quantile_ms(0.5), small.quantile_ms(0.5), large.quantile_ms(0.5));
    say(&format!(
        "  small over bare, p50: {:.2}; large less small, p50: {:.2} ms",
        small / bare,
        large - small
    ));
    Ok(())
}

/// The store that `said` names, or is the address of; an engine that was started for it goes with its handle.
async fn backend(
    said: Option<&String>,
    dir: &Path,
) -> Result<(Arc<dyn Coordination>, Option<Engine>), Failed> {
    let kind = match said.map(String::as_str) {
        None => return Ok((Embedded::open(dir.join("coordination"), Options::default()).await?, None)),
        Some("etcd") => Backend::Etcd,
        Some("mysql") => Backend::MySql,
        Some("zookeeper") => Backend::ZooKeeper,
        Some(address) => return Ok((connect(&Target::parse(address)?).await?, None)),
    };
    let engine = Engine::start(kind, &[]).await;
    Ok((connect(&engine.target_through(&engine.address())).await?, Some(engine)))
}

trait Elapsed {
    fn elapsed_since(self) -> std::time::Duration;
}

impl Elapsed for std::time::Instant {
    fn elapsed_since(self) -> std::time::Duration {
        now().duration_since(self)
    }
}

/// A map as its leader has it.
struct Kept {
    seen: Seen,
    map: ShardMap,
    next: u64,
}

struct BenchCluster {
    maps: MetadataServerClient,
    servers: Vec<LocalServer>,
}

impl BenchCluster {
    async fn start(dir: &Path, coordination: Arc<dyn Coordination>) -> Result<BenchCluster, Failed> {
        let heads = Heads::new(coordination);
        let mut listeners = BTreeMap::new();
        let mut addresses = BTreeMap::new();
        for server in 0..SERVERS {
            let id = NodeId::new(&format!("m{server}"))?;
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            addresses.insert(id.clone(), listener.local_addr()?.to_string());
            listeners.insert(id, listener);
        }
        let peers = Peers::new(Arc::new(addresses));
        let notices = Notices::start(peers.clone());
        let mut servers = Vec::new();
        for (id, listener) in listeners {
            let server =
                LocalServer::start(id.clone(), &dir.join(id.as_str()), heads.clone(), peers.clone())?;
            let maps = MetadataServerClient::new(
                heads.clone(),
                peers.clone(),
                notices.clone(),
                Some(server.clone()),
            );
            let serving = Server::builder().add_service(MetadataService::server(server.clone(), Some(maps)));
            tokio::spawn(serving.serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true))));
            servers.push(server);
        }
        // The leader is one of the servers, as a coordinator is.
        let maps = MetadataServerClient::new(heads, peers, notices, servers.first().cloned());
        Ok(BenchCluster { maps, servers })
    }

    fn written_bytes(&self) -> u64 {
        self.servers.iter().map(LocalServer::written_bytes).sum()
    }

    async fn create(&self, name: &str, shards: u64) -> Result<Kept, Failed> {
        // Its own life each time: a backend by address may have been measured before.
        let name = KeyspaceName::new(&format!("{name}-{}", &transaction().to_string()[..8]))?;
        let sharding = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: shards as u32 };
        let mut map = ShardMap::empty(name.clone(), sharding, PartitionKey::default());
        let mut edit = map.edit();
        for number in 0..shards as u32 {
            let slot = Slot::new(number, shards as u32)?;
            let shard = edit.create_shard(Bounds::Slot(slot))?;
            for replica in 0..3 {
                let node = NodeId::new(&format!("node-{}", (shard.0 + replica) % 100))?;
                edit.add_replica(shard, &node, Incarnation(1), None)?;
            }
        }
        let diff = edit.commit(transaction());
        map.apply(&diff)?;
        self.maps.create(map.clone()).await?;
        let seen = self.maps.head(&name).await?.ok_or("the map was created")?;
        Ok(Kept { seen, map, next: 0 })
    }

    /// One replica of one shard comes or goes; the leader has map and head in memory.
    async fn change(&self, kept: &mut Kept) -> Result<std::time::Duration, Failed> {
        kept.next += 1;
        let shard = ShardId(1 + kept.next * 7 % kept.map.len() as u64);
        let mut edit = kept.map.edit();
        let extra = kept.map.shard(shard).and_then(|shard| shard.replicas.get(3)).map(|r| r.placement);
        match extra {
            Some(placement) => edit.remove_replica(shard, placement)?,
            None => {
                edit.add_replica(shard, &NodeId::new("extra")?, Incarnation(1), None)?;
            }
        }
        let diff = edit.commit(transaction());
        let begin = now();
        self.maps.change(kept.seen.clone(), &kept.map, diff.clone()).await?;
        let took = begin.elapsed_since();
        kept.map.apply(&diff)?;
        kept.seen = self.maps.head(kept.map.keyspace()).await?.ok_or("the map was there")?;
        Ok(took)
    }
}
