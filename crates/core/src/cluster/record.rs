//! What of a cluster is durable: the closed set of writes, and how a cluster comes back from them.
//!
//! Leases, beats, reports and loads are not stored. A fresh coordinator assumes that every lease was
//! granted the moment before it started, and listens for `dead_after_ms` before it declares anybody dead
//! (R6); so a restart moves nothing.

use super::counts::Counts;
use super::keyspaces::Keyspaces;
use super::members::Members;
use super::planning::PlanningState;
use super::plans::Plans;
use super::recovered::{FromMap, LatestIncarnations, Recovered};
use super::shard_queue::ShardQueue;
use super::times::DecisionTimes;
use super::{Cluster, KeyspaceState, Moment, NodeState, Outbox, PackedMap, orders::OrderIndex, runs::Runs};
use crate::base::counter_jump::CounterJump;
use crate::base::id::{ClusterId, Incarnation, PlacementId, PlanId, SessionDigest, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::planted::{self, Planted};
use crate::base::settings::{Settings, SettingsError};
use crate::base::time::Millis;
use crate::keyspace::map::{MapDiff, ShardMap, Stage};
use crate::keyspace::{Constraint, Keyspace, KeyspaceError};
use crate::limits;
use crate::node::exchange::{Known, ReplicaKey};
use crate::node::health::Signs;
use crate::node::lease::GrantedLease;
use crate::node::{Health, NodeSpec};
use crate::placement::Policies;
use crate::plan::Plan;
use crate::plan::check;
use std::collections::{BTreeMap, BTreeSet};

/// Counters and switches of the whole cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterRecord {
    /// Which cluster this is. Drawn by the driver, and other after a restore.
    pub id: ClusterId,
    /// Clusters that this one was restored from, the last one last: their workers are its own.
    pub continues: Vec<ClusterId>,
    /// The incarnation that the next registration gets.
    pub next_incarnation: Incarnation,
    /// The number that the next plan gets.
    pub next_plan: PlanId,
    /// The longest lease that may still run, so that a coordinator with a shorter setting waits long enough.
    pub longest_lease_ms: u64,
    /// Why automatic moves are stopped, until a person releases the brake (K18).
    pub brake: Option<String>,
    /// The lowest shard id that no deleted keyspace has used. New keyspaces begin here, so that storage
    /// and workers never mistake a shard for one of a deleted keyspace of the same name (M5).
    pub next_shard: ShardId,
    /// The lowest placement id that no deleted keyspace has used.
    pub next_placement: PlacementId,
    /// Names of deleted keyspaces that have not been given out again, each with the lowest shard id that it had not
    /// used: data below may be deleted wherever it turns up (D7). At most [`limits::DELETED_KEYSPACES`].
    pub deleted_keyspaces: BTreeMap<KeyspaceName, ShardId>,
    /// Ids that may have been given out and were forgotten: of keyspaces, too, that there is no record of any more.
    pub lost: Option<LostIds>,
    /// Maps that somebody knew of and that are later than what is stored: this is an older state in the place of the newest.
    /// Coordinators that begin after those who knew keep these keyspaces in quarantine. At most [`limits::KEYSPACES`].
    pub later_maps: Vec<Known>,
}

impl ClusterRecord {
    /// Keyspaces that are created from here on have ids beyond all that may have been given out, and beyond those
    /// that are `used`.
    pub(super) fn jump_ids(&mut self, jump: CounterJump, used: (ShardId, PlacementId)) {
        let (shard, placement) = (self.next_shard, self.next_placement);
        self.next_shard = ShardId(jump.beyond(shard.max(used.0).0));
        self.next_placement = PlacementId(jump.beyond(placement.max(used.1).0));
        let first = self.lost.map_or((shard, placement), |lost| (lost.shards.0, lost.placements.0));
        let next = (self.next_shard, self.next_placement);
        self.lost = Some(LostIds { shards: (first.0, next.0), placements: (first.1, next.1) });
    }

