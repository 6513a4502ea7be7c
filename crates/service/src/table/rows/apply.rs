//! One write, applied; and one row, read.

use super::draft::{Draft, Stop};
use super::{Answered, Outcome, Record, Records, Request, RequestId, Row, Standing, Write};
use crate::table::feed;
use crate::table::replication::LogPosition;
use partage_core::base::planted::{self, Planted};
use partage_core::keyspace::key::Key;
use partage_core::limits;

/// What follows from an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The outcome that the client gets.
    pub outcome: Outcome,
    /// What is to be stored, in this order, all or nothing.
    pub records: Vec<Record>,
    /// What the rows were that are among the records, in their order: only if [`Records::wants_former`] says so.
    pub former: Vec<Option<Row>>,
    /// How many outcomes are forgotten before [`limits::ANSWER_KEPT_MS`] have passed, as there were more than
    /// [`limits::ANSWERS_KEPT`]: such a request, sent again, is carried out again.
    pub forgotten_early: u64,
}

/// Applies the write of the entry at `version` to what is stored. Every replica calls it with the same entries in the same order.
pub fn apply<R: Records>(records: &R, version: LogPosition, write: &Write) -> Result<Applied, R::Error> {
    let mut standing = records.standing()?;
    if standing.clock_ms < write.at_ms || planted::is(Planted::ExpiryBack) {
        standing.clock_ms = write.at_ms;
    }
    let first = write.request.map(|request| first_outcome(records, request)).transpose()?.flatten();
    let is_first = first.is_none();
    let (outcome, mut draft) = match first {
        Some(outcome) => (outcome, Draft::new(records, standing.clock_ms, write.at_ms, version)),
        None => carry_out(records, standing.clock_ms, version, write)?,
    };
    draft.remove_ended()?;
    let (mut changes, former) = draft.records();
    if let Some(settings) = records.feed() {
        changes.extend(feed::remove_old(records, settings, standing.clock_ms, &changes)?);
    }
    if let Some(request) = write.request.filter(|_| is_first) {
        standing.answers += 1;
        let answered =
            Answered { at_ms: standing.clock_ms, fingerprint: request.fingerprint, outcome: outcome.clone() };
        changes.push(Record::Answer(request.id, Some(answered)));
        changes.push(Record::AnswerOf(standing.clock_ms, request.id, true));
    }
    let mut forgotten_early = 0;
    for (at_ms, id) in forgotten(records, standing)? {
        standing.answers -= 1;
        forgotten_early += u64::from(!is_old(at_ms, standing));
        changes.push(Record::Answer(id, None));
        changes.push(Record::AnswerOf(at_ms, id, false));
    }
    if standing != records.standing()? {
        changes.push(Record::Standing(standing));
    }
    Ok(Applied { outcome, records: changes, former, forgotten_early })
}

/// Reads a row as the shard's clock has it: none if there is none, or its time has come.
pub fn read<R: Records>(records: &R, key: &Key) -> Result<Option<Row>, R::Error> {
    let clock_ms = records.standing()?.clock_ms;
    Ok(records.row(key)?.filter(|row| row.is_there(clock_ms)))
}

/// What was answered when the request came before.
fn first_outcome<R: Records>(records: &R, request: Request) -> Result<Option<Outcome>, R::Error> {
    let answered = records.answer(&request.id)?;
    Ok(answered.map(|answered| {
        if answered.fingerprint == request.fingerprint { answered.outcome } else { Outcome::RequestIdTaken }
    }))
}

/// Does all operations, or none.
fn carry_out<'a, R: Records>(
    records: &'a R,
    clock_ms: u64,
    version: LogPosition,
    write: &Write,
) -> Result<(Outcome, Draft<'a, R>), R::Error> {
    let mut draft = Draft::new(records, clock_ms, write.at_ms, version);
    let mut results = Vec::with_capacity(write.operations.len());
    for (at, operation) in write.operations.iter().enumerate() {
        let outcome = match draft.carry_out(operation) {
            Ok(done) => {
                results.push(done);
                continue;
            }
            Err(Stop::Storage(error)) => return Err(error),
            Err(Stop::NotMet(current)) => Outcome::NotMet { operation: at, current },
            Err(Stop::Refused(refusal)) => Outcome::Refused { operation: at, refusal },
        };
        return Ok((outcome, Draft::new(records, clock_ms, write.at_ms, version)));
    }
    Ok((Outcome::Done { version, results }, draft))
}

/// The outcomes that are kept no longer: those whose time has come, and the oldest of too many. Some at a time.
fn forgotten<R: Records>(records: &R, standing: Standing) -> Result<Vec<(u64, RequestId)>, R::Error> {
    let beyond = standing.answers.saturating_sub(limits::ANSWERS_KEPT);
    let mut oldest = records.answers(u64::MAX, limits::ANSWERS_FORGOTTEN)?;
    let ended = oldest.iter().take_while(|(at_ms, _)| is_old(*at_ms, standing)).count();
    oldest.truncate(ended.max(usize::try_from(beyond).unwrap_or(usize::MAX)));
    Ok(oldest)
}

/// Whether an outcome of that time has been kept for as long as outcomes are.
fn is_old(at_ms: u64, standing: Standing) -> bool {
    at_ms.saturating_add(limits::ANSWER_KEPT_MS) <= standing.clock_ms
}
