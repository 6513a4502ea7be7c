//! From the cluster's writes to the coordination store, and back at the start.
//!
//! Every commit is fenced by the leadership: a coordinator that was deposed while it slept changes nothing
//! (O10). What is larger than one transaction is prepared beside and swapped in by one, or listed and
//! done from the list; see [`partage_wire::stored`].

use partage_coordination::{Coordination, Key, KeyError, Leadership, Scope, Transaction};
use partage_core::cluster::{Cluster, Records, Write};
use partage_core::name::KeyspaceName;
use partage_wire::stored::{self, EncodeError, Room, Shelf, StoreOp, StoredError};
use std::sync::Arc;

/// The store did not keep what was decided, or does not hold what it should.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The backend said so.
    #[error(transparent)]
    Coordination(#[from] partage_coordination::Error),
    /// The session was not renewed in time: another may lead by now.
    #[error("this coordinator leads no more: its session was not renewed in time")]
    Deposed,
    /// A key that the backend cannot take.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A record that cannot be stored.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// A map that is not in the store: with an empty one in its place everything would be placed anew.
    #[error(
        "the map of keyspace {keyspace} is kept in METADATA files by {}, and this coordinator reads none: check the root",
        servers.join(", ")
    )]
    Elsewhere {
        /// Whose map.
        keyspace: KeyspaceName,
        /// Who has it.
        servers: Vec<String>,
    },
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

/// What a transaction takes beside its fence: as many steps as every backend does, and half of the bytes.
fn room(coordination: &dyn Coordination) -> Room {
    Room {
        steps: partage_coordination::limits::MAX_TRANSACTION_STEPS - 1,
        bytes: coordination.limits().max_transaction_bytes / 2,
    }
}

impl Store {
    /// Reads everything, and is ready to write on.
    pub async fn open(
        coordination: Arc<dyn Coordination>,
        leadership: Leadership,
    ) -> Result<(Store, Records), StoreError> {
        let entries = read_all(&*coordination).await?;
        let recovered = stored::read(entries)?;
        if let Some((keyspace, head)) = recovered.heads.first_key_value() {
            let servers = head.servers.iter().map(ToString::to_string).collect();
            return Err(StoreError::Elsewhere { keyspace: keyspace.clone(), servers });
        }
        let (finish, records, shelf) = recovered.finish(room(&*coordination));
        let mut store = Store { coordination, leadership, shelf };
        store.carry_out(finish).await?;
        Ok((store, records))
    }

    /// Takes away all that is stored, whole or not, and is ready to write there.
    pub async fn empty(
        coordination: Arc<dyn Coordination>,
        leadership: Leadership,
    ) -> Result<Store, StoreError> {
        let entries = read_all(&*coordination).await?;
        let store = Store { coordination, leadership, shelf: Shelf::default() };
        for some in entries.chunks(room(&*store.coordination).steps) {
            let deletes: Vec<_> = some.iter().map(|(key, _)| StoreOp::Delete(key.clone())).collect();
            store.transact(&deletes).await?;
        }
        Ok(store)
    }

    /// Makes `writes` durable, all or none; `cluster` is as it is after them.
    pub async fn commit(&mut self, writes: &[Write], cluster: &Cluster) -> Result<(), StoreError> {
        if writes.is_empty() {
            return Ok(());
        }
        let map = |name: &_| cluster.keyspaces().get(name).map(|keyspace| &keyspace.map);
        let batch = self.shelf.encode(writes, map)?;
        self.carry_out(batch.transactions(room(&*self.coordination))).await
    }

    async fn carry_out(&mut self, transactions: Vec<Vec<StoreOp>>) -> Result<(), StoreError> {
        for transaction in transactions {
            self.transact(&transaction).await?;
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use partage_coordination::embedded::Embedded;
    use partage_coordination::{Election, Session};
    use partage_core::metadata::Head;
    use std::time::Duration;

    #[tokio::test]
    async fn a_store_whose_maps_are_elsewhere_is_refused() {
        let coordination: Arc<dyn Coordination> = Embedded::in_memory();
        let session = Session::open(coordination.clone(), Duration::from_secs(60)).await.unwrap();
        let election = Election::new(coordination.clone(), &Key::new("election").unwrap()).unwrap();
        let leadership = election.lead(&session, bytes::Bytes::new).await.unwrap();
        let keyspace = KeyspaceName::new("users").unwrap();
        let head = Head { at: Default::default(), servers: vec!["m1".parse().unwrap()] };
        let key = Key::new(stored::book::head_key(&keyspace)).unwrap();
        let transaction = Transaction::new().put(&key, stored::book::seal_head(&keyspace, &head));
        coordination.commit(transaction).await.unwrap();
        let refused = Store::open(coordination, leadership).await.err().unwrap();
        assert!(matches!(&refused, StoreError::Elsewhere { servers, .. } if servers == &["m1"]), "{refused}");
    }
}
