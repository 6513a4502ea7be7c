//! Which neighbours become one shard: two that came from cuts and that together have been below half of every
//! threshold for the whole window.

use super::{Candidate, Proposals, Since, Terms};
use crate::base::id::ShardId;
use crate::base::time::Millis;
use crate::keyspace::sharding::Bounds;
use crate::keyspace::sharding::geometry::{joined, lowest};
use crate::limits;
use crate::plan::Change;
use std::collections::{BTreeMap, BTreeSet};

/// Whether shards with such bounds have neighbours that they are joined to when both stay small. Slots change
/// their number all together, and only when a person says so.
fn has_neighbours(bounds: &Bounds) -> bool {
    match bounds {
        Bounds::Keys(_) | Bounds::Hashes(_) => true,
        Bounds::Slot(_) | Bounds::Name(_) => false,
    }
}

pub(super) fn propose(
    small: &mut BTreeMap<(ShardId, ShardId), Since>,
    candidates: &[Candidate<'_>],
    terms: &Terms<'_>,
    now: Millis,
    taken: &BTreeSet<ShardId>,
    out: &mut Proposals,
) {
    let mut before = std::mem::take(small);
    let from_cuts = |c: &&Candidate<'_>| !c.shard.parents().is_empty() && has_neighbours(&c.shard.bounds);
    let mut order: Vec<&Candidate<'_>> = candidates.iter().filter(from_cuts).collect();
    order.sort_by_key(|candidate| lowest(&candidate.shard.bounds));
    let mut taken = taken.clone();
    let mut shards = terms.shards;
    for pair in order.windows(2) {
        let (left, right) = (pair[0], pair[1]);
        let Some(bounds) = joined(&[&left.shard.bounds, &right.shard.bounds]) else { continue };
        let ids = (left.shard.id, right.shard.id);
        let mut since = before.remove(&ids).unwrap_or_default();
        let sustained = since.look(is_small(left, right, terms), now, terms.resharding.window_ms);
        if since != Since::default() {
            small.insert(ids, since);
        }
        let free = !taken.contains(&ids.0) && !taken.contains(&ids.1);
        let allowed = shards > terms.resharding.min_shards.max(1) as usize;
        if sustained && free && allowed && out.changes.len() < limits::RESHAPES {
            shards -= 1;
            taken.extend([ids.0, ids.1]);
            out.changes.push(join(left, right, bounds, terms));
        }
    }
}

/// Whether both together are below half of every threshold that there is.
fn is_small(left: &Candidate<'_>, right: &Candidate<'_>, terms: &Terms<'_>) -> bool {
    let (bytes, rate) = (terms.resharding.split_bytes, terms.resharding.split_requests_per_s);
    let size = left.carried.size_bytes.saturating_add(right.carried.size_bytes);
    let requests = left.carried.requests_per_s + right.carried.requests_per_s;
    (bytes > 0 || rate > 0.0) && (bytes == 0 || size < bytes / 2) && (rate == 0.0 || requests < rate / 2.0)
}

/// The child begins where the heavier parent is, so that the smaller part of the data moves.
fn join(left: &Candidate<'_>, right: &Candidate<'_>, bounds: Bounds, terms: &Terms<'_>) -> (Change, String) {
    let heavier = if right.carried.size_bytes > left.carried.size_bytes { right } else { left };
    let reason = format!(
        "{} and {} together have had {} MiB and {:.0} requests a second for {} s, less than half of what one may \
         have",
        left.shard.id,
        right.shard.id,
        (left.carried.size_bytes.saturating_add(right.carried.size_bytes)) >> 20,
        left.carried.requests_per_s + right.carried.requests_per_s,
        terms.resharding.window_ms.div_ceil(1_000)
    );
    let shards = vec![left.shard.id, right.shard.id];
    (Change::Merge { shards, child: (bounds, heavier.nodes()) }, reason)
}
