//! Changing a map, or the list of its servers: the part of the client (T7, T8).
//!
//! | state      | event                               | does                                          | next       |
//! |------------|-------------------------------------|-----------------------------------------------|------------|
//! | (begin)    |                                     | asks every server to store the change         | `Storing`  |
//! | `Storing`  | a majority has it on disk           | swaps the head, if it is still as it was seen | `Swapping` |
//! | `Storing`  | a majority is out of reach, or late | tells the servers that it was aborted         | `Done`     |
//! | `Swapping` | swapped                             | tells the servers that it counts              | `Done`     |
//! | `Swapping` | refused                             | tells the servers that it was aborted         | `Done`     |
//! | `Swapping` | unknown                             | reads the head                                | `Reading`  |
//! | `Reading`  | the head is the change's            | tells the servers that it counts              | `Done`     |
//! | `Reading`  | the head is as it was before        | writes it again as it is, and reads again     | `Reading`  |
//! | `Reading`  | the head is at the map before, and newer | tells the servers that it was aborted    | `Done`     |
//! | `Reading`  | there is none, or another           | says that it does not know                    | `Done`     |
//!
//! Writing the head again as it is makes an unanswered swap impossible: that requires the version before. Only
//! then may the servers drop an aborted change.
//!
//! Another head says nothing, not even one at the same sequence: the change may have been committed, and the
//! keyspace deleted and created again. The servers find out by themselves what they need not keep.

use super::server::Refused;
use super::{Head, Seen, majority};
use partage_core::base::id::Generation;
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_core::keyspace::map::{MapDiff, ShardMap};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a client asks servers to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The operation on a map that they have, with its base and its new transaction.
    Operation(Arc<MapDiff>),
    /// A whole map, of a keyspace that is created.
    Whole(Arc<ShardMap>),
}

impl Change {
    /// The map that it leads to.
    pub fn to(&self) -> Generation {
        match self {
            Change::Operation(diff) => diff.to,
            Change::Whole(map) => map.generation(),
        }
    }
}

/// What a client tells servers of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// It counts: the head is there, or beyond.
    Committed(Generation),
    /// It can never count any more.
    Aborted(Generation),
}

/// How the swap of a head ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swapped {
    /// The head is written.
    Done,
    /// The head was not as it was seen: nothing has happened, nor will.
    Refused,
    /// No answer came: the head may have been written, or may be written yet.
    Unknown,
}

/// Why a server has not stored a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unstored {
    /// The reason in words, for people: [`Failed::TooFew`] repeats it.
    pub why: String,
    /// Whether the disk refused it: the server would store it with room there.
    pub is_disk: bool,
}

impl From<String> for Unstored {
    fn from(why: String) -> Unstored {
        Unstored { why, is_disk: false }
    }
}

impl From<Refused> for Unstored {
    fn from(refused: Refused) -> Unstored {
        Unstored { why: refused.to_string(), is_disk: matches!(refused, Refused::Disk(_)) }
    }
}

/// How a change ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// Another change was first.
    #[error("another change, or another list of servers, was committed first: read the map again")]
    Conflict,
    /// Too few servers have stored it.
    #[error("only {stored} of {servers} metadata servers stored it, {needed} are needed: {why}")]
    TooFew {
        /// Servers that have stored the change.
        stored: usize,
        /// Servers in the list of the head that the change makes.
        servers: usize,
        /// The majority of these: so many had to store it.
        needed: usize,
        /// The last refusal, after the name of its server; `no answer` when none refused.
        why: String,
        /// What the servers said whose disks refused it; absent unless they would have completed the majority.
        disks: Option<String>,
    },
    /// The change may have been made, or may be made yet.
    #[error("the outcome is not known: read the map before trying again")]
    Unknown,
}

/// What the driver tells a change on its way ([`Changing::take`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A server has it on disk, or says why not.
    Stored(NodeId, Result<(), Unstored>),
    /// The driver waits for no more answers.
    TimeUp,
    /// The swap of [`Effect::Swap`] has ended.
    Swapped(Swapped),
    /// The driver has read the head: the outer none when it could not, the inner one when there is no head.
    Read(Option<Option<Seen>>),
}

/// What a change on its way asks its driver to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Ask each of these to store it; for a new list of servers, whether they have the head's map on disk.
    Store(Vec<NodeId>),
    /// Write this head if the key still has the expected version.
    Swap {
        /// The version that the change has seen; absent when there was no head, and then there must still be none.
        expected: Option<u64>,
        /// The head that the swap writes.
        head: Head,
    },
    /// Read the head, as the outcome of the swap is not known.
    Read,
    /// Write the head again as it is, at that version; then read it.
    Seal(Seen),
    /// Tell these servers, until each has heard it or something later.
    Tell(Vec<NodeId>, Notice),
    /// The change has ended: the map of its head counts, or this is why it failed.
    Done(Result<Generation, Failed>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Storing,
    Swapping,
    Reading,
    Done,
}

/// One change on its way.
#[derive(Debug, Clone)]
pub struct Changing {
    /// The head that it builds on.
    seen: Option<Seen>,
    /// The head that it makes.
    head: Head,
    /// Whether the map changes, and not only the list.
    is_map: bool,
    stored: BTreeSet<NodeId>,
    refused: BTreeSet<NodeId>,
    why: String,
    /// What the servers said whose disks do not take it.
    disks: BTreeMap<NodeId, String>,
    state: State,
}

