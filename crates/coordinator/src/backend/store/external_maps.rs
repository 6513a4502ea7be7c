//! Maps that metadata servers keep: what the leader knows of their heads, and their changes as parts of its commits.
//!
//! A change is first stored by most of the servers of its map, then its head is swapped in the transaction of the
//! commit. In between somebody may have joined the list, or been missing: then it is prepared again.

use super::StoreError;
use futures::future::try_join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use partage_coordination::{Coordination, Error, Expected, Key, Leadership, Transaction, Version};
use partage_core::base::id::Generation;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::map::{MapDiff, ShardMap};
use partage_metadata::limits::AGAIN;
use partage_metadata::{Base, ChangeError, Maps, Prepared, swapped};
use partage_service::metadata::change::{Change, Failed};
use partage_service::metadata::upkeep::remaining;
use partage_service::metadata::{Head, Seen};
use partage_wire::stored::{EncodeError, map_file};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

use crate::limits::{MAPS_AT_ONCE, PREPARE_AGAIN_MS, PREPARE_MS};

/// The heads of all maps, as they were last seen. A copy is the same.
#[derive(Clone, Default)]
pub struct HeadCache(Arc<Mutex<BTreeMap<KeyspaceName, Seen>>>);

impl HeadCache {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<KeyspaceName, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them.
    pub fn all(&self) -> Vec<(KeyspaceName, Seen)> {
        self.lock().iter().map(|(name, seen)| (name.clone(), seen.clone())).collect()
    }

    fn get(&self, name: &KeyspaceName) -> Option<Seen> {
        self.lock().get(name).cloned()
    }

    fn insert(&self, name: &KeyspaceName, seen: Seen) {
        self.lock().insert(name.clone(), seen);
    }

    fn remove(&self, name: &KeyspaceName) -> Option<Seen> {
        self.lock().remove(name)
    }

    /// Takes up what was read of a map that is there, if it is later than what is known.
    pub fn refresh(&self, name: &KeyspaceName, read: Seen) {
        if let Some(seen) = self.lock().get_mut(name).filter(|seen| seen.version < read.version) {
            *seen = read;
        }
    }
}

/// Who keeps the maps, in the hands of the leader: a list of servers changes only while it leads.
#[derive(Clone)]
pub struct ServerLists {
    coordination: Arc<dyn Coordination>,
    leadership: Leadership,
    /// The maps.
    pub maps: Maps,
    /// Their heads.
    pub heads: HeadCache,
}

impl ServerLists {
    /// Makes `servers` those that keep the map behind `seen`, if most of them have it.
    ///
    /// # Errors
    /// Why not; nothing has happened, but for an unknown outcome.
    pub async fn set(
        &self,
        name: &KeyspaceName,
        seen: Seen,
        servers: Vec<NodeId>,
    ) -> Result<Generation, StoreError> {
        let prepared = self.maps.prepare_servers(seen, name, servers).await?;
        let transaction = prepared.swap_in(self.leadership.fence(Transaction::new()))?;
        let outcome = self.coordination.commit(transaction).await;
        Ok(prepared.finish(swapped(&outcome)).await?)
    }
}

/// The maps, in the hands of the leader.
pub struct ExternalMaps(ServerLists);

/// What metadata servers have of the maps behind some heads.
#[derive(Default)]
pub struct FoundMaps {
    /// The maps.
    pub maps: BTreeMap<KeyspaceName, ShardMap>,
    /// Those that no server has given, and why.
    pub missing: BTreeMap<KeyspaceName, String>,
}

/// What a commit does to one map.
#[derive(Debug, PartialEq, Eq)]
pub struct MapChange {
    name: KeyspaceName,
    changes: Vec<Change>,
}

impl MapChange {
    /// Where it leads.
    fn to(&self) -> Generation {
        self.changes.last().map_or(Generation::default(), Change::to)
    }
}

impl ExternalMaps {
    /// By way of those servers; nothing is known yet.
    pub fn new(maps: Maps, coordination: Arc<dyn Coordination>, leadership: Leadership) -> ExternalMaps {
        ExternalMaps(ServerLists { coordination, leadership, maps, heads: HeadCache::default() })
    }

