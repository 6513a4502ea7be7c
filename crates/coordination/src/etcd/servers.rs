//! The servers of one etcd: which to ask, which next, and what a missing answer means.
//!
//! The client asks one until it fails, then the next. It may send a read twice, a change only when the first server
//! certainly did not do it. [`Servers::call`] decides that once, for all requests; `outcome` decides what a status
//! means.
//!
//! | what happened                             | a read            | a change          |
//! |-------------------------------------------|-------------------|-------------------|
//! | no connection, or refused before it was proposed | the next server | the next server |
//! | no answer in time, or the stream broke    | the next server   | `Indefinite`      |
//! | the token is not taken                    | sign in, again    | sign in, again    |
//! | a definite error                          | that error        | that error        |

use std::future::Future;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use tokio::time::{Instant, timeout_at};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Response, Status};

use crate::error::{Error, Result};
use crate::limits::{
    ETCD_ATTEMPT, ETCD_CONNECT, ETCD_CONNECTION_WINDOW_BYTES, ETCD_KEEP_ALIVE, ETCD_KEEP_ALIVE_ANSWER,
    ETCD_REQUEST, ETCD_STREAM_WINDOW_BYTES,
};
use crate::target::{Secret, Target, Tls};

use super::outcome::{self, AttemptError};
use super::proto::auth_client::AuthClient;
use super::proto::{AuthenticateRequest, ResponseHeader};

type Token = MetadataValue<Ascii>;

/// Whether a request may be repeated without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It changes nothing, or is idempotent.
    Read,
    /// It changes something: it is sent again only if it was certainly not done.
    Change,
}

/// A channel to one server, for one request.
#[derive(Clone, Debug)]
pub(super) struct ServerChannel {
    pub channel: Channel,
    token: Option<Token>,
}

impl ServerChannel {
    /// A request with our token; a server without a leader refuses it instead of waiting.
    pub fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }
}

#[derive(Debug)]
struct Server {
    endpoint: Endpoint,
    /// Replaced when silent: a new connection may take another way.
    channel: Mutex<Channel>,
}

/// All servers of the target.
#[derive(Debug)]
pub(super) struct Servers {
    location: String,
    prefix: String,
    servers: Vec<Server>,
    /// Counts up; modulo the servers it is the current one.
    turn: AtomicUsize,
    credentials: Option<(String, Secret)>,
    token: RwLock<Option<Token>>,
    /// The latest revision in any answer.
    seen: AtomicI64,
    /// Held while one call signs in; the others wait, and take the token it got.
    signing_in: tokio::sync::Mutex<()>,
}

impl Servers {
    /// Reads the certificates; connects when the first request is sent.
    pub fn of(target: &Target, prefix: &str) -> Result<Self> {
        let tls = target.tls.as_ref().map(read_tls).transpose()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let location = target.to_string();
        let servers = target.hosts.iter().map(|host| {
            let wrong = |error: tonic::transport::Error| Error::Invalid {
                what: format!("{location}: {}", causes(&error)),
            };
            let endpoint = Endpoint::from_shared(format!("{scheme}://{host}")).map_err(wrong)?;
            let endpoint = match &tls {
                Some(tls) => {
                    endpoint.tls_config(tls.clone().domain_name(host.name.clone())).map_err(wrong)?
                }
                None => endpoint,
            };
            let endpoint = endpoint
                .connect_timeout(ETCD_CONNECT)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(ETCD_KEEP_ALIVE)
                .keep_alive_timeout(ETCD_KEEP_ALIVE_ANSWER)
                .keep_alive_while_idle(true)
                .initial_stream_window_size(ETCD_STREAM_WINDOW_BYTES)
                .initial_connection_window_size(ETCD_CONNECTION_WINDOW_BYTES);
            Ok(Server { channel: Mutex::new(endpoint.connect_lazy()), endpoint })
        });
        let servers = servers.collect::<Result<Vec<_>>>()?;
        let credentials = match (&target.user, &target.password) {
            (Some(user), Some(password)) => Some((user.clone(), password.clone())),
            (None, None) => None,
            (Some(user), None) => {
                let what = format!(
                    "{location} names the user {user} but no password was given: give both, or neither"
                );
                return Err(Error::Invalid { what });
            }
            (None, Some(_)) => {
                let what =
                    format!("a password was given but {location} names no user: write etcd://user@host:port");
                return Err(Error::Invalid { what });
            }
        };
        Ok(Self {
            location,
            prefix: prefix.to_owned(),
            servers,
            turn: AtomicUsize::new(0),
            credentials,
            token: RwLock::new(None),
            seen: AtomicI64::new(0),
            signing_in: tokio::sync::Mutex::new(()),
        })
    }

    /// The target, for messages.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// The latest revision in an answer: a change sent from now on gets a later one.
    pub fn seen(&self) -> i64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Notes the revision in an answer.
    pub fn learned(&self, header: Option<&ResponseHeader>) {
        if let Some(header) = header {
            self.seen.fetch_max(header.revision, Ordering::Relaxed);
        }
    }

    /// The server whose turn it is, with our token. [`Servers::give_up_on`] takes the number.
    pub fn current(&self) -> (usize, ServerChannel) {
        let turn = self.turn.load(Ordering::Relaxed);
        let channel = self.server(turn).channel.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let token = self.token.read().unwrap_or_else(PoisonError::into_inner).clone();
        (turn, ServerChannel { channel, token })
    }

