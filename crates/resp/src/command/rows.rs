//! Commands on rows: steps, each on one row, and how their answers become one.

use crate::error;
use crate::reply::Reply;
use partage_core::keyspace::key::Key;
use partage_service::table::rows::{Action, Condition, Done, Expiry, Operation, Row};

/// A command on rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rows {
    /// In the order of the command's keys; one or more.
    pub steps: Vec<Step>,
    /// How the answers of the steps become that of the command.
    pub combine: Combine,
}

/// How several answers become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combine {
    /// There is only one.
    One,
    /// Their sum, of numbers.
    Sum,
    /// All of them, in order.
    All,
    /// `OK`, when all are done as one.
    Ok,
    /// 1 when all are done as one, 0 when a condition did not hold.
    Flag,
}

/// One step: an action on one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub key: Key,
    pub does: StepAction,
}

/// The action of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepAction {
    /// Reads the row, and answers this of it.
    Read(ReadReply),
    /// Carries out an operation on the row.
    Write {
        /// If it does not hold, nothing is done, and the answer says so.
        condition: Condition,
        action: Action,
        /// How the outcome of the operation becomes an answer.
        answer: WriteReply,
    },
    /// Sets the row's expiry, if the present one allows that.
    ExpireIf {
        /// In milliseconds of Unix time, by the clock of the listener: what `when` compares.
        at_ms: u64,
        /// What the operation writes; a relative time counts by the clock of the leader.
        expiry: Expiry,
        /// The condition on the expiry that the row has.
        when: ExpireWhen,
    },
}

/// The answer from a row that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadReply {
    /// The value, or null of a row that is not there.
    Value,
    /// The length of its value.
    Length,
    /// A part of its value: from and to, counted from the end where they are negative.
    Part(i64, i64),
    /// 1 if there is a row, 0 if there is none.
    Exists,
    /// The word `string`, or `none` of a row that is not there.
    Type,
    /// How long it lives on, in seconds.
    Seconds,
    /// The same in milliseconds.
    Milliseconds,
    /// When it ends, in seconds.
    EndsSeconds,
    /// The same in milliseconds.
    EndsMilliseconds,
}

/// The answer after an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteReply {
    /// `OK`; nothing, if its condition did not hold.
    Ok,
    /// The value before, also if its condition did not hold.
    Former,
    /// 1; 0, if its condition did not hold.
    Flag,
    /// Whether there was a row.
    Existed,
    /// Whether there was a row that would have ended.
    HadEnd,
    /// The number that it is now.
    Number,
    /// The length that it has now.
    Length,
}

/// The options of `EXPIRE`: what must hold of the expiry that a row has. All that are set must.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpireWhen {
    /// `NX`: the row has no expiry.
    pub is_none: bool,
    /// `XX`: the row has an expiry.
    pub is_some: bool,
    /// `GT`: the new one is later. None is later than any.
    pub is_later: bool,
    /// `LT`: the new one is earlier.
    pub is_earlier: bool,
}

impl ExpireWhen {
    /// Whether there is no condition.
    pub fn is_always(self) -> bool {
        self == ExpireWhen::default()
    }

    /// Whether a row with this expiry gets the new one.
    pub fn holds(self, old: Option<u64>, new: u64) -> bool {
        !(self.is_none && old.is_some()
            || self.is_some && old.is_none()
            || self.is_later && old.is_none_or(|old| new <= old)
            || self.is_earlier && old.is_some_and(|old| new >= old))
    }
}

impl Rows {
    /// A command on one row.
    pub fn one(key: Key, does: StepAction) -> Rows {
        Rows { steps: vec![Step { key, does }], combine: Combine::One }
    }

    /// Whether it changes nothing.
    pub fn only_reads(&self) -> bool {
        self.steps.iter().all(|step| matches!(step.does, StepAction::Read(_)))
    }

    /// What the client is answered, when all steps were.
    pub fn combined(&self, mut answers: Vec<Reply>) -> Reply {
        if let Some(at) = answers.iter().position(Reply::is_error) {
            return answers.swap_remove(at);
        }
        let number = |reply: &Reply| if let Reply::Integer(number) = reply { *number } else { 0 };
        match self.combine {
            Combine::One => answers.pop().unwrap_or(Reply::Null),
            Combine::Sum => Reply::Integer(answers.iter().map(number).sum()),
            Combine::All => Reply::Array(answers),
            Combine::Ok => Reply::OK,
            Combine::Flag => Reply::Integer(1),
        }
    }
}

impl Step {
    /// The time to live that the step gives its row, counted by the clock of the leader; none: it gives none.
    pub fn ttl_ms(&self) -> Option<u64> {
        let expiry = match &self.does {
            StepAction::Write { action: Action::Put(_, expiry) | Action::Expire(expiry), .. }
            | StepAction::ExpireIf { expiry, .. } => expiry,
            StepAction::Read(_) | StepAction::Write { .. } => return None,
        };
        if let Expiry::After(ttl_ms) = expiry { Some(*ttl_ms) } else { None }
    }

