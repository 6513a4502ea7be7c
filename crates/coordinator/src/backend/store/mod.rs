//! From the cluster's writes to the coordination store, and back at the start.
//!
//! Every commit is fenced by the leadership: a coordinator that was deposed while it slept changes nothing
//! (O10). A commit larger than one transaction is prepared beside and swapped in by one, or listed and
//! done from the list; see [`partage_wire::stored`]. What it does to maps is up to the [map store](super::map_store).

mod error;

use crate::backend::map_store::inline::InlineMaps;
use crate::backend::map_store::{FoundMaps, MapStore, MapUpdate, MapWrites};
use crate::backend::off_loop;
use crate::limits::{QUARANTINE_LOOK_MS, ROOM_MARGIN_BYTES, SHARDS_ON_LOOP};
use partage_coordination::{
    Coordination, FENCE_STEPS, FencedTransaction, Key, Leadership, Scope, Transaction,
};
use partage_core::base::name::KeyspaceName;
use partage_core::cluster::{Cluster, Records, StoredFaults, Write};
use partage_core::keyspace::map::ShardMap;
use partage_core::node::exchange::Known;
use partage_wire::stored::{
    self, EncodeError, Recovered, StoreEncoder, StoreOp, TransactionLimits, Transactions,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use error::StoreError;

/// Keyspaces whose stored map was set back, and the later map of each that somebody knows of.
pub type SetBack = BTreeMap<KeyspaceName, Known>;

/// The key that is put to look for room, and taken away.
pub const ROOM: &str = "room";

/// The store, in the hands of the leader.
pub struct Store {
    coordination: Arc<dyn Coordination>,
    leadership: Leadership,
    encoder: StoreEncoder,
    maps: Arc<dyn MapStore>,
    last_attempt: CommitAttempt,
}

/// The commit that was tried last: what it needs room for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitAttempt {
    /// Keys and values in the backend.
    bytes: u64,
    /// The updates of maps that too few metadata servers have stored; none where the backend was asked.
    maps: Arc<[MapUpdate]>,
}

/// Writes to make durable, with copies of the maps that they lead to: the cluster may take in beats while they are encoded and
/// stored.
pub struct Commit {
    writes: Vec<Write>,
    maps: BTreeMap<KeyspaceName, ShardMap>,
}

impl Commit {
    /// The commit of `writes`; `cluster` is as it is after them.
    pub fn of(writes: Vec<Write>, cluster: &Cluster) -> Commit {
        let changed = writes.iter().filter_map(|write| match write {
            Write::Map(diff) => Some(&diff.keyspace),
            Write::Cluster(_)
            | Write::Keyspace(_)
            | Write::DropKeyspace(_)
            | Write::Node(_)
            | Write::DropNode(_)
            | Write::Plan(_)
            | Write::DropPlan(_) => None,
        });
        let current =
            changed.filter_map(|name| Some((name.clone(), cluster.keyspaces().get(name)?.map.clone())));
        Commit { maps: current.collect(), writes }
    }
}

/// The parts of a commit, each of which is durable at once.
type Parts = Vec<(Transactions, MapWrites)>;

/// Bytes of keys and values that go to the backend.
fn bytes_of(Transactions { before, commit, after }: &Transactions) -> u64 {
    let bytes = |operation: &StoreOp| match operation {
        StoreOp::Put(key, value) => key.len() + value.len(),
        StoreOp::Delete(key) => key.len(),
    };
    let all = before.iter().chain(after).flatten().chain(commit);
    all.map(bytes).sum::<usize>() as u64
}

/// What a transaction takes beside its fence and `more` steps: as many as every backend does, and half of the bytes.
fn transaction_limits(coordination: &dyn Coordination, more: usize) -> TransactionLimits {
    TransactionLimits {
        steps: partage_coordination::limits::MAX_TRANSACTION_STEPS - FENCE_STEPS - more,
        bytes: coordination.limits().max_transaction_bytes / 2,
    }
}

