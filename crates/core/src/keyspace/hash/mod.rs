//! Hash functions by name.
//!
//! A hash decides where a key lives, for years, seen from many processes and languages. So there is a fixed
//! list of functions with fixed seeds, each the same everywhere, with golden cases in `vectors/hashes.json`.
//! A hash that differs between processes (Rust's `RandomState`, Python's `hash()`) cannot be chosen.
//!
//! Each function has one natural [value](HashFunction::hash), as its users elsewhere print it. Three
//! questions are asked of it, and each has its own method, because the Java hashes are narrow and poorly
//! mixed and would answer some of them badly:
//!
//! - [`slot`](HashFunction::slot): which of n? The value modulo n, as other programs compute it.
//! - [`point`](HashFunction::point): where in the 64-bit hash space, which hash ranges cut? Order is kept,
//!   so a range of points is a range of values and existing ring tokens (Cassandra's, say) carry over.
//! - [`scatter`](HashFunction::scatter): 64 well-mixed bits, for schemes that need them (ring, rendezvous,
//!   jump).
//!
//! The default is xxh3-64: the fastest here, and good on every key. Not here: hashes keyed with a secret,
//! as every router would have to know it, and hashes of parsed values (numbers, composite keys), as a key
//! is its bytes.

pub mod crc16;
pub mod java;
pub mod murmur3;
pub mod sip;

use std::fmt;
use std::str::FromStr;

/// A hash function that is the same in every process, version and architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum HashFunction {
    /// Java's `String.hashCode` of the key as text ([`java::string`]), 32 bits.
    JavaString,
    /// The same recurrence over the bytes ([`java::bytes`]), 32 bits.
    JavaBytes,
    /// Hadoop's `hashBytes` ([`java::hadoop`]), 32 bits.
    HadoopBytes,
    /// [`murmur3::x86_32`] with seed 0, 32 bits.
    Murmur3_32,
    /// [`murmur3::x64_128`] with seed 0, 128 bits: `h1` above `h2`.
    Murmur3X64_128,
    /// XXH3 with seed 0, 64 bits.
    #[default]
    Xxh3_64,
    /// MD5 (RFC 1321), 128 bits: the digest as a big-endian number.
    Md5,
    /// The slots of Redis Cluster ([`crc16::slot`]), 14 bits.
    Crc16,
    /// SipHash-1-3 with the key 0 ([`sip::sip_1_3`]), 64 bits.
    Sip13,
}

/// A name that no hash function has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no hash function {name:?}: did you mean {nearest}? The known ones are {}", all_names())]
pub struct UnknownHash {
    /// As given, cut to 64 characters.
    pub name: String,
    /// The one whose name takes the fewest edits to reach.
    pub nearest: HashFunction,
}

fn all_names() -> String {
    HashFunction::ALL.map(HashFunction::name).join(", ")
}

impl HashFunction {
    /// Every function, in the order of the declaration.
    pub const ALL: [HashFunction; 9] = [
        HashFunction::JavaString,
        HashFunction::JavaBytes,
        HashFunction::HadoopBytes,
        HashFunction::Murmur3_32,
        HashFunction::Murmur3X64_128,
        HashFunction::Xxh3_64,
        HashFunction::Md5,
        HashFunction::Crc16,
        HashFunction::Sip13,
    ];

    /// The name by which it is chosen and stored.
    pub const fn name(self) -> &'static str {
        match self {
            HashFunction::JavaString => "java-string",
            HashFunction::JavaBytes => "java-bytes",
            HashFunction::HadoopBytes => "hadoop-bytes",
            HashFunction::Murmur3_32 => "murmur3-32",
            HashFunction::Murmur3X64_128 => "murmur3-x64-128",
            HashFunction::Xxh3_64 => "xxh3-64",
            HashFunction::Md5 => "md5",
            HashFunction::Crc16 => "crc16",
            HashFunction::Sip13 => "sip-1-3",
        }
    }

    /// Width of the value, in bits.
    pub const fn bits(self) -> u32 {
        match self {
            HashFunction::Crc16 => 14,
            HashFunction::JavaString
            | HashFunction::JavaBytes
            | HashFunction::HadoopBytes
            | HashFunction::Murmur3_32 => 32,
            HashFunction::Xxh3_64 | HashFunction::Sip13 => 64,
            HashFunction::Murmur3X64_128 | HashFunction::Md5 => 128,
        }
    }

    /// The natural value, below 2^[`bits`](Self::bits).
    pub fn hash(self, key: &[u8]) -> u128 {
        match self {
            HashFunction::JavaString => java::string(key).into(),
            HashFunction::JavaBytes => java::bytes(key).into(),
            HashFunction::HadoopBytes => java::hadoop(key).into(),
            HashFunction::Murmur3_32 => murmur3::x86_32(key, 0).into(),
            HashFunction::Murmur3X64_128 => {
                let (h1, h2) = murmur3::x64_128(key, 0);
                u128::from(h1) << 64 | u128::from(h2)
            }
            HashFunction::Xxh3_64 => xxhash_rust::xxh3::xxh3_64(key).into(),
            HashFunction::Md5 => {
                use md5::Digest;
                u128::from_be_bytes(md5::Md5::digest(key).into())
            }
            HashFunction::Crc16 => crc16::slot(key).into(),
            HashFunction::Sip13 => sip::sip_1_3(key).into(),
        }
    }

    /// Where the key lies in the 64-bit hash space: the value with its highest bit moved to bit 63, by
    /// shifting narrow values left and taking the upper half of wide ones.
    ///
    /// Even ranges of points are even ranges of values. For `crc16` cut in 16,384 they are Redis' slots.
    /// Java's hashes of short keys use the low end of their 32 bits only, so even ranges of theirs hold
    /// uneven numbers of keys; that is their nature, and splitting mends it.
    pub fn point(self, key: &[u8]) -> u64 {
        let value = self.hash(key);
        match self.bits() {
            wide @ 65.. => (value >> (wide - 64)) as u64,
            narrow => (value as u64) << (64 - narrow),
        }
    }

    /// 64 bits of which each depends on the whole value: the point itself where the hash is 64 bits wide or
    /// more, and [`mix`] of the point where it is narrower.
    pub fn scatter(self, key: &[u8]) -> u64 {
        let point = self.point(key);
        if self.bits() < 64 { mix(point) } else { point }
    }

    /// The value modulo `slots`, from 0 up. The Java hashes lose their sign bit first, as Java's and
    /// Hadoop's own partitioners do it (`(h & 0x7fffffff) % n`).
    ///
    /// # Panics
    /// If `slots` is 0; [`crate::keyspace::sharding::Sharding::check`] refuses that long before.
    pub fn slot(self, key: &[u8], slots: u32) -> u32 {
        modulo(self.dividend(key), slots)
    }

    /// What [`slot`](Self::slot) takes modulo the number of slots.
    #[inline]
    pub fn dividend(self, key: &[u8]) -> u128 {
        let value = self.hash(key);
        match self {
            HashFunction::JavaString | HashFunction::JavaBytes | HashFunction::HadoopBytes => {
                value & 0x7fff_ffff
            }
            _ => value,
        }
    }
}

