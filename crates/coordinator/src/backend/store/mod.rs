//! From the cluster's writes to the coordination store, and back at the start.
//!
//! Every commit is fenced by the leadership: a coordinator that was deposed while it slept changes nothing
//! (O10). A commit larger than one transaction is prepared beside and swapped in by one, or listed and
//! done from the list; see [`partage_wire::stored`]. Maps are kept there too, or by metadata servers.

mod external_maps;

use crate::limits::{MAPS_AT_ONCE, QUARANTINE_LOOK_MS, ROOM_MARGIN_BYTES};
use external_maps::{ExternalMaps, FoundMaps, MapChange};
use partage_coordination::{
    ClusterId, Coordination, Deposed, Error, FENCE_STEPS, Key, KeyError, Leadership, Scope, Transaction,
};
use partage_core::base::id::Generation;
use partage_core::base::name::{KeyspaceName, NameError};
use partage_core::cluster::{Cluster, Records, StoredFaults, Write};
use partage_core::keyspace::map::ShardMap;
use partage_core::node::exchange::Known;
use partage_metadata::{ChangeError, Maps, OpenError};
use partage_service::metadata::change::Failed;
use partage_wire::stored::{
    self, EncodeError, Recovered, StoreEncoder, StoreOp, StoredError, TransactionLimits, Transactions,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use external_maps::ServerLists;

/// Keyspaces whose stored map was set back, and the later map of each that somebody knows of.
pub type SetBack = BTreeMap<KeyspaceName, Known>;

/// The key that is put to look for room, and taken away.
pub const ROOM: &str = "room";

/// The store did not keep what was decided, or does not hold what it should.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The backend said so.
    #[error(transparent)]
    Coordination(#[from] partage_coordination::Error),
    /// Another may lead by now.
    #[error("this coordinator leads no more: {0}")]
    Deposed(#[from] Deposed),
    /// The fence has refused a commit.
    #[error("this coordinator leads no more: its election key is gone, or another coordinator's")]
    FencedOff,
    /// A map is not as this leader left it.
    #[error("this coordinator leads no more: a map is not as it left it, so a later leader has changed it")]
    Overtaken,
    /// The file that holds the highest term that was seen.
    #[error("{}: {what}", path.display())]
    Terms {
        /// The file of the highest term, which could not be read or written.
        path: PathBuf,
        /// What is wrong with it, and the way out.
        what: String,
    },
    /// Of a commit in several transactions the first ones count, and the others were not done.
    #[error("a part of what was decided last is durable, and the rest is not: {0}")]
    PartDone(Box<StoreError>),
    /// A commit counts, and what is left to be done of it was not done.
    #[error("what was decided last is durable, and is finished by the next leader: {0}")]
    HalfDone(Box<StoreError>),
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
        /// The keyspace whose map is kept by metadata servers.
        keyspace: KeyspaceName,
        /// Who has it.
        servers: Vec<String>,
    },
    /// A map that metadata servers keep was not read, or not changed.
    #[error(transparent)]
    Map(#[from] ChangeError),
    /// This coordinator's own files of the maps.
    #[error(transparent)]
    Files(#[from] OpenError),
    /// A worker knows of later maps than this leader has.
    #[error(
        "{who} knows of keyspace {keyspace} at {at}, of which this coordinator knows nothing: another one leads by \
         now, or the stored state was set back. It reads everything anew"
    )]
    Ahead {
        /// Who, in words.
        who: String,
        /// Of which keyspace.
        keyspace: KeyspaceName,
        /// The generation of the later map.
        at: Generation,
    },
    /// Somebody else has its name.
    #[error(
        "coordinator {id} is at {address} already: give this one another --id, or wait until the session of that one \
         has ended"
    )]
    IdTaken {
        /// The name.
        id: String,
        /// Who has it.
        address: String,
    },
    /// Somebody has deleted everything under a process that knew it.
    #[error(
        "{place} does not say whose it is any more (key `about`), and held cluster {cluster} before: its keys were \
         deleted, and workers keep what they have. Stop all coordinators, and restore a backup there; or start them \
         anew, and they begin a new cluster"
    )]
    Emptied {
        /// The URL of the emptied root, or the name of its backend.
        place: String,
        /// Which cluster it was.
        cluster: ClusterId,
    },
    /// A directory is missing.
    #[error(
        "a coordinator on {backend} keeps its part of the maps in files: say where with --data-dir (data_dir), a \
         directory of its own"
    )]
    NoDirectory {
        /// The name of the coordination backend, such as `etcd`.
        backend: String,
    },
    /// A keyspace that was in quarantine need not be any more.
    #[error(
        "the stored state of keyspace {keyspace} can be read again: the coordinator reads everything anew"
    )]
    ReadableAgain {
        /// The keyspace that was in quarantine.
        keyspace: KeyspaceName,
    },
    /// Its name cannot stand in a list of metadata servers.
    #[error("the coordinator's id names it as a metadata server too, and {0}: choose another with --id")]
    Name(NameError),
    /// A record that nothing can be made of.
    #[error("{0}: restore a backup, or see `partage check` for what can be saved")]
    Stored(#[from] StoredError),
}

