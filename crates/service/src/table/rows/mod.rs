//! Rows: what an entry of a table's log does to the rows of its shard.
//!
//! Every replica applies the committed entries in the order of the log, each by [`apply()`]; so all replicas have the same rows.
//! `apply` judges the conditions of a write, against rows that are the same on each replica. Nothing here depends on the clock of
//! the replica, nor on anything else that two replicas could differ in.
//!
//! | question | answer |
//! |---|---|
//! | version of a row | the position in the log of the entry that wrote it: no later write has the same |
//! | a batch | is one entry: all its operations are done, or none; each sees what those before it have done |
//! | time to live | the leader computes the end of a row from a relative time ([`Expiry::After`]) by its own clock, when it gives the entry its time. Each entry carries that time; the latest of these is the shard's clock ([`ShardState::clock_ms`]), and a row whose time has come by that clock is absent for writes and for reads. So no leader change brings a row back |
//! | rows whose time has come | each entry removes up to [`limits::EXPIRED_ROWS_REMOVED`] of them; an entry without operations does only that |
//! | a request that comes twice | the outcome of a write with a request id is kept for [`limits::ANSWER_KEPT_MS`] by the shard's clock, and the latest [`limits::ANSWERS_KEPT`] at most ([`Applied::forgotten_early`] counts those that are forgotten before their time); the same id again changes nothing and gets the first outcome |
//!
//! A table with a change feed also keeps what became of each row ([`super::feed`]).
//!
//! A shard stores *records* ([`Record`]): rows, the times when rows end, outcomes, and the shard's state. An engine stores them
//! as bytes in one order; only the driver in `crates/table` knows their forms.

use crate::table::feed::{Change, FeedSettings, Place, Removed};
use crate::table::replication::LogPosition;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::PartitionKey;
use partage_core::limits;
use std::sync::Arc;

mod apply;
mod draft;

pub use apply::{Applied, apply, read};

/// The bytes of a value; at most [`limits::VALUE_BYTES`].
pub type Value = Arc<[u8]>;

/// The name that a client gives its write, so that it can send it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub [u8; 16]);

/// A row as it is stored with its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The bytes that the last write has given it.
    pub value: Value,
    /// The entry that wrote it.
    pub version: LogPosition,
    /// When it ends, in milliseconds of Unix time; none = never.
    pub expires_ms: Option<u64>,
}

impl Row {
    /// Whether it is there when the shard's clock shows `clock_ms`.
    pub fn is_there(&self, clock_ms: u64) -> bool {
        self.expires_ms.is_none_or(|end| end > clock_ms)
    }
}

/// What must hold of a row for the operation, and with it the batch, to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Condition {
    /// Nothing must hold: the operation is always done.
    Always,
    /// There is no row.
    Absent,
    /// There is a row, of whichever version.
    Present,
    /// There is a row, of this version.
    Version(LogPosition),
}

/// When a row that is written ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// When the row before would have; never, if there was none.
    AsBefore,
    /// The row never ends by itself.
    Never,
    /// At this time, in milliseconds of Unix time.
    At(u64),
    /// So many milliseconds after the write; at most [`limits::TTL_MS`]. The leader turns it into [`Expiry::At`] by its own
    /// clock, before the write enters the log, so that the clock of the node that took the request does not matter.
    After(u64),
}

impl Expiry {
    /// The expiry of a write that the leader gives the time `at_ms`: never [`Expiry::After`].
    #[must_use]
    pub fn resolved(self, at_ms: u64) -> Expiry {
        match self {
            Expiry::After(ttl_ms) => Expiry::At(at_ms.saturating_add(ttl_ms)),
            Expiry::AsBefore | Expiry::Never | Expiry::At(_) => self,
        }
    }
}

/// What an operation does with its row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Nothing: its condition is checked, and the row is in the outcome.
    Read,
    /// The row has this value.
    Put(Value, Expiry),
    /// The row has this value and does not end, and the outcome does not say whether there was one: so that, as a rule, the row
    /// that was there need not be read.
    Overwrite(Value),
    /// The row is gone; it need not have been there.
    Delete,
    /// The row ends then; nothing, if there is none.
    Expire(Expiry),
    /// The row, a decimal number (0 if there is none), is larger by so much.
    Add(i64),
    /// The row (empty if there is none) is longer by this.
    Append(Value),
}

