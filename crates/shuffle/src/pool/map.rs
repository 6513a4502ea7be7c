//! What the machines are told of the map of their pool.
//!
//! | in the map | for the machines |
//! |---|---|
//! | the replicas in `Live`, the leader first | the replicas of the slot |
//! | those of a slot that has no leader | they load: nobody may take one of them for the leader |
//! | replicas in `Load` whose process is the latest of its node, and not called down | they load, and the leader counts on them |
//! | all others in `Load` | nothing: else a node that is dead would hold up all decisions until its replica is replaced |
//! | a node with a label of the pool ([`super::labels`]) that is not down, whether it has a slot or not | a node of the pool |
//! | one that only buffers, or is drained | it stands in for no other node |
//!
//! What was not done: a replica in `Load` that the coordinator called down, and that has not ended after all (as while the
//! brake is on), may say that it is loaded before the leader counts on it again. If the leader ends in that moment, and this
//! replica leads next, what was decided in between is lost.

use super::labels::PoolLabels;
use partage_core::base::id::Epoch;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{Replica, Shard};
use partage_core::keyspace::sharding::{Bounds, Sharding};
use partage_core::node::{Health, NodeAddress};
use partage_core::routing::table::RouteTable;
use partage_maps::Listener;
use partage_service::shuffle::PoolSlot;
use partage_service::shuffle::pool::{PoolMap, SlotPlace};
use partage_shuffle_wire::transport::Address;
use partage_wire::map::MapEvent;
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::watch;

/// What a map says of the pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Seen {
    places: Vec<SlotPlace>,
    nodes: Vec<NodeId>,
    no_stand_ins: BTreeSet<NodeId>,
    /// Where nodes are that take attempts.
    pub(crate) buffers: Vec<String>,
    /// Where the nodes are.
    pub(crate) addresses: BTreeMap<NodeId, String>,
}

impl Seen {
    /// As the machines take it; `generation` grows with each.
    pub(crate) fn pool_map(&self, generation: u64, replicas: u32) -> PoolMap {
        let (places, nodes, no_stand_ins) =
            (self.places.clone(), self.nodes.clone(), self.no_stand_ins.clone());
        PoolMap { generation, replicas: replicas as usize, places, nodes, no_stand_ins }
    }

    /// What the labels of a node say.
    fn hear_of(&mut self, at: &NodeAddress, labels: &PoolLabels, nodes: &mut BTreeSet<NodeId>) {
        let (buffers, stores) = (at.labels.contains(&labels.buffer), at.labels.contains(&labels.storage));
        if !buffers && !stores {
            return;
        }
        nodes.insert(at.id.clone());
        self.addresses.insert(at.id.clone(), at.address.clone());
        if buffers {
            self.buffers.push(at.address.clone());
        }
        if at.drains || !stores {
            self.no_stand_ins.insert(at.id.clone());
        }
    }

    /// Where frames for other nodes go.
    pub(crate) fn frame_addresses(&self) -> BTreeMap<NodeId, Address> {
        let parsed =
            self.addresses.iter().filter_map(|(node, at)| Some((node.clone(), at.parse::<Address>().ok()?)));
        parsed.collect()
    }
}

/// The slot that a shard of the pool is.
pub(crate) fn slot_of(bounds: &Bounds) -> Option<PoolSlot> {
    match bounds {
        Bounds::Slot(slot) => Some(PoolSlot(slot.number())),
        _ => None,
    }
}

/// What is known of the pool; none: there is no map of it, or it is not laid out.
fn seen(table: &RouteTable, pool: &KeyspaceName, labels: &PoolLabels, me: &NodeId) -> Option<Seen> {
    let map = table.map(pool)?;
    let Sharding::Fixed { shards, .. } = map.sharding() else { return None };
    let known: BTreeMap<&NodeId, &NodeAddress> = table.addresses().map(|at| (&at.id, at)).collect();
    let mut seen = Seen::default();
    let mut nodes = BTreeSet::from([me.clone()]);
    for at in known.values().filter(|at| !is_away(at)) {
        seen.hear_of(at, labels, &mut nodes);
    }
    let nowhere = SlotPlace { epoch: Epoch(0), live: Vec::new(), loading: Vec::new() };
    seen.places = vec![nowhere; shards as usize];
    for shard in map.shards() {
        let slot = slot_of(&shard.bounds);
        let Some(place) = slot.and_then(|slot| seen.places.get_mut(slot.0 as usize)) else { continue };
        *place = place_of(shard, &known);
        for replica in shard.replicas.iter() {
            let Some(at) = known.get(&replica.node) else { continue };
            seen.addresses.insert(replica.node.clone(), at.address.clone());
            if !is_away(at) {
                nodes.insert(replica.node.clone());
            }
        }
    }
    seen.nodes = nodes.into_iter().collect();
    (map.len() == shards as usize).then_some(seen)
}

fn is_away(at: &NodeAddress) -> bool {
    matches!(at.health, Health::Down | Health::Left)
}

