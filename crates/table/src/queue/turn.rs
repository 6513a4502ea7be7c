//! Whose turn it is to serve a replica.

use super::ReplicaQueue;
use super::waiting::Waiting;
use crate::event_loop::{self, Local};
use crate::limits;
use partage_core::base::time::Millis;
use std::sync::Arc;

/// Which thread serves a replica next, or serves it now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing waits, and no thread serves the replica.
    #[default]
    Idle,
    /// The replica is on the list of its thread.
    Listed,
    /// The owner of this claim serves it soon.
    Claimed(u64),
    /// A thread serves the replica now.
    Serving,
    /// The same, and something has come since.
    ServingAgain,
}

/// What the lock of a queue guards.
pub(super) struct State {
    pub(super) waiting: Waiting,
    pub(super) turn: Turn,
    /// The number of the last claim.
    pub(super) claims: u64,
    /// The list of the thread has the replica, whatever the turn is by now.
    pub(super) is_on_list: bool,
    /// None: it is being served, or not open.
    pub(super) replica: Option<Local>,
    /// When it was served last, the replica needed nothing that takes long.
    pub(super) is_light: bool,
    /// Its thread serves it at this time at the latest.
    pub(super) timer: Millis,
    pub(super) is_closed: bool,
}

impl Default for State {
    fn default() -> State {
        State {
            waiting: Waiting::default(),
            turn: Turn::Idle,
            claims: 0,
            is_on_list: false,
            replica: None,
            is_light: false,
            timer: Millis::NEVER,
            is_closed: false,
        }
    }
}

impl State {
    /// The replica, to be served with what waits. None: it is not open.
    pub(super) fn begin(&mut self) -> Option<(Local, Waiting)> {
        let replica = self.replica.take();
        self.turn = if replica.is_some() { Turn::Serving } else { Turn::Idle };
        replica.map(|replica| (replica, std::mem::take(&mut self.waiting)))
    }

    pub(super) fn claim(&mut self) -> u64 {
        self.claims += 1;
        self.turn = Turn::Claimed(self.claims);
        self.claims
    }
}

/// What is to be done for a replica that was served.
#[derive(Default)]
pub(crate) struct AfterServing {
    /// Something has come since.
    pub(crate) again: Option<Claim>,
    /// Its thread must serve it by this time, which is earlier than it knows.
    pub(crate) timer: Option<Millis>,
}

/// The promise to serve a replica soon. One that is dropped leaves that to the thread of the replica.
pub(crate) struct Claim {
    pub(super) queue: Arc<ReplicaQueue>,
    pub(super) number: u64,
}

impl Claim {
    /// Serves the replica here, unless another thread has done so, or it needs what takes long: its own thread does that.
    pub(crate) fn serve(mut self) {
        for _ in 0..limits::SERVED_HERE_AGAIN {
            let Some((replica, waiting)) = self.queue.begin_claimed(self.number) else { return };
            let after = event_loop::serve(&self.queue, replica, waiting);
            if let Some(at) = after.timer {
                self.queue.ready.set_timer(at, Arc::clone(&self.queue));
            }
            match after.again {
                Some(again) => self = again,
                None => return,
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let state = self.queue.lock();
        if state.turn == Turn::Claimed(self.number) {
            self.queue.list(state);
        }
    }
}
