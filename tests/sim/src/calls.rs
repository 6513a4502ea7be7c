//! Callbacks of a worker's service that run, with the contract of the SDK: at most one for each replica. One that is
//! abandoned is told to stop; it stops at once, or, when it blocks its thread, runs on to its end and does what it
//! does. The next callback of the same replica begins when it has ended.

use partage_core::node::exchange::ReplicaKey;
use partage_core::worker::Callback;
use std::collections::BTreeMap;

/// What a callback that has ended was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The worker waits for what it returns.
    Awaited,
    /// No caller waits any more, but the call has done what it does.
    Unawaited,
    /// It was stopped before it did anything.
    Stopped,
}

#[derive(Debug)]
struct Call {
    number: u64,
    ended: Ended,
    /// It never returns by itself.
    hangs: bool,
}

/// All callbacks of a process.
#[derive(Debug, Default)]
pub struct Calls {
    running: BTreeMap<ReplicaKey, Call>,
    /// What begins when the one that was abandoned has ended.
    next: BTreeMap<ReplicaKey, Callback>,
}

impl Calls {
    /// A callback is to begin. False when it has to wait for the one before it.
    pub fn begin(&mut self, replica: &ReplicaKey, callback: Callback, number: u64, hangs: bool) -> bool {
        if self.running.contains_key(replica) {
            self.next.insert(replica.clone(), callback);
            return false;
        }
        self.running.insert(replica.clone(), Call { number, ended: Ended::Awaited, hangs });
        true
    }

    /// The worker waits no more for the callback of that replica. Gives its number when it stops now: when it hangs, or
    /// `stops` because it does not block its thread.
    pub fn abandon(&mut self, replica: &ReplicaKey, stops: bool) -> Option<u64> {
        if self.next.remove(replica).is_some() {
            return None;
        }
        let call = self.running.get_mut(replica)?;
        call.ended = if stops || call.hangs { Ended::Stopped } else { Ended::Unawaited };
        (call.ended == Ended::Stopped).then_some(call.number)
    }

    /// Whether that call runs and its worker waits for it.
    pub fn is_awaited(&self, replica: &ReplicaKey, number: u64) -> bool {
        self.running.get(replica).is_some_and(|call| call.number == number && call.ended == Ended::Awaited)
    }

    /// A callback has come to its end. None when it had ended before.
    pub fn end(&mut self, replica: &ReplicaKey, number: u64) -> Option<Ended> {
        let is_it = self.running.get(replica).is_some_and(|call| call.number == number);
        if is_it { self.running.remove(replica).map(|call| call.ended) } else { None }
    }

    /// What begins now that the one before it has ended.
    pub fn next(&mut self, replica: &ReplicaKey) -> Option<Callback> {
        self.next.remove(replica)
    }
}
