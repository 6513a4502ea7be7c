//! What waits for the thread of a node.
//!
//! | lane | who adds | its bound |
//! |---|---|---|
//! | events | other nodes, clients, the coordinator | a number and bytes: a packet that does not fit is dropped, a client waits |
//! | bulk: frames of clients, and batches | clients, other nodes | the same, together with the events; the last eighth is for shuffles of which little waits |
//! | done | the threads that write and read, and the log | one answer for each order that the node has given, and those are bounded |
//!
//! The thread takes all that is done and all events at once. Of bulk it takes little at a time, and shuffles take turns. So a
//! frame or a batch may come after an event that was added later. That changes nothing: a client ends an attempt when it knows
//! that its frames are taken, and messages between nodes overtake each other anyway. A question whether a batch is stored waits
//! behind the batches of its shuffle, as its answer says whether they were lost.
//!
//! So no thread of the node waits for another one in a circle: who adds to `done` never waits.

use super::hears::Hears;
use super::reading::TakenMemory;
use super::transport::Packet;
use crate::limits::BULK_AT_ONCE;
use crate::store::{Damage, Place, Written};
use partage_core::base::name::NodeId;
use partage_log::Report;
use partage_service::shuffle::buffer::{self, Attempt, Input};
use partage_service::shuffle::holder::{NotRead, OffloadOutcome, Slice};
use partage_service::shuffle::leader::{Answer, Failed, Request, ShuffleOverview};
use partage_service::shuffle::message::{AskOrder, Message, Word};
use partage_service::shuffle::ordered_records::OrderedRecords;
use partage_service::shuffle::plan::Division;
use partage_service::shuffle::pool::PoolMap;
use partage_service::shuffle::reader;
use partage_service::shuffle::record::{Batch, BatchKey, Segment};
use partage_service::shuffle::seek::{Found, Seek};
use partage_service::shuffle::turns::{Turns, may_wait};
use partage_service::shuffle::{BufferId, PoolSlot, ShuffleId};
use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// What a client hears of its attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    /// The frame of that number is in the buffer.
    Taken(u64),
    /// There is no room for it now.
    Full(u64),
    /// How the attempt has ended.
    Answer(Result<(), buffer::Failed>),
    /// The node takes no attempts, as it stores only.
    StoresOnly,
    /// The node takes no new attempt, as its disk is full.
    DiskFull,
    /// The node has as many attempts as it may have.
    TooMany,
}

/// An answer to a reader, with the number of its question: records, what was sought, or a refusal.
pub(crate) type ReadAnswer = reader::Event;

/// What comes from outside.
#[derive(Debug)]
pub(crate) enum Event {
    Packet(NodeId, Packet),
    Map(Arc<PoolMap>),
    Input(Attempt, Input, Hears<Note>),
    Request(ShuffleId, Request, Hears<Result<Answer, Failed>>),
    Read(NodeId, Slice, u64, Hears<ReadAnswer>),
    Seek(NodeId, Seek, u64, Hears<ReadAnswer>),
    Status(ShuffleId, Hears<Word>),
    /// The disk fills, and has this; or nothing of it: it has room.
    MakeRoom(Vec<(ShuffleId, PoolSlot, u64)>),
    /// The shuffles that are led here.
    Overviews(oneshot::Sender<Vec<ShuffleOverview>>),
    /// A replica in `Load` begins anew; the sender hears when that is so.
    LoadBegins(PoolSlot, oneshot::Sender<()>),
    /// The pool is gone, and with it the slot.
    SlotDeleted(PoolSlot),
    /// Whether something of the slot is here.
    HasSlot(PoolSlot, oneshot::Sender<bool>),
    /// Whether something of any slot is here.
    HasSlots(oneshot::Sender<bool>),
}

impl Event {
    fn bytes(&self) -> u64 {
        match self {
            Event::Packet(_, packet) => packet.bytes(),
            Event::Input(_, Input::Frame(_, records), _) => records.memory(),
            _ => 0,
        }
    }

