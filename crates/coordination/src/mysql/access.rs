//! Connecting to the server: its hosts in turn, our credentials, and the setup of each connection.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use sqlx::ConnectOptions;
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use tokio::time::timeout;

use crate::error::{Error, Result};
use crate::limits::{
    MYSQL_CONNECT, MYSQL_LIFE_GAP, MYSQL_LOCK_WAIT_SECONDS, MYSQL_MIN_PACKET_BYTES, MYSQL_SILENCE_SECONDS,
};
use crate::target::{ServerAddress, Target};

use super::connection::{RootConnection, hex};
use super::fault::{AnswerError, Attempt, Fault};
use super::schema;

/// One target, as its connections are made.
pub(super) struct Access {
    location: String,
    hosts: Vec<(ServerAddress, MySqlConnectOptions)>,
    root: String,
    /// Which host worked last: tried first.
    last: AtomicUsize,
    /// The least packet size of a server, which `limits` needs.
    packet_bytes: AtomicUsize,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Access").field(&self.location).finish()
    }
}

/// What a server says of itself, read when a connection is set up.
#[derive(Debug, Default)]
struct Facts {
    version: String,
    packet_bytes: usize,
    read_only: bool,
    galera: bool,
    /// A commit is on its disk before it is acknowledged.
    durable: bool,
}

impl Access {
    pub fn new(target: &Target) -> Result<Self> {
        let location = target.to_string();
        let missing = |what: &str| Error::Invalid { what: format!("{location}: {what}") };
        let user = target.user.as_deref();
        let user = user.ok_or_else(|| missing("the user is missing: mysql://user@host/database"))?;
        let database = target.database.as_deref();
        let database =
            database.ok_or_else(|| missing("the database is missing: mysql://user@host/database"))?;
        let mut common = MySqlConnectOptions::new()
            .username(user)
            .database(database)
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .timezone(None)
            .set_names(false)
            .disable_statement_logging();
        if let Some(password) = &target.password {
            common = common.password(password.reveal());
        }
        common = match &target.tls {
            None => common.ssl_mode(MySqlSslMode::Disabled),
            Some(tls) => {
                let verified = common.ssl_mode(MySqlSslMode::VerifyIdentity).ssl_ca(&tls.ca);
                match &tls.identity {
                    Some((certificate, key)) => verified.ssl_client_cert(certificate).ssl_client_key(key),
                    None => verified,
                }
            }
        };
        let of_host = |host: &ServerAddress| (host.clone(), common.clone().host(&host.name).port(host.port));
        let hosts = target.hosts.iter().map(of_host).collect();
        let root = target.root.as_str().to_owned();
        let (last, packet_bytes) = (AtomicUsize::new(0), AtomicUsize::new(MYSQL_MIN_PACKET_BYTES));
        Ok(Self { location, hosts, root, last, packet_bytes })
    }

    pub fn location(&self) -> &str {
        &self.location
    }

    /// Refuses servers that take less from now on.
    pub fn rely_on(&self, packet_bytes: usize) {
        self.packet_bytes.store(packet_bytes, Ordering::Relaxed);
    }

    /// A connection that is set up, to the first host that takes changes.
    pub async fn open(&self) -> Attempt<RootConnection> {
        let first = self.last.load(Ordering::Relaxed);
        let mut why = Vec::new();
        for turn in 0..self.hosts.len() {
            let index = (first + turn) % self.hosts.len();
            let (host, options) = &self.hosts[index];
            match self.enter(options).await {
                Ok(connection) => {
                    self.last.store(index, Ordering::Relaxed);
                    return Ok(connection);
                }
                // Another host may do.
                Err(
                    fault @ (Fault::Passing(_) | Fault::Broken(_) | Fault::Final(Error::Unavailable { .. })),
                ) => {
                    why.push(format!("{host}: {}", fault.into_error()));
                }
                Err(fault) => return Err(fault),
            }
        }
        Err(Fault::Final(Error::Unavailable { what: format!("{}: {}", self.location, why.join("; ")) }))
    }