impl Store {
    /// Reads everything, and is ready to write on. A map that is in records of the backend and not in `maps` moves there. What is
    /// wrong with what is stored, and does not keep the rest from going on, is given too: the records are still to be mended
    /// ([`Records::mend`]).
    pub async fn open(
        coordination: Arc<dyn Coordination>,
        leadership: Leadership,
        maps: Arc<dyn MapStore>,
    ) -> Result<(Store, Records, StoredFaults), StoreError> {
        let entries = read_all(&*coordination).await?;
        let mut recovered = stored::read(entries)?;
        let mut faults = std::mem::take(&mut recovered.faults);
        let heads = std::mem::take(&mut recovered.heads);
        let (finish, mut records, encoder) = recovered.finish(transaction_limits(&*coordination, 0));
        let FoundMaps { maps: found, missing } = maps.read(heads).await?;
        records.put_maps(found);
        records.keyspaces.retain(|(record, _)| !missing.contains_key(&record.keyspace.name));
        faults.quarantine.extend(missing.into_iter().map(|(name, why)| {
            let why = format!(
                "no metadata server gives its map ({why}): start the coordinators that keep it, on their directories"
            );
            (name, why)
        }));
        let last_attempt = CommitAttempt::default();
        let mut store = Store { coordination, leadership, encoder, maps, last_attempt };
        store.transact_all(finish).await?;
        if let Err(error) = store.delete_room_key().await {
            // It harms nothing, and goes when there is room.
            tracing::debug!(%error, key = ROOM, "not taken away");
        }
        store.move_in(&records).await?;
        Ok((store, records, faults))
    }

    /// Commits maps that the backend has to the map store, where that has them elsewhere.
    async fn move_in(&mut self, records: &Records) -> Result<(), StoreError> {
        for (_, map) in &records.keyspaces {
            let name = map.keyspace();
            if map.generation().sequence == 0 || self.maps.contains(name) {
                continue;
            }
            tracing::info!(keyspace = %name, "its map moves to the metadata servers");
            let maps = BTreeMap::from([(name.clone(), map.clone())]);
            self.carry_out(Commit { writes: vec![Write::Map(map.whole())], maps }).await?;
        }
        Ok(())
    }

    /// Takes away all that is stored, whole or not, and is ready to write there.
    pub async fn wipe(
        coordination: Arc<dyn Coordination>,
        leadership: Leadership,
    ) -> Result<Store, StoreError> {
        let entries = read_all(&*coordination).await?;
        let maps = Arc::new(InlineMaps::new(coordination.clone(), leadership.clone()));
        let (encoder, last_attempt) = (StoreEncoder::default(), CommitAttempt::default());
        let store = Store { coordination, leadership, encoder, maps, last_attempt };
        for some in entries.chunks(transaction_limits(&*store.coordination, 0).steps) {
            let deletes: Vec<_> = some.iter().map(|(key, _)| StoreOp::Delete(key.clone())).collect();
            store.transact(&deletes).await?;
        }
        Ok(store)
    }

