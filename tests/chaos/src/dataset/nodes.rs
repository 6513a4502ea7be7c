//! The nodes of a cluster, each a process with a source, a local store and a task that watches it.

use super::ground::{Ground, Observer};
use super::source::{FILES, Source};
use super::status;
use super::watch::{self, Sight, Watcher};
use crate::binary::binary;
use crate::http::Http;
use crate::subnet::Subnet;
use crate::until;
use backends::process::Process;
use partage_service::dataset::{Dealing, Seat};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// What nodes run by unless a test says otherwise. They look at their source when they are told to only, and a peer may
/// wait for a core of two.
const SETTINGS: [(&str, &str); 8] = [
    ("stable_s", "1"),
    ("refresh_s", "3600"),
    ("keep_s", "600"),
    ("proxy_stage_ms", "1000"),
    ("proxy_ms", "15000"),
    ("threads", "1"),
    ("load_at_once", "1"),
    ("load_memory_mib", "32"),
];

/// After how long a node that was killed is missed, in milliseconds.
const SESSION_MS: &str = "3000";

/// Questions to all nodes together in a second.
const QUESTIONS_A_SECOND: u64 = 60;

/// What each of these seats is dealt.
pub fn dealt(dealing: Dealing, seats: &[u32], replicas: u32) -> Vec<BTreeSet<u32>> {
    let dealt = dealing.deal(&seats.iter().copied().map(Seat).collect(), FILES, replicas);
    let of = |seat: &u32| {
        let mine = (0u32..).zip(&dealt).filter(|(_, seats)| seats.contains(&Seat(*seat)));
        mine.map(|(partition, _)| partition).collect()
    };
    seats.iter().map(of).collect()
}

/// Without what is between `[` and `]`.
fn without(expected: &str) -> String {
    match (expected.split_once('['), expected.split_once(']')) {
        (Some((before, _)), Some((_, behind))) => format!("{before}{behind}"),
        _ => expected.to_owned(),
    }
}

/// A cluster. Everything goes with its handle.
pub struct Nodes {
    /// Where they see each other.
    pub ground: Ground,
    /// The HTTP client by which tests ask the nodes.
    pub http: Http,
    nodes: BTreeMap<usize, Node>,
    marks: u32,
    rest: Duration,
    subnet: Subnet,
    /// Goes last: the processes write their logs into it.
    dir: TempDir,
}

/// A node of the cluster, which need not run.
struct Node {
    address: String,
    source: Source,
    settings: BTreeMap<String, String>,
    process: Option<Process>,
    watcher: Option<Watcher>,
}

impl Nodes {
    /// `count` nodes from 1 on, which are not started yet, with these settings beside ours.
    pub fn new(ground: Ground, count: usize, settings: &[(&str, &str)]) -> Nodes {
        let rest = Duration::from_millis(1_000 * count as u64 / QUESTIONS_A_SECOND);
        let mut nodes = Nodes {
            ground,
            http: Http::default(),
            nodes: BTreeMap::new(),
            marks: 0,
            rest,
            subnet: Subnet::take(),
            dir: TempDir::new().unwrap(),
        };
        for _ in 0..count {
            nodes.add(settings);
        }
        nodes
    }

    /// One more, which is not started yet; its number.
    pub fn add(&mut self, settings: &[(&str, &str)]) -> usize {
        let number = self.nodes.len() + 1;
        let source = Source::new(self.dir.path().join(format!("source-{number}")));
        let address = format!("{}.{number}:9599", self.subnet);
        let mut all: BTreeMap<String, String> = BTreeMap::new();
        for (name, value) in SETTINGS.iter().chain(settings) {
            all.insert((*name).to_owned(), (*value).to_owned());
        }
        self.nodes.insert(number, Node { address, source, settings: all, process: None, watcher: None });
        number
    }

    /// Another value of a setting, from the next start on.
    pub fn set(&mut self, node: usize, name: &str, value: &str) {
        self.node_mut(node).settings.insert(name.to_owned(), value.to_owned());
    }

    /// Takes a setting out, from the next start on.
    pub fn unset(&mut self, node: usize, name: &str) {
        self.node_mut(node).settings.remove(name);
    }

    fn node(&self, node: usize) -> &Node {
        &self.nodes[&node]
    }

    fn node_mut(&mut self, node: usize) -> &mut Node {
        self.nodes.get_mut(&node).unwrap()
    }

