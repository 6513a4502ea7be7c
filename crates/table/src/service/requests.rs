//! Requests to a replica of this node, with retries while the leader of the shard has just changed.
//!
//! By the map a replica may serve before its replication can: a new leader waits until its promise to the former one has ended
//! and its first entry is committed; and after a failure too few replicas are in sync until followers have caught up. Such a
//! request waits here, for [`limits::PATIENCE`] at most, before it is refused with nothing done. A read that wants something
//! newer than a follower has waits for [`limits::FRESH_PATIENCE`], within which the leader sends its next message.

use super::Tables;
use crate::backoff::Backoff;
use crate::error::{ReadError, WriteError};
use crate::limits;
use crate::node::ReadAnswer;
use crate::rows::{PinnedRows, ScanPage, ScanRange};
use partage_core::keyspace::key::Key;
use partage_core::node::exchange::ReplicaKey;
use partage_engine::replica::TreeSnapshot;
use partage_service::table::replication::{Consistency, Failed};
use partage_service::table::rows::{Outcome, Write};
use partage_wire::request::unavailable;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// What kind of refusal it is.
    pub refusal: Refusal,
    /// A sentence for people, with the way out.
    pub message: String,
}

impl Refused {
    /// Of that kind, with a sentence for people.
    pub fn new(refusal: Refusal, message: impl Into<String>) -> Refused {
        Refused { refusal, message: message.into() }
    }
}

/// The kinds of refusals, the same through all doors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The request cannot be carried out as it is: it is beyond a limit.
    Invalid,
    /// The shard is changing hands, or its leader has not begun. Nothing was done: try again.
    Soon,
    /// A write needs more in-sync replicas than there are. Nothing was done.
    TooFewInSync,
    /// Too many requests wait. Nothing was done.
    Busy,
    /// The disk of the leader is full. Nothing was done.
    NoRoom,
    /// The replica has stopped: its disk has failed. Nothing was done.
    Stopped,
    /// What the replica has is older than the read allows.
    TooOld,
    /// The write may or may not have been done.
    Unknown,
}

impl Refusal {
    /// Every kind once, so that words and counters can be found for each.
    pub const ALL: [Refusal; 8] = [
        Refusal::Invalid,
        Refusal::Soon,
        Refusal::TooFewInSync,
        Refusal::Busy,
        Refusal::NoRoom,
        Refusal::Stopped,
        Refusal::TooOld,
        Refusal::Unknown,
    ];

    /// The word for programs.
    pub fn word(self) -> &'static str {
        match self {
            Refusal::Invalid => "invalid",
            Refusal::Soon => unavailable::SOON,
            Refusal::TooFewInSync => unavailable::TOO_FEW_IN_SYNC,
            Refusal::Busy => unavailable::BUSY,
            Refusal::NoRoom => "no_room",
            Refusal::Stopped => "stopped",
            Refusal::TooOld => "too_old",
            Refusal::Unknown => unavailable::UNKNOWN_OUTCOME,
        }
    }

    /// The kind that has this word.
    pub fn of_word(word: &str) -> Option<Refusal> {
        Refusal::ALL.into_iter().find(|refusal| refusal.word() == word)
    }

    fn of(failed: &Failed) -> Refusal {
        match failed {
            Failed::NotLeader(_)
            | Failed::NotBegun
            | Failed::Closed
            | Failed::HandingOver
            | Failed::NoPromises => Refusal::Soon,
            Failed::TooFewInSync { .. } => Refusal::TooFewInSync,
            Failed::Full(_) => Refusal::Busy,
            Failed::TooOld | Failed::Behind { .. } => Refusal::TooOld,
            Failed::Damaged => Refusal::Stopped,
            Failed::Unknown(_) => Refusal::Unknown,
        }
    }
}

/// The errors of a replica that was asked.
pub(super) trait ReplicaError: Into<Refused> {
    /// What its replication refused.
    fn failed(&self) -> Option<&Failed>;

    /// For how long to ask this replica again after the error.
    fn patience(&self) -> Duration {
        match self.failed() {
            Some(
                Failed::NotBegun | Failed::HandingOver | Failed::NoPromises | Failed::TooFewInSync { .. },
            ) => limits::PATIENCE,
            Some(Failed::TooOld | Failed::Behind { .. }) => limits::FRESH_PATIENCE,
            _ => Duration::ZERO,
        }
    }
}

impl ReplicaError for WriteError {
    fn failed(&self) -> Option<&Failed> {
        if let WriteError::Refused(failed) = self { Some(failed) } else { None }
    }
}

