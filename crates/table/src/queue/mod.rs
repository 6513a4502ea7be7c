//! The queue of one replica, the thread that serves it next, and the list of replicas that a thread has to serve.
//!
//! Each replica has a queue, which any thread may add to. Where only the latest value counts (the synced number, the order), the
//! queue has one place; the rest has bounds. A packet that does not fit is dropped, and a request refused. So no thread ever
//! waits to add, and the thread of the log can report to replicas that wait for the log.
//!
//! | question | file |
//! |---|---|
//! | what waits, and how much of it may | `waiting.rs` |
//! | whose turn it is to serve the replica | `turn.rs` |
//! | which replicas a thread has to serve | `ready.rs` |
//!
//! # Which thread serves it
//!
//! One thread at a time serves a replica: the one that has taken it out of its queue ([`Turn`]). That is the thread of the
//! replica, or, while the replica needs nothing that may take long ([`Claim`]), the very thread that adds: to wake another
//! thread takes some 30 microseconds on a virtual machine, and a write came to eight such waits on its way through three nodes.
//!
//! ```text
//!        add                                    its thread comes to it
//!  Idle ─────► Listed: its thread is woken ─────────────────────────────► Serving ── nothing has come ──► Idle
//!    │                                                                    ▲   │ add
//!    │ add_write, add_to_serve                                               │   ▼
//!    └───────► Claimed: by a task or thread that serves it soon ──────────┘  ServingAgain ──► Claimed, or Listed
//! ```

mod ready;
mod turn;
mod waiting;

pub(crate) use ready::ReadyList;
pub(crate) use turn::{AfterServing, Claim};
pub(crate) use waiting::{Command, Read, Waiting, Wanted, WriteAnswer};

use crate::direct::DirectReads;
use crate::error::{ReadError, WriteError};
use crate::event_loop::Local;
use crate::figures::Figures;
use crate::limits;
use crate::transport::Packet;
use partage_core::base::id::PlacementId;
use partage_core::base::time::Millis;
use partage_core::keyspace::RowValues;
use partage_core::keyspace::sharding::PartitionKey;
use partage_core::node::exchange::ReplicaKey;
use partage_service::table::replication::Payload;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use turn::{State, Turn};

/// The queue of one replica.
pub(crate) struct ReplicaQueue {
    pub(crate) key: ReplicaKey,
    /// The number of this opening of the replica, unique in the process.
    pub(crate) number: u64,
    pub(crate) partition_key: PartitionKey,
    pub(crate) values: RowValues,
    /// The replica is a child's that takes its base, and takes part in nothing yet.
    is_base: AtomicBool,
    /// The replica is closing, which takes as long as its disk does, and with a full disk until there is room.
    is_closing: AtomicBool,
    /// For reads that do not wait for the thread of the replica.
    pub(crate) direct: DirectReads,
    pub(crate) figures: Figures,
    state: Mutex<State>,
    /// Notified when a replica that was served while the queue was closed is gone.
    closed: Condvar,
    ready: Arc<ReadyList>,
}

impl ReplicaQueue {
    pub(crate) fn new(
        key: ReplicaKey,
        number: u64,
        (partition_key, values): (PartitionKey, RowValues),
        ready: Arc<ReadyList>,
    ) -> ReplicaQueue {
        let (is_base, is_closing) = (AtomicBool::new(false), AtomicBool::new(false));
        let (direct, figures) = (DirectReads::default(), Figures::default());
        ReplicaQueue {
            key,
            number,
            partition_key,
            values,
            is_base,
            is_closing,
            direct,
            figures,
            state: Mutex::default(),
            closed: Condvar::new(),
            ready,
        }
    }

    /// Whether the replica is a child's that takes its base.
    pub(crate) fn is_base(&self) -> bool {
        self.is_base.load(Ordering::Acquire)
    }

    pub(crate) fn set_base(&self, is_base: bool) {
        self.is_base.store(is_base, Ordering::Release);
    }

    /// Whether the replica is about to close, and takes part in nothing any more.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    pub(crate) fn begin_to_close(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked while it had the lock has changed nothing by halves: each change is one push.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread of the replica serves it next.
    fn list(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        state.turn = Turn::Listed;
        let is_on_list = std::mem::replace(&mut state.is_on_list, true);
        drop(state);
        if !is_on_list {
            self.ready.add(Arc::clone(self));
        }
    }

    /// The replica is opened: its thread serves it, with what `change` adds.
    pub(crate) fn place(self: &Arc<Self>, replica: Local, change: impl FnOnce(&mut Waiting)) {
        self.lock().replica = Some(replica);
        self.add(change);
    }

    /// Changes what waits, unless the replica is closed. Its thread serves it, unless another thread does so already.
    pub(crate) fn add<T>(self: &Arc<Self>, change: impl FnOnce(&mut Waiting) -> T) -> Option<T> {
        Some(self.add_claiming(change, |_| false)?.0)
    }

