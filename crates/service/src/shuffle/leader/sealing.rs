//! Seal: which attempts win, and whether what was acknowledged is there (rules 6 and 7).
//!
//! | step | what it waits for |
//! |---|---|
//! | gathering | a whole attempt of each partition expected, told in parts; after a time those that lack one are listed, and nothing is sealed |
//! | dividing | bounds, if there are none, and all that the winners need to lie where it is wanted |
//! | counting | records and bytes of each range, from a replica of each slot |
//! | deciding | if the counts are those of the winners: the plan. Else the shuffle fails by name (D6) |
//!
//! A later request to seal that names a partition more than the first one is refused, in any of these steps and after them.

use super::{Answer, Effect, Failed, Leader, Led, State, WAITING};
use crate::shuffle::log::Decision;
use crate::shuffle::message::Message;
use crate::shuffle::plan::{Needed, Plan, PlanRange, Winner};
use crate::shuffle::record::EndMark;
use crate::shuffle::{AttemptKey, Failure, PoolSlot, RangeId, ShuffleId};
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Records and bytes of ranges.
type Counts = BTreeMap<RangeId, (u64, u64)>;

/// How far a seal is.
#[derive(Debug, Clone)]
pub(super) struct Sealing {
    pub(super) requests: Vec<u64>,
    expected: BTreeSet<u32>,
    /// When it began, or a part came that had new marks and was not the last one.
    since: Millis,
    /// Those that win, when each partition has one.
    winners: Option<Vec<EndMark>>,
    /// The plan without counts, how many rounds replicas were asked for them, and when.
    draft: Option<(Arc<Plan>, usize, Millis)>,
    counts: BTreeMap<PoolSlot, Counts>,
}

impl Led {
    /// Whether its winners are chosen.
    pub(super) fn is_sealing(&self) -> bool {
        self.seal.as_ref().is_some_and(|sealing| sealing.winners.is_some())
    }

    /// Up to which batch each stream is needed: by the winners, or as long as they are not chosen by the first attempts.
    pub(super) fn needed_now(&self) -> Needed {
        match self.seal.as_ref().and_then(|sealing| sealing.winners.as_ref()) {
            Some(winners) => self.needed(winners.iter()),
            None => self.needed(self.marks.values().filter_map(|marks| marks.first())),
        }
    }

    /// The first partitions that a seal which is under way waits for.
    pub(super) fn lacks_for_seal(&self, most: usize) -> Vec<u32> {
        let sealing = self.seal.as_ref().filter(|sealing| sealing.winners.is_none());
        let mut lacking = sealing.map(|sealing| self.lacking(&sealing.expected)).unwrap_or_default();
        lacking.truncate(most);
        lacking
    }

    fn lacking(&self, expected: &BTreeSet<u32>) -> Vec<u32> {
        expected.iter().copied().filter(|partition| !self.marks.contains_key(partition)).collect()
    }

    fn draft(&self, shuffle: ShuffleId, winners: &[EndMark], slot_of: impl Fn(RangeId) -> PoolSlot) -> Plan {
        let winner = |mark: &EndMark| {
            let EndMark { partition, records, bytes, .. } = *mark;
            (mark.attempt.clone(), Winner { partition, records, bytes })
        };
        let since = self.versions.since();
        let ranges = self.versions.current().ranges.iter().map(|range| PlanRange {
            id: range.id,
            since: since.get(&range.id).copied().unwrap_or(0),
            begins: range.begins.clone(),
            slot: slot_of(range.id),
            records: 0,
            bytes: 0,
        });
        Plan {
            shuffle,
            winners: winners.iter().map(winner).collect(),
            needed: self.needed(winners.iter()),
            ranges: ranges.collect(),
        }
    }
}

