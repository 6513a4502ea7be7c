//! Several coordinators on one store: one leads, the others pass on, and nobody has to be told who.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

mod altered;
mod door;

use altered::Altered;
use bytes::Bytes;
use door::PATIENCE;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use partage_coordination::embedded::Embedded;
use partage_coordination::{Coordination, Expected, Key, SessionId, Transaction};
use partage_coordinator::{Backing, Config, Coordinator};
use partage_core::base::name::KeyspaceName;
use partage_core::base::settings::Settings;
use partage_maps::MapClient;
use partage_wire::stored::map_file::{head_key, open_head};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
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

/// Who keeps the maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// The store.
    InStore,
    /// The coordinators, as metadata servers.
    InFiles,
}

struct Several {
    store: Arc<Embedded>,
    kept: Kept,
    /// A directory for each coordinator, by its id.
    files: TempDir,
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
    async fn start(kept: Kept, session: Duration, ids: &[&str]) -> Several {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let (store, files) = (Embedded::in_memory(), tempfile::tempdir().unwrap());
        let mut several = Several { store, kept, files, session, all: BTreeMap::new(), client };
        for id in ids {
            several.add(id).await;
        }
        several
    }

    async fn add(&mut self, id: &str) {
        self.add_on(self.store.clone(), id).await;
    }

    async fn add_on(&mut self, coordination: Arc<dyn Coordination>, id: &str) {
        let data_dir = (self.kept == Kept::InFiles).then(|| self.files.path().join(id));
        let backing = Backing::Open { coordination, data_dir, session: self.session };
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

    async fn command(&self, id: &str, command: Value) -> (u16, Value) {
        self.ask(id, "/v1/commands", Some(json!({ "do": command }))).await.unwrap()
    }

    /// A keyspace of partitions, each of which changes its map once.
    async fn create_named(&self, id: &str, keyspace: &str) {
        // One that nobody has to wait for after it was deleted.
        let keyspace = json!({"name": keyspace, "sharding": {"type": "named"}, "ownership": "eventual"});
        let (status, body) =
            self.command(id, json!({"command": "create_keyspace", "keyspace": keyspace})).await;
        assert_eq!(status, 200, "{body}");
    }

    /// Changes the map of a keyspace; what is sent to a leader at its end is sent again.
    async fn register(&self, id: &str, keyspace: &str, partition: &str) {
        until("a partition", async || {
            let command =
                json!({"command": "register_partitions", "keyspace": keyspace, "partitions": [partition]});
            match self.command(id, command).await {
                (200 | 409, _) => Ok(()),
                (503 | 504, body) => Err(body.to_string()),
                (status, body) => panic!("{status} {body}"),
            }
        })
        .await;
    }

    async fn shards(&self, id: &str, keyspace: &str) -> Result<usize, String> {
        let (status, body) = self.ask(id, &format!("/v1/keyspaces/{keyspace}/shards"), None).await?;
        body["shards"].as_array().map(Vec::len).ok_or_else(|| format!("{status} {body}"))
    }

    /// Whether the store has that key of a keyspace's map.
    async fn has(&self, keyspace: &str, key: &str) -> bool {
        let key = format!("keyspaces/{keyspace}/map/{key}").parse().unwrap();
        self.store.read(&key).await.unwrap().is_some()
    }

    /// Waits until more than one keep the map: who has just come may not have been seen when it was created.
    async fn is_safe(&self, keyspace: &str) {
        until("it is kept by two", async || match self.kept {
            Kept::InFiles if self.servers(keyspace).await.len() < 2 => Err("it is not".to_owned()),
            Kept::InStore | Kept::InFiles => Ok(()),
        })
        .await;
    }

    /// Who keeps the map of a keyspace.
    async fn servers(&self, keyspace: &str) -> Vec<String> {
        let name = KeyspaceName::new(keyspace).unwrap();
        let key = head_key(&name).parse().unwrap();
        let entry = self.store.read(&key).await.unwrap().unwrap();
        open_head(&name, &entry.value).unwrap().servers.iter().map(ToString::to_string).collect()
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

/// Each of these twice: nobody can tell who keeps the maps.
macro_rules! whoever_keeps_the_maps {
    ($($test:ident)*) => {
        whoever_keeps_the_maps! { of_all: $($test)* }
    };
    ($of:ident: $($test:ident)*) => {
        mod $of {
        mod in_the_store {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::super::$test(super::super::Kept::InStore).await;
            })*
        }
        mod in_files {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::super::$test(super::super::Kept::InFiles).await;
            })*
        }
        }
    };
}

#[path = "several/faults.rs"]
mod faults;

whoever_keeps_the_maps! {
    a15_those_that_stand_by_answer_questions_and_pass_changes_on
    a15_a_leader_that_leaves_in_order_is_followed_at_once
    a15_m2_a_leader_that_is_killed_is_followed_and_maps_go_on
    o10_a_leader_whose_session_is_ended_steps_down
    a_keyspace_that_is_deleted_may_be_created_again
    what_was_decided_is_there_after_all_have_been_stopped
}

