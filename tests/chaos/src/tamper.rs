//! Keys of the coordination state of a running cluster are deleted, set back or replaced, one at a time, with the engine's own
//! tools and under load.
//!
//! | what                | how it is seen                                                                     |
//! |---------------------|------------------------------------------------------------------------------------|
//! | no two owners       | [`Load::lies`]: owners of an epoch, epochs that go back                             |
//! | nothing is dropped  | the same: nodes keep values in memory, and every read gives what was acknowledged   |
//! | nothing moves       | every shard has the replicas, roles, placements and epoch that it had               |
//! | refused, or healed  | all coordinators are there and one leads; where a keyspace is in quarantine, or no  |
//! |                     | coordinator leads, they are there again once the key is as it was                   |
//! | told                | status, the refusal or a coordinator's log names the key or its keyspace            |
//!
//! A leader reads the records when it begins to lead. So each key that only a leader reads is changed under one that
//! leads on, and then met by the next one.

use crate::admin::Admin;
use crate::fleet::Fleet;
use crate::load::Load;
use crate::trial::{KEYSPACES, Placement, Watch, placement, rounds};
use crate::until;
use partage_coordination::Backend;
use partage_wire::json::{Command, Summary};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// What is done to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The key is deleted from the state.
    Deleted,
    /// It gets a value that it had before.
    SetBack,
    /// It gets a value that this program never wrote.
    Garbage,
    /// It gets the value of another key, of its own kind where there is one.
    OfAnotherKey,
}

impl Fault {
    /// All faults, in the order in which they are done to a key.
    pub const ALL: [Fault; 4] = [Fault::Deleted, Fault::SetBack, Fault::Garbage, Fault::OfAnotherKey];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Deleted => "deleted",
            Fault::SetBack => "set back",
            Fault::Garbage => "garbage",
            Fault::OfAnotherKey => "the value of another key",
        })
    }
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    /// All coordinators are there, one leads, every keyspace is served.
    GoesOn(String),
    /// Until the key is as it was, a keyspace is in quarantine, or no coordinator leads; and what is said of it.
    Refused(String),
}

/// How long coordinators may take to go on, before they are taken to refuse.
const PATIENCE: Duration = Duration::from_secs(15);

/// What a leader that leads on does meanwhile.
const LEADS_ON: Duration = Duration::from_millis(300);

/// In so long a leader has looked at the keys that it reads all along, also where no watch wakes: on MariaDB it looks once
/// a second.
const LOOKED_AT: Duration = Duration::from_millis(1_500);

/// Rest between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// A cluster whose state has a past.
struct Scene {
    fleet: Fleet,
    loads: Vec<Load>,
    /// What keys had before.
    earlier: BTreeMap<String, Vec<u8>>,
    placement: Placement,
}

/// Does each of `faults` to each key that `wanted` says yes to, on `backend`.
#[expect(clippy::print_stdout, reason = "a long run says what became of each key")]
pub async fn tamper(backend: Backend, wanted: impl Fn(&str, Fault) -> bool) {
    let mut scene = Scene::begin(backend).await;
    let watch = Watch::start(scene.fleet.addresses());
    let mut keys: Vec<String> = scene.fleet.state().await.into_keys().collect();
    // What a commit leaves in between is there for a moment only: the test writes garbage there.
    keys.extend(["redo/head", "redo/pieces/0"].map(str::to_owned));
    keys.sort_by_key(|key| (rank(key), key.clone()));
    let mut done = 0;
    for key in keys {
        for fault in Fault::ALL.into_iter().filter(|fault| wanted(&key, *fault)) {
            let begun = Instant::now();
            let Some(outcome) = scene.strike(&key, fault).await else { continue };
            println!("{backend}: {key}: {fault}: {outcome:?} ({:.1} s)", begun.elapsed().as_secs_f64());
            done += 1;
        }
    }
    assert!(done > 0, "no key was touched");
    for load in scene.loads {
        load.finish().await;
    }
    watch.agrees_with(&scene.fleet.reigns());
}

/// Those come last that stop everything.
fn rank(key: &str) -> usize {
    usize::from(key == "about")
}

