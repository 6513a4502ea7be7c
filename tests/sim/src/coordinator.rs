//! A coordinator process: the driver around [`Cluster`], as the real one is, on simulated time.
//!
//! ```text
//!  inbox ──► take in ──► decide ──► one transaction ──► answers, orders, maps
//!              ▲                        │
//!              └──── waits while ───────┘ is not known to be durable
//!
//!  (deciding takes a stated time, too: see [`Cost`])
//! ```
//!
//! It leads while its session lives by its own clock; a transaction is refused by the store when another has
//! led since. When a transaction fails or its outcome is not known, the cluster in memory is thrown away and
//! a new one recovered. While another leads it stands by, and passes that one's maps on.

use crate::clock::{Clock, MS, True};
use crate::draw::Draw;
use crate::leading::{Computing, Leading, UnderWay, words};
use crate::message::{Event, Message, Place, Via};
use crate::publisher::Publisher;
use crate::scene::Scene;
use crate::store::{Attended, Committed, Disk, SESSION, Session, Store};
use partage_core::base::id::{ClusterId, TransactionId};
use partage_core::base::name::KeyspaceName;
use partage_core::base::planted::{self, Planted};
use partage_core::base::settings::Settings;
use partage_core::base::time::Millis;
use partage_core::cluster::{Cluster, LaterMap, LaterMaps, Outbox, RecoverError, Slice, Work, note_later};

/// How much of a session's time its owner believes in, in thousandths: its clock may be slow.
const BELIEVED: u64 = 970;

/// Most messages that wait while a transaction is under way; more are dropped, as a full socket would.
pub const INBOX: usize = 1_024;

/// Decisions in a row without a pause that are taken for a loop.
const SPINS: u32 = 200;

/// What a decision takes to compute, in microseconds: a stated price for each, and for each node and what it did of
/// its work. The clusters of a run are small; where the price is high, each shard stands for a thousand.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Microseconds for each decision, whatever it looks at.
    pub decision: True,
    /// More for each node, and for each shard, replica or change that it looked at.
    pub each: True,
}

/// Looks for a plan that cost as much as one shard that is reconciled: `cluster::work` bounds them in this proportion.
const PLANNED_FOR_ONE: u64 = 16;

impl Cost {
    /// Of one run: from next to nothing to some ten milliseconds for a decision.
    pub fn drawn(draw: &mut Draw) -> Cost {
        Cost { decision: draw.between(20, 200), each: *draw.pick(&[1, 10, 100, 1_000]).unwrap_or(&1) }
    }

    /// A decision of `cluster` that had done `before` of its work when it began. What is looked at for a plan costs a part of
    /// what a shard does that is reconciled (seed 17362: at the same price some ten shards were planned for two seconds).
    fn of(self, cluster: &Cluster, before: Work, taken_in: usize) -> True {
        let after = cluster.work_done();
        let planned = (after.planned - before.planned) / PLANNED_FOR_ONE;
        let done = (after.reconciled - before.reconciled) + (after.enqueued - before.enqueued) + planned;
        let messages = self.message() * taken_in as True;
        self.decision + messages + self.each * (done + cluster.nodes().len() as u64) as True
    }

    /// A message, or new orders of a node, take a tenth of what a decision takes that has nothing to do.
    fn message(self) -> True {
        self.decision / 10
    }

    /// To recover from what is stored, all of which is looked at.
    fn of_recovery(self, cluster: &Cluster) -> True {
        let shards: usize = cluster.keyspaces().values().map(|state| state.map.len()).sum();
        self.decision + self.each * (shards + cluster.nodes().len()) as True
    }

    /// How much a decision does at most. Taken from what was drawn already: in three of four runs hardly any plan is made in one
    /// decision, in the fourth they are made as in production.
    fn slice(self) -> Slice {
        let small = [3, 17, 101].get(self.decision as usize % 4).filter(|_| self.decision > 0);
        small.map_or_else(Slice::default, |planned| Slice { planned: *planned })
    }
}

