//! What clients saw of lists. A list is the row of a table: a client reads it whole and sets it, longer by one element that
//! nobody else has, if its version is still the one that was read; or takes it away on the same condition.
//!
//! The versions of a row only grow, so they order what clients saw. That order is a history which registers alone do not show:
//!
//! - two lists of one row are the same list earlier and later: the earlier one is the beginning of the later one, unless it was
//!   taken away in between (D1: nothing is lost or stands elsewhere; D2: of two writes on one version one is refused);
//! - whatever a leader answers is no earlier than what was known to any client when the operation began (D2);
//! - an element that was acknowledged is there until its list is taken away, and one that was refused never is (D1);
//! - of a list that was taken away nothing comes back (D3).
//!
//! Operations whose outcome is not known forbid nothing.

use super::Finding;
use crate::model::{KeyAt, Op};
use crate::table::RowSeen;
use partage_service::table::replication::LogPosition;
use partage_service::table::rows::{Outcome, Row, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

/// The elements of a list, as its row has them.
pub fn elements(value: &[u8]) -> Vec<Op> {
    value.as_chunks::<8>().0.iter().map(|element| Op::from_le_bytes(*element)).collect()
}

/// The value of a row that has these elements.
pub fn value(elements: &[Op]) -> Value {
    elements.iter().flat_map(|element| element.to_le_bytes()).collect()
}

/// What a client asks of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// To read the list, whole.
    Read,
    /// To be these elements, the last of which is the number of the operation, if it is still of that version; none: if there is
    /// none.
    Append(Option<LogPosition>, Vec<Op>),
    /// To be gone, if it is still of that version.
    Remove(LogPosition),
}

/// What a client knows of a list after an operation: its version, none if there is none, and its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// The key beside whose register the list is.
    pub key: KeyAt,
    /// The version of its row; none: there is no list.
    pub version: Option<LogPosition>,
    /// Its elements, in the order in which they were appended.
    pub elements: Vec<Op>,
}

/// The latest that any client knows of a list by its leader. One that was found to be gone has the version that it had before.
#[derive(Debug, Clone, Default)]
struct Known {
    version: LogPosition,
    elements: Vec<Op>,
    is_gone: bool,
}

#[derive(Debug)]
struct Open {
    client: usize,
    key: KeyAt,
    asked: Asked,
    /// What was known when it began.
    floor: Known,
    heard: Option<Heard>,
}

/// What is known of one list.
#[derive(Debug, Default)]
struct History {
    /// What was seen, by version; at the version of the write that took it away it is empty.
    seen: BTreeMap<LogPosition, Vec<Op>>,
    /// Which version each acknowledged append has replaced.
    replaced: BTreeMap<LogPosition, LogPosition>,
    /// Which version each removal is of, if it was not refused.
    removals: BTreeMap<Op, LogPosition>,
    /// Elements that were asked for, and those of them that were refused.
    asked: BTreeSet<Op>,
    refused: BTreeSet<Op>,
    /// At which version an append was acknowledged.
    acknowledged: BTreeMap<Op, LogPosition>,
    /// At which version an element was taken away.
    removed: BTreeMap<Op, LogPosition>,
    known: Known,
}

impl History {
    /// Whether the list of that version, or a later one before `end`, may have been taken away.
    fn may_be_removed(&self, from: LogPosition, end: Option<LogPosition>) -> bool {
        self.removals.values().any(|of| *of >= from && end.is_none_or(|end| *of < end))
    }

    /// Takes in a list as it was seen.
    fn see(&mut self, version: LogPosition, list: &[Op]) -> Vec<Finding> {
        if let Some(known) = self.seen.get(&version) {
            let text = || format!("version {version} of a list is {list:?}, and was {known:?}");
            return if known == list { Vec::new() } else { vec![("D1", text())] };
        }
        let mut findings: Vec<Finding> = list.iter().filter_map(|one| self.strange(*one, version)).collect();
        let mut once = BTreeSet::new();
        if let Some(twice) = list.iter().find(|one| !once.insert(**one)) {
            findings.push(("D1", format!("{twice} is twice in version {version} of a list: {list:?}")));
        }
        if let Some((before, earlier)) = self.seen.range(..version).next_back() {
            findings.extend(self.breaks((*before, earlier.as_slice()), (version, list)));
        }
        if let Some((after, later)) = self.seen.range((Excluded(version), Unbounded)).next() {
            findings.extend(self.breaks((version, list), (*after, later.as_slice())));
        }
        let next = self.replaced.range((Excluded(version), Unbounded)).next();
        if let Some((by, of)) = next.filter(|(_, of)| **of < version) {
            let text =
                format!("version {by} of a list was to replace {of}, and {version} is between: {list:?}");
            findings.push(("D2", text));
        }
        self.seen.insert(version, list.to_vec());
        findings
    }

