//! Every limit of the driver and its service, with its reason.

use partage_core::limits::BATCH_OPERATIONS;
use std::time::Duration;

/// Messages of other replicas that may wait for one replica; beyond that they are dropped, as a network may do. Some appends of
/// each peer, and the replies to those.
pub const PACKETS_WAITING: usize = 1_024;

/// Bytes of entries and rows in the messages that may wait for one replica; one message may always wait.
pub const PACKET_BYTES_WAITING: usize = 16 << 20;

/// Writes that may wait for one replica before its machine has seen them; beyond that they are refused.
pub const WRITES_WAITING: usize = 4_096;

/// How long writes may be held while the log syncs, in milliseconds. A disk that is slower than this gets several groups.
pub const HOLD_MS: u64 = 5;

/// Writes that may be held: with these the machine's bounds on what is in flight decide.
pub const WRITES_HELD: usize = 1_024;

/// Bytes of the writes that may be held: with these, too, the machine's bounds decide.
pub const WRITE_BYTES_HELD: usize = 4 << 20;

/// Bytes of the writes that may wait for one replica; one write may always wait.
pub const WRITE_BYTES_WAITING: usize = 16 << 20;

/// Reads that may wait for one replica; beyond that they are refused.
pub const READS_WAITING: usize = 4_096;

/// How long a child's replica waits after a store failed before it takes its base anew.
pub const BASE_RETRY_MS: u64 = 1_000;

/// Chunks of a parent's store that are read for one chunk of a child's at most: of a parent of which a child has little, most
/// rows are not for it.
pub const CHUNKS_LOOKED_AT: usize = 16;

/// So often a thread that has added to the queue of a replica serves it, while more comes; then the thread of the replica does.
pub const SERVED_HERE_AGAIN: usize = 4;

/// Replicas with packets in one message of a stream that the thread which received it serves; of more, their own threads do,
/// which are several.
pub const REPLICAS_SERVED_HERE: usize = 16;

/// Replicas with records in one group of the log that the thread of the log serves; of more, their own threads do.
pub const REPLICAS_SERVED_BY_LOG: usize = 2;

/// A replica that took so long to apply entries, and [`SLOW_ENTRY`] for each, waited for its disk: to write to memory takes some
/// microseconds.
pub const SLOW_APPLY: Duration = Duration::from_micros(250);

/// What each entry may take beyond [`SLOW_APPLY`].
pub const SLOW_ENTRY: Duration = Duration::from_micros(20);

/// A replica that waited so for its disk ([`SLOW_APPLY`]) is served by its own thread for so long, in milliseconds.
pub const SLOW_MS: u64 = 1_000;

/// Commands of the service that may wait for one replica: it gives few, and waits for most.
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

/// Bytes of rows that a store which is being filled gathers for one run: one such is in memory for each snapshot that a node
/// takes, of which other nodes send [`SNAPSHOTS_SENT`] each.
pub const RUN_BYTES: usize = 4 << 20;

/// Snapshots that a node sends at a time: each keeps files and memory of its store.
pub const SNAPSHOTS_SENT: usize = 4;

/// A chunk of a snapshot that is not acknowledged is sent again after so long.
pub const CHUNK_RESEND_MS: u64 = 500;

/// A snapshot of which nothing was heard for so long is given up by a follower; its leader sends it no more, so that others may
/// be sent.
pub const SNAPSHOT_PATIENCE_MS: u64 = 10_000;

/// So long a leader keeps a snapshot of which it hears nothing, for a follower whose process starts again: a node with a thousand
/// shards starts in some ten seconds.
pub const SNAPSHOT_KEPT_MS: u64 = 60_000;

/// Snapshots that a node keeps so at a time: each keeps files and memory of its store.
pub const SNAPSHOTS_KEPT: usize = 4;

/// Copies of rows give way to clients while one of them has written within so long, in milliseconds.
pub const COPIES_GIVE_WAY_MS: u64 = 100;

