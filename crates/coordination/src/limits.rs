//! Every limit of this crate, with its reason.

use std::time::Duration;

/// Longest key: fits an indexed `VARBINARY` column of MySQL with room for the cluster's root.
pub const MAX_KEY_BYTES: usize = 512;

/// Conditions plus operations in one transaction: etcd's own default (`--max-txn-ops`).
pub const MAX_TRANSACTION_STEPS: usize = 128;

/// Shortest time-to-live of a session: under it a slow fsync or a garbage collection ends sessions.
pub const MIN_SESSION_TTL: Duration = Duration::from_millis(100);

/// Longest time-to-live: a dead owner's keys must not stay for days because of a typing error.
pub const MAX_SESSION_TTL: Duration = Duration::from_secs(3600);

/// A session is renewed this many times within its time-to-live, so that two losses are survived.
pub const RENEWALS_PER_TTL: u32 = 3;

/// Rest before a leader begins a broken watch again: it reads at regular times meanwhile.
pub const LEADER_WATCH_PAUSE: Duration = Duration::from_millis(100);

/// Entries in one page of a list, whatever the caller asks: bounds the answer's memory.
pub const MAX_PAGE_ENTRIES: usize = 1_000;

/// Embedded: largest value. A map of a million shards is written in parts below this.
pub const EMBEDDED_MAX_VALUE_BYTES: usize = 32 << 20;

/// Embedded: keys and values of one transaction. One record holds it, so it bounds a record too.
pub const EMBEDDED_MAX_TRANSACTION_BYTES: usize = 64 << 20;

/// Embedded: all keys and values together. They live in memory, and are read whole at start.
pub const EMBEDDED_MAX_LIVE_BYTES: usize = 1 << 30;

/// Embedded: sessions open at once. Each is a coordinator, or a node of a leaderless cluster.
pub const EMBEDDED_MAX_SESSIONS: usize = 10_000;

/// Embedded: requests waiting for the writer. At the bound, callers wait.
pub const EMBEDDED_MAX_WAITING: usize = 1_024;

/// Embedded: requests that share one record and one fsync: enough to hide the fsync's cost.
pub const EMBEDDED_MAX_BATCH_REQUESTS: usize = 256;

/// Embedded: a batch is closed once its transactions reach this; bounds the wait of the first in it.
pub const EMBEDDED_MAX_BATCH_BYTES: usize = 8 << 20;

/// Embedded: transactions remembered for watches. A watch further behind gets a resync (W6).
pub const EMBEDDED_HISTORY_TRANSACTIONS: usize = 1_024;

/// Embedded: bytes of keys and values remembered for watches.
pub const EMBEDDED_HISTORY_BYTES: usize = 16 << 20;

/// Embedded: the journal grows by this much at a time: one costly metadata fsync for thousands of commits.
pub const JOURNAL_STEP_BYTES: u64 = 1 << 20;

/// Embedded: largest step that a test or a setting may choose; all of a step is zeroed at once.
pub const MAX_STEP_BYTES: u32 = 64 << 20;

/// Embedded: below this, a journal is not compacted: it would cost more than reading it does.
pub const JOURNAL_COMPACT_BYTES: u64 = 4 << 20;

/// Embedded: bytes of entries in one record of a snapshot.
pub const SNAPSHOT_RECORD_BYTES: usize = 256 << 10;

/// Embedded: pause before a dead owner's keys are removed again after a full disk.
pub const FULL_DISK_PAUSE: Duration = Duration::from_secs(1);

/// MySQL: how often each handle looks for changes and for sessions that are over. Bounds how late a watch is.
pub const MYSQL_POLL: Duration = Duration::from_millis(100);

/// MySQL: largest value, if the server's `max_allowed_packet` allows it. A row is read whole.
pub const MYSQL_MAX_VALUE_BYTES: usize = 8 << 20;

/// MySQL: keys and values of one transaction; the server's undo log for it is about as large.
pub const MYSQL_MAX_TRANSACTION_BYTES: usize = 32 << 20;

/// MySQL: smallest `max_allowed_packet` we work with: the longest statement for the keys of one transaction fits.
pub const MYSQL_MIN_PACKET_BYTES: usize = 1 << 20;

/// MySQL: what a statement needs of a packet beside the value in it.
pub const MYSQL_PACKET_MARGIN_BYTES: usize = 4 << 10;

/// MySQL: values up to this go in one statement with others; each larger one in one of its own.
pub const MYSQL_SMALL_VALUE_BYTES: usize = 2 << 10;

/// MySQL: paths asked for in one statement, in bytes of its text: below the smallest packet.
pub const MYSQL_PATHS_TEXT_BYTES: usize = 256 << 10;

/// MySQL: connections of one handle for work. Transactions of one root wait for each other anyway.
pub const MYSQL_CONNECTIONS: usize = 4;

/// MySQL: connections of one handle for renewals and for looking, so that work cannot keep them waiting.
pub const MYSQL_HEARTBEAT_CONNECTIONS: usize = 2;

