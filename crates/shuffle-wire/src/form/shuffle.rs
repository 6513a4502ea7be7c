//! The forms of what the machines of a shuffle know: bounds, plans, decisions, samples.

use super::{Cursor, Form};
use crate::malformed::Malformed;
use partage_core::base::id::{Epoch, Incarnation};
use partage_core::base::name::NodeId;
use partage_service::shuffle::bounds::{Bounds, Range, Tag};
use partage_service::shuffle::log::{Append, Decision, Decisions, Refused, Superseded, What};
use partage_service::shuffle::message::{WhyNotStored, Word};
use partage_service::shuffle::options::OptionDifference;
use partage_service::shuffle::plan::{Division, Plan, PlanRange, Winner};
use partage_service::shuffle::record::{Batch, BatchKey, EndMark, Numbers, Stream};
use partage_service::shuffle::sketch::Sketch;
use partage_service::shuffle::{
    ArrowKind, AttemptId, AttemptKey, BufferId, Bytes, ColumnCombine, Combine, CombinedColumn, Durability,
    Ended, Failure, PoolSlot, RangeId, RecordKind, ShuffleId, ShuffleOptions, SortColumn, TaskId, Terms,
    Writer,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Values that are their fields, one after the other.
macro_rules! fields {
    ($($type:ident, $name:literal, { $($field:ident: $of:ty),* };)*) => {
        $(impl Form for $type {
            const NAME: &'static str = $name;
            const LEAST: usize = 0 $(+ <$of as Form>::LEAST)*;
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }
            fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
                Ok($type { $($field: Form::take(from)?),* })
            }
        })*
    };
}
pub(crate) use fields;

/// Values that are one of several: a byte, and what belongs to it.
macro_rules! choices {
    ($($type:ident, $name:literal, { $($code:literal => $variant:ident $(($($of:ident),*))? $({$($field:ident),*})?),* $(,)? };)*) => {
        $(impl Form for $type {
            const NAME: &'static str = $name;
            const LEAST: usize = 1;
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($type::$variant $(($($of),*))? $({$($field),*})? => {
                        out.push($code);
                        $($($of.put(out);)*)?
                        $($($field.put(out);)*)?
                    })*
                }
            }
            fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
                match u8::take(from)? {
                    $($code => {
                        $($(let $of = Form::take(from)?;)*)?
                        $($(let $field = Form::take(from)?;)*)?
                        Ok($type::$variant $(($($of),*))? $({$($field),*})?)
                    })*
                    found => Err(Malformed::Choice { what: Self::NAME, found }),
                }
            }
        })*
    };
}
pub(crate) use choices;

fields! {
    BufferId, "a buffer", { node: NodeId, incarnation: Incarnation };
    AttemptKey, "an attempt of a buffer", { buffer: BufferId, number: u64 };
    TaskId, "a task", { epoch: Epoch, number: u64 };
    Terms, "the terms of a shuffle", {
        stashes: u32, ranges: u32, weight: u16, combine: Option<Combine>, durability: Durability
    };
    ArrowKind, "a kind of rows", { encoding: u16, schema: Bytes, order: Vec<SortColumn>, combine: Vec<CombinedColumn> };
    CombinedColumn, "a combined column", { column: u32, by: ColumnCombine };
    SortColumn, "a column", { column: u32, descends: bool, nulls_first: bool };
    ShuffleOptions, "the options of a shuffle", {
        kind: RecordKind, unsealed_ttl_ms: Option<u64>, sealed_ttl_ms: Option<u64>, owner: String
    };
    Tag, "a tag", { version: u32, range: RangeId };
    Range, "a range of bounds", { id: RangeId, begins: Bytes };
    Bounds, "bounds", { version: u32, ranges: Vec<Range> };
    Stream, "a stream", { shuffle: ShuffleId, slot: PoolSlot, writer: Writer };
    BatchKey, "the key of a batch", { stream: Stream, number: u64 };
    EndMark, "an end mark", {
        attempt: AttemptKey, partition: u32, id: AttemptId, records: u64, bytes: u64, last: BTreeMap<PoolSlot, u64>
    };
    Winner, "a winner", { partition: u32, records: u64, bytes: u64 };
    PlanRange, "a range of a plan", {
        id: RangeId, since: u32, begins: Bytes, slot: PoolSlot, records: u64, bytes: u64
    };
    Plan, "a plan", {
        shuffle: ShuffleId,
        winners: Arc<BTreeMap<AttemptKey, Winner>>,
        needed: BTreeMap<PoolSlot, BTreeMap<Writer, u64>>,
        ranges: Vec<PlanRange>
    };
    Division, "a division", {
        task: TaskId,
        shuffle: ShuffleId,
        slot: PoolSlot,
        tags: BTreeMap<Tag, BTreeMap<Writer, u64>>,
        upto: BTreeMap<Writer, u64>,
        to: Arc<Bounds>,
        durability: Durability
    };
    Superseded, "what is superseded", {
        slot: PoolSlot,
        tags: Vec<Tag>,
        upto: BTreeMap<Writer, u64>,
        writer: Writer,
        last: BTreeMap<PoolSlot, u64>
    };
    Decisions, "the decisions of a slot", {
        epoch: Epoch,
        sequence: u64,
        living: BTreeMap<ShuffleId, Vec<Decision>>,
        ended: VecDeque<(ShuffleId, Ended)>
    };
    Append, "decisions of a leader", { slot: PoolSlot, epoch: Epoch, what: What };
}