    /// What may have been forgotten of a name that is given out anew. What a person has deleted under that name was not.
    pub(super) fn lost_of(&self, name: &KeyspaceName) -> Option<LostIds> {
        let lost = self.lost?;
        let deleted = self.deleted_keyspaces.get(name).copied().unwrap_or_default();
        Some(LostIds { shards: (lost.shards.0.max(deleted), lost.shards.1), ..lost })
    }

    /// Remembers that a keyspace was deleted which had not used `below` and what is above it yet.
    pub(super) fn remember_deleted(&mut self, name: KeyspaceName, below: ShardId) {
        self.deleted_keyspaces.insert(name, below);
        if self.deleted_keyspaces.len() > limits::DELETED_KEYSPACES {
            let first = self.deleted_keyspaces.iter().min_by_key(|(_, below)| **below);
            if let Some(first) = first.map(|(name, _)| name.clone()) {
                self.deleted_keyspaces.remove(&first);
            }
        }
    }
}

impl Default for ClusterRecord {
    fn default() -> ClusterRecord {
        ClusterRecord {
            next_incarnation: Incarnation(1),
            next_plan: PlanId(1),
            longest_lease_ms: 0,
            brake: None,
            next_shard: ShardId(1),
            next_placement: PlacementId(1),
            id: ClusterId::default(),
            continues: vec![],
            deleted_keyspaces: BTreeMap::new(),
            lost: None,
            later_maps: vec![],
        }
    }
}

/// Ids that may have been given out by a coordinator whose state was lost: from the first, up to but without the
/// second. This coordinator cannot know what became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostIds {
    /// The first shard id that may be lost, and the one after the last.
    pub shards: (ShardId, ShardId),
    /// The first placement id that may be lost, and the one after the last.
    pub placements: (PlacementId, PlacementId),
}

impl LostIds {
    /// Whether the replica, or its shard, may be one of them.
    pub fn has(&self, key: &ReplicaKey) -> bool {
        (self.shards.0..self.shards.1).contains(&key.shard)
            || (self.placements.0..self.placements.1).contains(&key.placement)
    }

    /// Those of `map` when it went on to `jumped`, and those of before. What a split or merge was forming in `map` may have come
    /// to serve since, and have become others.
    fn between(before: Option<LostIds>, map: &ShardMap, jumped: &ShardMap) -> LostIds {
        let forming = map.shards().filter(|shard| matches!(shard.stage(), Stage::Forming(_)));
        let first = forming.map(|shard| shard.id).min().unwrap_or(map.next_shard());
        let shard = before.map_or(first, |lost| lost.shards.0.min(first));
        let placement = before.map_or(map.next_placement(), |lost| lost.placements.0);
        LostIds { shards: (shard, jumped.next_shard()), placements: (placement, jumped.next_placement()) }
    }
}

/// What a person or the cluster itself has said about one shard, beyond its keyspace's settings.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ShardRule {
    /// Its own number of replicas (K12).
    pub replicas: Option<u32>,
    /// Where it may go, on top of the keyspace's constraint.
    pub constraint: Constraint,
    /// Why it is placed nowhere until a person releases it (A20, L5).
    pub set_aside: Option<String>,
    /// Deaths of owners that had just taken it on.
    pub deaths: u32,
}

impl ShardRule {
    /// Whether it is set aside as nodes died with it, and not as it could not be loaded: fewer deaths set nothing aside.
    pub(super) fn is_aside_for_deaths(&self, settings: &Settings) -> bool {
        self.set_aside.is_some() && self.deaths >= settings.poison_deaths
    }
}

/// A keyspace as stored, its map apart.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyspaceRecord {
    /// The settings as people gave them, with all later changes.
    pub keyspace: Keyspace,
    /// Why nothing of it moves by itself, until a person releases the brake (K18).
    pub brake: Option<String>,
    /// What people and the cluster have said about single shards.
    pub rules: BTreeMap<ShardId, ShardRule>,
    /// When it was created, in milliseconds of Unix time.
    pub created_ms: u64,
    /// Its shards have this id or a later one; those of deleted keyspaces of the same name have earlier ones.
    pub first_shard: ShardId,
    /// Ids of it that may have been given out and were forgotten.
    pub lost: Option<LostIds>,
}

