//! What has to come about once faults have stopped.

use super::{Finding, Oracles};
use crate::clock::{SECOND, True};
use crate::model::{KeyAt, Space};
use crate::node::Node;
use crate::router::Router;
use partage_core::base::name::NodeId;
use partage_core::cluster::admin::{DrainProgress, DrainStatus};
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{Replica, Shard, ShardMap, Stage};
use partage_core::node::exchange::ReplicaKey;
use std::collections::{BTreeMap, BTreeSet};

/// Shards without a bad key that may be blamed in a run: faults come as fast as if a shard caused them, and a key that
/// could not be read may be readable again. What a shard becomes when it is split has its rule and no blame of its own:
/// which of the parts is to blame is not known. So all of them count as one (seed 23920: one shard, split twice, was four).
const BLAMED_BY_CHANCE: usize = 2;

/// How many shards chance may have blamed in a run: a process that dies again and again takes the same shards on each time, and
/// may be the last of a row of dead ones for one of them (seed 1984 with --durable: three such processes, three shards).
pub fn blamed_by_chance(crash_loops: usize) -> usize {
    BLAMED_BY_CHANCE.max(crash_loops)
}

/// L1: every key of every exclusive keyspace has an owner; and every shard is settled, but for what waits for a
/// node that is `stuck`, or for a shard that is set aside, that only `stuck` processes may lead, or whose copies were all on
/// disks that were lost. L5: of what was set
/// aside, where a person releases it, only what holds a `bad` key may be left; without a person also what chance has blamed,
/// so many at the most.
pub fn owned(
    oracles: &Oracles,
    bad: &BTreeSet<KeyAt>,
    now: True,
    stuck: &BTreeSet<&NodeId>,
    (is_person, by_chance): (bool, usize),
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (mut blamed, mut rightly) = (BTreeSet::new(), BTreeSet::new());
    for (keyspace, space) in oracles.spaces.iter().enumerate() {
        let name = &space.keyspace.name;
        let Some(map) = oracles.maps.latest(name) else { continue };
        let is_aside = |shard: &Shard| oracles.maps.is_aside(name, shard.id);
        let has_bad =
            |shard: &Shard| space.keys_in(&shard.bounds).any(|key| bad.contains(&KeyAt { keyspace, key }));
        for shard in map.shards() {
            let Some(of) = oracles.maps.blamed(name, shard.id) else { continue };
            blamed.insert((keyspace, of));
            if has_bad(shard) {
                rightly.insert((keyspace, of));
            }
        }
        let is_bad = |shard: &Shard| is_aside(shard) && (!is_person || has_bad(shard));
        let is_stuck = |shard: &Shard| has_only_stuck(space, shard, stuck);
        let disks = &oracles.storage.disks;
        let is_lost = |shard: &Shard| {
            let mut parents = shard.parents().iter().filter_map(|parent| map.shard(*parent));
            disks.are_lost(name, shard)
                || disks.are_last_writes_lost(name, shard)
                || shard.is_serving() && parents.any(|parent| disks.are_last_writes_lost(name, parent))
        };
        let waits_for_person = |shard: &Shard| is_bad(shard) || is_stuck(shard) || is_lost(shard);
        for key in 0..space.keys.len() {
            let (at, shard) = (KeyAt { keyspace, key }, map.find(&space.keys[key]));
            let is_there = shard.is_some() || !space.is_named();
            let waits = !is_there || shard.is_some_and(&waits_for_person);
            if space.is_exclusive() && !waits && oracles.ownership.owner(now, at).is_none() {
                findings.push(("L1", format!("nobody owns key {key} of {name}: {shard:?}")));
            }
        }
        let waits = |replica: &Replica| replica.state != ReplicaState::Live && stuck.contains(&replica.node);
        let served = |shard: &Shard| shard.leader().is_some() || !shard.is_serving();
        let waits = |shard: &Shard| served(shard) && shard.replicas.iter().any(waits);
        // What a shard that waits for a person was split or merged from has the only data, until a child serves; the
        // children have its keys and a higher epoch, so there is no way back for it (seeds 32676, 440054).
        let waits_for_child = |shard: &Shard| {
            let Stage::Closing(children) = shard.stage() else { return false };
            let mut children = children.iter().filter_map(|child| map.shard(*child));
            children.any(|child| is_bad(child) && child.leader().is_none() || is_stuck(child))
        };
        // What is being split or merged goes on when its parents' copies serve, which only that person can bring about
        // (seed 2323 with --stuck --durable: one copy does not open, the other's process gets no lease).
        let waits_for_parent = |shard: &Shard| {
            let Stage::Forming(_) = shard.stage() else { return false };
            shard.parents().iter().filter_map(|parent| map.shard(*parent)).any(is_stuck)
        };
        let is_excused = |shard: &Shard| {
            waits(shard) || waits_for_person(shard) || waits_for_child(shard) || waits_for_parent(shard)
        };
        let unsettled = map.shards().filter(|shard| !(shard.is_settled() || is_excused(shard)));
        findings.extend(unsettled.map(|shard| ("L1", format!("{name} {shard:?} is not settled"))));
    }
    let blamed = blamed.difference(&rightly).count();
    if blamed > by_chance {
        findings.push(("L5", format!("{blamed} shards are set aside that harm nobody")));
    }
    findings
}

