//! Every limit of the protocol and of its connections, with its reason.

use partage_core::limits::{SHUFFLE_BATCH_BYTES, SHUFFLE_FRAME_BYTES};
use std::time::Duration;

/// Body of a frame that carries a batch, records that are read, a plan or a list. The largest batch that core makes fits: what
/// stands around records is counted in its limit.
pub const LONG_BYTES: usize = 144 << 20;
const _: () = assert!(SHUFFLE_BATCH_BYTES <= LONG_BYTES);

/// Body of a frame of records of an attempt: what core takes as one, and the numbers before it.
pub const RECORDS_BYTES: usize = SHUFFLE_FRAME_BYTES + 64;

/// Body of all other frames: the longest has two keys of 64 KiB.
pub const SHORT_BYTES: usize = 256 << 10;

/// A body up to here gets its room at once; a longer one as it comes, so that a length alone takes no memory.
pub const ROOM_AT_ONCE: usize = 4 << 20;

/// What a body is decoded to takes at most so many bytes for each of its own: the worst are maps of one entry in a plan, each of
/// which has room for eleven, and segments without records, four bytes each. Records stay where they lie.
pub const DECODED_BYTES_A_BYTE: usize = 64;

/// Longest sentence of a refusal that is taken from the network.
pub const SENTENCE_BYTES: usize = 4_096;

/// While so many bytes wait for one node, besides bulk, what comes on top is dropped: the machines send again what was not
/// answered.
pub const PEER_BYTES: usize = 8 << 20;

/// Frames that wait for one node, besides bulk.
pub const PEER_FRAMES: usize = 16_384;

/// While so many bytes of bulk wait for one node, a sender that has more waits, where shuffles take turns: what waits here goes
/// in its order, and a small batch waits for all of it. Enough to keep a connection busy while the next frame is encoded; a line
/// of 1 Gbit/s takes it in eight milliseconds.
pub const PEER_BULK_BYTES: usize = 1 << 20;

/// Bytes of small frames that are put together for one call of the system.
pub const GATHERED_BYTES: usize = 64 << 10;

/// Bytes that are handed to a socket at once, and that the other end must take within [`STALLED`].
pub const PIECE_BYTES: usize = 1 << 20;

/// Body of a frame before both ends have said who they are: the longest is a goodbye with its sentence.
pub const OPENING_BYTES: usize = 8 << 10;

/// Within this time the end that has connected has said who it is, and the other one has answered.
pub const OPENING: Duration = Duration::from_secs(5);

/// Between two pings of a node on a connection, whatever else it sends there.
pub const PING: Duration = Duration::from_secs(1);

/// A connection on which nothing was heard for so long is closed: ten pings.
pub const SILENT: Duration = Duration::from_secs(10);

/// A client that has sent nothing for so long, and waits for no answer, is let go. It may compute between two frames.
pub const CLIENT_SILENT: Duration = Duration::from_secs(60);

/// A connection whose other end takes nothing for so long is closed.
pub const STALLED: Duration = Duration::from_secs(10);

/// How long the last words of a connection may take.
pub const GOODBYE: Duration = Duration::from_secs(1);

/// Connections of which a server does not know yet whose they are. The next one waits in the queue of the system.
pub const OPENING_CONNECTIONS: usize = 1_024;

/// Connections of nodes that a server has at once: several of each node of a large cluster, as a new one may come before the
/// former one is given up.
pub const NODE_CONNECTIONS: usize = 4_096;

/// Connections of clients that a server has at once: tens of thousands of clients are spread over the nodes. However many there
/// are, nodes have room of their own.
pub const CLIENT_CONNECTIONS: usize = 16_384;

/// Bytes of long frames of nodes that a server reads at once, or has handed in and hears no end of. One of the longest frames has
/// room beside others.
pub const RECEIVED_NODE_BYTES: usize = 256 << 20;

/// The same of clients, which are many.
pub const RECEIVED_CLIENT_BYTES: usize = 256 << 20;

/// A body up to here takes no room of that: what many connections have of such ones is little.
pub const UNCOUNTED_BYTES: usize = 16 << 10;
