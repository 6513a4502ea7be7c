//! Errors: what happened, whether the change can have happened, and what to do.

use std::path::PathBuf;

use crate::key::{Key, KeyError};
use crate::session::SessionId;
use crate::transaction::{Expected, Version};

/// What the calls of this crate return: with its [`Error`], unless another is named.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller should do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Another was first: read again, decide again.
    Reread,
    /// Wait a little and try the same again.
    Retry,
    /// Open a new session; the keys of the old one are gone.
    NewSession,
    /// The request itself is wrong; trying again changes nothing.
    GiveUp,
    /// A person must act: a disk, a file, a setting, a right.
    CallAPerson,
}

/// Everything that can go wrong with a coordination backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A condition of the transaction did not hold; nothing was changed.
    #[error("key `{key}` was expected {expected} but is {}: read it again", shown(*.found))]
    Refused {
        /// The key of the first condition that failed.
        key: Key,
        /// What the condition said.
        expected: Expected,
        /// The version found; `None` if the key does not exist.
        found: Option<Version>,
    },
    /// The request makes no sense, whatever the state is.
    #[error("{what}")]
    Invalid {
        /// What is wrong, and with which key.
        what: String,
    },
    /// Over a limit; nothing was sent (C6).
    #[error("{what} is {size}, over the limit of {limit}: make it smaller, or split it")]
    TooLarge {
        /// What is too large.
        what: String,
        /// How large it is.
        size: usize,
        /// How large it may be.
        limit: usize,
    },
    /// The session is not known, or no longer.
    #[error("session {session} has ended; its ephemeral keys are gone: open a new session")]
    SessionEnded {
        /// The session that has ended or was never known.
        session: SessionId,
    },
    /// This backend does not do that at all.
    #[error("the {backend} backend does not offer {what}: choose a backend that does")]
    Unsupported {
        /// The name of the backend, such as `gossip`.
        backend: &'static str,
        /// What was asked of it.
        what: &'static str,
    },
    /// The backend could not be asked; nothing was changed.
    #[error("coordination is not available: {what}")]
    Unavailable {
        /// Why, and the way out.
        what: String,
    },
    /// The change was sent and no answer came: it may have happened, or happen yet (C3).
    #[error("the outcome is not known: {what}: read before trying again")]
    Indefinite {
        /// Why the outcome is not known.
        what: String,
    },
    /// No room; nothing was changed.
    #[error("no room to extend `{}`: {what}: free some space; nothing was changed", file.display())]
    DiskFull {
        /// The file that could not grow.
        file: PathBuf,
        /// The error as the operating system words it.
        what: String,
    },
    /// The backend has no room; nothing was changed.
    #[error("{location} has no room: {what}; nothing was changed")]
    NoRoom {
        /// The target as people write it; nothing in it is secret.
        location: String,
        /// What is full, and the way out.
        what: String,
    },
    /// Authentication failed, or a right is missing; nothing was changed.
    #[error("{location} refuses us: {what}")]
    Denied {
        /// The target as people write it; nothing in it is secret.
        location: String,
        /// The backend's words, and the way out.
        what: String,
    },
    /// Stored bytes are damaged. Nothing is served from this store.
    #[error(
        "file `{}` is damaged at byte {offset}: {what}: restore a backup, or see `partage check` for what can be saved",
        file.display()
    )]
    Corrupt {
        /// The damaged file: one of the journal, or the one that names the directory's cluster.
        file: PathBuf,
        /// Byte offset in it.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// Another process has the store open.
    #[error(
        "directory `{}` is in use by another process: stop that one, or give this one a directory of its own",
        dir.display()
    )]
    InUse {
        /// The directory that the other process has locked.
        dir: PathBuf,
    },
    /// The store belongs to another cluster.
    #[error("`{location}` belongs to cluster {found}, not to {expected}: check the root or directory")]
    WrongCluster {
        /// The root or directory that belongs to the other cluster.
        location: String,
        /// The id asked for.
        expected: String,
        /// The id of the cluster that the store belongs to.
        found: String,
    },
}

fn shown(found: Option<Version>) -> String {
    found.map_or_else(|| "absent".to_owned(), |version| format!("at {version}"))
}

impl Error {
    /// Every backend's error for `key` below `ephemeral`, which ZooKeeper could not hold.
    #[must_use]
    pub fn below_ephemeral(key: &Key, ephemeral: &Key) -> Self {
        let what = format!("key `{key}` would lie below the ephemeral key `{ephemeral}`: put it elsewhere");
        Self::Invalid { what }
    }

    /// True if it is certain that nothing was changed and nothing will be.
    #[must_use]
    pub fn is_definite(&self) -> bool {
        !matches!(self, Self::Indefinite { .. })
    }

    /// What to do about it.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Refused { .. } | Self::Indefinite { .. } => Advice::Reread,
            Self::Unavailable { .. } => Advice::Retry,
            Self::SessionEnded { .. } => Advice::NewSession,
            Self::Invalid { .. } | Self::TooLarge { .. } | Self::Unsupported { .. } => Advice::GiveUp,
            Self::DiskFull { .. }
            | Self::NoRoom { .. }
            | Self::Denied { .. }
            | Self::Corrupt { .. }
            | Self::InUse { .. }
            | Self::WrongCluster { .. } => Advice::CallAPerson,
        }
    }
}

impl From<KeyError> for Error {
    fn from(error: KeyError) -> Self {
        Self::Invalid { what: error.to_string() }
    }
}
