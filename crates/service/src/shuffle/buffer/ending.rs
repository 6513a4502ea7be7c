//! What an attempt that has ended waits for.

use super::Buffer;
use crate::shuffle::ShuffleId;
use partage_core::base::time::Millis;

impl Buffer {
    /// One attempt less is being written, as it has ended. It waits for company only if another one is being written, which may
    /// end soon, or if it need not be on disk and the leader has not said so yet. The leader hears of the sample now: a seal may
    /// follow at once, and makes its bounds by what the leader has.
    pub(super) fn ended(&mut self, now: Millis, shuffle: ShuffleId) {
        let linger = self.settings.linger_ms;
        let Some(open) = self.shuffles.get_mut(&shuffle) else { return };
        open.writing -= 1;
        if open.has_new_sample() {
            open.sample_at = now;
        }
        let lingers = open.writing > 0 || open.may_be_in_memory();
        if lingers {
            open.flush_at = open.flush_at.min(now + linger);
        }
        self.report_sample(now, shuffle);
        if !lingers && !self.waits_for_bounds(now, shuffle) {
            self.flush(shuffle);
        }
    }
}
