//! What processes do: machines are called, their effects carried out, disks sync, processes start.

use super::{Happening, World};
use crate::clock::{Clock, MS, SECOND, True};
use crate::replication::clients::Asked;
use crate::replication::node::{Disk, Local, Report};
use partage_core::base::id::{Epoch, Incarnation, PlacementId};
use partage_service::table::replication::{
    Answer, Consistency, Effect, Event, Failed, LogPosition, LogWrite, Order, Replica, Request,
};
use std::collections::BTreeMap;

/// How soon a write looks again whether a copy leaves room for it.
const HELD: True = 5 * MS;

impl World {
    /// A process of that node starts, with what its disk has.
    pub(super) fn start(&mut self, node: usize) -> Result<(), String> {
        if self.nodes[node].is_up {
            return Ok(());
        }
        let clock = Clock::drawn(&mut self.draw, self.now);
        let at = &mut self.nodes[node];
        at.is_up = true;
        at.clock = clock;
        at.incarnation = at.incarnation.next();
        let stored: Vec<_> = at.disks.iter().map(|(placement, disk)| (*placement, disk.shard)).collect();
        let life = at.incarnation;
        for (placement, shard) in stored {
            self.open(node, placement, shard, false);
        }
        self.after(0, Happening::Beat { node, life, again: true });
        // The first process of all has its orders at once.
        if life == Incarnation(1) {
            let orders = self.coordinator.orders(node);
            return self.take_orders(node, self.coordinator.generation, orders);
        }
        Ok(())
    }

    fn open(&mut self, node: usize, placement: PlacementId, shard: usize, is_new: bool) {
        let settings = self.weather.settings;
        let flush = self.draw.around(self.weather.flush);
        let at = &mut self.nodes[node];
        let now = at.clock.read(self.now);
        let disk = at.disks.entry(placement).or_insert_with(|| Disk { shard, ..Disk::default() });
        let name = (placement, at.incarnation);
        let machine = Replica::recover(name, settings, disk.stored.clone(), now, is_new);
        let (engine, report) = (disk.engine.clone(), Report::default());
        let local = Local {
            shard,
            machine,
            engine,
            report,
            published: None,
            silent_at: 0,
            is_syncing: false,
            outgoing: BTreeMap::new(),
            incoming: None,
            tick_at: True::MAX,
        };
        at.replicas.insert(placement, local);
        let life = at.incarnation;
        self.places.insert(placement, (node, shard));
        self.after(flush, Happening::Flush { node, life, placement });
    }

    pub(super) fn take_orders(
        &mut self,
        node: usize,
        generation: u64,
        orders: Vec<(usize, Order)>,
    ) -> Result<(), String> {
        let at = &mut self.nodes[node];
        if generation < at.orders {
            return Ok(());
        }
        at.orders = generation;
        let mine = super::super::coordinator::name(node);
        let mut kept = Vec::new();
        for (shard, order) in orders {
            for peer in order.peers.iter().filter(|peer| peer.node == mine) {
                kept.push(peer.placement);
                if !self.nodes[node].replicas.contains_key(&peer.placement) {
                    self.open(node, peer.placement, shard, true);
                }
                self.handle(node, peer.placement, Event::Order(order.clone()))?;
            }
        }
        let at = &mut self.nodes[node];
        at.replicas.retain(|placement, _| kept.contains(placement));
        at.disks.retain(|placement, _| kept.contains(placement));
        Ok(())
    }

    /// Calls a machine, and carries out what it says.
    pub(super) fn handle(&mut self, node: usize, placement: PlacementId, event: Event) -> Result<(), String> {
        let at = &mut self.nodes[node];
        let now = at.clock.read(self.now);
        let Some(local) = at.replicas.get_mut(&placement) else { return Ok(()) };
        let effects = local.machine.handle(now, event);
        // Of two options the least is none.
        local.published = local.published.min(local.machine.reads_until());
        for effect in effects {
            self.carry_out(node, placement, effect)?;
            self.direct_reads_are_fresh(node)?;
        }
        if let Some(local) = self.nodes[node].replicas.get_mut(&placement) {
            local.published = local.machine.reads_until();
            if local.machine.status().leads.is_none() {
                local.outgoing.clear();
            }
        }
        self.wake(node, placement);
        Ok(())
    }

