//! What changed, why, and who did it: the records that people read afterwards (C14).
//!
//! The cluster says each with what it decides ([`crate::cluster::Outbox::events`]); the driver keeps them once the
//! decision is durable, with the time and a number. A change of a map gives one event for each shard, as long as
//! there are not too many of them at once ([`limits::SHARD_EVENTS_AT_ONCE`]); the rest is counted.

use crate::base::count::{counted, counted_with};
use crate::base::id::{PlanId, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::keyspace::map::{Replica, Shard, Stage};
use crate::limits;
use crate::plan::{Origin, Plan, Progress};
use std::fmt;

/// What sort of change it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// A node's process has registered.
    NodeRegistered,
    /// A node is heard, is silent, can be reached, or cannot.
    NodeHealth,
    /// A node has left, or was given up.
    NodeEnded,
    /// The cluster has no record of a node any more.
    NodeForgotten,
    /// A node is being drained, is empty, or may take shards again.
    NodeDrain,
    /// There is a new keyspace.
    KeyspaceCreated,
    /// Settings, or partitions, of a keyspace have changed.
    KeyspaceChanged,
    /// A keyspace is gone.
    KeyspaceDeleted,
    /// A change of a shard has begun, or was given up.
    ShardChange,
    /// A shard is served elsewhere, by other nodes or in other pieces.
    ShardPlaced,
    /// How many replicas a shard has, or where it may be, was said.
    ShardRule,
    /// A shard is placed nowhere new.
    ShardSetAside,
    /// A shard that was set aside is placed again.
    ShardReleased,
    /// The planner, or a person, has made a plan.
    PlanMade,
    /// A person has approved, rejected or edited a plan.
    PlanDecided,
    /// Everything of a plan is done, or was dropped.
    PlanFinished,
    /// Automatic moves are stopped.
    BrakeSet,
    /// Automatic moves go on.
    BrakeReleased,
    /// Another coordinator leads. The driver says it, the cluster does not.
    LeaderChanged,
    /// Something else that a person has to do something about.
    Alarm,
    /// Something that a person may want to know, and need not act on.
    Notice,
}

impl EventKind {
    /// Every kind, in the order of the declaration.
    pub const ALL: [EventKind; 21] = [
        EventKind::NodeRegistered,
        EventKind::NodeHealth,
        EventKind::NodeEnded,
        EventKind::NodeForgotten,
        EventKind::NodeDrain,
        EventKind::KeyspaceCreated,
        EventKind::KeyspaceChanged,
        EventKind::KeyspaceDeleted,
        EventKind::ShardChange,
        EventKind::ShardPlaced,
        EventKind::ShardRule,
        EventKind::ShardSetAside,
        EventKind::ShardReleased,
        EventKind::PlanMade,
        EventKind::PlanDecided,
        EventKind::PlanFinished,
        EventKind::BrakeSet,
        EventKind::BrakeReleased,
        EventKind::LeaderChanged,
        EventKind::Alarm,
        EventKind::Notice,
    ];

