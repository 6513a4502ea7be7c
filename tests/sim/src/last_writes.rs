//! One decision by itself: whether a child of a split begins without the last writes of its parent.

use partage_core::base::id::{Configuration, Epoch, Incarnation, PlacementId, ShardId, TransactionId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::Keyspace;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::HashRange;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{Edit, EditError, Replica, Shard, ShardMap};
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use partage_core::node::exchange::Phase;
use partage_core::plan::handover::{self, DiskState, ReplicaView, TransferStep};

/// What is seen of a child and its parents: everything is well, but perhaps that no process of the parent's node is heard.
struct Parents {
    keyspace: Keyspace,
    are_heard: bool,
}

impl ReplicaView for Parents {
    fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }
    fn phase(&self, _: PlacementId) -> Option<&Phase> {
        None
    }
    fn epoch(&self, _: PlacementId) -> Option<Epoch> {
        Some(Epoch(1_000))
    }
    fn lease_is_over(&self, _: &Replica) -> bool {
        true
    }
    fn has_ended(&self, _: &Replica) -> bool {
        !self.are_heard
    }
    fn need_not_lead(&self, _: &Replica) -> bool {
        false
    }
    fn takes_no_writes(&self, _: &NodeId) -> bool {
        false
    }
    fn sends_heartbeats(&self, _: &Replica) -> bool {
        self.are_heard
    }
    fn was_heard_since(&self, _: &Replica, _: &Replica) -> bool {
        true
    }
    fn disk_state(&self, _: &Shard, _: &Replica) -> DiskState {
        DiskState::Gone
    }
    fn wish(&self, _: PlacementId) -> Option<(Configuration, &[PlacementId])> {
        None
    }
    fn transfer_step(&self, _: &Shard, _: PlacementId) -> TransferStep {
        TransferStep::Done
    }
    fn is_silenced(&self, _: &Shard, _: &Replica) -> bool {
        false
    }
    fn is_expected(&self, _: &Replica) -> bool {
        self.are_heard
    }
    fn wanted(&self, _: ShardId) -> usize {
        1
    }
    fn has_never_led(&self, _: PlacementId) -> bool {
        false
    }
    fn load_attempts(&self) -> u32 {
        3
    }
    fn excused_attempts(&self, _: PlacementId) -> u32 {
        0
    }
    fn awaits_comparison(&self, _: &Shard) -> bool {
        false
    }
    fn may_be_later(&self, _: &Shard, _: &Replica) -> bool {
        false
    }
    fn is_overdue(&self, _: PlacementId, _: ReplicaState) -> bool {
        false
    }
}

/// A shard was split, and no process of the copies that have its last writes lives: no child begins without them (D10).
pub fn a_child_waits_for_the_last_writes_of_its_parents() -> Result<(), String> {
    let why = |error: EditError| error.to_string();
    let sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
    let name = KeyspaceName::new("ks").map_err(|error| error.to_string())?;
    let keyspace = Keyspace { durable: true, ..Keyspace::new(name.clone(), sharding) };
    let mut map = ShardMap::empty(name, sharding, PartitionKey::default());
    let mut edit = map.edit();
    let node = NodeId::new("n0").map_err(|error| error.to_string())?;
    let serves = |edit: &mut Edit<'_>, shard: ShardId| -> Result<(), String> {
        let placement = edit.add_replica(shard, &node, Incarnation(1), None).map_err(why)?;
        edit.step(shard, placement, ReplicaState::Live).map_err(why)?;
        edit.lead(shard, placement).map_err(why)
    };
    let parent = edit.create_shard(Bounds::Hashes(HashRange::ALL)).map_err(why)?;
    serves(&mut edit, parent)?;
    let diff = edit.commit(TransactionId([1; 20]));
    map.apply(&diff).map_err(|error| error.to_string())?;
    let mut edit = map.edit();
    let middle = u64::MAX / 2;
    let halves = [(0, middle), (middle + 1, u64::MAX)];
    let halves = halves.map(|(first, last)| Bounds::Hashes(HashRange { first, last })).to_vec();
    let children = edit.form_shards(halves, &[parent]).map_err(why)?;
    edit.switch(&[parent], &children).map_err(why)?;
    children.iter().try_for_each(|child| serves(&mut edit, *child))?;
    let diff = edit.commit(TransactionId([2; 20]));
    map.apply(&diff).map_err(|error| error.to_string())?;
    let child = children.first().and_then(|child| map.shard(*child)).ok_or("it was split")?;
    let is_granted =
        |are_heard| handover::is_granted(child, &map, &Parents { keyspace: keyspace.clone(), are_heard });
    if !is_granted(true) {
        return Err("a child never begins though its parent is there".to_owned());
    }
    match is_granted(false) {
        true => Err("D10: a child begins without the last writes of its parent".to_owned()),
        false => Ok(()),
    }
}
