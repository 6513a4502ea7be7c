//! What clients ask nodes for, and what these answer.
//!
//! | request | answer | what follows |
//! |---|---|---|
//! | start | started, with numbers for the next ones | |
//! | open an attempt | opened | records, in frames numbered from 1, under the number of that call; each is taken, or the attempt is refused |
//! | end it, with what was counted | whole | nothing: the attempt is stored |
//! | abort it | | nothing: it never was |
//! | seal | sealed, or lacks | |
//! | read a partition, an interval, some ranks, or a slice of a range | read, any number of times, then read to the end | |
//! | read a partition where most of it is | the same, or read at, with the name of another node | read the partition, at that node or at this one |
//! | bounds, heavy keys, status, keep alive, delete | bounds, heavy keys, status, alive, deleted | |
//!
//! A client numbers its calls; an answer names the call. Each request may be refused instead ([`Refusal`]). The shuffle stands in
//! the header of the frame.
//!
//! There is no answer "wait": who has no room for records does not read them from the socket, and the client's writes wait.

mod refusal;

pub use partage_service::shuffle::partition::{CutBy, HeavyKey};
pub use partage_service::shuffle::{
    ArrowKind, ColumnCombine, CombinedColumn, RecordKind, ShuffleOptions, SortColumn,
};
pub use refusal::{Again, Refusal, RefusalWord};

use crate::form::{Cursor, Form, choices, fields};
use crate::frame::{Frame, Kind};
use crate::limits::SENTENCE_BYTES;
use crate::malformed::{FrameError, Malformed};
use crate::node::read;
use crate::records::PackedRecords;
use partage_core::base::name::NodeId;
use partage_core::limits::SHUFFLE_FRAME_BYTES;
use partage_service::shuffle::{AttemptId, Bytes, ShuffleId, Terms};
use std::collections::BTreeSet;

/// What a client asks for, of a shuffle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The shuffle begins. Sent again with the same options, it is the same shuffle.
    Start(Terms, ShuffleOptions),
    /// An attempt of an input partition begins, of a shuffle that was started with these terms.
    Open(u32, AttemptId, Terms),
    /// The records of a frame, numbered from 1, of the attempt that this call has opened.
    Records(u64, PackedRecords),
    /// The attempt ends, with so many records and bytes of keys and values.
    End(u64, u64),
    /// The attempt is given up.
    Abort,
    /// The shuffle takes no more; these input partitions are expected.
    Seal(BTreeSet<u32>),
    /// Partition `i` of `n`, cut so.
    ReadPartition(u64, u64, CutBy),
    /// The same, unless another node has most of it: then the answer is the name of that node.
    ReadPartitionNear(u64, u64, CutBy),
    /// The keys from the first, included, to the second, or to the last one.
    ReadKeys(Bytes, Option<Bytes>),
    /// A part of a range: its place in the plan, an interval of keys in it, and the first record and the one behind the last.
    ReadSlice(u64, Option<(Bytes, Option<Bytes>)>, u64, u64),
    /// The records of these ranks among all, from the first, included, to the second.
    ReadRanks(u64, u64),
    /// The keys that bound `n` partitions, cut so.
    Bounds(u64, CutBy),
    /// The keys that have more records than any of `n` partitions.
    HeavyKeys(u64),
    /// How far the shuffle is, and what it holds.
    Status,
    /// The client still needs it: its time to live begins anew.
    KeepAlive,
    /// The client needs the shuffle no more: all nodes drop it.
    Delete,
}

/// How far a shuffle is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It takes records, or is being sealed.
    Open,
    /// It is sealed, and can be read.
    Sealed,
    /// Its records were lost, or are not those that were acknowledged: it cannot be read.
    Failed,
}

/// How a shuffle is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// How far it is.
    pub stage: Stage,
    /// Input partitions with a whole attempt.
    pub winners: u64,
    /// Records of the attempts that are read, or would be if it were sealed now.
    pub records: u64,
    /// Their keys and values, in bytes.
    pub bytes: u64,
    /// The version of the bounds.
    pub version: u32,
    /// How many ranges its keys are divided into.
    pub ranges: u32,
    /// For people: what a seal waits for, or why it has failed; empty: neither.
    pub waits_for: String,
}

/// What a node answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The shuffle has begun, with these terms. And some numbers that were never used, of which the node that answers would lead
    /// the shuffles: a start under one of them, at this node, waits for no other leader.
    Started(Terms, Vec<ShuffleId>),
    /// The attempt is open: its records may come.
    Opened,
    /// The frame of that number was taken: it need not be sent again on this connection.
    Taken(u64),
    /// The attempt is stored, and so is the mark that it is whole.
    Whole,
    /// The shuffle is sealed, with so many records and bytes.
    Sealed(u64, u64),
    /// It is not sealed: these partitions lack a whole attempt.
    Lacks(Vec<u32>),
    /// The next records, in order.
    Read(PackedRecords),
    /// All was read: so many records and bytes.
    ReadEnd(u64, u64),
    /// The partition is read with less work at this node. A client that does not know where it is reads it here.
    ReadAt(NodeId),
    /// Keys that bound partitions: the first key, that of each later partition, and the last key.
    Bounds(Vec<Bytes>),
    /// All records of the shuffle, and the keys that are heavier than a partition, in order, with the ranks at which they begin.
    HeavyKeys(u64, Vec<HeavyKey>),
    /// How the shuffle is.
    Status(Status),
    /// It was kept alive: its time to live begins anew.
    Alive,
    /// It was deleted, now or before.
    Deleted,
    /// Nothing of what was asked for is done.
    Refused(Refusal),
}

