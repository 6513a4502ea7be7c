//! The same measurement several times, each in a process of its own.
//!
//! What is decided is the same in every run, call by call; what differs is the machine. So each call is taken as the median
//! of its runs: what disturbed one of them does not count, and what a call always costs does.

use crate::bench_cluster::Calls;
use bench_gauge::say;
use std::collections::BTreeMap;
use std::process::Command;

/// Says to the program that it is such a process, and of which scenario.
pub const CHILD: &str = "--scenario";

/// What the calls of an event cost, in milliseconds on a core.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// The cost of the dearest call.
    pub most_ms: f64,
    /// The cost of all calls together.
    pub sum_ms: f64,
    /// The number of calls.
    pub calls: usize,
}

impl Cost {
    /// The mean cost of one call, in milliseconds on a core.
    pub fn mean_ms(&self) -> f64 {
        self.sum_ms / self.calls.max(1) as f64
    }
}

/// Several runs of one scenario, each measured in a process of its own.
pub struct Runs(Vec<Calls>);

/// Writes down what was measured, a line for each event.
pub fn tell(calls: &Calls) {
    for (event, calls) in calls {
        let figures: Vec<String> = calls.iter().map(|ms| format!("{ms:.4}")).collect();
        say(&format!("{event}\t{}", figures.join(" ")));
    }
}

/// Takes it in again.
fn heard(text: &str) -> Result<Calls, String> {
    let mut calls = Calls::new();
    for line in text.lines() {
        let (event, figures) =
            line.split_once('\t').ok_or_else(|| format!("not a line of figures: {line}"))?;
        let figures: Result<Vec<f64>, _> = figures.split_ascii_whitespace().map(str::parse).collect();
        calls.insert(event.to_owned(), figures.map_err(|error| format!("{line}: {error}"))?);
    }
    Ok(calls)
}

impl Runs {
    /// So many of a scenario.
    pub fn of(scenario: &str, nodes: u64, replicas: u64, times: u64) -> Result<Runs, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut runs = Vec::new();
        for _ in 0..times.max(1) {
            let numbers = [nodes, replicas].map(|number| number.to_string());
            let words = [CHILD, scenario, "--nodes", &numbers[0], "--replicas", &numbers[1]];
            let output = Command::new(&program).args(words).output().map_err(|error| error.to_string())?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).into_owned());
            }
            runs.push(heard(&String::from_utf8_lossy(&output.stdout))?);
        }
        let counts =
            |calls: &Calls| calls.iter().map(|(event, ms)| (event.clone(), ms.len())).collect::<Vec<_>>();
        match runs.iter().all(|run| counts(run) == counts(&runs[0])) {
            true => Ok(Runs(runs)),
            false => Err(format!("{scenario}: two runs decided differently (M9)")),
        }
    }

    /// By event, of the median of each call.
    pub fn costs(&self) -> BTreeMap<String, Cost> {
        let events = self.0.first().into_iter().flat_map(|calls| calls.iter());
        let cost = |(event, calls): (&String, &Vec<f64>)| {
            let medians: Vec<f64> = (0..calls.len()).map(|number| self.median(event, number)).collect();
            let (most_ms, sum_ms) = (medians.iter().copied().fold(0.0, f64::max), medians.iter().sum());
            (event.clone(), Cost { most_ms, sum_ms, calls: medians.len() })
        };
        events.map(cost).collect()
    }

    fn median(&self, event: &str, number: usize) -> f64 {
        let runs = self.0.iter().filter_map(|run| run.get(event)?.get(number).copied());
        let mut all: Vec<f64> = runs.collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_counts_as_the_median_of_its_runs() {
        let run = |ms: &[f64]| Calls::from([("a node dies".to_owned(), ms.to_vec())]);
        let runs = Runs(vec![run(&[9.0, 1.0, 3.0]), run(&[1.0, 8.0, 4.0]), run(&[2.0, 2.0, 70.0])]);
        let cost = runs.costs()["a node dies"];
        assert_eq!((cost.most_ms, cost.sum_ms, cost.calls), (4.0, 8.0, 3));
    }

    #[test]
    fn what_a_process_tells_is_what_another_hears() {
        let text = "beats: first placement\t0.5 1.25\nfirst placement\t80.0\n";
        let calls = heard(text).unwrap();
        assert_eq!(calls["beats: first placement"], [0.5, 1.25]);
        assert_eq!(calls["first placement"], [80.0]);
        assert!(heard("no figures").is_err() && heard("a\tb").is_err());
    }
}
