//! Processes that die again and again, whatever they serve: nothing is set aside, and when it is over everything
//! serves by itself (B6).

use super::super::admin::Command;
use super::test_cluster::{BEAT_MS, TestCluster, keyspace, name, node, settings, slots};
use crate::base::id::{ShardId, TransactionId};
use crate::keyspace::{Keyspace, Ownership};
use crate::node::NodeSpec;

const SHARDS: u32 = 60;
const ROUND_MS: u64 = 12_000;
/// Within which everything serves after the last crash.
const BACK_MS: u64 = 10_000;

/// How a round of crashes goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crash {
    /// All processes at the same moment, back so many milliseconds later.
    Together { back_ms: u64 },
    /// Each at its own time of the round.
    InTurn { back_ms: u64 },
}

struct Loop {
    test: TestCluster,
    specs: Vec<NodeSpec>,
    /// When each process that is down comes back.
    back: Vec<(u64, NodeSpec)>,
}

impl Loop {
    fn new(nodes: usize, keyspace: Keyspace) -> Loop {
        let mut test = TestCluster::new(keyspace, slots(SHARDS));
        (0..nodes).for_each(|at| test.join(&format!("n{at:02}")));
        test.run(3_000);
        assert_eq!(test.served().len(), SHARDS as usize);
        let specs = test.cluster.nodes().values().map(|node| node.record.spec.clone()).collect();
        Loop { test, specs, back: Vec::new() }
    }

    fn kill(&mut self, at: usize, back_ms: u64) {
        let spec = self.specs[at].clone();
        if self.test.workers.contains_key(&spec.id) {
            self.test.kill(spec.id.as_str());
            self.back.push((self.test.now + back_ms, spec));
        }
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms / BEAT_MS {
            let now = self.test.now;
            let (due, later) = self.back.drain(..).partition(|(at, _)| *at <= now);
            self.back = later;
            let due: Vec<(u64, NodeSpec)> = due;
            due.into_iter().for_each(|(_, spec)| self.test.join_as(spec));
            self.test.run(BEAT_MS);
        }
    }

    fn round(&mut self, crash: Crash) {
        let nodes = self.specs.len();
        match crash {
            Crash::Together { back_ms } => {
                (0..nodes).for_each(|at| self.kill(at, back_ms));
                self.run(ROUND_MS);
            }
            Crash::InTurn { back_ms } => {
                let gap_ms = ROUND_MS / nodes as u64 / BEAT_MS * BEAT_MS;
                for at in 0..nodes {
                    self.kill(at, back_ms);
                    self.run(gap_ms);
                }
                self.run(ROUND_MS - gap_ms * nodes as u64);
            }
        }
    }

    /// Everybody comes back and stays; everything serves within [`BACK_MS`].
    fn ends_well(mut self, what: &str) {
        while !self.back.is_empty() {
            self.run(BEAT_MS);
        }
        self.run(BACK_MS);
        let notices = &self.test.notices;
        let aside: Vec<_> = notices.iter().filter(|n| n.contains("is set aside and")).collect();
        assert!(aside.is_empty(), "{what}: {aside:#?}");
        let last = &notices[notices.len().saturating_sub(30)..];
        assert_eq!(
            self.test.served().len(),
            SHARDS as usize,
            "{what}: {:?} {last:#?}",
            (self.test.cluster.brake(), self.test.cluster.unrest())
        );
    }
}

fn crashes() -> [Crash; 5] {
    [
        Crash::Together { back_ms: 500 },
        // Silent for longer than it takes to be given up.
        Crash::Together { back_ms: 4_000 },
        Crash::InTurn { back_ms: 500 },
        Crash::InTurn { back_ms: 1_200 },
        Crash::InTurn { back_ms: 4_000 },
    ]
}

fn loops_end_well(nodes: impl IntoIterator<Item = usize>, rounds: usize) {
    for nodes in nodes {
        for crash in crashes() {
            let mut crashing = Loop::new(nodes, keyspace(SHARDS));
            (0..rounds).for_each(|_| crashing.round(crash));
            crashing.ends_well(&format!("{nodes} nodes, {rounds} rounds, {crash:?}"));
        }
    }
}

