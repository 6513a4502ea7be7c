//! Transactions: lock one row, read what matters, decide here, and write all in one message.
//!
//! ```text
//! START TRANSACTION; lock the root's row; read sessions that are over  nothing has happened yet
//! read versions and sessions of the keys in question                   nothing has happened yet
//! values that are large, one by one                                    nothing has happened yet
//! small values, deletes, history, the root's version; COMMIT           done, not done, or not known
//! ```
//!
//! The lock makes transactions of one root wait for each other, so that versions are their order. The server
//! rolls back a transaction whose connection ends before the last message.

use crate::error::Result;
use crate::key::Key;
use crate::limits::{
    MYSQL_HISTORY_VERSIONS, MYSQL_PATHS_TEXT_BYTES, MYSQL_SMALL_VALUE_BYTES, MYSQL_SWEEP_SESSIONS,
    MYSQL_TRIM_EVERY,
};
use crate::session::SessionId;
use crate::transaction::{Transaction, Version};

use super::connection::{bytes_literal, hex};
use super::decide::{Decided, Found, Needed, Put, decide, needed};
use super::fault::Attempt;
use super::pool::{Pool, PooledConnection};
use super::{Shared, key_of, session_of};

/// Our root, locked. Dropped, nothing has happened.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    connection: PooledConnection<'a>,
    /// The version before this transaction.
    version: Version,
    pub last_session: u64,
    /// Some of the sessions that are over.
    over: Vec<SessionId>,
}

impl Shared {
    /// Does all of it, or none.
    pub async fn commit(&self, transaction: Transaction) -> Result<Version> {
        let version = self.repeatedly(|| self.try_commit(&transaction)).await?;
        self.learned(version);
        Ok(version)
    }

    async fn try_commit(&self, transaction: &Transaction) -> Attempt<Version> {
        let mut locked = self.lock().await?;
        let found = locked.find(&needed(transaction), transaction.operations.len()).await?;
        let decided = match decide(transaction.clone(), &found) {
            Ok(decided) if !transaction.operations.is_empty() => decided,
            checked => {
                let version = locked.version;
                locked.abandon().await?;
                return Ok(checked.map(|_| version)?);
            }
        };
        locked.write(&decided).await
    }

    /// Ends the sessions that are over, then locks our root: no transaction sees their keys.
    pub async fn lock(&self) -> Attempt<Locked<'_>> {
        loop {
            let locked = Locked::new(&self.work).await?;
            if locked.over.is_empty() {
                return Ok(locked);
            }
            let version = locked.sweep().await?;
            self.learned(version);
        }
    }
}

impl<'a> Locked<'a> {
    async fn new(pool: &'a Pool) -> Attempt<Self> {
        let mut connection = pool.take().await?;
        let root = connection.root();
        let results = connection
            .text(&format!(
                "START TRANSACTION; \
                 SELECT version, last_session FROM partage_roots WHERE id = {root} FOR UPDATE; \
                 SELECT id FROM partage_sessions WHERE root = {root} AND expires <= UTC_TIMESTAMP(6) \
                 LIMIT {MYSQL_SWEEP_SESSIONS}"
            ))
            .await?;
        let Some(row) = results[1].first() else {
            return Err(connection.root_is_gone());
        };
        let (version, last_session) = (Version::new(connection.get(row, 0)?), connection.get(row, 1)?);
        let over =
            results[2].iter().map(|row| Ok(session_of(connection.get(row, 0)?))).collect::<Attempt<_>>()?;
        Ok(Self { connection, version, last_session, over })
    }

    /// Changes nothing, unlocks the root, and gives the connection back to the pool.
    pub async fn abandon(mut self) -> Attempt<()> {
        self.connection.text("ROLLBACK").await?;
        self.connection.give_back();
        Ok(())
    }

    pub fn root(&self) -> u32 {
        self.connection.root()
    }

    /// Rows of one statement.
    pub async fn rows(&mut self, sql: &str) -> Attempt<Vec<u64>> {
        let results = self.connection.text(sql).await?;
        results[0].iter().map(|row| self.connection.get(row, 0)).collect()
    }

    /// Does `statements`, gives the root `version`, and commits.
    pub async fn finish(mut self, mut statements: Vec<String>, version: Version) -> Attempt<Version> {
        let (root, number) = (self.connection.root(), version.get());
        if version != self.version {
            statements.push(format!("UPDATE partage_roots SET version = {number} WHERE id = {root}"));
        }
        if number.is_multiple_of(MYSQL_TRIM_EVERY) && number > MYSQL_HISTORY_VERSIONS {
            let old = number - MYSQL_HISTORY_VERSIONS;
            statements.push(format!("DELETE FROM partage_history WHERE root = {root} AND version <= {old}"));
            statements.push(format!(
                "UPDATE partage_roots SET trimmed = GREATEST(trimmed, {old}) WHERE id = {root}"
            ));
        }
        self.connection.commit(&statements).await?;
        self.connection.give_back();
        Ok(version)
    }

    /// Ends the sessions that are over, with their keys. One that was renewed at the last moment lives on.
    async fn sweep(mut self) -> Attempt<Version> {
        let (root, over) = (self.root(), list(&self.over));
        let ended = self
            .rows(&format!(
                "SELECT id FROM partage_sessions WHERE root = {root} AND id IN ({over}) \
                 AND expires <= UTC_TIMESTAMP(6) FOR UPDATE"
            ))
            .await?;
        let ended: Vec<_> = ended.into_iter().map(session_of).collect();
        for session in &ended {
            tracing::info!(%session, "session ended: it was not renewed in time");
        }
        self.end(&ended).await
    }

