//! A coordinator's decisions without a world: workers that beat when they are told to and say what they are told to say.
//! And what must be so of them: what waited while its shard was set aside, what is stored, and names of keyspaces.

use partage_core::base::id::{
    ClusterId, Epoch, Generation, Incarnation, PlacementId, SessionDigest, ShardId, TransactionId,
};
use partage_core::base::name::{KeyspaceName, NodeId, PartitionName};
use partage_core::base::settings::Settings;
use partage_core::base::time::Millis;
use partage_core::cluster::admin::{AdminError, Command, Presplit};
use partage_core::cluster::{
    Cluster, KeyspaceRecord, LaterMap, Moment, NodeState, Records, StoredFaults, note_later,
};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{Shard, ShardMap};
use partage_core::keyspace::sharding::{PartitionKey, Sharding, Slot};
use partage_core::keyspace::{Keyspace, Mode, Ownership, Throttle};
use partage_core::node::NodeSpec;
use partage_core::node::exchange::Registration;
use partage_core::node::exchange::{
    Beat, KeyspaceBrief, Known, Order, Permission, Phase, ReplicaKey, Report, Served, Stored,
};
use partage_core::plan::{Change, Progress};
use partage_core::routing::table::RouteTable;

/// What was seen instead.
type Outcome = Result<(), String>;

/// The last epoch that a shard of these scenarios reaches by far.
const LATER: Epoch = Epoch(1_000);

/// Placements before this one were given out, and are in no map any more.
const FIRST_PLACEMENT: PlacementId = PlacementId(10);

/// One process of a worker.
#[derive(Debug)]
pub struct Member {
    id: NodeId,
    incarnation: Incarnation,
    sequence: u64,
    applied: u64,
    /// What its node has stored; it says so of what it is not ordered.
    stored: Vec<Stored>,
}

/// What the workers report of an order.
type Says<'a> = &'a dyn Fn(&NodeId, &Order) -> Phase;

/// A coordinator, and workers that beat when they are told to.
pub struct Alone {
    /// The cluster as the coordinator under test sees it.
    pub cluster: Cluster,
    /// The time of the coordinator and of its workers, which beats move on.
    pub now: Millis,
    /// The processes that beat.
    pub members: Vec<Member>,
    transaction: u64,
}

impl Member {
    /// Whatever is ordered is done at once.
    pub fn serves(_node: &NodeId, order: &Order) -> Phase {
        match order.state {
            ReplicaState::Load => Phase::Ready,
            ReplicaState::Live => Phase::Serving,
            ReplicaState::Unload => Phase::Unloaded,
            ReplicaState::UnloadFinal => Phase::Dropped,
        }
    }
}

impl Alone {
    /// With that many workers, `n0` and so on.
    pub fn new(nodes: u32, settings: Settings, records: Records) -> Result<Alone, String> {
        let now = Millis(1_000_000);
        let cluster = Cluster::recover(Moment { now, wall_ms: 0 }, settings, records);
        let cluster = cluster.map_err(|error| error.to_string())?;
        let mut alone = Alone { cluster, now, transaction: 0, members: Vec::new() };
        (0..nodes).try_for_each(|number| alone.joins(&format!("n{number}"), Vec::new()))?;
        Ok(alone)
    }

    /// With that many workers, and a shard for each, which they have had for longer than a shard is suspected.
    pub fn with_shards(nodes: u32, settings: Settings) -> Result<Alone, String> {
        let beats = settings.poison_window_ms / settings.heartbeat_ms;
        let mut alone = Alone::new(nodes, settings, records(keyspace(nodes)?)?)?;
        for _ in 0..beats {
            alone.beats(&Member::serves)?;
        }
        let has_none = |node: &NodeState| node.held() == 0;
        fails_if(alone.cluster.nodes().values().any(has_none), "the scenario never gives each node a shard")?;
        Ok(alone)
    }

    /// A process registers, and names what its node has stored. One of before on that node is over.
    fn joins(&mut self, name: &str, stored: Vec<Stored>) -> Outcome {
        let id = NodeId::new(name).map_err(|error| error.to_string())?;
        let spec = NodeSpec::new(id.clone(), format!("{name}:1"));
        let registration = Registration { stored: stored.clone(), ..Registration::new(spec) };
        let welcome = self.cluster.register(self.at(), registration).map_err(|e| e.to_string())?;
        self.members.retain(|member| member.id != id);
        self.members.push(Member { id, incarnation: welcome.incarnation, sequence: 0, applied: 0, stored });
        Ok(())
    }

