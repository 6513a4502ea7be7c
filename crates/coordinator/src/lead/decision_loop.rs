//! The task that owns the [`Cluster`] while this coordinator leads. Other tasks call it through a [`DecisionLoop`] handle.
//!
//! Each round: take in heartbeats and calls, send grants, decide, commit, and only then answer and send orders and maps.

use crate::backend::store::{Commit, CommitAttempt, Store, StoreError};
use crate::clock::Clock;
use crate::lead::order_channels::{OrderChannels, OrderReceiver};
use crate::limits;
use partage_coordination::LeaderLease;
use partage_core::base::id::TransactionId;
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_core::cluster::event::{About, Event, EventKind, event};
use partage_core::cluster::{
    BeatError, Cluster, LaterMaps, MAKE_ROOM, Moment, Outbox, UncommittedChanges, Write,
};
use partage_core::keyspace::map::MapDiff;
use partage_core::node::exchange::Registration;
use partage_core::node::exchange::Welcome;
use partage_core::node::exchange::{Beat, Orders};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot, watch};

/// A request that the decision loop carries out on the cluster, between two commits.
struct Call {
    /// Whether it may change what is stored.
    changes: bool,
    work: Work,
}

/// Reads or changes the cluster, or gets the reason why it may not. Returns the reply, which the decision loop sends when the
/// changes are durable.
type Work = Box<dyn FnOnce(Result<(&mut Cluster, Moment), NotStored>) -> Option<Reply> + Send>;
/// Sends the answer of a call to its caller, or the reason why nothing of it was stored. When the decision loop drops it, the
/// caller gets no answer.
type Reply = Box<dyn FnOnce(Result<(), NotStored>) + Send>;

/// A heartbeat (*beat*) of a worker, and the channel for its answer.
struct BeatCall {
    beat: Beat,
    answer: oneshot::Sender<Result<Orders, BeatError>>,
}

/// Messages of workers that the decision loop answers during a commit, too, where it can.
enum Urgent {
    Beat(BeatCall),
    /// A worker comes back. Its registration is the answer if it has to wait, as any other call.
    Resume {
        registration: Box<Registration>,
        answer: oneshot::Sender<Result<Welcome, Box<Registration>>>,
    },
}

/// The decision loop is gone: the coordinator stops or starts anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the coordinator is starting or stopping: try again in a moment")]
pub struct LoopStopped;

/// The store did not take a change, and it is certain that nothing of it was stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("nothing was changed: {what}")]
pub struct NotStored {
    what: Arc<str>,
    /// The commit for which the store has no room.
    lacks_room: Option<CommitAttempt>,
}

impl NotStored {
    /// Of an error of a commit; none if something may have been stored.
    fn of(error: &StoreError, attempt: &CommitAttempt) -> Option<NotStored> {
        let lacks_room = error.is_full().then(|| attempt.clone());
        let what = error.full_disk().unwrap_or_else(|| error.to_string()).into();
        error.changed_nothing().then_some(NotStored { what, lacks_room })
    }

    /// The way out.
    pub fn way_out(&self) -> &'static str {
        match self.lacks_room {
            Some(_) => MAKE_ROOM,
            None => "try again in a moment",
        }
    }
}

/// Why a change has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The decision loop is gone.
    #[error(transparent)]
    Stopped(#[from] LoopStopped),
    /// It was refused.
    #[error(transparent)]
    NotStored(#[from] NotStored),
}

/// Why a decision loop ended.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// The store failed, or this coordinator no longer leads.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The disk is full. The last decision is not durable; this coordinator still leads.
    #[error(transparent)]
    Full(NotStored),
    /// Workers know later maps than this leader, so it must decide nothing.
    #[error("workers were told more than this coordinator knows")]
    LaterMaps(LaterMaps),
}

/// Is called by the decision loop when decisions are durable.
pub trait Observer: Send + Sync + 'static {
    /// New maps, in order.
    fn maps(&self, cluster: &Cluster, diffs: Vec<MapDiff>);
    /// Something was logged.
    fn notice(&self, alarm: bool, text: &str);
    /// Events, which are durable.
    fn happened(&self, events: &[Event]);
    /// A commit has ended, after this time.
    fn committed(&self, took: Duration);
    /// A round of decisions, after so many calls, is over.
    fn round_ended(&self, cluster: &Cluster, now: Millis, calls: usize);
}

/// A handle to the decision loop.
#[derive(Clone)]
pub struct DecisionLoop {
    calls: mpsc::Sender<Call>,
    beats: mpsc::Sender<Urgent>,
    orders: Arc<OrderChannels>,
    callbacks: Arc<Callbacks>,
    callback_news: watch::Receiver<()>,
    registered: Arc<Notify>,
}

