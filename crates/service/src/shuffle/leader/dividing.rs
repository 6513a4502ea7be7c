//! Bounds from samples, and divisions of what lies where it is wanted no more (rule 4).
//!
//! A leader orders a division up to the batches that whole attempts need. Their data is on R nodes, so a holder can have
//! it all. What attempts write later under the old bounds is divided in a later round, the last one before seal. A division is
//! replaced by another one when its node does not answer; what the first writes is a stream that no decision names.

use super::{Leader, Led, UnderWay};
use crate::shuffle::bounds::{Bounds, Tag};
use crate::shuffle::log::Superseded;
use crate::shuffle::message::Message;
use crate::shuffle::plan::{Division, Needed};
use crate::shuffle::record::EndMark;
use crate::shuffle::settings::Settings;
use crate::shuffle::sketch::{Cdf, Sketch};
use crate::shuffle::{BufferId, PoolSlot, ShuffleId, TaskId, Writer};
use partage_core::base::id::Incarnation;
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whole attempts of a partition of which a leader knows: the first wins, the others are known to be losers.
const ATTEMPTS_KNOWN: usize = 8;

impl Led {
    /// A buffer's sample; that of an earlier process of the node is forgotten. The answer is whether it has more keys than the
    /// last.
    pub(super) fn sample(&mut self, node: NodeId, incarnation: Incarnation, sketch: Arc<Sketch>) -> bool {
        let known = self.samples.get(&node).map(|(before, known)| (*before, known.count()));
        let is_newer = known.is_none_or(|known| known < (incarnation, sketch.count()));
        if is_newer {
            self.samples.insert(node, (incarnation, sketch));
        }
        is_newer
    }

    /// An attempt is whole. The answer is whether that is new.
    pub(super) fn mark(&mut self, mark: &EndMark) -> bool {
        let marks = self.marks.entry(mark.partition).or_default();
        let is_new = marks.len() < ATTEMPTS_KNOWN && !marks.contains(mark);
        if marks.is_empty() {
            let writer = Writer::Buffer(mark.attempt.buffer.clone());
            for (slot, last) in &mark.last {
                need(&mut self.first_needed, *slot, &writer, *last);
            }
        }
        if is_new {
            marks.push(mark.clone());
        }
        is_new
    }

    fn cdf(&self, settings: &Settings) -> Cdf {
        let mut merged = Sketch::new(settings.sketch_k, 0);
        self.samples.values().for_each(|(_, sketch)| merged.merge(sketch));
        merged.cdf()
    }

    fn sample_count(&self) -> u64 {
        self.samples.values().fold(0, |count, (_, sketch)| sketch.count().saturating_add(count))
    }

    /// The next version of the bounds, if it is time for one: when the sample suffices or the shuffle is to be sealed, and later
    /// when a range has got far more than its share. The first one is made of few keys, so that little is written before it: it
    /// is looked at again whenever the sample has doubled.
    pub(super) fn next_bounds(&mut self, settings: &Settings) -> Option<Bounds> {
        let (count, version) = (self.sample_count(), self.versions.current().version);
        let ranges = self.terms.ranges.max(1) as usize;
        // A leader that has taken over knows of no sample at first.
        let enough = settings.sample_for(self.terms.ranges);
        if version == 0 {
            let is_time = count >= enough || self.is_sealing();
            self.sampled = count;
            return is_time.then(|| self.versions.next(&self.cdf(settings), ranges));
        }
        let is_time = count >= self.sampled.saturating_mul(2).max(enough)
            && version < settings.versions
            && !self.is_sealing();
        if !is_time {
            return None;
        }
        self.sampled = count;
        self.versions.split(&self.cdf(settings), ranges, settings.drift)
    }

    /// The divisions that are done and not decided yet: they are decided together.
    pub(super) fn take_done(&mut self) -> Vec<Superseded> {
        let most = if planted::is(Planted::TwoSteps) { 1 } else { usize::MAX };
        let count = self.done.len().min(most);
        self.done.drain(..count).collect()
    }

