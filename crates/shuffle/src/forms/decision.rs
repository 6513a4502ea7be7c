//! The stored form of what the log has of a slot: the whole copy, or decisions that follow.
//!
//! ```text
//! whole     version 1 | 1 | epoch 8 | sequence 8 | shuffles 4 | ( shuffle 16 | decisions 4 | decision … ) for each
//!           | ended 4 | ( shuffle 16 | how 1 ) for each
//! lost      version 1 | 3
//! after     version 1 | 2 | sequence before 8 | decisions 4 | ( shuffle 16 | decision ) for each
//! decision  kind 1 | stashes 4, ranges 4, weight 2, combine 1, durability 1 and options; or bounds, superseded, plan, failure,
//!           how, or nothing of a loss
//! ```

use super::options::{combine, durability, options, put_combine, put_durability, put_options};
use super::plan::{bounds, plan, put_bounds, put_plan, put_upto, upto};
use super::{VERSION, items, put_count, put_writer, slot, u8, u16, u32, u64, u128, writer};
use bytes::BufMut;
use partage_core::base::id::Epoch;
use partage_service::shuffle::bounds::Tag;
use partage_service::shuffle::log::{Decision, Decisions, Superseded};
use partage_service::shuffle::{Ended, Failure, RangeId, ShuffleId, Terms};

const WHOLE: u8 = 1;
const AFTER: u8 = 2;
const LOST: u8 = 3;

const START: u8 = 1;
const BOUNDS: u8 = 2;
const SUPERSEDED: u8 = 3;
const SEALED: u8 = 4;
const FAILED: u8 = 5;
const ENDED: u8 = 6;
const ALL_LOST: u8 = 7;

const DELETED: u8 = 1;
const EXPIRED: u8 = 2;
const UNKNOWN: u8 = 3;

/// What one write to the log of a slot says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    /// The copy is this one.
    Whole(Decisions),
    /// These follow on the decision of that number.
    After(u64, Vec<(ShuffleId, Decision)>),
    /// There were decisions that cannot be read: the slot waits for a leader's copy.
    Lost,
}

/// The form of what is lost.
pub(crate) fn encode_lost() -> Vec<u8> {
    vec![VERSION, LOST]
}

/// The form of a whole copy.
pub(crate) fn encode_whole(copy: &Decisions) -> Vec<u8> {
    let mut out = vec![VERSION, WHOLE];
    out.put_u64(copy.epoch.0);
    out.put_u64(copy.sequence);
    put_count(&mut out, copy.living.len());
    for (shuffle, decisions) in &copy.living {
        out.put_u128(shuffle.0);
        put_count(&mut out, decisions.len());
        decisions.iter().for_each(|decision| put_decision(&mut out, decision));
    }
    put_count(&mut out, copy.ended.len());
    for (shuffle, how) in &copy.ended {
        out.put_u128(shuffle.0);
        put_ended(&mut out, *how);
    }
    out
}

/// The form of decisions that follow on the one of that number.
pub(crate) fn encode_after(before: u64, decisions: &[(ShuffleId, Decision)]) -> Vec<u8> {
    let mut out = vec![VERSION, AFTER];
    out.put_u64(before);
    put_count(&mut out, decisions.len());
    for (shuffle, decision) in decisions {
        out.put_u128(shuffle.0);
        put_decision(&mut out, decision);
    }
    out
}

/// What a form says.
pub(crate) fn decode(form: &[u8]) -> Option<Item> {
    let from = &mut &form[..];
    if u8(from)? != VERSION {
        return None;
    }
    let item = match u8(from)? {
        WHOLE => Item::Whole(Decisions {
            epoch: Epoch(u64(from)?),
            sequence: u64(from)?,
            living: items(from, |from| Some((ShuffleId(u128(from)?), items(from, decision)?)))?,
            ended: items(from, |from| Some((ShuffleId(u128(from)?), ended(from)?)))?,
        }),
        AFTER => {
            let before = u64(from)?;
            Item::After(before, items(from, |from| Some((ShuffleId(u128(from)?), decision(from)?)))?)
        }
        LOST => Item::Lost,
        _ => return None,
    };
    from.is_empty().then_some(item)
}