    /// The operation of the step, if one suffices, without regard to the other steps.
    pub fn operation(&self) -> Option<Operation> {
        let (condition, action, wants_former) = match &self.does {
            StepAction::Read(_) => (Condition::Always, Action::Read, true),
            StepAction::Write { condition, action, answer } => {
                (*condition, action.clone(), matches!(answer, WriteReply::Former | WriteReply::HadEnd))
            }
            StepAction::ExpireIf { expiry, when, .. } if when.is_always() => {
                (Condition::Always, Action::Expire(*expiry), false)
            }
            StepAction::ExpireIf { .. } => return None,
        };
        Some(Operation { key: self.key.clone(), condition, action, wants_former })
    }

    /// What is answered when the operation is done.
    pub fn done(&self, done: Done, now_ms: u64) -> Reply {
        let former = done.former;
        match &self.does {
            StepAction::Read(read) => read.answer(former, now_ms),
            StepAction::ExpireIf { .. } => Reply::flag(done.existed),
            StepAction::Write { answer, .. } => match answer {
                WriteReply::Ok => Reply::OK,
                WriteReply::Former => former.map_or(Reply::Null, |row| Reply::Value(row.value)),
                WriteReply::Flag => Reply::Integer(1),
                WriteReply::Existed => Reply::flag(done.existed),
                WriteReply::HadEnd => Reply::flag(former.is_some_and(|row| row.expires_ms.is_some())),
                WriteReply::Number => done.now.and_then(|now| now.number).map_or(Reply::Null, Reply::Integer),
                WriteReply::Length => Reply::Integer(done.now.map_or(0, |now| now.bytes as i64)),
            },
        }
    }

    /// What is answered when its condition did not hold.
    pub fn not_met(&self) -> Reply {
        match &self.does {
            StepAction::Write { answer: WriteReply::Flag, .. } | StepAction::ExpireIf { .. } => {
                Reply::Integer(0)
            }
            _ => Reply::Null,
        }
    }
}

impl ReadReply {
    /// What is answered for a row, or that there is none.
    pub fn answer(self, row: Option<Row>, now_ms: u64) -> Reply {
        let Some(row) = row else { return self.absent() };
        let length = row.value.len();
        let end = row.expires_ms.map(|end| i64::try_from(end).unwrap_or(i64::MAX));
        let left = end.map(|end| end.saturating_sub(i64::try_from(now_ms).unwrap_or(i64::MAX)).max(0));
        let or_never = |number: Option<i64>| Reply::Integer(number.unwrap_or(-1));
        match self {
            ReadReply::Value => Reply::Value(row.value),
            ReadReply::Length => Reply::Integer(length as i64),
            ReadReply::Part(from, to) => {
                let from_end = |at: i64| if at < 0 { (at + length as i64).max(0) } else { at };
                let is_reversed = from < 0 && to < 0 && from > to;
                let (from, to) = (from_end(from), from_end(to).min(length as i64 - 1));
                if is_reversed || from > to || length == 0 {
                    return Reply::Bytes(Vec::new());
                }
                Reply::Part(row.value, from as usize..to as usize + 1)
            }
            ReadReply::Exists => Reply::Integer(1),
            ReadReply::Type => Reply::Word("string"),
            ReadReply::Seconds => or_never(left.map(|left| left.saturating_add(500) / 1_000)),
            ReadReply::Milliseconds => or_never(left),
            ReadReply::EndsSeconds => or_never(end.map(|end| end.saturating_add(500) / 1_000)),
            ReadReply::EndsMilliseconds => or_never(end),
        }
    }

    fn absent(self) -> Reply {
        match self {
            ReadReply::Value => Reply::Null,
            ReadReply::Length | ReadReply::Exists => Reply::Integer(0),
            ReadReply::Part(..) => Reply::Bytes(Vec::new()),
            ReadReply::Type => Reply::Word("none"),
            ReadReply::Seconds
            | ReadReply::Milliseconds
            | ReadReply::EndsSeconds
            | ReadReply::EndsMilliseconds => Reply::Integer(-2),
        }
    }
}

/// The key that a client gave.
///
/// # Errors
/// The key is longer than a key may be.
pub fn key(bytes: &[u8]) -> Result<Key, Reply> {
    Key::new(bytes).map_err(Reply::error)
}

/// A number that a client gave.
///
/// # Errors
/// The bytes are no number.
pub fn number(bytes: &[u8]) -> Result<i64, Reply> {
    crate::request::number(bytes).ok_or_else(error::not_a_number)
}
