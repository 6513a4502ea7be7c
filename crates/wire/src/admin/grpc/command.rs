//! Commands over gRPC, straight to core's.

use crate::Malformed;
use crate::malformed::{At, Inside, each, name, names, optional, required, sentence, word};
use crate::proto::{self, command_request, create_keyspace, split_shard};
use partage_core::base::id::{PlanId, ShardId};
use partage_core::cluster::admin::{Command, KeyspaceChanges, Presplit, SplitAt};
use partage_core::keyspace::key::Key;

fn keys(keys: Vec<Vec<u8>>) -> Result<Vec<Key>, Malformed> {
    each(keys, "keys", |key| Key::new(&key).at("key"))
}

/// Places of changes in a plan: beyond any plan there is, where one does not fit.
fn places(drop: Vec<u64>) -> Vec<usize> {
    drop.into_iter().map(|at| usize::try_from(at).unwrap_or(usize::MAX)).collect()
}

impl TryFrom<create_keyspace::Presplit> for Presplit {
    type Error = Malformed;
    fn try_from(form: create_keyspace::Presplit) -> Result<Self, Malformed> {
        use create_keyspace::Presplit as From;
        Ok(match form {
            From::Points(by) => Presplit::Points(keys(by.keys)?),
            From::SampleKeys(by) => {
                Presplit::SampleKeys { keys: keys(by.keys)?, weights: by.weights, shards: by.shards }
            }
            From::HashRanges(by) => Presplit::HashRanges(by.shards),
            From::Names(by) => Presplit::Names(names(&by.names, "names")?),
        })
    }
}

impl TryFrom<split_shard::At> for SplitAt {
    type Error = Malformed;
    fn try_from(form: split_shard::At) -> Result<Self, Malformed> {
        Ok(match form {
            split_shard::At::Keys(by) => SplitAt::Keys(keys(by.keys)?),
            split_shard::At::Points(by) => SplitAt::Points(by.points),
        })
    }
}

impl TryFrom<proto::KeyspaceChanges> for KeyspaceChanges {
    type Error = Malformed;
    fn try_from(form: proto::KeyspaceChanges) -> Result<Self, Malformed> {
        Ok(KeyspaceChanges {
            replicas: form.replicas,
            policy: form.policy,
            mode: word(form.mode, "mode")?,
            spread: word(form.spread, "spread")?,
            constraint: optional(form.constraint, "constraint")?,
            throttle: form.throttle.map(Into::into),
            resharding: form.resharding.map(Into::into),
            shards: form.shards,
            dataset_replication: form.dataset_replication,
        })
    }
}

/// What the request asks for; whether it is a dry run, its field `dry_run` says.
impl TryFrom<proto::CommandRequest> for Command {
    type Error = Malformed;
    fn try_from(form: proto::CommandRequest) -> Result<Self, Malformed> {
        required(form.command, "do")
    }
}

