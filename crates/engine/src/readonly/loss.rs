//! Store files that lose bytes while they are mapped: a person or a process cuts one off, or the disk cannot read it any more.
//!
//! Reading mapped memory whose bytes have gone would end the process: the kernel sends SIGBUS to the thread that read. The
//! handler here maps zeros over the place, and over all behind it in the same file, marks the file as lost, and lets the
//! thread read again. The lookup then finds that its file is lost, and
//! says so instead of what it has seen.
//!
//! What was not done: reading by `pread`, which takes a system call and a copy for each of a lookup's three reads;
//! a copy that no other process can open (unlinked, or a sealed memfd), which no restart finds again, or which takes memory for
//! all of a store; `signal-hook`, which calls the handler before its own first, and that of the standard library
//! gives the signal back to the kernel.
//!
//! A caller may copy a value that is lent from a file while the file loses it. [`Losses`] says whether that may be.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

/// How often any mapped file has lost something.
static LOSSES: AtomicU64 = AtomicU64::new(0);

/// The newest region; each leads to the one before it. Regions are added and used again, but never freed.
static NEWEST: AtomicPtr<MappedRegion> = AtomicPtr::new(std::ptr::null_mut());

/// Regions that no map uses.
static FREE: Mutex<Vec<&'static MappedRegion>> = Mutex::new(Vec::new());

/// The size of a page of memory, and the handler before ours; set before ours is.
static PREVIOUS: OnceLock<PreviousHandler> = OnceLock::new();

struct PreviousHandler {
    page_bytes: usize,
    action: libc::sigaction,
}

/// Where a file is mapped, for the handler.
#[derive(Debug)]
struct MappedRegion {
    /// Odd while the two below change.
    turn: AtomicUsize,
    begin: AtomicUsize,
    end: AtomicUsize,
    is_lost: AtomicBool,
    older: AtomicPtr<MappedRegion>,
}

impl MappedRegion {
    fn set(&self, begin: usize, end: usize) {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.begin.store(begin, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.is_lost.store(false, Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(2), Ordering::Release);
    }

    /// Where the map ends that an address lies in. None while it changes: then no thread reads from it.
    fn end_of(&self, address: usize) -> Option<usize> {
        let turn = self.turn.load(Ordering::Acquire);
        let (begin, end) = (self.begin.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = turn.is_multiple_of(2) && turn == self.turn.load(Ordering::Relaxed);
        (is_whole && (begin..end).contains(&address)).then_some(end)
    }
}

/// That a map is watched: as long as this is there, losing some of its file does not end the process.
#[derive(Debug)]
pub struct Watch(&'static MappedRegion);

impl Watch {
    /// Watches memory that is mapped to a file.
    pub fn over(bytes: &[u8]) -> io::Result<Watch> {
        install_handler()?;
        let region = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_else(add_region);
        let begin = bytes.as_ptr().addr();
        region.set(begin, begin + bytes.len());
        Ok(Watch(region))
    }

    /// Whether the file has lost something that was looked at. What was read before this is then not to be relied on.
    #[inline]
    pub fn has_lost(&self) -> bool {
        // What was read was read before: the handler runs in between, in this thread, and sets the mark first; another
        // thread sees zeros only after it.
        compiler_fence(Ordering::SeqCst);
        fence(Ordering::Acquire);
        self.0.is_lost.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.set(0, 0);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

fn add_region() -> &'static MappedRegion {
    let region = Box::leak(Box::new(MappedRegion {
        turn: AtomicUsize::new(0),
        begin: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        is_lost: AtomicBool::new(false),
        older: AtomicPtr::new(std::ptr::null_mut()),
    }));
    let at = std::ptr::from_mut(region);
    let mut newest = NEWEST.load(Ordering::Relaxed);
    loop {
        region.older.store(newest, Ordering::Relaxed);
        match NEWEST.compare_exchange_weak(newest, at, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return region,
            Err(other) => newest = other,
        }
    }
}

/// Whether any mapped file has lost something since a moment. A caller that copies a value which is [lent](super::Value) from a
/// file takes one before the lookup, and asks it after the copy: the copy may be wrong if so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Losses(u64);

impl Losses {
    /// Losses from now on: earlier ones do not count.
    #[inline]
    pub fn from_now() -> Losses {
        Losses(LOSSES.load(Ordering::Acquire))
    }

    /// Whether there has been a loss since then.
    #[inline]
    pub fn have_been(self) -> bool {
        compiler_fence(Ordering::SeqCst);
        fence(Ordering::Acquire);
        LOSSES.load(Ordering::Relaxed) != self.0
    }
}

/// Installs the handler, once in a process.
#[expect(unsafe_code, reason = "a handler of signals is set; the proof is in the function")]
fn install_handler() -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut is_installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *is_installed {
        return Ok(());
    }
    // SAFETY: the structures are plain numbers and one pointer to a function, for which zeros are a value ("the default
    // handler"); each call gets pointers to such that live during the call. `on_sigbus` has the signature that
    // SA_SIGINFO asks for, and calls nothing that must not be called in a handler (see there). What it reads, `PREVIOUS`, is
    // set before it is installed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut action) != 0 {
            return Err(io::Error::last_os_error());
        }
        let page_bytes = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).map_err(io::Error::other)?;
        PREVIOUS.get_or_init(|| PreviousHandler { page_bytes, action });
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        if libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    *is_installed = true;
    Ok(())
}

/// The kernel calls this in the thread that has read what is not there any more.
#[expect(
    unsafe_code,
    reason = "pointers come from the kernel, and memory is mapped; the proof is in the function"
)]
extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let Some(previous) = PREVIOUS.get() else { return };
    // SAFETY: the kernel gives a pointer to what it says of the signal, which lives during the call. Of SIGBUS that the
    // kernel sends by itself (a positive code) there is an address.
    let (is_of_kernel, address) = unsafe { ((*info).si_code > 0, (*info).si_addr().addr()) };
    let is_mapped = is_of_kernel && map_zeros(address, previous.page_bytes);
    if is_mapped {
        return;
    }
    // SAFETY: gives the signal back to the handler before ours, by two calls that a handler may make, with a pointer to a
    // static. Whatever it was about happens again under that one: the kernel repeats the instruction, and what somebody
    // sent is sent again.
    unsafe {
        libc::sigaction(libc::SIGBUS, &raw const previous.action, std::ptr::null_mut());
        if !is_of_kernel {
            libc::raise(libc::SIGBUS);
        }
    }
}

