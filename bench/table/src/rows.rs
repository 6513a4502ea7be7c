//! The keys and values that all servers get: 16 bytes and 100 bytes.

/// Length of a key.
pub const KEY_BYTES: usize = 16;
/// Length of a value.
pub const VALUE_BYTES: usize = 100;

/// The key of a number: sixteen hexadecimal digits, spread evenly.
pub fn key(number: u64) -> [u8; KEY_BYTES] {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    std::array::from_fn(|at| b"0123456789abcdef"[(mixed >> (60 - 4 * at)) as usize & 15])
}

/// A value: twenty digits of a number, and letters that tell it too.
pub fn value(number: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    value[..DIGITS].copy_from_slice(format!("{number:020}").as_bytes());
    let mut state = number ^ 0x2545_f491_4f6c_dd1d;
    for letters in value[DIGITS..].chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let wide = state.to_be_bytes();
        letters.iter_mut().zip(wide).for_each(|(letter, wide)| *letter = b'a' + (wide & 15));
    }
    value
}

const DIGITS: usize = 20;

/// The number that a value was made of; none if it was made of no number.
pub fn number(found: &[u8]) -> Option<u64> {
    let number = std::str::from_utf8(found.get(..DIGITS)?).ok()?.parse().ok()?;
    (found == value(number)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_number_and_a_changed_one_none() {
        let mut made = value(77);
        assert_eq!(number(&made), Some(77));
        made[60] ^= 1;
        assert_eq!(number(&made), None);
        assert_ne!(key(1), key(2));
    }
}
