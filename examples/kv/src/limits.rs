//! Every limit of the example, with its reason.

use std::time::Duration;

/// Longest value: small enough that one write stalls no other.
pub const VALUE_BYTES: usize = 1 << 20;

/// How long requests under way may go on when the node ends.
pub const DRAIN: Duration = Duration::from_secs(10);

/// Longest key: it has to fit into the path of a request.
pub const KEY_BYTES: usize = 8 << 10;

/// Records are sent in pieces of about this size, so that a copy holds the shard's lock only for moments.
pub const PIECE_BYTES: usize = 256 << 10;

/// Longest body of records that is taken: one piece and the record that went over it.
pub const IMPORT_BYTES: usize = PIECE_BYTES + VALUE_BYTES + KEY_BYTES + 64;

/// A file of a durable replica grows by so much at a time. A node may have thousands of them.
pub const STEP_BYTES: u32 = 16 << 10;

/// How long a follower may take for one write before the leader answers without it.
pub const REPLICATE: Duration = Duration::from_millis(300);

/// How long a peer that sends records may be silent.
pub const SILENCE: Duration = Duration::from_secs(3);
