//! How durable the batches of a shuffle are: its leader says so, as the shuffle was started. A client says so too, by its
//! handle, which may be wrong. Until the leader has said it batches are written to disk, which is right for every shuffle.
//! The buffer asks the leader when an attempt is opened that need not be on disk. When such an attempt ends, its records wait
//! for the answer as long as they would wait for other attempts.

use super::{Attempt, Buffer, Failed, Open};
use crate::shuffle::message::Message;
use crate::shuffle::{Durability, ShuffleId};
use partage_core::base::time::Millis;

impl Buffer {
    /// An attempt is opened that need not be on disk. The leader answers with its bounds, and what it knows of durability.
    pub(super) fn ask_durability(&mut self, shuffle: ShuffleId, said: Durability) {
        let is_known = self.shuffles.get(&shuffle).is_some_and(|open| open.durability.is_some());
        if is_known || said == Durability::Disk {
            return;
        }
        if let Some(leader) = self.map.live(self.map.home(shuffle)).first() {
            self.out.push((leader.clone(), Message::Ask(shuffle)));
        }
    }

    /// The leader has said it. Attempts that were opened by a wrong handle fail; what others have written stays. The answer is
    /// whether it is new.
    pub(super) fn learn_durability(&mut self, shuffle: ShuffleId, durability: Durability) -> bool {
        let Some(open) = self.shuffles.get_mut(&shuffle).filter(|open| open.durability.is_none()) else {
            return false;
        };
        open.durability = Some(durability);
        let wrong =
            open.attempts.iter().filter(|(_, held)| !held.is_whole() && held.durability != durability);
        let wrong: Vec<Attempt> =
            wrong.map(|((partition, id), _)| Attempt { shuffle, partition: *partition, id: *id }).collect();
        wrong.into_iter().for_each(|attempt| self.fail(attempt, Failed::OtherDurability));
        true
    }

    /// It is known now, and bounds that came with it are taken up: what has waited for it alone goes out.
    pub(super) fn durability_is_known(&mut self, shuffle: ShuffleId) {
        let has_waited = |open: &Open| open.writing == 0 && open.flush_at != Millis::NEVER;
        if self.shuffles.get(&shuffle).is_some_and(has_waited) {
            self.flush(shuffle);
        }
    }
}
