//! Where a key is that this worker has no order for.
//!
//! A worker hears only of the shards that it has, gets, or had a moment ago. So that it can send any request
//! on (K19), it follows the maps as a router does, but not before a request asks it for a key that it
//! does not know: in a cluster where clients or routers know their way, no worker ever opens that second
//! connection. When no request has asked for [`partage_maps::limits::IDLE`], the worker closes it again.
//!
//! A request that says that it was sent on already does not make it begin: routers, who say so on each
//! request, have maps of their own.

use crate::admission::Admission;
use crate::http::Target;
use crate::limits;
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_core::keyspace::map::Access;
use partage_core::keyspace::sharding::Sharding;
use partage_core::routing::choose::{Preference, choose};
use partage_core::routing::routes::{NoRoute, Routes};
use partage_maps::MapsOnDemand;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// Knows more than the worker: which node (and its address) has a key of which this worker has no order.
pub trait Locate: Fn(&Target, Access) -> Option<(NodeId, String)> + Send + Sync + 'static {}
impl<F: Fn(&Target, Access) -> Option<(NodeId, String)> + Send + Sync + 'static> Locate for F {}

/// What there is to know about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Located {
    /// That node serves it, by the map of that sequence, if it was a map.
    At { node: NodeId, address: String, sequence: Option<u64> },
    /// No node serves it for a moment: it is being handed over.
    Nobody,
    /// All maps are here, and none is of such a keyspace.
    NoKeyspace,
    /// The shards of the keyspace have names, and none has that of the key.
    NoShard,
    /// No shard for the key, or no map.
    Unknown,
}

/// Follows the maps while requests need them.
#[derive(Debug)]
pub(crate) struct Finder {
    own: NodeId,
    maps: Arc<MapsOnDemand>,
    waiters: Semaphore,
}

impl Finder {
    pub(crate) fn new(own: NodeId, coordinators: Vec<String>) -> Finder {
        let waiters = Semaphore::new(limits::WAITERS);
        Finder { own, maps: MapsOnDemand::new(coordinators), waiters }
    }

    /// The node that has the key, as far as the maps tell before `until`. For a request that was sent on already
    /// (`hopped`) following does not begin, and nothing is waited for: its sender has a map and patience.
    pub(crate) async fn find(
        &self,
        target: &Target,
        access: Access,
        hopped: bool,
        until: Instant,
    ) -> Located {
        let cache = if hopped { self.maps.followed_cache() } else { Some(self.maps.cache()) };
        let Some(cache) = cache else { return Located::Unknown };
        // Maps come one after the other: a keyspace may be missing only because it has not come yet.
        let complete = cache.begun() + limits::MAPS_FIRST;
        let waiting = self.waiters.try_acquire();
        // Or it was created a moment ago.
        let lag = Instant::now() + partage_maps::limits::LAG;
        let mut changes = cache.changes();
        loop {
            changes.mark_unchanged();
            // A node that is cut off from the coordinators does not know of what was created since.
            let has_heard = cache.has_heard() && cache.is_connected();
            let located = match self.look(&cache.routes(), target, access) {
                Located::NoKeyspace | Located::NoShard if !has_heard => Located::Unknown,
                located => located,
            };
            let patience = match located {
                Located::At { .. } => return located,
                _ if hopped || waiting.is_err() => return located,
                Located::Nobody => until,
                Located::NoKeyspace => until.min(lag),
                Located::NoShard | Located::Unknown => until.min(complete),
            };
            if !matches!(timeout_at(patience, changes.changed()).await, Ok(Ok(()))) {
                return located;
            }
        }
    }

    /// A node refused what was sent to it by the map of `sequence` and has a later one: ours is to catch up.
    pub(crate) fn lags(&self, target: &Target, sequence: u64) {
        if let Some(cache) = self.maps.followed_cache() {
            cache.refresh(target.keyspace.clone(), sequence);
        }
    }

    /// Whether maps are followed now.
    pub(crate) fn is_following(&self) -> bool {
        self.maps.is_following()
    }

    fn look(&self, routes: &Routes, target: &Target, access: Access) -> Located {
        let route = match routes.route(target.keyspace.as_str(), &target.key) {
            Ok(route) => route,
            Err(NoRoute::Keyspace { .. }) => return Located::NoKeyspace,
            Err(NoRoute::Shard { .. }) => {
                let keyspace = routes.keyspace(target.keyspace.as_str());
                let is_named = keyspace.is_some_and(|keyspace| keyspace.brief().sharding == Sharding::Named);
                return if is_named { Located::NoShard } else { Located::Unknown };
            }
        };
        let own: Vec<u32> =
            route.replicas().filter(|replica| replica.node.id == self.own).map(|it| it.number).collect();
        let preference = Preference {
            zone: None,
            now: Millis(0),
            seed: partage_random::seed(),
            failed: |_| None,
            avoided: &own,
        };
        // A map that names this node is behind: the node itself knows that it does not serve the key.
        match choose(&route, access, &preference).filter(|replica| !own.contains(&replica.number)) {
            Some(replica) => Located::At {
                node: replica.node.id.clone(),
                address: replica.node.address.clone(),
                sequence: Some(route.generation().sequence),
            },
            None => Located::Nobody,
        }
    }
}

/// How the worker finds the node of a key that it has no order for.
#[derive(Clone)]
pub(crate) enum Locator {
    /// The maps of the coordinator.
    Maps(Arc<Finder>),
    /// What the service knows.
    Service(Arc<dyn Locate>),
    /// No node: the answer says that this one does not know.
    Nobody,
}

impl Locator {
    /// Where the key is, if this worker's own admission is [`Admission::Unknown`]. `hopped`: the request was
    /// sent on already.
    pub(crate) async fn locate(
        &self,
        admission: &Admission,
        target: &Target,
        access: Access,
        hopped: bool,
        until: Instant,
    ) -> Located {
        match (admission, self) {
            (Admission::Elsewhere { node, address, .. }, _) => {
                Located::At { node: node.clone(), address: address.clone(), sequence: None }
            }
            (Admission::Unknown { .. }, Locator::Maps(finder)) => {
                finder.find(target, access, hopped, until).await
            }
            (Admission::Unknown { .. }, Locator::Service(locate)) => match locate(target, access) {
                Some((node, address)) => Located::At { node, address, sequence: None },
                None => Located::Unknown,
            },
            _ => Located::Unknown,
        }
    }

    /// A later map than ours was heard of.
    pub(crate) fn lags(&self, target: &Target, sequence: u64) {
        if let Locator::Maps(finder) = self {
            finder.lags(target, sequence);
        }
    }
}
