//! Reads of an object store that go ahead of what takes their bytes: some at a time, of bounded bytes, handed out in their order.

use super::lock;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};

/// How far reads go ahead.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Reads that are under way, or wait to be taken.
    pub(super) reads: usize,
    /// Their bytes. One read is always under way, however long.
    pub(super) bytes: u64,
}

/// How far the reads are.
#[derive(Debug)]
struct State<T, E> {
    /// The read that begins next, and the one that is taken next.
    next: usize,
    taken: usize,
    /// Bytes of the reads in between.
    bytes: u64,
    got: BTreeMap<usize, Result<T, E>>,
    /// Nothing more is taken, or a thread that reads has panicked.
    is_over: bool,
}

/// What threads that read share with the one that takes.
#[derive(Debug)]
struct Ahead<T, E> {
    state: Mutex<State<T, E>>,
    changed: Condvar,
}

/// Ends the reads when the thread that takes is done, or when any of them panics: else the others would wait for it.
struct Ends<'a, T, E> {
    ahead: &'a Ahead<T, E>,
    takes: bool,
}

impl<T, E> Drop for Ends<'_, T, E> {
    fn drop(&mut self) {
        if self.takes || std::thread::panicking() {
            lock(&self.ahead.state).is_over = true;
            self.ahead.changed.notify_all();
        }
    }
}

