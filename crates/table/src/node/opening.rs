//! How a replica is opened, and what is left of it removed: on a thread of the pool, as both read and write files.

use super::Shared;
use super::recovery::{NotOpened, open_rows};
use crate::error::ReplicaError;
use crate::event_loop::Local;
use crate::queue::ReplicaQueue;
use crate::registry::{ClosedReplica, Presence};
use crate::replica::{LocalReplica, Opening};
use crate::settings::ReplicaSettings;
use partage_core::base::id::Incarnation;
use partage_core::node::exchange::ReplicaKey;
use partage_engine::replica::Store;
use partage_service::table::replication::Stored;
use std::sync::Arc;

/// What a replica is to be opened with.
pub(super) struct Request {
    pub(super) queue: Arc<ReplicaQueue>,
    pub(super) settings: ReplicaSettings,
    pub(super) incarnation: Incarnation,
    pub(super) is_new: bool,
}

/// Opens what is stored of a replica, or begins it.
pub(super) fn open_now(
    shared: &Arc<Shared>,
    request: Request,
    closed: Option<Box<ClosedReplica>>,
) -> Result<(), ReplicaError> {
    let Request { queue, settings, incarnation, is_new } = request;
    let key = queue.key.clone();
    let opened = open_rows(shared, &key, closed.is_some(), settings.feed());
    let (generation, rows) = match opened {
        Ok(opened) => opened,
        Err(NotOpened { why, is_damaged }) => {
            let mut presences = shared.registry.presences();
            return Err(match closed {
                Some(_) if is_damaged => {
                    presences.insert(key.clone(), Presence::Damaged(why.clone()));
                    ReplicaError::Damaged(key, why)
                }
                Some(closed) => {
                    presences.insert(key.clone(), Presence::Stored(closed));
                    ReplicaError::Store(key, why)
                }
                None => {
                    presences.remove(&key);
                    ReplicaError::Store(key, why)
                }
            });
        }
    };
    let is_new = is_new && closed.is_none();
    let flushed = rows.store().flushed();
    let stored = Stored { flushed, ..closed.map_or_else(Stored::default, |closed| closed.stored) };
    let opening = Opening { settings, incarnation, is_new, stored, rows, generation };
    let replica = LocalReplica::open(Arc::clone(&queue), Arc::clone(shared), opening);
    queue.place(Local::Replica(Box::new(replica)), |_| ());
    shared.registry.opened(queue);
    Ok(())
}

/// The log has forgotten the replica.
pub(super) fn remove_now(shared: &Shared, key: ReplicaKey) -> Result<(), ReplicaError> {
    let removed = shared.remove_folders(&key);
    shared.registry.presences().remove(&key);
    removed.map_err(|why| ReplicaError::NotRemoved(key, why))
}
