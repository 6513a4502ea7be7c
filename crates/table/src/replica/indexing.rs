//! Indexes that are built or dropped: while there is something to do, the leader logs one step after the other, each when the one
//! before is applied. Writes of clients come between.

use super::LocalReplica;
use crate::limits::INDEX_REPEAT_MS;
use crate::stored::index;
use partage_core::base::time::Millis;
use partage_service::table::index::IndexChange;
use partage_service::table::replication::Event;
use tokio::sync::oneshot;

/// The step that was logged last, and when.
pub(super) type LoggedStep = Option<(IndexChange, Millis)>;

impl LocalReplica {
    /// When the next step is to be logged.
    pub(super) fn index_step_at(&self) -> Millis {
        let Some(next) = self.rows.next_index_change().filter(|_| self.machine.status().has_begun) else {
            return Millis::NEVER;
        };
        match &self.logged_step {
            Some((last, at)) if *last == next => *at + INDEX_REPEAT_MS,
            _ => self.shared.clock.now(),
        }
    }

    /// Logs it, if it is time. One that was refused, or that is not applied, is logged again later: twice it does nothing.
    pub(super) fn tend_indexes(&mut self, now: Millis) {
        if now < self.index_step_at() {
            return;
        }
        let Some(next) = self.rows.next_index_change() else { return };
        let payload = index::encode_change(partage_clock::wall_ms(), &next);
        self.logged_step = Some((next, now));
        // No client waits for it.
        let (answer, _) = oneshot::channel();
        let request = self.requests.add_write(answer, self.shared.clock.nanos());
        self.hear(Event::Write(vec![(request, payload.into())]));
    }
}
