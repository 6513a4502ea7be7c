//! One decision of the coordinator, from what it knows to what follows.
//!
//! Each [`Transition`] has two halves. The first reads the cluster and says what is to change, as data; the second
//! makes the change. So each phase sees what earlier phases have changed, and the signature of the first half shows
//! that it changes nothing. The second half takes the cluster apart into its values (see [`super`]) and calls their methods.
//!
//! | phase                    | what it changes                                      | why it stands there                     |
//! |--------------------------|------------------------------------------------------|-----------------------------------------|
//! | `OwnSilence`             | nodes get the time in which this process slept       | before any node is judged               |
//! | `LongestLease`           | how long the next coordinator waits for old leases   | anywhere                                |
//! | `LossJudgement`          | the brake; whether nodes that are down may be declared dead | before `NodeHealth` declares them dead |
//! | `LongUnreachableNodes`   | nodes from which everything moves off                | after `LossJudgement`, as both judge nodes |
//! | `NodeHealth`             | events on node health; dead nodes are declared dead  | before the phases that read it          |
//! | `ShardsAfterRestore`, `ComparedCopies` | shards that wait for nodes that are back | after `NodeHealth`                    |
//! | `SuspectedShards`        | shards that are set aside, or cleared                | after deaths, which are evidence        |
//! | `Unrest`, `ReleasedBrake`, `ReleasedKeyspaceBrakes` | what stops the planner    | before the planner                      |
//! | `ForgottenNodes`         | records of nodes that ended long ago                 | anywhere after `NodeHealth`             |
//! | `OverdueSteps`, `ResumedLeases` | steps that are given up, nodes that get no lease | before the next map, which goes on without them |
//! | `EndedTransfers`         | hand-overs that leaders did not come to the end of   | before the next map, which changes these leaders without |
//! | `BegunDrains`, `SafeToStopNodes` | drains, and events on them                   | before the planner moves anything off   |
//!
//! Then come the next maps ([`Cluster::advance`]) and plans ([`Cluster::plan_in_turn`]). A map is found as an edit, and
//! taken in by `NextMap::apply`, which changes its keyspace, orders of members, progress of plans, and the outbox. A plan is
//! found as its changes, and taken in by `Plans::add`.

use super::blame::SuspectedShards;
use super::calm::{ReleasedBrake, ReleasedKeyspaceBrakes, Unrest};
use super::drains::{BegunDrains, SafeToStopNodes};
use super::faults::LongestLease;
use super::forget::ForgottenNodes;
use super::guard::LossJudgement;
use super::node_health::{NodeHealth, OwnSilence};
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
    /// What is to change now.
    fn find(cluster: &Cluster, at: Moment) -> Self;

    /// Changes it. Returns when to look again if nothing happens before.
    fn apply(self, cluster: &mut Cluster, at: Moment) -> Millis;
}

impl Cluster {
    /// Goes once through everything; `transaction` (drawn anew for each call) names what is committed.
    /// Returns when to call again if nothing happens before.
    pub fn decide(&mut self, at: Moment, transaction: TransactionId) -> Millis {
        let before = self.work_done();
        let wake = [
            self.make::<OwnSilence>(at),
            self.make::<LongestLease>(at),
            self.make::<LossJudgement>(at),
            self.make::<LongUnreachableNodes>(at),
            self.make::<NodeHealth>(at),
            self.make::<ShardsAfterRestore>(at),
            self.make::<ComparedCopies>(at),
            self.make::<SuspectedShards>(at),
            self.make::<Unrest>(at),
            self.make::<ReleasedBrake>(at),
            self.make::<ReleasedKeyspaceBrakes>(at),
            self.make::<ForgottenNodes>(at),
            self.make::<OverdueSteps>(at),
            self.make::<ResumedLeases>(at),
            self.make::<EndedTransfers>(at),
            self.make::<BegunDrains>(at),
            self.make::<SafeToStopNodes>(at),
        ];
        let again = self.advance(at, transaction);
        let ready = self.plan_in_turn(at, before);
        let is_idle = self.work_done() == before && !again && !ready;
        // A map is packed in one piece, so that is done in decisions that do nothing else, in several where there is much.
        if is_idle && self.keyspaces.are_settled() {
            let mut room = limits::ENTRIES_PACKED;
            self.keyspaces.pack(&mut room);
            self.members.pack(&mut room);
        }
        let due = [self.next_plan_due(), self.next_copy_due(), self.next_transfer_due(), self.next_look(at)];
        let wake = wake.into_iter().chain(due).fold(Millis::NEVER, Millis::min);
        self.times.promised = if again || ready { at.now } else { wake };
        self.times.promised
    }

    /// Finds what one phase changes, and changes it.
    pub(super) fn make<T: Transition>(&mut self, at: Moment) -> Millis {
        T::find(self, at).apply(self, at)
    }
}