/// One operation of a write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Operation {
    /// The key of the row that it is about.
    pub key: Key,
    /// What must hold of the row.
    pub condition: Condition,
    /// What it does with the row.
    pub action: Action,
    /// The outcome has the row as it was before. [`Action::Read`] has it anyway.
    pub wants_former: bool,
}

/// What one entry of the log carries.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Write {
    /// The time at the leader, in milliseconds of Unix time.
    pub at_ms: u64,
    /// The client's name for it, if it gave one.
    pub request: Option<Request>,
    /// Done in this order. None: only the shard's clock goes on.
    pub operations: Vec<Operation>,
}

/// A write that may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Request {
    /// The client's name for it.
    pub id: RequestId,
    /// A hash of what the client sent: another write under the same name is refused.
    pub fingerprint: u64,
}

/// What a write has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All operations are done; one answer for each.
    Done {
        /// The version of the rows that were written.
        version: LogPosition,
        /// What each operation has done, in their order.
        results: Vec<Done>,
    },
    /// A condition did not hold; nothing was done.
    NotMet {
        /// The operation, counted from 0.
        operation: usize,
        /// The version of the row, if there is one.
        current: Option<LogPosition>,
    },
    /// An operation could not be done on the row that is there; nothing was done.
    Refused {
        /// The operation, counted from 0.
        operation: usize,
        /// Why it could not be done.
        refusal: Refusal,
    },
    /// Another write had the same request id; nothing was done.
    RequestIdTaken,
}

/// What one operation has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// There was a row before.
    pub existed: bool,
    /// The row before, if it was asked for and there was one.
    pub former: Option<Row>,
    /// What there is of the row now; none = there is none.
    pub now: Option<Now>,
}

/// What an answer says of a row that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The length of its value.
    pub bytes: usize,
    /// The number that it is, after [`Action::Add`].
    pub number: Option<i64>,
    /// When the row ends, in milliseconds of Unix time; none: never.
    pub expires_ms: Option<u64>,
}

/// Why an operation cannot be done on a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// [`Action::Add`] on another value.
    #[error("the value is not a decimal number of 64 bits")]
    NotANumber,
    /// The sum is beyond 64 bits.
    #[error("the sum does not fit a number of 64 bits")]
    Overflow,
    /// [`Action::Append`] beyond the limit.
    #[error("the value would be longer than {max} bytes", max = limits::VALUE_BYTES)]
    TooLong,
}

/// The kept outcome of a write that had a request id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptOutcome {
    /// The shard's clock when it was applied.
    pub at_ms: u64,
    /// The fingerprint of the request ([`Request::fingerprint`]), by which another write under its id is told apart.
    pub fingerprint: u64,
    /// The outcome of the first write with that id.
    pub outcome: Outcome,
}

/// The state of a shard beside its rows, the same on all replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShardState {
    /// The shard's clock, in milliseconds of Unix time: the latest time that an entry carried.
    pub clock_ms: u64,
    /// How many outcomes are kept.
    pub outcomes: u64,
}

/// One record to store, or to delete (`None`, `false`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// The row of a key.
    Row(Key, Option<Row>),
    /// The row of the key ends at that time.
    Ends(u64, Key, bool),
    /// The outcome of a request.
    Outcome(RequestId, Option<KeptOutcome>),
    /// The outcome is of that time.
    OutcomeTime(u64, RequestId, bool),
    /// The state of the shard.
    ShardState(ShardState),
    /// The change that the entry at that position has made of a row, of a table with a feed.
    Change(LogPosition, Key, Option<Change>),
    /// Up to where changes are removed, of a table with a feed.
    Removed(Removed),
}

/// The stored records, as reads and writes see them. Errors are those of the storage.
pub trait Records {
    /// Why something could not be read.
    type Error;

    /// Whether [`Applied::former`] is wanted, for indexes.
    fn wants_former(&self) -> bool {
        false
    }

    /// Whether any row ends: if not, a row may be replaced without a look at it.
    fn has_ends(&self) -> bool {
        true
    }

    /// The row of a key, also one whose time has come.
    fn row(&self, key: &Key) -> Result<Option<Row>, Self::Error>;

    /// The first `most` rows that end at `until_ms` or before, with when they end, in the order of that.
    fn ended(&self, until_ms: u64, most: usize) -> Result<Vec<(u64, Key)>, Self::Error>;

