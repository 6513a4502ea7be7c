//! A child's replica, of a split or a merge, that takes its base: the data of its parents. Then it becomes a replica of its
//! shard.
//!
//! ```text
//!  order ─► Base (core) ── ask ──► replicas of the parents, on this node or another
//!             ▲                        │
//!             ╰── what was given ◄─────┴── a snapshot in chunks, then changes ──► a store for each parent
//!
//!  all of it, and the parents' logs have ended ──► one store ──► a record in the log ──► LocalReplica
//! ```
//!
//! The data of each parent is a store of its own (`parts.rs`). After a split, that store becomes the replica's; after a merge the
//! stores are joined (`joining.rs`), most of it before the parents close (`early.rs`). Changes during the copy of a snapshot wait
//! in a file (`aside.rs`), so that the copy may take its time ([`crate::pacing`]).
//!
//! The replica exists once the log has its first record, which says where its log begins; the rows are on disk before that. After
//! an earlier crash the next start removes the folders, like all that the log does not know, and the replica begins anew.

mod aside;
mod early;
mod flushing;
mod joining;
mod parts;
mod spool;

use crate::event_loop::Local;
use crate::limits::BASE_RETRY_MS;
use crate::node::{OpenedRows, Shared, folders, open_rows};
use crate::queue::{Command, ReplicaQueue, Waiting};
use crate::registry::{Presence, Registry};
use crate::replica::{LocalReplica, Opening, compact_later, refuse_closed};
use crate::rows::{Filling, RowsError, StoredRows};
use crate::settings::ReplicaSettings;
use crate::transport::{Packet, ParentAsk};
use aside::{Aside, AsideStep};
use early::{CopyStep, EarlyJoin};
use flushing::Compactions;
use partage_core::base::id::{Incarnation, PlacementId, ShardId};
use partage_core::base::time::Millis;
use partage_core::node::exchange::{self, ReplicaKey};
use partage_engine::replica::{Store, TreeStore};
use partage_log::Record;
use partage_service::table::member;
use partage_service::table::replication::{LogPosition, LogWrite, Order, Stored};
use partage_service::table::split::base::Settings;
use partage_service::table::split::{Ask, Base, Effect};
use parts::{IncomingPart, Part};
use spool::Spool;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// The number of the record with which the log of a child's replica begins. Its machine counts its own from 1 afterwards: it is
/// made when this one is synced.
const FIRST_RECORD: u64 = 1;

/// A task of the pool is done.
pub(crate) enum BaseWork {
    /// What was applied to a parent's part is flushed.
    Flushed { parent: ShardId, generation: u64 },
    /// A chunk of what a parent gives is stored.
    Filled {
        parent: ShardId,
        generation: u64,
        number: u64,
        is_last: bool,
        /// The state after this step, and when the next chunk may be stored.
        result: Result<(Filling, Millis), RowsError>,
    },
    /// Changes of a parent wait in a file, or were applied from there.
    Aside { parent: ShardId, generation: u64, result: Result<(Spool, AsideStep), RowsError> },
    /// Some rows of all parents are copied into one store, in that folder, or all are.
    Copied { generation: u64, result: Result<CopyStep, RowsError> },
    /// The store that all parents were copied into is flushed.
    JoinedFlushed { generation: u64 },
    /// All that the parents had is stored, in that folder, and its record goes to the log.
    Stored(Result<(u64, StoredRows<TreeStore>), RowsError>),
    /// An empty folder is there, in place of what the parents had.
    Emptied { generation: u64, result: Result<StoredRows<TreeStore>, String> },
}

/// The state of a child's replica.
enum State {
    Taking,
    /// A store has failed: the base begins anew then.
    Retrying(Millis),
    /// The base is whole, and is being stored for a log that begins behind that position.
    Storing(LogPosition),
    /// It is stored, and the record waits for the log.
    Logging(LogPosition, u64, Box<StoredRows<TreeStore>>),
    /// The shard has gone on without it: it begins empty, and its leader fills it.
    Emptying,
}

