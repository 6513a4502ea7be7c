//! Which shards of a keyspace may be cut or joined now, and what [`crate::plan::reshard`] says about them.

use super::super::{Cluster, KeyspaceState, Moment, Outbox};
use crate::base::id::ShardId;
use crate::cluster::event::{About, EventKind};
use crate::keyspace::Mode;
use crate::keyspace::map::Shard;
use crate::limits;
use crate::plan::reshard::{Candidate, Carried, Proposals, Terms, leader_first};
use crate::plan::{Change, Planned};
use std::collections::BTreeSet;

impl Cluster {
    /// What a shard carries that may be cut or joined as far as its nodes are concerned.
    pub(super) fn carried_by(&self, at: Moment, keyspace: &KeyspaceState, shard: &Shard) -> Option<Carried> {
        let replicas = leader_first(shard);
        let reports = replicas.iter().filter_map(|r| keyspace.observed.get(&r.placement)?.load());
        let carried = Carried::of(reports)?;
        // Children begin on these nodes, and nothing new is placed on a closed one (M7).
        let mut members = replicas.iter().filter(|r| !r.is_read_replica());
        members.all(|r| self.closed(at, &r.node).is_none()).then_some(carried)
    }
}

impl KeyspaceState {
    /// What follows from what the shards of the keyspace carry. One that has changed hands since then has no part in it.
    pub(super) fn reshape(
        &mut self,
        at: Moment,
        carried: Vec<(ShardId, Carried)>,
        outbox: &mut Outbox,
    ) -> Proposals {
        if !self.may_reshape() {
            return Proposals::default();
        }
        let mut tracker = std::mem::take(&mut self.planning.tracker);
        let settings = &self.record.keyspace;
        let candidate = |(id, carried): (ShardId, Carried)| {
            let shard = self.map.shard(id).filter(|shard| shard.is_serving())?;
            Some(Candidate { shard, carried })
        };
        let candidates: Vec<_> = carried.into_iter().filter_map(candidate).collect();
        let terms = Terms {
            resharding: &settings.resharding,
            sharding: settings.sharding,
            partition_key: settings.partition_key,
            replicas: settings.replicas,
            shards: self.map.shards().filter(|shard| shard.is_serving()).count(),
        };
        let proposals = tracker.look(&candidates, &terms, at.now);
        self.planning.tracker = tracker;
        self.look_again(at, &proposals);
        self.report_advice(proposals.advice.clone(), outbox);
        proposals
    }

    fn report_advice(&mut self, advice: Vec<String>, outbox: &mut Outbox) {
        let first = advice.first().filter(|_| self.planning.advice.is_empty()).cloned();
        self.planning.advice = advice;
        if let Some(first) = first {
            let name = self.map.keyspace();
            outbox.tell(EventKind::Alarm, About::keyspace(name), true, format!("keyspace {name}: {first}"));
        }
    }

    /// Whether its shards are cut or joined by their loads: not in mode `manual`, or when no threshold is set.
    pub(in crate::cluster) fn may_reshape(&self) -> bool {
        let settings = &self.record.keyspace;
        let limits = &settings.resharding;
        let has_threshold = limits.split_bytes > 0 || limits.split_requests_per_s > 0.0;
        settings.mode != Mode::Manual && has_threshold
    }

    /// Sentences about hot shards that no plan can help, at most [`limits::COMPLAINTS`].
    pub fn advice(&self) -> &[String] {
        &self.planning.advice
    }

    /// The planner runs again when a window has passed, but not once for each of many shards.
    fn look_again(&mut self, at: Moment, proposals: &Proposals) {
        let pause_ms = (self.record.keyspace.resharding.window_ms / 8).max(limits::PLAN_PAUSE_MS);
        if let Some(due) = proposals.look_again {
            self.planning.plan_due = self.planning.plan_due.min(due.max(at.now + pause_ms));
        }
    }
}

/// The cuts and joins before the moves; a shard that is cut or joined is not moved as well.
pub(super) fn with_reshapes(proposals: Proposals, moves: Vec<Planned>) -> Vec<Planned> {
    let reshaped: BTreeSet<ShardId> =
        proposals.changes.iter().flat_map(|(change, _)| change.shards()).copied().collect();
    let reshapes = proposals.changes.into_iter().map(|(change, reason)| Planned::new(change, reason));
    let others = moves.into_iter().filter(|p| !p.change.shards().iter().any(|id| reshaped.contains(id)));
    reshapes.chain(others).collect()
}

/// Whether a person would call two suggestions the same: a cut at a median that has moved a little is.
pub(super) fn is_alike(one: &Change, other: &Change) -> bool {
    match (one, other) {
        (Change::Split { shard, children }, Change::Split { shard: also, children: parts }) => {
            shard == also && children.len() == parts.len()
        }
        (Change::Merge { shards, .. }, Change::Merge { shards: also, .. }) => shards == also,
        (one, other) => one == other,
    }
}
