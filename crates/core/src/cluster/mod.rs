//! The coordinator's state machine: everything it knows, and what follows from it. Its driver gathers what
//! happens, calls here, makes [`Outbox::writes`] durable in one transaction, and only then sends anything.
//!
//! ```text
//!  membership          settle + execute        planning            driver
//!  who is there   ──►  next map (commit)  ──►  what next      ──►  durable, then orders, maps, answers
//! ```
//!
//! One call of [`Cluster::decide`] goes through these once, in that order, and says when to call again.
//! Between calls, [`Cluster::register`], [`Cluster::beat`] and the commands of [`admin`] take in what
//! happened. The state in memory is ahead of the disk only between a call and the driver's commit; a
//! driver whose commit fails throws the cluster away and recovers a new one from what is durable.
//!
//! The state is a few values, each in a file that says what it holds:
//!
//! | value                    | what it is                                                          |
//! |--------------------------|---------------------------------------------------------------------|
//! | `record`                 | what is stored of the whole cluster: counters, the brake            |
//! | `members.rs`             | the nodes, and the processes that ask to be one                     |
//! | `keyspaces.rs`           | the keyspaces, each with its map and the reports on its replicas    |
//! | `plans.rs`               | the plans that are kept                                             |
//! | `guard.rs`               | what is known of deaths, which stops the planner                    |
//! | `recall.rs`              | what this coordinator began with                                    |
//! | `work.rs`                | how much one decision does, and what is being planned               |
//! | `times.rs`               | when this coordinator was awake                                     |
//! | `outbox.rs`              | what has to leave: writes, orders, maps, events                     |
//!
//! A method that changes one of them is a method of that value. What it reads, and what else it changes, are its
//! arguments; so `Members::end` shows that keyspaces and the outbox change with a node that ends. What changes with the whole
//! cluster in view has two halves: the first reads a `&Cluster` and says what is to change, as data, the second changes it
//! (`decide.rs`; for commands `admin/`). `&mut self` on [`Cluster`] is left to what drivers call, to the second halves, and to
//! the planner, which does its steps in slices (`planning/round.rs`).
//!
//! | what is asked                                  | file            |
//! |------------------------------------------------|-----------------|
//! | what one decision does, phase after phase      | `decide.rs`     |
//! | how nodes register, beat and leave             | `membership.rs` |
//! | nodes that are alive, silent or dead           | `node_health.rs` |
//! | how workers register, and prove who they are   | `session.rs`    |
//! | which workers know later maps than are stored  | `ahead.rs`      |
//! | which beats are answered during a commit       | `meanwhile.rs`  |
//! | next step of moves, splits, merges under way   | `advance.rs`; which shards are looked at: `settling.rs` |
//! | which changes of a plan begin now              | `execute.rs`; which are tried: `change_queue/`; how many are under way: `counts.rs`; how far they are: `progress.rs` |
//! | which leaders hand over before another leads   | `transfers.rs`  |
//! | what stops the planner                         | `guard.rs`; when that ends: `calm.rs` |
//! | which shard is to blame when processes die     | `blame.rs`      |
//! | which copies are the latest after a restore    | `restored.rs`; what follows from a map that was read: `recall.rs` |
//! | which moves are under way, and what each waits for | `moves.rs`  |
//! | which events are kept for people               | `event.rs`      |
//! | what routers hear of maps and addresses        | `publication.rs` |
//! | whether a stored state is sound                | `check.rs`      |
//! | what should change next, and who approves it   | `planning/`    |
//! | what a worker should hold, and since when      | `orders.rs`     |
//! | whether data that no map names may be deleted  | `kept.rs`       |
//! | replicas that outlive their processes, and what waits for them | `stored.rs` |
//! | which steps are overdue, and what follows      | `overdue.rs`, `pending_steps.rs`; which nodes get no lease: `revoked_leases.rs` |
//! | which nodes are unreachable, and what follows  | `reach.rs`      |
//! | what is stored, and how it comes back          | `record.rs`     |
//! | which shards a node has replicas of             | `hosted.rs`     |
//! | what becomes of a stored state that is damaged | `faults.rs`     |
//! | how much one call does, and when it stops       | `work.rs`       |
//! | which nodes are forgotten                       | `forget.rs`     |
//! | how the memory of a replica stays small        | `observed.rs`, `packed.rs`, `runs.rs` |
//! | how a node is found quickly by its name         | `numbered.rs`   |
//! | how many may register from one address         | `registration_limiter.rs` |
//! | workers of another cluster, which are refused  | `foreign.rs` |
//! | how the drain of a node stands                 | `drains.rs`     |
//! | what people and services may ask to be done    | `admin/`       |
//! | why a key is served where it is                | `explain.rs`    |
//! | how everything stands, in counts and tables    | `status.rs`     |
//! | what one node holds                             | `node_detail.rs` |
//! | whether a shard is served, and if not, why     | `serving.rs`    |
//! | what is wrong, and what a person can do        | `problems.rs`   |

