//! Several coordinators on one store: one leads, the others pass on, and nobody has to be told who.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

mod door;

use bytes::Bytes;
use door::PATIENCE;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use partage_coordination::embedded::Embedded;
use partage_coordination::{Coordination, SessionId, Transaction};
use partage_coordinator::{Backing, Config, Coordinator};
use partage_core::settings::Settings;
use partage_maps::follow;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};

/// Too long for anything here to wait for its end.
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(500);

/// A coordinator with a runtime of its own, so that it can be killed.
struct One {
    coordinator: Coordinator,
    runtime: Runtime,
}

struct Several {
    store: Arc<Embedded>,
    session: Duration,
    all: BTreeMap<String, One>,
    client: Client<HttpConnector, Full<Bytes>>,
}

async fn until<T, F>(what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let latest = Instant::now() + PATIENCE;
    loop {
        match look().await {
            Ok(seen) => return seen,
            Err(seen) => assert!(Instant::now() < latest, "{what}: at last {seen}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
}

impl Several {
    async fn start(session: Duration, ids: &[&str]) -> Several {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let store = Embedded::in_memory();
        let mut several = Several { store, session, all: BTreeMap::new(), client };
        for id in ids {
            several.add(id).await;
        }
        several
    }

    async fn add(&mut self, id: &str) {
        let backing = Backing::Open { coordination: self.store.clone(), session: self.session };
        let settings = Settings { settle_ms: 50, ..backing.default_settings() };
        let listen = "127.0.0.1:0".parse().unwrap();
        let config = Config { backing, settings, id: Some(id.to_owned()), ..Config::new(listen) };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let coordinator = runtime.spawn(Coordinator::start(config)).await.unwrap().unwrap();
        self.all.insert(id.to_owned(), One { coordinator, runtime });
    }

    fn address(&self, id: &str) -> String {
        self.all[id].coordinator.address().to_string()
    }

    async fn ask(&self, id: &str, path: &str, body: Option<Value>) -> Result<(u16, Value), String> {
        let uri = format!("http://{}{path}", self.address(id));
        let request = match &body {
            None => Request::get(uri),
            Some(_) => Request::post(uri).header("content-type", "application/json"),
        };
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let answer = self.client.request(request.body(Full::from(body)).unwrap());
        let answer = answer.await.map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
    }

    /// The leader and its term, as `id` has it.
    async fn leader(&self, id: &str) -> (String, u64) {
        until("somebody leads", async || {
            let (_, body) = self.ask(id, "/v1/coordinators", None).await?;
            let leader =
                body["coordinators"].as_array().into_iter().flatten().find(|one| one["leads"] == true);
            let leader = leader.ok_or_else(|| body.to_string())?;
            Ok((leader["id"].as_str().unwrap().to_owned(), leader["term"].as_u64().unwrap()))
        })
        .await
    }

    /// One that does not lead.
    async fn other(&self) -> String {
        let first = self.all.keys().next().unwrap().clone();
        let (leader, _) = self.leader(&first).await;
        self.all.keys().find(|id| **id != leader).unwrap().clone()
    }

    async fn create(&self, id: &str, keyspace: &str) -> (u16, Value) {
        let sharding = json!({"type": "fixed", "hash": "xxh3-64", "shards": 8});
        let keyspace = json!({"name": keyspace, "sharding": sharding});
        let body = json!({"do": {"command": "create_keyspace", "keyspace": keyspace}});
        self.ask(id, "/v1/commands", Some(body)).await.unwrap()
    }

    /// The names of the keyspaces, as `id` has them.
    async fn keyspaces(&self, id: &str) -> Result<Vec<String>, String> {
        let (status, body) = self.ask(id, "/v1/keyspaces", None).await?;
        let rows = body["keyspaces"].as_array().ok_or_else(|| format!("{status} {body}"))?;
        Ok(rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect())
    }

    /// As `kill -9` does: nothing is said, its session ends by its time.
    fn kill(&mut self, id: &str) {
        self.all.remove(id).unwrap().runtime.shutdown_background();
    }

    async fn stop(&mut self, id: &str) {
        let One { coordinator, runtime } = self.all.remove(id).unwrap();
        runtime.spawn(coordinator.stop()).await.unwrap();
        runtime.shutdown_background();
    }
}

impl Drop for Several {
    fn drop(&mut self) {
        for (_, one) in std::mem::take(&mut self.all) {
            one.runtime.shutdown_background();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a15_those_that_stand_by_answer_questions_and_pass_changes_on() {
    let several = Several::start(LONG, &["c1", "c2", "c3"]).await;
    let (leader, term) = several.leader("c1").await;
    for id in ["c1", "c2", "c3"] {
        assert_eq!(several.leader(id).await, (leader.clone(), term), "all agree");
        let (_, body) = several.ask(id, "/v1/coordinators", None).await.unwrap();
        let rows = body["coordinators"].as_array().unwrap();
        assert_eq!(rows.len(), 3, "{body}");
        assert_eq!((&rows[0]["leads"], &rows[1]["leads"]), (&json!(true), &json!(false)), "{body}");
        let ready = until("ready", async || match several.ask(id, "/health/ready", None).await? {
            (200, _) => Ok(()),
            (status, _) => Err(status.to_string()),
        });
        ready.await;
    }
    for (at, id) in ["c1", "c2", "c3"].into_iter().enumerate() {
        let (status, body) = several.create(id, &format!("k{at}")).await;
        assert_eq!(status, 200, "{body}");
    }
    for id in ["c1", "c2", "c3"] {
        assert_eq!(several.keyspaces(id).await.unwrap(), ["k0", "k1", "k2"]);
        let (status, body) = several.create(id, "k0").await;
        assert_eq!(
            (status, &body["error"]["kind"]),
            (409, &json!("already_exists")),
            "a refusal comes back too"
        );
        let (status, body) = several.ask(id, "/nowhere", None).await.unwrap();
        assert_eq!(status, 404, "{body}");
    }
}

/// The session lives for ten minutes: only that the leader says goodbye can let another one lead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a15_a_leader_that_leaves_in_order_is_followed_at_once() {
    let mut several = Several::start(LONG, &["c1", "c2"]).await;
    let (first, term) = several.leader("c1").await;
    assert_eq!(several.create(&first, "k").await.0, 200);
    let other = several.other().await;
    several.stop(&first).await;
    assert_eq!(several.leader(&other).await, (other.clone(), term + 1));
    assert_eq!(several.keyspaces(&other).await.unwrap(), ["k"]);
    several.add("c3").await;
    assert_eq!(several.leader("c3").await, (other, term + 1), "who comes later stands by");
}

/// A15, M2: the leader is killed; whoever listens to another coordinator goes on listening to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a15_m2_a_leader_that_is_killed_is_followed_and_maps_go_on() {
    let mut several = Several::start(SHORT, &["c1", "c2"]).await;
    let (first, term) = several.leader("c1").await;
    let other = several.other().await;
    assert_eq!(several.create(&other, "before").await.0, 200);
    let (cache, following) = follow(vec![several.address(&other)], std::iter::empty().collect(), None);
    let hears = async |name: &str| {
        until("the map comes", async || {
            let routes = cache.full();
            routes.keyspace(name).map(|_| ()).ok_or_else(|| format!("no {name}"))
        })
        .await;
    };
    hears("before").await;
    several.kill(&first);
    // What is sent to a leader at its end has an outcome that nobody knows; what is asked while nobody leads waits.
    let created = until("a keyspace after it", async || match several.create(&other, "after").await {
        (200 | 409, _) => Ok(()),
        (504, body) if body["error"]["kind"] == "unknown" => Err(body.to_string()),
        (status, body) => panic!("{status} {body}"),
    });
    created.await;
    assert_eq!(several.leader(&other).await, (other.clone(), term + 1));
    hears("after").await;
    assert!(cache.full().keyspace("before").is_some(), "what was there stays");
    assert_eq!(cache.streams(), 1, "the stream outlived the leader");
    assert_eq!(several.keyspaces(&other).await.unwrap(), ["after", "before"]);
    drop(following);
}

/// O10: whose session is over leads no more, and comes back to stand by or lead under a later term.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o10_a_leader_whose_session_is_ended_steps_down() {
    let several = Several::start(SHORT, &["c1", "c2"]).await;
    let (first, term) = several.leader("c1").await;
    assert_eq!(several.create(&first, "k").await.0, 200);
    let leader = several.store.read(&"election/leader".parse().unwrap()).await.unwrap().unwrap();
    let session: SessionId = leader.session.unwrap();
    several.store.end_session(session).await.unwrap();
    let late = Transaction::new()
        .when(&"election/leader".parse().unwrap(), partage_coordination::Expected::At(leader.version));
    assert!(several.store.commit(late).await.is_err(), "its fence is gone");
    until("a later term", async || {
        let (leader, now) = several.leader("c2").await;
        if now > term { Ok(leader) } else { Err(format!("{leader} at {now}")) }
    })
    .await;
    for id in ["c1", "c2"] {
        let answers = until("it answers", async || several.keyspaces(id).await);
        assert_eq!(answers.await, ["k"]);
    }
}