/// Bytes of changes that have come to wait on the disk of a child, since none waited, while the snapshot of a parent is copied;
/// beyond that it begins anew. At 8 MB/s they come to that in half an hour.
pub const ASIDE_BYTES: u64 = 16 << 30;

/// Bytes of rows that one step of joining two shards copies, before others get their turn.
pub const JOIN_COPY_BYTES: usize = 1 << 20;

/// How often a replica notes in the log what is committed. The note spares a restart some waiting and is a record of its own.
pub const NOTE_MS: u64 = 1_000;

/// Bytes of changes that may wait while the rows of merged shards are copied; beyond that all is joined when they have closed.
pub const JOIN_PENDING_BYTES: usize = 64 << 20;

/// Changes of so many bytes go together into the store of a merged shard that is not open yet.
pub const JOIN_GROUP_BYTES: usize = 256 << 10;

/// So many bytes of changes are added to it at a time, and its parents may not close while more wait.
pub const JOIN_STEP_BYTES: usize = 1 << 20;

/// The stores of a shard that forms are flushed with so many bytes in memory: what is not flushed when the parents have closed,
/// requests wait for.
pub const BASE_FLUSH_BYTES: usize = 4 << 20;

/// Bytes of outcomes that are joined in memory when the parents have closed; beyond that all is joined then.
pub const JOIN_REST_BYTES: usize = 32 << 20;

/// How often a replica publishes its figures for metrics.
pub const FIGURES_MS: u64 = 1_000;

/// Replicas of which the metrics of a node tell each by itself: those with the most requests.
pub const BUSIEST: usize = 20;

/// How often a leader without writes moves the clock of its shard on while rows end: so much later than it ends a row may go.
pub const CLOCK_MS: u64 = 50;

/// How often a node looks at its read replicas: whether they get on, and whether they are fresh enough.
pub const READ_REPLICAS_LOOK: Duration = Duration::from_secs(1);

/// How often a node looks whether the replicas of children get on. The coordinator hears of a step after this, and a beat: with a
/// `load_ms` of a few seconds nearly all of that is left for the step itself.
pub const CHILDREN_LOOK: Duration = Duration::from_millis(200);

/// A read replica whose rows are older than this answers nothing any more, as its leader sends it nothing: well above the time in
/// which another leader begins, with default settings.
pub const READ_REPLICA_AGE_MS: u64 = 30_000;

/// The longest wait of a loop, in milliseconds: condition variables stand still while the machine sleeps.
pub const LOOK_MS: u64 = 1_000;

/// Packets without chunks that may wait for one other node; what does not fit is dropped. A leader sends few to each follower at
/// a time, but a node may lead some thousand shards.
pub const PEER_PACKETS: usize = 16_384;

/// Bytes of packets without chunks that may wait for one other node. On a line of 1 Gbit/s they take 130 ms: what waits for
/// longer is nearly so late that it is sent again.
pub const PEER_PACKET_BYTES: usize = 16 << 20;

/// Chunks of snapshots that may wait for one other node: one of each that is sent, and one that is sent again.
pub const PEER_CHUNKS: usize = 2 * SNAPSHOTS_SENT;

/// Bytes of chunks that may wait for one other node: each has at most [`CHUNK_BYTES`] and one row of the largest kind.
pub const PEER_CHUNK_BYTES: usize = 8 << 20;

/// Bytes that a packet counts for beside its entries and rows: the names of replica and keyspace, and the numbers of a message.
pub const PACKET_AROUND_BYTES: usize = 512;

/// Bytes that a row of a chunk counts for beside its key and its value.
pub const ROW_AROUND_BYTES: usize = 16;

/// Bytes of packets in one message of a stream, unless it is one that is larger. As large as a chunk, so that neither kind of
/// packets waits long for the other.
pub const BATCH_BYTES: usize = 256 << 10;