    async fn enter(&self, options: &MySqlConnectOptions) -> Attempt<RootConnection> {
        let connected = match timeout(MYSQL_CONNECT, options.connect()).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return Err(self.not_connected(error)),
            Err(_) => return Err(Fault::Passing(format!("no answer within {MYSQL_CONNECT:?}"))),
        };
        let mut connection = RootConnection::new(connected, self.location.clone());
        let facts = set_up(&mut connection).await?;
        self.check(&facts)?;
        schema::prepare(&mut connection).await?;
        let life = life(&mut connection, &facts).await?;
        let root = self.find_root(&mut connection, life).await?;
        connection.belongs_to(root, facts.packet_bytes);
        Ok(connection)
    }

    fn not_connected(&self, error: sqlx::Error) -> Fault {
        let denied = match &error {
            sqlx::Error::Database(_) => return AnswerError::from(error).nothing_happened(&self.location),
            // A fault of files here, or of certificates: it does not pass.
            sqlx::Error::Tls(_) | sqlx::Error::Configuration(_) => true,
            sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
            _ => false,
        };
        if !denied {
            return Fault::Broken(error.to_string());
        }
        let what =
            format!("{error}; check the CA, our certificate and its key, and the name in the server's");
        Fault::Final(Error::Denied { location: self.location.clone(), what })
    }

    fn check(&self, facts: &Facts) -> Result<()> {
        let location = &self.location;
        if facts.read_only {
            let what = "the server is read-only, as replicas are: name the primary".to_owned();
            return Err(Error::Unavailable { what });
        }
        let needed = self.packet_bytes.load(Ordering::Relaxed);
        if facts.packet_bytes < needed {
            let found = facts.packet_bytes;
            let what = format!("max_allowed_packet of {location} is {found}: set it to {needed} or more");
            return Err(Error::Invalid { what });
        }
        if !facts.durable {
            tracing::warn!(
                %location,
                "innodb_flush_log_at_trx_commit is not 1: commits that were acknowledged can be lost with the server"
            );
        }
        Ok(())
    }

    /// The number of our root; makes it when there is none. When the server has started since the root was last used,
    /// it skips some versions: InnoDB shows a commit to readers a moment before it is on disk, so the server may lose
    /// one that a reader saw, and its version must not come again. An empty table in the server's memory shows a start;
    /// a different start time shows another server, which may have a copy of that table.
    async fn find_root(&self, connection: &mut RootConnection, life: Option<i64>) -> Attempt<u32> {
        let root = hex(&self.root);
        let find = match life {
            Some(life) => format!(
                "SELECT id FROM partage_roots JOIN partage_life ON partage_life.root = id \
                 WHERE partage_roots.root = {root} AND life = {life}"
            ),
            None => format!("SELECT id FROM partage_roots WHERE root = {root}"),
        };
        if let Some(row) = connection.text(&find).await?[0].first() {
            return connection.get(row, 0);
        }
        let life = life.unwrap_or_default();
        // `trimmed` gets the new value of `version`: no older cursor is known any more. Several connections that do
        // this at once skip more, which does no harm.
        connection
            .text(&format!(
                "INSERT IGNORE INTO partage_roots VALUES (NULL, {root}, 0, 0, 0, {life}); \
             UPDATE partage_roots SET version = version + {MYSQL_LIFE_GAP}, trimmed = version, life = {life} \
             WHERE root = {root}; \
             INSERT IGNORE INTO partage_life SELECT id FROM partage_roots WHERE root = {root}"
            ))
            .await?;
        let rows = connection.text(&find).await?;
        let Some(row) = rows[0].first() else {
            return Err(Fault::Passing("the server has started again just now".to_owned()));
        };
        connection.get(row, 0)
    }
}

/// Puts the connection in the state that all statements rely on, and reads the server's settings.
async fn set_up(connection: &mut RootConnection) -> Attempt<Facts> {
    let results = connection
        .text(&format!(
            "SET NAMES utf8mb4; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
             SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', SESSION autocommit = 1, \
             SESSION wait_timeout = {MYSQL_SILENCE_SECONDS}, \
             SESSION innodb_lock_wait_timeout = {MYSQL_LOCK_WAIT_SECONDS}; \
             SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'max_allowed_packet', 'read_only', 'wsrep_on', \
             'innodb_flush_log_at_trx_commit')"
        ))
        .await?;
    let mut facts = Facts::default();
    for row in results.last().into_iter().flatten() {
        let (name, value): (String, String) = (connection.get(row, 0)?, connection.get(row, 1)?);
        match name.as_str() {
            "version" => facts.version = value,
            "max_allowed_packet" => facts.packet_bytes = value.parse().unwrap_or_default(),
            "read_only" => facts.read_only = value != "OFF",
            "wsrep_on" => facts.galera = value == "ON",
            "innodb_flush_log_at_trx_commit" => facts.durable = value == "1",
            _ => {}
        }
    }
    if facts.galera {
        // A read waits until the node has what the others committed before.
        connection.text("SET SESSION wsrep_sync_wait = 7").await?;
    }
    Ok(facts)
}

/// When the server started, in seconds: one statement reads both clocks, so a step does not change it. None for a
/// Galera cluster, which lives on without one node, and whose shown commits are on the others.
async fn life(connection: &mut RootConnection, facts: &Facts) -> Attempt<Option<i64>> {
    if facts.galera {
        return Ok(None);
    }
    let status = if facts.version.contains("MariaDB") { "information_schema" } else { "performance_schema" };
    let rows = connection
        .text(&format!(
            "SELECT CAST(UNIX_TIMESTAMP() AS SIGNED) - CAST(variable_value AS SIGNED) FROM {status}.global_status \
             WHERE variable_name = 'UPTIME'"
        ))
        .await?;
    match rows[0].first() {
        Some(row) => connection.get(row, 0).map(Some),
        None => Err(Fault::Passing("the server does not say since when it runs".to_owned())),
    }
}
