//! Somebody touches the election of coordinators that run: the leader hears so while its session lives, and steps down.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

mod door;

use bytes::Bytes;
use door::PATIENCE;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use partage_coordination::embedded::Embedded;
use partage_coordination::{Coordination, Election, Expected, Key, Term, Transaction};
use partage_coordinator::{Backing, Config, Coordinator};
use partage_wire::json::Coordinators;
use partage_wire::stored::{ELECTION, term};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Bounds how long a leader may take to hear that it is deposed; far longer than a watch needs.
const SESSION: Duration = Duration::from_secs(20);

struct Trio {
    store: Arc<Embedded>,
    dirs: TempDir,
    all: BTreeMap<&'static str, Coordinator>,
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

impl Trio {
    async fn start(ids: &[&'static str]) -> Trio {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let (store, dirs) = (Embedded::in_memory(), tempfile::tempdir().unwrap());
        let mut trio = Trio { store, dirs, all: BTreeMap::new(), client };
        for id in ids {
            trio.add(id).await;
        }
        trio
    }

    async fn add(&mut self, id: &'static str) {
        let data_dir = Some(self.dirs.path().join(id));
        let backing = Backing::Open { coordination: self.store.clone(), data_dir, session: SESSION };
        let listen = "127.0.0.1:0".parse().unwrap();
        let config = Config { backing, id: Some(id.to_owned()), ..Config::new(listen) };
        self.all.insert(id, Coordinator::start(config).await.unwrap());
    }

    async fn get(&self, id: &str, path: &str) -> Result<Bytes, String> {
        let request = Request::get(format!("http://{}{path}", self.all[id].address())).body(Full::default());
        let answer = self.client.request(request.unwrap()).await.map_err(|error| error.to_string())?;
        Ok(answer.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes())
    }

    async fn list(&self, id: &str) -> Result<Coordinators, String> {
        let body = self.get(id, "/v1/coordinators").await?;
        serde_json::from_slice(&body).map_err(|error| error.to_string())
    }

    /// Who leads at a term above that one, as `id` says.
    async fn leader(&self, id: &str, above: u64) -> (String, u64) {
        until("somebody leads", async || {
            let all = self.list(id).await?;
            let leader = all.coordinators.iter().find(|one| one.leads);
            let leader = leader.and_then(|one| Some((one.id.clone(), one.term?)));
            leader.filter(|(_, term)| *term > above).ok_or_else(|| format!("{all:?}"))
        })
        .await
    }

    async fn delete(&self, key: &str) {
        self.store.delete(&key.parse().unwrap(), Expected::Present).await.unwrap();
    }

    async fn set_term(&self, term: u64) {
        let (key, value) = Election::last_term(&Key::new(ELECTION).unwrap(), Term::new(term)).unwrap();
        self.store.commit(Transaction::new().put(&key, value)).await.unwrap();
    }

    /// Waits until each has seen that term, those that stand by too.
    async fn all_keep(&self, expected: u64) {
        let kept = |dir: &Path| {
            let mut files = std::fs::read_dir(dir.join("terms")).ok()?;
            // One that is being written has another name.
            let file =
                files.find_map(|file| Some(file.ok()?.path()).filter(|path| path.extension().is_none()));
            term::open(&std::fs::read(file?).ok()?)
        };
        until("all keep it", async || {
            let kept: Vec<_> = self.all.keys().map(|id| kept(&self.dirs.path().join(id))).collect();
            if kept.iter().all(|kept| *kept == Some(expected)) { Ok(()) } else { Err(format!("{kept:?}")) }
        })
        .await;
    }

    async fn stop(&mut self) {
        for (_, one) in std::mem::take(&mut self.all) {
            one.stop().await;
        }
    }
}

/// D16. It is the leader's session that would go on for 20 s, so it is not what makes it step down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_a_leader_whose_election_key_is_deleted_steps_down_at_once() {
    let mut trio = Trio::start(&["c1", "c2", "c3"]).await;
    let (_, mut term) = trio.leader("c1", 0).await;
    for _ in 0..3 {
        let begun = Instant::now();
        trio.delete("election/leader").await;
        for id in ["c1", "c2", "c3"] {
            let (_, now) = trio.leader(id, term).await;
            assert!(now > term);
        }
        let all = until("one leads, and all are there", async || {
            let all = trio.list("c1").await?;
            let lead = all.coordinators.iter().filter(|one| one.leads).count();
            let well = lead == 1 && all.coordinators.len() == 3 && all.problems.is_empty();
            if well { Ok(all) } else { Err(format!("{all:?}")) }
        })
        .await;
        assert!(begun.elapsed() < SESSION / 2, "it waited for its session");
        term = all.coordinators[0].term.unwrap();
    }
    trio.stop().await;
}

/// D16: a term set back is not given again, over restarts of all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m5_a_term_that_was_set_back_is_passed_over() {
    let mut trio = Trio::start(&["c1", "c2"]).await;
    trio.leader("c1", 0).await;
    trio.set_term(30).await;
    trio.delete("election/leader").await;
    let (_, term) = trio.leader("c1", 30).await;
    trio.all_keep(term).await;
    trio.set_term(3).await;
    trio.delete("election/leader").await;
    let (_, term) = trio.leader("c1", term).await;
    trio.all_keep(term).await;
    trio.stop().await;
    trio.set_term(3).await;
    trio.add("c2").await;
    let (_, after) = trio.leader("c2", 0).await;
    assert!(after > term, "{after} was given before: {term} was the last");
    let metrics = String::from_utf8(trio.get("c2", "/metrics").await.unwrap().to_vec()).unwrap();
    assert!(!metrics.contains("partage_coordinator_alarms_total 0"), "{metrics}");
    assert!(metrics.contains("partage_coordinator_leaders 1"), "{metrics}");
    trio.stop().await;
}

