//! One decision of the coordinator. `decide` runs the phases of this table in this order.
//!
//! Each phase is a [`Transition`] with two methods: `find` reads the cluster and returns the changes as data, `apply` makes
//! them. So each phase sees what earlier phases have changed, and the signature of `find` shows that it changes nothing.
//!
//! | phase                    | what it changes                                      | why it stands there                     |
//! |--------------------------|------------------------------------------------------|-----------------------------------------|
//! | `CoordinatorSleep`       | nodes get the time in which this process slept       | before any node is judged               |
//! | `LongestLease`           | the longest lease, which is stored: the next coordinator waits for it | anywhere |
//! | `LossJudgement`          | the brake; whether `NodeHealth` may declare dead the nodes that are down | before `NodeHealth` |
//! | `LongUnreachableNodes`   | unreachable nodes whose replicas are to move to other nodes | after `LossJudgement`, which may set the brake |
//! | `NodeHealth`             | the health of nodes as people see it; nodes are declared dead | before the phases that read it |
//! | `ShardsAfterRestore`, `ComparedCopies` | after a restore, shards whose copies the coordinator can compare now | after `NodeHealth` |
//! | `SuspectedShards`        | shards that may have killed processes: set aside, or cleared | after deaths, which are evidence |
//! | `Unrest`, `ReleasedBrake`, `ReleasedKeyspaceBrakes` | what stops the planner, where it begins or ends by itself | before the planner |
//! | `ForgottenNodes`         | records of nodes that ended long ago                 | anywhere after `NodeHealth`             |
//! | `OverdueSteps`, `ResumedLeases` | steps that workers did not take in time; nodes that get no lease | before the next map, which gives these steps up |
//! | `EndedTransfers`         | transfers of the lead that took too long             | before the next map, which changes the leader all the same |
//! | `BegunDrains`, `SafeToStopNodes` | drains, and events on them                   | before the planner moves anything off   |
//!
//! Then [`Cluster::advance`] makes the next maps, and [`Cluster::plan_in_turn`] plans. `NextMap::apply` puts a map into its
//! keyspace, and changes orders, the progress of plans and the outbox accordingly; `Plans::add` does so with a plan.

use super::blame::SuspectedShards;
use super::brake_release::{ReleasedBrake, ReleasedKeyspaceBrakes, Unrest};
use super::drains::{BegunDrains, SafeToStopNodes};
use super::faults::LongestLease;
use super::forget::ForgottenNodes;
use super::guard::LossJudgement;
use super::node_health::{CoordinatorSleep, NodeHealth};
use super::overdue::OverdueSteps;
use super::reach::LongUnreachableNodes;
use super::restored::{ComparedCopies, ShardsAfterRestore};
use super::revoked_leases::ResumedLeases;
use super::transfers::EndedTransfers;
use super::{Cluster, Moment};
use crate::base::id::TransactionId;
use crate::base::time::Millis;
use crate::limits;

/// What one phase of a decision changes.
pub(super) trait Transition: Sized {
    /// Reads what has to change now.
    fn find(cluster: &Cluster, at: Moment) -> Self;

    /// Makes the change. Returns when this phase is next due if nothing happens before.
    fn apply(self, cluster: &mut Cluster, at: Moment) -> Millis;
}

impl Cluster {
    /// Runs every phase once. `transaction`, which the caller draws anew for each call, is the id of the maps that this
    /// decision makes. Returns when to call again if nothing happens before.
    pub fn decide(&mut self, at: Moment, transaction: TransactionId) -> Millis {
        let before = self.work_done();
        let wake = [
            self.run_phase::<CoordinatorSleep>(at),
            self.run_phase::<LongestLease>(at),
            self.run_phase::<LossJudgement>(at),
            self.run_phase::<LongUnreachableNodes>(at),
            self.run_phase::<NodeHealth>(at),
            self.run_phase::<ShardsAfterRestore>(at),
            self.run_phase::<ComparedCopies>(at),
            self.run_phase::<SuspectedShards>(at),
            self.run_phase::<Unrest>(at),
            self.run_phase::<ReleasedBrake>(at),
            self.run_phase::<ReleasedKeyspaceBrakes>(at),
            self.run_phase::<ForgottenNodes>(at),
            self.run_phase::<OverdueSteps>(at),
            self.run_phase::<ResumedLeases>(at),
            self.run_phase::<EndedTransfers>(at),
            self.run_phase::<BegunDrains>(at),
            self.run_phase::<SafeToStopNodes>(at),
        ];
        let advances_more = self.advance(at, transaction);
        let plans_more = self.plan_in_turn(at, before);
        let is_idle = self.work_done() == before && !advances_more && !plans_more;
        // To pack takes long: only a decision that does nothing else packs, and only so many entries.
        if is_idle && self.keyspaces.are_settled() {
            let mut room = limits::ENTRIES_PACKED;
            self.keyspaces.pack(&mut room);
            self.members.pack(&mut room);
        }
        let due = [self.next_plan_due(), self.next_copy_due(), self.next_transfer_due(), self.next_tick(at)];
        let wake = wake.into_iter().chain(due).fold(Millis::NEVER, Millis::min);
        self.times.decision_due = if advances_more || plans_more { at.now } else { wake };
        self.times.decision_due
    }

    pub(super) fn run_phase<T: Transition>(&mut self, at: Moment) -> Millis {
        T::find(self, at).apply(self, at)
    }
}
