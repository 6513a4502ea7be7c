//! Leads that move while nothing is wrong: a coordinator spreads them, or a person moves one.
//!
//! The shards are nearly idle then, and some clients write to one at the same moment as its lead moves: what the leader has
//! admitted and nobody else has heard of must be answered soon, though no later write comes that would tell what became of it:
//! these are the rows of one request, which is sent again when all of them have an outcome.

use super::{Happening, World};
use crate::clock::{MS, SECOND, True};
use crate::replication::clients::Client;

/// Clients that write when a lead moves, and never else. They come after the others.
const AT_MOVES: usize = 4;

/// How long leads move.
const MOVES_FOR: True = 6 * SECOND;

/// From one move to the next.
const EVERY: True = 1_500 * MS;

/// The longest that an operation may take when nothing is wrong but that leads move.
const SOON: True = 2 * SECOND;

/// Since when leads move, and which clients write then.
#[derive(Debug)]
pub struct Moving {
    since: True,
    clients_before: usize,
}

impl Moving {
    /// Whether that is over.
    fn has_ended(&self, now: True) -> bool {
        now >= self.since + MOVES_FOR
    }
}

impl World {
    /// A lead moves, and clients write to its shard at that moment.
    pub(super) fn lead_moves(&mut self) {
        let (now, shards) = (self.now, self.weather.shards);
        if self.moving.is_none() {
            self.moving = Some(Moving { since: now, clients_before: self.clients.len() });
            self.clients.extend((0..AT_MOVES).map(|_| Client::new(shards)));
        }
        let shard = self.draw.index(shards);
        for client in self.clients.len() - AT_MOVES..self.clients.len() {
            let soon = self.draw.between(0, self.weather.delay);
            self.after(soon, Happening::Write { client, shard });
        }
        let soon = self.draw.between(0, 2 * self.weather.delay);
        self.after(soon, Happening::Elect { shard, heir: None, drops: false });
        if self.moving.as_ref().is_some_and(|moving| !moving.has_ended(now + EVERY)) {
            self.after(EVERY, Happening::LeadMoves);
        }
    }

    /// Whether the client writes when leads move, and never else.
    pub(in crate::replication) fn writes_at_moves(&self, client: usize) -> bool {
        self.moving.as_ref().is_some_and(|moving| client >= moving.clients_before)
    }

    /// How long a client rests between two operations: for long while leads move, so that no write comes to the help of another.
    pub(in crate::replication) fn rest(&mut self) -> True {
        let moves = self.moving.as_ref().is_some_and(|moving| !moving.has_ended(self.now));
        let rest = if moves { EVERY } else { self.weather.rest };
        self.draw.around(rest)
    }

    /// L1: what was asked for when a lead moved ends soon, and is not unknown.
    pub(in crate::replication) fn ends_soon(
        &self,
        client: usize,
        begun: True,
        is_definite: bool,
    ) -> Result<(), String> {
        let took = self.now - begun;
        match self.writes_at_moves(client) && (took > SOON || !is_definite) {
            true => Err(format!(
                "L1: nothing is wrong but that leads move, and a write takes {} ms, its outcome {}",
                took / MS,
                if is_definite { "known" } else { "unknown" }
            )),
            false => Ok(()),
        }
    }
}
