//! The scope of one callback: it tells the service that the worker no longer waits, and the worker when nothing
//! of the callback runs any more.
//!
//! ```text
//!  callback times out ──► cancelled ──► the service stops its work ──► ended ──► next callback of the replica
//! ```
//!
//! A task can be aborted at its next `await`; a thread cannot. So a `load` that has moved its copying to
//! `tokio::task::spawn_blocking` used to go on copying while `unload` or `drop` ran. Work that the service
//! begins through [`Scope::spawn_blocking`] is counted, and the next callback of the same replica waits until
//! it has ended.

use std::fmt;
use std::future::Future;
use std::sync::LazyLock;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// See the module. A copy is the same scope.
#[derive(Clone)]
pub struct Scope {
    cancelled: CancellationToken,
    work: TaskTracker,
}

/// The scope of assignments that are not passed to a callback: never cancelled.
static IDLE: LazyLock<Scope> = LazyLock::new(Scope::new);

impl Scope {
    pub(crate) fn idle() -> Scope {
        IDLE.clone()
    }

    /// The scope of a callback that the worker has not given up. The worker makes one for each callback; a test of a service,
    /// where it calls that part of it that takes a scope.
    pub fn new() -> Scope {
        let work = TaskTracker::new();
        // A closed tracker still takes work on; it says at once when there is none.
        work.close();
        Scope { cancelled: CancellationToken::new(), work }
    }

    /// Whether the worker no longer waits for the callback. Blocking work asks between its steps, and stops.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }

    /// Returns when the worker no longer waits for the callback.
    pub async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }

    /// Runs `work` on a thread where it may block. The next callback of the same replica begins only after
    /// `work` has returned, even if this callback was given up before.
    pub fn spawn_blocking<T, F>(&self, work: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.work.spawn_blocking(work)
    }

    /// Says that the worker no longer waits for the callback.
    pub fn cancel(&self) {
        self.cancelled.cancel();
    }

    /// Counts `work` as part of the scope until it returns or is dropped.
    pub(crate) fn tracked<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        self.work.track_future(work)
    }

    /// Whether nothing of it runs any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.work.is_empty()
    }

    /// Returns when nothing of it runs any more.
    pub async fn ended(&self) {
        self.work.wait().await;
    }
}

impl Default for Scope {
    fn default() -> Scope {
        Scope::new()
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("cancelled", &self.is_cancelled()).finish_non_exhaustive()
    }
}

/// What an assignment says does not depend on the callback that it is passed to.
impl PartialEq for Scope {
    fn eq(&self, _: &Scope) -> bool {
        true
    }
}
