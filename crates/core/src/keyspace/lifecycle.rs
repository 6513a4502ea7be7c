//! The life of a replica: one shard on one node, under one placement id. The same for every kind of keyspace.
//!
//! | state         | meaning                                 | may become                      |
//! |---------------|-----------------------------------------|---------------------------------|
//! | `Load`        | prepares or catches up; does not serve  | `Live`, `Unload`, `UnloadFinal` |
//! | `Live`        | serves                                  | `Unload`                        |
//! | `Unload`      | hands over, forwards what still arrives | `UnloadFinal`                   |
//! | `UnloadFinal` | its data may be deleted                 | nothing: removed                |
//!
//! A replica that has served leaves through `Unload`, where it waits for its successor ([`ReplicaState::leaving`]). A replica
//! that has never served has nothing to hand over: when its load is given up, it goes to `UnloadFinal`. No single step leads
//! from `Load` to `Unload`. The table has it for the check of a commit, which sees only the maps before and after it, and in
//! between a replica may have been `Live`.
//!
//! Nothing goes back. A replica that should serve again on the same node is a new replica with a new
//! placement id, so that no process mistakes it for its former self (T10, T11).
//!
//! In a durable keyspace a replica outlives its process. When that has ended, the same replica, with the data that the
//! node has stored, begins anew with the next process of the node:
//!
//! | state    | begins anew as | when                                                                    |
//! |----------|----------------|-------------------------------------------------------------------------|
//! | `Live`   | `Live`         | no other replica has served the shard without it                        |
//! | `Live`   | `Load`         | others go on without it, or its leader has asked for an in-sync set without it: it catches up before it serves again |
//! | `Load`   | `Load`         | it had not caught up                                                    |
//! | `Unload` | `Unload`       | what its shard was split or merged into has not served yet, and may lack its last writes |
//! | `Load`, `Unload` | `Live` | a person chooses its copy (`partage shard force-join`)                  |

use crate::base::id::PlacementId;
use std::fmt;

/// What the map wants of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplicaState {
    /// Prepares or catches up; does not serve.
    Load,
    /// Serves its shard, as the leader or beside it.
    Live,
    /// Hands over, and forwards what still arrives.
    Unload,
    /// Serves no more: its node may delete the data.
    UnloadFinal,
}

/// A step that the table above does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("replica {placement} cannot go from {from} to {to}: {}", IllegalStep::WAY_OUT)]
pub struct IllegalStep {
    /// The placement id of the replica that was to take the step.
    pub placement: PlacementId,
    /// The state that the replica is in.
    pub from: ReplicaState,
    /// The state that it was asked to go to.
    pub to: ReplicaState,
}

impl IllegalStep {
    /// The end of the sentence for a refused step: what to do instead.
    pub const WAY_OUT: &str = "a replica never goes back, add a new one instead";
}

impl ReplicaState {
    /// All states, in the order of life.
    pub const ALL: [ReplicaState; 4] =
        [ReplicaState::Load, ReplicaState::Live, ReplicaState::Unload, ReplicaState::UnloadFinal];

    /// The table of this module.
    pub fn may_become(self, to: ReplicaState) -> bool {
        use ReplicaState::*;
        match (self, to) {
            (Load, Live | Unload | UnloadFinal) | (Live, Unload) | (Unload, UnloadFinal) => true,
            (Load | Live | Unload | UnloadFinal, Load | Live | Unload | UnloadFinal) => false,
        }
    }

    /// Whether a stored replica may begin anew so, after its process has ended: the second table of this module.
    pub fn may_begin_anew_as(self, to: ReplicaState) -> bool {
        use ReplicaState::*;
        match (self, to) {
            (Live, Live | Load) | (Load, Load | Live) | (Unload, Unload | Live) => true,
            (Load | Live | Unload | UnloadFinal, Load | Live | Unload | UnloadFinal) => false,
        }
    }

    /// Takes the step for `placement`, or says why not.
    pub fn step(self, placement: PlacementId, to: ReplicaState) -> Result<ReplicaState, IllegalStep> {
        if self.may_become(to) { Ok(to) } else { Err(IllegalStep { placement, from: self, to }) }
    }

    /// Where a replica goes that is wanted no more: through `Unload` if it has served.
    pub fn leaving(self) -> ReplicaState {
        match self {
            ReplicaState::Live | ReplicaState::Unload => ReplicaState::Unload,
            ReplicaState::Load | ReplicaState::UnloadFinal => ReplicaState::UnloadFinal,
        }
    }

    /// Whether the replica counts towards the wanted number: it serves or is about to.
    pub fn is_staying(self) -> bool {
        matches!(self, ReplicaState::Load | ReplicaState::Live)
    }
}

impl fmt::Display for ReplicaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ReplicaState::Load => "Load",
            ReplicaState::Live => "Live",
            ReplicaState::Unload => "Unload",
            ReplicaState::UnloadFinal => "UnloadFinal",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_goes_back_and_nothing_stays_by_a_step() {
        for from in ReplicaState::ALL {
            for to in ReplicaState::ALL {
                assert!(!from.may_become(to) || to > from, "{from} → {to}");
            }
        }
    }

    #[test]
    fn a_stored_replica_that_may_be_deleted_never_begins_anew() {
        for state in ReplicaState::ALL {
            assert!(!ReplicaState::UnloadFinal.may_begin_anew_as(state));
            assert!(!state.may_begin_anew_as(ReplicaState::UnloadFinal));
        }
    }

    #[test]
    fn a_replica_that_serves_is_never_deleted_without_handing_over() {
        assert!(!ReplicaState::Live.may_become(ReplicaState::UnloadFinal));
        assert!(ReplicaState::Load.may_become(ReplicaState::UnloadFinal), "it has never served");
        for from in ReplicaState::ALL {
            assert!(from.leaving() == from || from.may_become(from.leaving()), "{from}");
        }
        let error = ReplicaState::Unload.step(PlacementId(7), ReplicaState::Live).unwrap_err();
        assert_eq!(error.placement, PlacementId(7));
    }
}