impl KeyspaceRecord {
    /// Of a keyspace that begins now.
    pub fn new(keyspace: Keyspace, created_ms: u64, first_shard: ShardId) -> KeyspaceRecord {
        KeyspaceRecord { keyspace, brake: None, rules: BTreeMap::new(), created_ms, first_shard, lost: None }
    }
}

/// A person's request to empty a node. It stays, across restarts of the node, until the node is undrained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Why, as the person who asked says.
    pub reason: String,
    /// When it was asked, in milliseconds of Unix time. Earlier ones go first.
    pub asked_ms: u64,
    /// It begins only while fewer nodes than this are down or being drained (A19); none = at once.
    pub max_down: Option<u32>,
    /// Replicas that the node held when the drain began; none while it waits in the queue.
    pub began_with: Option<u32>,
}

impl Drain {
    /// Whether it has begun: the node's replicas are to go. Before that, the node only gets nothing new.
    pub fn has_begun(&self) -> bool {
        self.began_with.is_some()
    }
}

/// A node as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeRecord {
    /// The announcement of its latest registration.
    pub spec: NodeSpec,
    /// The latest start of the node that has registered.
    pub incarnation: Incarnation,
    /// The digest of that incarnation's token. None where it was lost with the record, or never known: the coordinator
    /// then accepts the first process that comes back as that incarnation.
    pub session: Option<SessionDigest>,
    /// Whether that incarnation has ended for ever.
    pub ended: bool,
    /// Whether it ended with a goodbye.
    pub left: bool,
    /// Whether a map has named it, or it has named stored data, in this incarnation or an earlier one: its disk may have data.
    pub held: bool,
    /// A person's request to empty the node; none = it takes shards.
    pub drain: Option<Drain>,
    /// When this incarnation registered, in milliseconds of Unix time.
    pub since_ms: u64,
}

impl NodeRecord {
    /// Of a node that has just begun, with nothing known of its token.
    pub fn new(spec: NodeSpec, incarnation: Incarnation) -> NodeRecord {
        NodeRecord {
            spec,
            incarnation,
            session: None,
            ended: false,
            left: false,
            held: false,
            drain: None,
            since_ms: 0,
        }
    }
}

/// One durable change. A driver makes all writes of an outbox durable in one transaction.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    /// Replaces the cluster's record.
    Cluster(ClusterRecord),
    /// Replaces or adds a keyspace's record.
    Keyspace(KeyspaceRecord),
    /// A keyspace and its map are gone.
    DropKeyspace(KeyspaceName),
    /// The next map of a keyspace.
    Map(MapDiff),
    /// Replaces or adds a node's record.
    Node(NodeRecord),
    /// A node is forgotten.
    DropNode(NodeId),
    /// Replaces or adds a plan.
    Plan(Plan),
    /// A plan is forgotten.
    DropPlan(PlanId),
}

/// Everything durable: what a coordinator begins to lead from.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Records {
    /// Counters and switches; the default for a new cluster.
    pub cluster: ClusterRecord,
    /// Keyspaces with their maps.
    pub keyspaces: Vec<(KeyspaceRecord, ShardMap)>,
    /// The records of all nodes, those of dead ones included.
    pub nodes: Vec<NodeRecord>,
    /// All plans that are kept, finished ones included.
    pub plans: Vec<Plan>,
}

/// Records that no cluster can be made from.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RecoverError {
    /// The settings contradict each other.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Settings of a keyspace that no cluster could carry out.
    #[error("the stored settings are none: {0}")]
    Keyspace(#[from] KeyspaceError),
    /// A map breaks an invariant.
    #[error("the stored map of keyspace {keyspace} is not a map: {finding}")]
    Map {
        /// The keyspace whose stored map breaks an invariant.
        keyspace: KeyspaceName,
        /// What is wrong with it.
        finding: check::Finding,
    },
}