    /// The outcome of a request.
    fn answer(&self, request: &RequestId) -> Result<Option<KeptOutcome>, Self::Error>;

    /// The first `most` outcomes of `until_ms` or before, with when they were given, in the order of that.
    fn answers(&self, until_ms: u64, most: usize) -> Result<Vec<(u64, RequestId)>, Self::Error>;

    /// The state of the shard.
    fn shard_state(&self) -> Result<ShardState, Self::Error>;

    /// How changes are kept; none: they are not.
    fn feed(&self) -> Option<FeedSettings> {
        None
    }

    /// The first changes in the order of their places, as long as they are of `until_ms` or before: `most`, or as many as have
    /// `bytes` of values, whichever are fewer; one at least, if there is one.
    fn changes(&self, _until_ms: u64, _most: usize, _bytes: usize) -> Result<Vec<Place>, Self::Error> {
        Ok(Vec::new())
    }

    /// Up to where changes are removed.
    fn removed(&self) -> Result<Removed, Self::Error> {
        Ok(Removed::default())
    }
}

/// A write that is refused before it enters a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The write does nothing.
    #[error("the write has no operation: give one or more")]
    Empty,
    /// The batch has too many operations.
    #[error("the batch has {0} operations and may have {max}: send several", max = limits::BATCH_OPERATIONS)]
    TooMany(usize),
    /// A value is too long.
    #[error("the value of key '{key}' has {bytes} bytes and may have {max}: store it in parts", max = limits::VALUE_BYTES)]
    ValueTooLong {
        /// The key of the row with that value.
        key: Key,
        /// The length of the value.
        bytes: usize,
    },
    /// A time to live is too long.
    #[error("the time to live of key '{key}' is {ttl_ms} ms and may be {max} ms: leave it out for a row that does not end", max = limits::TTL_MS)]
    TtlTooLong {
        /// The key of the row that would end.
        key: Key,
        /// The time to live that was asked for.
        ttl_ms: u64,
    },
    /// The batch has too many bytes.
    #[error("the batch has {0} bytes of keys and values and may have {max}: send several", max = limits::BATCH_BYTES)]
    TooLong(usize),
    /// The table has JSON values only, and this is none.
    #[error("the value of key '{key}' is not JSON, and the table takes nothing else: {why}")]
    NotJson {
        /// The key of the row with that value.
        key: Key,
        /// What is wrong, and where.
        why: String,
    },
    /// The table has JSON values only, and what an append makes need not be one.
    #[error(
        "the table takes JSON values only, and what an append makes of key '{0}' may be none: put the whole value"
    )]
    AppendToJson(Key),
    /// Its keys are not in one partition.
    #[error(
        "the keys '{first}' and '{other}' have different partition keys, and a batch is done as one only within one: send a batch for each"
    )]
    SeveralPartitions {
        /// The key of the first operation.
        first: Key,
        /// One with another partition key.
        other: Key,
    },
}

impl Write {
    /// Refuses what is beyond the limits, and what is not in one partition of a table with such partition keys.
    pub fn check(&self, partition_key: PartitionKey) -> Result<(), Invalid> {
        let first = self.operations.first().ok_or(Invalid::Empty)?;
        if self.operations.len() > limits::BATCH_OPERATIONS {
            return Err(Invalid::TooMany(self.operations.len()));
        }
        let mut bytes = 0;
        for operation in &self.operations {
            let key = operation.key.as_bytes();
            let value = match &operation.action {
                Action::Put(value, _) | Action::Overwrite(value) | Action::Append(value) => value.len(),
                Action::Read | Action::Delete | Action::Expire(_) | Action::Add(_) => 0,
            };
            if value > limits::VALUE_BYTES {
                return Err(Invalid::ValueTooLong { key: operation.key.clone(), bytes: value });
            }
            if let Action::Put(_, Expiry::After(ttl_ms)) | Action::Expire(Expiry::After(ttl_ms)) =
                operation.action
                && ttl_ms > limits::TTL_MS
            {
                return Err(Invalid::TtlTooLong { key: operation.key.clone(), ttl_ms });
            }
            if partition_key.of(key) != partition_key.of(first.key.as_bytes()) {
                let (first, other) = (first.key.clone(), operation.key.clone());
                return Err(Invalid::SeveralPartitions { first, other });
            }
            bytes += key.len() + value;
        }
        if bytes > limits::BATCH_BYTES { Err(Invalid::TooLong(bytes)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