#[test]
fn r5_a_crash_loop_of_a_whole_release_sets_nothing_aside_and_ends_by_itself() {
    loops_end_well([3, 10], 3);
}

/// The figure that is stated.
#[test]
#[ignore = "takes minutes: ./test long"]
fn r5_a_crash_loop_of_three_to_ten_nodes_for_twenty_rounds_sets_nothing_aside() {
    loops_end_well(3..=10, 20);
}

#[test]
fn r5_whenever_a_crash_loop_ends_everything_serves_soon() {
    for rounds in [1, 2, 4] {
        for crash in crashes() {
            let exclusive = Keyspace { ownership: Ownership::Exclusive, ..keyspace(SHARDS) };
            for keyspace in [exclusive, Keyspace { replicas: 3, ..keyspace(SHARDS) }] {
                let replicas = keyspace.replicas;
                let mut crashing = Loop::new(5, keyspace);
                (0..rounds).for_each(|_| crashing.round(crash));
                crashing.ends_well(&format!("{rounds} rounds, {crash:?}, {replicas} replicas"));
            }
        }
    }
}

#[test]
fn r5_restarting_all_nodes_within_a_minute_sets_nothing_aside() {
    for nodes in [2, 3, 5, 10] {
        for gap_ms in [0, 500, 2_000, 6_000] {
            let mut restarted = Loop::new(nodes, keyspace(SHARDS));
            for at in 0..nodes {
                restarted.kill(at, 300);
                restarted.run(gap_ms);
            }
            restarted.ends_well(&format!("{nodes} nodes, every {gap_ms} ms"));
        }
    }
}

#[test]
fn r4_restarts_count_for_the_brake_and_it_ends_by_itself() {
    let mut crashing = Loop::new(10, keyspace(SHARDS));
    let generation = crashing.test.map().generation();
    for at in 0..2 {
        crashing.kill(at, 500);
        crashing.run(2_000);
    }
    assert!(crashing.test.cluster.unrest().is_none(), "two of ten are borne");
    crashing.kill(2, 500);
    crashing.run(2_000);
    let why = crashing.test.cluster.unrest().unwrap();
    assert_eq!(why, "3 of 10 nodes died or were started anew within 60 s");
    assert!(crashing.test.cluster.brake().is_none(), "there is nothing to release");
    assert!(crashing.test.map().generation() > generation, "what has no replica is placed");
    crashing.run(1_000);
    assert_eq!(crashing.test.served().len(), SHARDS as usize);
    crashing.test.join("n99");
    crashing.run(20_000);
    assert_eq!(crashing.test.counts().get("n99"), None, "nothing is moved meanwhile");
    crashing.run(settings().brake_window_ms);
    assert!(crashing.test.cluster.unrest().is_none());
    assert!(crashing.test.counts().contains_key("n99"), "{:#?}", crashing.test.notices);
}

#[test]
fn r4_the_brake_is_released_when_everybody_is_heard_again() {
    let mut crashing = Loop::new(10, keyspace(SHARDS));
    (0..5).for_each(|at| crashing.kill(at, 20_000));
    crashing.run(10_000);
    assert!(crashing.test.disk.cluster.brake.is_some());
    crashing.kill(5, 60_000);
    crashing.run(20_000);
    assert!(crashing.test.disk.cluster.brake.is_some(), "one is still missing");
    crashing.run(30_000);
    crashing.ends_well("a power line");
}