    fn at(&self) -> Moment {
        Moment { now: self.now, wall_ms: 0 }
    }

    fn transaction(&mut self) -> TransactionId {
        self.transaction += 1;
        let mut name = [0; 20];
        name[..8].copy_from_slice(&self.transaction.to_be_bytes());
        TransactionId(name)
    }

    fn asked(&mut self, command: Command) -> Result<(), AdminError> {
        let (at, transaction) = (self.at(), self.transaction());
        self.cluster.command(at, transaction, "run", command)?;
        self.decide();
        Ok(())
    }

    /// Decides until nothing is left to be decided now.
    pub fn decide(&mut self) {
        let at = self.at();
        for (node, incarnation, ..) in self.cluster.checks_due(at.now) {
            self.cluster.checked_back(at, &node, incarnation, true);
        }
        for _ in 0..1_000 {
            let transaction = self.transaction();
            if self.cluster.decide(at, transaction) > at.now {
                break;
            }
        }
        drop(self.cluster.take_outbox());
    }

    /// A heartbeat passes, and all processes beat. Gives what they may delete.
    pub fn beats(&mut self, says: Says<'_>) -> Result<Vec<Permission>, String> {
        self.now = self.now + self.cluster.settings().heartbeat_ms;
        self.decide();
        let (mut permissions, at) = (Vec::new(), self.at());
        for member in &mut self.members {
            member.sequence += 1;
            let ordered = self.cluster.orders_since(&member.id, 0, None).map(|orders| orders.changed);
            let ordered: Vec<Order> = ordered.into_iter().flatten().collect();
            let is_ordered = |stored: &Stored| ordered.iter().any(|order| order.replica == stored.replica);
            let kept = member.stored.iter().filter(|stored| !is_ordered(stored)).map(|stored| Report {
                replica: stored.replica.clone(),
                phase: Phase::Kept,
                epoch: stored.epoch,
                load: None,
                progress: 0,
                served: Some(Served { epoch: stored.epoch, bounds: stored.bounds.clone() }),
                replication: None,
            });
            let report = |order: &Order| Report {
                phase: says(&member.id, order),
                replica: order.replica.clone(),
                epoch: order.epoch,
                load: None,
                progress: 0,
                served: None,
                replication: None,
            };
            let beat = Beat {
                session: SessionDigest::default(),
                node: member.id.clone(),
                incarnation: member.incarnation,
                sequence: member.sequence,
                sent_at: at.now,
                applied: member.applied,
                sent: 0,
                whole: true,
                reports: ordered.iter().map(report).chain(kept).collect(),
                leaving: None,
                busy: 0.0,
                lease_expired: false,
                disk: Default::default(),
            };
            let orders = self.cluster.beat(at, beat).map_err(|error| error.to_string())?;
            member.applied = orders.version;
            permissions.extend(orders.permissions);
        }
        self.decide();
        Ok(permissions)
    }

    /// Beats until `is_so`, of which an error says what is not.
    fn until(&mut self, is_so: fn(&Alone) -> bool, what: &str) -> Outcome {
        for _ in 0..100 {
            if is_so(self) {
                return Ok(());
            }
            self.beats(&Member::serves)?;
        }
        Err(format!("it never comes to this: {what}"))
    }

    fn map(&self) -> Option<&ShardMap> {
        self.cluster.keyspaces().values().next().map(|state| &state.map)
    }

    fn shard(&self, id: ShardId) -> Option<&Shard> {
        self.map()?.shard(id)
    }

    /// Whether the first shard has a leader that serves.
    fn is_served(&self) -> bool {
        let Some(state) = self.cluster.keyspaces().values().next() else { return false };
        let leader = self.shard(ShardId(1)).and_then(Shard::leader);
        leader.is_some_and(|leader| {
            let phase = state.observed.get(&leader.placement).map(|seen| seen.phase().clone());
            phase == Some(Phase::Serving)
        })
    }
}

fn fails_if(is_wrong: bool, why: &str) -> Outcome {
    if is_wrong { Err(why.to_owned()) } else { Ok(()) }
}

fn name() -> Result<KeyspaceName, String> {
    KeyspaceName::new("ledger").map_err(|error| error.to_string())
}

