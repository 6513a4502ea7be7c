//! SipHash-1-3 under the fixed key (0, 0).
//!
//! SipHash is meant to be keyed with a secret, which defeats those who choose keys that collide. A secret
//! would have to be the same in every process that routes, so here it is a plain good hash with a fixed
//! key; against hostile keys, split by load helps, not this. The standard library's hasher computes the
//! same today but promises nothing for tomorrow, hence our own.

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

/// SipHash-1-3 of `key`: one round per 8-byte block, three at the end.
pub fn sip_1_3(key: &[u8]) -> u64 {
    // The published start values, which a key of zeros leaves as they are.
    let mut v = [0x736f_6d65_7073_6575, 0x646f_7261_6e64_6f6d, 0x6c79_6765_6e65_7261, 0x7465_6462_7974_6573];
    let mut absorb = |block: u64| {
        v[3] ^= block;
        round(&mut v);
        v[0] ^= block;
    };
    let (blocks, tail) = key.as_chunks::<8>();
    blocks.iter().for_each(|block| absorb(u64::from_le_bytes(*block)));
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    last[7] = key.len() as u8; // The length modulo 256, as published.
    absorb(u64::from_le_bytes(last));
    v[2] ^= 0xff;
    (0..3).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::Hasher;

    #[expect(
        clippy::disallowed_types,
        reason = "an independent source to compare with; nothing is placed by it"
    )]
    #[test]
    fn the_standard_library_agrees_at_every_length() {
        let key: Vec<u8> = (0..=255).cycle().take(600).collect();
        for length in 0..key.len() {
            let mut theirs = std::hash::DefaultHasher::new();
            theirs.write(&key[..length]);
            assert_eq!(sip_1_3(&key[..length]), theirs.finish(), "{length} bytes");
        }
    }
}
