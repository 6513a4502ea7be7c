//! What the log of a leader keeps for the followers to which rows are copied (rule 9).
//!
//! A follower to which the log does not reach back gets a snapshot, and goes on behind it by the log. If the log did not reach
//! back to the snapshot when that is whole, the next one would be in no better case, as clients write on: the follower would be
//! copied to for ever. So from the beginning of a copy until its follower has all, the log is kept from the snapshot on:
//!
//! | a copy | the log behind its snapshot | clients |
//! |---|---|---|
//! | goes on | is kept, up to `copy_log_bytes` | wait for it when that would be used up (`copy/deadline.rs`) |
//! | is whole, and its follower stores the log | the same, behind what it has stored | the same |
//! | was not heard of for `copy_slows_ms` | is kept | do not wait for it |
//! | was not heard of for `copy_patience_ms`, or more than `copy_log_bytes` is kept | is let go of as usual | the same |
//! | is given up, or its follower has all, is in sync, or is no peer any more | the same | the same |
//!
//! The driver copies, and says how far it is. A leader that goes on under a later epoch keeps the log on; the next leader begins
//! with copies of its own.

use super::{LogPosition, Replica};
use crate::table::copy::deadline::{self, CopyProgress, Urgency};
use partage_core::base::id::PlacementId;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;

/// How far a snapshot is that is sent to a follower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// The position of the snapshot.
    pub position: LogPosition,
    /// What of it the follower has stored.
    pub progress: CopyProgress,
    /// It has stored the last row.
    pub is_whole: bool,
}

/// What the log keeps for one follower.
#[derive(Debug, Clone)]
pub(super) struct KeptFor {
    position: LogPosition,
    progress: CopyProgress,
    /// Entries behind this index are kept.
    behind: u64,
    /// When the copy, or then its follower, was last heard to go on.
    heard: Millis,
    /// Bytes of all entries up to the snapshot.
    before: u64,
    /// Since all rows are copied: bytes of all entries until then, and of those that the follower has stored since.
    whole: Option<(u64, u64)>,
}

impl KeptFor {
    fn goes_on(&self, now: Millis, ms: u64) -> bool {
        now.since(self.heard) < ms
    }

    /// Bytes that may still be logged, when so many ever were.
    fn room(&self, appended: u64, most: u64) -> u64 {
        let (may, logged) = match self.whole {
            None => (deadline::may_be_logged(self.progress, most), appended - self.before.min(appended)),
            Some((before, stored)) => {
                (deadline::may_be_logged_behind(stored, most), appended - before.min(appended))
            }
        };
        may.saturating_sub(logged)
    }
}

impl Replica {
    /// The driver sends a snapshot to a follower, and this is how far it is; none: it sends it no more, and has not come to its
    /// end. To be said when a snapshot begins, and whenever the follower has stored a part.
    pub fn copies_to(&mut self, now: Millis, to: PlacementId, copied: Option<Copied>) {
        let (log, Some(lead)) = (&self.log, &mut self.lead) else { return };
        let is_peer = lead.followers.contains_key(&to);
        let reaches_back = |copied: &Copied| is_peer && copied.position.index >= log.base().index;
        let Some(copied) = copied.filter(reaches_back) else {
            lead.copies.remove(&to);
            return;
        };
        let Copied { position, progress, is_whole } = copied;
        let begins = || KeptFor {
            position,
            progress,
            behind: position.index,
            heard: now,
            before: log.appended() - log.bytes_between(position.index, log.end().index),
            whole: None,
        };
        let kept = lead.copies.entry(to).or_insert_with(begins);
        if kept.position != position {
            *kept = begins();
        }
        (kept.progress, kept.heard) = (progress, now);
        if is_whole {
            kept.whole.get_or_insert((log.appended(), 0));
        }
    }

    /// No log is kept for copies any more: the disk has no room for it, or the replica is closed.
    pub fn end_copies(&mut self) {
        self.lead.iter_mut().for_each(|lead| lead.copies.clear());
    }

    /// How urgent the copy to that follower is.
    pub fn copy_urgency(&self, to: PlacementId) -> Urgency {
        let kept = self.lead.as_ref().and_then(|lead| lead.copies.get(&to));
        kept.map_or(Urgency::GivesWay, |kept| {
            let logged = self.log.appended() - kept.before.min(self.log.appended());
            deadline::urgency(kept.progress, logged, self.settings.copy_log_bytes as u64)
        })
    }

    /// So many bytes of entries may be logged now, so that no copy is overrun that goes on; none: there is none.
    pub fn write_room(&self, now: Millis) -> Option<u64> {
        let (most, slows) = (self.settings.copy_log_bytes as u64, self.settings.copy_slows_ms);
        let copies = self.lead.as_ref()?.copies.values();
        copies.filter(|kept| kept.goes_on(now, slows)).map(|kept| kept.room(self.log.appended(), most)).min()
    }

    /// Whether the log keeps entries for copies.
    pub fn keeps_for_copies(&self, now: Millis) -> bool {
        self.kept_behind(now).is_some()
    }

    /// Entries behind this index are kept for copies.
    pub(super) fn kept_behind(&self, now: Millis) -> Option<u64> {
        if planted::is(Planted::OverrunCopy) {
            return None;
        }
        let patience = self.settings.copy_patience_ms;
        let copies = self.lead.as_ref()?.copies.values();
        copies.filter(|kept| kept.goes_on(now, patience)).map(|kept| kept.behind).min()
    }

    /// The log does not reach back any more to some of what was kept.
    pub(super) fn forget_outrun_copies(&mut self) {
        let base = self.log.base().index;
        self.lead.iter_mut().for_each(|lead| lead.copies.retain(|_, kept| kept.behind >= base));
    }

    /// A follower has replied: what it has of the log behind its snapshot is kept for it no more.
    pub(super) fn copy_follows(&mut self, now: Millis, from: PlacementId) {
        let committed = self.committed;
        let (log, Some(lead)) = (&self.log, &mut self.lead) else { return };
        let matched = lead.followers.get(&from).map_or(0, |follower| follower.matched);
        let Some(kept) = lead.copies.get_mut(&from) else { return };
        if matched > kept.behind {
            if let Some((_, stored)) = &mut kept.whole {
                *stored += log.bytes_between(kept.behind, matched);
            }
            (kept.behind, kept.heard) = (matched, now);
        }
        if matched >= committed {
            lead.copies.remove(&from);
        }
    }
}
