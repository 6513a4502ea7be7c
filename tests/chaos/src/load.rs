//! Clients that write and read without pause, note what they were told, and find out lies.
//!
//! For each key one client writes 1, 2, 3, … one after the other, and another reads beside that. Each goes to the owner that it
//! was last told of until it is refused, or sees that its request was
//! forwarded, and only then asks anew: so an old owner is tempted to answer for as long as it can be. What is
//! checked, for each key:
//!
//! | told                       | must be                                                                    |
//! |----------------------------|----------------------------------------------------------------------------|
//! | a value                    | one that was sent for that key, and not older than the last one that had   |
//! |                            | been acknowledged when the read began                                      |
//! | an epoch (`partage-epoch`) | not below the highest that any answer had named when the request began     |
//! | a node (`partage-node`)    | for one epoch always the same                                              |
//!
//! A load may go through routers instead ([`Load::routed`]), as those of users do: nothing is asked again but by the
//! router, whose patience is its default, and every look-up in its map has to name a leader.
//!
//! The second line says that an old owner answers nothing once the new one has begun. A write that was not
//! acknowledged may have been carried out, or be carried out late, so its value may be seen at any time.
//! Values of keys whose owner was killed may be lost ([`Load::may_lose`]): the nodes keep nothing on disk.

use crate::DEADLINE;
use crate::admin::{Admin, leader};
use crate::http::{Http, Reply};
use crate::until;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Method, Request, StatusCode};
use partage_router::{Access, Outgoing, Router};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Rest between two requests of one client.
const REST: Duration = Duration::from_millis(40);

/// Keys, each with a writer and a reader.
const KEYS: usize = 10;

/// Failures that are kept to be shown.
const SHOWN: usize = 20;

#[derive(Debug, Default)]
struct Key {
    sent: u64,
    acknowledged: u64,
    /// Sent, and not acknowledged: carried out perhaps.
    unknown: BTreeSet<u64>,
    /// Highest epoch that an answer named.
    epoch: u64,
    owners: BTreeMap<u64, String>,
    may_lose: bool,
}

/// What a request may assume when it begins.
#[derive(Debug, Clone, Copy)]
struct Floor {
    acknowledged: u64,
    epoch: u64,
}

#[derive(Debug, Default)]
struct LoadRecord {
    keys: BTreeMap<String, Key>,
    writes: u64,
    reads: u64,
    refused: u64,
    failed: u64,
    failures: Vec<String>,
    lies: Vec<String>,
}

impl LoadRecord {
    fn key(&mut self, key: &str) -> &mut Key {
        self.keys.entry(key.to_owned()).or_default()
    }

    fn floor(&mut self, key: &str) -> Floor {
        let noted = self.key(key);
        Floor { acknowledged: noted.acknowledged, epoch: noted.epoch }
    }

    fn lie(&mut self, key: &str, what: &str) {
        self.lies.push(format!("{key}: {what}"));
    }

    /// An answer of an owner: its epoch and its name.
    fn answered(&mut self, key: &str, floor: Floor, reply: &Reply) {
        let epoch = reply.header("partage-epoch").and_then(|epoch| epoch.parse().ok());
        let (Some(epoch), Some(node)) = (epoch, reply.header("partage-node").map(str::to_owned)) else {
            return self.lie(key, &format!("answered {} without epoch and node", reply.status));
        };
        let noted = self.key(key);
        noted.epoch = noted.epoch.max(epoch);
        let owner = noted.owners.entry(epoch).or_insert_with(|| node.clone()).clone();
        if owner != node {
            self.lie(key, &format!("in epoch {epoch} both {owner} and {node} answered"));
        }
        if epoch < floor.epoch {
            let begun = floor.epoch;
            self.lie(key, &format!("{node} answered in epoch {epoch} after epoch {begun} had begun"));
        }
    }

