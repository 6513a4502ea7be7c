//! A task that asks a node all the time, and what it saw there.
//!
//! It asks in turn for one key, for many, and for a range. Nothing that is seen depends on how often that happens: what counts
//! is the order in which versions come.

use super::source::{DATASET, KEYS, key, value};
use crate::http::{Http, Reply};
use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Keys that are asked for together.
const MANY: u32 = 20;

/// What a node gives its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sight {
    /// No process answers, or one that does not know yet what there is.
    Down,
    /// There is nothing to be had.
    Nothing,
    /// Clients get this version, whole.
    Version(String),
}

impl fmt::Display for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sight::Down => "down",
            Sight::Nothing => "nothing",
            Sight::Version(version) => version,
        })
    }
}

/// What came of one question.
#[derive(Debug)]
enum Look {
    Saw(Sight),
    /// The version is clear, and part of it could not be had.
    Lacked(String),
    /// An answer that must never be given.
    Wrong(String),
}

/// All that was seen at a node.
#[derive(Debug, Default)]
pub struct Seen {
    progression: Vec<Sight>,
    lacked: Vec<String>,
    wrong: Vec<String>,
    looks: u64,
}

impl Seen {
    /// What came after what, from the first version on.
    pub fn progression(&self) -> String {
        self.progression.iter().map(Sight::to_string).collect::<Vec<_>>().join(" -> ")
    }

    fn note(&mut self, look: Look) {
        self.looks += 1;
        match look {
            Look::Saw(sight) => {
                // A node begins with nothing, whether a client looks at it just then or not.
                let begins = self.progression.is_empty() && !matches!(sight, Sight::Version(_));
                if !begins && self.progression.last() != Some(&sight) {
                    self.progression.push(sight);
                }
            }
            Look::Lacked(what) => self.lacked.push(what),
            Look::Wrong(what) => self.wrong.push(what),
        }
    }
}

