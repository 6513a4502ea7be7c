//! Which shard is to blame when processes die: strikes, shards that are held back, and shards that are set aside, by
//! the rules of [`crate::plan::poison`].

use super::decide::Transition;
use super::guard::PlannerGuard;
use super::keyspaces::Keyspaces;
use super::members::NodesView;
use super::{Cluster, ClusterRecord, KeyspaceState, Moment, NodeState, Outbox, ShardRule, Write};
use crate::base::id::{PlacementId, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::planted::{self, Planted};
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind};
use crate::node::Health;
use crate::node::exchange::Phase;
use crate::plan::brake::{ShardName, Suspects};
use crate::plan::poison::{self, Evidence};
use std::collections::{BTreeMap, BTreeSet};

/// A shard that is placed nowhere new until it is known whether it is to blame. Not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldBack {
    until: Millis,
    /// A part of a sentence: "3 nodes in a row died soon after they had taken it on".
    why: String,
}

/// Which shards of a keyspace may be to blame when processes die. Not stored.
#[derive(Debug, Clone, Default)]
pub(super) struct Suspicion {
    /// Processes that were restarted soon after they had taken a shard on, and until when it rather goes elsewhere.
    pub(super) crashed: BTreeMap<(ShardId, NodeId), Millis>,
    /// Shards that are placed nowhere new until it is known whether they are to blame.
    pub(super) held_back: BTreeMap<ShardId, HeldBack>,
    /// When replicas, or the lead, were given to their nodes, for the last `poison_window_ms`.
    pub(super) taken: BTreeMap<PlacementId, (ShardId, Millis)>,
}

/// What a death is judged by, beside the guard and the keyspaces.
#[derive(Clone, Copy)]
pub(super) struct StrikeContext<'a> {
    pub(super) seen: NodesView<'a>,
    pub(super) record: &'a ClusterRecord,
}

/// The nodes that count as witnesses, and those that are silent and not given up.
#[derive(Debug, Default)]
struct Census {
    up: BTreeSet<NodeId>,
    silent: Vec<NodeId>,
}

/// Shards that were held back for long enough: each is to blame, or is not.
#[derive(Default)]
pub(super) struct SuspectedShards {
    /// To be set aside, and why.
    guilty: Vec<(KeyspaceName, ShardId, String)>,
    cleared: Vec<(KeyspaceName, ShardId)>,
}

impl Transition for SuspectedShards {
    fn find(cluster: &Cluster, at: Moment) -> SuspectedShards {
        let mut found = SuspectedShards::default();
        for (name, keyspace) in &cluster.keyspaces.by_name {
            let due = keyspace.suspicion.held_back.iter().filter(|(_, held)| held.until <= at.now);
            for (shard, held) in due {
                let (census, suspect) = (Census::of(cluster.nodes_at(at.now), None), (name.clone(), *shard));
                let Cluster { guard, keyspaces, settings, .. } = cluster;
                if guard.is_still_suspected(keyspaces, settings, &census, &suspect) {
                    found.guilty.push((name.clone(), *shard, held.why.clone()));
                } else {
                    found.cleared.push((name.clone(), *shard));
                }
            }
        }
        found
    }

    fn apply(self, cluster: &mut Cluster, at: Moment) -> Millis {
        let Cluster { settings, keyspaces, outbox, .. } = cluster;
        for (name, shard, why) in self.guilty {
            let Some(keyspace) = keyspaces.get_mut(&name) else { continue };
            keyspace.suspicion.held_back.remove(&shard);
            keyspace.set_aside(at, shard, why, outbox);
        }
        for (name, shard) in self.cleared {
            let Some(keyspace) = keyspaces.get_mut(&name) else { continue };
            keyspace.clear_suspicion(at, shard, settings, outbox);
        }
        let held = keyspaces.by_name.values().flat_map(|keyspace| keyspace.suspicion.held_back.values());
        held.map(|held| held.until).min().unwrap_or(Millis::NEVER)
    }
}