/// MySQL: a connection that rested longer is not used again: the server may be closing it.
pub const MYSQL_IDLE: Duration = Duration::from_secs(2);

/// MySQL: the server ends a silent connection after so many seconds, and with it the lock of a
/// client that was cut off in the middle of a transaction.
pub const MYSQL_SILENCE_SECONDS: u32 = 5;

/// MySQL: to connect to one server.
pub const MYSQL_CONNECT: Duration = Duration::from_secs(3);

/// MySQL: for one statement to be answered, or for a connection to be free.
pub const MYSQL_STATEMENT: Duration = Duration::from_secs(5);

/// MySQL: the server gives up waiting for a row lock after this many seconds; less than [`MYSQL_STATEMENT`].
pub const MYSQL_LOCK_WAIT_SECONDS: u32 = 2;

/// MySQL: attempts at what did not happen, before the caller gets the error.
pub const MYSQL_ATTEMPTS: u32 = 4;

/// MySQL: pause before the second attempt; grows by itself with each.
pub const MYSQL_ATTEMPT_PAUSE: Duration = Duration::from_millis(10);

/// MySQL: versions whose changes are remembered for watches. A watch further behind gets a resync (W6).
pub const MYSQL_HISTORY_VERSIONS: u64 = 1_024;

/// MySQL: the history is trimmed once in so many versions.
pub const MYSQL_TRIM_EVERY: u64 = 64;

/// MySQL: versions skipped after a start of the server: more than readers can have seen and the server lost.
pub const MYSQL_LIFE_GAP: u64 = 1 << 20;

/// MySQL: sessions open at once in one root.
pub const MYSQL_MAX_SESSIONS: usize = 10_000;

/// MySQL: sessions ended in one transaction; the rest follow in the next.
pub const MYSQL_SWEEP_SESSIONS: usize = 100;

/// etcd: largest value, and keys and values of one transaction. A server takes 1.5 MiB by default
/// (`--max-request-bytes`), of which the comparisons, the reads for a refusal and the root may take a third.
pub const ETCD_MAX_VALUE_BYTES: usize = 1 << 20;

/// etcd: an encoded request, as the server counts it. Past [`ETCD_MAX_VALUE_BYTES`] only with a very long root.
pub const ETCD_MAX_REQUEST_BYTES: usize = (3 << 19) - 512;

/// etcd: comparisons in one transaction (`--max-txn-ops`). One that needs more is checked in two steps.
pub const ETCD_MAX_COMPARES: usize = 128;

/// etcd: attempts at a transaction in two steps while others write, before it fails.
pub const ETCD_GUARDED_ATTEMPTS: usize = 16;

/// etcd: how many values of a key we read, from the latest back, to find out whether one of them is ours after an
/// answer that there is no room. Few writers' transactions are proposed together.
pub const ETCD_ROOM_LOOKS: usize = 16;

/// etcd: until a connection stands, TLS included.
pub const ETCD_CONNECT: Duration = Duration::from_secs(2);

/// etcd: until we send a read to the next server, or over a new connection.
pub const ETCD_ATTEMPT: Duration = Duration::from_secs(3);

/// etcd: until the outcome of a change counts as unknown. Over the server's own seven seconds (five, and two
/// elections), so that its own error arrives, if any.
pub const ETCD_REQUEST: Duration = Duration::from_secs(8);

/// etcd: rest between two pings of a connection. A server closes it at pings under five seconds apart.
pub const ETCD_KEEP_ALIVE: Duration = Duration::from_secs(6);

/// etcd: a ping that is not answered within this ends the connection.
pub const ETCD_KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(3);

/// etcd: bytes under way to us on one stream.
pub const ETCD_STREAM_WINDOW_BYTES: u32 = 2 << 20;

/// etcd: bytes under way to us on one connection: no stream may block the others.
pub const ETCD_CONNECTION_WINDOW_BYTES: u32 = 32 << 20;

/// etcd: keys in the first read of many, when nothing is known of their size: 32 MiB at most.
pub const ETCD_FIRST_CHUNK: usize = 32;

/// etcd: bytes that each later read of many should bring.
pub const ETCD_CHUNK_BYTES: usize = 4 << 20;

/// etcd: largest accepted answer: the first of many keys, each with the largest value, and some room.
pub const ETCD_MAX_ANSWER_BYTES: usize = 64 << 20;

/// etcd: a page of a list ends once it has this many bytes.
pub const ETCD_PAGE_BYTES: usize = 8 << 20;

/// etcd: bytes of changes that wait for a subscriber. One that is further behind gets a resync (W6).
pub const ETCD_WAITING_BYTES: usize = 4 << 20;

/// etcd: shortest and longest rest before a watch is begun again.
pub const ETCD_WATCH_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// ZooKeeper: largest request. Servers refuse more than 1 MiB minus one byte (`jute.maxbuffer`) by closing the
/// connection, so this is checked here, with room for what the client library adds.
pub const ZOOKEEPER_MAX_REQUEST_BYTES: usize = (1 << 20) - (4 << 10);

