//! How much log a leader keeps for followers to which it copies rows (rule 8).
//!
//! A follower to which the log does not reach back gets a snapshot, and then the log behind it. If the leader trimmed its log
//! beyond the snapshot meanwhile, the follower would need another one, and so on for ever while clients write. So the leader
//! keeps its log from the snapshot on until the follower has caught up:
//!
//! | a copy | the log behind its snapshot | clients |
//! |---|---|---|
//! | goes on | is kept, up to `copy_log_bytes` | wait for it when that would be used up (`copy/deadline.rs`) |
//! | is whole, and its follower stores the log | the same, behind what it has stored | the same |
//! | was not heard of for `copy_slows_ms` | is kept | do not wait for it |
//! | was not heard of for `copy_patience_ms`, or more than `copy_log_bytes` is kept | is trimmed as usual | the same |
//! | is given up, or its follower has all, is in sync, or is no peer any more | the same | the same |
//!
//! The driver copies, and reports its progress. A leader that goes on under a later epoch keeps the log; another leader begins
//! copies of its own.

use super::{LogPosition, Replica};
use crate::table::copy::deadline::{self, CopyProgress, Urgency};
use partage_core::base::id::PlacementId;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;

/// The progress of a snapshot that the driver sends to a follower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotProgress {
    /// The position of the snapshot.
    pub position: LogPosition,
    /// How much of it the follower has stored.
    pub progress: CopyProgress,
    /// The follower has stored the last row.
    pub is_whole: bool,
}

/// The part of the log that the leader keeps for one follower.
#[derive(Debug, Clone)]
pub(super) struct LogRetention {
    position: LogPosition,
    progress: CopyProgress,
    /// Entries behind this index are kept.
    behind: u64,
    /// When the copy last made progress, or its follower behind it.
    heard: Millis,
    /// Bytes ever logged up to the snapshot.
    before: u64,
    /// Set when all rows are copied: bytes logged until then, and bytes of entries that the follower has stored since.
    whole: Option<(u64, u64)>,
}

impl LogRetention {
    fn goes_on(&self, now: Millis, ms: u64) -> bool {
        now.since(self.heard) < ms
    }

    /// Bytes that may still be logged, after `appended` bytes ever.
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
    /// The driver reports the progress of a snapshot: when it begins, and whenever the follower has stored a part; none: the
    /// driver gave it up.
    pub fn copies_to(&mut self, now: Millis, to: PlacementId, copied: Option<SnapshotProgress>) {
        let (log, Some(lead)) = (&self.log, &mut self.lead) else { return };
        let is_peer = lead.followers.contains_key(&to);
        let reaches_back = |copied: &SnapshotProgress| is_peer && copied.position.index >= log.base().index;
        let Some(copied) = copied.filter(reaches_back) else {
            lead.copies.remove(&to);
            return;
        };
        let SnapshotProgress { position, progress, is_whole } = copied;
        let begins = || LogRetention {
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

    /// Keeps no log for copies any more: the disk has no room for it, or the replica is closed.
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

    /// How many bytes of entries may be logged now without overrunning a copy; none: no copy goes on.
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

    /// Forgets copies to whose snapshots the log does not reach back any more.
    pub(super) fn forget_outrun_copies(&mut self) {
        let base = self.log.base().index;
        self.lead.iter_mut().for_each(|lead| lead.copies.retain(|_, kept| kept.behind >= base));
    }

    /// A follower has replied: the log drops what it has of the entries behind its snapshot.
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