impl Scene {
    async fn begin(backend: Backend) -> Scene {
        let mut fleet = Fleet::start(backend, 3).await;
        for (name, _) in KEYSPACES {
            fleet.admin.keyspace(name, name, "suggested").await;
        }
        fleet.change("c1", "before").await.unwrap();
        let earlier = fleet.state().await;
        Scene::live_on(&mut fleet).await;
        fleet.admin.settled().await;
        let mut loads = Vec::new();
        for (name, exclusive) in KEYSPACES {
            loads.push(Load::routed(&fleet.router(name).await, name, exclusive));
        }
        rounds(&loads, 2).await;
        let placement = placement(&fleet).await;
        Scene { fleet, loads, earlier, placement }
    }

    /// Every kind of key gets another value.
    async fn live_on(fleet: &mut Fleet) {
        for (name, _) in KEYSPACES {
            let shard = fleet.admin.shards(name).await.swap_remove(0);
            let from = shard.replicas[0].node.clone();
            let to = ["n1", "n2", "n3"].into_iter().find(|node| *node != from).unwrap().to_owned();
            let keyspace = name.to_owned();
            let moved = Command::MoveShard { keyspace, shard: shard.shard, from, to };
            fleet.admin.command(moved).await.unwrap();
            fleet.admin.settled().await;
            let changes = serde_json::from_value(serde_json::json!({"mode": "manual"})).unwrap();
            let updated = Command::UpdateKeyspace { keyspace: name.to_owned(), changes, ahead: false };
            fleet.admin.command(updated).await.unwrap();
        }
        let drain = Command::DrainNode { node: "n1".to_owned(), reason: "a test".to_owned(), max_down: None };
        fleet.admin.command(drain).await.unwrap();
        fleet.change("c2", "after").await.unwrap();
        next_leader(fleet).await;
    }

    /// What became of that fault; none when the key is not there, or the fault would change nothing.
    async fn strike(&mut self, key: &str, fault: Fault) -> Option<Outcome> {
        let state = self.fleet.state().await;
        let value = state.get(key).cloned();
        let other = match fault {
            Fault::Garbage => Some(b"not of this program".to_vec()),
            _ if value.is_none() => return None,
            Fault::Deleted => None,
            Fault::SetBack => Some(self.earlier.get(key)?.clone()),
            Fault::OfAnotherKey => Some(other(&state, key)),
        };
        if other == value {
            return None;
        }
        let before = self.fleet.warnings();
        match other {
            None => self.fleet.engine.delete(key).await,
            Some(other) => self.fleet.overwrite(key, &other).await,
        }
        if is_record(key) {
            sleep(LEADS_ON).await;
            next_leader(&mut self.fleet).await;
        } else {
            sleep(LOOKED_AT).await;
        }
        let what = format!("{key}: {fault}");
        let outcome = self.outcome(&what).await;
        self.is_told(&what, (key, value.as_ref()), &outcome, &before).await;
        if matches!(outcome, Outcome::Refused(_)) {
            match value {
                Some(value) => self.fleet.overwrite(key, &value).await,
                None => self.fleet.engine.delete(key).await,
            }
        }
        self.goes_on(&what).await;
        Some(outcome)
    }

    /// Waits until the outcome, or a warning that is not among those from `before`, names the key: where no watch wakes,
    /// a coordinator looks at its keys every few seconds.
    async fn is_told(
        &self,
        what: &str,
        (key, value): (&str, Option<&Vec<u8>>),
        outcome: &Outcome,
        before: &BTreeMap<String, Vec<String>>,
    ) {
        let (Outcome::GoesOn(said) | Outcome::Refused(said)) = outcome;
        // A leader that commits before it looks writes its mark again, with its own term, and never saw that it was gone.
        if key == "election/commit" && self.fleet.state().await.get(key) == value {
            return;
        }
        // Nothing hangs on what is told of the past, so nothing says what its last value was.
        if key.starts_with("events/") {
            return;
        }
        // Pieces without a head are what a leader leaves that was killed: the next one takes them away and says nothing.
        if key.starts_with("redo/pieces/") {
            let is_gone = || async {
                if self.fleet.state().await.contains_key(key) {
                    Err("it is there".to_owned())
                } else {
                    Ok(())
                }
            };
            return until(&format!("{what}: it is taken away"), is_gone).await;
        }
        until(&format!("{what}: it is told"), || async {
            let warnings = self.fleet.warnings();
            let since = warnings.iter().flat_map(|(id, lines)| lines.iter().skip(before[id].len()));
            let told = format!("{said}{:?}", since.collect::<Vec<_>>());
            if names(&told, key) { Ok(()) } else { Err(told) }
        })
        .await;
    }

