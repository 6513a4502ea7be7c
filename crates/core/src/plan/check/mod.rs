//! The check of maps: a linter that finds what must never be, on before every commit, in release too.
//!
//! [`map`] looks at a whole map (after recovery, and by `partage check`); [`diff`] looks only at what a
//! commit touches, so that a change of one shard among a million costs little. Both return findings, none
//! of which a running cluster ever shows. [`plan`] looks at what a plan would do, before anybody approves it.
//! The check of everything durable, [`crate::cluster::check::records`], goes through both.

mod edge;
mod layout;
mod plans;

pub use plans::{plan, sift};

use crate::base::id::{Configuration, PlacementId, ShardId};
use crate::base::name::NodeId;
use crate::keyspace::key::{HashRange, KeyRange};
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{MapDiff, Replica, Role, Shard, ShardMap, Stage};
use crate::keyspace::sharding::slot::common_multiple;
use crate::keyspace::sharding::{Bounds, Sharding};
use crate::limits;
use edge::Edge;

/// Something that must never be, by the invariant it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// M1: two serving shards hold the same key.
    #[error("M1: shards {0} and {1} hold keys in common")]
    Overlap(ShardId, ShardId),
    /// M1: no serving shard holds some key.
    #[error("M1: nothing holds the keys {0}")]
    Gap(String),
    /// M1: bounds of another sharding.
    #[error("M1: shard {0} has bounds of another sharding: {1}")]
    ForeignBounds(ShardId, String),
    /// M5: an id that was not given out, or given out twice.
    #[error("M5: {0} was not given out by this map's counter")]
    UnknownId(String),
    /// M5, O2: an epoch went back.
    #[error("O2: the epoch of shard {0} went back")]
    EpochWentBack(ShardId),
    /// O3: another leader under the same epoch.
    #[error("O3: shard {0} has another leader, or other bounds, under the same epoch")]
    SameEpoch(ShardId),
    /// M6: two replicas that serve or are about to on one node.
    #[error("M6: shard {0} has two replicas on node {1}")]
    TwoOnOneNode(ShardId, NodeId),
    /// M8: a shard has more replicas, or the slots more divisors, than a map may have.
    #[error("M8: {0}")]
    Limit(String),
    /// A leader that does not serve.
    #[error("shard {0} has a leader that cannot lead: {1}")]
    Leader(ShardId, PlacementId),
    /// D1: what is not live is in the in-sync set.
    #[error("D1: replica {1} of shard {0} is in sync in {2}: only a replica in Live can be")]
    InSync(ShardId, PlacementId, ReplicaState),
    /// D1: a leader that may lack acknowledged writes.
    #[error("D1: shard {0} is led by {1}, which is not in its in-sync set")]
    LeaderNotInSync(ShardId, PlacementId),
    /// D1: what is there to be read from only.
    #[error("D1: shard {0} has the read replica {1} in its in-sync set")]
    ReadReplicaInSync(ShardId, PlacementId),
    /// D1: another in-sync set or leader, under the same configuration or an earlier one.
    #[error("D1: shard {0} has another in-sync set or leader, and its configuration {1} is not a later one")]
    SameConfiguration(ShardId, Configuration),
    /// O1: a shard has two leaders, so two owners.
    #[error("O1: shard {0} has two leaders: {1} and {2}")]
    TwoLeaders(ShardId, PlacementId, PlacementId),
    /// The life of a replica went a way that [`crate::keyspace::lifecycle`] does not have.
    #[error("replica {1} of shard {0} took an illegal step from {2} to {3}")]
    IllegalStep(ShardId, PlacementId, ReplicaState, ReplicaState),
    /// O8: a child is not above its parents, or opens while a parent serves.
    #[error("O8: shard {0} opens before its parent {1} has closed, or not above its epoch")]
    OpensEarly(ShardId, ShardId),
    /// O8: children that are not exactly their parents' keys.
    #[error("O8: the children {0:?} do not hold exactly the keys of their parents")]
    ChildrenDiffer(Vec<ShardId>),
    /// A plan about a shard that is not there, or is being split or merged.
    #[error("shard {0} does not serve under that id: it was split, merged or removed; look it up again")]
    NoShard(ShardId),
    /// A plan about a replica that is not there, or is leaving already.
    #[error("shard {0} has no staying replica {1}: it was removed or is leaving; look it up again")]
    NoReplica(ShardId, PlacementId),
    /// M7: a node that takes nothing new.
    #[error("M7: nothing new is placed on node {0}: {1}")]
    Closed(NodeId, String),
    /// D10: no replica with the data of a shard would be left in the map.
    #[error("D10: no replica of shard {0} that has its data would be left")]
    LastCopy(ShardId),
    /// A shard without any replica.
    #[error("{1} is the last replica of shard {0}: add one elsewhere first")]
    LastReplica(ShardId, PlacementId),
    /// A plan that splits or merges a shard whose bounds are no range: a named partition.
    #[error("shard {0} cannot be split or merged: its bounds are {1}, names are whole")]
    NoRange(ShardId, String),
    /// O8: bounds of a planned split or merge that are not exactly the parents'.
    #[error("O8: the new bounds of {0:?} do not hold exactly their keys, each once")]
    BoundsDiffer(Vec<ShardId>),
    /// A merge of shards with others between them.
    #[error("shards {0:?} are not neighbours: merge only shards whose bounds meet")]
    NotNeighbours(Vec<ShardId>),
}

