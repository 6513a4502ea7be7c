//! Frames: a fixed header, and a body that stays where it was received.
//!
//! ```text
//!  0  magic "PSHF" 4 · version (2) 1 · kind 1 · flags 2
//!  8  bytes of the body 4 · CRC-32C of the body 4 · number of the frame on its connection 8
//! 24  shuffle 16 (zeros if it has none, and flag 1 is not set)
//! 40  CRC-32C of these 40 bytes 4
//! 44  body
//! ```
//!
//! Numbers have their most significant byte first. The header has a checksum of its own: so a length is believed, and room made
//! for a body, only if it was written so. The number, from 0 in each direction of a connection, tells a doubled or a missing
//! frame, which a checksum cannot.
//!
//! The body of a frame is made once, and its checksum computed once, however many connections it goes to: only the header
//! differs. A body that was stored goes out with the checksum that it was stored with ([`Frame::stored`]), so what a disk or a
//! memory has changed meanwhile is found where it arrives.

use crate::limits::{LONG_BYTES, RECORDS_BYTES, SHORT_BYTES};
use crate::malformed::FrameError;
use bytes::{Buf, BufMut, Bytes};
use partage_service::shuffle::ShuffleId;

/// The version of the frames, and of all that stands in them. In version 1 batches and records had other forms.
pub const VERSION: u8 = 2;
/// Bytes of a header; the body follows.
pub const HEADER_BYTES: usize = 44;
/// The first bytes of each frame: of no request of HTTP.
pub const MAGIC: [u8; 4] = *b"PSHF";
/// The frame names a shuffle.
const HAS_SHUFFLE: u16 = 1;

/// Which end sends frames of a kind, and to which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Both ends of a connection, about the connection.
    Both,
    /// A node to another one.
    Node,
    /// A client to a node.
    Client,
    /// A node to a client.
    Server,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $side:ident, $most:ident;)*) => {
        /// What a frame carries.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $($(#[$doc])* $name,)*
        }

        impl Kind {
            /// Every kind, for tests that go through all of them.
            pub const ALL: &[Kind] = &[$(Kind::$name,)*];

            /// The number in the header.
            pub fn code(self) -> u8 {
                match self {
                    $(Kind::$name => $code,)*
                }
            }

            /// The kind with that number.
            pub fn of_code(code: u8) -> Option<Kind> {
                match code {
                    $($code => Some(Kind::$name),)*
                    _ => None,
                }
            }

            /// Which end sends frames of it; from another end they are refused.
            pub fn side(self) -> Side {
                match self {
                    $(Kind::$name => Side::$side,)*
                }
            }

            /// Bytes of a body at most.
            pub fn most(self) -> usize {
                match self {
                    $(Kind::$name => $most,)*
                }
            }
        }
    };
}

