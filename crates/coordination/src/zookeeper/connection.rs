//! One target: how to reach it, the rights of znodes, and the ZooKeeper sessions that reads and commits go through.
//!
//! A ZooKeeper client gives up for good when its session has expired. So no caller keeps one: each call asks for the
//! current one, made anew when the last has ended. The sessions of the contract have clients of their
//! own, as their keys must go with them.
//!
//! ZooKeeper answers the requests of a session in their order. So commits have a session of their own: one that takes
//! long holds up no read, such as that by which a leader confirms its lead.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use zookeeper_client::{Acls, Client, Connector, CreateMode, Error as Fault, SessionState, TlsOptions};

use super::node::{ROOT_MARK, Root};
use crate::error::{Error, Result};
use crate::limits::{
    ZOOKEEPER_ANSWER, ZOOKEEPER_CONNECT_ATTEMPTS, ZOOKEEPER_PATIENCE, ZOOKEEPER_PROBE,
    ZOOKEEPER_READING_TIMEOUT, ZOOKEEPER_RETRY_PAUSE,
};
use crate::target::{Target, Tls};

/// A target, and how it is reached.
#[derive(Debug)]
pub(super) struct Connection {
    target: Target,
    root: Root,
    servers: String,
    connector: Connector,
    acls: Acls<'static>,
    reads: Mutex<Client>,
    commits: Mutex<Client>,
}

impl Connection {
    /// Connects, and makes the root if it is not there.
    pub async fn open(target: &Target) -> Result<Self> {
        let root = Root::new(&target.root)?;
        let servers: Vec<String> = target.hosts.iter().map(ToString::to_string).collect();
        let servers = servers.join(",");
        let (connector, acls) = connector(target).await?;
        let asked = connector.clone().with_session_timeout(ZOOKEEPER_READING_TIMEOUT);
        let client = connect(target, &servers, asked.clone()).await?;
        let reads = Mutex::new(client.clone());
        let commits = Mutex::new(connect(target, &servers, asked).await?);
        let connection = Self { target: target.clone(), root, servers, connector, acls, reads, commits };
        connection.answered(connection.make_root(&client)).await?;
        Ok(connection)
    }

    pub fn root(&self) -> &Root {
        &self.root
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The ACLs of our znodes.
    pub fn acls(&self) -> Acls<'static> {
        self.acls
    }

    /// A client of its own, with a session that the server ends `timeout` after it last heard of it.
    pub async fn client_for(&self, timeout: Duration) -> Result<Client> {
        connect(&self.target, &self.servers, self.connector.clone().with_session_timeout(timeout)).await
    }

    /// The client for reads that is connected now; waits a while for one.
    pub async fn client(&self) -> Result<Client> {
        self.connected(&self.reads).await
    }

    /// The client for commits that is connected now; waits a while for one.
    pub async fn committing_client(&self) -> Result<Client> {
        self.connected(&self.commits).await
    }

    async fn connected(&self, current: &Mutex<Client>) -> Result<Client> {
        let until = Instant::now() + ZOOKEEPER_PATIENCE;
        let found = timeout_at(until, async {
            loop {
                let mut current = current.lock().await;
                let mut states = current.state_watcher();
                match current.state() {
                    SessionState::SyncConnected => return Ok(current.clone()),
                    state if state.is_terminated() => {
                        tracing::info!(target = %self.target, %state, "connecting anew");
                        *current = self.client_for(ZOOKEEPER_READING_TIMEOUT).await?;
                    }
                    _ => {
                        drop(current);
                        states.changed().await;
                    }
                }
            }
        });
        let what = || format!("{} has not answered for {ZOOKEEPER_PATIENCE:?}", self.target);
        found.await.unwrap_or_else(|_| Err(Error::Unavailable { what: what() }))
    }