pub mod admin;
mod advance;
mod ahead;
mod blame;
mod calm;
mod change_queue;
pub mod check;
mod counts;
mod decide;
mod disk;
mod drains;
pub mod event;
mod execute;
pub mod explain;
mod faults;
mod foreign;
mod forget;
mod guard;
mod hosted;
mod kept;
mod keyspaces;
mod meanwhile;
mod members;
mod membership;
pub mod moves;
pub mod node_detail;
mod node_health;
mod numbered;
mod observed;
mod orders;
mod outbox;
mod overdue;
mod packed;
mod pending_steps;
mod planning;
mod plans;
mod problems;
mod progress;
pub mod publication;
mod reach;
mod recall;
mod record;
mod registration_limiter;
mod restored;
mod revoked_leases;
mod runs;
pub mod serving;
mod session;
mod settling;
pub mod status;
mod stored;
mod times;
mod transfers;
mod work;

pub use ahead::{LaterMap, LaterMaps, note};
pub use faults::StoredFaults;
pub use kept::Kept;
pub use keyspaces::KeyspaceState;
pub use meanwhile::UncommittedChanges;
pub use members::NodeState;
pub use observed::Observed;
pub use outbox::{Notice, Outbox};
pub use packed::PackedMap;
pub use problems::{MAKE_ROOM, Problem};
pub use record::{
    ClusterRecord, Drain, KeyspaceRecord, LostIds, NodeRecord, Records, RecoverError, ShardRule, Write,
};
pub use session::{BeatError, RegisterError, WrongToken};
pub use work::{Slice, Work};

use crate::base::id::PlanId;
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::placement::Policies;
use crate::plan::Plan;
use std::collections::BTreeMap;

/// A time as the driver reads it, from two clocks. The cluster reads none itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moment {
    /// Monotonic; decisions use it.
    pub now: Millis,
    /// Milliseconds of Unix time, only shown to people.
    pub wall_ms: u64,
}

/// The cluster as its coordinator sees it: a few values, see the module.
#[derive(Debug, Clone)]
pub struct Cluster {
    settings: Settings,
    policies: Policies,
    times: times::DecisionTimes,
    record: ClusterRecord,
    members: members::Members,
    keyspaces: keyspaces::Keyspaces,
    plans: plans::Plans,
    /// What this coordinator began with, and what it does not know of the time before.
    recovered: recall::Recovered,
    /// What stops the planner.
    guard: guard::PlannerGuard,
    /// How much one decision does, and where the next one goes on.
    budget: work::DecisionBudget,
    /// Why nothing can be stored for now, as the driver says.
    storage_problem: Option<String>,
    outbox: Outbox,
}

impl Cluster {
    /// Lets keyspaces name these placement policies, instead of the shipped ones only.
    #[must_use]
    pub fn with_policies(self, policies: Policies) -> Cluster {
        Cluster { policies, ..self }
    }

    /// The settings it runs by.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// All keyspaces but those in quarantine.
    pub fn keyspaces(&self) -> &BTreeMap<KeyspaceName, KeyspaceState> {
        &self.keyspaces.by_name
    }

    /// All nodes, dead ones included until they are removed.
    pub fn nodes(&self) -> &BTreeMap<NodeId, NodeState> {
        &self.members.nodes
    }

    /// All plans that are kept.
    pub fn plans(&self) -> &BTreeMap<PlanId, Plan> {
        &self.plans.by_id
    }

    /// What has to leave. The driver makes the writes durable before it does anything else.
    pub fn take_outbox(&mut self) -> Outbox {
        std::mem::take(&mut self.outbox)
    }
}

#[cfg(test)]
mod tests;
