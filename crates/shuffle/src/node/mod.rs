//! One node of a pool: the machines of leader, buffer and holder over real files, and clients in the same process.
//!
//! ```text
//!  other nodes ── Delivery ──┐                  ┌──► Transport ──► other nodes, coordinator
//!  clients ────── Client ────┼─► inbox ─► thread of the node ─┼──► thread that writes: Store
//!  coordinator ── set_map ───┘      ▲   (the machines)        ├──► threads that read: BatchReader
//!                                   └────── what is done ─────┴──► DecisionLog
//! ```
//!
//! The thread of the node reads no file and waits for no disk, but for the bound on orders to the thread that writes. Threads
//! that have done something never wait for it. So there is no circle of threads that wait for each other (`inbox.rs`).
//!
//! | numbered sentence of core | who keeps it |
//! |---|---|
//! | 1. incarnations, epochs | [`NodeConfig::id`] is the caller's; [`DecisionLog::may_lead`] refuses an epoch that an earlier process has heard of |
//! | 2. stored after it is on disk, or in the memory of the system; what is there at a start | [`Store`], [`DecisionLog`] |
//! | 3. overtaken maps | [`Node::set_map`] drops them |
//! | 4. ticks | the thread of the node |
//! | 5. batches are read and checked | `reading/` |
//!
//! A node whose disk fails, or of which a thread panics, ends by itself; [`NodeStatus::ended`] says why, and clients hear
//! [`client::ClientError::Stopped`].
//! What was not done: a batch of durability `memory` is written before its holder answers, too. The memory of the node then holds
//! no batch that it has acknowledged, so its bound holds for such shuffles, and the end of the process loses nothing.

pub mod client;
pub(crate) mod counters;
mod event_loop;
pub(crate) mod hears;
pub(crate) mod inbox;
mod orders;
mod reading;
mod roles;
mod settings;
pub(crate) mod shared;
mod storing;
pub(crate) mod transport;

pub use client::Client;
pub use roles::{BadRoles, Roles};
pub use settings::{LEAST_MEMORY, NodeSettings};
pub use shared::NodeStatus;
pub use transport::{Packet, SeekOf, SliceOf, Transport};

use crate::log::{DecisionLog, DecisionSettings, DecisionsError};
use crate::objects::{ObjectStoreConfig, Objects, Offloading};
use crate::store::{BatchReader, Store, StoreError};
use event_loop::EventLoop;
use inbox::{Done, EndsAtPanic, Event, Inbox};
use partage_clock::Clock;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::base::time::Millis;
use partage_journal::Disk;
use partage_service::shuffle::buffer::Buffer;
use partage_service::shuffle::holder::{Holder, Stored};
use partage_service::shuffle::leader::ShuffleOverview;
use partage_service::shuffle::pool::PoolMap;
use partage_service::shuffle::{BufferId, PoolSlot, ShuffleId};
use reading::Reading;
use shared::Shared;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use storing::{Groups, Storing};
use tokio::sync::oneshot;

/// The folder of batches in that of a node.
pub(crate) const BATCHES: &str = "batches";

/// The folder of ranges that are sorted on disk.
const SORTING: &str = "sorting";

/// What a node is made of.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Its name, and which start of it: each has an incarnation of its own.
    pub id: BufferId,
    /// The keyspace of the pool.
    pub pool: KeyspaceName,
    /// Where its files are: batches in one folder below, decisions in another one.
    pub folder: PathBuf,
    /// The disk that the folder is on.
    pub disk: Arc<dyn Disk>,
    /// The numbers that it runs by.
    pub settings: NodeSettings,
}

/// Why a node was not started.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The batches were not opened.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The decisions were not opened.
    #[error("{0}")]
    Decisions(#[from] DecisionsError),
    /// The folder for ranges that are sorted on disk was not made, or not emptied.
    #[error(
        "the folder `{0}`, in which the node sorts large ranges, cannot be made or emptied: {1}; look at its rights"
    )]
    Sorting(String, std::io::Error),
    /// The system gives no thread.
    #[error("the system gives no thread for the shuffles of the node: {0}")]
    Thread(#[from] std::io::Error),
}