impl Census {
    /// The nodes that live and those that are silent; `dying` is no witness any more.
    fn of(seen: NodesView<'_>, dying: Option<&NodeId>) -> Census {
        let mut census = Census::default();
        for (id, node) in seen.nodes.iter().filter(|(_, node)| !node.record.ended && !node.has_never_held()) {
            match node.signs.health(seen.now, seen.settings) {
                Health::Up if Some(id) != dying => drop(census.up.insert(id.clone())),
                // The brake is on, so it is not given up; it has probably died as well.
                Health::Down => census.silent.push(id.clone()),
                _ => {}
            }
        }
        census
    }
}

impl PlannerGuard {
    /// A node has died: strikes against the shards that it had just taken on, as far as the evidence points to them.
    pub(super) fn strike(
        &mut self,
        at: Moment,
        node: &NodeId,
        suspects: &Suspects,
        StrikeContext { seen, record }: StrikeContext<'_>,
        keyspaces: &mut Keyspaces,
        outbox: &mut Outbox,
    ) {
        let settings = seen.settings;
        self.deaths.add(node.clone(), at.now, suspects.keys().cloned().collect(), settings);
        self.drop_suspicions(at, seen, keyspaces, outbox);
        if record.brake.is_some() {
            return;
        }
        let (census, mut struck) = (Census::of(seen, Some(node)), BTreeMap::new());
        for suspect in suspects.keys() {
            let strikes = keyspaces.strikes(suspect) + 1;
            if !self.evidence(keyspaces, &census, suspect, strikes).points_to_the_shard() {
                continue;
            }
            let Some(keyspace) = keyspaces.get_mut(&suspect.0) else { continue };
            keyspace.record.rules.entry(suspect.1).or_default().deaths = strikes;
            struck.insert(suspect.clone(), strikes);
        }
        let most = struck.values().copied().max().unwrap_or(0);
        let mut worst = struck.iter().filter(|(_, strikes)| **strikes == most).map(|(shard, _)| shard);
        // As long as several have died with as many nodes, none of them is known to be the one.
        if let (Some((name, shard)), None) = (worst.next(), worst.next())
            && let Some(why) = poison::after_death(most, node, settings)
            && let Some(keyspace) = keyspaces.get_mut(name)
        {
            keyspace.hold_back(at, *shard, why, settings, outbox);
        }
        let names: BTreeSet<_> = struck.keys().map(|(name, _)| name).collect();
        let records = names.into_iter().filter_map(|name| keyspaces.get(name));
        outbox.writes.extend(records.map(|keyspace| Write::Keyspace(keyspace.record.clone())));
    }

    /// A node comes as a new process. If the last one was neither given up nor to be stopped, and has not left, it has
    /// died just now, and its restart was quicker than its lease: its shards are suspected as of any death.
    /// The new process is the emptiest node; so that they do not all come back to it, and one kills it again in the
    /// company of the same innocent ones, they go elsewhere for a while.
    pub(super) fn strike_for_restart(
        &mut self,
        at: Moment,
        node: &NodeId,
        known: StrikeContext<'_>,
        keyspaces: &mut Keyspaces,
        outbox: &mut Outbox,
    ) {
        let died = |old: &NodeState| !old.record.ended && !old.revoked && !old.has_never_held();
        let NodesView { nodes, settings, .. } = known.seen;
        let Some(old) = nodes.get(node).filter(|old| died(old)) else { return };
        let suspects = keyspaces.suspects(old, settings);
        self.strike(at, node, &suspects, known, keyspaces, outbox);
        let until = at.now + settings.poison_window_ms;
        for suspect in
            suspects.into_keys().filter(|suspect| keyspaces.strikes(suspect) > 0).collect::<Vec<_>>()
        {
            if let Some(keyspace) = keyspaces.get_mut(&suspect.0) {
                keyspace.suspicion.crashed.insert((suspect.1, node.clone()), until);
            }
        }
    }

    /// What speaks for and against a shard.
    fn evidence(
        &self,
        keyspaces: &Keyspaces,
        census: &Census,
        (name, shard): &ShardName,
        strikes: u32,
    ) -> Evidence {
        let map = keyspaces.get(name).and_then(|keyspace| keyspace.map.shard(*shard));
        let holders: BTreeSet<&NodeId> = map.into_iter().flat_map(|s| s.staying()).map(|r| &r.node).collect();
        let most = (strikes as usize).max(2);
        let mut others = self.deaths.nodes_without(&(name.clone(), *shard), most);
        let silent = census.silent.iter().filter(|id| !holders.contains(id));
        others.extend(silent.take(most + 1));
        let no_witness = others.union(&holders).filter(|id| census.up.contains(**id)).count();
        Evidence { strikes, others: others.len(), witnesses: census.up.len() - no_witness }
    }

