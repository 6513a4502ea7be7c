//! `bench-failover` measures how long it takes until the next leader has committed a change: see the README.

#![allow(clippy::unwrap_used, reason = "it runs on a harness of tests, which stops at the first surprise")]

mod loss;

use bench_gauge::{Durations, complain, option, say};
use chaos::engine::Engine;
use chaos::fleet::Fleet;
use loss::{How, lose};
use partage_coordination::Backend;
use partage_coordinator::SESSION_MS;
use std::process::ExitCode;
use tokio::runtime::Builder;

/// The engines that coordinators share, by the names that `--backend` takes.
const BACKENDS: [(&str, Backend); 3] =
    [("etcd", Backend::Etcd), ("mysql", Backend::MySql), ("zookeeper", Backend::ZooKeeper)];

/// Milliseconds that a new leader may take beyond the session of the one that was killed.
const BEYOND_SESSION_MS: u64 = 1_000;
/// Milliseconds that it may take when the one before leaves in order.
const IN_ORDER_MS: u64 = 300;

/// ZooKeeper's `tickTime` as Debian ships it.
const TICK_MS: u64 = 2_000;

fn main() -> ExitCode {
    #[expect(clippy::disallowed_methods, reason = "a program of its own, which reads its command line")]
    let words: Vec<String> = std::env::args().collect();
    let named = words.iter().position(|word| word == "--backend").and_then(|at| words.get(at + 1));
    let chosen: Vec<_> =
        BACKENDS.into_iter().filter(|(name, _)| named.is_none_or(|named| named == name)).collect();
    if chosen.is_empty() {
        complain("--backend takes etcd, mysql or zookeeper");
        return ExitCode::from(2);
    }
    let runtime = match Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&error.to_string());
            return ExitCode::FAILURE;
        }
    };
    let mut all_hold = true;
    for (name, backend) in chosen {
        all_hold &= runtime.block_on(measure(name, backend, &words));
    }
    if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Loses the leader again and again; whether every limit holds.
async fn measure(name: &str, backend: Backend, words: &[String]) -> bool {
    let (times, workers) = (option(words, "--times", 8), option(words, "--workers", 3));
    let tick = format!("tickTime={}", option(words, "--tick", TICK_MS));
    let settings: &[&str] = if backend == Backend::ZooKeeper { &[&tick] } else { &[] };
    let engine = Engine::start(backend, settings).await;
    let mut fleet = Fleet::on(engine, workers as usize, "").await;
    let about = settings.join(" ");
    say(&format!("{name} {about}: three coordinators, {workers} workers, {times} times each"));
    let mut all_hold = true;
    for (how, limit_ms) in [(How::Killed, SESSION_MS + BEYOND_SESSION_MS), (How::InOrder, IN_ORDER_MS)] {
        let mut committed = Durations::default();
        let mut elected = Durations::default();
        let mut answered = Durations::default();
        for time in 0..times {
            let lost = lose(&mut fleet, how, time, times).await;
            elected.push(lost.elected);
            committed.push(lost.committed);
            answered.push(lost.answered);
        }
        let holds = committed.quantile_ms(1.0) <= limit_ms as f64;
        let verdict = if holds { "holds" } else { "MISSED" };
        say(&format!("  the leader {how}: ms, min / median / max"));
        say(&format!("    another is elected     {}", spread(&mut elected)));
        say(&format!("    its first commit       {}; limit {limit_ms}: {verdict}", spread(&mut committed)));
        say(&format!("    asked of one standing by, answered after {}", spread(&mut answered)));
        all_hold &= holds;
    }
    all_hold
}

fn spread(durations: &mut Durations) -> String {
    let [min, median, max] = [0.0, 0.5, 1.0].map(|share| durations.quantile_ms(share));
    format!("{min:.0} / {median:.0} / {max:.0}")
}