    fn read(&mut self, key: &str, floor: Floor, value: u64) {
        let noted = self.key(key);
        let sent = noted.sent;
        let known = value >= floor.acknowledged || noted.unknown.contains(&value) || noted.may_lose;
        if value > sent {
            self.lie(key, &format!("{value} was read, and only {sent} had been sent"));
        } else if !known {
            let acknowledged = floor.acknowledged;
            self.lie(key, &format!("{value} was read after {acknowledged} had been acknowledged"));
        }
    }

    fn fail(&mut self, what: String) {
        self.failed += 1;
        if self.failures.len() < SHOWN {
            self.failures.push(what);
        }
    }
}

/// What the clients were told, all in all.
#[derive(Debug, Clone)]
pub struct Account {
    /// How many writes were acknowledged.
    pub writes: u64,
    /// How many reads an owner answered.
    pub reads: u64,
    /// Refusals after which a request was made again: no harm was done.
    pub refused: u64,
    /// Requests that an owner did not answer within the deadline, or that may have been carried out or not.
    pub failed: u64,
    /// The first of them.
    pub failures: Vec<String>,
    /// Highest epoch seen, by key.
    pub epochs: BTreeMap<String, u64>,
}

/// Clients that write and read until [`Load::finish`].
pub struct Load {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    clients: JoinSet<()>,
}

struct Shared {
    keyspace: String,
    /// The path of a key, but for the key.
    path: String,
    /// The check of epochs holds where a shard has one owner.
    exclusive: bool,
    /// So do the checks of values.
    keeps_values: bool,
    door: Door,
    record: Mutex<LoadRecord>,
}

/// How the clients find the node that has a key.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a test has a few of them")]
enum Door {
    /// They ask the coordinator, and then that node until it refuses.
    Asked { admin: Admin, http: Http },
    /// A router finds it, and tries again where it may be tried again.
    Routed(Router),
}

impl Shared {
    fn record(&self) -> MutexGuard<'_, LoadRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node that leads the shard of `key` now.
    async fn look_up(&self, admin: &Admin, key: &str) -> Result<String, String> {
        let path = format!("/v1/explain/{}?key={key}", self.keyspace);
        let told: partage_wire::json::Explained = admin.try_get(&path).await?;
        let node = leader(&told.explanation.shard).ok_or("nobody leads")?;
        let nodes: partage_wire::json::Nodes = admin.try_get("/v1/nodes").await?;
        let owner = nodes.nodes.iter().find(|known| known.id == node).ok_or("the leader is not known")?;
        Ok(owner.address.clone())
    }

    async fn ask(
        &self,
        method: Method,
        route: &mut String,
        key: &str,
        body: String,
    ) -> Result<Reply, String> {
        match &self.door {
            Door::Asked { admin, http } => self.ask_owner((admin, http), method, route, key, body).await,
            Door::Routed(router) => self.ask_router(router, method, key, body).await,
        }
    }

    /// One request through the router.
    async fn ask_router(
        &self,
        router: &Router,
        method: Method,
        key: &str,
        body: String,
    ) -> Result<Reply, String> {
        match router.lookup(&self.keyspace, key.as_bytes()) {
            Ok(placed) if placed.leader.is_some() => {}
            placed => return Err(format!("the router knows no leader: {placed:?}")),
        }
        let access = if method == Method::GET { Access::Read } else { Access::Write };
        let path = format!("{}{key}", self.path);
        let request = Request::builder().method(method).uri(path).body(Outgoing::from(Bytes::from(body)));
        let request = request.map_err(|error| error.to_string())?;
        let answer = router.request(request, &self.keyspace, key.as_bytes(), access).await;
        let (parts, body) = answer.map_err(|error| error.to_string())?.into_parts();
        let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
        let reply = Reply { status: parts.status, headers: parts.headers, body };
        settled(reply, "the router").unwrap_or_else(Err)
    }

