//! Closed replicas that keep the log too long: their entries are flushed to their stores.
//!
//! A replica closes without a flush when little of it is in memory, and the log keeps its entries. When the log wants the room, a
//! thread of the pool opens the store, applies what is committed, flushes, and trims the log, as an open replica does. If the
//! replica opens meanwhile, it does that itself.

use super::{Shared, open_rows};
use crate::notice::Notice;
use crate::pool::Pool;
use crate::registry::Presence;
use crate::rows::RowsError;
use partage_core::node::exchange::ReplicaKey;
use partage_engine::replica::Store;
use partage_log::Record;
use partage_service::table::replication::{LogPosition, LogWrite};
use std::sync::{Arc, Weak};

/// The log's thread calls this for a closed replica that holds the log: it only adds a task.
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

/// The outcome of flushing a closed replica.
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
            // Without settings the node does not know whether the table has a feed: the service opens or drops the replica.
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
        let mut rows = opened.map_err(|not_opened| not_opened.why)?.rows;
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

    /// Trims the log up to `flushed`, as the rows are stored up to there.
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
            // Nobody waits for number 0. If the log has no room for the record, it is trimmed later.
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
