//! The form of rows in `lsm-tree`: keys with a prefix, and one row of the store itself.
//!
//! ```text
//! 00 "state"   version u8 · kind u8 · epoch u64 · index u64
//! 01 key       value, as the table has it
//! ```
//!
//! Numbers are big-endian. The kind is 0 for a usable store, which has everything up to the position, and 1 for one that is being
//! filled up to the position: its last row says how far it has got.

use lsm_tree::Slice;
use partage_core::base::id::Epoch;
use partage_service::table::replication::LogPosition;

use super::SharedBytes;

/// Key of the row that says what the store has.
pub(super) const STATE_KEY: &[u8] = b"\0state";

/// Before the key of each row of the table.
const ROW: u8 = 1;

/// The first key, and the key behind the last one, that a row of the table may be stored under.
pub(super) const ROWS: (&[u8], &[u8]) = (&[ROW], &[ROW + 1]);

const VERSION: u8 = 1;

/// Keys of so many bytes are put together without an allocation.
const SHORT_BYTES: usize = 63;

/// Calls `with` with the stored form of a key.
pub(super) fn with_stored_key<T>(key: &[u8], with: impl FnOnce(&[u8]) -> T) -> T {
    if key.len() <= SHORT_BYTES {
        let mut stored = [ROW; SHORT_BYTES + 1];
        stored[1..=key.len()].copy_from_slice(key);
        with(&stored[..=key.len()])
    } else {
        let mut stored = Vec::with_capacity(1 + key.len());
        stored.push(ROW);
        stored.extend_from_slice(key);
        with(&stored)
    }
}

/// The stored form of a key.
pub(super) fn stored_key(key: &[u8]) -> Slice {
    with_stored_key(key, |stored| Slice::from(stored))
}

/// The stored form of a key that may have been made from one.
pub(super) fn stored_key_of(key: &SharedBytes) -> Slice {
    key.as_stored_key().cloned().unwrap_or_else(|| stored_key(key))
}

/// The value of the store's own row.
pub(super) fn encode(position: LogPosition, is_complete: bool) -> Vec<u8> {
    let mut row = vec![VERSION, u8::from(!is_complete)];
    row.extend_from_slice(&position.epoch.0.to_be_bytes());
    row.extend_from_slice(&position.index.to_be_bytes());
    row
}

/// Position and completeness from the store's own row; none if it is malformed.
pub(super) fn decode(row: &[u8]) -> Option<(LogPosition, bool)> {
    let (&[version, kind], rest) = row.split_first_chunk()?;
    let (epoch, rest) = rest.split_first_chunk()?;
    let index = rest.try_into().ok()?;
    let position = LogPosition { epoch: Epoch(u64::from_be_bytes(*epoch)), index: u64::from_be_bytes(index) };
    (version == VERSION && kind <= 1).then_some((position, kind == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_come_back_and_other_rows_are_refused() {
        let position = LogPosition { epoch: Epoch(7), index: u64::MAX };
        for is_complete in [true, false] {
            let mut row = encode(position, is_complete);
            assert_eq!(decode(&row), Some((position, is_complete)));
            for bytes in 0..18 {
                assert_eq!(decode(&row[..bytes]), None, "{bytes} bytes");
            }
            row.push(0);
            assert_eq!(decode(&row), None, "too long");
        }
        let mut row = encode(position, true);
        row[0] = 2;
        assert_eq!(decode(&row), None, "of another version");
        row[..2].copy_from_slice(&[1, 2]);
        assert_eq!(decode(&row), None, "of an unknown kind");
    }

    #[test]
    fn stored_keys_keep_their_order_and_stay_apart_from_the_row_of_the_store() {
        let keys: Vec<Vec<u8>> = vec![
            vec![],
            vec![0],
            vec![0; 62],
            vec![0; 63],
            vec![0; 64],
            vec![1],
            vec![255; 63],
            vec![255; 300],
        ];
        let stored: Vec<Slice> = keys.iter().map(|key| stored_key(key)).collect();
        assert!(stored.is_sorted());
        for (key, stored) in keys.iter().zip(stored) {
            assert!(*ROWS.0 <= *stored && *stored < *ROWS.1 && *STATE_KEY < *stored);
            assert_eq!(*SharedBytes::stored_key(stored.clone()), **key);
            assert_eq!(stored_key_of(&SharedBytes::stored_key(stored.clone())), stored);
            assert_eq!(stored_key_of(&SharedBytes::from(&**key)), stored);
        }
    }
}
