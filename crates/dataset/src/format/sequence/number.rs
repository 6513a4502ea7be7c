//! Hadoop's numbers of variable length (`WritableUtils.readVLong`).
//!
//! −112 to 127 are one byte. Otherwise the first byte says how many follow, big-endian: −113 to −120 one to eight
//! of a number that is not negative, −121 to −128 one to eight of the complement of a negative one.

/// How many bytes the number has that begins with this one.
pub fn length(first: u8) -> usize {
    match first.cast_signed() {
        -112.. => 1,
        first @ -120..=-113 => (-111 - i16::from(first)).unsigned_abs().into(),
        first => (-119 - i16::from(first)).unsigned_abs().into(),
    }
}

/// The number at the beginning of these bytes and how many it has; `None` if they are too few.
pub fn read(bytes: &[u8]) -> Option<(i64, usize)> {
    let first = *bytes.first()?;
    let length = length(first);
    let rest = bytes.get(1..length)?;
    if rest.is_empty() {
        return Some((first.cast_signed().into(), 1));
    }
    let number = rest.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte)).cast_signed();
    Some((if first.cast_signed() < -120 { !number } else { number }, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From `WritableUtils.writeVLong` of Hadoop 3.
    #[test]
    fn numbers_are_as_hadoop_writes_them() {
        let cases: [(&[u8], i64); 10] = [
            (&[0], 0),
            (&[127], 127),
            (&[0x90], -112),
            (&[0x8f, 0x80], 128),
            (&[0x8f, 0xff], 255),
            (&[0x8e, 1, 0], 256),
            (&[0x87, 0x70], -113),
            (&[0x8c, 0x7f, 0xff, 0xff, 0xff], i32::MAX.into()),
            (&[0x88, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], i64::MAX),
            (&[0x80, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], i64::MIN),
        ];
        for (bytes, number) in cases {
            assert_eq!(read(bytes), Some((number, bytes.len())), "{bytes:x?}");
            assert_eq!(read(&bytes[..bytes.len() - 1]), None, "{bytes:x?} cut off");
        }
    }
}
