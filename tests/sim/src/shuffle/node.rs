//! A node: its disk, and the machines of its process.

use super::disk::Disk;
use crate::clock::True;
use partage_core::base::id::Incarnation;
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_service::shuffle::buffer::Buffer;
use partage_service::shuffle::holder::Holder;
use partage_service::shuffle::leader::Leader;
use partage_service::shuffle::log::Replicas;
use partage_service::shuffle::pool::PoolMap;
use partage_service::shuffle::settings::Settings;
use partage_service::shuffle::{BufferId, PoolSlot, ShuffleId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The machines of a process.
#[derive(Debug)]
pub struct Process {
    pub map: Arc<PoolMap>,
    pub buffer: Buffer,
    pub holder: Holder,
    pub replicas: Replicas,
    pub leaders: BTreeMap<PoolSlot, Leader>,
}

#[derive(Debug)]
pub struct Node {
    pub name: NodeId,
    pub incarnation: Incarnation,
    pub process: Option<Process>,
    pub disk: Disk,
    pub paused: True,
    /// Until when it hears nothing of the coordinator.
    pub deaf: True,
    /// When it was seen up last.
    pub down_since: True,
    /// When the last write is synced.
    pub synced_at: True,
}

impl Node {
    pub fn new(name: NodeId) -> Node {
        Node {
            name,
            incarnation: Incarnation(0),
            process: None,
            disk: Disk::default(),
            paused: 0,
            deaf: 0,
            down_since: 0,
            synced_at: 0,
        }
    }

    pub fn start(&mut self, now: Millis, settings: &Settings, map: Arc<PoolMap>) {
        self.incarnation = self.incarnation.next();
        let id = BufferId { node: self.name.clone(), incarnation: self.incarnation };
        let buffer = Buffer::new(id, settings.clone(), map.clone());
        // What cannot be read is found out at the start, and goes.
        for key in std::mem::take(&mut self.disk.damaged) {
            self.disk.forget(&key);
        }
        let stored = self.disk.stored();
        let replicas = stored.replicas.clone();
        let holder = Holder::recover(
            now,
            (self.name.clone(), self.incarnation),
            settings.clone(),
            map.clone(),
            stored,
        );
        let process = Process { map, buffer, holder, replicas, leaders: BTreeMap::new() };
        self.process = Some(process);
        self.take_leads(now, settings);
    }

    /// It leads what the map says, under the epochs of the map.
    pub fn take_leads(&mut self, now: Millis, settings: &Settings) {
        let Some(process) = &mut self.process else { return };
        let map = process.map.clone();
        process.leaders.retain(|slot, leader| {
            let place = map.place(*slot);
            place.is_some_and(|place| place.epoch == leader.epoch() && place.live.first() == Some(&self.name))
        });
        for (at, place) in map.places.iter().enumerate() {
            let slot = PoolSlot(at as u32);
            if place.live.first() == Some(&self.name) && !process.leaders.contains_key(&slot) {
                let copy = process.replicas.lead(slot, place.epoch);
                let leader = Leader::begin(now, slot, settings.clone(), map.clone(), copy);
                process.leaders.insert(slot, leader);
            }
        }
    }

    /// Where something of a shuffle is left.
    pub fn left_of(&self, shuffle: ShuffleId) -> Option<String> {
        let name = &self.name;
        if self.disk.batches.iter().any(|batch| batch.key.stream.shuffle == shuffle) {
            return Some(format!("batches on the disk of {name}"));
        }
        if self.disk.replicas.copies.values().any(|copy| copy.living.contains_key(&shuffle)) {
            return Some(format!("decisions on the disk of {name}"));
        }
        let process = self.process.as_ref()?;
        if !process.holder.has_nothing_of(shuffle) || !process.buffer.has_nothing_of(shuffle) {
            return Some(format!("something in the memory of {name}"));
        }
        None
    }
}