/// The largest message of a stream. The largest entry of a log, the largest append and the largest chunk all fit, none of which
/// has much more than 1 MiB. A packet that does not fit is not sent: it would break the stream each time.
pub const MESSAGE_BYTES: usize = 4 << 20;

/// Streams of packets that a node accepts at a time: one of each other node, and those whose end it has not noticed yet.
pub const STREAMS: usize = 1_024;

/// How long a stream may take for its first message, which is sent with its head.
pub const OPENING_MS: u64 = 5_000;

/// A node that has started on a full disk looks so often whether there is room.
pub const ROOM_LOOK: Duration = Duration::from_secs(1);

/// A replica with fewer bytes in memory than this is closed without a flush, as a flush takes some ten milliseconds of the disk,
/// and a node that is registered anew closes a thousand replicas at once. The log keeps their entries, which are applied again
/// when the replica is opened: some milliseconds. When the log wants the room, they are flushed.
pub const CLOSE_FLUSH_BYTES: usize = 256 << 10;

/// How often a node reads the clock by which rows end, so that it follows the system's.
pub const CLOCK_LOOK: Duration = Duration::from_secs(1);
/// A node says in its log that its clock and the system's are farther from each other than this.
pub const CLOCK_FAR_SECONDS: f64 = 1.0;

/// How often a node looks whether its log gets on.
pub const LOG_LOOK: Duration = Duration::from_secs(1);

/// A log that has been writing the same group for so long stores nothing: as long as a leader is patient with such a follower
/// (`follower_stall_ms`).
pub const LOG_STALL: Duration = Duration::from_secs(5);

/// After so long with the same group a node refuses writes: other nodes lead by then, if they can.
pub const LOG_STALL_REFUSES: Duration = Duration::from_secs(10);

/// A store that found no room for its rows tries again after so long, in milliseconds, as the log does.
pub const FLUSH_AGAIN_MS: u64 = 1_000;

/// How long a request waits for a leader that has just changed to begin: above the time in which the promises to a former leader
/// end and a coordinator replaces a follower that has died, with default settings.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// For how long tries of a write with an idempotency key begin that may have been carried out: as long as routers and nodes of
/// HTTP do (`RetryPolicy::default`), above the time in which a stopped node is found silent, or has no answer ([`SHARD_ANSWER`]).
pub const REPEATS: Duration = Duration::from_secs(10);

/// How long a read waits at a follower for what is as new as the read wants. A leader sends something to each follower every
/// tenth of a second, and asks a follower out that has not replied for half a second.
pub const FRESH_PATIENCE: Duration = Duration::from_millis(500);

/// How long a request rests at least before it is sent again, while the shard changes hands, which takes some milliseconds.
pub const FIRST_RETRY: Duration = Duration::from_millis(2);

/// How long such a request rests at most before it is sent again.
pub const LAST_RETRY: Duration = Duration::from_millis(50);

/// How long a request for several shards rests before it looks again, if no leader begins before that.
pub const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A leader with less than this looks for no key that halves its rows: a shard so small is not cut for its size.
pub const MEDIAN_BYTES: u64 = 64 << 10;

/// A leader looks for such a key again when the size of its shard has changed by one part in so many.
pub const MEDIAN_CHANGE: u64 = 8;

/// Entries of an index of which the middle row is taken, where the middle of a store is in an index.
pub const MEDIAN_ENTRIES: usize = 101;

/// How long requests in flight have when a node ends.
pub const DRAIN: Duration = Duration::from_secs(5);

/// How long the listener may take to end beyond that before the process goes on without it.
pub const SERVER_END: Duration = Duration::from_secs(6);

/// Rows on one page of a scan, whatever the request asks for: those of small values take well under a millisecond.
pub const SCAN_ROWS: usize = 1_000;

/// Bytes of keys and values that one page of a scan reads from the store, unless its first row alone has more: rows that are
/// not on the page, as their time has come, count too. Other replicas of the thread wait meanwhile.
pub const SCAN_BYTES: usize = 1 << 20;

