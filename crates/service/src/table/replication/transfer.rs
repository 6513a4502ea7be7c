//! Handing the lead over: rule 10.
//!
//! ```text
//!  leader        stops admitting ─ heir has all ─► `heir_ready`     order: heir leads ─► LetGo ─╮
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
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;

impl Replica {
    /// Begins a hand-over when the order asks for one, and ends it when the order asks for it no more. One that ended, as its
    /// time was over, does not begin again before an order has taken it back.
    pub(super) fn take_up_transfer(&mut self, now: Millis) {
        let until = now + self.settings.transfer_ms;
        let heir = self.order.as_ref().filter(|order| self.leads_by(order)).and_then(|one| one.hand_over_to);
        let may_lead = heir.is_some_and(|heir| self.may_lead_next(heir));
        let Some(lead) = self.lead.as_mut().filter(|lead| lead.handed_over_to != heir) else { return };
        if let Phase::HandingOver { heir: former, .. } = lead.phase {
            lead.phase = Phase::Leading;
            self.effects.push(Effect::TransferEnded(former));
        }
        // The order asks for another heir, or for none: what it asked for before may begin anew.
        lead.handed_over_to = None;
        // Where it does not begin, as this leader has not begun to serve or the heir is not in sync yet, it looks again.
        if let Some(heir) = heir.filter(|_| may_lead && lead.phase == Phase::Leading) {
            lead.handed_over_to = Some(heir);
            lead.phase = Phase::HandingOver { heir, until, is_ready: false };
        }
    }

    /// Whether the lead may go to that replica: it is in sync, or this leader has asked for it to be and acknowledges nothing
    /// without it.
    fn may_lead_next(&self, heir: PlacementId) -> bool {
        heir != self.me && self.required().any(|member| member == heir)
    }

    /// Notes that the heir is ready, when it is; gives up when time is over.
    pub(super) fn hand_over(&mut self, now: Millis) {
        let end = self.log.end().index;
        let Some(lead) = &mut self.lead else { return };
        let Phase::HandingOver { heir, until, is_ready } = lead.phase else { return };
        if now >= until {
            lead.phase = Phase::Leading;
            self.effects.push(Effect::TransferEnded(heir));
            return;
        }
        let has_all = lead.followers.get(&heir).is_some_and(|follower| follower.matched >= end);
        let is_all_committed = self.committed >= end || planted::is(Planted::HastyHeir);
        if (has_all || planted::is(Planted::HastyHeir)) && is_all_committed && !is_ready {
            lead.phase = Phase::HandingOver { heir, until, is_ready: true };
            self.effects.push(Effect::HeirIsReady(heir));
        }
    }

    /// Nothing is handed over to a replica that is not in sync any more. When it is in sync again while the order still names it,
    /// the hand-over begins anew.
    pub(super) fn end_transfer_to_who_left(&mut self) {
        let Some(Phase::HandingOver { heir, .. }) = self.phase().copied() else { return };
        let may_lead = self.may_lead_next(heir);
        if let Some(lead) = self.lead.as_mut().filter(|_| !may_lead) {
            lead.handed_over_to = None;
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
