//! Several coordinators on a real engine, and workers and routers that know them all.
//!
//! ```text
//!  workers, routers ──► c1 ──link──┐
//!                   ──► c2 ──link──┼──► engine ◄── the test's own eyes: who leads, who is there
//!                   ──► c3 ──link──┘
//! ```

use crate::admin::{Admin, empty_keyspace};
use crate::binary::binary;
use crate::cluster::{node_is_up, start_node};
use crate::engine::Engine;
use crate::http::Http;
use crate::subnet::Subnet;
use crate::until;
use backends::link::Link;
use backends::process::{Process, outlives_its_limits};
use partage_coordination::{Backend, Coordination, Election, Key, Scope, Transaction, connect};
use partage_router::{Options, Router};
use partage_wire::json::{Answer, Coordinators};
use partage_wire::stored::{COORDINATORS, ELECTION, Presence};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

/// Sessions, leases and the time after which a node is dead are the defaults. A test may take every node away.
pub const SETTINGS: &str = "settle_ms = 500\nbrake_share = 1.0\n";

/// What is said where the list of coordinators names several leaders.
const AT_ONCE: &str = "lead at once";

/// The coordinators that led, by term.
pub type Reigns = BTreeMap<u64, BTreeSet<String>>;

/// Several coordinators. Everything goes with its handle.
pub struct Fleet {
    /// What the coordinators share.
    pub engine: Engine,
    /// The admin API of the first coordinator that listens.
    pub admin: Admin,
    coordinators: BTreeMap<String, One>,
    workers: Vec<Process>,
    /// The engine, seen past every link.
    observer: Arc<dyn Coordination>,
    election: Election,
    subnet: Subnet,
    /// Goes last: the processes write their logs into it.
    dir: TempDir,
}

/// A coordinator, and its link to the engine.
pub struct One {
    /// The process, which a test may kill, pause or end.
    pub process: Process,
    /// Where workers, routers and clients reach it, `host:port`.
    pub address: String,
    /// Its link to the engine.
    pub link: Link,
}

impl Fleet {
    /// Three coordinators c1, c2 and c3 on a server of `backend`, and `workers` workers.
    pub async fn start(backend: Backend, workers: usize) -> Fleet {
        Fleet::on(Engine::start(backend, &[]).await, workers, SETTINGS).await
    }

    /// The same on that engine, with these settings of the coordinators.
    pub async fn on(engine: Engine, workers: usize, settings: &str) -> Fleet {
        let address = engine.address();
        Fleet::through(engine, &address, workers, settings).await
    }