fn place_of(shard: &Shard, known: &BTreeMap<&NodeId, &NodeAddress>) -> SlotPlace {
    let acts = |replica: &&Replica| {
        let at = known.get(&replica.node);
        at.is_some_and(|at| at.incarnation == replica.incarnation && !is_away(at))
    };
    let mut live: Vec<NodeId> = shard.leader().map(|leader| leader.node.clone()).into_iter().collect();
    let is_led = !live.is_empty();
    let rest: Vec<NodeId> =
        shard.live().map(|replica| replica.node.clone()).filter(|node| !live.contains(node)).collect();
    let loads = shard.replicas.iter().filter(|replica| replica.state == ReplicaState::Load).filter(acts);
    let mut loading: Vec<NodeId> = loads.map(|replica| replica.node.clone()).collect();
    if is_led {
        live.extend(rest)
    } else {
        loading.extend(rest)
    }
    loading.retain(|node| !live.contains(node));
    loading.sort();
    loading.dedup();
    SlotPlace { epoch: shard.epoch, live, loading }
}

/// Hears of each change of the maps.
pub(crate) struct PoolListener {
    pub(crate) pool: KeyspaceName,
    pub(crate) me: NodeId,
    pub(crate) labels: PoolLabels,
    pub(crate) tell: watch::Sender<Option<Seen>>,
}

impl Listener for PoolListener {
    fn taken(&mut self, table: &RouteTable, _: MapEvent) {
        let now = seen(table, &self.pool, &self.labels, &self.me);
        // A pool that was deleted is gone from the map; the node hears of that by its orders.
        if now.is_some() {
            self.tell.send_if_modified(|known| {
                let is_other = *known != now;
                *known = now;
                is_other
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::{Configuration, Incarnation, PlacementId, ShardId};
    use partage_core::base::name::Label;
    use partage_core::keyspace::map::{Lineage, Role};
    use partage_core::keyspace::sharding::Slot;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn at(name: &str, incarnation: u64, health: Health) -> NodeAddress {
        NodeAddress {
            id: node(name),
            incarnation: Incarnation(incarnation),
            address: format!("{name}:7700"),
            zone: None,
            health,
            resp_address: None,
            labels: BTreeSet::new(),
            drains: false,
        }
    }

    /// The place of a slot with a replica of each of these states.
    fn place(replicas: &[(&str, ReplicaState, Role)], known: &[NodeAddress]) -> SlotPlace {
        let replica = |(at, (name, state, role)): (u64, &(&str, ReplicaState, Role))| Replica {
            placement: PlacementId(at),
            node: node(name),
            incarnation: Incarnation(1),
            role: *role,
            state: *state,
            in_sync: false,
            predecessor: None,
        };
        let shard = Shard {
            id: ShardId(1),
            epoch: Epoch(5),
            configuration: Configuration(0),
            bounds: Bounds::Slot(Slot::new(0, 1).unwrap()),
            lineage: Lineage::default(),
            replicas: (1..).zip(replicas).map(replica).collect(),
        };
        let known = known.iter().map(|at| (&at.id, at)).collect();
        place_of(&shard, &known)
    }

    #[test]
    fn the_leader_is_first_and_those_who_load_are_counted_on_only_while_they_act() {
        use ReplicaState::{Live, Load, Unload};
        let replicas = [
            ("a", Live, Role::Follower),
            ("b", Live, Role::Leader),
            ("c", Load, Role::Follower),
            ("d", Load, Role::Follower),
            ("e", Load, Role::Follower),
            ("f", Unload, Role::Follower),
        ];
        let known = [at("c", 1, Health::Suspect), at("d", 1, Health::Down), at("e", 2, Health::Up)];
        let found = place(&replicas, &known);
        assert_eq!(found.live, [node("b"), node("a")], "also if they are not known to act");
        assert_eq!(found.loading, [node("c")]);
    }

    #[test]
    fn nobody_is_taken_for_the_leader_of_a_slot_that_has_none() {
        let replicas = [("a", ReplicaState::Live, Role::Follower)];
        let found = place(&replicas, &[]);
        assert_eq!((found.live, found.loading), (Vec::new(), vec![node("a")]));
    }

    #[test]
    fn labels_tell_who_is_of_the_pool_and_who_stands_in() {
        let labels = PoolLabels::of(&"default".parse().unwrap()).unwrap();
        let other = PoolLabels::of(&"etl".parse().unwrap()).unwrap();
        let with = |name: &str, drains: bool, labels: &[&Label]| NodeAddress {
            labels: labels.iter().map(|label| (*label).clone()).collect(),
            drains,
            ..at(name, 1, Health::Up)
        };
        let all = [
            with("both", false, &[&labels.buffer, &labels.storage]),
            with("buffer", false, &[&labels.buffer]),
            with("drained", true, &[&labels.buffer, &labels.storage]),
            with("storage", false, &[&labels.storage, &other.buffer]),
            with("stranger", false, &[&other.buffer, &other.storage]),
            with("nothing", false, &[]),
        ];
        let (mut seen, mut nodes) = (Seen::default(), BTreeSet::new());
        all.iter().for_each(|at| seen.hear_of(at, &labels, &mut nodes));
        assert_eq!(nodes, BTreeSet::from(["both", "buffer", "drained", "storage"].map(node)));
        assert_eq!(seen.no_stand_ins, BTreeSet::from(["buffer", "drained"].map(node)));
        assert_eq!(seen.buffers, ["both:7700", "buffer:7700", "drained:7700"]);
        assert!(seen.addresses.keys().eq(&nodes));
    }

    #[test]
    fn slots_are_the_shards_of_a_pool() {
        assert_eq!(slot_of(&Bounds::Slot(Slot::new(3, 8).unwrap())), Some(PoolSlot(3)));
    }
}
