//! When shards split, merge and get more replicas, as flags.

use clap::Args;
use partage_wire::json::Resharding;

/// What is not given stays as it is.
#[derive(Debug, PartialEq, Default, Args)]
#[command(next_help_heading = "When shards split and merge")]
pub struct ReshardingArgs {
    /// Split a shard above this size, and merge small ones; 0 = not by size [new keyspace: 536870912]
    #[arg(long, value_name = "BYTES")]
    split_bytes: Option<u64>,
    /// Split a shard above this many requests a second, and merge cold ones; 0 = not by load [new keyspace: 0]
    #[arg(long, value_name = "RATE")]
    split_requests_per_s: Option<f64>,
    /// Milliseconds that a load must stay above or below a threshold before the coordinator acts [new keyspace: 60000]
    #[arg(long, value_name = "MS")]
    window_ms: Option<u64>,
    /// In a shard above --split-requests-per-s, a key with more than this share of the requests gets its own shard
    /// [new keyspace: 0.5]
    #[arg(long, value_name = "SHARE")]
    hot_key_share: Option<f64>,
    /// Maximum number of replicas of a shard that is read too much and cannot be split; 0 = no extra [new keyspace: 0]
    #[arg(long, value_name = "COUNT")]
    max_replicas: Option<u32>,
    /// Minimum number of shards; merging stops at it [new keyspace: 1]
    #[arg(long, value_name = "COUNT")]
    min_shards: Option<u32>,
    /// Maximum number of shards; splitting stops at it [new keyspace: 4000000]
    #[arg(long, value_name = "COUNT")]
    max_shards: Option<u32>,
}

impl ReshardingArgs {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == ReshardingArgs::default()
    }

    /// What to ask for, where this is so now.
    pub fn over(&self, now: Resharding) -> Resharding {
        Resharding {
            split_bytes: self.split_bytes.unwrap_or(now.split_bytes),
            split_requests_per_s: self.split_requests_per_s.unwrap_or(now.split_requests_per_s),
            window_ms: self.window_ms.unwrap_or(now.window_ms),
            hot_key_share: self.hot_key_share.unwrap_or(now.hot_key_share),
            max_replicas: self.max_replicas.unwrap_or(now.max_replicas),
            min_shards: self.min_shards.unwrap_or(now.min_shards),
            max_shards: self.max_shards.unwrap_or(now.max_shards),
        }
    }
}
