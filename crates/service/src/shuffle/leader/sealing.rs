//! Seal: which attempts win, and whether what was acknowledged is there (rules 6 and 7).
//!
//! | step | what it waits for |
//! |---|---|
//! | gathering | a whole attempt of each partition expected, told in parts; after a time those that lack one are listed, and nothing is sealed |
//! | dividing | bounds, if there are none, and all that the winners need to lie where it is wanted |
//! | counting | records and bytes of each range, from a replica of each slot, some slots at a time |
//! | deciding | if the counts are those of the winners: the plan. Else the shuffle fails by name (D6) |
//!
//! While it divides or counts, a seal waits for holders of what the winners need, without end if the shuffle is on disk. One of
//! durability `memory` fails by name when nothing more has come for long ([`Settings::lost_ms`]) and all replicas of one slot say
//! that they lack what is needed of it: R machines have ended. A replica that says nothing is away, or busy, or its disk is full:
//! others may have it.
//!
//! A later request to seal that names a partition more than the first one is refused, in any of these steps and after them.

use super::dividing::need;
use super::{Answer, Effect, Failed, Leader, Led, State, WAITING};
use crate::shuffle::log::{Decision, Superseded};
use crate::shuffle::message::Message;
use crate::shuffle::plan::{Needed, Plan, PlanRange, Winner};
use crate::shuffle::pool::PoolMap;
use crate::shuffle::record::EndMark;
use crate::shuffle::settings::Settings;
use crate::shuffle::{AttemptKey, Durability, Failure, PoolSlot, RangeId, ShuffleId};
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Records and bytes of ranges.
type Counts = BTreeMap<RangeId, (u64, u64)>;

/// What has no count is asked for again after twice the time each time, but no longer than this: the holders of a large slot
/// read for long, and asking often only sends the plan again.
const LONGEST_COUNT_WAIT_MS: u64 = 4_000;

/// The attempts that win.
#[derive(Debug, Clone)]
struct Chosen {
    marks: Vec<EndMark>,
    /// Up to which batch each stream is needed, by these and by the divisions that count.
    needed: Needed,
}

/// The plan without counts, and how far the counts are.
#[derive(Debug, Clone)]
struct Draft {
    plan: Arc<Plan>,
    /// Slots that are not counted yet.
    open: BTreeSet<PoolSlot>,
    /// What replicas were asked to count, of these slots.
    asked: BTreeMap<PoolSlot, CountAsked>,
}

/// What the replicas of a slot were asked to count.
#[derive(Debug, Clone)]
struct CountAsked {
    plan: Arc<Plan>,
    since: Millis,
    /// How many replicas were asked before the one whose turn it is.
    turn: u64,
    again_at: Millis,
    wait_ms: u64,
}

impl Draft {
    fn new(plan: Plan) -> Draft {
        let open = plan.ranges.iter().map(|range| range.slot).collect();
        Draft { plan: Arc::new(plan), open, asked: BTreeMap::new() }
    }

    /// What is to be asked for now, of the first open slots, and how many replicas of each were asked before.
    fn ask(&mut self, now: Millis, settings: &Settings) -> Vec<(PoolSlot, u64, Arc<Plan>)> {
        let Draft { plan, open, asked } = self;
        let longest = LONGEST_COUNT_WAIT_MS.min(settings.task_ms / 2).max(settings.resend_ms);
        let mut asks = Vec::new();
        for slot in open.iter().take(settings.counts_at_once.max(1)) {
            let one = asked.entry(*slot).or_insert_with(|| {
                let (plan, wait_ms) = (Arc::new(of_slot(plan, *slot)), settings.resend_ms);
                CountAsked { plan, since: now, turn: 0, again_at: now, wait_ms }
            });
            if now < one.again_at {
                continue;
            }
            // For so long it is the same one: it may have to fetch a gap.
            let turn = now.since(one.since) / settings.task_ms.max(1);
            if turn > one.turn {
                (one.turn, one.wait_ms) = (turn, settings.resend_ms);
            }
            one.again_at = now + one.wait_ms;
            one.wait_ms = one.wait_ms.saturating_mul(2).min(longest);
            asks.push((*slot, turn, one.plan.clone()));
        }
        asks
    }
}

/// What a plan says of one slot: a replica needs no more to count it.
fn of_slot(plan: &Plan, slot: PoolSlot) -> Plan {
    let needed = plan.needed.get(&slot).map(|needed| (slot, needed.clone()));
    let ranges = plan.ranges.iter().filter(|range| range.slot == slot).cloned();
    Plan {
        shuffle: plan.shuffle,
        winners: plan.winners.clone(),
        needed: needed.into_iter().collect(),
        ranges: ranges.collect(),
    }
}

