//! The threads that wait for the disk of the stores: they flush, compact, export, fill, open and remove.
//!
//! Tasks of one placement are done in their order, one at a time. So a store is opened again only after everything that had it
//! open is done with it. Placements take turns at the threads.
//!
//! A compaction may take seconds, so one thread is always left for other tasks, of which requests may wait for some. A compaction
//! that may not begin yet holds up no task behind it: it must not keep its store open while it waits. A replica has one task of
//! each kind under way at most, which bounds the queue.

use partage_core::base::id::PlacementId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

type Work = Box<dyn FnOnce() + Send>;

struct Task {
    work: Work,
    is_compaction: bool,
}

/// The tasks of all threads. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Tasks>);

struct Tasks {
    queue: Mutex<Queue>,
    changed: Condvar,
}

struct Queue {
    /// The tasks that wait, of each placement that has one waiting or under way.
    waiting: BTreeMap<PlacementId, VecDeque<Task>>,
    /// Placements with a task that waits, and none under way.
    turns: VecDeque<PlacementId>,
    /// Compactions under way, and how many may be.
    compactions: usize,
    most_compactions: usize,
    is_stopped: bool,
}

impl Queue {
    fn new(threads: usize) -> Queue {
        Queue {
            waiting: BTreeMap::new(),
            turns: VecDeque::new(),
            compactions: 0,
            most_compactions: threads.saturating_sub(1).max(1),
            is_stopped: false,
        }
    }

    fn add(&mut self, placement: PlacementId, task: Task) {
        match self.waiting.get_mut(&placement) {
            Some(waiting) => waiting.push_back(task),
            None => {
                self.waiting.insert(placement, [task].into());
                self.turns.push_back(placement);
            }
        }
    }

    /// The next task that may begin.
    fn take(&mut self) -> Option<(PlacementId, Task)> {
        let may_compact = self.compactions < self.most_compactions;
        let waiting = &self.waiting;
        let next = |placement: &PlacementId| {
            waiting.get(placement)?.iter().position(|task| may_compact || !task.is_compaction)
        };
        let (turn, at) = self.turns.iter().enumerate().find_map(|(turn, of)| Some((turn, next(of)?)))?;
        let placement = self.turns.remove(turn)?;
        let task = self.waiting.get_mut(&placement)?.remove(at)?;
        self.compactions += usize::from(task.is_compaction);
        Some((placement, task))
    }

    /// A task is done: the next one of its placement waits for its turn.
    fn done(&mut self, placement: PlacementId, was_compaction: bool) {
        self.compactions -= usize::from(was_compaction);
        if self.waiting.get(&placement).is_some_and(|waiting| !waiting.is_empty()) {
            self.turns.push_back(placement);
        } else {
            self.waiting.remove(&placement);
        }
    }
}

impl Pool {
    /// Starts so many threads, and at least one.
    pub(crate) fn start(threads: usize) -> std::io::Result<(Pool, Vec<JoinHandle<()>>)> {
        let threads = threads.max(1);
        let tasks = Tasks { queue: Mutex::new(Queue::new(threads)), changed: Condvar::new() };
        let pool = Pool(Arc::new(tasks));
        let start = || {
            let tasks = Arc::clone(&pool.0);
            std::thread::Builder::new().name("table-storage".to_owned()).spawn(move || tasks.work())
        };
        let mut started = Vec::new();
        for _ in 0..threads {
            match start() {
                Ok(thread) => started.push(thread),
                Err(error) => {
                    pool.stop();
                    return Err(error);
                }
            }
        }
        Ok((pool, started))
    }

    /// Adds a task of that placement.
    pub(crate) fn add(&self, placement: PlacementId, work: impl FnOnce() + Send + 'static) {
        self.0.add(placement, Task { work: Box::new(work), is_compaction: false });
    }

    /// Adds a compaction of a store of that placement. Tasks that are added later may be done before it.
    pub(crate) fn add_compaction(&self, placement: PlacementId, work: impl FnOnce() + Send + 'static) {
        self.0.add(placement, Task { work: Box::new(work), is_compaction: true });
    }

