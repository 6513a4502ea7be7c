//! Nodes that are busy: batches that find no room, and how often each is sent.

use super::World;
use partage_core::base::name::NodeId;
use partage_service::shuffle::PoolSlot;
use partage_service::shuffle::message::{Message, WhyNotStored};
use partage_service::shuffle::pool::PoolMap;
use partage_service::shuffle::record::Batch;
use std::collections::BTreeSet;

impl World {
    /// Whether a batch that comes finds no room now.
    pub(super) fn finds_no_room(&mut self) -> bool {
        self.stopped.is_none() && self.draw.chance(self.weather.no_room)
    }

    /// Its sender hears so. Where nothing else goes wrong it is memory that lacks, as others would stand in for a full disk.
    pub(super) fn refuse_batch(&mut self, node: usize, from: &NodeId, batch: &Batch) {
        let is_disk = self.weather.stored_late == 0 && self.draw.chance(200);
        let why = if is_disk { WhyNotStored::Full } else { WhyNotStored::Busy };
        if self.weather.stored_late > 0 {
            let at = self.nodes[node].name.clone();
            self.sent.entry((batch.key.clone(), at)).or_default().1 += 1;
        }
        self.send(node, from, Message::NotStored(batch.key.clone(), why));
    }

    /// A node takes up a map.
    pub(super) fn names_replicas(&mut self, map: &PoolMap) {
        let mut replicas = BTreeSet::new();
        for (slot, place) in (0..).map(PoolSlot).zip(&map.places) {
            replicas.extend(place.live.iter().chain(&place.loading).map(|node| (slot, node.clone())));
        }
        for one in replicas.difference(&self.replicas) {
            *self.named.entry(one.clone()).or_default() += 1;
        }
        self.replicas = replicas;
    }

    /// R1: a batch is sent once to each node when maps name it for the slot, and once more each time that it found no room
    /// there: a node that has lost the slot has dropped it.
    pub(super) fn check_sent(&mut self, to: &NodeId, batch: &Batch) -> Result<(), String> {
        if self.weather.stored_late == 0 {
            return Ok(());
        }
        let Some(named) = self.named.get(&(batch.key.stream.slot, to.clone())) else {
            return Err(format!("R1: nodes are busy, and {to} stands in with {:?}", batch.key));
        };
        let (sent, refused) = self.sent.entry((batch.key.clone(), to.clone())).or_default();
        *sent += 1;
        match *sent > named + *refused {
            true => Err(format!(
                "R1: nodes are busy, {:?} is sent to {to} {sent} times, and found no room {refused} times",
                batch.key
            )),
            false => Ok(()),
        }
    }
}