/// A node that runs. It ends when this is dropped: what was not stored is then not stored, and no client hears that it was.
#[derive(Debug)]
pub struct Node {
    shared: Arc<Shared>,
    reader: BatchReader,
    objects: Option<Arc<Objects>>,
    thread: Option<JoinHandle<()>>,
}

/// Hands the packets of other nodes to the node. A copy does the same.
#[derive(Debug, Clone)]
pub struct Delivery(Arc<Shared>);

impl Delivery {
    /// A packet has come. False: it was dropped, as too much waits or the node has ended.
    pub fn deliver(&self, from: NodeId, packet: Packet) -> bool {
        self.0.inbox.try_push(Event::Packet(from, packet))
    }

    /// The same, but waits while too much waits: who reads from a connection so holds the sender back.
    pub async fn deliver_when_room(&self, from: NodeId, packet: Packet) -> bool {
        self.0.inbox.push_when_room(Event::Packet(from, packet)).await.is_ok()
    }
}

impl Node {
    /// Starts a node with what is on its disk.
    ///
    /// # Errors
    /// Another process has its folder, or the disk failed. Damage is no error: [`Node::status`] names it.
    pub fn start(
        config: NodeConfig,
        map: Arc<PoolMap>,
        transport: Arc<dyn Transport>,
    ) -> Result<Node, NodeError> {
        Node::start_with_objects(config, map, transport, None)
    }

    /// The same with an object store, to which slots of sealed shuffles go while [`Node::make_room`] says that the disk fills.
    ///
    /// # Errors
    /// As of [`Node::start`].
    pub fn start_with_objects(
        mut config: NodeConfig,
        map: Arc<PoolMap>,
        transport: Arc<dyn Transport>,
        objects: Option<ObjectStoreConfig>,
    ) -> Result<Node, NodeError> {
        config.settings.machines.has_objects = objects.is_some();
        let (clock, settings) = (Clock::start(), config.settings.clone());
        let inbox = Arc::new(Inbox::new(settings.inbox_events, settings.inbox_bytes));
        let shared = Arc::new(Shared::new(Arc::clone(&inbox), clock, settings.clone(), Arc::clone(&map)));
        let (store, found) =
            Store::open(Arc::clone(&config.disk), &config.folder.join(BATCHES), settings.store)?;
        let (reports, guard) = (Arc::clone(&inbox), EndsAtPanic::new(&inbox, "writes decisions"));
        let ended_kept = settings.machines.ended_kept;
        let (mut decisions, places) = DecisionLog::open(
            Arc::clone(&config.disk),
            &config.folder.join("decisions"),
            config.pool.clone(),
            DecisionSettings { ended_kept, ..settings.decisions },
            move |report| {
                // The thread of the log has the guard as long as it has this.
                let _guard = &guard;
                reports.done(Done::Log(report));
            },
        )?;
        let slots = (0..map.places.len()).map(|slot| PoolSlot(slot as u32));
        let named = slots.filter(|slot| map.has(*slot, &config.id.node));
        decisions.named(named).map_err(DecisionsError::from)?;
        let damages = found.damages.into_iter().chain(places.into_iter().map(|place| place.damage));
        damages.for_each(|damage| shared.tell_damage(damage, settings.damages));
        shared.tell(|status| {
            status.unfinished = found.unfinished;
            status.unfit = decisions.unfit().collect();
        });
        let folder = sorting_folder(config.disk.as_ref(), &config.folder)?;
        let objects = objects.map(|store| Arc::new(Objects::new(store, config.pool.clone(), &map)));
        let reader = store.reader().with_objects(objects.clone());
        let offloading = offloading_of(&config, objects.as_ref(), &reader, &inbox)?;
        let reading = Reading::start(&reader, &inbox, clock, &settings.reading(folder))?;
        let groups = Groups::new(settings.group_bytes, settings.shared_group_bytes);
        let storing = Storing::start(store, reading.ranges(), inbox, (settings.storing_orders, groups))?;
        let name = config.id.node.clone();
        let who = (name.clone(), config.id.incarnation);
        let stored = Stored { batches: found.batches, replicas: decisions.replicas().clone() };
        let event_loop = EventLoop {
            _closes: CloseAtEnd(Arc::clone(&shared)),
            buffer: Buffer::new(config.id.clone(), settings.machines.clone(), Arc::clone(&map)),
            holder: Holder::recover(clock.now(), who, settings.machines.clone(), Arc::clone(&map), stored),
            leaders: BTreeMap::new(),
            local: VecDeque::new(),
            attempts: BTreeMap::new(),
            ending: BTreeMap::new(),
            questions: Default::default(),
            stored_soon: Default::default(),
            not_led: Vec::new(),
            leads_wait: false,
            full_until: Millis(0),
            plans: event_loop::plans_of(&settings),
            ticked: Millis(0),
            shared: Arc::clone(&shared),
            name,
            config,
            transport,
            map,
            decisions,
            storing,
            reading,
            offloading,
        };
        let work = move || event_loop.run();
        let thread = std::thread::Builder::new().name("shuffle-node".to_owned()).spawn(work)?;
        Ok(Node { shared, reader, objects, thread: Some(thread) })
    }

