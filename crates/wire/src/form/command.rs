//! Commands over gRPC.
//!
//! They become the JSON forms first, and those become core's: there is one place that knows which names, keys and
//! words can be, and so an error has the same words in both APIs.

use crate::Malformed;
use crate::json;
use crate::malformed::{Inside, none_if_empty};
use crate::proto::{self, command_request, create_keyspace, split_shard};

/// A message that must be there.
fn required<T>(value: Option<T>, field: &str) -> Result<T, Malformed> {
    value.ok_or_else(|| Malformed::new(field, "is missing"))
}

fn keys(keys: Vec<Vec<u8>>) -> Vec<json::KeyText> {
    keys.into_iter().map(json::KeyText::from).collect()
}

impl From<proto::Constraint> for json::Constraint {
    fn from(form: proto::Constraint) -> Self {
        let proto::Constraint { pinned, excluded, labels } = form;
        json::Constraint { pinned, excluded, labels }
    }
}

impl From<proto::Throttle> for json::Throttle {
    fn from(form: proto::Throttle) -> Self {
        (&partage_core::keyspace::Throttle::from(form)).into()
    }
}

impl From<proto::Resharding> for json::Resharding {
    fn from(form: proto::Resharding) -> Self {
        (&partage_core::keyspace::Resharding::from(form)).into()
    }
}

impl TryFrom<proto::Sharding> for json::Sharding {
    type Error = Malformed;
    fn try_from(form: proto::Sharding) -> Result<Self, Malformed> {
        use proto::sharding::Kind;
        Ok(match required(form.kind, "type")? {
            Kind::KeyRange(_) => json::Sharding::KeyRange {},
            Kind::HashRange(by) => json::Sharding::HashRange { hash: by.hash },
            Kind::Fixed(by) => json::Sharding::Fixed { hash: by.hash, shards: by.shards },
            Kind::Named(_) => json::Sharding::Named {},
        })
    }
}

impl TryFrom<proto::Keyspace> for json::Keyspace {
    type Error = Malformed;
    fn try_from(form: proto::Keyspace) -> Result<Self, Malformed> {
        let partition_key = form.partition_key.map(partage_core::keyspace::sharding::PartitionKey::try_from);
        let partition_key = partition_key.transpose().inside("partition_key")?;
        Ok(json::Keyspace {
            name: form.name,
            kind: none_if_empty(form.kind),
            sharding: required(form.sharding, "sharding")?.try_into().inside("sharding")?,
            partition_key: partition_key.map(Into::into),
            ownership: none_if_empty(form.ownership),
            replicas: form.replicas,
            policy: none_if_empty(form.policy),
            mode: none_if_empty(form.mode),
            spread: none_if_empty(form.spread),
            constraint: form.constraint.unwrap_or_default().into(),
            throttle: form.throttle.unwrap_or_default().into(),
            resharding: form.resharding.unwrap_or_default().into(),
            dataset_replication: form.dataset_replication,
            durable: form.durable,
        })
    }
}

fn presplit(form: Option<create_keyspace::Presplit>) -> json::Presplit {
    use create_keyspace::Presplit;
    match form {
        None => json::Presplit::None,
        Some(Presplit::Points(by)) => json::Presplit::Points { keys: keys(by.keys) },
        Some(Presplit::SampleKeys(by)) => {
            json::Presplit::SampleKeys { keys: keys(by.keys), weights: by.weights, shards: by.shards }
        }
        Some(Presplit::HashRanges(by)) => json::Presplit::HashRanges { shards: by.shards },
        Some(Presplit::Names(by)) => json::Presplit::Names { names: by.names },
    }
}

fn split_at(form: Option<split_shard::At>) -> json::SplitAt {
    match form {
        None => json::SplitAt::Middle,
        Some(split_shard::At::Keys(by)) => json::SplitAt::Keys { keys: keys(by.keys) },
        Some(split_shard::At::Points(by)) => {
            json::SplitAt::Points { points: by.points.into_iter().map(Into::into).collect() }
        }
    }
}

fn changes(form: proto::KeyspaceChanges) -> json::KeyspaceChanges {
    json::KeyspaceChanges {
        replicas: form.replicas,
        policy: form.policy,
        mode: form.mode,
        spread: form.spread,
        constraint: form.constraint.map(Into::into),
        throttle: form.throttle.map(Into::into),
        resharding: form.resharding.map(Into::into),
        shards: form.shards,
        dataset_replication: form.dataset_replication,
    }
}

