//! What is to be on the disk at once: several files, or a file and its folder.
//!
//! A disk takes some milliseconds to bring to stable storage what it has, and hardly longer when it is asked several times
//! meanwhile: the kernel makes one request of these. One after the other each would take as long as the first.
//!
//! The threads are begun when there is something for them, and stay until the store ends: groups come many times in a second, and
//! what is to be synced is often done sooner than a thread has begun. A file that is synced alone needs none.

use super::file::BatchFile;
use crate::limits::SYNCS_AT_ONCE;
use partage_journal::Disk;
use partage_service::shuffle::ShuffleId;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SendError, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

/// What a thread does next.
type Job = Box<dyn FnOnce() + Send>;

/// Does something, and says what came of it.
type Asked<T> = Box<dyn FnOnce() -> T + Send>;

/// The file of a shuffle that is added to.
type Head = (ShuffleId, BatchFile);

/// A file that was synced, or the folder, and what came of it.
type Synced = (Option<Head>, Result<(), String>);

/// A thread, and the way to it. It has one job at a time.
#[derive(Debug)]
struct SyncThread {
    jobs: SyncSender<Job>,
    thread: JoinHandle<()>,
}

impl SyncThread {
    fn start() -> io::Result<SyncThread> {
        let (jobs, inbox) = sync_channel::<Job>(1);
        let run = move || inbox.into_iter().for_each(|job| job());
        let thread = Builder::new().name("shuffle-sync".to_owned()).spawn(run)?;
        Ok(SyncThread { jobs, thread })
    }
}

/// The threads of a store that sync.
#[derive(Debug, Default)]
pub(super) struct SyncThreads {
    threads: Vec<SyncThread>,
}

impl Drop for SyncThreads {
    fn drop(&mut self) {
        for SyncThread { jobs, thread } in self.threads.drain(..) {
            drop(jobs);
            // What it has done last was waited for, or has panicked.
            let _ = thread.join();
        }
    }
}

impl SyncThreads {
    /// Syncs these files, and their folder if one of them is new in it. The files come back, unless a thread has panicked.
    ///
    /// # Errors
    /// What is on the disk is not known.
    pub(super) fn sync_all(
        &mut self,
        files: Vec<Head>,
        disk: &Arc<dyn Disk>,
        dir: &Path,
    ) -> (Vec<Head>, Result<(), String>) {
        let is_new = files.iter().any(|(_, file)| !file.is_named());
        let mut asked: Vec<Asked<Synced>> = files.into_iter().map(of_file).collect();
        if is_new {
            asked.push(of_folder(Arc::clone(disk), dir));
        }
        let (mut back, mut outcome) = (Vec::with_capacity(asked.len()), Ok(()));
        while !asked.is_empty() {
            let rest = asked.split_off(asked.len().min(SYNCS_AT_ONCE));
            let some = std::mem::replace(&mut asked, rest);
            let count = some.len();
            let done = self.at_once(some);
            if done.len() < count {
                outcome = outcome.and(Err("a thread that syncs has panicked".to_owned()));
            }
            for (file, synced) in done {
                back.extend(file);
                outcome = outcome.and(synced);
            }
        }
        (back, outcome)
    }

    /// Does all of these, the last one on this thread. All are done when it returns; of one that panicked there is no answer.
    fn at_once<T: Send + 'static>(&mut self, mut asked: Vec<Asked<T>>) -> Vec<T> {
        let Some(last) = asked.pop() else { return Vec::new() };
        let (answers, inbox) = sync_channel(asked.len());
        let mut without_thread = Vec::new();
        for (at, asked) in asked.into_iter().enumerate() {
            let answers = answers.clone();
            let job: Job = Box::new(move || drop(answers.send(asked())));
            without_thread.extend(self.begin(at, job).err());
        }
        drop(answers);
        let mut done = vec![last()];
        without_thread.into_iter().for_each(|job| job());
        // There is room for each answer, and the last one that may come is here when no thread has a job any more.
        done.extend(inbox);
        done
    }

    /// Hands a job to the thread of that place, or gives it back: the system gives no more threads, or this one has panicked.
    fn begin(&mut self, at: usize, job: Job) -> Result<(), Job> {
        if at == self.threads.len() {
            match SyncThread::start() {
                Ok(thread) => self.threads.push(thread),
                Err(_) => return Err(job),
            }
        }
        match self.threads.get(at) {
            Some(thread) => thread.jobs.send(job).map_err(|SendError(job)| job),
            None => Err(job),
        }
    }
}