/// How far a seal is.
#[derive(Debug, Clone)]
pub(super) struct Sealing {
    pub(super) requests: Vec<u64>,
    expected: BTreeSet<u32>,
    /// When it began, or a part came that had new marks and was not the last one.
    since: Millis,
    /// Those that win, when each partition has one.
    chosen: Option<Chosen>,
    draft: Option<Draft>,
    counts: BTreeMap<PoolSlot, Counts>,
    /// How many streams are needed and how many slots are not counted, and since when these are the numbers.
    left: (usize, usize),
    left_since: Millis,
    /// The replicas that lack something of a slot which is to be divided or counted, and when each has said so last.
    lacking: BTreeMap<PoolSlot, BTreeMap<NodeId, Millis>>,
}

impl Sealing {
    /// Whether it has come no further for so long.
    fn is_stuck(&mut self, now: Millis, most_ms: u64) -> bool {
        let needed = self.chosen.iter().flat_map(|chosen| chosen.needed.values());
        let streams = needed.map(BTreeMap::len).sum::<usize>();
        let left = (streams, self.draft.as_ref().map_or(usize::MAX, |draft| draft.open.len()));
        if self.left != left {
            (self.left, self.left_since) = (left, now);
        }
        now.since(self.left_since) >= most_ms
    }

    /// Whether all replicas of a slot lack something of it: each has said so since it has come no further, and in the last
    /// rounds, within which each of them was asked.
    fn is_lacking(&self, now: Millis, slot: PoolSlot, map: &PoolMap, task_ms: u64) -> bool {
        let live = map.live(slot);
        let recent = task_ms.saturating_mul(live.len() as u64 + 1);
        let said = self.lacking.get(&slot);
        let lacks = |node: &NodeId| {
            let at = said.and_then(|said| said.get(node)).copied();
            at.is_some_and(|at| at >= self.left_since && now.since(at) <= recent)
        };
        !live.is_empty() && live.len() >= map.replicas && live.iter().all(lacks)
    }
}

impl Led {
    /// Whether its winners are chosen.
    pub(super) fn is_sealing(&self) -> bool {
        self.winners_need().is_some()
    }

    /// Up to which batch each stream is needed by the winners, when they are chosen.
    pub(super) fn winners_need(&self) -> Option<&Needed> {
        self.seal.as_ref().and_then(|sealing| sealing.chosen.as_ref()).map(|chosen| &chosen.needed)
    }

    /// A division counts: what it has written is needed.
    pub(super) fn need_division(&mut self, superseded: &Superseded) {
        if let Some(chosen) = self.seal.as_mut().and_then(|sealing| sealing.chosen.as_mut()) {
            let last = superseded.last.iter();
            last.for_each(|(slot, last)| need(&mut chosen.needed, *slot, &superseded.writer, *last));
        }
    }

    /// The slots that wait for replicas: to be divided, or counted.
    fn waits_for(&self) -> BTreeSet<PoolSlot> {
        let dividing = self.dividing.iter().filter(|(_, one)| !one.is_done).map(|(slot, _)| *slot);
        let draft = self.seal.as_ref().and_then(|sealing| sealing.draft.as_ref());
        dividing.chain(draft.into_iter().flat_map(|draft| draft.open.iter().copied())).collect()
    }

    /// While the leader was paused no node could give it anything.
    pub(super) fn forgive_seal(&mut self, now: Millis, gap: u64) {
        if let Some(sealing) = &mut self.seal {
            sealing.left_since = now.min(sealing.left_since + gap);
        }
    }

    /// The first partitions that a seal which is under way waits for.
    pub(super) fn lacks_for_seal(&self, most: usize) -> Vec<u32> {
        let sealing = self.seal.as_ref().filter(|sealing| sealing.chosen.is_none());
        let mut lacking = sealing.map(|sealing| self.lacking(&sealing.expected)).unwrap_or_default();
        lacking.truncate(most);
        lacking
    }

    fn lacking(&self, expected: &BTreeSet<u32>) -> Vec<u32> {
        expected.iter().copied().filter(|partition| !self.marks.contains_key(partition)).collect()
    }

    fn draft(&self, shuffle: ShuffleId, chosen: &Chosen, slot_of: impl Fn(RangeId) -> PoolSlot) -> Plan {
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
            winners: Arc::new(chosen.marks.iter().map(winner).collect()),
            needed: chosen.needed.clone(),
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
            chosen: None,
            draft: None,
            counts: BTreeMap::new(),
            left: (0, 0),
            left_since: now,
            lacking: BTreeMap::new(),
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
        if led.seal.is_none() {
            return;
        }
        match led.winners_need() {
            None => self.gather(now, shuffle),
            Some(needed) => {
                if led.versions.current().version > 0 && !self.has_to_divide(shuffle, led, needed) {
                    self.ask_counts(now, shuffle);
                }
                self.fail_if_lost(now, shuffle);
            }
        }
    }