    /// What comes of requests, or an error when no answer comes.
    pub async fn answered<T>(&self, requests: impl Future<Output = Result<T>>) -> Result<T> {
        timeout(ZOOKEEPER_ANSWER, requests).await.unwrap_or_else(|_| Err(self.no_answer()))
    }

    /// Why a request that got no answer has failed.
    pub fn no_answer(&self) -> Error {
        let what = format!("{}: a request has no answer for {ZOOKEEPER_ANSWER:?}", self.target);
        Error::Unavailable { what }
    }

    /// Connects the client for commits anew, as a request on it has no answer: others behind it might have none either.
    pub async fn replace_committing_client(&self) {
        self.replace(&self.commits).await;
    }

    /// The same of the client for reads.
    pub async fn replace_reading_client(&self) {
        self.replace(&self.reads).await;
    }

    async fn replace(&self, current: &Mutex<Client>) {
        tracing::warn!(target = %self.target, "a request has no answer for {ZOOKEEPER_ANSWER:?}: connecting anew");
        match self.client_for(ZOOKEEPER_READING_TIMEOUT).await {
            Ok(client) => *current.lock().await = client,
            Err(error) => tracing::warn!(%error, "the connection stays as it is"),
        }
    }

    /// Reads, and reads again on the next connection when one breaks.
    pub async fn reading<T, F>(&self, read: impl Fn(Client) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let until = Instant::now() + ZOOKEEPER_PATIENCE;
        loop {
            let client = self.client().await?;
            let Ok(outcome) = timeout(ZOOKEEPER_ANSWER, read(client)).await else {
                self.replace(&self.reads).await;
                return Err(self.no_answer());
            };
            match outcome {
                Err(Error::Unavailable { .. }) if Instant::now() < until => {
                    sleep(ZOOKEEPER_RETRY_PAUSE).await
                }
                outcome => return outcome,
            }
        }
    }

    /// The caller's error for a refused request, when it certainly changed nothing.
    pub fn refusal(&self, fault: &Fault, path: &str) -> Error {
        refusal(&self.target, fault, path)
    }

    /// Makes the root and the znodes above it. One that is there must be ours, or empty.
    async fn make_root(&self, client: &Client) -> Result<()> {
        for path in self.root.path_prefixes() {
            let failed = |fault: Fault| self.refusal(&fault, path);
            if client.check_stat(path).await.map_err(failed)?.is_some() {
                continue;
            }
            let mark = if path == self.root.as_str() { ROOT_MARK } else { &[] };
            match client.create(path, mark, &CreateMode::Persistent.with_acls(self.acls)).await {
                Ok(_) | Err(Fault::NodeExists) => {}
                Err(fault) => return Err(failed(fault)),
            }
        }
        let path = self.root.as_str();
        let (mark, _) = client.get_data(path).await.map_err(|fault| self.refusal(&fault, path))?;
        if mark.is_empty() || mark == ROOT_MARK {
            return Ok(());
        }
        let what = format!(
            "{}: the root holds what this program did not write there: it is left alone; choose another root",
            self.target
        );
        Err(Error::Invalid { what })
    }
}

fn refusal(target: &Target, fault: &Fault, path: &str) -> Error {
    let denied = |what: String| Error::Denied { location: target.to_string(), what };
    match fault {
        Fault::NoAuth => denied(format!(
            "no right on znode `{path}`: check user and password, or give them the rights with `setAcl`"
        )),
        Fault::InvalidAcl => {
            denied(format!("it knows no identity of ours to own znode `{path}`: check user and password"))
        }
        Fault::AuthFailed => denied("authentication failed: check user, password and certificate".to_owned()),
        Fault::QuotaExceeded => Error::NoRoom {
            location: target.to_string(),
            what: format!("the quota above znode `{path}` is used up: raise it with `setquota`"),
        },
        Fault::NoNode if !path.is_empty() => Error::Invalid {
            what: format!(
                "{target}: znode `{path}` is gone: somebody deleted the root while it was in use; restart, or restore a backup"
            ),
        },
        Fault::BadArguments(_) | Fault::Unimplemented | Fault::MarshallingError => Error::Invalid {
            what: format!("{target}: znode `{path}`: {fault}: ZooKeeper 3.6 or later is needed"),
        },
        _ => Error::Unavailable { what: format!("{target}: {fault}") },
    }
}

