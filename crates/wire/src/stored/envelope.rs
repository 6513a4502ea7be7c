//! The bytes around every stored value.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version of this format: 1 |
//! | 1–4 | CRC32C, little-endian, of the version, the key, a zero byte, and all bytes from 5 on |
//! | 5–6 | which part of the record this is, little-endian, from 0 |
//! | 7–8 | how many parts the record has |
//! | 9– | the part: a protobuf message, or a piece of one |
//!
//! The key is in the checksum, so that a value that was written to the wrong place, or served from there, is
//! found like a flipped bit (D8).

use bytes::Bytes;

/// The version that is written.
const VERSION: u8 = 1;

/// Bytes before the part.
pub(super) const HEADER_BYTES: usize = 9;

/// Why a value is not what was written to its key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum EnvelopeError {
    #[error("has {0} bytes, too few for any value: it was cut short")]
    Short(usize),
    #[error("is in format {0}, this program knows {VERSION}: it was damaged, or written by a later version")]
    Version(u8),
    #[error(
        "has the checksum {found:08x} where {stored:08x} is stored: it was damaged, or belongs to another key"
    )]
    Checksum { stored: u32, found: u32 },
    #[error("is part {part} of {parts}")]
    Part { part: u16, parts: u16 },
}

fn checksum(version: u8, key: &str, rest: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&[version]);
    let crc = crc32c::crc32c_append(crc, key.as_bytes());
    let crc = crc32c::crc32c_append(crc, &[0]);
    crc32c::crc32c_append(crc, rest)
}

/// The value to put at `key`.
pub(super) fn seal(key: &str, part: u16, parts: u16, payload: &[u8]) -> Bytes {
    let mut value = Vec::with_capacity(HEADER_BYTES + payload.len());
    value.push(VERSION);
    value.extend([0; 4]);
    value.extend(part.to_le_bytes());
    value.extend(parts.to_le_bytes());
    value.extend(payload);
    let crc = checksum(VERSION, key, &value[5..]);
    value[1..5].copy_from_slice(&crc.to_le_bytes());
    value.into()
}

/// Which part of how many the value at `key` is, and its payload.
pub(super) fn open(key: &str, value: &[u8]) -> Result<(u16, u16, Bytes), EnvelopeError> {
    let Some((header, payload)) = value.split_first_chunk::<HEADER_BYTES>() else {
        return Err(EnvelopeError::Short(value.len()));
    };
    let [version, c0, c1, c2, c3, p0, p1, n0, n1] = *header;
    if version != VERSION {
        return Err(EnvelopeError::Version(version));
    }
    let (stored, found) = (u32::from_le_bytes([c0, c1, c2, c3]), checksum(version, key, &value[5..]));
    if stored != found {
        return Err(EnvelopeError::Checksum { stored, found });
    }
    let (part, parts) = (u16::from_le_bytes([p0, p1]), u16::from_le_bytes([n0, n1]));
    if part >= parts {
        return Err(EnvelopeError::Part { part, parts });
    }
    Ok((part, parts, Bytes::copy_from_slice(payload)))
}
