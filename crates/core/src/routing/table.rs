//! The router's maps, and how a coordinator's changes are applied.
//!
//! One writer owns the table, applies each change, and hands out [`Routes`] after it. The table refuses a change that
//! does not follow on its map, and stays as it is; the error says whether to ask for the whole map. A map never goes
//! back (M2): the table refuses an older one, and keeps its own, for ever if need be. It takes a lower generation only
//! of a keyspace which was deleted and created anew; the ids, all of them new, show that (M5).
//!
//! A table belongs to the first cluster that it hears of, and to clusters restored from that one. A coordinator of
//! another cluster, or one whose state is gone, knows nothing of these keyspaces: the table refuses it before it can
//! say that they are deleted (D11).

use super::layout::LayoutError;
use super::routes::{KeyspaceRoutes, ReplicaEntry, RouteNode, Routes, ShardRoute};
use crate::base::id::{ClusterId, Generation, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::planted::{self, Planted};
use crate::keyspace::map::{DiffError, MapDiff, Role, Shard, ShardMap};
use crate::node::NodeAddress;
use crate::node::exchange::{ClusterIdentity, KeyspaceBrief, Known};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Why the table refuses a change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Changes in between are missing: ask for a resync, by naming no generation of this keyspace.
    #[error("keyspace {keyspace} is at {at} but the change begins at {from}: resync")]
    Gap {
        /// The keyspace of which the maps in between are missing.
        keyspace: KeyspaceName,
        /// The generation of the map here.
        at: Generation,
        /// The generation that the change builds on.
        from: Generation,
    },
    /// An older map, or another one at the same sequence: this coordinator lags behind. Keep the
    /// map, ask another.
    #[error(
        "keyspace {keyspace} is at {at} and was offered {to}: a map never goes back, ask another coordinator"
    )]
    Back {
        /// The keyspace whose offered map is not newer than the one here.
        keyspace: KeyspaceName,
        /// The generation of the map here.
        at: Generation,
        /// The generation of the map that was offered.
        to: Generation,
    },
    /// A coordinator of another cluster, or of this one with its state gone. Keep the maps, ask another.
    #[error("the maps here are of cluster {ours}, and this coordinator is of cluster {theirs}")]
    OtherCluster {
        /// The cluster that the maps here are of.
        ours: ClusterId,
        /// The cluster that this coordinator names.
        theirs: ClusterId,
    },
    /// A coordinator that does not name its cluster, while the table has one.
    #[error("the maps here are of cluster {ours}, and this coordinator does not say which it is of")]
    Nameless {
        /// The cluster that the maps here are of.
        ours: ClusterId,
    },
    /// A change of a keyspace whose settings were never sent: resync.
    #[error("keyspace {keyspace} was changed before its settings were sent: resync")]
    SettingsMissing {
        /// The keyspace that was changed before its settings were sent.
        keyspace: KeyspaceName,
    },
    /// No coordinator can have committed that map: resync.
    #[error("the map of keyspace {keyspace} at {to} cannot be: {why}: resync")]
    Layout {
        /// The keyspace whose map was refused.
        keyspace: KeyspaceName,
        /// The generation of the refused map.
        to: Generation,
        /// What is wrong with it.
        why: LayoutError,
    },
}

#[derive(Debug)]
struct Space {
    map: ShardMap,
    /// An offer that begins below is of an earlier keyspace of the name.
    life: ShardId,
    routes: Arc<KeyspaceRoutes>,
}

/// The numbers of nodes; see [`super::routes`].
#[derive(Debug, Default)]
struct Numbers {
    by_id: BTreeMap<NodeId, u32>,
    nodes: Vec<Option<RouteNode>>,
    /// How many replicas refer to each.
    references: Vec<usize>,
    free: Vec<u32>,
}

/// Maps and addresses, and the routes made of them.
#[derive(Debug, Default)]
pub struct RouteTable {
    cluster: Option<ClusterIdentity>,
    spaces: BTreeMap<KeyspaceName, Space>,
    /// The latest known settings of keyspaces whose maps are not here yet.
    not_before: BTreeMap<KeyspaceName, KeyspaceBrief>,
    numbers: Numbers,
}