/// Everything wrong with a map.
pub fn map(map: &ShardMap) -> Vec<Finding> {
    let mut findings = Vec::new();
    for shard in map.shards() {
        findings.extend(shard_alone(map.sharding(), shard));
        findings.extend(ids_given_out(shard, map.next_shard(), map.next_placement()));
    }
    findings.extend(cover(map.sharding(), &map.shards().filter(|s| s.is_serving()).collect::<Vec<_>>()));
    findings
}

/// Everything wrong with `map` after `diff`, looking only at what the diff touches.
pub fn diff(map: &ShardMap, diff: &MapDiff) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut layout_changes = !diff.removed.is_empty();
    for shard in &diff.changed {
        findings.extend(shard_alone(map.sharding(), shard));
        findings.extend(ids_given_out(shard, diff.next_shard, diff.next_placement));
        match map.shard(shard.id) {
            Some(old) => {
                findings.extend(shard_step(old, shard));
                layout_changes |= old.stage() != shard.stage() || old.bounds != shard.bounds;
            }
            None => layout_changes = true,
        }
    }
    if layout_changes && findings.is_empty() {
        findings.extend(layout::Next::of(map, diff).findings());
    }
    findings
}

/// D10, for keyspaces whose data outlives its processes: every shard that has data keeps a replica that has it, unless
/// it is removed, split or merged as a whole.
pub fn keeps_data(map: &ShardMap, diff: &MapDiff) -> Vec<Finding> {
    let serves = |shard: &Shard| shard.copies().next().is_some();
    let has_data =
        |shard: &Shard| serves(shard) || shard.replicas.iter().any(|r| r.state == ReplicaState::Unload);
    let loses = |old: &Shard, new: &Shard| {
        let stays = old.is_serving() && new.is_serving() && old.had_data();
        stays && (serves(old) && !serves(new) || has_data(old) && !has_data(new))
    };
    let changed = diff.changed.iter().filter_map(|new| Some((map.shard(new.id)?, new)));
    let lost = changed.filter(|(old, new)| loses(old, new)).map(|(_, new)| new.id);
    let removed = diff.removed.iter().filter(|id| map.shard(**id).is_some_and(Shard::is_serving)).copied();
    lost.chain(removed).map(Finding::LastCopy).collect()
}

fn shard_alone(sharding: Sharding, shard: &Shard) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !sharding.fits(&shard.bounds) {
        findings.push(Finding::ForeignBounds(shard.id, shard.bounds.to_string()));
    }
    if shard.replicas.len() > 2 * limits::REPLICAS {
        findings.push(Finding::Limit(format!("shard {} has {} replicas", shard.id, shard.replicas.len())));
    }
    for (at, replica) in shard.staying().enumerate() {
        // A few at most: to compare them all takes less than to sort them.
        if shard.staying().take(at).any(|other| other.node == replica.node) {
            findings.push(Finding::TwoOnOneNode(shard.id, replica.node.clone()));
        }
    }
    let counts = |r: &Replica| match shard.stage() {
        Stage::Closing(_) => r.state == ReplicaState::Unload,
        Stage::Forming(_) | Stage::Serving | Stage::Removing => r.state == ReplicaState::Live,
    };
    let not_live = shard.in_sync().filter(|r| !counts(r));
    findings.extend(not_live.map(|r| Finding::InSync(shard.id, r.placement, r.state)));
    let read = shard.in_sync().filter(|r| r.is_read_replica());
    findings.extend(read.map(|r| Finding::ReadReplicaInSync(shard.id, r.placement)));
    let outsider = shard.leader().filter(|leader| shard.has_in_sync_set() && !leader.in_sync);
    findings.extend(outsider.map(|leader| Finding::LeaderNotInSync(shard.id, leader.placement)));
    let leaders = || shard.replicas.iter().filter(|r| r.role == Role::Leader);
    let idle = leaders().filter(|r| !counts(r) || (r.state == ReplicaState::Unload && !r.in_sync));
    findings.extend(idle.map(|r| Finding::Leader(shard.id, r.placement)));
    let pairs = leaders().zip(leaders().skip(1));
    findings.extend(pairs.map(|(one, two)| Finding::TwoLeaders(shard.id, one.placement, two.placement)));
    findings
}