impl TryFrom<proto::CommandRequest> for json::CommandRequest {
    type Error = Malformed;
    fn try_from(form: proto::CommandRequest) -> Result<Self, Malformed> {
        let command = required(form.command, "do")?;
        Ok(json::CommandRequest { command: command.try_into().inside("do")?, dry_run: form.dry_run })
    }
}

#[expect(clippy::too_many_lines, reason = "one exhaustive match, a line or two for each command")]
impl TryFrom<command_request::Command> for json::Command {
    type Error = Malformed;
    fn try_from(form: command_request::Command) -> Result<Self, Malformed> {
        use command_request::Command as From;
        use json::Command as To;
        Ok(match form {
            From::CreateKeyspace(proto::CreateKeyspace { keyspace, presplit: first, ahead }) => {
                To::CreateKeyspace {
                    keyspace: required(keyspace, "keyspace")?.try_into().inside("keyspace")?,
                    presplit: presplit(first),
                    ahead,
                }
            }
            From::DeleteKeyspace(proto::DeleteKeyspace { keyspace }) => To::DeleteKeyspace { keyspace },
            From::UpdateKeyspace(form) => To::UpdateKeyspace {
                keyspace: form.keyspace,
                changes: changes(form.changes.unwrap_or_default()),
                ahead: form.ahead,
            },
            From::RegisterPartitions(proto::RegisterPartitions { keyspace, partitions, replicas, ahead }) => {
                To::RegisterPartitions { keyspace, partitions, replicas, ahead }
            }
            From::UnregisterPartitions(proto::UnregisterPartitions { keyspace, partitions }) => {
                To::UnregisterPartitions { keyspace, partitions }
            }
            From::DrainNode(proto::DrainNode { node, reason, max_down }) => {
                To::DrainNode { node, reason, max_down }
            }
            From::DrainZone(proto::DrainZone { zone, reason, max_down }) => {
                To::DrainZone { zone, reason, max_down }
            }
            From::UndrainNode(proto::UndrainNode { node }) => To::UndrainNode { node },
            From::UndrainZone(proto::UndrainZone { zone }) => To::UndrainZone { zone },
            From::RemoveNode(proto::RemoveNode { node }) => To::RemoveNode { node },
            From::MoveShard(proto::MoveShard { keyspace, shard, from, to }) => {
                To::MoveShard { keyspace, shard, from, to }
            }
            From::TransferLeader(proto::TransferLeader { keyspace, shard, to }) => {
                To::TransferLeader { keyspace, shard, to }
            }
            From::AddReplica(proto::AddReplica { keyspace, shard, node }) => {
                To::AddReplica { keyspace, shard, node }
            }
            From::RemoveReplica(proto::RemoveReplica { keyspace, shard, node }) => {
                To::RemoveReplica { keyspace, shard, node }
            }
            From::SplitShard(proto::SplitShard { keyspace, shard, at }) => {
                To::SplitShard { keyspace, shard, at: split_at(at) }
            }
            From::MergeShards(proto::MergeShards { keyspace, left, right }) => {
                To::MergeShards { keyspace, left, right }
            }
            From::IsolateKey(proto::IsolateKey { keyspace, key }) => {
                To::IsolateKey { keyspace, key: key.into() }
            }
            From::SetShardReplicas(proto::SetShardReplicas { keyspace, shard, replicas, ahead }) => {
                To::SetShardReplicas { keyspace, shard, replicas, ahead }
            }
            From::PinShard(proto::PinShard { keyspace, shard, constraint, ahead }) => {
                To::PinShard { keyspace, shard, constraint: constraint.unwrap_or_default().into(), ahead }
            }
            From::ReleaseShard(proto::ReleaseShard { keyspace, shard }) => {
                To::ReleaseShard { keyspace, shard }
            }
            From::ForceJoinShard(proto::ForceJoinShard { keyspace, shard, node, generation }) => {
                To::ForceJoinShard { keyspace, shard, node, generation }
            }
            From::RecreateShard(proto::RecreateShard { keyspace, shard, generation }) => {
                To::RecreateShard { keyspace, shard, generation }
            }
            From::ReleaseBrake(proto::ReleaseBrake {}) => To::ReleaseBrake {},
            From::ApprovePlan(proto::ApprovePlan { plan }) => To::ApprovePlan { plan },
            From::RejectPlan(proto::RejectPlan { plan }) => To::RejectPlan { plan },
            From::EditPlan(form) => edit_plan(form),
        })
    }
}

fn edit_plan(proto::EditPlan { plan, drop }: proto::EditPlan) -> json::Command {
    // Beyond any plan there is, where it does not fit.
    let drop = drop.into_iter().map(|at| usize::try_from(at).unwrap_or(usize::MAX)).collect();
    json::Command::EditPlan { plan, drop }
}