/// `value % n` by machine division: 32 bits at a time keeps each step within 64 bits. Most numbers of slots are
/// a power of two, and need none.
#[inline]
pub(crate) fn modulo(value: u128, n: u32) -> u32 {
    if n.is_power_of_two() {
        return value as u32 & (n - 1);
    }
    let n = u64::from(n);
    let high = (value >> 64) as u64;
    if high == 0 {
        return (value as u64 % n) as u32;
    }
    let push = |rest: u64, shift: u32| (rest << 32 | u64::from((value >> shift) as u32)) % n;
    push(push(high % n, 32), 0) as u32
}

/// A bijection of 64-bit numbers in which each bit of the input flips about half of the output: the
/// finaliser of SplitMix64 (Stafford's variant 13).
pub const fn mix(number: u64) -> u64 {
    let z = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl fmt::Display for HashFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for HashFunction {
    type Err = UnknownHash;

    fn from_str(name: &str) -> Result<HashFunction, UnknownHash> {
        let found = HashFunction::ALL.into_iter().find(|hash| hash.name() == name);
        found.ok_or_else(|| {
            let name: String = name.chars().take(64).collect();
            UnknownHash { nearest: nearest(&name), name }
        })
    }
}

fn nearest(name: &str) -> HashFunction {
    let found = crate::base::suggest::nearest(name, HashFunction::ALL.map(HashFunction::name));
    HashFunction::ALL.into_iter().find(|hash| Some(hash.name()) == found).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_function() {
        for hash in HashFunction::ALL {
            assert_eq!(hash.to_string().parse(), Ok(hash));
        }
    }

    #[test]
    fn an_unknown_name_is_told_the_nearest_and_all() {
        let error = "Murmur3_x64_128".parse::<HashFunction>().unwrap_err();
        assert_eq!(error.nearest, HashFunction::Murmur3X64_128);
        assert_eq!("xxh364".parse::<HashFunction>().unwrap_err().nearest, HashFunction::Xxh3_64);
        let text = error.to_string();
        assert!(HashFunction::ALL.iter().all(|hash| text.contains(hash.name())), "{text}");
        let long = "x".repeat(1 << 20).parse::<HashFunction>().unwrap_err();
        assert!(long.to_string().len() < 300);
    }

    #[test]
    fn a_value_fits_its_width_and_its_point_keeps_the_order() {
        let keys: Vec<Vec<u8>> = (0..500u32).map(|i| format!("key-{i}").into_bytes()).collect();
        for hash in HashFunction::ALL {
            let mut pairs: Vec<(u128, u64)> = keys.iter().map(|k| (hash.hash(k), hash.point(k))).collect();
            pairs.sort_unstable();
            assert!(pairs.is_sorted_by_key(|pair| pair.1), "{hash}");
            assert!(hash.bits() == 128 || pairs.iter().all(|pair| pair.0 >> hash.bits() == 0), "{hash}");
        }
    }

    #[test]
    fn slots_of_crc16_are_its_even_ranges() {
        for key in [&b"foo"[..], b"bar", b"", b"user1000"] {
            let slot = HashFunction::Crc16.slot(key, 16_384);
            assert_eq!(HashFunction::Crc16.point(key) >> 50, u64::from(slot));
        }
    }

    #[test]
    fn modulo_by_parts_is_modulo() {
        for value in [0, 1, u128::from(u64::MAX), 1 << 64, u128::MAX, 0x0123_4567_89ab_cdef << 61] {
            for n in [1, 2, 3, 641, 16_384, u32::MAX] {
                assert_eq!(u128::from(modulo(value, n)), value % u128::from(n), "{value} mod {n}");
            }
        }
    }

    #[test]
    fn java_slots_are_taken_without_the_sign() {
        // "polygenelubricants" hashes to the lowest int, whose magnitude does not exist.
        assert_eq!(HashFunction::JavaString.hash(b"polygenelubricants"), 0x8000_0000);
        assert_eq!(HashFunction::JavaString.slot(b"polygenelubricants", 10), 0);
    }
}