    /// Its word, as programs read it.
    pub fn as_str(self) -> &'static str {
        match self {
            EventKind::NodeRegistered => "node_registered",
            EventKind::NodeHealth => "node_health",
            EventKind::NodeEnded => "node_ended",
            EventKind::NodeForgotten => "node_forgotten",
            EventKind::NodeDrain => "node_drain",
            EventKind::KeyspaceCreated => "keyspace_created",
            EventKind::KeyspaceChanged => "keyspace_changed",
            EventKind::KeyspaceDeleted => "keyspace_deleted",
            EventKind::ShardChange => "shard_change",
            EventKind::ShardPlaced => "shard_placed",
            EventKind::ShardRule => "shard_rule",
            EventKind::ShardSetAside => "shard_set_aside",
            EventKind::ShardReleased => "shard_released",
            EventKind::PlanMade => "plan_made",
            EventKind::PlanDecided => "plan_decided",
            EventKind::PlanFinished => "plan_finished",
            EventKind::BrakeSet => "brake_set",
            EventKind::BrakeReleased => "brake_released",
            EventKind::LeaderChanged => "leader_changed",
            EventKind::Alarm => "alarm",
            EventKind::Notice => "notice",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an event is about, as far as it is about one of each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct About {
    /// The keyspace that the event is about, if it is about one.
    pub keyspace: Option<KeyspaceName>,
    /// The shard of that keyspace, if the event is about one.
    pub shard: Option<ShardId>,
    /// The nodes that the event is about; empty if it is about none.
    pub nodes: Vec<NodeId>,
    /// The plan that the event is about, if it is about one.
    pub plan: Option<PlanId>,
}

impl About {
    /// The whole cluster: an event that names no keyspace, node or plan.
    pub fn all() -> About {
        About::default()
    }

    /// One node, and no keyspace: what happened touches all that the node holds.
    pub fn node(id: &NodeId) -> About {
        About { nodes: vec![id.clone()], ..About::default() }
    }

    /// A keyspace as a whole, not one of its shards.
    pub fn keyspace(name: &KeyspaceName) -> About {
        About { keyspace: Some(name.clone()), ..About::default() }
    }

    /// A shard of a keyspace.
    pub fn shard(name: &KeyspaceName, shard: ShardId) -> About {
        About { shard: Some(shard), ..About::keyspace(name) }
    }

    /// A plan of a keyspace.
    pub fn plan(name: &KeyspaceName, plan: PlanId) -> About {
        About { plan: Some(plan), ..About::keyspace(name) }
    }

    /// Adds a node to what the event is about.
    #[must_use]
    pub fn and_node(mut self, id: &NodeId) -> About {
        self.nodes.push(id.clone());
        self
    }
}

/// The one that caused a change: the coordinator, a person or a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Actor {
    /// The coordinator, by itself.
    #[default]
    Coordinator,
    /// Somebody who asked for it, by the name given.
    Person(String),
    /// A node's process, when it registers, leaves or reports.
    Node(NodeId),
}

/// One change as people read it. The driver adds the time and a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The kind of the change.
    pub kind: EventKind,
    /// The keyspace, shard, nodes and plan that the change touches.
    pub about: About,
    /// The one that caused the change.
    pub by: Actor,
    /// Whether a person has to do something.
    pub alarm: bool,
    /// What happened, and why, in one sentence.
    pub text: String,
}

/// Whether a shard that was served goes on with none of the replicas that served it, and no other has its data.
pub fn begins_empty(old: Option<&Shard>, new: &Shard) -> bool {
    let stays = |replica: &Replica| new.replicas.iter().any(|now| now.placement == replica.placement);
    let lost_all = |old: &Shard| old.is_serving() && old.live().count() > 0 && !old.live().any(stays);
    new.is_serving() && new.live().count() == 0 && old.is_some_and(lost_all)
}

/// What a change of a map did to a shard, seen by those who use it; none when nothing of that.
pub fn of_shard(name: &KeyspaceName, id: ShardId, old: Option<&Shard>, new: Option<&Shard>) -> Option<Event> {
    let mut about = About::shard(name, id);
    let Some(new) = new else {
        // A part that was prepared and given up has never served.
        let served = old.is_some_and(|old| !matches!(old.stage(), Stage::Forming(_)));
        let text = format!("shard {id} of keyspace {name} is gone");
        return served.then(|| event(EventKind::ShardPlaced, about, text));
    };
    let is_live = |shard: &Shard, node: &NodeId| shard.live().any(|replica| replica.node == *node);
    let mut said = Vec::new();
    let began = new.is_serving() && old.is_none_or(|old| !old.is_serving());
    if began && !new.parents().is_empty() {
        let parents: Vec<_> = new.parents().iter().map(ToString::to_string).collect();
        said.push(format!("serves what {} held", parents.join(" and ")));
    }
    for replica in new.live().filter(|replica| old.is_none_or(|old| !is_live(old, &replica.node))) {
        about = about.and_node(&replica.node);
        said.push(format!("live on {}", replica.node));
    }
    for node in old.iter().flat_map(|old| old.live()).map(|replica| &replica.node) {
        if !is_live(new, node) {
            about = about.and_node(node);
            said.push(format!("not on {node} any more"));
        }
    }
    let leader = |shard: &Shard| shard.leader().map(|replica| replica.node.clone());
    match (old.and_then(leader), leader(new)) {
        (Some(before), Some(now)) if before != now => said.push(format!("led by {now}, before by {before}")),
        (None, Some(now)) => said.push(format!("led by {now}")),
        (Some(before), None) => said.push(format!("without a leader, before led by {before}")),
        _ => {}
    }
    if begins_empty(old, new) {
        said.push("no node has a copy: it begins without what only those processes held".to_owned());
    }
    let text = format!("shard {id} of keyspace {name}: {}", said.join(", "));
    (!said.is_empty()).then(|| event(EventKind::ShardPlaced, about, text))
}

