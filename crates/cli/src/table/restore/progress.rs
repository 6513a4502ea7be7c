//! How far a restore is: rows of a table of its own, `NEW.restore`.
//!
//! | key | value |
//! |---|---|
//! | `backup` | table, id and began of the backup: another one is not mixed into the same table |
//! | `lock` | who restores; it ends by itself a while after its owner has |
//! | `created` | the restore has created the table, and no other command |
//! | `done/<chunk>` | the chunk is loaded |

use super::super::backup::cluster;
use super::super::backup::location::Listed;
use super::super::nodes::{IDEMPOTENCY_KEY, refusal, request_name};
use crate::client::ApiClient;
use crate::http::{Reply, first_answer, segment};
use crate::output::{Failure, say};
use bytes::Bytes;
use hyper::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use hyper::{HeaderMap, Method, StatusCode};
use partage_core::keyspace::KeyspaceKind;
use partage_wire::json::{Command, Constraint, Keyspace, Presplit, Resharding, Sharding};
use partage_wire::table::backup::ContentDigest;
use partage_wire::table::backup::manifest::Manifest;
use partage_wire::table::{BytesText, RowsPage};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the lock outlives its owner.
const LOCK_MS: u64 = 15_000;

/// How often its owner renews it: three times within its life.
const RENEWAL: Duration = Duration::from_millis(LOCK_MS / 4);

/// How long a row is tried to be written or read: longer than a coordinator takes to place a new table, or to replace a leader.
const PATIENCE: Duration = Duration::from_secs(60);

/// Rest between two tries.
const REST: Duration = Duration::from_millis(300);

const BACKUP: &str = "backup";
const LOCK: &str = "lock";
const CREATED: &str = "created";
const DONE: &str = "done/";

/// The table with the progress of the restore of a table.
pub fn progress_table(table: &str) -> String {
    format!("{table}.restore")
}

/// Whether a keyspace is the progress of the restore of a table: a table of one range of keys that never splits. Another one may
/// have that name, and is left alone.
pub fn is_progress(keyspace: &Keyspace, of: &str) -> bool {
    let Keyspace { name, sharding, resharding, .. } = keyspace;
    *name == progress_table(of)
        && keyspace.is_of(KeyspaceKind::Table)
        && *sharding == Sharding::KeyRange {}
        && (resharding.split_bytes, resharding.max_shards) == (0, 1)
}

fn progress_resharding() -> Resharding {
    Resharding { split_bytes: 0, split_requests_per_s: 0.0, max_shards: 1, ..Resharding::default() }
}

/// What a restore begins with.
pub struct Begun {
    /// Whether the table was created by an earlier try.
    pub has_table: bool,
    /// The chunks that are loaded.
    pub done: BTreeSet<ContentDigest>,
}

/// The progress of a restore.
pub struct Progress {
    client: ApiClient,
    table: String,
    name: String,
    /// The version of the lock that is ours.
    lock: Mutex<Option<String>>,
    /// The addresses of nodes of tables, as a coordinator named them last.
    nodes: Mutex<Vec<String>>,
}

impl Progress {
    /// The progress of restoring a table.
    pub fn new(client: &ApiClient, table: &str) -> Progress {
        let (table, name) = (table.to_owned(), progress_table(table));
        Progress { client: client.clone(), table, name, lock: Mutex::default(), nodes: Mutex::default() }
    }

    /// Creates its table, replicated as the table that is restored.
    pub async fn create(&self, like: &Keyspace) -> Result<(), Failure> {
        let keyspace = Keyspace {
            name: self.name.clone(),
            sharding: Sharding::KeyRange {},
            partition_key: None,
            // Its rows are no JSON, whatever those of the table are.
            values: None,
            feed_ms: 0,
            constraint: Constraint::default(),
            resharding: progress_resharding(),
            ..like.clone()
        };
        let command = Command::CreateKeyspace { keyspace, presplit: Presplit::None, ahead: false };
        self.client.command(command, false).await.map(drop)
    }

    /// Drops its table: the restore has ended.
    pub async fn drop_table(&self) -> Result<(), Failure> {
        self.client.command(Command::DeleteKeyspace { keyspace: self.name.clone() }, false).await.map(drop)
    }

