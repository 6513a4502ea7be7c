//! Maps as a router keeps them on its own disk, to start from when no coordinator can be reached.
//!
//! | bytes | what |
//! |---|---|
//! | 0–3 | `PRM1`: what this is, and its version |
//! | 4–7 | CRC32C of the rest, little-endian |
//! | 8– | events as they are pushed ([`crate::map`]), each a protobuf message after its length |

use crate::map::{Joiner, MapEvent, in_parts};
use crate::{Malformed, proto};
use prost::Message;

const MAGIC: &[u8; 4] = b"PRM1";

/// The bytes of these events.
pub fn to_bytes(events: &[MapEvent]) -> Vec<u8> {
    let mut rest = Vec::new();
    for part in events.iter().flat_map(in_parts) {
        rest.extend(part.encode_length_delimited_to_vec());
    }
    let checksum = crc32c::crc32c(&rest).to_le_bytes();
    [&MAGIC[..], &checksum, &rest].concat()
}

/// The events of these bytes. Any flipped bit is found (D8).
pub fn from_bytes(bytes: &[u8]) -> Result<Vec<MapEvent>, Malformed> {
    let rest = bytes.strip_prefix(MAGIC).and_then(|bytes| bytes.split_first_chunk::<4>());
    let Some((checksum, mut rest)) = rest else {
        return Err(Malformed::new("file", "does not begin as kept maps do, or is of another version"));
    };
    if crc32c::crc32c(rest) != u32::from_le_bytes(*checksum) {
        return Err(Malformed::new("file", "is damaged: its checksum is another"));
    }
    let (mut joiner, mut events) = (Joiner::default(), Vec::new());
    while !rest.is_empty() {
        let part = proto::MapEvent::decode_length_delimited(&mut rest)
            .map_err(|error| Malformed::new("file", error))?;
        events.extend(joiner.take(part)?);
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::MapNews;
    use crate::testing;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_kept_comes_back_and_no_flipped_bit_passes(
            (keyspace, diffs) in testing::histories(1..4),
            flip in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let map = testing::replay(&keyspace, &diffs);
            let news = MapNews::Changed { brief: None, resync: true, diff: Box::new(map.whole()) };
            let events = vec![MapEvent { news, nodes: vec![], forgotten: vec![] }];
            let mut bytes = to_bytes(&events);
            prop_assert_eq!(from_bytes(&bytes), Ok(events));
            let at = flip.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(from_bytes(&bytes).is_err());
            prop_assert!(from_bytes(&bytes[..at]).is_err());
        }
    }
}
