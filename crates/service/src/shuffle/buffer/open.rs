//! What a buffer has of one shuffle.

use super::Failed;
use super::outgoing::Outgoing;
use crate::shuffle::bounds::{Bounds, Finder, Tag};
use crate::shuffle::plan::Plan;
use crate::shuffle::record::{BatchKey, MEMORY_OF_RECORD, MEMORY_OF_SEGMENT, Segment, Tagged, segments_of};
use crate::shuffle::sketch::Sketch;
use crate::shuffle::{AttemptId, Combine, Durability, PoolSlot, TaskId, Terms};
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    Writing {
        at: Millis,
        frames: u64,
    },
    /// The client has sent everything; `is_out` when its records have all gone out.
    Ended {
        at: Millis,
        is_out: bool,
    },
    Marking {
        at: Millis,
        mark: BatchKey,
    },
    Whole,
}

#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) number: u64,
    pub(super) state: State,
    /// Records and bytes that its client has sent.
    pub(super) taken: (u64, u64),
    /// Records of these that are stored, or held: fewer if they are combined.
    pub(super) records: u64,
    pub(super) bytes: u64,
    /// The last batch in each slot that has records of it; nothing any more when its mark is under way.
    pub(super) last: BTreeMap<PoolSlot, u64>,
    /// All its batches in slots below this one are stored, once all of them are out.
    pub(super) waits_for: PoolSlot,
    /// The durability by the handle of its client.
    pub(super) durability: Durability,
}

impl Held {
    pub(super) fn is_whole(&self) -> bool {
        self.state == State::Whole
    }
}

/// What one division has written.
#[derive(Debug, Clone)]
pub(super) struct Divided {
    pub(super) leader: NodeId,
    pub(super) last: BTreeMap<PoolSlot, u64>,
    /// All its batches are on their way: they are so many.
    pub(super) is_out: bool,
}

/// What there is of one shuffle.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub(super) bounds: Arc<Finder>,
    /// Ranges that are wanted, as the attempt said that was opened last.
    pub(super) ranges: u32,
    pub(super) attempts: BTreeMap<(u32, AttemptId), Held>,
    /// Those of them that have ended and are out: what is stored may make them whole. Most others are whole.
    pub(super) out: BTreeSet<(u32, AttemptId)>,
    /// Those whose mark is under way, by its batch.
    pub(super) marking: BTreeMap<BatchKey, (u32, AttemptId)>,
    /// The last number of each stream.
    pub(super) last: BTreeMap<PoolSlot, u64>,
    /// By their numbers, attempts whose marks are not under way.
    pub(super) unmarked: BTreeMap<u64, (u32, AttemptId)>,
    pub(super) chunks: BTreeMap<PoolSlot, Tagged>,
    /// Keys and values in chunks, in bytes, how many records have them, and in how many segments.
    pub(super) bytes: u64,
    pub(super) records: u64,
    pub(super) segments: u64,
    /// What was in chunks, and goes out.
    pub(super) outgoing: Outgoing,
    /// The weight by the terms of the attempt that was opened last.
    pub(super) weight: u64,
    /// How its attempts combine records: all of them say the same.
    pub(super) combine: Option<Combine>,
    /// The durability by its leader. Until that is known batches are written to disk: a client may have a wrong handle.
    pub(super) durability: Option<Durability>,
    /// Attempts that have not ended.
    pub(super) writing: usize,
    /// When a client opened an attempt or sent a frame last.
    pub(super) heard: Millis,
    pub(super) flush_at: Millis,
    pub(super) divisions: BTreeMap<TaskId, Divided>,
    pub(super) sketch: Sketch,
    pub(super) seen: u64,
    pub(super) sample_at: Millis,
    /// Keys of the sample that was reported last.
    pub(super) reported: u64,
    /// Until when the leader is expected to answer a sample that may suffice for the first bounds.
    pub(super) answer_by: Millis,
    /// Until when what would have gone out waits for them at most.
    pub(super) put_off: Option<Millis>,
    pub(super) plan: Option<Arc<Plan>>,
}

/// How durable a batch of a shuffle of this durability is.
pub(super) fn written_as(durability: Durability) -> Durability {
    if planted::is(Planted::AckedUnsynced) { Durability::Memory } else { durability }
}

/// What so many keys and values take in memory, in bytes, of so many records in so many segments.
pub(super) fn memory_in_all(bytes: u64, records: u64, segments: u64) -> u64 {
    bytes + MEMORY_OF_RECORD * records + MEMORY_OF_SEGMENT * segments
}

