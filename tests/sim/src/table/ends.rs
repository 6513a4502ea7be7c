//! What must be there of the rows of a shard by its writes alone: the witness of rows that end. It goes by the times that entries
//! carry, of which the latest is the shard's clock, and not by what any replica keeps.

use super::client;
use super::registers::Held;
use partage_core::keyspace::key::Key;
use partage_service::table::replication::{Entry, EntryKind};
use partage_service::table::rows::{Action, Expiry, Row};
use std::collections::BTreeMap;

/// When a row ends that never does.
const NEVER: u64 = u64::MAX;

/// The writes of a shard, and its clock.
#[derive(Debug, Clone, Default)]
pub(super) struct Ends {
    /// The clock behind each entry, from the position on at which the log begins.
    clocks: Vec<u64>,
    /// The clock before the first entry.
    first: u64,
    /// The index before the first entry.
    base: u64,
    /// For each key its writes: at which index, and when the row ends since; none: it was taken away.
    writes: BTreeMap<Key, Vec<(u64, Option<u64>)>>,
}

impl Ends {
    /// Of a child that holds `held` of its parents, and whose log begins behind `base`.
    pub(super) fn joined<'a>(parents: impl IntoIterator<Item = &'a Ends>, held: &Held, base: u64) -> Ends {
        let mut child = Ends { base, ..Ends::default() };
        for parent in parents {
            child.first = child.first.max(parent.clock());
            for (key, writes) in parent.writes.iter().filter(|(key, _)| held.rows.contains(key)) {
                let last = writes.last().map(|(_, end)| (base, *end));
                child.writes.insert(key.clone(), last.into_iter().collect());
            }
        }
        child
    }

    fn clock(&self) -> u64 {
        self.clocks.last().copied().unwrap_or(self.first)
    }

    fn clock_at(&self, index: u64) -> Option<u64> {
        match index.checked_sub(self.base)? {
            0 => Some(self.first),
            behind => self.clocks.get(behind as usize - 1).copied(),
        }
    }

    /// The next entry is committed. Its write `is_done`, unless its condition does not hold or it was done before.
    pub(super) fn apply(&mut self, entry: &Entry, is_done: bool) {
        let mut clock = self.clock();
        if let EntryKind::Write(payload) = &entry.kind
            && let Some(write) = client::decode(payload)
        {
            clock = clock.max(write.at_ms);
            for operation in write.operations.into_iter().filter(|_| is_done) {
                let end = match operation.action {
                    Action::Put(_, Expiry::At(end)) => Some(end),
                    Action::Put(..) => Some(NEVER),
                    _ => None,
                };
                self.writes.entry(operation.key).or_default().push((entry.position.index, end));
            }
        }
        self.clocks.push(clock);
    }

    /// What is wrong with that row, as a replica has read it which has applied all up to that index.
    pub(super) fn breaks(&self, key: &Key, index: u64, row: Option<&Row>) -> Option<(&'static str, String)> {
        let clock = self.clock_at(index)?;
        let writes = self.writes.get(key).map_or(&[][..], Vec::as_slice);
        let last = writes.iter().take_while(|(at, _)| *at <= index).last();
        let end = last.and_then(|(_, end)| *end);
        let is_there = end.filter(|end| *end > clock);
        let found = row.map(|row| row.expires_ms.unwrap_or(NEVER));
        let text = || {
            format!(
                "the row of {key:?} is {row:?} at index {index}, ends at {end:?}, and the clock is {clock}"
            )
        };
        match (found, is_there) {
            (found, is_there) if found == is_there => None,
            (Some(_), None) => Some(("D3", text())),
            _ => Some(("D1", text())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::{RowWrite, encode, encode_clock};
    use super::*;
    use partage_core::base::id::Epoch;
    use partage_service::table::replication::{LogPosition, Payload};
    use partage_service::table::rows::Condition;

    fn key() -> Key {
        Key::new(b"k01").unwrap()
    }

    fn entry(index: u64, payload: Payload) -> Entry {
        Entry { position: LogPosition { epoch: Epoch(1), index }, kind: EntryKind::Write(payload) }
    }

    fn row(index: u64, end: u64) -> Row {
        let version = LogPosition { epoch: Epoch(1), index };
        Row { value: b"1".as_slice().into(), version, expires_ms: Some(end) }
    }

    #[test]
    fn d1_d3_a_row_is_there_until_its_end_by_the_latest_time_of_any_entry() {
        let value = Some(b"1".as_slice().into());
        let put = RowWrite { condition: Condition::Always, value, expiry: Expiry::After(100) };
        let mut ends = Ends::default();
        ends.apply(&entry(1, encode(1_000, 7, &key(), &put)), true);
        ends.apply(&entry(2, encode_clock(1_100)), false);
        ends.apply(&entry(3, encode_clock(900)), false);
        let broken = |index, row: Option<Row>| {
            ends.breaks(&key(), index, row.as_ref()).map(|(invariant, _)| invariant)
        };
        assert_eq!(broken(0, None), None);
        assert_eq!(broken(1, Some(row(1, 1_100))), None);
        assert_eq!(broken(1, None), Some("D1"), "it has vanished before its end");
        assert_eq!(broken(1, Some(row(1, 1_200))), Some("D1"), "it has another end");
        assert_eq!(broken(2, None), None);
        assert_eq!(broken(2, Some(row(1, 1_100))), Some("D3"), "it is read after its end");
        assert_eq!(broken(3, Some(row(1, 1_100))), Some("D3"), "the clock does not go back");

        let held = Held { rows: [key()].into(), ..Held::default() };
        let child = Ends::joined([&ends], &held, 9);
        assert_eq!(child.breaks(&key(), 9, None), None);
        assert!(
            child.breaks(&key(), 9, Some(&row(1, 1_100))).is_some(),
            "a child has the clock of its parent"
        );
    }
}
