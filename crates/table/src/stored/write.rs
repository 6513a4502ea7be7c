//! A write of rows as the payload of an entry.
//!
//! ```text
//! write      version u8 · at u64 · flags u8 (1 = it has a request) [· request id 16 · fingerprint u64] · operations u16
//! operation  key bytes u16 · key · condition u8 [· epoch u64 · index u64] · action u8 (128 = the former row is wanted) · …
//!            condition: 0 always, 1 absent, 2 present, 3 version;   action: 1 read, 2 put: expiry · value, 3 delete,
//!            4 expire: expiry, 5 add: i64, 6 append: value
//! expiry     0 as before, 1 never, 2 at: u64, 3 after: u64, which only a write between nodes has
//! value      bytes u32 · value
//! ```
//!
//! Nodes send each other writes in the same form ([`encode`]). There an expiry may count from the time that the leader gives the
//! entry; the leader makes a time of it before the write enters its log ([`encode_at`]).

use super::Malformed;
use super::cursor::Cursor;
use super::index;
use bytes::BufMut;
use partage_core::keyspace::key::Key;
use partage_core::limits::{BATCH_OPERATIONS, VALUE_BYTES};
use partage_service::table::rows::{Action, Condition, Expiry, Operation, Request, RequestId, Value, Write};

const VERSION: u8 = 1;
const HAS_REQUEST: u8 = 1;
const WANTS_FORMER: u8 = 128;

/// The write as it is, as nodes send it to each other. [`Write::check`] has found it to be within the limits.
pub fn encode(write: &Write) -> Vec<u8> {
    encode_with(write, write.at_ms, |expiry| expiry)
}

/// The payload of an entry: the write at that time, whatever `write` says, by which relative expiries count.
pub fn encode_at(write: &Write, at_ms: u64) -> Vec<u8> {
    encode_with(write, at_ms, |expiry| expiry.resolved(at_ms))
}

fn encode_with(write: &Write, at_ms: u64, expiry: impl Fn(Expiry) -> Expiry) -> Vec<u8> {
    let of_operations: usize =
        write.operations.iter().map(|one| 33 + one.key.as_bytes().len() + value_bytes(one)).sum();
    let mut bytes = Vec::with_capacity(36 + of_operations);
    bytes.put_u8(VERSION);
    bytes.put_u64(at_ms);
    bytes.put_u8(if write.request.is_some() { HAS_REQUEST } else { 0 });
    if let Some(request) = &write.request {
        bytes.put_slice(&request.id.0);
        bytes.put_u64(request.fingerprint);
    }
    let count = u16::try_from(write.operations.len());
    bytes.put_u16(count.expect("a batch has no more operations than limits::BATCH_OPERATIONS"));
    write.operations.iter().for_each(|operation| put_operation(&mut bytes, operation, &expiry));
    bytes
}

fn value_bytes(operation: &Operation) -> usize {
    match &operation.action {
        Action::Put(value, _) | Action::Overwrite(value) | Action::Append(value) => value.len(),
        Action::Read | Action::Delete | Action::Expire(_) | Action::Add(_) => 0,
    }
}

fn put_operation(bytes: &mut Vec<u8>, operation: &Operation, resolved: impl Fn(Expiry) -> Expiry) {
    let key = operation.key.as_bytes();
    bytes.put_u16(u16::try_from(key.len()).expect("a key is no longer than limits::KEY_BYTES"));
    bytes.put_slice(key);
    match operation.condition {
        Condition::Always => bytes.put_u8(0),
        Condition::Absent => bytes.put_u8(1),
        Condition::Present => bytes.put_u8(2),
        Condition::Version(version) => {
            bytes.put_u8(3);
            bytes.put_u64(version.epoch.0);
            bytes.put_u64(version.index);
        }
    }
    let wants = if operation.wants_former { WANTS_FORMER } else { 0 };
    match &operation.action {
        Action::Read => bytes.put_u8(wants | 1),
        Action::Put(value, expiry) => {
            bytes.put_u8(wants | 2);
            put_expiry(bytes, resolved(*expiry));
            put_value(bytes, value);
        }
        Action::Delete => bytes.put_u8(wants | 3),
        Action::Expire(expiry) => {
            bytes.put_u8(wants | 4);
            put_expiry(bytes, resolved(*expiry));
        }
        Action::Add(by) => {
            bytes.put_u8(wants | 5);
            bytes.put_i64(*by);
        }
        Action::Append(value) => {
            bytes.put_u8(wants | 6);
            put_value(bytes, value);
        }
        Action::Overwrite(value) => {
            bytes.put_u8(wants | 7);
            put_value(bytes, value);
        }
    }
}