    /// Up to which batch each stream is needed, by these attempts and by the divisions that count.
    pub(super) fn needed<'a>(&self, attempts: impl Iterator<Item = &'a EndMark>) -> Needed {
        let mut needed = Needed::new();
        for mark in attempts {
            let writer = Writer::Buffer(mark.attempt.buffer.clone());
            mark.last.iter().for_each(|(slot, last)| need(&mut needed, *slot, &writer, *last));
        }
        for (writer, last) in &self.divisions {
            last.iter().for_each(|(slot, last)| need(&mut needed, *slot, writer, *last));
        }
        needed
    }

    /// Whether something lies under a tag that is needed and was not divided.
    fn lacks_division(&self, needed: &Needed, slot: PoolSlot, tag: Tag) -> bool {
        let before = self.divided.get(&tag);
        let upto = |writer: &Writer| before.and_then(|before| before.get(writer)).copied().unwrap_or(0);
        let mut writers = needed.get(&slot).into_iter().flatten();
        writers.any(|(writer, needed)| *needed > upto(writer))
    }

    /// What of each slot is to be divided: its tags, with how far each was.
    fn to_divide(&self, needed: &Needed, slot_of: impl Fn(Tag) -> PoolSlot) -> BTreeMap<PoolSlot, Tags> {
        let mut found: BTreeMap<PoolSlot, Tags> = BTreeMap::new();
        for tag in self.versions.unwanted() {
            let slot = slot_of(tag);
            if self.lacks_division(needed, slot, tag) {
                let before = self.divided.get(&tag).cloned().unwrap_or_default();
                found.entry(slot).or_default().insert(tag, before);
            }
        }
        found
    }

    /// The next divisions, of so many slots at most in which none is under way: of each slot the tags, and up to where.
    fn next_divisions(
        &self,
        settings: &Settings,
        slot_of: impl Fn(Tag) -> PoolSlot,
    ) -> Vec<(PoolSlot, Tags, BTreeMap<Writer, u64>)> {
        let room = settings.divisions.saturating_sub(self.dividing.len());
        if room == 0 {
            return Vec::new();
        }
        // As long as no winners are chosen, by the first attempts.
        let needed = self.winners_need().unwrap_or(&self.first_needed);
        let found = self.to_divide(needed, slot_of).into_iter();
        let next = found.filter(|(slot, _)| !self.dividing.contains_key(slot)).take(room);
        let none = BTreeMap::new();
        let part = |(slot, tags): (PoolSlot, Tags)| {
            let upto = some_of(needed.get(&slot).unwrap_or(&none), &tags, settings.division_batches);
            (slot, tags, upto)
        };
        next.map(part).collect()
    }
}

/// Tags, and up to which batch of each writer each of them was divided before.
type Tags = BTreeMap<Tag, BTreeMap<Writer, u64>>;

/// A stream is needed up to this batch.
pub(super) fn need(needed: &mut Needed, slot: PoolSlot, writer: &Writer, last: u64) {
    let upto = needed.entry(slot).or_default().entry(writer.clone()).or_default();
    *upto = (*upto).max(last);
}

/// Up to where one division goes, of what is needed: some batches of some writers, as its node has to hold their records.
fn some_of(
    needed: &BTreeMap<Writer, u64>,
    tags: &BTreeMap<Tag, BTreeMap<Writer, u64>>,
    batches: u64,
) -> BTreeMap<Writer, u64> {
    let mut left = batches.max(1);
    let mut upto = BTreeMap::new();
    for (writer, needed) in needed {
        let before = tags.values().map(|before| before.get(writer).copied().unwrap_or(0)).min().unwrap_or(0);
        let taken = needed.saturating_sub(before).min(left);
        left -= taken;
        if taken > 0 {
            upto.insert(writer.clone(), before + taken);
        }
    }
    upto
}

impl Leader {
    /// Whether the first bounds of a shuffle are made, and do not count yet: when they do, all nodes hear of them.
    pub(super) fn makes_first_bounds(&self, shuffle: ShuffleId) -> bool {
        let led = self.shuffles.get(&shuffle);
        led.is_some_and(|led| led.deciding > 0 && led.versions.current().version == 0)
    }

    /// Orders what is to be divided, and orders again what was not answered.
    pub(super) fn order_divisions(&mut self, now: Millis, shuffle: ShuffleId) {
        let map = self.map.clone();
        let Some(led) = self.shuffles.get_mut(&shuffle) else { return };
        let is_time = led.is_sealing() || now >= led.divide_at;
        if led.versions.current().version == 0 || (!is_time && led.dividing.is_empty()) {
            return;
        }
        let mut orders = Vec::new();
        for one in led.dividing.values_mut().filter(|one| !one.is_done) {
            if now.since(one.sent) >= self.settings.task_ms {
                self.tasks += 1;
                let task = TaskId { epoch: self.epoch, number: self.tasks };
                let to = Arc::new(led.versions.current().clone());
                one.division = Arc::new(Division { task, to, ..one.division.as_ref().clone() });
                (one.asked, one.sent, one.again) = (one.asked + 1, now, now);
            } else if now.since(one.again) >= self.settings.resend_ms {
                // The order may be lost, or wait for a gap to be closed.
                one.again = now;
            } else {
                continue;
            }
            orders.push((one.asked, one.division.clone()));
        }
        if is_time {
            led.divide_at = now + self.settings.divide_ms;
            for (slot, tags, upto) in
                led.next_divisions(&self.settings, |tag| map.slot_of(shuffle, tag.range))
            {
                self.tasks += 1;
                let task = TaskId { epoch: self.epoch, number: self.tasks };
                let to = Arc::new(led.versions.current().clone());
                let durability = led.terms.durability;
                let division = Arc::new(Division { task, shuffle, slot, tags, upto, to, durability });
                orders.push((0, division.clone()));
                let one = UnderWay { division, asked: 0, sent: now, again: now, is_done: false };
                led.dividing.insert(slot, one);
            }
        }
        for (asked, division) in orders {
            let live = map.live(division.slot);
            if let Some(node) = live.get(asked % live.len().max(1)) {
                self.send(node.clone(), Message::Divide(division));
            }
        }
    }

