//! What this service does when a shard comes, serves, and goes.

use crate::copy::Courier;
use crate::store::{Entry, Seed, Store, Version};
use async_trait::async_trait;
use partage_core::key::Key;
use partage_core::lifecycle::ReplicaState;
use partage_core::load::Load;
use partage_worker::{Assignment, Epoch, Failure, Handler, Peer, Role};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The service's side of each shard.
pub struct KvHandler {
    store: Arc<Store>,
    seed: Arc<Seed>,
    courier: Courier,
}

impl KvHandler {
    /// Keeps data in `store`; shards that nobody holds begin with `seed`.
    pub fn new(store: Arc<Store>, seed: Arc<Seed>) -> KvHandler {
        KvHandler { store, seed, courier: Courier::default() }
    }

    /// Copies from one replica of each source shard what `shard` lacks and should hold.
    async fn copy(
        &self,
        shard: &Assignment,
        sources: &[Peer],
        since: Option<Version>,
    ) -> Result<(), Failure> {
        let shards: BTreeSet<_> = sources.iter().map(|peer| peer.shard).collect();
        for source in shards {
            let mut last: Failure = "nobody has it".into();
            let mut copied = false;
            for peer in sources.iter().filter(|peer| peer.shard == source) {
                match self.courier.fetch(shard.keyspace(), peer, since).await {
                    Ok(entries) => {
                        let ours = entries.into_iter().filter(|(key, _)| shard.holds(key));
                        self.store.fill(&shard.replica, ours);
                        copied = true;
                        break;
                    }
                    Err(error) => last = error,
                }
            }
            if !copied {
                return Err(last);
            }
        }
        Ok(())
    }

    fn sow(&self, shard: &Assignment) {
        let seed = self.seed.get(shard.keyspace());
        let entries = seed.iter().flat_map(|seed| seed.iter()).filter(|(key, _)| shard.holds(key));
        let entry = |value: &bytes::Bytes| Entry { version: Version::default(), value: Some(value.clone()) };
        self.store.fill(&shard.replica, entries.map(|(key, value)| (key.clone(), entry(value))));
    }
}

#[async_trait]
impl Handler for KvHandler {
    async fn load(&self, shard: &Assignment, sources: &[Peer]) -> Result<(), Failure> {
        if sources.is_empty() {
            self.sow(shard);
            return Ok(());
        }
        // From now on the leader's writes are taken, too; then everything from before.
        self.store.fill(&shard.replica, []);
        self.copy(shard, sources, None).await
    }

    async fn serve(&self, shard: &Assignment, role: Role, _: Epoch) -> Result<(), Failure> {
        if role == Role::Follower {
            return Ok(());
        }
        // Whoever led before has stopped, and still has what was written last.
        let hands_over = |peer: &Peer| peer.state == ReplicaState::Unload;
        let former: Vec<_> = shard.sources().into_iter().filter(hands_over).collect();
        // A parent has keys that were never copied from it; of the shard itself only the newest can lack.
        let same_shard = former.iter().all(|peer| peer.shard == shard.shard());
        let since = same_shard.then(|| self.store.complete(&shard.replica));
        match self.copy(shard, &former, since).await {
            Ok(()) => Ok(()),
            // One that died while handing over cannot be asked; what we have is what there is.
            Err(_) if same_shard => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn unload(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        // Nothing to do: the data stays readable to the successor until it is dropped.
        Ok(())
    }

    async fn drop(&self, shard: &Assignment) -> Result<(), Failure> {
        self.store.drop_shard(&shard.replica);
        Ok(())
    }

    async fn report(&self, shard: &Assignment) -> Option<Load> {
        let (keys, size_bytes, median) = self.store.size(&shard.replica);
        let median = median.and_then(|key| Key::new(&key).ok());
        Some(Load { keys, size_bytes, median, ..Load::default() })
    }
}
