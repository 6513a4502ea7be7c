//! What readers of a table's changes are given: each change of each row that is committed, once and in their order (D1), from
//! whichever replica they read, over other leaders, moves, splits and merges. Only where changes that a reader lacks are not kept
//! any more, and it was told so, may it miss some.
//!
//! A reader goes on from what it *has*: the progress that comes with each page. So a change is missed, too, when that progress
//! passes over it.

use super::Finding;
use crate::model::Op;
use crate::table::{FEED, Page, RowSeen, Tables};
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::Bounds;
use partage_service::table::feed::{Gone, Reached, Since};
use partage_service::table::replication::LogPosition;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// What became of the changes of one row, for one reader.
#[derive(Debug, Default)]
struct Reading {
    /// So many of those that are committed it has, or has passed over when it was told that they may be gone.
    has: usize,
    /// It misses none from now on.
    follows: bool,
}

/// What a reader has heard; none: nothing.
pub type Heard = Option<Result<Page, Gone>>;

/// What every reader has, and what it was given last.
#[derive(Debug, Default)]
pub struct Feeds {
    open: BTreeMap<Op, (usize, Heard)>,
    heard: BTreeMap<usize, Heard>,
    readings: BTreeMap<(usize, Key), Reading>,
    /// A person has gone on with a copy in which changes may be missing: nothing is looked for any more.
    is_given_up: bool,
}

/// Whether a reader that is so far has the change of that row at that entry. Not core's own comparison, which is under test.
fn is_passed(reached: &Reached, entry: LogPosition, key: &Key) -> bool {
    match entry.cmp(&reached.entry) {
        Ordering::Less => true,
        Ordering::Equal => reached.key.as_ref().is_none_or(|last| key <= last),
        Ordering::Greater => false,
    }
}

impl Feeds {
    /// A reader asks for changes.
    pub fn begins(&mut self, op: Op, reader: usize) {
        self.open.insert(op, (reader, None));
    }

    /// A reader's operation was answered.
    pub fn done(&mut self, op: Op, seen: RowSeen) {
        if let (Some((_, heard)), RowSeen::Changes(page)) = (self.open.get_mut(&op), seen) {
            *heard = Some(page);
        }
    }

    /// An operation is over. Gives the reader that it was of.
    pub fn ends(&mut self, op: Op) -> Option<usize> {
        let (reader, heard) = self.open.remove(&op)?;
        self.heard.insert(reader, heard);
        Some(reader)
    }

    /// What came of what a reader has asked for; none: it has not asked.
    pub fn take_heard(&mut self, reader: usize) -> Option<Heard> {
        self.heard.remove(&reader)
    }

    /// A person goes on with a copy in which changes may be missing.
    pub fn give_up(&mut self) {
        self.is_given_up = true;
    }

    /// A reader has a page; `keys` are those of all rows of the table.
    pub fn read(&mut self, reader: usize, page: &Page, keys: &[Key], tables: &Tables) -> Vec<Finding> {
        if self.is_given_up {
            return Vec::new();
        }
        let mut findings = Vec::new();
        for ((at, key), change) in &page.changes {
            let reading = self.readings.entry((reader, key.clone())).or_default();
            let committed = tables.changes_of(key);
            let Some(place) = committed.iter().position(|(known, ..)| known == at) else {
                findings.push((
                    "D1",
                    format!("reader {reader} is given a change of {key:?} at {at}, and none is committed"),
                ));
                continue;
            };
            if committed[place].1 != *change {
                let text =
                    format!("reader {reader} is given {change:?} of {key:?} at {at}: {:?}", committed[place]);
                findings.push(("D1", text));
            }
            if place < reading.has {
                findings
                    .push(("D1", format!("reader {reader} is given the change of {key:?} at {at} again")));
            } else if place > reading.has && reading.follows {
                let missed = committed[reading.has].0;
                findings.push(("D1", format!("reader {reader} is given {key:?} at {at} before {missed}")));
            }
            reading.has = reading.has.max(place + 1);
            reading.follows = true;
        }
        for part in page.progress.parts() {
            let Since::After(reached) = &part.since else { continue };
            for key in keys.iter().filter(|key| part.bounds.contains(FEED.position(key))) {
                findings.extend(self.passes(reader, key, reached, tables));
            }
        }
        findings
    }

    /// A reader goes on behind there.
    fn passes(&mut self, reader: usize, key: &Key, reached: &Reached, tables: &Tables) -> Option<Finding> {
        let committed = tables.changes_of(key);
        let passed = committed.iter().take_while(|(at, ..)| is_passed(reached, *at, key)).count();
        let reading = self.readings.entry((reader, key.clone())).or_default();
        let missed = committed.get(reading.has).filter(|_| passed > reading.has && reading.follows);
        let finding = missed.map(|(at, ..)| {
            ("D1", format!("reader {reader} goes on behind {reached:?}, and was not given {key:?} at {at}"))
        });
        reading.has = reading.has.max(passed);
        reading.follows = true;
        finding
    }

    /// A reader is told that it is late.
    pub fn is_late(&mut self, reader: usize, bounds: &Bounds, tables: &Tables) -> Option<Finding> {
        let of_it = self.readings.iter_mut().filter(|((of, _), _)| *of == reader);
        let within = of_it.filter(|((_, key), _)| bounds.contains(FEED.position(key)));
        within.for_each(|(_, reading)| reading.follows = false);
        let is_wrong = !tables.has_removed() && !self.is_given_up;
        is_wrong
            .then(|| ("D1", format!("reader {reader} is told that it is late, and no change was removed")))
    }

    /// L1: a change that a reader lacks though it was committed before `until`.
    pub fn lags(&self, reader: usize, key: &Key, until: u64, tables: &Tables) -> Option<Finding> {
        let has = self.readings.get(&(reader, key.clone())).map_or(0, |reading| reading.has);
        let (at, ..) = tables.changes_of(key).get(has).filter(|(.., committed)| *committed < until)?;
        let text = format!("reader {reader} has not been given the change of {key:?} at {at} for long");
        (!self.is_given_up).then_some(("L1", text))
    }
}
