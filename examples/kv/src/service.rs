//! How a shard comes, serves, moves and goes.
//!
//! | call             | here                                                                         |
//! |------------------|------------------------------------------------------------------------------|
//! | `load`           | copy from the replicas that serve, else from the parents, else from the seed |
//! | `serve` (leader) | fetch from everybody else what came since; refuse writes of earlier epochs   |
//! | `serve` (follower)| fetch from the leader what came since                                       |
//! | `unload`         | nothing: the next leader fetches. (Eventual mode does not wait for us: send) |
//! | `drop`           | forget                                                                       |

use crate::peers::Peers;
use crate::records::{Record, Version};
use crate::seed::Seed;
use crate::shard::Shard;
use bytes::BytesMut;
use futures::future::join_all;
use partage_worker::{
    Assignment, Bounds, Epoch, Failure, Guard, Handler, Load, Ownership, Peer, Profile, ReplicaKey,
    ReplicaState, Role, async_trait,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All shards of one node.
pub struct Service {
    shards: Mutex<BTreeMap<ReplicaKey, Arc<Shard>>>,
    pub peers: Peers,
    seed: Option<Seed>,
}

impl Service {
    pub fn new(seed: Option<Seed>) -> Service {
        Service { shards: Mutex::default(), peers: Peers::new(), seed }
    }

    fn shards(&self) -> MutexGuard<'_, BTreeMap<ReplicaKey, Arc<Shard>>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shard that a request was let in to.
    pub fn shard(&self, replica: &ReplicaKey) -> Option<Arc<Shard>> {
        self.shards().get(replica).cloned()
    }

    /// The newest stay of a shard here, but for `except` (0 = none): a stay that begins from the one before it on the
    /// same node asks for that, not for itself.
    pub fn newest(&self, keyspace: &str, shard: u64, except: u64) -> Option<(u64, Arc<Shard>)> {
        let shards = self.shards();
        let of_it = |key: &ReplicaKey| key.keyspace.as_str() == keyspace && key.shard.0 == shard;
        let mut found = shards.iter().filter(|(key, _)| of_it(key) && key.placement.0 != except);
        found.next_back().map(|(key, shard)| (key.placement.0, shard.clone()))
    }

    /// Sends a write to every other replica, and waits a moment for each.
    pub async fn replicate(&self, guard: &Guard, record: &Record) {
        let assignment = guard.assignment();
        let takes = |peer: &&Peer| {
            peer.shard == assignment.shard() && matches!(peer.state, ReplicaState::Load | ReplicaState::Live)
        };
        let mut records = BytesMut::new();
        record.put(&mut records);
        let records = records.freeze();
        let sent = assignment.peers.iter().filter(takes).map(|peer| {
            let records = records.clone();
            let keyspace = assignment.keyspace().as_str();
            async move {
                if let Err(error) = self.peers.send(peer, keyspace, records).await {
                    tracing::debug!(node = %peer.node, "did not take a write: {error}");
                }
            }
        });
        join_all(sent).await;
    }

    fn plant(&self, assignment: &Assignment, shard: &Shard) {
        let keyspace = assignment.keyspace().as_str();
        for (key, value) in self.seed.iter().flat_map(|seed| seed.rows(keyspace, &assignment.bounds)) {
            if assignment.holds(key) {
                let value = Some(value.clone());
                shard.merge(Record { key: key.clone(), value, version: Version::default() });
            }
        }
    }

    async fn fetch_from_one(
        &self,
        peers: &[&Peer],
        assignment: &Assignment,
        shard: &Shard,
    ) -> Result<(), Failure> {
        let mut failure = Failure::from("there is nobody to copy from");
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

#[async_trait]
impl Handler for Service {
    async fn load(&self, assignment: &Assignment, sources: &[Peer]) -> Result<(), Failure> {
        let shard = self.shards().entry(assignment.replica.clone()).or_default().clone();
        if sources.is_empty() {
            self.plant(assignment, &shard);
        }
        // A shard that is merged has several parents: one replica of each.
        let parts: BTreeSet<_> = sources.iter().map(|peer| peer.shard).collect();
        for part in parts {
            let peers: Vec<_> = sources.iter().filter(|peer| peer.shard == part).collect();
            self.fetch_from_one(&peers, assignment, &shard).await?;
        }
        Ok(())
    }

    async fn serve(&self, assignment: &Assignment, role: Role, epoch: Epoch) -> Result<(), Failure> {
        let shard = self.shard(&assignment.replica).ok_or("it was not loaded")?;
        match role {
            Role::Leader => {
                shard.enter(epoch.0);
                // Not only the former leader: what a dead one had sent to some followers is with them. And
                // not only this shard: after a split or merge the last writes are with the parents.
                for peer in assignment.peers.iter().filter(has_data) {
                    self.peers.fetch(peer, assignment, &shard).await?;
                }
            }
            Role::Follower => {
                for peer in assignment.sources().iter().filter(|peer| peer.role == Role::Leader) {
                    if let Err(error) = self.peers.fetch(peer, assignment, &shard).await {
                        tracing::info!(node = %peer.node, "serves what it has: {error}");
                    }
                }
            }
        }
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

    async fn drop(&self, assignment: &Assignment) -> Result<(), Failure> {
        self.shards().remove(&assignment.replica);
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

    #[test]
    fn a_stay_that_begins_from_the_one_before_it_on_the_same_node_does_not_copy_itself() {
        let service = Service::new(None);
        let key = |placement| ReplicaKey {
            keyspace: "users".parse().unwrap(),
            shard: partage_worker::ShardId(1),
            placement: partage_worker::PlacementId(placement),
        };
        for placement in [3, 7] {
            service.shards().insert(key(placement), Arc::default());
        }
        let newest = |except| service.newest("users", 1, except).map(|(stay, _)| stay);
        assert_eq!([newest(0), newest(7), newest(3)], [Some(7), Some(3), Some(7)]);
    }
}