/// Asks at one node until it is dropped.
#[derive(Debug)]
pub struct Watcher {
    seen: Arc<Mutex<Seen>>,
    /// Counts what the test does to the process: an answer that was asked for before may be cut off.
    lives: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watcher {
    /// Begins to ask at `address`, with this rest between two questions.
    pub fn start(address: &str, rest: Duration) -> Watcher {
        let (seen, lives) = (Arc::new(Mutex::new(Seen::default())), Arc::new(AtomicU64::new(0)));
        let (address, notes, counted) = (address.to_owned(), seen.clone(), lives.clone());
        let task = tokio::spawn(async move {
            let http = Http::default();
            for turn in 0.. {
                let before = counted.load(Ordering::SeqCst);
                let look = look(&http, &address, turn).await;
                let is_cut_off = before != counted.load(Ordering::SeqCst);
                if let Some(look) = look.filter(|look| !is_cut_off || matches!(look, Look::Wrong(_))) {
                    notes.lock().unwrap_or_else(PoisonError::into_inner).note(look);
                }
                sleep(rest).await;
            }
        });
        Watcher { seen, lives, task }
    }

    /// Something is done to the process now.
    pub fn strikes(&self) {
        self.lives.fetch_add(1, Ordering::SeqCst);
    }

    /// What was seen last.
    pub fn last(&self) -> Option<Sight> {
        self.with(|seen| seen.progression.last().cloned())
    }

    /// How often the task has looked.
    pub fn looks(&self) -> u64 {
        self.with(|seen| seen.looks)
    }

    /// What came after what.
    pub fn progression(&self) -> String {
        self.with(|seen| seen.progression())
    }

    /// What could not be had of a version that was served, since this was last asked.
    pub fn lacked(&self) -> Vec<String> {
        self.with(|seen| std::mem::take(&mut seen.lacked))
    }

    /// Stops the test if anything was seen that must never be.
    pub fn is_sound(&self, who: &str) {
        let wrong = self.with(|seen| seen.wrong.clone());
        assert!(wrong.is_empty(), "{who}: {} wrong answers, the first: {}", wrong.len(), wrong[0]);
    }

    fn with<T>(&self, of: impl FnOnce(&mut Seen) -> T) -> T {
        of(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Asks once; nothing when no answer came in time.
async fn look(http: &Http, address: &str, turn: u32) -> Option<Look> {
    match turn % 3 {
        0 => one(http, address, &key(turn)).await,
        1 => {
            let wanted: Vec<String> = (0..MANY).map(|number| key(turn + number * KEYS / MANY)).collect();
            or_one(http, address, turn, many(http, address, &wanted).await).await
        }
        _ => or_one(http, address, turn, range(http, address, "key-0").await).await,
    }
}

/// Long answers may break off: whether the node is down is for a short one to say. Where no process listens, the node
/// was down at that moment, although one that has begun since may answer the short one.
async fn or_one(http: &Http, address: &str, turn: u32, look: Result<Look, String>) -> Option<Look> {
    match look {
        Ok(look) => Some(look),
        Err(why) if why.contains("Connection refused") => Some(Look::Saw(Sight::Down)),
        Err(why) => match one(http, address, &key(turn)).await? {
            Look::Saw(Sight::Version(version)) => Some(Look::Lacked(format!("of {version}: {why}"))),
            other => Some(other),
        },
    }
}

async fn one(http: &Http, address: &str, key: &str) -> Option<Look> {
    let reply = match http.get(address, &format!("/{DATASET}/{key}")).await {
        Ok(reply) => reply,
        Err(why) if why.contains("does not answer") => return None,
        Err(_) => return Some(Look::Saw(Sight::Down)),
    };
    Some(of_status(&reply).unwrap_or_else(|version| match reply.text() {
        body if body == value(&version, key) => Look::Saw(Sight::Version(version)),
        body => Look::Wrong(format!("{key} of {version} is {body:?}")),
    }))
}

/// What a status says by itself; else the version that the answer claims to be of.
fn of_status(reply: &Reply) -> Result<Look, String> {
    let version = reply.header("partage-version").map(str::to_owned);
    Ok(match (reply.status, version) {
        (StatusCode::OK, Some(version)) => return Err(version),
        (StatusCode::NOT_FOUND, None) => Look::Saw(Sight::Nothing),
        (StatusCode::SERVICE_UNAVAILABLE, None) if reply.text().contains("\"no_version\"") => {
            Look::Saw(Sight::Nothing)
        }
        (StatusCode::SERVICE_UNAVAILABLE, None) if reply.text().contains("\"starting\"") => {
            Look::Saw(Sight::Down)
        }
        (status, _) if status.is_server_error() => Look::Lacked(format!("{status}: {}", reply.text())),
        (status, version) => Look::Wrong(format!("{status} of {version:?}: {}", reply.text())),
    })
}

async fn many(http: &Http, address: &str, wanted: &[String]) -> Result<Look, String> {
    let body = Bytes::from(json!({ "keys": wanted }).to_string());
    let kind = [("content-type", "application/json")];
    let reply = http.ask(Method::POST, address, &format!("/{DATASET}"), &kind, body).await?;
    Ok(of_status(&reply).unwrap_or_else(|version| of_entries(&reply, version, Some(wanted))))
}

async fn range(http: &Http, address: &str, prefix: &str) -> Result<Look, String> {
    let reply = http.get(address, &format!("/{DATASET}?prefix={prefix}")).await?;
    Ok(of_status(&reply).unwrap_or_else(|version| of_entries(&reply, version, None)))
}

/// Whether all entries are there and of the version that the answer claims to be of.
fn of_entries(reply: &Reply, version: String, wanted: Option<&[String]>) -> Look {
    let told: Value = match serde_json::from_slice(&reply.body) {
        Ok(told) => told,
        Err(why) => return Look::Wrong(format!("{why}: {}", reply.text())),
    };
    let entries = told["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found: Vec<&str> = entries.iter().filter_map(|entry| entry["key"].as_str()).collect();
    let is_all = match wanted {
        Some(wanted) => found == wanted,
        // A range is every key below key-100.
        None => found.len() == 100 && found.is_sorted(),
    };
    if !is_all || told["version"] != version.as_str() {
        return Look::Wrong(format!("{wanted:?} of {version}: {}", reply.text()));
    }
    for entry in entries {
        let key = entry["key"].as_str().unwrap_or_default();
        if entry.get("error").is_some() {
            return Look::Lacked(entry.to_string());
        }
        if entry["value"] != value(&version, key) {
            return Look::Wrong(format!("a mixture in an answer of {version}: {entry}"));
        }
    }
    Look::Saw(Sight::Version(version))
}

/// Stops the test unless the node at `address` serves all of `version`: see [`checked`].
pub async fn check(http: &Http, address: &str, version: &str) {
    if let Err(why) = checked(http, address, version).await {
        panic!("{why}");
    }
}

/// Asks a node that serves `version` for every key by itself, for all of them together, and for a range: what it did
/// not answer. A wrong answer stops the test.
pub async fn checked(http: &Http, address: &str, version: &str) -> Result<(), String> {
    let all: Vec<String> = super::source::keys().collect();
    let expected = Sight::Version(version.to_owned());
    let mut looks = Vec::new();
    for key in all.iter().step_by(7) {
        looks.push((key.as_str(), one(http, address, key).await));
    }
    looks.push(("all keys", many(http, address, &all).await.ok()));
    looks.push(("a range", range(http, address, "key-0").await.ok()));
    for (what, look) in looks {
        let said = format!("{what} at {address}, which serves {version}: {look:?}");
        match look {
            Some(Look::Saw(sight)) if sight == expected => {}
            Some(Look::Wrong(_)) => panic!("{said}"),
            _ => return Err(said),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderMap, HeaderValue};

    fn reply(status: u16, version: Option<&'static str>, body: Value) -> Reply {
        let mut headers = HeaderMap::new();
        version.map(|version| headers.insert("partage-version", HeaderValue::from_static(version)));
        let status = StatusCode::from_u16(status).unwrap();
        Reply { status, headers, body: body.to_string().into() }
    }

    fn entries(values: [&str; 2]) -> Reply {
        let entry = |(key, value)| json!({ "key": key, "value": value });
        let entries: Vec<Value> = ["key-000", "key-001"].into_iter().zip(values).map(entry).collect();
        reply(200, Some("v1"), json!({ "version": "v1", "entries": entries }))
    }

    #[test]
    fn a_mixture_is_noticed_whichever_version_it_claims_to_be_of() {
        let wanted = [key(0), key(1)];
        let seen = |values| of_entries(&entries(values), "v1".to_owned(), Some(&wanted));
        assert!(
            matches!(seen(["v1 key-000", "v1 key-001"]), Look::Saw(Sight::Version(version)) if version == "v1")
        );
        assert!(matches!(seen(["v1 key-000", "v2 key-001"]), Look::Wrong(_)));
        assert!(matches!(seen(["v1 key-001", "v1 key-000"]), Look::Wrong(_)), "values of other keys");
        let of_v2 = of_entries(&entries(["v1 key-000", "v1 key-001"]), "v2".to_owned(), Some(&wanted));
        assert!(matches!(of_v2, Look::Wrong(_)), "the header and the answer disagree");
        let few = of_entries(&entries(["v1 key-000", "v1 key-001"]), "v1".to_owned(), None);
        assert!(matches!(few, Look::Wrong(_)), "a range without its end");
    }

    #[test]
    fn a_status_is_taken_for_what_it_says() {
        let of = |status, version, error: &str| {
            of_status(&reply(status, version, json!({ "error": { "kind": error } }))).unwrap()
        };
        assert!(matches!(of(503, None, "no_version"), Look::Saw(Sight::Nothing)));
        assert!(matches!(of(404, Some("v1"), ""), Look::Wrong(_)), "every key is in every version");
        assert!(matches!(of(503, None, "starting"), Look::Saw(Sight::Down)));
        assert!(matches!(of(503, None, "busy"), Look::Lacked(_)));
        assert!(matches!(of(502, None, "no_peer"), Look::Lacked(_)));
        assert!(matches!(of(421, None, "not_that_version"), Look::Wrong(_)), "that is for peers");
    }

    #[test]
    fn what_comes_after_what_is_kept_from_the_first_version_on() {
        let mut seen = Seen::default();
        let version = |version: &str| Look::Saw(Sight::Version(version.to_owned()));
        let looks = [Look::Saw(Sight::Down), Look::Saw(Sight::Nothing), version("v1"), version("v1")];
        looks.into_iter().for_each(|look| seen.note(look));
        assert_eq!(seen.progression(), "v1");
        let looks = [Look::Saw(Sight::Down), version("v2"), Look::Saw(Sight::Nothing), version("v1")];
        looks.into_iter().for_each(|look| seen.note(look));
        assert_eq!(seen.progression(), "v1 -> down -> v2 -> nothing -> v1");
    }
}
