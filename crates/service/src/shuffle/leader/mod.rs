//! The leader of a slot: it decides for the shuffles whose home the slot is (rules 4 to 7).
//!
//! | phase | what it waits for | what it does |
//! |---|---|---|
//! | beginning | its whole copy, under its epoch, on every replica that it counts on | nothing else |
//! | leading | | decides; each decision counts when all of these have it |
//! | deposed | | nothing any more: a replica has heard of a later epoch |
//!
//! One decision on a shuffle is under way at a time, or one for each division that is done: these go together, in one write of
//! each replica. A step of a shuffle begins when the last thing comes that it waits for; ticks are for what was lost, and for
//! what ends by time. All else that a leader knows of a shuffle (end marks, samples, divisions under way, how far a seal is) is
//! gone with it; its successor gathers marks and begins anew, which changes nothing that counts.

use super::log::{Append, Decision, Decisions, Refused, What};
use super::message::{Message, Word};
use super::options::OptionDifference;
use super::plan::Plan;
use super::pool::PoolMap;
use super::settings::Settings;
use super::{Ended, Failure, PoolSlot, ShuffleId, ShuffleOptions, Terms};
use partage_core::base::id::Epoch;
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

mod dividing;
mod led;
mod overview;
mod quota;
mod sealing;

use led::{Led, State, UnderWay};
pub use overview::{ShuffleOverview, ShuffleStage};
pub use quota::{OwnerQuota, OwnerUse, QuotaUsedUp};

/// What a client asks the leader for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A shuffle with that number begins. Sent again with the same options, it is the same shuffle.
    Start(Terms, ShuffleOptions),
    /// The shuffle takes no more; these input partitions are expected.
    Seal(BTreeSet<u32>),
    /// The shuffle is not used any more: it ends, and all that it has goes.
    Delete,
    /// The shuffle is in use: its time to live begins anew.
    KeepAlive,
    /// The state of the shuffle, for people. Asking for it does not keep the shuffle alive.
    Overview,
}

/// What the leader answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It has begun, with these terms.
    Started(Terms),
    /// The shuffle is sealed, by this plan.
    Sealed(Arc<Plan>),
    /// It is not sealed: these partitions lack a whole attempt.
    Lacks(Vec<u32>),
    /// The shuffle has ended, as a client deleted it.
    Deleted,
    /// The shuffle lives, and its time to live has begun anew.
    Alive,
    /// The shuffle as its leader knows it.
    Overview(ShuffleOverview),
}

/// Why the leader refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// It does not lead, or not yet.
    #[error("this node does not lead the shuffle, or has not begun: try again")]
    NotLeading,
    /// There is no shuffle any more.
    #[error("{0}")]
    Over(Ended),
    /// The shuffle has failed: no client can read it.
    #[error("the shuffle has failed: {0}")]
    Failed(Failure),
    /// It is sealed, or is being sealed, without this partition.
    #[error(
        "the shuffle is sealed, or is being sealed, without input partition {0}: seal it with the partitions of its first seal"
    )]
    NotExpected(u32),
    /// It was started before, with other options.
    #[error("a shuffle with this number was started with another {0}: start this one under another number")]
    StartDiffers(OptionDifference),
    /// Its owner has as much as it may have. The driver finds that, as it knows all leaders of its node.
    #[error("the shuffle is not started: {0}")]
    QuotaUsedUp(QuotaUsedUp),
}

/// What the driver tells a leader ([`Leader::handle`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Another node, or this one, has sent this.
    Message(NodeId, Message),
    /// A client asks for this; the number is the driver's.
    Request(u64, ShuffleId, Request),
    /// The next map. If it has another epoch for the slot, the leader is to be dropped.
    Map(Arc<PoolMap>),
    /// This node is not to lead the slot any more: the leader is to be dropped.
    Deposed,
    /// Time has passed: what was lost is sent again, and what is late ends.
    Tick,
}

/// What a leader asks its driver to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Send this message to a node, or to this one.
    Send(NodeId, Message),
    /// Give the request of that number its answer.
    Answer(u64, Result<Answer, Failed>),
}

