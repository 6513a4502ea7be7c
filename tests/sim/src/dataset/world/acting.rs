//! What drives a node: its session, its mirror, its loads, and whatever its mind says.

use super::{CALM_MS, Happening, Held, Millis, REFRESH_MS, STORM_MS, TTL_MS, World, oracle};
use crate::dataset::store;
use partage_service::dataset::VersionName;
use partage_service::dataset::node::{Effect, Event, Key, Value, may_retire};
use std::collections::{BTreeSet, VecDeque};

/// So often may one event have the driver answer at the same instant: some versions, each of which goes or is used.
const MOST_ANSWERS: usize = 100;

impl World {
    /// A node hears of something.
    pub(super) fn tell(&mut self, node: usize, event: Event) -> Result<(), String> {
        let now = Millis(self.now);
        let Some(mind) = &mut self.machines[node].mind else { return Ok(()) };
        let effects = mind.take(now, event);
        self.act(node, effects)
    }

    /// Does what a mind says, tells it at once what comes of that, as the driver does, and wakes it when it wants to be woken.
    pub(super) fn act(&mut self, node: usize, effects: Vec<Effect>) -> Result<(), String> {
        let mut effects = VecDeque::from(effects);
        let mut answers = 0;
        while let Some(effect) = effects.pop_front() {
            let Some(effect) = self.hold(node, effect) else { continue };
            self.say(node)?;
            let Some(event) = self.act_one(node, effect)? else { continue };
            answers += 1;
            if answers > MOST_ANSWERS {
                return Err(format!("{} does not rest: {event:?}", self.machines[node].address));
            }
            let now = Millis(self.now);
            let told = self.machines[node].mind.as_mut().map(|mind| mind.take(now, event));
            effects.extend(told.into_iter().flatten());
        }
        self.say(node)?;
        oracle::follows(&self.machines[node], &self.dataset)?;
        self.give_up(node)?;
        let machine = &self.machines[node];
        let Some(mind) = &machine.mind else { return Ok(()) };
        let (life, at) = (machine.life, mind.deadline());
        if at.0 <= STORM_MS + CALM_MS {
            self.later(at.0.saturating_sub(self.now).max(1), Happening::Tick(node, life));
        }
        Ok(())
    }

    /// The driver takes up what is to be published of partitions; returns any other effect.
    fn hold(&mut self, node: usize, effect: Effect) -> Option<Effect> {
        let machine = &mut self.machines[node];
        match effect {
            Effect::Publish(Key::Partition(_, version, partition), Value::Layout(layout)) => {
                machine.hold(version, partition, Some(layout));
            }
            Effect::Withdraw(Key::Partition(_, version, partition)) => machine.hold(version, partition, None),
            other => return Some(other),
        }
        None
    }

    /// The driver publishes what has changed: each version once, however many of its partitions have.
    fn say(&mut self, node: usize) -> Result<(), String> {
        for version in std::mem::take(&mut self.machines[node].unsaid) {
            oracle::published(&self.machines[node], &version)?;
            let held = self.machines[node].held.get(&version).cloned();
            if let Some(session) = self.machines[node].session {
                self.later(20, Happening::WriteHeld(node, session, version, held));
            }
        }
        Ok(())
    }

    /// Returns what the driver tells the mind of it before anything else.
    fn act_one(&mut self, node: usize, effect: Effect) -> Result<Option<Event>, String> {
        let (now, life) = (self.now, self.machines[node].life);
        match effect {
            Effect::Publish(key, value) => self.send(node, key, Some(value)),
            Effect::Withdraw(key) => self.send(node, key, None),
            Effect::Sit(seat) => self.machines[node].disk.seat = Some(seat),
            Effect::Neighbours(_) | Effect::Drop(_) => {}
            Effect::Look => self.soon(5, 500, Happening::Look(node, life)),
            Effect::Inspect(dataset, version) => {
                let found = match self.source.get(&version) {
                    _ if self.now < self.source_away => Err("the source is away".to_owned()),
                    Some(written) if written.is_deleted => Err("it is not at the source".to_owned()),
                    Some(written) if !written.is_rubbish => Ok(written.layout),
                    _ => Err("part-0: byte 0: not a SequenceFile".to_owned()),
                };
                self.soon(5, 300, Happening::Node(node, life, Event::Inspected(dataset, version, found)));
            }
            Effect::Load { version, partitions, .. } => self.load(node, version, partitions),
            Effect::Cancel(_, version) => *self.machines[node].loads.entry(version).or_default() += 1,
            Effect::Show(shown) => self.machines[node].show(*shown, now),
            Effect::Remember(known) => {
                let machine = &mut self.machines[node];
                let has_given_up = std::mem::take(&mut machine.has_given_up);
                let disk = &mut machine.disk;
                if !has_given_up {
                    oracle::remembered(disk.served.as_ref(), known.served.as_ref())?;
                }
                (disk.served, disk.pin, disk.slots) = (known.served, known.pin, known.slots);
            }
            Effect::Upgrade { dataset, version, .. } => {
                self.outcome.upgrades += 1;
                let machine = &mut self.machines[node];
                let is_resumed =
                    machine.catalogue.serving.is_none() && now >= machine.up_since + super::RESUME_MS;
                if !is_resumed {
                    oracle::upgraded(machine, &dataset, &version)?;
                }
                oracle::is_own(machine, &dataset, &version, self.source.get(&version).map(|w| w.layout))?;
                machine.catalogue.serving = Some(version);
            }
            Effect::Retire { dataset, version, unused_since } => {
                let used = self.retire(node, &version, unused_since)?;
                return Ok(Some(match used {
                    Some(at) => Event::Used(dataset, version, at),
                    None => Event::Retired(dataset, version),
                }));
            }
            Effect::LetGo { version, partitions, .. } => {
                self.outcome.let_go += partitions.len() as u64;
                for partition in partitions {
                    oracle::let_go(&self.machines, node, (&version, partition), now)?;
                    if let Some((_, here)) = self.machines[node].disk.versions.get_mut(&version) {
                        here.remove(&partition);
                    }
                }
            }
            Effect::Delete(_, version) => {
                self.machines[node].disk.versions.remove(&version);
            }
        }
        Ok(None)
    }

