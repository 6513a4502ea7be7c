//! What nodes say of the batches that they are to store, and what goes on then.

use super::open::State;
use super::{Attempt, Buffer};
use crate::shuffle::Writer;
use crate::shuffle::message::WhyNotStored;
use crate::shuffle::pool::PoolMap;
use crate::shuffle::record::BatchKey;
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use std::sync::Arc;

impl Buffer {
    /// A replica that loaded and is in `Live` now counts for what it has stored before.
    pub(super) fn take_map(&mut self, now: Millis, map: Arc<PoolMap>) {
        self.sending.take_map(&self.map, &map);
        self.map = map;
        let under_way: Vec<BatchKey> = self.sending.keys().cloned().collect();
        under_way.iter().for_each(|key| self.settle(now, key));
    }

    pub(super) fn stored(&mut self, now: Millis, node: NodeId, key: &BatchKey) {
        self.sending.stored(now, &self.settings, (&node, key), &mut self.out);
        self.settle(now, key);
    }

    pub(super) fn not_stored(&mut self, now: Millis, node: &NodeId, (key, why): (&BatchKey, WhyNotStored)) {
        self.sending.not_stored(now, &self.settings, (node, key, why), &mut self.out);
    }

    /// If enough nodes have the batch, what has waited for it goes on.
    fn settle(&mut self, now: Millis, key: &BatchKey) {
        if !self.sending.is_done(&self.map, key) {
            return;
        }
        let shuffle = key.stream.shuffle;
        match key.stream.writer {
            Writer::Division(task, _) => self.end_division(shuffle, task),
            // No buffer sends a receipt.
            Writer::Objects(_) => {}
            Writer::Buffer(_) => {
                let Some(open) = self.shuffles.get_mut(&shuffle) else { return };
                if let Some((partition, id)) = open.marking.remove(key)
                    && let Some(held) = open.attempts.get_mut(&(partition, id))
                    && matches!(&held.state, State::Marking { mark, .. } if mark == key)
                {
                    held.state = State::Whole;
                    self.answer(Attempt { shuffle, partition, id }, Ok(()));
                }
                self.progress(now, shuffle);
            }
        }
    }
}
