//! Reads of an object store that go ahead of what takes their bytes: some at a time, begun and handed out in their order.

use super::lock;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};

/// How far the reads are.
#[derive(Debug)]
struct State<T, E> {
    /// The read that begins next, and the one that is taken next.
    next: usize,
    taken: usize,
    got: BTreeMap<usize, Result<T, E>>,
    /// Nothing more is taken, or a thread that reads has panicked.
    is_over: bool,
}

/// What threads that read share with the one that takes.
#[derive(Debug)]
struct Ahead<T, E> {
    state: Mutex<State<T, E>>,
    changed: Condvar,
    /// Held by the thread that begins a read.
    begins: Mutex<()>,
}

/// Ends the reads when the thread that takes is done, or when any of them panics: else the others would wait for it.
struct Ends<'a, T, E> {
    ahead: &'a Ahead<T, E>,
    takes: bool,
}

impl<T, E> Drop for Ends<'_, T, E> {
    fn drop(&mut self) {
        if self.takes || std::thread::panicking() {
            let mut state = lock(&self.ahead.state);
            state.is_over = true;
            // Another thread that begins a read may wait for the memory of what is not taken any more.
            let gone = if self.takes { std::mem::take(&mut state.got) } else { BTreeMap::new() };
            drop(state);
            self.ahead.changed.notify_all();
            drop(gone);
        }
    }
}

