//! Why an attempt is not stored.

use crate::shuffle::Ended;
use crate::shuffle::combine::NoNumber;
use partage_core::limits;

/// Why an attempt is not stored. It says whether to run it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// The id was used before.
    #[error("this attempt id was used before: run the attempt again under another one")]
    IdTwice,
    /// A frame is missing.
    #[error("frame {expected} of the attempt was expected and {found} came: run the attempt again")]
    FrameMissing {
        /// The number of the next frame.
        expected: u64,
        /// That of the one that came.
        found: u64,
    },
    /// The client's count at the end differs from what came.
    #[error("the attempt ends with {said} records and bytes by its client's count and {seen} came: run the attempt again", said = pair(.said), seen = pair(.seen))]
    CountDiffers {
        /// Records and bytes by the client.
        said: (u64, u64),
        /// Records and bytes that the buffer has taken of it.
        seen: (u64, u64),
    },
    /// A record is too large.
    #[error(
        "a record of {record} bytes, its key of {key}, is too large: the limits are {most} and {most_key}; do not run the attempt again with it",
        most = limits::SHUFFLE_RECORD_BYTES,
        most_key = limits::SHUFFLE_KEY_BYTES
    )]
    TooLarge {
        /// Bytes of the key.
        key: usize,
        /// Bytes of key and value.
        record: u64,
    },
    /// A frame is too large.
    #[error(
        "the records of a frame take {bytes} bytes of memory and may take {most}: send them in smaller frames; do not run the attempt again with it",
        most = limits::SHUFFLE_FRAME_BYTES
    )]
    FrameTooLarge {
        /// Bytes of its records, with what each takes in memory besides.
        bytes: u64,
    },
    /// A record cannot be combined with others.
    #[error("{0}; do not run the attempt again with it")]
    NoNumber(NoNumber),
    /// Another attempt of the shuffle says that records are combined otherwise.
    #[error(
        "the attempt was opened with another way to combine records than others of its shuffle: give the handle that the start has printed; do not run the attempt again with this one"
    )]
    CombinesOtherwise,
    /// The leader of the shuffle says another durability.
    #[error(
        "the attempt was opened with another durability than its shuffle was started with: give the handle that the start has printed; do not run the attempt again with this one"
    )]
    OtherDurability,
    /// The buffer knows no such attempt.
    #[error(
        "the buffer has no such attempt, as it was restarted or the attempt failed: run the attempt again"
    )]
    Unknown,
    /// Too few nodes store it.
    #[error(
        "fewer nodes than {replicas} have stored the attempt in time: run it again when more nodes are there"
    )]
    TooFewNodes {
        /// R: so many nodes had to store each of its batches.
        replicas: usize,
    },
    /// Its client sends nothing.
    #[error("the client of the attempt has sent nothing for {silent_ms} ms: run the attempt again")]
    Silent {
        /// The limit that the silence has reached, in milliseconds.
        silent_ms: u64,
    },
    /// The shuffle is sealed without its partition.
    #[error("the shuffle is sealed and does not expect this partition: do not run the attempt again")]
    Sealed,
    /// There is no shuffle any more.
    #[error("{0}")]
    Over(Ended),
    /// The shuffle has failed: no client can read it.
    #[error("the shuffle has failed: start another one")]
    ShuffleFailed,
}

fn pair((records, bytes): &(u64, u64)) -> String {
    format!("{records}/{bytes}")
}
