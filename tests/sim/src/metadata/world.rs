//! The network, the disks, the coordination service, and time.

use super::oracle::Oracle;
use super::requester::{Doing, Requester, Wish, change, transaction};
use crate::draw::Draw;
use partage_core::hash::HashFunction;
use partage_core::id::{Generation, TransactionId};
use partage_core::map::{MapDiff, ShardMap};
use partage_core::metadata::change::{self as changes, Change, Changing, Notice, Swapped};
use partage_core::metadata::server::{Answer, Effect, Event, LOOK_MS, PENDING_MS, Refused, Server};
use partage_core::metadata::{self, Head, Seen};
use partage_core::name::{KeyspaceName, NodeId};
use partage_core::sharding::{PartitionKey, Sharding};
use partage_core::time::Millis;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const SERVERS: usize = 5;
const REQUESTERS: usize = 3;
/// How long there are faults, in milliseconds: in busy runs, and in quiet ones.
const STORMY_MS: [u64; 2] = [40_000, 1_200_000];
/// How long somebody who changes things rests.
const PAUSE_MS: [u64; 2] = [150, 100_000];
/// The longest that the coordination service keeps a swap for which nobody waits any more.
const KEPT_MS: u64 = 2 * PENDING_MS;
/// How long nothing fails afterwards: every leftover is found within.
const CALM_MS: u64 = KEPT_MS + PENDING_MS + 6 * LOOK_MS;

/// How a run went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Maps that were the head's.
    pub commits: usize,
    /// Steps of the simulation.
    pub steps: u64,
    /// Crashes of servers.
    pub crashes: u64,
    /// Changes of the list.
    pub lists: u64,
    /// Everything that happened, as one number: the same seed gives the same.
    pub fingerprint: u64,
    /// What does not hold.
    pub broken: Option<String>,
}

/// Who waits for an answer.
#[derive(Debug, Clone, Copy)]
enum Route {
    Requester {
        at: usize,
        life: u64,
        server: usize,
    },
    /// A server that fetches, in that life of it.
    Server {
        at: usize,
        life: u64,
        number: u64,
    },
}

#[derive(Debug, Clone)]
enum Happening {
    ToServer(usize, Event),
    /// Only if it is still in that life.
    ToServerInLife(usize, u64, Event),
    ToRequester {
        at: usize,
        life: u64,
        news: News,
    },
    /// The coordination service hears of it.
    Backend(Ask),
    Disk(usize, u64),
    Tick(usize, u64),
    Crash(usize),
    Restart(usize),
    Wish(usize),
    Calm,
}

#[derive(Debug, Clone)]
enum News {
    Head(Option<Option<Seen>>),
    Answer(usize, Result<Answer, Refused>),
    Swapped(Swapped),
    TimeUp,
}

#[derive(Debug, Clone)]
enum Ask {
    Read(Reader),
    Swap { expected: Option<u64>, head: Head, teller: Option<Reader> },
}

#[derive(Debug, Clone, Copy)]
enum Reader {
    Server { at: usize, life: u64, number: u64 },
    Requester { at: usize, life: u64 },
}

#[derive(Debug, Clone)]
enum DiskWrite {
    Begin(u64, Arc<ShardMap>),
    Append(u64, TransactionId, Arc<MapDiff>),
    Drop(TransactionId, TransactionId),
    Remove(TransactionId),
    Rewrite(TransactionId, Arc<ShardMap>, Vec<Arc<MapDiff>>),
}

type Books = BTreeMap<TransactionId, (Arc<ShardMap>, Vec<Arc<MapDiff>>)>;

/// A server with its disk. What is queued is lost in a crash, or not, in order.
#[derive(Debug, Default)]
struct Machine {
    server: Option<Server>,
    life: u64,
    books: Books,
    queue: VecDeque<DiskWrite>,
}

impl Machine {
    /// Whether its disk could bring forth the map of the head.
    fn has(&self, head: &Head) -> bool {
        self.books.values().any(|(map, operations)| {
            let mut at = head.at;
            while at != map.generation() {
                match operations.iter().find(|diff| diff.to == at) {
                    Some(diff) => at = diff.from,
                    None => return false,
                }
            }
            true
        })
    }