    /// The same, whose coordinators reach the engine at `by`.
    pub async fn through(engine: Engine, by: &str, workers: usize, settings: &str) -> Fleet {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("coordinator.toml"), settings).unwrap();
        let observer = connect(&engine.target_through(&engine.address())).await.unwrap();
        let election = Election::new(observer.clone(), &Key::new(ELECTION).unwrap()).unwrap();
        let subnet = Subnet::take();
        let ids = ["c1", "c2", "c3"];
        let addresses: Vec<String> = (1..=ids.len()).map(|one| format!("{subnet}.1:740{one}")).collect();
        let mut fleet = Fleet {
            engine,
            admin: Admin::of(addresses.clone()),
            subnet,
            coordinators: BTreeMap::new(),
            workers: Vec::new(),
            observer,
            election,
            dir,
        };
        for (id, address) in ids.into_iter().zip(addresses) {
            let listen = format!("{}.2:{}", fleet.subnet, port(&address));
            let link = Link::open(&listen, by).await;
            let process = fleet.start_coordinator(id, &address, &link);
            fleet.coordinators.insert(id.to_owned(), One { process, address, link });
        }
        fleet.whole().await;
        fleet.start_workers(workers).await;
        fleet
    }

    fn start_coordinator(&self, id: &str, address: &str, link: &Link) -> Process {
        let target = self.engine.target_through(link.address());
        let mut command = std::process::Command::new(binary("partage"));
        command.args(["coordinator", "--log-json", "--id", id, "--listen", address]);
        command.args(["--coordination", &target.to_string()]);
        command.arg("--data-dir").arg(self.path(id)).arg("--config").arg(self.path("coordinator.toml"));
        if let Some(password) = &target.password {
            command.env("PARTAGE_COORDINATION_PASSWORD", password.reveal());
        }
        Process::start(id, outlives_its_limits(&command), &self.path(&format!("{id}.log")))
    }

    async fn start_workers(&mut self, workers: usize) {
        let coordinators = self.addresses().join(",");
        let mut listen = Vec::new();
        for number in 1..=workers {
            let (id, address) = (format!("n{number}"), format!("{}.1:{}", self.subnet, 7500 + number));
            self.workers.push(start_node(self.dir.path(), &id, &address, &coordinators, &[]));
            listen.push(address);
        }
        for address in &listen {
            node_is_up(address).await;
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where the coordinators listen.
    pub fn addresses(&self) -> Vec<String> {
        self.coordinators.values().map(|one| one.address.clone()).collect()
    }

    /// The names of the coordinators, in their order.
    pub fn ids(&self) -> Vec<String> {
        self.coordinators.keys().cloned().collect()
    }

    /// The coordinator of that name, to be struck.
    pub fn one(&mut self, id: &str) -> &mut One {
        self.coordinators.get_mut(id).unwrap()
    }

    /// All coordinators, in the order of their names.
    pub fn all(&self) -> impl Iterator<Item = &One> {
        self.coordinators.values()
    }

    /// A router that knows all coordinators, and has the map of `keyspace`.
    pub async fn router(&self, keyspace: &str) -> Router {
        let router = Router::connect(self.addresses(), Options::default()).await;
        until(&format!("the map of {keyspace} is there"), || async {
            let placed = router.lookup(keyspace, b"key0").map_err(|error| error.to_string())?;
            placed.leader.as_ref().map(drop).ok_or_else(|| format!("{placed:?}"))
        })
        .await;
        router
    }

    /// Starts a coordinator again whose process has ended.
    pub fn revive(&mut self, id: &str) {
        let one = &self.coordinators[id];
        let process = self.start_coordinator(id, &one.address, &one.link);
        self.one(id).process = process;
    }

    /// Asks it to stop, and waits until it has.
    pub async fn stop(&mut self, id: &str) {
        let process = &mut self.one(id).process;
        process.terminate();
        let status = process.end().await;
        assert!(status.success(), "{id} did not stop in order: {status}\n{}", process.log());
    }

    /// The coordinator that leads by the engine's word, and its term.
    pub async fn seen_to_lead(&self) -> Result<Option<(String, u64)>, String> {
        let leader = self.election.leader().await.map_err(|error| error.to_string())?;
        let named = |leader: partage_coordination::Leader| {
            let presence = Presence::from_bytes("election/leader", &leader.candidate);
            presence.map(|presence| (presence.id, leader.term.get())).map_err(|error| error.to_string())
        };
        leader.map(named).transpose()
    }

    /// The coordinator that leads, and its term; waits until one does.
    pub async fn leader(&self) -> (String, u64) {
        self.leader_since(0).await
    }

    /// The first leader that is seen of a term of at least `term`.
    pub async fn leader_since(&self, term: u64) -> (String, u64) {
        until(&format!("somebody leads in term {term} or later"), || async {
            let leader = self.seen_to_lead().await?;
            leader.clone().filter(|leader| leader.1 >= term).ok_or_else(|| format!("{leader:?}"))
        })
        .await
    }

    /// Every key of the coordination state, past all links.
    pub async fn state(&self) -> BTreeMap<String, Vec<u8>> {
        let (mut state, mut after) = (BTreeMap::new(), None);
        loop {
            let page = self.observer.list(&Scope::All, after.as_ref(), usize::MAX).await.unwrap();
            state
                .extend(page.entries.into_iter().map(|(key, entry)| (key.to_string(), entry.value.to_vec())));
            after = page.next;
            if after.is_none() {
                return state;
            }
        }
    }

    /// Writes a value past the coordinators, to a key that is there or is not.
    pub async fn overwrite(&self, key: &str, value: &[u8]) {
        let at = Key::new(key).unwrap();
        match self.observer.read(&at).await.unwrap() {
            Some(_) => self.engine.overwrite(&*self.observer, key, value).await,
            None => drop(self.observer.commit(Transaction::new().put(&at, value.to_vec())).await.unwrap()),
        }
    }

    /// What each coordinator has warned of in its log.
    pub fn warnings(&self) -> BTreeMap<String, Vec<String>> {
        let warns = |line: &&str| line.contains(r#""level":"WARN""#) || line.contains(r#""level":"ERROR""#);
        let of = |one: &One| one.process.log().lines().filter(warns).map(str::to_owned).collect();
        self.coordinators.iter().map(|(id, one)| (id.clone(), of(one))).collect()
    }

    /// Waits until the engine has ended every session: no coordinator leads, and none is there.
    pub async fn nobody_is_there(&self) {
        until("all sessions have ended", || async {
            let scope = Scope::Children(Key::new(COORDINATORS).unwrap());
            let there =
                self.observer.list(&scope, None, usize::MAX).await.map_err(|error| error.to_string())?;
            let leader = self.seen_to_lead().await?;
            if leader.is_none() && there.entries.is_empty() {
                Ok(())
            } else {
                Err(format!("{leader:?} leads, {} are there", there.entries.len()))
            }
        })
        .await;
    }

    /// Waits until each coordinator is ready, and says that all are there and one leads.
    pub async fn whole(&self) {
        until("each coordinator sees all coordinators, and one that leads", || async {
            let whole = self.try_whole().await;
            assert!(!whole.as_ref().is_err_and(|why| why.contains(AT_ONCE)), "{whole:?}");
            whole
        })
        .await;
    }

    /// The same at this moment, or what is not so.
    pub async fn try_whole(&self) -> Result<(), String> {
        let http = Http::default();
        for one in self.all() {
            let ready = http.get(&one.address, "/health/ready").await?;
            let seen: Coordinators = Admin::new(&one.address).try_get("/v1/coordinators").await?;
            let lead = seen.coordinators.iter().filter(|one| one.leads).count();
            let whole = seen.coordinators.len() == self.coordinators.len();
            if lead > 1 {
                return Err(format!("{lead} {AT_ONCE}: {seen:?}"));
            }
            if !ready.status.is_success() || lead != 1 || !whole {
                return Err(format!("{}: {}: {seen:?}", one.address, ready.status));
            }
        }
        Ok(())
    }

    /// [`empty_keyspace`], asked of `id`, which passes it on if it does not lead. When the leader answers that it could not
    /// store it, asks again, as that answer says: on a machine that stands still for a while a lead is lost at any time.
    pub async fn change(&self, id: &str, name: &str) -> Result<Answer, String> {
        let admin = Admin::new(&self.coordinators[id].address);
        until(&format!("{id} stores a change"), || async {
            match admin.command(empty_keyspace(name)).await {
                Err(why) if why.contains("not_stored") => Err(why),
                answer => Ok(answer),
            }
        })
        .await
    }

    /// What a coordinator has written.
    pub fn log(&self, id: &str) -> String {
        self.coordinators[id].process.log()
    }

    /// How often a worker has said that its lease lapsed.
    pub fn lapses(&self) -> usize {
        self.workers.iter().map(|worker| worker.log().matches("lapsed").count()).sum()
    }

    /// The coordinators that led, by what they have written: each says so once for a term.
    ///
    /// # Panics
    /// When no coordinator has written that it led: then it cannot be seen which ones did.
    pub fn reigns(&self) -> Reigns {
        let mut reigns = Reigns::new();
        for (id, one) in &self.coordinators {
            for term in one.process.log().lines().filter_map(begun) {
                let leaders = reigns.entry(term).or_default();
                assert!(leaders.insert(id.clone()), "{id} began twice to lead in term {term}");
            }
        }
        assert!(!reigns.is_empty(), "no coordinator has written that it led");
        reigns
    }
}

fn port(address: &str) -> &str {
    address.rsplit(':').next().unwrap_or_default()
}

/// The term of a line of a coordinator's log that says that it leads.
fn begun(line: &str) -> Option<u64> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let fields = &line["fields"];
    (fields["message"] == "this coordinator leads").then_some(())?;
    let term = fields["term"].as_u64();
    assert!(term.is_some(), "a coordinator says that it leads, and of no term: {line}");
    term
}
