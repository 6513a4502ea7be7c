//! One replica as its worker holds it: from an order to callbacks, to a gate, to a report.
//!
//! The *gate* says whether requests may come in, and under which epoch and role. It opens after the
//! service's `serve` has returned and closes before anything is handed over. (In exclusive mode the lease
//! is asked besides, at every request: see [`super::gates`].)
//!
//! | phase       | runs      | gate   | order says            | callback done | callback failed        |
//! |-------------|-----------|--------|-----------------------|---------------|------------------------|
//! | `Idle`      | –         | shut   | see [`LocalReplica::next`] |               |                        |
//! | `Loading`   | `load`    | shut   | leave → `unload`      | `Ready`       | `load` again, later    |
//! | `Ready`     | –         | shut   | serve → `serve`       |               |                        |
//! | `Opening`   | `serve`   | as was | leave → drain         | `Serving`     | `serve` again, later   |
//! | `Serving`   | –         | open   | other role → `serve`; load anew → drain | |                      |
//! | `Draining`  | requests  | shut   |                       | `unload` or `serve` | –                |
//! | `Closing`   | `unload`  | shut   |                       | `Unloaded`    | `Unloaded`, reported   |
//! | `Unloaded`  | –         | shut   | delete → `drop`; stay → `load` |      |                        |
//! | `Dropping`  | `drop`    | shut   |                       | `Dropped`     | `drop` again, later    |
//! | `Dropped`   | –         | shut   | stay → `load`         |               |                        |
//! | `Lost`      | –         | shut   | any other → `Unloaded` or `Dropped` |  |                        |
//!
//! *Withdrawn* is not *dropped* (D7): a replica that no order names any more, or whose worker's incarnation has ended,
//! goes as far as `Unloaded` and is reported `Kept`. Its data is deleted only on a permission: an order to
//! `UnloadFinal`, or a [`Permission`]. An order that names it again takes it back.
//!
//! A `load` that finds what is stored *damaged* ([`LocalReplica::damaged`]) is reported so: the coordinator waits for no further
//! attempt, and has the replica filled again from others.
//!
//! A service may report a replica that serves *unhealthy* ([`LocalReplica::unhealthy`]: its disk died). It is drained and
//! unloaded as if it were to leave, loaded again, and reported failed until a load has succeeded; so a follower
//! that serves leads instead, and a replica that cannot be loaded is moved elsewhere.
//!
//! An order is *carried out*, and its epoch reported, when what it ends has ended: a leader that is ordered
//! to follow or to leave has carried that out when its last request is answered (and, leaving, when
//! `unload` has returned or run out of time). No other replica owns the shard before that (O1).

mod callback_timeouts;
mod callbacks;
mod restored;
mod service_reports;

pub use callback_timeouts::CallbackTimeouts;
pub use service_reports::NoSuccessor;

use crate::base::id::{Configuration, Epoch};
use crate::base::planted::{self, Planted};
use crate::base::time::Millis;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::Role;
use crate::node::exchange::{DropReason, Failure, Order, Peer, Permission, Phase, Served, Stored};

/// What a service is asked to do for one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Callback {
    /// Prepare: fetch the data.
    Load,
    /// Begin to serve in that role under that epoch, or change to it.
    Serve(Role, Epoch),
    /// No more requests come; hand over what is left.
    Unload,
    /// Delete the data, for that reason.
    Drop(DropReason),
}

/// Whether requests for a local replica may come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// No request may come in.
    Shut,
    /// Requests may come in, under this role and epoch.
    Open(Role, Epoch),
}

/// Where a local replica is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Idle,
    Ready,
    Serving,
    Unloaded,
    Dropped,
    /// It counts as a copy and is none: see [`LocalReplica::admit_loss`].
    Lost,
    /// A callback runs since then.
    Calling(Callback, Millis),
    /// The last requests run since then.
    Draining(Millis),
    /// A callback failed and is called again at that time.
    Resting(Callback, Millis),
}

/// What the driver has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Call the service, and report how that ends.
    Call(Callback),
    /// The callback has run out of time: stop waiting for it.
    Abandon(Callback),
    /// The gate is shut: say [`LocalReplica::requests_ended`] when no request is inside.
    AwaitRequests,
    /// Requests that are still inside have run out of time: end them, then say [`LocalReplica::requests_ended`].
    CancelRequests,
}