fn ids_given_out(shard: &Shard, next_shard: ShardId, next_placement: PlacementId) -> Vec<Finding> {
    let shard_id = (shard.id >= next_shard).then(|| Finding::UnknownId(shard.id.to_string()));
    let all = || shard.replicas.iter().map(|r| r.placement);
    let bad =
        |(at, p): &(usize, PlacementId)| *p >= next_placement || all().take(*at).any(|other| other == *p);
    let placements = all().enumerate().filter(bad).map(|(_, placement)| placement);
    shard_id.into_iter().chain(placements.map(|p| Finding::UnknownId(p.to_string()))).collect()
}

fn shard_step(old: &Shard, new: &Shard) -> Vec<Finding> {
    let mut findings = Vec::new();
    if new.epoch < old.epoch {
        findings.push(Finding::EpochWentBack(new.id));
    }
    let leader = |shard: &Shard| shard.leader().map(|r| r.placement);
    let changed_hands = leader(old).is_some() && leader(old) != leader(new);
    if new.epoch == old.epoch && (changed_hands || old.bounds != new.bounds) {
        findings.push(Finding::SameEpoch(new.id));
    }
    let set = |shard: &Shard| shard.in_sync().map(|r| r.placement).collect::<Vec<_>>();
    let differs = set(old) != set(new) || new.has_in_sync_set() && leader(old) != leader(new);
    if new.configuration < old.configuration || differs && new.configuration == old.configuration {
        findings.push(Finding::SameConfiguration(new.id, new.configuration));
    }
    for replica in &new.replicas {
        let Some(before) = old.replica(replica.placement) else { continue };
        let is_restarted = replica.incarnation > before.incarnation;
        let begins_anew = (is_restarted || replica.state == ReplicaState::Load)
            && before.state.may_begin_anew_as(replica.state);
        let goes_on = before.state == replica.state || before.state.may_become(replica.state);
        if !(begins_anew || goes_on && !is_restarted) {
            findings.push(Finding::IllegalStep(new.id, replica.placement, before.state, replica.state));
        }
        if before.node != replica.node || before.incarnation > replica.incarnation {
            findings.push(Finding::UnknownId(replica.placement.to_string()));
        }
        // O3: what another start of a node leads has another epoch.
        if is_restarted && before.role == Role::Leader && new.epoch == old.epoch {
            findings.push(Finding::SameEpoch(new.id));
        }
    }
    findings
}

/// Whether two lists of bounds hold exactly the same keys, as often.
fn hold_the_same(these: &[&Bounds], those: &[&Bounds]) -> bool {
    let Some(ring) = ring(these.iter().chain(those).copied()) else { return false };
    extent(these, ring) == extent(those, ring)
}

/// The stretches that bounds hold together, adjacent ones joined.
fn extent<'a>(bounds: &[&'a Bounds], ring: u32) -> Vec<Stretch<'a>> {
    let mut all: Vec<_> = bounds.iter().flat_map(|bounds| stretches(bounds, ring)).collect();
    all.sort();
    let mut joined: Vec<Stretch<'_>> = Vec::new();
    for (begin, end) in all {
        match joined.last_mut() {
            Some((_, last)) if last.as_ref() == Some(&begin) => *last = end,
            _ => joined.push((begin, end)),
        }
    }
    joined
}

fn bounds<'a>(shards: &[&'a Shard]) -> Vec<&'a Bounds> {
    shards.iter().map(|shard| &shard.bounds).collect()
}

