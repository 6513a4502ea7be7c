//! A machine that sleeps: the clock goes on, and what waits by it is late by a second at most.

use partage_clock::{Clock, Instant, before, sleep_until, suspended};
use std::future::pending;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_time_goes_on_while_the_machine_sleeps() {
    let (clock, begin) = (Clock::start(), Instant::now());
    let waiting = tokio::spawn(sleep_until(begin + HOUR));
    let working = tokio::spawn(before(begin + HOUR, pending::<()>()));
    suspended::wake_after(HOUR);
    assert!(clock.now().0 >= 3_600_000);
    assert!(begin.elapsed() >= HOUR);
    waiting.await.unwrap();
    assert_eq!(working.await.unwrap(), None);
    assert_eq!(before(begin, std::future::ready("done")).await, Some("done"), "what is done is not too late");
}
