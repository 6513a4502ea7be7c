//! What the threads have done.

use super::{Ends, EventLoop, Result};
use crate::node::counters::Counters;
use crate::node::inbox::Done;
use crate::node::storing::Order;
use crate::store::Written;
use partage_log::Report;
use partage_service::shuffle::message::Message;
use partage_service::shuffle::{buffer, holder};

impl EventLoop {
    pub(super) fn done(&mut self, done: Done) -> Result {
        match done {
            Done::Written(written) => self.written(written)?,
            // Two reads may find the same place. What was fetched since lies elsewhere, and is not asked for once more.
            Done::Damaged(key, place, damage) if self.reading.place(&key) == Some(place) => {
                self.shared.tell_damage(damage, self.config.settings.damages);
                self.storing.order(Order::Forget(key.clone(), place));
                self.holder(holder::Event::Damaged(key))?;
            }
            Done::Damaged(..) => {}
            Done::Log(report) => self.reported(report)?,
            Done::Passed(to, batch) => self.send(to, Message::Batch(batch)),
            Done::Divided(leader, division, segments, _taken) => {
                self.buffer(buffer::Event::Divide(leader, division, segments))?;
            }
            Done::Counted(leader, message) => self.send(leader, message),
            Done::Read(number, answer) => {
                self.count_read(number, &answer);
                self.answer_read(number, answer);
            }
            Done::Found(number, found) => self.answer_found(number, found),
            Done::Offloaded(shuffle, slot, outcome) => {
                self.holder(holder::Event::Offloaded(shuffle, slot, outcome))?;
            }
            Done::ObjectsSeen(shuffle, slot, by, are_there) => {
                self.holder(holder::Event::ObjectsSeen(shuffle, slot, by, are_there))?;
            }
            Done::ObjectsDeleted(shuffle, slot, is_done) => {
                self.holder(holder::Event::ObjectsDeleted(shuffle, slot, is_done))?;
            }
            Done::ObjectsFound(found) => self.holder(holder::Event::ObjectsFound(found))?,
            Done::Ended(why) => return Err(Ends(why)),
        }
        self.hand_out_local()
    }

    fn written(&mut self, written: Written) -> Result {
        for key in &written.stored {
            if let Some(size) = self.stored_soon.remove(key) {
                self.shared.counters.stored.add(size.records, size.bytes);
            }
        }
        for key in &written.refused {
            self.stored_soon.remove(key);
        }
        // That some of a group was stored says nothing: there may be room for little and not for much.
        if !written.refused.is_empty() {
            self.full_until = self.now() + self.config.settings.full_ms;
        }
        Counters::add(&self.shared.counters.not_stored, written.refused.len() as u64);
        for key in written.refused {
            self.holder(holder::Event::NotStored(key))?;
        }
        written.stored.into_iter().try_for_each(|key| self.holder(holder::Event::Stored(key)))
    }

    fn reported(&mut self, report: Report) -> Result {
        let ended = |error: partage_log::SubmitError| Ends(error.to_string());
        // Of a log that has ended the report says why.
        if !matches!(report, Report::Ended(_)) {
            self.decisions.hand_over().map_err(ended)?;
        }
        match report {
            Report::Synced(synced) => {
                let logged = self.decisions.synced(&synced);
                logged.into_iter().try_for_each(|logged| self.logged(logged))?;
                if self.leads_wait {
                    self.take_leads()?;
                }
            }
            Report::Refused(key, _, _) => self.decisions.refused(&key).map_err(ended)?,
            Report::Holding(keys) => self.decisions.let_go(&keys).map_err(ended)?,
            Report::Full(_) => self.shared.tell(|status| status.is_log_full = true),
            Report::HasRoom => self.shared.tell(|status| status.is_log_full = false),
            Report::Ended(error) => return Err(Ends(error.to_string())),
        }
        Ok(())
    }
}
