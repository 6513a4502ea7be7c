//! Handing over to the next leader, the *heir*: rule 9. The coordinator and the command line call it a transfer.
//!
//! ```text
//!  leader        stops admitting ─ heir has all ─► `heir_ready`     order: heir leads ─► LetGo ─╮
//!  coordinator                                        ╰─► commits the heir as the leader ─╯     │
//!  heir                                                                    raises its fence ◄───╯ begins at once
//! ```
//!
//! Until it hears that order, the leader stays the leader: if the coordinator does not go on, it admits again. Then it sends
//! [`Message::LetGo`], so that the heir need not wait for its promise to end. Any leader that hears that it was replaced sends
//! it; if it is lost, the next leader waits.

use super::lead::Phase;
use super::message::Message;
use super::{Effect, Replica};
use partage_core::base::id::{Epoch, PlacementId};
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;

impl Replica {
    /// Begins a hand-over when the order asks for one, and ends it when the order asks for it no more. One that timed out does
    /// not begin again before an order has taken it back.
    pub(super) fn take_up_transfer(&mut self, now: Millis) {
        let until = now + self.settings.hand_over_ms;
        let heir = self.order.as_ref().filter(|order| self.leads_by(order)).and_then(|one| one.hand_over_to);
        let may_lead = heir.is_some_and(|heir| self.may_lead_next(heir));
        let Some(lead) = self.lead.as_mut().filter(|lead| lead.handed_over_to != heir) else { return };
        if let Phase::HandingOver { heir: former, .. } = lead.phase {
            lead.phase = Phase::Leading;
            self.effects.push(Effect::TransferEnded(former));
        }
        // The order asks for another heir, or for none: what it asked for before may begin anew.
        lead.handed_over_to = None;
        // If this leader does not serve yet, or the heir is not in sync yet, the next call tries again.
        if let Some(heir) = heir.filter(|_| may_lead && lead.phase == Phase::Leading) {
            lead.handed_over_to = Some(heir);
            lead.phase = Phase::HandingOver { heir, until, is_ready: false };
        }
    }

    /// Whether that replica may lead next: it is in sync, or this leader has asked for it to be and acknowledges nothing without
    /// it.
    fn may_lead_next(&self, heir: PlacementId) -> bool {
        heir != self.me && self.required().any(|member| member == heir)
    }

    /// Notes that the heir is ready, or gives the hand-over up when its time is over.
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

    /// Ends the hand-over to an heir that is not in sync any more. It begins anew if the heir is in sync again and the order
    /// still names it.
    pub(super) fn end_transfer_to_former_member(&mut self) {
        let Some(Phase::HandingOver { heir, .. }) = self.phase().copied() else { return };
        let may_lead = self.may_lead_next(heir);
        if let Some(lead) = self.lead.as_mut().filter(|_| !may_lead) {
            lead.handed_over_to = None;
            lead.phase = Phase::Leading;
            self.effects.push(Effect::TransferEnded(heir));
        }
    }

    /// Tells the next leader that this one has let go, once. This replica may have stepped down before it heard which one leads:
    /// the next leader refuses its appends if it hears its order first.
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
