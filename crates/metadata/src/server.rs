//! A metadata server: for each keyspace a task that owns its machine and its files.
//!
//! The task takes an event, asks the machine, carries out what follows, and so on. Writes happen in the order in
//! which the machine gave them, each on disk before the machine hears of it. Reads of the head, swaps and
//! fetches run in the background and come back as events.
//!
//! One watch for all keyspaces tells each task when its head was written. So a keyspace in which nothing happens costs
//! the coordination service a read now and then, at random times. A head that names this server, and of which it has
//! nothing, gets a task, too: so a server whose disk was lost fetches what it should have.

use crate::head::{HeadError, HeadUpdate, Heads};
use crate::limits;
use crate::map_files::{MapFiles, WriteError};
use crate::peers::Peers;
use partage_core::base::id::{Generation, TransactionId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::base::time::Millis;
use partage_core::keyspace::map::{MapDiff, ShardMap};
use partage_journal::{Disk, RealDisk};
use partage_service::metadata::Seen;
use partage_service::metadata::change::{Change, Notice};
use partage_service::metadata::server::{
    Answer, Effect, Event, GONE_MS, LOOK_MS, REFRESH_MS, Refused, Request, Server,
};
use partage_wire::map::metadata::MapQuestion;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout_at};

/// The caller that waits for the answer to an event.
type Reply = oneshot::Sender<Result<Answer, Refused>>;
/// What makes the event, given the machine's number for the request, and the caller.
type Call = (Box<dyn FnOnce(Request) -> Event + Send>, Reply);

enum Message {
    Call(Call),
    Event(Event),
}

/// A metadata server. A copy is the same server; with the last one, or with [`LocalServer::stop`], it ends.
#[derive(Clone)]
pub struct LocalServer {
    context: Arc<ServerContext>,
    registry: Arc<Mutex<TaskRegistry>>,
}

/// The tasks, one for each keyspace.
#[derive(Default)]
struct TaskRegistry {
    handles: BTreeMap<KeyspaceName, TaskHandle>,
    tasks: JoinSet<()>,
    /// Watches heads.
    following: JoinSet<()>,
    /// Held for as long as the server runs.
    lock: Option<Box<dyn Any + Send>>,
    has_stopped: bool,
}