fn keyspace(shards: u32) -> Result<Keyspace, String> {
    let sharding = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards };
    Ok(Keyspace { mode: Mode::Automatic, ..Keyspace::new(name()?, sharding) })
}

/// A map of `keyspace` in which nothing is placed, whose shards have that id and later ones.
fn map_from(keyspace: &Keyspace, first: ShardId) -> Result<ShardMap, String> {
    let Sharding::Fixed { shards, .. } = keyspace.sharding else { return Err("it has no slots".to_owned()) };
    let map = ShardMap::empty(keyspace.name.clone(), keyspace.sharding, keyspace.partition_key);
    let mut map = map.empty_after(first, FIRST_PLACEMENT);
    let mut edit = map.edit();
    for slot in Slot::all(shards) {
        edit.create_shard(slot).map_err(|error| error.to_string())?;
    }
    let diff = edit.commit(TransactionId([255; 20]));
    map.apply(&diff).map_err(|error| error.to_string())?;
    Ok(map)
}

fn records(keyspace: Keyspace) -> Result<Records, String> {
    let map = map_from(&keyspace, ShardId(1))?;
    let record = KeyspaceRecord::new(keyspace, 0, ShardId(1));
    Ok(Records { keyspaces: vec![(record, map)], ..Records::default() })
}

/// Of two shards on four nodes the second cannot be loaded anywhere. Its fourth load waits behind the first shard, which
/// hangs on that node, until the other three have failed and the shard is set aside: then it is dropped (R5).
pub fn what_waited_while_its_shard_was_set_aside_is_dropped() -> Outcome {
    let settings = Settings::default();
    let attempts = settings.load_attempts;
    let throttle = Throttle { loads_per_node: 1, ..Throttle::default() };
    let mut alone = Alone::new(4, settings, records(Keyspace { replicas: 4, throttle, ..keyspace(2)? })?)?;
    let (last, bad) = (NodeId::new("n3").map_err(|error| error.to_string())?, ShardId(2));
    let failed = |node: &NodeId, order: &Order, hangs: bool| match order.state {
        ReplicaState::Load if order.replica.shard == bad => {
            Phase::failed(attempts, "no such file".to_owned())
        }
        ReplicaState::Load if hangs && *node == last => Phase::Loading,
        _ => Member::serves(node, order),
    };
    let is_aside = |alone: &Alone| {
        let mut rules = alone.cluster.keyspaces().values().flat_map(|state| &state.record.rules);
        rules.any(|(shard, rule)| *shard == bad && rule.set_aside.is_some())
    };
    let waits = |alone: &Alone| {
        let mut changes = alone.cluster.plans().values().flat_map(|plan| &plan.changes);
        let is_it =
            |change: &Change| matches!(change, Change::Add { shard, node } if *shard == bad && *node == last);
        changes.any(|planned| planned.progress == Progress::Waiting && is_it(&planned.change))
    };
    let mut waited = false;
    for _ in 0..100 {
        if is_aside(&alone) {
            break;
        }
        waited = waits(&alone);
        alone.beats(&|node, order| failed(node, order, true))?;
    }
    if !waited || !is_aside(&alone) {
        return Err("the scenario never comes to a change that waits while its shard is set aside".to_owned());
    }
    for _ in 0..100 {
        alone.beats(&|node, order| failed(node, order, false))?;
        if alone.shard(bad).is_some_and(|shard| shard.replicas.iter().any(|r| r.node == last)) {
            return Err(format!("R5: {bad} is set aside, and newly placed on {last}"));
        }
    }
    Ok(())
}

/// What a node has stored of the first shard, under an epoch.
fn stored(placement: PlacementId, epoch: Epoch, damaged: bool) -> Result<Stored, String> {
    let bounds = Slot::all(1).pop().ok_or("one slot is one")?;
    let replica = ReplicaKey { keyspace: name()?, shard: ShardId(1), placement };
    Ok(Stored { replica, bounds, epoch, store: 1, damaged })
}

