//! What happened lately, for people who ask: in the leader's memory, and in a ring of keys beside the records.
//!
//! ```text
//!  a durable decision ──► the log in memory ──(every EVENTS_WRITE_MS, if there is news)──► `events/<slot>`
//!                             │                                                              │
//!                   GET /v1/events, ListEvents                              the next leader reads them all
//! ```
//!
//! The records never wait for events: those are written afterwards, in transactions of their own, which the leadership
//! fences. So a leader that is killed takes the events of its last [`limits::EVENTS_WRITE_MS`] with it, and one that is
//! stopped takes none. Each key holds some events; the newest key is written again until it is full, then the oldest key
//! is written over.

use crate::limits;
use partage_coordination::{Coordination, Error, FencedTransaction, Key, Leadership, Scope, Transaction};
use partage_core::base::settings::Settings;
use partage_core::cluster::event::Event as CoreEvent;
use partage_wire::json::{Event, EventActor, EventPage, EventPlace, Events};
use partage_wire::stored::{EVENTS, event_line, events_key, events_slot, open_events, seal_events};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// The events that are kept. A copy is the same.
#[derive(Clone, Default)]
pub struct EventLog(Arc<Mutex<Ring>>);

/// The events of one key.
#[derive(Debug, Default)]
struct Segment {
    slot: u16,
    events: VecDeque<Event>,
    /// As they are stored.
    lines: Vec<u8>,
    /// It is not stored as it is.
    is_new: bool,
}

/// The oldest first.
#[derive(Debug, Default)]
struct Ring {
    /// None while this coordinator does not lead.
    term: Option<u64>,
    /// The number of the last event of the term.
    number: u64,
    segments: VecDeque<Segment>,
    /// Keys of which everything is too old.
    gone: BTreeSet<u16>,
    /// At most so many, and none that is older than so many milliseconds.
    kept: usize,
    kept_ms: u64,
}

/// The events to store.
#[derive(Debug, Default, PartialEq)]
struct PendingWrites {
    puts: Vec<(u16, Vec<u8>)>,
    deletes: Vec<u16>,
}

impl Ring {
    fn count(&self) -> usize {
        self.segments.iter().map(|segment| segment.events.len()).sum()
    }

    fn all(&self) -> impl DoubleEndedIterator<Item = &Event> {
        self.segments.iter().flat_map(|segment| &segment.events)
    }

    fn push(&mut self, at_ms: u64, happened: &CoreEvent) {
        let Some(term) = self.term else { return };
        self.number += 1;
        let event = Event::of((term, self.number), at_ms, happened);
        let line = event_line(&event);
        let has_room = |last: &Segment| last.lines.len() + line.len() <= limits::EVENTS_SEGMENT_BYTES;
        if !self.segments.back().is_some_and(has_room) {
            let slot = self.free_slot();
            self.gone.remove(&slot);
            self.segments.push_back(Segment { slot, ..Segment::default() });
        }
        if let Some(last) = self.segments.back_mut() {
            last.lines.extend(line);
            last.events.push_back(event);
            last.is_new = true;
        }
        self.forget_old(at_ms);
    }

    /// Where the next segment goes: the oldest one gives way when there is no room.
    fn free_slot(&mut self) -> u16 {
        if self.segments.len() >= usize::from(limits::EVENTS_SEGMENTS)
            && let Some(oldest) = self.segments.pop_front()
        {
            return oldest.slot;
        }
        let used: BTreeSet<u16> = self.segments.iter().map(|segment| segment.slot).collect();
        (0..limits::EVENTS_SEGMENTS).find(|slot| !used.contains(slot)).unwrap_or(0)
    }

    fn forget_old(&mut self, now_ms: u64) {
        let mut count = self.count();
        while let Some(oldest) = self.segments.front_mut() {
            let is_old = |event: &Event| event.at_ms.saturating_add(self.kept_ms) < now_ms;
            while oldest.events.front().is_some_and(|event| count > self.kept || is_old(event)) {
                oldest.events.pop_front();
                count -= 1;
            }
            if !oldest.events.is_empty() {
                return;
            }
            let slot = oldest.slot;
            self.segments.pop_front();
            self.gone.insert(slot);
        }
    }