    /// What a node served in an earlier life it may give up only when it is lost: clients then get an earlier version
    /// rather than nothing.
    fn give_up(&mut self, node: usize) -> Result<(), String> {
        let machine = &self.machines[node];
        let state = machine.mind.as_ref().and_then(|mind| mind.dataset(&self.dataset));
        let Some(served) =
            machine.disk.served.as_ref().filter(|_| state.is_some_and(|s| s.served().is_none()))
        else {
            return Ok(());
        };
        if !machine.has_given_up && !self.is_lost(node, &served.version) {
            return Err(format!("S14: {} gives up {served:?}, which is not lost", machine.address));
        }
        self.machines[node].has_given_up = true;
        self.oracle.forget(node);
        Ok(())
    }

    /// Whether a version is deleted at the source, and no node that this one can see has any of it.
    fn is_lost(&self, node: usize, version: &VersionName) -> bool {
        let machine = &self.machines[node];
        let of_it = |key: &Key| matches!(key, Key::Partition(_, name, _) if name == version);
        let is_deleted = self.source.get(version).is_some_and(|written| written.is_deleted);
        let is_here = machine.disk.versions.get(version).is_some_and(|(_, here)| !here.is_empty());
        is_deleted && !is_here && !machine.seen.keys().any(|(_, key)| of_it(key))
    }

    /// When the version was last used, if it must not go.
    fn retire(
        &mut self,
        node: usize,
        version: &VersionName,
        unused_since: Millis,
    ) -> Result<Option<Millis>, String> {
        let now = self.now;
        let machine = &mut self.machines[node];
        let Some(entry) = machine.catalogue.shown.get(version) else { return Ok(None) };
        let readers = machine.catalogue.in_flight.get(version).copied().unwrap_or_default();
        if !may_retire(readers, Millis(entry.last_request), unused_since) {
            let last = if readers > 0 { now } else { entry.last_request };
            return Ok(Some(Millis(last)));
        }
        oracle::retired(machine, version, now)?;
        machine.catalogue.shown.remove(version);
        self.outcome.retired += 1;
        Ok(None)
    }

    fn load(&mut self, node: usize, version: VersionName, partitions: BTreeSet<u32>) {
        let life = self.machines[node].life;
        let load = *self.machines[node].loads.entry(version.clone()).or_default();
        let mut after = 0;
        for partition in partitions {
            after += self.draw.around(700);
            self.later(after, Happening::Loaded(node, life, load, version.clone(), partition));
        }
    }

    pub(super) fn loaded(
        &mut self,
        node: usize,
        life: u64,
        load: u64,
        version: VersionName,
        partition: u32,
    ) -> Result<(), String> {
        let machine = &mut self.machines[node];
        let is_over = machine.life != life || machine.loads.get(&version) != Some(&load);
        let Some(written) = self.source.get(&version).filter(|_| !is_over) else { return Ok(()) };
        let failure = match written.bad {
            _ if self.now < self.source_away => Some("the source is away".to_owned()),
            _ if written.is_deleted => Some("it is not at the source".to_owned()),
            Some(bad) if bad == partition => Some(format!("part-{bad}: byte 17: no checksum")),
            _ => None,
        };
        let dataset = self.dataset.clone();
        if let Some(reason) = failure {
            machine.loads.insert(version.clone(), load + 1);
            return self.tell(node, Event::LoadFailed(dataset, version, reason));
        }
        let held = machine.disk.versions.entry(version.clone()).or_insert((written.layout, BTreeSet::new()));
        held.1.insert(partition);
        self.tell(node, Event::Ready(dataset, version, partition))
    }

