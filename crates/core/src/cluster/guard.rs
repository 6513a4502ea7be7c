//! What stops the planner: the brake of the whole cluster ([`crate::brake`]) and shards that are set aside
//! ([`crate::poison`]). Here they meet what is stored and what is told to people.

use super::overdue::Avoided;
use super::{Cluster, KeyspaceState, Moment, ShardRule, Write};
use crate::brake::{self, Suspects, Verdict};
use crate::id::ShardId;
use crate::map::Replica;
use crate::name::{KeyspaceName, NodeId};
use crate::node::Health;
use crate::planted::{self, Planted};
use crate::poison;
use crate::settings::Settings;
use crate::time::Millis;
use std::collections::{BTreeMap, BTreeSet};

impl Cluster {
    /// Why automatic moves are stopped, in the whole cluster or in some keyspaces, if they are.
    pub fn brake(&self) -> Option<String> {
        let own = self.keyspaces.iter().filter_map(|(name, keyspace)| {
            Some(format!("keyspace {name}: {}", keyspace.record.brake.as_ref()?))
        });
        let all: Vec<String> = self.record.brake.clone().into_iter().chain(own).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Why nothing of a keyspace moves by itself.
    pub(super) fn brake_on<'a>(&'a self, keyspace: &'a KeyspaceState) -> Option<&'a str> {
        self.record.brake.as_deref().or(keyspace.record.brake.as_deref())
    }

    /// Puts the brake on when giving up everybody who is dead by now would be too much; or sets aside the shard
    /// that has killed so many of them one after the other.
    pub(super) fn brake_if_too_many(&mut self, at: Moment) {
        if self.record.brake.is_some() {
            return;
        }
        let counts = |node: &&super::NodeState| !node.record.ended && !node.is_unproven();
        let standing = self.nodes.values().filter(counts).count();
        let dying = self.dying(at).into_iter().map(|id| (id.clone(), self.suspects(&id))).collect();
        let why = match self.losses.judge(&dying, standing, at.now, &self.settings) {
            Verdict::Borne => return,
            Verdict::Poisoned(shards, deaths) => {
                let why = poison::before_brake(deaths);
                return shards.iter().for_each(|(name, shard)| self.set_aside(at, name, *shard, why.clone()));
            }
            Verdict::TooMany(why) => why,
        };
        self.notice(
            true,
            format!(
                "the brake is on, nothing moves by itself and no node is given up: {why}. Look at the nodes and \
                 the network, then run `partage brake release`"
            ),
        );
        self.record.brake = Some(why);
        self.outbox.writes.push(Write::Cluster(self.record.clone()));
    }

    /// Puts the brake of one keyspace on when its shards can be loaded hardly anywhere.
    pub(super) fn brake_if_loads_fail(&mut self, at: Moment, name: &KeyspaceName) {
        let Some(keyspace) = self.keyspaces.get_mut(name) else { return };
        if keyspace.record.brake.is_some() {
            return;
        }
        let is_recent = |avoided: &Avoided| avoided.until > at.now;
        let lately = || keyspace.avoid.iter().filter(|(_, a)| is_recent(a)).map(|(failed, _)| failed);
        let shards: BTreeSet<_> = lately().map(|(shard, _)| shard).collect();
        let nodes: BTreeSet<_> = lately().map(|(_, node)| node).collect();
        let Some(why) = brake::loads_fail(shards.len(), nodes.len(), &self.settings) else { return };
        keyspace.record.brake = Some(why.clone());
        self.outbox.writes.push(Write::Keyspace(keyspace.record.clone()));
        self.notice(
            true,
            format!(
                "the brake of keyspace {name} is on, nothing of it moves by itself: {why}. Mend the service, then \
                 run `partage brake release`"
            ),
        );
    }

    /// Nodes that would be given up now.
    fn dying(&self, at: Moment) -> Vec<NodeId> {
        let silent = self
            .nodes
            .values()
            .filter(|node| !node.record.ended && node.signs.health(at.now, &self.settings) == Health::Down);
        let dead = silent.filter(|node| !node.is_unproven());
        dead.map(|node| node.record.spec.id.clone()).collect()
    }

    /// A person has looked and says: go on. Who is dead by now is given up without suspecting any shard.
    pub(super) fn let_go_brake(&mut self, at: Moment) {
        self.record.brake = None;
        self.outbox.writes.push(Write::Cluster(self.record.clone()));
        for id in self.dying(at) {
            self.bury(at, &id);
        }
        for keyspace in self.keyspaces.values_mut().filter(|keyspace| keyspace.record.brake.is_some()) {
            keyspace.record.brake = None;
            // What failed is tried again everywhere.
            keyspace.avoid.clear();
            self.outbox.writes.push(Write::Keyspace(keyspace.record.clone()));
        }
        self.losses.clear();
        self.plan_soon(at, 0);
    }

    /// Whether planning waits because too few nodes answer; told when it begins and when it ends.
    pub(super) fn waits_for_nodes(&mut self, at: Moment) -> bool {
        let wanted = self.nodes.values().filter(|node| !node.record.ended && node.record.drain.is_none());
        let wanted: Vec<_> = wanted.filter(|node| !node.leaving && !node.is_unproven()).collect();
        let answering = wanted.iter().filter(|node| node.accepts(at.now, &self.settings)).count();
        let verdict = brake::too_few(answering, wanted.len());
        // A coordinator that has just started has not heard anybody yet: no reason to alarm a person.
        if verdict.is_some() && at.now < self.started + self.settings.dead_after_ms {
            return true;
        }
        match (self.waiting, &verdict) {
            (false, Some(why)) => self.notice(true, format!("{why}; look at the nodes and the network")),
            (true, None) => self.notice(false, "enough nodes answer: planning goes on".to_owned()),
            (true, Some(_)) | (false, None) => {}
        }
        self.waiting = verdict.is_some();
        self.waiting
    }

    /// The shards that a node had taken on shortly before it was last heard.
    pub(super) fn suspects(&self, node: &NodeId) -> Suspects {
        let Some(state) = self.nodes.get(node) else { return Suspects::new() };
        let died = state.signs.last_beat.unwrap_or(state.signs.since);
        let incarnation = state.record.incarnation;
        let of = |keyspace: &KeyspaceState| {
            let shards = keyspace.hosted.on(node).filter_map(|id| keyspace.map.shard(id));
            let replicas = shards.flat_map(|shard| shard.replicas.iter().map(move |r| (shard.id, r)));
            let here = replicas.filter(|(_, r)| r.node == *node && r.incarnation == incarnation);
            let suspect = |(shard, replica): (ShardId, &Replica)| {
                let (_, taken) = keyspace.taken.get(&replica.placement)?;
                (replica.state.is_staying() && poison::is_suspect(*taken, died, &self.settings))
                    .then(|| ((keyspace.map.keyspace().clone(), shard), *taken))
            };
            here.filter_map(suspect).collect::<Vec<_>>()
        };
        self.keyspaces.values().flat_map(of).collect()
    }

    /// Strikes against the shards that a node had just taken on when it died.
    pub(super) fn strike(&mut self, at: Moment, node: &NodeId, suspects: &Suspects) {
        let mut struck = BTreeSet::new();
        for (name, shard) in suspects.keys() {
            let Some(keyspace) = self.keyspaces.get_mut(name) else { continue };
            let rule = keyspace.record.rules.entry(*shard).or_default();
            rule.deaths += 1;
            struck.insert(name);
            if let Some(why) = poison::after_death(rule.deaths, node, &self.settings) {
                self.set_aside(at, name, *shard, why);
            }
        }
        let records = struck.into_iter().filter_map(|name| self.keyspaces.get(name));
        self.outbox.writes.extend(records.map(|keyspace| Write::Keyspace(keyspace.record.clone())));
    }

    /// A node comes as a new process. If the last one was neither given up nor to be stopped, and has not left, it has
    /// died just now, and whoever restarted it was quicker than its lease: its shards are suspected as of any death.
    /// The new process is the emptiest node; so that they do not all come back to it, and one kills it again in the
    /// company of the same innocent ones, they go elsewhere for a while. A node without others is no witness: nobody
    /// could show that it is not the node itself that does not live long.
    pub(super) fn strike_for_restart(&mut self, at: Moment, node: &NodeId) {
        let died = self.nodes.get(node).is_some_and(|old| !old.record.ended && !old.revoked);
        let alone = !self.nodes.iter().any(|(other, state)| other != node && !state.record.ended);
        if !died || alone || self.record.brake.is_some() {
            return;
        }
        let suspects = self.suspects(node);
        self.strike(at, node, &suspects);
        let until = at.now + self.settings.poison_window_ms;
        for (name, shard) in suspects.into_keys() {
            if let Some(keyspace) = self.keyspaces.get_mut(&name) {
                keyspace.crashed.insert((shard, node.clone()), until);
            }
        }
    }

    /// The shards that could not be loaded on too many nodes.
    pub(super) fn set_unloadable_aside(&mut self, at: Moment, name: &KeyspaceName, shard: ShardId) {
        let Some(keyspace) = self.keyspaces.get(name) else { return };
        let nodes: Vec<&NodeId> =
            keyspace.avoid.keys().filter(|(of, _)| *of == shard).map(|(_, node)| node).collect();
        let of_it = keyspace.avoid.iter().filter(|((of, _), _)| *of == shard);
        let latest = of_it.max_by_key(|(_, avoided)| avoided.until);
        let why = latest.map_or("nothing", |(_, avoided)| avoided.why.as_str());
        if let Some(why) = poison::after_failures(&nodes, why, &self.settings) {
            self.set_aside(at, name, shard, why);
        }
    }

    fn set_aside(&mut self, at: Moment, name: &KeyspaceName, shard: ShardId, why: String) {
        let Some(keyspace) = self.keyspaces.get_mut(name) else { return };
        let rule = keyspace.record.rules.entry(shard).or_default();
        if rule.set_aside.is_some() || planted::is(Planted::R5) {
            return;
        }
        rule.set_aside = Some(why.clone());
        keyspace.plan_again(at);
        self.outbox.writes.push(Write::Keyspace(keyspace.record.clone()));
        self.notice(
            true,
            format!(
                "shard {shard} of keyspace {name} is set aside and placed nowhere new: {why}. Mend it, then run \
                 `partage shard release {name} {shard}`"
            ),
        );
    }
}

impl KeyspaceState {
    /// Takes over what a person has changed. A shard that is released is tried everywhere again.
    pub(super) fn take_record(&mut self, at: Moment, record: super::KeyspaceRecord) {
        let aside = |rules: &BTreeMap<ShardId, ShardRule>, id: &ShardId| {
            rules.get(id).is_some_and(|rule| rule.set_aside.is_some())
        };
        self.avoid.retain(|(id, _), _| !aside(&self.record.rules, id) || aside(&record.rules, id));
        self.record = record;
        self.plan_due = at.now;
    }

    /// Forgets who took on what longer ago than the window; whoever lived through it clears the shard.
    pub(super) fn clear_survivors(&mut self, at: Moment, settings: &Settings) -> Option<Write> {
        let is_old = |taken: &Millis| poison::is_cleared(*taken, at.now, settings);
        let mut cleared = false;
        for (placement, (shard, taken)) in &self.taken {
            let is_live =
                || self.map.shard(*shard).is_some_and(|s| s.live().any(|r| r.placement == *placement));
            let Some(rule) = self.record.rules.get_mut(shard).filter(|rule| rule.deaths > 0) else {
                continue;
            };
            if !is_old(taken) || !is_live() {
                continue;
            }
            cleared = true;
            rule.deaths = 0;
            if *rule == ShardRule::default() {
                self.record.rules.remove(shard);
            }
        }
        self.taken.retain(|_, (_, taken)| !is_old(taken));
        self.crashed.retain(|_, until| *until > at.now);
        cleared.then(|| Write::Keyspace(self.record.clone()))
    }
}