/// Nodes with a callback whose orders have changed since this was last taken.
type Callbacks = Mutex<BTreeSet<NodeId>>;

/// The state that a decision loop starts with.
pub struct LeaderState {
    /// The cluster, as recovered from `store`.
    pub cluster: Cluster,
    /// Where decisions are stored.
    pub store: Store,
    /// The loop decides while this lease on the leadership holds.
    pub lead: LeaderLease,
    /// The coordinator's clock.
    pub clock: Clock,
    /// Why the store has no room, if that ended the decision loop before this one.
    pub full: Option<NotStored>,
}

impl DecisionLoop {
    /// Starts the decision loop of a recovered cluster. The returned task ends when every handle is dropped, or with an error.
    /// It calls `begin` before the first decision.
    pub fn start(
        state: LeaderState,
        observer: Arc<dyn Observer>,
        begin: impl FnOnce(&DecisionLoop, &Cluster),
    ) -> (DecisionLoop, tokio::task::JoinHandle<Result<(), LoopError>>) {
        let (calls, inbox) = mpsc::channel(limits::CALLS);
        let (beats, beats_inbox) = mpsc::channel(limits::CALLS);
        let (orders, callbacks) = (Arc::new(OrderChannels::default()), Arc::new(Callbacks::default()));
        let (callbacks_changed, callback_news) = watch::channel(());
        let handle = DecisionLoop {
            calls,
            beats,
            orders: orders.clone(),
            callbacks: callbacks.clone(),
            callback_news,
            registered: Arc::default(),
        };
        begin(&handle, &state.cluster);
        let LeaderState { mut cluster, store, lead, clock, full } = state;
        cluster.set_storage_problem(full.as_ref().map(ToString::to_string));
        let (beats, waiting) = (beats_inbox, Vec::new());
        let task = Task {
            cluster,
            store,
            lead,
            clock,
            full,
            room_looked_for: clock.now(),
            observer,
            inbox,
            beats,
            waiting,
            orders,
            callbacks,
            callbacks_changed,
        };
        (handle, tokio::spawn(task.run()))
    }

