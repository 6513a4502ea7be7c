//! The answers of the worker protocol as plain lines, for shells: words parted by one blank, the first of
//! which says what the line is. Names hold no blanks, and keys are in hex, so every line is safe to `read`.
//!
//! ```text
//! welcome INCARNATION HEARTBEAT_MS LEASE_MS CLUSTER
//! token TOKEN
//! continues CLUSTER
//! cluster CLUSTER
//! version VERSION BASE
//! lease SENT_AT_MS LEASE_MS
//! may_go
//! keyspace NAME OWNERSHIP SHARDING PARTITION_KEY
//! order KEYSPACE SHARD PLACEMENT ROLE STATE EPOCH granted|waiting BOUNDS
//! had_data KEYSPACE SHARD PLACEMENT
//! peer KEYSPACE SHARD PLACEMENT NODE ADDRESS ROLE STATE ITS_SHARD ITS_PLACEMENT
//! removed KEYSPACE SHARD PLACEMENT
//! drop KEYSPACE SHARD PLACEMENT moved|deleted|superseded EPOCH
//! error KIND HELP…
//! ```
//!
//! `had_data` and `peer` belong to the order just before them. BOUNDS is `keys BEGIN END` (hex; `-` is the empty key),
//! `hashes FIRST LAST`, `slot N` or `name NAME`. SHARDING is `key_range`, `hash_range:HASH`,
//! `fixed:HASH:SHARDS` or `named`; PARTITION_KEY is `whole`, `prefix:BYTES`, `up_to:BYTE` or `hash_tag`.
//! Readers skip lines that they do not know. There is no way in: requests are JSON, which a shell can print.

use crate::Token;
use crate::json::{self, ErrorBody};
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use partage_core::node::exchange::Welcome;
use partage_core::node::exchange::{Order, Orders, Permission, ReplicaKey};
use std::fmt::Write;

/// The answer to a registration.
pub fn welcome(welcome: &Welcome, token: Option<&Token>) -> String {
    let Welcome { cluster, continues, incarnation, heartbeat_ms, lease_ms } = welcome;
    let mut text = format!("welcome {} {heartbeat_ms} {lease_ms} {cluster}\n", incarnation.0);
    if let Some(token) = token {
        line(&mut text, format_args!("token {}", token.as_str()));
    }
    for earlier in continues {
        line(&mut text, format_args!("continues {earlier}"));
    }
    text
}

/// The answer to a heartbeat.
pub fn orders(orders: &Orders) -> String {
    let mut text = format!("version {} {}\n", orders.version, orders.base);
    line(&mut text, format_args!("cluster {}", orders.cluster));
    if let Some(lease) = &orders.lease {
        line(&mut text, format_args!("lease {} {}", lease.sent_at.0, lease.lease_ms));
    }
    if orders.may_go {
        line(&mut text, format_args!("may_go"));
    }
    for brief in &orders.keyspaces {
        let (sharding, by) = (sharding(brief.sharding), partition_key(brief.partition_key));
        line(&mut text, format_args!("keyspace {} {} {sharding} {by}", brief.name, brief.ownership));
    }
    orders.changed.iter().for_each(|one| order(&mut text, one));
    for gone in &orders.removed {
        line(&mut text, format_args!("removed {}", key_of(gone)));
    }
    for Permission { replica, reason, epoch } in &orders.permissions {
        line(&mut text, format_args!("drop {} {reason} {}", key_of(replica), epoch.0));
    }
    text
}

/// An error: its message, which names the way out, is the rest of the line.
pub fn error(body: &ErrorBody) -> String {
    let message = body.error.message.replace(char::is_control, " ");
    format!("error {} {} {message}\n", body.error.kind, body.error.help.replace(' ', "_"))
}

fn order(text: &mut String, order: &Order) {
    let key = key_of(&order.replica);
    let (role, state) = (json::word(order.role), json::word(order.state));
    let granted = if order.granted { "granted" } else { "waiting" };
    let bounds = bounds(&order.bounds);
    line(text, format_args!("order {key} {role} {state} {} {granted} {bounds}", order.epoch.0));
    if order.had_data {
        line(text, format_args!("had_data {key}"));
    }
    for peer in &order.peers {
        let (role, state) = (json::word(peer.role), json::word(peer.state));
        let (node, shard, placement) = (&peer.node, peer.shard.0, peer.placement.0);
        let address = peer.address.as_deref().unwrap_or("-");
        line(text, format_args!("peer {key} {node} {address} {role} {state} {shard} {placement}"));
    }
}

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{words}");
}

