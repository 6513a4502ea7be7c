//! Carries out a command on rows.
//!
//! | the command has | it becomes |
//! |---|---|
//! | one key, a read | a read |
//! | one key, an operation | a write of one operation |
//! | one key, a condition that no operation has (`EXPIRE … GT`) | a read, and a write under the version that was read; again if that has changed |
//! | several keys of one partition, only reads | one read of all |
//! | several keys of one partition | one batch, all or nothing |
//! | several keys of several partitions, reads or `DEL` | each for itself, some at a time |
//! | several keys of several partitions, `MSET` | `CROSSSLOT` |

use crate::command::rows::{Combine, Rows, Step, StepAction, WriteReply};
use crate::error;
use crate::limits;
use crate::reply::Reply;
use crate::table::{BegunRead, RequestError, Table, reads};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use partage_core::keyspace::hash::crc16;
use partage_core::keyspace::key::Key;
use partage_core::limits::BATCH_OPERATIONS;
use partage_service::table::replication::Consistency;
use partage_service::table::rows::{Action, Condition, Operation, Outcome, Row, Write};
use std::sync::Arc;

/// How a command begins.
pub enum Started {
    /// The command has its answer at once.
    Done(Reply),
    /// The command is under way, and its answer comes later.
    UnderWay(BoxFuture<'static, Reply>),
}

/// Begins a command at that time of day: one that reads a row which the table has at hand is answered at once.
pub fn begin(table: Arc<dyn Table>, rows: Rows, consistency: Consistency, now_ms: u64) -> Started {
    let ([Step { key, does: StepAction::Read(how) }], Combine::One | Combine::Sum) =
        (rows.steps.as_slice(), rows.combine)
    else {
        return Started::UnderWay(async move { self::rows(&*table, &rows, consistency).await }.boxed());
    };
    let (key, how) = (key.clone(), *how);
    let row = match Arc::clone(&table).begin_read(key.clone(), consistency) {
        BegunRead::Now(row) => match settled(&*table, row, consistency) {
            Ok(row) => return Started::Done(how.answer(row, now_ms)),
            Err(Unsettled) => None,
        },
        BegunRead::Later(row) => Some(row),
    };
    let answer = async move {
        let row = match row {
            Some(row) => resolve(&*table, &key, row.await?, consistency).await?,
            None => read(&*table, &key, consistency).await?,
        };
        Ok::<_, RequestError>(how.answer(row, table.now_ms()))
    };
    Started::UnderWay(answer.map(|reply| reply.unwrap_or_else(|error| error::reply(&error))).boxed())
}

/// What a command is answered with.
pub async fn rows(table: &dyn Table, rows: &Rows, consistency: Consistency) -> Reply {
    if let ([step], Combine::One | Combine::Sum) = (rows.steps.as_slice(), rows.combine) {
        return one(table, step, consistency).await.unwrap_or_else(|error| error::reply(&error));
    }
    let answered = match several(table, rows, consistency).await {
        Ok(answered) => answered,
        Err(error) => return error::reply(&error),
    };
    match answered {
        Several::Answers(answers) => rows.combined(answers),
        Several::Whole(reply) => reply,
    }
}

/// Reads a row. One whose time has come by the clock of the listener is gone for a reader of any state; another reader lets a
/// write settle that, which has the time of the leader.
///
/// # Errors
/// Those of the table.
pub async fn read(
    table: &dyn Table,
    key: &Key,
    consistency: Consistency,
) -> Result<Option<Row>, RequestError> {
    let row = table.read(key, consistency).await?;
    resolve(table, key, row, consistency).await
}

/// What is there of a row that was read.
async fn resolve(
    table: &dyn Table,
    key: &Key,
    row: Option<Row>,
    consistency: Consistency,
) -> Result<Option<Row>, RequestError> {
    match settled(table, row, consistency) {
        Ok(row) => Ok(row),
        Err(Unsettled) => {
            let outcome = table.write(reads(vec![key.clone()])).await?;
            Ok(former(outcome).and_then(|mut rows| rows.pop().flatten()))
        }
    }
}

/// Reads rows of one partition as they were at one moment.
///
/// # Errors
/// Those of the table.
pub async fn read_all(
    table: &dyn Table,
    keys: Vec<Key>,
    consistency: Consistency,
) -> Result<Vec<Option<Row>>, RequestError> {
    if let [key] = keys.as_slice() {
        return Ok(vec![read(table, key, consistency).await?]);
    }
    let rows = table.read_all(keys.clone(), consistency).await?;
    let settled: Result<Vec<_>, Unsettled> =
        rows.into_iter().map(|row| settled(table, row, consistency)).collect();
    match settled {
        Ok(rows) => Ok(rows),
        Err(Unsettled) => {
            let count = keys.len();
            Ok(former(table.write(reads(keys)).await?).unwrap_or_else(|| vec![None; count]))
        }
    }
}

/// A row is there by the shard's clock, and gone by the listener's.
struct Unsettled;

fn settled(table: &dyn Table, row: Option<Row>, consistency: Consistency) -> Result<Option<Row>, Unsettled> {
    match row {
        // The clock is read for rows that end, and for no others.
        Some(row) if row.expires_ms.is_some() && !row.is_there(table.now_ms()) => match consistency {
            Consistency::Linearizable => Err(Unsettled),
            Consistency::Bounded(_) | Consistency::Any => Ok(None),
        },
        row => Ok(row),
    }
}

fn former(outcome: Outcome) -> Option<Vec<Option<Row>>> {
    match outcome {
        Outcome::Done { results, .. } => Some(results.into_iter().map(|done| done.former).collect()),
        // Reads have no conditions.
        Outcome::NotMet { .. } | Outcome::Refused { .. } | Outcome::RequestIdTaken => None,
    }
}

async fn one(table: &dyn Table, step: &Step, consistency: Consistency) -> Result<Reply, RequestError> {
    match &step.does {
        StepAction::Read(how) => {
            let row = read(table, &step.key, consistency).await?;
            Ok(how.answer(row, table.now_ms()))
        }
        StepAction::ExpireIf { at_ms, expiry, when } if !when.is_always() => {
            for _ in 0..limits::TRIES {
                let row = read(table, &step.key, Consistency::Linearizable).await?;
                let Some(row) = row.filter(|row| when.holds(row.expires_ms, *at_ms)) else {
                    return Ok(Reply::Integer(0));
                };
                let expire = Operation {
                    key: step.key.clone(),
                    condition: Condition::Version(row.version),
                    action: Action::Expire(*expiry),
                    wants_former: false,
                };
                match table.write(write(vec![expire])).await? {
                    Outcome::NotMet { .. } => {}
                    Outcome::Done { .. } => return Ok(Reply::Integer(1)),
                    other => return Ok(error::unexpected(&other)),
                }
            }
            Err(changed_too_often())
        }
        StepAction::Write { condition: Condition::Absent, answer: WriteReply::Former, .. } => {
            for _ in 0..limits::TRIES {
                let reply = operation(table, step).await?;
                if !matches!(reply, Answer::NotMet) {
                    return Ok(reply.of(step));
                }
                // The row that was in the way: if it has gone meanwhile, the write is tried again.
                if let Some(row) = read(table, &step.key, Consistency::Linearizable).await? {
                    return Ok(Reply::Value(row.value));
                }
            }
            Err(changed_too_often())
        }
        _ => Ok(operation(table, step).await?.of(step)),
    }
}

/// What one operation has come to.
enum Answer {
    Done(Reply),
    NotMet,
}

impl Answer {
    fn of(self, step: &Step) -> Reply {
        match self {
            Answer::Done(reply) => reply,
            Answer::NotMet => step.not_met(),
        }
    }
}

async fn operation(table: &dyn Table, step: &Step) -> Result<Answer, RequestError> {
    let Some(operation) = step.operation() else { return Ok(Answer::Done(error::syntax())) };
    Ok(match table.write(write(vec![operation])).await? {
        Outcome::Done { mut results, .. } => match results.pop() {
            Some(done) => Answer::Done(step.done(done, table.now_ms())),
            None => Answer::Done(error::unexpected(&Outcome::RequestIdTaken)),
        },
        Outcome::NotMet { .. } => Answer::NotMet,
        Outcome::Refused { refusal, .. } => Answer::Done(error::refusal(refusal)),
        other @ Outcome::RequestIdTaken => Answer::Done(error::unexpected(&other)),
    })
}

/// The answers of several steps, or one for all.
enum Several {
    Answers(Vec<Reply>),
    Whole(Reply),
}

async fn several(table: &dyn Table, rows: &Rows, consistency: Consistency) -> Result<Several, RequestError> {
    let keys = || rows.steps.iter().map(|step| &step.key);
    if table.has_slots() && !are_alike(keys(), |key| crc16::slot(crc16::hash_tag(key.as_bytes()))) {
        return Ok(Several::Whole(error::cross_slot()));
    }
    let by = table.partition_key();
    let is_one = are_alike(keys(), |key| by.of(key.as_bytes()));
    let is_all_or_nothing = matches!(rows.combine, Combine::Ok | Combine::Flag);
    if !is_one && is_all_or_nothing {
        return Ok(Several::Whole(error::cross_slot()));
    }
    if rows.only_reads() {
        return Ok(Several::Answers(read_many(table, rows, consistency, is_one).await?));
    }
    if is_one && (is_all_or_nothing || rows.steps.len() <= BATCH_OPERATIONS) {
        return batch(table, rows).await;
    }
    // Boxed, since the compiler does not see that futures of borrowed steps can be sent.
    let mut each: Vec<BoxFuture<'_, Result<Reply, RequestError>>> = Vec::with_capacity(rows.steps.len());
    for step in &rows.steps {
        each.push(one(table, step, consistency).boxed());
    }
    let answers: Vec<_> = stream::iter(each).buffered(limits::ROWS_AT_ONCE).collect().await;
    Ok(in_part(answers))
}

/// Each row for itself, of which some may have failed.
fn in_part(answers: Vec<Result<Reply, RequestError>>) -> Several {
    let (all, failed) = (answers.len(), answers.iter().filter(|answer| answer.is_err()).count());
    if failed == 0 {
        return Several::Answers(answers.into_iter().flatten().collect());
    }
    let mut errors = answers.into_iter().filter_map(Result::err);
    let first = errors.next();
    // What may have been done makes the outcome of all of it unknown.
    let unknown = first.iter().cloned().chain(errors).find(|error| matches!(error, RequestError::Unknown(_)));
    let worst = match unknown.or(first) {
        Some(error) if failed == all => error,
        Some(error) => {
            let done = all - failed;
            RequestError::Unknown(format!("{done} of {all} keys are done, and of another one: {error}"))
        }
        None => return Several::Answers(Vec::new()),
    };
    Several::Whole(error::reply(&worst))
}

async fn read_many(
    table: &dyn Table,
    rows: &Rows,
    consistency: Consistency,
    is_one: bool,
) -> Result<Vec<Reply>, RequestError> {
    let (mut answers, mut bytes) = (Vec::with_capacity(rows.steps.len()), 0);
    let now_ms = table.now_ms();
    let mut answer = |step: &Step, row: Option<Row>| {
        let StepAction::Read(how) = step.does else { return Ok(()) };
        let reply = how.answer(row, now_ms);
        bytes += reply.bytes();
        answers.push(reply);
        if bytes > limits::MANY_BYTES {
            let text =
                format!("the values have more than {} bytes: ask for fewer at a time", limits::MANY_BYTES);
            return Err(RequestError::Invalid(text));
        }
        Ok(())
    };
    if is_one && rows.steps.len() <= BATCH_OPERATIONS {
        let keys = rows.steps.iter().map(|step| step.key.clone()).collect();
        let found = read_all(table, keys, consistency).await?;
        rows.steps.iter().zip(found).try_for_each(|(step, row)| answer(step, row))?;
    } else {
        let mut each: Vec<BoxFuture<'_, Result<Option<Row>, RequestError>>> =
            Vec::with_capacity(rows.steps.len());
        for step in &rows.steps {
            each.push(read(table, &step.key, consistency).boxed());
        }
        let mut found = stream::iter(each).buffered(limits::ROWS_AT_ONCE);
        for step in &rows.steps {
            let Some(row) = found.next().await else { break };
            answer(step, row?)?;
        }
    }
    Ok(answers)
}

async fn batch(table: &dyn Table, rows: &Rows) -> Result<Several, RequestError> {
    let operations: Option<Vec<Operation>> = rows.steps.iter().map(Step::operation).collect();
    let Some(operations) = operations else { return Ok(Several::Whole(error::syntax())) };
    let now_ms = table.now_ms();
    Ok(match table.write(write(operations)).await? {
        Outcome::Done { results, .. } => {
            let done = rows.steps.iter().zip(results).map(|(step, done)| step.done(done, now_ms));
            Several::Answers(done.collect())
        }
        Outcome::NotMet { .. } => Several::Whole(Reply::Integer(0)),
        Outcome::Refused { refusal, .. } => Several::Whole(error::refusal(refusal)),
        other @ Outcome::RequestIdTaken => Several::Whole(error::unexpected(&other)),
    })
}

/// Whether all keys have the same of something.
pub fn are_alike<'a, T: PartialEq>(
    mut keys: impl Iterator<Item = &'a Key>,
    of: impl Fn(&'a Key) -> T,
) -> bool {
    let Some(first) = keys.next() else { return true };
    let first = of(first);
    keys.all(|key| of(key) == first)
}

/// A write of these operations; the leader sets its time.
pub fn write(operations: Vec<Operation>) -> Write {
    Write { at_ms: 0, request: None, operations }
}

/// A row changes faster than it can be read and written.
pub fn changed_too_often() -> RequestError {
    RequestError::Busy(format!(
        "others changed the row {} times between its read and its write",
        limits::TRIES
    ))
}