fn put_decision(out: &mut Vec<u8>, decision: &Decision) {
    match decision {
        Decision::Start(terms, options) => {
            out.put_u8(START);
            out.put_u32(terms.stashes);
            out.put_u32(terms.ranges);
            out.put_u16(terms.weight);
            put_combine(out, terms.combine);
            put_durability(out, terms.durability);
            put_options(out, options);
        }
        Decision::Bounds(bounds) => {
            out.put_u8(BOUNDS);
            put_bounds(out, bounds);
        }
        Decision::Superseded(superseded) => {
            out.put_u8(SUPERSEDED);
            put_superseded(out, superseded);
        }
        Decision::Sealed(plan) => {
            out.put_u8(SEALED);
            put_plan(out, plan);
        }
        Decision::Failed(Failure::Differs { found, found_bytes, acknowledged, acknowledged_bytes }) => {
            out.put_u8(FAILED);
            for number in [found, found_bytes, acknowledged, acknowledged_bytes] {
                out.put_u64(*number);
            }
        }
        Decision::Failed(Failure::Lost) => out.put_u8(ALL_LOST),
        Decision::Ended(how) => {
            out.put_u8(ENDED);
            put_ended(out, *how);
        }
    }
}

fn decision(from: &mut &[u8]) -> Option<Decision> {
    Some(match u8(from)? {
        START => {
            let (stashes, ranges, weight) = (u32(from)?, u32(from)?, u16(from)?);
            let (combine, durability) = (combine(from)?, durability(from)?);
            let terms = Terms { stashes, ranges, weight, combine, durability };
            Decision::Start(terms, options(from)?.into())
        }
        BOUNDS => Decision::Bounds(bounds(from)?.into()),
        SUPERSEDED => Decision::Superseded(superseded(from)?.into()),
        SEALED => Decision::Sealed(plan(from)?.into()),
        FAILED => Decision::Failed(Failure::Differs {
            found: u64(from)?,
            found_bytes: u64(from)?,
            acknowledged: u64(from)?,
            acknowledged_bytes: u64(from)?,
        }),
        ALL_LOST => Decision::Failed(Failure::Lost),
        ENDED => Decision::Ended(ended(from)?),
        _ => return None,
    })
}

fn put_superseded(out: &mut Vec<u8>, superseded: &Superseded) {
    out.put_u32(superseded.slot.0);
    put_count(out, superseded.tags.len());
    for tag in &superseded.tags {
        out.put_u32(tag.version);
        out.put_u64(tag.range.0);
    }
    put_upto(out, &superseded.upto);
    put_writer(out, &superseded.writer);
    put_count(out, superseded.last.len());
    for (slot, last) in &superseded.last {
        out.put_u32(slot.0);
        out.put_u64(*last);
    }
}

fn superseded(from: &mut &[u8]) -> Option<Superseded> {
    Some(Superseded {
        slot: slot(from)?,
        tags: items(from, |from| Some(Tag { version: u32(from)?, range: RangeId(u64(from)?) }))?,
        upto: upto(from)?,
        writer: writer(from)?,
        last: items(from, |from| Some((slot(from)?, u64(from)?)))?,
    })
}

fn put_ended(out: &mut Vec<u8>, how: Ended) {
    out.put_u8(match how {
        Ended::Deleted => DELETED,
        Ended::Expired => EXPIRED,
        Ended::Unknown => UNKNOWN,
    });
}

