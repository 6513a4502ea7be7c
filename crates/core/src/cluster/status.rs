//! How it stands: counts for a glance, and the tables that people and programs draw from (A7).
//!
//! Everything here is read from the state as it is, and nothing is kept for it. A pass over a million shards
//! takes some tens of milliseconds, so ask when somebody looks, not in a loop.

use super::admin::{AdminError, DrainStatus};
use super::moves::MoveRow;
use super::serving::Serving;
use super::stored::is_parked;
use super::{Cluster, Drain, KeyspaceState, Moment, NodeState, Problem, ShardRule};
use crate::base::id::{Epoch, Incarnation, PlacementId, PlanId, ShardId};
use crate::base::name::{KeyspaceName, Label, NodeId, Zone};
use crate::base::time::Millis;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Replica, Role, Shard, Stage};
use crate::keyspace::sharding::Bounds;
use crate::keyspace::{KeyspaceKind, Mode, Ownership};
use crate::limits;
use crate::node::Health;
use crate::node::exchange::{DiskHealth, Phase};
use crate::node::load::{Load, METRICS};
use crate::plan::{Plan, Status};
use std::collections::{BTreeMap, BTreeSet};

/// The cluster at a glance.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Summary {
    /// What is wrong, the worst first, each with the way out. Empty = nothing that a person has to look at.
    pub problems: Vec<Problem>,
    /// How many keyspaces there are, without those in quarantine.
    pub keyspaces: usize,
    /// How many shards there are, by what becomes of them.
    pub shards: ShardCounts,
    /// How many replicas there are in each state.
    pub replicas: BTreeMap<ReplicaState, usize>,
    /// How many nodes there are of each health.
    pub nodes: BTreeMap<Health, usize>,
    /// Drains that were asked for, and how they stand.
    pub drains: Vec<DrainStatus>,
    /// Nodes that have asked to leave, and have not left yet; a drained one is among the drains.
    pub leaving: Vec<NodeId>,
    /// Why automatic moves are stopped, until a person releases them or every node is heard again.
    pub brake: Option<String>,
    /// Why nothing but repairs begins by itself, until the nodes stay.
    pub unrest: Option<String>,
    /// Shards that are placed nowhere until a person releases them.
    pub set_aside: Vec<(KeyspaceName, ShardId, String)>,
    /// The first of what is on its way, at most [`limits::MOVES_SHOWN`].
    pub under_way: Vec<MoveRow>,
    /// How many moves are under way: replicas that load to replace another.
    pub moves: usize,
    /// How many first loads and repairs are under way.
    pub loads: usize,
    /// The first nodes for which shards wait, as only they have their data, at most [`limits::NAMES_SHOWN`] and one.
    pub awaited: BTreeSet<NodeId>,
    /// The nodes which alone may lead shards and never begin to serve them, and of how many.
    pub hung: BTreeMap<NodeId, usize>,
    /// Shards that have fewer replicas than they want, whether or not more are on their way.
    pub short: usize,
    /// The first of those for which nothing is on its way, at most [`limits::COMPLAINTS`].
    pub unplaced: Vec<Unplaced>,
    /// What the planner last could not do, by keyspace, in its own sentences.
    pub complaints: BTreeMap<KeyspaceName, Vec<String>>,
    /// Keyspaces that are not evened out yet, as not all nodes have reported loads, and for how many milliseconds at
    /// most.
    pub loads_awaited: BTreeMap<KeyspaceName, u64>,
    /// Keyspaces of which shards began without the data of before within [`limits::BEGUN_EMPTY_SHOWN_MS`].
    pub begun_empty: BTreeMap<KeyspaceName, BegunEmpty>,
    /// Plans that wait for a person.
    pub suggested: Vec<PlanId>,
    /// Keyspaces that are neither served nor changed, as something of their stored state is missing, damaged or
    /// older: why, and the way out.
    pub quarantine: Vec<(KeyspaceName, String)>,
    /// What else was wrong with the stored state when this coordinator began to lead, and what it did about it.
    pub stored_faults: Vec<String>,
}

