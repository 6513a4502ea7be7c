//! Conversions of administration that JSON and protobuf share: commands, how a cluster is, and the words of plans.

use crate::Malformed;
use crate::admin::json::status::Quarantined;
use crate::conversion::{Field, OptionalName, from_forms, into_forms};
use crate::json::{self, ChangeProgress, PlanOrigin, PlanStatus, ShardStage, strings};
use crate::malformed::{At, Inside, name, names, optional, required, sentence, word};
use crate::proto::{self, cluster_status, command_request, shard_row};
use partage_core::base::id::{PlanId, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::cluster::admin::{Answer, Command, KeyspaceChanges, NodeShare, Presplit, SplitAt};
use partage_core::cluster::moves::MoveRow;
use partage_core::cluster::status::{BegunEmpty, NodeRow, ShardCounts, ShardRow, Since, Summary, Unplaced};
use partage_core::cluster::{Problem, ShardRule};
use partage_core::keyspace::key::Key;
use partage_core::plan::{Basis, Origin, Progress, Status};

from_forms!(form: [json::KeyspaceChanges, proto::KeyspaceChanges] => KeyspaceChanges {
    replicas: form.replicas,
    policy: form.policy,
    mode: word(form.mode, "mode")?,
    spread: word(form.spread, "spread")?,
    constraint: optional(form.constraint, "constraint")?,
    throttle: form.throttle.map(Into::into),
    resharding: form.resharding.map(Into::into),
    shards: form.shards,
    dataset_replication: form.dataset_replication,
});

/// Reads the commands of both languages. A command of `both` has the same fields in both; any other one has an arm for `json`
/// and one for `proto`.
macro_rules! commands {
    (
        both { $($command:ident { $($field:ident $(: $read:expr)?),* $(,)? })+ }
        json { $($json:tt)* }
        proto { $($proto:tt)* }
    ) => {
        impl TryFrom<json::Command> for Command {
            type Error = Malformed;
            fn try_from(form: json::Command) -> Result<Self, Malformed> {
                Ok(match form {
                    $(json::Command::$command { $($field),* } => Command::$command { $($field $(: $read)?),* },)+
                    $($json)*
                })
            }
        }

        impl TryFrom<command_request::Command> for Command {
            type Error = Malformed;
            fn try_from(form: command_request::Command) -> Result<Self, Malformed> {
                Ok(match form {
                    $(command_request::Command::$command(proto::$command { $($field),* }) => {
                        Command::$command { $($field $(: $read)?),* }
                    })+
                    $($proto)*
                })
            }
        }
    };
}

commands! {
    both {
        DeleteKeyspace { keyspace: name(&keyspace, "keyspace")? }
        RegisterPartitions {
            keyspace: name(&keyspace, "keyspace")?,
            partitions: names(&partitions, "partitions")?,
            replicas,
            ahead,
        }
        UnregisterPartitions {
            keyspace: name(&keyspace, "keyspace")?,
            partitions: names(&partitions, "partitions")?,
        }
        DrainNode { node: name(&node, "node")?, reason: sentence(reason), max_down }
        DrainZone { zone: name(&zone, "zone")?, reason: sentence(reason), max_down }
        UndrainNode { node: name(&node, "node")? }
        UndrainZone { zone: name(&zone, "zone")? }
        RemoveNode { node: name(&node, "node")? }
        MoveShard {
            keyspace: name(&keyspace, "keyspace")?,
            shard: ShardId(shard),
            from: name(&from, "from")?,
            to: name(&to, "to")?,
        }
        TransferLeader { keyspace: name(&keyspace, "keyspace")?, shard: ShardId(shard), to: name(&to, "to")? }
        AddReplica {
            keyspace: name(&keyspace, "keyspace")?,
            shard: ShardId(shard),
            node: name(&node, "node")?,
        }
        RemoveReplica {
            keyspace: name(&keyspace, "keyspace")?,
            shard: ShardId(shard),
            node: name(&node, "node")?,
        }
        MergeShards { keyspace: name(&keyspace, "keyspace")?, left: ShardId(left), right: ShardId(right) }
        SetShardReplicas { keyspace: name(&keyspace, "keyspace")?, shard: ShardId(shard), replicas, ahead }
        ReleaseShard { keyspace: name(&keyspace, "keyspace")?, shard: ShardId(shard) }
        ForceJoinShard {
            keyspace: name(&keyspace, "keyspace")?,
            shard: ShardId(shard),
            node: name(&node, "node")?,
            generation,
        }
        RecreateShard { keyspace: name(&keyspace, "keyspace")?, shard: ShardId(shard), generation }
        ReleaseBrake {}
        ApprovePlan { plan: PlanId(plan) }
        RejectPlan { plan: PlanId(plan) }
    }
    json {
        json::Command::CreateKeyspace { keyspace, presplit, ahead } => Command::CreateKeyspace {
            keyspace: Box::new(keyspace.try_into().inside("keyspace")?),
            presplit: presplit.try_into().inside("presplit")?,
            ahead,
        },
        json::Command::UpdateKeyspace { keyspace, changes, ahead } => Command::UpdateKeyspace {
            keyspace: name(&keyspace, "keyspace")?,
            changes: Box::new(changes.try_into().inside("changes")?),
            ahead,
        },
        json::Command::SplitShard { keyspace, shard, at } => Command::SplitShard {
            keyspace: name(&keyspace, "keyspace")?,
            shard: ShardId(shard),
            at: at.try_into().inside("at")?,
        },
        json::Command::IsolateKey { keyspace, key } => {
            Command::IsolateKey { keyspace: name(&keyspace, "keyspace")?, key: key.try_into()? }
        }
        json::Command::PinShard { keyspace, shard, constraint, ahead } => Command::PinShard {
            keyspace: name(&keyspace, "keyspace")?,
            shard: ShardId(shard),
            constraint: constraint.try_into().inside("constraint")?,
            ahead,
        },
        json::Command::EditPlan { plan, drop } => Command::EditPlan { plan: PlanId(plan), drop },
    }
    proto {
        command_request::Command::CreateKeyspace(form) => Command::CreateKeyspace {
            keyspace: Box::new(required(form.keyspace, "keyspace")?),
            presplit: optional(form.presplit, "presplit")?.unwrap_or(Presplit::None),
            ahead: form.ahead,
        },
        command_request::Command::UpdateKeyspace(form) => Command::UpdateKeyspace {
            keyspace: name(&form.keyspace, "keyspace")?,
            changes: Box::new(form.changes.unwrap_or_default().try_into().inside("changes")?),
            ahead: form.ahead,
        },
        command_request::Command::SplitShard(form) => Command::SplitShard {
            keyspace: name(&form.keyspace, "keyspace")?,
            shard: ShardId(form.shard),
            at: optional(form.at, "at")?.unwrap_or(SplitAt::Middle),
        },
        command_request::Command::IsolateKey(form) => Command::IsolateKey {
            keyspace: name(&form.keyspace, "keyspace")?,
            key: Key::new(&form.key).at("key")?,
        },
        command_request::Command::PinShard(form) => Command::PinShard {
            keyspace: name(&form.keyspace, "keyspace")?,
            shard: ShardId(form.shard),
            constraint: form.constraint.unwrap_or_default().try_into().inside("constraint")?,
            ahead: form.ahead,
        },
        // A place that does not fit is beyond any plan there is.
        command_request::Command::EditPlan(form) => Command::EditPlan {
            plan: PlanId(form.plan),
            drop: form.drop.into_iter().map(|at| usize::try_from(at).unwrap_or(usize::MAX)).collect(),
        },
    }
}

into_forms!(share: &NodeShare => [json::NodeShare, proto::NodeShare] {
    node: share.node.to_string(),
    before: share.before,
    after: share.after,
});

into_forms!(answer: &Answer => [json::Answer, proto::CommandAnswer] {
    summary: answer.summary.clone(),
    warnings: answer.warnings.clone(),
    plan: answer.plan.as_ref().map(Into::into),
    drains: answer.drains.iter().map(Into::into).collect(),
    dry_run: answer.dry_run,
    follows: answer.follows.iter().map(Into::into).collect(),
    shares: answer.shares.iter().map(Into::into).collect(),
});

into_forms!(problem: &Problem => [json::Problem, cluster_status::Problem] {
    what: problem.what.clone(),
    way_out: problem.way_out.clone(),
});

into_forms!(aside: &(KeyspaceName, ShardId, String) => [json::SetAside, cluster_status::SetAside] {
    keyspace: aside.0.to_string(),
    shard: aside.1.0,
    why: aside.2.clone(),
});

into_forms!(lack: &Unplaced => [json::Unplaced, cluster_status::Unplaced] {
    keyspace: lack.keyspace.to_string(),
    shard: lack.shard.0,
    have: lack.have,
    want: lack.want,
    why: lack.why.clone(),
});

into_forms!(quarantined: &(KeyspaceName, String) => [Quarantined, cluster_status::Quarantined] {
    keyspace: quarantined.0.to_string(),
    why: quarantined.1.clone(),
});

into_forms!(row: &MoveRow => [json::Move, proto::MoveRow] {
    keyspace: row.keyspace.to_string(),
    shard: row.shard.0,
    from: OptionalName::of(row.from.as_ref()),
    to: OptionalName::of(row.to.as_ref()),
    stage: Field::of(row.stage),
    since_ms: since(row.since).0,
    since_at_least: since(row.since).1,
    waits_for: row.waits_for.clone(),
});

into_forms!(row: &NodeRow => [json::Node, proto::NodeRow] {
    id: row.node.to_string(),
    address: row.address.clone(),
    resp_address: OptionalName::of(row.resp_address.as_ref()),
    incarnation: row.incarnation.0,
    since_ms: row.since_ms,
    health: Field::of(row.health),
    zone: OptionalName::of(row.zone.as_ref()),
    rack: OptionalName::of(row.rack.as_ref()),
    labels: strings(&row.labels),
    kinds: row.kinds.iter().map(|kind| Field::of(*kind)).collect(),
    capacity: row.capacity,
    draining: row.drain.as_ref().map(|drain| drain.reason.clone()),
    leaving: row.leaving,
    up_to_date: row.is_up_to_date,
    busy: row.busy,
    disk_full: row.disk.full,
    disk_stalled: row.disk.stalled,
    disk_nearly_full: row.disk.nearly_full,
    replicas: row.replicas.iter().map(|(name, count)| (name.to_string(), Field::of(*count))).collect(),
    leaders: Field::of(row.leaders),
    requests_per_s: row.load[0],
    cpu_ms_per_s: row.load[1],
    size_bytes: row.load[2],
});

into_forms!(begun: &BegunEmpty => [json::BegunEmpty, cluster_status::BegunEmpty] {
    shards: Field::of(begun.shards),
    last_ms: begun.last_wall_ms,
});

into_forms!(counts: &ShardCounts => [json::ShardCounts, proto::ShardCounts] {
    led: Field::of(counts.led),
    unheard: Field::of(counts.unheard),
    unserved: Field::of(counts.unserved()),
    waiting: Field::of(counts.waiting),
    silent: Field::of(counts.silent),
    braked: Field::of(counts.braked),
    set_aside: Field::of(counts.set_aside),
    loading: Field::of(counts.loading),
    unplaced: Field::of(counts.unplaced),
    forming: Field::of(counts.forming),
    closing: Field::of(counts.closing),
    removing: Field::of(counts.removing),
});

into_forms!(status: &Summary => [json::Summary, proto::ClusterStatus] {
    problems: status.problems.iter().map(Into::into).collect(),
    keyspaces: Field::of(status.keyspaces),
    shards: Field::of(&status.shards),
    replicas: status.replicas.iter().map(|(state, count)| (json::word(state), Field::of(*count))).collect(),
    nodes: status.nodes.iter().map(|(health, count)| (json::word(health), Field::of(*count))).collect(),
    drains: status.drains.iter().map(Into::into).collect(),
    leaving: strings(&status.leaving),
    brake: status.brake.clone(),
    unrest: status.unrest.clone(),
    set_aside: status.set_aside.iter().map(Into::into).collect(),
    under_way: status.under_way.iter().map(Into::into).collect(),
    moves: Field::of(status.moves),
    loads: Field::of(status.loads),
    short: Field::of(status.short),
    unplaced: status.unplaced.iter().map(Into::into).collect(),
    complaints: status.complaints.iter().map(|(name, told)| (name.to_string(), Field::of(told))).collect(),
    loads_awaited: status.loads_awaited.iter().map(|(name, ms)| (name.to_string(), *ms)).collect(),
    begun_empty: status.begun_empty.iter().map(|(name, begun)| (name.to_string(), begun.into())).collect(),
    suggested: status.suggested.iter().map(|plan| plan.0).collect(),
    quarantine: status.quarantine.iter().map(Into::into).collect(),
    stored_faults: status.stored_faults.clone(),
});

into_forms!(rule: &ShardRule => [json::ShardRule, shard_row::Rule] {
    replicas: rule.replicas,
    constraint: Field::of(&rule.constraint),
    set_aside: rule.set_aside.clone(),
    deaths: rule.deaths,
});

into_forms!(row: &ShardRow => [json::Shard, proto::ShardRow] {
    shard: row.shard.0,
    bounds: Field::of(&row.bounds),
    stage: Field::of(ShardStage::from(&row.stage)),
    serving: row.serving.map(Field::of),
    epoch: row.epoch.0,
    since_ms: since(row.since).0,
    since_at_least: since(row.since).1,
    want: row.want,
    rule: row.rule.as_ref().map(Into::into),
    replicas: row.replicas.iter().map(Into::into).collect(),
});

/// Unix time, and whether it may be longer ago.
fn since(since: Since) -> (u64, bool) {
    match since {
        Since::At(ms) => (ms, false),
        Since::AtLeast(ms) => (ms, true),
    }
}

/// The word of an origin, and the person's name.
pub(super) fn origin_parts(origin: &Origin) -> (PlanOrigin, Option<String>) {
    match origin {
        Origin::Repair => (PlanOrigin::Repair, None),
        Origin::Drain => (PlanOrigin::Drain, None),
        Origin::Rebalance => (PlanOrigin::Rebalance, None),
        Origin::Person(name) => (PlanOrigin::Person, Some(name.clone())),
    }
}

/// The origin of that word.
pub(super) fn origin(word: PlanOrigin, person: Option<String>) -> Origin {
    match word {
        PlanOrigin::Repair => Origin::Repair,
        PlanOrigin::Drain => Origin::Drain,
        PlanOrigin::Rebalance => Origin::Rebalance,
        PlanOrigin::Person => Origin::Person(sentence(person.unwrap_or_default())),
    }
}

/// The word of a status, and why a plan was refused.
pub(super) fn status_parts(status: &Status) -> (PlanStatus, Option<String>) {
    match status {
        Status::Suggested => (PlanStatus::Suggested, None),
        Status::Approved => (PlanStatus::Approved, None),
        Status::Finished => (PlanStatus::Finished, None),
        Status::Rejected(_) => (PlanStatus::Rejected, None),
        Status::Superseded => (PlanStatus::Superseded, None),
        Status::Refused(why) => (PlanStatus::Refused, Some(why.clone())),
    }
}

/// The status of that word; only a rejected plan has a basis.
pub(super) fn status(
    word: PlanStatus,
    refused_because: Option<String>,
    basis: impl FnOnce() -> Result<Basis, Malformed>,
) -> Result<Status, Malformed> {
    Ok(match word {
        PlanStatus::Suggested => Status::Suggested,
        PlanStatus::Approved => Status::Approved,
        PlanStatus::Finished => Status::Finished,
        PlanStatus::Rejected => Status::Rejected(basis()?),
        PlanStatus::Superseded => Status::Superseded,
        PlanStatus::Refused => Status::Refused(sentence(refused_because.unwrap_or_default())),
    })
}

/// The word of a progress, and why a change was dropped.
pub(super) fn progress_parts(progress: &Progress) -> (ChangeProgress, Option<String>) {
    match progress {
        Progress::Waiting => (ChangeProgress::Waiting, None),
        Progress::Started => (ChangeProgress::Started, None),
        Progress::Done => (ChangeProgress::Done, None),
        Progress::Dropped(why) => (ChangeProgress::Dropped, Some(why.clone())),
    }
}

/// The progress of that word.
pub(super) fn progress(word: ChangeProgress, dropped_because: Option<String>) -> Progress {
    match word {
        ChangeProgress::Waiting => Progress::Waiting,
        ChangeProgress::Started => Progress::Started,
        ChangeProgress::Done => Progress::Done,
        ChangeProgress::Dropped => Progress::Dropped(sentence(dropped_because.unwrap_or_default())),
    }
}
