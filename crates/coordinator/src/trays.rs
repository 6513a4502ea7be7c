//! Orders on their way out: a tray for each worker's stream, where the mind lays what has changed.
//!
//! The mind makes the orders itself, right after they are durable: a stream that only heard of a change and
//! came back to ask would wait for the disk twice, and a shard that changes hands would have no owner for as
//! long. A tray holds one sheet. What is laid on a sheet that nobody has taken yet replaces it: each says
//! everything that has changed since the version that the stream sent last, so nothing is queued and nothing
//! is lost.

use partage_core::cluster::Cluster;
use partage_core::exchange::Orders;
use partage_core::name::NodeId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// What a tray and its place in the row share.
#[derive(Debug, Default)]
struct Sheet {
    /// The version that the worker has, or will have when the stream has arrived.
    sent: AtomicU64,
    orders: Mutex<Option<Orders>>,
}

/// The tray of one stream, or of one heartbeat that waits.
#[derive(Debug)]
pub struct Tray {
    sheet: Arc<Sheet>,
    bell: watch::Receiver<()>,
}

impl Tray {
    /// The worker has that version now: what is laid down from here on is the difference to it.
    pub fn sent(&self, version: u64) {
        self.sheet.sent.store(version, Ordering::Relaxed);
    }

    /// The next orders; none when the mind is gone. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Orders> {
        loop {
            if let Some(orders) = lock(&self.sheet.orders).take() {
                return Some(orders);
            }
            self.bell.changed().await.ok()?;
        }
    }
}

/// A tray as the mind sees it.
#[derive(Debug)]
struct Place {
    sheet: Arc<Sheet>,
    bell: watch::Sender<()>,
}

/// All trays, by node: a node may have an old stream beside its new one.
#[derive(Debug, Default)]
pub struct Trays(Mutex<BTreeMap<NodeId, Vec<Place>>>);

impl Trays {
    /// A tray for `node`, which has the orders up to `sent`.
    pub fn open(&self, node: &NodeId, sent: u64) -> Tray {
        let (bell, rung) = watch::channel(());
        let sheet = Arc::new(Sheet { sent: AtomicU64::new(sent), orders: Mutex::default() });
        let mut row = lock(&self.0);
        row.retain(|_, places| {
            places.retain(|place| !place.bell.is_closed());
            !places.is_empty()
        });
        row.entry(node.clone()).or_default().push(Place { sheet: sheet.clone(), bell });
        Tray { sheet, bell: rung }
    }

    /// Lays down what each of `nodes` that has a tray lacks. Everything in `cluster` must be durable.
    pub fn lay<'a>(&self, cluster: &Cluster, nodes: impl IntoIterator<Item = &'a NodeId>) {
        let row = lock(&self.0);
        for node in nodes {
            for place in row.get(node).into_iter().flatten().filter(|place| !place.bell.is_closed()) {
                let sent = place.sheet.sent.load(Ordering::Relaxed);
                *lock(&place.sheet.orders) = cluster.orders_since(node, sent, None);
                place.bell.send_replace(());
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
