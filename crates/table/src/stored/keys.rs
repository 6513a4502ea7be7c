//! Keys of records in a store. Their order is that of the kinds, and within a kind that of keys, or of times.
//!
//! ```text
//! 01 key                  the row of the key
//! 02 time u64 · key       that the row ends then; the value is empty
//! 03 request id 16 · part u16   a part of an outcome
//! 04 time u64 · request id 16   that the outcome is of then; the value is empty
//! 05                      how the shard stands
//! 08 epoch u64 · index u64 · key   the change that the entry there has made of the row, of a table with a feed
//! 09                      up to where changes are removed
//! ```

use bytes::BufMut;
use partage_core::base::id::Epoch;
use partage_core::keyspace::key::Key;
use partage_core::service::table::feed::Place;
use partage_core::service::table::replication::LogPosition;
use partage_core::service::table::rows::RequestId;

const ROW: u8 = 1;
const ENDS: u8 = 2;
const ANSWER: u8 = 3;
const ANSWER_OF: u8 = 4;
const CHANGE: u8 = 8;

/// Of how the shard stands.
pub(crate) const STANDING: &[u8] = &[5];

/// Of up to where changes are removed.
pub(crate) const REMOVED: &[u8] = &[9];

/// The first key, and the key behind the last one, of changes.
pub(crate) const ALL_CHANGES: (&[u8], &[u8]) = (&[CHANGE], &[CHANGE + 1]);

/// The first key, and the key behind the last one, of the times when rows end.
pub(crate) const ALL_ENDS: (&[u8], &[u8]) = (&[ENDS], &[ENDS + 1]);

/// The same of all rows and of the times when they end.
pub(crate) const ALL_OF_ROWS: (&[u8], &[u8]) = (&[ROW], &[ENDS + 1]);

/// The same of outcomes, their times, and how the shard stands.
pub(crate) const ALL_OF_OUTCOMES: (&[u8], &[u8]) = (&[ANSWER], &[CHANGE]);

/// The same of the times of outcomes.
pub(crate) const ALL_ANSWERS_OF: (&[u8], &[u8]) = (&[ANSWER_OF], &[ANSWER_OF + 1]);

pub(crate) fn row(key: &Key) -> Vec<u8> {
    row_bytes(key.as_bytes())
}

/// Of the row of any bytes: also of such that are too long for a key.
pub(crate) fn row_bytes(key: &[u8]) -> Vec<u8> {
    [&[ROW], key].concat()
}

/// The key behind the last one of all rows.
pub(crate) const BEHIND_ROWS: &[u8] = &[ROW + 1];

/// The key of a stored row: none if it is no such key.
pub(crate) fn parse_row(stored: &[u8]) -> Option<Key> {
    let (&[kind], key) = stored.split_first_chunk()?;
    let key = Key::new(key).ok()?;
    (kind == ROW).then_some(key)
}

/// The key of the row that a stored record is of: none if the record is of the shard as a whole.
pub(crate) fn row_of(stored: &[u8]) -> Option<&[u8]> {
    match stored.split_first()? {
        (&ROW, key) => Some(key),
        (&ENDS, rest) => rest.get(8..),
        (&CHANGE, rest) => rest.get(16..),
        _ => None,
    }
}

/// The request of which a stored record is a part of the outcome.
pub(crate) fn parse_answer(stored: &[u8]) -> Option<RequestId> {
    let (&[kind], rest) = stored.split_first_chunk()?;
    let (id, part): (&[u8; 16], _) = rest.split_first_chunk()?;
    (kind == ANSWER && part.len() == 2).then_some(RequestId(*id))
}

pub(crate) fn ends(at_ms: u64, key: &Key) -> Vec<u8> {
    [&[ENDS], &at_ms.to_be_bytes()[..], key.as_bytes()].concat()
}

pub(crate) fn answer(id: &RequestId, part: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(19);
    bytes.put_u8(ANSWER);
    bytes.put_slice(&id.0);
    bytes.put_u16(part);
    bytes
}

pub(crate) fn answer_of(at_ms: u64, id: &RequestId) -> Vec<u8> {
    [&[ANSWER_OF], &at_ms.to_be_bytes()[..], &id.0].concat()
}

/// When a row ends, and its key: none if it is no such key.
pub(crate) fn parse_ends(stored: &[u8]) -> Option<(u64, Key)> {
    let (&[kind], rest) = stored.split_first_chunk()?;
    let (at_ms, key) = rest.split_first_chunk()?;
    let key = Key::new(key).ok()?;
    (kind == ENDS).then(|| (u64::from_be_bytes(*at_ms), key))
}

/// When an outcome was given, and of which request: none if it is no such key.
pub(crate) fn parse_answer_of(stored: &[u8]) -> Option<(u64, RequestId)> {
    let (&[kind], rest) = stored.split_first_chunk()?;
    let (at_ms, id) = rest.split_first_chunk()?;
    let id = RequestId(id.try_into().ok()?);
    (kind == ANSWER_OF).then(|| (u64::from_be_bytes(*at_ms), id))
}

/// Of a change; the empty key gives the first one that a change of the entry may have.
pub(crate) fn change(entry: LogPosition, key: &[u8]) -> Vec<u8> {
    [&[CHANGE], &entry.epoch.0.to_be_bytes()[..], &entry.index.to_be_bytes(), key].concat()
}

/// Whether a stored record is a change.
pub(crate) fn is_change(stored: &[u8]) -> bool {
    stored.first() == Some(&CHANGE)
}

/// The entry of a change, and its key: none if it is no such key.
pub(crate) fn parse_change(stored: &[u8]) -> Option<Place> {
    let (&[kind], rest) = stored.split_first_chunk()?;
    let (epoch, rest) = rest.split_first_chunk()?;
    let (index, key) = rest.split_first_chunk()?;
    let entry = LogPosition { epoch: Epoch(u64::from_be_bytes(*epoch)), index: u64::from_be_bytes(*index) };
    let key = Key::new(key).ok()?;
    (kind == CHANGE).then_some((entry, key))
}
