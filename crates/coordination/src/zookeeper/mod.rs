//! The ZooKeeper backend: for clusters that run ZooKeeper 3.6 or later.
//!
//! Keys are znodes below a root, versions are ZooKeeper's transaction ids, sessions are its sessions. A
//! transaction is one `multi`, conditioned on a clock (the root's data version) that each advances; so of two that are
//! based on the same read, one fails, and reads again.
//!
//! ```text
//! commit ──► plan (pure) ──► multi: clock, checks, deletes, creates, sets ──► known from now on
//! read, list ──► sync + multiRead: many znodes, one moment
//! watch ──► events: which keys ──► multiRead ──► what differs from the last report
//! ```
//!
//! By file: `node` stored forms, `plan` steps of a transaction, `snapshot` reading, `commit` writing, `rights` ACLs,
//! `sessions`, `marks` their ends, `feed` events, `follower` one watch, `connection` reaching the servers.
//!
//! Not done: several commits in one `multi` (one leader writes, little), znodes that the server removes by
//! itself when they are empty (a key must never lie in one), SASL (digest and certificates do).

mod commit;
mod connection;
mod feed;
mod follower;
mod marks;
mod node;
mod plan;
mod rights;
mod sessions;
mod snapshot;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OnceCell;

use crate::contract::{Coordination, Limits, Listing, Remark};
use crate::error::Result;
use crate::key::{Key, Scope};
use crate::limits::{MAX_PAGE_ENTRIES, ZOOKEEPER_MAX_TRANSACTION_BYTES, ZOOKEEPER_MAX_VALUE_BYTES};
use crate::session::SessionId;
use crate::target::Target;
use crate::transaction::{Entry, Transaction, Version};
use crate::watch::Watch;

use commit::Committer;
use connection::Connection;
use feed::Feed;
use follower::Follower;
use sessions::Sessions;
use snapshot::{read_nodes, read_scope};

/// A handle to a root in ZooKeeper. Dropping the last one ends its sessions.
#[derive(Debug)]
pub struct ZooKeeper {
    connection: Arc<Connection>,
    sessions: Arc<Sessions>,
    committer: Committer,
    /// Started by the first watch of this handle.
    feed: OnceCell<Arc<Feed>>,
}

impl ZooKeeper {
    /// Connects, and makes the root if it is not there. Needs a tokio runtime.
    pub async fn open(target: &Target) -> Result<Arc<Self>> {
        let connection = Arc::new(Connection::open(target).await?);
        let seed = connection.client().await?.session_id().0.cast_unsigned();
        let sessions = Sessions::new(Arc::clone(&connection));
        let committer = Committer::new(Arc::clone(&connection), Arc::clone(&sessions), seed);
        Ok(Arc::new(Self { connection, sessions, committer, feed: OnceCell::new() }))
    }
}

#[async_trait]
impl Coordination for ZooKeeper {
    fn backend(&self) -> &'static str {
        "zookeeper"
    }

    fn limits(&self) -> Limits {
        Limits {
            max_value_bytes: ZOOKEEPER_MAX_VALUE_BYTES,
            max_transaction_bytes: ZOOKEEPER_MAX_TRANSACTION_BYTES,
        }
    }

    async fn open_session(&self, ttl: Duration) -> Result<SessionId> {
        self.sessions.open(ttl).await
    }

    async fn renew_session(&self, session: SessionId) -> Result<()> {
        self.sessions.renew(session).await
    }

    async fn end_session(&self, session: SessionId) -> Result<()> {
        self.sessions.end(session).await
    }

    async fn read(&self, key: &Key) -> Result<Option<Entry>> {
        let (connection, keys) = (&self.connection, &[key.clone()].into());
        let reading = |client| async move { read_nodes(connection, &client, keys, true).await };
        let snapshot = self.connection.reading(reading).await?;
        snapshot.nodes.get(key).map_or(Ok(None), |node| node.entry(key))
    }

    /// Reads the whole scope for each page: what coordination keeps is small.
    async fn list(&self, scope: &Scope, after: Option<&Key>, limit: usize) -> Result<Listing> {
        let connection = &self.connection;
        let reading = |client| async move { read_scope(connection, &client, scope, [], true).await };
        let snapshot = self.connection.reading(reading).await?;
        let mut entries = snapshot.entries(scope)?;
        entries.retain(|(key, _)| after.is_none_or(|after| key > after));
        let limit = limit.clamp(1, MAX_PAGE_ENTRIES);
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = entries.last().filter(|_| more).map(|(key, _)| key.clone());
        Ok(Listing { at: snapshot.at(), entries, next })
    }

    async fn commit(&self, transaction: Transaction) -> Result<Version> {
        transaction.check(&self.limits())?;
        self.committer.commit(transaction).await
    }

    async fn remarks(&self) -> Result<Vec<Remark>> {
        self.connection.answered(rights::remarks(&self.connection)).await
    }

    async fn watch(&self, scope: Scope, from: Option<Version>) -> Result<Watch> {
        let start = async || Feed::start(Arc::clone(&self.connection));
        let feed = self.feed.get_or_init(start).await;
        let subscription = feed.subscribe(scope.clone())?;
        Ok(Box::new(Follower::new(subscription, scope, from)))
    }
}
