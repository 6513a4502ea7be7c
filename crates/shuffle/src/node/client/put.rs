//! One attempt of an input partition.

use crate::limits;
use crate::node::inbox::{Closed, Event, Note};
use crate::node::shared::Shared;
use partage_service::shuffle::Terms;
use partage_service::shuffle::buffer::{Attempt, Failed, Input};
use partage_service::shuffle::records::PackedRecords;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Why an attempt is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// The buffer has given it up.
    #[error("{0}")]
    Failed(Failed),
    /// The node has ended.
    #[error("the node of the attempt has ended: run the attempt again at another one")]
    Stopped,
    /// The node takes no attempts.
    #[error("the node stores only: run the attempt again at a node that buffers")]
    StoresOnly,
    /// The disk of the node is full.
    #[error("the disk of the node is full: run the attempt again later, or at another node")]
    DiskFull,
    /// The node has too many attempts.
    #[error("the node has as many attempts as it may have: run the attempt again later, or at another node")]
    TooMany,
}

impl PutError {
    /// Whether the attempt may succeed if it is run again, under another id.
    pub fn runs_again(&self) -> bool {
        match self {
            PutError::Stopped | PutError::StoresOnly | PutError::DiskFull | PutError::TooMany => true,
            PutError::Failed(failed) => match failed {
                Failed::IdTwice
                | Failed::FrameMissing { .. }
                | Failed::CountDiffers { .. }
                | Failed::Unknown
                | Failed::TooFewNodes { .. }
                | Failed::Silent { .. } => true,
                Failed::TooLarge { .. }
                | Failed::FrameTooLarge { .. }
                | Failed::NoNumber(_)
                | Failed::CombinesOtherwise
                | Failed::OtherDurability
                | Failed::Sealed
                | Failed::Over(_)
                | Failed::ShuffleFailed => false,
            },
        }
    }
}

impl From<Closed> for PutError {
    fn from(_: Closed) -> PutError {
        PutError::Stopped
    }
}

/// An attempt that is written. One that is dropped before its end is never read.
#[derive(Debug)]
pub struct Put {
    shared: Arc<Shared>,
    attempt: Attempt,
    sender: SyncSender<Note>,
    notes: Receiver<Note>,
    frames: u64,
    records: u64,
    bytes: u64,
    /// How it has ended.
    over: Option<Result<(), PutError>>,
}

impl Put {
    pub(super) fn open(shared: Arc<Shared>, attempt: Attempt, terms: Terms) -> Result<Put, Closed> {
        let (sender, notes) = sync_channel::<Note>(limits::NOTES);
        shared.inbox.push(Event::Input(attempt, Input::Open(terms), sender.clone().into()))?;
        Ok(Put { shared, attempt, sender, notes, frames: 0, records: 0, bytes: 0, over: None })
    }

    /// Which attempt it is.
    pub fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// Writes some records behind those before, and returns when the buffer has them. It waits while the buffer has no room. A
    /// piece of some 256 KiB is cheap; one should be far below what a buffer holds.
    ///
    /// # Errors
    /// The attempt has failed; [`PutError::runs_again`] says whether to run it again.
    pub fn put(&mut self, records: PackedRecords) -> Result<(), PutError> {
        let frame = self.frames + 1;
        loop {
            if let Some(over) = self.over {
                return over;
            }
            self.push(Input::Frame(frame, records.clone()))?;
            match self.next_note() {
                Some(Note::Taken(number)) if number == frame => break,
                Some(Note::Full(number)) if number == frame => {
                    self.shared.inbox.pause(Duration::from_millis(limits::FULL_REST_MS))?;
                }
                // What is late or has no answer: the buffer ignores a frame that it has.
                _ => {}
            }
        }
        self.frames = frame;
        self.records += records.count();
        self.bytes += records.content_bytes();
        Ok(())
    }

    /// Ends the attempt, and returns when it is stored on as many nodes as the pool says.
    ///
    /// # Errors
    /// The attempt has failed; [`PutError::runs_again`] says whether to run it again.
    pub fn end(mut self) -> Result<(), PutError> {
        loop {
            if let Some(over) = self.over {
                return over;
            }
            self.push(Input::End(self.records, self.bytes))?;
            self.next_note();
        }
    }

    fn push(&self, input: Input) -> Result<(), Closed> {
        self.shared.inbox.push(Event::Input(self.attempt, input, self.sender.clone().into()))
    }

    /// What the buffer says next; none: it says nothing for long.
    fn next_note(&mut self) -> Option<Note> {
        let patience = Duration::from_millis(self.shared.settings.question_ms / 2);
        let note = self.notes.recv_timeout(patience).ok();
        match &note {
            Some(Note::Answer(answer)) => self.over = Some(answer.map_err(PutError::Failed)),
            Some(Note::StoresOnly) => self.over = Some(Err(PutError::StoresOnly)),
            Some(Note::DiskFull) => self.over = Some(Err(PutError::DiskFull)),
            Some(Note::TooMany) => self.over = Some(Err(PutError::TooMany)),
            None if self.shared.inbox.is_closed() => self.over = Some(Err(PutError::Stopped)),
            _ => {}
        }
        note
    }
}

impl Drop for Put {
    fn drop(&mut self) {
        if self.over.is_none() {
            // If there is no room for it, the buffer gives the attempt up when it is silent for long.
            let event = Event::Input(self.attempt, Input::Abort, self.sender.clone().into());
            let _ = self.shared.inbox.try_push(event);
        }
    }
}
