//! When a client that has lost its coordinator asks again (R7).
//!
//! Ten thousand connections that end in one moment must not come back in one moment; three may. No client knows how many
//! others there are, but the coordinator does: for as long as it has us it says over how long to spread if it is
//! lost, and that is as wide as the fleet needs and no wider.
//!
//! ```text
//!  New ──────────────┐ in vain                  ┌─────────┐
//!                    ▼                          │ in vain │
//!  Had ──lost──► Looking ───────────────────────┴─►       │
//!   ▲                │                                    │
//!   └── a coordinator has us ◄────────────────────────────┘
//! ```
//!
//! | what happened                         | rest                                                            |
//! |---------------------------------------|-----------------------------------------------------------------|
//! | a coordinator that had us is gone     | anything up to the spread                                       |
//! | one would not have us, others may     | from half of [`RECONNECT_MS`] to all of it                      |
//! | none would, so a round was in vain    | from half to all of a quarter of the time that we have looked; no less than the spread, no more than the longest rest |
//!
//! So a client of a small cluster is there a tenth of a second after its coordinator is gone, and late by a quarter of
//! the time for which no coordinator led. The spread never is below [`RECONNECT_MS`]: up to 500 clients need no more.
//!
//! With spread `s`, of `n` clients at most `n / s` come back in a second when another leads at once, and about
//! `4n / 3s` when they have looked for one meanwhile. A spread has an end where the fleet can do without no longer: a
//! worker its lease, a router a moment in which its maps may be old. [`limits::RECONNECTS_PER_S`] is what that may come
//! to.
//!
//! A client that hears from one coordinator which one leads goes there at once, as it has waited already; but not to one that has
//! said nothing lately ([`Silent`]). Not here: which coordinator a client tries; that is in `crates/worker/src/connection.rs` and
//! `crates/maps/src/watch.rs`.

mod silent;

pub use silent::Silent;

use crate::base::time::Millis;
use crate::limits::{self, RECONNECT_MS};

/// The delays of one client between its attempts to reconnect. Lots are anything from 0 to 1, drawn anew each time.
#[derive(Debug, Clone)]
pub struct ReconnectBackoff {
    longest_ms: u64,
    spread_ms: u64,
    state: State,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// No coordinator was tried yet.
    New,
    /// A coordinator has taken us in.
    Had,
    /// Looking for one: since when, and how many would not have us.
    Looking(Millis, u32),
}

impl ReconnectBackoff {
    /// For a worker that has lost its coordinator.
    pub fn of_worker() -> ReconnectBackoff {
        ReconnectBackoff { longest_ms: limits::WORKER_REST_MS, spread_ms: RECONNECT_MS, state: State::New }
    }

    /// For a process that follows maps: a router, or a coordinator that stands by.
    pub fn of_router() -> ReconnectBackoff {
        ReconnectBackoff { longest_ms: limits::ROUTER_REST_MS, spread_ms: RECONNECT_MS, state: State::New }
    }

    /// For a node whose replicas send to another node, in which that node is the one coordinator.
    pub fn of_peer() -> ReconnectBackoff {
        ReconnectBackoff { longest_ms: limits::PEER_REST_MS, spread_ms: RECONNECT_MS, state: State::New }
    }

    /// A coordinator says over how long to spread when it is lost; not longer than [`limits::SPREAD_MS`].
    pub fn set_spread(&mut self, spread_ms: u64) {
        self.spread_ms = spread_ms.clamp(RECONNECT_MS, limits::SPREAD_MS);
    }

    /// A coordinator has taken us in.
    pub fn connected(&mut self) {
        self.state = State::Had;
    }

    /// How long to rest, in milliseconds, now that the coordinator that had us is gone, or that another one of so many
    /// would not have us. Those behind one name count each.
    pub fn next_delay_ms(&mut self, now: Millis, coordinators: usize, lot: f64) -> u64 {
        let (since, attempts) = match self.state {
            State::Had => {
                self.state = State::Looking(now, 0);
                return part(self.spread_ms, lot);
            }
            State::New => (now, 1),
            State::Looking(since, attempts) => (since, attempts.saturating_add(1)),
        };
        self.state = State::Looking(since, attempts);
        let is_round = attempts.is_multiple_of(u32::try_from(coordinators).unwrap_or(u32::MAX).max(1));
        let looked_ms = now.since(since);
        let grown = (looked_ms / limits::LATE_BY).clamp(RECONNECT_MS, self.longest_ms);
        let most = if is_round { grown.max(self.spread_ms) } else { RECONNECT_MS };
        most / 2 + part(most - most / 2, lot)
    }
}

impl ReconnectBackoff {
    /// The least that a client rests after a round in vain, however long it has looked: also when a request waits for it.
    pub fn shortest_delay_ms(&self, lot: f64) -> u64 {
        let most = self.spread_ms.max(RECONNECT_MS);
        most / 2 + part(most - most / 2, lot)
    }
}

/// Over how long workers with such a lease spread: as many come in a second as are to, and all of them within a part of
/// the lease that leaves time for the election before it and the answer after it.
pub fn worker_spread_ms(workers: usize, lease_ms: u64) -> u64 {
    at_pace(workers).min(lease_ms / limits::SPREAD_OF_LEASE)
}

/// Over how long routers spread that listen to the same coordinator.
pub fn router_spread_ms(routers: usize) -> u64 {
    at_pace(routers).min(limits::ROUTER_SPREAD_MS)
}

/// In steps, each twice the one before, so that it need not be said again whenever one more has come.
fn at_pace(clients: usize) -> u64 {
    let clients = u64::try_from(clients).unwrap_or(u64::MAX).checked_next_power_of_two().unwrap_or(u64::MAX);
    clients.saturating_mul(1_000).div_ceil(limits::RECONNECT_PACE_PER_S).max(RECONNECT_MS)
}

fn part(of: u64, lot: f64) -> u64 {
    (of as f64 * lot.clamp(0.0, 1.0)) as u64
}

#[cfg(test)]
mod tests;
