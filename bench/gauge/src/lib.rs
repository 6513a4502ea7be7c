//! What the figures of a running cluster are measured with: time on a core, memory, quantiles, processes to be measured, and
//! a client of the admin API.
//!
//! Time on a core comes from the kernel's count for each thread. Threads of one part of a program share a
//! name, so the coordinator's time is told from that of the workers beside it in the same process.

mod admin;
pub mod client;
pub mod http;
mod process;
mod run;
mod words;

pub use admin::Admin;
pub use process::{PATIENCE, Running, free, myself, rest};
pub use run::{Run, ended};
pub use words::{check_flags, complain, say, word};

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The clock of what is measured.
#[expect(clippy::disallowed_methods, reason = "the one clock of the benches")]
pub fn now() -> Instant {
    Instant::now()
}

/// Seconds on a core by thread name, of all threads that live now.
#[derive(Debug, Clone, Default)]
pub struct CoreTime(BTreeMap<String, f64>);

impl CoreTime {
    /// Reads the kernel's counts.
    pub fn now() -> CoreTime {
        let mut by_name = BTreeMap::new();
        for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            *by_name.entry(read("comm").trim().to_owned()).or_default() +=
                thread_nanoseconds(&thread.path()) / 1e9;
        }
        CoreTime(by_name)
    }

    /// Seconds on a core of all threads together.
    pub fn total(&self) -> f64 {
        self.0.values().sum()
    }

    /// What threads of that name have used since `before`.
    pub fn since(&self, before: &CoreTime, name: &str) -> f64 {
        let of = |times: &CoreTime| times.0.get(name).copied().unwrap_or(0.0);
        of(self) - of(before)
    }
}

/// Seconds on a core, user and system, of all threads that another process has now.
pub fn core_seconds_of(pid: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.map(|thread| thread_nanoseconds(&thread.path())).sum::<f64>() / 1e9
}

/// The kernel counts the time of a process in parts of a second, this many (`USER_HZ`, the same on every Linux).
const TICKS_A_SECOND: f64 = 100.0;

/// Seconds on a core, user and system, that another process has used since it began, in all its threads, those that have
/// ended too; in hundredths.
pub fn core_seconds_ever_of(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in brackets, may hold anything. Behind it the first field is the third of proc_pid_stat(5).
    let rest = text.rsplit(')').next().unwrap_or_default();
    let ticks = rest.split_ascii_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok());
    ticks.sum::<f64>() / TICKS_A_SECOND
}

/// The kernel's count for one thread.
fn thread_nanoseconds(thread: &std::path::Path) -> f64 {
    let text = std::fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0)
}

/// One of the memory figures that the kernel keeps for this process, such as `VmRSS` or `VmHWM`, in bytes.
pub fn memory_bytes(figure: &str) -> u64 {
    memory_bytes_in("/proc/self/status", figure)
}

/// The same of another process.
pub fn memory_bytes_of(pid: u32, figure: &str) -> u64 {
    memory_bytes_in(&format!("/proc/{pid}/status"), figure)
}

fn memory_bytes_in(status: &str, figure: &str) -> u64 {
    let text = std::fs::read_to_string(status).unwrap_or_default();
    let line = text.lines().find(|line| line.split(':').next() == Some(figure)).unwrap_or_default();
    line.split_ascii_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).map_or(0, |kib| kib * 1024)
}

/// Durations, to be asked for quantiles.
#[derive(Debug, Clone, Default)]
pub struct Durations(Vec<Duration>);

impl Durations {
    /// Adds one duration to these.
    pub fn push(&mut self, duration: Duration) {
        self.0.push(duration);
    }

    /// Adds all durations of `other` to these.
    pub fn append(&mut self, mut other: Durations) {
        self.0.append(&mut other.0);
    }

    /// The number of durations.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The smallest that `share` of all do not exceed, in milliseconds; NaN when there are none.
    pub fn quantile_ms(&mut self, share: f64) -> f64 {
        self.0.sort_unstable();
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.max(1) - 1).map_or(f64::NAN, |duration| duration.as_secs_f64() * 1e3)
    }

    /// `p50 0.1 p99 2.0 p99.9 3.1 max 4.0 ms`.
    pub fn line(&mut self) -> String {
        let [p50, p99, p999, max] = [0.5, 0.99, 0.999, 1.0].map(|share| self.quantile_ms(share));
        format!("p50 {p50:.2} p99 {p99:.2} p99.9 {p999:.2} max {max:.2} ms")
    }
}

/// The median of figures; not a number if there is none.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// `--name VALUE` among the words, as a number.
pub fn option(words: &[String], name: &str, default: u64) -> u64 {
    let at = words.iter().position(|word| word == name);
    at.and_then(|at| words.get(at + 1)).and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let mut durations = Durations::default();
        assert!(durations.quantile_ms(0.5).is_nan());
        (1..=1000).for_each(|ms| durations.push(Duration::from_millis(ms)));
        let quantiles = [0.0, 0.5, 0.999, 1.0].map(|share| durations.quantile_ms(share));
        assert_eq!(quantiles, [1.0, 500.0, 999.0, 1000.0]);
    }

    #[test]
    fn a_busy_thread_shows_in_the_time_of_its_name() {
        let before = CoreTime::now();
        std::thread::Builder::new()
            .name("busy".into())
            .spawn(move || {
                let mut sum = 0_u64;
                while CoreTime::now().since(&before, "busy") < 0.02 {
                    sum = std::hint::black_box(sum + 1);
                }
            })
            .unwrap()
            .join()
            .unwrap();
        assert!(memory_bytes("VmRSS") > 0);
        assert_eq!(memory_bytes_of(std::process::id(), "no such figure"), 0);
        assert!(core_seconds_ever_of(std::process::id()) >= 0.01, "a thread that has ended counts too");
    }
}
