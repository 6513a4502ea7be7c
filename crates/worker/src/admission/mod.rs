//! Letting requests in: whose is this key, and may it be answered here and now?
//!
//! The driver publishes what it knows as one immutable [`Published`]; requests only read it. So a request
//! waits for no lock and no other request, and the lease is asked by the clock each time: a process that was
//! paused beyond it answers nothing after it wakes.

use crate::handler::Assignment;
use crate::in_flight::{EvictionEpoch, InFlight};
use crate::limits;
use arc_swap::ArcSwap;
use partage_clock::{Clock, thread_cpu};
use partage_core::base::id::{Epoch, Generation, Incarnation, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::map::Access;
use partage_core::keyspace::map::Role;
use partage_core::node::exchange::{DiskHealth, Phase, ReplicaKey};
use partage_core::worker::gates::{Gates, Permit, Verdict};
use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};

/// What the driver knows, as of its last step.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub gates: Gates,
    pub replicas: Arc<BTreeMap<ReplicaKey, Held>>,
    /// Counts how often the lease was renewed only after it had lapsed.
    pub lapses: u64,
    pub incarnation: Option<Incarnation>,
    /// Whether a connection to a coordinator is open.
    pub connected: bool,
    pub leaving: bool,
}

/// One replica, for requests and for people.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub in_flight: Arc<InFlight>,
    pub phase: Phase,
}

/// What driver and requests share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub node: NodeId,
    /// The coordinators that it may register at, as `host:port`.
    pub coordinators: Vec<String>,
    pub clock: Clock,
    pub published: ArcSwap<Published>,
    /// Counts what was published with other gates than before.
    pub changes: watch::Sender<u64>,
    /// Share of its capacity that foreground work takes, as the bits of a double.
    pub busy: AtomicU64,
    /// The disk of the service has no room.
    pub disk_full: AtomicBool,
    /// The disk of the service has little room.
    pub disk_nearly_full: AtomicBool,
    /// The disk stores nothing, as the service says.
    pub disk_stalled: AtomicBool,
    /// Nothing is held here any more and the process is about to end.
    pub has_left: AtomicBool,
    waiters: Semaphore,
    /// What was answered to requests that were not let in.
    pub admissions: AdmissionCounters,
}

/// How often requests were not let in, by the answer. (Those that were are counted by their replica, so that
/// requests for different shards share no counter.)
#[derive(Debug, Default)]
pub(crate) struct AdmissionCounters {
    elsewhere: AtomicU64,
    soon: AtomicU64,
    lapsed: AtomicU64,
    unknown: AtomicU64,
}