    /// The shuffle of a frame or a batch, which wait for their turn.
    fn bulk_of(&self) -> Option<ShuffleId> {
        match self {
            Event::Input(attempt, Input::Frame(..), _) => Some(attempt.shuffle),
            Event::Packet(_, Packet::Message(Message::Batch(batch))) => Some(batch.key.stream.shuffle),
            Event::Packet(_, Packet::Message(Message::AskStored(key, AskOrder::Behind))) => {
                Some(key.stream.shuffle)
            }
            _ => None,
        }
    }
}

/// What threads of the node have done.
#[derive(Debug)]
pub(crate) enum Done {
    Written(Written),
    Damaged(BatchKey, Place, Damage),
    Log(Report),
    Passed(NodeId, Arc<Batch>),
    /// With the memory that was taken for it: from here on it is the buffer's.
    Divided(NodeId, Arc<Division>, Vec<Segment>, TakenMemory),
    Counted(NodeId, Message),
    /// Also a refusal to look for something.
    Read(u64, Result<OrderedRecords, NotRead>),
    Found(u64, Found),
    /// Whether a slot of a shuffle is in the object store.
    Offloaded(ShuffleId, PoolSlot, OffloadOutcome),
    /// Whether what a process has put of it is seen from here.
    ObjectsSeen(ShuffleId, PoolSlot, BufferId, bool),
    /// Whether it is deleted there.
    ObjectsDeleted(ShuffleId, PoolSlot, bool),
    /// Of which slots of shuffles there are objects.
    ObjectsFound(Vec<(ShuffleId, PoolSlot)>),
    Ended(String),
}

/// What the thread takes at once.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) events: VecDeque<Event>,
    pub(crate) done: VecDeque<Done>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Waiting,
    bulk: Turns<ShuffleId, Event>,
    /// What bulk takes in memory, of each shuffle of which some waits.
    of: BTreeMap<ShuffleId, u64>,
    /// The same of all events.
    bytes: u64,
    is_closed: bool,
}

impl State {
    fn has_room(&self, event: &Event, most_bytes: u64) -> bool {
        let bytes = event.bytes();
        let Some(shuffle) = event.bulk_of() else { return self.bytes + bytes <= most_bytes };
        let own = self.of.get(&shuffle).copied();
        let shuffles = self.of.len() as u64 + u64::from(own.is_none());
        may_wait((self.bytes, most_bytes), (own.unwrap_or(0), shuffles), bytes)
    }

    fn add(&mut self, event: Event) {
        let bytes = event.bytes();
        self.bytes += bytes;
        match event.bulk_of() {
            Some(shuffle) => {
                *self.of.entry(shuffle).or_default() += bytes;
                self.bulk.push(shuffle, event, bytes);
            }
            None => self.waiting.events.push_back(event),
        }
    }

    /// All events, and some bulk behind them.
    fn take(&mut self) -> Waiting {
        let mut waiting = std::mem::take(&mut self.waiting);
        self.bytes = self.of.values().sum();
        let mut taken = 0;
        while taken < BULK_AT_ONCE
            && let Some(event) = self.bulk.pop()
        {
            let bytes = event.bytes();
            taken += bytes;
            self.bytes -= bytes;
            self.take_from(event.bulk_of(), bytes);
            waiting.events.push_back(event);
        }
        waiting
    }

    fn take_from(&mut self, of: Option<ShuffleId>, bytes: u64) {
        let Some(shuffle) = of else { return };
        if let Some(waits) = self.of.get_mut(&shuffle) {
            *waits -= bytes;
        }
        if self.bulk.len_of(&shuffle) == 0 {
            self.of.remove(&shuffle);
        }
    }
}

/// The node takes nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed;

#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    filled: Condvar,
    emptied: Condvar,
    /// The same for tasks.
    has_room: Notify,
    most_events: usize,
    most_bytes: u64,
}

