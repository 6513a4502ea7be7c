//! What is wrong with a frame, or with what stands in one. Each way to be wrong is an error of its own.

use crate::frame::Kind;
use crate::limits;

/// A frame that is not taken. The connection on which it came is of no use any more: where the next frame begins is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It does not begin as frames do.
    #[error("this is no frame of a shuffle: it begins with {0:02x?}; look at who connects here")]
    NotOurs([u8; 4]),
    /// It has another version.
    #[error(
        "the frame has version {0}, and this program speaks version {own}: use the same version on both sides",
        own = crate::frame::VERSION
    )]
    Version(u8),
    /// The checksum of its header is wrong.
    #[error("the header of the frame was damaged on its way: its checksum is wrong; send it again")]
    HeaderSum,
    /// It has flags that are not known.
    #[error("the frame has flags {0:#06x}, which this version does not know")]
    Flags(u16),
    /// It is of no known kind.
    #[error("the frame is of kind {0}, which this version does not know")]
    Kind(u8),
    /// It says that its body is longer than it may be.
    #[error("a frame {kind:?} has {bytes} bytes in its body, and may have {most}: send it in parts")]
    TooLong {
        /// Its kind, which bounds the body.
        kind: Kind,
        /// Bytes of the body, as its header says.
        bytes: usize,
        /// As many as it may have.
        most: usize,
    },
    /// The checksum of its body is wrong.
    #[error("the body of a frame {0:?} was damaged on its way: its checksum is wrong; send it again")]
    BodySum(Kind),
    /// It ends before its end.
    #[error("the frame was cut: {found} of its {expected} bytes came; send it again")]
    Cut {
        /// Bytes that came before the end.
        found: usize,
        /// Bytes of the whole frame, or of its header if not even that came.
        expected: usize,
    },
    /// A frame of its number, or of a later one, came before it.
    #[error("frame {found} of the connection came twice, or too late: {expected} is the next one")]
    Doubled {
        /// The number in the header of the frame.
        found: u64,
        /// The number that the next frame must have.
        expected: u64,
    },
    /// One before it did not come.
    #[error("frame {found} of the connection came before {expected}, which is missing: begin anew")]
    Missing {
        /// The number in the header of the frame.
        found: u64,
        /// The number of the frame that is missing.
        expected: u64,
    },
    /// What stands in it cannot be.
    #[error("a frame {0:?} cannot be read: {1}")]
    Body(Kind, Malformed),
}

/// What stands in the body of a frame cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends too early.
    #[error("it ends inside of {0}")]
    Ends(&'static str),
    /// Something stands behind its end.
    #[error("{0} bytes stand behind its end")]
    Rest(usize),
    /// It says that there are more than there are bytes for.
    #[error("it claims {count} of {what}, and has {bytes} bytes for them")]
    Count {
        /// What is counted, such as `records`.
        what: &'static str,
        /// How many, as it says.
        count: u64,
        /// Bytes that are left.
        bytes: usize,
    },
    /// A number in more bytes than it needs, or too large for its type.
    #[error("{0} is a number that is not written as short as it can be, or is too large")]
    Number(&'static str),
    /// A choice that is not known.
    #[error("{found} is no {what} that this version knows")]
    Choice {
        /// What there is a choice of, such as `kind of batch`.
        what: &'static str,
        /// The byte that stands for none of its choices.
        found: u8,
    },
    /// A word that is not known.
    #[error("{0:?} is no word that this version knows")]
    Word(String),
    /// A name that is none.
    #[error("{0}")]
    Name(String),
    /// Keys that do not ascend, so one may be there twice.
    #[error("the {0} are not in order, or one is there twice")]
    Order(&'static str),
    /// A value that cannot be.
    #[error("{0} is none")]
    Value(&'static str),
    /// The frame has no shuffle.
    #[error("its frame names no shuffle")]
    NoShuffle,
    /// The frame has another shuffle, or should have none.
    #[error("its frame names another shuffle than its body")]
    OtherShuffle,
    /// A kind that does not belong there.
    #[error("a frame {0:?} is not expected here")]
    Unexpected(Kind),
    /// Records of a client that would take more memory than those of a frame may.
    #[error(
        "its records take {0} bytes of memory and may take {most}: send them in smaller frames",
        most = partage_core::limits::SHUFFLE_FRAME_BYTES
    )]
    Memory(u64),
    /// A text that is too long.
    #[error("a text has {0} bytes, and may have {most}", most = limits::SENTENCE_BYTES)]
    Text(usize),
}
