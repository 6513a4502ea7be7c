//! Whichever node is pulled out under load, no request of a table fails beyond the retry.
//!
//! Each client has a row of its own. It names each write by an idempotency key, and reads the row after it. A request that has no
//! answer is sent again once, at once, under the same key, through the next node: the node that was asked may be the one that was
//! pulled out. A node that takes no connection was sent nothing: its turn goes to the next one. What fails then is counted, and
//! is not to be. Where another node than the asked one is pulled out, the client notices nothing: the asked node sends the
//! request again itself.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use chaos::admin::leader;
use chaos::cluster::Cluster;
use chaos::http::{Http, Reply};
use chaos::until;
use hyper::{Method, StatusCode};
use partage_wire::json::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// One more than replicas, so that a node can be drained.
const NODES: [&str; 4] = ["t1", "t2", "t3", "t4"];

const CLIENTS: usize = 24;

/// Rest between two requests of one client.
const REST: Duration = Duration::from_millis(10);

/// What the clients were told.
#[derive(Debug, Default, Clone)]
struct Tally {
    /// Requests that had their answer, by the first or another try.
    done: usize,
    /// Why others were needed: the first answers, or what became of their connections.
    again: Vec<String>,
    /// The last answers to those that had none; lost and wrong rows too.
    failed: Vec<String>,
}

struct Client {
    http: Http,
    addresses: Vec<String>,
    path: String,
    turn: usize,
    tally: Arc<Mutex<Tally>>,
}

impl Client {
    /// One try, at the next node that takes the connection.
    async fn one(&mut self, method: &Method, name: &str, body: &str) -> Result<Reply, String> {
        let named = [("idempotency-key", name)];
        let headers = if *method == Method::PUT { &named[..] } else { &[] };
        let mut last = String::new();
        for _ in 0..self.addresses.len() {
            self.turn += 1;
            let address = &self.addresses[self.turn % self.addresses.len()];
            let asked = self.http.ask(method.clone(), address, &self.path, headers, body.to_owned());
            match asked.await {
                Err(error) if error.contains("refused") => last = error,
                Err(error) => return Err(format!("{address}: {error}")),
                Ok(reply) if matches!(reply.status, StatusCode::OK | StatusCode::NO_CONTENT) => {
                    return Ok(reply);
                }
                Ok(reply) => return Err(format!("{address}: {}: {}", reply.status, reply.text())),
            }
        }
        Err(last)
    }

    /// A request: a try, and another one if that fails.
    async fn request(&mut self, method: Method, name: &str, body: &str) -> Option<Reply> {
        let answered = match self.one(&method, name, body).await {
            Ok(reply) => Ok(reply),
            Err(first) => {
                let second = self.one(&method, name, body).await;
                self.tally.lock().unwrap().again.push(format!("{method} {name}: {first}"));
                second.map_err(|second| format!("{method} {name}: {first}; and then {second}"))
            }
        };
        let mut tally = self.tally.lock().unwrap();
        match answered {
            Ok(reply) => {
                tally.done += 1;
                Some(reply)
            }
            Err(why) => {
                tally.failed.push(why);
                None
            }
        }
    }

    async fn go_on(mut self, number: usize, stop: watch::Receiver<bool>) {
        let mut value = 0;
        while !*stop.borrow() {
            value += 1;
            let (name, text) = (format!("write-{number}-{value}"), value.to_string());
            let written = self.request(Method::PUT, &name, &text).await.is_some();
            let found = self.request(Method::GET, &name, "").await.map(|reply| reply.text());
            if let Some(found) = found.filter(|found| written && *found != text) {
                self.tally
                    .lock()
                    .unwrap()
                    .failed
                    .push(format!("{name} is acknowledged, and {found} is read"));
            }
            sleep(REST).await;
        }
    }
}