    /// The threads end, and do nothing more of what waits.
    pub(crate) fn stop(&self) {
        let mut queue = self.0.lock();
        queue.is_stopped = true;
        // A task that waits may hold the pool itself. It is dropped without the lock, as its drop may add another one.
        let waiting = std::mem::take(&mut queue.waiting);
        queue.turns.clear();
        drop(queue);
        self.0.changed.notify_all();
        drop(waiting);
    }
}

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, placement: PlacementId, task: Task) {
        let mut queue = self.lock();
        if !queue.is_stopped {
            queue.add(placement, task);
        }
        drop(queue);
        self.changed.notify_one();
    }

    fn work(&self) {
        while let Some((placement, task)) = self.take() {
            let _turn = Turn { tasks: self, placement, is_compaction: task.is_compaction };
            (task.work)();
        }
    }

    /// The next task that may begin, when there is one. None: the threads end.
    fn take(&self) -> Option<(PlacementId, Task)> {
        let mut queue = self.lock();
        loop {
            if queue.is_stopped {
                return None;
            }
            if let Some(next) = queue.take() {
                return Some(next);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A task that is under way: also one that panics ends.
struct Turn<'a> {
    tasks: &'a Tasks,
    placement: PlacementId,
    is_compaction: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.tasks.lock().done(self.placement, self.is_compaction);
        // A task of that placement, or a compaction, may begin now: this thread takes one of them, another one the other.
        self.tasks.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    const ONE: PlacementId = PlacementId(1);
    const TWO: PlacementId = PlacementId(2);
    const THREE: PlacementId = PlacementId(3);

    /// A pool, and a task of it that says its name when it begins and ends when the test lets it.
    struct Scene {
        pool: Pool,
        threads: Vec<JoinHandle<()>>,
        begun: (SyncSender<&'static str>, Receiver<&'static str>),
    }

    impl Scene {
        fn new(threads: usize) -> Scene {
            let (pool, threads) = Pool::start(threads).unwrap();
            Scene { pool, threads, begun: sync_channel(100) }
        }

        fn task(&self, name: &'static str) -> (impl FnOnce() + Send + 'static, SyncSender<()>) {
            let (end, ended) = sync_channel(1);
            let begun = self.begun.0.clone();
            let work = move || {
                begun.send(name).unwrap();
                // The test may be over.
                let _ = ended.recv();
            };
            (work, end)
        }

        fn begins(&self, name: &str) {
            assert_eq!(self.begun.1.recv().unwrap(), name);
        }

        fn nothing_begins(&self) {
            let more = self.begun.1.recv_timeout(std::time::Duration::from_millis(50));
            assert!(more.is_err(), "{more:?} has begun");
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            self.pool.stop();
            // One of them may have panicked.
            self.threads.drain(..).for_each(|thread| drop(thread.join()));
        }
    }

    #[test]
    fn tasks_of_a_placement_are_done_one_after_the_other_and_those_of_others_beside_them() {
        let scene = Scene::new(2);
        let ((a, end_a), (b, _end_b), (c, end_c)) = (scene.task("a"), scene.task("b"), scene.task("c"));
        scene.pool.add(ONE, a);
        scene.begins("a");
        scene.pool.add(ONE, b);
        scene.nothing_begins();
        scene.pool.add(TWO, c);
        scene.begins("c");
        end_c.send(()).unwrap();
        scene.nothing_begins();
        end_a.send(()).unwrap();
        scene.begins("b");
    }

    #[test]
    fn compactions_leave_a_thread_to_other_tasks() {
        let scene = Scene::new(2);
        let ((a, end_a), (b, _end_b), (c, _end_c)) = (scene.task("a"), scene.task("b"), scene.task("c"));
        scene.pool.add_compaction(ONE, a);
        scene.begins("a");
        scene.pool.add_compaction(TWO, b);
        scene.nothing_begins();
        scene.pool.add(THREE, c);
        scene.begins("c");
        end_a.send(()).unwrap();
        scene.begins("b");
    }

    #[test]
    fn a_compaction_that_waits_holds_up_no_task_of_its_placement() {
        let scene = Scene::new(2);
        let ((a, end_a), (b, _end_b), (c, end_c)) = (scene.task("a"), scene.task("b"), scene.task("c"));
        scene.pool.add_compaction(ONE, a);
        scene.begins("a");
        scene.pool.add_compaction(TWO, b);
        scene.pool.add(TWO, c);
        scene.begins("c");
        end_a.send(()).unwrap();
        scene.nothing_begins();
        end_c.send(()).unwrap();
        scene.begins("b");
    }

    #[test]
    fn a_task_that_panics_holds_up_no_other() {
        let scene = Scene::new(2);
        scene.pool.add_compaction(ONE, || std::panic::resume_unwind(Box::new(())));
        let (a, _end_a) = scene.task("a");
        scene.pool.add_compaction(ONE, a);
        scene.begins("a");
    }

    #[test]
    fn one_thread_does_all_tasks() {
        let scene = Scene::new(1);
        let (a, end_a) = scene.task("a");
        let (b, _end_b) = scene.task("b");
        scene.pool.add_compaction(ONE, a);
        scene.pool.add(TWO, b);
        scene.begins("a");
        end_a.send(()).unwrap();
        scene.begins("b");
    }

    #[test]
    fn what_waits_at_the_stop_is_dropped() {
        let scene = Scene::new(1);
        let (a, end_a) = scene.task("a");
        scene.pool.add(ONE, a);
        scene.begins("a");
        let (held, is_dropped) = sync_channel::<()>(1);
        scene.pool.add(TWO, move || drop(held));
        scene.pool.stop();
        assert!(is_dropped.recv().is_err());
        end_a.send(()).unwrap();
    }
}