kinds! {
    /// The first frame of an end that connects: a client, or a node that names the one it means.
    Hello = 1, Both, SHORT_BYTES;
    /// The answer to a hello: which node was reached, and which start of it.
    Welcome = 2, Both, SHORT_BYTES;
    /// Why the connection ends.
    Goodbye = 3, Both, SHORT_BYTES;
    /// Asks the other end for a pong, so that silence shows that it is gone.
    Ping = 4, Both, SHORT_BYTES;
    /// The answer to a ping, at once.
    Pong = 5, Both, SHORT_BYTES;
    /// A batch that the receiver is to store.
    Batch = 16, Node, LONG_BYTES;
    /// A batch is on disk.
    Stored = 17, Node, SHORT_BYTES;
    /// A batch is not stored: its shuffle has ended.
    BatchRefused = 18, Node, SHORT_BYTES;
    /// What the sender has of a slot.
    Inventory = 19, Node, LONG_BYTES;
    /// Asks for batches that the sender lacks.
    Fetch = 20, Node, LONG_BYTES;
    /// Decisions of a leader.
    Append = 21, Node, LONG_BYTES;
    /// A replica has synced the decisions up to a number.
    Appended = 22, Node, SHORT_BYTES;
    /// A replica has not taken decisions, and why.
    NotAppended = 23, Node, SHORT_BYTES;
    /// Asks the leader of a shuffle for its state.
    Ask = 24, Node, SHORT_BYTES;
    /// The state of a shuffle, from its leader.
    Word = 25, Node, LONG_BYTES;
    /// Nothing of the shuffle is left there.
    Dropped = 26, Node, SHORT_BYTES;
    /// The leader asks a node for the end marks that it has.
    AskMarks = 27, Node, SHORT_BYTES;
    /// The end marks that a node has, or one that it has just stored.
    Marks = 28, Node, LONG_BYTES;
    /// The keys that a buffer has sampled.
    Sample = 29, Node, LONG_BYTES;
    /// The leader asks a holder to divide what lies under old tags.
    Divide = 30, Node, LONG_BYTES;
    /// What a holder was asked to divide is divided, and stored.
    Divided = 31, Node, LONG_BYTES;
    /// The leader asks a holder to count the records and bytes of ranges.
    Count = 32, Node, LONG_BYTES;
    /// The records and bytes of ranges, as a holder has counted them.
    Counted = 33, Node, LONG_BYTES;
    /// A client of the sender asks the leader of a shuffle.
    AskLeader = 34, Node, LONG_BYTES;
    /// What the leader answers to a relayed request.
    LeaderAnswers = 35, Node, LONG_BYTES;
    /// A client of the sender reads.
    AskHolder = 36, Node, SHORT_BYTES;
    /// What the holder answers to a relayed read: records, or why it gives none.
    HolderAnswers = 37, Node, LONG_BYTES;
    /// A client of the sender seeks cuts in a range, or its heavy keys.
    AskSeek = 38, Node, SHORT_BYTES;
    /// The holder has found it.
    Found = 39, Node, LONG_BYTES;
    /// Put a slot of a shuffle into the object store.
    MakeRoom = 40, Node, SHORT_BYTES;
    /// A replica has not all that it is to divide or to count.
    ReplicaLacks = 41, Node, SHORT_BYTES;
    /// Is a batch stored?
    AskStored = 42, Node, SHORT_BYTES;
    /// It is not, so far.
    NotStored = 43, Node, SHORT_BYTES;
    /// A shuffle is to begin.
    Start = 64, Client, LONG_BYTES;
    /// An attempt of an input partition begins; its records follow.
    Open = 65, Client, SHORT_BYTES;
    /// Records of an attempt.
    Records = 66, Client, RECORDS_BYTES;
    /// An attempt has all its records, and is to be stored.
    End = 67, Client, SHORT_BYTES;
    /// An attempt is given up.
    Abort = 68, Client, SHORT_BYTES;
    /// A shuffle takes no more.
    Seal = 69, Client, LONG_BYTES;
    /// A partition is to be read.
    ReadPartition = 70, Client, SHORT_BYTES;
    /// An interval of keys is to be read.
    ReadKeys = 71, Client, SHORT_BYTES;
    /// A part of a range is to be read.
    ReadSlice = 72, Client, SHORT_BYTES;
    /// A client asks for the keys that bound partitions.
    AskBounds = 73, Client, SHORT_BYTES;
    /// A client asks how far a shuffle is, and what it holds.
    AskStatus = 74, Client, SHORT_BYTES;
    /// A client still needs a shuffle: its time to live begins anew.
    KeepAlive = 75, Client, SHORT_BYTES;
    /// A client needs a shuffle no more.
    Delete = 76, Client, SHORT_BYTES;
    /// Records of some ranks are to be read.
    ReadRanks = 77, Client, SHORT_BYTES;
    /// A client asks for the keys that are heavier than a partition.
    AskHeavyKeys = 78, Client, SHORT_BYTES;
    /// A partition is to be read where most of it is, or the client is to hear which node that is.
    ReadPartitionNear = 79, Client, SHORT_BYTES;
    /// A shuffle has begun.
    Started = 96, Server, SHORT_BYTES;
    /// An attempt is open, and its records may come.
    Opened = 97, Server, SHORT_BYTES;
    /// A frame of an attempt was taken.
    Taken = 98, Server, SHORT_BYTES;
    /// An attempt is stored.
    Whole = 99, Server, SHORT_BYTES;
    /// A shuffle is sealed.
    Sealed = 100, Server, SHORT_BYTES;
    /// Partitions lack a whole attempt.
    Lacks = 101, Server, LONG_BYTES;
    /// Records that were read.
    Read = 102, Server, LONG_BYTES;
    /// The last frame of a read: how many records and bytes there were.
    ReadEnd = 103, Server, SHORT_BYTES;
    /// Keys that bound partitions.
    Bounds = 104, Server, LONG_BYTES;
    /// How a shuffle is.
    Status = 105, Server, LONG_BYTES;
    /// The answer to a keep-alive: its time to live begins anew.
    Alive = 106, Server, SHORT_BYTES;
    /// The answer to a delete: the shuffle has ended.
    Deleted = 107, Server, SHORT_BYTES;
    /// A request is refused.
    Refused = 108, Server, SHORT_BYTES;
    /// Keys that are heavier than a partition.
    HeavyKeys = 109, Server, LONG_BYTES;
    /// Where a partition is to be read.
    ReadAt = 110, Server, SHORT_BYTES;
}

