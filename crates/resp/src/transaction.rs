//! `MULTI`, `WATCH` and `EXEC`: several commands as one batch.
//!
//! All keys of a transaction, and all watched keys, have one partition key. `WATCH` keeps the version of a row, or that there is
//! none, and each becomes a condition of the batch. The session carries out the commands in one of two ways:
//!
//! - *At once*, where each command is one or more operations without a condition: they become the batch, in their order.
//! - *Prepared*, for all others (`SET … NX`, `EXPIRE … GT`), for transactions that only read, and where an operation was
//!   refused, which in Redis is an answer of its own and does not stop the others. The session reads the rows, carries out the
//!   commands on a copy in memory, and writes the changes under the condition that no row has changed since; if one has, it
//!   begins again.
//!
//! Either way it is one entry of the log, so that no one sees a part of it.

use crate::command::rows::{Combine, Rows, Step};
use crate::command::{Command, Handler, Verb, recognize};
use crate::error;
use crate::execute::{self, are_alike, changed_too_often, read_all, write};
use crate::limits;
use crate::memory::MemoryTable;
use crate::reply::Reply;
use crate::request::{Arguments, OwnedArguments};
use crate::table::{RequestError, Table};
use partage_core::keyspace::key::Key;
use partage_core::limits::BATCH_OPERATIONS;
use partage_service::table::replication::{Consistency, LogPosition};
use partage_service::table::rows::{Action, Condition, Expiry, Operation, Outcome, Row};
use std::collections::BTreeMap;

/// The rows that a connection watches, with the version that each had.
pub type Watched = BTreeMap<Key, Option<LogPosition>>;

/// Commands that wait for `EXEC`.
#[derive(Debug, Default)]
pub struct Queue {
    commands: Vec<(&'static Command, OwnedArguments)>,
    bytes: usize,
    /// A command was refused, so that nothing will be done.
    is_broken: bool,
}

impl Queue {
    /// Adds a command, or refuses it and with it the transaction.
    pub fn add(&mut self, arguments: Arguments<'_>) -> Reply {
        let added = recognize(arguments).and_then(|command| self.add_known(command, arguments));
        match added {
            Ok(()) => Reply::Word("QUEUED"),
            Err(refusal) => {
                self.is_broken = true;
                refusal
            }
        }
    }

    fn add_known(&mut self, command: &'static Command, arguments: Arguments<'_>) -> Result<(), Reply> {
        if !matches!(
            command.handler,
            Handler::Rows(_) | Handler::Session(Verb::Ping | Verb::Echo | Verb::Unwatch)
        ) {
            return Err(Reply::error("Command not allowed inside a transaction"));
        }
        let arguments = arguments.to_owned();
        self.bytes += arguments.bytes();
        if self.commands.len() >= limits::QUEUED_COMMANDS || self.bytes > limits::QUEUED_BYTES {
            return Err(Reply::error(format_args!(
                "a transaction has at most {} commands and {} bytes",
                limits::QUEUED_COMMANDS,
                limits::QUEUED_BYTES
            )));
        }
        self.commands.push((command, arguments));
        Ok(())
    }

    /// How many commands wait.
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// The first key of the last command that has one.
    pub fn last_key(&self) -> Option<Key> {
        let last = self.commands.iter().rfind(|(command, _)| command.keys.0 > 0);
        last.and_then(|(_, arguments)| Key::new(arguments.as_arguments().get(1)).ok())
    }

    /// The transaction will not be done.
    pub fn refuse(&mut self) {
        self.is_broken = true;
    }

