//! The status of an error.
//!
//! | code | what to do | words |
//! |---|---|---|
//! | `UNAVAILABLE` | again: the attempt under another id, or the same request, as the end of the message says | those of the shuffle's own protocol |
//! | `INVALID_ARGUMENT` | nothing: it will be refused again | those, and `malformed` |
//! | `NOT_FOUND` | start another shuffle | `shuffle-unknown`, `shuffle-deleted`, `shuffle-expired` |
//! | `FAILED_PRECONDITION` | seal the shuffle, or run what lacks; read rows as they are | `not-sealed`, `inputs-lacking`; `not-combined` |
//! | `DATA_LOSS` | start another shuffle | `shuffle-failed` |
//! | `RESOURCE_EXHAUSTED` | delete something first | `quota-used-up` |
//!
//! A message is `word: sentence [again: no]`, or `request`, or `attempt`: the clients of most languages show nothing else. The
//! metadata `partage-error` has the same as JSON.

use crate::limits::{MESSAGE_BYTES, NAMED, SENTENCE_BYTES};
use partage_shuffle_wire::client::{Again, Refusal, RefusalWord};
use serde_json::{Value, json};
use std::fmt::Display;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::{Code, Status};

/// The metadata with the error as JSON.
pub(crate) const ERROR: &str = "partage-error";

fn with(code: Code, word: &str, again: Again, why: &dyn Display, more: Option<(&str, Value)>) -> Status {
    let again = match again {
        Again::No => "no",
        Again::Request => "request",
        Again::Attempt => "attempt",
    };
    let mut details = json!({ "kind": word, "again": again });
    if let Some((name, value)) = more {
        details[name] = value;
    }
    let mut why = why.to_string();
    if why.len() > SENTENCE_BYTES {
        why.truncate(why.floor_char_boundary(SENTENCE_BYTES));
        why.push('…');
    }
    let mut metadata = MetadataMap::new();
    if let Ok(value) = details.to_string().parse::<MetadataValue<Ascii>>() {
        metadata.insert(ERROR, value);
    }
    Status::with_metadata(code, format!("{word}: {why} [again: {again}]"), metadata)
}

fn code(refusal: &Refusal) -> Code {
    match refusal.word {
        RefusalWord::ShuffleUnknown | RefusalWord::ShuffleDeleted | RefusalWord::ShuffleExpired => {
            Code::NotFound
        }
        RefusalWord::NotSealed => Code::FailedPrecondition,
        RefusalWord::ShuffleFailed | RefusalWord::ObjectLost => Code::DataLoss,
        RefusalWord::QuotaUsedUp => Code::ResourceExhausted,
        _ if refusal.again == Again::No => Code::InvalidArgument,
        _ => Code::Unavailable,
    }
}

/// The status of a refusal by the node, with its word and its sentence.
pub(crate) fn refused(refusal: Refusal) -> Status {
    with(code(&refusal), refusal.word.as_str(), refusal.again, &refusal.why, None)
}

/// What a client has sent makes no sense.
pub(crate) fn malformed(why: impl Display) -> Status {
    with(Code::InvalidArgument, "malformed", Again::No, &why, None)
}

/// Rows are not those that the shuffle was started with, or cannot be.
pub(crate) fn differs(why: impl Display) -> Status {
    with(Code::InvalidArgument, RefusalWord::RecordKindDiffers.as_str(), Again::No, &why, None)
}

/// Records of a key cannot be combined: one is no number, or what they give together is too large.
pub(crate) fn not_combined(why: impl Display) -> Status {
    with(Code::FailedPrecondition, "not-combined", Again::No, &why, None)
}

/// There is no such partition.
pub(crate) fn no_partition(why: impl Display) -> Status {
    with(Code::InvalidArgument, RefusalWord::NoSuchPartition.as_str(), Again::No, &why, None)
}

