//! What a restore of the coordinator's state from a backup keeps back in durable keyspaces.
//!
//! The map of a backup may name a copy without which others went on after the backup, and it does not name what was placed
//! later. Each node reports the epoch under which its copy served last (`cluster/restored.rs` compares them).
//!
//! | the shard or replica                                            | until then                                      |
//! |-----------------------------------------------------------------|-------------------------------------------------|
//! | copies whose processes live are not compared yet (`awaits_comparison`) | no step, and no grant                    |
//! | a copy, its process ended: another may be later (`Unproven`), or is (`Overtaken`) | it does not begin; a person may choose it |
//! | in `Load`, or a read replica; its node is away, and no replica has led since | it stays: it may be a later copy   |
//!
//! When every node that the map names is back, only the copies with the latest epoch begin. If the backup is older than the
//! removal of a copy, its process reports `Dropped`: the replica is no copy until it has loaded ([`super::is_reported_lost`]).

use super::{DiskState, ReplicaView};
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Replica, Shard};

/// Whether a replica that cannot act neither begins nor is removed, as a restore leaves open which copy is the latest.
pub(super) fn is_kept_back(shard: &Shard, replica: &Replica, view: &dyn ReplicaView) -> bool {
    match replica.state {
        ReplicaState::Live if !replica.is_read_replica() => {
            matches!(view.disk_state(shard, replica), DiskState::Unproven | DiskState::Overtaken)
        }
        ReplicaState::Load | ReplicaState::Live => view.may_be_later(shard, replica),
        ReplicaState::Unload | ReplicaState::UnloadFinal => false,
    }
}