    fn take_pending(&mut self) -> PendingWrites {
        let segments = self.segments.iter_mut().filter(|segment| segment.is_new);
        let put = |segment: &mut Segment| {
            segment.is_new = false;
            (segment.slot, segment.lines.clone())
        };
        let puts = segments.take(limits::EVENTS_SEGMENTS_AT_ONCE).map(put).collect();
        let later = self.gone.iter().nth(limits::EVENTS_DELETED_AT_ONCE).copied();
        let later = later.map(|slot| self.gone.split_off(&slot)).unwrap_or_default();
        PendingWrites { puts, deletes: std::mem::replace(&mut self.gone, later).into_iter().collect() }
    }

    /// What could not be stored is tried again.
    fn not_stored(&mut self, pending: PendingWrites) {
        let slots: BTreeSet<u16> = pending.puts.into_iter().map(|(slot, _)| slot).collect();
        let of_it = self.segments.iter_mut().filter(|segment| slots.contains(&segment.slot));
        of_it.for_each(|segment| segment.is_new = true);
        let used: BTreeSet<u16> = self.segments.iter().map(|segment| segment.slot).collect();
        self.gone.extend(pending.deletes.into_iter().filter(|slot| !used.contains(slot)));
    }

    fn page(&self, asked: &EventPage, after: Option<EventPlace>, limit: usize) -> Events {
        let is_asked = |event: &&Event| {
            asked.since_ms.is_none_or(|since| event.at_ms >= since)
                && asked.keyspace.as_ref().is_none_or(|name| event.keyspace.as_ref() == Some(name))
                && asked.node.as_ref().is_none_or(|node| {
                    event.nodes.contains(node)
                        || (event.actor.is(EventActor::Node) && event.by.as_ref() == Some(node))
                })
        };
        let last = self.all().next_back().map(Event::place).unwrap_or_default();
        let Some(after) = after else {
            let mut events: Vec<Event> = self.all().rev().filter(is_asked).take(limit + 1).cloned().collect();
            let more = events.len() > limit;
            events.truncate(limit);
            events.reverse();
            return Events { events, next: last.to_string(), more };
        };
        let later = self.all().filter(|event| event.place() > after).filter(is_asked);
        let mut events: Vec<Event> = later.take(limit + 1).cloned().collect();
        let more = events.len() > limit;
        events.truncate(limit);
        let next = match events.last().filter(|_| more) {
            Some(event) => event.place(),
            None => last.max(after),
        };
        Events { events, next: next.to_string(), more }
    }
}

impl EventLog {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what happened. One that does not lead keeps nothing.
    pub fn add(&self, at_ms: u64, happened: &[CoreEvent]) {
        let mut ring = self.ring();
        happened.iter().for_each(|event| ring.push(at_ms, event));
    }

    /// Those that are asked for.
    pub fn page(&self, asked: &EventPage, after: Option<EventPlace>, limit: usize) -> Events {
        self.ring().page(asked, after, limit)
    }

    /// Goes on with what is stored, at the term of a new leader. What cannot be read is left out: nothing is decided by
    /// it.
    pub async fn lead(&self, coordination: &dyn Coordination, term: u64, settings: &Settings) {
        {
            let mut ring = self.ring();
            (ring.kept, ring.kept_ms) = (settings.events_kept, settings.events_kept_ms);
            // The same leader, which began again from what is durable.
            if ring.term == Some(term) {
                return;
            }
        }
        let segments = stored(coordination).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the events of earlier leaders cannot be read, and are not listed");
            VecDeque::new()
        });
        let mut ring = self.ring();
        (ring.term, ring.number, ring.segments) = (Some(term), 0, segments);
        ring.gone.clear();
    }

    /// This coordinator leads no more.
    pub fn step_down(&self) {
        self.ring().term = None;
    }
}