/// Maps zeros from the page of an address to the end of the watched map that it lies in, if there is one.
#[expect(
    unsafe_code,
    reason = "regions are leaked, and a map is replaced in part; the proof is in the function"
)]
fn map_zeros(address: usize, page_bytes: usize) -> bool {
    let mut next = NEWEST.load(Ordering::Acquire);
    // SAFETY: regions are never freed, so a pointer that was taken from the list stays valid; only their atomic fields are
    // used, also by others.
    while let Some(region) = unsafe { next.as_ref() } {
        if let Some(end) = region.end_of(address) {
            region.is_lost.store(true, Ordering::SeqCst);
            LOSSES.fetch_add(1, Ordering::SeqCst);
            let begin = address - address % page_bytes;
            // SAFETY: the thread is reading from this map, so it is there until the handler has returned; pages from `begin`
            // to the one of the last byte belong to it and to nothing else, since the kernel maps whole pages. Readable
            // memory takes the place of readable memory, and of bytes any content is valid (see `mapped.rs`). `mmap` is
            // a bare system call: it takes no lock of this process. `errno` may be changed by it, and is put back.
            unsafe {
                let at = std::ptr::with_exposed_provenance_mut(begin);
                let errno = errno();
                let kept = *errno;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                let mapped = libc::mmap(at, end - begin, libc::PROT_READ, flags, -1, 0);
                *errno = kept;
                return mapped == at;
            }
        }
        next = region.older.load(Ordering::Relaxed);
    }
    false
}

#[expect(unsafe_code, reason = "the address of this thread's errno, which is always there")]
fn errno() -> *mut libc::c_int {
    // SAFETY: takes nothing, and returns the address of a variable of this thread.
    #[cfg(any(target_os = "linux", target_os = "emscripten"))]
    unsafe {
        libc::__errno_location()
    }
    // SAFETY: the same.
    #[cfg(any(target_os = "macos", target_os = "ios", target_os = "freebsd"))]
    unsafe {
        libc::__error()
    }
}
