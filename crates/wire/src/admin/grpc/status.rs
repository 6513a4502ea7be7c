//! What a cluster looks like, over gRPC: status, nodes, shards, and why a key is where it is.

use crate::conversion::{Numbered, OptionalName};
use crate::json::{Event, EventPage, Events, strings};
use crate::proto::{self, drain, explanation};
use crate::worker::conversion::{failure_text, phase_parts};
use partage_core::base::id::PlanId;
use partage_core::base::name::KeyspaceName;
use partage_core::cluster::admin::{DrainProgress, DrainStatus};
use partage_core::cluster::explain::Explanation;
use partage_core::cluster::node_detail::NodeDetail;
use partage_core::cluster::status::{ReplicaRow, ShardRow};

impl From<Event> for proto::Event {
    fn from(event: Event) -> Self {
        let Event { term, number, at_ms, kind, alarm, actor, by, keyspace, shard, nodes, plan, text } = event;
        let (kind, actor) = (kind.to_string(), actor.to_string());
        let (by, keyspace) = (by.unwrap_or_default(), keyspace.unwrap_or_default());
        proto::Event { term, number, at_ms, kind, alarm, actor, by, keyspace, shard, nodes, plan, text }
    }
}

impl From<Events> for proto::EventList {
    fn from(Events { events, next, more }: Events) -> Self {
        proto::EventList { events: events.into_iter().map(Into::into).collect(), next, more }
    }
}

impl From<proto::ListEventsRequest> for EventPage {
    fn from(asked: proto::ListEventsRequest) -> Self {
        let some = |text: String| (!text.is_empty()).then_some(text);
        let proto::ListEventsRequest { after, since_ms, keyspace, node, limit } = asked;
        EventPage {
            after: some(after),
            since_ms: Some(since_ms),
            keyspace: some(keyspace),
            node: some(node),
            limit: limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
        }
    }
}

impl From<&DrainStatus> for proto::Drain {
    fn from(status: &DrainStatus) -> Self {
        use drain::{Blocked, Moving, Progress, Queued, SafeToStop};
        let progress = match &status.progress {
            DrainProgress::Queued { behind, max_down } => {
                Progress::Queued(Queued { behind: strings(behind), max_down: *max_down })
            }
            DrainProgress::Moving { left, of, stuck } => {
                Progress::Moving(Moving { left: *left, of: *of, stuck: stuck.clone() })
            }
            DrainProgress::SafeToStop => Progress::SafeToStop(SafeToStop {}),
            DrainProgress::Blocked { left, why } => {
                Progress::Blocked(Blocked { left: *left, why: why.clone() })
            }
        };
        proto::Drain {
            node: status.node.to_string(),
            reason: status.reason.clone(),
            asked_ms: status.asked_ms,
            progress: Some(progress),
        }
    }
}

impl From<&NodeDetail> for proto::NodeDetail {
    fn from(detail: &NodeDetail) -> Self {
        let hosted = |(keyspace, row): &(KeyspaceName, ShardRow)| proto::node_detail::Hosted {
            keyspace: keyspace.to_string(),
            shard: Some(row.into()),
        };
        proto::NodeDetail {
            node: Some((&detail.row).into()),
            heard_ms_ago: detail.heard_ms_ago,
            lease_left_ms: detail.lease_left_ms,
            shards: detail.shards.iter().map(hosted).collect(),
            more: detail.more,
        }
    }
}

impl From<&ReplicaRow> for proto::ReplicaRow {
    fn from(row: &ReplicaRow) -> Self {
        let seen = row.phase.as_ref().map(phase_parts);
        proto::ReplicaRow {
            placement: row.placement.0,
            node: row.node.to_string(),
            zone: OptionalName::of(row.zone.as_ref()),
            health: row.health.number(),
            role: row.role.number(),
            state: row.state.number(),
            phase: seen.map_or(0, |(phase, _)| phase.number()),
            failure: seen.and_then(|(_, failure)| failure).map(failure_text).unwrap_or_default(),
            load: row.load.as_ref().map(Into::into),
            in_sync: row.in_sync,
        }
    }
}

impl From<&Explanation> for proto::Explanation {
    fn from(told: &Explanation) -> Self {
        let reason = |reason: &Option<(PlanId, String)>| match reason {
            Some((plan, reason)) => explanation::Reason { plan: plan.0, reason: reason.clone() },
            None => explanation::Reason::default(),
        };
        proto::Explanation {
            keyspace: told.keyspace.to_string(),
            key: told.key.as_bytes().to_vec(),
            policy: told.policy.clone(),
            shard: Some((&told.shard).into()),
            reasons: told.reasons.iter().map(reason).collect(),
            granted: told.granted,
            would_move: told.would_move.clone(),
            under_way: told.under_way.clone(),
            blocked: told.blocked.clone(),
            text: told.to_string(),
        }
    }
}
