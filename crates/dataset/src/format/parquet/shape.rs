//! The types that the format gives to the fields of its structs, and a walk that compares a file with them.
//!
//! The library takes it on trust that a field it knows has the type that the format gives it, and where it does not, it reads on
//! at another place than a reader that keeps to the protocol. So each known field must have its type.

use super::compact::{BINARY, CompactReader, DOUBLE, FALSE, I8, I16, I32, I64, LIST, STRUCT, TRUE, damaged};
use std::io::{self, Read};

/// What the format says of a value.
#[derive(Clone, Copy)]
pub enum Shape {
    Flag,
    /// A value without others in it, of this type of Thrift.
    Plain(u8),
    List(&'static Shape),
    /// A struct or a union, with the fields that are known.
    Struct(&'static [(i64, Shape)]),
}

use Shape::{Flag, List, Plain, Struct};

pub const TEXT: Shape = Plain(BINARY);
pub const BYTE: Shape = Plain(I8);
pub const SHORT: Shape = Plain(I16);
pub const INT: Shape = Plain(I32);
pub const LONG: Shape = Plain(I64);
pub const REAL: Shape = Plain(DOUBLE);
pub const EMPTY: Shape = Struct(&[]);

/// Of a column, or of a page.
pub const STATISTICS: Shape = Struct(&[
    (1, TEXT),
    (2, TEXT),
    (3, LONG),
    (4, LONG),
    (5, TEXT),
    (6, TEXT),
    (7, Flag),
    (8, Flag),
    (9, LONG),
]);

/// Passes over a value of this type, which must be of that shape.
pub fn follow(stream: &mut CompactReader<impl Read>, kind: u8, shape: &Shape, depth: u32) -> io::Result<()> {
    match (shape, kind) {
        (Flag, TRUE | FALSE) => Ok(()),
        (Plain(own), kind) if *own == kind => stream.skip(kind, 0),
        (List(element), LIST) if depth > 0 => {
            let (count, kind) = stream.list()?;
            (0..count).try_for_each(|_| follow(stream, kind, element, depth - 1))
        }
        (Struct(fields), STRUCT) if depth > 0 => {
            let mut last = 0;
            while let Some((id, kind)) = stream.field(last)? {
                follow_field(stream, (id, kind), fields, depth - 1)?;
                last = id;
            }
            Ok(())
        }
        _ => Err(damaged("a field of another type than the format gives it")),
    }
}

/// Passes over a field of a struct that has these.
pub fn follow_field(
    stream: &mut CompactReader<impl Read>,
    (id, kind): (i64, u8),
    fields: &[(i64, Shape)],
    depth: u32,
) -> io::Result<()> {
    match fields.iter().find(|(known, _)| *known == id) {
        Some((_, shape)) => follow(stream, kind, shape, depth),
        // Of a later version of the format.
        None => stream.skip(kind, depth),
    }
}
