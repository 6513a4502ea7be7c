//! The coordinator's state machine: what it knows of the cluster, and what it decides. Its driver calls it with messages and the
//! time, makes [`Outbox::writes`] durable in one transaction, and only then sends the rest of the outbox.
//!
//! ```text
//!  node health         reconcile + execute     planning            driver
//!  who is there   ──►  next map           ──►  new plans      ──►  commit, then orders, maps, answers
//! ```
//!
//! One call of [`Cluster::decide`] runs these once, in that order, and returns when to call again. Between these calls the driver
//! calls [`Cluster::register`], [`Cluster::beat`] and the commands of [`admin`] with what happened. Until the driver's commit,
//! the state in memory is newer than the disk; if the commit fails, the driver drops the cluster and recovers one from the disk.
//!
//! The state is a few values, each in a file that says what it holds:
//!
//! | value                    | what it is                                                          |
//! |--------------------------|---------------------------------------------------------------------|
//! | `record`                 | what is stored of the whole cluster: counters, the brake            |
//! | `members.rs`             | the nodes, and the processes that ask to be one                     |
//! | `keyspaces.rs`           | the keyspaces, each with its map and the reports on its replicas    |
//! | `plans.rs`               | the plans that are kept                                             |
//! | `guard.rs`               | nodes that died lately, for the brake                               |
//! | `recovered.rs`           | the state that this coordinator recovered, and its faults           |
//! | `work.rs`                | how much one decision does, and what is being planned               |
//! | `times.rs`               | when this coordinator was awake                                     |
//! | `outbox.rs`              | what the driver stores and sends: writes, orders, maps, events      |
//!
//! A method that changes one of them is a method of that value. Its arguments are what else it reads and changes; so the
//! signature of `Members::end` shows that keyspaces and the outbox change with a node that ends. A change that depends on the
//! whole cluster has two functions: the first reads a `&Cluster` and returns the change as data, the second makes it
//! (`decide.rs`; for commands `admin/`). Only the second ones, what drivers call, and the planner (`planning/round.rs`) have
//! `&mut self` on [`Cluster`].
//!
//! | question                                       | file            |
//! |------------------------------------------------|-----------------|
//! | what one decision does, phase after phase      | `decide.rs`     |
//! | how nodes register, send heartbeats and leave  | `membership.rs` |
//! | nodes that are alive, silent or dead           | `node_health.rs` |
//! | how workers register, and prove who they are   | `session.rs`    |
//! | which workers know later maps than are stored  | `later_maps.rs`     |
//! | which heartbeats it answers during a commit    | `during_commit.rs` |
//! | next step of moves, splits, merges under way   | `advance.rs`; for which shards: `shard_queue.rs` |
//! | what is kept beside the map, when a shard changes | `shard_change.rs` |
//! | which changes of a plan begin now              | `execute.rs`; which of them it tries: `change_queue/`; how many are under way: `counts.rs`; how far they are: `progress.rs` |
//! | which leaders hand over before another leads   | `transfers.rs`  |
//! | when the brake goes on                         | `guard.rs`; when it goes off by itself, and unrest: `brake_release.rs` |
//! | which shard is to blame when processes die     | `blame.rs`      |
//! | which copies are the latest after a restore    | `restored.rs`; what follows from a map that was read: `recovered.rs` |
//! | which moves are under way, and what each waits for | `moves.rs`  |
//! | which events are kept for people               | `event.rs`      |
//! | what routers hear of maps and addresses        | `publication.rs` |
//! | whether a stored state is sound                | `check.rs`      |
//! | what should change next, and who approves it   | `planning/`     |
//! | which replicas a worker should have            | `orders.rs`     |
//! | whether data that no map names may be deleted  | `kept.rs`       |
//! | replicas that outlive their processes, and what waits for them | `stored.rs` |
//! | which steps are overdue, and what follows      | `overdue.rs`, `pending_steps.rs`; which nodes get no lease: `revoked_leases.rs` |
//! | which nodes are unreachable, and what follows  | `reach.rs`      |
//! | what is stored, and how it comes back          | `record.rs`     |
//! | which shards a node has replicas of             | `hosted.rs`     |
//! | what becomes of a stored state that is damaged | `faults.rs`     |
//! | how much one call does, and when it stops       | `work.rs`       |
//! | which nodes are forgotten                       | `forget.rs`     |
//! | how little memory a replica takes              | `observed.rs`, `packed.rs`, `runs.rs` |
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
mod blame;
mod brake_release;
mod change_queue;
pub mod check;
mod counts;
mod decide;
mod disk;
mod drains;
mod during_commit;
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
mod later_maps;
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
mod record;
mod recovered;
mod registration_limiter;
mod restored;
mod revoked_leases;
mod runs;
pub mod serving;
mod session;
mod shard_change;
mod shard_queue;
pub mod status;
mod stored;
mod times;
mod transfers;
mod work;

pub use during_commit::UncommittedChanges;
pub use faults::StoredFaults;
pub use kept::Kept;
pub use keyspaces::KeyspaceState;
pub use later_maps::{LaterMap, LaterMaps, note_later};
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
    recovered: recovered::Recovered,
    guard: guard::PlannerGuard,
    budget: work::DecisionBudget,
    /// Why the driver cannot store anything now; none if it can.
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

    /// Takes what the driver has to store and send. It makes the writes durable before it does anything else.
    pub fn take_outbox(&mut self) -> Outbox {
        std::mem::take(&mut self.outbox)
    }
}

#[cfg(test)]
mod tests;
