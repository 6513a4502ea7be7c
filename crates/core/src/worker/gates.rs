//! Whose is this request? The table by which a worker answers, forwards or refuses.
//!
//! A table is made when an order, a gate or the lease changes, and then only read: a driver publishes it
//! to all its threads. The lease is part of it and is asked at every request, so that a process that was
//! paused beyond its lease answers nothing after it wakes, not even for a moment.

use super::{Gate, LocalReplica};
use crate::base::id::{Epoch, Generation, PlacementId, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::planted::{self, Planted};
use crate::base::time::Millis;
use crate::keyspace::Ownership;
use crate::keyspace::hash::modulo;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Access, Role};
use crate::keyspace::sharding::geometry::lowest;
use crate::keyspace::sharding::{Bounds, Position};
use crate::node::exchange::{KeyspaceBrief, Peer, ReplicaKey};
use crate::node::lease::HeldLease;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The permission to answer one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    /// The replica that answers the request.
    pub replica: ReplicaKey,
    /// The role in which the replica serves: only a leader may write.
    pub role: Role,
    /// The epoch that the service sends along with every write, so that storage can refuse an older one (O2).
    pub epoch: Epoch,
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The worker answers it, by this permit.
    Serve(Permit),
    /// Not here (any more): the node that has it is named. Forward it once, or send the caller there.
    Elsewhere {
        /// The shard that holds the key there.
        shard: ShardId,
        /// The node that has the shard.
        node: NodeId,
        /// Where to reach that node, as `host:port`.
        address: String,
    },
    /// Here, but not yet: the former owner is still handing over, or the callback runs. Hold the request
    /// for a moment and ask again.
    Soon,
    /// Here, but the lease has lapsed: the coordinator has not been heard, another may own it by now.
    Lapsed,
    /// Not here, and this worker does not know where. The caller's map may be older or newer than
    /// `generation`.
    Unknown {
        /// The generation of the last orders about the keyspace, if there were any.
        generation: Option<Generation>,
    },
}

#[derive(Debug, Clone)]
struct Entry {
    bounds: Bounds,
    gate: Gate,
    state: ReplicaState,
    replica: ReplicaKey,
    leads: bool,
    peers: Vec<Peer>,
}

#[derive(Debug, Clone)]
struct Table {
    brief: KeyspaceBrief,
    /// Replicas in `Live`: their bounds are disjoint, so in order a lookup is a binary search.
    live: Vec<Entry>,
    /// The numbers of slots that they are slots of: one, or a few while it changes.
    divisors: BTreeSet<u32>,
    /// Replicas that come or go, whose bounds may lie within others': few, as the throttle has it.
    in_change: Vec<Entry>,
    /// The gates again, by shard: for questions that name no key.
    by_shard: BTreeMap<(ShardId, PlacementId), Gate>,
}

/// The gates of all local replicas, by which requests are let in. A copy shares everything but the lease.
#[derive(Debug, Clone, Default)]
pub struct Gates {
    lease: HeldLease,
    tables: Arc<BTreeMap<KeyspaceName, Table>>,
}