    fn wake(&mut self, node: usize, placement: PlacementId) {
        let at = &mut self.nodes[node];
        let Some(local) = at.replicas.get_mut(&placement) else { return };
        let when = at.clock.when(local.machine.wake_at(), self.now);
        if when == True::MAX || (local.tick_at > self.now && local.tick_at <= when) {
            return;
        }
        let when = when.max(self.now + MS / 5);
        local.tick_at = when;
        let life = at.incarnation;
        self.after(when - self.now, Happening::Tick { node, life, placement });
    }

    pub(super) fn tick(
        &mut self,
        node: usize,
        life: Incarnation,
        placement: PlacementId,
    ) -> Result<(), String> {
        if self.nodes[node].incarnation != life {
            return Ok(());
        }
        if let Some(local) = self.nodes[node].replicas.get_mut(&placement) {
            local.tick_at = True::MAX;
        }
        self.handle(node, placement, Event::Tick)
    }

    fn carry_out(&mut self, node: usize, placement: PlacementId, effect: Effect) -> Result<(), String> {
        let at = &mut self.nodes[node];
        let life = at.incarnation;
        let Some(local) = at.replicas.get_mut(&placement) else { return Ok(()) };
        let shard = local.shard;
        match effect {
            Effect::Write(number, write) => self.write(node, placement, number, write),
            Effect::Send(to, message) => {
                if let Some((other, _)) = self.places.get(&to).copied() {
                    self.send(node, other, Happening::Deliver { node: other, from: placement, to, message });
                }
            }
            Effect::Apply(entries) => {
                for entry in &entries {
                    self.oracle.applied(shard, entry)?;
                    local.engine.apply(entry);
                }
                // That they are committed is noted now and then.
                if let (Some(last), Some(disk)) = (entries.last(), at.disks.get_mut(&placement))
                    && self.draw.chance(300)
                {
                    disk.stored.committed = last.position.index;
                }
            }
            Effect::Answer(request, answer) => return self.answer(node, placement, request, answer),
            Effect::Wish(wish) => {
                if let Some(reader) = wish.in_sync.iter().find(|one| self.coordinator.is_reader(shard, **one))
                {
                    return Err(format!("D1: {placement} asks for the read replica {reader} to be in sync"));
                }
                local.report.wish = Some(wish);
                self.after(0, Happening::Beat { node, life, again: false });
            }
            Effect::LeaderSilent(epoch) => {
                local.report.silent = Some(epoch);
                local.silent_at = self.now;
            }
            Effect::Began(epoch) if self.coordinator.is_reader(shard, placement) => {
                return Err(format!("D1: the read replica {placement} leads under {epoch}"));
            }
            Effect::Began(epoch) => return self.began(node, shard, epoch),
            Effect::Snapshot(to) => self.send_snapshot(node, placement, to),
            Effect::HeirIsReady(_) => {
                self.outcome.ready_heirs += 1;
                self.after(0, Happening::Beat { node, life, again: false });
            }
            Effect::TransferEnded(_) => {}
            Effect::Closed(epoch) => {
                return Err(format!("O8: {placement} closes in {epoch}, and nothing is split here"));
            }
            Effect::Damaged(damage) => return Err(format!("D1: {placement} is damaged: {damage}")),
        }
        Ok(())
    }

    fn write(&mut self, node: usize, placement: PlacementId, number: u64, write: LogWrite) {
        let Some(disk) = self.nodes[node].disks.get_mut(&placement) else { return };
        disk.waiting.push_back((number, write));
        self.sync(node, placement);
    }