/// D19: a root that is said to be another cluster's, or nobody's, is led by nobody who knew it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d11_about_that_changes_under_a_leader_stops_it() {
    let about: Key = "about".parse().unwrap();
    for value in [Some("partage coordination 1 cluster 00000000000000000000000000000007\n"), None] {
        let mut trio = Trio::start(&["c1", "c2"]).await;
        trio.leader("c1", 0).await;
        match value {
            Some(value) => {
                trio.store.commit(Transaction::new().put(&about, value)).await.unwrap();
            }
            None => trio.delete("about").await,
        }
        until("nobody leads", async || {
            match trio.store.read(&"election/leader".parse().unwrap()).await.unwrap() {
                None => Ok(()),
                Some(leader) => Err(format!("{leader:?}")),
            }
        })
        .await;
        for _ in 0..20 {
            let leader = trio.store.read(&"election/leader".parse().unwrap()).await.unwrap();
            assert_eq!(leader, None, "it leads a root that is not its cluster's");
            sleep(Duration::from_millis(100)).await;
        }
        trio.stop().await;
    }
}

/// D16: what two leaders say of themselves is an alarm of the one that was elected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_leaders_are_an_alarm() {
    let mut trio = Trio::start(&["c1"]).await;
    let (_, term) = trio.leader("c1", 0).await;
    let other = serde_json::json!({
        "id": "c9", "address": "127.0.0.1:9", "since_ms": 1, "version": "0", "leads": term + 7,
    });
    let key: Key = "coordinators/c9".parse().unwrap();
    trio.store.commit(Transaction::new().put(&key, other.to_string())).await.unwrap();
    until("the metric says two", async || {
        let text = String::from_utf8(trio.get("c1", "/metrics").await?.to_vec()).unwrap();
        let alarm = text.contains("partage_coordinator_leaders 2") && text.contains("alarms_total 1");
        if alarm { Ok(()) } else { Err(text) }
    })
    .await;
    let said = trio.list("c1").await.unwrap().problems.join("");
    assert!(said.contains("2 coordinators lead at once"), "{said}");
    until("status begins with it", async || {
        let text = String::from_utf8(trio.get("c1", "/v1/status").await?.to_vec()).unwrap();
        let status: serde_json::Value = serde_json::from_str(&text).unwrap();
        let first = status["problems"][0]["what"].as_str().unwrap_or_default().to_owned();
        if first.contains("2 coordinators lead at once") { Ok(()) } else { Err(text) }
    })
    .await;
    trio.stop().await;
}