/// That a change of a plan has begun, with the reason that the plan gives, or was given up.
pub fn of_change(plan: &Plan, index: usize) -> Option<Event> {
    let planned = plan.changes.get(index)?;
    let text = match &planned.progress {
        // Some reasons begin with the change itself.
        Progress::Started if planned.reason.starts_with(&planned.change.to_string()) => {
            planned.reason.clone()
        }
        Progress::Started => format!("{}: {}", planned.change, planned.reason),
        Progress::Dropped(why) => format!("given up: {}: {why}", planned.change),
        Progress::Waiting | Progress::Done => return None,
    };
    let nodes = planned.change.targets().into_iter().chain(&planned.node).cloned().collect();
    let shard = planned.change.shards().first().copied();
    let text = match shard {
        Some(shard) => format!("shard {shard} of keyspace {}: {text}", plan.keyspace),
        None => text,
    };
    let about = About { shard, nodes, ..About::plan(&plan.keyspace, plan.id) };
    Some(Event { by: of_origin(&plan.origin), ..event(EventKind::ShardChange, about, text) })
}

/// The actor of a plan: a person, or else the coordinator.
pub fn of_origin(origin: &Origin) -> Actor {
    match origin {
        Origin::Person(name) => Actor::Person(name.clone()),
        Origin::Repair | Origin::Drain | Origin::Rebalance => Actor::Coordinator,
    }
}

/// That everything of a plan is done, or was dropped.
pub fn of_finished(plan: &Plan) -> Event {
    let dropped =
        plan.changes.iter().filter(|planned| matches!(planned.progress, Progress::Dropped(_))).count();
    let done = plan.changes.len() - dropped;
    let changes = counted_with(done, "change", ("is", "are"));
    let text = match dropped {
        0 => format!("{} of keyspace {} is finished: {changes} done", plan.id, plan.keyspace),
        _ => format!(
            "{} of keyspace {} is finished: {changes} done, {dropped} dropped",
            plan.id, plan.keyspace
        ),
    };
    event(EventKind::PlanFinished, About::plan(&plan.keyspace, plan.id), text)
}

/// The first of the events about shards that one change of a map gives, and how many more there are.
pub fn first_of_shards(name: &KeyspaceName, mut events: Vec<Event>) -> Vec<Event> {
    let more = events.len().saturating_sub(limits::SHARD_EVENTS_AT_ONCE);
    if more > 0 {
        events.truncate(limits::SHARD_EVENTS_AT_ONCE);
        let text = format!("and {} of keyspace {name} in the same change", counted(more, "more shard"));
        let kind = events.first().map_or(EventKind::ShardPlaced, |first| first.kind);
        events.push(event(kind, About::keyspace(name), text));
    }
    events
}

/// One that the coordinator did by itself, and that asks nothing of a person.
pub fn event(kind: EventKind, about: About, text: String) -> Event {
    Event { kind, about, by: Actor::Coordinator, alarm: false, text }
}
