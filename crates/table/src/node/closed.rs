//! Replicas that are stored and not open, and keep the log longer than it should be: what the log has of their rows is flushed.
//!
//! A replica is closed without a flush when little of it is in memory. The log keeps its entries. When it wants the room, a
//! thread of the pool opens the store, applies what is committed, flushes, and trims the log: what an open replica does when it
//! is told the same. If the replica is opened meanwhile, it is told to do so itself.

use super::{Shared, open_rows};
use crate::owner::Notice;
use crate::pool::Pool;
use crate::registry::Presence;
use crate::rows::RowsError;
use partage_core::node::exchange::ReplicaKey;
use partage_engine::replica::Store;
use partage_log::Record;
use partage_service::table::replication::{LogPosition, LogWrite};
use std::sync::{Arc, Weak};

/// What the log's thread calls for a replica that is not open, and holds the log: it only adds a task.
pub(super) fn flusher(pool: Pool, shared: Weak<Shared>) -> impl Fn(ReplicaKey) + Send + Sync {
    move |key| {
        let shared = Weak::clone(&shared);
        pool.add(key.placement, move || {
            if let Some(shared) = shared.upgrade() {
                shared.flush_closed(&key);
            }
        });
    }
}

/// What came of it.
enum Flushed {
    /// The log needs nothing of the replica any more.
    All,
    /// The replica is open, or about to be, or gone.
    NotMine,
    /// The disk has no room: again when it has.
    NoRoom,
    /// The log has entries that are not known to be committed, or the replica is damaged, or was not open since the node began.
    Holds,
}

impl Shared {
    fn flush_closed(self: &Arc<Self>, key: &ReplicaKey) {
        let outcome = self.try_flush_closed(key).unwrap_or_else(|why| {
            tracing::warn!(keyspace = %key.keyspace, shard = %key.shard, "is stored, and cannot be flushed: {why}");
            Flushed::Holds
        });
        match outcome {
            Flushed::All => {
                self.registry.holds_no_more(key);
            }
            Flushed::NotMine | Flushed::NoRoom => {}
            Flushed::Holds => {
                self.registry.holds_no_more(key);
                self.registry.tell(Notice::HoldsLog(key.clone()));
            }
        }
    }

    fn try_flush_closed(&self, key: &ReplicaKey) -> Result<Flushed, String> {
        let (stored, settings) = match self.registry.presences().get(key) {
            // Without settings it is not known whether changes are kept for a feed: the owner opens it, or drops it.
            Some(Presence::Stored(closed)) => match closed.settings {
                Some(settings) => (closed.stored.clone(), settings),
                None => return Ok(Flushed::Holds),
            },
            Some(Presence::Damaged(_)) => return Ok(Flushed::Holds),
            Some(Presence::Changing | Presence::Open | Presence::Base) => return Ok(Flushed::NotMine),
            None => {
                self.registry.holds_no_more(key);
                return Ok(Flushed::NotMine);
            }
        };
        let opened = open_rows(self, key, true, settings.feed());
        let (_, mut rows) = opened.map_err(|not_opened| not_opened.why)?;
        let from = rows.store().flushed().index;
        let behind = stored.entries.iter().skip_while(|entry| entry.position.index <= from);
        for entry in behind.take_while(|entry| entry.position.index <= stored.committed) {
            rows.apply_entry(entry).map_err(|error| error.to_string())?;
        }
        let flushed = match rows.store().flush().map_err(RowsError::from) {
            Ok(flushed) => flushed,
            Err(error) if error.is_no_room() => return Ok(Flushed::NoRoom),
            Err(error) => return Err(error.to_string()),
        };
        drop(rows);
        Ok(self.trim_closed(key, flushed))
    }

    /// The rows are stored up to there, so the log needs nothing up to there.
    fn trim_closed(&self, key: &ReplicaKey, flushed: LogPosition) -> Flushed {
        let mut closed = {
            let mut presences = self.registry.presences();
            match presences.insert(key.clone(), Presence::Changing) {
                Some(Presence::Stored(closed)) => closed,
                other => {
                    match other {
                        Some(other) => presences.insert(key.clone(), other),
                        None => presences.remove(key),
                    };
                    return Flushed::NotMine;
                }
            }
        };
        let stored = &mut closed.stored;
        stored.flushed = flushed;
        // The children of a shard are told of its closing entry from the log, and what came as a snapshot is not in the log.
        if !stored.has_close() && stored.entries.iter().any(|entry| entry.position == flushed) {
            let trim = LogWrite::Trim(flushed);
            // A number that none waits for. If the log has no room for it, nothing is trimmed until there is.
            match self.writer.try_submit(key.clone(), 0, Record::Write(trim.clone())) {
                Ok(()) => stored.write(trim),
                Err(_) => {
                    self.registry.presences().insert(key.clone(), Presence::Stored(closed));
                    return Flushed::NoRoom;
                }
            }
        }
        let holds = !stored.entries.is_empty();
        self.registry.presences().insert(key.clone(), Presence::Stored(closed));
        if holds { Flushed::Holds } else { Flushed::All }
    }
}
