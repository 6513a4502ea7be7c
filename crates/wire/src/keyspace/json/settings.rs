//! Keyspaces as JSON: what is left out has its default.

use crate::Malformed;
use crate::json::{FixedWord, PartitionKey, Sharding};
use crate::malformed::{At, Inside, word};
use partage_core::keyspace as core;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The nodes that shards may be on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Constraint {
    /// The only nodes that the shards may be on; empty = any node.
    pub pinned: Vec<String>,
    /// The nodes that the shards must not be on.
    pub excluded: Vec<String>,
    /// The labels that a node must have, all of them, to hold the shards; empty = no label.
    pub labels: Vec<String>,
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
    /// The limits on how fast shards may move, and on how long a load may take. An absent field has its default.
    Throttle {
        /// The highest number of moves under way at once in the keyspace; default 256.
        moves: u32,
        /// The highest number of moves under way at once into or out of one node; default 16.
        moves_per_node: u32,
        /// The highest number of first loads and repairs under way at once into one node; default 512.
        loads_per_node: u32,
        /// The number of bytes a second that moves may start to copy; 0 = no limit, which is the default.
        bytes_per_s: u64,
        /// The time for which a node may load one replica before the coordinator gives it up there, in milliseconds;
        /// default 600000.
        load_ms: u64,
        /// The time for which the coordinator waits for a durable replica of a dead node before another node copies
        /// the shard, in milliseconds; default 300000.
        replace_after_ms: u64,
    }
);

numbers!(
    /// The thresholds at which shards split and merge. An absent field has its default.
    Resharding {
        /// The size above which a shard splits, in bytes; 0 = shards never split by size; default 536870912.
        split_bytes: u64,
        /// The number of requests a second above which a shard splits; 0 = shards never split by load, which is the
        /// default.
        split_requests_per_s: f64,
        /// The time for which a load must stay above or below its threshold, in milliseconds; default 60000.
        window_ms: u64,
        /// The share of its shard's requests above which the coordinator isolates a key, if the shard is above
        /// `split_requests_per_s`; above 0 and at most 1; default 0.5.
        hot_key_share: f64,
        /// The highest number of replicas of a shard with many reads. A value up to the keyspace's `replicas` gives
        /// no extra replicas; default 0.
        max_replicas: u32,
        /// The lowest number of shards that merges may leave; default 1.
        min_shards: u32,
        /// The highest number of shards that splits may create; default 4000000.
        max_shards: u32,
    }
);

/// The settings of a keyspace, as its owner gives them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Keyspace {
    /// The name of the keyspace, unique in the cluster.
    pub name: String,
    /// The kind of the keyspace: `app`, `dataset`, `table`, `shuffle`; absent = `app`.
    #[schema(value_type = Option<String>)]
    pub kind: Option<FixedWord<core::KeyspaceKind>>,
    /// The rule by which keys map to shards.
    pub sharding: Sharding,
    /// The part of a key that the sharding uses; absent = the whole key.
    pub partition_key: Option<PartitionKey>,
    /// The ownership of shards: `eventual`, `exclusive`, or `replicated`, which is for keyspaces of kind `table`; absent =
    /// `exclusive`.
    #[schema(value_type = Option<String>)]
    pub ownership: Option<FixedWord<core::Ownership>>,
    /// The number of replicas of each shard, 1 to 64; absent = 1.
    pub replicas: Option<u32>,
    /// The name of the placement policy; absent = the default policy.
    pub policy: Option<String>,
    /// The rebalancing mode: `automatic`, `suggested`, `manual`; absent = `automatic`.
    #[schema(value_type = Option<String>)]
    pub mode: Option<FixedWord<core::Mode>>,
    /// The domain over which the replicas of a shard are spread: `node`, `zone`, `zone-strict`, `rack`,
    /// `rack-strict`; absent = `zone`.
    #[schema(value_type = Option<String>)]
    pub spread: Option<FixedWord<core::Spread>>,
    /// The nodes that the shards may be on; absent = any node.
    #[serde(default)]
    pub constraint: Constraint,
    /// The limits on how fast shards may move.
    #[serde(default)]
    pub throttle: Throttle,
    /// The thresholds at which shards split and merge.
    #[serde(default)]
    pub resharding: Resharding,
    /// For a dataset: the replication that its settings said last; absent for other keyspaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset_replication: Option<u32>,
    /// Whether the data of the replicas lies on disk and outlives their processes; absent = false.
    #[serde(default)]
    pub durable: bool,
    /// In a replicated keyspace: the number of replicas that must have stored a write before it is acknowledged, 1 to
    /// `replicas`; absent = 0, as in every other keyspace.
    #[serde(default, skip_serializing_if = "crate::json::is_zero")]
    pub min_in_sync: u32,
    /// For a table: the values that its rows may have: `bytes`, or `json`, by which a write of another value is refused;
    /// absent = `bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub values: Option<FixedWord<core::RowValues>>,
    /// For a table: the time for which its change feed keeps changes, in milliseconds, 1000 to 604800000; absent = 0, and it has
    /// no feed.
    #[serde(default, skip_serializing_if = "crate::json::is_zero_ms")]
    pub feed_ms: u64,
}

impl Keyspace {
    /// A keyspace that has its default for every other setting.
    pub fn new(name: &str, sharding: Sharding) -> Keyspace {
        Keyspace {
            name: name.to_owned(),
            kind: None,
            sharding,
            partition_key: None,
            ownership: None,
            replicas: None,
            policy: None,
            mode: None,
            spread: None,
            constraint: Constraint::default(),
            throttle: Throttle::default(),
            resharding: Resharding::default(),
            dataset_replication: None,
            durable: false,
            min_in_sync: 0,
            values: None,
            feed_ms: 0,
        }
    }

    /// Whether it is of that kind, in an answer, which says the kind.
    pub fn is_of(&self, kind: core::KeyspaceKind) -> bool {
        self.kind.as_ref().is_some_and(|said| said.is(kind))
    }
}

impl From<&core::Keyspace> for Keyspace {
    fn from(keyspace: &core::Keyspace) -> Self {
        Keyspace {
            name: keyspace.name.to_string(),
            kind: Some(keyspace.kind.into()),
            sharding: keyspace.sharding.into(),
            partition_key: Some(keyspace.partition_key.into()),
            ownership: Some(keyspace.ownership.into()),
            replicas: Some(keyspace.replicas),
            policy: Some(keyspace.policy.clone()),
            mode: Some(keyspace.mode.into()),
            spread: Some(keyspace.spread.into()),
            constraint: (&keyspace.constraint).into(),
            throttle: (&keyspace.throttle).into(),
            resharding: (&keyspace.resharding).into(),
            dataset_replication: keyspace.dataset_replication,
            durable: keyspace.durable,
            min_in_sync: keyspace.min_in_sync,
            values: (keyspace.values != core::RowValues::Bytes).then(|| keyspace.values.into()),
            feed_ms: keyspace.feed_ms,
        }
    }
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
            min_in_sync: form.min_in_sync,
            values: word(form.values, "values")?.unwrap_or(default.values),
            feed_ms: form.feed_ms,
            ..default
        })
    }
}
