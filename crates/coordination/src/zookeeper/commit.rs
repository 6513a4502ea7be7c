//! Commits: one `multi` that advances the clock, based on cached znodes.
//!
//! Optimistic concurrency: each commit is conditioned on the data version of the root, the clock, and advances it.
//! ZooKeeper refuses a commit on an older clock; so all that was cached as of a clock still holds when a commit on it
//! succeeds. A lone writer knows the clock and what it wrote itself, and needs no read: one round trip. After a refusal
//! it reads, all at one moment, and tries again.
//!
//! Keys that end with their sessions do not advance the clock: see `plan`. So only what was read for this very
//! transaction can refuse it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use zookeeper_client::{Client, CreateMode, Error as Fault, MultiWriteError, MultiWriteResult, MultiWriter};

use super::connection::Connection;
use super::marks;
use super::node::{Kind, Node, ROOT_MARK, data, version};
use super::plan::{Known, Plan, PlanError, Step, looked_at, plan, session_of};
use super::sessions::Sessions;
use super::snapshot::{Snapshot, read_nodes, read_scope};
use crate::error::{Error, Result};
use crate::key::{Key, Scope};
use crate::limits::{
    ZOOKEEPER_ANSWER, ZOOKEEPER_CONTENTION_PATIENCE, ZOOKEEPER_CONTENTION_PAUSE, ZOOKEEPER_KNOWN_NODES,
    ZOOKEEPER_MAX_REQUEST_BYTES,
};
use crate::session::SessionId;
use crate::transaction::{Transaction, Version};

/// Bytes of one step in a request, beside its path and its data: headers, versions, rights.
const STEP_BYTES: usize = 96;

/// The one way to change anything through a handle.
#[derive(Debug)]
pub(super) struct Committer {
    connection: Arc<Connection>,
    sessions: Arc<Sessions>,
    /// One transaction at a time: two of one handle would only conflict.
    cache: Mutex<Option<CommitCache>>,
    /// Random numbers: the pauses of two handles that conflict differ.
    draws: AtomicU64,
}

/// What is known at one clock.
#[derive(Debug)]
struct CommitCache {
    clock: i32,
    known: Known,
}

/// The outcome of a `multi`.
enum Sent {
    Done {
        clock: i32,
        at: Version,
    },
    /// Something was not as it was known; nothing was changed.
    Conflict,
}

impl Committer {
    pub fn new(connection: Arc<Connection>, sessions: Arc<Sessions>, seed: u64) -> Self {
        Self { connection, sessions, cache: Mutex::new(None), draws: AtomicU64::new(seed) }
    }

    pub async fn commit(&self, transaction: Transaction) -> Result<Version> {
        let session = session_of(&transaction)?;
        if let Some(session) = session {
            self.sessions.client(session)?;
        }
        let mut slot = self.cache.lock().await;
        let until = Instant::now() + ZOOKEEPER_CONTENTION_PATIENCE;
        let mut conflicts = 0;
        loop {
            // Taken out: when this future is dropped on the way, the cache is empty.
            let cache = slot.take();
            let (mut cache, plan, read) = self.planned(&transaction, cache).await?;
            if transaction.operations.is_empty()
                && let Some(read) = read
            {
                *slot = Some(cache);
                return Ok(read);
            }
            match self.send(&plan, cache.clock, session).await? {
                Sent::Done { clock, at } => {
                    cache.clock = clock;
                    plan.apply(&mut cache.known, at);
                    *slot = Some(cache).filter(|cache| cache.known.len() <= ZOOKEEPER_KNOWN_NODES);
                    return Ok(at);
                }
                Sent::Conflict if Instant::now() < until => {
                    conflicts += 1;
                    sleep(self.pause(conflicts)).await;
                }
                Sent::Conflict => {
                    let what = format!(
                        "{}: others commit all the time: turned away {conflicts} times",
                        self.connection.target()
                    );
                    return Err(Error::Unavailable { what });
                }
            }
        }
    }

