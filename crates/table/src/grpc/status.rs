//! The status of an error: its code by the table in `table_error.rs`, and what programs need beside it.

use crate::http::version_text;
use crate::service::Refusal;
use crate::table_error::TableError;
use partage_wire::table::grpc;
use std::collections::HashMap;
use tonic::{Code, Status};

/// The status of an error.
pub(super) fn of(why: &TableError) -> Status {
    with(why, [])
}

/// The same, with more metadata.
pub(super) fn with<const N: usize>(why: &TableError, more: [(&str, String); N]) -> Status {
    let outcome = if why.is_unknown() { "unknown" } else { "not_done" };
    let mut metadata = HashMap::from([("outcome".to_owned(), outcome.to_owned())]);
    if !why.help().is_empty() {
        metadata.insert("help".to_owned(), why.help().to_owned());
    }
    if let TableError::NotMet { current: Some(version), .. } = why {
        metadata.insert("version".to_owned(), version_text(*version));
    }
    metadata.extend(more.map(|(name, value)| (name.to_owned(), value)));
    grpc::status(code(why), why.word(), why.to_string(), metadata, why.retry_after())
}

/// A status of the protocol, for a message that did not come or cannot be read, with more metadata. It has done nothing.
pub(super) fn more<const N: usize>(why: &Status, more: [(&str, String); N]) -> Status {
    let reason = match why.code() {
        Code::OutOfRange | Code::ResourceExhausted => "too_large",
        Code::InvalidArgument => "malformed",
        _ => "broken",
    };
    let outcome = ("outcome", "not_done".to_owned());
    let metadata = more.into_iter().chain([outcome]).map(|(name, value)| (name.to_owned(), value));
    grpc::more(why, reason, metadata)
}

fn code(why: &TableError) -> Code {
    match why {
        TableError::Malformed(_) | TableError::Invalid(_) => Code::InvalidArgument,
        TableError::TooLarge { .. } => Code::ResourceExhausted,
        TableError::NoTable(_) => Code::NotFound,
        TableError::NotMet { .. } => Code::Aborted,
        TableError::NotDone(_) | TableError::NoFeed(_) => Code::FailedPrecondition,
        TableError::Gone(_) => Code::OutOfRange,
        TableError::RequestIdTaken => Code::AlreadyExists,
        TableError::Refused(why) => match why.refusal {
            Refusal::Invalid => Code::InvalidArgument,
            Refusal::NoRoom => Code::ResourceExhausted,
            Refusal::Unknown => Code::Unknown,
            Refusal::Soon | Refusal::TooFewInSync | Refusal::Busy | Refusal::Stopped | Refusal::TooOld => {
                Code::Unavailable
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Refused;
    use partage_core::base::id::Epoch;
    use partage_service::table::replication::LogPosition;
    use tonic_types::StatusExt;

    #[test]
    fn a_message_that_does_not_come_says_what_was_done_before() {
        let counts = || [("messages", "3".to_owned()), ("written", "1500".to_owned())];
        let read = |status: &Status, name: &str| {
            let details = status.get_error_details();
            let info = details.error_info().cloned().unwrap();
            (info.reason, info.metadata.get(name).cloned())
        };
        let broken = more(&Status::cancelled("the client is gone"), counts());
        assert_eq!((broken.code(), broken.message()), (Code::Cancelled, "the client is gone"));
        assert_eq!(read(&broken, "written"), ("broken".to_owned(), Some("1500".to_owned())));
        assert_eq!(read(&broken, "outcome").1.as_deref(), Some("not_done"));
        // What the error says already stays.
        let too_large = of(&TableError::too_many("2000 rows"));
        let with = more(&too_large, counts());
        assert_eq!(read(&with, "messages"), ("too_large".to_owned(), Some("3".to_owned())));
        assert_eq!(read(&with, "help"), read(&too_large, "help"));
    }

    #[test]
    fn an_error_says_whether_the_write_may_be_done_and_when_to_ask_again() {
        let metadata = |status: &Status, name: &str| {
            let details = status.get_error_details();
            details.error_info().and_then(|info| info.metadata.get(name).cloned())
        };
        for refusal in Refusal::ALL {
            let status = of(&Refused::new(refusal, "why").into());
            let details = status.get_error_details();
            assert_eq!(details.error_info().map(|info| info.reason.as_str()), Some(refusal.word()));
            let is_unknown = refusal == Refusal::Unknown;
            assert_eq!(status.code() == Code::Unknown, is_unknown);
            let outcome = if is_unknown { "unknown" } else { "not_done" };
            assert_eq!(metadata(&status, "outcome").as_deref(), Some(outcome));
            assert_eq!(details.retry_info().is_some(), status.code() == Code::Unavailable, "{refusal:?}");
        }
        let current = Some(LogPosition { epoch: Epoch(3), index: 17 });
        let status = of(&TableError::NotMet { message: "why".to_owned(), current });
        assert_eq!((status.code(), metadata(&status, "version").as_deref()), (Code::Aborted, Some("3-17")));
    }
}
