//! The sessions of this handle: each is a ZooKeeper session with a client of its own.
//!
//! ZooKeeper's clients keep their sessions alive by themselves, for as long as the process lives. The contract wants
//! more: a session that its owner does not renew is over, though the process is well. So a timer ends such a
//! session here. When the process dies, or is cut off, nobody pings, and the server ends it.
//!
//! A renewal is a `sync` on the session's own connection: through whichever server to the leader and back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use zookeeper_client::{Client, Error as Fault, SessionState};

use super::connection::Connection;
use super::node::session_id;
use crate::error::{Error, Result};
use crate::limits::{ZOOKEEPER_PATIENCE, ZOOKEEPER_RETRY_PAUSE};
use crate::session::{SessionId, check_ttl};

/// Sessions that were opened here and have not ended.
#[derive(Debug)]
pub(super) struct Sessions {
    connection: Arc<Connection>,
    open: Mutex<BTreeMap<SessionId, Open>>,
}

#[derive(Debug)]
struct Open {
    client: Client,
    ttl: Duration,
    until: Instant,
    timer: JoinHandle<()>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.timer.abort();
    }
}

impl Sessions {
    pub fn new(connection: Arc<Connection>) -> Arc<Self> {
        Arc::new(Self { connection, open: Mutex::new(BTreeMap::new()) })
    }

    pub async fn open(self: &Arc<Self>, ttl: Duration) -> Result<SessionId> {
        check_ttl(ttl)?;
        let client = self.connection.client_for(ttl).await?;
        let granted = client.session_timeout();
        if granted < ttl {
            let what = format!(
                "{}: a session of {ttl:?} was asked for, and {granted:?} is the longest that is granted: choose a \
                 shorter one, or raise `maxSessionTimeout` of the servers",
                self.connection.target()
            );
            return Err(Error::Invalid { what });
        }
        let id = session_id(client.session_id().0);
        // The timer looks into the table: not before the session is in it.
        let mut table = self.table();
        let timer = tokio::spawn(end_in_time(Arc::downgrade(self), id));
        let open = Open { client, ttl, until: Instant::now() + ttl, timer };
        table.insert(id, open);
        Ok(id)
    }

    /// The client of a session that is not over by our own clock.
    pub fn client(&self, id: SessionId) -> Result<Client> {
        let table = self.table();
        let live =
            table.get(&id).filter(|open| Instant::now() < open.until && !open.client.state().is_terminated());
        live.map(|open| open.client.clone()).ok_or(Error::SessionEnded { session: id })
    }

    pub async fn renew(&self, id: SessionId) -> Result<()> {
        loop {
            let client = self.client(id)?;
            // What is asked while the connection is down is sent when it is there again.
            match client.sync(self.connection.root().as_str()).await {
                Ok(()) => {
                    let mut table = self.table();
                    let open = table.get_mut(&id).filter(|open| Instant::now() < open.until);
                    let open = open.ok_or(Error::SessionEnded { session: id })?;
                    open.until = Instant::now() + open.ttl;
                    return Ok(());
                }
                Err(Fault::SessionExpired | Fault::ClientClosed) => {
                    self.forget(id);
                    return Err(Error::SessionEnded { session: id });
                }
                Err(fault) => {
                    tracing::debug!(session = %id, %fault, "not renewed, asking again");
                    sleep(ZOOKEEPER_RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Ends it, and waits until the server says that it is over.
    pub async fn end(&self, id: SessionId) -> Result<()> {
        self.client(id)?;
        let Some(mut states) = self.forget(id).map(|client| client.state_watcher()) else {
            return Err(Error::SessionEnded { session: id });
        };
        let over = timeout(ZOOKEEPER_PATIENCE, async {
            loop {
                match states.changed().await {
                    SessionState::Closed => return Ok(()),
                    state if state.is_terminated() => return Err(Error::SessionEnded { session: id }),
                    _ => {}
                }
            }
        });
        let what = || format!("{}: session {id} was to end, and nothing came back", self.connection.target());
        over.await.unwrap_or_else(|_| Err(Error::Indefinite { what: what() }))
    }

    /// Takes a session out of the table. Once nobody holds its client, the server is told to end it.
    pub fn forget(&self, id: SessionId) -> Option<Client> {
        self.table().remove(&id).map(|open| open.client.clone())
    }

    fn table(&self) -> std::sync::MutexGuard<'_, BTreeMap<SessionId, Open>> {
        // Whoever panicked with it left it whole: every change is one insert, one remove or one number.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the session as soon as its owner has not renewed it in time.
async fn end_in_time(sessions: Weak<Sessions>, id: SessionId) {
    loop {
        let until = {
            let Some(sessions) = sessions.upgrade() else { return };
            let table = sessions.table();
            let Some(until) = table.get(&id).map(|open| open.until) else { return };
            until
        };
        if Instant::now() >= until {
            tracing::info!(session = %id, "session ended: it was not renewed in time");
            if let Some(sessions) = sessions.upgrade() {
                // This task is aborted by it, at its next await: there is none.
                drop(sessions.forget(id));
            }
            return;
        }
        sleep_until(until).await;
    }
}