/// A shard that kills is still found out when other nodes crash for reasons of their own, once they stop.
#[test]
fn r5_a_shard_that_kills_is_found_out_after_a_crash_loop() {
    let mut crashing = Loop::new(12, keyspace(SHARDS));
    (0..5).for_each(|_| crashing.round(Crash::Together { back_ms: 500 }));
    crashing.run(4 * settings().poison_window_ms);
    crashing.test.poison = Some(ShardId(7));
    let mut deaths = 0;
    for _ in 0..1_200 {
        crashing.run(BEAT_MS);
        for at in 0..crashing.specs.len() {
            let spec = &crashing.specs[at];
            let waits = crashing.back.iter().any(|(_, back)| back.id == spec.id);
            if !waits && !crashing.test.workers.contains_key(&spec.id) {
                deaths += 1;
                crashing.back.push((crashing.test.now + 500, spec.clone()));
            }
        }
    }
    let aside: Vec<_> =
        crashing.test.notices.iter().filter(|notice| notice.contains("is set aside and")).collect();
    assert!(aside.len() == 1 && aside[0].contains("s7 of keyspace users"), "{aside:#?}");
    assert!(deaths <= 4, "{deaths}");
    assert_eq!(crashing.test.served().len(), SHARDS as usize - 1);
}

#[test]
fn r5_a_shard_that_is_held_back_is_placed_again_when_nodes_die_without_it() {
    let mut crashing = Loop::new(12, keyspace(SHARDS));
    crashing.test.poison = Some(ShardId(7));
    while !crashing.test.notices.iter().any(|notice| notice.contains("s7 of keyspace users is held back")) {
        crashing.run(BEAT_MS);
        assert!(crashing.test.now < 120_000, "{:#?}", crashing.test.notices);
    }
    // It was chance: the next ones fall without it.
    crashing.test.poison = None;
    let alive: Vec<_> = crashing.test.workers.keys().cloned().collect();
    alive[..3].iter().for_each(|id| crashing.test.kill(id.as_str()));
    crashing.run(20_000);
    let text = "shard s7 of keyspace users is placed again: nodes have died without it, too";
    assert_eq!(crashing.test.notices.iter().filter(|notice| *notice == text).count(), 1);
    let at = crashing.test.at();
    let release = Command::ReleaseBrake;
    crashing.test.cluster.command(at, TransactionId([9; 20]), "mia", release).unwrap();
    crashing.test.decide();
    crashing.run(BACK_MS);
    assert_eq!(crashing.test.served().len(), SHARDS as usize, "{:#?}", crashing.test.notices);
}

/// A person knows better than the evidence: what is suspected is placed at once.
#[test]
fn r5_a_person_releases_a_shard_that_is_held_back() {
    let mut crashing = Loop::new(12, keyspace(SHARDS));
    crashing.test.poison = Some(ShardId(7));
    while !crashing.test.notices.iter().any(|notice| notice.contains("s7 of keyspace users is held back")) {
        crashing.run(BEAT_MS);
        assert!(crashing.test.now < 120_000, "{:#?}", crashing.test.notices);
    }
    crashing.test.poison = None;
    let at = crashing.test.at();
    let release = |shard| Command::ReleaseShard { keyspace: name(), shard };
    let cluster = &mut crashing.test.cluster;
    let other = cluster.command(at, TransactionId([8; 20]), "mia", release(ShardId(6))).unwrap_err();
    assert!(other.to_string().contains("neither set aside nor held back"), "{other}");
    cluster.command(at, TransactionId([9; 20]), "mia", release(ShardId(7))).unwrap();
    assert!(cluster.keyspaces()[&name()].suspicion.held_back.is_empty());
    crashing.test.decide();
    crashing.run(5_000);
    assert!(crashing.test.served().contains(&ShardId(7)), "{:#?}", crashing.test.notices);
}

/// A release that can load nothing says nothing about any shard; when it is mended all of it is tried again.
#[test]
fn l5_a_release_that_loads_nothing_sets_nothing_aside() {
    let mut test = TestCluster::new(keyspace(12), slots(12));
    let nodes = ["a", "b", "c"];
    let all = test.map().shards().flat_map(|shard| nodes.iter().map(move |at| (shard.id, node(at))));
    test.fails = all.collect();
    nodes.iter().for_each(|name| test.join(name));
    test.run(20_000);
    let aside =
        test.cluster.keyspaces()[&name()].record.rules.values().filter(|rule| rule.set_aside.is_some());
    assert_eq!((aside.count(), test.served().len()), (0, 0), "{:#?}", test.notices);
    test.fails.clear();
    test.run(crate::limits::AVOID_MS + 5_000);
    assert_eq!(test.served().len(), 12, "{:#?}", test.notices);
}