/// Rows that one page of a scan looks at: where many rows have ended and no write has removed them yet, a page has few rows.
pub const SCAN_LOOKS: usize = 4_096;

/// Shards that one page of a scan of a table asks, one after the other: where shards have few rows, a page fills from several.
pub const SCAN_SHARDS: usize = 16;

/// Keys of one multi-get, and rows of one multi-put: as many as a batch has operations.
pub const BULK_KEYS: usize = BATCH_OPERATIONS;

/// Bytes of keys and values in one multi-put, and of values in the answer to one multi-get; one row may always be in it.
pub const BULK_BYTES: usize = 4 << 20;

/// Bytes of the body of a request for several rows: [`BULK_BYTES`] in base64, and what is around a thousand rows.
pub const BULK_BODY_BYTES: usize = 8 << 20;

/// Operations of a batch whose answer has the row as it was: 32 MiB of values at most, which the replica gathers in memory.
pub const BATCH_FORMER_ROWS: usize = 32;

/// Bytes of what another node answers to a request for several rows: [`BATCH_FORMER_ROWS`] of the longest values, and what is
/// around them.
pub const BULK_ANSWER_BYTES: usize = (BATCH_FORMER_ROWS + 8) << 20;

/// Other nodes that are asked at a time for one request for several rows. Each answer has [`BULK_BYTES`] of values at most.
pub const BULK_NODES: usize = 8;

/// Rows that a node reads at a time for one multi-get: each has 1 MiB at most.
pub const BULK_READS: usize = 16;

/// Rows that a node writes at a time for one multi-put: those of one shard share a synced write of the log.
pub const BULK_WRITES: usize = 256;

/// Bytes of one message of a gRPC client: [`BULK_BYTES`] of keys and values, and what is around a thousand rows.
pub const GRPC_MESSAGE_BYTES: usize = 5 << 20;

/// Rows that the answer to a load names as not known to be written.
pub const LOAD_FAILURES: usize = 1_000;

/// Bytes of keys and sentences in the list of such rows.
pub const LOAD_FAILURE_BYTES: usize = 1 << 20;

/// How long another node may take for its part of a page: it waits for [`PATIENCE`] itself, and then sends the page.
pub const SHARD_ANSWER: Duration = Duration::from_secs(8);

/// Bytes of another node's part of a page: [`SCAN_BYTES`] and one row beyond in base64, with versions and names around a
/// thousand rows.
pub const SHARD_ANSWER_BYTES: usize = 8 << 20;

/// Idle connections to each other node that are kept for scans.
pub const PEER_CONNECTIONS_IDLE: usize = 8;

/// Snapshots of shards that a node keeps for those who read them page by page. Each keeps the rows in memory that were not
/// flushed when it was made (some MiB), and run files that compaction would have removed.
pub const SNAPSHOTS_PINNED: usize = 8;

/// A snapshot of which no reader has asked anything for so long is forgotten: a reader that writes what it has read elsewhere
/// may be slow, one that has gone must not hold files.
pub const SNAPSHOT_IDLE: Duration = Duration::from_secs(120);

/// A snapshot is forgotten after so long in any case. At 20 MB/s a shard of 400 GB is read in that time.
pub const SNAPSHOT_LIFE: Duration = Duration::from_secs(6 * 3_600);

/// Reads of snapshots at a time on a node: each has a thread for some milliseconds, and other requests want the disk too.
pub const SNAPSHOT_READS: usize = 2;

/// Requests with rows of a backup that a node carries out at a time; others wait.
pub const RESTORE_REQUESTS: usize = 4;

/// Rows of one such request that are written at a time: enough for the leaders to write them in large groups.
pub const RESTORE_WRITES: usize = 256;

/// Bytes of one such request: as many as a write may have, and a row of the largest kind with what is around it.
pub const RESTORE_BYTES: usize = BODY_BYTES;

/// A step of an index that is built or dropped is logged again when it was not applied for so long: the machine has refused it,
/// or followers are slow.
pub const INDEX_REPEAT_MS: u64 = 1_000;

