//! Why a request to a table was not carried out: the same errors through HTTP and gRPC, which differ only in how they tell them.
//!
//! | error | word | HTTP | gRPC |
//! |---|---|---|---|
//! | `Malformed` | `malformed` | 400 | `INVALID_ARGUMENT` |
//! | `Invalid` | `invalid` | 400 | `INVALID_ARGUMENT` |
//! | `TooLarge` | `too_large` | 413 | `RESOURCE_EXHAUSTED` |
//! | `NoTable` | `not_found` | 404 | `NOT_FOUND` |
//! | `NotMet` | `not_met` | 412 | `ABORTED` |
//! | `NotDone`, `NoFeed` | `refused` | 409 | `FAILED_PRECONDITION` |
//! | `Gone` | `gone` | 410 | `OUT_OF_RANGE` |
//! | `RequestIdTaken` | `request_id_taken` | 422 | `ALREADY_EXISTS` |
//! | `Refused` | that of its [`Refusal`] | 400, 503, 504, 507 | `INVALID_ARGUMENT`, `UNAVAILABLE`, `UNKNOWN`, `RESOURCE_EXHAUSTED` |

use crate::bulk::BatchError;
use crate::feed::{FeedError, GONE};
use crate::scans::ScanError;
use crate::service::{Refusal, Refused};
use partage_service::table::replication::LogPosition;
use partage_service::table::rows::{Done, Invalid, Outcome};
use std::time::Duration;

/// How long a client rests before it asks again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why a request was not carried out, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TableError {
    /// The node cannot read the request.
    #[error("{0}")]
    Malformed(String),
    /// It can never be carried out on this table.
    #[error("{0}")]
    Invalid(String),
    /// The request has more of something than a request may have.
    #[error("{message}")]
    TooLarge {
        /// What, and how much there may be.
        message: String,
        /// What the client may do instead; empty where the message says it.
        help: &'static str,
    },
    /// There is no such table, or no such shard of it.
    #[error("{0}")]
    NoTable(String),
    /// A condition does not hold; nothing was done.
    #[error("{message}")]
    NotMet {
        /// Which condition, and what there is.
        message: String,
        /// The version of the row that is there, if there is one.
        current: Option<LogPosition>,
    },
    /// An operation cannot be done on the row that is there; nothing was done.
    #[error("{0}")]
    NotDone(String),
    /// The table keeps no changes.
    #[error("{0}")]
    NoFeed(String),
    /// What the request goes on from is no longer kept.
    #[error("{0}")]
    Gone(String),
    /// Another write had the same idempotency key; nothing was done.
    #[error("another write had this idempotency-key")]
    RequestIdTaken,
    /// A replica, or the node that asks one, has refused it.
    #[error("{0}")]
    Refused(#[from] Refused),
}

impl TableError {
    /// More than a request may have, of what several requests could have.
    pub(crate) fn too_many(message: impl Into<String>) -> TableError {
        TableError::TooLarge { message: message.into(), help: "send several requests" }
    }

