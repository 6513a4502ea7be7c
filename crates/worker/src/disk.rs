//! How much of the disk of a node is used, looked at again and again; which limit that is, core says.

use crate::limits::DISK_LOOK;
use crate::worker::Worker;
use partage_core::node::disk::{AtLimits, DiskLimits};
use rustix::fs::statvfs;
use std::io;
use std::path::Path;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

/// What a look at a disk has found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskUse {
    /// The share that is used, 0 to 1.
    pub share: f64,
    /// The limits that the disk was at when it was looked at before.
    pub before: AtLimits,
    /// The limits that the disk is at now.
    pub at: AtLimits,
}

impl Worker {
    /// Looks each second ([`DISK_LOOK`]) how much of the file system of `folder` is used, for as long as the future is polled,
    /// and calls `seen` with each finding. The worker reports a disk that is nearly full to the coordinator. The service
    /// decides in `seen` what its node does at [`DiskLimits::full`]. A look that fails is logged once, and the last finding
    /// stays.
    pub async fn watch_disk(&self, limits: DiskLimits, folder: &Path, mut seen: impl FnMut(DiskUse) + Send) {
        let (mut looks, mut at, mut has_failed) = (interval(DISK_LOOK), AtLimits::default(), false);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let of = folder.to_owned();
            // A file system of other machines may let it wait.
            let share = match spawn_blocking(move || used_share(&of)).await {
                Ok(Ok(share)) => share,
                Ok(Err(error)) if !has_failed => {
                    has_failed = true;
                    let folder = folder.display();
                    tracing::warn!(
                        "cannot look how much of the disk of {folder} is used, so that what the last look has found goes on to hold: {error}"
                    );
                    continue;
                }
                Ok(Err(_)) | Err(_) => continue,
            };
            has_failed = false;
            let before = at;
            at = before.look(limits, share);
            self.set_disk_nearly_full(at.nearly_full);
            seen(DiskUse { share, before, at });
        }
    }
}

/// The share that is used of what a file system has for processes without privileges, as `df` has it; 0 if it says of no block.
fn used_share(folder: &Path) -> io::Result<f64> {
    let found = statvfs(folder)?;
    let used = found.f_blocks.saturating_sub(found.f_bfree) as f64;
    let all = used + found.f_bavail as f64;
    Ok(if all > 0.0 { used / all } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_known_how_much_of_a_disk_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let used = used_share(folder.path()).unwrap();
        assert!((0.0..=1.0).contains(&used), "{used}");
        assert_eq!(used_share(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
