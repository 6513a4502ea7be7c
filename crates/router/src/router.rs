//! The public API of the router library.

use crate::call::Caller;
use crate::call::body::{AnswerBody, Outgoing};
use crate::counters::Counts;
use crate::error::CallError;
use crate::limits;
use crate::options::{CallOptions, Options};
use futures::future::BoxFuture;
use http::{Request, Response};
use partage_clock::Clock;
use partage_core::base::id::{Epoch, Generation, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::map::Access;
use partage_core::keyspace::map::Role;
use partage_core::node::NodeAddress;
use partage_core::routing::routes::{NoRoute, Routes};
use partage_maps::{Kept, MapClient};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;

/// A router. Clones share everything; when the last is dropped, its connections close.
#[derive(Debug, Clone)]
pub struct Router {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    maps: MapClient,
    clock: Clock,
    options: CallOptions,
    caller: Caller,
    sweep: AbortHandle,
}

impl Router {
    /// Largest request body that is kept.
    pub(crate) fn kept_body_bytes(&self) -> usize {
        self.shared.options.kept_body_bytes
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.sweep.abort();
    }
}

/// Where a key is, by the current map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The shard that holds it.
    pub shard: ShardId,
    /// The epoch of the shard, which grows with each change of its leader or bounds.
    pub epoch: Epoch,
    /// The map that says so.
    pub generation: Generation,
    /// The leader's replica; none while the shard is handed over.
    pub leader: Option<LiveReplica>,
    /// The live replicas, the leader first.
    pub replicas: Vec<LiveReplica>,
}

/// A replica that serves, with what the router must know to ask it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveReplica {
    /// The address, zone and health of its node.
    pub node: Arc<NodeAddress>,
    /// Whether it leads, so that it takes writes.
    pub role: Role,
}

impl Router {
    /// Begins to follow the maps of one of `coordinators` (`host:port` each), and starts from the maps file if there is
    /// one. Does not wait for a coordinator; [`Router::ready`] does. Needs a tokio runtime.
    pub fn connect(coordinators: Vec<String>, options: Options) -> BoxFuture<'static, Router> {
        // Boxed, so that the compiler makes its code in this crate, and not in each that has a router.
        Box::pin(Router::begin(coordinators, options))
    }

    async fn begin(coordinators: Vec<String>, options: Options) -> Router {
        let clock = Clock::start();
        let kept = match options.maps_file {
            Some(path) => Some(Kept::read(path).await),
            None => None,
        };
        let maps = MapClient::follow(coordinators, options.keyspaces, kept);
        let caller = Caller::new(maps.cache().clone(), options.call.clone(), clock);
        let pools = Arc::downgrade(caller.pools());
        let sweep = tokio::spawn(async move {
            while let Some(pools) = pools.upgrade() {
                pools.sweep();
                drop(pools);
                tokio::time::sleep(limits::SWEEP).await;
            }
        });
        let sweep = sweep.abort_handle();
        let shared = Shared { maps, clock, options: options.call, caller, sweep };
        Router { shared: Arc::new(shared) }
    }

    /// Waits until there are maps. False if `most` passes before.
    pub async fn ready(&self, most: Duration) -> bool {
        self.shared.maps.cache().ready(most).await
    }

    /// Where `key` of `keyspace` is.
    ///
    /// # Errors
    /// When no map that has arrived so far has such a keyspace, or a shard for the key.
    pub fn lookup(&self, keyspace: &str, key: &[u8]) -> Result<Placed, NoRoute> {
        let routes = self.shared.maps.cache().routes();
        let route = routes.route(keyspace, key)?;
        let owner = |replica: partage_core::routing::routes::RouteReplica<'_>| LiveReplica {
            node: replica.node.clone(),
            role: replica.role,
        };
        Ok(Placed {
            shard: route.shard(),
            epoch: route.epoch(),
            generation: route.generation(),
            leader: route.leader().map(owner),
            replicas: route.replicas().map(owner).collect(),
        })
    }

    /// All routes at this moment, for lookups that allocate nothing.
    pub fn routes(&self) -> Arc<Routes> {
        self.shared.maps.cache().full()
    }

    /// Returns when the maps have changed since `seen`, a number from the last call (0 at first), with the
    /// number to give next time.
    pub async fn changed(&self, seen: u64) -> u64 {
        let mut changes = self.shared.maps.cache().changes();
        let now = changes.wait_for(|version| *version != seen).await;
        now.map_or(seen, |version| *version)
    }

    /// Sends `request` to the node that has `key`, again if need be and allowed, and gives the answer. Of the URI only
    /// path and query matter. `access` and method decide whether it may be repeated.
    ///
    /// # Errors
    /// When there is no route, when no node answered within the deadline, or when a connection broke and the request
    /// may have been carried out: [`CallError::status`] says which status a proxy answers with.
    pub async fn request(
        &self,
        request: Request<Outgoing>,
        keyspace: &str,
        key: &[u8],
        access: Access,
    ) -> Result<Response<AnswerBody>, CallError> {
        self.shared.caller.request(request, keyspace, key, access).await
    }

    /// The generation of the newest map of each keyspace that the router has.
    pub fn generations(&self) -> BTreeMap<KeyspaceName, Generation> {
        let routes = self.shared.maps.cache().routes();
        routes.keyspaces().map(|keyspace| (keyspace.brief().name.clone(), keyspace.generation())).collect()
    }

    /// Whether a coordinator is connected.
    pub fn is_connected(&self) -> bool {
        self.shared.maps.cache().is_connected()
    }

    /// Streams of maps opened so far.
    pub fn streams(&self) -> u64 {
        self.shared.maps.cache().streams()
    }

    /// How long ago a coordinator last said anything; none = never.
    pub fn silence(&self) -> Option<Duration> {
        self.shared.maps.cache().silence()
    }

    /// Outcomes of this router's own requests. Those of a proxy on it are in the proxy's metrics.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.shared.caller.counters().add_to(&mut counts);
        counts
    }

    /// Another caller on the same maps, with connections and a budget of its own.
    pub(crate) fn caller(&self) -> Caller {
        Caller::new(self.shared.maps.cache().clone(), self.shared.options.clone(), self.shared.clock)
    }
}
