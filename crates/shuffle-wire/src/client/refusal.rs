//! Refusals: a word that programs read, whether to run the attempt again, and a sentence for people.

use crate::form::{Cursor, Form, choices, fields};
use crate::malformed::{FrameError, Malformed};
use partage_service::shuffle::buffer::Failed as AttemptFailed;
use partage_service::shuffle::holder::NotRead;
use partage_service::shuffle::leader::Failed as LeaderFailed;
use partage_service::shuffle::options::BadShuffleOptions;
use partage_service::shuffle::reader::Failed as ReadFailed;
use partage_service::shuffle::{Ended, Failure};

/// Why nothing of what was asked for is done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{word}: {why}")]
pub struct Refusal {
    /// The reason, for programs that react to it.
    pub word: RefusalWord,
    /// Whether the client may ask again, or must run its attempt again.
    pub again: Again,
    /// The reason in a sentence, for people and logs.
    pub why: String,
}

/// What to do after a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Nothing: it will be refused again.
    No,
    /// Send the same request again, later or to another node.
    Request,
    /// Run the attempt again, under another id.
    Attempt,
}

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident = $word:literal;)*) => {
        /// What a program tells refusals apart by.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum RefusalWord {
            $($(#[$doc])* $name,)*
        }

        impl RefusalWord {
            /// Every word: [`Form::take`] finds the one that came.
            pub const ALL: &[RefusalWord] = &[$(RefusalWord::$name,)*];

            /// The word as it is sent and logged.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(RefusalWord::$name => $word,)*
                }
            }
        }
    };
}

words! {
    /// The id of the attempt was used before.
    AttemptIdUsed = "attempt-id-used";
    /// A frame of the attempt is missing.
    FrameMissing = "frame-missing";
    /// The end does not count what came.
    CountDiffers = "count-differs";
    /// A key, a record, or a frame of records is too large.
    RecordTooLarge = "record-too-large";
    /// The value of a record is no number, and the shuffle combines numbers.
    NoNumber = "no-number";
    /// The buffer has no such attempt.
    AttemptUnknown = "attempt-unknown";
    /// Too few nodes have stored it.
    TooFewNodes = "too-few-nodes";
    /// The client was silent for too long.
    ClientSilent = "client-silent";
    /// The shuffle is sealed without this partition.
    PartitionNotExpected = "partition-not-expected";
    /// Schema, order or encoding are not those that the shuffle was started with.
    RecordKindDiffers = "record-kind-differs";
    /// The shuffle cannot be started with such options.
    BadOptions = "bad-options";
    /// A shuffle with that number was started with other options.
    StartDiffers = "start-differs";
    /// The shuffle was deleted.
    ShuffleDeleted = "shuffle-deleted";
    /// The shuffle has expired.
    ShuffleExpired = "shuffle-expired";
    /// The shuffle is unknown.
    ShuffleUnknown = "shuffle-unknown";
    /// The shuffle has failed.
    ShuffleFailed = "shuffle-failed";
    /// The shuffle is not sealed, and so not read.
    NotSealed = "not-sealed";
    /// This node does not lead the shuffle.
    NotLeading = "not-leading";
    /// There is no such partition.
    NoSuchPartition = "no-such-partition";
    /// This node lacks what is to be read.
    HolderLacks = "holder-lacks";
    /// This node has other records than were counted.
    HolderDiffers = "holder-differs";
    /// The object store does not give what the client reads.
    ObjectStore = "object-store";
    /// The object store has lost some of what the client reads.
    ObjectLost = "object-lost";
    /// No node could read it.
    NoHolder = "no-holder";
    /// The node has too much to do.
    Busy = "busy";
    /// The node takes no attempts, as it stores only.
    StoresOnly = "stores-only";
    /// The disk of the node is full.
    DiskFull = "disk-full";
    /// The owner has as much as it may have.
    QuotaUsedUp = "quota-used-up";
    /// The frame, or what stands in it, is not taken.
    BadFrame = "bad-frame";
    /// The frame has another version.
    OtherVersion = "other-version";
    /// The node is not the one that is meant.
    OtherNode = "other-node";
    /// The connection was silent for too long, or took nothing.
    ConnectionSilent = "connection-silent";
    /// The node has as many connections as it may have.
    TooManyConnections = "too-many-connections";
    /// The node is shutting down; another one may take the request.
    Ending = "ending";
}

impl std::fmt::Display for RefusalWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl Form for RefusalWord {
    const NAME: &'static str = "a word";
    const LEAST: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        self.as_str().to_owned().put(out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let word = String::take(from)?;
        let found = RefusalWord::ALL.iter().find(|known| known.as_str() == word);
        found.copied().ok_or(Malformed::Word(word))
    }
}

fields! {
    Refusal, "a refusal", { word: RefusalWord, again: Again, why: String };
}
choices! {
    Again, "answer whether to try again", { 0 => No, 1 => Request, 2 => Attempt };
}

impl Refusal {
    /// A refusal with the sentence `why`; [`Form::put`] cuts one that is too long.
    pub fn new(word: RefusalWord, again: Again, why: impl std::fmt::Display) -> Refusal {
        Refusal { word, again, why: why.to_string() }
    }
}