/// What is sent as one. A copy shares the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    kind: Kind,
    shuffle: Option<ShuffleId>,
    body: Bytes,
    sum: u32,
}

impl Frame {
    /// A frame with that body, of which the checksum is computed here.
    ///
    /// # Errors
    /// The body is longer than one of that kind may be.
    pub fn new(kind: Kind, shuffle: Option<ShuffleId>, body: impl Into<Bytes>) -> Result<Frame, FrameError> {
        let body = body.into();
        fits(kind, body.len())?;
        let sum = crc32c::crc32c(&body);
        Ok(Frame { kind, shuffle, body, sum })
    }

    /// A frame with a body that was stored, and with its checksum of then ([`Frame::sum`]): no other one is computed, which would
    /// be right whatever has become of the body.
    ///
    /// # Errors
    /// The body is longer than one of that kind may be.
    pub fn stored(
        kind: Kind,
        shuffle: Option<ShuffleId>,
        body: impl Into<Bytes>,
        sum: u32,
    ) -> Result<Frame, FrameError> {
        let body = body.into();
        fits(kind, body.len())?;
        Ok(Frame { kind, shuffle, body, sum })
    }

    /// The kind in its header, which says how to read the body.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its shuffle, if it has one.
    pub fn shuffle(&self) -> Option<ShuffleId> {
        self.shuffle
    }

    /// What stands in it.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The CRC-32C of that: of when it was made, or came, or was stored.
    pub fn sum(&self) -> u32 {
        self.sum
    }

    /// Bytes of it on a connection.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }

