//! A watch: a task that follows etcd for one subscriber, and folds the waiting updates.
//!
//! ```text
//! etcd ──events──► task ──fold──► waiting: key → newest entry ──next()──► subscriber
//! ```
//!
//! The task always takes what comes, so a subscriber that does not listen holds up no stream. One
//! entry for each key waits, and at most [`ETCD_WAITING_BYTES`]; past that the task drops them and the stream, and
//! the subscriber gets a resync when it asks again (W6).
//!
//! The task begins again by itself, where it was, after a lost connection, a server without a leader, or a
//! restart. Three things make it a resync: etcd has compacted the revision, the revision is later than
//! etcd's own (a backup was restored, or it is another store's), and another cluster answers.
//!
//! etcd sends whole revisions, large ones in fragments: the task folds only whole ones (W3).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tonic::Streaming;

use crate::error::{Error, Result};
use crate::key::{Key, Scope};
use crate::limits::{ETCD_MAX_ANSWER_BYTES, ETCD_WAITING_BYTES, ETCD_WATCH_PAUSE};
use crate::transaction::{Entry, Version};
use crate::watch::{Change, Subscription, Update, Watch};

use super::checks::version;
use super::outcome::{AttemptError, in_words};
use super::pages;
use super::proto::event::EventType;
use super::proto::watch_client::WatchClient;
use super::proto::watch_request::RequestUnion;
use super::proto::{Event, RangeRequest, ResponseHeader, WatchCreateRequest, WatchRequest, WatchResponse};
use super::servers::Servers;
use super::space::Space;

pub(super) fn start(servers: Arc<Servers>, space: Space, scope: Scope, from: Option<Version>) -> Watch {
    let shared = Arc::new(Shared::default());
    let followed = Followed {
        servers,
        space,
        scope,
        shared: Arc::clone(&shared),
        cursor: from,
        cluster: None,
        owes_resync: false,
        staged: Vec::new(),
    };
    Box::new(Follower { shared, task: tokio::spawn(followed.run()) })
}

/// What the subscriber calls. When it is dropped, the task ends.
#[derive(Debug)]
struct Follower {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[async_trait]
impl Subscription for Follower {
    async fn next(&mut self) -> Result<Update> {
        loop {
            if let Some(outcome) = self.shared.take() {
                return outcome;
            }
            // Each keeps a permit until the other side waits.
            self.shared.wanted.notify_one();
            self.shared.ready.notified().await;
        }
    }
}

/// What the task has for the subscriber.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the subscriber: an update or an error waits.
    ready: Notify,
    /// Wakes the task: the subscriber listens, and nothing waits.
    wanted: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: Option<Waiting>,
    failed: Option<Error>,
}

impl Shared {
    fn take(&self) -> Option<Result<Update>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.waiting.take() {
            Some(waiting) => Some(Ok(waiting.into_update())),
            None => state.failed.clone().map(Err),
        }
    }

    fn fail(&self, error: Error) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).failed = Some(error);
        self.ready.notify_one();
    }

    fn resync(&self, at: Version, entries: Vec<(Key, Entry)>) {
        let mut waiting = Waiting::new(true, at);
        entries.into_iter().for_each(|(key, entry)| waiting.put(key, Some(entry)));
        waiting.spare = waiting.bytes;
        self.state.lock().unwrap_or_else(PoisonError::into_inner).waiting = Some(waiting);
        self.ready.notify_one();
    }

    /// False if too much waits now: it is dropped, and only a resync can follow.
    #[must_use]
    fn fold(&self, at: Version, changes: Vec<Change>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = state.waiting.get_or_insert_with(|| Waiting::new(false, at));
        waiting.at = at;
        changes.into_iter().for_each(|change| waiting.put(change.key, change.entry));
        if waiting.bytes > waiting.spare + ETCD_WAITING_BYTES {
            state.waiting = None;
            return false;
        }
        self.ready.notify_one();
        true
    }
}

/// Updates folded into one.
#[derive(Debug)]
struct Waiting {
    is_resync: bool,
    at: Version,
    changes: BTreeMap<Key, Option<Entry>>,
    bytes: usize,
    /// Bytes that are not counted against the bound: a resync is as large as the content is.
    spare: usize,
}