fn ended(from: &mut &[u8]) -> Option<Ended> {
    match u8(from)? {
        DELETED => Some(Ended::Deleted),
        EXPIRED => Some(Ended::Expired),
        UNKNOWN => Some(Ended::Unknown),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::Incarnation;
    use partage_core::base::name::NodeId;
    use partage_service::shuffle::bounds::Bounds;
    use partage_service::shuffle::plan::{Plan, PlanRange, Winner};
    use partage_service::shuffle::{
        ArrowKind, AttemptKey, BufferId, Durability, PoolSlot, RecordKind, ShuffleOptions,
    };
    use partage_service::shuffle::{ColumnCombine, CombinedColumn, SortColumn, TaskId, Writer};
    use std::sync::Arc;

    fn plan() -> Plan {
        let buffer = BufferId { node: NodeId::new("b").unwrap(), incarnation: Incarnation(3) };
        let winner = Winner { partition: 1, records: 2, bytes: 3 };
        let range = PlanRange {
            id: RangeId(4),
            since: 1,
            begins: b"key".as_slice().into(),
            slot: PoolSlot(5),
            records: 6,
            bytes: 7,
        };
        Plan {
            shuffle: ShuffleId(9),
            winners: Arc::new([(AttemptKey { buffer: buffer.clone(), number: 8 }, winner)].into()),
            needed: [(PoolSlot(5), [(Writer::Buffer(buffer), 2)].into())].into(),
            ranges: vec![range],
        }
    }

    fn decisions() -> Vec<Decision> {
        let by = BufferId { node: NodeId::new("c").unwrap(), incarnation: Incarnation(4) };
        let writer = Writer::Division(TaskId { epoch: Epoch(1), number: 2 }, by);
        let superseded = Superseded {
            slot: PoolSlot(1),
            tags: vec![Tag { version: 0, range: RangeId(3) }],
            upto: [(writer.clone(), 4)].into(),
            writer,
            last: [(PoolSlot(2), 5)].into(),
        };
        let started_with = ShuffleOptions {
            kind: RecordKind::Arrow(ArrowKind {
                encoding: 1,
                schema: b"schema".as_slice().into(),
                order: vec![SortColumn { column: 2, descends: true, nulls_first: false }],
                combine: vec![CombinedColumn { column: 1, by: ColumnCombine::Sum }],
            }),
            unsealed_ttl_ms: Some(20_000),
            sealed_ttl_ms: None,
            owner: "etl".to_owned(),
        };
        let differs = Failure::Differs { found: 1, found_bytes: 2, acknowledged: 3, acknowledged_bytes: 4 };
        vec![
            Decision::Start(
                Terms { weight: 500, durability: Durability::Memory, ..Terms::new(3, 8) },
                started_with.into(),
            ),
            Decision::Bounds(Bounds::stashes(2).into()),
            Decision::Superseded(superseded.into()),
            Decision::Sealed(plan().into()),
            Decision::Failed(differs),
            Decision::Failed(Failure::Lost),
            Decision::Ended(Ended::Deleted),
            Decision::Ended(Ended::Expired),
            Decision::Ended(Ended::Unknown),
        ]
    }

    #[test]
    fn every_decision_comes_back_and_nothing_shorter_or_longer_does() {
        let all: Vec<_> = decisions().into_iter().map(|decision| (ShuffleId(9), decision)).collect();
        let mut copy = Decisions { epoch: Epoch(6), ..Decisions::default() };
        all.iter().for_each(|(shuffle, decision)| copy.push(*shuffle, decision.clone(), 9));
        copy.push(ShuffleId(10), decisions()[3].clone(), 9);
        let forms = [
            (encode_whole(&copy), Item::Whole(copy)),
            (encode_after(7, &all), Item::After(7, all)),
            (encode_lost(), Item::Lost),
        ];
        for (mut form, item) in forms {
            assert_eq!(decode(&form).as_ref(), Some(&item));
            for length in 0..form.len() {
                assert_eq!(decode(&form[..length]), None, "{length} bytes");
            }
            form.push(0);
            assert_eq!(decode(&form), None, "a byte too many");
        }
    }
}