/// Whether only processes that are stuck for ever have what was written in a shard: no other one may serve it without
/// that, and only a person can end them (seed 440038).
fn has_only_stuck(space: &Space, shard: &Shard, stuck: &BTreeSet<&NodeId>) -> bool {
    let mut copies = shard.live().peekable();
    space.keyspace.durable
        && shard.is_serving()
        && copies.peek().is_some()
        && copies.all(|r| stuck.contains(&r.node))
}

/// What the status must say where that is so: which process a person has to restart. `hung` is what it says.
pub fn told(
    oracles: &Oracles,
    now: True,
    stuck: &BTreeSet<&NodeId>,
    hung: &BTreeMap<NodeId, usize>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (keyspace, space) in oracles.spaces.iter().enumerate().filter(|(_, space)| space.is_exclusive()) {
        let Some(map) = oracles.maps.latest(&space.keyspace.name) else { continue };
        for shard in map.shards().filter(|shard| has_only_stuck(space, shard, stuck)) {
            let mut keys = space.keys_in(&shard.bounds).map(|key| KeyAt { keyspace, key });
            let is_owned = keys.all(|at| oracles.ownership.owner(now, at).is_some());
            let is_told = shard.live().count() > 1 || shard.live().any(|r| hung.contains_key(&r.node));
            let is_aside = oracles.maps.is_aside(&space.keyspace.name, shard.id);
            if !(is_owned || is_told || is_aside) {
                findings
                    .push(("A12", format!("nothing is said of {shard:?}, whose only copy hangs: {hung:?}")));
            }
        }
    }
    findings
}

/// L7: a worker holds nothing that no map names.
pub fn leaks(oracles: &Oracles, node: &Node, stuck: &BTreeSet<&NodeId>) -> Vec<Finding> {
    let held = node.process.iter().flat_map(|process| process.worker.local_replicas().keys());
    let is_named = |replica: &ReplicaKey| {
        let map = oracles.maps.latest(&replica.keyspace);
        let is_there = map.and_then(|map| map.shard(replica.shard)?.replica(replica.placement)).is_some();
        let space = oracles.spaces.iter().find(|space| space.keyspace.name == replica.keyspace);
        // Of a shard that is set aside and served by nobody it may be the only copy, or one of its ancestors. So it may
        // where only stuck processes have what others would serve (seed 440384: a split was given up, its parent hangs).
        let is_unserved = |shard: &Shard| {
            shard.leader().is_none() && oracles.maps.is_aside(&replica.keyspace, shard.id)
                || space.is_some_and(|space| has_only_stuck(space, shard, stuck))
                || oracles.storage.disks.are_last_writes_lost(&replica.keyspace, shard)
        };
        // A leader that forgot that it was given out lets no node delete it.
        let may_be_only = oracles.maps.is_forgotten(replica) || oracles.maps.is_given_up(replica);
        is_there || may_be_only || map.is_some_and(|map| map.shards().any(is_unserved))
    };
    let leaked = held.filter(|replica| !is_named(replica));
    leaked.map(|r| ("L7", format!("{} still holds {} {}", node.id, r.keyspace, r.placement))).collect()
}

