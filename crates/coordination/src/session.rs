//! Sessions: a claim to be alive, with an end that owner and backend agree on.
//!
//! The owner counts its time-to-live from before it asks, the backend from when it is asked. So the owner
//! always gives up first (C4), whatever the network does, without a wall clock. Renewals run in a task or
//! thread of their own; a process that was stopped, or a machine that slept, finds the deadline passed when
//! it wakes, before any renewal is answered.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use partage_clock::{Instant, before, sleep_until};
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::contract::Coordination;
use crate::error::{Error, Result};
use crate::limits::{MAX_SESSION_TTL, MIN_SESSION_TTL, RENEWALS_PER_TTL};

/// Names a session; never given twice by one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(u128);

impl SessionId {
    /// Wraps a number; only backends give them, each its own way to give none twice.
    #[must_use]
    pub const fn new(number: u128) -> Self {
        Self(number)
    }

    /// The number, for storing.
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// Refuses a time-to-live outside the limits; every backend calls it first.
pub(crate) fn check_ttl(ttl: Duration) -> Result<()> {
    if (MIN_SESSION_TTL..=MAX_SESSION_TTL).contains(&ttl) {
        return Ok(());
    }
    let what = format!(
        "a session of {ttl:?} is outside the limits: choose {MIN_SESSION_TTL:?} to {MAX_SESSION_TTL:?}"
    );
    Err(Error::Invalid { what })
}

/// A session that renews itself until it is dropped, ended or lost.
#[derive(Debug)]
pub struct Session {
    coordination: Arc<dyn Coordination>,
    id: SessionId,
    ttl: Duration,
    /// Until when the owner may act; in the past once the session is lost.
    deadline: watch::Receiver<Instant>,
    renewals: Renewals,
}

/// Renews a session until dropped.
#[derive(Debug)]
pub(crate) enum Renewals {
    Task(JoinHandle<()>),
    /// The thread ends when this is gone.
    Thread {
        _until: oneshot::Sender<()>,
    },
}

impl Renewals {
    pub(crate) fn start(renewing: impl Future<Output = ()> + Send + 'static, apart: bool) -> Result<Self> {
        if !apart {
            return Ok(Self::Task(tokio::spawn(renewing)));
        }
        let failed = |error| Error::Unavailable { what: format!("cannot start the renewals: {error}") };
        let runtime = Builder::new_current_thread().enable_time().build().map_err(failed)?;
        let (until, ended) = oneshot::channel::<()>();
        let body = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = renewing => {}
                    // Nothing is ever sent: the sender was dropped.
                    _ = ended => {}
                }
            });
        };
        std::thread::Builder::new().name("session-renewals".into()).spawn(body).map_err(failed)?;
        Ok(Self::Thread { _until: until })
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        if let Self::Task(task) = self {
            task.abort();
        }
    }
}

impl Session {
    /// Opens a session and starts to renew it.
    pub async fn open(coordination: Arc<dyn Coordination>, ttl: Duration) -> Result<Self> {
        check_ttl(ttl)?;
        let asked = Instant::now();
        let id = coordination.open_session(ttl).await?;
        let (sender, deadline) = watch::channel(asked + ttl);
        let renewing = renew(Arc::clone(&coordination), id, ttl, sender);
        let renewals = Renewals::start(renewing, coordination.renews_apart())?;
        Ok(Self { coordination, id, ttl, deadline, renewals })
    }

    /// Its name, for [`Transaction::put_ephemeral`](crate::Transaction::put_ephemeral).
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// How long the session lasts after its last renewal.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Until when the owner may act. Moves on with each renewal.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        *self.deadline.borrow()
    }

    /// True before the deadline.
    #[must_use]
    pub fn is_live(&self) -> bool {
        Instant::now() < self.deadline()
    }

    /// Returns when the session is lost: refused by the backend, or not renewed in time.
    pub async fn lost(&self) {
        let mut deadline = self.deadline.clone();
        loop {
            let until = *deadline.borrow_and_update();
            if Instant::now() >= until {
                return;
            }
            tokio::select! {
                () = sleep_until(until) => {}
                changed = deadline.changed() => if changed.is_err() { sleep_until(until).await },
            }
        }
    }

    /// Ends the session now, so that no other process waits for its time-to-live.
    pub async fn end(self) -> Result<()> {
        let Self { coordination, id, renewals, .. } = self;
        drop(renewals);
        coordination.end_session(id).await
    }
}

/// Renews until the deadline passes or the backend says that the session is over.
async fn renew(
    coordination: Arc<dyn Coordination>,
    id: SessionId,
    ttl: Duration,
    deadline: watch::Sender<Instant>,
) {
    loop {
        sleep(ttl / RENEWALS_PER_TTL).await;
        let asked = Instant::now();
        let until = *deadline.borrow();
        if asked >= until {
            return;
        }
        match before(until, coordination.renew_session(id)).await {
            // An answer that came after the deadline does not revive what the owner may have given up.
            Some(Ok(())) if Instant::now() < until => {
                deadline.send_replace(asked + ttl);
            }
            Some(Err(Error::SessionEnded { .. })) => {
                deadline.send_replace(asked);
                return;
            }
            Some(Err(error)) => tracing::warn!(session = %id, %error, "session not renewed, trying again"),
            Some(Ok(())) | None => return,
        }
    }
}