    fn write(&mut self, write: DiskWrite) -> Option<u64> {
        match write {
            DiskWrite::Begin(number, map) => {
                self.books.insert(map.generation().transaction, (map, vec![]));
                return Some(number);
            }
            DiskWrite::Append(number, book, diff) => {
                if let Some((_, operations)) = self.books.get_mut(&book) {
                    operations.push(diff);
                }
                return Some(number);
            }
            DiskWrite::Drop(book, gone) => {
                if let Some((_, operations)) = self.books.get_mut(&book) {
                    operations.retain(|diff| diff.to.transaction != gone);
                }
            }
            DiskWrite::Remove(book) => drop(self.books.remove(&book)),
            DiskWrite::Rewrite(book, map, operations) => {
                if self.books.contains_key(&book) {
                    self.books.insert(book, (map, operations));
                }
            }
        }
        None
    }
}

struct World {
    draw: Draw,
    now: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    order: u64,
    /// In every third run changes are rare, so that what is left behind is not swept away by the next.
    quiet: usize,
    calm: bool,
    machines: Vec<Machine>,
    requesters: Vec<Requester>,
    head: Option<Head>,
    version: u64,
    /// Who waits for which request, and how many heads there had been when it was asked.
    routes: BTreeMap<u64, (Route, usize)>,
    next_request: u64,
    oracle: Oracle,
    outcome: Outcome,
}

/// Runs one seed.
pub fn run(seed: u64) -> Outcome {
    let mut world = World::new(seed);
    let end = STORMY_MS[world.quiet] + CALM_MS;
    while let Some(((at, order), happening)) = world.queue.pop_first() {
        if at > end {
            break;
        }
        world.now = at;
        world.outcome.steps += 1;
        world.outcome.fingerprint =
            (world.outcome.fingerprint ^ at ^ order << 20).wrapping_mul(0x0000_0100_0000_01b3);
        if let Err(broken) = world.step(happening).and_then(|()| world.holds()) {
            world.outcome.broken = Some(format!("at {at} ms: {broken}"));
            return world.outcome;
        }
    }
    if let Err(broken) = world.holds_in_the_end() {
        world.outcome.broken = Some(format!("in the end: {broken}"));
    }
    world.outcome.commits = world.oracle.length();
    world.outcome
}

fn name(server: usize) -> NodeId {
    NodeId::new(&format!("m{server}")).expect("a name")
}

fn number(name: &NodeId) -> usize {
    name.as_str()[1..].parse().expect("names of servers end in their number")
}

impl World {
    fn new(seed: u64) -> World {
        let mut world = World {
            draw: Draw::new(seed),
            now: 0,
            queue: BTreeMap::new(),
            order: 0,
            quiet: usize::from(seed.is_multiple_of(3)),
            calm: false,
            machines: (0..SERVERS).map(|_| Machine::default()).collect(),
            requesters: (0..REQUESTERS).map(|_| Requester::new()).collect(),
            head: None,
            version: 0,
            routes: BTreeMap::new(),
            next_request: 0,
            oracle: Oracle::default(),
            outcome: Outcome { commits: 0, steps: 0, crashes: 0, lists: 0, fingerprint: seed, broken: None },
        };
        for server in 0..SERVERS {
            world.at(0, Happening::Restart(server));
            let when = world.draw.between(500, STORMY_MS[world.quiet] / 2);
            world.at(when, Happening::Crash(server));
        }
        for requester in 0..REQUESTERS {
            let when = world.draw.between(10, 200);
            world.at(when, Happening::Wish(requester));
        }
        world.at(STORMY_MS[world.quiet], Happening::Calm);
        world
    }

    fn at(&mut self, at: u64, happening: Happening) {
        self.order += 1;
        self.queue.insert((at, self.order), happening);
    }

    fn after(&mut self, ms: u64, happening: Happening) {
        self.at(self.now + ms, happening);
    }

    /// How long something takes; rarely very long.
    fn delay(&mut self, typical: u64) -> u64 {
        let long = !self.calm && self.draw.chance(15);
        self.draw.between(1, typical + 1) * if long { 100 } else { 1 }
    }

    fn fails(&mut self, permille: u64) -> bool {
        !self.calm && self.draw.chance(permille)
    }

    /// Sends over the network: lost, late or twice.
    fn send(&mut self, happening: Happening) {
        if self.fails(30) {
            return;
        }
        if self.fails(30) {
            let ms = self.delay(40);
            self.after(ms, happening.clone());
        }
        let ms = self.delay(4);
        self.after(ms, happening);
    }

