//! The embedded backend: one coordinator process, its state on its own disk, nothing to install.
//!
//! The keys and values are in memory, where every task of the process reads them; the writer syncs each change
//! to a journal before it counts. A lock on the directory lets in one process, so there are no others to agree with.
//!
//! ```text
//! commit ──► writer: decide ──► journal: write, sync ──► tree: apply ──► answer, wake watchers
//! read, list, watch ◄────────────────────────────────── tree
//! ```
//!
//! A kill at any moment loses no acknowledged transaction. A flipped bit, a cut or a misplaced write in
//! the journal refuses the open with the file and the offset; [`salvage`] shows what can be saved.
//! [`Embedded::in_memory`] is the same without a journal, for tests and trials.
//!
//! Not done: several processes (that is what the other backends are for), and state larger than
//! memory (what is large belongs in files, with a pointer here).

mod journal;
mod record;
mod replay;
pub mod salvage;
mod sessions;
mod tree;
mod writer;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use partage_journal::{Disk, RealDisk};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::claim::ClusterId;
use crate::contract::{Coordination, Limits, Listing};
use crate::error::{Error, Result};
use crate::key::{Key, Scope};
use crate::limits::{
    EMBEDDED_MAX_TRANSACTION_BYTES, EMBEDDED_MAX_VALUE_BYTES, EMBEDDED_MAX_WAITING, FULL_DISK_PAUSE,
    JOURNAL_COMPACT_BYTES, JOURNAL_STEP_BYTES, MAX_PAGE_ENTRIES, MAX_STEP_BYTES,
};
use crate::session::{SessionId, check_ttl};
use crate::transaction::{Entry, Transaction, Version};
use crate::watch::{Subscription, Update, Watch};

use journal::{AppendError, Journal};
use sessions::Sessions;
use tree::{Pending, Tree};
use writer::{Asked, Request, Shared, Writer};

/// How to open a directory.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster it must belong to; with `None`, any, or a new one.
    pub cluster: Option<ClusterId>,
    /// The journal grows by this many bytes at a time: a multiple of 512. Kept from when it was begun.
    pub step_bytes: u32,
    /// A journal shorter than this is not compacted.
    pub compact_bytes: u64,
    /// Where files are read and written: the real disk, or in tests one with faults.
    pub disk: Arc<dyn Disk>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cluster: None,
            step_bytes: u32::try_from(JOURNAL_STEP_BYTES).expect("1 MiB fits"),
            compact_bytes: JOURNAL_COMPACT_BYTES,
            disk: Arc::new(RealDisk),
        }
    }
}

/// The store. Closed by [`close`](Self::close), or some moments after the last handle is dropped.
#[derive(Debug)]
pub struct Embedded {
    shared: Arc<Shared>,
    handle: WriterHandle,
    cluster: ClusterId,
    /// Ends sessions whose time is over.
    sweeper: JoinHandle<()>,
}

/// How requests reach the writer.
#[derive(Clone, Debug)]
enum WriterHandle {
    /// It never blocks, so it runs in the caller's task; simulated time stays exact.
    Inline(Arc<Mutex<Writer>>),
    /// It waits for a disk, in a thread of its own.
    Thread(mpsc::Sender<Asked>),
}

impl Embedded {
    /// Opens the store in `dir`, which is created if it is not there. Needs a tokio runtime.
    pub async fn open(dir: impl AsRef<Path>, options: Options) -> Result<Arc<Self>> {
        let dir = dir.as_ref().to_owned();
        let opened = tokio::task::spawn_blocking(move || open_journal(&dir, &options)).await;
        let (journal, tree) = opened.map_err(|error| Error::Unavailable { what: error.to_string() })??;
        let cluster = journal.cluster();
        let shared = share(tree);
        let (sender, receiver) = mpsc::channel(EMBEDDED_MAX_WAITING);
        let writer = Writer::new(Arc::clone(&shared), Some(journal));
        std::thread::Builder::new()
            .name("coordination-journal".into())
            .spawn(move || writer.run(receiver))
            .map_err(|error| Error::Unavailable { what: format!("cannot start the writer: {error}") })?;
        Ok(Self::over(shared, WriterHandle::Thread(sender), cluster))
    }