    /// Ends `sessions`, with their keys.
    pub async fn end(self, sessions: &[SessionId]) -> Attempt<Version> {
        if sessions.is_empty() {
            let version = self.version;
            return self.abandon().await.map(|()| version);
        }
        let (root, ids, version) = (self.root(), list(sessions), self.next());
        let number = version.get();
        let statements = vec![
            format!(
                "INSERT INTO partage_history SELECT root, {number}, path FROM partage_keys \
                 WHERE root = {root} AND session IN ({ids})"
            ),
            format!("DELETE FROM partage_keys WHERE root = {root} AND session IN ({ids})"),
            format!("DELETE FROM partage_sessions WHERE root = {root} AND id IN ({ids})"),
        ];
        self.finish(statements, version).await
    }

    /// The version before this transaction.
    pub fn version(&self) -> Version {
        self.version
    }

    fn next(&self) -> Version {
        Version::new(self.version.get() + 1)
    }

    /// Reads what a transaction with so many operations depends on.
    async fn find(&mut self, needed: &Needed, operations: usize) -> Attempt<Found> {
        let root = self.root();
        let mut found = Found::default();
        for paths in texts(&needed.keys) {
            let rows = self
                .connection
                .text(&format!(
                    "SELECT path, version, session FROM partage_keys WHERE root = {root} AND path IN ({paths})"
                ))
                .await?;
            for row in &rows[0] {
                let session: Option<u64> = self.connection.get(row, 2)?;
                let version = Version::new(self.connection.get(row, 1)?);
                found.keys.insert(key_of(&self.connection, row, 0)?, (version, session.map(session_of)));
            }
        }
        if !needed.sessions.is_empty() {
            let ids = list(&Vec::from_iter(needed.sessions.iter().copied()));
            let open = format!("SELECT id FROM partage_sessions WHERE root = {root} AND id IN ({ids})");
            found.sessions.extend(self.rows(&open).await?.into_iter().map(session_of));
        }
        for leaf in &needed.leaves {
            let (from, to) = (hex(&format!("{leaf}/")), hex(&format!("{leaf}0")));
            let rows = self
                .connection
                .text(&format!(
                    "SELECT path FROM partage_keys WHERE root = {root} AND path > {from} AND path < {to} \
                     LIMIT {operations}"
                ))
                .await?;
            for row in &rows[0] {
                found.below.insert(key_of(&self.connection, row, 0)?);
            }
        }
        Ok(found)
    }

    async fn write(mut self, decided: &Decided) -> Attempt<Version> {
        let (root, version) = (self.root(), self.next());
        let number = version.get();
        let (small, large): (Vec<&Put>, Vec<&Put>) =
            decided.puts.iter().partition(|put| put.value.len() <= MYSQL_SMALL_VALUE_BYTES);
        for put in large {
            let session = put.session.map(number_of);
            let query = sqlx::query(
                "INSERT INTO partage_keys (root, path, value, version, session) VALUES (?, ?, ?, ?, ?) \
                 ON DUPLICATE KEY UPDATE value = VALUES(value), version = VALUES(version), session = VALUES(session)",
            );
            let query = query.bind(root).bind(put.key.as_str().as_bytes()).bind(&put.value[..]);
            self.connection.ask(query.bind(number).bind(session)).await?;
        }
        let mut statements = Vec::new();
        if !small.is_empty() {
            let rows: Vec<String> = small
                .iter()
                .map(|Put { key, value, session }| {
                    let session =
                        session.map_or_else(|| "NULL".to_owned(), |session| number_of(session).to_string());
                    format!("({root},{},{},{number},{session})", hex(key.as_str()), bytes_literal(value))
                })
                .collect();
            statements.push(format!(
                "INSERT INTO partage_keys (root, path, value, version, session) VALUES {} \
                 ON DUPLICATE KEY UPDATE value = VALUES(value), version = VALUES(version), session = VALUES(session)",
                rows.join(",")
            ));
        }
        if !decided.deletes.is_empty() {
            let paths: Vec<String> = decided.deletes.iter().map(|key| hex(key.as_str())).collect();
            let paths = paths.join(",");
            statements.push(format!("DELETE FROM partage_keys WHERE root = {root} AND path IN ({paths})"));
        }
        let changed = decided.puts.iter().map(|put| &put.key).chain(&decided.deletes);
        let changed: Vec<String> =
            changed.map(|key| format!("({root},{number},{})", hex(key.as_str()))).collect();
        if !changed.is_empty() {
            statements.push(format!("INSERT INTO partage_history VALUES {}", changed.join(",")));
        }
        self.finish(statements, version).await
    }
}

pub(super) fn number_of(session: SessionId) -> u64 {
    // A session that this store never gave is not open.
    u64::try_from(session.get()).unwrap_or(0)
}

fn list(sessions: &[SessionId]) -> String {
    let numbers: Vec<String> = sessions.iter().map(|session| number_of(*session).to_string()).collect();
    numbers.join(",")
}

/// The paths as literals, in as many texts as it takes to keep each below the smallest packet.
fn texts<'k>(keys: impl IntoIterator<Item = &'k Key>) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for key in keys {
        let literal = hex(key.as_str());
        match texts.last_mut() {
            Some(text) if text.len() + literal.len() < MYSQL_PATHS_TEXT_BYTES => {
                text.push(',');
                text.push_str(&literal);
            }
            _ => texts.push(literal),
        }
    }
    texts
}