impl<T, E> Ahead<T, E> {
    fn new() -> Ahead<T, E> {
        let state = State { next: 0, taken: 0, bytes: 0, got: BTreeMap::new(), is_over: false };
        Ahead { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits until `look` finds something.
    fn wait<R>(&self, mut look: impl FnMut(&mut State<T, E>) -> Option<R>) -> R {
        let mut state = lock(&self.state);
        loop {
            if let Some(found) = look(&mut state) {
                return found;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The read that begins next, when there is room for it. None: there is no further one, or none is wanted.
    fn next(&self, sizes: &[u64], bounds: Bounds) -> Option<usize> {
        self.wait(|state| {
            let Some(bytes) = sizes.get(state.next).filter(|_| !state.is_over) else { return Some(None) };
            let (ahead, all) = (state.next - state.taken, state.bytes.saturating_add(*bytes));
            if ahead > 0 && (ahead >= bounds.reads || all > bounds.bytes) {
                return None;
            }
            state.bytes = all;
            state.next += 1;
            Some(Some(state.next - 1))
        })
    }

    fn read(&self, sizes: &[u64], bounds: Bounds, read: &impl Fn(usize) -> Result<T, E>) {
        let _ends = Ends { ahead: self, takes: false };
        while let Some(at) = self.next(sizes, bounds) {
            let got = read(at);
            lock(&self.state).got.insert(at, got);
            self.changed.notify_all();
        }
    }

    /// What a read has given. None: a thread that reads has panicked.
    fn got(&self, at: usize) -> Option<Result<T, E>> {
        self.wait(|state| match state.got.remove(&at) {
            Some(got) => Some(Some(got)),
            None => state.is_over.then_some(None),
        })
    }

    fn was_taken(&self, at: usize, bytes: u64) {
        let mut state = lock(&self.state);
        state.taken = at + 1;
        state.bytes = state.bytes.saturating_sub(bytes);
        drop(state);
        self.changed.notify_all();
    }
}

/// Carries out reads of these sizes, some of them at a time, and hands out what they give, in their order, until `take` says that
/// it wants no more. The first error of a read or of `take` ends it; what is under way then is waited for.
pub(super) fn in_order<T: Send, E: Send>(
    sizes: &[u64],
    bounds: Bounds,
    read: impl Fn(usize) -> Result<T, E> + Sync,
    mut take: impl FnMut(usize, T) -> Result<bool, E>,
) -> Result<(), E> {
    let threads = bounds.reads.min(sizes.len());
    if threads < 2 {
        return one_by_one(sizes.len(), &read, &mut take);
    }
    let ahead = Ahead::new();
    std::thread::scope(|scope| {
        let _ends = Ends { ahead: &ahead, takes: true };
        let mut begun = 0;
        for _ in 0..threads {
            let thread = std::thread::Builder::new().name("shuffle-ahead".to_owned());
            begun += usize::from(thread.spawn_scoped(scope, || ahead.read(sizes, bounds, &read)).is_ok());
        }
        if begun == 0 {
            // The system has no thread to give.
            return one_by_one(sizes.len(), &read, &mut take);
        }
        for (at, bytes) in sizes.iter().enumerate() {
            // The panic of a thread that reads goes on in this one when the scope ends.
            let Some(got) = ahead.got(at) else { break };
            if !take(at, got?)? {
                break;
            }
            ahead.was_taken(at, *bytes);
        }
        Ok(())
    })
}

fn one_by_one<T, E>(
    count: usize,
    read: &impl Fn(usize) -> Result<T, E>,
    take: &mut impl FnMut(usize, T) -> Result<bool, E>,
) -> Result<(), E> {
    for at in 0..count {
        if !take(at, read(at)?)? {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::time::Duration;

    const BOUNDS: Bounds = Bounds { reads: 4, bytes: 100 };

    /// Reads all of these sizes, each of which takes a while. The most that were under way at a time, and their bytes.
    fn most(sizes: &[u64]) -> (usize, u64) {
        let (count, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
        let (most, most_bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
        let read = |at: usize| {
            most.fetch_max(count.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            most_bytes.fetch_max(bytes.fetch_add(sizes[at], Ordering::SeqCst) + sizes[at], Ordering::SeqCst);
            std::thread::park_timeout(Duration::from_millis(20 - 5 * (at as u64 % 4)));
            count.fetch_sub(1, Ordering::SeqCst);
            bytes.fetch_sub(sizes[at], Ordering::SeqCst);
            Ok::<usize, ()>(at)
        };
        let mut taken = Vec::new();
        let done = in_order(sizes, BOUNDS, read, |at, got| {
            assert_eq!(at, got);
            taken.push(at);
            Ok(true)
        });
        assert_eq!((done, taken), (Ok(()), (0..sizes.len()).collect()));
        (most.into_inner(), most_bytes.into_inner())
    }

    #[test]
    fn r1_reads_go_ahead_in_order_and_within_bounds() {
        let (reads, _) = most(&[1; 24]);
        assert!((2..=4).contains(&reads), "{reads} at a time");
        let (reads, bytes) = most(&[40; 12]);
        assert!(reads <= 2 && bytes <= 100, "{reads} at a time, {bytes} bytes");
        assert_eq!(most(&[500; 3]), (1, 500), "one that is longer than the bound is read alone");
        assert_eq!(most(&[7]), (1, 7));
        assert_eq!(most(&[]), (0, 0));
    }

    #[test]
    fn the_first_error_ends_it_and_what_is_not_wanted_is_not_read() {
        let begun = AtomicUsize::new(0);
        let read = |at: usize| {
            begun.fetch_add(1, Ordering::SeqCst);
            if at == 2 { Err("refused") } else { Ok(at) }
        };
        let mut taken = 0;
        let done = in_order(&[1; 100], BOUNDS, read, |_, _| {
            taken += 1;
            Ok(true)
        });
        assert_eq!((done, taken), (Err("refused"), 2));
        assert!(begun.load(Ordering::SeqCst) <= 7, "no more than the bound goes ahead");
        let done = in_order(&[1; 100], BOUNDS, Ok::<usize, &str>, |at, _| Ok(at < 5));
        assert_eq!(done, Ok(()));
        let done = in_order(&[1; 100], BOUNDS, Ok::<usize, &str>, |_, _| Err("damaged"));
        assert_eq!(done, Err("damaged"));
    }

    #[test]
    #[should_panic(expected = "panicked")]
    fn the_panic_of_a_thread_that_reads_goes_on() {
        let read = |at: usize| if at == 3 { panic!("by intent") } else { Ok::<usize, ()>(at) };
        let _ = in_order(&[1; 10], BOUNDS, read, |_, _| Ok(true));
    }
}
