//! Nodes that are busy: batches that find no room, and how often each is sent.

use super::World;
use partage_core::base::name::NodeId;
use partage_service::shuffle::message::{Message, WhyNotStored};
use partage_service::shuffle::record::Batch;

impl World {
    /// Whether a batch that comes finds no room now.
    pub(super) fn finds_no_room(&mut self) -> bool {
        self.stopped.is_none() && self.draw.chance(self.weather.no_room)
    }

    /// Its sender hears so. Where nothing else goes wrong it is memory that lacks, as others would stand in for a full disk.
    pub(super) fn has_no_room(&mut self, node: usize, from: &NodeId, batch: &Batch) {
        let is_disk = self.weather.stored_late == 0 && self.draw.chance(200);
        let why = if is_disk { WhyNotStored::Full } else { WhyNotStored::Busy };
        if self.weather.stored_late > 0 {
            self.sent.entry(batch.key.clone()).or_default().1 += 1;
        }
        self.send(node, from, Message::NotStored(batch.key.clone(), why));
    }

    /// R1: a batch is sent to R nodes, and once more each time that it found no room.
    pub(super) fn sends_batch(&mut self, batch: &Batch) -> Result<(), String> {
        if self.weather.stored_late == 0 {
            return Ok(());
        }
        let (sent, refused) = self.sent.entry(batch.key.clone()).or_default();
        *sent += 1;
        let most = self.weather.replicas as u64 + *refused;
        match *sent > most {
            true => Err(format!(
                "R1: nodes are busy, {:?} is sent {sent} times, and found no room {refused} times",
                batch.key
            )),
            false => Ok(()),
        }
    }
}
