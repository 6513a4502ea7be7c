//! The writer: takes requests, decides them, makes them durable, applies them, answers. In that order.
//!
//! Requests that wait together share one record and one fsync. Nothing is visible to a reader, and no
//! answer is given, not even a refusal, before the record that it may depend on is on disk.

use std::sync::{Arc, Mutex, OnceLock, RwLock};

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::limits::{EMBEDDED_MAX_BATCH_BYTES, EMBEDDED_MAX_BATCH_REQUESTS};
use crate::session::SessionId;
use crate::transaction::{Transaction, Version};

use super::journal::{AppendError, Journal};
use super::sessions::Sessions;
use super::tree::{Pending, Tree};

/// What readers, watchers and the writer share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub tree: RwLock<Tree>,
    pub sessions: Mutex<Sessions>,
    /// Wakes the task that ends sessions.
    pub sessions_changed: Notify,
    /// The version of the tree; sending it wakes the watchers, and so does [`Shared::stop`].
    pub published: watch::Sender<Version>,
    /// Why the store has stopped, once it has.
    pub stopped: OnceLock<String>,
}

impl Shared {
    /// The reason why the store has stopped, as an error.
    pub fn check(&self) -> Result<()> {
        self.stopped.get().map_or(Ok(()), |what| Err(Error::Unavailable { what: what.clone() }))
    }

    /// Lets `read` see the tree; an error once the store has stopped.
    pub fn with_tree<T>(&self, read: impl FnOnce(&Tree) -> T) -> Result<T> {
        self.check()?;
        self.tree.read().map(|tree| read(&tree)).map_err(|_| panicked())
    }

    /// Reads or changes the sessions.
    pub fn with_sessions<T>(&self, act: impl FnOnce(&mut Sessions) -> T) -> Result<T> {
        self.check()?;
        self.sessions.lock().map(|mut sessions| act(&mut sessions)).map_err(|_| panicked())
    }

    /// Refuses everything from now on.
    pub fn stop(&self, why: String) {
        if self.stopped.set(why).is_ok() {
            self.published.send_modify(|_| {});
        }
    }
}

fn panicked() -> Error {
    let what =
        "the store has stopped after a fault of this program: restart it, and report the fault".to_owned();
    Error::Unavailable { what }
}

/// A request to the writer.
#[derive(Debug)]
pub(crate) enum Request {
    Commit(Transaction),
    EndSession(SessionId),
    /// Takes room for a transaction of so many bytes.
    MakeRoom(u64),
    /// Closes the journal and frees its lock.
    Close,
}

/// A request, and where its answer goes.
#[derive(Debug)]
pub(crate) struct Asked {
    pub request: Request,
    pub answer: oneshot::Sender<Result<Version>>,
}

/// The only one that changes the tree and the journal.
#[derive(Debug)]
pub(crate) struct Writer {
    shared: Arc<Shared>,
    /// `None` for a store in memory only, and after a close.
    journal: Option<Journal>,
}

impl Writer {
    pub fn new(shared: Arc<Shared>, journal: Option<Journal>) -> Self {
        Self { shared, journal }
    }

    /// Serves until all senders are gone. Blocks: runs in a thread of its own.
    pub fn run(mut self, mut requests: mpsc::Receiver<Asked>) {
        while let Some(first) = requests.blocking_recv() {
            let mut bytes = size_bytes(&first);
            let mut batch = vec![first];
            while batch.len() < EMBEDDED_MAX_BATCH_REQUESTS
                && bytes < EMBEDDED_MAX_BATCH_BYTES
                && let Ok(next) = requests.try_recv()
            {
                bytes += size_bytes(&next);
                batch.push(next);
            }
            self.serve(batch);
        }
    }

    /// Decides and keeps a batch, then answers each request of it.
    pub fn serve(&mut self, batch: Vec<Asked>) {
        let (answers, outcomes) = self.decide_and_keep(batch);
        for (answer, outcome) in answers.into_iter().zip(outcomes) {
            // The caller may have stopped waiting; the outcome stands without it.
            let _ = answer.send(outcome);
        }
    }

