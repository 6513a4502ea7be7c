//! The transfer of the lead in a replicated shard. Before the coordinator gives the lead to another replica, the *heir*, it
//! orders the present leader to hand over: then no write is under way at the change, and none ends with an unknown outcome.
//!
//! ```text
//!  coordinator   order: hand over to B ─╮                      ╭─► commits B as the leader, as without a hand-over
//!  leader A                             ╰─► lets no write in ──╯   reports that B has all (`heir_ready`)
//! ```
//!
//! | a planned change of the leader: a person's, a plan's, or a move of the leader's replica | what the coordinator does |
//! |---------------------------------------------------------------|-----------------------------------------------------|
//! | the leader serves under the shard's epoch, and is heard       | orders it to hand over, and waits                   |
//! | the leader reports that the heir is ready                     | commits the change                                  |
//! | `transfer_ms` are over                                        | commits the change all the same: the in-sync set loses nothing |
//! | the leader is silent, does not serve, or its disk takes no writes | commits the change at once                      |
//! | the leader asks others out of the in-sync set with the wish that takes the heir in | commits the change at once: the leader acknowledges nothing until it is answered |
//! | the heir is silent                                            | takes the order back, and gives the change up       |
//! | the coordinator has just begun to lead, and has not heard the heir or the leader yet | waits until it hears them, or finds them silent |
//! | the leader is to hand over to another heir already            | waits for the end of that: one after the other      |
//! | nothing asks for the change any more                          | takes the order back after twice `transfer_ms`; the leader goes on before |
//!
//! The leader lets writes in again after two seconds, also when it hears no coordinator. Transfers are not stored: the first
//! orders of the next coordinator take the order back, and it begins the transfer again.

use super::decide::Transition;
use super::members::{Members, NodesView};
use super::{Cluster, KeyspaceState, Moment, Outbox};
use crate::base::id::{Configuration, Epoch, PlacementId, ShardId};
use crate::base::name::KeyspaceName;
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::keyspace::Ownership;
use crate::keyspace::map::{Edit, Replica, Shard};
use crate::node::Health;
use crate::plan::handover::{self, ReplicaView, TransferStep};
use std::collections::BTreeSet;

/// The leader of a shard was ordered to hand over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeadTransfer {
    from: PlacementId,
    to: PlacementId,
    epoch: Epoch,
    /// The shard's configuration at the order: reports under an earlier one are not about this transfer.
    configuration: Configuration,
    /// Until when the coordinator waits for the leader.
    until: Millis,
    /// Whether that time is over.
    is_over: bool,
}

impl LeadTransfer {
    /// Whether that leader still leads, and has led all the time.
    fn is_current(&self, shard: &Shard) -> bool {
        let leader = shard.leader().map(|leader| leader.placement);
        (leader, shard.epoch) == (Some(self.from), self.epoch)
    }

    /// When [`EndedTransfers`] looks at it if nothing happens.
    fn due(&self, settings: &Settings) -> Millis {
        if self.is_over { self.until + settings.transfer_ms } else { self.until }
    }
}

impl KeyspaceState {
    /// What has to happen before `heir` may lead a shard in the place of its leader.
    pub(super) fn transfer_step(
        &self,
        shard: &Shard,
        heir: PlacementId,
        seen: NodesView<'_>,
    ) -> TransferStep {
        let leader = shard.leader().filter(|leader| leader.placement != heir);
        let is_replicated = self.record.keyspace.ownership == Ownership::Replicated;
        let (Some(leader), Some(next), true) = (leader, shard.replica(heir), is_replicated) else {
            return TransferStep::Done;
        };
        if !is_heard(next, seen) {
            return if is_unknown(next, seen) { TransferStep::UnderWay } else { TransferStep::HeirSilent };
        }
        if !is_heard(leader, seen) || !self.can_hand_over(shard, leader, seen) {
            return TransferStep::Done;
        }
        match self.transfer_of(shard) {
            None => TransferStep::Due,
            Some(other) if other.to != heir => match other.is_over {
                true => TransferStep::Due,
                false => TransferStep::UnderWay,
            },
            Some(transfer) if transfer.is_over || self.heir_is_ready(transfer) => TransferStep::Done,
            Some(_) => TransferStep::UnderWay,
        }
    }

    /// Whether the leader serves under the present epoch, on a disk that takes writes.
    fn can_hand_over(&self, shard: &Shard, leader: &Replica, seen: NodesView<'_>) -> bool {
        let takes_writes = seen.nodes.get(&leader.node).is_some_and(|node| node.disk.takes_writes());
        takes_writes && self.serves_under(leader.placement, shard.epoch)
    }

    fn heir_is_ready(&self, transfer: &LeadTransfer) -> bool {
        self.replication.get(&transfer.from).is_some_and(|said| {
            said.heir_ready == Some(transfer.to) && said.configuration >= transfer.configuration
        })
    }

    /// The replica to which the leader of a shard has an order to hand over, if it has one.
    pub(super) fn heir_of(&self, shard: &Shard) -> Option<PlacementId> {
        self.transfer_of(shard).map(|transfer| transfer.to)
    }

    /// The same, while the coordinator waits for the leader.
    pub(super) fn awaited_heir_of(&self, shard: &Shard) -> Option<PlacementId> {
        self.transfer_of(shard).filter(|transfer| !transfer.is_over).map(|transfer| transfer.to)
    }

    fn transfer_of(&self, shard: &Shard) -> Option<&LeadTransfer> {
        self.transfers.get(&shard.id).filter(|transfer| transfer.is_current(shard))
    }