/// The machine that decides for the shuffles of one slot, under one epoch.
#[derive(Debug, Clone)]
pub struct Leader {
    slot: PoolSlot,
    epoch: Epoch,
    settings: Settings,
    map: Arc<PoolMap>,
    /// Its copy, with what is under way.
    decisions: Decisions,
    /// Up to where each replica that it counts on has synced it.
    synced: BTreeMap<NodeId, Option<u64>>,
    sent: BTreeMap<NodeId, Millis>,
    /// The first number that counts under this epoch, and the last one that does.
    first: u64,
    counted: Option<u64>,
    /// Decisions since it began: number, shuffle, decision. The front may be gone.
    recent: VecDeque<(u64, ShuffleId, Decision)>,
    is_deposed: bool,
    shuffles: BTreeMap<ShuffleId, Led>,
    /// Nodes that have not dropped what they had of a shuffle that has ended.
    dropping: BTreeMap<ShuffleId, (Ended, BTreeSet<NodeId>)>,
    /// Requests that wait for a decision.
    waiting: BTreeMap<ShuffleId, Vec<(u64, Request)>>,
    tasks: u64,
    /// When it was called with a tick last, and when it wants to be next.
    ticked: Millis,
    tick_at: Millis,
    effects: Vec<Effect>,
}

/// Requests that wait for the same decision; beyond that the leader tells the first ones to try again.
const WAITING: usize = 64;

/// Decisions that are kept for replicas that lag; beyond that they get the whole copy.
const RECENT: usize = 1_024;

impl Leader {
    /// The map has given this node the lead of the slot; `decisions` is its own copy, by [`super::log::Replicas::lead`].
    pub fn begin(
        now: Millis,
        slot: PoolSlot,
        settings: Settings,
        map: Arc<PoolMap>,
        decisions: Decisions,
    ) -> Leader {
        let epoch = map.place(slot).map_or(Epoch(0), |place| place.epoch);
        let first = decisions.sequence;
        let mut leader = Leader {
            slot,
            epoch,
            settings,
            map: map.clone(),
            decisions: Decisions { epoch, ..decisions },
            synced: BTreeMap::new(),
            sent: BTreeMap::new(),
            first,
            counted: None,
            recent: VecDeque::new(),
            is_deposed: false,
            shuffles: BTreeMap::new(),
            dropping: BTreeMap::new(),
            waiting: BTreeMap::new(),
            tasks: 0,
            ticked: now,
            tick_at: now,
            effects: Vec::new(),
        };
        leader.take_map(map);
        leader
    }

    /// The epoch under which it leads.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether it answers for its shuffles: it has begun, and knows of no later leader.
    pub fn has_begun(&self) -> bool {
        self.counted.is_some() && !self.is_deposed
    }

    /// Takes in an event; the driver carries out the effects in their order.
    pub fn handle(&mut self, now: Millis, event: Event) -> Vec<Effect> {
        match event {
            Event::Map(map) => self.take_map(map),
            Event::Deposed => self.depose(),
            _ if self.is_deposed => self.refuse(event),
            Event::Message(from, message) => self.message(now, from, message),
            Event::Request(..) if self.counted.is_none() => self.refuse(event),
            Event::Request(number, shuffle, request) => self.request(now, number, shuffle, request),
            Event::Tick => self.tick(now),
        }
        std::mem::take(&mut self.effects)
    }

    /// When it wants to be called again.
    pub fn wake_at(&self) -> Millis {
        if self.is_deposed { Millis::NEVER } else { self.tick_at }
    }

    fn refuse(&mut self, event: Event) {
        if let Event::Request(number, ..) = event {
            self.effects.push(Effect::Answer(number, Err(Failed::NotLeading)));
        }
    }

    fn send(&mut self, to: NodeId, message: Message) {
        self.effects.push(Effect::Send(to, message));
    }

    fn send_to_all(&mut self, message: &Message) {
        let sends = self.map.nodes.iter().map(|node| Effect::Send(node.clone(), message.clone()));
        self.effects.extend(sends);
    }

