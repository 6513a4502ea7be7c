//! The rows as one write sees them while it is applied: the stored rows, overlaid with what its operations have changed.

use super::{Action, Condition, Done, Expiry, Now, Operation, Record, Records, Refusal, Row, Value};
use crate::table::feed::Change;
use crate::table::replication::LogPosition;
use partage_core::keyspace::key::Key;
use partage_core::limits;
use std::collections::BTreeMap;

/// Why a write changes nothing.
pub(super) enum Stop<E> {
    /// The storage could not read a row.
    Storage(E),
    /// The condition of an operation does not hold; the row has this version.
    NotMet(Option<LogPosition>),
    /// It cannot be done on this row.
    Refused(Refusal),
}

/// A row before the write, and as it is now.
struct Changed {
    /// None also if it was not looked at.
    before: Option<Row>,
    now: Option<Row>,
    was_read: bool,
    /// The row is removed because its time has come.
    ended: bool,
}

pub(super) struct Draft<'a, R: Records> {
    records: &'a R,
    /// The shard's clock: a row whose time has come by it is absent.
    clock_ms: u64,
    /// The time of the write.
    at_ms: u64,
    version: LogPosition,
    changed: BTreeMap<Key, Changed>,
}

impl<'a, R: Records> Draft<'a, R> {
    /// The draft of a write of the time `at_ms`, when the shard's clock shows `clock_ms`.
    pub(super) fn new(records: &'a R, clock_ms: u64, at_ms: u64, version: LogPosition) -> Draft<'a, R> {
        Draft { records, clock_ms, at_ms, version, changed: BTreeMap::new() }
    }

    /// Does one operation, on the rows as those before it have left them.
    pub(super) fn carry_out(&mut self, operation: &Operation) -> Result<Done, Stop<R::Error>> {
        if let Some(done) = self.overwrite(operation) {
            return Ok(done);
        }
        let former = self.there(&operation.key).map_err(Stop::Storage)?;
        let version = former.as_ref().map(|row| row.version);
        let holds = match operation.condition {
            Condition::Always => true,
            Condition::Absent => version.is_none(),
            Condition::Present => version.is_some(),
            Condition::Version(wanted) => version == Some(wanted),
        };
        if !holds {
            return Err(Stop::NotMet(version));
        }
        let (now, number) = self.result(&operation.action, former.as_ref()).map_err(Stop::Refused)?;
        if now != former {
            self.put(&operation.key, now.clone()).map_err(Stop::Storage)?;
        }
        // A row written with a time that has already come is absent, also for this very write.
        let now = now.filter(|row| row.is_there(self.clock_ms));
        Ok(Done {
            existed: former.is_some() && !matches!(operation.action, Action::Overwrite(_)),
            former: former.filter(|_| operation.wants_former || operation.action == Action::Read),
            now: now.map(|row| Now { bytes: row.value.len(), number, expires_ms: row.expires_ms }),
        })
    }

    /// Replaces a row without a look at it, if nothing depends on what it was.
    fn overwrite(&mut self, Operation { key, condition, action, wants_former }: &Operation) -> Option<Done> {
        let Action::Overwrite(value) = action else { return None };
        let depends = *condition != Condition::Always
            || *wants_former
            || self.records.has_ends()
            || self.records.wants_former()
            || self.changed.contains_key(key);
        if depends {
            return None;
        }
        let row = Row { value: value.clone(), version: self.version, expires_ms: None };
        self.changed
            .insert(key.clone(), Changed { before: None, now: Some(row), was_read: false, ended: false });
        let now = Some(Now { bytes: value.len(), number: None, expires_ms: None });
        Some(Done { existed: false, former: None, now })
    }

    /// Removes rows whose time has come.
    pub(super) fn remove_ended(&mut self) -> Result<(), R::Error> {
        for (_, key) in self.records.ended(self.clock_ms, limits::EXPIRED_ROWS_REMOVED)? {
            if self.now(&key)?.is_some_and(|row| !row.is_there(self.clock_ms)) {
                self.put(&key, None)?;
                self.changed.entry(key).and_modify(|changed| changed.ended = true);
            }
        }
        Ok(())
    }

    /// The records to store, with the changes of rows if the table has a feed; and the former rows, if [`Records::wants_former`].
    pub(super) fn records(self) -> (Vec<Record>, Vec<Option<Row>>) {
        let (wants_former, keeps_changes) = (self.records.wants_former(), self.records.feed().is_some());
        let ends = |row: &Option<Row>| row.as_ref().and_then(|row| row.expires_ms);
        let (mut records, mut former) = (Vec::new(), Vec::new());
        for (key, Changed { before, now, was_read, ended: has_ended }) in self.changed {
            let (ended, ending) = (ends(&before), ends(&now));
            if ended != ending {
                records.extend(ended.map(|at| Record::Ends(at, key.clone(), false)));
                records.extend(ending.map(|at| Record::Ends(at, key.clone(), true)));
            }
            let has_changed = before != now || !was_read;
            if has_changed && keeps_changes {
                let change = Change::of(now.as_ref(), has_ended, self.clock_ms);
                records.push(Record::Change(self.version, key.clone(), Some(change)));
            }
            if has_changed {
                records.push(Record::Row(key, now));
                if wants_former {
                    former.push(before);
                }
            }
        }
        (records, former)
    }

    /// The row that an action makes of one, and the number that it then is.
    fn result(&self, action: &Action, former: Option<&Row>) -> Result<(Option<Row>, Option<i64>), Refusal> {
        let row = |value: Value, expiry: Expiry| {
            let expires_ms = match expiry {
                Expiry::AsBefore => former.and_then(|row| row.expires_ms),
                Expiry::Never => None,
                Expiry::At(end) => Some(end),
                Expiry::After(ttl_ms) => Some(self.at_ms.saturating_add(ttl_ms)),
            };
            Some(Row { value, version: self.version, expires_ms })
        };
        let bytes: &[u8] = former.map_or(&[], |row| &row.value);
        match action {
            Action::Read => Ok((former.cloned(), None)),
            Action::Put(value, expiry) => Ok((row(value.clone(), *expiry), None)),
            Action::Overwrite(value) => Ok((row(value.clone(), Expiry::Never), None)),
            Action::Delete => Ok((None, None)),
            Action::Expire(expiry) => {
                Ok((former.and_then(|former| row(former.value.clone(), *expiry)), None))
            }
            Action::Add(by) => {
                let number = former.map_or(Ok(0), |row| number(&row.value))?;
                let sum = number.checked_add(*by).ok_or(Refusal::Overflow)?;
                Ok((row(sum.to_string().into_bytes().into(), Expiry::AsBefore), Some(sum)))
            }
            Action::Append(more) if bytes.len() + more.len() > limits::VALUE_BYTES => Err(Refusal::TooLong),
            Action::Append(more) => Ok((row([bytes, more].concat().into(), Expiry::AsBefore), None)),
        }
    }

    /// The row of a key, if its time has not come.
    fn there(&self, key: &Key) -> Result<Option<Row>, R::Error> {
        Ok(self.now(key)?.filter(|row| row.is_there(self.clock_ms)))
    }

    fn now(&self, key: &Key) -> Result<Option<Row>, R::Error> {
        match self.changed.get(key) {
            Some(changed) => Ok(changed.now.clone()),
            None => self.records.row(key),
        }
    }

    fn put(&mut self, key: &Key, row: Option<Row>) -> Result<(), R::Error> {
        match self.changed.get_mut(key) {
            Some(changed) => {
                if !changed.was_read {
                    (changed.before, changed.was_read) = (self.records.row(key)?, true);
                }
                (changed.now, changed.ended) = (row, false);
            }
            None => {
                let before = self.records.row(key)?;
                self.changed.insert(key.clone(), Changed { before, now: row, was_read: true, ended: false });
            }
        }
        Ok(())
    }
}

/// The number that a value is: as Redis has it, without sign, spaces or zeros that could be left out.
fn number(value: &[u8]) -> Result<i64, Refusal> {
    let text = std::str::from_utf8(value).map_err(|_| Refusal::NotANumber)?;
    let number: i64 = text.parse().map_err(|_| Refusal::NotANumber)?;
    if number.to_string() == text { Ok(number) } else { Err(Refusal::NotANumber) }
}
