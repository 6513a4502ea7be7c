//! Orders on their way out: one channel for each worker's stream, into which the decision loop sends what has changed.
//!
//! The decision loop makes the orders itself, right after they are durable: a stream that only heard of a change and
//! came back to ask would wait for the disk twice, and a shard that changes hands would have no owner for as
//! long. A channel holds one set of orders. What is sent before the receiver has taken the former orders replaces
//! them: each says everything that has changed since the version that the stream sent last, so nothing is queued and
//! nothing is lost.

use partage_core::base::name::NodeId;
use partage_core::cluster::Cluster;
use partage_core::node::exchange::Orders;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// What the two ends of a channel share.
#[derive(Debug, Default)]
struct PendingOrders {
    /// The version that the worker has, or will have when the stream has arrived.
    sent: AtomicU64,
    orders: Mutex<Option<Orders>>,
}

/// The receiving end of a channel: of one stream, or of one heartbeat that waits.
#[derive(Debug)]
pub struct OrderReceiver {
    pending: Arc<PendingOrders>,
    updates: watch::Receiver<()>,
}

impl OrderReceiver {
    /// The worker has that version now: what is sent from here on is the difference to it.
    pub fn sent(&self, version: u64) {
        self.pending.sent.store(version, Ordering::Relaxed);
    }

    /// The next orders; none when the decision loop is gone. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Orders> {
        loop {
            if let Some(orders) = lock(&self.pending.orders).take() {
                return Some(orders);
            }
            self.updates.changed().await.ok()?;
        }
    }
}

/// The sending end of a channel.
#[derive(Debug)]
struct OrderSender {
    pending: Arc<PendingOrders>,
    updates: watch::Sender<()>,
}

/// All channels, by node: a node may have an old stream beside its new one.
#[derive(Debug, Default)]
pub struct OrderChannels(Mutex<BTreeMap<NodeId, Vec<OrderSender>>>);

impl OrderChannels {
    /// A new channel for `node`, which has the orders up to `sent`.
    pub fn subscribe(&self, node: &NodeId, sent: u64) -> OrderReceiver {
        let (sender, updates) = watch::channel(());
        let pending = Arc::new(PendingOrders { sent: AtomicU64::new(sent), orders: Mutex::default() });
        let mut channels = lock(&self.0);
        channels.retain(|_, senders| {
            senders.retain(|sender| !sender.updates.is_closed());
            !senders.is_empty()
        });
        let sender = OrderSender { pending: pending.clone(), updates: sender };
        channels.entry(node.clone()).or_default().push(sender);
        OrderReceiver { pending, updates }
    }

    /// There will be no more orders: receivers that wait end.
    pub fn clear(&self) {
        lock(&self.0).clear();
    }