impl Changing {
    /// A change of the map behind `seen`; of none, the creation of a map on `servers`.
    pub fn begin(seen: Option<Seen>, to: Generation, servers: Vec<NodeId>) -> (Changing, Vec<Effect>) {
        let servers = seen.as_ref().map_or(servers, |seen| seen.head.servers.clone());
        Changing::start(seen, Head { at: to, servers }, true)
    }

    /// A new list of servers for the map behind `seen`, most of which have it (T8).
    pub fn list(seen: Seen, mut servers: Vec<NodeId>) -> (Changing, Vec<Effect>) {
        servers.sort();
        servers.dedup();
        let head = Head { at: seen.head.at, servers };
        Changing::start(Some(seen), head, false)
    }

    fn start(seen: Option<Seen>, head: Head, is_map: bool) -> (Changing, Vec<Effect>) {
        let servers = head.servers.clone();
        let changing = Changing {
            seen,
            head,
            is_map,
            stored: BTreeSet::new(),
            refused: BTreeSet::new(),
            why: "no answer".to_owned(),
            disks: BTreeMap::new(),
            state: State::Storing,
        };
        (changing, vec![Effect::Store(servers)])
    }

    /// The version that the swap requires, and the head that it makes.
    pub fn swap(&self) -> (Option<u64>, &Head) {
        (self.seen.as_ref().map(|seen| seen.version), &self.head)
    }

    /// Takes an event; returns what to do next. A late event changes nothing.
    pub fn take(&mut self, event: Event) -> Vec<Effect> {
        match (&self.state, event) {
            (State::Storing, Event::Stored(server, outcome)) => self.vote(server, outcome),
            (State::Storing, Event::TimeUp) => self.too_few(),
            (State::Swapping, Event::Swapped(Swapped::Done)) => self.committed(),
            (State::Swapping, Event::Swapped(Swapped::Refused)) => self.aborted(Failed::Conflict),
            (State::Swapping, Event::Swapped(Swapped::Unknown)) => {
                self.state = State::Reading;
                vec![Effect::Read]
            }
            (State::Reading, Event::Read(Some(now))) => self.judge(now),
            (State::Reading, Event::Read(None) | Event::TimeUp) => self.done(Err(Failed::Unknown)),
            (State::Storing, Event::Swapped(_) | Event::Read(_))
            | (State::Swapping, Event::Stored(..) | Event::TimeUp | Event::Read(_))
            | (State::Reading, Event::Stored(..) | Event::Swapped(_))
            | (State::Done, _) => vec![],
        }
    }

    fn vote(&mut self, server: NodeId, outcome: Result<(), Unstored>) -> Vec<Effect> {
        if !self.head.servers.contains(&server) {
            return vec![];
        }
        match outcome {
            Ok(()) => drop(self.stored.insert(server)),
            Err(Unstored { why, is_disk }) => {
                self.why = format!("{server}: {why}");
                if is_disk {
                    self.disks.insert(server.clone(), why);
                }
                self.refused.insert(server);
            }
        }
        let (count, needed) = (self.head.servers.len(), majority(self.head.servers.len()));
        if self.stored.len() >= needed {
            self.state = State::Swapping;
            let (expected, head) = self.swap();
            return vec![Effect::Swap { expected, head: head.clone() }];
        }
        if count - self.refused.len() < needed { self.too_few() } else { vec![] }
    }

    fn too_few(&mut self) -> Vec<Effect> {
        let (stored, servers) = (self.stored.len(), self.head.servers.len());
        let needed = majority(servers);
        let said: Vec<_> = self.disks.iter().map(|(server, why)| format!("{server}: {why}")).collect();
        let disks = (!said.is_empty() && stored + said.len() >= needed).then(|| said.join("; "));
        self.aborted(Failed::TooFew { stored, servers, needed, why: self.why.clone(), disks })
    }

    fn judge(&mut self, now: Option<Seen>) -> Vec<Effect> {
        let expected = self.seen.as_ref().map(|seen| seen.version);
        match now {
            Some(now) if now.head == self.head => self.committed(),
            Some(now) if Some(now.version) == expected => vec![Effect::Seal(now), Effect::Read],
            Some(now) if self.is_map && now.head.at == self.head.at => self.committed(),
            Some(now) if self.is_map && self.is_before(&now.head) => self.aborted(Failed::Conflict),
            // A keyspace that is to be created and is not there may be created yet.
            Some(_) | None => self.done(Err(Failed::Unknown)),
        }
    }

    /// Whether that head, which is newer than the one that was seen, is at the map on which the change builds.
    fn is_before(&self, now: &Head) -> bool {
        if planted::is(Planted::Anew) {
            return now.at.sequence <= self.head.at.sequence;
        }
        self.seen.as_ref().is_some_and(|seen| seen.head.at == now.at)
    }

    fn committed(&mut self) -> Vec<Effect> {
        let notice = Notice::Committed(self.head.at);
        let mut effects = vec![Effect::Tell(self.head.servers.clone(), notice)];
        effects.extend(self.done(Ok(self.head.at)));
        effects
    }

    fn aborted(&mut self, failed: Failed) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.is_map {
            effects.push(Effect::Tell(self.head.servers.clone(), Notice::Aborted(self.head.at)));
        }
        effects.extend(self.done(Err(failed)));
        effects
    }

    fn done(&mut self, outcome: Result<Generation, Failed>) -> Vec<Effect> {
        self.state = State::Done;
        vec![Effect::Done(outcome)]
    }
}
