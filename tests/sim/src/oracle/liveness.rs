//! What has to come about once faults have stopped.

use super::{Finding, Oracles};
use crate::clock::{SECOND, True};
use crate::model::KeyAt;
use crate::node::Node;
use crate::router::Router;
use partage_core::cluster::admin::{DrainProgress, DrainStatus};
use partage_core::exchange::ReplicaKey;
use partage_core::lifecycle::ReplicaState;
use partage_core::map::{Replica, Shard, ShardMap};
use partage_core::name::NodeId;
use std::collections::BTreeSet;

/// Shards without a bad key that may be set aside in a run: faults come as fast as if a shard caused them, and a key
/// that could not be read may be readable again.
const BLAMED_BY_CHANCE: usize = 2;

/// L1: every key of every exclusive keyspace has an owner; and every shard is settled, but for what waits for a
/// node that is `stuck`. L5: of what was set aside, where a person releases it, only what holds a `bad` key may be
/// left; without a person also what chance has blamed, [`BLAMED_BY_CHANCE`] at the most.
pub fn owned(
    oracles: &Oracles,
    bad: &BTreeSet<KeyAt>,
    now: True,
    stuck: &BTreeSet<&NodeId>,
    is_person: bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut blamed = 0;
    for (keyspace, space) in oracles.spaces.iter().enumerate() {
        let name = &space.keyspace.name;
        let Some(map) = oracles.maps.latest(name) else { continue };
        let is_aside = |shard: &Shard| oracles.maps.is_aside(name, shard.id);
        let has_bad =
            |shard: &Shard| space.keys_in(&shard.bounds).any(|key| bad.contains(&KeyAt { keyspace, key }));
        blamed += map.shards().filter(|shard| is_aside(shard) && !has_bad(shard)).count();
        let is_bad = |shard: &Shard| is_aside(shard) && (!is_person || has_bad(shard));
        for key in 0..space.keys.len() {
            let (at, shard) = (KeyAt { keyspace, key }, map.find(&space.keys[key]));
            let waits = shard.is_some_and(&is_bad);
            if space.is_exclusive() && !waits && oracles.ownership.owner(now, at).is_none() {
                findings.push(("L1", format!("nobody owns key {key} of {name}: {shard:?}")));
            }
        }
        let waits = |replica: &Replica| replica.state != ReplicaState::Live && stuck.contains(&replica.node);
        let served = |shard: &Shard| shard.leader().is_some() || !shard.is_serving();
        let waits = |shard: &Shard| served(shard) && shard.replicas.iter().any(waits);
        let unsettled = map.shards().filter(|shard| !(shard.is_settled() || waits(shard) || is_bad(shard)));
        findings.extend(unsettled.map(|shard| ("L1", format!("{name} {shard:?} is not settled"))));
    }
    if blamed > BLAMED_BY_CHANCE {
        findings.push(("L5", format!("{blamed} shards are set aside that harm nobody")));
    }
    findings
}

/// L7: a worker holds nothing that no map names.
pub fn leaks(oracles: &Oracles, node: &Node) -> Vec<Finding> {
    let held = node.process.iter().flat_map(|process| process.worker.holdings().keys());
    let is_named = |replica: &ReplicaKey| {
        let map = oracles.maps.latest(&replica.keyspace);
        let is_there = map.and_then(|map| map.shard(replica.shard)?.replica(replica.placement)).is_some();
        // Of a shard that is set aside and served by nobody it may be the only copy, or one of its ancestors.
        let is_unserved =
            |shard: &Shard| shard.leader().is_none() && oracles.maps.is_aside(&replica.keyspace, shard.id);
        is_there || map.is_some_and(|map| map.shards().any(is_unserved))
    };
    let leaked = held.filter(|replica| !is_named(replica));
    leaked.map(|r| ("L7", format!("{} still holds {} {}", node.id, r.keyspace, r.placement))).collect()
}

/// L8: every drain that has begun has ended, or says what blocks it. While somebody is stuck it may go on.
pub fn drained(oracles: &Oracles, drains: &[DrainStatus], is_stuck: bool) -> Vec<Finding> {
    let held = |drain: &DrainStatus| {
        let replicas = oracles.maps.all().flat_map(|map| map.shards()).flat_map(|shard| &shard.replicas);
        replicas.filter(|replica| replica.node == drain.node).count()
    };
    // What is set aside goes nowhere by itself.
    let only_aside = |drain: &DrainStatus| {
        oracles.maps.all().all(|map| {
            let on_it = |shard: &&Shard| shard.replicas.iter().any(|replica| replica.node == drain.node);
            map.shards().filter(on_it).all(|shard| oracles.maps.is_aside(map.keyspace(), shard.id))
        })
    };
    let ended = |drain: &&DrainStatus| match &drain.progress {
        DrainProgress::SafeToStop => held(drain) == 0,
        DrainProgress::Blocked { why, .. } => !why.is_empty(),
        DrainProgress::Queued { behind, .. } => !behind.is_empty(),
        DrainProgress::Moving { .. } => is_stuck || only_aside(drain),
    };
    let stuck = drains.iter().filter(|drain| !ended(drain));
    stuck.map(|drain| ("L8", format!("the drain of {drain}, which holds {} replicas", held(drain)))).collect()
}

/// L2: nothing moves any more.
pub fn quiet(oracles: &Oracles, commits_before: u64) -> Vec<Finding> {
    let more = oracles.maps.commits - commits_before;
    if more == 0 { Vec::new() } else { vec![("L2", format!("{more} commits while nothing happened"))] }
}

/// How long a map may take to reach every router.
const INFORMED_WITHIN: True = SECOND;

/// L3: every router has the map.
pub fn informed(oracles: &Oracles, now: True, routers: &[Router]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for router in routers {
        let is_old = |map: &&ShardMap| now >= oracles.maps.committed_at(map.keyspace()) + INFORMED_WITHIN;
        for map in oracles.maps.all().filter(is_old) {
            let has = router.map(map.keyspace()).map(|held| held.generation());
            if has != Some(map.generation()) {
                let text = format!(
                    "router {} has {has:?} of {}, not {}",
                    router.at,
                    map.keyspace(),
                    map.generation()
                );
                findings.push(("L3", text));
            }
        }
    }
    findings
}

/// What nobody is to notice of a leader's trouble: since `commits_before` no map has changed (M10), nobody was declared
/// dead (R6), and whatever need not have one owner was served (A15).
pub fn unnoticed(oracles: &Oracles, commits_before: u64) -> Vec<Finding> {
    let (more, deaths) = (oracles.maps.commits - commits_before, oracles.maps.deaths);
    let failed = oracles.data.unserved;
    let findings = [
        ("M10", more, "commits that nothing but a change of leaders called for"),
        ("R6", deaths, "nodes declared dead while only leaders had faults"),
        ("A15", failed, "operations failed on keyspaces that are always served"),
    ];
    let found = findings.into_iter().filter(|(_, count, _)| *count > 0);
    found.map(|(invariant, count, what)| (invariant, format!("{count} {what}"))).collect()
}
