//! The rule by which the simulator judges its histories, for those of real processes: the versions of a key's rows are the order
//! in which its writes took effect, so a history is linearizable when nobody is told a version below one that any client knew
//! before it began.
//!
//! It takes each operation once, needs no search, and says which invariant broke. Porcupine, which looks at values and times
//! alone, judges the same history beside it.

use crate::history::{Kind, Operation, Outcome, Version};
use std::collections::BTreeMap;

/// What is wrong in a history, a sentence each; none if it holds.
pub fn findings(history: &[Operation]) -> Vec<String> {
    let mut keys: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for one in history {
        keys.entry(&one.key).or_default().push(one);
    }
    keys.into_values().flat_map(|of_key| Register::new(of_key).findings()).collect()
}

/// The history of one key.
struct Register<'a> {
    history: Vec<&'a Operation>,
    /// The operation that wrote a value.
    writers: BTreeMap<&'a str, &'a Operation>,
    /// The version of a value, from the answers to clients.
    versions: BTreeMap<&'a str, Version>,
    /// What has changed the key, by version: none is a delete.
    changes: BTreeMap<Version, Option<&'a str>>,
    /// When a client first knew of this version or a later one, by time.
    known: Vec<(u64, Version)>,
    findings: Vec<String>,
}

impl<'a> Register<'a> {
    fn new(history: Vec<&'a Operation>) -> Register<'a> {
        let mut register = Register {
            history,
            writers: BTreeMap::new(),
            versions: BTreeMap::new(),
            changes: BTreeMap::new(),
            known: Vec::new(),
            findings: Vec::new(),
        };
        register.learn_writers();
        register.learn_versions();
        register.learn_when();
        register
    }

    fn finds(&mut self, rule: &str, one: &Operation, what: &str) {
        self.findings.push(format!("{rule}: {what}: {}", serde_json::to_string(one).unwrap()));
    }

    fn learn_writers(&mut self) {
        for one in self.history.iter().copied().filter(|one| one.writes_a_row()) {
            let value = one.value.as_deref().expect("a write has a value");
            assert!(self.writers.insert(value, one).is_none(), "{value} is written twice: {one:?}");
        }
    }

    /// The value whose version the answer to an operation gives.
    fn told(one: &Operation) -> Option<&str> {
        match (one.outcome, one.kind) {
            (Outcome::Ok, Kind::Get) => one.found.as_deref(),
            (Outcome::Ok, Kind::Put | Kind::Swap | Kind::Create) => one.value.as_deref(),
            _ => None,
        }
    }

    fn learn_versions(&mut self) {
        for one in self.history.clone() {
            let Some(version) = one.version.filter(|_| one.outcome == Outcome::Ok) else { continue };
            let value = Register::told(one);
            if let Some(value) = value
                && *self.versions.entry(value).or_insert(version) != version
            {
                self.finds("D1", one, "another version of this value was told before");
            }
            let known = self.changes.insert(version, value);
            if let Some(other) = known
                && (other != value || one.kind == Kind::Delete)
            {
                self.finds("D1", one, &format!("{other:?} has the same version"));
            }
        }
    }

    /// The version of the row, or of the delete, that an operation has made or found.
    fn version_of(&self, one: &Operation) -> Option<Version> {
        let by_value = || self.versions.get(Register::told(one)?).copied();
        one.version.filter(|_| one.outcome == Outcome::Ok).or_else(by_value)
    }

    fn learn_when(&mut self) {
        let versions = self.history.iter().filter_map(|one| Some((one.end, self.version_of(one)?)));
        let mut known: Vec<(u64, Version)> = versions.collect();
        known.sort_unstable();
        let mut highest = (0, 0);
        for (_, version) in &mut known {
            highest = highest.max(*version);
            *version = highest;
        }
        self.known = known;
    }

    /// The latest version that any client knew before that time.
    fn floor(&self, time: u64) -> Option<Version> {
        let before = self.known.partition_point(|(since, _)| *since < time);
        Some(self.known[before.checked_sub(1)?].1)
    }

    /// Whether a change of that kind, other than `one`, may have taken effect after `floor` and before `one` had ended.
    fn may_be_after(
        &self,
        floor: Option<Version>,
        one: &Operation,
        is_of_kind: impl Fn(&Operation) -> bool,
    ) -> bool {
        let is_late =
            |other: &Operation| match self.version_of(other).or_else(|| self.version_by_value(other)) {
                Some(version) => Some(version) > floor,
                None => true,
            };
        self.history.iter().any(|other| {
            !std::ptr::eq(*other, one)
                && other.may_change()
                && is_of_kind(other)
                && other.start <= one.end
                && is_late(other)
        })
    }

    /// Of a write whose outcome its client does not know, and another has seen.
    fn version_by_value(&self, one: &Operation) -> Option<Version> {
        self.versions.get(one.value.as_deref()?).copied()
    }

    fn findings(mut self) -> Vec<String> {
        for one in self.history.clone() {
            match (one.outcome, one.kind) {
                (Outcome::Refused | Outcome::Unknown, _) => {}
                (Outcome::NotMet, _) => self.not_met(one),
                (Outcome::Ok, Kind::Get) => self.read(one),
                (Outcome::Ok, _) => self.written(one),
            }
        }
        self.findings
    }

    fn read(&mut self, one: &Operation) {
        let floor = self.floor(one.start);
        let Some(value) = one.found.as_deref() else {
            let was_row = floor.is_some_and(|floor| self.changes[&floor].is_some());
            if was_row && !self.may_be_after(floor, one, |other| other.kind == Kind::Delete) {
                self.finds("D1", one, &format!("no row is found, and {floor:?} was known and never deleted"));
            }
            return;
        };
        match self.writers.get(value) {
            None => return self.finds("D1", one, "nobody wrote this value"),
            Some(writer) if !writer.may_change() => {
                return self.finds("D1", one, "its write was said not to be done");
            }
            Some(writer) if writer.start > one.end => {
                return self.finds("D2", one, "its write began only afterwards");
            }
            Some(_) => {}
        }
        let version = self.version_of(one);
        if version.is_some() && version < floor {
            let was_deleted = floor.is_some_and(|floor| self.changes[&floor].is_none());
            let rule = if was_deleted { "D3" } else { "D2" };
            self.finds(rule, one, &format!("{version:?} is found after {floor:?} was known"));
        }
    }

    fn written(&mut self, one: &Operation) {
        let Some(version) = self.version_of(one) else { return };
        let floor = self.floor(one.start);
        if Some(version) <= floor {
            self.finds("D2", one, &format!("it is written below {floor:?}, which was known before"));
        }
        let before = self.changes.range(..version).next_back().map(|(version, value)| (*version, *value));
        match one.kind {
            Kind::Swap if before.and_then(|(_, value)| value) != one.expected.as_deref() => {
                self.finds("D2", one, &format!("it takes the place of {before:?}, not of what it expects"));
            }
            Kind::Create => {
                let floor = before.map(|(version, _)| version);
                let was_row = before.is_some_and(|(_, value)| value.is_some());
                if was_row && !self.may_be_after(floor, one, |other| other.kind == Kind::Delete) {
                    self.finds("D2", one, &format!("it is created where there is {before:?}"));
                }
            }
            _ => {}
        }
    }

    /// The condition did not hold at some time between begin and end.
    fn not_met(&mut self, one: &Operation) {
        let floor = self.floor(one.start);
        let there = floor.and_then(|floor| self.changes[&floor]);
        let held = match one.kind {
            Kind::Swap => there.is_some() && there == one.expected.as_deref(),
            _ => there.is_none(),
        };
        let changes = |other: &Operation| one.kind == Kind::Swap || other.writes_a_row();
        if held && !self.may_be_after(floor, one, changes) {
            self.finds("D2", one, "its condition held all the time, and it was told that it did not");
        }
    }
}