/// The process, or where it would be.
#[derive(Debug)]
pub struct Coordinator {
    at: usize,
    settings: Settings,
    /// The monotonic and the wall clock of its process.
    pub clock: Clock,
    /// How often its process was started: events of earlier processes are void.
    pub process: u32,
    /// Whether its process runs, be it standing still or not.
    pub up: bool,
    /// Nothing reaches the store, or comes back.
    pub cut_from_store: bool,
    /// How the store fares with its transactions.
    pub disk: Disk,
    /// What its decisions take.
    pub cost: Cost,
    leading: Option<Box<Leading>>,
    publisher: Publisher,
    /// What workers know that it does not, since its process began.
    ahead: LaterMaps,
    /// Its session, and until when that certainly lives, by its own clock.
    session: Option<(Session, Millis)>,
    numbers: u64,
    timers: u64,
}

/// A question to the store about session and lead.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    session: Session,
    opens: bool,
    /// When it was asked, by the asker's clock: the session is counted from there.
    asked: Millis,
}

impl Coordinator {
    /// A place without a process.
    pub fn new(at: usize, settings: Settings, clock: Clock) -> Coordinator {
        Coordinator {
            at,
            settings,
            clock,
            process: 0,
            up: false,
            cut_from_store: false,
            disk: Disk::FAIR,
            cost: Cost::default(),
            leading: None,
            publisher: Publisher::default(),
            ahead: LaterMaps::new(),
            session: None,
            numbers: 0,
            timers: 0,
        }
    }

    /// Its place in the network.
    pub fn place(&self) -> Place {
        Place::Coordinator(self.at)
    }

    /// Starts a new process, which asks for a session first.
    pub fn start(&mut self, scene: &mut Scene) {
        self.process += 1;
        self.up = true;
        self.publisher = Publisher::default();
        self.ahead = LaterMaps::new();
        self.session = None;
        self.clock = Clock::drawn(&mut scene.draw, scene.now);
        scene
            .trace
            .event(scene.now, (1u8, self.at, self.process), || format!("coordinator {} starts", self.at));
        scene.after(MS, Event::SessionAsked { coordinator: self.at, process: self.process });
    }

    /// The process is killed.
    pub fn crash(&mut self, scene: &mut Scene) {
        self.up = false;
        self.leading = None;
        scene.trace.event(scene.now, (2u8, self.at), || format!("coordinator {} dies", self.at));
        scene.drop_connections(self.place());
    }

    /// Leaves in good order: its session ends with it.
    pub fn leave(&mut self, scene: &mut Scene, store: &mut Store) {
        if !(self.cut_from_store || store.is_away) {
            self.session.iter().for_each(|(session, _)| store.end(*session));
        }
        self.crash(scene);
    }

    /// Whether it leads, as far as it knows.
    pub fn leads(&self, now: True) -> bool {
        let now = self.clock.read(now);
        let lives = self.session.is_some_and(|(_, deadline)| now < deadline) || believes();
        self.leading.is_some() && lives
    }

    /// The cluster, while it leads and nothing is under way, for a caller that asks for changes.
    pub fn cluster(&mut self, now: True) -> Option<&mut Cluster> {
        let leads = self.leads(now);
        self.leading.as_mut().filter(|l| leads && !l.is_busy()).map(|l| &mut l.cluster)
    }

    /// The same, at the end of a run, when it may be deciding just then.
    pub fn known(&mut self, now: True) -> Option<&mut Cluster> {
        let leads = self.leads(now);
        self.leading.as_mut().filter(|_| leads).map(|l| &mut l.cluster)
    }

    /// Throws away what it has in memory; its session with it, of which the store hears if it can. Those who
    /// listen to its maps stay.
    fn step_down(&mut self, scene: &mut Scene, store: &mut Store, why: &'static str) {
        scene
            .trace
            .event(scene.now, (3u8, self.at), || format!("coordinator {} leads no more: {why}", self.at));
        if let Some((session, _)) = self.session.take().filter(|_| !self.cut_from_store)
            && !store.is_away
        {
            store.end(session);
        }
        let workers = self.leading.take().map(|leading| leading.workers).unwrap_or_default();
        for stream in workers.into_values().filter_map(|(_, stream, _)| stream) {
            scene.close(stream, self.place());
        }
        self.publisher.stand_by(scene, Place::Coordinator(self.at));
    }

    /// Asks for its session to be renewed, or for one, and which coordinator leads.
    pub fn session_asked(&mut self, scene: &mut Scene, store: &mut Store) {
        let again = SESSION / 3;
        scene.after(again, Event::SessionAsked { coordinator: self.at, process: self.process });
        self.ask(scene, store);
    }

