//! Single shards and their replicas: where a person wants them to be.

use super::{AdminError, Effect, Intent, partitions::check_replicas};
use crate::base::count::counted;
use crate::base::id::ShardId;
use crate::base::name::{KeyspaceName, NodeId, Zone};
use crate::cluster::{Cluster, KeyspaceState, Moment, NodeState, ShardRule};
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Replica, Role, Shard};
use crate::keyspace::{Constraint, KeyspaceError, Mode};
use crate::plan::{Change, Origin, Planned};

impl Cluster {
    pub(super) fn move_shard(
        &self,
        at: Moment,
        by: &str,
        name: &KeyspaceName,
        id: ShardId,
        (from, to): (&NodeId, &NodeId),
    ) -> Result<Intent, AdminError> {
        let keyspace = self.keyspace(name)?;
        let shard = keyspace.serving(id)?;
        let replica = staying_on(shard, from)?;
        if let Some(successor) = shard.replicas.iter().find(|r| r.replaces() == Some(replica.placement)) {
            return Err(AdminError::Conflict {
                problem: format!("shard {id} is moving from {from} to {} already", successor.node),
                way_out: "wait until that has ended".into(),
            });
        }
        self.check_target(at, keyspace, shard, to)?;
        let summary = format!("move shard {id} of keyspace {name} from {from} to {to}");
        let change = Change::Move { shard: id, from: replica.placement, to: to.clone() };
        let mut warnings = self.check_spread(keyspace, shard, Some(replica), to)?;
        warnings.extend(keyspace.may_move_on(shard, from, to));
        self.planned(at, by, name, Intent { warnings, ..Intent::new(summary, vec![]) }, vec![change])
    }

    pub(super) fn transfer_leader(
        &self,
        at: Moment,
        by: &str,
        name: &KeyspaceName,
        id: ShardId,
        to: &NodeId,
    ) -> Result<Intent, AdminError> {
        let shard = self.keyspace(name)?.serving(id)?;
        self.node(to)?;
        let replica = staying_on(shard, to)?;
        if replica.state != ReplicaState::Live {
            return Err(AdminError::Conflict {
                problem: format!("the replica of shard {id} on {to} is in {}", replica.state),
                way_out: "only a replica in Live can lead: wait until it is".into(),
            });
        }
        if replica.role == Role::Leader {
            return Ok(Intent::new(format!("{to} leads shard {id} of keyspace {name} already"), vec![]));
        }
        if replica.is_read_replica() {
            return Err(AdminError::Conflict {
                problem: format!("the replica of shard {id} on {to} is a read replica"),
                way_out: "only a member of the in-sync set can lead: choose one, see `partage shard show`"
                    .into(),
            });
        }
        let summary = format!("let {to} lead shard {id} of keyspace {name}");
        let change = Change::Lead { shard: id, placement: replica.placement };
        self.planned(at, by, name, Intent::new(summary, vec![]), vec![change])
    }

    pub(super) fn add_replica(
        &self,
        at: Moment,
        by: &str,
        name: &KeyspaceName,
        id: ShardId,
        node: &NodeId,
    ) -> Result<Intent, AdminError> {
        let keyspace = self.keyspace(name)?;
        let shard = keyspace.serving(id)?;
        self.check_target(at, keyspace, shard, node)?;
        let mut intent =
            Intent::new(format!("add a replica of shard {id} of keyspace {name} on {node}"), vec![]);
        let (have, want) = (shard.staying().count() as u32, keyspace.wanted_replicas(id));
        if have >= want {
            intent.warnings.push(format!(
                "shard {id} wants {} and has {have}: unless its number is raised, one of them is \
                 taken away again",
                counted(want, "replica")
            ));
        }
        intent.warnings.extend(self.check_spread(keyspace, shard, None, node)?);
        let change = Change::Add { shard: id, node: node.clone() };
        self.planned(at, by, name, intent, vec![change])
    }

