//! The contract of every backend. The caller's part is in the crate's documentation.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::Result;
use crate::key::{Key, Scope};
use crate::session::SessionId;
use crate::transaction::{Entry, Expected, Transaction, Version};
use crate::watch::Watch;

/// What a backend takes at most. Checked before anything is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one value.
    pub max_value_bytes: usize,
    /// Bytes of all keys and values of one transaction.
    pub max_transaction_bytes: usize,
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The store's version that it shows.
    pub at: Version,
    /// Keys and entries, in key order.
    pub entries: Vec<(Key, Entry)>,
    /// Pass it as `after` for the next page; `None` at the end.
    pub next: Option<Key>,
}

/// How much a remark matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// An error: a coordinator does not start, or is wrong about the cluster.
    Wrong,
    /// It works, but others could do harm.
    Risky,
    /// It harms nobody, and could be tidied up.
    Untidy,
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wrong => "wrong",
            Self::Risky => "risky",
            Self::Untidy => "untidy",
        })
    }
}

/// A finding about a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Remark {
    /// How much it matters.
    pub weight: Weight,
    /// What it is, with the key, and the way out.
    pub what: String,
}

impl Remark {
    /// A remark of that weight; `what` names the key and the way out.
    #[must_use]
    pub fn new(weight: Weight, what: impl Into<String>) -> Self {
        Self { weight, what: what.into() }
    }
}

/// A store of small values with versions, sessions and watches.
///
/// Reads are linearizable (C1): a read that starts after a commit has returned sees that commit or a
/// later one. A transaction is all or nothing, for readers and for watches. Dropping the future of
/// [`commit`](Self::commit) leaves the outcome unknown.
#[async_trait]
pub trait Coordination: fmt::Debug + Send + Sync + 'static {
    /// A short name for messages and metrics: `embedded`, `etcd`, ….
    fn backend(&self) -> &'static str;

    /// What this backend takes at most.
    fn limits(&self) -> Limits;

    /// Whether a thread of its own renews each session. It can where a renewal takes only memory of this
    /// process: then a busy runtime costs no session.
    fn renews_apart(&self) -> bool {
        false
    }

    /// Opens a session that ends `ttl` after its last renewal. Most callers want
    /// [`Session::open`](crate::Session::open), which also renews it.
    async fn open_session(&self, ttl: Duration) -> Result<SessionId>;

    /// Gives the session its full time-to-live again, counted from when the backend gets the request: so
    /// never shorter than the owner counts (C4). A session that has ended stays ended.
    async fn renew_session(&self, session: SessionId) -> Result<()>;

    /// Ends the session now; its ephemeral keys are gone when this returns.
    async fn end_session(&self, session: SessionId) -> Result<()>;

    /// The entry at `key`.
    async fn read(&self, key: &Key) -> Result<Option<Entry>>;

    /// One page of the keys in `scope`, after the key `after`, at most `limit` of them (and at most
    /// [`MAX_PAGE_ENTRIES`](crate::limits::MAX_PAGE_ENTRIES)). Each page is of one version, all together are not;
    /// for that use a watch, whose first update is the whole content.
    async fn list(&self, scope: &Scope, after: Option<&Key>, limit: usize) -> Result<Listing>;

    /// True if a transaction of so many bytes has room now; changes no key. False if the backend cannot tell: only one
    /// on our own disk can, on others only a change finds it out.
    ///
    /// # Errors
    /// Why there is no room.
    async fn has_room(&self, bytes: u64) -> Result<bool> {
        let _ = bytes;
        Ok(false)
    }

    /// Commits all of the transaction, or none, and returns its version. A transaction without
    /// operations only checks its conditions.
    async fn commit(&self, transaction: Transaction) -> Result<Version>;

    /// Follows the keys in `scope`. Without `from` the first update is a resync with the current content.
    /// With it, updates start right after that version, or with a resync if that is not known any more.
    async fn watch(&self, scope: Scope, from: Option<Version>) -> Result<Watch>;

    /// Names addresses of possible peers. Gossip sends a message to those that it does not know; other backends
    /// do nothing.
    async fn add_peers(&self, peers: &[SocketAddr]) -> Result<()> {
        let _ = peers;
        Ok(())
    }

    /// How many messages this process refused, by reason, where a backend takes them from any sender.
    fn refused(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// The backend's own findings on this store's protection and content, for `partage check`.
    /// Changes nothing.
    async fn remarks(&self) -> Result<Vec<Remark>> {
        Ok(Vec::new())
    }

    /// Puts `value` at `key` if it is as `expected`.
    async fn compare_and_swap(&self, key: &Key, expected: Expected, value: Bytes) -> Result<Version> {
        self.commit(Transaction::new().when(key, expected).put(key, value)).await
    }

    /// Deletes `key` if it is as `expected`.
    async fn delete(&self, key: &Key, expected: Expected) -> Result<Version> {
        self.commit(Transaction::new().when(key, expected).delete(key)).await
    }
}
