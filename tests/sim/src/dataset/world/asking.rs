//! Clients, and what nodes ask of each other for them.

use super::{Happening, Millis, World, oracle};
use crate::dataset::reading::{Part, Reading};
use partage_core::base::planted::{self, Planted};
use partage_service::dataset::{Address, Fetch, FetchSettings, Next, VersionName};

/// Long enough that each of four peers is asked, should the first three not answer.
const FETCH: FetchSettings = FetchSettings { stage_ms: 50, total_ms: 250 };

impl World {
    /// A client asks a node for some keys, and the next one comes.
    pub(super) fn request(&mut self, node: usize) -> Result<(), String> {
        self.soon(20, 400, Happening::Request(node));
        let machine = &mut self.machines[node];
        let Some(version) = machine.catalogue.serving.clone() else { return Ok(()) };
        let order = machine.disk.served.as_ref().map_or(0, |served| served.order);
        self.oracle.began(node, order, &version)?;
        let Some(entry) = machine.catalogue.shown.get(&version).cloned() else {
            return Err(format!("S15: {} serves {version} and shows it to nobody", machine.address));
        };
        machine.catalogue.enter(&version, self.now);
        let life = machine.life;
        self.next += 1;
        let reading = self.next;
        let mut parts = Vec::new();
        for _ in 0..self.draw.between(1, 4) {
            let partition = self.draw.between(0, entry.partitions.into()) as u32;
            let known: &[Address] = entry.peers.get(&partition).map_or(&[], Vec::as_slice);
            let peers: Vec<usize> = known.iter().filter_map(|address| self.node_of(address)).collect();
            let fetch = Fetch::new(peers.len(), self.draw.bits(), FETCH, Millis(self.now));
            let answer = entry.here.contains_key(&partition).then(|| Ok(version.clone()));
            parts.push(Part { partition, peers, fetch, answer });
        }
        let open: Vec<usize> =
            parts.iter().enumerate().filter(|(_, part)| part.answer.is_none()).map(|(at, _)| at).collect();
        self.outcome.reads.0 += (parts.len() - open.len()) as u64;
        // Some clients take their time: longer than versions are kept.
        let until = self.draw.chance(5).then(|| self.now + 2 * super::KEEP_MS);
        let began = self.now;
        self.readings.insert(reading, Reading { node, life, version, began, parts, until });
        for part in open {
            self.wake(reading, part)?;
        }
        self.finish(reading)
    }

    /// Asks the node that is next.
    pub(super) fn wake(&mut self, number: u64, part: usize) -> Result<(), String> {
        loop {
            let now = Millis(self.now);
            let Some(reading) = self.readings.get_mut(&number) else { return Ok(()) };
            let Part { fetch, peers, answer: None, .. } = &mut reading.parts[part] else { return Ok(()) };
            match fetch.next(now) {
                Next::Ask(at) => {
                    let peer = peers[at];
                    self.soon(1, 8, Happening::Asked(number, part, peer));
                }
                Next::Wait(until) => {
                    self.later(until.0 - self.now, Happening::Wake(number, part));
                    return Ok(());
                }
                Next::Fail(failure) => {
                    reading.parts[part].answer = Some(Err(failure.to_string()));
                    self.unread(number, part)?;
                    return self.finish(number);
                }
            }
        }
    }

    /// No read fails while a node is there all the while that has the partition and is seen to have it.
    fn unread(&mut self, number: u64, part: usize) -> Result<(), String> {
        self.outcome.unread += 1;
        let Some(reading) = self.readings.get(&number) else { return Ok(()) };
        let (me, part) = (reading.node, &reading.parts[part]);
        let key = partage_service::dataset::node::Key::Partition(
            self.dataset.clone(),
            reading.version.clone(),
            part.partition,
        );
        for (peer, machine) in self.machines.iter().enumerate() {
            let named = (machine.address.clone(), key.clone());
            let is_seen = self.machines[me].seen.get(&named).is_some_and(|(_, since)| *since < reading.began);
            let entry = machine.catalogue.shown.get(&reading.version);
            let since = entry.and_then(|entry| entry.here.get(&part.partition));
            let was_there =
                since.is_some_and(|since| *since < reading.began) && machine.up_since <= reading.began;
            if peer != me && is_seen && was_there && self.cut_until(me, peer) <= reading.began {
                return Err(format!(
                    "S16: {} finds nobody for partition {} of {}, and {} has it: {:?}",
                    self.machines[me].address, part.partition, reading.version, machine.address, part.answer
                ));
            }
        }
        Ok(())
    }