impl Waiting {
    fn new(is_resync: bool, at: Version) -> Self {
        Self { is_resync, at, changes: BTreeMap::new(), bytes: 0, spare: 0 }
    }

    fn put(&mut self, key: Key, entry: Option<Entry>) {
        let bytes = |key: &Key, entry: &Option<Entry>| {
            key.as_str().len() + entry.as_ref().map_or(0, |entry| entry.value.len()) + size_of::<Change>()
        };
        if let Some(before) = self.changes.remove(&key) {
            self.bytes -= bytes(&key, &before);
        }
        // What a resync does not name does not exist.
        if entry.is_some() || !self.is_resync {
            self.bytes += bytes(&key, &entry);
            self.changes.insert(key, entry);
        }
    }

    fn into_update(self) -> Update {
        let (at, changes) = (self.at, self.changes.into_iter());
        if self.is_resync {
            let entries = changes.filter_map(|(key, entry)| Some((key, entry?))).collect();
            return Update::Resync { at, entries };
        }
        Update::Changes { at, changes: changes.map(|(key, entry)| Change { key, entry }).collect() }
    }
}

/// Why a stream ended.
enum End {
    /// Go on from the cursor.
    Broken(String),
    /// The changes since the cursor are lost, or too many.
    Gap,
    /// A person must act.
    Failed(Error),
}

/// The task: what it follows, and how far it has come.
struct Followed {
    servers: Arc<Servers>,
    space: Space,
    scope: Scope,
    shared: Arc<Shared>,
    /// Everything up to here has been folded; `None` asks for a resync.
    cursor: Option<Version>,
    /// The etcd cluster that counts the cursor's revisions; `None` before the first read.
    cluster: Option<u64>,
    /// The subscriber has asked for a resync that it has not got: it waits, and asks only once.
    owes_resync: bool,
    /// Events whose last fragment has not come.
    staged: Vec<Event>,
}

