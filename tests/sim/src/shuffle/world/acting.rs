//! What nodes do: messages, disks, and the effects of machines.

use super::{Happening, SETTLES, World};
use crate::clock::{MS, True};
use crate::shuffle::disk::Write;
use crate::shuffle::job::Phase;
use crate::shuffle::node::Process;
use partage_core::base::id::{Epoch, Incarnation};
use partage_core::base::name::NodeId;
use partage_service::shuffle::head::BatchHead;
use partage_service::shuffle::log::Append;
use partage_service::shuffle::message::{Message, Word};
use partage_service::shuffle::ordered_records::OrderedRecords;
use partage_service::shuffle::record::{Batch, BatchKey, Segment};
use partage_service::shuffle::seek::{Found, Seek};
use partage_service::shuffle::{
    Durability, Failure, PoolSlot, ShuffleId, Writer, buffer, holder, leader, plan, reader,
};
use std::sync::Arc;

type Result<T = ()> = std::result::Result<T, String>;

impl World {
    pub(super) fn happens(&mut self, happening: Happening) -> Result {
        self.trace.event(self.now, std::mem::discriminant(&happening), || format!("{happening:?}"));
        match happening {
            Happening::Deliver { from, to, message } => return self.delivered(from, to, message),
            Happening::Called { node, life } => return self.called(node, life),
            Happening::Synced { node, life, number } => return self.synced(node, life, number),
            Happening::Written { node, life, key } => return self.written(node, life, key),
            Happening::Input { node, attempt, input } => {
                self.hears_input(node, attempt, &input);
                let event = buffer::Event::Client(attempt, input);
                return self.if_up(node, |world| world.buffer(node, event));
            }
            Happening::Ask { node, job, partition, number, slice } => {
                self.requests += 1;
                let own = self.requests;
                self.reads.insert(own, (job, partition, number));
                return self.if_up(node, |world| world.holder(node, holder::Event::Read(own, slice)));
            }
            Happening::Seek { node, job, partition, number, seek } => {
                self.requests += 1;
                let own = self.requests;
                self.reads.insert(own, (job, partition, number));
                return self.if_up(node, |world| world.holder(node, holder::Event::Seek(own, seek)));
            }
            Happening::Request { node, job, number, shuffle, request } => {
                self.requests += 1;
                let own = self.requests;
                self.asked.insert(own, (job, number));
                let event = leader::Event::Request(own, shuffle, request);
                return self.if_up(node, |world| world.leader(node, world.pool.map.home(shuffle), event));
            }
            Happening::Job(job) => {
                if self.stopped.is_some_and(|stopped| self.now > stopped + SETTLES) {
                    self.has_ended()?;
                }
                return self.job_acts(job);
            }
            Happening::Answered { job, number, answer } => return self.job_is_answered(job, number, answer),
            Happening::Stored { attempt, answer } => {
                let job = self.jobs.iter_mut().flatten().find(|job| job.shuffle == attempt.shuffle);
                job.into_iter().for_each(|job| job.stored(attempt, answer));
            }
            Happening::Taken { attempt, frame, is_full } => {
                let now = self.now;
                let job = self.jobs.iter_mut().flatten().find(|job| job.shuffle == attempt.shuffle);
                job.into_iter().for_each(|job| job.taken(attempt, frame, is_full, now));
            }
            Happening::Read { job, partition, number, answer } => {
                self.reader_is_answered(job, partition, reader::Event::Answer(number, answer));
            }
            Happening::Found { job, partition, number, found } => {
                self.reader_is_answered(job, partition, reader::Event::Found(number, found));
            }
            other => return self.changes(other),
        }
        Ok(())
    }

    /// What clients send to a process that is down or paused is lost: they send it again.
    fn if_up(&mut self, node: usize, acts: impl FnOnce(&mut World) -> Result) -> Result {
        if self.nodes[node].process.is_none() || self.now < self.nodes[node].paused {
            return Ok(());
        }
        acts(self)
    }

