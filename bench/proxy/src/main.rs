//! The two processes that `run` measures with: a tiny service, and our proxy before it.
//!
//! ```text
//! bench-proxy backend ADDRESS...      answers 100 bytes to every request
//! bench-proxy proxy LISTEN NODE...    one shard for each node, by key range
//! ```
//!
//! The proxy takes its maps from a file, as it would when no coordinator can be reached; so nothing but the
//! proxy is in its process.

use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper::{Response, server};
use hyper_util::rt::TokioIo;
use partage_core::base::id::{Incarnation, ShardId, TransactionId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::key::{Key, KeyRange};
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::ShardMap;
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use partage_core::keyspace::{KeyspaceKind, Ownership};
use partage_core::node::Health;
use partage_core::node::NodeAddress;
use partage_core::node::exchange::KeyspaceBrief;
use partage_router::proxy::{Config, serve};
use partage_router::{Options, Router};
use partage_wire::map::kept;
use partage_wire::map::{MapEvent, MapNews};
use std::convert::Infallible;
use std::error::Error;
use tokio::net::TcpListener;

type Failure = Box<dyn Error>;

#[expect(clippy::disallowed_methods, reason = "a command of its own, with arguments of its own")]
fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match arguments.split_first() {
        Some((role, rest)) if role == "backend" => runtime.block_on(backend(rest)),
        Some((role, rest)) if role == "proxy" => runtime.block_on(proxy(rest)),
        _ => Err("say `backend ADDRESS...` or `proxy LISTEN NODE...`".into()),
    }
}

async fn backend(addresses: &[String]) -> Result<(), Failure> {
    let answer = Bytes::from(vec![b'x'; 100]);
    for address in addresses {
        let (listener, answer) = (TcpListener::bind(address).await?, answer.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = answer.clone();
                let service = service_fn(move |_| {
                    let answer = Response::new(Full::new(answer.clone()));
                    async { Ok::<_, Infallible>(answer) }
                });
                let http = server::conn::http1::Builder::new();
                tokio::spawn(async move { http.serve_connection(TokioIo::new(stream), service).await });
            }
        });
    }
    std::future::pending().await
}

async fn proxy(arguments: &[String]) -> Result<(), Failure> {
    let (listen, nodes) = arguments.split_first().ok_or("say where to listen")?;
    let file = std::env::temp_dir().join(format!("bench-proxy-{}", std::process::id()));
    tokio::fs::write(&file, kept::to_bytes(&maps(nodes)?)).await?;
    let router =
        Router::connect(vec![], Options { maps_file: Some(file.clone()), ..Options::default() }).await;
    tokio::fs::remove_file(&file).await?;
    let config = Config { listen: listen.parse()?, threads: 1, ..Config::default() };
    let _proxy = serve(&router, config).await?;
    std::future::pending().await
}

/// One shard for each node, begun by "0", "1" and so on.
fn maps(nodes: &[String]) -> Result<Vec<MapEvent>, Failure> {
    let name = KeyspaceName::new("packages")?;
    let mut map = ShardMap::empty(name.clone(), Sharding::KeyRange, PartitionKey::Whole);
    let mut edit = map.edit();
    let mut addresses = Vec::new();
    for (at, address) in nodes.iter().enumerate() {
        let begin = if at == 0 { Key::empty() } else { Key::new(at.to_string().as_bytes())? };
        let end =
            if at + 1 == nodes.len() { Key::empty() } else { Key::new((at + 1).to_string().as_bytes())? };
        let (id, incarnation) = (NodeId::new(&format!("node-{at}"))?, Incarnation(1));
        let shard = edit.create_shard(Bounds::Keys(KeyRange::new(begin, end)?))?;
        let placement = edit.add_replica(shard, &id, incarnation, None)?;
        edit.step(shard, placement, ReplicaState::Live)?;
        edit.lead(shard, placement)?;
        let (address, health) = (address.clone(), Health::Up);
        addresses.push(NodeAddress {
            id,
            incarnation,
            address,
            zone: None,
            health,
            resp_address: None,
            labels: Default::default(),
            drains: false,
        });
    }
    let diff = edit.commit(TransactionId([1; 20]));
    map.apply(&diff)?;
    let brief = KeyspaceBrief {
        name,
        sharding: map.sharding(),
        partition_key: map.partition_key(),
        ownership: Ownership::Eventual,
        generation: map.generation(),
        first_shard: map.next_shard(),
        durable: false,
        min_in_sync: 0,
        kind: KeyspaceKind::App,
        values: partage_core::keyspace::RowValues::Bytes,
        feed_ms: 0,
    };
    let news = MapNews::Changed { brief: Some(brief), resync: true, diff: Box::new(diff) };
    let maps = MapEvent { news, nodes: addresses, forgotten: vec![] };
    Ok(vec![maps, MapEvent { news: MapNews::Current(ShardId(1)), nodes: vec![], forgotten: vec![] }])
}
