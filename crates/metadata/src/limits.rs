//! Every limit of the metadata servers' drivers, with its reason.

use std::time::Duration;

/// A METADATA file grows by so many bytes at a time: many one-shard changes for one costly change of its length.
pub const STEP_BYTES: u32 = 64 << 10;

/// A file whose operations take fewer bytes is not written anew, however small its map is.
pub const SMALL_LOG_BYTES: u64 = 256 << 10;

/// Operations on one base before it is written anew: a map of 100,000 shards, some 8 MiB, then costs a few KiB
/// for each change, and a restart applies them in some milliseconds. Each server adds up to a quarter of its
/// own, so that not all of them write at once.
pub const OPERATIONS: u64 = 2_048;

/// Events waiting for the task of one keyspace. At the bound, callers wait.
pub const EVENTS: usize = 1_024;

/// Keyspaces of one server.
pub const KEYSPACES: usize = partage_core::limits::KEYSPACES;

/// How long a server may take to store a whole map. Beyond it counts as not stored.
pub const STORE: Duration = Duration::from_secs(5);

/// How long a server may take to store one operation, or to say what it has: well within a worker's lease, as a
/// coordinator that begins to lead renews none while it waits for this.
pub const STORE_OPERATION: Duration = Duration::from_secs(2);

/// How long a change may be prepared again after it was first: well within the time after which servers forget one
/// that no client speaks of (`partage_service::metadata::server::PENDING_MS`).
pub const AGAIN: Duration = Duration::from_secs(10);

/// Operations on their way to one server, and being stored by it for one sender: of as many keyspaces at once.
pub const STORES_IN_FLIGHT: usize = 64;

/// How long the coordination service may take. Beyond it the outcome counts as unknown.
pub const SWAP: Duration = Duration::from_secs(10);

/// How long a map may take to be fetched.
pub const FETCH: Duration = Duration::from_secs(60);

/// How long a question may take.
pub const ASK: Duration = Duration::from_secs(3);

/// Rest before a server that did not hear a notice is told again, first and at most: it doubles.
pub const TELL_AGAIN: Duration = Duration::from_millis(500);
/// See [`TELL_AGAIN`]. A server that is back should hear what it missed sooner than it looks at the head by itself.
pub const TELL_AGAIN_MOST: Duration = Duration::from_secs(10);

/// How long notices wait for a server that is not there. By then it has looked at the head by itself if it runs; and it
/// does so at once when it is started again.
pub const TELL_ABSENT: Duration = Duration::from_millis(2 * partage_service::metadata::server::REFRESH_MS);

/// Notices that wait to be heard. Each keyspace and receiver has one at most: a later one takes its place.
pub const NOTICES: usize = 65_536;

/// Notices on their way at once.
pub const TELLING: usize = 64;

/// Notices on their way to one server at once.
pub const TELLING_ONE: usize = 8;

/// Parts of a map on their way to a server that fetches it.
pub const PARTS: usize = 4;

/// Reads of the head before the outcome of a swap is reported as unknown.
pub const READS: usize = 4;

/// Questions that one request for discovery may hold: the partitions of one node.
pub const DISCOVERIES: usize = 100_000;

/// Rest before the watch of heads is begun again after it broke, half of it to all of it: a coordination service that
/// has just come back is not asked by all servers at once.
pub const WATCH_AGAIN: Duration = Duration::from_secs(2);

/// Rest before files that could not be opened are tried again, first and at most: it doubles. A leader waits for a map
/// for longer than the longest ([`AGAIN`]).
pub const OPEN_AGAIN: Duration = Duration::from_secs(1);
/// See [`OPEN_AGAIN`].
pub const OPEN_AGAIN_MOST: Duration = Duration::from_secs(8);

/// How often the log says of one keyspace that its files cannot be opened.
pub const OPEN_LOG_EVERY: Duration = Duration::from_secs(60);
