//! A leader at work, until its decision loop ends, a keyspace in quarantine can be read again, or it is to stop.

use super::StopSignal;
use crate::backend::BackendConnection;
use crate::backend::map_store::MapStore;
use crate::backend::store::{self, SetBack};
use crate::lead::decision_loop::LoopError;
use crate::publish::events::EventWriter;
use partage_core::base::name::KeyspaceName;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::task::{JoinError, JoinHandle};

/// How the task of a decision loop ended.
pub(super) type LoopEnd = Result<Result<(), LoopError>, JoinError>;

/// What ended the work of a leader.
pub(super) enum LeadEnd {
    /// Its decision loop.
    Loop(LoopEnd),
    /// A keyspace in quarantine, which can be read again.
    Readable(KeyspaceName),
    /// An order to stop.
    Stop,
}

/// The work of a leader: its decision loop, and what it writes.
pub(super) struct RunningLeader {
    /// The task of the decision loop.
    pub task: JoinHandle<Result<(), LoopError>>,
    /// Where the maps are.
    pub maps: Arc<dyn MapStore>,
    /// Keyspaces that cannot be read as they are stored, or were set back.
    pub quarantine: BTreeSet<KeyspaceName>,
    /// Those of them that were set back.
    pub set_back: SetBack,
    /// Stores what happens.
    pub event_writer: EventWriter,
}

impl RunningLeader {
    /// Waits for what ends it.
    pub async fn ended(&mut self, connection: &BackendConnection, stopped: &mut StopSignal) -> LeadEnd {
        let RunningLeader { task, maps, quarantine, set_back, .. } = self;
        tokio::select! {
            ended = task => LeadEnd::Loop(ended),
            keyspace = store::readable_again(&*connection.coordination, &**maps, quarantine, set_back) => {
                LeadEnd::Readable(keyspace)
            }
            // What it gives may not be held over the rest.
            () = async { drop(stopped.wait_for(|stop| *stop).await) } => LeadEnd::Stop,
        }
    }
}