/// L8: every drain that has begun has ended, or says what blocks it. While a worker is stuck it may go on.
pub fn drained(oracles: &Oracles, drains: &[DrainStatus], is_stuck: bool) -> Vec<Finding> {
    let held = |drain: &DrainStatus| {
        let replicas = oracles.maps.all().flat_map(|map| map.shards()).flat_map(|shard| &shard.replicas);
        // What waits in `Load` for a process that never serves again was never complete.
        let waits = |replica: &Replica| is_stuck && replica.state == ReplicaState::Load;
        replicas.filter(|replica| replica.node == drain.node && !waits(replica)).count()
    };
    // What is set aside goes nowhere by itself. What waits for a person otherwise, the drain calls blocked (seed 185 with
    // --nobody --durable).
    let is_aside = |drain: &DrainStatus| {
        oracles.maps.all().all(|map| {
            let on_it = |shard: &&Shard| shard.replicas.iter().any(|replica| replica.node == drain.node);
            map.shards().filter(on_it).all(|shard| oracles.maps.is_aside(map.keyspace(), shard.id))
        })
    };
    let ended = |drain: &&DrainStatus| match &drain.progress {
        DrainProgress::SafeToStop => held(drain) == 0,
        DrainProgress::Blocked { why, .. } => !why.is_empty(),
        DrainProgress::Queued { behind, .. } => !behind.is_empty(),
        DrainProgress::Moving { .. } => is_stuck || is_aside(drain),
    };
    let stuck = drains.iter().filter(|drain| !ended(drain));
    stuck.map(|drain| ("L8", format!("the drain of {drain}, which holds {} replicas", held(drain)))).collect()
}

/// L2: nothing moves any more.
pub fn quiet(oracles: &Oracles, commits_before: u64) -> Vec<Finding> {
    let more = oracles.maps.commits - commits_before;
    if more == 0 { Vec::new() } else { vec![("L2", format!("{more} commits while nothing happened"))] }
}

/// Commits in a second that workers which are stuck may cause for ever, as they are tried again.
const STUCK_COMMITS: u64 = 8;