/// One replica as its worker holds it.
#[derive(Debug, Clone)]
pub struct LocalReplica {
    /// The latest order about it. An order of an earlier epoch does not replace it.
    pub order: Order,
    at: At,
    gate: Gate,
    carried_out: Epoch,
    /// The latest epoch under which the service was told to serve; 0 = it has only loaded what others have.
    served: Epoch,
    attempts: u32,
    failure: Option<String>,
    /// Why the service cannot serve it, from its report until a load has succeeded.
    unhealthy: Option<String>,
    /// Why the service no longer leads, from its report until an order names another leader.
    laid_down: Option<String>,
    /// How often a load has said that it gets on.
    progress: u32,
    /// No order names it any more, or the coordinator has ended this incarnation: unload, and keep the data.
    withdrawn: bool,
    /// Why its data may be deleted although no order says so.
    permission: Option<DropReason>,
    /// Whether its data is here: a load has succeeded, or an earlier process has stored it undamaged.
    has_data: bool,
    /// The data is here, and an order has said since that others go on without it: see [`LocalReplica::restored`].
    is_left_behind: bool,
    /// The same, of a state of the cluster that was lost.
    is_outdated: bool,
    /// The disk or directory on which its data lies: [`Stored::store`].
    store: u64,
    /// Whether its data is damaged: [`Stored::damaged`], or as a `load` has found since.
    damaged: bool,
    /// Whether its data outlives its processes: then the service notes each epoch under which it follows, too.
    pub(super) durable: bool,
    /// Whether replication among the replicas of its shard settles which of them may write and read. Then a leader that is to
    /// lead under a later epoch goes on: the set of those that store its writes is another one. A drain would wait for writes
    /// that may wait for followers, and these for the leader. And what lags behind is brought up to date as it is, without an
    /// `unload`.
    pub(super) replicated: bool,
}

impl LocalReplica {
    /// A replica heard of for the first time. Call [`LocalReplica::next`] next.
    pub fn new(order: Order) -> LocalReplica {
        LocalReplica {
            order,
            at: At::Idle,
            gate: Gate::Shut,
            carried_out: Epoch(0),
            served: Epoch(0),
            attempts: 0,
            failure: None,
            unhealthy: None,
            laid_down: None,
            progress: 0,
            withdrawn: false,
            permission: None,
            has_data: false,
            is_left_behind: false,
            is_outdated: false,
            store: 0,
            damaged: false,
            durable: false,
            replicated: false,
        }
    }

    /// A replica that an earlier process has stored: kept until it is ordered or may be deleted.
    pub fn stored(stored: Stored) -> LocalReplica {
        let order = Order {
            replica: stored.replica,
            bounds: stored.bounds,
            role: Role::Follower,
            state: ReplicaState::Unload,
            epoch: stored.epoch,
            configuration: Configuration(0),
            in_sync: false,
            granted: false,
            peers: vec![],
            had_data: true,
            drop: None,
            hand_over_to: None,
        };
        LocalReplica {
            at: At::Unloaded,
            carried_out: stored.epoch,
            served: stored.epoch,
            withdrawn: true,
            has_data: !stored.damaged,
            store: stored.store,
            damaged: stored.damaged,
            ..LocalReplica::new(order)
        }
    }

    /// What is stored of it.
    pub fn served(&self) -> Served {
        Served { epoch: self.served, bounds: self.order.bounds.clone() }
    }

    /// How a registration names it, when no order of this incarnation does.
    pub fn as_stored(&self) -> Option<Stored> {
        (self.withdrawn && !self.is_dropped()).then(|| Stored {
            replica: self.order.replica.clone(),
            bounds: self.order.bounds.clone(),
            epoch: self.served,
            store: self.store,
            damaged: self.damaged,
        })
    }

    /// Whether its data is here: a load has succeeded, or an earlier process has stored it undamaged.
    pub fn has_data(&self) -> bool {
        self.has_data
    }

