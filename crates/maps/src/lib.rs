//! The maps of a cluster, followed: one stream from a coordinator, and routes that all threads read.
//!
//! ```text
//!  coordinator ──push──► watch ──► table (core) ──► cache: routes of the moment ──► whoever has a key
//!                          │
//!                          └──► keep: the last maps on disk
//! ```
//!
//! Routers follow from their start; a worker that is asked for a key it knows nothing of begins when that
//! first happens. What is decided (which change may be taken, what a lookup finds) is in
//! `partage_core::routing`; here are the connection, its time-outs and the file.

mod cache;
mod keep;
pub mod limits;
mod resolve;
mod watch;

pub use cache::Cache;
pub use keep::Kept;
pub use resolve::AddressRotation;
pub use watch::Listener;

use cache::Refresh;
use partage_core::base::name::KeyspaceName;
use partage_core::node::reconnect::ReconnectBackoff;
use partage_core::routing::back::Offers;
use partage_core::routing::table::RouteTable;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use watch::Watcher;

/// The task that follows. Dropped, it ends, and its stream closes.
#[derive(Debug)]
pub struct Following(AbortHandle);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Begins to follow the maps of one of `coordinators` (`host:port` each): of `keyspaces`, or of all when there
/// are none; from what was kept, if anything was. Must be called in a tokio runtime.
pub fn follow(
    coordinators: Vec<String>,
    keyspaces: BTreeSet<KeyspaceName>,
    kept: Option<Kept>,
) -> (Arc<Cache>, Following) {
    begin(coordinators, keyspaces, kept, None)
}

/// The same for somebody who needs more of the maps than their routes: `listener` hears of each change, with all that is known
/// then. Of what was kept it hears with the first change.
pub fn follow_with(
    coordinators: Vec<String>,
    keyspaces: BTreeSet<KeyspaceName>,
    kept: Option<Kept>,
    listener: impl Listener,
) -> (Arc<Cache>, Following) {
    begin(coordinators, keyspaces, kept, Some(Box::new(listener)))
}

fn begin(
    coordinators: Vec<String>,
    keyspaces: BTreeSet<KeyspaceName>,
    kept: Option<Kept>,
    listener: Option<Box<dyn Listener>>,
) -> (Arc<Cache>, Following) {
    let (keep, table) = kept.map(Kept::into_parts).unzip();
    let table = table.unwrap_or_default();
    let (cache, refreshes) = cache();
    if !table.known().is_empty() {
        cache.publish(table.routes());
        cache.complete();
    }
    let table = Arc::new(Mutex::new(table));
    let resync = BTreeSet::new();
    let watcher = Watcher {
        coordinators,
        keyspaces,
        cache: cache.clone(),
        table,
        listener,
        keep,
        refreshes,
        resync,
        backoff: ReconnectBackoff::of_router(),
        offers: Offers::default(),
    };
    (cache, Following(tokio::spawn(watcher.run()).abort_handle()))
}

/// Begins to follow all maps of one coordinator, from those in `table`, for somebody who passes them on: `listener`
/// hears of each change, and `table` may be read at any time.
pub fn pass_on(
    coordinator: String,
    table: Arc<Mutex<RouteTable>>,
    listener: impl Listener,
) -> (Arc<Cache>, Following) {
    let (cache, refreshes) = cache();
    let watcher = Watcher {
        coordinators: vec![coordinator],
        keyspaces: BTreeSet::new(),
        cache: cache.clone(),
        table,
        listener: Some(Box::new(listener)),
        keep: None,
        refreshes,
        resync: BTreeSet::new(),
        backoff: ReconnectBackoff::of_router(),
        offers: Offers::default(),
    };
    (cache, Following(tokio::spawn(watcher.run()).abort_handle()))
}

fn cache() -> (Arc<Cache>, mpsc::Receiver<Refresh>) {
    let (refresh, refreshes) = mpsc::channel(limits::REFRESHES);
    (Arc::new(Cache::new(refresh)), refreshes)
}