    /// Asks `route`, and whoever is named instead, until an owner answers, or nobody knows whether one has.
    async fn ask_owner(
        &self,
        (admin, http): (&Admin, &Http),
        method: Method,
        route: &mut String,
        key: &str,
        body: String,
    ) -> Result<Reply, String> {
        let path = format!("{}{key}", self.path);
        let end = Instant::now() + DEADLINE;
        loop {
            let why = match http.ask(method.clone(), route, &path, &[], body.clone()).await {
                Ok(reply) => {
                    let forwarded = reply.header("partage-proxied-to").is_some();
                    match settled(reply, route) {
                        Ok(reply) => {
                            if forwarded {
                                route.clear();
                            }
                            return reply;
                        }
                        Err(why) => why,
                    }
                }
                // Nothing was sent, or nothing that changes anything.
                Err(error) if error.contains("refused") || method == Method::GET || route.is_empty() => error,
                // Whether it was done nobody knows. The next request looks for the owner: this one may be asleep.
                Err(error) => {
                    let asked = std::mem::take(route);
                    return Err(format!("{asked}: {error}"));
                }
            };
            if Instant::now() > end {
                return Err(why);
            }
            self.record().refused += 1;
            sleep(REST).await;
            if let Ok(owner) = self.look_up(admin, key).await {
                *route = owner;
            }
        }
    }

    async fn write(&self, route: &mut String, key: &str) {
        let (number, floor) = {
            let mut record = self.record();
            let floor = record.floor(key);
            let noted = record.key(key);
            noted.sent += 1;
            noted.unknown.insert(noted.sent);
            (noted.sent, floor)
        };
        let answer = self.ask(Method::PUT, route, key, format!("{key}={number}")).await;
        let mut record = self.record();
        match answer {
            Ok(reply) => {
                record.writes += 1;
                let noted = record.key(key);
                noted.unknown.remove(&number);
                noted.acknowledged = number;
                if self.exclusive {
                    record.answered(key, floor, &reply);
                }
            }
            Err(why) => record.fail(format!("write {number} of {key}: {why}")),
        }
    }

    async fn read(&self, route: &mut String, key: &str) -> Result<u64, String> {
        let floor = self.record().floor(key);
        let answer = self.ask(Method::GET, route, key, String::new()).await;
        let mut record = self.record();
        let reply = answer.inspect_err(|why| record.fail(format!("read of {key}: {why}")))?;
        record.reads += 1;
        let text = reply.text();
        let value = match reply.status {
            StatusCode::NOT_FOUND => Some(0),
            _ => text.strip_prefix(&format!("{key}=")).and_then(|number| number.parse().ok()),
        };
        match value {
            Some(value) if self.keeps_values => record.read(key, floor, value),
            Some(_) => {}
            None => record.lie(key, &format!("{text:?} was read, which was never written")),
        }
        if self.exclusive {
            record.answered(key, floor, &reply);
        }
        Ok(value.unwrap_or(0))
    }
}

/// An answer as it counts: an owner's, or none that may be asked for again; else why to ask again.
fn settled(reply: Reply, route: &str) -> Result<Result<Reply, String>, String> {
    let why = format!("{route} answers {}: {}", reply.status, reply.text());
    match reply.status {
        StatusCode::OK | StatusCode::NO_CONTENT => Ok(Ok(reply)),
        // The service says that it has no such key; whoever has no such shard does not say so.
        StatusCode::NOT_FOUND if reply.header("partage-epoch").is_some() => Ok(Ok(reply)),
        StatusCode::MISDIRECTED_REQUEST => Err(why),
        StatusCode::SERVICE_UNAVAILABLE if !why.contains("may or may not") => Err(why),
        _ => Ok(Err(why)),
    }
}

impl Load {
    /// Begins to write and read `keyspace`, whose owners `admin` names.
    pub fn start(admin: &Admin, keyspace: &str, exclusive: bool) -> Load {
        let door = Door::Asked { admin: admin.clone(), http: Http::default() };
        Load::begin(door, keyspace, format!("/kv/{keyspace}/"), exclusive, exclusive)
    }

