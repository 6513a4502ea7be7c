//! What a connection is to its client: which table, which version of the protocol, which transaction.
//!
//! Commands of this module change the session or look at more than a row, so each is carried out when all before it are
//! answered.

mod client;
mod cluster;
mod describe;
mod hello;
mod scan;

use crate::command::rows::number;
use crate::command::{Command, Handler, Verb, recognize, wrong_count};
use crate::cursors::Cursors;
use crate::error;
use crate::execute;
use crate::limits;
use crate::reply::{Reply, Version};
use crate::request::Arguments;
use crate::table::{RequestError, Table, Tables};
use crate::transaction::{Queue, Watched, pong};
use partage_core::keyspace::key::Key;
use partage_service::table::replication::Consistency;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What all connections of a listener share.
pub struct Shared {
    /// The tables that the connections may choose from.
    pub tables: Arc<dyn Tables>,
    /// The places of scans.
    pub cursors: Cursors,
    /// How many connections were served so far: the last one has this number.
    pub connections: AtomicU64,
    /// How many commands have come so far, for `INFO`.
    pub commands: AtomicU64,
    /// When the listener began, in seconds of Unix time.
    pub began_s: u64,
}

impl Shared {
    /// What all connections of a listener with those tables share.
    pub fn new(tables: Arc<dyn Tables>) -> Shared {
        Shared {
            tables,
            cursors: Cursors::default(),
            connections: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            began_s: partage_clock::unix_seconds(),
        }
    }
}

/// The state of one connection.
pub struct Session {
    shared: Arc<Shared>,
    id: u64,
    peer: SocketAddr,
    local: String,
    name: Vec<u8>,
    library: (Vec<u8>, Vec<u8>),
    began_s: u64,
    version: Version,
    /// The table of the connection; none until it is known.
    table: OnceLock<Arc<dyn Table>>,
    reads_any: bool,
    queue: Option<Queue>,
    watched: Watched,
    /// The key that the connection has written last.
    pub(crate) last_written: Option<Key>,
    is_over: bool,
}

impl Session {
    /// A new connection between these addresses.
    pub fn new(shared: Arc<Shared>, peer: SocketAddr, local: String) -> Session {
        let id = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
        Session {
            shared,
            id,
            peer,
            local,
            name: Vec::new(),
            library: Default::default(),
            began_s: partage_clock::unix_seconds(),
            version: Version::Two,
            table: OnceLock::new(),
            reads_any: false,
            queue: None,
            watched: Watched::new(),
            last_written: None,
            is_over: false,
        }
    }

    /// The version of the protocol that the client wants.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether the client has said that it goes.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether a transaction has begun, so that commands are queued.
    pub fn is_queueing(&self) -> bool {
        self.queue.is_some()
    }

    /// The table: the default of the listener, unless the client has said one. A listener that has just begun may learn later
    /// of its tables.
    ///
    /// # Errors
    /// The client must say which one first, or there is none yet.
    pub fn table(&self) -> Result<&Arc<dyn Table>, Reply> {
        if let Some(table) = self.known_table() {
            return Ok(table);
        }
        let names = self.shared.tables.names().join(", ");
        Err(match names.as_str() {
            "" => error::reply(&RequestError::NotServed("no table is known here yet".to_owned())),
            names => Reply::Error(format!(
                "NOAUTH Authentication required: the user name says which table is meant ({names}); any password will do"
            )),
        })
    }

    fn known_table(&self) -> Option<&Arc<dyn Table>> {
        if self.table.get().is_none()
            && let Some(default) = self.shared.tables.default_table()
        {
            return Some(self.table.get_or_init(|| default));
        }
        self.table.get()
    }

    /// How the connection reads.
    pub fn consistency(&self) -> Consistency {
        if self.reads_any { Consistency::Any } else { Consistency::Linearizable }
    }