    pub(super) fn send(&mut self, from: usize, to: &NodeId, message: Message) {
        let Some(to) = self.node_of(to) else { return };
        let name = self.nodes[from].name.clone();
        if from == to {
            // The queues of a process may be long. Where nodes are only busy, they are in order, too: a question that comes
            // before its batch finds nothing. They are short where only bulk is lost.
            let is_in_order = self.weather.stored_late > 0 || self.weather.is_of_bulk_alone();
            let is_slow = !is_in_order && self.stopped.is_none() && self.draw.chance(100);
            let soon = self.draw.between(1, if is_slow { 100 * MS } else { 200 });
            return self.after(soon, Happening::Deliver { from: name, to, message });
        }
        if self.is_lost_with_bulk((from, to), &message) {
            return;
        }
        if self.is_cut(from, to) || (self.stopped.is_none() && self.draw.chance(self.weather.lost)) {
            return;
        }
        let copies = if self.stopped.is_none() && self.draw.chance(self.weather.doubled) { 2 } else { 1 };
        for _ in 0..copies {
            let is_late = self.stopped.is_none() && self.draw.chance(self.weather.late);
            let late = if is_late { self.draw.between(50, 2_500) * MS } else { 0 };
            let delay = self.draw.around(self.weather.delay) + late;
            let deliver = Happening::Deliver { from: name.clone(), to, message: message.clone() };
            self.after(delay, deliver);
        }
    }

    fn delivered(&mut self, from: NodeId, to: usize, message: Message) -> Result {
        if self.nodes[to].process.is_none() {
            return Ok(());
        }
        let paused = self.nodes[to].paused;
        if self.now < paused {
            self.at(paused, Happening::Deliver { from, to, message });
            return Ok(());
        }
        let home = |world: &World, shuffle: ShuffleId| world.pool.map.home(shuffle);
        match message {
            Message::Append(append) => self.appends(to, from, append),
            Message::Stored(key) => self.buffer(to, buffer::Event::Stored(from, key)),
            Message::Refused(key, how) => self.buffer(to, buffer::Event::Refused(key, how)),
            Message::NotStored(key, why) => self.buffer(to, buffer::Event::NotStored(from, key, why)),
            Message::Batch(batch) if self.finds_no_room() => {
                self.refuse_batch(to, &from, &batch);
                Ok(())
            }
            Message::Word(shuffle, ref word) => {
                self.buffer(to, buffer::Event::Word(shuffle, word.clone()))?;
                self.holder(to, holder::Event::Message(from, message))
            }
            Message::Appended(slot, ..) | Message::NotAppended(slot, ..) => {
                self.leader(to, slot, leader::Event::Message(from, message))
            }
            Message::Ask(shuffle)
            | Message::Sample(shuffle, ..)
            | Message::Marks { shuffle, .. }
            | Message::Divided(shuffle, ..)
            | Message::Counted(shuffle, ..)
            | Message::Lacks(shuffle, ..)
            | Message::Dropped(shuffle) => {
                self.leader(to, home(self, shuffle), leader::Event::Message(from, message))
            }
            message => self.holder(to, holder::Event::Message(from, message)),
        }
    }

    /// A replica takes decisions; it answers when they are synced.
    fn appends(&mut self, node: usize, from: NodeId, append: Append) -> Result {
        let (slot, epoch, kept) = (append.slot, append.epoch, self.weather.settings.ended_kept);
        let Some(process) = &mut self.nodes[node].process else { return Ok(()) };
        let known = process.map.place(slot).map_or(Epoch(0), |place| place.epoch);
        match process.replicas.take(append, known, kept) {
            Ok(_) => {
                let copy = process.replicas.copies.get(&slot).cloned().unwrap_or_default();
                self.writes(node, Write::Decisions(slot, copy, (from, epoch)));
            }
            Err(refused) => self.send(node, &from, Message::NotAppended(slot, epoch, refused)),
        }
        Ok(())
    }