    /// It counts on all replicas that the map names under its epoch. Under one epoch none is added.
    fn take_map(&mut self, map: Arc<PoolMap>) {
        self.map = map;
        let Some(place) = self.map.place(self.slot).filter(|place| place.epoch == self.epoch) else {
            self.depose();
            return;
        };
        let named: BTreeSet<&NodeId> = place.live.iter().chain(&place.loading).collect();
        self.synced.retain(|node, _| named.contains(node));
        for node in named {
            self.synced.entry(node.clone()).or_insert(None);
        }
    }

    /// Another leads: what waits for a decision has to be asked of that one.
    fn depose(&mut self) {
        self.is_deposed = true;
        let waiting = std::mem::take(&mut self.waiting).into_values().flatten().map(|(number, _)| number);
        let sealing = self.shuffles.values_mut().filter_map(|led| led.seal.take());
        let numbers = waiting.chain(sealing.flat_map(|sealing| sealing.requests));
        self.effects.extend(numbers.map(|number| Effect::Answer(number, Err(Failed::NotLeading))));
    }

    fn message(&mut self, now: Millis, from: NodeId, message: Message) {
        match message {
            Message::Appended(slot, epoch, upto) if (slot, epoch) == (self.slot, self.epoch) => {
                self.appended(now, from, upto);
            }
            Message::NotAppended(slot, epoch, refused) if (slot, epoch) == (self.slot, self.epoch) => {
                match refused {
                    Refused::Stale(_) => self.depose(),
                    Refused::Lacks => self.lacks(&from),
                }
            }
            _ if self.counted.is_none() => {}
            Message::Ask(shuffle) => self.asked(now, from, shuffle),
            Message::Sample(shuffle, node, incarnation, sketch) => {
                if let Some(led) = self.shuffles.get_mut(&shuffle).filter(|led| led.state == State::Open) {
                    let is_new = led.sample(node, incarnation, sketch);
                    led.touched = if is_new { now } else { led.touched };
                }
                self.advance(now, shuffle);
                // That bounds are being made is no answer: these are.
                if !self.makes_first_bounds(shuffle) {
                    self.asked(now, from, shuffle);
                }
            }
            Message::Marks { shuffle, after, marks, has_more } => {
                self.marks(now, from, (shuffle, after, has_more), marks);
            }
            Message::Divided(shuffle, task, by, last) => self.divided(now, shuffle, (task, by), last),
            Message::Counted(shuffle, epoch, slot, counts) if epoch == self.epoch => {
                self.count(now, shuffle, slot, counts);
            }
            Message::Lacks(shuffle, slot) => self.replica_lacks(now, from, shuffle, slot),
            Message::Dropped(shuffle) => {
                if let Some((_, nodes)) = self.dropping.get_mut(&shuffle) {
                    nodes.remove(&from);
                }
                self.dropping.retain(|_, (_, nodes)| !nodes.is_empty());
            }
            _ => {}
        }
    }

    fn lacks(&mut self, node: &NodeId) {
        if let Some(synced) = self.synced.get_mut(node) {
            *synced = None;
        }
    }

    /// Says the state of a shuffle. For one that it does not know it decides that it is over: only a leader that still
    /// leads can.
    fn asked(&mut self, now: Millis, from: NodeId, shuffle: ShuffleId) {
        let ended = self.how_ended(shuffle);
        let word = self.shuffles.get(&shuffle).map(Led::word).or(ended.map(Word::Ended));
        match word {
            Some(word) => self.send(from, Message::Word(shuffle, word)),
            None if self.is_under_way(shuffle) || !self.may_decide() => {}
            None => self.decide(now, shuffle, Decision::Ended(Ended::Unknown)),
        }
    }

    /// How a shuffle has ended, if that counts.
    fn how_ended(&self, shuffle: ShuffleId) -> Option<Ended> {
        let mut ended = self.decisions.ended.iter().filter(|_| !self.is_under_way(shuffle));
        ended.find(|(known, _)| *known == shuffle).map(|(_, how)| *how)
    }

