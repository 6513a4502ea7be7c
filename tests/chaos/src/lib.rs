//! A cluster of real processes that tests may ill-treat: kill, stop, cut off, starve of disk.
//!
//! A crash-test hall: the coordinator is the real binary, the nodes are programs built on the SDK, every link
//! between them leads through a proxy that a test can cut, and all the while clients write, read, and note
//! what they were told ([`load`]). What a test asserts is an order of events or a fact, never a duration:
//! deadlines are there so that a test that hangs says what it waited for.
//!
//! | file      | what it is                                                          |
//! |-----------|---------------------------------------------------------------------|
//! | `cluster` | a coordinator, nodes and links in a directory and addresses of its own |
//! | `process` | one process: started, signalled, waited for                         |
//! | `link`    | a TCP proxy that can be cut, in both directions or in one           |
//! | `admin`   | the questions and commands of the admin API                         |
//! | `load`    | clients that write and read, and the check of what they were told   |
//! | `http`    | one request, with a deadline                                        |

#![allow(clippy::unwrap_used, reason = "a harness of tests may stop at the first surprise")]
#![allow(clippy::print_stderr, reason = "a test that fails shows the logs of its processes")]

pub mod admin;
pub mod cluster;
pub mod http;
pub mod link;
pub mod load;
pub mod process;

use std::future::Future;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long anything may take before a test gives up: far more than it needs on a machine of its own.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Rest between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Looks until there is something to see, and gives it back. `look` says what it saw instead when there is not.
pub async fn until<T, F>(what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let end = Instant::now() + DEADLINE;
    loop {
        match look().await {
            Ok(seen) => return seen,
            Err(seen) if Instant::now() > end => {
                panic!("{what}: not within {DEADLINE:?}; at last: {seen}")
            }
            Err(_) => sleep(LOOK).await,
        }
    }
}
