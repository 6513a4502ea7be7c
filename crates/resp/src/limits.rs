//! Every limit of the listener, with its reason.

use partage_core::limits::{BATCH_BYTES, BATCH_OPERATIONS, VALUE_BYTES};
use std::time::Duration;

/// Arguments of one command, its name among them. An `MSET` of the largest batch has 2,001. Beyond it the command is read, not
/// kept, and answered with an error.
pub const ARGUMENTS: usize = 2_048;
const _: () = assert!(ARGUMENTS > 2 * BATCH_OPERATIONS);

/// Bytes of one command on the wire: the largest batch, and for each argument the line with its length. A longer one is read,
/// not kept, and answered with an error.
pub const COMMAND_BYTES: usize = BATCH_BYTES + ARGUMENTS * 16;

/// Most arguments that a client may announce before the connection is closed: what Redis takes. Up to that many are read
/// and dropped, so that the client gets an error and keeps its connection.
pub const ANNOUNCED_ARGUMENTS: u64 = 1 << 20;

/// Longest argument that a client may announce before the connection is closed: what Redis takes, for the same reason.
pub const ANNOUNCED_BYTES: u64 = 512 << 20;

/// Longest inline command, and longest line with a count or a length: what Redis takes.
pub const LINE_BYTES: usize = 64 << 10;

/// Read from a connection at a time.
pub const READ_BYTES: usize = 16 << 10;

/// Commands of one connection that are under way at a time: above the depth of the pipelines that pay, and few enough that a
/// thousand connections do not fill the queues of a shard.
pub const PIPELINE_DEPTH: usize = 128;

/// Bytes of commands that are under way, and of answers that they are expected to have, and of answers that the client has not
/// read, of one connection: four rows of the largest kind. At the limit nothing more is read from the client; one command may
/// always be under way.
pub const PIPELINE_BYTES: usize = 4 * VALUE_BYTES;

/// What an answer is expected to have before the first one has come: then half of a full pipeline is under way.
pub const EXPECTED_ANSWER_BYTES: usize = 64 << 10;

/// Bytes of answers that are gathered before they are written, while more come in at once.
pub const WRITE_BYTES: usize = 64 << 10;

/// Bytes of values in the answer to one `MGET`: 16 rows of the largest kind. Redis has no such limit, and a small command would
/// make the node keep two gigabytes.
pub const MANY_BYTES: usize = 16 * VALUE_BYTES;

/// Rows of several partitions that one command reads or deletes at a time.
pub const ROWS_AT_ONCE: usize = 16;

/// Bytes of input and output of a connection that do not count against the budget of the process: nearly all connections
/// need no more, and counting costs.
pub const UNCOUNTED_BYTES: usize = 64 << 10;

/// Commands in one transaction: each is an operation of a batch or more.
pub const QUEUED_COMMANDS: usize = BATCH_OPERATIONS;

/// Bytes of the commands in one transaction, as above.
pub const QUEUED_BYTES: usize = COMMAND_BYTES;

/// Keys that one connection watches: each is an operation of the transaction's batch.
pub const WATCHED_KEYS: usize = BATCH_OPERATIONS / 2;

/// How often a command that reads and then writes under a condition is tried: with as many writers of one row at a time as it
/// takes to fail so often in a row, the row is the bottleneck.
pub const TRIES: usize = 64;

/// Places of `SCAN` that are kept, of all clients together: each has a key, so 16 MiB with the longest keys.
pub const CURSORS: usize = 4_096;

/// Most rows that one `SCAN` looks at, whatever `COUNT` says.
pub const SCAN_ROWS: usize = 1_000;

/// Rows that one `SCAN` looks at unless `COUNT` says otherwise: what Redis has.
pub const SCAN_COUNT: usize = 10;

/// Longest name of a connection.
pub const CLIENT_NAME_BYTES: usize = 256;

/// How long a connection may ask nothing. Pools of Redis clients keep connections for half an hour, and take a closed one for a
/// fault.
pub const IDLE: Duration = Duration::from_secs(3_600);

/// How long a command may take to come in once it has begun: a command of the largest size at 140 kbit/s.
pub const COMMAND_TIME: Duration = Duration::from_secs(60);

/// How long a client may take nothing of what is written to it.
pub const WRITE_TIME: Duration = Duration::from_secs(30);

/// How often a connection looks whether one of these times is over: often against the shortest, and rarely enough that ten
/// thousand connections cost nothing.
pub const LOOK: Duration = Duration::from_secs(5);

/// Connections at a time, unless an operator says otherwise: what Redis has.
pub const CONNECTIONS: usize = 10_000;

/// Connections of one listener at a time, whatever an operator says: the listener waits for all with one call, which counts to
/// 2³².
pub const UNDER_WAY: u32 = 1 << 24;

/// How long commands that are under way may take when the listener ends.
pub const CLOSING: Duration = Duration::from_secs(5);

/// Bytes of a client's words that an error repeats: what Redis repeats.
pub const SHOWN: usize = 128;
