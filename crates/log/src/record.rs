//! Records: what the log keeps of one replica, and their stored form.
//!
//! ```text
//! fence       1 | epoch 8
//! append      2 | entries 4 | ( epoch 8 | index 8 | kind 1 | payload bytes 4 | payload ) for each
//! truncate    3 | index 8
//! trim        4 | epoch 8 | index 8
//! restart     5 | epoch 8 | index 8
//! committed   6 | index 8
//! forget      7
//! checkpoint  8 | base 16 | end 8 | fence 8 | committed 8
//! damaged     9 | offset 8 | file bytes 2 | file | what
//! ```

use crate::Damage;
use bytes::{Buf, BufMut};
use partage_core::base::id::Epoch;
use partage_service::table::replication::{Entry, EntryKind, LogPosition, LogWrite};

/// What a driver writes to the log of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Record {
    /// A write of the replication machine.
    Write(LogWrite),
    /// Entries up to this index are committed. The log keeps the highest one.
    Committed(u64),
    /// The replica is dropped: the log keeps nothing of it. A replica of the same key may begin anew behind this record, in
    /// the same group too.
    Forget,
}

impl From<LogWrite> for Record {
    fn from(write: LogWrite) -> Record {
        Record::Write(write)
    }
}

/// What a replica's log is but for its entries, so that the segments before may be deleted that hold none of its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) base: LogPosition,
    /// The index of the last entry.
    pub(crate) end: u64,
    pub(crate) fence: Epoch,
    pub(crate) committed: u64,
}

/// What stands in a section, as it is written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BodyRef<'a> {
    Record(&'a Record),
    Checkpoint(&'a Checkpoint),
    /// The replica was found to be damaged there, by an earlier opening of the log.
    Damaged(&'a Damage),
}

/// What stands in a section, as it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    Record(Record),
    Checkpoint(Checkpoint),
    Damaged(Damage),
}

const FENCE: u8 = 1;
const APPEND: u8 = 2;
const TRUNCATE: u8 = 3;
const TRIM: u8 = 4;
const RESTART: u8 = 5;
const COMMITTED: u8 = 6;
const FORGET: u8 = 7;
const CHECKPOINT: u8 = 8;
const DAMAGED: u8 = 9;

const BEGIN: u8 = 1;
const WRITE: u8 = 2;
const CLOSE: u8 = 3;

/// Bytes of an entry but for its payload.
const ENTRY: usize = 21;

fn payload(kind: &EntryKind) -> (u8, &[u8]) {
    match kind {
        EntryKind::Begin => (BEGIN, &[]),
        EntryKind::Write(payload) => (WRITE, payload),
        EntryKind::Close => (CLOSE, &[]),
    }
}

/// Bytes of an entry's payload.
pub(crate) fn payload_bytes(entry: &Entry) -> usize {
    payload(&entry.kind).1.len()
}

impl BodyRef<'_> {
    /// Bytes of the stored form.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            BodyRef::Record(Record::Write(LogWrite::Append(entries))) => {
                5 + entries.iter().map(|entry| ENTRY + payload_bytes(entry)).sum::<usize>()
            }
            BodyRef::Record(Record::Write(LogWrite::Trim(_) | LogWrite::Restart(_))) => 17,
            BodyRef::Record(
                Record::Write(LogWrite::Fence(_) | LogWrite::Truncate(_)) | Record::Committed(_),
            ) => 9,
            BodyRef::Record(Record::Forget) => 1,
            BodyRef::Checkpoint(_) => 41,
            BodyRef::Damaged(damage) => 11 + damage.file.len() + damage.what.len(),
        }
    }

    /// Adds the stored form.
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            BodyRef::Record(Record::Write(write)) => encode_write(write, bytes),
            BodyRef::Record(Record::Committed(index)) => {
                bytes.put_u8(COMMITTED);
                bytes.put_u64(*index);
            }
            BodyRef::Record(Record::Forget) => bytes.put_u8(FORGET),
            BodyRef::Checkpoint(checkpoint) => {
                bytes.put_u8(CHECKPOINT);
                put_position(bytes, checkpoint.base);
                bytes.put_u64(checkpoint.end);
                bytes.put_u64(checkpoint.fence.0);
                bytes.put_u64(checkpoint.committed);
            }
            BodyRef::Damaged(damage) => {
                bytes.put_u8(DAMAGED);
                bytes.put_u64(damage.offset);
                bytes.put_u16(u16::try_from(damage.file.len()).expect("names of segments are short"));
                bytes.put_slice(damage.file.as_bytes());
                bytes.put_slice(damage.what.as_bytes());
            }
        }
    }
}