    /// Whether decisions on further shuffles are begun: those that are under way are kept until each replica has them.
    fn may_decide(&self) -> bool {
        let counted = self.counted.unwrap_or(self.first);
        self.decisions.sequence.saturating_sub(counted) < RECENT as u64
    }

    fn is_under_way(&self, shuffle: ShuffleId) -> bool {
        let counted = self.counted.unwrap_or(0);
        self.recent
            .iter()
            .rev()
            .take_while(|(number, ..)| *number > counted)
            .any(|(_, other, _)| *other == shuffle)
    }

    fn request(&mut self, now: Millis, number: u64, shuffle: ShuffleId, request: Request) {
        if let Some(led) = self.shuffles.get_mut(&shuffle).filter(|_| request != Request::Overview) {
            led.touched = now;
        }
        // A seal goes on beside decisions on its shuffle, but for the one that starts it.
        let waits = !matches!(request, Request::Seal(_)) || !self.shuffles.contains_key(&shuffle);
        if waits && self.is_under_way(shuffle) {
            return self.waits(shuffle, number, request);
        }
        let known =
            self.shuffles.get(&shuffle).map(|led| (led.terms, led.options.clone(), led.state.clone()));
        let answer = match (request, known) {
            (_, None) if !self.may_decide() && self.how_ended(shuffle).is_none() => Err(Failed::NotLeading),
            (Request::Start(terms, options), None) if self.how_ended(shuffle).is_none() => {
                self.waits(shuffle, number, Request::Start(terms, options.clone()));
                return self.decide(now, shuffle, Decision::Start(terms, options.into()));
            }
            (Request::Start(asked, options), Some((terms, own, _))) => match own.difference(&options) {
                Some(difference) => Err(Failed::StartDiffers(difference)),
                None if asked.combine != terms.combine => {
                    Err(Failed::StartDiffers(OptionDifference::Combine))
                }
                None if asked.durability != terms.durability => {
                    Err(Failed::StartDiffers(OptionDifference::Durability))
                }
                None => Ok(Answer::Started(terms)),
            },
            (Request::Delete, Some(_)) => {
                self.waits(shuffle, number, Request::Delete);
                return self.decide(now, shuffle, Decision::Ended(Ended::Deleted));
            }
            (Request::Delete, None) if self.how_ended(shuffle) == Some(Ended::Deleted) => Ok(Answer::Deleted),
            (request, None) => match self.how_ended(shuffle) {
                Some(how) => Err(Failed::Over(how)),
                // One that was replaced and has not heard of it may not know the shuffle: only a decision says that nobody does.
                None => {
                    self.waits(shuffle, number, request);
                    return self.decide(now, shuffle, Decision::Ended(Ended::Unknown));
                }
            },
            (Request::KeepAlive, Some(_)) => Ok(Answer::Alive),
            (Request::Overview, Some(_)) => {
                self.overview(now, shuffle).map(Answer::Overview).ok_or(Failed::NotLeading)
            }
            (Request::Seal(expected), Some((_, _, State::Sealed(plan)))) => {
                match plan.first_without(&expected) {
                    Some(partition) if !planted::is(Planted::SealedWithout) => {
                        Err(Failed::NotExpected(partition))
                    }
                    _ => Ok(Answer::Sealed(plan)),
                }
            }
            (Request::Seal(_), Some((_, _, State::Failed(failure)))) => Err(Failed::Failed(failure)),
            (Request::Seal(expected), Some((_, _, State::Open))) => {
                return self.begin_seal(now, number, shuffle, expected);
            }
        };
        self.effects.push(Effect::Answer(number, answer));
    }

    /// The request waits for the decision that is under way. Beyond so many the leader tells the first to try again.
    fn waits(&mut self, shuffle: ShuffleId, number: u64, request: Request) {
        let waiting = self.waiting.entry(shuffle).or_default();
        waiting.push((number, request));
        if waiting.len() > WAITING {
            let (first, _) = waiting.remove(0);
            self.effects.push(Effect::Answer(first, Err(Failed::NotLeading)));
        }
    }

