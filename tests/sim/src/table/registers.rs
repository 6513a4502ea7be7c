//! What a replica of a table has applied: registers, and which requests were done.

use crate::model::{Deed, KeyAt, Op, Register, Seen};
use partage_service::table::replication::{Entry, EntryKind, LogPosition, Payload};
use partage_service::table::split::inherit;
use std::collections::{BTreeMap, BTreeSet};

/// What was applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registers {
    /// Up to where.
    pub at: LogPosition,
    registers: BTreeMap<KeyAt, Register>,
    /// The requests that were done. A real table has their answers; here the registers say them.
    done: BTreeSet<Op>,
}

/// What one entry has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    at: LogPosition,
    /// The request, if there was one, and what it has done the first time.
    request: Option<(Op, Option<(KeyAt, Deed)>)>,
    /// It was done before, and not known to have been.
    pub is_twice: bool,
}

impl Change {
    /// The write that was done.
    pub fn write(&self) -> Option<(KeyAt, Op, Deed)> {
        let (op, write) = self.request?;
        write.map(|(key, deed)| (key, op, deed))
    }
}

impl Registers {
    /// Applies an entry. A request that was done before does nothing.
    pub fn apply(&mut self, entry: &Entry) -> Change {
        self.at = entry.position;
        let mut change = Change { at: entry.position, request: None, is_twice: false };
        if let EntryKind::Write(payload) = &entry.kind
            && let Some((key, op, deed)) = decode(payload)
        {
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

    /// Takes up what a parent has changed, as far as `keys` are concerned.
    pub fn follow(&mut self, change: &Change, keys: &BTreeSet<KeyAt>) {
        self.at = change.at;
        if let Some((key, op, deed)) = change.write().filter(|(key, ..)| keys.contains(key)) {
            self.registers.entry(key).or_default().write(op, deed);
        }
        self.done.extend(change.request.filter(|_| inherit::takes_outcomes()).map(|(op, _)| op));
    }

    /// What a child that holds `keys` takes of it.
    pub fn part(&self, keys: &BTreeSet<KeyAt>) -> Registers {
        let registers = self.registers.iter().filter(|(key, _)| keys.contains(key));
        let registers = registers.map(|(key, register)| (*key, register.clone())).collect();
        let done = if inherit::takes_outcomes() { self.done.clone() } else { BTreeSet::new() };
        Registers { at: self.at, registers, done }
    }

    /// The base of a child, of the parts of its parents.
    pub fn joined<'a>(parts: impl IntoIterator<Item = &'a Registers>, at: LogPosition) -> Registers {
        let mut base = Registers { at, ..Registers::default() };
        for part in parts {
            base.registers.extend(part.registers.iter().map(|(key, register)| (*key, register.clone())));
            base.done.extend(&part.done);
        }
        base
    }

    /// Whether the registers are the same.
    pub fn has_rows_of(&self, other: &Registers) -> bool {
        self.registers == other.registers
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
