//! Every limit of the driver, with its reason.

/// Messages of other replicas that may wait for one replica; beyond that they are dropped, as a network may do. Some appends of
/// each peer, and the replies to those.
pub const PACKETS_WAITING: usize = 1_024;

/// Bytes of entries and rows in these; one message may always wait.
pub const PACKET_BYTES_WAITING: usize = 16 << 20;

/// Writes that may wait for one replica before its machine has seen them; beyond that they are refused.
pub const WRITES_WAITING: usize = 4_096;

/// Bytes of these; one write may always wait.
pub const WRITE_BYTES_WAITING: usize = 16 << 20;

/// Reads that may wait for one replica; beyond that they are refused.
pub const READS_WAITING: usize = 4_096;

/// Commands of the owner that may wait for one replica: it gives few, and waits for most.
pub const COMMANDS_WAITING: usize = 16;

/// Outcomes that are kept beyond those of the writes that may be in flight: of first entries of an epoch.
pub const OUTCOMES_BEYOND: usize = 64;

/// Entries of each index by time that are kept in memory when it is read from the store: so many rows end, or outcomes are
/// forgotten, before the store is read again.
pub const TIMES_KEPT: usize = 1_024;

/// Bytes of one stored part of an outcome: what a store takes as a value.
pub const ANSWER_PART_BYTES: usize = 1 << 20;

/// Bytes of rows in one chunk of a snapshot: large against a round trip, small against what may wait.
pub const CHUNK_BYTES: usize = 256 << 10;

/// Snapshots that a node sends at a time: each keeps files and memory of its store.
pub const SNAPSHOTS_SENT: usize = 4;

/// A chunk of a snapshot that is not acknowledged is sent again after so long.
pub const CHUNK_RESEND_MS: u64 = 500;

/// A snapshot of which nothing was heard for so long is given up.
pub const SNAPSHOT_PATIENCE_MS: u64 = 10_000;

/// How often a replica notes in the log what is committed. The note spares a restart some waiting and is a record of its own.
pub const NOTE_MS: u64 = 1_000;

/// The longest wait of a loop, in milliseconds: condition variables stand still while the machine sleeps.
pub const LOOK_MS: u64 = 1_000;