    /// Sends a decision to all replicas.
    fn decide(&mut self, now: Millis, shuffle: ShuffleId, decision: Decision) {
        self.decide_all(now, shuffle, vec![decision]);
    }

    /// Sends decisions on a shuffle, each of which holds without the others, to all replicas at once.
    fn decide_all(&mut self, now: Millis, shuffle: ShuffleId, decisions: Vec<Decision>) {
        if let Some(led) = self.shuffles.get_mut(&shuffle) {
            led.deciding += decisions.len();
        }
        for decision in decisions {
            self.decisions.push(shuffle, decision.clone(), self.settings.ended_kept);
            self.recent.push_back((self.decisions.sequence, shuffle, decision));
        }
        // What does not count yet is kept: it is carried out when it does.
        let counted = self.counted.unwrap_or(0);
        let counts = |(number, ..): &mut (u64, ShuffleId, Decision)| *number <= counted;
        while self.recent.len() > RECENT && self.recent.pop_front_if(counts).is_some() {}
        self.append_to_all(now, true);
    }

    fn append_to_all(&mut self, now: Millis, at_once: bool) {
        let behind = self.synced.iter().filter(|(node, synced)| {
            let is_due = self.sent.get(*node).is_none_or(|at| now.since(*at) >= self.settings.resend_ms);
            synced.is_none_or(|upto| upto < self.decisions.sequence)
                && (is_due || (at_once && synced.is_some()))
        });
        let behind: Vec<(NodeId, Option<u64>)> =
            behind.map(|(node, synced)| (node.clone(), *synced)).collect();
        for (node, synced) in behind {
            let first = self.recent.front().map_or(self.decisions.sequence + 1, |(number, ..)| *number);
            let what = match synced {
                Some(upto) if upto + 1 >= first => {
                    let after = self.recent.iter().filter(|(number, ..)| *number > upto);
                    let after = after.map(|(_, shuffle, decision)| (*shuffle, decision.clone()));
                    What::After(upto, after.collect())
                }
                _ => What::Whole(Arc::new(self.decisions.clone())),
            };
            self.sent.insert(node.clone(), now);
            let append = Append { slot: self.slot, epoch: self.epoch, what };
            self.send(node, Message::Append(append));
        }
    }

    fn appended(&mut self, now: Millis, from: NodeId, upto: u64) {
        let Some(synced) = self.synced.get_mut(&from) else { return };
        *synced = Some(synced.map_or(upto, |before| before.max(upto)));
        self.count_decisions(now);
    }

    /// What all replicas have synced counts.
    fn count_decisions(&mut self, now: Millis) {
        let all: Option<Vec<u64>> = self.synced.values().copied().collect();
        let Some(upto) = all.and_then(|all| all.into_iter().min()).filter(|upto| *upto >= self.first) else {
            return;
        };
        let before = match self.counted.replace(upto) {
            Some(before) => before,
            None => {
                self.take_up(now);
                self.first
            }
        };
        let new = self.recent.iter().filter(|(number, ..)| *number > before && *number <= upto);
        let new: Vec<_> = new.map(|(_, shuffle, decision)| (*shuffle, decision.clone())).collect();
        for (shuffle, decision) in new {
            self.counts(now, shuffle, &decision);
        }
    }

    /// It leads: what its copy has is in force.
    fn take_up(&mut self, now: Millis) {
        for (shuffle, decisions) in self.decisions.living.clone() {
            let start = decisions.iter().find_map(|decision| match decision {
                Decision::Start(terms, options) => Some((*terms, options.clone())),
                _ => None,
            });
            let (terms, options) = start.unwrap_or_default();
            let mut led = Led::new(now, terms, options);
            decisions.iter().for_each(|decision| led.apply(decision));
            let is_open = led.state == State::Open;
            self.shuffles.insert(shuffle, led);
            if is_open {
                self.ask_marks(now, shuffle);
            }
        }
    }