impl Records {
    /// The same after some of it was lost, or is older than what was last acted upon: fit to start from at `wall_ms`,
    /// in milliseconds of Unix time.
    ///
    /// What was lost may have given out ids, incarnations, epochs and maps that workers and routers hold. So each number
    /// goes on far beyond ([`CounterJump`]: M5, O2, M2). A node whose record is lost but
    /// that a map names gets a record again, without an address until it comes back: else its replicas would
    /// count as gone while it serves them (O1). Where not even the longest lease is known it is taken to be
    /// [`limits::LOST_LEASE_MS`]. A keyspace whose settings or map cannot be is left out, as [`Cluster::recover`] would
    /// refuse all of it.
    #[must_use]
    pub fn after_loss(mut self, wall_ms: u64) -> Records {
        let jump = CounterJump::at(wall_ms);
        self.remember_nodes();
        let cluster = &mut self.cluster;
        let incarnations = self.nodes.iter().map(|node| node.incarnation.next());
        let next = incarnations.chain([cluster.next_incarnation]).max().unwrap_or_default();
        cluster.next_incarnation = Incarnation(jump.beyond(next.0));
        let plans = self.plans.iter().map(|plan| plan.id.next());
        let next = plans.chain([cluster.next_plan]).max().unwrap_or_default();
        cluster.next_plan = PlanId(jump.beyond(next.0));
        let shards = self.keyspaces.iter().map(|(_, map)| map.next_shard());
        let placements = self.keyspaces.iter().map(|(_, map)| map.next_placement());
        let used = (shards.max().unwrap_or_default(), placements.max().unwrap_or_default());
        cluster.jump_ids(jump, used);
        cluster.later_maps.clear();
        let jumped = self.keyspaces.into_iter().map(|(record, map)| {
            let mut jumped = map.clone().after_loss(jump);
            let mut record = record;
            if record.keyspace.durable {
                jumped = jumped.without_forming();
                record.rules.retain(|id, _| jumped.shard(*id).is_some());
            }
            (KeyspaceRecord { lost: Some(LostIds::between(record.lost, &map, &jumped)), ..record }, jumped)
        });
        self.keyspaces = jumped.collect();
        if cluster.longest_lease_ms == 0 {
            cluster.longest_lease_ms = limits::LOST_LEASE_MS;
        }
        self.keyspaces.retain(|(record, map)| record.keyspace.check().is_ok() && check::map(map).is_empty());
        let names: BTreeSet<_> = self.keyspaces.iter().map(|(_, map)| map.keyspace()).collect();
        self.plans.retain(|plan| names.contains(&plan.keyspace));
        self
    }

    /// Sees to it that each node of a map has a record, of the latest start that any map names or a later one.
    pub(super) fn remember_nodes(&mut self) {
        let mut named: BTreeMap<NodeId, Incarnation> = BTreeMap::new();
        let shards = self.keyspaces.iter().flat_map(|(_, map)| map.shards());
        for replica in shards.flat_map(|shard| &shard.replicas) {
            let latest = named.entry(replica.node.clone()).or_default();
            *latest = replica.incarnation.max(*latest);
        }
        for node in &mut self.nodes {
            let latest = named.remove(&node.spec.id);
            node.held |= latest.is_some();
            let latest = latest.unwrap_or_default();
            if latest > node.incarnation {
                // What is stored is of an earlier start.
                (node.incarnation, node.session) = (latest, None);
                (node.ended, node.left) = (false, false);
            }
        }
        self.nodes.extend(named.into_iter().map(|(id, incarnation)| {
            let spec = NodeSpec::new(id, "address-was-lost.invalid:1");
            NodeRecord { held: true, ..NodeRecord::new(spec, incarnation) }
        }));
    }

    /// Puts maps that are kept elsewhere in the place of those that stand for them here.
    pub fn put_maps(&mut self, mut maps: BTreeMap<KeyspaceName, ShardMap>) {
        for (record, map) in &mut self.keyspaces {
            if let Some(kept) = maps.remove(&record.keyspace.name) {
                *map = kept;
            }
        }
    }

