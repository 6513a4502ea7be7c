//! The threads of the replicas: each serves replicas whose queues have something, and those whose timers have fired.
//!
//! Calls of the engine block, and a machine must see its events one by one; so replicas are not tasks of tokio, which would
//! hold up its threads, but are spread over a few threads of the node. A node has thousands of replicas, so a thread for each is
//! too many. What this costs: a read that waits for the disk holds up the other replicas of its thread. A replica that needs
//! nothing that takes long is served by the thread that adds to its queue ([`crate::queue`]): then its own thread only looks at
//! the time.

use crate::base::LocalBase;
use crate::limits::LOOK_MS;
use crate::node::Shared;
use crate::queue::{AfterServing, ReadyList, ReplicaQueue, Waiting};
use crate::registry::Registry;
use crate::replica::LocalReplica;
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What a queue belongs to.
pub(crate) enum Local {
    /// A replica that takes part in the replication of its shard.
    Replica(Box<LocalReplica>),
    /// A child's replica that takes its base.
    Base(Box<LocalBase>),
}

impl Local {
    /// Serves what waits. None: it is closed.
    pub(crate) fn serve(self, waiting: Waiting) -> Option<Local> {
        match self {
            Local::Replica(mut replica) => {
                if replica.serve(waiting) {
                    return Some(Local::Replica(replica));
                }
                replica.release();
                None
            }
            Local::Base(base) => base.serve(waiting),
        }
    }

    /// When to serve it at the latest.
    pub(crate) fn wake_at(&self) -> Millis {
        match self {
            Local::Replica(replica) => replica.wake_at(),
            Local::Base(base) => base.wake_at(),
        }
    }

    /// Whether any thread may serve it, as it needs nothing that takes long.
    pub(crate) fn is_light(&self) -> bool {
        match self {
            Local::Replica(replica) => replica.is_light(),
            Local::Base(_) => false,
        }
    }

    fn registry(&self) -> &Arc<Registry> {
        match self {
            Local::Replica(replica) => replica.registry(),
            Local::Base(base) => base.registry(),
        }
    }
}

/// Serves a replica taken from its queue. It keeps no reference to `Shared` beyond the turn: the thread of the log serves
/// replicas too, and could not join itself. After a panic the replica and all that waits are gone, and the node acknowledges
/// nothing any more.
pub(crate) fn serve(queue: &Arc<ReplicaQueue>, replica: Local, waiting: Waiting) -> AfterServing {
    let registry = Arc::clone(replica.registry());
    match catch_unwind(AssertUnwindSafe(|| replica.serve(waiting))) {
        Ok(replica) => queue.end(replica),
        Err(_) => {
            registry.end("a replica panicked while it was served".to_owned());
            drop(queue.close());
            queue.end(None)
        }
    }
}

/// When the replicas of one thread are served at the latest.
#[derive(Default)]
struct Timers {
    /// The queues that have a time, by their numbers.
    queues: BTreeMap<u64, (Millis, Arc<ReplicaQueue>)>,
    times: BTreeSet<(Millis, u64)>,
}

impl Timers {
    fn first(&self) -> Millis {
        self.times.first().map_or(Millis::NEVER, |(at, _)| *at)
    }

    /// Sets a time, unless there is an earlier one.
    fn set(&mut self, at: Millis, queue: Arc<ReplicaQueue>) {
        let number = queue.number;
        match self.queues.get(&number).map(|(before, _)| *before) {
            Some(before) if before <= at => return,
            Some(before) => drop(self.times.remove(&(before, number))),
            None => {}
        }
        self.queues.insert(number, (at, queue));
        self.times.insert((at, number));
    }

    /// The next one whose time has come.
    fn take(&mut self, now: Millis) -> Option<Arc<ReplicaQueue>> {
        let (at, number) = self.times.first().copied().filter(|(at, _)| *at <= now)?;
        self.times.remove(&(at, number));
        self.queues.remove(&number).map(|(_, queue)| queue)
    }

    /// Serves a replica that its queue has given, if it has.
    fn serve(&mut self, queue: &Arc<ReplicaQueue>, begun: Option<(Local, Waiting)>) {
        let Some((replica, waiting)) = begun else { return };
        let AfterServing { again, timer } = serve(queue, replica, waiting);
        // What has come since is served after the others on the list.
        drop(again);
        if let Some(at) = timer {
            self.set(at, Arc::clone(queue));
        }
    }
}

/// Serves replicas until the list is stopped.
pub(crate) fn run(ready: &ReadyList, shared: &Arc<Shared>) {
    let mut timers = Timers::default();
    loop {
        let now = shared.clock.now();
        let until = timers.first().min(now + LOOK_MS);
        let Some(listed) = ready.wait(now, until) else { return };
        for (at, queue) in listed.timers {
            timers.set(at, queue);
        }
        for queue in listed.queues {
            let begun = queue.begin_listed();
            timers.serve(&queue, begun);
        }
        let now = shared.clock.now();
        while let Some(queue) = timers.take(now) {
            let begun = queue.begin_timed();
            timers.serve(&queue, begun);
        }
    }
}