/// ZooKeeper: keys and values of one transaction; the rest of a request is for paths, rights and the znodes above.
pub const ZOOKEEPER_MAX_TRANSACTION_BYTES: usize = 896 << 10;

/// ZooKeeper: bytes of the largest value; with the longest key it fills a transaction.
pub const ZOOKEEPER_MAX_VALUE_BYTES: usize = ZOOKEEPER_MAX_TRANSACTION_BYTES - MAX_KEY_BYTES;

/// ZooKeeper: session of the connection that reads and writes. The client notices a silent link after two fifths.
pub const ZOOKEEPER_READING_TIMEOUT: Duration = Duration::from_secs(10);

/// ZooKeeper: how often a handle that has a session looks whether others' are over. Bounds how late they end.
pub const ZOOKEEPER_SESSION_LOOK: Duration = Duration::from_millis(200);

/// ZooKeeper: added to the time-to-live of another's session, as a share of it: clock rates differ.
pub const ZOOKEEPER_CLOCK_DRIFT: f64 = 0.01;

/// ZooKeeper: ephemeral keys that one session may have put: all of them are written with each renewal.
pub const ZOOKEEPER_MAX_SESSION_KEYS: usize = 1_000;

/// ZooKeeper: how long a call waits for a connection before it says that there is none.
pub const ZOOKEEPER_PATIENCE: Duration = Duration::from_secs(6);

/// ZooKeeper: how long a call waits for answers on a connection that lives. The client library waits for ever, also where the
/// answer to a request never comes; a whole tree is read in much less.
pub const ZOOKEEPER_ANSWER: Duration = Duration::from_secs(30);

/// ZooKeeper: tries of all servers, before a target counts as unreachable.
pub const ZOOKEEPER_CONNECT_ATTEMPTS: u32 = 3;

/// ZooKeeper: to find out why a server cannot be reached.
pub const ZOOKEEPER_PROBE: Duration = Duration::from_secs(1);

/// ZooKeeper: pause before something is read again after the connection broke.
pub const ZOOKEEPER_RETRY_PAUSE: Duration = Duration::from_millis(20);

/// ZooKeeper: readings of a tree that changes all the time, before an error.
pub const ZOOKEEPER_READ_ROUNDS: usize = 100;

/// ZooKeeper: how long a commit is retried after conflicts.
pub const ZOOKEEPER_CONTENTION_PATIENCE: Duration = Duration::from_secs(10);

/// ZooKeeper: half of the longest pause after the first conflict; it doubles five times.
pub const ZOOKEEPER_CONTENTION_PAUSE: Duration = Duration::from_millis(1);

/// ZooKeeper: znodes of which a handle remembers the state, to commit without reading.
pub const ZOOKEEPER_KNOWN_NODES: usize = 4_096;

/// ZooKeeper: touched keys remembered for one watch; with more, it reads its whole scope (W6).
pub const ZOOKEEPER_MAX_DIRTY_KEYS: usize = 1_000;

/// ZooKeeper: readings of the touched keys alone, before the whole scope is read.
pub const ZOOKEEPER_NARROW_READINGS: u32 = 4;

/// ZooKeeper: watches of one handle.
pub const ZOOKEEPER_MAX_WATCHES: usize = 1_000;

/// Gossip: how often a handle talks to three others.
pub const GOSSIP_INTERVAL: Duration = Duration::from_millis(250);

/// Gossip: how often the file of keys is read again.
pub const GOSSIP_KEYS_EVERY: Duration = Duration::from_secs(10);

/// Gossip: after how many of its usual intervals a silent node counts as dead.
pub const GOSSIP_SILENT_INTERVALS: f64 = 12.0;

/// Gossip: longer gaps than this do not count as usual.
pub const GOSSIP_MAX_INTERVAL: Duration = Duration::from_secs(1);

/// Gossip: intervals of a node that are remembered.
pub const GOSSIP_WINDOW: usize = 100;

/// Gossip: within this, a change, an end or a death is seen by all who are not cut off.
pub const GOSSIP_BOUND: Duration = Duration::from_secs(20);

/// Gossip: dead nodes and deleted keys are remembered for this long, so that none brings them back.
pub const GOSSIP_MEMORY: Duration = Duration::from_secs(3600);

/// Gossip: largest value. It is sent in hexadecimal, and one datagram must hold it.
pub const GOSSIP_MAX_VALUE_BYTES: usize = 8 << 10;

/// Gossip: keys that one handle publishes; every other handle keeps a copy.
pub const GOSSIP_MAX_KEYS: usize = 10_000;

/// The highest term that a leader may have: far above the terms of a restored cluster, which begin above
/// microseconds of Unix time, and below any eight letters. No election wrote a higher one, and to count on from it
/// would leave no further term.
pub const MAX_TERM: u64 = 1 << 60;