    /// The writes that make all of this durable in an empty store.
    pub fn writes(&self) -> Vec<Write> {
        let keyspaces = self.keyspaces.iter().flat_map(|(record, map)| {
            let whole = (map.generation().sequence > 0).then(|| Write::Map(map.whole()));
            [Some(Write::Keyspace(record.clone())), whole].into_iter().flatten()
        });
        let nodes = self.nodes.iter().cloned().map(Write::Node);
        let plans = self.plans.iter().cloned().map(Write::Plan);
        [Write::Cluster(self.cluster.clone())]
            .into_iter()
            .chain(keyspaces)
            .chain(nodes)
            .chain(plans)
            .collect()
    }
}

impl Cluster {
    /// Everything durable, as it is now: what [`Cluster::recover`] takes. How far plans have got may be a little
    /// ahead of what is stored.
    pub fn records(&self) -> Records {
        let keyspaces =
            self.keyspaces.by_name.values().map(|state| (state.record.clone(), state.map.clone()));
        Records {
            cluster: self.record.clone(),
            keyspaces: keyspaces.collect(),
            nodes: self.members.nodes.values().map(|node| node.record.clone()).collect(),
            plans: self.plans.by_id.values().cloned().collect(),
        }
    }

    /// A cluster from what is durable; from [`Records::default`] a new one.
    pub fn recover(at: Moment, settings: Settings, records: Records) -> Result<Cluster, RecoverError> {
        settings.check()?;
        let longest_lease_ms = records.cluster.longest_lease_ms.max(settings.lease_ms);
        let waits_ms = if planted::is(Planted::FormerLeases) { 0 } else { records.cluster.longest_lease_ms };
        let lease = GrantedLease::assumed(at.now, waits_ms);
        let mut cluster = Cluster {
            policies: Policies::default(),
            times: DecisionTimes::new(at.now),
            record: ClusterRecord { longest_lease_ms, ..records.cluster.clone() },
            members: Members::new(at.now),
            keyspaces: Keyspaces {
                // When they were deleted is not stored: it may have been just now.
                deleted: {
                    let names = records.cluster.deleted_keyspaces.keys();
                    names.map(|name| (name.clone(), lease.end())).collect()
                },
                ..Keyspaces::default()
            },
            plans: Plans::new(records.plans),
            recovered: Recovered::new(GrantedLease::assumed(at.now, longest_lease_ms).end()),
            guard: Default::default(),
            budget: Default::default(),
            storage_problem: None,
            outbox: Outbox::default(),
            settings,
        };
        if cluster.record != records.cluster {
            cluster.outbox.writes.push(Write::Cluster(cluster.record.clone()));
        }
        for record in records.nodes {
            let node = NodeState::recalled(record, at, lease);
            cluster.members.nodes.insert(node.record.spec.id.clone(), node);
        }
        let latest = LatestIncarnations::of(&cluster.members);
        for (record, map) in records.keyspaces {
            record.keyspace.check()?;
            if let Some(finding) = check::map(&map).into_iter().next() {
                return Err(RecoverError::Map { keyspace: map.keyspace().clone(), finding });
            }
            let from_map = cluster.members.recall(&map, &latest, (at, lease), &mut cluster.outbox);
            cluster.recovered.inherited |= map.shards().any(|shard| !shard.replicas.is_empty());
            cluster
                .keyspaces
                .by_name
                .insert(map.keyspace().clone(), KeyspaceState::new(record, (map, from_map), at));
        }
        cluster.plans.recall_progress(&cluster.keyspaces);
        Ok(cluster)
    }

