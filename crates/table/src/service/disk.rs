//! What a node of tables does about its disk: one without room, or with little, and one that stores nothing any more.
//!
//! | the disk | the node |
//! |---|---|
//! | is used up to [`DiskLimits::nearly_full`](partage_worker::DiskLimits) | tells the coordinator with its heartbeats, which places nothing new there |
//! | is used up to [`DiskLimits::full`](partage_worker::DiskLimits) | does as if it had no room, while there still is some for compactions |
//! | has no room, also when the node starts | refuses writes, and tells the coordinator until there is room |
//! | has been writing the same group of the log for [`LOG_STALL`] | tells the coordinator until the group is written: writes would wait for as long as that takes, and reads need none |
//! | the same for [`LOG_STALL_REFUSES`] | refuses writes, too |
//!
//! The coordinator lets other nodes lead that take writes. Where none does, the node leads on, refuses writes and answers reads.
//! Leaders remove followers on a stalled disk from the in-sync set by themselves.

use super::Tables;
use crate::limits::{LOG_LOOK, LOG_STALL, LOG_STALL_REFUSES, ROOM_LOOK};
use partage_worker::{DiskUse, Worker};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// The group that is being written, since when that was seen, and when the node looked last.
#[derive(Debug, Clone, Copy, Default)]
struct Writing {
    group: Option<(u64, Instant)>,
    looked: Option<Instant>,
}

impl Writing {
    /// The node looks again; says for how long the same group has been written.
    fn look(&mut self, now: Instant, group: Option<u64>) -> Duration {
        // A process that was stopped itself does not blame its disk.
        let has_looked = self.looked.replace(now).is_some_and(|looked| now - looked <= 2 * LOG_LOOK);
        self.group = match (self.group, group) {
            (Some((known, since)), Some(group)) if known == group && has_looked => Some((group, since)),
            (_, group) => group.map(|group| (group, now)),
        };
        self.group.map_or(Duration::ZERO, |(_, since)| now.duration_since(since))
    }
}

/// What the node has found out about its disk last, for metrics.
#[derive(Debug, Default)]
pub(super) struct DiskFigures {
    /// The log has stored nothing for long, though records wait.
    pub(super) is_stalled: AtomicBool,
    /// Nothing new is to be placed here.
    pub(super) is_nearly_full: AtomicBool,
    /// The share that is used, as the bits of a double.
    used: AtomicU64,
}

impl DiskFigures {
    /// The share of the disk that is used; 0 before the node has looked.
    pub(super) fn used(&self) -> f64 {
        f64::from_bits(self.used.load(Ordering::Relaxed))
    }
}

impl Tables {
    /// Watches how much of the disk is used, and tells the coordinator at the limits.
    pub(super) async fn watch_limits(&self, worker: &Worker) {
        let (limits, folder) = (self.node().disk_limits(), self.node().folder());
        let seen = |seen: DiskUse| {
            let DiskUse { share, before, at } = seen;
            self.0.disk.used.store(share.to_bits(), Ordering::Relaxed);
            self.0.disk.is_nearly_full.store(at.nearly_full, Ordering::Relaxed);
            let (folder, percent) = (folder.display(), share * 100.0);
            if at.full != before.full {
                let limit = limits.full * 100.0;
                let why =
                    format!("{percent:.1} % of the disk of {folder} are used, and the limit is {limit:.1} %");
                self.node().set_disk_at_limit(at.full, &why);
            }
            match (before.nearly_full, at.nearly_full) {
                (false, true) => tracing::warn!(
                    "the disk of {folder} is nearly full: {percent:.1} % are used, so nothing new is placed on this node; make room"
                ),
                (true, false) => tracing::info!("the disk of {folder} has room for new replicas again"),
                _ => {}
            }
        };
        worker.watch_disk(limits, folder, seen).await;
    }

    /// Tells the coordinator while the disk has no room.
    pub(super) async fn watch_full(&self, worker: &Worker) {
        let mut full = self.full();
        loop {
            worker.set_disk_full(full.borrow_and_update().is_some());
            if full.changed().await.is_err() {
                return;
            }
        }
    }

    /// Looks for room after a start without room, since no write there would show it.
    pub(super) async fn watch_full_start(&self) {
        while self.0.members.found_no_room() {
            sleep(ROOM_LOOK).await;
            let members = self.0.members.clone();
            let has_room = spawn_blocking(move || members.look_for_room()).await;
            if has_room.unwrap_or_default() {
                self.node().start_was_full(false);
            }
        }
    }

    /// Watches for a disk that stores nothing, so that leaders here cannot acknowledge writes: tells the coordinator.
    pub(super) async fn watch_stalled(&self, worker: &Worker) {
        let (mut looks, mut writing) = (interval(LOG_LOOK), Writing::default());
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = looks.tick().await;
            // A disk without room is reported apart.
            let group = self.node().writing().filter(|_| !self.node().has_no_room());
            let same_for = writing.look(now, group);
            let is_stalled = same_for >= LOG_STALL;
            let was_stalled = self.0.disk.is_stalled.swap(is_stalled, Ordering::Relaxed);
            worker.set_disk_stalled(is_stalled);
            self.node().set_refuses_as_stalled(same_for >= LOG_STALL_REFUSES);
            let seconds = LOG_STALL.as_secs();
            match (was_stalled, is_stalled) {
                (false, true) => tracing::error!(
                    "the disk has stored nothing for {seconds} seconds: writes wait, and other nodes lead until it does, where they can; look at the disk"
                ),
                (true, false) => tracing::info!("the disk stores again"),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_known_for_how_long_the_log_writes_the_same_group() {
        let (begun, mut writing) = (Instant::now(), Writing::default());
        let at = |ms| begun + Duration::from_millis(ms);
        let mut look = |ms, group| writing.look(at(ms), group).as_millis();
        assert_eq!((look(0, Some(7)), look(2_000, Some(7)), look(4_000, Some(7))), (0, 2_000, 4_000));
        assert_eq!((look(4_500, Some(8)), look(6_000, Some(8))), (0, 1_500), "another one");
        assert_eq!(look(6_100, None), 0, "nothing waits");
        assert_eq!((look(8_000, Some(9)), look(9_500, Some(9))), (0, 1_500));
        assert_eq!(look(60_000, Some(9)), 0, "the process stood still itself");
        assert_eq!(look(61_000, Some(9)), 1_000);
    }
}