impl StoreError {
    /// Whether it is certain that nothing of a commit is durable.
    pub fn changed_nothing(&self) -> bool {
        match self {
            StoreError::Coordination(error) => error.is_definite(),
            StoreError::FencedOff | StoreError::Key(_) | StoreError::Encode(_) => true,
            // Its head was not swapped, and never will be.
            StoreError::Map(ChangeError::Failed(Failed::TooFew { .. }) | ChangeError::NoServers) => true,
            StoreError::PartDone(_)
            | StoreError::HalfDone(_)
            | StoreError::Deposed(_)
            | StoreError::Overtaken
            | StoreError::Terms { .. }
            | StoreError::Elsewhere { .. }
            | StoreError::Map(_)
            | StoreError::Files(_)
            | StoreError::Ahead { .. }
            | StoreError::IdTaken { .. }
            | StoreError::ReadableAgain { .. }
            | StoreError::Emptied { .. }
            | StoreError::NoDirectory { .. }
            | StoreError::Name(_)
            | StoreError::Stored(_) => false,
        }
    }

    /// Whether nothing is wrong but that there is no room.
    pub fn is_full(&self) -> bool {
        self.full_disk().is_some()
    }

    /// Which disks are full, or which backend has no room, if that is what is wrong.
    pub fn full_disk(&self) -> Option<String> {
        let (file, what) = match self {
            StoreError::Coordination(Error::DiskFull { file, what }) => (file, what),
            StoreError::Coordination(Error::NoRoom { location, what }) => {
                return Some(format!("{location} has no room: {what}"));
            }
            // One that has stored it has room, and may lead.
            StoreError::Map(ChangeError::Failed(Failed::TooFew {
                stored: 0, disks: Some(disks), ..
            })) => {
                return Some(format!("the disks of metadata servers do not take a change of a map: {disks}"));
            }
            _ => return None,
        };
        let dir = file.parent().unwrap_or(file).display();
        Some(format!("the disk that holds {dir} is full: `{}` cannot grow ({what})", file.display()))
    }

    /// What follows from a commit that `leadership` has fenced.
    fn of_fenced(leadership: &Leadership, error: Error) -> StoreError {
        if leadership.is_fenced_off(&error) { StoreError::FencedOff } else { error.into() }
    }

    fn part_done(self) -> StoreError {
        StoreError::PartDone(Box::new(self))
    }

    fn half_done(self) -> StoreError {
        StoreError::HalfDone(Box::new(self))
    }
}

/// The store, in the hands of the leader.
pub struct Store {
    coordination: Arc<dyn Coordination>,
    leadership: Leadership,
    encoder: StoreEncoder,
    /// Where the maps are that the backend does not keep.
    external: Option<ExternalMaps>,
    last_attempt: CommitAttempt,
}

/// The commit that was tried last: what it needs room for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitAttempt {
    /// Keys and values in the backend.
    bytes: u64,
    /// The changes of maps that too few metadata servers have stored; none where the backend was asked.
    maps: Arc<[MapChange]>,
}

