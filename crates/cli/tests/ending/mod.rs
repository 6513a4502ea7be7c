//! A process is asked to stop, and ends.

use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A lease of two seconds that ends on a busy machine. A node that waits for `--leave-s`, a minute, takes far longer.
pub const PROMPT: Duration = Duration::from_secs(10);

/// How long a process is waited for that does not end.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends SIGTERM, and waits until the process has ended. Returns its exit code and how long it took.
pub fn terminate(process: &mut Child) -> (Option<i32>, Duration) {
    let begun = Instant::now();
    let sent = Command::new("kill").args(["-s", "TERM", &process.id().to_string()]).status().unwrap();
    assert!(sent.success());
    while begun.elapsed() < PATIENCE {
        if let Some(ended) = process.try_wait().unwrap() {
            return (ended.code(), begun.elapsed());
        }
        sleep(Duration::from_millis(20));
    }
    panic!("it has not ended after {PATIENCE:?}");
}