/// The only copy of a shard is on a node that comes back with it damaged, or without it: it is waited for (D10).
pub fn what_is_not_whole_is_no_copy() -> Outcome {
    for comes_back_with_it in [true, false] {
        let durable = Keyspace { durable: true, replicas: 1, ..keyspace(1)? };
        let mut alone = Alone::new(3, Settings::default(), records(durable)?)?;
        alone.until(Alone::is_served, "the shard is served")?;
        let shard = alone.shard(ShardId(1)).cloned().ok_or("it is in the map")?;
        let leader = shard.leader().cloned().ok_or("it is served")?;
        let damaged = comes_back_with_it.then(|| stored(leader.placement, shard.epoch, true)).transpose()?;
        alone.joins(leader.node.as_str(), damaged.into_iter().collect())?;
        for _ in 0..20 {
            alone.beats(&Member::serves)?;
        }
        let copy = alone.shard(ShardId(1)).and_then(|shard| shard.replica(leader.placement).cloned());
        let copy = copy.ok_or("D10: the last copy is in no map any more")?;
        if copy.incarnation != leader.incarnation {
            return Err(format!("D10: {} has nothing whole, and is to serve it", copy.node));
        }
    }
    Ok(())
}

/// Two nodes have exchanged their folders while they were down. What one of them had stored counts for none of the replicas that
/// the map names on it: it is waited for (D10). With the folder in its place, the replica goes on.
pub fn what_lies_on_another_nodes_store_is_no_copy() -> Outcome {
    let durable = Keyspace { durable: true, replicas: 1, ..keyspace(1)? };
    let mut alone = Alone::new(3, Settings::default(), records(durable)?)?;
    alone.until(Alone::is_served, "the shard is served")?;
    let shard = alone.shard(ShardId(1)).cloned().ok_or("it is in the map")?;
    let leader = shard.leader().cloned().ok_or("it is served")?;
    let mut others = ["n0", "n1", "n2"].into_iter().filter(|name| *name != leader.node.as_str());
    let other = others.next().ok_or("there are three nodes")?;
    let copy = || stored(leader.placement, shard.epoch, false);
    let incarnation = |alone: &Alone| {
        let shard = alone.shard(ShardId(1));
        shard.and_then(|shard| shard.replica(leader.placement)).map(|replica| replica.incarnation)
    };
    alone.joins(other, vec![copy()?])?;
    alone.joins(leader.node.as_str(), Vec::new())?;
    for _ in 0..20 {
        alone.beats(&Member::serves)?;
    }
    let found = incarnation(&alone).ok_or("D10: the last copy is in no map any more")?;
    if found != leader.incarnation {
        return Err(format!("D10: {} has nothing stored, and is to serve what {other} has", leader.node));
    }
    alone.joins(other, Vec::new())?;
    alone.joins(leader.node.as_str(), vec![copy()?])?;
    for _ in 0..20 {
        alone.beats(&Member::serves)?;
    }
    fails_if(incarnation(&alone) == Some(leader.incarnation), "L1: a copy in its place does not go on")
}

/// One of two copies ends; the other one may have ended, too, and is not missed yet. It goes on alone when it is heard (D10).
pub fn the_last_copy_is_heard_before_it_goes_on_alone() -> Outcome {
    let durable = Keyspace { durable: true, replicas: 2, ..keyspace(1)? };
    let mut alone = Alone::new(2, Settings::default(), records(durable)?)?;
    let copies = |alone: &Alone| alone.shard(ShardId(1)).map_or(0, |shard| shard.live().count());
    alone.until(Alone::is_served, "the shard is served")?;
    for _ in 0..20 {
        alone.beats(&Member::serves)?;
    }
    fails_if(copies(&alone) != 2, "the scenario never comes to two copies")?;
    let leader = alone.shard(ShardId(1)).and_then(Shard::leader).cloned().ok_or("it is served")?;
    alone.now = alone.now + 1;
    let at = alone.at();
    alone
        .cluster
        .leave(at, &leader.node, leader.incarnation, SessionDigest::default())
        .map_err(|error| error.to_string())?;
    alone.members.retain(|member| member.id != leader.node);
    alone.decide();
    fails_if(copies(&alone) != 2, "D10: one copy is given up for another that may have ended before")?;
    for _ in 0..2 {
        alone.beats(&Member::serves)?;
    }
    let next = alone.shard(ShardId(1)).and_then(Shard::leader).ok_or("L1: nobody leads")?;
    fails_if(next.node == leader.node || copies(&alone) != 1, "L1: the copy that is heard does not go on")
}