    fn decide_and_keep(
        &mut self,
        batch: Vec<Asked>,
    ) -> (Vec<oneshot::Sender<Result<Version>>>, Vec<Result<Version>>) {
        let (requests, answers): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|asked| (asked.request, asked.answer)).unzip();
        let count = answers.len();
        let shared = Arc::clone(&self.shared);
        let room = requests.iter().map(|request| match request {
            Request::MakeRoom(bytes) => Some(*bytes),
            Request::Commit(_) | Request::EndSession(_) | Request::Close => None,
        });
        let room: Vec<_> = room.collect();
        let closes = requests.iter().any(|request| matches!(request, Request::Close));
        let decided = shared.with_tree(|tree| decide(tree, &shared, requests));
        let outcomes = match decided {
            Err(error) => vec![Err(error); count],
            Ok((outcomes, committed)) if committed.is_empty() => outcomes,
            Ok((outcomes, committed)) => self.keep(outcomes, committed),
        };
        let outcomes = outcomes.into_iter().zip(room);
        let outcomes = outcomes.map(|(outcome, room)| match room {
            Some(bytes) => outcome.and_then(|version| self.make_room(bytes).map(|()| version)),
            None => outcome,
        });
        let outcomes = outcomes.collect();
        if closes {
            shared.stop("it was closed".to_owned());
            self.journal = None;
        }
        (answers, outcomes)
    }

    /// Makes a batch durable, then visible.
    fn keep(
        &mut self,
        outcomes: Vec<Result<Version>>,
        committed: Vec<super::record::Committed>,
    ) -> Vec<Result<Version>> {
        if let Some(journal) = &mut self.journal {
            match journal.append(committed.clone()) {
                Ok(()) => {}
                Err(AppendError::Nothing(error)) => return vec![Err(error); outcomes.len()],
                Err(AppendError::Unknown(what)) => {
                    self.fail(&what);
                    let unknown = |outcome: Result<Version>| match outcome {
                        Ok(_) => Err(Error::Indefinite { what: what.clone() }),
                        // Refused, perhaps because of a change that itself is uncertain now.
                        Err(_) => Err(Error::Unavailable { what: what.clone() }),
                    };
                    return outcomes.into_iter().map(unknown).collect();
                }
            }
        }
        let Ok(mut tree) = self.shared.tree.write() else {
            return vec![Err(Error::Indefinite { what: panicked().to_string() }); outcomes.len()];
        };
        committed.into_iter().for_each(|committed| tree.apply(committed));
        let version = tree.version();
        drop(tree);
        self.shared.published.send_replace(version);
        self.compact();
        outcomes
    }

    fn make_room(&mut self, bytes: u64) -> Result<()> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        match journal.make_room(bytes) {
            Ok(()) => Ok(()),
            Err(AppendError::Nothing(error)) => Err(error),
            Err(AppendError::Unknown(what)) => {
                self.fail(&what);
                Err(Error::Unavailable { what })
            }
        }
    }

    fn compact(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        let compacted = self.shared.with_tree(|tree| journal.compact_if_long(tree));
        if let Ok(Err(what)) = compacted {
            self.fail(&what);
        }
    }

    fn fail(&mut self, what: &str) {
        tracing::error!(%what, "coordination stopped: the state of its disk is not known");
        self.shared.stop(format!("{what}: mend the disk, then restart this process"));
    }
}

fn decide(
    tree: &Tree,
    shared: &Shared,
    requests: Vec<Request>,
) -> (Vec<Result<Version>>, Vec<super::record::Committed>) {
    let mut pending = Pending::on(tree);
    let is_live =
        |session| shared.with_sessions(|sessions| sessions.is_live(session, Instant::now())).unwrap_or(false);
    let outcomes = requests
        .into_iter()
        .map(|request| match request {
            Request::Commit(transaction) => pending.decide(transaction, is_live),
            Request::EndSession(session) => {
                pending.end_session(session);
                Ok(tree.version())
            }
            Request::MakeRoom(_) | Request::Close => Ok(tree.version()),
        })
        .collect();
    (outcomes, pending.into_decided())
}

fn size_bytes(asked: &Asked) -> usize {
    match &asked.request {
        Request::Commit(transaction) => transaction.size_bytes(),
        Request::EndSession(_) | Request::MakeRoom(_) | Request::Close => 0,
    }
}