/// A child's replica that takes its base.
pub(crate) struct LocalBase {
    queue: Arc<ReplicaQueue>,
    shared: Arc<Shared>,
    settings: ReplicaSettings,
    incarnation: Incarnation,
    base: Base,
    /// The latest order: it says where the parents are.
    order: exchange::Order,
    /// The latest order as the replica takes it that this becomes.
    ordered: Option<Order>,
    parts: BTreeMap<ShardId, Part>,
    incoming: BTreeMap<ShardId, IncomingPart>,
    asides: BTreeMap<ShardId, Aside>,
    early: EarlyJoin,
    compactions: Arc<Compactions>,
    next_generation: u64,
    state: State,
    is_logged: bool,
    /// Tasks that are under way.
    tasks: usize,
    when_ready: Vec<oneshot::Sender<()>>,
    when_open: Vec<oneshot::Sender<()>>,
    closing: Option<oneshot::Sender<()>>,
}

impl LocalBase {
    pub(crate) fn new(
        queue: Arc<ReplicaQueue>,
        shared: Arc<Shared>,
        settings: ReplicaSettings,
        incarnation: Incarnation,
        order: exchange::Order,
    ) -> LocalBase {
        let base = Base::new(shared.node().clone(), order.bounds.clone(), Settings::default());
        LocalBase {
            queue,
            shared,
            settings,
            incarnation,
            base,
            order,
            ordered: None,
            parts: BTreeMap::new(),
            incoming: BTreeMap::new(),
            asides: BTreeMap::new(),
            early: EarlyJoin::default(),
            compactions: Arc::default(),
            next_generation: 0,
            state: State::Taking,
            is_logged: false,
            tasks: 0,
            when_ready: Vec::new(),
            when_open: Vec::new(),
            closing: None,
        }
    }