    /// Its header, as the frame of that number on a connection.
    pub fn header(&self, number: u64) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        let mut out = &mut header[..];
        out.put_slice(&MAGIC);
        out.put_u8(VERSION);
        out.put_u8(self.kind.code());
        out.put_u16(if self.shuffle.is_some() { HAS_SHUFFLE } else { 0 });
        // `fits` has said that it is no longer.
        out.put_u32(u32::try_from(self.body.len()).unwrap_or(u32::MAX));
        out.put_u32(self.sum);
        out.put_u64(number);
        out.put_u128(self.shuffle.map_or(0, |shuffle| shuffle.0));
        let sum = crc32c::crc32c(&header[..HEADER_BYTES - 4]);
        header[HEADER_BYTES - 4..].copy_from_slice(&sum.to_be_bytes());
        header
    }

    /// All bytes of it, in one piece: for frames without bulk, and for tests.
    pub fn encode(&self, number: u64, out: &mut Vec<u8>) {
        out.reserve(self.bytes());
        out.extend_from_slice(&self.header(number));
        out.extend_from_slice(&self.body);
    }

    /// The frame at the front of the bytes, and its number. The body is a part of the bytes, and is not copied.
    ///
    /// # Errors
    /// It is none, or not whole.
    pub fn decode(bytes: &mut Bytes) -> Result<(Frame, u64), FrameError> {
        let cut = |expected| FrameError::Cut { found: bytes.len(), expected };
        let header = bytes.first_chunk::<HEADER_BYTES>().ok_or_else(|| cut(HEADER_BYTES))?;
        let header = Header::decode(header)?;
        let whole = HEADER_BYTES + header.bytes;
        if bytes.len() < whole {
            return Err(cut(whole));
        }
        bytes.advance(HEADER_BYTES);
        Ok((header.frame(bytes.split_to(header.bytes))?, header.number))
    }
}

fn fits(kind: Kind, bytes: usize) -> Result<(), FrameError> {
    let most = kind.most();
    if bytes <= most { Ok(()) } else { Err(FrameError::TooLong { kind, bytes, most }) }
}

/// What a header says, which was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the frame carries.
    pub kind: Kind,
    /// Its shuffle, if it has one.
    pub shuffle: Option<ShuffleId>,
    /// Bytes of the body that follows.
    pub bytes: usize,
    /// Counts the frames of the connection in this direction, from 0.
    pub number: u64,
    sum: u32,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// It is none, or one of a frame that is not taken.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
        let [m0, m1, m2, m3, version, code, ..] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(FrameError::NotOurs([m0, m1, m2, m3]));
        }
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let (content, mut sum) = bytes.split_at(HEADER_BYTES - 4);
        if crc32c::crc32c(content) != sum.get_u32() {
            return Err(FrameError::HeaderSum);
        }
        let mut rest = &content[6..];
        let flags = rest.get_u16();
        let length = rest.get_u32() as usize;
        let (sum, number, shuffle) = (rest.get_u32(), rest.get_u64(), rest.get_u128());
        if flags & !HAS_SHUFFLE != 0 || (flags == 0 && shuffle != 0) {
            return Err(FrameError::Flags(flags));
        }
        let kind = Kind::of_code(code).ok_or(FrameError::Kind(code))?;
        fits(kind, length)?;
        let shuffle = (flags == HAS_SHUFFLE).then_some(ShuffleId(shuffle));
        Ok(Header { kind, shuffle, bytes: length, number, sum })
    }

    /// The frame, with the body that has come.
    ///
    /// # Errors
    /// The body is not whole, or was damaged.
    pub fn frame(self, body: Bytes) -> Result<Frame, FrameError> {
        if body.len() != self.bytes {
            let (found, expected) = (HEADER_BYTES + body.len(), HEADER_BYTES + self.bytes);
            return Err(FrameError::Cut { found, expected });
        }
        if crc32c::crc32c(&body) != self.sum {
            return Err(FrameError::BodySum(self.kind));
        }
        Ok(Frame { kind: self.kind, shuffle: self.shuffle, body, sum: self.sum })
    }
}

/// Counts the frames that came on a connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sequence {
    next: u64,
}

impl Sequence {
    /// Takes the next frame.
    ///
    /// # Errors
    /// It is not the next one.
    pub fn take(&mut self, found: u64) -> Result<(), FrameError> {
        let expected = self.next;
        match found.cmp(&expected) {
            std::cmp::Ordering::Less => Err(FrameError::Doubled { found, expected }),
            std::cmp::Ordering::Greater => Err(FrameError::Missing { found, expected }),
            std::cmp::Ordering::Equal => {
                self.next += 1;
                Ok(())
            }
        }
    }
}
