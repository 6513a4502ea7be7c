//! Notices: they tell servers what became of a change, until the server has heard, or a later notice has taken the
//! place (T9).

use crate::limits::{NOTICES, TELL_AGAIN, TELLING, TELLING_ONE};
use crate::peers::Peers;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::service::metadata::change::Notice;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

/// The server, the keyspace, and whether it is a commit: the latest notice of each waits.
type NoticeKey = (NodeId, KeyspaceName, bool);

#[derive(Default)]
struct PendingNotices {
    notices: Mutex<BTreeMap<NoticeKey, Notice>>,
    changed: Notify,
}

/// Tells notices. Copies share the queue; with the last one it ends.
#[derive(Clone)]
pub struct Notices(Arc<Inner>);

struct Inner {
    pending: Arc<PendingNotices>,
    task: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Notices {
    /// To the servers that `peers` knows. Must be called in a tokio runtime.
    pub fn start(peers: Peers) -> Notices {
        let pending = Arc::new(PendingNotices::default());
        let task = tokio::spawn(deliver_all(pending.clone(), peers)).abort_handle();
        Notices(Arc::new(Inner { pending, task }))
    }

    /// Has `servers` told.
    pub fn tell(&self, keyspace: &KeyspaceName, servers: &[NodeId], notice: Notice) {
        let is_commit = matches!(notice, Notice::Committed(_));
        let mut notices = self.0.pending.notices.lock().unwrap_or_else(PoisonError::into_inner);
        for server in servers {
            let key = (server.clone(), keyspace.clone(), is_commit);
            if notices.len() < NOTICES || notices.contains_key(&key) {
                notices.insert(key, notice);
            } else {
                // Every server looks at the head by itself, too.
                tracing::warn!(%keyspace, %server, "too many notices wait; this one is dropped");
            }
        }
        drop(notices);
        self.0.pending.changed.notify_one();
    }

    /// How many have not been heard yet.
    pub fn waiting(&self) -> usize {
        self.0.pending.notices.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Calls under way, and notices that rest after a try that was not heard.
#[derive(Default)]
struct Deliveries {
    busy: BTreeMap<NodeId, BTreeSet<NoticeKey>>,
    resting: BTreeMap<NoticeKey, Instant>,
}

impl Deliveries {
    /// Whether a notice may be told now. A server that does not answer takes no other server's place.
    fn may_begin(&self, key: &NoticeKey) -> bool {
        let of_server = self.busy.get(&key.0);
        let has_room = of_server.is_none_or(|busy| busy.len() < TELLING_ONE && !busy.contains(key));
        has_room && !self.resting.contains_key(key)
    }

    /// When a rest ends next. Those that are over are forgotten: they wait for nothing but a place.
    fn next_rest(&mut self, now: Instant) -> Option<Instant> {
        self.resting.retain(|_, until| *until > now);
        self.resting.values().min().copied()
    }

    fn begin(&mut self, key: &NoticeKey) {
        self.busy.entry(key.0.clone()).or_default().insert(key.clone());
    }

    fn end(&mut self, key: &NoticeKey) {
        if let Some(busy) = self.busy.get_mut(&key.0) {
            busy.remove(key);
            if busy.is_empty() {
                self.busy.remove(&key.0);
            }
        }
    }
}

async fn deliver_all(pending: Arc<PendingNotices>, peers: Peers) {
    let (mut deliveries, mut calls) = (Deliveries::default(), FuturesUnordered::new());
    loop {
        let again = {
            let notices = pending.notices.lock().unwrap_or_else(PoisonError::into_inner);
            let rested = deliveries.next_rest(Instant::now());
            for (key, notice) in notices.iter() {
                if calls.len() >= TELLING {
                    break;
                }
                if deliveries.may_begin(key) {
                    deliveries.begin(key);
                    let (peers, key, notice) = (peers.clone(), key.clone(), *notice);
                    calls
                        .push(async move { (peers.tell(&key.0, &key.1, notice).await.is_ok(), key, notice) });
                }
            }
            rested
        };
        tokio::select! {
            Some((heard, key, notice)) = calls.next() => {
                deliveries.end(&key);
                let mut notices = pending.notices.lock().unwrap_or_else(PoisonError::into_inner);
                if !heard {
                    deliveries.resting.insert(key, Instant::now() + TELL_AGAIN);
                } else if notices.get(&key) == Some(&notice) {
                    // A later one that has come in between is still to be told.
                    notices.remove(&key);
                }
            }
            () = pending.changed.notified() => {}
            () = rest(again) => {}
        }
    }
}

async fn rest(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(server: &str, keyspace: usize) -> NoticeKey {
        (server.parse().unwrap(), format!("k{keyspace}").parse().unwrap(), true)
    }

    #[test]
    fn a_server_that_does_not_answer_takes_no_other_servers_place() {
        let mut deliveries = Deliveries::default();
        let of_hung: Vec<_> = (0..100).map(|number| key("hung", number)).collect();
        for key in &of_hung {
            if deliveries.may_begin(key) {
                deliveries.begin(key);
            }
        }
        assert_eq!(deliveries.busy.values().map(BTreeSet::len).sum::<usize>(), TELLING_ONE);
        assert!(TELLING_ONE < TELLING && deliveries.may_begin(&key("well", 0)));
        assert!(!deliveries.may_begin(&of_hung[0]), "it is under way");
        deliveries.end(&of_hung[0]);
        assert!(deliveries.may_begin(&of_hung[50]));
        let now = Instant::now();
        deliveries.resting.insert(of_hung[50].clone(), now + TELL_AGAIN);
        assert_eq!(deliveries.next_rest(now), Some(now + TELL_AGAIN));
        assert!(!deliveries.may_begin(&of_hung[50]));
        // While all places are taken nothing is looked for again and again.
        deliveries.begin(&of_hung[51]);
        assert_eq!(deliveries.next_rest(now + TELL_AGAIN), None);
        assert!(!deliveries.may_begin(&of_hung[50]), "no place");
        deliveries.end(&of_hung[51]);
        assert!(deliveries.may_begin(&of_hung[50]));
    }
}