impl AdmissionCounters {
    fn count(&self, admission: &Admission) {
        let counter = match admission {
            Admission::Serve(_) => return,
            Admission::Elsewhere { .. } => &self.elsewhere,
            Admission::Soon => &self.soon,
            Admission::Lapsed => &self.lapsed,
            Admission::Unknown { .. } => &self.unknown,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> [(&'static str, u64); 4] {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("elsewhere", read(&self.elsewhere)),
            ("soon", read(&self.soon)),
            ("lapsed", read(&self.lapsed)),
            ("unknown", read(&self.unknown)),
        ]
    }
}

/// What became of a request that wanted to come in.
#[derive(Debug)]
pub enum Admission {
    /// Answer it, and keep the guard until the answer is out.
    Serve(Guard),
    /// Another node has the key: forward the request once, or send the caller there.
    Elsewhere {
        /// Which shard holds the key there, if that is known.
        shard: Option<ShardId>,
        /// The name of the node that serves the shard.
        node: NodeId,
        /// Where clients reach that node, as `host:port`.
        address: String,
    },
    /// Here, but not yet: hold the request for a moment. [`crate::Worker::enter_or_wait`] does.
    Soon,
    /// Here, but the coordinator has not been heard for too long: another node may have it by now. Nothing was done,
    /// so the caller may try again. (A lease that runs out later shows in [`Guard::mine_all_along`]: then the
    /// request may have been carried out.)
    Lapsed,
    /// Not here, and this node does not know where. Ask the coordinator or a router.
    Unknown {
        /// The map that this node knows, if any; the caller's may be newer or older.
        generation: Option<Generation>,
    },
}

/// A request in flight. The replica is not handed over before it is dropped.
pub struct Guard {
    shared: Arc<Shared>,
    in_flight: Arc<InFlight>,
    permit: Permit,
    /// [`Published::lapses`] when the request came in; none where the lease says nothing of who may serve.
    lapses: Option<u64>,
    entered_at: EvictionEpoch,
}

impl Shared {
    pub(crate) fn new(node: NodeId, coordinators: Vec<String>, clock: Clock) -> Shared {
        Shared {
            node,
            coordinators,
            clock,
            published: ArcSwap::default(),
            changes: watch::Sender::new(0),
            busy: AtomicU64::new(0),
            disk_full: AtomicBool::new(false),
            disk_nearly_full: AtomicBool::new(false),
            disk_stalled: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            waiters: Semaphore::new(limits::WAITERS),
            admissions: AdmissionCounters::default(),
        }
    }

    /// What the service says of its disk.
    pub(crate) fn disk(&self) -> DiskHealth {
        DiskHealth {
            full: self.disk_full.load(Ordering::Relaxed),
            nearly_full: self.disk_nearly_full.load(Ordering::Relaxed),
            stalled: self.disk_stalled.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn enter(
        self: &Arc<Shared>,
        keyspace: &KeyspaceName,
        key: &[u8],
        access: Access,
    ) -> Admission {
        let admission = self.enter_by(self.published.load(), keyspace, key, access);
        self.admissions.count(&admission);
        admission
    }

    /// `seen` is what was published a moment ago, and may be out of date by now.
    fn enter_by(
        self: &Arc<Shared>,
        mut seen: arc_swap::Guard<Arc<Published>>,
        keyspace: &KeyspaceName,
        key: &[u8],
        access: Access,
    ) -> Admission {
        loop {
            let permit = match seen.gates.judge(self.clock.now(), keyspace, key, access) {
                Verdict::Serve(permit) => permit,
                Verdict::Elsewhere { shard, node, address } => {
                    return Admission::Elsewhere { shard: Some(shard), node, address };
                }
                Verdict::Soon => return Admission::Soon,
                Verdict::Lapsed => return Admission::Lapsed,
                Verdict::Unknown { generation } => {
                    let generation = generation.or_else(|| seen.gates.generation(keyspace));
                    return Admission::Unknown { generation };
                }
            };
            // A gate and its requests in flight are published together, so this is there.
            let Some(held) = seen.replicas.get(&permit.replica) else { return Admission::Soon };
            let in_flight = held.in_flight.clone();
            let entered_at = in_flight.enter();
            let again = self.published.load();
            let same = Arc::ptr_eq(&seen, &again);
            if same || again.gates.still_holds(self.clock.now(), &permit) {
                in_flight.asked(key);
                let lapses = seen.gates.is_leased(keyspace).then_some(seen.lapses);
                return Admission::Serve(Guard {
                    shared: self.clone(),
                    in_flight,
                    permit,
                    lapses,
                    entered_at,
                });
            }
            in_flight.leave();
            seen = again;
        }
    }

    pub(crate) async fn enter_or_wait(
        self: &Arc<Shared>,
        keyspace: &KeyspaceName,
        key: &[u8],
        access: Access,
        until: Instant,
    ) -> Admission {
        let soon = |admission: &Admission| matches!(admission, Admission::Soon);
        self.await_change(until, || self.enter(keyspace, key, access), soon).await
    }

    /// Does `attempt` until it gives something else than the outcome to wait for, again whenever the gates
    /// have changed; at `until`, or when too many wait already, gives what it has.
    pub(crate) async fn await_change<T>(
        &self,
        until: Instant,
        attempt: impl Fn() -> T,
        is_early: impl Fn(&T) -> bool,
    ) -> T {
        self.await_change_among(&self.waiters, until, attempt, is_early).await
    }

    /// The same; only those that `waiters` counts are too many.
    pub(crate) async fn await_change_among<T>(
        &self,
        waiters: &Semaphore,
        until: Instant,
        attempt: impl Fn() -> T,
        is_early: impl Fn(&T) -> bool,
    ) -> T {
        let first = attempt();
        if !is_early(&first) {
            return first;
        }
        let Ok(_waiting) = waiters.try_acquire() else { return first };
        let mut changes = self.changes.subscribe();
        loop {
            // Subscribed first, tried after: a change between the two is not missed.
            let outcome = attempt();
            if !is_early(&outcome) {
                return outcome;
            }
            match timeout_at(until, changes.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return outcome,
            }
        }
    }

    /// Replaces what requests see. `changed`: the gates are others, so that waiting requests look again.
    pub(crate) fn publish(&self, published: Published, changed: bool) {
        self.published.store(Arc::new(published));
        if changed {
            self.changes.send_modify(|count| *count += 1);
        }
    }
}

impl Guard {
    /// The replica, the role and the epoch that the request was let in by. Send the epoch with every write to storage.
    pub fn permit(&self) -> &Permit {
        &self.permit
    }

    /// Does `work`, and counts the processor time that it takes on this thread as load of the shard
    /// ([`crate::Load::cpu_ms_per_s`]).
    pub fn meter<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = thread_cpu();
        let done = work();
        self.in_flight.spend(thread_cpu().saturating_sub(before));
        done
    }

    /// The same for a future: each of its polls is counted. What it has others do, on other threads, is not.
    /// [`crate::http`] does this for every request.
    pub async fn metered<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|context| self.meter(|| future.as_mut().poll(context))).await
    }

    /// The epoch in which the request was let in.
    pub fn epoch(&self) -> Epoch {
        self.permit.epoch
    }

    /// The role that the replica had when the request was let in.
    pub fn role(&self) -> Role {
        self.permit.role
    }

    /// The shard that the key of the request is in.
    pub fn shard(&self) -> ShardId {
        self.permit.replica.shard
    }

    /// The replica as the newest order describes it: its bounds, its peers. Where that order has a later epoch than
    /// [`Guard::epoch`], copies leave: a durable write of this request counts on the peers in `Unload`, too.
    pub fn assignment(&self) -> Arc<Assignment> {
        self.in_flight.assignment()
    }

    /// Whether this node has had the shard from the moment the request came in until now (A18). While the
    /// guard lives the shard is not handed over, so only an eviction can end it, and in exclusive keyspaces a lapsed lease. Ask
    /// after the work and before the answer: what took longer than the lease must not be acknowledged. When it is false the
    /// request may have been carried out: tell the caller that its outcome is unknown.
    pub fn mine_all_along(&self) -> bool {
        let had_lease = self.lapses.is_none_or(|lapses| {
            let published = self.shared.published.load();
            let now = self.shared.clock.now();
            published.lapses == lapses && !published.gates.has_lapsed(now, &self.permit.replica.keyspace)
        });
        had_lease && !self.in_flight.is_evicted(self.entered_at)
    }

    /// Returns when the request has run out of time and has to end: the shard waits to be handed over.
    pub async fn cancelled(&self) {
        self.in_flight.evicted(self.entered_at).await;
    }

    /// A handle that outlives the guard: it holds nothing up, and can be asked.
    pub fn ownership(&self) -> OwnershipHandle {
        OwnershipHandle { shared: self.shared.clone(), permit: self.permit.clone() }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.permit).finish()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.in_flight.leave();
    }
}

