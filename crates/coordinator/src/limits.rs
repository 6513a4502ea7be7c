//! Every limit of the coordinator: its name, its value, and why it is that value.

use partage_core::cluster::publication::Retention;

/// Calls waiting for the decision loop. Beyond this callers wait, which slows workers' beats down before memory
/// grows; ten thousand workers' beats of half a second fit.
pub const CALLS: usize = 16_384;

/// Calls taken into one batch, and so behind one durable transaction: enough to share the cost of the
/// disk, few enough that the first of them does not wait for long.
pub const BATCH: usize = 1_024;

/// Times that the cluster may ask to decide again at once before outside calls get a turn.
pub const ROUNDS: usize = 16;

/// What is kept for subscribers that are behind. Who is further behind in changes gets the whole map; the
/// number of shards bounds the memory where single changes are large; who missed the removal of a node keeps an
/// address that no map names.
pub const RETENTION: Retention = Retention { diffs: 1_024, shards: 200_000, forgotten: 1_024 };

/// Messages waiting on one worker's stream. Orders are differences against what was sent, so more than a
/// few are never needed.
pub const WORKER_MESSAGES: usize = 16;

/// Address checks and callbacks under way at once.
pub const CHECKS: usize = 64;

/// How long an address check or a callback may take, in milliseconds.
pub const CHECK_MS: u64 = 1_000;

/// Largest JSON body that is read, in bytes: room for a million short keys of a pre-split sample.
pub const BODY_BYTES: usize = 64 << 20;

/// Longest that a heartbeat over HTTP may ask to be held for news, in milliseconds.
pub const WAIT_MS: u64 = 30_000;

/// Changes of maps, and differences of addresses, that are kept as they are sent: all that those lack who are a
/// little behind. What is further behind is encoded anew.
pub const ENCODED_CACHE: usize = 64;

/// HTTP/2 pings on idle connections, and how long their answer may take, in milliseconds: without them a
/// connection across a healed partition hangs for ever.
pub const KEEP_ALIVE_MS: u64 = 5_000;

/// Streams on one HTTP/2 connection.
pub const STREAMS: u32 = 1_024;

/// Connections at once: the largest fleet of workers and routers that is measured, and some.
pub const CONNECTIONS: usize = 32_768;

/// Time-to-live of a coordinator's session, in milliseconds: how long a standby waits for a leader that was killed.
/// Three renewals fit; a pause of two seconds costs no leader its lead. A backend may have a longer shortest one.
pub const SESSION_MS: u64 = 3_000;

/// Default lease of workers where several coordinators stand by, in milliseconds: longer than the next leader
/// takes to be there (the session's time-to-live, twice that where ZooKeeper counts in its ticks, and a moment),
/// so that the loss of a leader costs no worker an exclusive shard.
pub const SHARED_LEASE_MS: u64 = 8_000;

/// Default silence after which a node is dead, where several coordinators stand by.
pub const SHARED_DEAD_AFTER_MS: u64 = 9_000;

/// How long ending the session may hold up a coordinator that stops, in milliseconds.
pub const GOODBYE_MS: u64 = 1_000;

/// Rest before it is looked again who leads, or a leader is asked again, in milliseconds.
pub const LOOK_AGAIN_MS: u64 = 100;

/// Milliseconds between two looks of a coordinator at its own key, beside what its watch says. One read each time; a
/// part of the maps is given to another coordinator after a minute without the key.
pub const PRESENCE_LOOK_MS: u64 = 3_000;

/// How long a request waits for somebody to lead, in milliseconds: longer than an election takes.
pub const LEADER_WAIT_MS: u64 = 15_000;

/// Whole maps that are encoded at once.
pub const WHOLE_MAPS_AT_ONCE: usize = 2;

/// Requests passed on to the leader at once. Their bodies count against the memory of the listener until they are answered.
pub const FORWARDED: usize = 1_024;

/// Longest rest before a backend that cannot be reached is tried again, in milliseconds; it begins with
/// [`RESTART_MS`] and doubles.
pub const RESTART_MOST_MS: u64 = 5_000;

/// How often due address checks are looked for, in milliseconds.
pub const CHECK_TICK_MS: u64 = 250;

/// Rest before a decision loop that ended with an error is started anew, in milliseconds: short against a lease, so
/// that a full disk does not cost the workers theirs.
pub const RESTART_MS: u64 = 500;

/// Lines on a page of a list when the question does not say, and the most that it may ask for: some
/// megabytes of JSON.
pub const PAGE: usize = 1_000;
/// See [`PAGE`].
pub const PAGE_MOST: usize = 10_000;

/// Bytes in one piece of a dump over gRPC: below the 4 MiB that clients take by default.
pub const DUMP_PIECE_BYTES: usize = 1 << 20;

/// Longest name of who asks, as for every other name.
pub const USER_BYTES: usize = partage_core::limits::NAME_BYTES;

/// Time-to-live of the session of a restore, in milliseconds: one that was cut off keeps the next one waiting that
/// long, and a busy second costs it nothing.
pub const RESTORE_SESSION_MS: u64 = 10_000;

/// Maps that one commit changes, where metadata servers keep them: each takes a condition and a put of the backend's
/// transaction, which has room for 128 of both.
pub const MAPS_AT_ONCE: usize = 32;

/// How often a leader looks whether a keyspace in quarantine can be read again, in milliseconds: everything is read for
/// it, and a person who has just written a key again waits for it.
pub const QUARANTINE_LOOK_MS: u64 = 2_000;

/// How long a change is prepared again that too few metadata servers have stored, in milliseconds: with one more try
/// still well below the lease of workers: a coordinator that starts prolongs none before its store is open. After half of it,
/// servers that do not answer are left out.
pub const PREPARE_MS: u64 = 3_000;

/// Shards that a leader encodes or copies beside its answers to workers, about a millisecond's work. More of them go to another
/// thread, and a commit of less need not wait for one.
pub const SHARDS_ON_LOOP: usize = 1_024;

/// Rest before a change that too few metadata servers have stored is prepared again, in milliseconds.
pub const PREPARE_AGAIN_MS: u64 = 50;

/// How often the leader looks whether the maps are kept by as many servers as they should be, in milliseconds.
pub const UPKEEP_MS: u64 = 5_000;

/// A commit that took that long is a slow one: calls that came meanwhile are taken before the next one begins.
pub const SLOW_COMMIT: std::time::Duration = std::time::Duration::from_millis(100);

/// How often a leader whose disk is full looks whether there is room again, in milliseconds.
pub const ROOM_AGAIN_MS: u64 = 1_000;

/// How much more room a leader looks for than its commit needs, in bytes: the backend keeps something beside the values,
/// and the next commit needs some room, too.
pub const ROOM_MARGIN_BYTES: usize = 4 << 10;

/// How often a leader stores what has happened since, in milliseconds: what a leader that is killed takes with it.
pub const EVENTS_WRITE_MS: u64 = 2_000;

/// Events that one key holds, in bytes: it is written again with each of them, so it is little beside a map.
pub const EVENTS_SEGMENT_BYTES: usize = 32 << 10;

/// Keys that hold events: 4 MiB in all, room for twice as many as are kept by default.
pub const EVENTS_SEGMENTS: u16 = 128;

/// Keys with events that are written at once: with every other thing that a transaction may have to hold, 256 KiB.
pub const EVENTS_SEGMENTS_AT_ONCE: usize = 8;

/// Keys with events that are deleted at once: half of what a transaction takes.
pub const EVENTS_DELETED_AT_ONCE: usize = 64;