    fn step(&mut self, happening: Happening) -> Result<(), String> {
        match happening {
            Happening::ToServer(at, event) => return self.tell_server(at, event),
            Happening::ToServerInLife(at, life, event) if self.machines[at].life == life => {
                return self.tell_server(at, event);
            }
            Happening::ToServerInLife(..) => {}
            Happening::ToRequester { at, life, news } if self.requesters[at].life == life => {
                return self.tell_requester(at, news);
            }
            Happening::ToRequester { .. } => {}
            Happening::Backend(ask) => return self.backend(ask),
            Happening::Disk(at, life) if self.machines[at].life == life => return self.disk(at),
            Happening::Disk(..) => {}
            Happening::Tick(at, life) if self.machines[at].life == life => {
                self.after(LOOK_MS, Happening::Tick(at, life));
                return self.tell_server(at, Event::Tick);
            }
            Happening::Tick(..) => {}
            Happening::Crash(at) => self.crash(at),
            Happening::Restart(at) => return self.restart(at),
            Happening::Wish(at) => self.wish(at),
            Happening::Calm => {
                self.calm = true;
                for at in 0..SERVERS {
                    self.after(1, Happening::Restart(at));
                }
            }
        }
        Ok(())
    }

    fn crash(&mut self, at: usize) {
        if self.calm {
            return;
        }
        let machine = &mut self.machines[at];
        machine.server = None;
        machine.life += 1;
        // What was written before the last sync is there, or not.
        let arrived = self.draw.index(machine.queue.len() + 1);
        for write in machine.queue.drain(..).take(arrived).collect::<Vec<_>>() {
            machine.write(write);
        }
        self.outcome.crashes += 1;
        let (down, up) = (self.draw.around(2_000), self.draw.between(1_000, 30_000));
        self.after(down, Happening::Restart(at));
        self.after(down + up, Happening::Crash(at));
    }

    fn restart(&mut self, at: usize) -> Result<(), String> {
        if self.machines[at].server.is_some() {
            return Ok(());
        }
        let machine = &mut self.machines[at];
        let books = machine.books.iter().map(|(name, (map, operations))| {
            (*name, (**map).clone(), operations.iter().map(|diff| (**diff).clone()).collect())
        });
        let (server, effects) = Server::recover(name(at), books.collect(), Millis(self.now));
        machine.server = Some(server);
        let life = machine.life;
        let first = self.draw.between(1, LOOK_MS);
        self.after(first, Happening::Tick(at, life));
        self.carry(at, effects)
    }

    fn tell_server(&mut self, at: usize, event: Event) -> Result<(), String> {
        let now = Millis(self.now);
        let Some(server) = &mut self.machines[at].server else { return Ok(()) };
        let effects = server.take(now, event);
        self.carry(at, effects)
    }

    fn carry(&mut self, at: usize, effects: Vec<Effect>) -> Result<(), String> {
        let life = self.machines[at].life;
        for effect in effects {
            match effect {
                Effect::Read(number) => self.ask(Ask::Read(Reader::Server { at, life, number })),
                Effect::Seal(seen) => {
                    self.ask(Ask::Swap { expected: Some(seen.version), head: seen.head, teller: None });
                }
                Effect::Swap(version, head) => {
                    let teller = Some(Reader::Server { at, life, number: 0 });
                    self.ask(Ask::Swap { expected: Some(version), head, teller });
                }
                Effect::Begin(number, map) => self.write(at, DiskWrite::Begin(number, map)),
                Effect::Append(number, book, diff) => self.write(at, DiskWrite::Append(number, book, diff)),
                Effect::Drop(book, gone) => self.write(at, DiskWrite::Drop(book, gone)),
                Effect::Remove(book) => self.write(at, DiskWrite::Remove(book)),
                Effect::Settled(book) => {
                    let server = self.machines[at].server.as_ref();
                    let snapshot = server.and_then(|server| server.snapshot(book));
                    if let Some((map, operations)) = snapshot.filter(|_| self.draw.chance(100)) {
                        self.write(at, DiskWrite::Rewrite(book, map, operations));
                    }
                }
                Effect::Fetch(number, from) => {
                    let request = self.route(Route::Server { at, life, number });
                    self.send(Happening::ToServer(self::number(&from), Event::Ask(request, 0)));
                    // Who hears nothing gives up.
                    let gave_up = Event::Fetched(number, None);
                    self.after(3_000, Happening::ToServerInLife(at, life, gave_up));
                }
                Effect::Answer(request, answer) => self.answer(request, answer)?,
            }
        }
        Ok(())
    }

