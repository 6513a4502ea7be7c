//! Memory that a burst of requests has used goes back to the system when it is over: the allocator of the C library keeps it
//! for the next burst, which may never come (bench/RESULTS.md, "What a flood costs").

use rustix::param::page_size;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// How often the process looks at its memory.
const EVERY: Duration = Duration::from_secs(1);

/// So much more than the least that was seen, and an eighth of that, is worth giving back.
const WORTH_BYTES: u64 = 16 << 20;

/// The longest pause after the allocator had nothing to give back, in looks. A try costs some milliseconds for each gigabyte, and a
/// process that needs more than at its start tries so often for ever.
const LONGEST_PAUSE: u32 = 32;

/// What the process has in memory beside files, at each look.
#[derive(Debug, Default)]
struct Watched {
    /// At the last look.
    last: u64,
    /// The least so far.
    least: Option<u64>,
    /// How long the last pause was, in looks.
    pause: u32,
    /// How much of it is left.
    rest: u32,
    /// What the last try left.
    left: u64,
}

impl Watched {
    /// Whether the process should try to give memory back: it has grown, and grows no longer.
    ///
    /// What is freed after that does not show, since the allocator keeps it: so the process tries again, after pauses
    /// that double while nothing is left to give back.
    fn is_over(&mut self, now: u64) -> bool {
        let grows = now > self.last + self.last / 64;
        self.last = now;
        self.least = Some(self.least.map_or(now, |least| least.min(now)));
        let is_worth_it = self.is_worth_it(now);
        // What grows a little above what the last try left is no new burst.
        if !is_worth_it || grows && now > self.left + WORTH_BYTES {
            (self.pause, self.rest) = (0, 0);
        }
        if !is_worth_it || grows {
            return false;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return false;
        }
        true
    }

    fn is_worth_it(&self, now: u64) -> bool {
        self.least.is_some_and(|least| now > least + (least / 8).max(WORTH_BYTES))
    }

    /// Memory was given back, and this is left.
    fn given_back(&mut self, left: u64) {
        (self.last, self.left) = (left, left);
        self.pause = if self.is_worth_it(left) { (2 * self.pause).clamp(1, LONGEST_PAUSE) } else { 0 };
        self.rest = self.pause;
    }
}

/// Looks from now on, until the runtime ends. Does nothing where the system does not say what a process has in memory.
pub fn give_back_when_idle() {
    partage_engine::memory::give_back_large_blocks();
    let Ok(memory) = OwnMemory::open() else { return };
    // The first look is before the first connection: a burst may begin at once.
    let mut watched = Watched { least: memory.bytes().ok(), ..Watched::default() };
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(EVERY).await;
            let Ok(now) = memory.bytes() else { continue };
            if watched.is_over(now)
                && tokio::task::spawn_blocking(partage_engine::memory::give_back).await.is_ok()
            {
                watched.given_back(memory.bytes().unwrap_or(now));
            }
        }
    });
}

/// What this process has in memory: the file of proc_pid_statm(5). It stays open, since a process that is flooded with
/// connections may open no other.
struct OwnMemory(std::fs::File);

impl OwnMemory {
    fn open() -> std::io::Result<Self> {
        std::fs::File::open("/proc/self/statm").map(Self)
    }

    /// Beside pages of files. Each call reads the file anew.
    fn bytes(&self) -> std::io::Result<u64> {
        let mut text = [0; 256];
        let length = self.0.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(&text[..length]);
        let mut pages = text.split(' ').skip(1).map_while(|number| number.parse::<u64>().ok());
        let (Some(resident), Some(of_files)) = (pages.next(), pages.next()) else {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text.into_owned()));
        };
        Ok(resident.saturating_sub(of_files) * page_size() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn z3_memory_is_given_back_once_after_a_burst() {
        let mut watched = Watched::default();
        let looks = [50, 52, 300, 500, 500];
        let over: Vec<bool> = looks.iter().map(|mib| watched.is_over(mib * MIB)).collect();
        assert_eq!(over, [false, false, false, false, true]);
        watched.given_back(55 * MIB);
        assert!(![55, 60, 60, 55].into_iter().any(|mib| watched.is_over(mib * MIB)), "not worth it");
    }

    /// A process that is flooded from its first second on was never seen small, but for the look at its start.
    #[test]
    fn z3_memory_goes_back_also_when_the_burst_began_at_once() {
        let mut watched = Watched { least: Some(20 * MIB), ..Watched::default() };
        assert!(!watched.is_over(250 * MIB));
        assert!(watched.is_over(250 * MIB));
    }

    /// So what is in use until after the first try goes back, too.
    #[test]
    fn z3_what_stays_in_use_is_looked_for_ever_more_rarely() {
        let mut watched = Watched::default();
        let over: Vec<bool> = [50, 400, 400].iter().map(|mib| watched.is_over(mib * MIB)).collect();
        assert_eq!(over, [false, false, true]);
        watched.given_back(390 * MIB);
        let mut tries = Vec::new();
        for look in 1..100 {
            if watched.is_over(390 * MIB) {
                tries.push(look);
                watched.given_back(390 * MIB);
            }
        }
        assert_eq!(tries, [2, 5, 10, 19, 36, 69]);
        watched.given_back(55 * MIB);
        assert!(!(0..10).any(|_| watched.is_over(55 * MIB)));
    }

    #[test]
    fn what_goes_up_and_down_a_little_is_no_burst() {
        let mut watched = Watched::default();
        watched.is_over(40 * MIB);
        let mut tries = 0;
        for look in 0..200 {
            let now = (400 + 10 * (look % 2)) * MIB;
            if watched.is_over(now) {
                tries += 1;
                watched.given_back(395 * MIB);
            }
        }
        assert!((1..12).contains(&tries), "{tries} tries");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_this_process_has_in_memory_is_read_anew_each_time() {
        let memory = OwnMemory::open().unwrap();
        let before = memory.bytes().unwrap();
        assert!(before > 100 << 10);
        let block = std::hint::black_box(vec![1_u8; 256 << 20]);
        let (with, length) = (memory.bytes().unwrap(), block.len());
        drop(block);
        assert!(with > before + length as u64 / 2, "{before} bytes before, {with} with {length} more");
    }
}
