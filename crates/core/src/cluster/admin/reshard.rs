//! Another number of shards for a keyspace of fixed slots, while it serves (K7).
//!
//! Slot i of n holds exactly what slots i, i + n, … i + (k-1)·n of k·n hold. So from n to k·n every shard is split,
//! from k·n to n every k shards are merged, each by itself, under the throttle, with the same handover as any
//! split or merge; and while it lasts slots of both numbers stand side by side and cover everything (M1). Between
//! numbers of which neither divides the other there is no such way; there are two steps, by their common multiple.
//!
//! What comes to nothing (a node dies, a child cannot be loaded) leaves its shard as it was, and the keyspace
//! serves on with both numbers. Asking again finishes what is missing; asking for the old number goes back.

use super::AdminError;
use crate::cluster::{Cluster, KeyspaceState, Moment};
use crate::keyspace::KeyspaceKind;
use crate::keyspace::hash::HashFunction;
use crate::keyspace::map::Shard;
use crate::keyspace::sharding::slot::common_multiple;
use crate::keyspace::sharding::{Bounds, Sharding, Slot};
use crate::limits;
use crate::plan::{Change, Plan, Progress, Status};
use std::collections::BTreeMap;

impl Cluster {
    /// The splits and merges after which `keyspace` has `to` slots.
    pub(super) fn reshard(
        &self,
        at: Moment,
        keyspace: &KeyspaceState,
        to: u32,
    ) -> Result<Vec<Change>, AdminError> {
        let hash = keyspace.check_number(to)?;
        self.refuse_second_reshard(keyspace)?;
        let mut changes = Vec::new();
        let mut joins: BTreeMap<Slot, Vec<&Shard>> = BTreeMap::new();
        for shard in keyspace.map.shards().filter(|shard| shard.is_serving()) {
            let Bounds::Slot(slot) = shard.bounds else { continue };
            match slot_change(slot, to) {
                Ok(SlotChange::Stays) => {}
                Ok(SlotChange::Split) => {
                    let nodes = self.homes(at, shard)?;
                    let child = |slot| (Bounds::Slot(slot), nodes.clone());
                    let children = slot.refined(to).map(child).collect();
                    changes.push(Change::Split { shard: shard.id, children });
                }
                Ok(SlotChange::Join(whole)) => joins.entry(whole).or_default().push(shard),
                Err(error) => return Err(error.refusal(keyspace, hash, slot, to)),
            }
        }
        for (whole, mut parents) in joins {
            parents.sort_by_key(|shard| shard.id);
            let heaviest = keyspace.heaviest(&parents);
            let nodes = heaviest.map(|shard| self.homes(at, shard)).transpose()?.unwrap_or_default();
            let shards = parents.iter().map(|shard| shard.id).collect();
            changes.push(Change::Merge { shards, child: (Bounds::Slot(whole), nodes) });
        }
        let touched: Vec<_> = changes.iter().flat_map(Change::shards).copied().collect();
        self.refuse_under_way(keyspace, &touched)?;
        Ok(changes)
    }

    /// Two changes of the number at once would cut what the other joins.
    fn refuse_second_reshard(&self, keyspace: &KeyspaceState) -> Result<(), AdminError> {
        let name = &keyspace.record.keyspace.name;
        let reshapes = |plan: &&Plan| {
            let mut open =
                plan.changes.iter().filter(|p| matches!(p.progress, Progress::Waiting | Progress::Started));
            open.any(|p| matches!(p.change, Change::Split { .. } | Change::Merge { .. }))
        };
        let mut approved =
            self.plans.by_id.values().filter(|p| p.keyspace == *name && p.status == Status::Approved);
        match approved.find(reshapes) {
            None => Ok(()),
            Some(plan) => Err(AdminError::Conflict {
                problem: format!("shards of keyspace {name} are being split or merged by {}", plan.id),
                way_out: "wait until that plan is finished (partage plan show)".into(),
            }),
        }
    }
}

impl KeyspaceState {
    /// Refuses a number of shards that this keyspace cannot have.
    fn check_number(&self, to: u32) -> Result<HashFunction, AdminError> {
        let settings = &self.record.keyspace;
        let name = &settings.name;
        if settings.kind == KeyspaceKind::Shuffle {
            // What a shuffle has stored lies in the slots of the number that its nodes know.
            return Err(AdminError::Refused {
                problem: format!(
                    "keyspace {name} is a pool of shuffles: its number of slots does not change"
                ),
                way_out: "create another pool, and delete this one when its shuffles have ended".into(),
            });
        }
        let Sharding::Fixed { hash, .. } = settings.sharding else {
            return Err(AdminError::Invalid {
                problem: format!(
                    "keyspace {name} is sharded by {}: its number of shards is not fixed",
                    settings.sharding
                ),
                way_out: "split or merge single ranges (partage shard split, merge), or register partitions"
                    .into(),
            });
        };
        Sharding::Fixed { hash, shards: to }.check()?;
        let limits = &settings.resharding;
        let bound = match to {
            to if to > limits.max_shards => {
                format!("its max_shards is {}: raise it first", limits.max_shards)
            }
            to if to < limits.min_shards => {
                format!("its min_shards is {}: lower it first", limits.min_shards)
            }
            _ => return Ok(hash),
        };
        Err(AdminError::Refused {
            problem: format!("keyspace {name} would have {to} shards"),
            way_out: bound,
        })
    }
}

/// What becomes of a slot.
enum SlotChange {
    Stays,
    Split,
    /// It becomes a part of that one.
    Join(Slot),
}

/// Why a slot can become nothing of the kind.
enum SlotError {
    /// Neither number divides the other.
    Unrelated,
    /// It would be cut into, or made from, so many at once.
    TooManyParts(u32),
}

fn slot_change(slot: Slot, to: u32) -> Result<SlotChange, SlotError> {
    let (cut, join) = (to.is_multiple_of(slot.of()), slot.of().is_multiple_of(to));
    let parts = if cut { to / slot.of() } else { slot.of() / to };
    match (cut, join) {
        (true, true) => Ok(SlotChange::Stays),
        (false, false) => Err(SlotError::Unrelated),
        _ if parts > limits::RESHARD_FACTOR => Err(SlotError::TooManyParts(parts)),
        (true, false) => Ok(SlotChange::Split),
        (false, true) => Ok(SlotChange::Join(slot.coarser(to))),
    }
}

impl SlotError {
    fn refusal(&self, keyspace: &KeyspaceState, hash: HashFunction, slot: Slot, to: u32) -> AdminError {
        let of = slot.of();
        match self {
            SlotError::Unrelated => {
                let step = common_multiple([of, to])
                    .filter(|step| Sharding::Fixed { hash, shards: *step }.check().is_ok())
                    .filter(|step| *step <= keyspace.record.keyspace.resharding.max_shards);
                let way_out = match step {
                    Some(step) => format!("change it to {step} first, then to {to}"),
                    None => format!("take a multiple or a divisor of {of}"),
                };
                let problem = format!("of {of} shards and {to} neither number divides the other");
                AdminError::Refused { problem, way_out }
            }
            SlotError::TooManyParts(parts) => AdminError::Refused {
                problem: format!("slot {slot} would be cut into, or be one of, {parts} parts at once"),
                way_out: format!(
                    "change it in steps, each by a factor of {} at most",
                    limits::RESHARD_FACTOR
                ),
            },
        }
    }
}