fields! {
    Status, "a status", {
        stage: Stage, winners: u64, records: u64, bytes: u64, version: u32, ranges: u32, waits_for: String
    };
}
choices! {
    CutBy, "way to cut", { 1 => Records, 2 => Bytes, 3 => Keys };
    Stage, "stage of a shuffle", { 1 => Open, 2 => Sealed, 3 => Failed };
}

impl Form for String {
    const NAME: &'static str = "a text";
    const LEAST: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        let end = self.floor_char_boundary(SENTENCE_BYTES);
        crate::form::put_bytes(&self.as_bytes()[..end], out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let length = from.length(Self::NAME)?;
        if length > SENTENCE_BYTES {
            return Err(Malformed::Text(length));
        }
        let bytes = from.bytes(length, Self::NAME)?;
        let text = std::str::from_utf8(bytes).map_err(|_| Malformed::Value("a text that is not UTF-8"))?;
        Ok(text.to_owned())
    }
}

impl Form for PackedRecords {
    const NAME: &'static str = "records";
    const LEAST: usize = 2;
    fn put(&self, out: &mut Vec<u8>) {
        crate::form::put_number(self.count(), out);
        crate::form::put_number(self.bytes().len() as u64, out);
        out.extend_from_slice(self.bytes());
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let count = from.number(Self::NAME)?;
        let bytes = from.length(Self::NAME)?;
        crate::records::take(from, count, bytes)
    }
}

/// A call of a client, and what stands with its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call<T> {
    /// The client's number of the call; the answer has the same.
    pub number: u64,
    /// The shuffle that the call is about, as the header of the frame has it.
    pub shuffle: ShuffleId,
    /// What is asked, or answered.
    pub what: T,
}

/// The kind of a frame, and its body behind the number of the call.
macro_rules! calls {
    ($type:ident, { $($kind:ident => $variant:ident $(($($of:ident),*))?),* $(,)? }) => {
        impl Call<$type> {
            /// Makes a frame of it. Records are copied once, into that.
            ///
            /// # Errors
            /// It is too long for a frame.
            pub fn frame(&self) -> Result<Frame, FrameError> {
                let mut body = Vec::with_capacity(self.what.room());
                self.number.put(&mut body);
                let kind = match &self.what {
                    $($type::$variant $(($($of),*))? => {
                        $($($of.put(&mut body);)*)?
                        Kind::$kind
                    })*
                };
                Frame::new(kind, Some(self.shuffle), body)
            }

            /// Reads the call in a frame. Records stay where they lie.
            ///
            /// # Errors
            /// It is of another kind, or malformed.
            pub fn of(frame: &Frame) -> Result<Self, FrameError> {
                read(frame, |kind, from| {
                    let shuffle = frame.shuffle().ok_or(Malformed::NoShuffle)?;
                    let number = Form::take(from)?;
                    let what = match kind {
                        $(Kind::$kind => {
                            $($(let $of = Form::take(from)?;)*)?
                            $type::$variant $(($($of),*))?
                        })*
                        other => return Err(Malformed::Unexpected(other)),
                    };
                    Ok(Call { number, shuffle, what })
                })
            }
        }
    };
}

calls! {
    Request, {
        Start => Start(terms, options),
        Open => Open(partition, attempt, terms),
        Records => Records(number, records),
        End => End(records, bytes),
        Abort => Abort,
        Seal => Seal(partitions),
        ReadPartition => ReadPartition(i, n, by),
        ReadPartitionNear => ReadPartitionNear(i, n, by),
        ReadKeys => ReadKeys(first, end),
        ReadSlice => ReadSlice(range, keys, begin, end),
        ReadRanks => ReadRanks(begin, end),
        AskBounds => Bounds(n, by),
        AskHeavyKeys => HeavyKeys(n),
        AskStatus => Status,
        KeepAlive => KeepAlive,
        Delete => Delete,
    }
}

calls! {
    Answer, {
        Started => Started(terms, numbers),
        Opened => Opened,
        Taken => Taken(number),
        Whole => Whole,
        Sealed => Sealed(records, bytes),
        Lacks => Lacks(partitions),
        Read => Read(records),
        ReadEnd => ReadEnd(records, bytes),
        ReadAt => ReadAt(node),
        Bounds => Bounds(keys),
        HeavyKeys => HeavyKeys(total, keys),
        Status => Status(status),
        Alive => Alive,
        Deleted => Deleted,
        Refused => Refused(refusal),
    }
}

impl Call<Request> {
    /// The call, unless its records would take more memory than those of a frame may, as many small ones do.
    pub(crate) fn within_memory(self) -> Result<Self, FrameError> {
        let memory = match &self.what {
            Request::Records(_, records) => records.memory(),
            _ => 0,
        };
        if memory > SHUFFLE_FRAME_BYTES as u64 {
            return Err(FrameError::Body(Kind::Records, Malformed::Memory(memory)));
        }
        Ok(self)
    }
}

/// What stands before records.
const BEFORE_RECORDS: usize = 40;

impl Request {
    fn room(&self) -> usize {
        match self {
            Request::Records(_, records) => BEFORE_RECORDS + records.bytes().len(),
            _ => BEFORE_RECORDS,
        }
    }
}

impl Answer {
    fn room(&self) -> usize {
        match self {
            Answer::Read(records) => BEFORE_RECORDS + records.bytes().len(),
            _ => BEFORE_RECORDS,
        }
    }
}