impl Leader {
    pub(super) fn begin_seal(
        &mut self,
        now: Millis,
        number: u64,
        shuffle: ShuffleId,
        expected: BTreeSet<u32>,
    ) {
        let Some(led) = self.shuffles.get_mut(&shuffle) else { return };
        match &led.seal {
            // What is sealed for the first would lack a partition of this one.
            Some(sealing) => {
                if let Some(partition) = expected.difference(&sealing.expected).next() {
                    let refused = Err(Failed::NotExpected(*partition));
                    return self.effects.push(Effect::Answer(number, refused));
                }
            }
            None => led.asked.clear(),
        }
        let sealing = led.seal.get_or_insert_with(|| Sealing {
            requests: Vec::new(),
            expected,
            since: now,
            winners: None,
            draft: None,
            counts: BTreeMap::new(),
        });
        sealing.requests.push(number);
        if sealing.requests.len() > WAITING {
            let first = sealing.requests.remove(0);
            self.effects.push(Effect::Answer(first, Err(Failed::NotLeading)));
        }
        self.advance(now, shuffle);
    }

    pub(super) fn go_on_sealing(&mut self, now: Millis, shuffle: ShuffleId) {
        let Some(led) = self.shuffles.get(&shuffle) else { return };
        let Some(sealing) = &led.seal else { return };
        match &sealing.winners {
            None => self.gather(now, shuffle),
            Some(winners) => {
                let needed = led.needed(winners.iter());
                if led.versions.current().version > 0 && !self.has_to_divide(shuffle, &needed) {
                    self.ask_counts(now, shuffle);
                }
            }
        }
    }

    /// Chooses the winners when each partition has one, else asks for marks, and lists what lacks one.
    fn gather(&mut self, now: Millis, shuffle: ShuffleId) {
        let settings = self.settings.clone();
        let Some(led) = self.shuffles.get_mut(&shuffle) else { return };
        let Some(sealing) = led.seal.as_ref() else { return };
        let lacking = led.lacking(&sealing.expected);
        let is_over = now.since(sealing.since) >= settings.gather_ms;
        if lacking.is_empty() || (is_over && planted::is(Planted::SealedWithout)) {
            let marks = sealing.expected.iter().filter_map(|partition| led.marks.get(partition));
            let count = if planted::is(Planted::TwoWinners) { usize::MAX } else { 1 };
            let winners = marks.flat_map(|marks| marks.iter().take(count).cloned()).collect();
            if let Some(sealing) = &mut led.seal {
                sealing.winners = Some(winners);
            }
            return self.advance(now, shuffle);
        }
        if is_over {
            let requests = led.seal.take().map(|sealing| sealing.requests).unwrap_or_default();
            let answer = |number| Effect::Answer(number, Ok(Answer::Lacks(lacking.clone())));
            return self.effects.extend(requests.into_iter().map(answer));
        }
        self.ask_marks(now, shuffle);
    }

    /// Asks each node for the marks that it has, behind the last one that it has told, unless it was asked lately.
    pub(super) fn ask_marks(&mut self, now: Millis, shuffle: ShuffleId) {
        let Some(led) = self.shuffles.get_mut(&shuffle) else { return };
        led.asked.retain(|node, _| self.map.nodes.contains(node));
        for node in &self.map.nodes {
            let asked = led.asked.entry(node.clone()).or_default();
            if asked.at.is_none_or(|at| now.since(at) >= self.settings.resend_ms) {
                asked.at = Some(now);
                let message = Message::AskMarks(shuffle, asked.after.clone());
                self.effects.push(Effect::Send(node.clone(), message));
            }
        }
    }

    /// A node has told of marks. If it has more, it is asked for them at once; if not, later, from the first one on: it may
    /// have got some meanwhile.
    pub(super) fn marks(
        &mut self,
        now: Millis,
        from: NodeId,
        (shuffle, after, has_more): (ShuffleId, Option<AttemptKey>, bool),
        marks: Vec<EndMark>,
    ) {
        let open = self.shuffles.get_mut(&shuffle).filter(|led| led.state == State::Open);
        let Some(led) = open else { return };
        let last = marks.last().map(|mark| mark.attempt.clone()).filter(|_| has_more);
        let new = marks.into_iter().filter(|mark| led.mark(mark)).count();
        led.touched = if new > 0 { now } else { led.touched };
        let is_chosen = led.is_sealing();
        // An answer that comes twice, and a mark that was just stored, say nothing of how far the node is.
        if let Some(asked) = led.asked.get_mut(&from).filter(|asked| asked.after == after) {
            asked.after = last.filter(|last| after.as_ref() < Some(last) && !is_chosen);
            if asked.after.is_some() {
                asked.at = Some(now);
                let message = Message::AskMarks(shuffle, asked.after.clone());
                self.effects.push(Effect::Send(from, message));
                if let Some(sealing) = led.seal.as_mut().filter(|_| new > 0) {
                    sealing.since = now;
                }
            }
        }
        self.advance(now, shuffle);
    }

