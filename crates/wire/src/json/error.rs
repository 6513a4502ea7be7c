//! Errors as JSON, and requests that are not understood.

use crate::{Malformed, Refusal, Retry};
use partage_core::base::suggest;
use partage_core::cluster::admin::{AdminError, Kind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use utoipa::ToSchema;

/// Body of every answer that is not a success: of coordinators, workers, routers, dataset nodes, the door before each
/// of them; and what a command with `--json` writes to stderr.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error: a word for programs, a sentence for people, and the way out.
    pub error: ErrorDetail,
}

/// What went wrong, for programs and for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// A word for programs: `not_found`, `already_exists`, `invalid`, `refused`, `conflict`, `malformed`; for workers
    /// the word of a refusal, such as `ended`.
    pub kind: String,
    /// A sentence for people, which ends with what to do.
    pub message: String,
    /// The way out alone: a text for people; for workers one of `retry_later`, `register_again`, `register_as_new`,
    /// `mend`, `go_on`. Empty where there is nothing to do.
    pub help: String,
    /// In an answer 421 of a worker: the node that serves the key; absent where the worker does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Box<Owner>>,
    /// In the output of a command: the code that the command exits with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
}

/// The node that serves a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Owner {
    /// The name of the node.
    pub node: String,
    /// The address at which the node takes requests: `host:port`.
    pub address: String,
}

impl ErrorBody {
    /// An error of that kind.
    pub fn new(kind: &str, message: impl ToString, help: impl ToString) -> ErrorBody {
        let (message, help) = (message.to_string(), help.to_string());
        ErrorBody {
            error: ErrorDetail { kind: kind.to_owned(), message, help, owner: None, exit_code: None },
        }
    }

    /// An error of that kind: what is wrong, and the way out, with which the message ends.
    pub fn told(kind: &str, what: impl Display, way_out: &str) -> ErrorBody {
        ErrorBody::new(kind, told(what, way_out), way_out)
    }

    /// The body as it is sent.
    pub fn bytes(&self) -> Vec<u8> {
        // Strings and numbers can always be written.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// A message: what is wrong, and the way out, once. Without a way out it is what is wrong.
pub fn told(what: impl Display, way_out: &str) -> String {
    let what = what.to_string();
    if what.ends_with(way_out) { what } else { format!("{what}: {way_out}") }
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
pub(crate) fn nearest(message: &str) -> Option<&str> {
    if !message.starts_with("unknown ") {
        return None;
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    let given = quoted.next()?;
    suggest::close(given, quoted)
}