    /// Sends what each of `nodes` that has a channel lacks. Everything in `cluster` must be durable.
    pub fn send<'a>(&self, cluster: &Cluster, nodes: impl IntoIterator<Item = &'a NodeId>) {
        let channels = lock(&self.0);
        for node in nodes {
            let senders = channels.get(node).into_iter().flatten();
            for sender in senders.filter(|sender| !sender.updates.is_closed()) {
                let sent = sender.pending.sent.load(Ordering::Relaxed);
                *lock(&sender.pending.orders) = cluster.orders_since(node, sent, None);
                sender.updates.send_replace(());
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
    use partage_core::base::id::{Incarnation, TransactionId};
    use partage_core::base::name::KeyspaceName;
    use partage_core::base::settings::Settings;
    use partage_core::base::time::Millis;
    use partage_core::cluster::admin::{Command, Presplit};
    use partage_core::cluster::{Moment, Records};
    use partage_core::keyspace::Keyspace;
    use partage_core::keyspace::hash::HashFunction;
    use partage_core::keyspace::sharding::Sharding;
    use partage_core::node::NodeSpec;
    use partage_core::node::exchange::Beat;
    use partage_core::node::exchange::Registration;
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
    fn cluster_of_one_node() -> Cluster {
        let mut cluster = Cluster::recover(at(1), Settings::default(), Records::default()).unwrap();
        let spec = NodeSpec::new(node("a"), "127.0.0.1:7501".to_owned());
        let welcome = cluster.register(at(2), Registration::new(spec)).unwrap();
        cluster.checked_back(at(2), &node("a"), welcome.incarnation, true);
        create_keyspace(&mut cluster, "first", 3);
        cluster
    }

    fn create_keyspace(cluster: &mut Cluster, keyspace: &str, ms: u64) {
        let sharding = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 2 };
        let keyspace = Keyspace::new(KeyspaceName::new(keyspace).unwrap(), sharding);
        let create =
            Command::CreateKeyspace { keyspace: Box::new(keyspace), presplit: Presplit::None, ahead: false };
        cluster.command(at(ms), TransactionId([ms as u8; 20]), "test", create).unwrap();
        for sequence in 1..100 {
            let now = at(ms + sequence * 100);
            cluster.beat(now, beat(ms + sequence, now.now)).unwrap();
            cluster.decide(now, TransactionId([ms as u8; 20]));
        }
    }

    fn beat(sequence: u64, sent_at: Millis) -> Beat {
        Beat {
            session: partage_core::base::id::SessionDigest::default(),
            node: node("a"),
            incarnation: Incarnation(1),
            sequence,
            sent_at,
            applied: 0,
            sent: 0,
            whole: false,
            reports: Vec::new(),
            leaving: Some(false),
            busy: 0.0,
            lease_expired: false,
            disk: Default::default(),
        }
    }

    /// What the channel holds now.
    fn poll_next(receiver: &mut OrderReceiver) -> Poll<Option<Orders>> {
        pin!(receiver.next()).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_channel_holds_the_latest_orders_which_say_everything_since_what_was_sent() {
        let (mut cluster, channels) = (cluster_of_one_node(), OrderChannels::default());
        let mut receiver = channels.subscribe(&node("a"), 0);
        assert!(poll_next(&mut receiver).is_pending(), "nothing was sent yet");
        channels.send(&cluster, [&node("a")]);
        create_keyspace(&mut cluster, "second", 20_000);
        channels.send(&cluster, [&node("a")]);
        let Poll::Ready(Some(orders)) = poll_next(&mut receiver) else { panic!("nothing was sent") };
        assert_eq!((orders.base, orders.changed.len()), (0, 4), "{orders:?}");
        assert!(poll_next(&mut receiver).is_pending(), "the orders were taken twice");

        // Once that is sent, the next orders are the difference to it.
        receiver.sent(orders.version);
        channels.send(&cluster, [&node("a")]);
        let Poll::Ready(Some(next)) = poll_next(&mut receiver) else { panic!("nothing was sent") };
        assert!(next.changed.is_empty() && next.version == orders.version, "{next:?}");
    }

    #[test]
    fn every_stream_of_a_node_has_its_channel_and_nobody_else_is_served() {
        let (cluster, channels) = (cluster_of_one_node(), OrderChannels::default());
        let (mut old, mut new) = (channels.subscribe(&node("a"), 0), channels.subscribe(&node("a"), 0));
        let mut other = channels.subscribe(&node("b"), 0);
        channels.send(&cluster, [&node("a"), &node("nobody")]);
        assert!(poll_next(&mut old).is_ready() && poll_next(&mut new).is_ready());
        assert!(poll_next(&mut other).is_pending());
        drop(old);
        let _another = channels.subscribe(&node("b"), 0);
        assert_eq!(lock(&channels.0)[&node("a")].len(), 1, "the channel of a stream that is gone is kept");
        drop(channels);
        assert_eq!(
            poll_next(&mut new),
            Poll::Ready(None),
            "the decision loop is gone, and the stream waits on"
        );
    }
}