/// Clients at work, and what they count.
struct Clients {
    tally: Arc<Mutex<Tally>>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Clients {
    fn start(cluster: &Cluster) -> Clients {
        let (tally, stop) = (Arc::<Mutex<Tally>>::default(), watch::Sender::new(false));
        let addresses: Vec<String> = cluster.addresses().into_values().collect();
        let mut tasks = JoinSet::new();
        for number in 0..CLIENTS {
            let client = Client {
                http: Http::default(),
                addresses: addresses.clone(),
                path: format!("/v1/tables/stock/keys/row-{number}"),
                turn: number,
                tally: Arc::clone(&tally),
            };
            tasks.spawn(client.go_on(number, stop.subscribe()));
        }
        Clients { tally, stop, tasks }
    }

    fn so_far(&self) -> Tally {
        self.tally.lock().unwrap().clone()
    }

    /// Waits until so many requests of each client, in the mean, are answered; fails with the first that is not.
    async fn rounds(&self, more: usize) {
        let before = self.so_far().done;
        until("the clients are answered", || async {
            let now = self.so_far();
            assert!(now.failed.is_empty(), "{now:#?}");
            if now.done >= before + more * CLIENTS { Ok(()) } else { Err(format!("{before}, {now:?}")) }
        })
        .await;
    }

    async fn finish(mut self) -> Tally {
        self.stop.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        self.so_far()
    }
}

/// A table of three replicas on four nodes.
async fn start() -> (Cluster, Clients) {
    let mut cluster = Cluster::start(0).await;
    for node in NODES {
        cluster.add_table_node(node).await;
    }
    cluster.admin.table("stock").await;
    let clients = Clients::start(&cluster);
    clients.rounds(5).await;
    (cluster, clients)
}

/// A node that leads something.
async fn leads(cluster: &Cluster, node: &str) {
    until(&format!("{node} leads something"), || async {
        let shards = cluster.admin.shards("stock").await;
        if shards.iter().any(|shard| leader(shard) == Some(node)) {
            Ok(())
        } else {
            Err(format!("{shards:?}"))
        }
    })
    .await;
}

/// All was answered, by the second try at the latest.
async fn ends_well(clients: Clients) -> Tally {
    clients.rounds(5).await;
    let tally = clients.finish().await;
    assert!(tally.failed.is_empty(), "{tally:#?}");
    tally
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_beyond_the_retry_when_a_node_is_killed() {
    let _turn = chaos::turn().await;
    let (mut cluster, clients) = start().await;
    for node in ["t1", "t2"] {
        leads(&cluster, node).await;
        cluster.node_mut(node).process.kill();
        clients.rounds(20).await;
        cluster.restart_node(node).await;
        cluster.admin.settled().await;
        clients.rounds(5).await;
    }
    let tally = ends_well(clients).await;
    assert!(!tally.again.is_empty(), "some requests were at the nodes that were killed: {tally:?}");
    let passed_on = tally.again.iter().find(|why| why.contains("unknown_outcome"));
    assert_eq!(passed_on, None, "the nodes that were asked have sent the writes again themselves");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_beyond_the_retry_when_a_node_is_stopped_in_order() {
    let _turn = chaos::turn().await;
    let (mut cluster, clients) = start().await;
    let node = "t1";
    leads(&cluster, node).await;
    let process = &mut cluster.node_mut(node).process;
    process.terminate();
    let status = process.end().await;
    assert!(status.success(), "{node} did not stop in order: {status}");
    clients.rounds(20).await;
    cluster.restart_node(node).await;
    cluster.admin.settled().await;
    ends_well(clients).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_beyond_the_retry_when_a_node_is_drained_and_taken_away() {
    let _turn = chaos::turn().await;
    let (mut cluster, clients) = start().await;
    let node = "t1";
    leads(&cluster, node).await;
    let (reason, name) = ("a new disk".to_owned(), node.to_owned());
    let drain = Command::DrainNode { node: name.clone(), reason, max_down: None };
    cluster.admin.command(drain).await.unwrap();
    until(&format!("{node} has nothing any more"), || async {
        let shards = cluster.admin.shards("stock").await;
        let has = |shard: &&partage_wire::json::Shard| shard.replicas.iter().any(|one| one.node == node);
        match shards.iter().find(has) {
            Some(shard) => Err(format!("{shard:?}")),
            None => Ok(()),
        }
    })
    .await;
    cluster.node_mut(node).process.kill();
    clients.rounds(20).await;
    cluster.restart_node(node).await;
    cluster.admin.command(Command::UndrainNode { node: name }).await.unwrap();
    clients.rounds(5).await;
    cluster.admin.settled().await;
    let tally = ends_well(clients).await;
    let passed_on = tally.again.iter().find(|why| why.contains("unknown_outcome"));
    assert_eq!(passed_on, None, "a drain leaves nothing unknown");
}
