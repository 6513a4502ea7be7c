//! The oracles, which know the truth: true time, every map that was committed, every owner, every write.
//!
//! | file           | holds                                           |
//! |----------------|-------------------------------------------------|
//! | `ownership.rs` | O1, O5, O6, O7                                  |
//! | `rules.rs`     | M7, R4, R5, O11 of what plans begin and give up          |
//! | `maps.rs`      | M1–M8 by core's check, M2, M3, O3, O8, O10, O11, D4, D7 |
//! | `data.rs`      | D1, D2, D3                                      |
//! | `feeds.rs`     | D1 of readers of a table's changes              |
//! | `lists.rs`     | D1, D2, D3 of lists that grow by compare-and-set |
//! | `liveness.rs`  | L1, L2, L3, L8, once faults have stopped        |

pub mod data;
pub mod feeds;
pub mod lists;
pub mod liveness;
pub mod maps;
pub mod ownership;
pub mod rules;

use crate::clock::True;
use crate::message::Request;
use crate::model::{KeyAt, Space, Storage};
use ownership::Claim;
use partage_core::base::id::{ClusterId, Incarnation};
use partage_core::base::name::KeyspaceName;
use partage_core::cluster::{Records, Write};
use partage_core::keyspace::key::Key;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{MapDiff, Role, Shard, ShardMap, Stage};
use partage_core::keyspace::sharding::Bounds;
use partage_core::node::exchange::Order;
use partage_core::worker::gates::Permit;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// An invariant that was broken, and how.
pub type Finding = (&'static str, String);

/// A process of a node: its place, its start, and what the coordinator calls it.
pub type Who = (usize, u32, Option<Incarnation>);

/// The oracles of a run.
#[derive(Debug)]
pub struct Oracles {
    /// The keyspaces of the run.
    pub spaces: Rc<[Space]>,
    /// Registers, disks and tables, as workers have stored them.
    pub storage: Storage,
    /// Which process believes to own which key.
    pub ownership: ownership::Ownership,
    /// Every map that was committed.
    pub maps: maps::Maps,
    /// What was read and written.
    pub data: data::Data,
    /// The same of the lists in rows of tables.
    pub lists: lists::Lists,
    /// What readers of the changes of tables were given.
    pub feeds: feeds::Feeds,
    /// The cluster that the run is about, and those that it was restored to.
    pub lineage: BTreeSet<ClusterId>,
    /// The coordinator that leads now is of another cluster, and its terms, maps and nodes are its own.
    pub is_aside: bool,
}

impl Oracles {
    /// Of a run with these keyspaces and that many nodes.
    pub fn new(spaces: Rc<[Space]>, nodes: usize) -> Oracles {
        Oracles {
            storage: Storage::new(&spaces),
            ownership: ownership::Ownership::new(nodes),
            maps: maps::Maps::new(&spaces),
            data: data::Data::default(),
            lists: lists::Lists::default(),
            feeds: feeds::Feeds::default(),
            lineage: BTreeSet::new(),
            is_aside: false,
            spaces,
        }
    }

    /// A coordinator was elected, whether it knows or not.
    pub fn elected(&mut self, term: u64) {
        if !self.is_aside {
            self.maps.elected(term);
        }
    }

    /// A process begins to lead (O10).
    pub fn leads(&mut self, term: u64, who: (usize, u32)) -> Option<Finding> {
        if self.is_aside { None } else { self.maps.leads(term, who) }
    }

    /// A leader prolongs a lease, or grants (O10).
    pub fn gives(&self, now: True, term: u64) -> Option<Finding> {
        if self.is_aside { None } else { self.maps.gives(now, term) }
    }

    /// A transaction is durable: `records` are what it gave.
    pub fn committed(&mut self, now: True, term: u64, writes: &[Write], records: &Records) -> Vec<Finding> {
        if self.is_aside {
            return Vec::new();
        }
        for write in writes {
            let name = match write {
                Write::Keyspace(record) => &record.keyspace.name,
                Write::DropKeyspace(name) => name,
                Write::Map(diff) => &diff.keyspace,
                _ => continue,
            };
            let Some(keyspace) = self.spaces.iter().position(|space| space.keyspace.name == *name) else {
                continue;
            };
            match write {
                Write::Keyspace(record) if self.maps.latest(name).is_none() => {
                    self.maps.begin_life(record);
                    self.storage.begin_life(keyspace, record.first_shard);
                }
                Write::DropKeyspace(_) => {
                    self.maps.end_life(name);
                    self.data.end_life(|key| key.keyspace == keyspace);
                }
                Write::Map(diff) if self.spaces[keyspace].is_named() => {
                    self.partitions_committed(&diff.keyspace, diff);
                }
                _ => {}
            }
        }
        let mut findings = self.maps.committed(now, term, writes, records);
        let lacking = self.maps.all().filter_map(|map| self.storage.tables.lacking(map));
        findings.extend(lacking.map(|text| ("D1", text)));
        findings
    }

    /// A person has chosen a copy of a shard, wherever it is; if something `may_be_missing`, they have accepted it.
    pub fn chosen(&mut self, name: &KeyspaceName, shard: &Shard, may_be_missing: bool) {
        self.maps.chosen(name, shard.id);
        if may_be_missing {
            self.keys_of(name, &shard.bounds).into_iter().for_each(|key| self.give_up(key));
        }
    }

    /// A person has given up all that was written to a shard.
    pub fn recreated(&mut self, name: &KeyspaceName, shard: &Shard) {
        self.maps.recreated(name, shard);
        for key in self.keys_of(name, &shard.bounds) {
            self.storage.disks.give_up(key);
            self.give_up(key);
        }
    }

    fn give_up(&mut self, key: KeyAt) {
        self.data.give_up(key);
        self.lists.give_up(key);
        self.feeds.give_up();
    }

    /// D1: what was acknowledged is there.
    pub fn at_the_end(&self) -> Vec<Finding> {
        let mut findings = self.data.at_the_end(&self.storage);
        let row = |key: KeyAt| {
            let space = &self.spaces[key.keyspace];
            self.storage.tables.row(&space.keyspace.name, &Key::new(&space.keys[key.key]).ok()?)
        };
        findings.extend(self.lists.at_the_end(|key| row(key).map(|row| lists::elements(&row.value))));
        findings
    }

    /// A backup is restored. Of what is carried and lies on no disk the book promises nothing where the backup names another
    /// leader than the last map: the data is where the backup does not look (docs/src/backup.md; seed 21868).
    pub fn carried_elsewhere(&mut self, before: &Records, restored: &Records) {
        let last = before.keyspaces.iter().map(|(_, map)| (map.keyspace().clone(), map.clone())).collect();
        self.led_elsewhere(&last, restored);
    }

    /// The engine was restored from an older snapshot, and a leader begins from `read` of what is `stored` there. What it does
    /// not refuse, it leads by an older map: with data that is carried as after a restore.
    pub fn set_back(&mut self, stored: &Records, read: &Records) {
        let last = self.maps.all().map(|map| (map.keyspace().clone(), map.clone())).collect();
        self.maps.set_back(stored, read);
        self.led_elsewhere(&last, read);
    }

    fn led_elsewhere(&mut self, before: &BTreeMap<KeyspaceName, ShardMap>, restored: &Records) {
        let maps = restored.keyspaces.iter().filter(|(record, _)| !record.keyspace.durable);
        for (record, map) in maps {
            let name = &record.keyspace.name;
            let is_carried = |space: &Space| space.is_carried && space.keyspace.name == *name;
            let last = before.get(name).filter(|_| self.spaces.iter().any(is_carried));
            let Some(last) = last else { continue };
            let leader = |shard: &Shard| shard.leader().map(|leader| leader.placement);
            let is_there = |shard: &Shard| last.shard(shard.id).and_then(leader) == leader(shard);
            for shard in map.shards().filter(|shard| !is_there(shard)) {
                self.keys_of(name, &shard.bounds).into_iter().for_each(|key| self.give_up(key));
            }
        }
    }

    fn keys_of(&self, name: &KeyspaceName, bounds: &Bounds) -> Vec<KeyAt> {
        let spaces = self.spaces.iter().enumerate().filter(|(_, space)| space.keyspace.name == *name);
        spaces
            .flat_map(|(keyspace, space)| space.keys_in(bounds).map(move |key| KeyAt { keyspace, key }))
            .collect()
    }

    /// Partitions that this commit registers begin their lives, and those that it unregisters end them.
    fn partitions_committed(&mut self, name: &KeyspaceName, diff: &MapDiff) {
        let is_new = |shard: &&Shard| self.maps.latest(name).is_none_or(|map| map.shard(shard.id).is_none());
        let begins: Vec<_> = diff.changed.iter().filter(is_new).cloned().collect();
        for shard in begins {
            self.storage.begin_partition(self.keys_of(name, &shard.bounds), shard.id);
        }
        for shard in diff.changed.iter().filter(|shard| *shard.stage() == Stage::Removing) {
            let keys = self.keys_of(name, &shard.bounds);
            self.data.end_life(|key| keys.contains(key));
        }
    }

    /// Whether a key belongs to something that is there, by the latest commit.
    pub fn has_key(&self, key: KeyAt) -> bool {
        let space = &self.spaces[key.keyspace];
        let map = self.maps.latest(&space.keyspace.name);
        map.is_some_and(|map| !space.is_named() || map.find(&space.keys[key.key]).is_some())
    }

    /// Whether a keyspace is there, by the latest commit.
    pub fn exists(&self, keyspace: usize) -> bool {
        self.maps.latest(&self.spaces[keyspace].keyspace.name).is_some()
    }

    /// A process believes to own exactly `claims`, until `until` if nothing happens (O1, O6).
    pub fn own(&mut self, now: True, who: Who, claims: Vec<Claim>, until: True) -> Vec<Finding> {
        let mut findings = self.ownership.check(now, who.0, &claims);
        if let Some(incarnation) = who.2
            && !claims.is_empty()
            && self.maps.has_ended(now, who.0, incarnation)
        {
            findings.push(("O6", format!("node-{} acts as {incarnation}, which has ended", who.0)));
        }
        self.ownership.claims(who.0, who.1, claims, until);
        findings
    }

    /// O5: a leader is told that it may begin. By now nobody else can still believe to own any of its keys.
    pub fn granted(&self, now: True, node: usize, order: &Order) -> Vec<Finding> {
        let spaces = self.spaces.iter().enumerate();
        let of_it = |(_, space): &(usize, &Space)| {
            space.is_exclusive() && space.keyspace.name == order.replica.keyspace
        };
        let is_grant = order.granted && order.role == Role::Leader && order.state == ReplicaState::Live;
        let keys = spaces.filter(of_it).filter(|_| is_grant).flat_map(|(keyspace, space)| {
            space.keys_in(&order.bounds).map(move |key| KeyAt { keyspace, key })
        });
        let before = keys.filter_map(|key| self.ownership.owner_before(now, node, key, order.epoch));
        let text = |claim: Claim| {
            format!(
                "node-{node} is granted {}, and {:?} is still owned under {}",
                order.epoch, claim.key, claim.epoch
            )
        };
        before.map(|claim| ("O5", text(claim))).collect()
    }

    /// A request was let in (D4, O3).
    pub fn served(
        &self,
        now: True,
        (node, incarnation): (usize, Option<Incarnation>),
        request: &Request,
        permit: &Permit,
    ) -> Vec<Finding> {
        let mut findings = self.maps.permitted(&self.spaces, node, incarnation, request, permit);
        if self.spaces[request.key.keyspace].is_exclusive() {
            findings.extend(self.ownership.alone(now, node, request.key));
        }
        findings
    }

    /// A permit was said to hold all along (O7).
    pub fn still_held(
        &self,
        now: True,
        node: usize,
        permit: &Permit,
        key: KeyAt,
        owners: u64,
    ) -> Vec<Finding> {
        if !self.spaces[key.keyspace].is_exclusive() || permit.role != Role::Leader {
            return Vec::new();
        }
        let mut findings = self.ownership.alone(now, node, key);
        let seen = self.ownership.owners(key);
        if seen != owners {
            let text =
                format!("node-{node} says mine all along of {key:?}, but {} others were", seen - owners);
            findings.push(("O7", text));
        }
        findings
    }
}