fn put_expiry(bytes: &mut Vec<u8>, expiry: Expiry) {
    match expiry {
        Expiry::AsBefore => bytes.put_u8(0),
        Expiry::Never => bytes.put_u8(1),
        Expiry::At(end) => {
            bytes.put_u8(2);
            bytes.put_u64(end);
        }
        Expiry::After(ttl_ms) => {
            bytes.put_u8(3);
            bytes.put_u64(ttl_ms);
        }
    }
}

fn put_value(bytes: &mut Vec<u8>, value: &Value) {
    bytes.put_u32(u32::try_from(value.len()).expect("a value is no longer than limits::VALUE_BYTES"));
    bytes.put_slice(value);
}

/// What the payload of an entry does to rows: nothing, where the entry is about indexes.
///
/// # Errors
/// What is wrong with the payload.
pub fn decode(payload: &[u8]) -> Result<Write, Malformed> {
    if index::is_change(payload) {
        let (at_ms, _) = index::decode_change(payload)?;
        return Ok(Write { at_ms, request: None, operations: Vec::new() });
    }
    let mut cursor = Cursor::begin("a write in the log", payload, VERSION)?;
    let at_ms = cursor.u64("the time")?;
    let request = if cursor.flags(HAS_REQUEST, "the flags")? != 0 {
        let mut id = [0; 16];
        id.copy_from_slice(cursor.bytes(16, "the request id")?);
        Some(Request { id: RequestId(id), fingerprint: cursor.u64("the fingerprint")? })
    } else {
        None
    };
    let count = usize::from(cursor.u16("the count of operations")?);
    if count > BATCH_OPERATIONS {
        let why = format!("is {count}, the limit is {BATCH_OPERATIONS}");
        return Err(cursor.wrong("the count of operations", 2, why));
    }
    let operations = (0..count).map(|_| operation(&mut cursor)).collect::<Result<_, _>>()?;
    cursor.end().map(|()| Write { at_ms, request, operations })
}

fn operation(cursor: &mut Cursor<'_>) -> Result<Operation, Malformed> {
    let bytes = usize::from(cursor.u16("the length of a key")?);
    let key = Key::new(cursor.bytes(bytes, "a key")?)
        .map_err(|error| cursor.wrong("a key", bytes, format!("is refused: {error}")))?;
    let condition = match cursor.u8("a condition")? {
        0 => Condition::Always,
        1 => Condition::Absent,
        2 => Condition::Present,
        3 => Condition::Version(cursor.position("the version of a condition")?),
        unknown => return Err(cursor.wrong("a condition", 1, format!("is the unknown kind {unknown}"))),
    };
    let kind = cursor.u8("an action")?;
    let action = match kind & !WANTS_FORMER {
        1 => Action::Read,
        2 => {
            let expiry = expiry(cursor)?;
            Action::Put(value(cursor)?, expiry)
        }
        3 => Action::Delete,
        4 => Action::Expire(expiry(cursor)?),
        5 => Action::Add(cursor.i64("a number")?),
        6 => Action::Append(value(cursor)?),
        7 => Action::Overwrite(value(cursor)?),
        unknown => return Err(cursor.wrong("an action", 1, format!("is the unknown kind {unknown}"))),
    };
    Ok(Operation { key, condition, action, wants_former: kind & WANTS_FORMER != 0 })
}

fn expiry(cursor: &mut Cursor<'_>) -> Result<Expiry, Malformed> {
    match cursor.u8("an expiry")? {
        0 => Ok(Expiry::AsBefore),
        1 => Ok(Expiry::Never),
        2 => cursor.u64("the time of an expiry").map(Expiry::At),
        3 => cursor.u64("the time to live of an expiry").map(Expiry::After),
        unknown => Err(cursor.wrong("an expiry", 1, format!("is the unknown kind {unknown}"))),
    }
}

fn value(cursor: &mut Cursor<'_>) -> Result<Value, Malformed> {
    let bytes = cursor.u32("the length of a value")? as usize;
    if bytes > VALUE_BYTES {
        let why = format!("is {bytes}, the limit is {VALUE_BYTES}");
        return Err(cursor.wrong("the length of a value", 4, why));
    }
    cursor.bytes(bytes, "a value").map(Value::from)
}