    /// Places shards again that were suspected, when nodes have died without them since.
    fn drop_suspicions(
        &self,
        at: Moment,
        seen: NodesView<'_>,
        keyspaces: &mut Keyspaces,
        outbox: &mut Outbox,
    ) {
        let mut cleared = Vec::new();
        for (name, keyspace) in &keyspaces.by_name {
            let rules = keyspace.record.rules.iter();
            let aside = rules.filter(|(_, rule)| rule.is_aside_for_deaths(seen.settings));
            let suspected: BTreeSet<ShardId> =
                keyspace.suspicion.held_back.keys().copied().chain(aside.map(|(shard, _)| *shard)).collect();
            cleared.extend(suspected.into_iter().map(|shard| (name.clone(), shard)));
        }
        if cleared.is_empty() {
            return;
        }
        let census = Census::of(seen, None);
        cleared.retain(|shard| !self.is_still_suspected(keyspaces, seen.settings, &census, shard));
        for (name, shard) in cleared {
            let Some(keyspace) = keyspaces.get_mut(&name) else { continue };
            keyspace.clear_suspicion(at, shard, seen.settings, outbox);
        }
    }

    /// Whether the evidence of the deaths that are remembered still points to the shard. Of older ones nothing new
    /// can be known.
    fn is_still_suspected(
        &self,
        keyspaces: &Keyspaces,
        settings: &Settings,
        census: &Census,
        shard: &ShardName,
    ) -> bool {
        let strikes = keyspaces.strikes(shard).max(settings.poison_deaths);
        let is_remembered = !self.deaths.nodes_with(shard).is_empty();
        !is_remembered || self.evidence(keyspaces, census, shard, strikes).points_to_the_shard()
    }
}

impl Keyspaces {
    /// The shards that a node had taken on shortly before it was last heard.
    fn suspects(&self, node: &NodeState, settings: &Settings) -> Suspects {
        let died = node.signs.last_beat.unwrap_or(node.signs.since);
        self.by_name.values().flat_map(|keyspace| keyspace.suspects(node, died, settings)).collect()
    }

    fn strikes(&self, (name, shard): &ShardName) -> u32 {
        let keyspace = self.by_name.get(name);
        keyspace.and_then(|keyspace| keyspace.record.rules.get(shard)).map_or(0, |rule| rule.deaths)
    }
}

impl Cluster {
    /// The shards that a node had taken on shortly before it was last heard.
    pub(super) fn suspects(&self, node: &NodeId) -> Suspects {
        let state = self.members.get(node);
        state.map(|state| self.keyspaces.suspects(state, &self.settings)).unwrap_or_default()
    }

    /// Of shards that went through so many lost nodes, the one to which the evidence points; none while it points to
    /// several.
    pub(super) fn to_blame(&self, at: Moment, shards: Vec<ShardName>, deaths: usize) -> Option<ShardName> {
        let census = Census::of(self.nodes_at(at.now), None);
        let strikes = u32::try_from(deaths).unwrap_or(u32::MAX);
        let points = |shard: &ShardName| {
            self.guard.evidence(&self.keyspaces, &census, shard, strikes).points_to_the_shard()
        };
        let mut blamed = shards.into_iter().filter(points);
        blamed.next().filter(|_| blamed.next().is_none())
    }

    /// How many deaths are not counted, as a shard that is held back or set aside explains them: they count as one.
    pub(super) fn deaths_to_discount(&self, died: &BTreeSet<&NodeId>) -> usize {
        let withheld = self.keyspaces.by_name.iter().flat_map(|(name, keyspace)| {
            let aside = keyspace.record.rules.iter().filter(|(_, rule)| rule.set_aside.is_some());
            let shards = keyspace.suspicion.held_back.keys().chain(aside.map(|(shard, _)| shard));
            shards.map(|shard| (name.clone(), *shard))
        });
        let explains = |shard: ShardName| self.guard.deaths.nodes_with(&shard).intersection(died).count();
        withheld.map(explains).max().unwrap_or(0).saturating_sub(1)
    }
}