fn word_of(how: Ended) -> RefusalWord {
    match how {
        Ended::Deleted => RefusalWord::ShuffleDeleted,
        Ended::Expired => RefusalWord::ShuffleExpired,
        Ended::Unknown => RefusalWord::ShuffleUnknown,
    }
}

impl From<Ended> for Refusal {
    fn from(how: Ended) -> Refusal {
        Refusal::new(word_of(how), Again::No, how)
    }
}

impl From<Failure> for Refusal {
    fn from(why: Failure) -> Refusal {
        Refusal::new(RefusalWord::ShuffleFailed, Again::No, why)
    }
}

impl From<AttemptFailed> for Refusal {
    fn from(why: AttemptFailed) -> Refusal {
        let (word, again) = match &why {
            AttemptFailed::IdTwice => (RefusalWord::AttemptIdUsed, Again::Attempt),
            AttemptFailed::FrameMissing { .. } => (RefusalWord::FrameMissing, Again::Attempt),
            AttemptFailed::CountDiffers { .. } => (RefusalWord::CountDiffers, Again::Attempt),
            AttemptFailed::TooLarge { .. } | AttemptFailed::FrameTooLarge { .. } => {
                (RefusalWord::RecordTooLarge, Again::No)
            }
            AttemptFailed::NoNumber(_) => (RefusalWord::NoNumber, Again::No),
            AttemptFailed::CombinesOtherwise | AttemptFailed::OtherDurability => {
                (RefusalWord::StartDiffers, Again::No)
            }
            AttemptFailed::Unknown => (RefusalWord::AttemptUnknown, Again::Attempt),
            AttemptFailed::TooFewNodes { .. } => (RefusalWord::TooFewNodes, Again::Attempt),
            AttemptFailed::Silent { .. } => (RefusalWord::ClientSilent, Again::Attempt),
            AttemptFailed::Sealed => (RefusalWord::PartitionNotExpected, Again::No),
            AttemptFailed::Over(how) => (word_of(*how), Again::No),
            AttemptFailed::ShuffleFailed => (RefusalWord::ShuffleFailed, Again::No),
        };
        Refusal::new(word, again, why)
    }
}

impl From<LeaderFailed> for Refusal {
    fn from(why: LeaderFailed) -> Refusal {
        let (word, again) = match &why {
            LeaderFailed::NotLeading => (RefusalWord::NotLeading, Again::Request),
            LeaderFailed::Over(how) => (word_of(*how), Again::No),
            LeaderFailed::Failed(_) => (RefusalWord::ShuffleFailed, Again::No),
            LeaderFailed::NotExpected(_) => (RefusalWord::PartitionNotExpected, Again::No),
            LeaderFailed::StartDiffers(_) => (RefusalWord::StartDiffers, Again::No),
            LeaderFailed::QuotaUsedUp(_) => (RefusalWord::QuotaUsedUp, Again::Request),
        };
        Refusal::new(word, again, why)
    }
}

impl From<BadShuffleOptions> for Refusal {
    fn from(why: BadShuffleOptions) -> Refusal {
        Refusal::new(RefusalWord::BadOptions, Again::No, why)
    }
}

impl From<NotRead> for Refusal {
    fn from(why: NotRead) -> Refusal {
        let (word, again) = match &why {
            NotRead::Lacks => (RefusalWord::HolderLacks, Again::Request),
            NotRead::Busy | NotRead::Sorts => (RefusalWord::Busy, Again::Request),
            NotRead::Differs => (RefusalWord::HolderDiffers, Again::Request),
            NotRead::ObjectStore => (RefusalWord::ObjectStore, Again::Request),
            NotRead::ObjectLost => (RefusalWord::ObjectLost, Again::No),
            NotRead::Over(how) => (word_of(*how), Again::No),
        };
        Refusal::new(word, again, why)
    }
}

impl From<ReadFailed> for Refusal {
    fn from(why: ReadFailed) -> Refusal {
        let (word, again) = match &why {
            // All holders read from the one object store.
            ReadFailed::NoHolder(_, Some(NotRead::ObjectStore)) => (RefusalWord::ObjectStore, Again::Request),
            ReadFailed::NoHolder(_, Some(NotRead::ObjectLost)) => (RefusalWord::ObjectLost, Again::No),
            ReadFailed::NoHolder(..) => (RefusalWord::NoHolder, Again::Request),
            ReadFailed::Over(how) => (word_of(*how), Again::No),
        };
        Refusal::new(word, again, why)
    }
}

/// A frame that is not taken ends the connection, and with it its attempts: they are run again, but for what would be refused
/// again.
impl From<&FrameError> for Refusal {
    fn from(why: &FrameError) -> Refusal {
        let (word, again) = match why {
            FrameError::Version(_) => (RefusalWord::OtherVersion, Again::No),
            FrameError::HeaderSum
            | FrameError::BodySum(_)
            | FrameError::Cut { .. }
            | FrameError::Doubled { .. }
            | FrameError::Missing { .. } => (RefusalWord::BadFrame, Again::Attempt),
            FrameError::NotOurs(_)
            | FrameError::Flags(_)
            | FrameError::Kind(_)
            | FrameError::TooLong { .. }
            | FrameError::Body(..) => (RefusalWord::BadFrame, Again::No),
        };
        Refusal::new(word, again, why)
    }
}
