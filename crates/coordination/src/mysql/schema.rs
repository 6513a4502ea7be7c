//! Our tables, which the program makes one step at a time, and never another program's.
//!
//! A step is one statement, as the server commits each change of a table by itself; the row in `partage_schema`
//! counts the steps that are done. So a process that dies in between leaves a state that the next one goes on
//! from, and an older database is migrated in the same way. Each of our tables has a comment that
//! says so: the program refuses a table with one of our names and without it.

use crate::error::{Error, Result};

use super::connection::{RootConnection, hex};
use super::fault::Attempt;

/// What the comment of each of our tables begins with.
const MARK: &str = "partage coordination";

/// The table whose one row says how many steps are done.
const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS partage_schema (
    one TINYINT UNSIGNED NOT NULL PRIMARY KEY,
    version INT UNSIGNED NOT NULL
) ENGINE=InnoDB COMMENT='partage coordination: steps of the schema that are done'";

/// The steps in order; the schema's version is how many are done. Each can be repeated. Only ever added to.
const STEPS: [&str; 5] = [
    // `life` is when the server started that the versions were last counted on.
    "CREATE TABLE IF NOT EXISTS partage_roots (
        id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
        root VARBINARY(512) NOT NULL UNIQUE,
        version BIGINT UNSIGNED NOT NULL,
        trimmed BIGINT UNSIGNED NOT NULL,
        last_session BIGINT UNSIGNED NOT NULL,
        life BIGINT NOT NULL
    ) ENGINE=InnoDB COMMENT='partage coordination: one row for each cluster'",
    "CREATE TABLE IF NOT EXISTS partage_keys (
        root INT UNSIGNED NOT NULL,
        path VARBINARY(512) NOT NULL,
        value LONGBLOB NOT NULL,
        version BIGINT UNSIGNED NOT NULL,
        session BIGINT UNSIGNED NULL,
        PRIMARY KEY (root, path),
        KEY of_session (root, session)
    ) ENGINE=InnoDB COMMENT='partage coordination: keys and values'",
    // In UTC, by the server's clock. `ttl` is in microseconds.
    "CREATE TABLE IF NOT EXISTS partage_sessions (
        root INT UNSIGNED NOT NULL,
        id BIGINT UNSIGNED NOT NULL,
        ttl BIGINT UNSIGNED NOT NULL,
        expires DATETIME(6) NOT NULL,
        PRIMARY KEY (root, id),
        KEY by_end (root, expires)
    ) ENGINE=InnoDB COMMENT='partage coordination: who is alive, until when'",
    "CREATE TABLE IF NOT EXISTS partage_history (
        root INT UNSIGNED NOT NULL,
        version BIGINT UNSIGNED NOT NULL,
        path VARBINARY(512) NOT NULL,
        PRIMARY KEY (root, version, path)
    ) ENGINE=InnoDB COMMENT='partage coordination: which keys changed lately'",
    // Empty after each start of the server, so that it shows the start.
    "CREATE TABLE IF NOT EXISTS partage_life (
        root INT UNSIGNED NOT NULL PRIMARY KEY
    ) ENGINE=MEMORY COMMENT='partage coordination: roots used since the server started'",
];

const TABLES: [&str; 6] = [
    "partage_schema",
    "partage_roots",
    "partage_keys",
    "partage_sessions",
    "partage_history",
    "partage_life",
];

/// The version that this program reads and writes.
pub(super) const VERSION: u64 = STEPS.len() as u64;

/// Brings the schema to [`VERSION`], or says why not.
pub(super) async fn prepare(connection: &mut RootConnection) -> Attempt<()> {
    if version(connection).await? == Some(VERSION) {
        return Ok(());
    }
    // The lock only saves work: several processes may do a step at once.
    let lock = hex(&format!("partage_schema {}", connection.location()));
    connection.text(&format!("SELECT GET_LOCK(MD5({lock}), 5)")).await?;
    let done = migrate(connection).await;
    let freed = connection.text(&format!("DO RELEASE_LOCK(MD5({lock}))")).await;
    done.and(freed.map(|_| ()))
}

async fn migrate(connection: &mut RootConnection) -> Attempt<()> {
    let from = match version(connection).await? {
        Some(version) => version,
        None => {
            connection.text(SCHEMA).await?;
            connection.text("INSERT IGNORE INTO partage_schema VALUES (1, 0)").await?;
            0
        }
    };
    for (done, step) in STEPS.iter().enumerate().skip(usize::try_from(from).unwrap_or(usize::MAX)) {
        connection.text(step).await?;
        let now = done + 1;
        connection.text(&format!("UPDATE partage_schema SET version = GREATEST(version, {now})")).await?;
    }
    Ok(())
}

/// The version that the database has; `None` if it has none of our tables. Refuses what is not ours.
async fn version(connection: &mut RootConnection) -> Attempt<Option<u64>> {
    let names = TABLES.map(|name| format!("'{name}'")).join(",");
    let tables = connection
        .text(&format!(
            "SELECT CAST(table_name AS CHAR), CAST(table_comment AS CHAR) FROM information_schema.tables \
             WHERE table_schema = DATABASE() AND table_name IN ({names})"
        ))
        .await?;
    let mut made = false;
    for row in &tables[0] {
        let (name, comment): (String, String) = (connection.get(row, 0)?, connection.get(row, 1)?);
        if !comment.starts_with(MARK) {
            let location = connection.location();
            let what = format!(
                "{location}: the table `{name}` there was not made by this program: it is left alone; choose \
                 another database, or rename that table"
            );
            return Err(Error::Invalid { what }.into());
        }
        made |= name == TABLES[0];
    }
    if !made {
        return Ok(None);
    }
    let rows = connection.text("SELECT CAST(version AS UNSIGNED) FROM partage_schema").await?;
    let Some(row) = rows[0].first() else { return Ok(None) };
    let version = connection.get(row, 0)?;
    check(connection.location(), version)?;
    Ok(Some(version))
}

/// Refuses a schema that a later program made.
pub(super) fn check(location: &str, version: u64) -> Result<()> {
    if version <= VERSION {
        return Ok(());
    }
    let what = format!(
        "{location} has schema version {version} (table `partage_schema`), this program knows up to {VERSION}: use \
         the program that made it, or another database"
    );
    Err(Error::Invalid { what })
}
