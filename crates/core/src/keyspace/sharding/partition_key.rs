//! Which part of a key decides its shard.

use crate::keyspace::hash::crc16;

/// The part of a key that is placed: rows that agree on it are in one shard, sorted inside it by the whole
/// key (K2).
///
/// In a keyspace sharded by key range the shards are in the order of partition keys. With `Whole` and
/// `Prefix` that is the order of keys too. With `UpTo` it is the same as long as the delimiter sorts below
/// every byte that partition keys use (NUL, tab, or `!` for words), which is therefore the delimiter to
/// choose where scans cross partitions. A named column of a table becomes one of these three when its rows
/// are encoded as keys; columns are not known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PartitionKey {
    /// The whole key: each key is placed by itself.
    #[default]
    Whole,
    /// Its first bytes, or all of it when it is shorter.
    Prefix {
        /// The length of the prefix in bytes.
        bytes: u16,
    },
    /// What stands before the first delimiter, or all of it when there is none.
    UpTo {
        /// The delimiter, itself not included.
        delimiter: u8,
    },
    /// What stands in the first pair of braces, or all of it: the rule of Redis Cluster
    /// ([`crc16::hash_tag`]). For hashed keyspaces; in a key-range keyspace it would scatter neighbours.
    HashTag,
}

impl PartitionKey {
    /// The partition key of `key`.
    pub fn of(self, key: &[u8]) -> &[u8] {
        match self {
            PartitionKey::Whole => key,
            PartitionKey::Prefix { bytes } => &key[..key.len().min(bytes.into())],
            PartitionKey::UpTo { delimiter } => {
                let end = key.iter().position(|byte| *byte == delimiter);
                &key[..end.unwrap_or(key.len())]
            }
            PartitionKey::HashTag => crc16::hash_tag(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_at_its_edges() {
        let prefix = PartitionKey::Prefix { bytes: 3 };
        assert_eq!(prefix.of(b"abcd"), b"abc");
        assert_eq!(prefix.of(b"ab"), b"ab");
        let up_to = PartitionKey::UpTo { delimiter: 0 };
        assert_eq!(up_to.of(b"user\0row\0x"), b"user");
        assert_eq!(up_to.of(b"user"), b"user");
        assert_eq!(up_to.of(b"\0row"), b"");
        assert_eq!(PartitionKey::Whole.of(b"a\0b"), b"a\0b");
        assert_eq!(PartitionKey::HashTag.of(b"a{b}c"), b"b");
    }

    proptest::proptest! {
        #[test]
        fn a_low_delimiter_and_a_prefix_keep_the_order_of_keys(
            a in proptest::collection::vec(0u8..4, 0..6),
            b in proptest::collection::vec(0u8..4, 0..6),
        ) {
            let (low, high) = (a.clone().min(b.clone()), a.max(b));
            for by in [PartitionKey::Prefix { bytes: 2 }, PartitionKey::UpTo { delimiter: 0 }] {
                proptest::prop_assert!(by.of(&low) <= by.of(&high));
            }
        }
    }
}