    fn writes(&mut self, node: usize, write: Write) {
        self.writes += 1;
        let number = self.writes;
        let takes = self.draw.around(self.weather.sync);
        let one = &mut self.nodes[node];
        if let Write::Batch(batch) = &write {
            self.oracle.written(batch);
        }
        let unsynced = match &write {
            Write::Batch(batch) if batch.durability == Durability::Memory => Some(batch.clone()),
            _ => None,
        };
        one.disk.pending.push((number, write));
        let life = one.incarnation;
        let late = self.weather.stored_late;
        if late > 0 && matches!(one.disk.pending.last(), Some((_, Write::Batch(_)))) {
            let takes = self.draw.between(late / 2, late);
            return self.after(takes, Happening::Synced { node, life, number });
        }
        let Some(batch) = unsynced else {
            one.synced_at = one.synced_at.max(self.now + takes);
            let at = one.synced_at;
            return self.at(at, Happening::Synced { node, life, number });
        };
        let key = batch.key.clone();
        one.disk.write(batch);
        let (soon, later) = (self.draw.between(1, 200), self.draw.between(10, 5_000) * MS);
        self.after(soon, Happening::Written { node, life, key });
        // The system brings it to the disk when it likes.
        self.after(later, Happening::Synced { node, life, number });
    }

    /// Its holder says so at once, and does not wait for the sync.
    fn written(&mut self, node: usize, life: Incarnation, key: BatchKey) -> Result {
        let one = &self.nodes[node];
        if one.incarnation != life || one.process.is_none() || one.disk.get(&key).is_none() {
            return Ok(());
        }
        self.holder(node, holder::Event::Stored(key))
    }