/// Shards of a table that are asked at a time about its indexes, and for a page of one.
pub const INDEX_SHARDS: usize = 8;

/// Shards that a page of an index asks one after the other, where the order of its rows does not matter. A page of rare rows is
/// given with fewer rows than it may have.
pub const INDEX_WALK_SHARDS: usize = 32;

/// Bytes of the body of a request about an index: a name, a path, or the bounds of a query.
pub const INDEX_BODY_BYTES: usize = 64 << 10;

/// Bytes of keys and values of a page of an index: as of one shard's page, and a row of the largest kind.
pub const INDEX_PAGE_BYTES: usize = SCAN_BYTES;

/// Records that one step of a check reads: some milliseconds of a thread, which has stores to flush.
pub const CHECK_STEP_RECORDS: usize = 4_096;

/// Bytes of records that one step of a check reads.
pub const CHECK_STEP_BYTES: usize = 1 << 20;

/// Checks of replicas that a node keeps, under way and done. Each has some hundred KiB, and one that is under way keeps files.
pub const CHECKS_KEPT: usize = 32;

/// After so long the result of a check is forgotten, in milliseconds.
pub const CHECK_LIFE_MS: u64 = 120_000;

/// Shards that one request to check a table looks at, one after the other.
pub const CHECK_SHARDS: usize = 16;

/// How long one request to check a table takes before it answers with what it has: below the time that a client waits.
pub const CHECK_TIME: Duration = Duration::from_secs(10);

/// How long the replicas of one shard have to sum up what they have, and the same again if one of them has not. 400 MB are read
/// in much less, and the last shard of a request ends before its client waits no longer.
pub const CHECK_PATIENCE: Duration = Duration::from_secs(9);

/// Ranges that a check tells apart of a shard have about this many rows, or more in a large shard; a power of two.
pub const CHECK_RANGE_ROWS: u64 = 256;

/// Bytes of the body of any request to a node.
pub const BODY_BYTES: usize = partage_core::limits::BATCH_BYTES + (64 << 10);

/// How much later than its time is over a change of a feed may go while no client writes: so one entry removes many.
pub const FEED_REMOVAL_MS: u64 = 1_000;

/// Bytes of keys and values on one page of a feed, unless its first change alone has more.
pub const FEED_BYTES: usize = SCAN_BYTES;

/// How long a request may wait for changes: below what clients and what stands between give up after.
pub const FEED_WAIT: Duration = Duration::from_secs(25);

/// How soon a stream of changes that has none may give a page all the same: a client that wants it sooner would ask all leaders
/// again and again.
pub const FEED_IDLE: Duration = Duration::from_millis(100);

/// How long another node is left to wait for changes of its shards, before it says that there are none: less than
/// [`SHARD_ANSWER`].
pub const FEED_NODE_WAIT: Duration = Duration::from_secs(5);

/// How long a node reads on through changes that are not the reader's, of rows that were in another shard, also where the reader
/// does not wait.
pub const FEED_READ_ON: Duration = Duration::from_secs(1);

/// How long a node that waits for changes delays reading them when some have come: a burst is read as one.
pub const FEED_BURST_DELAY: Duration = Duration::from_millis(5);

/// How long a page that has changes waits for the answers of other nodes.
pub const FEED_GRACE: Duration = Duration::from_millis(50);

/// How long a page without changes waits for other nodes when a shard was refused, before its leader is asked again.
pub const FEED_RETRY: Duration = Duration::from_millis(300);

/// Nodes that are asked at a time for one page of a feed: all of most clusters, as each may be left to wait.
pub const FEED_NODES: usize = 64;

/// Characters of a token that go into the line of a request.
pub const FEED_TOKEN_CHARACTERS: usize = 60_000;

/// Bytes of what another node is asked for changes with: a token, and the numbers of some thousand shards.
pub const FEED_REQUEST_BYTES: usize = 2 << 20;
