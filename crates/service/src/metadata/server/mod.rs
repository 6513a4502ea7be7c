//! A metadata server, and the map of one keyspace.
//!
//! It keeps *map files*: a map with the operations that were stored on it and may yet count. There is one, except
//! while a map is created or fetched anew. The head alone says which operations count.
//!
//! | event                   | seen                                      | does                                     |
//! |-------------------------|-------------------------------------------|------------------------------------------|
//! | asked to store a change | it has the map that the change is on      | writes it, answers when it is on disk    |
//! |                         | it has it already                         | answers                                  |
//! |                         | it is behind                              | refuses, and looks at the head           |
//! | asked for the map       |                                           | looks at the head first, then answers    |
//! | asked to join           |                                           | fetches, then swaps itself into the list |
//! | told: committed         | it waits for that                         | waits on, for the news                   |
//! |                         | anything else                             | looks at the head                        |
//! | heard: another head     | it leads to what is stored here           | takes it up                              |
//! |                         | anything else                             | looks at the head                        |
//! | told: aborted           | it has it, and it does not count          | drops it, and what is built on it        |
//! | the head, read          | it is in the list and can get there       | applies, drops what can count no more    |
//! |                         | it is in the list and cannot              | fetches from another server              |
//! |                         | it is not in the list, and cannot get in  | removes its files                        |
//! |                         | there is none, for long                   | removes its files                        |
//! |                         | it has gone back behind what counted here | keeps that map, too, for as long         |
//! |                         | a map waits for long to be created        | removes its file                         |
//! | fetched                 | the map is the head's                     | writes it as a new file                  |
//! | the head was written    | to another than was last read             | looks at the head                        |
//! | time passes             | it waits for something                    | looks at the head; fetches again         |
//! |                         | it has not looked for long                | looks at the head                        |
//! |                         | a change waits for too long               | writes the head again as it is, so that  |
//! |                         |                                           | the change can count no more; then drops |
//!
//! The driver, in numbered sentences:
//! 1. It reads the files from the disk, and begins with [`Server::recover`].
//! 2. It carries out writes and removals in the order in which they are given, and says when each is on disk.
//! 3. When it is not known whether a write is on the disk, it drops the server and begins again at 1.
//! 4. Reads of the head are linearizable, and each begins after the one before has ended.
//! 5. It calls with [`Event::Tick`] every [`LOOK_MS`], and with [`Event::Refresh`] every [`REFRESH_MS`] or so.
//! 6. It watches the head and calls with [`Event::News`] for what it hears. It may hear late, and leave out what was
//!    soon followed by something else.
//!
//! A keyspace may be deleted and created again under its name, with another map: sequences begin anew, so they
//! say nothing of two maps unless it is known that both are of the same keyspace. Two things tell: the transaction,
//! which is never drawn twice, and the version of the head, which is never given twice.

use super::change::{Change, Notice, Swapped};
use super::{Head, Seen};
use partage_core::base::id::{Generation, TransactionId};
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use partage_core::keyspace::map::{MapDiff, ShardMap};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod map_file;

use map_file::{MapFile, Pending};

/// How often a server that waits for something looks at the head, in milliseconds.
pub const LOOK_MS: u64 = 5_000;

/// How often a server looks at the head without a reason, in milliseconds: this bounds how long it stays behind when
/// notices and watch fail. A keyspace in which nothing happens costs no more than this: one read a server.
pub const REFRESH_MS: u64 = 60_000;

/// How long a stored change may wait to be committed or aborted, in milliseconds: far longer than any swap takes.
pub const PENDING_MS: u64 = 30_000;

/// How long a map may wait to be created, in milliseconds. Its swap requires that there is no head, so no write can
/// make a late one impossible: a head that is there now may be deleted. This is longer than any backend keeps a swap.
pub const CREATION_MS: u64 = 3_600_000;

/// How long a map is kept when its head is gone, in milliseconds. The server answers nothing from it. A keyspace
/// that was deleted does not come back; a coordination service that was emptied by mistake has not taken the maps
/// with it at once.
pub const GONE_MS: u64 = 3_600_000;

/// How long a question waits for a server that is behind, in milliseconds.
pub const ANSWER_MS: u64 = 2_000;