    fn write(&mut self, at: usize, write: DiskWrite) {
        let (ms, life) = (self.delay(3), self.machines[at].life);
        self.machines[at].queue.push_back(write);
        self.after(ms, Happening::Disk(at, life));
    }

    /// The oldest write is on disk.
    fn disk(&mut self, at: usize) -> Result<(), String> {
        let machine = &mut self.machines[at];
        let Some(write) = machine.queue.pop_front() else { return Ok(()) };
        match machine.write(write) {
            Some(number) => self.tell_server(at, Event::Written(number, Ok(()))),
            None => Ok(()),
        }
    }

    fn route(&mut self, route: Route) -> u64 {
        self.next_request += 1;
        self.routes.insert(self.next_request, (route, self.oracle.length()));
        self.next_request
    }

    fn answer(&mut self, request: u64, answer: Result<Answer, Refused>) -> Result<(), String> {
        // A question that was doubled is answered twice.
        let Some((route, length)) = self.routes.get(&request).copied() else { return Ok(()) };
        if let Ok(Answer::Map(map)) = &answer {
            self.oracle.answered(map, length)?;
        }
        match route {
            Route::Requester { at, life, server } => {
                self.send(Happening::ToRequester { at, life, news: News::Answer(server, answer) });
            }
            Route::Server { at, life, number } => {
                let map = match answer {
                    Ok(Answer::Map(map)) => Some(map),
                    Ok(Answer::Stored | Answer::Joined(_)) | Err(_) => None,
                };
                self.send(Happening::ToServerInLife(at, life, Event::Fetched(number, map)));
            }
        }
        Ok(())
    }

    fn ask(&mut self, ask: Ask) {
        let teller = match &ask {
            Ask::Read(reader) => Some(*reader),
            Ask::Swap { teller, .. } => *teller,
        };
        let is_read = matches!(ask, Ask::Read(_));
        // It may never be sent, or be carried out long after everybody has given up.
        let is_lost = self.fails(10);
        if !is_lost {
            let is_kept = !is_read && self.fails(if self.quiet == 1 { 200 } else { 20 });
            let ms = if is_kept { self.draw.between(400, KEPT_MS) } else { self.delay(5) };
            self.after(ms, Happening::Backend(ask));
            // Nobody is left to find out what became of it.
            if let Some(Reader::Requester { at, .. }) = teller.filter(|_| is_kept) {
                self.requesters[at].begin(Doing::Idle);
            }
        }
        if let Some(teller) = teller {
            // Who hears nothing in time gives up; an answer that comes later is not listened to.
            self.tell(teller, 400, is_read.then_some(None), Swapped::Unknown);
        }
    }

    fn tell(&mut self, reader: Reader, ms: u64, read: Option<Option<Option<Seen>>>, swapped: Swapped) {
        let happening = match (reader, read) {
            (Reader::Server { at, life, number }, Some(read)) => {
                Happening::ToServerInLife(at, life, Event::Read(number, read))
            }
            (Reader::Server { at, life, .. }, None) => {
                Happening::ToServerInLife(at, life, Event::Swapped(swapped))
            }
            (Reader::Requester { at, life }, Some(read)) => {
                Happening::ToRequester { at, life, news: News::Head(read) }
            }
            (Reader::Requester { at, life }, None) => {
                Happening::ToRequester { at, life, news: News::Swapped(swapped) }
            }
        };
        self.after(ms, happening);
    }

    fn seen(&self) -> Option<Seen> {
        self.head.clone().map(|head| Seen { head, version: self.version })
    }

    fn backend(&mut self, ask: Ask) -> Result<(), String> {
        let (ms, is_lost) = (self.delay(5), self.fails(20));
        match ask {
            Ask::Read(reader) => {
                let seen = self.seen();
                if !is_lost {
                    self.tell(reader, ms, Some(Some(seen)), Swapped::Unknown);
                }
            }
            Ask::Swap { expected, head, teller } => {
                let swapped = if self.head.as_ref().map(|_| self.version) == expected {
                    self.oracle.head(&head)?;
                    let is_list = self.head.as_ref().is_some_and(|old| old.servers != head.servers);
                    self.outcome.lists += u64::from(is_list);
                    self.head = Some(head);
                    self.version += 1;
                    Swapped::Done
                } else {
                    Swapped::Refused
                };
                if let Some(teller) = teller.filter(|_| !is_lost) {
                    self.tell(teller, ms, None, swapped);
                }
            }
        }
        Ok(())
    }

