//! A record: a batch of transactions, a part of a snapshot, or a snapshot's end.
//!
//! ```text
//! batch     1 | transactions 4 | { version 8 | changes 4 | { change }… }…
//! snapshot  2 | entries 4 | { change with its version }…
//! end       3 | version 8
//! change    key bytes 2 | key | 0                                                     (deleted)
//!           key bytes 2 | key | 1 | version 8 | value bytes 4 | value                 (lasting)
//!           key bytes 2 | key | 2 | version 8 | value bytes 4 | value | session 16    (ephemeral)
//! ```
//!
//! Numbers are big-endian. A payload that does not decode to its last byte is damage, though its
//! checksum be right: then this program wrote it wrongly, and serving it would spread the fault.

use bytes::{Buf, BufMut, Bytes, TryGetError};

use crate::key::Key;
use crate::session::SessionId;
use crate::transaction::{Entry, Version};
use crate::watch::Change;

/// One transaction as it was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Committed {
    pub at: Version,
    /// In key order, each key once.
    pub changes: Vec<Change>,
}

impl Committed {
    /// Bytes of keys and values.
    pub fn size_bytes(&self) -> usize {
        let size = |change: &Change| {
            change.key.as_str().len() + change.entry.as_ref().map_or(0, |entry| entry.value.len())
        };
        self.changes.iter().map(size).sum()
    }
}

/// The content of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Batch(Vec<Committed>),
    Snapshot(Vec<Change>),
    SnapshotEnd(Version),
}

const BATCH: u8 = 1;
const SNAPSHOT: u8 = 2;
const SNAPSHOT_END: u8 = 3;
const DELETED: u8 = 0;
const LASTING: u8 = 1;
const EPHEMERAL: u8 = 2;

impl Record {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Batch(transactions) => {
                bytes.put_u8(BATCH);
                put_count(&mut bytes, transactions.len());
                for Committed { at, changes } in transactions {
                    bytes.put_u64(at.get());
                    put_count(&mut bytes, changes.len());
                    changes.iter().for_each(|change| put_change(&mut bytes, change));
                }
            }
            Self::Snapshot(entries) => {
                bytes.put_u8(SNAPSHOT);
                put_count(&mut bytes, entries.len());
                entries.iter().for_each(|change| put_change(&mut bytes, change));
            }
            Self::SnapshotEnd(at) => {
                bytes.put_u8(SNAPSHOT_END);
                bytes.put_u64(at.get());
            }
        }
        bytes
    }

    pub fn decode(payload: Vec<u8>) -> Result<Self, String> {
        let mut bytes = Bytes::from(payload);
        let short = |error: TryGetError| error.to_string();
        let record = match bytes.try_get_u8().map_err(short)? {
            BATCH => {
                let count = bytes.try_get_u32().map_err(short)?;
                Self::Batch((0..count).map(|_| get_committed(&mut bytes)).collect::<Result<_, _>>()?)
            }
            SNAPSHOT => Self::Snapshot(get_changes(&mut bytes)?),
            SNAPSHOT_END => Self::SnapshotEnd(Version::new(bytes.try_get_u64().map_err(short)?)),
            kind => return Err(format!("record kind {kind} is unknown")),
        };
        if bytes.has_remaining() {
            return Err(format!("{} bytes are left over", bytes.remaining()));
        }
        Ok(record)
    }
}

fn put_count(bytes: &mut Vec<u8>, count: usize) {
    bytes.put_u32(u32::try_from(count).expect("counts are bounded by the limits on bytes"));
}

fn put_change(bytes: &mut Vec<u8>, Change { key, entry }: &Change) {
    bytes.put_u16(u16::try_from(key.as_str().len()).expect("a key has at most 512 bytes"));
    bytes.put_slice(key.as_str().as_bytes());
    let Some(Entry { value, version, session }) = entry else {
        bytes.put_u8(DELETED);
        return;
    };
    bytes.put_u8(if session.is_some() { EPHEMERAL } else { LASTING });
    bytes.put_u64(version.get());
    put_count(bytes, value.len());
    bytes.put_slice(value);
    if let Some(session) = session {
        bytes.put_u128(session.get());
    }
}

fn get_committed(bytes: &mut Bytes) -> Result<Committed, String> {
    let at = Version::new(bytes.try_get_u64().map_err(|error| error.to_string())?);
    Ok(Committed { at, changes: get_changes(bytes)? })
}

fn get_changes(bytes: &mut Bytes) -> Result<Vec<Change>, String> {
    let count = bytes.try_get_u32().map_err(|error| error.to_string())?;
    (0..count).map(|_| get_change(bytes)).collect()
}

fn get_change(bytes: &mut Bytes) -> Result<Change, String> {
    let short = |error: TryGetError| error.to_string();
    let key_bytes = bytes.try_get_u16().map_err(short)?;
    let key = take(bytes, usize::from(key_bytes))?;
    let key = std::str::from_utf8(&key).map_err(|error| error.to_string())?;
    let key = Key::new(key).map_err(|error| error.to_string())?;
    let kind = bytes.try_get_u8().map_err(short)?;
    if kind == DELETED {
        return Ok(Change { key, entry: None });
    }
    let version = Version::new(bytes.try_get_u64().map_err(short)?);
    let value_bytes = bytes.try_get_u32().map_err(short)?;
    // Copied, so that a small value does not keep the whole record in memory.
    let value = Bytes::copy_from_slice(&take(bytes, value_bytes as usize)?);
    let session = match kind {
        LASTING => None,
        EPHEMERAL => Some(SessionId::new(bytes.try_get_u128().map_err(short)?)),
        _ => return Err(format!("change kind {kind} is unknown")),
    };
    Ok(Change { key, entry: Some(Entry { value, version, session }) })
}

fn take(bytes: &mut Bytes, count: usize) -> Result<Bytes, String> {
    if bytes.remaining() < count {
        return Err(format!("{count} bytes are announced, {} are left", bytes.remaining()));
    }
    Ok(bytes.split_to(count))
}
