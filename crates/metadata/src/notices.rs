//! Notices: whoever has an interest is told what became of a change, until it has heard, or something later has
//! taken the place of the notice (T9).

use crate::limits::{NOTICES, TELL_AGAIN, TELLING};
use crate::peers::Peers;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use partage_core::metadata::change::Notice;
use partage_core::name::{KeyspaceName, NodeId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Of each kind the latest, to one server about one keyspace.
type Place = (NodeId, KeyspaceName, bool);

#[derive(Default)]
struct Board {
    notices: Mutex<BTreeMap<Place, Notice>>,
    news: Notify,
}

/// Tells notices. A copy tells the same; with the last one it ends.
#[derive(Clone)]
pub struct Notices(Arc<Telling>);

struct Telling {
    board: Arc<Board>,
    task: AbortHandle,
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Notices {
    /// To the servers that `peers` knows. Must be called in a tokio runtime.
    pub fn start(peers: Peers) -> Notices {
        let board = Arc::new(Board::default());
        let task = tokio::spawn(tell_all(board.clone(), peers)).abort_handle();
        Notices(Arc::new(Telling { board, task }))
    }

    /// Has `servers` told.
    pub fn tell(&self, keyspace: &KeyspaceName, servers: &[NodeId], notice: Notice) {
        let is_commit = matches!(notice, Notice::Committed(_));
        let mut notices = self.0.board.notices.lock().unwrap_or_else(PoisonError::into_inner);
        for server in servers {
            let place = (server.clone(), keyspace.clone(), is_commit);
            if notices.len() < NOTICES || notices.contains_key(&place) {
                notices.insert(place, notice);
            } else {
                // Every server looks at the head by itself, too.
                tracing::warn!(%keyspace, %server, "too many notices wait; this one is dropped");
            }
        }
        drop(notices);
        self.0.board.news.notify_one();
    }

    /// How many have not been heard yet.
    pub fn waiting(&self) -> usize {
        self.0.board.notices.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

async fn tell_all(board: Arc<Board>, peers: Peers) {
    loop {
        let due: Vec<_> = {
            let notices = board.notices.lock().unwrap_or_else(PoisonError::into_inner);
            notices.iter().map(|(place, notice)| (place.clone(), *notice)).collect()
        };
        let calls = due.into_iter().map(|(place, notice)| {
            let peers = peers.clone();
            async move { (peers.tell(&place.0, &place.1, notice).await.is_ok(), place, notice) }
        });
        let mut told: BoxStream<'_, _> = stream::iter(calls).buffer_unordered(TELLING).boxed();
        let mut all_heard = true;
        while let Some((heard, place, notice)) = told.next().await {
            all_heard &= heard;
            let mut notices = board.notices.lock().unwrap_or_else(PoisonError::into_inner);
            // A later one that has come in between is still to be told.
            if heard && notices.get(&place) == Some(&notice) {
                notices.remove(&place);
            }
        }
        if all_heard {
            board.news.notified().await;
        } else {
            // A new one need not wait for those that are not heard.
            let _ = tokio::time::timeout(TELL_AGAIN, board.news.notified()).await;
        }
    }
}
