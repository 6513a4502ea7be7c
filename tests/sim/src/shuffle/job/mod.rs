//! A job: it starts a shuffle, writes its input partitions, seals, reads in each way, and deletes it or leaves it to expire.
//!
//! It goes on by itself every few milliseconds, whatever was lost: what has no answer is asked again, an attempt that fails is
//! run again elsewhere under another id, some attempts have a second one beside them, some clients die or pause and come back.

use super::oracle::{Given, records_of};
use super::weather::Weather;
use super::world::{Happening, World};
use crate::clock::{MS, True};
use crate::draw::Draw;
use partage_core::limits;
use partage_service::shuffle::buffer::{Attempt, Failed, Input};
use partage_service::shuffle::leader::{Answer, Failed as NotDone, Request};
use partage_service::shuffle::partition::CutBy;
use partage_service::shuffle::plan::{Placed, Plan};
use partage_service::shuffle::reader::Reader;
use partage_service::shuffle::record::Record;
use partage_service::shuffle::records::PackedRecords;
use partage_service::shuffle::{
    AttemptId, Bytes, Combine, Durability, ShuffleId, ShuffleOptions, Terms, Writer,
};
use std::sync::Arc;

mod reading;

/// What has no answer after this time is asked again.
const PATIENCE: True = 300 * MS;

/// What a buffer had no room for is handed in again after this time.
const FULL_REST: True = 20 * MS;

/// An attempt that has not ended after this time is given up, though it may go on.
const ATTEMPT: True = 3_000 * MS;

/// How a shuffle is read, one after the other: by partitions that are cut so, or by intervals of keys.
const READS: [Option<CutBy>; 4] = [Some(CutBy::Records), None, Some(CutBy::Bytes), Some(CutBy::Keys)];

/// Beside a flood an attempt of two frames is acknowledged within this time: what was flooded before is stored, then its first
/// frame, its second one, and its mark, each behind at most the flood's share and divisions. Each of these takes some tens of
/// writes.
const BESIDE_FLOOD: True = 3_000 * MS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Starting,
    Writing,
    Sealing,
    Reading,
    Deleting,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TryState {
    New,
    Sending,
    Ending,
    Stored,
    Failed,
    Dead,
}

/// One attempt of a partition.
#[derive(Debug)]
pub struct Try {
    pub attempt: Attempt,
    node: usize,
    frames: Vec<Vec<Record>>,
    next: usize,
    state: TryState,
    begun: True,
    sent: True,
    paused: True,
    /// When the last of what was sent arrives: a stream keeps its order.
    pub arrives: True,
}

/// A read that goes on.
#[derive(Debug)]
pub struct Reading {
    pub reader: Reader,
    pub partition: (u64, u64),
    got: Vec<Placed>,
}

#[derive(Debug)]
pub struct Job {
    pub number: usize,
    pub shuffle: ShuffleId,
    terms: Terms,
    options: ShuffleOptions,
    partitions: u32,
    pub given: Given,
    pub tries: Vec<Try>,
    pub phase: Phase,
    asked: Option<(u64, True)>,
    plan: Option<Arc<Plan>>,
    readings: Vec<Reading>,
    /// Where the parts of a read by keys begin, but for the first; none in a read by partitions.
    cuts: Option<Vec<Bytes>>,
    /// What whole reads have given.
    outputs: Vec<Vec<Vec<Placed>>>,
    deletes: bool,
    seals_early: bool,
    alive_at: True,
    /// After how long an attempt is given up.
    patience: True,
    /// Partitions that are written at a time.
    at_once: usize,
    /// Within what time each attempt must be acknowledged.
    bound: Option<True>,
    /// When it was to start first, when a record was taken first, and when all were read first.
    pub begun: Option<True>,
    pub first_taken: Option<True>,
    pub all_read: Option<True>,
}

/// By its number: one shuffle in four lives for less long than the settings say, and one for longer.
fn options_of(shuffle: ShuffleId) -> ShuffleOptions {
    let ttl = match shuffle.0 % 4 {
        0 => Some(15_000),
        1 => Some(35_000),
        _ => None,
    };
    ShuffleOptions { unsealed_ttl_ms: ttl, sealed_ttl_ms: ttl, ..ShuffleOptions::default() }
}

/// By its number: one shuffle in four combines records of equal keys, in one of all ways.
fn combine_of(shuffle: ShuffleId) -> Option<Combine> {
    let number = (shuffle.0 >> 64) as usize;
    Combine::ALL.into_iter().cycle().nth(number / 4 % 7).filter(|_| number.is_multiple_of(4))
}

