//! Keys of several columns: how they are joined, and how one is found again (K2).
//!
//! Labels of several lines on one strip of tape, with a mark between two lines that no line can hold. The strips sort as
//! the lists of lines do: first by the first line, and of equal ones by the next.
//!
//! - (ka) the columns stand one after the other, with the bytes `00 01` between two; a zero byte within a column is
//!   written `00 ff`. A key of one column is the column as it is;
//! - (kb) different lists of as many columns are different keys, and keys are in the order of the lists, each column compared
//!   byte by byte;
//! - (kc) what begins with some columns and `00 01` begins with just these: it is the prefix of a scan.

/// The bytes between two columns, which no column can hold (ka).
pub const BETWEEN: [u8; 2] = [0, 1];

/// A zero byte within a column.
const ZERO: [u8; 2] = [0, 0xff];

/// Most columns of one key: more say that a row is meant.
pub const KEY_COLUMNS: usize = 16;

/// Adds one of several columns to a key.
pub fn add(key: &mut Vec<u8>, is_first: bool, column: &[u8]) {
    if !is_first {
        key.extend_from_slice(&BETWEEN);
    }
    let mut parts = column.split(|byte| *byte == 0);
    key.extend_from_slice(parts.next().unwrap_or_default());
    for part in parts {
        key.extend_from_slice(&ZERO);
        key.extend_from_slice(part);
    }
}

/// One of the columns of a key, from 0, as it stands there; none if there are fewer.
pub fn column(key: &[u8], number: usize) -> Option<&[u8]> {
    let mut rest = key;
    for _ in 0..number {
        rest = &rest[end(rest)? + BETWEEN.len()..];
    }
    Some(&rest[..end(rest).unwrap_or(rest.len())])
}

/// How many columns there are, at least one.
pub fn count(key: &[u8]) -> usize {
    let (mut rest, mut count) = (key, 1);
    while let Some(end) = end(rest) {
        rest = &rest[end + BETWEEN.len()..];
        count += 1;
    }
    count
}

fn end(key: &[u8]) -> Option<usize> {
    key.windows(2).position(|two| two == BETWEEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn joined(columns: &[Vec<u8>]) -> Vec<u8> {
        let mut key = Vec::new();
        columns.iter().enumerate().for_each(|(number, column)| add(&mut key, number == 0, column));
        key
    }

    #[test]
    fn golden() {
        assert_eq!(joined(&[b"eu".to_vec(), b"7".to_vec()]), b"eu\x00\x017");
        assert_eq!(
            joined(&[b"a\0b".to_vec(), b"\0".to_vec(), vec![]]),
            b"a\x00\xffb\x00\x01\x00\xff\x00\x01"
        );
        assert_eq!(column(b"a\x00\xffb\x00\x01c", 0), Some(&b"a\x00\xffb"[..]));
        assert_eq!(column(b"a\x00\xffb\x00\x01c", 1), Some(&b"c"[..]));
        assert_eq!(column(b"a\x00\xffb\x00\x01c", 2), None);
        assert_eq!([count(b""), count(b"a"), count(b"a\x00\x01"), count(b"\x00\x01\x00\x01")], [1, 1, 2, 3]);
    }

    fn columns() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let byte = prop_oneof![Just(0_u8), Just(1), Just(0xff), any::<u8>()];
        prop::collection::vec(prop::collection::vec(byte, 0..5), 3)
    }

    proptest! {
        #[test]
        fn kb_keys_are_in_the_order_of_their_columns(a in columns(), b in columns()) {
            prop_assert_eq!(joined(&a).cmp(&joined(&b)), a.cmp(&b));
        }

        #[test]
        fn kc_a_column_is_found_again_and_begins_as_a_prefix_says(a in columns(), b in columns()) {
            let key = joined(&a);
            prop_assert_eq!(count(&key), 3);
            for number in 0..3 {
                prop_assert_eq!(column(&key, number).unwrap(), joined(&a[number..=number]));
            }
            let prefix = [joined(&b[..1]), BETWEEN.to_vec()].concat();
            prop_assert_eq!(key.starts_with(&prefix), a[0] == b[0]);
        }
    }
}
