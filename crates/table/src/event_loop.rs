//! The threads that have the replicas: each serves those that something waits for, and those whose time has come.
//!
//! Calls of the engine block, and a machine must see its events one by one; so replicas are not tasks of tokio, which would
//! hold up its threads, but are spread over a few threads of the node. A node has thousands of replicas, so a thread for each is too many. What
//! this costs: a read that waits for the disk holds up the other replicas of its thread.

use crate::limits::LOOK_MS;
use crate::node::Shared;
use crate::queue::{ReadyList, Waiting};
use crate::replica::LocalReplica;
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The replicas of one thread.
#[derive(Default)]
struct Replicas {
    /// By the number of their queue, each with the time that it is in `timers` for.
    open: BTreeMap<u64, (LocalReplica, Millis)>,
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
                replicas.open.insert(queue.number, (*replica, Millis::NEVER));
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
        let Some((replica, timer)) = self.open.get_mut(&number) else { return };
        let is_open = replica.serve(waiting);
        let next = if is_open { replica.wake_at() } else { Millis::NEVER };
        self.timers.remove(&(*timer, number));
        *timer = next;
        if next < Millis::NEVER {
            self.timers.insert((next, number));
        }
        if !is_open && let Some((replica, _)) = self.open.remove(&number) {
            replica.let_go();
        }
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