    /// A store that ends with the process. Needs a tokio runtime.
    #[must_use]
    pub fn in_memory() -> Arc<Self> {
        let shared = share(Tree::default());
        let writer = Writer::new(Arc::clone(&shared), None);
        Self::over(shared, WriterHandle::Inline(Arc::new(Mutex::new(writer))), ClusterId::random())
    }

    fn over(shared: Arc<Shared>, handle: WriterHandle, cluster: ClusterId) -> Arc<Self> {
        let sweeper = tokio::spawn(sweep(Arc::clone(&shared), handle.clone()));
        Arc::new(Self { shared, handle, cluster, sweeper })
    }

    /// Which cluster this store belongs to.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Ends all work and frees the directory. Everything acknowledged is on disk already.
    pub async fn close(&self) {
        self.sweeper.abort();
        // An error only says that it had stopped before; the journal is let go in any case.
        let _ = ask(&self.handle, Request::Close).await;
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.sweeper.abort();
        self.shared.stop("it was closed".to_owned());
    }
}

/// Opens the journal, removes the ephemeral keys of the last process, and marks a new start.
fn open_journal(dir: &Path, options: &Options) -> Result<(Journal, Tree)> {
    if !(512..=MAX_STEP_BYTES).contains(&options.step_bytes) || !options.step_bytes.is_multiple_of(512) {
        let step = options.step_bytes;
        let what = format!("a step of {step} bytes: choose a multiple of 512, at most {MAX_STEP_BYTES}");
        return Err(Error::Invalid { what });
    }
    let (mut journal, mut tree) = Journal::open(Arc::clone(&options.disk), dir, options)?;
    let mut pending = Pending::on(&tree);
    pending.remove(tree.ephemeral_keys());
    pending.mark();
    let decided = pending.into_decided();
    journal.append(decided.clone()).map_err(|error| match error {
        AppendError::Nothing(error) => error,
        AppendError::Unknown(what) => Error::Unavailable { what },
    })?;
    decided.into_iter().for_each(|committed| tree.apply(committed));
    Ok((journal, tree))
}

fn share(tree: Tree) -> Arc<Shared> {
    let life = tree.version();
    Arc::new(Shared {
        tree: RwLock::new(tree),
        sessions: Mutex::new(Sessions::new(life)),
        sessions_changed: Notify::new(),
        published: watch::Sender::new(life),
        stopped: OnceLock::new(),
    })
}

async fn ask(handle: &WriterHandle, request: Request) -> Result<Version> {
    let (answer, outcome) = oneshot::channel();
    let asked = Asked { request, answer };
    let stopped =
        || Error::Unavailable { what: "the store's writer has stopped: restart this process".into() };
    match handle {
        WriterHandle::Inline(writer) => writer.lock().map_err(|_| stopped())?.serve(vec![asked]),
        WriterHandle::Thread(sender) => sender.send(asked).await.map_err(|_| stopped())?,
    }
    // The writer took it and did not answer: it may have written it.
    outcome.await.unwrap_or_else(|_| Err(Error::Indefinite { what: "the store's writer stopped".into() }))
}

/// Ends sessions as their time comes.
async fn sweep(shared: Arc<Shared>, handle: WriterHandle) {
    loop {
        let Ok(next) = shared.with_sessions(|sessions| sessions.next_end()) else { return };
        tokio::select! {
            () = shared.sessions_changed.notified() => continue,
            () = async { match next {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            } } => {}
        }
        let Ok(ended) = shared.with_sessions(|sessions| sessions.expire(Instant::now())) else { return };
        for session in ended {
            tracing::info!(%session, "session ended: it was not renewed in time");
            if let Err(error) = remove_keys(&handle, session).await {
                tracing::warn!(%session, %error, "keys of an ended session not removed");
            }
        }
    }
}

