//! Every limit of this crate, with its reason.

use std::time::Duration;

/// Longest key: fits an indexed `VARBINARY` column of MySQL with room for the cluster's root.
pub const MAX_KEY_BYTES: usize = 512;

/// Conditions plus operations in one transaction: etcd's own default (`--max-txn-ops`).
pub const MAX_TRANSACTION_STEPS: usize = 128;

/// Shortest time-to-live of a session: under it a slow fsync or a garbage collection ends sessions.
pub const MIN_SESSION_TTL: Duration = Duration::from_millis(100);

/// Longest time-to-live: a dead owner's keys must not hang around for days because of a typing error.
pub const MAX_SESSION_TTL: Duration = Duration::from_secs(3600);

/// A session is renewed this many times within its time-to-live, so that two losses are survived.
pub const RENEWALS_PER_TTL: u32 = 3;

/// Entries in one page of a list, whatever the caller asks: bounds the answer's memory.
pub const MAX_PAGE_ENTRIES: usize = 1_000;