    /// A plan, from the cache if that suffices. With the version of what it read, if it did.
    async fn planned(
        &self,
        transaction: &Transaction,
        mut cache: Option<CommitCache>,
    ) -> Result<(CommitCache, Plan, Option<Version>)> {
        let keys = looked_at(transaction);
        if let Some(cache) = cache.take_if(|cache| {
            !transaction.operations.is_empty() && keys.iter().all(|key| cache.known.contains_key(key))
        }) && let Ok(plan) = plan(transaction, &cache.known, &BTreeSet::new())
        {
            return Ok((cache, plan, None));
        }
        let (connection, looked) = (&self.connection, &keys);
        let reading = |client| async move { read_nodes(connection, &client, looked, true).await };
        let snapshot = self.connection.reading(reading).await?;
        let read = snapshot.at();
        let mut cache = CommitCache::new(snapshot, keys.clone()).with(cache);
        match plan(transaction, &cache.known, &BTreeSet::new()) {
            Ok(plan) => Ok((cache, plan, Some(read))),
            Err(PlanError::Refused(error)) => Err(error),
            Err(PlanError::Below(key)) => {
                let intermediates = self.intermediates_below(&key, transaction, &mut cache, keys).await?;
                match plan(transaction, &cache.known, &intermediates) {
                    Ok(plan) => Ok((cache, plan, Some(read))),
                    Err(PlanError::Refused(error)) => Err(error),
                    Err(PlanError::Below(_)) => Err(put_below(transaction, &key)),
                }
            }
        }
    }

    /// The znodes below `key` that are no keys: left over from keys that ended with their sessions.
    async fn intermediates_below(
        &self,
        key: &Key,
        transaction: &Transaction,
        cache: &mut CommitCache,
        mut keys: BTreeSet<Key>,
    ) -> Result<BTreeSet<Key>> {
        let scope = Scope::Below(key.clone());
        let (connection, below, looked) = (&self.connection, &scope, &keys);
        let reading = |client| async move {
            read_scope(connection, &client, below, looked.iter().cloned(), true).await
        };
        let snapshot = self.connection.reading(reading).await?;
        let deleted = |key: &Key| transaction.operations.iter().any(|operation| operation.key() == key);
        let mut intermediates = BTreeSet::new();
        for (key_below, node) in snapshot.nodes.iter().filter(|(key_below, _)| scope.contains(key_below)) {
            match node.kind {
                Kind::Intermediate => drop(intermediates.insert(key_below.clone())),
                _ if deleted(key_below) => {}
                _ => return Err(Error::below_ephemeral(key_below, key)),
            }
        }
        keys.extend(intermediates.iter().cloned());
        *cache = CommitCache::new(snapshot, keys);
        Ok(intermediates)
    }

    async fn send(&self, plan: &Plan, clock: i32, session: Option<SessionId>) -> Result<Sent> {
        let (client, mark) = match session {
            Some(session) => {
                let keys = plan.steps.iter().filter_map(Step::ephemeral).cloned().collect();
                let (client, mark) = self.sessions.adopt(session, keys)?;
                (client, Some((marks::path(&self.connection, session), mark)))
            }
            None => (self.connection.committing_client().await?, None),
        };
        // Version -1 means "any" to ZooKeeper. The clock comes there after four thousand million commits; a commit on that
        // clock has no steps.
        let steps = if clock == -1 { &[] } else { &plan.steps[..] };
        let mut request = self.request(&client, clock, mark.as_ref(), steps)?;
        let before = 1 + usize::from(mark.is_some());
        let path_of = |index: usize| match index.checked_sub(before).and_then(|index| steps.get(index)) {
            Some(step) => self.connection.root().path(step.key()),
            None => self.connection.root().as_str().to_owned(),
        };
        let Ok(answer) = timeout(ZOOKEEPER_ANSWER, request.commit()).await else {
            if session.is_none() {
                self.connection.replace_committing_client().await;
            }
            return Err(self.indefinite("no answer"));
        };
        match answer {
            Ok(results) => match results.first() {
                Some(MultiWriteResult::SetData { stat }) if clock != -1 => {
                    Ok(Sent::Done { clock: stat.version, at: version(stat.mzxid) })
                }
                Some(_) if clock == -1 => Ok(Sent::Conflict),
                _ => Err(self.indefinite("an answer of the wrong kind")),
            },
            // Its mark is gone, and so is the session.
            Err(MultiWriteError::OperationFailed { index: 1, source: Fault::NoNode }) if mark.is_some() => {
                Err(self.refused(&Fault::SessionExpired, &path_of(1), session))
            }
            Err(MultiWriteError::OperationFailed { index, source }) => match source {
                Fault::BadVersion
                | Fault::NoNode
                | Fault::NodeExists
                | Fault::NotEmpty
                | Fault::NoChildrenForEphemerals => Ok(Sent::Conflict),
                fault => Err(self.refused(&fault, &path_of(index), session)),
            },
            Err(MultiWriteError::RequestFailed { source }) => match source {
                // The server answered so, or it was never sent: a broken connection gives ConnectionLoss.
                Fault::SessionExpired if session.is_none() => Ok(Sent::Conflict),
                fault @ (Fault::SessionExpired
                | Fault::NoAuth
                | Fault::InvalidAcl
                | Fault::AuthFailed
                | Fault::SessionMoved
                | Fault::Throttled
                | Fault::NotReadOnly
                | Fault::QuotaExceeded
                | Fault::MarshallingError
                | Fault::Unimplemented
                | Fault::BadArguments(_)) => Err(self.refused(&fault, &path_of(0), session)),
                fault => Err(self.indefinite(&fault.to_string())),
            },
        }
    }

