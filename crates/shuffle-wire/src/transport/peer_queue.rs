//! What waits for one connection to another node: two lanes with bounds, one for bulk and one for all other frames. A node has a
//! connection for each of them ([`super::Peers`]), so in most queues one lane is empty.
//!
//! The machines' threads add; the connection to the node takes. The lanes take turns: short frames that wait together, then one
//! of bulk. What waits while the node is not reached is dropped, and so is what is added until the next attempt.
//!
//! A frame is added while less than the bound waits, however long it is: so a lane has at most its bound and one frame, and a
//! long frame is not kept out for ever by short ones.

use crate::frame::Frame;
use crate::limits::{GATHERED_BYTES, PEER_BULK_BYTES, PEER_BYTES, PEER_FRAMES};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Why a frame was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// As many frames or bytes wait for the node as may.
    #[error("as much waits for the node as may")]
    Full,
    /// The node is not reached.
    #[error("the node is not reached")]
    Away,
    /// It is not known where the node is.
    #[error("the node has no address")]
    NoAddress,
}

#[derive(Debug, Default)]
struct Lane {
    frames: VecDeque<Frame>,
    bytes: usize,
}

impl Lane {
    fn push(&mut self, frame: Frame) {
        self.bytes += frame.bytes();
        self.frames.push_back(frame);
    }

    /// The first frames: those with so many bytes, but at least one if there is one.
    fn take(&mut self, most_bytes: usize) -> Vec<Frame> {
        let mut taken = Vec::new();
        let mut left = most_bytes;
        while let Some(frame) = self.frames.pop_front_if(|frame| taken.is_empty() || frame.bytes() <= left) {
            left = left.saturating_sub(frame.bytes());
            self.bytes -= frame.bytes();
            taken.push(frame);
        }
        taken
    }

    /// Drops all; says how many.
    fn clear(&mut self) -> usize {
        self.bytes = 0;
        std::mem::take(&mut self.frames).len()
    }
}

#[derive(Debug, Default)]
struct Waiting {
    short: Lane,
    bulk: Lane,
    is_turn_of_bulk: bool,
    is_away: bool,
    /// No connection has been opened since the last one ended, or since an attempt failed.
    has_failed: bool,
    /// The node is to be tried again, though no frame waits.
    is_looked_for: bool,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.short.frames.is_empty() && self.bulk.frames.is_empty()
    }

    fn take(&mut self) -> Vec<Frame> {
        let is_bulk = self.is_turn_of_bulk || self.short.frames.is_empty();
        if is_bulk && !self.bulk.frames.is_empty() {
            self.is_turn_of_bulk = false;
            return self.bulk.take(0);
        }
        self.is_turn_of_bulk = true;
        self.short.take(GATHERED_BYTES)
    }
}

/// What waits for one other node.
#[derive(Debug)]
pub(super) struct PeerQueue {
    waiting: Mutex<Waiting>,
    /// While so many bytes of bulk wait, a sender that has more waits.
    bulk_bytes: AtomicUsize,
    /// Wakes the connection: a frame waits.
    filled: Notify,
    /// Wakes senders of bulk: there is more room for it, or the node is away.
    room: Notify,
}

impl Default for PeerQueue {
    fn default() -> PeerQueue {
        let (waiting, filled, room) = Default::default();
        PeerQueue { waiting, bulk_bytes: AtomicUsize::new(PEER_BULK_BYTES), filled, room }
    }
}

impl PeerQueue {
    /// The bound for bulk from now on. What waits above it stays.
    pub(super) fn set_bulk_bytes(&self, bytes: usize) {
        self.bulk_bytes.store(bytes.max(1), Ordering::Relaxed);
        self.room.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a frame, or says why not.
    pub(super) fn add(&self, frame: Frame) -> Result<(), Dropped> {
        let mut waiting = self.lock();
        if waiting.is_away {
            return Err(Dropped::Away);
        }
        let short = &waiting.short;
        if short.frames.len() >= PEER_FRAMES || short.bytes >= PEER_BYTES {
            return Err(Dropped::Full);
        }
        waiting.short.push(frame);
        drop(waiting);
        self.filled.notify_one();
        Ok(())
    }

    /// Adds a frame of bulk when there is room for it, or says why not.
    pub(super) async fn add_bulk(&self, frame: Frame) -> Result<(), Dropped> {
        loop {
            let room = self.room.notified();
            {
                let mut waiting = self.lock();
                if waiting.is_away {
                    return Err(Dropped::Away);
                }
                if waiting.bulk.bytes < self.bulk_bytes.load(Ordering::Relaxed) {
                    waiting.bulk.push(frame);
                    drop(waiting);
                    self.filled.notify_one();
                    return Ok(());
                }
            }
            room.await;
        }
    }

    /// Frames and bytes that wait.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let waiting = self.lock();
        let (short, bulk) = (&waiting.short, &waiting.bulk);
        (short.frames.len() + bulk.frames.len(), short.bytes + bulk.bytes)
    }

    /// Returns when something waits, or the node is to be looked for.
    pub(super) async fn wanted(&self) {
        loop {
            {
                let waiting = self.lock();
                if !waiting.is_empty() || waiting.is_looked_for {
                    return;
                }
            }
            self.filled.notified().await;
        }
    }

