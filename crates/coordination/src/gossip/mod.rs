//! The gossip backend: which nodes are there and what they hold, with no service at all.
//!
//! Each process publishes its keys and passes on those of others; after a moment all have them. No process
//! knows the current state, so gossip decides nothing: there are no conditions, no lasting keys, no
//! elections. That is enough where every node computes its own share (leaderless datasets), and for no more.
//!
//! ```text
//! publish ──► our own state ──► three neighbours, four times a second ──► everybody's mirror ──► read, list, watch
//! ```
//!
//! Offered: one session for each handle, ephemeral keys put and deleted one at a time by the handle they belong to, read, list
//! and watch of the mirror. Everything else is [`Error::Unsupported`] by name. Weaker than the contract says:
//!
//! - Reads are of the mirror, which may be arbitrarily stale; C1 and C2 are not offered.
//! - Versions count the changes of one handle's mirror, and mean nothing to another handle.
//! - A node that is cut off sees the others go, and they it, while its session lives on: C4 holds towards
//!   the owner itself only.
//! - A key that two handles publish shows the entry of the session with the larger number.
//!
//! The protocol is Quickwit's `chitchat`: Scuttlebutt reconciliation and an accrual failure detector, over UDP; behind a
//! shared key if there is one ([`keys`]). Without a key anyone who can send datagrams to it can say anything: keep it on a
//! network of its own.

pub mod keys;
mod mirror;
mod refused;
mod seal;
mod transport;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chitchat::{
    ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, ProtocolVersion, spawn_chitchat,
};
use partage_clock::{Instant, sleep_until};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::claim::ClusterId;
use crate::contract::{Coordination, Limits, Listing};
use crate::error::{Error, Result};
use crate::key::{Key, Scope};
use crate::limits::{
    GOSSIP_BOUND, GOSSIP_INTERVAL, GOSSIP_KEYS_EVERY, GOSSIP_MAX_INTERVAL, GOSSIP_MAX_KEYS,
    GOSSIP_MAX_VALUE_BYTES, GOSSIP_MEMORY, GOSSIP_SILENT_INTERVALS, GOSSIP_WINDOW, MAX_KEY_BYTES,
    MAX_PAGE_ENTRIES,
};
use crate::session::{SessionId, check_ttl};
use crate::target::{Listen, Target};
use crate::transaction::{Entry, Operation, Transaction, Version};
use crate::watch::Watch;

use keys::{Keys, KeysError};
use mirror::{Follower, Mirror, Published};
use refused::Refused;
use transport::SealedTransport;

/// How long after its end a session is gone on nodes that are not cut off.
pub const EXPIRY_BOUND: Duration = GOSSIP_BOUND;

/// One node of the cluster. Dropped, it falls silent, and the others take it for dead.
pub struct Gossip {
    shared: Arc<Shared>,
    at: Listen,
    tasks: Vec<JoinHandle<()>>,
}

struct Shared {
    node: ChitchatHandle,
    refused: Arc<Refused>,
    mirror: watch::Sender<Arc<Mirror>>,
    session: Mutex<Option<Open>>,
    session_changed: tokio::sync::Notify,
    /// Held for each change and each read of our own state.
    turn: tokio::sync::Mutex<()>,
}

/// The session of this handle, which has one at most.
#[derive(Clone, Copy, Debug)]
struct Open {
    id: SessionId,
    ttl: Duration,
    until: Instant,
}

impl fmt::Debug for Gossip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gossip").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Gossip {
    /// Listens, and begins to send to the hosts of the target. It is no error if none answers: the first of
    /// a cluster is alone. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it cannot listen on the address, [`Error::Invalid`] if others cannot reach
    /// that address.
    pub async fn join(target: &Target) -> Result<Arc<Self>> {
        let at = match target.listen {
            Some(at) => at,
            None => free_loopback(target)?,
        };
        if at.advertise.ip().is_unspecified() || at.advertise.port() == 0 {
            let what = format!(
                "{target}: no other node can reach this one at {}: name the address that others see",
                at.advertise
            );
            return Err(Error::Invalid { what });
        }
        // Each start is a new node: the keys of the one before end with it.
        let life = ClusterId::random();
        let id = ChitchatId::new(life.to_string(), 0, at.advertise);
        let keys = match &target.gossip_key_file {
            Some(path) => Some(watch::Sender::new(read_keys(path).await.map_err(unusable)?)),
            None => None,
        };
        let refused = Arc::<Refused>::default();
        let transport = SealedTransport {
            cluster: target.root.to_string(),
            sender: life.0,
            keys: keys.as_ref().map(watch::Sender::subscribe),
            refused: Arc::clone(&refused),
        };
        let config = ChitchatConfig {
            chitchat_id: id,
            cluster_id: target.root.to_string(),
            gossip_interval: GOSSIP_INTERVAL,
            listen_addr: at.at,
            seed_nodes: target.hosts.iter().map(ToString::to_string).collect(),
            failure_detector_config: FailureDetectorConfig::new(
                GOSSIP_SILENT_INTERVALS,
                GOSSIP_WINDOW,
                GOSSIP_MAX_INTERVAL,
                GOSSIP_INTERVAL,
                GOSSIP_MEMORY,
            ),
            marked_for_deletion_grace_period: GOSSIP_MEMORY,
            catchup_callback: None,
            extra_liveness_predicate: None,
            protocol_version: ProtocolVersion::V1,
        };
        let node = spawn_chitchat(config, Vec::new(), &transport).await;
        let node = node.map_err(|error| Error::Unavailable { what: format!("{target}: {error:#}") })?;
        let shared = Arc::new(Shared {
            node,
            refused,
            mirror: watch::Sender::default(),
            session: Mutex::default(),
            session_changed: tokio::sync::Notify::new(),
            turn: tokio::sync::Mutex::default(),
        });
        let mut tasks =
            vec![tokio::spawn(follow(Arc::clone(&shared))), tokio::spawn(expire(Arc::clone(&shared)))];
        if let (Some(keys), Some(path)) = (keys, target.gossip_key_file.clone()) {
            tasks.push(tokio::spawn(reread(path, keys)));
        }
        Ok(Arc::new(Self { shared, at, tasks }))
    }

    /// Where it listens, and where others reach it.
    #[must_use]
    pub fn at(&self) -> Listen {
        self.at
    }
}