    /// Orders the leaders of these shards to hand over. If a shard is named twice, the first heir counts.
    pub(super) fn begin_transfers(
        &mut self,
        at: Moment,
        transfers: &[(ShardId, PlacementId)],
        settings: &Settings,
        members: &mut Members,
        outbox: &mut Outbox,
    ) {
        let mut begun = BTreeSet::new();
        for (id, heir) in transfers.iter().copied() {
            if begun.contains(&id) {
                continue;
            }
            let Some(shard) = self.map.shard(id) else { continue };
            let Some(leader) = shard.leader().filter(|leader| leader.placement != heir) else { continue };
            let transfer = LeadTransfer {
                from: leader.placement,
                to: heir,
                epoch: shard.epoch,
                configuration: shard.configuration,
                until: at.now + settings.transfer_ms,
                is_over: false,
            };
            self.transfers.insert(id, transfer);
            begun.insert(id);
        }
        if !begun.is_empty() {
            members.refresh_orders(self, begun, outbox);
        }
    }
}

/// Whether the process of a replica sends heartbeats, even if its address does not answer yet.
fn is_heard(replica: &Replica, seen: NodesView<'_>) -> bool {
    seen.nodes.get(&replica.node).is_some_and(|node| {
        let health = node.signs.health(seen.now, seen.settings);
        node.runs_replica(replica)
            && (matches!(health, Health::Up | Health::Unreachable)
                || health == Health::Unknown && node.signs.heard_beat)
    })
}

/// Whether the coordinator cannot know yet if the process of a replica sends heartbeats.
fn is_unknown(replica: &Replica, seen: NodesView<'_>) -> bool {
    seen.nodes.get(&replica.node).is_some_and(|node| {
        node.runs_replica(replica)
            && !node.signs.heard_beat
            && node.signs.health(seen.now, seen.settings) == Health::Unknown
    })
}

impl Cluster {
    /// The queued shards whose leader asks its own replacement into the in-sync set and has to hand over, with that replica.
    pub(super) fn transfers_to_newcomers(
        &self,
        keyspace: &KeyspaceState,
        edit: &Edit<'_>,
        queued: &BTreeSet<ShardId>,
        at: Moment,
    ) -> Vec<(ShardId, PlacementId)> {
        if keyspace.record.keyspace.ownership != Ownership::Replicated {
            return Vec::new();
        }
        let view = self.view(keyspace, at.now);
        let seen = self.nodes_at(at.now);
        let due = |id: &ShardId| {
            let shard = edit.shard(*id).ok().filter(|shard| shard.is_serving())?;
            if view.awaits_comparison(shard) {
                return None;
            }
            let heir = handover::newcomer_to_lead(shard, &view)?;
            (keyspace.transfer_step(shard, heir, seen) == TransferStep::Due).then_some((*id, heir))
        };
        queued.iter().filter_map(due).collect()
    }

    /// Whether this coordinator has just begun to lead, and has not heard the leader of a replicated shard yet.
    pub(super) fn awaits_leader(&self, keyspace: &KeyspaceState, shard: &Shard, at: Moment) -> bool {
        keyspace.record.keyspace.ownership == Ownership::Replicated
            && shard.leader().is_some_and(|leader| self.is_unheard_yet(leader, at))
    }

    /// Whether this coordinator has just begun to lead, and has not heard the process of a replica yet.
    pub(super) fn is_unheard_yet(&self, replica: &Replica, at: Moment) -> bool {
        self.is_beginning(at) && self.replica_health(at, replica) == Health::Unknown
    }

    /// When [`EndedTransfers`] is next due.
    pub(super) fn next_transfer_due(&self) -> Millis {
        let transfers = self.keyspaces.by_name.values().flat_map(|keyspace| keyspace.transfers.values());
        transfers.map(|transfer| transfer.due(&self.settings)).min().unwrap_or(Millis::NEVER)
    }
}

/// Transfers whose time is over, whose heir is silent, or whose leader no longer leads.
pub(super) struct EndedTransfers {
    ended: Vec<(KeyspaceName, ShardId, Ending)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The coordinator waits no longer, and changes the leader without the transfer.
    Over,
    /// The coordinator takes the order back, without a change of leader.
    Unused,
    /// The replica that had to hand over no longer leads.
    Gone,
}

impl Transition for EndedTransfers {
    fn find(cluster: &Cluster, at: Moment) -> EndedTransfers {
        let mut ended = Vec::new();
        let seen = cluster.nodes_at(at.now);
        for (name, keyspace) in &cluster.keyspaces.by_name {
            for (id, transfer) in &keyspace.transfers {
                let shard = keyspace.map.shard(*id).filter(|shard| transfer.is_current(shard));
                let heir = shard.and_then(|shard| shard.replica(transfer.to));
                let hears_heir = heir.is_some_and(|heir| is_heard(heir, seen));
                let ending = match (shard.is_some(), at.now >= transfer.due(&cluster.settings)) {
                    (false, _) => Ending::Gone,
                    (true, _) if !hears_heir => Ending::Unused,
                    (true, true) if transfer.is_over => Ending::Unused,
                    (true, true) => Ending::Over,
                    (true, false) => continue,
                };
                ended.push((name.clone(), *id, ending));
            }
        }
        EndedTransfers { ended }
    }

    fn apply(self, cluster: &mut Cluster, _: Moment) -> Millis {
        let Cluster { members, keyspaces, outbox, .. } = cluster;
        for (name, id, ending) in self.ended {
            let Some(keyspace) = keyspaces.get_mut(&name) else { continue };
            if ending == Ending::Over {
                keyspace.transfers.entry(id).and_modify(|transfer| transfer.is_over = true);
                keyspace.enqueue([id]);
                continue;
            }
            keyspace.transfers.remove(&id);
            if ending == Ending::Unused {
                members.refresh_orders(keyspace, [id], outbox);
                keyspace.enqueue([id]);
            }
        }
        Millis::NEVER
    }
}