/// Shards that began without the data of before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BegunEmpty {
    /// How many, since this coordinator leads or none had done so for [`limits::BEGUN_EMPTY_SHOWN_MS`].
    pub shards: usize,
    /// When the last one did, in milliseconds of Unix time.
    pub last_wall_ms: u64,
    /// The same moment by this coordinator's clock.
    last: Millis,
}

impl BegunEmpty {
    fn is_shown(&self, at: Moment) -> bool {
        at.now.since(self.last) < limits::BEGUN_EMPTY_SHOWN_MS
    }
}

impl KeyspaceState {
    /// Counts shards that begin without the data of before. A dataset has its data from its source, and loses none.
    pub(super) fn note_begun_empty(&mut self, at: Moment, shards: usize) {
        if shards == 0 || self.record.keyspace.kind == KeyspaceKind::Dataset {
            return;
        }
        let before = self.begun_empty.filter(|before| before.is_shown(at)).map_or(0, |before| before.shards);
        self.begun_empty =
            Some(BegunEmpty { shards: before + shards, last_wall_ms: at.wall_ms, last: at.now });
    }
}

/// How many shards there are, by their stage, and those that should serve by whether they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShardCounts {
    /// They answer for their bounds: their leader serves, on a node that answers.
    pub led: usize,
    /// Not known yet: this coordinator has just begun, and has not heard the node of their leader.
    pub unheard: usize,
    /// Not served: every node that has their data is away, has lost it, or never begins to serve it.
    pub waiting: usize,
    /// Not served: the node of their leader does not answer, and may still be there.
    pub silent: usize,
    /// Not served: the brake holds them.
    pub braked: usize,
    /// Not served until a person releases them.
    pub set_aside: usize,
    /// Not served yet: a replica is loaded, or is about to lead.
    pub loading: usize,
    /// Not served, and nothing is on its way.
    pub unplaced: usize,
    /// Children of a split or merge that prepare.
    pub forming: usize,
    /// Parents of a finished split or merge that go.
    pub closing: usize,
    /// Unregistered partitions that go.
    pub removing: usize,
}

impl ShardCounts {
    /// Every shard, whatever its stage.
    pub fn total(&self) -> usize {
        self.led + self.unheard + self.unserved() + self.forming + self.closing + self.removing
    }

    /// Those that should answer for their bounds.
    pub fn standing(&self) -> usize {
        self.led + self.unheard + self.unserved()
    }

    /// Those that should answer for their bounds and do not.
    pub fn unserved(&self) -> usize {
        self.waiting + self.silent + self.braked + self.set_aside + self.loading + self.unplaced
    }
}

/// A shard that has fewer replicas than it wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unplaced {
    /// The keyspace of the shard that has too few replicas.
    pub keyspace: KeyspaceName,
    /// The shard that has too few replicas.
    pub shard: ShardId,
    /// Replicas that serve or prepare to.
    pub have: u32,
    /// How many replicas it should have.
    pub want: u32,
    /// Why it has too few, and the way out.
    pub why: String,
}

/// Since when something has been as it is, in milliseconds of Unix time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// Since exactly that moment, which this coordinator has seen.
    At(u64),
    /// Since that moment, when this coordinator started, or longer.
    AtLeast(u64),
}

/// One replica as the map wants it and its worker reports it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaRow {
    /// The placement id of the replica.
    pub placement: PlacementId,
    /// The node that the replica is on.
    pub node: NodeId,
    /// The zone of that node; none = it names none.
    pub zone: Option<Zone>,
    /// The health of that node.
    pub health: Health,
    /// The role that the map gives the replica.
    pub role: Role,
    /// The state that the map gives the replica.
    pub state: ReplicaState,
    /// What its worker says of it; none before the first report.
    pub phase: Option<Phase>,
    /// The load that its worker last reported; none before the first one.
    pub load: Option<Load>,
    /// Whether it is in the in-sync set of its shard; none in a keyspace that is not replicated.
    pub in_sync: Option<bool>,
}

/// One shard of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardRow {
    /// The id of the shard.
    pub shard: ShardId,
    /// The keys, hashes, slot or partition that the shard holds.
    pub bounds: Bounds,
    /// The stage that the map gives the shard.
    pub stage: Stage,
    /// Whether it is served; none where it need not be.
    pub serving: Option<Serving>,
    /// The shard's epoch; it grows with each change of the leader or the bounds.
    pub epoch: Epoch,
    /// Since when it has that epoch, and so this leader.
    pub since: Since,
    /// How many replicas it should have.
    pub want: u32,
    /// What a person or the cluster has said about this shard alone.
    pub rule: Option<ShardRule>,
    /// Its replicas, in the order of their placement ids.
    pub replicas: Vec<ReplicaRow>,
}