/// L2: what is tried again with workers that are stuck is not all the time. Seed 5082 with --nobody --stuck --durable moved
/// shards to and fro, twelve commits a second, as one of two that were to change places could not be moved.
pub fn nearly_quiet(oracles: &Oracles, commits_before: u64, long: True) -> Vec<Finding> {
    let more = oracles.maps.commits - commits_before;
    let is_much = more > STUCK_COMMITS * (long / SECOND);
    let text = || {
        format!(
            "{more} commits in {} s while nothing happened but with workers that are stuck",
            long / SECOND
        )
    };
    is_much.then(|| ("L2", text())).into_iter().collect()
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
            let lost = router.lacks_leader(map, |leader| oracles.maps.runs(&leader.node, leader.incarnation));
            findings.extend(lost.map(|text| ("L3", text)));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{self, Cast};
    use partage_core::base::id::{Incarnation, ShardId, TransactionId};
    use partage_core::cluster::{Records, Write};
    use partage_core::keyspace::key::{Key, KeyRange};
    use partage_core::keyspace::map::Edit;
    use partage_core::keyspace::sharding::Bounds;

    /// A keyspace of four shards as the oracles see it, each led by one node.
    struct Space {
        oracles: Oracles,
        records: Records,
    }

    impl Space {
        fn begin() -> Space {
            let cast = Cast {
                replicas: 1,
                carries: false,
                reshards: false,
                is_hasty: false,
                is_slow: false,
                drafts: false,
                slots: false,
                durable: false,
                replicated: false,
                partitions: false,
            };
            let mut spaces = model::spaces(cast);
            spaces.truncate(1);
            let keyspaces = vec![spaces[0].first_records()];
            let oracles = Oracles::new(spaces.into(), 2);
            let mut space = Space { oracles, records: Records { keyspaces, ..Records::default() } };
            space.edit(|edit| (1..=4).for_each(|shard| serve(edit, shard, "node-0")));
            space
        }

        fn commit(&mut self, write: Write) {
            self.oracles.maps.committed(1, 1, &[write], &self.records);
        }

        fn edit(&mut self, change: impl FnOnce(&mut Edit<'_>)) {
            let map = &mut self.records.keyspaces[0].1;
            let mut edit = map.edit();
            change(&mut edit);
            let diff = edit.commit(TransactionId([map.generation().sequence as u8 + 1; 20]));
            map.apply(&diff).unwrap();
            self.commit(Write::Map(diff));
        }

        /// Sets exactly these aside.
        fn set_aside(&mut self, shards: &[u64]) {
            let record = &mut self.records.keyspaces[0].0;
            record.rules.clear();
            for shard in shards {
                record.rules.entry(ShardId(*shard)).or_default().set_aside = Some("it kills".to_owned());
            }
            let record = record.clone();
            self.commit(Write::Keyspace(record));
        }

        /// What is found of L5, or that shards are not settled.
        fn found(&self) -> Vec<String> {
            let found =
                owned(&self.oracles, &BTreeSet::new(), 2, &BTreeSet::new(), (false, blamed_by_chance(0)));
            let texts = found.into_iter().map(|(_, text)| text);
            texts.filter(|text| text.contains("not settled") || text.contains("set aside")).collect()
        }
    }

    fn serve(edit: &mut Edit<'_>, shard: u64, node: &str) {
        let (shard, node) = (ShardId(shard), NodeId::new(node).unwrap());
        let placement = edit.add_replica(shard, &node, Incarnation(1), None).unwrap();
        edit.step(shard, placement, ReplicaState::Live).unwrap();
        edit.lead(shard, placement).unwrap();
    }

    fn keys(from: &str, to: &str) -> Bounds {
        let key = |text: &str| Key::new(text.as_bytes()).unwrap();
        Bounds::Keys(KeyRange::new(key(from), key(to)).unwrap())
    }

    /// The children of `parents`, which serve from here on where `node` is.
    fn become_children(space: &mut Space, parents: &[u64], bounds: Vec<Bounds>, node: &str) -> Vec<u64> {
        let parents: Vec<_> = parents.iter().copied().map(ShardId).collect();
        let mut children = Vec::new();
        space.edit(|edit| children = edit.form_shards(bounds, &parents).unwrap());
        space.edit(|edit| {
            let node = NodeId::new(node).unwrap();
            for child in &children {
                let placement = edit.add_replica(*child, &node, Incarnation(1), None).unwrap();
                edit.step(*child, placement, ReplicaState::Live).unwrap();
            }
        });
        children.into_iter().map(|child| child.0).collect()
    }

    fn switch(space: &mut Space, parents: &[u64], children: &[u64]) {
        let ids = |shards: &[u64]| shards.iter().copied().map(ShardId).collect::<Vec<_>>();
        space.edit(|edit| edit.switch(&ids(parents), &ids(children)).unwrap());
    }

    #[test]
    fn l5_what_a_blamed_shard_was_split_into_counts_as_one() {
        let mut space = Space::begin();
        space.set_aside(&[2]);
        let halves = vec![keys("k04", "k06"), keys("k06", "k08")];
        assert_eq!(become_children(&mut space, &[2], halves, "node-1"), [5, 6]);
        space.set_aside(&[2, 5, 6]);
        switch(&mut space, &[2], &[5, 6]);
        space.set_aside(&[5, 6]);
        let quarters = vec![keys("k04", "k05"), keys("k05", "k06")];
        assert_eq!(become_children(&mut space, &[5], quarters, "node-1"), [7, 8]);
        space.set_aside(&[5, 6, 7, 8]);
        let blames = |space: &Space| space.found().into_iter().find(|text| text.contains("set aside"));
        assert_eq!(blames(&space), None, "four shards are set aside, and one was blamed");
        space.set_aside(&[1, 3, 5, 6, 7, 8]);
        assert_eq!(blames(&space).as_deref(), Some("3 shards are set aside that harm nobody"));
        // What is released and blamed anew is to blame itself.
        space.set_aside(&[]);
        space.set_aside(&[6, 7, 8]);
        assert_eq!(blames(&space).as_deref(), Some("3 shards are set aside that harm nobody"));
    }

    #[test]
    fn l1_the_parents_of_a_child_that_is_set_aside_wait_with_it() {
        let mut space = Space::begin();
        assert_eq!(space.found(), [""; 0]);
        assert_eq!(become_children(&mut space, &[3, 4], vec![keys("k08", "")], "node-1"), [5]);
        switch(&mut space, &[3, 4], &[5]);
        // Its node dies before it has taken anything over.
        let placement = space.records.keyspaces[0].1.shard(ShardId(5)).unwrap().replicas[0].placement;
        space.edit(|edit| edit.remove_replica(ShardId(5), placement).unwrap());
        assert_eq!(space.found().len(), 3, "two that close, and one without a leader: {:?}", space.found());
        space.set_aside(&[5]);
        assert_eq!(space.found(), [""; 0]);
        space.edit(|edit| serve(edit, 5, "node-0"));
        assert_eq!(space.found().len(), 2, "now nothing holds the parents up: {:?}", space.found());
    }
}
