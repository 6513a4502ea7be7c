//! Copies of rows to followers, in chunks, as a driver makes them.

use super::{Happening, World};
use crate::clock::{MS, True};
use crate::replication::copy::{Chunk, CopyMessage, Incoming, Outgoing, Partial};
use crate::replication::engine::Engine;
use partage_core::base::id::PlacementId;
use partage_service::table::copy::resume::{self, ChunkKind, SnapshotStart};
use partage_service::table::replication::{Event, LogPosition};

/// A follower takes another snapshot when it was not heard of the one that it takes for so long, in milliseconds.
const PATIENCE_MS: u64 = 1_000;

/// What a follower does with a chunk.
enum Takes {
    Stores,
    Says(CopyMessage),
    Nothing,
}

impl World {
    /// A follower needs a snapshot. One that is kept for it goes on: the chunk that is under way is sent again.
    pub(super) fn send_snapshot(&mut self, node: usize, placement: PlacementId, to: PlacementId) {
        let Some((other, _)) = self.places.get(&to).copied() else { return };
        self.outcome.snapshots += 1;
        let takes = self.draw.between(1, 300) * MS;
        let is_lost = self.is_cut(node, other) || (self.stopped.is_none() && self.draw.chance(100));
        let at = &mut self.nodes[node];
        let now = at.clock.read(self.now);
        let Some(local) = at.replicas.get_mut(&placement) else { return };
        let known = local.outgoing.get(&to).map(|outgoing| outgoing.engine.at);
        if known.is_none_or(|position| !local.machine.reaches_back_to(position)) {
            self.outcome.outrun += u64::from(known.is_some());
            if local.engine.at == LogPosition::default() {
                return;
            }
            let outgoing = Outgoing::begin(local.engine.clone(), now);
            local.machine.copies_to(now, to, Some(outgoing.copied(false)));
            local.outgoing.insert(to, outgoing);
        }
        if !is_lost {
            self.send_chunk(node, placement, to, takes);
        }
    }

    fn send_chunk(&mut self, node: usize, placement: PlacementId, to: PlacementId, rests: True) {
        let keys = self.weather.chunk_keys;
        let local = self.nodes[node].replicas.get(&placement);
        let Some(outgoing) = local.and_then(|local| local.outgoing.get(&to)) else { return };
        let chunk = CopyMessage::Chunk(outgoing.chunk(keys));
        self.say_of_copy(node, (placement, to), chunk, rests);
    }

    /// Says something to another replica, after a while: lost, late, doubled, as other messages.
    fn say_of_copy(
        &mut self,
        node: usize,
        (from, to): (PlacementId, PlacementId),
        message: CopyMessage,
        rests: True,
    ) {
        let Some((other, _)) = self.places.get(&to).copied() else { return };
        let (fine, lost, doubled) = (self.stopped.is_some(), self.weather.lost, self.weather.doubled);
        if self.is_cut(node, other) || (!fine && self.copy_draw.chance(lost)) {
            return;
        }
        let times = if !fine && self.copy_draw.chance(doubled) { 2 } else { 1 };
        for _ in 0..times {
            let is_late = !fine && self.copy_draw.chance(self.weather.late);
            let late = if is_late { self.copy_draw.between(10, 3_000) * MS } else { 0 };
            let delay = rests + self.copy_draw.around(self.weather.delay) + late;
            self.after(delay, Happening::Copy { node: other, from, to, message: message.clone() });
        }
    }

    /// Something comes of a snapshot.
    pub(super) fn copy_arrives(
        &mut self,
        node: usize,
        from: PlacementId,
        to: PlacementId,
        message: CopyMessage,
    ) -> Result<(), String> {
        match message {
            CopyMessage::Chunk(chunk) => self.take_chunk(node, from, to, chunk),
            CopyMessage::Stored(position, number) => self.chunk_is_stored(node, to, from, (position, number)),
            CopyMessage::Resumed(position, number, through) => {
                self.snapshot_is_resumed(node, to, from, (position, number, through));
                Ok(())
            }
            CopyMessage::Useless(position) => {
                let at = &mut self.nodes[node];
                let now = at.clock.read(self.now);
                if let Some(local) = at.replicas.get_mut(&to)
                    && local.outgoing.get(&from).is_some_and(|outgoing| outgoing.engine.at == position)
                {
                    local.outgoing.remove(&from);
                    local.machine.copies_to(now, from, None);
                }
                Ok(())
            }
        }
    }

    /// The follower has stored a chunk: the next one goes out, after a rest.
    fn chunk_is_stored(
        &mut self,
        node: usize,
        placement: PlacementId,
        from: PlacementId,
        (position, number): (LogPosition, u64),
    ) -> Result<(), String> {
        let (keys, slows_ms) = (self.weather.chunk_keys, self.weather.settings.copy_slows_ms);
        let at = &mut self.nodes[node];
        let now = at.clock.read(self.now);
        let Some(local) = at.replicas.get_mut(&placement) else { return Ok(()) };
        let is_it = |one: &&mut Outgoing| (one.engine.at, one.number) == (position, number);
        let Some(outgoing) = local.outgoing.get_mut(&from).filter(is_it) else { return Ok(()) };
        let chunk = outgoing.chunk(keys);
        outgoing.is_heard(now, slows_ms);
        outgoing.stored(&chunk);
        self.outcome.chunks += 1;
        let is_outrun = !local.machine.reaches_back_to(position);
        let is_member = self.coordinator.maps[local.shard].in_sync.contains(&from);
        if is_outrun && !outgoing.was_silent && !is_member {
            return Err(format!(
                "L1: the copy of {placement} to {from} at {position} goes on, and is outrun"
            ));
        }
        local.machine.copies_to(now, from, Some(outgoing.copied(chunk.is_last)));
        if chunk.is_last || is_outrun {
            self.outcome.outrun += u64::from(is_outrun);
            local.outgoing.remove(&from);
            return Ok(());
        }
        let rests = self.copy_draw.around(self.weather.copy_rest);
        self.send_chunk(node, placement, from, rests);
        Ok(())
    }