    fn server(&self, turn: usize) -> &Server {
        &self.servers[turn % self.servers.len()]
    }

    /// Makes the next server current, unless another call has already.
    pub fn give_up_on(&self, turn: usize) {
        let next = turn.wrapping_add(1);
        let _ = self.turn.compare_exchange(turn, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Replaces a silent connection, as nothing else tells a lost one from a slow one.
    fn hang_up(&self, turn: usize) {
        let server = self.server(turn);
        *server.channel.lock().unwrap_or_else(PoisonError::into_inner) = server.endpoint.connect_lazy();
    }

    /// What a status means here.
    pub fn attempt_error(&self, status: &Status) -> AttemptError {
        outcome::read(status, &self.location, &self.prefix)
    }

    /// Signs in, if there are credentials and none did since `server` was given out.
    pub async fn sign_in(&self, server: Option<&ServerChannel>) -> Result<()> {
        let Some((user, password)) = &self.credentials else { return Ok(()) };
        let _one_at_a_time = self.signing_in.lock().await;
        let now = self.token.read().unwrap_or_else(PoisonError::into_inner).clone();
        if server.is_some_and(|server| server.token != now) {
            return Ok(());
        }
        let asked = self.ask(Kind::Read, |server| async move {
            let message = AuthenticateRequest { name: user.clone(), password: password.reveal().to_owned() };
            AuthClient::new(server.channel).authenticate(message).await
        });
        let token = match asked.await {
            Ok(answer) => Some(answer.token.parse().map_err(|_| Error::Unavailable {
                what: format!("{} gave a token that is no text: check that it is an etcd", self.location),
            })?),
            // Without authentication etcd would refuse a token.
            Err(Failed::Error(Error::Invalid { what })) if what.contains("authentication is not enabled") => {
                tracing::warn!(target = %self.location, "etcd does not ask who we are: turn its authentication on");
                None
            }
            Err(failed) => return Err(self.error(failed)),
        };
        *self.token.write().unwrap_or_else(PoisonError::into_inner) = token;
        Ok(())
    }

    /// Asks until there is an answer or no further try is allowed.
    pub async fn call<T, F>(&self, kind: Kind, send: impl Fn(ServerChannel) -> F) -> Result<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let server = match self.ask(kind, &send).await {
            Err(Failed::Token(server, _)) => server,
            outcome => return outcome.map_err(|failed| self.error(failed)),
        };
        // A refused token changed nothing: even a change may be sent again.
        self.sign_in(Some(&server)).await?;
        self.ask(kind, &send).await.map_err(|failed| self.error(failed))
    }

    async fn ask<T, F>(&self, kind: Kind, send: impl Fn(ServerChannel) -> F) -> Result<T, Failed>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let end = Instant::now() + ETCD_REQUEST;
        // A read asks a lone server twice: its connection may be from before a restart.
        let mut attempts = self.servers.len().max(2);
        let mut untried = self.servers.len();
        loop {
            let (turn, server) = self.current();
            let until = match kind {
                Kind::Read => end.min(Instant::now() + ETCD_ATTEMPT),
                Kind::Change => end,
            };
            let trouble = match timeout_at(until, send(server.clone())).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => self.attempt_error(&status),
                Err(_) => {
                    self.hang_up(turn);
                    AttemptError::Unknown("no answer in time".to_owned())
                }
            };
            attempts -= 1;
            let more = attempts > 0 && Instant::now() < end;
            match trouble {
                AttemptError::Refused(error) => return Err(Failed::Error(error)),
                AttemptError::Token(what) => return Err(Failed::Token(server, what)),
                AttemptError::NotDone(what) => {
                    self.give_up_on(turn);
                    untried -= 1;
                    if untried == 0 || !more {
                        return Err(Failed::NotDone(what));
                    }
                }
                AttemptError::Unknown(what) => {
                    self.give_up_on(turn);
                    match kind {
                        Kind::Change => return Err(Failed::Unknown(what)),
                        Kind::Read if more => {}
                        Kind::Read => return Err(Failed::NotDone(what)),
                    }
                }
            }
        }
    }

    fn error(&self, failed: Failed) -> Error {
        let location = &self.location;
        match failed {
            Failed::Error(error) => error,
            Failed::NotDone(what) => Error::Unavailable {
                what: format!(
                    "{location}: {what}: check that etcd runs there, has a leader, and can be reached"
                ),
            },
            Failed::Unknown(what) => Error::Indefinite { what: format!("{location}: {what}") },
            Failed::Token(_, what) => Error::Denied {
                location: location.clone(),
                what: match self.credentials {
                    Some(_) => format!("{what}: it took the password, and then not its own token"),
                    None => format!("{what}: it asks who we are: give a user and a password"),
                },
            },
        }
    }
}

/// Why there is no answer.
#[derive(Debug)]
enum Failed {
    Error(Error),
    NotDone(String),
    Unknown(String),
    Token(ServerChannel, String),
}

fn read_tls(tls: &Tls) -> Result<ClientTlsConfig> {
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|error| Error::Invalid {
            what: format!("cannot read `{}`: {error}: check the path and the rights", path.display()),
        })
    };
    let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&tls.ca)?));
    match &tls.identity {
        Some((certificate, key)) => Ok(config.identity(Identity::from_pem(read(certificate)?, read(key)?))),
        None => Ok(config),
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}
