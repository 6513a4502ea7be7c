//! A disk that fills: a node at a limit says so with its beats, and takes no new attempts.
//!
//! What is acknowledged stays; shuffles that end make room. There is no spilling to an object store yet.

use super::Running;
use crate::limits::{DISK_HYSTERESIS, DISK_LOOK};
use partage_door::state::used_share;
use partage_worker::Worker;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

/// Shares of the disk; 1 is no limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskLimits {
    /// From here on nothing new is placed on the node.
    pub nearly_full: f64,
    /// From here on the node takes no new attempts.
    pub full: f64,
}

impl DiskLimits {
    /// The node writes until the system has no room.
    pub const NONE: DiskLimits = DiskLimits { nearly_full: 1.0, full: 1.0 };
}

impl Default for DiskLimits {
    /// What is left at `full` is for attempts that are open, and for what their batches are divided into.
    fn default() -> DiskLimits {
        DiskLimits { nearly_full: 0.85, full: 0.95 }
    }
}

/// Whether the disk is at a limit. It is below it again when [`DISK_HYSTERESIS`] less is used.
fn is_at(limit: f64, was: bool, used: f64) -> bool {
    let limit_now = if was { (limit - DISK_HYSTERESIS).max(limit / 2.0) } else { limit };
    limit < 1.0 && used >= limit_now
}

/// Looks again and again how much of the disk is used: runs until it is dropped.
pub(crate) async fn attend(limits: DiskLimits, folder: PathBuf, running: Arc<Running>, worker: Worker) {
    let mut looks = interval(DISK_LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut nearly_full, mut full, mut has_failed) = (false, false, false);
    loop {
        looks.tick().await;
        let of = folder.clone();
        // A file system of other machines may let it wait.
        let Ok(looked) = spawn_blocking(move || used_share(&of)).await else { continue };
        let used = match looked {
            Ok(used) => used,
            Err(error) if !has_failed => {
                has_failed = true;
                let folder = folder.display();
                tracing::warn!("cannot look how much of the disk of {folder} is used: {error}");
                continue;
            }
            Err(_) => continue,
        };
        has_failed = false;
        nearly_full = is_at(limits.nearly_full, nearly_full, used);
        worker.set_disk_nearly_full(nearly_full);
        let was_full = full;
        full = is_at(limits.full, full, used);
        // A write that found no room says the same before the limit does.
        running.node.set_at_limit(full);
        worker.set_disk_full(full || running.node.status().is_full);
        if full && !was_full {
            let (folder, percent) = (folder.display(), used * 100.0);
            tracing::warn!(
                "{percent:.1} % of the disk of {folder} are used: the node takes no new attempts; make room, or delete shuffles"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_left_a_little_below_it_and_one_is_none() {
        assert!(is_at(0.9, false, 0.9) && !is_at(0.9, false, 0.899));
        assert!(is_at(0.9, true, 0.895) && !is_at(0.9, true, 0.88));
        assert!(!is_at(1.0, false, 1.0));
    }
}