    pub(super) fn remove_replica(
        &self,
        at: Moment,
        by: &str,
        name: &KeyspaceName,
        id: ShardId,
        node: &NodeId,
    ) -> Result<Intent, AdminError> {
        let keyspace = self.keyspace(name)?;
        let shard = keyspace.serving(id)?;
        let replica = staying_on(shard, node)?;
        let live_elsewhere = shard.live().any(|r| r.placement != replica.placement);
        if !live_elsewhere {
            return Err(AdminError::Refused {
                problem: format!("the replica on {node} is the last one of shard {id} that serves"),
                way_out: "move it, or add a replica elsewhere and wait until it is live".into(),
            });
        }
        let (in_sync, least) = (shard.in_sync().count(), keyspace.record.keyspace.min_in_sync as usize);
        if replica.in_sync && in_sync <= least {
            return Err(AdminError::Refused {
                problem: format!(
                    "without the replica on {node} shard {id} would have {} in sync, and keyspace {name} has min_in_sync \
                     {least}: no write to it could succeed",
                    counted(in_sync as u32 - 1, "replica")
                ),
                way_out: "add a replica elsewhere and wait until it is in sync, or move this one".into(),
            });
        }
        let mut intent =
            Intent::new(format!("remove the replica of shard {id} of keyspace {name} from {node}"), vec![]);
        let (have, want) = (shard.staying().count() as u32, keyspace.wanted_replicas(id));
        if have <= want {
            intent.warnings.push(format!(
                "shard {id} wants {}: unless its number is lowered, one is placed again",
                counted(want, "replica")
            ));
        }
        let change = Change::Remove { shard: id, placement: replica.placement };
        self.planned(at, by, name, intent, vec![change])
    }

    pub(super) fn set_shard_replicas(
        &self,
        at: Moment,
        name: &KeyspaceName,
        id: ShardId,
        replicas: Option<u32>,
        ahead: bool,
    ) -> Result<Intent, AdminError> {
        let keyspace = self.keyspace(name)?;
        keyspace.serving(id)?;
        check_replicas(&keyspace.record.keyspace, replicas)?;
        let mut record = keyspace.record.clone();
        let rule = record.rules.entry(id).or_default();
        rule.replicas = replicas;
        let want = replicas.unwrap_or(keyspace.record.keyspace.replicas);
        let summary = format!("shard {id} of keyspace {name} wants {}", counted(want, "replica"));
        if *rule == ShardRule::default() {
            record.rules.remove(&id);
        }
        let warnings = self.room_for_shard(at, &keyspace.record, &record, id, ahead)?.into_iter().collect();
        Ok(Intent { warnings, ..Intent::new(summary, vec![Effect::Keyspace(record)]) })
    }

    pub(super) fn pin_shard(
        &self,
        at: Moment,
        name: &KeyspaceName,
        id: ShardId,
        constraint: Constraint,
        ahead: bool,
    ) -> Result<Intent, AdminError> {
        let keyspace = self.keyspace(name)?;
        keyspace.serving(id)?;
        if let Some(node) = constraint.pinned.intersection(&constraint.excluded).next() {
            let (keyspace, node) = (name.clone(), node.clone());
            return Err(KeyspaceError::PinnedAndExcluded { keyspace, node }.into());
        }
        let summary = match constraint == Constraint::default() {
            true => format!("shard {id} of keyspace {name} may be wherever its keyspace may"),
            false => format!("shard {id} of keyspace {name} is pinned"),
        };
        let mut record = keyspace.record.clone();
        let rule = record.rules.entry(id).or_default();
        let mut warnings = Vec::from_iter(self.check_pins(&constraint, &rule.constraint, ahead)?);
        rule.constraint = constraint;
        if *rule == ShardRule::default() {
            record.rules.remove(&id);
        }
        warnings.extend(self.room_for_shard(at, &keyspace.record, &record, id, ahead)?);
        Ok(Intent { warnings, ..Intent::new(summary, vec![Effect::Keyspace(record)]) })
    }