    /// A client of this node.
    pub fn client(&self) -> Client {
        Client::new(Arc::clone(&self.shared))
    }

    /// For those who bring packets of other nodes.
    pub fn delivery(&self) -> Delivery {
        Delivery(Arc::clone(&self.shared))
    }

    /// The coordinator has another map. One that is not later than the present one changes nothing. Waits while too much waits.
    pub fn set_map(&self, map: Arc<PoolMap>) {
        // A node that has ended needs no map.
        let _ = self.shared.inbox.push(Event::Map(map));
    }

    /// The same for a task.
    pub async fn set_map_when_room(&self, map: Arc<PoolMap>) {
        let _ = self.shared.inbox.push_when_room(Event::Map(map)).await;
    }

    /// Why the node has ended, if it has.
    pub fn ended(&self) -> Option<String> {
        let why = || self.status().ended.unwrap_or_else(|| "its thread has stopped".to_owned());
        self.shared.inbox.is_closed().then(why)
    }

    /// Ends it: what was not stored is then not stored. Its threads are waited for when it is dropped.
    pub fn end(&self) {
        self.shared.inbox.close();
    }

    /// How it is.
    pub fn status(&self) -> NodeStatus {
        let object_store_refuses = self.objects.as_ref().and_then(|objects| objects.failing());
        NodeStatus { object_store_refuses, ..self.shared.status() }
    }

    /// The disk is at the limit that the owner has set, or below it again: at the limit the node takes no new attempts.
    pub fn set_at_limit(&self, is_at_limit: bool) {
        self.shared.set_at_limit(is_at_limit);
    }

    /// The disk fills, or has room again: while it fills, slots of sealed shuffles go to the object store, if there is one. To be
    /// called again as long as it fills.
    pub fn make_room(&self, fills: bool) {
        if self.objects.is_some() {
            let stored = if fills { self.reader.sizes() } else { Vec::new() };
            // What is dropped, as too much waits, is said again.
            self.shared.inbox.try_push(Event::MakeRoom(stored));
        }
    }

    /// The object store, if there is one.
    pub(crate) fn objects(&self) -> Option<&Objects> {
        self.objects.as_deref()
    }

    /// From now on it takes nothing of slots that the map does not give it: it only buffers, or is to leave. Who sends it such a
    /// batch finds another node.
    pub fn stop_standing_in(&self) {
        self.shared.stop_standing_in();
    }

    /// Where nodes are that take attempts: a node that takes none names them.
    pub(crate) fn set_buffers(&self, addresses: Vec<String>) {
        self.shared.set_buffers(addresses);
    }