    /// Says which cluster this is, by what stands in its store. Where the records say another one, they were restored
    /// from that: its workers are this cluster's.
    #[must_use]
    pub fn identified(mut self, id: ClusterId) -> Cluster {
        let before = std::mem::replace(&mut self.record.id, id);
        if before == id {
            return self;
        }
        let continues = &mut self.record.continues;
        continues.retain(|earlier| *earlier != id);
        if before != ClusterId::default() {
            continues.push(before);
        }
        let many = continues.len().saturating_sub(limits::CONTINUED_CLUSTERS);
        continues.drain(..many);
        self.outbox.writes.push(Write::Cluster(self.record.clone()));
        self
    }

    /// Takes for granted that another leader prolonged leases until `late_ms` from now: one that was deposed by other
    /// hands than its own, and had not heard of it yet (O5).
    pub fn allow_for_predecessor(&mut self, now: Millis, late_ms: u64) {
        let lease_ms = self.record.longest_lease_ms;
        let mut latest = GrantedLease::assumed(self.recovered.leases_before, 0);
        latest.allow_for_predecessor(now, late_ms, lease_ms);
        self.recovered.leases_before = latest.end();
        for node in self.members.nodes.values_mut() {
            node.signs.lease.allow_for_predecessor(now, late_ms, lease_ms);
            for signs in node.former.values_mut() {
                signs.lease.allow_for_predecessor(now, late_ms, lease_ms);
            }
        }
    }
}

impl KeyspaceState {
    /// Of a keyspace whose map is this, by shards and by nodes.
    pub(super) fn new(
        record: KeyspaceRecord,
        (map, FromMap { hosted, unsettled }): (ShardMap, FromMap),
        at: Moment,
    ) -> KeyspaceState {
        let ids: BTreeSet<_> = map.shards().map(|shard| shard.id).collect();
        let under_way = Counts::of(unsettled.iter().filter_map(|id| map.shard(*id)));
        let mut state = KeyspaceState {
            record,
            observed: PackedMap::default(),
            replication: BTreeMap::new(),
            queue: ShardQueue::of_new(ids, unsettled, under_way),
            execution: Default::default(),
            overdue: Default::default(),
            suspicion: Default::default(),
            planning: PlanningState::due(at.now),
            restored: Default::default(),
            never_led: BTreeSet::new(),
            since: Runs::default(),
            begun_empty: None,
            stepped: BTreeMap::new(),
            transfers: BTreeMap::new(),
            hosted,
            map,
        };
        state.recall_strikes(at);
        // New shards of a split or merge rest when all their replicas are live; their followers may wait all the same.
        let closing = state.queue.unsettled.iter().filter_map(|id| match state.map.shard(*id)?.stage() {
            Stage::Closing(children) => Some(children.to_vec()),
            Stage::Serving | Stage::Forming(_) | Stage::Removing => None,
        });
        let ids: BTreeSet<_> = closing.flatten().chain(state.queue.unsettled.iter().copied()).collect();
        for id in ids {
            state.queue.note_child(id, None, state.map.shard(id));
            state.note_waiting(id);
        }
        state
    }
}

impl NodeState {
    pub(super) fn recalled(record: NodeRecord, at: Moment, lease: GrantedLease) -> NodeState {
        let (ended, left) = (record.ended, record.ended && record.left);
        let signs = Signs { ended, left, ..Signs::new(at.now, lease) };
        NodeState {
            signs,
            former: BTreeMap::new(),
            registered: false,
            sequence: 0,
            leaving: false,
            revoked: false,
            has_no_lease: false,
            busy: 0.0,
            disk: Default::default(),
            orders: OrderIndex::default(),
            has_held: ended,
            check_due: at.now,
            long_unreachable: false,
            lease_over: false,
            ended_at: at.now,
            kept: BTreeMap::new(),
            kept_until: None,
            // A leader before may have said so.
            safe_to_stop_told: record.drain.as_ref().is_some_and(|drain| drain.has_begun()),
            kept_told: false,
            wrong_token_told: None,
            is_on_trust: false,
            reported_health: match (left, ended) {
                (true, _) => Health::Left,
                (false, true) => Health::Down,
                (false, false) => Health::Unknown,
            },
            record,
        }
    }
}