impl Open {
    /// Goes by the terms of an attempt that is being opened.
    ///
    /// # Errors
    /// Others that are here were opened with terms that these do not go with, or the leader says another durability.
    pub(super) fn takes(&mut self, terms: Terms) -> Result<(), Failed> {
        // Without attempts nothing is held that was combined otherwise.
        if !self.attempts.is_empty() && self.combine != terms.combine {
            return Err(Failed::CombinesOtherwise);
        }
        if self.durability.is_some_and(|durability| durability != terms.durability) {
            return Err(Failed::OtherDurability);
        }
        (self.weight, self.combine) = (u64::from(terms.bounded().weight), terms.combine);
        self.ranges = terms.bounded().ranges;
        Ok(())
    }

    /// How durable its batches are. A stream is as durable as the least durable of them, as a reader needs each of them: so none
    /// is in memory by the word of a client alone.
    pub(super) fn batch_durability(&self) -> Durability {
        written_as(self.durability.unwrap_or(Durability::Disk))
    }

    /// Whether clients say that batches need not be on disk, and the leader has not said anything.
    pub(super) fn may_be_in_memory(&self) -> bool {
        let says_so = |held: &Held| held.durability == Durability::Memory;
        self.durability.is_none() && self.attempts.values().any(says_so)
    }

    /// The memory that chunks take, in bytes.
    pub(super) fn memory_of_chunks(&self) -> u64 {
        memory_in_all(self.bytes, self.records, self.segments)
    }

    /// The same, with what goes out and is not under way yet.
    pub(super) fn memory(&self) -> u64 {
        self.memory_of_chunks() + self.outgoing.memory()
    }

    /// An attempt ends without success: what is still held of it need not go out.
    pub(super) fn remove(&mut self, attempt: (u32, AttemptId)) {
        let Some(held) = self.attempts.remove(&attempt) else { return };
        self.writing -= usize::from(matches!(held.state, State::Writing { .. }));
        self.unmarked.remove(&held.number);
        self.drop_records(held.number);
        self.outgoing.drop_records(held.number);
    }

    /// Whether the leader knows less than half of the sample.
    pub(super) fn has_new_sample(&self) -> bool {
        let count = self.sketch.count();
        count > 0 && count >= self.reported.saturating_mul(2)
    }

    pub(super) fn add(&mut self, parts: BTreeMap<PoolSlot, Tagged>) {
        for (slot, tagged) in parts {
            self.segments += segments_of(&tagged);
            let chunk = self.chunks.entry(slot).or_default();
            for (tag, segments) in tagged {
                chunk.entry(tag).or_default().extend(segments);
            }
        }
    }

    /// Takes up other bounds. Of what is held that stays which is in ranges that have the same keys by these. The answer is the
    /// rest, which is to be divided.
    pub(super) fn take_up(&mut self, bounds: Arc<Finder>) -> Vec<Segment> {
        let same = self.bounds.same_in(&bounds);
        let mut rest = Vec::new();
        for tagged in self.chunks.values_mut() {
            for (tag, segments) in std::mem::take(tagged) {
                if same.contains(&tag.range) {
                    tagged.insert(Tag { version: bounds.version, ..tag }, segments);
                } else {
                    rest.extend(segments);
                }
            }
        }
        self.chunks.retain(|_, tagged| !tagged.is_empty());
        self.count_segments();
        self.bounds = bounds;
        rest
    }

    pub(super) fn count_segments(&mut self) {
        self.segments = self.chunks.values().map(segments_of).sum();
    }

    /// The most memory that dividing what is held by these bounds takes besides, in bytes.
    pub(super) fn more_divided(&self, bounds: &Bounds) -> u64 {
        let segments = self.chunks.values().flat_map(|tagged| tagged.values().flatten());
        let more = segments.map(|segment| bounds.most_parts(segment.records.count()).saturating_sub(1));
        MEMORY_OF_SEGMENT * more.sum::<u64>()
    }

    fn drop_records(&mut self, number: u64) {
        for tagged in self.chunks.values_mut() {
            for segments in tagged.values_mut() {
                segments.retain(|segment| segment.attempt.number != number);
            }
            tagged.retain(|_, segments| !segments.is_empty());
        }
        self.chunks.retain(|_, tagged| !tagged.is_empty());
        let segments = self.chunks.values().flat_map(|tagged| tagged.values().flatten());
        (self.bytes, self.records) =
            segments.fold((0, 0), |sum, segment| (sum.0 + segment.bytes(), sum.1 + segment.records.count()));
        self.count_segments();
    }
}
