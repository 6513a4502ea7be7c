//! Packets to and from what `wire` carries. The bytes of rows are shared on the way out; on the way in they are copied, as a
//! store has bytes of its own kind.

use crate::limits::{PACKET_AROUND_BYTES, ROW_AROUND_BYTES};
use crate::network::peer_queue::Outgoing;
use crate::transport::{Packet, ParentAsk, ParentGiven, SnapshotChunk};
use bytes::Bytes;
use partage_engine::replica::{Row, SharedBytes};
use partage_service::table::copy::deadline::Urgency;
use partage_wire::replication as wire;
use std::sync::Arc;

/// At most so many bytes are sent for a packet.
pub(super) fn sent_bytes(packet: &Packet) -> usize {
    let rows = match packet {
        Packet::Chunk(chunk) => chunk.rows.len(),
        Packet::Given(_)
        | Packet::Message(_)
        | Packet::Stored { .. }
        | Packet::Resumed { .. }
        | Packet::Useless { .. }
        | Packet::Ask(_) => 0,
    };
    PACKET_AROUND_BYTES + packet.bytes() + rows * ROW_AROUND_BYTES
}

impl From<Outgoing> for wire::Packet {
    fn from(outgoing: Outgoing) -> wire::Packet {
        let content = match outgoing.packet {
            Packet::Message(message) => wire::Content::Message(message),
            Packet::Chunk(chunk) => wire::Content::Chunk(wire::Chunk {
                position: chunk.position,
                number: chunk.number,
                rows: chunk.rows.iter().map(|row| (shared(&row.key), shared(&row.value))).collect(),
                is_last: chunk.is_last,
                is_pressed: chunk.urgency >= Urgency::Pressed,
                is_urgent: chunk.urgency == Urgency::Urgent,
            }),
            Packet::Stored { position, number } => wire::Content::Stored { position, number },
            Packet::Resumed { position, number, through } => {
                wire::Content::Resumed { position, number, through: shared(&through) }
            }
            Packet::Useless { position } => wire::Content::Useless { position },
            Packet::Ask(ParentAsk { child, bounds, node, ask }) => {
                wire::Content::Ask(wire::ParentAsk { child, bounds, node, ask })
            }
            Packet::Given(ParentGiven { given, changes }) => {
                wire::Content::Given(wire::ParentGiven { given, changes })
            }
        };
        wire::Packet { to: outgoing.to, from: outgoing.from, content }
    }
}

fn shared(bytes: &SharedBytes) -> Bytes {
    Bytes::from_owner(bytes.clone())
}

/// What a packet brings.
pub(super) fn received(content: wire::Content) -> Packet {
    let row = |(key, value): (Bytes, Bytes)| Row { key: key.as_ref().into(), value: value.as_ref().into() };
    match content {
        wire::Content::Message(message) => Packet::Message(message),
        wire::Content::Chunk(chunk) => Packet::Chunk(SnapshotChunk {
            position: chunk.position,
            number: chunk.number,
            rows: Arc::new(chunk.rows.into_iter().map(row).collect()),
            is_last: chunk.is_last,
            urgency: match (chunk.is_urgent, chunk.is_pressed) {
                (true, _) => Urgency::Urgent,
                (false, true) => Urgency::Pressed,
                (false, false) => Urgency::GivesWay,
            },
        }),
        wire::Content::Stored { position, number } => Packet::Stored { position, number },
        wire::Content::Resumed { position, number, through } => {
            Packet::Resumed { position, number, through: through.as_ref().into() }
        }
        wire::Content::Useless { position } => Packet::Useless { position },
        wire::Content::Ask(wire::ParentAsk { child, bounds, node, ask }) => {
            Packet::Ask(ParentAsk { child, bounds, node, ask })
        }
        wire::Content::Given(wire::ParentGiven { given, changes }) => {
            Packet::Given(ParentGiven { given, changes })
        }
    }
}