/// What is stored, the oldest first.
async fn stored(coordination: &dyn Coordination) -> Result<VecDeque<Segment>, Error> {
    let Ok(root) = Key::new(EVENTS) else { return Ok(VecDeque::new()) };
    let (mut segments, mut after) = (Vec::new(), None);
    loop {
        let page = coordination.list(&Scope::Below(root.clone()), after.as_ref(), usize::MAX).await?;
        for (key, entry) in page.entries {
            let Some(slot) = events_slot(key.as_str()).filter(|slot| *slot < limits::EVENTS_SEGMENTS) else {
                continue;
            };
            match open_events(key.as_str(), &entry.value) {
                Ok(events) => {
                    let lines = events.iter().flat_map(event_line).collect();
                    segments.push(Segment { slot, events: events.into(), lines, is_new: false });
                }
                Err(error) => tracing::warn!(%error, "some events are damaged, and are not listed"),
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    segments.retain(|segment| !segment.events.is_empty());
    segments.sort_by_key(|segment| segment.events.front().map(Event::place));
    Ok(segments.into())
}

/// Stores the pending events of a log, as long as it lives.
pub struct EventWriter {
    log: EventLog,
    coordination: Arc<dyn Coordination>,
    leadership: Leadership,
    task: JoinHandle<()>,
}

impl EventWriter {
    /// Begins.
    pub fn begin(log: EventLog, coordination: Arc<dyn Coordination>, leadership: Leadership) -> EventWriter {
        let (to, of, by) = (coordination.clone(), log.clone(), leadership.clone());
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(limits::EVENTS_WRITE_MS)).await;
                if let Err(error) = write(&of, &*to, &by).await {
                    tracing::debug!(%error, "events are not stored; trying again");
                }
            }
        });
        EventWriter { log, coordination, leadership, task }
    }

    /// The last of it, before the lead is given up.
    pub async fn end(mut self) {
        self.task.abort();
        // Only when it has ended is what it was storing to be stored again.
        let _ = (&mut self.task).await;
        let last = write(&self.log, &*self.coordination, &self.leadership);
        let most = Duration::from_millis(limits::GOODBYE_MS);
        // The next leader does without.
        let _ = tokio::time::timeout(most, last).await;
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn write(
    log: &EventLog,
    coordination: &dyn Coordination,
    leadership: &Leadership,
) -> Result<(), Error> {
    let pending = log.ring().take_pending();
    if pending == PendingWrites::default() {
        return Ok(());
    }
    let Ok(transaction) = transaction(&pending, leadership) else { return Ok(()) };
    let mut unstored = Unstored { log, pending: Some(pending) };
    leadership.commit(coordination, transaction).await?;
    unstored.pending = None;
    Ok(())
}

/// What is being stored. Dropped before it is, as when the writer ends meanwhile, the next writer stores it again.
struct Unstored<'a> {
    log: &'a EventLog,
    pending: Option<PendingWrites>,
}

impl Drop for Unstored<'_> {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.log.ring().not_stored(pending);
        }
    }
}

