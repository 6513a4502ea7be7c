//! The commands of people and services, and their answers.
//!
//! The cluster carries out a command in two steps. `prepare` reads the cluster, and returns every effect that the command will
//! have, or refuses it. `apply` makes these effects, and cannot fail, so no command is ever half done. [`Cluster::dry_run`] does
//! the same on a copy of the cluster, where the planner then runs once: its plans belong to the answer.
//!
//! | what                              | file            |
//! |-----------------------------------|-----------------|
//! | the commands, and their events    | `command.rs`    |
//! | why a command is refused          | `error.rs`      |
//! | keyspaces                         | `keyspaces.rs`  |
//! | named partitions                  | `partitions.rs` |
//! | nodes                             | `nodes.rs`      |
//! | single shards and their replicas  | `shards.rs`     |
//! | which stored copy a shard goes on with, or that it goes on without any | `force_join.rs` |
//! | splits, merges, isolated keys     | `reshape.rs`    |
//! | whether there are enough nodes    | `room.rs`       |
//! | what would follow: dry runs       | `dry_run.rs`    |
//! | plans that wait for a person      | `plans.rs`      |

mod command;
mod dry_run;
mod error;
mod force_join;
mod keyspaces;
mod nodes;
mod partitions;
mod plans;
mod reshape;
mod reshard;
mod room;
mod shards;
mod tables;

pub use super::drains::{DrainProgress, DrainStatus};
pub use command::{Command, KeyspaceChanges, Presplit, SplitAt};
pub use dry_run::NodeShare;
pub use error::{AdminError, Kind};

use super::drains::BegunDrains;
use super::members::Members;
use super::{Cluster, KeyspaceRecord, KeyspaceState, Moment, NodeRecord, NodeState, Notice, Outbox, Write};
use crate::base::id::{PlacementId, PlanId, ShardId, TransactionId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::settings::Settings;
use crate::base::suggest;
use crate::cluster::event::{Actor, Event, event};
use crate::keyspace::map::{MapDiff, Shard};
use crate::plan::{Origin, Plan, Planned, ShownPlan};

/// What a command has done or, in a dry run, would do.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// One sentence that says what the command does.
    pub summary: String,
    /// What works but may not be meant, one sentence each.
    pub warnings: Vec<String>,
    /// The plan that the command makes, approves, rejects or edits.
    pub plan: Option<ShownPlan>,
    /// Only in a dry run: the plans that the planner would make next, because of the command.
    pub follows: Vec<ShownPlan>,
    /// Only in a dry run: the nodes that would hold more or fewer replicas.
    pub shares: Vec<NodeShare>,
    /// The status of the drains that the command began.
    pub drains: Vec<DrainStatus>,
    /// Whether this was a dry run, so that the coordinator has changed nothing.
    pub dry_run: bool,
}

/// Everything that a command will do.
#[derive(Debug, Default)]
struct Intent {
    summary: String,
    warnings: Vec<String>,
    effects: Vec<Effect>,
    drains: Vec<NodeId>,
}

/// One change. To make it cannot fail.
#[derive(Debug)]
enum Effect {
    Create(KeyspaceRecord, MapDiff),
    Drop(MapDiff),
    /// A person gives up a keyspace in quarantine.
    GiveUp(KeyspaceName),
    Keyspace(KeyspaceRecord),
    Map(MapDiff),
    /// The next map, in which a person has chosen that copy of that shard.
    GoOnWith(ShardId, PlacementId, MapDiff),
    /// The next map; a person has given up the data of that shard.
    GiveUpShard(ShardId, MapDiff),
    Node(NodeRecord),
    DropNode(NodeId),
    ReleaseBrake,
    /// Changes of the map in several steps, as a plan of the person who asks.
    Submit(KeyspaceName, Vec<Planned>),
    /// A plan that a person has approved or rejected.
    Decide(Plan),
    /// A plan in the place of another.
    Replace {
        old: Plan,
        new: Plan,
    },
}

impl Intent {
    fn new(summary: impl Into<String>, effects: Vec<Effect>) -> Intent {
        Intent { summary: summary.into(), effects, ..Intent::default() }
    }
}

impl Cluster {
    /// Carries out a command of the person `by`. `transaction`, which the caller draws anew for each call, is the id of the maps
    /// that this makes. On an error nothing has changed.
    pub fn command(
        &mut self,
        at: Moment,
        transaction: TransactionId,
        by: &str,
        command: Command,
    ) -> Result<Answer, AdminError> {
        let (kind, about) = (command.kind(), command.about());
        let intent = self.prepare(at, transaction, by, command)?;
        let answer = self.carry_out(at, by, intent);
        self.outbox.notices.push(Notice { alarm: false, text: format!("{by}: {}", answer.summary) });
        let by = Actor::Person(by.to_owned());
        self.outbox.events.push(Event { by, ..event(kind, about, answer.summary.clone()) });
        Ok(answer)
    }

