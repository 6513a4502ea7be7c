//! Values of records in a store.
//!
//! ```text
//! row        version u8 · flags u8 (1 = it ends) · epoch u64 · index u64 [· ends u64] · value
//! state      version u8 · clock u64 · outcomes u64
//! outcome    version u8 · at u64 · fingerprint u64 · kind u8 · …
//!            in parts, of which the first begins with how many there are, u16
//!   1 done      epoch u64 · index u64 · results u16 · ( flags u8 [· former: bytes u32 · row] [· now: bytes u64 [· number i64]
//!               [· ends u64]] ) for each
//!   2 not met   operation u16 · flags u8 (1 = there is a row) [· epoch u64 · index u64]
//!   3 refused   operation u16 · why u8
//!   4 the request id is taken
//! ```

use super::Malformed;
use super::cursor::Cursor;
use bytes::BufMut;
use partage_core::limits::BATCH_OPERATIONS;
use partage_service::table::replication::LogPosition;
use partage_service::table::rows::{Done, KeptOutcome, Now, Outcome, Refusal, Row, ShardState};

const VERSION: u8 = 1;

/// Bytes of the count of parts with which the first part of an outcome begins.
const PARTS_BYTES: usize = 2;

const DONE: u8 = 1;
const NOT_MET: u8 = 2;
const REFUSED: u8 = 3;
const ID_TAKEN: u8 = 4;

const ENDS: u8 = 1;

const EXISTED: u8 = 1;
const HAS_FORMER: u8 = 2;
const IS_THERE: u8 = 4;
const IS_NUMBER: u8 = 8;
const NOW_ENDS: u8 = 16;

fn put_position(bytes: &mut Vec<u8>, position: LogPosition) {
    bytes.put_u64(position.epoch.0);
    bytes.put_u64(position.index);
}

fn small(number: usize) -> u16 {
    u16::try_from(number).expect("a batch has no more operations than limits::BATCH_OPERATIONS")
}

fn put_row(bytes: &mut Vec<u8>, row: &Row) {
    bytes.put_u8(VERSION);
    bytes.put_u8(if row.expires_ms.is_some() { ENDS } else { 0 });
    put_position(bytes, row.version);
    if let Some(ends) = row.expires_ms {
        bytes.put_u64(ends);
    }
    bytes.put_slice(&row.value);
}

/// The value of a row in the store, for [`decode_row`].
pub fn encode_row(row: &Row) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(26 + row.value.len());
    put_row(&mut bytes, row);
    bytes
}

/// # Errors
/// What is wrong with the bytes.
pub fn decode_row(bytes: &[u8]) -> Result<Row, Malformed> {
    let mut cursor = Cursor::begin("a stored row", bytes, VERSION)?;
    let flags = cursor.flags(ENDS, "the flags")?;
    let version = cursor.position("the version of the row")?;
    let expires_ms = if flags & ENDS != 0 { Some(cursor.u64("the time when it ends")?) } else { None };
    Ok(Row { value: cursor.rest().into(), version, expires_ms })
}

/// The value of the record that says how a shard stands.
pub fn encode_shard_state(shard_state: &ShardState) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(17);
    bytes.put_u8(VERSION);
    bytes.put_u64(shard_state.clock_ms);
    bytes.put_u64(shard_state.outcomes);
    bytes
}

/// # Errors
/// What is wrong with the bytes.
pub fn decode_shard_state(bytes: &[u8]) -> Result<ShardState, Malformed> {
    let mut cursor = Cursor::begin("how the shard stands", bytes, VERSION)?;
    let shard_state =
        ShardState { clock_ms: cursor.u64("the clock")?, outcomes: cursor.u64("the count of outcomes")? };
    cursor.end().map(|()| shard_state)
}

/// An outcome as it is stored, not yet in parts.
pub fn encode_answered(answered: &KeptOutcome) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    bytes.put_u8(VERSION);
    bytes.put_u64(answered.at_ms);
    bytes.put_u64(answered.fingerprint);
    match &answered.outcome {
        Outcome::Done { version, results } => {
            bytes.put_u8(DONE);
            put_position(&mut bytes, *version);
            bytes.put_u16(small(results.len()));
            results.iter().for_each(|done| put_done(&mut bytes, done));
        }
        Outcome::NotMet { operation, current } => {
            bytes.put_u8(NOT_MET);
            bytes.put_u16(small(*operation));
            bytes.put_u8(u8::from(current.is_some()));
            current.iter().for_each(|version| put_position(&mut bytes, *version));
        }
        Outcome::Refused { operation, refusal } => {
            bytes.put_u8(REFUSED);
            bytes.put_u16(small(*operation));
            bytes.put_u8(match refusal {
                Refusal::NotANumber => 1,
                Refusal::Overflow => 2,
                Refusal::TooLong => 3,
            });
        }
        Outcome::RequestIdTaken => bytes.put_u8(ID_TAKEN),
    }
    bytes
}