    fn counts(&mut self, now: Millis, shuffle: ShuffleId, decision: &Decision) {
        match decision {
            Decision::Start(terms, options) => {
                self.shuffles.insert(shuffle, Led::new(now, *terms, options.clone()));
            }
            Decision::Ended(how) => {
                let sealing = self.shuffles.remove(&shuffle).and_then(|led| led.seal);
                for number in sealing.into_iter().flat_map(|sealing| sealing.requests) {
                    self.effects.push(Effect::Answer(number, Err(Failed::Over(*how))));
                }
                self.dropping.insert(shuffle, (*how, self.map.nodes.iter().cloned().collect()));
                // A node that is away for long asks when it is back.
                if self.dropping.len() > self.settings.ended_kept {
                    self.dropping.pop_first();
                }
                self.send_to_all(&Message::Word(shuffle, Word::Ended(*how)));
            }
            decision => {
                let Some(led) = self.shuffles.get_mut(&shuffle) else { return };
                led.deciding = led.deciding.saturating_sub(1);
                led.apply(decision);
                let word = Message::Word(shuffle, led.word());
                self.step_seal(now, shuffle);
                if !matches!(decision, Decision::Superseded(_)) {
                    self.send_to_all(&word);
                }
            }
        }
        for (number, request) in self.waiting.remove(&shuffle).unwrap_or_default() {
            self.request(now, number, shuffle, request);
        }
        self.advance(now, shuffle);
    }

    /// The next step of a shuffle, unless decisions on it are under way.
    fn advance(&mut self, now: Millis, shuffle: ShuffleId) {
        let Some(led) = self.shuffles.get_mut(&shuffle) else { return };
        if led.deciding > 0 || led.state != State::Open {
            return;
        }
        let (done, is_sealing) = (led.take_done(), led.is_sealing());
        if !done.is_empty() {
            let superseded = done.into_iter().map(|one| Decision::Superseded(one.into())).collect();
            self.decide_all(now, shuffle, superseded);
            // A seal waits for all divisions: the next ones need not wait for these decisions.
            if is_sealing {
                self.order_divisions(now, shuffle);
            }
            return;
        }
        if let Some(bounds) = led.next_bounds(&self.settings) {
            return self.decide(now, shuffle, Decision::Bounds(bounds.into()));
        }
        self.order_divisions(now, shuffle);
        self.go_on_sealing(now, shuffle);
    }

    fn tick(&mut self, now: Millis) {
        self.tick_at = now + self.settings.resend_ms;
        self.forgive_pause(now);
        self.append_to_all(now, false);
        // A replica that the map does not name any more is not waited for.
        self.count_decisions(now);
        if self.counted.is_none() {
            return;
        }
        let nodes = &self.map.nodes;
        self.dropping.values_mut().for_each(|(_, left)| left.retain(|node| nodes.contains(node)));
        self.dropping.retain(|_, (_, left)| !left.is_empty());
        let words = self.dropping.iter().flat_map(|(shuffle, (how, left))| {
            let word = Message::Word(*shuffle, Word::Ended(*how));
            left.iter().map(move |node| Effect::Send(node.clone(), word.clone()))
        });
        let words: Vec<Effect> = words.collect();
        self.effects.extend(words);
        let shuffles: Vec<ShuffleId> = self.shuffles.keys().copied().collect();
        for shuffle in shuffles {
            self.expire(now, shuffle);
            self.advance(now, shuffle);
        }
    }

    /// While a leader was paused no client could ask it for anything: that time ends no shuffle.
    fn forgive_pause(&mut self, now: Millis) {
        let gap = now.since(std::mem::replace(&mut self.ticked, now));
        if gap > self.settings.resend_ms.saturating_mul(4) {
            for led in self.shuffles.values_mut() {
                led.touched = now.min(led.touched + gap);
                led.forgive_seal(now, gap);
            }
        }
    }

    fn expire(&mut self, now: Millis, shuffle: ShuffleId) {
        let Some(led) = self.shuffles.get(&shuffle) else { return };
        if led.deciding == 0 && led.ends_in_ms(now, &self.settings) == 0 {
            self.decide(now, shuffle, Decision::Ended(Ended::Expired));
        }
    }
}

#[cfg(test)]
mod tests;