    /// Whether it must not be loaded: the shard has had data, which is neither here nor on a peer (D10). A copy that is
    /// here and is ordered to load has missed writes: it does not become one that may lead without having them.
    pub fn lacks_source(&self) -> bool {
        let is_source = |peer: &Peer| matches!(peer.state, ReplicaState::Live | ReplicaState::Unload);
        let counts = self.has_data && self.order.state == ReplicaState::Live;
        self.order.had_data && !counts && !self.order.peers.iter().any(is_source)
    }

    /// Whether requests may come in.
    pub fn gate(&self) -> Gate {
        self.gate
    }

    /// The epoch of the last order that was carried out.
    pub fn carried_out(&self) -> Epoch {
        self.carried_out
    }

    /// The epoch to report: of data that is kept, the latest under which it was served.
    pub fn epoch(&self) -> Epoch {
        if self.is_kept() { self.served } else { self.carried_out }
    }

    /// Whether nothing is left of it.
    pub fn is_dropped(&self) -> bool {
        matches!(self.at, At::Dropped | At::Lost) && !self.has_data
    }

    /// Whether the service has been called to delete its data: what is ordered of it from then on does not concern the service.
    pub fn is_being_dropped(&self) -> bool {
        let at = matches!(self.at, At::Calling(Callback::Drop(_), _) | At::Resting(Callback::Drop(_), _));
        at || self.is_dropped()
    }

    /// How far it is, as the next report to the coordinator says.
    pub fn phase(&self) -> Phase {
        if let Some(reason) = self.failure.as_ref().or(self.unhealthy.as_ref()).or(self.laid_down.as_ref())
            && !matches!(self.at, At::Unloaded | At::Dropped | At::Lost)
        {
            let (attempts, reason) = (self.attempts.max(1), reason.clone());
            return Phase::Failed(Box::new(Failure { attempts, reason, damaged: self.damaged }));
        }
        match self.at {
            At::Idle | At::Calling(Callback::Load, _) | At::Resting(Callback::Load, _) => Phase::Loading,
            At::Ready => Phase::Ready,
            At::Calling(Callback::Serve(..), _) | At::Resting(Callback::Serve(..), _) => match self.gate {
                Gate::Open(..) => Phase::Serving,
                Gate::Shut => Phase::Ready,
            },
            At::Serving => Phase::Serving,
            At::Draining(_) | At::Calling(Callback::Unload, _) | At::Resting(Callback::Unload, _) => {
                Phase::Unloading
            }
            At::Unloaded if self.is_kept() => Phase::Kept,
            At::Unloaded | At::Calling(Callback::Drop(_), _) | At::Resting(Callback::Drop(_), _) => {
                Phase::Unloaded
            }
            At::Dropped | At::Lost => Phase::Dropped,
        }
    }

    /// Takes in an order. One of an earlier epoch is older news and ignored; a grant is not taken back
    /// within its epoch, as no other replica can have begun.
    ///
    /// An order about a replica that was withdrawn takes it back. What was dropped cannot come back.
    pub fn take(&mut self, order: Order) {
        if order.epoch < self.order.epoch {
            return;
        }
        // A replica that has loaded and is ordered to load again lacks nothing: its leader counts it among those that take
        // writes.
        let has_loaded_so = self.at == At::Ready && !self.withdrawn && self.order.state == ReplicaState::Load;
        let is_left = match order.state {
            ReplicaState::Live => false,
            ReplicaState::Load => self.has_data && !has_loaded_so,
            ReplicaState::Unload | ReplicaState::UnloadFinal => self.has_data,
        };
        self.is_left_behind |= is_left;
        if std::mem::take(&mut self.withdrawn) {
            self.permission = None;
            self.order.granted = false;
        }
        let granted = self.order.granted && order.epoch == self.order.epoch;
        self.order = Order { granted: order.granted || granted, ..order };
        self.forget_laid_down();
        if self.runs_nothing() {
            // Nothing of it runs, so there is nothing that the order could end: no caller waits until it can be loaded.
            self.carried_out = self.order.epoch;
        }
    }

    /// No order names it any more: unload, and keep the data. Data that an order has already said may be deleted
    /// is deleted.
    pub fn withdraw(&mut self) {
        self.withdrawn = true;
    }