/// One node of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeRow {
    /// The id of the node.
    pub node: NodeId,
    /// Where other processes reach its worker, as `host:port`.
    pub address: String,
    /// Where clients of Redis reach it; none = it has no listener for them.
    pub resp_address: Option<String>,
    /// The latest start of the node that has registered.
    pub incarnation: Incarnation,
    /// When that start registered, in milliseconds of Unix time.
    pub since_ms: u64,
    /// How the coordinator sees the node now.
    pub health: Health,
    /// The zone that the node announces; none = it names none.
    pub zone: Option<Zone>,
    /// The rack that the node announces; none = it names none.
    pub rack: Option<Zone>,
    /// The labels that the node announces, for constraints to name.
    pub labels: BTreeSet<Label>,
    /// The kinds of keyspaces that the node serves.
    pub kinds: BTreeSet<KeyspaceKind>,
    /// Its share of every load, relative to other nodes.
    pub capacity: f64,
    /// The drain that a person has asked for; [`Cluster::drain_status`] says how far it is.
    pub drain: Option<Drain>,
    /// It has asked to leave.
    pub leaving: bool,
    /// It has said so since this coordinator leads: it has taken in all its orders.
    pub is_up_to_date: bool,
    /// Share of its capacity that foreground work takes.
    pub busy: f64,
    /// The health of its disk, as its last heartbeat says.
    pub disk: DiskHealth,
    /// Replicas that it should hold, by keyspace.
    pub replicas: BTreeMap<KeyspaceName, usize>,
    /// How many of these replicas lead.
    pub leaders: usize,
    /// Sums of what its replicas report, in the order of [`METRICS`].
    pub load: [f64; METRICS.len()],
}

impl Cluster {
    /// The cluster at a glance.
    pub fn status(&self, at: Moment) -> Summary {
        let mut summary = Summary {
            keyspaces: self.keyspaces.by_name.len(),
            drains: self.drains(at),
            brake: self.brake(),
            unrest: self.unrest().map(str::to_owned),
            under_way: self.moves(at, None, limits::MOVES_SHOWN).unwrap_or_default(),
            ..Summary::default()
        };
        for node in self.members.nodes.values() {
            *summary.nodes.entry(node.signs.health(at.now, &self.settings)).or_default() += 1;
        }
        self.keyspaces.by_name.values().for_each(|keyspace| self.sum_up(at, &mut summary, keyspace));
        summary.quarantine = self.faults().quarantined().map(|(name, why)| (name.clone(), why)).collect();
        summary.stored_faults = self.faults().mended();
        summary.suggested.sort_unstable();
        let leaving = self.leaving(at);
        summary.leaving = leaving.iter().map(|(id, _)| (*id).clone()).collect();
        summary.problems = self.problems(at, &summary, &leaving);
        summary
    }

    /// What there is to say of one keyspace alone; nothing when there is no such keyspace.
    pub fn status_of(&self, at: Moment, name: &KeyspaceName) -> Summary {
        let mut summary = Summary::default();
        self.keyspaces.get(name).into_iter().for_each(|keyspace| self.sum_up(at, &mut summary, keyspace));
        summary
    }

    fn sum_up(&self, at: Moment, summary: &mut Summary, keyspace: &KeyspaceState) {
        let name = keyspace.map.keyspace();
        let aside = keyspace.record.rules.iter();
        let aside = aside.filter_map(|(id, rule)| Some((name.clone(), *id, rule.set_aside.clone()?)));
        summary.set_aside.extend(aside);
        if !keyspace.unplaced().is_empty() {
            summary.complaints.insert(name.clone(), keyspace.unplaced().to_vec());
        }
        if let Some(begun) = keyspace.begun_empty.filter(|begun| begun.is_shown(at)) {
            summary.begun_empty.insert(name.clone(), begun);
        }
        if let Some(until) = self.evened_out_from(at, keyspace) {
            summary.loads_awaited.insert(name.clone(), until.since(at.now));
        }
        keyspace.map.shards().for_each(|shard| self.count(at, summary, keyspace, shard));
        let waits = |plan: &&Plan| plan.status == Status::Suggested && plan.keyspace == *name;
        summary.suggested.extend(self.plans.by_id.values().filter(waits).map(|plan| plan.id));
    }

