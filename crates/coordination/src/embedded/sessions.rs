//! The sessions of one process, and when each ends, by the monotonic clock.
//!
//! They are not stored. Each owner was in, or connected to, the process that kept this
//! table; all sessions end with it, and the next process removes their keys.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::limits::EMBEDDED_MAX_SESSIONS;
use crate::session::SessionId;
use crate::transaction::Version;

#[derive(Debug)]
struct Claim {
    ttl: Duration,
    until: Instant,
}

/// The sessions that are open; those that ended are forgotten.
#[derive(Debug)]
pub(crate) struct Sessions {
    /// The version that marks this start: sessions of two processes never share an id.
    life: Version,
    given: u64,
    claims: BTreeMap<SessionId, Claim>,
}

impl Sessions {
    pub fn new(life: Version) -> Self {
        Self { life, given: 0, claims: BTreeMap::new() }
    }

    pub fn open(&mut self, ttl: Duration, now: Instant) -> Result<SessionId> {
        if self.claims.len() >= EMBEDDED_MAX_SESSIONS {
            let what = "the number of open sessions".to_owned();
            return Err(Error::TooLarge { what, size: self.claims.len() + 1, limit: EMBEDDED_MAX_SESSIONS });
        }
        self.given += 1;
        let id = SessionId::new(u128::from(self.life.get()) << 64 | u128::from(self.given));
        self.claims.insert(id, Claim { ttl, until: now + ttl });
        Ok(id)
    }

    pub fn renew(&mut self, session: SessionId, now: Instant) -> Result<()> {
        let live = self.claims.get_mut(&session).filter(|claim| now < claim.until);
        let claim = live.ok_or(Error::SessionEnded { session })?;
        claim.until = now + claim.ttl;
        Ok(())
    }

    pub fn is_live(&self, session: SessionId, now: Instant) -> bool {
        self.claims.get(&session).is_some_and(|claim| now < claim.until)
    }

    /// Forgets a session; true if it was known.
    pub fn end(&mut self, session: SessionId) -> bool {
        self.claims.remove(&session).is_some()
    }

    /// Forgets and returns the sessions whose time is over.
    pub fn expire(&mut self, now: Instant) -> Vec<SessionId> {
        self.claims.extract_if(.., |_, claim| claim.until <= now).map(|(session, _)| session).collect()
    }

    /// When the next one is over.
    pub fn next_end(&self) -> Option<Instant> {
        self.claims.values().map(|claim| claim.until).min()
    }
}
