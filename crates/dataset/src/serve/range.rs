//! `Range` of a value (RFC 9110, 14). Pure.
//!
//! One range is answered; several at a time are answered with the whole value, as a server may.

use std::ops::Range;

/// What a `Range` header asks for of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ByteRange {
    /// The whole value, with status 200.
    Whole,
    /// These bytes of it, with status 206.
    Some(Range<usize>),
    /// Nothing: no byte of the value is in the range (status 416).
    Unsatisfiable,
}

/// Reads the header. What is not understood asks for the whole.
pub fn byte_range(header: &[u8], length: usize) -> ByteRange {
    wanted(header, length).unwrap_or(ByteRange::Whole)
}

fn wanted(header: &[u8], length: usize) -> Option<ByteRange> {
    let (unit, ranges) = std::str::from_utf8(header).ok()?.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = ranges.trim().split_once('-')?;
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A number that is larger than any is as good as the largest.
        digits.then(|| text.parse::<usize>().unwrap_or(usize::MAX))
    };
    let range = match (first, last) {
        ("", last) => length.saturating_sub(number(last)?)..length,
        (first, "") => number(first)?..length,
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return None;
            }
            first..last.saturating_add(1).min(length)
        }
    };
    Some(if range.start >= range.end { ByteRange::Unsatisfiable } else { ByteRange::Some(range) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_range_is_understood_in_its_three_forms() {
        assert_eq!(byte_range(b"bytes=0-3", 10), ByteRange::Some(0..4));
        assert_eq!(byte_range(b"Bytes=4-", 10), ByteRange::Some(4..10));
        assert_eq!(byte_range(b"bytes=-3", 10), ByteRange::Some(7..10));
        assert_eq!(byte_range(b"bytes=-30", 10), ByteRange::Some(0..10));
        assert_eq!(byte_range(b"bytes=8-99999999999999999999999", 10), ByteRange::Some(8..10));
        for nothing in ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=99999999999999999999999-"] {
            assert_eq!(byte_range(nothing.as_bytes(), 10), ByteRange::Unsatisfiable, "{nothing}");
        }
        assert_eq!(byte_range(b"bytes=0-0", 0), ByteRange::Unsatisfiable);
        for whole in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=3-2",
            "bytes=0-1,4-5",
            "lines=0-1",
            "bytes=+1-2",
            "bytes=a-b",
        ] {
            assert_eq!(byte_range(whole.as_bytes(), 10), ByteRange::Whole, "{whole}");
        }
    }

    proptest! {
        #[test]
        fn a_part_lies_within_the_value(header in prop::collection::vec(any::<u8>(), 0..30), length in 0usize..100) {
            if let ByteRange::Some(range) = byte_range(&header, length) {
                prop_assert!(range.start < range.end && range.end <= length);
            }
        }

        #[test]
        fn a_plain_range_is_cut_at_the_end(first in 0usize..50, more in 0usize..50, length in 1usize..50) {
            let last = first + more;
            let found = byte_range(format!("bytes={first}-{last}").as_bytes(), length);
            let expected = if first >= length { ByteRange::Unsatisfiable } else { ByteRange::Some(first..(last + 1).min(length)) };
            prop_assert_eq!(found, expected);
        }
    }
}