    fn prepare(
        &self,
        at: Moment,
        transaction: TransactionId,
        by: &str,
        command: Command,
    ) -> Result<Intent, AdminError> {
        match command {
            Command::CreateKeyspace { keyspace, presplit, ahead } => {
                self.create_keyspace(at, transaction, *keyspace, presplit, ahead)
            }
            Command::DeleteKeyspace { keyspace } => self.delete_keyspace(transaction, &keyspace),
            Command::UpdateKeyspace { keyspace, changes, ahead } => {
                self.update_keyspace(at, by, &keyspace, *changes, ahead)
            }
            Command::RegisterPartitions { keyspace, partitions, replicas, ahead } => {
                self.register_partitions(at, transaction, &keyspace, &partitions, replicas, ahead)
            }
            Command::UnregisterPartitions { keyspace, partitions } => {
                self.unregister_partitions(transaction, &keyspace, &partitions)
            }
            Command::DrainNode { node, reason, max_down } => self.drain_node(at, &node, reason, max_down),
            Command::DrainZone { zone, reason, max_down } => self.drain_zone(at, &zone, reason, max_down),
            Command::UndrainNode { node } => self.undrain_node(&node),
            Command::UndrainZone { zone } => self.undrain_zone(&zone),
            Command::RemoveNode { node } => self.remove_node(at, &node),
            Command::MoveShard { keyspace, shard, from, to } => {
                self.move_shard(at, by, &keyspace, shard, (&from, &to))
            }
            Command::TransferLeader { keyspace, shard, to } => {
                self.transfer_leader(at, by, &keyspace, shard, &to)
            }
            Command::AddReplica { keyspace, shard, node } => {
                self.add_replica(at, by, &keyspace, shard, &node)
            }
            Command::RemoveReplica { keyspace, shard, node } => {
                self.remove_replica(at, by, &keyspace, shard, &node)
            }
            Command::SplitShard { keyspace, shard, at: cuts } => {
                self.split_shard(at, by, &keyspace, shard, cuts)
            }
            Command::MergeShards { keyspace, left, right } => {
                self.merge_shards(at, by, &keyspace, left, right)
            }
            Command::IsolateKey { keyspace, key } => self.isolate_key(at, by, &keyspace, &key),
            Command::SetShardReplicas { keyspace, shard, replicas, ahead } => {
                self.set_shard_replicas(at, &keyspace, shard, replicas, ahead)
            }
            Command::PinShard { keyspace, shard, constraint, ahead } => {
                self.pin_shard(at, &keyspace, shard, constraint, ahead)
            }
            Command::ReleaseShard { keyspace, shard } => self.release_shard(&keyspace, shard),
            Command::ForceJoinShard { keyspace, shard, node, generation } => {
                self.force_join(at, transaction, (&keyspace, shard), &node, generation)
            }
            Command::RecreateShard { keyspace, shard, generation } => {
                self.recreate_shard(transaction, (&keyspace, shard), generation)
            }
            Command::ReleaseBrake => self.release_brake(),
            Command::ApprovePlan { plan } => self.approve_plan(at, by, plan),
            Command::RejectPlan { plan } => self.reject_plan(by, plan),
            Command::EditPlan { plan, drop } => self.edit_plan(at, by, plan, &drop),
        }
    }

    fn carry_out(&mut self, at: Moment, by: &str, intent: Intent) -> Answer {
        let Intent { summary, warnings, effects, drains } = intent;
        let made = effects.into_iter().filter_map(|effect| self.apply(at, by, effect)).last();
        self.run_phase::<BegunDrains>(at);
        Answer {
            plan: made.and_then(|id| self.shown_plan(id)),
            drains: drains.iter().filter_map(|node| self.drain_status(at, node).ok()).collect(),
            summary,
            warnings,
            follows: vec![],
            shares: vec![],
            dry_run: false,
        }
    }

