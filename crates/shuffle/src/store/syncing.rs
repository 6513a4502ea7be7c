//! What is to be on the disk at once: several files, or a file and its folder.
//!
//! A disk takes some milliseconds to bring to stable storage what it has, and hardly longer when it is asked several times
//! meanwhile: the kernel makes one request of these. One after the other each would take as long as the first.

use super::file::BatchFile;
use crate::limits::SYNCS_AT_ONCE;
use partage_journal::Disk;
use std::path::Path;
use std::thread::{Builder, scope};

/// Syncs something, or says what went wrong.
type SyncJob<'a> = Box<dyn FnMut() -> Result<(), String> + Send + 'a>;

/// Syncs these files, and their folder if one of them is new in it.
///
/// # Errors
/// What is on the disk is not known.
pub(super) fn sync_all<'a>(
    files: impl Iterator<Item = &'a mut BatchFile>,
    disk: &'a dyn Disk,
    dir: &'a Path,
) -> Result<(), String> {
    let (mut syncs, mut is_new): (Vec<SyncJob<'a>>, bool) = (Vec::new(), false);
    for file in files {
        is_new |= !file.is_named();
        syncs.push(Box::new(move || file.sync()));
    }
    if is_new {
        let sync_dir = move || {
            let synced = disk.sync_dir(dir);
            synced.map_err(|error| format!("syncing `{}`: {error}", dir.display()))
        };
        syncs.push(Box::new(sync_dir));
    }
    syncs.chunks_mut(SYNCS_AT_ONCE).try_for_each(at_once)
}

/// Does all of these, the last one on this thread. All are done when it returns.
fn at_once(syncs: &mut [SyncJob<'_>]) -> Result<(), String> {
    let Some((last, others)) = syncs.split_last_mut() else { return Ok(()) };
    let (mut done, mut without_thread) = (Vec::with_capacity(others.len() + 1), Vec::new());
    scope(|scope| {
        let mut threads = Vec::with_capacity(others.len());
        for (at, sync) in others.iter_mut().enumerate() {
            match Builder::new().name("shuffle-sync".to_owned()).spawn_scoped(scope, sync) {
                Ok(thread) => threads.push(thread),
                Err(_) => without_thread.push(at),
            }
        }
        done.push((*last)());
        let panicked = |_| Err("a thread that syncs has panicked".to_owned());
        done.extend(threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)));
    });
    // The system gives no more threads.
    for at in without_thread {
        done.extend(others.get_mut(at).map(|sync| (*sync)()));
    }
    done.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// It does not return before three of them have begun.
    fn meeting<'a>(meets: &'a Barrier, done: &'a AtomicUsize, fails: bool) -> SyncJob<'a> {
        Box::new(move || {
            meets.wait();
            done.fetch_add(1, Ordering::Relaxed);
            if fails { Err("it failed".to_owned()) } else { Ok(()) }
        })
    }

    #[test]
    fn syncs_are_under_way_together_and_all_are_done() {
        let (meets, done) = (Barrier::new(3), AtomicUsize::new(0));
        let sync = |fails| meeting(&meets, &done, fails);
        assert_eq!(at_once(&mut [sync(false), sync(false), sync(false)]), Ok(()));
        for failing in 0..3 {
            let mut syncs = [0, 1, 2].map(|at| sync(at == failing));
            assert_eq!(at_once(&mut syncs), Err("it failed".to_owned()));
        }
        assert_eq!(done.load(Ordering::Relaxed), 12, "one that fails ends no other");
        assert_eq!(at_once(&mut []), Ok(()));
    }
}