impl Inbox {
    pub(crate) fn new(most_events: usize, most_bytes: u64) -> Inbox {
        let (state, filled, emptied, has_room) = Default::default();
        Inbox { state, filled, emptied, has_room, most_events, most_bytes }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked while it had the lock has changed nothing by halves: each change is one push.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_full(&self, state: &State, event: &Event) -> bool {
        let events = state.waiting.events.len() + state.bulk.len();
        events > 0 && (events >= self.most_events || !state.has_room(event, self.most_bytes))
    }

    fn add(&self, mut state: MutexGuard<'_, State>, event: Event) {
        state.add(event);
        drop(state);
        self.filled.notify_one();
    }

    /// Adds an event if there is room. False: it is dropped.
    pub(crate) fn try_push(&self, event: Event) -> bool {
        let state = self.lock();
        if state.is_closed || self.is_full(&state, &event) {
            return false;
        }
        self.add(state, event);
        true
    }

    /// Adds an event, and waits for room.
    pub(crate) fn push(&self, event: Event) -> Result<(), Closed> {
        let waits = |state: &mut State| !state.is_closed && self.is_full(state, &event);
        let state = self.emptied.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            return Err(Closed);
        }
        self.add(state, event);
        Ok(())
    }

    /// The same for a task. One that is dropped before it is done has added nothing.
    pub(crate) async fn push_when_room(&self, event: Event) -> Result<(), Closed> {
        loop {
            let mut has_room = pin!(self.has_room.notified());
            has_room.as_mut().enable();
            {
                let state = self.lock();
                if state.is_closed {
                    return Err(Closed);
                }
                if !self.is_full(&state, &event) {
                    self.add(state, event);
                    return Ok(());
                }
            }
            has_room.await;
        }
    }

    /// Adds what is done.
    pub(crate) fn done(&self, done: Done) {
        let mut state = self.lock();
        if !state.is_closed {
            state.waiting.done.push_back(done);
            drop(state);
            self.filled.notify_one();
        }
    }

    /// Takes what waits, some of what is bulk; waits so long for something. None: the node is to end.
    pub(crate) fn take(&self, wait: Duration) -> Option<Waiting> {
        let is_idle = |state: &mut State| {
            let Waiting { events, done } = &state.waiting;
            !state.is_closed && events.is_empty() && done.is_empty() && state.bulk.is_empty()
        };
        let waited = self.filled.wait_timeout_while(self.lock(), wait, is_idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.is_closed {
            return None;
        }
        let waiting = state.take();
        drop(state);
        self.emptied.notify_all();
        self.has_room.notify_waiters();
        Some(waiting)
    }

    /// Waits so long, or until the node ends.
    pub(crate) fn pause(&self, time: Duration) -> Result<(), Closed> {
        let waited = self.emptied.wait_timeout_while(self.lock(), time, |state| !state.is_closed);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.is_closed { Err(Closed) } else { Ok(()) }
    }

    /// What records in events that wait take in memory, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// The node ends: what waits is dropped, and with it what clients wait on.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let (waiting, bulk) = (std::mem::take(&mut state.waiting), std::mem::take(&mut state.bulk));
        drop(state);
        drop((waiting, bulk));
        self.filled.notify_all();
        self.emptied.notify_all();
        self.has_room.notify_waiters();
    }
}

/// A thread of the node has this while it runs. If the thread panics, the node ends and says so: what was ordered from the thread
/// would be waited for without end.
#[derive(Debug)]
pub(crate) struct EndsAtPanic {
    inbox: Arc<Inbox>,
    thread: &'static str,
}

impl EndsAtPanic {
    pub(crate) fn new(inbox: &Arc<Inbox>, thread: &'static str) -> EndsAtPanic {
        EndsAtPanic { inbox: Arc::clone(inbox), thread }
    }
}