#[expect(clippy::too_many_lines, reason = "one exhaustive match, a line or two for each command")]
impl TryFrom<command_request::Command> for Command {
    type Error = Malformed;
    fn try_from(form: command_request::Command) -> Result<Self, Malformed> {
        use command_request::Command as From;
        let in_keyspace = |text: &str| name(text, "keyspace");
        let at_node = |text: &str| name(text, "node");
        Ok(match form {
            From::CreateKeyspace(form) => Command::CreateKeyspace {
                keyspace: Box::new(required(form.keyspace, "keyspace")?),
                presplit: optional(form.presplit, "presplit")?.unwrap_or(Presplit::None),
                ahead: form.ahead,
            },
            From::DeleteKeyspace(form) => Command::DeleteKeyspace { keyspace: in_keyspace(&form.keyspace)? },
            From::UpdateKeyspace(form) => Command::UpdateKeyspace {
                keyspace: in_keyspace(&form.keyspace)?,
                changes: Box::new(form.changes.unwrap_or_default().try_into().inside("changes")?),
                ahead: form.ahead,
            },
            From::RegisterPartitions(form) => Command::RegisterPartitions {
                keyspace: in_keyspace(&form.keyspace)?,
                partitions: names(&form.partitions, "partitions")?,
                replicas: form.replicas,
                ahead: form.ahead,
            },
            From::UnregisterPartitions(form) => Command::UnregisterPartitions {
                keyspace: in_keyspace(&form.keyspace)?,
                partitions: names(&form.partitions, "partitions")?,
            },
            From::DrainNode(proto::DrainNode { node, reason, max_down }) => {
                Command::DrainNode { node: at_node(&node)?, reason: sentence(reason), max_down }
            }
            From::DrainZone(proto::DrainZone { zone, reason, max_down }) => {
                Command::DrainZone { zone: name(&zone, "zone")?, reason: sentence(reason), max_down }
            }
            From::UndrainNode(form) => Command::UndrainNode { node: at_node(&form.node)? },
            From::UndrainZone(form) => Command::UndrainZone { zone: name(&form.zone, "zone")? },
            From::RemoveNode(form) => Command::RemoveNode { node: at_node(&form.node)? },
            From::MoveShard(form) => Command::MoveShard {
                keyspace: in_keyspace(&form.keyspace)?,
                shard: ShardId(form.shard),
                from: name(&form.from, "from")?,
                to: name(&form.to, "to")?,
            },
            From::TransferLeader(form) => Command::TransferLeader {
                keyspace: in_keyspace(&form.keyspace)?,
                shard: ShardId(form.shard),
                to: name(&form.to, "to")?,
            },
            From::AddReplica(form) => Command::AddReplica {
                keyspace: in_keyspace(&form.keyspace)?,
                shard: ShardId(form.shard),
                node: at_node(&form.node)?,
            },
            From::RemoveReplica(form) => Command::RemoveReplica {
                keyspace: in_keyspace(&form.keyspace)?,
                shard: ShardId(form.shard),
                node: at_node(&form.node)?,
            },
            From::SplitShard(form) => Command::SplitShard {
                keyspace: in_keyspace(&form.keyspace)?,
                shard: ShardId(form.shard),
                at: optional(form.at, "at")?.unwrap_or(SplitAt::Middle),
            },
            From::MergeShards(proto::MergeShards { keyspace, left, right }) => {
                let keyspace = in_keyspace(&keyspace)?;
                Command::MergeShards { keyspace, left: ShardId(left), right: ShardId(right) }
            }
            From::IsolateKey(proto::IsolateKey { keyspace, key }) => {
                Command::IsolateKey { keyspace: in_keyspace(&keyspace)?, key: Key::new(&key).at("key")? }
            }
            From::SetShardReplicas(proto::SetShardReplicas { keyspace, shard, replicas, ahead }) => {
                let keyspace = in_keyspace(&keyspace)?;
                Command::SetShardReplicas { keyspace, shard: ShardId(shard), replicas, ahead }
            }
            From::PinShard(form) => Command::PinShard {
                keyspace: in_keyspace(&form.keyspace)?,
                shard: ShardId(form.shard),
                constraint: form.constraint.unwrap_or_default().try_into().inside("constraint")?,
                ahead: form.ahead,
            },
            From::ReleaseShard(form) => {
                Command::ReleaseShard { keyspace: in_keyspace(&form.keyspace)?, shard: ShardId(form.shard) }
            }
            From::ForceJoinShard(form) => Command::ForceJoinShard {
                keyspace: in_keyspace(&form.keyspace)?,
                shard: ShardId(form.shard),
                node: at_node(&form.node)?,
                generation: form.generation,
            },
            From::RecreateShard(form) => Command::RecreateShard {
                keyspace: in_keyspace(&form.keyspace)?,
                shard: ShardId(form.shard),
                generation: form.generation,
            },
            From::ReleaseBrake(proto::ReleaseBrake {}) => Command::ReleaseBrake,
            From::ApprovePlan(form) => Command::ApprovePlan { plan: PlanId(form.plan) },
            From::RejectPlan(form) => Command::RejectPlan { plan: PlanId(form.plan) },
            From::EditPlan(form) => Command::EditPlan { plan: PlanId(form.plan), drop: places(form.drop) },
        })
    }
}
