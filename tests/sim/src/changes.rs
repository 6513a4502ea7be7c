//! What people ask for, always on: moves, other leaders, splits, merges, drains, more and fewer replicas; and
//! what they answer when they are asked: the brake, shards that were set aside, plans that wait.
//!
//! Everything goes through [`Cluster::command`], as it does from the command line. What is refused is refused: that
//! is the cluster's business.

use crate::coordinator::transaction;
use crate::model::{KEYS, Space};
use crate::scene::Scene;
use crate::world::World;
use partage_core::base::id::ShardId;
use partage_core::base::name::{KeyspaceName, NodeId, PartitionName};
use partage_core::cluster::admin::{Command, KeyspaceChanges, Presplit, SplitAt};
use partage_core::cluster::serving::Serving;
use partage_core::cluster::{Cluster, Moment};
use partage_core::keyspace::key::Key;
use partage_core::keyspace::map::{Replica, Role, Shard, ShardMap, Stage};
use partage_core::keyspace::sharding::{Bounds, Sharding};
use partage_core::plan::Status;

/// Shards above which nothing is split any more.
const SHARDS: usize = 9;

/// Numbers of fixed slots that people try: of some neither divides the other.
const SLOTS: [u32; 5] = [2, 3, 4, 6, 8];

/// How many of the requests for a keyspace with named partitions register or unregister one, in thousandths.
const PARTITIONS: u64 = 500;

/// How many of the requests are about the table of a run that has one, in thousandths.
const TABLES: u64 = 400;

/// Most nodes that are drained at once.
const DRAINS: usize = 2;

/// Asks for one thing that no run needs; that a keyspace comes or goes only if it may.
pub fn ask(scene: &mut Scene, cluster: &mut Cluster, at: Moment, may_come_and_go: bool) {
    let spaces = std::rc::Rc::clone(&scene.oracles.spaces);
    // A person who has unregistered a partition may want it again at once: that is refused until it has gone.
    let is_removing = |space: &&Space| {
        let map = cluster.keyspaces().get(&space.keyspace.name).map(|state| &state.map);
        map.is_some_and(|map| map.shards().any(|shard| *shard.stage() == Stage::Removing))
    };
    let space = spaces.iter().find(is_removing).filter(|_| scene.draw.chance(700));
    // Tables split and merge all the time.
    let is_table = |space: &&Space| space.is_replicated();
    let space = space.or_else(|| spaces.iter().find(is_table).filter(|_| scene.draw.chance(TABLES)));
    let space = space.unwrap_or(&spaces[scene.draw.index(spaces.len())]);
    let asked =
        if space.comes_and_goes && may_come_and_go { comes_or_goes(scene, cluster, space) } else { None };
    if let Some(command) = asked {
        command_it(scene, cluster, at, command);
    } else if let Some(command) = anything(scene, cluster, space) {
        command_it(scene, cluster, at, command);
    }
}

/// Answers what waits for a person, so that the cluster can go on.
pub fn answer(scene: &mut Scene, cluster: &mut Cluster, at: Moment, calm: bool) {
    let mut commands = Vec::new();
    if cluster.brake().is_some() && (calm || scene.draw.chance(100)) {
        commands.push(Command::ReleaseBrake);
    }
    for (name, state) in cluster.keyspaces() {
        let aside = state.record.rules.iter().filter(|(_, rule)| rule.set_aside.is_some());
        for (shard, _) in aside.filter(|_| calm) {
            commands.push(Command::ReleaseShard { keyspace: name.clone(), shard: *shard });
        }
    }
    for plan in cluster.plans().values().filter(|plan| plan.status == Status::Suggested) {
        let approves = scene.draw.chance(if calm { 1_000 } else { 300 });
        commands.push(match approves {
            true => Command::ApprovePlan { plan: plan.id },
            false => Command::RejectPlan { plan: plan.id },
        });
    }
    for command in commands {
        command_it(scene, cluster, at, command);
    }
}

/// A person chooses a copy for each durable shard that waits although every process runs; where no node has stored anything of
/// it, they give its data up. One step for each shard, with the map that they have looked at. Returns the nodes whose processes
/// they are told to start again.
pub fn choose_copies(scene: &mut Scene, cluster: &mut Cluster, at: Moment) -> Vec<NodeId> {
    let durable = cluster.keyspaces().iter().filter(|(_, state)| state.record.keyspace.durable);
    let waits = durable.flat_map(|(name, state)| {
        let waiting = state.map.shards().filter(|shard| shard.is_serving());
        let waiting = waiting.filter(|shard| cluster.serving(at, state, shard) == Serving::Waiting);
        waiting.map(|shard| (name.clone(), shard.id))
    });
    for (name, id) in waits.collect::<Vec<_>>() {
        choose_copy(scene, cluster, at, (&name, id));
    }
    cluster.status(at).hung.into_keys().collect()
}

