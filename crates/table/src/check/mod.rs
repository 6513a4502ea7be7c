//! Checks of replicas on this node: what each has as of an entry of its log, for a comparison with others.
//!
//! ```text
//!  entry of the log ─► replica applies it ─► pins its rows ─► sums them up, step by step, on a thread of the pool
//!                                                                       │
//!  who asks for the result by its number ◄──────── kept for a while ◄───╯
//! ```
//!
//! What is compared is in [`partage_service::table::check`]; which shards are asked, in `indexes/check.rs`.

mod digest;
#[cfg(test)]
mod tests;

pub(crate) use digest::Digesting;

use crate::limits::{CHECK_LIFE_MS, CHECKS_KEPT};
use partage_core::base::time::Millis;
use partage_core::node::exchange::ReplicaKey;
use partage_service::table::check::Digest;
use partage_service::table::replication::LogPosition;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How far a check of a replica is.
#[derive(Debug, Clone)]
pub(crate) enum CheckState {
    /// The replica is summed up.
    Working,
    /// What it has, as of that entry of its log.
    Done(LogPosition, Arc<Digest>),
    /// Its store cannot be read, or too many checks are under way.
    Failed(String),
}

/// The checks of a node, under way and done.
#[derive(Debug, Default)]
pub(crate) struct Checks(Mutex<BTreeMap<(ReplicaKey, u64), (Millis, CheckState)>>);

impl Checks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(ReplicaKey, u64), (Millis, CheckState)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A check begins. False: too many are here, or the entry was logged twice and the first one counts; the replica is not
    /// summed up.
    pub(crate) fn begin(&self, now: Millis, replica: &ReplicaKey, number: u64) -> bool {
        let mut checks = self.lock();
        checks.retain(|_, (began, _)| now < *began + CHECK_LIFE_MS);
        let of = (replica.clone(), number);
        let begins = checks.len() < CHECKS_KEPT && !checks.contains_key(&of);
        if begins {
            checks.insert(of, (now, CheckState::Working));
        }
        begins
    }

    /// A check is done, or has failed. One that was forgotten meanwhile stays so.
    pub(crate) fn end(&self, replica: &ReplicaKey, number: u64, state: CheckState) {
        if let Some((_, known)) = self.lock().get_mut(&(replica.clone(), number)) {
            *known = state;
        }
    }

    /// How far a check is; none: the replica has not begun it, or it was forgotten. What is done is forgotten then.
    pub(crate) fn take(&self, replica: &ReplicaKey, number: u64) -> Option<CheckState> {
        let mut checks = self.lock();
        let of = (replica.clone(), number);
        let state = checks.get(&of).map(|(_, state)| state.clone());
        if !matches!(state, None | Some(CheckState::Working)) {
            checks.remove(&of);
        }
        state
    }
}
