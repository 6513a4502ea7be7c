//! One open replica: its machine, and the driver that carries out the effects of the machine.
//!
//! ```text
//!  packets, orders, requests ─► queue ─► machine ─► effects, in their order
//!                                 ▲                  │ Write     ─► log of the node ─► synced ─╮
//!                                 │                  │ Apply     ─► rows, outcomes are kept    │
//!                                 │                  │ Answer    ─► clients                    │
//!                                 │                  │ Send      ─► transport                  │
//!                                 ╰──────────────────┴─ flushes, chunks: threads of the pool ◄─╯
//! ```
//!
//! One thread at a time serves a replica, so nothing here is shared. It applies entries and reads rows, which may wait for a
//! block of the store; what waits for longer goes to the pool.
//!
//! | state | what it does |
//! |---|---|
//! | running | all of the above |
//! | without room to flush | all of the above, but the node refuses writes; it flushes again until there is room |
//! | failed: the store refuses | answers what waits, and nothing else, until it is closed; opened again, it applies the log from what is flushed |
//! | damaged | the same, until it is dropped |
//! | closing | flushes if there is much, trims its log, and closes when all of that is on disk |

mod checking;
mod children;
mod clock;
mod filling;
mod indexing;
mod logging;
mod requests;
mod sending;
mod storage;

use crate::ReadAnswer;
use crate::error::ReadError;
use crate::figures::{LoadProgress, ReplicaFigures};
use crate::limits::FIGURES_MS;
use crate::node::Shared;
use crate::node::folders::PartialSnapshot;
use crate::notice::Notice;
use crate::queue::{Command, ReplicaQueue, Waiting, Wanted};
use crate::registry::Registry;
use crate::rows::{RowsError, ScanPage, ScannedRows, StoredRows};
use crate::settings::ReplicaSettings;
use crate::timing::seconds;
use crate::transport::Packet;
use children::Children;
use filling::Incoming;
use indexing::LoggedStep;
use logging::Logging;
use partage_core::base::id::{Incarnation, PlacementId};
use partage_core::base::time::Millis;
use partage_core::node::exchange::{ReplicaKey, ReplicationReport};
use partage_engine::replica::{Store, TreeStore};
use partage_service::table::member::Reporter;
use partage_service::table::replication::{
    Answer, Effect, Event, Failed, Order, Replica, Request, Settings, Stored,
};
pub(crate) use requests::refuse_closed;
use requests::{Requests, Stopped, refuse};
use sending::Outgoing;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use storage::Closing;
pub(crate) use storage::{WorkDone, compact_later};
use tokio::sync::oneshot;

/// Whether the replica takes part in the replication of its shard.
#[derive(Debug)]
enum State {
    Running,
    Failed(String),
    Damaged(String),
}

pub(crate) struct LocalReplica {
    queue: Arc<ReplicaQueue>,
    shared: Arc<Shared>,
    machine: Replica,
    settings: Settings,
    replica_settings: ReplicaSettings,
    incarnation: Incarnation,
    /// The latest order: it says on which nodes the others are.
    order: Option<Order>,
    rows: StoredRows<TreeStore>,
    /// Which folder has the rows.
    generation: u64,
    state: State,
    logging: Logging,
    requests: Requests,
    reporter: Reporter,
    /// What was reported last, and when.
    reported: Option<(ReplicationReport, Millis)>,
    is_flushing: bool,
    /// When to flush again, after there was no room.
    flush_again: Option<Millis>,
    /// When it last published its figures.
    figures_at: Millis,
    /// When the clock of the shard was moved on without a write.
    clock_moved: Millis,
    logged_step: LoggedStep,
    /// The replica has not been served yet.
    is_first_turn: bool,
    /// The log wants the room of its entries: trim them.
    wants_trim: bool,
    /// The same for entries that copies of rows need: trim them when the copies have ended.
    trims_after_copies: bool,
    outgoing: BTreeMap<PlacementId, Outgoing>,
    /// Followers whose last snapshot was of no use, as the log did not reach back to it any more when it was whole.
    outrun: BTreeSet<PlacementId>,
    children: Children,
    incoming: Option<Incoming>,
    /// A part of a snapshot that was stored before the replica was opened, and may be of use.
    partial: Option<PartialSnapshot>,
    /// The next folder that is filled.
    next_generation: u64,
    /// Answered when the replica may be read from: the load of a read replica waits for that.
    when_fresh: Option<oneshot::Sender<()>>,
    closing: Option<Closing>,
    /// Until then only the replica's own thread serves it, as applying entries took long.
    is_slow_until: Millis,
}