fn encode_write(write: &LogWrite, bytes: &mut Vec<u8>) {
    match write {
        LogWrite::Fence(epoch) => {
            bytes.put_u8(FENCE);
            bytes.put_u64(epoch.0);
        }
        LogWrite::Append(entries) => {
            bytes.put_u8(APPEND);
            bytes.put_u32(u32::try_from(entries.len()).expect("the bound on a group bounds its entries"));
            for entry in entries {
                put_position(bytes, entry.position);
                let (kind, payload) = payload(&entry.kind);
                bytes.put_u8(kind);
                bytes.put_u32(u32::try_from(payload.len()).expect("the bound on an entry is below 4 GiB"));
                bytes.put_slice(payload);
            }
        }
        LogWrite::Truncate(after) => {
            bytes.put_u8(TRUNCATE);
            bytes.put_u64(*after);
        }
        LogWrite::Trim(base) => {
            bytes.put_u8(TRIM);
            put_position(bytes, *base);
        }
        LogWrite::Restart(base) => {
            bytes.put_u8(RESTART);
            put_position(bytes, *base);
        }
    }
}

fn put_position(bytes: &mut Vec<u8>, position: LogPosition) {
    bytes.put_u64(position.epoch.0);
    bytes.put_u64(position.index);
}

impl Body {
    /// Reads the stored form; none if it is no such form.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Body> {
        let bytes = &mut bytes;
        let body = match bytes.try_get_u8().ok()? {
            FENCE => Body::Record(LogWrite::Fence(Epoch(bytes.try_get_u64().ok()?)).into()),
            APPEND => Body::Record(LogWrite::Append(entries(bytes)?).into()),
            TRUNCATE => Body::Record(LogWrite::Truncate(bytes.try_get_u64().ok()?).into()),
            TRIM => Body::Record(LogWrite::Trim(position(bytes)?).into()),
            RESTART => Body::Record(LogWrite::Restart(position(bytes)?).into()),
            COMMITTED => Body::Record(Record::Committed(bytes.try_get_u64().ok()?)),
            FORGET => Body::Record(Record::Forget),
            CHECKPOINT => Body::Checkpoint(Checkpoint {
                base: position(bytes)?,
                end: bytes.try_get_u64().ok()?,
                fence: Epoch(bytes.try_get_u64().ok()?),
                committed: bytes.try_get_u64().ok()?,
            }),
            DAMAGED => {
                let offset = bytes.try_get_u64().ok()?;
                let name = bytes.try_get_u16().ok()? as usize;
                let file = String::from_utf8(take(bytes, name)?.to_vec()).ok()?;
                let what = String::from_utf8(take(bytes, bytes.len())?.to_vec()).ok()?;
                Body::Damaged(Damage { file, offset, what })
            }
            _ => return None,
        };
        bytes.is_empty().then_some(body)
    }
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

fn position(bytes: &mut &[u8]) -> Option<LogPosition> {
    let epoch = Epoch(bytes.try_get_u64().ok()?);
    Some(LogPosition { epoch, index: bytes.try_get_u64().ok()? })
}

fn entries(bytes: &mut &[u8]) -> Option<Vec<Entry>> {
    let count = bytes.try_get_u32().ok()? as usize;
    let mut entries = Vec::with_capacity(count.min(bytes.len() / ENTRY));
    for _ in 0..count {
        let position = position(bytes)?;
        let kind = bytes.try_get_u8().ok()?;
        let length = bytes.try_get_u32().ok()? as usize;
        let payload = take(bytes, length)?;
        let kind = match kind {
            BEGIN if payload.is_empty() => EntryKind::Begin,
            WRITE => EntryKind::Write(payload.into()),
            CLOSE if payload.is_empty() => EntryKind::Close,
            _ => return None,
        };
        entries.push(Entry { position, kind });
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_comes_back_and_its_size_is_known_before() {
        let at = |epoch, index| LogPosition { epoch: Epoch(epoch), index };
        let entries = vec![
            Entry { position: at(3, 7), kind: EntryKind::Begin },
            Entry { position: at(3, 8), kind: EntryKind::Write(b"value".as_slice().into()) },
            Entry { position: at(4, 9), kind: EntryKind::Close },
        ];
        let records = [
            LogWrite::Fence(Epoch(9)).into(),
            LogWrite::Append(entries).into(),
            LogWrite::Append(Vec::new()).into(),
            LogWrite::Truncate(4).into(),
            LogWrite::Trim(at(2, 5)).into(),
            LogWrite::Restart(at(8, 1)).into(),
            Record::Committed(11),
            Record::Forget,
        ];
        let checkpoint = Checkpoint { base: at(1, 2), end: 3, fence: Epoch(4), committed: 5 };
        let damage = Damage { file: "7.log".to_owned(), offset: 99, what: "a checksum is wrong".to_owned() };
        let mut cases: Vec<(BodyRef<'_>, Body)> =
            records.iter().map(|record| (BodyRef::Record(record), Body::Record(record.clone()))).collect();
        cases.push((BodyRef::Checkpoint(&checkpoint), Body::Checkpoint(checkpoint)));
        cases.push((BodyRef::Damaged(&damage), Body::Damaged(damage.clone())));
        for (written, read) in cases {
            let mut bytes = Vec::new();
            written.encode(&mut bytes);
            assert_eq!(bytes.len(), written.bytes(), "{read:?}");
            assert_eq!(Body::decode(&bytes).as_ref(), Some(&read));
            bytes.push(0);
            if !matches!(read, Body::Damaged(_)) {
                assert_eq!(Body::decode(&bytes), None, "{read:?} with a byte too many");
            }
        }
    }
}
