//! Clients that write rows of a table with a time to live, and read them before and after. By the writes of its shard alone the
//! witness says whether a row must be there at the entry that the reading replica has applied last (`table/ends.rs`).

use crate::clock::{MS, SECOND};
use crate::message::Event;
use crate::model::{KEYS, KeyAt};
use crate::table::{RowDeed, RowWrite};
use crate::world::World;
use partage_core::keyspace::map::Access;
use partage_service::table::rows::{Condition, Expiry};

/// The longest time to live: within a run rows end, before and after leaders change.
const LONGEST_MS: u64 = 8_000;

impl World {
    /// The next operation of these clients.
    pub fn operate_on_ending(&mut self) {
        let Some(keyspace) = self.scene.oracles.spaces.iter().position(|space| space.is_replicated()) else {
            return;
        };
        let longest = if self.is_lively() { 120 * MS } else { SECOND };
        let draw = &mut self.ending;
        // Beside the others there are lists.
        let key = KeyAt { keyspace, key: 2 * draw.index(KEYS / 2) + 1 };
        let (access, what) = match draw.index(20) {
            0..8 => (Access::Write, None),
            8..11 => (Access::Read, None),
            11 => (Access::Write, Some(None)),
            12 => (Access::Write, Some(Some(Expiry::Never))),
            _ => (Access::Write, Some(Some(Expiry::After(draw.between(1, LONGEST_MS))))),
        };
        let rest = draw.between(MS, longest);
        self.scene.after(rest, Event::OperateOnEnding);
        let op = self.next_op();
        self.scene.count(match what {
            None => "reads of rows that end",
            Some(_) => "writes of rows that end",
        });
        let row = match what {
            None => RowDeed::Read,
            Some(expiry) => RowDeed::Write(RowWrite {
                condition: Condition::Always,
                value: expiry.map(|_| op.to_le_bytes().as_slice().into()),
                expiry: expiry.unwrap_or(Expiry::Never),
            }),
        };
        self.operate_on_row(op, key, access, row);
    }
}