/// How many slots tell those of `bounds` apart; none when no table could hold them.
fn ring<'a>(bounds: impl Iterator<Item = &'a Bounds>) -> Option<u32> {
    common_multiple(bounds.filter_map(|bounds| match bounds {
        Bounds::Slot(slot) => Some(slot.of()),
        Bounds::Keys(_) | Bounds::Hashes(_) | Bounds::Name(_) => None,
    }))
}

/// From begin to end, as bytes order them; no end is beyond everything.
type Stretch<'a> = (Edge<'a>, Option<Edge<'a>>);

/// What bounds hold: one stretch, or for a slot as many as it has among the slots of `ring`.
fn stretches(bounds: &Bounds, ring: u32) -> impl Iterator<Item = Stretch<'_>> {
    let (one, slots) = match bounds {
        Bounds::Keys(KeyRange { begin, end }) => {
            let end = (!end.is_empty()).then(|| Edge::of(end.as_bytes()));
            (Some((Edge::of(begin.as_bytes()), end)), None)
        }
        Bounds::Hashes(HashRange { first, last }) => {
            let end = last.checked_add(1).map(Edge::at_hash);
            (Some((Edge::at_hash(*first), end)), None)
        }
        Bounds::Slot(slot) => {
            let stretch = |number: u32| (Edge::at_slot(number), number.checked_add(1).map(Edge::at_slot));
            (None, Some(slot.among(ring).map(stretch)))
        }
        Bounds::Name(name) => {
            let begin = name.as_str().as_bytes();
            (Some((Edge::of(begin), Some(Edge::Bytes([begin, &[0]].concat().into())))), None)
        }
    };
    one.into_iter().chain(slots.into_iter().flatten())
}

/// M1: serving shards are disjoint and, unless partitions are named, cover the keyspace. A keyspace without
/// any shard is one whose shards are still to come.
fn cover<'a>(sharding: Sharding, serving: &[&'a Shard]) -> Vec<Finding> {
    let Some(ring) = ring(serving.iter().map(|shard| &shard.bounds)) else {
        return vec![Finding::Limit("its slots are of too many different numbers".to_owned())];
    };
    let held = || {
        let of = |shard: &'a Shard| stretches(&shard.bounds, ring).map(move |held| (held, shard.id));
        serving.iter().copied().flat_map(of)
    };
    // Shards that were cut in one go lie in the order of their ids: nothing is to be kept and sorted then.
    if held().is_sorted() {
        return cover_in_order(sharding, ring, held());
    }
    let mut stretches: Vec<_> = held().collect();
    stretches.sort_unstable();
    cover_in_order(sharding, ring, stretches.into_iter())
}

/// The same of stretches in their order.
fn cover_in_order<'a>(
    sharding: Sharding,
    ring: u32,
    mut stretches: impl Iterator<Item = (Stretch<'a>, ShardId)>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(((first, mut last), mut left)) = stretches.next() else { return findings };
    for ((begin, end), right) in stretches {
        match &last {
            Some(last) if *last < begin && sharding != Sharding::Named => {
                findings.push(Finding::Gap(format!(
                    "from {} to {}",
                    place(sharding, last),
                    place(sharding, &begin)
                )));
            }
            Some(last) if *last <= begin => {}
            _ => findings.push(Finding::Overlap(left, right)),
        }
        (last, left) = (end, right);
    }
    findings.extend(cover_ends(sharding, ring, (&first, &last)));
    findings
}

/// Where a stretch ends, for people.
fn place(sharding: Sharding, at: &[u8]) -> String {
    match (sharding, at.try_into().map(u32::from_be_bytes)) {
        (Sharding::Fixed { .. }, Ok(number)) => format!("slot {number}"),
        _ => at.escape_ascii().to_string(),
    }
}

fn cover_ends(sharding: Sharding, ring: u32, (first, last): (&Edge<'_>, &Option<Edge<'_>>)) -> Vec<Finding> {
    let (lowest, highest) = match sharding {
        Sharding::KeyRange => (Edge::of(&[]), None),
        Sharding::HashRange { .. } => (Edge::at_hash(0), None),
        Sharding::Fixed { .. } => (Edge::at_slot(0), Some(Edge::at_slot(ring))),
        Sharding::Named => return vec![],
    };
    let below = (*first != lowest).then(|| Finding::Gap(format!("below {}", place(sharding, first))));
    let above = (*last != highest).then(|| {
        let last = last.as_ref().map_or(String::new(), |last| place(sharding, last));
        Finding::Gap(format!("from {last} up"))
    });
    below.into_iter().chain(above).collect()
}

#[cfg(test)]
mod tests;
