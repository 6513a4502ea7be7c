//! The questions and commands of the admin API, as the tests need them.

use crate::cluster::SHARDS;
use crate::http::{Http, Reply};
use crate::until;
use hyper::Method;
use partage_core::keyspace::KeyspaceKind;
use partage_core::keyspace::map::Role;
use partage_core::node::Health;
use partage_wire::json::{
    Answer, Command, CommandRequest, Explained, Keyspace, Node, Nodes, Plans, Presplit, ReplicaPhase,
    Resharding, Shard, Sharding, Shards, Summary,
};
use partage_wire::request::headers::FORWARDED_BY;
use serde::de::DeserializeOwned;

/// The admin API of a coordinator, or of several that stand for each other.
#[derive(Debug, Clone)]
pub struct Admin {
    http: Http,
    addresses: Vec<String>,
}

impl Admin {
    /// The API of the coordinator at `address` alone.
    pub fn new(address: &str) -> Admin {
        Admin::of(vec![address.to_owned()])
    }

    /// The API at any of `addresses`: those after the first are asked where none of the ones before listens.
    pub fn of(addresses: Vec<String>) -> Admin {
        Admin { http: Http::default(), addresses }
    }

    /// Asks the first that listens.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        more: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<Reply, String> {
        let headers = [&[("content-type", "application/json"), ("partage-user", "chaos")], more].concat();
        let mut last = String::new();
        for address in &self.addresses {
            match self.http.ask(method.clone(), address, path, &headers, body.clone()).await {
                Err(error) if error.contains("refused") => last = error,
                asked => return asked,
            }
        }
        Err(last)
    }

    /// The answer to a question, or why there is none.
    pub async fn try_get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        read(&self.ask(Method::GET, path, &[], Vec::new()).await?)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> T {
        until(path, || self.try_get(path)).await
    }

    /// Carries out a command, once.
    pub async fn command(&self, command: Command) -> Result<Answer, String> {
        self.carry_out(command, &[]).await
    }

    /// The same by a coordinator that leads itself: one that stands by refuses what seems to be passed on.
    pub async fn command_to_leader(&self, command: Command) -> Result<Answer, String> {
        self.carry_out(command, &[(FORWARDED_BY.as_str(), "chaos")]).await
    }

    async fn carry_out(&self, command: Command, headers: &[(&str, &str)]) -> Result<Answer, String> {
        let body = serde_json::to_vec(&CommandRequest { command, dry_run: false }).unwrap();
        read(&self.ask(Method::POST, "/v1/commands", headers, body).await?)
    }

    /// Makes a keyspace of [`SHARDS`] ranges of hashes with one replica each, and waits until it is served. In
    /// mode `suggested` shards move only because they must.
    pub async fn keyspace(&self, name: &str, ownership: &str, mode: &str) {
        let sharding = Sharding::HashRange { hash: "xxh3-64".to_owned() };
        let keyspace = keyspace(name, sharding, Some(ownership), mode);
        let presplit = Presplit::HashRanges { shards: SHARDS };
        self.command(Command::CreateKeyspace { keyspace, presplit, ahead: false }).await.unwrap();
        self.settled().await;
    }

    /// Makes a table of [`SHARDS`] ranges of hashes with three replicas each, of which two must have a write, and waits until it
    /// is served.
    pub async fn table(&self, name: &str) {
        self.table_of(name, 3).await;
    }

    /// The same, of so many replicas.
    pub async fn table_of(&self, name: &str, replicas: u32) {
        let sharding = Sharding::HashRange { hash: "xxh3-64".to_owned() };
        self.create_table(name, replicas, sharding, Presplit::HashRanges { shards: SHARDS }).await;
    }

    /// A table of so many fixed slots, with three replicas each.
    pub async fn table_of_slots(&self, name: &str, shards: u32) {
        let sharding = Sharding::Fixed { hash: "xxh3-64".to_owned(), shards };
        self.create_table(name, 3, sharding, Presplit::None).await;
    }

    async fn create_table(&self, name: &str, replicas: u32, sharding: Sharding, presplit: Presplit) {
        let table = Keyspace {
            kind: Some(KeyspaceKind::Table.into()),
            replicas: Some(replicas),
            durable: true,
            min_in_sync: 2,
            resharding: Resharding { split_bytes: 0, ..Resharding::default() },
            ..keyspace(name, sharding, Some("replicated"), "automatic")
        };
        let command = Command::CreateKeyspace { keyspace: table, presplit, ahead: false };
        self.command(command).await.unwrap();
        self.settled().await;
    }

    /// The cluster at a glance.
    pub async fn status(&self) -> Summary {
        self.get("/v1/status").await
    }

    /// All nodes that the cluster knows, whatever their health.
    pub async fn nodes(&self) -> Vec<Node> {
        self.get::<Nodes>("/v1/nodes").await.nodes
    }

    /// The node of that name, if the cluster knows it.
    pub async fn node(&self, id: &str) -> Option<Node> {
        self.nodes().await.into_iter().find(|node| node.id == id)
    }

    /// All shards of a keyspace.
    pub async fn shards(&self, keyspace: &str) -> Vec<Shard> {
        self.get::<Shards>(&format!("/v1/keyspaces/{keyspace}/shards")).await.shards
    }

    /// Plans of a keyspace, newest first.
    pub async fn plans(&self, keyspace: &str) -> Plans {
        self.get(&format!("/v1/plans?keyspace={keyspace}")).await
    }

    /// Why a key is where it is.
    pub async fn explain(&self, keyspace: &str, key: &str) -> Explained {
        self.get(&format!("/v1/explain/{keyspace}?key={key}")).await
    }

    /// Waits until a node's health is one of `healths`.
    pub async fn is_seen_as(&self, id: &str, healths: &[&str]) {
        until(&format!("{id} is seen as {healths:?}"), || async {
            let nodes: Nodes = self.try_get("/v1/nodes").await?;
            let node = nodes.nodes.iter().find(|node| node.id == id).ok_or("it is not known")?;
            if healths.contains(&node.health.to_string().as_str()) {
                Ok(())
            } else {
                Err(format!("{node:?}"))
            }
        })
        .await;
    }

    /// Waits until every shard is led by a replica that serves, and nothing is under way.
    pub async fn settled(&self) -> Summary {
        until("the cluster settles", || async {
            let status: Summary = self.try_get("/v1/status").await?;
            let counts = &status.shards;
            let moving = counts.unheard + counts.unserved + counts.forming + counts.closing + counts.removing;
            let under_way = status.moves + status.loads + status.short + moving;
            let live = status.replicas.keys().all(|state| state == "live");
            if counts.led > 0 && under_way == 0 && live && self.all_serve().await? {
                Ok(status)
            } else {
                Err(format!("{status:?}"))
            }
        })
        .await
    }

    async fn all_serve(&self) -> Result<bool, String> {
        let keyspaces: partage_wire::json::Keyspaces = self.try_get("/v1/keyspaces").await?;
        for keyspace in keyspaces.keyspaces {
            let page: Shards = self.try_get(&format!("/v1/keyspaces/{}/shards", keyspace.name)).await?;
            let mut replicas = page.shards.iter().flat_map(|shard| &shard.replicas);
            if !replicas.all(|replica| {
                replica.phase == Some(ReplicaPhase::Serving.into()) && replica.health.is(Health::Up)
            }) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn read<T: DeserializeOwned>(reply: &Reply) -> Result<T, String> {
    if !reply.status.is_success() {
        return Err(format!("{}: {}", reply.status, reply.text()));
    }
    serde_json::from_slice(&reply.body).map_err(|error| format!("{error}: {}", reply.text()))
}

/// A keyspace of one replica, with defaults for all that is not said.
pub fn keyspace(name: &str, sharding: Sharding, ownership: Option<&str>, mode: &str) -> Keyspace {
    let ownership = ownership.map(|word| word.parse().unwrap());
    let mode = Some(mode.parse().unwrap());
    Keyspace { ownership, replicas: Some(1), mode, ..Keyspace::new(name, sharding) }
}

/// A change that moves nothing: a keyspace of no shards.
pub fn empty_keyspace(name: &str) -> Command {
    let keyspace = keyspace(name, Sharding::Named {}, None, "manual");
    Command::CreateKeyspace { keyspace, presplit: Presplit::Names { names: Vec::new() }, ahead: false }
}

/// A keyspace with so many partitions that few of them fill a journal's room, and one is more than a nearly full engine
/// takes.
pub fn bulky_keyspace(name: &str) -> Command {
    let keyspace = keyspace(name, Sharding::Named {}, None, "manual");
    let names = (0..3_000).map(|name| format!("partition-{name:0100}")).collect();
    Command::CreateKeyspace { keyspace, presplit: Presplit::Names { names }, ahead: false }
}

/// The node that leads a shard, if one does.
pub fn leader(shard: &Shard) -> Option<&str> {
    shard.replicas.iter().find(|replica| replica.role.is(Role::Leader)).map(|replica| replica.node.as_str())
}