/// By its number: one shuffle in four is in memory when it is acknowledged.
fn durability_of(shuffle: ShuffleId) -> Durability {
    if (shuffle.0 >> 32).is_multiple_of(4) { Durability::Memory } else { Durability::Disk }
}

/// By its number: half of all shuffles have the weight of most, the others more, up to the largest.
fn weight_of(shuffle: ShuffleId) -> u16 {
    *Draw::new(shuffle.0 as u64).pick(&[1, 1, 1, 2, 10, limits::SHUFFLE_WEIGHT]).unwrap_or(&1)
}

impl Job {
    pub fn new(number: usize, draw: &mut Draw) -> Job {
        let partitions = draw.between(1, 6) as u32;
        let shuffle = ShuffleId(u128::from(draw.bits()) << 64 | u128::from(draw.bits()));
        Job {
            number,
            shuffle,
            terms: Terms {
                combine: combine_of(shuffle),
                weight: weight_of(shuffle),
                durability: durability_of(shuffle),
                ..Terms::new(draw.between(1, 8) as u32, draw.between(1, 9) as u32)
            },
            options: options_of(shuffle),
            partitions,
            given: Given::drawn(partitions, draw),
            tries: Vec::new(),
            phase: Phase::Starting,
            asked: None,
            plan: None,
            readings: Vec::new(),
            cuts: None,
            outputs: Vec::new(),
            deletes: draw.chance(700),
            seals_early: draw.chance(300),
            alive_at: 0,
            patience: ATTEMPT,
            at_once: usize::MAX,
            bound: None,
            begun: None,
            first_taken: None,
            all_read: None,
        }
    }

    /// One that floods a buffer: a hundred attempts at a time, in frames of one record.
    pub fn flood(number: usize, draw: &mut Draw) -> Job {
        let (partitions, terms) = (100, Terms::new(30, 30));
        let given = Given::even(partitions, (80, 1), draw);
        let patience = 1_000 * ATTEMPT;
        Job { partitions, terms, given, patience, seals_early: false, ..Job::new(number, draw) }
    }

    /// One that trickles: one attempt after the other, of two frames, each of which takes nearly half of the memory of the flood.
    pub fn trickle(number: usize, draw: &mut Draw) -> Job {
        let (partitions, terms) = (5, Terms::new(1, 1));
        let given = Given::even(partitions, (56, 28), draw);
        let (at_once, bound) = (1, Some(BESIDE_FLOOD));
        let patience = 1_000 * ATTEMPT;
        Job {
            partitions,
            terms,
            given,
            patience,
            at_once,
            bound,
            seals_early: false,
            ..Job::new(number, draw)
        }
    }

    /// Whether it trickled beside a flood, and all that it wrote is sealed and read.
    pub fn has_trickled(&self) -> bool {
        self.bound.is_some() && matches!(self.phase, Phase::Deleting | Phase::Done)
    }

    /// R1: what others send to a buffer does not hold it up.
    fn is_in_time(&self, now: True) -> Result<(), String> {
        let Some(bound) = self.bound else { return Ok(()) };
        let is_late = |one: &&Try| one.state != TryState::Stored && now > one.begun + bound;
        match self.tries.iter().find(is_late) {
            Some(late) => Err(format!(
                "R1: beside a flood {:?} is {:?}, frame {}, after {} ms",
                late.attempt,
                late.state,
                late.next,
                bound / MS
            )),
            None => Ok(()),
        }
    }

    /// As a client of three nodes starts it, and seals it when all is stored.
    pub fn alone(mut self) -> Job {
        (self.terms, self.seals_early) = (Terms::new(30, 30), false);
        self
    }

    /// The same of a client that waits for as long as nodes take.
    pub fn patient(self) -> Job {
        Job { patience: 1_000 * ATTEMPT, ..self.alone() }
    }

    fn has_stored(&self, partition: u32) -> bool {
        self.tries.iter().any(|one| one.attempt.partition == partition && one.state == TryState::Stored)
    }

    pub fn is_in_memory(&self) -> bool {
        self.terms.durability == Durability::Memory
    }

    /// Marks that were in memory may be gone: these partitions are written again.
    fn lacks(&mut self, partitions: &[u32]) {
        let is_in_memory = self.is_in_memory();
        for one in &mut self.tries {
            let is_lacking = one.state == TryState::Stored && partitions.contains(&one.attempt.partition);
            if is_in_memory && is_lacking {
                one.state = TryState::Failed;
            }
        }
        self.phase = Phase::Writing;
    }

    /// The answer of a buffer to an attempt.
    pub fn stored(&mut self, attempt: Attempt, answer: Result<(), Failed>) {
        if let Some(one) = self.tries.iter_mut().find(|one| one.attempt == attempt)
            && one.state != TryState::Dead
        {
            one.state = if answer.is_ok() { TryState::Stored } else { TryState::Failed };
        }
    }