impl ReplicaError for ReadError {
    fn failed(&self) -> Option<&Failed> {
        if let ReadError::Refused(failed) = self { Some(failed) } else { None }
    }
}

impl From<WriteError> for Refused {
    fn from(error: WriteError) -> Refused {
        let refusal = match &error {
            WriteError::Invalid(_) | WriteError::TooLarge { .. } => Refusal::Invalid,
            WriteError::NotOpen | WriteError::DiskIsStalled => Refusal::Soon,
            WriteError::Busy => Refusal::Busy,
            WriteError::DiskIsFull => Refusal::NoRoom,
            WriteError::Stopped(_) => Refusal::Stopped,
            WriteError::Refused(failed) => Refusal::of(failed),
            WriteError::Unknown(_) => Refusal::Unknown,
        };
        Refused { refusal, message: error.to_string() }
    }
}

impl From<ReadError> for Refused {
    fn from(error: ReadError) -> Refused {
        let refusal = match &error {
            ReadError::NotOpen => Refusal::Soon,
            ReadError::Busy => Refusal::Busy,
            ReadError::Stopped(_) => Refusal::Stopped,
            ReadError::Refused(failed) => Refusal::of(failed),
        };
        Refused { refusal, message: error.to_string() }
    }
}

impl Tables {
    /// Writes to a replica that leads.
    ///
    /// # Errors
    /// [`Refusal::Unknown`], or a refusal by which nothing was done.
    pub async fn write(&self, replica: &ReplicaKey, write: &Write) -> Result<Outcome, Refused> {
        self.0.counts.write();
        self.with_retries(|| self.0.node.write(replica, write)).await
    }

    /// Reads from a replica, a state that has all entries up to the index `at_least` (0: any).
    ///
    /// # Errors
    /// Why it does not answer.
    pub async fn read(
        &self,
        replica: &ReplicaKey,
        key: &Key,
        consistency: Consistency,
        at_least: u64,
    ) -> Result<ReadAnswer, Refused> {
        self.0.counts.read(consistency);
        self.with_retries(|| self.0.node.read(replica, key, consistency, at_least)).await
    }

    /// Reads a row directly from a replica that knows that it leads, if the row is in memory; none: use [`Tables::read`].
    pub(crate) fn read_at_hand(
        &self,
        replica: &ReplicaKey,
        key: &Key,
        consistency: Consistency,
    ) -> Option<ReadAnswer> {
        let found = self.0.node.read_directly(replica, key, 0)?;
        self.0.counts.read(consistency);
        Some(found)
    }

    pub(super) fn count_write(&self) {
        self.0.counts.write();
    }

    pub(super) fn count_read(&self, consistency: Consistency) {
        self.0.counts.read(consistency);
    }

    pub(super) fn refused(&self, refused: Refused) -> Refused {
        self.0.counts.refused(refused.refusal);
        refused
    }

    /// Reads a page of a replica's rows, from a state that has all entries up to the index `at_least` (0: any).
    ///
    /// # Errors
    /// Why it does not answer.
    pub async fn scan(
        &self,
        replica: &ReplicaKey,
        range: &ScanRange,
        consistency: Consistency,
        at_least: u64,
    ) -> Result<ScanPage, Refused> {
        self.0.counts.read(consistency);
        self.with_retries(|| self.0.node.scan(replica, range.clone(), consistency, at_least)).await
    }

    /// Pins a replica's rows.
    ///
    /// # Errors
    /// Why it does not answer.
    pub(crate) async fn pin(
        &self,
        replica: &ReplicaKey,
        consistency: Consistency,
    ) -> Result<PinnedRows<TreeSnapshot>, Refused> {
        self.0.counts.read(consistency);
        self.with_retries(|| self.0.node.pin(replica, consistency)).await
    }

    /// Asks a replica again after errors that pass, for as long as [`ReplicaError::patience`] says: when a leader begins on this
    /// node, and after a delay in any case, as one may have begun elsewhere.
    pub(super) async fn with_retries<T, E: ReplicaError, F: Future<Output = Result<T, E>>>(
        &self,
        ask: impl Fn() -> F,
    ) -> Result<T, Refused> {
        let (since, backoff, mut began) = (Instant::now(), Backoff::new(), None);
        loop {
            match ask().await {
                Ok(answer) => return Ok(answer),
                Err(error) if since.elapsed() < error.patience() => match &mut began {
                    // A leader may have begun since the replica refused: ask once more before waiting.
                    None => began = Some(self.0.notices.began()),
                    Some(began) => drop(timeout(backoff.delay(), began.changed()).await),
                },
                Err(error) => return Err(self.refused(error.into())),
            }
        }
    }
}