    /// The word for programs.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            TableError::Malformed(_) => "malformed",
            TableError::Invalid(_) => Refusal::Invalid.word(),
            TableError::TooLarge { .. } => "too_large",
            TableError::NoTable(_) => "not_found",
            TableError::NotMet { .. } => "not_met",
            TableError::NotDone(_) | TableError::NoFeed(_) => "refused",
            TableError::Gone(_) => GONE,
            TableError::RequestIdTaken => "request_id_taken",
            TableError::Refused(why) => why.refusal.word(),
        }
    }

    /// What the client may do instead; empty where the message says it.
    pub(crate) fn help(&self) -> &'static str {
        match self {
            TableError::Malformed(_) | TableError::Invalid(_) => "mend the request",
            TableError::TooLarge { help, .. } => help,
            // The message has it.
            TableError::NoTable(_) | TableError::NoFeed(_) | TableError::Gone(_) => "",
            TableError::NotMet { .. } | TableError::NotDone(_) => "read the row, and decide anew",
            TableError::RequestIdTaken => "give each write its own",
            TableError::Refused(why) => match why.refusal {
                Refusal::Invalid => "mend the request",
                Refusal::NoRoom => "free room",
                Refusal::Unknown => "send it again under the same idempotency-key, or read the row",
                Refusal::Soon
                | Refusal::TooFewInSync
                | Refusal::Busy
                | Refusal::Stopped
                | Refusal::TooOld => "try again",
            },
        }
    }

    /// Whether the request may have been carried out all the same.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self, TableError::Refused(Refused { refusal: Refusal::Unknown, .. }))
    }

    /// When the same request is worth another try; none: it is not.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let TableError::Refused(why) = self else { return None };
        match why.refusal {
            Refusal::Soon | Refusal::TooFewInSync | Refusal::Busy | Refusal::Stopped | Refusal::TooOld => {
                Some(RETRY_AFTER)
            }
            Refusal::Invalid | Refusal::NoRoom | Refusal::Unknown => None,
        }
    }

    /// What a write has done, or why it was not done; `which` names an operation of a batch, counted from 0.
    ///
    /// # Errors
    /// The write has changed nothing.
    pub(crate) fn of(
        outcome: Outcome,
        which: impl Fn(usize) -> String,
    ) -> Result<(LogPosition, Vec<Done>), TableError> {
        match outcome {
            Outcome::Done { version, results } => Ok((version, results)),
            Outcome::NotMet { operation, current } => {
                let which = which(operation);
                let message = match current {
                    Some(version) => {
                        format!("{which}the row has the version \"{}\"", crate::http::version_text(version))
                    }
                    None => format!("{which}there is no row of that key"),
                };
                Err(TableError::NotMet { message, current })
            }
            Outcome::Refused { operation, refusal } => {
                Err(TableError::NotDone(format!("{}{refusal}", which(operation))))
            }
            Outcome::RequestIdTaken => Err(TableError::RequestIdTaken),
        }
    }
}

impl From<ScanError> for TableError {
    fn from(why: ScanError) -> TableError {
        match why {
            ScanError::Refused(why) => why.into(),
            ScanError::NoTable(_) => TableError::NoTable(why.to_string()),
            ScanError::Named(_) | ScanError::Token(_) => TableError::Malformed(why.to_string()),
        }
    }
}

impl From<FeedError> for TableError {
    fn from(why: FeedError) -> TableError {
        match why {
            FeedError::Refused(why) => why.into(),
            FeedError::Table(why) => why.into(),
            FeedError::NoFeed(_) => TableError::NoFeed(why.to_string()),
            FeedError::NoShard(..) => TableError::NoTable(why.to_string()),
            FeedError::TooManyShards(_) => TableError::TooLarge { message: why.to_string(), help: "" },
            FeedError::Token(_) | FeedError::OtherShards(..) => TableError::Malformed(why.to_string()),
            FeedError::Late(_) => TableError::Gone(why.to_string()),
        }
    }
}

impl From<BatchError> for TableError {
    /// A batch that can never be done as it is.
    fn from(why: BatchError) -> TableError {
        match why {
            BatchError::Operation { .. } | BatchError::Invalid(Invalid::Empty) => {
                TableError::Malformed(why.to_string())
            }
            BatchError::Invalid(Invalid::TooMany(_) | Invalid::TooLong(_) | Invalid::ValueTooLong { .. })
            | BatchError::FormerRows(_) => TableError::TooLarge { message: why.to_string(), help: "" },
            BatchError::Invalid(_) => TableError::Invalid(why.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_service::table::rows::Refusal as OnRow;

    #[test]
    fn only_what_has_certainly_done_nothing_is_worth_another_try() {
        for refusal in Refusal::ALL {
            let error = TableError::from(Refused::new(refusal, "why"));
            assert_eq!(error.word(), refusal.word());
            assert!(error.retry_after().is_none() || !error.is_unknown(), "{refusal:?}");
        }
        assert!(TableError::from(Refused::new(Refusal::Unknown, "why")).is_unknown());
        assert!(TableError::RequestIdTaken.retry_after().is_none());
    }

    #[test]
    fn an_outcome_that_changes_nothing_is_an_error_that_names_its_operation() {
        let which = |at: usize| format!("operation {at}: ");
        let not_met = TableError::of(Outcome::NotMet { operation: 2, current: None }, which).unwrap_err();
        assert_eq!(
            (not_met.word(), not_met.to_string().as_str()),
            ("not_met", "operation 2: there is no row of that key")
        );
        let refused = Outcome::Refused { operation: 1, refusal: OnRow::NotANumber };
        let refused = TableError::of(refused, which).unwrap_err();
        assert!(refused.word() == "refused" && refused.to_string().starts_with("operation 1: "), "{refused}");
        assert_eq!(TableError::of(Outcome::RequestIdTaken, which), Err(TableError::RequestIdTaken));
    }
}
