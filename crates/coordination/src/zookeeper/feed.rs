//! Changes below the root: ZooKeeper reports each once per handle, and the feed passes it to the watches concerned.
//!
//! One persistent, recursive watch on the root. An event says which znode was touched, not its new state, so the feed
//! keeps for a subscriber only a set of keys to read, or "all" when there are too many, and when
//! the connection was broken: then events may be lost.
//!
//! ZooKeeper sends an event before any answer that already shows the change. So a watch that reads on this very
//! connection, and then waits for [`Feed::settled`], knows which changes the read did not cover.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use zookeeper_client::{AddWatchMode, Client, EventType, PersistentWatcher, SessionState};

use super::connection::Connection;
use crate::error::{Error, Result};
use crate::key::{Key, Scope};
use crate::limits::{ZOOKEEPER_MAX_DIRTY_KEYS, ZOOKEEPER_MAX_WATCHES, ZOOKEEPER_RETRY_PAUSE};

/// The connection whose events come here, and its number, which each break changes.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub client: Client,
    number: u64,
}

/// What a subscriber has to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Dirty {
    pub keys: BTreeSet<Key>,
    pub all: bool,
}

impl Dirty {
    pub const ALL: Self = Self { keys: BTreeSet::new(), all: true };

    pub fn is_empty(&self) -> bool {
        !self.all && self.keys.is_empty()
    }

    pub fn add(&mut self, other: Self) {
        self.all |= other.all;
        self.keys.extend(other.keys);
        if self.all || self.keys.len() > ZOOKEEPER_MAX_DIRTY_KEYS {
            *self = Self::ALL;
        }
    }
}

#[derive(Debug)]
struct Subscriber {
    scope: Scope,
    dirty: Dirty,
    notify: Arc<Notify>,
}

type Subscribers = Mutex<BTreeMap<u64, Subscriber>>;

/// The watch of a handle, and its subscribers. Ends with the last of them.
#[derive(Debug)]
pub(super) struct Feed {
    connection: Arc<Connection>,
    subscribers: Arc<Subscribers>,
    source: watch::Receiver<Option<Source>>,
    asked: mpsc::Sender<oneshot::Sender<u64>>,
    /// The number of the last source that does not answer.
    mute: watch::Sender<u64>,
    /// One replaces the client of a source.
    replacing: tokio::sync::Mutex<()>,
    task: JoinHandle<()>,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A subscription to the feed.
#[derive(Debug)]
pub(super) struct FeedSubscription {
    pub feed: Arc<Feed>,
    number: u64,
    notify: Arc<Notify>,
}

impl Drop for FeedSubscription {
    fn drop(&mut self) {
        locked(&self.feed.subscribers).remove(&self.number);
    }
}

impl Feed {
    pub fn start(connection: Arc<Connection>) -> Arc<Self> {
        let subscribers = Arc::default();
        let (sender, source) = watch::channel(None);
        let (asked, asking) = mpsc::channel(ZOOKEEPER_MAX_WATCHES);
        let (mute, hears_of_mute) = watch::channel(0);
        let hears = (asking, hears_of_mute);
        let task = tokio::spawn(run(Arc::clone(&connection), Arc::clone(&subscribers), sender, hears));
        let replacing = tokio::sync::Mutex::default();
        Arc::new(Self { connection, subscribers, source, asked, mute, replacing, task })
    }