    /// Whether a commit like that one finds room. A backend elsewhere says so only of a change that makes what it
    /// holds larger (ZooKeeper compares a value with the one before): so a new key of that size is put, and goes again.
    /// Metadata servers store what they lacked room for, and forget it again.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn has_room(&self, CommitAttempt { bytes, maps }: &CommitAttempt) -> Result<(), StoreError> {
        if !maps.is_empty() {
            return self.maps.has_room(maps).await;
        }
        let bytes = *bytes;
        if self.coordination.has_room(bytes).await? {
            return Ok(());
        }
        self.delete_room_key().await?;
        let most = self.coordination.limits();
        let most = most.max_value_bytes.min(most.max_transaction_bytes / 2);
        let size = usize::try_from(bytes).unwrap_or(most).saturating_add(ROOM_MARGIN_BYTES).min(most);
        let look = Transaction::new().put(&Key::new(ROOM)?, vec![0; size]);
        self.commit_fenced(self.leadership.fence(look)).await?;
        self.delete_room_key().await
    }

    /// Deletes the key that looks for room; a leader that died meanwhile has left it.
    async fn delete_room_key(&self) -> Result<(), StoreError> {
        let key = Key::new(ROOM)?;
        if self.coordination.read(&key).await?.is_some() {
            let clear = Transaction::new().delete(&key);
            self.commit_fenced(self.leadership.fence(clear)).await?;
        }
        Ok(())
    }

    /// What was last to be stored.
    pub fn last_attempt(&self) -> &CommitAttempt {
        &self.last_attempt
    }

    /// Makes `writes` durable; `cluster` is as it is after them. See [`Store::carry_out`].
    pub async fn commit(&mut self, writes: Vec<Write>, cluster: &Cluster) -> Result<(), StoreError> {
        self.carry_out(Commit::of(writes, cluster)).await
    }

    /// Makes a commit durable in one transaction, or in several where it changes more maps than one can: then the first of its
    /// writes may be durable without those after them ([`StoreError::PartDone`]). After an error the store is of no more use.
    pub async fn carry_out(&mut self, commit: Commit) -> Result<(), StoreError> {
        let parts = self.encode(commit).await?;
        for (number, (transactions, maps)) in parts.into_iter().enumerate() {
            let done = self.commit_part(transactions, maps).await;
            done.map_err(|error| if number == 0 { error } else { error.part_done() })?;
        }
        Ok(())
    }

    /// Encodes, on another thread where that takes a while: a map may have a million shards.
    async fn encode(&mut self, Commit { writes, maps: current }: Commit) -> Result<Parts, EncodeError> {
        let most = self.maps.most_shards(&self.encoder, &writes, &|name| current.get(name));
        let (mut encoder, maps) = (std::mem::take(&mut self.encoder), self.maps.clone());
        let coordination = self.coordination.clone();
        let encoding = move || -> Result<(StoreEncoder, Parts), EncodeError> {
            let parts = maps.encode(&mut encoder, &writes, &|name| current.get(name))?;
            // Each map that is updated may be a condition and a put more.
            let limits = |maps: &MapWrites| transaction_limits(&*coordination, 2 * maps.updated.len());
            let parts = parts.into_iter().map(|(batch, maps)| (batch.transactions(limits(&maps)), maps));
            Ok((encoder, parts.collect()))
        };
        let (encoder, parts) = if most > SHARDS_ON_LOOP { off_loop(encoding).await? } else { encoding()? };
        self.encoder = encoder;
        Ok(parts)
    }

    async fn commit_part(&mut self, transactions: Transactions, maps: MapWrites) -> Result<(), StoreError> {
        self.last_attempt = CommitAttempt { bytes: bytes_of(&transactions), maps: Arc::default() };
        let Transactions { before, commit, after } = transactions;
        self.transact_all(before).await?;
        let done = self.maps.commit(self.fenced(&commit)?, &maps).await;
        if let Err(error @ StoreError::Map(_)) = &done
            && error.is_full()
        {
            self.last_attempt.maps = maps.updated;
        }
        done?;
        self.transact_all(after).await.map_err(StoreError::half_done)
    }

    async fn transact_all(&mut self, transactions: Vec<Vec<StoreOp>>) -> Result<(), StoreError> {
        for transaction in transactions {
            self.transact(&transaction).await?;
        }
        Ok(())
    }

    async fn transact(&self, operations: &[StoreOp]) -> Result<(), StoreError> {
        if operations.is_empty() {
            return Ok(());
        }
        self.commit_fenced(self.fenced(operations)?).await
    }

    async fn commit_fenced(&self, transaction: FencedTransaction) -> Result<(), StoreError> {
        let outcome = self.leadership.commit(&*self.coordination, transaction).await;
        outcome.map(drop).map_err(|error| StoreError::of_fenced(&self.leadership, error))
    }

    fn fenced(&self, operations: &[StoreOp]) -> Result<FencedTransaction, StoreError> {
        let mut transaction = Transaction::new();
        for operation in operations {
            transaction = match operation {
                StoreOp::Put(key, value) => transaction.put(&Key::new(key)?, value.clone()),
                StoreOp::Delete(key) => transaction.delete(&Key::new(key)?),
            };
        }
        Ok(self.leadership.fence(transaction))
    }
}