    /// Waits until the cluster goes on, or says that it does not.
    async fn outcome(&self, what: &str) -> Outcome {
        let (begun, mut seen) = (Instant::now(), String::new());
        while begun.elapsed() < PATIENCE {
            let status: Result<Summary, String> = self.fleet.admin.try_get("/v1/status").await;
            match (status, self.fleet.try_whole().await) {
                (Ok(status), Ok(())) if !status.quarantine.is_empty() => {
                    return Outcome::Refused(format!("{:?}", status.quarantine));
                }
                (Ok(status), Ok(())) => {
                    return Outcome::GoesOn(format!("{:?} {:?}", status.problems, status.stored_faults));
                }
                (status, whole) => seen = format!("{:?}; {whole:?}", status.map(|status| status.problems)),
            }
            sleep(LOOK).await;
        }
        let mut said = String::new();
        for one in self.fleet.all() {
            let status: Result<Summary, String> = Admin::new(&one.address).try_get("/v1/status").await;
            let status = status.map(|status| status.problems);
            said.push_str(&format!("{}: {status:?}\n", one.address));
        }
        assert!(said.contains("no coordinator leads"), "{what}: neither refused nor healed: {seen}\n{said}");
        Outcome::Refused(said)
    }

    /// All is as it was before, or nothing was ever touched.
    async fn goes_on(&self, what: &str) {
        // What the list says of a leader was written by somebody else, until that coordinator writes it again.
        until(&format!("{what}: all are there, and one leads"), || self.fleet.try_whole()).await;
        // Settings and counters that were set back stop moves until a person has looked.
        self.fleet.admin.command(Command::ReleaseBrake {}).await.ok();
        self.fleet.admin.settled().await;
        rounds(&self.loads, 1).await;
        for load in &self.loads {
            assert_eq!(load.lies(), Vec::<String>::new(), "{what}");
        }
        assert_eq!(placement(&self.fleet).await, self.placement, "{what}: something moved");
    }
}

/// Whether a leader reads it only when it begins to lead.
fn is_record(key: &str) -> bool {
    let read_all_along =
        ["about", "election/leader", "election/commit"].contains(&key) || key.starts_with("coordinators/");
    !read_all_along
}

/// Another value of that kind: the next key that ends alike, or that begins alike.
fn other(state: &BTreeMap<String, Vec<u8>>, key: &str) -> Vec<u8> {
    let ends = |key: &str| key.rsplit('/').next().unwrap_or_default().to_owned();
    let begins = |key: &str| key.split('/').next().unwrap_or_default().to_owned();
    let others = || state.iter().filter(|(other, _)| *other != key);
    let alike = others().find(|(other, _)| begins(other) == begins(key) && ends(other) == ends(key));
    let alike = alike.or_else(|| others().find(|(other, _)| begins(other) == begins(key)));
    alike.or_else(|| others().next()).unwrap().1.clone()
}

/// Whether it is told which key it is, or which keyspace. The manifest has one checksum for all nodes and one for all
/// plans, so one that was set back is told of all together; and of a manifest and a record that differ nobody can say
/// which of them was set back, where no generation tells: the record is named.
fn names(told: &str, key: &str) -> bool {
    let begins = key.split('/').next().unwrap_or_default();
    let known_as = match begins {
        "keyspaces" => key.split('/').nth(1).unwrap_or(key).to_owned(),
        "nodes" | "plans" => format!("stored value of {begins} of one"),
        "manifest" => "stored value of cluster is not the one".to_owned(),
        _ => key.to_owned(),
    };
    told.contains(key) || told.contains(&known_as)
}

/// Has everything read anew, by a process that was not there before or stood by.
async fn next_leader(fleet: &mut Fleet) {
    let (leader, term) = fleet.leader().await;
    fleet.stop(&leader).await;
    fleet.revive(&leader);
    // It may be refused: that is seen later.
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if matches!(fleet.seen_to_lead().await, Ok(Some((_, next))) if next > term) {
            return;
        }
        sleep(LOOK).await;
    }
}
