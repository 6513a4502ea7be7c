//! Records that are stored and never sent.

use super::sentence;
use crate::Malformed;
use crate::malformed::{Inside, each, required};
use crate::proto;
use partage_core::cluster::{ClusterRecord, Drain, KeyspaceRecord, NodeRecord, ShardRule};
use partage_core::id::{Incarnation, PlacementId, PlanId, ShardId};
use std::collections::BTreeMap;

impl From<&ClusterRecord> for proto::StoredCluster {
    fn from(record: &ClusterRecord) -> Self {
        proto::StoredCluster {
            next_incarnation: record.next_incarnation.0,
            next_plan: record.next_plan.0,
            longest_lease_ms: record.longest_lease_ms,
            brake: record.brake.clone(),
            next_shard: record.next_shard.0,
            next_placement: record.next_placement.0,
        }
    }
}

impl TryFrom<proto::StoredCluster> for ClusterRecord {
    type Error = Malformed;
    fn try_from(form: proto::StoredCluster) -> Result<Self, Malformed> {
        Ok(ClusterRecord {
            next_incarnation: Incarnation(form.next_incarnation),
            next_plan: PlanId(form.next_plan),
            longest_lease_ms: form.longest_lease_ms,
            brake: form.brake,
            next_shard: ShardId(form.next_shard),
            next_placement: PlacementId(form.next_placement),
        })
    }
}

fn rule_form((shard, rule): (&ShardId, &ShardRule)) -> proto::StoredRule {
    proto::StoredRule {
        shard: shard.0,
        replicas: rule.replicas,
        constraint: Some((&rule.constraint).into()),
        set_aside: rule.set_aside.clone(),
        deaths: rule.deaths,
    }
}

fn rule(form: proto::StoredRule) -> Result<(ShardId, ShardRule), Malformed> {
    let rule = ShardRule {
        replicas: form.replicas,
        constraint: form.constraint.unwrap_or_default().try_into().inside("constraint")?,
        set_aside: form.set_aside,
        deaths: form.deaths,
    };
    Ok((ShardId(form.shard), rule))
}

impl From<&KeyspaceRecord> for proto::StoredKeyspace {
    fn from(record: &KeyspaceRecord) -> Self {
        proto::StoredKeyspace {
            keyspace: Some((&record.keyspace).into()),
            brake: record.brake.clone(),
            rules: record.rules.iter().map(rule_form).collect(),
            created_ms: record.created_ms,
        }
    }
}

impl TryFrom<proto::StoredKeyspace> for KeyspaceRecord {
    type Error = Malformed;
    fn try_from(form: proto::StoredKeyspace) -> Result<Self, Malformed> {
        let count = form.rules.len();
        let rules: BTreeMap<_, _> = each(form.rules, "rules", rule)?;
        if rules.len() < count {
            return Err(Malformed::new("rules", "name a shard twice"));
        }
        Ok(KeyspaceRecord {
            keyspace: required(form.keyspace, "keyspace")?,
            brake: form.brake,
            rules,
            created_ms: form.created_ms,
        })
    }
}

impl From<&Drain> for proto::StoredDrain {
    fn from(drain: &Drain) -> Self {
        proto::StoredDrain {
            reason: drain.reason.clone(),
            asked_ms: drain.asked_ms,
            max_down: drain.max_down,
            began_with: drain.began_with,
        }
    }
}

impl From<proto::StoredDrain> for Drain {
    fn from(form: proto::StoredDrain) -> Self {
        Drain {
            reason: sentence(form.reason),
            asked_ms: form.asked_ms,
            max_down: form.max_down,
            began_with: form.began_with,
        }
    }
}

impl From<&NodeRecord> for proto::StoredNode {
    fn from(record: &NodeRecord) -> Self {
        proto::StoredNode {
            spec: Some((&record.spec).into()),
            incarnation: record.incarnation.0,
            ended: record.ended,
            left: record.left,
            drain: record.drain.as_ref().map(Into::into),
            since_ms: record.since_ms,
        }
    }
}

impl TryFrom<proto::StoredNode> for NodeRecord {
    type Error = Malformed;
    fn try_from(form: proto::StoredNode) -> Result<Self, Malformed> {
        Ok(NodeRecord {
            spec: required(form.spec, "spec")?,
            incarnation: Incarnation(form.incarnation),
            ended: form.ended,
            left: form.left,
            drain: form.drain.map(Into::into),
            since_ms: form.since_ms,
        })
    }
}
