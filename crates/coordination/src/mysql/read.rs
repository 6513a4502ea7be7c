//! Reads: each is one statement, so each shows one moment.

use bytes::Bytes;
use sqlx::mysql::MySqlRow;

use crate::contract::Listing;
use crate::error::Result;
use crate::key::{Key, Scope};
use crate::transaction::{Entry, Version};
use crate::watch::{Change, Update};

use super::connection::RootConnection;
use super::fault::Attempt;
use super::{Shared, key_of, session_of};

/// A scope as bounds on paths.
struct Range {
    /// The first path, and the first behind the last.
    from: Vec<u8>,
    to: Vec<u8>,
    /// No further slash from this byte on, counted from 1; 0 if there may be.
    flat_from: u32,
}

impl Range {
    fn of(scope: &Scope) -> Self {
        let from = scope.prefix().into_bytes();
        let mut to = from.clone();
        match scope {
            Scope::One(_) => to.push(0),
            // A key is ASCII: this byte is behind all of them.
            Scope::All => to.push(0xff),
            Scope::Children(_) | Scope::Below(_) => {
                to.pop();
                // What follows the slash in the order of bytes.
                to.push(b'/' + 1);
            }
        }
        let flat_from = match scope {
            Scope::Children(_) => u32::try_from(from.len() + 1).expect("keys are short"),
            _ => 0,
        };
        Self { from, to, flat_from }
    }
}

/// The condition of a range on the column `path`: takes `from`, `to`, `flat_from` twice.
macro_rules! in_range {
    ($path:literal) => {
        concat!($path, " >= ? AND ", $path, " < ? AND (? = 0 OR LOCATE('/', ", $path, ", ?) = 0)")
    };
}

impl Shared {
    pub async fn read(&self, key: &Key) -> Result<Option<Entry>> {
        self.repeatedly(async || {
            let mut connection = self.work.take().await?;
            let root = connection.root();
            let query =
                sqlx::query("SELECT value, version, session FROM partage_keys WHERE root = ? AND path = ?");
            let rows = connection.ask(query.bind(root).bind(key.as_str().as_bytes())).await?;
            let entry = rows.first().map(|row| entry(&connection, row, 0)).transpose()?;
            connection.give_back();
            Ok(entry)
        })
        .await
    }

    pub async fn list(&self, scope: &Scope, after: Option<&Key>, limit: usize) -> Result<Listing> {
        let range = Range::of(scope);
        let after = after.map_or_else(Vec::new, |after| after.as_str().as_bytes().to_vec());
        let most = u32::try_from(limit + 1).unwrap_or(u32::MAX);
        self.repeatedly(async || {
            let mut connection = self.work.take().await?;
            let root = connection.root();
            let query = sqlx::query(concat!(
                "SELECT r.version, k.path, k.value, k.version, k.session FROM partage_roots r \
                 LEFT JOIN partage_keys k ON k.root = r.id AND k.path > ? AND ",
                in_range!("k.path"),
                " WHERE r.id = ? ORDER BY k.path LIMIT ?"
            ));
            let query = query.bind(&after).bind(&range.from).bind(&range.to).bind(range.flat_from);
            let rows = connection.ask(query.bind(range.flat_from).bind(root).bind(most)).await?;
            let (at, mut entries) = content(&connection, &rows)?;
            connection.give_back();
            let more = entries.len() > limit;
            entries.truncate(limit);
            let next = if more { entries.last().map(|(key, _)| key.clone()) } else { None };
            Ok(Listing { at, entries, next })
        })
        .await
    }

