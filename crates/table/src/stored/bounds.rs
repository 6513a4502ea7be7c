//! Bounds of shards, as parts of other forms.
//!
//! ```text
//! 1 keys    bytes u16 · begin · bytes u16 · end (empty: there is none)
//! 2 hashes  first u64 · last u64
//! 3 slot    number u32 · of u32
//! 4 name    bytes u16 · name
//! ```

use super::Malformed;
use super::cursor::Cursor;
use bytes::BufMut;
use partage_core::base::name::PartitionName;
use partage_core::keyspace::key::{HashRange, Key, KeyRange};
use partage_core::keyspace::sharding::{Bounds, Slot};

const KEYS: u8 = 1;
const HASHES: u8 = 2;
const SLOT: u8 = 3;
const NAME: u8 = 4;

fn put_text(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.put_u16(u16::try_from(text.len()).expect("keys and names are shorter than 64 KiB"));
    bytes.put_slice(text);
}

/// Appends bounds in the form above.
pub(crate) fn put(bytes: &mut Vec<u8>, bounds: &Bounds) {
    match bounds {
        Bounds::Keys(range) => {
            bytes.put_u8(KEYS);
            put_text(bytes, range.begin.as_bytes());
            put_text(bytes, range.end.as_bytes());
        }
        Bounds::Hashes(range) => {
            bytes.put_u8(HASHES);
            bytes.put_u64(range.first);
            bytes.put_u64(range.last);
        }
        Bounds::Slot(slot) => {
            bytes.put_u8(SLOT);
            bytes.put_u32(slot.number());
            bytes.put_u32(slot.of());
        }
        Bounds::Name(name) => {
            bytes.put_u8(NAME);
            put_text(bytes, name.as_str().as_bytes());
        }
    }
}

fn text<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], Malformed> {
    let length = cursor.u16("the length of a bound")?;
    cursor.bytes(length.into(), "a bound")
}

fn key(cursor: &mut Cursor<'_>) -> Result<Key, Malformed> {
    let bytes = text(cursor)?;
    Key::new(bytes).map_err(|error| cursor.wrong("a bound", bytes.len(), format!("is refused: {error}")))
}

/// # Errors
/// What is wrong with the bytes.
pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Bounds, Malformed> {
    match cursor.u8("the kind of bounds")? {
        KEYS => {
            let (begin, end) = (key(cursor)?, key(cursor)?);
            let range = KeyRange::new(begin, end);
            range.map(Bounds::Keys).map_err(|error| cursor.wrong("bounds", 0, error.to_string()))
        }
        HASHES => {
            let (first, last) = (cursor.u64("the first point")?, cursor.u64("the last point")?);
            match first <= last {
                true => Ok(Bounds::Hashes(HashRange { first, last })),
                false => Err(cursor.wrong("the last point", 8, "is below the first one")),
            }
        }
        SLOT => {
            let (number, of) = (cursor.u32("the number of a slot")?, cursor.u32("the count of slots")?);
            Slot::new(number, of)
                .map(Bounds::Slot)
                .map_err(|error| cursor.wrong("a slot", 8, error.to_string()))
        }
        NAME => {
            let bytes = text(cursor)?;
            let name = std::str::from_utf8(bytes).ok().and_then(|name| PartitionName::new(name).ok());
            name.map(Bounds::Name)
                .ok_or_else(|| cursor.wrong("the name of a partition", bytes.len(), "is none"))
        }
        unknown => Err(cursor.wrong("the kind of bounds", 1, format!("is the unknown one {unknown}"))),
    }
}
