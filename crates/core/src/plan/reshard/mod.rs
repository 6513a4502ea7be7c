//! Which shards should be cut, joined, or served by more nodes: from what they carry over time to proposals.
//!
//! A gardener does not cut a branch because the wind bends it. A shard is cut when it has been above a
//! threshold at every look for a whole window, and two neighbours are joined when *together* they have been
//! below half of every threshold for a window. So a shard fresh from a cut (two halves, together a whole) is
//! far from being joined again, and one fresh from a join has to double before it is cut: the two never chase
//! each other (K5).
//!
//! | seen at every look for `window_ms`                               | proposed                            |
//! |------------------------------------------------------------------|-------------------------------------|
//! | more than `split_bytes`                                          | a cut in two, see [`split`]         |
//! | more than `split_requests_per_s`, spread over keys               | a cut in two                        |
//! | the same, with more than `hot_key_share` of it on one key        | that key alone, see [`hot`]         |
//! | the same on each replica of a shard that cannot be cut           | one replica more, to `max_replicas` |
//! | one replica fewer would still carry less than half of the threshold | one less, down to the keyspace's |
//! | two neighbours that came from cuts, together below half          | one shard, see [`merge`]            |
//!
//! Shards that began with their keyspace are not joined: their bounds were somebody's choice (K4). A shard
//! that reports no load is left alone. Anything that happens to a shard (a move, a repair) starts its window
//! again. Not done: looking for the cut that halves the requests rather than the data; workers report the
//! median of the data only, and a second cut follows when one was not enough.

pub mod hot;
pub mod merge;
pub mod split;

#[cfg(test)]
mod tests;

use crate::base::id::{Epoch, ShardId};
use crate::base::name::NodeId;
use crate::base::time::Millis;
use crate::keyspace::Resharding;
use crate::keyspace::key::Key;
use crate::keyspace::map::{Replica, Role, Shard};
use crate::keyspace::sharding::geometry::around;
use crate::keyspace::sharding::{PartitionKey, Sharding};
use crate::limits;
use crate::node::load::{HotKey, Load};
use crate::plan::Change;
use std::collections::{BTreeMap, BTreeSet};

/// What all replicas of a shard carry together.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Carried {
    /// Requests a second, over all replicas.
    pub requests_per_s: f64,
    /// Bytes of the largest replica.
    pub size_bytes: u64,
    /// The most requested keys over all replicas, heaviest first.
    pub hot_keys: Vec<HotKey>,
    /// Where the leader's data halves.
    pub median: Option<Key>,
}

impl Carried {
    /// The sum over reports, the leader's first; none without any.
    pub fn of<'a>(reports: impl IntoIterator<Item = &'a Load>) -> Option<Carried> {
        let mut carried: Option<Carried> = None;
        let mut keys: BTreeMap<&Key, f64> = BTreeMap::new();
        for load in reports {
            let sum = carried.get_or_insert_default();
            sum.requests_per_s += load.requests_per_s;
            sum.size_bytes = sum.size_bytes.max(load.size_bytes);
            sum.median = sum.median.take().or_else(|| load.profile.median().cloned());
            for hot in load.profile.hot_keys() {
                *keys.entry(&hot.key).or_default() += hot.requests_per_s;
            }
        }
        let mut hot_keys: Vec<HotKey> =
            keys.into_iter().map(|(key, rate)| HotKey { key: key.clone(), requests_per_s: rate }).collect();
        hot_keys.sort_by(|a, b| b.requests_per_s.total_cmp(&a.requests_per_s));
        carried.map(|sum| Carried { hot_keys, ..sum })
    }
}

/// A settled shard of which the load is known.
pub struct Candidate<'a> {
    /// The shard that may be split, merged or given replicas.
    pub shard: &'a Shard,
    /// What its replicas carry together.
    pub carried: Carried,
}

