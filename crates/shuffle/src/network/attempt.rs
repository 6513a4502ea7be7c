//! One attempt of a client on the network: what [`Put`](crate::node::client::Put) is in the process.

use crate::limits::{BUFFERS_NAMED, FULL_REST_MS, LONGEST_FULL_REST_MS, NOTES};
use crate::node::client::PutError;
use crate::node::hears::Hears;
use crate::node::inbox::{Closed, Event, Note};
use crate::node::shared::Shared;
use partage_service::shuffle::buffer::{Attempt, Input};
use partage_service::shuffle::records::PackedRecords;
use partage_service::shuffle::{ShuffleId, Terms};
use partage_shuffle_wire::client::{Again, Refusal, RefusalWord};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// An attempt that is written. One that is dropped before its end is never read.
pub(super) struct OpenAttempt {
    shared: Arc<Shared>,
    attempt: Attempt,
    hears: Hears<Note>,
    notes: mpsc::Receiver<Note>,
    /// How it has ended.
    over: Option<Result<(), Refusal>>,
}

/// A refusal of the node itself.
pub(super) fn refusal(error: PutError) -> Refusal {
    let word = match error {
        PutError::Failed(failed) => return failed.into(),
        PutError::Stopped => RefusalWord::Ending,
        PutError::StoresOnly => RefusalWord::StoresOnly,
        PutError::DiskFull => RefusalWord::DiskFull,
        PutError::TooMany => RefusalWord::Busy,
    };
    Refusal::new(word, Again::Attempt, error)
}

/// Of a node that stores only, with some of those that buffer.
fn stores_only(buffers: &[String]) -> Refusal {
    let named: Vec<&str> = buffers.iter().take(BUFFERS_NAMED).map(String::as_str).collect();
    let why = match named.as_slice() {
        [] => "this node stores only, and it knows of no node that buffers: start one".to_owned(),
        [one] => format!("this node stores only: write to {one}"),
        some => format!("this node stores only: write to one of {}", some.join(", ")),
    };
    Refusal::new(RefusalWord::StoresOnly, Again::Attempt, why)
}

fn ended(_: Closed) -> Refusal {
    refusal(PutError::Stopped)
}

impl OpenAttempt {
    pub(super) async fn open(
        shared: Arc<Shared>,
        attempt: Attempt,
        terms: Terms,
    ) -> Result<OpenAttempt, Refusal> {
        let (sender, notes) = mpsc::channel::<Note>(NOTES);
        let hears = Hears::from(sender);
        let open = OpenAttempt { shared, attempt, hears, notes, over: None };
        open.push(Input::Open(terms)).await?;
        Ok(open)
    }

    pub(super) fn shuffle(&self) -> ShuffleId {
        self.attempt.shuffle
    }

    /// Returns when the buffer has the records. It waits while the buffer has no room.
    pub(super) async fn put(&mut self, frame: u64, records: PackedRecords) -> Result<(), Refusal> {
        let mut rest_ms = FULL_REST_MS;
        loop {
            while let Ok(note) = self.notes.try_recv() {
                self.hear(&note);
            }
            if let Some(over) = &self.over {
                return over.clone();
            }
            self.push(Input::Frame(frame, records.clone())).await?;
            match self.note_on(frame).await {
                Some(Note::Taken(_)) => return Ok(()),
                // Its connection is not read meanwhile.
                Some(Note::Full(_)) => {
                    sleep(Duration::from_millis(rest_ms)).await;
                    rest_ms = (2 * rest_ms).min(LONGEST_FULL_REST_MS);
                }
                // It has ended, or there is no answer: the buffer ignores a frame that it has.
                _ => {}
            }
        }
    }

    /// What the buffer says next of this frame, or that the attempt has ended. What it says of an earlier one is late: handing
    /// the frame in because of that would get one answer too many, which would be late for the next one.
    async fn note_on(&mut self, frame: u64) -> Option<Note> {
        loop {
            match self.next_note().await {
                Some(Note::Taken(number) | Note::Full(number)) if number != frame => {}
                note => return note,
            }
        }
    }

    /// Returns when the attempt is stored on as many nodes as the pool says, or has failed.
    pub(super) async fn end(mut self, records: u64, bytes: u64) -> Result<(), Refusal> {
        loop {
            if let Some(over) = &self.over {
                return over.clone();
            }
            self.push(Input::End(records, bytes)).await?;
            self.next_note().await;
        }
    }