/// A seal lacks whole attempts of these input partitions.
pub(crate) fn lacking(inputs: &[u32]) -> Status {
    let named: Vec<String> = inputs.iter().take(NAMED).map(u32::to_string).collect();
    let rest = if inputs.len() > NAMED { ", …" } else { "" };
    let why = format!(
        "{} input partitions lack a whole attempt ({}{rest}): write them, and seal again",
        inputs.len(),
        named.join(", ")
    );
    // Clients of gRPC refuse headers above some kibibytes.
    let few = inputs.get(..inputs.len().min(100)).unwrap_or_default();
    let more = Some(("lacking", json!(few)));
    with(Code::FailedPrecondition, "inputs-lacking", Again::Request, &why, more)
}

/// A stream of a client does not come to its end, or a message of it cannot be read.
pub(crate) fn broken(why: &Status) -> Status {
    match why.code() {
        Code::OutOfRange => {
            let why = format!(
                "a message has more than {} MiB: write batches of fewer rows (max_chunksize in pyarrow)",
                MESSAGE_BYTES >> 20
            );
            with(Code::InvalidArgument, "message-too-large", Again::No, &why, None)
        }
        // It was a status of this crate before.
        _ if why.metadata().contains_key(ERROR) => why.clone(),
        _ => with(Code::Unavailable, "stream-broken", Again::Attempt, &why.message(), None),
    }
}

/// A call that there is not.
pub(crate) fn unimplemented(why: &str) -> Status {
    with(Code::Unimplemented, "unimplemented", Again::No, &why, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_service::shuffle::Ended;
    use partage_service::shuffle::buffer::Failed;

    fn details(status: &Status) -> Value {
        serde_json::from_str(status.metadata().get(ERROR).unwrap().to_str().unwrap()).unwrap()
    }

    #[test]
    fn unknown_deleted_and_expired_shuffles_are_three_errors() {
        let cases = [
            (Ended::Unknown, "shuffle-unknown"),
            (Ended::Deleted, "shuffle-deleted"),
            (Ended::Expired, "shuffle-expired"),
        ];
        for (ended, word) in cases {
            let status = refused(ended.into());
            assert_eq!(status.code(), Code::NotFound);
            assert!(status.message().starts_with(&format!("{word}: ")), "{status}");
            assert_eq!(details(&status), json!({ "kind": word, "again": "no" }));
        }
    }

    #[test]
    fn an_error_says_whether_to_run_the_attempt_again() {
        let again = refused(Failed::Unknown.into());
        assert_eq!(again.code(), Code::Unavailable);
        assert!(again.message().ends_with(" [again: attempt]"), "{again}");
        let never = refused(Failed::Sealed.into());
        assert_eq!((never.code(), details(&never)["again"].as_str()), (Code::InvalidArgument, Some("no")));
        let cut = broken(&Status::unknown("the body is malformed or ends early"));
        assert_eq!((cut.code(), details(&cut)["again"].as_str()), (Code::Unavailable, Some("attempt")));
        let large = broken(&Status::out_of_range("too large"));
        assert_eq!(
            (large.code(), details(&large)["kind"].as_str()),
            (Code::InvalidArgument, Some("message-too-large"))
        );
        let own = broken(&never);
        assert_eq!((own.code(), own.message()), (never.code(), never.message()));
    }

    #[test]
    fn a_long_sentence_is_cut_and_still_says_whether_to_run_again() {
        let status = malformed("é".repeat(100_000));
        assert!(status.message().len() < 3 << 10, "{}", status.message().len());
        assert!(status.message().starts_with("malformed: éé"));
        assert!(status.message().ends_with("… [again: no]"));
        // Each byte beyond ASCII takes three in the header.
        assert!(3 * status.message().len() < 8 << 10);
    }

    #[test]
    fn a_seal_names_what_lacks_with_a_bound() {
        let status = lacking(&[3, 7]);
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("2 input partitions lack a whole attempt (3, 7)"), "{status}");
        assert_eq!(details(&status)["lacking"], json!([3, 7]));
        let many: Vec<u32> = (0..100_000).collect();
        let status = lacking(&many);
        assert!(status.message().contains(", …)") && status.message().len() < 500, "{status}");
        assert_eq!(details(&status)["lacking"].as_array().map(Vec::len), Some(100));
    }
}