    /// Returns when something waits.
    async fn filled(&self) {
        while self.lock().is_empty() {
            self.filled.notified().await;
        }
    }

    /// The next frames. There is one taker. It may be dropped before it is done: then nothing was taken.
    pub(super) async fn next(&self) -> Vec<Frame> {
        self.filled().await;
        let taken = self.lock().take();
        self.room.notify_waiters();
        taken
    }

    /// The node is not reached: what waits is dropped, and what is added. Says how many that were.
    pub(super) fn set_away(&self) -> usize {
        let mut waiting = self.lock();
        (waiting.is_away, waiting.has_failed, waiting.is_looked_for) = (true, true, false);
        let dropped = waiting.short.clear() + waiting.bulk.clear();
        drop(waiting);
        self.room.notify_waiters();
        dropped
    }

    /// The node is looked for again.
    pub(super) fn set_present(&self) {
        self.lock().is_away = false;
    }

    /// A connection is open.
    pub(super) fn set_opened(&self) {
        let mut waiting = self.lock();
        (waiting.has_failed, waiting.is_looked_for) = (false, false);
    }

    /// Whether the node was not reached when it was tried last.
    pub(super) fn has_failed(&self) -> bool {
        self.lock().has_failed
    }

    /// Tries again to reach a node that was not reached, though no frame waits for it.
    pub(super) fn look_for(&self) {
        let mut waiting = self.lock();
        if waiting.has_failed && !waiting.is_away {
            waiting.is_looked_for = true;
            drop(waiting);
            self.filled.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Kind;
    use std::sync::Arc;
    use tokio::task::yield_now;

    fn frame(kind: Kind, bytes: usize) -> Frame {
        Frame::new(kind, None, vec![0; bytes]).unwrap()
    }

    #[tokio::test]
    async fn the_lanes_take_turns() {
        let queue = PeerQueue::default();
        for _ in 0..3 {
            queue.add(frame(Kind::Stored, 40 << 10)).unwrap();
            queue.add_bulk(frame(Kind::Batch, 100)).await.unwrap();
        }
        let mut kinds = Vec::new();
        while queue.waiting().0 > 0 {
            kinds.push(queue.next().await.iter().map(Frame::kind).collect::<Vec<_>>());
        }
        let (short, bulk) = (vec![Kind::Stored], vec![Kind::Batch]);
        assert_eq!(kinds, [&short, &bulk, &short, &bulk, &short, &bulk].map(Clone::clone));
    }

    #[tokio::test]
    async fn r1_short_frames_beyond_the_bound_are_dropped_and_bulk_waits() {
        let queue = Arc::new(PeerQueue::default());
        for _ in 0..PEER_FRAMES {
            queue.add(frame(Kind::Ask, 0)).unwrap();
        }
        assert_eq!(queue.add(frame(Kind::Ask, 0)), Err(Dropped::Full));
        queue.add_bulk(frame(Kind::Batch, PEER_BULK_BYTES * 2)).await.unwrap();
        let waits = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.add_bulk(frame(Kind::Batch, 1)).await }
        });
        yield_now().await;
        assert!(!waits.is_finished(), "one may be larger; the next one waits");
        while queue.next().await[0].kind() != Kind::Batch {}
        assert_eq!(waits.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn r1_short_frames_are_bounded_by_their_bytes_too() {
        let queue = PeerQueue::default();
        let large = 200 << 10;
        let added = (0..1_000).take_while(|_| queue.add(frame(Kind::Stored, large)).is_ok()).count();
        assert_eq!(added, PEER_BYTES.div_ceil(frame(Kind::Stored, large).bytes()));
        assert_eq!(queue.set_away(), added);
    }

    #[tokio::test]
    async fn r1_the_bound_of_bulk_may_become_smaller_and_one_frame_always_may_wait() {
        let queue = Arc::new(PeerQueue::default());
        queue.set_bulk_bytes(100);
        queue.add_bulk(frame(Kind::Batch, 1_000)).await.unwrap();
        let waits = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.add_bulk(frame(Kind::Batch, 1)).await }
        });
        yield_now().await;
        assert!(!waits.is_finished());
        assert_eq!(queue.next().await, [frame(Kind::Batch, 1_000)]);
        assert_eq!(waits.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn a_node_that_is_away_gets_nothing_of_before_and_holds_nobody_up() {
        let queue = Arc::new(PeerQueue::default());
        queue.add_bulk(frame(Kind::Batch, PEER_BULK_BYTES)).await.unwrap();
        let waits = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.add_bulk(frame(Kind::Batch, 1)).await }
        });
        yield_now().await;
        assert_eq!(queue.set_away(), 1);
        assert_eq!(waits.await.unwrap(), Err(Dropped::Away));
        assert_eq!(queue.add(frame(Kind::Ask, 0)), Err(Dropped::Away));
        queue.set_present();
        queue.add(frame(Kind::Ask, 0)).unwrap();
        assert_eq!(queue.next().await, [frame(Kind::Ask, 0)]);
    }
}