    /// The same, but the caller serves the replica if it gets a claim: where `claims` says so of the turn, and the replica needs
    /// nothing that takes long.
    fn add_claiming<T>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Waiting) -> T,
        claims: fn(Turn) -> bool,
    ) -> Option<(T, Option<Claim>)> {
        let mut state = self.lock();
        if state.is_closed {
            return None;
        }
        let changed = change(&mut state.waiting);
        let claim = (state.is_light && claims(state.turn)).then(|| state.claim());
        match state.turn {
            Turn::Idle => self.list(state),
            // The owner of the claim may not serve that.
            Turn::Claimed(_) if claim.is_none() && !state.waiting.is_light() => self.list(state),
            Turn::Serving => state.turn = Turn::ServingAgain,
            Turn::Listed | Turn::Claimed(_) | Turn::ServingAgain => drop(state),
        }
        Some((changed, claim.map(|number| Claim { queue: Arc::clone(self), number })))
    }

    /// Changes what waits, unless the replica is closed, and gives a claim to serve the replica, unless a thread serves it
    /// already, or it needs what takes long. The caller must hold no lock, and serve no other replica, when it uses the claim.
    pub(crate) fn add_to_serve(self: &Arc<Self>, change: impl FnOnce(&mut Waiting)) -> Option<Claim> {
        let not_served = |turn| !matches!(turn, Turn::Serving | Turn::ServingAgain);
        self.add_claiming(change, not_served)?.1
    }

    /// The owner of a claim serves the replica. None: another thread has done so, or the replica's own thread must.
    fn begin_claimed(&self, claim: u64) -> Option<(Local, Waiting)> {
        let mut state = self.lock();
        let may_begin = state.turn == Turn::Claimed(claim) && state.is_light && state.waiting.is_light();
        if may_begin { state.begin() } else { None }
    }

    /// The replica's thread has come to it on the list. None: another thread serves it, or has done so.
    pub(crate) fn begin_listed(&self) -> Option<(Local, Waiting)> {
        let mut state = self.lock();
        state.is_on_list = false;
        if state.turn == Turn::Listed { state.begin() } else { None }
    }

    /// The replica's thread has come to its time. None: another thread serves it, or its own thread will, as it is on the list.
    /// A claim is not waited for: its owner may be late.
    pub(crate) fn begin_timed(&self) -> Option<(Local, Waiting)> {
        let mut state = self.lock();
        state.timer = Millis::NEVER;
        match state.turn {
            Turn::Idle | Turn::Claimed(_) => return state.begin(),
            Turn::Serving => state.turn = Turn::ServingAgain,
            Turn::Listed | Turn::ServingAgain => {}
        }
        None
    }

    /// The replica was served, and is given back unless it has closed.
    pub(crate) fn end(self: &Arc<Self>, replica: Option<Local>) -> AfterServing {
        let Some(replica) = replica else { return self.end_closed() };
        let (next, is_light) = (replica.wake_at(), replica.is_light());
        let mut state = self.lock();
        if state.is_closed {
            // The node is dropped. The replica has this queue, so that the queue must not have the replica.
            drop(state);
            drop(replica);
            return self.end_closed();
        }
        (state.replica, state.is_light) = (Some(replica), is_light);
        let timer = (next < state.timer).then_some(next);
        state.timer = state.timer.min(next);
        let again = state.turn == Turn::ServingAgain;
        state.turn = Turn::Idle;
        let again = again.then(|| state.claim());
        drop(state);
        AfterServing { again: again.map(|number| Claim { queue: Arc::clone(self), number }), timer }
    }

    fn end_closed(&self) -> AfterServing {
        self.lock().turn = Turn::Idle;
        self.closed.notify_all();
        AfterServing::default()
    }

    /// Lists the replica to be served.
    pub(crate) fn wake(self: &Arc<Self>) {
        self.add(|_| ());
    }

    /// Adds a packet, or drops it.
    pub(crate) fn add_packet(self: &Arc<Self>, from: PlacementId, packet: Packet) {
        self.add(|waiting| waiting.add_packet(from, packet));
    }

    /// Adds a write. The caller serves the replica if it gets a claim.
    pub(crate) fn add_write(
        self: &Arc<Self>,
        payload: Payload,
        answer: WriteAnswer,
        now: u64,
    ) -> Result<Option<Claim>, WriteError> {
        let change = |waiting: &mut Waiting| waiting.add_write(payload, answer, now);
        let (added, claim) =
            self.add_claiming(change, |turn| turn == Turn::Idle).ok_or(WriteError::NotOpen)?;
        added.map(|()| claim)
    }

    /// Adds a read; refuses it as [`ReadError::Busy`] when [`limits::READS_WAITING`] wait.
    pub(crate) fn add_read(self: &Arc<Self>, read: Read) -> Result<(), ReadError> {
        let added = self.add(|waiting| {
            if waiting.reads.len() >= limits::READS_WAITING {
                return Err(ReadError::Busy);
            }
            waiting.reads.push(read);
            Ok(())
        });
        added.unwrap_or(Err(ReadError::NotOpen))
    }

    /// Adds a command; says whether it did.
    pub(crate) fn add_command(self: &Arc<Self>, command: Command) -> bool {
        let added = self.add(|waiting| {
            let has_room = waiting.commands.len() < limits::COMMANDS_WAITING;
            if has_room {
                waiting.commands.push_back(command);
            }
            has_room
        });
        added.unwrap_or(false)
    }

    /// Nothing is added any more, and the replica is gone when the call ends. Blocks while another thread serves it.
    pub(crate) fn close_when_served(&self) {
        drop(self.close());
        let is_served = |state: &mut State| matches!(state.turn, Turn::Serving | Turn::ServingAgain);
        drop(self.closed.wait_while(self.lock(), is_served));
        self.direct.publish(None);
        self.direct.set_rows(None);
    }

    /// Nothing is added any more; gives what waits.
    pub(crate) fn close(&self) -> Waiting {
        let mut state = self.lock();
        state.is_closed = true;
        if !matches!(state.turn, Turn::Serving | Turn::ServingAgain) {
            state.turn = Turn::Idle;
        }
        let (replica, waiting) = (state.replica.take(), std::mem::take(&mut state.waiting));
        drop(state);
        drop(replica);
        waiting
    }
}