    async fn ask(
        &self,
        method: Method,
        rest: &str,
        headers: HeaderMap,
        value: Bytes,
    ) -> Result<Reply, Failure> {
        let path = format!("/v1/tables/{}/{rest}", segment(&self.name));
        let until = Instant::now() + PATIENCE;
        let mut nodes: Vec<String> =
            self.nodes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        loop {
            // A coordinator may be away while the nodes answer: those that it named last are asked.
            if let Ok(found) = cluster::nodes(&self.client).await {
                nodes = found.into_values().collect();
                self.nodes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone_from(&nodes);
            }
            let why = match first_answer(&nodes, &method, &path, &headers, &value).await {
                Ok(reply) => match reply.status {
                    StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::MISDIRECTED_REQUEST
                    | StatusCode::GATEWAY_TIMEOUT => refusal(&self.name, &reply).what().to_owned(),
                    // That of a row that is not there names its shard's log; of a table that no node knows yet it does not.
                    StatusCode::NOT_FOUND if !reply.headers.contains_key("partage-applied") => {
                        refusal(&self.name, &reply).what().to_owned()
                    }
                    _ => return Ok(reply),
                },
                Err(error) => error.why,
            };
            if Instant::now() >= until {
                return Err(Failure::not_reachable(format!("table {} does not answer: {why}", self.name)));
            }
            sleep(REST).await;
        }
    }

    async fn get(&self, key: &str) -> Result<Option<String>, Failure> {
        let reply =
            self.ask(Method::GET, &format!("keys/{}", segment(key)), HeaderMap::new(), Bytes::new()).await?;
        match reply.status {
            StatusCode::OK => Ok(Some(String::from_utf8_lossy(&reply.body).into_owned())),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(refusal(&self.name, &reply)),
        }
    }

    /// Puts a row if its condition holds; its version then.
    async fn put(
        &self,
        key: &str,
        query: &str,
        mut condition: HeaderMap,
        value: &str,
    ) -> Result<Option<String>, Failure> {
        // It may be sent again after its answer was lost: then it gets the same answer.
        condition.insert(IDEMPOTENCY_KEY, request_name()?);
        let path = format!("keys/{}{query}", segment(key));
        let reply = self.ask(Method::PUT, &path, condition, Bytes::from(value.to_owned())).await?;
        match reply.status {
            StatusCode::PRECONDITION_FAILED => Ok(None),
            status if status.is_success() => {
                let version = reply.headers.get(ETAG).and_then(|tag| tag.to_str().ok());
                Ok(Some(version.unwrap_or_default().to_owned()))
            }
            _ => Err(refusal(&self.name, &reply)),
        }
    }

    /// Takes the lock, and finds out how far an earlier try was.
    ///
    /// # Errors
    /// Another restore goes on, or one of another backup has begun.
    pub async fn begin(&self, listed: &Listed, manifest: &Manifest) -> Result<Begun, Failure> {
        self.take_lock().await?;
        let mine = format!("{} of table {}, begun {}", listed.id, listed.table, manifest.began_ms);
        self.put(BACKUP, "", absent(), &mine).await?;
        let restored = self.get(BACKUP).await?.unwrap_or_default();
        if restored != mine {
            self.let_go().await;
            let table = &self.table;
            return Err(Failure::refused(format!("table {table} is being restored from backup {restored}"))
                .help(format!("restore that one, with --backup, or `partage table drop {table}`")));
        }
        let has_table = self.get(CREATED).await?.is_some();
        let is_there =
            cluster::keyspaces(&self.client).await?.iter().any(|keyspace| keyspace.name == self.table);
        if is_there != has_table {
            self.let_go().await;
            return Err(self.broken(is_there));
        }
        Ok(Begun { has_table, done: self.done().await? })
    }

    /// The progress and the tables do not agree.
    fn broken(&self, is_there: bool) -> Failure {
        let (table, name) = (&self.table, &self.name);
        match is_there {
            true => Failure::refused(format!(
                "there is a keyspace {table}, and {name} does not say that the restore has created it"
            ))
            .help(format!(
                "if no other command has created it, `partage table drop {table}`, and restore anew; else choose another name"
            )),
            false => Failure::refused(format!("table {table} was dropped in the middle of its restore"))
                .help(format!("`partage table drop {name}`, and restore anew")),
        }
    }

