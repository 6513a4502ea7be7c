//! Notices: whoever has an interest is told what became of a change, until it has heard, or something later has
//! taken the place of the notice (T9).

use crate::limits::{NOTICES, TELL_AGAIN, TELLING};
use crate::peers::Peers;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::service::metadata::change::Notice;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Of each kind the latest, to one server about one keyspace.
type NoticeKey = (NodeId, KeyspaceName, bool);

#[derive(Default)]
struct PendingNotices {
    notices: Mutex<BTreeMap<NoticeKey, Notice>>,
    changed: Notify,
}

/// Tells notices. A copy tells the same; with the last one it ends.
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

async fn deliver_all(pending: Arc<PendingNotices>, peers: Peers) {
    loop {
        let due: Vec<_> = {
            let notices = pending.notices.lock().unwrap_or_else(PoisonError::into_inner);
            notices.iter().map(|(key, notice)| (key.clone(), *notice)).collect()
        };
        let calls = due.into_iter().map(|(key, notice)| {
            let peers = peers.clone();
            async move { (peers.tell(&key.0, &key.1, notice).await.is_ok(), key, notice) }
        });
        let mut told: BoxStream<'_, _> = stream::iter(calls).buffer_unordered(TELLING).boxed();
        let mut all_heard = true;
        while let Some((heard, key, notice)) = told.next().await {
            all_heard &= heard;
            let mut notices = pending.notices.lock().unwrap_or_else(PoisonError::into_inner);
            // A later one that has come in between is still to be told.
            if heard && notices.get(&key) == Some(&notice) {
                notices.remove(&key);
            }
        }
        if all_heard {
            pending.changed.notified().await;
        } else {
            // A new one need not wait for those that are not heard.
            let _ = tokio::time::timeout(TELL_AGAIN, pending.changed.notified()).await;
        }
    }
}
