//! Map events as they go over the network: encoded once, for however many routers.

use super::{MapEvent, in_parts};
use crate::proto;
use bytes::{BufMut, Bytes};
use partage_core::node::exchange::KeyspaceBrief;
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// The messages of one event.
pub fn encoded(event: &MapEvent) -> Vec<Bytes> {
    in_parts(event).iter().map(|part| Bytes::from(part.encode_to_vec())).collect()
}

/// The first message of a change, with the settings of its keyspace added: for a router that may not have
/// them yet. Two encoded messages in a row are one with the fields of both.
pub fn with_brief(brief: &KeyspaceBrief, first: &Bytes) -> Bytes {
    let brief = proto::MapEvent { brief: Some(brief.into()), ..proto::MapEvent::default() };
    let mut bytes = brief.encode_to_vec();
    bytes.extend_from_slice(first);
    Bytes::from(bytes)
}

/// The codec of a server of `Maps` whose messages are encoded already.
#[derive(Debug, Clone, Copy, Default)]
pub struct EncodedMaps;

impl Codec for EncodedMaps {
    type Encode = Bytes;
    type Decode = proto::WatchRequest;
    type Encoder = EncodedMaps;
    type Decoder = EncodedMaps;

    fn encoder(&mut self) -> EncodedMaps {
        EncodedMaps
    }

    fn decoder(&mut self) -> EncodedMaps {
        EncodedMaps
    }
}

impl Encoder for EncodedMaps {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(message);
        Ok(())
    }
}

impl Decoder for EncodedMaps {
    type Item = proto::WatchRequest;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<proto::WatchRequest>, Status> {
        let request = proto::WatchRequest::decode(from);
        request.map(Some).map_err(|error| Status::invalid_argument(error.to_string()))
    }
}