/// A replica that the map takes for complete and whose process runs goes on; else the newest copy that a node has stored and
/// that is taken; else the shard is created anew.
fn choose_copy(scene: &mut Scene, cluster: &mut Cluster, at: Moment, (name, id): (&KeyspaceName, ShardId)) {
    let Some(map) = cluster.keyspaces().get(name).map(|state| &state.map) else { return };
    let (keyspace, generation) = (name.clone(), map.generation().sequence);
    let Some(shard) = map.shard(id).cloned() else { return };
    let stored = |node: &NodeId| {
        let of_it = cluster.kept_on(node).filter(|(key, _)| key.keyspace == *name && key.shard == id);
        of_it.map(|(key, kept)| (kept.epoch, key.placement)).max()
    };
    let has_live = |node: &NodeId| shard.live().any(|replica| replica.node == *node);
    let mut nodes: Vec<_> = cluster.nodes().keys().cloned().collect();
    nodes.retain(|node| has_live(node) || stored(node).is_some());
    nodes.sort_by_key(|node| std::cmp::Reverse((has_live(node), stored(node))));
    let joins = nodes.into_iter().map(|node| {
        let keyspace = keyspace.clone();
        Command::ForceJoinShard { keyspace, shard: id, node, generation }
    });
    for command in joins.collect::<Vec<_>>() {
        if let Some(warnings) = command_it(scene, cluster, at, command) {
            scene.oracles.chosen(name, &shard, !warnings.is_empty());
            return;
        }
    }
    let command = Command::RecreateShard { keyspace, shard: id, generation };
    if command_it(scene, cluster, at, command).is_some() {
        scene.oracles.recreated(name, &shard);
    }
}

/// A person asks the leader for one thing. False while there is none, or it is busy.
pub fn by_hand(world: &mut World, command: &Command) -> bool {
    let scene = &mut world.scene;
    for coordinator in &mut world.coordinators {
        let at = coordinator.clock.moment(scene.now);
        if let Some(cluster) = coordinator.cluster(scene.now) {
            command_it(scene, cluster, at, command.clone());
            coordinator.drive(scene);
            return true;
        }
    }
    false
}

/// Returns the warnings, if it is done.
fn command_it(scene: &mut Scene, cluster: &mut Cluster, at: Moment, command: Command) -> Option<Vec<String>> {
    let words = format!("{command:?}");
    let unregisters = matches!(command, Command::UnregisterPartitions { .. });
    let answer = cluster.command(at, transaction(scene), "run", command);
    scene.trace.event(scene.now, (30u8, answer.is_ok()), || match &answer {
        Ok(answer) => format!("ASKED {words}: {}", answer.summary),
        Err(error) => format!("ASKED {words}: refused: {error}"),
    });
    let answer = answer.ok()?;
    if unregisters {
        scene.count("partitions unregistered");
    }
    Some(answer.warnings)
}

/// A keyspace is created, or deleted with all that is in it.
fn comes_or_goes(scene: &mut Scene, cluster: &Cluster, space: &Space) -> Option<Command> {
    let keyspace = space.keyspace.name.clone();
    if cluster.keyspaces().contains_key(&keyspace) {
        return scene.draw.chance(150).then_some(Command::DeleteKeyspace { keyspace });
    }
    let presplit = Presplit::Points(space.cuts());
    let keyspace = Box::new(space.keyspace.clone());
    scene.draw.chance(700).then_some(Command::CreateKeyspace { keyspace, presplit, ahead: true })
}

/// A partition is registered, or unregistered with all that is in it.
fn partition(scene: &mut Scene, map: &ShardMap, space: &Space) -> Option<Command> {
    let keyspace = space.keyspace.name.clone();
    let names: Vec<_> = space.partitions().into_iter().collect();
    let removing = map.shards().filter(|shard| *shard.stage() == Stage::Removing);
    let removing: Vec<_> = removing.map(|shard| &shard.bounds).collect();
    let is_removing = |name: &&PartitionName| removing.contains(&&Bounds::Name((*name).clone()));
    let again = names.iter().find(is_removing).filter(|_| scene.draw.chance(800));
    let name = again.or_else(|| scene.draw.pick(&names))?.clone();
    let is_it = |shard: &Shard| shard.is_serving() && shard.bounds == Bounds::Name(name.clone());
    if map.shards().any(is_it) {
        return Some(Command::UnregisterPartitions { keyspace, partitions: vec![name] });
    }
    let replicas = scene.draw.chance(300).then(|| scene.draw.between(1, 4) as u32);
    Some(Command::RegisterPartitions { keyspace, partitions: vec![name], replicas, ahead: true })
}

