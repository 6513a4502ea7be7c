//! Maps that metadata servers keep: what the leader knows of their heads, and their changes as parts of its commits.
//!
//! A change is first stored by most of the servers of its map, then its head is swapped in the transaction of the
//! commit. In between somebody may have joined the list, or been missing: then it is prepared again.

use super::StoreError;
use futures::future::try_join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use partage_coordination::{Error, Transaction, Version};
use partage_core::cluster::Cluster;
use partage_core::id::Generation;
use partage_core::map::{MapDiff, ShardMap};
use partage_core::metadata::change::{Change, Failed};
use partage_core::metadata::upkeep::remaining;
use partage_core::metadata::{Head, Seen};
use partage_core::name::KeyspaceName;
use partage_metadata::limits::AGAIN;
use partage_metadata::{Base, ChangeError, Maps, Prepared, swapped};
use partage_wire::stored::EncodeError;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

use crate::limits::{MAPS_AT_ONCE, PREPARE_AGAIN_MS};

/// The heads of all maps, as they were last seen. A copy is the same.
#[derive(Clone, Default)]
pub struct Known(Arc<Mutex<BTreeMap<KeyspaceName, Seen>>>);

impl Known {
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

    fn remove(&self, name: &KeyspaceName) {
        self.lock().remove(name);
    }

    /// Takes up what was read of a map that is there, if it is later than what is known.
    pub fn refresh(&self, name: &KeyspaceName, read: Seen) {
        if let Some(seen) = self.lock().get_mut(name).filter(|seen| seen.version < read.version) {
            *seen = read;
        }
    }
}

/// The maps, in the hands of the leader.
pub struct Apart {
    maps: Maps,
    known: Known,
}

/// What a commit does to one map.
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

impl Apart {
    /// By way of those servers; nothing is known yet.
    pub fn new(maps: Maps) -> Apart {
        Apart { maps, known: Known::default() }
    }

    /// What is known of the heads.
    pub fn known(&self) -> Known {
        self.known.clone()
    }

    /// Reads the maps behind these heads. A server that is still on its way is waited for, for a while.
    ///
    /// # Errors
    /// When no server has one of them.
    pub async fn read(
        &self,
        heads: BTreeMap<KeyspaceName, Head>,
    ) -> Result<BTreeMap<KeyspaceName, ShardMap>, StoreError> {
        let read = stream::iter(heads).map(async |(name, head)| {
            let (seen, map) = self.latest(&name).await?;
            if seen.head.at != head.at {
                // Only a leader changes maps, and that is us.
                return Err(StoreError::Deposed);
            }
            self.known.insert(&name, seen);
            Ok((name, Arc::unwrap_or_clone(map)))
        });
        read.buffer_unordered(MAPS_AT_ONCE).try_collect().await
    }

    async fn latest(&self, name: &KeyspaceName) -> Result<(Seen, Arc<ShardMap>), ChangeError> {
        let began = Instant::now();
        loop {
            match self.maps.latest(name).await {
                Err(ChangeError::NoAnswer { why, .. }) if began.elapsed() < AGAIN => {
                    tracing::debug!(keyspace = %name, why, "no metadata server gives the map yet");
                    sleep(Duration::from_millis(PREPARE_AGAIN_MS)).await;
                }
                read => return read,
            }
        }
    }

    /// What these diffs do to the map of a keyspace. `cluster` is as it is after them.
    ///
    /// # Errors
    /// When they do not lead to the map that `cluster` has.
    pub fn change(
        &self,
        name: &KeyspaceName,
        diffs: &[&MapDiff],
        cluster: &Cluster,
    ) -> Result<MapChange, StoreError> {
        let changes = if self.known.get(name).is_some() {
            diffs.iter().map(|diff| Change::Operation(Arc::new(MapDiff::clone(diff)))).collect()
        } else {
            let to = diffs.last().map_or(Generation::default(), |diff| diff.to);
            let map = cluster.keyspaces().get(name).map(|keyspace| &keyspace.map);
            let at = map.map_or("none".to_owned(), |map| map.generation().to_string());
            let map = map.filter(|map| map.generation() == to);
            let map = map.ok_or(EncodeError::OtherMap { keyspace: name.clone(), to, at })?;
            vec![Change::Whole(Arc::new(map.clone()))]
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

    async fn prepare_one(&self, change: &MapChange) -> Result<Prepared, StoreError> {
        let began = Instant::now();
        let mut base = self.base(&change.name)?;
        loop {
            let failed = match self.store(&base, change).await {
                Ok(prepared) => return Ok(prepared),
                Err(ChangeError::Failed(failed @ Failed::TooFew { .. })) if began.elapsed() < AGAIN => failed,
                Err(error) => {
                    self.maps.abandon(&change.name, &base, change.to());
                    return Err(error.into());
                }
            };
            tracing::warn!(keyspace = %change.name, %failed, "a change of the map is prepared again");
            base = match base {
                Base::Head(seen) => Base::Head(self.mend(&change.name, &seen).await?),
                // Somebody who was drawn has just gone. Who is left out keeps nothing, and may join later.
                Base::Nothing(drawn) => {
                    let (present, me) = self.maps.present();
                    let fewer = remaining(&drawn, &present, me.as_ref()).into_iter().next();
                    Base::Nothing(fewer.unwrap_or(drawn))
                }
            };
            sleep(Duration::from_millis(PREPARE_AGAIN_MS)).await;
        }
    }

    fn base(&self, name: &KeyspaceName) -> Result<Base, ChangeError> {
        self.known.get(name).map_or_else(|| self.maps.draw(), |seen| Ok(Base::Head(seen)))
    }

    /// Each on the one before it; the swap of the last one counts for all.
    async fn store(&self, base: &Base, change: &MapChange) -> Result<Prepared, ChangeError> {
        let mut last = Err(Failed::Conflict.into());
        for step in &change.changes {
            last = Ok(self.maps.prepare(&change.name, base.clone(), step.clone()).await?);
        }
        last
    }

    /// Too few have stored a change on `seen`. Either the list is another by now, or it is made shorter.
    async fn mend(&self, name: &KeyspaceName, seen: &Seen) -> Result<Seen, StoreError> {
        let now = self.look(name, seen).await?;
        if now.version != seen.version {
            return Ok(now);
        }
        let (present, me) = self.maps.present();
        for list in remaining(&seen.head.servers, &present, me.as_ref()) {
            let names = list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            match self.maps.set_servers(now.clone(), name, list).await {
                Ok(_) => {
                    tracing::warn!(keyspace = %name, servers = names, "the map is kept by fewer servers for now");
                    return self.look(name, seen).await;
                }
                Err(error) => {
                    tracing::debug!(keyspace = %name, servers = names, %error, "not by these alone")
                }
            }
        }
        Ok(now)
    }

    /// The head as it is now: the same map, with any list.
    async fn look(&self, name: &KeyspaceName, seen: &Seen) -> Result<Seen, StoreError> {
        let now = self.maps.head(name).await.map_err(ChangeError::from)?;
        let now = now.filter(|now| now.head.at == seen.head.at).ok_or(StoreError::Deposed)?;
        self.known.insert(name, now.clone());
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
            let Some(seen) = self.known.get(&change.name) else { continue };
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
                    self.known.insert(&change.name, seen);
                }
                // Nobody knows yet: the servers find out.
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
        self.known.remove(name);
    }
}
