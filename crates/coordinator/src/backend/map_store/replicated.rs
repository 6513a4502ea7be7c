//! Maps as METADATA files of the coordinators, with a head of each in the backend: what the leader knows of the heads, and
//! changes of maps as parts of its commits.
//!
//! A change is first stored by most of the servers of its map, then its head is swapped in the transaction of the
//! commit. In between a server may have joined the list, or been missing: then the change is prepared again. What the servers
//! store is made once, before the first try; a try stores that, which a server takes any number of times, and swaps.

use super::local_metadata::{Addresses, LocalMetadata};
use super::{CurrentMap, FoundMaps, MapStore, MapUpdate, MapWrites, StillLeads, upkeep};
use crate::backend::off_loop;
use crate::backend::store::StoreError;
use crate::clock::Clock;
use crate::limits::{MAPS_AT_ONCE, PREPARE_AGAIN_MS, PREPARE_MS, SHARDS_ON_LOOP};
use async_trait::async_trait;
use futures::future::try_join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use partage_coordination::{
    Coordination, Error, Expected, FencedTransaction, Key, Leadership, Transaction, Version,
};
use partage_core::base::id::Generation;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::cluster::Write;
use partage_core::keyspace::map::ShardMap;
use partage_metadata::limits::AGAIN;
use partage_metadata::{Base, ChangeError, MetadataServerClient, Prepared, swapped};
use partage_service::metadata::change::{Change, Failed};
use partage_service::metadata::upkeep::remaining;
use partage_service::metadata::{Head, Seen};
use partage_wire::stored::{Batch, EncodeError, StoreEncoder, map_file, shards_named};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// The maps of metadata servers.
pub struct ReplicatedMaps {
    coordination: Arc<dyn Coordination>,
    leadership: Leadership,
    /// Asks the servers.
    pub(super) client: MetadataServerClient,
    /// As they were last seen.
    heads: Mutex<BTreeMap<KeyspaceName, Seen>>,
    /// The servers that are there; changes when one comes or goes.
    pub(super) directory: watch::Receiver<Addresses>,
}

#[async_trait]
impl MapStore for ReplicatedMaps {
    async fn read(&self, heads: BTreeMap<KeyspaceName, Head>) -> Result<FoundMaps, StoreError> {
        self.find(heads).await
    }

    async fn can_read(&self, name: &KeyspaceName) -> bool {
        self.client.latest(name).await.is_ok()
    }

    fn contains(&self, name: &KeyspaceName) -> bool {
        self.heads().contains_key(name)
    }

    /// The servers get changes as they are.
    fn most_shards(&self, _: &StoreEncoder, writes: &[Write], _: CurrentMap<'_>) -> usize {
        writes.iter().map(shards_named).sum()
    }

    /// In parts, each with as many maps as one transaction can swap.
    fn encode(
        &self,
        encoder: &mut StoreEncoder,
        writes: &[Write],
        map: CurrentMap<'_>,
    ) -> Result<Vec<(Batch, MapWrites)>, EncodeError> {
        let parts = in_turn(writes).into_iter().map(|writes| -> Result<_, EncodeError> {
            let (batch, diffs) = encoder.encode_apart(writes)?;
            let empty =
                |map: &ShardMap| ShardMap::empty(map.keyspace().clone(), map.sharding(), map.partition_key());
            let updated = diffs.into_iter().map(|(name, diffs)| MapUpdate {
                name: name.clone(),
                diffs: diffs.into_iter().map(|diff| Arc::new(diff.clone())).collect(),
                empty: map(name).map(empty),
            });
            let deleted = writes.iter().filter_map(|write| match write {
                Write::DropKeyspace(name) => Some(name.clone()),
                _ => None,
            });
            Ok((batch, MapWrites { updated: updated.collect(), deleted: deleted.collect() }))
        });
        parts.collect()
    }

    async fn commit(&self, transaction: FencedTransaction, maps: &MapWrites) -> Result<(), StoreError> {
        self.swap(transaction, &maps.updated).await?;
        maps.deleted.iter().for_each(|name| self.forget(name));
        Ok(())
    }

    /// The servers store the changes and abandon them: no head is swapped. With room on this coordinator's own disk it is enough,
    /// as it may keep the map alone; with room on another's, too, as that one may lead.
    async fn has_room(&self, updates: &Arc<[MapUpdate]>) -> Result<(), StoreError> {
        for (at, update) in updates.iter().enumerate() {
            // Whatever else keeps it from being stored, the next commit tells.
            let name = &update.name;
            let (Ok(base), Ok(steps)) = (self.base(name), self.steps_of(updates, at).await) else {
                continue;
            };
            let has_room = if self.is_stored_here(name, &base, &steps).await {
                Ok(())
            } else {
                self.store(name, &base, &steps).await.map(drop)
            };
            self.client.abandon(name, &base, update.to());
            if let Err(error @ ChangeError::Failed(Failed::TooFew { stored: 0, disks: Some(_), .. })) =
                has_room
            {
                return Err(error.into());
            }
        }
        Ok(())
    }

