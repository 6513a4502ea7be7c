//! The numbers of this crate.

use std::time::Duration;

/// The longest message of a client: a batch of any sensible size, and a record of the largest kind. The door counts it against
/// the memory for bodies meanwhile.
pub(crate) const MESSAGE_BYTES: usize = 66 << 20;
/// What the buffers of one message may be when they are unpacked, each by itself; so may the dictionaries of an attempt.
pub(crate) const UNPACKED_BYTES: u64 = 256 << 20;
/// Rows of one batch: columns of nothing have no bytes that would limit them.
pub(crate) const BATCH_ROWS: usize = 16 << 20;
/// What the records of one frame take in memory, about: twice as much as the first frames of a client of records.
pub(crate) const FRAME_BYTES: u64 = 512 << 10;
/// Raw records that are made at once, at most: other tasks of the thread wait meanwhile.
pub(crate) const RAW_RECORDS: usize = 4_096;
/// Rows of an attempt wait for others of their frame for so long. The buffer gives up an attempt that is silent for 60 s.
pub(crate) const FLUSH: Duration = Duration::from_secs(10);
/// What a read takes whose client takes nothing: three answers of the node, a batch, and its message on the connection.
pub(crate) const GET_BYTES: u64 = 5 << 20;
/// How long a read, or an attempt with dictionaries, waits for memory. Others end meanwhile, mostly.
pub(crate) const MEMORY_WAIT: Duration = Duration::from_secs(10);
/// Endpoints of one flight: some hundred bytes each.
pub(crate) const PARTITIONS: u64 = 65_536;
/// Locations of one endpoint: holders, and others to go to when these are away.
pub(crate) const LOCATIONS: usize = 8;
/// Input partitions that a seal may name.
pub(crate) const INPUTS: u32 = 1 << 20;
/// Bytes of the body of an action: the schema of a start has 128 KiB at most, and the list of a seal is numbers.
pub(crate) const ACTION_BYTES: usize = 16 << 20;
/// Shuffles of which the node keeps what their records are.
pub(crate) const KINDS: usize = 256;
/// Bytes of a sentence in an error: clients of gRPC refuse headers above 8 KiB, and the sentence stands in one of them.
pub(crate) const SENTENCE_BYTES: usize = 2 << 10;
/// Input partitions that are named to people.
pub(crate) const NAMED: usize = 20;