    pub fn taken(&mut self, attempt: Attempt, frame: u64, is_full: bool, now: True) {
        let Some(one) = self.tries.iter_mut().find(|one| one.attempt == attempt) else { return };
        if one.state != TryState::Sending || frame != one.next as u64 {
            return;
        }
        if is_full {
            one.sent = (now + FULL_REST).saturating_sub(PATIENCE);
            return;
        }
        one.state = TryState::New;
        self.first_taken.get_or_insert(now);
    }

    /// A try goes on: what it sends next.
    fn go_on(one: &mut Try, draw: &mut Draw, weather: &Weather, now: True) -> Vec<Input> {
        if now < one.paused {
            return Vec::new();
        }
        let is_first = one.next == 0;
        match one.state {
            TryState::New => {
                if draw.chance(weather.die / 4) {
                    one.state = TryState::Dead;
                    return if draw.chance(500) { vec![Input::Abort] } else { Vec::new() };
                }
                if draw.chance(weather.die / 4) {
                    one.paused = now + draw.between(200, 4_000) * MS;
                }
                one.sent = now;
                let open = is_first.then_some(Input::Open(Terms::default()));
                let rest = match one.frames.get(one.next) {
                    Some(frame) => {
                        one.next += 1;
                        one.state = TryState::Sending;
                        Input::Frame(one.next as u64, PackedRecords::of(frame))
                    }
                    None => {
                        one.state = TryState::Ending;
                        end_of(&one.frames)
                    }
                };
                open.into_iter().chain([rest]).collect()
            }
            TryState::Sending if now > one.sent + PATIENCE => {
                one.sent = now;
                let frame = one.frames.get(one.next - 1).map_or(&[][..], |frame| frame);
                vec![Input::Frame(one.next as u64, PackedRecords::of(frame))]
            }
            TryState::Ending if now > one.sent + PATIENCE => {
                one.sent = now;
                vec![end_of(&one.frames)]
            }
            _ => Vec::new(),
        }
    }
}

/// Whether there are records, and no division has written any of them.
fn is_undivided(plan: &Plan) -> bool {
    let mut writers = plan.needed.values().flat_map(|needed| needed.keys());
    plan.winners.values().any(|winner| winner.records > 0)
        && !writers.any(|writer| matches!(writer, Writer::Division(..)))
}

fn end_of(frames: &[Vec<Record>]) -> Input {
    let records = frames.iter().flatten();
    Input::End(records.clone().count() as u64, records.map(Record::bytes).sum())
}

impl World {
    pub(super) fn job_acts(&mut self, number: usize) -> Result<(), String> {
        let Some(mut job) = self.jobs[number].take() else { return Ok(()) };
        let result = match job.phase {
            Phase::Starting => {
                job.begun.get_or_insert(self.now);
                let request = Request::Start(job.terms, job.options.clone());
                self.ask_leader(&mut job, request);
                Ok(())
            }
            Phase::Writing => {
                self.write(&mut job);
                job.is_in_time(self.now)
            }
            Phase::Sealing => {
                self.write(&mut job);
                let request = Request::Seal((0..job.partitions).collect());
                self.ask_leader(&mut job, request);
                Ok(())
            }
            Phase::Reading => self.read(&mut job),
            Phase::Deleting => {
                self.ask_leader(&mut job, Request::Delete);
                Ok(())
            }
            Phase::Done => Ok(()),
        };
        if matches!(job.phase, Phase::Writing | Phase::Reading) && self.now > job.alive_at {
            job.alive_at = self.now + 2_000 * MS;
            self.send_request(&job, 0, Request::KeepAlive);
        }
        if job.phase != Phase::Done {
            let rest = if self.weather.is_lone { MS / 5 } else { self.draw.between(5, 30) * MS };
            self.after(rest, Happening::Job(number));
        }
        self.jobs[number] = Some(job);
        result
    }

    fn ask_leader(&mut self, job: &mut Job, request: Request) {
        if job.asked.is_some_and(|(_, at)| self.now < at + PATIENCE * 4) {
            return;
        }
        self.requests += 1;
        job.asked = Some((self.requests, self.now));
        self.send_request(job, self.requests, request);
    }

    fn send_request(&mut self, job: &Job, number: u64, request: Request) {
        let (shuffle, job) = (job.shuffle, job.number);
        let home = self.pool.map.home(shuffle);
        let Some(leader) = self.pool.map.live(home).first().cloned() else { return };
        let Some(node) = self.node_of(&leader) else { return };
        let delay = self.draw.around(self.weather.delay);
        self.after(delay, Happening::Request { node, job, number, shuffle, request });
    }

