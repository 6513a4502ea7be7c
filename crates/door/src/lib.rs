//! Admission control for every HTTP listener of Partage: the coordinator's (JSON and gRPC), the router's,
//! the dataset node's, a worker's, and that of `partage up`.
//!
//! ```text
//! accept ──► first byte ──► place ──► head ──► admission ──► body, counted ──► service ──► answer, watched
//!    │           │            │         │          │              │                              │
//!  files      silent,     connections, slow  400, 403, 421   408, 413, 503                    stalled
//!            displaced      address    head
//! ```
//!
//! The door counts each refusal by its [`Reason`], and logs one line for each reason in ten seconds. It will
//! check certificates and rights, too. Other users of the machine could read the disk: [`state`] keeps them out.
//!
//! A [`Door`] belongs to one listener (or several threads of it); its [`Settings`], the [`Budget`] of bytes among them, to the
//! process.

mod admit;
mod bind;
mod body;
mod budget;
mod connection;
mod connection_limiter;
pub mod files;
mod hosts;
pub mod limits;
mod listen;
mod refusal;
pub mod state;
mod timeout_writer;
mod unreadable;
mod usage;

pub use admit::{AdmissionPolicy, Changes, has_dot_segment};
pub use bind::bind;
pub use body::RequestBody;
pub use budget::Budget;
pub use connection::{AcceptedConnection, DetachedConnection, Peer, Service, TowerService};
pub use hosts::Hosts;
pub use refusal::{Counts, Reason, Refusal};

use budget::ReservedBytes;
use connection_limiter::{ConnectionLimiter, ConnectionPermit};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// An operator's settings for all doors of a process.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Names beside the listener's own: hosts, or `host:port`; `*` for all.
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may ask, as browsers send them; `*` for all.
    pub allowed_origins: Vec<String>,
    /// Connections at a time; none = as many as the listener's role has.
    pub connections: Option<usize>,
    /// Connections from one address; none = half of all.
    pub connections_per_address: Option<usize>,
    /// Files that connections may take.
    pub files: usize,
    /// How long a connection may be silent before its first byte.
    pub first_byte: Duration,
    /// How long the head of a request may take.
    pub head: Duration,
    /// Bytes a second that a body must come with.
    pub body_bytes_s: u64,
    /// Over how long that rate is measured.
    pub body_window: Duration,
    /// How long a body may take that is counted whole.
    pub large_body: Duration,
    /// Bytes of bodies in memory.
    pub budget: Arc<Budget>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            connections: None,
            connections_per_address: None,
            files: usize::MAX,
            first_byte: limits::FIRST_BYTE,
            head: limits::HEAD,
            body_bytes_s: limits::BODY_BYTES_S,
            body_window: limits::BODY_WINDOW,
            large_body: limits::LARGE_BODY_TIME,
            budget: Arc::default(),
        }
    }
}

impl Settings {
    /// The settings for each of `listeners` of one process, which share its files.
    pub fn shared_by(self, listeners: usize) -> Settings {
        Settings { files: self.files / listeners.max(1), ..self }
    }
}

/// What a service does with request bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bodies {
    /// It is in memory until the request is answered.
    Kept,
    /// It is passed on piece by piece, unless it is no longer than `kept`.
    PassedOn {
        /// The longest body, in bytes, that is kept in memory whole.
        kept: u64,
    },
}

/// How connections end when the listener does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Each is closed at once, with the requests that are open on it.
    AtOnce,
    /// Each is closed when its requests are answered, but after this time at the latest.
    After(Duration),
}

/// What a door knows of its listener.
#[derive(Debug, Clone)]
pub struct Role {
    /// The addresses that others reach it at.
    pub announced: Vec<String>,
    /// The changes that need the mark.
    pub changes: Changes,
    /// What becomes of bodies.
    pub bodies: Bodies,
    /// Longest body, in bytes, of those that announce their length. The service limits the others.
    pub body_bytes: u64,
    /// Connections at a time, unless an operator says otherwise.
    pub connections: usize,
    /// How many files each may take.
    pub files_each: usize,
    /// How long a connection may ask nothing.
    pub idle: Duration,
    /// How long a request and its answer may make no progress; none: no limit.
    pub stalled: Option<Duration>,
    /// How long a client may read nothing of its answer.
    pub write: Duration,
    /// The most bytes of a request's head, its line and headers together.
    pub head_bytes: usize,
    /// The rest before an HTTP/2 ping, and how long its answer may take.
    pub ping: Duration,
    /// Requests at a time on one connection of HTTP/2.
    pub streams: u32,
    /// How much a client of HTTP/2 may send before the service reads it.
    pub windows: Windows,
    /// What becomes of open connections when the listener ends.
    pub ending: Ending,
}