    async fn upkeep(&self, clock: Clock, leads: &StillLeads) {
        upkeep::run(self, clock, leads).await;
    }
}

impl ReplicatedMaps {
    /// By way of the metadata servers; nothing is known yet.
    pub fn new(
        metadata: &LocalMetadata,
        coordination: Arc<dyn Coordination>,
        leadership: Leadership,
    ) -> ReplicatedMaps {
        let (client, directory) = (metadata.client().clone(), metadata.directory());
        ReplicatedMaps { coordination, leadership, client, heads: Mutex::default(), directory }
    }

    /// The heads of all maps, as they were last seen.
    pub(super) fn heads(&self) -> MutexGuard<'_, BTreeMap<KeyspaceName, Seen>> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self, name: &KeyspaceName) -> Option<Seen> {
        self.heads().get(name).cloned()
    }

    fn see(&self, name: &KeyspaceName, seen: Seen) {
        self.heads().insert(name.clone(), seen);
    }

    /// Makes `servers` those that keep the map behind `seen`, if most of them have it. A list of servers changes only while this
    /// coordinator leads.
    ///
    /// # Errors
    /// Why not; nothing has happened, but for an unknown outcome.
    pub(super) async fn set_servers(
        &self,
        name: &KeyspaceName,
        seen: Seen,
        servers: Vec<NodeId>,
    ) -> Result<Generation, StoreError> {
        let prepared = self.client.prepare_servers(seen, name, servers).await?;
        let swap = self.leadership.fence(prepared.swap_in(Transaction::new())?);
        let outcome = self.leadership.commit(&*self.coordination, swap).await;
        Ok(prepared.finish(swapped(&outcome)).await?)
    }

    /// Waits for a while for a server that is still on its way. Says of other maps why no server has given them.
    async fn find(&self, heads: BTreeMap<KeyspaceName, Head>) -> Result<FoundMaps, StoreError> {
        let read = stream::iter(heads).map(async |(name, head)| {
            let (seen, map) = match self.latest(&name).await {
                Err(ChangeError::NoAnswer { why, .. }) => return Ok((name, Err(why))),
                latest => latest?,
            };
            if seen.head.at != head.at {
                // Only a leader changes maps, and that is us.
                return Err(StoreError::Overtaken);
            }
            self.see(&name, seen);
            Ok((name, Ok(map)))
        });
        let read: Vec<_> = read.buffer_unordered(MAPS_AT_ONCE).try_collect().await?;
        let mut found = FoundMaps::default();
        for (name, map) in read {
            match map {
                Ok(map) => {
                    let map = unshared(map).await;
                    found.maps.insert(name, map);
                }
                Err(why) => drop(found.missing.insert(name, why)),
            }
        }
        match found.missing.first_key_value() {
            // Then the servers are away, and come back.
            Some((keyspace, why)) if found.maps.is_empty() => {
                Err(ChangeError::NoAnswer { keyspace: keyspace.clone(), why: why.clone() }.into())
            }
            _ => Ok(found),
        }
    }

    async fn latest(&self, name: &KeyspaceName) -> Result<(Seen, Arc<ShardMap>), ChangeError> {
        let began = Instant::now();
        loop {
            match self.client.latest(name).await {
                Err(ChangeError::NoAnswer { why, .. }) if began.elapsed() < AGAIN => {
                    tracing::debug!(keyspace = %name, why, "no metadata server gives the map yet");
                    sleep(Duration::from_millis(PREPARE_AGAIN_MS)).await;
                }
                read => return read,
            }
        }
    }

    /// What the servers of each map store.
    ///
    /// # Errors
    /// When an update does not follow on its map: then no server has been asked to store anything.
    async fn steps(&self, updates: &Arc<[MapUpdate]>) -> Result<Vec<Vec<Change>>, EncodeError> {
        let mut steps = Vec::with_capacity(updates.len());
        for at in 0..updates.len() {
            steps.push(self.steps_of(updates, at).await?);
        }
        Ok(steps)
    }

    /// What the servers of the map of that update store. A whole map that is large is made on another thread.
    async fn steps_of(&self, updates: &Arc<[MapUpdate]>, at: usize) -> Result<Vec<Change>, EncodeError> {
        let update = &updates[at];
        let is_stored = self.contains(&update.name);
        if is_stored || update.shards() <= SHARDS_ON_LOOP {
            return update.steps(is_stored);
        }
        let updates = updates.clone();
        off_loop(move || updates[at].steps(is_stored)).await
    }

    /// Has most of the servers of each map store its update, and swaps all heads with `transaction`.
    async fn swap(
        &self,
        transaction: FencedTransaction,
        updates: &Arc<[MapUpdate]>,
    ) -> Result<(), StoreError> {
        let steps = self.steps(updates).await?;
        let bases = updates.iter().map(|update| self.base(&update.name));
        let bases = bases.collect::<Result<Vec<_>, _>>()?;
        loop {
            let all = updates.iter().zip(&steps).zip(&bases);
            let prepared = try_join_all(all.map(|((update, steps), base)| self.prepare(update, steps, base)));
            let prepared = prepared.await?;
            let swaps = prepared.iter().try_fold(Transaction::new(), |swaps, one| one.swap_in(swaps))?;
            let outcome = self.leadership.commit(&*self.coordination, transaction.clone().and(swaps)).await;
            let lists_changed = match &outcome {
                Err(Error::Refused { .. }) => self.lists_changed(updates).await,
                _ => Ok(false),
            };
            if let Ok(true) = lists_changed {
                tracing::info!("the list of a map's servers has changed meanwhile; the commit is made again");
                continue;
            }
            self.finish(updates, prepared, &outcome).await;
            lists_changed?;
            return outcome.map(drop).map_err(|error| StoreError::of_fenced(&self.leadership, error));
        }
    }

    async fn is_stored_here(&self, name: &KeyspaceName, base: &Base, steps: &[Change]) -> bool {
        for step in steps {
            if !self.client.is_stored_here(name, base, step).await {
                return false;
            }
        }
        true
    }

    /// Has most of the servers store it: those of the head as it was last seen, or of `drawn` for a map without one.
    ///
    /// # Errors
    /// When a majority cannot be had: nothing has happened.
    async fn prepare(
        &self,
        update: &MapUpdate,
        steps: &[Change],
        drawn: &Base,
    ) -> Result<Prepared, StoreError> {
        let (began, patience) = (Instant::now(), Duration::from_millis(PREPARE_MS));
        let name = &update.name;
        let mut base = self.seen(name).map_or_else(|| drawn.clone(), Base::Head);
        loop {
            let failed = match self.store(name, &base, steps).await {
                Ok(prepared) => return Ok(prepared),
                Err(ChangeError::Failed(failed @ Failed::TooFew { .. })) if began.elapsed() < patience => {
                    failed
                }
                Err(error) => {
                    self.client.abandon(name, &base, update.to());
                    return Err(error.into());
                }
            };
            tracing::info!(keyspace = %name, %failed, "a change of the map is prepared again");
            base = self.mend(name, base, began.elapsed() >= patience / 2).await?;
            sleep(Duration::from_millis(PREPARE_AGAIN_MS)).await;
        }
    }

    fn base(&self, name: &KeyspaceName) -> Result<Base, ChangeError> {
        self.seen(name).map_or_else(|| self.client.draw(), |seen| Ok(Base::Head(seen)))
    }

    /// Each on the one before it; the swap of the last one counts for all.
    async fn store(
        &self,
        name: &KeyspaceName,
        base: &Base,
        steps: &[Change],
    ) -> Result<Prepared, ChangeError> {
        let mut last = Err(Failed::Conflict.into());
        for step in steps {
            last = Ok(self.client.prepare(name, base.clone(), step.clone()).await?);
        }
        last
    }

    /// Too few have stored a change. Somebody may just be behind; if it is another list by now, that one is asked. Who
    /// is not there is left out, and after a while a server that does not answer.
    async fn mend(&self, name: &KeyspaceName, base: Base, is_late: bool) -> Result<Base, StoreError> {
        let base = match base {
            Base::Head(seen) => {
                let now = self.look(name, &seen).await?;
                if now.version != seen.version {
                    return Ok(Base::Head(now));
                }
                Base::Head(now)
            }
            nothing @ Base::Nothing(_) => nothing,
        };
        let servers = match &base {
            Base::Head(seen) => &seen.head.servers,
            Base::Nothing(drawn) => drawn,
        };
        let (present, me) = self.client.present();
        let is_missing = servers.iter().any(|server| !present.contains(server));
        if !is_missing && !is_late {
            return Ok(base);
        }
        let lists = remaining(servers, &present, me.as_ref());
        match base {
            // Who is left out keeps nothing of it, and may join later.
            Base::Nothing(drawn) => Ok(Base::Nothing(lists.into_iter().next().unwrap_or(drawn))),
            Base::Head(seen) => Ok(Base::Head(self.shorten(name, seen, lists).await?)),
        }
    }

    /// The first of the lists that most of its servers can keep.
    async fn shorten(
        &self,
        name: &KeyspaceName,
        seen: Seen,
        lists: Vec<Vec<NodeId>>,
    ) -> Result<Seen, StoreError> {
        for list in lists {
            let names = list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            match self.set_servers(name, seen.clone(), list).await {
                Ok(_) => {
                    tracing::warn!(keyspace = %name, servers = names, "the map is kept by fewer servers for now");
                    return self.look(name, &seen).await;
                }
                Err(error) => {
                    tracing::debug!(keyspace = %name, servers = names, %error, "not by these alone")
                }
            }
        }
        Ok(seen)
    }

    /// The head as it is now: the same map, with any list. Only the leader changes maps, and does nothing else
    /// meanwhile. So one that was deleted, damaged or set back is written again as it was: under the fence, so that
    /// a coordinator which leads no more changes nothing.
    async fn look(&self, name: &KeyspaceName, seen: &Seen) -> Result<Seen, StoreError> {
        let key = Key::new(map_file::head_key(name))?;
        let entry = self.coordination.read(&key).await?;
        let found = entry.as_ref().map(|entry| map_file::open_head(name, &entry.value));
        let version = match (&entry, &found) {
            (Some(entry), Some(Ok(head))) if head.at == seen.head.at => {
                let now = Seen { head: head.clone(), version: entry.version.get() };
                self.see(name, now.clone());
                return Ok(now);
            }
            (_, Some(Ok(head))) if head.at.sequence >= seen.head.at.sequence => {
                return Err(StoreError::Overtaken);
            }
            _ => {
                let as_found = Transaction::new().when(&key, Expected::unchanged(entry.as_ref()));
                let again = as_found.put(&key, map_file::seal_head(name, &seen.head));
                let outcome = self.leadership.commit(&*self.coordination, self.leadership.fence(again)).await;
                outcome.map_err(|error| StoreError::of_fenced(&self.leadership, error))?
            }
        };
        let found = match found {
            None => "was missing".to_owned(),
            Some(Ok(head)) => format!("led to the map at {}", head.at),
            Some(Err(error)) => error.to_string(),
        };
        tracing::error!(
            keyspace = %name, %key, at = %seen.head.at, found,
            "somebody deleted or set back the head of a map, and this coordinator has written it again: look who writes \
             to the coordination service beside the coordinators"
        );
        let now = Seen { head: seen.head.clone(), version: version.get() };
        self.see(name, now.clone());
        Ok(now)
    }

    /// Whether a refused commit may go through when it is prepared again: a list has changed meanwhile, and no map.
    ///
    /// # Errors
    /// When a map has changed: somebody else leads.
    async fn lists_changed(&self, updates: &[MapUpdate]) -> Result<bool, StoreError> {
        let mut changed = false;
        for MapUpdate { name, .. } in updates {
            let Some(seen) = self.seen(name) else { continue };
            changed |= self.look(name, &seen).await?.version != seen.version;
        }
        Ok(changed)
    }

    /// Tells the servers what became of it.
    async fn finish(&self, updates: &[MapUpdate], prepared: Vec<Prepared>, outcome: &Result<Version, Error>) {
        for (MapUpdate { name, .. }, prepared) in updates.iter().zip(prepared) {
            match outcome {
                Ok(version) => {
                    let seen = Seen { head: prepared.head().clone(), version: version.get() };
                    self.see(name, seen);
                }
                // It is not known yet: the servers find out.
                Err(error) if !error.is_definite() => continue,
                Err(_) => {}
            }
            if let Err(error) = prepared.finish(swapped(outcome)).await {
                tracing::debug!(keyspace = %name, %error, "the change of the map is taken back");
            }
        }
    }

    /// There is no such map any more.
    fn forget(&self, name: &KeyspaceName) {
        if let Some(seen) = self.heads().remove(name) {
            self.client.tell_deleted(name, &seen.head);
        }
    }
}

/// The map with shards of its own. Those of a server of this process are shared with it, and the first change would copy all of
/// them: a large map is copied on another thread.
async fn unshared(map: Arc<ShardMap>) -> ShardMap {
    let unshare = |map: Arc<ShardMap>| {
        let mut map = Arc::unwrap_or_clone(map);
        map.unshare();
        map
    };
    if map.len() <= SHARDS_ON_LOOP {
        return unshare(map);
    }
    off_loop(move || unshare(map)).await
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

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::{ShardId, TransactionId};
    use partage_core::cluster::KeyspaceRecord;
    use partage_core::keyspace::Keyspace;
    use partage_core::keyspace::sharding::{PartitionKey, Sharding};

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
        let record = KeyspaceRecord::new(keyspace, 0, ShardId(1));
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
}
