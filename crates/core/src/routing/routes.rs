//! The routes of all keyspaces at one moment: never changed, only replaced, so that threads read them
//! without a lock. A lookup allocates nothing.
//!
//! The routes of a keyspace lie in pages. New routes share all unchanged pages with those before. So one replica
//! that moves in a map of a million shards copies one page of [`PAGE`] pointers and the list of pages, not the map.
//!
//! Nodes have numbers here, dense from 0, which a driver may use as an index for its connections. The table uses a
//! number again for another node once no route refers to it, so the driver compares the address.

use super::layout::{Layout, LayoutError, in_order};
use crate::base::id::{Epoch, Generation, Incarnation, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::keyspace::map::{Role, Shard, ShardMap};
use crate::keyspace::sharding::Position;
use crate::node::Health;
use crate::node::NodeAddress;
use crate::node::exchange::KeyspaceBrief;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Shards on one page.
const PAGE: usize = 256;

/// A live replica, as a route keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReplicaEntry {
    pub(super) node: u32,
    pub(super) incarnation: Incarnation,
    pub(super) role: Role,
}

/// What a route says of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShardRoute {
    pub(super) shard: ShardId,
    pub(super) epoch: Epoch,
    /// The live replicas, the leader first.
    pub(super) replicas: Box<[ReplicaEntry]>,
}

/// A node that some route refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteNode {
    /// The node by its id, which a number stands for in the routes.
    pub id: NodeId,
    /// Its address; none while that is unknown.
    pub at: Option<Arc<NodeAddress>>,
}

/// The routes of one keyspace.
#[derive(Debug, Clone)]
pub struct KeyspaceRoutes {
    brief: KeyspaceBrief,
    layout: Arc<Layout>,
    /// Each shard's position in the layout, by shard.
    places: Arc<Vec<(ShardId, u32)>>,
    pages: Vec<Arc<[Arc<ShardRoute>]>>,
    shards: usize,
}

/// The routes of all keyspaces.
#[derive(Debug, Clone, Default)]
pub struct Routes {
    keyspaces: BTreeMap<KeyspaceName, Arc<KeyspaceRoutes>>,
    nodes: Arc<[Option<RouteNode>]>,
}

/// Where one key is: its shard, and the nodes that answer for it.
#[derive(Debug, Clone, Copy)]
pub struct Route<'a> {
    keyspace: &'a KeyspaceRoutes,
    route: &'a ShardRoute,
    nodes: &'a [Option<RouteNode>],
}

/// A replica that the router can ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteReplica<'a> {
    /// The number of its node in these [`Routes`].
    pub number: u32,
    /// The node's address, never of a later incarnation than the map's.
    pub node: &'a Arc<NodeAddress>,
    /// The replica's role by the map: only a leader takes writes.
    pub role: Role,
}

/// Why there is no route.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRoute {
    /// The router knows no keyspace of that name.
    #[error("there is no keyspace {asked:?}{}", known_ones(known))]
    Keyspace {
        /// The keyspace name that was asked for.
        asked: String,
        /// The keyspaces that the router knows.
        known: Vec<KeyspaceName>,
    },
    /// The keyspace has no shard for that key: none yet, or no partition of that name.
    #[error(
        "keyspace {keyspace} has no shard for that key: it has not been laid out yet, or has no such partition"
    )]
    Shard {
        /// The keyspace that has no shard for the key.
        keyspace: KeyspaceName,
    },
}

/// Names shown before the rest is left out.
const SHOWN: usize = 20;

fn known_ones(known: &[KeyspaceName]) -> String {
    if known.is_empty() {
        return ": none is known here yet".to_owned();
    }
    let names: Vec<&str> = known.iter().take(SHOWN).map(KeyspaceName::as_str).collect();
    let rest = if known.len() > SHOWN { ", …" } else { "" };
    format!(": known are {}{rest}", names.join(", "))
}

impl Routes {
    pub(super) fn new(
        keyspaces: BTreeMap<KeyspaceName, Arc<KeyspaceRoutes>>,
        nodes: Arc<[Option<RouteNode>]>,
    ) -> Routes {
        Routes { keyspaces, nodes }
    }

    /// The routes of one keyspace.
    #[inline]
    pub fn keyspace(&self, name: &str) -> Option<&Arc<KeyspaceRoutes>> {
        self.keyspaces.get(name)
    }

    /// All keyspaces, by name.
    pub fn keyspaces(&self) -> impl ExactSizeIterator<Item = &Arc<KeyspaceRoutes>> {
        self.keyspaces.values()
    }

    /// All nodes, each at its number.
    pub fn nodes(&self) -> &[Option<RouteNode>] {
        &self.nodes
    }

