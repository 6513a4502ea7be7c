//! Keyspaces as JSON: what is left out has its default.

use super::sharding::{PartitionKey, Sharding};
use super::strings;
use crate::Malformed;
use crate::malformed::{At, Inside, names};
use partage_core::keyspace as core;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where shards may go.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Constraint {
    /// Only on these nodes; empty = any.
    pub pinned: Vec<String>,
    /// Never on these.
    pub excluded: Vec<String>,
    /// Only on nodes with all of these labels.
    pub labels: Vec<String>,
}

impl From<&core::Constraint> for Constraint {
    fn from(constraint: &core::Constraint) -> Self {
        Constraint {
            pinned: strings(&constraint.pinned),
            excluded: strings(&constraint.excluded),
            labels: strings(&constraint.labels),
        }
    }
}

impl TryFrom<Constraint> for core::Constraint {
    type Error = Malformed;
    fn try_from(form: Constraint) -> Result<Self, Malformed> {
        Ok(core::Constraint {
            pinned: names(&form.pinned, "pinned")?,
            excluded: names(&form.excluded, "excluded")?,
            labels: names(&form.labels, "labels")?,
        })
    }
}

macro_rules! numbers {
    ($(#[$doc:meta])* $type:ident { $($(#[$fdoc:meta])* $field:ident: $number:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $type { $($(#[$fdoc])* pub $field: $number),+ }

        impl Default for $type {
            fn default() -> Self {
                (&core::$type::default()).into()
            }
        }

        impl From<&core::$type> for $type {
            fn from(from: &core::$type) -> Self {
                $type { $($field: from.$field),+ }
            }
        }

        impl From<$type> for core::$type {
            fn from(form: $type) -> Self {
                core::$type { $($field: form.$field),+ }
            }
        }
    };
}

numbers!(
    /// How fast shards may move, and how long a load may take.
    Throttle {
        /// Moves under way at once.
        moves: u32,
        /// Moves under way at once, into or out of one node.
        moves_per_node: u32,
        /// First loads and repairs under way at once into one node.
        loads_per_node: u32,
        /// Bytes a second that moves may start to copy; 0 = no limit.
        bytes_per_s: u64,
        /// How long a node may load one replica before it is given up there, in milliseconds.
        load_ms: u64,
        /// How long a durable replica of a dead node is waited for before another node copies the shard, in
        /// milliseconds.
        replace_after_ms: u64,
    }
);

numbers!(
    /// When shards split and merge.
    Resharding {
        /// Split above this size; 0 = never by size.
        split_bytes: u64,
        /// Split above this many requests a second; 0 = never by load.
        split_requests_per_s: f64,
        /// How long a load must stay above or below.
        window_ms: u64,
        /// A key with more than this share of its shard's requests is isolated.
        hot_key_share: f64,
        /// Most replicas of a read-hot shard.
        max_replicas: u32,
        /// Never fewer shards by merging.
        min_shards: u32,
        /// Never more shards by splitting.
        max_shards: u32,
    }
);

/// Everything its owner says about a keyspace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Keyspace {
    /// Unique in the cluster.
    pub name: String,
    /// `app`, `dataset`, `table`, `shuffle`.
    pub kind: Option<String>,
    /// How keys map to shards.
    pub sharding: Sharding,
    /// Which part of a key is sharded by.
    pub partition_key: Option<PartitionKey>,
    /// `eventual`, `exclusive`.
    pub ownership: Option<String>,
    /// Replicas of each shard.
    pub replicas: Option<u32>,
    /// Name of the placement policy.
    pub policy: Option<String>,
    /// `automatic`, `suggested`, `manual`.
    pub mode: Option<String>,
    /// `node`, `zone`, `zone-strict`, `rack`, `rack-strict`.
    pub spread: Option<String>,
    /// Where its shards may go.
    #[serde(default)]
    pub constraint: Constraint,
    /// How fast they may move.
    #[serde(default)]
    pub throttle: Throttle,
    /// When they split and merge.
    #[serde(default)]
    pub resharding: Resharding,
    /// Of a dataset: the replication that its settings said last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset_replication: Option<u32>,
    /// Whether its data lies on disk and outlives its processes.
    #[serde(default)]
    pub durable: bool,
}

impl From<&core::Keyspace> for Keyspace {
    fn from(keyspace: &core::Keyspace) -> Self {
        Keyspace {
            name: keyspace.name.to_string(),
            kind: Some(keyspace.kind.to_string()),
            sharding: keyspace.sharding.into(),
            partition_key: Some(keyspace.partition_key.into()),
            ownership: Some(keyspace.ownership.to_string()),
            replicas: Some(keyspace.replicas),
            policy: Some(keyspace.policy.clone()),
            mode: Some(keyspace.mode.to_string()),
            spread: Some(keyspace.spread.to_string()),
            constraint: (&keyspace.constraint).into(),
            throttle: (&keyspace.throttle).into(),
            resharding: (&keyspace.resharding).into(),
            dataset_replication: keyspace.dataset_replication,
            durable: keyspace.durable,
        }
    }
}

/// A word where one is given.
pub(super) fn word<T: std::str::FromStr<Err: std::fmt::Display>>(
    word: Option<String>,
    field: &str,
) -> Result<Option<T>, Malformed> {
    word.map(|word| word.parse()).transpose().at(field)
}

impl TryFrom<Keyspace> for core::Keyspace {
    type Error = Malformed;
    fn try_from(form: Keyspace) -> Result<Self, Malformed> {
        let sharding = form.sharding.try_into().inside("sharding")?;
        let default = core::Keyspace::new(form.name.parse().at("name")?, sharding);
        Ok(core::Keyspace {
            kind: word(form.kind, "kind")?.unwrap_or(default.kind),
            partition_key: form.partition_key.map_or(default.partition_key, Into::into),
            ownership: word(form.ownership, "ownership")?.unwrap_or(default.ownership),
            replicas: form.replicas.unwrap_or(default.replicas),
            policy: form.policy.unwrap_or_else(|| default.policy.clone()),
            mode: word(form.mode, "mode")?.unwrap_or(default.mode),
            spread: word(form.spread, "spread")?.unwrap_or(default.spread),
            constraint: form.constraint.try_into().inside("constraint")?,
            throttle: form.throttle.into(),
            resharding: form.resharding.into(),
            dataset_replication: form.dataset_replication,
            durable: form.durable,
            ..default
        })
    }
}
