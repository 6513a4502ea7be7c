//! Until when a leader may act as one.
//!
//! A fence refuses a deposed leader's commits. It does not cover what a leader does in memory alone, such as prolonging
//! the lease of a worker. Nor does a live session: if somebody deletes the leader key, or restores the
//! backend from an older state, the next leader is elected while the first one's session goes on.
//!
//! So a leader keeps reading its leader key from the backend, and may act for a time-to-live of its session after it
//! sent the last read that showed the key as it wrote it.
//!
//! ```text
//!  leader    ── read key ──► as written      ── read key ──► changed: it leads no more
//!            ├────── may act until ─────────┤
//!  backend             somebody deletes the key ▲     ▲ a watch makes the leader ask at once
//! ```
//!
//! It also reads the version of the store, and that of its own last commit. Both only grow. A store that is
//! at a lower version than it was, or lacks a commit of this leader, was restored from an older state: the leader's
//! memory differs from the store, and it leads no more. The second read is needed where a backend gives higher
//! versions after each start, as MySQL does here, or an operator raises them after a restore
//! (`etcdctl --bump-revision`).
//!
//! A leader that was deposed at `T` learns it from its watch, within a round trip; where the watch is late or lost, it
//! stops at `T` plus [`LeaderLease::bound`] at the latest. The next leader must assume that the former one
//! acted until then.
//!
//! Not done: to fence each renewal of a worker's lease by a round trip to the backend. It would make every beat wait
//! for the backend, and a backend that is slow for a second would cost workers what this costs nobody.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use partage_clock::{Instant, before, sleep_until};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::contract::{Coordination, Listing};
use crate::election::Leadership;
use crate::error::{Error, Result};
use crate::key::{Key, Scope};
use crate::limits::{LEADER_WATCH_PAUSE, RENEWALS_PER_TTL};
use crate::session::{Renewals, Session};
use crate::transaction::{Entry, Version};

/// Why a leader leads no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Deposed {
    /// Another may lead by now.
    #[error("its session was not renewed in time")]
    SessionOver,
    /// The backend did not answer, or its answers came too late.
    #[error("the backend did not confirm in time that it leads")]
    NotConfirmed,
    /// The session lives, and the key is gone.
    #[error(
        "its key `{0}` was deleted while its session lived: somebody removed the key, or the backend was restored from \
         an older state while coordinators ran; see \"Restoring\" in the book's page on the backend"
    )]
    KeyGone(Key),
    /// The session lives, and the key is another one's.
    #[error(
        "its key `{0}` was replaced while its session lived: another coordinator leads, or somebody wrote there; see \
         \"Restoring\" in the book's page on the backend"
    )]
    KeyReplaced(Key),
    /// Versions only grow, and this one went back.
    #[error(
        "the backend is at {now}, and was at {before} before: it was restored from an older state while coordinators \
         ran; stop all coordinators, and see \"Restoring\" in the book's page on the backend"
    )]
    SetBack {
        /// What it is at.
        now: Version,
        /// What it was at.
        before: Version,
    },
    /// An acknowledged commit is not there.
    #[error(
        "the backend acknowledged a commit of this coordinator at {acknowledged}, and has none after {found}: it was \
         restored from an older state while coordinators ran; stop all coordinators, and see \"Restoring\" in the \
         book's page on the backend"
    )]
    CommitLost {
        /// The leader's last commit in the store.
        found: Version,
        /// The last one that was acknowledged.
        acknowledged: Version,
    },
    /// The key names another cluster, or is gone.
    #[error(
        "the key `{0}`, which says whose the root is, was deleted or changed: stop all coordinators, and find out who \
         did it before any of them is started again"
    )]
    AnotherCluster(Key),
}

/// What a leader knows about its leadership.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    /// It may act until that moment, which moves on with each confirmation.
    Until(Instant),
    /// It may act no more, for that reason.
    Over(Deposed),
}

/// The right of a leader to act, which ends by itself unless the backend confirms it again and again.
pub struct LeaderLease {
    session: Arc<Session>,
    known: watch::Receiver<Known>,
    _confirming: Renewals,
}

impl fmt::Debug for LeaderLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderLease").field("known", &*self.known.borrow()).finish_non_exhaustive()
    }
}

impl LeaderLease {
    /// Begins to confirm. `about` is the value of the key `about`, if the root has one: a leader of a root that becomes
    /// another cluster's leads no more.
    ///
    /// # Errors
    /// The backend's. A leader that is deposed already gets a lease that is over.
    pub async fn begin(
        coordination: Arc<dyn Coordination>,
        session: Arc<Session>,
        leadership: &Leadership,
        about: Option<Bytes>,
    ) -> Result<Self> {
        let about = about.map(|value| Ok::<_, Error>((Key::new(crate::claim::ABOUT)?, value))).transpose()?;
        let held = Held { leadership: leadership.clone(), about };
        let asked = Instant::now();
        let first = match held.look(&*coordination).await? {
            None => Known::Until(asked + session.ttl()),
            Some(deposed) => Known::Over(deposed),
        };
        let over = matches!(first, Known::Over(_));
        let (known, receiver) = watch::channel(first);
        let apart = coordination.renews_apart();
        let ttl = session.ttl();
        let confirming = async move {
            if !over {
                confirm(coordination, held, ttl, known).await;
            }
        };
        Ok(Self { session, known: receiver, _confirming: Renewals::start(confirming, apart)? })
    }