/// One of three copies ends, one that follows. The others go on under a later epoch: after a restore the epochs that the copies
/// have stored are all that tells the one that was given up from those that have gone on (D10, seed 21700 with touched state).
pub fn those_that_go_on_do_so_under_a_later_epoch() -> Outcome {
    let durable = Keyspace { durable: true, replicas: 3, ..keyspace(1)? };
    let mut alone = Alone::new(3, Settings::default(), records(durable)?)?;
    let copies = |alone: &Alone| alone.shard(ShardId(1)).map_or(0, |shard| shard.live().count());
    alone.until(Alone::is_served, "the shard is served")?;
    for _ in 0..30 {
        alone.beats(&Member::serves)?;
    }
    fails_if(copies(&alone) != 3, "the scenario never comes to three copies")?;
    let shard = alone.shard(ShardId(1)).ok_or("it is served")?;
    let (epoch, leader) = (shard.epoch, shard.leader().ok_or("it is served")?.placement);
    let follower = shard.live().find(|r| r.placement != leader).cloned().ok_or("it has followers")?;
    let at = alone.at();
    alone
        .cluster
        .leave(at, &follower.node, follower.incarnation, SessionDigest::default())
        .map_err(|error| error.to_string())?;
    alone.members.retain(|member| member.id != follower.node);
    for _ in 0..2 {
        alone.decide();
        alone.beats(&Member::serves)?;
    }
    fails_if(copies(&alone) != 2, "L1: the copies that are heard do not go on")?;
    let shard = alone.shard(ShardId(1)).ok_or("it is served")?;
    fails_if(shard.leader().map(|r| r.placement) != Some(leader), "the leader was changed for nothing")?;
    fails_if(shard.epoch <= epoch, "D10: nothing tells the copy that was given up from the others")
}

