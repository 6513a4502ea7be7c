//! Callbacks under way: each in a task of its own, so that one that hangs or panics harms no other.
//!
//! Two callbacks of one replica never run at the same time. When the worker gives a callback up, it cancels the
//! callback's [`Scope`] and aborts its task; the next callback of that replica begins when the task and the
//! blocking work of the scope have ended. A callback that ignores its cancellation therefore delays its
//! replica, which the coordinator sees as a callback that takes too long, and no other replica.
//!
//! At most [`limits::LOADS`] loads run at once, or as many as the service says: a node that starts with ten
//! thousand shards must not open ten thousand copies. Nor do ten thousand `serve` run at once: [`limits::SERVES`], a
//! limit of their own, as they are short and requests wait for them. The next owner may wait for `unload`, and a disk
//! for `drop`, so these wait for no other.

use crate::driver::Event;
use crate::handler::{Assignment, Damaged, Failure, Handler};
use crate::limits;
use crate::scope::Scope;
use futures::FutureExt;
use partage_core::node::exchange::ReplicaKey;
use partage_core::worker::Callback;
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::WeakSender;
use tokio::task::AbortHandle;

struct Call {
    number: u64,
    task: AbortHandle,
    scope: Scope,
}

/// The callbacks under way, at most one for each replica.
pub struct Calls {
    handler: Arc<dyn Handler>,
    events: WeakSender<Event>,
    loads: Arc<Semaphore>,
    serves: Arc<Semaphore>,
    running: BTreeMap<ReplicaKey, Call>,
    /// Scopes of former callbacks of which something may still run.
    ending: BTreeMap<ReplicaKey, Vec<Scope>>,
    last: u64,
}

impl Calls {
    /// How many `loads` and how many `serves` may run at once.
    pub fn new(handler: Arc<dyn Handler>, events: WeakSender<Event>, loads: usize, serves: usize) -> Calls {
        let at_once = |most: usize| Arc::new(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS)));
        let (loads, serves) = (at_once(loads), at_once(serves));
        Calls { handler, events, loads, serves, running: BTreeMap::new(), ending: BTreeMap::new(), last: 0 }
    }

    /// Calls the service as soon as nothing of the replica's former callback runs; what it returns comes back
    /// as [`Event::Returned`].
    pub fn begin(&mut self, shard: Assignment, callback: Callback) {
        self.abandon(&shard.replica);
        self.last += 1;
        let (number, replica) = (self.last, shard.replica.clone());
        let scope = Scope::new();
        let shard = Assignment { scope: scope.clone(), ..shard };
        let former = self.former(&replica);
        let (handler, events) = (self.handler.clone(), self.events.clone());
        let limited = match callback {
            Callback::Load => Some(self.loads.clone()),
            Callback::Serve(..) => Some(self.serves.clone()),
            Callback::Unload | Callback::Drop(_) => None,
        };
        let work = scope.tracked(async move {
            for scope in former {
                scope.ended().await;
            }
            let _turn = match limited {
                // The semaphore is never closed; if it were, callbacks would only be unlimited.
                Some(at_once) => at_once.acquire_owned().await.ok(),
                None => None,
            };
            match AssertUnwindSafe(call(handler, shard, callback)).catch_unwind().await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(failure)) => Err((sentence(failure.to_string()), failure.is::<Damaged>())),
                Err(panic) => Err((sentence(panicked(&*panic)), false)),
            }
        });
        let returning = replica.clone();
        let task = tokio::spawn(async move {
            let result = work.await;
            let is_damaged = matches!(result, Err((_, true)));
            let result = result.map_err(|(reason, _)| reason);
            // When the driver is gone nothing waits for the result.
            if let Some(events) = events.upgrade() {
                if is_damaged {
                    let _ = events.send(Event::Damaged { replica: returning.clone(), number }).await;
                }
                let _ = events.send(Event::Returned { replica: returning, number, callback, result }).await;
            }
        });
        self.running.insert(replica, Call { number, task: task.abort_handle(), scope });
    }

    /// The scopes that the next callback of `replica` waits for.
    fn former(&mut self, replica: &ReplicaKey) -> Vec<Scope> {
        // Replicas that are gone leave nothing behind for long.
        if self.ending.len() > self.running.len() + limits::ENDING_CALLBACKS {
            self.ending.retain(|_, scopes| scopes.iter().any(|scope| !scope.has_ended()));
        }
        let scopes = self.ending.remove(replica).unwrap_or_default();
        let former: Vec<_> = scopes.into_iter().filter(|scope| !scope.has_ended()).collect();
        if !former.is_empty() {
            // Should the next callback be given up while it waits, the one after it has to wait as well.
            self.ending.insert(replica.clone(), former.clone());
        }
        former
    }

    /// Whether the return of that call is waited for.
    pub fn is_running(&self, replica: &ReplicaKey, number: u64) -> bool {
        self.running.get(replica).is_some_and(|call| call.number == number)
    }

    /// Whether that return is the one that is waited for; then it no longer is.
    pub fn ended(&mut self, replica: &ReplicaKey, number: u64) -> bool {
        let expected = self.is_running(replica, number);
        if expected && let Some(call) = self.running.remove(replica) {
            self.keep(replica, call.scope);
        }
        expected
    }

    /// Stops waiting: the callback is cancelled.
    pub fn abandon(&mut self, replica: &ReplicaKey) {
        if let Some(call) = self.running.remove(replica) {
            call.cancel();
            self.keep(replica, call.scope);
        }
    }

    /// The replica's next callback waits for what is left of the scope.
    fn keep(&mut self, replica: &ReplicaKey, scope: Scope) {
        if !scope.has_ended() {
            self.ending.entry(replica.clone()).or_default().push(scope);
        }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.running.values().for_each(Call::cancel);
    }
}

impl Call {
    fn cancel(&self) {
        self.scope.cancel();
        self.task.abort();
    }
}

async fn call(handler: Arc<dyn Handler>, shard: Assignment, callback: Callback) -> Result<(), Failure> {
    match callback {
        Callback::Load => handler.load(&shard, &shard.sources()).await,
        Callback::Serve(role, epoch) => handler.serve(&shard, role, epoch).await,
        Callback::Unload => handler.unload(&shard, &shard.successors()).await,
        Callback::Drop(reason) => Handler::drop(&*handler, &shard, reason).await,
    }
}

/// What a panic said.
pub fn panicked(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", said.unwrap_or("without a message"))
}

/// A reason as it is reported: short, and never empty.
pub fn sentence(mut text: String) -> String {
    if text.is_empty() {
        text = "failed without a reason".to_owned();
    }
    text.truncate(text.floor_char_boundary(limits::REASON_BYTES));
    text
}

#[cfg(test)]
mod tests;