    /// Makes one change. Returns the plan that it made, approved or rejected.
    fn apply(&mut self, at: Moment, by: &str, effect: Effect) -> Option<PlanId> {
        let Cluster {
            settings, record: own_record, members, keyspaces, plans, recovered, guard, outbox, ..
        } = self;
        match effect {
            Effect::Create(record, diff) => keyspaces.create(at, (record, diff), own_record, outbox),
            Effect::Drop(diff) => keyspaces.remove(at, diff, own_record, (members, plans), outbox),
            Effect::GiveUp(name) => recovered.drop_quarantined(&name, at.wall_ms, own_record, outbox),
            Effect::Keyspace(record) => {
                outbox.writes.push(Write::Keyspace(record.clone()));
                if let Some(keyspace) = keyspaces.get_mut(&record.keyspace.name) {
                    keyspace.take_record(at, record);
                }
            }
            Effect::Map(diff) => {
                if let Some(keyspace) = keyspaces.get_mut(&diff.keyspace) {
                    keyspace.apply_requested_map(at, (diff, None), settings, members, outbox);
                }
            }
            Effect::GoOnWith(shard, placement, diff) => {
                if let Some(keyspace) = keyspaces.get_mut(&diff.keyspace) {
                    keyspace.apply_requested_map(at, (diff, None), settings, members, outbox);
                    keyspace.note_chosen(shard, placement);
                }
            }
            Effect::GiveUpShard(shard, diff) => {
                if let Some(keyspace) = keyspaces.get_mut(&diff.keyspace) {
                    keyspace.apply_requested_map(at, (diff, Some(shard)), settings, members, outbox);
                }
            }
            Effect::Node(record) => {
                outbox.writes.push(Write::Node(record.clone()));
                if let Some(node) = members.get_mut(&record.spec.id) {
                    node.record = record;
                }
                keyspaces.plan_soon(at, 0);
            }
            Effect::DropNode(id) => members.remove(at, &id, keyspaces, guard, outbox),
            Effect::ReleaseBrake => {
                guard.release_brake(at, members.view(at.now, settings), own_record, keyspaces, outbox);
            }
            Effect::Submit(name, changes) => {
                let plan = self.plan_of(at, &name, Origin::Person(by.to_owned()), changes);
                let id = plan.id;
                self.plans.add(plan, &mut self.record, (&self.keyspaces, &self.settings), &mut self.outbox);
                return Some(id);
            }
            Effect::Decide(plan) => {
                let id = plan.id;
                plans.store(plan, keyspaces, outbox);
                return Some(id);
            }
            Effect::Replace { old, new } => {
                let id = new.id;
                own_record.next_plan = own_record.next_plan.max(id.next());
                outbox.writes.push(Write::Cluster(own_record.clone()));
                plans.store(old, keyspaces, outbox);
                plans.store(new, keyspaces, outbox);
                return Some(id);
            }
        }
        None
    }

    /// A plan that is kept, with the nodes of the replicas that it names.
    pub fn shown_plan(&self, id: PlanId) -> Option<ShownPlan> {
        let plan = self.plans.get(&id)?;
        let keyspace = self.keyspaces.get(&plan.keyspace);
        Some(ShownPlan::of(plan.clone(), keyspace.map(|keyspace| &keyspace.map)))
    }

    /// The keyspace of that name, or which one may have been meant.
    pub fn keyspace(&self, name: &KeyspaceName) -> Result<&KeyspaceState, AdminError> {
        if let Some((problem, way_out)) = self.quarantine(name) {
            return Err(AdminError::Refused { problem, way_out });
        }
        self.keyspaces.get(name).ok_or_else(|| AdminError::Unknown {
            what: "keyspace",
            name: name.to_string(),
            nearest: suggest::close(name.as_str(), self.keyspaces.by_name.keys().map(|k| k.as_str()))
                .map(Into::into),
        })
    }

    /// The node of that name, or which one may have been meant.
    pub(super) fn node(&self, id: &NodeId) -> Result<&NodeState, AdminError> {
        self.members.get(id).ok_or_else(|| AdminError::Unknown {
            what: "node",
            name: id.to_string(),
            nearest: suggest::close(id.as_str(), self.members.nodes.keys().map(|n| n.as_str()))
                .map(Into::into),
        })
    }
}

impl KeyspaceState {
    /// Puts a map in place that a person asked for, and has the planner look at the keyspace at once.
    fn apply_requested_map(
        &mut self,
        at: Moment,
        (diff, given_up): (MapDiff, Option<ShardId>),
        settings: &Settings,
        members: &mut Members,
        outbox: &mut Outbox,
    ) {
        self.apply_map(at, (diff, given_up), settings, members, outbox);
        self.planning.plan_due = at.now;
    }

    /// The shard of that id.
    fn shard(&self, id: ShardId) -> Result<&Shard, AdminError> {
        let keyspace = || self.record.keyspace.name.clone();
        self.map.shard(id).ok_or_else(|| AdminError::NoShard { keyspace: keyspace(), shard: id })
    }

    /// The shard of that id if it serves.
    fn serving(&self, id: ShardId) -> Result<&Shard, AdminError> {
        let shard = self.shard(id)?;
        if shard.is_serving() {
            return Ok(shard);
        }
        Err(AdminError::Conflict {
            problem: format!("shard {id} of keyspace {} is {}", self.record.keyspace.name, shard.stage()),
            way_out: "wait until its split, merge or removal has ended, and look it up again".into(),
        })
    }
}

#[cfg(test)]
mod tests;
