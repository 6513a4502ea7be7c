//! CRC-16/XMODEM and the 16,384 slots that Redis Cluster makes of it.
//!
//! Redis hashes only the part of a key between `{` and `}` when there is one, so that a client can keep
//! several keys in one slot. That is a matter of which bytes are hashed, so it is not done here: choose
//! [`crate::keyspace::sharding::PartitionKey::HashTag`], whose rule is [`hash_tag`], to have it.

/// Slots of a Redis Cluster: the low 14 bits of the checksum.
pub const SLOTS: u16 = 16_384;

const TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// The checksum: polynomial 0x1021, start 0, not reflected, no final inversion.
pub fn checksum(key: &[u8]) -> u16 {
    key.iter().fold(0, |crc: u16, byte| crc << 8 ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

/// The slot of a key: `CLUSTER KEYSLOT`, but for the hash tag.
pub fn slot(key: &[u8]) -> u16 {
    checksum(key) % SLOTS
}

/// What Redis hashes of a key: what stands between the first `{` and the first `}` after it, if that is
/// not empty, else the whole key.
pub fn hash_tag(key: &[u8]) -> &[u8] {
    let tag = || {
        let open = key.iter().position(|byte| *byte == b'{')? + 1;
        let length = key[open..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &key[open..open + length])
    };
    tag().unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values() {
        assert_eq!(checksum(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"somekey"), 11_058);
    }

    #[test]
    fn hash_tags_as_redis_reads_them() {
        let cases: [(&[u8], &[u8]); 6] = [
            (b"{user1000}.following", b"user1000"),
            (b"foo{}{bar}", b"foo{}{bar}"),
            (b"foo{{bar}}zap", b"{bar"),
            (b"foo{bar}{zap}", b"bar"),
            (b"foo{bar", b"foo{bar"),
            (b"", b""),
        ];
        for (key, tag) in cases {
            assert_eq!(hash_tag(key), tag);
        }
    }
}
