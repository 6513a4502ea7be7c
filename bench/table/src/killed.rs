//! One of three nodes is killed, or stopped, while each shard is written: how long until each is written again, and the longest
//! stall of a write to a shard that the node only followed.

use crate::cluster::{Cluster, NODES};
use crate::load::{Load, Outcome};
use crate::{Done, Run, fill};
use bench_gauge::{Durations, now, say};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fmt;

/// How a node is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// Its process is killed with SIGKILL, and started again.
    Killed,
    /// Its process is stopped by SIGSTOP, and goes on at SIGCONT.
    Stopped,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            How::Killed => "killed (-9)",
            How::Stopped => "stopped",
        })
    }
}

/// Milliseconds until each shard that the node led, and each of the others, was written again; the longest stall of a write
/// to the others.
#[derive(Debug, Default)]
struct Times {
    led: Durations,
    followed: Durations,
    stalls: Durations,
}

/// Loses the node that leads most, again and again.
pub fn bench(run: &Run) -> Done {
    let shards = run.number("--shards", 1_000, 60);
    let times = run.number("--times", 10, 1);
    let begin = now();
    let mut cluster = Cluster::start(run, "partage", shards)?;
    say(&format!("{shards} shards on {NODES} nodes are served after {:.1} s", (now() - begin).as_secs_f64()));
    let mut lies = Vec::new();
    let ways = [(How::Killed, "killed"), (How::Stopped, "stopped")];
    for (how, _) in ways.into_iter().filter(|(_, name)| run.measures(name)) {
        let mut figures = Times::default();
        for _ in 0..times {
            lose(&mut cluster, how, &mut figures, &mut lies)?;
        }
        let line = |durations: &mut Durations| {
            let [min, median, max] = [0.0, 0.5, 1.0].map(|share| durations.quantile_ms(share));
            format!("{min:.0} / {median:.0} / {max:.0}")
        };
        say(&format!("a node is {how}: ms, min / median / max of {times}"));
        say(&format!(
            "  every shard that it led is written again after {} (goal: median 2500)",
            line(&mut figures.led)
        ));
        say(&format!("  every shard that it followed after             {}", line(&mut figures.followed)));
        say(&format!(
            "  longest stall of a write to one that it followed {} (goal: 1000)",
            line(&mut figures.stalls)
        ));
    }
    fill::none_is_lost(&lies)
}

fn lose(cluster: &mut Cluster, how: How, figures: &mut Times, lies: &mut Vec<String>) -> Done {
    let layout = cluster.layout()?;
    let numbers = layout.number_of_each();
    // A node that was lost leads nothing for a while.
    let leads_of = |node: &usize| layout.0.iter().filter(|led| led.leader == Some(*node)).count();
    let victim = (0..NODES).max_by_key(leads_of).unwrap_or_default();
    let leads = |number: &u64| layout.0[layout.shard(&crate::rows::key(*number))].leader == Some(victim);
    let (led, followed): (Vec<u64>, Vec<u64>) = numbers.into_iter().partition(leads);
    let others: Vec<_> = (0..NODES).filter(|node| *node != victim).map(|node| cluster.resp[node]).collect();
    let load = Load::start(&others, &[led.clone(), followed.clone()])?;
    load.rounds(4)?;
    let lost_at = now();
    match how {
        How::Killed => cluster.nodes[victim].kill(),
        How::Stopped => cluster.nodes[victim].signal(Signal::STOP)?,
    }
    load.rounds(8)?;
    let end = now();
    match how {
        How::Killed => cluster.restart_node(victim)?,
        How::Stopped => cluster.nodes[victim].signal(Signal::CONT)?,
    }
    cluster.settles()?;
    let told = load.finish()?;
    let led: BTreeSet<u64> = led.into_iter().collect();
    let is_led = |row| led.contains(&row);
    let is_followed = |row| !led.contains(&row);
    let until_led =
        told.until_all(lost_at, &is_led).ok_or("a shard that the lost node led was never written again")?;
    let until_followed = told
        .until_all(lost_at, &is_followed)
        .ok_or("a shard that the lost node followed was never written again")?;
    let stall = told.longest_stall(lost_at, end, &is_followed);
    let back = told.stall(end, now(), &|_| true);
    say(&format!(
        "t{victim} is {how}: each of {} shards that it led written again after {:.0} ms, each of {} others after {:.0} ms, \
         longest stall of these {:.0} ms; then {} refused and {} unknown writes, {} failed reads; longest stall when it is back {:.0} ms",
        led.len(),
        until_led.as_secs_f64() * 1e3,
        followed.len(),
        until_followed.as_secs_f64() * 1e3,
        stall.as_secs_f64() * 1e3,
        told.count(Outcome::Refused, lost_at, end),
        told.count(Outcome::Unknown, lost_at, end),
        told.failed_reads.len(),
        back.map_or(0.0, |stall| (stall.ended - stall.begun).as_secs_f64()) * 1e3,
    ));
    if let Some(stall) = back {
        let after = |at: std::time::Instant| at.saturating_duration_since(lost_at).as_secs_f64();
        say(&format!(
            "    the node is back after {:.1} s; row {} had that stall from {:.1} s to {:.1} s",
            after(end),
            stall.row,
            after(stall.begun),
            after(stall.ended)
        ));
    }
    told.show_failures(lost_at);
    figures.led.push(until_led);
    figures.followed.push(until_followed);
    figures.stalls.push(stall);
    lies.extend(told.lies);
    Ok(())
}
