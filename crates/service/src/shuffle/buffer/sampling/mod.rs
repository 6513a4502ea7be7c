//! How the leader hears of keys, and how what is held waits for the first bounds that it makes of them.
//!
//! What goes out before there are bounds is read, divided and stored again later. So a buffer reports its sample as soon as
//! those of all buffers may suffice together, and each time that it has doubled until there are bounds. While it waits for the
//! answer, an attempt that has ended and a chunk that is full wait with it: until bounds come, until the leader answers that
//! there are none yet, or for `bounds_wait_ms`. What goes out to make room waits for nothing.

use super::{Buffer, BufferId, State};
use crate::shuffle::ShuffleId;
use crate::shuffle::message::Message;
use partage_core::base::time::Millis;
use std::sync::Arc;

impl Buffer {
    /// Of how many keys its sample may suffice, if other buffers have as many.
    fn sufficient(&self, ranges: u32) -> u64 {
        self.settings.sample_for(ranges).div_ceil(self.map.nodes.len().max(1) as u64)
    }

    /// Reports the sample now, if that may bring the first bounds.
    pub(super) fn report_first(&mut self, now: Millis, shuffle: ShuffleId) {
        let Some(open) = self.shuffles.get(&shuffle) else { return };
        let is_time = open.bounds.version == 0
            && open.has_new_sample()
            && open.sketch.count() >= self.sufficient(open.ranges);
        if is_time && let Some(open) = self.shuffles.get_mut(&shuffle) {
            open.sample_at = now;
            self.report_sample(now, shuffle);
        }
    }

    /// The leader hears of the sample, and answers with its bounds.
    pub(super) fn report_sample(&mut self, now: Millis, shuffle: ShuffleId) {
        let Some(open) = self.shuffles.get_mut(&shuffle).filter(|open| now >= open.sample_at) else { return };
        let is_writing = open.attempts.values().any(|held| held.state != State::Whole);
        let rest = if is_writing { self.settings.sample_ms } else { self.settings.grace_ms };
        open.sample_at = now + rest;
        let Some(leader) = self.map.live(self.map.home(shuffle)).first() else { return };
        open.reported = open.sketch.count();
        let sketch = Arc::new(open.sketch.clone());
        let (reported, ranges) = (open.reported, open.ranges);
        let BufferId { node, incarnation } = self.id.clone();
        self.out.push((leader.clone(), Message::Sample(shuffle, node, incarnation, sketch)));
        if reported >= self.sufficient(ranges)
            && let Some(open) = self.shuffles.get_mut(&shuffle)
        {
            open.answer_by = now + self.settings.bounds_wait_ms;
        }
    }

    /// Whether what would go out now waits for the first bounds: it goes out when they come, or soon without them.
    pub(super) fn waits_for_bounds(&mut self, now: Millis, shuffle: ShuffleId) -> bool {
        let most = self.settings.bounds_wait_ms;
        let Some(open) = self.shuffles.get_mut(&shuffle) else { return false };
        let latest = open.put_off.unwrap_or(now + most);
        let until = latest.min(open.answer_by);
        if open.bounds.version > 0 || now >= until {
            return false;
        }
        (open.put_off, open.flush_at) = (Some(latest), until);
        true
    }

    /// The leader has no other bounds than these yet: what waits for others goes out.
    pub(super) fn answered(&mut self, shuffle: ShuffleId) {
        let Some(open) = self.shuffles.get_mut(&shuffle) else { return };
        open.answer_by = Millis(0);
        if open.put_off.is_some() {
            self.flush(shuffle);
        }
    }
}

#[cfg(test)]
mod tests;