impl Default for Role {
    fn default() -> Role {
        Role {
            announced: Vec::new(),
            changes: Changes::All,
            bodies: Bodies::Kept,
            body_bytes: u64::MAX,
            connections: 10_000,
            files_each: 1,
            idle: limits::IDLE,
            stalled: None,
            write: Duration::from_secs(30),
            head_bytes: 64 << 10,
            ping: Duration::from_secs(30),
            streams: 200,
            windows: Windows::default(),
            ending: Ending::AtOnce,
        }
    }
}

/// How many bytes a client of HTTP/2 may send before a service reads them. They are in memory beside the budget for bodies, so a
/// role has large windows only if it needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Bytes of one request (of one stream of HTTP/2).
    pub stream: u32,
    /// Bytes of all requests of a connection. While as many wait, no other body comes on it.
    pub connection: u32,
}

impl Default for Windows {
    /// A mebibyte of each: bodies are small, or services read them at once.
    fn default() -> Windows {
        Windows { stream: 1 << 20, connection: 1 << 20 }
    }
}

/// Bytes that count against the budget until it is dropped.
#[derive(Debug)]
pub struct Reservation(ReservedBytes);

impl Reservation {
    /// Holds `bytes` from now on; false, and as many as before, if there are not so many.
    pub fn set(&self, bytes: usize) -> bool {
        self.0.set(bytes as u64).is_ok()
    }
}

/// The admission control of one HTTP listener: limits and checks of connections and requests. A copy is the same one.
#[derive(Debug, Clone)]
pub struct Door(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    role: Role,
    policy: AdmissionPolicy,
    settings: Settings,
    limiter: Arc<ConnectionLimiter>,
    counts: Arc<Counts>,
}

impl Door {
    /// The door of a listener with that role.
    pub fn new(role: Role, settings: Settings) -> Door {
        let mut hosts = Hosts::new(settings.allowed_hosts.iter().map(String::as_str));
        role.announced.iter().for_each(|address| hosts.add_announced(address));
        let files = settings.files / role.files_each.max(1);
        let places = settings.connections.unwrap_or(role.connections);
        let policy =
            AdmissionPolicy { hosts, origins: settings.allowed_origins.clone(), changes: role.changes };
        let limiter = ConnectionLimiter::new(places, settings.connections_per_address, files);
        Door(Arc::new(Inner { role, policy, settings, limiter, counts: Arc::default() }))
    }

    /// Whether the listener answers to `host` on a connection that arrived at `local`.
    pub fn answers_to(&self, host: &str, local: IpAddr) -> bool {
        self.policy().hosts.allow(host, local)
    }

    /// A reservation for a connection that is served without [`Door::serve`], of a client with this address.
    pub fn reserve(&self, address: IpAddr) -> Reservation {
        Reservation(self.reserved_bytes(address))
    }

    fn reserved_bytes(&self, address: IpAddr) -> ReservedBytes {
        ReservedBytes::new(self.settings().budget.clone(), address)
    }

    /// How long the head of a request may take.
    pub fn head_limit(&self) -> Duration {
        self.settings().head
    }

    /// Counts a head that took longer.
    pub fn refuse_slow_head(&self) {
        self.counts().refused(Reason::SlowHead, &"the head of a request came too slowly");
    }

    /// Counts a connection that was closed since its client takes nothing of what is answered.
    pub fn refuse_stalled(&self) {
        self.counts().refused(Reason::Stalled, &"a client takes nothing of what is answered");
    }

    /// How often the door has refused something, by reason; all clones of the door share it.
    pub fn counts(&self) -> &Arc<Counts> {
        &self.0.counts
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.0.limiter.open()
    }

    /// Adds its metrics to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        self.counts().register(registry);
        let budget = &self.settings().budget;
        let gauges = [
            ("door_connections", "Connections that are open", self.connections() as u64),
            ("door_bytes_in_flight", "Bytes of request bodies in memory", budget.used()),
            ("door_bytes_in_flight_most", "The most of them that there may be", budget.most()),
        ];
        for (name, help, value) in gauges {
            let gauge = Gauge::<i64>::default();
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
            registry.register(name, help, gauge);
        }
    }

    /// Its metrics alone, in the text form of Prometheus.
    pub fn text(&self, prefix: &str) -> String {
        let mut registry = Registry::with_prefix(prefix);
        self.register(&mut registry);
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &registry);
        text.trim_end().trim_end_matches("# EOF").to_owned()
    }

    fn role(&self) -> &Role {
        &self.0.role
    }

    fn policy(&self) -> &AdmissionPolicy {
        &self.0.policy
    }

    fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Closes the oldest silent connection, to free its file.
    fn displace(&self) -> bool {
        self.0.limiter.displace()
    }

    fn enter(&self, address: IpAddr) -> (ConnectionPermit, bool) {
        self.0.limiter.enter(address)
    }
}
