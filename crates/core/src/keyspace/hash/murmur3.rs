//! MurmurHash3, by its published description: the 32-bit form and the 128-bit form for 64-bit machines.
//!
//! Both are read little-endian on every architecture. The seed is an argument because the published test
//! values use several; [`super::HashFunction`] always uses 0, as Cassandra, Kafka's and Guava's users do.

/// The 32-bit form (`x86_32`).
pub fn x86_32(key: &[u8], seed: u32) -> u32 {
    let scramble = |k: u32| k.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let mut h = seed;
    let (blocks, tail) = key.as_chunks::<4>();
    for block in blocks {
        h ^= scramble(u32::from_le_bytes(*block));
        h = h.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    let last = tail.iter().rev().fold(0u32, |k, byte| k << 8 | u32::from(*byte));
    h ^= scramble(last);
    // The length is mixed in modulo 2^32, as published.
    h ^= key.len() as u32;
    h = (h ^ h >> 16).wrapping_mul(0x85eb_ca6b);
    h = (h ^ h >> 13).wrapping_mul(0xc2b2_ae35);
    h ^ h >> 16
}

const C1: u64 = 0x87c3_7b91_1142_53d5;
const C2: u64 = 0x4cf5_ad43_2745_937f;

fn scramble1(k: u64) -> u64 {
    k.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2)
}

fn scramble2(k: u64) -> u64 {
    k.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1)
}

fn finish(mut h: u64) -> u64 {
    h = (h ^ h >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    h = (h ^ h >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ h >> 33
}

/// The 128-bit form (`x64_128`): its two halves `h1` and `h2` in the order of the reference code.
pub fn x64_128(key: &[u8], seed: u32) -> (u64, u64) {
    let (mut h1, mut h2) = (u64::from(seed), u64::from(seed));
    let (blocks, tail) = key.as_chunks::<16>();
    for block in blocks {
        let (low, high) = halves(block);
        h1 ^= scramble1(low);
        h1 = h1.rotate_left(27).wrapping_add(h2).wrapping_mul(5).wrapping_add(0x52dc_e729);
        h2 ^= scramble2(high);
        h2 = h2.rotate_left(31).wrapping_add(h1).wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    // Scrambling zero gives zero, so a tail padded with zeros is the same as the published fall-through.
    let mut last = [0; 16];
    last[..tail.len()].copy_from_slice(tail);
    let (low, high) = halves(&last);
    h1 ^= scramble1(low) ^ key.len() as u64;
    h2 ^= scramble2(high) ^ key.len() as u64;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    (h1, h2) = (finish(h1), finish(h2));
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    (h1, h2)
}

fn halves(block: &[u8; 16]) -> (u64, u64) {
    let both = u128::from_le_bytes(*block);
    (both as u64, (both >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values() {
        assert_eq!(x86_32(b"", 1), 0x514e_28b7);
        assert_eq!(x86_32(b"Hello, world!", 0x9747_b28c), 0x2488_4cba);
        let fox = b"The quick brown fox jumps over the lazy dog";
        assert_eq!(x86_32(fox, 0), 0x2e4f_f723);
        assert_eq!(x64_128(fox, 0), (0xe34b_bc7b_bc07_1b6c, 0x7a43_3ca9_c49a_9347));
    }
}
