//! The thread of a node: it has the machines, and hands them what comes, one by one.
//!
//! | what comes | where it goes |
//! |---|---|
//! | a message | buffer, holder, the leader of the slot, the log of decisions (`messages.rs`) |
//! | what a client wants | buffer, leader, holder; or a node that has them (`clients.rs`) |
//! | what the threads have done | the machine that ordered it (`done.rs`) |
//! | effects | the threads, the transport, the clients (`effects.rs`) |
//!
//! What a machine sends to its own node waits in a queue here, and comes after the effects before it.

mod clients;
mod done;
mod effects;
mod messages;
mod plans;
mod stored_soon;

use super::hears::Hears;
use super::inbox::{Done, Event, Note, Waiting};
use super::reading::Reading;
use super::shared::Shared;
use super::storing::Storing;
use super::transport::Transport;
use super::{CloseAtEnd, NodeConfig, NodeSettings};
use crate::limits;
use crate::log::DecisionLog;
use crate::objects::Offloading;
use clients::Questions;
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_service::shuffle::PoolSlot;
use partage_service::shuffle::buffer::{self, Attempt, Buffer};
use partage_service::shuffle::holder::{self, Holder};
use partage_service::shuffle::leader::{self, Leader};
use partage_service::shuffle::message::Message;
use partage_service::shuffle::plan::Plan;
use partage_service::shuffle::pool::PoolMap;
use plans::Plans;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use stored_soon::StoredSoon;

/// The node cannot go on.
pub(super) struct Ends(pub(super) String);

pub(super) type Result<T = ()> = std::result::Result<T, Ends>;

/// The machines of a node, and what they are driven with.
pub(super) struct EventLoop {
    /// The first field: it goes before `storing` and `reading` wait for their threads.
    pub(super) _closes: CloseAtEnd,
    pub(super) name: NodeId,
    pub(super) config: NodeConfig,
    pub(super) shared: Arc<Shared>,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) map: Arc<PoolMap>,
    pub(super) buffer: Buffer,
    pub(super) holder: Holder,
    pub(super) leaders: BTreeMap<PoolSlot, Leader>,
    /// Slots that it is to lead by the map, and may not.
    pub(super) not_led: Vec<PoolSlot>,
    /// A lead waits until its epoch is on disk.
    pub(super) leads_wait: bool,
    pub(super) decisions: DecisionLog,
    /// It goes before `reading` waits for threads that the object store holds up.
    pub(super) offloading: Option<Offloading>,
    pub(super) storing: Storing,
    pub(super) reading: Reading,
    pub(super) local: VecDeque<Message>,
    /// Where the client of each attempt listens.
    pub(super) attempts: BTreeMap<Attempt, Hears<Note>>,
    /// Since when the client of an attempt waits for its acknowledgement.
    pub(super) ending: BTreeMap<Attempt, Millis>,
    pub(super) questions: Questions,
    pub(super) stored_soon: StoredSoon,
    /// Until when new attempts are refused, as the disk was full.
    pub(super) full_until: Millis,
    pub(super) plans: Plans,
    /// When the machines were called with a tick last.
    pub(super) ticked: Millis,
}

/// Room for plans.
pub(super) fn plans_of(settings: &NodeSettings) -> Plans {
    Plans::new(settings.plans, usize::try_from(settings.plan_bytes).unwrap_or(usize::MAX))
}

impl EventLoop {
    /// Runs until the node is closed, or cannot go on.
    pub(super) fn run(mut self) {
        if let Err(Ends(why)) = self.take_leads() {
            return self.shared.end(why);
        }
        loop {
            let wait = if self.local.is_empty() { self.wake_at().since(self.now()) } else { 0 };
            let Some(waiting) = self.shared.inbox.take(Duration::from_millis(wait)) else { return };
            if let Err(Ends(why)) = self.turn(waiting).and_then(|()| self.tick()) {
                return self.shared.end(why);
            }
            self.tell_status();
        }
    }

    /// What waits, and some of what is bulk, one piece at a time: before each goes what is short, also what has come since, and
    /// shuffles of which little comes go before the next piece of a flood.
    fn turn(&mut self, mut waiting: Waiting) -> Result {
        let mut bytes = 0;
        loop {
            self.short(waiting.done, waiting.short)?;
            let Some(event) = waiting.bulk else { return Ok(()) };
            // Events without records count too: the machines are to be called in time.
            bytes += event.bytes().max(limits::LEAST_OF_BULK);
            self.event(event)?;
            if bytes >= limits::BULK_AT_ONCE {
                return Ok(());
            }
            waiting = self.shared.inbox.take_more();
        }
    }

    fn short(&mut self, done: VecDeque<Done>, short: VecDeque<Event>) -> Result {
        done.into_iter().try_for_each(|done| self.done(done))?;
        short.into_iter().try_for_each(|event| self.event(event))
    }

    pub(super) fn now(&self) -> Millis {
        self.shared.clock.now()
    }

    fn wake_at(&self) -> Millis {
        let leaders = self.leaders.values().map(Leader::wake_at).min().unwrap_or(Millis::NEVER);
        let machines = self.buffer.wake_at().min(self.holder.wake_at()).min(leaders);
        let plans = self.questions.asks_at(self.config.settings.machines.resend_ms);
        let machines = machines.min(plans).min(self.questions.reach_look_at());
        machines.max(self.ticked + limits::TICK_MS).min(self.now() + self.config.settings.question_ms)
    }