    pub(super) fn release_shard(&self, name: &KeyspaceName, id: ShardId) -> Result<Intent, AdminError> {
        let keyspace = self.keyspace(name)?;
        keyspace.shard(id)?;
        let mut record = keyspace.record.clone();
        let rule = record.rules.entry(id).or_default();
        if rule.set_aside.take().is_none() && !keyspace.suspicion.held_back.contains_key(&id) {
            return Err(AdminError::Refused {
                problem: format!("shard {id} of keyspace {name} is neither set aside nor held back"),
                way_out: "there is nothing to release".into(),
            });
        }
        // Without deaths it is not held back any more, either.
        rule.deaths = 0;
        if *rule == ShardRule::default() {
            record.rules.remove(&id);
        }
        let summary = format!("shard {id} of keyspace {name} is placed again");
        Ok(Intent::new(summary, vec![Effect::Keyspace(record)]))
    }

    pub(super) fn release_brake(&self) -> Result<Intent, AdminError> {
        match self.brake() {
            Some(why) => Ok(Intent::new(format!("release the brake ({why})"), vec![Effect::ReleaseBrake])),
            None => Err(AdminError::Refused {
                problem: "the brake is not on".into(),
                way_out: "there is nothing to release".into(),
            }),
        }
    }

    /// Adds the plan to an intent, or refuses where its check would.
    pub(super) fn planned(
        &self,
        at: Moment,
        by: &str,
        name: &KeyspaceName,
        mut intent: Intent,
        changes: Vec<Change>,
    ) -> Result<Intent, AdminError> {
        let reason = format!("{by} asked for it");
        let changes: Vec<_> = changes.into_iter().map(|change| Planned::new(change, &reason)).collect();
        if let Some(problem) = self.objection(at, name, &Origin::Person(by.to_owned()), &changes) {
            let way_out = "look at the shard (partage shard list) and try again".into();
            return Err(AdminError::Refused { problem, way_out });
        }
        intent.effects.push(Effect::Submit(name.clone(), changes));
        Ok(intent)
    }

    /// Refuses a node that may not take a replica of the shard.
    fn check_target(
        &self,
        at: Moment,
        keyspace: &KeyspaceState,
        shard: &Shard,
        id: &NodeId,
    ) -> Result<(), AdminError> {
        let node = self.node(id)?;
        if let Some(why) = self.closed(at, id) {
            return Err(AdminError::Refused {
                problem: format!("nothing new is placed on node {id}: {why}"),
                way_out: "choose another node, or try again when `partage node list` shows it as up".into(),
            });
        }
        if shard.bars(id, None) {
            return Err(AdminError::ReplicaExists { shard: shard.id, node: id.clone() });
        }
        if let Some(why) = keyspace.record.rules.get(&shard.id).and_then(|rule| rule.set_aside.as_ref()) {
            return Err(AdminError::Refused {
                problem: format!("shard {} is set aside: {why}", shard.id),
                way_out: "release it first".into(),
            });
        }
        let (kind, kinds) = (keyspace.record.keyspace.kind, &node.record.spec.kinds);
        if !kinds.contains(&kind) {
            let served: Vec<_> = kinds.iter().map(ToString::to_string).collect();
            return Err(AdminError::Refused {
                problem: format!(
                    "node {id} serves keyspaces of kind {}, and not of {kind}",
                    served.join(", ")
                ),
                way_out: format!("choose a node that serves {kind}"),
            });
        }
        if !keyspace.allows(shard.id, node) {
            return Err(AdminError::Refused {
                problem: format!("pins, labels or exclusions keep shard {} away from node {id}", shard.id),
                way_out: "choose another node, or change the constraint of the shard or its keyspace".into(),
            });
        }
        Ok(())
    }