/// The writes to make durable, encoded first so that the cluster may take in beats meanwhile.
pub enum Commit {
    /// Transactions of the backend, which keeps the maps too.
    Backend(Transactions),
    /// Maps go to metadata servers.
    External {
        /// All of it, in order.
        writes: Vec<Write>,
        /// Each changed map, still empty.
        empty: BTreeMap<KeyspaceName, ShardMap>,
    },
}

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
    /// Reads everything, and is ready to write on. With `maps` they are kept by metadata servers: those that are in the
    /// backend go there. What is wrong with what is stored, and does not keep the rest from going on, is given too:
    /// the records are still to be mended ([`Records::mend`]).
    pub async fn open(
        coordination: Arc<dyn Coordination>,
        leadership: Leadership,
        maps: Option<Maps>,
    ) -> Result<(Store, Records, StoredFaults), StoreError> {
        let entries = read_all(&*coordination).await?;
        let mut recovered = stored::read(entries)?;
        let mut faults = std::mem::take(&mut recovered.faults);
        let heads = std::mem::take(&mut recovered.heads);
        let (finish, mut records, encoder) = recovered.finish(transaction_limits(&*coordination, 0));
        let external = maps.map(|maps| ExternalMaps::new(maps, coordination.clone(), leadership.clone()));
        let FoundMaps { maps, missing } = match (&external, heads.first_key_value()) {
            (Some(external), _) => external.read(heads).await?,
            (None, None) => FoundMaps::default(),
            (None, Some((keyspace, head))) => {
                let servers = head.servers.iter().map(ToString::to_string).collect();
                return Err(StoreError::Elsewhere { keyspace: keyspace.clone(), servers });
            }
        };
        records.put_maps(maps);
        records.keyspaces.retain(|(record, _)| !missing.contains_key(&record.keyspace.name));
        faults.quarantine.extend(missing.into_iter().map(|(name, why)| {
            let why = format!(
                "no metadata server gives its map ({why}): start the coordinators that keep it, on their directories"
            );
            (name, why)
        }));
        let mut store =
            Store { coordination, leadership, encoder, external, last_attempt: CommitAttempt::default() };
        store.transact_all(finish).await?;
        if let Err(error) = store.delete_room_key().await {
            // It harms nothing, and goes when there is room.
            tracing::debug!(%error, key = ROOM, "not taken away");
        }
        store.move_out(&records).await?;
        Ok((store, records, faults))
    }

    /// Gives the maps that the backend has to metadata servers, where they keep the maps.
    async fn move_out(&mut self, records: &Records) -> Result<(), StoreError> {
        let Some(external) = self.external.take() else { return Ok(()) };
        let kept: BTreeSet<_> = external.lists().heads.all().into_iter().map(|(name, _)| name).collect();
        let here = records.keyspaces.iter().map(|(_, map)| map);
        let here = here.filter(|map| map.generation().sequence > 0 && !kept.contains(map.keyspace()));
        for map in here {
            tracing::info!(keyspace = %map.keyspace(), "its map moves to the metadata servers");
            let empty = ShardMap::empty(map.keyspace().clone(), map.sharding(), map.partition_key());
            self.commit_external(&external, &[Write::Map(map.whole())], |_| Some(empty.clone())).await?;
        }
        self.external = Some(external);
        Ok(())
    }

    /// Takes away all that is stored, whole or not, and is ready to write there.
    pub async fn wipe(
        coordination: Arc<dyn Coordination>,
        leadership: Leadership,
    ) -> Result<Store, StoreError> {
        let entries = read_all(&*coordination).await?;
        let store = Store {
            coordination,
            leadership,
            encoder: StoreEncoder::default(),
            external: None,
            last_attempt: CommitAttempt::default(),
        };
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
        if let Some(external) = self.external.as_ref().filter(|_| !maps.is_empty()) {
            return external.has_room(maps).await;
        }
        let bytes = *bytes;
        if self.coordination.has_room(bytes).await? {
            return Ok(());
        }
        self.delete_room_key().await?;
        let most = self.coordination.limits();
        let most = most.max_value_bytes.min(most.max_transaction_bytes / 2);
        let size = usize::try_from(bytes).unwrap_or(most).saturating_add(ROOM_MARGIN_BYTES).min(most);
        let look = self.leadership.fence(Transaction::new()).put(&Key::new(ROOM)?, vec![0; size]);
        self.commit_fenced(look).await?;
        self.delete_room_key().await
    }

    /// Deletes the key that looks for room; a leader that died meanwhile has left it.
    async fn delete_room_key(&self) -> Result<(), StoreError> {
        let key = Key::new(ROOM)?;
        if self.coordination.read(&key).await?.is_some() {
            let clear = self.leadership.fence(Transaction::new()).delete(&key);
            self.commit_fenced(clear).await?;
        }
        Ok(())
    }

    /// What was last to be stored.
    pub fn last_attempt(&self) -> &CommitAttempt {
        &self.last_attempt
    }

    /// Who keeps the maps; none where the backend does.
    pub fn lists(&self) -> Option<ServerLists> {
        self.external.as_ref().map(ExternalMaps::lists)
    }

    /// Makes `writes` durable; `cluster` is as it is after them. See [`Store::carry_out`].
    pub async fn commit(&mut self, writes: Vec<Write>, cluster: &Cluster) -> Result<(), StoreError> {
        let commit = self.prepare(writes, cluster)?;
        self.carry_out(commit).await
    }

    /// What has to be stored for `writes`; `cluster` is as it is after them. The caller must carry out next what is prepared.
    pub fn prepare(&mut self, writes: Vec<Write>, cluster: &Cluster) -> Result<Commit, StoreError> {
        if self.external.is_none() {
            let map = |name: &_| cluster.keyspaces().get(name).map(|keyspace| &keyspace.map);
            let batch = self.encoder.encode(&writes, map)?;
            return Ok(Commit::Backend(batch.transactions(transaction_limits(&*self.coordination, 0))));
        }
        let changed = writes.iter().filter_map(|write| match write {
            Write::Map(diff) => Some(&diff.keyspace),
            _ => None,
        });
        let empty = |name: &KeyspaceName| {
            let map = &cluster.keyspaces().get(name)?.map;
            Some((name.clone(), ShardMap::empty(name.clone(), map.sharding(), map.partition_key())))
        };
        let empty = changed.filter_map(empty).collect();
        Ok(Commit::External { writes, empty })
    }

    /// Makes it durable in one transaction. Where metadata servers keep the maps, and more than [`MAPS_AT_ONCE`] have changed, in
    /// several: then the first of the writes may be durable without those after them ([`StoreError::PartDone`]).
    pub async fn carry_out(&mut self, commit: Commit) -> Result<(), StoreError> {
        let (writes, empty) = match commit {
            Commit::Backend(transactions) => {
                self.last_attempt = CommitAttempt { bytes: bytes_of(&transactions), maps: Arc::default() };
                let Transactions { before, commit, after } = transactions;
                self.transact_all(before).await?;
                self.transact(&commit).await?;
                return self.transact_all(after).await.map_err(StoreError::half_done);
            }
            Commit::External { writes, empty } => (writes, empty),
        };
        let Some(external) = self.external.take() else { return Err(StoreError::Overtaken) };
        for (number, some) in in_turn(&writes).into_iter().enumerate() {
            let done = self.commit_external(&external, some, |name| empty.get(name).cloned()).await;
            done.map_err(|error| if number == 0 { error } else { error.part_done() })?;
        }
        // After an error the store is of no more use.
        self.external = Some(external);
        Ok(())
    }

    async fn commit_external(
        &mut self,
        external: &ExternalMaps,
        writes: &[Write],
        empty: impl Fn(&KeyspaceName) -> Option<ShardMap>,
    ) -> Result<(), StoreError> {
        let (batch, diffs) = self.encoder.encode_apart(writes)?;
        let changes: Arc<[MapChange]> = diffs
            .iter()
            .map(|(name, diffs)| external.change(name, diffs, empty(name)))
            .collect::<Result<_, _>>()?;
        let transactions = batch.transactions(transaction_limits(&*self.coordination, 2 * changes.len()));
        self.last_attempt = CommitAttempt { bytes: bytes_of(&transactions), maps: Arc::default() };
        let Transactions { before, commit, after } = transactions;
        self.transact_all(before).await?;
        loop {
            let prepared = external.prepare(&changes).await.inspect_err(|error| {
                if error.is_full() {
                    self.last_attempt.maps = changes.clone();
                }
            })?;
            let transaction = ExternalMaps::swap_in(&prepared, self.fenced(&commit)?)?;
            let outcome = self.coordination.commit(transaction).await;
            if matches!(outcome, Err(Error::Refused { .. })) && external.lists_changed(&changes).await? {
                tracing::info!("the list of a map's servers has changed meanwhile; the commit is made again");
                continue;
            }
            external.finish(&changes, prepared, &outcome).await;
            let done = outcome.map_err(|error| StoreError::of_fenced(&self.leadership, error))?;
            self.leadership.committed(done);
            break;
        }
        for write in writes {
            if let Write::DropKeyspace(name) = write {
                external.forget(name);
            }
        }
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

    async fn commit_fenced(&self, transaction: Transaction) -> Result<(), StoreError> {
        let outcome = self.coordination.commit(transaction).await;
        self.leadership.committed(outcome.map_err(|error| StoreError::of_fenced(&self.leadership, error))?);
        Ok(())
    }

    fn fenced(&self, operations: &[StoreOp]) -> Result<Transaction, StoreError> {
        let mut transaction = self.leadership.fence(Transaction::new());
        for operation in operations {
            transaction = match operation {
                StoreOp::Put(key, value) => transaction.put(&Key::new(key)?, value.clone()),
                StoreOp::Delete(key) => transaction.delete(&Key::new(key)?),
            };
        }
        Ok(transaction)
    }
}