    fn count(&self, at: Moment, summary: &mut Summary, keyspace: &KeyspaceState, shard: &Shard) {
        let counts = &mut summary.shards;
        *match shard.stage() {
            Stage::Serving => match self.serving(at, keyspace, shard) {
                Serving::Led => &mut counts.led,
                Serving::Unheard => &mut counts.unheard,
                Serving::Waiting => &mut counts.waiting,
                Serving::Silent => &mut counts.silent,
                Serving::Braked => &mut counts.braked,
                Serving::SetAside => &mut counts.set_aside,
                Serving::Loading => &mut counts.loading,
                Serving::Unplaced => &mut counts.unplaced,
            },
            Stage::Forming(_) => &mut counts.forming,
            Stage::Closing(_) => &mut counts.closing,
            Stage::Removing => &mut counts.removing,
        } += 1;
        for replica in &shard.replicas {
            *summary.replicas.entry(replica.state).or_default() += 1;
            match (replica.state, replica.replaces()) {
                (ReplicaState::Load, Some(_)) => summary.moves += 1,
                (ReplicaState::Load, None) if is_parked(&self.members.nodes, replica) => {}
                (ReplicaState::Load, None) => summary.loads += 1,
                (ReplicaState::Live | ReplicaState::Unload | ReplicaState::UnloadFinal, _) => {}
            }
        }
        if keyspace.waits_for_copy(&self.members.nodes, shard) {
            let room = (limits::NAMES_SHOWN + 1).saturating_sub(summary.awaited.len());
            summary.awaited.extend(self.awaited(at, keyspace, shard).take(room).cloned());
        } else if let Some(hung) = keyspace.hung_copy(&self.members.nodes, at.now, shard) {
            *summary.hung.entry(hung.node.clone()).or_default() += 1;
        }
        let want = keyspace.wanted_replicas(shard.id);
        if shard.is_serving() && (shard.live().count() as u32) < want {
            summary.short += 1;
            if summary.unplaced.len() < limits::COMPLAINTS {
                summary.unplaced.extend(self.unplaced(at, keyspace, shard, want));
            }
        }
    }

    /// What a shard lacks for which nothing is on its way.
    pub(super) fn unplaced(
        &self,
        at: Moment,
        keyspace: &KeyspaceState,
        shard: &Shard,
        want: u32,
    ) -> Option<Unplaced> {
        let arrivals = shard.replicas.iter().filter(|r| r.replaces().is_none() && r.state.is_staying());
        let have = arrivals.count() as u32;
        let aside = keyspace.record.rules.get(&shard.id).and_then(|rule| rule.set_aside.as_ref());
        let why = match aside {
            Some(why) => format!("it is set aside ({why}): release it when that is mended"),
            None if self.candidates(at, keyspace, shard, None).next().is_none() => self.no_candidate(at),
            None if keyspace.record.keyspace.mode == Mode::Manual => {
                let name = &keyspace.record.keyspace.name;
                format!(
                    "its keyspace is in mode manual: place it with `partage shard add`, or let the coordinator do it: \
                     `partage keyspace update {name} --mode automatic`"
                )
            }
            None => match self.given_up_everywhere(at, keyspace, shard, None) {
                Some(why) => why,
                None => "it is placed with one of the next plans".into(),
            },
        };
        let keyspace = keyspace.record.keyspace.name.clone();
        (have < want).then_some(Unplaced { keyspace, shard: shard.id, have, want, why })
    }

    /// The shards of a keyspace in the order of their ids: at most `limit` of those after `after`.
    pub fn shard_table(
        &self,
        at: Moment,
        name: &KeyspaceName,
        after: Option<ShardId>,
        limit: usize,
    ) -> Result<Vec<ShardRow>, AdminError> {
        let keyspace = self.keyspace(name)?;
        let from = keyspace.map.shards().filter(|shard| after.is_none_or(|after| shard.id > after));
        Ok(from.take(limit).map(|shard| self.shard_row(at, keyspace, shard)).collect())
    }

