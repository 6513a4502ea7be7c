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

    /// There will be no more orders: whoever waits for some is told.
    pub fn clear(&self) {
        lock(&self.0).clear();
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

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::cluster::admin::{Command, Presplit};
    use partage_core::cluster::{Moment, Records, Registration};
    use partage_core::exchange::Beat;
    use partage_core::hash::HashFunction;
    use partage_core::id::{Incarnation, TransactionId};
    use partage_core::keyspace::Keyspace;
    use partage_core::name::KeyspaceName;
    use partage_core::node::NodeSpec;
    use partage_core::settings::Settings;
    use partage_core::sharding::Sharding;
    use partage_core::time::Millis;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn at(ms: u64) -> Moment {
        Moment { now: Millis(ms), wall_ms: ms }
    }

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    /// A cluster of one node that has just been given two shards, and a little later two more.
    fn town() -> Cluster {
        let mut cluster = Cluster::recover(at(1), Settings::default(), Records::default()).unwrap();
        let spec = NodeSpec::new(node("a"), "127.0.0.1:7501".to_owned());
        let welcome = cluster.register(at(2), Registration::new(spec)).unwrap();
        cluster.checked_back(at(2), &node("a"), welcome.incarnation, true);
        give(&mut cluster, "first", 3);
        cluster
    }

    fn give(cluster: &mut Cluster, keyspace: &str, ms: u64) {
        let sharding = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 2 };
        let keyspace = Keyspace::new(KeyspaceName::new(keyspace).unwrap(), sharding);
        let create =
            Command::CreateKeyspace { keyspace: Box::new(keyspace), presplit: Presplit::None, ahead: false };
        cluster.command(at(ms), TransactionId([ms as u8; 20]), "test", create, false).unwrap();
        for sequence in 1..100 {
            let now = at(ms + sequence * 100);
            cluster.beat(now, beat(ms + sequence, now.now)).unwrap();
            cluster.decide(now, TransactionId([ms as u8; 20]));
        }
    }

    fn beat(sequence: u64, sent_at: Millis) -> Beat {
        Beat {
            session: partage_core::id::SessionDigest::default(),
            node: node("a"),
            incarnation: Incarnation(1),
            sequence,
            sent_at,
            applied: 0,
            whole: false,
            reports: Vec::new(),
            leaving: Some(false),
            busy: 0.0,
            lease_expired: false,
        }
    }

    /// What lies in the tray now.
    fn look(tray: &mut Tray) -> Poll<Option<Orders>> {
        pin!(tray.next()).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_tray_holds_the_latest_sheet_which_says_everything_since_what_was_sent() {
        let (mut cluster, trays) = (town(), Trays::default());
        let mut tray = trays.open(&node("a"), 0);
        assert!(look(&mut tray).is_pending(), "nothing was laid yet");
        trays.lay(&cluster, [&node("a")]);
        give(&mut cluster, "second", 20_000);
        trays.lay(&cluster, [&node("a")]);
        let Poll::Ready(Some(orders)) = look(&mut tray) else { panic!("nothing was laid") };
        assert_eq!((orders.base, orders.changed.len()), (0, 4), "{orders:?}");
        assert!(look(&mut tray).is_pending(), "the sheet was taken twice");

        // Once that is sent, the next sheet is the difference to it.
        tray.sent(orders.version);
        trays.lay(&cluster, [&node("a")]);
        let Poll::Ready(Some(next)) = look(&mut tray) else { panic!("nothing was laid") };
        assert!(next.changed.is_empty() && next.version == orders.version, "{next:?}");
    }

    #[test]
    fn every_stream_of_a_node_has_its_tray_and_nobody_else_is_served() {
        let (cluster, trays) = (town(), Trays::default());
        let (mut old, mut new) = (trays.open(&node("a"), 0), trays.open(&node("a"), 0));
        let mut other = trays.open(&node("b"), 0);
        trays.lay(&cluster, [&node("a"), &node("nobody")]);
        assert!(look(&mut old).is_ready() && look(&mut new).is_ready());
        assert!(look(&mut other).is_pending());
        drop(old);
        let _another = trays.open(&node("b"), 0);
        assert_eq!(lock(&trays.0)[&node("a")].len(), 1, "the place of a stream that is gone is kept");
        drop(trays);
        assert_eq!(look(&mut new), Poll::Ready(None), "the mind is gone, and the stream waits on");
    }
}