    /// An element that cannot be in a list of that version.
    fn strange(&self, element: Op, version: LogPosition) -> Option<Finding> {
        if !self.asked.contains(&element) {
            return Some(("D1", format!("{element} is in a list, and nobody has appended it")));
        }
        if self.refused.contains(&element) {
            return Some(("D1", format!("{element} is in version {version} of a list, and was refused")));
        }
        let gone = self.removed.get(&element).filter(|gone| **gone < version)?;
        Some(("D3", format!("{element} was taken away at {gone}, and is in version {version} of a list")))
    }

    /// Whether a list cannot have become the other one.
    fn breaks(
        &self,
        (before, earlier): (LogPosition, &[Op]),
        (after, later): (LogPosition, &[Op]),
    ) -> Option<Finding> {
        if later.is_empty() || (later.len() > earlier.len() && later.starts_with(earlier)) {
            return None;
        }
        let text = format!("a list is {earlier:?} at {before} and {later:?} at {after}");
        if !self.may_be_removed(before, Some(after)) {
            return Some(("D1", format!("{text}: nobody has taken it away")));
        }
        let is_back = earlier.iter().any(|element| later.contains(element));
        is_back.then(|| ("D3", format!("{text}: what was taken away is back")))
    }

    /// A leader has answered that; `floor` was known when the operation began.
    fn led(&mut self, floor: &Known, version: Option<LogPosition>, list: &[Op]) -> Vec<Finding> {
        let Some(version) = version else { return self.found_gone(floor) };
        let mut findings = self.see(version, list);
        let is_back = floor.is_gone && version <= floor.version;
        if version < floor.version || is_back {
            let text = format!("a leader answers {list:?} of {version} after {floor:?} was known");
            findings.push((if is_back { "D3" } else { "D2" }, text));
        }
        if version > self.known.version {
            self.known = Known { version, elements: list.to_vec(), is_gone: list.is_empty() };
        }
        findings
    }

    /// A leader has found no list.
    fn found_gone(&mut self, floor: &Known) -> Vec<Finding> {
        if floor.elements.is_empty() {
            return Vec::new();
        }
        if !self.may_be_removed(floor.version, None) {
            return vec![("D1", format!("{floor:?} was known, and a leader finds no list"))];
        }
        if self.known.version == floor.version {
            self.known.is_gone = true;
        }
        Vec::new()
    }

    fn appended(&mut self, op: Op, of: Option<LogPosition>, at: LogPosition) -> Option<Finding> {
        self.acknowledged.insert(op, at);
        let of = of?;
        if at <= of {
            return Some(("D2", format!("version {at} of a list replaces {of}, which is no earlier")));
        }
        self.replaced.insert(at, of);
        let between = self.seen.range((Excluded(of), Excluded(at))).next()?;
        Some(("D2", format!("version {at} of a list replaces {of}, and {between:?} is between")))
    }

    /// The list of version `of` was taken away by the write at `at`.
    fn taken_away(&mut self, of: LogPosition, at: LogPosition) {
        let gone = self.seen.get(&of).into_iter().flatten();
        self.removed.extend(gone.map(|element| (*element, at)));
    }

    /// A write was refused, as the list is of another version.
    fn not_met(&mut self, op: Op, asked: &Asked, current: Option<LogPosition>) -> Option<Finding> {
        let wanted = match asked {
            Asked::Append(version, _) => *version,
            Asked::Remove(version) => Some(*version),
            Asked::Read => None,
        };
        self.removals.remove(&op);
        self.refused.insert(op);
        if wanted == current {
            return Some((
                "D2",
                format!("op {op} is refused, as a list is of the version {current:?} it asked for"),
            ));
        }
        let of_it = self.seen.iter().find(|(_, list)| list.contains(&op));
        of_it.map(|(version, _)| ("D1", format!("op {op} is refused, and in version {version} of its list")))
    }
}

/// The history of all lists.
#[derive(Debug, Default)]
pub struct Lists {
    histories: BTreeMap<KeyAt, History>,
    open: BTreeMap<Op, Open>,
    heard: BTreeMap<usize, Option<Heard>>,
}