    pub(super) fn shard_row(&self, at: Moment, keyspace: &KeyspaceState, shard: &Shard) -> ShardRow {
        ShardRow {
            shard: shard.id,
            bounds: shard.bounds.clone(),
            stage: shard.stage().clone(),
            serving: shard.is_serving().then(|| self.serving(at, keyspace, shard)),
            epoch: shard.epoch,
            since: self.since(at, keyspace.since.get(shard.id)),
            want: keyspace.wanted_replicas(shard.id),
            rule: keyspace.record.rules.get(&shard.id).cloned(),
            replicas: shard.replicas.iter().map(|r| self.replica_row(at, keyspace, r)).collect(),
        }
    }

    /// Since the moment that was noted; where none was, since before this coordinator started.
    pub(super) fn since(&self, at: Moment, noted: Option<u64>) -> Since {
        let started_ms = at.wall_ms.saturating_sub(at.now.since(self.times.started));
        noted.map_or(Since::AtLeast(started_ms), Since::At)
    }

    fn replica_row(&self, at: Moment, keyspace: &KeyspaceState, replica: &Replica) -> ReplicaRow {
        let node = self.members.get(&replica.node);
        let seen = keyspace.observed.get(&replica.placement);
        ReplicaRow {
            placement: replica.placement,
            node: replica.node.clone(),
            zone: node.and_then(|node| node.record.spec.zone.clone()),
            health: self.replica_health(at, replica),
            role: replica.role,
            state: replica.state,
            phase: seen.map(|seen| seen.phase().clone()),
            load: seen.and_then(|seen| seen.load().cloned()),
            in_sync: (keyspace.record.keyspace.ownership == Ownership::Replicated).then_some(replica.in_sync),
        }
    }

    /// All nodes, in the order of their names.
    pub fn node_table(&self, at: Moment) -> Vec<NodeRow> {
        let rows = self.members.nodes.iter().map(|(id, node)| (id, node_row(node, at, self)));
        let mut rows: BTreeMap<&NodeId, NodeRow> = rows.collect();
        for (name, keyspace) in &self.keyspaces.by_name {
            for replica in keyspace.map.shards().flat_map(|shard| &shard.replicas) {
                let Some(row) = rows.get_mut(&replica.node) else { continue };
                if row.incarnation != replica.incarnation {
                    continue;
                }
                *row.replicas.entry(name.clone()).or_default() += 1;
                let leads = replica.role == Role::Leader && replica.state == ReplicaState::Live;
                row.leaders += usize::from(leads);
                let load = keyspace.observed.get(&replica.placement).and_then(|seen| seen.load());
                for (sum, value) in row.load.iter_mut().zip(load.map(Load::metrics).unwrap_or_default()) {
                    *sum += value;
                }
            }
        }
        rows.into_values().collect()
    }
}

impl KeyspaceState {
    /// Bytes of a shard, as the largest of its live replicas reports them.
    pub(super) fn size_bytes(&self, shard: &Shard) -> Option<u64> {
        let reported = shard.live().filter_map(|r| self.observed.get(&r.placement)?.load());
        reported.map(|load| load.size_bytes).max()
    }
}

pub(super) fn node_row(node: &NodeState, at: Moment, cluster: &Cluster) -> NodeRow {
    let record = &node.record;
    let spec = &record.spec;
    NodeRow {
        node: spec.id.clone(),
        address: spec.address.clone(),
        resp_address: spec.resp_address.clone(),
        incarnation: record.incarnation,
        since_ms: record.since_ms,
        health: node.signs.health(at.now, &cluster.settings),
        zone: spec.zone.clone(),
        rack: spec.rack.clone(),
        labels: spec.labels.clone(),
        kinds: spec.kinds.clone(),
        capacity: spec.capacity,
        drain: record.drain.clone(),
        leaving: node.leaving,
        is_up_to_date: node.sequence > 0 && node.orders.is_taken_in(),
        busy: node.busy,
        disk: node.disk,
        replicas: BTreeMap::new(),
        leaders: 0,
        load: [0.0; METRICS.len()],
    }
}
