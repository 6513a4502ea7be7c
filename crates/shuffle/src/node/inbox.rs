//! What waits for the thread of a node.
//!
//! | lane | who adds | its bound |
//! |---|---|---|
//! | bulk: frames of clients, batches, and what is not to overtake them | clients, other nodes | a number, and bytes with those of the next lane; the last eighth is for shuffles of which little waits. Who adds waits for room |
//! | short: all other events | other nodes, clients, the coordinator | the same number again |
//! | done | the threads that write and read, and the log | one answer for each order that the node has given, and those are bounded |
//!
//! So no thread of the node waits for another one in a circle: who adds to `done` never waits.
//!
//! What is done and what is short goes before each piece of bulk. Most of it is one of several steps of what somebody waits
//! for, as the start of a shuffle is decided by three nodes in turn, and to divide one frame takes as long as many of them.
//! Of bulk the thread takes one piece at a time, and shuffles take turns. So a frame or a batch may come after an event that was
//! added later. That changes nothing: the end of an attempt stays behind its frames, messages between nodes overtake each
//! other anyway, and a question whether a batch is stored waits behind the batches of its shuffle, as its answer says whether
//! they were lost.

use super::hears::Hears;
use super::reading::TakenMemory;
use super::transport::Packet;
use crate::store::{Damage, Place, Written};
use partage_core::base::name::NodeId;
use partage_log::Report;
use partage_service::shuffle::buffer::{self, Attempt, Input};
use partage_service::shuffle::holder::{NotRead, OffloadOutcome, Slice};
use partage_service::shuffle::leader::{Answer, Failed, Request, ShuffleOverview};
use partage_service::shuffle::message::{Message, Word};
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
    /// The shuffle of what takes long, or is behind what does.
    fn bulk_of(&self) -> Option<ShuffleId> {
        match self {
            Event::Input(attempt, input, _) if !matches!(input, Input::Open(_)) => Some(attempt.shuffle),
            Event::Packet(_, packet) => packet.turn_of(),
            _ => None,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Event::Packet(_, packet) => packet.bytes(),
            Event::Input(_, Input::Frame(_, records), _) => records.memory(),
            _ => 0,
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

/// What the thread takes at once: one piece of what is bulk, and all else.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) short: VecDeque<Event>,
    pub(crate) bulk: Option<Event>,
    pub(crate) done: VecDeque<Done>,
}

#[derive(Debug, Default)]
struct State {
    short: VecDeque<Event>,
    bulk: Turns<ShuffleId, Event>,
    done: VecDeque<Done>,
    /// What bulk takes in memory, of each shuffle of which some waits.
    bulk_bytes: BTreeMap<ShuffleId, u64>,
    short_bytes: u64,
    /// Of both.
    bytes: u64,
    /// The thread of the node waits, and was not woken yet. To wake one that does not wait is a call of the system all the same.
    is_waiting: bool,
    /// Threads that wait for room.
    waiting_for_room: usize,
    /// There is room of which those that wait for it were not told yet.
    has_new_room: bool,
    is_closed: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.short.is_empty() && self.bulk.is_empty() && self.done.is_empty()
    }

    /// Whether an event has no room. The first one of a lane always has.
    fn is_full(&self, event: &Event, (most_events, most_bytes): (usize, u64)) -> bool {
        let bytes = event.bytes();
        let Some(shuffle) = event.bulk_of() else {
            let is_beyond = bytes > 0 && self.bytes + bytes > most_bytes;
            return !self.short.is_empty() && (self.short.len() >= most_events || is_beyond);
        };
        let own = self.bulk_bytes.get(&shuffle).copied();
        let shuffles = self.bulk_bytes.len() as u64 + u64::from(own.is_none());
        let fits = bytes == 0 || may_wait((self.bytes, most_bytes), (own.unwrap_or(0), shuffles), bytes);
        let waiting = (self.bulk.len() as u64, most_events as u64);
        let is_one_more = may_wait(waiting, (self.bulk.len_of(&shuffle) as u64, shuffles), 1);
        !(self.bulk.is_empty() || is_one_more && fits)
    }

    fn add(&mut self, event: Event) {
        let bytes = event.bytes();
        self.bytes += bytes;
        match event.bulk_of() {
            Some(shuffle) => {
                *self.bulk_bytes.entry(shuffle).or_default() += bytes;
                self.bulk.push(shuffle, event, bytes);
            }
            None => {
                self.short_bytes += bytes;
                self.short.push_back(event);
            }
        }
    }

    fn take_short(&mut self) -> (VecDeque<Done>, VecDeque<Event>) {
        self.bytes -= std::mem::take(&mut self.short_bytes);
        (std::mem::take(&mut self.done), std::mem::take(&mut self.short))
    }

    fn take_bulk(&mut self) -> Option<Event> {
        let event = self.bulk.pop()?;
        let bytes = event.bytes();
        self.bytes -= bytes;
        if let Some(shuffle) = event.bulk_of() {
            self.release(shuffle, bytes);
        }
        Some(event)
    }

    fn take(&mut self) -> Waiting {
        let (done, short) = self.take_short();
        Waiting { short, bulk: self.take_bulk(), done }
    }

    fn release(&mut self, shuffle: ShuffleId, bytes: u64) {
        if let Some(waits) = self.bulk_bytes.get_mut(&shuffle) {
            *waits -= bytes;
        }
        if self.bulk.len_of(&shuffle) == 0 {
            self.bulk_bytes.remove(&shuffle);
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
        state.is_full(event, (self.most_events, self.most_bytes))
    }

    fn add(&self, mut state: MutexGuard<'_, State>, event: Event) {
        state.add(event);
        self.wake(state);
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let wakes = std::mem::take(&mut state.is_waiting);
        drop(state);
        if wakes {
            self.filled.notify_one();
        }
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
        let mut state = self.lock();
        while !state.is_closed && self.is_full(&state, &event) {
            state.waiting_for_room += 1;
            state = self.emptied.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting_for_room -= 1;
        }
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
            state.done.push_back(done);
            self.wake(state);
        }
    }

    /// Takes what waits, one piece of what is bulk; waits so long for something. None: the node is to end.
    pub(crate) fn take(&self, wait: Duration) -> Option<Waiting> {
        if self.lock().has_new_room {
            self.tell_room(self.lock());
        }
        let waits = |state: &mut State| {
            state.is_waiting = !state.is_closed && state.is_idle();
            state.is_waiting
        };
        let waited = self.filled.wait_timeout_while(self.lock(), wait, waits);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.is_waiting = false;
        if state.is_closed {
            return None;
        }
        let waiting = state.take();
        self.tell_room(state);
        Some(waiting)
    }

    /// Takes what waits now: after a piece of bulk.
    pub(crate) fn take_more(&self) -> Waiting {
        let mut state = self.lock();
        let had_no_room = state.short.len() >= self.most_events || state.short_bytes > 0;
        let waiting = state.take();
        // Of room for bulk the next `take` tells: else all that wait for it would be woken for each piece.
        state.has_new_room |= waiting.bulk.is_some();
        if had_no_room {
            self.tell_room(state);
        }
        waiting
    }

    fn tell_room(&self, mut state: MutexGuard<'_, State>) {
        state.has_new_room = false;
        let waits = state.waiting_for_room > 0;
        drop(state);
        if waits {
            self.emptied.notify_all();
        }
        self.has_room.notify_waiters();
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
        let waiting = (state.take_short(), std::mem::take(&mut state.bulk));
        drop(state);
        drop(waiting);
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
    use partage_service::shuffle::message::AskOrder;
    use partage_service::shuffle::records::PackedRecords;
    use partage_service::shuffle::{AttemptId, Terms};
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
        assert!(inbox.take(Duration::ZERO).unwrap().bulk.is_some());
        assert!((0..3).all(|_| inbox.try_push(frame(1))));
        assert!(!inbox.try_push(frame(1)), "no more than three");
        inbox.done(Done::Ended(String::new()));
        let waiting = inbox.take(Duration::ZERO).unwrap();
        assert!(waiting.bulk.is_some() && waiting.done.len() == 1);
        let more = (0..3).map(|_| inbox.take_more().bulk.is_some());
        assert_eq!(more.collect::<Vec<bool>>(), [true, true, false], "one at a time");
    }

    fn open() -> Event {
        let attempt = Attempt { shuffle: ShuffleId(1), partition: 0, id: AttemptId(1) };
        Event::Input(attempt, Input::Open(Terms::new(1, 1)), sync_channel(1).0.into())
    }

    #[test]
    fn what_is_short_is_taken_between_pieces_of_bulk_and_has_room_of_its_own() {
        let inbox = Inbox::new(3, 300);
        assert!(inbox.try_push(frame(1_000)) && !inbox.try_push(frame(1)));
        assert!(
            (0..3).all(|_| inbox.try_push(open())),
            "a frame that takes all bytes keeps none of these out"
        );
        assert!(!inbox.try_push(open()), "they have a bound, too");
        inbox.done(Done::Ended(String::new()));
        let waiting = inbox.take(Duration::ZERO).unwrap();
        assert!(waiting.bulk.is_some() && inbox.bytes() == 0);
        assert_eq!((waiting.done.len(), waiting.short.len()), (1, 3));
        // What has come since goes before the next piece.
        let attempt = Attempt { shuffle: ShuffleId(1), partition: 0, id: AttemptId(1) };
        let end = Event::Input(attempt, Input::End(1, 1), sync_channel(1).0.into());
        assert!(inbox.try_push(frame(1_000)) && inbox.try_push(end) && inbox.try_push(open()));
        inbox.done(Done::Ended(String::new()));
        let waiting = inbox.take_more();
        assert_eq!((waiting.done.len(), waiting.short.len()), (1, 1));
        assert!(waiting.bulk.is_some_and(|event| event.bytes() >= 1_000));
        let waiting = inbox.take_more();
        assert!(waiting.bulk.is_some() && waiting.done.is_empty() && waiting.short.is_empty());
        assert_eq!(inbox.bytes(), 0);
        let waiting = inbox.take_more();
        assert!(waiting.bulk.is_none() && waiting.done.is_empty() && waiting.short.is_empty());
    }

    #[test]
    fn the_end_of_an_attempt_overtakes_none_of_its_frames_and_a_question_no_batch() {
        let attempt = Attempt { shuffle: ShuffleId(1), partition: 0, id: AttemptId(1) };
        let input = |input| Event::Input(attempt, input, sync_channel(1).0.into());
        let is_bulk = |event: Event| event.bulk_of() == Some(ShuffleId(1));
        assert!(is_bulk(input(Input::End(1, 1))) && is_bulk(input(Input::Abort)) && is_bulk(frame(1)));
        assert!(!is_bulk(open()), "frames come behind it in any case");
        let batch = crate::store::tests::batch(1, 1, 1, 10);
        let asks = |order| Message::AskStored(batch.key.clone(), order);
        let packet = |message| Event::Packet(NodeId::new("n").unwrap(), Packet::Message(message));
        assert!(is_bulk(packet(asks(AskOrder::Behind))) && !is_bulk(packet(asks(AskOrder::Ahead))));
        assert!(!is_bulk(packet(Message::Stored(batch.key.clone()))));
        assert!(is_bulk(packet(Message::Batch(batch))));
    }

    #[test]
    fn a_thread_that_waits_is_woken_by_each_lane() {
        let inbox = Inbox::new(3, 300);
        let adds: [fn(&Inbox); 3] = [
            |inbox| assert!(inbox.try_push(open())),
            |inbox| assert!(inbox.try_push(frame(1))),
            |inbox| inbox.done(Done::Ended(String::new())),
        ];
        for add in adds {
            std::thread::scope(|scope| {
                let takes = scope.spawn(|| inbox.take(Duration::from_secs(60)).unwrap());
                while !inbox.lock().is_waiting {
                    std::thread::yield_now();
                }
                add(&inbox);
                let Waiting { short, bulk, done } = takes.join().unwrap();
                assert_eq!(short.len() + usize::from(bulk.is_some()) + done.len(), 1);
            });
        }
    }

    #[test]
    fn r1_before_a_frame_of_a_shuffle_that_trickles_no_more_of_a_flood_is_taken_than_one_piece() {
        let inbox = Inbox::new(1_000, 64 << 20);
        let shuffles = || -> Vec<u128> {
            let Waiting { short, bulk, .. } = inbox.take(Duration::ZERO).unwrap();
            let of = |event: &Event| event.bulk_of().map_or(0, |shuffle| shuffle.0);
            short.iter().chain(&bulk).map(of).collect()
        };
        let flooded = (0..).take_while(|_| inbox.try_push(frame_of(1, 256 << 10))).count();
        assert_eq!(flooded, 4 * 56 - 1, "an eighth is for others");
        assert_eq!([shuffles(), shuffles()], [[1], [1]]);
        for _ in 0..5 {
            assert!(inbox.try_push(frame_of(2, 1_000)));
        }
        assert!(inbox.try_push(Event::MakeRoom(Vec::new())));
        assert_eq!(shuffles(), [0, 2]);
        let next: Vec<u128> = (0..6).flat_map(|_| shuffles()).collect();
        assert_eq!(next, [2, 2, 2, 2, 1, 1]);
        while !shuffles().is_empty() {}
        assert!(inbox.bytes() == 0 && inbox.lock().bulk_bytes.is_empty());
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
        while inbox.take(Duration::ZERO).unwrap().bulk.is_none() {}
        while inbox.lock().bulk.is_empty() {
            tokio::task::yield_now().await;
        }
        inbox.close();
        assert_eq!(pushing.await.unwrap(), (Ok(()), Err(Closed)));
    }

    #[test]
    fn l1_a_client_that_waits_is_told_of_room_though_nothing_else_comes() {
        let inbox = Arc::new(Inbox::new(1, 100));
        inbox.push(frame(1)).unwrap();
        assert!(inbox.take(Duration::ZERO).unwrap().bulk.is_some());
        inbox.push(frame(2)).unwrap();
        let other = Arc::clone(&inbox);
        let pushing = std::thread::spawn(move || other.push(frame(3)));
        while inbox.lock().waiting_for_room == 0 {
            std::thread::yield_now();
        }
        assert!(inbox.take_more().bulk.is_some());
        assert!(inbox.take(Duration::from_secs(600)).unwrap().bulk.is_some());
        pushing.join().unwrap().unwrap();
    }

    #[test]
    fn a_client_waits_for_room_and_is_let_go_when_the_node_ends() {
        let inbox = Arc::new(Inbox::new(1, 100));
        inbox.push(frame(1)).unwrap();
        let other = Arc::clone(&inbox);
        let pushing = std::thread::spawn(move || (other.push(frame(2)), other.push(frame(3))));
        while inbox.take(Duration::from_secs(5)).unwrap().bulk.is_none() {}
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