/// Changes that may wait at once: each leader has one, and each that crashed left one.
pub const PENDING: usize = 64;

/// Questions that may wait at once.
pub const WAITING: usize = 1_024;

/// Files at once: the one that counts, one that is fetched, and some that were to be created.
pub const MAP_FILES: usize = 8;

/// The number of a request that waits for an answer.
pub type Request = u64;

/// What the driver tells a server ([`Server::take`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client has a change to be stored.
    Store(Request, Change),
    /// A client asks for the map, at that sequence or later.
    Ask(Request, u64),
    /// A client says what became of a change.
    Tell(Notice),
    /// A client asks the server to become one of the keyspace's.
    Join(Request),
    /// The driver has read the head for the effect of that number: the outer none when it could not, the inner one when
    /// there is no head.
    Read(u64, Option<Option<Seen>>),
    /// A swap has ended. The head is read next.
    Swapped(Swapped),
    /// The write of that number is on disk, or is certainly not: the disk is full.
    Written(u64, Result<(), String>),
    /// The map that the effect of that number has fetched; none when it failed.
    Fetched(u64, Option<Arc<ShardMap>>),
    /// The head was written, and is this now; none when it was deleted.
    News(Option<Seen>),
    /// [`LOOK_MS`] have passed: the server refuses what is late, and looks at the head if it waits for something.
    Tick,
    /// [`REFRESH_MS`] have passed: a server that is not idle looks at the head.
    Refresh,
}

/// What a server asks its driver to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Read the head, and hand it in under that number.
    Read(u64),
    /// Write the head again as it is, if it is still at that version. No caller waits for the outcome.
    Seal(Seen),
    /// Write this head if it is still at that version.
    Swap(u64, Head),
    /// Write a new file that begins with this map, under the name of its transaction.
    Begin(u64, Arc<ShardMap>),
    /// Add an operation to the file of that name.
    Append(u64, TransactionId, Arc<MapDiff>),
    /// Note in the file of that name that this change never counts. The server goes on before that is on disk.
    Drop(TransactionId, TransactionId),
    /// Remove the file of that name.
    Remove(TransactionId),
    /// The file of that name is at another map: it may be time to write it anew ([`Server::snapshot`]).
    Settled(TransactionId),
    /// Ask that server for the map.
    Fetch(u64, NodeId),
    /// Give the client of that request its answer, or the refusal.
    Answer(Request, Result<Answer, Refused>),
}

/// What a server answers when it does not refuse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The change is on disk.
    Stored,
    /// The head's map, which is on disk here.
    Map(Arc<ShardMap>),
    /// The server is in the list, and has the head's map.
    Joined(Generation),
}

