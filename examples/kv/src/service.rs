//! How a shard comes, serves, moves and goes.
//!
//! | call             | here                                                                         |
//! |------------------|------------------------------------------------------------------------------|
//! | `load`           | copy from the replicas that serve (if it is durable, from the leader), else from the parents, else from the seed |
//! | `serve` (leader) | fetch from everybody else what came since; refuse writes of earlier epochs   |
//! | `serve` (follower)| fetch from the leader what came since                                       |
//! | `unload`         | nothing: the next leader fetches. (Eventual mode does not wait for us: send) |
//! | `drop`           | forget, and delete the file                                                  |
//! | `stored`         | open every file of the folder                                                |
//!
//! In a durable keyspace a write is acknowledged when all replicas that are `Live`, and those that have begun to load, have it
//! on their disks. So each of them may lead without hearing another one; only after a split or merge a leader has to
//! hear one replica of each parent.

use crate::disk::{Folder, Found};
use crate::peers::Peers;
use crate::records::{Record, Version};
use crate::seed::Seed;
use crate::shard::Shard;
use bytes::BytesMut;
use futures::future::join_all;
use partage_worker::{
    Assignment, Bounds, DropReason, Epoch, Failure, Guard, Handler, Load, Ownership, Peer, Profile,
    ReplicaKey, ReplicaState, Role, Scope, StoredReplicas, async_trait,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::JoinError;

/// All shards of one node.
pub struct Service {
    shards: Mutex<BTreeMap<ReplicaKey, Arc<Shard>>>,
    pub peers: Peers,
    seed: Option<Seed>,
    folder: Option<Arc<Folder>>,
}

/// A write that is on this node's disk, and not on those of all replicas that are `Live`.
#[derive(Debug, thiserror::Error)]
#[error("{took} of {of} replicas have written it to their disks: it may be there later, or not. Try again")]
pub struct NotOnAll {
    took: usize,
    of: usize,
}

/// Changes a replica for a callback, beside the requests of others if it waits for a disk. The worker may give the callback
/// up meanwhile: the replica's next callback waits until the change has ended, as it runs in the callback's scope.
pub async fn in_scope<T: Send + 'static>(
    scope: &Scope,
    shard: &Arc<Shard>,
    change: impl FnOnce(&Shard) -> T + Send + 'static,
) -> Result<T, JoinError> {
    if shard.is_durable() {
        let shard = shard.clone();
        scope.spawn_blocking(move || change(&shard)).await
    } else {
        Ok(change(shard))
    }
}

/// The same for a request. Its client may hang up meanwhile: `kept` is dropped when the change has ended, so a guard in it
/// keeps the replica here until then.
pub async fn in_request<T: Send + 'static>(
    kept: impl Send + 'static,
    shard: &Arc<Shard>,
    change: impl FnOnce(&Shard) -> T + Send + 'static,
) -> Result<T, JoinError> {
    if shard.is_durable() {
        let shard = shard.clone();
        let changing = tokio::task::spawn_blocking(move || {
            let changed = change(&shard);
            drop(kept);
            changed
        });
        changing.await
    } else {
        Ok(change(shard))
    }
}

impl Service {
    /// With a folder, it can take durable keyspaces.
    pub fn new(seed: Option<Seed>, folder: Option<Folder>) -> Service {
        Service { shards: Mutex::default(), peers: Peers::new(), seed, folder: folder.map(Arc::new) }
    }

    pub(crate) fn shards(&self) -> MutexGuard<'_, BTreeMap<ReplicaKey, Arc<Shard>>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shard that a request was let in to.
    pub fn shard(&self, replica: &ReplicaKey) -> Option<Arc<Shard>> {
        self.shards().get(replica).cloned()
    }

