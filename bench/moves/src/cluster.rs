//! The cluster that is measured: a coordinator and workers, each with its own connection, over loopback.

use bench_gauge::Admin;
use partage_coordinator::{Backing, Config, Coordinator};
use partage_wire::json::{Command, Keyspace, Presplit, Sharding};
use partage_worker::{
    Assignment, DropReason, Epoch, Failure, Handler, KeyspaceName, Load, Ownership, Peer, Role, Worker,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;

/// The name of the keyspace.
pub const KEYSPACE: &str = "measured";

/// The key that asks for the slot of that number: found by hashing until each slot has one.
pub fn keys(slots: u32) -> Vec<Vec<u8>> {
    let mut keys = vec![Vec::new(); slots as usize];
    let mut left = slots;
    for number in 0_u64.. {
        if left == 0 {
            break;
        }
        let key = number.to_string().into_bytes();
        let slot = partage_core::keyspace::hash::HashFunction::Xxh3_64.slot(&key, slots) as usize;
        if keys[slot].is_empty() {
            keys[slot] = key;
            left -= 1;
        }
    }
    keys
}

/// Starts a coordinator with its state in that directory.
pub async fn coordinator(dir: &Path) -> Result<Coordinator, String> {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = Config { backing: Backing::Directory(dir.to_owned()), ..Config::new(listen) };
    Coordinator::start(config).await.map_err(|error| error.to_string())
}

/// What a shard of the keyspace is kept in.
#[derive(Debug, Clone, Copy)]
pub struct Copies {
    /// The number of replicas of each shard.
    pub replicas: u32,
    /// Whether they outlive processes: then the leader waits for followers to take in each change of them.
    pub durable: bool,
}

/// Creates the keyspace: exclusive, of that many slots, everything else as it is by default.
pub async fn create(admin: &Admin, slots: u32, copies: Copies) -> Result<(), String> {
    let keyspace = Keyspace {
        ownership: Some(Ownership::Exclusive.into()),
        replicas: Some(copies.replicas),
        durable: copies.durable,
        ..Keyspace::new(KEYSPACE, Sharding::Fixed { hash: "xxh3-64".to_owned(), shards: slots })
    };
    admin.command(Command::CreateKeyspace { keyspace, presplit: Presplit::None, ahead: false }).await
}

/// Replicas that are on their way to some node, by what their callbacks say.
#[derive(Debug, Default)]
pub struct UnderWay(Mutex<BTreeMap<u64, usize>>);

impl UnderWay {
    fn comes(&self, slot: u64, node: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(slot, node);
    }

    /// Takes what has begun to load since the last call: slots, and the nodes that they come to.
    pub fn take(&self) -> BTreeMap<u64, usize> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A service that has nothing to load and nothing to lose.
pub struct Trivial {
    /// Which worker this is.
    pub node: usize,
    /// Told of every load.
    pub under_way: Arc<UnderWay>,
}

#[partage_worker::async_trait]
impl Handler for Trivial {
    async fn load(&self, shard: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        if let partage_worker::Bounds::Slot(slot) = shard.bounds {
            self.under_way.comes(u64::from(slot.number()), self.node);
        }
        Ok(())
    }

    async fn serve(&self, _: &Assignment, _: Role, _: Epoch) -> Result<(), Failure> {
        Ok(())
    }

    async fn unload(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        Ok(())
    }

    async fn drop(&self, _: &Assignment, _: DropReason) -> Result<(), Failure> {
        Ok(())
    }

    /// All weigh the same: that more is asked of shards that move must not steer what moves next.
    async fn report(&self, _: &Assignment) -> Option<Load> {
        Some(Load { requests_per_s: 1.0, ..Load::default() })
    }
}

/// Listens, as a worker must, and starts it. Connections are taken and closed: requests come in by calls.
pub async fn worker(
    node: usize,
    coordinator: SocketAddr,
    under_way: Arc<UnderWay>,
) -> Result<Worker, String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    Worker::builder(name(node), [coordinator.to_string()], address.to_string())
        .register_within(Duration::from_secs(60))
        .start(Trivial { node, under_way })
        .await
        .map_err(|error| error.to_string())
}

/// The name of the node with this number.
pub fn name(node: usize) -> String {
    format!("n{node:03}")
}

/// The node of that name.
pub fn number(name: &str) -> Option<usize> {
    name.strip_prefix('n').and_then(|number| number.parse().ok())
}

/// The name of the keyspace that is measured.
pub fn keyspace() -> Result<KeyspaceName, String> {
    KeyspaceName::new(KEYSPACE).map_err(|error| error.to_string())
}