fn key_of(replica: &ReplicaKey) -> String {
    format!("{} {} {}", replica.keyspace, replica.shard.0, replica.placement.0)
}

fn hex(key: &Key) -> String {
    match key.is_empty() {
        true => "-".to_owned(),
        false => key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

fn bounds(bounds: &Bounds) -> String {
    match bounds {
        Bounds::Keys(range) => format!("keys {} {}", hex(&range.begin), hex(&range.end)),
        Bounds::Hashes(range) => format!("hashes {:016x} {:016x}", range.first, range.last),
        Bounds::Slot(slot) => format!("slot {} {}", slot.number(), slot.of()),
        Bounds::Name(name) => format!("name {name}"),
    }
}

fn sharding(sharding: Sharding) -> String {
    match sharding {
        Sharding::KeyRange => "key_range".to_owned(),
        Sharding::HashRange { hash } => format!("hash_range:{}", hash.name()),
        Sharding::Fixed { hash, shards } => format!("fixed:{}:{shards}", hash.name()),
        Sharding::Named => "named".to_owned(),
    }
}

fn partition_key(by: PartitionKey) -> String {
    match by {
        PartitionKey::Whole => "whole".to_owned(),
        PartitionKey::Prefix { bytes } => format!("prefix:{bytes}"),
        PartitionKey::UpTo { delimiter } => format!("up_to:{delimiter}"),
        PartitionKey::HashTag => "hash_tag".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::{
        ClusterId, Configuration, Epoch, Generation, Incarnation, PlacementId, ShardId,
    };
    use partage_core::base::time::Millis;
    use partage_core::keyspace::Ownership;
    use partage_core::keyspace::key::KeyRange;
    use partage_core::keyspace::lifecycle::ReplicaState;
    use partage_core::keyspace::map::Role;
    use partage_core::node::exchange::{DropReason, KeyspaceBrief, LeaseRenewal, Peer};

    #[test]
    fn one_order_is_one_line() {
        let keyspace: partage_core::base::name::KeyspaceName = "kv".parse().unwrap();
        let replica = ReplicaKey { keyspace: keyspace.clone(), shard: ShardId(3), placement: PlacementId(9) };
        let end = Bounds::Keys(KeyRange::new(Key::empty(), Key::new(b"m ").unwrap()).unwrap());
        let peer = Peer {
            shard: ShardId(3),
            placement: PlacementId(8),
            bounds: end.clone(),
            node: "b".parse().unwrap(),
            incarnation: Incarnation(1),
            address: Some("h:1".into()),
            role: Role::Follower,
            state: ReplicaState::Unload,
            in_sync: false,
        };
        let told = orders(&Orders {
            cluster: ClusterId(10),
            incarnation: Incarnation(1),
            version: 5,
            base: 2,
            keyspaces: vec![KeyspaceBrief {
                name: keyspace,
                sharding: Sharding::KeyRange,
                partition_key: PartitionKey::Prefix { bytes: 2 },
                ownership: Ownership::Exclusive,
                generation: Generation::default(),
                first_shard: ShardId(1),
                durable: false,
                min_in_sync: 0,
                kind: partage_core::keyspace::KeyspaceKind::App,
                values: partage_core::keyspace::RowValues::Bytes,
                feed_ms: 0,
            }],
            changed: vec![Order {
                replica: replica.clone(),
                bounds: end,
                role: Role::Leader,
                state: ReplicaState::UnloadFinal,
                epoch: Epoch(4),
                configuration: Configuration(0),
                in_sync: false,
                granted: false,
                peers: vec![peer],
                had_data: true,
                drop: Some(DropReason::Moved),
                hand_over_to: None,
            }],
            removed: vec![replica.clone()],
            permissions: vec![Permission { replica, reason: DropReason::Superseded, epoch: Epoch(5) }],
            lease: Some(LeaseRenewal { sent_at: Millis(70), lease_ms: 300, spread_ms: 100 }),
            may_go: true,
        });
        let expected = "version 5 2\ncluster 0000000000000000000000000000000a\nlease 70 300\nmay_go\nkeyspace kv exclusive key_range prefix:2\n\
                        order kv 3 9 leader unload_final 4 waiting keys - 6d20\n\
                        had_data kv 3 9\npeer kv 3 9 b h:1 follower unload 3 8\nremoved kv 3 9\n\
                        drop kv 3 9 superseded 5\n";
        assert_eq!(told, expected);
    }
}
