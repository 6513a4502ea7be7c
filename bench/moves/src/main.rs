//! `bench-moves` measures planned moves under load; `bench-moves paused` a worker that sleeps beyond its
//! lease. See the README.

mod beliefs;
mod cluster;
mod follow;
mod paused;
mod planned;
mod probe;
mod requests;

use bench_gauge::complain;
use std::process::ExitCode;

fn main() -> ExitCode {
    #[expect(clippy::disallowed_methods, reason = "a program of its own, which reads its command line")]
    let words: Vec<String> = std::env::args().collect();
    let done = match words.get(1).map(String::as_str) {
        Some("paused") => paused::run(&words),
        Some("worker") => paused::worker(&words),
        _ => planned::run(&words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}