    /// Carries the commands out as one, if the watched rows are as they were.
    pub async fn execute(self, table: &dyn Table, watched: Watched) -> Reply {
        if self.is_broken {
            let text = "EXECABORT Transaction discarded because of previous errors.";
            return Reply::Error(text.to_owned());
        }
        let now_ms = table.now_ms();
        let each = self.commands.iter().map(|(command, arguments)| {
            let arguments = arguments.as_arguments();
            match command.handler {
                Handler::Rows(parse) => parse(arguments, now_ms),
                Handler::Session(Verb::Echo) => Err(Reply::Bytes(arguments.get(1).to_vec())),
                // With the transaction nothing is watched any more anyway.
                Handler::Session(Verb::Unwatch) => Err(Reply::OK),
                Handler::Session(_) => Err(pong(arguments)),
            }
        });
        let transaction = Transaction { table, watched, commands: each.collect() };
        transaction.execute().await.unwrap_or_else(|error| error::reply(&error))
    }
}

/// The answer to `PING`.
pub fn pong(arguments: Arguments<'_>) -> Reply {
    match arguments.len() {
        1 => Reply::Word("PONG"),
        2 => Reply::Bytes(arguments.get(1).to_vec()),
        _ => crate::command::wrong_count("ping"),
    }
}

struct Transaction<'a> {
    table: &'a dyn Table,
    watched: Watched,
    /// What each command does, or is answered with in any case.
    commands: Vec<Result<Rows, Reply>>,
}

