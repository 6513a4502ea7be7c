//! What may be begun, and which nodes may be given up: M7, O11 and R4, R5 as seen in what was committed.
//!
//! | asked of each commit                                                              | holds |
//! |-----------------------------------------------------------------------------------|-------|
//! | a new replica is on a node that is registered, in its latest start, and not drained, unless a person chose that copy | M7 |
//! | a shard that is set aside gets no new replica, unless a person asked for it       | R5    |
//! | the lead goes from a replica that stays to one that has come to serve             | O11   |
//! | within the brake's window no more nodes are given up than it bears                | R4    |

use super::Finding;
use crate::clock::{MS, True};
use crate::mishaps::is_ghost;
use partage_core::base::id::{Epoch, Incarnation, PlacementId, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::base::settings::Settings;
use partage_core::cluster::{KeyspaceRecord, NodeRecord, Records, Write};
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{Replica, Role, Shard, ShardMap};
use partage_core::node::exchange::ReplicaKey;
use partage_core::plan::poison;
use partage_core::plan::{Origin, Plan, Status};
use std::collections::{BTreeMap, BTreeSet};

/// How much longer than its time a shard may be held back before that is decided.
const HELD_TOO_LONG_MS: u64 = 2_000;

/// A node as it was last committed.
#[derive(Debug)]
struct Known {
    incarnation: Incarnation,
    ended: bool,
    drained: bool,
}

/// A node that was given up.
#[derive(Debug)]
struct Loss {
    node: NodeId,
    at: True,
    term: u64,
}

/// What is known of nodes, people and shards that were set aside.
#[derive(Debug, Default)]
pub struct Rules {
    nodes: BTreeMap<NodeId, Known>,
    /// Shards that are set aside, each with the one that was blamed: itself, or the ancestor from which it has the rule.
    aside: BTreeMap<KeyspaceName, BTreeMap<ShardId, ShardId>>,
    /// When a shard was last set aside.
    last_aside: Option<True>,
    /// Shards that a person has asked to be moved, split, copied.
    by_hand: BTreeSet<(KeyspaceName, ShardId)>,
    /// Shards of which a person has chosen a copy, on whatever node it is: its next change takes it up.
    chosen: BTreeSet<(KeyspaceName, ShardId)>,
    /// Replicas that have come to serve.
    served: BTreeSet<(KeyspaceName, PlacementId)>,
    braked: bool,
    /// When nodes were first given up. One that comes back and dies again is restless: it is not counted here.
    given_up: BTreeMap<NodeId, True>,
    losses: Vec<Loss>,
    /// Since when more are given up than the brake bears.
    too_many_since: Option<True>,
}

impl Rules {
    /// A replica serves, as its worker knows.
    pub fn serves(&mut self, replica: &ReplicaKey) {
        let key = (replica.keyspace.clone(), replica.placement);
        if !self.served.contains(&key) {
            self.served.insert(key);
        }
    }

    /// A person has chosen a copy of a shard.
    pub fn chosen(&mut self, name: &KeyspaceName, shard: ShardId) {
        self.chosen.insert((name.clone(), shard));
    }

    /// The shard that was blamed, if this one is set aside: itself, or the one that it was split or merged from.
    pub fn blamed(&self, name: &KeyspaceName, shard: ShardId) -> Option<ShardId> {
        self.aside.get(name)?.get(&shard).copied()
    }

    /// Takes in what is not a map; `map` is that of a keyspace after the transaction.
    pub fn committed<'a>(
        &mut self,
        now: True,
        term: u64,
        write: &Write,
        map: impl Fn(&KeyspaceName) -> Option<&'a ShardMap>,
    ) {
        match write {
            Write::Node(node) => self.node(now, term, node),
            Write::DropNode(id) => drop(self.nodes.remove(id)),
            Write::Plan(plan) => self.plan(plan),
            Write::Keyspace(record) => {
                let before = self.aside.remove(&record.keyspace.name).unwrap_or_default();
                let aside = all_aside(record, &before, map(&record.keyspace.name));
                if aside.keys().any(|shard| !before.contains_key(shard)) {
                    self.last_aside = Some(now);
                }
                self.aside.insert(record.keyspace.name.clone(), aside);
            }
            Write::DropKeyspace(name) => drop(self.aside.remove(name)),
            Write::Cluster(record) => {
                if self.braked && record.brake.is_none() {
                    // A node that is given up now was waited for, and counts no more.
                    self.losses.clear();
                    self.last_aside = Some(now);
                }
                self.braked = record.brake.is_some();
            }
            _ => {}
        }
    }

    fn node(&mut self, now: True, term: u64, node: &NodeRecord) {
        let id = &node.spec.id;
        // Z2: nodes that a stranger has made up count for nothing.
        if is_ghost(id) {
            return;
        }
        let (incarnation, ended, drained) = (node.incarnation, node.ended, node.drain.is_some());
        let before = self.nodes.insert(id.clone(), Known { incarnation, ended, drained });
        let was_over = before.is_some_and(|before| before.ended && before.incarnation == incarnation);
        if !ended {
            self.losses.retain(|loss| loss.node != *id);
        } else if !node.left && !was_over && self.given_up.insert(id.clone(), now).is_none() {
            self.losses.push(Loss { node: id.clone(), at: now, term });
        }
    }

    fn plan(&mut self, plan: &Plan) {
        if matches!(plan.origin, Origin::Person(_)) && plan.status == Status::Approved {
            let shards = plan.changes.iter().flat_map(|planned| planned.change.shards().to_vec());
            self.by_hand.extend(shards.map(|shard| (plan.keyspace.clone(), shard)));
        }
    }

    /// An operator has changed what is durable: `records` are what counts from here on.
    pub fn recalled(&mut self, records: &Records) {
        let known = |node: &NodeRecord| Known {
            incarnation: node.incarnation,
            ended: node.ended,
            drained: node.drain.is_some(),
        };
        self.nodes = records.nodes.iter().map(|node| (node.spec.id.clone(), known(node))).collect();
        for (record, map) in &records.keyspaces {
            let name = &record.keyspace.name;
            let before = self.aside.remove(name).unwrap_or_default();
            self.aside.insert(name.clone(), all_aside(record, &before, Some(map)));
        }
        self.braked = records.cluster.brake.is_some();
        self.losses.clear();
    }

    /// M7, R5, O11: a shard becomes another than it was in `map`.
    pub fn changed(&self, name: &KeyspaceName, map: &ShardMap, after: &Shard) -> Vec<Finding> {
        let before = map.shard(after.id);
        let is_new = |placement| before.is_none_or(|shard| shard.replica(placement).is_none());
        let mut findings = Vec::new();
        for replica in after.replicas.iter().filter(|r| is_new(r.placement)) {
            let (shard, node) = (after.id, &replica.node);
            let known = self.nodes.get(node);
            let is_open =
                known.is_some_and(|k| !k.ended && !k.drained && k.incarnation == replica.incarnation);
            let is_chosen = after.epoch > Epoch(0) && replica.role == Role::Leader;
            let is_chosen = is_chosen && self.chosen.contains(&(name.clone(), shard));
            if !is_open && !is_chosen {
                let text = format!("{name} {shard} is newly placed on {node}, which is {known:?}");
                findings.push(("M7", text));
            }
            if self.blamed(name, shard).is_some() && !self.by_hand.contains(&(name.clone(), shard)) {
                let text = format!("{name} {shard} is set aside, and newly placed on {node}");
                findings.push(("R5", text));
            }
        }
        let inherits = after.parents().iter().any(|parent| map.shard(*parent).is_some());
        findings.extend(self.led_by_stranger(name, before, after).filter(|_| !inherits));
        findings
    }

    /// O11: a leader that stays, in a process that has not ended, hands over to a follower that has come to serve. (While
    /// what it was split or merged from is there, followers wait for the leader (D1), so any of them may try in its place.)
    fn led_by_stranger(&self, name: &KeyspaceName, before: Option<&Shard>, after: &Shard) -> Option<Finding> {
        let (led, leads) = (before?.leader()?, after.leader()?);
        let was_live = before?.replica(leads.placement).is_some_and(|r| r.state == ReplicaState::Live);
        let lives = |r: &Replica| {
            self.nodes.get(&r.node).is_some_and(|known| !known.ended && known.incarnation == r.incarnation)
        };
        let stays = after.replica(led.placement).is_some_and(|r| r.state == ReplicaState::Live && lives(r));
        let has_served = |placement| self.served.contains(&(name.clone(), placement));
        let is_strange = led.placement != leads.placement && was_live && stays;
        let is_strange = is_strange && !has_served(leads.placement);
        let text = || format!("{name} {} is led by {}, which has never served", after.id, leads.placement);
        is_strange.then(|| ("O11", text()))
    }

    /// R4: so many nodes may be given up within the window by one leader. A shard that kills is another matter: what
    /// died of it counts as one once it is set aside, and before that it may be held back for a while.
    pub fn too_many_lost(&mut self, now: True, term: u64, settings: &Settings) -> Option<Finding> {
        let window = settings.brake_window_ms * MS * 96 / 100;
        self.losses.retain(|loss| now - loss.at < window && loss.term == term);
        let standing = self.nodes.values().filter(|node| !node.ended).count();
        let nodes = standing + self.losses.len();
        let borne = ((settings.brake_share * nodes as f64) as usize).max(2);
        let explained = self.last_aside.is_some_and(|at| now - at < settings.brake_window_ms * MS);
        if self.losses.len() <= borne || explained || self.braked {
            self.too_many_since = None;
            return None;
        }
        let since = *self.too_many_since.get_or_insert(now);
        // A node that dies without the shard ends the suspicion; then the brake goes on at once.
        let held = (poison::hold_ms(settings) + HELD_TOO_LONG_MS) * MS;
        let lost: Vec<_> = self.losses.iter().map(|loss| loss.node.to_string()).collect();
        let text = || {
            format!("of {nodes} nodes {lost:?} were given up, more than {borne}, and no shard explains it")
        };
        (now - since > held).then(|| ("R4", text()))
    }
}

/// What a record sets aside, each with the shard that was blamed, when `before` was set aside before.
fn all_aside(
    record: &KeyspaceRecord,
    before: &BTreeMap<ShardId, ShardId>,
    map: Option<&ShardMap>,
) -> BTreeMap<ShardId, ShardId> {
    let rules = record.rules.iter().filter(|(_, rule)| rule.set_aside.is_some());
    let inherited = |shard: ShardId| {
        let parents = map?.shard(shard)?.parents();
        parents.iter().find_map(|parent| before.get(parent).copied())
    };
    let blamed = |shard: ShardId| before.get(&shard).copied().or_else(|| inherited(shard)).unwrap_or(shard);
    rules.map(|(shard, _)| (*shard, blamed(*shard))).collect()
}