impl RouteTable {
    /// A table without maps that refuses maps older than `latest` (M2). For a coordinator that has led and stands by
    /// from here on: the next leader may have lagged behind, and offers older maps until it has recovered.
    pub fn not_before<'a>(latest: impl IntoIterator<Item = &'a KeyspaceBrief>) -> RouteTable {
        let not_before = latest.into_iter().map(|brief| (brief.name.clone(), brief.clone())).collect();
        RouteTable { not_before, ..RouteTable::default() }
    }

    /// The generations of all its maps, for the request that resumes.
    pub fn known(&self) -> BTreeMap<KeyspaceName, Generation> {
        self.spaces.iter().map(|(name, space)| (name.clone(), space.map.generation())).collect()
    }

    /// Which cluster its maps are of, once that is known.
    pub fn cluster(&self) -> Option<&ClusterIdentity> {
        self.cluster.as_ref()
    }

    /// A coordinator names its cluster, before anything else.
    ///
    /// # Errors
    /// [`TableError::OtherCluster`] when it does not continue the cluster of the maps.
    pub fn belongs(&mut self, identity: ClusterIdentity) -> Result<(), TableError> {
        match self.cluster.as_ref().map(|ours| ours.cluster) {
            Some(ours) if !identity.is_or_continues(ours) => {
                Err(TableError::OtherCluster { ours, theirs: identity.cluster })
            }
            ours => {
                if ours.is_some_and(|ours| ours != identity.cluster) {
                    // The backup may be from before a keyspace was deleted and created anew.
                    self.spaces.values_mut().for_each(|space| space.life = ShardId(0));
                }
                self.cluster = Some(identity);
                Ok(())
            }
        }
    }

    /// The map of a keyspace.
    pub fn map(&self, keyspace: &KeyspaceName) -> Option<&ShardMap> {
        self.spaces.get(keyspace).map(|space| &space.map)
    }

    /// The keyspaces that are known here, with a map or without, each at its latest generation.
    pub fn keyspaces(&self) -> Vec<Known> {
        let before = self.not_before.iter().filter(|(name, _)| !self.spaces.contains_key(*name));
        let held = self.spaces.values().map(|space| space.routes.brief().known());
        before.map(|(_, brief)| brief.known()).chain(held).collect()
    }

    /// The settings of a keyspace, at the generation of its map.
    pub fn brief(&self, keyspace: &KeyspaceName) -> Option<&KeyspaceBrief> {
        self.spaces.get(keyspace).map(|space| space.routes.brief())
    }

    /// All addresses that are known.
    pub fn addresses(&self) -> impl Iterator<Item = &NodeAddress> {
        self.numbers.nodes.iter().flatten().filter_map(|node| node.at.as_deref())
    }

    /// The routes as they are now. Costs a copy of the two top lists, no more.
    pub fn routes(&self) -> Routes {
        let keyspaces = self.spaces.iter().map(|(name, space)| (name.clone(), space.routes.clone()));
        Routes::new(keyspaces.collect(), self.numbers.nodes.clone().into())
    }

    /// Takes what a coordinator says of nodes: which are gone, and new or different addresses of others. One that was forgotten
    /// and has come back may be named as both, and is there.
    pub fn hear_of_nodes(&mut self, changed: impl IntoIterator<Item = NodeAddress>, forgotten: &[NodeId]) {
        self.forget(forgotten);
        self.nodes(changed);
        if planted::is(Planted::ForgottenNode) {
            self.forget(forgotten);
        }
    }

    /// Takes new or different addresses, unless they are of an earlier incarnation.
    pub(super) fn nodes(&mut self, nodes: impl IntoIterator<Item = NodeAddress>) {
        for node in nodes {
            let number = self.numbers.of(&node.id);
            let entry = &mut self.numbers.nodes[number as usize];
            let older = |at: &Arc<NodeAddress>| node.incarnation < at.incarnation;
            if let Some(entry) = entry.as_mut().filter(|entry| !entry.at.as_ref().is_some_and(older)) {
                entry.at = Some(Arc::new(node));
            }
        }
    }

    /// Forgets the addresses of these nodes. A number stays in use while some route refers to it.
    pub(super) fn forget(&mut self, nodes: &[NodeId]) {
        for id in nodes {
            let Some(number) = self.numbers.by_id.get(id).copied() else { continue };
            if let Some(entry) = &mut self.numbers.nodes[number as usize] {
                entry.at = None;
            }
            self.numbers.free_if_unused(number);
        }
    }

    /// Removes a keyspace whose shards began below `horizon`; true if it was here. A later one of that name stays:
    /// the coordinator that deletes it lags behind (M2).
    pub fn delete(&mut self, keyspace: &KeyspaceName, horizon: ShardId) -> bool {
        let horizon = if planted::is(Planted::Horizon) { ShardId(u64::MAX) } else { horizon };
        self.not_before.retain(|name, latest| name != keyspace || latest.first_shard >= horizon);
        if self.brief(keyspace).is_some_and(|brief| brief.first_shard >= horizon) {
            return false;
        }
        let Some(space) = self.spaces.remove(keyspace) else { return false };
        space.map.shards().filter(|shard| shard.is_serving()).for_each(|shard| self.numbers.leave(shard));
        true
    }

    /// Takes a change of a map; false if the table has it already. On an error nothing has changed.
    pub fn change(
        &mut self,
        brief: Option<KeyspaceBrief>,
        resync: bool,
        diff: &MapDiff,
    ) -> Result<bool, TableError> {
        let keyspace = &diff.keyspace;
        let held = self.spaces.get(keyspace);
        let settings =
            brief.as_ref().filter(|brief| brief.name == *keyspace).or(held.map(|space| space.routes.brief()));
        let Some(settings) = settings.cloned() else {
            return Err(TableError::SettingsMissing { keyspace: keyspace.clone() });
        };
        let brief = KeyspaceBrief { generation: diff.to, ..settings };
        let Some(held) = held else { return self.first(brief, diff).map(|()| true) };
        let at = held.map.generation();
        if brief.first_shard < held.life && !planted::is(Planted::Lives) {
            return Err(TableError::Back { keyspace: keyspace.clone(), at, to: diff.to });
        }
        if at == diff.to {
            return Ok(self.rebrief(brief));
        }
        if resync {
            let is_behind = diff.to.sequence <= at.sequence && !is_anew(&held.map, diff);
            if is_behind && !planted::is(Planted::M2) {
                return Err(TableError::Back { keyspace: keyspace.clone(), at, to: diff.to });
            }
            return self.whole(brief, diff).map(|()| true);
        }
        if diff.from != at || diff.to.sequence <= at.sequence {
            return Err(TableError::Gap { keyspace: keyspace.clone(), at, from: diff.from });
        }
        if moves_bounds(&held.map, diff) { self.laid_out(brief, diff) } else { self.moved(brief, diff) }
    }

    fn rebrief(&mut self, brief: KeyspaceBrief) -> bool {
        let Some(space) = self.spaces.get_mut(&brief.name) else { return false };
        let differs = *space.routes.brief() != brief;
        if differs {
            space.routes = Arc::new(space.routes.with(brief, std::iter::empty()));
        }
        differs
    }

    /// The first map of a keyspace.
    fn first(&mut self, brief: KeyspaceBrief, diff: &MapDiff) -> Result<(), TableError> {
        let keyspace = brief.name.clone();
        if let Some(latest) = self.not_before.get(&keyspace) {
            let at = latest.generation;
            let is_anew = brief.first_shard > latest.first_shard;
            if diff.to != at && diff.to.sequence <= at.sequence && !is_anew {
                return Err(TableError::Back { keyspace, at, to: diff.to });
            }
        }
        self.whole(brief, diff)?;
        self.not_before.remove(&keyspace);
        Ok(())
    }

    /// A whole map, in place of the one before.
    fn whole(&mut self, brief: KeyspaceBrief, diff: &MapDiff) -> Result<(), TableError> {
        let mut map = ShardMap::empty(brief.name.clone(), brief.sharding, brief.partition_key);
        map.apply(diff).map_err(|error| gap(&brief.name, error))?;
        self.replace(brief, map)
    }

    /// A change that splits, merges, adds or removes.
    fn laid_out(&mut self, brief: KeyspaceBrief, diff: &MapDiff) -> Result<bool, TableError> {
        let Some(held) = self.spaces.get(&brief.name) else { return Ok(false) };
        let mut map = held.map.clone();
        map.apply(diff).map_err(|error| gap(&brief.name, error))?;
        self.replace(brief, map).map(|()| true)
    }

    /// A change that leaves all bounds: the usual one.
    fn moved(&mut self, brief: KeyspaceBrief, diff: &MapDiff) -> Result<bool, TableError> {
        let Some(space) = self.spaces.get_mut(&brief.name) else { return Ok(false) };
        for shard in diff.changed.iter().filter(|shard| shard.is_serving()) {
            self.numbers.enter(shard);
            if let Some(before) = space.map.shard(shard.id) {
                self.numbers.leave(before);
            }
        }
        space.map.apply(diff).map_err(|error| gap(&brief.name, error))?;
        let numbers = &self.numbers;
        let changed = diff.changed.iter().filter(|shard| shard.is_serving());
        space.routes = Arc::new(space.routes.with(brief, changed.map(|shard| numbers.route(shard))));
        Ok(true)
    }

    fn replace(&mut self, brief: KeyspaceBrief, map: ShardMap) -> Result<(), TableError> {
        let (keyspace, to) = (brief.name.clone(), brief.generation);
        let serving = || map.shards().filter(|shard| shard.is_serving());
        serving().for_each(|shard| self.numbers.enter(shard));
        let numbers = &self.numbers;
        match KeyspaceRoutes::build(brief, &map, |shard| numbers.route(shard)) {
            Ok(routes) => {
                let life = routes.brief().first_shard;
                let before = self.spaces.insert(keyspace, Space { map, life, routes: Arc::new(routes) });
                let shards = before.iter().flat_map(|space| space.map.shards());
                shards.filter(|shard| shard.is_serving()).for_each(|shard| self.numbers.leave(shard));
                Ok(())
            }
            Err(why) => {
                serving().for_each(|shard| self.numbers.leave(shard));
                Err(TableError::Layout { keyspace, to, why })
            }
        }
    }
}