    /// Begins to write and read `table`. What is acknowledged is on disks, so nothing may be lost, whoever dies; and a replica
    /// that leads no more answers nothing.
    pub fn of_table(admin: &Admin, table: &str) -> Load {
        let door = Door::Asked { admin: admin.clone(), http: Http::default() };
        Load::begin(door, table, format!("/v1/tables/{table}/keys/"), true, true)
    }

    /// Begins to write and read `keyspace` through `router`. No node dies and no shard moves meanwhile, so that what
    /// was acknowledged is there, however it is owned.
    pub fn routed(router: &Router, keyspace: &str, exclusive: bool) -> Load {
        let path = format!("/kv/{keyspace}/");
        Load::begin(Door::Routed(router.clone()), keyspace, path, exclusive, true)
    }

    fn begin(door: Door, keyspace: &str, path: String, exclusive: bool, keeps_values: bool) -> Load {
        let shared = Arc::new(Shared {
            keyspace: keyspace.to_owned(),
            path,
            exclusive,
            keeps_values,
            door,
            record: Mutex::default(),
        });
        let stop = watch::Sender::new(false);
        let mut clients = JoinSet::new();
        for number in 0..KEYS {
            let key = format!("key{number}");
            clients.spawn(client(shared.clone(), key.clone(), stop.subscribe(), true));
            clients.spawn(client(shared.clone(), key, stop.subscribe(), false));
        }
        Load { shared, stop, clients }
    }

    /// What `node` has now may be lost.
    pub fn may_lose(&self, node: &str) {
        for key in self.shared.record().keys.values_mut() {
            key.may_lose |= key.owners.get(&key.epoch).is_some_and(|owner| owner == node);
        }
    }

    /// What the clients have been told so far.
    pub fn account(&self) -> Account {
        let record = self.shared.record();
        Account {
            writes: record.writes,
            reads: record.reads,
            refused: record.refused,
            failed: record.failed,
            failures: record.failures.clone(),
            epochs: record.keys.iter().map(|(name, key)| (name.clone(), key.epoch)).collect(),
        }
    }

    /// What was answered that cannot be so: two owners, an acknowledged write that is lost.
    pub fn lies(&self) -> Vec<String> {
        self.shared.record().lies.clone()
    }

    /// Waits until every key has been written by that many more writes and read by as many more reads.
    pub async fn rounds(&self, more: u64) {
        let begin = self.account();
        let enough = more * KEYS as u64;
        until("the clients are answered", || async {
            let now = self.account();
            if now.writes >= begin.writes + enough && now.reads >= begin.reads + enough {
                Ok(())
            } else {
                Err(format!("{begin:?} then {now:?}"))
            }
        })
        .await;
    }

    /// Ends the clients, reads every key a last time, and fails if a node has lied.
    pub async fn finish(mut self) -> Account {
        self.stop.send_replace(true);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
        let account = self.account();
        let keys: Vec<String> = self.shared.record().keys.keys().cloned().collect();
        for key in &keys {
            let last = self.shared.read(&mut String::new(), key).await;
            assert!(last.is_ok(), "{key} cannot be read: {last:?}");
        }
        let lies = self.shared.record().lies.clone();
        assert!(lies.is_empty(), "{} lies, with {account:?}:\n  {}", lies.len(), lies.join("\n  "));
        assert!(account.writes > 0 && account.reads > 0, "nothing was done: {account:?}");
        account
    }
}

async fn client(shared: Arc<Shared>, key: String, stop: watch::Receiver<bool>, writes: bool) {
    let mut route = String::new();
    while !*stop.borrow() {
        if writes {
            shared.write(&mut route, &key).await;
        } else {
            // A failure is in the record.
            let _ = shared.read(&mut route, &key).await;
        }
        sleep(REST).await;
    }
}
