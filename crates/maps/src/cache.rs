//! What all threads read: the routes of the moment.
//!
//! One task writes (the watcher), everybody reads without a lock. Whoever waits for a change, because a
//! shard has no leader for a moment, listens to the version.

use arc_swap::{ArcSwap, Guard};
use partage_core::base::name::KeyspaceName;
use partage_core::routing::routes::Routes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// A node has a later map than we: of which keyspace, at which sequence.
#[derive(Debug, Clone)]
pub(crate) struct Refresh {
    pub keyspace: KeyspaceName,
    pub sequence: u64,
}

/// The routes, and how they came here.
#[derive(Debug)]
pub struct Cache {
    routes: ArcSwap<Routes>,
    version: watch::Sender<u64>,
    heard: AtomicBool,
    begun: Instant,
    /// When a coordinator last said something, in milliseconds since `begun` plus one; 0 = never.
    heard_at: AtomicU64,
    connected: AtomicBool,
    streams: AtomicU64,
    refresh: mpsc::Sender<Refresh>,
}

impl Cache {
    pub(crate) fn new(refresh: mpsc::Sender<Refresh>) -> Cache {
        Cache {
            routes: ArcSwap::default(),
            version: watch::Sender::new(0),
            heard: AtomicBool::new(false),
            begun: Instant::now(),
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

    /// The same, to be kept as long as one likes.
    pub fn full(&self) -> Arc<Routes> {
        self.routes.load_full()
    }

    pub(crate) fn publish(&self, routes: Routes) {
        self.routes.store(Arc::new(routes));
        self.version.send_modify(|version| *version += 1);
    }

    /// Everything that there was is here.
    pub(crate) fn complete(&self) {
        self.heard.store(true, Ordering::Release);
        self.version.send_modify(|version| *version += 1);
    }

    /// Whether all maps of some moment ever were here, from a coordinator or from a file.
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

    pub(crate) fn connected(&self, yes: bool) {
        self.connected.store(yes, Ordering::Release);
        self.streams.fetch_add(u64::from(yes), Ordering::Relaxed);
    }

    /// Whether a coordinator is connected.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    /// Streams opened so far.
    pub fn streams(&self) -> u64 {
        self.streams.load(Ordering::Relaxed)
    }

    /// Since when maps are followed.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    pub(crate) fn heard_now(&self) {
        self.heard_at.store(self.begun.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
    }

    /// How long ago a coordinator last said something; none = never.
    pub fn silence(&self) -> Option<Duration> {
        let heard_ms = self.heard_at.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.begun.elapsed().saturating_sub(Duration::from_millis(heard_ms)))
    }

    /// Waits until there are maps. False if `most` passes before.
    pub async fn ready(&self, most: Duration) -> bool {
        let mut changes = self.changes();
        let heard = async {
            while !self.has_heard() {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(most, heard).await.is_ok()
    }
}