async fn a15_those_that_stand_by_answer_questions_and_pass_changes_on(kept: Kept) {
    let several = Several::start(kept, LONG, &["c1", "c2", "c3"]).await;
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

/// The session lives for ten minutes: another one can lead only because the leader gives its session up.
async fn a15_a_leader_that_leaves_in_order_is_followed_at_once(kept: Kept) {
    let mut several = Several::start(kept, LONG, &["c1", "c2"]).await;
    let (first, term) = several.leader("c1").await;
    assert_eq!(several.create(&first, "k").await.0, 200);
    several.is_safe("k").await;
    let other = several.other().await;
    several.stop(&first).await;
    assert_eq!(several.leader(&other).await, (other.clone(), term + 1));
    assert_eq!(several.keyspaces(&other).await.unwrap(), ["k"]);
    several.add("c3").await;
    assert_eq!(several.leader("c3").await, (other, term + 1), "who comes later stands by");
}

/// A15, M2: the leader is killed; whoever listens to another coordinator goes on listening to it.
async fn a15_m2_a_leader_that_is_killed_is_followed_and_maps_go_on(kept: Kept) {
    let mut several = Several::start(kept, SHORT, &["c1", "c2"]).await;
    let (first, term) = several.leader("c1").await;
    let other = several.other().await;
    assert_eq!(several.create(&other, "before").await.0, 200);
    several.is_safe("before").await;
    let maps = MapClient::follow(vec![several.address(&other)], std::iter::empty().collect(), None);
    let cache = maps.cache();
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
}

/// O10: whose session is over leads no more, and comes back to stand by or lead under a later term.
async fn o10_a_leader_whose_session_is_ended_steps_down(kept: Kept) {
    let several = Several::start(kept, SHORT, &["c1", "c2"]).await;
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

async fn a_keyspace_that_is_deleted_may_be_created_again(kept: Kept) {
    let several = Several::start(kept, LONG, &["c1", "c2", "c3"]).await;
    for _ in 0..3 {
        several.create_named("c1", "k").await;
        several.register("c2", "k", "north").await;
        assert_eq!(several.has("k", "metadata").await, kept == Kept::InFiles);
        several.is_safe("k").await;
        let (status, body) =
            several.command("c2", json!({"command": "delete_keyspace", "keyspace": "k"})).await;
        assert_eq!(status, 200, "{body}");
        until("it is gone", async || match several.keyspaces("c3").await?.as_slice() {
            [] => Ok(()),
            there => Err(there.join(", ")),
        })
        .await;
        assert!(!several.has("k", "metadata").await && !several.has("k", "head").await);
    }
}

async fn what_was_decided_is_there_after_all_have_been_stopped(kept: Kept) {
    let mut several = Several::start(kept, LONG, &["c1", "c2", "c3"]).await;
    for keyspace in ["k0", "k1", "k2"] {
        several.create_named("c1", keyspace).await;
        for partition in ["north", "east", "south"] {
            several.register("c2", keyspace, partition).await;
        }
    }
    for id in ["c1", "c2", "c3"] {
        several.stop(id).await;
    }
    for id in ["c3", "c2", "c1"] {
        several.add(id).await;
    }
    for id in ["c1", "c2", "c3"] {
        for keyspace in ["k0", "k1", "k2"] {
            let shards = until("a keyspace", async || several.shards(id, keyspace).await);
            assert_eq!(shards.await, 3, "{keyspace}");
        }
    }
    several.register("c1", "k1", "west").await;
    assert_eq!(several.shards("c3", "k1").await.unwrap(), 4);
}

/// T6, T8: three servers keep a map where there are three; until then those that are there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t8_a_map_is_kept_by_three_as_soon_as_there_are_three() {
    let mut several = Several::start(Kept::InFiles, LONG, &["c1"]).await;
    assert_eq!(several.create("c1", "k").await.0, 200);
    assert_eq!(several.servers("k").await, ["c1"]);
    for id in ["c2", "c3", "c4"] {
        several.add(id).await;
    }
    until("three keep it", async || match several.servers("k").await {
        three if three.len() == 3 => Ok(()),
        some => Err(some.join(", ")),
    })
    .await;
    assert_eq!(several.create("c1", "later").await.0, 200);
    assert_eq!(several.servers("later").await.len(), 3, "three of four");
}

/// Two of two make a majority; the one that is left goes on alone, loses nothing, and takes the other in again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_left_of_two_goes_on() {
    let mut several = Several::start(Kept::InFiles, SHORT, &["c1", "c2"]).await;
    several.create_named("c1", "k").await;
    for (at, leader_stays) in [(0, true), (1, false)] {
        for keyspace in ["k", "meanwhile"].iter().take(at + 1) {
            until("both keep it", async || match several.servers(keyspace).await {
                both if both.len() == 2 => Ok(()),
                one => Err(one.join(", ")),
            })
            .await;
        }
        let (leader, _) = several.leader("c1").await;
        let other = several.other().await;
        let (gone, left) = if leader_stays { (other, leader) } else { (leader, other) };
        several.kill(&gone);
        if leader_stays {
            // It is drawn still, as its session has not ended yet.
            several.create_named(&left, "meanwhile").await;
        }
        several.register(&left, "k", &format!("p{at}")).await;
        assert_eq!(several.servers("k").await, std::slice::from_ref(&left));
        several.add(&gone).await;
        assert_eq!(until("its map", async || several.shards(&gone, "k").await).await, at + 1);
    }
}