impl Gates {
    pub(super) fn new<'a>(
        lease: HeldLease,
        briefs: &BTreeMap<KeyspaceName, KeyspaceBrief>,
        local_replicas: impl Iterator<Item = &'a LocalReplica>,
    ) -> Gates {
        let table = |brief: &KeyspaceBrief| Table {
            brief: brief.clone(),
            live: vec![],
            divisors: BTreeSet::new(),
            in_change: vec![],
            by_shard: BTreeMap::new(),
        };
        let mut tables: BTreeMap<_, _> =
            briefs.iter().map(|(name, brief)| (name.clone(), table(brief))).collect();
        // What is kept answers nothing, and would be looked through at every request.
        for local in local_replicas.filter(|local| !local.is_kept()) {
            let order = &local.order;
            let Some(table) = tables.get_mut(&order.replica.keyspace) else { continue };
            table.by_shard.insert((order.replica.shard, order.replica.placement), local.gate());
            let state = if local.is_withdrawn() { ReplicaState::UnloadFinal } else { order.state };
            let entries = if state == ReplicaState::Live { &mut table.live } else { &mut table.in_change };
            entries.push(Entry {
                bounds: order.bounds.clone(),
                gate: local.gate(),
                state,
                replica: order.replica.clone(),
                leads: order.role == Role::Leader,
                peers: order.peers.clone(),
            });
        }
        for table in tables.values_mut() {
            table.live.sort_by(|a, b| lowest(&a.bounds).cmp(&lowest(&b.bounds)));
            table.divisors = table.live.iter().filter_map(Entry::divisor).collect();
        }
        Gates { lease, tables: Arc::new(tables) }
    }

    /// The same table under a renewed lease: all that most answers to beats change.
    #[must_use]
    pub fn renewed(&self, lease: HeldLease) -> Gates {
        Gates { lease, tables: self.tables.clone() }
    }

    /// The lease that it counts on.
    pub fn lease(&self) -> &HeldLease {
        &self.lease
    }

    /// Which map of that keyspace the table was made from.
    pub fn generation(&self, keyspace: &KeyspaceName) -> Option<Generation> {
        self.tables.get(keyspace).map(|table| table.brief.generation)
    }

    /// Whether the lease counts for that keyspace: also for one that this worker does not know.
    pub fn is_leased(&self, keyspace: &KeyspaceName) -> bool {
        self.tables.get(keyspace).is_none_or(|table| table.brief.ownership == Ownership::Exclusive)
    }

    /// Whether the lease counts for that keyspace, and has lapsed.
    pub fn has_lapsed(&self, now: Millis, keyspace: &KeyspaceName) -> bool {
        self.is_leased(keyspace) && !self.lease.holds(now)
    }

    /// What a request for some key of that shard would get at `now`, if its gate is open.
    pub fn permit(&self, now: Millis, keyspace: &KeyspaceName, shard: ShardId) -> Option<Permit> {
        if self.has_lapsed(now, keyspace) {
            return None;
        }
        let table = self.tables.get(keyspace)?;
        let placements = (shard, PlacementId(0))..=(shard, PlacementId(u64::MAX));
        table.by_shard.range(placements).find_map(|(&(shard, placement), gate)| match *gate {
            Gate::Open(role, epoch) => {
                let replica = ReplicaKey { keyspace: keyspace.clone(), shard, placement };
                Some(Permit { replica, role, epoch })
            }
            Gate::Shut => None,
        })
    }

    /// What to do at `now` with a request for `key` of `keyspace`.
    pub fn judge(&self, now: Millis, keyspace: &KeyspaceName, key: &[u8], access: Access) -> Verdict {
        let Some(table) = self.tables.get(keyspace) else { return Verdict::Unknown { generation: None } };
        let position = table.brief.sharding.position(table.brief.partition_key, key);
        let exclusive = table.brief.ownership == Ownership::Exclusive;
        let mut other = Verdict::Unknown { generation: Some(table.brief.generation) };
        for entry in table.holding(position) {
            let verdict = entry.judge(position, access, exclusive && !self.lease.holds(now));
            match verdict {
                Verdict::Serve(_) => return verdict,
                Verdict::Soon | Verdict::Lapsed => other = verdict,
                Verdict::Elsewhere { .. } if !matches!(other, Verdict::Soon | Verdict::Lapsed) => {
                    other = verdict
                }
                Verdict::Elsewhere { .. } | Verdict::Unknown { .. } => {}
            }
        }
        other
    }

    /// Whether the replica that gave `permit` has been the owner ever since, and still is at `now` (A18):
    /// its gate is open under the same epoch, which no other node can have held in between (O3, O7).
    pub fn still_holds(&self, now: Millis, permit: &Permit) -> bool {
        let Some(table) = self.tables.get(&permit.replica.keyspace) else { return false };
        let gate = table.by_shard.get(&(permit.replica.shard, permit.replica.placement));
        let is_same = |gate: &&Gate| match gate {
            Gate::Open(role, _) if planted::is(Planted::TenureEpoch) => *role == permit.role,
            gate => **gate == Gate::Open(permit.role, permit.epoch),
        };
        (!self.has_lapsed(now, &permit.replica.keyspace) || planted::is(Planted::O7))
            && gate.filter(is_same).is_some()
    }
}

impl Table {
    /// The entries whose bounds hold `position`.
    fn holding<'a>(&'a self, position: Position<'a>) -> impl Iterator<Item = &'a Entry> {
        let last_below = |position: Position<'_>| {
            let above = self.live.partition_point(|entry| lowest(&entry.bounds) <= position);
            self.live[..above].last()
        };
        let live = match position {
            Position::Value(value) => self.divisors.iter().find_map(|of| {
                let begin = Position::Value(modulo(value, *of).into());
                last_below(begin).filter(|entry| entry.bounds.contains(position))
            }),
            Position::Key(_) | Position::Point(_) | Position::Name(_) => last_below(position),
        };
        let holds = move |entry: &&Entry| entry.bounds.contains(position) || planted::is(Planted::D4);
        live.into_iter().chain(&self.in_change).filter(holds)
    }
}

impl Entry {
    fn divisor(&self) -> Option<u32> {
        match &self.bounds {
            Bounds::Slot(slot) => Some(slot.of()),
            Bounds::Keys(_) | Bounds::Hashes(_) | Bounds::Name(_) => None,
        }
    }

    fn judge(&self, position: Position<'_>, access: Access, lapsed: bool) -> Verdict {
        let serves = match (self.gate, access) {
            (Gate::Open(..), Access::Read) | (Gate::Open(Role::Leader, _), Access::Write) => true,
            (Gate::Open(Role::Follower | Role::ReadReplica, _), Access::Write) | (Gate::Shut, _) => false,
        };
        match (self.gate, self.state) {
            (Gate::Open(role, epoch), _) if serves && !lapsed => {
                Verdict::Serve(Permit { replica: self.replica.clone(), role, epoch })
            }
            (Gate::Open(..), _) if serves => Verdict::Lapsed,
            (_, ReplicaState::Live) if self.leads || access == Access::Read => Verdict::Soon,
            _ => self.elsewhere(position),
        }
    }

    fn elsewhere(&self, position: Position<'_>) -> Verdict {
        let holders = self
            .peers
            .iter()
            .filter(|peer| peer.state == ReplicaState::Live && peer.bounds.contains(position))
            .filter_map(|peer| Some((peer, peer.address.as_ref()?)));
        match holders.max_by_key(|(peer, _)| (peer.role == Role::Leader, peer.shard)) {
            Some((peer, address)) => {
                Verdict::Elsewhere { shard: peer.shard, node: peer.node.clone(), address: address.clone() }
            }
            None => Verdict::Unknown { generation: None },
        }
    }
}
