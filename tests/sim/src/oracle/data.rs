//! What clients wrote and read: registers that are linearizable in exclusive keyspaces (D2), writes that stay
//! (D1), and keys that were deleted and stay away (D3).
//!
//! A register numbers its writes in the order in which they were applied. So a history is linearizable when
//! no client reads a number below one that was known to any client before the read began. Where data is carried
//! from owner to owner, two owners at once would give one number to two writes. Operations whose outcome
//! is not known stay open: they forbid nothing.

use super::Finding;
use crate::model::{Deed, KeyAt, Life, Op, Seen, Space, Storage};
use std::collections::BTreeMap;

/// Counts of operations by their end.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Operations that clients have begun.
    pub begun: u64,
    /// Operations that were answered as done.
    pub done: u64,
    /// Operations that were certainly not done.
    pub failed: u64,
    /// Operations that may or may not have been done.
    pub indefinite: u64,
}

#[derive(Debug)]
struct Open {
    key: KeyAt,
    deed: Option<Deed>,
    /// The latest that was known when it began.
    floor: Seen,
}

/// The history, as far as it still matters.
#[derive(Debug, Default)]
pub struct Data {
    known: BTreeMap<KeyAt, Seen>,
    /// Writes that were acknowledged, by the number that they were told.
    acknowledged: BTreeMap<(KeyAt, u64), Op>,
    open: BTreeMap<Op, Open>,
    /// How many ended how.
    pub tally: Tally,
    /// No worker has faults: shards that need no lease are to be served all along.
    pub must_serve: bool,
    /// How many were refused to the end though they should have been served. An answer that comes too late for a
    /// router's patience is another matter.
    pub unserved: u64,
}

impl Data {
    /// A keyspace is deleted, or a partition unregistered, and with it all that was in these keys.
    pub fn end_life(&mut self, is_in_it: impl Fn(&KeyAt) -> bool) {
        self.known.retain(|key, _| !is_in_it(key));
        self.acknowledged.retain(|(key, _), _| !is_in_it(key));
    }

    /// A person goes on with a copy in which writes of a key may be missing.
    pub fn give_up(&mut self, key: KeyAt) {
        self.known.remove(&key);
        self.acknowledged.retain(|(of, _), _| *of != key);
        let begun = self.open.values_mut().filter(|open| open.key == key);
        begun.for_each(|open| open.floor = Seen { life: open.floor.life, ..Seen::default() });
    }

    /// A client begins, in that life of the keyspace.
    pub fn begins(&mut self, op: Op, key: KeyAt, life: Life, deed: Option<Deed>) {
        let floor = self.known.get(&key).copied().unwrap_or(Seen { life, ..Seen::default() });
        self.tally.begun += 1;
        self.open.insert(op, Open { key, deed, floor });
    }

    /// It was done, and saw that; by a leader or not.
    pub fn done(
        &mut self,
        op: Op,
        seen: Seen,
        by_leader: bool,
        spaces: &[Space],
        storage: &Storage,
        is_alive: bool,
    ) -> Option<Finding> {
        let Open { key, deed, floor } = self.open.remove(&op)?;
        self.tally.done += 1;
        let version = seen.version;
        if seen.life < floor.life {
            let text =
                format!("op {op} on {key:?} began in life {}, and life {} answers", floor.life, seen.life);
            return Some(("M5", text));
        }
        // Of a life that began after the operation nothing was known; of one that is over nothing matters.
        let floor = if seen.life == floor.life { floor } else { Seen { life: seen.life, ..Seen::default() } };
        if !is_alive || seen.life < storage.life(key) {
            return None;
        }
        if version > storage.seen(key, seen.life).version {
            return Some(("D1", format!("op {op} saw version {version} of {key:?}, which is not there")));
        }
        let exclusive = spaces[key.keyspace].is_linearizable();
        if by_leader && exclusive && version < floor.version {
            let what = if deed.is_some() { "wrote" } else { "read" };
            let text = format!(
                "op {op} {what} version {version} of {key:?} after version {} was known",
                floor.version
            );
            let is_back = seen.is_there && !floor.is_there && deed.is_none();
            return Some((if is_back { "D3" } else { "D2" }, text));
        }
        if deed.is_some()
            && let Some(other) = self.acknowledged.insert((key, version), op)
        {
            let text =
                format!("ops {other} and {op} were both told to have made version {version} of {key:?}");
            return Some(("D1", text));
        }
        let known = self.known.entry(key).or_default();
        if version > known.version && (deed.is_some() || (by_leader && exclusive)) {
            *known = seen;
        }
        None
    }

    /// It was certainly not done.
    pub fn failed(&mut self, op: Op, spaces: &[Space]) {
        if let Some(open) = self.open.remove(&op) {
            self.tally.failed += 1;
            self.unserved += u64::from(self.must_serve && !spaces[open.key.keyspace].is_exclusive());
        }
    }

    /// An operation may or may not have been done.
    pub fn indefinite(&mut self, op: Op) {
        if self.open.remove(&op).is_some() {
            self.tally.indefinite += 1;
        }
    }

    /// D1: what was acknowledged is there.
    pub fn at_the_end(&self, storage: &Storage) -> Vec<Finding> {
        self.lost(storage, None)
    }

    /// What was acknowledged and is gone, of one keyspace or of all.
    pub fn lost(&self, storage: &Storage, keyspace: Option<usize>) -> Vec<Finding> {
        let of_it = |key: &KeyAt| keyspace.is_none_or(|keyspace| key.keyspace == keyspace);
        let lost =
            self.acknowledged.iter().filter(|((key, _), _)| of_it(key)).filter(|((key, version), op)| {
                storage.read(*key).and_then(|register| register.made_by(*version)) != Some(**op)
            });
        lost.map(|((key, version), op)| {
            ("D1", format!("op {op} was told to have made version {version} of {key:?}, and it is gone"))
        })
        .collect()
    }
}