impl Drop for Gossip {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.shared.node.abort();
    }
}

/// A free port on loopback.
fn free_loopback(target: &Target) -> Result<Listen> {
    let free = std::net::UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let at: SocketAddr = free.map_err(|error| Error::Unavailable { what: format!("{target}: {error}") })?;
    Ok(Listen { at, advertise: at })
}

async fn read_keys(path: &Path) -> std::result::Result<Keys, KeysError> {
    let (path, unread) = (path.to_owned(), path.to_owned());
    let read = tokio::task::spawn_blocking(move || Keys::read(&path)).await;
    read.unwrap_or_else(|panic| Err(KeysError::Malformed { path: unread, what: panic.to_string() }))
}

fn unusable(error: KeysError) -> Error {
    Error::Invalid { what: error.to_string() }
}

/// Takes new keys from the file as soon as they are there. While the file is unusable it keeps its keys.
async fn reread(path: PathBuf, keys: watch::Sender<Keys>) {
    let mut wrong = String::new();
    loop {
        sleep_until(Instant::now() + GOSSIP_KEYS_EVERY).await;
        match read_keys(&path).await {
            Ok(new) => {
                wrong.clear();
                if *keys.borrow() != new {
                    tracing::info!(path = %path.display(), "gossip has other keys from now on");
                    keys.send_replace(new);
                }
            }
            Err(error) if error.to_string() != wrong => {
                wrong = error.to_string();
                tracing::warn!(%error, "gossip goes on with the keys that it has");
            }
            Err(_) => {}
        }
    }
}

/// Updates the mirror from the neighbours.
async fn follow(shared: Arc<Shared>) {
    let mut live = shared.node.with_chitchat(|node| node.live_nodes_watcher()).await;
    // The sender lives as long as the node.
    while live.changed().await.is_ok() {
        live.borrow_and_update();
        let _turn = shared.turn.lock().await;
        shared.look().await;
    }
}

/// Ends our session when it was not renewed.
async fn expire(shared: Arc<Shared>) {
    loop {
        let until = shared.open().map(|open| open.until);
        tokio::select! {
            () = shared.session_changed.notified() => continue,
            () = async { match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            } } => {}
        }
        let _turn = shared.turn.lock().await;
        if let Some(open) = shared.open().filter(|open| open.until <= Instant::now()) {
            tracing::info!(session = %open.id, "session ended: it was not renewed in time");
            shared.set(None);
            shared.withdraw().await;
        }
    }
}