    pub(super) fn open_session(&mut self, node: usize, life: u64) -> Result<(), String> {
        if self.machines[node].life != life {
            return Ok(());
        }
        if self.is_deaf(node) {
            self.soon(200, 1_000, Happening::OpenSession(node, life));
            return Ok(());
        }
        self.store.expire(self.now);
        let session = self.store.open(self.now + TTL_MS);
        let machine = &mut self.machines[node];
        (machine.session, machine.believes) = (Some(session), self.now + TTL_MS);
        self.later(TTL_MS / 3, Happening::Renew(node, life, session));
        if self.machines[node].cursor.is_none() {
            self.soon(5, 500, Happening::Deliver(node, life));
        }
        self.tell(node, Event::Session)
    }

    pub(super) fn renew(&mut self, node: usize, life: u64, session: u64) -> Result<(), String> {
        let machine = &mut self.machines[node];
        if machine.life != life || machine.session != Some(session) {
            return Ok(());
        }
        let is_deaf = self.is_deaf(node);
        self.store.expire(self.now);
        let is_there = is_deaf || self.store.renew(session, self.now + TTL_MS);
        let machine = &mut self.machines[node];
        if is_there && self.now < machine.believes {
            if !is_deaf {
                machine.believes = self.now + TTL_MS;
            }
            self.later(TTL_MS / 3, Happening::Renew(node, life, session));
            return Ok(());
        }
        machine.session = None;
        self.soon(10, 500, Happening::OpenSession(node, life));
        self.tell(node, Event::SessionLost)
    }

    /// What a node publishes is on its way to the store.
    fn send(&mut self, node: usize, key: Key, value: Option<Value>) {
        if let Some(session) = self.machines[node].session {
            // In order: the queue keeps what is due at one time in the order in which it came.
            self.later(20, Happening::Write(node, session, key, value));
        }
    }

    pub(super) fn write(&mut self, node: usize, session: u64, key: Key, value: Option<Value>) {
        if self.machines[node].session != Some(session) {
            return;
        }
        self.store.expire(self.now);
        let is_deaf = self.is_deaf(node);
        if is_deaf {
            // It is tried again until the session is over, and nothing of this session overtakes it: all wait alike.
            let again = self.store_away.max(self.deaf[node]) + 20 - self.now;
            return self.later(again, Happening::Write(node, session, key, value));
        }
        let named = (self.machines[node].address.clone(), key);
        self.store.write(session, named, value);
    }

    /// As [`World::write`], of all that is published of a version.
    pub(super) fn write_held(&mut self, node: usize, session: u64, version: VersionName, held: Option<Held>) {
        if self.machines[node].session != Some(session) {
            return;
        }
        self.store.expire(self.now);
        if self.is_deaf(node) {
            let again = self.store_away.max(self.deaf[node]) + 20 - self.now;
            return self.later(again, Happening::WriteHeld(node, session, version, held));
        }
        let (address, dataset) = (self.machines[node].address.clone(), self.dataset.clone());
        let named =
            |partition| (address.clone(), Key::Partition(dataset.clone(), version.clone(), partition));
        self.store.write_held(session, named, held);
    }

    /// The mirror of a node gets what it lacks, now and then all of it.
    pub(super) fn deliver(&mut self, node: usize, life: u64) -> Result<(), String> {
        if self.machines[node].life != life {
            return Ok(());
        }
        let wait = if self.is_calm { 300 } else { self.draw.around(300) };
        self.later(wait.max(5), Happening::Deliver(node, life));
        if self.is_deaf(node) {
            return Ok(());
        }
        self.store.expire(self.now);
        let end = self.store.end_of_log();
        let cursor = self.machines[node].cursor.filter(|_| !self.draw.chance(20));
        let is_whole = cursor.is_none();
        let changes = match cursor {
            Some(from) => self.store.since(from, end).to_vec(),
            None => self.store.content(),
        };
        let machine = &mut self.machines[node];
        machine.cursor = Some(end);
        machine.see(is_whole, &changes, self.now);
        if changes.is_empty() && !is_whole {
            return Ok(());
        }
        let news = changes.iter().map(store::news).collect();
        self.tell(node, Event::Mirror { is_whole, news })
    }

    pub(super) fn refresh(&mut self, node: usize, life: u64) -> Result<(), String> {
        if self.machines[node].life != life {
            return Ok(());
        }
        self.soon(REFRESH_MS.0, REFRESH_MS.1, Happening::Refresh(node, life));
        self.look(node, life)
    }

    /// A node looks at the source.
    pub(super) fn look(&mut self, node: usize, life: u64) -> Result<(), String> {
        if self.machines[node].life != life || self.now < self.source_away {
            return Ok(());
        }
        self.tell_settings(node);
        let versions = self.listed();
        self.tell(node, Event::Listed(self.dataset.clone(), versions))
    }
}
