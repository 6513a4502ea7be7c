//! Records that are stored and never sent.

use crate::Malformed;
use crate::malformed::sentence;
use crate::malformed::{At, Inside, each, names, required};
use crate::proto;
use partage_core::base::id::{ClusterId, Incarnation, PlacementId, PlanId, SessionDigest, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::cluster::{ClusterRecord, Drain, KeyspaceRecord, LostIds, NodeRecord, ShardRule};
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
            // Left out where none was drawn.
            id: if record.id == ClusterId::default() { String::new() } else { record.id.to_string() },
            continues: record.continues.iter().map(ToString::to_string).collect(),
            deleted_keyspaces: record.deleted_keyspaces.iter().map(deleted_form).collect(),
            lost: record.lost.as_ref().map(Into::into),
            later_maps: record.later_maps.iter().map(Into::into).collect(),
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
            id: if form.id.is_empty() { ClusterId::default() } else { form.id.parse().at("id")? },
            continues: names(&form.continues, "continues")?,
            deleted_keyspaces: each(form.deleted_keyspaces, "deleted_keyspaces", deleted)?,
            lost: form.lost.map(Into::into),
            later_maps: each(form.later_maps, "later_maps", TryInto::try_into)?,
        })
    }
}

fn deleted_form((name, below): (&KeyspaceName, &ShardId)) -> proto::StoredDeletedKeyspace {
    proto::StoredDeletedKeyspace { name: name.to_string(), below: below.0 }
}

fn deleted(form: proto::StoredDeletedKeyspace) -> Result<(KeyspaceName, ShardId), Malformed> {
    Ok((KeyspaceName::new(&form.name).at("name")?, ShardId(form.below)))
}

impl From<&LostIds> for proto::StoredLostIds {
    fn from(lost: &LostIds) -> Self {
        proto::StoredLostIds {
            first_shard: lost.shards.0.0,
            next_shard: lost.shards.1.0,
            first_placement: lost.placements.0.0,
            next_placement: lost.placements.1.0,
        }
    }
}

impl From<proto::StoredLostIds> for LostIds {
    fn from(form: proto::StoredLostIds) -> Self {
        LostIds {
            shards: (ShardId(form.first_shard), ShardId(form.next_shard)),
            placements: (PlacementId(form.first_placement), PlacementId(form.next_placement)),
        }
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
            first_shard: record.first_shard.0,
            lost: record.lost.as_ref().map(Into::into),
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
            first_shard: ShardId(form.first_shard),
            lost: form.lost.map(Into::into),
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
            held: (!record.held).then_some(false),
            drain: record.drain.as_ref().map(Into::into),
            since_ms: record.since_ms,
            session: record.session.map(|digest| digest.0.to_vec()).unwrap_or_default(),
        }
    }
}

impl TryFrom<proto::StoredNode> for NodeRecord {
    type Error = Malformed;
    fn try_from(form: proto::StoredNode) -> Result<Self, Malformed> {
        let digest = |bytes: Vec<u8>| <[u8; 32]>::try_from(bytes).map(SessionDigest);
        let session = (!form.session.is_empty()).then(|| digest(form.session)).transpose();
        Ok(NodeRecord {
            session: session.map_err(|_| Malformed::new("session", "is no digest of 32 bytes"))?,
            spec: required(form.spec, "spec")?,
            incarnation: Incarnation(form.incarnation),
            ended: form.ended,
            left: form.left,
            held: form.held.unwrap_or(true),
            drain: form.drain.map(Into::into),
            since_ms: form.since_ms,
        })
    }
}