/// What a replica is opened with.
pub(crate) struct Opening {
    pub(crate) settings: ReplicaSettings,
    pub(crate) incarnation: Incarnation,
    pub(crate) is_new: bool,
    pub(crate) stored: Stored,
    pub(crate) rows: StoredRows<TreeStore>,
    pub(crate) generation: u64,
    pub(crate) partial: Option<PartialSnapshot>,
}

impl LocalReplica {
    pub(crate) fn open(queue: Arc<ReplicaQueue>, shared: Arc<Shared>, opening: Opening) -> LocalReplica {
        let Opening { settings, incarnation, is_new, stored, rows, generation, partial } = opening;
        let last_generation =
            partial.as_ref().map_or(generation, |partial| partial.generation.max(generation));
        let me = (queue.key.placement, incarnation);
        let (replica_settings, settings) = (settings, settings.replication);
        let machine = Replica::recover(me, settings, stored, shared.clock.now(), is_new);
        queue.direct.set_rows(Some(rows.for_readers()));
        LocalReplica {
            queue,
            shared,
            machine,
            settings,
            replica_settings,
            incarnation,
            order: None,
            rows,
            generation,
            state: State::Running,
            logging: Logging::default(),
            requests: Requests::default(),
            reporter: Reporter::default(),
            reported: None,
            is_flushing: false,
            flush_again: None,
            figures_at: Millis(0),
            clock_moved: Millis(0),
            logged_step: None,
            is_first_turn: true,
            wants_trim: false,
            trims_after_copies: false,
            outgoing: BTreeMap::new(),
            outrun: BTreeSet::new(),
            children: Children::default(),
            incoming: None,
            partial,
            next_generation: last_generation + 1,
            when_fresh: None,
            closing: None,
            is_slow_until: Millis(0),
        }
    }

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.shared.registry
    }

    /// Whether any thread may serve it, as it only applies entries to rows in memory.
    pub(crate) fn is_light(&self) -> bool {
        self.takes_part()
            && !self.is_first_turn
            && self.rows.indexes().is_empty()
            && self.shared.clock.now() >= self.is_slow_until
    }

    fn takes_part(&self) -> bool {
        matches!(self.state, State::Running) && self.closing.is_none()
    }

    /// Handles what waits in the queue, and does what is due. Returns whether the replica is still open.
    pub(crate) fn serve(&mut self, mut waiting: Waiting) -> bool {
        if let Some(why) = self.shared.registry.ended() {
            let stopped = Stopped::Failed(why.to_owned());
            self.end(&stopped, waiting);
            return false;
        }
        if let Some(why) = waiting.refused.take() {
            self.stop_damaged(why);
        }
        // All that the disk has at the start is synced: the machine applies what it knows to be committed before any read.
        if std::mem::take(&mut self.is_first_turn) {
            self.hear(Event::Synced(0));
        }
        if waiting.has_room || waiting.synced > 0 {
            self.try_room();
        }
        self.wants_trim |= waiting.holds_log;
        for done in std::mem::take(&mut waiting.done) {
            self.work_done(done);
        }
        let synced = std::mem::take(&mut waiting.synced);
        if synced > self.logging.synced {
            self.logging.synced = synced;
            let leads = self.requests.has_writes();
            self.logging.observe(&self.shared.times, self.shared.clock.nanos(), leads);
            self.hear(Event::Synced(synced));
        }
        for command in std::mem::take(&mut waiting.commands) {
            self.run_command(command);
        }
        if self.takes_part() {
            self.take_in(waiting);
        } else {
            refuse(waiting, &self.stopped());
        }
        self.tend();
        !self.is_closed()
    }

    /// Hands in what others sent: orders, packets, and requests.
    fn take_in(&mut self, waiting: Waiting) {
        if let Some(incarnation) = waiting.incarnation.filter(|incarnation| *incarnation != self.incarnation)
        {
            self.incarnation = incarnation;
            self.machine.renamed(incarnation);
        }
        if let Some(order) = waiting.order.filter(|order| self.order.as_ref() != Some(order)) {
            let known = self.order.as_ref().map(|known| (known.epoch, known.configuration));
            if known.is_none_or(|known| known <= (order.epoch, order.configuration)) {
                self.order = Some(order.clone());
            }
            self.hear(Event::Order(order));
        }
        for (from, packet) in waiting.packets {
            match packet {
                Packet::Message(message) => self.hear(Event::Message(from, message)),
                Packet::Chunk(chunk) => self.take_chunk(from, chunk),
                Packet::Stored { position, number } => self.chunk_is_stored(from, position, number),
                Packet::Resumed { position, number, through } => {
                    self.snapshot_is_resumed(from, position, number, &through);
                }
                Packet::Useless { position } => self.snapshot_is_useless(from, position),
                Packet::Ask(ask) => self.answer_child(from, ask),
                // This replica has its base.
                Packet::Given(_) => {}
            }
        }
        if !waiting.writes.is_empty() {
            let now = self.shared.clock.nanos();
            self.shared.times.queue.observe(seconds(waiting.writes_since, now));
            self.requests.hold(waiting.writes, self.shared.clock.now());
            self.release_writes();
        }
        for read in waiting.reads {
            let (consistency, at_least) = (read.consistency, read.at_least);
            let request = self.requests.add_read(read);
            self.hear(Event::Read(request, consistency, at_least));
        }
        // If the replica has just stopped, the machine has not seen all of these requests.
        if !self.takes_part() {
            self.requests.end(&self.stopped());
        }
    }

    /// Hands held writes in to the machine, as far as copies of rows leave room for them in the log. While a sync is under way,
    /// they wait for its end, up to [`crate::limits::HOLD_MS`].
    fn release_writes(&mut self) {
        let waits = !self.logging.is_synced()
            && !self.requests.must_release()
            && self.shared.clock.now() < self.requests.held_until();
        let now = self.shared.clock.now();
        let held = match self.machine.write_room(now) {
            _ if waits || !self.requests.holds() => Vec::new(),
            Some(room) => self.requests.release_within(room, now),
            None => self.requests.release(),
        };
        if !waits && self.requests.holds() {
            self.shared.pacing.slows_writes();
        }
        if held.is_empty() {
            return;
        }
        let now = self.shared.clock.nanos();
        let writes = held.into_iter();
        let writes =
            writes.map(|(payload, answer)| (self.requests.add_write(answer, now), payload)).collect();
        self.hear(Event::Write(writes));
    }

    /// Does what is due.
    fn tend(&mut self) {
        let now = self.shared.clock.now();
        if self.takes_part() {
            if now >= self.machine.wake_at() {
                self.hear(Event::Tick);
            }
            self.release_writes();
            self.tend_snapshots(now);
            self.tend_filling(now);
            self.note_committed(now);
            self.tend_clock(now);
            self.tend_indexes(now);
            if self.machine.age_ms(now).is_some()
                && let Some(waits) = self.when_fresh.take()
            {
                let _ = waits.send(());
            }
            self.report(now);
            self.publish_figures(now);
        } else {
            // A stopped replica does not become fresh.
            self.when_fresh = None;
        }
        self.tend_storage();
    }

    /// When to serve it at the latest.
    pub(crate) fn wake_at(&self) -> Millis {
        if !self.takes_part() {
            return Millis::NEVER;
        }
        let times = [
            self.flush_again.filter(|_| !self.is_flushing).unwrap_or(Millis::NEVER),
            self.requests.held_until(),
            self.note_at(),
            self.snapshots_wake_at(),
            self.filling_wakes_at(),
            self.clock_at(),
            self.index_step_at(),
        ];
        times.into_iter().fold(self.machine.wake_at(), Millis::min)
    }

    fn run_command(&mut self, command: Command) {
        match command {
            Command::Status(answer) => drop(answer.send(self.machine.status())),
            Command::Figures(answer) => drop(answer.send(self.replica_figures(self.shared.clock.now()))),
            Command::Size(answer) => drop(answer.send(self.rows.store().size())),
            Command::Median(answer) => self.median(answer),
            Command::WhenReady(answer) | Command::WhenOpen(answer) => drop(answer.send(())),
            // A caller that waited before has given up.
            Command::WhenFresh(answer) => self.when_fresh = Some(answer),
            Command::Close(answer) => {
                self.requests.end(&Stopped::Closed);
                self.outgoing.clear();
                self.closing.get_or_insert_with(Closing::new).add(answer);
                self.publish_reads();
            }
        }
    }

    /// Hands an event in to the machine and carries out its effects, unless the replica has stopped.
    fn hear(&mut self, event: Event) {
        if self.takes_part() {
            self.tell_machine(event);
        }
    }

    fn tell_machine(&mut self, event: Event) {
        let now = self.shared.clock.now();
        let effects = self.machine.handle(now, event);
        self.queue.direct.withdraw(self.reads_until());
        for effect in effects {
            self.carry_out(now, effect);
        }
        self.publish_reads();
    }

    /// Publishes until when other threads may read the rows ([`crate::direct`]).
    fn publish_reads(&self) {
        self.queue.direct.publish(self.reads_until());
    }

    fn reads_until(&self) -> Option<Millis> {
        if self.takes_part() { self.machine.reads_until() } else { None }
    }

    fn carry_out(&mut self, now: Millis, effect: Effect) {
        match effect {
            // Also for a replica that has stopped: it opens with this log again.
            Effect::Write(number, write) => self.submit_write(number, write),
            Effect::Damaged(damage) => self.stop_damaged(damage.to_string()),
            _ if !self.takes_part() => {}
            Effect::Send(to, message) => self.send(to, Packet::Message(message)),
            Effect::Apply(entries) => self.apply(&entries),
            Effect::Answer(request, answer) => self.answer(request, answer),
            Effect::Wish(wish) => self.reporter.wishes(wish),
            Effect::LeaderSilent(epoch) => self.reporter.leader_is_silent(epoch, now),
            Effect::Began(epoch) => self.tell_owner(|key| Notice::Began(key, epoch)),
            // The children of the shard learn of it from the answers to their asks.
            Effect::Closed(_) => {}
            Effect::Snapshot(to) => self.begin_snapshot(now, to),
            // The next report tells the coordinator.
            Effect::HeirIsReady(_) | Effect::TransferEnded(_) => {}
        }
    }

    fn send(&self, to: PlacementId, packet: Packet) {
        if let Some((key, node)) = self.children.child(to) {
            return self.shared.deliver(node, key, self.queue.key.placement, packet);
        }
        let peers = self.order.as_ref().map_or(&[][..], |order| &order.peers);
        if let Some(peer) = peers.iter().find(|peer| peer.placement == to) {
            let key = ReplicaKey { placement: to, ..self.queue.key.clone() };
            self.shared.transport.send(&peer.node, &key, self.queue.key.placement, packet);
        }
    }

    fn answer(&mut self, request: Request, answer: Result<Answer, Failed>) {
        match answer {
            Ok(Answer::Written(position)) => {
                if let Some(began) = self.requests.written(request, position) {
                    self.shared.times.commit.observe(seconds(began, self.shared.clock.nanos()));
                }
            }
            Ok(Answer::Read { age_ms, .. }) => self.read(request, age_ms),
            Err(failed) => self.requests.failed(request, failed),
        }
    }

    /// Reads now, from a state with all entries of earlier effects.
    fn read(&mut self, request: Request, age_ms: Option<u64>) {
        let Some(read) = self.requests.take_read(request) else { return };
        let position = self.rows.applied();
        // A client that has gone does not see its answer.
        match read.wanted {
            Wanted::Row(key, answer) => {
                let found = self.rows.read(&key);
                let found = self.or_stop(found).map(|row| ReadAnswer { row, position, age_ms });
                let _ = answer.send(found);
            }
            Wanted::Range(range, answer) => {
                let found = self.rows.scan(&range);
                let found = self.or_stop(found);
                let page = found.map(|ScannedRows { rows, next }| ScanPage { rows, next, position, age_ms });
                let _ = answer.send(page);
            }
            Wanted::Index(range, answer) => {
                let found = self.rows.index_page(&range);
                let _ = answer.send(self.or_stop(found));
            }
            Wanted::Indexes(answer) => drop(answer.send(Ok(self.rows.indexes().to_vec()))),
            Wanted::Pinned(answer) => {
                let pinned = self.rows.pin();
                let _ = answer.send(self.or_stop(pinned));
            }
        }
    }

    /// Returns what was read. If the store cannot be read, the replica stops.
    fn or_stop<T>(&mut self, found: Result<T, RowsError>) -> Result<T, ReadError> {
        found.map_err(|error| {
            let why = error.to_string();
            self.stop(&error);
            ReadError::Stopped(why)
        })
    }

    /// Reports a change; a change of the log's end alone, only as often as the worker sends heartbeats.
    fn report(&mut self, now: Millis) {
        let report = self.reporter.report(now, &self.machine.status(), &self.settings);
        let is_due = match &self.reported {
            Some((last, _)) if *last == report => false,
            Some((last, at)) => {
                let only_end = ReplicationReport { log_end: report.log_end, ..last.clone() } == report;
                !only_end || now >= *at + self.settings.wish_repeat_ms
            }
            None => true,
        };
        if is_due {
            self.reported = Some((report.clone(), now));
            self.tell_owner(|key| Notice::Report(key, report));
        }
    }

    /// Publishes its figures for metrics, when due.
    fn publish_figures(&mut self, now: Millis) {
        if now < self.figures_at + FIGURES_MS {
            return;
        }
        self.figures_at = now;
        self.queue.figures.set(self.replica_figures(now));
    }

    fn replica_figures(&self, now: Millis) -> ReplicaFigures {
        let (status, size) = (self.machine.status(), self.rows.store().size());
        ReplicaFigures {
            leads: status.has_begun,
            in_sync: self.order.as_ref().map_or(0, |order| order.in_sync.len()),
            lag_ms: self.machine.age_ms(now),
            taken: LoadProgress {
                end: status.end.index,
                chunks: self.incoming.as_ref().map_or(0, Incoming::stored_chunks),
            },
            log_bytes: status.log_bytes as u64,
            store_bytes: size.disk_bytes + size.unflushed_bytes,
        }
    }

    fn tell_owner(&self, notice: impl FnOnce(ReplicaKey) -> Notice) {
        self.shared.registry.tell(notice(self.queue.key.clone()));
    }

    fn stopped(&self) -> Stopped {
        match &self.state {
            State::Failed(why) => Stopped::Failed(why.clone()),
            State::Damaged(_) => Stopped::Damaged,
            State::Running => Stopped::Closed,
        }
    }

    fn stop_damaged(&mut self, why: String) {
        if matches!(self.state, State::Damaged(_)) {
            return;
        }
        self.state = State::Damaged(why.clone());
        self.publish_reads();
        self.outgoing.clear();
        self.requests.end(&Stopped::Damaged);
        self.tell_owner(|key| Notice::Damaged(key, why));
    }

    /// The log has failed: answers all requests that wait, and closes the replica.
    fn end(&mut self, stopped: &Stopped, waiting: Waiting) {
        self.requests.end(stopped);
        refuse(waiting, stopped);
        refuse(self.queue.close(), stopped);
    }
}
