//! Callbacks under way: each in a task of its own, so that one that hangs or panics harms nobody else.

use crate::driver::Event;
use crate::handler::{Assignment, Failure, Handler};
use crate::limits;
use futures::FutureExt;
use partage_core::exchange::ReplicaKey;
use partage_core::worker::Callback;
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::sync::mpsc::WeakSender;
use tokio::task::AbortHandle;

struct Call {
    number: u64,
    task: AbortHandle,
}

/// The callbacks under way, at most one for each replica.
pub struct Calls {
    handler: Arc<dyn Handler>,
    events: WeakSender<Event>,
    running: BTreeMap<ReplicaKey, Call>,
    last: u64,
}

impl Calls {
    pub fn new(handler: Arc<dyn Handler>, events: WeakSender<Event>) -> Calls {
        Calls { handler, events, running: BTreeMap::new(), last: 0 }
    }

    /// Calls the service; what it returns comes back as [`Event::Returned`].
    pub fn begin(&mut self, shard: Assignment, callback: Callback) {
        self.last += 1;
        let (number, replica) = (self.last, shard.replica.clone());
        let (handler, events) = (self.handler.clone(), self.events.clone());
        let task = tokio::spawn(async move {
            let replica = shard.replica.clone();
            let called = AssertUnwindSafe(call(handler, shard, callback)).catch_unwind().await;
            let result = match called {
                Ok(Ok(())) => Ok(()),
                Ok(Err(failure)) => Err(sentence(failure.to_string())),
                Err(panic) => Err(sentence(panicked(&*panic))),
            };
            // When the driver is gone nobody wants to know.
            if let Some(events) = events.upgrade() {
                let _ = events.send(Event::Returned { replica, number, callback, result }).await;
            }
        });
        self.abandon(&replica);
        self.running.insert(replica, Call { number, task: task.abort_handle() });
    }

    /// Whether that return is the one that is waited for; then it no longer is.
    pub fn ended(&mut self, replica: &ReplicaKey, number: u64) -> bool {
        let expected = self.running.get(replica).is_some_and(|call| call.number == number);
        if expected {
            self.running.remove(replica);
        }
        expected
    }

    /// Stops waiting.
    pub fn abandon(&mut self, replica: &ReplicaKey) {
        if let Some(call) = self.running.remove(replica) {
            call.task.abort();
        }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.running.values().for_each(|call| call.task.abort());
    }
}

async fn call(handler: Arc<dyn Handler>, shard: Assignment, callback: Callback) -> Result<(), Failure> {
    match callback {
        Callback::Load => handler.load(&shard, &shard.sources()).await,
        Callback::Serve(role, epoch) => handler.serve(&shard, role, epoch).await,
        Callback::Unload => handler.unload(&shard, &shard.successors()).await,
        Callback::Drop => Handler::drop(&*handler, &shard).await,
    }
}

/// What a panic said.
pub fn panicked(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", said.unwrap_or("without a message"))
}

fn sentence(mut text: String) -> String {
    if text.is_empty() {
        text = "failed without a reason".to_owned();
    }
    text.truncate(text.floor_char_boundary(limits::REASON_BYTES));
    text
}