    /// A peer is asked by name of the version. It does not ask further.
    pub(super) fn asked(&mut self, number: u64, part: usize, peer: usize) {
        let Some(reading) = self.readings.get(&number) else { return };
        let (me, mut version, partition) =
            (reading.node, reading.version.clone(), reading.parts[part].partition);
        if self.is_cut(me, peer) {
            return;
        }
        let (now, machine) = (self.now, &mut self.machines[peer]);
        let serving = machine.catalogue.serving.clone();
        let is_refused = planted::is(Planted::S13) && serving.as_ref() != Some(&version);
        if planted::is(Planted::D5)
            && let Some(serving) = serving
        {
            version = serving;
        }
        let entry = machine.catalogue.shown.get(&version);
        let is_here = entry.is_some_and(|entry| entry.here.contains_key(&partition)) && !is_refused;
        if !machine.is_up() || !is_here {
            return self.soon(1, 8, Happening::Answered(number, part, peer, Err(())));
        }
        machine.catalogue.enter(&version, now);
        let life = machine.life;
        self.soon(0, 5, Happening::Read(number, part, peer, life, version));
    }

    /// A peer has read what it was asked for.
    pub(super) fn read(&mut self, number: u64, part: usize, peer: usize, life: u64, version: VersionName) {
        let machine = &mut self.machines[peer];
        if machine.life != life {
            return;
        }
        machine.catalogue.leave(&version);
        let me = self.readings.get(&number).map(|reading| reading.node);
        if me.is_some_and(|me| !self.is_cut(me, peer)) {
            self.soon(1, 8, Happening::Answered(number, part, peer, Ok(version)));
        }
    }

    /// The first answer counts.
    pub(super) fn answer(
        &mut self,
        number: u64,
        part: usize,
        _peer: usize,
        answer: Result<VersionName, ()>,
    ) -> Result<(), String> {
        let now = Millis(self.now);
        let Some(reading) = self.readings.get_mut(&number) else { return Ok(()) };
        let Part { fetch, answer: open @ None, .. } = &mut reading.parts[part] else { return Ok(()) };
        match answer {
            Ok(version) => {
                *open = Some(Ok(version));
                self.outcome.reads.0 += 1;
                self.outcome.reads.1 += 1;
                self.finish(number)
            }
            Err(()) => {
                fetch.failed(now);
                self.wake(number, part)
            }
        }
    }

    /// Ends a request that has all its answers, if its client takes them at once.
    fn finish(&mut self, number: u64) -> Result<(), String> {
        let Some(reading) = self.readings.get(&number).filter(|reading| reading.is_answered()) else {
            return Ok(());
        };
        oracle::answered(reading)?;
        match reading.until {
            Some(until) if until > self.now => {
                self.later(until - self.now, Happening::Taken(number));
                Ok(())
            }
            _ => self.taken(number),
        }
    }

    /// The client has it all: what was read from is still here.
    pub(super) fn taken(&mut self, number: u64) -> Result<(), String> {
        let Some(reading) = self.readings.remove(&number) else { return Ok(()) };
        let machine = &mut self.machines[reading.node];
        if machine.life != reading.life {
            return Ok(());
        }
        machine.catalogue.leave(&reading.version);
        if !machine.catalogue.shown.contains_key(&reading.version) {
            let (who, version) = (&machine.address, &reading.version);
            return Err(format!("S15: {who} let {version} go while a client read from it"));
        }
        Ok(())
    }
}