/// The writes in pieces, in order: each changes only as many maps as one transaction can swap, and none drops a
/// keyspace and creates it again.
fn in_turn(writes: &[Write]) -> Vec<&[Write]> {
    let (mut pieces, mut begin) = (Vec::new(), 0);
    let (mut changed, mut dropped) = (BTreeSet::new(), BTreeSet::new());
    for (at, write) in writes.iter().enumerate() {
        let map = match write {
            Write::Map(diff) => Some(&diff.keyspace),
            // Its map follows: a keyspace without one, if that were all, would have no shards for ever.
            Write::Keyspace(record) => Some(&record.keyspace.name),
            Write::Cluster(_)
            | Write::DropKeyspace(_)
            | Write::Node(_)
            | Write::DropNode(_)
            | Write::Plan(_)
            | Write::DropPlan(_) => None,
        };
        let is_more = |name: &KeyspaceName| changed.len() >= MAPS_AT_ONCE && !changed.contains(name);
        let begins_anew = map.is_some_and(|name| is_more(name) || dropped.contains(name));
        if begins_anew {
            pieces.push(&writes[begin..at]);
            begin = at;
            (changed, dropped) = (BTreeSet::new(), BTreeSet::new());
        }
        changed.extend(map);
        if let Write::DropKeyspace(name) = write {
            dropped.insert(name);
        }
    }
    pieces.push(&writes[begin..]);
    pieces
}