    fn ask(&mut self, scene: &mut Scene, store: &mut Store) {
        let asked = self.clock.read(scene.now);
        if self.leading.is_some() && !self.leads(scene.now) {
            self.step_down(scene, store, "its session has ended");
        }
        let opens = self.session.is_none();
        if opens {
            self.numbers += 1;
        }
        let session = self.session.map_or((self.at, self.numbers), |(session, _)| session);
        let question = Question { session, opens, asked };
        let way = scene.draw.around(self.disk.takes / 2);
        scene.after(way, Event::Attends { coordinator: self.at, process: self.process, question });
    }

    /// Its question reaches the store.
    pub fn attends(&mut self, scene: &mut Scene, store: &mut Store, question: Question) {
        if self.cut_from_store || store.is_away || store.touched.is_closed {
            return;
        }
        let (unknown, done) = (scene.draw.chance(self.disk.unknown), scene.draw.chance(500));
        if unknown && !done {
            return;
        }
        let attended = store.attend(scene.now, question.session, question.opens);
        if let Attended::Leads(term) = attended {
            scene.oracles.elected(term);
        }
        if !unknown {
            let way = scene.draw.around(self.disk.takes / 2);
            let (coordinator, process) = (self.at, self.process);
            scene.after(way, Event::Attended { coordinator, process, question, attended });
        }
    }

    /// The store's answer about session and lead has come.
    pub fn attended(&mut self, scene: &mut Scene, store: &mut Store, question: Question, attended: Attended) {
        let Question { session, opens, asked } = question;
        let before = self.session;
        let is_new = opens && before.is_none();
        if !is_new && before.is_none_or(|(held, _)| held != session) {
            return;
        }
        let deadline = asked + SESSION / MS * BELIEVED / 1_000;
        let held = before.map_or(deadline, |(_, held)| held.max(deadline));
        match attended {
            Attended::Opened => {
                self.session = Some((session, held));
                self.ask(scene, store);
            }
            Attended::Expired if believes() && self.leading.is_some() => {}
            Attended::Expired => {
                self.step_down(scene, store, "its session was lost");
                self.ask(scene, store);
            }
            Attended::StandsBy(leader) if self.leading.is_none() => {
                self.session = Some((session, held));
                self.publisher.follow(scene, Place::Coordinator(self.at), leader);
            }
            // An answer from before it was elected, or an operator has deposed it. A leader acts no longer than it was
            // told that it leads.
            Attended::StandsBy(_) if believes() || !self.led_before(asked) => {}
            Attended::StandsBy(_) => self.step_down(scene, store, "its lead was taken away"),
            Attended::Leads(term) if self.leading.as_ref().is_some_and(|l| l.term != term) && !believes() => {
                self.step_down(scene, store, "its lead was taken away, and given again");
                self.ask(scene, store);
            }
            Attended::Leads(term) => {
                self.session = Some((session, held));
                if self.leading.is_none() && self.clock.read(scene.now) < held {
                    self.lead(scene, store, term);
                }
            }
        }
    }

    /// Whether it leads since before a moment of its clock.
    fn led_before(&self, asked: Millis) -> bool {
        self.leading.as_ref().is_some_and(|leading| leading.since < asked)
    }

    /// The cluster from what is durable, as a coordinator of the program recovers it.
    fn recover(&mut self, scene: &mut Scene, store: &Store) -> Result<Cluster, RecoverError> {
        let moment = self.clock.moment(scene.now);
        let (mut records, mut faults) = (store.records.clone(), store.touched.faults());
        for known in self.publisher.known() {
            note_later(&mut self.ahead, LaterMap { who: "this coordinator".to_owned(), known });
        }
        records.refuse_older(&mut faults, &mut self.ahead);
        let is_touched = !faults.is_empty();
        if is_touched && store.cluster == ClusterId::default() {
            scene.violate(
                "D10",
                format!("coordinator {} takes what nobody touched for older: {faults:?}", self.at),
            );
        }
        let mended = if is_touched { records.mend(&mut faults, moment.wall_ms) } else { Vec::new() };
        let was_restored = store.touched.was_restored();
        if was_restored {
            scene.oracles.set_back(&store.records, &records);
        }
        if is_touched || was_restored {
            scene.oracles.maps.recalled(scene.now, &records);
        }
        let cluster = Cluster::recover(moment, self.settings.clone(), records)?;
        let mut cluster = cluster.with_slice(self.cost.slice()).identified(store.cluster);
        if is_touched {
            cluster.take_faults(faults, mended);
        }
        // Where the key of the election is not touched, no session of a predecessor lives.
        if store.cluster != ClusterId::default() {
            cluster.allow_for_predecessor(moment.now, SESSION / MS);
        }
        Ok(cluster)
    }

