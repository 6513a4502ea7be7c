//! The footer of a file, checked before the library reads it.
//!
//! The library takes time for as many elements as a list states, also where an element takes no bytes. So the whole footer is
//! walked here first: each field that the format knows must have its type there ([`super::shape`]), and each list must be as long
//! as it states.

use super::compact::{CompactReader, STRUCT, named};
use super::shape::Shape::{self, Flag, List, Struct};
use super::shape::{BYTE, EMPTY, INT, LONG, REAL, SHORT, STATISTICS, TEXT, follow};
use std::io::{self, Read};

/// Structs and lists within each other: row groups, columns, their statistics; a format of today has ten.
const DEPTH: u32 = 16;

const KEY_VALUES: Shape = List(&Struct(&[(1, TEXT), (2, TEXT)]));

const TIME_UNIT: Shape = Struct(&[(1, EMPTY), (2, EMPTY), (3, EMPTY)]);

const LOGICAL_TYPE: Shape = Struct(&[
    (1, EMPTY),
    (2, EMPTY),
    (3, EMPTY),
    (4, EMPTY),
    (5, Struct(&[(1, INT), (2, INT)])),
    (6, EMPTY),
    (7, Struct(&[(1, Flag), (2, TIME_UNIT)])),
    (8, Struct(&[(1, Flag), (2, TIME_UNIT)])),
    (10, Struct(&[(1, BYTE), (2, Flag)])),
    (11, EMPTY),
    (12, EMPTY),
    (13, EMPTY),
    (14, EMPTY),
    (15, EMPTY),
    (16, Struct(&[(1, BYTE)])),
    (17, Struct(&[(1, TEXT)])),
    (18, Struct(&[(1, TEXT), (2, INT)])),
]);

const SCHEMA_ELEMENT: Shape = Struct(&[
    (1, INT),
    (2, INT),
    (3, INT),
    (4, TEXT),
    (5, INT),
    (6, INT),
    (7, INT),
    (8, INT),
    (9, INT),
    (10, LOGICAL_TYPE),
]);

const BOUNDING_BOX: Shape =
    Struct(&[(1, REAL), (2, REAL), (3, REAL), (4, REAL), (5, REAL), (6, REAL), (7, REAL), (8, REAL)]);

const COLUMN_META_DATA: Shape = Struct(&[
    (1, INT),
    (2, List(&INT)),
    (3, List(&TEXT)),
    (4, INT),
    (5, LONG),
    (6, LONG),
    (7, LONG),
    (8, KEY_VALUES),
    (9, LONG),
    (10, LONG),
    (11, LONG),
    (12, STATISTICS),
    (13, List(&Struct(&[(1, INT), (2, INT), (3, INT)]))),
    (14, LONG),
    (15, INT),
    (16, Struct(&[(1, LONG), (2, List(&LONG)), (3, List(&LONG))])),
    (17, Struct(&[(1, BOUNDING_BOX), (2, List(&INT))])),
]);

const COLUMN_CHUNK: Shape = Struct(&[
    (1, TEXT),
    (2, LONG),
    (3, COLUMN_META_DATA),
    (4, LONG),
    (5, INT),
    (6, LONG),
    (7, INT),
    (8, Struct(&[(1, EMPTY), (2, Struct(&[(1, List(&TEXT)), (2, TEXT)]))])),
    (9, TEXT),
]);

const ROW_GROUP: Shape = Struct(&[
    (1, List(&COLUMN_CHUNK)),
    (2, LONG),
    (3, LONG),
    (4, List(&Struct(&[(1, INT), (2, Flag), (3, Flag)]))),
    (5, LONG),
    (6, LONG),
    (7, SHORT),
]);

const CIPHER: Shape = Struct(&[(1, TEXT), (2, TEXT), (3, Flag)]);

/// `FileMetaData` of the format (parquet.thrift, version 2.12).
const FOOTER: Shape = Struct(&[
    (1, INT),
    (2, List(&SCHEMA_ELEMENT)),
    (3, LONG),
    (4, List(&ROW_GROUP)),
    (5, KEY_VALUES),
    (6, TEXT),
    (7, List(&Struct(&[(1, EMPTY), (2, EMPTY)]))),
    (8, Struct(&[(1, CIPHER), (2, CIPHER)])),
    (9, TEXT),
]);

/// Whether a footer is what the format says, and each of its lists as long as it states.
pub fn check(bytes: &[u8]) -> io::Result<()> {
    let mut stream = CompactReader { stream: bytes.take(bytes.len() as u64) };
    follow(&mut stream, STRUCT, &FOOTER, DEPTH).map_err(|error| named("the footer", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least footer: version 1, a schema of one nameless element, no rows and no groups.
    const LEAST: [u8; 13] = [0x15, 2, 0x19, 0x1c, 0x48, 0, 0, 0x16, 0, 0x19, 0x0c, 0, 0];

    fn told(bytes: &[u8]) -> String {
        check(bytes).map_or_else(|error| error.to_string(), |()| "right".to_owned())
    }

    #[test]
    fn a_footer_is_right_also_with_fields_that_are_not_known() {
        let known = &LEAST[..11];
        assert_eq!(told(&[known, &[0]].concat()), "right");
        // Field 20: a list of two structs, one of which has a text.
        let later = [0x09, 40, 0x2c, 0x18, 1, b'x', 0, 0, 0];
        assert_eq!(told(&[known, &later[..]].concat()), "right");
        for cut in 0..known.len() {
            assert_ne!(told(&known[..cut]), "right", "cut at {cut}");
        }
    }

    #[test]
    fn a_list_that_is_longer_than_the_footer_is_refused() {
        for kind in [0xf3, 0xfc] {
            let lying = [0x09, 40, kind, 0xff, 0xff, 0xff, 0xff, 0x07, 0, 0, 0];
            assert_eq!(check(&lying).unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "{kind:x}");
        }
        let deep = [&[0x0c, 40][..], &[0x1c].repeat(40), &[0].repeat(42)].concat();
        assert!(told(&deep).starts_with("the footer has a field of a type"));
    }

    /// The library reads on at another place than a reader that keeps to the protocol.
    #[test]
    fn what_the_library_reads_otherwise_is_refused() {
        for kind in [0x21, 0x22] {
            assert_eq!(told(&[0x09, 40, kind, 1, 2, 0]), "the footer has a list of flags");
        }
        // The version is a list; the rows are a text; a schema of numbers.
        for wrong in [&[0x19, 0x0c, 0][..], &[0x38, 1, 0, 0], &[0x29, 0x15, 2, 0]] {
            assert_eq!(told(wrong), "the footer has a field of another type than the format gives it");
        }
    }
}