    /// The numbers of all nodes, also of those that do not run.
    pub fn numbers(&self) -> Vec<usize> {
        self.nodes.keys().copied().collect()
    }

    /// Where a node listens.
    pub fn address(&self, node: usize) -> &str {
        &self.node(node).address
    }

    /// What a node reads.
    pub fn source(&self, node: usize) -> &Source {
        &self.node(node).source
    }

    /// What a process has written.
    pub fn log(&self, node: usize) -> String {
        self.node(node).process.as_ref().map(Process::log).unwrap_or_default()
    }

    /// Where a node keeps its store files.
    pub fn data_dir(&self, node: usize) -> PathBuf {
        self.dir.path().join(format!("data-{node}"))
    }

    /// What the nodes publish, seen by a client that is none of them.
    pub async fn observer(&self) -> Observer {
        self.ground.observer("chaos", &self.subnet).await
    }

    /// A version comes to every source.
    pub fn publish(&self, version: &str) {
        self.publish_heavy(version, 0);
    }

    /// The same with so many bytes of ballast in each file.
    pub fn publish_heavy(&self, version: &str, bytes: usize) {
        self.nodes.values().for_each(|node| node.source.add_heavy(version, bytes));
    }

    // ── What is done to them ────────────────────────────────────────────────────────────────────────────

    /// The command that runs a node.
    pub fn command(&self, node: usize) -> Command {
        let one = self.node(node);
        let config = self.dir.path().join(format!("node-{node}.toml"));
        let lines: String = one.settings.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
        std::fs::write(&config, lines).unwrap();
        let mut command = Command::new(binary("partage"));
        command.args(["dataset", "serve", "--cluster", "chaos", "--session-ms", SESSION_MS]);
        command.args(["--listen", &one.address]);
        command.arg("--source").arg(one.source.folder());
        command.arg("--data-dir").arg(self.data_dir(node));
        command.arg("--config").arg(config);
        self.ground.tell(&mut command, "chaos", &self.subnet, node);
        command
    }

    /// Starts a process, and does not wait for it.
    pub fn start(&mut self, node: usize) {
        let log = self.dir.path().join(format!("node-{node}.log"));
        let process = Process::start(&format!("node {node}"), self.command(node), &log);
        let rest = self.rest;
        let one = self.node_mut(node);
        let watcher = one.watcher.get_or_insert_with(|| Watcher::start(&one.address, rest));
        watcher.strikes();
        one.process = Some(process);
    }

    /// Starts the process of every node.
    pub fn start_all(&mut self) {
        self.numbers().into_iter().for_each(|node| self.start(node));
    }

    /// Starts all, and waits until clients get `version` everywhere.
    pub async fn start_with(&mut self, version: &str) {
        self.publish(version);
        self.start_all();
        self.all_serve(version).await;
    }

    fn struck(&mut self, node: usize) -> &mut Process {
        let one = self.node_mut(node);
        one.watcher.as_ref().unwrap().strikes();
        one.process.as_mut().unwrap()
    }

    /// Asks a node to end, and waits until it has.
    pub async fn stop(&mut self, node: usize) {
        let process = self.struck(node);
        process.terminate();
        let status = process.end().await;
        assert!(status.success(), "node {node} did not end in order: {status}\n{}", self.log(node));
        self.sees(node, &Sight::Down).await;
    }

    /// Kills a node at once, as `kill -9` does, and waits until its clients get no answer.
    pub async fn kill(&mut self, node: usize) {
        self.struck(node).kill();
        self.sees(node, &Sight::Down).await;
    }

    /// The process of a node, which was started before.
    pub fn process(&self, node: usize) -> &Process {
        self.node(node).process.as_ref().unwrap()
    }

    /// Asks a node to look at its source.
    pub fn refresh(&self, node: usize) {
        self.process(node).hang_up();
    }

    /// Asks all that run to look at their sources.
    pub fn refresh_all(&self) {
        self.running().into_iter().for_each(|node| self.refresh(node));
    }

    fn running(&self) -> Vec<usize> {
        let watcher = |node: &Node| node.watcher.as_ref().and_then(Watcher::last);
        let runs = |node: &Node| node.process.is_some() && watcher(node) != Some(Sight::Down);
        self.nodes.iter().filter(|(_, node)| runs(node)).map(|(number, _)| *number).collect()
    }

