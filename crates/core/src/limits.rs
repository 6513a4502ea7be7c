//! Every limit that `core` enforces: its name, its value, and why it is that value.

/// Longest key, in bytes. Room for any path or composite key; small enough that a map of a million
/// boundaries stays in memory whatever a user does.
pub const KEY_BYTES: usize = 4096;

/// Longest name of a keyspace, node, zone, label or partition, in bytes: fits a DNS label path, a file
/// name on every file system, and a metric label.
pub const NAME_BYTES: usize = 255;

/// Most replicas of one shard. Beyond this more replicas cost more than they carry; a read-hot shard
/// should be split or isolated first.
pub const REPLICAS: usize = 64;

/// Most shards in one keyspace: the largest map that is measured (see `bench/`), times four.
pub const SHARDS: usize = 4_000_000;

/// Most nodes in one cluster: the largest fleet that is measured, times four.
pub const NODES: usize = 40_000;

/// Most keyspaces in one cluster. Each has a planner run of its own.
pub const KEYSPACES: usize = 1_000;

/// Most labels on one node.
pub const LABELS: usize = 64;