    /// What waits is synced together, unless a sync is under way.
    fn sync(&mut self, node: usize, placement: PlacementId) {
        let hesitates = self.stopped.is_none() && self.draw.chance(self.weather.hesitates);
        let extra = if hesitates { self.draw.between(50, 1_000) * MS } else { 0 };
        let takes = self.draw.around(self.weather.sync);
        let at = &mut self.nodes[node];
        let held = at.hesitates.saturating_sub(self.now) + extra;
        let takes = at.slow.takes(self.now, takes);
        let (Some(disk), Some(local)) = (at.disks.get(&placement), at.replicas.get_mut(&placement)) else {
            return;
        };
        let (writes, life) = (disk.waiting.len(), at.incarnation);
        if writes > 0 && !local.is_syncing {
            local.is_syncing = true;
            self.after(held + takes, Happening::Synced { node, life, placement, writes });
        }
    }

    pub(super) fn synced(
        &mut self,
        node: usize,
        life: Incarnation,
        placement: PlacementId,
        writes: usize,
    ) -> Result<(), String> {
        let at = &mut self.nodes[node];
        let (Some(disk), Some(local)) = (at.disks.get_mut(&placement), at.replicas.get_mut(&placement))
        else {
            return Ok(());
        };
        if at.incarnation != life {
            return Ok(());
        }
        local.is_syncing = false;
        let last = disk.sync(writes);
        self.sync(node, placement);
        last.map_or(Ok(()), |last| self.handle(node, placement, Event::Synced(last)))
    }

    /// What was applied is stored, with its position.
    pub(super) fn flush(
        &mut self,
        node: usize,
        life: Incarnation,
        placement: PlacementId,
    ) -> Result<(), String> {
        let again = self.draw.around(self.weather.flush);
        let at = &mut self.nodes[node];
        let (Some(disk), Some(local)) = (at.disks.get_mut(&placement), at.replicas.get(&placement)) else {
            return Ok(());
        };
        if at.incarnation != life {
            return Ok(());
        }
        disk.engine = local.engine.clone();
        let position = disk.engine.at;
        disk.stored.flushed = position;
        self.after(again, Happening::Flush { node, life, placement });
        self.handle(node, placement, Event::Flushed(position))
    }