    /// What comes after `cursor` in `scope`; `None` if nothing does yet. Moves the cursor.
    pub async fn after(&self, cursor: &mut Option<Version>, scope: &Scope) -> Result<Option<Update>> {
        let range = Range::of(scope);
        let from = *cursor;
        let found = self.repeatedly(async || {
            let mut connection = self.work.take().await?;
            let known = match from {
                Some(from) => changes(&mut connection, from, &range).await?,
                None => None,
            };
            let next = match known {
                Some((at, changes)) => (at, (!changes.is_empty()).then_some(Update::Changes { at, changes })),
                None => {
                    let (at, entries) = everything(&mut connection, &range).await?;
                    (at, Some(Update::Resync { at, entries }))
                }
            };
            connection.give_back();
            Ok(next)
        });
        let (at, update) = found.await?;
        *cursor = Some(at);
        Ok(update)
    }
}

/// The keys that changed after `from`, as they are now; `None` if that is not known any more, or never was.
async fn changes(
    connection: &mut RootConnection,
    from: Version,
    range: &Range,
) -> Attempt<Option<(Version, Vec<Change>)>> {
    // The inner table names each key once, however often it changed.
    let query = sqlx::query(concat!(
        "SELECT r.version, r.trimmed, h.path, k.value, k.version, k.session FROM partage_roots r \
         LEFT JOIN (SELECT DISTINCT path FROM partage_history WHERE root = ? AND version > ? AND ",
        in_range!("path"),
        ") h ON TRUE LEFT JOIN partage_keys k ON k.root = r.id AND k.path = h.path WHERE r.id = ? ORDER BY h.path"
    ));
    let query = query.bind(connection.root()).bind(from.get()).bind(&range.from).bind(&range.to);
    let query = query.bind(range.flat_from).bind(range.flat_from).bind(connection.root());
    let rows = connection.ask(query).await?;
    let at = version(connection, &rows)?;
    let trimmed = Version::new(connection.get(&rows[0], 1)?);
    if !(trimmed..=at).contains(&from) {
        return Ok(None);
    }
    let mut changes = Vec::new();
    for row in &rows {
        if connection.get::<Option<&[u8]>, _>(row, 2)?.is_some() {
            let there = connection.get::<Option<u64>, _>(row, 4)?.is_some();
            let entry = if there { Some(entry(connection, row, 3)?) } else { None };
            changes.push(Change { key: key_of(connection, row, 2)?, entry });
        }
    }
    Ok(Some((at, changes)))
}

async fn everything(connection: &mut RootConnection, range: &Range) -> Attempt<(Version, Vec<(Key, Entry)>)> {
    let query = sqlx::query(concat!(
        "SELECT r.version, k.path, k.value, k.version, k.session FROM partage_roots r \
         LEFT JOIN partage_keys k ON k.root = r.id AND ",
        in_range!("k.path"),
        " WHERE r.id = ? ORDER BY k.path"
    ));
    let query = query.bind(&range.from).bind(&range.to).bind(range.flat_from).bind(range.flat_from);
    let rows = connection.ask(query.bind(connection.root())).await?;
    content(connection, &rows)
}

/// Rows of the root's version, then path, value, version, session; the last four are null if there is no key.
fn content(connection: &RootConnection, rows: &[MySqlRow]) -> Attempt<(Version, Vec<(Key, Entry)>)> {
    let mut entries = Vec::new();
    for row in rows {
        if connection.get::<Option<u64>, _>(row, 3)?.is_some() {
            entries.push((key_of(connection, row, 1)?, entry(connection, row, 2)?));
        }
    }
    Ok((version(connection, rows)?, entries))
}

/// The root's version, first in the first row.
fn version(connection: &RootConnection, rows: &[MySqlRow]) -> Attempt<Version> {
    let row = rows.first().ok_or_else(|| connection.root_is_gone())?;
    Ok(Version::new(connection.get(row, 0)?))
}

/// Value, version and session from `column` on.
fn entry(connection: &RootConnection, row: &MySqlRow, column: usize) -> Attempt<Entry> {
    let value = Bytes::copy_from_slice(connection.get(row, column)?);
    let version = Version::new(connection.get(row, column + 1)?);
    let session: Option<u64> = connection.get(row, column + 2)?;
    Ok(Entry { value, version, session: session.map(session_of) })
}