    /// A command was dropped before it was understood: it cannot be part of a transaction.
    pub fn refuse(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.refuse();
        }
    }

    /// Carries out a command; all before it are answered.
    pub async fn execute(&mut self, arguments: Arguments<'_>) -> Reply {
        if let Some(queue) = &mut self.queue {
            let leaves = |command: &Command| {
                use Verb::{Discard, Exec, Multi, Quit, Reset, Watch};
                matches!(command.handler, Handler::Session(Discard | Exec | Multi | Quit | Reset | Watch))
            };
            if !recognize(arguments).is_ok_and(leaves) {
                return queue.add(arguments);
            }
        }
        let done = match recognize(arguments) {
            Err(refusal) => Err(refusal),
            Ok(command) => match command.handler {
                Handler::Session(verb) => self.session(verb, arguments).await,
                Handler::Rows(parse) => self.rows(parse, arguments).await,
            },
        };
        done.unwrap_or_else(|refusal| refusal)
    }

    async fn rows(
        &mut self,
        parse: fn(Arguments<'_>, u64) -> crate::command::Parsed,
        arguments: Arguments<'_>,
    ) -> Result<Reply, Reply> {
        let table = self.table()?.clone();
        let rows = parse(arguments, table.now_ms())?;
        if !rows.only_reads() {
            self.last_written = rows.steps.last().map(|step| step.key.clone());
        }
        Ok(execute::rows(&*table, &rows, self.consistency()).await)
    }

    async fn session(&mut self, verb: Verb, arguments: Arguments<'_>) -> Result<Reply, Reply> {
        match verb {
            Verb::Asking => Ok(Reply::OK),
            Verb::Auth => self.auth(arguments),
            Verb::Client => self.client(arguments),
            Verb::Cluster => self.cluster(arguments).await,
            Verb::Command => describe::command(arguments),
            Verb::DbSize => {
                let counted = self.table()?.count(self.consistency()).await;
                let count = counted.map_err(|error| error::reply(&error))?;
                Ok(Reply::Integer(i64::try_from(count).unwrap_or(i64::MAX)))
            }
            Verb::Discard => self.discard(),
            Verb::Echo => Ok(Reply::Bytes(arguments.get(1).to_vec())),
            Verb::Exec => self.exec().await,
            Verb::Hello => self.hello(arguments),
            Verb::Info => self.info(arguments).await,
            Verb::Multi => self.multi(),
            Verb::Ping => Ok(pong(arguments)),
            Verb::Quit => {
                self.is_over = true;
                Ok(Reply::OK)
            }
            Verb::RandomKey => {
                let found = self.table()?.any_key(partage_random::seed(), self.consistency()).await;
                let key = found.map_err(|error| error::reply(&error))?;
                Ok(key.map_or(Reply::Null, |key| Reply::Bytes(key.as_bytes().to_vec())))
            }
            Verb::ReadOnly | Verb::ReadWrite => {
                self.reads_any = verb == Verb::ReadOnly;
                Ok(Reply::OK)
            }
            Verb::Reset => {
                self.reset();
                Ok(Reply::Word("RESET"))
            }
            Verb::Scan => self.scan(arguments).await,
            Verb::Select => match number(arguments.get(1))? {
                0 => Ok(Reply::OK),
                _ => Err(Reply::error("DB index is out of range")),
            },
            Verb::Unwatch => {
                self.watched.clear();
                Ok(Reply::OK)
            }
            Verb::Wait => self.wait(arguments).await,
            Verb::Watch => self.watch(arguments).await,
        }
    }

    fn reset(&mut self) {
        self.table = OnceLock::new();
        self.version = Version::Two;
        (self.queue, self.reads_any) = (None, false);
        self.watched.clear();
        self.name.clear();
    }

    fn multi(&mut self) -> Result<Reply, Reply> {
        if self.queue.is_some() {
            return Err(Reply::error("MULTI calls can not be nested"));
        }
        self.table()?;
        self.queue = Some(Queue::default());
        Ok(Reply::OK)
    }

    fn discard(&mut self) -> Result<Reply, Reply> {
        self.queue.take().ok_or_else(|| Reply::error("DISCARD without MULTI"))?;
        self.watched.clear();
        Ok(Reply::OK)
    }

    async fn exec(&mut self) -> Result<Reply, Reply> {
        let queue = self.queue.take().ok_or_else(|| Reply::error("EXEC without MULTI"))?;
        let watched = std::mem::take(&mut self.watched);
        let table = self.table()?.clone();
        if let Some(key) = queue.last_key() {
            self.last_written = Some(key);
        }
        Ok(queue.execute(&*table, watched).await)
    }

    async fn watch(&mut self, arguments: Arguments<'_>) -> Result<Reply, Reply> {
        if self.queue.is_some() {
            return Err(Reply::error("WATCH inside MULTI is not allowed"));
        }
        let table = self.table()?.clone();
        for argument in arguments.from(1) {
            let key = crate::command::rows::key(argument)?;
            if self.watched.contains_key(&key) {
                continue;
            }
            if self.watched.len() >= limits::WATCHED_KEYS {
                let text = format!("a connection watches at most {} keys", limits::WATCHED_KEYS);
                return Err(Reply::error(text));
            }
            let row = execute::read(&*table, &key, Consistency::Linearizable).await;
            let row = row.map_err(|error| error::reply(&error))?;
            self.watched.insert(key, row.map(|row| row.version));
        }
        Ok(Reply::OK)
    }

    /// All in-sync replicas have what was acknowledged, so there is nothing to wait for.
    async fn wait(&mut self, arguments: Arguments<'_>) -> Result<Reply, Reply> {
        number(arguments.get(1))?;
        let timeout = number(arguments.get(2))
            .map_err(|_| Reply::error("timeout is not an integer or out of range"))?;
        if timeout < 0 {
            return Err(Reply::error("timeout is negative"));
        }
        let counted = self.table()?.in_sync(self.last_written.as_ref()).await;
        let in_sync = counted.map_err(|error| error::reply(&error))?;
        Ok(Reply::Integer(in_sync.saturating_sub(1) as i64))
    }
}

/// A subcommand in lower case, and whether the number of its arguments is right.
fn subcommand<'a>(
    arguments: Arguments<'a>,
    counts: &[(&str, std::ops::RangeInclusive<usize>)],
) -> Result<String, Reply> {
    let name = arguments.get(1).to_ascii_lowercase();
    let of = arguments.get(0).to_ascii_lowercase();
    let (name, of) = (String::from_utf8_lossy(&name), String::from_utf8_lossy(&of));
    let known = counts.iter().find(|(known, _)| *known == name);
    let (name, counts) = known.ok_or_else(|| {
        let shown = crate::reply::shown(arguments.get(1));
        let known: Vec<String> = counts.iter().map(|(known, _)| known.to_ascii_uppercase()).collect();
        let (known, of) = (known.join(", "), of.to_ascii_uppercase());
        Reply::error(format_args!("unknown subcommand '{shown}' of {of}: there are {known}"))
    })?;
    if counts.contains(&arguments.len()) {
        Ok((*name).to_owned())
    } else {
        Err(wrong_count(&format!("{of}|{name}")))
    }
}