impl<T, E> Ahead<T, E> {
    fn new() -> Ahead<T, E> {
        let state = State { next: 0, taken: 0, got: BTreeMap::new(), is_over: false };
        Ahead { state: Mutex::new(state), changed: Condvar::new(), begins: Mutex::default() }
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

    /// The read that begins next, when no more than so many are ahead. None: there is no further one, or none is wanted.
    fn next(&self, count: usize, reads: usize) -> Option<usize> {
        self.wait(|state| {
            if state.is_over || state.next >= count {
                return Some(None);
            }
            if state.next - state.taken >= reads {
                return None;
            }
            state.next += 1;
            Some(Some(state.next - 1))
        })
    }

    /// Begins one read after the other, so that none has what a read needs before those that are taken before it.
    fn begin<B>(&self, (count, reads): (usize, usize), begin: &impl Fn(usize) -> B) -> Option<(usize, B)> {
        let _begins = lock(&self.begins);
        let at = self.next(count, reads)?;
        let begun = begin(at);
        (!lock(&self.state).is_over).then_some((at, begun))
    }

    fn read<B>(
        &self,
        bounds: (usize, usize),
        begin: &impl Fn(usize) -> B,
        read: &impl Fn(usize, B) -> Result<T, E>,
    ) {
        let _ends = Ends { ahead: self, takes: false };
        while let Some((at, begun)) = self.begin(bounds, begin) {
            let got = read(at, begun);
            let mut state = lock(&self.state);
            if state.is_over {
                return;
            }
            state.got.insert(at, got);
            drop(state);
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

    fn was_taken(&self, at: usize) {
        lock(&self.state).taken = at + 1;
        self.changed.notify_all();
    }
}

/// Carries out so many reads, some of them at a time, and hands out what they give, in their order, until `take` says that it
/// wants no more. Each is begun, in the same order, before it is carried out: `begin` waits for what it needs. The first error
/// of a read or of `take` ends it; what is under way then is waited for.
pub(super) fn in_order<B, T: Send, E: Send>(
    (count, reads): (usize, usize),
    begin: impl Fn(usize) -> B + Sync,
    read: impl Fn(usize, B) -> Result<T, E> + Sync,
    mut take: impl FnMut(usize, T) -> Result<bool, E>,
) -> Result<(), E> {
    let threads = reads.min(count);
    if threads < 2 {
        return one_by_one(count, &begin, &read, &mut take);
    }
    let ahead = Ahead::new();
    std::thread::scope(|scope| {
        let _ends = Ends { ahead: &ahead, takes: true };
        let mut begun = 0;
        for _ in 0..threads {
            let thread = std::thread::Builder::new().name("shuffle-ahead".to_owned());
            let run = || ahead.read((count, reads), &begin, &read);
            begun += usize::from(thread.spawn_scoped(scope, run).is_ok());
        }
        if begun == 0 {
            // The system has no thread to give.
            return one_by_one(count, &begin, &read, &mut take);
        }
        for at in 0..count {
            // The panic of a thread that reads goes on in this one when the scope ends.
            let Some(got) = ahead.got(at) else { break };
            if !take(at, got?)? {
                break;
            }
            ahead.was_taken(at);
        }
        Ok(())
    })
}

fn one_by_one<B, T, E>(
    count: usize,
    begin: &impl Fn(usize) -> B,
    read: &impl Fn(usize, B) -> Result<T, E>,
    take: &mut impl FnMut(usize, T) -> Result<bool, E>,
) -> Result<(), E> {
    for at in 0..count {
        if !take(at, read(at, begin(at))?)? {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::memory::ReadMemory;
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    const READS: usize = 4;

    /// Reads all of these sizes out of 100 bytes of memory, each of which takes a while. The most that were under way at a time,
    /// and the most memory.
    fn most(sizes: &[u64]) -> (usize, u64) {
        let (memory, count, most) = (ReadMemory::new(100), AtomicUsize::new(0), AtomicUsize::new(0));
        let read = |at: usize, taken| {
            most.fetch_max(count.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::park_timeout(Duration::from_millis(20 - 5 * (at as u64 % 4)));
            count.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, ()>((at, taken))
        };
        let mut all = Vec::new();
        let done = in_order(
            (sizes.len(), READS),
            |at| memory.take(sizes[at]),
            read,
            |at, (got, _taken)| {
                assert_eq!(at, got);
                all.push(at);
                Ok(true)
            },
        );
        assert_eq!((done, all), (Ok(()), (0..sizes.len()).collect()));
        assert_eq!(memory.bytes(), 0);
        (most.into_inner(), memory.peak())
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
    fn r1_threads_that_share_the_memory_all_come_to_their_ends() {
        let memory = ReadMemory::new(100);
        std::thread::scope(|scope| {
            for size in [30, 60, 90, 200] {
                let memory = &memory;
                scope.spawn(move || {
                    let mut count = 0;
                    let done = in_order(
                        (40, READS),
                        |_| memory.take(size),
                        |_, taken| Ok::<_, ()>(taken),
                        |_, _taken| {
                            count += 1;
                            Ok(true)
                        },
                    );
                    assert_eq!((done, count), (Ok(()), 40));
                });
            }
        });
        assert_eq!((memory.bytes(), memory.peak()), (0, 200));
    }

    #[test]
    fn the_first_error_ends_it_and_what_is_not_wanted_is_not_read() {
        let begun = AtomicUsize::new(0);
        let read = |at: usize, ()| {
            begun.fetch_add(1, Ordering::SeqCst);
            if at == 2 { Err("refused") } else { Ok(at) }
        };
        let mut taken = 0;
        let done = in_order(
            (100, READS),
            |_| (),
            read,
            |_, _| {
                taken += 1;
                Ok(true)
            },
        );
        assert_eq!((done, taken), (Err("refused"), 2));
        assert!(begun.load(Ordering::SeqCst) <= 7, "no more than the bound goes ahead");
        let all = |at: usize, ()| Ok::<usize, &str>(at);
        assert_eq!(in_order((100, READS), |_| (), all, |at, _| Ok(at < 5)), Ok(()));
        assert_eq!(in_order((100, READS), |_| (), all, |_, _| Err("damaged")), Err("damaged"));
    }

    #[test]
    fn r1_what_is_not_taken_any_more_gives_its_memory_back_to_a_read_that_waits_for_it() {
        let memory = ReadMemory::new(100);
        for wanted in 0..4 {
            // Of the reads that are ahead two have memory, and the next one waits for it.
            let read = |at: usize, taken| Ok::<_, &str>((at, taken));
            let begin = |_| memory.take(40);
            let done = in_order((40, READS), begin, read, |at, (_, _taken)| {
                std::thread::park_timeout(Duration::from_millis(20));
                if at == wanted { Err("enough") } else { Ok(true) }
            });
            assert_eq!((done, memory.bytes()), (Err("enough"), 0));
        }
        assert!(memory.peak() <= 100);
    }

    #[test]
    #[should_panic(expected = "panicked")]
    fn the_panic_of_a_thread_that_reads_goes_on() {
        let read = |at: usize, ()| if at == 3 { panic!("by intent") } else { Ok::<usize, ()>(at) };
        let _ = in_order((10, READS), |_| (), read, |_, _| Ok(true));
    }
}