impl Lists {
    /// A client begins an operation on a list.
    pub fn begins(&mut self, op: Op, client: usize, key: KeyAt, asked: Asked) {
        let history = self.histories.entry(key).or_default();
        match &asked {
            Asked::Append(..) => {
                history.asked.insert(op);
            }
            Asked::Remove(version) => {
                history.removals.insert(op, *version);
            }
            Asked::Read => {}
        }
        let floor = history.known.clone();
        self.open.insert(op, Open { client, key, asked, floor, heard: None });
    }

    /// It was answered, by a leader or not.
    pub fn done(&mut self, op: Op, seen: &RowSeen, by_leader: bool) -> Vec<Finding> {
        let Some(open) = self.open.get_mut(&op) else { return Vec::new() };
        let history = self.histories.entry(open.key).or_default();
        let (key, floor) = (open.key, &open.floor);
        match (&open.asked, seen) {
            (Asked::Read, RowSeen::Read(row)) => {
                let (version, list) = seen_of(row.as_ref());
                open.heard = Some(Heard { key, version, elements: list.clone() });
                match (by_leader, version) {
                    (true, version) => history.led(floor, version, &list),
                    (false, Some(version)) => history.see(version, &list),
                    (false, None) => Vec::new(),
                }
            }
            (Asked::Append(of, list), RowSeen::Wrote(Outcome::Done { version, .. })) => {
                open.heard = Some(Heard { key, version: Some(*version), elements: list.clone() });
                let mut findings = history.led(floor, Some(*version), list);
                findings.extend(history.appended(op, *of, *version));
                findings
            }
            (Asked::Remove(of), RowSeen::Wrote(Outcome::Done { version, .. })) => {
                history.taken_away(*of, *version);
                history.led(floor, Some(*version), &[])
            }
            (asked, RowSeen::Wrote(Outcome::NotMet { current, .. })) => {
                history.not_met(op, asked, *current).into_iter().collect()
            }
            (asked, seen) => vec![("D1", format!("op {op} asks for {asked:?} and is answered {seen:?}"))],
        }
    }

    /// An operation is over, done or not. Gives the client that it was of.
    pub fn ends(&mut self, op: Op) -> Option<usize> {
        let open = self.open.remove(&op)?;
        self.heard.insert(open.client, open.heard);
        Some(open.client)
    }

    /// What came of the operation that a client has under way; none: it has none.
    pub fn take_heard(&mut self, client: usize) -> Option<Option<Heard>> {
        self.heard.remove(&client)
    }

    /// A person goes on with a copy in which writes of a key may be missing.
    pub fn give_up(&mut self, key: KeyAt) {
        if let Some(history) = self.histories.get_mut(&key) {
            let asked = std::mem::take(&mut history.asked);
            *history = History { asked, ..History::default() };
        }
        let begun = self.open.values_mut().filter(|open| open.key == key);
        begun.for_each(|open| open.floor = Known::default());
    }

    /// D1: what was acknowledged, and not taken away, is in the list that is there in the end.
    pub fn at_the_end(&self, last: impl Fn(KeyAt) -> Option<Vec<Op>>) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (key, history) in &self.histories {
            let list = last(*key).unwrap_or_default();
            let lost = history
                .acknowledged
                .iter()
                .find(|(op, at)| !list.contains(op) && !history.may_be_removed(**at, None));
            findings.extend(lost.map(|(op, at)| {
                ("D1", format!("op {op} was appended to the list of {key:?} at {at}, and is not in {list:?}"))
            }));
        }
        findings
    }
}

