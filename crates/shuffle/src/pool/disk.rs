//! A disk that fills: a node at a limit says so with its beats, and takes no new attempts.
//!
//! What is acknowledged stays; shuffles that end make room. From the first limit on sealed ones go to the object store, if there
//! is one (`Node::make_room`).

use super::Running;
use crate::limits::ROOM_LOOKS;
use partage_worker::{DiskLimits, DiskUse, Worker};
use std::path::PathBuf;
use std::sync::Arc;

/// What is left at `full` is for attempts that are open, and for what their batches are divided into.
pub const DISK_LIMITS: DiskLimits = DiskLimits { nearly_full: 0.85, full: 0.95 };

/// Looks again and again how much of the disk is used: runs until it is dropped.
pub(crate) async fn attend(limits: DiskLimits, folder: PathBuf, running: Arc<Running>, worker: Worker) {
    let mut looks = 0;
    let seen = |seen: DiskUse| {
        let DiskUse { share, before, at } = seen;
        // A disk that fills is listed now and then: that takes as long as it has batches. That it has room is said at each look:
        // a node that is busy may not take it up.
        looks = if at.nearly_full { looks + 1 } else { 0 };
        if looks % ROOM_LOOKS == 1 || !at.nearly_full {
            running.node.make_room(at.nearly_full);
        }
        // A write that found no room says the same before the limit does.
        running.node.set_at_limit(at.full);
        worker.set_disk_full(at.full || running.node.status().is_full);
        if at.full && !before.full {
            let (folder, percent) = (folder.display(), share * 100.0);
            tracing::warn!(
                "{percent:.1} % of the disk of {folder} are used: the node takes no new attempts; make room, or delete shuffles"
            );
        }
    };
    worker.watch_disk(limits, &folder, seen).await;
}
