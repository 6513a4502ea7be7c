//! How a worker ends: what runs is ended first, and then the coordinator hears that this worker leaves.

use super::{Driver, Event};
use crate::limits;
use partage_core::base::id::Incarnation;
use partage_core::worker::Action;
use partage_wire::proto::{self, from_worker};

impl Driver {
    pub(super) async fn say_goodbye(&mut self) {
        let Some(incarnation) = self.machine.incarnation() else { return };
        // Nothing is held any more, and the lease is given up.
        let _ = self.machine.ended(self.now());
        self.tell_leave(incarnation).await;
    }

    /// Ends what runs, and sends `leave` when nothing does: the next owners may begin then, without waiting for the
    /// lease.
    pub(super) async fn stop(&mut self, mut actions: Vec<Action>) {
        let Some(incarnation) = self.machine.incarnation().filter(|_| self.state.welcome.is_some()) else {
            return;
        };
        actions.extend(self.machine.ended(self.now()));
        let deadline = tokio::time::Instant::now() + limits::SHUTDOWN;
        loop {
            self.state.dirty = true;
            self.publish();
            self.state.in_flight.values().for_each(|in_flight| in_flight.evict());
            std::mem::take(&mut actions).into_iter().for_each(|action| self.carry_out(action));
            if self.machine.is_at_rest() {
                return self.tell_leave(incarnation).await;
            }
            tokio::select! {
                event = self.events.recv() => match event {
                    None | Some(Event::Abort) => return,
                    // Nothing else than the end of what runs matters any more.
                    Some(event) => {
                        self.event(event, &mut actions);
                    }
                },
                () = tokio::time::sleep_until(deadline) => {
                    tracing::warn!(node = %self.spec.id, "requests or callbacks do not end: the worker stops without sending leave");
                    return;
                }
            }
            actions.extend(self.machine.run(self.now()));
        }
    }

    async fn tell_leave(&mut self, incarnation: Incarnation) {
        let leave = proto::Leave { node: self.spec.id.to_string(), incarnation: incarnation.0 };
        self.connection.send(from_worker::Message::Leave(leave));
        self.connection.closed(limits::CONNECT).await;
        for leaver in self.state.leavers.drain(..) {
            // The caller may have stopped waiting.
            let _ = leaver.send(());
        }
    }
}