impl Candidate<'_> {
    /// How many nodes serve it.
    fn copies(&self) -> usize {
        self.shard.readable().count()
    }

    /// The nodes of its members, the leader's first. Children begin there: there the data is.
    fn nodes(&self) -> Vec<NodeId> {
        let members = leader_first(self.shard).into_iter().filter(|replica| !replica.is_read_replica());
        members.map(|replica| replica.node.clone()).collect()
    }
}

/// The live replicas of a shard, the leader first.
pub fn leader_first(shard: &Shard) -> Vec<&Replica> {
    let mut replicas: Vec<_> = shard.readable().collect();
    replicas.sort_by_key(|replica| (replica.role != Role::Leader, replica.placement));
    replicas
}

/// The keyspace's part of the question.
pub struct Terms<'a> {
    /// The thresholds and the window of the keyspace.
    pub resharding: &'a Resharding,
    /// How the keys of the keyspace map to its shards.
    pub sharding: Sharding,
    /// The part of a key that the keyspace is sharded by.
    pub partition_key: PartitionKey,
    /// How many replicas a shard has that is not hot.
    pub replicas: u32,
    /// How many shards serve, candidates or not.
    pub shards: usize,
}

/// What should be done.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Proposals {
    /// Cuts and joins with their reasons, at most [`limits::RESHAPES`].
    pub changes: Vec<(Change, String)>,
    /// Replica counts of shards that are, or were lately, too hot for the keyspace's own count.
    pub replicas: BTreeMap<ShardId, u32>,
    /// Sentences for a person about what no change of this module can help.
    pub advice: Vec<String>,
    /// When a window that is running now will have passed.
    pub look_again: Option<Millis>,
}

/// Since when something has been so at every look; none while it is not so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Since(Option<Millis>);

