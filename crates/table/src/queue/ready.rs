//! Which replicas a thread has to serve.

use super::ReplicaQueue;
use partage_core::base::time::Millis;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Default)]
struct Listed {
    queues: VecDeque<Arc<ReplicaQueue>>,
    /// Times that other threads have set: of each replica one that is earlier than the one before.
    timers: Vec<(Millis, Arc<ReplicaQueue>)>,
    /// The thread waits until then, and no other thread has woken it yet. To wake one that does not wait is a system call all the
    /// same.
    waits_until: Option<Millis>,
    is_stopped: bool,
}

/// The replicas that a thread has to serve, now or later: each at most once.
#[derive(Default)]
pub(crate) struct ReadyList {
    listed: Mutex<Listed>,
    filled: Condvar,
}

/// What a thread has to serve.
pub(crate) struct Ready {
    /// Replicas to be served at once, in the order in which they were listed.
    pub(crate) queues: VecDeque<Arc<ReplicaQueue>>,
    /// Replicas to be served at these times at the latest.
    pub(crate) timers: Vec<(Millis, Arc<ReplicaQueue>)>,
}

impl ReadyList {
    fn lock(&self) -> MutexGuard<'_, Listed> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, queue: Arc<ReplicaQueue>) {
        let mut listed = self.lock();
        if listed.is_stopped {
            return;
        }
        listed.queues.push_back(queue);
        let wakes = listed.waits_until.take().is_some();
        drop(listed);
        if wakes {
            self.filled.notify_one();
        }
    }

    /// The thread serves a replica at that time at the latest.
    pub(super) fn set_timer(&self, at: Millis, queue: Arc<ReplicaQueue>) {
        let mut listed = self.lock();
        if listed.is_stopped {
            return;
        }
        listed.timers.push((at, queue));
        let wakes = listed.waits_until.take_if(|until| at < *until).is_some();
        drop(listed);
        if wakes {
            self.filled.notify_one();
        }
    }

    /// The thread is to end.
    pub(crate) fn stop(&self) {
        // The list is in the queues that it has. They are dropped without the lock.
        let stopped = Listed { is_stopped: true, ..Listed::default() };
        let listed = std::mem::replace(&mut *self.lock(), stopped);
        drop(listed);
        self.filled.notify_all();
    }

    /// Waits until there is something to serve, from `now` to `until` at most. None: the thread is to end.
    pub(crate) fn wait(&self, now: Millis, until: Millis) -> Option<Ready> {
        let idle = |listed: &mut Listed| {
            let is_idle = listed.queues.is_empty() && listed.timers.is_empty() && !listed.is_stopped;
            listed.waits_until = is_idle.then_some(until);
            is_idle
        };
        let at_most = Duration::from_millis(until.since(now));
        let waited = self.filled.wait_timeout_while(self.lock(), at_most, idle);
        let mut listed = waited.unwrap_or_else(PoisonError::into_inner).0;
        listed.waits_until = None;
        let Listed { queues, timers, .. } = &mut *listed;
        let ready = Ready { queues: std::mem::take(queues), timers: std::mem::take(timers) };
        (!listed.is_stopped).then_some(ready)
    }
}
