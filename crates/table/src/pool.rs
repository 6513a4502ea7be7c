//! The threads that wait for the disk of the stores: they flush, compact, export, fill, open and remove.
//!
//! All tasks of one placement are done by one thread, in their order. So a store is opened again only after everything that
//! had it open is done with it. A replica has one task of each kind under way at most, which bounds the queue.

use partage_core::base::id::PlacementId;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Tasks {
    waiting: Mutex<(VecDeque<Task>, bool)>,
    filled: Condvar,
}

/// The tasks of all threads. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pool(Vec<Arc<Tasks>>);

impl Pool {
    /// Starts so many threads, and at least one.
    pub(crate) fn start(threads: usize) -> std::io::Result<(Pool, Vec<JoinHandle<()>>)> {
        let pool = Pool((0..threads.max(1)).map(|_| Arc::default()).collect());
        let start = |tasks: &Arc<Tasks>| {
            let tasks = Arc::clone(tasks);
            std::thread::Builder::new().name("table-storage".to_owned()).spawn(move || tasks.work())
        };
        let mut threads = Vec::new();
        for tasks in &pool.0 {
            match start(tasks) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    pool.stop();
                    return Err(error);
                }
            }
        }
        Ok((pool, threads))
    }

    /// Adds a task of that placement.
    pub(crate) fn add(&self, placement: PlacementId, task: impl FnOnce() + Send + 'static) {
        let tasks = &self.0[(placement.0 % self.0.len() as u64) as usize];
        tasks.waiting.lock().unwrap_or_else(PoisonError::into_inner).0.push_back(Box::new(task));
        tasks.filled.notify_one();
    }

    /// The threads end, and do nothing more of what waits.
    pub(crate) fn stop(&self) {
        for tasks in &self.0 {
            tasks.waiting.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
            tasks.filled.notify_all();
        }
    }
}

impl Tasks {
    fn work(&self) {
        loop {
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let idle = |(tasks, is_stopped): &mut (VecDeque<Task>, bool)| tasks.is_empty() && !*is_stopped;
            let mut waiting = self.filled.wait_while(waiting, idle).unwrap_or_else(PoisonError::into_inner);
            if waiting.1 {
                waiting.0.clear();
                return;
            }
            let task = waiting.0.pop_front();
            drop(waiting);
            if let Some(task) = task {
                task();
            }
        }
    }
}
