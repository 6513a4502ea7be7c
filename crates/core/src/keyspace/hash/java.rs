//! The 32-bit recurrence `h = 31·h + x` of the Java world, in the three forms that data is found sharded by.
//!
//! They differ only in what `x` runs over and where `h` starts, so they agree on some keys and not on
//! others, which is why all three are here: a file that was partitioned by one must be read by the same one.
//!
//! | function | start | runs over | as in |
//! |---|---|---|---|
//! | [`string`] | 0 | UTF-16 units | `String.hashCode` |
//! | [`bytes`] | 0 | bytes, unsigned | Sequins' and Cascading-era partitioners; equals [`string`] on ASCII |
//! | [`hadoop`] | 1 | bytes, signed | `Text` and `BytesWritable` (`WritableComparator.hashBytes`) |
//!
//! Java's result is a signed `int`; here it is the same 32 bits without the sign.

/// `String.hashCode` of the key read as UTF-8.
///
/// Bytes that are not UTF-8 count as U+FFFD, one for each longest piece that could have begun a character; a
/// lone surrogate, whole or cut off, counts as such a piece. This is what `new String(key, UTF_8).hashCode()` gives in
/// Java, so it is defined, but two different malformed keys may share a hash more often than chance
/// would have it.
pub fn string(key: &[u8]) -> u32 {
    let mut hash = 0u32;
    let mut push = |unit: u16| hash = hash.wrapping_mul(31).wrapping_add(u32::from(unit));
    let mut rest = key;
    while let Some(chunk) = rest.utf8_chunks().next() {
        chunk.valid().encode_utf16().for_each(&mut push);
        if !chunk.invalid().is_empty() {
            push(0xfffd);
        }
        rest = &rest[chunk.valid().len() + chunk.invalid().len()..];
        if let (&[0xed], [0xa0..=0xbf, after @ ..]) = (chunk.invalid(), rest) {
            rest = if let [0x80..=0xbf, after @ ..] = after { after } else { after };
        }
    }
    hash
}

/// The same recurrence over the bytes as they are, each from 0 to 255.
#[inline]
pub fn bytes(key: &[u8]) -> u32 {
    recurrence(0, key, u32::from)
}

/// Hadoop's `hashBytes`: starts at 1 and takes each byte as −128 to 127.
pub fn hadoop(key: &[u8]) -> u32 {
    recurrence(1, key, |byte| i32::from(byte.cast_signed()).cast_unsigned())
}

/// Four bytes a step, since their products need not wait for each other.
#[inline]
fn recurrence(start: u32, key: &[u8], number: impl Fn(u8) -> u32) -> u32 {
    const POWERS: [u32; 4] = [31 * 31 * 31, 31 * 31, 31, 1];
    let (fours, rest) = key.as_chunks::<4>();
    let hash = fours.iter().fold(start, |hash, four| {
        let products = four.iter().zip(POWERS).map(|(byte, power)| number(*byte).wrapping_mul(power));
        products.fold(hash.wrapping_mul(31 * POWERS[0]), u32::wrapping_add)
    });
    rest.iter().fold(hash, |hash, byte| hash.wrapping_mul(31).wrapping_add(number(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_and_bytes_agree_on_ascii_and_only_there() {
        assert_eq!(string(b"hello"), 99_162_322);
        assert_eq!(bytes(b"hello"), 99_162_322);
        assert_ne!(string("é".as_bytes()), bytes("é".as_bytes()));
        assert_eq!(string("é".as_bytes()), 0xe9);
    }

    #[test]
    fn a_character_outside_the_first_plane_is_two_units() {
        assert_eq!(string("😀".as_bytes()), 0xd83d * 31 + 0xde00);
    }

    #[test]
    fn malformed_bytes_count_as_replacement_characters() {
        assert_eq!(string(b"\xff"), 0xfffd);
        assert_eq!(string(b"\xffa"), 0xfffd * 31 + 0x61);
        assert_eq!(string(b"\xe2\x82"), 0xfffd, "one cut-off character is one replacement");
        assert_eq!(string(b"\xed\xa0\x80"), 0xfffd, "and so is a lone surrogate");
    }

    #[test]
    fn a_group_of_bytes_is_as_each_by_itself() {
        let key: Vec<u8> = (0..=255).rev().collect();
        for length in 0..=key.len() {
            let step = |hash: u32, number: u32| hash.wrapping_mul(31).wrapping_add(number);
            let signed = |byte: &u8| i32::from(byte.cast_signed()).cast_unsigned();
            assert_eq!(
                bytes(&key[..length]),
                key[..length].iter().fold(0, |hash, byte| step(hash, u32::from(*byte)))
            );
            assert_eq!(hadoop(&key[..length]), key[..length].iter().map(signed).fold(1, step));
        }
    }

    #[test]
    fn hadoop_starts_at_one_and_is_signed() {
        assert_eq!(hadoop(b""), 1);
        assert_eq!(hadoop(b"\xff"), 30);
    }
}
