//! Plans: the ordered, complete list of changes from one map towards the next, with the reason of each.
//!
//! A plan is data. It is made once, numbered, shown, approved or rejected, executed or refused; what was
//! planned never changes, only how far it got. It leaves no choices to who executes it: node, replica and
//! bounds are in it.

pub mod brake;
pub mod check;
pub mod handover;
pub mod poison;
pub mod reshard;
pub mod throttle;

use crate::base::count::counted;
use crate::base::id::{Generation, PlacementId, PlanId, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::keyspace::map::ShardMap;
use crate::keyspace::sharding::Bounds;
use crate::node::load::METRICS;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;

/// One change that a plan asks for. Each takes several commits to carry out: see [`crate::plan::handover`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Adds a replica to a shard.
    Add {
        /// The shard that gets the replica.
        shard: ShardId,
        /// The node that gets the replica.
        node: NodeId,
    },
    /// Moves a replica to another node, make before break.
    Move {
        /// The shard whose replica moves.
        shard: ShardId,
        /// The placement id of the replica that leaves.
        from: PlacementId,
        /// The node that takes over.
        to: NodeId,
    },
    /// Removes a replica, while another one stays.
    Remove {
        /// The shard that loses the replica.
        shard: ShardId,
        /// The placement id of the replica that is removed.
        placement: PlacementId,
    },
    /// Gives the lead to another live replica.
    Lead {
        /// The shard that gets another leader.
        shard: ShardId,
        /// The placement id of the replica that leads then.
        placement: PlacementId,
    },
    /// Makes several shards of one, each on the nodes that are named.
    Split {
        /// The parent, which closes when the children serve.
        shard: ShardId,
        /// Bounds and nodes of the children, leader's node first.
        children: Vec<(Bounds, Vec<NodeId>)>,
    },
    /// Makes one shard of neighbours.
    Merge {
        /// The shards that are merged.
        shards: Vec<ShardId>,
        /// Bounds and nodes of the child, leader's node first.
        child: (Bounds, Vec<NodeId>),
    },
}

impl Change {
    /// The shards that the change is about.
    pub fn shards(&self) -> &[ShardId] {
        match self {
            Change::Add { shard, .. }
            | Change::Move { shard, .. }
            | Change::Remove { shard, .. }
            | Change::Lead { shard, .. }
            | Change::Split { shard, .. } => std::slice::from_ref(shard),
            Change::Merge { shards, .. } => shards,
        }
    }

    /// The replica that leaves, or that is to lead.
    pub fn replica(&self) -> Option<(ShardId, PlacementId)> {
        match self {
            Change::Move { shard, from: placement, .. }
            | Change::Remove { shard, placement }
            | Change::Lead { shard, placement } => Some((*shard, *placement)),
            Change::Add { .. } | Change::Split { .. } | Change::Merge { .. } => None,
        }
    }

    /// The nodes on which it places something new.
    pub fn targets(&self) -> Vec<&NodeId> {
        match self {
            Change::Add { node, .. } | Change::Move { to: node, .. } => vec![node],
            Change::Split { children, .. } => children.iter().flat_map(|(_, nodes)| nodes).collect(),
            Change::Merge { child: (_, nodes), .. } => nodes.iter().collect(),
            Change::Remove { .. } | Change::Lead { .. } => vec![],
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Add { shard, node } => write!(f, "add a replica of {shard} on {node}"),
            Change::Move { shard, from, to } => write!(f, "move {shard} ({from}) to {to}"),
            Change::Remove { shard, placement } => write!(f, "remove {placement} of {shard}"),
            Change::Lead { shard, placement } => write!(f, "let {placement} lead {shard}"),
            Change::Split { shard, children } => {
                write!(f, "split {shard} into {}", counted(children.len(), "shard"))
            }
            Change::Merge { shards, .. } => {
                let names: Vec<_> = shards.iter().map(ToString::to_string).collect();
                write!(f, "merge {}", names.join(" and "))
            }
        }
    }
}

/// How far one change has got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The coordinator has not begun it: the throttle or something else holds it up, or the plan is not approved.
    Waiting,
    /// It is in the map, under way.
    Started,
    /// The map is as the change asks for.
    Done,
    /// It was given up, because the world had changed; says how.
    Dropped(String),
}

/// One line of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The change that this line of the plan asks for.
    pub change: Change,
    /// Why the change is in the plan, as one sentence.
    pub reason: String,
    /// How far the change has got.
    pub progress: Progress,
    /// Where the replica is that leaves or is to lead. Kept with the plan: the map forgets a replica when it is gone. None
    /// until the plan is kept, and where the change names no replica.
    pub node: Option<NodeId>,
}

