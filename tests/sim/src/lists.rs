//! Clients that keep lists in the rows of a table. Each reads a list whole, and sets it by compare-and-set, longer by one element
//! that nobody else has: the number of the operation. Some of what they read is late, from followers, so that their next write is
//! to be refused; now and then one takes a list away. [`crate::oracle::lists`] says what must be so of what they see.

use crate::clock::{MS, SECOND};
use crate::draw::Draw;
use crate::message::Event;
use crate::model::KeyAt;
use crate::oracle::lists::{Asked, Heard, value};
use crate::scene::Scene;
use crate::table::{RowDeed, RowWrite};
use crate::world::World;
use partage_core::keyspace::map::Access;
use partage_service::table::rows::{Condition, Expiry};

/// How many there are.
const CLIENTS: usize = 5;

/// The keys beside whose registers there are lists: few, so that clients meet.
const KEYS_OF_LISTS: [usize; 5] = [0, 4, 6, 10, 14];

/// A list of so many elements is taken away.
const LONGEST: usize = 24;

/// Lists that are taken away earlier, in thousandths of the writes.
const REMOVALS: u64 = 50;

/// Reads that any replica may answer, in thousandths.
const ANYWHERE: u64 = 150;

/// The clients, and what each knows of the list that it has just read or written.
#[derive(Debug)]
pub struct ListClients {
    draw: Draw,
    known: Vec<Option<Heard>>,
}

impl ListClients {
    /// Of a run with that seed.
    pub fn new(seed: u64) -> ListClients {
        ListClients { draw: Draw::new(!seed ^ 2), known: vec![None; CLIENTS] }
    }

    /// Has each client begin, after one to two seconds.
    pub fn begin(&mut self, scene: &mut Scene) {
        for client in 0..CLIENTS {
            let first = self.draw.between(SECOND, 2 * SECOND);
            scene.after(first, Event::ListClient(client));
        }
    }

    /// What a client does next; `number` is that of the operation.
    fn next(&mut self, client: usize, keyspace: usize, number: u64) -> (KeyAt, Asked) {
        let known = self.known[client].take();
        let Some(Heard { key, version, mut elements }) = known else {
            let key = self.draw.pick(&KEYS_OF_LISTS).copied().unwrap_or_default();
            return (KeyAt { keyspace, key }, Asked::Read);
        };
        let is_full = elements.len() >= LONGEST || (!elements.is_empty() && self.draw.chance(REMOVALS));
        match version.filter(|_| is_full) {
            Some(version) => (key, Asked::Remove(version)),
            None => {
                elements.push(number);
                (key, Asked::Append(version, elements))
            }
        }
    }
}

impl World {
    /// A client does something, or has heard what came of it and rests.
    pub fn list_client(&mut self, client: usize) {
        if let Some(heard) = self.scene.oracles.lists.take_heard(client) {
            self.lists.known[client] = heard;
            let longest = if self.is_lively() { 250 * MS } else { 2 * SECOND };
            let rest = self.lists.draw.between(MS, longest);
            return self.scene.after(rest, Event::ListClient(client));
        }
        let Some(keyspace) = self.scene.oracles.spaces.iter().position(|space| space.is_replicated()) else {
            return;
        };
        let op = self.next_op();
        let (key, asked) = self.lists.next(client, keyspace, op);
        let write = |condition, value| RowDeed::Write(RowWrite { condition, value, expiry: Expiry::Never });
        let (access, row) = match &asked {
            Asked::Read if self.lists.draw.chance(ANYWHERE) => (Access::Read, RowDeed::Read),
            Asked::Read => (Access::Write, RowDeed::Read),
            Asked::Append(version, elements) => {
                let condition = version.map_or(Condition::Absent, Condition::Version);
                (Access::Write, write(condition, Some(value(elements))))
            }
            Asked::Remove(version) => (Access::Write, write(Condition::Version(*version), None)),
        };
        self.scene.count(match &asked {
            Asked::Read => "reads of lists",
            Asked::Append(..) => "appends to lists",
            Asked::Remove(_) => "lists taken away",
        });
        self.scene.oracles.lists.begins(op, client, key, asked);
        self.operate_on_row(op, key, access, row);
    }
}
