//! What a replica of a table has applied: registers, which requests were done, and the rows beside the registers.

use super::client;
use super::rows::{Page, Rows};
use crate::model::{Deed, KeyAt, Op, Register, Seen};
use partage_core::base::planted::{self, Planted};
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::Bounds;
use partage_service::table::feed::{Gone, Progress};
use partage_service::table::replication::{Entry, EntryKind, LogPosition, Payload};
use partage_service::table::rows::{Outcome, Record, Row};
use partage_service::table::split::inherit;
use std::collections::{BTreeMap, BTreeSet};

/// What a shard holds.
#[derive(Debug, Clone, Default)]
pub struct Held {
    /// The registers whose keys lie in the shard.
    pub registers: BTreeSet<KeyAt>,
    /// The keys of the rows beside them.
    pub rows: BTreeSet<Key>,
}

/// What a replica has applied, up to an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registers {
    /// The position of the last entry that was applied.
    pub at: LogPosition,
    registers: BTreeMap<KeyAt, Register>,
    /// The requests of registers that were done. A real table has their answers; here the registers say them.
    done: BTreeSet<Op>,
    rows: Rows,
}

/// What one entry has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    at: LogPosition,
    /// The request of a register, if there was one, and what it has done the first time.
    request: Option<(Op, Option<(KeyAt, Deed)>)>,
    /// What has changed of the rows.
    records: Vec<Record>,
    /// What a request of a row was answered, if there was one.
    outcome: Option<(Op, Outcome)>,
    /// It was done before, and not known to have been.
    pub is_twice: bool,
}

impl Change {
    /// The write that was done.
    pub fn write(&self) -> Option<(KeyAt, Op, Deed)> {
        let (op, write) = self.request?;
        write.map(|(key, deed)| (key, op, deed))
    }

    /// What has changed of the rows.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// What a request of a row was answered.
    pub fn outcome(&self) -> Option<&(Op, Outcome)> {
        self.outcome.as_ref()
    }
}

impl Registers {
    /// Applies an entry. A request that was done before does nothing. `own_ms` is what the replica's clock shows, by which
    /// nothing may go.
    pub fn apply(&mut self, entry: &Entry, own_ms: u64) -> Change {
        self.at = entry.position;
        let (records, outcome) = (Vec::new(), None);
        let mut change = Change { at: entry.position, request: None, records, outcome, is_twice: false };
        let EntryKind::Write(payload) = &entry.kind else { return change };
        if let Some(mut write) = client::decode(payload) {
            if planted::is(Planted::OwnClock) {
                write.at_ms = own_ms;
            }
            let (outcome, records) = self.rows.apply(entry.position, &write);
            change.records = records;
            change.outcome = write.request.map(|request| (client::op_of(request.id), outcome));
        } else if let Some((key, op, deed)) = decode(payload) {
            let is_first = self.done.insert(op);
            change.request = Some((op, is_first.then_some((key, deed))));
            change.is_twice =
                is_first && self.registers.get(&key).is_some_and(|r| r.written_by(op).is_some());
            if is_first {
                self.registers.entry(key).or_default().write(op, deed);
            }
        }
        change
    }

    /// Takes up what a parent has changed, as far as what is `held` is concerned.
    pub fn follow(&mut self, change: &Change, held: &Held) {
        self.at = change.at;
        if let Some((key, op, deed)) = change.write().filter(|(key, ..)| held.registers.contains(key)) {
            self.registers.entry(key).or_default().write(op, deed);
        }
        self.rows.follow(&change.records, &held.rows);
        self.done.extend(change.request.filter(|_| inherit::takes_outcomes()).map(|(op, _)| op));
    }

    /// What a child takes of it of which so much is `held`.
    pub fn part(&self, held: &Held) -> Registers {
        let registers = self.registers.iter().filter(|(key, _)| held.registers.contains(key));
        let registers = registers.map(|(key, register)| (*key, register.clone())).collect();
        let done = if inherit::takes_outcomes() { self.done.clone() } else { BTreeSet::new() };
        Registers { at: self.at, registers, done, rows: self.rows.part(&held.rows) }
    }

    /// The base of a child, of the parts of its parents, with what each of these held as far as that is known.
    pub fn joined<'a>(
        parts: impl IntoIterator<Item = (Option<Bounds>, &'a Registers)>,
        at: LogPosition,
    ) -> Registers {
        let parts: Vec<(Option<Bounds>, &Registers)> = parts.into_iter().collect();
        let rows = Rows::joined(parts.iter().map(|(bounds, part)| (bounds.clone(), &part.rows)));
        let mut base = Registers { at, rows, ..Registers::default() };
        for (_, part) in parts {
            base.registers.extend(part.registers.iter().map(|(key, register)| (*key, register.clone())));
            base.done.extend(&part.done);
        }
        base
    }

    /// Whether the registers and the rows are the same.
    pub fn has_rows_of(&self, other: &Registers) -> bool {
        self.registers == other.registers && self.rows.has_rows_of(&other.rows)
    }

    /// The row of a key, as the shard's clock has it.
    pub fn row(&self, key: &Key) -> Option<Row> {
        self.rows.read(key)
    }

    /// What a request of a row was answered.
    pub fn outcome(&self, op: Op) -> Option<&Outcome> {
        self.rows.outcome(&client::request_id(op))
    }

    /// The next changes of rows, for a reader that is so far.
    ///
    /// # Errors
    /// A change that it lacks is removed.
    pub fn page(&self, progress: Progress) -> Result<Page, Gone> {
        self.rows.page(progress, self.at)
    }

    /// When the next row ends.
    pub fn next_end(&self) -> Option<u64> {
        self.rows.next_end()
    }

    /// The shard's clock, as the last write has moved it.
    pub fn clock_ms(&self) -> u64 {
        self.rows.clock_ms()
    }

    /// A register as it is.
    pub fn seen(&self, key: KeyAt) -> Seen {
        self.registers.get(&key).map(|register| register.seen(0)).unwrap_or_default()
    }

    /// A register as a request has left it.
    pub fn written_by(&self, key: KeyAt, op: Op) -> Option<Seen> {
        self.registers.get(&key)?.written_by(op)
    }
}

/// A write, as an entry carries it.
pub fn encode(key: KeyAt, op: Op, deed: Deed) -> Payload {
    let head = [key.keyspace as u8, key.key as u8, u8::from(deed == Deed::Put)];
    [&head[..], &op.to_le_bytes()].concat().into()
}

fn decode(payload: &Payload) -> Option<(KeyAt, Op, Deed)> {
    let (head, op) = payload.split_first_chunk::<3>()?;
    let key = KeyAt { keyspace: head[0].into(), key: head[1].into() };
    let deed = if head[2] == 1 { Deed::Put } else { Deed::Delete };
    Some((key, u64::from_le_bytes(op.try_into().ok()?), deed))
}
