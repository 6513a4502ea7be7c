//! A node: one log, the stores of its replicas, and the threads that serve them.

mod changes;
mod closed;
pub(crate) mod folders;
mod index;
mod opening;
mod presence;
mod recovery;

use crate::base::LocalBase;
use crate::check::Checks;
use crate::error::{OpenError, ReadError, ReplicaError, WriteError};
use crate::event_loop::{self, Local};
use crate::feed::NewestChanges;
use crate::figures::ReplicaFigures;
use crate::json;
use crate::limits;
use crate::notice::NoticeSink;
use crate::pacing::{CopyCounts, CopyPacing};
use crate::pool::Pool;
use crate::queue::{Claim, Command, Read, ReadyList, ReplicaQueue, Wanted};
use crate::registry::{FORGET, Presence, Registry};
use crate::rows::{PinnedRows, ScanPage, ScanRange};
use crate::settings::{NodeSettings, ReplicaSettings};
use crate::stored::write;
use crate::timing::WriteTimes;
use crate::transport::{Packet, Transport};
use opening::{Request, open_now, remove_now};
use partage_clock::Clock;
use partage_core::base::id::{Incarnation, PlacementId};
use partage_core::base::name::NodeId;
use partage_core::keyspace::key::Key;
use partage_core::node::exchange::{self, ReplicaKey};
use partage_engine::replica::{Size, TreeEngine, TreeSnapshot};
use partage_journal::Disk;
use partage_log::{GroupWriter, Log, Record};
use partage_service::table::member;
use partage_service::table::replication::{Consistency, LogPosition, Status};
use partage_service::table::rows::{Outcome, Row, Write};
pub use recovery::StoredReplica;
pub(crate) use recovery::{OpenedRows, open_rows};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The name of a node, and where its data is.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The node's name; it delivers packets to that node itself, and all others through the transport.
    pub node: NodeId,
    /// This start of its process.
    pub incarnation: Incarnation,
    /// The folder with its log and its stores.
    pub folder: PathBuf,
}

/// What a read finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadAnswer {
    /// The row, if there is one.
    pub row: Option<Row>,
    /// Up to which entry of the log it is read.
    pub position: LogPosition,
    /// How old that may be, in milliseconds: none if that is not known.
    pub age_ms: Option<u64>,
}

/// What all threads of a node share.
pub(crate) struct Shared {
    identity: Identity,
    pub(crate) folder: PathBuf,
    pub(crate) clock: Clock,
    pub(crate) settings: NodeSettings,
    pub(crate) registry: Arc<Registry>,
    pub(crate) writer: GroupWriter,
    pub(crate) engine: TreeEngine,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) pool: Pool,
    pub(crate) snapshots_sent: Arc<AtomicUsize>,
    pub(crate) snapshots_kept: Arc<AtomicUsize>,
    pub(crate) pacing: CopyPacing,
    pub(crate) times: WriteTimes,
    pub(crate) checks: Checks,
    /// The last changes of tables with feeds, for readers that wait.
    pub(crate) newest_changes: NewestChanges,
    incarnation: Mutex<Incarnation>,
    queues: AtomicU64,
    /// Replicas of children that have taken what their parents had.
    pub(crate) formed: AtomicU64,
    /// Outcomes of requests that replicas have forgotten before their time.
    pub(crate) forgotten_early: AtomicU64,
}

/// The replicas of tables on one node.
///
/// The service opens a replica before it hands in orders and packets for it. Dropping the node stops it as a crash would, but the
/// log still writes what waits for it. The drop waits for the threads and the disk, so it must not run on a thread of tokio's
/// reactor.
pub struct Node {
    shared: Arc<Shared>,
    ready: Vec<Arc<ReadyList>>,
    replica_threads: Vec<JoinHandle<()>>,
    storage_threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("identity", &self.shared.identity).finish_non_exhaustive()
    }
}

