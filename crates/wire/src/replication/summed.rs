//! Messages between nodes of tables under a checksum: what replicas store is checked on each disk, and so it is on its way
//! between them. TCP's sum has 16 bits, and does not cover what a faulty machine between two connections, or a network card,
//! does.
//!
//! ```text
//!  message (protobuf) · 0x7d · CRC-32C of the message, little-endian
//! ```
//!
//! The end is a field of protobuf too (number 15, fixed32), which one that knows nothing of it skips.

use prost::Message;
use prost::bytes::{Buf, BufMut, Bytes};
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// The byte before the checksum: field 15 of protobuf, of type fixed32.
const TAG: u8 = 15 << 3 | 5;

/// The field, as it is sent.
const SUM_BYTES: usize = 5;

/// Protobuf with a checksum.
#[derive(Debug, Clone)]
pub struct SummedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SummedCodec<T, U> {
    fn default() -> Self {
        SummedCodec(PhantomData)
    }
}

impl<T, U> Codec for SummedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = SummedEncoder<T>;
    type Decoder = SummedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        SummedEncoder(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        SummedDecoder(PhantomData)
    }
}

/// Writes each message with its checksum behind it.
#[derive(Debug, Clone)]
pub struct SummedEncoder<T>(PhantomData<T>);

impl<T: Message> Encoder for SummedEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        // What was put into the buffer cannot be read there.
        buf.put_slice(&summed(&item));
        Ok(())
    }
}

/// Reads messages, and refuses those whose checksum is wrong.
#[derive(Debug, Clone)]
pub struct SummedDecoder<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for SummedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let bytes = buf.copy_to_bytes(buf.remaining());
        let whole = checked(bytes).ok_or_else(|| {
            Status::data_loss(
                "a message between nodes was damaged on its way, and is not taken: its checksum is wrong. Look at the network between the two",
            )
        })?;
        U::decode(whole).map(Some).map_err(|error| Status::invalid_argument(error.to_string()))
    }
}

fn summed(message: &impl Message) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(message.encoded_len() + SUM_BYTES);
    message.encode(&mut bytes).expect("a vector has room, as it grows");
    let sum = crc32c::crc32c(&bytes);
    bytes.push(TAG);
    bytes.put_u32_le(sum);
    bytes
}

/// The message, if it is as it was sent.
fn checked(bytes: Bytes) -> Option<Bytes> {
    let end = bytes.len().checked_sub(SUM_BYTES)?;
    let (tag, sum) = bytes[end..].split_first()?;
    let sum = u32::from_le_bytes(sum.try_into().ok()?);
    (*tag == TAG && sum == crc32c::crc32c(&bytes[..end])).then(|| bytes.slice(..end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{DeliveryOpening, PacketBatch};

    #[test]
    fn a_message_is_taken_as_it_was_sent_or_not_at_all() {
        let opening = DeliveryOpening { from: "t1".into(), incarnation: 7, to: "t2".into() };
        let batch = PacketBatch { opening: Some(opening), packets: Vec::new() };
        let sent = summed(&batch);
        let taken = |bytes: &[u8]| checked(Bytes::copy_from_slice(bytes));
        let whole = taken(&sent).unwrap();
        assert_eq!(PacketBatch::decode(whole).unwrap(), batch);
        assert_eq!(PacketBatch::decode(&sent[..]).unwrap(), batch, "who does not know the sum skips it");
        for bit in 0..sent.len() * 8 {
            let mut damaged = sent.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(taken(&damaged), None, "bit {bit}");
        }
        for length in 0..sent.len() {
            assert_eq!(taken(&sent[..length]), None, "cut off at {length}");
        }
        assert_eq!(taken(&[&sent[..], &[0]].concat()), None);
        let nothing = summed(&PacketBatch::default());
        assert_eq!((nothing.len(), taken(&nothing)), (SUM_BYTES, Some(Bytes::new())));
    }
}
