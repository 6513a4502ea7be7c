//! The MySQL and MariaDB backend: rows with versions, in tables of our own.
//!
//! A transaction first locks the one row of the root, so that changes have an order; readers take no lock. Every handle
//! polls the root a few times a second for changes.
//!
//! ```text
//! commit ──► lock the root's row ──► read, decide ──► write, COMMIT ──► the server's disk
//! read, list ──► one statement
//! watch ──► the poller reads the root's version ──► the keys that changed since the cursor, as they are now
//! session ──► a row with an end by the server's clock; the next transaction ends those that are over
//! ```
//!
//! Several roots live in one database and never meet: every row carries the number of its root.
//!
//! Not done: `GET_LOCK` for the lead (it dies with a connection and fences nothing); triggers or procedures (they
//! would have to be kept in step with the program); reads from replicas (they are late).

mod access;
mod commit;
mod connection;
mod decide;
mod fault;
mod poller;
mod pool;
mod read;
mod rights;
mod schema;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::MySqlRow;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::contract::{Coordination, Limits, Listing, Remark};
use crate::error::{Error, Result};
use crate::key::{Key, Scope};
use crate::limits::{
    MAX_PAGE_ENTRIES, MYSQL_ATTEMPT_PAUSE, MYSQL_ATTEMPTS, MYSQL_CONNECTIONS, MYSQL_HEARTBEAT_CONNECTIONS,
    MYSQL_MAX_TRANSACTION_BYTES, MYSQL_MAX_VALUE_BYTES, MYSQL_PACKET_MARGIN_BYTES,
};
use crate::session::{SessionId, check_ttl};
use crate::target::Target;
use crate::transaction::{Entry, Transaction, Version};
use crate::watch::Watch;

use access::Access;
use connection::RootConnection;
use fault::{Attempt, Fault};
use poller::{Follower, Known, RootPoller};
use pool::Pool;

pub use sessions::EXPIRY_BOUND;

/// A handle to one root in one database.
#[derive(Debug)]
pub struct MySql {
    shared: Arc<Shared>,
    limits: Limits,
    poller: Arc<RootPoller>,
}

/// What calls, watches and the poller share.
#[derive(Debug)]
struct Shared {
    work: Pool,
    heartbeat: Pool,
    known: watch::Sender<Known>,
}

impl MySql {
    /// Connects, makes or migrates the tables, and finds the root. Needs a tokio runtime.
    ///
    /// # Errors
    /// Each names the target: [`Error::Unavailable`] if no host can be reached or all are replicas,
    /// [`Error::Denied`] for a wrong user, password, database or certificate and for missing rights,
    /// [`Error::Invalid`] for tables that are not ours or of a later version, and for a server set too small.
    pub async fn connect(target: &Target) -> Result<Arc<Self>> {
        let access = Arc::new(Access::new(target)?);
        let first = access.open().await.map_err(Fault::into_error)?;
        let packet_bytes = first.packet_bytes();
        drop(first);
        access.rely_on(packet_bytes);
        let max_value_bytes = MYSQL_MAX_VALUE_BYTES.min(packet_bytes - MYSQL_PACKET_MARGIN_BYTES);
        let limits = Limits { max_value_bytes, max_transaction_bytes: MYSQL_MAX_TRANSACTION_BYTES };
        let shared = Arc::new(Shared {
            work: Pool::new(Arc::clone(&access), MYSQL_CONNECTIONS),
            heartbeat: Pool::new(access, MYSQL_HEARTBEAT_CONNECTIONS),
            known: watch::Sender::default(),
        });
        let poller = Arc::new(RootPoller::start(Arc::clone(&shared)));
        Ok(Arc::new(Self { shared, limits, poller }))
    }
}

impl Shared {
    /// Tries until success, a final error, or too many attempts.
    async fn repeatedly<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Attempt<T>>,
    {
        let mut turn = 1;
        loop {
            match attempt().await {
                Ok(done) => return Ok(done),
                Err(fault @ (Fault::Passing(_) | Fault::Broken(_))) if turn < MYSQL_ATTEMPTS => {
                    if matches!(fault, Fault::Broken(_)) {
                        self.work.forget();
                        self.heartbeat.forget();
                    }
                    sleep(MYSQL_ATTEMPT_PAUSE * turn).await;
                    turn += 1;
                }
                Err(fault) => return Err(fault.into_error()),
            }
        }
    }

    /// A transaction of this handle has got `version`: its watches need not wait for the next poll.
    fn learned(&self, version: Version) {
        self.known.send_if_modified(|known| {
            let newer = known.version < version;
            known.version = known.version.max(version);
            newer
        });
    }
}

/// The session of a row.
fn session_of(number: u64) -> SessionId {
    SessionId::new(u128::from(number))
}

/// The key in a column.
fn key_of(connection: &RootConnection, row: &MySqlRow, column: usize) -> Attempt<Key> {
    let path: &[u8] = connection.get(row, column)?;
    let key = std::str::from_utf8(path).ok().and_then(|path| Key::new(path).ok());
    key.ok_or_else(|| {
        let path = String::from_utf8_lossy(path);
        let what =
            format!("{}: the path {path:?} in `partage_keys` is no key: delete it", connection.location());
        Fault::Final(Error::Invalid { what })
    })
}

#[async_trait]
impl Coordination for MySql {
    fn backend(&self) -> &'static str {
        "mysql"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    async fn open_session(&self, ttl: Duration) -> Result<SessionId> {
        check_ttl(ttl)?;
        self.shared.open_session(ttl).await
    }

    async fn renew_session(&self, session: SessionId) -> Result<()> {
        self.shared.renew_session(session).await
    }

    async fn end_session(&self, session: SessionId) -> Result<()> {
        self.shared.end_session(session).await
    }

    async fn read(&self, key: &Key) -> Result<Option<Entry>> {
        self.shared.read(key).await
    }

    async fn list(&self, scope: &Scope, after: Option<&Key>, limit: usize) -> Result<Listing> {
        self.shared.list(scope, after, limit.clamp(1, MAX_PAGE_ENTRIES)).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Version> {
        transaction.check(&self.limits)?;
        self.shared.commit(transaction).await
    }

    async fn remarks(&self) -> Result<Vec<Remark>> {
        let looked =
            self.shared.repeatedly(async || rights::look(&mut *self.shared.work.take().await?).await);
        Ok(looked.await?.remarks())
    }

    async fn watch(&self, scope: Scope, from: Option<Version>) -> Result<Watch> {
        Ok(Box::new(Follower::new(Arc::clone(&self.shared), Arc::clone(&self.poller), scope, from)))
    }
}