    /// What was acknowledged in memory may be nowhere. Then nothing comes any more, and the replicas of a slot say that they lack
    /// something.
    fn fail_if_lost(&mut self, now: Millis, shuffle: ShuffleId) {
        let (map, lost_ms, task_ms) = (self.map.clone(), self.settings.lost_ms, self.settings.task_ms);
        let Some(led) = self.shuffles.get_mut(&shuffle) else { return };
        if led.terms.durability != Durability::Memory || led.deciding > 0 {
            return;
        }
        let waits = led.waits_for();
        let Some(sealing) = &mut led.seal else { return };
        let is_lost = sealing.is_stuck(now, lost_ms)
            && waits.iter().any(|slot| sealing.is_lacking(now, *slot, &map, task_ms));
        if is_lost {
            self.decide(now, shuffle, Decision::Failed(Failure::Lost));
        }
    }

    /// A replica that was asked to divide or to count lacks something of the slot.
    pub(super) fn replica_lacks(&mut self, now: Millis, from: NodeId, shuffle: ShuffleId, slot: PoolSlot) {
        let is_live = self.map.live(slot).contains(&from);
        let Some(led) = self.shuffles.get_mut(&shuffle) else { return };
        let may_be_lost = led.terms.durability == Durability::Memory && led.is_sealing();
        if !may_be_lost || !is_live || !led.waits_for().contains(&slot) {
            return;
        }
        if let Some(sealing) = &mut led.seal {
            sealing.lacking.entry(slot).or_default().insert(from, now);
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
            let marks: Vec<EndMark> = marks.flat_map(|marks| marks.iter().take(count).cloned()).collect();
            let needed = led.needed(marks.iter());
            if let Some(sealing) = &mut led.seal {
                sealing.chosen = Some(Chosen { marks, needed });
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

    /// Asks for the counts of slots, of some at a time: the next ones are asked for when others have come.
    fn ask_counts(&mut self, now: Millis, shuffle: ShuffleId) {
        let (map, epoch) = (self.map.clone(), self.epoch);
        let Some(led) = self.shuffles.get_mut(&shuffle) else { return };
        let Some(Sealing { chosen: Some(chosen), draft, .. }) = &led.seal else { return };
        let drafted = match draft {
            Some(_) => None,
            None => Some(led.draft(shuffle, chosen, |range| map.slot_of(shuffle, range))),
        };
        let Some(sealing) = led.seal.as_mut() else { return };
        if let Some(plan) = drafted {
            sealing.draft = Some(Draft::new(plan));
        }
        let Some(draft) = &mut sealing.draft else { return };
        for (slot, turn, plan) in draft.ask(now, &self.settings) {
            let live = map.live(slot);
            if let Some(node) = live.get((turn % live.len().max(1) as u64) as usize) {
                self.effects.push(Effect::Send(node.clone(), Message::Count(epoch, plan, slot)));
            }
        }
    }

    /// A replica has counted. With the last slot it is decided.
    pub(super) fn count(&mut self, now: Millis, shuffle: ShuffleId, slot: PoolSlot, counts: Counts) {
        let Some(led) = self.shuffles.get_mut(&shuffle).filter(|led| led.deciding == 0) else { return };
        let Some(sealing) = led.seal.as_mut().filter(|_| led.state == State::Open) else { return };
        let Some(draft) = &mut sealing.draft else { return };
        // An answer may come twice.
        if !draft.open.remove(&slot) {
            return;
        }
        draft.asked.remove(&slot);
        sealing.counts.insert(slot, counts);
        if !draft.open.is_empty() {
            return self.ask_counts(now, shuffle);
        }
        let all = &sealing.counts;
        let mut plan = draft.plan.as_ref().clone();
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

    /// A decision counts: a seal has come further. If it has sealed or failed the shuffle, those that wait for that get
    /// their answers.
    pub(super) fn step_seal(&mut self, now: Millis, shuffle: ShuffleId) {
        let Some(led) = self.shuffles.get_mut(&shuffle) else { return };
        let answer = match &led.state {
            State::Open => {
                if let Some(sealing) = &mut led.seal {
                    sealing.left_since = now;
                }
                return;
            }
            State::Sealed(plan) => Ok(Answer::Sealed(plan.clone())),
            State::Failed(failure) => Err(Failed::Failed(*failure)),
        };
        let requests = led.seal.take().map(|sealing| sealing.requests).unwrap_or_default();
        led.heard = led.marks.values().map(|marks| marks.len() as u64).sum();
        led.marks.clear();
        led.first_needed.clear();
        led.asked.clear();
        led.samples.clear();
        self.effects.extend(requests.into_iter().map(|number| Effect::Answer(number, answer.clone())));
    }
}