fn gap(keyspace: &KeyspaceName, error: DiffError) -> TableError {
    let (at, from) = match error {
        DiffError::Gap { at, from } => (at, from),
        DiffError::Keyspace { .. } => (Generation::default(), Generation::default()),
    };
    TableError::Gap { keyspace: keyspace.clone(), at, from }
}

/// Whether a whole map is of a keyspace created anew: all its ids are new, as ids are never
/// used again. An empty map proves nothing.
fn is_anew(held: &ShardMap, diff: &MapDiff) -> bool {
    !diff.changed.is_empty()
        && diff.changed.iter().all(|shard| shard.id >= held.next_shard())
        && diff.next_shard >= held.next_shard()
        && diff.next_placement >= held.next_placement()
}

/// Whether a serving shard comes, goes or gets other bounds.
fn moves_bounds(held: &ShardMap, diff: &MapDiff) -> bool {
    let serves = |id: &ShardId| held.shard(*id).is_some_and(Shard::is_serving);
    diff.removed.iter().any(serves)
        || diff.changed.iter().any(|shard| match held.shard(shard.id) {
            Some(before) => {
                before.is_serving() != shard.is_serving()
                    || (shard.is_serving() && before.bounds != shard.bounds)
            }
            None => shard.is_serving(),
        })
}

