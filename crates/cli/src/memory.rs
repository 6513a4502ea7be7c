//! Memory that a burst of requests has used goes back to the system when it is over: the allocator of the C library keeps it
//! for the next burst, which may never come (bench/RESULTS.md, "What a flood costs").

use rustix::param::page_size;
use std::time::Duration;

/// How often the process looks at its memory.
const EVERY: Duration = Duration::from_secs(1);

/// So much more than after the last time, and an eighth of that, is worth giving back.
const WORTH_BYTES: u64 = 16 << 20;

/// What the process has in memory beside files, at each look.
#[derive(Debug, Default)]
struct Watched {
    /// At the last look.
    last: u64,
    /// The least since memory was given back: what is in use, as far as is known.
    least: Option<u64>,
}

impl Watched {
    /// Whether it has grown, and grows no longer.
    fn is_over(&mut self, now: u64) -> bool {
        let grows = now > self.last + self.last / 64;
        self.last = now;
        let least = self.least.map_or(now, |least| least.min(now));
        self.least = Some(least);
        !grows && now > least + (least / 8).max(WORTH_BYTES)
    }

    /// Memory was given back, and this is left.
    fn given_back(&mut self, left: u64) {
        (self.last, self.least) = (left, Some(left));
    }
}

/// Looks from now on, until the runtime ends.
pub fn give_back_when_idle() {
    tokio::spawn(async {
        let mut watched = Watched::default();
        loop {
            tokio::time::sleep(EVERY).await;
            let Some(now) = in_memory() else { return };
            if watched.is_over(now)
                && tokio::task::spawn_blocking(partage_engine::memory::give_back).await.is_ok()
            {
                watched.given_back(in_memory().unwrap_or(now));
            }
        }
    });
}

/// Of this process, beside pages of files, in bytes: proc_pid_statm(5). None where the system has no such file.
fn in_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split(' ').skip(1).map_while(|number| number.parse::<u64>().ok());
    let (resident, of_files) = (pages.next()?, pages.next()?);
    Some(resident.saturating_sub(of_files) * page_size() as u64)
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

    #[test]
    fn z3_what_stays_in_use_is_looked_for_once() {
        let mut watched = Watched::default();
        let over: Vec<bool> = [50, 400, 400].iter().map(|mib| watched.is_over(mib * MIB)).collect();
        assert_eq!(over, [false, false, true]);
        watched.given_back(390 * MIB);
        assert!(!(0..10).any(|_| watched.is_over(390 * MIB)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_something_in_memory() {
        assert!(in_memory().is_some_and(|bytes| bytes > 100 << 10));
    }
}