    /// A request to the source has no answer, though its connection lives: the feed begins anew on another one.
    pub async fn begin_anew(&self, source: &Source) {
        let _replacing = self.replacing.lock().await;
        if *self.mute.borrow() < source.number {
            self.connection.replace_reading_client().await;
            self.mute.send_replace(source.number);
        }
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    pub fn subscribe(self: &Arc<Self>, scope: Scope) -> Result<FeedSubscription> {
        let mut subscribers = locked(&self.subscribers);
        if subscribers.len() >= ZOOKEEPER_MAX_WATCHES {
            let what = "the number of watches of one handle".to_owned();
            return Err(Error::TooLarge { what, size: subscribers.len() + 1, limit: ZOOKEEPER_MAX_WATCHES });
        }
        let number = subscribers.last_key_value().map_or(0, |(last, _)| last + 1);
        let notify = Arc::new(Notify::new());
        subscribers
            .insert(number, Subscriber { scope, dirty: Dirty::default(), notify: Arc::clone(&notify) });
        Ok(FeedSubscription { feed: Arc::clone(self), number, notify })
    }

    /// The connection that events come from; waits until there is one.
    pub async fn source(&self) -> Source {
        let mut source = self.source.clone();
        let found = source.wait_for(Option::is_some).await.ok().and_then(|source| source.clone());
        match found {
            Some(source) => source,
            // The task ends with us only.
            None => std::future::pending().await,
        }
    }

    /// Returns when everything that came before this call is known to the subscribers. False if the connection broke
    /// since `source` was given out.
    pub async fn settled(&self, source: &Source) -> bool {
        let (answer, number) = oneshot::channel();
        self.asked.send(answer).await.is_ok() && number.await == Ok(source.number)
    }
}

impl FeedSubscription {
    /// Waits until there is something to read.
    pub async fn changed(&self) {
        loop {
            let changed = self.notify.notified();
            if self.look(|dirty| !dirty.is_empty()) {
                return;
            }
            changed.await;
        }
    }

    /// Takes what is dirty; nothing is then.
    pub fn take(&self) -> Dirty {
        self.look(std::mem::take)
    }

    fn look<T: Default>(&self, look: impl FnOnce(&mut Dirty) -> T) -> T {
        locked(&self.feed.subscribers)
            .get_mut(&self.number)
            .map(|subscriber| look(&mut subscriber.dirty))
            .unwrap_or_default()
    }
}

fn locked(subscribers: &Subscribers) -> MutexGuard<'_, BTreeMap<u64, Subscriber>> {
    // A panic leaves it whole.
    subscribers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets every subscriber read its whole scope again, as it may have missed events.
fn all_dirty(subscribers: &Subscribers) {
    for subscriber in locked(subscribers).values_mut() {
        subscriber.dirty = Dirty::ALL;
        subscriber.notify.notify_one();
    }
}

async fn run(
    connection: Arc<Connection>,
    subscribers: Arc<Subscribers>,
    source: watch::Sender<Option<Source>>,
    (mut asking, mut mute): (mpsc::Receiver<oneshot::Sender<u64>>, watch::Receiver<u64>),
) {
    let mut number = 0;
    loop {
        let root = connection.root().as_str();
        let connected = &connection;
        let begin = |client: Client| async move {
            let watching = client.watch(root, AddWatchMode::PersistentRecursive).await;
            watching.map(|watcher| (client, watcher)).map_err(|fault| connected.refusal(&fault, root))
        };
        match connection.reading(begin).await {
            Ok((client, watcher)) => {
                number += 1;
                source.send_replace(Some(Source { client, number }));
                all_dirty(&subscribers);
                follow(&connection, &subscribers, (watcher, number), (&mut asking, &mut mute)).await;
                source.send_replace(None);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot follow changes, trying again");
                sleep(ZOOKEEPER_RETRY_PAUSE).await;
            }
        }
    }
}

/// Until the connection breaks, or does not answer. It does not wait for a reconnect: the client library does not set persistent
/// watches again by itself, and events in between are lost in any case (ZOOKEEPER-4698).
async fn follow(
    connection: &Connection,
    subscribers: &Subscribers,
    (mut watcher, number): (PersistentWatcher, u64),
    (asking, mute): (&mut mpsc::Receiver<oneshot::Sender<u64>>, &mut watch::Receiver<u64>),
) {
    loop {
        let event = tokio::select! {
            // In this order: an answer says that all that came before is known to the subscribers.
            biased;
            event = watcher.changed() => event,
            _ = mute.wait_for(|mute| *mute >= number) => return,
            Some(answer) = asking.recv() => {
                // The asker may have gone.
                let _ = answer.send(number);
                continue;
            }
        };
        match event.event_type {
            EventType::Session if event.session_state == SessionState::SyncConnected => {}
            EventType::Session => return,
            _ => {
                let Some(key) = connection.root().key(&event.path) else { continue };
                for subscriber in
                    locked(subscribers).values_mut().filter(|subscriber| subscriber.scope.contains(&key))
                {
                    subscriber.dirty.add(Dirty { keys: BTreeSet::from([key.clone()]), all: false });
                    subscriber.notify.notify_one();
                }
            }
        }
    }
}
