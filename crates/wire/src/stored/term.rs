//! The highest term that a coordinator has seen, as it keeps it in a file: one line of text.
//!
//! ```text
//! partage term 1 30 5b0a8c1d
//! ```
//!
//! The number, and the CRC32C of what stands before the checksum.

const KIND: &str = "partage term 1 ";

/// As it is stored.
#[must_use]
pub fn seal(term: u64) -> String {
    let text = format!("{KIND}{term} ");
    let checksum = crc32c::crc32c(text.as_bytes());
    format!("{text}{checksum:08x}\n")
}

/// From what is stored; none when it is damaged, or something else.
#[must_use]
pub fn open(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let term = text.strip_prefix(KIND)?.split(' ').next()?.parse().ok()?;
    (seal(term) == text).then_some(term)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_comes_back_and_a_damaged_one_does_not() {
        for term in [0, 1, 30, u64::MAX] {
            let whole = seal(term);
            assert_eq!(open(whole.as_bytes()), Some(term));
            for (at, bit) in (0..whole.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
                let mut bytes = whole.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                assert_eq!(open(&bytes), None, "{at} {bit}");
            }
            for end in 0..whole.len() {
                assert_eq!(open(&whole.as_bytes()[..end]), None);
            }
        }
    }
}
