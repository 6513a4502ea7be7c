//! The answer to a worker whose message is refused: a word for programs, a sentence for people, and whether to try
//! again. The same over gRPC and HTTP.

use crate::malformed::sentence;
use crate::{Malformed, proto};
use partage_core::cluster::{BeatError, RegisterError};

/// Whether the same request can ever succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Ask again later, or ask another coordinator.
    Later,
    /// After registering again, as the same incarnation: a coordinator that is new knows nobody yet, and that must
    /// not cost anybody its shards.
    Register,
    /// Not as this incarnation: serve nothing, keep the data, and register as a new process.
    AsNew,
    /// Only a person can mend it.
    Never,
    /// Nothing: a later message said the same and more.
    Needless,
}

/// A refused registration, beat or leave.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// A word for programs: one of those below, or one of a later coordinator.
    pub kind: String,
    /// A sentence for people, with the way out.
    pub message: String,
    /// Whether to try again.
    pub retry: Retry,
}

impl Refusal {
    /// The kind of a coordinator that is of another cluster than the worker.
    pub const OTHER_CLUSTER: &'static str = "other_cluster";

    /// `kind` is one snake_case word.
    pub fn new(kind: &str, message: impl ToString, retry: Retry) -> Refusal {
        Refusal { kind: kind.to_owned(), message: message.to_string(), retry }
    }
}

impl From<&RegisterError> for Refusal {
    fn from(error: &RegisterError) -> Refusal {
        let (kind, retry) = match error {
            RegisterError::Spec(_) => ("malformed", Retry::Never),
            // The former process may be dead without anybody knowing yet.
            RegisterError::NameTaken { .. } => ("name_taken", Retry::Later),
            RegisterError::AddressTaken { .. } => ("address_taken", Retry::Later),
            RegisterError::OtherCluster { .. } => (Refusal::OTHER_CLUSTER, Retry::Later),
            RegisterError::Ahead { .. } => ("ahead", Retry::Later),
            RegisterError::Unknown { .. } => ("unknown_node", Retry::AsNew),
            RegisterError::Ended { .. } => ("ended", Retry::AsNew),
            RegisterError::WrongToken(_) => ("wrong_token", Retry::AsNew),
            RegisterError::Full => ("full", Retry::Later),
            RegisterError::TooMany { .. } => ("too_many", Retry::Later),
        };
        Refusal::new(kind, error, retry)
    }
}

impl From<&BeatError> for Refusal {
    fn from(error: &BeatError) -> Refusal {
        let (kind, retry) = match error {
            BeatError::Unknown(_) => ("not_registered", Retry::Register),
            BeatError::NotYet(_) => ("register_again", Retry::Register),
            BeatError::Ended { .. } => ("ended", Retry::AsNew),
            BeatError::OnTrust(_) => ("on_trust", Retry::Needless),
            BeatError::WrongToken(_) => ("wrong_token", Retry::AsNew),
            BeatError::Skips { .. } => ("malformed", Retry::Never),
            BeatError::Late { .. } => ("late", Retry::Needless),
            BeatError::Load { .. } => ("malformed", Retry::Never),
        };
        Refusal::new(kind, error, retry)
    }
}

impl From<&Malformed> for Refusal {
    fn from(error: &Malformed) -> Refusal {
        Refusal::new("malformed", error, Retry::Never)
    }
}

impl From<&Refusal> for proto::Refused {
    fn from(refusal: &Refusal) -> Self {
        let retry = match refusal.retry {
            Retry::Later => proto::RefusalRetry::Later,
            Retry::Register => proto::RefusalRetry::Register,
            Retry::AsNew => proto::RefusalRetry::AsNew,
            Retry::Never => proto::RefusalRetry::Never,
            Retry::Needless => proto::RefusalRetry::Needless,
        };
        proto::Refused {
            kind: refusal.kind.clone(),
            message: sentence(refusal.message.clone()),
            retry: retry.into(),
        }
    }
}

impl From<proto::Refused> for Refusal {
    /// A way of retrying that this reader does not know is "later": the rarest harm.
    fn from(form: proto::Refused) -> Refusal {
        let retry = match proto::RefusalRetry::try_from(form.retry) {
            Ok(proto::RefusalRetry::Register) => Retry::Register,
            Ok(proto::RefusalRetry::AsNew) => Retry::AsNew,
            Ok(proto::RefusalRetry::Never) => Retry::Never,
            Ok(proto::RefusalRetry::Needless) => Retry::Needless,
            Ok(proto::RefusalRetry::Later | proto::RefusalRetry::Unspecified) | Err(_) => Retry::Later,
        };
        Refusal { kind: form.kind, message: sentence(form.message), retry }
    }
}