/// Everything about the connection but its session time; and the rights of new znodes.
async fn connector(target: &Target) -> Result<(Connector, Acls<'static>)> {
    let mut connector = Client::connector().with_fail_eagerly();
    if let Some(tls) = &target.tls {
        connector = connector.with_tls(tls_options(target, tls).await?);
    }
    match (&target.user, &target.password) {
        (Some(user), Some(password)) => {
            let credentials = format!("{user}:{}", password.reveal());
            Ok((connector.with_auth("digest", credentials.as_bytes()), Acls::creator_all()))
        }
        (None, None) => {
            tracing::warn!(
                %target,
                "no user and password: every client that can connect to it can read and change everything below the root"
            );
            Ok((connector, Acls::anyone_all()))
        }
        _ => {
            let what = format!("{target}: give both, user and password, or none of them");
            Err(Error::Invalid { what })
        }
    }
}

async fn tls_options(target: &Target, tls: &Tls) -> Result<TlsOptions> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that one is installed already: that will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let read = async |path: &std::path::Path| {
        let text = tokio::fs::read_to_string(path).await;
        text.map_err(|error| Error::Invalid {
            what: format!("{target}: TLS file `{}`: {error}", path.display()),
        })
    };
    let wrong = |path: &std::path::Path| {
        let path = path.display().to_string();
        move |fault: Fault| Error::Invalid {
            what: format!("{target}: TLS file `{path}`: {fault}; it must be PEM"),
        }
    };
    let options = TlsOptions::new().with_pem_ca(&read(&tls.ca).await?).map_err(wrong(&tls.ca))?;
    let Some((certificate, key)) = &tls.identity else { return Ok(options) };
    let (certificate_text, key_text) = (read(certificate).await?, read(key).await?);
    options.with_pem_identity(&certificate_text, &key_text).map_err(wrong(certificate))
}

async fn connect(target: &Target, servers: &str, connector: Connector) -> Result<Client> {
    let until = Instant::now() + ZOOKEEPER_PATIENCE;
    for attempt in 1..=ZOOKEEPER_CONNECT_ATTEMPTS {
        let connector = connector.clone();
        let connecting = async {
            if target.tls.is_some() {
                connector.secure_connect(servers).await
            } else {
                connector.connect(servers).await
            }
        };
        match timeout_at(until, connecting).await {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(fault @ (Fault::AuthFailed | Fault::BadArguments(_)))) => {
                return Err(refusal(target, &fault, ""));
            }
            Ok(Err(fault)) => tracing::debug!(%target, attempt, %fault, "not connected"),
            Err(_) => break,
        }
        sleep(ZOOKEEPER_RETRY_PAUSE).await;
    }
    let what = format!("{target} cannot be reached: {}; trying again may help", probe(target).await);
    Err(Error::Unavailable { what })
}

/// Why each server gave no answer.
async fn probe(target: &Target) -> String {
    let mut said = Vec::new();
    for host in &target.hosts {
        let reached = timeout(ZOOKEEPER_PROBE, TcpStream::connect((host.name.as_str(), host.port))).await;
        said.push(match reached {
            Ok(Ok(_)) if target.tls.is_some() => {
                format!("{host} listens, but there is no ZooKeeper with TLS and a certificate that our CA signed")
            }
            Ok(Ok(_)) => format!("{host} listens, but does not answer as ZooKeeper does: busy, without a quorum, or it wants TLS"),
            Ok(Err(error)) => format!("{host}: {error}"),
            Err(_) => format!("{host} does not answer"),
        });
    }
    said.join("; ")
}