    /// Handles what waits in the queue. None: it is closed.
    pub(crate) fn serve(mut self: Box<Self>, mut waiting: Waiting) -> Option<Local> {
        if self.shared.registry.ended().is_some() {
            refuse_closed(waiting);
            refuse_closed(self.queue.close());
            return None;
        }
        self.incarnation = waiting.incarnation.take().unwrap_or(self.incarnation);
        self.ordered = waiting.order.take().or(self.ordered);
        self.is_logged |= std::mem::take(&mut waiting.synced) >= FIRST_RECORD;
        if let Some(order) = waiting.base_order.take() {
            self.hear_order(order);
        }
        let mut become_empty = None;
        for done in std::mem::take(&mut waiting.base_done) {
            self.tasks -= 1;
            match done {
                BaseWork::Flushed { parent, generation } => self.flushed(parent, generation),
                BaseWork::Filled { parent, generation, number, is_last, result } => {
                    self.filled(parent, generation, number, is_last, result);
                }
                BaseWork::Aside { parent, generation, result } => self.aside_done(parent, generation, result),
                BaseWork::Copied { generation, result } => self.rows_copied(generation, result),
                BaseWork::JoinedFlushed { generation } => self.joined_flushed(generation),
                BaseWork::Stored(result) => self.base_stored(result),
                BaseWork::Emptied { generation, result } => become_empty = Some((generation, result)),
            }
        }
        for (from, packet) in std::mem::take(&mut waiting.packets) {
            match packet {
                Packet::Given(given) => self.take_given(from, given),
                Packet::Chunk(chunk) => self.take_chunk(from, chunk),
                Packet::Useless { .. }
                | Packet::Stored { .. }
                | Packet::Resumed { .. }
                | Packet::Message(_)
                | Packet::Ask(_) => {}
            }
        }
        let refused = waiting.refused.take();
        self.hear_parents_applied(std::mem::take(&mut waiting.parents_applied));
        std::mem::take(&mut waiting.commands).into_iter().for_each(|command| self.run_command(command));
        refuse_closed(waiting);
        if let Some(why) = refused {
            self.begin_anew(&format!("the log refuses its first record: {why}"));
        }
        if let Some((generation, result)) = become_empty {
            return self.becomes_empty(generation, result);
        }
        self.tend()
    }

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.shared.registry
    }

    /// When to serve it at the latest.
    pub(crate) fn wake_at(&self) -> Millis {
        match self.state {
            State::Retrying(until) => until,
            State::Taking => {
                let copies = self.acknowledges_at().min(self.copies_at()).min(self.asides_wake_at());
                self.base.wake_at().min(copies)
            }
            State::Storing(_) | State::Logging(..) | State::Emptying => Millis::NEVER,
        }
    }

    fn hear_order(&mut self, order: exchange::Order) {
        let is_late = member::is_late(&order);
        let (parents, serves) = (member::parents(&order), order.in_sync);
        self.order = order;
        if is_late {
            self.begin_empty();
        } else if matches!(self.state, State::Taking) {
            let effects = self.base.on_order(self.shared.clock.now(), parents, serves);
            self.carry_out(effects);
        }
    }

    fn hear_parents_applied(&mut self, parents: impl IntoIterator<Item = ShardId>) {
        for parent in parents {
            if matches!(self.state, State::Taking) {
                let effects = self.base.parent_applied(self.shared.clock.now(), parent);
                self.carry_out(effects);
            }
        }
    }

    fn run_command(&mut self, command: Command) {
        match command {
            Command::WhenReady(answer) => {
                self.when_ready.retain(|other| !other.is_closed());
                self.when_ready.push(answer);
            }
            Command::WhenOpen(answer) => {
                self.when_open.retain(|other| !other.is_closed());
                self.when_open.push(answer);
            }
            Command::Close(answer) => drop(self.closing.get_or_insert(answer)),
            // It has none of these: the answers are dropped.
            Command::Status(_)
            | Command::Figures(_)
            | Command::Size(_)
            | Command::Median(_)
            | Command::WhenFresh(_) => {}
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Ask(ask) => self.ask(ask),
                Effect::Store(position) => self.store(position),
                // Only `Base::stored` says so: see `becomes_replica`.
                Effect::Open => {}
            }
        }
    }

    fn ask(&self, ask: Ask) {
        let (child, bounds) = (self.queue.key.shard, self.order.bounds.clone());
        let asked = ParentAsk { child, bounds, node: self.shared.node().clone(), ask };
        self.send_to_parent(ask.of, Packet::Ask(asked));
    }

    /// Whether that replica of a parent is on the own node.
    fn is_here(&self, parent: PlacementId) -> bool {
        let own = self.shared.node();
        self.order.peers.iter().any(|peer| peer.placement == parent && peer.node == *own)
    }

    /// Sends a packet to a parent's replica that the latest order names.
    fn send_to_parent(&self, to: PlacementId, packet: Packet) {
        let Some(peer) = self.order.peers.iter().find(|peer| peer.placement == to) else { return };
        let key = ReplicaKey { shard: peer.shard, placement: to, ..self.queue.key.clone() };
        self.shared.deliver(&peer.node, &key, self.queue.key.placement, packet);
    }

    /// Does what is due. None: it is closed.
    fn tend(mut self: Box<Self>) -> Option<Local> {
        let now = self.shared.clock.now();
        if let State::Retrying(until) = self.state
            && now >= until
        {
            self.state = State::Taking;
            self.hear_order(self.order.clone());
        }
        if matches!(self.state, State::Taking) && now >= self.base.wake_at() {
            let effects = self.base.tick(now);
            self.carry_out(effects);
        }
        self.acknowledge(now);
        self.tend_asides(now);
        self.tend_early_join();
        self.copy_more(now);
        self.catch_up();
        let is_caught_up = self.is_caught_up();
        self.compactions.set_rest(is_caught_up);
        // If the parents closed during a compaction, requests would wait for its end.
        if is_caught_up && !self.compactions.is_under_way() {
            // A caller that has gone does not see its answer.
            for answer in self.when_ready.drain(..) {
                let _ = answer.send(());
            }
        }
        if self.is_logged && matches!(self.state, State::Logging(..)) {
            return self.becomes_replica();
        }
        let is_between = matches!(self.state, State::Taking | State::Retrying(_)) && self.tasks == 0;
        if is_between && self.closing.is_some() {
            self.release();
            return None;
        }
        Some(Local::Base(self))
    }

    /// Whether so little is missing that the parents may close.
    fn is_caught_up(&self) -> bool {
        self.base.is_ready() && self.is_joined()
    }

    /// All that the parents had is in the parts.
    fn store(&mut self, position: LogPosition) {
        self.state = State::Storing(position);
        let parts = self.parts.iter();
        let parts: Vec<_> = parts
            .map(|(shard, part)| (Arc::clone(&part.store), self.base.bounds_of(*shard).cloned()))
            .collect();
        let only = self.parts.values().next().filter(|part| parts.len() == 1 && part.at == position.index);
        let only = only.map(|part| (part.generation, Arc::clone(&part.store)));
        // What is still being stored of a snapshot ends before it is removed, and that before the log has anything of the
        // replica: a folder with the rows of one parent only must not be there then.
        for (_, incoming) in std::mem::take(&mut self.incoming) {
            self.remove(incoming.generation, incoming.filling);
        }
        self.drop_asides();
        let early = self.take_early_join();
        let generation = only.as_ref().map_or(self.next_generation, |(generation, _)| *generation);
        self.next_generation = self.next_generation.max(generation + 1);
        let folder = folders::of(&self.shared.folder, &self.queue.key, generation);
        let (shared, queue, feed) = (Arc::clone(&self.shared), Arc::clone(&self.queue), self.settings.feed());
        self.tasks += 1;
        let asked = shared.clock.now();
        self.shared.pool.add(self.queue.key.placement, move || {
            let begun = shared.clock.now();
            let store = || {
                let finished = match early {
                    Some(early) => early.finish(&shared, &queue.key, &parts, position)?,
                    None => None,
                };
                let joined_before = finished.is_some() || only.is_some();
                let (generation, store) = match finished.or(only) {
                    Some(joined) => joined,
                    None => (generation, joining::join(&shared.engine, &parts, &folder, position)?),
                };
                queue.figures.step();
                store.flush()?;
                queue.figures.step();
                let (waited_ms, took_ms) = (begun.since(asked), shared.clock.now().since(begun));
                tracing::info!(shard = %queue.key.shard, joined_before, waited_ms, took_ms, "has the data of its parents");
                Ok((generation, StoredRows::open(store, feed)?))
            };
            let result = store();
            if result.is_ok() {
                // A log that takes nothing any more ends the node.
                let first = Record::Write(LogWrite::Restart(position));
                let _ = shared.writer.submit(queue.key.clone(), FIRST_RECORD, first);
            }
            queue.add(|waiting| waiting.base_done.push(BaseWork::Stored(result)));
        });
    }

    fn base_stored(&mut self, result: Result<(u64, StoredRows<TreeStore>), RowsError>) {
        let State::Storing(position) = self.state else { return };
        match result {
            Ok((generation, rows)) => self.state = State::Logging(position, generation, Box::new(rows)),
            Err(error) => self.begin_anew(&error.to_string()),
        }
    }

    /// The base is on disk, and the log has where it begins.
    fn becomes_replica(mut self: Box<Self>) -> Option<Local> {
        let state = std::mem::replace(&mut self.state, State::Taking);
        let State::Logging(position, generation, rows) = state else { return Some(Local::Base(self)) };
        let effects = self.base.stored();
        debug_assert_eq!(effects, [Effect::Open]);
        for part in std::mem::take(&mut self.parts).into_values() {
            if part.generation != generation {
                self.remove(part.generation, Some(part.store));
            }
        }
        let stored = Stored { base: position, flushed: position, ..Stored::default() };
        let (settings, incarnation) = (self.settings, self.incarnation);
        let (is_new, rows, partial) = (true, *rows, None);
        self.becomes(Opening { settings, incarnation, is_new, stored, rows, generation, partial })
    }

    /// The shard serves without this replica: what it has of its parents is of no use. What is being stored already is stored: it
    /// is what its shard began with.
    fn begin_empty(&mut self) {
        if !matches!(self.state, State::Taking | State::Retrying(_)) {
            return;
        }
        self.state = State::Emptying;
        self.parts.clear();
        self.incoming.clear();
        self.asides.clear();
        self.early = EarlyJoin::GivenUp;
        self.tasks += 1;
        let (shared, queue, feed) = (Arc::clone(&self.shared), Arc::clone(&self.queue), self.settings.feed());
        self.shared.pool.add(self.queue.key.placement, move || {
            let (generation, result) = match open_rows(&shared, &queue.key, false, feed) {
                Ok(OpenedRows { generation, rows, .. }) => (generation, Ok(rows)),
                Err(error) => (0, Err(error.why)),
            };
            queue.add(|waiting| waiting.base_done.push(BaseWork::Emptied { generation, result }));
        });
    }

    fn becomes_empty(
        mut self: Box<Self>,
        generation: u64,
        result: Result<StoredRows<TreeStore>, String>,
    ) -> Option<Local> {
        let rows = match result {
            Ok(rows) => rows,
            Err(why) => {
                self.begin_anew(&why);
                return Some(Local::Base(self));
            }
        };
        let is_new = !self.order.had_data;
        let (settings, incarnation, stored) = (self.settings, self.incarnation, Stored::default());
        let partial = None;
        self.becomes(Opening { settings, incarnation, is_new, stored, rows, generation, partial })
    }

    fn becomes(self: Box<Self>, opening: Opening) -> Option<Local> {
        let LocalBase { queue, shared, ordered, when_ready, when_open, closing, .. } = *self;
        // Its runs may be many: see `flushing`.
        compact_later(&shared, queue.key.placement, Arc::downgrade(opening.rows.store()));
        let replica = LocalReplica::open(Arc::clone(&queue), Arc::clone(&shared), opening);
        shared.registry.became_replica(&queue);
        shared.formed.fetch_add(1, Ordering::Relaxed);
        // Callers that have gone do not see their answers.
        for answer in when_ready.into_iter().chain(when_open) {
            let _ = answer.send(());
        }
        let waiting = Waiting::of_opened(ordered, closing.map(Command::Close));
        Local::Replica(Box::new(replica)).serve(waiting)
    }

    /// A store has failed, or is of no use: everything is asked for again.
    fn begin_anew(&mut self, why: &str) {
        tracing::warn!(replica = ?self.queue.key, "takes what its parents have anew: {why}");
        for (_, part) in std::mem::take(&mut self.parts) {
            self.remove(part.generation, Some(part.store));
        }
        for (_, incoming) in std::mem::take(&mut self.incoming) {
            self.remove(incoming.generation, incoming.filling);
        }
        self.drop_asides();
        self.drop_early_join();
        self.base = Base::new(self.shared.node().clone(), self.order.bounds.clone(), Settings::default());
        self.state = State::Retrying(self.shared.clock.now() + BASE_RETRY_MS);
    }

    /// Removes a folder, after all that was to be done with its store.
    fn remove<S: Send + 'static>(&self, generation: u64, store: Option<S>) {
        let (shared, key) = (Arc::clone(&self.shared), self.queue.key.clone());
        self.shared.pool.add(self.queue.key.placement, move || {
            drop(store);
            if let Err(error) = folders::remove(&shared.engine, &shared.folder, &key, &[generation]) {
                tracing::warn!(%error, "what a child took of its parents is not removed; the next start does");
            }
        });
    }

    /// Removes everything of it, as it is closed before its base is whole.
    fn release(self: Box<Self>) {
        let LocalBase { queue, shared, parts, incoming, asides, early, closing, .. } = *self;
        refuse_closed(queue.close());
        shared.registry.closed(&queue.key, Presence::Changing);
        let (pool, placement) = (Arc::clone(&shared), queue.key.placement);
        pool.pool.add(placement, move || {
            drop((parts, incoming, asides, early));
            if let Err(why) = shared.remove_folders(&queue.key) {
                tracing::warn!(replica = ?queue.key, "its folder is not removed, the next start does: {why}");
            }
            shared.registry.gone(&queue.key);
            // The caller may have gone.
            if let Some(answer) = closing {
                let _ = answer.send(());
            }
        });
    }
}
