//! A node is killed while a shuffle is written, sealed or read: the time beside that of shuffles that are left alone, each on a
//! cluster of its own. With `--times N` it is so many random ones instead (`chaos.rs`).

use super::cluster::{Cluster, NODES};
use super::job::Job;
use super::shuffle::{Moment, Took, disturbed};
use super::{chaos, warm};
use crate::floor::Way;
use crate::{Done, Got, Run};
use bench_gauge::{median, rest, say};
use bench_shuffle::check::Tally;
use partage_shuffle_client::Shuffle;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt;

/// How long it may take, in times of one that is left alone.
const GOAL: f64 = 1.15;
/// A seal is under way after so many milliseconds.
const SEALING_MS: u64 = 20;
/// 10^9 bytes of the shuffle that warms each cluster.
const WARM_GB: f64 = 0.05;

/// When a node is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// So many quarters of the records were handed in.
    Written(u64),
    Sealing,
    /// So many quarters were read.
    Read(u64),
}

impl When {
    fn is_now(self, moment: Moment, records: u64) -> bool {
        match (self, moment) {
            (When::Written(quarters), Moment::Written(written)) => written >= records * quarters / 4,
            (When::Sealing, Moment::Sealing) => true,
            (When::Read(quarters), Moment::Read(read)) => read >= records * quarters / 4,
            _ => false,
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            When::Written(quarters) => write!(f, "at {quarters}/4 of writing"),
            When::Sealing => f.write_str("while it seals"),
            When::Read(quarters) => write!(f, "at {quarters}/4 of reading"),
        }
    }
}

/// Which node is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// One that does not lead the shuffle.
    Follower,
    /// The one that leads it.
    Leader,
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Victim::Follower => "follower",
            Victim::Leader => "leader",
        })
    }
}

/// Prints what each costs.
pub fn bench(run: &Run) -> Done {
    let times = run.of.number("--times", 0, 0);
    if times > 0 {
        return chaos::bench(run, times);
    }
    let job = Job::usual(run.gb);
    let expected = job.expected()?;
    for way in run.ways() {
        let mut figures = Vec::new();
        for _ in 0..run.of.number("--rounds", 3, 1) {
            let took = one(run, way, (&job, expected), None)?;
            say(&format!("{:4} undisturbed: {}", way.name(), super::line(&took)));
            figures.push(took.wall_seconds);
        }
        let usual = median(figures);
        let moments = [When::Written(1), When::Written(2), When::Written(3), When::Sealing, When::Read(2)];
        for victim in [Victim::Follower, Victim::Leader] {
            for when in moments {
                if (victim, when) == (Victim::Follower, When::Sealing) {
                    continue;
                }
                let Took { wall_seconds, again, .. } = one(run, way, (&job, expected), Some((victim, when)))?;
                let goal = match when {
                    When::Sealing => {
                        "undisturbed, and the time after which a node is declared dead".to_owned()
                    }
                    _ => format!("{GOAL}, and the attempts that are run again"),
                };
                say(&format!(
                    "{:4} {victim:8} killed {when}: {wall_seconds:.2} s by the clock, {:.2} times undisturbed, {:+.2} s (goal {goal}); \
                     {again} attempts run again, nothing lost, nothing doubled",
                    way.name(),
                    wall_seconds / usual,
                    wall_seconds - usual,
                ));
            }
        }
    }
    Ok(())
}

/// One shuffle on a cluster of its own.
fn one(run: &Run, way: Way, (job, expected): (&Job, Tally), fault: Option<(Victim, When)>) -> Got<Took> {
    let name = fault.map_or("undisturbed".to_owned(), |(victim, when)| format!("{victim:?}-{when:?}"));
    // As a folder, which also has Unix sockets below it.
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let mut cluster = warm(run, &format!("{}-{name}-{}", way.name(), free_number()), way, WARM_GB)?;
    let mut is_over = false;
    let mut kill = |cluster: &mut Cluster, shuffle: &Shuffle, moment: Moment| -> Got<()> {
        let Some((victim, when)) = fault else { return Ok(()) };
        if is_over || !when.is_now(moment, job.records) {
            return Ok(());
        }
        is_over = true;
        let leader = cluster.leader(shuffle.id)?;
        let victim = if victim == Victim::Leader { leader } else { (leader + 1) % NODES };
        if when == When::Sealing {
            kill_later(cluster.nodes[victim].pid());
        } else {
            cluster.nodes[victim].kill();
        }
        Ok(())
    };
    let took = disturbed(&mut cluster, way, job, expected, &mut kill)?;
    if fault.is_some() && !is_over {
        return Err("the shuffle was over before a node was killed: give more --gb".into());
    }
    let is_sealing = fault.is_some_and(|(_, when)| when == When::Sealing);
    if is_sealing && took.seal_seconds * 1_000.0 <= SEALING_MS as f64 {
        return Err("the seal was over before its leader was killed: give more --gb".into());
    }
    Ok(took)
}

/// Each cluster has a folder of its own.
fn free_number() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Kills a process when the seal that begins now is under way.
fn kill_later(pid: u32) {
    std::thread::spawn(move || {
        rest(SEALING_MS);
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // It may have ended already, with the bench.
            let _ = kill_process(pid, Signal::KILL);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_comes_at_its_moment() {
        assert!(When::Written(1).is_now(Moment::Written(25), 100));
        assert!(!When::Written(1).is_now(Moment::Written(24), 100));
        assert!(!When::Read(2).is_now(Moment::Written(100), 100));
        assert!(When::Read(2).is_now(Moment::Read(50), 100));
        assert!(When::Sealing.is_now(Moment::Sealing, 100));
    }
}
