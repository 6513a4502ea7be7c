//! The network, the disks, the coordination service, and time.

use super::oracle::Oracle;
use super::requester::{Doing, Requester};
use crate::draw::Draw;
use machine::{DiskWrite, Machine};
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_service::metadata::change::Swapped;
use partage_service::metadata::server::{
    Answer, CREATION_MS, Effect, Event, GONE_MS, LOOK_MS, PENDING_MS, REFRESH_MS, Refused, Server,
};
use partage_service::metadata::{Head, Seen};
use std::collections::BTreeMap;
use weather::{WEATHERS, Weather};

const SERVERS: usize = 5;
const REQUESTERS: usize = 3;
/// How long the coordination service is jammed.
const JAM_MS: (u64, u64) = (10_000, 40_000);
/// The longest that the coordination service keeps a swap for which no requester waits any more.
const KEPT_MS: u64 = 2 * PENDING_MS;
/// How long nothing fails afterwards: every leftover is found within.
const CALM_MS: u64 = KEPT_MS + max(CREATION_MS, GONE_MS) + PENDING_MS + 4 * REFRESH_MS + 6 * LOOK_MS;

const fn max(a: u64, b: u64) -> u64 {
    if a > b { a } else { b }
}

/// How a run went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Maps that were the head's.
    pub commits: usize,
    /// Steps of the simulation.
    pub steps: u64,
    /// How often a server crashed.
    pub crashes: u64,
    /// Changes of the list.
    pub lists: u64,
    /// Keyspaces that were created.
    pub births: usize,
    /// Everything that happened, as one number: the same seed gives the same.
    pub fingerprint: u64,
    /// What does not hold.
    pub broken: Option<String>,
}

/// Where an answer goes: to what has asked and waits for it.
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
    Refresh(usize, u64),
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
    /// Without a head: a deletion.
    Swap {
        expected: Option<u64>,
        head: Option<Head>,
        teller: Option<Reader>,
    },
}

#[derive(Debug, Clone, Copy)]
enum Reader {
    Server { at: usize, life: u64, number: u64 },
    Requester { at: usize, life: u64 },
}

struct World {
    draw: Draw,
    now: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    order: u64,
    weather: &'static Weather,
    jam_ends: u64,
    calm: bool,
    machines: Vec<Machine>,
    requesters: Vec<Requester>,
    head: Option<Head>,
    version: u64,
    /// Where the answer to each request goes, and how many heads there had been when it was asked.
    routes: BTreeMap<u64, (Route, usize)>,
    next_request: u64,
    oracle: Oracle,
    outcome: Outcome,
}

/// Runs the servers and requesters of one seed to the end.
pub fn run(seed: u64) -> Outcome {
    let mut world = World::new(seed);
    let end = world.weather.storm_ms + CALM_MS;
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
    (world.outcome.commits, world.outcome.births) = world.oracle.commits();
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
        let weather = &WEATHERS[(seed % WEATHERS.len() as u64) as usize];
        let outcome = Outcome {
            commits: 0,
            steps: 0,
            crashes: 0,
            lists: 0,
            births: 0,
            fingerprint: seed,
            broken: None,
        };
        let mut world = World {
            draw: Draw::new(seed),
            now: 0,
            queue: BTreeMap::new(),
            order: 0,
            weather,
            jam_ends: 0,
            calm: false,
            machines: (0..SERVERS).map(|_| Machine::default()).collect(),
            requesters: (0..REQUESTERS).map(|_| Requester::new()).collect(),
            head: None,
            version: 0,
            routes: BTreeMap::new(),
            next_request: 0,
            oracle: Oracle::default(),
            outcome,
        };
        for server in 0..SERVERS {
            world.at(0, Happening::Restart(server));
            let when = world.draw.between(500, weather.storm_ms / 2);
            world.at(when, Happening::Crash(server));
        }
        for requester in 0..REQUESTERS {
            let when = world.draw.between(10, 200);
            world.at(when, Happening::Wish(requester));
        }
        world.at(weather.storm_ms, Happening::Calm);
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

    fn is_jammed(&self) -> bool {
        !self.calm && self.now < self.jam_ends
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
            Happening::Refresh(at, life) if self.machines[at].life == life => {
                let next = self.draw.between(REFRESH_MS / 2, REFRESH_MS * 3 / 2);
                self.after(next, Happening::Refresh(at, life));
                return self.tell_server(at, Event::Refresh);
            }
            Happening::Refresh(..) => {}
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
        self.after(REFRESH_MS, Happening::Refresh(at, life));
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
                    self.ask(Ask::Swap { expected: Some(seen.version), head: Some(seen.head), teller: None });
                }
                Effect::Swap(version, head) => {
                    let teller = Some(Reader::Server { at, life, number: 0 });
                    self.ask(Ask::Swap { expected: Some(version), head: Some(head), teller });
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
                    // A server that hears nothing gives up.
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
        // It may never be sent, or be carried out long after its requester has given up.
        let is_lost = self.fails(10);
        if !is_lost {
            let is_kept = !is_read && (self.is_jammed() || self.fails(self.weather.kept));
            let ms = if is_kept { self.draw.between(400, KEPT_MS) } else { self.delay(5) };
            self.after(ms, Happening::Backend(ask));
            // No requester is left to find out what became of it.
            if let Some(Reader::Requester { at, .. }) = teller.filter(|_| is_kept) {
                self.requesters[at].begin(Doing::Idle);
            }
        }
        if let Some(teller) = teller {
            // A requester or server that hears nothing in time gives up; an answer that comes later is not listened to.
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
                    self.oracle.head(head.as_ref())?;
                    if let (Some(old), Some(new)) = (&self.head, &head) {
                        self.outcome.lists += u64::from(old.servers != new.servers);
                    }
                    self.head = head;
                    self.version += 1;
                    self.publish();
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

    /// The servers that watch the head hear of it, or not: their watch may be broken.
    fn publish(&mut self) {
        for at in 0..SERVERS {
            let ms = self.delay(20);
            if !self.fails(200) {
                self.after(ms, Happening::ToServer(at, Event::News(self.seen())));
            }
        }
    }

    /// T7, after every step: most of the listed servers have the head's map on their disks.
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
        let head = self.head.as_ref();
        for (at, machine) in self.machines.iter().enumerate() {
            let server = machine.server.as_ref().ok_or_else(|| format!("server {at} is down"))?;
            let listed = head.filter(|head| head.servers.contains(&name(at)));
            let current = server.current().map(|map| map.generation());
            if current != listed.map(|head| head.at) {
                return Err(format!("L3: server {at} is at {current:?}, the head at {head:?}"));
            }
            let books = usize::from(listed.is_some());
            if server.files() != books || machine.books.len() != books || server.pending() != 0 {
                return Err(format!(
                    "T7: server {at} has {} books and {} changes that wait, its disk {}",
                    server.files(),
                    server.pending(),
                    machine.books.len()
                ));
            }
        }
        Ok(())
    }
}

mod acting;
mod machine;
mod weather;
