//! What every part of a run shares: true time, chance, the network, what is to happen, and the witnesses.

use crate::clock::True;
use crate::draw::Draw;
use crate::heat::Heat;
use crate::message::{Event, Message, Place, Via};
use crate::model::KeyAt;
use crate::network::Network;
use crate::oracle::Oracles;
use crate::trace::Trace;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// An event with its time; those of one time in the order in which they were foreseen.
#[derive(Debug)]
struct Due {
    at: True,
    number: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Due) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// Something that must never be, and was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The invariant, by its number.
    pub invariant: &'static str,
    /// How it was broken, for people.
    pub text: String,
    /// The true time at which it was seen, in microseconds from the start of the run.
    pub at: True,
}

/// What all places of a run share.
#[derive(Debug)]
pub struct Scene {
    /// The true time, in microseconds from the start of the run.
    pub now: True,
    /// What chance decides, for all parts that have no draw of their own.
    pub draw: Draw,
    /// The network between all places.
    pub network: Network,
    /// The hash over all that happened, and its words.
    pub trace: Trace,
    /// The oracles, which know the truth.
    pub oracles: Oracles,
    /// Keys that kill the workers that serve them.
    pub poison: BTreeSet<KeyAt>,
    /// Keys whose data no worker can load.
    pub unloadable: BTreeSet<KeyAt>,
    /// What clients ask for how often.
    pub heat: Heat,
    /// Keys that have killed or could not be loaded at some time.
    pub bad: BTreeSet<KeyAt>,
    /// For how long each place has stood still.
    pub stood_still: BTreeMap<Place, True>,
    /// What was tried, and how often.
    pub exercised: BTreeMap<&'static str, u64>,
    /// The first thing that must never be.
    pub violation: Option<Violation>,
    due: BinaryHeap<Due>,
    foreseen: u64,
}

impl Scene {
    /// The scene of a run in which nothing has happened yet.
    pub fn new(draw: Draw, trace: Trace, oracles: Oracles) -> Scene {
        Scene {
            now: 0,
            draw,
            network: Network::new(),
            trace,
            oracles,
            poison: BTreeSet::new(),
            unloadable: BTreeSet::new(),
            heat: Heat::default(),
            bad: BTreeSet::new(),
            stood_still: BTreeMap::new(),
            exercised: BTreeMap::new(),
            violation: None,
            due: BinaryHeap::new(),
            foreseen: 0,
        }
    }

    /// For how long a place has stood still, all in all.
    pub fn stood_still(&self, place: Place) -> True {
        self.stood_still.get(&place).copied().unwrap_or(0)
    }

    /// Counts that this was tried, for the report.
    pub fn count(&mut self, what: &'static str) {
        *self.exercised.entry(what).or_default() += 1;
    }

    /// Has `event` happen `after` microseconds.
    pub fn after(&mut self, after: True, event: Event) {
        self.at(self.now.saturating_add(after), event);
    }

    /// Has `event` happen at `at`.
    pub fn at(&mut self, at: True, event: Event) {
        if at < True::MAX {
            self.foreseen += 1;
            self.due.push(Due { at: at.max(self.now), number: self.foreseen, event });
        }
    }

    /// Moves true time to what happens next.
    pub fn advance(&mut self) -> Option<Event> {
        let due = self.due.pop()?;
        self.now = due.at;
        Some(due.event)
    }

    /// Sends a message on its way.
    pub fn send(&mut self, from: Place, to: Place, via: Via, message: Message) {
        let message = Box::new(message);
        match via {
            Via::Stream(id) => {
                if let Some(at) = self.network.on_stream(&mut self.draw, self.now, id, from) {
                    self.at(at, Event::Deliver(from, to, via, message));
                }
            }
            Via::Post(_) => {
                for at in self.network.posted(&mut self.draw, self.now, from, to) {
                    self.at(at, Event::Deliver(from, to, via, message.clone()));
                }
            }
        }
    }

    /// Closes a connection; the other end may hear of it.
    pub fn close(&mut self, stream: u64, from: Place) {
        if let Some(other) = self.network.close(stream, from) {
            let delay = self.draw.around(self.network.weather.delay);
            self.after(delay, Event::Closed(other, stream));
        }
    }

    /// A process is gone, and with it its connections; others may hear of it or not.
    pub fn drop_connections(&mut self, place: Place) {
        for stream in self.network.streams_of(place) {
            if self.draw.chance(800) {
                self.close(stream, place);
            } else {
                let _nobody_hears = self.network.close(stream, place);
            }
        }
    }

    /// Notes what must never be. The first is kept.
    pub fn violate(&mut self, invariant: &'static str, text: String) {
        self.trace.event(self.now, (invariant,), || format!("VIOLATED {invariant}: {text}"));
        if self.violation.is_none() {
            self.violation = Some(Violation { invariant, text, at: self.now });
        }
    }
}