impl Drop for EndsAtPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let why = format!(
                "the thread that {} has panicked: report this, and start the process again",
                self.thread
            );
            self.inbox.done(Done::Ended(why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_service::shuffle::AttemptId;
    use partage_service::shuffle::records::PackedRecords;
    use std::sync::mpsc::sync_channel;

    fn frame(bytes: usize) -> Event {
        frame_of(1, bytes)
    }

    fn frame_of(shuffle: u128, bytes: usize) -> Event {
        let attempt = Attempt { shuffle: ShuffleId(shuffle), partition: 0, id: AttemptId(1) };
        let records = PackedRecords::pack([(&vec![0; bytes][..], &[][..])]);
        Event::Input(attempt, Input::Frame(1, records), sync_channel(1).0.into())
    }

    #[test]
    fn r1_what_does_not_fit_is_dropped_and_one_always_fits() {
        let inbox = Inbox::new(3, 300);
        assert!(inbox.try_push(frame(1_000)), "one is always taken");
        assert!(!inbox.try_push(frame(1)));
        assert_eq!(inbox.take(Duration::ZERO).unwrap().events.len(), 1);
        assert!((0..3).all(|_| inbox.try_push(frame(1))));
        assert!(!inbox.try_push(frame(1)), "no more than three");
        inbox.done(Done::Ended(String::new()));
        let waiting = inbox.take(Duration::ZERO).unwrap();
        assert_eq!((waiting.events.len(), waiting.done.len()), (3, 1));
    }

    #[test]
    fn r1_before_a_frame_of_a_shuffle_that_trickles_no_more_of_a_flood_is_taken_than_at_once() {
        let inbox = Inbox::new(1_000, 64 << 20);
        let shuffles = || -> Vec<u128> {
            let events = inbox.take(Duration::ZERO).unwrap().events;
            events.iter().map(|event| event.bulk_of().map_or(0, |shuffle| shuffle.0)).collect()
        };
        let flooded = (0..).take_while(|_| inbox.try_push(frame_of(1, 256 << 10))).count();
        assert_eq!(flooded, 4 * 56 - 1, "an eighth is for others");
        assert_eq!(shuffles(), [1; 4]);
        for _ in 0..5 {
            assert!(inbox.try_push(frame_of(2, 1_000)));
        }
        assert!(inbox.try_push(Event::MakeRoom(Vec::new())));
        assert_eq!(shuffles(), [0, 2, 2, 2, 2, 2, 1, 1, 1, 1]);
        while !shuffles().is_empty() {}
        assert!(inbox.bytes() == 0 && inbox.lock().of.is_empty());
    }

    #[test]
    fn r1_records_of_length_zero_take_room() {
        let frame = || {
            let attempt = Attempt { shuffle: ShuffleId(1), partition: 0, id: AttemptId(1) };
            let records = PackedRecords::pack(std::iter::repeat_n((&[][..], &[][..]), 80));
            Event::Input(attempt, Input::Frame(1, records), sync_channel(1).0.into())
        };
        let inbox = Inbox::new(100, 1_000);
        assert!(inbox.try_push(frame()));
        assert!(!inbox.try_push(frame()));
    }

    #[tokio::test]
    async fn a_task_waits_for_room_and_is_let_go_when_the_node_ends() {
        let inbox = Arc::new(Inbox::new(1, 100));
        inbox.push_when_room(frame(1)).await.unwrap();
        let other = Arc::clone(&inbox);
        let pushing = tokio::spawn(async move {
            (other.push_when_room(frame(2)).await, other.push_when_room(frame(3)).await)
        });
        while inbox.take(Duration::ZERO).unwrap().events.is_empty() {}
        while inbox.lock().bulk.is_empty() {
            tokio::task::yield_now().await;
        }
        inbox.close();
        assert_eq!(pushing.await.unwrap(), (Ok(()), Err(Closed)));
    }

    #[test]
    fn a_client_waits_for_room_and_is_let_go_when_the_node_ends() {
        let inbox = Arc::new(Inbox::new(1, 100));
        inbox.push(frame(1)).unwrap();
        let other = Arc::clone(&inbox);
        let pushing = std::thread::spawn(move || (other.push(frame(2)), other.push(frame(3))));
        while inbox.take(Duration::from_secs(5)).unwrap().events.is_empty() {}
        while inbox.lock().bulk.is_empty() {
            std::thread::yield_now();
        }
        // The second one is in, the third one waits.
        inbox.close();
        assert_eq!(pushing.join().unwrap(), (Ok(()), Err(Closed)));
        assert_eq!(inbox.pause(Duration::from_secs(60)), Err(Closed));
        assert!(inbox.take(Duration::ZERO).is_none() && !inbox.try_push(frame(1)));
    }
}
