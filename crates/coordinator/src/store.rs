//! From the cluster's writes to the coordination store, and back at the start.
//!
//! Every commit is fenced by the leadership: a coordinator that was deposed while it slept changes nothing
//! (O10). What is larger than one transaction is prepared beside and swapped in by one; see
//! [`partage_wire::stored`].

use partage_coordination::{Coordination, Key, KeyError, Leadership, Scope, Transaction};
use partage_core::cluster::{Cluster, Records, Write};
use partage_wire::stored::{self, Batch, EncodeError, Shelf, StoreOp, StoredError};
use std::sync::Arc;

/// The store did not keep what was decided, or does not hold what it should.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The backend said so.
    #[error(transparent)]
    Coordination(#[from] partage_coordination::Error),
    /// A key that the backend cannot take.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A record that cannot be stored.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// A record that nothing can be made of.
    #[error("{0}: restore a backup, or see `partage check` for what can be saved")]
    Stored(#[from] StoredError),
}

/// The store, in the hands of the leader.
pub struct Store {
    coordination: Arc<dyn Coordination>,
    leadership: Leadership,
    shelf: Shelf,
}

/// Steps of one transaction beside its fence: what every backend takes.
const STEPS: usize = partage_coordination::limits::MAX_TRANSACTION_STEPS - 1;

impl Store {
    /// Reads everything, and is ready to write on.
    pub async fn open(
        coordination: Arc<dyn Coordination>,
        leadership: Leadership,
    ) -> Result<(Store, Records), StoreError> {
        let entries = read_all(&*coordination).await?;
        let recovered = stored::read(entries)?;
        let mut store = Store { coordination, leadership, shelf: recovered.shelf };
        let litter: Vec<_> = recovered.litter.into_iter().map(StoreOp::Delete).collect();
        store.in_pieces(&litter).await?;
        Ok((store, recovered.records))
    }

    /// Makes `writes` durable, all or none; `cluster` is as it is after them.
    pub async fn commit(&mut self, writes: &[Write], cluster: &Cluster) -> Result<(), StoreError> {
        if writes.is_empty() {
            return Ok(());
        }
        let map = |name: &_| cluster.keyspaces().get(name).map(|keyspace| &keyspace.map);
        let Batch { prepare, commit, tidy } = self.shelf.encode(writes, map)?;
        self.in_pieces(&prepare).await?;
        if commit.len() <= STEPS {
            self.transact(&commit).await?;
        } else {
            // More than one transaction can take: plans and nodes by the hundred. Each record is whole by
            // itself, and recovery takes any of them being older.
            self.in_pieces(&commit).await?;
        }
        self.in_pieces(&tidy).await
    }

    async fn in_pieces(&mut self, operations: &[StoreOp]) -> Result<(), StoreError> {
        let largest = self.coordination.limits().max_transaction_bytes / 2;
        let mut piece = Vec::new();
        let mut bytes = 0;
        for operation in operations {
            let size = match operation {
                StoreOp::Put(key, value) => key.len() + value.len(),
                StoreOp::Delete(key) => key.len(),
            };
            if piece.len() >= STEPS || bytes + size > largest {
                self.transact(&std::mem::take(&mut piece)).await?;
                bytes = 0;
            }
            bytes += size;
            piece.push(operation.clone());
        }
        self.transact(&piece).await
    }

    async fn transact(&self, operations: &[StoreOp]) -> Result<(), StoreError> {
        if operations.is_empty() {
            return Ok(());
        }
        let mut transaction = self.leadership.fence(Transaction::new());
        for operation in operations {
            transaction = match operation {
                StoreOp::Put(key, value) => transaction.put(&Key::new(key)?, value.clone()),
                StoreOp::Delete(key) => transaction.delete(&Key::new(key)?),
            };
        }
        self.coordination.commit(transaction).await?;
        Ok(())
    }
}

/// Every key below the roots of the stored forms, with its value.
async fn read_all(coordination: &dyn Coordination) -> Result<Vec<(String, bytes::Bytes)>, StoreError> {
    let mut entries = Vec::new();
    for root in stored::ROOTS {
        let root = Key::new(root)?;
        if let Some(entry) = coordination.read(&root).await? {
            entries.push((root.to_string(), entry.value));
        }
        let mut after = None;
        loop {
            let page = coordination.list(&Scope::Below(root.clone()), after.as_ref(), usize::MAX).await?;
            entries.extend(page.entries.into_iter().map(|(key, entry)| (key.to_string(), entry.value)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    Ok(entries)
}
