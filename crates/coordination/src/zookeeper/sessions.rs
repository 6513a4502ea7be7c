//! The sessions of this handle: each is a ZooKeeper session with a client of its own.
//!
//! ZooKeeper's clients keep their sessions alive by themselves, for as long as the process lives. The contract wants
//! more: a session that its owner does not renew is over, though the process is well. So a timer ends such a
//! session here. When the process dies, or is cut off, another handle ends it, or the server does; see
//! `marks`.
//!
//! A renewal writes the session's mark, on the session's own connection: through any server to the leader and back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use partage_clock::{Instant, sleep_until};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use zookeeper_client::{Client, Error as Fault, SessionState};

use super::connection::Connection;
use super::marks::{self, Mark};
use super::node::session_id;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::limits::{ZOOKEEPER_MAX_SESSION_KEYS, ZOOKEEPER_PATIENCE, ZOOKEEPER_RETRY_PAUSE};
use crate::session::{SessionId, check_ttl};

/// Sessions that were opened here and have not ended.
#[derive(Debug)]
pub(super) struct Sessions {
    connection: Arc<Connection>,
    open: Mutex<BTreeMap<SessionId, Open>>,
    /// Ends the sessions of others, from our first one on.
    watching: OnceLock<JoinHandle<()>>,
}

impl Drop for Sessions {
    fn drop(&mut self) {
        if let Some(watching) = self.watching.get() {
            watching.abort();
        }
    }
}

#[derive(Debug)]
struct Open {
    client: Client,
    mark: Mark,
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
        Arc::new(Self { connection, open: Mutex::default(), watching: OnceLock::new() })
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
        let mark = Mark { ttl, keys: BTreeSet::new() };
        self.connection.answered(marks::make(&self.connection, &client, &mark)).await?;
        let watch = || tokio::spawn(marks::keep_watch(Arc::clone(&self.connection), Arc::downgrade(self)));
        self.watching.get_or_init(watch);
        // The timer looks into the table: not before the session is in it.
        let mut table = self.table();
        let timer = tokio::spawn(end_in_time(Arc::downgrade(self), id));
        let open = Open { client, mark, until: Instant::now() + ttl, timer };
        table.insert(id, open);
        Ok(id)
    }

    /// The sessions that are not over.
    pub fn ids(&self) -> BTreeSet<SessionId> {
        self.table().keys().copied().collect()
    }

    /// The client of a session that is not over by our own clock.
    pub fn client(&self, id: SessionId) -> Result<Client> {
        self.with(id, |open| Ok(open.client.clone()))
    }

    /// Its client, and the mark that is to be written with `keys`, which it is about to put.
    pub fn adopt(&self, id: SessionId, keys: BTreeSet<Key>) -> Result<(Client, Vec<u8>)> {
        self.with(id, |open| {
            let size = open.mark.keys.union(&keys).count();
            if size > ZOOKEEPER_MAX_SESSION_KEYS {
                let what = "the number of ephemeral keys that a session has put".to_owned();
                return Err(Error::TooLarge { what, size, limit: ZOOKEEPER_MAX_SESSION_KEYS });
            }
            open.mark.keys.extend(keys);
            Ok((open.client.clone(), open.mark.to_bytes()))
        })
    }

    fn with<T>(&self, id: SessionId, use_it: impl FnOnce(&mut Open) -> Result<T>) -> Result<T> {
        let mut table = self.table();
        let live = |open: &&mut Open| Instant::now() < open.until && !open.client.state().is_terminated();
        use_it(table.get_mut(&id).filter(live).ok_or(Error::SessionEnded { session: id })?)
    }

    pub async fn renew(&self, id: SessionId) -> Result<()> {
        let path = marks::path(&self.connection, id);
        loop {
            // Sent with the table locked: a mark with fewer keys never comes after one with more. The client sends it
            // after a reconnect if the connection is down.
            let writing =
                self.with(id, |open| Ok(open.client.set_data(&path, &open.mark.to_bytes(), None)))?;
            match writing.await {
                Ok(_) => {
                    return self.with(id, |open| {
                        open.until = Instant::now() + open.mark.ttl;
                        Ok(())
                    });
                }
                // No mark: it is over.
                Err(Fault::SessionExpired | Fault::ClientClosed | Fault::NoNode) => {
                    self.close(id);
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
        let Some(mut states) = self.close(id).map(|client| client.state_watcher()) else {
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

    /// Takes a session out of the table. When its last client is dropped, the library ends it.
    pub fn close(&self, id: SessionId) -> Option<Client> {
        self.table().remove(&id).map(|open| open.client.clone())
    }

    fn table(&self) -> std::sync::MutexGuard<'_, BTreeMap<SessionId, Open>> {
        // A panic leaves it whole: every change is one insert, one remove or one number.
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
                // This aborts the task at its next await: there is none.
                drop(sessions.close(id));
            }
            return;
        }
        sleep_until(until).await;
    }
}