fn transaction(
    pending: &PendingWrites,
    leadership: &Leadership,
) -> Result<FencedTransaction, partage_coordination::KeyError> {
    let mut transaction = Transaction::new();
    for (slot, lines) in &pending.puts {
        let key = events_key(*slot);
        transaction = transaction.put(&Key::new(&key)?, seal_events(&key, lines));
    }
    for slot in &pending.deletes {
        transaction = transaction.delete(&Key::new(events_key(*slot))?);
    }
    Ok(leadership.fence(transaction))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::cluster::event::{About, EventKind, event};

    fn ring(kept: usize, kept_ms: u64) -> Ring {
        Ring { term: Some(2), kept, kept_ms, ..Ring::default() }
    }

    fn happened(text: &str) -> CoreEvent {
        event(EventKind::Notice, About::node(&"n1".parse().unwrap()), text.to_owned())
    }

    #[test]
    fn what_was_being_stored_when_the_writer_ended_is_stored_by_the_last_write() {
        let log = EventLog::default();
        *log.ring() = ring(100, 1_000_000);
        log.ring().push(1_000, &happened("a node came"));
        let pending = log.ring().take_pending();
        assert!(!pending.puts.is_empty() && log.ring().take_pending().puts.is_empty());
        drop(Unstored { log: &log, pending: Some(pending) });
        assert!(!log.ring().take_pending().puts.is_empty());
        drop(Unstored { log: &log, pending: None });
        assert_eq!(log.ring().take_pending(), PendingWrites::default());
    }

    fn numbers(events: &Events) -> Vec<u64> {
        events.events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn what_is_too_old_or_too_much_goes_and_its_keys_too() {
        let mut log = ring(3, 1_000);
        (0..5).for_each(|at| log.push(at, &happened("x")));
        assert_eq!(numbers(&log.page(&EventPage::default(), None, 10)), [3, 4, 5]);
        log.push(5_000, &happened("x"));
        assert_eq!(numbers(&log.page(&EventPage::default(), None, 10)), [6], "the others are too old");
        log.segments.clear();
        (0..2).for_each(|slot| {
            let mut old = Segment { slot, ..Segment::default() };
            old.events.push_back(Event::of((1, u64::from(slot)), 0, &happened("old")));
            log.segments.push_back(old);
        });
        log.push(9_000, &happened("x"));
        let pending = log.take_pending();
        assert_eq!((pending.puts.len(), pending.deletes.contains(&0)), (1, true), "{pending:?}");
    }

    #[test]
    fn the_ring_is_bounded_and_the_oldest_key_is_written_over() {
        let mut log = ring(usize::MAX, u64::MAX);
        let long = "x".repeat(limits::EVENTS_SEGMENT_BYTES / 3);
        for at in 0..usize::from(limits::EVENTS_SEGMENTS) * 4 {
            log.push(at as u64, &happened(&long));
        }
        assert_eq!(log.segments.len(), usize::from(limits::EVENTS_SEGMENTS));
        let slots: BTreeSet<_> = log.segments.iter().map(|segment| segment.slot).collect();
        assert_eq!(slots.len(), log.segments.len(), "each has a key of its own");
        assert!(log.segments.iter().all(|s| s.lines.len() <= limits::EVENTS_SEGMENT_BYTES));
        assert!(log.take_pending().puts.len() <= limits::EVENTS_SEGMENTS_AT_ONCE);
    }

    #[test]
    fn what_was_not_stored_is_stored_later() {
        let mut log = ring(10, u64::MAX);
        log.push(1, &happened("x"));
        let pending = log.take_pending();
        assert_eq!(log.take_pending(), PendingWrites::default(), "it is on its way");
        let again = PendingWrites { puts: pending.puts.clone(), deletes: vec![] };
        log.not_stored(pending);
        assert_eq!(log.take_pending(), again);
    }

    #[test]
    fn pages_follow_one_another_and_filters_hold() {
        let mut log = ring(100, u64::MAX);
        for at in 0..10 {
            let about = if at % 2 == 0 { About::node(&"n1".parse().unwrap()) } else { About::all() };
            log.push(at, &event(EventKind::Notice, about, at.to_string()));
        }
        let all = EventPage::default();
        let last = log.page(&all, None, 3);
        assert_eq!((numbers(&last), last.next.as_str(), last.more), (vec![8, 9, 10], "2-10", true));
        let first = log.page(&all, Some(EventPlace::default()), 4);
        assert_eq!((numbers(&first), first.next.as_str(), first.more), (vec![1, 2, 3, 4], "2-4", true));
        let rest = log.page(&all, Some(first.next.parse().unwrap()), 100);
        assert_eq!((numbers(&rest).len(), rest.next.as_str(), rest.more), (6, "2-10", false));
        let none = log.page(&all, Some(rest.next.parse().unwrap()), 100);
        assert_eq!((none.events.len(), none.next.as_str()), (0, "2-10"));
        let of_node = EventPage { node: Some("n1".to_owned()), since_ms: Some(4), ..EventPage::default() };
        assert_eq!(numbers(&log.page(&of_node, None, 100)), [5, 7, 9]);
        let other = EventPage { keyspace: Some("kv".to_owned()), ..EventPage::default() };
        assert_eq!(log.page(&other, None, 100).events.len(), 0);
    }
}