    /// Its data may be deleted. Not what an order names, nor data of a later epoch than the coordinator knows of.
    pub fn permit(&mut self, permission: &Permission) {
        if self.withdrawn && permission.epoch >= self.served {
            self.permission = Some(permission.reason);
        }
    }

    /// Whether it is unloaded, and waits for the coordinator to take it back or to let its data go.
    pub fn is_kept(&self) -> bool {
        self.at == At::Unloaded && self.withdrawn && self.may_drop().is_none()
    }

    /// Why its data may be deleted, if it may.
    fn may_drop(&self) -> Option<DropReason> {
        let ordered = self.order.state == ReplicaState::UnloadFinal;
        ordered.then(|| self.order.drop.unwrap_or(DropReason::Moved)).or(self.permission)
    }

    /// Whether nothing of it runs here: no request, no callback that it would have to be unloaded after.
    pub fn is_at_rest(&self) -> bool {
        matches!(self.at, At::Unloaded | At::Dropped | At::Lost | At::Resting(Callback::Drop(_), _))
    }

    /// Whether [`LocalReplica::withdraw`] was called.
    pub fn is_withdrawn(&self) -> bool {
        self.withdrawn
    }

    /// The state it is to be in.
    fn wanted(&self) -> ReplicaState {
        match (self.withdrawn, self.may_drop()) {
            (false, _) => self.order.state,
            (true, Some(_)) => ReplicaState::UnloadFinal,
            (true, None) => ReplicaState::Unload,
        }
    }

    /// The next task, if one is due at `now`. Call it again after every event until it gives none.
    pub fn next(&mut self, now: Millis, timeouts: &CallbackTimeouts) -> Option<Task> {
        match (self.at, self.wanted()) {
            (At::Calling(callback, since), _) => self.overdue(callback, since, now, timeouts),
            (At::Draining(since), _) if now.since(since) >= timeouts.drain_ms => {
                self.at = At::Draining(now);
                Some(Task::CancelRequests)
            }
            (At::Draining(_), _) => None,
            (At::Resting(callback, until), wanted) => self.rested(callback, until, wanted, now),
            (At::Idle, ReplicaState::Load | ReplicaState::Live) => self.load(now),
            (At::Idle | At::Ready, ReplicaState::Unload | ReplicaState::UnloadFinal) => {
                self.call(Callback::Unload, now)
            }
            (At::Ready, ReplicaState::Load) => self.carry_out(),
            (At::Ready, ReplicaState::Live) => self.open(now),
            (At::Serving, _) if self.unhealthy.is_some() || self.has_laid_down() => self.shut(now),
            (At::Serving, ReplicaState::Live) => self.adjust(now),
            // To load what serves: it was taken out of the in-sync set; or the coordinator's state was restored from before the
            // replica had loaded. Another leads by now and has what this one lacks.
            (At::Serving, ReplicaState::Load | ReplicaState::Unload | ReplicaState::UnloadFinal) => {
                self.shut(now)
            }
            (At::Unloaded, ReplicaState::Unload) if planted::is(Planted::D7) => {
                self.call(Callback::Drop(DropReason::Moved), now)
            }
            (At::Unloaded, ReplicaState::UnloadFinal) => {
                let reason = self.may_drop().unwrap_or(DropReason::Moved);
                self.call(Callback::Drop(reason), now)
            }
            // Taken back, or unhealthy; or deleted already, and named again by a state that was restored.
            (At::Unloaded | At::Dropped, ReplicaState::Load | ReplicaState::Live) => self.load(now),
            (At::Unloaded, ReplicaState::Unload) | (At::Dropped | At::Lost, _) => self.carry_out(),
        }
    }

    fn call(&mut self, callback: Callback, now: Millis) -> Option<Task> {
        if let Callback::Serve(role, epoch) = callback
            && role != Role::ReadReplica
        {
            self.served = self.served.max(epoch);
        }
        self.at = At::Calling(callback, now);
        Some(Task::Call(callback))
    }

    fn carry_out(&mut self) -> Option<Task> {
        self.carried_out = self.order.epoch;
        None
    }