impl KeyspaceState {
    /// Whether a shard is placed nowhere new by itself: it is set aside, or held back until that is decided.
    pub(super) fn is_withheld(&self, shard: ShardId) -> bool {
        let is_aside = self.record.rules.get(&shard).is_some_and(|rule| rule.set_aside.is_some());
        is_aside || self.suspicion.held_back.contains_key(&shard)
    }

    fn clear_suspicion(&mut self, at: Moment, shard: ShardId, settings: &Settings, outbox: &mut Outbox) {
        self.suspicion.held_back.remove(&shard);
        if let Some(rule) = self.record.rules.get_mut(&shard) {
            // One that could not be loaded anywhere stays aside until a person releases it.
            if rule.is_aside_for_deaths(settings) {
                rule.set_aside = None;
            }
            rule.deaths = 0;
            if *rule == ShardRule::default() {
                self.record.rules.remove(&shard);
            }
        }
        let is_aside = self.record.rules.get(&shard).is_some_and(|rule| rule.set_aside.is_some());
        self.plan_again(at);
        outbox.writes.push(Write::Keyspace(self.record.clone()));
        if is_aside {
            return;
        }
        let name = self.map.keyspace();
        outbox.tell(
            EventKind::ShardReleased,
            About::shard(name, shard),
            false,
            format!("shard {shard} of keyspace {name} is placed again: nodes have died without it, too"),
        );
    }

    /// Places a shard nowhere new until it is known whether nodes die without it, too.
    pub(super) fn hold_back(
        &mut self,
        at: Moment,
        shard: ShardId,
        why: String,
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        let hold_ms = poison::hold_ms(settings);
        if self.is_withheld(shard) || planted::is(Planted::R5) {
            return;
        }
        let name = self.map.keyspace();
        outbox.tell(
            EventKind::ShardSetAside,
            About::shard(name, shard),
            false,
            format!(
                "shard {shard} of keyspace {name} is held back for {} s: {why}. It is set aside unless nodes die \
                 without it, too",
                hold_ms.div_ceil(1_000)
            ),
        );
        self.suspicion.held_back.insert(shard, HeldBack { until: at.now + hold_ms, why });
    }

    /// The shards that could not be loaded on too many nodes. Where others could not be loaded there, either, and most
    /// of these nodes serve none of the keyspace, it is not the shard's fault but the service's: all of it is tried
    /// again in a while.
    pub(super) fn set_unloadable_aside(
        &mut self,
        at: Moment,
        shard: ShardId,
        seen: NodesView<'_>,
        outbox: &mut Outbox,
    ) {
        let nodes: Vec<&NodeId> =
            self.overdue.avoid.keys().filter(|(of, _)| *of == shard).map(|(_, node)| node).collect();
        if nodes.len() < seen.settings.poison_deaths as usize {
            return;
        }
        let serves = |node: &&&NodeId| seen.nodes.get(**node).is_some_and(|node| self.serves_any(node));
        let serving = nodes.iter().filter(serves).count();
        let others_fail = self.overdue.avoid.keys().any(|(of, node)| *of != shard && nodes.contains(&node));
        if others_fail && 2 * serving < nodes.len() {
            return;
        }
        let of_it = self.overdue.avoid.iter().filter(|((of, _), _)| *of == shard);
        let latest = of_it.max_by_key(|(_, avoided)| avoided.until);
        let why = latest.map_or("nothing", |(_, avoided)| avoided.why.as_str());
        if let Some(why) = poison::after_failures(&nodes, why, seen.settings) {
            self.set_aside(at, shard, why, outbox);
        }
    }

    /// Whether a node serves some shard of the keyspace.
    fn serves_any(&self, node: &NodeState) -> bool {
        let shards = node.orders.shards_of(self.map.keyspace()).filter_map(|id| self.map.shard(id));
        let mut here = shards.flat_map(|shard| &shard.replicas).filter(|r| node.runs_replica(r));
        here.any(|r| self.phase_of(r.placement) == Some(&Phase::Serving))
    }