impl Node {
    /// Opens the log and looks at all stores; says which replicas are stored here. Blocks for as long as that takes.
    ///
    /// # Errors
    /// Another process has the folder, or the disk failed. A replica that is damaged is no error: it is named as such, and the
    /// others go on.
    pub fn open(
        settings: NodeSettings,
        identity: Identity,
        disk: Arc<dyn Disk>,
        transport: Arc<dyn Transport>,
        notices: Arc<dyn NoticeSink>,
    ) -> Result<(Node, Vec<StoredReplica>), OpenError> {
        let folder = identity.folder.clone();
        let (log, recovered) = Log::open(disk, &folders::log(&folder), settings.log)?;
        let engine = TreeEngine::new(settings.engine);
        let (presences, stored) = recovery::presences(&engine, &folder, recovered)?;
        let registry = Arc::new(Registry::new(presences, notices));
        let hears = Arc::clone(&registry);
        let writer = GroupWriter::start(log, settings.writer, move |report| hears.hear(report))
            .map_err(OpenError::Thread)?;
        let (pool, storage_threads) = Pool::start(settings.storage_threads).map_err(OpenError::Thread)?;
        let clock = Clock::start();
        let shared = Arc::new(Shared {
            incarnation: Mutex::new(identity.incarnation),
            identity,
            folder,
            clock,
            settings,
            registry,
            writer,
            engine,
            transport,
            pool,
            snapshots_sent: Arc::default(),
            snapshots_kept: Arc::default(),
            pacing: CopyPacing::new(clock, settings.copies),
            times: WriteTimes::default(),
            checks: Checks::default(),
            newest_changes: NewestChanges::default(),
            queues: AtomicU64::new(0),
            formed: AtomicU64::new(0),
            forgotten_early: AtomicU64::new(0),
        });
        let flusher = closed::flusher(shared.pool.clone(), Arc::downgrade(&shared));
        shared.registry.flush_closed_by(Box::new(flusher));
        let ready = (0..settings.replica_threads.max(1)).map(|_| Arc::default()).collect();
        let mut node = Node { shared, ready, replica_threads: Vec::new(), storage_threads };
        for ready in &node.ready {
            let (ready, shared) = (Arc::clone(ready), Arc::clone(&node.shared));
            let thread = std::thread::Builder::new().name("table-replicas".to_owned());
            let thread = thread.spawn(move || event_loop::run(&ready, &shared));
            node.replica_threads.push(thread.map_err(OpenError::Thread)?);
        }
        Ok((node, stored))
    }

    fn queue(&self, replica: &ReplicaKey) -> Option<Arc<ReplicaQueue>> {
        self.shared.registry.queue(replica)
    }

