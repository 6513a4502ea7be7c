//! How answers look as messages.

use crate::bulk::Got;
use crate::feed::TableChanges;
use crate::http::version_text;
use crate::node::ReadAnswer;
use crate::rows::{FoundChange, ScannedRow};
use crate::scans::{TablePage, Token};
use crate::service::{Refusal, Refused};
use crate::table_error::TableError;
use partage_core::base::id::ShardId;
use partage_core::keyspace::key::Key;
use partage_service::table::feed::ChangeKind;
use partage_service::table::replication::LogPosition;
use partage_service::table::rows::{Done, Outcome, Row};
use partage_wire::proto::table as proto;
use partage_wire::proto::table::{get_result, put_result};

fn row(key: &Key, row: &Row) -> proto::Row {
    proto::Row {
        key: key.as_bytes().to_vec(),
        value: row.value.to_vec(),
        version: version_text(row.version),
        expires_ms: row.expires_ms,
    }
}

pub(super) fn found(key: &Key, answer: ReadAnswer) -> proto::GetResponse {
    proto::GetResponse {
        row: answer.row.map(|found| row(key, &found)),
        applied: version_text(answer.position),
        age_ms: answer.age_ms,
    }
}

pub(super) fn written(version: LogPosition, results: &[Done]) -> proto::WriteResponse {
    let existed = results.first().is_some_and(|done| done.existed);
    proto::WriteResponse { version: version_text(version), existed }
}

/// Each operation's key, and what it has done.
pub(super) fn batched<'a>(
    version: LogPosition,
    results: impl Iterator<Item = (&'a Key, Done)>,
) -> proto::BatchResponse {
    let result = |(key, done): (&Key, Done)| proto::OperationResult {
        existed: done.existed,
        number: done.now.and_then(|now| now.number),
        bytes: done.now.map(|now| now.bytes as u64),
        expires_ms: done.now.and_then(|now| now.expires_ms),
        former: done.former.map(|former| row(key, &former)),
    };
    proto::BatchResponse { version: version_text(version), results: results.map(result).collect() }
}

fn error(why: &TableError) -> Option<proto::RowError> {
    Some(proto::RowError { reason: why.word().to_owned(), message: why.to_string() })
}

pub(super) fn got(key: &Key, outcome: Result<Got, Refused>) -> proto::GetResult {
    use get_result::Outcome::{Absent, Failed, Found, LeftOut};
    let mut result = proto::GetResult::default();
    match outcome {
        Ok(Got::LeftOut) => result.set_outcome(LeftOut),
        Ok(Got::Read(answer)) => {
            result.set_outcome(if answer.row.is_some() { Found } else { Absent });
            let proto::GetResponse { row, applied, age_ms } = found(key, answer);
            (result.row, result.applied, result.age_ms) = (row, applied, age_ms);
        }
        Err(why) => {
            result.set_outcome(Failed);
            result.error = error(&why.into());
        }
    }
    result
}

pub(super) fn put(outcome: Result<Outcome, Refused>) -> proto::PutResult {
    use put_result::Outcome::{Failed, NotMet, Unknown, Written};
    let mut result = proto::PutResult::default();
    let is_unknown = |why: &Refused| why.refusal == Refusal::Unknown;
    result.set_outcome(if outcome.as_ref().is_err_and(is_unknown) { Unknown } else { Failed });
    let done =
        outcome.map_err(TableError::from).and_then(|outcome| TableError::of(outcome, |_| String::new()));
    match done {
        Ok((version, results)) => {
            let proto::WriteResponse { version, existed } = written(version, &results);
            result.set_outcome(Written);
            (result.version, result.existed) = (version, existed);
        }
        Err(TableError::NotMet { current, .. }) => {
            result.set_outcome(NotMet);
            result.version = current.map(version_text).unwrap_or_default();
        }
        Err(why) => result.error = error(&why),
    }
    result
}

pub(super) fn page(page: &TablePage) -> proto::ScanPage {
    let row = |row: &ScannedRow| proto::Row {
        key: row.key.as_bytes().to_vec(),
        value: row.value.as_ref().map(|value| value.to_vec()).unwrap_or_default(),
        version: version_text(row.version),
        expires_ms: row.expires_ms,
    };
    let token = page.next.as_ref().map(Token::text).unwrap_or_default();
    proto::ScanPage { rows: page.rows.iter().map(row).collect(), token }
}

fn change((shard, found): (ShardId, FoundChange)) -> proto::Change {
    let kind = match found.change.kind {
        ChangeKind::Put => proto::change::Kind::Put,
        ChangeKind::Delete => proto::change::Kind::Delete,
        ChangeKind::Expired => proto::change::Kind::Expired,
    };
    proto::Change {
        key: found.key.as_bytes().to_vec(),
        kind: kind.into(),
        value: found.change.value.map(|value| value.to_vec()),
        version: version_text(found.version),
        at_ms: found.change.at_ms,
        expires_ms: found.change.expires_ms,
        shard: shard.0,
    }
}

pub(super) fn changes(page: TableChanges) -> proto::FeedPage {
    let token = page.next.text();
    proto::FeedPage { changes: page.changes.into_iter().map(change).collect(), token }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::Epoch;
    use put_result::Outcome::{Failed, NotMet, Unknown, Written};

    #[test]
    fn a_row_that_is_put_has_one_outcome() {
        let version = LogPosition { epoch: Epoch(2), index: 9 };
        let done = Done { existed: true, former: None, now: None };
        for (outcome, expected, reason) in [
            (Ok(Outcome::Done { version, results: vec![done] }), Written, ""),
            (Ok(Outcome::NotMet { operation: 0, current: Some(version) }), NotMet, ""),
            (Ok(Outcome::RequestIdTaken), Failed, "request_id_taken"),
            (Err(Refused::new(Refusal::Unknown, "why")), Unknown, "unknown_outcome"),
            (Err(Refused::new(Refusal::NoRoom, "why")), Failed, "no_room"),
        ] {
            let result = put(outcome);
            let said = result.error.as_ref().map_or("", |error| error.reason.as_str());
            assert_eq!((result.outcome(), said), (expected, reason));
            assert_eq!(result.version, if reason.is_empty() { "2-9" } else { "" });
        }
    }
}
