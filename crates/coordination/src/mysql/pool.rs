//! Connections that are kept: a bounded number, the one that rested longest first.
//!
//! A connection goes back only when its user gives it back, after success. One that was cut off in the
//! middle (an error, a deadline, a caller that stopped waiting) is closed, and so the server rolls back
//! what was not committed.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use crate::error::Error;
use crate::limits::{MYSQL_IDLE, MYSQL_STATEMENT};

use super::access::Access;
use super::connection::RootConnection;
use super::fault::{Attempt, Fault};

/// Some connections to one target.
#[derive(Debug)]
pub(super) struct Pool {
    access: Arc<Access>,
    permits: Semaphore,
    idle: Mutex<VecDeque<(Instant, RootConnection)>>,
}

impl Pool {
    pub fn new(access: Arc<Access>, bound: usize) -> Self {
        Self { access, permits: Semaphore::new(bound), idle: Mutex::default() }
    }

    /// A connection for the caller alone.
    pub async fn take(&self) -> Attempt<PooledConnection<'_>> {
        let Ok(Ok(permit)) = timeout(MYSQL_STATEMENT, self.permits.acquire()).await else {
            let what =
                format!("{}: all connections were busy for {MYSQL_STATEMENT:?}", self.access.location());
            return Err(Fault::Final(Error::Unavailable { what }));
        };
        let connection = match self.take_idle() {
            Some(connection) => connection,
            None => self.access.open().await?,
        };
        Ok(PooledConnection { pool: self, connection: Some(connection), _permit: permit })
    }

    /// A kept connection that the server has probably not closed yet.
    fn take_idle(&self) -> Option<RootConnection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        idle.retain(|(since, _)| now < *since + MYSQL_IDLE);
        idle.pop_front().map(|(_, connection)| connection)
    }

    /// After one connection broke: the others are of the same server.
    pub fn forget(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A connection in use. Dropped, it is closed.
#[derive(Debug)]
pub(super) struct PooledConnection<'a> {
    pool: &'a Pool,
    connection: Option<RootConnection>,
    _permit: SemaphorePermit<'a>,
}

impl PooledConnection<'_> {
    /// Nothing is under way on it: the next may have it.
    pub fn give_back(mut self) {
        if let Some(connection) = self.connection.take() {
            let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push_back((Instant::now(), connection));
        }
    }
}

impl Deref for PooledConnection<'_> {
    type Target = RootConnection;
    fn deref(&self) -> &RootConnection {
        self.connection.as_ref().expect("taken only when it is given back")
    }
}

impl DerefMut for PooledConnection<'_> {
    fn deref_mut(&mut self) -> &mut RootConnection {
        self.connection.as_mut().expect("taken only when it is given back")
    }
}