impl Followed {
    async fn run(mut self) {
        let (shortest, longest) = ETCD_WATCH_PAUSE;
        let mut pause = shortest;
        loop {
            let before = self.cursor;
            match self.follow().await {
                End::Gap => self.cursor = None,
                End::Failed(error) => return self.shared.fail(error),
                End::Broken(what) => {
                    tracing::debug!(scope = %self.scope, %what, "watch broke, beginning again");
                    if before != self.cursor {
                        pause = shortest;
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(longest);
                }
            }
        }
    }

    /// One stream, from a read of etcd's revision to the stream's end.
    async fn follow(&mut self) -> End {
        self.staged.clear();
        if self.cursor.is_none() && !self.owes_resync {
            // A resync is made only for a subscriber that waits.
            self.shared.wanted.notified().await;
            self.owes_resync = true;
        }
        if let Err(error) = self.catch_up().await {
            return match error {
                Error::Unavailable { what } => End::Broken(what),
                error => End::Failed(error),
            };
        }
        self.owes_resync = false;
        let mut stream = match self.open().await {
            Ok(stream) => stream,
            Err(end) => return end,
        };
        loop {
            let message = match stream.1.message().await {
                Ok(Some(message)) => message,
                Ok(None) => return End::Broken("etcd ended the stream".to_owned()),
                Err(status) => {
                    self.servers.give_up_on(stream.0);
                    return End::Broken(in_words(&status));
                }
            };
            if let Some(end) = self.take_in(message).await {
                return end;
            }
        }
    }

    /// Checks that etcd can go on from the cursor; a resync if not.
    async fn catch_up(&mut self) -> Result<()> {
        let bounds = self.space.range(&self.scope);
        let look =
            RangeRequest { key: bounds.start, range_end: bounds.end, limit: 1, keys_only: true, revision: 0 };
        let header = pages::range(&self.servers, look).await?.header.unwrap_or_default();
        let same = self.cluster.is_none_or(|cluster| cluster == header.cluster_id);
        if same && self.cursor.is_some_and(|cursor| cursor <= version(header.revision)) {
            self.cluster = Some(header.cluster_id);
            return Ok(());
        }
        let content = pages::all(&self.servers, &self.space, &self.scope).await?;
        // Not before the read: if it fails, the cursor is still the other cluster's.
        self.cluster = Some(header.cluster_id);
        self.cursor = Some(content.at);
        self.shared.resync(content.at, content.entries);
        Ok(())
    }

    async fn open(&self) -> Result<(usize, Streaming<WatchResponse>), End> {
        let bounds = self.space.range(&self.scope);
        let next = self.cursor.unwrap_or_default().get().saturating_add(1);
        let create = WatchCreateRequest {
            key: bounds.start,
            range_end: bounds.end,
            start_revision: i64::try_from(next).unwrap_or(i64::MAX),
            progress_notify: true,
            fragment: true,
        };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let (turn, server) = self.servers.current();
        // The stream of requests stays open as long as the watch does.
        let requests = tokio_stream::StreamExt::chain(tokio_stream::once(create), tokio_stream::pending());
        let request = server.request(requests);
        let mut client =
            WatchClient::new(server.channel.clone()).max_decoding_message_size(ETCD_MAX_ANSWER_BYTES);
        let opened = tokio::time::timeout(crate::limits::ETCD_ATTEMPT, client.watch(request)).await;
        match opened {
            Ok(Ok(stream)) => Ok((turn, stream.into_inner())),
            Ok(Err(status)) => match self.servers.attempt_error(&status) {
                AttemptError::Token(what) => Err(self.signed_in(Some(&server), what).await),
                AttemptError::Refused(error) if !matches!(error, Error::Unavailable { .. }) => {
                    Err(End::Failed(error))
                }
                _ => {
                    self.servers.give_up_on(turn);
                    Err(End::Broken(in_words(&status)))
                }
            },
            Err(_) => {
                self.servers.give_up_on(turn);
                Err(End::Broken("no answer in time".to_owned()))
            }
        }
    }

    /// Signs in again, for the next stream.
    async fn signed_in(&self, server: Option<&super::servers::ServerChannel>, what: String) -> End {
        match self.servers.sign_in(server).await {
            Ok(()) | Err(Error::Unavailable { .. }) => End::Broken(what),
            Err(error) => End::Failed(error),
        }
    }

    async fn take_in(&mut self, message: WatchResponse) -> Option<End> {
        if message.compact_revision > 0 {
            return Some(End::Gap);
        }
        if message.canceled {
            // An invalid token, or a right that was taken away: the next read tells which.
            return Some(self.signed_in(None, message.cancel_reason).await);
        }
        let is_progress = message.events.is_empty() && self.staged.is_empty();
        if is_progress && !message.created {
            self.progress(message.header.as_ref());
        }
        self.staged.extend(message.events);
        if message.fragment {
            let bytes: usize =
                self.staged.iter().filter_map(|event| event.kv.as_ref()).map(|kv| kv.value.len()).sum();
            // More than may wait: no need to wait for the rest of it.
            return (bytes > ETCD_WAITING_BYTES).then_some(End::Gap);
        }
        self.fold().err()
    }

    /// Nothing has happened up to here: after a break, go on from here.
    fn progress(&mut self, header: Option<&ResponseHeader>) {
        let at = header.map(|header| version(header.revision)).unwrap_or_default();
        self.cursor = self.cursor.map(|cursor| cursor.max(at));
    }

    /// Folds a whole revision.
    fn fold(&mut self) -> Result<(), End> {
        let events = std::mem::take(&mut self.staged);
        let mut changes = Vec::with_capacity(events.len());
        for event in events {
            let deleted = event.r#type() == EventType::Delete;
            let Some(found) = event.kv else { continue };
            self.cursor = self.cursor.map(|cursor| cursor.max(version(found.mod_revision)));
            let key = self.space.key(&found.key).map_err(End::Failed)?;
            if self.scope.contains(&key) {
                changes.push(Change { key, entry: (!deleted).then(|| pages::entry(&found)) });
            }
        }
        let at = self.cursor.unwrap_or_default();
        if changes.is_empty() || self.shared.fold(at, changes) { Ok(()) } else { Err(End::Gap) }
    }
}
