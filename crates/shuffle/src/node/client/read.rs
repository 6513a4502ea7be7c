//! One read: the machine of a reader, in the thread of the client that reads.

use crate::limits;
use crate::node::inbox::{Event, ReadAnswer};
use crate::node::shared::Shared;
use partage_service::shuffle::Bytes;
use partage_service::shuffle::plan::{Placed, Plan};
use partage_service::shuffle::reader::{self, Effect, Failed, Reader};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
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

/// The records of a read, in pieces, in their order.
#[derive(Debug)]
pub struct Reading {
    shared: Arc<Shared>,
    reader: Reader,
    generation: u64,
    sender: SyncSender<ReadAnswer>,
    answers: Receiver<ReadAnswer>,
    effects: VecDeque<Effect>,
    is_over: bool,
}

impl Reading {
    pub(super) fn of_partition(shared: Arc<Shared>, plan: &Arc<Plan>, part: (u64, u64)) -> Reading {
        let with = (Arc::clone(plan), shared.map());
        // Readers of different partitions begin with different holders.
        let turn = usize::try_from(part.0).unwrap_or(0);
        let reader = Reader::of_partition(with, shared.settings.machines.clone(), part, turn);
        Reading::new(shared, reader)
    }

    pub(super) fn of_keys(shared: Arc<Shared>, plan: &Arc<Plan>, keys: (Bytes, Option<Bytes>)) -> Reading {
        let with = (Arc::clone(plan), shared.map());
        let reader = Reader::of_keys(with, shared.settings.machines.clone(), keys, 0);
        Reading::new(shared, reader)
    }

    fn new(shared: Arc<Shared>, reader: Reader) -> Reading {
        let (sender, answers) = sync_channel(limits::ANSWERS);
        let generation = shared.map().generation;
        Reading { shared, reader, generation, sender, answers, effects: VecDeque::new(), is_over: false }
    }

    /// Hands the machine what has come, or waits for it.
    fn go_on(&mut self) {
        let (now, map) = (self.shared.clock.now(), self.shared.map());
        let event = if map.generation > self.generation {
            self.generation = map.generation;
            reader::Event::Map(map)
        } else if now >= self.reader.wake_at() {
            reader::Event::Tick
        } else {
            let wait = self.reader.wake_at().since(now).min(limits::READER_LOOK_MS);
            match self.answers.recv_timeout(Duration::from_millis(wait)) {
                Ok((number, answer)) => reader::Event::Answer(number, answer),
                Err(_) => return,
            }
        };
        let now = self.shared.clock.now();
        self.effects.extend(self.reader.handle(now, event));
    }
}

impl Iterator for Reading {
    type Item = Result<Vec<Placed>, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_over {
            match self.effects.pop_front() {
                Some(Effect::Records(records)) => return Some(Ok(records)),
                Some(Effect::Ask(node, number, slice)) => {
                    // Without room for the question the machine asks another holder in time.
                    let question = Event::Read(node, slice, number, self.sender.clone());
                    let _ = self.shared.inbox.try_push(question);
                }
                Some(Effect::Done) => self.is_over = true,
                Some(Effect::Failed(failed)) => {
                    self.is_over = true;
                    return Some(Err(ReadError::Failed(failed)));
                }
                None if self.shared.inbox.is_closed() => {
                    self.is_over = true;
                    return Some(Err(ReadError::Stopped));
                }
                None => self.go_on(),
            }
        }
        None
    }
}