    /// Where `key` of `keyspace` is.
    #[inline]
    pub fn route(&self, keyspace: &str, key: &[u8]) -> Result<Route<'_>, NoRoute> {
        let keyspace = self.known(keyspace)?;
        let missing = || NoRoute::Shard { keyspace: keyspace.brief.name.clone() };
        let route = keyspace.find(key).ok_or_else(missing)?;
        Ok(Route { keyspace, route, nodes: &self.nodes })
    }

    /// Which shard of `keyspace` holds a position: for walks through all shards, from the bound of one to the next.
    pub fn route_at(&self, keyspace: &str, position: Position<'_>) -> Result<Route<'_>, NoRoute> {
        let keyspace = self.known(keyspace)?;
        let missing = || NoRoute::Shard { keyspace: keyspace.brief.name.clone() };
        let route = keyspace.find_at(position).ok_or_else(missing)?;
        Ok(Route { keyspace, route, nodes: &self.nodes })
    }

    #[inline]
    fn known(&self, keyspace: &str) -> Result<&Arc<KeyspaceRoutes>, NoRoute> {
        self.keyspaces.get(keyspace).ok_or_else(|| {
            let known = self.keyspaces.keys().cloned().collect();
            NoRoute::Keyspace { asked: keyspace.to_owned(), known }
        })
    }

    /// Every shard of `keyspace` in the order of its bounds.
    pub fn routes_of<'a>(&'a self, keyspace: &'a KeyspaceRoutes) -> impl Iterator<Item = Route<'a>> {
        let all = keyspace.pages.iter().flat_map(|page| page.iter());
        all.map(move |route| Route { keyspace, route, nodes: &self.nodes })
    }
}

impl KeyspaceRoutes {
    /// Of a whole map. `route` gives the route of a shard, with its live replicas.
    pub(super) fn build(
        brief: KeyspaceBrief,
        map: &ShardMap,
        route: impl Fn(&Shard) -> ShardRoute,
    ) -> Result<KeyspaceRoutes, LayoutError> {
        let ordered = in_order(map);
        let layout = Arc::new(Layout::build(brief.sharding, &ordered)?);
        let mut places: Vec<_> =
            ordered.iter().enumerate().map(|(at, shard)| (shard.id, at as u32)).collect();
        places.sort_unstable();
        let routes: Vec<_> = ordered.iter().map(|shard| Arc::new(route(shard))).collect();
        let pages = routes.chunks(PAGE).map(Arc::from).collect();
        Ok(KeyspaceRoutes { brief, layout, places: Arc::new(places), pages, shards: routes.len() })
    }

    /// The same bounds with other routes for some of their shards, whose pages are copied.
    pub(super) fn with(
        &self,
        brief: KeyspaceBrief,
        changed: impl Iterator<Item = ShardRoute>,
    ) -> KeyspaceRoutes {
        let mut by_page: BTreeMap<usize, Vec<(usize, ShardRoute)>> = BTreeMap::new();
        for route in changed {
            let Some(at) = self.place(route.shard) else { continue };
            by_page.entry(at / PAGE).or_default().push((at % PAGE, route));
        }
        let mut next = KeyspaceRoutes { brief, ..self.clone() };
        for (page, changes) in by_page {
            let mut copy = next.pages[page].to_vec();
            for (at, route) in changes {
                copy[at] = Arc::new(route);
            }
            next.pages[page] = copy.into();
        }
        next
    }

    fn place(&self, shard: ShardId) -> Option<usize> {
        let found = self.places.binary_search_by_key(&shard, |(id, _)| *id).ok()?;
        Some(self.places[found].1 as usize)
    }

    #[inline]
    fn at(&self, place: usize) -> Option<&ShardRoute> {
        self.pages.get(place / PAGE)?.get(place % PAGE).map(|route| &**route)
    }

    #[inline]
    fn find(&self, key: &[u8]) -> Option<&ShardRoute> {
        self.find_at(self.brief.sharding.position(self.brief.partition_key, key))
    }

    #[inline]
    fn find_at(&self, position: Position<'_>) -> Option<&ShardRoute> {
        self.at(self.layout.find(position)?)
    }

    /// The settings of the keyspace, as the coordinator last sent them.
    pub fn brief(&self) -> &KeyspaceBrief {
        &self.brief
    }

    /// The generation of the map that the routes are made from.
    pub fn generation(&self) -> Generation {
        self.brief.generation
    }

    /// How many shards serve.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Whether both share one index: a new one is built only when bounds change.
    pub fn same_layout(&self, other: &KeyspaceRoutes) -> bool {
        Arc::ptr_eq(&self.layout, &other.layout)
    }
}

impl<'a> Route<'a> {
    /// The shard that holds the key.
    pub fn shard(&self) -> ShardId {
        self.route.shard
    }

    /// The epoch of the shard, by the map that the route is made from.
    pub fn epoch(&self) -> Epoch {
        self.route.epoch
    }

    /// The generation of that map.
    pub fn generation(&self) -> Generation {
        self.keyspace.generation()
    }

    /// The settings of the keyspace.
    pub fn keyspace(&self) -> &'a KeyspaceBrief {
        &self.keyspace.brief
    }

    /// The live replicas whose address is known, the leader first. Left out are nodes that have left, and nodes with
    /// a later incarnation than the map's, which do not serve yet.
    #[inline]
    pub fn replicas(&self) -> impl Iterator<Item = RouteReplica<'a>> + use<'a> {
        let nodes = self.nodes;
        self.route.replicas.iter().filter_map(move |replica| {
            let node = nodes.get(replica.node as usize)?.as_ref()?.at.as_ref()?;
            let usable = node.incarnation <= replica.incarnation && node.health != Health::Left;
            usable.then_some(RouteReplica { number: replica.node, node, role: replica.role })
        })
    }

    /// The replica that takes writes, if there is one whose address is known.
    #[inline]
    pub fn leader(&self) -> Option<RouteReplica<'a>> {
        self.replicas().next().filter(|replica| replica.role == Role::Leader)
    }
}