    /// Sends a write to every other replica, and waits a moment for each. In a durable keyspace all that are
    /// `Live` must have it on their disks: each of them may lead next. One that is gone is `Live` no longer soon.
    pub async fn replicate(&self, guard: &Guard, record: &Record) -> Result<(), NotOnAll> {
        let assignment = guard.assignment();
        // It is to lead on under a later epoch, without a copy that this write counts on.
        let is_late = assignment.role == Role::Leader && assignment.epoch != guard.epoch();
        let takes =
            |peer: &&Peer| peer.shard == assignment.shard() && takes_writes(peer, assignment.state, is_late);
        let mut records = BytesMut::new();
        record.put(&mut records);
        let records = records.freeze();
        let sent = assignment.peers.iter().filter(takes).map(|peer| {
            let records = records.clone();
            let keyspace = assignment.keyspace().as_str();
            async move {
                let sent = self.peers.send(peer, keyspace, records).await;
                if let Err(error) = &sent {
                    tracing::debug!(node = %peer.node, "did not take a write: {error}");
                }
                // One that has begun to load may be asked to lead as soon as it is ready: it must not miss this.
                let counts = peer.state != ReplicaState::Load || !matches!(sent, Ok(false));
                counts.then_some(matches!(sent, Ok(true)))
            }
        });
        let live: Vec<bool> = join_all(sent).await.into_iter().flatten().collect();
        let (took, of) = (1 + live.iter().filter(|took| **took).count(), 1 + live.len());
        if assignment.brief.durable && took < of { Err(NotOnAll { took, of }) } else { Ok(()) }
    }

    /// The rows to begin with.
    async fn plant(&self, assignment: &Assignment, shard: &Arc<Shard>) -> Result<(), Failure> {
        let keyspace = assignment.keyspace().as_str();
        let rows = self.seed.iter().flat_map(|seed| seed.rows(keyspace, &assignment.bounds));
        let held = rows.filter(|(key, _)| assignment.holds(key));
        let records: Vec<_> = held
            .map(|(key, value)| Record {
                key: key.clone(),
                value: Some(value.clone()),
                version: Version::default(),
            })
            .collect();
        Ok(in_scope(assignment.scope(), shard, |shard| shard.merge(records)).await??)
    }

    /// The replica as it is here, or a new one.
    async fn open(&self, assignment: &Assignment) -> Result<Arc<Shard>, Failure> {
        let known = self.shard(&assignment.replica);
        let shard = match (&self.folder, known) {
            (_, Some(known)) if assignment.has_data || !assignment.brief.durable => return Ok(known),
            (Some(folder), _) if assignment.brief.durable => {
                let (folder, assigned) = (folder.clone(), assignment.clone());
                let created = assignment.scope().spawn_blocking(move || folder.create(&assigned)).await;
                Arc::new(created??)
            }
            (None, _) if assignment.brief.durable => {
                return Err("the keyspace is durable: start this node with --durable and a folder".into());
            }
            _ => Arc::default(),
        };
        self.shards().insert(assignment.replica.clone(), shard.clone());
        Ok(shard)
    }

    /// Fetches from every replica that has data. A replica of a durable shard has all that was acknowledged in this shard; of
    /// each parent it must reach one replica.
    async fn catch_up(&self, assignment: &Assignment, shard: &Arc<Shard>) -> Result<(), Failure> {
        let peers = assignment.peers.iter().filter(has_data);
        let fetches =
            peers.map(|peer| async move { (peer, self.peers.fetch(peer, assignment, shard).await) });
        let mut parents: BTreeMap<_, Result<(), Failure>> = BTreeMap::new();
        for (peer, fetched) in join_all(fetches).await {
            match fetched {
                Err(error) if !assignment.brief.durable => return Err(error),
                Err(error) if peer.shard == assignment.shard() => {
                    tracing::info!(node = %peer.node, "leads without what it may have besides: {error}");
                }
                fetched => {
                    let reached = parents.entry(peer.shard).or_insert_with(|| Err("".into()));
                    if reached.is_err() {
                        let tell = |why| {
                            format!("no replica of shard {}, which it comes from, answers: {why}", peer.shard)
                        };
                        *reached = fetched.map_err(|why| tell(why).into());
                    }
                }
            }
        }
        parents.into_values().collect()
    }

