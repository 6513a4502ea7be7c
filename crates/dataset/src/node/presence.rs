//! Keeps a session, and what this node publishes in it.
//!
//! The outbox keeps the latest value of each key alone, so that a slow service gets one write for ten changes, and
//! nothing piles up.

use super::driving::Input;
use super::trouble::{CoordinationHealth, CoordinationPart};
use crate::limits::{COORDINATION_PAUSE, LEAVE_FLUSH};
use bytes::Bytes;
use partage_coordination::{Coordination, Error, Key, Session, SessionId, Transaction};
use partage_service::dataset::node::Event;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{sleep, timeout};

/// Keys that are changed in one transaction, where the backend takes several.
const AT_ONCE: usize = 64;

/// The latest value of each key that is not published yet.
#[derive(Debug, Default)]
pub struct Outbox {
    pending: Mutex<BTreeMap<Key, Option<Bytes>>>,
    /// All keys that are to be there.
    published: Mutex<BTreeSet<Key>>,
    changed: Notify,
}

impl Outbox {
    fn pending(&self) -> MutexGuard<'_, BTreeMap<Key, Option<Bytes>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a value, or a removal; returns how many keys are to be there.
    pub fn say(&self, key: Key, value: Option<Bytes>) -> usize {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        match value {
            Some(_) => published.insert(key.clone()),
            None => published.remove(&key),
        };
        self.pending().insert(key, value);
        self.changed.notify_one();
        published.len()
    }

    fn some(&self, count: usize) -> Vec<(Key, Option<Bytes>)> {
        let pending = self.pending();
        pending.iter().take(count).map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Notes that these keys were written. What has changed meanwhile stays queued.
    fn said(&self, said: &[(Key, Option<Bytes>)]) {
        let mut pending = self.pending();
        for (key, value) in said {
            if pending.get(key) == Some(value) {
                pending.remove(key);
            }
        }
    }

    fn clear(&self) {
        self.pending().clear();
    }

    fn is_empty(&self) -> bool {
        self.pending().is_empty()
    }
}

/// Keeps a session until the node leaves.
pub async fn keep(
    coordination: Arc<dyn Coordination>,
    ttl: Duration,
    outbox: Arc<Outbox>,
    inputs: mpsc::Sender<Input>,
    health: Arc<CoordinationHealth>,
    mut leaving: watch::Receiver<bool>,
) {
    while !*leaving.borrow() {
        let opened = tokio::select! {
            opened = Session::open(coordination.clone(), ttl) => opened,
            _ = leaving.changed() => return,
        };
        let session = match opened {
            Ok(session) => session,
            Err(error) => {
                health.failed(CoordinationPart::Session, error);
                pause(&mut leaving).await;
                continue;
            }
        };
        health.works(CoordinationPart::Session);
        // The machine publishes all of it anew when it hears of the session.
        outbox.clear();
        if inputs.send(Input::Core(Event::Session)).await.is_err() {
            return;
        }
        tokio::select! {
            () = session.lost() => {
                // Once for each session.
                tracing::info!("the session with the coordination service is lost; the next is opened");
                health.failed(CoordinationPart::Session, "the session is lost");
                if inputs.send(Input::Core(Event::SessionLost)).await.is_err() {
                    return;
                }
            }
            () = publish(&coordination, session.id(), &outbox, &health, leaving.clone()) => {
                // A session that does not end now ends by its time-to-live.
                let _ = timeout(LEAVE_FLUSH, session.end()).await;
                return;
            }
        }
    }
}

/// Writes what is queued, as long as the session lasts; returns when the node leaves and the queue is empty.
async fn publish(
    coordination: &Arc<dyn Coordination>,
    session: SessionId,
    outbox: &Outbox,
    health: &CoordinationHealth,
    mut leaving: watch::Receiver<bool>,
) {
    let at_once = if coordination.backend() == "gossip" { 1 } else { AT_ONCE };
    loop {
        let batch = outbox.some(at_once);
        if batch.is_empty() {
            if *leaving.borrow() && outbox.is_empty() {
                return;
            }
            tokio::select! {
                () = outbox.changed.notified() => {}
                _ = leaving.changed() => {}
            }
            continue;
        }
        let mut transaction = Transaction::new();
        for (key, value) in &batch {
            transaction = match value {
                Some(value) => transaction.put_ephemeral(key, value.clone(), session),
                None => transaction.delete(key),
            };
        }
        match coordination.commit(transaction).await {
            Ok(_) => {
                health.works(CoordinationPart::Keys);
                outbox.said(&batch);
            }
            // Gossip: the key is of an earlier process, and goes by itself.
            Err(Error::Unsupported { .. } | Error::Invalid { .. })
                if batch.iter().all(|(_, v)| v.is_none()) =>
            {
                outbox.said(&batch);
            }
            Err(error) => {
                health.failed(
                    CoordinationPart::Keys,
                    format_args!("{} keys are not published: {error}", batch.len()),
                );
                if *leaving.borrow() {
                    return;
                }
                pause(&mut leaving).await;
            }
        }
    }
}

async fn pause(leaving: &mut watch::Receiver<bool>) {
    tokio::select! {
        () = sleep(COORDINATION_PAUSE) => {}
        // Without a sender the node has ended.
        _ = leaving.changed() => {}
    }
}