impl Numbers {
    fn of(&mut self, id: &NodeId) -> u32 {
        if let Some(number) = self.by_id.get(id) {
            return *number;
        }
        let node = Some(RouteNode { id: id.clone(), at: None });
        let number = match self.free.pop() {
            Some(number) => {
                self.nodes[number as usize] = node;
                number
            }
            None => {
                self.nodes.push(node);
                self.references.push(0);
                (self.nodes.len() - 1) as u32
            }
        };
        self.by_id.insert(id.clone(), number);
        number
    }

    fn free_if_unused(&mut self, number: u32) {
        let entry = &mut self.nodes[number as usize];
        if self.references[number as usize] == 0 && entry.as_ref().is_some_and(|node| node.at.is_none()) {
            if let Some(node) = entry.take() {
                self.by_id.remove(&node.id);
            }
            self.free.push(number);
        }
    }

    fn enter(&mut self, shard: &Shard) {
        for replica in shard.readable() {
            let number = self.of(&replica.node);
            self.references[number as usize] += 1;
        }
    }

    fn leave(&mut self, shard: &Shard) {
        for replica in shard.readable() {
            if let Some(number) = self.by_id.get(&replica.node).copied() {
                self.references[number as usize] -= 1;
                self.free_if_unused(number);
            }
        }
    }

    fn route(&self, shard: &Shard) -> ShardRoute {
        let entry = |replica: &crate::keyspace::map::Replica| {
            let node = self.by_id.get(&replica.node).copied()?;
            Some(ReplicaEntry { node, incarnation: replica.incarnation, role: replica.role })
        };
        let mut replicas: Vec<ReplicaEntry> = shard.readable().filter_map(entry).collect();
        replicas.sort_by_key(|replica| replica.role != Role::Leader);
        ShardRoute { shard: shard.id, epoch: shard.epoch, replicas: replicas.into() }
    }
}