    /// The shuffles that this node leads. None: it has ended.
    pub async fn overviews(&self) -> Option<Vec<ShuffleOverview>> {
        let (sender, overviews) = oneshot::channel();
        self.shared.inbox.push_when_room(Event::Overviews(sender)).await.ok()?;
        overviews.await.ok()
    }

    /// A replica of the slot in `Load` begins anew. When this returns, [`Transport::ready`] is called for the slot only when the
    /// replica has everything of now. False: the node has ended.
    pub async fn begin_load(&self, slot: PoolSlot) -> bool {
        let (sender, begun) = oneshot::channel();
        let pushed = self.shared.inbox.push_when_room(Event::LoadBegins(slot, sender)).await;
        pushed.is_ok() && begun.await.is_ok()
    }

    /// The pool is gone, and with it the slot: what is here of it goes.
    pub async fn delete_slot(&self, slot: PoolSlot) {
        // What a node that has ended has goes with its folder.
        let _ = self.shared.inbox.push_when_room(Event::SlotDeleted(slot)).await;
    }

    /// Whether something of the slot is here, be it that the map names this node for it no more. None: the node has ended.
    pub async fn has_slot(&self, slot: PoolSlot) -> Option<bool> {
        let (sender, has) = oneshot::channel();
        self.shared.inbox.push_when_room(Event::HasSlot(slot, sender)).await.ok()?;
        has.await.ok()
    }

    /// Bytes of batches on its disk, also of those that are not wanted any more.
    pub fn disk_bytes(&self) -> u64 {
        self.reader.bytes()
    }

    /// Records that were read from its disk, and the bytes of the frames that had them.
    pub(crate) fn disk_reads(&self) -> (u64, u64) {
        self.reader.reads()
    }

    /// Bytes of the batches of a slot that are on disk here.
    pub fn slot_bytes(&self, slot: PoolSlot) -> u64 {
        self.reader.slot_bytes(slot)
    }

    /// The slots of a shuffle of which something is here: bytes on the disk, and whether the object store has it.
    pub(crate) fn held(&self, shuffle: ShuffleId) -> Vec<(PoolSlot, u64, bool)> {
        self.reader.held(shuffle)
    }

    /// Whether something of any slot is here, also of one for which the node stands in. None: the node has ended.
    pub async fn has_slots(&self) -> Option<bool> {
        let (sender, has) = oneshot::channel();
        self.shared.inbox.push_when_room(Event::HasSlots(sender)).await.ok()?;
        has.await.ok()
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.inbox.close();
        // Threads that wait for the object store are waited for.
        if let Some(objects) = &self.objects {
            objects.stop();
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The threads that put batches into the object store, if there is one.
fn offloading_of(
    config: &NodeConfig,
    objects: Option<&Arc<Objects>>,
    reader: &BatchReader,
    inbox: &Arc<Inbox>,
) -> std::io::Result<Option<Offloading>> {
    let Some(objects) = objects else { return Ok(None) };
    let with = (Arc::clone(objects), reader.clone());
    let threads = config.settings.machines.offloads_at_once;
    Offloading::start(with, inbox, config.id.clone(), threads).map(Some)
}

/// The folder in which large ranges are sorted, empty. Files in it have no names, but for the moment before a system that cannot
/// make such files takes the name away.
fn sorting_folder(disk: &dyn Disk, folder: &Path) -> Result<PathBuf, NodeError> {
    let folder = folder.join(SORTING);
    let emptied = disk
        .create_dir(&folder)
        .and_then(|()| disk.list(&folder)?.into_iter().try_for_each(|name| disk.remove(&folder.join(name))));
    match emptied {
        Ok(()) => Ok(folder),
        Err(error) => Err(NodeError::Sorting(folder.display().to_string(), error)),
    }
}

/// Lets clients go when the thread is gone, for whatever reason, and the threads that the thread of the node waits for at its
/// end: one may wait for the memory of what lies in the inbox.
struct CloseAtEnd(Arc<Shared>);

impl Drop for CloseAtEnd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end(
                "the thread of the machines has panicked: report this, and start the process again"
                    .to_owned(),
            );
        }
        self.0.inbox.close();
    }
}
