//! Records as they travel between nodes: one after the other, each with its lengths in front.
//!
//! ```text
//!  epoch u64 │ count u64 │ key length u32 │ value length u32, all ones = deleted │ key │ value
//! ```
//!
//! Numbers are big-endian. Nothing is stored in this form: all nodes of a cluster run the same version of an
//! example.

use crate::limits::{KEY_BYTES, VALUE_BYTES};
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// When a value was written. The later one of two copies wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Version {
    /// The epoch of the leader that took the write.
    pub epoch: u64,
    /// One more than the highest count that the leader had seen before.
    pub count: u64,
}

/// One key as one node has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub key: Bytes,
    /// The value that was written; none if the key was deleted.
    pub value: Option<Bytes>,
    pub version: Version,
}

/// What a peer sent is no record.
#[derive(Debug, thiserror::Error)]
#[error("a record with a {what} of {bytes} bytes: both nodes must run the same version")]
pub struct BadRecord {
    what: &'static str,
    bytes: usize,
}

const HEAD_BYTES: usize = 24;
const DELETED: u32 = u32::MAX;

impl Record {
    /// Appends the record in the form in which it travels.
    pub fn put(&self, to: &mut BytesMut) {
        to.put_u64(self.version.epoch);
        to.put_u64(self.version.count);
        to.put_u32(self.key.len() as u32);
        to.put_u32(self.value.as_ref().map_or(DELETED, |value| value.len() as u32));
        to.put_slice(&self.key);
        to.put_slice(self.value.as_deref().unwrap_or_default());
    }

    /// Takes the first one off, if it is there to its end.
    pub fn take(from: &mut BytesMut) -> Result<Option<Record>, BadRecord> {
        if from.len() < HEAD_BYTES {
            return Ok(None);
        }
        let mut head = &from[..HEAD_BYTES];
        let version = Version { epoch: head.get_u64(), count: head.get_u64() };
        let (key, value) = (head.get_u32() as usize, head.get_u32());
        let (deleted, value) = (value == DELETED, if value == DELETED { 0 } else { value as usize });
        for (what, bytes, limit) in [("key", key, KEY_BYTES), ("value", value, VALUE_BYTES)] {
            if bytes > limit {
                return Err(BadRecord { what, bytes });
            }
        }
        if from.len() < HEAD_BYTES + key + value {
            return Ok(None);
        }
        from.advance(HEAD_BYTES);
        let key = from.split_to(key).freeze();
        let value = from.split_to(value).freeze();
        Ok(Some(Record { key, value: (!deleted).then_some(value), version }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_way_in_pieces_of_any_size() {
        let record = |key: &'static [u8], value: Option<&'static [u8]>, count| Record {
            key: Bytes::from_static(key),
            value: value.map(Bytes::from_static),
            version: Version { epoch: 3, count },
        };
        let sent = [record(b"a", Some(b"1"), 1), record(b"", Some(b""), 2), record(b"gone", None, 3)];
        let mut bytes = BytesMut::new();
        sent.iter().for_each(|record| record.put(&mut bytes));
        for piece in [1, 7, bytes.len()] {
            let (mut buffer, mut came) = (BytesMut::new(), Vec::new());
            for part in bytes.chunks(piece) {
                buffer.extend_from_slice(part);
                while let Some(record) = Record::take(&mut buffer).unwrap() {
                    came.push(record);
                }
            }
            assert_eq!(came, sent);
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_anything_is_read() {
        let key = Bytes::from(vec![0; KEY_BYTES + 1]);
        let mut bytes = BytesMut::new();
        Record { key, value: None, version: Version::default() }.put(&mut bytes);
        bytes.truncate(HEAD_BYTES);
        assert!(Record::take(&mut bytes).unwrap_err().to_string().contains("key"));
    }
}