/// Removes the keys of a session that has ended. A full disk must not keep a dead owner's keys for
/// ever, so that is tried again until there is room.
async fn remove_keys(handle: &WriterHandle, session: SessionId) -> Result<()> {
    loop {
        match ask(handle, Request::EndSession(session)).await {
            Err(Error::DiskFull { .. }) => sleep(FULL_DISK_PAUSE).await,
            outcome => return outcome.map(|_| ()),
        }
    }
}

#[async_trait]
impl Coordination for Embedded {
    fn backend(&self) -> &'static str {
        "embedded"
    }

    fn limits(&self) -> Limits {
        Limits {
            max_value_bytes: EMBEDDED_MAX_VALUE_BYTES,
            max_transaction_bytes: EMBEDDED_MAX_TRANSACTION_BYTES,
        }
    }

    /// In memory everything runs by the caller's clock, which tests simulate.
    fn renews_apart(&self) -> bool {
        matches!(self.handle, WriterHandle::Thread(_))
    }

    async fn open_session(&self, ttl: Duration) -> Result<SessionId> {
        check_ttl(ttl)?;
        let session = self.shared.with_sessions(|sessions| sessions.open(ttl, Instant::now()))??;
        self.shared.sessions_changed.notify_one();
        Ok(session)
    }

    async fn renew_session(&self, session: SessionId) -> Result<()> {
        self.shared.with_sessions(|sessions| sessions.renew(session, Instant::now()))?
    }

    async fn end_session(&self, session: SessionId) -> Result<()> {
        if !self.shared.with_sessions(|sessions| sessions.end(session))? {
            return Err(Error::SessionEnded { session });
        }
        let outcome = ask(&self.handle, Request::EndSession(session)).await;
        if let Err(Error::DiskFull { .. }) = outcome {
            let handle = self.handle.clone();
            tokio::spawn(async move { remove_keys(&handle, session).await });
        }
        outcome.map(|_| ())
    }

    async fn read(&self, key: &Key) -> Result<Option<Entry>> {
        self.shared.with_tree(|tree| tree.read(key))
    }

    async fn list(&self, scope: &Scope, after: Option<&Key>, limit: usize) -> Result<Listing> {
        self.shared.with_tree(|tree| tree.list(scope, after, limit.clamp(1, MAX_PAGE_ENTRIES)))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Version> {
        transaction.check(&self.limits())?;
        self.shared.check()?;
        ask(&self.handle, Request::Commit(transaction)).await
    }

    async fn has_room(&self, bytes: u64) -> Result<bool> {
        self.shared.check()?;
        ask(&self.handle, Request::MakeRoom(bytes)).await.map(|_| true)
    }

    async fn watch(&self, scope: Scope, from: Option<Version>) -> Result<Watch> {
        self.shared.check()?;
        let published = self.shared.published.subscribe();
        Ok(Box::new(Follower { shared: Arc::clone(&self.shared), published, scope, cursor: from }))
    }
}

/// A watch: a cursor into the store's history, and nothing that could grow.
#[derive(Debug)]
struct Follower {
    shared: Arc<Shared>,
    published: watch::Receiver<Version>,
    scope: Scope,
    cursor: Option<Version>,
}

#[async_trait]
impl Subscription for Follower {
    async fn next(&mut self) -> Result<Update> {
        loop {
            self.published.borrow_and_update();
            let (scope, cursor) = (&self.scope, &mut self.cursor);
            if let Some(update) = self.shared.with_tree(|tree| tree.after(cursor, scope))? {
                return Ok(update);
            }
            // The sender lives as long as what is shared, so this ends by a change or by a stop.
            let _ = self.published.changed().await;
        }
    }
}
