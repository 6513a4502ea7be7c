//! Round trips, refusals that name their field, and what is not copied.

use super::{Content, Opening, Packet};
use crate::{Malformed, proto, testing};
use bytes::Bytes;
use partage_core::base::id::{Epoch, PlacementId, ShardId};
use partage_core::base::time::Millis;
use partage_core::node::exchange::ReplicaKey;
use partage_service::table::replication::message::Append;
use partage_service::table::replication::{Entry, EntryKind, LogPosition, Message};
use proptest::prelude::*;
use prost::Message as _;
use std::sync::Arc;

/// Through the bytes and back, in one buffer, as a message comes from the network.
fn round(packet: &Packet) -> Result<Packet, Malformed> {
    let bytes = Bytes::from(proto::Packet::from(packet.clone()).encode_to_vec());
    proto::Packet::decode(bytes).unwrap().try_into()
}

proptest! {
    #[test]
    fn what_goes_out_comes_in_the_same(packet in testing::packets(), opening in testing::openings()) {
        prop_assert_eq!(round(&packet), Ok(packet));
        let form = proto::DeliveryOpening::from(&opening).encode_to_vec();
        let read = Opening::try_from(proto::DeliveryOpening::decode(form.as_slice()).unwrap());
        prop_assert_eq!(read, Ok(opening));
    }

    #[test]
    fn no_bytes_make_it_stop(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(form) = proto::PacketBatch::decode(bytes.as_slice()) {
            form.packets.into_iter().for_each(|packet| drop(Packet::try_from(packet)));
            let _ = form.opening.map(Opening::try_from);
        }
    }

    /// Random bytes are rarely a packet; those of one with an error in it nearly are.
    #[test]
    fn no_error_of_the_network_makes_it_stop(
        packet in testing::packets(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(),
    ) {
        let mut bytes = proto::Packet::from(packet).encode_to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.truncate(if cut { at } else { bytes.len() });
        if let Ok(form) = proto::Packet::decode(bytes.as_slice()) {
            let _ = Packet::try_from(form);
        }
    }

    /// Of a later version of this form: fields 100 (a number) and 101 (bytes).
    #[test]
    fn unknown_fields_are_ignored(packet in testing::packets(), number in 0u8..128) {
        let mut bytes = proto::Packet::from(packet.clone()).encode_to_vec();
        bytes.extend([0xa0, 0x06, number, 0xaa, 0x06, 3, 1, 2, 3]);
        prop_assert_eq!(Packet::try_from(proto::Packet::decode(bytes.as_slice()).unwrap()), Ok(packet));
    }
}

fn append(entries: Vec<Entry>) -> Packet {
    let keyspace = "orders".parse().unwrap();
    let append = Append {
        epoch: Epoch(3),
        before: LogPosition { epoch: Epoch(2), index: 6 },
        entries,
        committed: 5,
        is_enough: true,
        sent: Millis(9),
        echo: None,
    };
    Packet {
        to: ReplicaKey { keyspace, shard: ShardId(1), placement: PlacementId(12) },
        from: PlacementId(11),
        content: Content::Message(Message::Append(append)),
    }
}

fn entry(index: u64, kind: EntryKind) -> Entry {
    Entry { position: LogPosition { epoch: Epoch(3), index }, kind }
}

/// A form that changes breaks the nodes of the version before, which run beside those of this one while a cluster is upgraded.
#[test]
fn the_form_is_what_it_was() {
    let packet =
        append(vec![entry(7, EntryKind::Begin), entry(8, EntryKind::Write(b"row".as_slice().into()))]);
    let bytes = proto::Packet::from(packet).encode_to_vec();
    let expected = [
        &b"\x0a\x0c\x0a\x06orders\x10\x01\x18\x0c"[..], // to
        b"\x10\x0b",                                    // from
        b"\x1a\x23\x08\x03",                            // append, its epoch
        b"\x12\x04\x08\x02\x10\x06",                    // before
        b"\x1a\x06\x08\x03\x10\x07\x18\x01",            // the first entry
        b"\x1a\x0b\x08\x03\x10\x08\x18\x02\x22\x03row", // the second one
        b"\x20\x05\x28\x09\x38\x01",                    // committed, sent, that enough have these
    ];
    assert_eq!(bytes, expected.concat());
}

#[test]
fn what_cannot_be_is_refused_by_the_name_of_its_field() {
    let good = || proto::Packet::from(append(vec![entry(7, EntryKind::Write(Arc::from([1])))]));
    let refused = |change: &dyn Fn(&mut proto::Packet)| {
        let mut form = good();
        change(&mut form);
        Packet::try_from(form).unwrap_err()
    };
    let on_append = |change: &dyn Fn(&mut proto::Append)| {
        refused(&|form| match &mut form.content {
            Some(proto::packet::Content::Append(append)) => change(append),
            _ => unreachable!("it is an append"),
        })
    };
    let content = |content: proto::packet::Content| refused(&|form| form.content = Some(content.clone()));
    let row = |key: &'static [u8]| proto::SnapshotRow { key: key.into(), value: Bytes::new() };
    let chunk = |position, rows| {
        content(proto::packet::Content::Chunk(proto::SnapshotChunk { position, rows, ..Default::default() }))
    };
    let position = Some(proto::LogPosition::default());
    let cases = [
        ("to", refused(&|form| form.to = None)),
        ("to.keyspace", refused(&|form| form.to.as_mut().unwrap().keyspace = "a/b".into())),
        ("content", refused(&|form| form.content = None)),
        ("append.entries[0].kind", on_append(&|append| append.entries[0].kind = 7)),
        ("append.entries[0].payload", on_append(&|append| append.entries[0].kind = 1)),
        ("append.entries[0].payload", on_append(&|append| append.entries[0].kind = 3)),
        ("append.entries[0].index", on_append(&|append| append.entries[0].index = 9)),
        ("append.entries[0].index", on_append(&|append| append.before.as_mut().unwrap().index = u64::MAX)),
        ("append.entries[1].index", on_append(&|append| append.entries.push(append.entries[0].clone()))),
        ("chunk.position", chunk(None, vec![])),
        ("chunk.rows[1].key", chunk(position, vec![row(b"b"), row(b"b")])),
        ("stored.position", content(proto::packet::Content::Stored(proto::ChunkStored::default()))),
        ("useless.position", content(proto::packet::Content::Useless(proto::SnapshotUseless::default()))),
    ];
    for (field, refused) in cases {
        assert_eq!(refused.field, field, "{refused}");
    }
    let opening = proto::DeliveryOpening { from: "n1".into(), incarnation: 0, to: String::new() };
    assert_eq!(Opening::try_from(opening).unwrap_err().field, "to");
}

#[test]
fn bytes_of_entries_and_rows_are_shared() {
    let payload: Arc<[u8]> = Arc::from(vec![7; 100]);
    let form = proto::LogEntry::from(entry(1, EntryKind::Write(Arc::clone(&payload))));
    assert_eq!(form.payload.as_ptr(), payload.as_ptr(), "out: not copied before it is encoded");
    let bytes = Bytes::from(form.encode_to_vec());
    let read = proto::LogEntry::decode(bytes.clone()).unwrap();
    assert!(bytes.as_ptr_range().contains(&read.payload.as_ptr()), "in: a part of the message");
}