    fn ask_counts(&mut self, now: Millis, shuffle: ShuffleId) {
        let map = self.map.clone();
        let (every, settings) = (self.settings.resend_ms, &self.settings);
        let Some(led) = self.shuffles.get(&shuffle) else { return };
        let Some(Sealing { winners: Some(winners), draft, .. }) = &led.seal else { return };
        let (plan, rounds) = match draft {
            Some((_, _, at)) if now.since(*at) < every => return,
            Some((plan, rounds, _)) => (plan.clone(), rounds + 1),
            None => (Arc::new(led.draft(shuffle, winners, |range| map.slot_of(shuffle, range))), 0),
        };
        // So many rounds go to one replica: it may have to fetch a gap.
        let patience = (settings.task_ms / every.max(1)).max(1) as usize;
        let Some(sealing) = self.shuffles.get_mut(&shuffle).and_then(|led| led.seal.as_mut()) else { return };
        sealing.draft = Some((plan.clone(), rounds, now));
        let slots: BTreeSet<PoolSlot> = plan.ranges.iter().map(|range| range.slot).collect();
        let open: Vec<PoolSlot> =
            slots.into_iter().filter(|slot| !sealing.counts.contains_key(slot)).collect();
        for slot in open {
            let live = map.live(slot);
            if let Some(node) = live.get((rounds / patience) % live.len().max(1)) {
                self.send(node.clone(), Message::Count(self.epoch, plan.clone(), slot));
            }
        }
    }

    /// A replica has counted. With the last slot it is decided.
    pub(super) fn count(&mut self, now: Millis, shuffle: ShuffleId, slot: PoolSlot, counts: Counts) {
        let Some(led) = self.shuffles.get_mut(&shuffle).filter(|led| !led.is_deciding) else { return };
        let Some(sealing) = led.seal.as_mut().filter(|_| led.state == State::Open) else { return };
        let Some((draft, ..)) = &sealing.draft else { return };
        sealing.counts.insert(slot, counts);
        let all = &sealing.counts;
        if !draft.ranges.iter().all(|range| all.contains_key(&range.slot)) {
            return;
        }
        let mut plan = draft.as_ref().clone();
        for range in &mut plan.ranges {
            let counted = all.get(&range.slot).and_then(|counts| counts.get(&range.id));
            (range.records, range.bytes) = counted.copied().unwrap_or_default();
        }
        let sum = |sizes: &mut dyn Iterator<Item = (u64, u64)>| {
            sizes.fold((0, 0), |(records, bytes), (more, size)| (records + more, bytes + size))
        };
        let found = sum(&mut plan.ranges.iter().map(|range| (range.records, range.bytes)));
        let acknowledged = sum(&mut plan.winners.values().map(|winner| (winner.records, winner.bytes)));
        let decision = match found == acknowledged {
            true => Decision::Sealed(plan.into()),
            false => Decision::Failed(Failure::Differs {
                found: found.0,
                found_bytes: found.1,
                acknowledged: acknowledged.0,
                acknowledged_bytes: acknowledged.1,
            }),
        };
        self.decide(now, shuffle, decision);
    }

    /// The shuffle is sealed, or has failed: who waits for it hears so.
    pub(super) fn end_seal(&mut self, shuffle: ShuffleId) {
        let Some(led) = self.shuffles.get_mut(&shuffle) else { return };
        let answer = match &led.state {
            State::Open => return,
            State::Sealed(plan) => Ok(Answer::Sealed(plan.clone())),
            State::Failed(failure) => Err(Failed::Failed(*failure)),
        };
        let requests = led.seal.take().map(|sealing| sealing.requests).unwrap_or_default();
        led.heard = led.marks.values().map(|marks| marks.len() as u64).sum();
        led.marks.clear();
        led.asked.clear();
        led.samples.clear();
        self.effects.extend(requests.into_iter().map(|number| Effect::Answer(number, answer.clone())));
    }
}