    // ── What is waited for ──────────────────────────────────────────────────────────────────────────────

    /// Waits until a node gives its clients that.
    pub async fn sees(&self, node: usize, expected: &Sight) {
        let one = self.node(node);
        let what = format!("node {node} at {} gives {expected}", one.address);
        until(&what, async || match one.watcher.as_ref().and_then(Watcher::last) {
            Some(sight) if sight == *expected => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }

    /// Waits until clients of a node get `version`.
    pub async fn serves(&self, node: usize, version: &str) {
        self.sees(node, &Sight::Version(version.to_owned())).await;
    }

    /// Waits until clients of every node get `version`.
    pub async fn all_serve(&self, version: &str) {
        for node in self.nodes.keys() {
            self.serves(*node, version).await;
        }
    }

    /// Every source has `version` now; waits until clients get it everywhere.
    pub async fn upgrade(&self, version: &str) {
        self.publish(version);
        self.refresh_all();
        self.all_serve(version).await;
    }

    /// Waits until a node that is running has looked at its source.
    pub async fn have_looked(&mut self) {
        self.marks += 1;
        let mark = format!("mark-{}", self.marks);
        let running = self.running();
        for node in &running {
            self.source(*node).mark(&mark);
            self.refresh(*node);
        }
        for node in running {
            until(&format!("node {node} has looked at its source"), async || {
                let reply = self.http.get(self.address(node), &format!("/zz-{mark}/a")).await?;
                if reply.status.is_success() { Ok(()) } else { Err(reply.text()) }
            })
            .await;
        }
    }

    /// Waits until the watcher of every node has asked some more times: what is served is seen.
    pub async fn are_watched(&self) {
        for (number, node) in &self.nodes {
            let Some(watcher) = &node.watcher else { continue };
            let enough = watcher.looks() + 6;
            until(&format!("node {number} is asked some more times"), async || match watcher.looks() {
                looks if looks >= enough => Ok(()),
                looks => Err(format!("{looks} of {enough}")),
            })
            .await;
        }
    }

    /// Waits until every node that runs knows all others that run, of which each has heard of `version`.
    pub async fn are_acquainted(&self, version: &str) {
        let running = self.running();
        let all: BTreeSet<String> = running.iter().map(|node| self.address(*node).to_owned()).collect();
        for node in running {
            until(&format!("node {node} knows all others"), async || {
                let known = status::known(&self.http, self.address(node), version).await?;
                if known == all { Ok(()) } else { Err(format!("{known:?}")) }
            })
            .await;
        }
    }

    /// Waits until a node knows another, which has heard of `version`.
    pub async fn knows_of(&self, node: usize, other: usize, version: &str) {
        until(&format!("node {node} knows what node {other} has"), async || {
            let known = status::known(&self.http, self.address(node), version).await?;
            if known.contains(self.address(other)) { Ok(()) } else { Err(format!("{known:?}")) }
        })
        .await;
    }

    /// Checks all of `version` at a node while a third one sleeps. What it lacks is a fault if it knew `other` before and
    /// after; where it did not, as the machine had too much to do for gossip, it is asked again.
    pub async fn serves_with(&self, node: usize, other: usize, version: &str) {
        let address = self.address(node);
        let knows = async || -> Result<bool, String> {
            Ok(status::known(&self.http, address, version).await?.contains(self.address(other)))
        };
        until(&format!("node {node} serves {version} with node {other}"), async || {
            let before = knows().await?;
            let lacked = super::watch::checked(&self.http, address, version).await;
            let knew = before && knows().await?;
            assert!(lacked.is_ok() || !knew, "node {node} knew node {other}: {lacked:?}");
            lacked
        })
        .await;
    }

    /// Waits until each node has these partitions of a version.
    pub async fn hold(&self, version: &str, expected: &[(usize, BTreeSet<u32>)]) {
        for (node, expected) in expected {
            until(&format!("node {node} has {expected:?} of {version}"), async || {
                let held = status::held(&self.http, self.address(*node), version).await?;
                if held == *expected { Ok(()) } else { Err(format!("{held:?}")) }
            })
            .await;
        }
    }

    /// Waits until a version is gone from a node.
    pub async fn is_gone(&self, node: usize, version: &str) {
        until(&format!("{version} is gone from node {node}"), async || {
            match status::state(&self.http, self.address(node), version).await?.as_str() {
                "unknown" => Ok(()),
                state => Err(state.to_owned()),
            }
        })
        .await;
    }

    /// Waits until a node has found the list of nodes stable, and takes what it is dealt.
    pub async fn is_settled(&self, node: usize) {
        until(&format!("node {node} is settled"), async || {
            let health = status::json(&self.http, self.address(node), "/-/health").await?;
            if health["status"] == "ok" { Ok(()) } else { Err(health.to_string()) }
        })
        .await;
    }

    /// Waits until every node has noticed that its session is over.
    pub async fn have_lost_their_sessions(&self) {
        for node in self.nodes.keys() {
            until(&format!("node {node} has lost its session"), async || {
                let log = self.log(*node);
                if log.contains("session with the coordination service is lost") { Ok(()) } else { Err(log) }
            })
            .await;
        }
    }

    /// Waits until a node has said something so often.
    pub async fn logs(&self, node: usize, what: &str, times: usize) {
        until(&format!("node {node} says {what:?} {times} times"), async || {
            let log = self.log(node);
            if log.matches(what).count() >= times { Ok(()) } else { Err(log) }
        })
        .await;
    }

    /// The seat of a node.
    pub async fn seat(&self, node: usize) -> Result<u32, String> {
        let seat = status::shard_id(&self.http, self.address(node)).await?;
        seat.parse().map_err(|_| format!("node {node} has the shard id {seat:?}"))
    }

    /// What the nodes that run are dealt from now on, of each partition so many replicas.
    pub async fn shares(&self, dealing: Dealing, replicas: u32) -> Vec<(usize, BTreeSet<u32>)> {
        let running = self.running();
        let mut seats = Vec::new();
        for node in &running {
            seats.push(until("there is a seat", async || self.seat(*node).await).await);
        }
        running.into_iter().zip(dealt(dealing, &seats, replicas)).collect()
    }

    /// Waits until a node sits at that seat.
    pub async fn sits(&self, node: usize, expected: &str) {
        until(&format!("node {node} has shard id {expected}"), async || {
            let seat = status::shard_id(&self.http, self.address(node)).await?;
            if seat == expected { Ok(()) } else { Err(seat) }
        })
        .await;
    }

    // ── What must be so ─────────────────────────────────────────────────────────────────────────────────

    /// Samples every kind of request at every node that runs.
    pub async fn check(&self, version: &str) {
        for node in self.running() {
            watch::check(&self.http, self.address(node), version).await;
        }
    }

    /// The same at some.
    pub async fn check_at(&self, nodes: &[usize], version: &str) {
        for node in nodes {
            watch::check(&self.http, self.address(*node), version).await;
        }
    }

    /// What could not be had at a node since this was last asked.
    pub fn lacked(&self, node: usize) -> Vec<String> {
        self.node(node).watcher.as_ref().map(Watcher::lacked).unwrap_or_default()
    }

    /// Nothing that was served could not be had, at any node, since this was last asked.
    pub fn lack_nothing(&self) {
        for node in self.nodes.keys() {
            let lacked = self.lacked(*node);
            assert!(
                lacked.is_empty(),
                "node {node}: {} failed reads, the first: {}",
                lacked.len(),
                lacked[0]
            );
        }
    }

    /// Takes what could not be had for granted.
    pub fn excuse(&self) {
        self.nodes.keys().for_each(|node| drop(self.lacked(*node)));
    }

    /// What each node's clients got, from the first version on, was this, and all of it was right. What is between `[`
    /// and `]` may be passed over.
    pub async fn have_seen(&self, expected: &[&str]) {
        self.are_watched().await;
        self.lack_nothing();
        assert_eq!(self.nodes.len(), expected.len());
        for ((number, node), expected) in self.nodes.iter().zip(expected) {
            let watcher = node.watcher.as_ref().unwrap();
            watcher.is_sound(&format!("node {number}"));
            let (seen, short, long) =
                (watcher.progression(), without(expected), expected.replace(['[', ']'], ""));
            assert!(seen == short || seen == long, "node {number} has given {seen}, and not {expected}");
        }
    }

    /// The same of all nodes.
    pub async fn have_all_seen(&self, expected: &str) {
        self.have_seen(&vec![expected; self.nodes.len()]).await;
    }
}
