//! The map client, by which every process but the leader reads maps: it follows them over one stream from a coordinator, and all
//! threads read the routes. Where the leader keeps them, inline or replicated, is of no matter here.
//!
//! ```text
//!  coordinator ──push──► watch ──► table (core) ──► cache: routes of the moment ──► whoever has a key
//!                          │
//!                          └──► keep: the last maps on disk
//! ```
//!
//! Routers follow from their start ([`MapClient`]); a worker that is asked for a key it knows nothing of begins when that
//! first happens ([`MapsOnDemand`]). What is decided (which change may be taken, what a lookup finds) is in
//! `partage_core::routing`; here are the connection, its time-outs and the file.

mod cache;
mod keep;
pub mod limits;
mod on_demand;
mod resolve;
mod watch;

pub use cache::Cache;
pub use keep::Kept;
pub use on_demand::MapsOnDemand;
pub use resolve::AddressRotation;
pub use watch::Listener;

use partage_core::base::name::KeyspaceName;
use partage_core::routing::table::RouteTable;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use tokio::task::AbortHandle;
use watch::Watcher;

/// A map client: a task follows the maps while this lives, and all threads read them from its [`Cache`]. Dropped, the task ends,
/// and its stream closes.
#[derive(Debug)]
pub struct MapClient {
    cache: Arc<Cache>,
    task: AbortHandle,
}

impl Drop for MapClient {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl MapClient {
    /// Begins to follow the maps of one of `coordinators` (`host:port` each): of `keyspaces`, or of all when there
    /// are none; from what was kept, if anything was. Must be called in a tokio runtime.
    pub fn follow(
        coordinators: Vec<String>,
        keyspaces: BTreeSet<KeyspaceName>,
        kept: Option<Kept>,
    ) -> MapClient {
        let (keep, table) = kept.map(Kept::into_parts).unzip();
        let table = table.unwrap_or_default();
        let (is_kept, routes) = (!table.known().is_empty(), table.routes());
        let watcher = Watcher::new(coordinators, Arc::new(Mutex::new(table)));
        if is_kept {
            watcher.cache.publish(routes);
            watcher.cache.complete();
        }
        MapClient::start(Watcher { keyspaces, keep, ..watcher })
    }

    /// The same, from nothing, for somebody who needs more of the maps than their routes: `listener` hears of each change, with
    /// all that is known then.
    pub fn follow_with(
        coordinators: Vec<String>,
        keyspaces: BTreeSet<KeyspaceName>,
        listener: impl Listener,
    ) -> MapClient {
        let watcher = Watcher::new(coordinators, Arc::default());
        MapClient::start(Watcher { keyspaces, listener: Some(Box::new(listener)), ..watcher })
    }

    /// Begins to follow all maps of one coordinator, from those in `table`, for somebody who passes them on: `listener`
    /// hears of each change, and `table` may be read at any time.
    pub fn pass_on(coordinator: String, table: Arc<Mutex<RouteTable>>, listener: impl Listener) -> MapClient {
        let watcher = Watcher::new(vec![coordinator], table);
        MapClient::start(Watcher { listener: Some(Box::new(listener)), ..watcher })
    }

    fn start(watcher: Watcher) -> MapClient {
        let cache = watcher.cache.clone();
        MapClient { cache, task: tokio::spawn(watcher.run()).abort_handle() }
    }

    /// The maps of the moment.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }
}