    async fn fetch_from_one(
        &self,
        peers: &[&Peer],
        assignment: &Assignment,
        shard: &Arc<Shard>,
    ) -> Result<(), Failure> {
        let mut failure = Failure::from("there is no replica to copy from");
        for peer in peers {
            match self.peers.fetch(peer, assignment, shard).await {
                Ok(()) => return Ok(()),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

fn has_data(peer: &&Peer) -> bool {
    matches!(peer.state, ReplicaState::Live | ReplicaState::Unload)
}

/// Whether a peer has to have a write of a leader in state `own`, which `is_late` when it came in before the order that lets a
/// copy leave. The last ones of a shard that was split or merged are let
/// out while all of its replicas are in `Unload`, and its parts fetch them from any of these.
fn takes_writes(peer: &Peer, own: ReplicaState, is_late: bool) -> bool {
    match peer.state {
        ReplicaState::Load | ReplicaState::Live => true,
        ReplicaState::Unload => own == ReplicaState::Unload || is_late,
        ReplicaState::UnloadFinal => false,
    }
}

/// Whether its parents may have acknowledged writes that it lacks: the coordinator names them until all of it serves.
fn inherits(assignment: &Assignment) -> bool {
    assignment.peers.iter().any(|peer| peer.shard != assignment.shard() && has_data(&peer))
}

#[async_trait]
impl Handler for Service {
    /// Opens all that is here: other nodes may need it before it is ordered.
    async fn stored(&self) -> Result<StoredReplicas, Failure> {
        let Some(folder) = self.folder.clone() else { return Ok(StoredReplicas::default()) };
        let found = tokio::task::spawn_blocking(move || folder.find()).await??;
        let mut all = StoredReplicas::default();
        for Found { stored, cluster, shard } in found {
            all.cluster = all.cluster.or(cluster);
            if let Some(shard) = shard {
                self.shards().insert(stored.replica.clone(), shard);
            }
            all.replicas.push(stored);
        }
        Ok(all)
    }

    async fn load(&self, assignment: &Assignment, sources: &[Peer]) -> Result<(), Failure> {
        let shard = self.open(assignment).await?;
        if assignment.brief.durable && assignment.has_data && assignment.state == ReplicaState::Live {
            // It is a copy that counts: what others have besides comes with `serve`.
            if !inherits(assignment) {
                shard.has_caught_up();
            }
            return Ok(());
        }
        if sources.is_empty() {
            self.plant(assignment, &shard).await?;
        }
        // A shard that is merged has several parents: one replica of each.
        let parts: BTreeSet<_> = sources.iter().map(|peer| peer.shard).collect();
        for part in parts {
            // Not from a follower: it may lack a write that the leader acknowledges as this one had not begun.
            let is_source = |peer: &&Peer| {
                let is_own = assignment.brief.durable && part == assignment.shard();
                peer.shard == part && (!is_own || peer.role == Role::Leader)
            };
            let peers: Vec<_> = sources.iter().filter(is_source).collect();
            self.fetch_from_one(&peers, assignment, &shard).await?;
        }
        Ok(())
    }

    async fn serve(&self, assignment: &Assignment, role: Role, epoch: Epoch) -> Result<(), Failure> {
        let shard = self.shard(&assignment.replica).ok_or("it was not loaded")?;
        // Also as a follower: the epoch says how new its copy is, should all others be lost.
        in_scope(assignment.scope(), &shard, move |shard| shard.enter(epoch.0)).await??;
        match role {
            Role::Leader => {
                // Not only the former leader: what a dead one had sent to some followers is with them. And
                // not only this shard: after a split or merge the last writes are with the parents.
                self.catch_up(assignment, &shard).await?;
            }
            Role::Follower | Role::ReadReplica => {
                for peer in assignment.sources().iter().filter(|peer| peer.role == Role::Leader) {
                    match self.peers.fetch(peer, assignment, &shard).await {
                        Ok(()) => {}
                        // It could lead next, without what was acknowledged since it loaded.
                        Err(error) if assignment.brief.durable && !shard.is_caught_up() => return Err(error),
                        Err(error) => tracing::info!(node = %peer.node, "serves what it has: {error}"),
                    }
                }
            }
        }
        shard.has_caught_up();
        Ok(())
    }

    async fn unload(&self, assignment: &Assignment, successors: &[Peer]) -> Result<(), Failure> {
        let Some(shard) = self.shard(&assignment.replica) else { return Ok(()) };
        if assignment.brief.ownership == Ownership::Exclusive {
            return Ok(());
        }
        for peer in successors.iter().filter(|peer| peer.role == Role::Leader) {
            let (mut at, end) = (0, shard.last_place());
            while let Some((reached, piece)) = shard.piece(at, end) {
                self.peers.send(peer, assignment.keyspace().as_str(), piece).await?;
                at = reached;
            }
        }
        Ok(())
    }

    async fn drop(&self, assignment: &Assignment, reason: DropReason) -> Result<(), Failure> {
        tracing::info!(keyspace = %assignment.keyspace(), shard = %assignment.shard(), %reason, "deletes its data");
        self.shards().remove(&assignment.replica);
        if let Some(folder) = self.folder.clone() {
            let replica = assignment.replica.clone();
            assignment.scope().spawn_blocking(move || folder.remove(&replica)).await??;
        }
        Ok(())
    }

    async fn report(&self, assignment: &Assignment) -> Option<Load> {
        let shard = self.shard(&assignment.replica)?;
        let size = shard.size();
        let ordered = matches!(assignment.bounds, Bounds::Keys(_));
        let median = ordered.then(|| shard.median()).flatten();
        let median = median.and_then(|key| partage_worker::Key::new(&key).ok());
        Some(Load {
            size_bytes: size.bytes,
            keys: size.keys,
            profile: Profile::new(vec![], median),
            ..Load::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::sync::mpsc;

    /// A replica on a disk, and the folder that it is in.
    fn on_disk() -> (tempfile::TempDir, Arc<Shard>) {
        let dir = tempfile::tempdir().unwrap();
        let shard = crate::disk::tests::create(dir.path());
        (dir, Arc::new(shard))
    }

    /// Begins a change that waits for the disk until the sender is dropped, and stops waiting for it as soon as it runs.
    async fn given_up<F>(change: impl FnOnce(Box<dyn FnOnce(&Shard) + Send>) -> F) -> mpsc::SyncSender<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let ((disk, waits), (begun, has_begun)) =
            (mpsc::sync_channel::<()>(1), tokio::sync::oneshot::channel());
        let task = tokio::spawn(change(Box::new(move |_: &Shard| {
            begun.send(()).unwrap();
            waits.recv().unwrap_err();
        })));
        has_begun.await.unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        disk
    }

    /// A5: `unload` or `drop` of a replica never runs beside a merge of its `load` that was given up.
    #[tokio::test]
    async fn a5_a_change_of_a_callback_that_was_given_up_holds_up_the_next_one() {
        let ((_dir, shard), scope) = (on_disk(), Scope::new());
        let own = scope.clone();
        let disk = given_up(move |change| async move {
            in_scope(&own, &shard, change).await.unwrap();
        })
        .await;
        scope.cancel();
        assert!(scope.ended().now_or_never().is_none(), "the next callback begins beside it");
        drop(disk);
        scope.ended().await;
    }

    /// A5: a write whose client has hung up keeps its guard, so that no other node leads meanwhile.
    #[tokio::test]
    async fn a5_a_write_that_nobody_waits_for_keeps_the_replica_here_until_it_has_ended() {
        let ((_dir, shard), guard) = (on_disk(), Arc::new(()));
        let kept = guard.clone();
        let disk = given_up(move |change| async move {
            in_request(kept, &shard, change).await.unwrap();
        })
        .await;
        assert_eq!(Arc::strong_count(&guard), 2, "the guard is gone, and the write goes on");
        drop(disk);
        while Arc::strong_count(&guard) > 1 {
            tokio::task::yield_now().await;
        }
    }
}