    /// Does `work` on the cluster, also while nothing can be stored, and gives back what it returns. What it changes may be lost
    /// with this leader: where the caller must know, [`DecisionLoop::change`] answers once it is stored.
    pub async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Cluster, Moment) -> T + Send + 'static,
    ) -> Result<T, LoopStopped> {
        let (answer, answered) = oneshot::channel();
        let work: Work = Box::new(move |cluster| {
            let (cluster, at) = cluster.ok()?;
            let result = work(cluster, at);
            // The caller may have gone.
            Some(Box::new(move |stored| drop(stored.map(|()| answer.send(result)))))
        });
        self.calls.send(Call { changes: false, work }).await.map_err(|_| LoopStopped)?;
        answered.await.map_err(|_| LoopStopped)
    }

    /// Does `work` on the cluster and gives back what it returns, once everything it did is durable.
    pub async fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Cluster, Moment) -> T + Send + 'static,
    ) -> Result<T, CallError> {
        let (answer, answered) = oneshot::channel();
        let work: Work = Box::new(move |cluster| match cluster {
            Ok((cluster, at)) => {
                let result = work(cluster, at);
                Some(Box::new(move |stored| drop(answer.send(stored.map(|()| result)))))
            }
            Err(why) => {
                drop(answer.send(Err(why)));
                None
            }
        });
        self.calls.send(Call { changes: true, work }).await.map_err(|_| LoopStopped)?;
        Ok(answered.await.map_err(|_| LoopStopped)??)
    }

    /// Passes a worker's heartbeat to the cluster. The answer waits for a commit only where it has to.
    pub async fn beat(&self, beat: Beat) -> Result<Result<Orders, BeatError>, LoopStopped> {
        let (answer, answered) = oneshot::channel();
        self.beats.send(Urgent::Beat(BeatCall { beat, answer })).await.map_err(|_| LoopStopped)?;
        answered.await.map_err(|_| LoopStopped)
    }

    /// Registers a worker that comes back unchanged, without waiting for a commit; else returns its registration.
    pub async fn resume(
        &self,
        registration: Registration,
    ) -> Result<Result<Welcome, Box<Registration>>, LoopStopped> {
        let (answer, answered) = oneshot::channel();
        let registration = Box::new(registration);
        self.beats.send(Urgent::Resume { registration, answer }).await.map_err(|_| LoopStopped)?;
        answered.await.map_err(|_| LoopStopped)
    }

    /// Tells the address checker that a node has registered, as its first shards wait for the check (A11).
    pub fn notify_registration(&self) {
        self.registered.notify_one();
    }

    /// Waits until a node has registered since the last call.
    pub async fn registration_notified(&self) {
        self.registered.notified().await;
    }

    /// Receives the orders of `node` when they change after version `sent`.
    pub fn subscribe_orders(&self, node: &NodeId, sent: u64) -> OrderReceiver {
        self.orders.subscribe(node, sent)
    }

    /// Changes whenever [`DecisionLoop::take_callback_nodes`] has something to give; ends with the decision loop.
    pub fn callbacks_changed(&self) -> watch::Receiver<()> {
        self.callback_news.clone()
    }

    /// Nodes with a callback whose orders have changed since this was last asked.
    pub fn take_callback_nodes(&self) -> BTreeSet<NodeId> {
        std::mem::take(&mut *self.callbacks.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Task {
    cluster: Cluster,
    store: Store,
    lead: LeaderLease,
    clock: Clock,
    /// Why nothing can be stored; then nothing is decided either.
    full: Option<NotStored>,
    /// When the loop last looked for room in the store.
    room_looked_for: Millis,
    observer: Arc<dyn Observer>,
    inbox: mpsc::Receiver<Call>,
    beats: mpsc::Receiver<Urgent>,
    /// Beats that came during a commit and have to wait for its end.
    waiting: Vec<BeatCall>,
    orders: Arc<OrderChannels>,
    callbacks: Arc<Callbacks>,
    callbacks_changed: watch::Sender<()>,
}

/// What wakes the decision loop.
enum Wakeup {
    Call(Option<Call>),
    Urgent(Option<Urgent>),
    Time,
}

impl Task {
    async fn run(mut self) -> Result<(), LoopError> {
        let mut wake = self.run_round(Vec::new(), 0).await?;
        loop {
            let rest_ms = wake.since(self.clock.now()).min(60_000);
            let wakeup = tokio::select! {
                call = self.inbox.recv() => Wakeup::Call(call),
                urgent = self.beats.recv() => Wakeup::Urgent(urgent),
                () = tokio::time::sleep(Duration::from_millis(rest_ms)) => Wakeup::Time,
                _ = self.lead.lost() => Wakeup::Time,
            };
            let (call, urgent) = match wakeup {
                Wakeup::Call(None) | Wakeup::Urgent(None) => return Ok(()),
                Wakeup::Call(call) => (call, None),
                Wakeup::Urgent(urgent) => (None, urgent),
                Wakeup::Time => (None, None),
            };
            let at = self.moment()?;
            let mut replies = self.take_urgent(at, urgent);
            // A grant need not wait for the disk.
            let granted = self.cluster.grant_before_commit(at);
            self.send_orders(granted);
            let (more, calls) = self.take_calls(at, call);
            replies.extend(more);
            if !self.cluster.later_maps().is_empty() {
                return Err(LoopError::LaterMaps(self.cluster.later_maps().clone()));
            }
            wake = self.run_round(replies, calls).await?;
        }
    }

    /// The time, or an error if another coordinator may lead now: a deposed leader must not even renew leases in memory.
    fn moment(&self) -> Result<Moment, StoreError> {
        moment(&self.lead, self.clock)
    }

    /// Answers heartbeats, and workers that come back. Returns the replies that have to wait for the commit: those
    /// after the first change that has to be stored.
    fn take_urgent(&mut self, at: Moment, first: Option<Urgent>) -> Vec<Reply> {
        let mut beats = std::mem::take(&mut self.waiting);
        let mut next = first;
        while let Some(urgent) = next {
            match urgent {
                Urgent::Beat(call) => beats.push(call),
                // The caller may have gone.
                Urgent::Resume { registration, answer } => {
                    let _ = answer.send(self.cluster.resume_during_commit(at, *registration));
                }
            }
            next = if beats.len() < limits::CALLS { self.beats.try_recv().ok() } else { None };
        }
        let mut replies: Vec<Reply> = Vec::new();
        for BeatCall { beat, answer } in beats {
            let orders = self.cluster.beat(at, beat);
            // The caller may have gone.
            let reply = move |stored: Result<(), NotStored>| {
                if stored.is_ok() {
                    let _ = answer.send(orders);
                }
            };
            match self.cluster.has_no_pending_writes() {
                true => reply(Ok(())),
                false => replies.push(Box::new(reply)),
            }
        }
        replies
    }

    /// Carries out a batch of calls. Returns the replies that have to wait for the commit, and how many calls there were.
    fn take_calls(&mut self, at: Moment, first: Option<Call>) -> (Vec<Reply>, usize) {
        let (mut replies, mut count, mut next) = (Vec::new(), 0, first);
        while let Some(Call { changes, work }) = next {
            count += 1;
            let reply = match &self.full {
                Some(full) if changes => work(Err(full.clone())),
                _ => work(Ok((&mut self.cluster, at))),
            };
            // The call has read only durable state, and changed nothing that has to be stored.
            if self.cluster.has_no_pending_writes() {
                reply.into_iter().for_each(|reply| reply(Ok(())));
            } else {
                replies.extend(reply);
            }
            next = if count < limits::BATCH { self.inbox.try_recv().ok() } else { None };
        }
        (replies, count)
    }

    /// Decides; or, while the store is full, looks whether it has room again. Returns when the next round is due.
    async fn run_round(&mut self, replies: Vec<Reply>, calls: usize) -> Result<Millis, LoopError> {
        if let Some(full) = self.full.clone().filter(|_| self.cluster.has_no_pending_writes()) {
            let next = self.room_looked_for + limits::ROOM_AGAIN_MS;
            if self.clock.now() < next || !self.has_room(&full.lacks_room.unwrap_or_default()).await {
                self.observer.round_ended(&self.cluster, self.clock.now(), calls);
                let again = self.room_looked_for + limits::ROOM_AGAIN_MS;
                return Ok(if self.waiting.is_empty() { again } else { self.clock.now() });
            }
            self.full = None;
            self.cluster.set_storage_problem(None);
            let text = "there is room on the disk again: this coordinator decides again";
            self.observer.notice(false, text);
            self.observer.happened(&[event(EventKind::Notice, About::all(), text.to_owned())]);
        }
        let wake = self.decide(replies).await?;
        self.observer.round_ended(&self.cluster, self.clock.now(), calls);
        Ok(wake)
    }

    /// Decides, commits, sends the outputs and the replies; again while the cluster has more to do at once.
    async fn decide(&mut self, mut replies: Vec<Reply>) -> Result<Millis, LoopError> {
        let mut wake = Millis(0);
        for _ in 0..limits::ROUNDS {
            let at = self.moment()?;
            wake = self.cluster.decide(at, transaction());
            let mut outbox = self.cluster.take_outbox();
            let mut heartbeats_first = false;
            if !outbox.writes.is_empty() {
                let pending = UncommittedChanges::of(&outbox);
                let Committed { took, has_heard } =
                    self.commit(std::mem::take(&mut outbox.writes), &pending, &mut replies).await?;
                self.observer.committed(took);
                heartbeats_first = took >= limits::SLOW_COMMIT || has_heard;
            }
            self.send_outputs(outbox);
            replies.drain(..).for_each(|reply| reply(Ok(())));
            let waits = !(self.beats.is_empty() && self.inbox.is_empty() && self.waiting.is_empty());
            if heartbeats_first || waits {
                // Heartbeats and calls that came during the commit come first.
                return Ok(wake.min(at.now));
            }
            if wake > at.now {
                break;
            }
        }
        Ok(wake)
    }

    /// Makes `writes` durable, and answers heartbeats meanwhile.
    async fn commit(
        &mut self,
        writes: Vec<Write>,
        pending: &UncommittedChanges,
        replies: &mut Vec<Reply>,
    ) -> Result<Committed, LoopError> {
        let begun = tokio::time::Instant::now();
        let commit = Commit::of(writes, &self.cluster);
        let Task { cluster, store, lead, clock, beats, waiting, .. } = self;
        let mut store_wait = StoreWait::new(cluster, lead, *clock, (beats, waiting));
        let outcome = store_wait.answer_until(pending, store.carry_out(commit)).await;
        let has_heard = store_wait.has_heard;
        if let Err(error) = outcome {
            let Some(not_stored) = NotStored::of(&error, self.store.last_attempt()) else {
                return Err(error.into());
            };
            replies.drain(..).for_each(|reply| reply(Err(not_stored.clone())));
            return Err(if error.is_full() { LoopError::Full(not_stored) } else { error.into() });
        }
        self.cluster.listen(self.clock.moment());
        Ok(Committed { took: begun.elapsed(), has_heard })
    }

    /// Whether the store has room for `attempt` now; answers heartbeats meanwhile.
    async fn has_room(&mut self, attempt: &CommitAttempt) -> bool {
        let Task { cluster, store, lead, clock, beats, waiting, .. } = self;
        cluster.has_listened(clock.moment());
        let mut store_wait = StoreWait::new(cluster, lead, *clock, (beats, waiting));
        let has_room =
            store_wait.answer_until(&UncommittedChanges::default(), store.has_room(attempt)).await.is_ok();
        self.cluster.listen(self.clock.moment());
        self.room_looked_for = self.clock.now();
        has_room
    }

    fn send_outputs(&mut self, outbox: Outbox) {
        for notice in &outbox.notices {
            self.observer.notice(notice.alarm, &notice.text);
        }
        self.observer.happened(&outbox.events);
        if !outbox.maps.is_empty() {
            self.observer.maps(&self.cluster, outbox.maps);
        }
        self.send_orders(outbox.changed_orders);
    }

    /// Sends changed orders on the nodes' streams, and has the nodes with callbacks called.
    fn send_orders(&self, changed: BTreeSet<NodeId>) {
        self.orders.send(&self.cluster, &changed);
        let nodes = self.cluster.nodes();
        let called = |id: &NodeId| nodes.get(id).is_some_and(|node| node.record.spec.callback.is_some());
        let mut called = changed.into_iter().filter(called).peekable();
        if called.peek().is_some() {
            self.callbacks.lock().unwrap_or_else(PoisonError::into_inner).extend(called);
            self.callbacks_changed.send_replace(());
        }
    }
}

/// A commit that is done.
struct Committed {
    took: Duration,
    /// Whether a beat was taken in meanwhile.
    has_heard: bool,
}

/// Answers heartbeats while the store works.
struct StoreWait<'a> {
    cluster: &'a mut Cluster,
    lead: &'a LeaderLease,
    clock: Clock,
    beats: &'a mut mpsc::Receiver<Urgent>,
    waiting: &'a mut Vec<BeatCall>,
    /// Nodes with a heartbeat that waits and that the cluster will accept. Later ones of them wait, too, as each says only what
    /// changed since the one before.
    held: BTreeSet<NodeId>,
    /// Whether the cluster has taken a beat in.
    has_heard: bool,
}

impl<'a> StoreWait<'a> {
    fn new(
        cluster: &'a mut Cluster,
        lead: &'a LeaderLease,
        clock: Clock,
        (beats, waiting): (&'a mut mpsc::Receiver<Urgent>, &'a mut Vec<BeatCall>),
    ) -> StoreWait<'a> {
        let will_be_taken = |call: &&BeatCall| cluster.will_take(&call.beat);
        let held = waiting.iter().filter(will_be_taken).map(|call| call.beat.node.clone()).collect();
        StoreWait { cluster, lead, clock, beats, waiting, held, has_heard: false }
    }

    /// Lets a heartbeat wait until the store is done.
    fn defer(&mut self, call: BeatCall) {
        if self.cluster.will_take(&call.beat) {
            self.held.insert(call.beat.node.clone());
        }
        self.waiting.push(call);
    }

    /// Answers heartbeats, and workers that come back, until the store has done its `work`, which makes `pending` durable.
    async fn answer_until<T>(&mut self, pending: &UncommittedChanges, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let heartbeat = Duration::from_millis(self.cluster.settings().heartbeat_ms);
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + heartbeat, heartbeat);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let urgent = tokio::select! {
                done = &mut work => return done,
                _ = ticks.tick() => {
                    self.cluster.listen(self.clock.moment());
                    continue;
                }
                Some(urgent) = self.beats.recv(), if self.waiting.len() < limits::CALLS => urgent,
            };
            match (urgent, moment(self.lead, self.clock)) {
                (Urgent::Beat(call), _) if self.held.contains(&call.beat.node) => self.defer(call),
                (Urgent::Beat(BeatCall { beat, answer }), Ok(at)) => {
                    match self.cluster.beat_during_commit(at, beat, pending) {
                        Ok(orders) => {
                            self.has_heard = true;
                            drop(answer.send(Ok(orders)));
                        }
                        Err(beat) => self.defer(BeatCall { beat, answer }),
                    }
                }
                (Urgent::Beat(call), Err(_)) => self.defer(call),
                (Urgent::Resume { registration, answer }, Ok(at)) => {
                    drop(answer.send(self.cluster.resume_during_commit(at, *registration)));
                }
                (Urgent::Resume { registration, answer }, Err(_)) => {
                    drop(answer.send(Err(registration)));
                }
            }
        }
    }
}

impl Drop for Task {
    /// Streams that wait for orders end.
    fn drop(&mut self) {
        self.orders.clear();
    }
}

/// The time, or an error if the lease on the leadership is over.
fn moment(lead: &LeaderLease, clock: Clock) -> Result<Moment, StoreError> {
    let at = clock.moment();
    lead.check()?;
    Ok(at)
}

/// A new transaction id.
pub(crate) fn transaction() -> TransactionId {
    TransactionId(partage_random::bytes())
}