    fn write(&mut self, job: &mut Job) {
        let mut unstored = 0;
        for partition in 0..job.partitions {
            let own = job.tries.iter().filter(|one| one.attempt.partition == partition);
            let hopeful = own.filter(|one| {
                matches!(one.state, TryState::New | TryState::Sending | TryState::Ending)
                    && self.now < one.begun + job.patience
                    && self.now >= one.paused
            });
            let is_speculated = self.draw.chance(self.weather.speculated / 50);
            let wants_more = hopeful.count() == 0 || is_speculated;
            unstored += usize::from(!job.has_stored(partition));
            let is_its_turn = !job.has_stored(partition) && unstored <= job.at_once;
            if is_its_turn && wants_more && job.tries.len() < 400 {
                let new = self.new_try(job, partition);
                job.tries.push(new);
            }
        }
        let terms = job.terms;
        for one in &mut job.tries {
            for mut input in Job::go_on(one, &mut self.draw, &self.weather, self.now) {
                if let Input::Open(given) = &mut input {
                    *given = terms;
                }
                if let Input::End(..) = input {
                    self.oracle.ends(one.attempt);
                }
                one.arrives = one.arrives.max(self.now) + self.draw.around(self.weather.delay);
                let input = Happening::Input { node: one.node, attempt: one.attempt, input };
                self.at(one.arrives, input);
            }
        }
        let is_stored = (0..job.partitions).all(|partition| job.has_stored(partition));
        if job.phase == Phase::Writing && (is_stored || (job.seals_early && self.draw.chance(20))) {
            job.seals_early = false;
            job.phase = Phase::Sealing;
        }
    }

    fn new_try(&mut self, job: &Job, partition: u32) -> Try {
        self.outcome.attempts += 1;
        let id = AttemptId(u128::from(self.draw.bits()));
        let attempt = Attempt { shuffle: job.shuffle, partition, id };
        let mut frames = job.given.frames(partition, id, job.terms.combine, &mut self.draw);
        if self.weather.is_lone {
            // This client waits for each frame to be taken, as others do not.
            frames = records_of(&frames).chunks(12).map(<[Record]>::to_vec).collect();
        }
        let up: Vec<usize> =
            (0..self.nodes.len()).filter(|node| self.nodes[*node].process.is_some()).collect();
        let node = self.draw.pick(&up).copied().filter(|_| !self.weather.floods).unwrap_or(0);
        self.oracle.opens(attempt, records_of(&frames));
        let (begun, sent) = (self.now, self.now);
        Try {
            attempt,
            node,
            frames,
            next: 0,
            state: TryState::New,
            begun,
            sent,
            paused: 0,
            arrives: self.now,
        }
    }

    /// The leader has answered.
    pub(super) fn job_is_answered(
        &mut self,
        number: usize,
        request: u64,
        answer: Result<Answer, NotDone>,
    ) -> Result<(), String> {
        let Some(job) = self.jobs[number].as_mut() else { return Ok(()) };
        if job.asked.is_none_or(|(asked, _)| asked != request) {
            return Ok(());
        }
        job.asked = None;
        match (job.phase, answer) {
            (Phase::Starting, Ok(Answer::Started(_))) => job.phase = Phase::Writing,
            (Phase::Sealing, Ok(Answer::Lacks(partitions))) => {
                self.outcome.lacking += 1;
                job.lacks(&partitions);
            }
            (Phase::Sealing, Ok(Answer::Sealed(plan))) => {
                self.outcome.sealed += 1;
                self.outcome.later_bounds += u64::from(plan.ranges.iter().any(|range| range.since > 1));
                self.outcome.undivided += u64::from(is_undivided(&plan));
                self.oracle.sealed(&plan, job.partitions)?;
                job.plan = Some(plan);
                job.phase = Phase::Reading;
            }
            (Phase::Deleting, Ok(Answer::Deleted) | Err(NotDone::Over(_))) => {
                job.phase = Phase::Done;
                self.oracle.ended(job.shuffle);
            }
            (_, Err(NotDone::NotExpected(partition))) => {
                return Err(format!(
                    "X7: each seal named partition {partition}, and it is sealed without it"
                ));
            }
            (phase, Err(NotDone::Failed(failure))) => {
                let shuffle = job.shuffle;
                if phase != Phase::Deleting {
                    self.outcome.lost_open += 1;
                    job.phase = Phase::Deleting;
                }
                return self.may_fail(shuffle, failure);
            }
            (_, Err(NotDone::Over(how))) => return Err(format!("L1: nobody has ended it: {how}")),
            _ => {}
        }
        Ok(())
    }
}
