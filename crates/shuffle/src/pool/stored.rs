//! Where the records of a shuffle are, for people: each node of the pool says what it does, what it has, and what is wrong there.

use crate::node::{Node, NodeStatus, Roles};
use partage_core::base::name::NodeId;
use partage_service::shuffle::plan::Plan;
use partage_service::shuffle::{PoolSlot, ShuffleId};
use partage_wire::shuffle::{HeldSlot, ShuffleHeld, ShuffleNodeForm, ShuffleStored};
use std::collections::BTreeSet;

/// What this node says.
pub(super) fn held(me: &NodeId, node: &Node, shuffle: ShuffleId) -> ShuffleHeld {
    let slots = node.held(shuffle).into_iter();
    let slots = slots.map(|(slot, disk_bytes, is_in_object_store)| HeldSlot {
        slot: slot.0,
        disk_bytes,
        is_in_object_store,
    });
    ShuffleHeld {
        node: me.to_string(),
        roles: words(node.shared().settings.roles),
        slots: slots.collect(),
        troubles: troubles(&node.status(), shuffle),
    }
}

fn words(roles: Roles) -> Vec<String> {
    let buffers = roles.buffers().then(|| "buffer".to_owned());
    buffers.into_iter().chain(roles.stores().then(|| "storage".to_owned())).collect()
}

/// What is wrong with a node, as far as it concerns a shuffle.
fn troubles(status: &NodeStatus, shuffle: ShuffleId) -> Vec<String> {
    let mut troubles = Vec::new();
    if status.is_full {
        troubles.push("its disk is full: it takes no new attempts".to_owned());
    }
    if status.is_log_full {
        troubles.push("its log of decisions waits for room on the disk".to_owned());
    }
    if let Some(why) = &status.object_store_refuses {
        troubles.push(format!("the object store refuses: {why}"));
    }
    // Files of batches begin with the number of their shuffle.
    let number = shuffle.to_string();
    let damages = status.damages.iter().filter(|damage| damage.file.starts_with(&number));
    troubles.extend(damages.map(|damage| format!("damaged on its disk, and fetched from others: {damage}")));
    troubles
}

/// The slots that some node has a receipt for.
pub(super) fn in_object_store(held: &[ShuffleHeld]) -> BTreeSet<PoolSlot> {
    let slots = held.iter().flat_map(|of_node| &of_node.slots);
    slots.filter(|slot| slot.is_in_object_store).map(|slot| PoolSlot(slot.slot)).collect()
}

/// Keys and values of what is read of these slots, in bytes.
pub(super) fn bytes_of(plan: &Plan, slots: &BTreeSet<PoolSlot>) -> u64 {
    plan.ranges.iter().filter(|range| slots.contains(&range.slot)).map(|range| range.bytes).sum()
}

/// All of it together.
pub(super) fn sum(
    mut held: Vec<ShuffleHeld>,
    object_bytes: Option<u64>,
    mut silent: Vec<String>,
) -> ShuffleStored {
    held.sort_by(|one, other| one.node.cmp(&other.node));
    silent.sort();
    let on_disk = held.iter().flat_map(|of_node| &of_node.slots).filter(|slot| slot.disk_bytes > 0);
    let disk_slots: BTreeSet<u32> = on_disk.map(|slot| slot.slot).collect();
    let object_slots = in_object_store(&held).len();
    let nodes: Vec<ShuffleNodeForm> = held.into_iter().map(node).collect();
    ShuffleStored {
        disk_slots: count(disk_slots.len()),
        disk_bytes: nodes.iter().map(|node| node.disk_bytes).fold(0, u64::saturating_add),
        object_slots: count(object_slots),
        object_bytes,
        nodes,
        silent,
    }
}

fn node(held: ShuffleHeld) -> ShuffleNodeForm {
    let on_disk = || held.slots.iter().filter(|slot| slot.disk_bytes > 0);
    // What has copies here is read from the disk.
    let away = held.slots.iter().filter(|slot| slot.is_in_object_store && slot.disk_bytes == 0);
    ShuffleNodeForm {
        disk_slots: count(on_disk().count()),
        disk_bytes: on_disk().map(|slot| slot.disk_bytes).fold(0, u64::saturating_add),
        object_slots: count(away.count()),
        node: held.node,
        roles: held.roles,
        troubles: held.troubles,
    }
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Damage;
    use partage_service::shuffle::RangeId;
    use partage_service::shuffle::plan::PlanRange;
    use std::sync::Arc;

    fn of(node: &str, slots: &[(u32, u64, bool)]) -> ShuffleHeld {
        let slot = |(slot, disk_bytes, is_in_object_store): &(u32, u64, bool)| HeldSlot {
            slot: *slot,
            disk_bytes: *disk_bytes,
            is_in_object_store: *is_in_object_store,
        };
        let roles = words(Roles::Storage);
        ShuffleHeld {
            node: node.to_owned(),
            roles,
            slots: slots.iter().map(slot).collect(),
            troubles: Vec::new(),
        }
    }

    #[test]
    fn slots_are_counted_once_and_bytes_at_each_node() {
        let held = vec![
            of("b", &[(1, 10, false), (2, 20, true), (3, 0, true)]),
            of("a", &[(1, 11, false), (2, 0, true)]),
            of("c", &[]),
        ];
        let away = in_object_store(&held);
        assert_eq!(away, [PoolSlot(2), PoolSlot(3)].into());
        let range = |slot, bytes| {
            let (id, begins, slot) = (RangeId(bytes), Vec::new().into(), PoolSlot(slot));
            PlanRange { id, since: 0, begins, slot, records: 1, bytes }
        };
        let plan = Plan {
            shuffle: ShuffleId(1),
            winners: Arc::default(),
            needed: Default::default(),
            ranges: vec![range(1, 1), range(2, 100), range(3, 1_000), range(2, 10_000)],
        };
        assert_eq!(bytes_of(&plan, &away), 11_100);
        let sum = sum(held, Some(11_100), vec!["z".to_owned(), "d".to_owned()]);
        assert_eq!((sum.disk_slots, sum.disk_bytes, sum.object_slots), (2, 41, 2));
        let nodes = sum.nodes.iter();
        let nodes: Vec<_> = nodes
            .map(|node| (node.node.as_str(), node.disk_slots, node.disk_bytes, node.object_slots))
            .collect();
        assert_eq!(nodes, [("a", 1, 11, 1), ("b", 2, 30, 1), ("c", 0, 0, 0)]);
        assert_eq!(sum.silent, ["d", "z"]);
        assert_eq!((words(Roles::Both).len(), words(Roles::Buffer)), (2, vec!["buffer".to_owned()]));
    }

    #[test]
    fn what_is_wrong_is_named_and_damage_of_other_shuffles_is_not() {
        let damage = |shuffle: u128| {
            let file = format!("{}-{:016x}.batches", ShuffleId(shuffle), 3);
            Damage { file, offset: 9, what: "a wrong checksum".to_owned() }
        };
        let status = NodeStatus {
            is_full: true,
            is_log_full: true,
            object_store_refuses: Some("403".to_owned()),
            damages: [damage(7), damage(8)].into(),
            ..NodeStatus::default()
        };
        let found = troubles(&status, ShuffleId(7));
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].contains("disk is full") && found[2].contains("403"), "{found:?}");
        assert!(found[3].contains("byte 9: a wrong checksum"), "{found:?}");
        assert!(troubles(&NodeStatus::default(), ShuffleId(7)).is_empty());
    }
}