    /// Who keeps the maps.
    pub fn lists(&self) -> ServerLists {
        self.0.clone()
    }

    /// Reads the maps behind these heads. A server that is still on its way is waited for, for a while. Says of the
    /// others why no server has given them.
    ///
    /// # Errors
    /// When no server has given any.
    pub async fn read(&self, heads: BTreeMap<KeyspaceName, Head>) -> Result<FoundMaps, StoreError> {
        let read = stream::iter(heads).map(async |(name, head)| {
            let (seen, map) = match self.latest(&name).await {
                Err(ChangeError::NoAnswer { why, .. }) => return Ok((name, Err(why))),
                latest => latest?,
            };
            if seen.head.at != head.at {
                // Only a leader changes maps, and that is us.
                return Err(StoreError::Overtaken);
            }
            self.0.heads.insert(&name, seen);
            Ok((name, Ok(Arc::unwrap_or_clone(map))))
        });
        let read: Vec<_> = read.buffer_unordered(MAPS_AT_ONCE).try_collect().await?;
        let mut found = FoundMaps::default();
        for (name, map) in read {
            match map {
                Ok(map) => drop(found.maps.insert(name, map)),
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
            match self.0.maps.latest(name).await {
                Err(ChangeError::NoAnswer { why, .. }) if began.elapsed() < AGAIN => {
                    tracing::debug!(keyspace = %name, why, "no metadata server gives the map yet");
                    sleep(Duration::from_millis(PREPARE_AGAIN_MS)).await;
                }
                read => return read,
            }
        }
    }

    /// What these diffs do to the map of a keyspace. `empty` is how it began.
    ///
    /// # Errors
    /// When they do not follow on the map that metadata servers have of it, or on none.
    pub fn change(
        &self,
        name: &KeyspaceName,
        diffs: &[&MapDiff],
        empty: Option<ShardMap>,
    ) -> Result<MapChange, StoreError> {
        let changes = if self.0.heads.get(name).is_some() {
            diffs.iter().map(|diff| Change::Operation(Arc::new(MapDiff::clone(diff)))).collect()
        } else {
            let to = diffs.last().map_or(Generation::default(), |diff| diff.to);
            let other = |at: String| EncodeError::OtherMap { keyspace: name.clone(), to, at };
            let mut map = empty.ok_or_else(|| other("none".to_owned()))?;
            let applied = diffs.iter().try_for_each(|diff| map.apply(diff));
            applied.map_err(|why| other(why.to_string()))?;
            vec![Change::Whole(Arc::new(map))]
        };
        Ok(MapChange { name: name.clone(), changes })
    }

    /// Has most of the servers store all of it.
    ///
    /// # Errors
    /// When a majority cannot be had of any: nothing has happened.
    pub async fn prepare(&self, changes: &[MapChange]) -> Result<Vec<Prepared>, StoreError> {
        try_join_all(changes.iter().map(|change| self.prepare_one(change))).await
    }

    /// Whether metadata servers whose disks did not take these changes do so now. They are stored and abandoned: no head is
    /// swapped. With room on this coordinator's own disk it is enough, as it may keep the map alone; with room on another's, too,
    /// as that one may lead.
    ///
    /// # Errors
    /// When the disks still do not take them.
    pub async fn has_room(&self, changes: &[MapChange]) -> Result<(), StoreError> {
        for change in changes {
            // Whatever else keeps it from being stored, the next commit tells.
            let Ok(base) = self.base(&change.name) else { continue };
            let has_room = if self.is_stored_here(&base, change).await {
                Ok(())
            } else {
                self.store(&base, change).await.map(drop)
            };
            self.0.maps.abandon(&change.name, &base, change.to());
            if let Err(error @ ChangeError::Failed(Failed::TooFew { stored: 0, disks: Some(_), .. })) =
                has_room
            {
                return Err(error.into());
            }
        }
        Ok(())
    }

    async fn is_stored_here(&self, base: &Base, change: &MapChange) -> bool {
        for step in &change.changes {
            if !self.0.maps.is_stored_here(&change.name, base, step).await {
                return false;
            }
        }
        true
    }

    async fn prepare_one(&self, change: &MapChange) -> Result<Prepared, StoreError> {
        let (began, patience) = (Instant::now(), Duration::from_millis(PREPARE_MS));
        let mut base = self.base(&change.name)?;
        loop {
            let failed = match self.store(&base, change).await {
                Ok(prepared) => return Ok(prepared),
                Err(ChangeError::Failed(failed @ Failed::TooFew { .. })) if began.elapsed() < patience => {
                    failed
                }
                Err(error) => {
                    self.0.maps.abandon(&change.name, &base, change.to());
                    return Err(error.into());
                }
            };
            tracing::info!(keyspace = %change.name, %failed, "a change of the map is prepared again");
            base = self.mend(&change.name, base, began.elapsed() >= patience / 2).await?;
            sleep(Duration::from_millis(PREPARE_AGAIN_MS)).await;
        }
    }

    fn base(&self, name: &KeyspaceName) -> Result<Base, ChangeError> {
        self.0.heads.get(name).map_or_else(|| self.0.maps.draw(), |seen| Ok(Base::Head(seen)))
    }

    /// Each on the one before it; the swap of the last one counts for all.
    async fn store(&self, base: &Base, change: &MapChange) -> Result<Prepared, ChangeError> {
        let mut last = Err(Failed::Conflict.into());
        for step in &change.changes {
            last = Ok(self.0.maps.prepare(&change.name, base.clone(), step.clone()).await?);
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
        let (present, me) = self.0.maps.present();
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
            match self.0.set(name, seen.clone(), list).await {
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
        let entry = self.0.coordination.read(&key).await?;
        let found = entry.as_ref().map(|entry| map_file::open_head(name, &entry.value));
        let version = match (&entry, &found) {
            (Some(entry), Some(Ok(head))) if head.at == seen.head.at => {
                let now = Seen { head: head.clone(), version: entry.version.get() };
                self.0.heads.insert(name, now.clone());
                return Ok(now);
            }
            (_, Some(Ok(head))) if head.at.sequence >= seen.head.at.sequence => {
                return Err(StoreError::Overtaken);
            }
            _ => {
                let as_found = self.0.leadership.fence(Transaction::new());
                let as_found = as_found.when(&key, Expected::unchanged(entry.as_ref()));
                let again = as_found.put(&key, map_file::seal_head(name, &seen.head));
                let outcome = self.0.coordination.commit(again).await;
                outcome.map_err(|error| StoreError::of_fenced(&self.0.leadership, error))?
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
        self.0.heads.insert(name, now.clone());
        Ok(now)
    }

    /// Adds the swaps to the transaction of the commit.
    pub fn swap_in(prepared: &[Prepared], transaction: Transaction) -> Result<Transaction, StoreError> {
        let swapped = prepared.iter().try_fold(transaction, |transaction, one| one.swap_in(transaction));
        Ok(swapped?)
    }

    /// Whether a refused commit may go through when it is prepared again: a list has changed meanwhile, and no map.
    ///
    /// # Errors
    /// When a map has changed: somebody else leads.
    pub async fn lists_changed(&self, changes: &[MapChange]) -> Result<bool, StoreError> {
        let mut changed = false;
        for change in changes {
            let Some(seen) = self.0.heads.get(&change.name) else { continue };
            changed |= self.look(&change.name, &seen).await?.version != seen.version;
        }
        Ok(changed)
    }

    /// What became of it.
    pub async fn finish(
        &self,
        changes: &[MapChange],
        prepared: Vec<Prepared>,
        outcome: &Result<Version, Error>,
    ) {
        for (change, prepared) in changes.iter().zip(prepared) {
            match outcome {
                Ok(version) => {
                    let seen = Seen { head: prepared.head().clone(), version: version.get() };
                    self.0.heads.insert(&change.name, seen);
                }
                // It is not known yet: the servers find out.
                Err(error) if !error.is_definite() => continue,
                Err(_) => {}
            }
            if let Err(error) = prepared.finish(swapped(outcome)).await {
                tracing::debug!(keyspace = %change.name, %error, "the change of the map is taken back");
            }
        }
    }

    /// There is no such map any more.
    pub fn forget(&self, name: &KeyspaceName) {
        if let Some(seen) = self.0.heads.remove(name) {
            self.0.maps.tell_deleted(name, &seen.head);
        }
    }
}
