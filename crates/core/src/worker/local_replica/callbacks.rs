//! What becomes of a replica when a callback of its service returns, fails, or takes too long.

use super::{At, Callback, CallbackTimeouts, Gate, LocalReplica, Task};
use crate::base::time::Millis;
use crate::keyspace::lifecycle::ReplicaState;

impl LocalReplica {
    pub(super) fn overdue(
        &mut self,
        callback: Callback,
        since: Millis,
        now: Millis,
        timeouts: &CallbackTimeouts,
    ) -> Option<Task> {
        let limit_ms = if callback == Callback::Load { timeouts.load_ms } else { timeouts.callback_ms };
        let leaves = !self.wanted().is_staying() && matches!(callback, Callback::Load | Callback::Serve(..));
        if now.since(since) < limit_ms && !leaves {
            return None;
        }
        if leaves {
            // What is being prepared is not wanted any more.
            self.failure = None;
            self.attempts = 0;
            self.gate = Gate::Shut;
            self.at = if callback == Callback::Load { At::Idle } else { At::Serving };
        } else {
            self.failed(
                callback,
                format!("{} has not returned for {limit_ms} ms", name(callback)),
                now,
                timeouts,
            );
        }
        Some(Task::Abandon(callback))
    }

    pub(super) fn rested(
        &mut self,
        callback: Callback,
        until: Millis,
        wanted: ReplicaState,
        now: Millis,
    ) -> Option<Task> {
        let leaves = match callback {
            Callback::Serve(..) => wanted != ReplicaState::Live || self.unhealthy.is_some(),
            _ => !wanted.is_staying(),
        };
        match callback {
            Callback::Load | Callback::Serve(..) if leaves => {
                self.failure = None;
                self.attempts = 0;
                self.shut(now)
            }
            _ if now < until => None,
            Callback::Serve(..) => self.open(now),
            Callback::Load => self.load(now),
            Callback::Unload | Callback::Drop(_) => self.call(callback, now),
        }
    }

    /// A callback has returned. Returns of callbacks that were abandoned are ignored.
    pub fn returned(
        &mut self,
        callback: Callback,
        result: Result<(), String>,
        now: Millis,
        timeouts: &CallbackTimeouts,
    ) {
        if !matches!(self.at, At::Calling(running, _) if running == callback) {
            return;
        }
        match result {
            Ok(()) => {
                self.failure = None;
                self.attempts = 0;
                self.done(callback);
            }
            Err(reason) => self.failed(callback, reason, now, timeouts),
        }
    }

    fn done(&mut self, callback: Callback) {
        self.at = match callback {
            Callback::Load => {
                self.unhealthy = None;
                self.has_data = true;
                (self.is_left_behind, self.is_outdated) = (false, false);
                self.damaged = false;
                At::Ready
            }
            Callback::Serve(role, epoch) => {
                self.gate = Gate::Open(role, epoch);
                if epoch == self.order.epoch {
                    self.carried_out = epoch;
                }
                At::Serving
            }
            Callback::Unload => {
                self.carried_out = self.order.epoch;
                At::Unloaded
            }
            Callback::Drop(_) => {
                self.has_data = false;
                At::Dropped
            }
        };
    }

    fn failed(&mut self, callback: Callback, reason: String, now: Millis, timeouts: &CallbackTimeouts) {
        self.attempts += 1;
        self.failure = Some(reason);
        if callback == Callback::Unload {
            // The gate is shut and the requests are out: what it ends has ended, handed over or not.
            self.done(callback);
            return;
        }
        let doubled = timeouts.retry_ms.saturating_mul(1 << self.attempts.min(16).saturating_sub(1));
        self.at = At::Resting(callback, now + doubled.min(timeouts.retry_max_ms));
    }
}

fn name(callback: Callback) -> &'static str {
    match callback {
        Callback::Load => "load",
        Callback::Serve(..) => "serve",
        Callback::Unload => "unload",
        Callback::Drop(_) => "drop",
    }
}
