//! Where the coordination state lives, as people write it: `etcd://10.0.0.1:2379,10.0.0.2:2379/partage`.
//!
//! ```text
//! backend://[user@]host[:port][,host[:port]]…[/path]
//! ```
//!
//! The path is the cluster's root: a znode for ZooKeeper, a key prefix for etcd; for MySQL it is the database,
//! then, after a slash, the root in it. It has no secrets, as logs and process lists show it:
//! callers give them beside it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::key::Key;

/// The root of a cluster that was given none.
pub const DEFAULT_ROOT: &str = "partage";

/// A backend that keeps coordination state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backend {
    /// In the coordinator, on its own disk.
    Embedded,
    /// etcd 3.4 or later.
    Etcd,
    /// ZooKeeper 3.6 or later.
    ZooKeeper,
    /// MySQL or MariaDB: tables of our own in a database.
    MySql,
    /// No service at all; presence only.
    Gossip,
}

impl Backend {
    /// Every backend, for finding one by its name.
    pub const ALL: [Self; 5] = [Self::Embedded, Self::Etcd, Self::ZooKeeper, Self::MySql, Self::Gossip];

    /// Its name, also the scheme of its address and its cargo feature.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Etcd => "etcd",
            Self::ZooKeeper => "zookeeper",
            Self::MySql => "mysql",
            Self::Gossip => "gossip",
        }
    }

    /// The port of a server whose address names none; 0 for `embedded`, which has no address.
    #[must_use]
    pub const fn port(self) -> u16 {
        match self {
            Self::Embedded => 0,
            Self::Etcd => 2379,
            Self::ZooKeeper => 2181,
            Self::MySql => 3306,
            Self::Gossip => 7480,
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The address of a server of the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// A name or an IP address; an IPv6 address without its brackets.
    pub name: String,
    /// Its TCP port, or its UDP port for gossip.
    pub port: u16,
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

/// A word that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps `word`; only [`Secret::reveal`] gives it out.
    #[must_use]
    pub fn new(word: impl Into<String>) -> Self {
        Self(word.into())
    }

    /// The word, for the backend's client only.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// How a connection is protected. Files are PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The PEM file of the CA that signed the servers' certificates.
    pub ca: PathBuf,
    /// Our own certificate and its key, when the backend asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Where a gossip process listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address it listens on.
    pub at: SocketAddr,
    /// The address that others reach it at.
    pub advertise: SocketAddr,
}

/// A backend, its servers, and the cluster's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The kind of backend, such as etcd or ZooKeeper.
    pub backend: Backend,
    /// Its servers, at least one.
    pub hosts: Vec<ServerAddress>,
    /// The user to sign in as; MySQL needs one, and gossip uses none.
    pub user: Option<String>,
    /// The password of `user`. An address has none: callers read it from elsewhere.
    pub password: Option<Secret>,
    /// How connections are protected. None: they are in the clear.
    pub tls: Option<Tls>,
    /// MySQL: the database that holds our tables. None for every other backend.
    pub database: Option<String>,
    /// Gossip: where we are. None: on loopback, at a free port.
    pub listen: Option<Listen>,
    /// Gossip: the file of keys that datagrams are sealed with. None: they are in the clear.
    pub gossip_key_file: Option<PathBuf>,
    /// The cluster's root: segments with slashes between them.
    pub root: Key,
}

impl Target {
    /// Reads an address. The embedded backend has none: it is a directory.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |what: &str| Error::Invalid {
            what: format!(
                "coordination address {text:?}: {what}; write backend://host:port,host:port/root with one of the \
                 backends etcd, zookeeper, mysql, gossip"
            ),
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("there is no `://` in it"))?;
        let named = Backend::ALL.into_iter().find(|backend| backend.name() == scheme);
        let backend = named.filter(|backend| *backend != Backend::Embedded);
        let backend = backend.ok_or_else(|| wrong(&format!("{scheme:?} is no backend")))?;
        let (servers, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, servers) = match servers.rsplit_once('@') {
            Some((user, servers)) => (Some(user), servers),
            None => (None, servers),
        };
        if user.is_some_and(|user| user.contains(':')) {
            return Err(Error::Invalid {
                what: "a coordination address with a password in it is shown in logs and process lists: give the \
                       password in a file or in the environment"
                    .to_owned(),
            });
        }
        let hosts = servers.split(',').map(|server| server_address(server, backend.port()));
        let hosts = hosts.collect::<Option<Vec<_>>>().ok_or_else(|| wrong("a server is no host:port"))?;
        let path = path.trim_matches('/');
        let (database, root) = match backend {
            Backend::MySql => {
                let (database, root) = path.split_once('/').unwrap_or((path, ""));
                if database.is_empty() {
                    return Err(wrong("the database is missing: mysql://user@host/database"));
                }
                (Some(database.to_owned()), root)
            }
            _ => (None, path),
        };
        let root = Key::new(if root.is_empty() { DEFAULT_ROOT } else { root })?;
        let user = user.filter(|user| !user.is_empty()).map(str::to_owned);
        Ok(Self {
            backend,
            hosts,
            user,
            password: None,
            tls: None,
            database,
            listen: None,
            gossip_key_file: None,
            root,
        })
    }
}

/// Shown without anything secret, as it was written.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.backend)?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        for (place, host) in self.hosts.iter().enumerate() {
            write!(f, "{}{host}", if place > 0 { "," } else { "" })?;
        }
        if let Some(database) = &self.database {
            write!(f, "/{database}")?;
        }
        write!(f, "/{}", self.root)
    }
}

fn server_address(text: &str, port: u16) -> Option<ServerAddress> {
    let (name, given) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, after) = rest.split_once(']')?;
            (name, after.strip_prefix(':').or(after.is_empty().then_some(""))?)
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    let port = if given.is_empty() { port } else { given.parse().ok()? };
    (!name.is_empty() && !given.contains(':')).then(|| ServerAddress { name: name.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, shown) in [
            ("etcd://h", "etcd://h:2379/partage"),
            ("etcd://a:1,b:2/x/y", "etcd://a:1,b:2/x/y"),
            ("zookeeper://[::1]:7/z", "zookeeper://[::1]:7/z"),
            ("mysql://me@h/db", "mysql://me@h:3306/db/partage"),
            ("mysql://me@h/db/prod", "mysql://me@h:3306/db/prod"),
        ] {
            assert_eq!(Target::parse(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_address_says_why() {
        for (text, why) in [
            ("host:2379", "no `://`"),
            ("redis://h", "\"redis\" is no backend"),
            ("embedded://h", "\"embedded\" is no backend"),
            ("etcd://", "no host:port"),
            ("etcd://h:port", "no host:port"),
            ("etcd://a,,b", "no host:port"),
            ("mysql://me@h", "the database is missing"),
            ("mysql://me:word@h/db", "give the password in a file"),
            ("etcd://h/a//b", "empty segment"),
        ] {
            let error = Target::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(!error.contains("word@"), "{error}");
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        let mut target = Target::parse("mysql://me@h/db").unwrap();
        target.password = Some(Secret::new("hush"));
        assert!(!format!("{target:?} {target}").contains("hush"));
    }
}
