//! Where the nodes of a cluster see each other.

use crate::engine::Engine;
use crate::subnet::Subnet;
use crate::until;
use partage_coordination::{Backend, Coordination, Entry, Key, Scope, SessionId, Target, connect};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

/// An engine that is there, or nothing but the nodes themselves.
#[derive(Debug)]
pub enum Ground {
    /// A server of etcd, MariaDB or ZooKeeper.
    Engine(Box<Engine>),
    /// Gossip. Every node is told of the first one.
    Gossip,
    /// The same behind the keys of a file.
    Sealed(PathBuf),
}

impl Ground {
    /// A server of that backend, if it has one.
    pub async fn of(backend: Backend) -> Ground {
        match backend {
            Backend::Gossip => Ground::Gossip,
            _ => Ground::Engine(Box::new(Engine::start(backend, &[]).await)),
        }
    }

    /// Tells the node number `node` of the cluster `root`, whose nodes have addresses of `subnet`, where to look.
    pub fn tell(&self, command: &mut Command, root: &str, subnet: &Subnet, node: usize) {
        let target = self.target(root, subnet);
        command.args(["--coordination", &target.to_string()]);
        match self {
            Ground::Engine(_) => {
                if let Some(password) = &target.password {
                    command.env("PARTAGE_COORDINATION_PASSWORD", password.reveal());
                }
            }
            Ground::Gossip => drop(command.args(["--gossip", &format!("{subnet}.{node}:7480")])),
            Ground::Sealed(keys) => {
                command
                    .args(["--gossip", &format!("{subnet}.{node}:7480")])
                    .arg("--gossip-key-file")
                    .arg(keys);
            }
        }
    }

    fn target(&self, root: &str, subnet: &Subnet) -> Target {
        match self {
            Ground::Engine(engine) => engine.root_through(&engine.address(), root),
            Ground::Gossip => Target::parse(&format!("gossip://{subnet}.1:7480/{root}")).unwrap(),
            Ground::Sealed(keys) => {
                let target = Target::parse(&format!("gossip://{subnet}.1:7480/{root}")).unwrap();
                Target { gossip_key_file: Some(keys.clone()), ..target }
            }
        }
    }

    /// The engine, to be struck; gossip has none.
    pub fn engine(&mut self) -> &mut Engine {
        match self {
            Ground::Engine(engine) => engine,
            Ground::Gossip | Ground::Sealed(_) => panic!("gossip has no engine"),
        }
    }

    /// A client that sees what the nodes publish.
    pub async fn observer(&self, root: &str, subnet: &Subnet) -> Observer {
        Observer { store: connect(&self.target(root, subnet)).await.unwrap() }
    }
}

/// Sees what nodes publish.
pub struct Observer {
    store: Arc<dyn Coordination>,
}

impl Observer {
    async fn list(&self) -> Result<Vec<(Key, Entry)>, String> {
        let all = Scope::Below(Key::new("datasets/v1").unwrap());
        let listed = self.store.list(&all, None, 1_000).await.map_err(|error| error.to_string())?;
        Ok(listed.entries)
    }

    /// In which session each key is.
    pub async fn sessions(&self) -> Result<BTreeMap<Key, Option<SessionId>>, String> {
        Ok(self.list().await?.into_iter().map(|(key, entry)| (key, entry.session)).collect())
    }

    /// Waits until the same keys are there, each in another session than `before`.
    pub async fn are_renewed(&self, before: &BTreeMap<Key, Option<SessionId>>) {
        until("all keys are there, in new sessions", async || {
            let now = self.sessions().await?;
            let is_new =
                |(key, session): (&Key, &Option<SessionId>)| now.get(key).is_some_and(|new| new != session);
            if before.iter().all(is_new) { Ok(()) } else { Err(format!("{before:?}, then {now:?}")) }
        })
        .await;
    }

    /// Waits until the keys of the node at `address` are so many.
    pub async fn counts(&self, address: &str, keys: usize) {
        until(&format!("{address} has {keys} keys"), async || {
            let all = self.list().await?;
            let found: Vec<&Key> =
                all.iter().map(|(key, _)| key).filter(|key| key.as_str().ends_with(address)).collect();
            if found.len() == keys { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }
}