fn of_file((shuffle, mut file): Head) -> Asked<Synced> {
    Box::new(move || {
        let synced = file.sync();
        (Some((shuffle, file)), synced)
    })
}

fn of_folder(disk: Arc<dyn Disk>, dir: &Path) -> Asked<Synced> {
    let dir = dir.to_owned();
    Box::new(move || {
        let synced = disk.sync_dir(&dir);
        (None, synced.map_err(|error| format!("syncing `{}`: {error}", dir.display())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_journal::faulty_disk::FaultyDisk;
    use std::collections::BTreeSet;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::{ThreadId, current};

    /// It does not return before so many of them have begun.
    fn meeting(meets: &Arc<Barrier>) -> Asked<ThreadId> {
        let meets = Arc::clone(meets);
        Box::new(move || {
            meets.wait();
            current().id()
        })
    }

    #[test]
    fn all_are_under_way_together_on_threads_that_stay() {
        let (mut threads, meets) = (SyncThreads::default(), Arc::new(Barrier::new(3)));
        let mut met = BTreeSet::new();
        for _ in 0..10 {
            let done = threads.at_once((0..3).map(|_| meeting(&meets)).collect());
            assert!(done.len() == 3 && done[0] == current().id(), "the last one is done here");
            met.extend(done.iter().map(|id| format!("{id:?}")));
        }
        assert_eq!((met.len(), threads.threads.len()), (3, 2), "{met:?}");
        assert!(threads.at_once(Vec::<Asked<()>>::new()).is_empty());
    }

    #[test]
    fn one_alone_is_done_on_this_thread() {
        let mut threads = SyncThreads::default();
        let asked: Asked<ThreadId> = Box::new(|| current().id());
        assert_eq!(threads.at_once(vec![asked]), [current().id()]);
        assert!(threads.threads.is_empty(), "no thread was begun for it");
    }

    #[test]
    fn one_that_panics_ends_no_other_and_holds_nobody_up() {
        let (mut threads, done) = (SyncThreads::default(), Arc::new(AtomicUsize::new(0)));
        for round in 1..=3 {
            let asked = |at: usize| -> Asked<()> {
                let done = Arc::clone(&done);
                Box::new(move || {
                    assert!(at > 0 || round > 1, "it panics");
                    done.fetch_add(1, Ordering::Relaxed);
                })
            };
            let count = threads.at_once((0..4).map(asked).collect()).len();
            // The thread that panics may be about to end when it gets the next one.
            assert!(if round == 1 { count == 3 } else { count >= 3 }, "{count} in round {round}");
        }
        assert!(done.load(Ordering::Relaxed) >= 10);
    }

    #[test]
    fn one_that_fails_is_told_and_the_others_are_done() {
        let disk: Arc<dyn Disk> = Arc::new(FaultyDisk::default());
        let mut threads = SyncThreads::default();
        assert!(
            matches!(threads.sync_all(Vec::new(), &disk, Path::new("/none")), (back, Ok(())) if back.is_empty())
        );
        for failing in 0..3 {
            let asked = |at: usize| -> Asked<Result<(), String>> {
                Box::new(move || if at == failing { Err("it failed".to_owned()) } else { Ok(()) })
            };
            let done = threads.at_once((0..3).map(asked).collect());
            assert_eq!((done.len(), done.into_iter().filter(Result::is_err).count()), (3, 1));
        }
    }
}
