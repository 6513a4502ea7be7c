//! The network: what happens to a message between two places.
//!
//! Two kinds of carriage. A *post* goes alone: it may be lost, doubled, late, or overtake another. A *stream* keeps
//! its order until it breaks; a break is seen at one end, both, or neither (a half-open link), and what is
//! sent into a broken one vanishes. Cuts are per direction, so that a partition can be whole, one-way, or leave
//! a bridge.

use crate::clock::{MS, True};
use crate::draw::Draw;
use crate::message::Place;
use std::collections::{BTreeMap, BTreeSet};

/// How bad it is at present. In thousandths, and microseconds.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// Posts that are lost.
    pub loss: u64,
    /// Posts that arrive twice.
    pub doubled: u64,
    /// Messages of a stream that break it in their direction.
    pub breaks: u64,
    /// How long a message usually takes.
    pub delay: True,
}

impl Weather {
    /// A network in which no message is lost or late.
    pub const FAIR: Weather = Weather { loss: 0, doubled: 0, breaks: 0, delay: 300 };

    /// A bad network, as chance has it.
    pub fn drawn(draw: &mut Draw) -> Weather {
        Weather {
            loss: draw.between(0, 200),
            doubled: draw.between(0, 100),
            breaks: draw.between(0, 20),
            delay: match draw.index(10) {
                0..7 => draw.between(200, 40 * MS),
                7 | 8 => draw.between(40 * MS, 150 * MS),
                _ => draw.between(150 * MS, 500 * MS),
            },
        }
    }
}

/// A connection between two places.
#[derive(Debug)]
struct Stream {
    ends: [Place; 2],
    /// What is sent from this end vanishes.
    broken: [bool; 2],
    /// When the last message from this end arrives.
    last: [True; 2],
}

/// The connections, what is cut, and what befalls messages.
#[derive(Debug)]
pub struct Network {
    /// What befalls messages at present.
    pub weather: Weather,
    cut: BTreeSet<(Place, Place)>,
    streams: BTreeMap<u64, Stream>,
    opened: u64,
}

impl Network {
    /// A fair network, with no cut and no connection.
    pub fn new() -> Network {
        Network { weather: Weather::FAIR, cut: BTreeSet::new(), streams: BTreeMap::new(), opened: 0 }
    }

    /// Nothing gets from `from` to `to` any more.
    pub fn cut(&mut self, from: Place, to: Place) {
        self.cut.insert((from, to));
    }

    /// It does again. Streams that broke stay broken.
    pub fn join(&mut self, from: Place, to: Place) {
        self.cut.remove(&(from, to));
    }

    /// Everything gets through again, in good time.
    pub fn heal(&mut self) {
        self.cut.clear();
        self.weather = Weather::FAIR;
    }

    /// Whether anything gets from `from` to `to`.
    pub fn reaches(&self, from: Place, to: Place) -> bool {
        !self.cut.contains(&(from, to))
    }

    /// A new connection; whether it opens shows in whether anything arrives.
    pub fn open(&mut self, from: Place, to: Place) -> u64 {
        self.opened += 1;
        let broken = [!self.reaches(from, to), !self.reaches(to, from)];
        self.streams.insert(self.opened, Stream { ends: [from, to], broken, last: [0, 0] });
        self.opened
    }

    /// Closes a connection from one end; gives the other end if it hears of it.
    pub fn close(&mut self, stream: u64, from: Place) -> Option<Place> {
        let closed = self.streams.remove(&stream)?;
        let at = usize::from(closed.ends[0] != from);
        let other = closed.ends[1 - at];
        (!closed.broken[at] && self.reaches(from, other)).then_some(other)
    }

    /// The connections of a place.
    pub fn streams_of(&self, place: Place) -> Vec<u64> {
        self.streams.iter().filter(|(_, s)| s.ends.contains(&place)).map(|(id, _)| *id).collect()
    }

    /// When a message sent on a stream arrives, if it does.
    pub fn on_stream(&mut self, draw: &mut Draw, now: True, id: u64, from: Place) -> Option<True> {
        let cut = &self.cut;
        let stream = self.streams.get_mut(&id)?;
        let at = usize::from(stream.ends[0] != from);
        if cut.contains(&(from, stream.ends[1 - at])) || draw.chance(self.weather.breaks) {
            stream.broken[at] = true;
        }
        if stream.broken[at] {
            return None;
        }
        // A lost packet is sent again: it only takes longer.
        let again = if draw.chance(self.weather.loss) { 200 * MS } else { 0 };
        stream.last[at] = stream.last[at].max(now + draw.around(self.weather.delay) + again) + 1;
        Some(stream.last[at])
    }

    /// When a post arrives: not at all, once, or twice.
    pub fn posted(&mut self, draw: &mut Draw, now: True, from: Place, to: Place) -> Vec<True> {
        if !self.reaches(from, to) || draw.chance(self.weather.loss) {
            return Vec::new();
        }
        let mut arrivals = vec![now + draw.around(self.weather.delay)];
        if draw.chance(self.weather.doubled) {
            arrivals.push(now + draw.around(20 * self.weather.delay));
        }
        arrivals
    }
}

impl Default for Network {
    fn default() -> Network {
        Network::new()
    }
}