    /// A leader serves: no other may rely on its promises, in true time.
    fn began(&mut self, node: usize, shard: usize, epoch: Epoch) -> Result<(), String> {
        self.outcome.leaders.1 += 1;
        self.oracle.acts(shard, epoch)?;
        for (other, at) in self.nodes.iter().enumerate().filter(|(other, at)| *other != node && at.is_up) {
            let now = at.clock.read(self.now);
            for (placement, local) in at.replicas.iter().filter(|(_, local)| local.shard == shard) {
                let leads = local.machine.status().leads.filter(|leads| *leads < epoch);
                if let Some(leads) = leads.filter(|_| local.machine.may_rely(now)) {
                    let until = local.machine.relies_until();
                    return Err(format!(
                        "D2: {epoch} begins while {placement} on n{other} relies on promises under {leads} at {now} until {until:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// A request reaches a replica.
    pub(super) fn requested(
        &mut self,
        node: usize,
        placement: PlacementId,
        request: Request,
    ) -> Result<(), String> {
        let Some(operation) = self.operations.get(&request) else { return Ok(()) };
        let at = &self.nodes[node];
        let local = at.replicas.get(&placement);
        let room = local.and_then(|local| local.machine.write_room(at.clock.read(self.now)));
        if room == Some(0) && matches!(operation.asked, Asked::Change(_)) {
            self.outcome.slowed += 1;
            self.after(HELD, Happening::Request { node, placement, request });
            return Ok(());
        }
        let event = match operation.asked {
            Asked::Change(change) => Event::Write(vec![(request, change.encode())]),
            Asked::Read(_, consistency) => Event::Read(request, consistency, 0),
        };
        self.handle(node, placement, event)
    }

    fn answer(
        &mut self,
        node: usize,
        placement: PlacementId,
        request: Request,
        answer: Result<Answer, Failed>,
    ) -> Result<(), String> {
        let Some(operation) = self.operations.get(&request) else { return Ok(()) };
        let (shard, asked) = (operation.shard, operation.asked);
        let local = &self.nodes[node].replicas[&placement];
        let value = local.engine.value(asked.key());
        let leads = local.machine.status().leads;
        let is_reader = self.coordinator.is_reader(shard, placement);
        let is_weak = matches!(asked, Asked::Read(_, Consistency::Bounded(_) | Consistency::Any));
        if is_reader && answer.is_ok() {
            self.outcome.readers.0 += 1;
            if !is_weak {
                return Err(format!("D2: the read replica {placement} answers {asked:?}"));
            }
        }
        match (&answer, asked) {
            (Ok(Answer::Written(at)), _) => {
                let (disks, min) = (self.disks_with(shard, *at), self.weather.settings.min_in_sync);
                // A leader that goes on under a later epoch acknowledges what it appended under the last one. One that was
                // replaced acknowledges what the next one has committed, and does not say that it leads.
                if let Some(epoch) = leads {
                    self.oracle.acts(shard, epoch)?;
                } else {
                    self.outcome.outliving += 1;
                }
                self.oracle.acknowledges(shard, self.now, *at, disks, min)?;
            }
            (Ok(Answer::Read { applied, age_ms }), Asked::Read(_, consistency)) => {
                if local.engine.at.index != *applied {
                    return Err(format!("D1: {applied} is said to be applied, and {} is", local.engine.at));
                }
                match consistency {
                    Consistency::Linearizable => self.oracle.acts(shard, leads.unwrap_or_default())?,
                    Consistency::Bounded(bound) => self.oracle.reads(shard, self.now, *applied, bound)?,
                    Consistency::Any => {}
                }
                if let Some(age) = age_ms {
                    self.oracle.reads(shard, self.now, *applied, *age)?;
                }
            }
            _ => {}
        }
        // The answer may be lost with its connection.
        if !(self.stopped.is_none() && self.draw.chance(10)) {
            let delay = self.draw.around(self.weather.delay);
            let answer = answer.map(|answer| (answer, value));
            self.after(delay, Happening::Answered(request, answer));
        }
        Ok(())
    }

    /// How many disks have it, those of read replicas not counted: one that is one now has never been anything else.
    fn disks_with(&self, shard: usize, at: LogPosition) -> usize {
        let is_reader = |placement: &PlacementId| self.coordinator.is_reader(shard, *placement);
        let of_shard = self.places.iter().filter(|(one, (_, of))| *of == shard && !is_reader(one));
        of_shard.filter(|(placement, _)| self.disk(**placement).is_some_and(|disk| disk.has(at))).count()
    }

    /// A node beats, with what its replicas have to say.
    pub(super) fn beat(&mut self, node: usize, life: Incarnation, again: bool) {
        let rest = self.draw.between(200, 350) * MS;
        let at = &mut self.nodes[node];
        if at.incarnation != life {
            return;
        }
        let now = self.now;
        let mut reports = BTreeMap::new();
        for (placement, local) in &mut at.replicas {
            let silent = local.report.silent.filter(|_| now < local.silent_at + SECOND);
            let wish = local.report.wish.take();
            let heir = local.machine.status().heir_ready;
            reports.insert(*placement, Report { wish, silent, heir });
        }
        let asks = reports.values().any(|report| report.wish.is_some());
        let beat = super::super::coordinator::Beat { node, incarnation: life, reports };
        // A copy of a wish may come long after the coordinator has answered the first.
        if asks && self.stopped.is_none() && self.draw.chance(200) && !self.is_cut(node, self.nodes.len()) {
            let late = self.draw.between(100, 3_000) * MS;
            self.after(late, Happening::BeatArrives(beat.clone()));
        }
        self.send(node, self.nodes.len(), Happening::BeatArrives(beat));
        if again {
            self.after(rest, Happening::Beat { node, life, again });
        }
    }
}