    /// The follower has started again, and has a part.
    fn snapshot_is_resumed(
        &mut self,
        node: usize,
        placement: PlacementId,
        from: PlacementId,
        (position, number, through): (LogPosition, u64, u8),
    ) {
        let slows_ms = self.weather.settings.copy_slows_ms;
        let at = &mut self.nodes[node];
        let now = at.clock.read(self.now);
        let Some(local) = at.replicas.get_mut(&placement) else { return };
        let is_it = |one: &&mut Outgoing| (one.engine.at, one.number) == (position, number);
        let Some(outgoing) = local.outgoing.get_mut(&from).filter(is_it) else { return };
        outgoing.is_heard(now, slows_ms);
        outgoing.resumed(through);
        local.machine.copies_to(now, from, Some(outgoing.copied(false)));
        self.send_chunk(node, placement, from, 0);
    }

    /// A chunk comes to a follower.
    fn take_chunk(
        &mut self,
        node: usize,
        from: PlacementId,
        to: PlacementId,
        chunk: Chunk,
    ) -> Result<(), String> {
        let (position, number, is_last) = (chunk.position, chunk.number, chunk.is_last);
        match self.takes(node, from, to, &chunk) {
            Takes::Nothing => return Ok(()),
            Takes::Says(message) => {
                self.say_of_copy(node, (to, from), message, 0);
                return Ok(());
            }
            Takes::Stores => {}
        }
        let at = &mut self.nodes[node];
        let (Some(disk), Some(local)) = (at.disks.get_mut(&to), at.replicas.get_mut(&to)) else {
            return Ok(());
        };
        let mut keys = disk.partial.take().map(|partial| partial.keys).unwrap_or_default();
        let through = chunk.keys.last().map(|(key, _)| *key);
        keys.extend(chunk.keys);
        if is_last {
            local.incoming = None;
        } else {
            local.incoming.iter_mut().for_each(|incoming| incoming.next = number + 1);
            disk.partial = through.map(|through| Partial { position, through, keys: keys.clone() });
        }
        self.say_of_copy(node, (to, from), CopyMessage::Stored(position, number), 0);
        if is_last {
            return self.install(node, to, Engine { at: position, keys });
        }
        if let Some((leader, _)) = self.places.get(&from).copied() {
            self.interrupt_copy(leader, node);
        }
        Ok(())
    }

    /// What a follower does with a chunk: as `replica/filling.rs` of the driver.
    fn takes(&mut self, node: usize, from: PlacementId, to: PlacementId, chunk: &Chunk) -> Takes {
        let (position, number) = (chunk.position, chunk.number);
        let at = &mut self.nodes[node];
        let now = at.clock.read(self.now);
        let (Some(disk), Some(local)) = (at.disks.get_mut(&to), at.replicas.get_mut(&to)) else {
            return Takes::Nothing;
        };
        let useless = Takes::Says(CopyMessage::Useless(position));
        if !local.machine.takes_snapshot(position) {
            return useless;
        }
        if local.incoming.is_none()
            && let Some(partial) = &mut disk.partial
            && resume::begins(Some(partial.position), position) == SnapshotStart::Resumed
        {
            partial.position = position;
            let mut incoming = Incoming::begin(from, position, now);
            incoming.goes_on(number);
            local.incoming = Some(incoming);
            self.outcome.resumed += 1;
            return Takes::Says(CopyMessage::Resumed(position, number, partial.through));
        }
        match &mut local.incoming {
            Some(incoming) if (incoming.from, incoming.position) == (from, position) => {
                incoming.heard = now;
                match (incoming.chunk_kind(number), &disk.partial) {
                    (ChunkKind::Next, _) => return Takes::Stores,
                    (ChunkKind::Stored, _) => return Takes::Says(CopyMessage::Stored(position, number)),
                    (ChunkKind::BeforeResume, Some(partial)) if resume::offers_again(incoming.offers) => {
                        incoming.goes_on(number);
                        return Takes::Says(CopyMessage::Resumed(position, number, partial.through));
                    }
                    (ChunkKind::BeforeResume | ChunkKind::Other, _) => {}
                }
            }
            Some(other) if position <= other.position && now < other.heard + PATIENCE_MS => {
                return Takes::Nothing;
            }
            Some(_) if number > 0 => return Takes::Nothing,
            Some(_) | None => {}
        }
        (local.incoming, disk.partial) = (None, None);
        if number > 0 {
            return useless;
        }
        local.incoming = Some(Incoming::begin(from, position, now));
        Takes::Stores
    }

    /// All of a snapshot is there.
    fn install(&mut self, node: usize, placement: PlacementId, engine: Engine) -> Result<(), String> {
        let at = &mut self.nodes[node];
        let (Some(disk), Some(local)) = (at.disks.get_mut(&placement), at.replicas.get_mut(&placement))
        else {
            return Ok(());
        };
        let position = engine.at;
        if !local.machine.takes_snapshot(position) {
            return Ok(());
        }
        self.oracle.installed(local.shard, &engine)?;
        disk.stored.flushed = position;
        disk.engine = engine.clone();
        local.engine = engine;
        self.handle(node, placement, Event::Installed(position))
    }
}
