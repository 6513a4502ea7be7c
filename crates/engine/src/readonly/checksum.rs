//! The checksum of a part that a lookup reads.
//!
//! It is CRC32C. The crate `crc32c` is made for long inputs: it goes byte by byte to the next multiple of eight in memory, and
//! byte by byte at the end, so many times that no processor foresees how many. For an entry of 130 bytes that takes longer
//! than all the rest. So short parts are taken here eight bytes at a time wherever they lie, with the same result.

/// Up to this length it pays: beyond it the crate goes along three lines at a time.
#[cfg(target_arch = "x86_64")]
const SHORT_BYTES: usize = 512;

/// The checksum of a part that lies at `place` (its offset or number): one that was written to another place does
/// not match.
#[inline]
pub fn placed_crc(place: u64, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(crc) = short(place, bytes) {
        return crc;
    }
    crc32c::crc32c_append(crc32c::crc32c(&place.to_le_bytes()), bytes)
}

/// The same for short parts, on a processor with SSE 4.2.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "a function for some processors only; the proof is in the function")]
#[inline]
fn short(place: u64, bytes: &[u8]) -> Option<u32> {
    use std::arch::x86_64::_mm_crc32_u64;

    /// As if zeros stood before all of it, as many as it takes for the end to fall on a multiple of eight: they change
    /// nothing, and so there is no rest of some bytes, whose length no processor foresees.
    #[target_feature(enable = "sse4.2")]
    fn crc(place: u64, bytes: &[u8], head: u64) -> u32 {
        let place = place ^ u64::from(u32::MAX);
        let odd = (bytes.len() - 1) % 8 + 1;
        let zeros = 8 * (8 - odd);
        let begin = _mm_crc32_u64(0, place << zeros);
        let begin = _mm_crc32_u64(begin, (place >> 8 >> (56 - zeros)) | head << zeros);
        let (eights, _) = bytes[odd..].as_chunks::<8>();
        !(eights.iter().fold(begin, |crc, eight| _mm_crc32_u64(crc, u64::from_le_bytes(*eight))) as u32)
    }

    if bytes.is_empty() || bytes.len() > SHORT_BYTES || !std::arch::is_x86_feature_detected!("sse4.2") {
        return None;
    }
    let head = match bytes.first_chunk::<8>() {
        Some(head) => u64::from_le_bytes(*head),
        None => bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)),
    };
    // SAFETY: to call `crc` is unsafe because its instructions are not on every processor. That they are on this one has
    // just been asked. Within it all is safe: slices are cut with their bounds checked, and the instructions take
    // numbers.
    Some(unsafe { crc(place, bytes, head) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_gives_what_the_crate_gives() {
        let bytes: Vec<u8> = (0..700_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for place in [0, 7, u64::MAX] {
            for begin in 0..9 {
                for end in begin..bytes.len() {
                    let part = &bytes[begin..end];
                    let whole = [&place.to_le_bytes(), part].concat();
                    assert_eq!(placed_crc(place, part), crc32c::crc32c(&whole), "{place} {begin} {end}");
                }
            }
        }
    }
}
