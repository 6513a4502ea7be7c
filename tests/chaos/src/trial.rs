//! What is done to several coordinators under load, and what must hold all the same.
//!
//! An engine is struck in each way that [`Trial`] lists, one after the other, while clients write and read an
//! exclusive and an eventual keyspace through routers that follow the maps. After each, this must be so:
//!
//! | what                  | how it is seen                                                                |
//! |-----------------------|-------------------------------------------------------------------------------|
//! | no look-up fails      | each names a leader, each request succeeds: a router tries again within its   |
//! |                       | default patience (ten seconds), its client never does                         |
//! | nothing is lost       | every read gives the last value that was acknowledged, or a later one          |
//! | nothing moves         | every shard has the replicas, roles, placements and epoch that it had          |
//! | no two owners         | the checks of [`load`](crate::load): owners of an epoch, epochs that go back  |
//! | one leader for a term | by the coordinators' logs, and by what each of them answered all along        |
//! | all are there again   | three in the list, one leads, each is ready, a change asked of each is made   |

use crate::fleet::{Fleet, Reigns};
use crate::http::Http;
use crate::load::Load;
use partage_coordination::Backend;
use partage_wire::json::Coordinators;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// A blow to the coordinators or to their engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// `kill -9` of the leader.
    Kill,
    /// The leader sleeps (SIGSTOP) until another leads, and wakes.
    Pause,
    /// The leader sleeps for [`LONG_PAUSE`], and wakes: no worker's lease lapses meanwhile.
    LongPause,
    /// A coordinator that stands by sleeps for [`LONG_PAUSE`], and wakes: the leader leads on under its term.
    StandbyPause,
    /// A person deletes the key of the election with the engine's own tool, while the leader's session lives.
    Depose,
    /// The leader and the engine no longer hear each other, until another leads.
    Cut,
    /// The leader is asked to stop.
    Stop,
    /// `kill -9` of the engine, and a new start.
    Restart,
    /// The engine is gone for [`GONE`]: no coordinator leads, and exclusive shards may wait.
    Gone,
    /// Every coordinator is stopped and started, one after the other.
    Rolling,
    /// Every message between coordinators and engine is late, so that a commit takes [`TIMES_SLOWER`] as long.
    Slow,
    /// No coordinator and the engine hear each other, until every session has ended.
    Expire,
}

impl Trial {
    /// Every blow once, for runs that try all.
    pub const ALL: [Trial; 12] = [
        Trial::Kill,
        Trial::Pause,
        Trial::LongPause,
        Trial::StandbyPause,
        Trial::Depose,
        Trial::Cut,
        Trial::Stop,
        Trial::Restart,
        Trial::Gone,
        Trial::Rolling,
        Trial::Slow,
        Trial::Expire,
    ];
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Trial::Kill => "kill -9 of the leader",
            Trial::Pause => "a pause of the leader",
            Trial::LongPause => "a long pause of the leader",
            Trial::StandbyPause => "a long pause of a coordinator that stands by",
            Trial::Depose => "the election key is deleted",
            Trial::Cut => "a cut between leader and backend",
            Trial::Stop => "the leader stops in order",
            Trial::Restart => "a restart of the backend",
            Trial::Gone => "the backend is gone for a while",
            Trial::Rolling => "a rolling restart",
            Trial::Slow => "a slow backend",
            Trial::Expire => "all sessions end at once",
        })
    }
}

/// How many times as long a commit takes on a slow engine as it did before, as measured just then.
const TIMES_SLOWER: u32 = 100;

/// The most that is added to a message, each way. A renewal is up to three round trips, and a third of the session is
/// left for it when it begins: an engine on a busy disk would otherwise become one that nobody can renew with, which is
/// [`Trial::Expire`].
const SLOWEST: Duration = Duration::from_millis(150);

/// Rounds of the load before, between and after the blows.
const ROUNDS: u64 = 5;

/// Rounds during which the engine is slow: longer than a session.
const SLOW_ROUNDS: u64 = 100;

/// Longer than the lease of a worker.
const LONG_PAUSE: Duration = Duration::from_secs(10);

/// Longer than a session, and shorter than the default patience of a router.
const GONE: Duration = Duration::from_secs(5);

/// How often each coordinator is asked which one leads.
const LOOK: Duration = Duration::from_millis(50);

/// Where every shard is: by keyspace and shard, its epoch, and node, role and placement of its replicas.
pub(crate) type Placement = BTreeMap<(String, u64), (u64, Vec<(String, String, u64)>)>;

pub(crate) const KEYSPACES: [(&str, bool); 2] = [("exclusive", true), ("eventual", false)];

/// Puts three coordinators on `backend`, with `workers` workers, through `trials`.
pub async fn undergo(backend: Backend, workers: usize, trials: &[Trial]) {
    let mut fleet = Fleet::start(backend, workers).await;
    for (name, _) in KEYSPACES {
        fleet.admin.keyspace(name, name, "suggested").await;
    }
    let mut loads = Vec::new();
    for (name, exclusive) in KEYSPACES {
        loads.push(Load::routed(&fleet.router(name).await, name, exclusive));
    }
    let watch = Watch::start(fleet.addresses());
    rounds(&loads, ROUNDS).await;
    let before = placement(&fleet).await;
    for (number, trial) in trials.iter().enumerate() {
        trial.strike(&mut fleet, &loads).await;
        fleet.whole().await;
        fleet.admin.settled().await;
        rounds(&loads, ROUNDS).await;
        for id in fleet.ids() {
            fleet.change(&id, &format!("{trial:?}-{number}-{id}").to_lowercase()).await.unwrap();
        }
        assert_eq!(placement(&fleet).await, before, "something moved: {backend}, {trial}");
        for load in &loads {
            let account = load.account();
            assert_eq!(account.failed, 0, "{backend}, {trial}: {account:?}");
        }
    }
    for load in loads {
        let account = load.finish().await;
        assert_eq!(account.failed, 0, "{backend}: {account:?}");
    }
    watch.agrees_with(&fleet.reigns());
}