    /// The head of a keyspace is there again: a coordinator that leads without it begins anew.
    pub fn reads_again(&mut self, scene: &mut Scene, store: &mut Store, name: &KeyspaceName) {
        let without = |leading: &Leading| leading.cluster.faults().quarantine.contains_key(name);
        if self.leading.as_deref().is_some_and(without) {
            self.step_down(scene, store, "a keyspace can be read again");
        }
    }

    fn lead(&mut self, scene: &mut Scene, store: &mut Store, term: u64) {
        let moment = self.clock.moment(scene.now);
        let cluster = match self.recover(scene, store) {
            Ok(cluster) => cluster,
            Err(error) => return scene.violate("O9", format!("nothing recovers from the records: {error}")),
        };
        scene
            .trace
            .event(scene.now, (4u8, self.at, term), || format!("coordinator {} leads, term {term}", self.at));
        let finding = scene.oracles.leads(term, (self.at, self.process));
        finding.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
        self.publisher.lead(scene, Place::Coordinator(self.at), &cluster, moment.now);
        let began = (scene.now, scene.stood_still(self.place()));
        let takes = self.cost.of_recovery(&cluster);
        let mut leading = Leading::new(term, moment.now, began, cluster);
        if takes > 0 {
            scene.count("recoveries that take time");
            self.numbers += 1;
            let (coordinator, process, number) = (self.at, self.process, self.numbers);
            leading.computing = Some(Computing { number, outbox: Outbox::default(), wake: moment.now });
            scene.after(takes, Event::Decided { coordinator, process, number });
        }
        self.leading = Some(Box::new(leading));
        self.drive(scene);
    }

    /// A message has come.
    pub fn deliver(&mut self, scene: &mut Scene, from: Place, via: Via, message: Message) {
        if let Via::Stream(stream) = via
            && self.publishes(scene, (from, stream), &message)
        {
            return;
        }
        let leads = self.leads(scene.now);
        match &mut self.leading {
            Some(leading) if leads && leading.computing.is_none() && leading.under_way.is_some() => {
                let (here, moment) = (Place::Coordinator(self.at), self.clock.moment(scene.now));
                let finding = leading.take_in_meanwhile(scene, here, moment, (from, via, message));
                finding.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
            }
            Some(leading) if leads => {
                if leading.inbox.len() < INBOX {
                    leading.inbox.push_back((from, via, message));
                }
                self.drive(scene);
            }
            _ => scene.send(self.place(), from, via, Message::NotLeader),
        }
    }

    /// Takes in what is about maps. Says whether it was.
    fn publishes(&mut self, scene: &mut Scene, (from, stream): (Place, u64), message: &Message) -> bool {
        let here = Place::Coordinator(self.at);
        match message {
            Message::Subscribe(has) => self.publisher.subscribe(from, stream, has),
            Message::Taken(keyspace, generation) => self.publisher.taken(stream, keyspace, *generation),
            Message::Deleted(..) | Message::Current(_) => {
                self.publisher.told(Via::Stream(stream), message, scene.now);
            }
            Message::Publication(publication) => {
                self.publisher.passed_on(scene, here, Via::Stream(stream), publication.clone());
            }
            _ => return false,
        }
        match &self.leading {
            // What is in memory is not durable yet.
            Some(leading) if leading.is_busy() => {}
            Some(leading) => self.publisher.publish(scene, here, Some(&leading.cluster)),
            None => self.publisher.publish(scene, here, None),
        }
        true
    }

    /// A connection is gone.
    pub fn closed(&mut self, stream: u64) {
        self.publisher.closed(stream);
        if let Some(leading) = &mut self.leading {
            for worker in leading.workers.values_mut().filter(|worker| worker.1 == Some(stream)) {
                worker.1 = None;
            }
        }
    }

    /// Its timer has rung.
    pub fn wake(&mut self, scene: &mut Scene, timer: u64) {
        if timer == self.timers {
            if let Some(leading) = &mut self.leading {
                leading.wake = Millis::NEVER;
            }
            self.drive(scene);
        }
    }

