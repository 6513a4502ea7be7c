//! Many rows in one request: each is written through the leader of its shard, as any other write, if its key has no row yet.
//!
//! "If there is none yet" makes the same rows a second time harmless: a request whose answer was lost is sent again without a
//! request id, which would cost two records more for each row; and what clients have written meanwhile stays.

use crate::access::TableClient;
use crate::limits;
use crate::service::{Refusal, Refused};
use futures::{StreamExt, TryStreamExt, stream};
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::key::Key;
use partage_service::table::rows::{Action, Condition, Expiry, Operation, Outcome, Write};
use partage_wire::table::backup::messages::RowsTaken;
use partage_wire::table::backup::rows::{BackupRow, RowReader};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Writes rows of backups. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Loader {
    client: TableClient,
    bulks: Arc<Semaphore>,
}

impl Loader {
    pub(crate) fn new(client: TableClient) -> Loader {
        Loader { client, bulks: Arc::new(Semaphore::new(limits::RESTORE_REQUESTS)) }
    }

    /// Writes rows; nothing of them is lost if that is said, and some may be written if it is not.
    pub(crate) async fn load(&self, table: &KeyspaceName, content: &[u8]) -> Result<RowsTaken, Refused> {
        let invalid = |what: String| Refused::new(Refusal::Invalid, what);
        let now_ms = partage_clock::wall_ms();
        let (mut writes, mut taken) = (Vec::new(), RowsTaken::default());
        for row in RowReader::new(content) {
            let row = row.map_err(|error| invalid(error.to_string()))?;
            if row.expires_ms.is_some_and(|end| end <= now_ms) {
                taken.ended += 1;
            } else {
                writes.push(write(&row).map_err(invalid)?);
            }
        }
        let _bulk =
            self.bulks.acquire().await.map_err(|error| Refused::new(Refusal::Stopped, error.to_string()))?;
        // Boxed, or the compiler looks for the lifetimes of all writes at once.
        let outcomes = stream::iter(writes)
            .map(|write| Box::pin(self.client.write(table, write)))
            .buffer_unordered(limits::RESTORE_WRITES);
        let taken = outcomes.try_fold(taken, |mut taken, outcome| async move {
            match outcome {
                Outcome::Done { .. } => taken.written += 1,
                Outcome::NotMet { .. } => taken.there += 1,
                Outcome::Refused { .. } | Outcome::RequestIdTaken => {
                    return Err(Refused::new(Refusal::Invalid, "a row was refused: it is no put"));
                }
            }
            Ok(taken)
        });
        taken.await
    }
}

fn write(row: &BackupRow<'_>) -> Result<Write, String> {
    let key = Key::new(row.key).map_err(|error| error.to_string())?;
    let expiry = row.expires_ms.map_or(Expiry::Never, Expiry::At);
    let action = Action::Put(row.value.into(), expiry);
    let operation = Operation { key, condition: Condition::Absent, action, wants_former: false };
    // The node that has the row sets the time.
    Ok(Write { at_ms: 0, request: None, operations: vec![operation] })
}