impl Since {
    /// Notes whether it is so now; returns whether it has been for the whole window.
    fn look(&mut self, holds: bool, now: Millis, window_ms: u64) -> bool {
        self.0 = holds.then(|| self.0.unwrap_or(now));
        self.0.is_some_and(|since| now.since(since) >= window_ms)
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Watched {
    /// Epoch and replicas of the shard when these windows began: loads before and after do not compare.
    standing: (Epoch, usize),
    big: Since,
    busy: Since,
    hot: Since,
    hot_key: Option<Key>,
    strained: Since,
    calm: Since,
}

/// Remembers since when shards have been above or below their thresholds: of those that have, so that a look at very
/// many that have not costs little.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tracker {
    shards: BTreeMap<ShardId, Watched>,
    small: BTreeMap<(ShardId, ShardId), Since>,
}

impl Tracker {
    /// Looks at all candidates at `now` and says what has been so for the whole window.
    pub fn look(&mut self, candidates: &[Candidate<'_>], terms: &Terms<'_>, now: Millis) -> Proposals {
        let mut proposals = Proposals::default();
        let mut shards = terms.shards;
        let mut taken = BTreeSet::new();
        let mut watched = std::mem::take(&mut self.shards);
        for candidate in candidates {
            let id = candidate.shard.id;
            let standing = (candidate.shard.epoch, candidate.copies());
            let new = || Watched { standing, ..Watched::default() };
            let mut state =
                watched.remove(&id).filter(|state| state.standing == standing).unwrap_or_else(new);
            let sustained = state.look(candidate, terms, now);
            if let Some((change, reason, parts)) = cut(candidate, terms, &sustained, shards) {
                if proposals.changes.len() < limits::RESHAPES {
                    shards += parts - 1;
                    taken.insert(id);
                    proposals.changes.push((change, reason));
                }
            } else {
                hot::replicas(candidate, terms, &sustained, &mut proposals);
            }
            if state != new() {
                self.shards.insert(id, state);
            }
        }
        merge::propose(&mut self.small, candidates, terms, now, &taken, &mut proposals);
        proposals.look_again = self.next_deadline(terms, now);
        proposals
    }

    fn next_deadline(&self, terms: &Terms<'_>, now: Millis) -> Option<Millis> {
        let of_shards = self
            .shards
            .values()
            .flat_map(|w| [w.big, w.busy, w.hot, w.strained, w.calm])
            .map(|since| since.0);
        let all = of_shards.chain(self.small.values().map(|since| since.0)).flatten();
        all.map(|since| since + terms.resharding.window_ms).filter(|end| *end > now).min()
    }
}

/// What has been so for the whole window.
pub(crate) struct SustainedLoad {
    big: bool,
    busy: bool,
    hot: Option<Key>,
    strained: bool,
    calm: bool,
}

impl Watched {
    fn look(&mut self, candidate: &Candidate<'_>, terms: &Terms<'_>, now: Millis) -> SustainedLoad {
        let limits = terms.resharding;
        let (carried, window) = (&candidate.carried, limits.window_ms);
        let above = |value: f64, threshold: f64| threshold > 0.0 && value > threshold;
        let busy = above(carried.requests_per_s, limits.split_requests_per_s);
        let key = hot::heavy(carried, limits).filter(|_| busy);
        // Another key than before is another story.
        if key != self.hot_key.as_ref() {
            self.hot = Since::default();
            self.hot_key = key.cloned();
        }
        let replicas = candidate.copies().max(1) as f64;
        let strained = above(carried.requests_per_s / replicas, limits.split_requests_per_s);
        let fewer = (replicas - 1.0).max(1.0);
        let calm = !above(carried.requests_per_s / fewer, limits.split_requests_per_s / 2.0);
        let hot = self.hot.look(self.hot_key.is_some(), now, window);
        SustainedLoad {
            big: self.big.look(above(carried.size_bytes as f64, limits.split_bytes as f64), now, window),
            busy: self.busy.look(busy, now, window),
            hot: self.hot_key.clone().filter(|_| hot),
            strained: self.strained.look(strained, now, window),
            calm: self.calm.look(calm && candidate.copies() > terms.replicas as usize, now, window),
        }
    }
}

/// The cut that a shard needs, if it needs one and can be cut, and into how many parts.
fn cut(
    candidate: &Candidate<'_>,
    terms: &Terms<'_>,
    sustained: &SustainedLoad,
    shards: usize,
) -> Option<(Change, String, usize)> {
    let id = candidate.shard.id;
    let bounds = &candidate.shard.bounds;
    let seconds = terms.resharding.window_ms.div_ceil(1_000);
    let carried = &candidate.carried;
    let rate = format!("{:.0} requests a second", carried.requests_per_s);
    let (parts, reason) = match &sustained.hot {
        Some(key) if sustained.busy => {
            let position = terms.sharding.position(terms.partition_key, key.as_bytes());
            let parts = around(bounds, position).ok().filter(|parts| parts.len() > 1)?;
            let share = terms.resharding.hot_key_share * 100.0;
            (
                parts,
                format!(
                    "{id} has had {rate} for {seconds} s, more than {share:.0} % of them for the key {key:?}: isolate it"
                ),
            )
        }
        _ if sustained.busy || sustained.big => {
            let (parts, at) = split::in_two(bounds, terms.partition_key, carried.median.as_ref())?;
            let what = if sustained.busy { rate } else { format!("{} MiB", carried.size_bytes >> 20) };
            let limit = if sustained.busy {
                format!("{:.0}", terms.resharding.split_requests_per_s)
            } else {
                format!("{} MiB", terms.resharding.split_bytes >> 20)
            };
            (parts, format!("{id} has had {what} for {seconds} s, more than {limit}: cut it at {at}"))
        }
        _ => return None,
    };
    if shards + parts.len() - 1 > (terms.resharding.max_shards as usize).min(limits::SHARDS) {
        return None;
    }
    let count = parts.len();
    let nodes = candidate.nodes();
    let children = parts.into_iter().map(|bounds| (bounds, nodes.clone())).collect();
    Some((Change::Split { shard: id, children }, reason, count))
}
