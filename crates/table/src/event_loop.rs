//! The threads that have the replicas: each serves those that something waits for, and those whose time has come.
//!
//! Calls of the engine block, and a machine must see its events one by one; so replicas are not tasks of tokio, which would
//! hold up its threads, but are spread over a few threads of the node. A node has thousands of replicas, so a thread for each is too many. What
//! this costs: a read that waits for the disk holds up the other replicas of its thread.

use crate::base::LocalBase;
use crate::limits::LOOK_MS;
use crate::node::Shared;
use crate::queue::{ReadyList, Waiting};
use crate::replica::LocalReplica;
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What a queue is served by.
pub(crate) enum Local {
    /// A replica that takes part in the replication of its shard.
    Replica(Box<LocalReplica>),
    /// A child's that takes its base.
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
                replica.let_go();
                None
            }
            Local::Base(base) => base.serve(waiting),
        }
    }

    /// When to serve it at the latest.
    fn wake_at(&self) -> Millis {
        match self {
            Local::Replica(replica) => replica.wake_at(),
            Local::Base(base) => base.wake_at(),
        }
    }
}

/// The replicas of one thread.
#[derive(Default)]
struct Replicas {
    /// By the number of their queue, each with the time that it is in `timers` for.
    open: BTreeMap<u64, (Local, Millis)>,
    timers: BTreeSet<(Millis, u64)>,
}

/// Serves replicas until the list is stopped.
pub(crate) fn run(ready: &ReadyList, shared: &Arc<Shared>) {
    let _guard = EndOnPanic(Arc::clone(shared));
    let mut replicas = Replicas::default();
    loop {
        let next = replicas.timers.first().map_or(Millis::NEVER, |(at, _)| *at);
        let wait = next.since(shared.clock.now()).min(LOOK_MS);
        let Some(listed) = ready.wait(Duration::from_millis(wait)) else { return };
        for queue in listed {
            let mut waiting = queue.take();
            if let Some(replica) = waiting.replica.take() {
                replicas.open.insert(queue.number, (replica, Millis::NEVER));
            }
            replicas.serve(queue.number, waiting);
        }
        let now = shared.clock.now();
        while let Some((at, number)) = replicas.timers.first().copied().filter(|(at, _)| *at <= now) {
            replicas.timers.remove(&(at, number));
            replicas.serve(number, Waiting::default());
        }
    }
}

impl Replicas {
    fn serve(&mut self, number: u64, waiting: Waiting) {
        let Some((local, timer)) = self.open.remove(&number) else { return };
        self.timers.remove(&(timer, number));
        let Some(local) = local.serve(waiting) else { return };
        let next = local.wake_at();
        if next < Millis::NEVER {
            self.timers.insert((next, number));
        }
        self.open.insert(number, (local, next));
    }
}

/// A thread that panics has replicas that nobody serves.
struct EndOnPanic(Arc<Shared>);

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.registry.end("a thread that serves replicas panicked".to_owned());
        }
    }
}