    async fn push(&self, input: Input) -> Result<(), Refusal> {
        let event = Event::Input(self.attempt, input, self.hears.clone());
        self.shared.inbox.push_when_room(event).await.map_err(ended)
    }

    /// What the buffer says next; none: it says nothing for long.
    async fn next_note(&mut self) -> Option<Note> {
        let patience = Duration::from_millis(self.shared.settings.question_ms / 2);
        let note = timeout(patience, self.notes.recv()).await.ok().flatten();
        match &note {
            Some(note) => self.hear(note),
            None if self.shared.inbox.is_closed() => self.over = Some(Err(refusal(PutError::Stopped))),
            None => {}
        }
        note
    }

    fn hear(&mut self, note: &Note) {
        let over = match note {
            Note::Answer(answer) => answer.map_err(Refusal::from),
            Note::StoresOnly => Err(stores_only(&self.shared.buffers())),
            Note::DiskFull => Err(refusal(PutError::DiskFull)),
            Note::TooMany => Err(refusal(PutError::TooMany)),
            Note::Taken(_) | Note::Full(_) => return,
        };
        // What was handed in before the node had refused the attempt is of one that the buffer does not know.
        self.over.get_or_insert(over);
    }
}

impl Drop for OpenAttempt {
    fn drop(&mut self) {
        if self.over.is_none() {
            // If there is no room for it, the buffer gives the attempt up when it is silent for long.
            self.shared.inbox.try_push(Event::Input(self.attempt, Input::Abort, self.hears.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::NodeSettings;
    use crate::node::inbox::Inbox;
    use partage_clock::Clock;
    use partage_service::shuffle::AttemptId;
    use partage_service::shuffle::pool::PoolMap;
    use tokio::task::yield_now;

    fn pushed(inbox: &Inbox) -> usize {
        let mut waiting = inbox.take(Duration::ZERO).unwrap();
        let mut count = 0;
        loop {
            count += waiting.short.len() + usize::from(waiting.bulk.is_some());
            if waiting.bulk.is_none() {
                return count;
            }
            waiting = inbox.take_more();
        }
    }

    #[test]
    fn a_node_that_stores_only_names_some_that_buffer() {
        let buffers: Vec<String> = (1..=20).map(|at| format!("10.0.0.{at}:7700")).collect();
        assert!(stores_only(&[]).why.contains("knows of no node"));
        assert_eq!(stores_only(&buffers[..1]).why, "this node stores only: write to 10.0.0.1:7700");
        let some = stores_only(&buffers);
        assert!(
            some.why.starts_with("this node stores only: write to one of 10.0.0.1:7700, 10.0.0.2:7700, ")
        );
        assert_eq!(some.why.matches(":7700").count(), BUFFERS_NAMED);
        assert_eq!((some.word, some.again), (RefusalWord::StoresOnly, Again::Attempt));
    }

    #[tokio::test]
    async fn a_late_answer_does_not_hand_a_frame_in_again() {
        let inbox = Arc::new(Inbox::new(16, 1 << 20));
        let map = PoolMap {
            generation: 1,
            replicas: 1,
            places: Vec::new(),
            nodes: Vec::new(),
            no_stand_ins: Default::default(),
        };
        let settings = NodeSettings::default();
        let shared = Arc::new(Shared::new(Arc::clone(&inbox), Clock::start(), settings, Arc::new(map)));
        let attempt = Attempt { shuffle: ShuffleId(1), partition: 0, id: AttemptId(1) };
        let mut open = OpenAttempt::open(shared, attempt, Terms::new(1, 1)).await.unwrap();
        assert_eq!(pushed(&inbox), 1);
        let hears = open.hears.clone();
        let buffer = async {
            while pushed(&inbox) == 0 {
                yield_now().await;
            }
            hears.tell(Note::Taken(1));
            for _ in 0..10 {
                yield_now().await;
            }
            assert_eq!(pushed(&inbox), 0, "its own answer is still to come");
            hears.tell(Note::Taken(2));
        };
        let (put, ()) = tokio::join!(open.put(2, PackedRecords::default()), buffer);
        put.unwrap();
    }
}