    fn wish(&mut self, at: usize) {
        let pause = self.draw.around(PAUSE_MS[self.quiet]);
        if !self.calm {
            self.after(pause, Happening::Wish(at));
        }
        // Who is in the middle of something dies, now and then, and begins anew.
        if !matches!(self.requesters[at].doing, Doing::Idle) && !self.draw.chance(50) {
            return;
        }
        let wish = match self.draw.between(0, 20) {
            0..=13 => Wish::Change,
            14 | 15 => Wish::Leave,
            16 => {
                let server = self.draw.index(SERVERS);
                let life = self.requesters[at].life + 1;
                self.requesters[at].begin(Doing::Idle);
                let request = self.route(Route::Requester { at, life, server });
                return self.send(Happening::ToServer(server, Event::Join(request)));
            }
            _ => Wish::Know,
        };
        self.requesters[at].begin(Doing::Head(wish));
        let life = self.requesters[at].life;
        self.ask(Ask::Read(Reader::Requester { at, life }));
    }

    fn tell_requester(&mut self, at: usize, news: News) -> Result<(), String> {
        match (self.requesters[at].doing.clone(), news) {
            (Doing::Head(wish), News::Head(Some(seen))) => self.has_head(at, wish, seen),
            (Doing::Map(wish, seen), News::Answer(_, Ok(Answer::Map(map)))) => {
                self.has_map(at, &wish, seen, &map)
            }
            (Doing::Changing(changing, wanted), news) => self.go_on(at, *changing, wanted, news),
            (Doing::Head(_), News::Head(None)) | (Doing::Map(..), News::Answer(..) | News::TimeUp) => {
                self.requesters[at].begin(Doing::Idle);
                Ok(())
            }
            (Doing::Idle | Doing::Head(_) | Doing::Map(..), _) => Ok(()),
        }
    }

    fn has_head(&mut self, at: usize, wish: Wish, seen: Option<Seen>) -> Result<(), String> {
        let Some(seen) = seen else { return self.create(at) };
        let server = self.draw.pick(&seen.head.servers).cloned().expect("no list is empty");
        let sequence = seen.head.at.sequence;
        self.requesters[at].doing = Doing::Map(wish, seen);
        self.question(at, number(&server), sequence);
        self.time_up(at);
        Ok(())
    }

    fn question(&mut self, at: usize, server: usize, sequence: u64) {
        let life = self.requesters[at].life;
        let request = self.route(Route::Requester { at, life, server });
        self.send(Happening::ToServer(server, Event::Ask(request, sequence)));
    }

    fn time_up(&mut self, at: usize) {
        let life = self.requesters[at].life;
        self.after(600, Happening::ToRequester { at, life, news: News::TimeUp });
    }

    fn create(&mut self, at: usize) -> Result<(), String> {
        let sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
        let mut map =
            ShardMap::empty(KeyspaceName::new("ks").expect("a name"), sharding, PartitionKey::default());
        let first = map.edit().commit(transaction(&mut self.draw));
        map.apply(&first).expect("it is the first");
        let all: Vec<_> = (0..SERVERS).map(name).collect();
        let servers = metadata::choose(&all, metadata::SERVERS, self.draw.bits());
        let map = Arc::new(map);
        self.oracle.tried(map.clone())?;
        let (changing, effects) = Changing::begin(None, map.generation(), servers);
        self.requesters[at].doing = Doing::Changing(Box::new(changing), None);
        self.act(at, effects, Some(Change::Whole(map)))
    }

    fn has_map(&mut self, at: usize, wish: &Wish, seen: Seen, map: &ShardMap) -> Result<(), String> {
        if map.generation() != seen.head.at || *wish == Wish::Know {
            self.requesters[at].begin(Doing::Idle);
            return Ok(());
        }
        if *wish == Wish::Leave {
            let mut servers = seen.head.servers.clone();
            if servers.len() < 2 {
                self.requesters[at].begin(Doing::Idle);
                return Ok(());
            }
            servers.remove(self.draw.index(servers.len()));
            let (changing, effects) = Changing::list(seen.clone(), servers);
            self.requesters[at].doing = Doing::Changing(Box::new(changing), Some(seen.head.at));
            return self.act(at, effects, None);
        }
        let diff = change(map, &mut self.draw);
        metadata::check(map, &diff).map_err(|why| format!("a legal change was refused: {why}"))?;
        let mut next = map.clone();
        next.apply(&diff).map_err(|why| why.to_string())?;
        self.oracle.tried(Arc::new(next))?;
        let (changing, effects) = Changing::begin(Some(seen), diff.to, vec![]);
        self.requesters[at].doing = Doing::Changing(Box::new(changing), None);
        self.act(at, effects, Some(Change::Operation(Arc::new(diff))))
    }