impl Transaction<'_> {
    async fn execute(self) -> Result<Reply, RequestError> {
        let by = self.table.partition_key();
        let keys = self.steps().map(|step| &step.key).chain(self.watched.keys());
        if !are_alike(keys, |key| by.of(key.as_bytes())) {
            return Ok(error::cross_slot());
        }
        if self.steps().next().is_none() && self.watched.is_empty() {
            return Ok(Reply::Array(self.answers(std::iter::empty())));
        }
        if let Some(reply) = self.at_once().await? {
            return Ok(reply);
        }
        for _ in 0..limits::TRIES {
            if let Some(reply) = self.prepared().await? {
                return Ok(reply);
            }
        }
        Err(changed_too_often())
    }

    fn steps(&self) -> impl Iterator<Item = &Step> {
        self.commands.iter().flatten().flat_map(|rows| &rows.steps)
    }

    /// The answers of all commands, of those on rows from theirs.
    fn answers(&self, mut of_rows: impl Iterator<Item = Reply>) -> Vec<Reply> {
        let answer = |command: &Result<Rows, Reply>| match command {
            Ok(_) => of_rows.next().unwrap_or(Reply::Null),
            Err(reply) => reply.clone(),
        };
        self.commands.iter().map(answer).collect()
    }

    /// The batch that all commands are, if they can be one; none if they must be prepared.
    fn batch(&self) -> Option<Vec<Operation>> {
        if self.commands.iter().flatten().all(Rows::only_reads) {
            return None;
        }
        let mut operations: Vec<Operation> =
            self.watched.iter().map(|(key, version)| unchanged(key, *version)).collect();
        for step in self.steps() {
            operations.push(step.operation().filter(|operation| operation.condition == Condition::Always)?);
        }
        // Its own former state is what a command answers with that is done only if all rows are absent.
        let is_plain = |rows: &Rows| rows.combine != Combine::Flag;
        let fits = operations.len() <= BATCH_OPERATIONS && self.commands.iter().flatten().all(is_plain);
        fits.then_some(operations)
    }

    async fn at_once(&self) -> Result<Option<Reply>, RequestError> {
        let Some(operations) = self.batch() else { return Ok(None) };
        let now_ms = self.table.now_ms();
        match self.table.write(write(operations)).await? {
            Outcome::Done { results, .. } => {
                let mut results = results.into_iter().skip(self.watched.len());
                let of_rows = self.commands.iter().flatten().map(|rows| {
                    let done = rows.steps.iter().zip(results.by_ref());
                    rows.combined(done.map(|(step, done)| step.done(done, now_ms)).collect())
                });
                let of_rows: Vec<Reply> = of_rows.collect();
                Ok(Some(Reply::Array(self.answers(of_rows.into_iter()))))
            }
            Outcome::NotMet { .. } => Ok(Some(Reply::NullArray)),
            // In Redis the others are done.
            Outcome::Refused { .. } => Ok(None),
            other @ Outcome::RequestIdTaken => Ok(Some(error::unexpected(&other))),
        }
    }

    /// What is written for a row that ends at `end` on the copy, where the time was `now_ms`: the time to live that a command has
    /// given it, so that it counts by the clock of the leader; else that time itself.
    fn expiry(&self, key: &Key, before: Option<&Row>, end: u64, now_ms: u64) -> Expiry {
        let is_as_before = before.and_then(|row| row.expires_ms) == Some(end);
        let mut given = self.steps().filter(|step| step.key == *key).filter_map(Step::ttl_ms);
        match given.find(|ttl_ms| !is_as_before && now_ms.saturating_add(*ttl_ms) == end) {
            Some(ttl_ms) => Expiry::After(ttl_ms),
            None => Expiry::At(end),
        }
    }

    /// Carries all of it out on a copy, and writes what has changed. None: rows have changed meanwhile.
    async fn prepared(&self) -> Result<Option<Reply>, RequestError> {
        let mut keys: Vec<Key> = self.steps().map(|step| step.key.clone()).collect();
        keys.extend(self.watched.keys().cloned());
        keys.sort_unstable();
        keys.dedup();
        if keys.len() > BATCH_OPERATIONS {
            let text = format!("the transaction has {} keys and may have {BATCH_OPERATIONS}", keys.len());
            return Err(RequestError::Invalid(text));
        }
        let now_ms = self.table.now_ms();
        let before = read_all(self.table, keys.clone(), Consistency::Linearizable).await?;
        let before: BTreeMap<Key, Option<Row>> = keys.into_iter().zip(before).collect();
        let version = |key| before.get(key).and_then(Option::as_ref).map(|row| row.version);
        if self.watched.iter().any(|(key, watched)| version(key) != *watched) {
            return Ok(Some(Reply::NullArray));
        }
        let rows = before.iter().filter_map(|(key, row)| Some((key.clone(), row.clone()?)));
        let copy = MemoryTable::of(self.table.partition_key(), now_ms, rows);
        let mut of_rows = Vec::new();
        for rows in self.commands.iter().flatten() {
            of_rows.push(execute::rows(&copy, rows, Consistency::Linearizable).await);
        }
        let operations = before.iter().map(|(key, row)| {
            let ended = |end| self.expiry(key, row.as_ref(), end, now_ms);
            change(key, row.as_ref(), copy.row(key), ended)
        });
        let operations: Vec<Operation> = operations.collect();
        let reply = Some(Reply::Array(self.answers(of_rows.into_iter())));
        if operations.iter().all(|operation| operation.action == Action::Read) {
            return Ok(reply);
        }
        match self.table.write(write(operations)).await? {
            Outcome::Done { .. } => Ok(reply),
            Outcome::NotMet { .. } => Ok(None),
            other @ (Outcome::Refused { .. } | Outcome::RequestIdTaken) => {
                Ok(Some(error::unexpected(&other)))
            }
        }
    }
}

fn condition(version: Option<LogPosition>) -> Condition {
    version.map_or(Condition::Absent, Condition::Version)
}

/// A row is as it was.
fn unchanged(key: &Key, version: Option<LogPosition>) -> Operation {
    Operation { key: key.clone(), condition: condition(version), action: Action::Read, wants_former: false }
}

/// What makes the row from what it was, if it still is that.
fn change(key: &Key, before: Option<&Row>, after: Option<Row>, expiry: impl Fn(u64) -> Expiry) -> Operation {
    let action = match after {
        after if after.as_ref() == before => Action::Read,
        None => Action::Delete,
        Some(row) => Action::Put(row.value, row.expires_ms.map_or(Expiry::Never, expiry)),
    };
    let condition = condition(before.map(|row| row.version));
    Operation { key: key.clone(), condition, action, wants_former: false }
}
