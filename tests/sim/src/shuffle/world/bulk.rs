//! Connections for bulk that fail, in one direction: what is bulk is lost from one node to another one for seconds, while all
//! other messages pass.
//!
//! As a node of a pool does it, a question that may overtake batches is not sent either to a node whose connection for bulk
//! is known to have failed: the answer would say that the node is there. The sender does not know of one that is half open
//! until it has been silent for ten seconds, longer than any is here: then the question passes. Readers ask nodes directly
//! here, so no records are bulk between nodes.
//!
//! Where nothing else goes wrong each attempt has a bound, if its buffer has no half-open connection ([`World::stored_within`]).

use super::{Happening, World};
use crate::clock::{MS, True};
use crate::draw::Draw;
use partage_service::shuffle::buffer::{Attempt, Input};
use partage_service::shuffle::message::{AskOrder, Message};
use std::collections::BTreeMap;

/// A connection for bulk that has failed.
#[derive(Debug, Clone, Copy)]
struct Failure {
    until: True,
    is_known: bool,
}

/// An attempt of which its buffer has heard the end, and has not said what came of it.
#[derive(Debug, Clone, Copy)]
struct Ended {
    node: usize,
    at: True,
}

/// The connections for bulk.
#[derive(Debug)]
pub(super) struct BulkLinks {
    draw: Draw,
    /// Those that have failed, also before, by the nodes from and to which they are.
    failures: BTreeMap<(usize, usize), Failure>,
    /// Until when no other connection of a node fails.
    rests: BTreeMap<usize, True>,
    /// A connection of the node was half open: what has ended there until then may wait for it.
    unsure: BTreeMap<usize, True>,
    ended: BTreeMap<Attempt, Ended>,
}

impl BulkLinks {
    /// All of them reach their nodes. What fails is drawn from that seed alone.
    pub(super) fn new(seed: u64) -> BulkLinks {
        let (failures, rests, unsure, ended) = Default::default();
        BulkLinks { draw: Draw::new(seed), failures, rests, unsure, ended }
    }
}

impl World {
    /// Perhaps a connection fails. Where nothing else goes wrong no node has two of these at a time, or one soon after another
    /// one: so R nodes can always be reached, and an attempt waits for one failure at most.
    pub(super) fn bulk_fails(&mut self) {
        let Some(weather) = self.weather.bulk.filter(|_| self.stopped.is_none()) else { return };
        let draw = &mut self.bulk.draw;
        let next = if weather.is_alone { draw.between(50, 300) } else { draw.between(300, 3_000) };
        let (from, to) = (draw.index(self.nodes.len()), draw.index(self.nodes.len()));
        let until = self.now + draw.between(1_000, 10_000) * MS;
        let is_known = draw.chance(900);
        self.after(next * MS, Happening::BulkFails);
        let rests = weather.is_alone && self.bulk.rests.get(&from).is_some_and(|until| self.now < *until);
        if from == to || rests || self.pool.only_buffers(&self.nodes[to].name) {
            return;
        }
        let words =
            || format!("bulk is lost from n{from} to n{to} until {} ms, known: {is_known}", until / MS);
        self.trace.event(self.now, (from, to, until, is_known), words);
        self.outcome.bulk_failures += 1;
        self.bulk.failures.insert((from, to), Failure { until, is_known });
        let mut over = until;
        if !is_known {
            self.outcome.half_open += 1;
            // By then it was asked about each batch that was lost: questions about one come after eight times this time at most.
            over += (8 * self.weather.settings.resend_ms + 100) * MS;
            self.bulk.unsure.insert(from, over);
        }
        self.bulk.rests.insert(from, over + self.stored_within());
    }

    pub(super) fn bulk_heals(&mut self) {
        self.bulk.failures.clear();
        self.bulk.ended.clear();
    }

    /// Whether a message from one node to another one is lost with the connection for bulk, or is not sent because of it.
    pub(super) fn is_lost_with_bulk(&mut self, link: (usize, usize), message: &Message) -> bool {
        let Some(failure) = self.bulk.failures.get(&link).filter(|failure| self.now < failure.until) else {
            return false;
        };
        match message {
            Message::Batch(_) | Message::AskStored(_, AskOrder::Behind) => {
                self.outcome.bulk_lost += 1;
                true
            }
            Message::AskStored(_, AskOrder::Ahead) => {
                let asks = self.weather.bulk.is_some_and(|bulk| bulk.asks_ahead);
                let is_dropped = failure.is_known && !asks;
                self.outcome.unasked += u64::from(is_dropped);
                is_dropped
            }
            _ => false,
        }
    }

    /// The time within which an attempt that has ended is stored where bulk alone fails, and that is known.
    ///
    /// A batch that does not reach its node goes to a stand-in after `stand_in_ms`. If the failure ends before, the node is heard
    /// again, and says that it lacks the batch when it is asked about that the next time: questions come after longer and longer
    /// pauses, and the first one behind the failure within two and a half times `stand_in_ms`. After that the sender either takes
    /// the node for silent, and does not wait for it, or no other of its connections fails for as long as this bound. So one of
    /// these waits is in the way of an attempt: for its batches, for those before them in their streams, or for its mark. The
    /// rest of the bound is for what does not depend on `stand_in_ms`: an attempt waits up to 90 ms for others and for bounds, a
    /// look and the tick behind it take up to 43 ms, and a batch is stored within 28 ms.
    fn stored_within(&self) -> True {
        (4 * self.weather.settings.stand_in_ms + 400) * MS
    }

    fn has_bound(&self, ended: Ended) -> bool {
        self.bulk.unsure.get(&ended.node).is_none_or(|until| ended.at > *until)
    }

    /// A client sends something to the buffer of a node.
    pub(super) fn hears_input(&mut self, node: usize, attempt: Attempt, input: &Input) {
        let is_checked = self.weather.is_of_bulk_alone() && self.stopped.is_none();
        if is_checked && matches!(input, Input::End(..)) {
            self.bulk.ended.entry(attempt).or_insert(Ended { node, at: self.now });
        }
    }

    /// A buffer says what came of an attempt.
    pub(super) fn hears_answer(&mut self, attempt: Attempt, is_stored: bool) {
        let Some(ended) = self.bulk.ended.remove(&attempt) else { return };
        let failures = &self.bulk.failures;
        let has_failed =
            failures.iter().any(|((from, _), failure)| *from == ended.node && failure.until > ended.at);
        // An end that comes again is answered at once.
        let is_first = self.now > ended.at;
        let counts = is_stored && has_failed && is_first && self.has_bound(ended);
        self.outcome.stored_beside += u64::from(counts);
    }

    /// L1: no attempt waits for a node that batches are known not to reach.
    pub(super) fn are_stored_in_time(&self, node: usize) -> Result<(), String> {
        let bound = self.stored_within();
        let is_late =
            |ended: &Ended| ended.node == node && self.now > ended.at + bound && self.has_bound(*ended);
        match self.bulk.ended.iter().find(|(_, ended)| is_late(ended)) {
            Some((attempt, _)) => Err(format!(
                "L1: bulk from {} is lost, and {attempt:?} is not stored {} ms after its end",
                self.nodes[node].name,
                bound / MS
            )),
            None => Ok(()),
        }
    }
}
