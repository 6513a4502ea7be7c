//! Keys of records in a store. Their order is that of the kinds, and within a kind that of keys, or of times.
//!
//! ```text
//! 01 key                  the row of the key
//! 02 time u64 · key       that the row ends then; the value is empty
//! 03 request id 16 · part u16   a part of an outcome
//! 04 time u64 · request id 16   that the outcome is of then; the value is empty
//! 05                      how the shard stands
//! 06 index u64 · value · key    an entry of an index, of the row of the key; the value is empty
//! 07 index u64            an index
//! 08 epoch u64 · index u64 · key   the change that the entry there has made of the row, of a table with a feed
//! 09                      up to where changes are removed
//! ```

use bytes::BufMut;
use partage_core::base::id::Epoch;
use partage_core::keyspace::key::Key;
use partage_service::table::feed::Place;
use partage_service::table::index::{self, IndexId};
use partage_service::table::replication::LogPosition;
use partage_service::table::rows::RequestId;

const ROW: u8 = 1;
const ENDS: u8 = 2;
const ANSWER: u8 = 3;
const ANSWER_OF: u8 = 4;
const INDEX_ENTRY: u8 = 6;
const INDEX: u8 = 7;
const CHANGE: u8 = 8;

/// Bytes of an index entry's key before the value.
const INDEX_HEAD: usize = 9;

/// The key of the record that says how the shard stands.
pub(crate) const SHARD_STATE: &[u8] = &[5];

/// The key of the record that says up to where changes are removed.
pub(crate) const REMOVED: &[u8] = &[9];

/// The first key, and the key behind the last one, of changes.
pub(crate) const ALL_CHANGES: (&[u8], &[u8]) = (&[CHANGE], &[CHANGE + 1]);

/// The first key, and the key behind the last one, of the times when rows end.
pub(crate) const ALL_ENDS: (&[u8], &[u8]) = (&[ENDS], &[ENDS + 1]);

/// The first key, and the key behind the last one, of all rows and the times when they end.
pub(crate) const ALL_ROWS_AND_ENDS: (&[u8], &[u8]) = (&[ROW], &[ENDS + 1]);

/// The first key, and the key behind the last one, of outcomes, of their times, and of how the shard stands.
pub(crate) const ALL_OUTCOMES_AND_SHARD_STATE: (&[u8], &[u8]) = (&[ANSWER], &[INDEX_ENTRY]);

/// The first key, and the key behind the last one, of the entries of all indexes.
pub(crate) const ALL_INDEX_ENTRIES: (&[u8], &[u8]) = (&[INDEX_ENTRY], &[INDEX_ENTRY + 1]);

/// The first key, and the key behind the last one, of the times of outcomes.
pub(crate) const ALL_ANSWERS_OF: (&[u8], &[u8]) = (&[ANSWER_OF], &[ANSWER_OF + 1]);

pub(crate) fn row(key: &Key) -> Vec<u8> {
    row_bytes(key.as_bytes())
}

/// The key of the row of any bytes: also of such that are too long for a key.
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
        (&INDEX_ENTRY, _) => parse_index_entry(stored).map(|entry| entry.key),
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

/// The entry of an index for the row of a key.
pub(crate) fn index_entry(index: IndexId, value: &[u8], key: &[u8]) -> Vec<u8> {
    index_place(index, &[value, key].concat())
}

/// Where in an index something is, by what stands behind the number of the index.
pub(crate) fn index_place(index: IndexId, place: &[u8]) -> Vec<u8> {
    [&[INDEX_ENTRY], &index.0.to_be_bytes()[..], place].concat()
}

/// The key behind the last entry of an index.
pub(crate) fn behind_index(index: IndexId) -> Vec<u8> {
    match index.0.checked_add(1) {
        Some(next) => index_place(IndexId(next), &[]),
        None => vec![INDEX_ENTRY + 1],
    }
}

/// An entry of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexEntry<'a> {
    pub(crate) index: IndexId,
    /// The indexed value of the row in the form of `index::encoded_value`, which is cut if it is long.
    pub(crate) value: &'a [u8],
    /// The key of the row.
    pub(crate) key: &'a [u8],
}

/// The entry of an index that a stored record is: none if it is no such record.
pub(crate) fn parse_index_entry(stored: &[u8]) -> Option<IndexEntry<'_>> {
    let (head, rest) = stored.split_at_checked(INDEX_HEAD)?;
    let (&[kind], index) = head.split_first_chunk()?;
    let (value, key) = index::encoded_value(rest)?;
    let index = IndexId(u64::from_be_bytes(index.try_into().ok()?));
    (kind == INDEX_ENTRY).then_some(IndexEntry { index, value, key })
}

/// What stands behind the number of the index in the key of an entry.
pub(crate) fn place_in_index(stored: &[u8]) -> &[u8] {
    stored.get(INDEX_HEAD..).unwrap_or_default()
}

/// The key of the record of an index itself.
pub(crate) fn index(index: IndexId) -> Vec<u8> {
    [&[INDEX], &index.0.to_be_bytes()[..]].concat()
}

/// The first key, and the key behind the last one, of the indexes themselves.
pub(crate) const ALL_INDEXES: (&[u8], &[u8]) = (&[INDEX], &[INDEX + 1]);

/// Whether a stored record is an index itself.
pub(crate) fn is_index(stored: &[u8]) -> bool {
    stored.first() == Some(&INDEX)
}

/// The key of a change; the empty key gives the first one that a change of the entry may have.
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