    fn set_aside(&mut self, at: Moment, shard: ShardId, why: String, outbox: &mut Outbox) {
        let rule = self.record.rules.entry(shard).or_default();
        if rule.set_aside.is_some() || planted::is(Planted::R5) {
            return;
        }
        rule.set_aside = Some(why.clone());
        self.plan_again(at);
        outbox.writes.push(Write::Keyspace(self.record.clone()));
        let name = self.map.keyspace();
        outbox.tell(
            EventKind::ShardSetAside,
            About::shard(name, shard),
            true,
            format!(
                "shard {shard} of keyspace {name} is set aside and placed nowhere new: {why}. Mend it, then run \
                 `partage shard release {name} {shard}`"
            ),
        );
    }

    /// The shards that a node had taken on shortly before it `died`. What was taken on lately is little as a rule, what a
    /// node holds is not: the smaller of both is looked through.
    fn suspects(&self, node: &NodeState, died: Millis, settings: &Settings) -> Suspects {
        let name = self.map.keyspace();
        let held_here = |shard: &ShardId, placement: &PlacementId| {
            let replica = self.map.shard(*shard).and_then(|shard| shard.replica(*placement));
            replica.is_some_and(|r| r.state.is_staying() && node.runs_replica(r))
        };
        if self.suspicion.taken.len() <= node.orders.len() {
            let lately = self
                .suspicion
                .taken
                .iter()
                .filter(|(_, (_, taken))| poison::is_suspect(*taken, died, settings));
            let here = lately.filter(|(placement, (shard, _))| held_here(shard, placement));
            return here.map(|(_, (shard, taken))| ((name.clone(), *shard), *taken)).collect();
        }
        let shards = node.orders.shards_of(name).filter_map(|id| self.map.shard(id));
        let replicas = shards.flat_map(|shard| shard.replicas.iter().map(move |replica| (shard, replica)));
        let staying = replicas.filter(|(_, r)| r.state.is_staying() && node.runs_replica(r));
        let taken =
            staying.filter_map(|(shard, r)| Some((shard.id, self.suspicion.taken.get(&r.placement)?.1)));
        let lately = taken.filter(|(_, taken)| poison::is_suspect(*taken, died, settings));
        lately.map(|(shard, taken)| ((name.clone(), shard), taken)).collect()
    }

    /// When the replicas of shards with stored strikes were taken on is not stored: it may have been just now. A node
    /// that lives through the window clears them, as ever.
    pub(super) fn recall_strikes(&mut self, at: Moment) {
        let struck = self.record.rules.iter().filter(|(_, rule)| rule.deaths > 0);
        let shards = struck.filter_map(|(id, _)| self.map.shard(*id));
        let replicas = shards.flat_map(|shard| shard.staying().map(|r| (r.placement, (shard.id, at.now))));
        self.suspicion.taken.extend(replicas);
    }

    /// Takes over what a person has changed. A shard that is released is tried everywhere again.
    pub(super) fn take_record(&mut self, at: Moment, record: super::KeyspaceRecord) {
        let aside = |rules: &BTreeMap<ShardId, ShardRule>, id: &ShardId| {
            rules.get(id).is_some_and(|rule| rule.set_aside.is_some())
        };
        self.overdue.avoid.retain(|(id, _), _| !aside(&self.record.rules, id) || aside(&record.rules, id));
        self.suspicion.held_back.retain(|id, _| record.rules.get(id).is_some_and(|rule| rule.deaths > 0));
        self.record = record;
        self.planning.plan_due = at.now;
    }

    /// Forgets what nodes took on longer ago than the window; a node that lived through it clears the shard.
    pub(super) fn clear_survivors(&mut self, at: Moment, settings: &Settings) -> Option<Write> {
        let is_old = |taken: &Millis| poison::is_cleared(*taken, at.now, settings);
        let mut cleared = false;
        for (placement, (shard, taken)) in &self.suspicion.taken {
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
        self.suspicion.taken.retain(|_, (_, taken)| !is_old(taken));
        self.suspicion.crashed.retain(|_, until| *until > at.now);
        cleared.then(|| Write::Keyspace(self.record.clone()))
    }
}
