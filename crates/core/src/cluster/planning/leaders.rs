//! Leaders spread over the nodes that hold live replicas. Whoever is ready first leads first, so after a first
//! placement or a repair one node may lead nearly everything; handing the lead over among live replicas moves
//! no data.
//!
//! Hysteresis: nothing happens while no node leads more than [`TRIGGER`] × its share and one; then hand-overs
//! go on until none would bring two nodes nearer to each other.

use super::super::KeyspaceState;
use crate::map::Shard;
use crate::name::NodeId;
use crate::plan::{Change, Planned};
use std::collections::BTreeMap;

/// How far above its share a node's leaders may be: the same as work stealing allows for replicas (A6).
const TRIGGER: f64 = 1.3;

/// The hand-overs that spread the leaders of a keyspace in which nothing is under way. `capacity` is that of
/// a node which may lead more.
pub(super) fn spread(keyspace: &KeyspaceState, capacity: impl Fn(&NodeId) -> Option<f64>) -> Vec<Planned> {
    if !keyspace.unsettled.is_empty() {
        return Vec::new();
    }
    let shards: Vec<&Shard> = keyspace.map.shards().filter(|shard| shard.is_serving()).collect();
    let nodes = shards.iter().flat_map(|shard| shard.live()).map(|r| &r.node);
    let mut leads: BTreeMap<&NodeId, (u32, f64)> =
        nodes.filter_map(|node| Some((node, (0, capacity(node)?)))).collect();
    for leader in shards.iter().filter_map(|shard| shard.leader()) {
        if let Some((count, _)) = leads.get_mut(&leader.node) {
            *count += 1;
        }
    }
    let whole: f64 = leads.values().map(|(_, capacity)| capacity).sum();
    let share = |capacity: f64| shards.len() as f64 * capacity / whole;
    if !leads.values().any(|(count, capacity)| f64::from(*count) > TRIGGER * share(*capacity) + 1.0) {
        return Vec::new();
    }
    let mut planned = Vec::new();
    for shard in shards {
        let Some(from) = shard.leader().and_then(|leader| Some((&leader.node, *leads.get(&leader.node)?)))
        else {
            continue;
        };
        let relative = |(count, capacity): (u32, f64), more: f64| (f64::from(count) + more) / capacity;
        let others = shard.live().filter(|r| r.node != *from.0);
        let heir = others.filter_map(|r| Some((r, *leads.get(&r.node)?))).min_by(|a, b| {
            relative(a.1, 0.0).total_cmp(&relative(b.1, 0.0)).then(a.0.placement.cmp(&b.0.placement))
        });
        let Some((heir, to)) = heir.filter(|(_, to)| relative(*to, 1.0) < relative(from.1, 0.0)) else {
            continue;
        };
        let reason = format!("{} leads {} shards and {} only {}", from.0, from.1.0, heir.node, to.0);
        planned.push(Planned::new(Change::Lead { shard: shard.id, placement: heir.placement }, reason));
        leads.insert(from.0, (from.1.0 - 1, from.1.1));
        leads.insert(&heir.node, (to.0 + 1, to.1));
    }
    planned
}
