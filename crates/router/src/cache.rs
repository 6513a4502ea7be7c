//! What all threads read: the routes of the moment.
//!
//! One task writes (the watcher), everybody reads without a lock. Whoever waits for a change, because a
//! shard has no leader for a moment, listens to the version.

use arc_swap::{ArcSwap, Guard};
use partage_core::name::KeyspaceName;
use partage_core::routing::routes::Routes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::{mpsc, watch};

/// A node has a later map than we: of which keyspace, at which sequence.
#[derive(Debug, Clone)]
pub struct Refresh {
    pub keyspace: KeyspaceName,
    pub sequence: u64,
}

/// The routes, and how they came here.
#[derive(Debug)]
pub struct Cache {
    routes: ArcSwap<Routes>,
    version: watch::Sender<u64>,
    heard: AtomicBool,
    /// When a coordinator last said something, by the watcher's clock in milliseconds plus one; 0 = never.
    heard_at: AtomicU64,
    connected: AtomicBool,
    streams: AtomicU64,
    refresh: mpsc::Sender<Refresh>,
}

impl Cache {
    pub fn new(refresh: mpsc::Sender<Refresh>) -> Cache {
        Cache {
            routes: ArcSwap::default(),
            version: watch::Sender::new(0),
            heard: AtomicBool::new(false),
            heard_at: AtomicU64::new(0),
            connected: AtomicBool::new(false),
            streams: AtomicU64::new(0),
            refresh,
        }
    }

    /// The routes of the moment. Keep the guard for a moment only; [`Cache::full`] for longer.
    pub fn routes(&self) -> Guard<Arc<Routes>> {
        self.routes.load()
    }

    pub fn full(&self) -> Arc<Routes> {
        self.routes.load_full()
    }

    pub fn publish(&self, routes: Routes) {
        self.routes.store(Arc::new(routes));
        self.heard.store(true, Ordering::Release);
        self.version.send_modify(|version| *version += 1);
    }

    /// Whether there ever were any maps, from a coordinator or from a file.
    pub fn has_heard(&self) -> bool {
        self.heard.load(Ordering::Acquire)
    }

    /// Wakes at every change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Asks for a refresh, unless many have asked already.
    pub fn refresh(&self, keyspace: KeyspaceName, sequence: u64) {
        // A full queue says the same already.
        let _ = self.refresh.try_send(Refresh { keyspace, sequence });
    }

    pub fn connected(&self, yes: bool) {
        self.connected.store(yes, Ordering::Release);
        self.streams.fetch_add(u64::from(yes), Ordering::Relaxed);
    }

    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    /// Streams opened so far.
    pub fn streams(&self) -> u64 {
        self.streams.load(Ordering::Relaxed)
    }

    pub fn heard_now(&self, now_ms: u64) {
        self.heard_at.store(now_ms + 1, Ordering::Relaxed);
    }

    /// When a coordinator last said something, in milliseconds of the watcher's clock.
    pub fn heard_at(&self) -> Option<u64> {
        self.heard_at.load(Ordering::Relaxed).checked_sub(1)
    }
}