/// Returns when one of these keyspaces, which could not be read as they were stored or were `set_back`, can be taken up:
/// somebody has written the key again, a metadata server gives the map, or the keyspace was given up.
pub async fn readable_again(
    coordination: &dyn Coordination,
    maps: &dyn MapStore,
    quarantine: &BTreeSet<KeyspaceName>,
    set_back: &SetBack,
) -> KeyspaceName {
    if quarantine.is_empty() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(Duration::from_millis(QUARANTINE_LOOK_MS)).await;
        let Ok(entries) = read_all(coordination).await else { continue };
        let Ok(recovered) = stored::read(entries) else { continue };
        let is_taken_up = |name: &&KeyspaceName| {
            let is_read = !recovered.faults.quarantine.contains_key(*name);
            is_read && set_back.get(*name).is_none_or(|known| is_put_back(&recovered, name, known))
        };
        for keyspace in quarantine.iter().filter(is_taken_up) {
            let can_be_read = !recovered.heads.contains_key(keyspace) || maps.can_read(keyspace).await;
            if can_be_read {
                return keyspace.clone();
            }
        }
    }
}

/// Whether the stored map of a keyspace is the one at `known`, or a later one, or the keyspace was given up.
fn is_put_back(recovered: &Recovered, name: &KeyspaceName, known: &Known) -> bool {
    let map = recovered.records.keyspaces.iter().find(|(record, _)| record.keyspace.name == *name);
    let Some((record, map)) = map else { return true };
    let at = recovered.heads.get(name).map_or(map.generation(), |head| head.at);
    !known.is_ahead_of(record.first_shard, at)
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
    use crate::backend::map_store::{CurrentMap, StillLeads};
    use crate::clock::Clock;
    use async_trait::async_trait;
    use partage_coordination::embedded::Embedded;
    use partage_coordination::{Election, Session};
    use partage_core::base::id::TransactionId;
    use partage_core::cluster::KeyspaceRecord;
    use partage_core::keyspace::Keyspace;
    use partage_core::keyspace::sharding::{PartitionKey, Sharding};
    use partage_service::metadata::Head;
    use partage_wire::stored::Batch;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::thread::{ThreadId, current};

    fn cluster() -> Cluster {
        let at = partage_core::cluster::Moment { now: Default::default(), wall_ms: 0 };
        Cluster::recover(at, Default::default(), Records::default()).unwrap()
    }

    async fn led() -> (Arc<dyn Coordination>, Leadership) {
        let coordination: Arc<dyn Coordination> = Embedded::in_memory();
        let session = Session::open(coordination.clone(), Duration::from_secs(60)).await.unwrap();
        let election = Election::new(coordination.clone(), &Key::new("election").unwrap()).unwrap();
        let leadership = election.lead(&session, bytes::Bytes::new).await.unwrap();
        (coordination, leadership)
    }

    /// So the decision loop answers those who asked for it with the error.
    #[tokio::test]
    async fn what_cannot_be_encoded_changes_nothing() {
        let (coordination, leadership) = led().await;
        let mut store = Store::wipe(coordination.clone(), leadership).await.unwrap();
        let map = ShardMap::empty("users".parse().unwrap(), Sharding::Named, PartitionKey::Whole);
        let of_no_keyspace = Write::Map(map.edit().commit(TransactionId([7; 20])));
        let refused = store.commit(vec![of_no_keyspace], &cluster()).await.unwrap_err();
        assert!(matches!(refused, StoreError::Encode(_)) && refused.changed_nothing(), "{refused}");
        assert!(read_all(&*coordination).await.unwrap().is_empty());
    }

    fn record(name: &KeyspaceName) -> Write {
        let keyspace = Keyspace::new(name.clone(), Sharding::Named);
        Write::Keyspace(KeyspaceRecord::new(keyspace, 0, partage_core::base::id::ShardId(1)))
    }

    /// Encodes when the test lets it, and says on which thread.
    struct SlowEncoding {
        maps: InlineMaps,
        most_shards: AtomicUsize,
        may_encode: Mutex<Receiver<()>>,
        encoded_on: Mutex<Option<ThreadId>>,
    }

    impl SlowEncoding {
        fn new(maps: InlineMaps, most_shards: usize) -> (Arc<SlowEncoding>, SyncSender<()>) {
            let (let_encode, may_encode) = sync_channel(1);
            let (may_encode, encoded_on) = (Mutex::new(may_encode), Mutex::default());
            let most_shards = AtomicUsize::new(most_shards);
            (Arc::new(SlowEncoding { maps, most_shards, may_encode, encoded_on }), let_encode)
        }
    }

    #[async_trait]
    impl MapStore for SlowEncoding {
        async fn read(&self, heads: BTreeMap<KeyspaceName, Head>) -> Result<FoundMaps, StoreError> {
            self.maps.read(heads).await
        }

        async fn can_read(&self, name: &KeyspaceName) -> bool {
            self.maps.can_read(name).await
        }

        fn contains(&self, name: &KeyspaceName) -> bool {
            self.maps.contains(name)
        }

        fn most_shards(&self, _: &StoreEncoder, _: &[Write], _: CurrentMap<'_>) -> usize {
            self.most_shards.load(Ordering::Relaxed)
        }

        fn encode(
            &self,
            encoder: &mut StoreEncoder,
            writes: &[Write],
            map: CurrentMap<'_>,
        ) -> Result<Vec<(Batch, MapWrites)>, EncodeError> {
            *self.encoded_on.lock().unwrap() = Some(current().id());
            let waited = self.may_encode.lock().unwrap().recv_timeout(Duration::from_secs(20));
            waited.expect("the thread of the caller is free to send it");
            self.maps.encode(encoder, writes, map)
        }

        async fn commit(&self, transaction: FencedTransaction, maps: &MapWrites) -> Result<(), StoreError> {
            self.maps.commit(transaction, maps).await
        }

        async fn has_room(&self, updates: &Arc<[MapUpdate]>) -> Result<(), StoreError> {
            self.maps.has_room(updates).await
        }

        async fn upkeep(&self, clock: Clock, leads: &StillLeads) {
            self.maps.upkeep(clock, leads).await;
        }
    }

    /// So the decision loop answers beats meanwhile.
    #[tokio::test]
    async fn encoding_does_not_block_the_task_that_awaits_it() {
        let (coordination, leadership) = led().await;
        let maps = InlineMaps::new(coordination.clone(), leadership.clone());
        let (maps, let_encode) = SlowEncoding::new(maps, SHARDS_ON_LOOP + 1);
        let (mut store, ..) = Store::open(coordination.clone(), leadership, maps).await.unwrap();
        let (name, cluster) = ("users".parse().unwrap(), cluster());
        let commit = store.commit(vec![record(&name)], &cluster);
        let (stored, sent) = tokio::join!(commit, async { let_encode.send(()) });
        sent.unwrap();
        stored.unwrap();
        assert!(!read_all(&*coordination).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn what_is_encoded_soon_is_encoded_without_another_thread() {
        let (coordination, leadership) = led().await;
        let maps = InlineMaps::new(coordination.clone(), leadership.clone());
        let (maps, let_encode) = SlowEncoding::new(maps, 0);
        let (mut store, ..) = Store::open(coordination, leadership, maps.clone()).await.unwrap();
        for (shards, is_here) in [(0, true), (SHARDS_ON_LOOP, true), (SHARDS_ON_LOOP + 1, false)] {
            maps.most_shards.store(shards, Ordering::Relaxed);
            let_encode.send(()).unwrap();
            let name = KeyspaceName::new(&format!("k{shards}")).unwrap();
            store.commit(vec![record(&name)], &cluster()).await.unwrap();
            let encoded_on = maps.encoded_on.lock().unwrap().take().unwrap();
            assert_eq!(encoded_on == current().id(), is_here, "{shards}");
        }
    }

    #[tokio::test]
    async fn a_store_whose_maps_are_elsewhere_is_refused() {
        let (coordination, leadership) = led().await;
        let name = KeyspaceName::new("users").unwrap();
        let mut store = Store::wipe(coordination.clone(), leadership.clone()).await.unwrap();
        store.commit(vec![record(&name)], &cluster()).await.unwrap();
        let head = Head { at: Default::default(), servers: vec!["m1".parse().unwrap()] };
        let key = Key::new(stored::map_file::head_key(&name)).unwrap();
        let transaction = Transaction::new().put(&key, stored::map_file::seal_head(&name, &head));
        coordination.commit(transaction).await.unwrap();
        let maps = Arc::new(InlineMaps::new(coordination.clone(), leadership.clone()));
        let refused = Store::open(coordination, leadership, maps).await.err().unwrap();
        assert!(matches!(&refused, StoreError::Elsewhere { servers, .. } if servers == &["m1"]), "{refused}");
    }
}
