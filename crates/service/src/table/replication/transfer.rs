//! Handing the lead over: rule 10.
//!
//! ```text
//!  leader        stops admitting ─ heir has all ─► HeirIsReady      order: heir leads ─► LetGo ─╮
//!  coordinator                                        ╰─► commits the heir as the leader ─╯     │
//!  heir                                                                    raises its fence ◄───╯ begins at once
//! ```
//!
//! Until it hears the order the leader gives nothing up: if the coordinator goes away meanwhile, it admits again. What it
//! says then, [`Message::LetGo`], replaces the promise that the heir would wait for. Any leader that hears that it was replaced
//! says so; if the message is lost, the next leader waits.

use super::lead::Phase;
use super::message::Message;
use super::{Effect, Replica};
use partage_core::base::id::{Epoch, PlacementId};
use partage_core::base::time::Millis;

impl Replica {
    pub(super) fn on_transfer(&mut self, now: Millis, heir: PlacementId) {
        let is_member = self.order.as_ref().is_some_and(|order| order.in_sync.contains(&heir));
        let until = now + self.settings.transfer_ms;
        let is_leading = self.phase() == Some(&Phase::Leading);
        if let Some(lead) = self.lead.as_mut().filter(|_| is_leading && is_member && heir != self.me) {
            lead.phase = Phase::HandingOver { heir, until, told: None };
        } else if !matches!(self.phase(), Some(Phase::HandingOver { heir: other, .. }) if *other == heir) {
            self.effects.push(Effect::TransferEnded(heir));
        }
    }

    /// Says that the heir is ready, when it is; gives up when time is over.
    pub(super) fn hand_over(&mut self, now: Millis) {
        let end = self.log.end().index;
        let Some(lead) = &mut self.lead else { return };
        let Phase::HandingOver { heir, until, told } = lead.phase else { return };
        if now >= until {
            lead.phase = Phase::Leading;
            self.effects.push(Effect::TransferEnded(heir));
            return;
        }
        let has_all = lead.followers.get(&heir).is_some_and(|follower| follower.matched >= end);
        let is_due = told.is_none_or(|told| now >= told + self.settings.wish_repeat_ms);
        if has_all && self.committed >= end && is_due {
            lead.phase = Phase::HandingOver { heir, until, told: Some(now) };
            self.effects.push(Effect::HeirIsReady(heir));
        }
    }

    /// Nothing is handed over to a replica that is not in sync any more.
    pub(super) fn end_transfer_to_who_left(&mut self) {
        let (Some(order), Some(lead)) = (&self.order, &mut self.lead) else { return };
        if let Phase::HandingOver { heir, .. } = lead.phase
            && !order.in_sync.contains(&heir)
        {
            lead.phase = Phase::Leading;
            self.effects.push(Effect::TransferEnded(heir));
        }
    }

    /// Tells the next leader that this one has let go, if it has and has not said so. It may have stopped to lead before it heard
    /// who leads: a replica that hears the order first refuses what it is sent.
    pub(super) fn tell_let_go(&mut self, next: PlacementId) {
        if next != self.me
            && let Some(epoch) = self.let_go.take()
        {
            self.effects.push(Effect::Send(next, Message::LetGo(epoch)));
        }
    }

    pub(super) fn on_let_go(&mut self, now: Millis, epoch: Epoch) {
        self.promise.release(epoch);
        self.try_begin(now);
    }
}