impl Planned {
    /// Where the replica is that it names, by `map`.
    fn node_in(&self, map: &ShardMap) -> Option<NodeId> {
        let (shard, placement) = self.change.replica()?;
        Some(map.shard(shard)?.replica(placement)?.node.clone())
    }

    /// A line that has not begun.
    pub fn new(change: Change, reason: impl Into<String>) -> Planned {
        Planned { change, reason: reason.into(), progress: Progress::Waiting, node: None }
    }
}

/// What made the planner or a person make a plan, and so how urgent it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Something was lost: placed again in every mode but `manual`, before everything else.
    Repair,
    /// A node or zone is being drained.
    Drain,
    /// Balance, splits and merges: subject to the mode of the keyspace.
    Rebalance,
    /// A person, by name.
    Person(String),
}

/// What a plan was based on when a person rejected it: while that holds, the planner does not propose the same again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Basis {
    /// A hash over the settings, the nodes, and the replicas and rules of the plan's shards; 0 where it was not
    /// kept. Of no meaning but to be compared.
    pub print: u64,
    /// The load of the plan's shards, in the order of [`crate::node::load::METRICS`].
    pub load: [u64; METRICS.len()],
}

/// How far a plan is on its way from the planner to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// Waits for a person who approves or rejects it.
    Suggested,
    /// The coordinator carries it out, change by change.
    Approved,
    /// Everything is done or dropped.
    Finished,
    /// A person has rejected what was based on this.
    Rejected(Basis),
    /// Replaced by a later plan before anybody approved it.
    Superseded,
    /// The check or the brake said no, and why.
    Refused(String),
}

/// A list of changes to one keyspace that is approved, rejected and executed as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The number that people name it by, of one count for the whole cluster.
    pub id: PlanId,
    /// The keyspace of the shards that it changes.
    pub keyspace: KeyspaceName,
    /// The generation of the map that it was made from.
    pub base: Generation,
    /// Whether the planner or a person made it, and for what.
    pub origin: Origin,
    /// The changes, in the order in which they may begin.
    pub changes: Vec<Planned>,
    /// Whether it waits, is carried out or is over.
    pub status: Status,
    /// When it was made, in milliseconds of Unix time.
    pub made_ms: u64,
    /// The person who approved, rejected or edited it; none before that, and where no person did.
    pub decided_by: Option<String>,
}

/// A plan for people: with the nodes of the replicas that it names, as far as it knows them or the map has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownPlan {
    /// The plan as it is stored.
    pub plan: Plan,
    /// The nodes of the replicas that it names.
    pub nodes: BTreeMap<PlacementId, NodeId>,
}

impl ShownPlan {
    /// A plan beside the present map of its keyspace.
    pub fn of(plan: Plan, map: Option<&ShardMap>) -> ShownPlan {
        let node = |planned: &Planned| {
            let (_, placement) = planned.change.replica()?;
            Some((placement, planned.node.clone().or_else(|| planned.node_in(map?))?))
        };
        let nodes = plan.changes.iter().filter_map(node).collect();
        ShownPlan { plan, nodes }
    }
}

impl Deref for ShownPlan {
    type Target = Plan;
    fn deref(&self) -> &Plan {
        &self.plan
    }
}

impl Origin {
    /// In which order plans begin: what is lost first, what could be better last.
    pub fn urgency(&self) -> u8 {
        match self {
            Origin::Repair => 0,
            Origin::Person(_) => 1,
            Origin::Drain => 2,
            Origin::Rebalance => 3,
        }
    }

    /// Whether no person asked for it: such plans stop at the brake.
    pub fn is_automatic(&self) -> bool {
        !matches!(self, Origin::Person(_))
    }
}

impl Plan {
    /// Whether nothing is left to do or decide.
    pub fn is_over(&self) -> bool {
        !matches!(self.status, Status::Suggested | Status::Approved)
    }

    /// Keeps where the replicas are that it names, while `map` has them.
    pub fn name_nodes(&mut self, map: &ShardMap) {
        for planned in &mut self.changes {
            planned.node = planned.node.take().or_else(|| planned.node_in(map));
        }
    }

    /// Finished when the last of its changes is.
    pub fn finish_if_done(&mut self) {
        let over = |p: &Planned| matches!(p.progress, Progress::Done | Progress::Dropped(_));
        if self.status == Status::Approved && self.changes.iter().all(over) {
            self.status = Status::Finished;
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Suggested => f.pad("suggested"),
            Status::Approved => f.pad("approved"),
            Status::Finished => f.pad("finished"),
            Status::Rejected(_) => f.pad("rejected"),
            Status::Superseded => f.pad("superseded"),
            Status::Refused(why) => f.pad(&format!("refused: {why}")),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Repair => f.pad("repair"),
            Origin::Drain => f.pad("drain"),
            Origin::Rebalance => f.pad("rebalance"),
            Origin::Person(name) => f.pad(name),
        }
    }
}