    /// Takes in what has come and decides, until there is nothing to do, or something to be computed or made durable.
    pub fn drive(&mut self, scene: &mut Scene) {
        let here = Place::Coordinator(self.at);
        for _ in 0..SPINS {
            let moment = self.clock.moment(scene.now);
            if !self.leads(scene.now) {
                return;
            }
            let Some(leading) = &mut self.leading else { return };
            if leading.is_busy() {
                return;
            }
            let seen = (scene.now, scene.stood_still(here));
            let incoming = leading.inbox.len();
            while let Some(incoming) = leading.inbox.pop_front() {
                let finding = leading.take_in(moment, seen, incoming);
                finding.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
            }
            leading.check_addresses(scene, self.at, moment.now);
            let granted = leading.cluster.grant_before_commit(moment);
            leading.order(scene, here, &granted);
            if !leading.cluster.later_maps().is_empty() {
                let (coordinator, process) = (self.at, self.process);
                return scene.after(0, Event::FellBehind { coordinator, process });
            }
            let before = leading.cluster.work_done();
            let wake = leading.cluster.decide(moment, transaction(scene));
            let outbox = leading.cluster.take_outbox();
            for notice in &outbox.notices {
                scene.trace.event(scene.now, (5u8, notice.alarm), || format!("  notice: {}", notice.text));
            }
            leading.declares_dead(scene, here, &self.settings, &outbox.writes);
            let takes = self.cost.of(&leading.cluster, before, incoming + granted.len());
            if takes > 0 {
                self.numbers += 1;
                let number = self.numbers;
                leading.computing = Some(Computing { number, outbox, wake });
                let (coordinator, process) = (self.at, self.process);
                return scene.after(takes, Event::Decided { coordinator, process, number });
            }
            if !self.act_on(scene, outbox, wake) {
                return;
            }
        }
        scene.violate("L4", format!("coordinator {} decides without end", self.at));
    }

    /// A worker knows of a later map than its own: it reads everything anew.
    pub fn fell_behind(&mut self, scene: &mut Scene, store: &mut Store) {
        let Some(leading) = &self.leading else { return };
        for later_map in leading.cluster.later_maps().values() {
            note_later(&mut self.ahead, later_map.clone());
        }
        if !leading.cluster.later_maps().is_empty() {
            scene.count("leaders that a worker outdid");
            self.step_down(scene, store, "a worker knows of a later map");
        }
    }

    /// A decision has been computed.
    pub fn decided(&mut self, scene: &mut Scene, store: &mut Store, number: u64) {
        let leads = self.leads(scene.now);
        let Some(leading) = &mut self.leading else { return };
        let Some(computing) = leading.computing.take_if(|c| c.number == number) else { return };
        if !leads {
            return self.step_down(scene, store, "its session ended while it was computing");
        }
        if self.act_on(scene, computing.outbox, computing.wake) {
            self.drive(scene);
        }
    }

    /// Makes durable what was decided, or tells it where nothing has to be. Says whether to decide again at once.
    fn act_on(&mut self, scene: &mut Scene, outbox: Outbox, wake: Millis) -> bool {
        let (here, now) = (Place::Coordinator(self.at), self.clock.read(scene.now));
        let Some(leading) = &mut self.leading else { return false };
        if planted::is(Planted::M3) {
            let maps = Outbox { maps: outbox.maps.clone(), ..Outbox::default() };
            leading.release(scene, here, &mut self.publisher, now, maps);
        }
        if !outbox.writes.is_empty() {
            self.numbers += 1;
            let number = self.numbers;
            leading.under_way = Some(UnderWay { number, outbox, outcome: None });
            let takes = scene.draw.around(self.disk.takes);
            let (coordinator, process) = (self.at, self.process);
            scene.after(takes, Event::Commits { coordinator, process, number });
            self.listen_again(scene, number);
            self.answer_meanwhile(scene);
            return false;
        }
        leading.release(scene, here, &mut self.publisher, now, outbox);
        if wake > now && leading.inbox.is_empty() {
            self.set_timer(scene, wake);
            return false;
        }
        true
    }

    /// What came while the decision was computed is answered as far as it can be while the transaction is under way.
    fn answer_meanwhile(&mut self, scene: &mut Scene) {
        let (here, moment) = (Place::Coordinator(self.at), self.clock.moment(scene.now));
        let Some(leading) = &mut self.leading else { return };
        for incoming in std::mem::take(&mut leading.inbox) {
            let finding = leading.take_in_meanwhile(scene, here, moment, incoming);
            finding.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
        }
    }

