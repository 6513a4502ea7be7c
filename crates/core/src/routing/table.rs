//! The router's maps, and how what is pushed changes them.
//!
//! One writer owns the table, feeds it what arrives, and hands out [`Routes`] after each change. What does
//! not follow on what is there is refused and changes nothing; the error says whether the whole map must be
//! asked for. A map never goes back (M2): a coordinator that has an older one is refused, and the router
//! keeps what it has, for ever if need be. The only lower generation that is taken is that of a keyspace
//! which was deleted and created anew, told by ids that are all new (M5).
//!
//! A table belongs to the first cluster that it hears of, and to those that continue it. A coordinator of another one, or
//! one whose state is gone, knows nothing of these keyspaces: it is refused before it can say that they are deleted (D11).

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

/// What was pushed about a keyspace cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Something in between is missing: ask for a resync, by naming no generation of this keyspace.
    #[error("keyspace {keyspace} is at {at} but the change begins at {from}: resync")]
    Gap {
        /// The keyspace of which the maps in between are missing.
        keyspace: KeyspaceName,
        /// What we have.
        at: Generation,
        /// What the change builds on.
        from: Generation,
    },
    /// Older than what we have, or another map at the same sequence: this coordinator lags behind. Keep the
    /// map, ask another.
    #[error(
        "keyspace {keyspace} is at {at} and was offered {to}: a map never goes back, ask another coordinator"
    )]
    Back {
        /// The keyspace whose offered map is not newer than the one here.
        keyspace: KeyspaceName,
        /// What we have.
        at: Generation,
        /// What was offered.
        to: Generation,
    },
    /// A coordinator of another cluster, or of this one with its state gone. Keep the maps, ask another.
    #[error("the maps here are of cluster {ours}, and this coordinator is of cluster {theirs}")]
    OtherCluster {
        /// What the maps are of.
        ours: ClusterId,
        /// What it says that it is of.
        theirs: ClusterId,
    },
    /// A coordinator that does not say which cluster it is of, while ours is known.
    #[error("the maps here are of cluster {ours}, and this coordinator does not say which it is of")]
    Nameless {
        /// What the maps are of.
        ours: ClusterId,
    },
    /// A change of a keyspace whose settings were never sent: resync.
    #[error("keyspace {keyspace} was changed before its settings were sent: resync")]
    Unbriefed {
        /// The keyspace that was changed before its settings were sent.
        keyspace: KeyspaceName,
    },
    /// The map is none that could have been committed: resync.
    #[error("the map of keyspace {keyspace} at {to} cannot be: {why}: resync")]
    Layout {
        /// The keyspace whose map was refused.
        keyspace: KeyspaceName,
        /// The map.
        to: Generation,
        /// What is wrong with it.
        why: LayoutError,
    },
}

#[derive(Debug)]
struct Space {
    map: ShardMap,
    /// No life of the keyspace is taken whose shards begin below that.
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
    /// Of keyspaces whose maps are not here yet: the latest that was known before.
    not_before: BTreeMap<KeyspaceName, KeyspaceBrief>,
    numbers: Numbers,
}

impl RouteTable {
    /// A table without maps, of which `latest` was known before: what is older is refused (M2). For a coordinator that
    /// has led and stands by from here on. The next leader may have lagged behind, and says so until it has recovered.
    pub fn not_before<'a>(latest: impl IntoIterator<Item = &'a KeyspaceBrief>) -> RouteTable {
        let not_before = latest.into_iter().map(|brief| (brief.name.clone(), brief.clone())).collect();
        RouteTable { not_before, ..RouteTable::default() }
    }

    /// What it has, for the request that resumes: all maps, at their generations.
    pub fn known(&self) -> BTreeMap<KeyspaceName, Generation> {
        self.spaces.iter().map(|(name, space)| (name.clone(), space.map.generation())).collect()
    }

    /// Which cluster its maps are of, once that is known.
    pub fn cluster(&self) -> Option<&ClusterIdentity> {
        self.cluster.as_ref()
    }

    /// A coordinator says which cluster it is of, before anything else.
    ///
    /// # Errors
    /// [`TableError::OtherCluster`] when the maps are of another one that it does not continue.
    pub fn belongs(&mut self, identity: ClusterIdentity) -> Result<(), TableError> {
        match self.cluster.as_ref().map(|ours| ours.cluster) {
            Some(ours) if !identity.is_or_continues(ours) => {
                Err(TableError::OtherCluster { ours, theirs: identity.cluster })
            }
            ours => {
                if ours.is_some_and(|ours| ours != identity.cluster) {
                    // A restored cluster may be of before a keyspace was deleted and created anew.
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

    /// Takes new or different addresses. One of an earlier start than the one we have is ignored.
    pub fn nodes(&mut self, nodes: impl IntoIterator<Item = NodeAddress>) {
        for node in nodes {
            let number = self.numbers.of(&node.id);
            let entry = &mut self.numbers.nodes[number as usize];
            let older = |at: &Arc<NodeAddress>| node.incarnation < at.incarnation;
            if let Some(entry) = entry.as_mut().filter(|entry| !entry.at.as_ref().is_some_and(older)) {
                entry.at = Some(Arc::new(node));
            }
        }
    }

    /// Forgets addresses.
    pub fn forget(&mut self, nodes: &[NodeId]) {
        for id in nodes {
            let Some(number) = self.numbers.by_id.get(id).copied() else { continue };
            if let Some(entry) = &mut self.numbers.nodes[number as usize] {
                entry.at = None;
            }
            self.numbers.free_if_unused(number);
        }
    }

    /// A keyspace is gone whose shards began below `horizon`. Says whether it was here. A later one of that name stays:
    /// the coordinator that says so lags behind (M2).
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

    /// Takes a change of a map. Says whether anything is different: a change that is here already is not.
    /// On an error nothing has changed.
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
            return Err(TableError::Unbriefed { keyspace: keyspace.clone() });
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

    /// A map from nothing, in place of whatever was there.
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

/// Whether a whole map is of another life of its keyspace: nothing in it was there before, as ids are never
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
        for replica in shard.live() {
            let number = self.of(&replica.node);
            self.references[number as usize] += 1;
        }
    }

    fn leave(&mut self, shard: &Shard) {
        for replica in shard.live() {
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
        let mut replicas: Vec<ReplicaEntry> = shard.live().filter_map(entry).collect();
        replicas.sort_by_key(|replica| replica.role != Role::Leader);
        ShardRoute { shard: shard.id, epoch: shard.epoch, replicas: replicas.into() }
    }
}
