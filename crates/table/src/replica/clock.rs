//! The clock of a shard while no client writes: rows end by the times of writes, which go through the log, so that they end alike
//! on all replicas. When a row's time has come and no write has, the leader logs one that does nothing; and when changes of a
//! feed have been kept for long enough.

use super::LocalReplica;
use crate::limits::{CLOCK_MS, FEED_REMOVAL_MS};
use crate::stored::write;
use partage_core::base::time::Millis;
use partage_service::table::replication::Event;
use partage_service::table::rows::Write;
use tokio::sync::oneshot;

impl LocalReplica {
    /// When the clock is to be moved on.
    pub(super) fn clock_at(&self) -> Millis {
        // Changes need not go at the moment at which their time is over, and many go at once.
        let removal = self.rows.next_removal().map(|due| due + FEED_REMOVAL_MS);
        let ends = [self.rows.next_end(), removal].into_iter().flatten().min();
        let Some(end) = ends.filter(|_| self.machine.status().has_begun) else {
            return Millis::NEVER;
        };
        let until_end = end.saturating_sub(partage_clock::wall_ms());
        (self.shared.clock.now() + until_end).max(self.clock_moved + CLOCK_MS)
    }

    /// Moves it on, if it is time.
    pub(super) fn tend_clock(&mut self, now: Millis) {
        if now < self.clock_at() {
            return;
        }
        self.clock_moved = now;
        let nothing = Write { at_ms: partage_clock::wall_ms(), request: None, operations: Vec::new() };
        // No client waits for it: if it is refused, the next one comes soon.
        let (answer, _) = oneshot::channel();
        let request = self.requests.add_write(answer, self.shared.clock.nanos());
        self.hear(Event::Write(vec![(request, write::encode(&nothing).into())]));
    }
}