choices! {
    RecordKind, "kind of records", { 1 => Raw, 2 => Arrow(kind) };
    OptionDifference, "difference of options", {
        1 => Kind, 2 => UnsealedTtl, 3 => SealedTtl, 4 => Owner, 5 => Combine, 6 => Durability
    };
    ColumnCombine, "way to combine a column", { 1 => Count, 2 => Sum, 3 => Min, 4 => Max };
    Combine, "way to combine records", {
        1 => Count, 2 => SumI64, 3 => MinI64, 4 => MaxI64, 5 => SumF64, 6 => MinF64, 7 => MaxF64
    };
    Durability, "durability", { 1 => Disk, 2 => Memory };
    Writer, "kind of writer", { 1 => Buffer(buffer), 2 => Division(task, buffer), 3 => Objects(buffer) };
    Ended, "end of a shuffle", { 1 => Deleted, 2 => Expired, 3 => Unknown };
    Failure, "failure of a shuffle", {
        1 => Differs { found, found_bytes, acknowledged, acknowledged_bytes }, 2 => Lost
    };
    Decision, "decision", {
        1 => Start(terms, options), 2 => Bounds(bounds), 3 => Superseded(what), 4 => Sealed(plan), 5 => Failed(why), 6 => Ended(how)
    };
    What, "kind of append", { 1 => Whole(decisions), 2 => After(number, decisions) };
    Refused, "refusal of decisions", { 1 => Stale(epoch), 2 => Lacks };
    WhyNotStored, "reason why a batch is not stored", {
        1 => Unknown, 2 => Soon, 3 => Busy, 4 => Full, 5 => Elsewhere
    };
    Word, "state of a shuffle", {
        1 => Open(bounds, durability), 2 => Sealed(plan), 3 => Failed(why), 4 => Ended(how)
    };
}

impl Form for Numbers {
    const NAME: &'static str = "the numbers of a stream";
    const LEAST: usize = 9;
    fn put(&self, out: &mut Vec<u8>) {
        let (upto, beyond) = self.parts();
        upto.put(out);
        beyond.put(out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let (upto, beyond) = (Form::take(from)?, Form::take(from)?);
        Numbers::of_parts(upto, beyond).ok_or(Malformed::Value(Self::NAME))
    }
}

impl Form for Sketch {
    const NAME: &'static str = "a sketch";
    const LEAST: usize = 13;
    fn put(&self, out: &mut Vec<u8>) {
        let (k, seed, levels) = self.parts();
        u32::try_from(k).unwrap_or(u32::MAX).put(out);
        seed.put(out);
        levels.to_vec().put(out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let (k, seed, levels) = (u32::take(from)?, Form::take(from)?, Form::take(from)?);
        Sketch::of_parts(k as usize, seed, levels).ok_or(Malformed::Value(Self::NAME))
    }
}

impl Form for Batch {
    const NAME: &'static str = "a batch";
    const LEAST: usize = crate::batch::LEAST;
    fn put(&self, out: &mut Vec<u8>) {
        crate::batch::put(self, out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        crate::batch::take(from)
    }
}