    fn incarnation(&self) -> Incarnation {
        *self.shared.incarnation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> ReplicaError {
        let why = self.shared.registry.ended().unwrap_or("it was stopped");
        ReplicaError::Ended(why.to_owned())
    }

    /// Opens a replica: one that is stored here goes on with what it has, another begins with nothing. `is_new`: no process had
    /// this placement before, so that it has promised nothing.
    ///
    /// # Errors
    /// It is damaged, or open, or its store cannot be opened.
    pub async fn open_replica(
        &self,
        replica: &ReplicaKey,
        settings: ReplicaSettings,
        is_new: bool,
    ) -> Result<(), ReplicaError> {
        let closed = {
            let mut presences = self.shared.registry.presences();
            match presences.get(replica) {
                Some(Presence::Damaged(why)) => {
                    return Err(ReplicaError::Damaged(replica.clone(), why.clone()));
                }
                Some(Presence::Changing | Presence::Open | Presence::Base) => {
                    return Err(ReplicaError::Busy(replica.clone()));
                }
                Some(Presence::Stored(_)) | None => {}
            }
            match presences.insert(replica.clone(), Presence::Changing) {
                Some(Presence::Stored(closed)) => Some(closed),
                _ => None,
            }
        };
        let (answer, opened) = oneshot::channel();
        let (shared, queue, incarnation) =
            (Arc::clone(&self.shared), self.new_queue(replica, &settings), self.incarnation());
        self.shared.pool.add(replica.placement, move || {
            let opening = Request { queue, settings, incarnation, is_new };
            // The caller may have gone.
            let _ = answer.send(open_now(&shared, opening, closed));
        });
        opened.await.unwrap_or_else(|_| Err(self.ended()))
    }

    /// Begins a child's replica, of a split or a merge: it takes its base from the parents that its orders name, and opens when
    /// the base is whole. Does nothing if the replica is open, or takes its base already.
    ///
    /// # Errors
    /// It is stored here, or is being opened, closed or dropped.
    pub fn form_replica(
        &self,
        order: &exchange::Order,
        settings: ReplicaSettings,
    ) -> Result<(), ReplicaError> {
        let replica = &order.replica;
        {
            let mut presences = self.shared.registry.presences();
            match presences.get(replica) {
                Some(Presence::Open | Presence::Base) => return Ok(()),
                Some(Presence::Damaged(why)) => {
                    return Err(ReplicaError::Damaged(replica.clone(), why.clone()));
                }
                Some(Presence::Changing | Presence::Stored(_)) => {
                    return Err(ReplicaError::Busy(replica.clone()));
                }
                None => {}
            }
            presences.insert(replica.clone(), Presence::Changing);
        }
        let queue = self.new_queue(replica, &settings);
        queue.set_base(true);
        let (of, shared) = (Arc::clone(&queue), Arc::clone(&self.shared));
        let base = LocalBase::new(of, shared, settings, self.incarnation(), order.clone());
        queue.place(Local::Base(Box::new(base)), |waiting| waiting.base_order = Some(order.clone()));
        self.shared.registry.opened(queue);
        Ok(())
    }

    fn new_queue(&self, replica: &ReplicaKey, settings: &ReplicaSettings) -> Arc<ReplicaQueue> {
        let number = self.shared.queues.fetch_add(1, Ordering::Relaxed);
        let ready = Arc::clone(&self.ready[(replica.placement.0 % self.ready.len() as u64) as usize]);
        let form = (settings.partition_key, settings.values);
        Arc::new(ReplicaQueue::new(replica.clone(), number, form, ready))
    }

    /// Closes a replica: it takes part in nothing any more, and all of it is on disk. It may be opened again.
    ///
    /// # Errors
    /// It is not open, or the disk of the log has failed.
    pub async fn close_replica(&self, replica: &ReplicaKey) -> Result<(), ReplicaError> {
        let not_open = || ReplicaError::NotOpen(replica.clone());
        let queue = self.queue(replica).ok_or_else(not_open)?;
        let (answer, closed) = oneshot::channel();
        if !queue.add_command(Command::Close(answer)) {
            return Err(not_open());
        }
        queue.begin_to_close();
        closed.await.map_err(|_| self.ended())
    }

    /// Drops a replica: the log forgets it, and then its folder is removed. That nothing of it is here is no error.
    ///
    /// # Errors
    /// It is being opened or closed, or a disk has failed.
    pub async fn drop_replica(&self, replica: &ReplicaKey) -> Result<(), ReplicaError> {
        if self.queue(replica).is_some() {
            self.close_replica(replica).await?;
        }
        {
            let mut presences = self.shared.registry.presences();
            match presences.get(replica) {
                None => return Ok(()),
                Some(Presence::Stored(_) | Presence::Damaged(_)) => {}
                Some(Presence::Changing | Presence::Open | Presence::Base) => {
                    return Err(ReplicaError::Busy(replica.clone()));
                }
            }
            presences.insert(replica.clone(), Presence::Changing);
        }
        let (answer, dropped) = oneshot::channel();
        let (shared, key) = (Arc::downgrade(&self.shared), replica.clone());
        let forgotten = move || {
            if let Some(shared) = shared.upgrade() {
                let removing = Arc::clone(&shared);
                shared.pool.add(key.placement, move || drop(answer.send(remove_now(&removing, key))));
            }
        };
        self.shared.registry.when_forgotten(replica.clone(), Box::new(forgotten));
        let (shared, key) = (Arc::clone(&self.shared), replica.clone());
        self.shared.pool.add(replica.placement, move || {
            // A log that takes nothing any more ends the node, and with that the call waits no longer.
            let _ = shared.writer.submit(key, FORGET, Record::Forget);
        });
        dropped.await.unwrap_or_else(|_| Err(self.ended()))
    }

    /// Gives the replica an order of the coordinator. Its machine gets only orders that name a leader.
    pub fn order(&self, order: &exchange::Order) {
        let Some(queue) = self.queue(&order.replica) else { return };
        let ordered = member::order(order, &self.shared.identity.node, self.incarnation());
        if queue.is_base() {
            queue.add(|waiting| waiting.base_order = Some(order.clone()));
        }
        if let Some(ordered) = ordered {
            queue.add(|waiting| waiting.order = Some(ordered));
        }
    }

    /// The coordinator has given the process another incarnation.
    pub fn renamed(&self, incarnation: Incarnation) {
        *self.shared.incarnation.lock().unwrap_or_else(PoisonError::into_inner) = incarnation;
        for queue in self.shared.registry.queues() {
            queue.add(|waiting| waiting.incarnation = Some(incarnation));
        }
    }

    /// A packet has come for a replica of this node; its thread serves it.
    pub fn receive(&self, replica: &ReplicaKey, from: PlacementId, packet: Packet) {
        if let Some(queue) = self.queue(replica) {
            queue.add_packet(from, packet);
        }
    }

    /// Packets have come in one message. The replicas that they are for are served before the call ends, unless they are many, or
    /// need what takes long: so it takes a tenth of a millisecond as a rule.
    pub fn receive_all(&self, packets: Vec<(ReplicaKey, PlacementId, Packet)>) {
        let mut claims: BTreeMap<u64, Claim> = BTreeMap::new();
        for (replica, from, packet) in packets {
            let Some(queue) = self.queue(&replica) else { continue };
            let claim = queue.add_to_serve(|waiting| waiting.add_packet(from, packet));
            // A later claim on a replica takes the place of the one before.
            claims.extend(claim.map(|claim| (queue.number, claim)));
        }
        if claims.len() <= limits::REPLICAS_SERVED_HERE {
            claims.into_values().for_each(Claim::serve);
        }
    }

    /// The state of a replica; none if it is not open.
    pub async fn status(&self, replica: &ReplicaKey) -> Option<Status> {
        let (answer, status) = oneshot::channel();
        let added = self.queue(replica)?.add_command(Command::Status(answer));
        if added { status.await.ok() } else { None }
    }

    /// The present figures of a replica; none if it is not open.
    pub(crate) async fn replica_figures(&self, replica: &ReplicaKey) -> Option<ReplicaFigures> {
        let (answer, figures) = oneshot::channel();
        let added = self.queue(replica)?.add_command(Command::Figures(answer));
        if added { figures.await.ok() } else { None }
    }

    /// How much the store of a replica has; none if it is not open.
    pub async fn size(&self, replica: &ReplicaKey) -> Option<Size> {
        let (answer, size) = oneshot::channel();
        let added = self.queue(replica)?.add_command(Command::Size(answer));
        if added { size.await.ok() } else { None }
    }

    /// A key that halves the rows of a replica: none where they are few, or it is not open. Reads the store.
    pub async fn median(&self, replica: &ReplicaKey) -> Option<Key> {
        let (answer, median) = oneshot::channel();
        let added = self.queue(replica)?.add_command(Command::Median(answer));
        if added { median.await.ok().flatten() } else { None }
    }

    /// How long the parts of writes take.
    pub(crate) fn times(&self) -> &WriteTimes {
        &self.shared.times
    }

    /// The counts of its copies of rows, since the process began.
    pub fn copies(&self) -> CopyCounts {
        self.shared.pacing.counts()
    }

    /// How many replicas of children have taken their base since the process began.
    pub(crate) fn formed(&self) -> u64 {
        self.shared.formed.load(Ordering::Relaxed)
    }

    /// How many outcomes of requests its replicas have forgotten before their time, since the process began.
    pub(crate) fn forgotten_early(&self) -> u64 {
        self.shared.forgotten_early.load(Ordering::Relaxed)
    }

    /// The queues of the replicas that are open.
    pub(crate) fn open_queues(&self) -> Vec<Arc<ReplicaQueue>> {
        self.shared.registry.queues().into_iter().filter(|queue| !queue.is_base()).collect()
    }

    /// Writes rows. The time of the write is that of this node, whatever `write` says.
    ///
    /// # Errors
    /// [`WriteError::is_definite`] says whether it is certain that nothing was done.
    pub async fn write(&self, replica: &ReplicaKey, write: &Write) -> Result<Outcome, WriteError> {
        let registry = &self.shared.registry;
        if let Some(why) = registry.ended() {
            return Err(WriteError::Stopped(why.to_owned()));
        }
        let queue = self.queue(replica).ok_or(WriteError::NotOpen)?;
        write.check(queue.partition_key)?;
        json::check(write, queue.values)?;
        if let Some(refused) = registry.refuses_writes() {
            return Err(refused);
        }
        // Times to live count from the shard's clock where that is ahead: by an earlier one a row would be over when it is
        // written.
        let now_ms = partage_clock::wall_ms().max(queue.direct.clock().unwrap_or_default());
        let payload = write::encode_at(write, now_ms);
        let (bytes, most) = (payload.len(), self.shared.settings.log.entry_bytes);
        if bytes > most {
            return Err(WriteError::TooLarge { bytes, most });
        }
        let (answer, outcome) = oneshot::channel();
        queue.figures.count();
        if let Some(claim) = queue.add_write(payload.into(), answer, self.shared.clock.nanos())? {
            // A task of its own serves the replica: it runs when the caller's task has begun its other writes, which are served
            // with this one, and also if the caller does not poll this future again.
            match Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn(async move { claim.serve() })),
                Err(_) => claim.serve(),
            }
        }
        let gone = |_| Err(WriteError::Unknown("the node was stopped before it answered".to_owned()));
        outcome.await.unwrap_or_else(gone)
    }

    /// Reads the row of a key, from a state that has all entries up to the index `at_least` (0: any).
    ///
    /// # Errors
    /// What a client may do instead.
    pub async fn read(
        &self,
        replica: &ReplicaKey,
        key: &Key,
        consistency: Consistency,
        at_least: u64,
    ) -> Result<ReadAnswer, ReadError> {
        if let Some(found) = self.read_directly(replica, key, at_least) {
            return Ok(found);
        }
        self.ask(replica, consistency, at_least, |answer| Wanted::Row(key.clone(), answer)).await
    }

    /// Reads a row here and now, from a replica that knows that it leads: such a read is as fresh as any; none: it must be asked.
    pub(crate) fn read_directly(&self, replica: &ReplicaKey, key: &Key, at_least: u64) -> Option<ReadAnswer> {
        if self.shared.registry.ended().is_some() {
            return None;
        }
        let queue = self.queue(replica)?;
        let found = queue.direct.read(self.shared.clock.now(), key, at_least)?;
        queue.figures.count();
        Some(found)
    }

    /// Reads a page of the rows in a range, in the order of their keys, from one state, which has all entries up to the index
    /// `at_least` (0: any). Each page is of a state of its own: a row that is there while all pages are read is on one of them,
    /// once.
    ///
    /// # Errors
    /// What a client may do instead.
    pub async fn scan(
        &self,
        replica: &ReplicaKey,
        range: ScanRange,
        consistency: Consistency,
        at_least: u64,
    ) -> Result<ScanPage, ReadError> {
        self.ask(replica, consistency, at_least, |answer| Wanted::Range(range, answer)).await
    }

    /// Pins all rows of a replica as one state has them: for [`crate::backup`], which bounds how many are pinned.
    ///
    /// # Errors
    /// What a client may do instead.
    pub(crate) async fn pin(
        &self,
        replica: &ReplicaKey,
        consistency: Consistency,
    ) -> Result<PinnedRows<TreeSnapshot>, ReadError> {
        self.ask(replica, consistency, 0, Wanted::Pinned).await
    }

    async fn ask<T>(
        &self,
        replica: &ReplicaKey,
        consistency: Consistency,
        at_least: u64,
        wanted: impl FnOnce(oneshot::Sender<Result<T, ReadError>>) -> Wanted,
    ) -> Result<T, ReadError> {
        if let Some(why) = self.shared.registry.ended() {
            return Err(ReadError::Stopped(why.to_owned()));
        }
        let queue = self.queue(replica).ok_or(ReadError::NotOpen)?;
        queue.figures.count();
        let (answer, found) = oneshot::channel();
        queue.add_read(Read { consistency, at_least, wanted: wanted(answer) })?;
        found.await.unwrap_or_else(|_| Err(ReadError::Stopped("the node was stopped".to_owned())))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.ready.iter().for_each(|ready| ready.stop());
        // A thread that panicked has notified the service.
        self.replica_threads.drain(..).for_each(|thread| drop(thread.join()));
        self.shared.pool.stop();
        self.storage_threads.drain(..).for_each(|thread| drop(thread.join()));
        // Replicas are in their queues, and have those themselves.
        self.shared.registry.queues().iter().for_each(|queue| queue.close_when_served());
    }
}

impl Shared {
    pub(crate) fn node(&self) -> &NodeId {
        &self.identity.node
    }

    /// Removes what the disk has of a replica's rows, whose stores are not open. Blocks.
    pub(crate) fn remove_folders(&self, key: &ReplicaKey) -> Result<(), String> {
        let all = folders::generations(&self.folder, key).map_err(|error| error.to_string())?;
        folders::remove(&self.engine, &self.folder, key, &all).map_err(|error| error.to_string())
    }

    /// Brings a packet to a replica of this node or of another one.
    pub(crate) fn deliver(&self, node: &NodeId, to: &ReplicaKey, from: PlacementId, packet: Packet) {
        if *node == self.identity.node {
            self.registry.queue(to).into_iter().for_each(|queue| queue.add_packet(from, packet.clone()));
        } else {
            self.transport.send(node, to, from, packet);
        }
    }
}
