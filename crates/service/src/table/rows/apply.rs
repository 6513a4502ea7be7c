//! Applies one write, and reads one row.

use super::draft::{Draft, Stop};
use super::{KeptOutcome, Outcome, Record, Records, Request, RequestId, Row, ShardState, Write};
use crate::table::feed;
use crate::table::replication::LogPosition;
use partage_core::base::planted::{self, Planted};
use partage_core::keyspace::key::Key;
use partage_core::limits;

/// The result of applying an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The outcome that the client gets.
    pub outcome: Outcome,
    /// The records to store, in this order, all or nothing.
    pub records: Vec<Record>,
    /// What the rows were that are among the records, in their order: only if [`Records::wants_former`] says so.
    pub former: Vec<Option<Row>>,
    /// How many outcomes are forgotten before [`limits::ANSWER_KEPT_MS`] have passed, as there were more than
    /// [`limits::ANSWERS_KEPT`]: such a request, sent again, is carried out again.
    pub forgotten_early: u64,
}

/// Applies the write of the entry at `version` to what is stored. Every replica calls it with the same entries in the same order.
pub fn apply<R: Records>(records: &R, version: LogPosition, write: &Write) -> Result<Applied, R::Error> {
    let mut shard_state = records.shard_state()?;
    if shard_state.clock_ms < write.at_ms || planted::is(Planted::ExpiryBack) {
        shard_state.clock_ms = write.at_ms;
    }
    let first = write.request.map(|request| first_outcome(records, request)).transpose()?.flatten();
    let is_first = first.is_none();
    let (outcome, mut draft) = match first {
        Some(outcome) => (outcome, Draft::new(records, shard_state.clock_ms, write.at_ms, version)),
        None => carry_out(records, shard_state.clock_ms, version, write)?,
    };
    draft.remove_ended()?;
    let (mut changes, former) = draft.records();
    if let Some(settings) = records.feed() {
        changes.extend(feed::remove_old(records, settings, shard_state.clock_ms, &changes)?);
    }
    if let Some(request) = write.request.filter(|_| is_first) {
        shard_state.outcomes += 1;
        let answered = KeptOutcome {
            at_ms: shard_state.clock_ms,
            fingerprint: request.fingerprint,
            outcome: outcome.clone(),
        };
        changes.push(Record::Outcome(request.id, Some(answered)));
        changes.push(Record::OutcomeTime(shard_state.clock_ms, request.id, true));
    }
    let mut forgotten_early = 0;
    for (at_ms, id) in forgotten(records, shard_state)? {
        shard_state.outcomes -= 1;
        forgotten_early += u64::from(!is_old(at_ms, shard_state));
        changes.push(Record::Outcome(id, None));
        changes.push(Record::OutcomeTime(at_ms, id, false));
    }
    if shard_state != records.shard_state()? {
        changes.push(Record::ShardState(shard_state));
    }
    Ok(Applied { outcome, records: changes, former, forgotten_early })
}

/// Reads a row as the shard's clock has it: none if there is none, or its time has come.
pub fn read<R: Records>(records: &R, key: &Key) -> Result<Option<Row>, R::Error> {
    let clock_ms = records.shard_state()?.clock_ms;
    Ok(records.row(key)?.filter(|row| row.is_there(clock_ms)))
}

/// The outcome of the first write with this request id.
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

/// The outcomes to forget: those whose time has come, and the oldest beyond the limit, some at a time.
fn forgotten<R: Records>(records: &R, shard_state: ShardState) -> Result<Vec<(u64, RequestId)>, R::Error> {
    let beyond = shard_state.outcomes.saturating_sub(limits::ANSWERS_KEPT);
    let mut oldest = records.answers(u64::MAX, limits::ANSWERS_FORGOTTEN)?;
    let ended = oldest.iter().take_while(|(at_ms, _)| is_old(*at_ms, shard_state)).count();
    oldest.truncate(ended.max(usize::try_from(beyond).unwrap_or(usize::MAX)));
    Ok(oldest)
}

/// Whether an outcome of that time has been kept for as long as outcomes are.
fn is_old(at_ms: u64, shard_state: ShardState) -> bool {
    at_ms.saturating_add(limits::ANSWER_KEPT_MS) <= shard_state.clock_ms
}
