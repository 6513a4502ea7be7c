//! One read: the machine of a reader, in the thread or the task of the client that reads.

use crate::limits;
use crate::node::hears::Hears;
use crate::node::inbox::{Event, ReadAnswer};
use crate::node::shared::Shared;
use partage_service::shuffle::Bytes;
use partage_service::shuffle::ordered_records::OrderedRecords;
use partage_service::shuffle::partition::CutBy;
use partage_service::shuffle::plan::Plan;
use partage_service::shuffle::reader::{self, Effect, Failed, Reader};
use partage_service::shuffle::seek::{Found, SeekFor};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// Why a read ends without all of its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// No holder gave them, or the shuffle has ended.
    #[error("{0}")]
    Failed(Failed),
    /// The node of the reader has ended.
    #[error("the node of the reader has ended: read again at another one")]
    Stopped,
}

/// What is to be read of a sealed shuffle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Partition `i` of `n`, cut so.
    Partition(u64, u64, CutBy),
    /// These ranks among all records, from the first, included, to the second.
    Ranks(u64, u64),
    /// Keys from the first, included, to the second, or to the last one.
    Keys(Bytes, Option<Bytes>),
    /// No records, but to know something of ranges.
    Sought(Vec<(usize, SeekFor)>),
}

/// What comes next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Records.
    Piece(OrderedRecords),
    /// What was sought in a range, and found.
    Found(usize, SeekFor, Found),
    /// No more.
    Over(Result<(), ReadError>),
    /// An answer has to come, within that time.
    Wait(Duration),
}

/// The machine, and what it wants done.
#[derive(Debug)]
pub(crate) struct Steps {
    shared: Arc<Shared>,
    reader: Reader,
    generation: u64,
    hears: Hears<ReadAnswer>,
    effects: VecDeque<Effect>,
    over: Option<Result<(), ReadError>>,
}

impl Steps {
    /// The answers come to `hears`, which has room for [`limits::ANSWERS`].
    pub(crate) fn new(
        shared: Arc<Shared>,
        plan: &Arc<Plan>,
        wanted: Wanted,
        hears: Hears<ReadAnswer>,
    ) -> Steps {
        let map = shared.map();
        let generation = map.generation;
        let (with, settings) = ((Arc::clone(plan), map), shared.settings.machines.clone());
        let reader = match wanted {
            Wanted::Partition(i, n, by) => Reader::of_partition(with, settings, (i, n, by)),
            Wanted::Ranks(from, to) => Reader::of_ranks(with, settings, (from, to)),
            Wanted::Sought(seeks) => Reader::of_seeks(with, settings, seeks),
            Wanted::Keys(first, end) => Reader::of_keys(with, settings, (first, end)),
        };
        Steps { shared, reader, generation, hears, effects: VecDeque::new(), over: None }
    }

    /// What comes next.
    pub(crate) fn next(&mut self) -> Step {
        loop {
            if let Some(over) = self.over {
                return Step::Over(over);
            }
            match self.effects.pop_front() {
                Some(Effect::Records(records)) => return Step::Piece(records),
                Some(Effect::Found(range, what, found)) => return Step::Found(range, what, found),
                Some(Effect::Ask(node, number, slice)) => {
                    // Without room for the question the machine asks another holder in time.
                    let question = Event::Read(node, slice, number, self.hears.clone());
                    self.shared.inbox.try_push(question);
                }
                Some(Effect::Seek(node, number, seek)) => {
                    let question = Event::Seek(node, seek, number, self.hears.clone());
                    self.shared.inbox.try_push(question);
                }
                Some(Effect::Done) => self.over = Some(Ok(())),
                Some(Effect::Failed(failed)) => self.over = Some(Err(ReadError::Failed(failed))),
                None if self.shared.inbox.is_closed() => self.over = Some(Err(ReadError::Stopped)),
                None => {
                    let (now, map) = (self.shared.clock.now(), self.shared.map());
                    if map.generation > self.generation {
                        self.generation = map.generation;
                        self.handle(reader::Event::Map(map));
                    } else if now >= self.reader.wake_at() {
                        self.handle(reader::Event::Tick);
                    } else {
                        let wait = self.reader.wake_at().since(now).min(limits::READER_LOOK_MS);
                        return Step::Wait(Duration::from_millis(wait));
                    }
                }
            }
        }
    }

    /// An answer has come.
    pub(crate) fn answered(&mut self, answer: ReadAnswer) {
        self.handle(answer);
    }

    fn handle(&mut self, event: reader::Event) {
        let now = self.shared.clock.now();
        self.effects.extend(self.reader.handle(now, event));
    }
}

/// The records of a read, in pieces, in their order.
#[derive(Debug)]
pub struct Reading {
    steps: Steps,
    answers: Receiver<ReadAnswer>,
}

impl Reading {
    pub(super) fn new(shared: Arc<Shared>, plan: &Arc<Plan>, wanted: Wanted) -> Reading {
        let (sender, answers) = sync_channel::<ReadAnswer>(limits::ANSWERS);
        Reading { steps: Steps::new(shared, plan, wanted, sender.into()), answers }
    }
}

impl Iterator for Reading {
    type Item = Result<OrderedRecords, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        // An error is said once.
        let is_said = self.steps.over.is_some();
        loop {
            match self.steps.next() {
                Step::Piece(records) => return Some(Ok(records)),
                // It reads records, and seeks nothing but its own ends.
                Step::Found(..) => {}
                Step::Over(Err(error)) if !is_said => return Some(Err(error)),
                Step::Over(_) => return None,
                Step::Wait(wait) => {
                    if let Ok(answer) = self.answers.recv_timeout(wait) {
                        self.steps.answered(answer);
                    }
                }
            }
        }
    }
}