/// A node has data of a later epoch than the one under which its shard is served: it may be the only copy (D7).
pub fn data_of_a_later_epoch_is_kept() -> Outcome {
    for (epoch, may_go) in [(Epoch(0), true), (LATER, false)] {
        let mut alone = Alone::new(3, Settings::default(), records(keyspace(1)?)?)?;
        alone.until(Alone::is_served, "the shard is served")?;
        alone.joins("n9", vec![stored(PlacementId(1), epoch, false)?])?;
        let mut permissions = Vec::new();
        for _ in 0..20 {
            permissions.extend(alone.beats(&Member::serves)?);
        }
        match (may_go, permissions.is_empty()) {
            (true, true) => return Err(format!("what is kept of {epoch:?} may never go")),
            (false, false) => {
                return Err(format!("D7: what is kept of {epoch:?} may go, and nobody has anything as late"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The owners of an exclusive keyspace that was deleted may not know yet: nobody else owns its keys meanwhile (O1).
pub fn a_deleted_name_is_not_given_out_at_once() -> Outcome {
    let settings = Settings::default();
    let beats = 2 * settings.lease_ms / settings.heartbeat_ms + 2;
    let mut alone = Alone::new(3, settings, records(keyspace(1)?)?)?;
    alone.until(Alone::is_served, "the shard is served")?;
    alone.asked(Command::DeleteKeyspace { keyspace: name()? }).map_err(|error| error.to_string())?;
    let anew = || -> Result<Command, String> {
        Ok(Command::CreateKeyspace {
            keyspace: Box::new(keyspace(1)?),
            presplit: Presplit::None,
            ahead: true,
        })
    };
    if alone.asked(anew()?).is_ok() {
        return Err("O1: the name is given out again while its last owners may not know yet".to_owned());
    }
    for _ in 0..beats {
        alone.beats(&Member::serves)?;
    }
    alone.asked(anew()?).map_err(|error| error.to_string())
}

/// A partition was unregistered, and its owner has not unloaded it: no other shard is given its name meanwhile (O1).
pub fn a_partition_is_not_registered_again_before_it_is_unloaded() -> Outcome {
    let keyspace = Keyspace { mode: Mode::Automatic, ..Keyspace::new(name()?, Sharding::Named) };
    let map = ShardMap::empty(keyspace.name.clone(), keyspace.sharding, keyspace.partition_key);
    let map = map.empty_after(ShardId(1), FIRST_PLACEMENT);
    let record = KeyspaceRecord::new(keyspace, 0, ShardId(1));
    let records = Records { keyspaces: vec![(record, map)], ..Records::default() };
    let mut alone = Alone::new(3, Settings::default(), records)?;
    let partitions = vec![PartitionName::new("p").map_err(|error| error.to_string())?];
    let keyspace = name()?;
    let register = Command::RegisterPartitions {
        keyspace: keyspace.clone(),
        partitions: partitions.clone(),
        replicas: None,
        ahead: true,
    };
    alone.asked(register.clone()).map_err(|error| error.to_string())?;
    alone.until(Alone::is_served, "the partition is served")?;
    let unregister = Command::UnregisterPartitions { keyspace, partitions };
    alone.asked(unregister).map_err(|error| error.to_string())?;
    let clings = |node: &NodeId, order: &Order| match order.state {
        ReplicaState::Unload => Phase::Unloading,
        _ => Member::serves(node, order),
    };
    for _ in 0..3 {
        alone.beats(&clings)?;
    }
    if alone.asked(register.clone()).is_ok() {
        return Err("O1: a partition is registered again while its owner has not unloaded it".to_owned());
    }
    for _ in 0..4 {
        alone.beats(&Member::serves)?;
    }
    alone.asked(register).map_err(|error| error.to_string())
}

/// A table that has the map of a keyspace whose shards begin at s5.
fn table_from_5() -> Result<(RouteTable, KeyspaceBrief), String> {
    let keyspace = keyspace(1)?;
    let map = map_from(&keyspace, ShardId(5))?;
    let brief = KeyspaceBrief {
        name: keyspace.name.clone(),
        sharding: keyspace.sharding,
        partition_key: PartitionKey::default(),
        ownership: Ownership::Exclusive,
        generation: map.generation(),
        first_shard: ShardId(5),
        durable: false,
        min_in_sync: 0,
        kind: partage_core::keyspace::KeyspaceKind::App,
        values: partage_core::keyspace::RowValues::Bytes,
        feed_ms: 0,
    };
    let mut table = RouteTable::default();
    table.change(Some(brief.clone()), true, &map.whole()).map_err(|error| error.to_string())?;
    Ok((table, brief))
}

/// A node that knows shards below s5 only says nothing about a keyspace that begins there (M2).
pub fn who_lags_behind_does_not_say_that_a_keyspace_is_gone() -> Outcome {
    let (mut table, brief) = table_from_5()?;
    let is_gone = table.delete(&brief.name, ShardId(3));
    fails_if(is_gone, "M2: a keyspace is forgotten on the word of who has never heard of it")?;
    fails_if(!table.delete(&brief.name, ShardId(6)), "a keyspace that is gone stays")
}

/// The map of a keyspace of that name which was deleted before is no later one, however often that was changed (M2).
pub fn a_deleted_life_of_a_keyspace_does_not_come_back() -> Outcome {
    let (mut table, brief) = table_from_5()?;
    let map = map_from(&keyspace(1)?, ShardId(1))?;
    let generation = Generation { sequence: 9, ..map.generation() };
    let mut whole = map.whole();
    whole.to = generation;
    let earlier = KeyspaceBrief { first_shard: ShardId(1), generation, ..brief };
    let taken = table.change(Some(earlier), true, &whole).is_ok();
    fails_if(taken, "M2: a map of a keyspace that was deleted is taken for one of the next")
}

/// An engine was restored from an older state of itself: a worker that was given orders by a later map is not taken in, and
/// the leader that reads the state next has the keyspace in quarantine (D10).
pub fn an_older_state_is_led_by_nobody() -> Outcome {
    let mut records = records(keyspace(1)?)?;
    let mut leader = Alone::new(0, Settings::default(), records.clone())?;
    let (keyspace, first_shard) = (name()?, ShardId(1));
    let older = records.keyspaces.first().map(|(_, map)| map.generation()).unwrap_or_default();
    let known = Known {
        keyspace: keyspace.clone(),
        first_shard,
        generation: Generation { sequence: older.sequence + 3, ..older },
    };
    let id = NodeId::new("n0").map_err(|error| error.to_string())?;
    let spec = NodeSpec::new(id, "n0:1".to_owned());
    let registration = Registration { known: vec![known.clone()], ..Registration::new(spec) };
    let registration = Registration { cluster: Some(ClusterId::default()), ..registration };
    let is_taken_in = leader.cluster.register(leader.at(), registration).is_ok();
    fails_if(is_taken_in, "D10: a worker that knows of a later map is commanded by an older one")?;
    let mut ahead = leader.cluster.later_maps().clone();
    note_later(&mut ahead, LaterMap { who: "this coordinator".to_owned(), known });
    let mut faults = StoredFaults::default();
    records.refuse_older(&mut faults, &mut ahead);
    fails_if(!faults.quarantine.contains_key(&keyspace), "D10: an older state is taken for the latest")
}
