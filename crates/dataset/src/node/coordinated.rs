//! Under a coordinator: the node is a worker, and the shards that are ordered here say what it is to have (K19, S18).
//!
//! ```text
//! coordinator ──orders──► worker ──load, drop──► shards ─which slots──► the machine
//!                           ▲                                             │ ready, or why not
//!                           └─────────────────────────────────────────────┘
//! ```
//!
//! Requests do not pass the worker's gates: a version never changes, and any node answers any key, by asking its peers.
//! So the move of a shard never delays a read.

use super::driving::Input;
use crate::catalogue::{Catalogue, Version};
use crate::limits;
use partage_core::keyspace::sharding::Slot;
use partage_service::dataset::shards::{LOAD_MS, partitions_of};
use partage_service::dataset::{Address, DatasetName};
use partage_worker::{
    Assignment, Bounds, CallbackTimeouts, DropReason, Epoch, Failure, Handler, KeyspaceKind, Load, Peer,
    ReplicaKey, Role, Worker,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::{mpsc, oneshot};

/// The path at which the coordinator checks the node.
pub const WORKER_PATH: &str = "/-/worker";

/// How a node registers at a coordinator.
#[derive(Debug, Clone, PartialEq)]
pub struct Membership {
    /// The coordinators it may register at, `host:port`.
    pub coordinators: Vec<String>,
    /// The node's name at the coordinator, kept across restarts.
    pub id: String,
    /// Its share of every load; 1 is usual.
    pub capacity: f64,
    /// What fails with the node, such as a data centre: the coordinator spreads replicas over zones.
    pub zone: Option<String>,
    /// A smaller failure domain inside the zone.
    pub rack: Option<String>,
    /// Words by which the settings of a keyspace pin shards to nodes, or exclude them.
    pub labels: Vec<String>,
}

/// The shards that the coordinator has assigned to this node.
#[derive(Debug, Default)]
pub struct AssignedShards {
    held: Mutex<BTreeMap<ReplicaKey, (DatasetName, Slot)>>,
    /// Whether the worker has registered: before that, no orders of the coordinator are known.
    is_registered: AtomicBool,
}

impl AssignedShards {
    fn held(&self) -> MutexGuard<'_, BTreeMap<ReplicaKey, (DatasetName, Slot)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slots of a dataset that are ordered here. A shard that is assigned again while its earlier replica is being
    /// dropped counts once.
    pub fn slots(&self, dataset: &DatasetName) -> BTreeSet<Slot> {
        self.held().values().filter(|(of, _)| of == dataset).map(|(_, slot)| *slot).collect()
    }

    /// Whether these are known to be all orders.
    pub fn is_known(&self) -> bool {
        self.is_registered.load(Ordering::Relaxed)
    }

    /// Orders a shard, as a coordinator does.
    #[cfg(test)]
    pub fn assign(&self, dataset: &DatasetName, slot: Slot) {
        use partage_core::base::id::{PlacementId, ShardId};
        let keyspace = partage_core::base::name::KeyspaceName::new(dataset.as_str()).unwrap();
        let replica = ReplicaKey { keyspace, shard: ShardId(1), placement: PlacementId(1) };
        self.held().insert(replica, (dataset.clone(), slot));
    }

    /// The datasets of which something is ordered here.
    pub fn datasets(&self) -> BTreeSet<DatasetName> {
        self.held().values().map(|(dataset, _)| dataset.clone()).collect()
    }
}

/// The worker's handler on a dataset node: it passes the coordinator's orders for shards on to the driver.
pub struct DatasetHandler {
    pub assigned: Arc<AssignedShards>,
    pub inputs: mpsc::Sender<Input>,
    pub catalogue: Arc<Catalogue>,
    /// The datasets it takes part in; empty: all.
    pub datasets: BTreeSet<DatasetName>,
    /// The requests of each replica at its last report, and when that was, in milliseconds.
    pub reported: Mutex<BTreeMap<ReplicaKey, (u64, u64)>>,
}

/// Registers, as soon as a coordinator is there. Reads do not wait for it.
pub async fn join(
    membership: Membership,
    address: Address,
    handler: DatasetHandler,
    joined: Arc<OnceLock<Worker>>,
) {
    let assigned = handler.assigned.clone();
    let Membership { coordinators, id, capacity, zone, rack, labels } = membership;
    let mut builder = Worker::builder(id.clone(), coordinators, address.as_str())
        .capacity(capacity)
        .labels(labels)
        .kinds([KeyspaceKind::Dataset])
        .callback_timeouts(CallbackTimeouts { load_ms: LOAD_MS, ..CallbackTimeouts::default() })
        .check_path(WORKER_PATH);
    builder = zone.into_iter().fold(builder, partage_worker::Builder::zone);
    builder = rack.into_iter().fold(builder, partage_worker::Builder::rack);
    let (inputs, told) = (handler.inputs.clone(), builder.start(handler).await);
    match told {
        Ok(worker) => {
            // It joins once.
            let _ = joined.set(worker);
            assigned.is_registered.store(true, Ordering::Relaxed);
            // Whether anything is ordered here or not is known from now on. Without a receiver the node has ended.
            let _ = inputs.send(Input::Refresh).await;
        }
        Err(error) => tracing::error!(%error, node = id, "not under the coordinator: nothing new is loaded"),
    }
}

impl DatasetHandler {
    /// Which slot of which dataset is meant.
    fn meant(&self, shard: &Assignment) -> Result<(DatasetName, Slot), Failure> {
        let keyspace = shard.keyspace();
        let dataset = DatasetName::new(keyspace.as_str())?;
        if !self.datasets.is_empty() && !self.datasets.contains(&dataset) {
            let all: Vec<&str> = self.datasets.iter().map(DatasetName::as_str).collect();
            return Err(
                format!("this node was started to serve {}, and not {dataset}", all.join(", ")).into()
            );
        }
        match &shard.bounds {
            Bounds::Slot(slot) => Ok((dataset, *slot)),
            other => Err(format!(
                "keyspace {keyspace} is no keyspace of a dataset: {other} is no slot of a hash; delete it, and the nodes \
                 create it as it must be"
            )
            .into()),
        }
    }

    /// Has the driver read the orders of a dataset: it takes the latest, as calls for several shards run at once.
    async fn tell(&self, dataset: &DatasetName) -> Result<(), Failure> {
        self.inputs.send(Input::Ordered(dataset.clone())).await.map_err(|_| has_ended())
    }
}

fn has_ended() -> Failure {
    "the node is ending".into()
}

#[partage_worker::async_trait]
impl Handler for DatasetHandler {
    /// Returns when all that goes with the shard is here, of what clients get and of what they get next.
    async fn load(&self, shard: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        let (dataset, slot) = self.meant(shard)?;
        self.assigned.held().insert(shard.replica.clone(), (dataset.clone(), slot));
        // Shards that are ordered together load together: each load reads the whole version.
        tokio::time::sleep(limits::ORDERS_GATHER).await;
        self.tell(&dataset).await?;
        let (told, ready) = oneshot::channel();
        let input = Input::Await(dataset, slot, told);
        self.inputs.send(input).await.map_err(|_| has_ended())?;
        Ok(ready.await.map_err(|_| has_ended())??)
    }

    /// The node serves what it has already: nothing changes for requests.
    async fn serve(&self, shard: &Assignment, role: Role, _: Epoch) -> Result<(), Failure> {
        tracing::debug!(keyspace = %shard.keyspace(), shard = %shard.shard(), %role, "is served here");
        Ok(())
    }

    /// Nothing runs for a shard that could be stopped; requests read what is here until others have it.
    async fn unload(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        Ok(())
    }

    /// The machine deletes its partitions when it is sure that others have them, which may be later.
    async fn drop(&self, shard: &Assignment, _: DropReason) -> Result<(), Failure> {
        let gone = self.assigned.held().remove(&shard.replica);
        self.reported.lock().unwrap_or_else(PoisonError::into_inner).remove(&shard.replica);
        match gone {
            Some((dataset, _)) => self.tell(&dataset).await,
            None => Ok(()),
        }
    }

    async fn report(&self, shard: &Assignment) -> Option<Load> {
        let (name, slot) = self.meant(shard).ok()?;
        let dataset = self.catalogue.dataset(name.as_str())?;
        let (serving, versions) = (dataset.serving(), dataset.versions());
        // Of what clients get: versions that come or go are no reason to move shards.
        let (size_bytes, keys) = serving.map(|version| held(&version, slot)).unwrap_or_default();
        // Requests are counted by dataset; its shards here are taken for equal.
        let requests = versions.iter().map(|version| answered(version)).sum::<u64>();
        let requests = requests / (self.assigned.slots(&name).len() as u64).max(1);
        let now = self.catalogue.clock().now().0;
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let before = reported.insert(shard.replica.clone(), (requests, now));
        let rate = |(requests_before, at): (u64, u64)| {
            requests.saturating_sub(requests_before) as f64 * 1e3 / now.saturating_sub(at).max(1) as f64
        };
        let requests_per_s = before.map_or(0.0, rate);
        Some(Load { requests_per_s, size_bytes, keys, ..Load::default() })
    }
}

/// Bytes and keys of what is here of a slot.
fn held(version: &Version, slot: Slot) -> (u64, u64) {
    let places = version.places();
    let here = partitions_of(&[slot].into(), version.partitions());
    let readers = here.iter().filter_map(|partition| places.get(*partition as usize)?.here.as_ref());
    readers.fold((0, 0), |(bytes, keys), reader| (bytes + reader.describe().file_bytes, keys + reader.len()))
}

/// Requests that were answered from what is here.
fn answered(version: &Version) -> u64 {
    let of_here = version.meter().series().into_iter().filter(|series| series.hop != "proxied");
    of_here.map(|series| series.requests).sum()
}