    /// Whether something is still to be divided or decided, as far as these attempts need it.
    pub(super) fn has_to_divide(&self, shuffle: ShuffleId, led: &Led, needed: &Needed) -> bool {
        let slot_of = |tag: Tag| self.map.slot_of(shuffle, tag.range);
        let mut unwanted = led.versions.unwanted();
        !led.done.is_empty() || unwanted.any(|tag| led.lacks_division(needed, slot_of(tag), tag))
    }

    /// A division is on R nodes: one decision replaces what it has read by what it has written. Those that are done while others
    /// are being decided are decided together, next.
    pub(super) fn divided(
        &mut self,
        now: Millis,
        shuffle: ShuffleId,
        (task, by): (TaskId, BufferId),
        last: BTreeMap<PoolSlot, u64>,
    ) {
        let writer = Writer::Division(task, by);
        let Some(led) = self.shuffles.get_mut(&shuffle) else { return };
        let mut under_way = led.dividing.values_mut().filter(|one| !one.is_done);
        let Some(one) = under_way.find(|one| one.division.task == task) else { return };
        one.is_done = true;
        let Division { slot, tags, upto, .. } = one.division.as_ref().clone();
        let tags: Vec<Tag> = tags.into_keys().collect();
        if planted::is(Planted::TwoSteps) {
            let (writer, none) = (writer.clone(), BTreeMap::new());
            let first = Superseded { slot, tags, upto, writer: writer.clone(), last: none };
            let second = Superseded { slot, tags: Vec::new(), upto: BTreeMap::new(), writer, last };
            led.done.extend([first, second]);
        } else {
            led.done.push_back(Superseded { slot, tags, upto, writer, last });
        }
        self.advance(now, shuffle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shuffle::log::Decision;
    use crate::shuffle::{AttemptId, AttemptKey, Terms};
    use proptest::prelude::*;

    fn mark(partition: u32, number: u64, last: BTreeMap<u32, u64>) -> EndMark {
        let buffer = BufferId { node: NodeId::new("a").unwrap(), incarnation: Incarnation(number % 3) };
        let last = last.into_iter().map(|(slot, last)| (PoolSlot(slot), last)).collect();
        let attempt = AttemptKey { buffer, number };
        EndMark { attempt, partition, id: AttemptId(number.into()), records: 1, bytes: 1, last }
    }

    fn superseded(number: u64, last: BTreeMap<u32, u64>) -> Decision {
        let by = BufferId { node: NodeId::new("a").unwrap(), incarnation: Incarnation(1) };
        let task = TaskId { epoch: partage_core::base::id::Epoch(1), number };
        let last = last.into_iter().map(|(slot, last)| (PoolSlot(slot), last)).collect();
        let (slot, tags, upto, writer) =
            (PoolSlot(0), Vec::new(), BTreeMap::new(), Writer::Division(task, by));
        Decision::Superseded(Superseded { slot, tags, upto, writer, last }.into())
    }

    proptest! {
        #[test]
        fn what_is_needed_by_first_attempts_is_kept_as_it_would_be_made_anew(
            heard in prop::collection::vec(
                (0u32..4, prop::collection::btree_map(0u32..5, 1u64..20, 0..4), any::<bool>()),
                0..40,
            ),
        ) {
            let mut led = Led::new(Millis(0), Terms::new(1, 1), Default::default());
            for (number, (partition, last, is_mark)) in (1..).zip(heard) {
                match is_mark {
                    true => drop(led.mark(&mark(partition, number, last))),
                    false => led.apply(&superseded(number, last)),
                }
                let first = led.needed(led.marks.values().filter_map(|marks| marks.first()));
                prop_assert_eq!(&led.first_needed, &first);
            }
        }
    }
}