    /// The nodes that may take one more replica of the shard now, when `leaves` goes.
    pub(in crate::cluster) fn candidates<'a>(
        &'a self,
        at: Moment,
        keyspace: &'a KeyspaceState,
        shard: &'a Shard,
        leaves: Option<&'a Replica>,
    ) -> impl Iterator<Item = &'a NodeState> {
        let strict = keyspace.record.keyspace.spread.is_strict();
        self.members.nodes.values().filter(move |node| {
            let id = &node.record.spec.id;
            node.accepts(at.now, &self.settings)
                && keyspace.allows(shard.id, node)
                && !shard.bars(id, leaves.map(|r| r.placement))
                && !(strict && self.crowded(keyspace, shard, leaves, id).is_some())
        })
    }

    /// Another replica that would be lost together with one on `to`, and the domain that they would share.
    fn crowded<'a>(
        &'a self,
        keyspace: &KeyspaceState,
        shard: &'a Shard,
        leaves: Option<&Replica>,
        to: &NodeId,
    ) -> Option<(&'a Zone, &'a NodeId)> {
        let spread = keyspace.record.keyspace.spread;
        let domain = |node: &NodeId| spread.domain(&self.members.get(node)?.record.spec);
        let shared = domain(to)?;
        let stays = |r: &&Replica| leaves.is_none_or(|leaves| leaves.placement != r.placement);
        let other = shard.staying().filter(stays).find(|r| domain(&r.node) == Some(shared))?;
        Some((shared.1, &other.node))
    }

    /// A warning where a replica would be in the domain of another one, or a refusal where that must not be.
    fn check_spread(
        &self,
        keyspace: &KeyspaceState,
        shard: &Shard,
        leaves: Option<&Replica>,
        to: &NodeId,
    ) -> Result<Vec<String>, AdminError> {
        let Some((domain, other)) = self.crowded(keyspace, shard, leaves, to) else { return Ok(vec![]) };
        let spread = keyspace.record.keyspace.spread;
        let problem = format!("{to} is in {domain}, as is {other}, which has a replica already");
        if !spread.is_strict() {
            return Ok(vec![problem]);
        }
        let way_out = format!("choose a node elsewhere, or make the spread less strict than {spread}");
        Err(AdminError::Refused { problem, way_out })
    }
}

impl KeyspaceState {
    /// Replicas that a shard is to have.
    pub fn wanted_replicas(&self, id: ShardId) -> u32 {
        self.record.rules.get(&id).and_then(|rule| rule.replicas).unwrap_or(self.record.keyspace.replicas)
    }

    /// A warning where the planner may undo a move by hand: it knows no wishes but constraints.
    fn may_move_on(&self, shard: &Shard, from: &NodeId, to: &NodeId) -> Option<String> {
        let (id, name) = (shard.id, &self.record.keyspace.name);
        let pinned = self.record.rules.get(&id).map(|rule| &rule.constraint.pinned);
        let stays = pinned.is_some_and(|on| on.contains(to) && on.len() <= self.wanted_replicas(id) as usize);
        let others = shard.staying().map(|r| &r.node).filter(|node| *node != from);
        let nodes: Vec<_> = others.chain([to]).map(NodeId::as_str).collect();
        (self.record.keyspace.mode == Mode::Automatic && !stays).then(|| {
            format!(
                "keyspace {name} is in mode automatic, so a later rebalance may move shard {id} again: to keep it \
                 there, run `partage shard pin {name} {id} --pin {}`",
                nodes.join(",")
            )
        })
    }

    /// Whether the constraints of keyspace and shard let it be on that node.
    pub(in crate::cluster) fn allows(&self, id: ShardId, node: &NodeState) -> bool {
        let spec = &node.record.spec;
        self.record.keyspace.allows(spec)
            && self.record.rules.get(&id).is_none_or(|rule| rule.constraint.allows(spec))
    }
}

/// The replica of the shard that serves, or prepares to, on that node.
fn staying_on<'a>(shard: &'a Shard, node: &NodeId) -> Result<&'a Replica, AdminError> {
    shard.staying().find(|r| r.node == *node).ok_or_else(|| AdminError::NoReplica {
        shard: shard.id,
        node: node.clone(),
        on: shard.staying().map(|r| r.node.clone()).collect(),
    })
}