fn anything(scene: &mut Scene, cluster: &Cluster, space: &Space) -> Option<Command> {
    let keyspace = space.keyspace.name.clone();
    let map = &cluster.keyspaces().get(&keyspace)?.map;
    if space.is_named() && scene.draw.chance(PARTITIONS) {
        return partition(scene, map, space);
    }
    let serving: Vec<&Shard> = map.shards().filter(|shard| shard.is_serving()).collect();
    let shard = *scene.draw.pick(&serving)?;
    let nodes: Vec<NodeId> = cluster.nodes().keys().cloned().collect();
    let node = scene.draw.pick(&nodes)?.clone();
    let (id, draw) = (shard.id, &mut scene.draw);
    let sharding = cluster.keyspaces()[&keyspace].record.keyspace.sharding;
    let drained = cluster.nodes().iter().filter(|(_, node)| node.record.drain.is_some());
    let drained: Vec<_> = drained.map(|(id, _)| id.clone()).collect();
    if draw.chance(50)
        && let Some(node) = draw.pick(&drained).cloned()
    {
        return Some(Command::UndrainNode { node });
    }
    let gone = cluster.nodes().iter().filter(|(_, node)| node.record.ended);
    let gone: Vec<_> = gone.map(|(id, _)| id.clone()).collect();
    if draw.chance(100)
        && let Some(node) = draw.pick(&gone).cloned()
    {
        return Some(Command::RemoveNode { node });
    }
    if matches!(sharding, Sharding::Fixed { .. }) && draw.chance(250) {
        let changes = KeyspaceChanges { shards: draw.pick(&SLOTS).copied(), ..KeyspaceChanges::default() };
        return Some(Command::UpdateKeyspace { keyspace, changes: Box::new(changes), ahead: true });
    }
    Some(match draw.index(12) {
        0..4 => {
            let replicas: Vec<_> = shard.staying().collect();
            let from = draw.pick(&replicas)?.node.clone();
            Command::MoveShard { keyspace, shard: id, from, to: node }
        }
        4 => {
            let followers: Vec<_> = shard.live().filter(|r| r.role == Role::Follower).collect();
            Command::TransferLeader { keyspace, shard: id, to: draw.pick(&followers)?.node.clone() }
        }
        5 | 6 if serving.len() < SHARDS => {
            Command::SplitShard { keyspace, shard: id, at: cut(scene, space, &shard.bounds)? }
        }
        7 | 8 => {
            let (left, right) = neighbours(scene, &serving)?;
            Command::MergeShards { keyspace, left, right }
        }
        9 => {
            let max_down = draw.chance(500).then_some(1);
            let drain = Command::DrainNode { node, reason: "the run says so".to_owned(), max_down };
            (drained.len() < DRAINS).then_some(drain)?
        }
        10 => {
            let replicas = draw.chance(700).then(|| draw.between(1, 4) as u32);
            // A disk that is lost in the very beat in which a person asks for one copy takes the last one: nobody can know.
            let disks = &scene.oracles.storage.disks;
            let is_whole = |r: &Replica| disks.is_whole(&keyspace, id, r.placement);
            let is_risky = replicas == Some(1) && space.keyspace.durable && !shard.live().all(is_whole);
            (!is_risky).then_some(Command::SetShardReplicas { keyspace, shard: id, replicas, ahead: true })?
        }
        _ if serving.len() < SHARDS => {
            let key = Key::new(&space.keys[draw.index(KEYS)]).ok()?;
            Command::IsolateKey { keyspace, key }
        }
        _ => return None,
    })
}

fn cut(scene: &mut Scene, space: &Space, bounds: &Bounds) -> Option<SplitAt> {
    match bounds {
        Bounds::Keys(range) => {
            let inside = |key: &&Vec<u8>| range.contains(key) && key.as_slice() > range.begin.as_bytes();
            let keys: Vec<&Vec<u8>> = space.keys.iter().filter(inside).collect();
            Some(SplitAt::Keys(vec![Key::new(scene.draw.pick(&keys)?).ok()?]))
        }
        Bounds::Hashes(_) if scene.draw.chance(500) => Some(SplitAt::Middle),
        Bounds::Hashes(range) => {
            let point = scene.draw.between(range.first, range.last).checked_add(1)?;
            Some(SplitAt::Points(vec![point]))
        }
        Bounds::Slot(_) | Bounds::Name(_) => None,
    }
}

fn neighbours(
    scene: &mut Scene,
    serving: &[&Shard],
) -> Option<(partage_core::base::id::ShardId, partage_core::base::id::ShardId)> {
    let meet = |left: &Shard, right: &Shard| match (&left.bounds, &right.bounds) {
        (Bounds::Keys(a), Bounds::Keys(b)) => a.end == b.begin && !a.end.is_empty(),
        (Bounds::Hashes(a), Bounds::Hashes(b)) => a.last.checked_add(1) == Some(b.first),
        _ => false,
    };
    let pairs: Vec<_> = serving
        .iter()
        .flat_map(|left| serving.iter().map(move |right| (left, right)))
        .filter(|(left, right)| meet(left, right))
        .map(|(left, right)| (left.id, right.id))
        .collect();
    scene.draw.pick(&pairs).copied()
}