impl Shared {
    fn open(&self) -> Option<Open> {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, open: Option<Open>) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = open;
        self.session_changed.notify_one();
    }

    /// Our session, if it is this one and its time is not over.
    fn live(&self, session: SessionId) -> Result<Open> {
        let open = self.open().filter(|open| open.id == session && Instant::now() < open.until);
        open.ok_or(Error::SessionEnded { session })
    }

    /// Deletes every key that this handle publishes, then updates the mirror.
    async fn withdraw(&self) {
        self.node
            .with_chitchat(|node| {
                let state = node.self_node_state();
                let keys: Vec<String> = state.key_values().map(|(key, _)| key.to_owned()).collect();
                keys.iter().for_each(|key| state.delete(key));
            })
            .await;
        self.look().await;
    }

    /// Folds the known state into the mirror. Call it with `turn` held.
    async fn look(&self) -> Version {
        let found = self
            .node
            .with_chitchat(|node| {
                let live = node.live_nodes().filter_map(|id| node.node_state(id));
                mirror::merge(live.flat_map(|state| state.key_values()))
            })
            .await;
        let old = Arc::clone(&self.mirror.borrow());
        match old.next(found) {
            None => old.version(),
            Some(new) => {
                let version = new.version();
                self.mirror.send_replace(Arc::new(new));
                version
            }
        }
    }

    /// Publishes or deletes one key of ours.
    async fn change(&self, operation: Operation) -> Result<Version> {
        let _turn = self.turn.lock().await;
        let mirror = Arc::clone(&self.mirror.borrow());
        match operation {
            Operation::Put { session: None, .. } => return Err(unsupported("lasting keys")),
            Operation::Put { key, value, session: Some(session) } => {
                self.live(session)?;
                mirror.check_shape(&key)?;
                let text = Published { session, value }.to_text();
                let put = self.node.with_chitchat(|node| {
                    let state = node.self_node_state();
                    let count = state.key_values().count();
                    let room = count < GOSSIP_MAX_KEYS || state.get(key.as_str()).is_some();
                    if room {
                        state.set(key.as_str(), &text);
                    }
                    (room, count)
                });
                if let (false, count) = put.await {
                    let what = "the number of keys that one handle publishes".to_owned();
                    return Err(Error::TooLarge { what, size: count + 1, limit: GOSSIP_MAX_KEYS });
                }
            }
            Operation::Delete { key } => {
                let ours = self.node.with_chitchat(|node| {
                    let state = node.self_node_state();
                    let ours = state.get(key.as_str()).is_some();
                    if ours {
                        state.delete(key.as_str());
                    }
                    ours
                });
                if !ours.await && mirror.read(&key).is_some() {
                    return Err(unsupported("deletes of keys that another handle publishes"));
                }
            }
        }
        Ok(self.look().await)
    }
}

fn unsupported(what: &'static str) -> Error {
    Error::Unsupported { backend: "gossip", what }
}

#[async_trait]
impl Coordination for Gossip {
    fn backend(&self) -> &'static str {
        "gossip"
    }

    fn limits(&self) -> Limits {
        Limits {
            max_value_bytes: GOSSIP_MAX_VALUE_BYTES,
            max_transaction_bytes: GOSSIP_MAX_VALUE_BYTES + MAX_KEY_BYTES,
        }
    }

    async fn open_session(&self, ttl: Duration) -> Result<SessionId> {
        check_ttl(ttl)?;
        let _turn = self.shared.turn.lock().await;
        if self.shared.open().is_some_and(|open| Instant::now() < open.until) {
            return Err(unsupported("a second session on one handle"));
        }
        // One that is over and was not ended yet.
        self.shared.withdraw().await;
        let id = SessionId::new(ClusterId::random().0);
        self.shared.set(Some(Open { id, ttl, until: Instant::now() + ttl }));
        Ok(id)
    }

    async fn renew_session(&self, session: SessionId) -> Result<()> {
        let _turn = self.shared.turn.lock().await;
        let open = self.shared.live(session)?;
        self.shared.set(Some(Open { until: Instant::now() + open.ttl, ..open }));
        Ok(())
    }

    async fn end_session(&self, session: SessionId) -> Result<()> {
        let _turn = self.shared.turn.lock().await;
        self.shared.live(session)?;
        self.shared.set(None);
        self.shared.withdraw().await;
        Ok(())
    }

    async fn read(&self, key: &Key) -> Result<Option<Entry>> {
        Ok(self.shared.mirror.borrow().read(key))
    }

    async fn list(&self, scope: &Scope, after: Option<&Key>, limit: usize) -> Result<Listing> {
        Ok(self.shared.mirror.borrow().list(scope, after, limit.clamp(1, MAX_PAGE_ENTRIES)))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Version> {
        transaction.check(&self.limits())?;
        if !transaction.conditions.is_empty() {
            return Err(unsupported("conditions"));
        }
        let mut operations = transaction.operations.into_iter();
        match (operations.next(), operations.next()) {
            (None, _) => Ok(self.shared.mirror.borrow().version()),
            (Some(operation), None) => self.shared.change(operation).await,
            (Some(_), Some(_)) => Err(unsupported("several changes in one transaction")),
        }
    }

    async fn watch(&self, scope: Scope, _from: Option<Version>) -> Result<Watch> {
        // A cursor is of a mirror that may be gone: each watch begins with the whole content.
        Ok(Box::new(Follower::new(self.shared.mirror.subscribe(), scope)))
    }

    fn refused(&self) -> Vec<(&'static str, u64)> {
        self.shared.refused.counts().map(|(reason, count)| (reason.name(), count)).collect()
    }

    async fn add_peers(&self, peers: &[SocketAddr]) -> Result<()> {
        let known: BTreeSet<SocketAddr> = self
            .shared
            .node
            .with_chitchat(|node| node.live_nodes().map(|id| id.gossip_advertise_addr).collect())
            .await;
        for peer in peers.iter().filter(|at| **at != self.at.advertise && !known.contains(at)) {
            // It fails only when the node has ended.
            let greeted = self.shared.node.gossip(*peer);
            greeted.map_err(|error| Error::Unavailable { what: format!("gossip: {error:#}") })?;
        }
        Ok(())
    }
}