pub(crate) async fn rounds(loads: &[Load], rounds: u64) {
    for load in loads {
        load.rounds(rounds).await;
    }
}

pub(crate) async fn placement(fleet: &Fleet) -> Placement {
    let mut all = Placement::new();
    for (name, _) in KEYSPACES {
        for shard in fleet.admin.shards(name).await {
            let replicas = shard.replicas.into_iter();
            let replicas =
                replicas.map(|replica| (replica.node, replica.role.to_string(), replica.placement)).collect();
            all.insert((name.to_owned(), shard.shard), (shard.epoch, replicas));
        }
    }
    all
}

impl Trial {
    /// Does it, and undoes what can be undone.
    async fn strike(self, fleet: &mut Fleet, loads: &[Load]) {
        let (leader, term) = fleet.leader().await;
        match self {
            Trial::Kill => {
                fleet.one(&leader).process.kill();
                fleet.leader_since(term + 1).await;
                fleet.revive(&leader);
            }
            Trial::Pause => {
                fleet.one(&leader).process.pause();
                fleet.leader_since(term + 1).await;
                fleet.one(&leader).process.wake();
            }
            Trial::LongPause => {
                let lapses = fleet.lapses();
                fleet.one(&leader).process.pause();
                sleep(LONG_PAUSE).await;
                fleet.one(&leader).process.wake();
                rounds(loads, ROUNDS).await;
                assert_eq!(fleet.lapses(), lapses, "a lease lapsed while {leader} slept");
            }
            Trial::StandbyPause => {
                let standby = fleet.ids().into_iter().find(|id| *id != leader).unwrap();
                fleet.one(&standby).process.pause();
                sleep(LONG_PAUSE).await;
                rounds(loads, ROUNDS).await;
                assert_eq!(fleet.leader().await, (leader, term), "{standby} slept, which stands by");
                fleet.one(&standby).process.wake();
            }
            Trial::Depose => {
                fleet.engine.delete("election/leader").await;
                fleet.leader_since(term + 1).await;
            }
            Trial::Cut => {
                fleet.one(&leader).link.cut();
                fleet.leader_since(term + 1).await;
                fleet.one(&leader).link.mend();
            }
            Trial::Stop => {
                fleet.stop(&leader).await;
                fleet.leader_since(term + 1).await;
                fleet.revive(&leader);
            }
            Trial::Restart => fleet.engine.restart().await,
            Trial::Gone => {
                fleet.engine.kill();
                sleep(GONE).await;
                fleet.engine.revive().await;
                fleet.leader_since(term).await;
                rounds(loads, ROUNDS).await;
            }
            Trial::Rolling => {
                for id in fleet.ids() {
                    fleet.stop(&id).await;
                    fleet.revive(&id);
                    fleet.whole().await;
                }
            }
            Trial::Slow => slow(fleet, loads).await,
            Trial::Expire => {
                fleet.all().for_each(|one| one.link.cut());
                fleet.nobody_is_there().await;
                fleet.all().for_each(|one| one.link.mend());
                fleet.leader_since(term + 1).await;
            }
        }
    }
}

#[expect(clippy::print_stdout, reason = "a long run says how slow it made the engine")]
async fn slow(fleet: &Fleet, loads: &[Load]) {
    let slower = fleet.engine.slower(TIMES_SLOWER).await;
    let delay = slower.delay.min(SLOWEST);
    println!("{slower:?}: each message takes {delay:?} longer");
    fleet.all().for_each(|one| one.link.delay(delay));
    rounds(loads, SLOW_ROUNDS).await;
    let id = &fleet.ids()[0];
    fleet.change(id, "slowly").await.unwrap();
    fleet.all().for_each(|one| one.link.mend());
}

/// Asks every coordinator all along which one leads.
pub struct Watch {
    seen: Arc<Mutex<Reigns>>,
    _asking: JoinSet<()>,
}

impl Watch {
    /// Asks those at `addresses` until it is dropped.
    pub fn start(addresses: Vec<String>) -> Watch {
        let seen = Arc::new(Mutex::new(Reigns::new()));
        let mut asking = JoinSet::new();
        for address in addresses {
            asking.spawn(ask(address, seen.clone()));
        }
        Watch { seen, _asking: asking }
    }

    /// Fails if a term has had two leaders, or another than the one who wrote that it was its.
    pub fn agrees_with(self, written: &Reigns) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert!(!seen.is_empty(), "nobody said who leads");
        for (term, leaders) in written.iter().chain(&seen) {
            assert_eq!(leaders.len(), 1, "term {term} has had several leaders: {written:?}, {seen:?}");
        }
        for (term, leaders) in written {
            let said = seen.get(term).unwrap_or(leaders);
            assert_eq!(said, leaders, "of term {term}: {written:?}, {seen:?}");
        }
    }
}

async fn ask(address: String, seen: Arc<Mutex<Reigns>>) {
    let http = Http::default();
    loop {
        // It may be dead, asleep or cut off just now.
        if let Ok(reply) = http.get(&address, "/v1/coordinators").await
            && let Ok(all) = serde_json::from_slice::<Coordinators>(&reply.body)
        {
            for one in all.coordinators {
                if let Some(term) = one.term {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.entry(term).or_default().insert(one.id);
                }
            }
        }
        sleep(LOOK).await;
    }
}
