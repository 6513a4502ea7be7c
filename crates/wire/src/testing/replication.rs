//! Packets between replicas.

use super::keyspace_names;
use crate::replication::{Chunk, Content, Opening, Packet, ParentAsk, ParentGiven};
use bytes::Bytes;
use partage_core::base::id::{Epoch, Incarnation, PlacementId, ShardId};
use partage_core::base::time::Millis;
use partage_core::node::exchange::ReplicaKey;
use partage_service::table::replication::message::{Append, Echo, Reply};
use partage_service::table::replication::{Entry, EntryKind, LogPosition, Message};
use partage_service::table::split::{Ask, Given, GivenExtent};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

fn positions() -> impl Strategy<Value = LogPosition> {
    let some = any::<(u64, u64)>().prop_map(|(epoch, index)| LogPosition { epoch: Epoch(epoch), index });
    prop_oneof![1 => Just(LogPosition::default()), 5 => some]
}

fn entry_kinds() -> impl Strategy<Value = EntryKind> {
    let write = vec(any::<u8>(), 0..64).prop_map(|payload| EntryKind::Write(payload.into()));
    prop_oneof![1 => Just(EntryKind::Begin), 1 => Just(EntryKind::Close), 5 => write]
}

/// Appends whose entries follow on each other.
pub fn appends() -> impl Strategy<Value = Append> {
    let before = (any::<u64>(), 0..u64::MAX - 8);
    let entries = vec((any::<u64>(), entry_kinds()), 0..8);
    let echo = option::of(any::<(u64, u64)>());
    (before, entries, any::<(u64, (u64, bool), u64)>(), echo).prop_map(
        |((before_epoch, before), entries, (epoch, (committed, is_enough), sent), echo)| Append {
            epoch: Epoch(epoch),
            before: LogPosition { epoch: Epoch(before_epoch), index: before },
            entries: (before + 1..)
                .zip(entries)
                .map(|(index, (epoch, kind))| Entry {
                    position: LogPosition { epoch: Epoch(epoch), index },
                    kind,
                })
                .collect(),
            committed,
            is_enough,
            sent: Millis(sent),
            echo: echo.map(|(incarnation, clock)| Echo {
                incarnation: Incarnation(incarnation),
                clock: Millis(clock),
            }),
        },
    )
}

fn replies() -> impl Strategy<Value = Reply> {
    (any::<(u64, u64, u64, u64, u64, u64)>(), option::of(any::<u64>())).prop_map(
        |((epoch, fence, incarnation, sent, clock, matched), ends)| Reply {
            epoch: Epoch(epoch),
            fence: Epoch(fence),
            incarnation: Incarnation(incarnation),
            sent: Millis(sent),
            clock: Millis(clock),
            matched,
            ends,
        },
    )
}

fn chunks() -> impl Strategy<Value = Chunk> {
    let bytes = |most| vec(any::<u8>(), 0..most);
    (positions(), any::<(u64, bool, bool, bool)>(), btree_map(bytes(8), bytes(64), 0..8)).prop_map(
        |(position, (number, is_last, is_pressed, is_urgent), rows)| Chunk {
            position,
            number,
            rows: rows.into_iter().map(|(key, value)| (Bytes::from(key), Bytes::from(value))).collect(),
            is_last,
            is_pressed: is_pressed || is_urgent,
            is_urgent,
        },
    )
}

/// Questions of children, in a packet to that shard and placement.
fn asks(to: (u64, u64)) -> impl Strategy<Value = ParentAsk> {
    (any::<u64>(), super::bounds(), super::node_ids(), option::of(positions())).prop_map(
        move |(child, bounds, node, after)| ParentAsk {
            child: ShardId(child),
            bounds,
            node,
            ask: Ask { parent: ShardId(to.0), of: PlacementId(to.1), after },
        },
    )
}

/// What parents give, in a packet from that placement.
fn givens(from: u64) -> impl Strategy<Value = ParentGiven> {
    let between = (positions(), positions()).prop_map(|(a, b)| {
        let (after, to) = if a.index <= b.index { (a, b) } else { (b, a) };
        GivenExtent::Changes { after, to }
    });
    let what = prop_oneof![positions().prop_map(GivenExtent::Snapshot), between];
    let bytes = || vec(any::<u8>(), 0..16).prop_map(Bytes::from);
    let changes = vec((bytes(), option::of(bytes())), 0..8);
    (any::<(u64, u64, bool)>(), what, option::of(positions()), changes).prop_map(
        move |((parent, end, has_more), what, closed, changes)| ParentGiven {
            given: Given { parent: ShardId(parent), by: PlacementId(from), what, end, closed, has_more },
            changes,
        },
    )
}

/// Packets of all kinds.
pub fn packets() -> impl Strategy<Value = Packet> {
    (keyspace_names(), any::<(u64, u64, u64)>()).prop_flat_map(|(keyspace, (shard, placement, from))| {
        contents((shard, placement), from).prop_map(move |content| Packet {
            to: ReplicaKey {
                keyspace: keyspace.clone(),
                shard: ShardId(shard),
                placement: PlacementId(placement),
            },
            from: PlacementId(from),
            content,
        })
    })
}

fn contents(to: (u64, u64), from: u64) -> impl Strategy<Value = Content> {
    prop_oneof![
        4 => appends().prop_map(|append| Content::Message(Message::Append(append))),
        2 => replies().prop_map(|reply| Content::Message(Message::Reply(reply))),
        1 => any::<u64>().prop_map(|epoch| Content::Message(Message::LetGo(Epoch(epoch)))),
        2 => chunks().prop_map(Content::Chunk),
        1 => (positions(), any::<u64>())
            .prop_map(|(position, number)| Content::Stored { position, number }),
        1 => (positions(), any::<u64>(), vec(any::<u8>(), 0..16)).prop_map(|(position, number, through)| {
            Content::Resumed { position, number, through: through.into() }
        }),
        1 => positions().prop_map(|position| Content::Useless { position }),
        1 => asks(to).prop_map(Content::Ask),
        2 => givens(from).prop_map(Content::Given),
    ]
}

/// Openings of streams of packets, also of nodes without an incarnation.
pub fn openings() -> impl Strategy<Value = Opening> {
    (super::node_ids(), super::node_ids(), any::<u64>()).prop_map(|(from, to, incarnation)| Opening {
        from,
        incarnation: Some(Incarnation(incarnation)).filter(|incarnation| incarnation.0 > 0),
        to,
    })
}