/// A metadata server that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk failed.
    #[error("cannot open the METADATA files in `{}`: {error}", dir.display())]
    Disk {
        /// The directory of the METADATA files.
        dir: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Another process has the directory.
    #[error("directory `{}` is in use by another process: stop that one, or give this one a directory of its own", .0.display())]
    InUse(PathBuf),
    /// Too many keyspaces.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// The file that one process at a time holds.
const LOCK: &str = "lock";

struct ServerContext {
    me: NodeId,
    data: PathBuf,
    disk: Arc<dyn Disk>,
    heads: Heads,
    peers: Peers,
    written_bytes: AtomicU64,
}

/// A handle to a task.
#[derive(Clone)]
struct TaskHandle {
    inbox: mpsc::Sender<Message>,
    /// What was last heard of the head.
    news: watch::Sender<Option<Seen>>,
}

impl LocalServer {
    /// The server `me`, with its files below `data`. Keyspaces of which it has files begin at once; others with the
    /// first call for them. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// When the directory cannot be had.
    pub fn start(me: NodeId, data: &Path, heads: Heads, peers: Peers) -> Result<LocalServer, OpenError> {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let failed = |error| OpenError::Disk { dir: data.to_owned(), error };
        disk.create_dir(data).map_err(failed)?;
        let lock = disk.lock(&data.join(LOCK)).map_err(failed)?;
        let lock = lock.ok_or_else(|| OpenError::InUse(data.to_owned()))?;
        let names = disk.list(data).map_err(failed)?;
        let context =
            ServerContext { me, data: data.to_owned(), disk, heads, peers, written_bytes: AtomicU64::new(0) };
        let registry = TaskRegistry { lock: Some(lock), ..TaskRegistry::default() };
        let server = LocalServer { context: Arc::new(context), registry: Arc::new(Mutex::new(registry)) };
        for name in names.iter().filter(|name| *name != LOCK) {
            // An empty one is of a keyspace that was deleted.
            let is_empty = || server.context.disk.list(&data.join(name)).map(|files| files.is_empty());
            if let Ok(keyspace) = KeyspaceName::new(name)
                && !is_empty().map_err(failed)?
            {
                server.handle(&keyspace)?;
            }
        }
        let registry = Arc::downgrade(&server.registry);
        server.registry().following.spawn(follow(server.context.clone(), registry));
        Ok(server)
    }

    fn registry(&self) -> MutexGuard<'_, TaskRegistry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it: callers are refused from now on. Returns when nothing is written any more and the directory is free.
    pub async fn stop(&self) {
        let (mut tasks, lock) = {
            let mut registry = self.registry();
            registry.has_stopped = true;
            registry.handles.clear();
            registry.following.abort_all();
            (std::mem::take(&mut registry.tasks), registry.lock.take())
        };
        while tasks.join_next().await.is_some() {}
        drop(lock);
    }

    /// Which server this is.
    pub fn me(&self) -> &NodeId {
        &self.context.me
    }

    /// How many keyspaces have a task that runs.
    pub fn keyspaces(&self) -> usize {
        self.registry().handles.values().filter(|handle| !handle.inbox.is_closed()).count()
    }

    /// Bytes handed to the disk for METADATA files so far.
    pub fn written_bytes(&self) -> u64 {
        self.context.written_bytes.load(Ordering::Relaxed)
    }

    fn handle(&self, keyspace: &KeyspaceName) -> Result<TaskHandle, Refused> {
        let mut registry = self.registry();
        if let Some(handle) = registry.handles.get(keyspace).filter(|handle| !handle.inbox.is_closed()) {
            return Ok(handle.clone());
        }
        if registry.has_stopped {
            return Err(Refused::Away("this metadata server is stopping: ask another one"));
        }
        // Tasks that have ended, as their keyspace is none of this server's business any more.
        while registry.tasks.try_join_next().is_some() {}
        if registry.handles.len() >= limits::KEYSPACES {
            registry.handles.retain(|_, handle| !handle.inbox.is_closed());
        }
        if registry.handles.len() >= limits::KEYSPACES {
            return Err(Refused::Full("keyspaces"));
        }
        let (inbox, messages) = mpsc::channel(limits::EVENTS);
        let news = watch::Sender::new(None);
        let task =
            KeyspaceTask { context: self.context.clone(), keyspace: keyspace.clone(), began: Instant::now() };
        registry.tasks.spawn(task.run(messages, news.subscribe()));
        let handle = TaskHandle { inbox, news };
        registry.handles.insert(keyspace.clone(), handle.clone());
        Ok(handle)
    }

    /// Passes heads on to the tasks of their keyspaces.
    fn pass_on(&self, update: HeadUpdate) {
        let names_me = |head: &Option<Seen>| {
            head.as_ref().is_some_and(|seen| seen.head.servers.contains(&self.context.me))
        };
        if update.is_all {
            let heads: BTreeSet<_> = update.heads.iter().map(|(keyspace, _)| keyspace).collect();
            let registry = self.registry();
            let gone = registry.handles.iter().filter(|(keyspace, _)| !heads.contains(keyspace));
            gone.for_each(|(_, handle)| drop(handle.news.send_replace(None)));
        }
        for (keyspace, head) in update.heads {
            let known =
                self.registry().handles.get(&keyspace).filter(|handle| !handle.inbox.is_closed()).cloned();
            let handle = match known {
                Some(handle) => Ok(handle),
                None if names_me(&head) => self.handle(&keyspace),
                None => continue,
            };
            match handle {
                Ok(handle) => drop(handle.news.send_replace(head)),
                Err(why) => tracing::warn!(%keyspace, %why, "this server should keep the map, and does not"),
            }
        }
    }

    async fn call(
        &self,
        keyspace: &KeyspaceName,
        event: impl FnOnce(Request) -> Event + Send + 'static,
    ) -> Result<Answer, Refused> {
        let (reply, answer) = oneshot::channel();
        let gone = || Refused::Away("this metadata server reads its files anew: try again");
        let message = Message::Call((Box::new(event), reply));
        self.handle(keyspace)?.inbox.send(message).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Stores a change; returns when it is on disk here.
    ///
    /// # Errors
    /// Why it is not.
    pub async fn store(&self, keyspace: &KeyspaceName, change: Change) -> Result<(), Refused> {
        self.call(keyspace, move |request| Event::Store(request, change)).await.map(drop)
    }

    /// The latest map, which is on disk here.
    ///
    /// # Errors
    /// Why this server cannot say.
    pub async fn map(&self, question: MapQuestion) -> Result<Arc<ShardMap>, Refused> {
        let sequence = question.sequence;
        match self.call(&question.keyspace, move |request| Event::Ask(request, sequence)).await? {
            Answer::Map(map) => Ok(map),
            Answer::Stored | Answer::Joined(_) => Err(Refused::Behind),
        }
    }

    /// Becomes one of the keyspace's servers (T8).
    ///
    /// # Errors
    /// When this server cannot become one of them; the [`Refused`] says why.
    pub async fn join(&self, keyspace: &KeyspaceName) -> Result<Generation, Refused> {
        match self.call(keyspace, Event::Join).await? {
            Answer::Joined(at) => Ok(at),
            Answer::Stored | Answer::Map(_) => Err(Refused::Behind),
        }
    }

    /// Is told what became of a change.
    ///
    /// # Errors
    /// When it has too many keyspaces already.
    pub async fn tell(&self, keyspace: &KeyspaceName, notice: Notice) -> Result<(), Refused> {
        // A task that has ended reads the head when it begins anew.
        let _ = self.handle(keyspace)?.inbox.send(Message::Event(Event::Tell(notice))).await;
        Ok(())
    }
}

/// Hears of heads that are written, for as long as the server is in use.
async fn follow(context: Arc<ServerContext>, registry: Weak<Mutex<TaskRegistry>>) {
    let mut from = None;
    loop {
        let broke = match context.heads.watch(from).await {
            Err(error) => error,
            Ok(mut watch) => loop {
                match watch.next().await {
                    Ok(update) => {
                        from = Some(update.at);
                        let Some(registry) = registry.upgrade() else { return };
                        LocalServer { context: context.clone(), registry }.pass_on(update);
                    }
                    Err(error) => break error,
                }
            },
        };
        tracing::warn!(error = %broke, "the watch of heads broke and is begun again");
        sleep(partage_random::around(limits::WATCH_AGAIN)).await;
    }
}

/// One keyspace.
struct KeyspaceTask {
    context: Arc<ServerContext>,
    keyspace: KeyspaceName,
    began: Instant,
}

/// The files and the machine of a keyspace, and what the machine does first.
type Opened = (MapFiles, Server, Vec<Effect>);

/// The callers that wait for an answer.
#[derive(Default)]
struct Callers {
    replies: BTreeMap<Request, Reply>,
    /// The number that the last request got.
    last: Request,
}

impl Callers {
    /// Gives the request of a call its number; the event of the request is for the machine.
    fn number(&mut self, (event, reply): Call) -> Event {
        self.last += 1;
        self.replies.insert(self.last, reply);
        event(self.last)
    }
}

/// What runs in the background of the task, and comes back as an event.
type BackgroundTasks = JoinSet<Event>;

impl KeyspaceTask {
    fn now(&self) -> Millis {
        Millis(self.began.elapsed().as_millis() as u64)
    }

    /// Runs until a write fails or a background task panics, after which everything must be read anew, or the keyspace is
    /// idle.
    async fn run(self, mut inbox: mpsc::Receiver<Message>, news: watch::Receiver<Option<Seen>>) {
        let Some(opened) = self.open_with_retry(&mut inbox).await else { return };
        if let Err(why) = self.serve(opened, inbox, news).await {
            tracing::error!(keyspace = %self.keyspace, why, "METADATA files are read anew");
        }
    }

    /// Ends well when the keyspace is idle, or the last sender of events is gone.
    ///
    /// # Errors
    /// Why everything must be read anew.
    async fn serve(
        &self,
        (mut files, mut server, mut due): Opened,
        mut inbox: mpsc::Receiver<Message>,
        mut news: watch::Receiver<Option<Seen>>,
    ) -> Result<(), String> {
        let mut callers = Callers::default();
        let mut background = BackgroundTasks::new();
        let mut tick = interval(Duration::from_millis(LOOK_MS));
        let refresh = || Instant::now() + partage_random::around(Duration::from_millis(REFRESH_MS));
        let mut next = refresh();
        let mut was_tick = false;
        loop {
            files = self.execute(&mut server, files, due, &mut callers, &mut background).await?;
            let awaits_nothing = callers.replies.is_empty() && background.is_empty() && inbox.is_empty();
            // A caller that comes just now tries again, and begins a new task.
            if was_tick && server.is_idle() && awaits_nothing {
                return Ok(());
            }
            let event = tokio::select! {
                message = inbox.recv() => match message {
                    Some(Message::Event(event)) => event,
                    Some(Message::Call(call)) => callers.number(call),
                    None => return Ok(()),
                },
                // After a panic the machine would wait for the event for ever.
                Some(ended) = background.join_next() => ended.map_err(|panic| panic.to_string())?,
                Ok(()) = news.changed() => Event::News(news.borrow_and_update().clone()),
                _ = tick.tick() => Event::Tick,
                () = sleep_until(next) => {
                    next = refresh();
                    Event::Refresh
                }
            };
            was_tick = event == Event::Tick;
            let before = server.ahead_of_head();
            due = server.take(self.now(), event);
            self.tell(before, server.ahead_of_head());
        }
    }

    /// Logs once when the head is at an earlier map than one that counted here.
    fn tell(&self, before: Option<(Generation, Generation)>, ahead: Option<(Generation, Generation)>) {
        if let Some((kept, head)) = ahead.filter(|_| before.is_none()) {
            tracing::warn!(
                keyspace = %self.keyspace, %kept, %head,
                "the head of the map is behind what counted here: somebody set it back, or the keyspace was created anew. The \
                 later map is kept for {} minutes; if the backend was restored, stop all coordinators and put the newest \
                 state back until then",
                GONE_MS / 60_000
            );
        }
    }

    /// Opens the files, and tries again while that fails; callers hear why meanwhile. None when the server ends.
    async fn open_with_retry(&self, inbox: &mut mpsc::Receiver<Message>) -> Option<Opened> {
        let (mut rest, mut logged) = (limits::OPEN_AGAIN, None::<Instant>);
        loop {
            let error = match self.open().await {
                Ok(opened) => return Some(opened),
                Err(error) => error,
            };
            let dir = self.context.data.join(self.keyspace.as_str());
            let why = format!("the METADATA files in `{}` cannot be opened: {error}", dir.display());
            if logged.is_none_or(|at| at.elapsed() >= limits::OPEN_LOG_EVERY) {
                tracing::error!(keyspace = %self.keyspace, "{why}; this server tries it again until they can");
                logged = Some(Instant::now());
            }
            let until = Instant::now() + rest;
            rest = (2 * rest).min(limits::OPEN_AGAIN_MOST);
            while let Ok(message) = timeout_at(until, inbox.recv()).await {
                match message? {
                    // A caller that has stopped waiting needs no answer.
                    Message::Call((_, reply)) => drop(reply.send(Err(Refused::Disk(why.clone())))),
                    // The machine reads the head when it begins.
                    Message::Event(_) => {}
                }
            }
        }
    }

    async fn open(&self) -> std::io::Result<Opened> {
        let (context, keyspace) = (self.context.clone(), self.keyspace.clone());
        let opened = tokio::task::spawn_blocking(move || {
            MapFiles::open(context.disk.clone(), &context.data, &keyspace, partage_random::seed())
        });
        let (files, maps, damaged) = opened.await.map_err(std::io::Error::other)??;
        for file in damaged {
            tracing::error!(
                file = %file.path.display(), offset = file.damage.offset, what = file.damage.what,
                "a METADATA file is damaged and put aside; the map is fetched from another server"
            );
        }
        let (server, effects) = Server::recover(self.context.me.clone(), maps, self.now());
        Ok((files, server, effects))
    }

    /// Carries out effects, and those that follow from writes at once.
    async fn execute(
        &self,
        server: &mut Server,
        mut files: MapFiles,
        effects: Vec<Effect>,
        callers: &mut Callers,
        background: &mut BackgroundTasks,
    ) -> Result<MapFiles, String> {
        let mut due = VecDeque::from(effects);
        while let Some(effect) = due.pop_front() {
            let written = match effect {
                Effect::Answer(request, answer) => {
                    if let Some(reply) = callers.replies.remove(&request) {
                        // A caller that has stopped waiting needs no answer.
                        let _ = reply.send(answer);
                    }
                    continue;
                }
                Effect::Read(_) | Effect::Seal(_) | Effect::Swap(..) | Effect::Fetch(..) => {
                    self.begin(effect, background);
                    continue;
                }
                Effect::Settled(name) if !files.is_long(name) => continue,
                Effect::Settled(name) => match server.snapshot(name) {
                    Some((map, operations)) => {
                        self.write(files, Writing::Anew(name, map, operations)).await?
                    }
                    None => continue,
                },
                write => self.write(files, Writing::Effect(write)).await?,
            };
            let event;
            (files, event) = written;
            if let Some(event) = event {
                due.extend(server.take(self.now(), event));
            }
        }
        Ok(files)
    }

    /// Writes on a thread that may wait for the disk.
    async fn write(
        &self,
        mut files: MapFiles,
        writing: Writing,
    ) -> Result<(MapFiles, Option<Event>), String> {
        let context = self.context.clone();
        let written = tokio::task::spawn_blocking(move || {
            let before = files.written_bytes();
            let event = write(&mut files, writing)?;
            let bytes = files.written_bytes().saturating_sub(before);
            context.written_bytes.fetch_add(bytes, Ordering::Relaxed);
            Ok((files, event))
        });
        written.await.map_err(|error| error.to_string())?
    }

    /// Begins what runs in the background.
    fn begin(&self, effect: Effect, background: &mut BackgroundTasks) {
        let (context, keyspace) = (self.context.clone(), self.keyspace.clone());
        match effect {
            Effect::Read(number) => drop(background.spawn(async move {
                let read = context.heads.read(&keyspace).await;
                Event::Read(number, unless_failed(&keyspace, read))
            })),
            Effect::Seal(seen) => drop(background.spawn(async move {
                context.heads.seal(&keyspace, &seen).await;
                Event::Tick
            })),
            Effect::Swap(version, head) => drop(background.spawn(async move {
                Event::Swapped(context.heads.swap(&keyspace, Some(version), &head).await)
            })),
            Effect::Fetch(number, from) => drop(background.spawn(async move {
                let question = MapQuestion { keyspace: keyspace.clone(), sequence: 0 };
                let fetched = context.peers.fetch(&from, &question).await;
                if let Err(why) = &fetched {
                    tracing::warn!(%keyspace, server = %from, why = why.message(), "the map was not fetched");
                }
                Event::Fetched(number, fetched.ok())
            })),
            Effect::Begin(..)
            | Effect::Append(..)
            | Effect::Drop(..)
            | Effect::Remove(_)
            | Effect::Settled(_)
            | Effect::Answer(..) => {}
        }
    }
}

fn unless_failed<T>(keyspace: &KeyspaceName, read: Result<T, HeadError>) -> Option<T> {
    read.map_err(|error| tracing::warn!(%keyspace, %error, "the head was not read")).ok()
}

/// What is to be written.
enum Writing {
    Effect(Effect),
    /// A file that has become long.
    Anew(TransactionId, Arc<ShardMap>, Vec<Arc<MapDiff>>),
}

/// Carries out one write; gives the event that says so.
fn write(files: &mut MapFiles, writing: Writing) -> Result<Option<Event>, String> {
    let (number, written) = match writing {
        Writing::Effect(Effect::Begin(number, map)) => {
            (Some(number), files.write(map.generation().transaction, &map, std::iter::empty()))
        }
        Writing::Effect(Effect::Append(number, name, diff)) => (Some(number), files.append(name, &diff)),
        Writing::Effect(Effect::Drop(name, gone)) => (None, files.drop_operation(name, gone)),
        Writing::Effect(Effect::Remove(name)) => (None, files.remove(name)),
        Writing::Anew(name, map, operations) => {
            (None, files.write(name, &map, operations.iter().map(|operation| &**operation)))
        }
        Writing::Effect(
            Effect::Read(_)
            | Effect::Seal(_)
            | Effect::Swap(..)
            | Effect::Fetch(..)
            | Effect::Settled(_)
            | Effect::Answer(..),
        ) => return Ok(None),
    };
    match (written, number) {
        (Ok(()), number) => Ok(number.map(|number| Event::Written(number, Ok(())))),
        (Err(WriteError::Full(why)), Some(number)) => Ok(Some(Event::Written(number, Err(why)))),
        // What could not be noted or written anew is what it was, and is tried again with the next change.
        (Err(WriteError::Full(why)), None) => {
            tracing::warn!(why, "a METADATA file could not be tidied");
            Ok(None)
        }
        (Err(WriteError::Unknown(why)), _) => Err(why),
    }
}
