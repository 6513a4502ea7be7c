//! Every map that was ever committed, in the order of commits.

use super::Finding;
use super::rules::Rules;
use crate::clock::{MS, True};
use crate::message::Request;
use crate::mishaps::is_ghost;
use crate::model::Space;
use partage_core::base::id::{Epoch, Generation, Incarnation, PlacementId, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::base::settings::Settings;
use partage_core::base::time::Millis;
use partage_core::cluster::{KeyspaceRecord, LostIds, NodeRecord, Records, Write};
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{MapDiff, Replica, Role, Shard, ShardMap};
use partage_core::keyspace::sharding::{Bounds, geometry};
use partage_core::node::exchange::ReplicaKey;
use partage_core::node::lease::GrantedLease;
use partage_core::plan::check;
use partage_core::worker::gates::Permit;
use std::collections::{BTreeMap, BTreeSet};

/// A place to live: node and incarnation.
type Home = (NodeId, Incarnation);

/// The maps that were committed, and what follows from them.
#[derive(Debug)]
pub struct Maps {
    maps: BTreeMap<KeyspaceName, ShardMap>,
    /// Of each keyspace since it was created, by their numbers.
    generations: BTreeMap<(KeyspaceName, u64), Generation>,
    /// Of earlier lives of keyspaces, too.
    ever: BTreeSet<(KeyspaceName, Generation)>,
    /// The lowest id that shards of each keyspace can have.
    first_shards: BTreeMap<KeyspaceName, ShardId>,
    bounds: BTreeMap<(KeyspaceName, ShardId), Bounds>,
    leaders: BTreeMap<(KeyspaceName, ShardId, Epoch), Home>,
    placements: BTreeMap<(KeyspaceName, PlacementId), Home>,
    removed: BTreeSet<(KeyspaceName, ShardId)>,
    durable: BTreeSet<KeyspaceName>,
    /// From when on they must not act.
    ended: BTreeMap<Home, True>,
    /// The latest start of each node.
    started: BTreeMap<NodeId, Incarnation>,
    /// Nodes of which a start has a lower number than one before, as somebody has put another state in the place of the newest.
    /// Routers that know of the higher number take the node for one that does not serve yet.
    starts_back: BTreeSet<NodeId>,
    term: u64,
    /// The latest term that a coordinator was elected to.
    elected: u64,
    /// The coordinators that began to lead under each term.
    led: BTreeMap<u64, (usize, u32)>,
    /// Ids that may have been given out and were forgotten when a backup was restored.
    forgotten: BTreeMap<KeyspaceName, LostIds>,
    /// Keyspaces that were deleted: the coordinators know that of the shards below this one. It goes back with their
    /// counters.
    deleted: BTreeMap<KeyspaceName, ShardId>,
    /// Replicas that were let go, and that a restored map names as if they were not: their workers may delete them by the
    /// orders that they had, until they serve again.
    let_go: BTreeSet<(KeyspaceName, PlacementId)>,
    /// The leaders whose key an operator has deleted, by their terms, and until when they may not know of it.
    deposed: BTreeMap<u64, True>,
    /// Keyspaces whose stored map the leader has refused as one that was set back.
    refused: BTreeSet<KeyspaceName>,
    /// Keyspaces of which a leader took a map for the latest that an operator had set back.
    forked: BTreeSet<KeyspaceName>,
    /// The numbers of starts were set back, and no coordinator alive knew: they are given again.
    starts_again: bool,
    /// Shards that a person has given up.
    given_up: Vec<(KeyspaceName, Bounds)>,
    rules: Rules,
    settings: Settings,
    /// When each map was last committed.
    committed_at: BTreeMap<KeyspaceName, True>,
    /// Commits of maps so far.
    pub commits: u64,
    /// Nodes that were declared dead so far.
    pub deaths: u64,
    /// How often members of the in-sync set of a shard were left behind: they catch up, and come back.
    left_behind: BTreeMap<(KeyspaceName, ShardId), u64>,
}

impl Maps {
    /// Before the first commit.
    pub fn new(spaces: &[Space]) -> Maps {
        let there = spaces.iter().filter(|space| !space.comes_and_goes);
        let maps: BTreeMap<_, _> =
            there.map(|space| (space.keyspace.name.clone(), space.first_records().1)).collect();
        let bounds = maps
            .iter()
            .flat_map(|(name, map)| map.shards().map(|s| ((name.clone(), s.id), s.bounds.clone())))
            .collect();
        let first = |(name, map): (&KeyspaceName, &ShardMap)| {
            ((name.clone(), map.generation().sequence), map.generation())
        };
        let generations = maps.iter().map(first).collect();
        let ever = maps.iter().map(|(name, map)| (name.clone(), map.generation())).collect();
        let first_shards = maps.keys().map(|name| (name.clone(), ShardId(1))).collect();
        Maps {
            maps,
            generations,
            ever,
            first_shards,
            bounds,
            leaders: BTreeMap::new(),
            placements: BTreeMap::new(),
            removed: BTreeSet::new(),
            durable: spaces.iter().filter(|s| s.keyspace.durable).map(|s| s.keyspace.name.clone()).collect(),
            ended: BTreeMap::new(),
            started: BTreeMap::new(),
            starts_back: BTreeSet::new(),
            term: 0,
            elected: 0,
            led: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            deleted: BTreeMap::new(),
            let_go: BTreeSet::new(),
            deposed: BTreeMap::new(),
            refused: BTreeSet::new(),
            forked: BTreeSet::new(),
            starts_again: false,
            given_up: Vec::new(),
            rules: Rules::default(),
            settings: Settings::default(),
            committed_at: BTreeMap::new(),
            commits: 0,
            deaths: 0,
            left_behind: BTreeMap::new(),
        }
    }

    /// A replica serves, as its worker knows.
    pub fn serves(&mut self, replica: &ReplicaKey) {
        self.let_go.remove(&(replica.keyspace.clone(), replica.placement));
        self.rules.serves(replica);
    }

    /// Whether a shard is set aside.
    pub fn is_aside(&self, name: &KeyspaceName, shard: ShardId) -> bool {
        self.blamed(name, shard).is_some()
    }

    /// The shard that was blamed, if this one is set aside: itself, or the one that it was split or merged from.
    pub fn blamed(&self, name: &KeyspaceName, shard: ShardId) -> Option<ShardId> {
        self.rules.blamed(name, shard)
    }

    /// A coordinator was elected, whether it knows or not.
    pub fn elected(&mut self, term: u64) {
        self.elected = self.elected.max(term);
    }

    /// A process begins to lead: one for each term, and only once.
    pub fn leads(&mut self, term: u64, who: (usize, u32)) -> Option<Finding> {
        let before = self.led.insert(term, who)?;
        Some(("O10", format!("term {term} is led by {who:?}, and was by {before:?}")))
    }

    /// An operator deletes the key that names the leader. Until then its leader may act, which asks whether it leads once in a
    /// session's time; its successor allows for that.
    pub fn deposed(&mut self, until: True) {
        self.deposed.insert(self.elected, until);
    }

    /// O10 for what is never stored: a leader prolongs a lease, or grants.
    pub fn gives(&self, now: True, term: u64) -> Option<Finding> {
        let text = || format!("term {term} grants after term {} has begun", self.elected);
        let knows = self.deposed.get(&term).is_none_or(|until| now >= *until);
        (term < self.elected && knows).then(|| ("O10", text()))
    }

    /// The engine was restored, and a leader begins from `read` of what is `stored` there. What it does not refuse, nobody alive
    /// knew to be older: numbers that were given out since are given out again, and names there mean two things from here on.
    pub fn set_back(&mut self, stored: &Records, read: &Records) {
        let names = |records: &Records| -> BTreeSet<KeyspaceName> {
            records.keyspaces.iter().map(|(record, _)| record.keyspace.name.clone()).collect()
        };
        self.refused = &names(stored) - &names(read);
        let next = read.cluster.next_incarnation;
        self.starts_again |= self.started.values().any(|started| *started >= next);
        let is_older = |map: &ShardMap| self.maps.get(map.keyspace()).is_some_and(|latest| latest != map);
        let older = read.keyspaces.iter().map(|(_, map)| map).filter(|map| is_older(map));
        self.forked.extend(older.map(|map| map.keyspace().clone()));
    }

    /// An operator has changed what is durable, and a leader begins from `records`: they are what counts from here on. What
    /// names have meant they still mean (O3, M5).
    pub fn recalled(&mut self, now: True, records: &Records) {
        for (record, map) in &records.keyspaces {
            let name = &record.keyspace.name;
            self.forgotten.extend(record.lost.map(|lost| (name.clone(), lost)));
            let before = self.maps.insert(name.clone(), map.clone());
            if before.as_ref() != Some(map) {
                self.committed_at.insert(name.clone(), now);
            }
            let is_needed = |shard: ShardId, placement: PlacementId| {
                let held = before.as_ref()?.shard(shard)?.replica(placement)?;
                Some(held.state != ReplicaState::UnloadFinal)
            };
            let named = map.shards().flat_map(|shard| shard.replicas.iter().map(|r| (shard.id, r.placement)));
            let gone = named.filter(|(shard, placement)| is_needed(*shard, *placement) != Some(true));
            self.let_go.extend(gone.map(|(_, placement)| (name.clone(), placement)));
            self.generations.insert((name.clone(), map.generation().sequence), map.generation());
            self.ever.insert((name.clone(), map.generation()));
            for shard in map.shards() {
                for replica in shard.replicas.iter().filter(|_| self.durable.contains(name)) {
                    // It may have been bound to later processes since, and may be again.
                    let home = (replica.node.clone(), replica.incarnation);
                    self.placements.insert((name.clone(), replica.placement), home);
                }
                self.removed.remove(&(name.clone(), shard.id));
                if let Some(leader) = shard.leader() {
                    let home = (leader.node.clone(), leader.incarnation);
                    self.leaders.entry((name.clone(), shard.id, shard.epoch)).or_insert(home);
                }
            }
        }
        let known = &records.cluster.deleted_keyspaces;
        self.deleted
            .iter_mut()
            .for_each(|(name, below)| *below = known.get(name).copied().unwrap_or_default());
        let lease = GrantedLease::assumed(Millis(0), records.cluster.longest_lease_ms).end().0 * MS;
        for node in &records.nodes {
            let home = (node.spec.id.clone(), node.incarnation);
            if node.ended {
                // One that lives and was not ended by the state before may have a lease.
                self.ended.entry(home).or_insert(now + lease);
            } else {
                self.ended.remove(&home);
            }
        }
        self.rules.recalled(records);
    }

    /// The latest map of a keyspace.
    pub fn latest(&self, name: &KeyspaceName) -> Option<&ShardMap> {
        self.maps.get(name)
    }

    /// When the map of a keyspace was last committed.
    pub fn committed_at(&self, name: &KeyspaceName) -> True {
        self.committed_at.get(name).copied().unwrap_or(0)
    }

    /// All of the latest maps.
    pub fn all(&self) -> impl Iterator<Item = &ShardMap> {
        self.maps.values()
    }

    /// Whether a generation was ever committed.
    pub fn was_committed(&self, name: &KeyspaceName, generation: Generation) -> bool {
        self.ever.contains(&(name.clone(), generation))
    }

    /// The lowest id that shards of a keyspace can have, if it is there.
    pub fn first_shard(&self, name: &KeyspaceName) -> Option<ShardId> {
        self.first_shards.get(name).copied()
    }

    /// A keyspace is created; its first map comes in the same transaction.
    pub fn begin_life(&mut self, record: &KeyspaceRecord) {
        let settings = &record.keyspace;
        let map = ShardMap::empty(settings.name.clone(), settings.sharding, settings.partition_key);
        self.first_shards.insert(settings.name.clone(), record.first_shard);
        // The counters were set back since the former keyspace of that name was deleted, so it is not known that it was.
        let known = self.deleted.get(&settings.name).filter(|known| **known < record.first_shard);
        if let Some(known) = known {
            let none = PlacementId::default();
            let lost = LostIds { shards: (*known, record.first_shard), placements: (none, none) };
            self.forgotten.insert(settings.name.clone(), lost);
        }
        // Routers may have it from the empty map that it begins with.
        self.ever.insert((settings.name.clone(), map.generation()));
        self.maps.insert(settings.name.clone(), map);
    }

    /// A keyspace is deleted. Its ids are never used again.
    pub fn end_life(&mut self, name: &KeyspaceName) {
        self.deleted.insert(name.clone(), ShardId(u64::MAX));
        self.first_shards.remove(name);
        self.committed_at.remove(name);
        self.generations.retain(|(keyspace, _), _| keyspace != name);
        if let Some(map) = self.maps.remove(name) {
            self.removed.extend(map.shards().map(|shard| (name.clone(), shard.id)));
        }
    }

    /// A person has chosen a copy of this shard, on whatever node it is.
    pub fn chosen(&mut self, name: &KeyspaceName, shard: ShardId) {
        self.rules.chosen(name, shard);
    }

    /// A person has given up a shard: what workers have of its keys they keep.
    pub fn recreated(&mut self, name: &KeyspaceName, shard: &Shard) {
        self.given_up.push((name.clone(), shard.bounds.clone()));
    }

    /// Whether a person has given up keys of a replica.
    pub fn is_given_up(&self, replica: &ReplicaKey) -> bool {
        let bounds = self.bounds.get(&(replica.keyspace.clone(), replica.shard));
        let given_up = self.given_up.iter().filter(|(name, _)| *name == replica.keyspace);
        bounds.is_some_and(|own| given_up.into_iter().any(|(_, bounds)| geometry::overlap(own, bounds)))
    }

    /// Whether a replica may have been forgotten when a backup was restored.
    pub fn is_forgotten(&self, replica: &ReplicaKey) -> bool {
        let name = &replica.keyspace;
        let is_unknown = |below: &ShardId| replica.shard >= *below;
        let is_undeleted = !self.maps.contains_key(name) && self.deleted.get(name).is_some_and(is_unknown);
        is_undeleted || self.forgotten.get(name).is_some_and(|lost| lost.has(replica))
    }

    /// Whether a leader took a map of the keyspace for the latest that an operator had set back. Where its data lies on no disk,
    /// epochs were given twice, and storage that goes by them cannot tell owners apart (docs/src/failures.md; seed 1475).
    pub fn is_forked(&self, name: &KeyspaceName) -> bool {
        self.forked.contains(name) && !self.durable.contains(name)
    }

    /// Whether an incarnation was declared dead, or has left, and must not act at `now`.
    pub fn has_ended(&self, now: True, node: usize, incarnation: Incarnation) -> bool {
        let is_its = |(id, ended): &Home| *ended == incarnation && id.as_str() == format!("node-{node}");
        self.ended.iter().any(|(home, from)| is_its(home) && *from <= now)
    }

    /// How often members of the in-sync set of a shard were left behind.
    pub fn left_behind(&self, name: &KeyspaceName, shard: ShardId) -> u64 {
        self.left_behind.get(&(name.clone(), shard)).copied().unwrap_or(0)
    }

    /// Whether the present process of a node has that incarnation, as far as its coordinator has made that durable, and routers
    /// can know it.
    pub fn runs(&self, node: &NodeId, incarnation: Incarnation) -> bool {
        let is_latest = self.started.get(node) == Some(&incarnation) && !self.starts_back.contains(node);
        is_latest && !self.ended.contains_key(&(node.clone(), incarnation))
    }

    /// Whether this record declares a node dead that was not before.
    pub fn is_death(&self, node: &NodeRecord) -> bool {
        let home = (node.spec.id.clone(), node.incarnation);
        // Z2: a node that a stranger has made up dies of nothing.
        node.ended && !node.left && !self.ended.contains_key(&home) && !is_ghost(&node.spec.id)
    }

    /// D7: a worker deletes a replica. What is durable must have let go of it: it is in no map, or only to be
    /// deleted, or its process was declared dead or followed by another, which ends what is not stored only.
    pub fn still_needs(&self, node: usize, replica: &ReplicaKey) -> Option<Finding> {
        let held = self.maps.get(&replica.keyspace)?.shard(replica.shard)?.replica(replica.placement)?;
        let is_followed = self.started.get(&held.node).is_some_and(|latest| *latest > held.incarnation);
        // What is durable outlives its process.
        let is_durable = self.durable.contains(&replica.keyspace);
        let is_over = !is_durable && (is_followed || self.has_ended(True::MAX, node, held.incarnation));
        let is_over = is_over || self.let_go.contains(&(replica.keyspace.clone(), replica.placement));
        let needed = held.state != ReplicaState::UnloadFinal && !is_over;
        let text = || {
            format!("node-{node} deletes {} of {}, which is {}", replica.placement, replica.shard, held.state)
        };
        needed.then(|| ("D7", text()))
    }

    /// A transaction is durable: `records` are what it gave.
    pub fn committed(&mut self, now: True, term: u64, writes: &[Write], records: &Records) -> Vec<Finding> {
        let mut findings = Vec::new();
        if term < self.term {
            findings.push(("O10", format!("term {term} commits after term {}", self.term)));
        }
        self.term = self.term.max(term);
        for write in writes {
            let map = |name: &KeyspaceName| {
                let mut all = records.keyspaces.iter();
                all.find(|(record, _)| record.keyspace.name == *name).map(|(_, map)| map)
            };
            self.rules.committed(now, term, write, map);
            match write {
                Write::Map(diff) => {
                    self.committed_at.insert(diff.keyspace.clone(), now);
                    findings.extend(self.map_committed(diff));
                }
                Write::Node(node) if node.ended => {
                    self.deaths += u64::from(self.is_death(node));
                    self.ended.insert((node.spec.id.clone(), node.incarnation), now);
                }
                Write::Node(node) => {
                    if self.starts_again {
                        self.ended.remove(&(node.spec.id.clone(), node.incarnation));
                    }
                    let before = self.started.insert(node.spec.id.clone(), node.incarnation);
                    if before > Some(node.incarnation) {
                        self.starts_back.insert(node.spec.id.clone());
                    }
                }
                _ => {}
            }
        }
        findings.extend(self.rules.too_many_lost(now, term, &self.settings));
        for (record, map) in &records.keyspaces {
            let is_refused = self.refused.contains(&record.keyspace.name);
            if !is_refused && self.maps.get(&record.keyspace.name) != Some(map) {
                findings
                    .push(("M3", format!("the map of {} is not what its diffs give", record.keyspace.name)));
            }
        }
        findings
    }

    fn map_committed(&mut self, diff: &MapDiff) -> Vec<Finding> {
        let name = diff.keyspace.clone();
        self.commits += 1;
        let mut findings = Vec::new();
        let Some(map) = self.maps.get_mut(&name) else { return vec![("M3", format!("no keyspace {name}"))] };
        let before = map.clone();
        if let Err(error) = map.apply(diff) {
            return vec![("M3", error.to_string())];
        }
        findings.extend(check::map(map).into_iter().map(|finding| ("M1", format!("{name}: {finding}"))));
        self.ever.insert((name.clone(), diff.to));
        // The first map of a keyspace follows none.
        let parent = diff.parent.unwrap_or_default();
        if parent != before.generation() {
            findings.push(("M3", format!("{name} {} has another parent than the map before", diff.to)));
        }
        let before_it = self.generations.insert((name.clone(), diff.to.sequence), diff.to);
        if before_it.is_some() && !self.forked.contains(&name) {
            findings.push(("M3", format!("{name} {} was committed twice", diff.to)));
        }
        for shard in &diff.changed {
            let left = before.shard(shard.id).map_or(0, |before| left_behind(before, shard));
            *self.left_behind.entry((name.clone(), shard.id)).or_default() += left as u64;
            findings.extend(self.rules.changed(&name, &before, shard));
            findings.extend(make_before_break(&name, before.shard(shard.id), shard));
            let is_forked = self.forked.contains(&name);
            findings.extend(self.names(&name, shard).into_iter().filter(|_| !is_forked));
        }
        self.removed.extend(diff.removed.iter().map(|id| (name.clone(), *id)));
        findings
    }

    /// O3, M5: what a name has meant once it means for ever.
    fn names(&mut self, name: &KeyspaceName, shard: &Shard) -> Vec<Finding> {
        let mut findings = Vec::new();
        if self.removed.contains(&(name.clone(), shard.id)) {
            findings.push(("M5", format!("{name} {} was used before", shard.id)));
        }
        let bounds = self.bounds.entry((name.clone(), shard.id)).or_insert(shard.bounds.clone());
        if *bounds != shard.bounds {
            findings.push(("O3", format!("{name} {} has changed its bounds", shard.id)));
        }
        for replica in &shard.replicas {
            let home = (replica.node.clone(), replica.incarnation);
            let held = self.placements.entry((name.clone(), replica.placement)).or_insert(home.clone());
            // In a durable keyspace a replica outlives its process, on the same node.
            let is_bound_anew = self.durable.contains(name) && held.0 == home.0 && held.1 < home.1;
            if is_bound_anew {
                *held = home;
            } else if *held != home {
                findings.push(("M5", format!("{name} {} was used before", replica.placement)));
            }
        }
        if let Some(leader) = shard.leader() {
            let home = (leader.node.clone(), leader.incarnation);
            let held = self.leaders.entry((name.clone(), shard.id, shard.epoch)).or_insert(home.clone());
            if *held != home {
                let text = format!("{name} {} {} names both {held:?} and {home:?}", shard.id, shard.epoch);
                findings.push(("O3", text));
            }
        }
        findings
    }

    /// D4: the shard of the permit holds the key, and a leader's epoch names this process.
    pub fn permitted(
        &self,
        spaces: &[Space],
        node: usize,
        incarnation: Option<Incarnation>,
        request: &Request,
        permit: &Permit,
    ) -> Vec<Finding> {
        let space = &spaces[request.key.keyspace];
        let (name, shard) = (space.keyspace.name.clone(), permit.replica.shard);
        let position =
            space.keyspace.sharding.position(space.keyspace.partition_key, &space.keys[request.key.key]);
        let mut findings = Vec::new();
        if self.forked.contains(&name) {
            return findings;
        }
        match self.bounds.get(&(name.clone(), shard)) {
            Some(bounds) if bounds.contains(position) => {}
            Some(_) => findings.push(("D4", format!("{shard} of {name} answers for {:?}", request.key))),
            None => findings.push(("D4", format!("{shard} of {name} was never committed"))),
        }
        if permit.role == Role::Leader {
            let home = self.leaders.get(&(name.clone(), shard, permit.epoch));
            let is_it = home.is_some_and(|(id, named)| {
                Some(*named) == incarnation && id.as_str() == format!("node-{node}")
            });
            if !is_it {
                let text =
                    format!("node-{node} leads {name} {shard} under {}, which names {home:?}", permit.epoch);
                findings.push(("O3", text));
            }
        }
        findings
    }
}

/// How many members of the in-sync set are in it no more, and are to catch up.
fn left_behind(before: &Shard, after: &Shard) -> usize {
    let lags = |replica: &&Replica| !replica.in_sync && replica.state == ReplicaState::Load;
    let lagging = after.replicas.iter().filter(lags);
    lagging.filter(|replica| before.replica(replica.placement).is_some_and(|of| of.in_sync)).count()
}

/// O11: a node that stops serving has a follower in its place, in the same commit.
fn make_before_break(name: &KeyspaceName, before: Option<&Shard>, after: &Shard) -> Option<Finding> {
    let before = before.filter(|_| after.is_serving())?;
    let stops = before
        .live()
        .find(|old| after.replica(old.placement).is_some_and(|new| new.state == ReplicaState::Unload))?;
    let text = || format!("{name} {}: {} stops and nobody serves in its place", after.id, stops.placement);
    after.live().next().is_none().then(|| ("O11", text()))
}
