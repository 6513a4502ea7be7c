//! `CLUSTER`: which node leads which slots, for clients that go to the leader by themselves.
//!
//! A node of Redis leads slots or follows another node. Here a node may do both, for different slots, and clients do not
//! expect that: redis-py takes a node that is named as a follower of some slots for a replica of all, and does not scan it. So
//! a node that leads any slot is named as a leader only, and followers are those nodes that lead none.

use super::{Session, subcommand};
use crate::error;
use crate::reply::Reply;
use crate::request::Arguments;
use crate::table::{SlotNode, SlotOwner};
use partage_core::keyspace::hash::crc16;
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

impl Session {
    pub(super) async fn cluster(&mut self, arguments: Arguments<'_>) -> Result<Reply, Reply> {
        let counts = [
            ("info", 2..=2),
            ("keyslot", 3..=3),
            ("myid", 2..=2),
            ("nodes", 2..=2),
            ("shards", 2..=2),
            ("slots", 2..=2),
        ];
        let name = subcommand(arguments, &counts)?;
        let table = self.table()?.clone();
        if !table.has_slots() {
            return Err(Reply::error("This instance has cluster support disabled"));
        }
        let own = table.own_node();
        match name.as_str() {
            "keyslot" => {
                return Ok(Reply::Integer(crc16::slot(crc16::hash_tag(arguments.get(2))).into()));
            }
            "myid" => return Ok(Reply::text(id(&own))),
            _ => {}
        }
        let slots = table.slots().await.map_err(|error| error::reply(&error))?;
        Ok(match name.as_str() {
            "info" => Reply::Text(info(&slots, &own)),
            "nodes" => Reply::Text(nodes(&slots, &own)),
            "shards" => shards(&slots),
            _ => {
                let leaders: BTreeSet<&SlotNode> =
                    slots.iter().filter_map(|owner| owner.leader.as_ref()).collect();
                Reply::Array(slots.iter().filter_map(|one| owner(one, &leaders)).collect())
            }
        })
    }
}

/// 40 hexadecimal digits, as ids of nodes are.
fn id(node: &SlotNode) -> String {
    format!("{:032x}{:08x}", xxh3_128(node.name.as_bytes()), xxh3_64(node.name.as_bytes()) as u32)
}

fn owner(owner: &SlotOwner, leaders: &BTreeSet<&SlotNode>) -> Option<Reply> {
    let leader = owner.leader.as_ref()?;
    let node = |node: &SlotNode| {
        Reply::Array(vec![
            Reply::text(node.host.clone()),
            Reply::Integer(node.port.into()),
            Reply::text(id(node)),
            Reply::Array(Vec::new()),
        ])
    };
    let ends = [owner.first, owner.last].map(|slot| Reply::Integer(slot.into()));
    let followers = owner.followers.iter().filter(|follower| !leaders.contains(follower));
    let nodes = std::iter::once(leader).chain(followers).map(node);
    Some(Reply::Array(ends.into_iter().chain(nodes).collect()))
}

/// The slots that each node leads, neighbours together; a node that leads none has none.
fn by_node(slots: &[SlotOwner]) -> BTreeMap<&SlotNode, Vec<(u16, u16)>> {
    let mut by_node: BTreeMap<&SlotNode, Vec<(u16, u16)>> = BTreeMap::new();
    for owner in slots {
        for follower in &owner.followers {
            by_node.entry(follower).or_default();
        }
        let Some(leader) = &owner.leader else { continue };
        let ranges = by_node.entry(leader).or_default();
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(owner.first) => *last = owner.last,
            _ => ranges.push((owner.first, owner.last)),
        }
    }
    by_node
}

fn shards(slots: &[SlotOwner]) -> Reply {
    let text = |text: &str| Reply::text(text);
    let shard = |(node, ranges): (&SlotNode, Vec<(u16, u16)>)| {
        let ends = ranges.iter().flat_map(|(first, last)| [*first, *last]);
        let about = vec![
            (text("id"), Reply::text(id(node))),
            (text("port"), Reply::Integer(node.port.into())),
            (text("ip"), text(&node.host)),
            (text("endpoint"), text(&node.host)),
            (text("role"), text("master")),
            (text("replication-offset"), Reply::Integer(0)),
            (text("health"), text("online")),
        ];
        Reply::Map(vec![
            (text("slots"), Reply::Array(ends.map(|slot| Reply::Integer(slot.into())).collect())),
            (text("nodes"), Reply::Array(vec![Reply::Map(about)])),
        ])
    };
    Reply::Array(by_node(slots).into_iter().map(shard).collect())
}

fn nodes(slots: &[SlotOwner], own: &SlotNode) -> String {
    let line = |(node, ranges): (&SlotNode, Vec<(u16, u16)>)| {
        let flags = if node == own { "myself,master" } else { "master" };
        let range = |(first, last): &(u16, u16)| {
            if first == last { format!(" {first}") } else { format!(" {first}-{last}") }
        };
        let ranges: String = ranges.iter().map(range).collect();
        let SlotNode { host, port, .. } = node;
        // The second port is that of Redis' own nodes among each other, which there is not.
        format!("{} {host}:{port}@{port} {flags} - 0 0 1 connected{ranges}\n", id(node))
    };
    let mut by_node = by_node(slots);
    by_node.entry(own).or_default();
    by_node.into_iter().map(line).collect()
}

fn info(slots: &[SlotOwner], own: &SlotNode) -> String {
    let led = slots.iter().filter(|owner| owner.leader.is_some());
    let led: u64 = led.map(|owner| u64::from(owner.last - owner.first) + 1).sum();
    let mut by_node = by_node(slots);
    by_node.entry(own).or_default();
    let leaders = by_node.values().filter(|ranges| !ranges.is_empty()).count();
    let state = if led == u64::from(crc16::SLOTS) { "ok" } else { "fail" };
    let lines = [
        format!("cluster_enabled:1\r\ncluster_state:{state}"),
        format!("cluster_slots_assigned:{}\r\ncluster_slots_ok:{led}", crc16::SLOTS),
        "cluster_slots_pfail:0\r\ncluster_slots_fail:0".to_owned(),
        format!("cluster_known_nodes:{}\r\ncluster_size:{leaders}", by_node.len()),
        "cluster_current_epoch:1\r\ncluster_my_epoch:1\r\n".to_owned(),
    ];
    lines.join("\r\n")
}
