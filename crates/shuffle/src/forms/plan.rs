//! The stored forms of bounds, and of the plan of a sealed shuffle.
//!
//! ```text
//! bounds  version 4 | ranges 4 | ( range 8 | first key ) for each
//! plan    shuffle 16 | winners 4 | ( attempt | partition 4 | records 8 | bytes 8 ) for each
//!         | slots 4 | ( slot 4 | writers 4 | ( writer | last batch 8 ) for each ) for each
//!         | ranges 4 | ( range 8 | since 4 | first key | slot 4 | records 8 | bytes 8 ) for each
//! ```

use super::{
    attempt, bytes, items, put_attempt, put_bytes, put_count, put_writer, slot, u32, u64, u128, writer,
};
use bytes::BufMut;
use partage_service::shuffle::bounds::{Bounds, Range};
use partage_service::shuffle::plan::{Plan, PlanRange, Winner};
use partage_service::shuffle::{RangeId, ShuffleId, Writer};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) fn put_bounds(out: &mut Vec<u8>, bounds: &Bounds) {
    out.put_u32(bounds.version);
    put_count(out, bounds.ranges.len());
    for range in &bounds.ranges {
        out.put_u64(range.id.0);
        put_bytes(out, &range.begins);
    }
}

pub(crate) fn bounds(from: &mut &[u8]) -> Option<Bounds> {
    let version = u32(from)?;
    let ranges = items(from, |from| Some(Range { id: RangeId(u64(from)?), begins: bytes(from)? }))?;
    Some(Bounds { version, ranges })
}

/// Up to which batch of each writer something goes.
pub(crate) fn put_upto(out: &mut Vec<u8>, upto: &BTreeMap<Writer, u64>) {
    put_count(out, upto.len());
    for (writer, last) in upto {
        put_writer(out, writer);
        out.put_u64(*last);
    }
}

pub(crate) fn upto(from: &mut &[u8]) -> Option<BTreeMap<Writer, u64>> {
    items(from, |from| Some((writer(from)?, u64(from)?)))
}

pub(crate) fn put_plan(out: &mut Vec<u8>, plan: &Plan) {
    out.put_u128(plan.shuffle.0);
    put_count(out, plan.winners.len());
    for (attempt, winner) in plan.winners.iter() {
        put_attempt(out, attempt);
        out.put_u32(winner.partition);
        out.put_u64(winner.records);
        out.put_u64(winner.bytes);
    }
    put_count(out, plan.needed.len());
    for (slot, needed) in &plan.needed {
        out.put_u32(slot.0);
        put_upto(out, needed);
    }
    put_count(out, plan.ranges.len());
    for range in &plan.ranges {
        out.put_u64(range.id.0);
        out.put_u32(range.since);
        put_bytes(out, &range.begins);
        out.put_u32(range.slot.0);
        out.put_u64(range.records);
        out.put_u64(range.bytes);
    }
}

pub(crate) fn plan(from: &mut &[u8]) -> Option<Plan> {
    Some(Plan {
        shuffle: ShuffleId(u128(from)?),
        winners: Arc::new(items(from, |from| Some((attempt(from)?, winner(from)?)))?),
        needed: items(from, |from| Some((slot(from)?, upto(from)?)))?,
        ranges: items(from, range)?,
    })
}

fn winner(from: &mut &[u8]) -> Option<Winner> {
    Some(Winner { partition: u32(from)?, records: u64(from)?, bytes: u64(from)? })
}

fn range(from: &mut &[u8]) -> Option<PlanRange> {
    Some(PlanRange {
        id: RangeId(u64(from)?),
        since: u32(from)?,
        begins: bytes(from)?,
        slot: slot(from)?,
        records: u64(from)?,
        bytes: u64(from)?,
    })
}