    fn event(&mut self, event: Event) -> Result {
        match event {
            Event::Packet(from, packet) => self.packet(from, packet)?,
            Event::Map(map) => self.take_map(map)?,
            Event::Input(attempt, input, client) => self.input(attempt, input, client)?,
            Event::Request(shuffle, request, client) => self.client_asks(shuffle, request, client)?,
            Event::Read(node, slice, number, client) => self.client_reads(node, slice, (number, client))?,
            Event::Seek(node, seek, number, client) => self.client_seeks(node, seek, (number, client))?,
            Event::Status(shuffle, client) => self.client_looks(shuffle, client),
            Event::MakeRoom(stored) => self.holder(holder::Event::MakeRoom(stored))?,
            Event::Overviews(client) => {
                let now = self.now();
                let overviews = self.leaders.values().flat_map(|leader| leader.overviews(now)).collect();
                // One that has gone needs none.
                let _ = client.send(overviews);
            }
            Event::LoadBegins(slot, client) => {
                self.begin_load(slot)?;
                let _ = client.send(());
            }
            Event::SlotDeleted(slot) => self.delete_slot(slot)?,
            Event::HasSlot(slot, client) => {
                let _ = client.send(self.holder.has_slot(slot));
            }
            Event::HasSlots(client) => {
                let _ = client.send(self.holder.has_slots());
            }
        }
        self.hand_out_local()
    }

    fn tick(&mut self) -> Result {
        let now = self.now();
        if now.since(self.ticked) < limits::TICK_MS {
            return Ok(());
        }
        self.ticked = now;
        if now >= self.buffer.wake_at() {
            self.buffer(buffer::Event::Tick)?;
        }
        if now >= self.holder.wake_at() {
            self.holder(holder::Event::Tick)?;
        }
        let due = self.leaders.iter().filter(|(_, leader)| now >= leader.wake_at());
        let due: Vec<PoolSlot> = due.map(|(slot, _)| *slot).collect();
        due.into_iter().try_for_each(|slot| self.leader(slot, leader::Event::Tick))?;
        self.questions.forget_old(now, self.config.settings.question_ms);
        self.questions.give_up_unreachable(now, |node| self.transport.is_unreachable(node));
        self.ask_leaders_for_plans(now);
        self.hand_out_local()
    }

    /// What machines have sent to this node.
    pub(super) fn hand_out_local(&mut self) -> Result {
        for _ in 0..limits::LOCAL_AT_ONCE {
            let Some(message) = self.local.pop_front() else { break };
            self.message(self.name.clone(), message)?;
        }
        Ok(())
    }

    /// An overtaken map is dropped.
    fn take_map(&mut self, map: Arc<PoolMap>) -> Result {
        if map.generation <= self.map.generation {
            return Ok(());
        }
        self.map = Arc::clone(&map);
        self.shared.set_map(Arc::clone(&map));
        self.buffer(buffer::Event::Map(Arc::clone(&map)))?;
        self.holder(holder::Event::Map(Arc::clone(&map)))?;
        let slots: Vec<PoolSlot> = self.leaders.keys().copied().collect();
        slots.into_iter().try_for_each(|slot| self.leader(slot, leader::Event::Map(Arc::clone(&map))))?;
        self.take_leads()
    }

    /// It leads what the map says, under the epochs of the map.
    pub(super) fn take_leads(&mut self) -> Result {
        let (map, me) = (Arc::clone(&self.map), self.name.clone());
        let leads = |slot: PoolSlot, leader: &Leader| {
            let place = map.place(slot);
            place.is_some_and(|place| place.epoch == leader.epoch() && place.live.first() == Some(&me))
        };
        let ended = self.leaders.iter().filter(|(slot, leader)| !leads(**slot, leader));
        let ended: Vec<PoolSlot> = ended.map(|(slot, _)| *slot).collect();
        ended.into_iter().try_for_each(|slot| self.drop_leader(slot))?;
        self.leads_wait = false;
        let (now, mut not_led) = (self.now(), Vec::new());
        for (slot, place) in (0..).map(PoolSlot).zip(&map.places) {
            if place.live.first() != Some(&me) || self.leaders.contains_key(&slot) {
                continue;
            }
            if !self.decisions.may_lead(slot, place.epoch) {
                not_led.push(slot);
                continue;
            }
            let copy = self.decisions.lead(slot, place.epoch).map_err(|error| Ends(error.to_string()))?;
            // Until its epoch is on disk it leads nothing: a report of the log comes then.
            let Some(copy) = copy else {
                self.leads_wait = true;
                continue;
            };
            let machines = self.config.settings.machines.clone();
            self.leaders.insert(slot, Leader::begin(now, slot, machines, Arc::clone(&map), copy));
        }
        self.not_led = not_led;
        Ok(())
    }

    /// Who waits for it hears that it leads no more.
    pub(super) fn drop_leader(&mut self, slot: PoolSlot) -> Result {
        self.leader(slot, leader::Event::Deposed)?;
        self.leaders.remove(&slot);
        Ok(())
    }

    fn tell_status(&self) {
        let is_full = self.now() < self.full_until || self.shared.is_at_limit();
        let reading = self.reading.uses();
        self.shared.tell(|status| {
            status.is_full = is_full;
            status.buffered_bytes = self.buffer.bytes();
            status.buffer_memory = self.buffer.memory();
            status.buffer = self.buffer.counts();
            status.storing_bytes = self.stored_soon.memory();
            status.reading_bytes = reading.memory;
            status.reading_peak_bytes = reading.peak;
            status.sorted_file_bytes = reading.files;
            status.unfit = self.decisions.unfit().collect();
            status.not_led.clone_from(&self.not_led);
        });
    }

    /// Of a shuffle whose state was heard.
    pub(super) fn keep_plan(&mut self, plan: &Arc<Plan>) {
        self.plans.keep(plan);
    }
}