    fn synced(&mut self, node: usize, life: Incarnation, number: u64) -> Result {
        let one = &mut self.nodes[node];
        if one.incarnation != life || one.process.is_none() {
            return Ok(());
        }
        match one.disk.sync(number) {
            // Its holder has said so when it was written.
            Some(Write::Batch(batch)) if batch.durability == Durability::Memory => Ok(()),
            Some(Write::Batch(batch)) => self.holder(node, holder::Event::Stored(batch.key.clone())),
            Some(Write::Decisions(slot, copy, (leader, epoch))) => {
                self.holder(node, holder::Event::Logged(slot, copy.epoch))?;
                self.send(node, &leader, Message::Appended(slot, epoch, copy.sequence));
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn called(&mut self, node: usize, life: Incarnation) -> Result {
        let now = self.millis();
        let one = &self.nodes[node];
        let Some(process) = one.process.as_ref().filter(|_| one.incarnation == life) else { return Ok(()) };
        let (paused, buffer, holder) = (one.paused, process.buffer.wake_at(), process.holder.wake_at());
        let leaders = process.leaders.iter().filter(|(_, leader)| now >= leader.wake_at());
        let leaders: Vec<PoolSlot> = leaders.map(|(slot, _)| *slot).collect();
        let next = self.draw.between(3, 25) * MS;
        self.at((self.now + next).max(paused), Happening::Called { node, life });
        self.are_stored_in_time(node)?;
        if self.now < paused || self.is_without_ticks() {
            return Ok(());
        }
        if now >= buffer {
            self.buffer(node, buffer::Event::Tick)?;
        }
        if now >= holder {
            self.holder(node, holder::Event::Tick)?;
        }
        leaders.into_iter().try_for_each(|slot| self.leader(node, slot, leader::Event::Tick))
    }

    fn process(&mut self, node: usize) -> Option<&mut Process> {
        self.nodes[node].process.as_mut()
    }

    pub(super) fn buffer(&mut self, node: usize, event: buffer::Event) -> Result {
        let now = self.millis();
        let Some(process) = self.process(node) else { return Ok(()) };
        let effects = process.buffer.handle(now, event);
        let (bytes, memory) = (process.buffer.bytes(), process.buffer.memory());
        // A frame has up to 12 records of 40 bytes, and beside a flood it has room; what is more than the limit may be alone, or
        // one division.
        let settings = &self.weather.settings;
        let batch = settings.chunk_bytes + 12 * 40;
        if bytes > settings.buffer_bytes + settings.division_batches * batch {
            return Err(format!("R1: a buffer has {bytes} bytes"));
        }
        if self.weather.floods && memory > settings.buffer_bytes {
            return Err(format!("R1: a buffer that is flooded has {memory} bytes in memory"));
        }
        for effect in effects {
            match effect {
                buffer::Effect::Send(to, message) => {
                    if let Message::Divided(shuffle, task, by, last) = &message {
                        self.outcome.divisions += 1;
                        let all = (&self.nodes[..], self.weather.replicas);
                        let writer = Writer::Division(*task, by.clone());
                        self.oracle.divided(*shuffle, &writer, last, all)?;
                    }
                    if let Message::Batch(batch) = &message {
                        self.check_sent(&to, batch)?;
                    }
                    self.send(node, &to, message);
                }
                buffer::Effect::Answer(attempt, answer) => {
                    match answer {
                        Ok(()) => {
                            self.outcome.stored += 1;
                            let home = self.pool.map.home(attempt.shuffle);
                            let all = (&self.nodes[..], self.weather.replicas);
                            self.oracle.acknowledged(attempt, home, all)?;
                        }
                        Err(_) => self.outcome.failed += 1,
                    }
                    self.hears_answer(attempt, answer.is_ok());
                    let delay = self.draw.around(self.weather.delay);
                    if !self.draw.chance(self.weather.lost) {
                        self.after(delay, Happening::Stored { attempt, answer });
                    }
                }
                buffer::Effect::Taken(attempt, frame) => {
                    self.outcome.taken += 1;
                    self.taken(attempt, frame, false);
                }
                buffer::Effect::Full(attempt, frame) => {
                    self.outcome.held_back += 1;
                    self.taken(attempt, frame, true);
                }
                buffer::Effect::ReadDivision(leader, division) => {
                    let segments = division.collect(&self.nodes[node].disk.batches);
                    self.buffer(node, buffer::Event::Divide(leader, division, segments))?;
                }
            }
        }
        Ok(())
    }

    fn taken(&mut self, attempt: buffer::Attempt, frame: u64, is_full: bool) {
        let delay = self.draw.around(self.weather.delay);
        self.after(delay, Happening::Taken { attempt, frame, is_full });
    }

    pub(super) fn leader(&mut self, node: usize, slot: PoolSlot, event: leader::Event) -> Result {
        let now = self.millis();
        let Some(process) = self.process(node) else { return Ok(()) };
        let effects = match process.leaders.get_mut(&slot) {
            Some(leader) => leader.handle(now, event),
            None => match event {
                leader::Event::Request(number, ..) => {
                    vec![leader::Effect::Answer(number, Err(leader::Failed::NotLeading))]
                }
                _ => Vec::new(),
            },
        };
        for effect in effects {
            match effect {
                leader::Effect::Send(to, message) => {
                    if let Message::Word(_, Word::Sealed(plan)) = &message {
                        self.oracle.decided(plan)?;
                    }
                    if let Message::Word(shuffle, Word::Failed(failure)) = &message {
                        self.may_fail(*shuffle, *failure)?;
                    }
                    if let Message::Word(shuffle, Word::Ended(_)) = &message {
                        self.may_end(*shuffle)?;
                    }
                    self.send(node, &to, message);
                }
                leader::Effect::Answer(number, answer) => {
                    let Some((job, asked)) = self.asked.remove(&number) else { continue };
                    let delay = self.draw.around(self.weather.delay);
                    if !self.draw.chance(self.weather.lost) {
                        self.after(delay, Happening::Answered { job, number: asked, answer });
                    }
                }
            }
        }
        Ok(())
    }

    /// D6: a shuffle fails only if it was in memory, and R machines have lost something of it.
    pub(in crate::shuffle) fn may_fail(&mut self, shuffle: ShuffleId, failure: Failure) -> Result {
        let all = (&self.nodes[..], self.weather.replicas);
        match failure {
            Failure::Lost => self.oracle.fails(shuffle, all),
            Failure::Differs { .. } => Err(format!("D6: {failure}")),
        }
    }

    /// D7: a leader says that a shuffle is over: no client wants it any more.
    fn may_end(&mut self, shuffle: ShuffleId) -> Result {
        let mut jobs = self.jobs.iter().flatten().filter(|job| job.shuffle == shuffle);
        if let Some(job) = jobs.find(|job| !matches!(job.phase, Phase::Deleting | Phase::Done)) {
            return Err(format!(
                "D7: job {} is {:?}, and its shuffle is said to be over",
                job.number, job.phase
            ));
        }
        self.oracle.ended(shuffle);
        Ok(())
    }

    pub(super) fn holder(&mut self, node: usize, event: holder::Event) -> Result {
        let now = self.millis();
        let Some(process) = self.process(node) else { return Ok(()) };
        let effects = process.holder.handle(now, event);
        effects.into_iter().try_for_each(|effect| self.carry_out(node, effect))
    }

    fn carry_out(&mut self, node: usize, effect: holder::Effect) -> Result {
        match effect {
            holder::Effect::Store(batch) => {
                let name = &self.nodes[node].name;
                if self.pool.only_buffers(name) {
                    return Err(format!("X6: {name} only buffers, and stores {:?}", batch.key));
                }
                self.writes(node, Write::Batch(batch));
            }
            holder::Effect::Send(to, message) => self.send(node, &to, message),
            holder::Effect::Pass(to, key) => {
                if self.finds_damage(node, |damaged| *damaged == key)? {
                    return Ok(());
                }
                if let Some(batch) = self.nodes[node].disk.get(&key).cloned() {
                    self.send(node, &to, Message::Batch(batch));
                }
            }
            holder::Effect::Divide(leader, division) => {
                if self.finds_damage_of(node, division.shuffle, division.slot)? {
                    return Ok(());
                }
                // About as much as it takes: a node knows how long batches are before it has read them.
                let segments = division.collect(&self.nodes[node].disk.batches);
                let memory = segments.iter().map(Segment::bytes).sum();
                return self.buffer(node, buffer::Event::DivisionOrdered(leader, division, memory));
            }
            holder::Effect::Count(leader, epoch, plan, slot) => {
                // A count reads heads: it does not find what is damaged in records.
                let is_damaged = self.nodes[node].disk.damaged_of(plan.shuffle, slot).is_some();
                let is_in_head = is_damaged && self.draw.chance(300);
                if is_in_head && self.finds_damage_of(node, plan.shuffle, slot)? {
                    return Ok(());
                }
                let mut counts = plan.counts_of(slot);
                let batches = &self.nodes[node].disk.batches;
                batches.iter().for_each(|batch| counts.add(&BatchHead::of(batch)));
                let message = Message::Counted(plan.shuffle, epoch, slot, counts.counts());
                self.send(node, &leader, message);
            }
            holder::Effect::Read(number, slice) => return self.reads(node, number, &slice),
            holder::Effect::Seek(number, seek) => return self.seeks(node, number, &seek),
            holder::Effect::NotRead(number, why) => self.answer_read(number, Err(why)),
            holder::Effect::DropSlot(slot) => return self.drops(node, slot),
            holder::Effect::DropShuffle(shuffle) => {
                self.nodes[node].disk.drop_if(|key| key.stream.shuffle == shuffle);
            }
            holder::Effect::Ready(slot, epoch) => {
                let delay = self.draw.around(self.weather.delay);
                self.after(delay, Happening::Ready { node, slot, epoch });
            }
            of_objects => return self.carry_out_of_objects(node, of_objects),
        }
        Ok(())
    }

    fn finds_damage(&mut self, node: usize, is_it: impl Fn(&BatchKey) -> bool) -> Result<bool> {
        let damaged = self.nodes[node].disk.damaged.iter().find(|key| is_it(key)).cloned();
        let Some(key) = damaged else { return Ok(false) };
        self.nodes[node].disk.forget(&key);
        self.holder(node, holder::Event::Damaged(key))?;
        Ok(true)
    }

    fn finds_damage_of(&mut self, node: usize, shuffle: ShuffleId, slot: PoolSlot) -> Result<bool> {
        match self.nodes[node].disk.damaged_of(shuffle, slot) {
            Some(key) => self.finds_damage(node, |damaged| *damaged == key),
            None => Ok(false),
        }
    }

    fn reads(&mut self, node: usize, number: u64, slice: &holder::Slice) -> Result {
        let records = self.in_order(node, (number, &slice.plan, slice.range))?;
        self.answer_read(number, records.map(|records| slice.of(&records)));
        Ok(())
    }

    fn seeks(&mut self, node: usize, number: u64, seek: &Seek) -> Result {
        match self.in_order(node, (number, &seek.plan, seek.range))? {
            Ok(records) => self.answer_found(number, seek.of(records.iter().map(|one| one.sized()))),
            Err(why) => self.answer_read(number, Err(why)),
        }
        Ok(())
    }

    /// All records of a range, as a node has them.
    fn in_order(
        &mut self,
        node: usize,
        (number, plan, range): (u64, &plan::Plan, usize),
    ) -> Result<std::result::Result<OrderedRecords, holder::NotRead>> {
        let Some(range) = plan.ranges.get(range) else { return Ok(Ok(OrderedRecords::default())) };
        if self.stopped.is_none() && self.draw.chance(self.weather.busy) {
            // A node that is busy with this very range is asked again.
            let sorts = number.is_multiple_of(2);
            return Ok(Err(if sorts { holder::NotRead::Sorts } else { holder::NotRead::Busy }));
        }
        if self.finds_damage_of(node, plan.shuffle, range.slot)? {
            return Ok(Err(holder::NotRead::Lacks));
        }
        let batches: &Vec<Arc<Batch>> = &self.nodes[node].disk.batches;
        let records = match self.objects.of(batches, plan.shuffle, range.slot) {
            None => plan.collect(range, batches),
            Some(_) if self.stopped.is_none() && self.draw.chance(self.weather.refused) => {
                return Ok(Err(holder::NotRead::ObjectStore));
            }
            Some(Some(objects)) => plan.collect(range, &objects),
            // The node has not heard of the end.
            Some(None) if self.oracle.has_ended(plan.shuffle) => return Ok(Err(holder::NotRead::ObjectLost)),
            Some(None) => return Err(format!("D6: {} of {:?} is nowhere", plan.shuffle, range.slot)),
        };
        match plan.check(range, records.sizes()) {
            Ok(()) => Ok(Ok(records)),
            Err(differs) => Err(format!("D6: {differs}")),
        }
    }

    fn answer_found(&mut self, number: u64, found: Found) {
        let Some((job, partition, asked)) = self.reads.remove(&number) else { return };
        let delay: True = self.draw.around(self.weather.delay);
        if !self.draw.chance(self.weather.lost) {
            self.after(delay, Happening::Found { job, partition, number: asked, found });
        }
    }

    fn answer_read(&mut self, number: u64, answer: std::result::Result<OrderedRecords, holder::NotRead>) {
        let Some((job, partition, asked)) = self.reads.remove(&number) else { return };
        let delay: True = self.draw.around(self.weather.delay);
        if !self.draw.chance(self.weather.lost) {
            self.after(delay, Happening::Read { job, partition, number: asked, answer });
        }
    }

    fn drops(&mut self, node: usize, slot: PoolSlot) -> Result {
        self.outcome.dropped += 1;
        let disk = &mut self.nodes[node].disk;
        let keys = disk.batches.iter().map(|batch| batch.key.clone());
        let keys: Vec<BatchKey> = keys.filter(|key| key.stream.slot == slot).collect();
        disk.drop_if(|key| key.stream.slot == slot);
        disk.drop_decisions(slot);
        if let Some(process) = self.process(node) {
            process.replicas.copies.remove(&slot);
        }
        self.oracle.dropped(&keys, (&self.nodes[..], self.weather.replicas), &self.objects)
    }
}
