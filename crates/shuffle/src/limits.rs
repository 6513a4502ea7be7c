//! The numbers of this crate that no setting changes. Those that a caller may change are in [`crate::node::NodeSettings`],
//! [`crate::store::StoreSettings`] and [`crate::log::DecisionSettings`]. Times are in milliseconds, or durations.

use std::time::Duration;

/// How long the order to drop a replica waits until each replica in `Live` has all that is here of its slot: some rounds in which
/// nodes say what they have, and the copying of what lacks. Less than the time after which the coordinator calls a replica
/// overdue (`handover_ms`) and its map forgets it. A slot that has too few replicas is not waited for any longer.
pub(crate) const HAND_OVER: Duration = Duration::from_secs(50);
/// How long an order of the coordinator may take, in milliseconds: given up before, it would begin to wait anew.
pub(crate) const CALLBACK_MS: u64 = 60_000;
const _: () = assert!(CALLBACK_MS > 1_000 * HAND_OVER.as_secs());
/// Between two looks whether it is so.
pub(crate) const HAND_OVER_LOOK: Duration = Duration::from_millis(200);
/// What a slot has on disk is told to the coordinator in steps of so many bytes: what is less comes and goes with shuffles of
/// minutes, and to move a slot because of it would be more work than it saves.
pub(crate) const TOLD_BYTES: u64 = 256 << 20;
/// Answers that wait for the disk, for each slot.
pub(crate) const LOGGED_WAITING: usize = 256;
/// A frame of so many bytes at most is read at once when parts of it are wanted: to go to the file twice takes longer.
pub(crate) const WHOLE_FRAME_BYTES: usize = 64 << 10;
/// What lies between two parts of a frame that are wanted is read with them, up to so many bytes.
pub(crate) const GAP_BYTES: usize = 16 << 10;
/// How often a read looks for a batch whose file was written anew meanwhile.
pub(crate) const READ_LOOKS: usize = 3;
/// Bytes of frames and batches that the thread of a node takes up, piece by piece, before it looks whether a machine is due.
pub(crate) const BULK_AT_ONCE: u64 = 1 << 20;
/// Each piece counts as so many bytes at least: to take up a small one takes as long as to copy so much, about.
pub(crate) const LEAST_OF_BULK: u64 = 4 << 10;
/// Messages of the node to itself that are handed out before it looks at what has come from outside.
pub(crate) const LOCAL_AT_ONCE: usize = 1_024;
/// Between two ticks of the machines, in milliseconds: one may want to be called at a time that is over, until it gets an answer.
pub(crate) const TICK_MS: u64 = 2;
/// Between two tries of a request that was refused, in milliseconds: a leader begins in about the time of a sync.
pub(crate) const REQUEST_REST_MS: u64 = 20;
/// Notes that wait for a client: of one input at a time, some of them twice.
pub(crate) const NOTES: usize = 8;
/// A frame that found no room comes again after so long, in milliseconds: a buffer gets room with each batch that is stored.
pub(crate) const FULL_REST_MS: u64 = 5;
/// Each time that it finds none it rests twice as long, but no longer than this: frames of many clients that are held back leave
/// the way to the buffer to others. Far less than the time for which a buffer keeps room for a frame.
pub(crate) const LONGEST_FULL_REST_MS: u64 = 40;
/// What is read of a file of sorted records at once, and written: large against a record, small against the memory for ranges.
pub(crate) const RUN_BUFFER_BYTES: usize = 32 << 10;
/// What a run takes in memory that is merged: what is read of it at once, and its first key.
pub(crate) const RUN_MEMORY_BYTES: u64 = 128 << 10;
/// Runs that are merged at a time: more of them take longer to compare than to write once more.
pub(crate) const RUNS_AT_ONCE: usize = 256;
/// One record in so many of a sorted file is found without reading those before it.
pub(crate) const MARKED_RECORDS: u64 = 64;
/// What is read of a sorted file to see the key of one record, unless the key is longer.
pub(crate) const KEY_LOOK_BYTES: usize = 512;
/// Cuts that are found in a sorted file for one question: each takes some tens of reads, which may go to the disk.
pub(crate) const FILE_CUTS_AT_ONCE: usize = 1_024;
/// Records between two looks whether a sort is still wanted.
pub(crate) const SORT_LOOK_RECORDS: u64 = 4_096;
/// A range of which a reader took a piece so shortly ago is in use, in milliseconds: far longer than a reader takes between two
/// pieces, and what one that has gone holds others up.
pub(crate) const IN_USE_MS: u64 = 500;
/// But no longer than this after it began to be sorted: then others have their turn. Long against a sort in memory.
pub(crate) const TERM_MS: u64 = 10_000;
/// A range that has found no room for so long comes before others, in milliseconds.
pub(crate) const FIRST_AFTER_MS: u64 = 1_000;
/// How long a thread that reads waits for another one that sorts the range: less than a reader waits for its answer.
pub(crate) const SORT_WAIT: Duration = Duration::from_millis(200);
/// What a range takes in memory that is sorted there, at most: it takes about as long as a reader waits for its answer.
pub(crate) const SORTED_IN_MEMORY_BYTES: u64 = 256 << 20;
/// Between two looks which sorted ranges nobody reads any more.
pub(crate) const IDLE_LOOK: Duration = Duration::from_secs(1);
/// A range from the object store that takes more than one in so many bytes of the memory for ranges is sorted on disk: while the
/// store does not answer, that memory is missing to ranges that are here.
pub(crate) const OBJECTS_PART: u64 = 8;
/// A store keeps the memory of a group for the next one if it is no more than one in so many bytes of a file: that is the share
/// of groups in the memory of a node. Groups by the defaults have less; one with a batch of many MiB is seldom.
pub(crate) const KEPT_OF_FILE: u64 = 2;
/// Files that are synced at a time, each by a thread that stays as long as the store: about as many shuffles as a group of
/// batches is of.
pub(crate) const SYNCS_AT_ONCE: usize = 16;
/// A shuffle of which a group has less is written, synced and acknowledged before the others of the group.
pub(crate) const LITTLE_OF_GROUP_BYTES: u64 = 64 << 10;
/// What batches take in memory, about, that are written anew at once.
pub(crate) const REWRITTEN_BYTES: u64 = 4 << 20;
/// A shuffle counts as one that writes until so many bytes of others were written since its last batch: what a disk writes in
/// some tenths of a second. One that trickles has another batch within that time.
pub(crate) const SHARED_FOR_BYTES: u64 = 64 << 20;
/// When so much was written anew, what else is to be waits for the next time that something is dropped: batches that are to be
/// stored wait meanwhile.
pub(crate) const REWRITTEN_AT_ONCE: u64 = 64 << 20;
/// How long one call to an object store may take: S3 takes seconds when it is busy.
pub const OBJECT_TIME: Duration = Duration::from_secs(20);
/// Bytes from which on an object is put and another one begun: large against what surrounds a request, small against memory.
/// Each thread that puts has one, twice for a moment, and the batch that is added.
pub(crate) const OBJECT_BYTES: usize = 8 << 20;
/// Bytes from which on a run of a range ends, and another one begins: it is what one request reads.
pub(crate) const RUN_BYTES: usize = 4 << 20;
/// Threads that read ranges from the object store which fit into memory. One more sorts those that do not.
pub(crate) const OBJECT_READERS: usize = 2;
/// Requests that a thread which reads a range has under way, or whose bytes wait for it: a store answers each after some tens of
/// milliseconds, and several at once.
pub(crate) const AHEAD_READS: usize = 4;
/// What all reads of the object store take in memory together, besides the indexes that are kept: as much as four requests of
/// each thread that reads ranges, or one that is longer.
pub(crate) const OBJECT_READ_BYTES: u64 = 48 << 20;
/// What an index is taken to have that is only looked at: of a few ten thousand runs. What it has beyond that is counted when it
/// is here.
pub(crate) const SEEN_INDEX_BYTES: u64 = 1 << 20;
/// A read that has come to nothing after so long, in milliseconds, was not refused: the store does not answer.
pub(crate) const SLOW_READ_MS: u64 = 5_000;
/// So long nothing is read from a store that has not answered, in milliseconds, then twice as long, but no longer than this:
/// each such read holds a thread and memory for as long as a call takes.
pub(crate) const READ_REST_MS: u64 = 1_000;
pub(crate) const LONGEST_READ_REST_MS: u64 = 60_000;
/// Bytes of an index that is read: of some millions of runs of one slot of a shuffle.
pub(crate) const INDEX_BYTES: u64 = 64 << 20;
/// What the indexes take in memory that are kept, those that were read last; one always is.
pub(crate) const LAYOUT_BYTES: u64 = 16 << 20;
/// Slots of shuffles that wait to be put, and those that wait to be deleted or listed. What finds no room is ordered again.
pub(crate) const OBJECT_JOBS: usize = 64;
/// Slots of shuffles whose objects are found at a time, and those of one shuffle more. The next ones are found at the next look.
pub(crate) const FOUND_AT_ONCE: usize = 1_024;
/// Looks at a disk that fills between two lists of what it has.
pub(crate) const ROOM_LOOKS: u32 = 5;
/// Between two looks whether nodes are reached that were asked something, in milliseconds.
pub(crate) const REACH_LOOK_MS: u64 = 50;
/// Answers that wait: one question is open at a time, and others may be late.
pub(crate) const ANSWERS: usize = 4;
/// Questions of other nodes that wait for plans; beyond it these nodes hear that this one is busy.
pub(crate) const UNPLANNED: usize = 512;
/// A reader looks for the end of its node at least so often, in milliseconds.
pub(crate) const READER_LOOK_MS: u64 = 200;
/// Batches and answers with records that wait for one other node. As many as small batches that one shuffle divides into at a
/// time: of those that the buffer holds little more than their names wait. The last eighth is for shuffles of
/// which few wait.
pub(crate) const BULK_PACKETS: usize = 16_384;
/// What the records take in memory that nobody but the lane holds: while so much waits, further ones are refused. As much as a
/// line of 1 Gbit/s takes in a quarter of a second, which is less than the time after which another node stands in.
pub(crate) const BULK_BYTES: u64 = 32 << 20;
/// Of a lane that is half full an answer to a reader takes so much, so that the answers to many readers have room.
pub(crate) const LEAST_ANSWER_BYTES: u64 = 16 << 10;
/// Calls of one client that are being answered at a time; beyond that its connection is not read.
pub(crate) const CALLS_AT_ONCE: usize = 64;
/// Nodes that buffer, of those that one names which stores only.
pub(crate) const BUFFERS_NAMED: usize = 8;
/// Attempts that are open on one connection.
pub(crate) const ATTEMPTS_OF_CLIENT: usize = 1_024;
/// Keys and values in one answer to a reader, and their lengths, or up to one record more: large enough that a frame costs
/// little, small against what a connection holds.
pub(crate) const READ_BYTES: usize = 1 << 20;
/// Bytes of a partition for which a client goes to the node that has it: below, another question costs more than the way of its
/// records by way of the node that was asked.
pub(crate) const NEAR_BYTES: u64 = 128 << 10;
/// And with no more ranges than so many in the mean: else no node has most of it.
pub(crate) const NEAR_RANGES: u64 = 2;
/// Numbers that a start draws at most, while leaders say that the owner has as much as it may have: each has a share of the
/// quota.
pub(crate) const START_DRAWS: u32 = 16;
/// Numbers of shuffles that a node would lead, which it names with the answer to a start: for the next starts of the same client.
pub(crate) const NUMBERS_TOLD: usize = 4;
/// Numbers that it draws for that: of three nodes each leads one in three, and to draw one takes less than a microsecond.
pub(crate) const NUMBER_DRAWS: usize = 32;
/// Answers that wait for a task of this process that reads: each has about [`READ_BYTES`].
pub(crate) const LOCAL_ANSWERS: usize = 2;
/// Partitions of which a client may ask the bounds, or the heavier keys, at once: a question to a holder has room for so many
/// offsets of one range, and a frame for their keys, unless these are long.
pub(crate) const BOUNDS: u64 = 16_384;
/// Bytes of the keys in one answer with bounds or heavy keys: half of what a frame has room for.
pub(crate) const BOUNDS_BYTES: usize = 64 << 20;
/// Ranges of which one client asks at a time where cuts fall: several holders put some in order meanwhile, and other readers
/// have room beside.
pub(crate) const SEEKS_AT_ONCE: usize = 8;
/// Between two questions about the pool: how soon nodes go by another number of replicas.
pub(crate) const POOL_LOOK: Duration = Duration::from_secs(10);
/// Between two such questions of a node that starts.
pub(crate) const POOL_WAIT: Duration = Duration::from_millis(300);
/// Between two looks which leads the node does not take up.
pub(crate) const LEADS_LOOK: Duration = Duration::from_secs(1);
/// After so many looks in a row the node lays a lead down: the map with a later epoch is nearly always there before.
pub(crate) const LEADS_LOOKS: u32 = 5;
/// How long other nodes may take to say which shuffles they lead.
pub(crate) const LIST_ANSWER: Duration = Duration::from_secs(3);
/// Bytes of such an answer: some 400 for each shuffle.
pub(crate) const LIST_BYTES: usize = 64 << 20;
/// How long requests in flight have when a node ends.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);
/// How long the listener may take to end.
pub(crate) const SERVER_END: Duration = Duration::from_secs(10);
/// Connections that are being told apart or served over HTTP; beyond that new ones are closed.
pub(crate) const UNDER_WAY: usize = 16_384;
/// Connections of frames: somewhat more than the server of frames has of clients, of nodes, and of those that have not said yet
/// which they are, as it refuses by name what is beyond its own bounds. A connection beyond this one is closed.
pub(crate) const FRAMED: usize = 24_576;
/// Within this time the first bytes of a connection come.
pub(crate) const FIRST_BYTES: Duration = Duration::from_secs(5);
/// Between two looks for the first bytes, where fewer came.
pub(crate) const FIRST_BYTES_REST: Duration = Duration::from_millis(2);
/// Between two looks whether the node has ended by itself.
pub(crate) const END_LOOK: Duration = Duration::from_millis(500);
/// What a client of HTTP/2 may send of a request that nobody reads on, and of all requests of its connection: so 64 attempts that
/// are held back leave room for other calls. A connection takes that in memory at most, as do the frames of one that takes
/// nothing.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;
pub(crate) const CONNECTION_WINDOW: u32 = 16 << 20;