    fn go_on(
        &mut self,
        at: usize,
        mut changing: Changing,
        wanted: Option<Generation>,
        news: News,
    ) -> Result<(), String> {
        let event = match news {
            News::Answer(server, Ok(Answer::Stored)) => changes::Event::Stored(name(server), Ok(())),
            News::Answer(server, Ok(Answer::Map(map))) => {
                let has = Some(map.generation()) == wanted;
                let outcome = if has { Ok(()) } else { Err("it has another map".to_owned()) };
                changes::Event::Stored(name(server), outcome)
            }
            News::Answer(server, Err(why)) => changes::Event::Stored(name(server), Err(why.to_string())),
            News::Answer(_, Ok(Answer::Joined(_))) => return Ok(()),
            News::Swapped(swapped) => changes::Event::Swapped(swapped),
            News::Head(read) => changes::Event::Read(read),
            News::TimeUp => changes::Event::TimeUp,
        };
        let effects = changing.take(event);
        self.requesters[at].doing = Doing::Changing(Box::new(changing), wanted);
        self.act(at, effects, None)
    }

    fn act(
        &mut self,
        at: usize,
        effects: Vec<changes::Effect>,
        change: Option<Change>,
    ) -> Result<(), String> {
        let life = self.requesters[at].life;
        for effect in effects {
            match effect {
                changes::Effect::Store(servers) => {
                    for server in servers {
                        let server = number(&server);
                        match &change {
                            Some(change) => {
                                let request = self.route(Route::Requester { at, life, server });
                                let event = Event::Store(request, change.clone());
                                self.send(Happening::ToServer(server, event));
                            }
                            None => self.question(at, server, 0),
                        }
                    }
                    self.time_up(at);
                }
                changes::Effect::Swap { expected, head } => {
                    let teller = Some(Reader::Requester { at, life });
                    self.ask(Ask::Swap { expected, head, teller });
                }
                changes::Effect::Read => self.ask(Ask::Read(Reader::Requester { at, life })),
                changes::Effect::Seal(seen) => {
                    self.ask(Ask::Swap { expected: Some(seen.version), head: seen.head, teller: None });
                }
                changes::Effect::Tell(servers, notice) => {
                    for server in servers {
                        self.send(Happening::ToServer(number(&server), Event::Tell(notice)));
                    }
                    if let Notice::Committed(to) = notice {
                        self.oracle.told(to, &Ok(to));
                    }
                }
                changes::Effect::Done(outcome) => self.done(at, &outcome),
            }
        }
        Ok(())
    }

    fn done(&mut self, at: usize, outcome: &Result<Generation, changes::Failed>) {
        if let Doing::Changing(changing, None) = &self.requesters[at].doing {
            let to = changing.swap().1.at;
            self.oracle.told(to, outcome);
        }
        self.requesters[at].begin(Doing::Idle);
    }

    /// After every step.
    fn holds(&self) -> Result<(), String> {
        let Some(head) = &self.head else { return Ok(()) };
        let have = head.servers.iter().filter(|server| self.machines[number(server)].has(head)).count();
        if have < head.servers.len() / 2 + 1 {
            return Err(format!("T7: {:?} is on the disks of {have} of {:?}", head.at, head.servers));
        }
        Ok(())
    }

    /// When nothing has failed for long.
    fn holds_in_the_end(&self) -> Result<(), String> {
        self.oracle.told_the_truth()?;
        let head = self.head.as_ref().ok_or("nothing was ever committed")?;
        for (at, machine) in self.machines.iter().enumerate() {
            let server = machine.server.as_ref().ok_or_else(|| format!("server {at} is down"))?;
            let is_listed = head.servers.contains(&name(at));
            let current = server.current().map(|map| map.generation());
            if current != is_listed.then_some(head.at) {
                return Err(format!("L3: server {at} is at {current:?}, the head at {head:?}"));
            }
            let books = usize::from(is_listed);
            if server.books() != books || machine.books.len() != books || server.pending() != 0 {
                return Err(format!(
                    "T7: server {at} has {} books and {} changes that wait, its disk {}",
                    server.books(),
                    server.pending(),
                    machine.books.len()
                ));
            }
        }
        Ok(())
    }
}