fn put_done(bytes: &mut Vec<u8>, done: &Done) {
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let number = done.now.and_then(|now| now.number);
    let ends = done.now.and_then(|now| now.expires_ms);
    bytes.put_u8(
        flag(done.existed, EXISTED)
            | flag(done.former.is_some(), HAS_FORMER)
            | flag(done.now.is_some(), IS_THERE)
            | flag(number.is_some(), IS_NUMBER)
            | flag(ends.is_some(), NOW_ENDS),
    );
    if let Some(former) = &done.former {
        let length = bytes.len();
        bytes.put_u32(0);
        put_row(bytes, former);
        let row = u32::try_from(bytes.len() - length - 4).expect("the bound on values is below 4 GiB");
        bytes[length..length + 4].copy_from_slice(&row.to_be_bytes());
    }
    if let Some(now) = &done.now {
        bytes.put_u64(now.bytes as u64);
        number.iter().for_each(|number| bytes.put_i64(*number));
        ends.iter().for_each(|ends| bytes.put_u64(*ends));
    }
}

/// When an outcome was given, from its first stored part.
pub(crate) fn answered_at(first_part: &[u8]) -> Result<u64, Malformed> {
    let at = first_part.get(PARTS_BYTES + 1..).and_then(|rest| rest.first_chunk());
    at.map(|at| u64::from_be_bytes(*at)).ok_or_else(|| Malformed {
        form: "a stored outcome",
        part: "its time",
        at: PARTS_BYTES + 1,
        why: "is cut".to_owned(),
    })
}

/// # Errors
/// What is wrong with the bytes.
pub fn decode_answered(bytes: &[u8]) -> Result<KeptOutcome, Malformed> {
    let mut cursor = Cursor::begin("a stored outcome", bytes, VERSION)?;
    let (at_ms, fingerprint) = (cursor.u64("the time")?, cursor.u64("the fingerprint")?);
    let outcome = match cursor.u8("the kind")? {
        DONE => {
            let version = cursor.position("the version")?;
            let count = usize::from(cursor.u16("the count of results")?);
            if count > BATCH_OPERATIONS {
                let why = format!("is {count}, the limit is {BATCH_OPERATIONS}");
                return Err(cursor.wrong("the count of results", 2, why));
            }
            let results = (0..count).map(|_| done(&mut cursor)).collect::<Result<_, _>>()?;
            Outcome::Done { version, results }
        }
        NOT_MET => {
            let operation = cursor.u16("the operation")?.into();
            let is_there = cursor.flags(1, "whether there is a row")? != 0;
            let current = if is_there { Some(cursor.position("the version of the row")?) } else { None };
            Outcome::NotMet { operation, current }
        }
        REFUSED => {
            let operation = cursor.u16("the operation")?.into();
            let refusal = match cursor.u8("the refusal")? {
                1 => Refusal::NotANumber,
                2 => Refusal::Overflow,
                3 => Refusal::TooLong,
                unknown => {
                    return Err(cursor.wrong("the refusal", 1, format!("is the unknown kind {unknown}")));
                }
            };
            Outcome::Refused { operation, refusal }
        }
        ID_TAKEN => Outcome::RequestIdTaken,
        unknown => return Err(cursor.wrong("the kind", 1, format!("is the unknown one {unknown}"))),
    };
    cursor.end().map(|()| KeptOutcome { at_ms, fingerprint, outcome })
}

fn done(cursor: &mut Cursor<'_>) -> Result<Done, Malformed> {
    let known = EXISTED | HAS_FORMER | IS_THERE | IS_NUMBER | NOW_ENDS;
    let flags = cursor.flags(known, "the flags of a result")?;
    if flags & IS_THERE == 0 && flags & (IS_NUMBER | NOW_ENDS) != 0 {
        return Err(cursor.wrong("the flags of a result", 1, "say more of a row that is not there"));
    }
    let former = if flags & HAS_FORMER != 0 {
        let bytes = cursor.u32("the length of the former row")? as usize;
        Some(decode_row(cursor.bytes(bytes, "the former row")?)?)
    } else {
        None
    };
    let now = if flags & IS_THERE != 0 {
        let bytes = cursor.u64("the length of the row")?;
        let bytes = usize::try_from(bytes)
            .map_err(|_| cursor.wrong("the length of the row", 8, format!("is {bytes}")))?;
        let number = if flags & IS_NUMBER != 0 { Some(cursor.i64("the number")?) } else { None };
        let expires_ms =
            if flags & NOW_ENDS != 0 { Some(cursor.u64("the time when it ends")?) } else { None };
        Some(Now { bytes, number, expires_ms })
    } else {
        None
    };
    Ok(Done { existed: flags & EXISTED != 0, former, now })
}