    async fn take_lock(&self) -> Result<(), Failure> {
        let who = format!("{}", std::process::id());
        let until = Instant::now() + Duration::from_millis(LOCK_MS * 2);
        let mut has_said = false;
        loop {
            let ttl = format!("?ttl_ms={LOCK_MS}");
            if let Some(version) = self.put(LOCK, &ttl, absent(), &who).await? {
                self.keep(Some(version));
                return Ok(());
            }
            if Instant::now() >= until {
                let what = format!("another command restores table {} at this moment", self.table);
                return Err(Failure::refused(what).help("wait until it ends, or choose another name"));
            }
            if !std::mem::replace(&mut has_said, true) {
                say(&format!(
                    "waiting for an earlier restore, whose lock ends {} s after it",
                    LOCK_MS / 1_000
                ));
            }
            sleep(REST).await;
        }
    }

    fn keep(&self, version: Option<String>) {
        *self.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = version;
    }

    fn kept(&self) -> Option<String> {
        self.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Renews the lock as long as some work goes on, and gives that up if another command has the lock.
    pub async fn while_locked<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let renew = async {
            loop {
                sleep(RENEWAL).await;
                let Some(version) = self.kept() else { continue };
                let condition = HeaderMap::from_iter([(IF_MATCH, version.parse().map_err(Failure::failed)?)]);
                let ttl = format!("?ttl_ms={LOCK_MS}");
                match self.put(LOCK, &ttl, condition, &std::process::id().to_string()).await? {
                    Some(version) => self.keep(Some(version)),
                    None => {
                        self.keep(None);
                        let what = format!("the lock of the restore of table {} has ended", self.table);
                        return Err::<T, _>(Failure::failed(what));
                    }
                }
            }
        };
        tokio::select! {
            ended = work => ended,
            lost = renew => lost,
        }
    }

    /// Gives the lock back, so that the next try need not wait. It would end anyway.
    pub async fn let_go(&self) {
        let Some(version) = self.kept() else { return };
        let Ok(version) = version.parse() else { return };
        let condition = HeaderMap::from_iter([(IF_MATCH, version)]);
        let _ = self.ask(Method::DELETE, &format!("keys/{LOCK}"), condition, Bytes::new()).await;
        self.keep(None);
    }

    /// Notes that the table was created.
    pub async fn has_created(&self) -> Result<(), Failure> {
        self.put(CREATED, "", HeaderMap::new(), "1").await.map(drop)
    }

    /// Notes that a chunk is loaded.
    pub async fn has_loaded(&self, chunk: ContentDigest) -> Result<(), Failure> {
        self.put(&format!("{DONE}{chunk}"), "", HeaderMap::new(), "").await.map(drop)
    }

    async fn done(&self) -> Result<BTreeSet<ContentDigest>, Failure> {
        let (mut done, mut token) = (BTreeSet::new(), String::new());
        loop {
            let path = format!("rows?prefix={}&keys_only=true&limit=1000{token}", segment(DONE));
            let reply = self.ask(Method::GET, &path, HeaderMap::new(), Bytes::new()).await?;
            if reply.status != StatusCode::OK {
                return Err(refusal(&self.name, &reply));
            }
            let page: RowsPage = serde_json::from_slice(&reply.body).map_err(Failure::failed)?;
            let digest = |key: &BytesText| -> Option<ContentDigest> {
                match key {
                    BytesText::Text(key) => key.strip_prefix(DONE)?.parse().ok(),
                    BytesText::Base64 { .. } | BytesText::Hex { .. } => None,
                }
            };
            done.extend(page.rows.iter().filter_map(|row| digest(&row.key)));
            match page.next {
                Some(next) => token = format!("&token={next}"),
                None => return Ok(done),
            }
        }
    }
}

fn absent() -> HeaderMap {
    HeaderMap::from_iter([(IF_NONE_MATCH, hyper::header::HeaderValue::from_static("*"))])
}