fn seen_of(row: Option<&Row>) -> (Option<LogPosition>, Vec<Op>) {
    (row.map(|row| row.version), row.map(|row| elements(&row.value)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::Epoch;

    const KEY: KeyAt = KeyAt { keyspace: 3, key: 4 };

    fn at(index: u64) -> LogPosition {
        LogPosition { epoch: Epoch(1), index }
    }

    /// What a client sees that reads this.
    fn row(index: u64, list: &[Op]) -> RowSeen {
        RowSeen::Read(Some(Row { value: value(list), version: at(index), expires_ms: None }))
    }

    fn wrote(index: u64) -> RowSeen {
        RowSeen::Wrote(Outcome::Done { version: at(index), results: Vec::new() })
    }

    /// The invariants that are broken.
    fn broken(findings: Vec<Finding>) -> Vec<&'static str> {
        findings.into_iter().map(|(invariant, _)| invariant).collect()
    }

    /// The list 1, 2 at the versions 10 and 20; the numbers from 3 on are free.
    fn two() -> Lists {
        let mut lists = Lists::default();
        for (op, of, list) in [(1, None, vec![1]), (2, Some(at(10)), vec![1, 2])] {
            lists.begins(op, 0, KEY, Asked::Append(of, list));
            assert_eq!(broken(lists.done(op, &wrote(10 * op), true)), [""; 0]);
            assert_eq!(lists.ends(op), Some(0));
        }
        lists
    }

    fn read(lists: &mut Lists, op: Op, seen: &RowSeen, by_leader: bool) -> Vec<&'static str> {
        lists.begins(op, 1, KEY, Asked::Read);
        let findings = broken(lists.done(op, seen, by_leader));
        lists.ends(op);
        findings
    }

    #[test]
    fn d1_a_list_that_lost_an_element_or_has_another_order_is_found() {
        assert_eq!(read(&mut two(), 3, &row(20, &[1, 2]), true), [""; 0]);
        assert_eq!(read(&mut two(), 3, &row(20, &[2, 1]), true), ["D1"]);
        assert_eq!(read(&mut two(), 3, &row(30, &[1]), true), ["D1"]);
        assert_eq!(read(&mut two(), 3, &row(30, &[1, 2, 9]), true), ["D1"], "nobody has appended 9");
        assert_eq!(read(&mut two(), 3, &RowSeen::Read(None), true), ["D1"]);
        assert_eq!(broken(two().at_the_end(|_| Some(vec![1, 2]))), [""; 0]);
        assert_eq!(broken(two().at_the_end(|_| Some(vec![1]))), ["D1"]);
    }

    #[test]
    fn d2_a_leader_that_answers_an_earlier_list_is_found_and_a_replica_that_may_is_not() {
        assert_eq!(read(&mut two(), 3, &row(10, &[1]), true), ["D2"]);
        assert_eq!(read(&mut two(), 3, &row(10, &[1]), false), [""; 0]);
        let mut lists = two();
        lists.begins(3, 0, KEY, Asked::Read);
        lists.begins(4, 1, KEY, Asked::Append(Some(at(20)), vec![1, 2, 4]));
        assert_eq!(broken(lists.done(4, &wrote(30), true)), [""; 0]);
        assert_eq!(broken(lists.done(3, &row(20, &[1, 2]), true)), [""; 0], "it began before");
    }

    #[test]
    fn d2_two_writes_on_one_version_are_found() {
        let mut lists = two();
        lists.begins(3, 0, KEY, Asked::Append(Some(at(10)), vec![1, 3]));
        assert!(broken(lists.done(3, &wrote(30), true)).contains(&"D2"));
        let mut lists = two();
        lists.begins(3, 0, KEY, Asked::Append(Some(at(20)), vec![1, 2, 3]));
        let refused = RowSeen::Wrote(Outcome::NotMet { operation: 0, current: Some(at(20)) });
        assert_eq!(broken(lists.done(3, &refused, true)), ["D2"], "it is the version that was asked for");
    }

    #[test]
    fn d1_an_element_that_was_refused_is_found() {
        let mut lists = two();
        lists.begins(3, 0, KEY, Asked::Append(Some(at(10)), vec![1, 3]));
        let refused = RowSeen::Wrote(Outcome::NotMet { operation: 0, current: Some(at(20)) });
        assert_eq!(broken(lists.done(3, &refused, true)), [""; 0]);
        assert_eq!(read(&mut lists, 4, &row(30, &[1, 2, 3]), true), ["D1"]);
    }

    #[test]
    fn d3_a_list_that_comes_back_is_found() {
        let mut lists = two();
        lists.begins(3, 0, KEY, Asked::Remove(at(20)));
        assert_eq!(broken(lists.done(3, &wrote(30), true)), [""; 0]);
        assert_eq!(read(&mut lists, 4, &RowSeen::Read(None), true), [""; 0]);
        lists.begins(5, 0, KEY, Asked::Append(None, vec![5]));
        assert_eq!(broken(lists.done(5, &wrote(40), true)), [""; 0]);
        assert_eq!(
            broken(lists.at_the_end(|_| Some(vec![5]))),
            [""; 0],
            "what was taken away need not be there"
        );
        lists.begins(6, 0, KEY, Asked::Append(Some(at(40)), vec![5, 6]));
        assert!(read(&mut lists, 7, &row(50, &[1, 2]), true).contains(&"D3"));

        // It is not known whether it was done, until a leader finds that it was.
        let mut lists = two();
        lists.begins(3, 0, KEY, Asked::Remove(at(20)));
        lists.ends(3);
        assert_eq!(read(&mut lists, 4, &row(20, &[1, 2]), true), [""; 0]);
        assert_eq!(read(&mut lists, 5, &RowSeen::Read(None), true), [""; 0]);
        assert_eq!(read(&mut lists, 6, &row(20, &[1, 2]), true), ["D3"]);
    }
}
