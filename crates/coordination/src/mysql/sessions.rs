//! Sessions: rows with an end, by the clock of the server and no other.
//!
//! `UTC_TIMESTAMP(6)` is the moment at which a statement began, whatever time zone is set. That is the right one
//! of the server's two: `SYSDATE(6)`, the moment of evaluation, is not safe to replicate by statement. A statement
//! that had to wait for a lock so counts from before the wait: the end of a session is then judged too late, never
//! too early; and what must be judged after the lock of the root asks in a statement after it.
//!
//! The owner counts from before it asks, the server from when it is asked: the owner gives up first (C4). If the
//! server's clock goes back, the poller shortens sessions to a time-to-live from now, so that the dead do
//! not stay for as long as the step. If it goes forward by more than the time-to-live, sessions end early: the
//! page in the book says so.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::limits::{MYSQL_MAX_SESSIONS, MYSQL_POLL};
use crate::session::SessionId;
use crate::transaction::Version;

use super::commit::number_of;
use super::fault::Attempt;
use super::{Shared, session_of};

/// What one read of the root shows.
#[derive(Debug)]
pub(super) struct RootState {
    pub version: Version,
    /// Some session is over and has not been ended.
    pub over: bool,
    /// The server's clock, in microseconds.
    pub now: i64,
}

impl Shared {
    pub async fn open_session(&self, ttl: Duration) -> Result<SessionId> {
        self.repeatedly(|| self.try_open(ttl)).await
    }

    async fn try_open(&self, ttl: Duration) -> Attempt<SessionId> {
        let mut locked = self.lock().await?;
        let (root, micros, number) = (locked.root(), ttl.as_micros(), locked.last_session + 1);
        let open = locked
            .rows(&format!("SELECT CAST(COUNT(*) AS UNSIGNED) FROM partage_sessions WHERE root = {root}"))
            .await?;
        let open = open.first().and_then(|open| usize::try_from(*open).ok()).unwrap_or(usize::MAX);
        if open >= MYSQL_MAX_SESSIONS {
            locked.abandon().await?;
            let what = "the number of open sessions".to_owned();
            return Err(Error::TooLarge { what, size: open + 1, limit: MYSQL_MAX_SESSIONS }.into());
        }
        let statements = vec![
            format!("UPDATE partage_roots SET last_session = {number} WHERE id = {root}"),
            format!(
                "INSERT INTO partage_sessions VALUES \
                 ({root}, {number}, {micros}, UTC_TIMESTAMP(6) + INTERVAL {micros} MICROSECOND)"
            ),
        ];
        let version = locked.version();
        locked.finish(statements, version).await?;
        Ok(session_of(number))
    }

    pub async fn renew_session(&self, session: SessionId) -> Result<()> {
        let number = number_of(session);
        self.repeatedly(async || {
            let mut connection = self.heartbeat.take().await?;
            let root = connection.root();
            let renewed = connection
                .commits_itself(&format!(
                    "UPDATE partage_sessions SET expires = UTC_TIMESTAMP(6) + INTERVAL ttl MICROSECOND \
                     WHERE root = {root} AND id = {number} AND expires > UTC_TIMESTAMP(6)"
                ))
                .await?;
            connection.give_back();
            if renewed == 0 { Err(Error::SessionEnded { session }.into()) } else { Ok(()) }
        })
        .await
    }

    pub async fn end_session(&self, session: SessionId) -> Result<()> {
        let version = self.repeatedly(|| self.try_end(session)).await?;
        self.learned(version);
        Ok(())
    }

    async fn try_end(&self, session: SessionId) -> Attempt<Version> {
        let mut locked = self.lock().await?;
        let (root, number) = (locked.root(), number_of(session));
        let open = locked
            .rows(&format!(
                "SELECT id FROM partage_sessions WHERE root = {root} AND id = {number} FOR UPDATE"
            ))
            .await?;
        if open.is_empty() {
            locked.abandon().await?;
            return Err(Error::SessionEnded { session }.into());
        }
        locked.end(&[session]).await
    }

    /// Ends the sessions that are over.
    pub async fn sweep(&self) -> Result<()> {
        // Taking the lock does it.
        self.repeatedly(async || self.lock().await?.abandon().await).await
    }

    /// Reads version, ended sessions and clock.
    pub async fn read_root(&self) -> Result<RootState> {
        self.repeatedly(async || {
            let mut connection = self.heartbeat.take().await?;
            let root = connection.root();
            let results = connection
                .text(&format!(
                    "SELECT version, \
                     CAST(EXISTS(SELECT 1 FROM partage_sessions WHERE root = {root} AND expires <= UTC_TIMESTAMP(6)) \
                     AS UNSIGNED), \
                     TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM partage_roots WHERE id = {root}"
                ))
                .await?;
            let row = results[0].first().ok_or_else(|| connection.root_is_gone())?;
            let over: u64 = connection.get(row, 1)?;
            let version = Version::new(connection.get(row, 0)?);
            let state = RootState { version, over: over > 0, now: connection.get(row, 2)? };
            connection.give_back();
            Ok(state)
        })
        .await
    }

    /// After the server's clock went back: no session ends later than its time-to-live from now.
    pub async fn shorten_sessions(&self) -> Result<()> {
        self.repeatedly(async || {
            let mut connection = self.heartbeat.take().await?;
            let root = connection.root();
            let drawn = connection
                .commits_itself(&format!(
                    "UPDATE partage_sessions SET expires = UTC_TIMESTAMP(6) + INTERVAL ttl MICROSECOND \
                     WHERE root = {root} AND expires > UTC_TIMESTAMP(6) + INTERVAL ttl MICROSECOND"
                ))
                .await?;
            connection.give_back();
            if drawn > 0 {
                tracing::warn!(sessions = drawn, "the server's clock went back: sessions count from now");
            }
            Ok(())
        })
        .await
    }
}

/// How long after its end a session is gone for all: one poll, and the transaction that ends it.
pub const EXPIRY_BOUND: Duration = MYSQL_POLL.saturating_mul(10);
