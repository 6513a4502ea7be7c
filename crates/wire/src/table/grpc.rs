//! Tables over gRPC: how messages are read, and what an error has beside its code.
//!
//! A message of a few bytes can name very many rows: an empty row takes two bytes on the network and some hundred in memory. So
//! the fields of a message are counted before anything is made of them.

use partage_core::limits::BATCH_OPERATIONS;
use prost::Message;
use prost::bytes::Buf;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::time::Duration;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::{Code, Status};
use tonic_prost::{ProstCodec, ProstEncoder};
use tonic_types::{ErrorDetails, StatusExt};

/// Fields of a message: [`BATCH_OPERATIONS`] rows, keys or operations, and what stands beside them.
pub const FIELDS: usize = BATCH_OPERATIONS + 24;

/// What all errors of Partage have as the domain of their details.
const DOMAIN: &str = "partage";

/// An error, with the word for programs and what else there is to say. `retry` is for one that is worth another try as it is.
pub fn status(
    code: Code,
    reason: &str,
    message: impl Into<String>,
    metadata: HashMap<String, String>,
    retry: Option<Duration>,
) -> Status {
    let mut details = ErrorDetails::with_error_info(reason, DOMAIN, metadata);
    if retry.is_some() {
        details.set_retry_info(retry);
    }
    Status::with_error_details(code, message, details)
}

/// A status with more metadata. One that has no reason yet gets that one.
pub fn more(why: &Status, reason: &str, metadata: impl IntoIterator<Item = (String, String)>) -> Status {
    let details = why.get_error_details();
    let info = details.error_info();
    let reason = info.map_or(reason, |info| &info.reason);
    let mut all: HashMap<String, String> = metadata.into_iter().collect();
    all.extend(info.into_iter().flat_map(|info| info.metadata.clone()));
    let retry = details.retry_info().and_then(|retry| retry.retry_delay);
    status(why.code(), reason, why.message(), all, retry)
}

/// Protobuf, with at most [`FIELDS`] fields in a message.
#[derive(Debug, Clone)]
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        BoundedCodec(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(PhantomData)
    }
}

/// Counts the fields of a message before it reads it.
#[derive(Debug, Clone)]
pub struct BoundedDecoder<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let bytes = buf.copy_to_bytes(buf.remaining());
        let malformed = || Status::invalid_argument("the message is no message of this call");
        let fields = fields(&bytes).ok_or_else(malformed)?;
        if fields > FIELDS {
            let help = HashMap::from([
                ("help".to_owned(), "send several requests".to_owned()),
                ("outcome".to_owned(), "not_done".to_owned()),
            ]);
            let what = format!(
                "there are {fields} rows, keys or operations, and {BATCH_OPERATIONS} may be in one message"
            );
            return Err(status(Code::ResourceExhausted, "too_large", what, help, None));
        }
        U::decode(bytes).map(Some).map_err(|error| Status::invalid_argument(error.to_string()))
    }
}

/// How many fields a message has; none: it is no message.
fn fields(mut bytes: &[u8]) -> Option<usize> {
    let mut count = 0;
    while !bytes.is_empty() {
        let skipped = match varint(&mut bytes)? & 7 {
            0 => varint(&mut bytes).map(|_| 0)?,
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)?).ok()?,
            5 => 4,
            // Groups, which no message of ours has.
            _ => return None,
        };
        bytes = bytes.get(skipped..)?;
        count += 1;
    }
    Some(count)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for at in 0..10 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(7 * at)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::table::{GetManyRequest, GetRequest};
    use proptest::prelude::*;

    #[test]
    fn the_fields_of_a_message_are_counted() {
        let get = GetRequest {
            table: "t".into(),
            key: vec![0xff; 300],
            consistency: 3,
            bound_ms: Some(u64::MAX),
            at_least: "3-17".into(),
        };
        assert_eq!(fields(&get.encode_to_vec()), Some(5));
        let many =
            GetManyRequest { table: "t".into(), keys: vec![vec![]; 4_000], consistency: 0, bound_ms: None };
        assert_eq!(fields(&many.encode_to_vec()), Some(4_001));
        assert_eq!(fields(b""), Some(0));
        for bad in [&b"\x0a"[..], b"\x0a\x05abc", b"\x0b", b"\x80", &[0xff; 11], b"\x09abc"] {
            assert_eq!(fields(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_can_be_read_can_be_counted(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let counted = fields(&bytes);
            if let Ok(read) = GetManyRequest::decode(&bytes[..]) {
                // Groups are skipped by the one and refused by the other.
                if let Some(counted) = counted {
                    prop_assert!(counted >= read.keys.len());
                }
            }
        }
    }

    #[test]
    fn an_error_has_its_word_and_says_whether_it_is_worth_another_try() {
        let metadata = HashMap::from([("help".to_owned(), "try again".to_owned())]);
        let status = status(Code::Unavailable, "soon", "why", metadata, Some(Duration::from_secs(1)));
        let details = status.get_error_details();
        assert_eq!(details.error_info().map(|info| info.reason.as_str()), Some("soon"));
        assert_eq!(details.retry_info().and_then(|retry| retry.retry_delay), Some(Duration::from_secs(1)));
    }
}