/// Why a metadata server refuses a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The server lacks the head's map.
    #[error("this metadata server lacks the latest map and is fetching it: ask another one, or again")]
    Behind,
    /// The map on which the change builds is not the latest.
    #[error("the change builds on a map that is not the latest: read the map again")]
    Superseded,
    /// It is not one of the keyspace's metadata servers.
    #[error("this is no metadata server of the keyspace; those are {}", .0.iter().map(|s| s.as_str()).collect::<Vec<_>>().join(", "))]
    NotMine(Vec<NodeId>),
    /// There is no such map.
    #[error("the keyspace has no map: it was deleted, or is still to be created")]
    NoMap,
    /// The head cannot be read.
    #[error(
        "the coordination service does not answer, so this server does not know which map is the latest: try again"
    )]
    NoHead,
    /// A queue is full.
    #[error("{0} wait already: try again later")]
    Full(&'static str),
    /// The disk does not take it, or the files of the keyspace cannot be opened: which, and what the system said.
    #[error("{0}")]
    Disk(String),
    /// The server ends, or reads its files anew.
    #[error("{0}")]
    Away(&'static str),
}

#[derive(Debug, Clone)]
enum Write {
    MapFile { map: Arc<ShardMap>, fetched: bool, requests: Vec<Request> },
    Operation { file: TransactionId, diff: Arc<MapDiff>, requests: Vec<Request> },
}

#[derive(Debug, Clone)]
struct Waiting {
    request: Request,
    sequence: u64,
    /// The first read of the head that began after it came.
    read: u64,
    until: Millis,
}

/// A map to be created, where there was a head when it was last looked for.
#[derive(Debug, Clone)]
struct Creating {
    request: Request,
    map: Arc<ShardMap>,
    /// The first read of the head that began after it came.
    read: u64,
}

#[derive(Debug, Clone)]
struct Joining {
    request: Option<Request>,
    until: Millis,
}

/// A metadata server of one keyspace, as a state machine without I/O: the table of this module says what it does.
#[derive(Debug, Clone)]
pub struct Server {
    me: NodeId,
    /// The head as it was last read; the outer none: never.
    seen: Option<Option<Seen>>,
    /// Since when there is no head.
    absent: Option<Millis>,
    /// Since when the head is at an earlier map than one that counted here.
    behind: Option<Millis>,
    files: BTreeMap<TransactionId, MapFile>,
    writes: BTreeMap<u64, Write>,
    /// Changes that were aborted while they were being written.
    aborted: BTreeSet<TransactionId>,
    number: u64,
    reading: Option<u64>,
    /// Whether another read is wanted after the one under way.
    again: bool,
    waiting: Vec<Waiting>,
    creating: Vec<Creating>,
    fetching: Option<u64>,
    /// Fetches that failed since the last that did not.
    attempts: usize,
    joining: Option<Joining>,
    swapping: bool,
    /// While the head is at this version or before, a late swap may put it into the list; inner none: not yet
    /// known; outer none: none may.
    doubt: Option<Option<u64>>,
    now: Millis,
}

impl Server {
    /// A server that has nothing of the keyspace.
    pub fn new(me: NodeId) -> Server {
        Server {
            me,
            seen: None,
            absent: None,
            behind: None,
            files: BTreeMap::new(),
            writes: BTreeMap::new(),
            aborted: BTreeSet::new(),
            number: 0,
            reading: None,
            again: false,
            waiting: Vec::new(),
            creating: Vec::new(),
            fetching: None,
            attempts: 0,
            joining: None,
            swapping: false,
            doubt: None,
            now: Millis(0),
        }
    }

    /// A server that has these files on its disk: each with its map and the operations stored on it.
    pub fn recover(
        me: NodeId,
        files: Vec<(TransactionId, ShardMap, Vec<MapDiff>)>,
        now: Millis,
    ) -> (Server, Vec<Effect>) {
        let mut server = Server::new(me);
        server.now = now;
        server.doubt = (!files.is_empty()).then_some(None);
        for (name, map, operations) in files {
            let mut file = MapFile::new(Arc::new(map), now, 1);
            // A client that makes an operation has seen the head at the map, or swaps in both together.
            file.counts = !operations.is_empty();
            for diff in operations {
                file.pending.insert(diff.to.transaction, Pending::new(Arc::new(diff), now, 1));
            }
            server.files.insert(name, file);
        }
        let mut effects = Vec::new();
        server.look(&mut effects);
        (server, effects)
    }

    /// Takes an event; returns what to do next.
    pub fn take(&mut self, now: Millis, event: Event) -> Vec<Effect> {
        self.now = self.now.max(now);
        let mut effects = Vec::new();
        let out = &mut effects;
        match event {
            Event::Store(request, Change::Operation(diff)) => self.store(request, diff, out),
            Event::Store(request, Change::Whole(map)) => self.store_whole(request, map, out),
            Event::Ask(request, sequence) => self.ask(request, sequence, out),
            // The news of the head will say that what is stored here counts; if lost, the next look will.
            Event::Tell(Notice::Committed(generation)) if self.awaits(generation) => {}
            Event::Tell(Notice::Committed(_)) => self.look(out),
            Event::Tell(Notice::Aborted(generation)) => self.abort(generation, out),
            Event::Join(request) => self.join(request, out),
            Event::Read(number, outcome) => self.read(number, outcome, out),
            Event::Swapped(_) => {
                self.swapping = false;
                self.look(out);
            }
            Event::Written(number, outcome) => self.written(number, outcome, out),
            Event::Fetched(number, map) => self.fetched(number, map, out),
            Event::News(head) => self.hear(&head, out),
            Event::Tick => self.tick(out),
            Event::Refresh if self.is_idle() => {}
            Event::Refresh => self.look(out),
        }
        effects
    }

    /// The head's map, if this server has it and is one of the servers of the head that it last saw. For
    /// observers: answers are given after a new look.
    pub fn current(&self) -> Option<&Arc<ShardMap>> {
        let seen = self.seen.as_ref()?.as_ref()?;
        let file = self.files.values().find(|file| file.map.generation() == seen.head.at)?;
        seen.head.servers.contains(&self.me).then_some(&file.map)
    }

    /// The latest map that is kept here though the head is at an earlier one, and that of the head: the head was set
    /// back, or the keyspace created anew.
    pub fn ahead_of_head(&self) -> Option<(Generation, Generation)> {
        let at = self.head()?.at;
        let ahead = self.files.values().filter(|file| file.counts && file.is_ahead_of(at));
        ahead.map(|file| file.map.generation()).max().map(|ahead| (ahead, at))
    }

    /// Whether what is on its disk leads to the map of that generation.
    pub fn has(&self, generation: Generation) -> bool {
        self.files.values().any(|file| file.reaches(generation))
    }

    /// How many changes wait to be committed or aborted.
    pub fn pending(&self) -> usize {
        self.files.values().map(|file| file.pending.len()).sum()
    }

    /// How many files it has.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// What a file must hold when it is written anew: its map and every operation on it, also those that are
    /// being written.
    pub fn snapshot(&self, name: TransactionId) -> Option<(Arc<ShardMap>, Vec<Arc<MapDiff>>)> {
        let file = self.files.get(&name)?;
        let written = self.writes.values().filter_map(|write| match write {
            Write::Operation { file, diff, .. } if *file == name => Some(diff),
            Write::Operation { .. } | Write::MapFile { .. } => None,
        });
        let mut all: Vec<_> = file.pending.values().map(|p| &p.diff).chain(written).cloned().collect();
        all.sort_by_key(|diff| diff.to);
        Some((file.map.clone(), all))
    }

    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Reads the head, or has it read again when the read under way has ended.
    fn look(&mut self, out: &mut Vec<Effect>) {
        if self.reading.is_some() {
            self.again = true;
            return;
        }
        let number = self.next();
        self.reading = Some(number);
        out.push(Effect::Read(number));
    }

    /// The lowest number of a read of the head that begins from now on.
    fn next_read(&self) -> u64 {
        self.number + 1
    }

    fn ask(&mut self, request: Request, sequence: u64, out: &mut Vec<Effect>) {
        if planted::is(Planted::Head)
            && let Some(file) = self.files.values().next()
        {
            return out.push(Effect::Answer(request, Ok(Answer::Map(file.map.clone()))));
        }
        if self.waiting.len() >= WAITING {
            return out.push(Effect::Answer(request, Err(Refused::Full("questions"))));
        }
        let read = self.next_read();
        self.waiting.push(Waiting { request, sequence, read, until: self.now + ANSWER_MS });
        self.look(out);
    }

    fn join(&mut self, request: Request, out: &mut Vec<Effect>) {
        let busy = self.joining.as_ref().is_some_and(|joining| joining.request.is_some());
        if busy {
            return out.push(Effect::Answer(request, Err(Refused::Full("others that ask it to join"))));
        }
        self.joining = Some(Joining { request: Some(request), until: self.now + 5 * ANSWER_MS });
        self.look(out);
    }

    fn remove(&mut self, name: TransactionId, out: &mut Vec<Effect>) {
        self.files.remove(&name);
        out.push(Effect::Remove(name));
    }

    fn fetched(&mut self, number: u64, map: Option<Arc<ShardMap>>, out: &mut Vec<Effect>) {
        if self.fetching != Some(number) {
            return;
        }
        self.fetching = None;
        let others = self.others().len();
        match (map, self.head()) {
            (Some(map), Some(head)) if map.generation() == head.at => {
                self.attempts = 0;
                if !self.has(map.generation()) && !self.is_writing(map.generation()) {
                    self.begin(map, true, vec![], out);
                }
            }
            // The head has moved on while it was fetched.
            (Some(_), _) => self.look(out),
            (None, _) => {
                self.attempts += 1;
                // Tries each other server once at once, then again with every tick.
                if others > 0 && !self.attempts.is_multiple_of(others) {
                    self.settle(out);
                }
            }
        }
    }

    fn is_writing(&self, generation: Generation) -> bool {
        self.writes.values().any(|write| write.leads_to() == generation)
    }

    fn head(&self) -> Option<&Head> {
        self.seen.as_ref()?.as_ref().map(|seen| &seen.head)
    }

    /// The other servers of the head.
    fn others(&self) -> Vec<NodeId> {
        let servers = self.head().map(|head| head.servers.as_slice()).unwrap_or_default();
        servers.iter().filter(|server| **server != self.me).cloned().collect()
    }

    fn tick(&mut self, out: &mut Vec<Effect>) {
        let now = self.now;
        let (late, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|waiting| waiting.until <= now);
        self.waiting = waiting;
        let why = if self.seen.is_none() { Refused::NoHead } else { Refused::Behind };
        out.extend(late.into_iter().map(|waiting| Effect::Answer(waiting.request, Err(why.clone()))));
        if let Some(joining) = &mut self.joining
            && joining.until <= now
            && let Some(request) = joining.request.take()
        {
            out.push(Effect::Answer(request, Err(Refused::Behind)));
        }
        if self.is_waiting() {
            self.look(out);
            self.settle(out);
        }
    }

    /// Whether a change that is stored here leads to that map, and has not counted so far.
    fn awaits(&self, generation: Generation) -> bool {
        let is_seen = matches!(self.seen, Some(Some(_)));
        is_seen && self.files.values().any(|file| file.pending.contains_key(&generation.transaction))
    }

    /// Whether the server can take up a head that it heard of without a look: it is that of the next map of the same servers,
    /// which is here, and nothing is under way that is judged by when a look began.
    fn follows(&self, now: &Seen) -> bool {
        let Some(Some(seen)) = &self.seen else { return false };
        let is_next = seen.version < now.version
            && seen.head.servers == now.head.servers
            && seen.head.at.sequence < now.head.at.sequence;
        let is_at_rest = self.reading.is_none() && self.joining.is_none() && self.doubt.is_none();
        is_next && is_at_rest && self.current().is_some() && self.has(now.head.at)
    }

    /// Takes up a head that is the next one. Looks at another that differs from the last one read and may concern it.
    fn hear(&mut self, head: &Option<Seen>, out: &mut Vec<Effect>) {
        if let Some(now) = head
            && self.follows(now)
        {
            self.seen = Some(head.clone());
            return self.settle(out);
        }
        let is_listed = head.as_ref().is_some_and(|seen| seen.head.servers.contains(&self.me));
        if self.seen.as_ref() != Some(head) && (is_listed || !self.is_idle()) {
            self.look(out);
        }
    }

    /// Whether the server waits for something: then it looks at the head with every tick.
    fn is_waiting(&self) -> bool {
        let asked = !self.waiting.is_empty() || !self.creating.is_empty() || self.joining.is_some();
        let is_listed = self.head().is_some_and(|head| head.servers.contains(&self.me));
        let is_behind = is_listed && self.current().is_none();
        asked || is_behind || self.doubt.is_some() || self.pending() > 0 || self.seen.is_none()
    }

    /// Whether the keyspace is none of its business, as far as it knows: then it leaves the coordination service
    /// alone until a client calls, and may be forgotten.
    pub fn is_idle(&self) -> bool {
        let asked = !self.waiting.is_empty() || !self.creating.is_empty();
        let has_nothing = self.files.is_empty() && self.writes.is_empty() && !asked;
        let is_listed = self.head().is_some_and(|head| head.servers.contains(&self.me));
        has_nothing && self.seen.is_some() && !is_listed && self.joining.is_none() && self.doubt.is_none()
    }
}

impl Write {
    fn leads_to(&self) -> Generation {
        match self {
            Write::MapFile { map, .. } => map.generation(),
            Write::Operation { diff, .. } => diff.to,
        }
    }
}

mod settle;
mod storing;
