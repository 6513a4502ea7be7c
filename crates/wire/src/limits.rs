//! Every limit of the forms, with its reason.

/// Largest message that either side of a stream takes. The orders of a node with 100,000 replicas fit; larger
/// maps are sent in parts ([`crate::map::in_parts`]).
pub const MESSAGE_BYTES: usize = 64 << 20;

/// Shards in one part of a map on the network: some hundred kilobytes, so that neither side holds a whole
/// map of a million shards as one message beside the map itself.
pub const SHARDS_IN_PART: usize = 4_096;

/// Longest address, path or URL that a node announces: as long as anything that browsers and servers take.
pub const ADDRESS_BYTES: usize = 2_048;

/// Longest sentence (a reason, a refusal) that is taken from the network; longer ones are cut.
pub const SENTENCE_BYTES: usize = 4_096;

/// Largest stored value: half of what ZooKeeper takes by default (1 MiB), and far below etcd's 1.5 MiB.
pub const VALUE_BYTES: usize = 512 << 10;

/// Most parts of one stored record: 32 MiB, a plan of some 400,000 changes. They go into one transaction,
/// which etcd bounds at 128 steps.
pub const PARTS: usize = 64;

/// Chunks of a new base that are written together with its head. More are written before it, as one
/// transaction would be too large.
pub const CHUNKS_WITH_HEAD: usize = 8;

/// A diff in more parts than this is stored as a new base instead, so that it fits a transaction.
pub const DIFF_PARTS: usize = 16;

/// Most diffs on one base: what a restart reads and applies one by one. Rare enough that writing the base
/// anew, which every shard that is just changing hands waits for, does not come once in each large plan.
pub const DIFFS: usize = 256;

/// Diffs of together fewer bytes than this are not worth a new base, however small the base is.
pub const SMALL_LOG_BYTES: usize = 64 << 10;