/// A root whose maps the store kept, restored from a backup for instance: they go to the metadata servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn maps_that_are_stored_inline_move_to_metadata_servers() {
    let mut several = Several::start(Kept::InStore, LONG, &["c1"]).await;
    several.create_named("c1", "k").await;
    several.register("c1", "k", "north").await;
    assert!(several.has("k", "head").await && !several.has("k", "metadata").await);
    several.stop("c1").await;
    several.kept = Kept::InFiles;
    several.add("c1").await;
    assert_eq!(until("it is there", async || several.shards("c1", "k").await).await, 1);
    assert!(!several.has("k", "head").await && several.has("k", "metadata").await);
    several.register("c1", "k", "south").await;
    several.stop("c1").await;
    several.add("c1").await;
    assert_eq!(until("it is there", async || several.shards("c1", "k").await).await, 2);
}

/// The files of one cluster are not those of another, whatever address was given by mistake.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_root_costs_nobody_his_maps() {
    let mut several = Several::start(Kept::InFiles, LONG, &["c1"]).await;
    several.create_named("c1", "k").await;
    several.register("c1", "k", "north").await;
    several.stop("c1").await;
    let right = std::mem::replace(&mut several.store, Embedded::in_memory());
    several.add("c1").await;
    assert!(until("it answers", async || several.keyspaces("c1").await).await.is_empty());
    several.stop("c1").await;
    several.store = right;
    several.add("c1").await;
    assert_eq!(until("it is there", async || several.shards("c1", "k").await).await, 1);
}

/// Somebody deletes everything under a coordinator that is there: nothing new begins on what is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_that_was_emptied_under_a_coordinator_is_not_begun_anew() {
    let mut several = Several::start(Kept::InStore, LONG, &["c1"]).await;
    several.create_named("c1", "k").await;
    let all = partage_coordination::Scope::All;
    loop {
        let entries = several.store.list(&all, None, usize::MAX).await.unwrap().entries;
        if entries.is_empty() {
            break;
        }
        for (key, _) in entries {
            several.store.delete(&key, Expected::Present).await.unwrap();
        }
    }
    let (status, body) = several.create("c1", "late").await;
    assert!(status >= 500, "no commit goes through: {status} {body}");
    until("it leads no more", async || match several.keyspaces("c1").await {
        Err(_) => Ok(()),
        Ok(_) => Err("it answers".to_owned()),
    })
    .await;
    // It tries again and again; its first tries come within half a second.
    for _ in 0..20 {
        let entries = several.store.list(&all, None, 10).await.unwrap().entries;
        assert!(entries.is_empty(), "it has begun anew: {entries:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    several.stop("c1").await;
    several.add("c1").await;
    let begun = until("a new process begins a new cluster", async || several.keyspaces("c1").await).await;
    assert!(begun.is_empty());
}

/// What was decided and not kept for certain is not said to be undone: whoever asks again would do it twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_a_deposed_leader_could_not_store_is_answered_so() {
    let mut several = Several::start(Kept::InStore, LONG, &[]).await;
    let store = Altered::of(several.store.clone());
    several.add_on(store.clone(), "c1").await;
    several.leader("c1").await;
    // It loses the lead and does not hear of it: its look at the election key is under way. If it looks at its session just
    // then, it has heard of it, and the next leader is tried.
    let election: Key = "election/leader".parse().unwrap();
    let mut tries = 0..10;
    let (status, body) = loop {
        let leader = several.store.read(&election).await.unwrap().unwrap();
        store.hold_reads_of(Some(election.clone()));
        several.store.end_session(leader.session.unwrap()).await.unwrap();
        let (status, body) = several.create("c1", "late").await;
        store.hold_reads_of(None);
        if body["error"]["kind"] != "unavailable" || tries.next().is_none() {
            break (status, body);
        }
        several.leader("c1").await;
    };
    // The fence has refused it: that is certain.
    assert_eq!((status, &body["error"]["kind"]), (503, &json!("not_stored")), "{body}");
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("nothing was changed: this coordinator leads no more"), "{body}");
    several.leader("c1").await;
    let there = until("a leader", async || several.keyspaces("c1").await).await;
    assert!(!there.contains(&"late".to_owned()), "{there:?}");
}