    fn listen_again(&mut self, scene: &mut Scene, number: u64) {
        let now = self.clock.read(scene.now);
        let at = self.clock.when(now + self.settings.heartbeat_ms, scene.now);
        let (coordinator, process) = (self.at, self.process);
        scene.at(at, Event::Listens { coordinator, process, number });
    }

    /// A heartbeat has gone by while a transaction is under way.
    pub fn listens(&mut self, scene: &mut Scene, number: u64) {
        let moment = self.clock.moment(scene.now);
        let Some(leading) = &mut self.leading else { return };
        if leading.under_way.as_ref().is_some_and(|under_way| under_way.number == number) {
            leading.cluster.listen(moment);
            self.listen_again(scene, number);
        }
    }

    fn set_timer(&mut self, scene: &mut Scene, wake: Millis) {
        let Some(leading) = &mut self.leading else { return };
        let wake = leading.checks.values().copied().fold(wake, Millis::min);
        if wake != leading.wake {
            leading.wake = wake;
            self.timers += 1;
            let at = self.clock.when(wake, scene.now);
            scene.at(at, Event::Wake(self.place(), self.process, self.timers));
        }
    }

    /// The transaction reaches the store.
    pub fn commits(&mut self, scene: &mut Scene, store: &mut Store, number: u64) {
        let (fails, unknown, cut) =
            (scene.draw.chance(self.disk.fails), scene.draw.chance(self.disk.unknown), self.cut_from_store);
        let done = scene.draw.chance(500);
        let lost = cut || store.is_away;
        let Some(leading) = &mut self.leading else { return };
        let Some(under_way) = leading.under_way.as_mut().filter(|u| u.number == number) else { return };
        let writes = &under_way.outbox.writes;
        let committed = if fails || lost || (unknown && !done) {
            Committed::No
        } else {
            match store.commit(leading.term, writes) {
                Ok(committed) => committed,
                Err(error) => return scene.violate("M3", format!("a map without its parent: {error}")),
            }
        };
        if committed == Committed::Yes {
            let term = leading.term;
            let findings = scene.oracles.committed(scene.now, term, writes, &store.records);
            scene.trace.event(scene.now, (6u8, term, writes.len()), || {
                format!("term {term} commits {}", words(writes))
            });
            findings.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
        }
        under_way.outcome = (!(unknown || lost)).then_some(committed);
        let back = scene.draw.around(100);
        scene.after(back, Event::Committed { coordinator: self.at, process: self.process, number });
    }

    /// The coordinator hears how the transaction ended.
    pub fn committed(&mut self, scene: &mut Scene, store: &mut Store, number: u64) {
        let (leads, moment) = (self.leads(scene.now), self.clock.moment(scene.now));
        let (here, now) = (Place::Coordinator(self.at), moment.now);
        let Some(leading) = &mut self.leading else { return };
        let Some(under_way) = leading.under_way.take_if(|u| u.number == number) else { return };
        leading.cluster.listen(moment);
        match under_way.outcome {
            _ if !leads => {
                self.step_down(scene, store, "its session ended while a transaction was under way");
            }
            Some(Committed::Yes) => {
                leading.release(scene, here, &mut self.publisher, now, under_way.outbox);
                self.drive(scene);
            }
            Some(Committed::Deposed) => self.step_down(scene, store, "another leads"),
            Some(Committed::No) => self.step_down(scene, store, "a transaction has failed"),
            None => self.step_down(scene, store, "nobody knows how a transaction ended"),
        }
    }
}

/// A planted leader that believes to lead for ever.
fn believes() -> bool {
    planted::is(Planted::C4) || planted::is(Planted::O10)
}

/// A name for what is about to be committed.
pub fn transaction(scene: &mut Scene) -> TransactionId {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&scene.draw.bits().to_be_bytes());
    bytes[8..16].copy_from_slice(&scene.draw.bits().to_be_bytes());
    TransactionId(bytes)
}

/// The node behind an address of the run; none where the address was lost.
pub fn node_at(address: &str) -> Option<usize> {
    let digits = address.trim_start_matches("node-").split(':').next();
    digits.and_then(|digits| digits.parse().ok())
}
