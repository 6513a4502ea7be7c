//! Leaders spread over the nodes that hold live replicas. Whoever is ready first leads first, so after a first
//! placement or a repair one node may lead nearly everything; handing the lead over among live replicas moves
//! no data.
//!
//! Hysteresis: nothing happens while no node leads more than [`TRIGGER`] × its share and one; then hand-overs
//! go on until none would bring two nodes nearer to each other. A node that laid its leads down while its disk was full, and has
//! room again, is not left without any: then they begin as soon as it leads one less than its share.

use super::super::KeyspaceState;
use super::super::numbered::Numbered;
use crate::base::count::counted;
use crate::base::name::NodeId;
use crate::plan::{Change, Planned};

/// How far above its share a node's leaders may be: the same as work stealing allows for replicas (A6).
const TRIGGER: f64 = 1.3;

/// A node that may lead more.
pub(super) struct Candidate {
    /// Its share of every load, relative to other nodes.
    pub(super) capacity: f64,
    /// It laid its leads down while its disk was full, and has room again.
    pub(super) gets_leads_back: bool,
}

/// The hand-overs that spread the leaders of a keyspace in which nothing is under way. `may_lead` is none of a node that may
/// lead nothing more.
pub(super) fn spread(
    keyspace: &KeyspaceState,
    may_lead: impl Fn(&NodeId) -> Option<Candidate>,
) -> Vec<Planned> {
    if !keyspace.settling.unsettled.is_empty() {
        return Vec::new();
    }
    // Nothing is under way, so whoever is named by the map holds something live; or its process has ended.
    let named: Vec<(&NodeId, Candidate)> =
        keyspace.hosted.nodes().filter_map(|node| Some((node, may_lead(node)?))).collect();
    let nodes: Numbered = named.iter().map(|(node, _)| *node).collect();
    let mut leads: Vec<(u32, f64)> = named.iter().map(|(_, candidate)| (0, candidate.capacity)).collect();
    let serving = || keyspace.map.shards().filter(|shard| shard.is_serving());
    let mut shards = 0;
    for shard in serving() {
        shards += 1;
        if let Some(leader) = shard.leader().and_then(|leader| nodes.of(&leader.node)) {
            leads[leader as usize].0 += 1;
        }
    }
    let whole: f64 = leads.iter().map(|(_, capacity)| capacity).sum();
    let share = |capacity: f64| f64::from(shards) * capacity / whole;
    let one_leads_too_much =
        leads.iter().any(|(count, capacity)| f64::from(*count) > TRIGGER * share(*capacity) + 1.0);
    let one_lacks_leads = named.iter().zip(&leads).any(|((_, candidate), (count, capacity))| {
        candidate.gets_leads_back && f64::from(*count) + 1.0 <= share(*capacity)
    });
    if !one_leads_too_much && !one_lacks_leads {
        return Vec::new();
    }
    let mut planned = Vec::new();
    for shard in serving() {
        let Some((leader, at)) = shard.leader().and_then(|r| Some((r, nodes.of(&r.node)? as usize))) else {
            continue;
        };
        let relative = |(count, capacity): (u32, f64), more: f64| (f64::from(count) + more) / capacity;
        let others = shard.live().filter(|r| r.node != leader.node);
        let successor = others.filter_map(|r| Some((r, nodes.of(&r.node)? as usize))).min_by(|a, b| {
            let of = |at: usize| relative(leads[at], 0.0);
            of(a.1).total_cmp(&of(b.1)).then(a.0.placement.cmp(&b.0.placement))
        });
        let Some((successor, to)) =
            successor.filter(|(_, to)| relative(leads[*to], 1.0) < relative(leads[at], 0.0))
        else {
            continue;
        };
        let (many, few) = (leads[at].0, leads[to].0);
        let reason =
            format!("{} leads {} and {} only {few}", leader.node, counted(many, "shard"), successor.node);
        planned.push(Planned::new(Change::Lead { shard: shard.id, placement: successor.placement }, reason));
        leads[at].0 -= 1;
        leads[to].0 += 1;
    }
    planned
}