    fn request<'a>(
        &self,
        client: &'a Client,
        clock: i32,
        mark: Option<&(String, Vec<u8>)>,
        steps: &[Step],
    ) -> Result<MultiWriter<'a>> {
        let root = self.connection.root();
        let acls = self.connection.acls();
        let mut request = client.new_multi_writer();
        let mut size = STEP_BYTES + root.as_str().len() + ROOT_MARK.len();
        let mut added = request.add_set_data(root.as_str(), ROOT_MARK, Some(clock));
        if let Some((path, mark)) = mark {
            size += STEP_BYTES + path.len() + mark.len();
            added = added.and(request.add_set_data(path, mark, None));
        }
        for step in steps {
            let path = root.path(step.key());
            size += STEP_BYTES + path.len();
            let outcome = match step {
                Step::Check { data_version, .. } => request.add_check_version(&path, *data_version),
                Step::Delete { data_version, .. } => request.add_delete(&path, Some(*data_version)),
                Step::Create { value, ephemeral, .. } => {
                    let data = data(value.as_ref());
                    size += data.len();
                    let mode = if *ephemeral { CreateMode::Ephemeral } else { CreateMode::Persistent };
                    request.add_create(&path, &data, &mode.with_acls(acls))
                }
                Step::Set { value, data_version, .. } => {
                    let data = data(value.as_ref());
                    size += data.len();
                    request.add_set_data(&path, &data, Some(*data_version))
                }
            };
            added = added.and(outcome);
        }
        added.map_err(|fault| self.connection.refusal(&fault, root.as_str()))?;
        if size > ZOOKEEPER_MAX_REQUEST_BYTES {
            let what = "a transaction with the znodes above its keys, in bytes,".to_owned();
            return Err(Error::TooLarge { what, size, limit: ZOOKEEPER_MAX_REQUEST_BYTES });
        }
        Ok(request)
    }

    fn refused(&self, fault: &Fault, path: &str, session: Option<SessionId>) -> Error {
        match (fault, session) {
            (Fault::SessionExpired, Some(session)) => {
                self.sessions.close(session);
                Error::SessionEnded { session }
            }
            _ => self.connection.refusal(fault, path),
        }
    }

    fn indefinite(&self, why: &str) -> Error {
        Error::Indefinite { what: format!("{}: {why}", self.connection.target()) }
    }

    /// Longer each time, and random for each handle (splitmix64).
    fn pause(&self, conflicts: u32) -> Duration {
        let draw = self.draws.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (draw ^ (draw >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let most = ZOOKEEPER_CONTENTION_PAUSE * (1 << conflicts.min(5));
        most.mul_f64((mixed >> 40) as f64 / (1_u64 << 24) as f64)
    }
}

impl CommitCache {
    fn new(snapshot: Snapshot, keys: BTreeSet<Key>) -> Self {
        let (clock, mut nodes) = (snapshot.clock, snapshot.nodes);
        let known = keys.into_iter().map(|key| {
            let node = nodes.remove(&key).map(Node::bare);
            (key, node)
        });
        Self { clock, known: known.collect() }
    }

    /// Adds the earlier cache, if the clock is the same.
    fn with(mut self, before: Option<Self>) -> Self {
        for (key, node) in
            before.filter(|before| before.clock == self.clock).into_iter().flat_map(|cache| cache.known)
        {
            self.known.entry(key).or_insert(node);
        }
        self
    }
}

/// An ephemeral key, and something below it, in one transaction.
fn put_below(transaction: &Transaction, ephemeral: &Key) -> Error {
    let mut keys = transaction.operations.iter().map(crate::transaction::Operation::key);
    let below = keys.find(|key| key.is_below(ephemeral));
    Error::below_ephemeral(below.unwrap_or(ephemeral), ephemeral)
}