    /// How long after it was deposed a leader may still act, at the most, by its own clock.
    #[must_use]
    pub fn bound(ttl: Duration) -> Duration {
        ttl
    }

    /// Whether it may act now, or why not.
    ///
    /// # Errors
    /// When it leads no more.
    pub fn check(&self) -> std::result::Result<(), Deposed> {
        if !self.session.is_live() {
            return Err(Deposed::SessionOver);
        }
        match &*self.known.borrow() {
            Known::Until(until) if Instant::now() < *until => Ok(()),
            Known::Until(_) => Err(Deposed::NotConfirmed),
            Known::Over(deposed) => Err(deposed.clone()),
        }
    }

    /// Returns when it may not act any more, with the reason.
    pub async fn lost(&self) -> Deposed {
        let mut known = self.known.clone();
        loop {
            let now = known.borrow_and_update().clone();
            let until = match now {
                Known::Over(deposed) => return deposed,
                Known::Until(until) if Instant::now() >= until => return Deposed::NotConfirmed,
                Known::Until(until) => until,
            };
            tokio::select! {
                () = self.session.lost() => return Deposed::SessionOver,
                () = sleep_until(until) => {}
                changed = known.changed() => if changed.is_err() { sleep_until(until).await },
            }
        }
    }
}

/// The entries that must not change.
struct Held {
    leadership: Leadership,
    about: Option<(Key, Bytes)>,
}

impl Held {
    /// Why its owner is deposed, if it is.
    async fn look(&self, coordination: &dyn Coordination) -> Result<Option<Deposed>> {
        if let Some(deposed) = self.look_at_leader(coordination).await? {
            return Ok(Some(deposed));
        }
        if let Some(deposed) = self.look_at_commits(coordination).await? {
            return Ok(Some(deposed));
        }
        let Some((key, value)) = &self.about else { return Ok(None) };
        let found = coordination.read(key).await?;
        let same = found.is_some_and(|found| found.value == *value);
        Ok((!same).then(|| Deposed::AnotherCluster(key.clone())))
    }

    async fn look_at_leader(&self, coordination: &dyn Coordination) -> Result<Option<Deposed>> {
        let (leader, seen) = (self.leadership.key(), self.leadership.seen());
        let before = seen.get();
        let Listing { at: now, entries, .. } =
            coordination.list(&Scope::One(leader.clone()), None, 1).await?;
        if now < before {
            return Ok(Some(Deposed::SetBack { now, before }));
        }
        seen.learned(now);
        // A tool of the backend may change the value and leave the version, as an `UPDATE` does.
        let is_mine = |entry: &Entry| {
            entry.version == self.leadership.version() && entry.value == *self.leadership.value()
        };
        Ok(match entries.first() {
            Some((_, entry)) if is_mine(entry) => None,
            Some(_) => Some(Deposed::KeyReplaced(leader.clone())),
            None => Some(Deposed::KeyGone(leader.clone())),
        })
    }

    async fn look_at_commits(&self, coordination: &dyn Coordination) -> Result<Option<Deposed>> {
        let (mark, term) = self.leadership.commit_mark();
        let acknowledged = self.leadership.last_commit().get();
        Ok(match coordination.read(mark).await? {
            None => Some(Deposed::KeyGone(mark.clone())),
            Some(Entry { version: found, .. }) if found < acknowledged => {
                Some(Deposed::CommitLost { found, acknowledged })
            }
            Some(entry) if entry.value != term => Some(Deposed::KeyReplaced(mark.clone())),
            Some(_) => None,
        })
    }
}

/// Looks at regular times, and at once when a watch shows a change, until it is over.
async fn confirm(
    coordination: Arc<dyn Coordination>,
    held: Held,
    ttl: Duration,
    known: watch::Sender<Known>,
) {
    let changed = Notify::new();
    let about = held.about.as_ref().map(|(key, _)| key.clone());
    tokio::select! {
        () = ask(&*coordination, &held, ttl, &known, &changed) => {}
        () = notify_of_changes(&*coordination, Some(held.leadership.key().clone()), &changed) => {}
        () = notify_of_changes(&*coordination, about, &changed) => {}
    }
}

async fn ask(
    coordination: &dyn Coordination,
    held: &Held,
    ttl: Duration,
    known: &watch::Sender<Known>,
    changed: &Notify,
) {
    loop {
        tokio::select! {
            () = sleep(ttl / RENEWALS_PER_TTL) => {}
            () = changed.notified() => {}
        }
        let asked = Instant::now();
        let Known::Until(until) = *known.borrow() else { return };
        if asked >= until {
            return;
        }
        match before(until, held.look(coordination)).await {
            // An answer that came after the end does not revive what the leader may have given up.
            Some(Ok(None)) if Instant::now() < until => {
                known.send_replace(Known::Until(asked + ttl));
            }
            Some(Ok(Some(deposed))) => {
                known.send_replace(Known::Over(deposed));
                return;
            }
            Some(Err(error)) => tracing::warn!(%error, "the lead is not confirmed, asking again"),
            Some(Ok(None)) | None => return,
        }
    }
}

/// Never returns. It begins a broken watch again; the regular looks find what it misses meanwhile.
async fn notify_of_changes(coordination: &dyn Coordination, key: Option<Key>, changed: &Notify) {
    let Some(key) = key else { return std::future::pending().await };
    loop {
        if let Ok(mut updates) = coordination.watch(Scope::One(key.clone()), None).await {
            while updates.next().await.is_ok() {
                changed.notify_one();
            }
        }
        sleep(LEADER_WATCH_PAUSE).await;
    }
}
