//! A check that an entry of the log asks for: the replica pins what it has as of that entry, and a thread of the pool sums it up,
//! with other tasks in between.

use super::LocalReplica;
use crate::check::{CheckState, Digesting};
use crate::limits::CHECK_LIFE_MS;
use crate::node::Shared;
use crate::rows::AskedCheck;
use partage_core::node::exchange::ReplicaKey;
use partage_engine::replica::{Store, TreeSnapshot};
use std::sync::Arc;

impl LocalReplica {
    /// Begins a check. One that a process finds in its log when it starts is of no use to anyone any more.
    pub(super) fn begin_check(&mut self, asked: AskedCheck) {
        let AskedCheck { number, range_rows, at_ms } = asked;
        let (key, now) = (self.queue.key.clone(), self.shared.clock.now());
        let is_old = partage_clock::wall_ms() > at_ms.saturating_add(CHECK_LIFE_MS);
        if is_old || !self.shared.checks.begin(now, &key, number) {
            return;
        }
        match self.rows.store().snapshot() {
            Ok(snapshot) => {
                let digesting = Digesting::new(snapshot, self.rows.indexes().to_vec(), range_rows);
                digest_later(&self.shared, key, number, digesting);
            }
            Err(error) => {
                self.shared.checks.end(&key, number, CheckState::Failed(error.to_string()));
                self.stop(&error.into());
            }
        }
    }
}

/// Sums up step by step, so that other tasks get their turn.
fn digest_later(shared: &Arc<Shared>, key: ReplicaKey, number: u64, mut digesting: Digesting<TreeSnapshot>) {
    let again = Arc::downgrade(shared);
    shared.pool.add(key.placement, move || {
        let Some(shared) = again.upgrade() else { return };
        match digesting.step() {
            Ok(true) if shared.registry.queue(&key).is_some() => {
                digest_later(&shared, key, number, digesting);
            }
            Ok(true) => {
                let why = "the replica was closed meanwhile".to_owned();
                shared.checks.end(&key, number, CheckState::Failed(why));
            }
            Ok(false) => {
                let position = digesting.position();
                let digest = Arc::new(digesting.end());
                shared.checks.end(&key, number, CheckState::Done(position, digest));
            }
            Err(error) => shared.checks.end(&key, number, CheckState::Failed(error.to_string())),
        }
    });
}
