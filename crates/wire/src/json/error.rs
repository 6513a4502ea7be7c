//! Errors as JSON, and requests that are not understood.

use crate::{Malformed, Refusal, Retry};
use partage_core::cluster::admin::{AdminError, Kind};
use partage_core::suggest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// A word for programs: `not_found`, `already_exists`, `invalid`, `refused`, `conflict`, `malformed`,
    /// and for workers those of a refusal, such as `ended`.
    pub kind: String,
    /// A sentence for people, which ends with what to do.
    pub message: String,
    /// What to do, alone: for people, or for workers one of `retry_later`, `register_again`,
    /// `register_as_new`, `mend`, `go_on`.
    pub help: String,
}

impl ErrorBody {
    /// An error of that kind.
    pub fn new(kind: &str, message: impl ToString, help: impl ToString) -> ErrorBody {
        let (message, help) = (message.to_string(), help.to_string());
        ErrorBody { error: ErrorDetail { kind: kind.to_owned(), message, help } }
    }
}

impl From<&Malformed> for ErrorBody {
    fn from(error: &Malformed) -> Self {
        ErrorBody::new("malformed", error, format!("mend the field {}", error.field))
    }
}

impl From<&Refusal> for ErrorBody {
    fn from(refusal: &Refusal) -> Self {
        let help = match refusal.retry {
            Retry::Later => "retry_later",
            Retry::Register => "register_again",
            Retry::AsNew => "register_as_new",
            Retry::Never => "mend",
            Retry::Needless => "go_on",
        };
        ErrorBody::new(&refusal.kind, refusal, help)
    }
}

impl From<&AdminError> for ErrorBody {
    fn from(error: &AdminError) -> Self {
        let kind = match error.kind() {
            Kind::NotFound => "not_found",
            Kind::AlreadyExists => "already_exists",
            Kind::Invalid => "invalid",
            Kind::Refused => "refused",
            Kind::Conflict => "conflict",
        };
        ErrorBody::new(kind, error, error.way_out())
    }
}

/// Reads a request. A field or word that is not known is refused with the nearest one that is.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ErrorBody> {
    serde_json::from_slice(body).map_err(|error| {
        let message = error.to_string();
        let help = match nearest(&message) {
            Some(known) => format!("did you mean {known}?"),
            None => "send a JSON object as the API document describes it".to_owned(),
        };
        ErrorBody::new("malformed", message, help)
    })
}

/// From ``unknown field `x`, expected one of `a`, `b` `` the known name nearest to `x`.
pub(super) fn nearest(message: &str) -> Option<&str> {
    if !message.starts_with("unknown ") {
        return None;
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    let given = quoted.next()?;
    suggest::nearest(given, quoted)
}