    fn shut(&mut self, now: Millis) -> Option<Task> {
        if !planted::is(Planted::O2) {
            self.gate = Gate::Shut;
        }
        self.at = At::Draining(now);
        Some(Task::AwaitRequests)
    }

    /// Begins to load once it may.
    fn load(&mut self, now: Millis) -> Option<Task> {
        let may = self.order.granted || self.order.state != ReplicaState::Load;
        if may { self.call(Callback::Load, now) } else { None }
    }

    /// From `Ready`: begins to serve once it may.
    fn open(&mut self, now: Millis) -> Option<Task> {
        if self.order.granted && !self.has_laid_down() {
            return self.call(Callback::Serve(self.order.role, self.order.epoch), now);
        }
        // Its leader may wait for all other replicas to end what they did under earlier epochs, and this one for its leader.
        if self.order.role != Role::Leader && self.gate == Gate::Shut { self.carry_out() } else { None }
    }

    /// While serving: to another role or epoch.
    fn adjust(&mut self, now: Millis) -> Option<Task> {
        let Gate::Open(role, epoch) = self.gate else { return self.open(now) };
        match (role, self.order.role) {
            _ if epoch == self.order.epoch && role == self.order.role => {
                let is_copy = role != Role::ReadReplica;
                if self.durable && self.order.granted && is_copy && self.served < epoch {
                    return self.open(now);
                }
                self.note_served();
                self.carry_out()
            }
            (Role::Leader, Role::Leader) if self.replicated && !planted::is(Planted::DrainedLeader) => {
                self.carried_out = self.order.epoch;
                self.open(now)
            }
            // A leader stops before it does anything else; it goes on when it is drained. Also one that is to
            // lead under a later epoch: it has missed orders, and another has led in between (O1, O7).
            (Role::Leader, _) => self.shut(now),
            // The coordinator waits for that before it grants the leader the epoch: after a restore the epochs that copies
            // have stored say which is the latest.
            (_, Role::Follower | Role::ReadReplica) if self.durable && self.order.granted => self.open(now),
            (_, Role::Follower | Role::ReadReplica) => {
                self.gate = Gate::Open(role, self.order.epoch);
                self.note_served();
                self.carry_out()
            }
            (Role::Follower | Role::ReadReplica, Role::Leader) => self.open(now),
        }
    }

    /// Raises the epoch under which it has served, once the coordinator grants the order: after a restore the coordinator
    /// compares that epoch with other copies' before it grants anything.
    fn note_served(&mut self) {
        // A read replica is no copy, whatever it has answered.
        if self.order.granted && self.order.role != Role::ReadReplica {
            self.served = self.served.max(self.order.epoch);
        }
    }

    /// No request is inside any more.
    pub fn requests_ended(&mut self, now: Millis) -> Option<Task> {
        let At::Draining(_) = self.at else { return None };
        if self.wanted() == ReplicaState::Live && self.unhealthy.is_none() {
            // A leader that follows from now on.
            self.carried_out = self.order.epoch;
            self.at = At::Ready;
            self.open(now)
        } else if self.wanted() == ReplicaState::Load && self.unhealthy.is_none() && self.replicated {
            self.carried_out = self.order.epoch;
            self.at = At::Idle;
            self.load(now)
        } else {
            self.call(Callback::Unload, now)
        }
    }

    /// Whether the gate is shut, nothing that served runs any more, and `serve` was not called since.
    fn runs_nothing(&self) -> bool {
        let unloaded =
            matches!(self.at, At::Unloaded | At::Calling(Callback::Load, _) | At::Resting(Callback::Load, _));
        let lags = self.at == At::Idle && self.has_data;
        (unloaded || lags) && self.gate == Gate::Shut
    }

    /// When [`LocalReplica::next`] may have something by itself.
    pub fn wake_at(&self, timeouts: &CallbackTimeouts) -> Millis {
        match self.at {
            At::Calling(Callback::Load, since) => since + timeouts.load_ms,
            At::Calling(_, since) => since + timeouts.callback_ms,
            At::Draining(since) => since + timeouts.drain_ms,
            At::Resting(_, until) => until,
            At::Idle | At::Ready | At::Serving | At::Unloaded | At::Dropped | At::Lost => Millis::NEVER,
        }
    }
}
