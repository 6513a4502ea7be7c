//! Keyspaces: settings, constraints, and the brief that workers and routers get.

use crate::Malformed;
use crate::malformed::{At, Inside, required};
use crate::proto;
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::sharding::PartitionKey;
use partage_core::keyspace::{Keyspace, KeyspaceKind, Resharding, RowValues, Throttle};
use partage_core::node::exchange::KeyspaceBrief;
use std::fmt::Display;
use std::str::FromStr;

impl From<&Throttle> for proto::Throttle {
    fn from(throttle: &Throttle) -> Self {
        proto::Throttle {
            moves: Some(throttle.moves),
            moves_per_node: Some(throttle.moves_per_node),
            loads_per_node: Some(throttle.loads_per_node),
            bytes_per_s: Some(throttle.bytes_per_s),
            // Younger than the form: left out where it is the default, so that what was stored stays the same.
            load_ms: (throttle.load_ms != Throttle::default().load_ms).then_some(throttle.load_ms),
            replace_after_ms: (throttle.replace_after_ms != Throttle::default().replace_after_ms)
                .then_some(throttle.replace_after_ms),
        }
    }
}

impl From<proto::Throttle> for Throttle {
    fn from(form: proto::Throttle) -> Self {
        let default = Throttle::default();
        Throttle {
            moves: form.moves.unwrap_or(default.moves),
            moves_per_node: form.moves_per_node.unwrap_or(default.moves_per_node),
            loads_per_node: form.loads_per_node.unwrap_or(default.loads_per_node),
            bytes_per_s: form.bytes_per_s.unwrap_or(default.bytes_per_s),
            load_ms: form.load_ms.unwrap_or(default.load_ms),
            replace_after_ms: form.replace_after_ms.unwrap_or(default.replace_after_ms),
        }
    }
}

impl From<&Resharding> for proto::Resharding {
    fn from(resharding: &Resharding) -> Self {
        proto::Resharding {
            split_bytes: Some(resharding.split_bytes),
            split_requests_per_s: Some(resharding.split_requests_per_s),
            window_ms: Some(resharding.window_ms),
            hot_key_share: Some(resharding.hot_key_share),
            max_replicas: Some(resharding.max_replicas),
            min_shards: Some(resharding.min_shards),
            max_shards: Some(resharding.max_shards),
        }
    }
}

impl From<proto::Resharding> for Resharding {
    fn from(form: proto::Resharding) -> Self {
        let default = Resharding::default();
        Resharding {
            split_bytes: form.split_bytes.unwrap_or(default.split_bytes),
            split_requests_per_s: form.split_requests_per_s.unwrap_or(default.split_requests_per_s),
            window_ms: form.window_ms.unwrap_or(default.window_ms),
            hot_key_share: form.hot_key_share.unwrap_or(default.hot_key_share),
            max_replicas: form.max_replicas.unwrap_or(default.max_replicas),
            min_shards: form.min_shards.unwrap_or(default.min_shards),
            max_shards: form.max_shards.unwrap_or(default.max_shards),
        }
    }
}

impl From<&Keyspace> for proto::Keyspace {
    fn from(keyspace: &Keyspace) -> Self {
        proto::Keyspace {
            name: keyspace.name.to_string(),
            kind: keyspace.kind.word().to_owned(),
            sharding: Some(keyspace.sharding.into()),
            partition_key: Some(keyspace.partition_key.into()),
            ownership: keyspace.ownership.word().to_owned(),
            replicas: Some(keyspace.replicas),
            policy: keyspace.policy.clone(),
            mode: keyspace.mode.word().to_owned(),
            spread: keyspace.spread.word().to_owned(),
            constraint: Some((&keyspace.constraint).into()),
            throttle: Some((&keyspace.throttle).into()),
            resharding: Some((&keyspace.resharding).into()),
            dataset_replication: keyspace.dataset_replication,
            durable: keyspace.durable,
            min_in_sync: keyspace.min_in_sync,
            values: values(keyspace.values),
            feed_ms: keyspace.feed_ms,
        }
    }
}

/// Younger than the form: left out where it is the default, so that what was stored stays the same.
fn values(values: RowValues) -> String {
    if values == RowValues::Bytes { String::new() } else { values.word().to_owned() }
}

/// A word, or what stands for none.
fn word<T: FromStr<Err: Display>>(text: &str, absent: T, field: &str) -> Result<T, Malformed> {
    if text.is_empty() { Ok(absent) } else { text.parse().at(field) }
}

fn partition_key(form: Option<proto::PartitionKey>) -> Result<PartitionKey, Malformed> {
    form.unwrap_or_default().try_into().inside("partition_key")
}

impl TryFrom<proto::Keyspace> for Keyspace {
    type Error = Malformed;
    fn try_from(form: proto::Keyspace) -> Result<Self, Malformed> {
        let name = KeyspaceName::new(&form.name).at("name")?;
        let default = Keyspace::new(name, required(form.sharding, "sharding")?);
        Ok(Keyspace {
            kind: word(&form.kind, default.kind, "kind")?,
            partition_key: partition_key(form.partition_key)?,
            ownership: word(&form.ownership, default.ownership, "ownership")?,
            replicas: form.replicas.unwrap_or(default.replicas),
            policy: if form.policy.is_empty() { default.policy.clone() } else { form.policy },
            mode: word(&form.mode, default.mode, "mode")?,
            spread: word(&form.spread, default.spread, "spread")?,
            constraint: form.constraint.unwrap_or_default().try_into().inside("constraint")?,
            throttle: form.throttle.unwrap_or_default().into(),
            resharding: form.resharding.unwrap_or_default().into(),
            dataset_replication: form.dataset_replication,
            durable: form.durable,
            min_in_sync: form.min_in_sync,
            values: word(&form.values, default.values, "values")?,
            feed_ms: form.feed_ms,
            ..default
        })
    }
}

impl From<&KeyspaceBrief> for proto::KeyspaceBrief {
    fn from(brief: &KeyspaceBrief) -> Self {
        proto::KeyspaceBrief {
            name: brief.name.to_string(),
            sharding: Some(brief.sharding.into()),
            partition_key: Some(brief.partition_key.into()),
            ownership: brief.ownership.word().to_owned(),
            generation: Some(brief.generation.into()),
            first_shard: brief.first_shard.0,
            durable: brief.durable,
            min_in_sync: brief.min_in_sync,
            values: values(brief.values),
            feed_ms: brief.feed_ms,
            // What it was before it was told.
            kind: if brief.kind == KeyspaceKind::App { String::new() } else { brief.kind.word().to_owned() },
        }
    }
}

impl TryFrom<proto::KeyspaceBrief> for KeyspaceBrief {
    type Error = Malformed;
    fn try_from(form: proto::KeyspaceBrief) -> Result<Self, Malformed> {
        Ok(KeyspaceBrief {
            name: KeyspaceName::new(&form.name).at("name")?,
            sharding: required(form.sharding, "sharding")?,
            partition_key: partition_key(form.partition_key)?,
            ownership: form.ownership.parse().at("ownership")?,
            generation: required(form.generation, "generation")?,
            first_shard: ShardId(form.first_shard),
            durable: form.durable,
            min_in_sync: form.min_in_sync,
            values: word(&form.values, RowValues::Bytes, "values")?,
            feed_ms: form.feed_ms,
            kind: if form.kind.is_empty() { KeyspaceKind::App } else { form.kind.parse().at("kind")? },
        })
    }
}