/// Ownership of one shard in one epoch, to be asked later by background work: "is it still mine?".
///
/// It holds nothing up: the answer may be out of date a moment after it was given. Work that must not overlap
/// with the next owner's belongs inside a [`Guard`], or writes to storage that refuses older epochs.
#[derive(Clone)]
pub struct OwnershipHandle {
    shared: Arc<Shared>,
    permit: Permit,
}

impl OwnershipHandle {
    pub(crate) fn of(
        shared: &Arc<Shared>,
        keyspace: &KeyspaceName,
        shard: ShardId,
    ) -> Option<OwnershipHandle> {
        let permit = shared.published.load().gates.permit(shared.clock.now(), keyspace, shard)?;
        Some(OwnershipHandle { shared: shared.clone(), permit })
    }

    /// The epoch in which it was taken.
    pub fn epoch(&self) -> Epoch {
        self.permit.epoch
    }

    /// The replica, the role and the epoch that it was given by.
    pub fn permit(&self) -> &Permit {
        &self.permit
    }

    /// Whether this node serves the shard now in the same role, perhaps again after another did.
    pub fn still_mine(&self) -> bool {
        let (gates, now) = (&self.shared.published.load().gates, self.shared.clock.now());
        let replica = &self.permit.replica;
        gates.permit(now, &replica.keyspace, replica.shard).is_some_and(|p| p.role == self.permit.role)
    }

    /// Whether it has done so ever since, and no other node between (O7).
    pub fn mine_all_along(&self) -> bool {
        self.shared.published.load().gates.still_holds(self.shared.clock.now(), &self.permit)
    }
}

impl fmt::Debug for OwnershipHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnershipHandle").field(&self.permit).finish()
    }
}

#[cfg(test)]
mod tests;