/// Returns when one of these keyspaces, which could not be read as they were stored or were `set_back`, can be taken up:
/// somebody has written the key again, a metadata server gives the map, or the keyspace was given up.
pub async fn readable_again(
    coordination: &dyn Coordination,
    maps: Option<&Maps>,
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
            let is_external = recovered.heads.contains_key(keyspace);
            let is_given = match maps.filter(|_| is_external) {
                Some(maps) => maps.latest(keyspace).await.is_ok(),
                None => true,
            };
            if is_given {
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
    use partage_coordination::embedded::Embedded;
    use partage_coordination::{Election, Session};
    use partage_core::base::id::TransactionId;
    use partage_core::cluster::KeyspaceRecord;
    use partage_core::keyspace::Keyspace;
    use partage_core::keyspace::sharding::{PartitionKey, Sharding};
    use partage_service::metadata::Head;

    /// Where another coordinator has room, the leader hands over instead of waiting for room.
    #[test]
    fn c14_disks_are_full_for_the_leader_where_no_server_has_stored_the_change() {
        let refused = |stored| {
            let disks = Some("m1: /data/maps: no space left".to_owned());
            StoreError::Map(ChangeError::Failed(Failed::TooFew {
                stored,
                servers: 3,
                needed: 2,
                why: "m1: no space left".to_owned(),
                disks,
            }))
        };
        assert!(refused(0).is_full() && refused(0).changed_nothing());
        assert!(!refused(1).is_full() && refused(1).changed_nothing());
    }

    fn cluster() -> Cluster {
        let at = partage_core::cluster::Moment { now: Default::default(), wall_ms: 0 };
        Cluster::recover(at, Default::default(), Records::default()).unwrap()
    }

    fn named(number: usize) -> KeyspaceName {
        KeyspaceName::new(&format!("k{number}")).unwrap()
    }

    fn change(number: usize) -> Write {
        let map = ShardMap::empty(named(number), Sharding::Named, PartitionKey::Whole);
        Write::Map(map.edit().commit(TransactionId([7; 20])))
    }

    #[test]
    fn what_one_transaction_cannot_swap_is_done_in_turn() {
        let mut writes: Vec<_> = (0..=MAPS_AT_ONCE).map(change).collect();
        // Of the same maps once more: no further swaps, but for the last.
        writes.insert(1, change(0));
        let pieces = in_turn(&writes);
        assert_eq!(pieces.iter().map(|piece| piece.len()).collect::<Vec<_>>(), [MAPS_AT_ONCE + 1, 1]);
        assert_eq!(pieces.concat(), writes, "in order, and nothing is left out");
    }

    fn created(number: usize) -> [Write; 2] {
        let keyspace = Keyspace::new(named(number), Sharding::Named);
        let record = KeyspaceRecord::new(keyspace, 0, partage_core::base::id::ShardId(1));
        [Write::Keyspace(record), change(number)]
    }

    #[test]
    fn a_keyspace_is_not_cut_off_from_its_first_map() {
        let writes: Vec<_> = (0..2 * MAPS_AT_ONCE + 1).flat_map(created).collect();
        let pieces = in_turn(&writes);
        let lengths: Vec<_> = pieces.iter().map(|piece| piece.len()).collect();
        assert_eq!(lengths, [2 * MAPS_AT_ONCE, 2 * MAPS_AT_ONCE, 2]);
        assert!(pieces.iter().all(|piece| matches!(piece.first(), Some(Write::Keyspace(_)))));
    }

    #[test]
    fn what_is_dropped_and_created_again_is_done_in_turn() {
        let writes = [change(1), Write::DropKeyspace(named(0)), change(2), change(0), change(1)];
        let lengths: Vec<_> = in_turn(&writes).iter().map(|piece| piece.len()).collect();
        assert_eq!(lengths, [3, 2]);
        let writes = [change(0), Write::DropKeyspace(named(0)), change(1)];
        assert_eq!(in_turn(&writes).len(), 1, "a last change is of no consequence");
    }

    #[tokio::test]
    async fn a_store_whose_maps_are_elsewhere_is_refused() {
        let coordination: Arc<dyn Coordination> = Embedded::in_memory();
        let session = Session::open(coordination.clone(), Duration::from_secs(60)).await.unwrap();
        let election = Election::new(coordination.clone(), &Key::new("election").unwrap()).unwrap();
        let leadership = election.lead(&session, bytes::Bytes::new).await.unwrap();
        let name = KeyspaceName::new("users").unwrap();
        let keyspace = Keyspace::new(name.clone(), Sharding::Named);
        let record = KeyspaceRecord::new(keyspace, 0, partage_core::base::id::ShardId(1));
        let mut store = Store::wipe(coordination.clone(), leadership.clone()).await.unwrap();
        store.commit(vec![Write::Keyspace(record)], &cluster()).await.unwrap();
        let head = Head { at: Default::default(), servers: vec!["m1".parse().unwrap()] };
        let key = Key::new(stored::map_file::head_key(&name)).unwrap();
        let transaction = Transaction::new().put(&key, stored::map_file::seal_head(&name, &head));
        coordination.commit(transaction).await.unwrap();
        let refused = Store::open(coordination, leadership, None).await.err().unwrap();
        assert!(matches!(&refused, StoreError::Elsewhere { servers, .. } if servers == &["m1"]), "{refused}");
    }
}
